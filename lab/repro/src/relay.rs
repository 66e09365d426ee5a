//! The relay that is measured: `multiway relay`, as shipped, and what a daemon needs to use it.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result};
use multiway_netlab::{Host, Process};

use crate::method::{BondMode, Detector};

/// The port it listens on.
pub(crate) const PORT: u16 = 4443;

/// How long it may take to listen on a busy machine.
const START_PATIENCE: Duration = Duration::from_secs(10);

/// A running relay; ended when dropped.
pub(crate) struct Relay {
    process: Process,
    invite: String,
}

/// How a daemon is to use a relay.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BondSpec<'a> {
    /// What `multiway relay invite` printed.
    pub(crate) invite: &'a str,
    pub(crate) mode: BondMode,
    pub(crate) detector: Detector,
    /// What else stands in the daemon's configuration.
    pub(crate) more: &'a str,
}

impl Relay {
    /// Starts one on `host`, reached by `address`, which invites one device. Streams may lead to the
    /// addresses of the host itself.
    pub(crate) fn start(host: &Host, binary: &Path, directory: &Path, address: IpAddr) -> Result<Self> {
        Self::start_with(host, binary, directory, address, "")
    }

    /// The same with more in its configuration.
    pub(crate) fn start_with(
        host: &Host,
        binary: &Path,
        directory: &Path,
        address: IpAddr,
        more: &str,
    ) -> Result<Self> {
        let listen = SocketAddr::new(address, PORT);
        let [config, state, log] =
            ["relay.toml", "relay-state", "relay.log"].map(|name| directory.join(name));
        let text = format!(
            "listen = [{:?}]\naddress = {:?}\nstate = {state:?}\n[destinations]\nallow = [{:?}]\n{more}",
            listen.to_string(),
            listen.to_string(),
            address.to_string()
        );
        std::fs::write(&config, text).with_context(|| format!("cannot write {}", config.display()))?;
        // As docs/relay.md advises.
        host.sysctl("net.ipv4.tcp_fastopen", "3")?;
        let mut invite = host.command(binary);
        invite.args(["relay", "invite", "--quiet", "--name", "bench", "-c"]).arg(&config);
        let invite = host.output(invite)?.trim().to_owned();
        let log_file =
            std::fs::File::create(&log).with_context(|| format!("cannot write {}", log.display()))?;
        let mut relay = host.command(binary);
        relay.args(["relay", "-c"]).arg(&config);
        relay.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log_file);
        let process = host.start(relay)?;
        host.wait_for_port(listen, START_PATIENCE).with_context(|| {
            format!("multiway relay: {}", std::fs::read_to_string(&log).unwrap_or_default().trim())
        })?;
        Ok(Self { process, invite })
    }

    /// Its process.
    pub(crate) fn process(&mut self) -> &mut Process {
        &mut self.process
    }

    /// What `multiway relay invite` printed.
    pub(crate) fn invite(&self) -> &str {
        &self.invite
    }

    /// What makes a daemon use it.
    pub(crate) fn bond(&self, mode: BondMode, detector: Detector) -> BondSpec<'_> {
        BondSpec { invite: &self.invite, mode, detector, more: "" }
    }
}

impl BondSpec<'_> {
    /// Joins the relay, and gives what a daemon's configuration says of it.
    pub(crate) fn join(&self, host: &Host, binary: &Path, directory: &Path) -> Result<String> {
        let membership: PathBuf = directory.join("membership");
        let mut join = host.command(binary);
        join.arg("join").arg(self.invite).arg("--membership").arg(&membership);
        host.output(join)?;
        Ok(format!(
            "[bond]\nmode = {:?}\ndetector = {:?}\nmembership = {membership:?}\n{}",
            self.mode.name(),
            self.detector.name(),
            self.more
        ))
    }
}
