//! `multiway get`, without a daemon.

use std::process::{Child, Output, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use multiway_api::GetSummary;
use multiway_linksim::{Scenario, ServerSpec};
use multiway_netlab::hostile::{HostileOrigin, HostileSpec, Misdeed};
use multiway_netlab::{NginxSpec, skip_without_lab};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::support::{World, output, run, same, skip_without_programs, tls, wait_until, wifi_and_lte};

const FILE: &str = "4MB.bin";

/// As documented in docs/exit-codes.md.
mod exit {
    pub(super) const USAGE: i32 = 2;
    pub(super) const UNREACHABLE: i32 = 3;
    pub(super) const HTTP_STATUS: i32 = 4;
    pub(super) const VERIFICATION: i32 = 5;
    pub(super) const TLS: i32 = 6;
    pub(super) const DISK: i32 = 7;
    pub(super) const INTERRUPTED: i32 = 130;
}

fn scenario() -> Scenario {
    wifi_and_lte(ServerSpec::new("origin").file(FILE, 4_000_000).file("12MB.bin", 12_000_000).file("tiny", 5))
}

fn get(world: &World, arguments: &[&str]) -> Result<Output> {
    run(world.multiway(&["get", "--preference", "fast"]).args(arguments))
}

/// A download that must succeed, and its summary.
fn summary(world: &World, arguments: &[&str]) -> Result<GetSummary> {
    let printed = output(world.multiway(&["get", "--preference", "fast", "--json"]).args(arguments))?;
    Ok(serde_json::from_slice(&printed)?)
}

/// A download that must fail with this code and say this, and leave nothing under the file's name.
fn fails(world: &World, file: &str, arguments: &[&str], code: i32, says: &str) -> Result<()> {
    let failed = get(world, arguments)?;
    let message = String::from_utf8_lossy(&failed.stderr);
    ensure!(failed.status.code() == Some(code), "{arguments:?} ended with {}: {message}", failed.status);
    ensure!(message.contains(says), "{arguments:?}: {says:?} is missing in: {message}");
    ensure!(!world.path(file).exists(), "{arguments:?} left {file}");
    Ok(())
}

#[test]
fn a_file_comes_over_both_paths_and_is_named_after_its_url() -> Result<()> {
    skip_without_lab!();
    let world = World::build(&scenario())?;
    let told = summary(&world, &["http://files.example/4MB.bin"])?;
    same(&world.read(FILE)?, &world.content(FILE))?;
    ensure!(told.bytes == 4_000_000 && told.verification.boundaries_checked > 0, "{told:?}");
    ensure!(told.paths.iter().all(|path| path.bytes > 800_000), "{told:?}");
    ensure!(!world.path("4MB.bin.part").exists());
    // From an empty object to one that is too small to be split.
    std::fs::write(root(&world).join("empty"), "")?;
    for file in ["tiny", "empty"] {
        summary(&world, &[&format!("http://files.example/{file}")])?;
        same(&world.read(file)?, &std::fs::read(root(&world).join(file))?)?;
    }
    Ok(())
}

#[test]
fn a_file_has_its_name_only_when_the_disk_has_its_bytes() -> Result<()> {
    skip_without_lab!();
    skip_without_programs!("strace");
    let world = World::build(&scenario())?;
    let url = world.network.server("origin").url(FILE);
    let mut traced = world.command("strace");
    traced.args(["-f", "-y", "-o", "calls", "-e", "trace=fsync,fdatasync,rename,renameat,renameat2"]);
    output(traced.arg(crate::support::multiway()).args(["get", "-q", &url]))?;
    let calls = String::from_utf8(world.read("calls")?)?;
    let place = |what: &str, parts: &[&str]| {
        let is_it = |line: &str| parts.iter().all(|part| line.contains(part));
        calls.lines().position(is_it).with_context(|| format!("no {what} in:\n{calls}"))
    };
    let home = format!("{}>)", world.path("").canonicalize()?.display());
    let bytes = place("sync of the bytes", &["sync(", ".part>"])?;
    let name = place("rename", &["rename", ".part"])?;
    let directory = place("sync of the directory", &["fsync(", &home])?;
    ensure!(bytes < name && name < directory, "{calls}");
    Ok(())
}

fn root(world: &World) -> std::path::PathBuf {
    world.network.server("origin").nginx().expect("it has files").root()
}

#[test]
fn an_ipv6_address_and_a_percent_encoded_name_are_understood() -> Result<()> {
    skip_without_lab!();
    let world = World::build(&scenario())?;
    std::fs::copy(root(&world).join(FILE), root(&world).join("a b+ü%.bin"))?;
    let server = world.network.server("origin").address_v6();
    summary(&world, &[&format!("http://[{server}]/a%20b+%C3%BC%25.bin?x=1&y=%2F")])?;
    same(&world.read("a b+ü%.bin")?, &world.content(FILE))?;
    world.each_path_carried(800_000)
}

#[test]
fn https_is_split_with_the_right_certificate_and_refused_without() -> Result<()> {
    skip_without_lab!();
    let world = World::build_with(&scenario(), tls)?;
    let url = "https://files.example/4MB.bin";
    fails(&world, FILE, &[url], exit::TLS, "certificate")?;
    ensure!(!world.path("4MB.bin.part").exists(), "an empty partial file is left");
    // For another name.
    let by_address = format!("https://{}/4MB.bin", world.network.server("origin").address());
    fails(&world, FILE, &["--cacert", "certificate.pem", &by_address], exit::TLS, "certificate")?;
    fails(&world, FILE, &["--cacert", "missing.pem", url], exit::TLS, "missing.pem")?;
    summary(&world, &["--cacert", "certificate.pem", url])?;
    same(&world.read(FILE)?, &world.content(FILE))?;
    world.each_path_carried(800_000)
}

#[test]
fn redirects_are_followed_to_their_end() -> Result<()> {
    skip_without_lab!();
    let scenario = scenario().server(ServerSpec::new("other").known_as("other.example"));
    let world = World::build(&scenario)?;
    let other = world.network.server("other");
    let _nginx = NginxSpec::new()
        .listen(std::net::SocketAddr::new(other.public_address().into(), 80))
        .directives("location = /far { return 302 http://files.example/4MB.bin; }")
        .directives("location = /near { return 301 far; }")
        .directives("location = /loop { return 307 /loop; }")
        .directives("location = /ftp { return 302 ftp://files.example/; }")
        .directives("location = /file { return 302 file:///etc/passwd; }")
        .directives("location = /credentials { return 302 http://me:secret@files.example/; }")
        .directives("location = /nowhere { return 302 http://[; }")
        .start(world.network.lab(), other.host())?;
    summary(&world, &["-o", "found", "http://other.example/near"])?;
    same(&world.read("found")?, &world.content(FILE))?;
    fails(&world, "loop", &["http://other.example/loop"], exit::HTTP_STATUS, "redirected too often")?;
    // The user asked for nothing wrong: the server did wrong.
    for (file, says) in [
        ("ftp", "only http and https"),
        ("file", "only http and https"),
        ("credentials", "not sent"),
        ("nowhere", "invalid"),
    ] {
        fails(&world, file, &[&format!("http://other.example/{file}")], exit::HTTP_STATUS, says)?;
        ensure!(!world.path(&format!("{file}.part")).exists(), "{file}.part is left");
    }
    ensure!(!world.path("loop.part").exists(), "a partial file is left");
    Ok(())
}

#[test]
fn what_fails_is_told_with_its_code_and_leaves_nothing() -> Result<()> {
    skip_without_lab!();
    let world = World::build(&scenario())?;
    let server = world.network.server("origin").address();
    let missing = format!("http://{server}/missing.bin");
    fails(&world, "missing.bin", &[&missing], exit::HTTP_STATUS, "404")?;
    fails(&world, "f", &[&format!("http://{server}:81/f")], exit::UNREACHABLE, "refused")?;
    fails(&world, "f", &["http://no-such-name.example/f"], exit::UNREACHABLE, "no-such-name.example")?;
    fails(&world, "f", &["--path", "wlan9", &format!("http://{server}/f")], exit::USAGE, "wlan9")?;
    for file in ["missing.bin.part", "f.part"] {
        ensure!(!world.path(file).exists(), "{file} is left");
    }
    let url = world.network.server("origin").url(FILE);
    let wrong = format!("sha256:{}", "0".repeat(64));
    fails(&world, FILE, &["--checksum", &wrong, &url], exit::VERIFICATION, "SHA-256")?;
    let digest = String::from_utf8(output(world.command("sha256sum").arg(root(&world).join(FILE)))?)?;
    let right = format!("sha256:{}", digest.split(' ').next().context("a digest")?);
    summary(&world, &["--checksum", &right, &url])?;
    same(&world.read(FILE)?, &world.content(FILE))
}

/// A download of the large file that has some of it.
fn begin(world: &World) -> Result<Child> {
    let mut command = world.plain(crate::support::multiway());
    command.args(["get", "-q", "--preference", "fast", &world.network.server("origin").url("12MB.bin")]);
    let child = command.stdin(Stdio::null()).stderr(Stdio::null()).spawn()?;
    wait_until("the first megabytes", || part_length(world) > 2_000_000)?;
    Ok(child)
}

fn part_length(world: &World) -> u64 {
    std::fs::metadata(world.path("12MB.bin.part")).map_or(0, |part| part.len())
}

#[test]
fn an_interrupted_download_goes_on_where_it_was() -> Result<()> {
    skip_without_lab!();
    let world = World::build(&scenario())?;
    let url = world.network.server("origin").url("12MB.bin");
    for signal in [Signal::SIGINT, Signal::SIGKILL] {
        let mut child = begin(&world)?;
        kill(Pid::from_raw(child.id().try_into()?), signal)?;
        let ended = child.wait()?;
        ensure!(signal == Signal::SIGKILL || ended.code() == Some(exit::INTERRUPTED), "{ended}");
        ensure!(!world.path("12MB.bin").exists(), "{signal}: half a file under its final name");
        let there = part_length(&world);
        let told = summary(&world, &["--continue", &url])?;
        // Its end is fetched again, to be compared.
        let kept = told.resumed_bytes;
        ensure!(kept <= there && there <= kept + 4096 && told.bytes == 12_000_000, "{there}: {told:?}");
        same(&world.read("12MB.bin")?, &world.content("12MB.bin")).context(signal)?;
        std::fs::remove_file(world.path("12MB.bin"))?;
    }
    Ok(())
}

#[test]
fn a_partial_file_of_something_else_is_not_gone_on_with() -> Result<()> {
    skip_without_lab!();
    let world = World::build(&scenario())?;
    let url = world.network.server("origin").url(FILE);
    let content = world.content(FILE);
    let other = crate::support::content_of(9, "other", 5_000_000);
    let partial = |bytes: &[u8]| std::fs::write(world.path("4MB.bin.part"), bytes);
    for (what, bytes) in [
        ("another file's", &other[..1_000_000]),
        ("another file's, longer than this one", &other[..]),
        ("another file's, as long as this one", &other[..4_000_000]),
        ("another file's, a byte", &other[..1]),
        ("all of it", &content[..]),
        ("all but a byte", &content[..3_999_999]),
        ("a byte", &content[..1]),
        ("nothing", &[]),
    ] {
        partial(bytes)?;
        let told = summary(&world, &["--continue", &url]).context(what)?;
        same(&world.read(FILE)?, &content).with_context(|| format!("{what}: {told:?}"))?;
        std::fs::remove_file(world.path(FILE))?;
    }
    Ok(())
}

#[test]
fn a_full_disk_is_told_and_what_came_is_kept() -> Result<()> {
    skip_without_lab!();
    let world = World::build(&scenario())?;
    std::fs::create_dir(world.path("small"))?;
    // The device has mounts of its own, which go with it.
    world.network.device().run(|| {
        nix::mount::mount(
            Some("tmpfs"),
            &world.path("small"),
            Some("tmpfs"),
            nix::mount::MsFlags::empty(),
            Some("size=1500k"),
        )
    })?;
    let url = world.network.server("origin").url(FILE);
    fails(&world, "small/f", &["-o", "small/f", &url], exit::DISK, "No space left")?;
    let there = world.network.device().run(|| std::fs::metadata(world.path("small/f.part")))?.len();
    ensure!(there > 0 && !world.network.device().run(|| world.path("small/f").exists()), "{there}");
    fails(&world, "f", &["-o", "nowhere/f", &url], exit::DISK, "nowhere/f")
}

#[test]
fn hostile_origins_never_bring_wrong_bytes() -> Result<()> {
    skip_without_lab!();
    let world = World::build(&scenario())?;
    let address = world.network.server("origin").address();
    let spec = |port| HostileSpec::serving(400_000).listen(std::net::SocketAddr::new(address.into(), port));
    let cases: Vec<_> = (8000..).zip(Misdeed::ALL.iter().copied()).collect();
    let next = std::sync::atomic::AtomicUsize::new(0);
    let failures = std::sync::Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                while let Some(&(port, misdeed)) =
                    cases.get(next.fetch_add(1, std::sync::atomic::Ordering::Relaxed))
                {
                    // Ranges that lie about their place are another version to whoever asks for ranges only.
                    if misdeed == Misdeed::ShiftedBytes {
                        continue;
                    }
                    let tried = world
                        .network
                        .internet()
                        .run(|| HostileOrigin::start(&spec(port)))
                        .and_then(|origin| judge(&world, &origin, misdeed));
                    if let Err(error) = tried {
                        failures.lock().expect("nobody panics").push(format!("{misdeed}: {error:#}"));
                    }
                }
            });
        }
    });
    let failures = failures.into_inner().expect("nobody panics");
    ensure!(failures.is_empty(), "{}", failures.join("\n"));
    Ok(())
}

