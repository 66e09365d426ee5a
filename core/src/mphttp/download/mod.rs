//! The download state machine: one HTTP object over any number of paths (FLEETY section 4.2).
//!
//! In: heads, bytes, failures, time. Out: [`Action`]s (connect, request, close), [`Event`]s and, by
//! [`Download::next_bytes`], the object's bytes in order. The plan starts from the closed form and
//! is corrected for as long as the transfer lasts: every connection is kept supplied with requests
//! (`schedule`), a part whose owner is slow or silent passes to whoever ends it sooner, and every
//! boundary between connections is verified before anything past it is delivered
//! ([`crate::mphttp::assembly`]).

mod lane;
mod lifecycle;
mod runs;
mod schedule;
pub mod tuning;

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use bytes::Bytes;

use crate::mphttp::assembly::{Assembly, Next, PieceId};
use crate::paths::{PathEstimate, PathId};
use crate::units::{Rate, Timestamp};

pub use lane::{Ask, LaneId};
use lane::{Fetch, Lane, LaneState};
use runs::Runs;

/// How much second paths are used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Preference {
    /// All paths, as soon as they help.
    Fast,
    /// Metered paths only for what unmetered ones cannot bring within `tolerance` (F6, `T_tol`).
    Thrifty {
        /// `T_tol`; one second in the paper.
        tolerance: Duration,
    },
}

/// How the first request is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Opening {
    /// The client's own request, unchanged, on the first path (F5).
    AsClient,
    /// A range from `begin` on; for downloads that Multiway makes itself.
    Range {
        /// First byte wanted.
        begin: u64,
    },
}

/// What a download is to do, and within which bounds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DownloadConfig {
    /// Use of metered paths.
    pub preference: Preference,
    /// The first request.
    pub opening: Opening,
    /// Whether other paths may ask for the object's end before its size is known.
    pub open_all_paths_at_once: bool,
    /// Most bytes held in memory (M in FLEETY section 4.2).
    pub memory_bytes: u64,
    /// Bytes that stand before `begin` already, for instance in a partial file; the first bytes
    /// that arrive are verified against them.
    pub tail: Vec<u8>,
}

/// A path offered to a download, in order of preference.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PathOffer {
    /// Which.
    pub path: PathId,
    /// Whether its bytes cost money.
    pub metered: bool,
    /// What is believed of it.
    pub estimate: PathEstimate,
}

/// Something to do for a download; order matters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Open a connection to the origin over a path.
    Connect {
        /// Its name from now on.
        lane: LaneId,
        /// The path.
        path: PathId,
    },
    /// Send a request as soon as the connection stands, without waiting for earlier answers.
    Request {
        /// On which connection.
        lane: LaneId,
        /// What to ask for.
        ask: Ask,
    },
    /// Close a connection.
    Close {
        /// Which.
        lane: LaneId,
    },
}

/// Something worth telling.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// Two paths brought different bytes; the object is finished from one alone.
    Mismatch {
        /// Offset of the boundary.
        offset: u64,
        /// The path whose version was delivered.
        kept: Option<PathId>,
        /// The path whose bytes differ.
        dropped: PathId,
    },
    /// A path is not used any more for this object.
    PathExcluded {
        /// Which.
        path: PathId,
        /// Why.
        reason: Exclusion,
    },
    /// A connection was lost; what it owed went to others.
    LaneLost {
        /// Its path.
        path: PathId,
        /// Why.
        cause: LossCause,
    },
    /// Every byte was delivered.
    Finished,
    /// The object cannot be completed.
    Failed(Failure),
}

/// Why a path is not used for an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Exclusion {
    /// It answered a range request with the whole object.
    #[error("the server serves no ranges there")]
    NoRanges,
    /// Its answer describes another object or version.
    #[error("the server answers with another object or version there")]
    Different,
    /// It refused again and again.
    #[error("the server refuses further requests there")]
    Refused,
    /// Connections over it failed again and again.
    #[error("the server cannot be reached there")]
    Unreachable,
    /// Its bytes differ from those delivered.
    #[error("its bytes differ from those delivered")]
    Inconsistent,
}

