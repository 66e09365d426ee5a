//! Readers that stop take nothing from others, whatever they were granted before: streams of one session on
//! virtual time. Figures of kind `sim`.

mod common;

use std::time::Duration;

use multiway_core::bond::wire::{Data, Frame, INITIAL_STREAM_WINDOW, Mark};
use multiway_core::bond::{Limits, Role, Session, SessionConfig, StreamId, SubflowId, Violation};
use multiway_core::paths::PathId;
use multiway_core::units::Timestamp;
use multiway_linksim::{LinkSpec, Loss, mbit};
use multiway_simtest::bond::scene::{BondPath, Half, Scene, Stop, StreamPlan};
use multiway_simtest::bond::world::{Outcome, World};
use proptest::prelude::*;

const MB: u64 = 1_000_000;

/// When those who stopped go on, or give up.
const MORNING: Duration = Duration::from_secs(120);

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn scene(rate: u64, rtt: u64, streams: Vec<StreamPlan>) -> Scene {
    let paths = vec![BondPath::new(LinkSpec::symmetric(mbit(rate), ms(rtt)))];
    Scene::new(paths, SessionConfig::aggregate(), streams)
}

fn run(scene: Scene) -> Outcome {
    let outcome = World::new(scene).run(Duration::from_secs(600));
    assert!(outcome.faults.is_empty(), "{}", outcome.faults.join("\n"));
    outcome
}

/// How long a stream took.
fn time(outcome: &Outcome, stream: usize, opened_at: Duration) -> Duration {
    outcome.streams[stream].1.expect("every stream ended") - opened_at
}

/// A download of which `after` bytes are read, and in the morning the rest, or it is reset.
fn paused(bytes: u64, after: u64, resets: bool) -> StreamPlan {
    let stop = Some(Stop { after, until: MORNING, resets });
    let down = Half { stop, starts_after: 200, ..Half::greedy(bytes) };
    StreamPlan { down, ..StreamPlan::download(0) }
}

/// The same in the other direction: a server that stops reading.
fn stuck(bytes: u64, after: u64, resets: bool) -> StreamPlan {
    let stop = Some(Stop { after, until: MORNING, resets });
    StreamPlan { up: Half { stop, ..Half::greedy(bytes) }, down: Half::greedy(0), ..StreamPlan::download(0) }
}

/// Somebody types ten lines a second for two seconds, and every one is answered.
fn typing(opens_at: Duration) -> StreamPlan {
    let half = |bytes| Half { chunk: bytes, pause: ms(100), ..Half::greedy(bytes * 20) };
    StreamPlan { opens_at, up: half(100), down: half(400), ..StreamPlan::download(0) }
}

fn download(bytes: u64, opens_at: Duration) -> StreamPlan {
    StreamPlan { opens_at, ..StreamPlan::download(bytes) }
}

fn upload(bytes: u64, opens_at: Duration) -> StreamPlan {
    StreamPlan { opens_at, up: Half::greedy(bytes), down: Half::greedy(0), ..StreamPlan::download(0) }
}

/// `stopped` first; behind them somebody types, and loads 10 MB down and 10 MB up.
fn beside(stopped: Vec<StreamPlan>, rate: u64, rtt: u64) {
    let count = stopped.len();
    let later = [0, 500, 1000].map(|after| Duration::from_secs(30) + ms(after));
    let mut streams = stopped;
    streams.extend([typing(later[0]), download(10 * MB, later[1]), upload(10 * MB, later[2])]);
    let outcome = run(scene(rate, rtt, streams));
    let [typed, down, up] = [0, 1, 2].map(|of| time(&outcome, count + of, later[of]));
    assert!(typed < ms(2_500), "{typed:?}");
    // What every stream has, for a round trip and the delay of acknowledgments.
    let least = ms(rtt + 25) * (10 * MB / INITIAL_STREAM_WINDOW) as u32;
    assert!(down < least && up < least, "{down:?} {up:?}, {least:?} at least");
}

/// Each grows alone before it stops.
fn in_turn(plan: impl Fn() -> StreamPlan) -> Vec<StreamPlan> {
    (0..8).map(|turn| StreamPlan { opens_at: Duration::from_secs(3 * turn), ..plan() }).collect()
}

#[test]
fn videos_that_were_paused_stop_nobody_else() {
    beside(in_turn(|| paused(60 * MB, 16 * MB, false)), 100, 100);
}

#[test]
fn servers_that_stopped_reading_stop_nobody_else() {
    beside(in_turn(|| stuck(60 * MB, 16 * MB, false)), 100, 100);
}

#[test]
fn streams_that_are_never_read_stop_nobody_else() {
    for of in [paused, stuck] {
        beside((0..40).map(|_| of(MB, 0, true)).collect(), 100, 40);
    }
}

#[test]
fn as_many_streams_as_there_may_be_that_are_never_read_stop_nobody_else() {
    let most = SessionConfig::aggregate().limits.streams - 3;
    for of in [paused, stuck] {
        beside((0..most).map(|_| of(MB, 0, true)).collect(), 100, 40);
    }
}

/// Streams at once over a path of 100 Mbit/s and 200 ms, after another stream or as the first ones: when the
/// last has ended.
fn fat(count: usize, bytes: u64, of: fn(u64, Duration) -> StreamPlan, is_warm: bool) -> Duration {
    let opens_at = if is_warm { Duration::from_secs(20) } else { Duration::ZERO };
    let mut streams: Vec<StreamPlan> = (0..count).map(|_| of(bytes, opens_at)).collect();
    if is_warm {
        streams.push(of(40 * MB, Duration::ZERO));
    }
    let outcome = run(scene(100, 200, streams));
    (0..count).map(|stream| time(&outcome, stream, opens_at)).max().expect("there is one")
}

