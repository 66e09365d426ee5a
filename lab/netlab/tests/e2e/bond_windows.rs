//! Programs and servers that stop reading, and others beside them.

use std::io::{self, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use multiway_core::paths::PathKind;
use multiway_linksim::{LinkSpec, Scenario, ServerSpec, mbit};
use multiway_netlab::{Direction, NetworkOptions, Process, skip_without_lab};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::bond_security::Second;
use crate::bond_world::{BondWorld, EXCHANGE_PORT, Ends, Exchange, origin_is_content, serve};
use crate::support::{World, same, skip_without_programs, tls, wait_until};

const FILE: &str = "film.mp4";

/// More than windows and sockets take.
const FILE_BYTES: u64 = 30_000_000;

/// Enough that their first windows alone would fill what a session holds.
const STOPPED: usize = 40;

/// Where the origin takes connections and reads nothing.
const SINK_PORT: u16 = 7002;

/// Nothing moves any more when nothing has for so long.
const STILL: Duration = Duration::from_secs(1);

/// What questions about paths cost meanwhile, in bytes, and more.
const PINGS: u64 = 64 << 10;

const EXCHANGE: Exchange = Exchange { ends: Ends::DeviceFirst, up: 1_000_000, down: 3_000_000 };

fn scenario(origin: ServerSpec) -> Scenario {
    let link = |rate, rtt| LinkSpec::symmetric(mbit(rate), Duration::from_millis(rtt));
    Scenario::new("readers that stop")
        .path("wlan0", PathKind::Wifi, link(100, 20))
        .path("wwan0", PathKind::Cellular, link(50, 40))
        .server(origin.known_as("files.example"))
        .server(ServerSpec::new("relay").known_as("relay.example").behind(link(500, 1)))
}

fn streams(world: &World) -> usize {
    let sessions =
        world.status().into_iter().flat_map(|status| status.relays).flat_map(|relay| relay.sessions);
    sessions.map(|session| session.streams.len()).sum()
}

fn signal(program: &mut Process, signal: Signal) -> Result<()> {
    Ok(kill(Pid::from_raw(i32::try_from(program.child().id())?), signal)?)
}

/// Waits until no more than pings travel in a direction.
fn wait_until_still(world: &World, direction: Direction, mut meanwhile: impl FnMut()) -> Result<()> {
    let carried = || -> u64 {
        let links = world.network.paths().iter().map(|path| path.link().counters(direction));
        links.map(|counters| counters.delivered.bytes).sum()
    };
    let mut last = (carried(), Instant::now());
    wait_until("links that stand still", || {
        meanwhile();
        let now = carried();
        if now > last.0 + PINGS {
            last = (now, Instant::now());
        }
        last.1.elapsed() > STILL
    })
}

#[test]
fn downloads_that_were_stopped_stop_nothing_else_on_the_device() -> Result<()> {
    skip_without_lab!();
    skip_without_programs!("curl");
    let origin = ServerSpec::new("origin").file(FILE, FILE_BYTES);
    let bond = BondWorld::joined_with(scenario(origin), tls, "")?;
    let world = &bond.world;
    let proxy = format!("socks5h://{}", world.proxy()?);
    let mut programs = Vec::new();
    for number in 0..STOPPED {
        let mut curl = world.plain("curl");
        curl.args(["-sSf", "--cacert", "certificate.pem", "--proxy", &proxy, "-o", &number.to_string()]);
        programs.push(world.network.device().start({
            curl.arg(format!("https://files.example/{FILE}"));
            curl
        })?);
    }
    let has_begun =
        |number: usize| world.path(&number.to_string()).metadata().is_ok_and(|file| file.len() > 0);
    wait_until("the beginning of every download", || (0..STOPPED).all(has_begun))
        .with_context(|| world.daemon_log())?;
    programs.iter_mut().try_for_each(|program| signal(program, Signal::SIGSTOP))?;
    wait_until_still(world, Direction::Down, || {})?;
    ensure!(streams(world) >= STOPPED, "{} streams went through the relay", streams(world));

    EXCHANGE.perform(&bond.socks("files.example", EXCHANGE_PORT)?)?;
    origin_is_content(&bond, 1)?;

    // One goes on to its end, and the others are given up.
    let mut first = programs.remove(0);
    signal(&mut first, Signal::SIGCONT)?;
    drop(programs);
    ensure!(first.child().wait()?.success(), "{}", world.daemon_log());
    same(&world.read("0")?, &world.content(FILE))?;
    wait_until("the end of all streams", || streams(world) == 0)
}

/// Writes until nobody takes more.
fn fill(stream: &mut TcpStream) -> Result<()> {
    const PIECE: [u8; 16 << 10] = [7; 16 << 10];
    stream.set_nonblocking(true)?;
    loop {
        match stream.write(&PIECE) {
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
            Err(error) => return Err(error.into()),
        }
    }
}

#[test]
fn servers_that_read_nothing_stop_neither_their_user_nor_another_one() -> Result<()> {
    skip_without_lab!();
    let mut bond =
        BondWorld::build_with(scenario(ServerSpec::new("origin")), |_| Ok(NetworkOptions::default()), "")?;
    let invite = bond.relay.invite(&["--name", "one"])?;
    bond.join(&invite)?;
    bond.start_daemon()?;
    let another = Second::start(&bond, 1, &bond.relay.invite(&["--name", "two"])?)?;
    wait_until("another user's flows through the relay", || another.is_bonded(&bond).unwrap_or(false))?;
    let world = &bond.world;
    let origin = world.network.server("origin");
    let address = SocketAddr::new(origin.public_address().into(), SINK_PORT);
    serve(origin.host(), address, |mut stream, _| {
        // A program that closes without having read this resets its connection.
        stream.write_all(b"welcome")?;
        loop {
            std::thread::park();
        }
    })?;
    let mut stuck = Vec::new();
    for _ in 0..STOPPED {
        stuck.push(bond.socks("files.example", SINK_PORT)?);
    }
    let mut failed = None;
    wait_until_still(world, Direction::Up, || {
        failed = failed.take().or_else(|| stuck.iter_mut().find_map(|stream| fill(stream).err()));
    })?;
    ensure!(failed.is_none(), "{failed:?}");

    EXCHANGE.perform(&bond.socks("files.example", EXCHANGE_PORT)?)?;
    let others = bond.socks_by(another.proxy(), "files.example", EXCHANGE_PORT)?;
    EXCHANGE.perform(&others.map_err(|reply| anyhow::anyhow!("SOCKS answers {reply}"))?)?;
    origin_is_content(&bond, 2)?;
    drop(stuck);
    wait_until("the end of all streams", || streams(world) == 0)
}
