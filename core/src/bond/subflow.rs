//! A subflow: one TCP connection of a session.

use std::collections::{BTreeSet, VecDeque};
use std::fmt;
use std::time::Duration;

use super::wire::{Frame, FrameReader, StreamId};
use crate::paths::PathId;
use crate::units::{Rate, Timestamp};

/// Names a subflow within its session. The device counts them up, and both ends use the number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SubflowId(pub u64);

impl fmt::Display for SubflowId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "subflow {}", self.0)
    }
}

/// One reading of a subflow's socket in the kernel (`TCP_INFO`), in what a session needs of it.
///
/// Counters are totals since the connection began.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SubflowSample {
    /// Smoothed round-trip time; zero before the first measurement.
    pub smoothed_rtt: Duration,
    /// Mean deviation of the round-trip time.
    pub rtt_variance: Duration,
    /// Least round-trip time seen by the kernel; `None` before the first measurement.
    pub min_rtt: Option<Duration>,
    /// Current retransmission timeout, backed off when it has expired.
    pub retransmission_timeout: Duration,
    /// Retransmission timeouts in a row without an answer.
    pub timeouts_in_a_row: u32,
    /// Congestion window, in bytes.
    pub congestion_window: u64,
    /// Segment size, in bytes.
    pub segment_size: u64,
    /// Bytes sent and not acknowledged by the far end's kernel.
    pub unacked: u64,
    /// Bytes in the socket that were not sent once.
    pub unsent: u64,
    /// Segments thought lost and not yet sent again.
    pub segments_lost: u64,
    /// Data segments sent, retransmissions included.
    pub segments_sent: u64,
    /// Segments retransmitted.
    pub segments_retransmitted: u64,
    /// Segments that the far end reported to have received twice (RFC 2883).
    pub duplicates_reported: u64,
    /// Segments received behind a gap: one before them was lost or overtaken.
    pub segments_out_of_order: u64,
    /// The kernel's estimate of the rate that the path delivers; zero when nothing was sent.
    pub delivery_rate: Rate,
}

/// Round-trip time of a subflow that was not measured yet.
pub(super) const UNKNOWN_RTT: Duration = Duration::from_millis(100);

/// Congestion window of a subflow that was not measured yet: 10 segments (RFC 6928).
const FIRST_WINDOW: u64 = 10 * FIRST_SEGMENT;

/// Segment size of a subflow that was not measured yet.
const FIRST_SEGMENT: u64 = 1400;

/// Frames that wait for one subflow, at most; they are small, and more are asked for by abuse only.
pub(super) const MOST_CONTROL: usize = 256;

/// Sent bytes are remembered in steps of this length, which is fine enough for a detector.
const LEDGER_STEP: Duration = Duration::from_millis(2);

/// A subflow that is up.
#[derive(Debug)]
pub(super) struct Subflow {
    pub(super) id: SubflowId,
    pub(super) path: PathId,
    /// Carries data only while no normal subflow works.
    pub(super) is_backup: bool,
    /// Has probably failed.
    pub(super) is_suspect: bool,
    /// Its path may not be used any more.
    pub(super) is_forbidden: bool,
    /// The far end was heard on it.
    pub(super) is_answered: bool,
    pub(super) up_since: Timestamp,
    pub(super) reader: FrameReader,
    pub(super) sample: SubflowSample,
    /// Streams that have something for it.
    pub(super) ring: VecDeque<StreamId>,
    /// Busy streams that lease it.
    pub(super) tenants: usize,
    /// Frames that only this subflow can carry.
    pub(super) control: VecDeque<Frame>,
    /// Streams that are over and of which the far end does not know that.
    pub(super) over: BTreeSet<StreamId>,
    /// Streams whose acknowledgments go along with the next flight.
    pub(super) acks: BTreeSet<StreamId>,
    /// When they go without one.
    pub(super) ack_deadline: Option<Timestamp>,
    /// That time has come, and the socket took nothing yet.
    pub(super) is_ack_due: bool,
    /// Whether it took nothing when it was asked last: its socket has room.
    pub(super) is_hungry: bool,
    /// Bytes of streams that it carries and that are not acknowledged.
    pub(super) in_flight: u64,
    ledger: Ledger,
    /// PRIORITYs about it that were said before this one are late (relay).
    pub(super) next_standing: u64,
    pub(super) last_received: Timestamp,
    /// When it last brought something original (M1).
    pub(super) last_original: Timestamp,
    pub(super) last_ack_progress: Option<Timestamp>,
    /// Streams of which more is expected, by what arrived here last.
    pub(super) expecting: BTreeSet<StreamId>,
    pub(super) expecting_since: Timestamp,
    pub(super) far_timeout: Option<Duration>,
    pub(super) asked_timeout: Option<Timestamp>,
    /// Bytes and rate of a buffer on the way, as the far end tells.
    pub(super) pipe: (u64, Rate),
    pub(super) sent: u64,
    pub(super) received: u64,
    pub(super) last_used: Timestamp,
}

