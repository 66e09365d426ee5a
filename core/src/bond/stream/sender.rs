use std::collections::{BTreeMap, BTreeSet};

use bytes::{Bytes, BytesMut};

use super::pieces::Pieces;
use crate::bond::wire::{INITIAL_STREAM_WINDOW, MAX_SEGMENTS, Mark};
use crate::units::Timestamp;

/// Segments looked at to find one that a subflow does not carry yet.
const LOOK_AT: usize = 64;

/// A set of subflows, by their slots.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(in crate::bond) struct Slots(u64);

impl Slots {
    pub(in crate::bond) const NONE: Self = Self(0);
    pub(in crate::bond) const ALL: Self = Self(u64::MAX);

    pub(in crate::bond) const fn one(slot: usize) -> Self {
        Self(1 << slot)
    }

    pub(in crate::bond) const fn contains(self, slot: usize) -> bool {
        self.0 & 1 << slot != 0
    }

    pub(in crate::bond) const fn with(self, slot: usize) -> Self {
        Self(self.0 | 1 << slot)
    }

    pub(in crate::bond) const fn without(self, slot: usize) -> Self {
        Self(self.0 & !(1 << slot))
    }

    /// Whether all of these are in `other`.
    pub(in crate::bond) const fn is_within(self, other: Self) -> bool {
        self.0 & !other.0 == 0
    }

    pub(in crate::bond) fn iter(self) -> impl Iterator<Item = usize> {
        let mut left = self.0;
        std::iter::from_fn(move || {
            let slot = left.trailing_zeros() as usize;
            (left != 0).then(|| {
                left &= left - 1;
                slot
            })
        })
    }
}

/// Consecutive bytes that were sent together and are not acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Segment {
    length: u64,
    fin: bool,
    carriers: Slots,
    /// When its acknowledgment was to be expected.
    due: Timestamp,
}

/// What a subflow may be given now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::bond) struct Room {
    /// Most payload bytes of one frame.
    pub(in crate::bond) payload: usize,
    /// New bytes that the session's window takes.
    pub(in crate::bond) credit: u64,
    /// When an acknowledgment of what is sent now is to be expected.
    pub(in crate::bond) due: Timestamp,
    /// Whether it gets what others carry already.
    pub(in crate::bond) redundant: bool,
}

/// A segment to be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::bond) struct Emission {
    pub(in crate::bond) dsn: u64,
    pub(in crate::bond) length: usize,
    pub(in crate::bond) mark: Mark,
    /// Bytes that count against the session's window, since they were never sent before.
    pub(in crate::bond) new: u64,
}

/// Bytes that a set of subflows does not carry any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::bond) struct Freed {
    pub(in crate::bond) carriers: Slots,
    pub(in crate::bond) bytes: u64,
}

/// This end's direction of one stream: the send buffer, which is the send history as well.
#[derive(Debug)]
pub(in crate::bond) struct Sender {
    /// Everything handed in and not acknowledged.
    pieces: Pieces,
    /// First sequence number never sent.
    next: u64,
    is_finished: bool,
    is_fin_sent: bool,
    is_fin_acked: bool,
    /// What lies between what is acknowledged and `next`, without gaps.
    segments: BTreeMap<u64, Segment>,
    /// Segments to be sent again.
    lost: BTreeSet<u64>,
    /// Where each subflow stands that carries everything.
    cursors: BTreeMap<usize, u64>,
    window: u64,
}

impl Sender {
    pub(in crate::bond) fn new() -> Self {
        Self {
            pieces: Pieces::default(),
            next: 0,
            is_finished: false,
            is_fin_sent: false,
            is_fin_acked: false,
            segments: BTreeMap::new(),
            lost: BTreeSet::new(),
            cursors: BTreeMap::new(),
            window: INITIAL_STREAM_WINDOW,
        }
    }

    pub(in crate::bond) fn append(&mut self, bytes: Bytes) {
        self.pieces.append(bytes);
    }

    pub(in crate::bond) fn finish(&mut self) {
        self.is_finished = true;
    }

    pub(in crate::bond) fn is_finished(&self) -> bool {
        self.is_finished
    }

    /// Whether the end was acknowledged, and so everything.
    pub(in crate::bond) fn is_done(&self) -> bool {
        self.is_fin_acked
    }

    /// Bytes held.
    pub(in crate::bond) fn buffered(&self) -> u64 {
        self.pieces.end() - self.pieces.begin()
    }

