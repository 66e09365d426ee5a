//! Interfaces as the kernel has them become paths.

mod support;

use std::net::IpAddr;
use std::sync::mpsc;
use std::time::Duration;

use multiway_core::paths::{PathInfo, PathKind, PathState};
use multiway_edge::watch::{Watcher, snapshot};
use support::{namespace, role, two_paths};

/// Far above what a change takes to be reported.
const PATIENCE: Duration = Duration::from_secs(10);

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn path(paths: &[PathInfo], interface: &str) -> PathInfo {
    paths.iter().find(|path| path.interface == interface).unwrap().clone()
}

#[test]
fn a_snapshot_shows_both_paths_with_addresses_of_both_families() {
    let Some(net) = two_paths() else { return };
    let paths = net.device.run(|| snapshot().unwrap());
    assert_eq!(paths.len(), 2, "{paths:?}");

    let wlan = path(&paths, "wlan0");
    assert_eq!((wlan.kind, wlan.metered, wlan.state), (PathKind::Wifi, false, PathState::Up));
    assert_eq!(wlan.addresses, [ip("10.1.0.2"), ip("2001:db8:1::2")]);
    assert_eq!(wlan.gateways, [ip("10.1.0.1"), ip("2001:db8:1::1")]);
    assert!(wlan.network.0.starts_with("gateway 10.1.0.1"), "{:?}", wlan.network);

    let wwan = path(&paths, "wwan0");
    assert_eq!((wwan.kind, wwan.metered, wwan.state), (PathKind::Cellular, true, PathState::Up));
    assert_ne!(wlan.id, wwan.id);
}

#[test]
fn each_state_says_what_is_missing() {
    let Some(device) = namespace() else { return };
    let Some(peer) = namespace() else { return };
    for (name, peer_name) in [("eth0", "p0"), ("eth1", "p1"), ("eth2", "p2"), ("eth3", "p3")] {
        device.cable(name, &peer, peer_name);
    }
    device.sh("echo 1 > /proc/sys/net/ipv6/conf/eth1/disable_ipv6");
    device.sh("ip link set eth0 down; ip addr add 10.0.2.2/24 dev eth2");
    peer.sh("ip link set p3 down");
    let paths = device.run(|| snapshot().unwrap());
    for (name, state) in [
        ("eth0", PathState::Down),
        ("eth1", PathState::NoAddress),
        ("eth2", PathState::NoDefaultRoute),
        ("eth3", PathState::Down),
    ] {
        let path = path(&paths, name);
        assert_eq!(path.state, state, "{name}");
        let missing = multiway_edge::diagnose(&path);
        assert!(missing[0].to_string().contains(name), "{missing:?}");
    }
}

