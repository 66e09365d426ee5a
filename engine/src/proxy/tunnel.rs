//! One connection for one flow, over the best path that works.
//!
//! Which address a flow goes to:
//! - A destination given by name (SOCKS5, CONNECT) is looked up per path, so that each path goes to
//!   its own server.
//! - A destination given by address (interception) is kept, on every path, as long as some path
//!   reaches it. The application chose that address. Only when no path reaches it are the addresses
//!   tried that the paths' own servers give for the name, when there is a name that cannot lead to
//!   somebody else: the one in the TLS handshake, which the other end still has to prove to be its own, or
//!   the one in an HTTP request whose answers are known to have included the address. The name last
//!   looked up with this address would not do: its owner may be anyone.

use std::fmt;
use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::ops::Deref;
use std::pin::Pin;
use std::time::Duration;

use multiway_core::flow::names::HostName;
use multiway_core::paths::{PathId, PathInfo};
use tokio::net::TcpStream;

use super::race::race;
use super::relay::reset;
use crate::context::Context;
use crate::dns::ResolveError;
use crate::paths::{ConnectError, TrackedStream};

/// How long a path may take to connect before the next one is tried beside it. A handshake on a
/// good path takes less; waiting for the kernel's first SYN retransmission would cost a second.
const PATH_STAGGER: Duration = Duration::from_millis(300);

/// How long an address may take before the next one of the same name is tried beside it, RFC 8305
/// section 8.
const ADDRESS_STAGGER: Duration = Duration::from_millis(250);

/// Addresses of one name tried on one path.
const MAX_ADDRESSES: usize = 6;

/// How long one handshake may take: four retransmissions of the SYN.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(15);

/// Where a flow wants to go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Destination {
    /// To an address, which the application or its resolver chose.
    Address(SocketAddr),
    /// To a port of a name, which each path looks up by itself.
    Name(HostName, u16),
}

impl Destination {
    /// The destination with this host, a name or an address literal.
    pub fn parse(host: &str, port: u16) -> Option<Self> {
        let literal = host.strip_prefix('[').and_then(|h| h.strip_suffix(']')).unwrap_or(host);
        match literal.parse::<IpAddr>() {
            Ok(address) => Some(Self::Address(SocketAddr::new(address, port))),
            Err(_) => Some(Self::Name(HostName::parse(host).ok()?, port)),
        }
    }

    /// The port.
    pub fn port(&self) -> u16 {
        match self {
            Self::Address(address) => address.port(),
            Self::Name(_, port) => *port,
        }
    }

    /// The host as paths' histories know it: the name, else the address.
    pub fn host(&self) -> String {
        match self {
            Self::Address(address) => address.ip().to_canonical().to_string(),
            Self::Name(name, _) => name.to_string(),
        }
    }
}

impl fmt::Display for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(address) => write!(f, "{address}"),
            Self::Name(name, port) => write!(f, "{name}:{port}"),
        }
    }
}

/// A connection to a flow's destination.
#[derive(Debug)]
pub enum Upstream {
    /// Over a path.
    Path(TrackedStream),
    /// Within this device, where no path leads.
    Local(TcpStream),
}

impl Upstream {
    /// The path it runs over; `None` within this device.
    pub fn path(&self) -> Option<PathId> {
        match self {
            Self::Path(stream) => Some(stream.path()),
            Self::Local(_) => None,
        }
    }

    /// Closes with a reset.
    pub fn abort(self) {
        match self {
            Self::Path(stream) => stream.abort(),
            Self::Local(stream) => reset(&stream),
        }
    }
}

impl Deref for Upstream {
    type Target = TcpStream;

    fn deref(&self) -> &TcpStream {
        match self {
            Self::Path(stream) => stream,
            Self::Local(stream) => stream,
        }
    }
}

/// Why no connection could be had.
#[derive(Debug, thiserror::Error)]
pub enum DialError {
    /// There is no path.
    #[error("no network can be used now; `multiway paths` says what each is missing")]
    NoPath,
    /// The destination is this proxy itself.
    #[error("the connection would lead back to this proxy")]
    Loop,
    /// The destination is this device, and the client is another one, which must not reach what only
    /// listens within it.
    #[error("this device itself is only for its own programs to connect to")]
    Intruder,
    /// The name could not be looked up.
    #[error(transparent)]
    Resolve(#[from] ResolveError),
    /// The destination could not be reached over a path.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The destination within this device could not be reached.
    #[error("{remote} could not be reached: {source}")]
    Local {
        /// The destination.
        remote: SocketAddr,
        /// The kernel's word.
        source: io::Error,
    },
}

impl DialError {
    /// True when the destination itself said no.
    pub fn is_refusal(&self) -> bool {
        match self {
            Self::Connect(error) => error.is_refusal(),
            Self::Local { source, .. } => source.kind() == io::ErrorKind::ConnectionRefused,
            Self::NoPath | Self::Loop | Self::Intruder | Self::Resolve(_) => false,
        }
    }

