//! What goes out, and over which subflow.

use bytes::{Bytes, BytesMut};

use super::flow::Flow;
use super::lease::{Tier, tier};
use super::{ACK_DELAY, Carried, Session, Stream};
use crate::bond::config::{Limits, Role};
use crate::bond::scheduler::{Backlog, Candidate};
use crate::bond::stream::{Emission, Room};
use crate::bond::subflow::Subflow;
use crate::bond::wire::{Frame, MAX_DATA_FRAME, MAX_DATA_HEAD, StreamId, put_data_head};
use crate::units::Timestamp;
use std::time::Duration;

/// Least room for which a DATA frame is begun.
const LEAST_ROOM: usize = 64;

/// A flight is a fraction of the congestion window, between these bounds: what is handed out cannot
/// be taken back when a better subflow gets room.
const LEAST_FLIGHT: u64 = MAX_DATA_FRAME as u64;
const MOST_FLIGHT: u64 = 256 << 10;
const FLIGHTS_PER_WINDOW: u64 = 2;

/// One DATA frame is a fraction of the congestion window, at least two segments, at most a record.
const FRAMES_PER_WINDOW: u64 = 4;
const LEAST_FRAME: u64 = 2800;

/// Streams of a subflow that are looked at without finding anything to send.
const LOOK_AT: usize = 32;

/// Standings of subflows that are remembered, for when the subflow that carried them fails.
const MOST_TOLD: usize = 2 * Limits::MOST_SUBFLOWS;

/// Acknowledgments that go along with one flight.
const MOST_ACKS: usize = 256;

/// A better subflow is waited for as long as this, or so many of its round trips, if the stream sends
/// nothing at all meanwhile; longer, and it has stalled.
const LEAST_PATIENCE: Duration = Duration::from_millis(200);
const PATIENCE_ROUNDS: u32 = 4;

/// What became of one stream's turn.
enum Turn {
    /// It wrote a segment and may have more.
    Wrote,
    /// It has something that another subflow shall carry.
    Waits,
    /// It has nothing more here.
    Done,
}

/// Bytes for one subflow.
struct Flight {
    bytes: BytesMut,
    budget: usize,
}

impl Flight {
    fn room(&self) -> usize {
        self.budget.saturating_sub(self.bytes.len())
    }

    fn put(&mut self, frame: &Frame) {
        frame.put(&mut self.bytes);
    }
}

/// What a subflow is offered at a time.
fn flight_of(subflow: &Subflow, room: usize) -> usize {
    let most = (subflow.window() / FLIGHTS_PER_WINDOW).clamp(LEAST_FLIGHT, MOST_FLIGHT);
    room.min(usize::try_from(most).unwrap_or(usize::MAX))
}

fn payload_of(subflow: &Subflow) -> usize {
    let frame = (subflow.window() / FRAMES_PER_WINDOW).clamp(LEAST_FRAME, MAX_DATA_FRAME as u64);
    frame as usize
}

impl Session {
    /// Bytes for a subflow whose socket takes about `room`; whole frames. The engine calls it while
    /// little is unsent in the socket, so that little is lost when the subflow dies. `None` means
    /// that there is nothing, or that it is better sent elsewhere.
    pub fn poll_transmit(
        &mut self,
        id: crate::bond::SubflowId,
        room: usize,
        now: Timestamp,
    ) -> Option<Bytes> {
        let slot = *self.by_id.get(&id)?;
        let subflow = self.subflow_mut(slot)?;
        let own_tier = tier(subflow)?;
        if room < LEAST_ROOM {
            return None;
        }
        subflow.is_hungry = true;
        let budget = flight_of(subflow, room);
        let capacity = if subflow.ring.is_empty() { LEAST_ROOM } else { budget.min(MAX_DATA_FRAME) };
        let mut flight = Flight { bytes: BytesMut::with_capacity(capacity), budget };
        self.write_control(slot, own_tier, &mut flight);
        self.write_streams(slot, &mut flight, now);
        self.write_acks(slot, &mut flight, now);
        if flight.bytes.is_empty() {
            return None;
        }
        let subflow = self.subflow_mut(slot)?;
        subflow.is_hungry = false;
        subflow.sent += flight.bytes.len() as u64;
        Some(flight.bytes.freeze())
    }

    /// A subflow's socket takes nothing until it is asked for more.
    pub fn handle_socket_full(&mut self, id: crate::bond::SubflowId) {
        if let Some(subflow) = self.by_id.get(&id).copied().and_then(|slot| self.subflow_mut(slot)) {
            subflow.is_hungry = false;
        }
    }

