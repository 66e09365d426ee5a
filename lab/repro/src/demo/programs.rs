//! The unmodified programs of the demonstration: ssh, into which somebody types, and curl, which downloads.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use multiway_netlab::{Host, Process, SSHD};

/// From one key to the next: sixty words a minute.
pub(super) const KEY_INTERVAL: Duration = Duration::from_millis(200);

/// The keys, over and over.
const KEYS: &[u8] = b"abcdefghijklmnopqrstuvwxyz";

/// How long logging in may take on a busy machine.
const LOGIN_PATIENCE: Duration = Duration::from_secs(10);

/// A program that has closed its output ends within this.
const ENDING: Duration = Duration::from_secs(1);

/// Time between two looks at a program that runs: short against what is shown, long against what looking costs.
pub(super) const LOOK_INTERVAL: Duration = Duration::from_millis(5);

/// What is run, and the package of Debian that has it.
const PROGRAMS: [(&str, &str); 6] = [
    ("ip", "iproute2"),
    ("nginx", "nginx-light"),
    ("curl", "curl"),
    ("ssh", "openssh-client"),
    ("ssh-keygen", "openssh-client"),
    (SSHD, "openssh-server"),
];

/// Makes a program speak Multipath TCP.
const MPTCPIZE: (&str, &str) = ("mptcpize", "mptcpize");

/// Fails, and says what to install, unless all programs are there that every row needs.
pub(super) fn require() -> Result<()> {
    require_all(&PROGRAMS)
}

/// The same for rows of Multipath TCP.
pub(super) fn require_mptcp() -> Result<()> {
    require_all(&[MPTCPIZE])
}

fn require_all(programs: &[(&str, &str)]) -> Result<()> {
    let directories = std::env::var_os("PATH").unwrap_or_default();
    let is_installed = |program: &str| {
        std::env::split_paths(&directories).any(|directory| directory.join(program).is_file())
    };
    let missing = programs.iter().filter(|(program, _)| !is_installed(program));
    let (names, mut packages): (Vec<_>, Vec<_>) = missing.copied().unzip();
    packages.dedup();
    if names.is_empty() {
        return Ok(());
    }
    bail!(
        "not installed: {}; run scripts/setup.sh, or as root: apt-get install {}",
        names.join(", "),
        packages.join(" ")
    )
}

/// Somebody who types into ssh, and sees each key when it comes back from the server, where `cat` runs.
pub(super) struct Terminal {
    ssh: Program,
    keys: ChildStdin,
    /// Closed when ssh ends.
    echoes: Receiver<(u8, Instant)>,
}

/// How it went.
#[derive(Debug)]
pub(super) struct Typed {
    pub(super) keys: u32,
    /// Of these, how many did not come back.
    pub(super) missing: u32,
    pub(super) problem: Option<String>,
}

impl Terminal {
    /// Starts ssh, to which options and destination were given, and waits until the server echoes a key.
    pub(super) fn open(host: &Host, mut ssh: Command, directory: &Path) -> Result<Self> {
        ssh.arg("cat").stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut ssh = Program::start(host, "ssh", ssh, directory)?;
        let child = ssh.process.child();
        let mut keys = child.stdin.take().context("its input is piped")?;
        let output = child.stdout.take().context("its output is piped")?;
        let (echo, echoes) = channel();
        std::thread::spawn(move || {
            for key in BufReader::new(output).bytes() {
                let Ok(key) = key else { break };
                if echo.send((key, Instant::now())).is_err() {
                    break;
                }
            }
        });
        // What ended it, it says itself.
        let _ = keys.write_all(&KEYS[..1]);
        match echoes.recv_timeout(LOGIN_PATIENCE) {
            Ok(_) => Ok(Self { ssh, keys, echoes }),
            Err(_) => bail!("nobody could log in: {}", ssh.last_words()),
        }
    }

