//! Wrong input: one clear message, a documented exit code, nothing left behind.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use assert_cmd::Command;

/// The built command in an empty directory, with state and control socket of its own.
fn multiway(home: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_multiway"));
    command
        .current_dir(home)
        .env("XDG_STATE_HOME", home.join("state"))
        .env("MULTIWAY_CONTROL", home.join("control.sock"))
        .env_remove("MULTIWAY_LOG");
    command
}

/// Runs it; fails unless it ends with `code` and its message has all of `says`.
fn fails(home: &Path, arguments: &[&str], code: i32, says: &[&str]) {
    let output = multiway(home).args(arguments).output().unwrap();
    let message = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {message}");
    for part in says {
        assert!(message.contains(part), "{arguments:?}: {part:?} is missing in:\n{message}");
    }
}

#[test]
fn wrong_arguments_end_with_2() {
    let home = tempfile::tempdir().unwrap();
    fails(home.path(), &["get"], 2, &["<URL>"]);
    fails(home.path(), &["get", "--no-such-flag", "http://127.0.0.1/"], 2, &["--no-such-flag"]);
    fails(home.path(), &["get", "--checksum", "md5:00", "http://127.0.0.1/"], 2, &["sha256:"]);
    fails(home.path(), &["get", "--header", "no colon", "http://127.0.0.1/"], 2, &["Name: value"]);
    fails(home.path(), &["get", "--preference", "cheap", "http://127.0.0.1/"], 2, &["fast", "thrifty"]);
    fails(home.path(), &["up", "--listen", "nowhere"], 2, &["nowhere"]);
    fails(home.path(), &["status", "--json", "--watch"], 2, &["--watch"]);
}

#[test]
fn a_demonstration_that_is_not_installed_says_where_it_is() {
    let home = tempfile::tempdir().unwrap();
    let alone = home.path().join("multiway");
    fs::hard_link(env!("CARGO_BIN_EXE_multiway"), &alone)
        .or_else(|_| fs::copy(env!("CARGO_BIN_EXE_multiway"), &alone).map(drop))
        .unwrap();
    let demo = || {
        let mut demo = Command::new(&alone);
        demo.args(["demo", "bond", "--size", "9"]).env("PATH", "/nowhere");
        demo.output().unwrap()
    };
    let output = demo();
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("make demo-bond"), "{output:?}");

    let lab = home.path().join("multiway-repro");
    fs::write(&lab, "#!/bin/sh\necho \"$@\"\n").unwrap();
    fs::set_permissions(&lab, fs::Permissions::from_mode(0o755)).unwrap();
    let output = demo();
    let said = String::from_utf8(output.stdout).unwrap();
    assert_eq!(
        said.trim(),
        format!("--multiway {} demo bond --size 9", alone.display()),
        "{:?}",
        output.stderr
    );
}

#[test]
fn what_cannot_be_downloaded_ends_with_2_before_anything_is_written() {
    let home = tempfile::tempdir().unwrap();
    fails(home.path(), &["get", "ftp://127.0.0.1/f"], 2, &["ftp://127.0.0.1/f"]);
    fails(home.path(), &["get", "example.com/f"], 2, &["example.com/f", "https://"]);
    fails(home.path(), &["get", "http://127.0.0.1/a/f", "http://127.0.0.1/b/f"], 2, &["both", "f"]);
    fails(home.path(), &["get", "-o", "x", "http://127.0.0.1/a", "http://127.0.0.1/b"], 2, &["--output"]);
    assert_eq!(fs::read_dir(home.path()).unwrap().count(), 0);
}

#[test]
fn an_unknown_interface_is_named_with_those_there_are() {
    let home = tempfile::tempdir().unwrap();
    for arguments in [
        &["get", "--path", "nosuch0", "http://127.0.0.1/f"][..],
        &["up", "--listen", "127.0.0.1:0", "--path", "nosuch0"],
    ] {
        fails(home.path(), arguments, 2, &["there is no network interface nosuch0", "There "]);
    }
    assert_eq!(fs::read_dir(home.path()).unwrap().count(), 0);
}

#[test]
fn a_busy_port_ends_with_8_and_leaves_no_socket() {
    let home = tempfile::tempdir().unwrap();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    fails(home.path(), &["up", "--listen", &address], 8, &[&address, "--listen"]);
    assert!(!home.path().join("control.sock").exists());
}

#[test]
fn an_unreadable_configuration_ends_with_2() {
    let home = tempfile::tempdir().unwrap();
    fails(home.path(), &["up", "-c", "missing.toml"], 2, &["missing.toml", "No such file"]);
    fs::write(home.path().join("binary.toml"), [0xff, 0xfe]).unwrap();
    fails(home.path(), &["up", "-c", "binary.toml"], 2, &["binary.toml", "UTF-8"]);
}

