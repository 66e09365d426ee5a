//! SOCKS5, RFC 1928: CONNECT without authentication.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::bonded::{self, Bonded};
use super::transparent::{self, Flow};
use super::tunnel::{Destination, Dial, DialError, dial};
use crate::context::Context;
use crate::dns::ResolveError;
use crate::paths::ConnectError;

/// The protocol's version, the first octet of every message.
pub(super) const VERSION: u8 = 5;

/// "No authentication required", RFC 1928 section 3.
const NO_AUTHENTICATION: u8 = 0x00;

/// "No acceptable methods", RFC 1928 section 3.
const NO_METHOD: u8 = 0xff;

/// The port of HTTP (RFC 9110 section 4.2.1).
const HTTP: u16 = 80;

/// How long a client may take for its handshake.
const PATIENCE: Duration = Duration::from_secs(30);

/// Reply codes, RFC 1928 section 6.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum Reply {
    Succeeded = 0,
    GeneralFailure = 1,
    NotAllowed = 2,
    NetworkUnreachable = 3,
    HostUnreachable = 4,
    ConnectionRefused = 5,
    CommandNotSupported = 7,
    AddressTypeNotSupported = 8,
}

/// Why a handshake ended.
#[derive(Debug, thiserror::Error)]
enum HandshakeError {
    /// The client left or broke the protocol.
    #[error(transparent)]
    Broken(#[from] io::Error),
    /// The client asked for what is not offered.
    #[error("the client offers no method without authentication")]
    NoMethod,
    /// The request cannot be served.
    #[error("the request is refused: {0:?}")]
    Refused(Reply),
}

/// Serves one client that has sent nothing but SOCKS so far.
pub(super) async fn serve(context: Context, mut client: TcpStream) -> io::Result<()> {
    let destination = match timeout(PATIENCE, handshake(&mut client)).await? {
        Ok(destination) => destination,
        Err(HandshakeError::Broken(error)) => return Err(error),
        Err(HandshakeError::NoMethod) => return client.write_all(&[VERSION, NO_METHOD]).await,
        Err(HandshakeError::Refused(reply)) => return answer(&mut client, reply, None).await,
    };
    let accepted_on = client.local_addr()?;
    let flow = context.flows.open(None, destination.to_string());
    context.owners.identify(&flow, &client, accepted_on);
    // What goes to the port of HTTP is looked at before, for it may be split.
    if destination.port() != HTTP {
        match bonded::open(&context, &destination, &[], &flow).await {
            Bonded::Stream(stream) => {
                answer(&mut client, Reply::Succeeded, None).await?;
                return bonded::carry(client, stream, &flow).await;
            }
            Bonded::Failed(_) => return answer(&mut client, Reply::HostUnreachable, None).await,
            Bonded::Steer => {}
        }
    }
    let target = Dial { destination: &destination, server_name: None, accepted_on };
    match dial(&context, target).await {
        Ok(upstream) => {
            answer(&mut client, Reply::Succeeded, upstream.local_addr().ok()).await?;
            transparent::settle(context, Flow { client, destination, flow }, upstream).await
        }
        Err(error) => {
            tracing::debug!(%destination, %error, "a SOCKS request failed");
            answer(&mut client, reply_for(&error), None).await
        }
    }
}

/// Reads the greeting and the request, and returns where the client wants to go.
async fn handshake(client: &mut TcpStream) -> Result<Destination, HandshakeError> {
    let method = read_greeting(client).await?;
    client.write_all(&[VERSION, method]).await?;
    read_request(client).await
}

async fn read_greeting(client: &mut (impl AsyncRead + Unpin)) -> Result<u8, HandshakeError> {
    expect_version(client.read_u8().await?)?;
    let mut methods = vec![0; usize::from(client.read_u8().await?)];
    client.read_exact(&mut methods).await?;
    methods.contains(&NO_AUTHENTICATION).then_some(NO_AUTHENTICATION).ok_or(HandshakeError::NoMethod)
}

/// Reads a request whole, even one to be refused, so that the refusal is not lost to a reset.
async fn read_request(client: &mut (impl AsyncRead + Unpin)) -> Result<Destination, HandshakeError> {
    const CONNECT: u8 = 1;
    const IPV4: u8 = 1;
    const DOMAIN: u8 = 3;
    const IPV6: u8 = 4;

    expect_version(client.read_u8().await?)?;
    let command = client.read_u8().await?;
    let _reserved = client.read_u8().await?;
    enum Host {
        Address(IpAddr),
        Domain(Vec<u8>),
    }
    let host = match client.read_u8().await? {
        IPV4 => Host::Address(Ipv4Addr::from(client.read_u32().await?).into()),
        IPV6 => Host::Address(Ipv6Addr::from(client.read_u128().await?).into()),
        DOMAIN => {
            let mut domain = vec![0; usize::from(client.read_u8().await?)];
            client.read_exact(&mut domain).await?;
            Host::Domain(domain)
        }
        // Of an unknown type not even the length is known.
        _ => return Err(HandshakeError::Refused(Reply::AddressTypeNotSupported)),
    };
    let port = client.read_u16().await?;
    // BIND and UDP ASSOCIATE are not offered.
    if command != CONNECT {
        return Err(HandshakeError::Refused(Reply::CommandNotSupported));
    }
    match host {
        Host::Address(address) => Ok(Destination::Address(SocketAddr::new(address, port))),
        Host::Domain(domain) => std::str::from_utf8(&domain)
            .ok()
            .and_then(|text| Destination::parse(text, port))
            .ok_or(HandshakeError::Refused(Reply::HostUnreachable)),
    }
}

fn expect_version(version: u8) -> Result<(), HandshakeError> {
    if version == VERSION {
        return Ok(());
    }
    let text = format!("SOCKS version {version} is not spoken here, only {VERSION}");
    Err(HandshakeError::Broken(io::Error::new(io::ErrorKind::InvalidData, text)))
}

fn reply_for(error: &DialError) -> Reply {
    match error {
        _ if error.is_refusal() => Reply::ConnectionRefused,
        DialError::Loop | DialError::Intruder | DialError::Connect(ConnectError::Denied { .. }) => {
            Reply::NotAllowed
        }
        DialError::NoPath => Reply::NetworkUnreachable,
        DialError::Resolve(ResolveError::PathUnusable { .. }) => Reply::NetworkUnreachable,
        DialError::Resolve(_) => Reply::HostUnreachable,
        DialError::Connect(ConnectError::Connect { source, .. }) => match source.kind() {
            io::ErrorKind::NetworkUnreachable => Reply::NetworkUnreachable,
            _ => Reply::HostUnreachable,
        },
        DialError::Connect(ConnectError::TimedOut { .. }) => Reply::HostUnreachable,
        DialError::Connect(ConnectError::Bind { .. }) | DialError::Local { .. } => Reply::GeneralFailure,
        DialError::Connect(_) => Reply::NetworkUnreachable,
    }
}

/// Sends a reply with the address the connection comes from, or a blank one.
async fn answer(client: &mut TcpStream, reply: Reply, bound: Option<SocketAddr>) -> io::Result<()> {
    let bound = bound.unwrap_or_else(|| SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0));
    let mut bytes = vec![VERSION, reply as u8, 0];
    match bound.ip().to_canonical() {
        IpAddr::V4(address) => {
            bytes.push(1);
            bytes.extend(address.octets());
        }
        IpAddr::V6(address) => {
            bytes.push(4);
            bytes.extend(address.octets());
        }
    }
    bytes.extend(bound.port().to_be_bytes());
    client.write_all(&bytes).await
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn request(bytes: &[u8]) -> Result<Destination, HandshakeError> {
        let mut bytes = bytes;
        read_request(&mut bytes).await
    }

