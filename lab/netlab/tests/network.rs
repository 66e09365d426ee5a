//! The standard network carries unmodified programs and does what it is told while it runs.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use multiway_core::paths::PathKind;
use multiway_linksim::{Change, LinkSpec, Loss, Scenario, ServerSpec, mbit};
use multiway_netlab::{Direction, Network, NetworkOptions, content, self_signed, skip_without_lab};

fn wifi_and_lte() -> Scenario {
    Scenario::new("Wi-Fi and LTE")
        .path("wlan0", PathKind::Wifi, LinkSpec::symmetric(mbit(20), Duration::from_millis(30)))
        .path("wwan0", PathKind::Cellular, LinkSpec::symmetric(mbit(15), Duration::from_millis(60)))
        .server(ServerSpec::new("origin").known_as("files.example").file("100kB.bin", 100_000))
}

/// Fetches with curl on the device and gives what it downloaded.
fn curl(network: &Network, arguments: &[&str]) -> anyhow::Result<Vec<u8>> {
    let mut curl = network.device().command("curl");
    let output = curl.args(["-sS", "--fail", "--max-time", "20"]).args(arguments).output()?;
    anyhow::ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(output.stdout)
}

#[test]
fn curl_downloads_over_each_interface_by_ipv4_and_ipv6() -> anyhow::Result<()> {
    skip_without_lab!();
    let network = Network::build(&wifi_and_lte())?;
    let mut expected = Vec::new();
    content::content(1, "100kB.bin", 100_000).read_to_end(&mut expected)?;
    let origin = network.server("origin");
    for path in network.paths() {
        for address in origin.addresses() {
            let url = match address.is_ipv4() {
                true => format!("http://{address}/100kB.bin"),
                false => format!("http://[{address}]/100kB.bin"),
            };
            assert!(curl(&network, &["--interface", path.interface(), &url])? == expected, "{url}");
        }
        let carried = path.link().counters(Direction::Down).delivered.bytes;
        assert!((400_000..500_000).contains(&carried), "{} carried {carried} bytes", path.interface());
    }
    let requests = origin.nginx().expect("it has files").requests()?;
    assert_eq!(requests[0].client, network.path("wlan0").device_address());
    assert_eq!(requests[4].client, network.path("wwan0").device_address());
    Ok(())
}

#[test]
fn nat_hides_the_device_and_other_paths_do_not() -> anyhow::Result<()> {
    skip_without_lab!();
    let link = || LinkSpec::symmetric(mbit(50), Duration::from_millis(2));
    let scenario = Scenario::new("one NAT")
        .path("wlan0", PathKind::Wifi, link())
        .with_nat()
        .path("wwan0", PathKind::Cellular, link())
        .server(ServerSpec::new("origin").file("a.bin", 1000));
    let network = Network::build(&scenario)?;
    for path in network.paths() {
        curl(&network, &["--interface", path.interface(), &network.server("origin").url("a.bin")])?;
    }
    let clients: Vec<_> = network
        .server("origin")
        .nginx()
        .expect("it has files")
        .requests()?
        .iter()
        .map(|r| r.client)
        .collect();
    assert_eq!(clients, network.paths().iter().map(|p| p.address_seen_by_servers()).collect::<Vec<_>>());
    assert_ne!(network.path("wlan0").address_seen_by_servers(), network.path("wlan0").device_address());
    Ok(())
}

#[test]
fn a_server_behind_its_own_link_is_further_away() -> anyhow::Result<()> {
    skip_without_lab!();
    let scenario = Scenario::new("near and far")
        .path("wlan0", PathKind::Wifi, LinkSpec::symmetric(mbit(50), Duration::from_millis(10)))
        .server(ServerSpec::new("near").file("a.bin", 1000))
        .server(
            ServerSpec::new("far").behind(LinkSpec::unlimited(Duration::from_millis(60))).file("a.bin", 1000),
        );
    let network = Network::build(&scenario)?;
    let connect_time = |server: &str, address: std::net::IpAddr| {
        let address = SocketAddr::new(address, 80);
        let start = Instant::now();
        network
            .device()
            .run(|| TcpStream::connect_timeout(&address, Duration::from_secs(5)))
            .map(|_| start.elapsed())
            .map_err(|error| anyhow::anyhow!("{server} at {address}: {error}"))
    };
    for address in network.server("far").addresses() {
        assert!(connect_time("far", address)? >= Duration::from_millis(70));
    }
    let near = connect_time("near", network.server("near").address().into())?;
    assert!(near < Duration::from_millis(60), "{near:?}");
    Ok(())
}

