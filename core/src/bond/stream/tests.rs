use std::time::Duration;

use bytes::{Bytes, BytesMut};

use super::receiver::Arrival;
use super::*;
use crate::bond::action::Violation;
use crate::bond::wire::{INITIAL_STREAM_WINDOW, Mark, StreamId};
use crate::units::Timestamp;

const STREAM: StreamId = StreamId(0);
const PLAIN: Mark = Mark { idle: false, fin: false };
const FIN: Mark = Mark { idle: true, fin: true };

fn room(payload: usize) -> Room {
    Room { payload, credit: u64::MAX, due: Timestamp::ZERO, redundant: false }
}

fn receiver() -> Receiver {
    Receiver::new(1 << 20, Timestamp::ZERO)
}

fn data(receiver: &mut Receiver, dsn: u64, mark: Mark, bytes: &'static [u8]) -> Result<Arrival, Violation> {
    receiver.handle_data(STREAM, dsn, mark, Bytes::from_static(bytes))
}

fn read_all(receiver: &mut Receiver) -> Vec<u8> {
    let mut all = Vec::new();
    while let Some(bytes) = receiver.read(3, Duration::ZERO, Timestamp::ZERO) {
        all.extend_from_slice(&bytes);
    }
    all
}

#[test]
fn bytes_come_out_once_and_in_order_however_they_overlap() {
    let mut receiver = receiver();
    data(&mut receiver, 4, PLAIN, b"efg").expect("allowed");
    data(&mut receiver, 9, FIN, b"jk").expect("allowed");
    data(&mut receiver, 2, PLAIN, b"cdefghij").expect("allowed");
    assert_eq!(receiver.data_ack(), 0);
    assert!(receiver.has_gap());
    assert!(data(&mut receiver, 0, PLAIN, b"abc").expect("allowed").is_readable);
    assert_eq!(read_all(&mut receiver), b"abcdefghijk");
    assert!(receiver.is_read_out());
    assert_eq!(receiver.data_ack(), 12, "the end counts as one");
    assert!(!data(&mut receiver, 4, PLAIN, b"efg").expect("a duplicate is dropped").is_new);
}

#[test]
fn data_beyond_the_window_and_behind_the_end_is_refused() {
    let mut receiver = receiver();
    let beyond = receiver.handle_data(STREAM, INITIAL_STREAM_WINDOW, PLAIN, Bytes::from_static(b"x"));
    assert_eq!(beyond, Err(Violation::BeyondStreamWindow(0)));
    data(&mut receiver, 3, FIN, b"d").expect("allowed");
    assert_eq!(data(&mut receiver, 4, PLAIN, b"e"), Err(Violation::BehindEnd(0)));
    assert_eq!(data(&mut receiver, 2, FIN, b"c"), Err(Violation::BehindEnd(0)));
}

#[test]
fn more_is_expected_until_the_last_data_is_marked_idle() {
    let mut receiver = receiver();
    assert!(!receiver.expects_more());
    data(&mut receiver, 5, Mark { idle: true, fin: false }, b"f").expect("allowed");
    data(&mut receiver, 0, PLAIN, b"abcde").expect("allowed");
    assert!(!receiver.expects_more(), "a gap is filled by what was sent before");
    data(&mut receiver, 6, PLAIN, b"g").expect("allowed");
    assert!(receiver.expects_more());
}

/// The far end sends what it may, and so much is read; how wide the window is then.
fn round(receiver: &mut Receiver, read: u64, room: u64, now: Timestamp) -> u64 {
    let granted = receiver.grant(room);
    let sent = receiver.highest();
    let piece = Bytes::from(vec![0; (granted - sent) as usize]);
    receiver.handle_data(STREAM, sent, PLAIN, piece).expect("allowed");
    let mut left = read as usize;
    while left > 0
        && let Some(bytes) = receiver.read(left.min(16 << 10), RTT, now)
    {
        left -= bytes.len();
    }
    receiver.grant(room) - receiver.consumed()
}

const RTT: Duration = Duration::from_millis(200);

fn seconds(seconds: u64) -> Timestamp {
    Timestamp::from_origin(Duration::from_secs(seconds))
}

#[test]
fn a_window_grows_with_what_is_read_in_a_round_trip_up_to_its_bound() {
    let mut receiver = receiver();
    assert_eq!(round(&mut receiver, u64::MAX, u64::MAX, seconds(1)), 1 << 20);
    let mut receiver = Receiver::new(8 << 20, Timestamp::ZERO);
    let windows = (1..6).map(|at| round(&mut receiver, u64::MAX, u64::MAX, seconds(at)));
    assert_eq!(windows.collect::<Vec<_>>(), [1 << 20, 4 << 20, 8 << 20, 8 << 20, 8 << 20]);
}

#[test]
fn the_window_of_a_slow_reader_does_not_grow() {
    let mut receiver = Receiver::new(8 << 20, Timestamp::ZERO);
    for at in 1..100 {
        assert!(round(&mut receiver, 8 << 10, u64::MAX, seconds(at)) <= INITIAL_STREAM_WINDOW);
    }
}

