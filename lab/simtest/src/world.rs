//! Paths, connections and servers on virtual time, around one [`Download`].

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::time::Duration;

use bytes::Bytes;
use multiway_core::mphttp::download::{
    Action, Ask, Download, DownloadConfig, Event, LaneId, Opening, OpeningHead, PartHead, PathOffer,
};
use multiway_core::paths::PathId;
use multiway_core::units::{Rate, Timestamp};

use crate::chance::Chance;
use crate::connection::{Arrived, Connection, RECEIVE_BUFFER, Response, Status};
use crate::object;
use crate::outcome::Outcome;
use crate::path::{Conduct, SimPath};

/// A retransmission timeout, as Linux' least.
const RETRANSMISSION_TIMEOUT: Duration = Duration::from_millis(200);
/// The timeout of a lost SYN (RFC 6298 section 2.1).
const SYN_TIMEOUT: Duration = Duration::from_secs(1);
/// Happenings that even the smallest object may take: ten minutes' looks at the clock and more.
const LEAST_HAPPENINGS: u64 = 60_000;
/// What even the smallest buffer before a bottleneck holds.
const LEAST_QUEUE: u64 = 32 << 10;
/// Bytes of headers on each segment.
const HEADERS: u64 = 52;

/// How the application reads.
#[derive(Debug, Clone, Copy)]
pub enum Reader {
    /// Takes everything at once.
    Greedy,
    /// Takes at most this rate.
    AtRate(Rate),
    /// Takes everything until this many bytes, then nothing for a while.
    Pauses {
        /// Bytes before the pause.
        after: u64,
        /// Its length.
        pause: Duration,
    },
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Happening {
    Established(u32),
    ConnectionRefused(u32),
    RequestArrives(u32, usize),
    SegmentArrives(u32, usize),
    AckArrives(u32, u64),
    Forgotten(u32),
    PathGoes(usize),
    PathComes(usize),
    Tick,
}

/// A download in a modelled world.
#[derive(Debug)]
pub struct World {
    paths: Vec<SimPath>,
    size: u64,
    begin: u64,
    download: Download,
    connections: BTreeMap<u32, Connection>,
    asks: Vec<Ask>,
    parcels: Vec<Option<Arrived>>,
    agenda: BinaryHeap<Reverse<(Timestamp, u64, Happening)>>,
    order: u64,
    happenings: u64,
    link_free: Vec<Timestamp>,
    chance: Chance,
    reader: Reader,
    opening_done: bool,
    now: Timestamp,
    outcome: Outcome,
    versions: Vec<(u8, Bytes)>,
    last_delivery: Option<Timestamp>,
}

impl World {
    /// An object of `size` bytes behind `paths`, the preferred first.
    pub fn new(paths: Vec<SimPath>, size: u64, config: DownloadConfig, reader: Reader) -> Self {
        let begin = match config.opening {
            Opening::AsClient => 0,
            Opening::Range { begin } => begin,
        };
        let offers: Vec<PathOffer> =
            (0..paths.len()).filter(|&path| paths[path].permitted).map(|path| offer(&paths, path)).collect();
        Self {
            link_free: vec![Timestamp::ZERO; paths.len()],
            outcome: Outcome {
                finished: None,
                ended: Duration::ZERO,
                delivered: 0,
                versions: Vec::new(),
                events: Vec::new(),
                most_held: 0,
                longest_stall: Duration::ZERO,
                carried: vec![0; paths.len()],
                actions: Vec::new(),
                curve: Vec::new(),
            },
            paths,
            size,
            begin,
            download: Download::new(config, offers, Timestamp::ZERO),
            connections: BTreeMap::new(),
            asks: Vec::new(),
            parcels: Vec::new(),
            agenda: BinaryHeap::new(),
            order: 0,
            happenings: 0,
            chance: Chance::new(0),
            reader,
            opening_done: false,
            now: Timestamp::ZERO,
            versions: (0..object::VERSIONS)
                .map(|version| (version, object::version(version, size)))
                .collect(),
            last_delivery: None,
        }
    }

    /// Other losses than in the next run.
    pub fn with_seed(mut self, seed: u64) -> Self {
        self.chance = Chance::new(seed);
        self
    }

