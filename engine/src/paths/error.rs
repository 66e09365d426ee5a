use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use multiway_core::paths::{Family, PathId, PathState};
use multiway_edge::watch::WatchError;
use thiserror::Error;

/// Why there is no path table.
#[derive(Debug, Error)]
pub enum PathTableError {
    /// The kernel did not list its interfaces.
    #[error(transparent)]
    Watch(#[from] WatchError),
    /// An interface was asked for by name and is not there.
    #[error("there is no network interface {name:?}; there are: {}", list(.present))]
    UnknownInterface {
        /// The name asked for.
        name: String,
        /// Interfaces there are.
        present: Vec<String>,
    },
}

fn list(names: &[String]) -> String {
    if names.is_empty() { "none but the loopback".to_owned() } else { names.join(", ") }
}

/// Why a socket on a path was not to be had.
#[derive(Debug, Error)]
pub enum ConnectError {
    /// The path is gone, or never was.
    #[error("{0} does not exist any more")]
    UnknownPath(PathId),
    /// The owner does not let Multiway use it.
    #[error("{interface} may not be used: the configuration denies it")]
    Denied {
        /// The interface.
        interface: String,
    },
    /// The interface is down or has no address at all.
    #[error("{interface} cannot be used now: {}", describe(*.state))]
    NotUsable {
        /// The interface.
        interface: String,
        /// What is wrong with it.
        state: PathState,
    },
    /// The path has no address of the remote's family.
    #[error("{interface} has no {family} address to reach {remote} from")]
    NoAddress {
        /// The interface.
        interface: String,
        /// The family that is missing.
        family: Family,
        /// Where the connection was to go.
        remote: SocketAddr,
    },
    /// The remote is no host beyond the path: unspecified, loopback, multicast or broadcast. Filters of
    /// advertisements answer so, and a path would carry the packets to a gateway that drops them.
    #[error("{remote} is no host that {interface} could lead to")]
    NoHost {
        /// The interface.
        interface: String,
        /// Where the connection was to go.
        remote: SocketAddr,
    },
    /// No socket could be made and bound to the path.
    #[error("no socket could be bound to {interface}: {source}")]
    Bind {
        /// The interface.
        interface: String,
        /// The kernel's word.
        source: io::Error,
    },
    /// The connection failed.
    #[error("{remote} could not be reached over {interface}: {source}")]
    Connect {
        /// The interface.
        interface: String,
        /// Where the connection was to go.
        remote: SocketAddr,
        /// The kernel's word.
        source: io::Error,
    },
    /// The remote did not answer in time.
    #[error("{remote} did not answer over {interface} within {timeout:?}")]
    TimedOut {
        /// The interface.
        interface: String,
        /// Where the connection was to go.
        remote: SocketAddr,
        /// How long was waited.
        timeout: Duration,
    },
}

impl ConnectError {
    /// True when the remote itself said no, so that the path is not to blame.
    pub fn is_refusal(&self) -> bool {
        matches!(self, Self::Connect { source, .. } if source.kind() == io::ErrorKind::ConnectionRefused)
    }
}

impl From<ConnectError> for io::Error {
    fn from(error: ConnectError) -> Self {
        let kind = match &error {
            ConnectError::UnknownPath(_) => io::ErrorKind::NotFound,
            ConnectError::Denied { .. } => io::ErrorKind::PermissionDenied,
            ConnectError::NotUsable { .. } => io::ErrorKind::NetworkDown,
            ConnectError::NoAddress { .. } | ConnectError::NoHost { .. } => io::ErrorKind::AddrNotAvailable,
            ConnectError::Bind { source, .. } | ConnectError::Connect { source, .. } => source.kind(),
            ConnectError::TimedOut { .. } => io::ErrorKind::TimedOut,
        };
        Self::new(kind, error)
    }
}

fn describe(state: PathState) -> &'static str {
    match state {
        PathState::Up => "it is up",
        PathState::Down => "it is down or has no carrier",
        PathState::NoAddress => "it has no address",
        PathState::NoDefaultRoute => "it has no default route",
        PathState::Captive => "a captive portal wants a sign-in first",
    }
}
