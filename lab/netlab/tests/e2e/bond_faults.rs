//! What programs see of networks and relays that fail while their streams go through a relay.
//!
//! Where nothing else is said, the streams continue, and every byte of both directions is right.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use multiway_api::{Event, EventDetail, SessionStatus};
use multiway_linksim::{Change, ServerSpec};
use multiway_netlab::{Direction, NetworkOptions, NetworkPath, skip_without_lab};

use crate::bond_world::{BondWorld, EXCHANGE_PORT, Ends, Exchange, origin_is_content, scenario};
use crate::support::{World, output, run, skip_without_programs, wait_until};

/// Some two seconds on one network.
const LONG: Exchange = Exchange { ends: Ends::DeviceFirst, up: 1_500_000, down: 4_000_000 };

const SHORT: Exchange = Exchange { ends: Ends::OriginFirst, up: 50_000, down: 250_000 };

/// Between two steps of a fault.
fn pause(milliseconds: u64) {
    std::thread::sleep(Duration::from_millis(milliseconds));
}

/// Streams of one world, with the number of those that have ended.
struct Streams {
    bond: BondWorld,
    ended: usize,
}

impl Streams {
    fn new(bond: BondWorld) -> Self {
        Self { bond, ended: 0 }
    }

    /// One stream in the middle of its bytes and one that is idle survive a fault of the network in use;
    /// what it needs to end is done after that.
    fn survive(
        &mut self,
        what: &str,
        fault: impl FnOnce(&BondWorld, &NetworkPath) -> Result<()>,
        mend: impl FnOnce(&BondWorld, &NetworkPath) -> Result<()>,
    ) -> Result<()> {
        let survived = self.survive_unnamed(fault, mend);
        survived.with_context(|| {
            let Self { bond, .. } = self;
            format!("{what}\n{}\n{}", bond.world.daemon_log(), bond.relay.log())
        })
    }

    fn survive_unnamed(
        &mut self,
        fault: impl FnOnce(&BondWorld, &NetworkPath) -> Result<()>,
        mend: impl FnOnce(&BondWorld, &NetworkPath) -> Result<()>,
    ) -> Result<()> {
        let bond = &self.bond;
        let idle = bond.socks("files.example", EXCHANGE_PORT)?;
        let stream = bond.socks("files.example", EXCHANGE_PORT)?;
        let before = bond.relay.metric("bytes_to_devices_total")?;
        let path = std::thread::scope(|scope| -> Result<&NetworkPath> {
            let performed = scope.spawn(|| LONG.perform(&stream));
            wait_until("bytes", || {
                performed.is_finished()
                    || bond.relay.metric("bytes_to_devices_total").is_ok_and(|now| now > before + 200_000)
            })?;
            let path = bond.world.network.path(&self.active()?);
            ensure!(!performed.is_finished(), "it ended before the fault: {:?}", performed.join());
            fault(bond, path)?;
            performed.join().expect("an exchange does not panic").context("the stream under way")?;
            Ok(path)
        })?;
        mend(bond, path)?;
        SHORT.perform(&idle).context("the idle stream")?;
        self.ended += 2;
        origin_is_content(&self.bond, self.ended)
    }

    fn sessions(&self) -> Result<Vec<SessionStatus>> {
        Ok(self.bond.world.status()?.relays.into_iter().flat_map(|relay| relay.sessions).collect())
    }

    /// The network in use. A busy machine may have moved the session away from Wi-Fi.
    fn active(&self) -> Result<String> {
        self.sessions()?.into_iter().find_map(|session| session.active).context("no network is in use")
    }

    /// Waits until an exchange takes Wi-Fi, and nothing is left on the metered network.
    fn wait_until_on_wifi_alone(&self) -> Result<()> {
        let is_there = || -> Result<bool> {
            let before = self.bond.world.carried("wlan0");
            SHORT.perform(&self.bond.socks("files.example", EXCHANGE_PORT)?)?;
            let is_carried = self.bond.world.carried("wlan0") > before + SHORT.down;
            let sessions = self.sessions()?;
            let mut subflows = sessions.iter().flat_map(|session| &session.subflows);
            Ok(is_carried && subflows.all(|subflow| subflow.interface == "wlan0"))
        };
        // Each suspicion, a false one of a busy machine too, keeps it away for longer.
        let found = (0..3).any(|_| wait_until("Wi-Fi alone", || is_there().unwrap_or(false)).is_ok());
        ensure!(
            found,
            "Wi-Fi is not in use again, alone: {:?}\n{}",
            self.sessions()?,
            self.bond.world.daemon_log()
        );
        Ok(())
    }
}

