use std::net::IpAddr;

use multiway_core::flow::names::HostName;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::Command;

use super::*;
use crate::proxy::testing::{LTE, WIFI, context, context_with, listen, unreachable};
use crate::proxy::tunnel::{Destination, Dial, DialError, dial};

/// A proxy over `context`, and its address.
async fn proxy(context: &Context) -> SocketAddr {
    let (listener, address) = listen().await;
    tokio::spawn(serve(context.clone(), listener));
    address
}

/// A server that tells each client its address, then echoes.
async fn greeter() -> SocketAddr {
    let (listener, address) = listen().await;
    tokio::spawn(async move {
        while let Ok((mut stream, peer)) = listener.accept().await {
            tokio::spawn(async move {
                let greeting = format!("{}\n", peer.ip());
                let _ = stream.write_all(greeting.as_bytes()).await;
                let (mut reader, mut writer) = stream.split();
                let _ = tokio::io::copy(&mut reader, &mut writer).await;
            });
        }
    });
    address
}

/// An HTTP server that says which path a request came over.
async fn http_server() -> SocketAddr {
    let (listener, address) = listen().await;
    tokio::spawn(async move {
        while let Ok((mut stream, peer)) = listener.accept().await {
            tokio::spawn(async move {
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") {
                    match stream.read_u8().await {
                        Ok(byte) => head.push(byte),
                        Err(_) => return,
                    }
                }
                let body = peer.ip().to_string();
                let length = body.len();
                let response =
                    format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}");
                let _ = stream.write_all(response.as_bytes()).await;
            });
        }
    });
    address
}

/// Greets the proxy, sends `request`, and returns the connection and the reply's code.
async fn socks(proxy: SocketAddr, request: &[u8]) -> (TcpStream, u8) {
    let mut stream = TcpStream::connect(proxy).await.expect("connected");
    stream.write_all(&[5, 1, 0]).await.expect("written");
    let mut method = [0; 2];
    stream.read_exact(&mut method).await.expect("a method");
    assert_eq!(method, [5, 0]);
    stream.write_all(request).await.expect("written");
    let mut reply = [0; 10];
    stream.read_exact(&mut reply).await.expect("a reply");
    assert_eq!((reply[0], reply[3]), (5, 1));
    (stream, reply[1])
}

fn connect_request(to: SocketAddr) -> Vec<u8> {
    let IpAddr::V4(address) = to.ip() else { panic!("these tests use IPv4") };
    [&[5, 1, 0, 1][..], &address.octets(), &to.port().to_be_bytes()].concat()
}

fn name_request(name: &str, port: u16) -> Vec<u8> {
    let length = u8::try_from(name.len()).expect("a short name");
    [&[5, 1, 0, 3, length][..], name.as_bytes(), &port.to_be_bytes()].concat()
}

async fn read_line(stream: &mut TcpStream) -> String {
    let mut line = Vec::new();
    loop {
        match stream.read_u8().await.expect("a line") {
            b'\n' => return String::from_utf8(line).expect("text"),
            byte => line.push(byte),
        }
    }
}

#[tokio::test]
async fn a_server_that_speaks_first_is_heard_through_socks_over_the_preferred_path() {
    let directory = tempfile::tempdir().expect("a directory");
    let context = context(&directory, "");
    let server = greeter().await;
    let (mut stream, code) = socks(proxy(&context).await, &connect_request(server)).await;
    assert_eq!(code, 0);
    assert_eq!(read_line(&mut stream).await, WIFI.to_string());
    stream.write_all(b"echo").await.expect("written");
    stream.shutdown().await.expect("half-closed");
    let mut rest = String::new();
    stream.read_to_string(&mut rest).await.expect("the echo");
    assert_eq!(rest, "echo");
    while !context.flows.is_empty() {
        tokio::task::yield_now().await;
    }
    let flow = &context.flows.recent()[0];
    assert_eq!(flow.destination, server.to_string());
    assert_eq!(flow.bytes.values().sum::<u64>(), WIFI.to_string().len() as u64 + 1 + 4);
}

