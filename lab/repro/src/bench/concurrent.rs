//! A thousand downloads at the same time through one daemon.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use multiway_core::paths::PathKind;
use multiway_linksim::{LinkSpec, Scenario, ServerSpec, mbit};
use multiway_netlab::Network;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::Options;
use crate::daemon::{Daemon, DaemonSpec};
use crate::method::Preference;
use crate::objects::{Hasher, Objects, Sha};
use crate::plan::{LTE, WIFI};
use crate::report::{CellReport, Machine, Measurement, Outcome, Report};
use crate::stats::{fairness, quantile};

const FLOWS: usize = 1000;
const QUICK_FLOWS: usize = 200;

/// Each flow's object: large enough to be split.
const BYTES: u64 = 1_000_000;

const RUNS: u32 = 3;

/// Ways to fetch; through the daemon also with readers that stop after the first bytes.
const METHODS: [&str; 3] = ["direct", "proxy-fast", STOPPING];
const STOPPING: &str = "proxy-stopping";

/// For how long they stop: what all flows together may hold has come by then.
const STOP: Duration = Duration::from_secs(20);

/// All flows together must be done by then: 1000 MB at 300 Mbit/s take half a minute.
const LIMIT: Duration = Duration::from_secs(300);

/// Time between two looks at the daemon's memory.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(100);

/// How one flow went.
struct Flow {
    seconds: f64,
    longest_stall_ms: f64,
}

#[expect(clippy::print_stderr, reason = "progress goes beside the results")]
pub(super) fn run(binary: &Path, options: &Options) -> Result<Option<Report>> {
    let flows = if options.quick { QUICK_FLOWS } else { FLOWS };
    require_descriptors(flows)?;
    let machine = Machine::this(super::version(binary)?);
    let objects = Objects::write([BYTES])?;
    let mut measurements = Vec::new();
    for run in 1..=options.runs.unwrap_or(RUNS) {
        for method in METHODS {
            let measurement =
                measure(binary, &objects, method, flows, run).unwrap_or_else(|error| Measurement {
                    method: method.to_owned(),
                    run,
                    seconds: 0.0,
                    outcome: Outcome::Failed { reason: format!("{error:#}") },
                    path_bytes: BTreeMap::new(),
                    more: BTreeMap::new(),
                });
            eprintln!("{method}, run {run}: {:.1} s", measurement.seconds);
            measurements.push(measurement);
        }
    }
    let name = format!("{flows} flows of {} MB, 200+100 Mbit/s", BYTES / 1_000_000);
    let cell = CellReport { name, conditions: BTreeMap::new(), bytes: BYTES, measurements };
    Ok(Some(Report {
        bench: "concurrent".to_owned(),
        title: "Many downloads through one daemon".to_owned(),
        label: "kernel".to_owned(),
        machine,
        cells: vec![cell],
    }))
}

/// Each flow is a socket here, and a lab's threads have some.
fn require_descriptors(flows: usize) -> Result<()> {
    let limits = std::fs::read_to_string("/proc/self/limits").context("cannot read this process's limits")?;
    let soft = limits
        .lines()
        .find_map(|line| line.strip_prefix("Max open files"))
        .and_then(|rest| rest.split_whitespace().next()?.parse::<usize>().ok());
    let needed = flows + 200;
    match soft {
        Some(soft) if soft < needed => {
            bail!(
                "{flows} flows need {needed} open files and {soft} are allowed; run `ulimit -n {needed}` first"
            )
        }
        _ => Ok(()),
    }
}