    /// Frames of the subflow itself, and of the session if this is a good one.
    fn write_control(&mut self, slot: usize, own_tier: Tier, flight: &mut Flight) {
        if self.best_tier() == Some(own_tier) {
            for (subflow, standing) in std::mem::take(&mut self.standings) {
                flight.put(&Frame::Priority { subflow, standing, sequence: self.next_standing });
                self.next_standing += 1;
                self.told.insert(subflow, (standing, slot));
            }
            while self.told.len() > MOST_TOLD {
                self.told.pop_first();
            }
            while flight.room() >= LEAST_ROOM
                && let Some(stream) = self.unsaid.pop_first()
            {
                let end = self.numbers.end_of(stream);
                flight.put(&Frame::Reset { stream, code: 0, end, answer: true });
                self.numbers.note_told(stream, slot);
            }
            if self.flow.is_due {
                let granted = self.flow.grant();
                flight.put(&Frame::Window(granted));
            }
        }
        let Some(subflow) = self.slots.get_mut(slot).and_then(Option::as_mut) else { return };
        while flight.room() >= LEAST_ROOM
            && let Some(frame) = subflow.control.pop_front()
        {
            flight.put(&frame);
        }
        while flight.room() >= LEAST_ROOM
            && let Some(stream) = subflow.over.pop_first()
        {
            let end = self.numbers.end_of(stream);
            flight.put(&Frame::Reset { stream, code: 0, end, answer: true });
        }
    }

    fn write_streams(&mut self, slot: usize, flight: &mut Flight, now: Timestamp) {
        let mut left = LOOK_AT;
        while left > 0 && flight.room() >= LEAST_ROOM {
            let Some(id) = self.subflow_mut(slot).and_then(|subflow| subflow.ring.pop_front()) else { break };
            let Some(stream) = self.streams.get_mut(&id) else { continue };
            stream.queued = stream.queued.without(slot);
            self.write_stream_control(id, slot, flight);
            let turn = self.write_segment(id, slot, flight, now);
            match turn {
                Turn::Wrote => left = LOOK_AT,
                Turn::Waits => left -= 1,
                Turn::Done => {
                    self.forget_if_over(id);
                    continue;
                }
            }
            let Some(stream) = self.streams.get_mut(&id) else { continue };
            stream.queued = stream.queued.with(slot);
            if let Some(subflow) = self.subflow_mut(slot) {
                subflow.ring.push_back(id);
            }
        }
    }

