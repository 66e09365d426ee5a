//! DNS servers on the loopback that say what a test tells them, and paths that lead to them.

use std::collections::BTreeMap;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use hickory_proto::op::{Message, ResponseCode};
use hickory_proto::rr::rdata::{A, AAAA, CNAME};
use hickory_proto::rr::{Name, RData, Record, RecordType};
use multiway_core::paths::{NetworkIdentity, PathId, PathInfo, PathKind, PathState, Preference};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UdpSocket};

use super::resolver::Resolver;
use super::uplinks::{ByteStream, Opening, Uplinks};
use super::upstreams::{SystemFiles, Upstreams};

/// A message to send back, after a while.
pub(super) struct Reply {
    pub(super) after: Duration,
    pub(super) message: Message,
}

impl From<Message> for Reply {
    fn from(message: Message) -> Self {
        Self { after: Duration::ZERO, message }
    }
}

/// How a query came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Over {
    Udp,
    Tcp,
}

/// What a server does with each query.
pub(super) type Behaviour = Arc<dyn Fn(&Message, Over) -> Vec<Reply> + Send + Sync>;

/// A running server.
pub(super) struct FakeServer {
    pub(super) address: SocketAddr,
    pub(super) queries: Arc<AtomicUsize>,
}

impl FakeServer {
    pub(super) async fn start(behave: impl Fn(&Message, Over) -> Vec<Reply> + Send + Sync + 'static) -> Self {
        let behave: Behaviour = Arc::new(behave);
        let tcp = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a free port");
        let address = tcp.local_addr().expect("bound");
        let udp = Arc::new(UdpSocket::bind(address).await.expect("the UDP port of the same number"));
        let queries = Arc::new(AtomicUsize::new(0));
        let server = Self { address, queries: Arc::clone(&queries) };
        let (behave_tcp, count) = (Arc::clone(&behave), Arc::clone(&queries));
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = tcp.accept().await {
                while let Ok(length) = stream.read_u16().await {
                    let mut query = vec![0; usize::from(length)];
                    if stream.read_exact(&mut query).await.is_err() {
                        break;
                    }
                    count.fetch_add(1, Ordering::Relaxed);
                    let query = Message::from_vec(&query).expect("a query");
                    for reply in behave_tcp(&query, Over::Tcp) {
                        tokio::time::sleep(reply.after).await;
                        let bytes = reply.message.to_vec().expect("a message");
                        let length = u16::try_from(bytes.len()).expect("a short message");
                        let framed = [&length.to_be_bytes()[..], &bytes].concat();
                        let _ = stream.write_all(&framed).await;
                    }
                }
            }
        });
        tokio::spawn(async move {
            let mut buffer = vec![0; 2000];
            while let Ok((length, client)) = udp.recv_from(&mut buffer).await {
                queries.fetch_add(1, Ordering::Relaxed);
                let query = Message::from_vec(&buffer[..length]).expect("a query");
                let replies = behave(&query, Over::Udp);
                let udp = Arc::clone(&udp);
                tokio::spawn(async move {
                    for reply in replies {
                        tokio::time::sleep(reply.after).await;
                        let bytes = reply.message.to_vec().expect("a message");
                        let _ = udp.send_to(&bytes, client).await;
                    }
                });
            }
        });
        server
    }

    /// A server that knows these IPv4 addresses and nothing else of these names.
    pub(super) async fn with(zone: &[(&str, &[&str])]) -> Self {
        let zone: BTreeMap<Name, Vec<Ipv4Addr>> = zone
            .iter()
            .map(|(n, a)| (name(n), a.iter().map(|a| a.parse().expect("an address")).collect()))
            .collect();
        Self::start(move |query, _| {
            let mut message = answer(query, Vec::new());
            match zone.get(&query.queries[0].name) {
                Some(addresses) if query.queries[0].query_type == RecordType::A => {
                    for address in addresses {
                        message.add_answer(a(&query.queries[0].name, *address));
                    }
                }
                Some(_) => {}
                None => message.metadata.response_code = ResponseCode::NXDomain,
            }
            vec![message.into()]
        })
        .await
    }

    pub(super) async fn silent() -> Self {
        Self::start(|_, _| Vec::new()).await
    }

    pub(super) fn queries(&self) -> usize {
        self.queries.load(Ordering::Relaxed)
    }
}

pub(super) fn name(text: &str) -> Name {
    let mut name = Name::from_ascii(text).expect("a literal of a test");
    name.set_fqdn(true);
    name
}

pub(super) fn answer(query: &Message, answers: Vec<Record>) -> Message {
    let mut message = Message::response(query.metadata.id, query.metadata.op_code);
    message.metadata.recursion_available = true;
    message.add_queries(query.queries.iter().cloned());
    message.add_answers(answers);
    message
}

