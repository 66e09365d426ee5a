use std::net::Ipv4Addr;
use std::path::Path;

use multiway_api::ListenerKind;
use multiway_core::paths::{NetworkIdentity, PathId, PathKind, PathState};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};

use super::*;

/// A daemon that touches nothing outside of `home`.
fn config(home: &Path) -> Config {
    let mut config = Config { listen: (Ipv4Addr::LOCALHOST, 0).into(), ..Config::default() };
    config.control.socket = Some(home.join("control.sock"));
    config.intercept.enabled = false;
    config
}

fn no_reaper() -> Command {
    Command::new("/nonexistent")
}

async fn ask(socket: &Path, request: &str) -> String {
    let mut stream = UnixStream::connect(socket).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer.split_once("\r\n\r\n").unwrap().1.to_owned()
}

#[tokio::test]
async fn a_daemon_tells_of_itself_and_leaves_nothing_behind() {
    let home = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(config(home.path()), no_reaper).await.unwrap();
    let socket = home.path().join("control.sock");
    let status: Status =
        serde_json::from_str(&ask(&socket, "GET /v1/status HTTP/1.0\r\n\r\n").await).unwrap();
    assert_eq!(status.listeners[0].address, daemon.proxy_address());
    for kind in [ListenerKind::Proxy, ListenerKind::Transparent, ListenerKind::Dns] {
        assert!(status.listeners.iter().any(|listener| listener.kind == kind), "{kind}");
    }
    assert!(!status.interception.active && status.interception.reason.is_some());
    let proxy = daemon.proxy_address();
    TcpStream::connect(proxy).await.expect("the proxy listens");
    daemon.stop().await;
    assert!(!socket.exists());
    TcpStream::connect(proxy).await.expect_err("nobody listens any more");
}

#[tokio::test]
async fn a_program_is_referred_to_the_proxy_where_interception_is_off() {
    let home = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(config(home.path()), no_reaper).await.unwrap();
    let body = r#"{"program":"curl"}"#;
    let request = format!("POST /v1/run HTTP/1.0\r\nContent-Length: {}\r\n\r\n{body}", body.len());
    let answer = ask(&home.path().join("control.sock"), &request).await;
    let RunResponse::ProxyOnly { proxy, reason } = serde_json::from_str(&answer).unwrap() else {
        panic!("{answer}");
    };
    assert_eq!(proxy, daemon.proxy_address());
    assert!(reason.contains("turns it off"), "{reason}");
}

#[tokio::test]
async fn a_second_daemon_is_refused_and_the_first_lives_on() {
    let home = tempfile::tempdir().unwrap();
    let first = Daemon::start(config(home.path()), no_reaper).await.unwrap();
    let second = Daemon::start(config(home.path()), no_reaper).await;
    assert!(matches!(second, Err(DaemonError::Control(ControlError::AnotherDaemon { .. }))));
    let socket = home.path().join("control.sock");
    ask(&socket, "GET /v1/status HTTP/1.0\r\n\r\n").await;
    first.stop().await;
}

#[tokio::test]
async fn a_port_that_is_taken_is_named() {
    let home = tempfile::tempdir().unwrap();
    let taken = tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let mut config = config(home.path());
    config.listen = taken.local_addr().unwrap();
    let error = Daemon::start(config, no_reaper).await.unwrap_err();
    assert!(matches!(&error, DaemonError::Listen { error, .. } if error.kind() == io::ErrorKind::AddrInUse));
    assert!(!home.path().join("control.sock").exists());
}

#[test]
fn interfaces_that_change_come_or_go_are_told_of() {
    let path = |id: u32, state| PathInfo {
        id: PathId(id),
        interface: format!("if{id}"),
        kind: PathKind::Other,
        metered: false,
        addresses: vec![],
        gateways: vec![],
        dns_servers: vec![],
        network: NetworkIdentity::default(),
        state,
    };
    let before = [path(1, PathState::Up), path(2, PathState::Up), path(3, PathState::Up)];
    let after = [path(1, PathState::Up), path(2, PathState::Down), path(4, PathState::NoAddress)];
    let told = changes(&before, &after);
    let told: Vec<_> = told.iter().map(|(interface, state)| (interface.as_str(), state.as_str())).collect();
    assert_eq!(told, [("if2", "down"), ("if4", "no address"), ("if3", "gone")]);
}
