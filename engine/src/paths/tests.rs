//! On the loopback interface, without privileges.

use std::net::{Ipv4Addr, Ipv6Addr};

use multiway_core::paths::{NetworkIdentity, PathKind};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use super::*;

const PATIENCE: Duration = Duration::from_secs(10);

/// The loopback interface as a path of the given name and source address.
fn loopback(id: u32, interface: &str, source: Ipv4Addr) -> PathInfo {
    PathInfo {
        id: PathId(id),
        interface: interface.to_owned(),
        kind: PathKind::Other,
        metered: false,
        addresses: vec![source.into()],
        gateways: Vec::new(),
        dns_servers: Vec::new(),
        network: NetworkIdentity(format!("network of {interface} {source}")),
        state: PathState::Up,
    }
}

fn two_loopbacks() -> Vec<PathInfo> {
    vec![loopback(1, "lo", Ipv4Addr::LOCALHOST), loopback(2, "lo", Ipv4Addr::new(127, 0, 0, 2))]
}

fn table(paths: Vec<PathInfo>) -> PathTable {
    PathTable::with_paths(paths, PathTableConfig::default()).expect("no names to check")
}

/// A server that sends `bytes` to everyone and then reads to the end.
async fn server(bytes: usize) -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("loopback");
    let address = listener.local_addr().expect("bound");
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let sent = stream.write_all(&vec![7; bytes]).await;
                let received = tokio::io::copy(&mut stream, &mut tokio::io::sink()).await;
                sent.and(received.map(drop))
            });
        }
    });
    address
}

#[tokio::test]
async fn a_connection_leaves_from_its_paths_address_and_is_counted_there() {
    let table = table(vec![
        loopback(1, "lo", Ipv4Addr::LOCALHOST),
        PathInfo { addresses: vec![Ipv6Addr::LOCALHOST.into()], ..loopback(2, "lo", Ipv4Addr::LOCALHOST) },
    ]);
    let remote = server(100_000).await;
    let mut stream = table.connect(PathId(1), remote, PATIENCE).await.expect("a server listens");
    assert_eq!(stream.local_addr().expect("connected").ip(), Ipv4Addr::LOCALHOST);
    let mut body = vec![0; 100_000];
    stream.read_exact(&mut body).await.expect("the server sends");
    assert!(body.iter().all(|&byte| byte == 7));
    assert_eq!(stream.sample().expect("TCP_INFO").bytes_received, 100_000);
    assert!(table.latest_sample(stream.id()).is_some());
    assert_eq!(table.snapshot()[0].active_connections, 1);

    let id = stream.id();
    drop(stream);
    let snapshot = table.snapshot();
    assert_eq!((snapshot[0].bytes_today, snapshot[0].active_connections), (100_000, 0));
    assert_eq!(table.latest_sample(id), None);
    assert!(table.estimate(PathId(1), "host").rtt.is_some());
    assert_eq!(table.estimate(PathId(2), "host"), PathEstimate::default());
}

#[tokio::test]
async fn halves_work_apart_and_the_end_of_writing_reaches_the_server() {
    let table = table(two_loopbacks());
    let remote = server(1000).await;
    let stream = table.connect(PathId(2), remote, PATIENCE).await.expect("a server listens");
    let (mut reader, mut writer) = stream.into_split();
    let writing = tokio::spawn(async move {
        writer.write_all(&[1; 200_000]).await.expect("the server reads");
    });
    let mut body = Vec::new();
    // The server closes only after it has seen the end of what it is sent.
    tokio::time::timeout(PATIENCE, reader.read_to_end(&mut body)).await.expect("in time").expect("read");
    writing.await.expect("written");
    assert_eq!(body.len(), 1000);
    drop(reader);
    // The kernel counts each FIN as a byte.
    assert!((201_000..=201_002).contains(&table.snapshot()[1].bytes_today));
}

