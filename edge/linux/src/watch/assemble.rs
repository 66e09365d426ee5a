//! From the kernel's tables, and what other programs know, to paths.

use std::collections::BTreeMap;
use std::net::IpAddr;

use multiway_core::paths::{NetworkIdentity, PathId, PathInfo, PathKind, PathState};

use super::kind;
use super::tables::{DefaultRoute, Link, Neighbour, Tables, hardware_address};

/// Devices that the tunnel modules make in every network namespace and that carry nothing.
const FALLBACK_TUNNELS: [&str; 9] =
    ["sit0", "tunl0", "ip6tnl0", "gre0", "gretap0", "erspan0", "ip_vti0", "ip6_vti0", "ip6gre0"];

/// What programs that manage networks know of one interface.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Hints {
    pub(crate) kind: Option<PathKind>,
    pub(crate) metered: Option<bool>,
    pub(crate) wifi_name: Option<String>,
    pub(crate) dns_servers: Vec<IpAddr>,
}

/// Hardware addresses of gateways, by interface and gateway.
///
/// They are kept while the gateway is, since the kernel forgets idle neighbours and a network must
/// not change its identity by being idle.
#[derive(Debug, Default)]
pub(crate) struct GatewayMemory(BTreeMap<(u32, IpAddr), Option<Vec<u8>>>);

impl GatewayMemory {
    /// Learns from the tables and forgets gateways and interfaces that are gone.
    pub(crate) fn update(&mut self, tables: &Tables) {
        let running: Vec<u32> =
            tables.links.iter().filter(|link| link.is_running).map(|link| link.index).collect();
        let current: Vec<(u32, IpAddr)> = tables
            .default_routes
            .iter()
            .filter_map(|route| Some((route.link, route.gateway?)))
            .filter(|(link, _)| running.contains(link))
            .collect();
        self.0.retain(|gateway, _| current.contains(gateway));
        for gateway in current {
            self.0.entry(gateway).or_default();
        }
        for neighbour in &tables.neighbours {
            if let Some(known) = self.0.get_mut(&(neighbour.link, neighbour.address)) {
                *known = Some(neighbour.hardware_address.clone());
            }
        }
    }

    /// True when the neighbour is a gateway whose hardware address was another or unknown.
    pub(crate) fn would_learn_from(&self, neighbour: &Neighbour) -> bool {
        self.0
            .get(&(neighbour.link, neighbour.address))
            .is_some_and(|known| known.as_ref() != Some(&neighbour.hardware_address))
    }

    /// The remembered hardware address of a gateway.
    pub(crate) fn get(&self, link: u32, gateway: IpAddr) -> Option<&[u8]> {
        self.0.get(&(link, gateway))?.as_deref()
    }
}

/// The paths that the tables show, ordered by identity.
pub(crate) fn paths(
    tables: &Tables,
    memory: &GatewayMemory,
    mut hints: impl FnMut(&Link) -> Hints,
) -> Vec<PathInfo> {
    let mut paths: Vec<PathInfo> = tables
        .links
        .iter()
        .filter(|link| {
            !link.is_loopback && !link.is_plumbing && !FALLBACK_TUNNELS.contains(&link.name.as_str())
        })
        .map(|link| path(link, tables, memory, hints(link)))
        .collect();
    paths.sort_by_key(|path| path.id);
    paths
}

fn path(link: &Link, tables: &Tables, memory: &GatewayMemory, hints: Hints) -> PathInfo {
    let addresses = addresses(link, tables);
    let routes = default_routes(link, tables, &addresses);
    let has_route = |address: &IpAddr| routes.iter().any(|route| route.is_ipv4 == address.is_ipv4());
    let state = if !link.is_running {
        PathState::Down
    } else if addresses.is_empty() {
        PathState::NoAddress
    } else if addresses.iter().any(has_route) {
        PathState::Up
    } else {
        PathState::NoDefaultRoute
    };

    let mut gateways = Vec::new();
    for gateway in routes.iter().filter_map(|route| route.gateway) {
        if !gateways.contains(&gateway) {
            gateways.push(gateway);
        }
    }
    let kind = hints.kind.unwrap_or_else(|| kind::of_link(link));
    PathInfo {
        id: PathId(link.index),
        interface: link.name.clone(),
        kind,
        metered: hints.metered.unwrap_or_else(|| kind::is_metered_by_default(kind)),
        network: identity(link, state, &gateways, memory, hints.wifi_name.as_deref()),
        addresses,
        gateways,
        dns_servers: hints.dns_servers,
        state,
    }
}

/// IPv4 first; within a family the order in which new connections should prefer them.
fn addresses(link: &Link, tables: &Tables) -> Vec<IpAddr> {
    let mut own: Vec<_> = tables.addresses.iter().filter(|address| address.link == link.index).collect();
    let has_fresh =
        |ipv4: bool| own.iter().any(|address| address.address.is_ipv4() == ipv4 && !address.is_deprecated);
    let (fresh_ipv4, fresh_ipv6) = (has_fresh(true), has_fresh(false));
    own.retain(|address| {
        !address.is_deprecated || !(if address.address.is_ipv4() { fresh_ipv4 } else { fresh_ipv6 })
    });
    own.sort_by_key(|address| {
        (address.address.is_ipv6(), is_unique_local(address.address), !address.is_temporary)
    });
    own.into_iter().map(|address| address.address).collect()
}

/// Addresses of fc00::/7 are valid within a site only (RFC 4193).
fn is_unique_local(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(ipv6) if ipv6.is_unique_local())
}

/// The link's default routes that a socket bound to it can come to, best first.
fn default_routes(link: &Link, tables: &Tables, addresses: &[IpAddr]) -> Vec<DefaultRoute> {
    let is_reached_by_rule = |route: &DefaultRoute| {
        tables.rules.iter().any(|rule| {
            rule.table == route.table
                && rule.is_ipv4 == route.is_ipv4
                && (rule.source.is_some() || rule.output.is_some())
                && rule.source.is_none_or(|source| addresses.iter().any(|address| source.contains(address)))
                && rule.output.as_ref().is_none_or(|output| *output == link.name)
        })
    };
    let mut routes: Vec<DefaultRoute> = tables
        .default_routes
        .iter()
        .filter(|route| route.link == link.index)
        .filter(|route| route.is_always_consulted() || is_reached_by_rule(route))
        .copied()
        .collect();
    routes.sort_by_key(|route| (!route.is_ipv4, route.metric));
    routes
}

/// The Wi-Fi's name where known, else the gateway with its hardware address as far as known: many
/// networks call their gateway 192.168.1.1.
fn identity(
    link: &Link,
    state: PathState,
    gateways: &[IpAddr],
    memory: &GatewayMemory,
    wifi_name: Option<&str>,
) -> NetworkIdentity {
    if state == PathState::Down {
        return NetworkIdentity::default();
    }
    if let Some(name) = wifi_name {
        return NetworkIdentity(format!("wifi {name}"));
    }
    let Some(&gateway) = gateways.first() else {
        return NetworkIdentity(format!("interface {}", link.name));
    };
    match memory.get(link.index, gateway) {
        Some(hardware) => NetworkIdentity(format!("gateway {gateway} {}", hardware_address(hardware))),
        None => NetworkIdentity(format!("gateway {gateway}")),
    }
}
