//! Three programs at once over two networks: somebody types into ssh, one plays a radio, one downloads by
//! HTTPS. The Wi-Fi goes lossy, silent, away and back meanwhile. By Multiway through its relay, then by others,
//! with the same script.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use comfy_table::presets::UTF8_BORDERS_ONLY;
use comfy_table::{CellAlignment, Table};
use multiway_core::paths::PathKind;
use multiway_linksim::{Change, LinkSpec, Loss, Scenario, ServerSpec, mbit};
use multiway_netlab::{Host, Network, NetworkOptions, Process, Sshd, self_signed};
use serde::Serialize;

use super::live::{Live, Running};
use super::programs::{self, Terminal};
use crate::daemon::{Daemon, DaemonSpec};
use crate::measure::{
    Bench, PLAIN_USER, PLAIN_USER_ID, Target, make_backup, of_a_plain_user, output_of_a_plain_user, received,
};
use crate::method::{Detector, Method, Preference};
use crate::objects::Objects;
use crate::output;
use crate::plan::{Cell, LTE, WIFI};
use crate::relay::Relay;
use crate::traffic;
use crate::webradio;

/// What the demonstration does.
#[derive(Debug, clap::Args)]
pub(super) struct Options {
    /// Size of the file, in MB
    #[arg(long, default_value = "40", value_parser = clap::value_parser!(u64).range(1..=2000))]
    size: u64,
    /// Only this row: multiway, multiway-aggregate, tcp, mptcp or mptcp-backup; may be given several times
    #[arg(long = "method", value_name = "METHOD")]
    methods: Vec<Method>,
    /// Also write the table to this file, as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// How long keys are typed and the radio is heard; what happens to the Wi-Fi is over by then.
const LENGTH: Duration = Duration::from_secs(25);

/// A download that is not done by then is given up.
const LIMIT: Duration = Duration::from_secs(40);

/// The last keys are awaited for so long: until a download would be given up.
const ECHO_PATIENCE: Duration = Duration::from_secs(15);

/// Lost both ways while the Wi-Fi is lossy: what is left at the edge of its reach.
const LOSS: f64 = 0.1;

/// The server's name in its certificate.
const SERVER_NAME: &str = "files.example";

const HTTPS_PORT: u16 = 443;
const SSH_PORT: u16 = 2222;
const RADIO_PORT: u16 = 7001;

/// How long servers may take to listen on a busy machine.
const START_PATIENCE: Duration = Duration::from_secs(10);

/// Who is compared, and what the table calls them.
const ROWS: [(Method, &str); 5] = [
    (Method::Handover(Detector::Improved), "Multiway, handover"),
    (Method::Aggregate, "Multiway, aggregate"),
    (Method::Tcp, "plain TCP"),
    (Method::Mptcp, "kernel MPTCP, full mesh"),
    (Method::MptcpBackup, "kernel MPTCP, LTE as backup"),
];

/// What one way of using the networks gave.
#[derive(Serialize)]
struct Row {
    method: String,
    #[serde(skip)]
    label: &'static str,
    /// What kept the programs from being run, or ended them.
    problems: Vec<String>,
    /// None when the programs were not run.
    seen: Option<Seen>,
}

/// What the programs saw.
#[derive(Serialize)]
struct Seen {
    keys: u32,
    /// Of these, how many were not echoed.
    missing_echoes: u32,
    slowest_echo_s: Option<f64>,
    radio_longest_silence_s: f64,
    radio_all_silence_s: f64,
    radio_broke: bool,
    /// None when it failed or was given up.
    download_s: Option<f64>,
    download_failed: bool,
    downloaded_bytes: u64,
    /// None for a download that did not end.
    sha256_is_right: Option<bool>,
    lte_bytes: u64,
}

pub(super) fn run(binary: &Path, options: &Options) -> Result<()> {
    programs::require()?;
    let is_row = |method: &Method| ROWS.iter().any(|(row, _)| row == method);
    if let Some(method) = options.methods.iter().find(|method| !is_row(method)) {
        bail!("the demonstration has no row for {method}");
    }
    let bytes = options.size * 1_000_000;
    let scenario = Scenario::new("Wi-Fi and LTE")
        .path(WIFI, PathKind::Wifi, LinkSpec::symmetric(mbit(20), Duration::from_millis(30)))
        .path(LTE, PathKind::Cellular, LinkSpec::symmetric(mbit(15), Duration::from_millis(60)))
        .server(ServerSpec::new("origin").file("ready", 1));
    let script = script()?;
    let wifi_events = script.iter().map(|(after, change, _)| (*after, change.clone())).collect();
    let cell = Cell { name: "bond".to_owned(), conditions: [].into(), scenario, bytes, wifi_events };
    output::line("Two emulated networks in namespaces; sshd, nginx, a radio and a relay beyond them:\n")?;
    output::line(&cell.scenario.to_string())?;
    let objects = Objects::write([bytes])?;
    let stage = Stage {
        bench: Bench { binary, objects: &objects, single_path_limit: LIMIT, limit: LIMIT },
        cell: &cell,
        script: &script,
    };
    let mut rows = Vec::new();
    for (method, label) in ROWS {
        if !options.methods.is_empty() && !options.methods.contains(&method) {
            continue;
        }
        output::line(&format!("\n{label}: ssh, a radio and {} MB by HTTPS at once:\n", options.size))?;
        let row = stage.show(method, label);
        for problem in &row.problems {
            output::line(&format!("  {problem}"))?;
        }
        rows.push(row);
    }
    if let Some(file) = &options.json {
        std::fs::write(file, serde_json::to_string_pretty(&rows)?)
            .with_context(|| format!("cannot write {}", file.display()))?;
    }
    Ok(output::line(&format!("\n{}", table(&rows, bytes)))?)
}

/// What happens to the Wi-Fi, and when.
fn script() -> Result<Vec<(Duration, Change, String)>> {
    let at = Duration::from_secs;
    let loss = Change::Loss(Loss::bernoulli(LOSS)?);
    Ok(vec![
        (at(3), loss, format!("The Wi-Fi loses {:.0}% of all packets.", LOSS * 100.0)),
        (at(7), Change::Loss(Loss::None), "The Wi-Fi loses nothing.".to_owned()),
        (at(9), Change::Blackhole(true), "The Wi-Fi is silent.".to_owned()),
        (at(13), Change::Blackhole(false), "The Wi-Fi speaks again.".to_owned()),
        (at(15), Change::Carrier(false), "The Wi-Fi is away.".to_owned()),
        (at(20), Change::Carrier(true), "The Wi-Fi is back.".to_owned()),
    ])
}

/// Starts this program once more as the radio's station.
fn start_radio(host: &Host, address: SocketAddr, mptcp: bool) -> Result<Process> {
    let program = std::env::current_exe().context("this program cannot find itself")?;
    let mut radio = host.command(program);
    radio.args(["traffic", "radio", &address.to_string()]).args(mptcp.then_some("--mptcp"));
    let process = host.start(radio)?;
    host.wait_for_port(address, START_PATIENCE)?;
    Ok(process)
}

/// What all rows share.
struct Stage<'a> {
    bench: Bench<'a>,
    cell: &'a Cell,
    script: &'a [(Duration, Change, String)],
}

