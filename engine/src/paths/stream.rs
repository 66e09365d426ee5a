//! A TCP connection over one path, sampled while it lives.

use std::fmt;
use std::io;
use std::net::Shutdown;
use std::ops::Deref;
use std::os::fd::AsFd;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use multiway_core::paths::{PathId, TcpSample};
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use super::clock::now;
use super::sampler::{Registry, lock};

/// Distinguishes the connections of one process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionId(pub(super) u64);

impl fmt::Display for ConnectionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "connection {}", self.0)
    }
}

/// What the sampler and the owner of a connection share.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) id: ConnectionId,
    pub(super) path: PathId,
    pub(super) interface: String,
    connect_time: Duration,
    stream: TcpStream,
    latest: Mutex<Option<TcpSample>>,
}

impl Connection {
    /// The kernel's counters as of now.
    fn read(&self) -> io::Result<TcpSample> {
        multiway_edge::tcp_info::sample(self.stream.as_fd(), now())
    }

    /// The kernel's counters as of now, and those of the last call.
    pub(super) fn read_counters(&self) -> io::Result<(Option<TcpSample>, TcpSample)> {
        // Held over the reading, so that two readers at once take turns and no byte counts twice.
        let mut latest = lock(&self.latest);
        let sample = self.read()?;
        Ok((latest.replace(sample), sample))
    }

    pub(super) fn latest(&self) -> Option<TcpSample> {
        *lock(&self.latest)
    }
}

/// Keeps a connection in the sampler's list; the last one to go takes the final sample.
#[derive(Debug)]
struct Lease {
    connection: Arc<Connection>,
    registry: Arc<Registry>,
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.registry.close(&self.connection);
    }
}

/// A TCP connection over one path.
///
/// It is used like a [`TcpStream`], and derefs to one for what can be done by reference
/// (`readable`, `try_read` and the like are counted all the same: bytes are counted by the kernel).
#[derive(Debug)]
pub struct TrackedStream {
    lease: Arc<Lease>,
}

impl TrackedStream {
    pub(super) fn new(
        id: u64,
        (path, interface): (PathId, String),
        stream: TcpStream,
        connect_time: Duration,
        registry: Arc<Registry>,
    ) -> Self {
        let connection = Arc::new(Connection {
            id: ConnectionId(id),
            path,
            interface,
            connect_time,
            stream,
            latest: Mutex::new(None),
        });
        registry.open(&connection);
        Self { lease: Arc::new(Lease { connection, registry }) }
    }

    /// The connection's name, for [`super::PathTable::latest_sample`].
    pub fn id(&self) -> ConnectionId {
        self.lease.connection.id
    }

    /// The path it runs over.
    pub fn path(&self) -> PathId {
        self.lease.connection.path
    }

    /// How long the handshake took.
    pub fn connect_time(&self) -> Duration {
        self.lease.connection.connect_time
    }

    /// The kernel's counters as of now.
    pub fn sample(&self) -> io::Result<TcpSample> {
        self.lease.connection.read()
    }

    /// The sampler's last reading, at most a sampling interval old.
    pub fn latest_sample(&self) -> Option<TcpSample> {
        self.lease.connection.latest()
    }

    /// Closes with a reset, so that the remote stops sending at once.
    pub fn abort(self) {
        // Best effort: a socket that cannot be told closes in the usual way.
        let _ = SockRef::from(&self.lease.connection.stream).set_linger(Some(Duration::ZERO));
    }

    /// Halves that can be used by different tasks. Dropping the writing half ends the stream in
    /// that direction.
    pub fn into_split(self) -> (TrackedReadHalf, TrackedWriteHalf) {
        (TrackedReadHalf { lease: Arc::clone(&self.lease) }, TrackedWriteHalf { lease: self.lease })
    }
}

impl Deref for TrackedStream {
    type Target = TcpStream;

    fn deref(&self) -> &TcpStream {
        &self.lease.connection.stream
    }
}

impl AsyncRead for TrackedStream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        poll_read(self.get_mut(), cx, buf)
    }
}

impl AsyncWrite for TrackedStream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        poll_write(&self, cx, |stream| stream.try_write(buf))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        poll_write(&self, cx, |stream| stream.try_write_vectored(bufs))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(shut_down(&self))
    }
}

/// The reading half of a [`TrackedStream`].
#[derive(Debug)]
pub struct TrackedReadHalf {
    lease: Arc<Lease>,
}

impl Deref for TrackedReadHalf {
    type Target = TcpStream;

    fn deref(&self) -> &TcpStream {
        &self.lease.connection.stream
    }
}

impl AsyncRead for TrackedReadHalf {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        poll_read(self.get_mut(), cx, buf)
    }
}

/// The writing half of a [`TrackedStream`]; dropping it ends the stream in that direction.
#[derive(Debug)]
pub struct TrackedWriteHalf {
    lease: Arc<Lease>,
}

impl Drop for TrackedWriteHalf {
    fn drop(&mut self) {
        // A connection that is gone already needs no end.
        let _ = shut_down(self);
    }
}

impl Deref for TrackedWriteHalf {
    type Target = TcpStream;

    fn deref(&self) -> &TcpStream {
        &self.lease.connection.stream
    }
}

impl AsyncWrite for TrackedWriteHalf {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        poll_write(&self, cx, |stream| stream.try_write(buf))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        poll_write(&self, cx, |stream| stream.try_write_vectored(bufs))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(shut_down(&self))
    }
}

fn poll_read(stream: &TcpStream, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
    loop {
        ready!(stream.poll_read_ready(cx))?;
        match stream.try_read_buf(buf) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            result => return Poll::Ready(result.map(drop)),
        }
    }
}

fn poll_write(
    stream: &TcpStream,
    cx: &mut Context<'_>,
    write: impl Fn(&TcpStream) -> io::Result<usize>,
) -> Poll<io::Result<usize>> {
    loop {
        ready!(stream.poll_write_ready(cx))?;
        match write(stream) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            result => return Poll::Ready(result),
        }
    }
}

fn shut_down(stream: &TcpStream) -> io::Result<()> {
    match SockRef::from(stream).shutdown(Shutdown::Write) {
        // The remote closed first.
        Err(error) if error.kind() == io::ErrorKind::NotConnected => Ok(()),
        result => result,
    }
}
