//! Connections come and go; responses begin, bring bytes and end.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;

use super::lane::{Ask, Lane, LaneId, LaneState};
use super::runs::Runs;
use super::{
    Action, Body, Download, Event, Exclusion, Failure, LossCause, Opening, OpeningHead, PathEntry,
    Preference, tuning,
};
use crate::mphttp::assembly::Assembly;
use crate::paths::PathId;
use crate::units::Timestamp;

impl Download {
    /// Makes the first requests.
    pub(super) fn begin(&mut self, now: Timestamp) {
        self.open_next(now);
        if self.config.open_all_paths_at_once {
            let first_metered = self.paths.first().is_none_or(|entry| entry.offer.metered);
            let others: Vec<PathId> = self
                .paths
                .iter()
                .skip(1)
                .filter(|entry| {
                    !entry.offer.metered || first_metered || self.config.preference == Preference::Fast
                })
                .map(|entry| entry.offer.path)
                .collect();
            let length = tuning::SUFFIX_BLOCK.min(self.config.memory_bytes / tuning::SUFFIXES_IN_MEMORY);
            for (index, path) in others.into_iter().enumerate() {
                let lane = self.connect(path, now);
                // Without the size there is but one end to ask for; a third path only connects.
                if index == 0 {
                    self.push_request(lane, Ask::Suffix { length }, now);
                }
            }
        }
    }

    /// Makes the first request on the most preferred path that has not been tried.
    pub(super) fn open_next(&mut self, now: Timestamp) -> bool {
        let busy: Vec<PathId> =
            self.lanes.values().filter(|lane| lane.is_opening()).map(|lane| lane.path).collect();
        let ready = |entry: &&PathEntry| entry.next_attempt <= now && !busy.contains(&entry.offer.path);
        let next = self.paths.iter().filter(ready).find(|entry| entry.excluded.is_none()).or_else(|| {
            // Where ranges are ignored the whole object is still to be had.
            self.paths.iter().filter(ready).find(|entry| entry.excluded == Some(Exclusion::NoRanges))
        });
        let Some(path) = next.map(|entry| entry.offer.path) else { return false };
        let lane = self.connect(path, now);
        let ask = match self.config.opening {
            Opening::AsClient => Ask::AsClient,
            Opening::Range { begin } => {
                let start = begin.saturating_sub((self.config.tail.len() as u64).min(tuning::OVERLAP_BYTES));
                Ask::Part { start, end: begin.saturating_add(self.opening_block(path)) }
            }
        };
        self.push_request(lane, ask, now);
        true
    }

    /// What to ask for first on `path`: what it is believed to bring in two round trips.
    fn opening_block(&self, path: PathId) -> u64 {
        let estimate = self.paths.iter().find(|e| e.offer.path == path).map(|e| e.offer.estimate);
        let cover = estimate.and_then(|e| Some(e.throughput?.bytes_in(e.rtt? * 2)));
        cover.unwrap_or(0).clamp(tuning::FIRST_BLOCK, tuning::LARGEST_OPENING)
    }

    pub(super) fn connect(&mut self, path: PathId, now: Timestamp) -> LaneId {
        let id = LaneId(self.next_lane);
        self.next_lane += 1;
        let rtt = self.paths.iter().find(|e| e.offer.path == path).and_then(|e| e.offer.estimate.rtt);
        let mut lane = Lane::new(path, rtt, now);
        lane.expect_think_time(self.think_time);
        self.lanes.insert(id, lane);
        if let Some(entry) = self.entry(path) {
            entry.last_attempt = Some(now);
        }
        self.actions.push_back(Action::Connect { lane: id, path });
        id
    }

    pub(super) fn push_request(&mut self, lane: LaneId, ask: Ask, now: Timestamp) {
        let mut fetch = Self::new_fetch(ask, now);
        if let (Ask::Part { start, end }, Some(_)) = (ask, &self.body) {
            fetch.extent = Some((start, end));
            fetch.position = start;
        }
        if let Some(state) = self.lanes.get_mut(&lane) {
            state.push(fetch, now);
            let path = state.path;
            if let Some(entry) = self.entry(path) {
                entry.requests += 1;
            }
            self.actions.push_back(Action::Request { lane, ask });
        }
    }

