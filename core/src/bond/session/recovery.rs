//! What is sent again elsewhere: what a lost or probably failed subflow carried, what holds up
//! everything behind it, and the end of a burst that another subflow would deliver sooner.

use std::time::Duration;

use super::{ACK_DELAY, Session, Stream};
use crate::bond::config::Role;
use crate::bond::stream::{Sender, Slots};
use crate::bond::subflow::Subflow;
use crate::bond::wire::{Standing, StreamId};
use crate::units::{Rate, Timestamp};

/// How often held-up streams are looked for, while there is another path to help on.
const PERIOD: Duration = Duration::from_millis(20);

/// Streams looked at in one period.
const LOOK_AT: usize = 256;

/// Most bytes that are sent twice in one period, from the first on: four DATA frames.
const MOST_BLOCKING: u64 = 64 << 10;

/// At the end of a burst, what MPBond's section 3.6 takes back from the slower subflow is bounded by the
/// difference of delays. For wrong estimates it is bounded here by so many bytes and one part in so many of
/// what the stream has sent.
const LEAST_SPARE: u64 = 64 << 10;
const SPARE_PARTS: u64 = 4;

/// A window ends soon when a subflow would use it up in so many round trips.
const SHORT_ROUNDS: u32 = 4;

/// A subflow with less than one part in so many of another one's rate is far slower.
const FAR_SLOWER: u64 = 8;

/// Another subflow has to deliver sooner by this much, since both estimates are.
const WORTH_WHILE: Duration = Duration::from_millis(10);

/// Whether the window ends before what a subflow would bring now is acknowledged, and half of
/// it is used up.
fn is_window_short(sender: &Sender, subflow: &Subflow) -> bool {
    let outstanding = sender.buffered() - sender.unsent();
    let left = sender.window_left();
    sender.unsent() > 0 && left < (u64::from(SHORT_ROUNDS) * subflow.window()).min(outstanding)
}

fn rate_of(subflow: &Subflow) -> Rate {
    Rate::from_bytes_in(subflow.window(), subflow.srtt())
}

impl Stream {
    /// How much more may be sent twice.
    fn spare(&self) -> u64 {
        let carried: u64 = self.carried.iter().map(|carried| carried.sent).sum();
        let end = self.sender.sent_end();
        (LEAST_SPARE + end / SPARE_PARTS).saturating_sub(carried.saturating_sub(end))
    }
}

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

    /// Whether a subflow that may carry data can help one of another path, be it that this one may carry no more.
    fn can_help(&self) -> bool {
        let mut usable = self.slots.iter().flatten().filter(|subflow| self.may_carry(subflow, true));
        let Some(first) = usable.next() else { return false };
        self.slots.iter().flatten().any(|subflow| subflow.path != first.path)
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
        // Streams in turn, and only those of which something may be late: who stopped reading hides nobody.
        let next = self.recovery_next;
        let in_turn = self.busy.range(next..).chain(self.busy.range(..next)).copied();
        let has_outstanding =
            |id: &StreamId| self.streams.get(id).is_some_and(|stream| stream.sender.has_outstanding());
        let ids: Vec<StreamId> = in_turn.filter(has_outstanding).take(LOOK_AT).collect();
        if let Some(last) = ids.last() {
            self.recovery_next = StreamId(last.0 + 1);
        }
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
        let leased = stream.leases.iter().filter_map(|(_, slot)| Some((*slot, self.subflow(*slot)?)));
        let usable = leased.filter(|(_, subflow)| self.may_carry(subflow, sees_backups));
        let Some(fastest) = usable.clone().max_by_key(|(_, subflow)| rate_of(subflow)) else { return false };
        let is_far_slower = |it: &Subflow| {
            rate_of(it).bytes_per_second() < rate_of(fastest.1).bytes_per_second() / FAR_SLOWER
        };
        let idle = usable.clone().filter(|(_, subflow)| subflow.is_hungry);
        let idle = idle.min_by_key(|(_, subflow)| subflow.srtt());
        // A window that ends soon, held up by what is far slower, is worth a place before what waits on the
        // fastest.
        let is_short = is_window_short(&stream.sender, fastest.1);
        let is_last_resort = is_short && idle.is_none_or(|(_, subflow)| is_far_slower(subflow));
        let Some((slot, subflow)) = (if is_last_resort { Some(fastest) } else { idle }) else { return false };
        let slow = usable.filter(|(_, subflow)| is_short && is_far_slower(subflow));
        let slow = slow.fold(Slots::NONE, |slow, (slot, _)| slow.with(slot));
        let srtt = subflow.srtt();
        // By the same measure as what the others carry was due.
        let arrival = now + srtt + 2 * subflow.sample.rtt_variance + ACK_DELAY + WORTH_WHILE;
        let Some(stream) = self.streams.get_mut(&id) else { return false };
        let is_window_blocked = stream.sender.is_window_blocked();
        let is_tail = stream.sender.unsent() == 0;
        // A head that blocks the window, or with nothing behind it, is not waited for twice.
        let patience = if is_window_blocked || is_tail { Duration::ZERO } else { srtt };
        let overdue = Timestamp::from_origin(now.since_origin().saturating_sub(patience));
        let helped = stream.sender.handle_blocked_head(slot, overdue);
        let (carried_by, most) = match is_window_blocked {
            true => (Slots::ALL, MOST_BLOCKING),
            false if is_tail => (Slots::ALL, stream.spare().min(MOST_BLOCKING)),
            false => (slow, stream.spare().min(MOST_BLOCKING)),
        };
        stream.sender.handle_blocking(slot, now, arrival, carried_by, most) || helped
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
