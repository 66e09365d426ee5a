//! Which connection is responsible for which bytes.

use crate::mphttp::download::lane::LaneId;

/// A stretch of the object that one lane, or none yet, is to bring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Run {
    pub(super) start: u64,
    /// One past the last byte; the next run starts here.
    pub(super) limit: u64,
    pub(super) owner: Option<LaneId>,
    /// Bytes below this have been asked for from the owner; may exceed `limit` after a takeover.
    pub(super) asked_to: u64,
    /// Bytes below this have arrived from the owner.
    pub(super) received_to: u64,
}

impl Run {
    pub(super) fn is_done(&self) -> bool {
        self.received_to >= self.limit
    }

    pub(super) fn left(&self) -> u64 {
        self.limit.saturating_sub(self.received_to)
    }
}

/// A partition of `[begin, end)` into runs, in order.
#[derive(Debug)]
pub(super) struct Runs {
    runs: Vec<Run>,
}

impl Runs {
    /// Everything belongs to `owner`, who has been asked for the bytes below `asked_to`.
    pub(super) fn new(begin: u64, end: u64, owner: LaneId, asked_to: u64) -> Self {
        Self {
            runs: vec![Run { start: begin, limit: end, owner: Some(owner), asked_to, received_to: begin }],
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Run> {
        self.runs.iter()
    }

    /// The run that holds `offset`.
    pub(super) fn at(&self, offset: u64) -> Option<&Run> {
        self.runs.iter().find(|run| run.start <= offset && offset < run.limit)
    }

    /// Notes that `lane` was asked for bytes up to `end`, starting within the run at `offset`.
    pub(super) fn note_asked(&mut self, offset: u64, lane: LaneId, end: u64) {
        for run in &mut self.runs {
            if run.owner == Some(lane) && run.start <= offset && offset < run.limit {
                run.asked_to = run.asked_to.max(end);
            }
        }
    }

    /// Notes that `[from, to)` arrived from `lane`; true when any of it was owed.
    pub(super) fn note_received(&mut self, lane: LaneId, from: u64, to: u64) -> bool {
        let mut is_new = false;
        for run in &mut self.runs {
            if run.owner == Some(lane) && from <= run.received_to && run.received_to < to && run.start < to {
                run.received_to = to;
                is_new = true;
            }
        }
        is_new
    }

    /// Gives `[start, end)`, which must lie within one run, to `owner`; nothing is asked for yet.
    ///
    /// What is left of the old run before and after stays with its owner.
    pub(super) fn assign(&mut self, start: u64, end: u64, owner: Option<LaneId>) {
        let Some(index) = self.runs.iter().position(|run| run.start <= start && end <= run.limit) else {
            return;
        };
        if start >= end {
            return;
        }
        let old = self.runs[index];
        let mut parts = Vec::with_capacity(3);
        if old.start < start {
            parts.push(Run { limit: start, ..old });
        }
        parts.push(Run { start, limit: end, owner, asked_to: start, received_to: start });
        if end < old.limit {
            parts.push(Run {
                start: end,
                asked_to: old.asked_to.max(end),
                received_to: old.received_to.max(end),
                ..old
            });
        }
        self.runs.splice(index..=index, parts);
    }

    /// Takes everything that `lane` still owes away from it.
    pub(super) fn disown(&mut self, lane: LaneId) {
        let owed: Vec<(u64, u64)> = self
            .runs
            .iter()
            .filter(|run| run.owner == Some(lane) && !run.is_done())
            .map(|run| (run.received_to.max(run.start), run.limit))
            .collect();
        for (start, end) in owed {
            self.assign(start, end, None);
        }
        self.merge_unowned();
    }

    /// Takes everything at or above `offset` away from every lane.
    pub(super) fn disown_from(&mut self, offset: u64) {
        let above: Vec<(u64, u64)> = self
            .runs
            .iter()
            .filter(|run| run.limit > offset)
            .map(|run| (run.start.max(offset), run.limit))
            .collect();
        for (start, end) in above {
            self.assign(start, end, None);
        }
        self.merge_unowned();
    }

    /// Marks what nobody owns of `[from, to)` as received.
    pub(super) fn note_held(&mut self, from: u64, to: u64) {
        let unowned = self.runs.iter().filter(|run| run.owner.is_none() && !run.is_done());
        let held: Vec<(u64, u64)> = unowned
            .map(|run| (run.received_to.max(run.start).max(from), run.limit.min(to)))
            .filter(|(from, to)| from < to)
            .collect();
        for (from, to) in held {
            self.assign(from, to, None);
            self.skip(from, to);
        }
    }

    /// Marks the start of an unowned run as no longer needed up to `to`.
    pub(super) fn skip(&mut self, run_start: u64, to: u64) {
        if let Some(run) = self.runs.iter_mut().find(|run| run.start == run_start && run.owner.is_none()) {
            run.received_to = run.received_to.max(to);
            run.asked_to = run.asked_to.max(to);
        }
    }

    fn merge_unowned(&mut self) {
        let mut merged: Vec<Run> = Vec::with_capacity(self.runs.len());
        for run in self.runs.drain(..) {
            match merged.last_mut() {
                Some(last)
                    if last.owner.is_none()
                        && run.owner.is_none()
                        && last.received_to <= last.start
                        && run.received_to <= run.start =>
                {
                    last.limit = run.limit;
                }
                _ => merged.push(run),
            }
        }
        self.runs = merged;
    }

    /// The owner was answered with less than it asked for: `[start, end)` is to be asked for again.
    pub(super) fn give_back(&mut self, lane: LaneId, start: u64, end: u64) {
        for run in &mut self.runs {
            if run.owner == Some(lane) && run.start < end && start < run.limit {
                run.asked_to = run.asked_to.min(start.max(run.start).max(run.received_to));
            }
        }
    }

    /// Bytes below `frontier` were delivered, whoever brought them.
    pub(super) fn note_frontier(&mut self, frontier: u64) {
        self.runs.retain(|run| run.limit > frontier);
        if let Some(first) = self.runs.first_mut() {
            first.received_to = first.received_to.max(frontier);
            first.asked_to = first.asked_to.max(frontier);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_takeover_in_the_middle_leaves_the_rest_with_its_owner() {
        let (a, b) = (LaneId(0), LaneId(1));
        let mut runs = Runs::new(0, 100, a, 60);
        runs.note_received(a, 0, 30);
        runs.assign(30, 50, Some(b));
        let parts: Vec<_> =
            runs.iter().map(|r| (r.start, r.limit, r.owner, r.asked_to, r.received_to)).collect();
        assert_eq!(parts, [(0, 30, Some(a), 60, 30), (30, 50, Some(b), 30, 30), (50, 100, Some(a), 60, 50)]);
    }

    #[test]
    fn what_is_held_of_an_unowned_run_is_not_missing() {
        let mut runs = Runs::new(0, 100, LaneId(0), 100);
        runs.disown_from(0);
        runs.note_held(30, 50);
        runs.note_held(40, 60);
        let missing: Vec<_> = runs.iter().filter(|r| !r.is_done()).map(|r| (r.start, r.limit)).collect();
        assert_eq!(missing, [(0, 30), (60, 100)]);
    }

    #[test]
    fn what_a_dead_lane_owes_becomes_unowned() {
        let (a, b) = (LaneId(0), LaneId(1));
        let mut runs = Runs::new(0, 100, a, 100);
        runs.assign(60, 100, Some(b));
        runs.note_received(a, 0, 10);
        runs.disown(a);
        let parts: Vec<_> = runs.iter().map(|r| (r.start, r.limit, r.owner)).collect();
        assert_eq!(parts, [(0, 10, Some(a)), (10, 60, None), (60, 100, Some(b))]);
    }
}
