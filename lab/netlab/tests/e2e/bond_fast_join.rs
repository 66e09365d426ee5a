//! FAST_JOIN (MultiMob section III-C): an additional subflow carries a stream's bytes in its SYN, and the
//! answer comes one round trip later; where something on the way does not let that be, it comes later.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use multiway_netlab::{Direction, PassedPacket, TcpHead, skip_without_lab};

use crate::bond_world::{BondWorld, serve};
use crate::support::wait_until;

/// Where the origin answers each message with [`ANSWER`] bytes.
const ANSWER_PORT: u16 = 7003;

/// Where the origin sends without end, whatever it hears.
const DOWNLOAD_PORT: u16 = 7004;

/// More than what TLS and the session say of themselves at the beginning of a subflow.
const ANSWER: usize = 4000;

const MESSAGE: [u8; 200] = [3; 200];

/// The second network's round trip: no machine is so busy that it answers this much late.
const LONG: Duration = Duration::from_millis(400);

/// A device that has joined a relay whose kernel takes data in SYNs, or not, and the second network's
/// record begun.
fn world(takes_data: bool) -> Result<BondWorld> {
    let mut bond = BondWorld::build("")?;
    let setting = if takes_data { "3" } else { "1" };
    bond.relay.host().sysctl("net.ipv4.tcp_fastopen", setting)?;
    let origin = bond.world.network.server("origin");
    for address in origin.addresses() {
        serve(origin.host(), (address, ANSWER_PORT).into(), |mut stream, _| {
            let mut message = [0; MESSAGE.len()];
            loop {
                stream.read_exact(&mut message)?;
                stream.write_all(&[5; ANSWER])?;
            }
        })?;
        serve(origin.host(), (address, DOWNLOAD_PORT).into(), |mut stream, _| {
            loop {
                stream.write_all(&[5; ANSWER])?;
            }
        })?;
    }
    let invite = bond.relay.invite(&[])?;
    bond.join(&invite)?;
    bond.start_daemon()?;
    let lte = bond.world.network.path("wwan0").link();
    lte.set_rtt(LONG);
    lte.take_packets();
    Ok(bond)
}

fn hear(stream: &mut TcpStream, times: usize) -> Result<()> {
    for _ in 0..times {
        stream.read_exact(&mut [0; ANSWER]).context("nothing comes")?;
    }
    Ok(())
}

fn ask(stream: &mut TcpStream) -> Result<()> {
    stream.write_all(&MESSAGE)?;
    hear(stream, 1)
}

/// Lets Wi-Fi go silent while somebody asks and is answered.
fn hand_over_while_asking(bond: &BondWorld) -> Result<Vec<PassedPacket>> {
    let mut stream = bond.socks("files.example", ANSWER_PORT)?;
    (0..3).try_for_each(|_| ask(&mut stream))?;
    bond.world.network.path("wlan0").link().set_blackhole(true);
    ask(&mut stream).with_context(|| bond.world.daemon_log())?;
    Ok(bond.world.network.path("wwan0").link().take_packets())
}

/// TCP's packets of the first connection of a record.
fn first_connection(packets: &[PassedPacket]) -> Result<Vec<(&PassedPacket, TcpHead)>> {
    let heads = || packets.iter().filter_map(|packet| packet.tcp().map(|head| (packet, head)));
    let (_, syn) = heads().find(|(_, head)| head.syn && !head.ack).context("no connection")?;
    let is_of_it = |head: &TcpHead| {
        (head.source, head.destination) == (syn.source, syn.destination)
            || (head.destination, head.source) == (syn.source, syn.destination)
    };
    Ok(heads().filter(|(_, head)| is_of_it(head)).collect())
}

/// Payload in the SYN, and payload that came back before the device's second packet can have reached the
/// relay: what the SYN alone brought.
fn by_the_syn_alone(packets: &[PassedPacket]) -> Result<(u64, u64)> {
    let connection = first_connection(packets)?;
    let mut sent = connection.iter().filter(|(packet, _)| packet.direction == Direction::Up);
    let (_, syn) = sent.next().context("no SYN")?;
    let (second, _) = sent.next().context("nothing behind the SYN")?;
    let came_early = |packet: &PassedPacket| packet.at < second.at + LONG;
    let received = connection.iter().filter(|(packet, _)| packet.direction == Direction::Down);
    Ok((syn.payload, received.filter(|(packet, _)| came_early(packet)).map(|(_, head)| head.payload).sum()))
}

