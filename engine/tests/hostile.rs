//! Servers that mean harm, and clients that go away, over two paths that both lead to the loopback.
#![allow(clippy::unwrap_used, missing_docs, reason = "a test fails by panicking")]

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use multiway_core::paths::{NetworkIdentity, PathId, PathInfo, PathKind, PathState, Preference};
use multiway_engine::context::{Context, Features};
use multiway_engine::dns::{Resolver, SystemFiles, Upstreams};
use multiway_engine::flows::FlowTable;
use multiway_engine::get::{self, GetError, GetOptions};
use multiway_engine::journal::Journal;
use multiway_engine::paths::{PathTable, PathTableConfig};
use multiway_engine::proxy;
use multiway_engine::split::SharedBuffers;
use rustls_pki_types::PrivateKeyDer;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;

/// The preferred path and the other one, told apart at the server by the client's address.
const WIFI: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 1, 1));
const LTE: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 2, 1));

/// Bound on everything that is waited for; a loaded machine takes a fraction of it.
const PATIENCE: Duration = Duration::from_secs(20);

/// A context over both paths, in which `files.example` is the loopback.
fn context(home: &tempfile::TempDir) -> Context {
    let path = |id, address, kind| PathInfo {
        id: PathId(id),
        interface: "lo".to_owned(),
        kind,
        metered: false,
        addresses: vec![address],
        gateways: Vec::new(),
        dns_servers: Vec::new(),
        network: NetworkIdentity::default(),
        state: PathState::Up,
    };
    let paths = vec![path(1, WIFI, PathKind::Wifi), path(2, LTE, PathKind::Cellular)];
    let paths = PathTable::with_paths(paths, PathTableConfig::default()).unwrap();
    let file = |name: &str| home.path().join(name);
    std::fs::write(file("hosts"), "127.0.0.1 files.example\n").unwrap();
    let files =
        SystemFiles { hosts: file("hosts"), resolv_conf: file("resolv.conf"), stub_servers: file("stub") };
    Context {
        resolver: Resolver::new(Arc::new(paths.clone()), Upstreams::new(Vec::new(), files)),
        paths,
        flows: FlowTable::default(),
        owners: proxy::Owners::default(),
        features: Features::default(),
        preference: Preference::default(),
        bond: multiway_engine::bond::BondSlot::default(),
        buffers: SharedBuffers::unshared(64 << 20),
        journal: Journal::default(),
    }
}

async fn listen() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

/// A proxy over `context`, and its address.
async fn start_proxy(context: &Context) -> SocketAddr {
    let (listener, address) = listen().await;
    tokio::spawn(proxy::serve(context.clone(), listener));
    address
}

async fn read_head(stream: &mut (impl AsyncReadExt + Unpin)) -> Option<String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.ok()?);
    }
    String::from_utf8(head).ok()
}

/// A server that hears requests and says nothing; each connection's end is reported.
async fn silent_server() -> (SocketAddr, mpsc::UnboundedReceiver<&'static str>) {
    let (listener, address) = listen().await;
    let (report, reports) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let report = report.clone();
            tokio::spawn(async move {
                if read_head(&mut stream).await.is_some() {
                    let _ = report.send("asked");
                    while stream.read_u8().await.is_ok() {}
                    let _ = report.send("left");
                }
            });
        }
    });
    (address, reports)
}

#[tokio::test]
async fn a_program_that_goes_away_ends_the_connections_made_for_it() {
    let home = tempfile::tempdir().unwrap();
    let proxy = start_proxy(&context(&home)).await;
    for (request, rest, is_half_closed) in [
        ("GET", "\r\n", false),
        ("GET", "\r\n", true),
        ("DELETE", "\r\n", false),
        ("DELETE", "\r\n", true),
        ("POST", "Content-Length: 9\r\n\r\npart", false),
        ("POST", "Content-Length: 4\r\n\r\npart", true),
    ] {
        let (server, mut reports) = silent_server().await;
        let mut client = TcpStream::connect(proxy).await.unwrap();
        let host = format!("files.example:{}", server.port());
        client
            .write_all(format!("{request} http://{host}/ HTTP/1.1\r\nHost: {host}\r\n{rest}").as_bytes())
            .await
            .unwrap();
        assert_eq!(timeout(PATIENCE, reports.recv()).await.unwrap(), Some("asked"), "{request}");
        if is_half_closed {
            client.shutdown().await.unwrap();
        }
        // In good order, as by the end of a process that has nothing unread.
        drop(client);
        let left = async { while reports.recv().await.unwrap() != "left" {} };
        timeout(PATIENCE, left).await.expect(request);
    }
}

