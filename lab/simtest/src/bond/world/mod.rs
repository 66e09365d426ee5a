//! Both sessions, the paths between them, and the programs at their ends.
//!
//! - `network`: subflows as the network sees them.
//! - `engine`: what the engine does for the sessions.

mod engine;
mod network;

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use multiway_core::bond::{Event, Limits, Role, Session, SubflowId};
use multiway_core::mphttp::download::PathOffer;
use multiway_core::paths::PathId;
use multiway_core::units::Timestamp;
use multiway_linksim::{Link, generator};

use self::network::{Connection, PathState};
use super::program::{Over, Program};
use super::reference::Ledger;
use super::scene::{Death, Scene, StreamPlan};
use super::watch::Watch;

const DEVICE: usize = 0;
const RELAY: usize = 1;

/// As the engine does it: how often detectors look.
const WATCHING: Duration = Duration::from_millis(20);

/// Steps without time passing, after which the sessions are taken to spin.
const MOST_STEPS: u32 = 20_000;

/// What came of a run.
#[derive(Debug, Clone, Default)]
pub struct Outcome {
    /// What must not be; the run ends at the first.
    pub faults: Vec<String>,
    /// How each stream ended at the device and at the relay, and when both were done.
    pub streams: Vec<([Option<Over>; 2], Option<Duration>)>,
    /// Bytes that each path's links were given, from the device and to it.
    pub carried: Vec<[u64; 2]>,
    /// Events of the device, without those of single streams.
    pub events: Vec<(Duration, Event)>,
    /// What the device had read of all streams, and when, at each change.
    pub progress: Vec<(Duration, u64)>,
    /// Longest time in which the device read nothing of a stream that was not over, after its first byte.
    pub longest_stall: Duration,
    /// Subflows that were opened, by path.
    pub opened: Vec<usize>,
    /// When the run ended.
    pub ended: Duration,
}

/// See the module.
#[derive(Debug)]
pub struct World {
    now: Timestamp,
    scene: Scene,
    paths: Vec<PathState>,
    sessions: [Session; 2],
    ledgers: [Ledger; 2],
    connections: Vec<Connection>,
    by_id: BTreeMap<SubflowId, usize>,
    programs: Vec<Program>,
    by_stream: BTreeMap<u64, usize>,
    watch: Watch,
    watch_at: Timestamp,
    deaths: Vec<Death>,
    /// When the set of paths changes.
    changes: VecDeque<Timestamp>,
    offered: Vec<bool>,
    last_read: (u64, Timestamp),
    outcome: Outcome,
    /// Something happened at this time.
    dirty: bool,
}

impl World {
    /// A world before anything happened.
    pub fn new(scene: Scene) -> Self {
        let now = Timestamp::ZERO;
        let paths = scene.paths.iter().enumerate();
        let paths = paths.map(|(index, path)| PathState {
            id: PathId(index as u32 + 1),
            links: [
                Link::new(path.spec.up.clone(), generator(scene.seed, &format!("{index} up"))),
                Link::new(path.spec.down.clone(), generator(scene.seed, &format!("{index} down"))),
            ],
        });
        let paths: Vec<PathState> = paths.collect();
        let mut changes: Vec<Timestamp> = scene
            .paths
            .iter()
            .flat_map(|path| path.absent.iter().flat_map(|(from, to)| [now + *from, now + *to]))
            .collect();
        changes.push(now);
        changes.sort();
        // A relay may know a subflow for longer than the device does.
        let mut relay_config = scene.config.clone();
        relay_config.limits.subflows = Limits::MOST_SUBFLOWS;
        Self {
            now,
            sessions: [
                Session::new(Role::Device, scene.config.clone(), now),
                Session::new(Role::Relay, relay_config, now),
            ],
            ledgers: [Ledger::new(), Ledger::new()],
            connections: Vec::new(),
            by_id: BTreeMap::new(),
            programs: scene.streams.iter().cloned().map(Program::new).collect(),
            by_stream: BTreeMap::new(),
            watch: Watch::new(scene.detector, scene.oracle),
            watch_at: now,
            deaths: scene.deaths.clone(),
            changes: changes.into(),
            offered: vec![false; paths.len()],
            last_read: (0, now),
            outcome: Outcome {
                carried: vec![[0; 2]; paths.len()],
                opened: vec![0; paths.len()],
                ..Outcome::default()
            },
            dirty: true,
            paths,
            scene,
        }
    }

