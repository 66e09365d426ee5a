//! Who asks for what next: keeps every connection supplied, and moves work to whoever ends it sooner.

use std::time::Duration;

use super::lane::{Ask, Lane, LaneId, LaneState};
use super::runs::Run;
use super::{Download, Exclusion, LossCause, Preference, tuning};
use crate::mphttp::plan::{PathCost, balanced_take, thrifty_take};
use crate::paths::PathId;
use crate::units::{Rate, Timestamp};

impl Download {
    /// Looks at the whole plan again. Cheap: a few connections, a few runs.
    pub(super) fn replan(&mut self, now: Timestamp) {
        if self.over {
            return;
        }
        self.expire(now);
        if self.body.is_none() || self.over {
            return;
        }
        self.widen_window(now);
        self.unstick(now);
        self.relieve_memory(now);
        self.adopt_gaps(now);
        let lanes: Vec<LaneId> = self.lanes.keys().copied().collect();
        for lane in lanes {
            while self.supply(lane, now) {}
        }
        self.open_paths(now);
        self.cut_surplus(now);
    }

    /// When time alone is a reason to look at the plan: as long as every connection brings bytes,
    /// or waits for the reader, these are the reasons.
    pub(super) fn next_look(&self, now: Timestamp) -> Timestamp {
        let soonest = now + tuning::REPLAN_INTERVAL;
        if self.body.is_none() || self.lanes.is_empty() {
            return soonest;
        }
        let latest = now + tuning::STEADY_REPLAN_INTERVAL;
        let has_choice = self.paths.iter().filter(|entry| entry.excluded.is_none()).nth(1).is_some();
        let looks = self.lanes.iter().map(|(&id, lane)| {
            if self.is_blocked(id) {
                latest
            } else if lane.is_bringing() && !lane.is_late(now) {
                lane.last_activity + lane.late_after()
            } else if lane.is_bringing() && !has_choice {
                lane.last_activity + lane.dead_after() + self.think_time
            } else {
                soonest
            }
        });
        looks.min().unwrap_or(soonest).clamp(soonest, latest)
    }

    /// F7: the buffer holds what all paths bring in `tau`, and never more than the memory allowed.
    fn widen_window(&mut self, now: Timestamp) {
        let sum = self
            .lanes
            .values()
            .filter_map(|lane| lane.rate(now))
            .fold(Rate::ZERO, Rate::saturating_add)
            .bytes_in(tuning::BUFFER_TIME);
        self.window = self.window.max(sum).max(tuning::LEAST_WINDOW).min(self.window_of_memory());
    }

    /// Frees memory when everything held waits for bytes that stand behind it on its connections.
    ///
    /// Bytes asked for twice can fill the memory so that no connection may bring the frontier; what
    /// is furthest away is then forgotten and fetched again later.
    fn relieve_memory(&mut self, now: Timestamp) {
        let Some(body) = &mut self.body else { return };
        let frontier = body.assembly.frontier();
        let starved = body.assembly.held_from(frontier) == frontier;
        let mut asked = self.lanes.iter().filter(|(_, lane)| !lane.fetches.is_empty()).peekable();
        if !starved || asked.peek().is_none() || !asked.all(|(&lane, _)| self.is_blocked(lane)) {
            return;
        }
        let Some(body) = &mut self.body else { return };
        if let Some(furthest) = body.assembly.furthest() {
            body.assembly.discard(furthest);
            body.free_what_is_missing();
        }
        let furthest_lane = self
            .lanes
            .iter()
            .max_by_key(|(_, lane)| lane.fetches.front().map(|f| f.position))
            .map(|(id, _)| *id);
        if let Some(lane) = furthest_lane {
            self.lose_lane(lane, LossCause::Closed, now);
        }
    }

    /// Lets a response that runs on anyway bring what it comes to, where nobody else does or others
    /// would end it later: closing it and asking anew would cost a slow start.
    fn adopt_gaps(&mut self, now: Timestamp) {
        let whole: Vec<LaneId> =
            self.lanes.iter().filter(|(_, lane)| serves_whole(lane)).map(|(id, _)| *id).collect();
        for id in whole {
            while let Some((from, to)) = self.gap_ahead(id, now) {
                let Some(body) = &mut self.body else { return };
                body.runs.assign(from, to, Some(id));
                body.runs.note_asked(from, id, to);
            }
        }
    }

