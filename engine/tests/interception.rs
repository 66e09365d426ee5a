//! Connections of an unmodified program, redirected by the kernel, through the proxy.

#[path = "../../edge/linux/tests/support/mod.rs"]
mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use hickory_proto::op::{Message, Query};
use hickory_proto::rr::rdata::A;
use hickory_proto::rr::{Name, RData, Record, RecordType};
use multiway_core::paths::Preference;
use multiway_edge::intercept::{Intercept, InterceptPlan};
use multiway_engine::config::PathOverride;
use multiway_engine::context::{Context, Features};
use multiway_engine::dns::{Resolver, SystemFiles, Upstreams};
use multiway_engine::flows::FlowTable;
use multiway_engine::journal::Journal;
use multiway_engine::paths::{PathTable, PathTableConfig};
use multiway_engine::proxy;
use multiway_engine::split::SharedBuffers;
use support::{Namespace, SERVER_V4, SERVER_V6, TwoPaths, two_paths};

const MARK: u32 = 0x4d57;
const PROXY: &str = "127.0.0.1:7070";
const DNS: &str = "127.0.0.1:7053";
/// A second server, as another path's DNS names it.
const OTHER_SERVER: &str = "192.0.2.2";
const PORT: u16 = 2525;
const WIFI: &str = "10.1.0.2";
const LTE: &str = "10.2.0.2";

/// Two paths whose DNS servers name different servers, an engine, and interception.
struct Net {
    net: TwoPaths,
    context: Context,
    _intercept: Intercept,
}

fn net() -> Option<Net> {
    let net = two_paths()?;
    net.internet.sh(&format!("ip addr add {OTHER_SERVER}/32 dev lo"));
    for server in [SERVER_V4, SERVER_V6, OTHER_SERVER] {
        greet(&net.internet, SocketAddr::new(server.parse().unwrap(), PORT));
    }
    serve_dns(&net.internet, "10.1.0.1", SERVER_V4);
    serve_dns(&net.internet, "10.2.0.1", OTHER_SERVER);
    let context = start_engine(&net.device);
    let plan = InterceptPlan {
        users: BTreeSet::from([0]),
        proxy_port: 7070,
        dns_port: Some(7053),
        bypass_mark: MARK,
        ..InterceptPlan::default()
    };
    let intercept = net.device.run(move || Intercept::install(&plan)).unwrap();
    Some(Net { net, context, _intercept: intercept })
}

/// Sends each client its address and a line end, then echoes.
fn greet(namespace: &Namespace, address: SocketAddr) {
    namespace.run(move || {
        let listener = TcpListener::bind(address).unwrap();
        thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                thread::spawn(move || {
                    let greeting = format!("{}\n", stream.peer_addr().unwrap().ip());
                    stream.write_all(greeting.as_bytes()).unwrap();
                    let mut reader = stream.try_clone().unwrap();
                    let _ = std::io::copy(&mut reader, &mut stream);
                });
            }
        });
    });
}

/// Answers every A query with `address`, every other with nothing.
fn serve_dns(namespace: &Namespace, server: &'static str, address: &'static str) {
    namespace.run(move || {
        let socket = UdpSocket::bind((server, 53)).unwrap();
        thread::spawn(move || {
            let mut buffer = [0; 2000];
            while let Ok((length, client)) = socket.recv_from(&mut buffer) {
                let query = Message::from_vec(&buffer[..length]).unwrap();
                let asked = query.queries[0].clone();
                let mut answer = query.into_response();
                if asked.query_type() == RecordType::A {
                    let data = RData::A(A(address.parse().unwrap()));
                    answer.add_answer(Record::from_rdata(asked.name().clone(), 60, data));
                }
                socket.send_to(&answer.to_vec().unwrap(), client).unwrap();
            }
        });
    });
}

