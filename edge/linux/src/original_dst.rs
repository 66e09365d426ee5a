//! Where a redirected connection was going.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;

use socket2::SockRef;

/// The destination an accepted connection had before it was redirected here.
///
/// Fails with `NotFound` for a connection that was made to this socket on purpose.
pub fn original_destination(fd: BorrowedFd<'_>) -> io::Result<SocketAddr> {
    let socket = SockRef::from(&fd);
    let local = socket.local_addr()?.as_socket().ok_or(io::ErrorKind::Unsupported)?;
    // IPv4 connections that a dual-stack listener accepted look like ::ffff:a.b.c.d.
    let is_ipv4 = match local.ip() {
        IpAddr::V4(_) => true,
        IpAddr::V6(address) => address.to_ipv4_mapped().is_some(),
    };
    let original = if is_ipv4 { socket.original_dst_v4()? } else { socket.original_dst_v6()? };
    let original = original.as_socket().ok_or(io::ErrorKind::Unsupported)?;
    // The kernel answers with the tracked destination whether or not it was rewritten.
    if original.ip() == local.ip().to_canonical() && original.port() == local.port() {
        return Err(io::Error::new(io::ErrorKind::NotFound, "the connection was not redirected"));
    }
    Ok(original)
}
