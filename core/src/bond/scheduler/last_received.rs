use std::cmp::Reverse;

use super::{Backlog, Candidate, Scheduler, least};
use crate::bond::subflow::SubflowId;

/// The subflow whose path brought something original last (MultiMob section III-A), so that a relay
/// answers where the device last spoke, without waiting for a timeout of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LastReceived;

impl Scheduler for LastReceived {
    /// "If the congestion window of this subflow is not full, it is selected"; otherwise the
    /// segment waits, since another path is one that the device moved away from.
    fn choose(&mut self, candidates: &[Candidate], _: Backlog) -> Option<SubflowId> {
        least(candidates, |_| true, |candidate| (Reverse(candidate.last_received), candidate.rank))
            .filter(|found| found.available)
            .map(|found| found.id)
    }

    /// Where the device speaks says more than how it once marked its subflows.
    fn sees_backups(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::tests::{candidate, much};
    use super::*;
    use crate::units::Timestamp;

    #[test]
    fn answers_follow_the_device_to_another_path() {
        let at = |ms| Some(Timestamp::from_origin(Duration::from_millis(ms)));
        let wifi = Candidate { last_received: at(100), ..candidate(0, 15) };
        let cellular = Candidate { last_received: None, ..candidate(1, 25) };
        assert_eq!(LastReceived.choose(&[wifi, cellular], much()), Some(wifi.id));
        let cellular = Candidate { last_received: at(300), ..cellular };
        assert_eq!(LastReceived.choose(&[wifi, cellular], much()), Some(cellular.id));
        let cellular = Candidate { available: false, ..cellular };
        assert_eq!(LastReceived.choose(&[wifi, cellular], much()), None);
    }
}
