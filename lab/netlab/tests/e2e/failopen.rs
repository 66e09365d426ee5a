//! A daemon that dies leaves programs on the plain network, and nothing else.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use multiway_linksim::ServerSpec;
use multiway_netlab::skip_without_lab;

use crate::support::{FAST, World, output, run, same, skip_without_programs, wait_until, wifi_and_lte};

const FILE: &str = "8MB.bin";
const SMALL: &str = "small.bin";

/// Everything that a daemon might change on the device.
fn traces(world: &World) -> Result<String> {
    let device = world.network.device();
    let mut traces = String::new();
    for family in ["-4", "-6"] {
        traces += &device.ip(&format!("{family} rule show"))?;
        traces += &device.ip(&format!("{family} route show table all"))?;
    }
    traces += &device.ip("-br link show")?;
    traces += &String::from_utf8(output(world.command("nft").args(["list", "ruleset"]))?)?;
    Ok(traces)
}

/// Control groups of runs, on the whole machine.
fn control_groups() -> BTreeSet<PathBuf> {
    fn look(directory: &Path, found: &mut BTreeSet<PathBuf>) {
        for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                if entry.file_name().to_string_lossy().contains("multiway") {
                    found.insert(entry.path());
                }
                look(&entry.path(), found);
            }
        }
    }
    let mut found = BTreeSet::new();
    look(Path::new("/sys/fs/cgroup"), &mut found);
    found
}

fn world() -> Result<World> {
    World::build(&wifi_and_lte(ServerSpec::new("origin").file(FILE, 8_000_000).file(SMALL, 20_000)))
}

#[test]
fn after_kill_9_programs_are_on_the_plain_network_at_once() -> Result<()> {
    skip_without_lab!();
    skip_without_programs!("curl", "nft", "setpriv");
    let mut world = world()?;
    let (before, groups_before) = (traces(&world)?, control_groups());
    world.start_daemon(FAST, &["--intercept-user", "65534"])?;
    let url = |file| world.network.server("origin").url(file);
    let (large, small) = (url(FILE), url(SMALL));

    // One that is cut, and a program under run that goes on afterwards.
    let mut cut = world.as_nobody("curl");
    cut.args(["-sSf", "-o", "/dev/null", &large]).stdin(Stdio::null()).stderr(Stdio::null());
    let mut cut = cut.spawn()?;
    let mut survivor = world.intercepted("sh");
    survivor.args([
        "-c",
        "touch running; while [ ! -e go ]; do sleep 0.02; done; exec curl -sSf \"$0\"",
        &small,
    ]);
    let survivor = survivor.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
    wait_until("the transfer", || {
        world.each_path_carried(300_000).is_ok() && world.path("running").exists()
    })?;

    let killed = Instant::now();
    world.kill_daemon()?;
    let found = output(world.as_nobody("curl").args(["-sSf", "-m", "5", &small]))?;
    same(&found, &world.content(SMALL))?;
    std::fs::write(world.path("go"), "")?;
    let survived = survivor.wait_with_output()?;
    ensure!(survived.status.success());
    same(&survived.stdout, &world.content(SMALL))?;
    ensure!(!cut.wait()?.success(), "a transfer that was cut must be seen to be");
    ensure!(killed.elapsed() < Duration::from_secs(8), "it was seen only after {:?}", killed.elapsed());

    wait_until("the end of all traces", || {
        control_groups() == groups_before && traces(&world).is_ok_and(|traces| traces == before)
    })?;
    // The socket of the dead daemon harms nobody.
    let status = run(&mut world.multiway(&["status"]))?;
    ensure!(status.status.code() == Some(10), "{status:?}");
    world.start_daemon(FAST, &["--intercept-user", "65534"])?;
    same(&output(world.as_nobody("curl").args(["-sSf", &large]))?, &world.content(FILE))
}

#[test]
fn a_daemon_that_is_stopped_takes_everything_with_it() -> Result<()> {
    skip_without_lab!();
    skip_without_programs!("curl", "nft");
    let mut world = world()?;
    let (before, groups_before) = (traces(&world)?, control_groups());
    world.start_daemon(FAST, &[])?;
    let url = world.network.server("origin").url(SMALL);
    same(&output(world.intercepted("curl").args(["-sSf", &url]))?, &world.content(SMALL))?;
    ensure!(traces(&world)? != before, "interception leaves its trace while it works");
    let ended = world.daemon().terminate()?;
    ensure!(ended.success(), "{ended}: {}", world.daemon_log());
    wait_until("the end of the control groups", || control_groups() == groups_before)?;
    ensure!(traces(&world)? == before, "left behind: {}\ninstead of {before}", traces(&world)?);
    ensure!(!world.path("control.sock").exists());
    Ok(())
}

#[test]
fn a_program_waits_for_no_daemon_that_is_stopped_in_the_middle() -> Result<()> {
    skip_without_lab!();
    skip_without_programs!("curl");
    let mut world = world()?;
    world.start_daemon(FAST, &[])?;
    let mut curl = world.intercepted("curl");
    curl.args(["-sSf", "-o", "/dev/null", &world.network.server("origin").url(FILE)]);
    let mut curl = curl.stdin(Stdio::null()).stderr(Stdio::null()).spawn()?;
    wait_until("the transfer", || world.each_path_carried(300_000).is_ok())?;
    let started = Instant::now();
    world.daemon().terminate()?;
    ensure!(!curl.wait()?.success(), "it cannot have got everything");
    ensure!(started.elapsed() < Duration::from_secs(10), "{:?}", started.elapsed());
    Ok(())
}
