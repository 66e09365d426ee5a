//! A preferred path whose round trip is long, over a satellite: that it is slow is no failure.

use std::time::Duration;

use multiway_core::bond::{DetectorKind, Event, SessionConfig, Suspicion};
use multiway_core::paths::{PathEstimate, PathId};
use multiway_linksim::{LinkSpec, Loss, mbit};
use multiway_simtest::bond::scene::{BondPath, Half, Scene, StreamPlan};
use multiway_simtest::bond::world::World;

const TALK: Duration = Duration::from_secs(60);

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// Somebody who says something every 333 ms and is answered, and a download of 2 MB.
fn programs() -> Vec<StreamPlan> {
    let lines = TALK.as_millis() as u64 / 333;
    let half = |bytes| Half { chunk: bytes, pause: ms(333), ..Half::greedy(bytes * lines) };
    let talk = StreamPlan { up: half(500), down: half(750), ..StreamPlan::download(0) };
    vec![talk, StreamPlan { opens_at: ms(20_000), ..StreamPlan::download(2_000_000) }]
}

/// The device has used it before.
fn known(path: BondPath, rtt: Duration) -> BondPath {
    BondPath { estimate: PathEstimate { rtt: Some(rtt), ..PathEstimate::default() }, ..path }
}

/// Why the satellite was suspected, all runs together, and how often.
fn suspicions(rtt: Duration, lost: f64, detector: DetectorKind, runs: u64) -> Vec<Suspicion> {
    let loss = if lost > 0.0 { Loss::bernoulli(lost).expect("a probability") } else { Loss::None };
    let satellite = LinkSpec::symmetric(mbit(20), rtt).with_loss(loss);
    let lte = BondPath { metered: true, ..BondPath::new(LinkSpec::symmetric(mbit(10), ms(50))) };
    let mut found = Vec::new();
    for seed in 0..runs {
        let paths = vec![known(BondPath::new(satellite.clone()), rtt), lte.clone()];
        let scene = Scene { detector, seed, ..Scene::new(paths, SessionConfig::handover(), programs()) };
        let outcome = World::new(scene).run(Duration::from_secs(600));
        assert!(outcome.faults.is_empty(), "{}", outcome.faults.join("\n"));
        found.extend(outcome.events.iter().filter_map(|(_, event)| match event {
            Event::PathSuspected { path: PathId(1), suspicion } => Some(*suspicion),
            _ => None,
        }));
    }
    found
}

#[test]
fn a_long_round_trip_is_no_failure() {
    for rtt in [500, 600, 800] {
        for lost in [0.0, 0.01] {
            let found = suspicions(ms(rtt), lost, DetectorKind::Improved, 5);
            assert_eq!(found, [], "{rtt} ms, {lost} lost");
        }
    }
}

/// The paper's threshold of 1.5 s counts the first timeout of a connection, which is three round trips.
#[test]
fn multimobs_oracle_leaves_a_satellite() {
    let found = suspicions(ms(600), 0.0, DetectorKind::MultiMob, 1);
    assert!(found.contains(&Suspicion::Timeout), "{found:?}");
}