    /// Runs until the download is over or `limit` has passed.
    pub fn run(mut self, limit: Duration) -> Outcome {
        self.at(Timestamp::ZERO, Happening::Tick);
        for path in (0..self.paths.len()).filter(|&path| self.paths[path].permitted).collect::<Vec<_>>() {
            for (from, to) in self.paths[path].down.clone() {
                self.at(Timestamp::from_origin(from), Happening::PathGoes(path));
                self.at(Timestamp::from_origin(to), Happening::PathComes(path));
            }
        }
        self.act();
        // A download that never rests is stuck as much as one that waits for ever.
        let most_happenings = LEAST_HAPPENINGS + 8 * self.size / 1000;
        while let Some(Reverse((when, _, happening))) = self.agenda.pop() {
            self.happenings += 1;
            let stuck = when.since_origin() > limit || self.happenings > most_happenings;
            if stuck || self.download.is_over() {
                break;
            }
            self.now = when;
            self.happen(happening);
            self.act();
            self.read();
            self.drain_waiting();
        }
        while let Some(event) = self.download.poll_event() {
            if event == Event::Finished {
                self.outcome.finished = Some(self.now.since_origin());
            }
            self.outcome.events.push(event);
        }
        self.outcome.ended = self.now.since_origin();
        self.outcome.most_held = self.download.most_held_bytes();
        self.outcome.versions = self.versions.iter().map(|(version, _)| *version).collect();
        self.outcome
    }

    fn at(&mut self, when: Timestamp, happening: Happening) {
        self.order += 1;
        self.agenda.push(Reverse((when, self.order, happening)));
    }

    fn act(&mut self) {
        while let Some(action) = self.download.poll_action() {
            self.outcome.actions.push((self.now.since_origin(), action.clone()));
            match action {
                Action::Connect { lane, path } => self.connect(lane.0, path.0 as usize),
                Action::Request { lane, ask } => self.request(lane.0, ask),
                Action::Close { lane } => {
                    if let Some(connection) = self.connections.get_mut(&lane.0) {
                        connection.abandoned = true;
                        let half = self.paths[connection.path].rtt / 2;
                        self.at(self.now + half, Happening::Forgotten(lane.0));
                    }
                }
            }
        }
    }

    fn connect(&mut self, id: u32, path: usize) {
        let spec = &self.paths[path];
        let conduct = spec.conduct_at(self.now);
        self.connections.insert(id, Connection::new(path, conduct));
        let refused = conduct == Conduct::RefusesConnections;
        let (loss, rtt) = (spec.loss_per_mille, spec.rtt);
        let mut attempt = self.passes(path, self.now, SYN_TIMEOUT);
        if self.chance.happens(loss) {
            attempt = self.passes(path, attempt + SYN_TIMEOUT, SYN_TIMEOUT);
        }
        let happening = if refused { Happening::ConnectionRefused(id) } else { Happening::Established(id) };
        self.at(attempt + rtt, happening);
    }

    /// A request made while connecting leaves with the end of the handshake.
    fn request(&mut self, id: u32, ask: Ask) {
        self.asks.push(ask);
        let index = self.asks.len() - 1;
        match self.connections.get_mut(&id) {
            Some(connection) if !connection.established => connection.waiting.push(index),
            _ => self.send_request(id, index),
        }
    }

    fn send_request(&mut self, id: u32, index: usize) {
        let Some(connection) = self.connections.get(&id) else { return };
        let path = connection.path;
        let spec = &self.paths[path];
        let (loss, rtt) = (spec.loss_per_mille, spec.rtt);
        let mut leaves = self.passes(path, self.now, RETRANSMISSION_TIMEOUT);
        if self.chance.happens(loss) {
            leaves = self.passes(path, leaves + RETRANSMISSION_TIMEOUT + rtt, RETRANSMISSION_TIMEOUT);
        }
        let arrives = leaves + rtt / 2;
        let Some(connection) = self.connections.get_mut(&id) else { return };
        connection.request_not_before = connection.request_not_before.max(arrives);
        let arrives = connection.request_not_before;
        self.at(arrives, Happening::RequestArrives(id, index));
    }

    /// When something sent at `at` gets through: now, or a retransmission after the silence.
    fn passes(&self, path: usize, at: Timestamp, timeout: Duration) -> Timestamp {
        self.paths[path].obstacle_end(at).map_or(at, |end| end + timeout)
    }

