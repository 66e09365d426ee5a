//! Far ends that keep to the letter of the protocol and harm, or that go on after a violation.

use super::*;
use crate::bond::action::ViolationScope;
use crate::units::Rate;

const FIRST: SubflowId = SubflowId(0);
const SECOND: SubflowId = SubflowId(1);

/// How the far end says it.
fn open(stream: u64) -> Frame {
    Frame::Open {
        stream: StreamId(stream),
        class: StreamClass::Bulk,
        scheduler: SchedulerKind::MinRtt,
        destination: destination(),
    }
}

fn start() -> Timestamp {
    Timestamp::from_origin(Duration::from_secs(1))
}

/// A relay with a subflow on each path.
fn relay(config: SessionConfig) -> Session {
    let mut relay = Session::new(Role::Relay, config, start());
    relay.handle_subflow_up(FIRST, WIFI, false, start());
    relay.handle_subflow_up(SECOND, CELLULAR, false, start());
    relay
}

fn say(relay: &mut Session, on: SubflowId, frame: &Frame) -> Result<(), Violation> {
    relay.handle_received(on, frame.to_bytes(), start())
}

/// Takes all that a subflow is given and counts its bytes.
fn take(relay: &mut Session, from: SubflowId, now: Timestamp) -> usize {
    std::iter::from_fn(|| relay.poll_transmit(from, 64 << 10, now)).map(|bytes| bytes.len()).sum()
}

/// A relay with streams that have more to send than the session's window takes, which is used up.
fn relay_out_of_credit(streams: u64) -> Session {
    let mut relay = relay(SessionConfig::handover());
    for id in 0..streams {
        let stream = StreamId(id);
        say(&mut relay, FIRST, &open(id)).unwrap();
        relay.accept(stream, OpenResult::Connected, start());
        say(&mut relay, FIRST, &Frame::Ack { stream, data_ack: 0, window: 1 << 40 }).unwrap();
        let room = relay.send_room(stream).min(16 << 10);
        relay.send(stream, Bytes::from(vec![1; room]), start()).unwrap();
    }
    take(&mut relay, FIRST, start());
    assert_eq!(relay.flow.credit(), 0);
    relay
}

#[test]
fn a_stream_waits_for_the_sessions_window_once_however_often_it_is_asked() {
    let streams = 256;
    let mut relay = relay_out_of_credit(streams);
    for sequence in 0..50 {
        let standing = if sequence % 2 == 0 { Standing::Backup } else { Standing::Normal };
        say(&mut relay, SECOND, &Frame::Priority { subflow: FIRST, standing, sequence }).unwrap();
        take(&mut relay, FIRST, start());
        take(&mut relay, SECOND, start());
        assert!(relay.blocked.len() <= streams as usize, "{}", relay.blocked.len());
    }
    let last = StreamId(streams - 1);
    assert!(relay.blocked.contains(&last));
    say(&mut relay, FIRST, &Frame::Reset { stream: last, code: 0, end: 0, answer: false }).unwrap();
    assert!(!relay.blocked.contains(&last), "one that is over waits for nothing");
}

#[test]
fn a_window_that_grows_by_little_serves_every_stream_in_turn() {
    let streams = 64;
    let mut relay = relay_out_of_credit(streams);
    let sent = |relay: &Session| -> Vec<u64> {
        relay.streams.values().map(|stream| stream.sender.sent_end()).collect()
    };
    let waiting: Vec<u64> = relay.blocked.iter().map(|id| id.0).collect();
    assert!(waiting.len() > 8, "{waiting:?}");
    let before = sent(&relay);
    // Each WINDOW lets one stream or two send a part of what they have.
    for _ in 0..2 * waiting.len() {
        let window = relay.flow.granted_to_us + (4 << 10);
        say(&mut relay, FIRST, &Frame::Window(window)).unwrap();
        take(&mut relay, FIRST, start());
        take(&mut relay, SECOND, start());
    }
    let after = sent(&relay);
    for id in waiting {
        assert!(after[id as usize] > before[id as usize], "stream {id} was passed over");
    }
}

#[test]
fn many_standings_at_once_make_streams_look_for_subflows_once() {
    let mut relay = relay(SessionConfig::handover());
    for id in 0..16 {
        say(&mut relay, FIRST, &open(id)).unwrap();
        relay.accept(StreamId(id), OpenResult::Connected, start());
    }
    let epoch = relay.epoch;
    let mut wire = Vec::new();
    let standings = [Standing::Suspect, Standing::Backup, Standing::Normal, Standing::Suspect];
    for (sequence, standing) in (0..400).zip(standings.into_iter().cycle()) {
        wire.extend_from_slice(&Frame::Priority { subflow: FIRST, standing, sequence }.to_bytes());
    }
    relay.handle_received(SECOND, Bytes::from(wire), start()).unwrap();
    assert_eq!(relay.epoch, epoch + 1);
    let leases =
        |relay: &Session| relay.streams.values().flat_map(|stream| stream.leases.clone()).collect::<Vec<_>>();
    assert!(leases(&relay).iter().all(|(path, _)| *path == CELLULAR), "{:?}", leases(&relay));
    let priority = |standing, sequence| Frame::Priority { subflow: FIRST, standing, sequence };
    say(&mut relay, SECOND, &priority(Standing::Suspect, 400)).unwrap();
    assert_eq!(relay.epoch, epoch + 1, "that was known");
    say(&mut relay, SECOND, &priority(Standing::Normal, 402)).unwrap();
    assert_eq!(relay.epoch, epoch + 2);
    say(&mut relay, FIRST, &priority(Standing::Suspect, 401)).unwrap();
    assert_eq!(relay.epoch, epoch + 2, "a subflow that was held up brings what was said before");
}

