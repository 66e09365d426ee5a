//! DNS servers per link as systemd-resolved and systemd-networkd write them down.

use std::fs;
use std::net::IpAddr;
use std::path::Path;

/// Files named by link index, and the key of the servers in each.
const SOURCES: [(&str, &str); 2] =
    [("/run/systemd/resolve/netif", "SERVERS="), ("/run/systemd/netif/links", "DNS=")];

/// Servers known for the link of this index; empty when none are.
pub(crate) fn dns_servers(index: u32) -> Vec<IpAddr> {
    SOURCES
        .iter()
        .map(|(directory, key)| {
            fs::read_to_string(Path::new(directory).join(index.to_string()))
                .map(|text| parse(&text, key))
                .unwrap_or_default()
        })
        .find(|servers| !servers.is_empty())
        .unwrap_or_default()
}

/// Entries are `ADDRESS[:PORT][%INTERFACE][#NAME]`; those with a port of their own are left out,
/// because queries go to port 53.
fn parse(text: &str, key: &str) -> Vec<IpAddr> {
    text.lines()
        .filter_map(|line| line.strip_prefix(key))
        .flat_map(str::split_whitespace)
        .filter_map(|entry| {
            let address = entry.split(['#', '%']).next()?;
            address.parse().ok()
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_servers_are_read_and_decorations_dropped() {
        let text = "# This is private data. Do not parse.\nLLMNR=yes\n\
                    SERVERS=192.0.2.1 2001:db8::1#dns.example fe80::1%3 192.0.2.2:5353 junk\nDOMAINS=example\n";
        let servers: Vec<IpAddr> =
            ["192.0.2.1", "2001:db8::1", "fe80::1"].map(|text| text.parse().unwrap()).to_vec();
        assert_eq!(parse(text, "SERVERS="), servers);
        assert_eq!(parse("OPER_STATE=routable\nDNS=\n", "DNS="), Vec::<IpAddr>::new());
    }
}
