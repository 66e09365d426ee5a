//! What the far end says.

use bytes::Bytes;

use super::{ACK_DELAY, ACK_EVERY, Carried, Session, Stream};
use crate::bond::action::{Action, CloseReason, Event, Violation, ViolationScope};
use crate::bond::config::{Role, StreamClass};
use crate::bond::scheduler::SchedulerKind;
use crate::bond::stream::{Freed, Slots};
use crate::bond::subflow::{MOST_CONTROL, SubflowId};
use crate::bond::wire::{
    Data, Destination, Frame, FrameType, INITIAL_STREAM_WINDOW, OpenResult, Standing, StreamId,
};
use crate::units::Timestamp;

/// Streams beyond the limit that are refused and of which the device does not know that yet. An honest
/// device is done with a stream before this end is, and may open another one in its place, so that one
/// too many is no violation; they hold no bytes.
const MOST_REFUSED: usize = 1024;

/// Streams that are over and of which one subflow brings something late, at most.
const MOST_OVER: usize = 1024;

/// No buffer on the way is believed to hold more, whatever PIPE_STATUS says: the largest window that TCP has
/// (RFC 7323, section 2.3).
const MOST_PIPE: u64 = 1 << 30;

impl Session {
    /// A subflow brought plaintext, in whatever pieces; that nothing came with its HELLO_OK is told by
    /// none. On an error the engine closes what [`Violation::scope`] says, and tells of it by
    /// [`Self::handle_subflow_down`]. After a violation of the session's every subflow is refused with the same.
    pub fn handle_received(&mut self, id: SubflowId, bytes: Bytes, now: Timestamp) -> Result<(), Violation> {
        if let Some(violation) = self.broken {
            return Err(violation);
        }
        let slot = *self.by_id.get(&id).ok_or(Violation::NoSuchSubflow(id.0))?;
        let Some(subflow) = self.subflow_mut(slot) else { return Err(Violation::NoSuchSubflow(id.0)) };
        subflow.received += bytes.len() as u64;
        subflow.last_received = now;
        subflow.last_used = now;
        let is_first = !std::mem::replace(&mut subflow.is_answered, true);
        let mut reader = std::mem::take(&mut subflow.reader);
        reader.handle_bytes(bytes);
        if is_first {
            self.plan_answered(slot, now);
            self.plan_paths(now);
        }
        let mut result = Ok(());
        loop {
            match reader.next_frame() {
                Ok(None) => break,
                Ok(Some(frame)) => result = self.handle_frame(slot, frame, now),
                Err(error) => result = Err(error.into()),
            }
            if result.is_err() {
                break;
            }
        }
        if let Some(subflow) = self.subflow_mut(slot) {
            subflow.reader = reader;
        }
        self.apply_standings(now);
        self.broken = result.err().filter(|violation| violation.scope() == ViolationScope::Session);
        result
    }

    fn handle_frame(&mut self, slot: usize, frame: Frame, now: Timestamp) -> Result<(), Violation> {
        let kind = frame.kind() as u8;
        match (frame, self.role) {
            (Frame::Data(data), _) => self.handle_data(slot, data, now),
            (Frame::Ack { stream, data_ack, window }, _) => {
                self.handle_ack(slot, stream, data_ack, window, now)
            }
            (Frame::Window(bytes), _) => {
                self.flow.granted_to_us = self.flow.granted_to_us.max(bytes);
                if self.flow.credit() > 0 {
                    self.unblock(now);
                }
                Ok(())
            }
            (Frame::Reset { stream, code, end, answer }, _) => {
                self.handle_reset(slot, stream, code, end, answer, now)
            }
            (Frame::Open { stream, class, scheduler, destination }, Role::Relay) => {
                self.handle_open(slot, stream, class, scheduler, destination, now)
            }
            (Frame::Opened { stream, result }, Role::Device) => self.handle_opened(slot, stream, result, now),
            (Frame::Ping(value), _) => self.queue_control(slot, Frame::Pong(value)),
            (Frame::Pong(value), _) => self.handle_pong(slot, value, now),
            (Frame::RtoRequest, _) => {
                let sample = self.subflow(slot).map(|subflow| subflow.sample.retransmission_timeout);
                self.queue_control(slot, Frame::Rto(sample.unwrap_or_default()))
            }
            (Frame::Rto(timeout), _) => {
                if let Some(subflow) = self.subflow_mut(slot) {
                    subflow.far_timeout = Some(timeout);
                }
                Ok(())
            }
            (Frame::Priority { subflow, standing, sequence }, Role::Relay) => {
                self.handle_priority(slot, subflow, (standing, sequence), now)
            }
            (Frame::PipeStatus { subflow, buffered, rate }, _) => {
                let slot = self.by_id.get(&subflow).copied();
                if let Some(subflow) = slot.and_then(|slot| self.subflow_mut(slot)) {
                    subflow.pipe = (buffered.min(MOST_PIPE), rate);
                }
                Ok(())
            }
            (Frame::Advertise(address), Role::Device) => {
                self.events.push_back(Event::Advertised { address });
                Ok(())
            }
            (Frame::Drain, Role::Device) => {
                if !std::mem::replace(&mut self.is_draining, true) {
                    self.events.push_back(Event::Draining);
                }
                Ok(())
            }
            (Frame::Close { code, text }, _) => {
                if let Some(subflow) = self.subflow(slot) {
                    self.events.push_back(Event::Closed { subflow: subflow.id, code, text });
                }
                Ok(())
            }
            (
                Frame::Hello(_)
                | Frame::HelloOk(_)
                | Frame::Open { .. }
                | Frame::Opened { .. }
                | Frame::Priority { .. }
                | Frame::Advertise(_)
                | Frame::Drain,
                _,
            ) => Err(Violation::Misplaced(kind)),
        }
    }

