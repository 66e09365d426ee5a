//! The relay as packaging/multiway-relay.service runs it.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use multiway_netlab::skip_without_lab;

use crate::bond_world::{BondWorld, EXCHANGE_PORT, Ends, Exchange, origin_is_content};
use crate::support::{PATIENCE, run, skip_without_programs, wait_until};

/// An account that owns nothing.
const NOBODY: u32 = 65534;

fn packaging() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging")
}

/// What the relay's unit says under this name.
fn setting(name: &str) -> Result<String> {
    let unit = fs::read_to_string(packaging().join("multiway-relay.service"))?;
    let start = format!("{name}=");
    let value = unit.lines().find_map(|line| line.strip_prefix(&start)).map(str::to_owned);
    value.with_context(|| format!("the unit has no {name}"))
}

#[test]
fn systemd_has_no_objection_to_the_units() -> Result<()> {
    skip_without_programs!("systemd-analyze");
    let directory = tempfile::tempdir()?;
    for unit in ["multiway.service", "multiway-relay.service"] {
        // The one thing that it would miss before the package is installed.
        let text = fs::read_to_string(packaging().join(unit))?.replace("/usr/bin/multiway", "/bin/true");
        let file = directory.path().join(unit);
        fs::write(&file, text)?;
        let verified = run(Command::new("systemd-analyze").args(["verify", "--man=no"]).arg(&file))?;
        let said = String::from_utf8_lossy(&verified.stderr);
        ensure!(verified.status.success() && said.trim().is_empty(), "{unit}: {said}");
    }
    Ok(())
}

/// An account of its own with one capability and none to gain, and a file system that cannot be written to but for
/// the state. What systemd does by seccomp filters is not tried here.
#[test]
fn a_relay_with_what_its_unit_leaves_it_works() -> Result<()> {
    skip_without_lab!();
    skip_without_programs!("setpriv", "unshare");
    let mut bond = BondWorld::build("")?;
    bond.relay.kill()?;
    let state = bond.relay.path("state");
    fs::remove_dir_all(&state)?;
    fs::create_dir(&state)?;
    fs::set_permissions(
        &state,
        Permissions::from_mode(u32::from_str_radix(&setting("StateDirectoryMode")?, 8)?),
    )?;
    chown(&state, Some(NOBODY), Some(NOBODY))?;
    // Of the test's own, which the relay has to pass.
    fs::set_permissions(bond.world.path("."), Permissions::from_mode(0o711))?;
    fs::write(bond.relay.path("multiway"), "")?;
    let notify = bond.world.path("notify");
    let manager = UnixDatagram::bind(&notify)?;
    manager.set_read_timeout(Some(PATIENCE))?;
    fs::set_permissions(&notify, Permissions::from_mode(0o777))?;

    let capability = setting("AmbientCapabilities")?.replace("CAP_", "").to_lowercase();
    ensure!(setting("CapabilityBoundingSet")?.to_lowercase() == format!("cap_{capability}"));
    for (name, value) in [("NoNewPrivileges", "yes"), ("ProtectSystem", "strict"), ("Type", "notify")] {
        ensure!(setting(name)? == value, "the test does not know this {name}");
    }
    let script = format!(
        "mount --bind state state; mount --bind \"$1\" multiway; shift; mount -o remount,ro,bind /; umask {}
         exec setpriv --reuid {NOBODY} --regid {NOBODY} --clear-groups --no-new-privs \
         --bounding-set=-all,+{capability} --inh-caps=-all,+{capability} --ambient-caps=-all,+{capability} \
         env HOME=/ NOTIFY_SOCKET={} ./multiway \"$@\"",
        setting("UMask")?,
        notify.display()
    );
    bond.relay.run_under(&["unshare", "-m", "sh", "-ec", &script, "sh"])?;
    let mut told = [0; 4096];
    let length = manager.recv(&mut told).context("the service manager hears nothing")?;
    ensure!(String::from_utf8_lossy(&told[..length]).contains("READY=1"));
    let process = bond.relay.process().child().id();
    let status = fs::read_to_string(format!("/proc/{process}/status"))?;
    ensure!(status.contains(&format!("Uid:\t{NOBODY}\t{NOBODY}")), "{status}");

    // Its operator is root.
    let invite = bond.relay.invite(&["--name", "ada"])?;
    bond.join(&invite)?;
    bond.start_daemon()?;
    let exchange = Exchange { ends: Ends::DeviceFirst, up: 300_000, down: 600_000 };
    exchange.perform(&bond.socks("files.example", EXCHANGE_PORT)?)?;
    origin_is_content(&bond, 1)?;
    let mut revoke = bond.relay.command(&["revoke", "ada"]);
    ensure!(run(&mut revoke)?.status.success());
    wait_until("the plain network", || bond.who().is_ok_and(|who| !bond.relay.is(who)))?;
    wait_until("the end of the session", || {
        bond.relay.metric("sessions").is_ok_and(|sessions| sessions == 0)
    })?;
    let ended = bond.relay.process().terminate()?;
    ensure!(ended.success(), "{ended}: {}", bond.relay.log());
    for file in fs::read_dir(&state)? {
        let file = file?;
        ensure!(file.metadata()?.uid() == NOBODY, "{} is not the relay's", file.path().display());
    }
    ensure!(state.join("usage.json").exists(), "no usage was written");
    Ok(())
}