#[tokio::test]
async fn a_transfer_that_runs_is_seen_by_the_sampler() {
    let table = table(two_loopbacks());
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("loopback");
    let remote = listener.local_addr().expect("bound");
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.expect("a client comes");
        // About 3 MB/s until the client goes.
        while stream.write_all(&[0; 64 << 10]).await.is_ok() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
    let mut stream = table.connect(PathId(1), remote, PATIENCE).await.expect("a server listens");
    let mut buffer = vec![0; 64 << 10];
    let reading = async {
        while table.estimate(PathId(1), "host").throughput.is_none() {
            stream.read_exact(&mut buffer).await.expect("the server sends");
        }
    };
    tokio::time::timeout(PATIENCE, reading).await.expect("the sampler runs");
    let rate = table.estimate(PathId(1), "host").throughput.expect("just seen");
    assert!(rate.bytes_per_second() > 100_000 && rate.bytes_per_second() < 100_000_000, "{rate:?}");
}

#[tokio::test]
async fn what_keeps_a_connection_from_being_opened_is_said() {
    let down = PathInfo { state: PathState::Down, ..loopback(3, "eth0", Ipv4Addr::LOCALHOST) };
    let denied = loopback(4, "wwan0", Ipv4Addr::LOCALHOST);
    let missing = loopback(5, "nosuch", Ipv4Addr::LOCALHOST);
    let mut paths = two_loopbacks();
    paths.extend([down, denied, missing]);
    let permission = Permission { only: None, deny: vec!["wwan*".into()] };
    let config = PathTableConfig { permission, ..PathTableConfig::default() };
    let table = PathTable::with_paths(paths, config).expect("no names to check");
    let remote = server(1).await;
    let fails = async |path: u32, remote: SocketAddr| {
        table.connect(PathId(path), remote, PATIENCE).await.expect_err("it cannot work")
    };
    assert!(matches!(fails(9, remote).await, ConnectError::UnknownPath(PathId(9))));
    assert!(matches!(fails(3, remote).await, ConnectError::NotUsable { state: PathState::Down, .. }));
    assert!(matches!(fails(4, remote).await, ConnectError::Denied { .. }));
    assert!(matches!(fails(5, remote).await, ConnectError::Bind { .. }));
    let ipv6: SocketAddr = "[2001:db8::1]:80".parse().expect("an address");
    let error = fails(1, ipv6).await;
    assert_eq!(error.to_string(), "lo has no IPv6 address to reach [2001:db8::1]:80 from");
    assert_eq!(std::io::Error::from(error).kind(), std::io::ErrorKind::AddrNotAvailable);

    let closed = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("loopback");
    let nobody = closed.local_addr().expect("bound");
    drop(closed);
    assert!(fails(1, nobody).await.is_refusal());

    let usable: Vec<PathId> = table.usable().iter().map(|path| path.id).collect();
    assert_eq!(usable, [PathId(1), PathId(2), PathId(5)]);
    assert_eq!(table.all().len(), 5);
    assert!(!table.snapshot()[3].is_permitted);
}

#[tokio::test]
async fn a_datagram_socket_leaves_from_its_paths_address() {
    let table = table(two_loopbacks());
    let server = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("loopback");
    let socket = table.udp(PathId(2), server.local_addr().expect("bound")).expect("a usable path");
    socket.send(b"query").await.expect("the server is there");
    let (length, from) = server.recv_from(&mut [0; 16]).await.expect("sent");
    assert_eq!((length, from.ip()), (5, Ipv4Addr::new(127, 0, 0, 2).into()));
    assert!(table.udp(PathId(9), from).is_err());
}

#[tokio::test]
async fn an_unknown_interface_is_named_with_those_there_are() {
    let permission = Permission { only: Some(vec!["wlan*".into(), "eth7".into()]), deny: Vec::new() };
    let config = PathTableConfig { permission, ..PathTableConfig::default() };
    let error = PathTable::with_paths(two_loopbacks(), config).expect_err("eth7 is not there");
    assert_eq!(error.to_string(), "there is no network interface \"eth7\"; there are: lo, lo");
}

