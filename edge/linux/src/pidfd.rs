//! A process that is held on to, so that another one given its number later is told apart.

use std::io;
use std::os::fd::{AsFd, FromRawFd, OwnedFd};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{getsockopt, sockopt};

/// A process, running or ended, whatever became of its number.
#[derive(Debug)]
pub struct ProcessHandle(OwnedFd);

impl ProcessHandle {
    /// The process that connected the other end of a Unix socket, whose number `SO_PEERCRED` gave as
    /// `pid`.
    ///
    /// The kernel knows it from when it connected (`SO_PEERPIDFD`, Linux 6.5); before that it is the one
    /// that has the number now.
    pub fn of_peer(socket: &impl AsFd, pid: u32) -> io::Result<Self> {
        getsockopt(socket, sockopt::PeerPidfd).map(Self).or_else(|_| Self::of(pid))
    }

    /// The process that has the number `pid` now (`pidfd_open`, Linux 5.3).
    pub fn of(pid: u32) -> io::Result<Self> {
        let pid = libc::pid_t::try_from(pid).map_err(io::Error::other)?;
        open(pid).map(Self)
    }

    /// Whether it has not ended, and so still has its number.
    ///
    /// What was done to a number was done to this process if it runs afterwards.
    pub fn is_running(&self) -> bool {
        // It becomes readable at its end, pidfd_open(2).
        let mut ends = [PollFd::new(self.0.as_fd(), PollFlags::POLLIN)];
        poll(&mut ends, PollTimeout::ZERO) == Ok(0)
    }
}

#[expect(unsafe_code, reason = "neither std, nix nor libc has a function for pidfd_open")]
fn open(pid: libc::pid_t) -> io::Result<OwnedFd> {
    // SAFETY: the call takes two integers and touches no memory.
    let opened = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    if opened < 0 {
        return Err(io::Error::last_os_error());
    }
    let descriptor = i32::try_from(opened).map_err(io::Error::other)?;
    // SAFETY: the kernel has just made this descriptor for this process, and nobody else has it.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::{UnixListener, UnixStream};
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn a_process_that_ended_does_not_run() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().expect("cat is everywhere");
        let handle = ProcessHandle::of(child.id()).expect("it runs");
        assert!(handle.is_running());
        drop(child.stdin.take());
        child.wait().expect("it ends with its input");
        assert!(!handle.is_running());
    }

    #[test]
    fn the_process_at_the_other_end_of_a_socket_is_known_and_not_by_its_number() {
        let directory = tempfile::tempdir().expect("a writable directory for temporary files");
        let listener = UnixListener::bind(directory.path().join("socket")).expect("a free name");
        let _client = UnixStream::connect(directory.path().join("socket")).expect("it listens");
        let (served, _) = listener.accept().expect("somebody connected");
        let peer = ProcessHandle::of_peer(&served, std::process::id()).expect("this very process");
        assert!(peer.is_running());
    }
}
