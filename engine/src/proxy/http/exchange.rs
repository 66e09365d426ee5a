//! One request and its answer over one path, byte for byte.

use std::io;
use std::net::IpAddr;

use bytes::{Bytes, BytesMut};
use multiway_api::status::Treatment;
use multiway_core::flow::names::HostName;
use multiway_core::mphttp::http::{
    BodyLength, BodyReader, HeadLimits, Method, RequestHead, ResponseHead, connection_persists,
};
use tokio::net::TcpStream;

use super::Route;
use super::http_dns::Collected;
use super::session::{HEAD_READ_BYTES, Session, read_some};
use crate::flows::FlowHandle;
use crate::proxy::presence::gone;
use crate::proxy::relay::{end_turn, write_all};
use crate::proxy::tunnel::{Destination, Dial, Upstream, dial};

/// Bytes of a body read at once.
const BODY_READ_BYTES: usize = 64 * 1024;

/// What follows an exchange.
pub(super) enum Continuation {
    /// The client may send another request.
    NextRequest,
    /// The connection ends in good order.
    Over,
    /// The connection was reset.
    Aborted,
    /// Both sides speak another protocol from here on.
    Tunnel {
        /// The server's side.
        upstream: Upstream,
        /// What it has sent already.
        read_ahead: Bytes,
    },
}

/// How the server's answer ended.
enum Answered {
    /// Complete, and its connection can be used again.
    Reusable,
    /// Complete; its connection ends with it.
    Last,
    /// Another protocol follows.
    Switched,
}

/// Why an exchange failed.
enum Failed {
    /// The server had sent nothing of its answer.
    BeforeAnswer(io::Error),
    /// What the server sent, after the whole request, is no answer that HTTP knows.
    NotHttp(io::Error),
    /// In the middle of its answer.
    Midway(io::Error),
}

impl Failed {
    /// A head could not be had.
    fn of_head(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::InvalidData => Self::NotHttp(error),
            _ => Self::BeforeAnswer(error),
        }
    }

    /// While the request is under way no other protocol can begin.
    fn before_end_of_request(self, is_before: bool) -> Self {
        match self {
            Self::NotHttp(error) if is_before => Self::BeforeAnswer(error),
            other => other,
        }
    }
}

/// Relays `request`, whose bytes for the server are `opening`, and its answer.
pub(super) async fn exchange(
    session: &mut Session,
    route: &Route,
    request: &RequestHead,
    opening: Bytes,
) -> io::Result<Continuation> {
    // A kept connection may have been closed by the server at this very moment; a request without
    // a body that got no answer on it can be sent again (RFC 9110 section 9.2.2, RFC 9112 section 9.3.1).
    let mut may_retry = is_idempotent(request.method()) && request.body_length() == BodyLength::None;
    // No TLS will prove that another address is the server's, so it must be known to be.
    let name = match route.destination {
        Destination::Address(address) => {
            name_in(request).filter(|name| session.context.resolver.is_answer(name, address.ip()))
        }
        Destination::Name(..) => None,
    };
    loop {
        let (upstream, is_kept) = match session.take_kept() {
            Some(kept) => (kept, true),
            None => {
                let wanted = Dial {
                    destination: &route.destination,
                    server_name: name.as_ref(),
                    accepted_on: route.accepted_on,
                };
                match dial(&session.context, wanted).await {
                    Ok(upstream) => (upstream, false),
                    Err(error) => return session.answer_failure(&error.to_string()).await,
                }
            }
        };
        let mut answer = BytesMut::new();
        let outcome = converse(session, &upstream, request, &opening, &mut answer).await;
        match outcome {
            Ok(Answered::Switched) => {
                return Ok(Continuation::Tunnel { upstream, read_ahead: answer.freeze() });
            }
            Ok(Answered::Reusable) => {
                // Bytes after a complete answer belong to no request.
                if answer.is_empty() {
                    session.kept.push(upstream);
                }
                return Ok(Continuation::NextRequest);
            }
            Ok(Answered::Last) => return Ok(Continuation::Over),
            Err(Failed::BeforeAnswer(_)) if is_kept && may_retry => {
                may_retry = false;
                // The others are as old.
                session.kept.clear();
            }
            Err(Failed::NotHttp(error)) if session.is_transparent() => {
                session.flow.set_treatment(Treatment::Steer, format!("the answer is not HTTP: {error}"));
                return Ok(Continuation::Tunnel { upstream, read_ahead: answer.freeze() });
            }
            Err(Failed::BeforeAnswer(error) | Failed::NotHttp(error)) => {
                return session.answer_failure(&error.to_string()).await;
            }
            Err(Failed::Midway(error)) => {
                session.abort();
                return Err(error);
            }
        }
    }
}

/// The name of the server that a request goes to, when it gives one.
pub(super) fn name_in(request: &RequestHead) -> Option<HostName> {
    let host = request.host().filter(|host| host.parse::<IpAddr>().is_err())?;
    HostName::parse(host).ok()
}

fn is_idempotent(method: &Method) -> bool {
    matches!(method, Method::Get | Method::Head | Method::Put | Method::Options)
}

