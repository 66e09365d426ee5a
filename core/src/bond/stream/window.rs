use std::time::Duration;

use crate::bond::wire::INITIAL_STREAM_WINDOW;
use crate::units::Timestamp;

/// The window of a stream whose reader has shown to be fast.
const FAST_WINDOW: u64 = 1 << 20;

/// A window grows when this part of it was read
const GROWTH_PART: u64 = 4;

/// within this part of a round trip: then it is less than twice what is read in a round trip, which the sender
/// needs to go on growing (Linux's dynamic right-sizing, `tcp_rcv_space_adjust`).
const GROWTH_ROUNDS: u32 = 2;

/// Shorter round trips are taken for this long: another path may join at any time, and what it brings late
/// holds up what the faster one has brought.
const LEAST_ROUND: Duration = Duration::from_millis(100);

/// A window of which less than one part in so many is left is used up, if what came last waits behind a gap:
/// then a slow path held up a fast one, however long that took.
const NEARLY: u64 = 8;

/// The far end is told of a wider window when this part of it was read.
const TELL_PART: u64 = 4;

/// How much of one stream the far end may send. What was granted is never taken back, so a window follows what
/// its reader has really read in a round trip, and no further than the session's pool has room.
#[derive(Debug)]
pub(super) struct Window {
    /// Bytes below may be sent, as the far end was told.
    granted: u64,
    /// What the reader needs.
    size: u64,
    most: u64,
    /// Since when, and from which byte on, what is read is counted.
    since: Timestamp,
    from: u64,
    /// Whether the window was nearly used up behind a gap.
    is_held_up: bool,
}

impl Window {
    pub(super) fn new(most: u64, now: Timestamp) -> Self {
        Self {
            granted: INITIAL_STREAM_WINDOW,
            size: INITIAL_STREAM_WINDOW,
            most: most.max(INITIAL_STREAM_WINDOW),
            since: now,
            from: 0,
            is_held_up: false,
        }
    }

    pub(super) fn granted(&self) -> u64 {
        self.granted
    }

    /// Before anything is known of the reader: grants `extra` bytes beyond what every stream has.
    pub(super) fn grant_first(&mut self, extra: u64) {
        self.granted = (INITIAL_STREAM_WINDOW + extra).min(self.most).max(self.granted);
    }

    /// Bytes up to `highest` came, and those before are not all there.
    pub(super) fn handle_gap(&mut self, highest: u64) {
        self.is_held_up |= self.granted - highest < self.size / NEARLY;
    }

    /// Bytes from `before` up to `consumed` were read.
    pub(super) fn handle_read(&mut self, before: u64, consumed: u64, rtt: Duration, now: Timestamp) {
        if now - self.since >= rtt.max(LEAST_ROUND) / GROWTH_ROUNDS && !self.is_held_up {
            (self.since, self.from) = (now, before);
        }
        if consumed - self.from >= self.size / GROWTH_PART {
            self.size = (self.size * 2).max(FAST_WINDOW).min(self.most);
            (self.since, self.from) = (now, consumed);
            self.is_held_up = false;
        }
    }

    /// Whether the far end should hear of a wider window, when the session's pool has room for so many bytes
    /// beyond what every stream has.
    pub(super) fn wants_grant(&self, consumed: u64, room: u64) -> bool {
        let size = self.size_within(room);
        consumed + size >= self.granted + size / TELL_PART
    }

    /// The window to tell now.
    pub(super) fn grant(&mut self, consumed: u64, room: u64) -> u64 {
        self.granted = self.granted.max(consumed + self.size_within(room));
        self.granted
    }

    fn size_within(&self, room: u64) -> u64 {
        self.size.min(INITIAL_STREAM_WINDOW.saturating_add(room))
    }
}