/// The engine's proxy and resolver inside, until the test ends.
fn start_engine(device: &Namespace) -> Context {
    let (started, context) = mpsc::channel();
    device.run(move || {
        // Threads made here are in this namespace.
        thread::spawn(move || {
            let runtime =
                tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
            runtime.block_on(async move {
                let dns = |server: &str| PathOverride {
                    dns: vec![server.parse().unwrap()],
                    ..PathOverride::default()
                };
                let paths = PathTable::start(PathTableConfig {
                    overrides: BTreeMap::from([
                        ("wlan0".to_owned(), dns("10.1.0.1")),
                        ("wwan0".to_owned(), dns("10.2.0.1")),
                    ]),
                    mark: Some(MARK),
                    ..PathTableConfig::default()
                })
                .unwrap();
                let upstreams = Upstreams::new(Vec::new(), SystemFiles::default());
                let context = Context {
                    resolver: Resolver::new(Arc::new(paths.clone()), upstreams),
                    paths,
                    flows: FlowTable::default(),
                    owners: proxy::Owners::default(),
                    features: Features::default(),
                    preference: Preference::default(),
                    bond: multiway_engine::bond::BondSlot::default(),
                    buffers: SharedBuffers::unshared(64 << 20),
                    journal: Journal::default(),
                };
                let proxy = tokio::net::TcpListener::bind(PROXY).await.unwrap();
                let proxy_v6 = tokio::net::TcpListener::bind("[::1]:7070").await.unwrap();
                let tcp = tokio::net::TcpListener::bind(DNS).await.unwrap();
                let udp = tokio::net::UdpSocket::bind(DNS).await.unwrap();
                started.send(context.clone()).unwrap();
                tokio::select! {
                    ended = proxy::serve(context.clone(), proxy) => panic!("{ended:?}"),
                    ended = proxy::serve(context.clone(), proxy_v6) => panic!("{ended:?}"),
                    ended = context.resolver.serve(udp, tcp) => panic!("{ended:?}"),
                }
            });
        });
    });
    context.recv_timeout(Duration::from_secs(20)).unwrap()
}

/// What a plain program hears that says nothing first, and how long it waited.
fn hear(device: &Namespace, server: &str) -> (std::io::Result<String>, Duration) {
    let to = SocketAddr::new(server.parse().unwrap(), PORT);
    device.run(move || {
        let started = Instant::now();
        let mut stream = TcpStream::connect_timeout(&to, Duration::from_secs(5)).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        (read_line(&mut stream), started.elapsed())
    })
}

fn read_line(stream: &mut TcpStream) -> std::io::Result<String> {
    let mut line = Vec::new();
    let mut byte = [0];
    loop {
        stream.read_exact(&mut byte)?;
        if byte[0] == b'\n' {
            return Ok(String::from_utf8(line).unwrap());
        }
        line.push(byte[0]);
    }
}

/// What a plain program's resolver hears from a server of its own choice.
fn look_up(device: &Namespace, name: &str) -> Vec<IpAddr> {
    let mut query = Message::query();
    query.metadata.id = 4711;
    query.metadata.recursion_desired = true;
    query.add_query(Query::query(Name::from_ascii(name).unwrap(), RecordType::A));
    let query = query.to_vec().unwrap();
    device.run(move || {
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        socket.connect("198.51.100.53:53").unwrap();
        socket.send(&query).unwrap();
        let mut buffer = [0; 2000];
        let length = socket.recv(&mut buffer).unwrap();
        let answer = Message::from_vec(&buffer[..length]).unwrap();
        assert_eq!(answer.metadata.id, 4711);
        answer.answers.iter().filter_map(|record| record.data.ip_addr()).collect()
    })
}

#[test]
fn a_server_that_speaks_first_is_heard_at_once_over_the_preferred_path() {
    let Some(net) = net() else { return };
    for (server, client) in [(SERVER_V4, WIFI), (SERVER_V6, "2001:db8:1::2")] {
        let (heard, waited) = hear(&net.net.device, server);
        assert_eq!(heard.unwrap(), client);
        assert!(waited < Duration::from_secs(2), "{waited:?}");
    }
}

