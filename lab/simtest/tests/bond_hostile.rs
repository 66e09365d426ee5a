//! Device and relay facing a far end that lies: what it sends costs it the subflow or the session as
//! docs/protocol.md says, nothing panics, and what is held stays bounded.

mod common;

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use multiway_core::bond::scheduler::SchedulerKind;
use multiway_core::bond::wire::{
    Data, Destination, Frame, FrameReader, Hello, HelloKind, HelloOk, Host, INITIAL_STREAM_WINDOW, Mark,
    OpenResult, SessionKey, Standing, VERSION,
};
use multiway_core::bond::{
    Event, Limits, Read, Role, Session, SessionConfig, StreamClass, StreamId, SubflowId, Violation,
    ViolationScope,
};
use multiway_core::mphttp::download::PathOffer;
use multiway_core::paths::{PathEstimate, PathId};
use multiway_core::units::{Rate, Timestamp};
use proptest::prelude::*;

const FIRST: SubflowId = SubflowId(0);
const SECOND: SubflowId = SubflowId(1);

fn at(millis: u64) -> Timestamp {
    Timestamp::from_origin(Duration::from_millis(1000 + millis))
}

fn config() -> SessionConfig {
    let limits = Limits { streams: 8, receive_in_all: 1 << 20, send_in_all: 1 << 20, ..Limits::default() };
    SessionConfig { limits, ..SessionConfig::handover() }
}

fn destination() -> Destination {
    Destination { host: Host::Name("example.org".to_owned()), port: 443 }
}

fn open(stream: u64) -> Frame {
    Frame::Open {
        stream: StreamId(stream),
        class: StreamClass::Auto,
        scheduler: SchedulerKind::MinRtt,
        destination: destination(),
    }
}

fn data(stream: u64, dsn: u64, mark: Mark, bytes: &[u8]) -> Frame {
    Frame::Data(Data { stream: StreamId(stream), dsn, mark, bytes: Bytes::copy_from_slice(bytes) })
}

const PLAIN: Mark = Mark { idle: false, fin: false };
const FIN: Mark = Mark { idle: true, fin: true };

/// A relay with two subflows and stream 0, of which 5 bytes have come and 6 went.
fn relay() -> Session {
    let mut session = Session::new(Role::Relay, config(), at(0));
    session.handle_subflow_up(FIRST, PathId(1), false, at(0));
    session.handle_subflow_up(SECOND, PathId(2), false, at(0));
    for frame in [open(0), data(0, 0, PLAIN, b"hello")] {
        session.handle_received(FIRST, frame.to_bytes(), at(0)).expect("allowed");
    }
    session.accept(StreamId(0), OpenResult::Connected, at(0));
    session.send(StreamId(0), Bytes::from_static(b"answer"), at(0)).expect("there is room");
    while session.poll_transmit(FIRST, 16 << 10, at(0)).is_some() {}
    session
}

/// A device with two subflows and stream 0, of which 6 bytes went.
fn device() -> Session {
    let mut session = Session::new(Role::Device, config(), at(0));
    let offer = |path| PathOffer { path: PathId(path), metered: false, estimate: PathEstimate::default() };
    session.handle_paths(&[offer(1), offer(2)], at(0));
    session.handle_subflow_up(FIRST, PathId(1), false, at(0));
    session.handle_subflow_up(SECOND, PathId(2), false, at(0));
    session.open_stream(destination(), StreamClass::Auto, at(0)).expect("there is room");
    session.send(StreamId(0), Bytes::from_static(b"answer"), at(0)).expect("there is room");
    for id in [FIRST, SECOND] {
        while session.poll_transmit(id, 16 << 10, at(0)).is_some() {}
    }
    session
}

fn hello() -> Frame {
    let key = SessionKey([1; 16]);
    let subflow = SubflowId(9);
    Frame::Hello(Hello { version: VERSION, key, subflow, path: 1, backup: false, kind: HelloKind::Join })
}

fn hello_ok() -> Frame {
    Frame::HelloOk(HelloOk {
        version: VERSION,
        max_streams: 1,
        max_subflows: 1,
        linger_seconds: 1,
        join_address: String::new(),
    })
}