/// Why a connection was lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum LossCause {
    /// It could not be opened.
    #[error("it could not be opened")]
    ConnectFailed,
    /// It could not be opened in time.
    #[error("it could not be opened in time")]
    ConnectTimeout,
    /// The peer closed it or an error occurred.
    #[error("it was closed or failed")]
    Closed,
    /// It owed bytes and stayed silent.
    #[error("it fell silent")]
    Silent,
    /// The server refused the request (429, 503).
    #[error("the server asked for fewer requests")]
    Refused,
}

/// Why an object cannot be completed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    /// No path delivered anything for [`tuning::GIVE_UP_AFTER`], or none is left.
    AllPathsFailed,
    /// The object differs from what was delivered before, on every path left.
    Changed,
}

/// The first response that describes the object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OpeningHead {
    /// Offset of the response's first byte in the object.
    pub start: u64,
    /// One past the response's last byte.
    pub end: u64,
    /// First byte that is wanted.
    pub region_begin: u64,
    /// One past the last byte that is wanted.
    pub region_end: u64,
    /// Whether the connection stays open afterwards.
    pub reusable: bool,
}

/// The head of a response to a range request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PartHead {
    /// A part of the same representation.
    Part {
        /// Offset of its first byte.
        start: u64,
        /// One past its last byte.
        end: u64,
        /// Whether the connection stays open afterwards.
        reusable: bool,
    },
    /// The whole object in spite of the range.
    Whole {
        /// Its length.
        total: u64,
    },
    /// Not now.
    Refused {
        /// What the server asked to wait.
        retry_after: Option<Duration>,
    },
    /// Another object, another version, or nonsense.
    Different,
}

/// What a path has contributed so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PathProgress {
    /// Which.
    pub path: PathId,
    /// Body bytes that arrived over it, overlap and duplicates included.
    pub bytes: u64,
    /// Requests sent.
    pub requests: u32,
    /// Arrival rate now; zero when idle.
    pub rate: Rate,
    /// From its first byte to its last.
    pub active: Duration,
}

#[derive(Debug)]
struct PathEntry {
    offer: PathOffer,
    excluded: Option<Exclusion>,
    /// False once the peer was seen to drop requests sent before the answer to an earlier one.
    pipelining: bool,
    failures: u32,
    next_attempt: Timestamp,
    /// Rate of the last connection that brought anything.
    last_rate: Option<Rate>,
    /// When a connection was last attempted.
    last_attempt: Option<Timestamp>,
    bytes: u64,
    requests: u32,
    /// When the first and the last byte arrived.
    arrivals: Option<(Timestamp, Timestamp)>,
}

impl PathEntry {
    fn note_arrival(&mut self, bytes: u64, now: Timestamp) {
        self.bytes += bytes;
        self.arrivals = Some((self.arrivals.map_or(now, |(first, _)| first), now));
        self.failures = 0;
    }
}

/// See the module's documentation.
#[derive(Debug)]
pub struct Download {
    config: DownloadConfig,
    paths: Vec<PathEntry>,
    lanes: BTreeMap<LaneId, Lane>,
    next_lane: u32,
    body: Option<Body>,
    /// Time the origin took to answer the first request beyond a round trip.
    think_time: Duration,
    actions: VecDeque<Action>,
    events: VecDeque<Event>,
    started: Timestamp,
    last_progress: Timestamp,
    window: u64,
    most_held: u64,
    over: bool,
}

/// The parts that exist once the object's extent is known.
#[derive(Debug)]
struct Body {
    begin: u64,
    end: u64,
    runs: Runs,
    assembly: Assembly,
    origin_of: BTreeMap<PieceId, PathId>,
    consumed: u64,
}

impl Body {
    /// Past the frontier nobody is responsible for anything any more; what is held stays received.
    fn free_what_is_missing(&mut self) {
        self.runs.disown_from(self.assembly.frontier());
        for (from, to) in self.assembly.held_past_overlaps() {
            self.runs.note_held(from, to);
        }
    }
}

