//! Origins that do wrong things, on one path or on both: the bytes are right, or the failure is seen.

use std::net::{IpAddr, SocketAddr};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use multiway_api::EventDetail;
use multiway_core::paths::PathKind;
use multiway_linksim::{LinkSpec, Scenario, ServerSpec, mbit};
use multiway_netlab::hostile::{HostileOrigin, HostileSpec, Misdeed, SeenRequest};
use multiway_netlab::{Network, skip_without_lab};

use crate::support::{World, output, run, same, skip_without_programs};

const OBJECT_BYTES: u64 = 1_500_000;

/// Downloads at once; each has an origin of its own.
const AT_ONCE: usize = 8;

/// A download that takes longer has failed, and its user has seen it.
const SECONDS_TO_FAIL: &str = "12";

/// The same for one that has to succeed, on a machine that is busy with other things.
const SECONDS_TO_SUCCEED: &str = "60";

/// One is asked for on all paths at once, the other first as the client asks.
const FILES: [&str; 2] = ["file.bin", "file.dat"];

/// Wi-Fi comes first whatever was measured, and LTE helps with everything. With `fast` the order would
/// follow the estimates, which these origins spoil and the load of eight downloads turns round.
const WIFI_FIRST: &str = "preference = \"thrifty\"\n[paths.override.wwan0]\nmetered = false\n";

/// `wifi` in Mbit/s.
fn world(wifi: u64) -> Result<World> {
    let link = |rate, milliseconds| LinkSpec::symmetric(mbit(rate), Duration::from_millis(milliseconds));
    let scenario = Scenario::new("hostile origins")
        .path("wlan0", PathKind::Wifi, link(wifi, 6))
        .path("wwan0", PathKind::Cellular, link(100, 10))
        .server(ServerSpec::new("origin"));
    let mut world = World::build(&scenario)?;
    world.start_daemon(WIFI_FIRST, &[])?;
    Ok(world)
}

/// An origin on the internet at an address, and so with a memory of its marks, of its own.
fn origin_at(network: &Network, address: [u8; 4]) -> Result<HostileOrigin> {
    let address = IpAddr::from(address);
    network.internet().ip(&format!("addr add {address}/32 dev lo"))?;
    let spec = HostileSpec::serving(OBJECT_BYTES).listen(SocketAddr::new(address, 80));
    network.internet().run(|| HostileOrigin::start(&spec))
}

/// Where an origin misbehaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Where {
    /// On the path that is preferred, which is the one that a program alone would use.
    First,
    Second,
    Both,
}

/// Whether a download through the daemon has to succeed.
///
/// The extra path never harms. What RFC 9110 allows never harms either; and of the first path no more is
/// expected than what a program would get without the daemon.
fn must_succeed(misdeed: Misdeed, place: Where) -> bool {
    match misdeed {
        // No program follows a redirection for ever, and none can do without any answer.
        Misdeed::RedirectLoop => place == Where::Second,
        // A second for each head: right, but not within a test's patience.
        Misdeed::TricklesHead => place == Where::Second,
        _ => place == Where::Second || misdeed.description().ends_with("Legal."),
    }
}

/// Whether a path was asked for the object's beginning, as a path that helps only never is.
///
/// The second path is when the first does not answer in time, as on a machine that is busy with other things.
/// Then it is the second that a program would have used, and no more is expected of it than of a first one.
fn has_begun_on(origin: &HostileOrigin, path: IpAddr) -> bool {
    origin.requests().iter().any(|request| request.client == path && begins(request))
}

fn begins(request: &SeenRequest) -> bool {
    request.range.as_ref().is_none_or(|range| range.starts_with("bytes=0-"))
}

/// Downloads with curl through the proxy and says what is wrong with what came; where the misdeed was, as it
/// turned out.
fn judge(
    world: &World,
    proxy: &str,
    origin: &HostileOrigin,
    misdeed: Misdeed,
    place: Where,
    file: &str,
) -> Result<Where> {
    let path = |index: usize| IpAddr::from(world.network.paths()[index].device_address());
    let url = match place {
        Where::First => origin.url_on(misdeed, path(0)),
        Where::Second => origin.url_on(misdeed, path(1)),
        Where::Both => origin.url(misdeed),
    };
    let url = url.replace("file.bin", file);
    let seconds = if must_succeed(misdeed, place) { SECONDS_TO_SUCCEED } else { SECONDS_TO_FAIL };
    let arguments = ["-sSL", "--max-redirs", "5", "-m", seconds, "-x", proxy, "-w", "%{stderr}%{http_code}"];
    let found = run(world.command("curl").args(arguments).arg(&url))?;
    let said = String::from_utf8_lossy(&found.stderr);
    let succeeded = found.status.success() && said.ends_with("200");
    let place = if place == Where::Second && has_begun_on(origin, path(1)) { Where::First } else { place };
    if !can_be_judged(misdeed, place, file) {
        return Ok(place);
    }
    if !succeeded {
        ensure!(!must_succeed(misdeed, place), "it failed: {said}");
        return Ok(place);
    }
    match misdeed {
        Misdeed::CaptivePortal if place != Where::Second && found.stdout.starts_with(b"<!doctype") => {
            Ok(place)
        }
        Misdeed::OtherVersion | Misdeed::OtherVersionOtherEtag | Misdeed::OtherVersionNoEtag
            if found.stdout == origin.other_version() =>
        {
            Ok(place)
        }
        _ => same(&found.stdout, origin.bytes()).map(|()| place),
    }
}

