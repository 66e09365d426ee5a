mod hostile;

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;

use super::*;
use crate::bond::action::{CloseReason, OpenReason, Read, Suspicion, Violation};
use crate::bond::wire::{Data, Frame, Host, Mark};
use crate::mphttp::download::PathOffer;
use crate::paths::PathEstimate;

const WIFI: PathId = PathId(1);
const CELLULAR: PathId = PathId(2);

/// A device and a relay whose subflows deliver after 5 ms, as long as their path is not cut.
struct Pair {
    device: Session,
    relay: Session,
    now: Timestamp,
    cut: Vec<PathId>,
    /// Subflows whose kernels wait before they send again, whether or not their path works.
    stuck: Vec<SubflowId>,
    /// What those were given, for which end.
    held: Vec<(bool, SubflowId, Bytes)>,
    up: Vec<(SubflowId, PathId)>,
    wires: VecDeque<(Timestamp, bool, SubflowId, Bytes)>,
    actions: Vec<Action>,
    device_events: Vec<Event>,
    relay_events: Vec<Event>,
    /// Bytes that the paths carried, each way.
    carried: BTreeMap<PathId, usize>,
}

fn offer(path: PathId, metered: bool) -> PathOffer {
    PathOffer { path, metered, estimate: PathEstimate::default() }
}

fn destination() -> Destination {
    Destination { host: Host::Name("example.org".to_owned()), port: 443 }
}

const ONE_WAY: Duration = Duration::from_millis(5);

impl Pair {
    fn new(config: SessionConfig) -> Self {
        let now = Timestamp::from_origin(Duration::from_secs(1));
        let mut pair = Self {
            device: Session::new(Role::Device, config.clone(), now),
            relay: Session::new(Role::Relay, config, now),
            now,
            cut: Vec::new(),
            stuck: Vec::new(),
            held: Vec::new(),
            up: Vec::new(),
            wires: VecDeque::new(),
            actions: Vec::new(),
            device_events: Vec::new(),
            relay_events: Vec::new(),
            carried: BTreeMap::new(),
        };
        pair.device.handle_paths(&[offer(WIFI, false), offer(CELLULAR, true)], now);
        pair.run(Duration::from_millis(50));
        pair
    }

    fn path_of(&self, id: SubflowId) -> Option<PathId> {
        self.up.iter().find(|(up, _)| *up == id).map(|(_, path)| *path)
    }

    fn settle(&mut self) {
        loop {
            let mut moved = false;
            while let Some(action) = self.device.poll_action() {
                moved = true;
                match &action {
                    Action::OpenSubflow { id, path, backup, .. } if !self.cut.contains(path) => {
                        self.up.push((*id, *path));
                        *self.carried.entry(*path).or_default() += 1;
                        self.relay.handle_subflow_up(*id, *path, *backup, self.now);
                        self.device.handle_subflow_up(*id, *path, *backup, self.now);
                    }
                    Action::OpenSubflow { .. } => {}
                    Action::CloseSubflow { id, .. } => {
                        let is_heard = self.path_of(*id).is_none_or(|path| !self.cut.contains(&path));
                        self.up.retain(|(up, _)| up != id);
                        if is_heard {
                            self.relay.handle_subflow_down(*id, self.now);
                        }
                    }
                }
                self.actions.push(action);
            }
            self.device_events.extend(std::iter::from_fn(|| self.device.poll_event()));
            self.relay_events.extend(std::iter::from_fn(|| self.relay.poll_event()));
            for (id, path) in self.up.clone() {
                for to_relay in [true, false] {
                    let from = if to_relay { &mut self.device } else { &mut self.relay };
                    while let Some(bytes) = from.poll_transmit(id, 16 << 10, self.now) {
                        moved = true;
                        *self.carried.entry(path).or_default() += bytes.len();
                        if self.stuck.contains(&id) {
                            self.held.push((to_relay, id, bytes));
                        } else if !self.cut.contains(&path) {
                            self.wires.push_back((self.now + ONE_WAY, to_relay, id, bytes));
                        }
                    }
                }
            }
            if !moved {
                break;
            }
        }
    }

