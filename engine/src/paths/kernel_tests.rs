//! On real interfaces, in network namespaces of the test's own.
//!
//! The device has `wlan0` and `wwan0`, each with a default route to a gateway that has the server's
//! address; `wlan0`'s route is the better one.

use std::net::TcpListener;
use std::process::Command;
use std::sync::mpsc;
use std::thread::JoinHandle;

use multiway_core::paths::PathKind;
use nix::sched::{CloneFlags, unshare};
use tokio::io::AsyncReadExt;

use super::*;

const PATIENCE: Duration = Duration::from_secs(10);
const SERVER_PORT: u16 = 8080;
const SENT: usize = 300_000;

/// A namespace with the far ends of both links and a server that answers on 203.0.113.1 and
/// 2001:db8:ff::1 with [`SENT`] bytes.
struct FarEnd {
    thread: Option<JoinHandle<()>>,
    stop: mpsc::Sender<()>,
}

impl Drop for FarEnd {
    fn drop(&mut self) {
        let _ = self.stop.send(());
        let ended = self.thread.take().expect("taken here only").join();
        assert!(ended.is_ok() || std::thread::panicking(), "the far end failed");
    }
}

fn ip(arguments: &str) {
    let output = Command::new("ip").args(arguments.split(' ')).output().expect("iproute2 is installed");
    assert!(output.status.success(), "ip {arguments}: {}", String::from_utf8_lossy(&output.stderr));
}

/// The far end, and the calling thread moved into the device's namespace; `None` without privilege.
fn device() -> Option<FarEnd> {
    if let Err(error) = unshare(CloneFlags::CLONE_NEWNET) {
        #[expect(clippy::print_stderr, reason = "a skipped test must say so")]
        {
            eprintln!("SKIPPED: network namespaces cannot be made here ({error}); run as root");
        }
        return None;
    }
    let (stop, stopped) = mpsc::channel();
    let (tell, told) = mpsc::channel();
    let (links_made, wait_for_links) = mpsc::channel::<()>();
    let thread = std::thread::spawn(move || {
        unshare(CloneFlags::CLONE_NEWNET).expect("it worked for the other thread");
        tell.send(nix::unistd::gettid()).expect("the test waits");
        wait_for_links.recv().expect("the test makes the links");
        ip("link set lo up");
        ip("addr add 203.0.113.1/32 dev lo");
        ip("addr add 2001:db8:ff::1/128 dev lo nodad");
        for (n, link) in [(1, "far-wlan0"), (2, "far-wwan0")] {
            ip(&format!("addr add 10.{n}.0.1/24 dev {link}"));
            ip(&format!("addr add 2001:db8:{n}::1/64 dev {link} nodad"));
            ip(&format!("link set {link} up"));
        }
        let listener = TcpListener::bind(("::", SERVER_PORT)).expect("a namespace of its own");
        tell.send(nix::unistd::gettid()).expect("the test waits");
        serve(&listener, &stopped);
    });
    let far = told.recv().expect("the far end starts");
    ip("link set lo up");
    for (n, link) in [(1, "wlan0"), (2, "wwan0")] {
        ip(&format!("link add {link} type veth peer name far-{link} netns {far}"));
        ip(&format!("addr add 10.{n}.0.2/24 dev {link}"));
        ip(&format!("addr add 2001:db8:{n}::2/64 dev {link} nodad"));
        ip(&format!("link set {link} up"));
    }
    links_made.send(()).expect("the far end waits");
    told.recv().expect("the far end is set up");
    for (n, link) in [(1, "wlan0"), (2, "wwan0")] {
        ip(&format!("route add default via 10.{n}.0.1 dev {link} metric {n}00"));
        ip(&format!("-6 route add default via 2001:db8:{n}::1 dev {link} metric {n}00"));
    }
    Some(FarEnd { thread: Some(thread), stop })
}

fn serve(listener: &TcpListener, stopped: &mpsc::Receiver<()>) {
    use std::io::Write;
    listener.set_nonblocking(true).expect("a socket");
    while stopped.recv_timeout(Duration::from_millis(5)).is_err() {
        while let Ok((mut stream, _)) = listener.accept() {
            stream.set_nonblocking(false).expect("a socket");
            // A client that goes early, or whose link does, is no fault of the server's.
            stream.set_write_timeout(Some(Duration::from_secs(1))).expect("not zero");
            let _ = stream.write_all(&[7; SENT]);
        }
    }
}

/// Runs on one thread, since namespaces belong to threads.
fn run(test: impl AsyncFnOnce()) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(test());
}

/// The table once both paths are up, and their identities.
async fn table(config: PathTableConfig) -> (PathTable, PathId, PathId) {
    let table = PathTable::start(config).expect("interfaces can be read");
    let mut changes = table.subscribe();
    let both_up =
        |paths: &Arc<Vec<PathInfo>>| paths.iter().filter(|path| path.state == PathState::Up).count() == 2;
    tokio::time::timeout(PATIENCE, changes.wait_for(both_up)).await.expect("links come up").expect("watched");
    let id = |name: &str| table.all().iter().find(|path| path.interface == name).expect("it is up").id;
    let (wlan0, wwan0) = (id("wlan0"), id("wwan0"));
    (table, wlan0, wwan0)
}