#[test]
fn bytes_that_are_neither_http_nor_tls_pass_unchanged_and_name_their_program() {
    let Some(net) = net() else { return };
    let context = net.context.clone();
    let (greeting, echo, program) = net.net.device.run(move || {
        let mut stream = TcpStream::connect((SERVER_V4, PORT)).unwrap();
        stream.write_all(b"\x00\xffnot a protocol").unwrap();
        let greeting = read_line(&mut stream).unwrap();
        let deadline = Instant::now() + Duration::from_secs(10);
        let program = loop {
            let program = context.flows.running().first().and_then(|flow| flow.program.clone());
            if program.is_some() || Instant::now() > deadline {
                break program;
            }
            thread::sleep(Duration::from_millis(10));
        };
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let mut echo = Vec::new();
        stream.read_to_end(&mut echo).unwrap();
        (greeting, echo, program)
    });
    assert_eq!((greeting.as_str(), echo.as_slice()), (WIFI, &b"\x00\xffnot a protocol"[..]));
    let own_name = std::fs::read_to_string("/proc/self/comm").unwrap();
    assert_eq!(program.as_deref(), Some(own_name.trim_end()));
}

#[test]
fn a_silent_path_gives_way_to_the_next_one() {
    let Some(net) = net() else { return };
    // Nothing comes back to the Wi-Fi address, and nobody says so.
    net.net.internet.sh(&format!("ip route add blackhole {WIFI}/32"));
    let (heard, waited) = hear(&net.net.device, SERVER_V4);
    assert_eq!(heard.unwrap(), LTE);
    assert!(waited < Duration::from_secs(3), "{waited:?}");
}

#[test]
fn when_the_original_server_is_gone_the_name_leads_to_another() {
    let Some(net) = net() else { return };
    let found = look_up(&net.net.device, "cdn.example.com.");
    assert_eq!(found, [SERVER_V4.parse::<IpAddr>().unwrap()], "the preferred path's answer");
    net.net.internet.sh(&format!("ip addr del {SERVER_V4}/32 dev lo"));
    let hello = client_hello(b"cdn.example.com");
    let greeting = net.net.device.run(move || {
        let mut stream = TcpStream::connect((SERVER_V4, PORT)).unwrap();
        stream.write_all(&hello).unwrap();
        read_line(&mut stream).unwrap()
    });
    assert_eq!(greeting, LTE, "the other path's server of the same name");
    // Whoever owns a name can give it any address: without a word of the program, which its server will
    // have to live up to, nobody is led elsewhere.
    let (heard, _) = hear(&net.net.device, SERVER_V4);
    assert_eq!(heard.unwrap_err().kind(), ErrorKind::ConnectionReset);
}

/// A ClientHello that asks for `name` and offers little else, RFC 8446 section 4.1.2.
fn client_hello(name: &[u8]) -> Vec<u8> {
    let sized = |bytes: &[u8]| -> Vec<u8> {
        let length = u16::try_from(bytes.len()).unwrap();
        [&length.to_be_bytes()[..], bytes].concat()
    };
    let list = sized(&[&[0][..], &sized(name)].concat());
    let extensions = sized(&[&[0, 0][..], &sized(&list)].concat());
    let body = [&[3, 3][..], &[7; 32], &[0], &sized(&[0x13, 1]), &[1, 0], &extensions].concat();
    let handshake = [&[1, 0][..], &sized(&body)].concat();
    [&[22, 3, 1][..], &sized(&handshake)].concat()
}

#[test]
fn an_unreachable_destination_resets_the_program() {
    let Some(net) = net() else { return };
    net.net.internet.sh(&format!(
        "ip addr del {SERVER_V4}/32 dev lo
         ip route add unreachable {SERVER_V4}/32
         echo 1 > /proc/sys/net/ipv4/ip_forward"
    ));
    let (heard, _) = hear(&net.net.device, SERVER_V4);
    assert_eq!(heard.unwrap_err().kind(), ErrorKind::ConnectionReset);
    // The flow leaves the table just after its client hears of it.
    while net.context.flows.recent().is_empty() {
        thread::yield_now();
    }
    let why = net.context.flows.recent()[0].why.clone();
    assert!(why.contains("could not be reached"), "{why}");
}