    /// The extent is known: lays out responsibilities and places what is under way.
    pub(super) fn establish(&mut self, lane: LaneId, head: OpeningHead, now: Timestamp) {
        let Some(state) = self.lanes.get_mut(&lane) else { return };
        let Some(fetch) = state.fetches.front_mut() else { return };
        let OpeningHead { start, end, region_begin: begin, region_end, reusable } = head;
        // What a response brings past the wanted end is not read.
        let (end, reusable) = (end.min(region_end), reusable && end <= region_end);
        if start > begin || begin > end {
            self.exclude_lane(lane, Exclusion::Different, now);
            return;
        }
        let mut assembly = Assembly::new(begin, tuning::OVERLAP_BYTES, &self.config.tail);
        let piece = assembly.open(start);
        fetch.extent = Some((start, end));
        fetch.position = start;
        fetch.piece = Some(piece);
        fetch.head_seen = true;
        state.reusable = reusable;
        state.last_activity = now;
        state.last_asked = Some((piece, end));
        state.note_head(now);
        self.think_time = state.think_time();
        for other in self.lanes.values_mut() {
            other.expect_think_time(self.think_time);
        }
        let Some(state) = self.lanes.get_mut(&lane) else { return };
        let path = state.path;
        let asked_to = end.max(begin);
        let runs = Runs::new(begin, region_end, lane, asked_to.min(region_end));
        self.body = Some(Body {
            begin,
            end: region_end,
            runs,
            assembly,
            origin_of: BTreeMap::from([(piece, path)]),
            consumed: begin,
        });
        self.last_progress = now;
        self.window = tuning::LEAST_WINDOW.min(self.window_of_memory());
        if begin == region_end {
            self.note_frontier();
        }
        // First requests repeated on other paths have lost the race.
        let losers: Vec<LaneId> =
            self.lanes.iter().filter(|(id, l)| **id != lane && l.is_opening()).map(|(id, _)| *id).collect();
        for loser in losers {
            self.close_lane(loser);
        }
        // A suffix whose head came first can be placed now.
        let early: Vec<(LaneId, u64, u64)> = self
            .lanes
            .iter()
            .filter_map(|(id, l)| {
                let front = l.fetches.front()?;
                let (start, end) = front.extent?;
                (front.head_seen && front.piece.is_none()).then_some((*id, start, end))
            })
            .collect();
        for (id, start, end) in early {
            self.place(id, start, end, now);
        }
    }

    /// A range response begins.
    pub(super) fn accept_part(&mut self, id: LaneId, start: u64, end: u64, reusable: bool, now: Timestamp) {
        let Some(lane) = self.lanes.get_mut(&id) else { return };
        let Some(fetch) = lane.fetches.front_mut().filter(|fetch| !fetch.head_seen) else { return };
        fetch.head_seen = true;
        lane.note_head(now);
        lane.last_activity = now;
        lane.reusable = reusable;
        let Some(fetch) = lane.fetches.front_mut() else { return };
        match fetch.extent {
            None if !matches!(fetch.ask, Ask::Suffix { .. }) => {
                // The first request's answer would have been an opening head, had it fitted.
                self.exclude_lane(id, Exclusion::Different, now);
            }
            None => {
                if let Some(fetch) = self.lanes.get_mut(&id).and_then(|lane| lane.fetches.front_mut()) {
                    fetch.extent = Some((start, end));
                    fetch.position = start;
                }
                if self.body.is_some() {
                    self.place(id, start, end, now);
                }
            }
            Some((asked_start, asked_end)) if start == asked_start && start < end && end <= asked_end => {
                // RFC 9110 section 15.3.7.1: a server may send less than was asked for.
                fetch.extent = Some((start, end));
                if end < asked_end {
                    if lane.fetches.len() > 1 {
                        // What was asked for behind it would leave a hole in the piece: this
                        // response is the last here, and the path's requests are no longer queued.
                        lane.fetches.truncate(1);
                        lane.reusable = false;
                    }
                    // The next request continues this piece, so that the overlap does not eat up
                    // what a server that sends very short parts brings.
                    lane.last_asked = lane.last_asked.map(|(piece, _)| (piece, end));
                    let path = lane.path;
                    if let Some(body) = &mut self.body {
                        body.runs.give_back(id, end, asked_end);
                    }
                    if let Some(entry) = self.entry(path) {
                        // Smaller requests would only get smaller parts.
                        entry.pipelining = false;
                    }
                }
            }
            Some(_) => self.exclude_lane(id, Exclusion::Different, now),
        }
    }

