//! Why a path cannot be used, and what mends it.

use std::fmt;
use std::fs;
use std::net::{IpAddr, Ipv4Addr};

use multiway_core::paths::{PathInfo, PathState};

use crate::netlink::RouteSocket;

/// `net.ipv4.conf.*.rp_filter`: a packet must arrive where its answer would leave (RFC 3704
/// section 2.2, Documentation/networking/ip-sysctl.rst).
const STRICT: u8 = 1;

/// An address of the documentation networks (RFC 5737): reached by default routes alone.
const ANYWHERE: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 1);

/// Something a path lacks; displayed with the command that mends it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Missing {
    /// The interface is down or has no carrier.
    Link {
        /// The interface.
        interface: String,
    },
    /// The interface has no global address.
    Address {
        /// The interface.
        interface: String,
    },
    /// No default route leaves by the interface.
    DefaultRoute {
        /// The interface.
        interface: String,
    },
    /// The kernel drops what arrives on the interface, since another interface has the better
    /// default route and reverse-path filtering is strict.
    ReturnPath {
        /// The interface.
        interface: String,
    },
}

/// What is missing for connections by the path; empty when nothing is.
///
/// Reads the kernel's settings of the calling thread's network namespace.
pub fn diagnose(path: &PathInfo) -> Vec<Missing> {
    let interface = path.interface.clone();
    match path.state {
        PathState::Down => vec![Missing::Link { interface }],
        PathState::NoAddress => vec![Missing::Address { interface }],
        PathState::NoDefaultRoute => vec![Missing::DefaultRoute { interface }],
        PathState::Up | PathState::Captive if lacks_return_path(path) => {
            vec![Missing::ReturnPath { interface }]
        }
        PathState::Up | PathState::Captive => Vec::new(),
    }
}

/// IPv4 only: the kernel has no such filter for IPv6.
fn lacks_return_path(path: &PathInfo) -> bool {
    let strictness = |interface: &str| -> Option<u8> {
        let setting = format!("/proc/sys/net/ipv4/conf/{interface}/rp_filter");
        fs::read_to_string(setting).ok()?.trim().parse().ok()
    };
    // The greater of the two is in force.
    if strictness("all").max(strictness(&path.interface)) != Some(STRICT) {
        return false;
    }
    let Ok(socket) = RouteSocket::open() else {
        return false;
    };
    // The filter looks up the answer by addresses only, so only a rule for the source address can
    // lead it to another interface than the one with the best default route.
    path.addresses.iter().filter(|address| address.is_ipv4()).any(|&address| {
        match socket.output_interface(address, IpAddr::V4(ANYWHERE)) {
            Ok(index) => index != Some(path.id.0),
            Err(error) => {
                tracing::debug!(%error, "the kernel does not say which way an answer would leave");
                false
            }
        }
    })
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Link { interface } => write!(
                f,
                "{interface} is down or not connected; connect it, or run: ip link set {interface} up"
            ),
            Self::Address { interface } => write!(
                f,
                "{interface} has no address; let the network manager connect it, or run: dhclient {interface}"
            ),
            Self::DefaultRoute { interface } => write!(
                f,
                "{interface} has no default route; run: \
                 ip route add default via GATEWAY dev {interface} metric 1000"
            ),
            Self::ReturnPath { interface } => write!(
                f,
                "answers that arrive on {interface} are dropped, because reverse-path filtering is strict \
                 and another interface has the better default route; run: \
                 sysctl -w net/ipv4/conf/{interface}/rp_filter=2"
            ),
        }
    }
}
