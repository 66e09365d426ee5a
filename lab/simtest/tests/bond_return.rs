//! When a session goes back to the preferred path that had failed: soon where nothing is lost, and not where
//! enough is lost that it would leave again. Figures of kind `sim`.

use std::time::Duration;

use multiway_core::bond::{Event, SessionConfig};
use multiway_core::paths::PathId;
use multiway_linksim::{Change, LinkSpec, Loss, mbit};
use multiway_simtest::bond::scene::{BondPath, Half, Scene, StreamPlan};
use multiway_simtest::bond::world::World;

const WIFI: PathId = PathId(1);

/// The Wi-Fi is silent from `SILENT` on and loses packets from `BACK` on.
const SILENT: Duration = Duration::from_secs(1);
const BACK: Duration = Duration::from_secs(4);

/// How long each run is watched from then on, and how many there are.
const WATCHED: Duration = Duration::from_secs(60);
const RUNS: u64 = 10;

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// Somebody who says something three times a second and is answered.
fn talk() -> StreamPlan {
    let lines = (BACK + WATCHED).as_millis() as u64 / 333;
    let half = |bytes| Half { chunk: bytes, pause: ms(333), ..Half::greedy(bytes * lines) };
    StreamPlan { up: half(500), down: half(750), ..StreamPlan::download(0) }
}

/// A Wi-Fi that loses this share of the packets each way when it is back, beside an LTE.
fn away_and_back(rtt: Duration, lost: f64, seed: u64) -> Scene {
    let loss = if lost > 0.0 { Loss::bernoulli(lost).expect("a probability") } else { Loss::None };
    let wifi = LinkSpec::symmetric(mbit(20), rtt)
        .with_change(SILENT, Change::Blackhole(true))
        .with_change(BACK, Change::Loss(loss))
        .with_change(BACK, Change::Blackhole(false));
    let lte = BondPath { metered: true, ..BondPath::new(LinkSpec::symmetric(mbit(10), ms(50))) };
    let paths = vec![BondPath::new(wifi), lte];
    Scene { seed, ..Scene::new(paths, SessionConfig::handover(), vec![talk()]) }
}

/// When the session went back to the Wi-Fi, counted from when the Wi-Fi was back.
fn returns(scene: Scene) -> Vec<Duration> {
    let outcome = World::new(scene).run(Duration::from_secs(600));
    assert!(outcome.faults.is_empty(), "{}", outcome.faults.join("\n"));
    let restored =
        outcome.events.iter().filter(|(_, event)| matches!(event, Event::PathRestored { path: WIFI }));
    restored.map(|(at, _)| at.saturating_sub(BACK)).filter(|at| *at < WATCHED).collect()
}

/// Returns per minute, and the median time to the first of them, by what the Wi-Fi loses each way.
fn table(rtt: Duration) -> Vec<(u64, f64, Option<Duration>)> {
    let shares = [0, 1, 5, 10, 15, 20, 30, 40];
    let row = |percent: u64| {
        let runs: Vec<_> =
            (0..RUNS).map(|seed| returns(away_and_back(rtt, percent as f64 / 100.0, seed))).collect();
        let count: usize = runs.iter().map(Vec::len).sum();
        let mut firsts: Vec<_> = runs.iter().filter_map(|run| run.first().copied()).collect();
        firsts.sort();
        let median = firsts.get(RUNS as usize / 2).copied();
        (percent, count as f64 / RUNS as f64, median)
    };
    shares.map(row).into()
}

/// The rule is stated in docs/relay.md, "When it goes back".
#[test]
#[expect(clippy::print_stdout, reason = "the table is a figure of its own, in docs/relay-results.md")]
fn a_path_that_still_loses_packets_is_not_returned_to_and_a_good_one_soon() {
    for rtt in [ms(20), ms(100)] {
        let table = table(rtt);
        let text: Vec<String> = table.iter().map(|row| format!("{row:?}")).collect();
        println!("{rtt:?}: lost, %; returns per minute; median time to the first\n{}", text.join("\n"));
        for (percent, per_minute, first) in table {
            let most = match percent {
                0 => 1.0,
                1 => 1.5,
                5 => 2.5,
                10 => 1.5,
                15 => 0.5,
                _ => 0.0,
            };
            assert!(
                per_minute <= most,
                "{rtt:?}, {percent}% lost: {per_minute} returns a minute\n{}",
                text.join("\n")
            );
            if percent == 0 {
                assert!(first.is_some_and(|first| first <= ms(3000)), "{rtt:?}: {first:?}");
            }
        }
    }
}
