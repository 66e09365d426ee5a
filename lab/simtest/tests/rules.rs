//! The rules that always hold, in random worlds on virtual time.

mod common;

use std::time::Duration;

use common::worlds::{Scene, resumed_scene, steady_path, steady_scene, troubled_scene};
use common::{assert_whole, cases, fast};
use multiway_core::mphttp::download::{DownloadConfig, Failure, Opening, Preference};
use multiway_simtest::outcome::{Outcome, most_in_a_second};
use multiway_simtest::path::{Conduct, FOR_EVER, SimPath};
use multiway_simtest::world::{Reader, World};
use proptest::prelude::*;
use proptest::strategy::ValueTree as _;
use proptest::test_runner::{RngAlgorithm, TestRng, TestRunner};

/// Whether this path brings the object for as long as it takes.
fn works_in_the_end(path: &SimPath) -> bool {
    let honest = path.conduct.serves_the_object();
    honest && path.silent.iter().chain(&path.down).all(|(_, to)| *to < FOR_EVER)
}

fn serves_two_versions(scene: &Scene) -> bool {
    scene
        .paths
        .iter()
        .any(|path| matches!(path.conduct, Conduct::OtherVersion | Conduct::OtherVersionDeclared))
}

/// Rules 1 and 2.
fn check_bytes(scene: &Scene, outcome: &Outcome) {
    assert!(!outcome.versions.is_empty(), "bytes of several versions were mixed");
    let whole = outcome.delivered == scene.wanted();
    assert_eq!(whole, outcome.finished.is_some());
    if scene.paths.iter().any(works_in_the_end) {
        match outcome.failure() {
            None => {
                assert!(whole, "stuck at {} of {}: {:?}", outcome.delivered, scene.wanted(), outcome.events)
            }
            Some(_) if serves_two_versions(scene) => {}
            // A server that cannot be reached at all is not waited for.
            Some(Failure::AllPathsFailed) if outcome.delivered == 0 => {}
            failure => panic!("{failure:?} at {} of {}", outcome.delivered, scene.wanted()),
        }
    }
}

/// Rule 3.
fn check_memory(scene: &Scene, outcome: &Outcome) {
    assert!(outcome.most_held <= scene.config.memory_bytes + (64 << 10), "{}", outcome.most_held);
}

/// What servers may be bothered with.
fn check_load(scene: &Scene, outcome: &Outcome) {
    for path in 0..scene.paths.len() {
        let connects = most_in_a_second(&outcome.connects(Some(path)));
        assert!(connects <= 25, "{connects} connections in a second over path {path}");
    }
    let requests = most_in_a_second(&outcome.requests());
    assert!(requests <= 400, "{requests} requests in a second");
}

proptest! {
    #![proptest_config(cases(8_000))]

    #[test]
    fn the_reader_gets_one_version_and_all_of_it_whatever_happens(scene in troubled_scene()) {
        let outcome = scene.run();
        check_bytes(&scene, &outcome);
        check_memory(&scene, &outcome);
        check_load(&scene, &outcome);
    }
}

/// Rule 4: how much later than allowed all paths together end than the best of them alone.
fn lateness(scene: &Scene) -> Option<Duration> {
    let together = scene.run();
    assert_whole(&together, scene.size);
    let together = together.finished.expect("asserted above");
    let alone = (0..scene.paths.len()).filter_map(|path| Some((scene.alone(path).run().finished?, path)));
    let (best, path) = alone.min().expect("every path works");
    together.checked_sub(best + scene.allowance(path, best)).filter(|late| !late.is_zero())
}

#[test]
fn steady_paths_together_are_never_slower_than_the_best_alone() {
    const SCENES: usize = 2_000;
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &[1; 32]);
    let mut runner = TestRunner::new_with_rng(cases(1), rng);
    let strategy = steady_scene();
    let late: Vec<(Duration, Scene)> = (0..SCENES)
        .filter_map(|_| {
            let scene = strategy.new_tree(&mut runner).expect("no scene is rejected").current();
            lateness(&scene).map(|late| (late, scene))
        })
        .collect();
    assert!(late.is_empty(), "{} of {SCENES}: {late:?}", late.len());
}