    /// What `id` should bring next with its response in progress, if it is near enough.
    fn gap_ahead(&self, id: LaneId, now: Timestamp) -> Option<(u64, u64)> {
        let (body, lane) = (self.body.as_ref()?, self.lanes.get(&id)?);
        let fetch = lane.fetches.front().filter(|fetch| fetch.head_seen && fetch.piece.is_some())?;
        let (_, end) = fetch.extent?;
        let useful = self.useful_end(lane).max(fetch.position).max(body.assembly.frontier());
        let run = body.runs.iter().find(|run| run.limit > useful && !run.is_done())?;
        let (from, to) = (run.received_to.max(run.start).max(useful), run.limit.min(end));
        if from >= to || lane.is_late(now) {
            return None;
        }
        let is_left = match run.owner.and_then(|owner| self.lanes.get(&owner)) {
            None => from == useful,
            Some(_) if run.owner == Some(id) => false,
            Some(owner) if owner.is_late(now) => from == useful,
            Some(owner) => self.passes_sooner(lane, owner, run, (useful, to), now),
        };
        is_left.then_some((from, to))
    }

    /// Whether `lane`, whose response in progress is about to pass what is wanted of it, ends `run` up
    /// to `to` sooner than its owner by bringing on.
    fn passes_sooner(
        &self,
        lane: &Lane,
        owner: &Lane,
        run: &Run,
        (useful, to): (u64, u64),
        now: Timestamp,
    ) -> bool {
        let Some(position) = lane.fetches.front().map(|fetch| fetch.position) else { return false };
        let from = run.received_to.max(run.start).max(useful);
        let rate = self.believed_rate(lane, None, now);
        let near = rate.bytes_in(lane.rtt()).max(tuning::LEAST_BLOCK);
        let cheap = rate.bytes_in(lane.rtt() * tuning::CUT_ROUNDS).max(tuning::LEAST_CUT);
        if useful - position > near || from - useful > cheap {
            return false;
        }
        let cost =
            self.owner_cost(owner, run, now).time_for(run.limit.min(to).saturating_sub(run.received_to));
        rate.time_for(to - position).saturating_add(tuning::LEAST_GAIN) < cost
    }

    /// Gives `lane` one more request if it wants one; true when it did.
    fn supply(&mut self, id: LaneId, now: Timestamp) -> bool {
        let Some(lane) = self.lanes.get(&id) else { return false };
        if lane.state != LaneState::Open || lane.fetches.len() >= tuning::MOST_PIPELINED {
            return false;
        }
        let pipelining = self.paths.iter().any(|e| e.offer.path == lane.path && e.pipelining);
        let may_queue = lane.reusable && pipelining;
        if !may_queue && !lane.fetches.is_empty() {
            return false;
        }
        if lane.fetches.front().is_some_and(|fetch| fetch.piece.is_none()) {
            return false;
        }
        if self.help_reader(id, now) {
            return true;
        }
        let lane = &self.lanes[&id];
        if lane.outstanding() >= lane.ahead(now) {
            return false;
        }
        self.continue_own_run(id, now) || self.claim_gap(id, now) || self.take_over(id, now)
    }

    /// What the reader needs next is owed by nobody, or by a silent connection: ask for it here.
    fn help_reader(&mut self, id: LaneId, now: Timestamp) -> bool {
        let Some(body) = &self.body else { return false };
        let needed = body.assembly.held_from(body.assembly.frontier());
        if needed >= self.window_end() {
            return false;
        }
        let Some(run) = body.runs.at(needed).copied() else { return false };
        let neglected = match run.owner {
            None => true,
            // Another connection on the same path would only share what is slow.
            Some(owner) if self.lanes.get(&owner).is_some_and(|o| o.path == self.lanes[&id].path) => false,
            // One that may not read on for lack of memory cannot get at what stands behind that.
            Some(owner) if self.is_blocked(owner) => {
                let front = self.lanes.get(&owner).and_then(|lane| lane.fetches.front());
                front.is_none_or(|fetch| fetch.position > needed)
            }
            Some(owner) => self.lanes.get(&owner).is_none_or(|lane| lane.is_late(now)),
        };
        let lane = &self.lanes[&id];
        // What this connection was asked for before it will bring anyway, whoever is responsible now.
        let coming = lane
            .fetches
            .iter()
            .filter(|fetch| fetch.piece.is_some())
            .any(|fetch| fetch.extent.is_some_and(|(_, end)| (fetch.position..end).contains(&needed)));
        if !neglected || coming || lane.is_late(now) {
            return false;
        }
        let end = match run.owner {
            None => self.block_end(id, needed, run.limit, now),
            Some(_) => needed.saturating_add(self.lanes[&id].block(now)).min(run.limit),
        };
        self.reassign(id, needed, end);
        self.ask(id, needed, end, now);
        true
    }

