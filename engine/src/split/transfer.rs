use std::collections::{BTreeMap, BTreeSet};
use std::future::{Future, poll_fn};
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use multiway_core::mphttp::download::{
    Action, Ask, Download, DownloadConfig, Event, Failure, LaneId, Opening, OpeningHead, PartHead, PathOffer,
    PathProgress,
};
use multiway_core::mphttp::http::{Representation, RequestHead, ResponseHead};
use multiway_core::paths::{PathId, PathInfo};
use multiway_core::units::Timestamp;
use tokio::sync::watch;
use tokio::time::Sleep;

use super::buffers::{Share, SharedBuffers};
use super::delivery::gather;
use super::judge::judge;
use super::lane_io::{Connecting, LaneEvent, LaneIo, request_bytes};
use super::opening::{Opened, Reserve};
use crate::dns::Resolver;
use crate::origin::{self, Origin, OriginError, OriginStream};
use crate::paths::{PathTable, TrackedStream, now};

/// Bytes handed to the reader before the connections have their turn.
const DELIVERED_PER_TURN: usize = 1024 * 1024;

/// Events taken from one connection before the others have their turn.
const EVENTS_PER_TURN: usize = 8;

/// Body bytes taken before other transfers have their turn: about half a millisecond, so that a
/// thousand fast transfers wait half a second for each other. A turn's end costs as much as the
/// copying of 64 KiB.
const TURN_BYTES: u64 = 1024 * 1024;

/// How often the kernel's round-trip times are passed to the core.
const RTT_INTERVAL: Duration = Duration::from_millis(100);

/// Interim (1xx) heads kept for the client; they may be left out, and a server may send them for ever.
const MOST_INTERIM: usize = 8;

/// Lost connections told of one by one; a path that comes and goes for hours loses thousands.
const MOST_LOSSES_TOLD: u32 = 20;

/// Where the object's bytes go, in order.
pub trait Sink {
    /// Takes some bytes; how many is the result. Like `AsyncWrite::poll_write`.
    fn poll_take(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>>;
    /// Waits until what was taken has left. Like `AsyncWrite::poll_flush`.
    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>>;
}

/// What a transfer needs besides its paths.
#[derive(Debug, Clone)]
pub struct TransferConfig {
    /// How the core is to split.
    pub download: DownloadConfig,
    /// The request: what other ranges are derived from.
    pub request: RequestHead,
    /// The client's own request as it goes to the origin.
    pub opening_bytes: Bytes,
    /// The server.
    pub origin: Origin,
    /// The memory that bounds it, besides the bound in `download`.
    pub buffers: SharedBuffers,
}

/// Why a transfer ended early.
#[derive(Debug, thiserror::Error)]
pub enum TransferError {
    /// No connection to the origin could be opened on any path.
    #[error("{0}")]
    Unreachable(OriginError),
    /// What came was no answer that HTTP knows.
    #[error("the server does not speak HTTP as it should: {0}")]
    NotHttp(String),
    /// Every path failed.
    #[error("every path failed before the object was complete{}", .0.as_ref().map(|e| format!("; the last error: {e}")).unwrap_or_default())]
    AllPathsFailed(Option<String>),
    /// The object differs from what was delivered before.
    #[error("the object changed while it was being fetched")]
    Changed,
    /// The reader failed, for instance a client that went away or a full disk.
    #[error("the data could not be handed on: {0}")]
    Sink(io::Error),
}

/// What one path brought.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PathShare {
    /// Which.
    pub path: PathId,
    /// Body bytes, overlap and duplicates included.
    pub bytes: u64,
    /// Requests sent.
    pub requests: u32,
    /// From its first byte to its last.
    pub active: Duration,
    /// How long its first TCP handshake took.
    pub connect_time: Option<Duration>,
    /// Connections over it that were lost.
    pub losses: u32,
}

