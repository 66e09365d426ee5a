//! Who and what a relay refuses, and what a device refuses to believe.

use std::fs;
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, TcpStream};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context, Result, ensure};
use multiway_netlab::{DnsAnswer, Process, skip_without_lab};

use crate::bond_world::{
    BondWorld, EXCHANGE_PORT, Ends, Exchange, WHO_PORT, connect, origin_is_content, read_who, serve,
};
use crate::support::{content_of, multiway, output, run, skip_without_programs, wait_until};

/// A port that nothing else has.
const INSIDE_PORT: u16 = 7010;

/// The octets behind an invite's `#` (base64url, RFC 4648 section 5): a version, the pin, the token.
fn decode(invite: &str) -> Result<Vec<u8>> {
    let (_, data) = invite.split_once('#').context("no `#`")?;
    let (mut octets, mut bits, mut count) = (Vec::new(), 0_u32, 0);
    for character in data.bytes() {
        let position = ALPHABET.iter().position(|&known| known == character).context("no base64url")?;
        bits = bits << 6 | u32::try_from(position)?;
        count += 6;
        if count >= 8 {
            count -= 8;
            octets.push(u8::try_from(bits >> count & 0xff)?);
        }
    }
    Ok(octets)
}

/// An invite with the address of `like`.
fn encode(like: &str, octets: &[u8]) -> Result<String> {
    let (address, _) = like.split_once('#').context("no `#`")?;
    let mut data = String::new();
    for triple in octets.chunks(3) {
        let bits = (0..3).fold(0_usize, |bits, at| bits << 8 | usize::from(*triple.get(at).unwrap_or(&0)));
        data.extend((0..=triple.len()).map(|at| char::from(ALPHABET[bits >> (18 - 6 * at) & 0x3f])));
    }
    Ok(format!("{address}#{data}"))
}

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

/// Octets of the version and the pin.
const PIN_END: usize = 1 + 32;

/// Where in the token the monthly limit stands: behind its version, number and expiry.
const LIMIT_AT: usize = PIN_END + 1 + 8 + 8;