fn judge(world: &World, origin: &HostileOrigin, misdeed: Misdeed) -> Result<()> {
    let file = format!("found-{misdeed}");
    let mut command = world.plain("timeout");
    command.args(["-s", "INT", "8"]).arg(crate::support::multiway());
    let got = run(command.args(["get", "-q", "--preference", "fast", "-o", &file, &origin.url(misdeed)]))?;
    let is_legal = misdeed.description().ends_with("Legal.") && misdeed != Misdeed::EtagChanges;
    if !got.status.success() {
        ensure!(!world.path(&file).exists(), "it failed and left a file");
        let said = String::from_utf8_lossy(&got.stderr);
        ensure!(!is_legal, "it failed with {}: {said}", got.status);
        return Ok(());
    }
    match misdeed {
        Misdeed::OtherVersion | Misdeed::OtherVersionOtherEtag | Misdeed::OtherVersionNoEtag => {
            same(&world.read(&file)?, origin.other_version())
        }
        Misdeed::CaptivePortal => ensure_page(&world.read(&file)?),
        _ => same(&world.read(&file)?, origin.bytes()),
    }
}

/// A portal that answers on every path in the object's place is all there is to be had.
fn ensure_page(found: &[u8]) -> Result<()> {
    ensure!(found.starts_with(b"<!doctype"), "{} bytes of what was never sent", found.len());
    Ok(())
}

#[test]
fn a_download_outlives_networks_that_fail_and_come_back() -> Result<()> {
    skip_without_lab!();
    let world = World::build(&scenario())?;
    let mut child = begin(&world)?;
    for path in world.network.paths() {
        path.disconnect()?;
    }
    std::thread::sleep(Duration::from_secs(1));
    for path in world.network.paths() {
        path.reconnect()?;
    }
    ensure!(child.wait()?.success());
    same(&world.read("12MB.bin")?, &world.content("12MB.bin"))
}