/// A scene of rule 4: rate and round-trip time of each path, size, and how it is opened.
#[track_caller]
fn assert_not_late(paths: &[(f64, u64)], size: u64, opening: Opening, open_all_paths_at_once: bool) {
    let paths = paths.iter().map(|&(mbit, rtt)| SimPath::new(mbit, rtt)).collect();
    let config = DownloadConfig { opening, open_all_paths_at_once, ..fast() };
    let scene = Scene { paths, size, config, reader: Reader::Greedy, seed: 0 };
    assert_eq!(lateness(&scene), None);
}

#[test]
fn the_last_small_part_of_a_cold_path_is_asked_for_elsewhere_as_soon_as_another_is_idle() {
    let range = Opening::Range { begin: 0 };
    let fast_second = [(0.57, 39), (25.78, 5), (0.42, 79), (2.17, 8), (1.23, 254)];
    assert_not_late(&fast_second, 393_696, range, false);
    assert_not_late(&[(0.92, 5), (59.37, 7), (0.28, 186)], 2_119_048, Opening::AsClient, true);
}

#[test]
fn what_came_out_of_order_is_not_fetched_again() {
    assert_not_late(&[(0.67, 13), (33.17, 21)], 2_047_113, Opening::Range { begin: 0 }, true);
}

#[test]
fn the_client_s_own_response_goes_on_where_slow_paths_would_hold_it_up() {
    let slow_start = [(42.29, 200), (0.26, 7), (0.22, 17), (0.43, 223)];
    assert_not_late(&slow_start, 339_093, Opening::AsClient, true);
}

proptest! {
    #![proptest_config(cases(1_000))]

    #[test]
    fn a_partial_file_is_continued_with_its_own_version_or_not_at_all(
        (scene, kept_version) in resumed_scene()
    ) {
        let outcome = scene.run();
        check_memory(&scene, &outcome);
        if kept_version == 0 {
            check_bytes(&scene, &outcome);
        } else {
            prop_assert_eq!(outcome.delivered, 0, "the file's bytes are of another version");
            prop_assert_ne!(outcome.failure(), None);
        }
    }

    #[test]
    fn a_path_without_permission_carries_nothing(mut scene in troubled_scene(), denied in any::<prop::sample::Index>()) {
        let denied = denied.index(scene.paths.len());
        scene.paths[denied].permitted = false;
        let outcome = scene.run();
        prop_assert_eq!(outcome.connects(Some(denied)), Vec::<Duration>::new());
        prop_assert_eq!(outcome.carried[denied], 0);
    }

    #[test]
    fn a_metered_path_rests_while_the_unmetered_meets_the_tolerance(
        unmetered in steady_path(), metered in steady_path(), size in 20_000u64..3_000_000,
        at_once in any::<bool>(),
    ) {
        let alone = common::run(std::slice::from_ref(&unmetered), size, &fast()).finished.expect("it works");
        let config = DownloadConfig {
            preference: Preference::Thrifty { tolerance: alone * 2 },
            open_all_paths_at_once: at_once,
            ..fast()
        };
        let metered = SimPath { metered: true, ..metered };
        let outcome = common::run(&[unmetered, metered], size, &config);
        assert_whole(&outcome, size);
        prop_assert_eq!(outcome.connects(Some(1)), Vec::<Duration>::new());
        prop_assert_eq!(outcome.carried[1], 0);
    }
}

#[test]
fn a_reader_that_stops_stops_the_senders() {
    let paths = vec![SimPath::new(50.0, 50), SimPath::new(30.0, 50)];
    let config = DownloadConfig { memory_bytes: 1 << 20, ..fast() };
    let reader = Reader::Pauses { after: 1_000_000, pause: Duration::from_secs(300) };
    let outcome = World::new(paths, 40_000_000, config, reader).run(Duration::from_secs(60));
    assert_eq!(outcome.delivered, 1_000_000);
    assert_eq!(outcome.failure(), None, "a slow reader is nobody's failure");
    assert!(outcome.most_held <= (1 << 20) + (64 << 10), "{}", outcome.most_held);
    // What the kernels' receive buffers took (6 MiB each) is not read.
    let carried: u64 = outcome.carried.iter().sum();
    assert!(carried < 1_000_000 + 3 * (7 << 20), "{carried}");
}
