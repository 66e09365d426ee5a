//! MultiMob's figures 3 and 4: someone speaks to a device while its preferred path begins to lose packets.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use multiway_core::paths::PathKind;
use multiway_core::units::Rate;
use multiway_linksim::{Change, LinkSpec, Loss, Scenario, ServerSpec, mbit};
use multiway_netlab::{Direction, Network, NetworkOptions, PassedPacket};

use super::{Options, sweep};
use crate::daemon::{Daemon, DaemonSpec, PROXY};
use crate::measure::{make_backup, received};
use crate::method::{Detector, Method, Preference};
use crate::output;
use crate::plan::{LTE, WIFI};
use crate::radio::{RadioModel, RadioPacket};
use crate::relay::Relay;
use crate::report::{CellReport, Machine, Measurement, Outcome, Report};
use crate::traffic::{Answers, Line, PAUSE};

/// Section IV, paragraph b: "the primary path exhibits a RTT of 15 ms and the additional one 25 ms. Both
/// paths have a bandwidth of 10 Mbps and the router queue sizes are equal to the bandwidth-delay product."
const RATE: Rate = mbit(10);
const WIFI_RTT: Duration = Duration::from_millis(15);
const LTE_RTT: Duration = Duration::from_millis(25);

/// Figure 4's, in percent, both ways.
const LOSSES: [u32; 6] = [0, 10, 20, 30, 40, 100];
const QUICK_LOSSES: [u32; 3] = [0, 20, 100];

const RUNS: u32 = 25;
const QUICK_RUNS: u32 = 3;

const METHODS: [Method; 5] = [
    Method::Tcp,
    Method::Mptcp,
    Method::MptcpBackup,
    Method::Handover(Detector::Paper),
    Method::Handover(Detector::Improved),
];

/// Where the server that answers listens.
const PORT: u16 = 7000;

/// How long it may take to listen on a busy machine.
const START_PATIENCE: Duration = Duration::from_secs(10);

/// The last answers are awaited for so long.
const ANSWER_PATIENCE: Duration = Duration::from_secs(20);

/// What the kernel still says when IPv6 ends has passed the links after so long.
const SETTLING: Duration = Duration::from_millis(200);

/// Connections are being closed for so long after their program has ended.
const CLOSING: Duration = Duration::from_millis(200);

pub(super) fn run(binary: &Path, options: &Options) -> Result<Option<Report>> {
    let losses = if options.quick { &QUICK_LOSSES[..] } else { &LOSSES[..] };
    let wanted =
        |name: &String| options.only.is_empty() || options.only.iter().any(|part| name.contains(part));
    let cells: Vec<(u32, String)> = losses
        .iter()
        .map(|&percent| (percent, format!("15/25ms 10+10, {percent}% lost")))
        .filter(|(_, name)| wanted(name))
        .collect();
    if options.list {
        cells.iter().try_for_each(|(_, name)| output::line(name))?;
        return Ok(None);
    }
    if cells.is_empty() {
        bail!("no cell is named so; `--list` shows them");
    }
    let runs = options.runs.unwrap_or(if options.quick { QUICK_RUNS } else { RUNS });
    let methods = if options.methods.is_empty() { &METHODS[..] } else { &options.methods };
    if let Some(other) = methods.iter().find(|method| !METHODS.contains(method)) {
        let names: Vec<String> = METHODS.iter().map(Method::to_string).collect();
        bail!("{other} cannot carry this traffic; there are {}", names.join(", "));
    }
    let machine = Machine::this(super::version(binary)?);
    let names: Vec<&str> = cells.iter().map(|(_, name)| name.as_str()).collect();
    let measured = sweep::all_rounds(&names, methods, runs, options.jobs, &|cell, method, run| {
        let measurement = measure(binary, cells[cell].0, method, run).unwrap_or_else(|error| Measurement {
            method: method.to_string(),
            run,
            seconds: 0.0,
            outcome: Outcome::Failed { reason: format!("{error:#}") },
            path_bytes: BTreeMap::new(),
            more: BTreeMap::new(),
        });
        vec![measurement]
    });
    let cells = cells
        .into_iter()
        .zip(measured)
        .map(|((percent, name), measurements)| CellReport {
            name,
            conditions: [("wifi_loss".to_owned(), format!("{percent}%"))].into(),
            bytes: 0,
            measurements,
        })
        .collect();
    Ok(Some(Report {
        bench: "multimob".to_owned(),
        title: "MultiMob's interactive traffic; losses begin on the Wi-Fi while nobody speaks".to_owned(),
        label: "kernel".to_owned(),
        machine,
        cells,
    }))
}

fn link(rtt: Duration) -> LinkSpec {
    LinkSpec::symmetric(RATE, rtt).with_queue(RATE.bytes_in(rtt))
}