    /// Finds the place of a response whose extent only its head told (a suffix).
    fn place(&mut self, id: LaneId, start: u64, end: u64, now: Timestamp) {
        let Some(body) = &mut self.body else { return };
        if end > body.end || start >= end {
            self.exclude_lane(id, Exclusion::Different, now);
            return;
        }
        let Some(path) = self.lanes.get(&id).map(|lane| lane.path) else { return };
        let piece = body.assembly.open(start);
        body.origin_of.insert(piece, path);
        let boundary = start.saturating_add(tuning::OVERLAP_BYTES);
        let from = boundary.max(body.assembly.frontier());
        if boundary < end && start > body.begin && body.runs.at(from).is_some_and(|run| run.limit >= end) {
            body.runs.assign(from, end, Some(id));
            body.runs.note_asked(from, id, end);
        }
        let Some(lane) = self.lanes.get_mut(&id) else { return };
        lane.last_asked = Some((piece, end));
        let early = std::mem::take(&mut lane.early);
        let Some(fetch) = lane.fetches.front_mut() else { return };
        fetch.piece = Some(piece);
        let position = fetch.position;
        for bytes in early {
            body.assembly.append(piece, bytes);
        }
        body.runs.note_received(id, start, position);
        self.most_held = self.most_held.max(body.assembly.held());
        if position == end {
            self.complete_response(id, now);
        }
    }

    /// The whole object came where a range was asked for: of use only when nothing else is left.
    pub(super) fn accept_whole(&mut self, id: LaneId, total: u64, now: Timestamp) {
        let alone = !self
            .lanes
            .iter()
            .any(|(other, lane)| *other != id && lane.state == LaneState::Open && !lane.is_late(now));
        let fits = self.body.as_ref().is_some_and(|body| body.end <= total);
        if !alone || !fits {
            self.exclude_lane(id, Exclusion::NoRanges, now);
            return;
        }
        let Some(body) = &mut self.body else { return };
        let piece = body.assembly.open(0);
        let Some(lane) = self.lanes.get_mut(&id) else { return };
        body.origin_of.insert(piece, lane.path);
        body.runs.disown_from(body.assembly.frontier());
        let (frontier, end) = (body.assembly.frontier(), body.end);
        body.runs.assign(frontier, end, Some(id));
        body.runs.note_asked(frontier, id, end);
        lane.fetches.truncate(1);
        lane.reusable = false;
        lane.last_activity = now;
        if let Some(fetch) = lane.fetches.front_mut() {
            fetch.head_seen = true;
            fetch.extent = Some((0, total));
            fetch.position = 0;
            fetch.piece = Some(piece);
        }
    }

    pub(super) fn accept_body(&mut self, id: LaneId, mut bytes: Bytes, now: Timestamp) {
        if self.body.is_none() {
            self.keep_early(id, bytes, now);
            return;
        }
        let (Some(body), Some(lane)) = (&mut self.body, self.lanes.get_mut(&id)) else { return };
        let Some(fetch) = lane.fetches.front_mut().filter(|fetch| fetch.head_seen) else { return };
        let (Some((_, end)), Some(piece)) = (fetch.extent, fetch.piece) else { return };
        bytes.truncate(usize::try_from(end - fetch.position).unwrap_or(usize::MAX));
        let (from, to) = (fetch.position, fetch.position + bytes.len() as u64);
        fetch.position = to;
        let complete = to == end;
        lane.handle_arrival(bytes.len() as u64, now);
        lane.brought += bytes.len() as u64;
        let path = lane.path;
        let received = bytes.len() as u64;
        // Bytes of a piece that was given up are not held, and so not received.
        if body.assembly.start_of(piece).is_some() {
            body.assembly.append(piece, bytes);
            // An overlap that comes again and again brings nothing on.
            if body.runs.note_received(id, from, to) {
                self.last_progress = now;
            }
        }
        self.most_held = self.most_held.max(body.assembly.held());
        if let Some(entry) = self.entry(path) {
            entry.note_arrival(received, now);
        }
        if complete {
            self.complete_response(id, now);
        }
    }

