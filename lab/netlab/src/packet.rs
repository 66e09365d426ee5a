//! Packets that were seen on a link, as far as their headers tell.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use multiway_core::units::Timestamp;

use crate::link::Direction;

/// The beginning of a packet that is kept: IPv6's header, TCP's, and all of TCP's options.
pub(crate) const HEAD_BYTES: usize = 40 + 60;

/// Length of IPv6's header (RFC 8200 section 3); extension headers are not followed.
const IPV6_HEADER: usize = 40;

/// Numbers of protocols (RFC 5237's registry).
const HOP_BY_HOP: u8 = 0;
const TCP: u8 = 6;
const UDP: u8 = 17;
const ICMPV6: u8 = 58;

/// Length of the hop-by-hop header with which multicast listeners report (RFC 3810 section 5).
const ROUTER_ALERT: usize = 8;

/// Types of ICMPv6 by which kernels find their neighbours and routers (RFC 4861 section 4), and tell which
/// groups they listen to (RFC 2710 section 3, RFC 3810 section 5.2).
const HOUSEKEEPING: [u8; 9] = [130, 131, 132, 133, 134, 135, 136, 137, 143];

/// A packet that the first host sent or received.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct PassedPacket {
    /// When, on the lab's clock.
    pub at: Timestamp,
    /// Up when it was sent, whatever became of it; down when it was received.
    pub direction: Direction,
    /// Its length.
    pub bytes: u64,
    head: [u8; HEAD_BYTES],
}

/// What TCP's header says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TcpHead {
    /// Who sent it.
    pub source: SocketAddr,
    /// To whom.
    pub destination: SocketAddr,
    /// True in the first packet of a connection, and in the one that answers it.
    pub syn: bool,
    /// True in all but the first packet of a connection.
    pub ack: bool,
    /// True in the packet that tells of a connection that is not there.
    pub rst: bool,
    /// Bytes behind the headers.
    pub payload: u64,
}

impl PassedPacket {
    pub(crate) fn new(at: Timestamp, direction: Direction, packet: &[u8]) -> Self {
        let mut head = [0; HEAD_BYTES];
        let length = packet.len().min(HEAD_BYTES);
        head[..length].copy_from_slice(&packet[..length]);
        Self { at, direction, bytes: packet.len() as u64, head }
    }

    /// TCP's header, when it is TCP's.
    pub fn tcp(&self) -> Option<TcpHead> {
        let (protocol, source, destination, at) = self.ip()?;
        let tcp = self.head.get(at..).filter(|_| protocol == TCP)?;
        let (from, to) = (port(tcp, 0)?, port(tcp, 2)?);
        let header = u64::from(tcp.get(12)? >> 4) * 4;
        let flags = *tcp.get(13)?;
        Some(TcpHead {
            source: SocketAddr::new(source, from),
            destination: SocketAddr::new(destination, to),
            syn: flags & 0x02 != 0,
            ack: flags & 0x10 != 0,
            rst: flags & 0x04 != 0,
            payload: self.bytes.saturating_sub(at as u64 + header),
        })
    }

    /// Whether it is one of those that IPv6 in the kernel sends by itself on every network: to find
    /// neighbours and routers, and to tell which groups it listens to.
    pub fn is_ipv6_housekeeping(&self) -> bool {
        let Some((protocol, source, _, at)) = self.ip() else { return false };
        let icmp = match (protocol, self.head.get(at)) {
            (ICMPV6, _) => at,
            (HOP_BY_HOP, Some(&ICMPV6)) => at + ROUTER_ALERT,
            _ => return false,
        };
        source.is_ipv6() && self.head.get(icmp).is_some_and(|kind| HOUSEKEEPING.contains(kind))
    }

    /// Protocol, both addresses, and where the header behind IP's begins.
    fn ip(&self) -> Option<(u8, IpAddr, IpAddr, usize)> {
        let head = &self.head;
        match head[0] >> 4 {
            4 => {
                let address = |at: usize| head.get(at..at + 4)?.try_into().ok().map(Ipv4Addr::from_octets);
                let length = usize::from(head[0] & 0x0f) * 4;
                Some((head[9], address(12)?.into(), address(16)?.into(), length))
            }
            6 => {
                let address = |at: usize| head.get(at..at + 16)?.try_into().ok().map(Ipv6Addr::from_octets);
                Some((head[6], address(8)?.into(), address(24)?.into(), IPV6_HEADER))
            }
            _ => None,
        }
    }
}

/// In one line, so that a packet nobody expected explains itself.
impl fmt::Debug for PassedPacket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { at, direction, bytes, .. } = self;
        write!(f, "{at:?} {direction:?} {bytes} bytes: ")?;
        if let Some(tcp) = self.tcp() {
            let TcpHead { source, destination, syn, ack, rst, payload } = tcp;
            return write!(
                f,
                "TCP {source} to {destination}, {payload} of payload, SYN {syn}, ACK {ack}, RST {rst}"
            );
        }
        match self.ip() {
            Some((UDP, source, destination, at)) => {
                let udp = self.head.get(at..).unwrap_or_default();
                let ports = port(udp, 0).zip(port(udp, 2)).unwrap_or_default();
                write!(f, "UDP {source} to {destination}, ports {ports:?}")
            }
            Some((protocol, source, destination, _)) => {
                write!(f, "protocol {protocol}, {source} to {destination}")
            }
            None => write!(f, "neither IPv4 nor IPv6"),
        }
    }
}

fn port(header: &[u8], at: usize) -> Option<u16> {
    header.get(at..at + 2)?.try_into().ok().map(u16::from_be_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_read_and_what_is_cut_off_is_none() {
        let mut packet = vec![0; 20 + 32 + 7];
        packet[0] = 0x45;
        packet[9] = TCP;
        packet[12..20].copy_from_slice(&[192, 0, 2, 1, 192, 0, 2, 2]);
        packet[20..24].copy_from_slice(&[0x30, 0x39, 0x01, 0xbb]);
        packet[32] = 8 << 4;
        packet[33] = 0x02;
        let seen = PassedPacket::new(Timestamp::ZERO, Direction::Up, &packet);
        let expected = TcpHead {
            source: "192.0.2.1:12345".parse().unwrap(),
            destination: "192.0.2.2:443".parse().unwrap(),
            syn: true,
            ack: false,
            rst: false,
            payload: 7,
        };
        assert_eq!(seen.tcp(), Some(expected));
        assert_eq!(seen.bytes, 59);

        packet[9] = UDP;
        let seen = PassedPacket::new(Timestamp::ZERO, Direction::Up, &packet);
        assert_eq!(seen.tcp(), None);
        assert!(format!("{seen:?}").contains("UDP 192.0.2.1 to 192.0.2.2, ports (12345, 443)"), "{seen:?}");
        let mut report = vec![0; 76];
        (report[0], report[6], report[40], report[48]) = (0x60, HOP_BY_HOP, ICMPV6, 143);
        let seen = |packet: &[u8]| PassedPacket::new(Timestamp::ZERO, Direction::Up, packet);
        assert!(seen(&report).is_ipv6_housekeeping());
        report[48] = 128;
        assert!(!seen(&report).is_ipv6_housekeeping(), "an echo is asked for by somebody");
        (report[6], report[40]) = (ICMPV6, 133);
        assert!(seen(&report).is_ipv6_housekeeping());
        for rubbish in [&[][..], &[0x4f; 4], &[0x60; 200]] {
            let seen = PassedPacket::new(Timestamp::ZERO, Direction::Down, rubbish);
            assert_eq!((seen.tcp(), seen.bytes), (None, rubbish.len() as u64));
        }
    }
}
