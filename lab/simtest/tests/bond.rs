//! Sessions of device and relay in random worlds on virtual time: every stream's bytes come out once
//! and in order, in both directions, and every stream ends once any path works.

mod common;

use std::time::Duration;

use common::bonds::scene;
use multiway_simtest::bond::scene::Scene;
use multiway_simtest::bond::world::{Outcome, World};
use proptest::prelude::*;

/// Longer than any run that ends takes: a path may be held back for half a minute after it failed
/// again and again, and connections are given up after a minute of silence.
const LIMIT: Duration = Duration::from_secs(400);

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
}