    fn run(&mut self, time: Duration) {
        let until = self.now + time;
        loop {
            self.settle();
            let timers = self.device.poll_timeout().into_iter().chain(self.relay.poll_timeout());
            let next = timers.chain(self.wires.front().map(|wire| wire.0)).min();
            let Some(next) = next.filter(|at| *at <= until) else { break };
            self.now = self.now.max(next);
            while self.wires.front().is_some_and(|wire| wire.0 <= self.now) {
                let (_, to_relay, id, bytes) = self.wires.pop_front().expect("there is one");
                if self.path_of(id).is_some_and(|path| !self.cut.contains(&path)) {
                    let to = if to_relay { &mut self.relay } else { &mut self.device };
                    to.handle_received(id, bytes, self.now).expect("honest ends keep to the protocol");
                }
            }
            for (id, _) in self.up.clone() {
                self.device.handle_sample(id, &SubflowSample::default(), self.now);
            }
            self.device.handle_timeout(self.now);
            self.relay.handle_timeout(self.now);
        }
        self.now = until;
        self.settle();
    }

    /// The kernels of the stuck subflows send again, of those too that were closed meanwhile.
    fn release(&mut self) {
        self.stuck.clear();
        for (to_relay, id, bytes) in std::mem::take(&mut self.held) {
            let to = if to_relay { &mut self.relay } else { &mut self.device };
            to.handle_received(id, bytes, self.now).expect("honest ends keep to the protocol");
        }
        self.settle();
    }

    fn open(&mut self) -> StreamId {
        self.device.open_stream(destination(), StreamClass::Auto, self.now).expect("there is room")
    }

    fn on_path(&self, path: PathId) -> usize {
        self.up.iter().filter(|(_, on)| *on == path).count()
    }
}

fn read_all(session: &mut Session, stream: StreamId, now: Timestamp) -> (Vec<u8>, bool) {
    let mut all = Vec::new();
    loop {
        match session.read(stream, usize::MAX, now) {
            Read::Bytes(bytes) => all.extend_from_slice(&bytes),
            Read::Nothing => return (all, false),
            Read::End => return (all, true),
        }
    }
}

fn text(bytes: &'static str) -> Bytes {
    Bytes::from_static(bytes.as_bytes())
}

#[test]
fn a_stream_opens_carries_both_ways_and_closes() {
    let mut pair = Pair::new(SessionConfig::handover());
    let stream = pair.open();
    pair.device.send(stream, text("question"), pair.now).expect("there is room");
    pair.device.finish(stream, pair.now).expect("not finished");
    pair.run(Duration::from_millis(6));
    let opening = Event::StreamOpening { stream, destination: destination(), class: StreamClass::Auto };
    assert!(pair.relay_events.contains(&opening), "an opening takes no round trip");
    pair.relay.accept(stream, OpenResult::Connected, pair.now);
    assert_eq!(read_all(&mut pair.relay, stream, pair.now), (b"question".to_vec(), true));
    pair.relay.send(stream, text("answer"), pair.now).expect("there is room");
    pair.relay.finish(stream, pair.now).expect("not finished");
    pair.run(Duration::from_millis(100));
    assert!(pair.device_events.contains(&Event::StreamOpened { stream, result: OpenResult::Connected }));
    assert_eq!(read_all(&mut pair.device, stream, pair.now), (b"answer".to_vec(), true));
    pair.run(Duration::from_millis(100));
    assert!(pair.device_events.contains(&Event::StreamClosed { stream }));
    assert!(pair.relay_events.contains(&Event::StreamClosed { stream }));
    assert_eq!((pair.device.streams(), pair.relay.streams()), (0, 0));
    assert_eq!(pair.carried.get(&CELLULAR), None, "the metered path carried nothing");
}

