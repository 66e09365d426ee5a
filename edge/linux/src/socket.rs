//! Sockets that leave by one path.
//!
//! `SO_BINDTODEVICE` limits route lookup to the path's own device, so one default route per device
//! in the main table, of whatever metric, is enough; no rule is installed (see
//! [`crate::diagnose()`] for the hosts where that does not hold). Since Linux 5.7 it needs no
//! privilege on a socket that is not bound to a device yet.

use std::io;
use std::net::{IpAddr, SocketAddr};

use nix::errno::Errno;
use socket2::{Domain, Protocol, Socket, Type};

/// Which path a socket leaves by.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Binding {
    /// Name of the interface.
    pub interface: String,
    /// Address to send from. It counts only for remotes of its family; otherwise the kernel
    /// chooses among the interface's addresses.
    pub source: Option<IpAddr>,
    /// Firewall mark that tells interception to leave the socket alone.
    ///
    /// Without `CAP_NET_ADMIN` or `CAP_NET_RAW` it cannot be set and is left out: the process
    /// could not have installed interception either.
    pub mark: Option<u32>,
}

/// A nonblocking TCP socket that reaches `remote` by the path; not connected yet.
pub fn tcp(binding: &Binding, remote: SocketAddr) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(remote), Type::STREAM.nonblocking(), Some(Protocol::TCP))?;
    socket.set_tcp_nodelay(true)?;
    // The port is then chosen at connect, per destination, so that many connections fit.
    nix::sys::socket::setsockopt(&socket, nix::sys::socket::sockopt::IpBindAddressNoPort, &true)?;
    bind(&socket, binding, remote)?;
    Ok(socket)
}

/// A nonblocking UDP socket that reaches `remote` by the path; not connected yet.
pub fn udp(binding: &Binding, remote: SocketAddr) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(remote), Type::DGRAM.nonblocking(), Some(Protocol::UDP))?;
    bind(&socket, binding, remote)?;
    Ok(socket)
}

fn bind(socket: &Socket, binding: &Binding, remote: SocketAddr) -> io::Result<()> {
    if let Some(mark) = binding.mark {
        match socket.set_mark(mark) {
            Err(error) if error.raw_os_error() != Some(Errno::EPERM as i32) => return Err(error),
            _ => {}
        }
    }
    socket.bind_device(Some(binding.interface.as_bytes()))?;
    if let Some(source) = binding.source
        && source.is_ipv4() == remote.is_ipv4()
    {
        socket.bind(&SocketAddr::new(source, 0).into())?;
    }
    Ok(())
}