#[tokio::test]
async fn the_next_path_takes_over_when_the_first_cannot_connect() {
    let directory = tempfile::tempdir().expect("a directory");
    let context = context_with(unreachable(1, LTE), &directory, "");
    let server = greeter().await;
    let (mut stream, code) = socks(proxy(&context).await, &connect_request(server)).await;
    assert_eq!((code, read_line(&mut stream).await), (0, LTE.to_string()));
}

#[tokio::test]
async fn names_in_socks_requests_are_looked_up_here() {
    let directory = tempfile::tempdir().expect("a directory");
    let context = context(&directory, "127.0.0.1 server.example.com\n");
    let server = greeter().await;
    let proxy = proxy(&context).await;
    let (mut stream, code) = socks(proxy, &name_request("server.example.com", server.port())).await;
    assert_eq!((code, read_line(&mut stream).await), (0, WIFI.to_string()));
    let (_, code) = socks(proxy, &name_request("unknown.example.com", server.port())).await;
    assert_eq!(code, 4, "host unreachable");
}

#[tokio::test]
async fn refusals_say_why() {
    let directory = tempfile::tempdir().expect("a directory");
    let proxy = proxy(&context(&directory, "")).await;
    let (closed, address) = listen().await;
    drop(closed);
    let (_, code) = socks(proxy, &connect_request(address)).await;
    assert_eq!(code, 5, "connection refused");
    let (mut stream, code) = socks(proxy, &[5, 3, 0, 1, 0, 0, 0, 0, 0, 0]).await;
    assert_eq!(code, 7, "UDP ASSOCIATE is not offered");
    assert_eq!(stream.read(&mut [0]).await.expect("closed"), 0);
}

#[tokio::test]
async fn without_a_path_only_this_device_is_reached_and_never_the_proxy_itself() {
    let directory = tempfile::tempdir().expect("a directory");
    let context = context_with(Vec::new(), &directory, "");
    let proxy = proxy(&context).await;
    let server = greeter().await;
    let (mut stream, code) = socks(proxy, &connect_request(server)).await;
    assert_eq!((code, read_line(&mut stream).await), (0, "127.0.0.1".to_owned()));
    let (_, code) = socks(proxy, &name_request("localhost", proxy.port())).await;
    assert_eq!(code, 2, "not allowed");
    let (_, code) = socks(proxy, &connect_request(SocketAddr::from(([192, 0, 2, 1], 80)))).await;
    assert_eq!(code, 3, "network unreachable");
}

#[tokio::test]
async fn tls_is_tunnelled_whole_and_shown_by_its_server_name() {
    let directory = tempfile::tempdir().expect("a directory");
    let context = context(&directory, "");
    // A server that says nothing by itself.
    let (listener, address) = listen().await;
    let server = tokio::spawn(async move {
        let mut hello = [0; 64];
        let (mut stream, _) = listener.accept().await.expect("the tunnel");
        stream.read_exact(&mut hello).await.expect("the hello");
        hello
    });
    let (mut stream, _) = socks(proxy(&context).await, &connect_request(address)).await;
    let hello = client_hello(b"www.example.com");
    stream.write_all(&hello).await.expect("written");
    assert_eq!(server.await.expect("no panic")[..], hello[..64]);
    let mut flows = context.flows.running();
    flows.extend(context.flows.recent());
    assert_eq!(flows[0].destination, format!("www.example.com:{}", address.port()));
    assert_eq!(flows[0].why, "TLS: encrypted end to end");
}

/// A ClientHello that asks for `name` and offers little else, RFC 8446 section 4.1.2.
fn client_hello(name: &[u8]) -> Vec<u8> {
    let sized = |bytes: &[u8]| -> Vec<u8> {
        let length = u16::try_from(bytes.len()).expect("short");
        [&length.to_be_bytes()[..], bytes].concat()
    };
    let list = sized(&[&[0][..], &sized(name)].concat());
    let extensions = sized(&[&[0, 0][..], &sized(&list)].concat());
    let body = [&[3, 3][..], &[7; 32], &[0], &sized(&[0x13, 1]), &[1, 0], &extensions].concat();
    let handshake = [&[1, 0][..], &sized(&body)].concat();
    [&[22, 3, 1][..], &sized(&handshake)].concat()
}

