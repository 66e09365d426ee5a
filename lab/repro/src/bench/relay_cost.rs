//! What a relay costs where nothing limits it: through a device's daemon and a relay, beside a pair of
//! HAProxy instances that speak TLS 1.3 to each other.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use multiway_core::paths::PathKind;
use multiway_core::units::Rate;
use multiway_linksim::{LinkSpec, Scenario, ServerSpec, mbit};
use multiway_netlab::{Host, Lab, Network, NginxSpec, Process};

use super::Options;
use crate::daemon::{self, Daemon, DaemonSpec, PROXY, RAISE_LIMIT};
use crate::method::{BondMode, Detector, Preference};
use crate::objects::Objects;
use crate::plan::WIFI;
use crate::relay::{self, Relay};
use crate::report::{CellReport, Machine, Measurement, Outcome, Report};
use crate::sessions;

/// Size of the object whose throughput is measured, and in a quick run.
const BYTES: u64 = 2_000_000_000;
const QUICK_BYTES: u64 = 300_000_000;

const RUNS: u32 = 5;

/// A public address, since what has a private one goes past a relay.
const SERVER: Ipv4Addr = Ipv4Addr::new(93, 184, 216, 1);

/// Where the near HAProxy listens on the device, and the far one beside the server.
const NEAR: &str = "127.0.0.1:7080";
const FAR_PORT: u16 = 4444;

const PATIENCE: Duration = Duration::from_secs(10);

/// The path over which the first byte of a small object is awaited, and how often.
const RATE: Rate = mbit(50);
const RTT: Duration = Duration::from_millis(50);
const FIRST_BYTES: u32 = 10;

/// Sessions that are held idle, and in a quick run.
const SESSIONS: u32 = 10_000;
const QUICK_SESSIONS: u32 = 1000;

/// The relay is done with what their beginning took after so long.
const SETTLING: Duration = Duration::from_secs(2);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Direct,
    HaProxy,
    Relay,
}

impl Way {
    fn name(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::HaProxy => "haproxy",
            Self::Relay => "multiway",
        }
    }
}

#[expect(clippy::print_stderr, reason = "progress goes beside the results")]
pub(super) fn run(binary: &Path, options: &Options) -> Result<Option<Report>> {
    let bytes = if options.quick { QUICK_BYTES } else { BYTES };
    let runs = options.runs.unwrap_or(RUNS);
    let machine = Machine::this(super::version(binary)?);
    let objects = Objects::write([bytes])?;
    let mut ways = vec![Way::Direct, Way::Relay];
    match Command::new("haproxy").arg("-v").output() {
        Ok(_) => ways.insert(1, Way::HaProxy),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            eprintln!(
                "SKIPPED: haproxy is not installed (scripts/setup.sh), so there is nothing beside the relay"
            );
        }
        Err(error) => return Err(error).context("cannot start haproxy"),
    }
    let mut throughput = Vec::new();
    let mut setup = Vec::new();
    // In turns, so that what else the machine does meets all of them.
    for run in 1..=runs {
        for &way in &ways {
            let measurement = or_failure(way, run, transfer(binary, &objects, bytes, way, run));
            eprintln!("{}, run {run}: {:.2} s", way.name(), measurement.seconds);
            throughput.push(measurement);
        }
        for way in [Way::Direct, Way::Relay] {
            setup.push(or_failure(way, run, first_byte(binary, way, run)));
        }
    }
    let sessions = if options.quick { QUICK_SESSIONS } else { SESSIONS };
    let idle = vec![or_failure(Way::Relay, 1, idle_sessions(binary, &objects, bytes, sessions))];
    let cell = |name: String, bytes, measurements| CellReport {
        name,
        conditions: BTreeMap::new(),
        bytes,
        measurements,
    };
    Ok(Some(Report {
        bench: "relay-cost".to_owned(),
        title: "What a relay costs on one path without limits, and how long a connection through it takes"
            .to_owned(),
        label: "kernel".to_owned(),
        machine,
        cells: vec![
            cell(format!("one veth path, {} MB", bytes / 1_000_000), bytes, throughput),
            cell(format!("first byte at {} ms", RTT.as_millis()), 1, setup),
            cell(format!("{sessions} idle sessions"), 0, idle),
        ],
    }))
}

fn or_failure(way: Way, run: u32, measured: Result<Measurement>) -> Measurement {
    measured.unwrap_or_else(|error| Measurement {
        method: way.name().to_owned(),
        run,
        seconds: 0.0,
        outcome: Outcome::Failed { reason: format!("{error:#}") },
        path_bytes: BTreeMap::new(),
        more: BTreeMap::new(),
    })
}

/// Device and server joined by a cable, with what carries between them.
struct Wire {
    lab: Lab,
    device: Host,
    server: Host,
    _nginx: multiway_netlab::Nginx,
}

