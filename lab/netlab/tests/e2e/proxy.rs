//! The proxies' forms, and HTTP's: what passes, passes byte for byte.

use std::net::{Shutdown, SocketAddr};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use multiway_core::paths::PathKind;
use multiway_linksim::{LinkSpec, Scenario, ServerSpec, mbit};
use multiway_netlab::{Direction, skip_without_lab};

use crate::support::{FAST, World, output, run, same, skip_without_programs, tls, wait_until, wifi_and_lte};
use crate::wire::{ORIGIN_PORT, Wire, WireOrigin, header, origin_body, status};

const FILE: &str = "4MB.bin";
const SMALL: &str = "small.txt";

fn scenario() -> Scenario {
    wifi_and_lte(ServerSpec::new("origin").file(FILE, 4_000_000).file(SMALL, 20_000))
}

/// A world in which everything is intercepted, and which has the wire origin beside nginx.
fn wired() -> Result<(World, WireOrigin)> {
    let mut world = World::build(&scenario())?;
    // The daemon's own connections are marked, so that even its own user may be intercepted.
    world.start_daemon(FAST, &["--intercept-user", "0"])?;
    let server = world.network.server("origin");
    let origin = WireOrigin::start(server.host(), server.address().into())?;
    Ok((world, origin))
}

/// How a raw client comes to the origin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Via {
    Interception,
    HttpProxy,
}

const BOTH: [Via; 2] = [Via::Interception, Via::HttpProxy];

/// A raw client of the origin at `port`.
struct Client<'a> {
    via: Via,
    world: &'a World,
    port: u16,
    wire: Wire,
}

impl<'a> Client<'a> {
    fn new(world: &'a World, via: Via, port: u16) -> Result<Self> {
        let address = match via {
            Via::Interception => SocketAddr::new(world.network.server("origin").address().into(), port),
            Via::HttpProxy => world.proxy()?.parse()?,
        };
        Ok(Self { via, world, port, wire: Wire::connect(world.network.device(), address)? })
    }

    /// A request with `fields`, each ended by CRLF.
    fn request(&self, method: &str, path: &str, fields: &str) -> Vec<u8> {
        let host = format!("{}:{}", self.world.network.server("origin").address(), self.port);
        let origin = if self.via == Via::HttpProxy { format!("http://{host}") } else { String::new() };
        format!("{method} {origin}{path} HTTP/1.1\r\nHost: {host}\r\n{fields}\r\n").into_bytes()
    }

    fn send(&mut self, method: &str, path: &str, fields: &str, body: &[u8]) -> Result<()> {
        let request = [&self.request(method, path, fields)[..], body].concat();
        Ok(self.wire.send(&request)?)
    }
}

#[test]
fn every_form_of_proxy_brings_the_file_over_both_paths() -> Result<()> {
    skip_without_lab!();
    skip_without_programs!("curl", "wget");
    let world = World::with_daemon(&scenario())?;
    let (proxy, file) = (world.proxy()?, world.content(FILE));
    let url = "http://files.example/4MB.bin";
    let mut before = 0;
    let mut brought = |what: &str, found: &[u8]| -> Result<()> {
        same(found, &file).with_context(|| what.to_owned())?;
        before += 500_000;
        world.each_path_carried(before).with_context(|| what.to_owned())
    };
    let http = format!("http://{proxy}");
    brought("HTTP proxy", &output(world.command("curl").args(["-sSf", "-x", &http, url]))?)?;
    brought(
        "SOCKS5 by name",
        &output(world.command("curl").args(["-sSf", "--socks5-hostname", &proxy, url]))?,
    )?;
    let by_address = world.network.server("origin").url(FILE);
    brought(
        "SOCKS5 by address",
        &output(world.command("curl").args(["-sSf", "--socks5", &proxy, &by_address]))?,
    )?;
    brought("http_proxy", &output(world.command("wget").args(["-qO-", url]).env("http_proxy", &http))?)?;
    Ok(())
}

