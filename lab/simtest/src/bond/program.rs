//! The programs at both ends of a stream, which know what they wrote and what has to arrive.

use std::time::Duration;

use multiway_core::bond::wire::OpenResult;
use multiway_core::bond::{Event, Read, Session, StreamId};
use multiway_core::units::Timestamp;

use super::reference;
use super::scene::{Half, StreamPlan};

/// The code with which programs reset.
pub(super) const RESET: u64 = 7;

/// One end of a stream.
#[derive(Debug, Default)]
struct Side {
    is_begun: bool,
    written: u64,
    waits_for_room: bool,
    write_at: Timestamp,
    is_finished: bool,
    read: u64,
    waits_for_bytes: bool,
    read_at: Timestamp,
    is_end_read: bool,
    /// Of no further interest to this end.
    over: Option<Over>,
}

/// How a stream ended at one end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Over {
    /// Both directions in good order.
    Closed,
    /// This program reset it.
    Reset,
    /// The far end did.
    FarReset,
    /// The destination was not reached.
    Refused,
}

/// A program's connection.
#[derive(Debug)]
pub(super) struct Program {
    pub(super) plan: StreamPlan,
    pub(super) id: Option<StreamId>,
    sides: [Side; 2],
    /// The relay has heard of it, and reaches the destination then.
    accept_at: Option<Timestamp>,
    is_accepted: bool,
    was_told: Option<OpenResult>,
    pub(super) ended_at: Option<Timestamp>,
}

impl Program {
    pub(super) fn new(plan: StreamPlan) -> Self {
        let sides = [Side { is_begun: true, ..Side::default() }, Side::default()];
        Self { plan, id: None, sides, accept_at: None, is_accepted: false, was_told: None, ended_at: None }
    }

    /// How it ended at both ends.
    pub(super) fn over(&self) -> [Option<Over>; 2] {
        [self.sides[0].over, self.sides[1].over]
    }

    /// Bytes read at an end.
    pub(super) fn read(&self, end: usize) -> u64 {
        self.sides[end].read
    }

    /// Whether neither end's program waits for anything.
    pub(super) fn is_over(&self) -> bool {
        let is_done = |side: &Side| side.over.is_some() || (side.is_finished && side.is_end_read);
        let relay_knows = self.accept_at.is_some();
        self.id.is_some() && is_done(&self.sides[0]) && (is_done(&self.sides[1]) || !relay_knows)
    }

    fn half(&self, end: usize) -> &Half {
        if end == 0 { &self.plan.up } else { &self.plan.down }
    }

