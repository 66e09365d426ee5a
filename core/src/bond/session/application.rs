//! What the program's side does with streams.

use bytes::Bytes;

use super::{Session, Stream};
use crate::bond::action::{Event, Read, Refusal, SendError};
use crate::bond::config::{Role, StreamClass};
use crate::bond::wire::{Destination, INITIAL_STREAM_WINDOW, OpenResult, StreamId};
use crate::units::Timestamp;

/// A writer is told of room from this much on, or from half of a smaller buffer.
const WORTH_TELLING: u64 = 64 << 10;

/// Bytes that wait in front of all subflows at most; what is more would only be old when it leaves.
const MOST_UNSENT: u64 = 1 << 20;

/// And at most so many times what the far end's window takes, besides what every stream may hold: a reader that
/// stopped is not worth more.
const UNSENT_WINDOWS: u64 = 4;

/// Code of the RESET with which a relay takes back a stream whose destination it did not reach.
const CODE_NOT_OPENED: u64 = 1;

/// How much of a stream may wait for subflows and the far end's window.
fn most_unsent(stream: &Stream) -> u64 {
    stream.sender.window_left().saturating_mul(UNSENT_WINDOWS).clamp(INITIAL_STREAM_WINDOW, MOST_UNSENT)
}

/// What of a stream's send buffer is of the pool of all.
fn pooled(buffered: u64) -> u64 {
    buffered.saturating_sub(INITIAL_STREAM_WINDOW)
}

impl Session {
    /// Opens a stream (device). Its bytes may be sent at once.
    pub fn open_stream(
        &mut self,
        destination: Destination,
        class: StreamClass,
        now: Timestamp,
    ) -> Result<StreamId, Refusal> {
        if self.role == Role::Relay {
            return Err(Refusal::WrongRole);
        }
        if self.is_draining {
            return Err(Refusal::Draining);
        }
        if self.streams.len() >= self.config.limits.streams {
            return Err(Refusal::TooMany);
        }
        let id = self.numbers.next();
        let own = self.config.device_schedulers.get(class);
        let far = self.config.relay_schedulers.get(class);
        let mut stream = Stream::new(destination, class, own, far, &self.config.limits, now);
        stream.grant_first(&mut self.flow);
        stream.needs_ack = stream.promised > 0;
        self.streams.insert(id, stream);
        self.schedule(id, now);
        self.plan_paths(now);
        Ok(id)
    }