#[test]
fn https_is_tunnelled_by_proxy_socks_and_interception() -> Result<()> {
    skip_without_lab!();
    skip_without_programs!("curl");
    let mut world = World::build_with(&scenario(), tls)?;
    world.start_daemon(FAST, &[])?;
    let (proxy, file) = (world.proxy()?, world.content(FILE));
    let arguments = ["-sSf", "--cacert", "certificate.pem", "https://files.example/4MB.bin"];
    for more in [["-x", &format!("http://{proxy}")], ["--socks5-hostname", &proxy]] {
        same(&output(world.command("curl").args(more).args(arguments))?, &file)?;
    }
    same(&output(world.intercepted("curl").args(arguments))?, &file)?;
    let nginx = world.network.server("origin").nginx().context("it has files")?;
    // Nothing inside is seen, so nothing is split: one request each.
    wait_until("nginx's log", || nginx.requests().is_ok_and(|requests| requests.len() == 3))
}

/// Runs curl with `-i` to the origin itself and through the daemon; the answers must be the same but
/// for their dates.
fn as_direct(world: &World, arguments: &[&str]) -> Result<Vec<u8>> {
    let proxy = format!("http://{}", world.proxy()?);
    let url = world.network.server("origin").url("");
    let arguments: Vec<String> = arguments.iter().map(|argument| argument.replace("ORIGIN/", &url)).collect();
    let direct = output(world.command("curl").args(["-sSi"]).args(&arguments))?;
    for through in [
        output(world.command("curl").args(["-sSi", "-x", &proxy]).args(&arguments))?,
        output(world.intercepted("curl").arg("-sSi").args(&arguments))?,
    ] {
        same(&comparable(&through)?, &comparable(&direct)?).with_context(|| {
            let head = |answer: &[u8]| String::from_utf8_lossy(&answer[..answer.len().min(600)]).into_owned();
            format!("{arguments:?}: {} instead of {}", head(&through), head(&direct))
        })?;
    }
    Ok(direct)
}

/// An answer with its fields in order and without those that may differ: the date, and what is said of
/// this connection alone.
fn comparable(answer: &[u8]) -> Result<Vec<u8>> {
    let end = answer.windows(4).position(|four| four == b"\r\n\r\n").context("no head")? + 4;
    let head = String::from_utf8_lossy(&answer[..end]);
    let mut lines: Vec<&str> =
        head.lines().filter(|line| !line.starts_with("Date:") && !line.starts_with("Connection:")).collect();
    lines[1..].sort_unstable();
    Ok([lines.join("\n").as_bytes(), &answer[end..]].concat())
}

#[test]
fn answers_are_those_of_the_server_itself() -> Result<()> {
    skip_without_lab!();
    skip_without_programs!("curl");
    let fast = |milliseconds| LinkSpec::symmetric(mbit(100), Duration::from_millis(milliseconds));
    let scenario = Scenario::new("fast networks")
        .path("wlan0", PathKind::Wifi, fast(10))
        .path("wwan0", PathKind::Cellular, fast(20))
        .server(ServerSpec::new("origin").file(FILE, 4_000_000).file(SMALL, 20_000));
    let world = World::with_daemon(&scenario)?;
    let file = world.content(FILE);
    let large = as_direct(&world, &["ORIGIN/4MB.bin"])?;
    same(&large[large.len() - file.len()..], &file)?;
    let etag = header(&String::from_utf8_lossy(&large[..600]), "etag").context("an entity tag")?.to_owned();
    let (if_none_match, if_range) = (format!("If-None-Match: {etag}"), format!("If-Range: {etag}"));
    for arguments in [
        &["ORIGIN/small.txt"][..],
        &["ORIGIN/missing"],
        &["-I", "ORIGIN/4MB.bin"],
        &["-r", "1000000-3999999", "ORIGIN/4MB.bin"],
        &["-r", "1000000-", "ORIGIN/4MB.bin"],
        &["-r", "0-0", "ORIGIN/4MB.bin"],
        &["-r", "-2000000", "ORIGIN/4MB.bin"],
        &["-r", "-9000000", "ORIGIN/4MB.bin"],
        &["-r", "4000000-", "ORIGIN/4MB.bin"],
        &["-H", &if_none_match, "ORIGIN/4MB.bin"],
        &["-r", "1000000-", "-H", &if_range, "ORIGIN/4MB.bin"],
        &["-r", "1000000-", "-H", "If-Range: \"other\"", "ORIGIN/4MB.bin"],
        &["-H", "If-Match: \"other\"", "ORIGIN/4MB.bin"],
        &["-X", "OPTIONS", "ORIGIN/4MB.bin"],
        &["-X", "DELETE", "ORIGIN/small.txt"],
        &["-d", "a=b", "ORIGIN/small.txt"],
        &["--http1.0", "ORIGIN/4MB.bin"],
        &["-H", "Connection: close", "ORIGIN/4MB.bin"],
    ] {
        as_direct(&world, arguments)?;
    }
    Ok(())
}