    fn continue_own_run(&mut self, id: LaneId, now: Timestamp) -> bool {
        let window_end = self.window_end();
        let Some(body) = &self.body else { return false };
        let run = body
            .runs
            .iter()
            .find(|run| run.owner == Some(id) && run.asked_to < run.limit && run.asked_to < window_end)
            .copied();
        let Some(run) = run else { return false };
        let window_share = tuning::LEAST_BLOCK.min(self.window / 4);
        if window_end < run.limit && window_end - run.asked_to < window_share {
            // Bytes let in one by one by a slow reader would be asked for one by one.
            return false;
        }
        let end = self.block_end(id, run.asked_to, run.limit.min(window_end), now);
        self.ask(id, run.asked_to, end, now);
        true
    }

    fn claim_gap(&mut self, id: LaneId, now: Timestamp) -> bool {
        let window_end = self.window_end();
        let Some(body) = &mut self.body else { return false };
        loop {
            let gap = body
                .runs
                .iter()
                .find(|run| run.owner.is_none() && !run.is_done() && run.start < window_end)
                .copied();
            let Some(gap) = gap else { return false };
            let from = body.assembly.held_from(gap.received_to.max(gap.start));
            if from > gap.received_to.max(gap.start) {
                body.runs.skip(gap.start, from.min(gap.limit));
                continue;
            }
            if from >= window_end {
                return false;
            }
            body.runs.assign(from, gap.limit, Some(id));
            return self.continue_own_run(id, now);
        }
    }

    /// Takes the end of the part that would finish last, if that ends it sooner.
    fn take_over(&mut self, id: LaneId, now: Timestamp) -> bool {
        // When nothing can be gained where the end is latest, the next to the latest may hold up the
        // reader, or turn out to be the latest.
        let candidates = self.last_to_finish(id, now);
        candidates.into_iter().any(|(run, owner)| self.take_from(id, run, owner, now))
    }

    fn take_from(&mut self, id: LaneId, run: Run, owner: LaneId, now: Timestamp) -> bool {
        let window_end = self.window_end();
        let owner_lane = &self.lanes[&owner];
        let limit = run.limit.min(window_end);
        let left = limit - run.received_to;
        let owner_cost = self.owner_cost(owner_lane, &run, now);
        let taker = self.taker_cost(id, owner_cost.rate, now);
        let serves_whole = serves_whole(owner_lane);
        let mut take = match self.thrift(id, owner, now) {
            Some(tolerance) => thrifty_take(left, owner_cost, taker, tolerance),
            None => balanced_take(left, owner_cost, taker),
        };
        if take > 0 && left - take < tuning::LEAST_TAKE {
            // So little left to the owner spares nothing, and may hold up everything behind it.
            take = left;
        }
        // An owner of whom all is taken need not even have begun.
        let kept = if take < left { owner_cost.time_for(left - take) } else { Duration::ZERO };
        let gain = owner_cost.time_for(left).saturating_sub(kept.max(taker.time_for(take)));
        if take < tuning::LEAST_TAKE.min(left) || take == 0 || gain < tuning::LEAST_GAIN {
            return false;
        }
        if serves_whole && take < left && !owner_lane.is_late(now) {
            // The owner cannot take anything back without a new connection, while the taker can
            // come again: it works its way down from the end, and they meet where they meet.
            take = take.min(self.lanes[&id].block(now));
        }
        let start = limit - take;
        self.reassign(id, start, run.limit);
        let end = self.block_end(id, start, limit, now);
        self.ask(id, start, end, now);
        true
    }