#[test]
fn a_status_names_streams_with_what_each_path_carried_of_them() {
    let mut pair = Pair::new(SessionConfig::handover());
    let stream = pair.open();
    pair.device.send(stream, text("question"), pair.now).expect("there is room");
    pair.run(Duration::from_millis(10));
    pair.relay.accept(stream, OpenResult::Connected, pair.now);
    pair.relay.send(stream, text("the answer"), pair.now).expect("there is room");
    pair.run(Duration::from_millis(100));
    let expected = StreamStatus {
        id: stream,
        destination: destination(),
        class: StreamClass::Auto,
        scheduler: SchedulerKind::Priority,
        carried: vec![Carried { path: WIFI, sent: 8, received: 10 }],
    };
    assert_eq!(pair.device.stream_statuses(), [expected]);
    let statuses = pair.relay.stream_statuses();
    assert_eq!(statuses[0].scheduler, SchedulerKind::LastReceived);
    assert_eq!(statuses[0].carried, [Carried { path: WIFI, sent: 10, received: 8 }]);
}

#[test]
fn a_refused_stream_is_over_at_both_ends() {
    let mut pair = Pair::new(SessionConfig::handover());
    let stream = pair.open();
    pair.device.send(stream, text("question"), pair.now).expect("there is room");
    pair.run(Duration::from_millis(10));
    pair.relay.accept(stream, OpenResult::Forbidden, pair.now);
    pair.run(Duration::from_millis(50));
    assert!(pair.device_events.contains(&Event::StreamOpened { stream, result: OpenResult::Forbidden }));
    assert_eq!((pair.device.streams(), pair.relay.streams()), (0, 0));
    assert_eq!(pair.device.held_bytes() + pair.relay.held_bytes(), 0);
}

#[test]
fn a_reset_ends_both_directions_and_is_told() {
    let mut pair = Pair::new(SessionConfig::handover());
    let stream = pair.open();
    pair.device.send(stream, text("question"), pair.now).expect("there is room");
    pair.run(Duration::from_millis(10));
    pair.relay.send(stream, text("answer"), pair.now).expect("there is room");
    pair.device.reset(stream, 7, pair.now);
    pair.run(Duration::from_millis(50));
    assert!(pair.relay_events.contains(&Event::StreamReset { stream, code: 7 }));
    assert_eq!((pair.device.streams(), pair.relay.streams()), (0, 0));
    assert_eq!(pair.device.held_bytes() + pair.relay.held_bytes(), 0);
}

#[test]
fn a_suspect_path_hands_over_and_comes_back_when_it_is_clearly_good() {
    let mut pair = Pair::new(SessionConfig::handover());
    let stream = pair.open();
    pair.run(Duration::from_millis(20));
    pair.relay.accept(stream, OpenResult::Connected, pair.now);
    pair.run(Duration::from_millis(100));
    assert_eq!(pair.on_path(CELLULAR), 0);

    pair.cut.push(WIFI);
    pair.device.send(stream, text("lost at first"), pair.now).expect("there is room");
    pair.run(Duration::from_millis(50));
    pair.device.suspect_path(WIFI, Suspicion::Unacknowledged, pair.now);
    pair.run(Duration::from_millis(20));
    assert!(pair.actions.iter().any(|action| matches!(
        action,
        Action::OpenSubflow {
            path: CELLULAR,
            backup: true,
            reason: OpenReason::Backup { from: WIFI, .. },
            ..
        }
    )));
    assert_eq!(read_all(&mut pair.relay, stream, pair.now).0, b"lost at first");
    pair.relay.send(stream, text("answer"), pair.now).expect("there is room");
    pair.run(Duration::from_millis(20));
    assert_eq!(read_all(&mut pair.device, stream, pair.now).0, b"answer", "it came over the other path");
    assert!(
        pair.device_events
            .iter()
            .any(|event| matches!(event, Event::Handover { from: WIFI, to: CELLULAR, .. }))
    );

    pair.run(Duration::from_secs(3));
    assert_eq!(pair.device.active_path(), Some(CELLULAR), "a path that answers nothing is not returned to");
    pair.cut.clear();
    pair.run(Duration::from_secs(20));
    assert!(pair.device_events.contains(&Event::PathRestored { path: WIFI }));
    assert_eq!(pair.on_path(CELLULAR), 0, "the metered path closes");
    assert!(
        pair.actions.iter().any(|a| matches!(a, Action::CloseSubflow { reason: CloseReason::NotNeeded, .. }))
    );
    pair.relay.send(stream, text("more"), pair.now).expect("there is room");
    pair.run(Duration::from_millis(20));
    assert_eq!(read_all(&mut pair.device, stream, pair.now).0, b"more");
}