#[track_caller]
fn assert_costs(mut session: Session, frame: &Frame, scope: ViolationScope, code: u64) {
    let violation = session.handle_received(FIRST, frame.to_bytes(), at(1)).expect_err("it is a violation");
    assert_eq!((violation.scope(), violation.code()), (scope, code), "{frame:?}: {violation}");
}

#[test]
fn frames_in_the_wrong_place_cost_the_subflow() {
    let subflow = |session: fn() -> Session, frame: Frame| {
        assert_costs(session(), &frame, ViolationScope::Subflow, 0x03);
    };
    for session in [relay as fn() -> Session, device] {
        subflow(session, hello());
        subflow(session, hello_ok());
        subflow(session, Frame::Pong(99));
    }
    let opened = Frame::Opened { stream: StreamId(0), result: OpenResult::Connected };
    for frame in [opened, Frame::Drain, Frame::Advertise("a:1".to_owned())] {
        subflow(relay, frame);
    }
    subflow(relay, Frame::Priority { subflow: FIRST, standing: Standing::Gone, sequence: 0 });
    subflow(device, open(1));
    subflow(device, Frame::Priority { subflow: SECOND, standing: Standing::Normal, sequence: 0 });
}

#[test]
fn forged_state_costs_the_session() {
    let session = |session: fn() -> Session, frame: Frame, code| {
        assert_costs(session(), &frame, ViolationScope::Session, code);
    };
    for side in [relay as fn() -> Session, device] {
        session(side, data(5, 0, PLAIN, b"x"), 0x104);
        session(side, Frame::Ack { stream: StreamId(5), data_ack: 0, window: 0 }, 0x104);
        session(side, Frame::Ack { stream: StreamId(0), data_ack: 7, window: 0 }, 0x106);
        session(side, data(0, 1 << 40, PLAIN, b"x"), 0x105);
        let reset = |end| Frame::Reset { stream: StreamId(0), code: 0, end, answer: false };
        session(side, reset(1 << 40), 0x105);
    }
    session(relay, open(5000), 0x104);
    session(relay, Frame::Reset { stream: StreamId(5000), code: 0, end: 0, answer: false }, 0x104);
    session(relay, Frame::Reset { stream: StreamId(0), code: 0, end: 4, answer: false }, 0x106);
    session(relay, data(0, 3, FIN, b"l"), 0x106);
    let opened = Frame::Opened { stream: StreamId(5), result: OpenResult::Connected };
    session(device, opened, 0x104);
}

#[test]
fn an_end_is_an_end() {
    let ended = || {
        let mut session = relay();
        session.handle_received(FIRST, data(0, 5, FIN, b" you").to_bytes(), at(1)).expect("allowed");
        session
    };
    let mut session = ended();
    session.handle_received(SECOND, data(0, 5, FIN, b" you").to_bytes(), at(1)).expect("a copy is allowed");
    for frame in [data(0, 9, PLAIN, b"x"), data(0, 7, FIN, b"x")] {
        let mut session = ended();
        let violation = session.handle_received(SECOND, frame.to_bytes(), at(1));
        assert_eq!(violation, Err(Violation::BehindEnd(0)));
        let after = session.handle_received(FIRST, Frame::Ping(1).to_bytes(), at(1));
        assert_eq!(after, violation, "the session is broken on every subflow");
    }
}

#[test]
fn unknown_types_are_refused_or_skipped_by_their_number() {
    for kind in 0..=u8::MAX {
        let mut bytes = vec![kind, 3, b'a', b'b', b'c'];
        data(0, 5, PLAIN, b" you").put(&mut bytes);
        let result = relay().handle_received(FIRST, bytes.clone().into(), at(1));
        if kind >= 0x40 {
            assert_eq!(result, Ok(()), "{kind:#x}");
        } else {
            let violation = result.expect_err("three letters are no body");
            assert_eq!(violation.scope(), ViolationScope::Subflow, "{kind:#x}: {violation}");
        }
    }
}

#[test]
fn a_frame_that_is_longer_than_allowed_is_refused_before_its_body() {
    for kind in [0x12, 0x40, 0xFF] {
        // 64 KiB and one byte, as RFC 9000 section 16 writes it.
        let result = relay().handle_received(FIRST, Bytes::from(vec![kind, 0x80, 0x01, 0x00, 0x01]), at(1));
        assert!(matches!(result, Err(Violation::Malformed(_))), "{result:?}");
        assert_eq!(relay().handle_received(FIRST, Bytes::from(vec![kind, 0x80, 0x01]), at(1)), Ok(()));
    }
}

