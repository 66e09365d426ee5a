//! The daemon with a relay of the second implementation of docs/protocol.md, which sends back what it gets.

use std::fs;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};

use anyhow::{Context, Result, ensure};
use multiway_netlab::{Process, skip_without_lab};

use crate::bond_interop::{ADVERTISED_PORT, interop};
use crate::bond_world::BondWorld;
use crate::support::{content_of, same, skip_without_programs, wait_until};

/// What a stream brings up, and back.
const BYTES: u64 = 3_000_017;

const ECHO_PORT: u16 = 7;

/// The relay in Python in the place of the real one, and a device that joined it.
struct EchoWorld {
    bond: BondWorld,
    _relay: Process,
}

impl EchoWorld {
    fn joined(config: &str) -> Result<Self> {
        let mut bond = BondWorld::build("")?;
        let invite = bond.relay.invite(&[])?;
        bond.relay.kill()?;
        let address = bond.relay.address();
        let mut command = bond.relay.host().command("python3");
        command.arg("-B").arg(interop("relay.py")).arg(bond.relay.path("state/identity.pem"));
        command
            .arg(address.ip().to_string())
            .args([address.port(), ADVERTISED_PORT].map(|port| port.to_string()));
        command.stdout(fs::File::create(bond.relay.path("said"))?);
        command.stderr(fs::File::options().append(true).open(bond.relay.path("log"))?);
        let relay = bond.relay.host().start(command)?;
        bond.join(&invite)?;
        bond.world.start_daemon(config, &[])?;
        let world = Self { bond, _relay: relay };
        world.wait_until_bonded()?;
        Ok(world)
    }

    /// Waits until streams go to the relay: nothing else knows the name.
    fn wait_until_bonded(&self) -> Result<()> {
        wait_until("a stream", || self.echo("plain", 10).is_ok()).with_context(|| self.story())
    }

    fn open(&self, deed: &str) -> Result<TcpStream> {
        self.bond.socks(&format!("{deed}.echo"), ECHO_PORT)
    }

    fn echo(&self, deed: &str, bytes: u64) -> Result<()> {
        echo(self.open(deed)?, bytes)
    }

    fn said(&self) -> String {
        fs::read_to_string(self.bond.relay.path("said")).unwrap_or_default()
    }

    /// How often the relay said a line that begins so.
    fn count(&self, beginning: &str) -> usize {
        self.said().lines().filter(|line| line.starts_with(beginning)).count()
    }

    fn story(&self) -> String {
        format!("{}\n{}\n{}", self.said(), self.bond.relay.log(), self.bond.world.daemon_log())
    }
}

/// Sends bytes, ends this half, and gets the same back to their end.
fn echo(stream: TcpStream, bytes: u64) -> Result<()> {
    let sends = content_of(1, "echo", bytes);
    let mut writer = &stream;
    std::thread::scope(|scope| {
        let received = scope.spawn(|| -> Result<Vec<u8>> {
            let mut received = Vec::new();
            (&stream)
                .read_to_end(&mut received)
                .with_context(|| format!("after {} bytes", received.len()))?;
            Ok(received)
        });
        writer.write_all(&sends)?;
        stream.shutdown(Shutdown::Write)?;
        same(&received.join().expect("reading does not panic")?, &sends)
    })
}

#[test]
fn the_daemon_uses_both_networks_to_a_relay_that_was_written_from_the_document() -> Result<()> {
    skip_without_lab!();
    skip_without_programs!("python3");
    let config = "preference = \"fast\"\n[bond]\nmode = \"aggregate\"\n";
    let world = EchoWorld::joined(config)?;
    std::thread::scope(|scope| {
        let streams = [(); 3].map(|()| scope.spawn(|| world.echo("plain", BYTES)));
        streams.into_iter().try_for_each(|stream| stream.join().expect("an echo does not panic"))
    })
    .with_context(|| world.story())?;
    for interface in ["wlan0", "wwan0"] {
        let carried = world.bond.world.carried(interface);
        ensure!(carried > BYTES / 6, "{interface} carried {carried} bytes\n{}", world.story());
    }
    // What is refused is refused to the program, too.
    let reply = world.bond.try_socks("nowhere.example", ECHO_PORT)?.err();
    ensure!(reply == Some(4), "{reply:?}");
    ensure!(world.count("violation") == 0, "{}", world.story());
    Ok(())
}

#[test]
fn the_daemon_moves_streams_and_joins_where_that_relay_says() -> Result<()> {
    skip_without_lab!();
    skip_without_programs!("python3");
    let world = EchoWorld::joined("")?;
    let stream = world.open("advertise")?;
    let wifi = world.bond.world.network.path("wlan0");
    let before = world.bond.world.carried("wlan0");
    std::thread::scope(|scope| -> Result<()> {
        let echoed = scope.spawn(|| echo(stream, BYTES));
        wait_until("bytes", || world.bond.world.carried("wlan0") > before + BYTES / 10)?;
        wifi.link().set_blackhole(true);
        echoed.join().expect("an echo does not panic")
    })
    .with_context(|| world.story())?;
    let joins = world.count(&format!("join {ADVERTISED_PORT}"));
    ensure!(joins > 0 && world.count("standing") > 0, "{}", world.story());
    ensure!(world.count("violation") == 0, "{}", world.story());
    Ok(())
}

#[test]
fn the_daemon_skips_what_it_may_and_begins_another_session_when_that_relay_drains() -> Result<()> {
    skip_without_lab!();
    skip_without_programs!("python3");
    let world = EchoWorld::joined("")?;
    world.echo("skipped", 1000).with_context(|| world.story())?;
    let sessions = world.count("init");
    let old = world.open("drain")?;
    wait_until("another session", || world.count("init") > sessions).with_context(|| world.story())?;
    world.wait_until_bonded()?;
    echo(old, 100_000).with_context(|| world.story())?;
    ensure!(world.count("violation") == 0, "{}", world.story());
    Ok(())
}

#[test]
fn the_daemon_ends_what_that_relay_violates_with_the_code_of_the_document() -> Result<()> {
    skip_without_lab!();
    skip_without_programs!("python3");
    let world = EchoWorld::joined("")?;
    let deeds = [
        ("unknown-type", "0x2"),
        ("misplaced", "0x3"),
        ("never-opened", "0x104"),
        ("beyond-window", "0x105"),
        ("never-sent", "0x106"),
    ];
    for (deed, code) in deeds {
        let _stream = world.open(deed);
        wait_until(deed, || world.count(&format!("close {code}")) == 1)
            .with_context(|| format!("{deed}\n{}", world.story()))?;
        world.wait_until_bonded()?;
    }
    Ok(())
}
