//! One transfer by one method over a network made for it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use multiway_linksim::{Change, Scenario};
use multiway_netlab::{Direction, Network, NetworkOptions};

use crate::daemon::{Daemon, DaemonSpec, PROXY};
use crate::method::{BondMode, Detector, Method, Preference};
use crate::objects::Objects;
use crate::plan::{Cell, LTE, WIFI};
use crate::reader::{self, Fetch, Seen};
use crate::relay::Relay;
use crate::report::{Measurement, Outcome};

/// Whose connections are intercepted: someone without any right.
pub(crate) const PLAIN_USER: &str = "nobody";

/// The same by its id, as Debian has it.
pub(crate) const PLAIN_USER_ID: u32 = 65534;

/// Runs a program that is killed when its parent ends. A lab's programs are; their own children are not, nor
/// is who changed to another user (prctl(2), PR_SET_PDEATHSIG).
pub(crate) const DIE_WITH_PARENT: [&str; 3] = ["setpriv", "--pdeathsig", "KILL"];

/// What makes a program after [`DIE_WITH_PARENT`] one of [`PLAIN_USER`]'s.
pub(crate) const AS_PLAIN_USER: [&str; 5] = ["--reuid", PLAIN_USER, "--regid", "nogroup", "--clear-groups"];

/// `timeout` ends so when it had to kill.
const KILLED_BY_TIMEOUT: i32 = 137;

/// curl's exit code when `--max-time` is over.
const CURL_TIMED_OUT: i32 = 28;

/// What all transfers of a bench share.
pub(crate) struct Bench<'a> {
    pub(crate) binary: &'a Path,
    pub(crate) objects: &'a Objects,
    pub(crate) single_path_limit: Duration,
    pub(crate) limit: Duration,
}

/// What a transfer gave, before its network is asked for the shares.
struct Transfer {
    seconds: f64,
    outcome: Outcome,
    more: BTreeMap<String, f64>,
}

