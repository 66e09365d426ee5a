//! Sockets leave by the path they are bound to.

mod support;

use std::io::Read;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::time::Duration;

use multiway_edge::socket::{Binding, tcp, udp};
use support::{SERVER_V4, SERVER_V6, TwoPaths, role_without, serve_peer_address, two_paths};

fn binding(interface: &str, source: Option<&str>) -> Binding {
    Binding {
        interface: interface.to_owned(),
        source: source.map(|source| source.parse().unwrap()),
        mark: Some(0x4d57),
    }
}

/// The address that the server saw.
fn seen_from(net: &TwoPaths, binding: Binding, server: SocketAddr) -> std::io::Result<IpAddr> {
    net.device.run(move || {
        let socket = tcp(&binding, server)?;
        assert!(socket.nonblocking()?, "sockets are made for an event loop");
        assert_eq!(socket.mark()?, 0x4d57);
        socket.set_nonblocking(false)?;
        socket.connect_timeout(&server.into(), Duration::from_secs(5))?;
        let mut text = String::new();
        TcpStream::from(socket).read_to_string(&mut text)?;
        Ok(text.parse().unwrap())
    })
}

#[test]
fn one_default_route_per_device_is_enough_and_no_rule_is_needed() {
    let Some(net) = two_paths() else { return };
    for server in [SERVER_V4, SERVER_V6] {
        let server = SocketAddr::new(server.parse().unwrap(), 80);
        serve_peer_address(&net.internet, server);
        for (interface, v4, v6) in
            [("wlan0", "10.1.0.2", "2001:db8:1::2"), ("wwan0", "10.2.0.2", "2001:db8:2::2")]
        {
            let own = if server.is_ipv4() { v4 } else { v6 };
            for source in [None, Some(own), Some(if server.is_ipv4() { v6 } else { v4 })] {
                let seen = seen_from(&net, binding(interface, source), server).unwrap();
                assert_eq!(seen, own.parse::<IpAddr>().unwrap(), "{interface} from {source:?}");
            }
        }
    }
}

#[test]
fn strict_reverse_path_filtering_is_diagnosed_and_the_command_given_mends_it() {
    let Some(net) = two_paths() else { return };
    let server = SocketAddr::new(SERVER_V4.parse().unwrap(), 80);
    serve_peer_address(&net.internet, server);
    let diagnose_wwan = || {
        net.device.run(|| {
            let paths = multiway_edge::watch::snapshot().unwrap();
            let wwan = paths.into_iter().find(|path| path.interface == "wwan0").unwrap();
            multiway_edge::diagnose(&wwan)
        })
    };
    net.device.sh("echo 0 | tee /proc/sys/net/ipv4/conf/*/rp_filter");
    assert_eq!(diagnose_wwan(), []);

    net.device.sh("echo 1 > /proc/sys/net/ipv4/conf/all/rp_filter");
    let wwan = Binding { interface: "wwan0".to_owned(), source: None, mark: None };
    let blocked = net.device.run({
        let wwan = wwan.clone();
        move || {
            let socket = tcp(&wwan, server).unwrap();
            socket.set_nonblocking(false).unwrap();
            socket.connect_timeout(&server.into(), Duration::from_millis(500)).unwrap_err().kind()
        }
    });
    assert_eq!(blocked, std::io::ErrorKind::TimedOut);

    // A rule for the source address is one remedy.
    let rule = "ip rule add from 10.2.0.2 lookup 100; ip route add default via 10.2.0.1 table 100";
    net.device.sh(rule);
    assert_eq!(diagnose_wwan(), []);
    assert!(seen_from(&net, binding("wwan0", None), server).is_ok());
    net.device.sh("ip rule del from 10.2.0.2");

    // The one that is told is the other.
    let missing = diagnose_wwan();
    let [missing] = missing.as_slice() else { panic!("{missing:?}") };
    let text = missing.to_string();
    // As sysctl does it, which not every host has.
    let (_, setting) = text.split_once("run: sysctl -w ").unwrap();
    let (name, value) = setting.split_once('=').unwrap();
    net.device.sh(&format!("echo {value} > /proc/sys/{name}"));
    assert_eq!(diagnose_wwan(), []);
    assert!(seen_from(&net, binding("wwan0", None), server).is_ok());
}

#[test]
fn datagrams_leave_by_their_path_too() {
    let Some(net) = two_paths() else { return };
    for (server, own) in [(SERVER_V4, "10.2.0.2"), (SERVER_V6, "2001:db8:2::2")] {
        let server = SocketAddr::new(server.parse().unwrap(), 53);
        let echo = net.internet.run(move || std::net::UdpSocket::bind(server).unwrap());
        let binding = binding("wwan0", Some(own));
        net.device.run(move || udp(&binding, server).unwrap().send_to(b"?", &server.into()).unwrap());
        echo.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        let (_, from) = echo.recv_from(&mut [0; 8]).unwrap();
        assert_eq!(from.ip(), own.parse::<IpAddr>().unwrap());
    }
}

#[test]
fn an_interface_that_is_not_there_is_an_error_of_its_own() {
    let Some(net) = two_paths() else { return };
    let server = SocketAddr::new(SERVER_V4.parse().unwrap(), 80);
    let error = seen_from(&net, binding("wlan7", None), server).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(nix::errno::Errno::ENODEV as i32));
}

#[test]
fn without_any_capability_sockets_are_bound_all_the_same_and_carry_no_mark() {
    let Some(net) = two_paths() else { return };
    let server = SocketAddr::new(SERVER_V4.parse().unwrap(), 80);
    serve_peer_address(&net.internet, server);
    let command = role_without("-all", "role_bind_without_any_capability");
    assert!(net.device.spawn(command).wait().unwrap().success());
}

#[test]
#[ignore = "run by another test as a process of its own"]
fn role_bind_without_any_capability() {
    if !support::is_role() {
        return;
    }
    let server = SocketAddr::new(SERVER_V4.parse().unwrap(), 80);
    let socket = tcp(&binding("wwan0", Some("10.2.0.2")), server).unwrap();
    assert_eq!(socket.mark().unwrap(), 0);
    socket.set_nonblocking(false).unwrap();
    socket.connect(&server.into()).unwrap();
    let mut text = String::new();
    TcpStream::from(socket).read_to_string(&mut text).unwrap();
    assert_eq!(text, "10.2.0.2");
}