#[tokio::test]
async fn overrides_correct_what_was_found_out() {
    let correction = PathOverride {
        kind: Some(PathKind::Cellular),
        metered: Some(true),
        dns: vec![Ipv4Addr::LOCALHOST.into()],
    };
    let overrides = BTreeMap::from([("lo".to_owned(), correction)]);
    let config = PathTableConfig { overrides, ..PathTableConfig::default() };
    let table = PathTable::with_paths(two_loopbacks(), config).expect("no names to check");
    let path = table.get(PathId(1)).expect("given");
    assert_eq!((path.kind, path.metered, path.dns_servers.len()), (PathKind::Cellular, true, 1));
}

#[tokio::test]
async fn another_network_is_measured_anew_and_subscribers_are_told() {
    let table = table(two_loopbacks());
    let remote = server(1).await;
    let _open = table.connect(PathId(1), remote, PATIENCE).await.expect("a server listens");
    let mut changes = table.subscribe();
    changes.mark_unchanged();
    table.replace(two_loopbacks());
    assert!(!changes.has_changed().expect("the table lives"));
    assert!(table.estimate(PathId(1), "host").rtt.is_some());

    let mut elsewhere = two_loopbacks();
    elsewhere[0].network = NetworkIdentity("elsewhere".to_owned());
    table.replace(elsewhere);
    assert!(changes.has_changed().expect("the table lives"));
    assert_eq!(table.estimate(PathId(1), "host"), PathEstimate::default());
}