impl Bench<'_> {
    /// Measures a method in a cell; curl and a reader alone give one measurement per path. A failed transfer is a result
    /// too, and says why.
    pub(crate) fn measure(&self, cell: &Cell, method: Method, run: u32) -> Vec<Measurement> {
        let variants: Vec<(String, Option<&str>)> = match method {
            Method::Curl | Method::ReaderAlone => {
                [WIFI, LTE].map(|interface| (format!("{method} {interface}"), Some(interface))).into()
            }
            _ => vec![(method.to_string(), None)],
        };
        variants
            .into_iter()
            .map(|(name, interface)| {
                let mut path_bytes = BTreeMap::new();
                let transfer = self
                    .transfer(cell, method, interface, run, &mut path_bytes)
                    .unwrap_or_else(|error| Transfer::failed(format!("{error:#}")));
                Measurement {
                    method: name,
                    run,
                    seconds: transfer.seconds,
                    outcome: transfer.outcome,
                    path_bytes,
                    more: transfer.more,
                }
            })
            .collect()
    }

    /// Builds the cell's network with the object on its server.
    pub(crate) fn network(&self, cell: &Cell, run: u32, options: &NetworkOptions) -> Result<Network> {
        // Every method meets the same losses in the same run, and others in the next.
        let scenario = Scenario { seed: u64::from(run), ..cell.scenario.clone() };
        let network = Network::build_with(&scenario, options)?;
        let nginx = network.server("origin").nginx().context("the server has a file")?;
        self.objects.serve(cell.bytes, &nginx.root())?;
        Ok(network)
    }

    fn transfer(
        &self,
        cell: &Cell,
        method: Method,
        interface: Option<&str>,
        run: u32,
        path_bytes: &mut BTreeMap<String, u64>,
    ) -> Result<Transfer> {
        let options = NetworkOptions { mptcp: method.is_mptcp(), ..NetworkOptions::default() };
        let network = self.network(cell, run, &options)?;
        if method.is_mptcp_backup() {
            make_backup(&network, LTE)?;
        }
        let target = Target { network: &network, bytes: cell.bytes, events: &cell.wifi_events };
        let before = received(&network);
        let transfer = match method {
            Method::Curl => {
                let interface = interface.context("curl alone goes over one path")?;
                self.curl_alone(&target, interface)
            }
            Method::Optimum => self.optimum(&target),
            Method::Aria2(connections) => self.aria2(&target, connections),
            Method::Tcp => {
                let mut curl = target.command("curl");
                curl.args(["-s", "-f", "-o"]).arg(target.output()).arg(target.url());
                self.run_program(&target, curl)
            }
            Method::Mptcp | Method::MptcpBackup => {
                let mut curl = target.command("mptcpize");
                curl.args(["run", "curl"]).args(["-s", "-f", "-o"]).arg(target.output()).arg(target.url());
                self.run_program(&target, curl)
            }
            Method::Proxy(preference) => {
                let _daemon = self.daemon(&target, preference, None)?;
                let mut curl = target.command("curl");
                curl.args(["-s", "-f", "-x", &format!("http://{PROXY}"), "-o"]);
                curl.arg(target.output()).arg(target.url());
                self.run_program(&target, curl)
            }
            Method::Transparent(preference) => {
                let _daemon = self.daemon(&target, preference, Some(PLAIN_USER))?;
                self.run_program(&target, curl_of_a_plain_user(&target)?)
            }
            Method::Get(preference) => {
                let mut get = target.command(self.binary);
                // It remembers nothing of the transfers before it.
                get.env("XDG_STATE_HOME", network.lab().directory());
                get.args(["get", "--quiet", "--preference", preference.name(), "-o"]);
                get.arg(target.output()).arg(target.url());
                self.run_program(&target, get)
            }
            Method::ReaderProxy(preference) => {
                let _daemon = self.daemon(&target, preference, None)?;
                self.reader(
                    &target,
                    &Fetch { connect_to: Daemon::proxy(), target: target.url(), ..target.fetch() },
                )
            }
            Method::ReaderAlone => {
                self.reader(&target, &Fetch { interface: interface.map(str::to_owned), ..target.fetch() })
            }
            Method::ReaderTcp => self.reader(&target, &target.fetch()),
            Method::ReaderMptcp | Method::ReaderMptcpBackup => {
                self.reader(&target, &Fetch { mptcp: true, ..target.fetch() })
            }
            Method::Handover(detector) => self.relayed(&target, BondMode::Handover, detector),
            Method::Aggregate => self.relayed(&target, BondMode::Aggregate, Detector::Improved),
        };
        for (interface, bytes) in received(&network) {
            path_bytes.insert(interface.clone(), bytes - before[&interface]);
        }
        transfer
    }

    pub(crate) fn daemon(
        &self,
        target: &Target<'_>,
        preference: Preference,
        user: Option<&str>,
    ) -> Result<Daemon> {
        let spec = DaemonSpec {
            binary: self.binary,
            directory: target.network.lab().directory(),
            preference,
            intercept_user: user,
            paths: target.network.paths().len(),
            bond: None,
        };
        Daemon::start(target.network.device(), &spec)
    }

    /// A reader through the daemon's tunnel, which the relay ends beside the server.
    fn relayed(&self, target: &Target<'_>, mode: BondMode, detector: Detector) -> Result<Transfer> {
        let network = target.network;
        let server = network.server("origin");
        let address = server.public_address();
        let directory = network.lab().directory();
        let relay = Relay::start(server.host(), self.binary, directory, address.into())?;
        let spec = DaemonSpec {
            binary: self.binary,
            directory,
            preference: Preference::Fast,
            intercept_user: None,
            paths: network.paths().len(),
            bond: Some(relay.bond(mode, detector)),
        };
        let _daemon = Daemon::start(network.device(), &spec)?;
        // What has a private address goes past the relay.
        let tunnel_to = Some((address, 80).into());
        self.reader(target, &Fetch { connect_to: Daemon::proxy(), tunnel_to, ..target.fetch() })
    }

    fn curl_alone(&self, target: &Target<'_>, interface: &str) -> Result<Transfer> {
        let limit = self.single_path_limit.as_secs_f64();
        let mut curl = target.command("curl");
        curl.args(["-s", "-f", "--interface", interface, "-m", &limit.to_string()])
            .args(["-w", "%{size_download} %{time_total}", "-o"])
            .arg(target.output())
            .arg(target.url());
        target.start_events();
        let start = Instant::now();
        let output = curl.output().context("cannot start curl; is it installed?")?;
        let seconds = start.elapsed().as_secs_f64();
        if output.status.code() != Some(CURL_TIMED_OUT) {
            return self.finished(target, seconds, output.status, &output.stderr);
        }
        let text = String::from_utf8_lossy(&output.stdout);
        let (bytes, seconds) = text.trim().split_once(' ').context("curl tells size and time")?;
        let (bytes, seconds) = (bytes.parse::<u64>()?, seconds.parse::<f64>()?);
        if bytes == 0 {
            return Ok(Transfer { seconds, outcome: Outcome::TimedOut, more: BTreeMap::new() });
        }
        Ok(Transfer {
            seconds: target.bytes as f64 / bytes as f64 * seconds,
            outcome: Outcome::Computed { bytes, seconds },
            more: BTreeMap::new(),
        })
    }

    fn optimum(&self, target: &Target<'_>) -> Result<Transfer> {
        let fetches: Vec<Fetch> = [WIFI, LTE]
            .map(|interface| Fetch { interface: Some(interface.to_owned()), ..target.fetch() })
            .into();
        let found = target.network.device().run(|| {
            target.start_events();
            reader::optimum(&fetches, target.bytes, self.limit)
        })?;
        Ok(match found {
            Some(time) => {
                Transfer { seconds: time.as_secs_f64(), outcome: Outcome::Counted, more: BTreeMap::new() }
            }
            None => self.timed_out(),
        })
    }

    fn aria2(&self, target: &Target<'_>, connections: u8) -> Result<Transfer> {
        let device = target.network.device();
        // aria2 binds to an interface's address, so it needs routes that follow the source.
        for (table, path) in (101..).zip(target.network.paths()) {
            let interface = path.interface();
            device.ip_batch(&format!(
                "route add default via {} dev {interface} table {table}\nrule add from {} lookup {table}\n",
                path.gateway_address(),
                path.device_address()
            ))?;
        }
        let mut aria2 = target.command("aria2c");
        aria2
            .args([&format!("-x{connections}"), &format!("-s{connections}"), "-k1M", "--no-conf"])
            .arg(format!("--multiple-interface={WIFI},{LTE}"))
            .args(["--file-allocation=none", "--quiet", "--allow-overwrite=true", "-d"])
            .arg(target.network.lab().directory())
            .args(["-o", OUTPUT])
            .arg(target.url());
        self.run_program(target, aria2)
    }

    fn reader(&self, target: &Target<'_>, fetch: &Fetch) -> Result<Transfer> {
        let seen: Seen = target.network.device().run(|| {
            target.start_events();
            fetch.read(self.limit)
        })?;
        if seen.bytes < target.bytes {
            return Ok(self.timed_out());
        }
        if seen.digest != *self.objects.digest(target.bytes) {
            bail!("WRONG BYTES reached the reader");
        }
        let milliseconds = |time: Duration| time.as_secs_f64() * 1e3;
        Ok(Transfer {
            seconds: seen.total.as_secs_f64(),
            outcome: Outcome::Verified,
            more: [
                ("longest_stall_ms".to_owned(), milliseconds(seen.longest_stall)),
                ("first_byte_ms".to_owned(), milliseconds(seen.first_byte)),
            ]
            .into(),
        })
    }

    /// Runs a program that writes the object to the target's output.
    fn run_program(&self, target: &Target<'_>, program: Command) -> Result<Transfer> {
        let mut command = target.command("timeout");
        command.args(["-s", "KILL", &self.limit.as_secs_f64().to_string()]).args(DIE_WITH_PARENT);
        command.arg(program.get_program()).args(program.get_args());
        for (name, value) in program.get_envs().filter_map(|(name, value)| Some((name, value?))) {
            command.env(name, value);
        }
        target.start_events();
        let start = Instant::now();
        let output = command.output().context("cannot start timeout; is coreutils installed?")?;
        let seconds = start.elapsed().as_secs_f64();
        let code = output.status.code();
        if code == Some(KILLED_BY_TIMEOUT) || code.is_none() {
            return Ok(self.timed_out());
        }
        self.finished(target, seconds, output.status, &output.stderr)
    }

    fn finished(
        &self,
        target: &Target<'_>,
        seconds: f64,
        status: std::process::ExitStatus,
        errors: &[u8],
    ) -> Result<Transfer> {
        if !status.success() {
            bail!("{status}: {}", String::from_utf8_lossy(errors).trim());
        }
        if !self.objects.is_in(&target.output(), target.bytes)? {
            bail!("WRONG BYTES were written");
        }
        Ok(Transfer { seconds, outcome: Outcome::Verified, more: BTreeMap::new() })
    }

    fn timed_out(&self) -> Transfer {
        Transfer { seconds: self.limit.as_secs_f64(), outcome: Outcome::TimedOut, more: BTreeMap::new() }
    }
}

