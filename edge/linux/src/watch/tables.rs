//! The kernel's tables, reduced to what paths are made of.

use std::io;
use std::net::IpAddr;

use netlink_packet_route::address::{AddressAttribute, AddressFlags, AddressMessage, AddressScope};
use netlink_packet_route::link::{
    InfoKind, InfoPortKind, LinkAttribute, LinkFlags, LinkInfo, LinkLayerType, LinkMessage,
};
use netlink_packet_route::neighbour::{NeighbourAddress, NeighbourAttribute, NeighbourMessage};
use netlink_packet_route::route::{RouteAddress, RouteAttribute, RouteMessage, RouteType, RouteVia};
use netlink_packet_route::rule::{RuleAction, RuleAttribute, RuleMessage};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};

use crate::netlink::RouteSocket;

/// Routing tables every lookup ends in (`RT_TABLE_MAIN`, `RT_TABLE_DEFAULT`, rtnetlink.h).
const ALWAYS_CONSULTED: [u32; 2] = [254, 253];

/// A network interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Link {
    pub(crate) index: u32,
    pub(crate) name: String,
    pub(crate) layer: LinkLayerType,
    pub(crate) hardware_address: Vec<u8>,
    /// Administratively up, with carrier, and past any handshake of the link layer.
    pub(crate) is_running: bool,
    pub(crate) is_loopback: bool,
    /// No network of its own: part of a bridge or bond, which carries its addresses instead, or a
    /// queue of traffic control.
    pub(crate) is_plumbing: bool,
}

/// A global address of an interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Address {
    pub(crate) link: u32,
    pub(crate) address: IpAddr,
    /// Not to be used for new connections while another is there (RFC 4862 section 5.5.4).
    pub(crate) is_deprecated: bool,
    /// A privacy address, preferred for outgoing connections (RFC 8981, RFC 6724 rule 7).
    pub(crate) is_temporary: bool,
}

/// One next hop of a default route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DefaultRoute {
    pub(crate) link: u32,
    pub(crate) is_ipv4: bool,
    /// `None` on links without next hops, for instance point to point.
    pub(crate) gateway: Option<IpAddr>,
    pub(crate) metric: u32,
    pub(crate) table: u32,
}

impl DefaultRoute {
    /// True when a lookup for any socket bound to the link comes to the route's table.
    pub(crate) fn is_always_consulted(&self) -> bool {
        ALWAYS_CONSULTED.contains(&self.table)
    }
}

/// A policy rule that sends lookups to a table by source address or output interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Rule {
    pub(crate) is_ipv4: bool,
    pub(crate) table: u32,
    pub(crate) source: Option<ipnet::IpNet>,
    pub(crate) output: Option<String>,
}

/// A resolved neighbour.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Neighbour {
    pub(crate) link: u32,
    pub(crate) address: IpAddr,
    pub(crate) hardware_address: Vec<u8>,
}

/// Everything the kernel says that bears on paths, of one moment as far as it can.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Tables {
    pub(crate) links: Vec<Link>,
    pub(crate) addresses: Vec<Address>,
    pub(crate) default_routes: Vec<DefaultRoute>,
    pub(crate) rules: Vec<Rule>,
    pub(crate) neighbours: Vec<Neighbour>,
}

impl Tables {
    /// Reads all tables of the calling thread's network namespace.
    pub(crate) fn read(socket: &RouteSocket) -> io::Result<Self> {
        let mut tables = Self::default();
        for request in [
            RouteNetlinkMessage::GetLink(LinkMessage::default()),
            RouteNetlinkMessage::GetAddress(AddressMessage::default()),
            RouteNetlinkMessage::GetRoute(RouteMessage::default()),
            RouteNetlinkMessage::GetRule(RuleMessage::default()),
            RouteNetlinkMessage::GetNeighbour(NeighbourMessage::default()),
        ] {
            for answer in socket.dump(&request)? {
                tables.add(answer);
            }
        }
        Ok(tables)
    }

    fn add(&mut self, answer: RouteNetlinkMessage) {
        match answer {
            RouteNetlinkMessage::NewLink(message) => self.links.extend(link(message)),
            RouteNetlinkMessage::NewAddress(message) => self.addresses.extend(address(&message)),
            RouteNetlinkMessage::NewRoute(message) => add_default_routes(&mut self.default_routes, &message),
            RouteNetlinkMessage::NewRule(message) => self.rules.extend(rule(&message)),
            RouteNetlinkMessage::NewNeighbour(message) => self.neighbours.extend(neighbour(&message)),
            _ => {}
        }
    }
}

fn link(message: LinkMessage) -> Option<Link> {
    let flags = message.header.flags;
    let mut link = Link {
        index: message.header.index,
        name: String::new(),
        layer: message.header.link_layer_type,
        hardware_address: Vec::new(),
        is_running: flags.contains(LinkFlags::Up | LinkFlags::LowerUp | LinkFlags::Running),
        is_loopback: flags.contains(LinkFlags::Loopback),
        is_plumbing: false,
    };
    for attribute in message.attributes {
        match attribute {
            LinkAttribute::IfName(name) => link.name = name,
            LinkAttribute::Address(address) => link.hardware_address = address,
            LinkAttribute::LinkInfo(infos) => {
                link.is_plumbing = infos.iter().any(|info| match info {
                    LinkInfo::Kind(kind) => *kind == InfoKind::Ifb,
                    // A member of a VRF keeps its own addresses.
                    LinkInfo::PortKind(kind) => *kind != InfoPortKind::Vrf,
                    _ => false,
                });
            }
            _ => {}
        }
    }
    (!link.name.is_empty()).then_some(link)
}

