//! The clock that goes on during sleep, told apart from the one that does not by a time namespace.
#![allow(clippy::unwrap_used, missing_docs, reason = "a test fails by panicking")]
#![allow(clippy::print_stderr, reason = "a skipped test must say so")]

use std::process::Command;
use std::time::Duration;

use multiway_edge::clock::since_boot;

/// How much longer the device has slept inside than outside.
const SLEPT: u64 = 1_000_000;

/// What proc(5) says: "uptime of the system, including time spent in suspend".
fn uptime() -> Duration {
    let text = std::fs::read_to_string("/proc/uptime").unwrap();
    Duration::from_secs_f64(text.split(' ').next().unwrap().parse().unwrap())
}

#[test]
fn the_clock_is_that_of_the_uptime() {
    // The file has hundredths of a second.
    let (before, clock, after) = (uptime(), since_boot(), uptime() + Duration::from_millis(10));
    assert!(before <= clock && clock <= after, "{before:?} {clock:?} {after:?}");
}

#[test]
fn time_asleep_counts() {
    let offset = SLEPT.to_string();
    let inside = |arguments: &[&str]| {
        Command::new("unshare").args(["--fork", "--time", "--boottime", &offset]).args(arguments).output()
    };
    let possible = inside(&["true"]);
    if !possible.as_ref().is_ok_and(|output| output.status.success()) {
        eprintln!("SKIPPED: no time namespace can be made here ({possible:?}); run as root");
        return;
    }
    let own = std::env::current_exe().unwrap();
    let output = inside(&[own.to_str().unwrap(), "--exact", "the_clock_is_that_of_the_uptime"]).unwrap();
    assert!(output.status.success(), "{output:?}");
}