impl Transfer {
    fn failed(reason: String) -> Self {
        Self { seconds: 0.0, outcome: Outcome::Failed { reason }, more: BTreeMap::new() }
    }
}

/// Name of the file that programs write.
const OUTPUT: &str = "output.bin";

/// What is fetched, over which network.
pub(crate) struct Target<'a> {
    pub(crate) network: &'a Network,
    pub(crate) bytes: u64,
    /// What happens to the Wi-Fi, counted from the transfer's start.
    pub(crate) events: &'a [(Duration, Change)],
}

impl Target<'_> {
    fn url(&self) -> String {
        self.network.server("origin").url("object.bin")
    }

    pub(crate) fn output(&self) -> PathBuf {
        self.network.lab().directory().join(OUTPUT)
    }

    pub(crate) fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = self.network.device().command(program);
        // The machine's own proxy, if it has one, is none of the lab's.
        for variable in ["http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"] {
            command.env_remove(variable);
        }
        command
    }

    pub(crate) fn fetch(&self) -> Fetch {
        let address = self.network.server("origin").address();
        Fetch {
            connect_to: (address, 80).into(),
            target: "/object.bin".to_owned(),
            host: address.to_string(),
            interface: None,
            mptcp: false,
            tunnel_to: None,
        }
    }

    /// Starts the clock of what the cell has happen during the transfer.
    pub(crate) fn start_events(&self) {
        for (after, change) in self.events {
            self.network.path(WIFI).link().change_both_after(*after, change.clone());
        }
    }
}

