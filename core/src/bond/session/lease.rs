//! Which subflows a stream uses.
//!
//! A stream leases one subflow of each path while it is busy, so that streams do not hold each
//! other up inside one TCP connection. A free one is preferred; a device opens another one when all
//! are taken.

use super::{Session, Stream};
use crate::bond::config::Role;
use crate::bond::stream::Slots;
use crate::bond::subflow::Subflow;
use crate::bond::wire::StreamId;
use crate::paths::PathId;
use crate::units::Timestamp;

/// How well a subflow may be used: the lowest tier that has any is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Tier {
    Normal,
    Backup,
    Suspect,
}

pub(super) fn tier(subflow: &Subflow) -> Option<Tier> {
    if subflow.is_forbidden {
        None
    } else if subflow.is_suspect {
        Some(Tier::Suspect)
    } else if subflow.is_backup {
        Some(Tier::Backup)
    } else {
        Some(Tier::Normal)
    }
}

impl Session {
    /// The best tier that has a subflow.
    pub(super) fn best_tier(&self) -> Option<Tier> {
        self.slots.iter().flatten().filter_map(tier).min()
    }

    /// Whether a stream's data may go over a subflow. A scheduler that sees backups takes those for normal ones on whose
    /// path the far end spoke last: on others nothing goes, not even what would help, or they never fall silent.
    pub(super) fn may_carry(&self, subflow: &Subflow, sees_backups: bool) -> bool {
        let (Some(own), Some(best)) = (tier(subflow), self.best_tier()) else { return false };
        own == best || (sees_backups && own == Tier::Backup && self.heard_on == Some(subflow.path))
    }

    /// Subflows that have probably failed.
    pub(super) fn suspects(&self) -> Slots {
        let suspect = |slot: &usize| {
            self.subflow(*slot).is_some_and(|subflow| subflow.is_suspect || subflow.is_forbidden)
        };
        (0..self.slots.len()).filter(suspect).fold(Slots::NONE, Slots::with)
    }

    /// The subflow for what is no data: where the far end spoke last, if data may go there too; else
    /// one that is as good as any.
    pub(super) fn control_slot(&self, stream: &Stream) -> Option<usize> {
        let best = self.best_tier()?;
        let sees_backups = stream.scheduler.sees_backups();
        if let Some(slot) = stream.arrived_on
            && self.subflow(slot).is_some_and(|subflow| self.may_carry(subflow, sees_backups))
        {
            return Some(slot);
        }
        let good = |slot: usize| {
            let subflow = self.subflow(slot)?;
            (tier(subflow) == Some(best)).then_some(slot)
        };
        let leased = stream.leases.iter().filter_map(|(_, slot)| good(*slot));
        let all = (0..self.slots.len()).filter_map(good);
        let by_rank = |slot: &usize| {
            self.subflow(*slot).map(|subflow| (self.rank(subflow.path), subflow.tenants, subflow.id))
        };
        leased.min_by_key(by_rank).or_else(|| all.min_by_key(by_rank))
    }

    /// The place of a path in the owner's order of preference.
    pub(super) fn rank(&self, path: PathId) -> u32 {
        match self.role {
            Role::Device => self.plan.rank(path),
            Role::Relay => 0,
        }
    }

    /// Puts a stream into the rings of the subflows that may carry what it has to say.
    pub(super) fn schedule(&mut self, id: StreamId, now: Timestamp) {
        self.update_busy(id, now);
        let Some(stream) = self.streams.get(&id) else { return };
        let has_work = stream.reset.is_none() && stream.sender.has_work();
        if has_work {
            self.lease(id);
        }
        let Some(stream) = self.streams.get(&id) else { return };
        let mut wanted = Slots::NONE;
        if has_work {
            wanted = stream.leases.iter().fold(wanted, |wanted, (_, slot)| wanted.with(*slot));
        }
        if stream.has_control() && (wanted == Slots::NONE || stream.needs_reset || stream.needs_ack) {
            wanted = self.control_slot(stream).map_or(wanted, |slot| wanted.with(slot));
        }
        for slot in wanted.iter() {
            self.enqueue(id, slot);
        }
    }