    fn happen(&mut self, happening: Happening) {
        match happening {
            Happening::Established(id) => {
                let Some(connection) = self.live(id) else { return };
                connection.established = true;
                let waiting = std::mem::take(&mut connection.waiting);
                let rtt = self.paths[self.connections[&id].path].rtt;
                for index in waiting {
                    self.send_request(id, index);
                }
                self.download.handle_connected(LaneId(id), Some(rtt), self.now);
            }
            Happening::ConnectionRefused(id) => {
                if self.live(id).is_some() {
                    self.connections.remove(&id);
                    self.download.handle_closed(LaneId(id), self.now);
                }
            }
            Happening::RequestArrives(id, index) => self.take_request(id, self.asks[index]),
            Happening::SegmentArrives(id, parcel) => {
                let arrived = self.parcels[parcel].take();
                let Some(connection) = self.live(id) else { return };
                connection.unread += arrived.as_ref().map_or(0, Arrived::len);
                connection.arrived.extend(arrived);
                self.drain(id);
            }
            Happening::AckArrives(id, bytes) => {
                if let Some(connection) = self.connections.get_mut(&id) {
                    connection.handle_ack(bytes);
                    self.send(id);
                }
            }
            Happening::Forgotten(id) => {
                self.connections.remove(&id);
            }
            Happening::PathGoes(path) => {
                self.connections.retain(|_, connection| connection.path != path);
                self.download.handle_path_down(PathId(path as u32), self.now);
            }
            Happening::PathComes(path) => {
                self.download.handle_path_up(offer(&self.paths, path), self.now);
            }
            Happening::Tick => {
                self.download.handle_timeout(self.now);
                if let Some(next) = self.download.poll_timeout(self.now) {
                    self.at(next, Happening::Tick);
                }
            }
        }
    }

    /// The connection, unless the client has left it.
    fn live(&mut self, id: u32) -> Option<&mut Connection> {
        self.connections.get_mut(&id).filter(|connection| !connection.abandoned)
    }

    fn take_request(&mut self, id: u32, ask: Ask) {
        let (now, size) = (self.now, self.size);
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let conduct = connection.conduct(self.paths[connection.path].conduct_at(now));
        let busy = !connection.queue.is_empty();
        match conduct {
            _ if connection.ended || connection.deaf => return,
            Conduct::Mute => return,
            Conduct::ForgetsPipelined if busy => {
                connection.deaf = true;
                return;
            }
            Conduct::DropsPipelined if busy => {
                for response in &mut connection.queue {
                    response.close_after();
                }
                return;
            }
            Conduct::ClosesAtOnce => {
                let path = connection.path;
                connection.end();
                self.transmit(id, path, Arrived::Closed);
                return;
            }
            _ => connection.queue.push_back(Response::new(ask, size, conduct)),
        }
        self.send(id);
    }

    /// Lets the server send what its window allows.
    fn send(&mut self, id: u32) {
        while let Some(connection) = self.connections.get_mut(&id)
            && let Some(segment) = connection.next_segment(self.size, self.now)
        {
            let path = connection.path;
            self.transmit(id, path, segment);
        }
        // It thinks about one request after the other.
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let think = self.paths[connection.path].think;
        let Some(next) = connection.queue.front_mut().filter(|next| next.thought.is_none()) else { return };
        let thought = self.now + think;
        next.thought = Some(thought);
        if think.is_zero() {
            self.send(id);
        } else {
            self.at(thought, Happening::AckArrives(id, 0));
        }
    }

    fn transmit(&mut self, id: u32, path: usize, segment: Arrived) {
        let spec = &self.paths[path];
        let bytes = segment.len();
        let start = self.link_free[path].max(self.now);
        let queue = start - self.now;
        let done = start + spec.rate.time_for(bytes + HEADERS);
        self.link_free[path] = done;
        self.outcome.carried[path] += bytes;
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let mut arrival = done + spec.rtt / 2;
        // A drop-tail queue of 1.5 bandwidth-delay products, and never less than an initial window
        // or two.
        let least = spec.rate.time_for(LEAST_QUEUE).max(Duration::from_millis(30));
        let overflow = queue > spec.rtt.mul_f32(1.5).max(least);
        if overflow || self.chance.happens(spec.loss_per_mille) {
            // Fast retransmit, unless too few duplicate acknowledgements can come.
            arrival = arrival + spec.rtt;
            if connection.handle_loss(self.now, spec.rtt + queue) {
                arrival = arrival + RETRANSMISSION_TIMEOUT;
            }
        }
        if let Some(end) = spec.obstacle_end(arrival) {
            arrival = end + RETRANSMISSION_TIMEOUT;
            connection.handle_timeout();
        }
        arrival = arrival.max(connection.not_before);
        connection.not_before = arrival;
        let half = spec.rtt / 2;
        self.parcels.push(Some(segment));
        let parcel = self.parcels.len() - 1;
        self.at(arrival, Happening::SegmentArrives(id, parcel));
        self.at(arrival + half, Happening::AckArrives(id, bytes));
    }