#[test]
fn an_error_stays_an_error() {
    let mut session = relay();
    assert!(session.handle_received(FIRST, Bytes::from_static(&[0x3F]), at(1)).is_err());
    assert!(session.handle_received(FIRST, data(0, 5, PLAIN, b" you").to_bytes(), at(1)).is_err());
    session.handle_received(SECOND, data(0, 5, PLAIN, b" you").to_bytes(), at(1)).expect("others go on");
}

#[test]
fn a_part_of_a_frame_does_nothing() {
    let frame = data(0, 5, PLAIN, b" you").to_bytes();
    for length in 0..frame.len() {
        let mut session = relay();
        session.handle_received(FIRST, frame.slice(..length), at(1)).expect("nothing is wrong yet");
        session.handle_subflow_down(FIRST, at(2));
        assert_eq!(session.read(StreamId(0), 100, at(2)), Read::Bytes(Bytes::from_static(b"hello")));
        assert_eq!(session.read(StreamId(0), 100, at(2)), Read::Nothing);
    }
}

#[test]
fn whoever_pings_without_listening_is_cut_off() {
    let mut session = relay();
    let asked = (0..10_000u64)
        .take_while(|value| session.handle_received(FIRST, Frame::Ping(*value).to_bytes(), at(1)).is_ok());
    assert!(asked.count() <= 256);
}

#[test]
fn what_was_said_before_says_nothing_when_it_is_replayed() {
    let mut said = Vec::new();
    let mut session = relay();
    let transcript = [
        Frame::Window(1 << 20),
        data(0, 5, PLAIN, b" you"),
        Frame::Ack { stream: StreamId(0), data_ack: 6, window: INITIAL_STREAM_WINDOW },
        open(1),
        data(1, 0, FIN, b"second"),
        Frame::Reset { stream: StreamId(1), code: 7, end: 6, answer: false },
        Frame::Priority { subflow: SECOND, standing: Standing::Backup, sequence: 0 },
        data(0, 9, FIN, b"!"),
    ];
    for frame in [open(0), data(0, 0, PLAIN, b"hello")].iter().chain(&transcript) {
        if !said.is_empty() {
            session.handle_received(FIRST, frame.to_bytes(), at(1)).expect("allowed");
        }
        said.push(frame.to_bytes());
    }
    while session.poll_event().is_some() {}
    let (streams, held) = (session.streams(), session.held_bytes());
    for bytes in said.iter().chain(&said) {
        session.handle_received(SECOND, bytes.clone(), at(2)).expect("a copy is no violation");
    }
    assert_eq!(session.poll_event(), None);
    assert_eq!((session.streams(), session.held_bytes()), (streams, held));
    assert_eq!(session.read(StreamId(0), 100, at(2)), Read::Bytes(Bytes::from_static(b"hello you!")));
    assert_eq!(session.read(StreamId(0), 100, at(2)), Read::End);
}

#[test]
fn a_flood_of_streams_is_refused_and_then_cut_off() {
    let mut session = relay();
    let mut refused = 0;
    let mut result = Ok(());
    for stream in 1..5000 {
        result = session.handle_received(FIRST, open(stream).to_bytes(), at(1));
        if result.is_err() {
            break;
        }
        refused = session.streams();
    }
    assert_eq!(result, Err(Violation::TooManyStreams(8)));
    assert!(refused <= 8 + 1024);
    let openings = std::iter::from_fn(|| session.poll_event());
    assert_eq!(openings.filter(|event| matches!(event, Event::StreamOpening { .. })).count(), 8);
}

#[test]
fn gaps_are_counted_over_all_streams() {
    let mut session = relay();
    for stream in 1..8 {
        session.handle_received(FIRST, open(stream).to_bytes(), at(1)).expect("allowed");
    }
    let gap = |gap: u64| data(gap % 8, 7 + gap / 8 * 2, PLAIN, b"x");
    let fault = (0..32_000u64).find_map(|n| session.handle_received(FIRST, gap(n).to_bytes(), at(1)).err());
    assert!(matches!(fault, Some(Violation::TooManyGaps(_))), "{fault:?}");
    assert!(session.held_bytes() < 16_000, "{}", session.held_bytes());
}

