//! Questions to paths: whether one that failed works again, whether a quiet one still does, and how long
//! the far end waits before it sends again.

use std::time::Duration;

use super::Session;
use super::path_use::{Health, RELAPSE};
use super::proof::Proof;
use crate::bond::action::{Suspicion, Violation};
use crate::bond::config::Policy;
use crate::bond::subflow::{SubflowId, SubflowSample};
use crate::bond::wire::Frame;
use crate::paths::PathId;
use crate::units::Timestamp;

/// Time between PINGs to a suspect path: less than the kernel's least retransmission timeout of 200 ms, so that
/// behind an answer that is lost another one shows the gap.
const PROBE_PERIOD: Duration = Duration::from_millis(100);

/// When a path is good again, a subflow that brought nothing for so long is not known to be: the one that was
/// asked gave several answers meanwhile.
pub(super) const UNPROVEN: Duration = PROBE_PERIOD.saturating_mul(8);

/// A PING without an answer for so long is given up, and a new subflow is tried in place of the old
/// one, whose kernel retransmits less and less often.
const PROBE_LOST: Duration = Duration::from_secs(2);

/// PINGs remembered of one path.
const MOST_PINGS: usize = 16;

/// A path that brought nothing for so long while streams are open is asked whether it still works: a
/// translator on the way may have forgotten it, and what the far end sends would never arrive. Every
/// question wakes a radio, so a metered path is asked less often.
const QUIET_CHECK: Duration = Duration::from_secs(60);
const METERED_QUIET_CHECK: Duration = Duration::from_secs(240);

/// It has so long for an answer: the kernel retransmits 4 times in that.
const QUIET_PATIENCE: Duration = Duration::from_secs(4);

/// The far end is asked for its retransmission timeout so often, while more is expected of it (M4).
const ASK_TIMEOUT: Duration = Duration::from_secs(5);

impl Session {
    /// Sends a PING over a path at once, for a detector that wants to know whether it is silent
    /// (device).
    pub fn probe_path(&mut self, path: PathId, now: Timestamp) {
        self.ping(path, now);
    }

    /// A PONG came.
    pub(super) fn handle_pong(&mut self, slot: usize, value: u64, now: Timestamp) -> Result<(), Violation> {
        if value >= self.next_ping {
            return Err(Violation::PingAbuse);
        }
        let Some((id, path, sample)) = self.subflow(slot).map(|it| (it.id, it.path, it.sample)) else {
            return Ok(());
        };
        let is_asked = self.newest_on(path) == Some(id);
        let Some(entry) = self.plan.entry(path) else { return Ok(()) };
        let Some(at) = entry.pings.iter().position(|(sent, _)| *sent == value) else { return Ok(()) };
        let (_, asked) = entry.pings[at];
        entry.pings.drain(..=at);
        if is_asked && !entry.is_good() {
            entry.proof.handle_answer(asked, &sample, now);
        }
        Ok(())
    }

    /// Takes in what the kernel saw of a subflow since `before`, and whether its path is good again.
    pub(super) fn weigh(&mut self, id: SubflowId, path: PathId, before: &SubflowSample, now: Timestamp) {
        if self.newest_on(path) != Some(id) {
            return;
        }
        let Some(sample) = self.by_id.get(&id).and_then(|slot| self.subflow(*slot)).map(|it| it.sample)
        else {
            return;
        };
        let is_alone = !self.plan.paths.iter().any(|entry| entry.offer.path != path && entry.is_good());
        let is_careful = self.config.policy == Policy::Handover && !is_alone;
        let Some(entry) = self.plan.entry(path) else { return };
        let Health::Suspect { since, .. } = entry.health else { return };
        entry.proof.handle_sample(before, &sample, now);
        // A relapse is forgotten by a path that has been away for long enough.
        let relapses = if now - since < RELAPSE { entry.relapses } else { 0 };
        let needed = if is_careful { Proof::needed(relapses) } else { Proof::needed_for_nothing() };
        if entry.proof.is_worth(needed) && now - since >= entry.hold {
            self.restore_path(path, now);
            self.plan_paths(now);
        }
    }