#[test]
fn several_ranges_come_as_the_server_divides_them() -> Result<()> {
    skip_without_lab!();
    skip_without_programs!("curl");
    let world = World::with_daemon(&scenario())?;
    let url = world.network.server("origin").url(FILE);
    let found = output(world.intercepted("curl").args(["-sSi", "-r", "0-99,2000000-2099999", &url]))?;
    let at = |needle: &[u8]| found.windows(needle.len()).position(|window| window == needle);
    ensure!(at(b"multipart/byteranges").is_some() && at(b"Content-Range: bytes 0-99/4000000").is_some());
    let file = world.content(FILE);
    ensure!(at(&file[..100]).is_some() && at(&file[2_000_000..2_100_000]).is_some(), "parts are missing");
    Ok(())
}

#[test]
fn pipelined_requests_are_answered_in_order() -> Result<()> {
    skip_without_lab!();
    let (world, _origin) = wired()?;
    let (small, large) = (world.content(SMALL), world.content(FILE));
    for via in BOTH {
        let mut client = Client::new(&world, via, 80)?;
        let paths = ["/small.txt", "/4MB.bin", "/missing", "/small.txt", "/4MB.bin"];
        let requests: Vec<u8> = paths.iter().flat_map(|path| client.request("GET", path, "")).collect();
        client.wire.send(&requests)?;
        for (path, expected) in
            paths.iter().zip([Some(&small), Some(&large), None, Some(&small), Some(&large)])
        {
            let (head, body) = client.wire.read_answer()?;
            let context = || format!("{via:?} {path}: {head}");
            ensure!(status(&head)? == if expected.is_some() { 200 } else { 404 }, context());
            if let Some(expected) = expected {
                same(&body, expected).with_context(context)?;
            }
        }
    }
    Ok(())
}

#[test]
fn a_head_request_brings_no_body_and_the_connection_goes_on() -> Result<()> {
    skip_without_lab!();
    let (world, _origin) = wired()?;
    for via in BOTH {
        let mut client = Client::new(&world, via, 80)?;
        client.send("HEAD", "/4MB.bin", "", b"")?;
        let head = client.wire.read_head()?;
        ensure!(header(&head, "content-length") == Some("4000000"), "{via:?}: {head}");
        client.send("GET", "/small.txt", "Connection: close\r\n", b"")?;
        let (_, body) = client.wire.read_answer()?;
        same(&body, &world.content(SMALL))?;
        client.wire.expect_end()?;
    }
    Ok(())
}

#[test]
fn bodies_go_up_as_they_are() -> Result<()> {
    skip_without_lab!();
    let (world, origin) = wired()?;
    let body = origin_body();
    for via in BOTH {
        let mut client = Client::new(&world, via, ORIGIN_PORT)?;
        let length = format!("Content-Length: {}\r\n", body.len());
        client.send("POST", "/echo", &length, &body)?;
        same(&client.wire.read_answer()?.1, &body).with_context(|| format!("{via:?}, with a length"))?;

        client.send("POST", "/echo", &format!("{length}Expect: 100-continue\r\n"), b"")?;
        let interim = client.wire.read_head()?;
        ensure!(status(&interim)? == 100, "{via:?}: {interim}");
        client.wire.send(&body)?;
        same(&client.wire.read_answer()?.1, &body).with_context(|| format!("{via:?}, after 100 Continue"))?;

        let chunks: Vec<u8> = body
            .chunks(99_999)
            .flat_map(|chunk| [format!("{:x}\r\n", chunk.len()).as_bytes(), chunk, b"\r\n"].concat())
            .chain(*b"0\r\n\r\n")
            .collect();
        client.send("POST", "/echo", "Transfer-Encoding: chunked\r\n", &chunks)?;
        same(&client.wire.read_answer()?.1, &body).with_context(|| format!("{via:?}, in chunks"))?;
    }
    ensure!(origin.seen().len() == 6, "{:?}", origin.seen());
    Ok(())
}

