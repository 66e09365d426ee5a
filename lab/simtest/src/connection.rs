//! A modelled TCP connection: the server's sending side, and its answers.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;
use multiway_core::mphttp::download::Ask;
use multiway_core::units::Timestamp;

use crate::object;
use crate::path::Conduct;

pub(crate) const SEGMENT: u64 = 1448;
/// RFC 6928.
const INITIAL_WINDOW: u64 = 10 * SEGMENT;
/// Linux' default `tcp_rmem` maximum: what a receiver that does not read lets come.
pub(crate) const RECEIVE_BUFFER: u64 = 6 << 20;
/// Size of a response head on the wire.
const HEAD_BYTES: u64 = 300;

#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) path: usize,
    pub(crate) established: bool,
    /// Requests made before the connection stood.
    pub(crate) waiting: Vec<usize>,
    /// Requests that reached the server and are not yet answered in full.
    pub(crate) queue: VecDeque<Response>,
    /// The server sends nothing more.
    pub(crate) ended: bool,
    /// The server takes no further requests.
    pub(crate) deaf: bool,
    /// The client is gone; the server learns of it half a round trip later.
    pub(crate) abandoned: bool,
    pub(crate) arrived: VecDeque<Arrived>,
    /// Bytes in `arrived`.
    pub(crate) unread: u64,
    /// The receiver's buffer is what keeps the sender from sending.
    pub(crate) window_closed: bool,
    /// Time before which no segment may arrive (in-order delivery after a loss).
    pub(crate) not_before: Timestamp,
    /// Time before which no request may arrive, for the same reason.
    pub(crate) request_not_before: Timestamp,
    /// What the server was when it took the connection; it keeps to one version on each.
    taken_by: Conduct,
    in_flight: u64,
    window: u64,
    threshold: u64,
    /// One reduction of the window in each round trip (RFC 6582's `recover`).
    reduced_until: Timestamp,
}

/// One answer of the server.
#[derive(Debug, Clone)]
pub(crate) struct Response {
    pub(crate) ask: Ask,
    pub(crate) status: Status,
    /// What the head says.
    pub(crate) start: u64,
    pub(crate) end: u64,
    /// What the body brings.
    sent_to: u64,
    body_end: u64,
    version: u8,
    head_sent: bool,
    /// When the server has thought about it; it begins when it has sent the answer before.
    pub(crate) thought: Option<Timestamp>,
    /// The connection ends with it.
    closes: bool,
    /// ... as its head says.
    pub(crate) announces_close: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Status {
    Part,
    Whole,
    Refused,
    Different,
}

#[derive(Debug)]
pub(crate) enum Arrived {
    Head(Response),
    Body(Bytes),
    Closed,
}

impl Arrived {
    pub(crate) fn len(&self) -> u64 {
        match self {
            Self::Head(_) => HEAD_BYTES,
            Self::Body(body) => body.len() as u64,
            Self::Closed => 0,
        }
    }
}

impl Response {
    /// What a server of this conduct answers for an object of `size` bytes.
    pub(crate) fn new(ask: Ask, size: u64, conduct: Conduct) -> Self {
        let (start, end) = match ask {
            Ask::AsClient => (0, size),
            Ask::Part { start, end } => (start.min(size), end.min(size)),
            Ask::Suffix { length } => (size.saturating_sub(length), size),
        };
        let mut response = Self {
            ask,
            status: if ask == Ask::AsClient { Status::Whole } else { Status::Part },
            start,
            end,
            sent_to: start,
            body_end: end,
            version: 0,
            head_sent: false,
            thought: None,
            closes: false,
            announces_close: false,
        };
        let ranged = ask != Ask::AsClient;
        let half = start + (end - start).div_ceil(2);
        match conduct {
            Conduct::OtherVersion => response.version = 1,
            Conduct::OtherVersionDeclared => {
                response.version = 2;
                if ranged {
                    response.status = Status::Different;
                }
            }
            Conduct::NoRanges if ranged => {
                response.status = Status::Whole;
                (response.start, response.end) = (0, size);
                (response.sent_to, response.body_end) = (0, size);
            }
            Conduct::Refuses if ranged => {
                response.status = Status::Refused;
                response.body_end = start;
            }
            Conduct::ClosesAfterResponse => (response.closes, response.announces_close) = (true, true),
            Conduct::ClosesUnannounced => response.closes = true,
            Conduct::ClosesEarly if ranged => {
                (response.body_end, response.closes) = (half.max(start + 4096).min(end), true);
            }
            Conduct::ShortPart if ranged => (response.end, response.body_end) = (half, half),
            Conduct::WrongExtent if ranged => {
                let shift = 1_000.min(start);
                (response.start, response.end) = (start - shift, end - shift);
                (response.sent_to, response.body_end) = (response.start, response.end);
            }
            Conduct::AbsurdExtent if ranged => (response.end, response.closes) = (u64::MAX, true),
            _ => {}
        }
        response
    }