impl Download {
    /// A download over `offers`, the preferred path first.
    pub fn new(config: DownloadConfig, offers: Vec<PathOffer>, now: Timestamp) -> Self {
        let paths = offers
            .into_iter()
            .map(|offer| PathEntry {
                offer,
                excluded: None,
                pipelining: true,
                failures: 0,
                next_attempt: now,
                last_attempt: None,
                last_rate: None,
                bytes: 0,
                requests: 0,
                arrivals: None,
            })
            .collect();
        let mut download = Self {
            config,
            paths,
            lanes: BTreeMap::new(),
            next_lane: 0,
            body: None,
            think_time: Duration::ZERO,
            actions: VecDeque::new(),
            events: VecDeque::new(),
            started: now,
            last_progress: now,
            window: 0,
            most_held: 0,
            over: false,
        };
        download.begin(now);
        download
    }

    /// A connection stands. `rtt` is how long that took, when it tells the round-trip time.
    pub fn handle_connected(&mut self, lane: LaneId, rtt: Option<Duration>, now: Timestamp) {
        if let Some(lane) = self.lanes.get_mut(&lane) {
            lane.state = LaneState::Open;
            lane.last_activity = now;
            if let Some(rtt) = rtt {
                lane.handle_rtt(rtt, rtt);
            }
            for fetch in &mut lane.fetches {
                fetch.asked_at = now;
            }
        }
        self.replan(now);
    }

    /// The kernel's view of a connection's round-trip time.
    pub fn handle_rtt(&mut self, lane: LaneId, least: Duration, smoothed: Duration) {
        if let Some(lane) = self.lanes.get_mut(&lane) {
            lane.handle_rtt(least, smoothed);
        }
    }

    /// The kernel's word on whether the peer has acknowledged all that was written to a connection.
    pub fn handle_acknowledged(&mut self, lane: LaneId, all: bool) {
        if let Some(lane) = self.lanes.get_mut(&lane) {
            lane.is_acknowledged = Some(all);
        }
    }

    /// The answer to the first request tells the object's extent.
    ///
    /// Call it once; answers to first requests repeated on other paths are dropped by then.
    pub fn handle_opening_head(&mut self, lane: LaneId, head: OpeningHead, now: Timestamp) {
        if self.body.is_none() {
            self.establish(lane, head, now);
        }
        self.replan(now);
    }

    /// The head of the next response to a range request on `lane`.
    pub fn handle_part_head(&mut self, lane: LaneId, head: PartHead, now: Timestamp) {
        match head {
            PartHead::Part { start, end, reusable } => self.accept_part(lane, start, end, reusable, now),
            PartHead::Whole { total } => self.accept_whole(lane, total, now),
            PartHead::Refused { retry_after } => self.refuse(lane, retry_after, now),
            PartHead::Different => self.exclude_lane(lane, Exclusion::Different, now),
        }
        self.replan(now);
    }

    /// Body bytes of the response in progress on `lane`.
    pub fn handle_body(&mut self, lane: LaneId, bytes: Bytes, now: Timestamp) {
        self.accept_body(lane, bytes, now);
        self.replan(now);
    }

    /// The connection failed or was closed by the peer.
    pub fn handle_closed(&mut self, lane: LaneId, now: Timestamp) {
        if let Some(state) = self.lanes.get(&lane).map(|lane| lane.state) {
            let cause = match state {
                LaneState::Connecting => LossCause::ConnectFailed,
                LaneState::Open => LossCause::Closed,
            };
            self.lose_lane(lane, cause, now);
        }
        self.replan(now);
    }

    /// A path went away; its connections are gone.
    pub fn handle_path_down(&mut self, path: PathId, now: Timestamp) {
        let lanes: Vec<LaneId> = self.lanes_on(path).collect();
        for lane in lanes {
            self.lose_lane(lane, LossCause::Closed, now);
        }
        self.replan(now);
    }

    /// A path came (back); it is tried at once.
    pub fn handle_path_up(&mut self, offer: PathOffer, now: Timestamp) {
        match self.paths.iter_mut().find(|entry| entry.offer.path == offer.path) {
            Some(entry) => {
                entry.offer = offer;
                entry.next_attempt = now;
                entry.failures = 0;
                if entry.excluded == Some(Exclusion::Unreachable) {
                    entry.excluded = None;
                }
            }
            None => self.paths.push(PathEntry {
                offer,
                excluded: None,
                pipelining: true,
                failures: 0,
                next_attempt: now,
                last_attempt: None,
                last_rate: None,
                bytes: 0,
                requests: 0,
                arrivals: None,
            }),
        }
        self.replan(now);
    }