fn address(message: &AddressMessage) -> Option<Address> {
    if message.header.scope != AddressScope::Universe {
        return None;
    }
    let mut flags = AddressFlags::from_bits_retain(message.header.flags.bits().into());
    let (mut local, mut peer) = (None, None);
    for attribute in &message.attributes {
        match attribute {
            // IFA_LOCAL is the own address; IFA_ADDRESS is too, except on point-to-point links.
            AddressAttribute::Local(address) => local = Some(*address),
            AddressAttribute::Address(address) => peer = Some(*address),
            AddressAttribute::Flags(full) => flags = *full,
            _ => {}
        }
    }
    let unusable = AddressFlags::Dadfailed | AddressFlags::Tentative;
    // An optimistic address may be used while it is still being checked (RFC 4429).
    if flags.intersects(unusable) && !flags.contains(AddressFlags::Optimistic) {
        return None;
    }
    let address = local.or(peer)?;
    Some(Address {
        link: message.header.index,
        address,
        is_deprecated: flags.contains(AddressFlags::Deprecated),
        // The same bit means "temporary" for IPv6 and "not the first of its subnet" for IPv4.
        is_temporary: address.is_ipv6() && flags.contains(AddressFlags::Secondary),
    })
}

fn add_default_routes(routes: &mut Vec<DefaultRoute>, message: &RouteMessage) {
    let header = &message.header;
    let is_ipv4 = match header.address_family {
        AddressFamily::Inet => true,
        AddressFamily::Inet6 => false,
        _ => return,
    };
    if header.destination_prefix_length != 0 || header.kind != RouteType::Unicast {
        return;
    }
    let (mut table, mut metric, mut link) = (u32::from(header.table), 0, None);
    let mut next_hops: &[_] = &[];
    for attribute in &message.attributes {
        match attribute {
            RouteAttribute::Table(id) => table = *id,
            RouteAttribute::Priority(priority) => metric = *priority,
            RouteAttribute::Oif(index) => link = Some(*index),
            RouteAttribute::MultiPath(hops) => next_hops = hops,
            _ => {}
        }
    }
    let route =
        |link, attributes| DefaultRoute { link, is_ipv4, gateway: gateway(attributes), metric, table };
    routes.extend(link.map(|link| route(link, &message.attributes)));
    routes.extend(next_hops.iter().map(|hop| route(hop.interface_index, &hop.attributes)));
}

fn gateway(attributes: &[RouteAttribute]) -> Option<IpAddr> {
    attributes.iter().find_map(|attribute| match attribute {
        RouteAttribute::Gateway(RouteAddress::Inet(address))
        | RouteAttribute::Via(RouteVia::Inet(address)) => Some(IpAddr::V4(*address)),
        RouteAttribute::Gateway(RouteAddress::Inet6(address))
        | RouteAttribute::Via(RouteVia::Inet6(address)) => Some(IpAddr::V6(*address)),
        _ => None,
    })
}

/// A rule that a plain socket bound to an interface or address can meet; the mark, user and
/// protocol rules of VPNs and the like are not for it.
fn rule(message: &RuleMessage) -> Option<Rule> {
    if message.header.action != RuleAction::ToTable || message.header.dst_len != 0 {
        return None;
    }
    let mut rule = Rule {
        is_ipv4: message.header.family == AddressFamily::Inet,
        table: message.header.table.into(),
        source: None,
        output: None,
    };
    for attribute in &message.attributes {
        match attribute {
            RuleAttribute::Table(table) => rule.table = *table,
            RuleAttribute::Source(source) => {
                rule.source = Some(ipnet::IpNet::new(*source, message.header.src_len).ok()?);
            }
            RuleAttribute::Oifname(name) => rule.output = Some(name.clone()),
            RuleAttribute::Priority(_)
            | RuleAttribute::Protocol(_)
            | RuleAttribute::SuppressPrefixLen(_)
            | RuleAttribute::SuppressIfGroup(_) => {}
            _ => return None,
        }
    }
    Some(rule)
}

/// The neighbour of a message, when its link-layer address is known.
pub(crate) fn neighbour(message: &NeighbourMessage) -> Option<Neighbour> {
    let (mut address, mut hardware_address) = (None, None);
    for attribute in &message.attributes {
        match attribute {
            NeighbourAttribute::Destination(NeighbourAddress::Inet(ipv4)) => {
                address = Some(IpAddr::V4(*ipv4));
            }
            NeighbourAttribute::Destination(NeighbourAddress::Inet6(ipv6)) => {
                address = Some(IpAddr::V6(*ipv6));
            }
            NeighbourAttribute::LinkLayerAddress(bytes) => hardware_address = Some(bytes.clone()),
            _ => {}
        }
    }
    Some(Neighbour { link: message.header.ifindex, address: address?, hardware_address: hardware_address? })
}

/// A hardware address as sysfs and `ip` write it.
pub(crate) fn hardware_address(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().join(":")
}