#[tokio::test]
#[expect(clippy::print_stderr, reason = "a skipped test must say so")]
async fn curl_gets_a_page_through_socks() {
    let directory = tempfile::tempdir().expect("a directory");
    let context = context(&directory, "127.0.0.1 www.example.com\n");
    let (proxy, server) = (proxy(&context).await, http_server().await);
    let output = Command::new("curl")
        .args(["--silent", "--show-error", "--max-time", "20", "--socks5-hostname"])
        .args([proxy.to_string(), format!("http://www.example.com:{}/", server.port())])
        .kill_on_drop(true)
        .output()
        .await;
    let Ok(output) = output else {
        eprintln!("SKIPPED: curl is not installed");
        return;
    };
    assert_eq!(String::from_utf8_lossy(&output.stdout), WIFI.to_string(), "{output:?}");
}

/// A context over one path with `address`, which nothing can be sent from.
fn context_at(address: &str, directory: &tempfile::TempDir, hosts: &str) -> Context {
    let mut paths = unreachable(1, address.parse().expect("a literal of this test"));
    paths.remove(0);
    context_with(paths, directory, hosts)
}

#[tokio::test]
async fn names_of_this_device_lead_to_it_without_a_path() {
    let directory = tempfile::tempdir().expect("a directory");
    let context = context_at("192.0.2.7", &directory, "127.0.0.1 mine.example\n");
    let (server, proxy) = (http_server().await, proxy(&context).await);
    for host in ["mine.example", "127.0.0.1", "0.0.0.0"] {
        let mut client = TcpStream::connect(proxy).await.expect("it listens");
        let authority = format!("{host}:{}", server.port());
        let request =
            format!("GET http://{authority}/ HTTP/1.1\r\nHost: {authority}\r\nConnection: close\r\n\r\n");
        client.write_all(request.as_bytes()).await.expect("written");
        let mut answer = String::new();
        client.read_to_string(&mut answer).await.expect("an answer");
        assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("127.0.0.1"), "{host}: {answer}");
    }
}

#[tokio::test]
async fn another_device_cannot_reach_what_listens_within_this_one() {
    let directory = tempfile::tempdir().expect("a directory");
    let context = context_at("192.0.2.7", &directory, "127.0.0.1 mine.example\n");
    let name = HostName::parse("mine.example").expect("a literal of this test");
    let address = |text: &str| Destination::Address(text.parse().expect("a literal of this test"));
    let within = [
        Destination::Name(name, 80),
        address("127.0.0.1:80"),
        address("[::ffff:127.0.0.1]:80"),
        address("0.0.0.0:80"),
        address("[::]:80"),
        address("192.0.2.7:80"),
    ];
    for destination in &within {
        let accepted_on = "192.0.2.7:7070".parse().expect("a literal of this test");
        let refused = dial(&context, Dial { destination, server_name: None, accepted_on }).await;
        assert!(matches!(refused, Err(DialError::Intruder)), "{destination}: {refused:?}");
    }
}

#[tokio::test]
async fn an_address_that_no_host_has_fails_at_once() {
    let directory = tempfile::tempdir().expect("a directory");
    let context = context_at("192.0.2.7", &directory, "");
    let path = context.paths.usable()[0].id;
    for remote in ["127.0.0.1:80", "0.0.0.0:80", "255.255.255.255:80", "224.0.0.1:80"] {
        let remote = remote.parse().expect("a literal of this test");
        let refused = context.paths.connect(path, remote, std::time::Duration::from_secs(60)).await;
        assert!(matches!(refused, Err(crate::paths::ConnectError::NoHost { .. })), "{refused:?}");
    }
}
