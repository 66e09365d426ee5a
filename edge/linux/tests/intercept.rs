//! Connections of chosen programs are redirected, and only while the process lives.

mod support;

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::time::Duration;

use multiway_edge::intercept::{Intercept, InterceptError, InterceptPlan};
use multiway_edge::original_dst::original_destination;
use multiway_edge::process::owner_of_connection;
use multiway_edge::socket::{Binding, tcp};
use support::{
    Namespace, SERVER_V4, SERVER_V6, TwoPaths, role, role_without, serve, serve_peer_address, two_paths,
};

const MARK: u32 = 0x4d57;

fn servers() -> [SocketAddr; 2] {
    [SERVER_V4, SERVER_V6].map(|server| SocketAddr::new(server.parse().unwrap(), 80))
}

fn root_plan() -> InterceptPlan {
    InterceptPlan {
        users: BTreeSet::from([0]),
        proxy_port: 7070,
        dns_port: Some(7053),
        bypass_mark: MARK,
        ..InterceptPlan::default()
    }
}

/// Two paths, real servers, and listeners in the proxy's place that answer `proxied ORIGINAL`.
fn topology() -> Option<TwoPaths> {
    let net = two_paths()?;
    for server in servers() {
        serve_peer_address(&net.internet, server);
    }
    for listen in ["127.0.0.1:7070", "[::1]:7070"] {
        serve(&net.device, listen.parse().unwrap(), |stream| match original_destination(stream.as_fd()) {
            Ok(original) => format!("proxied {original}"),
            Err(error) => format!("proxied {:?}", error.kind()),
        });
    }
    Some(net)
}

/// What a plain program hears when it connects.
fn connect(device: &Namespace, to: SocketAddr) -> String {
    device.run(move || {
        let mut stream = TcpStream::connect_timeout(&to, Duration::from_secs(5)).unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text
    })
}

fn install(device: &Namespace, plan: InterceptPlan) -> Result<Intercept, InterceptError> {
    device.run(move || Intercept::install(&plan))
}

#[test]
fn a_matched_users_connections_arrive_with_their_original_destination_and_end_with_drop() {
    let Some(net) = topology() else { return };
    let intercept = install(&net.device, root_plan()).unwrap();
    for server in servers() {
        assert_eq!(connect(&net.device, server), format!("proxied {server}"));
    }
    drop(intercept);
    for (server, plain) in servers().into_iter().zip(["10.1.0.2", "2001:db8:1::2"]) {
        assert_eq!(connect(&net.device, server), plain);
    }
    assert_eq!(net.device.sh("nft list ruleset"), "");
}

#[test]
fn other_users_loopback_excluded_destinations_and_marked_sockets_are_left_alone() {
    let Some(net) = topology() else { return };
    let plan = InterceptPlan { excluded: vec!["192.0.2.0/24".parse().unwrap()], ..root_plan() };
    let mut intercept = install(&net.device, plan).unwrap();
    let [v4, v6] = servers();
    assert_eq!(connect(&net.device, v4), "10.1.0.2", "excluded");
    assert_eq!(connect(&net.device, v6), format!("proxied {v6}"), "only IPv4 was excluded");
    for loopback in ["127.0.0.1:7070", "[::1]:7070"] {
        assert_eq!(connect(&net.device, loopback.parse().unwrap()), "proxied NotFound", "made on purpose");
    }

    let marked = net.device.run(move || {
        let binding = Binding { interface: "wwan0".to_owned(), source: None, mark: Some(MARK) };
        let socket = tcp(&binding, v6).unwrap();
        socket.set_nonblocking(false).unwrap();
        socket.connect(&v6.into()).unwrap();
        let mut text = String::new();
        TcpStream::from(socket).read_to_string(&mut text).unwrap();
        text
    });
    assert_eq!(marked, "2001:db8:2::2");

    let others = InterceptPlan { users: BTreeSet::from([65_534]), ..root_plan() };
    intercept.apply(&others).unwrap();
    assert_eq!(connect(&net.device, v6), "2001:db8:1::2");
}

#[test]
fn the_program_behind_a_redirected_connection_is_found_by_its_original_destination() {
    let Some(net) = two_paths() else { return };
    for listen in ["127.0.0.1:7070", "[::1]:7070"] {
        serve(&net.device, listen.parse().unwrap(), |stream| {
            let original = original_destination(stream.as_fd()).unwrap();
            let program = owner_of_connection(stream.peer_addr().unwrap(), original).unwrap();
            format!("{} {} {}", program.pid, program.name, program.uid)
        });
    }
    let _intercept = install(&net.device, root_plan()).unwrap();
    for server in servers() {
        let mut command = std::process::Command::new("bash");
        let script = format!(
            "exec 3<>/dev/tcp/{}/{}; read -r said <&3; echo -n \"$said\"",
            server.ip(),
            server.port()
        );
        command.args(["-c", &script]).stdout(std::process::Stdio::piped());
        let child = net.device.spawn(command);
        let pid = child.id();
        let said = String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap();
        assert_eq!(said, format!("{pid} bash 0"), "{server}");
    }
}

