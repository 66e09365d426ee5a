//! A second implementation of docs/protocol.md, in Python and written from the document alone, against a real relay.

use std::fs;
use std::io::Read;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use multiway_netlab::{Direction, skip_without_lab};

use crate::bond_world::{BondWorld, EXCHANGE_PORT, Ends, Exchange, origin_is_content};
use crate::support::{output, same, skip_without_programs, wait_until};

/// What the device and the origin exchange over one stream.
const EXCHANGES: [Exchange; 2] = [
    Exchange { ends: Ends::DeviceFirst, up: 5_000_003, down: 5_000_011 },
    Exchange { ends: Ends::OriginFirst, up: 5_000_003, down: 5_000_011 },
];

/// Where the relay wants joins, beside where sessions begin.
pub(crate) const ADVERTISED_PORT: u16 = 8443;

/// More than a busy machine needs for all cases of misbehaviour.
const PROGRAM_PATIENCE_SECONDS: &str = "120";

/// A file of the second implementation.
pub(crate) fn interop(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/interop").join(name)
}

/// `scenarios.py` on the device, with the relay's invite.
fn scenario(bond: &BondWorld, name: &str) -> Result<Command> {
    let mut command = bond.world.plain("timeout");
    command.args(["-k", "1", PROGRAM_PATIENCE_SECONDS, "python3"]);
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

/// A scenario of one stream that exchanges bytes, the device's end first.
fn exchange_in(bond: &BondWorld, name: &str, up: u64, down: u64) -> Result<(Command, Exchange)> {
    let exchange = Exchange { ends: Ends::DeviceFirst, up, down };
    let sends = bond.world.path("sends");
    fs::write(&sends, [exchange.header(), exchange.up_bytes()].concat())?;
    let mut program = scenario(bond, name)?;
    program.args(["files.example", &EXCHANGE_PORT.to_string()]).arg(&sends);
    program.args(["received", "wlan0", "wwan0"]);
    Ok((program, exchange))
}

/// Compares what it wrote, and what came at the origin.
fn is_exchanged(bond: &BondWorld, exchange: Exchange) -> Result<()> {
    same(&bond.world.read("received")?, &exchange.down_bytes())?;
    origin_is_content(bond, 1)
}

#[test]
fn bytes_that_come_again_over_another_network_are_delivered_once() -> Result<()> {
    skip_without_lab!();
    skip_without_programs!("python3");
    let bond = BondWorld::build("")?;
    let (mut program, exchange) = exchange_in(&bond, "doubled", 1_000_003, 100_003)?;
    output(&mut program).with_context(|| bond.relay.log())?;
    is_exchanged(&bond, exchange)
}

#[test]
fn the_relay_sends_over_the_networks_that_the_device_says() -> Result<()> {
    skip_without_lab!();
    skip_without_programs!("python3");
    let bond = BondWorld::build("")?;
    let (mut program, exchange) = exchange_in(&bond, "standings", 1000, 10_000_019)?;
    output(&mut program).with_context(|| bond.relay.log())?;
    is_exchanged(&bond, exchange)
}

#[test]
fn a_relay_that_stops_says_so_on_every_subflow_and_lets_streams_finish() -> Result<()> {
    skip_without_lab!();
    skip_without_programs!("python3");
    let mut bond = BondWorld::build("drain_seconds = 60\n")?;
    let (mut program, exchange) = exchange_in(&bond, "drained", 100_003, 200_003)?;
    let mut program = program.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let mut said = [0; b"connected\n".len()];
    let connected = program.stdout.as_mut().context("it is piped")?.read_exact(&mut said).map_err(Into::into);
    let stopped = connected.and_then(|()| bond.relay.process().terminate());
    let ended = program.wait_with_output()?;
    ensure!(ended.status.success(), "{}\n{}", String::from_utf8_lossy(&ended.stderr), bond.relay.log());
    ensure!(stopped?.success(), "{}", bond.relay.log());
    is_exchanged(&bond, exchange)
}

#[test]
fn joins_go_where_the_relay_says() -> Result<()> {
    skip_without_lab!();
    skip_without_programs!("python3");
    let mut bond = BondWorld::build("")?;
    let advertised = SocketAddr::new(bond.relay.address().ip(), ADVERTISED_PORT);
    bond.relay.kill()?;
    bond.relay.configure(&format!(
        "listen = [\"{}\", \"{advertised}\"]\nadvertise = \"{advertised}\"\n",
        bond.relay.address()
    ))?;
    bond.relay.run()?;
    let mut program = scenario(&bond, "elsewhere")?;
    program.arg(advertised.to_string()).args(["wlan0", "wwan0"]);
    output(&mut program).map(drop).with_context(|| bond.relay.log())
}

#[test]
fn misbehaviour_costs_what_the_document_says() -> Result<()> {
    skip_without_lab!();
    skip_without_programs!("python3");
    // Each case has a session of its own, and some leave it behind.
    let limits = "[limits]\nsessions_per_user = 1000\nhandshakes_per_second_per_address = 1000\n\
                  streams_per_session = 64\nsession_kib = 1024\nstream_kib = 1024\n";
    let bond = BondWorld::build(limits)?;
    let other_invite = bond.relay.invite(&["--name", "eve"])?;
    let mut program = scenario(&bond, "misbehave")?;
    program.arg(other_invite).args(["files.example", &EXCHANGE_PORT.to_string(), "wlan0", "wwan0"]);
    output(&mut program).map(drop).with_context(|| bond.relay.log())
}