#[test]
fn a_wrong_key_and_tokens_that_are_forged_expired_or_revoked_are_refused() -> Result<()> {
    skip_without_lab!();
    skip_without_programs!("faketime");
    let mut bond = BondWorld::build("")?;
    let good = bond.relay.invite(&["--name", "ada", "--limit", "50GB/month"])?;
    let octets = decode(&good)?;
    ensure!(encode(&good, &octets)? == good, "the test's own base64url is wrong");
    // Another relay's invite that names this one's address.
    let mut foreign = bond.world.multiway(&["relay", "--state", "other", "invite", "-q", "--address"]);
    foreign.arg(bond.relay.address().to_string());
    let foreign = String::from_utf8(output(&mut foreign)?)?.trim().to_owned();
    let foreign_octets = decode(&foreign)?;

    // The device does not speak to what only has the address: no token leaves it.
    bond.join(&foreign)?;
    bond.world.start_daemon("", &[])?;
    bond.wait_until_fallen_back("certificate")?;
    ensure!(bond.relay.metric("hellos_refused_total")? == 0, "a token went to a relay with another key");

    let mut refused = 0;
    let mut is_refused = |bond: &BondWorld, invite: &str, because: &str| -> Result<()> {
        bond.join(invite)?;
        refused += 1;
        let count = || bond.relay.metric("hellos_refused_total");
        wait_until("a refusal", || count().is_ok_and(|count| count >= refused))?;
        bond.wait_until_fallen_back(because).with_context(|| invite.to_owned())?;
        ensure!(bond.relay.metric("sessions_begun_total")? == 0, "{invite} began a session");
        Ok(())
    };
    // Signed by another key, and with more than was signed.
    let other_key = [&octets[..PIN_END], &foreign_octets[PIN_END..]].concat();
    is_refused(&bond, &encode(&good, &other_key)?, "not of this relay")?;
    let mut unlimited = octets.clone();
    unlimited[LIMIT_AT..LIMIT_AT + 8].fill(0);
    is_refused(&bond, &encode(&good, &unlimited)?, "not of this relay")?;

    // `join` sees an expiry itself, by its own clock; a relay does not ask the device's.
    let mut long_ago = bond.world.plain("faketime");
    long_ago.args(["-f", "-2d"]).arg(multiway()).args(["relay", "-c", "relay.toml", "--state", "state"]);
    long_ago.args(["invite", "-q", "--expires", "1d"]).current_dir(bond.relay.path(""));
    let expired = String::from_utf8(output(&mut long_ago)?)?.trim().to_owned();
    let join = run(&mut bond.world.multiway(&["join", &expired]))?;
    ensure!(join.status.code() == Some(2), "{join:?}");
    ensure!(String::from_utf8_lossy(&join.stderr).contains("expired"), "{join:?}");
    let mut join = bond.world.plain("faketime");
    output(join.args(["-f", "-2d"]).arg(multiway()).args(["join", &expired]))?;
    bond.wait_until_fallen_back("has expired")?;
    ensure!(bond.relay.metric("sessions_begun_total")? == 0, "an expired token began a session");

    // One that is good, until it is revoked: then its streams are cut.
    bond.join(&good)?;
    bond.wait_until_bonded()?;
    let mut stream = bond.socks("files.example", EXCHANGE_PORT)?;
    stream.write_all(&Exchange { ends: Ends::DeviceFirst, up: 10, down: 10 }.header())?;
    wait_until("the stream", || bond.relay.metric("streams").is_ok_and(|streams| streams == 1))?;
    output(&mut bond.relay.command(&["revoke", "ada"]))?;
    let mut rest = Vec::new();
    let ended = stream.read_to_end(&mut rest);
    ensure!(ended.is_err(), "the stream of a revoked user ended as if in good order: {ended:?}");
    bond.wait_until_fallen_back("was revoked")?;
    // The other end must not take that for the end of all bytes either.
    wait_until("the origin's verdict", || bond.origin.verdicts().len() == 1)?;
    let verdicts = bond.origin.verdicts();
    let (_, verdict) = &verdicts[0];
    ensure!(verdict.as_ref().is_err_and(|error| error.contains("reset by peer")), "{verdict:?}");
    // For a new session too.
    bond.world.daemon().terminate()?;
    bond.world.start_daemon("", &[])?;
    bond.wait_until_fallen_back("was revoked")
}

#[test]
fn what_is_private_is_refused_unless_the_operator_allows_it() -> Result<()> {
    skip_without_lab!();
    let mut bond = BondWorld::joined()?;
    let visits = Arc::new(AtomicUsize::new(0));
    let relay = bond.world.network.server("relay");
    let origin = bond.world.network.server("origin");
    // On the relay itself, by every address that leads there, and in a private network beside it.
    let inside: [(&str, IpAddr); 5] = [
        ("loopback.example", Ipv4Addr::LOCALHOST.into()),
        ("loopback6.example", Ipv6Addr::LOCALHOST.into()),
        ("own.example", relay.public_address().into()),
        ("private.example", origin.address().into()),
        ("private6.example", origin.address_v6().into()),
    ];
    for (name, address) in inside {
        let host = if name.starts_with("private") { origin.host() } else { bond.relay.host() };
        let visits = Arc::clone(&visits);
        serve(host, (address, INSIDE_PORT).into(), move |mut stream, _| {
            visits.fetch_add(1, Ordering::Relaxed);
            stream.write_all(b"inside")
        })?;
        bond.relay.dns.set(name, DnsAnswer::Addresses(vec![address]));
    }
    let refused = bond.relay.metric("streams_refused_total")?;
    for (name, _) in inside {
        // The device then asks its own networks, which do not know the name: "host unreachable".
        let reply = bond.try_socks(name, INSIDE_PORT)?.err();
        ensure!(reply == Some(4), "{name}: {reply:?}");
    }
    let refused = bond.relay.metric("streams_refused_total")? - refused;
    ensure!(refused == 5, "{refused} of 5 were refused by the relay");
    ensure!(visits.load(Ordering::Relaxed) == 0, "the relay went where it must not");

    // Private addresses do not even leave the device, and are reached without the relay.
    let begun = bond.relay.metric("streams_begun_total")?;
    let who = read_who(bond.socks(&origin.address().to_string(), WHO_PORT)?)?;
    ensure!(!bond.relay.is(who), "{who}");
    ensure!(bond.relay.metric("streams_begun_total")? == begun, "a private address went to the relay");

    // What the operator allows is reached.
    let allow = "[destinations]\nallow = [\"127.0.0.0/8\", \"::1\", \"93.184.216.2\", \"10.99.0.0/24\", \"fd99::/16\"]";
    bond.relay.kill()?;
    bond.relay.configure(allow)?;
    bond.relay.run()?;
    bond.wait_until_bonded()?;
    for (name, _) in inside {
        let mut text = String::new();
        bond.socks(name, INSIDE_PORT)?.read_to_string(&mut text).with_context(|| name.to_owned())?;
        ensure!(text == "inside", "{name}: {text}");
    }
    Ok(())
}