    /// Runs until every stream is over, something is wrong, or `limit` has passed.
    pub fn run(mut self, limit: Duration) -> Outcome {
        let end = Timestamp::ZERO + limit;
        let mut steps = 0;
        while self.outcome.faults.is_empty() {
            self.settle();
            if self.programs.iter().all(Program::is_over) {
                if self.is_last_word_said() {
                    break;
                }
                self.ask_once_more();
            }
            let Some(next) = self.next_time() else {
                let state = self.describe();
                self.fault(format!("nothing is due:\n{state}"));
                break;
            };
            let next = next.max(self.now);
            if next > end {
                self.now = end;
                break;
            }
            steps = if next == self.now { steps + 1 } else { 0 };
            if steps > MOST_STEPS {
                let timers = self.sessions.each_ref().map(Session::poll_timeout);
                self.fault(format!("spins; timers {timers:?}"));
                break;
            }
            self.now = next;
            self.advance();
        }
        self.outcome.ended = self.now.since_origin();
        let origin = Timestamp::ZERO;
        self.outcome.streams =
            self.programs.iter().map(|p| (p.over(), p.ended_at.map(|at| at - origin))).collect();
        let is_over = self.programs.iter().all(Program::is_over) && self.is_last_word_said();
        if !is_over && self.outcome.faults.is_empty() {
            let state = self.describe();
            self.fault(format!("not over in time:\n{state}"));
        }
        self.outcome
    }

    fn fault(&mut self, what: String) {
        self.outcome.faults.push(format!("{:?}: {what}", self.now.since_origin()));
    }

    fn describe(&self) -> String {
        let programs = self.programs.iter().filter(|program| !program.is_over()).map(Program::describe);
        let ends = ["device", "relay"];
        let sessions = ends.iter().zip(&self.sessions).map(|(name, session)| {
            format!("{name}: {} streams, {:?}", session.streams(), session.subflows())
        });
        let lines: Vec<String> = programs.chain(sessions).collect();
        format!("{}\nactive {:?}", lines.join("\n"), self.sessions[DEVICE].active_path())
    }

    /// Whether nothing is left of any stream at either end.
    fn is_last_word_said(&mut self) -> bool {
        if self.sessions.iter().any(|session| session.streams() > 0) {
            return false;
        }
        for (name, end) in [("device", DEVICE), ("relay", RELAY)] {
            let held = self.sessions[end].held_bytes();
            if held > 0 {
                self.fault(format!("the {name} holds {held} bytes without a stream"));
            }
            let [far, own] = [1 - end, end].map(|end| self.sessions[end].window_counts());
            if far.sent != own.received || own.received != own.read || own.promised > 0 {
                self.fault(format!("the window to the {name} is not free: {far:?} sent, {own:?} came"));
            }
        }
        true
    }

    /// One end does not know yet that a stream is over. Without subflows nobody can tell it, nor need
    /// that be; one more stream, undisturbed, brings the news.
    fn ask_once_more(&mut self) {
        let links = self.scene.paths.iter().flat_map(|path| [&path.spec.up, &path.spec.down]);
        let trouble = links.flat_map(|link| link.schedule.last()).map(|(at, _)| *at).max();
        let is_calm = self.changes.is_empty() && trouble.is_none_or(|at| at <= self.now.since_origin());
        if self.programs.len() > self.scene.streams.len() || !is_calm {
            return;
        }
        self.deaths.clear();
        let opens_at = self.now.since_origin();
        self.programs.push(Program::new(StreamPlan { opens_at, ..StreamPlan::download(1000) }));
    }

    fn next_time(&self) -> Option<Timestamp> {
        let links = self.paths.iter().flat_map(|path| &path.links).filter_map(Link::poll_timeout);
        let sessions = self.sessions.iter().filter_map(Session::poll_timeout);
        let origin = Timestamp::ZERO;
        let programs = self.programs.iter().filter_map(|program| program.poll_timeout(origin));
        let connections = self.connections.iter().flat_map(Connection::timeouts);
        let watch = (self.sessions[DEVICE].streams() > 0).then_some(self.watch_at);
        let all = links.chain(sessions).chain(programs).chain(connections).chain(watch);
        all.chain(self.changes.front().copied()).min()
    }

