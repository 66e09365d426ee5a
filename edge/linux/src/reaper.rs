//! Removes what the kernel would not when the daemon dies.
//!
//! The nftables table goes with the daemon's netlink socket, but control groups stay. So the daemon
//! keeps a small process beside it that knows the groups and waits for the end of a pipe that only
//! the daemon holds: however the daemon ends, the pipe ends with it, and the groups are removed. It
//! also keeps address translation going for the moment in which the kernel ends the connections of a
//! daemon that was killed, see [`TranslationHold`].

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::Duration;

use nix::sys::signal::{SigSet, Signal};

use crate::cgroup::RunGroup;
use crate::intercept::TranslationHold;

/// Word before a group's name on the pipe: the group is to be removed at the end.
const TRACK: &str = "track ";
/// The group is gone already.
const FORGET: &str = "forget ";
/// The daemon ends in good order: no connection needs translation any more.
const FAREWELL: &str = "farewell";

/// How long after a killed daemon's end its connections may take to end: the kernel does it at once.
const AFTERMATH: Duration = Duration::from_secs(1);

/// The daemon's end of the pipe; dropping it has the reaper clean up and waits for that.
#[derive(Debug)]
pub struct Reaper {
    child: Child,
    pipe: Option<ChildStdin>,
}

impl Reaper {
    /// Starts `command`, which must do nothing but call [`reaper_main`] on its standard input.
    pub fn spawn(mut command: Command) -> io::Result<Self> {
        // A group of its own, so that a terminal's interrupt for the daemon does not reach it.
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::null()).process_group(0).spawn()?;
        let pipe = child.stdin.take();
        Ok(Self { child, pipe })
    }

    /// Has the group removed when the daemon ends. To be called before a process is moved in.
    pub fn track(&mut self, group: &RunGroup) -> io::Result<()> {
        self.tell(TRACK, group)
    }

    /// Takes [`Reaper::track`] back, after the group was removed.
    pub fn forget(&mut self, group: &RunGroup) -> io::Result<()> {
        self.tell(FORGET, group)
    }

    fn tell(&mut self, word: &str, group: &RunGroup) -> io::Result<()> {
        let pipe = self.pipe.as_mut().ok_or(io::ErrorKind::BrokenPipe)?;
        // One write below PIPE_BUF: the reaper never sees half a line.
        pipe.write_all(format!("{word}{}\n", group.name()).as_bytes())
    }
}

impl Drop for Reaper {
    fn drop(&mut self) {
        if let Some(mut pipe) = self.pipe.take() {
            // A reaper that is gone needs no farewell.
            let _ = pipe.write_all(format!("{FAREWELL}\n").as_bytes());
        }
        if let Err(error) = self.child.wait() {
            tracing::warn!(%error, "the process that removes control groups is gone");
        }
    }
}

/// The reaper process: reads group names from the daemon until its end, then removes the groups.
///
/// The processes in them are moved to the group above and live on. Fails with the first group that
/// could not be removed, after trying all.
pub fn reaper_main(daemon: impl Read) -> io::Result<()> {
    // A service manager's or terminal's signals end the daemon; what then remains is this
    // process's task, so it outlives them.
    SigSet::from_iter([Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP, Signal::SIGQUIT]).thread_block()?;
    // Without nftables nothing is intercepted either.
    let hold = TranslationHold::take();
    if let Err(error) = &hold {
        tracing::debug!(%error, "no hold on address translation");
    }
    let mut is_orderly = false;
    let mut groups: Vec<RunGroup> = Vec::new();
    for line in BufReader::new(daemon).lines() {
        // A pipe that cannot be read is a daemon that cannot be heard: the end as well.
        let Ok(line) = line else { break };
        if let Some(name) = line.strip_prefix(TRACK) {
            groups.extend(RunGroup::named(name));
        } else if let Some(name) = line.strip_prefix(FORGET) {
            groups.retain(|group| group.name() != name);
        } else {
            is_orderly |= line == FAREWELL;
        }
    }
    let mut result = Ok(());
    for group in &groups {
        let removed = group.evacuate_and_remove();
        result = result.and(removed);
    }
    if hold.is_ok() && !is_orderly {
        std::thread::sleep(AFTERMATH);
    }
    result
}