    /// Tells the device how its stream's destination was reached (relay). Unless it is connected,
    /// the stream is over.
    pub fn accept(&mut self, id: StreamId, result: OpenResult, now: Timestamp) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        if self.role == Role::Device || stream.result.is_some() || stream.reset.is_some() {
            return;
        }
        stream.result = Some(result);
        stream.needs_opened = true;
        if result == OpenResult::Connected {
            self.schedule(id, now);
        } else {
            self.reset(id, CODE_NOT_OPENED, now);
        }
    }

    /// Bytes that [`Self::send`] is to be given now. When they are few, an [`Event::Writable`] tells of
    /// more.
    pub fn send_room(&mut self, id: StreamId) -> usize {
        let Some(stream) = self.streams.get(&id) else { return 0 };
        let room = self.room_of(stream);
        if room < self.worth_telling(stream) {
            self.want_room(id);
        }
        usize::try_from(room).unwrap_or(usize::MAX)
    }

    fn room_of(&self, stream: &Stream) -> u64 {
        if stream.sender.is_finished() {
            return 0;
        }
        self.own_room(stream).min(self.most_buffered().saturating_sub(stream.sender.buffered()))
    }

    /// What the stream's own bounds leave.
    fn own_room(&self, stream: &Stream) -> u64 {
        let most_unsent = most_unsent(stream).saturating_sub(stream.sender.unsent());
        self.buffer_room(stream).min(most_unsent)
    }

    /// What the stream's buffer has room for.
    fn buffer_room(&self, stream: &Stream) -> u64 {
        let own = self.config.limits.send_per_stream.saturating_sub(stream.sender.buffered());
        own.min(MOST_UNSENT.saturating_sub(stream.sender.unsent()))
    }

    /// What a single stream may hold: what every stream may, and of the pool as much as all leave free
    /// (Choudhury and Hahne, IEEE/ACM Transactions on Networking 6(2), 1998, with a factor of 1). However many
    /// readers stop, others find room.
    fn most_buffered(&self) -> u64 {
        INITIAL_STREAM_WINDOW + self.config.limits.send_in_all.saturating_sub(self.send_pooled)
    }

    fn worth_telling(&self, stream: &Stream) -> u64 {
        let most = most_unsent(stream).min(self.config.limits.send_per_stream).min(self.most_buffered());
        WORTH_TELLING.min(most / 2).max(1)
    }

    /// A writer waits for an [`Event::Writable`].
    fn want_room(&mut self, id: StreamId) {
        let Some(stream) = self.streams.get(&id).filter(|stream| !stream.sender.is_finished()) else {
            return;
        };
        if self.room_of(stream) < self.own_room(stream) {
            self.starved.insert(id);
        }
        if let Some(stream) = self.streams.get_mut(&id) {
            stream.wants_room = true;
        }
    }

    /// Hands in a stream's next bytes, at most as many as [`Self::send_room`] last said. What other
    /// streams have taken of the shared room since, or this one of the far end's window, does no harm.
    pub fn send(&mut self, id: StreamId, bytes: Bytes, now: Timestamp) -> Result<(), SendError> {
        let stream = self.streams.get(&id).filter(|stream| stream.reset.is_none()).ok_or(SendError::Gone)?;
        if stream.sender.is_finished() {
            return Err(SendError::Finished);
        }
        if bytes.len() as u64 > self.buffer_room(stream) {
            return Err(SendError::NoRoom);
        }
        let length = bytes.len() as u64;
        self.send_buffered += length;
        if let Some(stream) = self.streams.get_mut(&id) {
            let before = stream.sender.buffered();
            self.send_pooled += pooled(before + length) - pooled(before);
            stream.sender.append(bytes);
            stream.rhythm.handle_sent();
        }
        if self.streams.get(&id).is_some_and(|stream| self.room_of(stream) < self.worth_telling(stream)) {
            self.want_room(id);
        }
        self.schedule(id, now);
        Ok(())
    }

    /// Ends this end's direction of a stream behind what was handed in.
    pub fn finish(&mut self, id: StreamId, now: Timestamp) -> Result<(), SendError> {
        let stream = self.streams.get_mut(&id).filter(|stream| stream.reset.is_none());
        let stream = stream.ok_or(SendError::Gone)?;
        if stream.sender.is_finished() {
            return Err(SendError::Finished);
        }
        stream.sender.finish();
        self.schedule(id, now);
        Ok(())
    }

    /// Ends a stream at once in both directions.
    pub fn reset(&mut self, id: StreamId, code: u64, now: Timestamp) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        if stream.reset.is_some() {
            return;
        }
        stream.reset = Some(code);
        stream.needs_reset = true;
        stream.needs_ack = false;
        self.give_up_bytes(id);
        self.schedule(id, now);
    }

    /// Takes a stream's next bytes, at most `most`, and so lets the far end send more.
    pub fn read(&mut self, id: StreamId, most: usize, now: Timestamp) -> Read {
        let rtt = self.longest_rtt();
        let Some(stream) = self.streams.get_mut(&id).filter(|stream| stream.reset.is_none()) else {
            return Read::Nothing;
        };
        if let Some(bytes) = stream.receiver.read(most, rtt, now) {
            self.flow.handle_consumed(bytes.len() as u64);
            stream.note_promised(&mut self.flow);
            if stream.wants_grant(&self.flow) && !stream.needs_ack {
                stream.needs_ack = true;
                self.schedule(id, now);
            }
            return Read::Bytes(bytes);
        }
        if !stream.receiver.is_read_out() {
            return Read::Nothing;
        }
        stream.is_end_read = true;
        self.forget_if_over(id);
        Read::End
    }

    /// `bytes` of a stream's send buffer were freed: tells writers of the room that there is.
    pub(super) fn free_send_buffer(&mut self, id: StreamId, bytes: u64) {
        let Some(stream) = self.streams.get(&id).filter(|_| bytes > 0) else { return };
        let left = stream.sender.buffered();
        self.send_buffered -= bytes;
        self.send_pooled -= pooled(left + bytes) - pooled(left);
        self.tell_writable(id);
        for id in std::mem::take(&mut self.starved) {
            self.tell_writable(id);
        }
    }

    /// Tells a writer of room, if it waits for that and there is enough.
    pub(super) fn tell_writable(&mut self, id: StreamId) {
        let Some(stream) = self.streams.get(&id).filter(|stream| stream.wants_room) else { return };
        let room = self.room_of(stream);
        if room < self.worth_telling(stream) {
            if room < self.own_room(stream) {
                self.starved.insert(id);
            }
            return;
        }
        if let Some(stream) = self.streams.get_mut(&id) {
            stream.wants_room = false;
        }
        self.events.push_back(Event::Writable { stream: id });
    }

    /// Drops what a stream holds in both directions; its numbers stay.
    pub(super) fn give_up_bytes(&mut self, id: StreamId) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        let buffered = stream.sender.buffered();
        let unread = stream.receiver.highest() - stream.receiver.consumed();
        self.flow.handle_runs(stream.receiver.runs_ahead(), 0);
        stream.receiver.clear();
        let mut freed = std::mem::take(&mut self.freed);
        stream.sender.clear(&mut freed);
        self.apply_freed(freed);
        self.free_send_buffer(id, buffered);
        self.flow.handle_consumed(unread);
        if let Some(stream) = self.streams.get_mut(&id) {
            stream.note_promised(&mut self.flow);
        }
    }

    /// Forgets a stream of which both directions ended.
    pub(super) fn forget_if_over(&mut self, id: StreamId) {
        if self.streams.get(&id).is_some_and(Stream::is_over) {
            self.remove_stream(id);
            self.events.push_back(Event::StreamClosed { stream: id });
        }
    }

    /// Takes a stream out of everything.
    pub(super) fn remove_stream(&mut self, id: StreamId) {
        self.set_leases(id, Vec::new());
        let Some(stream) = self.streams.remove(&id) else { return };
        self.flow.handle_promised(stream.promised, 0);
        self.busy.remove(&id);
        self.blocked.remove(&id);
        self.numbers.remember(id, stream.sender.sent_end(), stream.spoke_on);
        for subflow in self.slots.iter_mut().flatten() {
            subflow.expecting.remove(&id);
            subflow.acks.remove(&id);
        }
    }
}
