//! Putting a program under the daemon.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Asks the daemon to intercept the process that sends it, and what that process becomes.
///
/// The process is known by the credentials of the socket, not by anything in the request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RunRequest {
    /// Name of the program to be run, for status displays.
    pub program: String,
}

/// What the daemon did with a [`RunRequest`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "result", rename_all = "kebab-case")]
pub enum RunResponse {
    /// The caller is in a control group of its own whose connections are intercepted.
    Intercepted {
        /// The control group's path below the mount point.
        cgroup: String,
    },
    /// Interception is not possible; the proxy is.
    ProxyOnly {
        /// Where HTTP proxy and SOCKS5 are offered.
        #[schema(value_type = String)]
        proxy: SocketAddr,
        /// Why interception is not possible.
        reason: String,
    },
}

/// Why a request to the control socket failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Problem {
    /// For programs.
    pub code: ProblemCode,
    /// For people: what failed and what to do.
    pub message: String,
}

/// The kinds of [`Problem`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ProblemCode {
    /// The caller may not ask for this.
    Forbidden,
    /// The request is not understood.
    BadRequest,
    /// The daemon failed to do what it was asked.
    Failed,
}
