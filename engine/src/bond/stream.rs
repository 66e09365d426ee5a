//! One stream as a task uses it, and the copying between it and a TCP connection.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::task::Poll;

use bytes::{Buf, Bytes};
use multiway_core::bond::wire::{Destination, OpenResult};
use multiway_core::bond::{Read, Refusal, SendError, Session, StreamClass, StreamId};
use multiway_core::units::Timestamp;
use tokio::io::Interest;
use tokio::net::TcpStream;

use super::memory::{PIECE, Piece};
use super::shared::{SharedSession, StreamOver};
use crate::proxy::relay::{end_turn, reset, shut_down};

/// Most pieces written to a connection at once: a few times as many as [`PIECE`] takes in full DATA frames.
const MOST_PIECES: usize = 16;

/// The program or the destination reset its connection.
pub(crate) const RESET_BY_PEER: u64 = 1;

/// Nobody uses the stream any more.
pub(crate) const CANCELLED: u64 = 2;

/// A stream of a session; dropping it before both directions ended resets it.
#[derive(Debug)]
pub(crate) struct BondStream {
    session: SharedSession,
    id: StreamId,
    is_finished: bool,
    is_read: bool,
    reset_code: u64,
}

/// Both ends of a stream's copying failed or were cut.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CarryError {
    /// The session's side.
    #[error(transparent)]
    Stream(#[from] StreamOver),
    /// The connection's side.
    #[error(transparent)]
    Connection(#[from] io::Error),
}

impl BondStream {
    /// Opens one (device).
    pub(crate) fn open(
        session: SharedSession,
        destination: Destination,
        class: StreamClass,
    ) -> Result<Self, Refusal> {
        let id = session.open(destination, class)?;
        Ok(Self::new(session, id))
    }

    /// One that is open.
    pub(crate) fn new(session: SharedSession, id: StreamId) -> Self {
        Self { session, id, is_finished: false, is_read: false, reset_code: CANCELLED }
    }

    /// The session it belongs to.
    pub(crate) fn session(&self) -> &SharedSession {
        &self.session
    }

    /// Waits for the relay's word on the destination.
    pub(crate) async fn opened(&self) -> Result<OpenResult, StreamOver> {
        poll_fn(|cx| match self.session.opened(self.id, cx.waker()) {
            Some(result) => Poll::Ready(result),
            None => Poll::Pending,
        })
        .await
    }

    /// Whether the relay is known to have heard of it.
    pub(crate) fn is_heard(&self) -> bool {
        self.session.look(|session| session.is_heard(self.id))
    }

    /// Tells the device how its destination was reached (relay).
    pub(crate) fn accept(&self, result: OpenResult) {
        // A stream that is over needs no answer.
        let _ = self.session.for_stream(self.id, |session, now| session.accept(self.id, result, now));
    }

    /// Hands in bytes, waiting for room.
    pub(crate) async fn send(&self, mut bytes: Bytes) -> Result<(), StreamOver> {
        while !bytes.is_empty() {
            let room = self.room().await?;
            let piece = bytes.split_to(room.min(bytes.len()));
            self.push(piece)?;
        }
        Ok(())
    }

    /// Appends the next bytes, about [`PIECE`] of them in at most [`MOST_PIECES`]; false at the end.
    async fn read(&self, into: &mut VecDeque<Bytes>) -> Result<bool, StreamOver> {
        poll_fn(|cx| {
            let mut read =
                || self.session.for_stream(self.id, |session, now| read_burst(session, self.id, into, now));
            let mut found = read();
            if matches!(found, Ok(Burst::Nothing)) {
                self.session.wait_to_read(self.id, cx.waker());
                // What came in between woke nobody.
                found = read();
            }
            match found {
                Ok(Burst::Bytes) => Poll::Ready(Ok(true)),
                Ok(Burst::End) => Poll::Ready(Ok(false)),
                Ok(Burst::Nothing) => Poll::Pending,
                Err(over) => Poll::Ready(Err(over)),
            }
        })
        .await
    }

    /// Ends this side's direction.
    pub(crate) fn finish(&self) -> Result<(), StreamOver> {
        match self.session.for_stream(self.id, |session, now| session.finish(self.id, now))? {
            Ok(()) | Err(SendError::Finished) => Ok(()),
            Err(SendError::Gone | SendError::NoRoom) => Err(StreamOver::Lost),
        }
    }

    async fn room(&self) -> Result<usize, StreamOver> {
        poll_fn(|cx| {
            let room = || self.session.for_stream(self.id, |session, _| session.send_room(self.id));
            let mut found = room();
            if matches!(found, Ok(0)) {
                self.session.wait_to_write(self.id, cx.waker());
                found = room();
            }
            match found {
                Ok(0) => Poll::Pending,
                found => Poll::Ready(found),
            }
        })
        .await
    }

    fn push(&self, bytes: Bytes) -> Result<(), StreamOver> {
        self.session
            .for_stream(self.id, |session, now| session.send(self.id, bytes, now))?
            .map_err(|_| StreamOver::Lost)
    }

    /// Copies both ways until both are done. Ends and resets of one side reach the other; `down` is
    /// told of bytes that came out of the stream, `up` of those that went in.
    pub(crate) async fn carry(
        mut self,
        connection: &TcpStream,
        up: impl Fn(u64),
        down: impl Fn(u64),
    ) -> Result<(), CarryError> {
        let outcome = {
            let this = &self;
            let into_stream = async {
                let mut turn = 0;
                loop {
                    // While there is no room nobody reads, and nobody would notice.
                    let room = tokio::select! {
                        biased;
                        room = this.room() => room?,
                        error = until_reset(connection) => return Err(error.into()),
                    };
                    let piece = tokio::select! {
                        piece = read_piece(connection, room.min(PIECE)) => piece?,
                        over = this.until_over() => return Err(over.into()),
                    };
                    let Some(piece) = piece else { break };
                    let length = piece.len();
                    this.push(piece)?;
                    up(length as u64);
                    end_turn(&mut turn, length).await;
                }
                Ok::<(), CarryError>(this.finish()?)
            };
            let out_of_stream = async {
                let mut turn = 0;
                let mut pieces = VecDeque::new();
                loop {
                    let has_more = this.read(&mut pieces).await?;
                    let length = write_all(connection, &mut pieces).await?;
                    down(length as u64);
                    if !has_more {
                        break;
                    }
                    end_turn(&mut turn, length).await;
                }
                Ok::<(), CarryError>(shut_down(connection)?)
            };
            tokio::try_join!(into_stream, out_of_stream)
        };
        match outcome {
            Ok(_) => {
                (self.is_finished, self.is_read) = (true, true);
                Ok(())
            }
            Err(error) => {
                self.reset_code = RESET_BY_PEER;
                reset(connection);
                Err(error)
            }
        }
    }

    /// Waits for an end that is not in good order.
    pub(crate) async fn until_over(&self) -> StreamOver {
        poll_fn(|cx| {
            self.session.wait_to_write(self.id, cx.waker());
            match self.session.for_stream(self.id, |_, _| ()) {
                Ok(()) => Poll::Pending,
                Err(over) => Poll::Ready(over),
            }
        })
        .await
    }
}

impl Drop for BondStream {
    fn drop(&mut self) {
        let is_done = self.is_finished && self.is_read;
        self.session.forget(self.id, (!is_done).then_some(self.reset_code));
    }
}

/// Waits until the connection's far end has reset it.
async fn until_reset(connection: &TcpStream) -> io::Error {
    loop {
        if let Err(error) = connection.ready(Interest::ERROR).await {
            return error;
        }
        let reset = connection.try_io(Interest::ERROR, || match connection.take_error()? {
            Some(error) => Ok(error),
            None => Err(io::ErrorKind::WouldBlock.into()),
        });
        match reset {
            Ok(error) => return error,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return error,
        }
    }
}

/// What there is to read, at most `most` bytes; `None` at the end. Nothing is held while it waits.
async fn read_piece(from: &TcpStream, most: usize) -> io::Result<Option<Bytes>> {
    loop {
        from.readable().await?;
        let mut piece = Piece::take();
        match from.try_read(&mut piece.memory()[..most]) {
            Ok(0) => return Ok(None),
            Ok(length) => return Ok(Some(piece.into_bytes(length))),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
}

/// What a stream had.
enum Burst {
    Bytes,
    Nothing,
    /// The end, and what was in front of it.
    End,
}

fn read_burst(session: &mut Session, id: StreamId, into: &mut VecDeque<Bytes>, now: Timestamp) -> Burst {
    let mut length = 0;
    while into.len() < MOST_PIECES && length < PIECE {
        match session.read(id, PIECE, now) {
            Read::Bytes(piece) => {
                length += piece.len();
                into.push_back(piece);
            }
            Read::Nothing => break,
            Read::End => return Burst::End,
        }
    }
    if into.is_empty() { Burst::Nothing } else { Burst::Bytes }
}

/// Writes all of `pieces`, at most [`MOST_PIECES`], waiting for room as long as it takes; how many bytes
/// they were.
async fn write_all(to: &TcpStream, pieces: &mut VecDeque<Bytes>) -> io::Result<usize> {
    let mut written = 0;
    while !pieces.is_empty() {
        match write_some(to, pieces) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(length) => {
                written += length;
                drop_front(pieces, length);
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => to.writable().await?,
            Err(error) => return Err(error),
        }
    }
    Ok(written)
}

fn write_some(to: &TcpStream, pieces: &VecDeque<Bytes>) -> io::Result<usize> {
    let mut slices = [IoSlice::new(&[]); MOST_PIECES];
    for (slice, piece) in slices.iter_mut().zip(pieces) {
        *slice = IoSlice::new(piece);
    }
    to.try_write_vectored(&slices[..pieces.len().min(MOST_PIECES)])
}

fn drop_front(pieces: &mut VecDeque<Bytes>, mut length: usize) {
    while let Some(front) = pieces.front_mut()
        && length > 0
    {
        let taken = length.min(front.len());
        front.advance(taken);
        length -= taken;
        if front.is_empty() {
            pieces.pop_front();
        }
    }
}