    /// The unfinished runs of other lanes, the one that is predicted to end last first.
    fn last_to_finish(&self, taker: LaneId, now: Timestamp) -> Vec<(Run, LaneId)> {
        let Some(body) = &self.body else { return Vec::new() };
        let window_end = self.window_end();
        let mut unfinished: Vec<(Duration, Run, LaneId)> = body
            .runs
            .iter()
            .filter(|run| run.received_to < run.limit.min(window_end))
            .filter_map(|run| {
                let owner = run.owner.filter(|owner| *owner != taker)?;
                let cost = self.owner_cost(self.lanes.get(&owner)?, run, now);
                Some((cost.time_for(run.limit.min(window_end) - run.received_to), *run, owner))
            })
            .collect();
        unfinished.sort_by_key(|(finish, _, _)| std::cmp::Reverse(*finish));
        unfinished.into_iter().map(|(_, run, owner)| (run, owner)).collect()
    }

    /// What the rest of `run` costs its owner: first it brings what was asked of it before.
    fn owner_cost(&self, owner: &Lane, run: &Run, now: Timestamp) -> PathCost {
        let rate = self.believed_rate(owner, None, now);
        let asked_of_run = run.asked_to.min(run.limit).saturating_sub(run.received_to);
        let before = owner.outstanding().saturating_sub(asked_of_run);
        // What a connection owes past the end of this run does not delay it.
        let past = run.asked_to.saturating_sub(run.limit);
        let queue = rate.time_for(before.saturating_sub(past)).min(tuning::GIVE_UP_AFTER);
        // Once its head is there an answer's first bytes are as good as there.
        let answering = owner.fetches.front().is_some_and(|fetch| fetch.head_seen);
        let answer = match owner.rate(now) {
            _ if answering => Duration::ZERO,
            None => owner.rtt() + owner.think_time(),
            Some(_) => owner.think_time(),
        };
        PathCost { start_up: queue + answer, rate }
    }

    fn taker_cost(&self, id: LaneId, owner_rate: Rate, now: Timestamp) -> PathCost {
        let lane = &self.lanes[&id];
        let rate = self.believed_rate(lane, Some(owner_rate), now);
        let queue = rate.time_for(lane.outstanding()).min(tuning::GIVE_UP_AFTER);
        PathCost { start_up: queue.max(lane.rtt()) + lane.think_time(), rate }
    }

    /// Measured rate, else what history says, else `like`, else a constant.
    fn believed_rate(&self, lane: &Lane, like: Option<Rate>, now: Timestamp) -> Rate {
        let entry = self.paths.iter().find(|entry| entry.offer.path == lane.path);
        let history = || entry.and_then(|entry| entry.last_rate.or(entry.offer.estimate.throughput));
        lane.expected_rate(now)
            .or_else(history)
            .or(like)
            .unwrap_or(Rate::from_bits_per_second(tuning::UNKNOWN_RATE_BITS_PER_SECOND))
    }

    /// What is left of the tolerance when a metered lane would take from an unmetered one; `None`
    /// when shares are simply balanced.
    fn thrift(&self, taker: LaneId, owner: LaneId, now: Timestamp) -> Option<Duration> {
        let Preference::Thrifty { tolerance } = self.config.preference else { return None };
        let metered = |lane: LaneId| {
            let path = self.lanes[&lane].path;
            self.paths.iter().any(|e| e.offer.path == path && e.offer.metered)
        };
        (metered(taker) && !metered(owner) && !self.lanes[&owner].is_late(now))
            .then(|| tolerance.saturating_sub(now - self.started))
    }

    fn block_end(&self, id: LaneId, start: u64, limit: u64, now: Timestamp) -> u64 {
        let lane = &self.lanes[&id];
        let pipelining = self.paths.iter().any(|e| e.offer.path == lane.path && e.pipelining);
        if !pipelining {
            return limit;
        }
        let end = start.saturating_add(lane.block(now)).min(limit);
        if limit - end < tuning::LEAST_BLOCK { limit } else { end }
    }

    /// Makes `id` responsible for `[start, end)` of another's run.
    fn reassign(&mut self, id: LaneId, start: u64, end: u64) {
        if let Some(body) = &mut self.body {
            body.runs.assign(start, end, Some(id));
        }
    }