#[test]
fn a_listener_whose_server_says_nothing_of_more_is_handed_over_too() {
    let mut pair = Pair::new(SessionConfig::handover());
    let stream = pair.open();
    pair.run(Duration::from_millis(20));
    pair.relay.accept(stream, OpenResult::Connected, pair.now);
    pair.relay.send(stream, text("a piece"), pair.now).expect("there is room");
    pair.run(Duration::from_secs(2));
    pair.cut.push(WIFI);
    pair.relay.send(stream, text(" and one that is lost"), pair.now).expect("there is room");
    pair.run(Duration::from_millis(500));
    pair.device.suspect_path(WIFI, Suspicion::Loss, pair.now);
    pair.run(Duration::from_millis(100));
    assert_eq!(pair.on_path(CELLULAR), 1);
    assert_eq!(read_all(&mut pair.device, stream, pair.now).0, b"a piece and one that is lost");
}

#[test]
fn a_steady_stream_that_falls_silent_is_overdue_on_the_path_that_brought_it() {
    let mut pair = Pair::new(SessionConfig::handover());
    let stream = pair.open();
    pair.run(Duration::from_millis(20));
    pair.relay.accept(stream, OpenResult::Connected, pair.now);
    for _ in 0..20 {
        pair.relay.send(stream, text("a piece"), pair.now).expect("there is room");
        pair.run(Duration::from_millis(125));
    }
    let observation = pair.device.observe_path(WIFI);
    assert_eq!((observation.outstanding_since, observation.expecting_since), (None, None));
    let overdue = observation.overdue_at.expect("it is steady");
    assert!(overdue > pair.now && overdue <= pair.now + Duration::from_millis(250), "{overdue:?}");
    assert_eq!(pair.device.observe_path(CELLULAR).overdue_at, None);
    pair.device.suspect_path(WIFI, Suspicion::Silent, pair.now);
    pair.run(Duration::from_millis(100));
    assert!(pair.device.observe_path(CELLULAR).overdue_at.is_some(), "it goes on there");
    for _ in 0..30 {
        pair.device.probe_path(WIFI, pair.now);
        pair.run(Duration::from_millis(200));
    }
    assert_eq!(pair.device.observe_path(WIFI).overdue_at, None, "the path lives: it has stopped");
}

#[test]
fn an_idle_session_opens_no_metered_path_when_its_path_is_suspected() {
    let mut pair = Pair::new(SessionConfig::handover());
    let stream = pair.open();
    pair.run(Duration::from_millis(50));
    pair.relay.accept(stream, OpenResult::Connected, pair.now);
    pair.run(Duration::from_millis(100));
    pair.device.suspect_path(WIFI, Suspicion::Loss, pair.now);
    pair.run(Duration::from_secs(5));
    assert_eq!(pair.carried.get(&CELLULAR), None);
    assert!(pair.device_events.contains(&Event::PathRestored { path: WIFI }));
}

#[test]
fn a_lost_subflow_is_replaced_and_what_it_carried_goes_again() {
    let mut pair = Pair::new(SessionConfig::handover());
    let stream = pair.open();
    pair.run(Duration::from_millis(50));
    pair.device.send(stream, text("in flight"), pair.now).expect("there is room");
    pair.settle();
    let (id, _) = pair.up.remove(0);
    pair.device.handle_subflow_down(id, pair.now);
    pair.relay.handle_subflow_down(id, pair.now);
    pair.run(Duration::from_millis(50));
    assert_eq!(read_all(&mut pair.relay, stream, pair.now).0, b"in flight");
    assert_eq!(pair.on_path(WIFI), 1);
    assert_eq!(pair.carried.get(&CELLULAR), None);
}

