//! Each path has its own DNS server, which answers, or misbehaves, as told.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use anyhow::Result;
use multiway_core::paths::PathKind;
use multiway_linksim::{LinkSpec, Scenario, ServerSpec, mbit};
use multiway_netlab::{DnsAnswer, Host, Network, skip_without_lab};

/// Two paths that know different servers under one name.
fn network() -> Result<Network> {
    let link = || LinkSpec::symmetric(mbit(50), Duration::from_millis(2));
    let scenario = Scenario::new("two resolvers")
        .path("wlan0", PathKind::Wifi, link())
        .path("wwan0", PathKind::Cellular, link())
        .server(ServerSpec::new("near").known_as("cdn.example").only_on("wlan0").file("a.bin", 1000))
        .server(ServerSpec::new("far").known_as("cdn.example").only_on("wwan0").file("a.bin", 1000));
    Network::build(&scenario)
}

/// What dig on the device prints.
fn dig(device: &Host, arguments: &str) -> Result<String> {
    let mut dig = device.command("dig");
    dig.args(["+tries=1", "+time=2"]).args(arguments.split(' '));
    device.output(dig)
}

#[test]
fn one_name_has_another_address_on_each_path() -> Result<()> {
    skip_without_lab!();
    let network = network()?;
    let device = network.device();
    for (interface, server) in [("wlan0", "near"), ("wwan0", "far")] {
        let path = network.path(interface);
        let server = network.server(server);
        for (resolver, over) in [
            (IpAddr::from(path.gateway_address()), ""),
            (path.gateway_address_v6().into(), ""),
            (path.gateway_address().into(), "+tcp "),
        ] {
            let answer = dig(device, &format!("+short {over}@{resolver} cdn.example A"))?;
            assert_eq!(answer.trim(), server.public_address().to_string());
        }
        let answer = dig(device, &format!("+short @{} cdn.example AAAA", path.gateway_address()))?;
        assert_eq!(answer.trim(), server.public_address_v6().to_string());
        let asked: Vec<bool> = path.dns().queries().iter().map(|query| query.is_tcp).collect();
        assert_eq!(asked, [false, false, true, false]);
    }
    // The system's own resolver asks the preferred path, and only that path reaches its server.
    let mut curl = device.command("curl");
    curl.args(["-sS", "-4", "-o", "/dev/null", "-w", "%{remote_ip}", "http://cdn.example/a.bin"]);
    assert_eq!(device.output(curl)?, network.server("near").public_address().to_string());
    let mut curl = device.command("curl");
    let url = format!("http://{}/a.bin", network.server("near").public_address());
    curl.args(["-sS", "--interface", "wwan0", &url]);
    assert!(device.output(curl).is_err(), "the near server is not to be reached over wwan0");
    Ok(())
}

#[test]
fn the_resolver_misbehaves_as_told() -> Result<()> {
    skip_without_lab!();
    let network = network()?;
    let device = network.device();
    let path = network.path("wlan0");
    let poisoned = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 1));
    let dns = path.dns();
    dns.set("alias.example", DnsAnswer::Alias("middle.example".to_owned()));
    dns.set("middle.example", DnsAnswer::Alias("cdn.example".to_owned()));
    dns.set("loop.example", DnsAnswer::Alias("loop.example".to_owned()));
    dns.set("dangling.example", DnsAnswer::Alias("nowhere.example".to_owned()));
    dns.set("large.example", DnsAnswer::OnlyOverTcp(vec![poisoned]));
    dns.set_with_ttl("poisoned.example", 5, DnsAnswer::Addresses(vec![poisoned]));
    dns.set("failing.example", DnsAnswer::ServerFailure);
    dns.set("gone.example", DnsAnswer::NoSuchName);
    dns.set("silent.example", DnsAnswer::Silence);
    let at = format!("@{}", path.gateway_address());

    let chain = dig(device, &format!("+short {at} Alias.Example"))?;
    let address = network.server("near").public_address();
    assert_eq!(chain, format!("middle.example.\ncdn.example.\n{address}\n"));
    for (name, status) in [
        ("gone.example", "NXDOMAIN"),
        ("unknown.example", "NXDOMAIN"),
        ("dangling.example", "NXDOMAIN"),
        ("loop.example", "SERVFAIL"),
        ("failing.example", "SERVFAIL"),
    ] {
        let answer = dig(device, &format!("{at} {name}"))?;
        assert!(answer.contains(&format!("status: {status}")), "{name}: {answer}");
    }
    let cut_off = dig(device, &format!("+ignore {at} large.example"))?;
    assert!(cut_off.contains("flags: qr tc"), "{cut_off}");
    assert_eq!(dig(device, &format!("+short {at} large.example"))?, "127.0.0.1\n", "over TCP it is whole");
    let poisoned = dig(device, &format!("+noall +answer {at} poisoned.example"))?;
    assert!(poisoned.contains("5\tIN\tA\t127.0.0.1"), "{poisoned}");
    assert!(dig(device, &format!("{at} silent.example")).is_err(), "nothing answers");
    Ok(())
}