#[tokio::test]
async fn a_server_that_never_stops_sending_interim_answers_is_left_with_the_program() {
    let home = tempfile::tempdir().unwrap();
    let proxy = start_proxy(&context(&home)).await;
    let (listener, server) = listen().await;
    let (report, mut reports) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let report = report.clone();
            tokio::spawn(async move {
                read_head(&mut stream).await.unwrap();
                let _ = report.send("asked");
                let heads = "HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n".repeat(1000);
                while stream.write_all(heads.as_bytes()).await.is_ok() {}
                let _ = report.send("left");
            });
        }
    });
    let mut client = TcpStream::connect(proxy).await.unwrap();
    let host = format!("files.example:{}", server.port());
    client
        .write_all(format!("GET http://{host}/ HTTP/1.1\r\nHost: {host}\r\n\r\n").as_bytes())
        .await
        .unwrap();
    assert_eq!(timeout(PATIENCE, reports.recv()).await.unwrap(), Some("asked"));
    drop(client);
    let left = async { while reports.recv().await.unwrap() != "left" {} };
    timeout(PATIENCE, left).await.expect("it is left");
}

#[tokio::test]
async fn a_client_that_only_stops_sending_gets_its_answer_however_late() {
    let home = tempfile::tempdir().unwrap();
    let proxy = start_proxy(&context(&home)).await;
    let (listener, server) = listen().await;
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                read_head(&mut stream).await.unwrap();
                // Longer than it takes to look whether the client is there.
                tokio::time::sleep(Duration::from_millis(2500)).await;
                let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nlate").await;
            });
        }
    });
    for request in ["GET", "DELETE"] {
        let mut client = TcpStream::connect(proxy).await.unwrap();
        let host = format!("files.example:{}", server.port());
        client
            .write_all(format!("{request} http://{host}/ HTTP/1.1\r\nHost: {host}\r\n\r\n").as_bytes())
            .await
            .unwrap();
        client.shutdown().await.unwrap();
        let mut answer = String::new();
        timeout(PATIENCE, client.read_to_string(&mut answer)).await.unwrap().unwrap();
        assert!(answer.ends_with("\r\n\r\nlate"), "{request}: {answer}");
    }
}

#[tokio::test]
async fn a_request_that_a_server_holds_is_sent_once() {
    let home = tempfile::tempdir().unwrap();
    let proxy = start_proxy(&context(&home)).await;
    let (listener, server) = listen().await;
    let (report, mut reports) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let report = report.clone();
            tokio::spawn(async move {
                read_head(&mut stream).await.unwrap();
                report.send("asked").unwrap();
                // Longer than a path that says nothing at all is given; lab/simtest has the hours.
                tokio::time::sleep(Duration::from_secs(6)).await;
                let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nnews").await;
            });
        }
    });
    let mut client = TcpStream::connect(proxy).await.unwrap();
    let host = format!("files.example:{}", server.port());
    let request = format!("GET http://{host}/poll HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
    client.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    timeout(PATIENCE, client.read_to_string(&mut answer)).await.unwrap().unwrap();
    assert!(answer.ends_with("\r\n\r\nnews"), "{answer}");
    assert_eq!(reports.recv().await, Some("asked"));
    assert!(reports.try_recv().is_err(), "it was asked again");
}

#[tokio::test]
async fn of_endless_interim_answers_only_some_are_kept() {
    let home = tempfile::tempdir().unwrap();
    let proxy = start_proxy(&context(&home)).await;
    let (listener, server) = listen().await;
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                read_head(&mut stream).await.unwrap();
                for _ in 0..1000 {
                    stream.write_all(b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n").await.unwrap();
                }
                stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\ndone").await.unwrap();
                while stream.read_u8().await.is_ok() {}
            });
        }
    });
    let mut client = TcpStream::connect(proxy).await.unwrap();
    let host = format!("files.example:{}", server.port());
    let request = format!("GET http://{host}/ HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
    client.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    timeout(PATIENCE, client.read_to_string(&mut answer)).await.unwrap().unwrap();
    assert!(answer.ends_with("\r\n\r\ndone"), "{answer}");
    assert!((1..100).contains(&answer.matches(" 103 ").count()), "{answer}");
}