    /// Bytes never sent.
    pub(in crate::bond) fn unsent(&self) -> u64 {
        self.pieces.end() - self.next
    }

    /// One past the highest byte sent.
    pub(in crate::bond) fn sent_end(&self) -> u64 {
        self.next
    }

    /// Bytes that the far end's window takes.
    pub(in crate::bond) fn window_left(&self) -> u64 {
        self.window.saturating_sub(self.next)
    }

    /// Whether something was sent and not acknowledged.
    pub(in crate::bond) fn has_outstanding(&self) -> bool {
        !self.segments.is_empty()
    }

    /// Whether something waits to be sent, be the windows open or not.
    pub(in crate::bond) fn has_work(&self) -> bool {
        !self.lost.is_empty() || self.unsent() > 0 || self.is_fin_due()
    }

    /// Whether something waits to be sent that the far end's window lets out.
    pub(in crate::bond) fn can_send(&self) -> bool {
        self.has_work() && !(self.lost.is_empty() && self.is_window_blocked())
    }

    /// Whether bytes wait for the far end's window.
    pub(in crate::bond) fn is_window_blocked(&self) -> bool {
        self.unsent() > 0 && self.window_left() == 0
    }

    fn is_fin_due(&self) -> bool {
        self.is_finished && !self.is_fin_sent && self.unsent() == 0
    }

    /// Whether something is to be sent again that the subflow in `slot` does not carry.
    pub(in crate::bond) fn has_lost_for(&self, slot: usize) -> bool {
        self.lost_for(slot).is_some()
    }

    fn lost_for(&self, slot: usize) -> Option<u64> {
        let is_carried = |dsn: &u64| self.segments.get(dsn).is_none_or(|found| found.carriers.contains(slot));
        self.lost.iter().take(LOOK_AT).copied().find(|dsn| !is_carried(dsn))
    }

    /// The next segment for the subflow in `slot`; it counts as sent.
    pub(in crate::bond) fn next_segment(&mut self, slot: usize, room: Room) -> Option<Emission> {
        if room.payload == 0 {
            return None;
        }
        if let Some(dsn) = self.lost_for(slot) {
            return self.send_again(dsn, slot, room);
        }
        if room.redundant
            && let Some(dsn) = self.not_carried_by(slot)
        {
            return self.send_again(dsn, slot, room);
        }
        let length = self.unsent().min(self.window_left()).min(room.credit).min(room.payload as u64);
        if (length == 0 && !self.is_fin_due()) || self.segments.len() >= MAX_SEGMENTS {
            return None;
        }
        let dsn = self.next;
        self.next += length;
        let fin = self.is_fin_due();
        self.is_fin_sent |= fin;
        let segment = Segment { length, fin, carriers: Slots::one(slot), due: room.due };
        self.segments.insert(dsn, segment);
        Some(Emission { dsn, length: length as usize, mark: self.mark_of(dsn, &segment), new: length })
    }

    /// Appends an emission's bytes.
    pub(in crate::bond) fn copy(&self, emission: &Emission, into: &mut BytesMut) {
        self.pieces.copy(emission.dsn, emission.length, into);
    }

    /// Everything below `data_ack` has arrived, the end counting as one; false when it was not sent.
    pub(in crate::bond) fn handle_ack(&mut self, data_ack: u64, freed: &mut Vec<Freed>) -> bool {
        if data_ack > self.next + u64::from(self.is_fin_sent) {
            return false;
        }
        while let Some(entry) = self.segments.first_entry() {
            let (dsn, segment) = (*entry.key(), *entry.get());
            if dsn + segment.length + u64::from(segment.fin) <= data_ack {
                entry.remove();
                self.lost.remove(&dsn);
                self.is_fin_acked |= segment.fin;
                freed.push(Freed { carriers: segment.carriers, bytes: segment.length });
                continue;
            }
            let arrived = data_ack.saturating_sub(dsn).min(segment.length);
            if arrived > 0 {
                entry.remove();
                self.segments.insert(dsn + arrived, Segment { length: segment.length - arrived, ..segment });
                if self.lost.remove(&dsn) {
                    self.lost.insert(dsn + arrived);
                }
                freed.push(Freed { carriers: segment.carriers, bytes: arrived });
            }
            break;
        }
        self.pieces.drop_below(data_ack);
        true
    }

    /// Everything has arrived, as far as it was sent; true when the end is part of it.
    pub(in crate::bond) fn handle_all_acked(&mut self, freed: &mut Vec<Freed>) -> bool {
        let all = self.next + u64::from(self.is_fin_sent);
        self.handle_ack(all, freed) && self.is_fin_acked
    }