/// Nothing to mend.
fn mended(_: &BondWorld, _: &NetworkPath) -> Result<()> {
    Ok(())
}

#[test]
fn a_network_that_falls_silent_up_down_or_both_ways_is_left_and_used_again() -> Result<()> {
    skip_without_lab!();
    let mut streams = Streams::new(BondWorld::joined()?);
    for directions in [&[Direction::Up][..], &[Direction::Down], &[Direction::Up, Direction::Down]] {
        let silence = |path: &NetworkPath, is_silent: bool| {
            directions.iter().for_each(|&way| path.link().change(way, Change::Blackhole(is_silent)));
            Ok(())
        };
        // It stays silent until the stream has ended.
        let what = format!("silent {directions:?}");
        streams.survive(&what, |_, path| silence(path, true), |_, path| silence(path, false))?;
    }
    streams.wait_until_on_wifi_alone()
}

#[test]
fn all_networks_are_silent_for_two_seconds() -> Result<()> {
    skip_without_lab!();
    let mut streams = Streams::new(BondWorld::joined()?);
    let silence = |bond: &BondWorld, _: &NetworkPath| {
        let paths = bond.world.network.paths();
        paths.iter().for_each(|path| path.link().set_blackhole(true));
        pause(2000);
        paths.iter().for_each(|path| path.link().set_blackhole(false));
        Ok(())
    };
    streams.survive("silence", silence, mended)
}

#[test]
fn a_network_that_loses_its_carrier_its_link_or_its_address_is_left() -> Result<()> {
    skip_without_lab!();
    let mut streams = Streams::new(BondWorld::joined()?);
    let flap = |_: &BondWorld, path: &NetworkPath| {
        for _ in 0..3 {
            path.link().set_carrier(false);
            pause(150);
            path.link().set_carrier(true);
            pause(150);
        }
        Ok(())
    };
    streams.survive("carrier flap", flap, mended)?;
    streams.survive("out of reach", |_, path| path.disconnect(), |_, path| path.reconnect())?;
    let link = |bond: &BondWorld, path: &NetworkPath, state: &str| {
        bond.world.network.device().ip(&format!("link set {} {state}", path.interface())).map(drop)
    };
    streams.survive(
        "link down",
        |bond, path| link(bond, path, "down"),
        |bond, path| {
            link(bond, path, "up")?;
            // The kernel took its routes and kept its addresses.
            path.remove_addresses()?;
            path.reconnect()
        },
    )?;
    streams.survive("address removed", |_, path| path.remove_addresses(), |_, path| path.reconnect())?;
    // Another lease in the same network, at once.
    let change = |bond: &BondWorld, path: &NetworkPath| {
        path.remove_addresses()?;
        let (interface, gateway) = (path.interface(), path.gateway_address());
        let [a, b, c, _] = path.device_address().octets();
        bond.world.network.device().ip_batch(&format!(
            "addr add {a}.{b}.{c}.77/24 dev {interface}\n\
             route add default via {gateway} dev {interface} metric {}\n",
            path.spec().metric
        ))
    };
    streams.survive("address changed", change, mended)?;
    // Between two networks flows wait for the relay instead of going without it.
    let events = streams.bond.world.status()?.events;
    let gave_up = |event: &&Event| matches!(&event.detail, EventDetail::FellBack { reason, .. } if reason.contains("closed"));
    ensure!(events.iter().find(gave_up).is_none(), "{events:?}");
    Ok(())
}

#[test]
fn resets_of_a_subflow_are_injected_at_either_end() -> Result<()> {
    skip_without_lab!();
    skip_without_programs!("nft");
    let mut streams = Streams::new(BondWorld::joined()?);
    // The router answers in the name of the far end.
    for (what, packets) in
        [("to the device", "saddr ADDRESS tcp dport 443"), ("to the relay", "daddr ADDRESS tcp sport 443")]
    {
        let inject = |bond: &BondWorld, path: &NetworkPath| {
            let router = bond.world.network.internet();
            let packets = packets.replace("ADDRESS", &path.device_address().to_string());
            router.nft(&format!(
                "table ip lab {{ chain c {{ type filter hook forward priority 0; \
                 ip {packets} counter reject with tcp reset; }}; }}"
            ))?;
            pause(100);
            router.nft("delete table ip lab")
        };
        streams.survive(what, inject, mended)?;
    }
    Ok(())
}