    /// Which of several paths' failures tells most: the destination's own word first, then what
    /// names what the network did, then that a path could not even try.
    fn telling(&self) -> u8 {
        match self {
            Self::Connect(error) if error.is_refusal() => 4,
            Self::Connect(ConnectError::Connect { .. } | ConnectError::TimedOut { .. }) => 3,
            Self::Local { .. } | Self::Loop | Self::Intruder => 3,
            Self::Resolve(ResolveError::NoSuchName { .. }) => 2,
            Self::Resolve(_) | Self::Connect(_) => 1,
            Self::NoPath => 0,
        }
    }
}

/// A flow to be connected.
#[derive(Debug)]
pub struct Dial<'a> {
    /// Where it wants to go.
    pub destination: &'a Destination,
    /// The name by which its server may be looked up elsewhere: the one its TLS handshake asks for, or
    /// one that is known to have the address.
    pub server_name: Option<&'a HostName>,
    /// The address on which it came in, which it must not be led back to.
    pub accepted_on: SocketAddr,
}

type Attempt<'a> = Pin<Box<dyn Future<Output = Result<Upstream, DialError>> + Send + 'a>>;

/// Connects to a flow's destination over the best path, falling over to the next when a path fails
/// or is slow to connect.
pub async fn dial(context: &Context, dial: Dial<'_>) -> Result<Upstream, DialError> {
    let paths = context.paths.usable_for(&dial.destination.host());
    if let Some(locals) = local_addresses(context, dial.destination, &paths) {
        return connect_locally(&locals, dial.accepted_on).await;
    }
    let mut attempts: Vec<Attempt<'_>> = Vec::new();
    match dial.destination {
        Destination::Name(name, port) => {
            for path in &paths {
                attempts.push(Box::pin(by_name(context, path.id, name, *port, None)));
            }
        }
        Destination::Address(address) => {
            for path in &paths {
                attempts.push(Box::pin(by_address(context, path.id, *address)));
            }
            for path in &paths {
                let Some(name) = dial.server_name.cloned() else { break };
                let (port, tried) = (address.port(), address.ip());
                attempts
                    .push(Box::pin(async move { by_name(context, path.id, &name, port, Some(tried)).await }));
            }
        }
    }
    race(attempts, PATH_STAGGER).await.map_err(most_telling)
}

fn most_telling(failures: Vec<DialError>) -> DialError {
    // The first of the best: that of the better path.
    failures.into_iter().rev().max_by_key(DialError::telling).unwrap_or(DialError::NoPath)
}

async fn by_address(context: &Context, path: PathId, address: SocketAddr) -> Result<Upstream, DialError> {
    let stream = context.paths.connect(path, address, CONNECT_TIMEOUT).await?;
    Ok(Upstream::Path(stream))
}

async fn by_name(
    context: &Context,
    path: PathId,
    name: &HostName,
    port: u16,
    tried: Option<IpAddr>,
) -> Result<Upstream, DialError> {
    let addresses = context.resolver.resolve(path, name.as_str()).await?;
    let attempts = addresses
        .into_iter()
        .filter(|address| Some(*address) != tried)
        .take(MAX_ADDRESSES)
        .map(|address| by_address(context, path, SocketAddr::new(address, port)));
    race(attempts, ADDRESS_STAGGER).await.map_err(most_telling)
}

/// Whether a destination lies within this device, where no path leads.
pub(super) fn leads_home(context: &Context, destination: &Destination) -> bool {
    local_addresses(context, destination, &context.paths.usable()).is_some()
}

/// The addresses of a destination within this device: loopback ones, unless a path leads there, and
/// those of its interfaces.
fn local_addresses(
    context: &Context,
    destination: &Destination,
    paths: &[PathInfo],
) -> Option<Vec<SocketAddr>> {
    if paths.iter().any(|path| path.addresses.iter().any(IpAddr::is_loopback)) {
        return None;
    }
    let addresses = match destination {
        Destination::Address(address) => vec![*address],
        Destination::Name(name, port) => {
            let fixed = context.resolver.fixed(name)?;
            fixed.into_iter().map(|ip| SocketAddr::new(ip, *port)).collect()
        }
    };
    let own: Vec<IpAddr> = context.paths.all().into_iter().flat_map(|path| path.addresses).collect();
    let is_local = |address: IpAddr| {
        let address = address.to_canonical();
        // The kernel takes the unspecified address for the loopback's.
        address.is_loopback() || address.is_unspecified() || own.contains(&address)
    };
    addresses.iter().all(|address| is_local(address.ip())).then_some(addresses)
}

async fn connect_locally(addresses: &[SocketAddr], accepted_on: SocketAddr) -> Result<Upstream, DialError> {
    if !accepted_on.ip().to_canonical().is_loopback() {
        return Err(DialError::Intruder);
    }
    let mut last = DialError::NoPath;
    for &remote in addresses {
        if remote.port() == accepted_on.port() {
            return Err(DialError::Loop);
        }
        match TcpStream::connect(remote).await {
            Ok(stream) => {
                // Whatever the application wrote at once is sent at once.
                let _ = stream.set_nodelay(true);
                return Ok(Upstream::Local(stream));
            }
            Err(source) => last = DialError::Local { remote, source },
        }
    }
    Err(last)
}