#[test]
fn an_answer_that_comes_before_the_body_ended_is_not_lost() -> Result<()> {
    skip_without_lab!();
    let (world, _origin) = wired()?;
    for via in BOTH {
        let mut client = Client::new(&world, via, ORIGIN_PORT)?;
        client.send("POST", "/refuse", "Content-Length: 3000000\r\n", &vec![7; 100_000])?;
        // The rest of the body keeps coming, as from a client that looks at answers only afterwards.
        for _ in 0..20 {
            std::thread::sleep(Duration::from_millis(20));
            if client.wire.send(&[7; 10_000]).is_err() {
                break;
            }
        }
        let (head, body) = client.wire.read_answer().with_context(|| format!("{via:?}"))?;
        ensure!(status(&head)? == 413 && body == b"big\n", "{via:?}: {head}");
    }
    Ok(())
}

#[test]
fn chunked_and_unbounded_answers_pass_as_they_are() -> Result<()> {
    skip_without_lab!();
    let (world, _origin) = wired()?;
    let body = origin_body();
    for via in BOTH {
        let mut client = Client::new(&world, via, ORIGIN_PORT)?;
        client.send("GET", "/chunked", "", b"")?;
        let (head, found) = client.wire.read_answer()?;
        ensure!(header(&head, "trailer") == Some("X-End"), "{via:?}: {head}");
        same(&found, &body)?;
        client.send("GET", "/until-close", "", b"")?;
        client.wire.read_head()?;
        same(&client.wire.read_to_end()?, &body).with_context(|| format!("{via:?}"))?;
    }
    Ok(())
}

#[test]
fn after_an_upgrade_both_sides_speak_freely() -> Result<()> {
    skip_without_lab!();
    let (world, _origin) = wired()?;
    for via in BOTH {
        let mut client = Client::new(&world, via, ORIGIN_PORT)?;
        client.send("GET", "/upgrade", "Connection: Upgrade\r\nUpgrade: echo\r\n", b"early ")?;
        let head = client.wire.read_head()?;
        ensure!(status(&head)? == 101 && header(&head, "upgrade") == Some("echo"), "{via:?}: {head}");
        ensure!(client.wire.read_exact(11)? == b"helloearly ");
        client.wire.send(b"\x00\xff not HTTP")?;
        ensure!(client.wire.read_exact(11)? == b"\x00\xff not HTTP");
        client.wire.stream.shutdown(Shutdown::Write)?;
        client.wire.expect_end()?;
    }
    Ok(())
}

#[test]
fn a_program_that_speaks_to_another_proxy_is_tunnelled_by_it() -> Result<()> {
    skip_without_lab!();
    let (world, _origin) = wired()?;
    let mut client = Client::new(&world, Via::Interception, ORIGIN_PORT)?;
    client.wire.send(b"CONNECT far.example:443 HTTP/1.1\r\nHost: far.example:443\r\n\r\n")?;
    let head = client.wire.read_head()?;
    ensure!(status(&head)? == 200, "{head}");
    // The far end may be the first to speak.
    ensure!(client.wire.read_exact(5)? == b"hello");
    client.wire.send(b"\x16\x03\x01 GET / HTTP/1.1\r\n\r\n")?;
    ensure!(client.wire.read_exact(22)? == b"\x16\x03\x01 GET / HTTP/1.1\r\n\r\n");
    client.wire.stream.shutdown(Shutdown::Write)?;
    client.wire.expect_end()
}

#[test]
fn a_request_to_another_proxy_keeps_its_form() -> Result<()> {
    skip_without_lab!();
    let (world, origin) = wired()?;
    let mut client = Client::new(&world, Via::Interception, ORIGIN_PORT)?;
    let request = "GET http://far.example/image.iso HTTP/1.1\r\nHost: far.example\r\n\r\n";
    client.wire.send(request.as_bytes())?;
    ensure!(status(&client.wire.read_head()?)? == 404);
    ensure!(origin.seen() == [request], "{:?}", origin.seen());
    Ok(())
}

#[test]
fn a_client_that_has_said_all_still_hears_all() -> Result<()> {
    skip_without_lab!();
    let (world, _origin) = wired()?;
    for via in BOTH {
        let mut client = Client::new(&world, via, 80)?;
        client.send("GET", "/4MB.bin", "", b"")?;
        client.wire.stream.shutdown(Shutdown::Write)?;
        let (_, body) = client.wire.read_answer().with_context(|| format!("{via:?}"))?;
        same(&body, &world.content(FILE))?;
        client.wire.expect_end()?;
    }
    Ok(())
}

