//! Which paths a device uses: break-before-make (MultiMob section III-B) and aggregation.
//!
//! A path is *good* until a detector suspects it, its last subflow is lost, or a subflow cannot be
//! opened in time. The most preferred good path is *active*; with [`Policy::Handover`] no other one
//! has subflows. A suspect path is asked by PINGs whether it works, and is good again after several
//! answers in a row, sooner the first time than after a relapse.

use std::time::Duration;

use super::Session;
use super::path_use::{Entry, Health, LEAST_HOLD, Moving};
use crate::bond::action::{Action, CloseReason, Event, OpenReason, Suspicion, Violation};
use crate::bond::backoff::{self, Chance};
use crate::bond::config::{Policy, Role, StreamClass};
use crate::bond::subflow::{Subflow, SubflowId, UNKNOWN_RTT};
use crate::bond::wire::{Frame, Standing};
use crate::mphttp::download::PathOffer;
use crate::paths::PathId;
use crate::units::Timestamp;

/// PINGs answered in a row that make a path good again.
const GOOD_PROBES: u32 = 4;

/// Time between PINGs to a suspect path.
const PROBE_PERIOD: Duration = Duration::from_millis(200);

/// An answer that takes longer than twice the round trip and this much was sent again on the way:
/// less than the kernel's least retransmission timeout of 200 ms.
const PROBE_NOISE: Duration = Duration::from_millis(80);

/// A PING without an answer for so long is given up, and a new subflow is tried in place of the old
/// one, whose kernel retransmits less and less often.
const PROBE_LOST: Duration = Duration::from_secs(2);

/// A path stays suspect for [`LEAST_HOLD`] at least; each relapse within [`RELAPSE`] doubles that, up to this.
const MOST_HOLD: Duration = Duration::from_secs(30);
const RELAPSE: Duration = Duration::from_secs(60);

/// A new path beside one that works proves itself for so long.
const NEWCOMER_HOLD: Duration = Duration::from_millis(500);

/// Next to an attempt on a suspect path, another one waits as if so many more had failed: the answer to
/// the first may still come.
const PROBE_FAILURES: u32 = 2;

/// Whoever got data so shortly before a path failed is waiting for more, even when the far end had marked
/// it as the last for now: a radio's server does so with every piece. Longer than the oracle takes.
const LIVELY: Duration = Duration::from_secs(5);

/// A subflow that is not needed any more closes when nothing came for so long.
const QUIET: Duration = Duration::from_millis(250);

/// Subflows more than one on a path close after so long without use.
const IDLE_CLOSE: Duration = Duration::from_secs(30);

/// A transfer that went on for so many of the other path's round trips without a pause is expected to
/// go on for as long again, which pays for opening it: the rule by which range downloads take a second
/// path. What moved less meanwhile is no transfer: it is six segments, which take 130 ms at 0.5 Mbit/s.
const AGGREGATE_BYTES: u64 = 8 << 10;
const AGGREGATE_ROUNDS: u32 = 2;

/// How often a busy session looks whether its plan still fits.
const BUSY_PERIOD: Duration = Duration::from_millis(50);

/// How often a session that uses what it should not need looks whether it can stop.
const PLAN_PERIOD: Duration = Duration::from_millis(250);

/// A path that brought nothing for so long while streams are open is asked whether it still works: a
/// translator on the way may have forgotten it, and what the far end sends would never arrive. Every
/// question wakes a radio, so a metered path is asked less often.
const QUIET_CHECK: Duration = Duration::from_secs(60);
const METERED_QUIET_CHECK: Duration = Duration::from_secs(240);

/// It has so long for an answer: the kernel retransmits 4 times in that.
const QUIET_PATIENCE: Duration = Duration::from_secs(4);

/// With open streams another path is needed once none has worked for so long, although this end has
/// nothing to say: the far end may.
const UNREACHABLE: Duration = Duration::from_secs(5);

/// The far end is asked for its retransmission timeout so often, while more is expected of it (M4).
const ASK_TIMEOUT: Duration = Duration::from_secs(5);

