//! A lab is apart from the machine it runs on, and leaves nothing on it, however it ends.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use multiway_netlab::{Lab, skip_without_lab};

const SCENARIO: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/scenarios/wifi-and-lte.toml");

fn lab_program() -> Command {
    Command::new(env!("CARGO_BIN_EXE_multiway-lab"))
}

/// Processes in a network namespace, which is named as `/proc/<id>/ns/net` reads.
fn processes_in(namespaces: &[PathBuf]) -> Vec<u32> {
    let ids = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    ids.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(|id: &u32| {
            std::fs::read_link(format!("/proc/{id}/ns/net")).is_ok_and(|net| namespaces.contains(&net))
        })
        .collect()
}

/// Namespaces of a process's children that are not the machine's.
fn namespaces_of_children(parent: u32) -> Result<Vec<PathBuf>> {
    let machine = std::fs::read_link("/proc/self/ns/net")?;
    let mut namespaces = Vec::new();
    for entry in std::fs::read_dir(format!("/proc/{parent}/task"))? {
        let children = std::fs::read_to_string(entry?.path().join("children"))?;
        for child in children.split_whitespace() {
            namespaces.push(std::fs::read_link(format!("/proc/{child}/ns/net"))?);
        }
    }
    namespaces.retain(|namespace| *namespace != machine);
    Ok(namespaces)
}

fn left_directories(temporary: &Path) -> Vec<PathBuf> {
    std::fs::read_dir(temporary).into_iter().flatten().flatten().map(|entry| entry.path()).collect()
}

#[test]
fn a_lab_that_is_killed_takes_its_processes_and_namespaces_along() -> Result<()> {
    skip_without_lab!();
    let temporary = tempfile::tempdir()?;
    let mut lab = lab_program()
        .env("TMPDIR", temporary.path())
        .args(["shell", SCENARIO, "--", "sh", "-c", "echo ready; exec sleep 1000"])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()?;
    let mut line = String::new();
    BufReader::new(lab.stdout.take().context("it is piped")?).read_line(&mut line)?;
    ensure!(line == "ready\n", "the lab says {line:?}");
    let namespaces = namespaces_of_children(lab.id())?;
    // The command on the device and nginx on the servers' host.
    ensure!(processes_in(&namespaces).len() >= 2, "{namespaces:?}");
    ensure!(left_directories(temporary.path()).len() == 1);

    lab.kill()?;
    lab.wait()?;
    let deadline = Instant::now() + Duration::from_secs(5);
    while !processes_in(&namespaces).is_empty() {
        ensure!(Instant::now() < deadline, "still there: {:?}", processes_in(&namespaces));
        std::thread::yield_now();
    }
    while left_directories(temporary.path()) != Vec::<PathBuf>::new() {
        ensure!(Instant::now() < deadline, "still there: {:?}", left_directories(temporary.path()));
        std::thread::yield_now();
    }
    Ok(())
}

#[test]
fn the_command_runs_on_the_device_and_its_exit_code_is_passed_on() -> Result<()> {
    skip_without_lab!();
    let output = lab_program()
        .args(["shell", SCENARIO, "--", "sh", "-c", "ls /sys/class/net; pwd; exit 7"])
        .output()?;
    let here = std::env::current_dir()?;
    assert_eq!(String::from_utf8_lossy(&output.stdout), format!("lo\nwlan0\nwwan0\n{}\n", here.display()));
    assert_eq!(output.status.code(), Some(7));
    let topology = String::from_utf8_lossy(&output.stderr);
    assert!(topology.starts_with("kernel: Wi-Fi and LTE"), "{topology}");
    assert!(topology.contains("http://10.99.0.1/10MB.bin"), "{topology}");
    Ok(())
}

#[test]
fn a_wrong_scenario_is_one_message_and_no_lab() -> Result<()> {
    let output = lab_program().args(["shell", "no/such.toml"]).output()?;
    assert_eq!(output.status.code(), Some(126));
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(message.starts_with("multiway-lab: no/such.toml: "), "{message}");
    assert_eq!(message.lines().count(), 1, "{message}");
    Ok(())
}

#[test]
fn a_scenario_can_be_checked_without_root() -> Result<()> {
    let output = lab_program().args(["check", SCENARIO]).output()?;
    assert!(output.status.success());
    assert!(String::from_utf8_lossy(&output.stdout).contains("15 Mbit/s down"));
    Ok(())
}

#[test]
fn a_host_sees_its_own_resolver_and_settings_and_the_machine_sees_none() -> Result<()> {
    skip_without_lab!();
    let before = std::fs::read_to_string("/etc/resolv.conf").ok();
    let lab = Lab::new()?;
    let (one, other) = (lab.host("one")?, lab.host("other")?);
    if before.is_some() {
        one.set_resolv_conf("nameserver 10.1.0.1\n")?;
        let seen = |host: &multiway_netlab::Host| host.run(|| std::fs::read_to_string("/etc/resolv.conf"));
        assert_eq!(seen(&one)?, "nameserver 10.1.0.1\n");
        assert!(!seen(&other)?.contains("10.1.0.1"));
        let mut cat = one.command("cat");
        cat.arg("/etc/resolv.conf");
        assert_eq!(one.output(cat)?, "nameserver 10.1.0.1\n");
    }
    assert_eq!(std::fs::read_to_string("/etc/resolv.conf").ok(), before);
    one.sysctl("net.ipv4.ip_forward", "1")?;
    let forwards =
        |host: &multiway_netlab::Host| host.run(|| std::fs::read_to_string("/proc/sys/net/ipv4/ip_forward"));
    assert_eq!((forwards(&one)?.trim(), forwards(&other)?.trim()), ("1", "0"));
    let congestion_control =
        one.run(|| std::fs::read_to_string("/proc/sys/net/ipv4/tcp_congestion_control"))?;
    assert_eq!(congestion_control.trim(), "cubic");
    let cgroups = Path::new("/sys/fs/cgroup");
    if cgroups.exists() {
        let count = || std::fs::read_dir(cgroups).into_iter().flatten().count();
        assert_eq!(one.run(count), count(), "control groups stay in sight");
    }
    Ok(())
}

#[test]
fn a_host_reports_what_failed_where() -> Result<()> {
    skip_without_lab!();
    let lab = Lab::new()?;
    let host = lab.host("lonely")?;
    let error = host.ip("route add default via 10.0.0.1").expect_err("there is no network");
    assert!(
        error.to_string().contains("`ip route add default via 10.0.0.1` on lonely ended with"),
        "{error}"
    );
    let error = host.start(host.command("no-such-program")).expect_err("there is no such program");
    assert!(error.to_string().contains("cannot start no-such-program on lonely"), "{error}");
    let nobody = "127.0.0.1:9".parse()?;
    let error = host.wait_for_port(nobody, Duration::from_millis(50)).expect_err("nothing listens");
    assert!(format!("{error:#}").contains("nothing accepts connections to 127.0.0.1:9"), "{error:#}");
    let lab = Lab::new()?.with_congestion_control("no-such-one");
    let error = lab.host("device").expect_err("there is no such congestion control");
    assert!(error.to_string().contains("cannot use the congestion control `no-such-one`"), "{error}");
    Ok(())
}
