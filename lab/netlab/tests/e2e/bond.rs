//! Streams through a relay: every byte of both directions, with either half closed first.

use std::fs;

use anyhow::{Context, Result, ensure};
use multiway_netlab::skip_without_lab;

use crate::bond_world::{BondWorld, EXCHANGE_PORT, Ends, Exchange, origin_is_content};
use crate::support::{output, same, skip_without_programs};

/// Both directions at once, with either end first.
const EXCHANGES: [Exchange; 2] = [
    Exchange { ends: Ends::DeviceFirst, up: 1_000_003, down: 3_000_017 },
    Exchange { ends: Ends::OriginFirst, up: 2_000_029, down: 1_000_033 },
];

/// The device's end of an exchange, as a program that knows of no proxy: host, port, who ends first,
/// file to send (the origin's header first), file to write.
const PROGRAM: &str = r#"
import socket, sys, threading
host, port, ends, sends, writes = sys.argv[1:]
data = open(sends, "rb").read()
stream = socket.create_connection((host, int(port)), 20)
def receive():
    with open(writes, "wb") as out:
        while piece := stream.recv(65536):
            out.write(piece)
receiver = threading.Thread(target=receive)
receiver.start()
if ends == "device":
    stream.sendall(data)
    stream.shutdown(socket.SHUT_WR)
    receiver.join()
else:
    half = len(data) // 2
    stream.sendall(data[:half])
    receiver.join()
    stream.sendall(data[half:])
    stream.shutdown(socket.SHUT_WR)
"#;

#[test]
fn random_bytes_go_both_ways_and_each_half_closes_by_itself() -> Result<()> {
    skip_without_lab!();
    skip_without_programs!("python3");
    let bond = BondWorld::joined()?;
    let before = bond.packets_up("wwan0");
    for exchange in EXCHANGES {
        let stream = bond.socks("files.example", EXCHANGE_PORT)?;
        exchange.perform(&stream).with_context(|| format!("by SOCKS, {exchange:?}"))?;
    }
    // The default policy: what costs money stays silent while nothing is wrong with the other network. A
    // machine so busy that the relay answers late may raise a suspicion; then it is right to ask.
    let asked = bond.packets_up("wwan0") - before;
    let is_suspected = bond.world.daemon_log().contains("a path is suspected");
    ensure!(asked == 0 || is_suspected, "{asked} packets went up the metered network");
    for exchange in EXCHANGES {
        let sends = bond.world.path("sends");
        fs::write(&sends, [exchange.header(), exchange.up_bytes()].concat())?;
        let ends = if exchange.ends == Ends::DeviceFirst { "device" } else { "origin" };
        let mut program = bond.world.intercepted("python3");
        program.args(["-c", PROGRAM, "files.example", &EXCHANGE_PORT.to_string(), ends]);
        output(program.arg(&sends).arg("received"))?;
        let received = bond.world.read("received")?;
        same(&received, &exchange.down_bytes()).with_context(|| format!("intercepted, {exchange:?}"))?;
    }
    origin_is_content(&bond, 2 * EXCHANGES.len())
}