/// PINGs remembered of one path.
const MOST_PINGS: usize = 16;

impl Session {
    /// The paths that may be used now, in order of preference (device). Subflows of others close.
    pub fn handle_paths(&mut self, paths: &[PathOffer], now: Timestamp) {
        let mut before = std::mem::take(&mut self.plan.paths);
        let has_up = self.slots.iter().flatten().any(|subflow| !subflow.is_suspect);
        for offer in paths {
            let known = before.iter().position(|entry| entry.offer.path == offer.path);
            let entry = match known.map(|index| before.swap_remove(index)) {
                Some(entry) => Entry { offer: *offer, ..entry },
                None => {
                    let mut entry = Entry::new(*offer, now);
                    if has_up {
                        entry.health = Health::Suspect { since: now, suspicion: Suspicion::Lost };
                        entry.hold = NEWCOMER_HOLD;
                    }
                    entry
                }
            };
            self.plan.paths.push(entry);
        }
        for gone in before {
            for id in gone.opening.into_keys() {
                self.actions.push_back(Action::CloseSubflow { id, reason: CloseReason::PathGone });
            }
            let path = gone.offer.path;
            let ids = self.ids_on(path);
            self.note_moving(path, now);
            for id in ids {
                if let Some(slot) = self.by_id.get(&id).copied()
                    && let Some(subflow) = self.subflow_mut(slot)
                {
                    subflow.is_forbidden = true;
                }
                self.remove_subflow(id, now);
                // No farewell gets through where there is no carrier.
                self.standings.insert(id, Standing::Gone);
                self.actions.push_back(Action::CloseSubflow { id, reason: CloseReason::PathGone });
            }
        }
        self.plan_paths(now);
    }

    /// A detector or the oracle thinks that a path fails (device). What is outstanding on it goes
    /// over another path, which is opened if something is waiting.
    pub fn suspect_path(&mut self, path: PathId, suspicion: Suspicion, now: Timestamp) {
        let Some(entry) = self.plan.entry(path).filter(|entry| entry.is_good()) else { return };
        let is_relapse = entry.suspected_at.is_some_and(|at| now - at < RELAPSE + entry.hold);
        entry.hold = if is_relapse { (entry.hold * 2).min(MOST_HOLD) } else { LEAST_HOLD };
        entry.health = Health::Suspect { since: now, suspicion };
        entry.suspected_at = Some(now);
        entry.good_probes = 0;
        entry.probe_at = now;
        entry.pings.clear();
        self.events.push_back(Event::PathSuspected { path, suspicion });
        self.note_moving(path, now);
        self.set_standing(path, true);
        for slot in self.slots_of(path).iter() {
            self.repeat_control(slot);
        }
        self.replan(now);
        self.plan_paths(now);
    }

    /// Sends a PING over a path at once, for a detector that wants to know whether it is silent
    /// (device).
    pub fn probe_path(&mut self, path: PathId, now: Timestamp) {
        self.ping(path, now);
    }

    /// Marks a path's subflows and tells the relay.
    fn set_standing(&mut self, path: PathId, is_suspect: bool) {
        for subflow in self.slots.iter_mut().flatten().filter(|subflow| subflow.path == path) {
            subflow.is_suspect = is_suspect;
            let standing = match (is_suspect, subflow.is_backup) {
                (true, _) => Standing::Suspect,
                (false, true) => Standing::Backup,
                (false, false) => Standing::Normal,
            };
            self.standings.insert(subflow.id, standing);
        }
        self.epoch += 1;
    }

    fn ids_on(&self, path: PathId) -> Vec<SubflowId> {
        let on_path = self.slots.iter().flatten().filter(|subflow| subflow.path == path);
        on_path.map(|subflow| subflow.id).collect()
    }

    fn is_up_on(&self, path: PathId) -> bool {
        self.slots.iter().flatten().any(|subflow| subflow.path == path)
    }

