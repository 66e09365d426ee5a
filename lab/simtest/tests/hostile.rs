//! Servers whose numbers are absurd, and servers that would have the client hammer them.

mod common;

use std::time::Duration;

use bytes::Bytes;
use common::{fast, run};
use multiway_core::mphttp::download::{
    Action, Download, DownloadConfig, Event, LaneId, Opening, OpeningHead, PartHead, PathOffer,
};
use multiway_core::paths::{PathEstimate, PathId};
use multiway_core::units::Timestamp;
use multiway_simtest::outcome::most_in_a_second;
use multiway_simtest::path::{Conduct, SimPath};
use proptest::prelude::*;

/// Numbers at which arithmetic goes wrong.
fn number() -> impl Strategy<Value = u64> {
    prop_oneof![
        Just(0),
        Just(1),
        Just(1023),
        Just(1024),
        Just(1025),
        0u64..200_000,
        (0u64..200_000).prop_map(|below| u64::MAX - below),
        any::<u64>(),
    ]
}

/// Whatever an engine can tell a download.
#[derive(Debug, Clone)]
enum Told {
    Connected(u32),
    Opening(u32, OpeningHead),
    Part(u32, PartHead),
    Body(u32, usize),
    Closed(u32),
    PathDown(u32),
    PathUp(u32),
    Consumed(u64),
    Read(u64),
    TimePassed(u64),
}

fn told() -> impl Strategy<Value = Told> {
    let lane = || 0u32..6;
    let opening = (number(), number(), number(), number(), any::<bool>()).prop_map(
        |(start, end, region_begin, region_end, reusable)| OpeningHead {
            start,
            end,
            region_begin,
            region_end,
            reusable,
        },
    );
    let part = prop_oneof![
        6 => (number(), number(), any::<bool>())
            .prop_map(|(start, end, reusable)| PartHead::Part { start, end, reusable }),
        1 => number().prop_map(|total| PartHead::Whole { total }),
        1 => number().prop_map(|wait| PartHead::Refused { retry_after: Some(Duration::from_secs(wait)) }),
        1 => Just(PartHead::Different),
    ];
    prop_oneof![
        lane().prop_map(Told::Connected),
        (lane(), opening).prop_map(|(lane, head)| Told::Opening(lane, head)),
        (lane(), part).prop_map(|(lane, head)| Told::Part(lane, head)),
        (lane(), 0usize..100_000).prop_map(|(lane, length)| Told::Body(lane, length)),
        lane().prop_map(Told::Closed),
        (0u32..3).prop_map(Told::PathDown),
        (0u32..3).prop_map(Told::PathUp),
        number().prop_map(Told::Consumed),
        number().prop_map(Told::Read),
        (0u64..3_000).prop_map(Told::TimePassed),
    ]
}

fn offer(path: u32) -> PathOffer {
    PathOffer { path: PathId(path), metered: false, estimate: PathEstimate::default() }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_sequence_of_inputs_panics_or_holds_more_than_allowed(
        begin in number(), at_once in any::<bool>(), range in any::<bool>(), tail in 0usize..2_000,
        inputs in prop::collection::vec(told(), 1..60),
    ) {
        let config = DownloadConfig {
            opening: if range { Opening::Range { begin } } else { Opening::AsClient },
            open_all_paths_at_once: at_once,
            memory_bytes: 256 << 10,
            tail: vec![7; if range { tail } else { 0 }],
            ..fast()
        };
        let mut now = Timestamp::ZERO;
        let mut download = Download::new(config, vec![offer(0), offer(1)], now);
        for input in inputs {
            match input {
                Told::Connected(lane) => download.handle_connected(LaneId(lane), None, now),
                Told::Opening(lane, head) => download.handle_opening_head(LaneId(lane), head, now),
                Told::Part(lane, head) => download.handle_part_head(LaneId(lane), head, now),
                Told::Body(lane, length) => {
                    // An engine reads no more than it may.
                    let length = download.read_budget(LaneId(lane)).min(length as u64);
                    download.handle_body(LaneId(lane), Bytes::from(vec![7; length as usize]), now);
                }
                Told::Closed(lane) => download.handle_closed(LaneId(lane), now),
                Told::PathDown(path) => download.handle_path_down(PathId(path), now),
                Told::PathUp(path) => download.handle_path_up(offer(path), now),
                Told::Consumed(bytes) => download.handle_consumed(bytes, now),
                Told::Read(most) => drop(download.next_bytes(most, now)),
                Told::TimePassed(millis) => {
                    now = now + Duration::from_millis(millis);
                    download.handle_timeout(now);
                }
            }
            let mut actions = 0;
            while let Some(action) = download.poll_action() {
                actions += 1;
                if let Action::Request { ask: multiway_core::mphttp::download::Ask::Part { start, end }, .. } = action {
                    prop_assert!(start < end, "nothing is asked for: {start}..{end}");
                }
            }
            prop_assert!(actions < 200, "{actions} actions at once");
        }
        prop_assert!(download.most_held_bytes() <= (256 << 10) + (64 << 10), "{}", download.most_held_bytes());
        let events = std::iter::from_fn(|| download.poll_event());
        let ends = events.filter(|event| matches!(event, Event::Finished | Event::Failed(_))).count();
        prop_assert!(ends <= 1, "a download ends once");
    }
}

#[test]
fn servers_that_hang_up_or_refuse_are_not_hammered() {
    let conducts = [
        Conduct::Refuses,
        Conduct::ClosesAfterResponse,
        Conduct::ClosesUnannounced,
        Conduct::ClosesEarly,
        Conduct::ClosesAtOnce,
        Conduct::RefusesConnections,
        Conduct::ShortPart,
        Conduct::Mute,
    ];
    for conduct in conducts {
        let paths = [SimPath::new(2.0, 20), SimPath::new(20.0, 5).with_conduct(conduct)];
        let outcome = run(&paths, 3_000_000, &fast());
        common::assert_whole(&outcome, 3_000_000);
        let connects = most_in_a_second(&outcome.connects(Some(1)));
        assert!(connects <= 21, "{conduct:?}: {connects} connections in a second");
        let requests = most_in_a_second(&outcome.requests());
        assert!(requests <= 200, "{conduct:?}: {requests} requests in a second");
    }
}
