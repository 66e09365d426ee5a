use std::os::unix::fs::MetadataExt;
use std::sync::Arc;

use multiway_edge::pidfd::ProcessHandle;
use tokio::net::UnixStream;

/// Who may ask what.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Access {
    /// Members may do everything that the daemon's user may.
    pub group: Option<u32>,
    /// Every local user may run programs.
    pub everyone_may_run: bool,
}

impl Access {
    /// The socket's mode: who may connect at all.
    pub(super) fn mode(self) -> u32 {
        match (self.everyone_may_run, self.group) {
            (true, _) => 0o666,
            (false, Some(_)) => 0o660,
            (false, None) => 0o600,
        }
    }

    /// Whether `caller` may see what all users do.
    ///
    /// Where only owner and group can connect, the kernel has answered that already. Where anyone
    /// can, the caller's group at the time it connected counts, not its supplementary groups, which
    /// the kernel does not pass on.
    pub(super) fn may_see_status(self, caller: &Caller) -> bool {
        !self.everyone_may_run
            || caller.user == 0
            || Some(caller.user) == own_user()
            || (self.group.is_some() && Some(caller.group) == self.group)
    }
}

/// The process at the other end of a connection, as the kernel knows it from when it connected.
#[derive(Debug, Clone)]
pub struct Caller {
    /// Its effective user.
    pub user: u32,
    /// Its effective group.
    pub group: u32,
    /// Its number; absent when it is in a PID namespace that the daemon does not see.
    pub pid: Option<u32>,
    /// Holds on to it; absent without its number, and where the kernel is too old for that.
    pub process: Option<Arc<ProcessHandle>>,
}

impl Caller {
    /// The process at the other end of `stream`; `None` when the kernel does not tell.
    pub(super) fn of(stream: &UnixStream) -> Option<Self> {
        let credentials = stream.peer_cred().ok()?;
        let pid = credentials.pid().and_then(|pid| u32::try_from(pid).ok()).filter(|&pid| pid != 0);
        let process = pid.and_then(|pid| ProcessHandle::of_peer(stream, pid).ok()).map(Arc::new);
        Some(Self { user: credentials.uid(), group: credentials.gid(), pid, process })
    }

    /// Whether the caller's number is still the caller's.
    ///
    /// A number may be given anew once the process has ended, perhaps to another user's, which must
    /// not be put under the daemon by someone else's wish.
    pub fn still_runs(&self) -> bool {
        match (&self.process, self.pid) {
            (Some(process), _) => process.is_running(),
            (None, Some(pid)) => {
                std::fs::metadata(format!("/proc/{pid}")).is_ok_and(|process| process.uid() == self.user)
            }
            (None, None) => false,
        }
    }
}

/// This process's effective user.
pub(super) fn own_user() -> Option<u32> {
    std::fs::metadata("/proc/self").ok().map(|process| process.uid())
}
