//! In which order paths are used, and what the user wants of them.

use std::time::Duration;

use super::{PathEstimate, PathId, PathInfo, PathKind};
use crate::units::Rate;

/// What the user would rather have: the earliest end, or the least metered data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Preference {
    /// All permitted paths, whatever makes a transfer end first.
    Fast,
    /// FLEETY section 4.2, path prioritisation: the first path alone while it is done within the
    /// tolerance, others only for what it cannot do in that time.
    Thrifty {
        /// `T_tol`: how long a user waits without minding.
        tolerance: Duration,
    },
}

impl Preference {
    /// "In practice, we set T_tol to one second" (FLEETY section 4.2).
    pub const DEFAULT_TOLERANCE: Duration = Duration::from_secs(1);

    /// The default: thrifty with [`Self::DEFAULT_TOLERANCE`].
    pub const THRIFTY: Self = Self::Thrifty { tolerance: Self::DEFAULT_TOLERANCE };
}

impl Default for Preference {
    fn default() -> Self {
        Self::THRIFTY
    }
}

/// Size of the object whose expected time ranks paths: a large web object, to which delay and rate
/// both matter.
const REFERENCE_BYTES: u64 = 1 << 20;

/// Round trips before an object's first byte: one to connect, one to ask.
const ROUND_TRIPS: u32 = 2;

/// `paths` with the one to use first in front.
///
/// Fast: by the time that a reference object is expected to take; metered ones lose ties. Thrifty:
/// those without metering first, Wi-Fi before others ("FLEETY at the moment always prioritizes the
/// Wi-Fi path"), then by expected time. Equal paths keep the order of their ids.
pub fn order(
    paths: &[PathInfo],
    mut estimate: impl FnMut(PathId) -> PathEstimate,
    preference: Preference,
) -> Vec<PathId> {
    let mut keyed: Vec<_> = paths
        .iter()
        .map(|path| {
            let time = expected_time(path.kind, &estimate(path.id));
            let by_cost = match preference {
                Preference::Fast => (false, false),
                Preference::Thrifty { .. } => (path.metered, kind_rank(path.kind) > 0),
            };
            (by_cost, time, path.metered, kind_rank(path.kind), path.id)
        })
        .collect();
    keyed.sort_unstable();
    keyed.into_iter().map(|key| key.4).collect()
}

/// Expected time of the reference object, with what is usual for the kind in place of what was
/// never measured.
fn expected_time(kind: PathKind, estimate: &PathEstimate) -> Duration {
    let (usual_rtt, usual_rate) = usual(kind);
    let rtt = estimate.rtt.unwrap_or(usual_rtt);
    let rate = estimate.throughput.filter(|rate| !rate.is_zero()).unwrap_or(usual_rate);
    reference_time(rtt, rate)
}

fn reference_time(rtt: Duration, rate: Rate) -> Duration {
    rtt.saturating_mul(ROUND_TRIPS).saturating_add(rate.time_for(REFERENCE_BYTES))
}

impl PathEstimate {
    /// How long a large web object is expected to take; `None` when the path was never measured.
    pub fn reference_time(&self) -> Option<Duration> {
        let rate = self.throughput.filter(|rate| !rate.is_zero())?;
        Some(reference_time(self.rtt?, rate))
    }
}

/// What to think of a path of this kind before it was measured. Only the order between kinds
/// matters: an unmeasured path must be tried sooner or later, so none is so bad as to be last always.
const fn usual(kind: PathKind) -> (Duration, Rate) {
    const MEGABIT: u64 = 1_000_000;
    let (rtt_ms, megabits) = match kind {
        PathKind::Ethernet => (20, 100),
        PathKind::Wifi => (30, 50),
        PathKind::Cellular => (60, 20),
        PathKind::Tether => (70, 20),
        PathKind::Other => (80, 10),
    };
    (Duration::from_millis(rtt_ms), Rate::from_bits_per_second(megabits * MEGABIT))
}

/// Zero for the kinds that people pay for by the month rather than by the byte.
const fn kind_rank(kind: PathKind) -> u8 {
    match kind {
        PathKind::Wifi | PathKind::Ethernet => 0,
        PathKind::Other => 1,
        PathKind::Tether => 2,
        PathKind::Cellular => 3,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::paths::tests::path;

    fn wifi_and_cellular() -> Vec<PathInfo> {
        let mut cellular = path(2, "wwan0");
        cellular.kind = PathKind::Cellular;
        cellular.metered = true;
        vec![cellular, path(3, "wlan0")]
    }

    fn measured(megabits: u64, rtt_ms: u64) -> PathEstimate {
        PathEstimate {
            rtt: Some(Duration::from_millis(rtt_ms)),
            throughput: Some(Rate::from_bits_per_second(megabits * 1_000_000)),
            ..PathEstimate::default()
        }
    }

    #[test]
    fn wifi_comes_first_when_nothing_is_known() {
        for preference in [Preference::Fast, Preference::THRIFTY] {
            let order = order(&wifi_and_cellular(), |_| PathEstimate::default(), preference);
            assert_eq!(order, [PathId(3), PathId(2)]);
        }
    }

    #[test]
    fn measurements_decide_in_fast_and_metering_in_thrifty() {
        let estimate = |id| if id == PathId(2) { measured(30, 60) } else { measured(2, 20) };
        assert_eq!(order(&wifi_and_cellular(), estimate, Preference::Fast), [PathId(2), PathId(3)]);
        assert_eq!(order(&wifi_and_cellular(), estimate, Preference::THRIFTY), [PathId(3), PathId(2)]);
    }

    #[test]
    fn a_metered_path_loses_a_tie() {
        let order = order(&wifi_and_cellular(), |_| measured(10, 50), Preference::Fast);
        assert_eq!(order, [PathId(3), PathId(2)]);
    }

    #[test]
    fn the_round_trip_ranks_paths_of_equal_rate() {
        let estimate = |id| measured(10, if id == PathId(2) { 20 } else { 400 });
        assert_eq!(order(&wifi_and_cellular(), estimate, Preference::Fast), [PathId(2), PathId(3)]);
    }

    proptest! {
        #[test]
        fn every_path_comes_once_and_in_thrifty_no_metered_one_before_an_unmetered_one(
            facts in prop::collection::vec((any::<bool>(), 0usize..5, 0u64..200, 0u64..1000), 0..8),
        ) {
            const KINDS: [PathKind; 5] =
                [PathKind::Wifi, PathKind::Cellular, PathKind::Ethernet, PathKind::Tether, PathKind::Other];
            let paths: Vec<PathInfo> = (0u32..).zip(&facts).map(|(id, fact)| {
                PathInfo { metered: fact.0, kind: KINDS[fact.1], ..path(id, "if") }
            }).collect();
            let estimate = |id: PathId| {
                let (_, _, megabits, rtt_ms) = facts[id.0 as usize];
                if rtt_ms == 0 { PathEstimate::default() } else { measured(megabits, rtt_ms) }
            };
            for preference in [Preference::Fast, Preference::THRIFTY] {
                let order = order(&paths, estimate, preference);
                let mut ids = order.clone();
                ids.sort_unstable();
                prop_assert_eq!(ids, paths.iter().map(|path| path.id).collect::<Vec<_>>());
                if preference != Preference::Fast {
                    prop_assert!(order.iter().map(|id| facts[id.0 as usize].0).is_sorted());
                }
            }
        }
    }
}