/// What was sent when, and how much of it is acknowledged: a TCP connection delivers in order, so
/// that counts are enough.
#[derive(Debug, Default)]
struct Ledger {
    entries: VecDeque<(u64, Timestamp)>,
    sent: u64,
    acked: u64,
}

impl Subflow {
    pub(super) fn new(id: SubflowId, path: PathId, is_backup: bool, now: Timestamp) -> Self {
        Self {
            id,
            path,
            is_backup,
            is_suspect: false,
            is_forbidden: false,
            is_answered: false,
            up_since: now,
            reader: FrameReader::new(),
            sample: SubflowSample::default(),
            ring: VecDeque::new(),
            tenants: 0,
            control: VecDeque::new(),
            over: BTreeSet::new(),
            acks: BTreeSet::new(),
            ack_deadline: None,
            is_ack_due: false,
            is_hungry: false,
            in_flight: 0,
            ledger: Ledger::default(),
            next_standing: 0,
            last_received: now,
            last_original: now,
            last_ack_progress: None,
            expecting: BTreeSet::new(),
            expecting_since: now,
            far_timeout: None,
            asked_timeout: None,
            pipe: (0, Rate::ZERO),
            sent: 0,
            received: 0,
            last_used: now,
        }
    }

    pub(super) fn srtt(&self) -> Duration {
        if self.sample.smoothed_rtt.is_zero() { UNKNOWN_RTT } else { self.sample.smoothed_rtt }
    }

    /// Congestion window, in bytes.
    pub(super) fn window(&self) -> u64 {
        if self.sample.congestion_window == 0 { FIRST_WINDOW } else { self.sample.congestion_window }
    }

    pub(super) fn segment(&self) -> u64 {
        if self.sample.segment_size == 0 { FIRST_SEGMENT } else { self.sample.segment_size }
    }

    /// When an acknowledgment of `bytes` sent now is to be expected: a round trip and what stands
    /// before them in sockets and buffers on the way.
    pub(super) fn due(&self, bytes: u64, ack_delay: Duration, now: Timestamp) -> Timestamp {
        let srtt = self.srtt();
        let rate = match self.sample.delivery_rate {
            Rate::ZERO => Rate::from_bytes_in(self.window(), srtt),
            rate => rate,
        };
        let queued = (self.in_flight + bytes).saturating_sub(self.window());
        let in_pipe = if self.pipe.1.is_zero() { Duration::ZERO } else { self.pipe.1.time_for(self.pipe.0) };
        let wait = rate.time_for(queued).min(MOST_QUEUE) + in_pipe.min(MOST_QUEUE);
        now + srtt + 2 * self.sample.rtt_variance + wait + ack_delay
    }

    /// `bytes` of streams were handed out.
    pub(super) fn note_sent(&mut self, bytes: u64, now: Timestamp) {
        self.in_flight += bytes;
        self.last_used = now;
        self.ledger.sent += bytes;
        match self.ledger.entries.back_mut() {
            Some((end, at)) if now - *at < LEDGER_STEP => *end = self.ledger.sent,
            _ => self.ledger.entries.push_back((self.ledger.sent, now)),
        }
    }

    /// `bytes` of streams that it carries were acknowledged or given up.
    pub(super) fn note_freed(&mut self, bytes: u64) {
        self.in_flight = self.in_flight.saturating_sub(bytes);
        self.ledger.acked += bytes;
        let acked = self.ledger.acked;
        while self.ledger.entries.front().is_some_and(|(end, _)| *end <= acked) {
            self.ledger.entries.pop_front();
        }
    }

    /// No acknowledgment waits any more.
    pub(super) fn clear_ack_timer(&mut self) {
        self.ack_deadline = None;
        self.is_ack_due = false;
    }

    /// Acknowledgments have waited long enough: they go as soon as the socket takes something, and
    /// no timer is needed for that.
    pub(super) fn handle_ack_timeout(&mut self, now: Timestamp) {
        if self.ack_deadline.is_some_and(|at| at <= now) {
            self.ack_deadline = None;
            self.is_ack_due = true;
        }
    }

    /// When the oldest of what is outstanding was sent.
    pub(super) fn outstanding_since(&self) -> Option<Timestamp> {
        self.ledger.entries.front().filter(|_| self.in_flight > 0).map(|(_, at)| *at)
    }
}

/// No queue is believed to be longer: a rate measured on a trickle says nothing.
const MOST_QUEUE: Duration = Duration::from_secs(2);
