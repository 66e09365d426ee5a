//! Unmodified programs whose connections go through a relay.

use std::collections::BTreeMap;
use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use multiway_api::Status;
use multiway_linksim::ServerSpec;
use multiway_netlab::{Nginx, NginxSpec, SSHD, Sshd, skip_without_lab};

use crate::bond_world::{BondWorld, scenario};
use crate::support::{PATIENCE, World, content_of, output, same, skip_without_programs, tls, wait_until};

const FILE: &str = "2MB.bin";
const HTTP2_PORT: u16 = 8443;
const SSH_PORT: u16 = 2222;
const ROOT: u32 = 0;
const IPERF_PORT: u16 = 5201;

/// An nginx of the origin's that speaks HTTP/2 on a port of its own.
fn start_http2(world: &World, spec: NginxSpec) -> Result<Nginx> {
    let server = world.network.server("origin");
    let listen: String = [server.public_address().into(), server.public_address_v6().into()]
        .map(|address| format!("listen {} ssl http2;\n", SocketAddr::new(address, HTTP2_PORT)))
        .concat();
    let (certificate, key) = (world.path("certificate.pem"), world.path("key.pem"));
    let nginx = spec.listen_tls(&[], &certificate, &key).directives(&listen);
    let nginx = nginx.start(world.network.lab(), server.host())?;
    server.host().wait_for_port((server.public_address(), HTTP2_PORT).into(), PATIENCE)?;
    Ok(nginx)
}

/// Fails unless nginx had so many requests, all of them from the relay.
fn came_by_the_relay(bond: &BondWorld, nginx: &Nginx, count: usize) -> Result<()> {
    wait_until("nginx's log", || nginx.requests().is_ok_and(|requests| requests.len() >= count))?;
    let requests = nginx.requests()?;
    ensure!(requests.len() == count, "{requests:?}");
    for request in requests {
        ensure!(bond.relay.is(request.client), "{request:?} came past the relay");
    }
    Ok(())
}

#[test]
fn curl_fetches_by_http_2() -> Result<()> {
    skip_without_lab!();
    skip_without_programs!("curl");
    let scenario = scenario(ServerSpec::new("origin").file(FILE, 2_000_000));
    let bond = BondWorld::joined_with(scenario, tls, "")?;
    let world = &bond.world;
    let nginx = start_http2(world, NginxSpec::new().file(FILE, 2_000_000))?;

    // Several transfers at once in one connection, and what is sent as well.
    let url = format!("https://files.example:{HTTP2_PORT}/{FILE}");
    let mut curl = world.intercepted("curl");
    curl.args(["-sSf", "--http2", "--parallel", "--cacert", "certificate.pem", "-w", "%{http_version} "]);
    curl.args(["-o", "one", &url, "-o", "two", &url, "-o", "three", &url]);
    let versions = String::from_utf8(output(&mut curl)?)?;
    ensure!(versions.trim() == "2 2 2", "{versions}");
    for name in ["one", "two", "three"] {
        same(&world.read(name)?, &world.content(FILE)).context(name)?;
    }
    came_by_the_relay(&bond, &nginx, 3)
}

/// What the shell prints.
fn shell(world: &World, script: &str) -> Result<String> {
    Ok(String::from_utf8(output(world.command("sh").args(["-ec", script]))?)?.trim().to_owned())
}

