//! `multiway up`: the daemon.

use std::io;
use std::process::Command;

use multiway_engine::bond::membership::default_file as default_membership_file;
use multiway_engine::config::{Config, ConfigError, InterfacePattern, Preference};
use multiway_engine::control::ControlError;
use multiway_engine::daemon::{self, DaemonError, InterceptError};
use multiway_engine::paths::{PathTableError, default_history_file};

use crate::args::{self, PreferenceName};
use crate::exit::Exit;
use crate::failure::Failure;
use crate::log;
use crate::paths::require_interfaces;

/// Runs the daemon until it is told to stop.
pub(crate) fn up(args: args::Up) -> Result<(), Failure> {
    let config = configure(args)?;
    log::to_standard_error("info");
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().map_err(|error| {
        Failure::new(Exit::Other, format!("the daemon's threads cannot be started: {error}"))
    })?;
    runtime.block_on(daemon::run(config, reaper)).map_err(explain)
}

fn configure(args: args::Up) -> Result<Config, Failure> {
    let mut config = match &args.config {
        Some(file) => Config::load(file).map_err(|error| wrong_config(error, "packaging/multiway.toml"))?,
        None => Config::default(),
    };
    require_interfaces(&args.paths.interfaces)?;
    if !args.paths.interfaces.is_empty() {
        let only = args.paths.interfaces.into_iter().map(InterfacePattern).collect();
        config.paths.permission.only = Some(only);
    }
    match args.paths.preference {
        Some(PreferenceName::Fast) => config.preference = Preference::Fast,
        // A tolerance given in the file stays.
        Some(PreferenceName::Thrifty) if config.preference == Preference::Fast => {
            config.preference = Preference::default();
        }
        Some(PreferenceName::Thrifty) | None => {}
    }
    if let Some(listen) = args.listen {
        config.listen = listen;
    }
    if let Some(socket) = args.control.socket {
        config.control.socket = Some(socket);
    }
    config.history = config.history.or_else(default_history_file);
    config.bond.membership = config.bond.membership.or_else(default_membership_file);
    config.intercept.users.extend(args.intercept_users);
    config.intercept.groups.extend(args.intercept_groups);
    config.intercept.cgroups.extend(args.intercept_cgroups);
    Ok(config)
}

pub(crate) fn wrong_config(error: ConfigError, example: &str) -> Failure {
    let failure = Failure::new(Exit::Usage, &error);
    match error {
        ConfigError::Unreadable { .. } => {
            failure.help("Give a file that this user can read, or none to use the defaults.")
        }
        ConfigError::Invalid { file, text, fault } => {
            failure.at(file.to_string_lossy(), text, fault.span).help(format!("{example} shows every key."))
        }
    }
}

/// The reaper process: cleans up when the daemon at the other end of its input is gone.
pub(crate) fn reap() -> Result<(), Failure> {
    daemon::reap().map_err(|error| Failure::new(Exit::Other, format!("a control group stays: {error}")))
}

/// Runs this very program, even if its file was replaced meanwhile.
fn reaper() -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.arg("reaper");
    command
}

fn explain(error: DaemonError) -> Failure {
    let failure = |exit| Failure::new(exit, &error);
    match &error {
        DaemonError::Listen { error, .. } => match error.kind() {
            io::ErrorKind::AddrInUse => failure(Exit::Busy)
                .help("Stop what listens there (`ss -ltnp` shows it), or choose another port with --listen."),
            io::ErrorKind::PermissionDenied => {
                failure(Exit::Capability).help("Ports below 1024 need CAP_NET_BIND_SERVICE; choose a higher one.")
            }
            io::ErrorKind::AddrNotAvailable => {
                failure(Exit::Usage).help("This host does not have the address; `ip address` lists those it has.")
            }
            _ => failure(Exit::Other),
        },
        DaemonError::Control(ControlError::AnotherDaemon { .. }) => failure(Exit::Busy),
        DaemonError::Control(ControlError::NoSocket { .. }) => failure(Exit::Usage),
        DaemonError::Control(ControlError::Failed { .. }) => {
            failure(Exit::Disk).help("Name another place with --control or in MULTIWAY_CONTROL.")
        }
        DaemonError::Paths(PathTableError::UnknownInterface { .. }) | DaemonError::UnknownAccount { .. } => {
            failure(Exit::Usage)
        }
        DaemonError::Intercept(InterceptError::Cgroup { .. }) | DaemonError::Features(_) => failure(Exit::Usage),
        DaemonError::Intercept(InterceptError::OwnedByAnother) => failure(Exit::Busy),
        DaemonError::Intercept(_) => failure(Exit::Capability)
            .help("Without users, groups and control groups to intercept, the daemon starts and offers its proxies."),
        DaemonError::Paths(_) | DaemonError::PartFailed { .. } => failure(Exit::Other),
    }
}
