//! Both sessions, the paths between them, and the programs at their ends.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use bytes::Bytes;
use multiway_core::bond::wire::{
    Frame, FrameReader, Hello, HelloKind, HelloOk, MAX_DATA_FRAME, SessionKey, VERSION,
};
use multiway_core::bond::{Action, Event, Limits, Role, Session, SubflowId};
use multiway_core::mphttp::download::PathOffer;
use multiway_core::paths::PathId;
use multiway_core::units::Timestamp;
use multiway_linksim::{Link, generator};

use super::program::{Over, Program};
use super::reference::Ledger;
use super::scene::{Death, Scene, StreamPlan};
use super::tcp::{HEADER, Packet, Tcp};
use super::watch::Watch;

const DEVICE: usize = 0;
const RELAY: usize = 1;

/// As the engine does it: how often the kernel is asked about a subflow, and detectors look.
const SAMPLING: Duration = Duration::from_millis(100);
const WATCHING: Duration = Duration::from_millis(20);

/// As the engine does it: a handshake is given up, and a silent connection.
const HANDSHAKE: Duration = Duration::from_secs(8);
const SILENCE: Duration = Duration::from_secs(60);

/// As the engine does it: how much may wait unsent in a socket.
const UNSENT_TIME: Duration = Duration::from_millis(20);
const UNSENT_LEAST: u64 = 8 * 1024;
const UNSENT_MOST: u64 = 256 * 1024;

const FIRST_SYN_TIMEOUT: Duration = Duration::from_secs(1);

/// Steps without time passing, after which the sessions are taken to spin.
const MOST_STEPS: u32 = 20_000;

/// What a path carries.
#[derive(Debug, Clone)]
enum Payload {
    Syn(u8),
    SynAck(u8),
    Tcp(Packet),
    Reset,
}

#[derive(Debug, Clone)]
struct Parcel {
    subflow: usize,
    payload: Payload,
}

#[derive(Debug)]
struct PathState {
    id: PathId,
    /// From the device, and to it.
    links: [Link<Parcel>; 2],
}

/// A subflow as the network sees it.
#[derive(Debug)]
struct Connection {
    id: SubflowId,
    path: usize,
    backup: bool,
    syn: Option<Syn>,
    ends: [Option<End>; 2],
    /// Nothing arrives any more.
    is_cut: bool,
    /// When an end hears that it is over.
    tell_at: [Option<Timestamp>; 2],
}

#[derive(Debug)]
struct Syn {
    begun: Timestamp,
    sent_at: Timestamp,
    round: u8,
    tries: u32,
}

/// One end of a connection and the task that carries frames.
#[derive(Debug)]
struct End {
    tcp: Tcp,
    /// Until the far end's first frame came.
    greeting: Option<FrameReader>,
    is_attached: bool,
    is_closing: bool,
    sample_at: Timestamp,
    sent: FrameReader,
    received: FrameReader,
}

impl End {
    fn new(tcp: Tcp, now: Timestamp) -> Self {
        Self {
            tcp,
            greeting: Some(FrameReader::new()),
            is_attached: false,
            is_closing: false,
            sample_at: now + SAMPLING,
            sent: FrameReader::new(),
            received: FrameReader::new(),
        }
    }