/// Chromium compares each of the page's parts with its hash (W3C Subresource Integrity), and leaves out
/// what differs.
#[test]
fn chromium_loads_a_page_with_all_its_parts_over_both_networks() -> Result<()> {
    const SCRIPTS: usize = 4;
    skip_without_lab!();
    skip_without_programs!("chromium", "openssl");
    let mut bond = BondWorld::build_with(scenario(ServerSpec::new("origin")), tls, "")?;
    let invite = bond.relay.invite(&[])?;
    bond.join(&invite)?;
    bond.world.start_daemon("[bond]\nmode = \"aggregate\"\n", &[])?;
    bond.wait_until_bonded()?;
    let world = &bond.world;
    let types = "types { text/html html; text/css css; text/javascript js; }";
    let nginx = start_http2(world, NginxSpec::new().directives(types))?;

    let hash = "openssl dgst -sha256 -binary | openssl base64";
    let mut bytes = 0;
    let mut part = |name: &str, text: String| -> Result<String> {
        let file = nginx.root().join(name);
        bytes += text.len() as u64;
        fs::write(&file, text)?;
        Ok(format!("integrity=sha256-{}", shell(world, &format!("< {} {hash}", file.display()))?))
    };
    let style = part("style.css", "p { color: rgb(1, 2, 3) }".to_owned())?;
    let mut page =
        format!("<!doctype html><link rel=icon href=data:,><link rel=stylesheet href=style.css {style}>\n");
    for number in 0..SCRIPTS {
        let noise: String =
            content_of(1, "noise", 1_000_000).iter().map(|octet| format!("{octet:02x}")).collect();
        let name = format!("{number}.js");
        let integrity = part(&name, format!("/* {noise} */ window.parts = (window.parts ?? 0) + 1;\n"))?;
        page += &format!("<script src={name} {integrity}></script>\n");
    }
    page += "<p>page</p><script>onload = () => { const p = document.querySelector('p');\
             p.textContent = `${window.parts} parts in ${getComputedStyle(p).color}` }</script>\n";
    fs::write(nginx.root().join("page.html"), page)?;

    let key = shell(
        world,
        &format!(
            "openssl x509 -in certificate.pem -noout -pubkey | openssl pkey -pubin -outform der | {hash}"
        ),
    )?;
    let mut chromium = world.command("chromium");
    // The account of the tests is root's, which has no sandbox.
    chromium.args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]);
    chromium.args(["--user-data-dir=chromium", "--dump-dom"]);
    chromium.arg(format!("--ignore-certificate-errors-spki-list={key}"));
    chromium.arg(format!("--proxy-server=http://{}", world.proxy()?));
    chromium.arg(format!("https://files.example:{HTTP2_PORT}/page.html"));
    chromium.stdin(Stdio::null()).stdout(fs::File::create(world.path("dom"))?);
    chromium.stderr(fs::File::create(world.path("chromium.log"))?);
    let mut chromium = world.network.device().start(chromium)?;
    let mut carried = BTreeMap::new();
    let ended = loop {
        if let Some(ended) = chromium.child().try_wait()? {
            break ended;
        }
        note_streams(&world.status()?, &mut carried);
        std::thread::sleep(Duration::from_millis(20));
    };
    let seen = String::from_utf8(world.read("dom")?)?;
    let is_right = seen.contains(&format!("<p>{SCRIPTS} parts in rgb(1, 2, 3)</p>"));
    ensure!(is_right, "{ended}: {seen}\n{}", String::from_utf8_lossy(&world.read("chromium.log")?));
    came_by_the_relay(&bond, &nginx, 2 + SCRIPTS)?;
    ensure!(carried.values().sum::<u64>() > bytes / 2, "of {bytes} bytes {carried:?} were bonded");
    ensure!(carried.values().all(|carried| *carried > bytes / 20), "of {bytes} bytes, {carried:?}");
    ensure!(carried.len() == 2, "{carried:?}");
    Ok(())
}

/// Notes what each path has brought of streams to the HTTP/2 server, where it is more than before.
fn note_streams(status: &Status, carried: &mut BTreeMap<String, u64>) {
    let sessions = status.relays.iter().flat_map(|relay| &relay.sessions);
    let streams = sessions.flat_map(|session| &session.streams);
    let mut now = BTreeMap::<&str, u64>::new();
    for path in streams
        .filter(|stream| stream.destination.ends_with(&format!(":{HTTP2_PORT}")))
        .flat_map(|stream| &stream.paths)
    {
        *now.entry(&path.interface).or_default() += path.bytes_received;
    }
    for (interface, bytes) in now {
        let noted = carried.entry(interface.to_owned()).or_default();
        *noted = bytes.max(*noted);
    }
}

