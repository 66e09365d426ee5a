//! One end of a TCP connection: a reliable stream of bytes over a link that loses packets.
//!
//! As Linux has it by default, in what a session can notice: an initial window of 10 segments, slow
//! start that ends when the queue begins to grow (HyStart), a window that shrinks to 0.7 on loss
//! (CUBIC), selective acknowledgments, tail loss probes, and retransmission timeouts from 200 ms that double. Packets
//! of one link keep their order, so whatever was sent before something that arrived is lost.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use multiway_core::bond::SubflowSample;
use multiway_core::paths::TcpSample;
use multiway_core::units::{Rate, Timestamp};

/// Payload of a full segment.
pub const SEGMENT: u64 = 1448;

/// What a packet costs a link besides its payload: IP and TCP headers with timestamps.
pub const HEADER: u64 = 52;

const FIRST_WINDOW: u64 = 10 * SEGMENT;
const LEAST_TIMEOUT: Duration = Duration::from_millis(200);
const FIRST_TIMEOUT: Duration = Duration::from_secs(1);
const MOST_TIMEOUT: Duration = Duration::from_secs(120);

/// Packets that have to arrive behind a lost one before it is sent again (RFC 8985, without its wait of a
/// quarter of a round trip: nothing is reordered here).
const DUPLICATES: u64 = 1;

/// HyStart looks at so many samples of each round, and not before the window has so many bytes.
const HYSTART_SAMPLES: u32 = 8;
const HYSTART_WINDOW: f64 = 16.0 * SEGMENT as f64;

/// What travels.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Packet {
    /// Bytes from an offset on; the last ones if `fin`.
    Data {
        /// Offset of the first.
        offset: u64,
        /// The bytes.
        bytes: Bytes,
        /// The end follows.
        fin: bool,
    },
    /// Everything below `next` and in `ranges` has arrived; the end counts as one.
    Ack {
        /// The first byte that is missing.
        next: u64,
        /// What arrived behind it: all of it, where real TCP has room for 3 ranges and repeats older ones.
        ranges: Vec<(u64, u64)>,
    },
}

impl Packet {
    /// What it costs the link.
    pub fn size(&self) -> u64 {
        match self {
            Self::Data { bytes, .. } => HEADER + bytes.len() as u64,
            Self::Ack { .. } => HEADER,
        }
    }
}

#[derive(Debug, Clone)]
struct Sent {
    bytes: Bytes,
    fin: bool,
    at: Timestamp,
    /// The how manieth transmission it was.
    turn: u64,
    arrived: bool,
    lost: bool,
    again: bool,
}

impl Sent {
    fn length(&self) -> u64 {
        self.bytes.len() as u64 + u64::from(self.fin)
    }
}

/// One end.
#[derive(Debug)]
pub struct Tcp {
    unsent: BytesMut,
    next: u64,
    is_closing: bool,
    is_fin_sent: bool,
    sent: BTreeMap<u64, Sent>,
    in_flight: u64,
    turns: u64,
    last_arrived: u64,
    window: f64,
    threshold: f64,
    recovery_until: Option<u64>,
    smoothed: Option<(Duration, Duration)>,
    least_rtt: Duration,
    /// Samples of this round, and the least of them; the round ends with what was sent when it began.
    round: (u32, Duration),
    round_end: u64,
    timeout_at: Option<Timestamp>,
    /// Since the last acknowledgment the last segment was sent once more (RFC 8985 section 7).
    is_probed: bool,
    timeouts: u32,
    /// Acknowledged bytes by time, for the delivery rate.
    acked: VecDeque<(Timestamp, u64)>,
    segments_sent: u64,
    segments_again: u64,
    segments_received: u64,
    out_of_order: u64,
    last_ack: Timestamp,
    last_progress: Timestamp,
    arrived: u64,
    ahead: BTreeMap<u64, (Bytes, bool)>,
    received: BytesMut,
    is_far_closed: bool,
    to_send: VecDeque<Packet>,
}

impl Tcp {
    /// An end that is connected; the handshake took `rtt` if nothing of it was lost.
    pub fn new(rtt: Option<Duration>, now: Timestamp) -> Self {
        Self {
            unsent: BytesMut::new(),
            next: 0,
            is_closing: false,
            is_fin_sent: false,
            sent: BTreeMap::new(),
            in_flight: 0,
            turns: 0,
            last_arrived: 0,
            window: FIRST_WINDOW as f64,
            threshold: f64::INFINITY,
            recovery_until: None,
            smoothed: rtt.map(|rtt| (rtt, rtt / 2)),
            least_rtt: rtt.unwrap_or(Duration::MAX),
            round: (0, Duration::MAX),
            round_end: 0,
            timeout_at: None,
            is_probed: false,
            timeouts: 0,
            acked: VecDeque::new(),
            segments_sent: 0,
            segments_again: 0,
            segments_received: 0,
            out_of_order: 0,
            last_ack: now,
            last_progress: now,
            arrived: 0,
            ahead: BTreeMap::new(),
            received: BytesMut::new(),
            is_far_closed: false,
            to_send: VecDeque::new(),
        }
    }

