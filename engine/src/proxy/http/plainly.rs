//! The way out when a server gives each answer as another version of the object.
//!
//! There is nothing then that parts could be joined by, and that shows only when the client has the first
//! part. One plain answer brings the whole; if it begins with the very bytes that the client has, it goes
//! on from there, and what the client gets is that one version.

use std::io;
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use multiway_api::status::Treatment;
use multiway_core::mphttp::http::{BodyLength, BodyReader, RequestHead};
use sha2::{Digest, Sha256};

use super::Route;
use super::exchange::{Continuation, next_head, relay_body};
use super::session::{HEAD_READ_BYTES, Session, read_some};
use super::sink::ClientSink;
use crate::proxy::relay::write_all;
use crate::proxy::tunnel::{Dial, dial};
use crate::split::Sink;

/// Most that may be with the client already. What is fetched before the second answer comes, which shows
/// that there is nothing to join, is less on all but the fastest paths.
const MOST_DELIVERED: u64 = 4 * 1024 * 1024;

/// A client, and what it was given as far as that may be of use.
pub(super) struct Witness<'a> {
    sink: ClientSink<'a>,
    delivered: u64,
    hash: Sha256,
}

impl<'a> Witness<'a> {
    pub(super) fn of(sink: ClientSink<'a>) -> Self {
        Self { sink, delivered: 0, hash: Sha256::new() }
    }

    /// What the client has; `None` when that is too much to fetch again.
    pub(super) fn into_delivered(self) -> Option<Delivered> {
        let digest = self.hash.finalize().into();
        (self.delivered <= MOST_DELIVERED).then_some(Delivered { bytes: self.delivered, digest })
    }
}

impl Sink for Witness<'_> {
    fn poll_take(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let taken = ready!(self.sink.poll_take(cx, bytes))?;
        self.delivered += taken as u64;
        if self.delivered <= MOST_DELIVERED {
            self.hash.update(&bytes[..taken]);
        }
        Poll::Ready(Ok(taken))
    }

    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.sink.poll_flush(cx)
    }
}

/// The beginning of an object that a client has.
pub(super) struct Delivered {
    bytes: u64,
    digest: [u8; 32],
}

/// Brings the rest of an object of `total` bytes with the client's own `request`, whose bytes for the
/// server are `opening`.
pub(super) async fn finish(
    session: &Session,
    route: &Route,
    (request, opening): (&RequestHead, &Bytes),
    total: u64,
    delivered: Delivered,
) -> io::Result<Continuation> {
    let wanted = Dial { destination: &route.destination, server_name: None, accepted_on: route.accepted_on };
    let upstream = dial(&session.context, wanted).await.map_err(io::Error::other)?;
    write_all(&upstream, opening).await?;
    let mut answer = BytesMut::new();
    let head = loop {
        let (head, length) = next_head(&upstream, &mut answer).await?;
        drop(answer.split_to(length));
        if !head.is_interim() {
            break head;
        }
    };
    let is_whole = head.status() == 200 && head.body_length(request.method()) == BodyLength::Exact(total);
    if !is_whole || !head.content_encoding().is_empty() {
        return Err(io::Error::other("the object changed while it was being fetched"));
    }
    let mut hash = Sha256::new();
    let mut missing = delivered.bytes;
    while missing > 0 {
        if answer.is_empty() && read_some(&upstream, &mut answer, HEAD_READ_BYTES).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let length = usize::try_from(missing).unwrap_or(usize::MAX).min(answer.len());
        hash.update(answer.split_to(length));
        missing -= length as u64;
    }
    if delivered.digest[..] != hash.finalize()[..] {
        return Err(io::Error::other("the object changed while it was being fetched"));
    }
    session.flow.set_treatment(Treatment::Steer, "each of the server's answers is of another version");
    let rest = BodyReader::new(BodyLength::Exact(total - delivered.bytes));
    let path = upstream.path();
    relay_body(&session.client, &upstream, &mut answer, rest, |payload| {
        if let Some(path) = path {
            session.flow.add_bytes(path, payload.len() as u64);
        }
    })
    .await?;
    Ok(Continuation::Over)
}