#[test]
fn ssh_runs_a_command_with_data_both_ways_and_git_clones_by_it() -> Result<()> {
    skip_without_lab!();
    skip_without_programs!("ssh", "ssh-keygen", "git");
    if !Path::new(SSHD).exists() {
        multiway_netlab::say_skipped("sshd is not installed");
        return Ok(());
    }
    let bond = BondWorld::joined()?;
    let world = &bond.world;
    let server = world.network.server("origin");
    let address = (server.public_address(), SSH_PORT).into();
    let sshd = Sshd::start(world.network.lab(), server.host(), address, ROOT, false)?;
    let ssh = || {
        let mut ssh = world.intercepted("ssh");
        ssh.args(sshd.options()).arg("root@files.example");
        ssh
    };

    let client = String::from_utf8(output(ssh().arg("echo $SSH_CONNECTION"))?)?;
    let client = client.split(' ').next().unwrap_or_default().parse()?;
    ensure!(bond.relay.is(client), "{client} came past the relay");

    let data = content_of(1, "ssh", 1_500_000);
    fs::write(world.path("data"), &data)?;
    let mut cat = ssh();
    cat.arg("cat; echo end >&2; exit 7").stdin(fs::File::open(world.path("data"))?);
    let cat = cat.output()?;
    ensure!(cat.status.code() == Some(7), "{cat:?}");
    ensure!(cat.stderr == b"end\n", "{}", String::from_utf8_lossy(&cat.stderr));
    same(&cat.stdout, &data)?;

    fs::create_dir(world.path("source"))?;
    fs::write(world.path("source/data"), &data)?;
    let script = "cd source && git init -q && git add data && \
                  git -c user.name=Lab -c user.email=lab@files.example commit -qm data";
    output(world.command("sh").args(["-ec", script]))?;
    let url = format!("ssh://root@files.example:{SSH_PORT}{}", world.path("source").display());
    let mut clone = world.intercepted("git");
    clone
        .args(["clone", "-q", &url, "copy"])
        .env("GIT_SSH_COMMAND", format!("ssh {}", sshd.options().join(" ")));
    output(&mut clone)?;
    same(&world.read("copy/data")?, &data)?;
    output(world.command("git").args(["-C", "copy", "fsck", "--strict"])).map(drop)
}

/// Its option to carry a file spoils what the socket takes in parts, on every network, so that its data
/// cannot be compared; the other tests do that.
#[test]
fn iperf3_carries_several_streams_both_ways() -> Result<()> {
    skip_without_lab!();
    skip_without_programs!("iperf3");
    let bond = BondWorld::joined()?;
    let world = &bond.world;
    let server = world.network.server("origin");
    let log = world.path("iperf3.log");
    let printed = || fs::read_to_string(&log).unwrap_or_default();
    let port = IPERF_PORT.to_string();
    let mut serve = server.host().command("iperf3");
    serve.args(["-s", "-1", "--forceflush", "-p", &port]);
    serve.stdin(Stdio::null()).stdout(fs::File::create(&log)?);
    let mut serve = server.host().start(serve)?;
    wait_until("iperf3's server", || printed().contains("listening"))?;
    let mut client = world.intercepted("iperf3");
    client.args(["-c", "files.example", "-4", "-p", &port, "-t", "1", "-P", "3", "--bidir", "-J"]);
    let report: serde_json::Value =
        serde_json::from_slice(&output(&mut client).with_context(printed)?).context("iperf3's report")?;
    ensure!(serve.child().wait()?.success(), "{}", printed());
    for direction in ["sum_received", "sum_received_bidir_reverse"] {
        let bytes = report["end"][direction]["bytes"].as_u64().with_context(|| report.to_string())?;
        ensure!(bytes > 100_000, "{direction}: {bytes} bytes");
    }
    let address = |line: &str| {
        let (address, _) = line.strip_prefix("Accepted connection from ")?.split_once(',')?;
        address.parse::<IpAddr>().ok()
    };
    let client = printed().lines().find_map(address);
    ensure!(client.is_some_and(|client| bond.relay.is(client)), "{}", printed());
    Ok(())
}
