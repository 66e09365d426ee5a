//! One request whose answer is fetched over several paths.

use std::collections::BTreeMap;
use std::io;

use bytes::{Bytes, BytesMut};
use multiway_api::event::EventDetail;
use multiway_api::status::Treatment;
use multiway_core::mphttp::download::{self, DownloadConfig, Event, Exclusion, Opening};
use multiway_core::mphttp::http::{BodyReader, Reframe, RequestHead, connection_persists};
use multiway_core::paths::{PathId, Preference};

use super::Route;
use super::exchange::{Continuation, name_in, relay_body};
use super::plainly::{self, Delivered, Witness};
use super::session::{Session, is_quiet};
use super::sink::ClientSink;
use crate::context::Context;
use crate::flows::FlowHandle;
use crate::origin::{Origin, OriginStream};
use crate::paths::TrackedStream;
use crate::proxy::presence::gone;
use crate::proxy::relay::write_all;
use crate::proxy::tunnel::{Destination, DialError, Upstream};
use crate::split::{
    Opened, Progress, Transfer, TransferConfig, TransferError, TransferSummary, offers, remember,
};

/// Connections lost on a path during one transfer that a person should hear of; one or two are everyday.
const MANY_LOSSES: u32 = 3;

/// What the flow-feature database says of a request.
#[derive(Debug, Clone, Copy)]
pub(super) struct Plan {
    pub(super) minimum_size: u64,
    pub(super) open_all_paths_at_once: bool,
}

/// Fetches the answer to `request`, whose bytes for the server are `opening`, over all paths that help.
pub(super) async fn exchange(
    session: &mut Session,
    route: &Route,
    request: &RequestHead,
    opening: Bytes,
    plan: Plan,
) -> io::Result<Continuation> {
    let host = request.host().map_or_else(|| route.destination.host(), str::to_owned);
    let offers = offers(&session.context.paths, &host);
    if offers.is_empty() {
        return session.answer_failure(&DialError::NoPath.to_string()).await;
    }
    session.flow.set_treatment(Treatment::Steer, "the answer's head is awaited");
    let config = TransferConfig {
        download: DownloadConfig {
            preference: preference(session.context.preference),
            opening: if plan.open_all_paths_at_once {
                Opening::Range { begin: 0 }
            } else {
                Opening::AsClient
            },
            open_all_paths_at_once: plan.open_all_paths_at_once,
            // The context's buffers have the say.
            memory_bytes: u64::MAX,
            tail: Vec::new(),
        },
        request: request.clone(),
        opening_bytes: opening.clone(),
        origin: origin(&route.destination, request),
        buffers: session.context.buffers.clone(),
    };
    let kept = std::mem::take(&mut session.kept).into_iter();
    let warm = kept.filter(is_quiet).filter_map(tracked).collect();
    let paths = session.context.paths.clone();
    let mut transfer = Transfer::begin(paths, session.context.resolver.clone(), config, offers, warm);
    let destinations = session.destinations();
    let opened = tokio::select! {
        // First: a server that never stops sending uses up what a task may do at a time.
        biased;
        () = gone(&session.client, &destinations) => return Ok(session.abort()),
        opened = transfer.open() => opened,
    };
    let opened = match opened {
        Ok(opened) => opened,
        // A program that knows what it asked for may know the answer too: old streaming servers begin
        // theirs with `ICY 200 OK`.
        Err(error @ TransferError::NotHttp(_)) if session.is_transparent() => {
            session.flow.set_treatment(Treatment::Steer, error.to_string());
            drop(transfer);
            return super::exchange::exchange(session, route, request, opening).await;
        }
        Err(error) => return session.answer_failure(&error.to_string()).await,
    };
    for interim in &opened.interim {
        write_all(&session.client, interim.raw()).await?;
    }
    let persists = connection_persists(request, &opened.head);
    let is_part = plan.open_all_paths_at_once && opened.head.status() == 206;
    match opened.representation(request, plan.minimum_size) {
        // The client asked neither for a range nor for several paths at once, and must not get what
        // comes of that.
        Err(why) if opened.is_due_to_splitting() => {
            session.flow.set_treatment(Treatment::Steer, why.to_string());
            drop(transfer);
            super::exchange::exchange(session, route, request, opening).await
        }
        Err(why) => {
            write_all(&session.client, opened.head.raw()).await?;
            session.flow.set_treatment(Treatment::Steer, why.to_string());
            relay_opening(session, transfer, &opened, request, persists).await
        }
        Ok(known) => {
            if is_part {
                let head = opened.head.reframed(&Reframe::Whole { total: known.total });
                write_all(&session.client, &head).await?;
            } else {
                write_all(&session.client, opened.head.raw()).await?;
            }
            session.flow.set_treatment(
                Treatment::Split,
                format!("{} bytes", if is_part { known.total } else { known.end - known.start }),
            );
            // Other ranges come of a range; the client's own request goes on by itself.
            let total = is_part.then_some(known.total);
            transfer.accept(&opened, known, persists);
            match run(session, transfer, &host, persists).await? {
                Ran::Over(continuation) => Ok(continuation),
                Ran::Changed(delivered) => {
                    let finished = match (total, delivered) {
                        (Some(total), Some(delivered)) => {
                            let destinations = session.destinations();
                            tokio::select! {
                                biased;
                                () = gone(&session.client, &destinations) => {
                                    Err(io::ErrorKind::ConnectionAborted.into())
                                }
                                finished = plainly::finish(session, route, (request, &opening), total, delivered) => finished,
                            }
                        }
                        _ => Err(io::Error::other(TransferError::Changed)),
                    };
                    finished.inspect_err(|_| {
                        session.abort();
                    })
                }
            }
        }
    }
}

