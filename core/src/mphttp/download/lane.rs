//! One connection of a download and the requests in flight on it.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;

use crate::mphttp::arrival::ArrivalRate;
use crate::mphttp::assembly::PieceId;
use crate::mphttp::download::tuning;
use crate::paths::PathId;
use crate::units::{Rate, Timestamp};

/// Names a connection within one download.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LaneId(pub u32);

/// Bytes of the object that a request asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ask {
    /// What the client asked for, unchanged.
    AsClient,
    /// `bytes=start-(end-1)`.
    Part {
        /// First byte.
        start: u64,
        /// One past the last byte.
        end: u64,
    },
    /// `bytes=-length`: the last bytes of an object of unknown size.
    Suffix {
        /// How many.
        length: u64,
    },
}

/// A request in flight.
#[derive(Debug)]
pub(super) struct Fetch {
    pub(super) ask: Ask,
    /// Extent once known; for a suffix and the client's own request only the head tells.
    pub(super) extent: Option<(u64, u64)>,
    pub(super) piece: Option<PieceId>,
    pub(super) head_seen: bool,
    /// Offset of the next byte to arrive, once the extent is known.
    pub(super) position: u64,
    pub(super) asked_at: Timestamp,
}

impl Fetch {
    /// Bytes that may be read before the object's extent is known: what was asked for of its end.
    pub(super) fn early_budget(&self) -> u64 {
        match (self.ask, self.extent) {
            (Ask::Suffix { length }, Some((start, _))) if self.head_seen => {
                self.remaining().min(length.saturating_sub(self.position.saturating_sub(start)))
            }
            _ => 0,
        }
    }