#[test]
fn a_group_is_matched() {
    let Some(net) = topology() else { return };
    let plan = InterceptPlan { users: BTreeSet::new(), groups: BTreeSet::from([0]), ..root_plan() };
    let _intercept = install(&net.device, plan).unwrap();
    let [v4, _] = servers();
    assert_eq!(connect(&net.device, v4), format!("proxied {v4}"));
}

#[test]
fn queries_go_to_the_resolver_wherever_they_were_sent() {
    let Some(net) = topology() else { return };
    let resolvers = net
        .device
        .run(|| ["127.0.0.1:7053", "[::1]:7053"].map(|listen| std::net::UdpSocket::bind(listen).unwrap()));
    let _intercept = install(&net.device, root_plan()).unwrap();
    for resolver in &resolvers {
        resolver.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    }
    for (asked, resolver) in
        [("192.0.2.1:53", 0), ("127.0.0.53:53", 0), ("[2001:db8:5::1]:53", 1), ("[::1]:53", 1)]
    {
        let asked: SocketAddr = asked.parse().unwrap();
        let client = net.device.run(move || {
            let any = if asked.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
            let client = std::net::UdpSocket::bind(any).unwrap();
            client.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
            client.connect(asked).unwrap();
            client.send(b"?").unwrap();
            client
        });
        let (_, from) = resolvers[resolver].recv_from(&mut [0; 8]).unwrap();
        resolvers[resolver].send_to(b"!", from).unwrap();
        assert_eq!(client.recv(&mut [0; 8]).unwrap(), 1, "the answer seems to come from {asked}");
    }
}

#[test]
fn applying_the_same_plan_again_changes_nothing() {
    let Some(net) = topology() else { return };
    let plan = root_plan();
    let mut intercept = install(&net.device, plan.clone()).unwrap();
    let before = net.device.sh("nft list table inet multiway");
    intercept.apply(&plan).unwrap();
    assert_eq!(net.device.sh("nft list table inet multiway"), before);
}

#[test]
fn a_refused_plan_leaves_the_former_one_in_force() {
    let Some(net) = topology() else { return };
    let mut intercept = install(&net.device, root_plan()).unwrap();
    let before = net.device.sh("nft list table inet multiway");
    let bad = InterceptPlan { cgroups: vec!["no/such/group".to_owned()], ..root_plan() };
    assert!(matches!(intercept.apply(&bad), Err(InterceptError::Cgroup { .. })));
    assert_eq!(net.device.sh("nft list table inet multiway"), before);
}

#[test]
fn a_second_daemon_in_the_namespace_is_told_of_the_first() {
    let Some(net) = topology() else { return };
    let _first = install(&net.device, root_plan()).unwrap();
    assert!(matches!(install(&net.device, root_plan()), Err(InterceptError::OwnedByAnother)));
}

#[test]
fn a_table_left_by_hand_is_named_with_its_remedy() {
    let Some(net) = topology() else { return };
    net.device.sh("nft add table inet multiway");
    let error = install(&net.device, root_plan()).unwrap_err();
    assert!(error.to_string().contains("nft delete table inet multiway"), "{error}");
}

#[test]
fn without_the_capability_the_error_says_which() {
    let Some(net) = topology() else { return };
    let command = role_without("-net_admin", "role_intercept_without_the_capability");
    let status = net.device.spawn(command).wait().unwrap();
    assert!(status.success(), "the error was another one");
}

#[test]
fn killed_with_sigkill_nothing_is_left_and_connections_work_plainly() {
    let Some(net) = topology() else { return };
    let mut daemon = net.device.spawn(role("role_intercept_until_killed"));
    let output = BufReader::new(daemon.stdout.take().unwrap()).lines().map_while(Result::ok);
    let said: Vec<String> = output.take_while(|line| line != "installed").collect();
    let (_, child) = said.iter().find_map(|line| line.split_once("child ")).unwrap();
    let [v4, v6] = servers();
    assert_eq!(connect(&net.device, v4), format!("proxied {v4}"));

    daemon.kill().unwrap();
    daemon.wait().unwrap();
    assert_eq!(connect(&net.device, v4), "10.1.0.2");
    assert_eq!(connect(&net.device, v6), "2001:db8:1::2");
    assert_eq!(net.device.sh("nft list ruleset"), "");
    net.device.sh(&format!("kill {child}"));
}

#[test]
#[ignore = "run by another test as a process of its own"]
#[expect(clippy::print_stdout, reason = "tells the other test")]
fn role_intercept_until_killed() {
    if !support::is_role() {
        return;
    }
    let mut intercept = Intercept::install(&root_plan()).unwrap();
    intercept.apply(&root_plan()).unwrap();
    // A child outlives the daemon; it must not keep the table by what it inherited.
    let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
    println!("child {}", child.id());
    println!("installed");
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
#[ignore = "run by another test as a process of its own"]
fn role_intercept_without_the_capability() {
    if !support::is_role() {
        return;
    }
    let error = Intercept::install(&root_plan()).unwrap_err();
    assert!(matches!(error, InterceptError::NotPermitted), "{error}");
    assert!(error.to_string().contains("CAP_NET_ADMIN"));
}