/// What came of a transfer.
#[derive(Debug, Clone)]
pub struct TransferSummary {
    /// Bytes delivered.
    pub bytes: u64,
    /// From the transfer's beginning to its end.
    pub duration: Duration,
    /// Per path.
    pub shares: Vec<PathShare>,
    /// Boundaries compared and found equal.
    pub boundaries_verified: u64,
    /// Boundaries that differed.
    pub mismatches: u64,
    /// What did not go as planned; of lost connections the first ones.
    pub fallbacks: Vec<Event>,
    /// Paths whose answers were of another version of the object, by size or validators.
    pub other_versions: Vec<PathId>,
    /// Most bytes held in memory.
    pub most_held_bytes: u64,
}

/// How far a transfer is.
#[derive(Debug, Clone)]
pub struct Progress {
    /// Bytes delivered.
    pub delivered: u64,
    /// Bytes wanted.
    pub wanted: u64,
    /// Per path.
    pub paths: Vec<PathProgress>,
}

/// The connection that answered the first request, given away to be relayed.
#[derive(Debug)]
pub struct OpeningConnection {
    /// Its path.
    pub path: PathId,
    /// The connection, positioned after the answer's head.
    pub stream: OriginStream,
    /// Bytes read past the head.
    pub read_ahead: Bytes,
}

/// One object on its way; see the module's documentation.
pub struct Transfer {
    paths: PathTable,
    resolver: Resolver,
    config: TransferConfig,
    memory: Share,
    download: Download,
    lanes: BTreeMap<LaneId, (PathId, LaneIo)>,
    /// Kept connections to the origin on which nothing is outstanding.
    warm: Vec<TrackedStream>,
    /// Lanes on kept connections that have not answered yet: the peer may have closed them meanwhile.
    unproven: BTreeSet<LaneId>,
    representation: Option<Representation>,
    /// Heads of range answers that came before the object was known.
    early: Vec<(LaneId, Ask, ResponseHead)>,
    last_error: Option<String>,
    unreachable: Option<OriginError>,
    /// What was wrong with bytes that were no answer.
    not_http: Option<String>,
    /// Paths that are offered and have not failed before the first answer.
    hopeful: BTreeSet<PathId>,
    /// Whether one of the others heard a word of the server or the network, not only silence.
    refused: bool,
    other_versions: BTreeSet<PathId>,
    fallbacks: Vec<Event>,
    losses: BTreeMap<PathId, u32>,
    handshakes: BTreeMap<PathId, Duration>,
    mismatches: u64,
    started: Timestamp,
    rtts_passed: Timestamp,
    /// Tells when paths come and go.
    changes: watch::Receiver<Arc<Vec<PathInfo>>>,
    usable: BTreeSet<PathId>,
    wake: Pin<Box<Sleep>>,
    /// Body bytes taken in this turn.
    turn: u64,
    pending: Bytes,
    outcome: Option<Result<(), Failure>>,
}

impl Transfer {
    /// Begins a transfer over `offers`, the preferred path first: the first requests go out.
    ///
    /// `warm` are connections to the same origin that are open and idle.
    pub fn begin(
        paths: PathTable,
        resolver: Resolver,
        config: TransferConfig,
        offers: Vec<PathOffer>,
        warm: Vec<TrackedStream>,
    ) -> Self {
        let started = now();
        let memory = config.buffers.share();
        let mut download = config.download.clone();
        download.memory_bytes = download.memory_bytes.min(memory.limit());
        Self {
            memory,
            hopeful: offers.iter().map(|offer| offer.path).collect(),
            refused: false,
            other_versions: BTreeSet::new(),
            changes: paths.subscribe(),
            usable: offers.iter().map(|offer| offer.path).collect(),
            download: Download::new(download, offers, started),
            paths,
            resolver,
            config,
            lanes: BTreeMap::new(),
            warm,
            unproven: BTreeSet::new(),
            representation: None,
            early: Vec::new(),
            last_error: None,
            unreachable: None,
            not_http: None,
            fallbacks: Vec::new(),
            losses: BTreeMap::new(),
            handshakes: BTreeMap::new(),
            mismatches: 0,
            started,
            rtts_passed: started,
            wake: Box::pin(tokio::time::sleep(Duration::ZERO)),
            turn: 0,
            pending: Bytes::new(),
            outcome: None,
        }
    }

