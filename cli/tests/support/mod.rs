//! A daemon for a test, and what it takes to see it come and go.
#![allow(dead_code, reason = "each test binary uses its own part")]
#![allow(unreachable_pub, missing_docs, reason = "shared by test binaries only")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};

use multiway_api::{ListenerKind, Status};

/// Bound on everything that is waited for; a loaded machine takes a fraction of it.
const PATIENCE: Duration = Duration::from_secs(20);

/// Waits until `condition` gives something.
pub fn wait_for<T>(what: &str, mut condition: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(value) = condition() {
            return value;
        }
        assert!(Instant::now() < deadline, "in vain waited for {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// `words` as a command that is run in `home`, with state and control socket of its own.
pub fn command(home: &Path, words: &[&str]) -> Command {
    let mut command = Command::new(words[0]);
    command
        .args(&words[1..])
        .current_dir(home)
        .env("XDG_STATE_HOME", home.join("state"))
        .env("MULTIWAY_CONTROL", home.join("control.sock"))
        .env_remove("MULTIWAY_LOG");
    for variable in ["http_proxy", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"] {
        command.env_remove(variable);
    }
    command
}

pub const MULTIWAY: &str = env!("CARGO_BIN_EXE_multiway");

/// A running `multiway up`; killed when dropped.
pub struct Daemon {
    child: Child,
    pub home: PathBuf,
    /// Words before `multiway`, such as `nsenter` and its arguments.
    inside: Vec<String>,
}

impl Daemon {
    /// Starts a daemon with this configuration on a port of the kernel's choice, and waits until
    /// it answers.
    pub fn start(home: &Path, inside: &[&str], config: &str) -> Self {
        let file = home.join("multiway.toml");
        fs::write(&file, format!("listen = \"127.0.0.1:0\"\n{config}")).unwrap();
        let log = fs::File::create(home.join("log")).unwrap();
        let words = [inside, &[MULTIWAY, "up", "-c", "multiway.toml"]].concat();
        let child = command(home, &words).stdin(Stdio::null()).stderr(log).spawn().unwrap();
        let inside = inside.iter().map(|word| (*word).to_owned()).collect();
        let mut daemon = Self { child, home: home.to_owned(), inside };
        wait_for("the daemon", || {
            if let Some(status) = daemon.child.try_wait().unwrap() {
                panic!("the daemon ended with {status}:\n{}", daemon.log());
            }
            daemon.multiway(&["status"]).status.success().then_some(())
        });
        daemon
    }

    /// Runs `multiway` with `arguments` beside the daemon.
    pub fn multiway(&self, arguments: &[&str]) -> Output {
        self.run(&[&[MULTIWAY], arguments].concat())
    }

    /// Runs a program beside the daemon.
    pub fn run(&self, words: &[&str]) -> Output {
        self.beside(words).output().unwrap()
    }

    /// A program to be run beside the daemon.
    pub fn beside(&self, words: &[&str]) -> Command {
        let inside: Vec<&str> = self.inside.iter().map(String::as_str).collect();
        command(&self.home, &[&inside, words].concat())
    }

    pub fn status(&self) -> Status {
        let output = self.multiway(&["status", "--json"]);
        assert!(output.status.success(), "{output:?}");
        serde_json::from_slice(&output.stdout).unwrap()
    }

    pub fn proxy(&self) -> String {
        let status = self.status();
        let proxy = status.listeners.iter().find(|listener| listener.kind == ListenerKind::Proxy).unwrap();
        proxy.address.to_string()
    }

    pub fn log(&self) -> String {
        fs::read_to_string(self.home.join("log")).unwrap()
    }

    pub fn socket(&self) -> PathBuf {
        self.home.join("control.sock")
    }

    /// Sends it a signal, as `kill` names it, and waits for its end.
    pub fn end(&mut self, signal: &str) -> ExitStatus {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args(["-s", signal, &pid]).status().unwrap().success());
        wait_for("the end of the daemon", || self.child.try_wait().unwrap())
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
