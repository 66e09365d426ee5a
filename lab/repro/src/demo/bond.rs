//! Three programs at once over two networks: one asks and is answered, one plays a radio, one downloads.
//! The Wi-Fi goes lossy, silent, away and back meanwhile. By Multiway through its relay, then by others, with
//! the same script.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use comfy_table::presets::UTF8_BORDERS_ONLY;
use comfy_table::{CellAlignment, Table};
use multiway_core::paths::PathKind;
use multiway_linksim::{Change, LinkSpec, Loss, Scenario, ServerSpec, mbit};
use multiway_netlab::{Host, Network, Process};

use crate::daemon::{Daemon, DaemonSpec};
use crate::measure::{Bench, Target, make_backup, received};
use crate::method::{Detector, Method, Preference};
use crate::objects::Objects;
use crate::output;
use crate::plan::{Cell, LTE, WIFI};
use crate::reader::{Fetch, Seen};
use crate::relay::Relay;
use crate::traffic;
use crate::webradio::{self, Silence};

/// What the demonstration does.
#[derive(Debug, clap::Args)]
pub(super) struct Options {
    /// Size of the file, in MB
    #[arg(long, default_value = "40", value_parser = clap::value_parser!(u64).range(1..=2000))]
    size: u64,
}

/// How long the questions are asked and the radio is heard; what happens to the Wi-Fi is over by then.
const LENGTH: Duration = Duration::from_secs(25);

/// A download that is not done by then is given up.
const LIMIT: Duration = Duration::from_secs(40);

/// An answer that has not come after so long is given up.
const ANSWER_PATIENCE: Duration = Duration::from_secs(20);

/// Lost both ways while the Wi-Fi is lossy: what is left at the edge of its reach.
const LOSS: f64 = 0.1;

const ANSWERS_PORT: u16 = 7000;
const RADIO_PORT: u16 = 7001;

/// How long servers may take to listen on a busy machine.
const START_PATIENCE: Duration = Duration::from_secs(10);

/// Time between two lines.
const LINE_INTERVAL: Duration = Duration::from_secs(1);

/// Who is compared, and what the table calls them.
const ROWS: [(Method, &str); 5] = [
    (Method::Handover(Detector::Improved), "Multiway, handover"),
    (Method::Aggregate, "Multiway, aggregate"),
    (Method::Tcp, "plain TCP"),
    (Method::Mptcp, "kernel MPTCP, full mesh"),
    (Method::MptcpBackup, "kernel MPTCP, LTE as backup"),
];

/// What one way of using the networks gave.
struct Row {
    slowest: Option<Duration>,
    unanswered: u32,
    radio: Silence,
    radio_error: Option<String>,
    download: Result<Seen>,
    lte_bytes: u64,
}