/// Ranges that lie about their place are another version to whoever asks for ranges only.
fn can_be_judged(misdeed: Misdeed, place: Where, file: &str) -> bool {
    misdeed != Misdeed::ShiftedBytes || place == Where::Second || file == FILES[1]
}

/// Every misdeed, for both files.
fn try_all(place: Where, network_number: u8) -> Result<()> {
    let world = world(100)?;
    let proxy = format!("http://{}", world.proxy()?);
    let cases: Vec<(u8, Misdeed, &str)> = (1..)
        .zip(Misdeed::ALL.iter().flat_map(|&misdeed| FILES.map(|file| (misdeed, file))))
        .filter(|(_, (misdeed, file))| can_be_judged(*misdeed, place, file))
        .map(|(number, (misdeed, file))| (number, misdeed, file))
        .collect();
    let next = AtomicUsize::new(0);
    let failures = Mutex::new(Vec::new());
    let as_placed = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                while let Some(&(number, misdeed, file)) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let tried = origin_at(&world.network, [10, 98, network_number, number])
                        .and_then(|origin| judge(&world, &proxy, &origin, misdeed, place, file));
                    as_placed.fetch_add(
                        usize::from(tried.as_ref().is_ok_and(|&found| found == place)),
                        Ordering::Relaxed,
                    );
                    if let Err(error) = tried {
                        let about = format!("10.98.{network_number}.{number}");
                        let log = world.daemon_log();
                        let log: Vec<&str> = log.lines().filter(|line| line.contains(&about)).collect();
                        let failure =
                            format!("{misdeed} on {place:?}, {file}: {error:#}\n{}", log.join("\n"));
                        failures.lock().expect("nobody panics while holding it").push(failure);
                    }
                }
            });
        }
    });
    let failures = failures.into_inner().expect("nobody panics while holding it");
    ensure!(failures.is_empty(), "{}", failures.join("\n"));
    let as_placed = as_placed.into_inner();
    ensure!(as_placed * 2 > cases.len(), "{as_placed} of {} downloads began where they should", cases.len());
    // The daemon is well.
    world.status().map(drop)
}

#[test]
fn misdeeds_on_the_second_path_never_harm() -> Result<()> {
    skip_without_lab!();
    skip_without_programs!("curl");
    try_all(Where::Second, 2)
}

#[test]
fn misdeeds_on_the_first_path_never_bring_wrong_bytes() -> Result<()> {
    skip_without_lab!();
    skip_without_programs!("curl");
    try_all(Where::First, 1)
}

#[test]
fn misdeeds_on_both_paths_never_bring_wrong_bytes() -> Result<()> {
    skip_without_lab!();
    skip_without_programs!("curl");
    try_all(Where::Both, 3)
}

#[test]
fn another_version_on_one_path_is_told_and_remembered() -> Result<()> {
    skip_without_lab!();
    skip_without_programs!("curl");
    // So slow that there is much to do for the other path.
    let world = world(10)?;
    let proxy = format!("http://{}", world.proxy()?);
    let lte = world.network.path("wwan0");
    let cases = [
        (1, Misdeed::OtherVersion, "file.bin"),
        (2, Misdeed::OtherVersion, "file.dat"),
        (3, Misdeed::OtherVersionOtherEtag, "file.bin"),
        (4, Misdeed::OtherVersionNoEtag, "file.dat"),
    ];
    let mut begun_on_lte = 0;
    // Three networks of origins, since on a busy machine a download may begin on the second path.
    for (network, (number, misdeed, file)) in (4..7).flat_map(|n| cases.map(|case| (n, case))) {
        let origin = origin_at(&world.network, [10, 98, network, number])?;
        let address = origin.addresses()[0].ip().to_string();
        let url = origin.url_on(misdeed, lte.device_address().into()).replace("file.bin", file);
        let get = || output(world.command("curl").args(["-sSf", "-x", &proxy, &url]));
        let first = get()?;
        if has_begun_on(&origin, lte.device_address().into()) {
            begun_on_lte += 1;
            continue;
        }
        same(&first, origin.bytes()).with_context(|| format!("{misdeed}, {file}"))?;
        let lte = IpAddr::from(lte.device_address());
        let over_lte = || {
            let requests = origin.requests();
            requests.iter().filter(|request| request.client == lte && !begins(request)).count()
        };
        let asked = over_lte();
        ensure!(asked > 0, "{misdeed}, {file}: the second path was not tried");
        let events = world.status()?.events;
        let told = events.iter().any(|event| match &event.detail {
            EventDetail::Inconsistent { host, interface, .. } => *host == address && interface == "wwan0",
            EventDetail::FellBack { host, interface, .. } => {
                *host == address && interface.as_deref() == Some("wwan0")
            }
            _ => false,
        });
        ensure!(told, "{misdeed}, {file}: {events:?}");
        same(&get()?, origin.bytes())?;
        ensure!(over_lte() == asked, "{misdeed}, {file}: the path is asked again");
    }
    ensure!(begun_on_lte <= cases.len(), "{begun_on_lte} downloads began on the second path");
    Ok(())
}
