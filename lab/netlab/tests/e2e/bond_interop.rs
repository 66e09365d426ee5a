//! A second implementation of docs/protocol.md, in Python and written from the document alone, against a real relay.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use multiway_netlab::{Direction, skip_without_lab};

use crate::bond_world::{BondWorld, EXCHANGE_PORT, Ends, Exchange, origin_is_content};
use crate::support::{output, same, skip_without_programs, wait_until};

/// What the device and the origin exchange over one stream.
const EXCHANGES: [Exchange; 2] = [
    Exchange { ends: Ends::DeviceFirst, up: 5_000_003, down: 5_000_011 },
    Exchange { ends: Ends::OriginFirst, up: 5_000_003, down: 5_000_011 },
];

/// A file of the second implementation.
fn interop(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/interop").join(name)
}

/// `scenarios.py` on the device, with the relay's invite.
fn scenario(bond: &BondWorld, name: &str) -> Result<Command> {
    let mut command = bond.world.command("python3");
    // Beside the sources, compiled files would be left in the checkout.
    command.arg("-B").arg(interop("scenarios.py")).arg(name).arg(bond.relay.invite(&[])?);
    Ok(command)
}

/// Exchanges bytes over these networks and compares what came at both ends.
fn exchange(bond: &BondWorld, exchange: Exchange, streams: usize, interfaces: &[&str]) -> Result<()> {
    let (sends, before) = (bond.world.path("sends"), bond.origin.verdicts().len());
    fs::write(&sends, [exchange.header(), exchange.up_bytes()].concat())?;
    let ends = if exchange.ends == Ends::DeviceFirst { "device" } else { "origin" };
    let mut program = scenario(bond, "exchange")?;
    program.args(["files.example", &EXCHANGE_PORT.to_string(), ends]).arg(&sends).arg("received");
    output(program.arg(streams.to_string()).args(interfaces))
        .with_context(|| format!("{exchange:?} over {interfaces:?}\n{}", bond.relay.log()))?;
    for stream in 0..streams {
        let received = bond.world.read(&format!("received{stream}"))?;
        same(&received, &exchange.down_bytes()).with_context(|| format!("{exchange:?}, stream {stream}"))?;
    }
    origin_is_content(bond, before + streams)
}

#[test]
fn the_vectors_of_the_document_are_read_and_written_to_the_octet() -> Result<()> {
    skip_without_programs!("python3");
    let document = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/protocol.md");
    output(Command::new("python3").arg("-B").arg(interop("vectors.py")).arg(document)).map(drop)
}

#[test]
fn one_stream_goes_both_ways_over_one_network_and_each_half_closes_by_itself() -> Result<()> {
    skip_without_lab!();
    skip_without_programs!("python3");
    let bond = BondWorld::build("")?;
    for plan in EXCHANGES {
        exchange(&bond, plan, 1, &["wlan0"])?;
    }
    Ok(())
}

#[test]
fn one_stream_goes_over_two_networks_at_once() -> Result<()> {
    skip_without_lab!();
    skip_without_programs!("python3");
    let bond = BondWorld::build("")?;
    for plan in EXCHANGES {
        exchange(&bond, plan, 1, &["wlan0", "wwan0"])?;
    }
    for interface in ["wlan0", "wwan0"] {
        let link = bond.world.network.path(interface).link();
        for direction in [Direction::Up, Direction::Down] {
            let bytes = link.counters(direction).delivered.bytes;
            ensure!(bytes > 1_000_000, "{interface} carried {bytes} bytes {direction:?}");
        }
    }
    Ok(())
}

#[test]
fn twenty_streams_at_once() -> Result<()> {
    skip_without_lab!();
    skip_without_programs!("python3");
    let bond = BondWorld::build("")?;
    for ends in [Ends::DeviceFirst, Ends::OriginFirst] {
        exchange(&bond, Exchange { ends, up: 200_003, down: 300_007 }, 20, &["wlan0", "wwan0"])?;
    }
    Ok(())
}

#[test]
fn what_a_subflow_loses_arrives_over_the_other_one_once() -> Result<()> {
    skip_without_lab!();
    skip_without_programs!("python3");
    let bond = BondWorld::build("")?;
    let device = bond.world.network.device();
    // What is silent tells neither end.
    for (interface, cut) in [("wlan0", "down"), ("wwan0", "down"), ("wlan0", "silent"), ("wwan0", "silent")] {
        let path = bond.world.network.path(interface);
        std::thread::scope(|scope| -> Result<()> {
            let before = bond.relay.metric("bytes_to_devices_total")?;
            let performed = scope.spawn(|| exchange(&bond, EXCHANGES[0], 1, &["wlan0", "wwan0"]));
            wait_until("bytes", || {
                performed.is_finished()
                    || bond.relay.metric("bytes_to_devices_total").is_ok_and(|now| now > before + 1_000_000)
            })?;
            ensure!(!performed.is_finished(), "it ended before the cut: {:?}", performed.join());
            match cut {
                "down" => device.ip(&format!("link set {interface} down")).map(drop)?,
                _ => path.link().set_blackhole(true),
            }
            performed.join().expect("an exchange does not panic")
        })
        .with_context(|| format!("{interface} is {cut}"))?;
        match cut {
            "down" => {
                device.ip(&format!("link set {interface} up"))?;
                // The kernel took its routes and kept its addresses.
                path.remove_addresses()?;
                path.reconnect()?;
            }
            _ => path.link().set_blackhole(false),
        }
    }
    Ok(())
}