    fn most_unsent(&self) -> u64 {
        let sample = self.tcp.subflow_sample();
        let by_window = match sample.smoothed_rtt {
            Duration::ZERO => 0,
            rtt => (sample.congestion_window as f64 / rtt.as_secs_f64()) as u64,
        };
        let rate = sample.delivery_rate.bytes_per_second().max(by_window);
        ((rate as f64 * UNSENT_TIME.as_secs_f64()) as u64).clamp(UNSENT_LEAST, UNSENT_MOST)
    }
}

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
        for (name, end) in [("device", DEVICE), ("relay", RELAY)] {
            let session = &self.sessions[end];
            if session.streams() > 0 {
                return false;
            }
            let held = session.held_bytes();
            if held > 0 {
                self.fault(format!("the {name} holds {held} bytes without a stream"));
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
        let connections = self.connections.iter().flat_map(|connection| {
            let syn = connection.syn.as_ref().map(|syn| {
                let again = syn.sent_at + FIRST_SYN_TIMEOUT * 2u32.pow(syn.tries);
                again.min(syn.begun + HANDSHAKE)
            });
            let tcps = connection.ends.iter().flatten().flat_map(|end| {
                let silent = end.tcp.stalled_since().map(|since| since + SILENCE);
                end.tcp.poll_timeout().into_iter().chain(silent)
            });
            let samples = connection.ends.iter().flatten();
            let samples = samples.filter(|end| end.is_attached).map(|end| end.sample_at);
            let told = connection.tell_at.iter().flatten().copied();
            syn.into_iter().chain(tcps).chain(told).chain(samples)
        });
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
                    let end = connection.ends[DEVICE].as_ref().filter(|end| end.is_attached)?;
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

    fn send(&mut self, subflow: usize, end: usize, payload: Payload) {
        let path = self.connections[subflow].path;
        let size = match &payload {
            Payload::Tcp(packet) => packet.size(),
            _ => HEADER,
        };
        self.outcome.carried[path][end] += size;
        self.paths[path].links[end].handle_packet(self.now, size, Parcel { subflow, payload });
    }

    /// A parcel arrives at `end`.
    fn deliver(&mut self, end: usize, Parcel { subflow, payload }: Parcel) {
        if self.connections[subflow].is_cut {
            return;
        }
        let rounds = self.scene.handshake_rounds;
        let connection = &mut self.connections[subflow];
        match payload {
            Payload::Syn(round) => {
                if round == rounds && connection.ends[RELAY].is_none() && connection.tell_at[RELAY].is_none()
                {
                    connection.ends[RELAY] = Some(End::new(Tcp::new(None, self.now), self.now));
                }
                self.send(subflow, RELAY, Payload::SynAck(round));
            }
            Payload::SynAck(round) => {
                let Some(syn) = connection.syn.as_mut().filter(|syn| syn.round == round) else { return };
                if round < rounds {
                    *syn = Syn { round: round + 1, sent_at: self.now, tries: 0, begun: syn.begun };
                    self.send(subflow, DEVICE, Payload::Syn(round + 1));
                    return;
                }
                let rtt = (syn.tries == 0).then(|| self.now - syn.sent_at);
                connection.syn = None;
                let mut device = End::new(Tcp::new(rtt, self.now), self.now);
                let hello = Hello {
                    version: VERSION,
                    key: SessionKey([7; 16]),
                    subflow: connection.id,
                    path: connection.path as u32 + 1,
                    backup: connection.backup,
                    kind: HelloKind::Join,
                };
                device.tcp.write(&Frame::Hello(hello).to_bytes(), self.now);
                device.is_attached = true;
                connection.ends[DEVICE] = Some(device);
                let (id, path, backup) = (connection.id, self.paths[connection.path].id, connection.backup);
                self.sessions[DEVICE].handle_subflow_up(id, path, backup, self.now);
                let sample = self.connections[subflow].ends[DEVICE].as_ref();
                let sample = sample.map(|end| end.tcp.subflow_sample()).unwrap_or_default();
                self.sessions[DEVICE].handle_sample(id, &sample, self.now);
            }
            Payload::Reset => self.lose(subflow, end),
            Payload::Tcp(packet) => {
                let Some(receiver) = &mut connection.ends[end] else { return };
                receiver.tcp.handle_packet(packet, self.now);
                self.receive(subflow, end);
            }
        }
    }

    /// Takes in what arrived in order at an end.
    fn receive(&mut self, subflow: usize, end: usize) {
        let Some(port) = &mut self.connections[subflow].ends[end] else { return };
        let mut bytes = port.tcp.read();
        let delivered = port.tcp.delivered();
        let is_death =
            |death: &Death| death.subflow == subflow && death.end == end && death.after <= delivered;
        let death = self.deaths.iter().position(is_death).map(|at| self.deaths.swap_remove(at));
        if let Some(death) = death {
            let beyond = (delivered - death.after).min(bytes.len() as u64) as usize;
            bytes.truncate(bytes.len() - beyond);
        }
        while !bytes.is_empty() && self.outcome.faults.is_empty() {
            let piece = bytes.split_to(self.scene.piece.min(bytes.len()));
            self.take_in(subflow, end, piece);
        }
        if let Some(death) = death {
            self.connections[subflow].is_cut = true;
            self.connections[subflow].tell_at[1 - end] = death.other.map(|later| self.now + later);
            self.lose(subflow, end);
            return;
        }
        let is_closed =
            self.connections[subflow].ends[end].as_ref().is_some_and(|port| port.tcp.is_far_closed());
        if is_closed {
            self.lose(subflow, end);
        }
    }

    fn take_in(&mut self, subflow: usize, end: usize, bytes: Bytes) {
        let connection = &mut self.connections[subflow];
        let (id, path, backup) = (connection.id, self.paths[connection.path].id, connection.backup);
        let Some(port) = &mut connection.ends[end] else { return };
        if port.is_closing {
            return;
        }
        let mut bytes = bytes;
        if let Some(mut greeting) = port.greeting.take() {
            greeting.handle_bytes(bytes);
            match greeting.next_frame() {
                Ok(None) => {
                    port.greeting = Some(greeting);
                    return;
                }
                Ok(Some(Frame::Hello(_)))
                    if self.sessions[RELAY].subflows().len() >= Limits::MOST_SUBFLOWS =>
                {
                    self.lose(subflow, RELAY);
                    return self.send(subflow, RELAY, Payload::Reset);
                }
                Ok(Some(Frame::Hello(hello))) if end == RELAY && hello.subflow == id => {
                    port.is_attached = true;
                    let hello_ok = HelloOk {
                        version: VERSION,
                        max_streams: 1024,
                        max_subflows: 16,
                        linger_seconds: 60,
                        join_address: String::new(),
                    };
                    port.tcp.write(&Frame::HelloOk(hello_ok).to_bytes(), self.now);
                    self.sessions[RELAY].handle_subflow_up(id, path, backup, self.now);
                }
                Ok(Some(Frame::HelloOk(_))) if end == DEVICE => {}
                other => return self.fault(format!("{id} begins with {other:?}")),
            }
            bytes = greeting.into_rest();
        }
        let Some(port) = &mut self.connections[subflow].ends[end] else { return };
        self.ledgers[end].handle_received(&mut port.received, bytes.clone());
        if let Err(violation) = self.sessions[end].handle_received(id, bytes, self.now) {
            self.fault(format!("end {end} finds on {id}: {violation}"));
        }
        self.pump_events();
        // What it closed brings nothing more, even if it came at the same time.
        self.pump_actions();
    }

    /// An end's connection is over.
    fn lose(&mut self, subflow: usize, end: usize) {
        let connection = &mut self.connections[subflow];
        connection.tell_at[end] = None;
        connection.syn = if end == DEVICE { None } else { connection.syn.take() };
        let gone = connection.ends[end].take();
        if end == RELAY {
            // A late copy of the handshake begins nothing.
            connection.is_cut |= gone.is_some();
        }
        let is_known = gone.is_none_or(|gone| gone.is_attached || end == DEVICE);
        if is_known {
            self.sessions[end].handle_subflow_down(connection.id, self.now);
        }
    }

    /// What time brings to a connection.
    fn tend(&mut self, subflow: usize) {
        let now = self.now;
        let connection = &mut self.connections[subflow];
        if let Some(syn) = &mut connection.syn {
            if now - syn.begun >= HANDSHAKE {
                self.lose(subflow, DEVICE);
                return;
            }
            if now - syn.sent_at >= FIRST_SYN_TIMEOUT * 2u32.pow(syn.tries) {
                syn.tries += 1;
                syn.sent_at = now;
                let round = syn.round;
                self.send(subflow, DEVICE, Payload::Syn(round));
            }
        }
        for end in [DEVICE, RELAY] {
            let connection = &mut self.connections[subflow];
            if connection.tell_at[end].is_some_and(|at| at <= now) {
                self.lose(subflow, end);
                continue;
            }
            let Some(port) = &mut connection.ends[end] else { continue };
            if port.tcp.stalled_since().is_some_and(|since| now - since >= SILENCE) {
                self.lose(subflow, end);
                continue;
            }
            port.tcp.handle_timeout(now);
            if port.is_attached && port.sample_at <= now {
                port.sample_at = now + SAMPLING;
                let sample = port.tcp.subflow_sample();
                self.sessions[end].handle_sample(connection.id, &sample, now);
            }
            let is_done = port.is_closing && port.tcp.is_done();
            if is_done {
                connection.ends[end] = None;
            }
        }
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

    fn pump_events(&mut self) {
        for end in [DEVICE, RELAY] {
            while let Some(event) = self.sessions[end].poll_event() {
                self.dirty = true;
                let stream = match &event {
                    Event::StreamOpening { stream, .. }
                    | Event::StreamOpened { stream, .. }
                    | Event::Readable { stream }
                    | Event::Writable { stream }
                    | Event::StreamClosed { stream }
                    | Event::StreamReset { stream, .. } => *stream,
                    _ => {
                        if end == DEVICE {
                            self.outcome.events.push((self.now.since_origin(), event));
                        }
                        continue;
                    }
                };
                let Some(index) = self.by_stream.get(&stream.0).copied() else {
                    return self.fault(format!("end {end} tells of {stream}, which nobody opened"));
                };
                if let Err(what) = self.programs[index].handle_event(end, &event, self.now) {
                    self.fault(format!("{stream} at end {end} {what} ({event:?})"));
                }
            }
        }
    }

    fn pump_actions(&mut self) {
        while let Some(action) = self.sessions[DEVICE].poll_action() {
            self.dirty = true;
            match action {
                Action::OpenSubflow { id, path, backup, .. } => {
                    let Some(path) = self.paths.iter().position(|known| known.id == path) else {
                        return self.fault(format!("opens {id} over {path:?}"));
                    };
                    if !self.offered[path] {
                        return self.fault(format!("opens {id} over a path that is not there"));
                    }
                    let subflow = self.connections.len();
                    self.outcome.opened[path] += 1;
                    let syn = Syn { begun: self.now, sent_at: self.now, round: 1, tries: 0 };
                    self.connections.push(Connection {
                        id,
                        path,
                        backup,
                        syn: Some(syn),
                        ends: [None, None],
                        is_cut: false,
                        tell_at: [None, None],
                    });
                    if self.by_id.insert(id, subflow).is_some() {
                        return self.fault(format!("{id} is opened twice"));
                    }
                    self.send(subflow, DEVICE, Payload::Syn(1));
                }
                Action::CloseSubflow { id, .. } => {
                    let Some(subflow) = self.by_id.get(&id).copied() else {
                        return self.fault(format!("closes {id}, which it never opened"));
                    };
                    let connection = &mut self.connections[subflow];
                    connection.syn = None;
                    match &mut connection.ends[DEVICE] {
                        Some(port) => {
                            port.is_closing = true;
                            let close = Frame::Close { code: 0, text: String::new() };
                            port.tcp.write(&close.to_bytes(), self.now);
                            port.tcp.close(self.now);
                        }
                        None => self.send(subflow, DEVICE, Payload::Reset),
                    }
                }
            }
        }
        while let Some(action) = self.sessions[RELAY].poll_action() {
            self.dirty = true;
            let Action::CloseSubflow { id, .. } = action else {
                return self.fault(format!("the relay wants {action:?}"));
            };
            if let Some(subflow) = self.by_id.get(&id).copied() {
                self.lose(subflow, RELAY);
            }
        }
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

    /// Asks sessions for what subflows may send, and puts packets on the links.
    fn pump_subflows(&mut self) {
        for subflow in 0..self.connections.len() {
            for end in [DEVICE, RELAY] {
                let connection = &mut self.connections[subflow];
                let id = connection.id;
                let Some(port) = &mut connection.ends[end] else { continue };
                let most = port.most_unsent();
                while port.is_attached && !port.is_closing && port.tcp.unsent() < most {
                    let Some(bytes) = self.sessions[end].poll_transmit(id, MAX_DATA_FRAME, self.now) else {
                        break;
                    };
                    self.dirty = true;
                    let checked = self.ledgers[end].handle_sent(&mut port.sent, bytes.clone());
                    port.tcp.write(&bytes, self.now);
                    if let Err(what) = checked {
                        return self.fault(format!("end {end} on {id} {what}"));
                    }
                }
                while let Some(port) = &mut self.connections[subflow].ends[end]
                    && let Some(packet) = port.tcp.poll_packet()
                {
                    self.send(subflow, end, Payload::Tcp(packet));
                }
            }
        }
    }

    fn check_memory(&mut self) {
        let limits = self.scene.config.limits;
        // Window and buffers never shrink below what the protocol begins with.
        let most = limits.receive_in_all.max(256 << 10) + limits.send_in_all;
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
