//! Which paths a device uses: break-before-make (MultiMob section III-B) and aggregation.
//!
//! A path is *good* until a detector suspects it, its last subflow is lost, or a subflow cannot be
//! opened in time. The most preferred good path is *active*; with [`Policy::Handover`] no other one
//! has subflows. A suspect path is asked by PINGs whether it works, and is good again when the answers have
//! proved it ([`Proof`]), sooner the first time than after a relapse.

use std::time::Duration;

use super::Session;
use super::path_use::{Entry, Health, LEAST_HOLD, Moving, RELAPSE};
use super::probe::UNPROVEN;
use super::proof::Proof;
use crate::bond::action::{Action, CloseReason, Event, OpenReason, Suspicion};
use crate::bond::backoff::{self, Chance};
use crate::bond::config::{Policy, Role};
use crate::bond::subflow::{Subflow, SubflowId};
use crate::bond::wire::Standing;
use crate::mphttp::download::PathOffer;
use crate::paths::PathId;
use crate::units::Timestamp;

/// A path stays suspect for [`LEAST_HOLD`] at least; each relapse within [`RELAPSE`] doubles that, up to this.
const MOST_HOLD: Duration = Duration::from_secs(30);

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

/// How often a busy session looks whether its plan still fits.
const BUSY_PERIOD: Duration = Duration::from_millis(50);

/// How often a session that uses what it should not need looks whether it can stop.
const PLAN_PERIOD: Duration = Duration::from_millis(250);

/// With open streams another path is needed once none has worked for so long, although this end has
/// nothing to say: the far end may.
const UNREACHABLE: Duration = Duration::from_secs(5);

impl Session {
    /// The paths that may be used now, in order of preference (device). Subflows of others close.
    pub fn handle_paths(&mut self, paths: &[PathOffer], now: Timestamp) {
        let paths = self.in_order(paths);
        let mut before = std::mem::take(&mut self.plan.paths);
        let has_up = self.slots.iter().flatten().any(|subflow| !subflow.is_suspect);
        for offer in &paths {
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
        if self.still_helps(path, suspicion, now) {
            return;
        }
        let Some(entry) = self.plan.entry(path).filter(|entry| entry.is_good()) else { return };
        let is_relapse = entry.suspected_at.is_some_and(|at| now - at < RELAPSE + entry.hold);
        entry.hold = if is_relapse { (entry.hold * 2).min(MOST_HOLD) } else { LEAST_HOLD };
        entry.relapses = if is_relapse { entry.relapses.saturating_add(1) } else { 0 };
        entry.health = Health::Suspect { since: now, suspicion };
        entry.suspected_at = Some(now);
        entry.proof = Proof::default();
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

    pub(super) fn is_up_on(&self, path: PathId) -> bool {
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
        let Some((id, path)) = self.subflow(slot).map(|subflow| (subflow.id, subflow.path)) else { return };
        let others_work = self.slots.iter().enumerate().any(|(other, subflow)| {
            other != slot && subflow.as_ref().is_some_and(|subflow| !subflow.is_suspect)
        });
        let Some(entry) = self.plan.entry(path) else { return };
        entry.failures = 0;
        if entry.is_good() {
            return;
        }
        if others_work {
            entry.probe_at = now;
            // What was said of it when it came up may have overtaken its HELLO, and the relay knew no such subflow.
            self.standings.insert(id, Standing::Suspect);
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

    /// A path is good again, and with it the subflows that answered. Others may have lost their address, or
    /// have a kernel that waits for many seconds before it sends once more.
    pub(super) fn restore_path(&mut self, path: PathId, now: Timestamp) {
        let Some(entry) = self.plan.entry(path) else { return };
        entry.health = Health::Good;
        entry.suspected_at = Some(now);
        entry.pings.clear();
        self.events.push_back(Event::PathRestored { path });
        let on_path = self.slots.iter().flatten().filter(|subflow| subflow.path == path);
        let silent = on_path.filter(|subflow| now - subflow.last_received >= UNPROVEN);
        for id in silent.map(|subflow| subflow.id).collect::<Vec<_>>() {
            self.remove_subflow(id, now);
            self.standings.insert(id, Standing::Gone);
            self.actions.push_back(Action::CloseSubflow { id, reason: CloseReason::Silent });
        }
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
            // Where all paths are used together, nothing leaves one that still works.
            let stays = |path| {
                let index = self.plan.index(path).filter(|_| self.config.policy == Policy::Aggregate);
                index.is_some_and(|index| self.plan.paths[index].is_good())
            };
            if let Some(from) = before
                && active.is_some()
                && !stays(from)
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
                    _ if !is_needed && (index > 0 || !self.is_free(entry)) => None,
                    None => Some(OpenReason::First),
                    Some((from, suspicion)) => Some(OpenReason::Backup { from, suspicion }),
                }
            }
            Health::Good => self.is_worth_opening(index, now).then_some(OpenReason::Aggregate),
            Health::Suspect { .. } => {
                // A newcomer or a failed path without a subflow is tried out; a metered one only when
                // nothing else is left, or for what it is worth.
                let is_wanted =
                    self.is_free(entry) || (none_good && is_needed) || self.is_worth_opening(index, now);
                (is_wanted && !self.is_probed(path, now)).then_some(OpenReason::Probe)
            }
        }
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
            entry.proof = Proof::default();
        }
        let patience = entry.patience();
        self.plan.wake(now + patience);
        let backup = self.config.policy == Policy::Handover && index > 0;
        self.actions.push_back(Action::OpenSubflow { id, path, backup, reason });
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
}