/// A connection from the device over `interface`, and its server side, whose reads end after a while.
fn connection(network: &Network, interface: &str) -> anyhow::Result<(TcpStream, TcpStream)> {
    let server = network.server("origin");
    let listener = server.host().run(|| TcpListener::bind((server.address(), 0)))?;
    let address = listener.local_addr()?;
    let client = network.device().run(|| -> anyhow::Result<TcpStream> {
        let socket = nix::sys::socket::socket(
            nix::sys::socket::AddressFamily::Inet,
            nix::sys::socket::SockType::Stream,
            nix::sys::socket::SockFlag::SOCK_CLOEXEC,
            None,
        )?;
        nix::sys::socket::setsockopt(&socket, nix::sys::socket::sockopt::BindToDevice, &interface.into())?;
        let SocketAddr::V4(address) = address else { anyhow::bail!("{address} is not IPv4") };
        nix::sys::socket::connect(
            std::os::fd::AsRawFd::as_raw_fd(&socket),
            &nix::sys::socket::SockaddrIn::from(address),
        )?;
        Ok(socket.into())
    })?;
    let (server_side, _) = listener.accept()?;
    Ok((client, server_side))
}

#[test]
fn a_blackholed_path_is_silent_and_its_interface_stays_up() -> anyhow::Result<()> {
    skip_without_lab!();
    let network = Network::build(&wifi_and_lte())?;
    let link = network.path("wlan0").link();
    let (mut client, mut server) = connection(&network, "wlan0")?;
    link.set_blackhole(true);
    client.write_all(b"lost")?;
    server.set_read_timeout(Some(Duration::from_millis(400)))?;
    assert!(server.read(&mut [0; 4]).is_err(), "nothing arrives");
    assert!(link.counters(Direction::Up).vanished.packets > 0, "the packets vanished on the link");
    let state = network.device().run(|| std::fs::read_to_string("/sys/class/net/wlan0/carrier"))?;
    assert_eq!(state.trim(), "1", "the interface reports nothing");
    link.set_blackhole(false);
    server.set_read_timeout(Some(Duration::from_secs(20)))?;
    let mut received = [0; 4];
    server.read_exact(&mut received)?;
    assert_eq!(&received, b"lost", "TCP sends it again");
    Ok(())
}

#[test]
fn a_lost_carrier_shows_on_the_interface_and_comes_back() -> anyhow::Result<()> {
    skip_without_lab!();
    let network = Network::build(&wifi_and_lte())?;
    let carrier = || network.device().run(|| std::fs::read_to_string("/sys/class/net/wlan0/carrier"));
    let wait_for = |expected: &str| -> anyhow::Result<()> {
        let deadline = Instant::now() + Duration::from_secs(5);
        while carrier()?.trim() != expected {
            anyhow::ensure!(Instant::now() < deadline, "the carrier does not become {expected}");
            std::thread::yield_now();
        }
        Ok(())
    };
    let url = network.server("origin").url("100kB.bin");
    network.path("wlan0").disconnect()?;
    wait_for("0")?;
    let addresses = network.device().ip("-brief address show dev wlan0")?;
    assert!(!addresses.contains("10.1.0.2") && !addresses.contains("fd00:1::2"), "{addresses}");
    let routes = network.device().ip("route show default")?;
    assert!(!routes.contains("wlan0") && routes.contains("wwan0"), "{routes}");
    // Unaware programs now use the other network.
    curl(&network, &[&url])?;
    assert_eq!(network.path("wlan0").link().counters(Direction::Up).delivered.packets, 0);

    network.path("wlan0").reconnect()?;
    wait_for("1")?;
    curl(&network, &["--interface", "wlan0", &url])?;
    curl(
        &network,
        &[
            "--interface",
            "wlan0",
            "-6",
            &format!("http://[{}]/100kB.bin", network.server("origin").address_v6()),
        ],
    )?;
    Ok(())
}

#[test]
fn a_change_comes_at_its_time() -> anyhow::Result<()> {
    skip_without_lab!();
    let network = Network::build(&wifi_and_lte())?;
    let link = network.path("wlan0").link();
    let (mut client, mut server) = connection(&network, "wlan0")?;
    server.set_read_timeout(Some(Duration::from_secs(5)))?;
    let start = Instant::now();
    link.change_both_after(Duration::from_millis(200), Change::Delay(Duration::from_millis(500)));
    let mut one_way = |client: &mut TcpStream| -> anyhow::Result<Duration> {
        let sent = Instant::now();
        client.write_all(b"x")?;
        server.read_exact(&mut [0])?;
        Ok(sent.elapsed())
    };
    let before = one_way(&mut client)?;
    while start.elapsed() < Duration::from_millis(200) {
        std::thread::yield_now();
    }
    let after = one_way(&mut client)?;
    assert!(before < Duration::from_millis(200), "{before:?}");
    assert!(after >= Duration::from_millis(500), "{after:?}");
    Ok(())
}

