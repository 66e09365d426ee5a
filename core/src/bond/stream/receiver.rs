use std::collections::BTreeMap;
use std::time::Duration;

use bytes::{Buf, Bytes};

use super::pieces::Pieces;
use super::window::Window;
use crate::bond::action::Violation;
use crate::bond::wire::{INITIAL_STREAM_WINDOW, MAX_SEGMENTS, Mark, StreamId};
use crate::units::Timestamp;

/// The far end's direction of one stream: puts bytes in order and says how much more may come.
#[derive(Debug)]
pub(in crate::bond) struct Receiver {
    /// In order and not read.
    ready: Pieces,
    /// Runs beyond a gap, by their first sequence number.
    ahead: BTreeMap<u64, Pieces>,
    /// One past the highest byte that arrived.
    highest: u64,
    /// Whether what arrived last, by sequence number, was marked idle.
    idle: bool,
    /// Where the direction ends.
    end: Option<u64>,
    window: Window,
}

/// What a DATA frame did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(in crate::bond) struct Arrival {
    /// By how much the highest sequence number rose.
    pub(in crate::bond) beyond: u64,
    /// Whether it brought anything that was not there.
    pub(in crate::bond) is_new: bool,
    /// Whether `read` has something that it had not, bytes or the end.
    pub(in crate::bond) is_readable: bool,
    /// Bytes that came into order.
    pub(in crate::bond) in_order: u64,
}

impl Receiver {
    /// A direction of which at most `most` bytes are held, or the protocol's initial window.
    pub(in crate::bond) fn new(most: u64, now: Timestamp) -> Self {
        Self {
            ready: Pieces::default(),
            ahead: BTreeMap::new(),
            highest: 0,
            idle: true,
            end: None,
            window: Window::new(most, now),
        }
    }

    /// Takes a DATA frame in.
    pub(in crate::bond) fn handle_data(
        &mut self,
        stream: StreamId,
        dsn: u64,
        mark: Mark,
        bytes: Bytes,
    ) -> Result<Arrival, Violation> {
        let end = dsn + bytes.len() as u64;
        if end > self.window.granted() {
            return Err(Violation::BeyondStreamWindow(stream.0));
        }
        if self.end.is_some_and(|known| end > known || (mark.fin && end != known))
            || (mark.fin && end < self.highest)
        {
            return Err(Violation::BehindEnd(stream.0));
        }
        let mut arrival = Arrival { beyond: end.saturating_sub(self.highest), ..Arrival::default() };
        if end > self.highest || (end == self.highest && !bytes.is_empty()) {
            self.idle = mark.idle;
        }
        self.highest = self.highest.max(end);
        let was_complete = self.is_complete();
        if mark.fin && self.end.is_none() {
            self.end = Some(end);
            arrival.is_new = true;
        }
        let before = self.ready.end();
        arrival.is_new |= self.insert(dsn, bytes);
        if self.ahead.len() > MAX_SEGMENTS {
            return Err(Violation::TooManyGaps(stream.0));
        }
        if self.has_gap() {
            self.window.handle_gap(self.highest);
        }
        arrival.in_order = self.ready.end() - before;
        arrival.is_readable = arrival.in_order > 0 || self.is_complete() != was_complete;
        Ok(arrival)
    }

    /// Takes bytes off in order.
    pub(in crate::bond) fn read(&mut self, most: usize, rtt: Duration, now: Timestamp) -> Option<Bytes> {
        let before = self.consumed();
        let bytes = self.ready.take(most)?;
        self.window.handle_read(before, self.consumed(), rtt, now);
        Some(bytes)
    }

    /// Whether everything up to the end was read.
    pub(in crate::bond) fn is_read_out(&self) -> bool {
        self.is_complete() && self.ready.is_empty()
    }

    /// Whether everything up to the end has arrived.
    pub(in crate::bond) fn is_complete(&self) -> bool {
        self.end == Some(self.ready.end())
    }

    /// Everything below has arrived; the end counts as one.
    pub(in crate::bond) fn data_ack(&self) -> u64 {
        self.ready.end() + u64::from(self.is_complete())
    }

