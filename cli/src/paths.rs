//! `multiway paths`: what there is, what is missing, and what mends it.

use multiway_api::{PathState, PathStatus, STATUS_PATH, Status};
use multiway_engine::survey::survey;

use crate::args;
use crate::client::Client;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::{output, render};

/// Shows every interface.
pub(crate) fn paths(args: &args::Paths) -> Result<(), Failure> {
    let mut paths = look()?;
    // Only a running daemon asks for portals, and only when it is configured to; others may not ask it.
    if let Ok(status) = Client::usual().get::<Status>(STATUS_PATH) {
        add_portals(&mut paths, &status.paths);
    }
    let written = if args.json { output::json_pretty(&paths) } else { output::text(&render::paths(&paths)) };
    written.map(drop)
}

/// Takes over which networks the daemon found to be behind a captive portal.
fn add_portals(paths: &mut [PathStatus], of_daemon: &[PathStatus]) {
    for path in paths.iter_mut().filter(|path| path.state == PathState::Up) {
        let is_same = |other: &&PathStatus| {
            other.interface == path.interface
                && other.addresses == path.addresses
                && other.state == PathState::Captive
        };
        if let Some(known) = of_daemon.iter().find(is_same) {
            (path.state, path.missing) = (known.state, known.missing.clone());
        }
    }
}

/// Refuses names of interfaces that are not there.
pub(crate) fn require_interfaces(names: &[String]) -> Result<(), Failure> {
    if names.is_empty() {
        return Ok(());
    }
    let there = look()?;
    let Some(unknown) = names.iter().find(|name| there.iter().all(|path| path.interface != **name)) else {
        return Ok(());
    };
    let list: Vec<String> =
        there.iter().map(|path| format!("{} ({}, {})", path.interface, path.kind, path.state)).collect();
    let failure = Failure::new(Exit::Usage, format!("there is no network interface {unknown}"));
    Err(if list.is_empty() {
        failure.help("There is none but the loopback.")
    } else {
        failure.help(format!("There are: {}.", list.join(", ")))
    })
}

fn look() -> Result<Vec<PathStatus>, Failure> {
    survey().map_err(|error| Failure::new(Exit::Other, error))
}

#[cfg(test)]
mod tests {
    use multiway_api::{Missing, PathKind};

    use super::*;

    fn path(interface: &str, state: PathState) -> PathStatus {
        let missing = Missing { what: "a captive portal".into(), mend: "sign in".into() };
        PathStatus {
            interface: interface.into(),
            kind: PathKind::Wifi,
            addresses: vec!["192.0.2.1".parse().unwrap()],
            gateways: vec![],
            metered: false,
            state,
            missing: (state != PathState::Up).then_some(missing),
            rtt_ms: None,
            jitter_ms: None,
            throughput_bits_per_second: None,
            loss_ppm: None,
            bytes_today: 0,
        }
    }

    #[test]
    fn a_portal_that_the_daemon_found_is_shown_while_the_network_is_the_same() {
        let mut paths = [path("wlan0", PathState::Up), path("wlan1", PathState::Up)];
        let mut moved = path("wlan1", PathState::Captive);
        moved.addresses = vec!["198.51.100.1".parse().unwrap()];
        add_portals(&mut paths, &[path("wlan0", PathState::Captive), moved]);
        assert_eq!(paths[0].state, PathState::Captive);
        assert!(paths[0].missing.is_some());
        assert_eq!(paths[1].state, PathState::Up);
        let mut down = [path("wlan0", PathState::Down)];
        add_portals(&mut down, &[path("wlan0", PathState::Captive)]);
        assert_eq!(down[0].state, PathState::Down);
    }
}
