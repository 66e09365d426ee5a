//! One HTTP/1.1 connection to an origin: requests go out without waiting for answers, answers come
//! back in order.

use std::collections::VecDeque;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use multiway_core::mphttp::download::Ask;
use multiway_core::mphttp::http::{BodyLength, ByteRange, HeadLimits, Method, RequestHead, ResponseHead};
use tokio::io::AsyncWrite;

use super::arrivals::{self, Arrivals};
use crate::origin::{OriginError, OriginStream};

/// What happened on a connection.
#[derive(Debug)]
pub(super) enum LaneEvent {
    /// It stands; how long its TCP handshake took, when one was made.
    Connected { handshake: Option<Duration> },
    /// A 1xx head; the answer proper follows.
    Interim(ResponseHead),
    /// The head of the answer to the oldest request.
    Head { ask: Ask, head: ResponseHead },
    /// Part of the body.
    Body(Bytes),
    /// It could not be opened.
    Unreachable(OriginError),
    /// It ended; `None` when the peer closed it in good order.
    Closed(Option<io::Error>),
}

impl LaneEvent {
    /// A word for logs.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Connected { .. } => "connected",
            Self::Interim(_) => "interim head",
            Self::Head { .. } => "head",
            Self::Body(_) => "body",
            Self::Unreachable(_) => "unreachable",
            Self::Closed(_) => "closed",
        }
    }
}

pub(super) type Connecting = Pin<Box<dyn Future<Output = Result<OriginStream, OriginError>> + Send>>;

enum State {
    Connecting(Connecting),
    Open(OriginStream),
    Ended,
}

enum Phase {
    Head,
    /// In a body of which this much is still to come.
    Body(u64),
    /// In a body that this connection does not frame; whoever takes the connection over does.
    Opaque,
}

/// See the module's documentation.
pub(super) struct LaneIo {
    state: State,
    outgoing: BytesMut,
    asked: VecDeque<Ask>,
    incoming: BytesMut,
    /// What ended the connection after bytes that are still to be told of.
    failed: Option<io::Error>,
    phase: Phase,
}

impl LaneIo {
    pub(super) fn new(connecting: Connecting) -> Self {
        Self {
            state: State::Connecting(connecting),
            outgoing: BytesMut::new(),
            asked: VecDeque::new(),
            incoming: BytesMut::new(),
            failed: None,
            phase: Phase::Head,
        }
    }

    /// A connection that stands already and on which nothing is outstanding.
    pub(super) fn established(stream: OriginStream) -> Self {
        Self::new(Box::pin(std::future::ready(Ok(stream))))
    }

    /// Opens the connection once more and repeats what was asked; for a kept connection that the
    /// peer had closed in the meantime.
    pub(super) fn reconnect(&mut self, connecting: Connecting, repeat: impl Fn(Ask) -> Bytes) {
        let asked = std::mem::take(&mut self.asked);
        *self = Self::new(connecting);
        for ask in asked {
            self.request(ask, &repeat(ask));
        }
    }

    /// Queues a request; it is written as soon as the connection stands.
    pub(super) fn request(&mut self, ask: Ask, bytes: &[u8]) {
        self.asked.push_back(ask);
        self.outgoing.extend_from_slice(bytes);
    }

    /// Whether all requests are with the kernel.
    pub(super) fn is_sent(&self) -> bool {
        self.outgoing.is_empty()
    }

    /// The connection, once it stands.
    pub(super) fn stream(&self) -> Option<&OriginStream> {
        match &self.state {
            State::Open(stream) => Some(stream),
            _ => None,
        }
    }

    /// Gives the connection away with what was read ahead.
    pub(super) fn into_parts(self) -> Option<(OriginStream, Bytes)> {
        match self.state {
            State::Open(stream) => Some((stream, self.incoming.freeze())),
            _ => None,
        }
    }

    /// Whether the connection can serve further requests: open, nothing owed, nothing read ahead.
    pub(super) fn is_idle(&self) -> bool {
        matches!(self.state, State::Open(_))
            && self.asked.is_empty()
            && self.incoming.is_empty()
            && self.outgoing.is_empty()
            && matches!(self.phase, Phase::Head)
    }