    /// Waits for the answer to the first request, from whichever path brings it first.
    ///
    /// An answer without the object has to wait for those of paths that are preferred (see [`Reserve`]).
    pub async fn open(&mut self) -> Result<Opened, TransferError> {
        let mut interim = Vec::new();
        let mut reserve = Reserve::default();
        poll_fn(|cx| {
            loop {
                self.act();
                if let Some(opened) = reserve.take(&self.download, now()) {
                    return Poll::Ready(Ok(opened));
                }
                // A single connection would have failed by now, and its program would know what to do.
                if self.refused && self.hopeful.is_empty() {
                    self.outcome = Some(Err(Failure::AllPathsFailed));
                }
                if let Some(outcome) = self.outcome.take() {
                    return Poll::Ready(Err(self.failure(outcome)));
                }
                let mut progressed = false;
                let ids: Vec<LaneId> =
                    self.lanes.keys().copied().filter(|&lane| !reserve.contains(lane)).collect();
                for lane in ids {
                    let Some((_, io)) = self.lanes.get_mut(&lane) else { continue };
                    let Poll::Ready(event) = io.poll_event(0, cx) else { continue };
                    progressed = true;
                    match event {
                        LaneEvent::Head { ask, head } if !matches!(ask, Ask::Suffix { .. }) => {
                            let interim = std::mem::take(&mut interim);
                            let opened = Opened { lane, ask, interim, head };
                            if opened.has_object(&self.config.request) || !self.download.is_outranked(lane) {
                                return Poll::Ready(Ok(opened));
                            }
                            reserve.keep(opened, now());
                        }
                        LaneEvent::Interim(head) if interim.len() < MOST_INTERIM => interim.push(head),
                        other => self.handle(lane, other),
                    }
                }
                if !progressed && !self.poll_clock(cx) {
                    return Poll::Pending;
                }
            }
        })
        .await
    }

    /// The answer describes an object that may be split: `region` of it is wanted.
    pub fn accept(&mut self, opened: &Opened, representation: Representation, reusable: bool) {
        let region = match self.config.download.opening {
            Opening::AsClient => representation.start..representation.end,
            Opening::Range { begin } => begin..representation.total,
        };
        let head = OpeningHead {
            start: representation.start,
            end: representation.end,
            region_begin: region.start,
            region_end: region.end,
            reusable,
        };
        self.representation = Some(representation);
        self.download.handle_opening_head(opened.lane, head, now());
        for (lane, ask, head) in std::mem::take(&mut self.early) {
            self.handle(lane, LaneEvent::Head { ask, head });
        }
    }

    /// Gives up splitting: the connection that answered, to be relayed as it is; the others close.
    pub fn into_opening_connection(mut self, opened: &Opened) -> Option<OpeningConnection> {
        let (path, io) = self.lanes.remove(&opened.lane)?;
        let (stream, read_ahead) = io.into_parts()?;
        Some(OpeningConnection { path, stream, read_ahead })
    }

    /// The connections that can serve further requests to the same origin.
    pub fn into_idle(mut self) -> Vec<TrackedStream> {
        let lanes = self.lanes.into_values().filter(|(_, io)| io.is_idle());
        let streams = lanes.filter_map(|(_, io)| io.into_parts().map(|(stream, _)| stream));
        self.warm.extend(streams.filter_map(OriginStream::into_plain));
        self.warm
    }

