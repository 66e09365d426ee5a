//! What a session learns of its networks is known to the next daemon.

use std::io::{Read, Write};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use multiway_core::paths::PathKind;
use multiway_linksim::{LinkSpec, Scenario, ServerSpec, mbit};
use multiway_netlab::{NetworkOptions, skip_without_lab};

use crate::bond_world::{BondWorld, serve};
use crate::support::wait_until;

/// Where the origin sends `BYTES` and ends.
const DOWNLOAD_PORT: u16 = 7006;
const BYTES: usize = 8_000_000;

const AGGREGATE: &str = "[bond]\nmode = \"aggregate\"\n";

/// The network that comes first by its name is the slower one.
fn scenario() -> Scenario {
    let path = |rate| LinkSpec::symmetric(mbit(rate), Duration::from_millis(20));
    Scenario::new("Two Wi-Fi networks")
        .path("wlan0", PathKind::Wifi, path(2))
        .path("wlan1", PathKind::Wifi, path(20))
        .server(ServerSpec::new("origin").known_as("files.example"))
        .server(ServerSpec::new("relay").known_as("relay.example").behind(path(500)))
}

/// The network with which streams begin.
fn active(bond: &BondWorld) -> Result<Option<String>> {
    let status = bond.world.status()?;
    let session = status.relays.first().and_then(|relay| relay.sessions.first()).context("no session")?;
    Ok(session.active.clone())
}

fn rates(bond: &BondWorld) -> Result<Vec<Option<u64>>> {
    Ok(bond.world.status()?.paths.iter().map(|path| path.throughput_bits_per_second).collect())
}

#[test]
fn a_device_that_only_uses_its_relay_knows_after_a_restart_how_fast_its_networks_are() -> Result<()> {
    skip_without_lab!();
    let mut bond = BondWorld::build_with(scenario(), |_| Ok(NetworkOptions::default()), "")?;
    let origin = bond.world.network.server("origin");
    for address in origin.addresses() {
        serve(origin.host(), (address, DOWNLOAD_PORT).into(), |mut stream, _| stream.write_all(&[7; BYTES]))?;
    }
    let invite = bond.relay.invite(&[])?;
    bond.join(&invite)?;
    bond.world.start_daemon(AGGREGATE, &[])?;
    bond.wait_until_bonded()?;
    ensure!(active(&bond)?.as_deref() == Some("wlan0"), "the order of the table");
    let mut all = Vec::new();
    bond.socks("files.example", DOWNLOAD_PORT)?.read_to_end(&mut all)?;
    ensure!(all.len() == BYTES, "{} bytes", all.len());
    let learnt = || bond.world.daemon_log().matches("what a path carried").count() >= 2;
    wait_until("both networks' rates to be kept", learnt).with_context(|| bond.world.daemon_log())?;

    bond.world.daemon().terminate()?;
    bond.world.start_daemon(AGGREGATE, &[])?;
    bond.wait_until_bonded()?;
    let is_known = || matches!(rates(&bond).as_deref(), Ok([Some(_), Some(_)]));
    wait_until("both rates to be known", is_known).with_context(|| bond.world.daemon_log())?;
    let rates = rates(&bond)?;
    let [Some(slow), Some(fast)] = rates[..] else { bail!("{rates:?}") };
    ensure!(slow < 3_000_000 && (5_000_000..25_000_000).contains(&fast), "{rates:?}");
    let is_first = || active(&bond).is_ok_and(|active| active.as_deref() == Some("wlan1"));
    wait_until("the faster one to be the first", is_first).with_context(|| bond.world.daemon_log())?;
    Ok(())
}
