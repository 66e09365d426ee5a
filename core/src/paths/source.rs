//! Which of a path's addresses a connection leaves from.

use std::net::{IpAddr, Ipv6Addr};

use super::PathInfo;

/// Address families, for messages and choices.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl Family {
    /// The family that carries packets to `address`; an IPv4-mapped address is IPv4.
    pub fn of(address: IpAddr) -> Self {
        match address.to_canonical() {
            IpAddr::V4(_) => Self::V4,
            IpAddr::V6(_) => Self::V6,
        }
    }
}

impl std::fmt::Display for Family {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            Self::V4 => "IPv4",
            Self::V6 => "IPv6",
        })
    }
}

impl PathInfo {
    /// The address of this path to reach `remote` from; `None` when it has none of that family.
    ///
    /// Among IPv6 addresses one of the remote's scope is preferred (RFC 6724 section 5, rule 2):
    /// unique local addresses talk to unique local ones, global to global.
    pub fn source_for(&self, remote: IpAddr) -> Option<IpAddr> {
        let remote = remote.to_canonical();
        let mut same_family = self.addresses.iter().copied().filter(|a| Family::of(*a) == Family::of(remote));
        let IpAddr::V6(remote) = remote else { return same_family.next() };
        let candidates: Vec<IpAddr> = same_family.collect();
        let fits = |a: &&IpAddr| matches!(a, IpAddr::V6(a) if is_unique_local(a) == is_unique_local(&remote));
        candidates.iter().find(fits).or(candidates.first()).copied()
    }
}

fn is_unique_local(address: &Ipv6Addr) -> bool {
    address.octets()[0] & 0xfe == 0xfc
}

#[cfg(test)]
mod tests {
    use crate::paths::tests::path;

    fn source(addresses: &[&str], remote: &str) -> Option<String> {
        let mut info = path(1, "wlan0");
        info.addresses = addresses.iter().map(|a| a.parse().expect("test address")).collect();
        info.source_for(remote.parse().expect("test address")).map(|a| a.to_string())
    }

    #[test]
    fn the_family_of_the_remote_decides() {
        let both = ["192.0.2.7", "2001:db8::7"];
        assert_eq!(source(&both, "198.51.100.1").as_deref(), Some("192.0.2.7"));
        assert_eq!(source(&both, "::ffff:198.51.100.1").as_deref(), Some("192.0.2.7"));
        assert_eq!(source(&both, "2001:db8:1::1").as_deref(), Some("2001:db8::7"));
        assert_eq!(source(&["192.0.2.7"], "2001:db8:1::1"), None);
    }

    #[test]
    fn a_unique_local_address_is_for_unique_local_remotes() {
        let both = ["fd00::7", "2001:db8::7"];
        assert_eq!(source(&both, "2001:db8:1::1").as_deref(), Some("2001:db8::7"));
        assert_eq!(source(&both, "fd00::1").as_deref(), Some("fd00::7"));
        assert_eq!(source(&["fd00::7"], "2001:db8:1::1").as_deref(), Some("fd00::7"));
    }
}