    /// The program writes.
    pub fn write(&mut self, bytes: &[u8], now: Timestamp) {
        self.unsent.extend_from_slice(bytes);
        self.send(now);
    }

    /// The program closes; what was written still goes out.
    pub fn close(&mut self, now: Timestamp) {
        self.is_closing = true;
        self.send(now);
    }

    /// Bytes in the socket that were not sent once.
    pub fn unsent(&self) -> u64 {
        self.unsent.len() as u64
    }

    /// What has arrived in order.
    pub fn read(&mut self) -> Bytes {
        self.received.split().freeze()
    }

    /// Whether the far end closed and everything before was taken in.
    pub fn is_far_closed(&self) -> bool {
        self.is_far_closed
    }

    /// Whether everything, the end included, has arrived at the far end.
    pub fn is_done(&self) -> bool {
        self.is_fin_sent && self.sent.is_empty()
    }

    /// Since when nothing was acknowledged although something is outstanding.
    pub fn stalled_since(&self) -> Option<Timestamp> {
        (!self.sent.is_empty()).then_some(self.last_progress)
    }

    /// Bytes that arrived in order since the beginning.
    pub fn delivered(&self) -> u64 {
        self.arrived
    }

    /// What is to be sent now.
    pub fn poll_packet(&mut self) -> Option<Packet> {
        self.to_send.pop_front()
    }

    /// When [`Self::handle_timeout`] is due.
    pub fn poll_timeout(&self) -> Option<Timestamp> {
        self.timeout_at
    }

    /// A retransmission timeout may have expired.
    pub fn handle_timeout(&mut self, now: Timestamp) {
        if self.timeout_at.is_none_or(|at| at > now) {
            return;
        }
        if !self.is_probed && self.probe(now) {
            return;
        }
        self.timeouts += 1;
        self.threshold = (self.window / 2.0).max(2.0 * SEGMENT as f64);
        self.window = SEGMENT as f64;
        self.recovery_until = Some(self.next);
        self.in_flight = 0;
        for sent in self.sent.values_mut().filter(|sent| !sent.arrived) {
            sent.lost = true;
        }
        self.timeout_at = Some(now + self.timeout());
        self.send(now);
    }

    /// Sends the last segment once more, so that its acknowledgment shows what is missing.
    fn probe(&mut self, now: Timestamp) -> bool {
        self.is_probed = true;
        let Some((offset, last)) = self.sent.iter_mut().next_back().filter(|(_, last)| !last.arrived) else {
            return false;
        };
        self.turns += 1;
        (last.again, last.turn, last.at) = (true, self.turns, now);
        let packet = Packet::Data { offset: *offset, bytes: last.bytes.clone(), fin: last.fin };
        self.segments_again += 1;
        self.timeout_at = Some(now + self.timeout());
        self.note_sent(packet, now);
        true
    }

    /// How long an acknowledgment is waited for before something is sent again.
    fn patience(&self) -> Duration {
        // The far end's acknowledgment of a single segment may be delayed.
        let single = if self.sent.len() == 1 { LEAST_TIMEOUT } else { Duration::ZERO };
        let probe = self.smoothed.filter(|_| !self.is_probed).map(|(smoothed, _)| smoothed * 2 + single);
        self.timeout().min(probe.unwrap_or(MOST_TIMEOUT))
    }

    /// A packet arrived.
    pub fn handle_packet(&mut self, packet: Packet, now: Timestamp) {
        self.segments_received += 1;
        match packet {
            Packet::Data { offset, bytes, fin } => self.handle_data(offset, bytes, fin),
            Packet::Ack { next, ranges } => self.handle_ack(next, &ranges, now),
        }
    }

    /// What `TCP_INFO` says, in what a session needs.
    pub fn subflow_sample(&self) -> SubflowSample {
        let (smoothed, variance) = self.smoothed.unwrap_or_default();
        SubflowSample {
            smoothed_rtt: smoothed,
            rtt_variance: variance,
            min_rtt: self.smoothed.map(|_| self.least_rtt),
            retransmission_timeout: self.timeout(),
            timeouts_in_a_row: self.timeouts,
            congestion_window: self.window as u64,
            segment_size: SEGMENT,
            unacked: self.in_flight,
            unsent: self.unsent(),
            segments_lost: self.lost(),
            segments_sent: self.segments_sent,
            segments_retransmitted: self.segments_again,
            duplicates_reported: 0,
            segments_out_of_order: self.out_of_order,
            delivery_rate: self.delivery_rate(),
        }
    }

