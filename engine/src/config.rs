//! The configuration file: read once, checked completely, errors named by line and column.
//!
//! A [`Config`] that exists is valid. [`Config::default`] is what an empty file means, so a daemon
//! needs no file at all.

mod file;

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::ops::Range;
use std::path::{Path, PathBuf};

use crate::paths::PortalProbe;
use multiway_core::bond::scheduler::SchedulerKind;
use multiway_core::bond::{DetectorKind, Policy};
use multiway_core::paths::OracleConfig;
pub use multiway_core::paths::{InterfacePattern, PathKind, Permission, Preference};
use thiserror::Error;

pub(crate) use file::fault;
pub use file::parse;

/// Where HTTP proxy and SOCKS5 are offered unless configured otherwise.
pub const DEFAULT_LISTEN: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 7070);

/// `M`: most bytes held for one flow; FLEETY section 4.2 bounds the buffer by min{M, sum(R) * tau}.
/// 64 MiB hold 8 s (its tau) of 64 Mbit/s.
pub const DEFAULT_FLOW_BUFFER: u64 = 64 << 20;

/// Most bytes held for all flows together: a quarter of the memory of a small gateway.
pub const DEFAULT_TOTAL_BUFFER: u64 = 256 << 20;

/// Buffers below this cannot keep two paths busy.
pub const LEAST_FLOW_BUFFER: u64 = 1 << 20;

/// Everything a daemon can be told.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// Where HTTP proxy and SOCKS5 are offered.
    pub listen: SocketAddr,
    /// The control socket.
    pub control: ControlConfig,
    /// How metered paths are used.
    pub preference: Preference,
    /// The flow-feature database; the built-in rules when absent.
    pub features: Option<PathBuf>,
    /// Where measurements are kept between runs; the daemon's starter chooses when absent.
    pub history: Option<PathBuf>,
    /// Which interfaces are paths.
    pub paths: PathsConfig,
    /// Whose connections are intercepted.
    pub intercept: InterceptConfig,
    /// Name resolution.
    pub dns: DnsConfig,
    /// Memory bounds.
    pub buffers: BufferConfig,
    /// What goes through the relay that was joined.
    pub bond: BondConfig,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            listen: DEFAULT_LISTEN,
            control: ControlConfig::default(),
            preference: Preference::default(),
            features: None,
            history: None,
            paths: PathsConfig::default(),
            intercept: InterceptConfig::default(),
            dns: DnsConfig::default(),
            buffers: BufferConfig::default(),
            bond: BondConfig::default(),
        }
    }
}

impl Config {
    /// Reads and checks `file`.
    pub fn load(file: &Path) -> Result<Self, ConfigError> {
        let text = std::fs::read_to_string(file)
            .map_err(|error| ConfigError::Unreadable { file: file.to_owned(), error })?;
        parse(&text).map_err(|fault| ConfigError::Invalid { file: file.to_owned(), text, fault })
    }
}

/// The control socket and who may use it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ControlConfig {
    /// Where it is; the usual place when absent.
    pub socket: Option<PathBuf>,
    /// A group whose members may do everything that the daemon's own user may.
    pub group: Option<String>,
    /// Lets every local user run programs under the daemon; status stays with owner and group.
    pub everyone_may_run: bool,
}

/// Which interfaces are paths.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PathsConfig {
    /// Which interfaces may carry anything.
    pub permission: Permission,
    /// Corrections to what is found out about an interface.
    pub overrides: BTreeMap<String, PathOverride>,
    /// Whom to ask over each path whether a captive portal stands before it; nobody when absent.
    pub portal_probe: Option<PortalProbe>,
}

/// Corrections to what is found out about an interface.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PathOverride {
    /// The sort of link.
    pub kind: Option<PathKind>,
    /// Whether traffic on it costs money.
    pub metered: Option<bool>,
    /// DNS servers to ask over it.
    pub dns: Vec<IpAddr>,
}

/// Whose connections are intercepted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InterceptConfig {
    /// False to offer the proxies only, whatever the kernel would let the daemon do.
    pub enabled: bool,
    /// Names or numbers of users.
    pub users: Vec<String>,
    /// Names or numbers of groups.
    pub groups: Vec<String>,
    /// Control groups, as paths below the mount point.
    pub cgroups: Vec<String>,
}

impl Default for InterceptConfig {
    fn default() -> Self {
        Self { enabled: true, users: Vec::new(), groups: Vec::new(), cgroups: Vec::new() }
    }
}

impl InterceptConfig {
    /// Whether anyone is to be intercepted from the start.
    pub fn is_empty(&self) -> bool {
        self.users.is_empty() && self.groups.is_empty() && self.cgroups.is_empty()
    }
}

/// Name resolution.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DnsConfig {
    /// Servers to ask over paths that name none themselves; the system's when empty.
    pub upstreams: Vec<IpAddr>,
}

/// What goes through the relay that was joined, and how.
#[derive(Debug, Clone, PartialEq)]
pub struct BondConfig {
    /// False to leave the relay alone.
    pub enabled: bool,
    /// How paths are used.
    pub mode: Policy,
    /// Which subflow the next bytes take; the mode's own choice when absent.
    pub scheduler: Option<SchedulerKind>,
    /// How a path that fails is noticed.
    pub detector: DetectorKind,
    /// What the oracle computes with, beside either detector.
    pub oracle: OracleConfig,
    /// Where the invite is kept that was accepted; the daemon's starter chooses when absent.
    pub membership: Option<PathBuf>,
}

impl Default for BondConfig {
    fn default() -> Self {
        Self {
            enabled: true,
            mode: Policy::Handover,
            scheduler: None,
            detector: DetectorKind::default(),
            oracle: OracleConfig::default(),
            membership: None,
        }
    }
}

/// Memory bounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BufferConfig {
    /// Most bytes held for one flow.
    pub flow_bytes: u64,
    /// Most bytes held for all flows together.
    pub total_bytes: u64,
}

impl Default for BufferConfig {
    fn default() -> Self {
        Self { flow_bytes: DEFAULT_FLOW_BUFFER, total_bytes: DEFAULT_TOTAL_BUFFER }
    }
}

/// What is wrong with a configuration text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// Line of the fault, from 1.
    pub line: usize,
    /// Column of the fault in characters, from 1.
    pub column: usize,
    /// The fault's bytes in the text.
    pub span: Range<usize>,
    /// What is wrong.
    pub message: String,
}

/// Why there is no configuration.
#[derive(Debug, Error)]
pub enum ConfigError {
    /// The file could not be read.
    #[error("cannot read the configuration file {}: {error}", file.display())]
    Unreadable {
        /// The file.
        file: PathBuf,
        /// The kernel's reason.
        error: std::io::Error,
    },
    /// The file's content is wrong.
    #[error("{}:{}:{}: {}", file.display(), fault.line, fault.column, fault.message)]
    Invalid {
        /// The file.
        file: PathBuf,
        /// Its content.
        text: String,
        /// What is wrong with it, and where.
        fault: Fault,
    },
}

#[cfg(test)]
mod tests;