    /// Bytes of a suffix wait for the object's extent; their arrival tells the path's rate already.
    fn keep_early(&mut self, id: LaneId, mut bytes: Bytes, now: Timestamp) {
        let Some(lane) = self.lanes.get_mut(&id) else { return };
        let Some(fetch) = lane.fetches.front_mut() else { return };
        bytes.truncate(usize::try_from(fetch.early_budget()).unwrap_or(usize::MAX));
        let received = bytes.len() as u64;
        fetch.position += received;
        lane.handle_arrival(received, now);
        lane.brought += received;
        lane.early.push(bytes);
        let path = lane.path;
        if let Some(entry) = self.entry(path) {
            entry.note_arrival(received, now);
        }
    }

    fn complete_response(&mut self, id: LaneId, now: Timestamp) {
        let Some(lane) = self.lanes.get_mut(&id) else { return };
        lane.fetches.pop_front();
        lane.responses_completed += 1;
        lane.note_complete(now);
        if !lane.reusable {
            let (path, brought) = (lane.path, lane.brought);
            self.disown(id);
            self.close_lane(id);
            if let Some(entry) = self.entry(path) {
                // The server closes after each response: ask for all of a part at once.
                entry.pipelining = false;
                let pause = if brought < tuning::LEAST_BLOCK { tuning::FIRST_RETRY } else { Duration::ZERO };
                entry.next_attempt = now + pause;
            }
        }
    }

    /// The server does not want (more) connections over this path now.
    pub(super) fn refuse(&mut self, id: LaneId, retry_after: Option<Duration>, now: Timestamp) {
        let Some(path) = self.lanes.get(&id).map(|lane| lane.path) else { return };
        self.lose_lane(id, LossCause::Refused, now);
        if let Some(entry) = self.entry(path) {
            let wait = retry_after.unwrap_or(tuning::FIRST_RETRY * 4).min(tuning::LONGEST_RETRY_AFTER);
            entry.next_attempt = entry.next_attempt.max(now + wait);
        }
    }

    pub(super) fn exclude_lane(&mut self, id: LaneId, reason: Exclusion, now: Timestamp) {
        let Some(path) = self.lanes.get(&id).map(|lane| lane.path) else { return };
        self.exclude_path(path, reason);
        let lanes: Vec<LaneId> = self.lanes_on(path).collect();
        for lane in lanes {
            // A response in progress whose head was accepted may go on; only the new one is refused.
            let carries_object =
                lane != id && self.lanes[&lane].fetches.front().is_some_and(|fetch| fetch.head_seen);
            if !carries_object {
                self.disown(lane);
                self.close_lane(lane);
            }
        }
        self.check_exhausted(now);
    }

    fn exclude_path(&mut self, path: PathId, reason: Exclusion) {
        // A path without ranges may still be tried in need: worse news of it counts.
        if let Some(entry) = self.entry(path)
            && (entry.excluded.is_none()
                || (entry.excluded == Some(Exclusion::NoRanges) && reason != Exclusion::NoRanges))
        {
            entry.excluded = Some(reason);
            self.events.push_back(Event::PathExcluded { path, reason });
        }
    }

    /// Drops what `path` brings, but for the connection that brings the delivered version.
    pub(super) fn abandon_version(&mut self, path: PathId, now: Timestamp) {
        self.exclude_path(path, Exclusion::Different);
        let Some(body) = &self.body else { return };
        let current = body.assembly.current();
        let lanes: Vec<LaneId> = self
            .lanes_on(path)
            .filter(|lane| {
                let front = self.lanes[lane].fetches.front();
                current.is_none() || front.and_then(|fetch| fetch.piece) != current
            })
            .collect();
        for lane in lanes {
            self.disown(lane);
            self.close_lane(lane);
        }
        let Some(body) = &mut self.body else { return };
        let foreign: Vec<_> = body
            .origin_of
            .iter()
            .filter(|(piece, origin)| **origin == path && Some(**piece) != current)
            .map(|(piece, _)| *piece)
            .collect();
        for piece in foreign {
            body.assembly.discard(piece);
        }
        self.reclaim(now);
    }