    /// Runs an accepted transfer to its end.
    pub async fn run(
        &mut self,
        sink: &mut impl Sink,
        mut observe: impl FnMut(Progress),
    ) -> Result<(), TransferError> {
        let mut flushed = true;
        poll_fn(|cx| {
            self.turn = 0;
            loop {
                self.act();
                let mut progressed = match self.deliver(sink, cx) {
                    Ok(progressed) => progressed,
                    Err(error) => return Poll::Ready(Err(TransferError::Sink(error))),
                };
                flushed &= !progressed;
                self.act();
                if self.pending.is_empty()
                    && let Some(outcome) = &self.outcome
                {
                    match outcome {
                        Err(_) => {
                            let outcome = self.outcome.take().expect("just seen");
                            return Poll::Ready(Err(self.failure(outcome)));
                        }
                        Ok(()) => {
                            observe(self.progress());
                            return sink.poll_flush(cx).map_err(TransferError::Sink);
                        }
                    }
                }
                progressed |= self.receive(cx);
                if !flushed && !progressed {
                    match sink.poll_flush(cx) {
                        Poll::Ready(Ok(())) => flushed = true,
                        Poll::Ready(Err(error)) => return Poll::Ready(Err(TransferError::Sink(error))),
                        Poll::Pending => {}
                    }
                }
                let ticked = self.poll_clock(cx);
                if ticked {
                    observe(self.progress());
                }
                if !progressed && !ticked {
                    return Poll::Pending;
                }
                if self.turn >= TURN_BYTES {
                    cx.waker().wake_by_ref();
                    return Poll::Pending;
                }
            }
        })
        .await
    }

    /// How far the transfer is.
    pub fn progress(&self) -> Progress {
        let (delivered, wanted) = self.download.delivered().unwrap_or_default();
        Progress { delivered, wanted, paths: self.download.progress(now()).collect() }
    }

    /// What came of it so far.
    pub fn summary(&self) -> TransferSummary {
        let shares = self
            .download
            .progress(now())
            .map(|path| PathShare {
                path: path.path,
                bytes: path.bytes,
                requests: path.requests,
                active: path.active,
                connect_time: self.handshakes.get(&path.path).copied(),
                losses: self.losses.get(&path.path).copied().unwrap_or(0),
            })
            .collect();
        TransferSummary {
            bytes: self.download.delivered().map_or(0, |(delivered, _)| delivered),
            duration: now() - self.started,
            shares,
            boundaries_verified: self.download.boundaries_verified(),
            mismatches: self.mismatches,
            fallbacks: self.fallbacks.clone(),
            other_versions: self.other_versions.iter().copied().collect(),
            most_held_bytes: self.download.most_held_bytes(),
        }
    }

    /// Carries out what the core asks for.
    fn act(&mut self) {
        while let Some(action) = self.download.poll_action() {
            tracing::trace!(?action, at = ?now(), "act");
            match action {
                Action::Connect { lane, path } => {
                    let kept = self.warm.iter().position(|stream| stream.path() == path);
                    let io = match kept {
                        Some(index) => {
                            self.unproven.insert(lane);
                            LaneIo::established(OriginStream::Plain(self.warm.swap_remove(index)))
                        }
                        None => LaneIo::new(self.connecting(path)),
                    };
                    self.lanes.insert(lane, (path, io));
                }
                Action::Request { lane, ask } => {
                    let bytes = request_bytes(&self.config.request, &self.config.opening_bytes, ask);
                    if let Some((_, io)) = self.lanes.get_mut(&lane) {
                        io.request(ask, &bytes);
                    }
                }
                Action::Close { lane } => {
                    self.lanes.remove(&lane);
                }
            }
        }
        while let Some(event) = self.download.poll_event() {
            tracing::debug!(?event, origin = ?self.config.origin, "transfer");
            match event {
                Event::Finished => self.outcome = Some(Ok(())),
                Event::Failed(failure) => self.outcome = Some(Err(failure)),
                other => {
                    self.mismatches += u64::from(matches!(other, Event::Mismatch { .. }));
                    let is_told = match other {
                        Event::LaneLost { path, .. } => {
                            self.hopeful.remove(&path);
                            let losses = self.losses.entry(path).or_default();
                            *losses = losses.saturating_add(1);
                            *losses <= MOST_LOSSES_TOLD
                        }
                        _ => true,
                    };
                    if is_told {
                        self.fallbacks.push(other);
                    }
                }
            }
        }
    }