/// The provider's NAT forgets its mappings and gives others, from another address.
#[test]
fn a_nat_that_forgets_and_rebinds_does_not_matter() -> Result<()> {
    skip_without_lab!();
    skip_without_programs!("nft", "conntrack");
    let mut scenario = scenario(ServerSpec::new("origin"));
    scenario.paths.iter_mut().for_each(|path| path.nat = true);
    let bond = BondWorld::joined_with(scenario, |_| Ok(NetworkOptions::default()), "")?;
    let mut streams = Streams::new(bond);
    let rebind = |_: &BondWorld, path: &NetworkPath| {
        let gateway = path.gateway();
        let [a, b, c, _] = path.address_seen_by_servers().octets();
        gateway.ip(&format!("addr add {a}.{b}.{c}.3/24 dev wan"))?;
        gateway.nft("delete table ip lab")?;
        gateway.nft(&format!(
            "table ip lab {{ chain nat {{ type nat hook postrouting priority srcnat; \
             oifname wan snat to {a}.{b}.{c}.3; }}; }}"
        ))?;
        let mut forget = gateway.command("conntrack");
        forget.arg("-F");
        gateway.output(forget).map(drop)
    };
    streams.survive("NAT", rebind, mended)
}

/// Reads to an end, which must not look like the end of all bytes.
fn ends_with_an_error(stream: &mut TcpStream) -> Result<()> {
    let mut rest = Vec::new();
    let ended = stream.read_to_end(&mut rest);
    let error = ended.err().with_context(|| format!("{} bytes and an end in good order", rest.len()))?;
    ensure!(error.kind() == std::io::ErrorKind::ConnectionReset, "{error}");
    Ok(())
}

/// Fails unless this many exchanges were cut, and the origin did not take that for an end.
fn origin_is_cut(bond: &BondWorld, count: usize) -> Result<()> {
    wait_until("the origin's verdict", || bond.origin.verdicts().len() >= count)?;
    let verdicts = bond.origin.verdicts();
    let is_cut = |error: &String| error.contains("reset by peer") || error.contains("Broken pipe");
    let are_cut = verdicts.iter().all(|(_, verdict)| verdict.as_ref().is_err_and(is_cut));
    ensure!(are_cut, "at the origin: {verdicts:?}");
    Ok(())
}

#[test]
fn a_relay_that_is_killed_and_started_again_costs_its_streams_and_no_more() -> Result<()> {
    skip_without_lab!();
    let mut bond = BondWorld::joined()?;
    let idle = bond.socks("files.example", EXCHANGE_PORT)?;
    let mut busy = bond.socks("files.example", EXCHANGE_PORT)?;
    busy.write_all(&Exchange { ends: Ends::OriginFirst, up: 2, down: 20_000_000 }.header())?;
    wait_until("bytes", || bond.relay.metric("bytes_to_devices_total").is_ok_and(|bytes| bytes > 300_000))?;
    bond.relay.kill()?;
    origin_is_cut(&bond, 2)?;
    // Meanwhile programs have the plain network.
    wait_until("the plain network", || bond.who().is_ok_and(|who| !bond.relay.is(who)))?;
    bond.relay.run()?;
    bond.wait_until_bonded()?;
    for (what, mut stream) in [("busy", busy), ("idle", idle)] {
        ends_with_an_error(&mut stream).with_context(|| format!("{what}\n{}", bond.world.daemon_log()))?;
    }
    SHORT.perform(&bond.socks("files.example", EXCHANGE_PORT)?)
}