#[test]
fn slow_handshakes_are_cut_and_garbage_harms_nobody() -> Result<()> {
    skip_without_lab!();
    skip_without_programs!("openssl");
    let mut bond = BondWorld::build("[limits]\nhandshake_seconds = 1\n")?;
    let (device, address) = (bond.world.network.device(), bond.relay.address());
    let failed = || bond.relay.metric("handshakes_failed_total");
    let before = failed()?;

    // The beginning of a ClientHello: a record of 512 bytes of which five come.
    for beginning in [&b""[..], b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03"] {
        let mut stream = connect(device, address)?;
        stream.write_all(beginning)?;
        is_cut(&mut stream).with_context(|| format!("after {beginning:?}"))?;
    }
    // TLS is complete, and no HELLO comes.
    let tls = |sends: &[u8]| -> Result<()> {
        fs::write(bond.world.path("sends"), sends)?;
        let mut client = bond.world.command("openssl");
        client.args(["s_client", "-quiet", "-no_ign_eof", "-alpn", "multiway/1", "-connect"]);
        client.arg(address.to_string()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut client = client.stdin(Stdio::piped()).spawn()?;
        let mut stdin = client.stdin.take().context("it is piped")?;
        // It may be refused before all is written. The pipe stays open: the relay is to end it.
        let _ = stdin.write_all(sends);
        let ended = client.wait()?;
        // `timeout` says so with 124.
        ensure!(ended.code() != Some(124), "the relay did not end it");
        Ok(())
    };
    tls(b"").context("no HELLO")?;
    wait_until("three handshakes that failed", || failed().is_ok_and(|now| now >= before + 3))?;

    // Garbage in place of TLS, and of other protocols.
    let before = failed()?;
    let random = content_of(3, "garbage", 100_000);
    for garbage in [
        &random[..],
        b"GET / HTTP/1.1\r\nHost: relay.example\r\n\r\n",
        b"SSH-2.0-OpenSSH_9.2\r\n",
        &[0x16; 70_000],
    ] {
        let mut stream = connect(device, address)?;
        // It may be reset before all is written.
        let _ = stream.write_all(garbage);
        let _ = stream.shutdown(Shutdown::Write);
        is_cut(&mut stream)?;
    }
    wait_until("four more", || failed().is_ok_and(|now| now >= before + 4))?;

    // Garbage in place of a HELLO: an unknown type, a length beyond the bound, a frame out of place.
    let refused = bond.relay.metric("hellos_refused_total")?;
    for garbage in [&b"\x3f\x01x"[..], b"\x01\xbf\xff\xff\xff", b"\x04\x08\0\0\0\0\0\0\0\0", &[0x55; 3][..]] {
        tls(garbage).with_context(|| format!("{garbage:?}"))?;
    }
    let refused = bond.relay.metric("hellos_refused_total")? - refused;
    ensure!(refused >= 3, "{refused} HELLOs were refused");

    // The relay is none the worse for it.
    ensure!(bond.relay.process().child().try_wait()?.is_none(), "the relay ended: {}", bond.relay.log());
    ensure!(!bond.relay.log().contains("panicked"), "{}", bond.relay.log());
    let invite = bond.relay.invite(&[])?;
    bond.join(&invite)?;
    bond.start_daemon()?;
    let exchange = Exchange { ends: Ends::DeviceFirst, up: 100_000, down: 100_000 };
    exchange.perform(&bond.socks("files.example", EXCHANGE_PORT)?)?;
    origin_is_content(&bond, 1)
}

/// Fails unless the far end ends the connection, in whatever way.
fn is_cut(stream: &mut TcpStream) -> Result<()> {
    let mut rest = Vec::new();
    match stream.read_to_end(&mut rest) {
        Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
            Err(error).context("the relay keeps the connection")
        }
        _ => Ok(()),
    }
}

