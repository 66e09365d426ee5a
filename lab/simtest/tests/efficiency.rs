//! How near the split engine comes to the offline optimum, on virtual time.

mod common;

use std::time::Duration;

use common::{assert_whole, each_alone, fast, run};
use multiway_core::mphttp::download::{DownloadConfig, Opening};
use multiway_simtest::outcome::offline_optimum;
use multiway_simtest::path::SimPath;

const MEGABYTE: u64 = 1_000_000;

/// Wi-Fi against LTE at 30 Mbit/s: rate, and both round-trip times.
const GRID: [(f64, u64, u64); 8] = [
    (50.0, 50, 50),
    (20.0, 50, 50),
    (5.0, 50, 50),
    (0.5, 50, 50),
    (50.0, 20, 80),
    (20.0, 20, 80),
    (5.0, 20, 80),
    (0.5, 20, 80),
];

fn modes() -> [(&'static str, DownloadConfig); 3] {
    [
        ("as client, all at once", fast()),
        ("as client", DownloadConfig { open_all_paths_at_once: false, ..fast() }),
        ("range", DownloadConfig { opening: Opening::Range { begin: 0 }, ..fast() }),
    ]
}

/// Efficiency T*/T in thousandths of each mode, cell by cell, with the cell's name.
fn efficiencies(size: u64) -> Vec<(String, [u128; 3])> {
    GRID.iter()
        .map(|&(wifi, wifi_rtt, lte_rtt)| {
            let paths = [SimPath::new(wifi, wifi_rtt), SimPath::new(30.0, lte_rtt)];
            let alone = each_alone(&paths, size);
            let optimum = offline_optimum(&alone, size).expect("both paths work");
            let of_mode = modes().map(|(_, config)| {
                let both = run(&paths, size, &config);
                assert_whole(&both, size);
                (optimum * 1000).as_nanos() / both.finished.expect("asserted above").as_nanos()
            });
            (format!("{wifi}+30 Mbit/s, {wifi_rtt}/{lte_rtt} ms, {size} bytes"), of_mode)
        })
        .collect()
}

/// Asserts a least efficiency per mode, in thousandths.
#[track_caller]
fn assert_efficient(size: u64, least: [u128; 3]) {
    for (cell, of_mode) in efficiencies(size) {
        for ((mode, _), (found, least)) in modes().iter().zip(of_mode.iter().zip(least)) {
            assert!(*found >= least, "{cell}, {mode}: {found} of 1000, not {least}");
        }
    }
}

#[test]
fn ten_megabytes_take_little_longer_than_the_offline_optimum() {
    assert_efficient(10 * MEGABYTE, [975, 945, 975]);
}

#[test]
fn one_megabyte_takes_little_longer_where_all_paths_start_at_once() {
    assert_efficient(MEGABYTE, [925, 760, 950]);
}

/// Rule 4 over the whole grid: never more than 3% later than the best path alone, or 30 ms if that
/// is more. Where other paths are opened only when the first has answered, it is a handshake and a
/// request later that the best can begin: two of its round trips, if the first is not the best.
#[test]
fn no_cell_of_the_grid_is_slower_than_the_best_path_alone() {
    // As much work as all the other tests here together: for every mode a thread of its own.
    std::thread::scope(|scope| {
        for (mode, config) in modes() {
            scope.spawn(move || {
                for size in [MEGABYTE, 10 * MEGABYTE, 100 * MEGABYTE] {
                    GRID.into_iter().for_each(|cell| assert_no_slower(cell, size, mode, &config));
                }
            });
        }
    });
}

#[track_caller]
fn assert_no_slower(
    (wifi, wifi_rtt, lte_rtt): (f64, u64, u64),
    size: u64,
    mode: &str,
    config: &DownloadConfig,
) {
    let paths = [SimPath::new(wifi, wifi_rtt), SimPath::new(30.0, lte_rtt)];
    // So slow a path alone would take longer than any simulation runs.
    let contenders = if wifi < 1.0 { &paths[1..] } else { &paths };
    let alone = each_alone(contenders, size);
    let best = alone.iter().filter_map(|one| one.finished).min().expect("they work");
    let is_first_best = contenders.len() == 2 && alone[0].finished == Some(best);
    let waits = !config.open_all_paths_at_once && !is_first_best;
    let answer = if waits { paths[0].rtt * 2 } else { Duration::ZERO };
    let both = run(&paths, size, config).finished.expect("both paths work");
    let allowed = best + answer + (best * 3 / 100).max(Duration::from_millis(30));
    let cell = format!("{wifi}+30 Mbit/s, {wifi_rtt}/{lte_rtt} ms, {size} bytes, {mode}");
    assert!(both <= allowed, "{cell}: {both:?} against {best:?} alone");
}

/// A server that takes its time for each answer, one after the other, is asked for more at once.
#[test]
fn a_server_that_thinks_is_asked_seldom() {
    for (think, most_requests) in [(100, 30), (1_000, 10)] {
        let slow = |path: SimPath| SimPath { think: Duration::from_millis(think), ..path };
        let paths = [slow(SimPath::new(50.0, 50)), slow(SimPath::new(30.0, 50))];
        let size = 40 * MEGABYTE;
        let alone = each_alone(&paths, size);
        let best = alone.iter().filter_map(|one| one.finished).min().expect("both work");
        for (mode, config) in modes() {
            let both = run(&paths, size, &config);
            assert_whole(&both, size);
            let requests = both.requests().len();
            assert!(requests <= most_requests, "{think} ms, {mode}: {requests} requests");
            // Where the first request is a range of a few bytes, its thought comes on top.
            let first = match config.opening {
                Opening::AsClient => Duration::ZERO,
                Opening::Range { .. } => Duration::from_millis(think),
            };
            let time = both.finished.expect("asserted above");
            assert!(time <= best + first, "{think} ms, {mode}: {time:?} against {best:?} alone");
        }
    }
}
