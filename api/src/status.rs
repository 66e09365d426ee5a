//! What the daemon sees and does.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{Event, RelayStatus};

/// Everything the daemon tells of itself.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Status {
    /// Version of the daemon.
    pub version: String,
    /// Seconds since the daemon started.
    pub uptime_seconds: u64,
    /// Every interface that could be a path, usable or not.
    pub paths: Vec<PathStatus>,
    /// Flows in progress, oldest first.
    pub flows: Vec<FlowStatus>,
    /// Relays that this device joined, and what goes through them.
    #[serde(default)]
    pub relays: Vec<RelayStatus>,
    /// Where the daemon accepts connections and queries.
    pub listeners: Vec<Listener>,
    /// Whose connections are intercepted.
    pub interception: Interception,
    /// What happened lately, oldest first.
    pub events: Vec<Event>,
}

/// One interface seen as a path.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PathStatus {
    /// The interface's name, for instance `wlan0`.
    pub interface: String,
    /// The sort of link.
    pub kind: PathKind,
    /// Global addresses, IPv4 before IPv6.
    #[schema(value_type = Vec<String>)]
    pub addresses: Vec<IpAddr>,
    /// Next hops of its default routes.
    #[schema(value_type = Vec<String>)]
    pub gateways: Vec<IpAddr>,
    /// True when traffic on it costs money.
    pub metered: bool,
    /// Whether connections may be opened on it.
    pub state: PathState,
    /// What keeps it from being used; absent when nothing does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub missing: Option<Missing>,
    /// Smoothed round-trip time; absent when never measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rtt_ms: Option<f64>,
    /// Mean deviation of the round-trip time; absent when never measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub jitter_ms: Option<f64>,
    /// Estimated rate at which one connection receives; absent when never measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub throughput_bits_per_second: Option<u64>,
    /// Share of segments lost, in parts per million; absent when never measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss_ppm: Option<u32>,
    /// Payload bytes moved over it since midnight UTC, as far as this daemon saw them.
    pub bytes_today: u64,
}

/// The sort of link a path leaves the device by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
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

impl fmt::Display for PathKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Wifi => "wifi",
            Self::Cellular => "cellular",
            Self::Ethernet => "ethernet",
            Self::Tether => "tether",
            Self::Other => "other",
        })
    }
}

/// Whether a path can be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
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
    /// The configuration forbids it.
    Denied,
}

impl fmt::Display for PathState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Up => "up",
            Self::Down => "down",
            Self::NoAddress => "no address",
            Self::NoDefaultRoute => "no default route",
            Self::Captive => "captive portal",
            Self::Denied => "denied",
        })
    }
}

/// Why an interface is no usable path, and how to change that.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Missing {
    /// What is missing, in a sentence.
    pub what: String,
    /// A command, or else an action, that mends it.
    pub mend: String,
}

/// One connection that the daemon carries.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct FlowStatus {
    /// Distinguishes the flow from others of this daemon.
    pub id: u64,
    /// Name of the program whose connection it is; absent when it cannot be known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub program: Option<String>,
    /// Where it goes, with the name when it is known: `example.org:80`.
    pub destination: String,
    /// What is done with it.
    pub treatment: Treatment,
    /// Why it got this treatment, in a sentence.
    pub why: String,
    /// Seconds since it was accepted.
    pub age_seconds: f64,
    /// Payload bytes that reached the program.
    pub bytes: u64,
    /// The parts of `bytes` that came over each path.
    pub shares: Vec<PathShare>,
}

/// What one path contributed to a flow.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PathShare {
    /// The path's interface.
    pub interface: String,
    /// Payload bytes that came over it.
    pub bytes: u64,
    /// Its part of the whole, from 0 to 1.
    pub share: f64,
}

/// What is done with a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Treatment {
    /// Its first bytes are awaited.
    Classifying,
    /// Byte ranges of one object are fetched over several paths.
    Split,
    /// A relay joins several paths into one stream.
    Bond,
    /// The kernel's MPTCP carries it.
    Mptcp,
    /// One good path carries all of it.
    Steer,
}

impl fmt::Display for Treatment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Classifying => "classifying",
            Self::Split => "split",
            Self::Bond => "bond",
            Self::Mptcp => "mptcp",
            Self::Steer => "steer",
        })
    }
}

/// A socket that the daemon listens on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Listener {
    /// What it is for.
    pub kind: ListenerKind,
    /// Its address.
    #[schema(value_type = String)]
    pub address: SocketAddr,
}

/// What a listening socket is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ListenerKind {
    /// HTTP proxy and SOCKS5 on one port.
    Proxy,
    /// Intercepted TCP connections.
    Transparent,
    /// Intercepted DNS queries.
    Dns,
}

impl fmt::Display for ListenerKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Proxy => "http+socks5",
            Self::Transparent => "transparent",
            Self::Dns => "dns",
        })
    }
}

/// Whether, and whose, connections are intercepted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Interception {
    /// True when the kernel hands over connections.
    pub active: bool,
    /// Why not, when it is not active.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Users whose connections are intercepted.
    pub users: Vec<String>,
    /// Groups whose connections are intercepted.
    pub groups: Vec<String>,
    /// Control groups whose connections are intercepted, those of `multiway run` included.
    pub cgroups: Vec<String>,
}