fn data(stream: u64, dsn: u64, length: usize) -> Frame {
    let mark = Mark { idle: false, fin: false };
    Frame::Data(Data { stream: StreamId(stream), dsn, mark, bytes: Bytes::from(vec![1; length]) })
}

#[test]
fn a_session_beyond_its_window_stays_refused_on_every_subflow() {
    let mut relay = relay(SessionConfig::handover());
    let mut last = Ok(());
    // No WINDOW was told, so that four first windows of streams use it up.
    for id in 0..5 {
        say(&mut relay, FIRST, &open(id)).unwrap();
        for part in 0..4 {
            last = say(&mut relay, FIRST, &data(id, part * (16 << 10), 16 << 10));
        }
    }
    let violation = Err(Violation::BeyondSessionWindow);
    assert_eq!(last, violation);
    let reset = Frame::Reset { stream: StreamId(4), code: 0, end: 64 << 10, answer: false };
    assert_eq!(say(&mut relay, SECOND, &reset), violation);
    assert_eq!(say(&mut relay, SECOND, &Frame::Ping(7)), violation);
    // The engine takes its streams back before it is gone.
    for id in 0..5 {
        while let Read::Bytes(_) = relay.read(StreamId(id), 1 << 20, start()) {}
        relay.reset(StreamId(id), 0, start());
    }
    assert_eq!(relay.held_bytes(), 0);
}

#[test]
fn a_stream_with_too_many_gaps_stays_refused_and_can_be_given_up() {
    let mut relay = relay(SessionConfig::handover());
    say(&mut relay, FIRST, &open(0)).unwrap();
    let violation = (0..1 << 15).find_map(|n| say(&mut relay, FIRST, &data(0, 2 * n + 1, 1)).err());
    let violation = violation.expect("so many gaps are a violation");
    assert_eq!(violation, Violation::TooManyGaps(0));
    let reset = Frame::Reset { stream: StreamId(0), code: 0, end: 64 << 10, answer: false };
    assert_eq!(say(&mut relay, SECOND, &reset), Err(violation));
    relay.reset(StreamId(0), 0, start());
    assert_eq!(relay.held_bytes(), 0);
}

#[test]
fn a_malformed_subflow_leaves_the_session_to_the_others() {
    let mut relay = relay(SessionConfig::handover());
    let violation = relay.handle_received(FIRST, Bytes::from_static(&[0x3f, 0]), start()).unwrap_err();
    assert_eq!(violation.scope(), ViolationScope::Subflow);
    assert_eq!(say(&mut relay, SECOND, &open(0)), Ok(()));
}

/// Bytes that the second path carries of a stream whose end waits on the first one, behind streams whose far
/// readers stopped and others that wait for acknowledgments on the first path.
fn sent_again(stopped: u64, waiting: u64) -> usize {
    let mut relay = relay(SessionConfig::aggregate());
    say(&mut relay, FIRST, &Frame::Window(1 << 40)).unwrap();
    for id in 0..stopped + waiting {
        let stream = StreamId(id);
        say(&mut relay, FIRST, &open(id)).unwrap();
        relay.accept(stream, OpenResult::Connected, start());
        let length = if id < stopped { 64 << 10 } else { 1000 };
        relay.send(stream, Bytes::from(vec![1; length]), start()).unwrap();
        take(&mut relay, FIRST, start());
        if id < stopped {
            let ack = Frame::Ack { stream, data_ack: length as u64, window: length as u64 };
            say(&mut relay, FIRST, &ack).unwrap();
            relay.send(stream, Bytes::from(vec![1; 1000]), start()).unwrap();
        }
    }
    take(&mut relay, SECOND, start());
    relay.handle_socket_full(FIRST);
    let mut now = start();
    let mut sent = 0;
    for _ in 0..50 {
        now = now + Duration::from_millis(20);
        relay.handle_timeout(now);
        sent += take(&mut relay, SECOND, now);
    }
    sent
}

#[test]
fn readers_that_stopped_hide_nobody_from_recovery() {
    assert!(sent_again(10, 1) >= 1000);
    assert!(sent_again(300, 1) >= 1000);
}

#[test]
fn every_stream_of_many_that_wait_has_its_turn_in_recovery() {
    let sent = sent_again(0, 300);
    assert!(sent >= 300 * 1000, "{sent}");
}

#[test]
fn no_buffer_on_the_way_is_believed_to_be_endless() {
    let mut relay = Session::new(Role::Relay, SessionConfig::aggregate(), start());
    let subflows: Vec<SubflowId> = (0..4).map(SubflowId).collect();
    for id in &subflows {
        relay.handle_subflow_up(*id, PathId(id.0 as u32), false, start());
    }
    for id in &subflows {
        let rate = Rate::from_bits_per_second(8);
        say(&mut relay, FIRST, &Frame::PipeStatus { subflow: *id, buffered: (1 << 62) - 1, rate }).unwrap();
    }
    for (id, scheduler) in (0..).zip(SchedulerKind::ALL) {
        let stream = StreamId(id);
        let open = Frame::Open { stream, class: StreamClass::Bulk, scheduler, destination: destination() };
        say(&mut relay, FIRST, &open).unwrap();
        relay.accept(stream, OpenResult::Connected, start());
        let window = (1 << 62) - 1;
        say(&mut relay, FIRST, &Frame::Ack { stream, data_ack: 0, window }).unwrap();
        relay.send(stream, Bytes::from(vec![1; 32 << 10]), start()).unwrap();
    }
    let sent: usize = subflows.iter().rev().map(|id| take(&mut relay, *id, start())).sum();
    assert!(sent > 0);
}
