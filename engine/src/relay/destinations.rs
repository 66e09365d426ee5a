//! Where streams may lead: to everybody's internet, and to nothing that is private to the relay.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use thiserror::Error;

/// Mail between servers: an open way to send spam gets the relay's address on every block list.
const SMTP: u16 = 25;

/// A range of addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Network {
    address: IpAddr,
    length: u8,
}

/// Why a text is no range of addresses.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("`{0}` is no range of addresses, such as 10.0.0.0/8, 2001:db8::/32 or 192.0.2.1")]
pub struct NetworkError(String);

impl Network {
    /// Whether `address` lies in it; an IPv4 address within IPv6 counts as what it is.
    pub fn contains(&self, address: IpAddr) -> bool {
        match (self.address, address.to_canonical()) {
            (IpAddr::V4(own), IpAddr::V4(other)) => {
                let shift = 32 - u32::from(self.length);
                u64::from(own.to_bits()) >> shift == u64::from(other.to_bits()) >> shift
            }
            (IpAddr::V6(own), IpAddr::V6(other)) => {
                let shift = 128 - u32::from(self.length);
                own.to_bits().checked_shr(shift) == other.to_bits().checked_shr(shift)
            }
            _ => false,
        }
    }
}

impl FromStr for Network {
    type Err = NetworkError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong = || NetworkError(text.to_owned());
        let (address, length) = match text.split_once('/') {
            Some((address, length)) => (address, Some(length.parse::<u8>().map_err(|_| wrong())?)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| wrong())?;
        let most = if address.is_ipv4() { 32 } else { 128 };
        let length = length.unwrap_or(most);
        if length > most { Err(wrong()) } else { Ok(Self { address, length }) }
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.length)
    }
}

/// Which destinations a relay connects to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Destinations {
    /// Exceptions from what is denied by default; the relay's own addresses need one too.
    pub allow: Vec<Network>,
    /// Never these, whatever is allowed.
    pub deny: Vec<Network>,
    /// Never these ports.
    pub deny_ports: Vec<u16>,
}

impl Default for Destinations {
    fn default() -> Self {
        Self { allow: Vec::new(), deny: Vec::new(), deny_ports: vec![SMTP] }
    }
}

impl Destinations {
    /// Whether a stream may lead to `address`; `own` are the relay's addresses.
    pub fn permit(&self, address: IpAddr, port: u16, own: &[IpAddr]) -> bool {
        let address = address.to_canonical();
        let within = |list: &[Network]| list.iter().any(|network| network.contains(address));
        if port == 0 || self.deny_ports.contains(&port) || within(&self.deny) {
            return false;
        }
        within(&self.allow) || (is_public(address) && !own.contains(&address))
    }
}

/// Whether an address is everybody's: none that the registries of special purposes list as not globally
/// reachable (RFC 6890 and its successors), and no group of hosts.
pub fn is_public(address: IpAddr) -> bool {
    match address.to_canonical() {
        IpAddr::V4(address) => is_public_v4(address),
        IpAddr::V6(address) => is_public_v6(address),
    }
}

fn is_public_v4(address: Ipv4Addr) -> bool {
    let [a, b, c, _] = address.octets();
    let is_special = a == 0
        || address.is_loopback()
        || address.is_private()
        || address.is_link_local()
        // Shared between providers and their customers (RFC 6598).
        || (a == 100 && b & 0xc0 == 64)
        || (a == 192 && b == 0 && c == 0)
        || address.is_documentation()
        // Benchmarks (RFC 2544).
        || (a == 198 && b & 0xfe == 18)
        // Groups, reserved, and broadcast.
        || a >= 224;
    !is_special
}