#[test]
fn the_relay_hears_that_a_path_is_gone_over_another_one() {
    let mut pair = Pair::new(SessionConfig::handover());
    let stream = pair.open();
    pair.device.send(stream, text("question"), pair.now).expect("there is room");
    pair.run(Duration::from_millis(100));
    pair.relay.accept(stream, OpenResult::Connected, pair.now);
    let answer = Bytes::from(vec![7; 60_000]);
    pair.relay.send(stream, answer.clone(), pair.now).expect("there is room");
    pair.run(Duration::from_millis(1));
    // Nothing says farewell where there is no carrier, and what is under way is lost.
    pair.cut.push(WIFI);
    pair.wires.clear();
    pair.device.handle_paths(&[offer(CELLULAR, true)], pair.now);
    pair.run(Duration::from_millis(100));
    assert!(
        read_all(&mut pair.device, stream, pair.now).0 == answer,
        "the answer goes again over the other path"
    );
}

#[test]
fn a_subflow_that_was_silent_when_its_path_was_restored_carries_nothing_more() {
    let mut pair = Pair::new(SessionConfig::handover());
    let stream = pair.open();
    let old = pair.up[0].0;
    pair.stuck.push(old);
    pair.device.send(stream, text("over the one or the other"), pair.now).expect("there is room");
    pair.run(Duration::from_millis(100));
    pair.device.suspect_path(WIFI, Suspicion::Unacknowledged, pair.now);
    while !pair.device_events.contains(&Event::PathRestored { path: WIFI }) {
        pair.run(Duration::from_millis(100));
    }
    assert!(!pair.up.iter().any(|(id, _)| *id == old), "{:?}", pair.up);
    let other = pair.open();
    pair.device.send(other, text("at once"), pair.now).expect("there is room");
    pair.run(Duration::from_millis(100));
    assert_eq!(read_all(&mut pair.relay, other, pair.now).0, b"at once");
}

#[test]
fn what_a_subflow_that_was_stuck_says_of_others_is_no_news() {
    let mut pair = Pair::new(SessionConfig::handover());
    let wifi = pair.up[0].0;
    let stream = pair.open();
    pair.device.send(stream, text("over the one or the other"), pair.now).expect("there is room");
    pair.device.suspect_path(WIFI, Suspicion::Unacknowledged, pair.now);
    pair.run(Duration::from_millis(100));
    let cellular = *pair.up.iter().find(|(_, path)| *path == CELLULAR).expect("traffic moved");
    while !pair.device_events.contains(&Event::PathRestored { path: WIFI }) {
        pair.device.send(stream, text("over both"), pair.now).expect("there is room");
        pair.run(Duration::from_millis(50));
    }
    assert!(pair.up.contains(&cellular));

    pair.stuck.push(cellular.0);
    pair.cut.push(CELLULAR);
    pair.device.suspect_path(WIFI, Suspicion::Unacknowledged, pair.now);
    pair.device_events.clear();
    while !pair.device_events.contains(&Event::PathRestored { path: WIFI }) {
        pair.run(Duration::from_millis(10));
    }
    pair.run(2 * ONE_WAY);
    let is_suspect = |pair: &Pair| {
        let subflows = pair.relay.subflows();
        subflows.iter().find(|subflow| subflow.id == wifi).expect("it was never lost").suspect
    };
    assert!(!is_suspect(&pair));
    assert!(pair.held.iter().any(|(to_relay, ..)| *to_relay), "it said that Wi-Fi is suspect");
    pair.release();
    assert!(!is_suspect(&pair));
}

#[test]
fn the_relay_hears_that_a_subflow_is_suspect_although_that_was_said_before_it_knew_it() {
    let mut pair = Pair::new(SessionConfig::handover());
    let stream = pair.open();
    pair.device.send(stream, text("question"), pair.now).expect("there is room");
    pair.run(Duration::from_millis(100));
    let first = pair.up[0].0;
    pair.device.suspect_path(WIFI, Suspicion::Unacknowledged, pair.now);
    pair.run(Duration::from_millis(100));
    pair.device.handle_subflow_down(first, pair.now);
    pair.relay.handle_subflow_down(first, pair.now);
    pair.up.retain(|(id, _)| *id != first);

    // A connection that carries early data is up at once; its HELLO takes longer than what is said elsewhere.
    let probe = SubflowId(99);
    pair.device.handle_subflow_up(probe, WIFI, false, pair.now);
    pair.run(4 * ONE_WAY);
    pair.relay.handle_subflow_up(probe, WIFI, false, pair.now);
    pair.device.handle_received(probe, Bytes::new(), pair.now).expect("the relay's word");
    pair.run(4 * ONE_WAY);
    let subflows = pair.relay.subflows();
    assert!(subflows.iter().any(|subflow| subflow.id == probe && subflow.suspect), "{subflows:?}");
}