    /// What one connection brought may let others read on.
    fn drain_waiting(&mut self) {
        let waiting = self.connections.iter().filter(|(_, connection)| !connection.arrived.is_empty());
        let waiting: Vec<u32> = waiting.map(|(id, _)| *id).collect();
        for id in waiting {
            self.drain(id);
        }
    }

    /// Hands what arrived to the download as far as its budget allows.
    fn drain(&mut self, id: u32) {
        loop {
            let Some(connection) = self.live(id) else { return };
            let Some(front) = connection.arrived.pop_front() else { return };
            let lane = LaneId(id);
            match front {
                Arrived::Head(response) => {
                    self.note_read(id, Arrived::Head(response.clone()).len());
                    self.take_head(lane, &response);
                }
                Arrived::Closed => {
                    self.connections.remove(&id);
                    self.download.handle_closed(lane, self.now);
                }
                Arrived::Body(mut body) => {
                    let budget = self.download.read_budget(lane);
                    let connection = self.live(id).expect("it was there a moment ago");
                    if budget == 0 {
                        connection.arrived.push_front(Arrived::Body(body));
                        return;
                    }
                    if (body.len() as u64) > budget {
                        connection.arrived.push_front(Arrived::Body(body.split_off(budget as usize)));
                    }
                    self.note_read(id, body.len() as u64);
                    self.download.handle_body(lane, body, self.now);
                }
            }
            self.act();
            self.read();
        }
    }

    /// The application's side took `bytes` from the socket; an update of the window may follow.
    fn note_read(&mut self, id: u32, bytes: u64) {
        let now = self.now;
        let Some(connection) = self.connections.get_mut(&id) else { return };
        connection.unread = connection.unread.saturating_sub(bytes);
        if connection.window_closed && connection.unread < RECEIVE_BUFFER / 2 {
            connection.window_closed = false;
            let half = self.paths[connection.path].rtt / 2;
            self.at(now + half, Happening::AckArrives(id, 0));
        }
    }

    fn take_head(&mut self, lane: LaneId, response: &Response) {
        let reusable = !response.announces_close;
        let opening = !self.opening_done && !matches!(response.ask, Ask::Suffix { .. });
        let fits = match response.ask {
            Ask::Part { start, .. } => response.status == Status::Whole || response.start == start,
            _ => true,
        };
        let opens = matches!(response.status, Status::Part | Status::Whole) && fits;
        if opening && opens {
            self.opening_done = true;
            let head = OpeningHead {
                start: response.start,
                end: response.end,
                region_begin: self.begin,
                region_end: self.size,
                reusable,
            };
            self.download.handle_opening_head(lane, head, self.now);
            return;
        }
        let head = match response.status {
            Status::Part => PartHead::Part { start: response.start, end: response.end, reusable },
            Status::Whole => PartHead::Whole { total: self.size },
            Status::Refused => PartHead::Refused { retry_after: None },
            Status::Different => PartHead::Different,
        };
        self.download.handle_part_head(lane, head, self.now);
    }

    fn read(&mut self) {
        loop {
            let done = self.outcome.delivered;
            let most = match self.reader {
                Reader::Greedy => u64::MAX,
                Reader::AtRate(rate) => rate.bytes_in(self.now.since_origin()).saturating_sub(done),
                Reader::Pauses { after, pause } => {
                    let resumed = self.last_delivery.is_some_and(|last| self.now - last >= pause);
                    if done < after {
                        after - done
                    } else if done > after || resumed {
                        u64::MAX
                    } else {
                        0
                    }
                }
            };
            if most == 0 {
                return;
            }
            let Some(bytes) = self.download.next_bytes(most, self.now) else { return };
            self.deliver(&bytes);
            self.download.handle_consumed(bytes.len() as u64, self.now);
            self.act();
        }
    }

    fn deliver(&mut self, bytes: &[u8]) {
        if let Some(last) = self.last_delivery {
            self.outcome.longest_stall = self.outcome.longest_stall.max(self.now - last);
        }
        self.last_delivery = Some(self.now);
        let at = (self.begin + self.outcome.delivered) as usize;
        self.versions.retain(|(_, object)| object.get(at..at + bytes.len()) == Some(bytes));
        self.outcome.delivered += bytes.len() as u64;
        self.outcome.curve.push((self.now.since_origin(), self.outcome.delivered));
    }
}

fn offer(paths: &[SimPath], path: usize) -> PathOffer {
    PathOffer { path: PathId(path as u32), metered: paths[path].metered, estimate: paths[path].known }
}