pub(super) fn a(of: &Name, address: Ipv4Addr) -> Record {
    Record::from_rdata(of.clone(), 60, RData::A(A(address)))
}

pub(super) fn aaaa(of: &Name, address: &str) -> Record {
    Record::from_rdata(of.clone(), 60, RData::AAAA(AAAA(address.parse().expect("an address"))))
}

pub(super) fn alias(from: &str, to: &str) -> Record {
    Record::from_rdata(name(from), 60, RData::CNAME(CNAME(name(to))))
}

/// Paths 1, 2, ... each with one DNS server behind it; path 1 is preferred.
pub(super) struct FakeUplinks {
    paths: Mutex<Vec<PathInfo>>,
    routes: BTreeMap<SocketAddr, SocketAddr>,
}

impl FakeUplinks {
    pub(super) fn to(servers: &[&FakeServer]) -> Arc<Self> {
        let mut routes = BTreeMap::new();
        let paths = servers
            .iter()
            .zip(1_u8..)
            .map(|(server, number)| {
                let dns_server = Ipv4Addr::new(192, 0, 2, number);
                routes.insert(SocketAddr::from((dns_server, 53)), server.address);
                PathInfo {
                    id: PathId(u32::from(number)),
                    interface: format!("if{number}"),
                    kind: PathKind::Other,
                    metered: false,
                    addresses: Vec::new(),
                    gateways: Vec::new(),
                    dns_servers: vec![dns_server.into()],
                    network: NetworkIdentity::default(),
                    state: PathState::Up,
                }
            })
            .collect();
        Arc::new(Self { paths: Mutex::new(paths), routes })
    }

    /// Lists `server` before the ones that the path has.
    pub(super) fn listing_first(mut self: Arc<Self>, path: PathId, server: &FakeServer) -> Arc<Self> {
        let uplinks = Arc::get_mut(&mut self).expect("nobody else has it yet");
        let address = Ipv4Addr::new(198, 51, 100, uplinks.routes.len() as u8);
        uplinks.routes.insert(SocketAddr::from((address, 53)), server.address);
        let mut paths = uplinks.paths.lock().expect("no panic under the lock");
        for info in paths.iter_mut().filter(|info| info.id == path) {
            info.dns_servers.insert(0, address.into());
        }
        drop(paths);
        self
    }

    /// Has every path join another network.
    pub(super) fn join(&self, network: &str) {
        for path in self.paths.lock().expect("no panic under the lock").iter_mut() {
            path.network = NetworkIdentity(network.to_owned());
        }
    }

    fn route(&self, remote: SocketAddr) -> io::Result<SocketAddr> {
        self.routes.get(&remote).copied().ok_or_else(|| io::ErrorKind::NetworkUnreachable.into())
    }
}

impl Uplinks for FakeUplinks {
    fn usable(&self) -> Vec<PathInfo> {
        self.paths.lock().expect("no panic under the lock").clone()
    }

    fn udp(&self, _: PathId, remote: SocketAddr) -> Opening<'_, UdpSocket> {
        Box::pin(async move {
            let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await?;
            socket.connect(self.route(remote)?).await?;
            Ok(socket)
        })
    }

    fn tcp(&self, _: PathId, remote: SocketAddr, _: Duration) -> Opening<'_, Box<dyn ByteStream>> {
        Box::pin(async move {
            let stream = TcpStream::connect(self.route(remote)?).await?;
            Ok(Box::new(stream) as Box<dyn ByteStream>)
        })
    }
}

/// A thrifty resolver over two servers, the second on a metered path.
pub(super) fn thrifty_resolver(free: &FakeServer, metered: &FakeServer) -> Resolver {
    let uplinks = FakeUplinks::to(&[free, metered]);
    uplinks.paths.lock().expect("no panic under the lock")[1].metered = true;
    Resolver::preferring(Preference::THRIFTY, uplinks, no_upstreams())
}

/// A resolver over `servers`, one per path, that reads none of the host's files.
pub(super) fn resolver(servers: &[&FakeServer]) -> Resolver {
    resolver_over(FakeUplinks::to(servers))
}

pub(super) fn resolver_over(uplinks: Arc<FakeUplinks>) -> Resolver {
    Resolver::new(uplinks, no_upstreams())
}

fn no_upstreams() -> Upstreams {
    let nowhere = SystemFiles {
        hosts: "/nonexistent/hosts".into(),
        resolv_conf: "/nonexistent/resolv.conf".into(),
        stub_servers: "/nonexistent/stub".into(),
    };
    Upstreams::new(Vec::new(), nowhere)
}