#[test]
fn a_path_is_restored_by_an_answer_and_not_by_early_data() {
    let mut pair = Pair::new(SessionConfig::handover());
    let stream = pair.open();
    pair.run(Duration::from_millis(20));
    pair.relay.accept(stream, OpenResult::Connected, pair.now);
    pair.run(Duration::from_millis(100));
    let (first, _) = *pair.up.iter().find(|(_, path)| *path == WIFI).expect("the preferred path is up");

    let asked = pair.actions.len();
    pair.cut.push(WIFI);
    pair.device.suspect_path(WIFI, Suspicion::Unacknowledged, pair.now);
    pair.device.handle_subflow_down(first, pair.now);
    pair.run(Duration::from_millis(100));
    pair.device.suspect_path(CELLULAR, Suspicion::Unacknowledged, pair.now);
    pair.run(Duration::from_secs(5));
    let probe = pair.actions[asked..].iter().find_map(|action| match action {
        Action::OpenSubflow { id, path: WIFI, .. } => Some(*id),
        _ => None,
    });
    pair.device.suspect_path(CELLULAR, Suspicion::Unacknowledged, pair.now);
    pair.device_events.clear();

    let probe = probe.expect("a path that works again is to be noticed");
    pair.device.handle_subflow_up(probe, WIFI, false, pair.now);
    pair.settle();
    let restored = Event::PathRestored { path: WIFI };
    assert!(!pair.device_events.contains(&restored), "nothing came back over it yet");
    pair.device.handle_received(probe, Bytes::new(), pair.now).expect("the relay's word");
    pair.settle();
    assert!(pair.device_events.contains(&restored));
}

/// When a device asks for subflows whose connections carry early data at once and then fail.
fn attempts_at_a_dead_relay(seed: u64, change_at: Option<Duration>) -> Vec<Duration> {
    let start = Timestamp::from_origin(Duration::from_secs(1));
    let end = start + Duration::from_secs(120);
    let mut now = start;
    let mut device = Session::new(Role::Device, SessionConfig::handover(), now);
    device.set_seed(seed);
    device.handle_paths(&[offer(WIFI, false)], now);
    device.open_stream(destination(), StreamClass::Auto, now).expect("the first");
    let mut attempts = Vec::new();
    let mut change_at = change_at.map(|after| start + after);
    while now < end {
        while let Some(action) = device.poll_action() {
            if let Action::OpenSubflow { id, path, backup, .. } = action {
                attempts.push(now - start);
                device.handle_subflow_up(id, path, backup, now);
                device.handle_subflow_down(id, now);
            }
        }
        let next = device.poll_timeout().unwrap_or(end).max(now + Duration::from_millis(1));
        now = change_at.map_or(next, |at| at.min(next));
        device.handle_timeout(now);
        if change_at.take_if(|at| *at <= now).is_some() {
            device.handle_network_change(now);
        }
    }
    attempts
}

#[test]
fn a_dead_relay_is_tried_less_and_less_often_even_when_early_data_could_be_sent() {
    let attempts = attempts_at_a_dead_relay(0, None);
    let in_ms = |attempts: &[Duration]| attempts.iter().map(Duration::as_millis).collect::<Vec<_>>();
    assert_eq!(in_ms(&attempts), [0, 250, 750, 1750, 3750, 7750, 15750, 31750, 51750, 71750, 91750, 111750]);
    let (one, other) = (attempts_at_a_dead_relay(1, None), attempts_at_a_dead_relay(2, None));
    assert_ne!(in_ms(&one), in_ms(&other), "devices come apart");
}

#[test]
fn a_change_of_networks_lets_a_relay_be_tried_at_once() {
    let change = Duration::from_secs(20);
    let attempts = attempts_at_a_dead_relay(0, Some(change));
    let after: Vec<u128> = attempts.iter().filter(|at| **at >= change).map(Duration::as_millis).collect();
    assert_eq!(after[..4], [20_000, 20_250, 20_750, 21_750]);
}

