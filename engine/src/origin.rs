//! Opens connections to an origin server over a given path.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use multiway_core::flow::names::HostName;
use multiway_core::paths::PathId;
use rustls_pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::dns::{ResolveError, Resolver};
use crate::paths::{ConnectError, PathTable, TrackedStream};

/// Delay before the next address of a name is tried beside the one before (RFC 8305 section 5).
const ATTEMPT_DELAY: Duration = Duration::from_millis(250);

/// Addresses tried of one name.
const MOST_ADDRESSES: usize = 6;

/// How long one connection attempt may take; the split engine gives up a little earlier or later
/// by its own timer.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(5);

/// A server that serves an object, apart from how it is reached.
#[derive(Clone)]
pub struct Origin {
    /// Host name or address literal, without brackets.
    pub host: String,
    /// TCP port.
    pub port: u16,
    /// Where an intercepted application was going; used unless a path has a server of its own for
    /// the same name (F3).
    pub intercepted: Option<IpAddr>,
    /// The name that the application gives the intercepted address; other servers of it are used only
    /// when the address is known to be the name's.
    pub name: Option<HostName>,
    /// TLS to speak with it; `None` for plain HTTP.
    pub tls: Option<Arc<rustls::ClientConfig>>,
}

impl std::fmt::Debug for Origin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}

/// Why an origin cannot be reached over a path.
#[derive(Debug, thiserror::Error)]
pub enum OriginError {
    /// Its name has no addresses there.
    #[error(transparent)]
    Resolve(#[from] ResolveError),
    /// None of its addresses answers.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// TLS failed.
    #[error("TLS with {host}: {source}")]
    Tls {
        /// The origin's host.
        host: String,
        /// What rustls says.
        source: io::Error,
    },
    /// The host cannot be named in TLS.
    #[error("`{host}` is not a name that a certificate can be for")]
    TlsName {
        /// The origin's host.
        host: String,
    },
}

impl OriginError {
    /// Whether the server's certificate was refused, which no other path or retry mends.
    pub fn is_certificate(&self) -> bool {
        let Self::Tls { source, .. } = self else { return false };
        source
            .get_ref()
            .and_then(|inner| inner.downcast_ref::<rustls::Error>())
            .is_some_and(|error| matches!(error, rustls::Error::InvalidCertificate(_)))
    }
}

/// Opens a connection to `origin` over `path`, TLS included.
pub async fn connect(
    paths: &PathTable,
    resolver: &Resolver,
    path: PathId,
    origin: &Origin,
) -> Result<OriginStream, OriginError> {
    let addresses = addresses(resolver, path, origin).await?;
    let stream = connect_any(paths, path, &addresses, origin).await?;
    // Requests are small and must not wait for acknowledgements of earlier ones.
    let _ = stream.set_nodelay(true);
    let Some(config) = &origin.tls else { return Ok(OriginStream::Plain(stream)) };
    let name = ServerName::try_from(origin.host.clone())
        .map_err(|_| OriginError::TlsName { host: origin.host.clone() })?;
    let tls = TlsConnector::from(Arc::clone(config))
        .connect(name, stream)
        .await
        .map_err(|source| OriginError::Tls { host: origin.host.clone(), source })?;
    Ok(OriginStream::Tls(Box::new(tls)))
}

/// The path's own servers for the origin's name; for intercepted connections whose name is not
/// known, the address that the application chose.
async fn addresses(resolver: &Resolver, path: PathId, origin: &Origin) -> Result<Vec<IpAddr>, ResolveError> {
    let Some(address) = origin.intercepted else { return resolver.resolve(path, &origin.host).await };
    let siblings = match &origin.name {
        Some(name) => resolver.sibling_addresses(name, address, path).await,
        None => None,
    };
    Ok(siblings.filter(|siblings| !siblings.is_empty()).unwrap_or_else(|| vec![address]))
}

/// Tries the addresses in order, the next beside those before when they hesitate.
async fn connect_any(
    paths: &PathTable,
    path: PathId,
    addresses: &[IpAddr],
    origin: &Origin,
) -> Result<TrackedStream, ConnectError> {
    let mut candidates = addresses.iter().take(MOST_ADDRESSES);
    let mut attempts = FuturesUnordered::new();
    let mut failure = ConnectError::UnknownPath(path);
    loop {
        if let Some(address) = candidates.next() {
            attempts.push(paths.connect(path, SocketAddr::new(*address, origin.port), ATTEMPT_TIMEOUT));
        }
        tokio::select! {
            outcome = attempts.next() => match outcome {
                Some(Ok(stream)) => return Ok(stream),
                Some(Err(error)) => failure = error,
                None => return Err(failure),
            },
            () = tokio::time::sleep(ATTEMPT_DELAY), if candidates.len() > 0 => {}
        }
    }
}

/// A connection to an origin.
#[derive(Debug)]
pub enum OriginStream {
    /// Plain TCP.
    Plain(TrackedStream),
    /// TLS over TCP.
    Tls(Box<TlsStream<TrackedStream>>),
}

impl OriginStream {
    /// The TCP connection underneath.
    pub fn tcp(&self) -> &TrackedStream {
        match self {
            Self::Plain(stream) => stream,
            Self::Tls(stream) => stream.get_ref().0,
        }
    }

    /// The connection, if it is plain TCP.
    pub fn into_plain(self) -> Option<TrackedStream> {
        match self {
            Self::Plain(stream) => Some(stream),
            Self::Tls(_) => None,
        }
    }
}

impl AsyncRead for OriginStream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_read(cx, buf),
            Self::Tls(stream) => Pin::new(stream).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for OriginStream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write(cx, buf),
            Self::Tls(stream) => Pin::new(stream).poll_write(cx, buf),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_flush(cx),
            Self::Tls(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}
