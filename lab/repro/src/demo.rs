//! One download over two networks, live: the Wi-Fi is cut in the middle and comes back. Then the same
//! download by others, with the same cut.

mod bond;
mod live;
mod programs;

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::io::IsTerminal;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use comfy_table::presets::UTF8_BORDERS_ONLY;
use comfy_table::{CellAlignment, Table};
use multiway_api::{FlowStatus, Treatment};
use multiway_core::paths::PathKind;
use multiway_linksim::{Change, LinkSpec, Scenario, ServerSpec, mbit};
use multiway_netlab::NetworkOptions;

use crate::daemon::Daemon;
use crate::measure::{Bench, Target, curl_of_a_plain_user, received};
use crate::method::{Method, Preference};
use crate::objects::Objects;
use crate::output;
use crate::plan::{Cell, LTE, WIFI};
use crate::report::{CellReport, Measurement, Outcome};

/// What the demo does.
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Options {
    #[command(subcommand)]
    other: Option<Other>,
    /// Size of the file, in MB
    #[arg(long, default_value = "40", value_parser = clap::value_parser!(u64).range(1..=2000))]
    size: u64,
    /// Leave the Wi-Fi alone
    #[arg(long)]
    no_cut: bool,
    /// Show Multiway only, not what others make of it
    #[arg(long)]
    alone: bool,
}

/// Another demonstration.
#[derive(Debug, clap::Subcommand)]
enum Other {
    /// Keys typed into ssh, a web radio and an HTTPS download through a relay, while the Wi-Fi goes lossy,
    /// silent, away and back
    Bond(bond::Options),
}

/// When the Wi-Fi is cut, and when it is back; 40 MB take 9.5 s over both networks undisturbed.
const CUT_AFTER: Duration = Duration::from_secs(3);
const BACK_AFTER: Duration = Duration::from_secs(7);

/// Time between two pictures.
const REFRESH: Duration = Duration::from_millis(200);

/// Time between two lines where there is no terminal to draw on.
const LINE_INTERVAL: Duration = Duration::from_secs(1);

/// Rates are means over this time: bytes count when they are delivered in order, which is in bursts.
const RATE_MEMORY: Duration = Duration::from_secs(1);

/// Widest bar.
const BAR_CELLS: u64 = 20;

/// A transfer that is not done by then is given up.
const LIMIT: Duration = Duration::from_secs(120);

/// The others.
const OTHERS: [(Method, &str); 3] = [
    (Method::Curl, "curl over each network alone"),
    (Method::Aria2(8), "aria2 -x8 over both"),
    (Method::Mptcp, "curl over kernel MPTCP over both"),
];

/// Rows of the table, by the names that measurements have.
const ROWS: [(&str, &str); 5] = [
    ("curl wlan0", "curl, Wi-Fi alone"),
    ("curl wwan0", "curl, LTE alone"),
    ("aria2-x8", "aria2 -x8, both"),
    ("mptcp", "curl, kernel MPTCP, both"),
    ("multiway", "curl under Multiway, both"),
];

