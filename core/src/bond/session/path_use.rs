//! What a device knows of its paths' use: which are good, what was asked of them, and when to look again.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use super::proof::Proof;
use crate::bond::action::Suspicion;
use crate::bond::backoff::Chance;
use crate::bond::subflow::{SubflowId, UNKNOWN_RTT};
use crate::mphttp::download::PathOffer;
use crate::paths::PathId;
use crate::units::Timestamp;

/// How long a path that was suspected stays so at least, the first time.
pub(super) const LEAST_HOLD: Duration = Duration::from_secs(1);

/// A path that fails within this time of being good again has relapsed.
pub(super) const RELAPSE: Duration = Duration::from_secs(60);

/// A subflow that is not up after this long, or so many round trips, makes its path suspect: TCP's
/// and TLS's handshakes take two.
const OPEN_PATIENCE: Duration = Duration::from_millis(500);
const OPEN_ROUNDS: u32 = 4;

/// What a device knows of its paths' use.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) paths: Vec<Entry>,
    pub(super) active: Option<PathId>,
    /// A handover that was decided and not seen to work yet.
    pub(super) moving: Option<Moving>,
    pub(super) next_at: Option<Timestamp>,
    pub(super) chance: Chance,
}

#[derive(Debug)]
pub(super) struct Entry {
    pub(super) offer: PathOffer,
    pub(super) health: Health,
    /// Subflows that were asked for.
    pub(super) opening: BTreeMap<SubflowId, Timestamp>,
    /// Subflows in a row that the relay did not answer.
    pub(super) failures: u32,
    /// When the next one may be asked for.
    pub(super) retry_at: Timestamp,
    /// When it was last suspected, and how long it stays so at least.
    pub(super) suspected_at: Option<Timestamp>,
    pub(super) hold: Duration,
    /// Times that it failed again soon after it was good again.
    pub(super) relapses: u32,
    pub(super) proof: Proof,
    pub(super) probe_at: Timestamp,
    pub(super) pings: VecDeque<(u64, Timestamp)>,
    /// Streams found every subflow taken.
    pub(super) is_crowded: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Health {
    Good,
    Suspect { since: Timestamp, suspicion: Suspicion },
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Moving {
    pub(super) from: PathId,
    pub(super) last_life: Timestamp,
}

impl Entry {
    pub(super) fn new(offer: PathOffer, now: Timestamp) -> Self {
        Self {
            offer,
            health: Health::Good,
            opening: BTreeMap::new(),
            failures: 0,
            retry_at: now,
            suspected_at: None,
            hold: LEAST_HOLD,
            relapses: 0,
            proof: Proof::default(),
            probe_at: now,
            pings: VecDeque::new(),
            is_crowded: false,
        }
    }

    pub(super) fn is_good(&self) -> bool {
        self.health == Health::Good
    }

    pub(super) fn rtt(&self) -> Duration {
        self.offer.estimate.rtt.unwrap_or(UNKNOWN_RTT)
    }

    pub(super) fn patience(&self) -> Duration {
        OPEN_PATIENCE.max(self.rtt() * OPEN_ROUNDS)
    }
}

impl Plan {
    pub(super) fn new() -> Self {
        Self { paths: Vec::new(), active: None, moving: None, next_at: None, chance: Chance::default() }
    }

    /// The place of a path in the order of preference.
    pub(super) fn rank(&self, path: PathId) -> u32 {
        self.index(path).map_or(u32::MAX, |index| index as u32)
    }

    pub(super) fn active_path(&self) -> Option<PathId> {
        self.active
    }

    pub(super) fn opening(&self) -> Vec<(SubflowId, PathId)> {
        let of = |entry: &Entry| {
            let path = entry.offer.path;
            entry.opening.keys().map(|id| (*id, path)).collect::<Vec<_>>()
        };
        self.paths.iter().flat_map(of).collect()
    }

    pub(super) fn index(&self, path: PathId) -> Option<usize> {
        self.paths.iter().position(|entry| entry.offer.path == path)
    }

    pub(super) fn entry(&mut self, path: PathId) -> Option<&mut Entry> {
        self.paths.iter_mut().find(|entry| entry.offer.path == path)
    }

    pub(super) fn wake(&mut self, at: Timestamp) {
        self.next_at = Some(self.next_at.map_or(at, |next| next.min(at)));
    }
}
