use super::{Backlog, Candidate, Scheduler, least};
use crate::bond::subflow::SubflowId;

/// The available subflow with the least smoothed round-trip time: MPTCP's default.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MinRtt;

impl Scheduler for MinRtt {
    fn choose(&mut self, candidates: &[Candidate], _: Backlog) -> Option<SubflowId> {
        least(candidates, |candidate| candidate.available, |candidate| candidate.srtt).map(|found| found.id)
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{candidate, much};
    use super::*;

    #[test]
    fn the_slower_subflow_is_used_once_the_faster_one_is_full() {
        let (fast, slow) = (candidate(1, 10), candidate(0, 100));
        assert_eq!(MinRtt.choose(&[slow, fast], much()), Some(fast.id));
        assert_eq!(MinRtt.choose(&[slow, Candidate { available: false, ..fast }], much()), Some(slow.id));
    }
}
