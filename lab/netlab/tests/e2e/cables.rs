//! Networks that fail and come back while a file is on its way.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use multiway_linksim::ServerSpec;
use multiway_netlab::skip_without_lab;

use crate::support::{World, same, skip_without_programs, wait_until, wifi_and_lte};

/// At 50 Mbit/s in all some one and a half seconds.
const FILE: &str = "9MB.bin";

fn world() -> Result<World> {
    World::with_daemon(&wifi_and_lte(ServerSpec::new("origin").file(FILE, 9_000_000)))
}

/// An intercepted curl that is under way on both paths, and when it began.
struct Download<'a> {
    world: &'a World,
    curl: Child,
}

impl<'a> Download<'a> {
    fn start(world: &'a World) -> Result<Self> {
        Self::start_with(world, world.intercepted("curl"))
    }

    fn start_with(world: &'a World, mut curl: Command) -> Result<Self> {
        curl.args(["-sSf", "-o", "found", &world.network.server("origin").url(FILE)]);
        let curl = curl.stdin(Stdio::null()).stderr(Stdio::piped()).spawn()?;
        wait_until("bytes on both paths", || world.each_path_carried(500_000).is_ok())?;
        Ok(Self { world, curl })
    }

    /// Waits for its end; the file must be right.
    fn finish(self) -> Result<()> {
        let output = self.curl.wait_with_output()?;
        ensure!(
            output.status.success(),
            "curl ended with {}: {}\n{}",
            output.status,
            String::from_utf8_lossy(&output.stderr),
            self.world.daemon_log()
        );
        same(&self.world.read("found")?, &self.world.content(FILE))
    }
}

/// Runs a download during which `accident` happens.
fn survives(accident: impl FnOnce(&World) -> Result<()>) -> Result<World> {
    let world = world()?;
    let download = Download::start(&world)?;
    accident(&world)?;
    download.finish()?;
    Ok(world)
}

fn pause(milliseconds: u64) {
    std::thread::sleep(Duration::from_millis(milliseconds));
}

#[test]
fn a_network_that_falls_silent_is_done_without() -> Result<()> {
    skip_without_lab!();
    skip_without_programs!("curl");
    for interface in ["wlan0", "wwan0"] {
        let world = world()?;
        let download = Download::start(&world)?;
        world.network.path(interface).link().set_blackhole(true);
        let started = Instant::now();
        download.finish().context(interface)?;
        // The other path alone would need five seconds at the most.
        ensure!(started.elapsed() < Duration::from_secs(10), "{interface}: {:?}", started.elapsed());
    }
    Ok(())
}

#[test]
fn a_network_that_comes_back_is_used_again() -> Result<()> {
    skip_without_lab!();
    skip_without_programs!("curl");
    let mut before = 0;
    let world = survives(|world| {
        let wifi = world.network.path("wlan0").link();
        wifi.set_blackhole(true);
        pause(400);
        before = world.carried("wlan0");
        wifi.set_blackhole(false);
        Ok(())
    })?;
    ensure!(world.carried("wlan0") > before + 200_000, "nothing came over Wi-Fi after it was back");
    Ok(())
}

#[test]
fn a_cable_is_pulled_and_put_back() -> Result<()> {
    skip_without_lab!();
    skip_without_programs!("curl");
    let mut before = 0;
    let world = survives(|world| {
        let wifi = world.network.path("wlan0");
        wifi.disconnect()?;
        pause(400);
        before = world.carried("wlan0");
        wifi.reconnect()
    })?;
    ensure!(world.carried("wlan0") > before + 200_000, "nothing came over Wi-Fi after it was back");
    Ok(())
}

#[test]
fn a_carrier_is_lost_for_a_moment() -> Result<()> {
    skip_without_lab!();
    skip_without_programs!("curl");
    survives(|world| {
        let wifi = world.network.path("wlan0").link();
        wifi.set_carrier(false);
        pause(300);
        wifi.set_carrier(true);
        Ok(())
    })
    .map(drop)
}

/// By the proxy: the kernel lets an intercepted program speak from the address that it chose first, and
/// when that is gone its connection is dead, as it would be without the daemon.
#[test]
fn an_address_is_taken_away() -> Result<()> {
    skip_without_lab!();
    skip_without_programs!("curl");
    let world = world()?;
    let mut curl = world.command("curl");
    curl.args(["-x", &format!("http://{}", world.proxy()?)]);
    let download = Download::start_with(&world, curl)?;
    world.network.path("wlan0").remove_addresses()?;
    download.finish()
}

#[test]
fn every_network_is_silent_for_two_seconds() -> Result<()> {
    skip_without_lab!();
    skip_without_programs!("curl");
    survives(|world| {
        let silence = |is_silent| {
            world.network.paths().iter().for_each(|path| path.link().set_blackhole(is_silent));
        };
        silence(true);
        pause(2000);
        silence(false);
        Ok(())
    })
    .map(drop)
}

#[test]
fn every_network_is_disconnected_for_two_seconds() -> Result<()> {
    skip_without_lab!();
    skip_without_programs!("curl");
    survives(|world| {
        world.network.paths().iter().try_for_each(|path| path.disconnect())?;
        pause(2000);
        world.network.paths().iter().try_for_each(|path| path.reconnect())
    })
    .map(drop)
}

#[test]
fn a_server_that_refuses_on_one_path_does_not_matter() -> Result<()> {
    skip_without_lab!();
    skip_without_programs!("curl");
    for interface in ["wlan0", "wwan0"] {
        let world = world()?;
        let client = world.network.path(interface).device_address();
        world.network.internet().nft(&format!(
            "table ip lab {{ chain in {{ type filter hook input priority 0; \
             ip saddr {client} tcp dport 80 reject with tcp reset; }}; }}"
        ))?;
        let mut curl = world.intercepted("curl");
        curl.args(["-sSf", &world.network.server("origin").url(FILE)]);
        same(&crate::support::output(&mut curl)?, &world.content(FILE)).context(interface)?;
    }
    Ok(())
}

#[test]
fn a_server_that_restarts_in_the_middle_is_found_again() -> Result<()> {
    skip_without_lab!();
    skip_without_programs!("curl");
    survives(|world| {
        let internet = world.network.internet();
        // All of its connections are reset, and new ones for a while.
        internet.nft(
            "table ip lab { chain in { type filter hook input priority 0; tcp dport 80 reject with tcp reset; }; }",
        )?;
        pause(600);
        internet.nft("delete table ip lab")
    })
    .map(drop)
}
