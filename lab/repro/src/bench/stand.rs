//! Programs that talk to each other over two networks, by one of the methods: directly, or through a daemon
//! and its relay. What passes over LTE is recorded.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result};
use multiway_linksim::Scenario;
use multiway_netlab::{Direction, Network, NetworkOptions, PassedPacket, Process};

use crate::daemon::{Daemon, DaemonSpec, PROXY};
use crate::measure::{make_backup, received};
use crate::method::{Method, Preference};
use crate::plan::LTE;
use crate::radio::{RadioModel, RadioPacket};
use crate::relay::{BondSpec, Relay};
use crate::report::{Measurement, Outcome};
use crate::traffic::{Answers, Line};

/// Where the server's program listens.
const PORT: u16 = 7000;

/// How long it may take to listen on a busy machine.
const START_PATIENCE: Duration = Duration::from_secs(10);

/// The last answers are awaited for so long.
pub(super) const ANSWER_PATIENCE: Duration = Duration::from_secs(20);

/// What the kernel still says when IPv6 ends has passed the links after so long.
const SETTLING: Duration = Duration::from_millis(200);

/// Connections are being closed for so long after their program has ended.
const CLOSING: Duration = Duration::from_millis(200);

/// Device and server, ready.
pub(super) struct Stand {
    daemon: Option<Daemon>,
    _relay: Option<Relay>,
    _server: Process,
    method: Method,
    run: u32,
    before: BTreeMap<String, u64>,
    /// Where the server's program listens.
    pub(super) address: SocketAddr,
    pub(super) network: Network,
}

impl Stand {
    /// Builds the networks of `scenario`, whose changes wait, and starts this program's side `serve` on the
    /// server `origin`.
    pub(super) fn build(
        binary: &Path,
        scenario: &Scenario,
        method: Method,
        run: u32,
        serve: &[&str],
    ) -> Result<Self> {
        Self::build_with(binary, scenario, method, run, serve, "")
    }

    /// The same with more in the daemon's configuration, after what it says of its relay.
    pub(super) fn build_with(
        binary: &Path,
        scenario: &Scenario,
        method: Method,
        run: u32,
        serve: &[&str],
        bond: &str,
    ) -> Result<Self> {
        let scenario = Scenario { seed: run.into(), ..scenario.clone() };
        let mptcp = method.is_mptcp();
        let options = NetworkOptions { mptcp, hold_schedule: true, ..NetworkOptions::default() };
        let network = Network::build_with(&scenario, &options)?;
        if method.is_mptcp_backup() {
            make_backup(&network, LTE)?;
        }
        // Everything here speaks IPv4, and the kernel reports memberships in IPv6 groups of its own accord:
        // on both ends of the link, also when they end.
        for host in [network.device(), network.path(LTE).gateway()] {
            host.sysctl("net.ipv6.conf.all.disable_ipv6", "1")?;
        }
        std::thread::sleep(SETTLING);
        network.path(LTE).link().take_packets();
        let before = received(&network);

        let server = network.server("origin");
        // What has a private address goes past the relay.
        let address = SocketAddr::from((server.public_address(), PORT));
        let mut command = server.host().command(this_program()?);
        let (side, more) = serve.split_first().context("a side of the traffic")?;
        command.args(["traffic", side, &address.to_string()]).args(more).args(mptcp.then_some("--mptcp"));
        let process = server.host().start(command)?;
        server.host().wait_for_port(address, START_PATIENCE)?;

        let directory = network.lab().directory();
        let relay = match method.bond() {
            Some(_) => Some(Relay::start(server.host(), binary, directory, address.ip())?),
            None => None,
        };
        let bond = relay
            .as_ref()
            .zip(method.bond())
            .map(|(relay, (mode, detector))| BondSpec { more: bond, ..relay.bond(mode, detector) });
        let spec = DaemonSpec {
            binary,
            directory,
            preference: Preference::Thrifty,
            intercept_user: None,
            paths: network.paths().len(),
            bond,
        };
        let daemon = bond.is_some().then(|| Daemon::start(network.device(), &spec)).transpose()?;
        Ok(Self { daemon, _relay: relay, _server: process, method, run, before, address, network })
    }

