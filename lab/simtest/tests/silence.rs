//! Paths that fall silent, go, and come back.

mod common;

use std::time::Duration;

use common::{assert_whole, each_alone, fast, run};
use multiway_core::mphttp::download::{DownloadConfig, Failure, Opening};
use multiway_simtest::outcome::offline_optimum;
use multiway_simtest::path::{FOR_EVER, SimPath};

const TEN_MEGABYTES: u64 = 10_000_000;

fn wifi() -> SimPath {
    SimPath::new(50.0, 50)
}

fn lte() -> SimPath {
    SimPath::new(30.0, 50)
}

fn openings() -> [DownloadConfig; 2] {
    [fast(), DownloadConfig { opening: Opening::Range { begin: 0 }, ..fast() }]
}

#[test]
fn a_path_that_falls_silent_costs_little_and_the_reader_hardly_notices() {
    let paths = [wifi().silent_between(700, FOR_EVER), lte()];
    let optimum = offline_optimum(&each_alone(&paths, TEN_MEGABYTES), TEN_MEGABYTES).expect("LTE works");
    for config in openings() {
        let outcome = run(&paths, TEN_MEGABYTES, &config);
        assert_whole(&outcome, TEN_MEGABYTES);
        let time = outcome.finished.expect("asserted above");
        assert!(time <= optimum * 115 / 100, "{time:?} against {optimum:?}");
        assert!(outcome.longest_stall <= Duration::from_millis(400), "{:?}", outcome.longest_stall);
    }
}

#[test]
fn a_second_path_that_falls_silent_costs_as_little() {
    let paths = [wifi(), lte().silent_between(700, FOR_EVER)];
    let optimum = offline_optimum(&each_alone(&paths, TEN_MEGABYTES), TEN_MEGABYTES).expect("Wi-Fi works");
    for config in openings() {
        let outcome = run(&paths, TEN_MEGABYTES, &config);
        assert_whole(&outcome, TEN_MEGABYTES);
        let time = outcome.finished.expect("asserted above");
        assert!(time <= optimum * 115 / 100, "{time:?} against {optimum:?}");
        assert!(outcome.longest_stall <= Duration::from_millis(400), "{:?}", outcome.longest_stall);
    }
}

#[test]
fn a_path_that_comes_back_is_used_again() {
    let back = Duration::from_millis(3_000);
    let size = 4 * TEN_MEGABYTES;
    for (name, wifi) in
        [("silent", wifi().silent_between(700, back)), ("gone", wifi().down_between(700, back))]
    {
        let away = [wifi, lte()];
        let outcome = run(&away, size, &fast());
        assert_whole(&outcome, size);
        let optimum = offline_optimum(&each_alone(&away, size), size).expect("both work in the end");
        let time = outcome.finished.expect("asserted above");
        assert!(time <= optimum * 115 / 100, "{name}: {time:?} against {optimum:?}");
    }
}

#[test]
fn all_paths_silent_and_back_end_whole() {
    let back = Duration::from_millis(6_000);
    let paths = [wifi().silent_between(700, back), lte().silent_between(700, back)];
    let outcome = run(&paths, TEN_MEGABYTES, &fast());
    assert_whole(&outcome, TEN_MEGABYTES);
    // A connection attempt given up and made again, and its slow start.
    let limit = back + Duration::from_millis(3_000);
    assert!(outcome.finished.expect("asserted above") <= limit, "{:?}", outcome.finished);
}

#[test]
fn a_first_path_silent_from_the_start_is_gone_around() {
    let paths = [wifi().silent_between(0, FOR_EVER), lte()];
    let alone = run(&paths[1..], TEN_MEGABYTES, &fast()).finished.expect("LTE works");
    for config in openings() {
        for open_all_paths_at_once in [true, false] {
            let outcome =
                run(&paths, TEN_MEGABYTES, &DownloadConfig { open_all_paths_at_once, ..config.clone() });
            assert_whole(&outcome, TEN_MEGABYTES);
            let time = outcome.finished.expect("asserted above");
            assert!(time <= alone + Duration::from_millis(700), "{time:?} against {alone:?} alone");
        }
    }
}

#[test]
fn silence_of_every_path_for_good_ends_in_failure() {
    let paths = [wifi().silent_between(700, FOR_EVER), lte().silent_between(700, FOR_EVER)];
    let outcome = run(&paths, TEN_MEGABYTES, &fast());
    assert_eq!(outcome.failure(), Some(Failure::AllPathsFailed));
    assert_eq!(outcome.versions.first(), Some(&0), "what was delivered is right");
    assert!(outcome.ended < Duration::from_secs(90), "{:?}", outcome.ended);
}
