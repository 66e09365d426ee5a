use super::{Backlog, Candidate, Scheduler, least};
use crate::bond::subflow::SubflowId;

/// The most preferred subflow unless it is sending again what was lost (MultiMob section III-A, the
/// device's side).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Priority;

impl Scheduler for Priority {
    fn choose(&mut self, candidates: &[Candidate], _: Backlog) -> Option<SubflowId> {
        least(candidates, |_| true, |candidate| (candidate.retransmitting, candidate.rank, candidate.srtt))
            .filter(|found| found.available)
            .map(|found| found.id)
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{candidate, much};
    use super::*;

    #[test]
    fn a_less_preferred_subflow_is_used_only_while_the_first_retransmits() {
        let (wifi, cellular) = (candidate(0, 80), candidate(1, 25));
        assert_eq!(Priority.choose(&[cellular, wifi], much()), Some(wifi.id));
        let full = Candidate { available: false, ..wifi };
        assert_eq!(Priority.choose(&[cellular, full], much()), None, "a full one is waited for");
        let lossy = Candidate { retransmitting: true, ..wifi };
        assert_eq!(Priority.choose(&[cellular, lossy], much()), Some(cellular.id));
    }
}