pub(crate) fn run(binary: &Path, options: &Options) -> Result<()> {
    if let Some(Other::Bond(options)) = &options.other {
        return bond::run(binary, options);
    }
    let bytes = options.size * 1_000_000;
    let scenario = Scenario::new("Wi-Fi and LTE")
        .path(WIFI, PathKind::Wifi, LinkSpec::symmetric(mbit(20), Duration::from_millis(30)))
        .path(LTE, PathKind::Cellular, LinkSpec::symmetric(mbit(15), Duration::from_millis(60)))
        .server(ServerSpec::new("origin").file("ready", 1));
    let wifi_events = if options.no_cut {
        Vec::new()
    } else {
        vec![(CUT_AFTER, Change::Carrier(false)), (BACK_AFTER, Change::Carrier(true))]
    };
    let cell = Cell { name: "demo".to_owned(), conditions: [].into(), scenario, bytes, wifi_events };
    output::line(
        "Two emulated networks in namespaces, a real nginx beyond them, `multiway up` before them:\n",
    )?;
    output::line(&cell.scenario.to_string())?;
    let objects = Objects::write([bytes])?;
    let bench = Bench { binary, objects: &objects, single_path_limit: LIMIT, limit: LIMIT };

    output::line(&format!("Unmodified curl downloads {} MB, intercepted, unaware:\n", options.size))?;
    let live = live(&bench, &cell)?;
    let gone = BACK_AFTER - CUT_AFTER;
    let cut = if options.no_cut || live.seconds < BACK_AFTER.as_secs_f64() {
        String::new()
    } else {
        format!(" The Wi-Fi was gone for {} s of it.", gone.as_secs())
    };
    output::line(&format!("\nDone in {:.1} s; SHA-256 is right.{cut}", live.seconds))?;
    let mut report = CellReport {
        name: cell.name.clone(),
        conditions: cell.conditions.clone(),
        bytes,
        measurements: vec![live],
    };
    if !options.alone {
        output::line(&format!(
            "\nThe same download{} by others:\n",
            if options.no_cut { "" } else { " with the same cut" }
        ))?;
        for (method, label) in OTHERS {
            output::line(&format!("  {label} ..."))?;
            report.measurements.extend(bench.measure(&cell, method, 1));
        }
        output::line(&format!("\n{}", table(&report)))?;
    }
    Ok(())
}

/// The intercepted download, with its progress on the terminal.
fn live(bench: &Bench<'_>, cell: &Cell) -> Result<Measurement> {
    let network = bench.network(cell, 1, &NetworkOptions::default())?;
    let target = Target { network: &network, bytes: cell.bytes, events: &cell.wifi_events };
    let daemon: Daemon = bench.daemon(&target, Preference::Fast, Some(crate::measure::PLAIN_USER))?;
    let before = received(&network);
    let mut curl = curl_of_a_plain_user(&target)?;
    curl.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut screen = Screen::new(cell.bytes);
    let mut events = cell.wifi_events.iter().peekable();
    target.start_events();
    let start = Instant::now();
    let mut curl = curl.spawn().context("cannot start setpriv and curl; are they installed?")?;
    let mut next_look = start;
    let seconds = loop {
        if curl.try_wait()?.is_some() {
            break start.elapsed().as_secs_f64();
        }
        if start.elapsed() > LIMIT {
            curl.kill()?;
            bail!("not done after {LIMIT:?}: {}", daemon.log());
        }
        if let Some((_, change)) = events.next_if(|(after, _)| start.elapsed() >= *after) {
            let what =
                if *change == Change::Carrier(false) { "The Wi-Fi is cut." } else { "The Wi-Fi is back." };
            screen.say(start.elapsed(), what)?;
        }
        if Instant::now() >= next_look {
            next_look += REFRESH;
            if let Some(flow) =
                daemon.status()?.flows.into_iter().find(|flow| flow.treatment == Treatment::Split)
            {
                screen.draw(start.elapsed(), &flow)?;
            }
        }
        // Short against what is measured, long against what looking costs.
        std::thread::sleep(Duration::from_millis(5));
    };
    screen.end()?;
    let output = curl.wait_with_output()?;
    if !output.status.success() {
        bail!("curl ended with {}: {}", output.status, String::from_utf8_lossy(&output.stderr).trim());
    }
    if !bench.objects.is_in(&target.output(), cell.bytes)? {
        bail!("WRONG BYTES were written");
    }
    for event in daemon.status()?.events {
        output::line(&format!("  event: {}", event.detail))?;
    }
    let path_bytes = received(&network)
        .into_iter()
        .map(|(interface, bytes)| (interface.clone(), bytes - before[&interface]));
    Ok(Measurement {
        method: "multiway".to_owned(),
        run: 1,
        seconds,
        outcome: Outcome::Verified,
        path_bytes: path_bytes.collect(),
        more: [].into(),
    })
}