    /// Requests `[start, end)`, with the overlap before it unless it continues this very connection.
    fn ask(&mut self, id: LaneId, start: u64, end: u64, now: Timestamp) {
        let (Some(body), Some(lane)) = (&mut self.body, self.lanes.get_mut(&id)) else { return };
        let path = lane.path;
        let boundary = body.assembly.start_for_boundary(start);
        // A response may have ended short of this very overlap: going on from there is less to ask
        // for than the overlap again, and makes sure that something new comes.
        let continued = lane.last_asked.filter(|&(piece, asked_end)| {
            let begun = body.assembly.start_of(piece);
            asked_end == start && begun.is_some()
                || (boundary..start).contains(&asked_end) && begun.is_some_and(|begun| begun <= boundary)
        });
        let (piece, from) = continued.unwrap_or_else(|| {
            let piece = body.assembly.open(boundary);
            body.origin_of.insert(piece, path);
            (piece, boundary)
        });
        body.runs.note_asked(start, id, end);
        lane.last_asked = Some((piece, end));
        self.push_request(id, Ask::Part { start: from, end }, now);
        if let Some(fetch) = self.lanes.get_mut(&id).and_then(|lane| lane.fetches.back_mut()) {
            fetch.piece = Some(piece);
        }
    }

    /// Opens connections on paths that would help.
    fn open_paths(&mut self, now: Timestamp) {
        let Some(body) = &self.body else { return };
        let left = body.end - body.assembly.held_from(body.assembly.frontier());
        if left == 0 || self.is_waiting_for_reader() {
            return;
        }
        let last_resort = self.lanes.is_empty()
            && self
                .paths
                .iter()
                .all(|entry| entry.excluded.is_some() || entry.failures >= tuning::FEW_FAILURES);
        let candidates: Vec<PathId> = self
            .paths
            .iter()
            .filter(|entry| {
                // A server without ranges still has the whole object, when nobody else is left.
                entry.excluded.is_none() || (last_resort && entry.excluded == Some(Exclusion::NoRanges))
            })
            .filter(|entry| entry.next_attempt <= now)
            .filter(|entry| entry.last_attempt.is_none_or(|last| now - last >= tuning::LEAST_RECONNECT))
            .filter(|entry| entry.failures < tuning::MOST_FAILURES || self.lanes.is_empty())
            .map(|entry| entry.offer.path)
            .collect();
        for path in candidates {
            let present: Vec<&Lane> = self.lanes.values().filter(|lane| lane.path == path).collect();
            let wanted = match present.as_slice() {
                [] => self.would_help(path, now),
                [only] => self.needs_successor(only, now),
                _ => false,
            };
            if wanted {
                self.connect(path, now);
            }
        }
    }

    fn is_waiting_for_reader(&self) -> bool {
        !self.lanes.is_empty() && self.lanes.keys().all(|&lane| self.is_blocked(lane))
    }

    /// Whether a connection that is not there yet could bring anything before the others are done.
    fn would_help(&self, path: PathId, now: Timestamp) -> bool {
        let working: Vec<(&LaneId, &Lane)> = self
            .lanes
            .iter()
            .filter(|(_, lane)| lane.state == LaneState::Open && !lane.is_late(now))
            .collect();
        if working.is_empty() {
            return true;
        }
        let Some(entry) = self.paths.iter().find(|e| e.offer.path == path) else { return false };
        let Some(body) = &self.body else { return false };
        let left: u64 = body.runs.iter().map(|run| run.left()).sum();
        let sum = working.iter().filter_map(|(_, l)| l.last_rate()).fold(Rate::ZERO, Rate::saturating_add);
        let alone = sum.time_for(left);
        let rtt = entry.offer.estimate.rtt.unwrap_or_else(|| {
            working.iter().map(|(_, lane)| lane.rtt()).min().unwrap_or(tuning::UNKNOWN_RTT)
        });
        // A handshake and a request.
        let start_up = rtt * 2 + self.think_time + tuning::LEAST_GAIN;
        let few = left < tuning::LEAST_SPLIT;
        if alone <= if few { start_up.max(tuning::SMALL_PATIENCE) } else { start_up } {
            return false;
        }
        let spared = working
            .iter()
            .any(|(_, lane)| self.paths.iter().any(|e| e.offer.path == lane.path && !e.offer.metered));
        match self.config.preference {
            Preference::Thrifty { tolerance } if entry.offer.metered && spared => {
                let believed = working.iter().filter(|(_, lane)| !lane.is_ramping(now)).count();
                let history: Rate = working
                    .iter()
                    .map(|(_, lane)| self.believed_rate(lane, None, now))
                    .fold(Rate::ZERO, Rate::saturating_add);
                let expected = if believed > 0 { alone } else { history.time_for(left).min(alone) };
                let known = believed > 0
                    || working.iter().any(|(_, l)| {
                        self.paths
                            .iter()
                            .any(|e| e.offer.path == l.path && e.offer.estimate.throughput.is_some())
                    });
                known && expected > tolerance.saturating_sub(now - self.started)
            }
            _ => true,
        }
    }

