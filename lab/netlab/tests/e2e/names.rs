//! Names that mean other servers, or nothing, on other networks.

use std::net::{IpAddr, Ipv4Addr};

use anyhow::{Context, Result, ensure};
use multiway_linksim::{Scenario, ServerSpec};
use multiway_netlab::{DnsAnswer, skip_without_lab};

use crate::support::{FAST, World, output, run, same, skip_without_programs, wait_until, wifi_and_lte};

const FILE: &str = "2MB.bin";

/// A daemon that is told each path's own server, which no program here could tell it.
fn world(scenario: &Scenario) -> Result<World> {
    let mut world = World::build(scenario)?;
    let mut config = FAST.to_owned();
    for path in world.network.paths() {
        let (interface, server) = (path.interface(), path.gateway_address());
        config += &format!("[paths.override.{interface}]\ndns = [\"{server}\"]\n");
    }
    world.start_daemon(&config, &[])?;
    Ok(world)
}

#[test]
fn each_path_brings_bytes_from_its_own_server() -> Result<()> {
    skip_without_lab!();
    skip_without_programs!("curl");
    let edge = |name: &str, interface: &str| {
        ServerSpec::new(name).known_as("cdn.example").only_on(interface).file(FILE, 2_000_000)
    };
    let scenario = wifi_and_lte(ServerSpec::new("origin"))
        .server(edge("wifi-edge", "wlan0"))
        .server(edge("lte-edge", "wwan0"));
    let world = world(&scenario)?;
    let url = "http://cdn.example/2MB.bin";
    let proxy = format!("http://{}", world.proxy()?);
    let mut expected = 0;
    for (what, mut curl) in [
        ("intercepted", world.intercepted("curl")),
        ("by proxy", {
            let mut curl = world.command("curl");
            curl.args(["-x", &proxy]);
            curl
        }),
    ] {
        same(&output(curl.args(["-sSf", url]))?, &world.content(FILE)).context(what)?;
        expected += 300_000;
        for edge in ["wifi-edge", "lte-edge"] {
            let nginx = world.network.server(edge).nginx().context("it has files")?;
            wait_until(&format!("{edge} to have served {expected} bytes, {what}"), || {
                let requests = nginx.requests().unwrap_or_default();
                requests.iter().map(|request| request.body_bytes).sum::<u64>() >= expected
            })?;
        }
    }
    Ok(())
}

#[test]
fn a_name_that_one_network_does_not_know_is_found_by_the_other() -> Result<()> {
    skip_without_lab!();
    skip_without_programs!("curl");
    for interface in ["wlan0", "wwan0"] {
        let inner =
            ServerSpec::new("inner").known_as("inner.example").only_on(interface).file(FILE, 2_000_000);
        let world = world(&wifi_and_lte(ServerSpec::new("origin")).server(inner))?;
        let found = output(world.intercepted("curl").args(["-sSf", "http://inner.example/2MB.bin"]))?;
        same(&found, &world.content(FILE)).context(interface)?;
    }
    Ok(())
}

#[test]
fn a_name_that_nobody_knows_is_reported_as_such() -> Result<()> {
    skip_without_lab!();
    skip_without_programs!("curl");
    let world = world(&wifi_and_lte(ServerSpec::new("origin")))?;
    let failed = run(world.intercepted("curl").args(["-sS", "http://no-such-name.example/"]))?;
    // CURLE_COULDNT_RESOLVE_HOST
    ensure!(failed.status.code() == Some(6), "{failed:?}");
    Ok(())
}

#[test]
fn a_wrong_a_silent_and_a_failing_name_server_on_one_path_break_nothing() -> Result<()> {
    skip_without_lab!();
    skip_without_programs!("curl");
    let origin = ServerSpec::new("origin").file(FILE, 2_000_000);
    for interface in ["wlan0", "wwan0"] {
        let world = world(&wifi_and_lte(origin.clone()))?;
        let lie = IpAddr::from(Ipv4Addr::new(10, 66, 66, 66));
        for (number, answer) in [
            (0, DnsAnswer::Addresses(vec![lie])),
            (1, DnsAnswer::Silence),
            (2, DnsAnswer::ServerFailure),
            (3, DnsAnswer::NoSuchName),
        ] {
            // A name of its own, so that no earlier answer is remembered.
            let name = format!("files{number}.example");
            for path in world.network.paths() {
                let server = world.network.server("origin").public_address().into();
                path.dns().set(&name, DnsAnswer::Addresses(vec![server]));
            }
            let what = format!("{answer:?} on {interface}");
            world.network.path(interface).dns().set(&name, answer);
            let found = output(world.intercepted("curl").args(["-sSf", &format!("http://{name}/2MB.bin")]));
            same(&found.with_context(|| what.clone())?, &world.content(FILE)).context(what)?;
        }
    }
    Ok(())
}