    /// Finishes from `kept` alone after a mismatch (F8).
    pub(super) fn keep_only(&mut self, kept: PathId, now: Timestamp) {
        let others: Vec<PathId> =
            self.paths.iter().map(|entry| entry.offer.path).filter(|&path| path != kept).collect();
        for path in others {
            self.exclude_path(path, Exclusion::Inconsistent);
            let lanes: Vec<LaneId> = self.lanes_on(path).collect();
            for lane in lanes {
                self.disown(lane);
                self.close_lane(lane);
            }
        }
        let Some(body) = &self.body else { return };
        let current = body.assembly.current();
        // Only the connection that is bringing the delivered version right now goes on. What others
        // of the path have under way may begin where another version's bytes were to end, without an
        // overlap to verify it by.
        let stopped: Vec<LaneId> = self
            .lanes
            .iter()
            .filter(|(_, lane)| lane.fetches.len() != 1 || lane.fetches[0].piece != current)
            .map(|(id, _)| *id)
            .collect();
        for lane in stopped {
            self.close_lane(lane);
        }
        let Some(body) = &mut self.body else { return };
        let others: Vec<_> = body.origin_of.keys().copied().filter(|piece| Some(*piece) != current).collect();
        for piece in others {
            body.assembly.discard(piece);
        }
        if let Some(entry) = self.entry(kept) {
            entry.next_attempt = now;
        }
        self.reclaim(now);
    }

    /// Asks again for what came without the overlap that its boundary needs.
    ///
    /// Two connections may end up side by side when a third between them, whose piece had the
    /// overlap, is given up.
    pub(super) fn unstick(&mut self, now: Timestamp) {
        let Some(body) = &mut self.body else { return };
        let frontier = body.assembly.frontier();
        let is_missing = body.assembly.held_from(frontier) == frontier;
        let is_received = body.runs.at(frontier).is_some_and(|run| run.received_to > frontier);
        let boundary = body.assembly.start_for_boundary(frontier);
        let is_coming = self.lanes.values().flat_map(|lane| &lane.fetches).any(|fetch| {
            let begun = fetch.piece.and_then(|piece| body.assembly.start_of(piece));
            begun.is_some_and(|begun| begun <= boundary)
                && fetch.extent.is_some_and(|(_, end)| (fetch.position..end).contains(&frontier))
        });
        if !is_missing || !is_received || is_coming {
            return;
        }
        let useless = body.assembly.without_overlap();
        if useless.is_empty() {
            return;
        }
        for piece in useless {
            body.assembly.discard(piece);
        }
        self.reclaim(now);
    }

    /// Bytes that only another version brought are wanted again; responses in progress keep what
    /// they bring.
    fn reclaim(&mut self, now: Timestamp) {
        let Some(body) = &mut self.body else { return };
        body.free_what_is_missing();
        let frontier = body.assembly.frontier();
        for (&id, lane) in &self.lanes {
            for fetch in &lane.fetches {
                let is_kept = fetch.piece.is_some_and(|piece| body.assembly.start_of(piece).is_some());
                let Some((_, end)) = fetch.extent.filter(|_| is_kept) else { continue };
                let (from, end) = (fetch.position.max(frontier), end.min(body.end));
                if from < end && body.runs.at(from).is_some_and(|run| run.owner.is_none() && end <= run.limit)
                {
                    body.runs.assign(from, end, Some(id));
                    body.runs.note_asked(from, id, end);
                }
            }
        }
        self.check_exhausted(now);
    }

    /// A connection is gone; what it owed is free again.
    pub(super) fn lose_lane(&mut self, id: LaneId, cause: LossCause, now: Timestamp) {
        let Some(lane) = self.lanes.get(&id) else { return };
        let path = lane.path;
        let brought = lane.brought;
        // Closed between two responses although more were asked for: the peer does not pipeline.
        let dropped_pipelined = cause == LossCause::Closed
            && lane.responses_completed > 0
            && lane.fetches.front().is_some_and(|fetch| !fetch.head_seen);
        self.disown(id);
        self.close_lane(id);
        self.events.push_back(Event::LaneLost { path, cause });
        let Some(entry) = self.entry(path) else { return };
        entry.pipelining &= !dropped_pipelined;
        if brought >= tuning::LEAST_BLOCK {
            entry.next_attempt = now;
        } else if brought > 0 {
            entry.next_attempt = now + tuning::FIRST_RETRY;
        } else {
            entry.failures = entry.failures.saturating_add(1);
            let doublings = entry.failures.saturating_sub(1).min(8);
            let wait = (tuning::FIRST_RETRY * 2u32.pow(doublings)).min(tuning::LONGEST_RETRY);
            entry.next_attempt = now + wait;
        }
        self.check_exhausted(now);
    }