/// curl as someone whose connections are intercepted and who knows nothing of it.
pub(crate) fn curl_of_a_plain_user(target: &Target<'_>) -> Result<Command> {
    let output = output_of_a_plain_user(target)?;
    let mut curl = of_a_plain_user(target);
    curl.args(["curl", "-s", "-f", "-o"]).arg(output).arg(target.url());
    Ok(curl)
}

/// What runs a program, which is to follow, as someone whose connections are intercepted.
pub(crate) fn of_a_plain_user(target: &Target<'_>) -> Command {
    let [program, arguments @ ..] = DIE_WITH_PARENT;
    let mut command = target.command(program);
    command.args(arguments).args(AS_PLAIN_USER);
    command
}

/// The target's output, for such a program. Its directory is root's: the file is made beforehand, so that
/// anyone may write it.
pub(crate) fn output_of_a_plain_user(target: &Target<'_>) -> Result<PathBuf> {
    let output = target.output();
    std::fs::write(&output, b"")?;
    let everyone = std::os::unix::fs::PermissionsExt::from_mode;
    std::fs::set_permissions(&output, everyone(0o666))?;
    std::fs::set_permissions(target.network.lab().directory(), everyone(0o755))?;
    Ok(output)
}

/// Makes kernel MPTCP use an interface only while others fail.
pub(crate) fn make_backup(network: &Network, interface: &str) -> Result<()> {
    let address = network.path(interface).device_address().to_string();
    // `10.2.0.2 id 2 subflow dev wwan0`, one per line.
    let endpoints = network.device().ip("mptcp endpoint show")?;
    let id = endpoints
        .lines()
        .find(|line| line.split_whitespace().next() == Some(&address))
        .and_then(|line| line.split_whitespace().skip_while(|word| *word != "id").nth(1))
        .with_context(|| format!("there is no MPTCP endpoint {address}"))?;
    network.device().ip(&format!("mptcp endpoint change id {id} backup")).map(drop)
}

/// Bytes of IP packets that reached the device until now, by interface.
pub(crate) fn received(network: &Network) -> BTreeMap<String, u64> {
    network
        .paths()
        .iter()
        .map(|path| (path.interface().to_owned(), path.link().counters(Direction::Down).delivered.bytes))
        .collect()
}
