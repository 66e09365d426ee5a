//! Interception as its users meet it, in network namespaces of the test's own; needs root.

mod support;

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use support::{Daemon, text, wait_for};

/// The address that the server has, far behind both networks.
const SERVER: &str = "198.51.100.1";

/// A network namespace that lives as long as this value.
struct Namespace {
    holder: Child,
    enter: Vec<String>,
}

impl Namespace {
    /// `None`, and a word on why, without the privilege.
    #[expect(clippy::print_stderr, reason = "a skipped test must say so")]
    fn new() -> Option<Self> {
        let holder = Command::new("unshare")
            .args(["--net", "sh", "-c", "ip link set lo up && echo ready && exec cat"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("util-linux is there");
        let pid = holder.id().to_string();
        let enter = ["nsenter", "--net", "--target", &pid].map(str::to_owned).to_vec();
        let mut namespace = Self { holder, enter };
        let mut line = String::new();
        BufReader::new(namespace.holder.stdout.take().unwrap()).read_line(&mut line).unwrap();
        if line == "ready\n" {
            return Some(namespace);
        }
        eprintln!("SKIPPED: no network namespace can be made here; run as root");
        None
    }

    fn words(&self) -> Vec<&str> {
        self.enter.iter().map(String::as_str).collect()
    }

    fn sh(&self, script: &str) -> String {
        let words = [&self.words()[..], &["sh", "-ec", script]].concat();
        let output = Command::new(words[0]).args(&words[1..]).output().unwrap();
        assert!(output.status.success(), "{script}: {}", text(&output.stderr));
        text(&output.stdout)
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        // It ends by itself when this process does.
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}

/// A device with Wi-Fi and cellular, and a web server on the other side of both.
struct World {
    device: Namespace,
    internet: Namespace,
    server: Child,
}

impl World {
    fn new(content: &Path) -> Option<Self> {
        let (device, internet) = (Namespace::new()?, Namespace::new()?);
        let peer = internet.holder.id();
        internet.sh(&format!("ip address add {SERVER}/32 dev lo"));
        for (number, name) in [(1, "wlan0"), (2, "wwan0")] {
            device.sh(&format!(
                "ip link add {name} type veth peer name to-{name} netns {peer}
                 ip link set {name} up
                 ip address add 10.{number}.0.2/24 dev {name}"
            ));
            internet.sh(&format!(
                "ip link set to-{name} up
                 ip address add 10.{number}.0.1/24 dev to-{name}"
            ));
            device.sh(&format!("ip route add default via 10.{number}.0.1 dev {name} metric {number}00"));
        }
        let directory = content.display();
        let settings = content.join("nginx.conf");
        let own = rcgen::generate_simple_self_signed([SERVER.to_owned()]).unwrap();
        std::fs::write(content.join("certificate.pem"), own.cert.pem()).unwrap();
        std::fs::write(content.join("key.pem"), own.signing_key.serialize_pem()).unwrap();
        std::fs::write(
            &settings,
            format!(
                "daemon off; pid {directory}/nginx.pid; error_log {directory}/nginx.log; events {{}}
                 http {{
                     access_log off;
                     # Slow enough that one network alone would be at it for a while.
                     limit_rate 2m;
                     server {{
                         listen {SERVER}:80;
                         listen {SERVER}:443 ssl;
                         ssl_certificate {directory}/certificate.pem;
                         ssl_certificate_key {directory}/key.pem;
                         root {directory};
                     }}
                 }}"
            ),
        )
        .unwrap();
        // The content is in a directory that only its owner may read, as temporary ones are.
        let nginx = ["nginx", "-g", "user root; master_process off;", "-c", settings.to_str().unwrap()];
        let words = [&internet.words()[..], &nginx].concat();
        let server = Command::new(words[0]).args(&words[1..]).stderr(Stdio::null()).spawn().unwrap();
        let world = Self { device, internet, server };
        wait_for("the server", || world.internet.sh("ss -ltn").contains(":80 ").then_some(()));
        Some(world)
    }

    fn daemon(&self, home: &Path, config: &str) -> Daemon {
        Daemon::start(home, &self.device.words(), config)
    }

    fn tables(&self) -> String {
        self.device.sh("nft list tables")
    }
}

impl Drop for World {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

const FETCH: [&str; 4] = ["curl", "-sS", "--max-time", "20"];

const URL: &str = "http://198.51.100.1/file";

#[test]
fn a_program_under_run_is_intercepted_and_its_group_goes_with_it() {
    let home = tempfile::tempdir().unwrap();
    std::fs::write(home.path().join("file"), "the content").unwrap();
    let Some(world) = World::new(home.path()) else { return };
    let daemon = world.daemon(home.path(), "");
    assert!(daemon.status().interception.active, "{}", daemon.log());

    let fetch = [&["run", "--"], &FETCH[..], &[URL]].concat();
    let output = daemon.multiway(&fetch);
    assert_eq!(text(&output.stdout), "the content", "{}\n{}", text(&output.stderr), daemon.log());
    assert_eq!(text(&output.stderr), "", "nothing is said when all is well");

    let mut program = daemon
        .beside(&[support::MULTIWAY, "run", "--", "sh", "-c", "echo in; read line"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(program.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "in\n");
    let groups = wait_for("one group", || {
        let groups = daemon.status().interception.cgroups;
        (groups.len() == 1).then_some(groups)
    });
    assert!(world.device.sh("nft list ruleset").contains("cgroupv2"), "{groups:?}");
    drop(program.stdin.take());
    assert!(program.wait().unwrap().success() || program.wait().is_ok());
    wait_for("no group", || daemon.status().interception.cgroups.is_empty().then_some(()));
}

#[test]
fn when_the_daemon_is_killed_its_programs_go_on_over_the_plain_network() {
    let home = tempfile::tempdir().unwrap();
    std::fs::write(home.path().join("file"), "the content").unwrap();
    let Some(world) = World::new(home.path()) else { return };
    let mut daemon = world.daemon(home.path(), "");
    let script = format!("echo in; read line; {} {}", FETCH.join(" "), URL);
    let mut program = daemon
        .beside(&[support::MULTIWAY, "run", "--", "sh", "-c", &script])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut output = BufReader::new(program.stdout.take().unwrap());
    let mut line = String::new();
    output.read_line(&mut line).unwrap();
    let group = daemon.status().interception.cgroups[0].clone();
    assert!(world.tables().contains("multiway"));

    daemon.end("KILL");
    wait_for("the end of the table", || (!world.tables().contains("multiway")).then_some(()));
    drop(program.stdin.take());
    let mut rest = String::new();
    output.read_line(&mut rest).unwrap();
    assert_eq!(rest, "the content");
    program.wait().unwrap();
    wait_for("the end of the group", || {
        let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
        let mount = mounts.lines().find(|line| line.split(' ').nth(2) == Some("cgroup2")).unwrap();
        let directory = format!("{}/{}", mount.split(' ').nth(1).unwrap(), group.trim_start_matches('/'));
        (!Path::new(&directory).exists()).then_some(())
    });
}

#[test]
fn a_stopped_daemon_leaves_no_table() {
    let home = tempfile::tempdir().unwrap();
    let Some(world) = World::new(home.path()) else { return };
    let mut daemon = world.daemon(home.path(), "[intercept]\nusers = [65533]\n");
    assert!(world.device.sh("nft list ruleset").contains("65533"));
    assert!(daemon.end("TERM").success(), "{}", daemon.log());
    assert!(!world.tables().contains("multiway"));
}

#[test]
fn a_download_uses_both_networks_without_the_daemon() {
    let home = tempfile::tempdir().unwrap();
    std::fs::write(home.path().join("file"), vec![7; 3_000_000]).unwrap();
    let Some(world) = World::new(home.path()) else { return };
    let target = home.path().join("got");
    let words = [
        &world.device.words()[..],
        &[support::MULTIWAY, "get", "--json", "--preference", "fast", "-o", "got", URL],
    ]
    .concat();
    let output = support::command(home.path(), &words).output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    let summary: multiway_api::GetSummary = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(summary.bytes, 3_000_000);
    let paths: Vec<&str> = summary.paths.iter().map(|path| path.interface.as_str()).collect();
    assert!(paths.contains(&"wlan0") && paths.contains(&"wwan0"), "{paths:?}");
    assert_eq!(std::fs::read(target).unwrap(), vec![7; 3_000_000]);
}

#[test]
fn what_a_server_refuses_ends_with_the_documented_code_and_leaves_no_file() {
    let home = tempfile::tempdir().unwrap();
    std::fs::write(home.path().join("file"), "the content").unwrap();
    let Some(world) = World::new(home.path()) else { return };
    let get = |arguments: &[&str]| {
        let words = [&world.device.words()[..], &[support::MULTIWAY, "get"], arguments].concat();
        let output = support::command(home.path(), &words).output().unwrap();
        (output.status.code(), text(&output.stderr))
    };
    let missing = format!("http://{SERVER}/missing");
    let (code, message) = get(&["-o", "got", &missing]);
    assert_eq!(code, Some(4), "{message}");
    assert!(message.contains("404"), "{message}");

    let wrong = format!("sha256:{}", "0".repeat(64));
    let (code, message) = get(&["-o", "got", "--checksum", &wrong, URL]);
    assert_eq!(code, Some(5), "{message}");

    let secure = format!("https://{SERVER}/file");
    let (code, message) = get(&["-o", "got", &secure]);
    assert_eq!(code, Some(6), "{message}");
    assert!(message.contains("--cacert"), "{message}");

    let (code, message) = get(&["-o", "got", "--path", "nosuch0", URL]);
    assert_eq!(code, Some(2), "{message}");
    assert!(message.contains("wlan0 (") && message.contains("wwan0 ("), "{message}");

    let (code, message) = get(&["-o", "/proc/nowhere/got", URL]);
    assert_eq!(code, Some(7), "{message}");
    assert!(!home.path().join("got").exists());

    let (code, message) = get(&["-o", "got", "--cacert", "certificate.pem", &secure]);
    assert_eq!(code, Some(0), "{message}");
    assert_eq!(std::fs::read(home.path().join("got")).unwrap(), b"the content");
}

#[test]
fn without_any_network_a_download_ends_with_3() {
    let home = tempfile::tempdir().unwrap();
    let Some(island) = Namespace::new() else { return };
    let words = [&island.words()[..], &[support::MULTIWAY, "get", URL]].concat();
    let output = support::command(home.path(), &words).output().unwrap();
    assert_eq!(output.status.code(), Some(3), "{}", text(&output.stderr));
    assert!(text(&output.stderr).contains("multiway paths"));
    assert!(!home.path().join("file").exists());
}

#[test]
fn without_the_capability_the_daemon_offers_proxies_unless_interception_was_asked_for() {
    let home = tempfile::tempdir().unwrap();
    let Some(namespace) = Namespace::new() else { return };
    let unprivileged = ["setpriv", "--bounding-set=-net_admin", "--inh-caps=-net_admin"];
    let inside = [&namespace.words()[..], &unprivileged].concat();
    let daemon = Daemon::start(home.path(), &inside, "");
    let interception = daemon.status().interception;
    assert!(!interception.active);
    assert!(interception.reason.unwrap().contains("CAP_NET_ADMIN"));
    assert!(daemon.log().contains("only the proxies"), "{}", daemon.log());

    let other = tempfile::tempdir().unwrap();
    let words =
        [&inside[..], &[support::MULTIWAY, "up", "--listen", "127.0.0.1:0", "--intercept-user", "root"]]
            .concat();
    let output = support::command(other.path(), &words).output().unwrap();
    assert_eq!(output.status.code(), Some(9), "{}", text(&output.stderr));
    assert!(text(&output.stderr).contains("CAP_NET_ADMIN"));
}

#[test]
fn a_flow_is_shown_with_its_program_while_it_runs() {
    let home = tempfile::tempdir().unwrap();
    std::fs::write(home.path().join("file"), vec![7; 6_000_000]).unwrap();
    let Some(world) = World::new(home.path()) else { return };
    let daemon = world.daemon(home.path(), "preference = \"fast\"\n");
    let fetch = [&[support::MULTIWAY, "run", "--"], &FETCH[..], &[URL]].concat();
    let mut program = daemon.beside(&fetch).stdout(Stdio::null()).spawn().unwrap();
    let flow = wait_for("a flow with bytes", || {
        daemon.status().flows.into_iter().find(|flow| flow.bytes > 0 && flow.program.is_some())
    });
    assert_eq!(flow.program.as_deref(), Some("curl"));
    assert!(flow.destination.contains(SERVER), "{flow:?}");
    assert!(!flow.why.is_empty());
    assert!(flow.shares.iter().all(|part| ["wlan0", "wwan0"].contains(&part.interface.as_str())), "{flow:?}");
    assert!(program.wait().unwrap().success());
    let paths = daemon.status().paths;
    assert!(paths.iter().map(|path| path.bytes_today).sum::<u64>() >= 6_000_000, "{paths:?}");
}

#[test]
fn a_stopped_download_ends_with_its_signals_code_and_can_be_continued() {
    let home = tempfile::tempdir().unwrap();
    let content: Vec<u8> = (0..8_000_000_u32).map(|n| (n / 7) as u8).collect();
    std::fs::write(home.path().join("file"), &content).unwrap();
    let Some(world) = World::new(home.path()) else { return };
    let words =
        [&world.device.words()[..], &[support::MULTIWAY, "get", "--json", "--continue", "-o", "got", URL]]
            .concat();
    let part = home.path().join("got.part");
    for (signal, code) in [("INT", 130), ("TERM", 143)] {
        // What an earlier one left would look like its own.
        let _ = std::fs::remove_file(&part);
        let mut first = support::command(home.path(), &words).stdout(Stdio::null()).spawn().unwrap();
        wait_for("some bytes", || std::fs::metadata(&part).ok().filter(|part| part.len() > 100_000));
        // `nsenter` becomes the command, so that this is its process.
        let pid = first.id().to_string();
        assert!(Command::new("kill").args(["-s", signal, &pid]).status().unwrap().success());
        assert_eq!(first.wait().unwrap().code(), Some(code), "SIG{signal}");
        assert!(!home.path().join("got").exists() && part.exists());
    }

    let output = support::command(home.path(), &words).output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    let summary: multiway_api::GetSummary = serde_json::from_slice(&output.stdout).unwrap();
    assert!(summary.resumed_bytes > 0);
    assert!(std::fs::read(home.path().join("got")).unwrap() == content);
}

#[test]
fn a_full_disk_ends_with_7_and_leaves_no_file() {
    let home = tempfile::tempdir().unwrap();
    std::fs::write(home.path().join("file"), vec![7; 3_000_000]).unwrap();
    let Some(world) = World::new(home.path()) else { return };
    let script = "mkdir small && mount -t tmpfs -o size=1m none small && \"$0\" get -o small/got \"$1\"
        code=$?; ls small; exit $code";
    let words =
        [&world.device.words()[..], &["unshare", "--mount", "sh", "-c", script, support::MULTIWAY, URL]]
            .concat();
    let output = support::command(home.path(), &words).output().unwrap();
    assert_eq!(output.status.code(), Some(7), "{}", text(&output.stderr));
    assert!(text(&output.stderr).contains("small/got"), "{}", text(&output.stderr));
    assert!(!text(&output.stdout).lines().any(|name| name == "got"), "{}", text(&output.stdout));
}

#[test]
fn a_refused_connection_ends_with_3_for_get_and_with_the_programs_own_code_for_run() {
    let home = tempfile::tempdir().unwrap();
    let Some(world) = World::new(home.path()) else { return };
    let closed = format!("http://{SERVER}:81/file");
    let words = [&world.device.words()[..], &[support::MULTIWAY, "get", &closed]].concat();
    let output = support::command(home.path(), &words).output().unwrap();
    assert_eq!(output.status.code(), Some(3), "{}", text(&output.stderr));
    assert!(text(&output.stderr).contains("refused"), "{}", text(&output.stderr));
    let daemon = world.daemon(home.path(), "");
    let output = daemon.multiway(&["run", "--", "sh", "-c", "exit 7"]);
    assert_eq!(output.status.code(), Some(7), "{}", text(&output.stderr));
}
