//! What the tests share.

#![allow(dead_code, reason = "each test file uses its part")]

pub(crate) mod bonds;
pub(crate) mod worlds;

use std::time::Duration;

use multiway_core::mphttp::download::{DownloadConfig, Opening, Preference};
use multiway_simtest::outcome::Outcome;
use multiway_simtest::path::SimPath;
use multiway_simtest::world::{Reader, World};
use proptest::prelude::ProptestConfig;
use proptest::test_runner::{FileFailurePersistence, RngSeed};

/// Longer than any run that ends takes.
pub(crate) const LIMIT: Duration = Duration::from_secs(600);

/// All paths from the start, the client's own request first, ample memory.
pub(crate) fn fast() -> DownloadConfig {
    DownloadConfig {
        preference: Preference::Fast,
        opening: Opening::AsClient,
        open_all_paths_at_once: true,
        memory_bytes: 64 << 20,
        tail: Vec::new(),
    }
}

/// The same cases in every run: a failure is found again, and CI does not depend on luck. More are
/// tried with `PROPTEST_RNG_SEED` and `PROPTEST_CASES`.
pub(crate) fn cases(cases: u32) -> ProptestConfig {
    let variable = |name| std::env::var(name).ok();
    let seed = variable("PROPTEST_RNG_SEED").and_then(|seed| seed.parse().ok()).unwrap_or(1);
    let cases = variable("PROPTEST_CASES").and_then(|cases| cases.parse().ok()).unwrap_or(cases);
    ProptestConfig {
        rng_seed: RngSeed::Fixed(seed),
        cases,
        failure_persistence: Some(Box::new(FileFailurePersistence::Off)),
        max_shrink_iters: 300,
        ..ProptestConfig::default()
    }
}

/// A run with a reader that takes everything.
pub(crate) fn run(paths: &[SimPath], size: u64, config: &DownloadConfig) -> Outcome {
    World::new(paths.to_vec(), size, config.clone(), Reader::Greedy).run(LIMIT)
}

/// What each path brings alone, asked as any client asks.
pub(crate) fn each_alone(paths: &[SimPath], size: u64) -> Vec<Outcome> {
    paths.iter().map(|path| run(std::slice::from_ref(path), size, &fast())).collect()
}

/// Every byte of the object's first version was delivered.
#[track_caller]
pub(crate) fn assert_whole(outcome: &Outcome, size: u64) {
    assert!(outcome.finished.is_some(), "{} of {size} delivered: {:?}", outcome.delivered, outcome.events);
    assert_eq!((outcome.delivered, outcome.versions.as_slice()), (size, [0].as_slice()));
}
