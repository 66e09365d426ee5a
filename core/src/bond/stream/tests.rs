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
    while let Some(bytes) = receiver.read(3) {
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

#[test]
fn the_window_grows_while_the_reader_keeps_up_and_stops_at_its_bound() {
    let mut receiver = Receiver::new(1 << 20, Timestamp::ZERO);
    let rtt = Duration::from_millis(100);
    let mut now = Timestamp::ZERO;
    assert!(receiver.wants_grant(rtt, now));
    let mut dsn = 0;
    for _ in 0..200 {
        let granted = receiver.grant();
        assert!(granted - receiver.consumed() <= 1 << 20);
        while dsn < granted {
            let piece = (granted - dsn).min(16 << 10);
            receiver.handle_data(STREAM, dsn, PLAIN, vec![0; piece as usize].into()).expect("allowed");
            dsn += piece;
        }
        while receiver.read(1 << 20).is_some() {}
        now = now + rtt;
        assert!(receiver.wants_grant(rtt, now));
    }
    assert_eq!(receiver.grant() - receiver.consumed(), 1 << 20);
}

#[test]
fn a_window_that_a_gap_used_up_grows_however_long_that_took() {
    let mut receiver = Receiver::new(8 << 20, Timestamp::ZERO);
    let at = |seconds| Timestamp::from_origin(Duration::from_secs(seconds));
    let rtt = Duration::from_millis(50);
    let read = |receiver: &mut Receiver, now| {
        while receiver.read(usize::MAX).is_some() {}
        assert!(receiver.wants_grant(rtt, now));
        receiver.grant() - receiver.consumed()
    };
    let piece = |length: u64| Bytes::from(vec![0; length as usize]);
    assert!(receiver.wants_grant(rtt, at(0)));
    let granted = receiver.grant();
    receiver.handle_data(STREAM, 0, PLAIN, piece(granted)).unwrap();
    assert_eq!(read(&mut receiver, at(5)), granted, "a leisurely sender needs no more");
    receiver.handle_data(STREAM, granted + 1, PLAIN, piece(granted - 1)).unwrap();
    receiver.handle_data(STREAM, granted, PLAIN, piece(1)).unwrap();
    assert_eq!(read(&mut receiver, at(10)), 2 * granted);
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