    /// Traffic leaves a path; the gap counts from its last sign of life, or from when something began
    /// to wait.
    fn note_moving(&mut self, from: PathId, now: Timestamp) {
        if self.plan.active != Some(from) || self.busy.is_empty() {
            return;
        }
        let observation = self.observe_path(from);
        let life = observation.last_received.max(observation.last_ack_progress);
        let waiting = observation.outstanding_since.into_iter().chain(observation.expecting_since).min();
        let last_life = life.max(waiting).unwrap_or(now);
        self.plan.moving.get_or_insert(Moving { from, last_life });
    }

    /// A subflow came up.
    pub(super) fn plan_subflow_up(&mut self, slot: usize) {
        if self.role == Role::Relay {
            return;
        }
        let Some((id, path)) = self.subflow(slot).map(|subflow| (subflow.id, subflow.path)) else { return };
        let Some(entry) = self.plan.entry(path) else { return };
        entry.opening.remove(&id);
        if entry.is_good() {
            return;
        }
        if let Some(subflow) = self.subflow_mut(slot) {
            subflow.is_suspect = true;
            self.standings.insert(id, Standing::Suspect);
        }
    }

    /// The far end answers on a subflow for the first time: its path leads to a relay that works. That it
    /// is up says less, for one that carries early data is up before a packet came back.
    pub(super) fn plan_answered(&mut self, slot: usize, now: Timestamp) {
        let Some(path) = self.subflow(slot).map(|subflow| subflow.path) else { return };
        let others_work = self.slots.iter().enumerate().any(|(other, subflow)| {
            other != slot && subflow.as_ref().is_some_and(|subflow| !subflow.is_suspect)
        });
        let Some(entry) = self.plan.entry(path) else { return };
        entry.failures = 0;
        if entry.is_good() {
            return;
        }
        if others_work {
            entry.good_probes += 1;
            entry.probe_at = now;
        } else {
            // Nothing else works, so there is nothing to be careful for.
            self.restore_path(path, now);
        }
    }

    /// A subflow went down, or did not come up. One that carried early data and was never answered did
    /// not come up.
    pub(super) fn plan_subflow_down(
        &mut self,
        id: SubflowId,
        was_on: Option<PathId>,
        was_answered: bool,
        now: Timestamp,
    ) {
        if self.role == Role::Relay {
            return;
        }
        let chance = self.plan.chance.draw();
        let Some(entry) = self
            .plan
            .paths
            .iter_mut()
            .find(|entry| entry.opening.contains_key(&id) || was_on == Some(entry.offer.path))
        else {
            return;
        };
        let path = entry.offer.path;
        entry.opening.remove(&id);
        if !was_answered {
            entry.retry_at = now + backoff::wait(entry.failures, chance);
            entry.failures = entry.failures.saturating_add(1);
            if !self.is_up_on(path) {
                self.suspect_path(path, Suspicion::Lost, now);
            }
        } else if !self.is_up_on(path) {
            // One attempt on the same path, before another one is opened; see `plan_openings`.
            self.note_moving(path, now);
        }
    }

    /// The device's networks changed: what failed before may work now, and is tried at once (device).
    pub fn handle_network_change(&mut self, now: Timestamp) {
        for entry in &mut self.plan.paths {
            entry.failures = 0;
            entry.retry_at = now;
        }
        self.plan_paths(now);
    }

    /// Where the chance comes from that sets a device's attempts to reconnect apart from those of other
    /// devices; without a seed they come at the same distances.
    pub fn set_seed(&mut self, seed: u64) {
        self.plan.chance = Chance::seeded(seed);
    }

    /// Streams found every subflow of a path taken.
    pub(super) fn plan_crowded(&mut self, path: PathId) {
        if let Some(entry) = self.plan.entry(path) {
            entry.is_crowded = true;
        }
    }

    /// A stream became busy.
    pub(super) fn plan_busy(&mut self, now: Timestamp) {
        if self.role == Role::Device {
            self.plan.wake(now + BUSY_PERIOD);
        }
    }