/// What a far end may try.
#[derive(Debug, Clone)]
enum Try {
    Frame(Frame),
    /// The beginning of a frame.
    Part(Frame, usize),
    Bytes(Vec<u8>),
    /// The same as so many tries before.
    Again(usize),
    /// This end goes on with its own.
    Transmit,
    Read,
    Write(usize),
    Finish,
    Reset,
    Accept(bool),
    Wait(u64),
    Down,
    Up,
}

/// Numbers at which something ends, and others.
fn number() -> impl Strategy<Value = u64> {
    let edges = [0, 1, 5, 6, 63, 64, 4095, 65_535, 65_536, 262_144, 1 << 20, (1 << 62) - 1];
    prop_oneof![4 => prop::sample::select(edges.to_vec()), 2 => 0u64..300, 1 => 0u64..(1 << 62)]
}

fn stream_number() -> impl Strategy<Value = StreamId> {
    prop_oneof![8 => 0u64..12, 1 => number()].prop_map(StreamId)
}

fn frame() -> impl Strategy<Value = Frame> {
    let standing =
        prop::sample::select(vec![Standing::Normal, Standing::Backup, Standing::Suspect, Standing::Gone]);
    let result =
        prop::sample::select(vec![OpenResult::Connected, OpenResult::Refused, OpenResult::OverLimit]);
    let payload = prop_oneof![3 => 0usize..20, 1 => 0usize..60_000];
    prop_oneof![
        6 => (stream_number(), number(), any::<bool>(), any::<bool>(), payload).prop_map(
            |(stream, dsn, idle, fin, length)| {
                let dsn = dsn.min((1 << 62) - 1 - (64 << 10));
                Frame::Data(Data { stream, dsn, mark: Mark { idle, fin }, bytes: vec![7; length].into() })
            }
        ),
        4 => (stream_number(), number(), number())
            .prop_map(|(stream, data_ack, window)| Frame::Ack { stream, data_ack, window }),
        4 => stream_number().prop_map(|stream| open(stream.0)),
        2 => (stream_number(), result).prop_map(|(stream, result)| Frame::Opened { stream, result }),
        3 => (stream_number(), number(), number(), any::<bool>())
            .prop_map(|(stream, code, end, answer)| Frame::Reset { stream, code, end, answer }),
        2 => number().prop_map(Frame::Window),
        2 => number().prop_map(Frame::Ping),
        1 => number().prop_map(Frame::Pong),
        2 => (0u64..3, standing, number()).prop_map(|(subflow, standing, sequence)| Frame::Priority {
            subflow: SubflowId(subflow), standing, sequence
        }),
        1 => Just(Frame::RtoRequest),
        1 => number().prop_map(|micros| Frame::Rto(Duration::from_micros(micros))),
        1 => (0u64..3, number(), number()).prop_map(|(subflow, buffered, rate)| Frame::PipeStatus {
            subflow: SubflowId(subflow),
            buffered,
            rate: Rate::from_bytes_per_second(rate.min(u64::MAX / 8)),
        }),
        1 => Just(Frame::Drain),
        1 => Just(Frame::Advertise("relay.example:443".to_owned())),
        1 => number().prop_map(|code| Frame::Close { code, text: "bye".to_owned() }),
        1 => Just(hello()),
        1 => Just(hello_ok()),
    ]
}

fn attempt() -> impl Strategy<Value = Try> {
    prop_oneof![
        20 => frame().prop_map(Try::Frame),
        1 => (frame(), 0usize..40).prop_map(|(frame, length)| Try::Part(frame, length)),
        1 => prop::collection::vec(any::<u8>(), 0..200).prop_map(Try::Bytes),
        3 => (1usize..20).prop_map(Try::Again),
        6 => Just(Try::Transmit),
        3 => Just(Try::Read),
        3 => (0usize..100_000).prop_map(Try::Write),
        1 => Just(Try::Finish),
        1 => Just(Try::Reset),
        2 => any::<bool>().prop_map(Try::Accept),
        3 => (0u64..3_000).prop_map(Try::Wait),
        1 => Just(Try::Down),
        1 => Just(Try::Up),
    ]
}