    /// The far end grants a wider window; true when it did.
    pub(in crate::bond) fn handle_window(&mut self, window: u64) -> bool {
        let wider = window > self.window;
        self.window = self.window.max(window);
        wider
    }

    /// The subflow in `slot` is lost: what only it carried, or it and others that have probably
    /// failed, goes again.
    pub(in crate::bond) fn handle_slot_down(&mut self, slot: usize, suspects: Slots) {
        self.cursors.remove(&slot);
        for (dsn, segment) in &mut self.segments {
            if segment.carriers.contains(slot) {
                segment.carriers = segment.carriers.without(slot);
                if segment.carriers.is_within(suspects) {
                    self.lost.insert(*dsn);
                }
            }
        }
    }

    /// Sends again what only `suspects` carry; true when there is any.
    pub(in crate::bond) fn handle_suspects(&mut self, suspects: Slots) -> bool {
        for (dsn, segment) in &self.segments {
            if segment.carriers.is_within(suspects) {
                self.lost.insert(*dsn);
            }
        }
        !self.lost.is_empty()
    }

    /// Sends the first segment again if nobody in `slots` carries it and its acknowledgment was due
    /// at `overdue` or before: it holds up everything behind it.
    pub(in crate::bond) fn handle_blocked_head(&mut self, slot: usize, overdue: Timestamp) -> bool {
        match self.segments.first_key_value() {
            Some((dsn, head)) if !head.carriers.contains(slot) && head.due <= overdue => {
                self.lost.insert(*dsn)
            }
            _ => false,
        }
    }

    /// What comes late uses up the window, or is all that is missing: sends again, from the beginning, what
    /// only `carried_by` carry and another subflow would deliver before it is due, or what is overdue
    /// (Raiciu et al., NSDI 2012, section 4.2).
    pub(in crate::bond) fn handle_blocking(
        &mut self,
        slot: usize,
        now: Timestamp,
        arrival: Timestamp,
        carried_by: Slots,
        most: u64,
    ) -> bool {
        let mut bytes = 0;
        let before = self.lost.len();
        for (dsn, segment) in &self.segments {
            let is_coming = now < segment.due && segment.due <= arrival;
            if is_coming || segment.carriers.contains(slot) || !segment.carriers.is_within(carried_by) {
                continue;
            }
            bytes += segment.length;
            if bytes > most {
                break;
            }
            self.lost.insert(*dsn);
        }
        self.lost.len() > before
    }

    /// Gives everything up; the subflows carry nothing of it any more.
    pub(in crate::bond) fn clear(&mut self, freed: &mut Vec<Freed>) {
        let carried = self.segments.values();
        freed.extend(carried.map(|segment| Freed { carriers: segment.carriers, bytes: segment.length }));
        self.segments.clear();
        self.lost.clear();
        self.pieces = Pieces::starting_at(self.next);
        self.is_finished = true;
        self.is_fin_sent = true;
    }

    fn mark_of(&self, dsn: u64, segment: &Segment) -> Mark {
        Mark { idle: dsn + segment.length == self.pieces.end(), fin: segment.fin }
    }

    /// The first segment behind the subflow's cursor that it does not carry.
    fn not_carried_by(&mut self, slot: usize) -> Option<u64> {
        let from = self.cursors.get(&slot).copied().unwrap_or(0);
        let (found, reached) = match self.segments.range(from..).find(|(_, s)| !s.carriers.contains(slot)) {
            Some((dsn, _)) => (Some(*dsn), *dsn),
            None => (None, self.next),
        };
        self.cursors.insert(slot, reached);
        found
    }

    fn send_again(&mut self, dsn: u64, slot: usize, room: Room) -> Option<Emission> {
        let segment = self.segments.get_mut(&dsn)?;
        let is_lost = self.lost.remove(&dsn);
        if segment.length > room.payload as u64 {
            let first = room.payload as u64;
            let rest = Segment { length: segment.length - first, ..*segment };
            segment.length = first;
            segment.fin = false;
            self.segments.insert(dsn + first, rest);
            if is_lost {
                self.lost.insert(dsn + first);
            }
        }
        let segment = self.segments.get_mut(&dsn)?;
        segment.carriers = segment.carriers.with(slot);
        segment.due = room.due;
        let segment = *segment;
        Some(Emission { dsn, length: segment.length as usize, mark: self.mark_of(dsn, &segment), new: 0 })
    }
}
