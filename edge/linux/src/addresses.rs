//! The addresses of this host.

use std::io;
use std::net::IpAddr;

use nix::ifaddrs::getifaddrs;

/// Every address of every interface, the loopback's included.
pub fn own() -> io::Result<Vec<IpAddr>> {
    let addresses = getifaddrs()?.filter_map(|interface| {
        let address = interface.address?;
        let v4 = address.as_sockaddr_in().map(|v4| IpAddr::from(v4.ip()));
        v4.or_else(|| address.as_sockaddr_in6().map(|v6| IpAddr::from(v6.ip())))
    });
    Ok(addresses.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_is_among_them() {
        assert!(own().unwrap().iter().any(IpAddr::is_loopback));
    }
}