    #[tokio::test]
    async fn addresses_and_names_are_read() {
        let v4 = request(&[5, 1, 0, 1, 192, 0, 2, 1, 0, 80]).await.expect("valid");
        assert_eq!(v4.to_string(), "192.0.2.1:80");
        let mut v6 = vec![5, 1, 0, 4];
        v6.extend([0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 187]);
        assert_eq!(request(&v6).await.expect("valid").to_string(), "[2001:db8::1]:443");
        let name = request(b"\x05\x01\x00\x03\x0bexample.com\x00\x50").await.expect("valid");
        assert!(matches!(name, Destination::Name(..)));
        let literal = request(b"\x05\x01\x00\x03\x09192.0.2.1\x00\x50").await.expect("valid");
        assert_eq!(literal, v4, "an address sent as a name is an address");
    }

    #[tokio::test]
    async fn what_is_not_offered_is_refused_with_its_own_code() {
        let refusal = async |bytes: &[u8]| match request(bytes).await {
            Err(HandshakeError::Refused(reply)) => reply,
            other => panic!("{other:?}"),
        };
        let udp_associate = [5, 3, 0, 1, 0, 0, 0, 0, 0, 0];
        assert_eq!(refusal(&udp_associate).await, Reply::CommandNotSupported);
        let bind = [5, 2, 0, 1, 192, 0, 2, 1, 0, 80];
        assert_eq!(refusal(&bind).await, Reply::CommandNotSupported);
        assert_eq!(refusal(&[5, 1, 0, 9, 0]).await, Reply::AddressTypeNotSupported);
        assert_eq!(refusal(b"\x05\x01\x00\x03\x03a b\x00\x50").await, Reply::HostUnreachable);
        assert_eq!(refusal(b"\x05\x01\x00\x03\x00\x00\x50").await, Reply::HostUnreachable);
    }

    #[tokio::test]
    async fn broken_requests_end_the_connection() {
        for broken in [&[4, 1, 0, 80][..], &[5, 1, 0, 1, 192], &[5, 1, 0, 3, 9, b'a'], &[]] {
            assert!(matches!(request(broken).await, Err(HandshakeError::Broken(_))), "{broken:?}");
        }
    }

    #[tokio::test]
    async fn a_client_that_insists_on_authentication_is_turned_away() {
        let greet = async |mut bytes: &[u8]| read_greeting(&mut bytes).await;
        assert!(matches!(greet(&[5, 2, 2, 0]).await, Ok(NO_AUTHENTICATION)));
        assert!(matches!(greet(&[5, 1, 2]).await, Err(HandshakeError::NoMethod)));
        assert!(matches!(greet(&[5, 0]).await, Err(HandshakeError::NoMethod)));
    }
}