impl Stage<'_> {
    /// Runs the programs and the script, with a line now and then.
    fn show(&self, method: Method, label: &'static str) -> Row {
        let mut row = Row { method: method.to_string(), label, problems: Vec::new(), seen: None };
        match self.run(method, &mut row.problems) {
            Ok(seen) => row.seen = Some(seen),
            Err(error) => row.problems.push(format!("{error:#}")),
        }
        row
    }

    fn run(&self, method: Method, problems: &mut Vec<String>) -> Result<Seen> {
        let mptcp = method.is_mptcp();
        if mptcp {
            programs::require_mptcp()?;
        }
        let tls = self_signed(self.bench.objects.directory(), &[SERVER_NAME])?;
        let authority = tls.0.clone();
        let options = NetworkOptions { mptcp, tls: Some(tls), ..NetworkOptions::default() };
        let network = self.bench.network(self.cell, 1, &options)?;
        if method.is_mptcp_backup() {
            make_backup(&network, LTE)?;
        }
        let (device, server) = (network.device(), network.server("origin"));
        // What has a private address goes past the relay.
        let address = server.public_address();
        let (ssh_at, radio_at) = ((address, SSH_PORT).into(), (address, RADIO_PORT).into());
        let sshd = Sshd::start(network.lab(), server.host(), ssh_at, PLAIN_USER_ID, mptcp)?;
        let _radio = start_radio(server.host(), radio_at, mptcp)?;
        let directory = network.lab().directory();
        let relay = match method.bond() {
            Some(_) => Some(Relay::start(server.host(), self.bench.binary, directory, address.into())?),
            None => None,
        };
        let bond =
            relay.as_ref().zip(method.bond()).map(|(relay, (mode, detector))| relay.bond(mode, detector));
        let spec = DaemonSpec {
            binary: self.bench.binary,
            directory,
            preference: if method == Method::Aggregate { Preference::Fast } else { Preference::Thrifty },
            intercept_user: Some(PLAIN_USER),
            paths: network.paths().len(),
            bond,
        };
        let daemon = bond.is_some().then(|| Daemon::start(device, &spec)).transpose()?;

        let target = Target { network: &network, bytes: self.cell.bytes, events: &self.cell.wifi_events };
        let file = output_of_a_plain_user(&target)?;
        let program = |name: &str| {
            let mut program = of_a_plain_user(&target);
            program.args(mptcp.then_some(["mptcpize", "run"]).into_iter().flatten()).arg(name);
            program
        };
        let mut ssh = program("ssh");
        ssh.args(sshd.options()).arg(format!("root@{address}"));
        let certificate = directory.join("certificate.pem");
        std::fs::copy(authority, &certificate).context("cannot copy the certificate")?;
        let mut curl = program("curl");
        curl.args(["-q", "-sS", "-f", "--cacert"]).arg(&certificate);
        curl.args(["--resolve", &format!("{SERVER_NAME}:{HTTPS_PORT}:{address}"), "-o"]).arg(&file);
        curl.arg(format!("https://{SERVER_NAME}/object.bin"));

        let terminal = Terminal::open(device, ssh, directory).with_context(|| sshd.log())?;
        let station = device.run_as(PLAIN_USER_ID, || traffic::connect(radio_at, mptcp, None))?;
        let live = Live::default();
        let before = received(&network);
        target.start_events();
        std::thread::scope(|scope| {
            let typing = scope.spawn(|| terminal.type_for(LENGTH, ECHO_PATIENCE, &live.echoes));
            let listening = scope.spawn(|| webradio::listen(&station, LENGTH, &live.silence));
            let download = scope.spawn(|| programs::download(device, curl, &file, LIMIT, &live.arrived));
            let running = || Running {
                typing: !typing.is_finished(),
                listening: !listening.is_finished(),
                downloading: !download.is_finished(),
            };
            live.watch(&network, self.cell.bytes, self.script, &running)?;
            let typed = typing.join().expect("it does not panic");
            let radio = listening.join().expect("it does not panic");
            let downloaded = download.join().expect("it does not panic")?;
            let silence = *live.silence.lock().expect("nothing panicked while it held this");
            let slowest =
                live.echoes.lock().expect("nothing panicked while it held this").iter().max().copied();
            let is_right =
                downloaded.took.map(|_| self.bench.objects.is_in(&file, self.cell.bytes)).transpose()?;
            let radio_broke = radio.is_err();
            problems.extend(typed.problem);
            problems.extend(radio.err().map(|error| format!("the radio's connection broke: {error}")));
            let download_failed = downloaded.problem.is_some();
            problems.extend(downloaded.problem);
            if let Some(daemon) = &daemon {
                for event in daemon.status()?.events {
                    output::line(&format!("  event: {}", event.detail))?;
                }
                problems.extend(past_the_relay(&network, &sshd)?);
            }
            Ok(Seen {
                keys: typed.keys,
                missing_echoes: typed.missing,
                slowest_echo_s: slowest.map(|delay| delay.as_secs_f64()),
                radio_longest_silence_s: silence.longest.as_secs_f64(),
                radio_all_silence_s: silence.total.as_secs_f64(),
                radio_broke,
                download_s: downloaded.took.map(|took| took.as_secs_f64()),
                download_failed,
                downloaded_bytes: downloaded.bytes,
                sha256_is_right: is_right,
                lte_bytes: received(&network)[LTE] - before[LTE],
            })
        })
    }
}
/// Says so where the download or ssh came to the server from the device itself.
fn past_the_relay(network: &Network, sshd: &Sshd) -> Result<Vec<String>> {
    let server = network.server("origin");
    let relay = IpAddr::from(server.public_address());
    let nginx = server.nginx().context("the server has a file")?;
    let mut past = Vec::new();
    if nginx.requests()?.iter().any(|request| request.client != relay) {
        past.push("the download came past the relay".to_owned());
    }
    if !sshd.log().contains(&format!(" from {relay} ")) {
        past.push(format!("ssh came past the relay: {}", sshd.log()));
    }
    Ok(past)
}