/// Another device's daemon, with its proxy's address.
pub(crate) struct Second {
    process: Process,
    proxy: SocketAddr,
}

impl Second {
    /// Starts one that joins by this invite.
    pub(crate) fn start(bond: &BondWorld, number: u16, invite: &str) -> Result<Self> {
        let world = &bond.world;
        let home = world.path(&format!("device{number}"));
        fs::create_dir(&home)?;
        let proxy = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 7070 + number);
        fs::write(home.join("multiway.toml"), format!("listen = \"{proxy}\"\nintercept.enabled = false\n"))?;
        let own = |mut command: std::process::Command| {
            command.env("XDG_STATE_HOME", home.join("state")).env("MULTIWAY_CONTROL", home.join("socket"));
            command.current_dir(&home);
            command
        };
        output(&mut own(world.multiway(&["join", invite])))?;
        let mut up = own(world.plain(multiway()));
        up.args(["up", "-c", "multiway.toml"]).env("MULTIWAY_LOG", "debug");
        up.stdin(Stdio::null()).stdout(Stdio::null()).stderr(fs::File::create(home.join("log"))?);
        let process = world.network.device().start(up)?;
        Ok(Self { process, proxy })
    }

    /// Its proxy.
    pub(crate) fn proxy(&self) -> SocketAddr {
        self.proxy
    }

    /// Whether its flows go through the relay.
    pub(crate) fn is_bonded(&self, bond: &BondWorld) -> Result<bool> {
        let stream = bond.socks_by(self.proxy, "files.example", WHO_PORT)?;
        let who = read_who(stream.ok().context("the proxy refuses")?)?;
        Ok(bond.relay.is(who))
    }
}

#[test]
fn limits_on_sessions_hold_and_the_rest_goes_on() -> Result<()> {
    skip_without_lab!();
    let mut bond = BondWorld::build("[limits]\nsessions = 2\nsessions_per_user = 1\n")?;
    let ada = bond.relay.invite(&["--name", "ada"])?;
    let bob = bond.relay.invite(&["--name", "bob"])?;
    let eve = bond.relay.invite(&["--name", "eve"])?;
    bond.join(&ada)?;
    bond.start_daemon()?;
    let refused = || bond.relay.metric("hellos_refused_total");
    let is_refused = |number: u16, invite: &str| -> Result<()> {
        let before = refused()?;
        let mut device = Second::start(&bond, number, invite)?;
        wait_until("a refusal", || refused().is_ok_and(|now| now > before))?;
        ensure!(!device.is_bonded(&bond)?, "a session too many");
        device.process.terminate().map(drop)
    };
    is_refused(2, &ada)?;
    let other = Second::start(&bond, 3, &bob)?;
    wait_until("the other user's session", || other.is_bonded(&bond).unwrap_or(false))?;
    is_refused(4, &eve)?;
    ensure!(bond.relay.metric("sessions")? == 2, "there are not two sessions");
    ensure!(bond.relay.is(bond.who()?) && other.is_bonded(&bond)?, "those who were there suffer");
    Ok(())
}