    /// The subflow of a path that is asked: the newest, which is the likeliest to live.
    fn newest_on(&self, path: PathId) -> Option<SubflowId> {
        let on_path = self.slots.iter().flatten().filter(|subflow| subflow.path == path);
        on_path.map(|subflow| subflow.id).max()
    }

    fn ping(&mut self, path: PathId, now: Timestamp) {
        let Some(slot) = self.newest_on(path).and_then(|id| self.by_id.get(&id).copied()) else { return };
        let value = self.next_ping;
        let Some(subflow) = self.subflow_mut(slot) else { return };
        subflow.control.push_back(Frame::Ping(value));
        self.next_ping += 1;
        if let Some(entry) = self.plan.entry(path) {
            entry.pings.push_back((value, now));
            if entry.pings.len() > MOST_PINGS {
                entry.pings.pop_front();
            }
        }
    }

    /// Asks the paths that are due.
    pub(super) fn plan_probes(&mut self, now: Timestamp) {
        for index in 0..self.plan.paths.len() {
            let entry = &self.plan.paths[index];
            let path = entry.offer.path;
            if !self.is_up_on(path) {
                continue;
            }
            if entry.is_good() {
                self.check_quiet(index, now);
                continue;
            }
            if entry.probe_at <= now {
                self.plan.paths[index].probe_at = now + PROBE_PERIOD;
                if self.plan.paths[index].pings.len() < MOST_PINGS {
                    self.ping(path, now);
                }
            }
            let at = self.plan.paths[index].probe_at;
            self.plan.wake(at);
        }
    }

    /// Asks a path that has long been quiet whether it still works.
    fn check_quiet(&mut self, index: usize, now: Timestamp) {
        let path = self.plan.paths[index].offer.path;
        let on_path = self.slots.iter().flatten().filter(|subflow| subflow.path == path);
        let Some(life) = on_path.map(|subflow| subflow.last_received).max() else { return };
        let entry = &mut self.plan.paths[index];
        // Any byte is an answer.
        while entry.pings.front().is_some_and(|(_, at)| *at <= life) {
            entry.pings.pop_front();
        }
        let quiet = if entry.offer.metered { METERED_QUIET_CHECK } else { QUIET_CHECK };
        let at = match entry.pings.front() {
            Some((_, asked)) => *asked + QUIET_PATIENCE,
            None if self.streams.is_empty() => return,
            None => life + quiet,
        };
        if at > now {
            self.plan.wake(at);
        } else if entry.pings.is_empty() {
            self.ping(path, now);
            self.plan.wake(now + QUIET_PATIENCE);
        } else {
            self.suspect_path(path, Suspicion::Silent, now);
        }
    }

    /// Whether a path has a subflow of which an answer may still come.
    pub(super) fn is_probed(&self, path: PathId, now: Timestamp) -> bool {
        let Some(index) = self.plan.index(path) else { return true };
        let oldest = self.plan.paths[index].pings.front().map(|(_, at)| *at);
        let is_dead = oldest.is_some_and(|at| now - at >= PROBE_LOST);
        let newest = self.slots.iter().flatten().filter(|subflow| subflow.path == path);
        let newest = newest.map(|subflow| subflow.up_since).max();
        newest.is_some_and(|up| !is_dead || now - up < PROBE_LOST)
    }

    /// Asks the far end for its retransmission timeouts (M4).
    pub(super) fn ask_timeouts(&mut self, now: Timestamp) {
        for subflow in self.slots.iter_mut().flatten() {
            let is_due = subflow.asked_timeout.is_none_or(|at| now - at >= ASK_TIMEOUT);
            if is_due && !subflow.expecting.is_empty() {
                subflow.asked_timeout = Some(now);
                subflow.control.push_back(Frame::RtoRequest);
            }
        }
    }
}