/// The source ports and payloads of the device's SYNs.
fn syns(packets: &[PassedPacket]) -> Vec<(u16, u64)> {
    let heads = packets.iter().filter_map(PassedPacket::tcp);
    heads.filter(|head| head.syn && !head.ack).map(|head| (head.source.port(), head.payload)).collect()
}

#[test]
fn a_join_carries_a_question_in_its_syn_and_is_answered_one_round_trip_later() -> Result<()> {
    skip_without_lab!();
    let bond = world(true)?;
    let packets = hand_over_while_asking(&bond)?;
    let (in_syn, answered) = by_the_syn_alone(&packets)?;
    ensure!(in_syn > MESSAGE.len() as u64, "{in_syn} bytes in the SYN: {packets:#?}");
    ensure!(answered > ANSWER as u64, "{answered} bytes came for the SYN alone: {packets:#?}");
    Ok(())
}

#[test]
fn a_join_for_a_download_has_more_of_it_one_round_trip_later() -> Result<()> {
    skip_without_lab!();
    let bond = world(true)?;
    let mut stream = bond.socks("files.example", DOWNLOAD_PORT)?;
    hear(&mut stream, 100)?;
    bond.world.network.path("wlan0").link().set_blackhole(true);
    // More than what was on its way.
    hear(&mut stream, 2000).with_context(|| bond.world.daemon_log())?;
    let packets = bond.world.network.path("wwan0").link().take_packets();
    let (in_syn, answered) = by_the_syn_alone(&packets)?;
    let first = &packets[..packets.len().min(40)];
    ensure!(in_syn > 0, "no data in the SYN: {first:#?}");
    ensure!(answered > ANSWER as u64, "{answered} bytes came for the SYN alone: {first:#?}");
    Ok(())
}

#[test]
fn a_relay_whose_kernel_takes_no_data_in_syns_gets_it_behind_the_handshake() -> Result<()> {
    skip_without_lab!();
    let bond = world(false)?;
    let packets = hand_over_while_asking(&bond)?;
    let (_, answered) = by_the_syn_alone(&packets)?;
    ensure!(answered == 0, "{answered} bytes came for the SYN alone: {packets:#?}");
    Ok(())
}

#[test]
fn a_network_that_drops_syns_with_data_gets_one_without() -> Result<()> {
    skip_without_lab!();
    let bond = world(true)?;
    // A SYN without data has 60 bytes and no more than 40 of options.
    bond.world.network.path("wwan0").gateway().nft(
        "table inet strict {
            chain forward {
                type filter hook forward priority 0;
                tcp flags & (syn | ack) == syn meta length > 100 counter drop
            }
        }",
    )?;
    let mut stream = bond.socks("files.example", ANSWER_PORT)?;
    (0..3).try_for_each(|_| ask(&mut stream))?;
    bond.world.network.path("wlan0").link().set_blackhole(true);
    ask(&mut stream).with_context(|| bond.world.daemon_log())?;
    let lte = bond.world.network.path("wwan0");
    let syns = syns(&lte.link().take_packets());
    let [(first, with_data), (second, without), ..] = syns[..] else { panic!("{syns:?}") };
    // Not the kernel's repetition, which is of the same connection and comes a second later.
    ensure!(with_data > 0 && without == 0 && first != second, "ports and payloads of SYNs {syns:?}");

    // From then on none is tried there.
    lte.disconnect()?;
    wait_until("the end of its subflows", || {
        let relays = bond.world.status().map(|status| status.relays).unwrap_or_default();
        let mut sessions = relays.iter().flat_map(|relay| &relay.sessions);
        sessions.all(|session| session.subflows.iter().all(|subflow| subflow.interface != "wwan0"))
    })?;
    lte.link().take_packets();
    lte.reconnect()?;
    ask(&mut stream).with_context(|| bond.world.daemon_log())?;
    let syns = self::syns(&lte.link().take_packets());
    ensure!(!syns.is_empty() && syns.iter().all(|(_, payload)| *payload == 0), "{syns:?}");
    Ok(())
}