    fn disown(&mut self, id: LaneId) {
        if let Some(body) = &mut self.body {
            body.runs.disown(id);
        }
    }

    pub(super) fn close_lane(&mut self, id: LaneId) {
        if let Some(lane) = self.lanes.remove(&id) {
            if let Some(entry) = self.entry(lane.path) {
                entry.last_rate = lane.last_rate().or(entry.last_rate);
            }
            self.actions.push_back(Action::Close { lane: id });
            self.retire_pieces();
        }
    }

    /// Fails the download when no path can bring the rest.
    fn check_exhausted(&mut self, now: Timestamp) {
        let hopeless = self.lanes.is_empty()
            && self.paths.iter().all(|entry| match entry.excluded {
                None => false,
                Some(Exclusion::NoRanges) => entry.failures >= tuning::MOST_FAILURES,
                Some(_) => true,
            });
        let changed =
            self.paths.iter().any(|e| e.excluded == Some(Exclusion::Different)) && self.body.is_some();
        // Nothing was ever had from this server: repeating the attempt for long helps nobody.
        let unreachable = self.body.is_none()
            && self.lanes.is_empty()
            && self.paths.iter().all(|entry| match entry.excluded {
                None | Some(Exclusion::NoRanges) => entry.failures >= tuning::OPENING_ATTEMPTS,
                Some(_) => true,
            });
        if hopeless || unreachable {
            self.fail(if changed { Failure::Changed } else { Failure::AllPathsFailed });
        } else if self.patience().is_some_and(|patience| now - self.last_progress > patience) {
            self.fail(Failure::AllPathsFailed);
        }
    }

    /// Time without progress after which the download fails; `None` where the client decides.
    fn patience(&self) -> Option<Duration> {
        // A server that holds the first request may take its time, as one does for a long poll.
        let is_held = self.body.is_none() && self.lanes.values().any(|lane| lane.state == LaneState::Open);
        match self.config.opening {
            _ if !is_held => Some(tuning::GIVE_UP_AFTER),
            Opening::AsClient => None,
            Opening::Range { .. } => Some(tuning::FIRST_ANSWER_PATIENCE),
        }
    }

    /// Closes what did not connect in time or fell silent, and repeats a first request that waits.
    pub(super) fn expire(&mut self, now: Timestamp) {
        let mut lost = Vec::new();
        for (&id, lane) in &self.lanes {
            match lane.state {
                LaneState::Connecting if now - lane.opened_at >= tuning::CONNECT_TIMEOUT => {
                    lost.push((id, LossCause::ConnectTimeout));
                }
                LaneState::Open
                    if self.body.is_some()
                        && !self.is_blocked(id)
                        && lane.silence(now) >= lane.dead_after() + self.think_time =>
                {
                    lost.push((id, LossCause::Silent));
                }
                _ => {}
            }
        }
        for (id, cause) in lost {
            self.lose_lane(id, cause, now);
        }
        self.check_exhausted(now);
        if self.body.is_none() && !self.over {
            self.repeat_opening(now);
        }
    }

    fn repeat_opening(&mut self, now: Timestamp) {
        let beside = self.lanes.values().filter(|lane| lane.state == LaneState::Open).map(Lane::rtt).min();
        let waiting = self.lanes.values().filter(|lane| lane.is_opening()).all(|lane| match lane.state {
            LaneState::Connecting => {
                let (round_trip, least) = match beside {
                    Some(beside) => (lane.known_rtt().unwrap_or(beside), tuning::OPENING_CONNECT_BESIDE),
                    None => (lane.rtt(), tuning::OPENING_CONNECT_LEAST),
                };
                let patience = (round_trip * tuning::OPENING_CONNECT_RTTS).max(least);
                now - lane.opened_at >= patience
            }
            LaneState::Open => match lane.is_acknowledged {
                // The server has the request and may think, or hold it as for a long poll.
                Some(true) => false,
                Some(false) => lane.silence(now) >= tuning::OPENING_UNACKNOWLEDGED_WAIT,
                None => lane.silence(now) >= tuning::OPENING_UNKNOWN_WAIT,
            },
        });
        if waiting {
            self.open_next(now);
        }
    }

    pub(super) fn window_of_memory(&self) -> u64 {
        (self.config.memory_bytes as f64 * tuning::WINDOW_OF_MEMORY) as u64
    }
}
