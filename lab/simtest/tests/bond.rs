//! Sessions of device and relay in random worlds on virtual time: every stream's bytes come out once
//! and in order, in both directions, and every stream ends once any path works.

mod common;

use std::time::Duration;

use common::bonds::{calm_scene, scene};
use multiway_core::bond::{Event, Limits, SessionConfig};
use multiway_core::paths::PathId;
use multiway_linksim::{Change, LinkSpec, mbit};
use multiway_simtest::bond::scene::{BondPath, Half, Scene, StreamPlan};
use multiway_simtest::bond::world::{Outcome, World};
use proptest::prelude::*;

/// Longer than any run that ends takes: a path may be held back for half a minute after it failed
/// again and again, connections are given up after a minute of silence, and a quiet metered path is asked
/// after four.
const LIMIT: Duration = Duration::from_secs(900);

fn run(scene: Scene) -> Outcome {
    World::new(scene).run(LIMIT)
}

proptest! {
    #![proptest_config(common::cases(3_000))]

    #[test]
    fn every_stream_arrives_once_in_order_and_ends_whatever_happens(scene in scene()) {
        let outcome = run(scene);
        prop_assert!(outcome.faults.is_empty(), "{}", outcome.faults.join("\n"));
    }

    /// Break-before-make: without a suspicion not one packet leaves over another path.
    #[test]
    fn a_path_that_works_is_the_only_one_used(mut scene in calm_scene()) {
        scene.config = SessionConfig { limits: scene.config.limits, ..SessionConfig::handover() };
        let outcome = run(scene);
        prop_assert!(outcome.faults.is_empty(), "{}", outcome.faults.join("\n"));
        let suspected = |event: &Event| matches!(event, Event::PathSuspected { path: PathId(1), .. });
        if !outcome.events.iter().any(|(_, event)| suspected(event)) {
            prop_assert_eq!(&outcome.opened[1..], &vec![0; outcome.opened.len() - 1]);
        }
    }
}

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn path(rtt: u64) -> BondPath {
    BondPath::new(LinkSpec::symmetric(mbit(1), ms(rtt)))
}

fn assert_ends(paths: Vec<BondPath>, limits: Limits, streams: Vec<StreamPlan>) {
    let config = SessionConfig { limits, ..SessionConfig::handover() };
    let outcome = run(Scene { oracle: false, ..Scene::new(paths, config, streams) });
    assert!(outcome.faults.is_empty(), "{}", outcome.faults.join("\n"));
}

#[test]
fn a_writer_that_found_no_room_among_others_is_told_of_some() {
    let limits = Limits { send_in_all: 4000, ..Limits::default() };
    let slow = Half { chunk: 738, pause: ms(18), ..Half::greedy(73_837) };
    let second = StreamPlan { opens_at: ms(200), ..StreamPlan::download(192_001) };
    assert_ends(vec![path(4)], limits, vec![StreamPlan { down: slow, ..StreamPlan::download(0) }, second]);
}

#[test]
fn a_relay_leaves_a_subflow_that_the_device_has_lost() {
    let mut path = path(15);
    path.absent = vec![(ms(40), ms(60))];
    let up = StreamPlan { opens_at: ms(228), up: Half::greedy(61_452), ..StreamPlan::download(0) };
    assert_ends(vec![path], Limits::default(), vec![up]);
}

#[test]
fn one_stream_too_many_is_refused_and_ends_nothing() {
    let limits = Limits { streams: 1, ..Limits::default() };
    let unread = Half { read_chunk: 1000, read_pause: ms(100), ..Half::greedy(5000) };
    let first = StreamPlan { up: unread, ..StreamPlan::download(0) };
    let first = StreamPlan { down: Half::greedy(0), ..first };
    assert_ends(vec![path(4)], limits, vec![first, StreamPlan::download(1000)]);
}

#[test]
fn what_a_server_sends_over_a_forgotten_connection_arrives_in_the_end() {
    let mut forgetful = path(4);
    forgetful.spec = forgetful.spec.with_change(ms(2000), Change::Blackhole(true));
    // The program only listens, and the server speaks again after the path has died.
    let down = Half { chunk: 10, pause: ms(5000), starts_after: 200, ..Half::greedy(20) };
    assert_ends(
        vec![forgetful, path(20)],
        Limits::default(),
        vec![StreamPlan { down, ..StreamPlan::download(0) }],
    );
}