#[test]
fn limits_on_streams_subflows_and_handshakes_hold() -> Result<()> {
    skip_without_lab!();
    let limits = "[limits]\nstreams_per_session = 2\nsubflows_per_session = 1\nhandshakes_per_second_per_address = 3\n";
    let mut bond = BondWorld::build(limits)?;
    let invite = bond.relay.invite(&[])?;
    bond.join(&invite)?;
    bond.start_daemon()?;

    // Two streams wait; the third flow goes without the relay, and they are none the worse for it.
    let exchange = Exchange { ends: Ends::DeviceFirst, up: 300_000, down: 300_000 };
    let streams = [(); 2].map(|()| bond.socks("files.example", EXCHANGE_PORT));
    wait_until("two streams", || bond.relay.metric("streams").is_ok_and(|streams| streams == 2))?;
    let who = bond.who()?;
    ensure!(!bond.relay.is(who), "a third stream was opened");
    ensure!(bond.relay.metric("violations_total")? == 0, "{}", bond.relay.log());
    for stream in streams {
        exchange.perform(&stream?)?;
    }
    origin_is_content(&bond, 2)?;
    wait_until("a stream's place", || bond.who().is_ok_and(|who| bond.relay.is(who)))?;

    // A second subflow, which the device wants while Wi-Fi is silent.
    let stream = bond.socks("files.example", EXCHANGE_PORT)?;
    let refused = bond.relay.metric("hellos_refused_total")?;
    let wifi = bond.world.network.path("wlan0").link();
    std::thread::scope(|scope| -> Result<()> {
        let performed = scope.spawn(|| exchange.perform(&stream));
        wifi.set_blackhole(true);
        wait_until("a subflow that is refused", || {
            bond.relay.metric("hellos_refused_total").is_ok_and(|now| now > refused)
        })?;
        ensure!(bond.relay.metric("subflows")? == 1, "there is a second subflow");
        wifi.set_blackhole(false);
        performed.join().expect("an exchange does not panic")
    })?;
    origin_is_content(&bond, 3)?;

    // More connections a second than are allowed, from an address that is not the device's.
    let before = bond.relay.metric("handshakes_refused_total")?;
    wait_until("connections that are refused", || {
        drop(connect(bond.world.network.internet(), bond.relay.address()));
        bond.relay.metric("handshakes_refused_total").is_ok_and(|now| now > before + 3)
    })?;
    exchange.perform(&bond.socks("files.example", EXCHANGE_PORT)?)?;
    origin_is_content(&bond, 4)
}

#[test]
fn who_used_up_the_month_is_cut_and_goes_without_the_relay() -> Result<()> {
    skip_without_lab!();
    let mut bond = BondWorld::build("")?;
    let invite = bond.relay.invite(&["--name", "ada", "--limit", "1MB/month"])?;
    bond.join(&invite)?;
    bond.start_daemon()?;
    let mut stream = bond.socks("files.example", EXCHANGE_PORT)?;
    stream.write_all(&Exchange { ends: Ends::OriginFirst, up: 2, down: 5_000_000 }.header())?;
    let mut received = Vec::new();
    let ended = stream.read_to_end(&mut received);
    // It must not look as if that were all.
    ensure!(ended.is_err(), "{} bytes and an end in good order", received.len());
    ensure!(received == content_of(1, "down", 5_000_000)[..received.len()], "wrong bytes before the cut");
    ensure!(received.len() < 5_000_000, "nothing was cut");
    let is_plain = |bond: &BondWorld| bond.who().is_ok_and(|who| !bond.relay.is(who));
    ensure!(is_plain(&bond), "a flow goes through the relay beyond the allowance");
    // Neither a restart of the relay nor one of the device makes it forget.
    ensure!(bond.relay.process().terminate()?.success(), "{}", bond.relay.log());
    bond.relay.run()?;
    let usage: serde_json::Value = serde_json::from_slice(&fs::read(bond.relay.path("state/usage.json"))?)?;
    let bytes: u64 = usage["bytes"]
        .as_object()
        .into_iter()
        .flat_map(|users| users.values())
        .filter_map(|bytes| bytes.as_u64())
        .sum();
    ensure!(bytes > 1_000_000, "{usage}");
    wait_until("a new session", || bond.relay.metric("sessions").is_ok_and(|sessions| sessions == 1))
        .with_context(|| bond.world.daemon_log())?;
    let refused = bond.relay.metric("streams_refused_total")?;
    wait_until("a stream that is refused", || {
        is_plain(&bond) && bond.relay.metric("streams_refused_total").is_ok_and(|now| now > refused)
    })
    .with_context(|| format!("{}\n{}", bond.world.daemon_log(), bond.relay.log()))
}