    fn enqueue(&mut self, id: StreamId, slot: usize) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        let Some(subflow) = self.slots.get_mut(slot).and_then(Option::as_mut) else { return };
        if !stream.queued.contains(slot) {
            stream.queued = stream.queued.with(slot);
            subflow.ring.push_back(id);
        }
    }

    /// Every stream looks for its subflows anew.
    pub(super) fn replan(&mut self, now: Timestamp) {
        self.epoch += 1;
        self.plan_recovery(now);
        let suspects = self.suspects();
        let ids: Vec<StreamId> = self.streams.keys().copied().collect();
        for id in ids {
            if let Some(stream) = self.streams.get_mut(&id) {
                if stream.sender.has_outstanding() && suspects != Slots::NONE {
                    stream.sender.handle_suspects(suspects);
                }
                self.schedule(id, now);
            }
        }
    }

    /// The subflow on which a relay answers, since the device spoke there last. Once another one of the path was
    /// heard, that one works as well: who only listens need not stay where somebody else came since.
    fn followed(&self, stream: &Stream) -> Option<usize> {
        let slot = stream.arrived_on.filter(|_| self.role == Role::Relay)?;
        let path = self.subflow(slot)?.path;
        let is_as_good = |(other, subflow): (usize, &Subflow)| {
            other != slot && subflow.path == path && subflow.last_received > stream.arrived_at
        };
        let mut subflows =
            self.slots.iter().enumerate().filter_map(|(other, subflow)| Some((other, subflow.as_ref()?)));
        (!subflows.any(is_as_good)).then_some(slot)
    }

    /// Finds a stream a subflow on each path that may carry its data: the one to follow; else a free one, if
    /// possible the same as before.
    fn lease(&mut self, id: StreamId) {
        let Some(stream) = self.streams.get(&id) else { return };
        let followed = self.followed(stream);
        let is_moved = followed.is_some_and(|slot| !stream.leases.iter().any(|(_, leased)| *leased == slot));
        if stream.lease_epoch == self.epoch && !is_moved {
            return;
        }
        let sees_backups = stream.scheduler.sees_backups();
        let mut leases: Vec<(PathId, usize)> = Vec::new();
        for (slot, subflow) in self.slots.iter().enumerate() {
            let Some(subflow) = subflow else { continue };
            if !self.may_carry(subflow, sees_backups) {
                continue;
            }
            let others = |slot: usize| {
                let held = stream.leases.iter().any(|(_, leased)| *leased == slot);
                self.subflow(slot)
                    .map_or(0, |subflow| subflow.tenants - usize::from(held && subflow.tenants > 0))
            };
            let key = |slot: usize| {
                let held = stream.leases.iter().any(|(_, leased)| *leased == slot);
                (followed != Some(slot), others(slot), !held, slot)
            };
            match leases.iter_mut().find(|(path, _)| *path == subflow.path) {
                Some(lease) if key(slot) < key(lease.1) => lease.1 = slot,
                Some(_) => {}
                None => leases.push((subflow.path, slot)),
            }
        }
        let is_shared = |slot: usize| {
            let held = stream.leases.iter().any(|(_, leased)| *leased == slot);
            self.subflow(slot).is_some_and(|subflow| subflow.tenants > usize::from(held))
        };
        let crowded: Vec<PathId> =
            leases.iter().filter(|(_, slot)| is_shared(*slot)).map(|(path, _)| *path).collect();
        let epoch = self.epoch;
        self.set_leases(id, leases);
        if let Some(stream) = self.streams.get_mut(&id) {
            stream.lease_epoch = epoch;
        }
        for path in crowded {
            self.plan_crowded(path);
        }
    }

    /// Replaces a stream's leases and keeps the count of tenants.
    pub(super) fn set_leases(&mut self, id: StreamId, leases: Vec<(PathId, usize)>) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        let before = std::mem::replace(&mut stream.leases, leases);
        let after = stream.leases.clone();
        for (_, slot) in before {
            if let Some(subflow) = self.subflow_mut(slot) {
                subflow.tenants = subflow.tenants.saturating_sub(1);
            }
        }
        for (_, slot) in after {
            if let Some(subflow) = self.subflow_mut(slot) {
                subflow.tenants += 1;
            }
        }
    }

    /// Notes whether a stream is busy; one that is not gives its subflows back.
    pub(super) fn update_busy(&mut self, id: StreamId, now: Timestamp) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        let is_open = stream.reset.is_none();
        let is_expecting = is_open && stream.receiver.expects_more();
        let is_busy = is_expecting
            || (is_open && (stream.sender.has_work() || stream.sender.has_outstanding()))
            || !stream.is_confirmed
            || stream.reset.is_some();
        let expecting_on = stream.arrived_on.filter(|_| is_expecting);
        let expected_on = std::mem::replace(&mut stream.expecting_on, expecting_on);
        let was_busy = stream.busy_since.is_some();
        if is_busy != was_busy {
            stream.busy_since = is_busy.then_some(now);
        }
        if expected_on != expecting_on {
            if let Some(subflow) = expected_on.and_then(|slot| self.subflow_mut(slot)) {
                subflow.expecting.remove(&id);
            }
            if let Some(subflow) = expecting_on.and_then(|slot| self.subflow_mut(slot)) {
                if subflow.expecting.is_empty() {
                    subflow.expecting_since = now;
                }
                subflow.expecting.insert(id);
            }
        }
        if is_busy && !was_busy {
            self.busy.insert(id);
            if self.recovery_at.is_none() {
                self.plan_recovery(now);
            }
            self.plan_busy(now);
        } else if !is_busy && was_busy {
            self.busy.remove(&id);
            self.set_leases(id, Vec::new());
            if let Some(stream) = self.streams.get_mut(&id) {
                stream.lease_epoch = 0;
            }
        }
    }
}