    /// Queues a frame that answers one of the far end on the same subflow.
    fn queue_control(&mut self, slot: usize, frame: Frame) -> Result<(), Violation> {
        let Some(subflow) = self.subflow_mut(slot) else { return Ok(()) };
        if subflow.control.len() >= MOST_CONTROL {
            return Err(Violation::PingAbuse);
        }
        subflow.control.push_back(frame);
        Ok(())
    }

    fn is_seen(&self, id: StreamId) -> bool {
        self.numbers.is_seen(id)
    }

    fn handle_open(
        &mut self,
        slot: usize,
        id: StreamId,
        class: StreamClass,
        scheduler: SchedulerKind,
        destination: Destination,
        now: Timestamp,
    ) -> Result<(), Violation> {
        // Another copy, sent over a second subflow or replayed: it opens nothing.
        if !self.numbers.see(id)? {
            return Ok(());
        }
        let limit = self.config.limits.streams;
        if self.streams.len() >= limit + MOST_REFUSED {
            return Err(Violation::TooManyStreams(limit));
        }
        let is_over_limit = self.streams.values().filter(|stream| stream.reset.is_none()).count() >= limit;
        let mut stream =
            Stream::new(destination.clone(), class, scheduler, scheduler, &self.config.limits, now);
        stream.is_confirmed = true;
        stream.note_arrival(slot, now);
        self.streams.insert(id, stream);
        self.note_original(slot, now);
        if is_over_limit {
            self.accept(id, OpenResult::OverLimit, now);
            return Ok(());
        }
        self.events.push_back(Event::StreamOpening { stream: id, destination, class });
        // Tells the device that its stream is known, and the window.
        if let Some(stream) = self.streams.get_mut(&id) {
            stream.grant_first(&mut self.flow);
            stream.needs_ack = true;
        }
        self.schedule(id, now);
        Ok(())
    }

    fn handle_opened(
        &mut self,
        slot: usize,
        id: StreamId,
        result: OpenResult,
        now: Timestamp,
    ) -> Result<(), Violation> {
        if !self.is_seen(id) {
            return Err(Violation::NeverOpened(id.0));
        }
        self.confirm(id, slot, now);
        let Some(stream) = self.streams.get_mut(&id) else { return Ok(()) };
        if stream.result.is_some() || stream.reset.is_some() {
            return Ok(());
        }
        stream.result = Some(result);
        self.note_original(slot, now);
        self.events.push_back(Event::StreamOpened { stream: id, result });
        if result != OpenResult::Connected {
            // The RESET behind it is answered for a stream that is over.
            self.give_up_bytes(id);
            self.remove_stream(id);
        }
        Ok(())
    }

