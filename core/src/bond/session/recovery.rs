//! What is sent again elsewhere: what a lost or probably failed subflow carried, what holds up
//! everything behind it, and the end of a burst that another subflow would deliver sooner.

use std::time::Duration;

use super::{ACK_DELAY, Session};
use crate::bond::config::Role;
use crate::bond::stream::Slots;
use crate::bond::wire::{Standing, StreamId};
use crate::units::Timestamp;

/// How often held-up streams are looked for, while there is another path to help on.
const PERIOD: Duration = Duration::from_millis(20);

/// Streams looked at in one period.
const LOOK_AT: usize = 256;

/// Most bytes of a burst's end that are sent twice: what MPBond's section 3.6 takes back from the
/// slower subflow is bounded by the difference of delays; this bounds it for wrong estimates.
const MOST_TAIL: u64 = 256 << 10;

/// Most bytes at the window's beginning that are sent twice in one period: four DATA frames.
const MOST_BLOCKING: u64 = 64 << 10;

/// Another subflow has to deliver sooner by this much, since both estimates are.
const WORTH_WHILE: Duration = Duration::from_millis(10);

impl Session {
    /// Says again, over other subflows, what the subflow in `slot` said of streams.
    pub(super) fn repeat_control(&mut self, slot: usize) {
        self.flow.is_due = true;
        if self.role == Role::Device {
            let suspects = self.slots.iter().flatten().filter(|subflow| subflow.is_suspect);
            self.standings.extend(suspects.map(|subflow| (subflow.id, Standing::Suspect)));
        }
        for (subflow, (standing, _)) in self.told.extract_if(.., |_, (_, told_on)| *told_on == slot) {
            self.standings.entry(subflow).or_insert(standing);
        }
        self.unsaid.extend(self.numbers.over_on(slot));
        for stream in self.streams.values_mut() {
            if !stream.spoke_on.contains(slot) {
                continue;
            }
            stream.spoke_on = stream.spoke_on.without(slot);
            stream.opened_on = stream.opened_on.without(slot);
            stream.needs_opened |= stream.result.is_some();
            stream.needs_reset |= stream.reset.is_some();
            stream.needs_ack |= stream.reset.is_none();
        }
        if let Some(subflow) = self.subflow_mut(slot) {
            let waiting = std::mem::take(&mut subflow.acks);
            subflow.clear_ack_timer();
            for id in waiting {
                if let Some(stream) = self.streams.get_mut(&id) {
                    stream.needs_ack = true;
                }
            }
        }
    }

    /// Whether subflows of two paths may carry data, so that one can help the other.
    fn can_help(&self) -> bool {
        let mut usable = self.slots.iter().flatten().filter(|subflow| self.may_carry(subflow, true));
        let Some(first) = usable.next() else { return false };
        usable.any(|subflow| subflow.path != first.path)
    }

    /// Sets the timer of [`Self::recover`] if there is anything to look after.
    pub(super) fn plan_recovery(&mut self, now: Timestamp) {
        self.recovery_at = match self.recovery_at {
            _ if self.busy.is_empty() || !self.can_help() => None,
            Some(at) => Some(at),
            None => Some(now + PERIOD),
        };
    }

    /// Looks for streams that another subflow can help.
    pub(super) fn recover(&mut self, now: Timestamp) {
        self.recovery_at = None;
        let ids: Vec<StreamId> = self.busy.iter().copied().take(LOOK_AT).collect();
        for id in ids {
            if self.help(id, now) {
                self.schedule(id, now);
            }
        }
        self.plan_recovery(now);
    }

    fn help(&mut self, id: StreamId, now: Timestamp) -> bool {
        let Some(stream) = self.streams.get(&id) else { return false };
        if !stream.sender.has_outstanding() || stream.scheduler.is_redundant() {
            return false;
        }
        let sees_backups = stream.scheduler.sees_backups();
        let idle = stream.leases.iter().filter_map(|(_, slot)| {
            let subflow = self.subflow(*slot)?;
            (subflow.is_hungry && self.may_carry(subflow, sees_backups)).then_some((*slot, subflow.srtt()))
        });
        let Some((slot, srtt)) = idle.min_by_key(|(_, srtt)| *srtt) else { return false };
        let arrival = now + srtt + ACK_DELAY;
        let is_window_blocked = stream.sender.is_window_blocked();
        let is_blocked = is_window_blocked || stream.sender.unsent() == 0;
        let Some(stream) = self.streams.get_mut(&id) else { return false };
        // A head that blocks the window, or with nothing behind it, is not waited for twice.
        let patience = if is_blocked { Duration::ZERO } else { srtt };
        let overdue = Timestamp::from_origin(now.since_origin().saturating_sub(patience));
        let helped = stream.sender.handle_blocked_head(slot, overdue);
        let blocking = is_window_blocked
            && stream.sender.handle_blocking(slot, now, arrival + WORTH_WHILE, MOST_BLOCKING);
        let is_tail = stream.sender.unsent() == 0;
        let late = is_tail && stream.sender.handle_late_tail(slot, arrival + WORTH_WHILE, MOST_TAIL);
        helped || blocking || late
    }

    /// The subflows of a path.
    pub(super) fn slots_of(&self, path: crate::paths::PathId) -> Slots {
        let on_path = |slot: &usize| self.subflow(*slot).is_some_and(|subflow| subflow.path == path);
        (0..self.slots.len()).filter(on_path).fold(Slots::NONE, Slots::with)
    }

    /// The longest round trip of the subflows that are used.
    pub(super) fn longest_rtt(&self) -> Duration {
        let used = self.slots.iter().flatten().filter(|subflow| !subflow.is_suspect);
        used.map(|subflow| subflow.srtt()).max().unwrap_or(crate::bond::subflow::UNKNOWN_RTT)
    }
}