    /// A subflow brought something original.
    pub(super) fn plan_original(&mut self, slot: usize, now: Timestamp) {
        let Some(path) = self.subflow(slot).map(|subflow| subflow.path) else { return };
        let Some(moving) = self.plan.moving.filter(|_| self.plan.active == Some(path)) else { return };
        self.plan.moving = None;
        if moving.from != path {
            let gap = now - moving.last_life;
            self.events.push_back(Event::Handover { from: moving.from, to: path, gap });
        }
    }

    /// A PONG came.
    pub(super) fn handle_pong(&mut self, slot: usize, value: u64, now: Timestamp) -> Result<(), Violation> {
        if value >= self.next_ping {
            return Err(Violation::PingAbuse);
        }
        let Some((path, srtt)) = self.subflow(slot).map(|subflow| (subflow.path, subflow.srtt())) else {
            return Ok(());
        };
        let Some(entry) = self.plan.entry(path) else { return Ok(()) };
        let Some(at) = entry.pings.iter().position(|(sent, _)| *sent == value) else { return Ok(()) };
        let (_, sent_at) = entry.pings[at];
        entry.pings.drain(..=at);
        let usual = entry.offer.estimate.rtt.unwrap_or(srtt).min(srtt.max(UNKNOWN_RTT));
        if now - sent_at <= usual * 2 + PROBE_NOISE {
            entry.good_probes += 1;
        } else {
            entry.good_probes = 0;
        }
        if let Health::Suspect { since, .. } = entry.health
            && entry.good_probes >= GOOD_PROBES
            && now - since >= entry.hold
        {
            self.restore_path(path, now);
            self.plan_paths(now);
        }
        Ok(())
    }

    fn ping(&mut self, path: PathId, now: Timestamp) {
        // The newest, which is the likeliest to live.
        let newest = self.slots.iter_mut().flatten().filter(|subflow| subflow.path == path);
        let Some(subflow) = newest.max_by_key(|subflow| subflow.id) else { return };
        let value = self.next_ping;
        self.next_ping += 1;
        subflow.control.push_back(Frame::Ping(value));
        if let Some(entry) = self.plan.entry(path) {
            entry.pings.push_back((value, now));
            if entry.pings.len() > MOST_PINGS {
                entry.pings.pop_front();
            }
        }
    }

    /// A path is good again.
    fn restore_path(&mut self, path: PathId, now: Timestamp) {
        let Some(entry) = self.plan.entry(path) else { return };
        entry.health = Health::Good;
        entry.suspected_at = Some(now);
        entry.pings.clear();
        self.events.push_back(Event::PathRestored { path });
        self.set_standing(path, false);
        self.replan(now);
    }

    /// Decides which subflows to open and to close; does nothing that is not due.
    pub(super) fn plan_paths(&mut self, now: Timestamp) {
        if self.role == Role::Relay {
            return;
        }
        self.plan.next_at = None;
        self.plan_activity(now);
        self.plan_openings(now);
        self.plan_probes(now);
        self.plan_closings(now);
        self.ask_timeouts(now);
        if !self.busy.is_empty() {
            self.plan.wake(now + BUSY_PERIOD);
        }
    }

    /// The most preferred good path is active, or if none is good the first that is up.
    fn plan_activity(&mut self, now: Timestamp) {
        let good = self.plan.paths.iter().find(|entry| entry.is_good());
        let up = self.plan.paths.iter().find(|entry| self.is_up_on(entry.offer.path));
        let active = good.or(up).or(self.plan.paths.first()).map(|entry| entry.offer.path);
        let before = self.plan.active;
        if active != before {
            if let Some(from) = before
                && active.is_some()
            {
                self.note_moving(from, now);
            }
            self.plan.active = active;
        }
    }