    /// A stream that the relay carried to its end was connected, although its OPENED was lost.
    fn tell_connected(&mut self, id: StreamId) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        if self.role == Role::Device && stream.result.is_none() {
            stream.result = Some(OpenResult::Connected);
            self.events.push_back(Event::StreamOpened { stream: id, result: OpenResult::Connected });
        }
    }

    /// The relay has heard of a stream.
    fn confirm(&mut self, id: StreamId, slot: usize, now: Timestamp) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        if stream.is_confirmed {
            return;
        }
        stream.is_confirmed = true;
        stream.note_arrival(slot, now);
        let opened_on = stream.opened_on;
        for slot in opened_on.iter() {
            if let Some(subflow) = self.subflow_mut(slot) {
                subflow.note_freed(1);
                subflow.last_ack_progress = Some(now);
            }
        }
        self.schedule(id, now);
    }

    fn handle_data(&mut self, slot: usize, data: Data, now: Timestamp) -> Result<(), Violation> {
        let Data { stream: id, dsn, mark, bytes } = data;
        let path = self.subflow(slot).map(|subflow| subflow.path);
        let length = bytes.len() as u64;
        self.confirm(id, slot, now);
        let Some(stream) = self.streams.get_mut(&id) else {
            return self.handle_late(slot, id);
        };
        if stream.reset.is_some() {
            let end = dsn + bytes.len() as u64;
            let beyond = stream.receiver.raise(id, end)?;
            self.flow.handle_received(beyond)?;
            self.flow.handle_consumed(beyond);
            return Ok(());
        }
        let runs = stream.receiver.runs_ahead();
        let arrival = stream.receiver.handle_data(id, dsn, mark, bytes)?;
        self.flow.handle_received(arrival.beyond)?;
        if !self.flow.handle_runs(runs, stream.receiver.runs_ahead()) {
            return Err(Violation::TooManyGaps(id.0));
        }
        if arrival.is_new {
            stream.note_arrival(slot, now);
            stream.last_data = Some(now);
            stream.rhythm.handle_arrival(now);
            if let Some(path) = path {
                Carried::add(&mut stream.carried, path, 0, length);
            }
        }
        if mark.fin {
            stream.note_promised(&mut self.flow);
        }
        stream.unacked += arrival.in_order;
        let is_urgent = stream.unacked >= ACK_EVERY
            || stream.receiver.has_gap()
            || !arrival.is_new
            || stream.receiver.is_complete()
            || stream.wants_grant(&self.flow);
        if arrival.is_readable {
            self.events.push_back(Event::Readable { stream: id });
        }
        if arrival.is_new {
            self.note_original(slot, now);
        }
        if is_urgent {
            if let Some(stream) = self.streams.get_mut(&id) {
                stream.needs_ack = true;
            }
            self.schedule(id, now);
        } else {
            self.delay_ack(id, slot, now);
            self.update_busy(id, now);
        }
        Ok(())
    }

    /// Lets an acknowledgment wait for something to go along with.
    fn delay_ack(&mut self, id: StreamId, slot: usize, now: Timestamp) {
        let to = match self.streams.get(&id) {
            Some(stream) => self.control_slot(stream).unwrap_or(slot),
            None => return,
        };
        if let Some(subflow) = self.subflow_mut(to) {
            subflow.acks.insert(id);
            if subflow.ack_deadline.is_none() && !subflow.is_ack_due {
                subflow.ack_deadline = Some(now + ACK_DELAY);
            }
        }
    }

    /// Data or a RESET for a stream that is over, or never was.
    fn handle_late(&mut self, slot: usize, id: StreamId) -> Result<(), Violation> {
        if !self.is_seen(id) {
            return Err(Violation::NeverOpened(id.0));
        }
        if let Some(subflow) = self.subflow_mut(slot)
            && subflow.over.len() < MOST_OVER
        {
            subflow.over.insert(id);
        }
        Ok(())
    }

    fn handle_ack(
        &mut self,
        slot: usize,
        id: StreamId,
        data_ack: u64,
        window: u64,
        now: Timestamp,
    ) -> Result<(), Violation> {
        if !self.is_seen(id) {
            return Err(Violation::NeverOpened(id.0));
        }
        self.confirm(id, slot, now);
        let Some(stream) = self.streams.get_mut(&id).filter(|stream| stream.reset.is_none()) else {
            return Ok(());
        };
        let mut freed = std::mem::take(&mut self.freed);
        let buffered = stream.sender.buffered();
        if !stream.sender.handle_ack(data_ack, &mut freed) {
            return Err(Violation::NeverSent(id.0));
        }
        let is_wider = stream.sender.handle_window(window);
        let buffered = buffered - stream.sender.buffered();
        let is_progress = !freed.is_empty();
        let needs_more = stream.can_send();
        for part in &freed {
            for carrier in part.carriers.iter() {
                if let Some(subflow) = self.slots.get_mut(carrier).and_then(Option::as_mut) {
                    subflow.last_ack_progress = Some(now);
                }
            }
        }
        self.apply_freed(freed);
        self.free_send_buffer(id, buffered);
        if is_wider {
            self.tell_writable(id);
        }
        if is_progress {
            self.note_original(slot, now);
        }
        if needs_more {
            self.schedule(id, now);
        } else {
            self.update_busy(id, now);
        }
        self.forget_if_over(id);
        Ok(())
    }

    /// Takes from the subflows what they carry no more.
    pub(super) fn apply_freed(&mut self, mut freed: Vec<Freed>) {
        for Freed { carriers, bytes } in freed.drain(..) {
            for slot in carriers.iter() {
                if let Some(subflow) = self.slots.get_mut(slot).and_then(Option::as_mut) {
                    subflow.note_freed(bytes);
                }
            }
        }
        self.freed = freed;
    }

    fn handle_reset(
        &mut self,
        slot: usize,
        id: StreamId,
        code: u64,
        end: u64,
        answer: bool,
        now: Timestamp,
    ) -> Result<(), Violation> {
        // A stream that the device gave up before the relay heard of it.
        if self.role == Role::Relay && self.numbers.see(id)? {
            if end > INITIAL_STREAM_WINDOW {
                return Err(Violation::BeyondStreamWindow(id.0));
            }
            self.flow.handle_received(end)?;
            self.flow.handle_consumed(end);
            return self.handle_late(slot, id);
        }
        if !self.is_seen(id) {
            return Err(Violation::NeverOpened(id.0));
        }
        self.confirm(id, slot, now);
        let Some(stream) = self.streams.get_mut(&id) else {
            return if answer { Ok(()) } else { self.handle_late(slot, id) };
        };
        if answer && stream.reset.is_none() {
            // The far end is done with the stream: it had everything, or it has lost its state.
            let mut freed = std::mem::take(&mut self.freed);
            let buffered = stream.sender.buffered();
            let is_done = stream.receiver.is_complete() && stream.sender.handle_all_acked(&mut freed);
            let buffered = buffered - stream.sender.buffered();
            self.apply_freed(freed);
            self.free_send_buffer(id, buffered);
            if is_done {
                self.tell_connected(id);
                self.update_busy(id, now);
                self.forget_if_over(id);
                return Ok(());
            }
        }
        let Some(stream) = self.streams.get_mut(&id) else { return Ok(()) };
        let end = if answer { end.max(stream.receiver.highest()) } else { end };
        if end < stream.receiver.highest() {
            return Err(Violation::BehindEnd(id.0));
        }
        if stream.reset.is_none() {
            self.give_up_bytes(id);
            self.events.push_back(Event::StreamReset { stream: id, code });
        }
        let Some(stream) = self.streams.get_mut(&id) else { return Ok(()) };
        let beyond = stream.receiver.raise(id, end)?;
        self.flow.handle_received(beyond)?;
        self.flow.handle_consumed(beyond);
        self.remove_stream(id);
        self.note_original(slot, now);
        if answer { Ok(()) } else { self.handle_late(slot, id) }
    }

    fn handle_priority(
        &mut self,
        on: usize,
        id: SubflowId,
        (standing, sequence): (Standing, u64),
        now: Timestamp,
    ) -> Result<(), Violation> {
        let Some(slot) = self.by_id.get(&id).copied() else { return Ok(()) };
        let Some(subflow) = self.subflow_mut(slot) else { return Ok(()) };
        if standing == Standing::Gone {
            if slot == on {
                return Err(Violation::Misplaced(FrameType::Priority as u8));
            }
            if !std::mem::replace(&mut subflow.is_forbidden, true) {
                self.leave_slot(slot, now);
                self.actions.push_back(Action::CloseSubflow { id, reason: CloseReason::Lost });
            }
            return Ok(());
        }
        if sequence < subflow.next_standing {
            return Ok(());
        }
        subflow.next_standing = sequence + 1;
        let was = (subflow.is_suspect, subflow.is_backup);
        subflow.is_suspect = standing == Standing::Suspect;
        if standing != Standing::Suspect {
            subflow.is_backup = standing == Standing::Backup;
        }
        let is = (subflow.is_suspect, subflow.is_backup);
        if standing == Standing::Normal {
            // The device speaks of where it goes on: as good as data from there.
            self.note_heard(slot, now);
        }
        if was == is {
            return Ok(());
        }
        if standing == Standing::Suspect {
            self.suspected = self.suspected.with(slot);
        }
        self.is_replan_due = true;
        Ok(())
    }

    /// Does what a change of standings calls for and every stream has a part in: a frame of five bytes costs no more
    /// than others.
    fn apply_standings(&mut self, now: Timestamp) {
        if !std::mem::take(&mut self.is_replan_due) {
            return;
        }
        for slot in std::mem::replace(&mut self.suspected, Slots::NONE).iter() {
            self.repeat_control(slot);
        }
        self.replan(now);
    }

    /// A subflow brought something original (M1).
    pub(super) fn note_original(&mut self, slot: usize, now: Timestamp) {
        self.note_heard(slot, now);
        self.plan_original(slot, now);
    }

    /// The far end speaks on a subflow, and is answered on its path.
    fn note_heard(&mut self, slot: usize, now: Timestamp) {
        let Some(subflow) = self.subflow_mut(slot) else { return };
        subflow.last_original = now;
        let path = subflow.path;
        if self.heard_on != Some(path) {
            self.heard_on = Some(path);
            self.is_replan_due |= self.slots.iter().flatten().any(|subflow| subflow.is_backup);
        }
    }
}