    /// Whether the only connection of a path is about to be cut while there is more to do.
    fn needs_successor(&self, lane: &Lane, now: Timestamp) -> bool {
        let Some(fetch) = lane.fetches.front() else { return false };
        let (Some((_, end)), Some(rate)) = (fetch.extent, lane.rate(now)) else { return false };
        let useful = self.useful_end(lane).max(fetch.position).min(end);
        let surplus = end - useful;
        if !is_worth_a_cut(lane, surplus, now) || lane.state != LaneState::Open {
            return false;
        }
        let near = rate.bytes_in(lane.rtt() * tuning::SUCCESSOR_ROUNDS);
        let after = self.body.as_ref().map_or(0, |body| {
            body.runs.iter().filter(|run| run.start >= useful).map(|run| run.left()).sum::<u64>()
        });
        let others = self.lanes.values().filter(|other| other.path != lane.path);
        let others = others.filter_map(|other| other.rate(now)).fold(Rate::ZERO, Rate::saturating_add);
        // The new connection has its own start-up, while the others work on.
        let worth = others.time_for(after) > lane.rtt() * tuning::SUCCESSOR_ROUNDS;
        useful.saturating_sub(fetch.position) <= near && after > near.saturating_mul(4) && worth
    }

    /// End of the part of a lane's response in progress that the lane is still responsible for.
    fn useful_end(&self, lane: &Lane) -> u64 {
        let (Some(body), Some(fetch)) = (&self.body, lane.fetches.front()) else { return 0 };
        let owner = self.lanes.iter().find(|(_, l)| std::ptr::eq(*l, lane)).map(|(id, _)| *id);
        body.runs
            .iter()
            .filter(|run| run.owner.is_some() && run.owner == owner && !run.is_done())
            .filter(|run| fetch.extent.is_some_and(|(_, end)| run.start < end))
            .map(|run| run.limit)
            .max()
            .unwrap_or(fetch.position)
    }

    /// Closes connections whose response runs on past everything wanted of it (F5's reset).
    fn cut_surplus(&mut self, now: Timestamp) {
        let surplus: Vec<LaneId> = self
            .lanes
            .iter()
            .filter(|(_, lane)| {
                let Some(fetch) = lane.fetches.front().filter(|f| f.piece.is_some() && f.head_seen) else {
                    return false;
                };
                let Some((_, end)) = fetch.extent else { return false };
                let useful = self.useful_end(lane);
                // Until the boundary behind it is verified it may yet be what the object ends with.
                let verified = self.body.as_ref().is_some_and(|b| b.assembly.frontier() > fetch.position);
                useful <= fetch.position && verified && is_worth_a_cut(lane, end - fetch.position, now)
            })
            .map(|(id, _)| *id)
            .collect();
        for id in surplus {
            let path = self.lanes[&id].path;
            if let Some(body) = &mut self.body {
                body.runs.disown(id);
            }
            self.close_lane(id);
            if let Some(entry) = self.entry(path) {
                entry.next_attempt = now;
            }
        }
    }
}

/// Whether `surplus` unwanted bytes cost more than a new connection: two round trips and slow start.
/// A block that another lane helped out with never does.
fn is_worth_a_cut(lane: &Lane, surplus: u64, now: Timestamp) -> bool {
    let rate = lane.rate(now).unwrap_or(Rate::ZERO);
    surplus > tuning::LEAST_CUT.max(lane.block(now)).max(rate.bytes_in(lane.rtt() * tuning::CUT_ROUNDS))
}

/// Whether a lane's response in progress is the client's own, which only closing can end.
fn serves_whole(lane: &Lane) -> bool {
    lane.fetches.front().is_some_and(|fetch| fetch.ask == Ask::AsClient)
}
