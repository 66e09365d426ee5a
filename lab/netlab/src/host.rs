//! A host of the lab: one network namespace.

use std::fmt;
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::unistd::{Uid, setfsuid};

use crate::keeper::Keeper;
use crate::netns::Namespaces;

/// How often readiness is looked for.
const READINESS_INTERVAL: Duration = Duration::from_millis(5);

/// A host; clones are the same host. It exists until the last clone and its last process are gone.
#[derive(Clone)]
pub struct Host {
    name: Arc<str>,
    namespaces: Arc<Namespaces>,
    keeper: Keeper,
}

impl fmt::Debug for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Host({})", self.name)
    }
}

impl Host {
    pub(crate) fn create(name: &str, keeper: Keeper) -> Result<Self> {
        let namespaces = Namespaces::create().with_context(|| format!("cannot make the host {name}"))?;
        Ok(Self { name: name.into(), namespaces: Arc::new(namespaces), keeper })
    }

    /// Its name in the lab.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Runs `work` in a thread on this host: sockets it opens, files of `/proc/sys/net` and `/sys` it
    /// reads and `/etc/resolv.conf` are this host's. Threads and processes it starts are on it too.
    pub fn run<R: Send>(&self, work: impl FnOnce() -> R + Send) -> R {
        std::thread::scope(|scope| {
            let worker = scope.spawn(|| {
                self.namespaces.enter().expect("a namespace that was made can be entered");
                work()
            });
            match worker.join() {
                Ok(result) => result,
                Err(panic) => std::panic::resume_unwind(panic),
            }
        })
    }

    /// The same in the name of a user, by its id: the sockets and files that `work` opens are that user's.
    pub fn run_as<R: Send>(&self, user: u32, work: impl FnOnce() -> R + Send) -> R {
        self.run(|| {
            // Of this thread alone, which is about to end.
            setfsuid(Uid::from_raw(user));
            work()
        })
    }

    /// Starts a thread on this host.
    pub fn spawn_thread<R: Send + 'static>(
        &self,
        work: impl FnOnce() -> R + Send + 'static,
    ) -> std::thread::JoinHandle<R> {
        let namespaces = Arc::clone(&self.namespaces);
        std::thread::spawn(move || {
            namespaces.enter().expect("a namespace that was made can be entered");
            work()
        })
    }

    /// A command that will run on this host. It is killed when the thread that starts it ends, so that
    /// nothing outlives the lab even when the lab is killed; [`Host::start`] keeps it for longer.
    pub fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new(program);
        self.namespaces.adopt(&mut command).expect("descriptors of this process can be duplicated");
        command
    }

    /// Starts a command made by [`Host::command`]; it runs until the handle is dropped.
    pub fn start(&self, command: Command) -> Result<Process> {
        let program = command.get_program().to_string_lossy().into_owned();
        let child = self
            .keeper
            .spawn(command)
            .with_context(|| format!("cannot start {program} on {}; is it installed?", self.name))?;
        Ok(Process { child })
    }

    /// Runs a command to its end and gives its standard output; an exit code other than 0 is an error
    /// that says what it printed.
    pub fn output(&self, mut command: Command) -> Result<String> {
        command.stdin(Stdio::null());
        let program = command.get_program().to_string_lossy().into_owned();
        let output = command
            .output()
            .with_context(|| format!("cannot start {program} on {}; is it installed?", self.name))?;
        if !output.status.success() {
            let arguments: Vec<_> = command.get_args().map(|argument| argument.to_string_lossy()).collect();
            bail!(
                "`{program} {}` on {} ended with {}: {}",
                arguments.join(" "),
                self.name,
                output.status,
                String::from_utf8_lossy(&output.stderr).trim()
            );
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Runs `ip` (iproute2) with words divided by spaces, for instance `route show default`.
    pub fn ip(&self, arguments: &str) -> Result<String> {
        let mut command = self.command("ip");
        command.args(arguments.split_whitespace());
        self.output(command)
    }

    /// Runs several `ip` commands in one process, one per line.
    pub fn ip_batch(&self, lines: &str) -> Result<()> {
        let mut script = tempfile::tempfile().context("cannot make a temporary file")?;
        std::io::Write::write_all(&mut script, lines.as_bytes())?;
        std::io::Seek::rewind(&mut script)?;
        let mut command = self.command("ip");
        command.args(["-batch", "-"]).stdin(Stdio::from(script));
        let output = command.output().context("cannot start ip; install iproute2")?;
        if !output.status.success() {
            bail!(
                "`ip -batch` on {} failed: {}\n{lines}",
                self.name,
                String::from_utf8_lossy(&output.stderr).trim()
            );
        }
        Ok(())
    }

    /// Runs nftables commands.
    pub fn nft(&self, rules: &str) -> Result<()> {
        let mut command = self.command("nft");
        command.arg(rules);
        self.output(command).map(drop)
    }

    /// Sets a kernel setting of this namespace, for instance `net.ipv4.ip_forward` to `1`.
    pub fn sysctl(&self, key: &str, value: &str) -> Result<()> {
        let file = format!("/proc/sys/{}", key.replace('.', "/"));
        self.run(|| std::fs::write(&file, value))
            .with_context(|| format!("cannot set {key} to {value} on {}", self.name))
    }

    /// Gives the host an `/etc/resolv.conf` of its own.
    pub fn set_resolv_conf(&self, text: &str) -> Result<()> {
        self.run(|| {
            if std::fs::exists("/etc/resolv.conf").unwrap_or(false) {
                std::fs::write("/etc/resolv.conf", text)
            } else {
                Err(std::io::Error::other(
                    "the machine has no /etc/resolv.conf to stand in for; make an empty one",
                ))
            }
        })
        .with_context(|| format!("cannot set the resolver of {}", self.name))
    }

    /// Waits until something on this host accepts connections to `address`, also one on another host.
    pub fn wait_for_port(&self, address: SocketAddr, patience: Duration) -> Result<()> {
        let deadline = Instant::now() + patience;
        self.run(|| {
            loop {
                match std::net::TcpStream::connect_timeout(&address, patience) {
                    Ok(_) => return Ok(()),
                    Err(error) if Instant::now() >= deadline => {
                        bail!("nothing accepts connections to {address} after {patience:?}: {error}")
                    }
                    Err(_) => std::thread::sleep(READINESS_INTERVAL),
                }
            }
        })
        .with_context(|| format!("on {}", self.name))
    }

    /// The namespace's path for programs that take one, good while this process lives.
    pub fn namespace_path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.namespaces.net().as_raw_fd())
    }
}

/// A program running on a host; killed when dropped.
#[derive(Debug)]
pub struct Process {
    child: Child,
}

impl Process {
    /// The child, to wait for it or read its output.
    pub fn child(&mut self) -> &mut Child {
        &mut self.child
    }

    /// Asks it to end (SIGTERM) and waits.
    pub fn terminate(&mut self) -> Result<std::process::ExitStatus> {
        if let Some(status) = self.child.try_wait()? {
            return Ok(status);
        }
        let id =
            nix::unistd::Pid::from_raw(i32::try_from(self.child.id()).context("process id out of range")?);
        nix::sys::signal::kill(id, nix::sys::signal::Signal::SIGTERM).context("cannot signal the process")?;
        Ok(self.child.wait()?)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