#[test]
fn a_held_schedule_runs_when_told_and_again() -> anyhow::Result<()> {
    skip_without_lab!();
    let link = LinkSpec::symmetric(mbit(20), Duration::from_millis(2))
        .with_change(Duration::ZERO, Change::Blackhole(true))
        .with_change(Duration::from_millis(100), Change::Blackhole(false));
    let scenario =
        Scenario::new("short hole").path("wlan0", PathKind::Wifi, link).server(ServerSpec::new("origin"));
    let network =
        Network::build_with(&scenario, &NetworkOptions { hold_schedule: true, ..Default::default() })?;
    let (mut client, mut server) = connection(&network, "wlan0")?;
    server.set_read_timeout(Some(Duration::from_secs(20)))?;
    for run in 1..=2 {
        network.start_schedule();
        client.write_all(b"x")?;
        let sent = Instant::now();
        server.read_exact(&mut [0])?;
        assert!(sent.elapsed() >= Duration::from_millis(90), "run {run}: {:?}", sent.elapsed());
    }
    Ok(())
}

#[test]
fn packets_are_lost_at_the_configured_share() -> anyhow::Result<()> {
    skip_without_lab!();
    let network = Network::build(&wifi_and_lte())?;
    let link = network.path("wlan0").link();
    link.set_loss(Loss::bernoulli(0.1)?);
    link.set_rate(Direction::Up, mbit(1000));
    let target = SocketAddr::from((network.server("origin").address(), 9));
    let packets = 5_000;
    network.device().run(|| -> anyhow::Result<()> {
        let socket = std::net::UdpSocket::bind((network.path("wlan0").device_address(), 0))?;
        for _ in 0..packets {
            // Port unreachable, says the server in between.
            let _ = socket.send_to(&[0; 100], target);
        }
        Ok(())
    })?;
    let deadline = Instant::now() + Duration::from_secs(5);
    let counters = loop {
        let counters = link.counters(Direction::Up);
        if counters.lost.packets + counters.delivered.packets >= packets {
            break counters;
        }
        anyhow::ensure!(Instant::now() < deadline, "{counters:?}");
        std::thread::yield_now();
    };
    // Four standard deviations of the binomial distribution are 85.
    assert!((415..=585).contains(&counters.lost.packets), "{counters:?}");
    Ok(())
}

#[test]
fn a_record_has_every_packet_that_the_device_sent_or_received() -> anyhow::Result<()> {
    skip_without_lab!();
    let network = Network::build(&wifi_and_lte())?;
    let link = network.path("wwan0").link();
    assert_eq!(link.take_packets(), []);
    let before = [Direction::Up, Direction::Down].map(|direction| link.counters(direction));
    curl(&network, &["--interface", "wwan0", &network.server("origin").url("100kB.bin")])?;
    let packets = link.take_packets();
    let recorded = |wanted| {
        let bytes: u64 = packets.iter().filter(|one| one.direction == wanted).map(|one| one.bytes).sum();
        bytes
    };
    let (up, down) = (link.counters(Direction::Up).offered, link.counters(Direction::Down).delivered);
    assert!(recorded(Direction::Up) <= up.bytes - before[0].offered.bytes && recorded(Direction::Up) > 1000);
    assert!(recorded(Direction::Down) <= down.bytes - before[1].delivered.bytes);
    assert!(recorded(Direction::Down) > 100_000);
    assert!(packets.is_sorted_by_key(|packet| packet.at));
    Ok(())
}

#[test]
fn an_interface_that_is_deleted_does_not_hold_the_lab_up() -> anyhow::Result<()> {
    skip_without_lab!();
    let network = Network::build(&wifi_and_lte())?;
    network.device().ip("link delete wlan0")?;
    curl(&network, &[&network.server("origin").url("100kB.bin")])?;
    Ok(())
}

#[test]
fn servers_speak_https_with_the_certificate_given() -> anyhow::Result<()> {
    skip_without_lab!();
    let directory = tempfile::tempdir()?;
    let (certificate, key) = self_signed(directory.path(), &["files.example"])?;
    let options = NetworkOptions { tls: Some((certificate.clone(), key)), ..Default::default() };
    let network = Network::build_with(&wifi_and_lte(), &options)?;
    let authority = certificate.to_string_lossy();
    let body = curl(&network, &["--cacert", &authority, "https://files.example/100kB.bin"])?;
    assert_eq!(body.len(), 100_000);
    Ok(())
}

#[test]
fn kernel_multipath_tcp_uses_both_paths() -> anyhow::Result<()> {
    skip_without_lab!();
    let scenario = wifi_and_lte().server(ServerSpec::new("mirror").file("3MB.bin", 3_000_000));
    let network = Network::build_with(&scenario, &NetworkOptions { mptcp: true, ..Default::default() })?;
    let mut curl = network.device().command("mptcpize");
    curl.args(["run", "curl", "-sS", "--max-time", "20", "-o", "/dev/null", "-w", "%{size_download}"])
        .arg(network.server("mirror").url("3MB.bin"));
    assert_eq!(network.device().output(curl)?, "3000000");
    for path in network.paths() {
        let carried = path.link().counters(Direction::Down).delivered.bytes;
        assert!(carried > 500_000, "{} carried {carried} bytes", path.interface());
    }
    Ok(())
}