fn is_public_v6(address: Ipv6Addr) -> bool {
    let segments = address.segments();
    // Translated IPv4 (RFC 6052), which leads to an IPv4 address.
    if segments[..6] == [0x64, 0xff9b, 0, 0, 0, 0] {
        let low = u32::from(segments[6]) << 16 | u32::from(segments[7]);
        return is_public_v4(Ipv4Addr::from_bits(low));
    }
    // 6to4 (RFC 3056) carries an IPv4 address too.
    if segments[0] == 0x2002 {
        return is_public_v4(Ipv4Addr::from_bits(u32::from(segments[1]) << 16 | u32::from(segments[2])));
    }
    // Only this part of the space is given out for global unicast (RFC 4291 section 2.4).
    let is_global_unicast = segments[0] & 0xe000 == 0x2000;
    let is_documentation = (segments[0] == 0x2001 && segments[1] == 0xdb8) || segments[0] & 0xfff0 == 0x3ff0;
    // Protocol assignments (RFC 2928), Teredo among them.
    let is_protocol = segments[0] == 0x2001 && segments[1] < 0x200;
    is_global_unicast && !is_documentation && !is_protocol
}

#[cfg(test)]
mod tests {
    use super::*;

    fn destinations(allow: &[&str], deny: &[&str]) -> Destinations {
        let networks = |list: &[&str]| list.iter().map(|text| text.parse().unwrap()).collect();
        Destinations { allow: networks(allow), deny: networks(deny), ..Destinations::default() }
    }

    fn permits(destinations: &Destinations, address: &str) -> bool {
        destinations.permit(address.parse().unwrap(), 443, &["93.184.216.9".parse().unwrap()])
    }

    #[test]
    fn the_internet_is_permitted_and_nothing_private() {
        let default = Destinations::default();
        for public in [
            "1.1.1.1",
            "93.184.216.1",
            "100.128.0.1",
            "198.20.0.1",
            "2606:2800:220:1::1",
            "2a00::1",
            "64:ff9b::101:101",
        ] {
            assert!(permits(&default, public), "{public}");
        }
        for private in [
            "0.0.0.0",
            "0.1.2.3",
            "127.0.0.1",
            "10.1.2.3",
            "172.16.0.1",
            "172.31.255.255",
            "192.168.1.1",
            "169.254.169.254",
            "100.64.0.1",
            "192.0.0.8",
            "198.18.0.1",
            "203.0.113.5",
            "224.0.0.1",
            "255.255.255.255",
            "240.0.0.1",
            "::",
            "::1",
            "::ffff:127.0.0.1",
            "::ffff:10.0.0.1",
            "fe80::1",
            "fd00::1",
            "ff02::1",
            "2001:db8::1",
            "3fff::1",
            "64:ff9b::7f00:1",
            "64:ff9b::a00:1",
            "2002:7f00:1::",
            "2001::1",
            "100::1",
            "::7f00:1",
        ] {
            assert!(!permits(&default, private), "{private}");
        }
        assert!(!permits(&default, "93.184.216.9"), "the relay itself");
        assert!(!default.permit("1.1.1.1".parse().unwrap(), 25, &[]), "mail");
        assert!(!default.permit("1.1.1.1".parse().unwrap(), 0, &[]));
    }

    #[test]
    fn lists_make_exceptions_and_denying_wins() {
        let lists = destinations(
            &["10.1.0.0/16", "93.184.216.9", "fd00:1::/32"],
            &["10.1.2.0/24", "1.0.0.0/8", "2a00::/16"],
        );
        for (address, expected) in [
            ("10.1.3.4", true),
            ("10.1.2.4", false),
            ("10.2.0.1", false),
            ("93.184.216.9", true),
            ("1.1.1.1", false),
            ("::ffff:10.1.3.4", true),
            ("fd00:1::5", true),
            ("fd00:2::5", false),
            ("2a00::1", false),
            ("2a01::1", true),
        ] {
            assert_eq!(permits(&lists, address), expected, "{address}");
        }
        let all = destinations(&["0.0.0.0/0", "::/0"], &[]);
        assert!(permits(&all, "127.0.0.1") && permits(&all, "::1"));
    }

    #[test]
    fn ranges_are_read_and_wrong_ones_refused() {
        assert_eq!("10.0.0.0/8".parse::<Network>().unwrap().to_string(), "10.0.0.0/8");
        assert_eq!("::1".parse::<Network>().unwrap().to_string(), "::1/128");
        for wrong in ["", "10.0.0.0/", "10.0.0.0/33", "::/129", "example.org", "10.0.0.0/-1", "1.2.3/8"] {
            assert!(wrong.parse::<Network>().is_err(), "{wrong}");
        }
    }
}