    /// The reader took `bytes` of what [`Self::next_bytes`] gave.
    pub fn handle_consumed(&mut self, bytes: u64, now: Timestamp) {
        let blocked: Vec<LaneId> = self.lanes.keys().copied().filter(|&lane| self.is_blocked(lane)).collect();
        if let Some(body) = &mut self.body {
            body.consumed = body.consumed.saturating_add(bytes).min(body.end);
        }
        for lane in blocked {
            if !self.is_blocked(lane)
                && let Some(lane) = self.lanes.get_mut(&lane)
            {
                lane.restart_waiting(now);
            }
        }
        self.replan(now);
    }

    /// Changes how much memory the download may use, when it shares it with others.
    ///
    /// What is held beyond a lower bound is delivered first; until then only what the reader needs
    /// next is read.
    pub fn set_memory_bytes(&mut self, bytes: u64) {
        self.config.memory_bytes = bytes;
    }

    /// Time passed.
    pub fn handle_timeout(&mut self, now: Timestamp) {
        self.replan(now);
    }

    /// When [`Self::handle_timeout`] wants to be called; `None` when over.
    pub fn poll_timeout(&self, now: Timestamp) -> Option<Timestamp> {
        (!self.over).then(|| self.next_look(now))
    }

    /// Whether the first request is still out on a path that is preferred to that of `lane`.
    pub fn is_outranked(&self, lane: LaneId) -> bool {
        let rank = |path| self.paths.iter().position(|entry| entry.offer.path == path);
        let Some(own) = self.lanes.get(&lane).map(|lane| rank(lane.path)) else { return false };
        self.lanes.values().any(|other| other.is_opening() && rank(other.path) < own)
    }

    /// Whether the connection is still part of the download.
    pub fn has_lane(&self, lane: LaneId) -> bool {
        self.lanes.contains_key(&lane)
    }

    /// The next thing to do.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// The next thing to tell.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// The object's next bytes, at most `most`; `None` when there are none yet.
    pub fn next_bytes(&mut self, most: u64, now: Timestamp) -> Option<Bytes> {
        while !self.over {
            let body = self.body.as_mut()?;
            let left = body.end.saturating_sub(body.assembly.frontier());
            match body.assembly.next(most.min(left)) {
                Next::Bytes(bytes) => {
                    self.last_progress = now;
                    self.note_frontier();
                    return Some(bytes);
                }
                Next::Wait => return None,
                Next::Mismatch { offset, piece } => self.settle_mismatch(offset, piece, now),
            }
        }
        None
    }

    /// Bytes that may be read from `lane` now; zero means that it has to wait for the reader.
    pub fn read_budget(&self, lane: LaneId) -> u64 {
        let Some(lane) = self.lanes.get(&lane) else { return 0 };
        let Some(fetch) = lane.fetches.front().filter(|fetch| fetch.extent.is_some()) else { return 0 };
        let Some(body) = &self.body else { return fetch.early_budget() };
        let unconsumed = body.assembly.frontier().saturating_sub(body.consumed);
        let room = self.config.memory_bytes.saturating_sub(body.assembly.held().saturating_add(unconsumed));
        if matches!(fetch.ask, Ask::Suffix { .. }) {
            // Asked for before there was a window; its length is within the memory's reserve.
            return room;
        }
        let in_window = self.window_end().saturating_sub(fetch.position);
        if fetch.position <= body.assembly.frontier() {
            return in_window;
        }
        in_window.min(room)
    }

    /// True once every byte was delivered or the download failed.
    pub fn is_over(&self) -> bool {
        self.over
    }

    /// Bytes delivered so far and bytes wanted in all; `None` before the extent is known.
    pub fn delivered(&self) -> Option<(u64, u64)> {
        self.body.as_ref().map(|body| (body.assembly.frontier() - body.begin, body.end - body.begin))
    }