#[test]
fn a_connection_that_the_server_closed_meanwhile_does_not_harm_the_next_request() -> Result<()> {
    skip_without_lab!();
    let (world, origin) = wired()?;
    for via in BOTH {
        let mut client = Client::new(&world, via, ORIGIN_PORT)?;
        for _ in 0..2 {
            client.send("GET", "/once", "", b"")?;
            ensure!(client.wire.read_answer()?.1 == b"once\n");
            // Time for the server's end of stream to arrive.
            std::thread::sleep(Duration::from_millis(200));
        }
        // Not to be sent twice, so it must not go to a connection that is closed already.
        client.send("POST", "/echo", "Content-Length: 4\r\n", b"data")?;
        let (_, body) = client.wire.read_answer().with_context(|| format!("{via:?}"))?;
        ensure!(body == b"data");
    }
    ensure!(origin.seen().len() == 6, "{:?}", origin.seen());
    Ok(())
}

#[test]
fn a_proxy_says_in_its_own_name_what_it_cannot_do() -> Result<()> {
    skip_without_lab!();
    skip_without_programs!("curl");
    let world = World::with_daemon(&scenario())?;
    let proxy = format!("http://{}", world.proxy()?);
    let server = world.network.server("origin").address();
    for (url, code) in [
        (format!("http://{server}:81/"), "502"),
        (format!("http://{server}:81/file.iso"), "502"),
        ("http://no-such-name.example/".to_owned(), "502"),
    ] {
        let answer = output(world.command("curl").args([
            "-sS",
            "-o",
            "answer",
            "-w",
            "%{http_code}",
            "-x",
            &proxy,
            &url,
        ]))?;
        ensure!(answer == code.as_bytes(), "{url}: {}", String::from_utf8_lossy(&answer));
        ensure!(world.read("answer")?.starts_with(b"multiway: "), "{url}");
    }
    let mut wire = Wire::connect(world.network.device(), world.proxy()?.parse()?)?;
    wire.send(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")?;
    ensure!(status(&wire.read_head()?)? == 400);
    // An intercepted client hears what it would have heard.
    let refused = run(world.intercepted("curl").args(["-sS", &format!("http://{server}:81/")]))?;
    ensure!(!refused.status.success() && refused.stdout.is_empty(), "{refused:?}");
    Ok(())
}

#[test]
fn a_server_on_the_device_itself_is_reached_through_the_proxy() -> Result<()> {
    skip_without_lab!();
    skip_without_programs!("curl");
    let world = World::with_daemon(&scenario())?;
    let path = world.network.path("wlan0");
    let origin = WireOrigin::start(world.network.device(), path.device_address().into())?;
    let proxy = format!("http://{}", world.proxy()?);
    let url = format!("http://{}:{ORIGIN_PORT}/once", path.device_address());
    let found = output(world.command("curl").args(["-sSf", "-x", &proxy, &url]))?;
    ensure!(found == b"once\n" && origin.seen().len() == 1);
    Ok(())
}

#[test]
fn a_client_that_does_not_read_stops_the_senders() -> Result<()> {
    skip_without_lab!();
    let large = "24MB.bin";
    let scenario = wifi_and_lte(ServerSpec::new("origin").file(large, 24_000_000));
    let mut world = World::build(&scenario)?;
    world.start_daemon(&format!("{FAST}[buffers]\nflow_mib = 2\n"), &["--intercept-user", "0"])?;
    let mut client = Client::new(&world, Via::Interception, 80)?;
    client.send("GET", &format!("/{large}"), "", b"")?;
    let (head, start) = (client.wire.read_head()?, client.wire.read_exact(1000)?);
    ensure!(status(&head)? == 200, "{head}");
    let down = || -> u64 {
        let paths = world.network.paths().iter();
        paths.map(|path| path.link().counters(Direction::Down).delivered.bytes).sum()
    };
    // The sockets' buffers and the flow's own fill, then nothing more may come.
    let mut before = 0;
    wait_until("the senders' stop", || {
        std::thread::sleep(Duration::from_millis(500));
        std::mem::replace(&mut before, down()) + 20_000 > before
    })?;
    ensure!(before < 22_000_000, "{before} bytes came though nobody reads");
    let rest = client.wire.read_exact(24_000_000 - 1000)?;
    same(&[start, rest].concat(), &world.content(large))
}
