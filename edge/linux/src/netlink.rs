//! Asking rtnetlink for whole tables, synchronously.

use std::io;
use std::net::IpAddr;

use netlink_packet_core::{
    NLM_F_DUMP, NLM_F_REQUEST, NetlinkBuffer, NetlinkHeader, NetlinkMessage, NetlinkPayload,
};
use netlink_packet_route::route::{RouteAttribute, RouteMessage};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use netlink_sys::protocols::NETLINK_ROUTE;
use netlink_sys::{Socket, SocketAddr};

/// Flag of a dump that the table changed under (`NLM_F_DUMP_INTR`, include/uapi/linux/netlink.h).
const DUMP_INTERRUPTED: u16 = 0x10;

/// How often an interrupted dump is begun again before its last, possibly mixed, answer is taken.
///
/// Whoever watches gets another event for the change that interrupted it.
const DUMP_ATTEMPTS: usize = 4;

/// A blocking rtnetlink socket in the network namespace of the thread that opened it.
pub(crate) struct RouteSocket {
    socket: Socket,
}

impl RouteSocket {
    /// Opens the socket.
    pub(crate) fn open() -> io::Result<Self> {
        let mut socket = Socket::new(NETLINK_ROUTE)?;
        socket.bind_auto()?;
        socket.connect(&SocketAddr::new(0, 0))?;
        Ok(Self { socket })
    }

    /// All answers to `request`, a `Get...` message.
    ///
    /// An answer of a shape the parser does not know is left out: a newer kernel must not hide
    /// the interfaces that are understood.
    pub(crate) fn dump(&self, request: &RouteNetlinkMessage) -> io::Result<Vec<RouteNetlinkMessage>> {
        let mut answers = Vec::new();
        for _ in 0..DUMP_ATTEMPTS {
            let (table, interrupted) = self.dump_once(request.clone())?;
            answers = table;
            if !interrupted {
                break;
            }
        }
        Ok(answers)
    }

    /// The interface by which the kernel would send from `source` to `destination`; `None` when
    /// there is no route.
    pub(crate) fn output_interface(&self, source: IpAddr, destination: IpAddr) -> io::Result<Option<u32>> {
        let bits = if source.is_ipv4() { u32::BITS } else { u128::BITS };
        let mut request = RouteMessage::default();
        request.header.address_family =
            if source.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
        (request.header.source_prefix_length, request.header.destination_prefix_length) =
            (bits as u8, bits as u8);
        request.attributes =
            vec![RouteAttribute::Source(source.into()), RouteAttribute::Destination(destination.into())];
        self.send(NLM_F_REQUEST, RouteNetlinkMessage::GetRoute(request))?;
        let (datagram, _) = self.socket.recv_from_full()?;
        for (_, payload) in messages(&datagram) {
            match payload {
                NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewRoute(route)) => {
                    return Ok(route.attributes.iter().find_map(|attribute| match attribute {
                        RouteAttribute::Oif(index) => Some(*index),
                        _ => None,
                    }));
                }
                NetlinkPayload::Error(error) => {
                    let error = error.to_io();
                    let is_no_route = matches!(
                        error.kind(),
                        io::ErrorKind::NetworkUnreachable | io::ErrorKind::HostUnreachable
                    );
                    return if is_no_route { Ok(None) } else { Err(error) };
                }
                _ => {}
            }
        }
        Ok(None)
    }

    fn send(&self, flags: u16, request: RouteNetlinkMessage) -> io::Result<()> {
        let mut header = NetlinkHeader::default();
        header.flags = flags;
        let mut message = NetlinkMessage::new(header, NetlinkPayload::from(request));
        message.finalize();
        let mut bytes = vec![0; message.buffer_len()];
        message.serialize(&mut bytes);
        self.socket.send(&bytes, 0).map(drop)
    }

    fn dump_once(&self, request: RouteNetlinkMessage) -> io::Result<(Vec<RouteNetlinkMessage>, bool)> {
        self.send(NLM_F_REQUEST | NLM_F_DUMP, request)?;
        let mut answers = Vec::new();
        let mut interrupted = false;
        loop {
            let (datagram, _) = self.socket.recv_from_full()?;
            for (flags, payload) in messages(&datagram) {
                interrupted |= flags & DUMP_INTERRUPTED != 0;
                match payload {
                    NetlinkPayload::Done(_) => return Ok((answers, interrupted)),
                    NetlinkPayload::Error(error) => return Err(error.to_io()),
                    NetlinkPayload::InnerMessage(answer) => answers.push(answer),
                    _ => {}
                }
            }
        }
    }
}

/// The understood messages of one datagram, with their header flags.
pub(crate) fn messages(
    datagram: &[u8],
) -> impl Iterator<Item = (u16, NetlinkPayload<RouteNetlinkMessage>)> + '_ {
    let mut rest = datagram;
    std::iter::from_fn(move || {
        loop {
            let buffer = NetlinkBuffer::new_checked(rest).ok()?;
            let length = usize::try_from(buffer.length()).ok()?;
            let parsed = NetlinkMessage::<RouteNetlinkMessage>::deserialize(rest);
            // Messages are padded to four bytes (NLMSG_ALIGN).
            rest = rest.get(length.max(1).next_multiple_of(4)..).unwrap_or_default();
            match parsed {
                Ok(message) => return Some((message.header.flags, message.payload)),
                Err(error) => tracing::debug!(%error, "left out a netlink message of unknown shape"),
            }
        }
    })
}