    fn connecting(&self, path: PathId) -> Connecting {
        let (paths, resolver) = (self.paths.clone(), self.resolver.clone());
        let origin = self.config.origin.clone();
        Box::pin(async move { origin::connect(&paths, &resolver, path, &origin).await })
    }

    /// Opens a kept connection anew that closed before it answered anything; true when it did.
    fn revive(&mut self, lane: LaneId) -> bool {
        if !self.unproven.remove(&lane) {
            return false;
        }
        let Some(path) = self.lanes.get(&lane).map(|(path, _)| *path) else { return false };
        let connecting = self.connecting(path);
        let (request, opening) = (self.config.request.clone(), self.config.opening_bytes.clone());
        if let Some((_, io)) = self.lanes.get_mut(&lane) {
            io.reconnect(connecting, |ask| request_bytes(&request, &opening, ask));
        }
        true
    }

    fn failure(&mut self, outcome: Result<(), Failure>) -> TransferError {
        match (outcome, self.unreachable.take()) {
            (Err(Failure::Changed), _) => TransferError::Changed,
            _ if self.representation.is_none() && self.not_http.is_some() => {
                TransferError::NotHttp(self.not_http.take().expect("just seen"))
            }
            (_, Some(error)) if self.representation.is_none() => TransferError::Unreachable(error),
            _ => TransferError::AllPathsFailed(self.last_error.take()),
        }
    }

    /// Hands bytes to the reader as long as it takes them, but not more than a turn's.
    fn deliver(&mut self, sink: &mut impl Sink, cx: &mut Context<'_>) -> io::Result<bool> {
        let mut delivered = 0;
        while delivered < DELIVERED_PER_TURN {
            if self.pending.is_empty() {
                match gather(|most| self.download.next_bytes(most, now())) {
                    Some(bytes) => self.pending = bytes,
                    None => break,
                }
            }
            match sink.poll_take(cx, &self.pending)? {
                Poll::Ready(0) => return Err(io::ErrorKind::WriteZero.into()),
                Poll::Ready(taken) => {
                    drop(self.pending.split_to(taken));
                    self.download.handle_consumed(taken as u64, now());
                    delivered += taken;
                }
                Poll::Pending => break,
            }
        }
        Ok(delivered > 0)
    }

    /// Takes what the connections have; true when there was anything.
    fn receive(&mut self, cx: &mut Context<'_>) -> bool {
        let mut progressed = false;
        self.bound_memory();
        let ids: Vec<LaneId> = self.lanes.keys().copied().collect();
        for lane in ids {
            for _ in 0..EVENTS_PER_TURN {
                let budget = self.download.read_budget(lane);
                let Some((_, io)) = self.lanes.get_mut(&lane) else { break };
                let Poll::Ready(event) = io.poll_event(budget, cx) else { break };
                progressed = true;
                self.handle(lane, event);
                self.act();
                if self.turn >= TURN_BYTES {
                    break;
                }
            }
        }
        progressed
    }

    /// Says what is held, and learns how much may be: that depends on what other transfers hold.
    fn bound_memory(&mut self) {
        self.memory.note(self.download.held_bytes() + self.pending.len() as u64);
        self.download.set_memory_bytes(self.memory.limit().min(self.config.download.memory_bytes));
    }

