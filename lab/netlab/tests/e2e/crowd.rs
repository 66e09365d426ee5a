//! Many programs at once.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use multiway_core::paths::PathKind;
use multiway_linksim::{LinkSpec, Scenario, ServerSpec, mbit};
use multiway_netlab::skip_without_lab;

use crate::support::{FAST, World, same, skip_without_programs};
use crate::wire::{Wire, status};

const CLIENTS: usize = 200;

/// All are done after some five seconds on an idle machine; who waits longer than this was starved.
const PATIENCE: Duration = Duration::from_secs(25);

/// The program itself, its threads' heaps, and 256 KiB and buffers for each of the few that are split.
const MOST_RESIDENT_KIB: u64 = 256 * 1024;

#[test]
fn two_hundred_downloads_at_once_are_all_right() -> Result<()> {
    skip_without_lab!();
    let fast = |milliseconds| LinkSpec::symmetric(mbit(100), Duration::from_millis(milliseconds));
    let (small, medium) = ("small.bin", "medium.iso");
    let scenario = Scenario::new("a crowd")
        .path("wlan0", PathKind::Wifi, fast(20))
        .path("wwan0", PathKind::Cellular, fast(40))
        .server(ServerSpec::new("origin").file(small, 50_000).file(medium, 800_000));
    let mut world = World::build(&scenario)?;
    world.start_daemon(FAST, &["--intercept-user", "0"])?;
    let server = world.network.server("origin").address();
    let (small, medium) = ((small, world.content(small)), (medium, world.content(medium)));
    let download = |number: usize| -> Result<Duration> {
        let started = Instant::now();
        let (file, expected) = if number.is_multiple_of(4) { &medium } else { &small };
        let mut wire = Wire::connect(world.network.device(), SocketAddr::new(server.into(), 80))?;
        wire.send(format!("GET /{file} HTTP/1.1\r\nHost: {server}\r\nConnection: close\r\n\r\n").as_bytes())?;
        let (head, body) = wire.read_answer().with_context(|| format!("{file}, number {number}"))?;
        ensure!(status(&head)? == 200, "{head}");
        same(&body, expected)?;
        wire.expect_end()?;
        Ok(started.elapsed())
    };
    let times = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS)
            .map(|number| {
                scope.spawn({
                    let download = &download;
                    move || download(number)
                })
            })
            .collect();
        let joined = clients.into_iter().map(|client| client.join().expect("it does not panic"));
        joined.collect::<Result<Vec<Duration>>>()
    })?;
    let slowest = times.into_iter().max().context("there are some")?;
    ensure!(slowest < PATIENCE, "the slowest took {slowest:?}");

    let process = world.daemon().child().id();
    let memory = std::fs::read_to_string(format!("/proc/{process}/status"))?;
    let most = memory.lines().find_map(|line| line.strip_prefix("VmHWM:")).context("no VmHWM")?;
    let most: u64 = most.trim().trim_end_matches(" kB").parse()?;
    ensure!(most < MOST_RESIDENT_KIB, "the daemon held {most} KiB");
    crate::support::wait_until("the end of all flows", || {
        world.status().is_ok_and(|status| status.flows.is_empty())
    })
}

/// What became of a download for which there may have been no descriptor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Served {
    Whole,
    /// An answer in the proxy's own name.
    Told,
}

/// Downloads that together need more descriptors than there are.
const BEYOND_DESCRIPTORS: usize = 60;

/// Some for the daemon itself, and for about twenty of these downloads.
const FEW_DESCRIPTORS: &str = "--nofile=100:100";

#[test]
fn without_descriptors_clients_are_told_and_all_is_well_afterwards() -> Result<()> {
    skip_without_lab!();
    skip_without_programs!("prlimit");
    let name = "small.dat";
    let slow = |milliseconds| LinkSpec::symmetric(mbit(20), Duration::from_millis(milliseconds));
    let scenario = Scenario::new("few descriptors")
        .path("wlan0", PathKind::Wifi, slow(20))
        .path("wwan0", PathKind::Cellular, slow(40))
        .server(ServerSpec::new("origin").file(name, 200_000));
    let mut world = World::build(&scenario)?;
    world.start_daemon_under(&["prlimit", FEW_DESCRIPTORS], FAST, &[])?;
    let (proxy, server) = (world.proxy()?.parse()?, world.network.server("origin").address());
    let expected = world.content(name);
    let download = || -> Result<Served> {
        let mut wire = Wire::connect(world.network.device(), proxy)?;
        let request =
            format!("GET http://{server}/{name} HTTP/1.1\r\nHost: {server}\r\nConnection: close\r\n\r\n");
        wire.send(request.as_bytes())?;
        let (head, body) = wire.read_answer()?;
        let status = status(&head)?;
        if status != 200 {
            ensure!(matches!(status, 502 | 503), "{head}");
            ensure!(
                String::from_utf8_lossy(&body).contains("open files"),
                "{}",
                String::from_utf8_lossy(&body)
            );
            return Ok(Served::Told);
        }
        same(&body, &expected)?;
        Ok(Served::Whole)
    };
    let outcomes = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..BEYOND_DESCRIPTORS).map(|_| scope.spawn(download)).collect();
        let joined = clients.into_iter().map(|client| client.join().expect("it does not panic"));
        joined.collect::<Result<Vec<Served>>>()
    })?;
    let told = outcomes.iter().filter(|&&outcome| outcome == Served::Told).count();
    ensure!(told > 0, "all had the descriptors they needed, so that nothing was shown");
    ensure!(download()? == Served::Whole, "the daemon did not recover");
    Ok(())
}