    /// One past the highest byte that arrived.
    pub(in crate::bond) fn highest(&self) -> u64 {
        self.highest
    }

    /// Bytes that were read.
    pub(in crate::bond) fn consumed(&self) -> u64 {
        self.ready.begin()
    }

    /// Whether more is to be expected: the last data was not marked idle, and there is room for more.
    pub(in crate::bond) fn expects_more(&self) -> bool {
        !self.idle && self.end.is_none() && self.highest < self.window.granted()
    }

    /// Runs behind a gap, which cost memory beyond their bytes.
    pub(in crate::bond) fn runs_ahead(&self) -> usize {
        self.ahead.len()
    }

    /// Whether there is a gap before something that has arrived.
    pub(in crate::bond) fn has_gap(&self) -> bool {
        !self.ahead.is_empty()
    }

    /// Bytes that may still have to be held beyond what every stream has: granted and not read.
    pub(in crate::bond) fn promised(&self) -> u64 {
        let last = self.end.unwrap_or(self.window.granted());
        last.saturating_sub(self.consumed()).saturating_sub(INITIAL_STREAM_WINDOW)
    }

    /// Grants a first window, of `extra` bytes more than the protocol's.
    pub(in crate::bond) fn grant_first(&mut self, extra: u64) {
        self.window.grant_first(extra);
    }

    /// The window to tell the far end now, when the session's pool has `room` for the stream.
    pub(in crate::bond) fn grant(&mut self, room: u64) -> u64 {
        if self.end.is_some() {
            return self.window.granted();
        }
        self.window.grant(self.consumed(), room)
    }

    /// Whether the far end should hear of a wider window now.
    pub(in crate::bond) fn wants_grant(&self, room: u64) -> bool {
        self.end.is_none() && self.window.wants_grant(self.consumed(), room)
    }

    /// Counts bytes up to `end` as arrived, since they will not be; by how much the highest rose.
    pub(in crate::bond) fn raise(&mut self, stream: StreamId, end: u64) -> Result<u64, Violation> {
        if end > self.window.granted() {
            return Err(Violation::BeyondStreamWindow(stream.0));
        }
        if self.end.is_some_and(|known| end > known) {
            return Err(Violation::BehindEnd(stream.0));
        }
        let beyond = end.saturating_sub(self.highest);
        self.highest += beyond;
        Ok(beyond)
    }

    /// Gives everything up but the counts.
    pub(in crate::bond) fn clear(&mut self) {
        self.ready.clear();
        self.ahead.clear();
    }

    /// Takes in what of `bytes` is not there yet; true when any was not.
    fn insert(&mut self, mut dsn: u64, mut bytes: Bytes) -> bool {
        let skip = self.ready.end().saturating_sub(dsn);
        if skip >= bytes.len() as u64 {
            return false;
        }
        bytes.advance(skip as usize);
        dsn += skip;
        if dsn == self.ready.end() {
            self.ready.append(bytes);
            while let Some(entry) = self.ahead.first_entry()
                && *entry.key() <= self.ready.end()
            {
                self.ready.append_run(entry.remove());
            }
            return true;
        }
        let mut is_new = false;
        while !bytes.is_empty() {
            let before = self.ahead.range_mut(..=dsn).next_back();
            if let Some((_, run)) = before
                && run.end() > dsn
            {
                let known = (run.end() - dsn).min(bytes.len() as u64);
                bytes.advance(known as usize);
                dsn += known;
                continue;
            }
            let next = self.ahead.range(dsn..).next().map(|(start, _)| *start);
            let free = next.map_or(u64::MAX, |next| next - dsn).min(bytes.len() as u64);
            let part = bytes.split_to(free as usize);
            is_new = true;
            match self.ahead.range_mut(..=dsn).next_back() {
                Some((_, run)) if run.end() == dsn => run.append(part),
                _ => {
                    let mut run = Pieces::starting_at(dsn);
                    run.append(part);
                    self.ahead.insert(dsn, run);
                }
            }
            dsn += free;
        }
        is_new
    }
}
