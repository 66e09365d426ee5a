//! How near the split engine comes to the offline optimum, on virtual time.

mod common;

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
