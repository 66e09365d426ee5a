//! How fast streams get through a relay, on virtual time: figures of kind `sim`.

use std::time::Duration;

use multiway_core::bond::{DetectorKind, SessionConfig};
use multiway_core::paths::PathEstimate;
use multiway_linksim::{Change, LinkSpec, mbit};
use multiway_simtest::bond::scene::{BondPath, Scene, StreamPlan};
use multiway_simtest::bond::world::{Outcome, World};

const MB: u64 = 1_000_000;

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn path((rate, rtt): (u64, u64)) -> BondPath {
    BondPath {
        estimate: PathEstimate { rtt: Some(ms(rtt)), ..PathEstimate::default() },
        ..BondPath::new(LinkSpec::symmetric(mbit(rate), ms(rtt)))
    }
}

fn scene(paths: Vec<BondPath>, config: SessionConfig, bytes: u64) -> Scene {
    Scene {
        paths,
        config,
        detector: DetectorKind::Improved,
        oracle: true,
        streams: vec![StreamPlan::download(bytes)],
        deaths: Vec::new(),
        handshake_rounds: 1,
        piece: usize::MAX,
        seed: 1,
    }
}

fn run(scene: Scene) -> Outcome {
    let outcome = World::new(scene).run(Duration::from_secs(600));
    assert!(outcome.faults.is_empty(), "{}", outcome.faults.join("\n"));
    outcome
}

fn time(outcome: &Outcome) -> Duration {
    outcome.streams[0].1.expect("every stream ended")
}

/// Each path alone, and both.
fn times(first: (u64, u64), second: (u64, u64), bytes: u64) -> ([f64; 2], f64) {
    let alone = |one| time(&run(scene(vec![path(one)], SessionConfig::handover(), bytes))).as_secs_f64();
    let both = scene(vec![path(first), path(second)], SessionConfig::aggregate(), bytes);
    ([alone(first), alone(second)], time(&run(both)).as_secs_f64())
}

/// The second path is asked for once the transfer has proved long; what it would have carried until then is
/// the rest.
#[test]
fn two_paths_together_bring_most_of_their_sum() {
    for (first, second, least) in
        [((10, 15), (10, 25), 0.95), ((20, 30), (20, 30), 0.95), ((50, 20), (20, 60), 0.93)]
    {
        let (alone, both) = times(first, second, 20 * MB);
        let share = 1.0 / (1.0 / alone[0] + 1.0 / alone[1]) / both;
        assert!(share >= least, "{first:?} and {second:?}: {share:.3} of the sum");
    }
}

/// Rule 4: 3% and 2 RTT.
#[test]
fn another_path_never_makes_the_best_one_slower() {
    for (first, second) in
        [((100, 10), (10, 100)), ((50, 10), (1, 300)), ((50, 20), (20, 60)), ((10, 15), (10, 25))]
    {
        for bytes in [100_000, MB, 20 * MB] {
            let (alone, both) = times(first, second, bytes);
            let most = alone[0] * 1.03 + 2.0 * first.1.min(second.1) as f64 / 1000.0;
            assert!(
                both <= most,
                "{first:?} and {second:?}, {bytes} bytes: {both:.3} s, {:.3} s alone",
                alone[0]
            );
        }
    }
}

/// MultiMob's figure 6: a download whose path falls silent. The paper's detector waits for 500 ms.
#[test]
fn a_silent_path_stalls_a_download_for_less_than_half_a_second() {
    for silent_at in [1500, 1507, 1519, 3000] {
        let mut first = path((10, 15));
        first.spec = first.spec.with_change(ms(silent_at), Change::Blackhole(true));
        for (detector, most) in [(DetectorKind::Improved, 400), (DetectorKind::MultiMob, 700)] {
            let paths = vec![first.clone(), path((10, 25))];
            let outcome = run(Scene { detector, ..scene(paths, SessionConfig::handover(), 20 * MB) });
            let stall = outcome.longest_stall;
            assert!(stall <= ms(most), "{detector:?}, silent at {silent_at} ms: a stall of {stall:?}");
        }
    }
}
