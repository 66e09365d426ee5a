//! The sockets that a daemon listens on.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use multiway_api::{Listener, ListenerKind};
use socket2::SockRef;
use tokio::net::{TcpListener, UdpSocket};

use super::DaemonError;

/// How often a free port is looked for: the kernel chooses one for the first socket of a set, and
/// the others must have the same.
const PORT_ATTEMPTS: usize = 32;

/// Connections that the kernel completes before they are accepted: the usual `net.core.somaxconn`,
/// which bounds it. A thousand clients that come at once must not wait for the retransmission of
/// their SYN a second later.
const BACKLOG: i32 = 4096;

/// TCP on 127.0.0.1 and, where the host has IPv6, on ::1, with one port.
#[derive(Debug)]
pub(super) struct LoopbackTcp {
    pub(super) v4: TcpListener,
    pub(super) v6: Option<TcpListener>,
    pub(super) port: u16,
}

/// UDP and TCP on 127.0.0.1 and, where the host has IPv6, on ::1, with one port.
#[derive(Debug)]
pub(super) struct LoopbackDns {
    pub(super) v4: (UdpSocket, TcpListener),
    pub(super) v6: Option<(UdpSocket, TcpListener)>,
    pub(super) port: u16,
}

/// Everything a daemon listens on, bound before anything is announced.
#[derive(Debug)]
pub(super) struct Listeners {
    pub(super) proxy: TcpListener,
    pub(super) transparent: LoopbackTcp,
    pub(super) dns: LoopbackDns,
    /// For status.
    pub(super) list: Vec<Listener>,
}

impl Listeners {
    pub(super) async fn bind(listen: SocketAddr) -> Result<Self, DaemonError> {
        let proxy = listen_on(listen).map_err(|error| DaemonError::Listen { address: listen, error })?;
        let address = proxy.local_addr().map_err(|error| DaemonError::Listen { address: listen, error })?;
        let own = |error| DaemonError::Listen { address: loopback(false, 0), error };
        let transparent = LoopbackTcp::bind().await.map_err(own)?;
        let dns = LoopbackDns::bind().await.map_err(own)?;
        let mut list = vec![Listener { kind: ListenerKind::Proxy, address }];
        for (kind, port, has_v6) in [
            (ListenerKind::Transparent, transparent.port, transparent.v6.is_some()),
            (ListenerKind::Dns, dns.port, dns.v6.is_some()),
        ] {
            list.push(Listener { kind, address: loopback(false, port) });
            if has_v6 {
                list.push(Listener { kind, address: loopback(true, port) });
            }
        }
        Ok(Self { proxy, transparent, dns, list })
    }
}

impl LoopbackTcp {
    async fn bind() -> io::Result<Self> {
        with_one_port(async || {
            let v4 = listen_on(loopback(false, 0))?;
            let port = v4.local_addr()?.port();
            let v6 = if_there(listen_on(loopback(true, port)))?;
            Ok(Self { v4, v6, port })
        })
        .await
    }
}

impl LoopbackDns {
    async fn bind() -> io::Result<Self> {
        with_one_port(async || {
            let udp = UdpSocket::bind(loopback(false, 0)).await?;
            let port = udp.local_addr()?.port();
            let tcp = listen_on(loopback(false, port))?;
            let v6 = match if_there(UdpSocket::bind(loopback(true, port)).await)? {
                Some(udp) => Some((udp, listen_on(loopback(true, port))?)),
                None => None,
            };
            Ok(Self { v4: (udp, tcp), v6, port })
        })
        .await
    }
}

fn listen_on(address: SocketAddr) -> io::Result<TcpListener> {
    let listener = std::net::TcpListener::bind(address)?;
    // Listening again changes the length of the queue.
    SockRef::from(&listener).listen(BACKLOG)?;
    listener.set_nonblocking(true)?;
    TcpListener::from_std(listener)
}

async fn with_one_port<T>(mut attempt: impl AsyncFnMut() -> io::Result<T>) -> io::Result<T> {
    let mut last = attempt().await;
    for _ in 1..PORT_ATTEMPTS {
        match &last {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => last = attempt().await,
            _ => break,
        }
    }
    last
}

/// A host without IPv6 has no ::1 or not even the family.
fn if_there<T>(bound: io::Result<T>) -> io::Result<Option<T>> {
    match bound {
        Ok(socket) => Ok(Some(socket)),
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => Err(error),
        Err(error) => {
            tracing::debug!(%error, "::1 is not there, IPv4 alone is served");
            Ok(None)
        }
    }
}

fn loopback(v6: bool, port: u16) -> SocketAddr {
    let address = if v6 { IpAddr::V6(Ipv6Addr::LOCALHOST) } else { IpAddr::V4(Ipv4Addr::LOCALHOST) };
    SocketAddr::new(address, port)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn one_port_serves_both_families_and_both_protocols() {
        let listeners = Listeners::bind(loopback(false, 0)).await.unwrap();
        let dns = &listeners.dns;
        assert_eq!(dns.v4.0.local_addr().unwrap().port(), dns.v4.1.local_addr().unwrap().port());
        for tcp in listeners.transparent.v6.iter().chain(dns.v6.iter().map(|v6| &v6.1)) {
            let port = tcp.local_addr().unwrap().port();
            assert!(listeners.list.iter().any(|l| l.address == loopback(true, port)), "{:?}", listeners.list);
        }
        assert_ne!(listeners.list[0].address.port(), 0);
    }

    #[tokio::test]
    async fn a_busy_port_is_named() {
        let taken = TcpListener::bind(loopback(false, 0)).await.unwrap();
        let address = taken.local_addr().unwrap();
        let error = Listeners::bind(address).await.unwrap_err();
        assert!(error.to_string().contains(&address.to_string()), "{error}");
    }
}