#[test]
fn a_writer_is_told_of_room_although_nothing_is_acknowledged() {
    let mut pair = Pair::new(SessionConfig::handover());
    let stream = pair.open();
    pair.run(Duration::from_millis(20));
    pair.relay.accept(stream, OpenResult::Connected, pair.now);
    pair.run(Duration::from_millis(100));
    let (subflow, _) = pair.up[0];
    while let room @ 1.. = pair.device.send_room(stream) {
        pair.device.send(stream, Bytes::from(vec![0; room]), pair.now).expect("there is room");
    }
    while pair.device.poll_event().is_some() {}
    while pair.device.poll_transmit(subflow, 16 << 10, pair.now).is_some() {}
    let mut events = std::iter::from_fn(|| pair.device.poll_event());
    assert!(events.any(|event| event == Event::Writable { stream }), "another path may hold up the answer");
}

#[test]
fn streams_at_once_get_subflows_of_their_own() {
    let mut pair = Pair::new(SessionConfig::handover());
    for _ in 0..3 {
        let stream = pair.open();
        pair.device.send(stream, Bytes::from(vec![1; 60_000]), pair.now).expect("there is room");
    }
    pair.run(Duration::from_millis(500));
    assert!(pair.actions.iter().any(|a| matches!(a, Action::OpenSubflow { reason: OpenReason::Busy, .. })));
    assert!(pair.on_path(WIFI) > 1);
}

#[test]
fn what_the_far_end_may_not_do_costs_it_the_session() {
    let stream = StreamId(0);
    let data = |dsn| Data { stream, dsn, mark: Mark::default(), bytes: text("x") };
    let wrongs = [
        (Frame::Data(data(1 << 40)), Violation::BeyondStreamWindow(0)),
        (Frame::Data(Data { stream: StreamId(9), ..data(0) }), Violation::NeverOpened(9)),
        (Frame::Ack { stream, data_ack: 99, window: 0 }, Violation::NeverSent(0)),
        (Frame::Drain, Violation::Misplaced(0x09)),
        (Frame::Pong(77), Violation::PingAbuse),
    ];
    for (frame, violation) in wrongs {
        let mut pair = Pair::new(SessionConfig::handover());
        assert_eq!(pair.open(), stream);
        pair.run(Duration::from_millis(50));
        let got = pair.relay.handle_received(pair.up[0].0, frame.to_bytes(), pair.now);
        assert_eq!(got, Err(violation), "{frame:?}");
    }
}

#[test]
fn a_replayed_open_opens_nothing() {
    let mut pair = Pair::new(SessionConfig::handover());
    let stream = pair.open();
    pair.run(Duration::from_millis(50));
    pair.device.reset(stream, 0, pair.now);
    pair.run(Duration::from_millis(50));
    assert_eq!(pair.relay.streams(), 0);
    let open = Frame::Open {
        stream,
        class: StreamClass::Auto,
        scheduler: SchedulerKind::LastReceived,
        destination: destination(),
    };
    pair.relay.handle_received(pair.up[0].0, open.to_bytes(), pair.now).expect("a copy is allowed");
    assert_eq!(pair.relay.streams(), 0);
}

#[test]
fn the_relay_hears_of_a_suspect_path_although_that_path_was_asked_first() {
    let mut pair = Pair::new(SessionConfig::handover());
    let stream = pair.open();
    pair.device.send(stream, text("question"), pair.now).expect("there is room");
    pair.run(Duration::from_millis(100));
    pair.cut.push(WIFI);
    pair.device.send(stream, text("another"), pair.now).expect("there is room");
    pair.run(Duration::from_millis(100));
    pair.device.suspect_path(WIFI, Suspicion::Unacknowledged, pair.now);
    // Its socket takes bytes for as long as another subflow needs to come up.
    let wifi = pair.up[0].0;
    while pair.device.poll_transmit(wifi, 16 << 10, pair.now).is_some() {}
    pair.run(Duration::from_millis(100));
    assert_eq!(read_all(&mut pair.relay, stream, pair.now).0, b"questionanother");
    assert_eq!(pair.device.observe_path(CELLULAR).outstanding_since, None, "the relay acknowledges there");
    assert!(pair.relay.subflows().iter().any(|subflow| subflow.path == WIFI && subflow.suspect));
}

