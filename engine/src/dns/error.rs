//! Names that have no addresses, and why.

use multiway_core::flow::names::{HostName, InvalidHostName};
use multiway_core::paths::PathId;

/// Why a name has no addresses on a path.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ResolveError {
    /// The text is neither an address nor a name.
    #[error(transparent)]
    InvalidName(#[from] InvalidHostName),
    /// The path is gone or not permitted.
    #[error("cannot look up {name}: {path} cannot be used now")]
    PathUnusable {
        /// The name asked for.
        name: HostName,
        /// The path asked on.
        path: PathId,
    },
    /// The servers say that the name does not exist.
    #[error("{name} does not exist; check the spelling")]
    NoSuchName {
        /// The name asked for.
        name: HostName,
    },
    /// The name exists and has no address that the path could reach.
    #[error("{name} has no address that can be reached over {path}")]
    NoAddresses {
        /// The name asked for.
        name: HostName,
        /// The path asked on.
        path: PathId,
    },
    /// No server answered.
    #[error("cannot look up {name} over {path}: {reason}")]
    Failed {
        /// The name asked for.
        name: HostName,
        /// The path asked on.
        path: PathId,
        /// What went wrong.
        reason: String,
    },
}