#[test]
fn connections_leave_by_the_path_asked_for_and_are_measured_there() {
    let Some(_far_end) = device() else { return };
    run(async || {
        let (table, wlan0, wwan0) = table(PathTableConfig { mark: Some(0x4d57), ..Default::default() }).await;
        let usable = table.usable();
        let names: Vec<_> = usable.iter().map(|path| (path.interface.as_str(), path.kind)).collect();
        assert_eq!(names, [("wlan0", PathKind::Wifi), ("wwan0", PathKind::Cellular)]);
        for (remote, sources) in [
            ("203.0.113.1", ["10.1.0.2", "10.2.0.2"]),
            ("2001:db8:ff::1", ["2001:db8:1::2", "2001:db8:2::2"]),
        ] {
            let remote = SocketAddr::new(remote.parse().expect("an address"), SERVER_PORT);
            for (path, source) in [wlan0, wwan0].into_iter().zip(sources) {
                let mut stream = table.connect(path, remote, PATIENCE).await.expect("the server listens");
                assert_eq!(stream.local_addr().expect("connected").ip().to_string(), source);
                let mut body = Vec::new();
                tokio::time::timeout(PATIENCE, stream.read_to_end(&mut body))
                    .await
                    .expect("in time")
                    .expect("the server sends");
                assert_eq!(body.len(), SENT);
                assert_eq!(stream.path(), path);
            }
        }
        for path in table.snapshot() {
            // Two transfers each; the kernel counts FINs as bytes.
            assert!((2 * SENT as u64..2 * SENT as u64 + 8).contains(&path.bytes_today), "{path:?}");
            assert!(path.estimate.rtt.is_some());
        }
    });
}

#[test]
fn a_link_that_goes_down_is_reported_and_refused_and_comes_back() {
    let Some(_far_end) = device() else { return };
    run(async || {
        let (table, wlan0, wwan0) = table(PathTableConfig::default()).await;
        let mut changes = table.subscribe();
        let state_of =
            |paths: &[PathInfo], id| paths.iter().find(|path| path.id == id).map(|path| path.state);
        ip("link set wlan0 down");
        let down = changes.wait_for(|paths| state_of(paths, wlan0) == Some(PathState::Down));
        drop(tokio::time::timeout(PATIENCE, down).await.expect("it is told").expect("watched"));
        assert_eq!(table.usable().iter().map(|path| path.id).collect::<Vec<_>>(), [wwan0]);
        let remote = "203.0.113.1:8080".parse().expect("an address");
        let error = table.connect(wlan0, remote, PATIENCE).await.expect_err("it is down");
        assert!(matches!(error, ConnectError::NotUsable { .. }), "{error}");
        table.connect(wwan0, remote, PATIENCE).await.expect("the other path works");

        // The kernel throws routes away with the link; whoever manages it puts them back.
        ip("link set wlan0 up");
        ip("route add default via 10.1.0.1 dev wlan0 metric 100");
        let up = changes.wait_for(|paths| state_of(paths, wlan0) == Some(PathState::Up));
        drop(tokio::time::timeout(PATIENCE, up).await.expect("it is told").expect("watched"));
        table.connect(wlan0, remote, PATIENCE).await.expect("it works again");

        ip("link del wlan0");
        let gone = changes.wait_for(|paths| state_of(paths, wlan0).is_none());
        drop(tokio::time::timeout(PATIENCE, gone).await.expect("it is told").expect("watched"));
        let error = table.connect(wlan0, remote, PATIENCE).await.expect_err("it is gone");
        assert!(matches!(error, ConnectError::UnknownPath(_)), "{error}");
    });
}

#[test]
fn a_remote_that_does_not_answer_is_given_up_in_time() {
    let Some(_far_end) = device() else { return };
    run(async || {
        let (table, wlan0, _) = table(PathTableConfig::default()).await;
        // On the link, and nobody there: the neighbour is asked for, for seconds.
        let nobody = "10.1.0.77:80".parse().expect("an address");
        let error = table.connect(wlan0, nobody, Duration::from_millis(50)).await.expect_err("nobody");
        assert_eq!(error.to_string(), "10.1.0.77:80 did not answer over wlan0 within 50ms");
        assert!(!error.is_refusal());
        // Given up too early to blame the path.
        assert_eq!(table.usable()[0].id, wlan0);
        table.connect(wlan0, nobody, Duration::from_secs(1)).await.expect_err("nobody");
        assert_eq!(table.usable()[1].id, wlan0);
        let remote = "203.0.113.1:8080".parse().expect("an address");
        table.connect(wlan0, remote, PATIENCE).await.expect("the server listens");
        assert_eq!(table.usable()[0].id, wlan0);
    });
}

#[test]
fn permission_is_by_name_and_a_denied_path_carries_nothing() {
    let Some(_far_end) = device() else { return };
    run(async || {
        let only = |name: &str| PathTableConfig {
            permission: Permission { only: Some(vec![name.into()]), deny: Vec::new() },
            ..PathTableConfig::default()
        };
        let error = PathTable::start(only("wlan9")).expect_err("it is not there");
        assert_eq!(error.to_string(), "there is no network interface \"wlan9\"; there are: wlan0, wwan0");
        let table = PathTable::start(only("wlan0")).expect("it is there");
        let denied = table.all().iter().find(|path| path.interface == "wwan0").expect("listed").id;
        let remote = "203.0.113.1:8080".parse().expect("an address");
        let error = table.connect(denied, remote, PATIENCE).await.expect_err("denied");
        assert!(matches!(error, ConnectError::Denied { .. }));
        assert!(table.udp(denied, remote).is_err());
        assert!(table.subscribe().borrow().iter().all(|path| path.interface == "wlan0"));
    });
}