    /// What `TCP_INFO` says, in what a detector and the oracle need.
    pub fn tcp_sample(&self, now: Timestamp) -> TcpSample {
        let sample = self.subflow_sample();
        TcpSample {
            at: now,
            smoothed_rtt: sample.smoothed_rtt,
            rtt_variance: sample.rtt_variance,
            min_rtt: sample.min_rtt,
            delivery_rate: sample.delivery_rate,
            segments_sent: sample.segments_sent,
            segments_retransmitted: sample.segments_retransmitted,
            segments_lost: sample.segments_lost,
            segments_unacked: self.sent.len() as u64,
            segments_received: self.segments_received,
            segments_out_of_order: self.out_of_order,
            congestion_window: sample.congestion_window / SEGMENT,
            segment_size: SEGMENT,
            retransmission_timeout: sample.retransmission_timeout,
            timeouts_in_row: sample.timeouts_in_a_row,
            since_last_ack_received: now - self.last_ack,
            ..TcpSample::default()
        }
    }

    fn lost(&self) -> u64 {
        self.sent.values().filter(|sent| sent.lost && !sent.arrived).count() as u64
    }

    fn delivery_rate(&self) -> Rate {
        let (Some((begin, _)), Some((end, _))) = (self.acked.front(), self.acked.back()) else {
            return Rate::ZERO;
        };
        let bytes: u64 = self.acked.iter().skip(1).map(|(_, bytes)| bytes).sum();
        let time = *end - *begin;
        if time.is_zero() { Rate::ZERO } else { Rate::from_bytes_in(bytes, time) }
    }

    fn timeout(&self) -> Duration {
        let base = match self.smoothed {
            Some((smoothed, variance)) => smoothed + (variance * 4).max(LEAST_TIMEOUT),
            None => FIRST_TIMEOUT,
        };
        (base * 2u32.saturating_pow(self.timeouts.min(10))).min(MOST_TIMEOUT)
    }

    fn handle_data(&mut self, offset: u64, bytes: Bytes, fin: bool) {
        self.out_of_order += u64::from(offset > self.arrived);
        if offset + bytes.len() as u64 + u64::from(fin) > self.arrived {
            self.ahead.insert(offset, (bytes, fin));
        }
        while let Some(entry) = self.ahead.first_entry()
            && *entry.key() <= self.arrived
        {
            let (offset, (bytes, fin)) = entry.remove_entry();
            let known = (self.arrived - offset).min(bytes.len() as u64);
            self.received.extend_from_slice(&bytes[known as usize..]);
            self.arrived = self.arrived.max(offset + bytes.len() as u64);
            if fin && !self.is_far_closed {
                self.is_far_closed = true;
                self.arrived += 1;
            }
        }
        let mut ranges: Vec<(u64, u64)> = Vec::new();
        for (offset, (bytes, fin)) in &self.ahead {
            let end = offset + bytes.len() as u64 + u64::from(*fin);
            match ranges.last_mut() {
                Some(last) if last.1 >= *offset => last.1 = last.1.max(end),
                _ => ranges.push((*offset, end)),
            }
        }
        self.to_send.push_back(Packet::Ack { next: self.arrived, ranges });
    }

    fn handle_ack(&mut self, next: u64, ranges: &[(u64, u64)], now: Timestamp) {
        self.last_ack = now;
        let mut newly = 0;
        let mut rtt = None;
        let mut note = |sent: &mut Sent, in_flight: &mut u64| {
            if !std::mem::replace(&mut sent.arrived, true) {
                newly += sent.length();
                if !sent.lost {
                    *in_flight = in_flight.saturating_sub(sent.length());
                }
                if !sent.again {
                    rtt = Some(now - sent.at);
                }
                self.last_arrived = self.last_arrived.max(sent.turn);
            }
        };
        while let Some(mut entry) = self.sent.first_entry()
            && entry.key() + entry.get().length() <= next
        {
            note(entry.get_mut(), &mut self.in_flight);
            entry.remove();
            self.last_progress = now;
        }
        for (begin, end) in ranges {
            for (_, sent) in self.sent.range_mut(begin..end) {
                note(sent, &mut self.in_flight);
            }
        }
        if newly > 0 {
            self.note_delivered(newly, now);
            self.timeouts = 0;
            self.is_probed = false;
        }
        if let Some(rtt) = rtt {
            self.note_rtt(rtt);
        }
        if self.recovery_until.is_some_and(|until| next >= until) {
            self.recovery_until = None;
        }
        let last_arrived = self.last_arrived;
        let mut losses = 0;
        if newly > 0 {
            for sent in self.sent.values_mut() {
                if !sent.arrived && !sent.lost && sent.turn + DUPLICATES <= last_arrived {
                    sent.lost = true;
                    losses += sent.length();
                }
            }
        }
        self.in_flight = self.in_flight.saturating_sub(losses);
        if losses > 0 && self.recovery_until.is_none() {
            self.recovery_until = Some(self.next);
            self.window = (self.window * 0.7).max(2.0 * SEGMENT as f64);
            self.threshold = self.window;
        } else if newly > 0 {
            self.grow(newly);
        }
        if newly > 0 {
            self.timeout_at = (!self.sent.is_empty()).then(|| now + self.patience());
        }
        self.send(now);
    }