    /// Makes progress and tells what happened; at most `budget` body bytes are taken.
    pub(super) fn poll_event(&mut self, budget: u64, cx: &mut Context<'_>) -> Poll<LaneEvent> {
        if let State::Connecting(connecting) = &mut self.state {
            match ready!(connecting.as_mut().poll(cx)) {
                Ok(stream) => {
                    let handshake = Some(stream.tcp().connect_time());
                    self.state = State::Open(stream);
                    return Poll::Ready(LaneEvent::Connected { handshake });
                }
                Err(error) => {
                    self.state = State::Ended;
                    return Poll::Ready(LaneEvent::Unreachable(error));
                }
            }
        }
        if let Err(error) = self.write(cx) {
            return Poll::Ready(self.end(Some(error)));
        }
        loop {
            if let Some(event) = self.take_event(budget) {
                return Poll::Ready(event);
            }
            let waits_for_reader = matches!(self.phase, Phase::Body(left) if left > 0) && budget == 0;
            if waits_for_reader || matches!(self.phase, Phase::Opaque) {
                return Poll::Pending;
            }
            match ready!(self.read(arrivals::read_limit(budget), cx)) {
                Ok(0) => return Poll::Ready(self.end(None)),
                Ok(_) => {}
                Err(error) => return Poll::Ready(self.end(Some(error))),
            }
        }
    }

    fn end(&mut self, error: Option<io::Error>) -> LaneEvent {
        self.state = State::Ended;
        LaneEvent::Closed(error)
    }

    fn write(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        let State::Open(stream) = &mut self.state else { return Ok(()) };
        while !self.outgoing.is_empty() {
            match Pin::new(&mut *stream).poll_write(cx, &self.outgoing) {
                Poll::Ready(Ok(0)) => return Err(io::ErrorKind::WriteZero.into()),
                Poll::Ready(Ok(written)) => drop(self.outgoing.split_to(written)),
                Poll::Ready(Err(error)) => return Err(error),
                Poll::Pending => break,
            }
        }
        match Pin::new(stream).poll_flush(cx) {
            Poll::Ready(Err(error)) => Err(error),
            _ => Ok(()),
        }
    }

    fn read(&mut self, limit: usize, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        if let Some(error) = self.failed.take() {
            return Poll::Ready(Err(error));
        }
        let State::Open(stream) = &mut self.state else { return Poll::Ready(Ok(0)) };
        let Arrivals { bytes, error } = ready!(arrivals::poll_read(stream, limit, &mut self.incoming, cx))?;
        self.failed = error;
        Poll::Ready(Ok(bytes))
    }

    /// What the bytes read so far amount to.
    fn take_event(&mut self, budget: u64) -> Option<LaneEvent> {
        match self.phase {
            Phase::Opaque => None,
            Phase::Body(0) => {
                self.phase = Phase::Head;
                self.take_event(budget)
            }
            Phase::Body(left) => {
                let take = left.min(budget).min(self.incoming.len() as u64);
                if take == 0 {
                    return None;
                }
                self.phase = Phase::Body(left - take);
                Some(LaneEvent::Body(self.take_incoming(take as usize)))
            }
            Phase::Head => self.take_head(),
        }
    }

    fn take_incoming(&mut self, length: usize) -> Bytes {
        if length == self.incoming.len() {
            // Not even an empty rest may keep the block from being freed.
            return std::mem::take(&mut self.incoming).freeze();
        }
        self.incoming.split_to(length).freeze()
    }

    fn take_head(&mut self) -> Option<LaneEvent> {
        if self.incoming.is_empty() {
            return None;
        }
        let (head, length) = match ResponseHead::parse(&self.incoming, HeadLimits::default()) {
            Ok(None) => return None,
            Ok(Some(parsed)) => parsed,
            Err(error) => return Some(self.end(Some(io::Error::new(io::ErrorKind::InvalidData, error)))),
        };
        if head.is_interim() {
            drop(self.incoming.split_to(length));
            return Some(LaneEvent::Interim(head));
        }
        let Some(ask) = self.asked.pop_front() else {
            let unasked = io::Error::new(io::ErrorKind::InvalidData, "a response to no request");
            return Some(self.end(Some(unasked)));
        };
        drop(self.incoming.split_to(length));
        self.phase = match head.body_length(&Method::Get) {
            BodyLength::None => Phase::Body(0),
            BodyLength::Exact(bytes) => Phase::Body(bytes),
            BodyLength::Chunked | BodyLength::UntilClose => Phase::Opaque,
        };
        Some(LaneEvent::Head { ask, head })
    }
}

/// A request's bytes for what the core asks.
pub(super) fn request_bytes(request: &RequestHead, opening: &Bytes, ask: Ask) -> Bytes {
    match ask {
        Ask::AsClient => opening.clone(),
        Ask::Part { start, end } => {
            request.with_range(ByteRange::Closed { first: start, last: end - 1 }).into()
        }
        Ask::Suffix { length } => request.with_range(ByteRange::Suffix { length }).into(),
    }
}
