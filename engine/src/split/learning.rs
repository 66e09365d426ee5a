//! What a transfer starts from, and what it leaves for the next.

use multiway_core::mphttp::download::{Event, PathOffer};
use multiway_core::paths::{Observation, PathInfo};

use super::TransferSummary;
use crate::paths::PathTable;

/// The usable paths, the preferred first, without those known to serve other bytes for this host.
pub fn offers(paths: &PathTable, host: &str) -> Vec<PathOffer> {
    let usable = paths.usable_for(host);
    let offer = |info: &PathInfo| PathOffer {
        path: info.id,
        metered: info.metered,
        estimate: paths.estimate(info.id, host),
    };
    let consistent: Vec<PathOffer> =
        usable.iter().filter(|info| !paths.is_inconsistent(host, info.id)).map(offer).collect();
    if consistent.is_empty() { usable.iter().map(offer).collect() } else { consistent }
}

/// Keeps what was learnt: rates for the next plan (F10), inconsistent paths (F8).
pub fn remember(paths: &PathTable, host: &str, summary: &TransferSummary) {
    for share in summary.shares.iter().filter(|share| share.bytes > 0) {
        let rtt = paths.estimate(share.path, host).rtt;
        let observed = Observation::of_transfer(share.bytes, share.active, rtt);
        paths.record(share.path, host, &Observation { connect_time: share.connect_time, ..observed });
    }
    for path in &summary.other_versions {
        paths.mark_inconsistent(host, *path);
    }
    for event in &summary.fallbacks {
        if let Event::Mismatch { dropped, .. } = event {
            paths.mark_inconsistent(host, *dropped);
        }
    }
}
