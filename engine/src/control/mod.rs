//! The control socket: HTTP on a Unix socket, by which the command line talks to the daemon.
//!
//! Who may ask is decided by who may connect. The socket's mode admits the daemon's own user, and
//! the members of one group when one is configured. When every local user may run programs under
//! the daemon anyone can connect, and the kernel's word on the peer (`SO_PEERCRED`) decides:
//! status and events show everyone's connections and stay with root, the daemon's user and the
//! configured group.

mod access;
mod doors;
mod server;
mod socket;

use std::path::PathBuf;

use multiway_api::{Event, RunResponse, Status};
use thiserror::Error;
use tokio::sync::broadcast;

pub use access::{Access, Caller};
pub use server::serve;
pub use socket::{ControlError, ControlSocket};

/// Names the control socket, for daemon and command line alike.
pub const SOCKET_VARIABLE: &str = "MULTIWAY_CONTROL";

/// The control socket of a daemon that root runs.
const SYSTEM_SOCKET: &str = "/run/multiway/control.sock";

/// Where the control socket is unless configured otherwise: `$MULTIWAY_CONTROL`, else for root
/// `/run/multiway/control.sock`, else `$XDG_RUNTIME_DIR/multiway.sock`.
///
/// A user without runtime directory (not logged in by a session manager) has root's, so that they
/// find root's daemon.
pub fn default_socket() -> PathBuf {
    let given = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    if let Some(socket) = given(SOCKET_VARIABLE) {
        return socket;
    }
    if access::own_user() != Some(0)
        && let Some(directory) = given("XDG_RUNTIME_DIR")
    {
        return directory.join("multiway.sock");
    }
    PathBuf::from(SYSTEM_SOCKET)
}

/// What the control socket gives access to.
pub trait Backend: Send + Sync + 'static {
    /// Everything the daemon tells of itself.
    fn status(&self) -> Status;

    /// Intercepts `caller` and what it becomes. It may block: it changes the firewall.
    fn adopt(&self, caller: Caller, program: &str) -> Result<RunResponse, AdoptError>;

    /// Events from now on.
    fn events(&self) -> broadcast::Receiver<Event>;
}

/// Why a program cannot be put under the daemon.
#[derive(Debug, Error)]
pub enum AdoptError {
    /// The kernel does not tell which process is calling.
    #[error("the kernel does not tell which process asks; is it in another PID namespace than the daemon?")]
    UnknownProcess,
    /// The process is not the caller's.
    #[error("process {pid} ended while it asked; try again")]
    Gone {
        /// The process that connected.
        pid: u32,
    },
    /// The kernel refused.
    #[error("the program cannot be put under the daemon: {reason}")]
    Refused {
        /// Why.
        reason: String,
    },
}

#[cfg(test)]
mod tests;