fn measure(binary: &Path, objects: &Objects, method: &str, flows: usize, run: u32) -> Result<Measurement> {
    let scenario = Scenario::new("many flows")
        .seed(u64::from(run))
        .path(WIFI, PathKind::Wifi, LinkSpec::symmetric(mbit(200), Duration::from_millis(20)))
        .path(LTE, PathKind::Cellular, LinkSpec::symmetric(mbit(100), Duration::from_millis(40)))
        .server(ServerSpec::new("origin").file("ready", 1));
    let network = Network::build(&scenario)?;
    let server = network.server("origin");
    objects.serve(BYTES, &server.nginx().context("the server has a file")?.root())?;
    let by_proxy = method != "direct";
    let spec = DaemonSpec {
        binary,
        directory: network.lab().directory(),
        preference: Preference::Fast,
        intercept_user: None,
        paths: network.paths().len(),
        bond: None,
    };
    let mut daemon = by_proxy.then(|| Daemon::start(network.device(), &spec)).transpose()?;
    let connect_to = if by_proxy { Daemon::proxy() } else { (server.address(), 80).into() };
    let request = format!(
        "GET {} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n",
        if by_proxy { server.url("object.bin") } else { "/object.bin".to_owned() },
        server.address()
    );

    let stop = if method == STOPPING { STOP } else { Duration::ZERO };
    let idle_kib = daemon.as_mut().map(Daemon::resident_kib).transpose()?;
    let start = Instant::now();
    let done = AtomicBool::new(false);
    let (results, peak_kib) = std::thread::scope(|scope| {
        let watcher = daemon.as_mut().map(|daemon| {
            let done = &done;
            scope.spawn(move || {
                let mut peak = 0;
                while !done.load(Ordering::Relaxed) {
                    peak = peak.max(daemon.resident_kib().unwrap_or(0));
                    std::thread::sleep(SAMPLE_INTERVAL);
                }
                peak
            })
        });
        let results = network.device().run(|| all_flows(connect_to, &request, flows, stop));
        done.store(true, Ordering::Relaxed);
        let peak = watcher.map(|watcher| watcher.join().expect("the watcher does not panic"));
        (results, peak)
    });
    let seconds = start.elapsed().as_secs_f64();

    let mut done_flows = Vec::new();
    let mut failures = Vec::new();
    for result in results? {
        match result {
            Ok((flow, digest)) if digest == *objects.digest(BYTES) => done_flows.push(flow),
            Ok(_) => bail!("WRONG BYTES reached a reader"),
            Err(error) => failures.push(format!("{error:#}")),
        }
    }
    let times: Vec<f64> = done_flows.iter().map(|flow| flow.seconds).collect();
    let rates: Vec<f64> = times.iter().map(|seconds| 1.0 / seconds).collect();
    let stalls: Vec<f64> = done_flows.iter().map(|flow| flow.longest_stall_ms).collect();
    let mut more = BTreeMap::from([
        ("failed_flows".to_owned(), failures.len() as f64),
        ("throughput_mbit_per_s".to_owned(), (done_flows.len() as u64 * BYTES * 8) as f64 / seconds / 1e6),
    ]);
    let mut add = |name: &str, value: Option<f64>| {
        if let Some(value) = value {
            more.insert(name.to_owned(), value);
        }
    };
    add("fairness_of_rates", fairness(&rates));
    add("fastest_flow_s", quantile(&times, 0.0));
    add("median_flow_s", quantile(&times, 0.5));
    add("slowest_flow_s", quantile(&times, 1.0));
    add("median_longest_stall_ms", quantile(&stalls, 0.5));
    add("worst_stall_ms", quantile(&stalls, 1.0));
    if let (Some(idle), Some(peak)) = (idle_kib, peak_kib) {
        add("daemon_idle_mib", Some(idle as f64 / 1024.0));
        add("daemon_peak_mib", Some(peak as f64 / 1024.0));
        add("memory_per_flow_kib", Some(peak.saturating_sub(idle) as f64 / flows as f64));
    }
    add("daemon_cpu_s", daemon.as_mut().map(Daemon::cpu_seconds).transpose()?);
    let outcome = match failures.first() {
        None => Outcome::Verified,
        Some(first) => Outcome::Failed { reason: format!("{} flows failed, one: {first}", failures.len()) },
    };
    Ok(Measurement { method: method.to_owned(), run, seconds, outcome, path_bytes: BTreeMap::new(), more })
}

/// Starts all flows at once and waits for them; on the thread that calls, which is on the device.
fn all_flows(
    connect_to: SocketAddr,
    request: &str,
    flows: usize,
    stop: Duration,
) -> Result<Vec<Result<(Flow, Sha)>>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut tasks = Vec::new();
        for _ in 0..flows {
            let request = request.to_owned();
            let flow = async move { tokio::time::timeout(LIMIT, one_flow(connect_to, &request, stop)).await };
            tasks.push(tokio::spawn(flow));
        }
        let mut results = Vec::new();
        for task in tasks {
            let result = task.await.context("a reader's task ended early")?;
            results.push(result.unwrap_or_else(|_| Err(anyhow::anyhow!("not done after {LIMIT:?}"))));
        }
        Ok(results)
    })
}

async fn one_flow(connect_to: SocketAddr, request: &str, stop: Duration) -> Result<(Flow, Sha)> {
    let start = Instant::now();
    let mut stream = TcpStream::connect(connect_to).await.context("cannot connect")?;
    stream.write_all(request.as_bytes()).await?;
    let mut buffer = vec![0; 64 * 1024];
    let mut head = Vec::new();
    let mut hasher = Hasher::default();
    let mut bytes = 0;
    let mut last: Option<Instant> = None;
    let mut longest_stall = Duration::ZERO;
    while bytes < BYTES {
        let count = stream.read(&mut buffer).await?;
        let now = Instant::now();
        if let Some(last) = last {
            longest_stall = longest_stall.max(now - last);
        }
        last = Some(now);
        if count == 0 {
            bail!("closed after {bytes} bytes");
        }
        let mut piece = &buffer[..count];
        let owned;
        if bytes == 0 {
            head.extend_from_slice(piece);
            let Some(end) = head.windows(4).position(|four| four == b"\r\n\r\n") else { continue };
            if !head.starts_with(b"HTTP/1.1 200") {
                bail!(
                    "the answer is `{}`",
                    String::from_utf8_lossy(&head[..end]).lines().next().unwrap_or("")
                );
            }
            owned = head.split_off(end + 4);
            piece = &owned;
            tokio::time::sleep(stop).await;
        }
        bytes += piece.len() as u64;
        std::io::Write::write_all(&mut hasher, piece)?;
    }
    let flow =
        Flow { seconds: start.elapsed().as_secs_f64(), longest_stall_ms: longest_stall.as_secs_f64() * 1e3 };
    Ok((flow, hasher.finish()))
}
