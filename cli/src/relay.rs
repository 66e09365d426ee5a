//! `multiway relay`: the relay, and who may use it.

use std::io::{self, IsTerminal as _};
use std::path::PathBuf;

use comfy_table::{ContentArrangement, Table, presets};
use multiway_engine::bond::invite::{Invite, RelayAddress};
use multiway_engine::relay::config::{RelayConfig, default_state};
use multiway_engine::relay::identity::{Identity, StateError};
use multiway_engine::relay::users::{self, Grant, Usage, User, month_of, unix_seconds};
use multiway_engine::relay::{self, RelayError};
use qrcode::QrCode;
use qrcode::render::unicode::Dense1x2;

use crate::args::{self, RelayCommand};
use crate::exit::Exit;
use crate::failure::Failure;
use crate::{log, output, units, up};

/// Runs the relay, or changes who may use it.
pub(crate) fn relay(args: args::Relay) -> Result<(), Failure> {
    let mut config = match &args.config {
        Some(file) => {
            RelayConfig::load(file).map_err(|error| up::wrong_config(error, "packaging/relay.toml"))?
        }
        None => RelayConfig::default(),
    };
    let state = args.state.or(config.state.take()).or_else(default_state).ok_or_else(|| {
        let failure = Failure::new(Exit::Disk, "there is no place for keys and users: HOME is not set");
        failure.help("Name a directory with --state.")
    })?;
    match args.command {
        Some(RelayCommand::Invite(invite_args)) => invite(&invite_args, &config, &state),
        Some(RelayCommand::Users { json }) => list(&state, json),
        Some(RelayCommand::Revoke { user }) => revoke(&state, &user),
        None => {
            if !args.listen.is_empty() {
                config.listen = args.listen;
            }
            run(config, state)
        }
    }
}

fn run(config: RelayConfig, state: PathBuf) -> Result<(), Failure> {
    if config.json_log {
        log::json_to_standard_error("info");
    } else {
        log::to_standard_error("info");
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().map_err(|error| {
        Failure::new(Exit::Other, format!("the relay's threads cannot be started: {error}"))
    })?;
    runtime.block_on(relay::run(config, state)).map_err(explain)
}

fn invite(args: &args::Invite, config: &RelayConfig, state: &std::path::Path) -> Result<(), Failure> {
    let given = args.address.as_deref().map(str::parse::<RelayAddress>).transpose();
    let given = given.map_err(|error| Failure::new(Exit::Usage, error))?;
    let address = given.or_else(|| config.address.clone()).ok_or_else(|| {
        let failure = Failure::new(Exit::Usage, "it is not known where devices reach the relay");
        failure.help("Name it with --address HOST:PORT, or as `address` in the configuration file.")
    })?;
    let identity = Identity::load_or_create(state).map_err(state_failure)?;
    let grant = Grant {
        name: args.name.clone(),
        expires: args.expires.0.map(|seconds| unix_seconds().saturating_add(seconds)),
        monthly_bytes: args.limit,
    };
    let token = users::invite(state, &identity, &grant).map_err(state_failure)?;
    let url = Invite { address, pin: identity.pin(), token }.to_string();
    if args.quiet {
        return output::text(&format!("{url}\n")).map(drop);
    }
    let picture = picture(&url, io::stdout().is_terminal());
    output::text(&format!("{picture}\n\n{url}\n\nOn the device: multiway join '{url}'\n")).map(drop)
}

/// A QR code. On a terminal it has colours of its own: where text is light on dark, it would be inverted,
/// which not every camera reads (ISO/IEC 18004 has that as an option).
fn picture(text: &str, on_terminal: bool) -> String {
    const BLACK_ON_WHITE: &str = "\x1b[30;107m";
    const AS_BEFORE: &str = "\x1b[0m";
    // A text that is too long for the largest code does without one.
    let picture = QrCode::new(text).map(|code| code.render::<Dense1x2>().build()).unwrap_or_default();
    if !on_terminal {
        return picture;
    }
    let lines: Vec<String> =
        picture.lines().map(|line| format!("{BLACK_ON_WHITE}{line}{AS_BEFORE}")).collect();
    lines.join("\n")
}

fn list(state: &std::path::Path, json: bool) -> Result<(), Failure> {
    let listed = users::users(state).map_err(state_failure)?;
    if json {
        return output::json_pretty(&listed).map(drop);
    }
    if listed.is_empty() {
        return output::text("nobody was invited yet: multiway relay invite\n").map(drop);
    }
    let usage = users::usage(state).map_err(state_failure)?;
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(["NAME", "NUMBER", "STATE", "THIS MONTH", "LIMIT"]);
    for user in &listed {
        table.add_row(row(user, &usage));
    }
    output::text(&format!("{table}\n")).map(drop)
}

fn row(user: &User, usage: &Usage) -> [String; 5] {
    let now = unix_seconds();
    let state = match (user.revoked, user.expires) {
        (Some(_), _) => "revoked".to_owned(),
        (None, Some(expires)) if expires <= now => "expired".to_owned(),
        (None, Some(expires)) => format!("good for {} days", (expires - now).div_ceil(86_400)),
        (None, None) => "good".to_owned(),
    };
    // The operator's words, yet a terminal obeys some characters.
    let name = user.name.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect();
    let limit = user.monthly_bytes.map_or_else(|| "-".to_owned(), units::bytes);
    [name, user.id.clone(), state, units::bytes(usage.of(&user.id, &month_of(now))), limit]
}

fn revoke(state: &std::path::Path, who: &str) -> Result<(), Failure> {
    let found = users::revoke(state, who).map_err(state_failure)?;
    if found.is_empty() {
        let failure = Failure::new(Exit::Usage, format!("there is no user {who}"));
        return Err(failure.help("`multiway relay users` lists them."));
    }
    let text: String = found.iter().map(|user| format!("revoked {} ({})\n", user.name, user.id)).collect();
    output::text(&text).map(drop)
}

fn state_failure(error: StateError) -> Failure {
    let failure = Failure::new(Exit::Disk, error);
    failure.help("The directory belongs to the relay's user; name another one with --state.")
}

fn explain(error: RelayError) -> Failure {
    match error {
        RelayError::State(error) => state_failure(error),
        RelayError::Listen { error: ref reason, .. } => {
            let failure = |exit| Failure::new(exit, &error);
            match reason.kind() {
                io::ErrorKind::AddrInUse => failure(Exit::Busy).help("Choose another port with --listen."),
                io::ErrorKind::PermissionDenied => failure(Exit::Capability)
                    .help("Ports below 1024 need CAP_NET_BIND_SERVICE; choose a higher one with --listen."),
                _ => failure(Exit::Other),
            }
        }
        RelayError::Tls(_) | RelayError::PartFailed { .. } => Failure::new(Exit::Other, error),
    }
}