fn table(rows: &[Row], bytes: u64) -> Table {
    let mut table = Table::new();
    table.load_style(UTF8_BORDERS_ONLY).set_header([
        "",
        "slowest echo",
        "radio: longest silence",
        "in all",
        "download",
        "SHA-256",
        "over LTE",
    ]);
    table.column_iter_mut().skip(1).for_each(|column| column.set_cell_alignment(CellAlignment::Right));
    for row in rows {
        let cells = row
            .seen
            .as_ref()
            .map_or_else(|| ["failed", "-", "-", "-", "-", "-"].map(str::to_owned), |seen| seen.cells(bytes));
        table.add_row([row.label.to_owned()].into_iter().chain(cells));
    }
    table
}

impl Seen {
    fn cells(&self, bytes: u64) -> [String; 6] {
        let seconds = |time: f64| format!("{time:.2} s");
        let slowest = match (self.slowest_echo_s, self.missing_echoes) {
            (Some(slowest), 0) => seconds(slowest),
            (_, missing) => format!("{missing} of {} never came", self.keys),
        };
        let [longest, all] = if self.radio_broke {
            ["broke", "-"].map(str::to_owned)
        } else {
            [self.radio_longest_silence_s, self.radio_all_silence_s].map(seconds)
        };
        let percent = (self.downloaded_bytes * 100).checked_div(bytes).unwrap_or(0);
        let download = match self.download_s {
            Some(took) => seconds(took),
            None if self.download_failed => format!("failed at {percent}%"),
            None => format!("{percent}% after {} s", LIMIT.as_secs()),
        };
        let hash = match self.sha256_is_right {
            Some(true) => "right",
            Some(false) => "WRONG",
            None => "-",
        };
        [slowest, longest, all, download, hash.to_owned(), format!("{:.1} MB", self.lte_bytes as f64 / 1e6)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen() -> Seen {
        Seen {
            keys: 125,
            missing_echoes: 0,
            slowest_echo_s: Some(0.419),
            radio_longest_silence_s: 0.0,
            radio_all_silence_s: 0.5,
            radio_broke: false,
            download_s: Some(12.345),
            download_failed: false,
            downloaded_bytes: 1000,
            sha256_is_right: Some(true),
            lte_bytes: 1_250_000,
        }
    }

    #[test]
    fn what_went_well_is_told_in_seconds() {
        assert_eq!(seen().cells(1000), ["0.42 s", "0.00 s", "0.50 s", "12.35 s", "right", "1.2 MB"]);
    }

    #[test]
    fn what_did_not_end_is_told_for_each_program() {
        let seen = Seen {
            missing_echoes: 7,
            radio_broke: true,
            download_s: None,
            downloaded_bytes: 730,
            sha256_is_right: None,
            ..seen()
        };
        let cells = seen.cells(1000);
        assert_eq!(cells, ["7 of 125 never came", "broke", "-", "73% after 40 s", "-", "1.2 MB"]);
        let seen = Seen { download_failed: true, ..seen };
        assert_eq!(seen.cells(1000)[3], "failed at 73%");
        assert_eq!(Seen { sha256_is_right: Some(false), ..seen }.cells(1000)[4], "WRONG");
    }
}
