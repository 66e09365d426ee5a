//! The daemon as its users meet it, without interception.

mod support;

use std::io::{BufRead, BufReader};
use std::os::unix::net::UnixDatagram;
use std::process::Stdio;
use std::time::Duration;

use support::{Daemon, MULTIWAY, command, text};

const PROXIES_ONLY: &str = "[intercept]\nenabled = false\n";

#[test]
fn run_refers_a_program_to_the_proxy_and_ends_with_its_code() {
    let home = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(home.path(), &[], PROXIES_ONLY);
    let output =
        daemon.multiway(&["run", "--", "sh", "-c", "echo $http_proxy $https_proxy $ALL_PROXY; exit 7"]);
    let proxy = daemon.proxy();
    assert_eq!(output.status.code(), Some(7));
    assert_eq!(text(&output.stdout), format!("http://{proxy} http://{proxy} socks5h://{proxy}\n"));
    assert!(text(&output.stderr).contains("cannot be intercepted"), "{}", text(&output.stderr));
}

#[test]
fn run_says_when_the_program_is_not_there_or_cannot_be_executed() {
    let home = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(home.path(), &[], PROXIES_ONLY);
    let missing = daemon.multiway(&["run", "--", "no-such-program-here"]);
    assert_eq!(missing.status.code(), Some(127));
    assert!(text(&missing.stderr).contains("there is no program no-such-program-here"));
    std::fs::write(home.path().join("data"), "no program").unwrap();
    assert_eq!(daemon.multiway(&["run", "--", "./data"]).status.code(), Some(126));
}

#[test]
fn status_is_told_in_words_and_as_json() {
    let home = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(home.path(), &[], PROXIES_ONLY);
    let words = text(&daemon.multiway(&["status"]).stdout);
    for part in ["PATHS", "FLOWS", "http+socks5: 127.0.0.1:", "interception: off"] {
        assert!(words.contains(part), "{part} is missing in:\n{words}");
    }
    assert_eq!(daemon.status().version, env!("CARGO_PKG_VERSION"));
}

#[test]
fn a_second_daemon_ends_with_8_and_the_first_lives_on() {
    let home = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(home.path(), &[], PROXIES_ONLY);
    let second = daemon.multiway(&["up", "-c", "multiway.toml"]);
    assert_eq!(second.status.code(), Some(8), "{}", text(&second.stderr));
    assert!(text(&second.stderr).contains("another daemon"), "{}", text(&second.stderr));
    daemon.status();
}

#[test]
fn a_daemon_that_is_told_to_stop_ends_well_and_removes_its_socket() {
    for signal in ["TERM", "INT"] {
        let home = tempfile::tempdir().unwrap();
        let mut daemon = Daemon::start(home.path(), &[], PROXIES_ONLY);
        assert!(daemon.end(signal).success(), "{}", daemon.log());
        assert!(!daemon.socket().exists());
    }
}

#[test]
fn a_killed_daemon_does_not_keep_the_next_from_starting() {
    let home = tempfile::tempdir().unwrap();
    let mut killed = Daemon::start(home.path(), &[], PROXIES_ONLY);
    killed.end("KILL");
    assert!(killed.socket().exists());
    let output = command(home.path(), &[MULTIWAY, "status"]).output().unwrap();
    assert_eq!(output.status.code(), Some(10));
    Daemon::start(home.path(), &[], PROXIES_ONLY).status();
}

#[test]
fn a_rule_file_that_becomes_wrong_is_told_of_and_the_old_rules_stay() {
    let home = tempfile::tempdir().unwrap();
    let rules = home.path().join("f.toml");
    std::fs::write(&rules, "").unwrap();
    let daemon = Daemon::start(home.path(), &[], &format!("features = \"f.toml\"\n{PROXIES_ONLY}"));
    std::fs::write(&rules, "\n[[rule]]\nnam = 1\n").unwrap();
    let event = support::wait_for("the event", || daemon.status().events.pop());
    let shown = event.detail.to_string();
    assert!(shown.contains("f.toml: line 3"), "{shown}");
}

#[test]
fn the_service_manager_is_told_when_the_daemon_works() {
    let home = tempfile::tempdir().unwrap();
    let manager = UnixDatagram::bind(home.path().join("notify")).unwrap();
    manager.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    std::fs::write(home.path().join("m.toml"), format!("listen = \"127.0.0.1:0\"\n{PROXIES_ONLY}")).unwrap();
    let mut daemon = command(home.path(), &[MULTIWAY, "up", "-c", "m.toml"])
        .env("NOTIFY_SOCKET", home.path().join("notify"))
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut told = [0; 512];
    let length = manager.recv(&mut told);
    let works = command(home.path(), &[MULTIWAY, "status"]).output().unwrap();
    daemon.kill().unwrap();
    daemon.wait().unwrap();
    let told = text(&told[..length.unwrap()]);
    assert!(told.contains("READY=1") && told.contains("STATUS=HTTP proxy"), "{told}");
    assert!(works.status.success(), "ready means that it answers");
}

#[test]
fn a_watched_status_is_shown_again_until_nobody_reads() {
    let home = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(home.path(), &[], PROXIES_ONLY);
    let mut watch = daemon.beside(&[MULTIWAY, "status", "--watch"]).stdout(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(watch.stdout.take().unwrap()).lines();
    let pictures = lines.map(Result::unwrap).filter(|line| line.starts_with("PATHS")).take(2).count();
    assert_eq!(pictures, 2);
    let ended = support::wait_for("its end", || watch.try_wait().unwrap());
    assert!(ended.success(), "{ended}");
}
