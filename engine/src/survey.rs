//! What each interface is and lacks, in the words of the API.

use multiway_api as api;
use multiway_core::paths::{PathEstimate, PathInfo, PathKind, PathState};
use multiway_edge::watch::{self, WatchError};

/// Looks once at every interface but the loopback; needs no daemon and no privilege.
pub fn survey() -> Result<Vec<api::PathStatus>, WatchError> {
    let mut paths = watch::snapshot()?;
    paths.sort_by(|a, b| a.interface.cmp(&b.interface));
    Ok(paths.iter().map(|path| path_status(path, true, PathEstimate::default(), 0)).collect())
}

/// One path in the words of the API.
pub fn path_status(
    info: &PathInfo,
    permitted: bool,
    estimate: PathEstimate,
    bytes_today: u64,
) -> api::PathStatus {
    let milliseconds = |time: std::time::Duration| time.as_secs_f64() * 1000.0;
    api::PathStatus {
        interface: info.interface.clone(),
        kind: kind(info.kind),
        addresses: info.addresses.clone(),
        gateways: info.gateways.clone(),
        metered: info.metered,
        state: if permitted { state(info.state) } else { api::PathState::Denied },
        missing: if permitted { missing(info) } else { Some(denied()) },
        rtt_ms: estimate.rtt.map(milliseconds),
        jitter_ms: estimate.jitter.map(milliseconds),
        throughput_bits_per_second: estimate.throughput.map(|rate| rate.bits_per_second()),
        loss_ppm: estimate.loss_ppm,
        bytes_today,
    }
}

/// A kind of link in the words of the API.
fn kind(kind: PathKind) -> api::PathKind {
    match kind {
        PathKind::Wifi => api::PathKind::Wifi,
        PathKind::Cellular => api::PathKind::Cellular,
        PathKind::Ethernet => api::PathKind::Ethernet,
        PathKind::Tether => api::PathKind::Tether,
        PathKind::Other => api::PathKind::Other,
    }
}

/// A path's state in the words of the API.
pub fn state(state: PathState) -> api::PathState {
    match state {
        PathState::Up => api::PathState::Up,
        PathState::Down => api::PathState::Down,
        PathState::NoAddress => api::PathState::NoAddress,
        PathState::NoDefaultRoute => api::PathState::NoDefaultRoute,
        PathState::Captive => api::PathState::Captive,
    }
}

/// What keeps a path from being used, and what mends it.
fn missing(info: &PathInfo) -> Option<api::Missing> {
    let interface = &info.interface;
    let (what, mend) = match info.state {
        PathState::Up => return None,
        PathState::Down => ("it is down or not connected", link_up(info)),
        PathState::NoAddress => (
            "it is connected and has no address",
            format!("let the network manager connect it, or run: dhclient {interface}"),
        ),
        PathState::NoDefaultRoute => (
            "it has an address and no default route of its own",
            format!("run: ip route add default via {} dev {interface} metric 1000", likely_gateway(info)),
        ),
        PathState::Captive => (
            "a captive portal stands before the network",
            format!(
                "sign in with a browser: curl --interface {interface} http://detectportal.firefox.com/ shows where"
            ),
        ),
    };
    Some(api::Missing { what: what.to_owned(), mend })
}

fn link_up(info: &PathInfo) -> String {
    let interface = &info.interface;
    match info.kind {
        PathKind::Wifi => {
            format!("join a network (nmcli device connect {interface}), or run: ip link set {interface} up")
        }
        PathKind::Cellular => format!("start the modem's connection (nmcli device connect {interface})"),
        PathKind::Ethernet | PathKind::Tether | PathKind::Other => {
            format!("plug it in, or run: ip link set {interface} up")
        }
    }
}

/// A gateway that is known though no route uses it, or else a word to replace.
fn likely_gateway(info: &PathInfo) -> String {
    info.gateways.first().map_or_else(|| "GATEWAY".to_owned(), ToString::to_string)
}

fn denied() -> api::Missing {
    api::Missing {
        what: "the configuration denies it".to_owned(),
        mend: "change `paths.allow` and `paths.deny`, or name it with --path".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use multiway_core::paths::{NetworkIdentity, PathId};
    use multiway_core::units::Rate;

    use super::*;

    fn info(state: PathState) -> PathInfo {
        PathInfo {
            id: PathId(3),
            interface: "wlan0".into(),
            kind: PathKind::Wifi,
            metered: false,
            addresses: vec![],
            gateways: vec![],
            dns_servers: vec![],
            network: NetworkIdentity::default(),
            state,
        }
    }

    #[test]
    fn whatever_keeps_a_path_from_use_comes_with_what_mends_it() {
        for state in [PathState::Down, PathState::NoAddress, PathState::NoDefaultRoute, PathState::Captive] {
            let status = path_status(&info(state), true, PathEstimate::default(), 0);
            let missing = status.missing.unwrap_or_else(|| panic!("{state:?}"));
            assert!(missing.mend.contains("wlan0"), "{missing:?}");
        }
        let up = path_status(&info(PathState::Up), true, PathEstimate::default(), 0);
        assert_eq!((up.missing, up.rtt_ms), (None, None));
        let denied = path_status(&info(PathState::Up), false, PathEstimate::default(), 0);
        assert_eq!(denied.state, api::PathState::Denied);
        assert!(denied.missing.is_some());
    }

    #[test]
    fn estimates_are_told_in_milliseconds_and_bits() {
        let estimate = PathEstimate {
            rtt: Some(Duration::from_micros(30_500)),
            jitter: Some(Duration::from_millis(2)),
            throughput: Some(Rate::from_bits_per_second(20_000_000)),
            loss_ppm: Some(10),
        };
        let status = path_status(&info(PathState::Up), true, estimate, 9);
        assert_eq!(status.rtt_ms, Some(30.5));
        assert_eq!(status.throughput_bits_per_second, Some(20_000_000));
        assert_eq!(status.bytes_today, 9);
    }

    #[test]
    fn the_survey_works_without_privilege_and_leaves_out_the_loopback() {
        assert!(survey().expect("rtnetlink answers anyone").iter().all(|path| path.interface != "lo"));
    }
}
