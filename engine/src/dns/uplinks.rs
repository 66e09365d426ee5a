use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::time::Duration;

use multiway_core::paths::{PathId, PathInfo};
use socket2::{Domain, Socket, Type};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpSocket, UdpSocket};

use crate::paths::PathTable;

/// An open connection, whatever it runs over.
pub trait ByteStream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> ByteStream for T {}

/// A socket on its way.
pub type Opening<'a, T> = Pin<Box<dyn Future<Output = io::Result<T>> + Send + 'a>>;

/// What the resolver needs of the paths; a test gives it loopback addresses in their place.
pub trait Uplinks: Send + Sync + 'static {
    /// The paths that may be used now, the preferred first.
    fn usable(&self) -> Vec<PathInfo>;

    /// A UDP socket on `path`, connected to `remote`, from a port of the kernel's random choice.
    fn udp(&self, path: PathId, remote: SocketAddr) -> Opening<'_, UdpSocket>;

    /// A TCP connection to `remote` over `path`.
    fn tcp(&self, path: PathId, remote: SocketAddr, timeout: Duration) -> Opening<'_, Box<dyn ByteStream>>;
}

impl Uplinks for PathTable {
    fn usable(&self) -> Vec<PathInfo> {
        Self::usable(self)
    }

    fn udp(&self, path: PathId, remote: SocketAddr) -> Opening<'_, UdpSocket> {
        Box::pin(async move {
            if !remote.ip().is_loopback() {
                return Self::udp(self, path, remote);
            }
            let socket = local_socket(remote, Type::DGRAM, self.mark())?;
            // A datagram socket connects without sending anything, and so at once.
            socket.connect(&remote.into())?;
            UdpSocket::from_std(socket.into())
        })
    }

    fn tcp(&self, path: PathId, remote: SocketAddr, timeout: Duration) -> Opening<'_, Box<dyn ByteStream>> {
        Box::pin(async move {
            if !remote.ip().is_loopback() {
                return Ok(Box::new(self.connect(path, remote, timeout).await?) as Box<dyn ByteStream>);
            }
            let socket = local_socket(remote, Type::STREAM, self.mark())?;
            let stream = TcpSocket::from_std_stream(socket.into()).connect(remote).await?;
            Ok(Box::new(stream) as Box<dyn ByteStream>)
        })
    }
}

/// A socket to a resolver on this device, to which no path leads. It has the mark of the paths'
/// sockets, or interception, which takes DNS on the loopback too, would lead it back here.
fn local_socket(remote: SocketAddr, kind: Type, mark: Option<u32>) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(remote), kind.nonblocking(), None)?;
    if let Some(mark) = mark
        && let Err(error) = socket.set_mark(mark)
        && error.kind() != io::ErrorKind::PermissionDenied
    {
        return Err(error);
    }
    Ok(socket)
}