    /// Whether something waits for a path.
    fn is_needed(&mut self, now: Timestamp) -> bool {
        if !self.busy.is_empty() || self.streams.is_empty() {
            return !self.busy.is_empty();
        }
        if self.slots.iter().flatten().any(|subflow| !subflow.is_suspect) {
            return false;
        }
        if self.streams.values().any(|stream| stream.last_data.is_some_and(|at| now - at < LIVELY)) {
            return true;
        }
        let up = self.plan.paths.iter().filter(|entry| self.is_up_on(entry.offer.path));
        let since = up.filter_map(|entry| match entry.health {
            Health::Suspect { since, .. } => Some(since),
            Health::Good => None,
        });
        let Some(at) = since.max().map(|since| since + UNREACHABLE) else { return true };
        if at > now {
            self.plan.wake(at);
        }
        at <= now
    }

    fn plan_openings(&mut self, now: Timestamp) {
        let is_needed = self.is_needed(now);
        let none_good = self.plan.paths.iter().all(|entry| !entry.is_good());
        for index in 0..self.plan.paths.len() {
            let entry = &self.plan.paths[index];
            let path = entry.offer.path;
            let is_up = self.is_up_on(path);
            let is_active = self.plan.active == Some(path);
            let is_overdue = !is_up
                && entry.opening.values().any(|since| now - *since >= entry.patience())
                && entry.is_good();
            if is_overdue {
                self.suspect_path(path, Suspicion::Lost, now);
                return;
            }
            if let Some(since) = entry.opening.values().min().filter(|_| entry.is_good() && !is_up) {
                let at = *since + entry.patience();
                self.plan.wake(at);
            }
            let reason = self.reason_to_open(index, is_up, is_active, is_needed, none_good, now);
            let entry = &mut self.plan.paths[index];
            let Some(reason) = reason else { continue };
            if entry.retry_at > now {
                let at = entry.retry_at;
                self.plan.wake(at);
                continue;
            }
            self.open(index, reason, now);
        }
    }

    fn reason_to_open(
        &mut self,
        index: usize,
        is_up: bool,
        is_active: bool,
        is_needed: bool,
        none_good: bool,
        now: Timestamp,
    ) -> Option<OpenReason> {
        let limits = self.config.limits;
        let entry = &self.plan.paths[index];
        let path = entry.offer.path;
        let opening: usize = self.plan.paths.iter().map(|entry| entry.opening.len()).sum();
        if self.by_id.len() + opening >= limits.subflows {
            return None;
        }
        if entry.is_good() && (is_up || !entry.opening.is_empty()) {
            let here = self.ids_on(path).len() + entry.opening.len();
            let is_crowded = std::mem::take(&mut self.plan.paths[index].is_crowded);
            let is_room = here < limits.subflows_per_path && here < self.busy.len();
            return (is_crowded && is_room).then_some(OpenReason::Busy);
        }
        if !entry.opening.is_empty() {
            return None;
        }
        match entry.health {
            Health::Good if is_active => {
                let suspect = self.plan.paths[..index].iter().find_map(|before| match before.health {
                    Health::Suspect { suspicion, .. } => Some((before.offer.path, suspicion)),
                    Health::Good => None,
                });
                match suspect {
                    _ if !is_needed && (index > 0 || entry.offer.metered) => None,
                    None => Some(OpenReason::First),
                    Some((from, suspicion)) => Some(OpenReason::Backup { from, suspicion }),
                }
            }
            Health::Good => {
                let is_worth = self.config.policy == Policy::Aggregate && self.is_long_enough(index, now);
                is_worth.then_some(OpenReason::Aggregate)
            }
            Health::Suspect { .. } => {
                // A newcomer or a failed path without a subflow is tried out; a metered one only when
                // nothing else is left.
                let is_wanted = !entry.offer.metered || (none_good && is_needed);
                (is_wanted && !self.is_probed(path, now)).then_some(OpenReason::Probe)
            }
        }
    }

    /// Whether a path has a subflow of which an answer may still come.
    fn is_probed(&self, path: PathId, now: Timestamp) -> bool {
        let Some(index) = self.plan.index(path) else { return true };
        let oldest = self.plan.paths[index].pings.front().map(|(_, at)| *at);
        let is_dead = oldest.is_some_and(|at| now - at >= PROBE_LOST);
        let newest = self.slots.iter().flatten().filter(|subflow| subflow.path == path);
        let newest = newest.map(|subflow| subflow.up_since).max();
        newest.is_some_and(|up| !is_dead || now - up < PROBE_LOST)
    }