#[tokio::test]
async fn all_of_many_connections_are_sampled() {
    let table = table(two_loopbacks());
    let remote = server(10).await;
    let mut streams = Vec::new();
    for _ in 0..200 {
        let mut stream = table.connect(PathId(1), remote, PATIENCE).await.expect("a server listens");
        stream.read_exact(&mut [0; 10]).await.expect("the server sends");
        streams.push(stream);
    }
    let all_sampled =
        || streams.iter().all(|stream| stream.latest_sample().is_some_and(|s| s.bytes_received == 10));
    let waiting = async {
        while !all_sampled() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(PATIENCE, waiting).await.expect("the sampler comes to each");
    assert_eq!(table.snapshot()[0].active_connections, 200);
    assert_eq!(table.snapshot()[0].bytes_today, 2000);
}

#[tokio::test]
async fn a_path_behind_a_portal_is_not_usable_until_it_is_let_through() {
    use std::sync::atomic::{AtomicBool, Ordering};
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("loopback");
    let url = format!("http://{}/generate_204", listener.local_addr().expect("bound"));
    let is_open = Arc::new(AtomicBool::new(false));
    let signed_in = Arc::clone(&is_open);
    // The second path has no portal.
    tokio::spawn(async move {
        while let Ok((mut stream, from)) = listener.accept().await {
            let mut request = [0; 512];
            let length = stream.read(&mut request).await.expect("a request");
            assert!(request[..length].starts_with(b"GET /generate_204 HTTP/1.1\r\nHost: 127.0.0.1:"));
            let passes = from.ip() != Ipv4Addr::LOCALHOST || signed_in.load(Ordering::Relaxed);
            let answer: &[u8] = if passes {
                b"HTTP/1.1 204 No Content\r\n\r\n"
            } else {
                b"HTTP/1.1 302 Found\r\nLocation: http://portal.example/\r\n\r\n"
            };
            stream.write_all(answer).await.expect("the client waits");
        }
    });
    let table = table(two_loopbacks());
    let mut changes = table.subscribe();
    table.look_for_portals(url.parse().expect("of the form"));
    let captive = changes.wait_for(|paths| paths[0].state == PathState::Captive);
    drop(tokio::time::timeout(PATIENCE, captive).await.expect("it is asked").expect("the table lives"));
    assert_eq!(table.usable().iter().map(|path| path.id).collect::<Vec<_>>(), [PathId(2)]);

    is_open.store(true, Ordering::Relaxed);
    // Another network is asked at once; the same one after a while.
    let mut elsewhere = two_loopbacks();
    elsewhere[0].network = NetworkIdentity("elsewhere".to_owned());
    table.replace(elsewhere);
    assert_eq!(table.usable().len(), 2);
}

mod remembering {
    use super::*;

    fn table_with(history: &std::path::Path) -> PathTable {
        let config = PathTableConfig { history: Some(history.to_owned()), ..PathTableConfig::default() };
        PathTable::with_paths(two_loopbacks(), config).expect("no names to check")
    }

    fn directory() -> tempfile::TempDir {
        tempfile::tempdir().expect("a writable directory for temporary files")
    }

    fn megabits(estimate: PathEstimate) -> Option<u64> {
        estimate.throughput.map(|rate| rate.bits_per_second() / 1_000_000)
    }

    /// 10 MB at 8 Mbit/s.
    fn record(table: &PathTable) {
        let second = Duration::from_secs(1);
        table.record_transfer(PathId(1), "cdn.example", 10_000_000, 10 * second, Some(second / 20));
    }

    #[tokio::test]
    async fn the_next_process_knows_what_this_one_measured() {
        let directory = directory();
        let file = directory.path().join("state/history.db");
        let table = table_with(&file);
        record(&table);
        table.mark_inconsistent("cdn.example", PathId(2));
        let remote = server(500).await;
        let mut stream = table.connect(PathId(1), remote, PATIENCE).await.expect("a server listens");
        stream.read_exact(&mut [0; 500]).await.expect("the server sends");
        drop(stream);
        drop(table);

        let next = table_with(&file);
        assert_eq!(megabits(next.estimate(PathId(1), "cdn.example")), Some(8));
        assert_eq!(next.estimate(PathId(1), "other.example").rtt, Some(Duration::from_millis(50)));
        assert_eq!(next.estimate(PathId(2), "cdn.example"), PathEstimate::default());
        assert!(next.is_inconsistent("CDN.example", PathId(2)));
        assert!(!next.is_inconsistent("cdn.example", PathId(1)));
        // Both paths of this test are the interface `lo`.
        assert_eq!(next.snapshot()[0].bytes_today, 500);
    }

    #[tokio::test]
    async fn history_decides_which_path_is_first_in_fast() {
        let paths = two_loopbacks();
        let config = PathTableConfig { preference: Preference::Fast, ..PathTableConfig::default() };
        let table = PathTable::with_paths(paths, config).expect("no names to check");
        let second = Duration::from_secs(1);
        table.record_transfer(PathId(1), "cdn.example", 10_000_000, 10 * second, Some(second / 20));
        table.record_transfer(PathId(2), "cdn.example", 10_000_000, second, Some(second / 20));
        assert_eq!(table.usable_for("cdn.example")[0].id, PathId(2));
    }

    #[tokio::test]
    async fn a_damaged_file_is_put_aside() {
        let directory = directory();
        let file = directory.path().join("history.db");
        std::fs::write(&file, "this is no database at all, and long enough to be sure of it".repeat(100))
            .expect("writable");
        record(&table_with(&file));
        assert_eq!(megabits(table_with(&file).estimate(PathId(1), "cdn.example")), Some(8));
        let names: Vec<String> = std::fs::read_dir(directory.path())
            .expect("readable")
            .map(|entry| entry.expect("readable").file_name().to_string_lossy().into_owned())
            .collect();
        assert!(names.iter().any(|name| name.starts_with("history.db.damaged-")), "{names:?}");
    }

    #[tokio::test]
    async fn a_place_that_cannot_be_written_costs_only_the_memory() {
        let directory = directory();
        let file = directory.path().join("file");
        std::fs::write(&file, "").expect("writable");
        let table = table_with(&file.join("history.db"));
        record(&table);
        assert_eq!(megabits(table.estimate(PathId(1), "cdn.example")), Some(8));
    }
}