    fn handle(&mut self, lane: LaneId, event: LaneEvent) {
        let at = now();
        tracing::trace!(?lane, ?at, event = event.name(), "lane");
        if matches!(event, LaneEvent::Head { .. }) {
            self.unproven.remove(&lane);
        }
        match event {
            LaneEvent::Connected { handshake } => {
                if let (Some(handshake), Some((path, _))) = (handshake, self.lanes.get(&lane)) {
                    self.handshakes.entry(*path).or_insert(handshake);
                }
                self.download.handle_connected(lane, handshake, at);
            }
            LaneEvent::Interim(_) => {}
            LaneEvent::Body(bytes) => {
                self.turn += bytes.len() as u64;
                self.download.handle_body(lane, bytes, at);
            }
            LaneEvent::Head { ask, head } => match &self.representation {
                None => self.early.push((lane, ask, head)),
                Some(known) => {
                    let part = judge(known, ask, &self.config.request, &head).unwrap_or_else(|mismatch| {
                        tracing::info!(%mismatch, "a path answers with another object or version and is left out");
                        if let (true, Some((path, _))) = (mismatch.is_version(), self.lanes.get(&lane)) {
                            self.other_versions.insert(*path);
                        }
                        PartHead::Different
                    });
                    if !matches!(part, PartHead::Part { .. }) {
                        self.last_error = Some(format!("status {} to a range request", head.status()));
                    }
                    self.download.handle_part_head(lane, part, at);
                }
            },
            LaneEvent::Unreachable(error) => {
                self.lanes.remove(&lane);
                self.refused = true;
                self.last_error = Some(error.to_string());
                // No other path fails for it: behind a captive portal any certificate is wrong. But if
                // all fail, it tells most.
                if !self.unreachable.as_ref().is_some_and(OriginError::is_certificate) {
                    self.unreachable = Some(error);
                }
                self.download.handle_closed(lane, at);
            }
            LaneEvent::Closed(_) if self.revive(lane) => {}
            LaneEvent::Closed(error) => {
                self.lanes.remove(&lane);
                self.refused = true;
                if let Some(error) = error.as_ref().filter(|e| e.kind() == io::ErrorKind::InvalidData) {
                    self.not_http = Some(error.to_string());
                }
                self.last_error =
                    Some(error.map_or("the server closed the connection".to_owned(), |e| e.to_string()));
                self.download.handle_closed(lane, at);
            }
        }
    }

    /// Tells the core which paths came and went.
    fn note_paths(&mut self, at: Timestamp) {
        let host = &self.config.origin.host;
        let offers: Vec<PathOffer> = self
            .paths
            .usable_for(host)
            .into_iter()
            .filter(|info| !self.paths.is_inconsistent(host, info.id))
            .map(|info| PathOffer {
                path: info.id,
                metered: info.metered,
                estimate: self.paths.estimate(info.id, host),
            })
            .collect();
        let usable: BTreeSet<PathId> = offers.iter().map(|offer| offer.path).collect();
        for &gone in self.usable.difference(&usable) {
            self.download.handle_path_down(gone, at);
        }
        for offer in offers.into_iter().filter(|offer| !self.usable.contains(&offer.path)) {
            self.download.handle_path_up(offer, at);
        }
        self.usable = usable;
    }

    /// Lets time pass in the core when its timer has run out; true when it had.
    fn poll_clock(&mut self, cx: &mut Context<'_>) -> bool {
        let at = now();
        let instant = tokio::time::Instant::now();
        if let Some(deadline) = self.download.poll_timeout(at)
            && instant + (deadline - at) < self.wake.deadline()
        {
            self.wake.as_mut().reset(instant + (deadline - at));
        }
        if self.wake.as_mut().poll(cx).is_pending() {
            return false;
        }
        if at - self.rtts_passed >= RTT_INTERVAL {
            self.rtts_passed = at;
            for (lane, (_, io)) in &self.lanes {
                let sample = io.stream().and_then(|stream| stream.tcp().latest_sample());
                if let Some(sample) = sample {
                    let all = sample.segments_unacked == 0 && sample.bytes_unsent == 0 && io.is_sent();
                    self.download.handle_acknowledged(*lane, all);
                }
                if let Some((sample, least)) = sample.and_then(|s| Some((s, s.min_rtt?))) {
                    self.download.handle_rtt(*lane, least, sample.smoothed_rtt);
                }
            }
        }
        if self.changes.has_changed().unwrap_or(false) {
            self.changes.mark_unchanged();
            self.note_paths(at);
        }
        self.download.handle_timeout(at);
        let next = self.download.poll_timeout(at).map_or(RTT_INTERVAL, |deadline| deadline - at);
        self.wake.as_mut().reset(instant + next.max(Duration::from_millis(1)));
        // Registers the new deadline with the task.
        let _ = self.wake.as_mut().poll(cx);
        true
    }
}