    fn open(&mut self, index: usize, reason: OpenReason, now: Timestamp) {
        let id = SubflowId(self.next_subflow);
        self.next_subflow += 1;
        let chance = self.plan.chance.draw();
        let entry = &mut self.plan.paths[index];
        entry.opening.insert(id, now);
        let path = entry.offer.path;
        if reason == OpenReason::Probe {
            entry.retry_at = now + backoff::wait(entry.failures.saturating_add(PROBE_FAILURES), chance);
            entry.pings.clear();
        }
        let patience = entry.patience();
        self.plan.wake(now + patience);
        let backup = self.config.policy == Policy::Handover && index > 0;
        self.actions.push_back(Action::OpenSubflow { id, path, backup, reason });
    }

    /// Whether a transfer is long enough to gain by the path.
    fn is_long_enough(&self, index: usize, now: Timestamp) -> bool {
        let rounds = self.plan.paths[index].rtt() * AGGREGATE_ROUNDS;
        self.busy.iter().filter_map(|id| self.streams.get(id)).any(|stream| {
            let moved = stream.sender.sent_end() + stream.receiver.highest();
            stream.class != StreamClass::Interactive
                && moved + stream.sender.unsent() >= AGGREGATE_BYTES
                && stream.busy_since.is_some_and(|since| now - since >= rounds)
        })
    }

    fn plan_probes(&mut self, now: Timestamp) {
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

    fn plan_closings(&mut self, now: Timestamp) {
        let Some(active) = self.plan.active else { return };
        let works = |subflow: &Subflow| subflow.path == active && !subflow.is_suspect;
        let active_works = self.slots.iter().flatten().any(works);
        let mut closing = Vec::new();
        for subflow in self.slots.iter().flatten() {
            let is_good = self.plan.index(subflow.path).is_some_and(|index| self.plan.paths[index].is_good());
            let is_quiet = |time| {
                subflow.in_flight == 0
                    && subflow.acks.is_empty()
                    && now - subflow.last_used >= time
                    && now - subflow.up_since >= time
            };
            let on_path = self.slots.iter().flatten().filter(|other| other.path == subflow.path).count();
            if subflow.path != active && is_good && active_works && !self.wants_path(subflow.path) {
                if is_quiet(QUIET) {
                    closing.push((subflow.id, CloseReason::NotNeeded));
                } else {
                    self.plan.wake(now + PLAN_PERIOD);
                }
            } else if on_path > 1 && subflow.tenants == 0 {
                let is_newest =
                    !self.slots.iter().flatten().any(|o| o.path == subflow.path && o.id > subflow.id);
                if is_quiet(IDLE_CLOSE) && !is_newest {
                    closing.push((subflow.id, CloseReason::Idle));
                } else {
                    self.plan.wake(now + IDLE_CLOSE);
                }
            }
        }
        for (id, reason) in closing {
            self.remove_subflow(id, now);
            self.actions.push_back(Action::CloseSubflow { id, reason });
        }
    }

    /// Whether the policy keeps subflows on a good path that is not the active one.
    fn wants_path(&self, path: PathId) -> bool {
        let Some(index) = self.plan.index(path) else { return false };
        self.config.policy == Policy::Aggregate
            && (!self.busy.is_empty() || !self.plan.paths[index].offer.metered)
    }

    fn ask_timeouts(&mut self, now: Timestamp) {
        for subflow in self.slots.iter_mut().flatten() {
            let is_due = subflow.asked_timeout.is_none_or(|at| now - at >= ASK_TIMEOUT);
            if is_due && !subflow.expecting.is_empty() {
                subflow.asked_timeout = Some(now);
                subflow.control.push_back(Frame::RtoRequest);
            }
        }
    }
}