    /// What a program on the device connects through.
    pub(super) fn proxy(&self) -> Option<SocketAddr> {
        self.daemon.is_some().then(Daemon::proxy)
    }

    /// This program's side that asks, without its rounds.
    pub(super) fn ask(&self) -> Result<Command> {
        let mut ask = self.network.device().command(this_program()?);
        ask.args(["traffic", "ask", &self.address.to_string(), "--seed", &self.run.to_string()])
            .args(["--patience", &ANSWER_PATIENCE.as_secs().to_string()])
            .args(self.method.is_mptcp().then_some("--mptcp"));
        if self.daemon.is_some() {
            ask.args(["--proxy", PROXY]);
        }
        Ok(ask)
    }

    /// What this method's run gave: `seconds`, `outcome` and `more` by its program, and what the links saw.
    pub(super) fn measurement(
        &self,
        seconds: f64,
        outcome: Outcome,
        more: impl IntoIterator<Item = (&'static str, f64)>,
    ) -> Measurement {
        std::thread::sleep(CLOSING);
        let mut more: BTreeMap<String, f64> =
            more.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        let lte = on_lte(&self.network.path(LTE).link().take_packets());
        more.extend(lte.map(|(name, value)| (name.to_owned(), value)));
        let path_bytes = received(&self.network)
            .into_iter()
            .map(|(name, bytes)| (name.clone(), bytes - self.before[&name]))
            .collect();
        Measurement { method: self.method.to_string(), run: self.run, seconds, outcome, path_bytes, more }
    }

    /// The same for a program that asked.
    pub(super) fn answered(&self, answers: &Answers) -> Measurement {
        let largest = answers.delays_ms.iter().copied().max_by(f64::total_cmp).unwrap_or_default();
        let is_complete = answers.missing == 0;
        let largest = if is_complete { largest } else { largest.max(ANSWER_PATIENCE.as_secs_f64() * 1e3) };
        let median = crate::stats::median(answers.delays_ms.iter().copied());
        let outcome = if is_complete { Outcome::Counted } else { Outcome::TimedOut };
        let seen = [("largest_answer_ms", largest), ("missing_answers", answers.missing.into())];
        let median = median.map(|median| ("median_answer_ms", median));
        self.measurement(largest / 1e3, outcome, seen.into_iter().chain(median))
    }
}

fn this_program() -> Result<std::path::PathBuf> {
    std::env::current_exe().context("this program cannot find itself")
}

/// Runs the program that asks; `in_pause` is called whenever it begins to pause.
pub(super) fn answers(mut ask: Command, in_pause: &dyn Fn()) -> Result<Answers> {
    let mut child =
        ask.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().context("cannot start this program again")?;
    let lines = BufReader::new(child.stdout.take().context("its output is piped")?).lines();
    let mut answers = None;
    for line in lines {
        match serde_json::from_str(&line?)? {
            Line::Pause => in_pause(),
            Line::End(all) => answers = Some(all),
        }
    }
    let status = child.wait()?;
    answers.with_context(|| format!("the program that asks ended with {status}"))
}

/// What was done on the path that costs money.
fn on_lte(packets: &[PassedPacket]) -> [(&'static str, f64); 4] {
    let radio: Vec<RadioPacket> = packets.iter().map(radio_packet).collect();
    let energy = RadioModel::LTE.energy(&radio);
    [
        ("lte_bytes", packets.iter().map(|packet| packet.bytes).sum::<u64>() as f64),
        ("lte_packets", packets.len() as f64),
        ("lte_energy_j", energy.total_mj() / 1e3),
        ("lte_promotions", energy.promotions.into()),
    ]
}

fn radio_packet(packet: &PassedPacket) -> RadioPacket {
    let (bytes_up, bytes_down) = match packet.direction {
        Direction::Up => (packet.bytes, 0),
        Direction::Down => (0, packet.bytes),
    };
    RadioPacket { at: packet.at, bytes_up, bytes_down }
}
