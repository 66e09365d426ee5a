//! Counts of one session over all its streams, against the windows of both ends.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::status::WindowCounts;
use crate::bond::action::Violation;
use crate::bond::config::Limits;
use crate::bond::stream::Slots;
use crate::bond::wire::{INITIAL_SESSION_WINDOW, MAX_SEGMENTS, MAX_STREAMS_AHEAD, StreamId};

/// Streams that are over, remembered with where this end's direction stopped, for a far end that
/// did not hear of it. A session needs as many as can be over within one loss of a subflow.
const MOST_REMEMBERED: usize = 1024;

/// A run of bytes behind a gap costs some hundred bytes besides its own, so that over all streams there may
/// be as many as [`MAX_SEGMENTS`] and one for so many bytes of the window.
const BYTES_PER_RUN: u64 = 512;

/// The far end is told of a wider window when this part of what it has left was read, but of fewer bytes only
/// when a stream's first window would not fit any more.
const TELL_PART: u64 = 4;
const LEAST_STEP: u64 = 16 << 10;

/// What the pool gives a stream, of the part `f` of it that others leave free: `f²` of this part of the pool to
/// a stream whose reader reads,
const SHARE: u64 = 2;

/// and of this part to a new one, of whose reader nothing is known: most never send much.
const FIRST_SHARE: u64 = 64;

/// Flow control over all streams.
///
/// Every stream may send [`crate::bond::wire::INITIAL_STREAM_WINDOW`] bytes that are not read. What it is granted beyond
/// comes out of a pool, by a threshold on what is free as in switches whose ports share memory (Choudhury and
/// Hahne, IEEE/ACM Transactions on Networking 6(2), 1998). Bytes granted are counted, not those that came: who
/// counted these would have to hold them all when every reader stops. The session's window holds the pool and
/// what every stream has, so that it stops no stream which its own window lets send.
///
/// After a violation the counts may not match what streams hold, until the session is gone: none runs below zero.
///
/// The threshold falls with the square of what is free. With a fixed fraction each reader that stops would leave
/// the same fraction to the next one, and twenty of them nothing to speak of; with the square `n` of them leave
/// 3 / (2 n + 4) of the pool.
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
    pool: u64,
    /// What streams were granted out of the pool and have not read.
    promised: u64,
    /// Runs of bytes behind gaps, over all streams.
    runs: usize,
    most_runs: usize,
    /// Whether the far end is to be told.
    pub(super) is_due: bool,
}

impl Flow {
    pub(super) fn new(limits: &Limits) -> Self {
        let window = limits.most_received().max(INITIAL_SESSION_WINDOW);
        Self {
            sent: 0,
            granted_to_us: INITIAL_SESSION_WINDOW,
            received: 0,
            consumed: 0,
            granted: INITIAL_SESSION_WINDOW,
            window,
            pool: limits.receive_in_all,
            promised: 0,
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
        self.note_due();
        Ok(())
    }

    /// `bytes` more were read or given up than before.
    pub(super) fn handle_consumed(&mut self, bytes: u64) {
        self.consumed += bytes;
        self.note_due();
    }

    fn note_due(&mut self) {
        let step = ((self.granted - self.received) / TELL_PART).clamp(LEAST_STEP, self.window / TELL_PART);
        self.is_due |= self.consumed + self.window >= self.granted + step;
    }

    /// What a stream was granted out of the pool and has not read is `after` in place of `before`.
    pub(super) fn handle_promised(&mut self, before: u64, after: u64) {
        self.promised = (self.promised + after).saturating_sub(before);
    }

    /// What a stream that holds `own` bytes of the pool may have of it.
    pub(super) fn room(&self, own: u64) -> u64 {
        self.share(self.pool.saturating_sub(self.promised.saturating_sub(own)), SHARE)
    }

    /// What a new stream may have of the pool.
    pub(super) fn first_room(&self) -> u64 {
        self.share(self.pool.saturating_sub(self.promised), FIRST_SHARE)
    }

    fn share(&self, free: u64, part: u64) -> u64 {
        let whole = u128::from(self.pool.max(1)) * u128::from(part);
        u64::try_from(u128::from(free) * u128::from(free) / whole).unwrap_or(u64::MAX)
    }

    /// For status.
    pub(super) fn counts(&self) -> WindowCounts {
        let Self { sent, received, consumed, promised, .. } = *self;
        WindowCounts { sent, received, read: consumed, promised }
    }

    /// A stream has `after` runs behind gaps in place of `before`; false when there are too many.
    pub(super) fn handle_runs(&mut self, before: usize, after: usize) -> bool {
        self.runs = (self.runs + after).saturating_sub(before);
        self.runs <= self.most_runs
    }

    /// Received and not read.
    pub(super) fn held(&self) -> u64 {
        self.received.saturating_sub(self.consumed)
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

#[cfg(test)]
mod tests {
    use super::*;

    /// The part of the pool that is left when so many streams have taken what they may.
    fn left(streams: u32, room: impl Fn(&Flow) -> u64) -> f64 {
        let limits = Limits::default();
        let mut flow = Flow::new(&limits);
        for _ in 0..streams {
            let taken = room(&flow);
            flow.handle_promised(0, taken);
        }
        (limits.receive_in_all - flow.promised) as f64 / limits.receive_in_all as f64
    }

    #[test]
    fn readers_that_stop_leave_the_others_what_the_protocol_says() {
        for streams in [1, 2, 3, 10, 40, 1024] {
            let n = f64::from(streams);
            let grown = left(streams, |flow| flow.room(0));
            assert!(grown >= 3.0 / (2.0 * n + 4.0) - 1e-6, "{streams}: {grown}");
            let new = left(streams, Flow::first_room);
            assert!(new >= 63.0 / (n + 63.0) - 1e-6, "{streams}: {new}");
        }
    }

    #[test]
    fn the_sessions_window_is_told_in_steps_until_little_of_it_is_left() {
        let mut flow = Flow::new(&Limits::default());
        let window = flow.grant();
        flow.handle_received(LEAST_STEP).unwrap();
        flow.handle_consumed(LEAST_STEP);
        assert!(!flow.is_due, "nearly all of it is left");
        flow.handle_received(window - LEAST_STEP).unwrap();
        assert!(flow.is_due, "nothing is left");
        assert_eq!(flow.grant(), window + LEAST_STEP);
        assert_eq!(flow.handle_received(LEAST_STEP + 1), Err(Violation::BeyondSessionWindow));
    }
}
