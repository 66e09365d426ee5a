use super::{Backlog, Candidate, Scheduler, least};
use crate::bond::subflow::SubflowId;

/// Everything on every subflow: the first copy counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Redundant;

impl Scheduler for Redundant {
    fn choose(&mut self, candidates: &[Candidate], _: Backlog) -> Option<SubflowId> {
        least(candidates, |candidate| candidate.available, |candidate| candidate.srtt).map(|found| found.id)
    }

    fn is_redundant(&self) -> bool {
        true
    }
}