#[test]
fn only_global_usable_addresses_count() {
    let Some(device) = namespace() else { return };
    let Some(peer) = namespace() else { return };
    device.cable("wlan0", &peer, "p0");
    device.sh("ip addr add 169.254.7.7/16 dev wlan0 scope link
         ip addr add 2001:db8::a/64 dev wlan0 nodad preferred_lft 0
         ip addr add 2001:db8::b/64 dev wlan0 nodad
         ip addr add fd00::1/64 dev wlan0 nodad
         ip -6 route add default via fe80::1 dev wlan0");
    let paths = device.run(|| snapshot().unwrap());
    let wlan = path(&paths, "wlan0");
    assert_eq!(wlan.addresses, [ip("2001:db8::b"), ip("fd00::1")]);
    assert_eq!((wlan.state, wlan.gateways), (PathState::Up, vec![ip("fe80::1")]));

    device.sh("ip addr del 2001:db8::b/64 dev wlan0; ip addr del fd00::1/64 dev wlan0");
    let paths = device.run(|| snapshot().unwrap());
    assert_eq!(path(&paths, "wlan0").addresses, [ip("2001:db8::a")], "deprecated is better than none");
}

#[test]
fn a_default_route_of_the_other_family_does_not_make_a_path_usable() {
    let Some(device) = namespace() else { return };
    let Some(peer) = namespace() else { return };
    device.cable("wlan0", &peer, "p0");
    device.sh("ip addr add 10.0.0.2/24 dev wlan0; ip -6 route add default via fe80::1 dev wlan0");
    let paths = device.run(|| snapshot().unwrap());
    assert_eq!(path(&paths, "wlan0").state, PathState::NoDefaultRoute);
}

#[test]
fn a_default_route_in_a_table_of_its_own_counts_when_a_rule_leads_there() {
    let Some(device) = namespace() else { return };
    let Some(peer) = namespace() else { return };
    device.cable("wlan0", &peer, "p0");
    device.sh("ip addr add 10.0.0.2/24 dev wlan0; ip route add default via 10.0.0.1 dev wlan0 table 100");
    let before = device.run(|| snapshot().unwrap());
    assert_eq!(path(&before, "wlan0").state, PathState::NoDefaultRoute);
    device.sh("ip rule add from 10.0.0.2 lookup 100");
    let after = device.run(|| snapshot().unwrap());
    assert_eq!(path(&after, "wlan0").state, PathState::Up);
}

#[test]
#[expect(clippy::print_stderr, reason = "a skipped test must say so")]
fn parts_of_a_bridge_are_not_paths_and_the_bridge_is() {
    let Some(device) = namespace() else { return };
    let Some(peer) = namespace() else { return };
    device.cable("eth0", &peer, "p0");
    // Not every kernel has bridges.
    if device.sh("ip link add br0 type bridge 2>/dev/null && echo yes || true").is_empty() {
        eprintln!("SKIPPED: the kernel has no bridges");
        return;
    }
    device.sh("ip link set eth0 master br0");
    let paths = device.run(|| snapshot().unwrap());
    let names: Vec<&str> = paths.iter().map(|path| path.interface.as_str()).collect();
    assert_eq!(names, ["br0"]);
}

#[test]
fn next_hops_of_one_multipath_route_belong_to_their_own_interfaces() {
    let Some(net) = two_paths() else { return };
    net.device.sh("ip route flush default
         ip route add default nexthop via 10.1.0.1 dev wlan0 nexthop via 10.2.0.1 dev wwan0");
    let paths = net.device.run(|| snapshot().unwrap());
    for (name, gateway) in [("wlan0", "10.1.0.1"), ("wwan0", "10.2.0.1")] {
        assert_eq!(path(&paths, name).gateways[0], ip(gateway));
    }
}

#[test]
fn a_watcher_reports_the_present_then_each_change_and_stops_when_dropped() {
    let Some(net) = two_paths() else { return };
    let (sender, changes) = mpsc::channel();
    let watcher = net.device.run(move || Watcher::start(move |paths| sender.send(paths).unwrap()).unwrap());
    let first = changes.recv_timeout(PATIENCE).unwrap();
    assert_eq!(path(&first, "wlan0").state, PathState::Up);

    let wait_for = |what: &str, is_so: &dyn Fn(&PathInfo) -> bool| {
        let deadline = std::time::Instant::now() + PATIENCE;
        loop {
            let left = deadline.saturating_duration_since(std::time::Instant::now());
            let paths = changes.recv_timeout(left).unwrap_or_else(|_| panic!("never reported: {what}"));
            if is_so(&path(&paths, "wlan0")) {
                return paths;
            }
        }
    };
    net.device.sh("ip route del default dev wlan0; ip -6 route del default dev wlan0");
    wait_for("route gone", &|wlan| wlan.state == PathState::NoDefaultRoute);
    net.device.sh("ip addr flush dev wlan0");
    wait_for("addresses gone", &|wlan| wlan.state == PathState::NoAddress);
    net.internet.sh("ip link set to-wlan0 down");
    wait_for("carrier lost", &|wlan| wlan.state == PathState::Down && wlan.network.0.is_empty());
    net.internet.sh("ip link set to-wlan0 up");
    net.device.sh("ip addr add 10.1.0.3/24 dev wlan0; ip route add default via 10.1.0.1 dev wlan0");
    let paths = wait_for("back", &|wlan| wlan.state == PathState::Up);
    assert_eq!(path(&paths, "wlan0").addresses, [ip("10.1.0.3")]);

    drop(watcher);
    assert!(matches!(changes.try_iter().last(), None | Some(_)));
    assert_eq!(changes.recv(), Err(mpsc::RecvError), "the callback is gone with the watcher");
}

#[test]
fn a_gateways_hardware_address_becomes_part_of_the_networks_identity_and_stays() {
    let Some(net) = two_paths() else { return };
    net.internet.sh("ip link set to-wlan0 address 02:00:00:00:00:07");
    net.device.sh("ip neigh flush dev wlan0");
    let (sender, changes) = mpsc::channel();
    let _watcher = net.device.run(move || Watcher::start(move |paths| drop(sender.send(paths))).unwrap());
    changes.recv_timeout(PATIENCE).unwrap();
    net.device.sh("ip neigh replace 10.1.0.1 lladdr 02:00:00:00:00:07 dev wlan0 nud reachable");
    let known = "gateway 10.1.0.1 02:00:00:00:00:07";
    while path(&changes.recv_timeout(PATIENCE).unwrap(), "wlan0").network.0 != known {}
    net.device.sh("ip neigh flush dev wlan0; ip addr add 10.1.0.9/24 dev wlan0");
    let paths = changes.recv_timeout(PATIENCE).unwrap();
    assert_eq!(path(&paths, "wlan0").network.0, known);
}

#[test]
fn a_burst_of_changes_is_few_reports() {
    let Some(net) = two_paths() else { return };
    let (sender, changes) = mpsc::channel();
    let watcher = net.device.run(move || Watcher::start(move |paths| drop(sender.send(paths))).unwrap());
    let commands: String = (10..110).map(|last| format!("addr add 10.1.0.{last}/24 dev wlan0\n")).collect();
    net.device.sh(&format!("ip -batch - <<X\n{commands}X"));
    let mut reports = 0;
    loop {
        let paths = changes.recv_timeout(PATIENCE).unwrap();
        reports += 1;
        if path(&paths, "wlan0").addresses.len() == 102 {
            break;
        }
    }
    drop(watcher);
    assert!(reports < 50, "{reports} reports of 100 changes");
}

/// Has a process take a snapshot with this system bus; `None` where that would not ask the bus.
fn snapshot_with_bus(address: &str) -> Option<Duration> {
    let ours = std::fs::read_link("/proc/self/ns/net").ok()?;
    if std::fs::read_link("/proc/1/ns/net").is_ok_and(|first| first != ours) {
        return None;
    }
    let began = std::time::Instant::now();
    let status = role("role_snapshot").env("DBUS_SYSTEM_BUS_ADDRESS", address).status().unwrap();
    assert!(status.success());
    Some(began.elapsed())
}

#[test]
fn without_a_bus_or_with_one_that_never_answers_paths_are_read_all_the_same() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("bus");
    let address = format!("unix:path={}", path.display());
    snapshot_with_bus(&address);
    let _silent = std::os::unix::net::UnixListener::bind(&path).unwrap();
    if let Some(took) = snapshot_with_bus(&address) {
        assert!(took < PATIENCE, "{took:?}");
    }
}

#[test]
#[ignore = "run by another test as a process of its own"]
fn role_snapshot() {
    if support::is_role() {
        snapshot().unwrap();
    }
}