#[test]
fn a_relay_that_is_told_to_stop_lets_streams_finish_and_takes_no_more() -> Result<()> {
    skip_without_lab!();
    let mut bond = BondWorld::build("drain_seconds = 60\n")?;
    let invite = bond.relay.invite(&[])?;
    bond.join(&invite)?;
    bond.start_daemon()?;
    let stream = bond.socks("files.example", EXCHANGE_PORT)?;
    let process_id = bond.relay.process().child().id();
    std::thread::scope(|scope| -> Result<()> {
        let performed = scope.spawn(|| LONG.perform(&stream));
        wait_until("bytes", || {
            bond.relay.metric("bytes_to_devices_total").is_ok_and(|bytes| bytes > 200_000)
        })?;
        terminate(&bond, process_id)?;
        // New flows do without it at once, while it still carries this one.
        wait_until("the plain network", || bond.who().is_ok_and(|who| !bond.relay.is(who)))?;
        performed.join().expect("an exchange does not panic").context("the stream under way")
    })
    .with_context(|| format!("{}\n{}", bond.world.daemon_log(), bond.relay.log()))?;
    origin_is_content(&bond, 1)?;
    let ended = bond.relay.process().child().wait()?;
    ensure!(ended.success(), "{ended}: {}", bond.relay.log());

    // A stream that does not finish in the time given is cut, and seen to be.
    bond.relay.configure("drain_seconds = 1\n")?;
    bond.relay.run()?;
    bond.wait_until_bonded()?;
    // The session that ended with the relay was replaced once.
    pause(3000);
    let begun = bond.relay.metric("sessions_begun_total")?;
    ensure!(begun == 1, "{begun} sessions began: {}", bond.world.daemon_log());
    let mut idle = bond.socks("files.example", EXCHANGE_PORT)?;
    let ended = bond.relay.process().terminate()?;
    ensure!(ended.success(), "{ended}: {}", bond.relay.log());
    ends_with_an_error(&mut idle)
}

/// What a program got looks complete only when it is.
#[test]
fn a_daemon_that_is_stopped_or_killed_costs_its_streams_and_it_is_seen() -> Result<()> {
    skip_without_lab!();
    let mut bond = BondWorld::joined()?;
    for is_killed in [false, true] {
        let begun = || -> Result<[TcpStream; 2]> {
            let idle = bond.socks("files.example", EXCHANGE_PORT)?;
            let mut busy = bond.socks("files.example", EXCHANGE_PORT)?;
            let before = bond.relay.metric("bytes_to_devices_total")?;
            busy.write_all(&Exchange { ends: Ends::OriginFirst, up: 2, down: 20_000_000 }.header())?;
            wait_until("bytes", || {
                bond.relay.metric("bytes_to_devices_total").is_ok_and(|bytes| bytes > before + 300_000)
            })?;
            Ok([busy, idle])
        };
        let streams = begun()?;
        if is_killed {
            bond.world.kill_daemon()?;
        } else {
            bond.world.daemon().terminate()?;
            // The far ends learn it at once, and not when the session has lingered.
            origin_is_cut(&bond, 2)?;
        }
        for (what, mut stream) in ["busy", "idle"].into_iter().zip(streams) {
            ends_with_an_error(&mut stream)
                .with_context(|| format!("{what}, killed: {is_killed}\n{}", bond.world.daemon_log()))?;
        }
        bond.start_daemon()?;
    }
    SHORT.perform(&bond.socks("files.example", EXCHANGE_PORT)?)
}

/// SIGTERM, without waiting.
fn terminate(bond: &BondWorld, process_id: u32) -> Result<()> {
    let mut kill = bond.relay.host().command("kill");
    kill.args(["-TERM", &process_id.to_string()]);
    bond.relay.host().output(kill).map(drop)
}

/// The clock of a network namespace is the machine's, so that only programs' can be set: one program's, by
/// libfaketime. What measures time in it goes on as before.
struct Clock {
    file: PathBuf,
    environment: Vec<String>,
}

impl Clock {
    fn new(world: &World) -> Result<Self> {
        let environment = String::from_utf8(output(world.command("faketime").args(["-f", "+0", "env"]))?)?;
        let library = environment.lines().find(|line| line.starts_with("LD_PRELOAD="));
        let file = world.path("clock");
        let environment = vec![
            library.context("faketime names no library")?.to_owned(),
            format!("FAKETIME_TIMESTAMP_FILE={}", file.display()),
            "FAKETIME_NO_CACHE=1".to_owned(),
            "FAKETIME_DONT_FAKE_MONOTONIC=1".to_owned(),
            "DONT_FAKE_MONOTONIC=1".to_owned(),
        ];
        let clock = Self { file, environment };
        clock.set("+0").map(|()| clock)
    }

    /// Makes it differ from the machine's by so much.
    fn set(&self, difference: &str) -> Result<()> {
        Ok(fs::write(&self.file, format!("{difference}\n"))?)
    }