    /// Types for so long, and waits for so long after that; `echoes` tells at any time how long each key took
    /// to come back.
    pub(super) fn type_for(
        mut self,
        length: Duration,
        patience: Duration,
        echoes: &Mutex<Vec<Duration>>,
    ) -> Typed {
        let start = Instant::now();
        let count = u32::try_from(length.as_millis() / KEY_INTERVAL.as_millis()).unwrap_or(u32::MAX);
        let end = start + length + patience;
        let mut awaited = VecDeque::new();
        let mut keys = KEYS.iter().copied().cycle().zip(0..count).peekable();
        let mut missing = count;
        let problem = loop {
            let next = keys.peek().map_or(end, |(_, number)| start + KEY_INTERVAL * *number);
            let now = Instant::now();
            if now >= next {
                let Some((key, _)) = keys.next() else { break None };
                // What ended ssh, if it has ended, the echoes' end tells.
                let _ = self.keys.write_all(&[key]);
                awaited.push_back((key, now));
                continue;
            }
            if missing == 0 {
                break None;
            }
            match self.echoes.recv_timeout(next - now) {
                Ok((echo, at)) => match awaited.pop_front() {
                    Some((key, pressed)) if key == echo => {
                        missing -= 1;
                        echoes.lock().expect("nothing panics while it holds this").push(at - pressed);
                    }
                    _ => break Some("ssh brought what nobody had typed".to_owned()),
                },
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break Some(self.ssh.last_words()),
            }
        };
        Typed { keys: count, missing, problem }
    }
}

/// What became of a download.
#[derive(Debug)]
pub(super) struct Downloaded {
    pub(super) bytes: u64,
    /// How long it took; none when it was given up or failed.
    pub(super) took: Option<Duration>,
    pub(super) problem: Option<String>,
}

/// Runs curl, which writes to `output`, for at most so long; `arrived` tells at any time how much there is.
pub(super) fn download(
    host: &Host,
    curl: Command,
    output: &Path,
    limit: Duration,
    arrived: &AtomicU64,
) -> Result<Downloaded> {
    let directory = output.parent().context("a file is in a directory")?;
    let mut curl = curl;
    curl.stdin(Stdio::null()).stdout(Stdio::null());
    let start = Instant::now();
    let mut curl = Program::start(host, "curl", curl, directory)?;
    loop {
        let ended = curl.process.child().try_wait()?;
        let took = start.elapsed();
        let bytes = output.metadata().map_or(0, |file| file.len());
        arrived.store(bytes, Ordering::Relaxed);
        match ended {
            None if took < limit => std::thread::sleep(LOOK_INTERVAL),
            None => return Ok(Downloaded { bytes, took: None, problem: None }),
            Some(status) if status.success() => {
                return Ok(Downloaded { bytes, took: Some(took), problem: None });
            }
            Some(_) => return Ok(Downloaded { bytes, took: None, problem: Some(curl.last_words()) }),
        }
    }
}

/// A program, and where it complains.
struct Program {
    name: &'static str,
    process: Process,
    complaints: PathBuf,
}

impl Program {
    fn start(host: &Host, name: &'static str, mut command: Command, directory: &Path) -> Result<Self> {
        let complaints = directory.join(format!("{name}.log"));
        let file =
            File::create(&complaints).with_context(|| format!("cannot write {}", complaints.display()))?;
        command.stderr(file);
        Ok(Self { name, process: host.start(command)?, complaints })
    }

    /// What it last said, of its own end where it has ended.
    fn last_words(&mut self) -> String {
        let deadline = Instant::now() + ENDING;
        let ended = loop {
            match self.process.child().try_wait() {
                Ok(None) if Instant::now() < deadline => std::thread::sleep(LOOK_INTERVAL),
                ended => break ended.ok().flatten(),
            }
        };
        let said = self.said().unwrap_or_default();
        match (said.lines().next_back(), ended) {
            (Some(said), _) => format!("{}: {said}", self.name),
            (None, Some(status)) => format!("{} ended with {status}", self.name),
            (None, None) => format!("{} says nothing", self.name),
        }
    }

    fn said(&self) -> io::Result<String> {
        Ok(std::fs::read_to_string(&self.complaints)?.trim().to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_named_with_its_package() {
        let error = require_all(&[("sh", "dash"), ("no-such-a", "one"), ("no-such-b", "one")]);
        let message = error.expect_err("two are missing").to_string();
        assert!(message.starts_with("not installed: no-such-a, no-such-b; "), "{message}");
        assert!(message.ends_with("apt-get install one"), "{message}");
        assert!(require_all(&[("sh", "dash")]).is_ok());
    }
}