impl Wire {
    fn lay(objects: &Objects, bytes: u64) -> Result<Self> {
        let lab = Lab::new()?;
        let (device, server) = (lab.host("device")?, lab.host("server")?);
        lab.cable(&device, WIFI, &server, "eth0")?;
        device.ip_batch(&format!(
            "addr add 10.1.0.2/24 dev {WIFI}\nroute add default via 10.1.0.1 dev {WIFI}\n"
        ))?;
        server.ip_batch(&format!("addr add 10.1.0.1/24 dev eth0\naddr add {SERVER}/32 dev lo\n"))?;
        let address = SocketAddr::from((SERVER, 80));
        let nginx = NginxSpec::new().listen(address).file("small.bin", 1).start(&lab, &server)?;
        objects.serve(bytes, &nginx.root())?;
        device.wait_for_port(address, PATIENCE)?;
        Ok(Self { lab, device, server, _nginx: nginx })
    }
}

fn transfer(binary: &Path, objects: &Objects, bytes: u64, way: Way, run: u32) -> Result<Measurement> {
    let wire = Wire::lay(objects, bytes)?;
    let mut carriers = Carriers::start(&wire.lab, &wire.device, &wire.server, binary, way)?;
    let mut curl = wire.device.command("curl");
    curl.args(["-s", "-f", "-o", "/dev/null"]);
    match way {
        Way::Direct => curl.arg(format!("http://{SERVER}/object.bin")),
        Way::HaProxy => curl.arg(format!("http://{NEAR}/object.bin")),
        Way::Relay => curl.args(["--proxytunnel", "-x", PROXY]).arg(format!("http://{SERVER}/object.bin")),
    };
    let before = carriers.cpu_seconds()?;
    let start = Instant::now();
    let status = curl.status().context("cannot start curl; is it installed?")?;
    let seconds = start.elapsed().as_secs_f64();
    if !status.success() {
        bail!("curl ended with {status}");
    }
    let mut more = BTreeMap::from([("throughput_mbit_per_s".to_owned(), bytes as f64 * 8.0 / seconds / 1e6)]);
    for (name, before) in before {
        let after = carriers.cpu_seconds()?[&name];
        more.insert(format!("{name}_cpu_s_per_gb"), (after - before) / (bytes as f64 / 1e9));
    }
    if way != Way::Direct {
        let both = ["near", "far"].iter().filter_map(|end| more.get(&format!("{end}_cpu_s_per_gb"))).sum();
        more.insert("both_cpu_s_per_gb".to_owned(), both);
    }
    Ok(Measurement {
        method: way.name().to_owned(),
        run,
        seconds,
        outcome: Outcome::Counted,
        path_bytes: BTreeMap::new(),
        more,
    })
}

/// What stands between curl and the server; ended when dropped.
#[derive(Default)]
struct Carriers {
    daemon: Option<Daemon>,
    /// By which end they are.
    processes: BTreeMap<&'static str, Process>,
    relay: Option<Relay>,
}

impl Carriers {
    fn start(lab: &Lab, device: &Host, server: &Host, binary: &Path, way: Way) -> Result<Self> {
        let directory = lab.directory();
        match way {
            Way::Direct => Ok(Self::default()),
            Way::HaProxy => {
                let certificate = certificate(server, directory)?;
                let far = SocketAddr::from((SERVER, FAR_PORT));
                let listen = format!("{far} ssl crt {} ssl-min-ver TLSv1.3", certificate.display());
                let far_process = haproxy(server, directory, "far", &listen, &format!("{SERVER}:80"))?;
                let to = format!("{far} ssl verify none ssl-min-ver TLSv1.3");
                let near_process = haproxy(device, directory, "near", NEAR, &to)?;
                device.wait_for_port(far, PATIENCE)?;
                device.wait_for_port(NEAR.parse()?, PATIENCE)?;
                Ok(Self {
                    processes: [("near", near_process), ("far", far_process)].into(),
                    ..Self::default()
                })
            }
            Way::Relay => {
                let relay = Relay::start(server, binary, directory, IpAddr::V4(SERVER))?;
                let spec = DaemonSpec {
                    binary,
                    directory,
                    preference: Preference::Fast,
                    intercept_user: None,
                    paths: 1,
                    bond: Some(relay.bond(BondMode::Handover, Detector::Improved)),
                };
                let daemon = Daemon::start(device, &spec)?;
                Ok(Self { daemon: Some(daemon), relay: Some(relay), ..Self::default() })
            }
        }
    }

    /// CPU time that each of them has used.
    fn cpu_seconds(&mut self) -> Result<BTreeMap<String, f64>> {
        let mut used = BTreeMap::new();
        if let Some(daemon) = &mut self.daemon {
            used.insert("near".to_owned(), daemon.cpu_seconds()?);
        }
        if let Some(relay) = &mut self.relay {
            used.insert("far".to_owned(), daemon::cpu_seconds_of(relay.process())?);
        }
        for (end, process) in &mut self.processes {
            used.insert((*end).to_owned(), daemon::cpu_seconds_of(process)?);
        }
        Ok(used)
    }
}

