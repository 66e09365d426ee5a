//! A network, a daemon on its device, and programs beside it.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use multiway_api::{ListenerKind, Status};
use multiway_core::paths::PathKind;
use multiway_linksim::{LinkSpec, Scenario, ServerSpec, mbit};
use multiway_netlab::{Direction, Network, NetworkOptions, Process, content, self_signed};
use tempfile::TempDir;

/// Bound on everything that is waited for; a loaded machine takes a fraction of it.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// No program in these tests may take longer; beyond it has stalled.
const PROGRAM_PATIENCE_SECONDS: &str = "20";

/// An account that owns nothing, for interception by user.
const NOBODY: &str = "65534";

/// Both networks help at once, and nothing is remembered outside the test's directory.
pub(crate) const FAST: &str = "preference = \"fast\"\n";

/// Links are emulated in real time: labs side by side would slow each other.
static TURN: Mutex<()> = Mutex::new(());

/// Leaves a test, and says so, when these programs are not installed.
macro_rules! skip_without_programs {
    ($($program:literal),+) => {
        for program in [$($program),+] {
            if !crate::support::is_installed(program) {
                multiway_netlab::say_skipped(&format!("{program} is not installed"));
                return Ok(());
            }
        }
    };
}
pub(crate) use skip_without_programs;

pub(crate) fn is_installed(program: &str) -> bool {
    let directories = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&directories).any(|directory| directory.join(program).is_file())
}

/// The `multiway` binary beside this test's own executable; built when it is not there yet.
pub(crate) fn multiway() -> &'static Path {
    static BINARY: OnceLock<PathBuf> = OnceLock::new();
    BINARY.get_or_init(|| {
        let own = std::env::current_exe().expect("a running test has an executable");
        let binary = own.parent().and_then(Path::parent).expect("target/PROFILE/deps").join("multiway");
        if !binary.is_file() {
            let built = Command::new(env!("CARGO")).args(["build", "-p", "multiway"]).status();
            assert!(built.is_ok_and(|status| status.success()), "cargo build -p multiway failed");
        }
        assert!(binary.is_file(), "there is no {}; run: cargo build -p multiway", binary.display());
        binary
    })
}

/// Wi-Fi and LTE, and a server known as `files.example`.
pub(crate) fn wifi_and_lte(origin: ServerSpec) -> Scenario {
    Scenario::new("Wi-Fi and LTE")
        .path("wlan0", PathKind::Wifi, LinkSpec::symmetric(mbit(30), Duration::from_millis(20)))
        .path("wwan0", PathKind::Cellular, LinkSpec::symmetric(mbit(20), Duration::from_millis(40)))
        .server(origin.known_as("files.example"))
}

/// Servers speak HTTPS as `files.example`, with the authority `certificate.pem` in the test's directory.
pub(crate) fn tls(directory: &Path) -> Result<NetworkOptions> {
    Ok(NetworkOptions { tls: Some(self_signed(directory, &["files.example"])?), ..NetworkOptions::default() })
}

/// A network with a device on which programs are started, and perhaps a daemon.
pub(crate) struct World {
    pub(crate) network: Network,
    daemon: Option<Process>,
    home: TempDir,
    _turn: MutexGuard<'static, ()>,
}

impl World {
    pub(crate) fn build(scenario: &Scenario) -> Result<Self> {
        Self::build_with(scenario, |_| Ok(NetworkOptions::default()))
    }

    /// The options may need files in the test's directory.
    pub(crate) fn build_with(
        scenario: &Scenario,
        options: impl FnOnce(&Path) -> Result<NetworkOptions>,
    ) -> Result<Self> {
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let home = tempfile::tempdir()?;
        let network = Network::build_with(scenario, &options(home.path())?)?;
        Ok(Self { network, daemon: None, home, _turn: turn })
    }

    /// A network with a running daemon that uses all paths.
    pub(crate) fn with_daemon(scenario: &Scenario) -> Result<Self> {
        let mut world = Self::build(scenario)?;
        world.start_daemon(FAST, &[])?;
        Ok(world)
    }

    /// Starts `multiway up` with this configuration and waits until it answers.
    pub(crate) fn start_daemon(&mut self, config: &str, arguments: &[&str]) -> Result<()> {
        self.start_daemon_under(&[], config, arguments)
    }