    /// Boundaries between connections that were verified.
    pub fn boundaries_verified(&self) -> u64 {
        self.body.as_ref().map_or(0, |body| body.assembly.boundaries_verified())
    }

    /// Bytes held in memory now.
    pub fn held_bytes(&self) -> u64 {
        self.body.as_ref().map_or(0, |body| body.assembly.held())
    }

    /// The most bytes ever held in memory.
    pub fn most_held_bytes(&self) -> u64 {
        self.most_held
    }

    /// What each path contributed.
    pub fn progress(&self, now: Timestamp) -> impl Iterator<Item = PathProgress> + '_ {
        self.paths.iter().map(move |entry| PathProgress {
            path: entry.offer.path,
            bytes: entry.bytes,
            requests: entry.requests,
            active: entry.arrivals.map_or(Duration::ZERO, |(first, last)| last - first),
            rate: self
                .lanes
                .values()
                .filter(|lane| lane.path == entry.offer.path && !lane.fetches.is_empty())
                .filter_map(|lane| lane.rate(now))
                .fold(Rate::ZERO, Rate::saturating_add),
        })
    }

    fn lanes_on(&self, path: PathId) -> impl Iterator<Item = LaneId> + '_ {
        self.lanes.iter().filter(move |(_, lane)| lane.path == path).map(|(id, _)| *id)
    }

    fn entry(&mut self, path: PathId) -> Option<&mut PathEntry> {
        self.paths.iter_mut().find(|entry| entry.offer.path == path)
    }

    /// One past the last byte that may be asked for or held now (F7).
    fn window_end(&self) -> u64 {
        self.body.as_ref().map_or(0, |body| body.consumed.saturating_add(self.window).min(body.end))
    }

    /// Whether it is the reader, not the path, that a lane waits for.
    fn is_blocked(&self, lane: LaneId) -> bool {
        let waits_for_body =
            self.lanes.get(&lane).and_then(|lane| lane.fetches.front()).is_some_and(|f| f.extent.is_some());
        waits_for_body && self.read_budget(lane) == 0
    }

    fn note_frontier(&mut self) {
        let Some(body) = &mut self.body else { return };
        let frontier = body.assembly.frontier();
        body.runs.note_frontier(frontier);
        let over = frontier == body.end;
        self.retire_pieces();
        if over && !self.over {
            self.over = true;
            self.events.push_back(Event::Finished);
        }
    }

    /// Forgets pieces that no connection adds to and that hold nothing of use.
    fn retire_pieces(&mut self) {
        let Some(body) = &mut self.body else { return };
        let live: Vec<PieceId> = self
            .lanes
            .values()
            .flat_map(|lane| {
                let asked = lane.fetches.iter().filter_map(|fetch| fetch.piece);
                asked.chain(lane.last_asked.map(|(piece, _)| piece))
            })
            .collect();
        body.assembly.retire(|piece| live.contains(&piece));
        let Body { assembly, origin_of, .. } = body;
        origin_of.retain(|piece, _| assembly.contains(*piece));
    }

    /// A boundary did not match: what was delivered decides which version is kept (F8).
    fn settle_mismatch(&mut self, offset: u64, piece: PieceId, now: Timestamp) {
        let Some(body) = &mut self.body else { return };
        let kept = body.assembly.current().and_then(|current| body.origin_of.get(&current).copied());
        let dropped = body.origin_of.get(&piece).copied();
        let Some(dropped) = dropped else {
            body.assembly.discard(piece);
            return;
        };
        self.events.push_back(Event::Mismatch { offset, kept, dropped });
        match kept {
            Some(kept) if kept != dropped => self.keep_only(kept, now),
            // What was delivered came from this very path before it changed, or from a file: others
            // may have that version still.
            _ => self.abandon_version(dropped, now),
        }
    }

    fn fail(&mut self, failure: Failure) {
        if !self.over {
            self.over = true;
            self.events.push_back(Event::Failed(failure));
        }
    }

    fn new_fetch(ask: Ask, now: Timestamp) -> Fetch {
        Fetch { ask, extent: None, piece: None, head_seen: false, position: 0, asked_at: now }
    }
}