/// An HAProxy that carries bytes from one address to another.
fn haproxy(host: &Host, directory: &Path, name: &str, listen: &str, to: &str) -> Result<Process> {
    let config = directory.join(format!("haproxy-{name}.cfg"));
    let text = format!(
        "global\n  maxconn 1000\ndefaults\n  mode tcp\n  timeout connect 10s\n  timeout client 1h\n  \
         timeout server 1h\nlisten carry\n  bind {listen}\n  server to {to}\n"
    );
    std::fs::write(&config, text).with_context(|| format!("cannot write {}", config.display()))?;
    let mut command = host.command("haproxy");
    command.args(["-db", "-q", "-f"]).arg(&config).stdin(Stdio::null()).stdout(Stdio::null());
    host.start(command)
}

/// A certificate and its key in one file, as HAProxy wants them.
fn certificate(host: &Host, directory: &Path) -> Result<PathBuf> {
    let [certificate, key, both] = ["far.crt", "far.key", "far.pem"].map(|name| directory.join(name));
    let mut openssl = host.command("openssl");
    openssl
        .args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"])
        .args(["-subj", "/CN=relay", "-days", "1", "-keyout"])
        .arg(&key)
        .arg("-out")
        .arg(&certificate);
    host.output(openssl)?;
    let text = std::fs::read_to_string(&certificate)? + &std::fs::read_to_string(&key)?;
    std::fs::write(&both, text).with_context(|| format!("cannot write {}", both.display()))?;
    Ok(both)
}

/// How long the first byte of a small object takes over a path with a round trip, each by a new connection
/// while the session with the relay is there already.
fn first_byte(binary: &Path, way: Way, run: u32) -> Result<Measurement> {
    let scenario = Scenario::new("first byte")
        .seed(run.into())
        .path(WIFI, PathKind::Wifi, LinkSpec::symmetric(RATE, RTT))
        .server(ServerSpec::new("origin").file("small.bin", 1));
    let network = Network::build(&scenario)?;
    let server = network.server("origin");
    let address = server.public_address();
    if address != SERVER {
        bail!("the lab's first server has the address {address}, not {SERVER}");
    }
    let _carriers = Carriers::start(network.lab(), network.device(), server.host(), binary, way)?;
    let mut times = Vec::new();
    for _ in 0..FIRST_BYTES {
        let mut curl = network.device().command("curl");
        curl.args(["-s", "-f", "-o", "/dev/null", "-w", "%{time_starttransfer}"]);
        if way == Way::Relay {
            curl.args(["--proxytunnel", "-x", PROXY]);
        }
        curl.arg(format!("http://{address}/small.bin"));
        let text = network.device().output(curl)?;
        times.push(text.trim().parse::<f64>().with_context(|| format!("curl printed `{text}`"))?);
    }
    let seconds = crate::stats::median(times).context("there are some")?;
    Ok(Measurement {
        method: way.name().to_owned(),
        run,
        seconds,
        outcome: Outcome::Counted,
        path_bytes: BTreeMap::new(),
        more: [("first_byte_ms".to_owned(), seconds * 1e3)].into(),
    })
}

/// What idle sessions take of a relay's memory.
fn idle_sessions(binary: &Path, objects: &Objects, bytes: u64, count: u32) -> Result<Measurement> {
    let wire = Wire::lay(objects, bytes)?;
    let address = IpAddr::V4(SERVER);
    let limits = format!(
        "[limits]\nsessions_per_user = {count}\nhandshakes_per_second = {count}\n\
         handshakes_per_second_per_address = {count}\n"
    );
    let mut relay = Relay::start_with(&wire.server, binary, wire.lab.directory(), address, &limits)?;
    let before = daemon::resident_kib_of(relay.process())?;
    let mut hold = wire.device.command("sh");
    hold.args(["-c", RAISE_LIMIT, "sh"]).arg(std::env::current_exe()?);
    hold.args(["traffic", "sessions", &SocketAddr::new(address, relay::PORT).to_string(), relay.invite()]);
    hold.arg(count.to_string()).stdin(Stdio::piped()).stdout(Stdio::piped());
    let start = Instant::now();
    let mut holding = wire.device.start(hold)?;
    let mut line = String::new();
    let output = holding.child().stdout.take().context("its output is piped")?;
    BufReader::new(output).read_line(&mut line)?;
    if line.trim() != sessions::READY {
        bail!("the program that holds sessions ended early");
    }
    let seconds = start.elapsed().as_secs_f64();
    std::thread::sleep(SETTLING);
    let after = daemon::resident_kib_of(relay.process())?;
    Ok(Measurement {
        method: Way::Relay.name().to_owned(),
        run: 1,
        seconds,
        outcome: Outcome::Counted,
        path_bytes: BTreeMap::new(),
        more: BTreeMap::from([
            ("relay_kib_before".to_owned(), before as f64),
            ("relay_kib_per_session".to_owned(), (after.saturating_sub(before)) as f64 / f64::from(count)),
        ]),
    })
}