/// A certificate for 127.0.0.1 that is its own authority, and a TLS server's end of it.
fn certificate() -> (String, TlsAcceptor) {
    let made = rcgen::generate_simple_self_signed(vec!["127.0.0.1".to_owned()]).unwrap();
    let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
    let provider = Arc::new(tokio_rustls::rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], key)
        .unwrap();
    (made.cert.pem(), TlsAcceptor::from(Arc::new(config)))
}

/// A server of 1 MB by TLS that shows a certificate of somebody else's to clients from `betrayed`.
async fn tls_server(betrayed: &'static [IpAddr]) -> (SocketAddr, String) {
    let ((pem, honest), (_, forged)) = (certificate(), certificate());
    let (listener, address) = listen().await;
    tokio::spawn(async move {
        while let Ok((stream, peer)) = listener.accept().await {
            let acceptor = if betrayed.contains(&peer.ip()) { forged.clone() } else { honest.clone() };
            tokio::spawn(async move {
                let mut stream = acceptor.accept(stream).await.ok()?;
                while let Some(head) = read_head(&mut stream).await {
                    const TOTAL: usize = 1_000_000;
                    let range = head.split("bytes=").nth(1).and_then(|rest| rest.split("\r\n").next());
                    let (first, last) = match range.and_then(|range| range.split_once('-')) {
                        Some(("", length)) => (TOTAL - length.parse::<usize>().unwrap(), TOTAL - 1),
                        Some((first, last)) => {
                            (first.parse().unwrap(), last.parse().unwrap_or(TOTAL - 1).min(TOTAL - 1))
                        }
                        None => (0, TOTAL - 1),
                    };
                    let body: Vec<u8> = (first..=last).map(|at| (at % 251) as u8).collect();
                    let head = format!(
                        "HTTP/1.1 206 Partial Content\r\nContent-Length: {}\r\nContent-Range: bytes {first}-{last}/{TOTAL}\r\n\r\n",
                        body.len()
                    );
                    stream.write_all(head.as_bytes()).await.ok()?;
                    stream.write_all(&body).await.ok()?;
                    stream.flush().await.ok()?;
                }
                Some(())
            });
        }
    });
    (address, pem)
}

async fn get_by_tls(betrayed: &'static [IpAddr]) -> (Result<u64, GetError>, Vec<u8>) {
    let home = tempfile::tempdir().unwrap();
    let (address, pem) = tls_server(betrayed).await;
    let context = context(&home);
    std::fs::write(home.path().join("ca.pem"), pem).unwrap();
    let options = GetOptions {
        url: format!("https://{address}/1MB"),
        file: home.path().join("file"),
        preference: Preference::Fast,
        sha256: None,
        resume: false,
        headers: Vec::new(),
        cacert: Some(home.path().join("ca.pem")),
        memory_bytes: 64 << 20,
    };
    let run = get::run(context.paths, context.resolver, options, |_| {});
    let outcome = timeout(PATIENCE, run).await.unwrap().map(|summary| summary.bytes);
    (outcome, std::fs::read(home.path().join("file")).unwrap_or_default())
}

#[tokio::test]
async fn a_forged_certificate_on_one_path_keeps_that_path_out_and_no_more() {
    for betrayed in [&[WIFI], &[LTE]] {
        let (outcome, file) = get_by_tls(betrayed).await;
        assert_eq!(outcome.unwrap(), 1_000_000, "forged on {betrayed:?}");
        assert!(file.iter().enumerate().all(|(at, byte)| usize::from(*byte) == at % 251));
    }
}

#[tokio::test]
async fn a_forged_certificate_on_every_path_is_named_and_nothing_is_written() {
    let (outcome, file) = get_by_tls(&[WIFI, LTE]).await;
    let error = outcome.expect_err("nobody proved to be the server");
    assert!(matches!(error, GetError::Certificate { .. }), "{error}");
    assert!(file.is_empty());
}

/// Goes through SOCKS, where the client speaks to its server and not to a proxy.
async fn by_socks(proxy: SocketAddr, server: SocketAddr) -> TcpStream {
    let mut client = TcpStream::connect(proxy).await.unwrap();
    client.write_all(&[5, 1, 0]).await.unwrap();
    client.read_exact(&mut [0; 2]).await.unwrap();
    let name = b"files.example";
    let mut request = vec![5, 1, 0, 3, name.len() as u8];
    request.extend_from_slice(name);
    request.extend_from_slice(&server.port().to_be_bytes());
    client.write_all(&request).await.unwrap();
    client.read_exact(&mut [0; 10]).await.unwrap();
    client
}

