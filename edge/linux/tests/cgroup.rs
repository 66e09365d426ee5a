//! Programs in a run's control group are intercepted, and the group goes with the daemon.

mod support;

use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use multiway_edge::cgroup::{self, RunGroup};
use multiway_edge::intercept::{Intercept, InterceptPlan};
use multiway_edge::reaper::{Reaper, reaper_main};
use support::{SERVER_V4, role, serve, serve_peer_address, two_paths};

/// A group for a test of this process; `None`, and a word on why, where none can be made.
#[expect(clippy::print_stderr, reason = "a skipped test must say so")]
fn group(id: &str) -> Option<RunGroup> {
    match RunGroup::create(&format!("test-{id}-{}", std::process::id()), std::process::id()) {
        Ok(group) => Some(group),
        Err(error) => {
            eprintln!("SKIPPED: no control group can be made here ({error}); run as root");
            None
        }
    }
}

/// A process that does nothing until its standard input ends.
fn idle() -> Child {
    Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap()
}

fn membership(pid: u32) -> String {
    std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap()
}

#[test]
fn a_group_is_removed_once_it_is_empty_and_not_before() {
    let Some(group) = group("empty") else { return };
    assert!(cgroup::leftover().unwrap().contains(&group));
    let mut program = idle();
    group.add(program.id()).unwrap();
    assert!(membership(program.id()).contains(group.name()));
    assert!(!group.remove_if_empty().unwrap());

    program.kill().unwrap();
    program.wait().unwrap();
    let deadline = Instant::now() + Duration::from_secs(5);
    while !group.remove_if_empty().unwrap() {
        assert!(Instant::now() < deadline, "never empty");
    }
    assert!(!cgroup::leftover().unwrap().contains(&group));
    assert!(group.is_empty().unwrap() && group.remove_if_empty().unwrap(), "gone is gone");
}

#[test]
fn a_run_within_a_run_is_its_sibling() {
    let Some(outer) = group("outer") else { return };
    let mut program = idle();
    outer.add(program.id()).unwrap();
    let inner = RunGroup::create(&format!("test-inner-{}", std::process::id()), program.id()).unwrap();
    assert!(!inner.name().contains(outer.name()));
    program.kill().unwrap();
    program.wait().unwrap();
    for group in [outer, inner] {
        group.evacuate_and_remove().unwrap();
    }
}

#[test]
fn programs_in_the_group_are_intercepted_and_others_not() {
    programs_in_a_group_are_intercepted_and_others_not();
}

#[test]
fn they_are_where_version_2_groups_alone_are_mounted_too() {
    let mut unified = Command::new("unshare");
    let alone = role("role_intercepts_by_group");
    unified.args(["--mount", "sh", "-ec", "mount -t cgroup2 none /sys/fs/cgroup; exec \"$@\"", "sh"]);
    unified.arg(alone.get_program()).args(alone.get_args());
    unified.envs(alone.get_envs().filter_map(|(name, value)| Some((name, value?))));
    if support::namespace().is_some() {
        assert!(unified.status().unwrap().success());
    }
}

fn programs_in_a_group_are_intercepted_and_others_not() {
    let Some(net) = two_paths() else { return };
    let Some(group) = group("match") else { return };
    let server = SocketAddr::new(SERVER_V4.parse().unwrap(), 80);
    serve_peer_address(&net.internet, server);
    serve(&net.device, "127.0.0.1:7070".parse().unwrap(), |_| "proxied".to_owned());
    let plan = InterceptPlan {
        cgroups: vec![group.name().to_owned()],
        proxy_port: 7070,
        ..InterceptPlan::default()
    };
    let intercept = net.device.run(move || Intercept::install(&plan).unwrap());

    let connects_inside = |inside: bool| {
        let mut command = Command::new("bash");
        command
            .args(["-c", &format!("read -r go; exec cat < /dev/tcp/{SERVER_V4}/80")])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut child = net.device.spawn(command);
        if inside {
            group.add(child.id()).unwrap();
        }
        std::io::Write::write_all(&mut child.stdin.take().unwrap(), b"go\n").unwrap();
        String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap()
    };
    assert_eq!(connects_inside(false), "10.1.0.2");
    assert_eq!(connects_inside(true), "proxied");
    drop(intercept);
    group.evacuate_and_remove().unwrap();
}

#[test]
fn when_the_daemon_is_killed_its_programs_move_up_and_its_groups_vanish() {
    let Some(group) = group("killed") else { return };
    let mut program = idle();
    group.add(program.id()).unwrap();
    // A program may divide its group; that must not keep it.
    let nested = cgroup::mount_point().unwrap().join(group.name().trim_start_matches('/')).join("nested");
    std::fs::create_dir(&nested).unwrap();
    let mut nested_program = idle();
    std::fs::write(nested.join("cgroup.procs"), nested_program.id().to_string()).unwrap();

    let mut daemon = role("role_daemon").env("GROUP", group.name()).spawn().unwrap();
    let mut output = BufReader::new(daemon.stdout.take().unwrap()).lines();
    assert!(output.any(|line| line.unwrap().contains("tracking")), "the daemon never started");
    daemon.kill().unwrap();
    daemon.wait().unwrap();

    let deadline = Instant::now() + Duration::from_secs(10);
    while cgroup::leftover().unwrap().contains(&group) {
        assert!(Instant::now() < deadline, "the group was never removed");
        std::thread::sleep(Duration::from_millis(5));
    }
    for child in [&mut program, &mut nested_program] {
        assert!(child.try_wait().unwrap().is_none(), "programs live on");
        assert!(!membership(child.id()).contains("multiway-run-"));
        child.kill().unwrap();
        child.wait().unwrap();
    }
}

#[test]
fn an_orderly_end_removes_tracked_groups_and_leaves_forgotten_ones() {
    let Some(group) = group("orderly") else { return };
    let Some(forgotten) = self::group("forgotten") else { return };
    let mut reaper = Reaper::spawn(role("role_reaper")).unwrap();
    reaper.track(&group).unwrap();
    reaper.track(&forgotten).unwrap();
    reaper.forget(&forgotten).unwrap();
    drop(reaper);
    let left = cgroup::leftover().unwrap();
    assert!(!left.contains(&group) && left.contains(&forgotten));
    assert!(forgotten.remove_if_empty().unwrap());
}

#[test]
#[ignore = "run by another test as a process of its own"]
#[expect(clippy::print_stdout, reason = "tells the other test")]
fn role_daemon() {
    if !support::is_role() {
        return;
    }
    let group = RunGroup::named(&std::env::var("GROUP").unwrap()).unwrap();
    let mut reaper = Reaper::spawn(role("role_reaper")).unwrap();
    reaper.track(&group).unwrap();
    println!("tracking");
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
}

#[test]
#[ignore = "run by another test as a process of its own"]
fn role_reaper() {
    if !support::is_role() {
        return;
    }
    reaper_main(std::io::stdin()).unwrap();
}

#[test]
#[ignore = "run by another test as a process of its own"]
fn role_intercepts_by_group() {
    if !support::is_role() {
        return;
    }
    assert_eq!(cgroup::mount_point().unwrap(), std::path::Path::new("/sys/fs/cgroup"));
    programs_in_a_group_are_intercepted_and_others_not();
}