#[test]
fn a_window_grows_no_further_than_the_session_has_room_and_is_never_less_than_the_first() {
    let mut receiver = Receiver::new(8 << 20, Timestamp::ZERO);
    let windows = [300_000, 100_000, 0].map(|room| round(&mut receiver, u64::MAX, room, seconds(1)));
    assert_eq!(windows, [300_000, 100_000, 0].map(|room| INITIAL_STREAM_WINDOW + room));
    assert_eq!(receiver.promised(), 0);
    receiver.grant(500_000);
    assert_eq!(receiver.promised(), 500_000);
    let end = receiver.highest() + INITIAL_STREAM_WINDOW + 1;
    receiver.handle_data(STREAM, end, FIN, Bytes::new()).expect("allowed");
    assert_eq!(receiver.promised(), 1, "behind the end nothing comes");
}

#[test]
fn a_window_that_a_gap_used_up_grows_however_long_that_took() {
    let mut receiver = Receiver::new(8 << 20, Timestamp::ZERO);
    let piece = |length: u64| Bytes::from(vec![0; length as usize]);
    let granted = receiver.grant(u64::MAX);
    receiver.handle_data(STREAM, 1, PLAIN, piece(granted - 1)).unwrap();
    receiver.handle_data(STREAM, 0, PLAIN, piece(1)).unwrap();
    let mut at = 10;
    while receiver.read(4096, RTT, seconds(at)).is_some() {
        at += 1;
    }
    assert_eq!(receiver.grant(u64::MAX) - receiver.consumed(), 1 << 20);
}

#[test]
fn what_a_lost_subflow_carried_goes_again_and_nothing_else() {
    let mut sender = Sender::new();
    sender.append(Bytes::from_static(b"abcdefghij"));
    let on_0 = sender.next_segment(0, room(4)).expect("there are bytes");
    let on_1 = sender.next_segment(1, room(4)).expect("there are bytes");
    assert_eq!((on_0.dsn, on_0.length, on_1.dsn, on_1.new), (0, 4, 4, 4));
    sender.handle_slot_down(0, Slots::NONE);
    let again = sender.next_segment(1, room(3)).expect("the lost segment");
    assert_eq!((again.dsn, again.length, again.new), (0, 3, 0));
    let rest = sender.next_segment(1, room(3)).expect("its rest");
    assert_eq!((rest.dsn, rest.length), (3, 1));
    let last = sender.next_segment(1, room(3)).expect("new bytes");
    assert_eq!((last.dsn, last.length, last.mark.idle), (8, 2, true));
    let mut bytes = BytesMut::new();
    sender.copy(&last, &mut bytes);
    assert_eq!(&bytes[..], b"ij");
}

#[test]
fn acknowledgments_free_what_subflows_carry() {
    let mut sender = Sender::new();
    sender.append(Bytes::from_static(b"abcdefgh"));
    sender.finish();
    let first = sender.next_segment(0, room(5)).expect("there are bytes");
    assert!(!first.mark.fin);
    let second = sender.next_segment(1, room(5)).expect("there are bytes");
    assert!(second.mark.fin && second.mark.idle);
    let mut freed = Vec::new();
    assert!(!sender.handle_ack(10, &mut freed), "that was not sent");
    assert!(sender.handle_ack(6, &mut freed));
    let expected = [Freed { carriers: Slots::one(0), bytes: 5 }, Freed { carriers: Slots::one(1), bytes: 1 }];
    assert_eq!(freed, expected);
    assert!(!sender.is_done());
    assert!(sender.handle_ack(9, &mut freed) && sender.is_done());
    assert_eq!(sender.buffered(), 0);
}

#[test]
fn a_redundant_subflow_gets_what_the_other_one_carries() {
    let mut sender = Sender::new();
    sender.append(Bytes::from_static(b"abcdef"));
    let redundant = Room { redundant: true, ..room(3) };
    let sent = |sender: &mut Sender, slot| sender.next_segment(slot, redundant).map(|s| s.dsn);
    assert_eq!(sent(&mut sender, 0), Some(0));
    assert_eq!(sent(&mut sender, 1), Some(0));
    assert_eq!(sent(&mut sender, 1), Some(3));
    assert_eq!(sent(&mut sender, 1), None);
    assert_eq!(sent(&mut sender, 0), Some(3));
    assert_eq!(sent(&mut sender, 0), None);
}

#[test]
fn a_stream_of_single_bytes_costs_little_memory_and_keeps_its_bytes() {
    let mut sender = Sender::new();
    let expected: Vec<u8> = (0..20_000u32).map(|n| n as u8).collect();
    for byte in &expected {
        sender.append(Bytes::copy_from_slice(&[*byte]));
    }
    let all = Emission { dsn: 0, length: expected.len(), mark: PLAIN, new: 0 };
    let mut bytes = BytesMut::new();
    sender.copy(&all, &mut bytes);
    assert_eq!(bytes, expected);
}