    /// Does what is due now.
    fn advance(&mut self) {
        self.dirty = true;
        while self.changes.front().is_some_and(|at| *at <= self.now) {
            self.changes.pop_front();
            self.change_paths();
        }
        for path in 0..self.paths.len() {
            for direction in [DEVICE, RELAY] {
                while let Some(parcel) = self.paths[path].links[direction].poll_deliver(self.now) {
                    self.deliver(1 - direction, parcel);
                }
            }
        }
        for index in 0..self.connections.len() {
            self.tend(index);
        }
        for session in &mut self.sessions {
            if session.poll_timeout().is_some_and(|at| at <= self.now) {
                session.handle_timeout(self.now);
            }
        }
        if self.watch_at <= self.now && self.sessions[DEVICE].streams() > 0 {
            self.watch_at = self.now + WATCHING;
            let readings: Vec<_> = self
                .connections
                .iter()
                .filter_map(|connection| {
                    let end = connection.ends[DEVICE].as_ref()?;
                    // As the engine does it.
                    if !end.is_attached || end.is_closing {
                        return None;
                    }
                    let sample = end.tcp.tcp_sample(self.now);
                    Some((connection.id, self.paths[connection.path].id, sample))
                })
                .collect();
            self.watch.look(&mut self.sessions[DEVICE], &readings, self.now);
        }
        self.open_streams();
    }

    fn open_streams(&mut self) {
        for index in 0..self.programs.len() {
            let plan = &self.programs[index].plan;
            if self.programs[index].id.is_some() || Timestamp::ZERO + plan.opens_at > self.now {
                continue;
            }
            let (name, class) = (format!("host{index}.example"), plan.class);
            let destination = multiway_core::bond::wire::Destination {
                host: multiway_core::bond::wire::Host::Name(name),
                port: 443,
            };
            match self.sessions[DEVICE].open_stream(destination, class, self.now) {
                Ok(id) => {
                    self.programs[index].id = Some(id);
                    self.by_stream.insert(id.0, index);
                }
                Err(_) => self.programs[index].plan.opens_at = self.now.since_origin() + WATCHING,
            }
        }
    }

    /// Tells the device which paths there are.
    fn change_paths(&mut self) {
        let since = self.now.since_origin();
        let mut offers = Vec::new();
        for (index, path) in self.scene.paths.iter().enumerate() {
            let is_absent = path.absent.iter().any(|(from, to)| *from <= since && since < *to);
            self.offered[index] = !is_absent;
            if !is_absent {
                let id = self.paths[index].id;
                offers.push(PathOffer { path: id, metered: path.metered, estimate: path.estimate });
            }
        }
        for connection in self.connections.iter_mut().filter(|c| !self.offered[c.path]) {
            connection.is_cut = true;
        }
        self.sessions[DEVICE].handle_paths(&offers, self.now);
    }

    /// Lets everything act until nothing changes at this time.
    fn settle(&mut self) {
        let mut rounds = 0;
        while std::mem::take(&mut self.dirty) && self.outcome.faults.is_empty() {
            rounds += 1;
            if rounds > MOST_STEPS {
                return self.fault("the sessions spin".to_owned());
            }
            self.pump_events();
            self.pump_actions();
            self.step_programs();
            self.pump_subflows();
        }
        self.check_memory();
        self.note_stall();
    }

    fn step_programs(&mut self) {
        for index in 0..self.programs.len() {
            let [device, relay] = &mut self.sessions;
            let was_over = self.programs[index].is_over();
            match self.programs[index].step([device, relay], self.now) {
                Ok(moved) => self.dirty |= moved,
                Err(what) => self.fault(format!("stream {index} {what}")),
            }
            // Events of one step are told before the next program's.
            self.pump_events();
            if !was_over && self.programs[index].is_over() {
                self.programs[index].ended_at = Some(self.now);
            }
        }
    }

    fn check_memory(&mut self) {
        let limits = self.scene.config.limits;
        let most = limits.most_received() + limits.most_sent();
        for end in [DEVICE, RELAY] {
            let held = self.sessions[end].held_bytes();
            if held > most {
                self.fault(format!("end {end} holds {held} bytes of {most}"));
            }
        }
    }

    fn note_stall(&mut self) {
        let read: u64 = self.programs.iter().map(|program| program.read(DEVICE)).sum();
        if read != self.last_read.0 {
            if self.last_read.0 > 0 {
                self.outcome.longest_stall = self.outcome.longest_stall.max(self.now - self.last_read.1);
            }
            self.last_read = (read, self.now);
            self.outcome.progress.push((self.now.since_origin(), read));
        }
    }
}