    pub(super) fn remaining(&self) -> u64 {
        self.extent.map_or(0, |(_, end)| end.saturating_sub(self.position))
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LaneState {
    Connecting,
    Open,
}

/// A connection to the origin over one path; requests on it are answered in order.
#[derive(Debug)]
pub(super) struct Lane {
    pub(super) path: PathId,
    pub(super) state: LaneState,
    pub(super) opened_at: Timestamp,
    pub(super) fetches: VecDeque<Fetch>,
    /// Bytes of a suffix that came before the object's extent was known.
    pub(super) early: Vec<Bytes>,
    /// False once the peer said that it closes after the response in progress.
    pub(super) reusable: bool,
    pub(super) responses_completed: u32,
    /// Body bytes that arrived.
    pub(super) brought: u64,
    /// The piece and end of the last part asked for; a request that continues it needs no overlap.
    pub(super) last_asked: Option<(PieceId, u64)>,
    /// When bytes last arrived, or when waiting for them began.
    pub(super) last_activity: Timestamp,
    first_byte_at: Option<Timestamp>,
    /// When body bytes last arrived.
    last_arrival: Timestamp,
    /// When a wait for an answer began that says nothing of the rate, and how long that may be;
    /// nothing has arrived since.
    answering: Option<(Timestamp, Duration)>,
    /// When the last response was complete.
    freed_at: Timestamp,
    think: ThinkTime,
    ramp: Ramp,
    rate: ArrivalRate,
    /// Least time seen from a connection attempt or a request to its answer.
    pub(super) base_rtt: Option<Duration>,
    /// Round-trip time with queueing, as the kernel smooths it.
    pub(super) smoothed_rtt: Option<Duration>,
    /// Whether the peer's kernel has acknowledged all that was written; `None` when nobody told.
    pub(super) is_acknowledged: Option<bool>,
}

impl Lane {
    pub(super) fn new(path: PathId, rtt: Option<Duration>, now: Timestamp) -> Self {
        Self {
            path,
            state: LaneState::Connecting,
            opened_at: now,
            fetches: VecDeque::new(),
            early: Vec::new(),
            reusable: true,
            responses_completed: 0,
            brought: 0,
            last_asked: None,
            last_activity: now,
            first_byte_at: None,
            last_arrival: now,
            answering: None,
            freed_at: now,
            think: ThinkTime::default(),
            ramp: Ramp::new(),
            rate: ArrivalRate::new(rtt.unwrap_or(tuning::UNKNOWN_RTT).mul_f32(tuning::RATE_MEMORY_RTTS), now),
            base_rtt: None,
            smoothed_rtt: rtt,
            is_acknowledged: None,
        }
    }

    /// Whether it carries a first request whose answer has not begun.
    pub(super) fn is_opening(&self) -> bool {
        self.fetches.front().is_some_and(|fetch| {
            !fetch.head_seen && fetch.extent.is_none() && !matches!(fetch.ask, Ask::Suffix { .. })
        })
    }

    /// Round-trip time to plan with, [`tuning::UNKNOWN_RTT`] before any measurement.
    pub(super) fn rtt(&self) -> Duration {
        self.known_rtt().unwrap_or(tuning::UNKNOWN_RTT)
    }

    /// The round-trip time, if it was measured or is remembered.
    pub(super) fn known_rtt(&self) -> Option<Duration> {
        self.base_rtt.or(self.smoothed_rtt)
    }

    /// Takes a round-trip measurement; the least is kept as the base.
    pub(super) fn handle_rtt(&mut self, least: Duration, smoothed: Duration) {
        let least = least.max(Duration::from_micros(1));
        self.base_rtt = Some(self.base_rtt.map_or(least, |base| base.min(least)));
        self.smoothed_rtt = Some(smoothed);
        self.rate.set_memory(self.rtt().max(tuning::LEAST_RATE_MEMORY).mul_f32(tuning::RATE_MEMORY_RTTS));
    }

    pub(super) fn handle_arrival(&mut self, bytes: u64, now: Timestamp) {
        self.first_byte_at.get_or_insert(now);
        self.last_activity = now;
        self.last_arrival = now;
        if let Some((since, most)) = self.answering.take() {
            self.rate.resume(since + most.min(now - since));
        }
        self.rate.handle_bytes(bytes, now);
        if let Some(rate) = self.rate(now) {
            self.ramp.handle_rate(rate, self.rtt(), now);
        }
    }

    /// Puts a request at the end of the queue.
    pub(super) fn push(&mut self, fetch: Fetch, now: Timestamp) {
        if self.fetches.is_empty() {
            self.restart_waiting(now);
        }
        self.fetches.push_back(fetch);
    }

    /// The reader made room: silence until now was not the path's.
    pub(super) fn restart_waiting(&mut self, now: Timestamp) {
        self.rate.resume(now);
        // The first burst alone would look like the bottleneck's rate: there the wait counts.
        self.answering = self.first_byte_at.map(|_| (now, self.answer_time()));
        self.last_activity = now;
    }

    /// The head of the response to the front request is there: how long did the server think?
    pub(super) fn note_head(&mut self, now: Timestamp) {
        let Some(fetch) = self.fetches.front() else { return };
        let (asked_at, waited) = (fetch.asked_at, now - fetch.asked_at.max(self.freed_at));
        if self.base_rtt.is_none() {
            self.handle_rtt(waited, waited);
        }
        self.think.note(now - (asked_at + self.rtt()).max(self.freed_at));
    }

    /// A response is complete; the server turns to the next request only now.
    pub(super) fn note_complete(&mut self, now: Timestamp) {
        self.freed_at = now;
        self.last_activity = now;
        let think = self.think_time();
        let next = self.fetches.front().map(|fetch| fetch.asked_at + self.rtt());
        if let Some(due) = next.filter(|_| !think.is_zero()) {
            self.rate.resume(now);
            self.answering = Some((now, due.max(now) + think - now));
        }
    }

    /// Time that the server takes for each answer, as far as it can be told from the path's delays.
    pub(super) fn think_time(&self) -> Duration {
        self.think.get()
    }

    /// What the server was seen to take on another connection, until this one tells more.
    pub(super) fn expect_think_time(&mut self, think: Duration) {
        self.think.expected = think;
    }

    /// Arrival rate as of `now`; `None` before any arrival.
    ///
    /// Neither idleness nor the round trip that an answer takes say anything of it.
    pub(super) fn rate(&self, now: Timestamp) -> Option<Rate> {
        if !self.is_owing() {
            return self.last_rate();
        }
        self.rate.get_at(self.answering.map_or(now, |(since, most)| {
            let waited = now - since;
            since + waited.saturating_sub(most)
        }))
    }

    /// Arrival rate while bytes arrived.
    pub(super) fn last_rate(&self) -> Option<Rate> {
        self.rate.get_at(self.last_arrival)
    }

    /// Whether anything asked for has not arrived.
    fn is_owing(&self) -> bool {
        self.fetches.iter().any(|fetch| !fetch.head_seen || fetch.remaining() > 0)
    }

    /// Time from a request to its first byte that is no sign of a low rate.
    fn answer_time(&self) -> Duration {
        self.rtt() + tuning::AHEAD_MARGIN + self.think_time()
    }

    /// Bytes asked for and not yet arrived.
    pub(super) fn outstanding(&self) -> u64 {
        self.fetches.iter().map(Fetch::remaining).sum()
    }

    /// Bytes to keep outstanding so that the peer never waits for the next request.
    ///
    /// In slow start the rate doubles every round trip, so the request that is on its way must
    /// cover what the next two round trips bring.
    pub(super) fn ahead(&self, now: Timestamp) -> u64 {
        let Some(rate) = self.rate(now) else { return tuning::FIRST_BLOCK };
        let rounds = if self.is_ramping(now) { tuning::AHEAD_ROUNDS_RAMP } else { tuning::AHEAD_ROUNDS };
        let cover = self.rtt().mul_f32(rounds) + tuning::AHEAD_MARGIN;
        rate.bytes_in(cover).max(tuning::LEAST_BLOCK)
    }

    /// Whether the connection is so young that its rate says little.
    pub(super) fn is_ramping(&self, now: Timestamp) -> bool {
        !self.ramp.is_over()
            && self.first_byte_at.is_none_or(|first| now - first < self.rtt() * tuning::RAMP_ROUNDS)
    }

    /// Rate to plan with: while slow start goes on the next round trip brings more than the last.
    pub(super) fn expected_rate(&self, now: Timestamp) -> Option<Rate> {
        let rate = self.rate(now)?;
        if !self.is_ramping(now) {
            return Some(rate);
        }
        let bits = rate.bits_per_second() as f64 * self.ramp.growth;
        Some(Rate::from_bits_per_second(bits as u64))
    }

    /// Bytes to ask for in one request.
    pub(super) fn block(&self, now: Timestamp) -> u64 {
        let Some(rate) = self.rate(now) else { return tuning::FIRST_BLOCK };
        let block = rate.bytes_in(tuning::BLOCK_TIME).clamp(tuning::LEAST_BLOCK, tuning::LARGEST_BLOCK);
        let growth = if self.is_ramping(now) { tuning::BLOCK_THINK_GROWTH } else { 1 };
        block.max(rate.bytes_in(self.think_time() * tuning::BLOCK_THINK_TIMES).saturating_mul(growth))
    }

    /// How long the lane has been owing bytes without any arriving.
    pub(super) fn silence(&self, now: Timestamp) -> Duration {
        if self.is_owing() { now - self.last_activity } else { Duration::ZERO }
    }

    /// Silence after which what it owes next is asked for elsewhere as well.
    pub(super) fn late_after(&self) -> Duration {
        let rtt = self.smoothed_rtt.unwrap_or_else(|| self.rtt()).max(self.rtt());
        let expected = if self.awaits_first_byte() { rtt * 2 } else { rtt.mul_f32(tuning::LATE_RTTS) };
        // On a slow path even an undisturbed stream has such gaps.
        let gap = self
            .rate
            .get_at(self.last_arrival)
            .map_or(Duration::ZERO, |rate| rate.time_for(tuning::LATE_BYTES).min(tuning::LEAST_DEAD));
        let think = if self.awaits_first_byte() { self.think_time() } else { Duration::ZERO };
        expected.max(tuning::LEAST_LATE).max(gap) + think
    }

    /// Silence after which the connection is given up.
    pub(super) fn dead_after(&self) -> Duration {
        (self.smoothed_rtt.unwrap_or(tuning::UNKNOWN_RTT) * tuning::DEAD_RTTS).max(tuning::LEAST_DEAD)
    }

    pub(super) fn is_late(&self, now: Timestamp) -> bool {
        self.silence(now) >= self.late_after()
    }

    /// Whether a response is in progress.
    pub(super) fn is_bringing(&self) -> bool {
        self.state == LaneState::Open && self.fetches.front().is_some_and(|fetch| fetch.head_seen)
    }

    fn awaits_first_byte(&self) -> bool {
        self.fetches.front().is_some_and(|fetch| !fetch.head_seen)
    }
}

/// The least of the last answers' delays: what the path adds, it adds to some of them only.
#[derive(Debug, Default)]
struct ThinkTime {
    expected: Duration,
    last: VecDeque<Duration>,
}

impl ThinkTime {
    fn note(&mut self, delay: Duration) {
        self.last.push_back(delay);
        if self.last.len() > tuning::THINK_SAMPLES {
            self.last.pop_front();
        }
    }

    fn get(&self) -> Duration {
        let least = self.last.iter().min().copied().unwrap_or(self.expected);
        if least < tuning::LEAST_THINK { Duration::ZERO } else { least.min(tuning::MOST_THINK) }
    }
}

/// Follows slow start until its end: a rate that no longer grows (as BBR's "full pipe" check).
#[derive(Debug)]
struct Ramp {
    mark: Option<(Timestamp, Rate)>,
    /// How the rate changed in the last round trip; slow start doubles it.
    growth: f64,
    /// Round trips in a row without growth.
    flat_rounds: u32,
}

impl Ramp {
    fn new() -> Self {
        Self { mark: None, growth: 2.0, flat_rounds: 0 }
    }

    fn handle_rate(&mut self, rate: Rate, rtt: Duration, now: Timestamp) {
        let Some((marked_at, marked)) = self.mark else {
            self.mark = Some((now, rate));
            return;
        };
        if now - marked_at < rtt || self.is_over() {
            return;
        }
        let growth = rate.bits_per_second() as f64 / marked.bits_per_second().max(1) as f64;
        self.growth = growth.clamp(1.0, 2.0);
        self.flat_rounds = if growth >= tuning::LEAST_GROWTH { 0 } else { self.flat_rounds + 1 };
        self.mark = Some((now, rate));
    }

    fn is_over(&self) -> bool {
        self.flat_rounds >= tuning::FLAT_ROUNDS
    }
}