/// 50 MB take 4 s at this rate; slow start, HyStart's early end of it and the round trips take the rest.
#[test]
fn windows_fill_a_long_fat_path() {
    assert!(fat(1, 50 * MB, download, false) < ms(8_200));
    assert!(fat(1, 50 * MB, download, true) < ms(6_700));
    assert!(fat(1, 50 * MB, upload, true) < ms(6_700));
}

/// What one window takes at once costs no more than a round trip and its time on the link.
#[test]
fn a_new_stream_over_a_path_that_is_known_begins_with_a_window_of_a_mebibyte() {
    assert!(fat(1, MB, download, true) < ms(300));
}

#[test]
fn many_streams_at_once_fill_a_long_fat_path() {
    assert!(fat(30, 2 * MB, download, false) < ms(9_200));
    assert!(fat(30, 2 * MB, download, true) < ms(7_700));
    // Each has its subflow at once, although the first window of each is used up by then.
    assert!(fat(6, 8 * MB, upload, false) < ms(7_000));
}

/// A device that gives a stream up while its OPEN is on another path.
#[test]
fn a_reset_that_is_there_before_its_stream_counts_what_was_sent() {
    let now = Timestamp::ZERO;
    let mut relay = relay_with_subflow();
    let reset = |end| Frame::Reset { stream: StreamId(0), code: 0, end, answer: false }.to_bytes();
    let mut other = relay_with_subflow();
    assert_eq!(
        other.handle_received(SubflowId(0), reset(INITIAL_STREAM_WINDOW + 1), now),
        Err(Violation::BeyondStreamWindow(0))
    );
    relay.handle_received(SubflowId(0), reset(5000), now).expect("it is allowed");
    let counts = relay.window_counts();
    assert_eq!((counts.received, counts.read), (5000, 5000));
    let late = Frame::Data(Data {
        stream: StreamId(0),
        dsn: 0,
        mark: Mark { idle: false, fin: false },
        bytes: vec![0; 5000].into(),
    });
    relay.handle_received(SubflowId(0), late.to_bytes(), now).expect("it is allowed");
    assert_eq!(relay.window_counts(), counts, "once");
}

fn relay_with_subflow() -> Session {
    let mut relay = Session::new(Role::Relay, SessionConfig::aggregate(), Timestamp::ZERO);
    relay.handle_subflow_up(SubflowId(0), PathId(1), false, Timestamp::ZERO);
    relay
}

/// Readers that stop somewhere and give up or go on later, in either direction.
fn stopped() -> impl Strategy<Value = StreamPlan> {
    let after = prop_oneof![Just(0), 0..200_000u64, 200_000..900_000u64];
    (0..8_000u64, any::<bool>(), after, any::<bool>()).prop_map(|(opens_at, is_up, after, resets)| {
        let plan = if is_up { stuck(MB, after, resets) } else { paused(MB, after, resets) };
        StreamPlan { opens_at: ms(opens_at), ..plan }
    })
}

fn active() -> impl Strategy<Value = StreamPlan> {
    let opens_at = (0..20_000u64).prop_map(ms);
    (opens_at, 0..500_000u64, 0u8..3).prop_map(|(opens_at, bytes, kind)| match kind {
        0 => typing(opens_at),
        1 => download(bytes, opens_at),
        _ => upload(bytes, opens_at),
    })
}

fn pools() -> impl Strategy<Value = Limits> {
    let small = (0..2_000_000u64, 0..4_000_000u64, 65_536..1_000_000u64, 0..4_000_000u64);
    let small = small.prop_map(|(receive, receive_in_all, send, send_in_all)| Limits {
        receive_per_stream: receive,
        receive_in_all,
        send_per_stream: send,
        send_in_all,
        ..Limits::default()
    });
    prop_oneof![Just(Limits::default()), small]
}

proptest! {
    #![proptest_config(common::cases(150))]

    /// The world holds both ends' memory to its bound throughout, and their windows to be free in the end.
    #[test]
    fn who_reads_goes_on_whoever_stops(
        paths in prop::collection::vec((4..60u64, 5..150u64, 0..3u64), 1..3),
        stopped in prop::collection::vec(stopped(), 1..40),
        active in prop::collection::vec(active(), 1..5),
        limits in pools(),
        aggregate in any::<bool>(),
        seed in any::<u64>(),
    ) {
        let config = if aggregate { SessionConfig::aggregate() } else { SessionConfig::handover() };
        let path = |(rate, rtt, loss): (u64, u64, u64)| {
            let loss = Loss::bernoulli(loss as f64 / 1000.0).expect("a probability");
            BondPath::new(LinkSpec::symmetric(mbit(rate), ms(rtt)).with_loss(loss))
        };
        let those = stopped.len()..stopped.len() + active.len();
        let scene = Scene {
            paths: paths.into_iter().map(path).collect(),
            config: SessionConfig { limits, ..config },
            streams: stopped.into_iter().chain(active).collect(),
            seed,
            ..scene(1, 1, Vec::new())
        };
        let outcome = World::new(scene).run(Duration::from_secs(600));
        prop_assert!(outcome.faults.is_empty(), "{}", outcome.faults.join("\n"));
        for (_, ended) in &outcome.streams[those] {
            prop_assert!(ended.is_some_and(|at| at < MORNING), "{ended:?}");
        }
    }
}