    /// Makes the connection end with this answer.
    pub(crate) fn close_after(&mut self) {
        self.closes = true;
    }
}

impl Connection {
    pub(crate) fn new(path: usize, taken_by: Conduct) -> Self {
        Self {
            path,
            established: false,
            waiting: Vec::new(),
            queue: VecDeque::new(),
            ended: false,
            deaf: false,
            abandoned: false,
            arrived: VecDeque::new(),
            unread: 0,
            window_closed: false,
            not_before: Timestamp::ZERO,
            request_not_before: Timestamp::ZERO,
            taken_by,
            in_flight: 0,
            window: INITIAL_WINDOW,
            threshold: u64::MAX,
            reduced_until: Timestamp::ZERO,
        }
    }

    /// What the server is to this connection, when it is `now` to new ones.
    pub(crate) fn conduct(&self, now: Conduct) -> Conduct {
        match self.taken_by {
            Conduct::OtherVersion | Conduct::OtherVersionDeclared => self.taken_by,
            _ => now,
        }
    }

    /// What the server sends next, if its window and its queue allow.
    pub(crate) fn next_segment(&mut self, size: u64, now: Timestamp) -> Option<Arrived> {
        if self.ended || self.in_flight >= self.window {
            return None;
        }
        if self.in_flight + self.unread >= RECEIVE_BUFFER {
            self.window_closed = true;
            return None;
        }
        let segment = loop {
            let response = self.queue.front_mut()?;
            if !response.head_sent {
                if response.thought.is_none_or(|thought| now < thought) {
                    return None;
                }
                response.head_sent = true;
                break Arrived::Head(response.clone());
            }
            if response.sent_to < response.body_end {
                let end = (response.sent_to + SEGMENT).min(response.body_end);
                let body = object::version(response.version, size);
                let body = body.slice(response.sent_to as usize..end as usize);
                response.sent_to = end;
                break Arrived::Body(body);
            }
            let closes = response.closes;
            self.queue.pop_front();
            if closes {
                self.end();
                break Arrived::Closed;
            }
        };
        self.in_flight += segment.len();
        Some(segment)
    }

    /// The server closes.
    pub(crate) fn end(&mut self) {
        self.ended = true;
        self.queue.clear();
    }

    pub(crate) fn handle_ack(&mut self, bytes: u64) {
        self.in_flight = self.in_flight.saturating_sub(bytes);
        self.window += if self.window < self.threshold { bytes } else { SEGMENT * bytes / self.window };
    }

    /// A loss that the next segments tell of; true when there are too few of them.
    pub(crate) fn handle_loss(&mut self, now: Timestamp, rtt: Duration) -> bool {
        if now >= self.reduced_until {
            self.threshold = (self.window / 2).max(2 * SEGMENT);
            self.window = self.threshold;
            self.reduced_until = now + rtt;
        }
        self.in_flight < 4 * SEGMENT
    }

    /// A retransmission timeout.
    pub(crate) fn handle_timeout(&mut self) {
        self.threshold = (self.window / 2).max(2 * SEGMENT);
        self.window = SEGMENT;
    }
}
