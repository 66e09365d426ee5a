use std::fmt;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

/// Names a path within one process; for a local interface it is the kernel's interface index.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PathId(pub u32);

impl fmt::Display for PathId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "path {}", self.0)
    }
}

/// The sort of link a path leaves the device by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PathKind {
    /// IEEE 802.11.
    Wifi,
    /// A cellular modem.
    Cellular,
    /// A wired network.
    Ethernet,
    /// Another device's network over USB or Bluetooth.
    Tether,
    /// None of the above, or unknown.
    Other,
}

/// Whether a path can be used, and if not, what is missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PathState {
    /// Connections may be opened.
    Up,
    /// The interface is administratively down or has no carrier.
    Down,
    /// The interface is up and has no global address.
    NoAddress,
    /// The interface has an address and no default route of its own.
    NoDefaultRoute,
    /// A captive portal stands before the network.
    Captive,
}

/// Which network an interface is joined to, for instance a gateway's address or a Wi-Fi name.
///
/// History is kept under it, so that a device which returns to a network knows it again.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
pub struct NetworkIdentity(pub String);

/// What is known of a path apart from its measurements.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PathInfo {
    /// The path's name within this process.
    pub id: PathId,
    /// The interface's name, for instance `wlan0`.
    pub interface: String,
    /// The sort of link.
    pub kind: PathKind,
    /// True when traffic on it costs money.
    pub metered: bool,
    /// Global addresses of the interface, IPv4 before IPv6.
    pub addresses: Vec<IpAddr>,
    /// Next hops of its default routes.
    pub gateways: Vec<IpAddr>,
    /// DNS servers known for this interface; empty when only the system's are known.
    pub dns_servers: Vec<IpAddr>,
    /// The network it is joined to.
    pub network: NetworkIdentity,
    /// Whether it can be used.
    pub state: PathState,
}
