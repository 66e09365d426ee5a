//! Break-before-make: what costs money carries not one packet until it is needed, and none when it no
//! longer is.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use multiway_netlab::{PassedPacket, skip_without_lab};

use crate::bond_world::{BondWorld, serve};
use crate::support::{skip_without_programs, wait_until};

/// Where the origin answers each message with itself.
const ECHO_PORT: u16 = 7002;

/// Where the origin plays without end: 320 kbit/s.
const RADIO_PORT: u16 = 7005;
const RADIO_PIECE: [u8; 4000] = [9; 4000];

/// Bytes in a message, and the pause between two: somebody who types.
const MESSAGE: [u8; 200] = [7; 200];
const TYPING: Duration = Duration::from_millis(100);

/// How long the preferred network is healthy at first.
const HEALTHY: Duration = Duration::from_secs(10);

/// A program that looks a name up and connects anew each time, given the port and how often.
const PROGRAM: &str = r#"
import socket, sys, time
for _ in range(int(sys.argv[2])):
    stream = socket.create_connection(("files.example", int(sys.argv[1])), 10)
    stream.sendall(b"hello")
    assert stream.recv(100) == b"hello"
    stream.close()
    time.sleep(0.5)
"#;

/// Packets on the metered network that are not the kernel's own.
fn metered_packets(bond: &BondWorld) -> Vec<PassedPacket> {
    let packets = bond.world.network.path("wwan0").link().take_packets();
    packets.into_iter().filter(|packet| !packet.is_ipv6_housekeeping()).collect()
}

/// Sends messages and awaits their answers.
fn type_for(stream: &mut TcpStream, time: Duration) -> Result<()> {
    let until = Instant::now() + time;
    while Instant::now() < until {
        exchange(stream)?;
        std::thread::sleep(TYPING);
    }
    Ok(())
}

fn exchange(stream: &mut TcpStream) -> Result<()> {
    stream.write_all(&MESSAGE)?;
    let mut answer = [0; MESSAGE.len()];
    stream.read_exact(&mut answer).context("no answer")?;
    ensure!(answer == MESSAGE, "another answer");
    Ok(())
}

#[test]
fn a_metered_network_is_silent_until_the_other_fails_and_again_when_it_is_back() -> Result<()> {
    skip_without_lab!();
    skip_without_programs!("python3");
    let mut bond = BondWorld::build("")?;
    let origin = bond.world.network.server("origin");
    for address in origin.addresses() {
        serve(origin.host(), (address, ECHO_PORT).into(), |mut stream, _| {
            let mut piece = [0; 4096];
            loop {
                match stream.read(&mut piece)? {
                    0 => return Ok(()),
                    length => stream.write_all(&piece[..length])?,
                }
            }
        })?;
    }
    metered_packets(&bond);
    let invite = bond.relay.invite(&[])?;
    bond.join(&invite)?;
    bond.start_daemon()?;

    let mut stream = bond.socks("files.example", ECHO_PORT)?;
    let mut program = bond.world.intercepted("python3");
    program.args(["-c", PROGRAM, &ECHO_PORT.to_string(), "15"]).stdout(Stdio::piped()).stderr(Stdio::piped());
    let program = program.spawn()?;
    type_for(&mut stream, HEALTHY)?;
    let ended = program.wait_with_output()?;
    ensure!(ended.status.success(), "the program: {}", String::from_utf8_lossy(&ended.stderr));
    let packets = metered_packets(&bond);
    ensure!(packets.is_empty(), "while Wi-Fi is healthy: {packets:#?}\n{}", bond.world.daemon_log());

    let wifi = bond.world.network.path("wlan0").link();
    wifi.set_blackhole(true);
    exchange(&mut stream).with_context(|| format!("over LTE\n{}", bond.world.daemon_log()))?;
    type_for(&mut stream, Duration::from_secs(1))?;
    let handovers = bond.world.status()?.relays.remove(0).handovers;
    ensure!(handovers.iter().any(|handover| handover.to == "wwan0"), "{handovers:?}");
    ensure!(!metered_packets(&bond).is_empty(), "nothing went over LTE");

    wifi.set_blackhole(false);
    wait_until("the metered subflow to close", || {
        let is_open = |interface| bond.subflows_on(interface).is_ok_and(|count| count > 0);
        exchange(&mut stream).is_ok() && is_open("wlan0") && !is_open("wwan0")
    })
    .with_context(|| bond.world.daemon_log())?;
    // Its farewell, and whatever the link still had.
    std::thread::sleep(Duration::from_secs(1));
    metered_packets(&bond);
    type_for(&mut stream, Duration::from_secs(3))?;
    let packets = metered_packets(&bond);
    ensure!(packets.is_empty(), "when Wi-Fi is back: {packets:#?}\n{}", bond.world.daemon_log());
    Ok(())
}

#[test]
fn a_radio_plays_on_over_the_metered_network_although_its_server_marks_every_piece_as_its_last() -> Result<()>
{
    skip_without_lab!();
    let bond = BondWorld::joined()?;
    let origin = bond.world.network.server("origin");
    for address in origin.addresses() {
        serve(origin.host(), (address, RADIO_PORT).into(), |mut stream, _| {
            loop {
                stream.write_all(&RADIO_PIECE)?;
                std::thread::sleep(TYPING);
            }
        })?;
    }
    let mut stream = bond.socks("files.example", RADIO_PORT)?;
    let mut hear = |pieces| -> Result<()> {
        for _ in 0..pieces {
            let mut piece = [0; RADIO_PIECE.len()];
            stream.read_exact(&mut piece).context("nothing comes")?;
            ensure!(piece == RADIO_PIECE, "another piece");
        }
        Ok(())
    };
    hear(20)?;
    let before = metered_packets(&bond).len();
    bond.world.network.path("wlan0").link().set_blackhole(true);
    hear(50).with_context(|| bond.world.daemon_log())?;
    let after = metered_packets(&bond).len();
    ensure!(before == 0 && after > 50, "{before} and {after} packets on the metered network");
    Ok(())
}

impl BondWorld {
    /// Subflows of the device's sessions over a path.
    fn subflows_on(&self, interface: &str) -> Result<usize> {
        let relays = self.world.status()?.relays;
        let subflows = relays.iter().flat_map(|relay| &relay.sessions).flat_map(|session| &session.subflows);
        Ok(subflows.filter(|subflow| subflow.interface == interface).count())
    }
}
