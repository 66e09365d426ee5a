//! Counts of one session over all its streams, against the windows of both ends.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::bond::action::Violation;
use crate::bond::stream::Slots;
use crate::bond::wire::{INITIAL_SESSION_WINDOW, MAX_SEGMENTS, MAX_STREAMS_AHEAD, StreamId};

/// Streams that are over, remembered with where this end's direction stopped, for a far end that
/// did not hear of it. A session needs as many as can be over within one loss of a subflow.
const MOST_REMEMBERED: usize = 1024;

/// A run of bytes behind a gap costs some hundred bytes besides its own, so that over all streams there may
/// be as many as [`MAX_SEGMENTS`] and one for so many bytes of the window.
const BYTES_PER_RUN: u64 = 512;

/// Flow control over all streams.
#[derive(Debug)]
pub(super) struct Flow {
    /// New bytes sent.
    pub(super) sent: u64,
    /// New bytes that may be sent.
    pub(super) granted_to_us: u64,
    /// Sum of the highest sequence numbers received.
    received: u64,
    /// Sum of what was read or given up.
    consumed: u64,
    granted: u64,
    window: u64,
    /// Runs of bytes behind gaps, over all streams.
    runs: usize,
    most_runs: usize,
    /// Whether the far end is to be told.
    pub(super) is_due: bool,
}

impl Flow {
    pub(super) fn new(most: u64) -> Self {
        let window = most.max(INITIAL_SESSION_WINDOW);
        Self {
            sent: 0,
            granted_to_us: INITIAL_SESSION_WINDOW,
            received: 0,
            consumed: 0,
            granted: INITIAL_SESSION_WINDOW,
            window,
            runs: 0,
            most_runs: MAX_SEGMENTS + usize::try_from(window / BYTES_PER_RUN).unwrap_or(usize::MAX / 2),
            is_due: window > INITIAL_SESSION_WINDOW,
        }
    }

    pub(super) fn credit(&self) -> u64 {
        self.granted_to_us.saturating_sub(self.sent)
    }

    /// `bytes` more were received than before.
    pub(super) fn handle_received(&mut self, bytes: u64) -> Result<(), Violation> {
        if bytes > self.granted.saturating_sub(self.received) {
            return Err(Violation::BeyondSessionWindow);
        }
        self.received += bytes;
        Ok(())
    }

    /// `bytes` more were read or given up than before.
    pub(super) fn handle_consumed(&mut self, bytes: u64) {
        self.consumed += bytes;
        if self.consumed + self.window >= self.granted + self.window / 4 {
            self.is_due = true;
        }
    }

    /// A stream has `after` runs behind gaps in place of `before`; false when there are too many.
    pub(super) fn handle_runs(&mut self, before: usize, after: usize) -> bool {
        self.runs = self.runs + after - before;
        self.runs <= self.most_runs
    }

    /// Received and not read.
    pub(super) fn held(&self) -> u64 {
        self.received - self.consumed
    }

    /// Whether the far end may not send another byte.
    pub(super) fn is_exhausted(&self) -> bool {
        self.received >= self.granted
    }

    /// What to tell the far end.
    pub(super) fn grant(&mut self) -> u64 {
        self.is_due = false;
        self.granted = self.granted.max(self.consumed + self.window);
        self.granted
    }
}

/// Which stream numbers were seen, and what is remembered of streams that are over.
#[derive(Debug, Default)]
pub(super) struct Numbers {
    /// All below were seen.
    floor: u64,
    /// Those seen from there on.
    seen: BTreeSet<u64>,
    over: BTreeMap<StreamId, Over>,
    /// The same in the order in which they ended.
    ended: VecDeque<StreamId>,
}

/// A stream that is over.
#[derive(Debug, Clone, Copy)]
struct Over {
    /// Where this end's direction stopped.
    end: u64,
    /// Subflows that carried this end's last words, which would be lost with them.
    spoke_on: Slots,
}

impl Numbers {
    pub(super) fn is_seen(&self, stream: StreamId) -> bool {
        stream.0 < self.floor || self.seen.contains(&stream.0)
    }

    /// Marks a number as seen; false when it was already.
    pub(super) fn see(&mut self, stream: StreamId) -> Result<bool, Violation> {
        if self.is_seen(stream) {
            return Ok(false);
        }
        if stream.0 - self.floor >= MAX_STREAMS_AHEAD {
            return Err(Violation::TooFarAhead(stream.0));
        }
        self.seen.insert(stream.0);
        while self.seen.remove(&self.floor) {
            self.floor += 1;
        }
        Ok(true)
    }

    /// The next number (device).
    pub(super) fn next(&mut self) -> StreamId {
        let stream = StreamId(self.floor);
        self.floor += 1;
        stream
    }

    /// Remembers a stream that is over: where this end's direction stopped, and which subflows carried
    /// what it said.
    pub(super) fn remember(&mut self, stream: StreamId, end: u64, spoke_on: Slots) {
        if self.over.insert(stream, Over { end, spoke_on }).is_none() {
            self.ended.push_back(stream);
        }
        if self.ended.len() > MOST_REMEMBERED
            && let Some(oldest) = self.ended.pop_front()
        {
            self.over.remove(&oldest);
        }
    }

    pub(super) fn end_of(&self, stream: StreamId) -> u64 {
        self.over.get(&stream).map_or(0, |over| over.end)
    }

    /// Streams of which the subflow in `slot` may have carried the last words; each is told once.
    pub(super) fn over_on(&mut self, slot: usize) -> Vec<StreamId> {
        let on_slot = self.over.iter_mut().filter(|(_, over)| over.spoke_on.contains(slot));
        on_slot
            .map(|(stream, over)| {
                over.spoke_on = over.spoke_on.without(slot);
                *stream
            })
            .collect()
    }

    /// The far end is told over the subflow in `slot` that a stream is over.
    pub(super) fn note_told(&mut self, stream: StreamId, slot: usize) {
        if let Some(over) = self.over.get_mut(&stream) {
            over.spoke_on = over.spoke_on.with(slot);
        }
    }
}