fn measure(binary: &Path, percent: u32, method: Method, run: u32) -> Result<Measurement> {
    let scenario = Scenario::new("someone speaks")
        .seed(run.into())
        .path(WIFI, PathKind::Wifi, link(WIFI_RTT))
        .path(LTE, PathKind::Cellular, link(LTE_RTT))
        .server(ServerSpec::new("origin"));
    let mptcp = method.is_mptcp();
    let network = Network::build_with(&scenario, &NetworkOptions { mptcp, ..NetworkOptions::default() })?;
    if method.is_mptcp_backup() {
        make_backup(&network, LTE)?;
    }
    // Everything here speaks IPv4, and the kernel reports memberships in IPv6 groups of its own accord: on
    // both ends of the link, also when they end.
    let lte = network.path(LTE).link().clone();
    for host in [network.device(), network.path(LTE).gateway()] {
        host.sysctl("net.ipv6.conf.all.disable_ipv6", "1")?;
    }
    std::thread::sleep(SETTLING);
    lte.take_packets();
    let before = received(&network);

    let server = network.server("origin");
    // What has a private address goes past the relay.
    let address = SocketAddr::from((server.public_address(), PORT));
    let program = std::env::current_exe().context("this program cannot find itself")?;
    let mut serve = server.host().command(&program);
    serve.args(["traffic", "serve", &address.to_string()]).args(mptcp.then_some("--mptcp"));
    let _server = server.host().start(serve)?;
    server.host().wait_for_port(address, START_PATIENCE)?;

    let directory = network.lab().directory();
    let relay = match method.bond() {
        Some(_) => Some(Relay::start(server.host(), binary, directory, address.ip())?),
        None => None,
    };
    let bond = relay.as_ref().zip(method.bond()).map(|(relay, (mode, detector))| relay.bond(mode, detector));
    let spec = DaemonSpec {
        binary,
        directory,
        preference: Preference::Thrifty,
        intercept_user: None,
        paths: network.paths().len(),
        bond,
    };
    let daemon = bond.is_some().then(|| Daemon::start(network.device(), &spec)).transpose()?;

    let mut ask = network.device().command(&program);
    ask.args(["traffic", "ask", &address.to_string(), "--seed", &run.to_string()])
        .args(["--patience", &ANSWER_PATIENCE.as_secs().to_string()])
        .args(mptcp.then_some("--mptcp"));
    if daemon.is_some() {
        ask.args(["--proxy", PROXY]);
    }
    let loss = Loss::bernoulli(f64::from(percent) / 100.0)?;
    let answers = answers(ask, &|| {
        network.path(WIFI).link().change_both_after(PAUSE / 2, Change::Loss(loss));
    })?;
    std::thread::sleep(CLOSING);
    Ok(measurement(method, run, &answers, &lte.take_packets(), {
        received(&network).into_iter().map(|(name, bytes)| (name.clone(), bytes - before[&name])).collect()
    }))
}

/// Runs the program that asks; `in_pause` is called whenever it begins to pause.
fn answers(mut ask: std::process::Command, in_pause: &dyn Fn()) -> Result<Answers> {
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

fn measurement(
    method: Method,
    run: u32,
    answers: &Answers,
    lte: &[PassedPacket],
    path_bytes: BTreeMap<String, u64>,
) -> Measurement {
    let largest = answers.delays_ms.iter().copied().max_by(f64::total_cmp).unwrap_or_default();
    let is_complete = answers.missing == 0;
    let largest = if is_complete { largest } else { largest.max(ANSWER_PATIENCE.as_secs_f64() * 1e3) };
    let packets: Vec<RadioPacket> = lte.iter().map(radio_packet).collect();
    let energy = RadioModel::LTE.energy(&packets);
    let mut more = BTreeMap::from([
        ("largest_answer_ms".to_owned(), largest),
        ("missing_answers".to_owned(), answers.missing.into()),
        ("lte_bytes".to_owned(), lte.iter().map(|packet| packet.bytes).sum::<u64>() as f64),
        ("lte_packets".to_owned(), lte.len() as f64),
        ("lte_energy_j".to_owned(), energy.total_mj() / 1e3),
        ("lte_promotions".to_owned(), energy.promotions.into()),
    ]);
    if let Some(median) = crate::stats::median(answers.delays_ms.iter().copied()) {
        more.insert("median_answer_ms".to_owned(), median);
    }
    let outcome = if is_complete { Outcome::Counted } else { Outcome::TimedOut };
    Measurement { method: method.to_string(), run, seconds: largest / 1e3, outcome, path_bytes, more }
}

fn radio_packet(packet: &PassedPacket) -> RadioPacket {
    let (bytes_up, bytes_down) = match packet.direction {
        Direction::Up => (packet.bytes, 0),
        Direction::Down => (0, packet.bytes),
    };
    RadioPacket { at: packet.at, bytes_up, bytes_down }
}