pub(super) fn run(binary: &Path, options: &Options) -> Result<()> {
    let bytes = options.size * 1_000_000;
    let scenario = Scenario::new("Wi-Fi and LTE")
        .path(WIFI, PathKind::Wifi, LinkSpec::symmetric(mbit(20), Duration::from_millis(30)))
        .path(LTE, PathKind::Cellular, LinkSpec::symmetric(mbit(15), Duration::from_millis(60)))
        .server(ServerSpec::new("origin").file("ready", 1));
    let script = script()?;
    let wifi_events = script.iter().map(|(after, change, _)| (*after, change.clone())).collect();
    let cell = Cell { name: "bond".to_owned(), conditions: [].into(), scenario, bytes, wifi_events };
    output::line("Two emulated networks in namespaces; servers, and a relay beside them:\n")?;
    output::line(&cell.scenario.to_string())?;
    let objects = Objects::write([bytes])?;
    let bench = Bench { binary, objects: &objects, single_path_limit: LIMIT, limit: LIMIT };
    let mut table = Table::new();
    table.load_style(UTF8_BORDERS_ONLY).set_header([
        "",
        "slowest answer",
        "radio: longest silence",
        "in all",
        "download",
        "SHA-256",
        "over LTE",
    ]);
    table.column_iter_mut().skip(1).for_each(|column| column.set_cell_alignment(CellAlignment::Right));
    for (method, label) in ROWS {
        output::line(&format!("\n{label}: questions, a radio and {} MB at once:\n", options.size))?;
        match show(&bench, &cell, method, &script) {
            Ok(row) => table.add_row(row.cells(label, &bench, bytes)),
            Err(error) => {
                output::line(&format!("  {error:#}"))?;
                table.add_row([label, "-", "-", "-", "-", "failed", "-"])
            }
        };
    }
    Ok(output::line(&format!("\n{table}"))?)
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

/// Starts this program once more as a server.
fn serve(host: &Host, side: &str, address: SocketAddr, mptcp: bool) -> Result<Process> {
    let program = std::env::current_exe().context("this program cannot find itself")?;
    let mut serve = host.command(program);
    serve.args(["traffic", side, &address.to_string()]).args(mptcp.then_some("--mptcp"));
    let process = host.start(serve)?;
    host.wait_for_port(address, START_PATIENCE)?;
    Ok(process)
}

/// Runs the programs and the script, with a line now and then.
fn show(
    bench: &Bench<'_>,
    cell: &Cell,
    method: Method,
    script: &[(Duration, Change, String)],
) -> Result<Row> {
    let mptcp = method.is_mptcp();
    let network = bench.network(cell, 1, mptcp)?;
    if method.is_mptcp_backup() {
        make_backup(&network, LTE)?;
    }
    let server = network.server("origin");
    // What has a private address goes past the relay.
    let address = server.public_address();
    let answers_at = SocketAddr::from((address, ANSWERS_PORT));
    let radio_at = SocketAddr::from((address, RADIO_PORT));
    let _answers = serve(server.host(), "serve", answers_at, mptcp)?;
    let _radio = serve(server.host(), "radio", radio_at, mptcp)?;
    let directory = network.lab().directory();
    let relay = match method.bond() {
        Some(_) => Some(Relay::start(server.host(), bench.binary, directory, address.into())?),
        None => None,
    };
    let bond = relay.as_ref().zip(method.bond()).map(|(relay, (mode, detector))| relay.bond(mode, detector));
    let spec = DaemonSpec {
        binary: bench.binary,
        directory,
        preference: if method == Method::Aggregate { Preference::Fast } else { Preference::Thrifty },
        intercept_user: None,
        paths: network.paths().len(),
        bond,
    };
    let daemon = bond.is_some().then(|| Daemon::start(network.device(), &spec)).transpose()?;
    let proxy = daemon.is_some().then(Daemon::proxy);

    let target = Target { network: &network, bytes: cell.bytes, events: &cell.wifi_events };
    let fetch = Fetch {
        connect_to: proxy.unwrap_or((address, 80).into()),
        tunnel_to: proxy.map(|_| (address, 80).into()),
        mptcp,
        ..target.fetch()
    };
    let device = network.device();
    let questions = device.run(|| traffic::connect(answers_at, mptcp, proxy))?;
    let station = device.run(|| traffic::connect(radio_at, mptcp, proxy))?;
    let live = Live::default();
    let before = received(&network);
    target.start_events();
    std::thread::scope(|scope| {
        let asking = scope.spawn(|| traffic::ask_for(&questions, LENGTH, ANSWER_PATIENCE, &live.delays));
        let listening = scope.spawn(|| webradio::listen(&station, LENGTH, &live.silence));
        let download = scope.spawn(|| device.run(|| fetch.read_counting(LIMIT, &live.arrived)));
        let is_over = || asking.is_finished() && listening.is_finished() && download.is_finished();
        live.watch(&network, cell.bytes, script, &is_over)?;
        let unanswered = asking.join().expect("it does not panic")?;
        let radio_error = listening.join().expect("it does not panic").err();
        Ok(Row {
            slowest: live.delays.lock().expect("nothing panicked").iter().max().copied(),
            unanswered,
            radio: *live.silence.lock().expect("nothing panicked"),
            radio_error: radio_error.map(|error| error.to_string()),
            download: download.join().expect("it does not panic"),
            lte_bytes: received(&network)[LTE] - before[LTE],
        })
    })
}

/// What the programs have seen so far.
#[derive(Default)]
struct Live {
    delays: Mutex<Vec<Duration>>,
    silence: Mutex<Silence>,
    arrived: AtomicU64,
}

impl Live {
    fn watch(
        &self,
        network: &Network,
        bytes: u64,
        script: &[(Duration, Change, String)],
        is_over: &dyn Fn() -> bool,
    ) -> Result<()> {
        let start = Instant::now();
        let mut events = script.iter().peekable();
        let mut next_line = start + LINE_INTERVAL;
        let mut last = (start, received(network), 0, Duration::ZERO);
        while !is_over() {
            if let Some((after, _, what)) = events.next_if(|(after, ..)| start.elapsed() >= *after) {
                output::line(&format!("  {:5.1} s {what}", after.as_secs_f64()))?;
            }
            if Instant::now() >= next_line {
                next_line += LINE_INTERVAL;
                last = self.line(network, bytes, start, last)?;
            }
            // Short against what is shown, long against what looking costs.
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    /// Shows what happened since the last line.
    fn line(
        &self,
        network: &Network,
        bytes: u64,
        start: Instant,
        (then, before, answered, silent): (Instant, BTreeMap<String, u64>, usize, Duration),
    ) -> Result<(Instant, BTreeMap<String, u64>, usize, Duration)> {
        let (now, after) = (Instant::now(), received(network));
        let rates: String = after
            .iter()
            .map(|(interface, bytes)| {
                let rate = (bytes - before[interface]) as f64 * 8.0 / 1e6 / (now - then).as_secs_f64();
                format!("   {interface} {rate:5.1} Mbit/s")
            })
            .collect();
        let delays = self.delays.lock().expect("nothing panics while it holds this");
        let (count, slowest) = (delays.len(), delays[answered..].iter().max().copied());
        drop(delays);
        let silence = self.silence.lock().expect("nothing panics while it holds this").total;
        let answers =
            slowest.map_or_else(|| "no answer".to_owned(), |delay| format!("{} ms", delay.as_millis()));
        let radio = if silence > silent { "silent" } else { "plays" };
        let percent = (self.arrived.load(Ordering::Relaxed) * 100).checked_div(bytes).unwrap_or(0);
        output::line(&format!(
            "  {:5.1} s{rates}   answer {answers:>9}   radio {radio:6}   file {percent:3}%",
            (now - start).as_secs_f64()
        ))?;
        Ok((now, after, count, silence))
    }
}

impl Row {
    fn cells(&self, label: &str, bench: &Bench<'_>, bytes: u64) -> [String; 7] {
        let seconds = |time: Duration| format!("{:.2} s", time.as_secs_f64());
        let slowest = match (self.slowest, self.unanswered) {
            (_, 1..) | (None, _) => format!("{} never came", self.unanswered),
            (Some(slowest), 0) => seconds(slowest),
        };
        let [longest, total] = match &self.radio_error {
            Some(error) => [error.clone(), "-".to_owned()],
            None => [self.radio.longest, self.radio.total].map(seconds),
        };
        let (download, hash) = match &self.download {
            Ok(seen) if seen.bytes < bytes => {
                let percent = (seen.bytes * 100).checked_div(bytes).unwrap_or(0);
                (format!("{percent}% after {} s", LIMIT.as_secs()), "-")
            }
            Ok(seen) if seen.digest == *bench.objects.digest(bytes) => (seconds(seen.total), "right"),
            Ok(seen) => (seconds(seen.total), "WRONG"),
            Err(error) => (format!("{error:#}"), "-"),
        };
        let lte = format!("{:.1} MB", self.lte_bytes as f64 / 1e6);
        [label.to_owned(), slowest, longest, total, download, hash.to_owned(), lte]
    }
}