    /// The same under another program, given with its arguments.
    pub(crate) fn start_daemon_under(
        &mut self,
        wrapper: &[&str],
        config: &str,
        arguments: &[&str],
    ) -> Result<()> {
        fs::write(self.path("multiway.toml"), config)?;
        let log = fs::File::create(self.path("daemon.log"))?;
        let mut command = match wrapper.split_first() {
            None => self.plain(multiway()),
            Some((program, arguments)) => {
                let mut command = self.plain(program);
                command.args(arguments).arg(multiway());
                command
            }
        };
        command.args(["up", "-c", "multiway.toml"]).args(arguments);
        command.env("MULTIWAY_LOG", "debug").stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        self.daemon = Some(self.network.device().start(command)?);
        let deadline = Instant::now() + PATIENCE;
        while self.status().is_err() {
            let ended = self.daemon.as_mut().and_then(|daemon| daemon.child().try_wait().ok().flatten());
            if ended.is_some() || Instant::now() > deadline {
                bail!("the daemon does not answer ({ended:?}):\n{}", self.daemon_log());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    pub(crate) fn daemon(&mut self) -> &mut Process {
        self.daemon.as_mut().expect("the test started it")
    }

    /// Ends the daemon as `kill -9` does.
    pub(crate) fn kill_daemon(&mut self) -> Result<()> {
        let mut daemon = self.daemon.take().context("the test started it")?;
        daemon.child().kill()?;
        daemon.child().wait()?;
        Ok(())
    }

    pub(crate) fn daemon_log(&self) -> String {
        fs::read_to_string(self.path("daemon.log")).unwrap_or_default()
    }

    /// A file in the test's directory, which programs run in.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.home.path().join(name)
    }

    pub(crate) fn read(&self, name: &str) -> Result<Vec<u8>> {
        fs::read(self.path(name)).with_context(|| format!("there is no {name}"))
    }

    /// A program on the device that has nothing to do with the daemon.
    pub(crate) fn plain(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = self.network.device().command(program);
        command
            .current_dir(self.home.path())
            .env("HOME", self.home.path())
            .env("XDG_STATE_HOME", self.path("state"))
            .env("MULTIWAY_CONTROL", self.path("control.sock"))
            .env_remove("MULTIWAY_LOG");
        for variable in ["http_proxy", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY", "no_proxy"] {
            command.env_remove(variable);
        }
        command
    }

    /// A program on the device that ends in any case.
    pub(crate) fn command(&self, program: &str) -> Command {
        let mut command = self.plain("timeout");
        command.args(["-k", "1", PROGRAM_PATIENCE_SECONDS, program]);
        command
    }

    /// `multiway ...`
    pub(crate) fn multiway(&self, arguments: &[&str]) -> Command {
        let mut command = self.plain("timeout");
        command.args(["-k", "1", PROGRAM_PATIENCE_SECONDS]).arg(multiway()).args(arguments);
        command
    }

    /// `multiway run -- program ...`
    pub(crate) fn intercepted(&self, program: &str) -> Command {
        self.multiway(&["run", "--", program])
    }

    /// A program of the user that `up --intercept-user` names.
    pub(crate) fn as_nobody(&self, program: &str) -> Command {
        let mut command = self.command("setpriv");
        command.args(["--reuid", NOBODY, "--regid", NOBODY, "--clear-groups", program]);
        command
    }

    pub(crate) fn status(&self) -> Result<Status> {
        let output = self.multiway(&["status", "--json"]).stdin(Stdio::null()).output()?;
        ensure!(output.status.success(), "status failed: {}", String::from_utf8_lossy(&output.stderr));
        Ok(serde_json::from_slice(&output.stdout)?)
    }

    /// The proxy's address and port.
    pub(crate) fn proxy(&self) -> Result<String> {
        let status = self.status()?;
        let proxy = status.listeners.iter().find(|listener| listener.kind == ListenerKind::Proxy);
        Ok(proxy.context("there is no proxy")?.address.to_string())
    }

    /// What the server sends for one of its files.
    pub(crate) fn content(&self, file: &str) -> Vec<u8> {
        let files = self.network.servers().iter().flat_map(|server| &server.spec().files);
        let spec = files.into_iter().find(|spec| spec.name == file).expect("a file of the scenario");
        content_of(self.network.lab().seed(), &spec.name, spec.bytes)
    }

    /// Fails unless each path carried at least this much down.
    pub(crate) fn each_path_carried(&self, bytes: u64) -> Result<()> {
        for path in self.network.paths() {
            let carried = self.carried(path.interface());
            ensure!(carried >= bytes, "{} carried only {carried} bytes", path.interface());
        }
        Ok(())
    }

    /// Bytes that came down a path's link.
    pub(crate) fn carried(&self, interface: &str) -> u64 {
        self.network.path(interface).link().counters(Direction::Down).delivered.bytes
    }
}

pub(crate) fn content_of(seed: u64, name: &str, bytes: u64) -> Vec<u8> {
    let mut content = Vec::new();
    content::content(seed, name, bytes).read_to_end(&mut content).expect("memory takes everything");
    content
}

/// Runs a command to its end and gives what it printed; fails when it fails.
pub(crate) fn output(command: &mut Command) -> Result<Vec<u8>> {
    let output = run(command)?;
    ensure!(
        output.status.success(),
        "{command:?} ended with {}: {}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(output.stdout)
}

/// Runs a command to its end.
pub(crate) fn run(command: &mut Command) -> Result<Output> {
    command.stdin(Stdio::null()).output().with_context(|| format!("cannot start {command:?}"))
}

/// Fails unless both are equal, and says where they differ.
pub(crate) fn same(found: &[u8], expected: &[u8]) -> Result<()> {
    if found == expected {
        return Ok(());
    }
    let common = found.iter().zip(expected).take_while(|(a, b)| a == b).count();
    bail!("{} bytes instead of {}, different from {common} on", found.len(), expected.len())
}

/// Waits until something is so.
pub(crate) fn wait_until(what: &str, mut condition: impl FnMut() -> bool) -> Result<()> {
    let deadline = Instant::now() + PATIENCE;
    while !condition() {
        ensure!(Instant::now() < deadline, "in vain waited for {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}