    /// What a stream has to say besides data.
    fn write_stream_control(&mut self, id: StreamId, slot: usize, flight: &mut Flight) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        if !stream.is_confirmed && !stream.opened_on.contains(slot) {
            stream.opened_on = stream.opened_on.with(slot);
            flight.put(&Frame::Open {
                stream: id,
                class: stream.class,
                scheduler: stream.relay_scheduler,
                destination: stream.destination.clone(),
            });
            stream.spoke_on = stream.spoke_on.with(slot);
        }
        if std::mem::take(&mut stream.needs_opened)
            && let Some(result) = stream.result
            && self.role == Role::Relay
        {
            flight.put(&Frame::Opened { stream: id, result });
            stream.spoke_on = stream.spoke_on.with(slot);
        }
        if std::mem::take(&mut stream.needs_reset)
            && let Some(code) = stream.reset
        {
            let end = stream.sender.sent_end();
            flight.put(&Frame::Reset { stream: id, code, end, answer: false });
            stream.spoke_on = stream.spoke_on.with(slot);
        }
        if stream.needs_ack && stream.reset.is_none() {
            put_ack(id, stream, &mut self.flow, slot, flight);
        }
    }

    /// The next segment of a stream, if this subflow shall have it.
    fn write_segment(&mut self, id: StreamId, slot: usize, flight: &mut Flight, now: Timestamp) -> Turn {
        if !self.is_chosen(id, slot, now) {
            let stream = self.streams.get(&id);
            let waits = stream.is_some_and(|stream| stream.can_send() && is_leased(stream, slot));
            return if waits { Turn::Waits } else { Turn::Done };
        }
        let credit = self.flow.credit();
        let Some(subflow) = self.subflow(slot) else { return Turn::Done };
        let frame = payload_of(subflow).min(flight.room());
        let payload = frame.saturating_sub(MAX_DATA_HEAD);
        let due = subflow.due(payload as u64, ACK_DELAY, now);
        let path = subflow.path;
        let Some(stream) = self.streams.get_mut(&id) else { return Turn::Done };
        let room = Room { payload, credit, due, redundant: stream.scheduler.is_redundant() };
        let Some(emission) = stream.sender.next_segment(slot, room) else {
            if stream.sender.unsent() > 0 && stream.sender.window_left() > 0 && credit == 0 {
                if self.blocked.is_empty() {
                    self.blocked_first = id;
                }
                self.blocked.insert(id);
            }
            return Turn::Done;
        };
        stream.waiting_since = None;
        write_data(id, stream, &emission, flight);
        Carried::add(&mut stream.carried, path, emission.length as u64, 0);
        self.flow.sent += emission.new;
        // Acknowledgments may be held up by another path.
        self.tell_writable(id);
        if let Some(subflow) = self.subflow_mut(slot) {
            subflow.note_sent(emission.length as u64, now);
        }
        Turn::Wrote
    }

    /// The session's window lets streams go on: first the one that it stopped first, so that all have their
    /// turn however little it grows.
    pub(super) fn unblock(&mut self, now: Timestamp) {
        let mut earlier = std::mem::take(&mut self.blocked);
        let later = earlier.split_off(&self.blocked_first);
        for id in later.into_iter().chain(earlier) {
            self.schedule(id, now);
        }
    }

    /// Whether the stream's scheduler gives its next segment to this subflow.
    fn is_chosen(&mut self, id: StreamId, slot: usize, now: Timestamp) -> bool {
        let Some(stream) = self.streams.get(&id) else { return false };
        if !stream.can_send() || !is_leased(stream, slot) {
            return false;
        }
        let sees_backups = stream.scheduler.sees_backups();
        if self.subflow(slot).is_none_or(|subflow| !self.may_carry(subflow, sees_backups)) {
            return false;
        }
        // What is to be sent again is late already.
        let is_alone = stream.leases.len() == 1;
        if is_alone || stream.scheduler.is_redundant() || stream.sender.has_lost_for(slot) {
            return true;
        }
        let mut candidates: Vec<Candidate> = Vec::with_capacity(stream.leases.len());
        for (_, leased) in &stream.leases {
            let Some(subflow) = self.subflow(*leased) else { continue };
            if self.may_carry(subflow, sees_backups) {
                candidates.push(self.candidate(subflow, *leased == slot));
            }
        }
        let Some(asking) = self.subflow(slot).map(|subflow| subflow.id) else { return false };
        let backlog = Backlog { unsent: stream.sender.unsent(), window_left: stream.sender.window_left() };
        let longest = candidates.iter().map(|candidate| candidate.srtt).max().unwrap_or_default();
        let patience = LEAST_PATIENCE.max(longest * PATIENCE_ROUNDS);
        let Some(stream) = self.streams.get_mut(&id) else { return false };
        if stream.scheduler.choose(&candidates, backlog) == Some(asking) {
            return true;
        }
        let since = *stream.waiting_since.get_or_insert(now);
        if now - since >= patience {
            return true;
        }
        let until = since + patience;
        self.patience = Some(self.patience.map_or(until, |at| at.min(until)));
        false
    }

    fn candidate(&self, subflow: &Subflow, is_asking: bool) -> Candidate {
        let of_path = self.slots.iter().flatten().filter(|other| other.path == subflow.path);
        let (buffered, rate) = subflow.pipe;
        let in_pipe = if rate.is_zero() { 0 } else { buffered };
        Candidate {
            id: subflow.id,
            rank: self.rank(subflow.path),
            available: is_asking || subflow.is_hungry,
            srtt: subflow.srtt(),
            rtt_variance: subflow.sample.rtt_variance,
            window: subflow.window(),
            in_flight: subflow.in_flight + in_pipe,
            segment: subflow.segment(),
            retransmitting: subflow.sample.segments_lost > 0 || subflow.sample.timeouts_in_a_row > 0,
            last_received: of_path.map(|other| other.last_original).max(),
        }
    }

    /// Acknowledgments that wait for company, and have it or have waited long enough.
    fn write_acks(&mut self, slot: usize, flight: &mut Flight, now: Timestamp) {
        let Some(subflow) = self.slots.get_mut(slot).and_then(Option::as_mut) else { return };
        let is_due = subflow.is_ack_due || subflow.ack_deadline.is_some_and(|at| at <= now);
        if subflow.acks.is_empty() {
            subflow.clear_ack_timer();
            return;
        }
        if flight.bytes.is_empty() && !is_due {
            return;
        }
        for _ in 0..MOST_ACKS {
            let Some(id) = subflow.acks.pop_first() else { break };
            if let Some(stream) = self.streams.get_mut(&id)
                && stream.reset.is_none()
                && stream.unacked > 0
            {
                put_ack(id, stream, &mut self.flow, slot, flight);
            }
        }
        if subflow.acks.is_empty() {
            subflow.clear_ack_timer();
        }
    }
}

fn is_leased(stream: &Stream, slot: usize) -> bool {
    stream.leases.iter().any(|(_, leased)| *leased == slot)
}

fn put_ack(id: StreamId, stream: &mut Stream, flow: &mut Flow, slot: usize, flight: &mut Flight) {
    stream.needs_ack = false;
    stream.unacked = 0;
    stream.spoke_on = stream.spoke_on.with(slot);
    let window = stream.grant(flow);
    flight.put(&Frame::Ack { stream: id, data_ack: stream.receiver.data_ack(), window });
}

fn write_data(id: StreamId, stream: &Stream, emission: &Emission, flight: &mut Flight) {
    flight.bytes.reserve(emission.length + MAX_DATA_HEAD);
    put_data_head(&mut flight.bytes, id, emission.dsn, emission.mark, emission.length);
    stream.sender.copy(emission, &mut flight.bytes);
}
