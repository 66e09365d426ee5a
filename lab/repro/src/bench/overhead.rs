//! What the proxy costs where it cannot help: one path without any limit.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use multiway_netlab::{Host, Lab, NginxSpec};

use super::Options;
use crate::daemon::{Daemon, DaemonSpec, PROXY};
use crate::measure::{AS_PLAIN_USER, DIE_WITH_PARENT, PLAIN_USER};
use crate::method::Preference;
use crate::objects::Objects;
use crate::reader::Fetch;
use crate::report::{CellReport, Machine, Measurement, Outcome, Report};
use crate::stats::median;

/// Size of the object whose throughput is measured, and in a quick run.
const BYTES: u64 = 2_000_000_000;
const QUICK_BYTES: u64 = 300_000_000;

/// Size of the object whose first byte is awaited, and how often.
const SMALL_BYTES: u64 = 1000;
const FIRST_BYTES: usize = 50;

const RUNS: u32 = 5;

const SERVER: Ipv4Addr = Ipv4Addr::new(10, 99, 0, 1);

/// A small object must not take longer.
const PATIENCE: Duration = Duration::from_secs(10);

/// Ways to fetch: by curl, alone and through the daemon, and by `multiway get`; what they fetch is thrown
/// away, or else kept in a file, which costs more than to fetch it.
const METHODS: [&str; 7] = ["direct", "proxy", "transparent", "tunnel", "get", "direct-file", "get-file"];

/// One path: a veth pair between device and server.
struct Wire {
    lab: Lab,
    device: Host,
    _nginx: multiway_netlab::Nginx,
}

#[expect(clippy::print_stderr, reason = "progress goes beside the results")]
pub(super) fn run(binary: &Path, options: &Options) -> Result<Option<Report>> {
    let bytes = if options.quick { QUICK_BYTES } else { BYTES };
    let runs = options.runs.unwrap_or(RUNS);
    let machine = Machine::this(super::version(binary)?);
    let objects = Objects::write([bytes, SMALL_BYTES])?;
    let wire = Wire::lay(&objects, bytes)?;
    let mut measurements = Vec::new();
    // In turns, so that what else the machine does meets all of them.
    for run in 1..=runs {
        for method in METHODS {
            let measurement =
                measure(&wire, binary, method, run, bytes).unwrap_or_else(|error| Measurement {
                    method: method.to_owned(),
                    run,
                    seconds: 0.0,
                    outcome: Outcome::Failed { reason: format!("{error:#}") },
                    path_bytes: BTreeMap::new(),
                    more: BTreeMap::new(),
                });
            eprintln!("{method}, run {run}: {:.2} s", measurement.seconds);
            measurements.push(measurement);
        }
    }
    let name = format!("one veth path, {} MB", bytes / 1_000_000);
    let cell = CellReport { name, conditions: BTreeMap::new(), bytes, measurements };
    Ok(Some(Report {
        bench: "overhead".to_owned(),
        title: "What the proxy costs on one path without limits".to_owned(),
        label: "kernel".to_owned(),
        machine,
        cells: vec![cell],
    }))
}

impl Wire {
    fn lay(objects: &Objects, bytes: u64) -> Result<Self> {
        let lab = Lab::new()?;
        let (device, server) = (lab.host("device")?, lab.host("server")?);
        lab.cable(&device, "eth0", &server, "eth0")?;
        device.ip_batch("addr add 10.1.0.2/24 dev eth0\nroute add default via 10.1.0.1 dev eth0\n")?;
        server.ip_batch(&format!("addr add 10.1.0.1/24 dev eth0\naddr add {SERVER}/32 dev lo\n"))?;
        let address = SocketAddr::from((SERVER, 80));
        let nginx = NginxSpec::new().listen(address).file("small.bin", SMALL_BYTES).start(&lab, &server)?;
        objects.serve(bytes, &nginx.root())?;
        device.wait_for_port(address, PATIENCE)?;
        Ok(Self { lab, device, _nginx: nginx })
    }

    fn url(name: &str) -> String {
        format!("http://{SERVER}/{name}")
    }
}