    fn grow(&mut self, newly: u64) {
        if self.window < self.threshold {
            self.window += newly as f64;
        } else if self.recovery_until.is_none() {
            self.window += newly as f64 * SEGMENT as f64 / self.window;
        }
    }

    fn note_delivered(&mut self, bytes: u64, now: Timestamp) {
        self.acked.push_back((now, bytes));
        let span = self.smoothed.map_or(LEAST_TIMEOUT, |(rtt, _)| rtt).max(Duration::from_millis(10));
        while self.acked.len() > 2 && self.acked.front().is_some_and(|(at, _)| now - *at > span) {
            self.acked.pop_front();
        }
    }

    fn note_rtt(&mut self, rtt: Duration) {
        self.least_rtt = self.least_rtt.min(rtt);
        // RFC 6298.
        self.smoothed = Some(match self.smoothed {
            None => (rtt, rtt / 2),
            Some((smoothed, variance)) => {
                ((smoothed * 7 + rtt) / 8, (variance * 3 + smoothed.abs_diff(rtt)) / 4)
            }
        });
        // HyStart: the least of a round's first samples has grown.
        if self.last_arrived >= self.round_end {
            self.round_end = self.turns;
            self.round = (0, Duration::MAX);
        }
        self.round = (self.round.0 + 1, self.round.1.min(rtt));
        let step = (self.least_rtt / 8).clamp(Duration::from_millis(4), Duration::from_millis(16));
        if self.round.0 == HYSTART_SAMPLES
            && self.window >= HYSTART_WINDOW
            && self.window < self.threshold
            && self.round.1 > self.least_rtt + step
        {
            self.threshold = self.window;
        }
    }

    fn send(&mut self, now: Timestamp) {
        let lost = self.sent.iter().filter(|(_, sent)| sent.lost && !sent.arrived).map(|(at, _)| *at);
        let lost: Vec<u64> = lost.collect();
        for offset in lost {
            if self.in_flight > 0 && (self.in_flight + SEGMENT) as f64 > self.window {
                break;
            }
            self.turns += 1;
            let turn = self.turns;
            let Some(sent) = self.sent.get_mut(&offset) else { continue };
            (sent.lost, sent.again, sent.turn, sent.at) = (false, true, turn, now);
            let packet = Packet::Data { offset, bytes: sent.bytes.clone(), fin: sent.fin };
            self.in_flight += sent.length();
            self.segments_again += 1;
            self.note_sent(packet, now);
        }
        while (!self.unsent.is_empty() || (self.is_closing && !self.is_fin_sent))
            && (self.in_flight == 0 || (self.in_flight + SEGMENT) as f64 <= self.window)
        {
            if self.sent.is_empty() {
                self.last_progress = now;
            }
            let length = self.unsent.len().min(SEGMENT as usize);
            let bytes = self.unsent.split_to(length).freeze();
            let fin = self.is_closing && self.unsent.is_empty();
            self.is_fin_sent |= fin;
            let offset = self.next;
            self.turns += 1;
            let sent = Sent {
                bytes: bytes.clone(),
                fin,
                at: now,
                turn: self.turns,
                arrived: false,
                lost: false,
                again: false,
            };
            self.next += sent.length();
            self.in_flight += sent.length();
            self.sent.insert(offset, sent);
            self.note_sent(Packet::Data { offset, bytes, fin }, now);
        }
    }

    fn note_sent(&mut self, packet: Packet, now: Timestamp) {
        self.segments_sent += 1;
        self.to_send.push_back(packet);
        if self.timeout_at.is_none() {
            self.timeout_at = Some(now + self.patience());
        }
    }
}