/// Sends the request, body included, while the answer is relayed.
async fn converse(
    session: &mut Session,
    upstream: &Upstream,
    request: &RequestHead,
    opening: &Bytes,
    answer: &mut BytesMut,
) -> Result<Answered, Failed> {
    let destinations = session.destinations();
    let Session { client, incoming, flow, collected, .. } = session;
    let client: &TcpStream = client;
    let sending = async {
        write_all(upstream, opening).await?;
        send_body(client, incoming, upstream, BodyReader::new(request.body_length())).await
    };
    let receiving = receive(client, upstream, request, answer, flow, collected);
    let leaving = gone(client, &destinations);
    tokio::pin!(sending, receiving, leaving);
    let mut sent = false;
    loop {
        tokio::select! {
            outcome = &mut sending, if !sent => match outcome {
                Ok(()) => sent = true,
                // The client broke its request off, which the server would wait for.
                Err(error) if matches!(error.kind(), io::ErrorKind::UnexpectedEof | io::ErrorKind::InvalidData) => {
                    return Err(Failed::Midway(error));
                }
                // The server may answer, and say why, although it takes no more.
                Err(error) => {
                    let answered = tokio::select! {
                        answered = &mut receiving => answered,
                        () = &mut leaving => Err(Failed::Midway(io::ErrorKind::ConnectionAborted.into())),
                    };
                    return match answered {
                        Ok(Answered::Switched) | Err(Failed::BeforeAnswer(_) | Failed::NotHttp(_)) => {
                            Err(Failed::BeforeAnswer(error))
                        }
                        Ok(_) => Ok(Answered::Last),
                        Err(midway) => Err(midway),
                    };
                }
            },
            // Who leaves right after a whole request meant it all the same.
            () = &mut leaving, if sent => {
                return Err(Failed::Midway(io::ErrorKind::ConnectionAborted.into()));
            }
            outcome = &mut receiving => {
                return match outcome.map_err(|failed| failed.before_end_of_request(!sent))? {
                    // An answer before the end of the request: what is left of it has no use.
                    Answered::Reusable if !sent => Ok(Answered::Last),
                    answered => Ok(answered),
                };
            }
        }
    }
}

async fn send_body(
    client: &TcpStream,
    incoming: &mut BytesMut,
    upstream: &TcpStream,
    mut body: BodyReader,
) -> io::Result<()> {
    while !body.is_complete() {
        if incoming.is_empty() && read_some(client, incoming, BODY_READ_BYTES).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let length =
            body.handle_bytes(incoming).map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e))?;
        write_all(upstream, &incoming.split_to(length)).await?;
    }
    Ok(())
}

async fn receive(
    client: &TcpStream,
    upstream: &Upstream,
    request: &RequestHead,
    answer: &mut BytesMut,
    flow: &FlowHandle,
    collected: &mut Option<Collected>,
) -> Result<Answered, Failed> {
    loop {
        let (head, length) = next_head(upstream, answer).await.map_err(Failed::of_head)?;
        write_all(client, &answer.split_to(length)).await.map_err(Failed::Midway)?;
        let is_tunnel = *request.method() == Method::Connect && (200..300).contains(&head.status());
        if head.status() == 101 || is_tunnel {
            return Ok(Answered::Switched);
        }
        if !head.is_interim() {
            let persists = connection_persists(request, &head);
            let body = BodyReader::new(head.body_length(request.method()));
            relay_body(client, upstream, answer, body, |payload| {
                if let Some(path) = upstream.path() {
                    flow.add_bytes(path, payload.len() as u64);
                }
                if let Some(collected) = collected.as_mut().filter(|_| head.status() == 200) {
                    collected.take(upstream.path(), payload);
                }
            })
            .await
            .map_err(Failed::Midway)?;
            return Ok(if persists { Answered::Reusable } else { Answered::Last });
        }
    }
}

pub(super) async fn next_head(
    upstream: &TcpStream,
    answer: &mut BytesMut,
) -> io::Result<(ResponseHead, usize)> {
    loop {
        if !answer.is_empty() {
            match ResponseHead::parse(answer, HeadLimits::default()) {
                Ok(Some(parsed)) => return Ok(parsed),
                Ok(None) => {}
                Err(error) => return Err(io::Error::new(io::ErrorKind::InvalidData, error)),
            }
        }
        if read_some(upstream, answer, HEAD_READ_BYTES).await? == 0 {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the server closed without an answer"));
        }
    }
}

/// Relays a body from a server whose bytes read so far are in `read_ahead`; `see` is shown the payload.
pub(super) async fn relay_body(
    client: &TcpStream,
    upstream: &TcpStream,
    read_ahead: &mut BytesMut,
    mut body: BodyReader,
    mut see: impl FnMut(&[u8]),
) -> io::Result<()> {
    let mut turn = 0;
    while !body.is_complete() {
        if read_ahead.is_empty() && read_some(upstream, read_ahead, BODY_READ_BYTES).await? == 0 {
            return body.handle_close().map_err(|error| io::Error::new(io::ErrorKind::UnexpectedEof, error));
        }
        let length =
            body.decode(read_ahead, &mut see).map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e))?;
        write_all(client, &read_ahead.split_to(length)).await?;
        end_turn(&mut turn, length).await;
    }
    Ok(())
}