#[test]
fn a_relay_leaves_a_backup_alone_once_the_device_speaks_elsewhere() {
    let mut now = Timestamp::from_origin(Duration::from_secs(1));
    let mut relay = Session::new(Role::Relay, SessionConfig::handover(), now);
    let (wifi, cellular) = (SubflowId(0), SubflowId(1));
    relay.handle_subflow_up(wifi, WIFI, false, now);
    relay.handle_subflow_up(cellular, CELLULAR, true, now);
    for (id, millis) in [(wifi, 200), (cellular, 20)] {
        let smoothed_rtt = Duration::from_millis(millis);
        relay.handle_sample(id, &SubflowSample { smoothed_rtt, ..SubflowSample::default() }, now);
    }
    now = now + ONE_WAY;
    let mut dsn = 0;
    let mut hear = |relay: &mut Session, on: SubflowId, now| {
        let (stream, mark) = (StreamId(0), Mark { idle: true, fin: false });
        let data = Frame::Data(Data { stream, dsn, mark, bytes: text("?") });
        dsn += 1;
        relay.handle_received(on, data.to_bytes(), now).expect("an honest device");
    };
    let (class, scheduler) = (StreamClass::Auto, SchedulerKind::LastReceived);
    let open = Frame::Open { stream: StreamId(0), class, scheduler, destination: destination() };
    relay.handle_received(cellular, open.to_bytes(), now).expect("an honest device");
    relay.accept(StreamId(0), OpenResult::Connected, now);
    hear(&mut relay, cellular, now);
    relay.send(StreamId(0), text("to where it was asked"), now).expect("there is room");
    let says = |bytes: &[u8], what: &[u8]| bytes.windows(what.len()).any(|part| part == what);
    assert!(says(&relay.poll_transmit(cellular, 16 << 10, now).expect("an answer"), b"asked"));

    now = now + ONE_WAY;
    hear(&mut relay, wifi, now);
    relay.send(StreamId(0), text("there, and there alone"), now).expect("there is room");
    let mut on_wifi = Vec::new();
    for _ in 0..500 {
        assert_eq!(relay.poll_transmit(cellular, 16 << 10, now), None, "not even to help");
        on_wifi.extend(relay.poll_transmit(wifi, 16 << 10, now).unwrap_or_default());
        now = now + Duration::from_millis(1);
        relay.handle_timeout(now);
    }
    assert!(says(&on_wifi, b"alone"));
    assert!(says(&on_wifi, b"asked"), "what is not acknowledged follows");
}

#[test]
fn a_relay_answers_where_it_was_asked_until_another_subflow_was_heard() {
    let now = Timestamp::from_origin(Duration::from_secs(1));
    let mut relay = Session::new(Role::Relay, SessionConfig::default(), now);
    let (radio, download) = (StreamId(0), StreamId(1));
    relay.handle_subflow_up(SubflowId(0), WIFI, false, now);
    for stream in [radio, download] {
        let (class, scheduler) = (StreamClass::Auto, SchedulerKind::LastReceived);
        let open = Frame::Open { stream, class, scheduler, destination: destination() };
        relay.handle_received(SubflowId(0), open.to_bytes(), now).expect("an honest device");
        relay.accept(stream, OpenResult::Connected, now);
    }
    relay.handle_subflow_up(SubflowId(1), WIFI, false, now);
    let mut send = |at: Timestamp| {
        [radio, download].map(|stream| {
            relay.send(stream, text("a piece"), at).expect("there is room");
            relay.streams[&stream].leases.clone()
        })
    };
    assert_eq!(send(now), [vec![(WIFI, 0)], vec![(WIFI, 0)]]);
    let later = now + ONE_WAY;
    let ping = Frame::Ping(0).to_bytes();
    relay.handle_received(SubflowId(1), ping, later).expect("an honest device");
    relay.replan(later);
    let leased = [radio, download].map(|stream| relay.streams[&stream].leases.clone());
    assert_ne!(leased[0], leased[1], "who only listens does not wait for the other");
}