    /// An event about this stream at `end`.
    pub(super) fn handle_event(&mut self, end: usize, event: &Event, now: Timestamp) -> Result<(), String> {
        let far = &self.sides[1 - end];
        let (far_finished, far_written, far_over) = (far.is_finished, far.written, far.over);
        let side = &mut self.sides[end];
        match event {
            Event::StreamOpening { .. } => {
                if self.accept_at.is_some() {
                    return Err("was opened twice".to_owned());
                }
                self.accept_at = Some(now + self.plan.accept_after);
            }
            Event::StreamOpened { result, .. } => {
                let is_right = match result {
                    OpenResult::OverLimit => self.accept_at.is_none(),
                    result => *result == self.plan.accept,
                };
                if self.was_told.replace(*result).is_some() || !is_right {
                    return Err(format!("is told {result:?} of {:?}", self.plan.accept));
                }
                if *result != OpenResult::Connected {
                    side.over = Some(Over::Refused);
                }
            }
            Event::Readable { .. } => side.waits_for_bytes = false,
            Event::Writable { .. } => side.waits_for_room = false,
            Event::StreamClosed { .. } => {
                if !side.is_finished || !side.is_end_read {
                    return Err("closed early".to_owned());
                }
                if side.over.replace(Over::Closed).is_some() {
                    return Err("closed twice".to_owned());
                }
            }
            Event::StreamReset { code, .. } => {
                let is_told = far_over == Some(Over::Reset) && (*code == RESET || *code == 0);
                let is_refused = end == 0 && far_over == Some(Over::Refused);
                if !is_told && !is_refused {
                    return Err(format!(
                        "is reset (code {code}) by nobody: {far_written} written, finished {far_finished}"
                    ));
                }
                if side.over.replace(Over::FarReset).is_some() {
                    return Err("is reset after its end".to_owned());
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Does at both ends what is due.
    pub(super) fn step(&mut self, sessions: [&mut Session; 2], now: Timestamp) -> Result<bool, String> {
        let Some(id) = self.id else { return Ok(false) };
        let [device, relay] = sessions;
        let mut moved = false;
        if !self.is_accepted && self.accept_at.is_some_and(|at| at <= now) {
            self.is_accepted = true;
            moved = true;
            if self.sides[1].over.is_none() {
                relay.accept(id, self.plan.accept, now);
                if self.plan.accept == OpenResult::Connected {
                    self.sides[1].is_begun = true;
                } else {
                    self.sides[1].over = Some(Over::Refused);
                }
            }
        }
        for (end, session) in [(0, device), (1, relay)] {
            if !self.sides[end].is_begun || self.sides[end].over.is_some() {
                continue;
            }
            moved |= self.step_writer(id, end, session, now)?;
            moved |= self.step_reader(id, end, session, now)?;
        }
        Ok(moved)
    }

    fn step_writer(
        &mut self,
        id: StreamId,
        end: usize,
        session: &mut Session,
        now: Timestamp,
    ) -> Result<bool, String> {
        let half = self.half(end).clone();
        let mut moved = false;
        loop {
            let side = &mut self.sides[end];
            if side.over.is_some()
                || side.is_finished
                || side.waits_for_room
                || side.write_at > now
                || side.read < half.starts_after
            {
                return Ok(moved);
            }
            if half.resets_at.is_some_and(|at| side.written >= at) {
                session.reset(id, RESET, now);
                side.over = Some(Over::Reset);
                return Ok(true);
            }
            if side.written == half.total {
                session.finish(id, now).map_err(|error| format!("cannot finish: {error}"))?;
                side.is_finished = true;
                return Ok(true);
            }
            let room = session.send_room(id) as u64;
            if room == 0 {
                side.waits_for_room = true;
                return Ok(moved);
            }
            let most = half.resets_at.unwrap_or(u64::MAX).min(half.total) - side.written;
            let length = room.min(half.chunk).min(most).min(64 << 10);
            let bytes = reference::bytes(id.0, end, side.written, length as usize);
            session.send(id, bytes, now).map_err(|error| format!("cannot send {length}: {error}"))?;
            side.written += length;
            side.write_at = now + half.pause;
            moved = true;
        }
    }

    fn step_reader(
        &mut self,
        id: StreamId,
        end: usize,
        session: &mut Session,
        now: Timestamp,
    ) -> Result<bool, String> {
        let half = self.half(1 - end).clone();
        let far_written = self.sides[1 - end].written;
        let far_finished = self.sides[1 - end].is_finished;
        let mut moved = false;
        loop {
            let side = &mut self.sides[end];
            if side.over.is_some() || side.is_end_read || side.waits_for_bytes || side.read_at > now {
                return Ok(moved);
            }
            let most = match half.stop {
                Some(stop) if now < Timestamp::ZERO + stop.until => {
                    stop.after.saturating_sub(side.read).min(half.read_chunk as u64) as usize
                }
                Some(stop) if stop.resets && side.read >= stop.after => {
                    session.reset(id, RESET, now);
                    side.over = Some(Over::Reset);
                    return Ok(true);
                }
                _ => half.read_chunk,
            };
            if most == 0 {
                side.read_at = half.stop.map_or(now, |stop| Timestamp::ZERO + stop.until);
                return Ok(moved);
            }
            match session.read(id, most, now) {
                Read::Bytes(bytes) => {
                    if bytes.is_empty() || bytes.len() > most {
                        return Err(format!("reads {} bytes of {most}", bytes.len()));
                    }
                    if side.read + bytes.len() as u64 > far_written {
                        return Err("brings more than was written".to_owned());
                    }
                    if !reference::is_right(id.0, 1 - end, side.read, &bytes) {
                        return Err(format!("brings other bytes behind {}", side.read));
                    }
                    side.read += bytes.len() as u64;
                    side.read_at = now + half.read_pause;
                    moved = true;
                }
                Read::Nothing => side.waits_for_bytes = true,
                Read::End => {
                    if !far_finished || side.read != far_written {
                        return Err(format!("ends at {} of {far_written}", side.read));
                    }
                    side.is_end_read = true;
                    moved = true;
                }
            }
        }
    }

    /// When something is due next.
    pub(super) fn poll_timeout(&self, origin: Timestamp) -> Option<Timestamp> {
        if self.id.is_none() {
            return Some(origin + self.plan.opens_at);
        }
        let accept = self.accept_at.filter(|_| !self.is_accepted);
        let sides = self.sides.iter().enumerate().filter(|(_, side)| side.is_begun && side.over.is_none());
        let due = sides.flat_map(|(end, side)| {
            let may_write =
                !side.is_finished && !side.waits_for_room && side.read >= self.half(end).starts_after;
            let may_read = !side.is_end_read && !side.waits_for_bytes;
            [may_write.then_some(side.write_at), may_read.then_some(side.read_at)]
        });
        due.flatten().chain(accept).min()
    }

    /// For a fault's report.
    pub(super) fn describe(&self) -> String {
        let side = |side: &Side| {
            format!(
                "written {}{}{} read {}{}{}{}",
                side.written,
                if side.is_finished { " fin" } else { "" },
                if side.waits_for_room { " (no room)" } else { "" },
                side.read,
                if side.is_end_read { " end" } else { "" },
                if side.waits_for_bytes { " (nothing)" } else { "" },
                side.over.map(|over| format!(" {over:?}")).unwrap_or_default(),
            )
        };
        let opened = self.accept_at.map(Timestamp::since_origin).unwrap_or(Duration::ZERO);
        format!(
            "{:?} of {}/{}: device {}; relay {}; accepted {} at {opened:?}",
            self.id,
            self.plan.up.total,
            self.plan.down.total,
            side(&self.sides[0]),
            side(&self.sides[1]),
            self.is_accepted,
        )
    }
}
