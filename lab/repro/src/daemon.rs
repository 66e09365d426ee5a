//! The daemon that is measured: `multiway up`, as shipped.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use multiway_api::{PathState, Status};
use multiway_netlab::{Host, Process};

use crate::method::Preference;
use crate::relay::BondSpec;

/// Where it offers its proxy.
pub(crate) const PROXY: &str = "127.0.0.1:7070";

/// How long it may take to start on a busy machine.
const START_PATIENCE: Duration = Duration::from_secs(10);

/// Time between two looks at it while it starts.
const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// What it writes when its relay has accepted it.
const RELAY_REACHED: &str = "the relay is reached";

/// A shell's script that runs a program with as many open files as it may have.
pub(crate) const RAISE_LIMIT: &str = "ulimit -n $(ulimit -H -n); exec \"$@\"";

/// Linux counts CPU time for users in hundredths of a second on every architecture (`USER_HZ`).
const TICKS_PER_SECOND: f64 = 100.0;

/// How a daemon is to be.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DaemonSpec<'a> {
    /// The `multiway` binary.
    pub(crate) binary: &'a Path,
    /// Where its files go.
    pub(crate) directory: &'a Path,
    pub(crate) preference: Preference,
    /// The user whose connections it intercepts.
    pub(crate) intercept_user: Option<&'a str>,
    /// How many paths it must have found before it is used.
    pub(crate) paths: usize,
    /// The relay it uses, if it uses one.
    pub(crate) bond: Option<BondSpec<'a>>,
}

/// A running daemon; ended when dropped.
pub(crate) struct Daemon {
    process: Process,
    host: Host,
    binary: PathBuf,
    control: PathBuf,
    log: PathBuf,
}

impl Daemon {
    /// Starts it and waits until it knows its paths.
    pub(crate) fn start(host: &Host, spec: &DaemonSpec<'_>) -> Result<Self> {
        let [control, log, history, config] = ["control.sock", "daemon.log", "history.db", "multiway.toml"]
            .map(|name| spec.directory.join(name));
        let mut text = format!(
            "listen = {PROXY:?}\npreference = {:?}\nhistory = {history:?}\n[control]\nsocket = {control:?}\n",
            spec.preference.name()
        );
        if let Some(bond) = &spec.bond {
            text.push_str(&bond.join(host, spec.binary, spec.directory)?);
        }
        std::fs::write(&config, text).with_context(|| format!("cannot write {}", config.display()))?;
        let log_file =
            std::fs::File::create(&log).with_context(|| format!("cannot write {}", log.display()))?;
        // A thousand flows have several thousand sockets; the limit of a login shell is 1024.
        let mut command = host.command("sh");
        command.args(["-c", RAISE_LIMIT, "sh"]).arg(spec.binary).arg("up").arg("-c").arg(&config);
        if let Some(user) = spec.intercept_user {
            command.args(["--intercept-user", user]);
        }
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log_file);
        let process = host.start(command)?;
        let mut daemon = Self { process, host: host.clone(), binary: spec.binary.to_owned(), control, log };
        daemon.wait_until_ready(spec.paths, spec.bond.is_some())?;
        let interception = daemon.status()?.interception;
        if spec.intercept_user.is_some() && !interception.active {
            bail!("multiway up cannot intercept: {}", interception.reason.unwrap_or_default());
        }
        Ok(daemon)
    }

    fn wait_until_ready(&mut self, paths: usize, bonds: bool) -> Result<()> {
        let deadline = Instant::now() + START_PATIENCE;
        loop {
            if let Some(status) = self.process.child().try_wait()? {
                bail!("multiway up ended with {status}: {}", self.log());
            }
            let ready = self.status().is_ok_and(|status| {
                status.paths.iter().filter(|path| path.state == PathState::Up).count() >= paths
                    && !status.listeners.is_empty()
                    && (!bonds || self.log().contains(RELAY_REACHED))
            });
            if ready {
                return Ok(());
            }
            if Instant::now() >= deadline {
                bail!("multiway up is not ready after {START_PATIENCE:?}: {}", self.log());
            }
            std::thread::sleep(LOOK_AGAIN);
        }
    }

    /// What `multiway status --json` says.
    pub(crate) fn status(&self) -> Result<Status> {
        let mut command = self.host.command(&self.binary);
        command.args(["status", "--json", "--control"]).arg(&self.control);
        let text = self.host.output(command)?;
        serde_json::from_str(&text).context("`multiway status --json` does not follow its schema")
    }

    /// What it wrote to its standard error.
    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default().trim().to_owned()
    }

    pub(crate) fn proxy() -> SocketAddr {
        PROXY.parse().expect("a constant that is an address")
    }

    /// CPU time it has used, by itself and in the kernel on its behalf.
    pub(crate) fn cpu_seconds(&mut self) -> Result<f64> {
        cpu_seconds_of(&mut self.process).with_context(|| self.log())
    }

    /// Memory it holds now, in KiB.
    pub(crate) fn resident_kib(&mut self) -> Result<u64> {
        resident_kib_of(&mut self.process).with_context(|| self.log())
    }
}

/// Memory that a process holds now, in KiB.
pub(crate) fn resident_kib_of(process: &mut Process) -> Result<u64> {
    let file = format!("/proc/{}/status", process.child().id());
    std::fs::read_to_string(&file)
        .with_context(|| format!("cannot read {file}"))?
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))
        .and_then(|rest| rest.trim().strip_suffix(" kB"))
        .and_then(|number| number.trim().parse().ok())
        .context("the kernel does not tell the resident size")
}

/// CPU time that a process has used, by itself and in the kernel on its behalf.
pub(crate) fn cpu_seconds_of(process: &mut Process) -> Result<f64> {
    let file = format!("/proc/{}/stat", process.child().id());
    let stat = std::fs::read_to_string(&file).with_context(|| format!("cannot read {file}"))?;
    // Fields after the command's name, which may hold blanks: utime and stime are the 14th and 15th.
    let fields: Vec<&str> =
        stat.rsplit_once(')').context("no process status")?.1.split_whitespace().collect();
    let ticks: u64 = fields.get(11).context("no utime")?.parse::<u64>()?
        + fields.get(12).context("no stime")?.parse::<u64>()?;
    Ok(ticks as f64 / TICKS_PER_SECOND)
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // Asked to end, it removes what it made; what is then left alive is killed with its handle.
        let _ = self.process.terminate();
    }
}