#[tokio::test]
async fn an_answer_that_is_no_http_reaches_the_program_that_asked_for_it() {
    const ANSWER: &str = "ICY 200 OK\r\nicy-name: old\r\n\r\nmusic";
    let home = tempfile::tempdir().unwrap();
    let proxy = start_proxy(&context(&home)).await;
    let (listener, server) = listen().await;
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                read_head(&mut stream).await?;
                stream.write_all(ANSWER.as_bytes()).await.ok()
            });
        }
    });
    for request in [
        "GET /a.mp3 HTTP/1.1\r\nHost: files.example\r\n\r\n",
        "GET /radio HTTP/1.0\r\n\r\n",
        "GET /disk.iso HTTP/1.1\r\nHost: files.example\r\n\r\n",
    ] {
        let mut client = by_socks(proxy, server).await;
        client.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        timeout(PATIENCE, client.read_to_string(&mut answer)).await.unwrap().unwrap();
        assert_eq!(answer, ANSWER, "{request}");
    }
}

/// A server of 3 MB that calls each answer another version; from the second request for ranges on the
/// bytes may differ too.
async fn fickle_server(differs: bool) -> SocketAddr {
    const TOTAL: usize = 3_000_000;
    let (listener, address) = listen().await;
    let serial = Arc::new(AtomicUsize::new(0));
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let serial = Arc::clone(&serial);
            tokio::spawn(async move {
                while let Some(head) = read_head(&mut stream).await {
                    let version = serial.fetch_add(1, Ordering::Relaxed);
                    let range = head.split("bytes=").nth(1).and_then(|rest| rest.split("\r\n").next());
                    let (first, last) = match range.and_then(|range| range.split_once('-')) {
                        Some(("", length)) => (TOTAL - length.parse::<usize>().unwrap(), TOTAL - 1),
                        Some((first, last)) => {
                            (first.parse().unwrap(), last.parse().unwrap_or(TOTAL - 1).min(TOTAL - 1))
                        }
                        None => (0, TOTAL - 1),
                    };
                    let change = if differs { version } else { 0 };
                    let body: Vec<u8> = (first..=last).map(|at| ((at + change) % 251) as u8).collect();
                    let status = match range {
                        Some(_) => {
                            format!("206 Partial Content\r\nContent-Range: bytes {first}-{last}/{TOTAL}")
                        }
                        None => "200 OK".to_owned(),
                    };
                    let head = format!(
                        "HTTP/1.1 {status}\r\nETag: \"v{version}\"\r\nContent-Length: {}\r\n\r\n",
                        body.len()
                    );
                    stream.write_all(head.as_bytes()).await.ok()?;
                    stream.write_all(&body).await.ok()?;
                }
                Some(())
            });
        }
    });
    address
}

/// The body of the answer to a plain request, and how its connection ended.
async fn plain_get(proxy: SocketAddr, server: SocketAddr) -> (Vec<u8>, std::io::Result<usize>) {
    let mut client = TcpStream::connect(proxy).await.unwrap();
    let host = format!("files.example:{}", server.port());
    let request = format!("GET http://{host}/disk.iso HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
    client.write_all(request.as_bytes()).await.unwrap();
    let head = read_head(&mut client).await.unwrap();
    assert!(head.starts_with("HTTP/1.1 200") && head.contains("Content-Length: 3000000"), "{head}");
    let mut body = Vec::new();
    let ended = timeout(PATIENCE, client.read_to_end(&mut body)).await.unwrap();
    (body, ended)
}

#[tokio::test]
async fn an_object_whose_every_answer_is_another_version_comes_plainly() {
    let home = tempfile::tempdir().unwrap();
    let proxy = start_proxy(&context(&home)).await;
    let (body, ended) = plain_get(proxy, fickle_server(false).await).await;
    assert_eq!(ended.unwrap(), 3_000_000);
    assert!(body.iter().enumerate().all(|(at, byte)| usize::from(*byte) == at % 251));
}

#[tokio::test]
async fn two_versions_are_never_joined_when_the_whole_is_asked_for_again() {
    let home = tempfile::tempdir().unwrap();
    let proxy = start_proxy(&context(&home)).await;
    let (body, ended) = plain_get(proxy, fickle_server(true).await).await;
    assert!(ended.is_err() && body.len() < 3_000_000, "{} bytes: {ended:?}", body.len());
}