/// What a session may hold besides the payload of streams.
fn check_bounds(session: &Session) -> Result<(), TestCaseError> {
    let limits = session.config().limits;
    prop_assert!(session.held_bytes() <= limits.most_received() + limits.most_sent());
    prop_assert!(session.streams() <= limits.streams + 1024);
    Ok(())
}

/// Everything that this end says has to be well formed, whatever it was told.
fn check_said(
    session: &mut Session,
    readers: &mut BTreeMap<SubflowId, FrameReader>,
    now: Timestamp,
) -> Result<(), TestCaseError> {
    for status in session.subflows() {
        let mut flights = 0;
        while let Some(bytes) = session.poll_transmit(status.id, 16 << 10, now) {
            flights += 1;
            prop_assert!(flights < 2_000, "it never stops");
            let reader = readers.entry(status.id).or_default();
            reader.handle_bytes(bytes);
            while reader.next_frame().map_err(|error| TestCaseError::fail(error.to_string()))?.is_some() {}
            prop_assert_eq!(reader.held(), 0, "half a frame");
        }
    }
    Ok(())
}

fn play(mut session: Session, tries: &[Try]) -> Result<(), TestCaseError> {
    let mut now = at(10);
    let mut next = 2;
    let mut readers = BTreeMap::new();
    let is_relay = session.role() == Role::Relay;
    for (index, attempt) in tries.iter().enumerate() {
        let attempt = match attempt {
            Try::Again(before) => match index.checked_sub(*before).map(|index| &tries[index]) {
                Some(again) => again,
                None => continue,
            },
            attempt => attempt,
        };
        let subflows = session.subflows();
        let subflow = subflows.get(index % subflows.len().max(1)).map(|status| status.id);
        let stream = StreamId(index as u64 % 4);
        let bytes = match attempt {
            Try::Frame(frame) => Some(frame.to_bytes()),
            Try::Part(frame, length) => {
                let bytes = frame.to_bytes();
                Some(bytes.slice(..bytes.len().min(*length)))
            }
            Try::Bytes(bytes) => Some(bytes.clone().into()),
            _ => None,
        };
        if let (Some(bytes), Some(subflow)) = (bytes, subflow)
            && let Err(violation) = session.handle_received(subflow, bytes, now)
        {
            match violation.scope() {
                ViolationScope::Session => return check_bounds(&session),
                ViolationScope::Subflow => session.handle_subflow_down(subflow, now),
            }
        }
        match attempt {
            Try::Transmit => check_said(&mut session, &mut readers, now)?,
            Try::Read => while matches!(session.read(stream, 1000, now), Read::Bytes(_)) {},
            Try::Write(length) => {
                let room = session.send_room(stream).min(*length);
                let _ = session.send(stream, vec![1; room].into(), now);
            }
            Try::Finish => {
                let _ = session.finish(stream, now);
            }
            Try::Reset => session.reset(stream, 7, now),
            Try::Accept(good) => {
                let result = if *good { OpenResult::Connected } else { OpenResult::Refused };
                session.accept(stream, result, now);
            }
            Try::Wait(millis) => {
                now = now + Duration::from_millis(*millis);
                session.handle_timeout(now);
                let due = session.poll_timeout();
                prop_assert!(due.is_none_or(|due| due > now), "due at {due:?}, asked at {now:?}");
            }
            Try::Down => {
                if let Some(subflow) = subflow {
                    session.handle_subflow_down(subflow, now);
                }
            }
            Try::Up => {
                next += 1;
                session.handle_subflow_up(SubflowId(next), PathId(1 + next as u32 % 2), false, now);
                if !is_relay {
                    let _ = session.open_stream(destination(), StreamClass::Bulk, now);
                }
            }
            _ => {}
        }
        while session.poll_action().is_some() {}
        while session.poll_event().is_some() {}
        check_bounds(&session)?;
    }
    check_said(&mut session, &mut readers, now)
}

proptest! {
    #![proptest_config(common::cases(1_500))]

    #[test]
    fn a_relay_survives_every_device(tries in prop::collection::vec(attempt(), 1..80)) {
        play(relay(), &tries)?;
    }

    #[test]
    fn a_device_survives_every_relay(tries in prop::collection::vec(attempt(), 1..80)) {
        play(device(), &tries)?;
    }
}