#[test]
fn an_unknown_key_is_shown_with_its_line() {
    let home = tempfile::tempdir().unwrap();
    fs::write(home.path().join("m.toml"), "listen = \"127.0.0.1:0\"\n\n[paths]\nalow = [\"wlan0\"]\n")
        .unwrap();
    fails(home.path(), &["up", "-c", "m.toml"], 2, &["m.toml:4:1", "alow", "allow"]);
}

#[test]
fn a_wrong_feature_rule_is_shown_with_its_line() {
    let home = tempfile::tempdir().unwrap();
    fs::write(home.path().join("f.toml"), "[[rule]]\nname = \"a\"\naction = \"sprint\"\n").unwrap();
    fs::write(home.path().join("m.toml"), "listen = \"127.0.0.1:0\"\nfeatures = \"f.toml\"\n").unwrap();
    fails(home.path(), &["up", "-c", "m.toml"], 2, &["f.toml", "line 3"]);
    assert!(!home.path().join("control.sock").exists());
}

#[test]
fn an_unknown_user_ends_with_2() {
    let home = tempfile::tempdir().unwrap();
    let arguments = ["up", "--listen", "127.0.0.1:0", "--intercept-user", "no-such-user-here"];
    fails(home.path(), &arguments, 2, &["there is no user no-such-user-here"]);
}

#[test]
fn without_a_daemon_status_and_run_end_with_10_and_say_how_to_start_one() {
    let home = tempfile::tempdir().unwrap();
    fails(home.path(), &["status"], 10, &["control.sock", "multiway up"]);
    fails(home.path(), &["run", "--", "true"], 10, &["control.sock", "multiway up"]);
    // What a killed daemon leaves refuses connections.
    drop(std::os::unix::net::UnixListener::bind(home.path().join("control.sock")).unwrap());
    fails(home.path(), &["status"], 10, &["refused", "multiway up"]);
    fails(home.path(), &["run", "--", "true"], 10, &["refused", "multiway up"]);
}

#[test]
fn paths_works_without_daemon_and_as_json() {
    let home = tempfile::tempdir().unwrap();
    let output = multiway(home.path()).args(["paths", "--json"]).output().unwrap();
    assert!(output.status.success());
    let paths: Vec<multiway_api::PathStatus> = serde_json::from_slice(&output.stdout).unwrap();
    assert!(paths.iter().all(|path| path.interface != "lo"));
    multiway(home.path()).arg("paths").assert().success();
}

#[test]
fn completions_and_manual_pages_are_written() {
    let home = tempfile::tempdir().unwrap();
    let bash = multiway(home.path()).args(["completions", "bash"]).output().unwrap();
    assert!(String::from_utf8(bash.stdout).unwrap().contains("_multiway"));
    multiway(home.path()).args(["man", "pages"]).assert().success();
    for page in ["multiway.1", "multiway-get.1", "multiway-up.1", "multiway-run.1", "multiway-status.1"] {
        let text = fs::read_to_string(home.path().join("pages").join(page)).unwrap();
        assert!(text.contains(".TH"), "{page}");
    }
    assert!(!home.path().join("pages/multiway-reaper.1").exists(), "it is no command for people");
}

#[test]
fn the_exit_codes_are_in_the_help() {
    let home = tempfile::tempdir().unwrap();
    let help = multiway(home.path()).arg("--help").output().unwrap();
    assert!(String::from_utf8(help.stdout).unwrap().contains("130  interrupted"));
}

#[test]
fn a_place_that_cannot_or_must_not_be_written_ends_with_7_before_anything_is_asked_for() {
    let home = tempfile::tempdir().unwrap();
    let precious = home.path().join("precious");
    fs::write(&precious, "precious").unwrap();
    std::os::unix::fs::symlink(&precious, home.path().join("file.part")).unwrap();
    // Nobody listens there, which would be the failure if it were asked.
    let url = "http://127.0.0.1:1/file";
    fails(home.path(), &["get", url], 7, &["file.part", "symbolic link"]);
    fails(home.path(), &["get", "-o", "x/..", url], 7, &["no name of a file"]);
    fails(home.path(), &["get", "-o", "x/y", url], 7, &["x/y.part", "Make the directory"]);
    fails(home.path(), &["get", "-o", ".", url], 7, &["is a directory"]);
    fails(home.path(), &["get", "--json", "-o", "-", url], 2, &["standard output"]);
    assert_eq!(fs::read_to_string(precious).unwrap(), "precious");
}