    /// The program that starts another one with this clock, and its arguments.
    fn wrapper(&self) -> Vec<&str> {
        ["env"].into_iter().chain(self.environment.iter().map(String::as_str)).collect()
    }
}

/// Streams go on although a clock jumps, and so do handovers after it: TLS counts the age of its tickets.
fn survive_jumps(streams: &mut Streams, clock: &Clock) -> Result<()> {
    for difference in ["+2h", "-40d", "+40d", "+0"] {
        let jump = |_: &BondWorld, path: &NetworkPath| {
            clock.set(difference)?;
            path.link().set_blackhole(true);
            Ok(())
        };
        let mend = |_: &BondWorld, path: &NetworkPath| {
            path.link().set_blackhole(false);
            Ok(())
        };
        streams.survive(&format!("a clock at {difference}"), jump, mend)?;
    }
    Ok(())
}

#[test]
fn a_relays_clock_that_jumps_matters_to_expiry_alone() -> Result<()> {
    skip_without_lab!();
    skip_without_programs!("faketime");
    let mut bond = BondWorld::build("")?;
    let clock = Clock::new(&bond.world)?;
    bond.relay.kill()?;
    bond.relay.run_under(&clock.wrapper())?;
    let invite = bond.relay.invite(&["--expires", "60d"])?;
    bond.join(&invite)?;
    bond.start_daemon()?;
    let mut streams = Streams::new(bond);
    survive_jumps(&mut streams, &clock)?;
    let mut stream = streams.bond.socks("files.example", EXCHANGE_PORT)?;
    wait_until("the stream", || streams.bond.relay.metric("streams").is_ok_and(|streams| streams == 1))?;
    clock.set("+61d")?;
    ends_with_an_error(&mut stream)?;
    streams.bond.wait_until_fallen_back("has expired")
}

/// Whether an invite is good is the relay's to say.
#[test]
fn a_devices_clock_that_jumps_does_not_matter() -> Result<()> {
    skip_without_lab!();
    skip_without_programs!("faketime");
    let mut bond = BondWorld::build("")?;
    let clock = Clock::new(&bond.world)?;
    let invite = bond.relay.invite(&["--expires", "1d"])?;
    bond.join(&invite)?;
    bond.world.start_daemon_under(&clock.wrapper(), "", &[])?;
    bond.wait_until_bonded()?;
    let mut streams = Streams::new(bond);
    survive_jumps(&mut streams, &clock)
}

#[test]
fn a_full_disk_under_the_relays_state_stops_nobody() -> Result<()> {
    skip_without_lab!();
    let mut bond = BondWorld::build("")?;
    bond.relay.kill()?;
    // Seen by the relay's host alone, and gone with it.
    let on_host = |bond: &BondWorld, script: &str| {
        let mut sh = bond.relay.host().command("sh");
        sh.args(["-ec", script]).current_dir(bond.relay.path(""));
        bond.relay.host().output(sh).map(drop)
    };
    on_host(&bond, "mount -t tmpfs -o size=64k tmpfs state")?;
    bond.relay.run()?;
    let invite = bond.relay.invite(&["--name", "ada"])?;
    bond.join(&invite)?;
    on_host(&bond, "cat /dev/zero > state/filler 2> /dev/null || true")?;
    bond.start_daemon()?;
    let mut streams = Streams::new(bond);
    streams.survive("full disk", mended, mended)?;
    let bond = &streams.bond;
    wait_until("a warning", || bond.relay.log().contains("usage is counted and not written"))?;
    // The operator is told, with the code of `docs/exit-codes.md`, and nobody is lost.
    let refused = run(&mut bond.relay.command(&["invite", "-q", "--name", "bob"]))?;
    ensure!(refused.status.code() == Some(7), "{refused:?}");
    let users = String::from_utf8(output(&mut bond.relay.command(&["users"]))?)?;
    ensure!(users.contains("ada") && !users.contains("bob"), "{users}");
    // With room again, what was counted meanwhile is written.
    on_host(bond, "rm state/filler")?;
    wait_until("the usage", || {
        output(&mut bond.relay.command(&["users"]))
            .is_ok_and(|users| String::from_utf8_lossy(&users).contains("MB"))
    })?;
    output(&mut bond.relay.command(&["invite", "-q", "--name", "bob"])).map(drop)
}
