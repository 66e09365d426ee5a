//! A second implementation of docs/protocol.md, in Python and written from the document alone, against a real relay.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use multiway_netlab::skip_without_lab;

use crate::bond_world::{BondWorld, EXCHANGE_PORT, Ends, Exchange, origin_is_content};
use crate::support::{output, same, skip_without_programs};

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

/// Performs an exchange over these networks and compares what came at both ends.
fn exchange(bond: &BondWorld, exchange: Exchange, interfaces: &[&str]) -> Result<()> {
    let sends = bond.world.path("sends");
    fs::write(&sends, [exchange.header(), exchange.up_bytes()].concat())?;
    let ends = if exchange.ends == Ends::DeviceFirst { "device" } else { "origin" };
    let mut program = scenario(bond, "exchange")?;
    program.args(["files.example", &EXCHANGE_PORT.to_string(), ends]);
    output(program.arg(&sends).arg("received").args(interfaces))
        .with_context(|| format!("{exchange:?} over {interfaces:?}\n{}", bond.relay.log()))?;
    same(&bond.world.read("received")?, &exchange.down_bytes()).with_context(|| format!("{exchange:?}"))
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
        exchange(&bond, plan, &["wlan0"])?;
    }
    origin_is_content(&bond, EXCHANGES.len())
}