fn measure(wire: &Wire, binary: &Path, method: &str, run: u32, bytes: u64) -> Result<Measurement> {
    let intercept_user = (method == "transparent").then_some(PLAIN_USER);
    let spec = DaemonSpec {
        binary,
        directory: wire.lab.directory(),
        preference: Preference::Fast,
        intercept_user,
        paths: 1,
        bond: None,
    };
    let mut daemon = match method {
        "proxy" | "transparent" | "tunnel" => Some(Daemon::start(&wire.device, &spec)?),
        _ => None,
    };
    let url = Wire::url("object.bin");
    let output = wire.lab.directory().join("output.bin");
    let output =
        if method.ends_with("-file") { output.display().to_string() } else { "/dev/null".to_owned() };
    let binary = binary.display().to_string();
    let mut words: Vec<&str> = match method {
        "get" | "get-file" => vec![&binary, "get", "--quiet"],
        "proxy" => vec!["curl", "-s", "-f", "-x", PROXY],
        "tunnel" => vec!["curl", "-s", "-f", "-x", PROXY, "--proxytunnel"],
        "transparent" => [&AS_PLAIN_USER[..], &["curl", "-s", "-f"]].concat(),
        _ => vec!["curl", "-s", "-f"],
    };
    words.extend(["-o", &output, &url]);
    // Freeing what the run before left is not this one's work.
    if method.ends_with("-file") && Path::new(&output).exists() {
        std::fs::remove_file(&output).with_context(|| format!("cannot remove {output}"))?;
    }
    let before = daemon.as_mut().map_or(Ok(0.0), Daemon::cpu_seconds)?;
    let (seconds, client_cpu) = timed(wire, &words)?;
    let after = daemon.as_mut().map_or(Ok(0.0), Daemon::cpu_seconds)?;
    let gigabytes = bytes as f64 / 1e9;
    let mut more = BTreeMap::from([
        ("throughput_mbit_per_s".to_owned(), bytes as f64 * 8.0 / seconds / 1e6),
        ("client_cpu_s_per_gb".to_owned(), client_cpu / gigabytes),
    ]);
    if daemon.is_some() {
        more.insert("daemon_cpu_s_per_gb".to_owned(), (after - before) / gigabytes);
    }
    // The reader is root's, so interception does not see it; direct and proxy are what it can compare.
    if method == "direct" || method == "proxy" {
        more.insert("first_byte_ms".to_owned(), first_byte_ms(wire, method == "proxy")?);
    }
    Ok(Measurement {
        method: method.to_owned(),
        run,
        seconds,
        outcome: Outcome::Counted,
        path_bytes: BTreeMap::new(),
        more,
    })
}

/// Runs a program and gives its time and the CPU time it used.
fn timed(wire: &Wire, words: &[&str]) -> Result<(f64, f64)> {
    let mut shell: Command = wire.device.command("sh");
    // `times` writes the shell's own times in its first line and its children's in the second.
    shell.args(["-c", "\"$@\" || exit; times", "sh"]).args(DIE_WITH_PARENT).args(words);
    shell.env("XDG_STATE_HOME", wire.lab.directory());
    let start = Instant::now();
    let output = shell.output().context("cannot start sh")?;
    let seconds = start.elapsed().as_secs_f64();
    if !output.status.success() {
        bail!("{words:?} ended with {}: {}", output.status, String::from_utf8_lossy(&output.stderr).trim());
    }
    let text = String::from_utf8_lossy(&output.stdout);
    let children = text.lines().next_back().context("`times` prints two lines")?;
    let cpu: Option<f64> = children.split_whitespace().map(minutes_and_seconds).sum();
    Ok((seconds, cpu.with_context(|| format!("`times` printed `{children}`"))?))
}

/// Reads `1m2.50s`.
fn minutes_and_seconds(text: &str) -> Option<f64> {
    let (minutes, seconds) = text.strip_suffix('s')?.split_once('m')?;
    Some(minutes.parse::<f64>().ok()? * 60.0 + seconds.parse::<f64>().ok()?)
}

fn first_byte_ms(wire: &Wire, by_proxy: bool) -> Result<f64> {
    let server = SocketAddr::from((SERVER, 80));
    let fetch = Fetch {
        connect_to: if by_proxy { Daemon::proxy() } else { server },
        target: if by_proxy { Wire::url("small.bin") } else { "/small.bin".to_owned() },
        host: SERVER.to_string(),
        interface: None,
        mptcp: false,
        tunnel_to: None,
    };
    wire.device.run(|| {
        let times: Vec<f64> = (0..FIRST_BYTES)
            .map(|_| Ok(fetch.read(PATIENCE)?.first_byte.as_secs_f64() * 1e3))
            .collect::<Result<_>>()?;
        median(times).context("there are some")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_as_the_shell_writes_them() {
        assert_eq!(minutes_and_seconds("1m2.50s"), Some(62.5));
        assert_eq!(minutes_and_seconds("0m0.000000s"), Some(0.0));
        assert_eq!(minutes_and_seconds("2.5"), None);
    }
}
