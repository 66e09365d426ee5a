//! Sessions of device and relay in random worlds on virtual time: every stream's bytes come out once
//! and in order, in both directions, and every stream ends once any path works.

mod common;

use std::time::Duration;

use common::bonds::{calm_scene, scene};
use multiway_core::bond::{Event, SessionConfig};
use multiway_core::paths::PathId;
use multiway_simtest::bond::scene::Scene;
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