/// Progress per path: drawn in place on a terminal, else a line now and then.
struct Screen {
    bytes: u64,
    in_place: bool,
    /// What the last second's pictures showed, oldest first.
    recent: VecDeque<(Duration, FlowStatus)>,
    last_line: Option<Duration>,
}

impl Screen {
    fn new(bytes: u64) -> Self {
        Self { bytes, in_place: std::io::stdout().is_terminal(), recent: VecDeque::new(), last_line: None }
    }

    fn draw(&mut self, at: Duration, flow: &FlowStatus) -> std::io::Result<()> {
        let line = self.line(at, flow);
        if self.in_place {
            output::raw(&format!("\r\x1b[K{line}"))?;
        } else if self.last_line.is_none_or(|last| at - last >= LINE_INTERVAL) {
            self.last_line = Some(at);
            output::line(&line)?;
        }
        self.recent.push_back((at, flow.clone()));
        while self.recent.front().is_some_and(|(then, _)| at - *then > RATE_MEMORY) {
            self.recent.pop_front();
        }
        Ok(())
    }

    fn line(&self, at: Duration, flow: &FlowStatus) -> String {
        let mut line = format!(
            "  {:5.1} s {:3}%",
            at.as_secs_f64(),
            (flow.bytes * 100).checked_div(self.bytes).unwrap_or(0)
        );
        for share in &flow.shares {
            let (then, before) = self.recent.front().map_or((Duration::ZERO, 0), |(then, flow)| {
                let of_path = flow.shares.iter().find(|one| one.interface == share.interface);
                (*then, of_path.map_or(0, |one| one.bytes))
            });
            let since = at - then;
            let rate = share.bytes.saturating_sub(before) as f64 * 8.0 / 1e6 / since.as_secs_f64().max(1e-3);
            let filled = usize::try_from((share.bytes * BAR_CELLS).checked_div(self.bytes).unwrap_or(0))
                .unwrap_or(usize::MAX)
                .min(BAR_CELLS as usize);
            let bar = "█".repeat(filled) + &"░".repeat(BAR_CELLS as usize - filled);
            write!(line, "   {} {bar} {rate:5.1} Mbit/s", share.interface).expect("strings take everything");
        }
        line
    }

    /// A line that stays.
    fn say(&mut self, at: Duration, what: &str) -> std::io::Result<()> {
        let clear = if self.in_place { "\r\x1b[K" } else { "" };
        output::line(&format!("{clear}  {:5.1} s {what}", at.as_secs_f64()))
    }

    fn end(&mut self) -> std::io::Result<()> {
        if self.in_place { output::line("") } else { Ok(()) }
    }
}

fn table(report: &CellReport) -> Table {
    let mut table = Table::new();
    table.load_style(UTF8_BORDERS_ONLY).set_header(["", "seconds", "over Wi-Fi", "over LTE", "file"]);
    table.column_iter_mut().skip(1).for_each(|column| column.set_cell_alignment(CellAlignment::Right));
    for (name, label) in ROWS {
        let Some(measurement) = report.measurements.iter().find(|one| one.method == name) else { continue };
        let share = |interface: &str| {
            report
                .share(name, interface)
                .map_or_else(|| "-".to_owned(), |share| format!("{:.0}%", share * 100.0))
        };
        let verdict = match &measurement.outcome {
            Outcome::Verified | Outcome::Counted => "right".to_owned(),
            Outcome::Computed { .. } | Outcome::TimedOut => "not done".to_owned(),
            Outcome::Failed { reason } => reason.lines().next().unwrap_or_default().to_owned(),
        };
        let seconds = report.time(name).map_or_else(|| "-".to_owned(), |time| time.to_string());
        table.add_row([label.to_owned(), seconds, share(WIFI), share(LTE), verdict]);
    }
    table
}