async fn run(session: &mut Session, mut transfer: Transfer, host: &str, persists: bool) -> io::Result<Ran> {
    let mut counted = BTreeMap::new();
    let flow = session.flow.clone();
    let observe = |progress: Progress| count(&flow, &mut counted, &progress);
    let destinations = session.destinations();
    let mut sink = Witness::of(ClientSink(&session.client));
    let outcome = tokio::select! {
        biased;
        () = gone(&session.client, &destinations) => {
            Err(TransferError::Sink(io::ErrorKind::ConnectionAborted.into()))
        }
        outcome = transfer.run(&mut sink, observe) => outcome,
    };
    record(&session.context, host, &transfer.summary());
    match outcome {
        Ok(()) => {}
        Err(TransferError::Changed) => return Ok(Ran::Changed(sink.into_delivered())),
        Err(error) => {
            session.abort();
            return Err(io::Error::other(error));
        }
    }
    if !persists {
        return Ok(Ran::Over(Continuation::Over));
    }
    session.kept.extend(transfer.into_idle().into_iter().map(Upstream::Path));
    Ok(Ran::Over(Continuation::NextRequest))
}

/// How a transfer ended.
enum Ran {
    /// The client has all of it.
    Over(Continuation),
    /// No further answer is of the version that the client has the beginning of: that, unless it is much.
    Changed(Option<Delivered>),
}

/// Relays an answer that is not split from the connection that brought its head.
async fn relay_opening(
    session: &mut Session,
    transfer: Transfer,
    opened: &Opened,
    request: &RequestHead,
    persists: bool,
) -> io::Result<Continuation> {
    let Some(connection) = transfer.into_opening_connection(opened) else { return Ok(session.abort()) };
    let path = connection.path;
    let OriginStream::Plain(upstream) = connection.stream else { return Ok(session.abort()) };
    let upstream = Upstream::Path(upstream);
    let mut read_ahead = BytesMut::from(&connection.read_ahead[..]);
    let body = BodyReader::new(opened.head.body_length(request.method()));
    let flow = session.flow.clone();
    let counted = |payload: &[u8]| flow.add_bytes(path, payload.len() as u64);
    if let Err(error) = relay_body(&session.client, &upstream, &mut read_ahead, body, counted).await {
        session.abort();
        return Err(error);
    }
    if !persists {
        return Ok(Continuation::Over);
    }
    if read_ahead.is_empty() {
        session.kept.push(upstream);
    }
    Ok(Continuation::NextRequest)
}

fn origin(destination: &Destination, request: &RequestHead) -> Origin {
    let intercepted = match destination {
        Destination::Address(address) => Some(address.ip()),
        Destination::Name(..) => None,
    };
    Origin {
        host: destination.host(),
        port: destination.port(),
        intercepted,
        name: name_in(request),
        tls: None,
    }
}

fn tracked(upstream: Upstream) -> Option<TrackedStream> {
    match upstream {
        Upstream::Path(stream) => Some(stream),
        Upstream::Local(_) => None,
    }
}

fn preference(preference: Preference) -> download::Preference {
    match preference {
        Preference::Fast => download::Preference::Fast,
        Preference::Thrifty { tolerance } => download::Preference::Thrifty { tolerance },
    }
}

fn count(flow: &FlowHandle, counted: &mut BTreeMap<PathId, u64>, progress: &Progress) {
    for path in &progress.paths {
        let before = counted.insert(path.path, path.bytes).unwrap_or(0);
        if path.bytes > before {
            flow.add_bytes(path.path, path.bytes - before);
        }
    }
}

/// Keeps what was learnt, and tells what people may want to know.
fn record(context: &Context, host: &str, summary: &TransferSummary) {
    remember(&context.paths, host, summary);
    let interface = |path: PathId| context.paths.get(path).map_or_else(|| path.to_string(), |p| p.interface);
    for event in &summary.fallbacks {
        match event {
            Event::Mismatch { dropped, offset, .. } => {
                context.journal.record(EventDetail::Inconsistent {
                    host: host.to_owned(),
                    interface: interface(*dropped),
                    offset: *offset,
                });
            }
            // Of that the mismatch told.
            Event::PathExcluded { reason: Exclusion::Inconsistent, .. } => {}
            Event::PathExcluded { path, reason } => context.journal.record(EventDetail::FellBack {
                host: host.to_owned(),
                interface: Some(interface(*path)),
                reason: reason.to_string(),
            }),
            Event::LaneLost { .. } | Event::Finished | Event::Failed(_) => {}
        }
    }
    for share in summary.shares.iter().filter(|share| share.losses >= MANY_LOSSES) {
        context.journal.record(EventDetail::FellBack {
            host: host.to_owned(),
            interface: Some(interface(share.path)),
            reason: "its connections are lost again and again".to_owned(),
        });
    }
}
