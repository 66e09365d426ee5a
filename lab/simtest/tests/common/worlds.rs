//! Random worlds.

use std::time::Duration;

use multiway_core::mphttp::download::{DownloadConfig, Opening, Preference, tuning};
use multiway_core::paths::PathEstimate;
use multiway_core::units::Rate;
use multiway_simtest::object;
use multiway_simtest::outcome::Outcome;
use multiway_simtest::path::{Conduct, FOR_EVER, SimPath};
use multiway_simtest::world::{Reader, World};
use proptest::prelude::*;

use super::LIMIT;

/// What it may cost that the rates of some paths are not known beforehand: one that is cold gets a
/// part, and only when it is late is that seen. In 32,000 random worlds it was 165 ms at most, and
/// more than 80 ms in five.
pub(crate) const FINDING_OUT: Duration = Duration::from_millis(170);

/// One world, to be run as often as wanted.
#[derive(Debug, Clone)]
pub(crate) struct Scene {
    pub(crate) paths: Vec<SimPath>,
    pub(crate) size: u64,
    pub(crate) config: DownloadConfig,
    pub(crate) reader: Reader,
    pub(crate) seed: u64,
}

impl Scene {
    pub(crate) fn run(&self) -> Outcome {
        let world = World::new(self.paths.clone(), self.size, self.config.clone(), self.reader);
        world.with_seed(self.seed).run(LIMIT)
    }

    /// The same world with one path only.
    pub(crate) fn alone(&self, path: usize) -> Self {
        Self { paths: vec![self.paths[path].clone()], ..self.clone() }
    }

    /// Bytes that are to be delivered.
    pub(crate) fn wanted(&self) -> u64 {
        match self.config.opening {
            Opening::AsClient => self.size,
            Opening::Range { begin } => self.size - begin,
        }
    }

    /// How much later than `path` alone, which takes `time`, all together may end.
    ///
    /// 3%, 30 ms or 2 RTT, whichever is most. Where another path is asked first, nothing is known of
    /// the object before its answer; few bytes are left to the first path for a while in any case;
    /// and paths of which nothing is known cost [`FINDING_OUT`].
    pub(crate) fn allowance(&self, path: usize, time: Duration) -> Duration {
        let best = &self.paths[path];
        let close = (time * 3 / 100).max(Duration::from_millis(30)).max(best.rtt * 2);
        let answer = match path {
            0 => Duration::ZERO,
            _ if self.size < tuning::LEAST_SPLIT => self.paths[0].rtt * 2 + tuning::SMALL_PATIENCE,
            _ => self.paths[0].rtt * 2,
        };
        let is_guess = self.paths.len() > 1 && self.paths.iter().any(|p| p.known == PathEstimate::default());
        let guess = if is_guess { FINDING_OUT } else { Duration::ZERO };
        answer + guess + close
    }
}

/// 0.2 to 100 Mbit/s, as likely in each octave.
fn rate() -> impl Strategy<Value = f64> {
    (0.0..9.0f64).prop_map(|octaves| 0.2 * octaves.exp2())
}

fn rtt() -> impl Strategy<Value = u64> {
    (0.0..6.3f64).prop_map(|octaves| (5.0 * octaves.exp2()) as u64)
}

/// A lossless path with an honest server.
pub(crate) fn steady_path() -> impl Strategy<Value = SimPath> {
    (rate(), rtt()).prop_map(|(rate, rtt)| SimPath::new(rate, rtt))
}

/// What is remembered of a path: nothing, the truth, or something else.
fn belief() -> impl Strategy<Value = Option<(f64, u64)>> {
    prop_oneof![3 => Just(None), 1 => (rate(), rtt()).prop_map(Some)]
}

fn span() -> impl Strategy<Value = (Duration, Duration)> {
    let end = prop_oneof![2 => (1u64..4_000).prop_map(Some), 1 => Just(None)];
    (0u64..4_000, end).prop_map(|(from, length)| {
        let from = Duration::from_millis(from);
        (from, length.map_or(FOR_EVER, |length| from + Duration::from_millis(length)))
    })
}

/// Any server's conduct, mostly none of the bad ones.
pub(crate) fn conduct() -> impl Strategy<Value = Conduct> {
    prop_oneof![
        8 => Just(Conduct::Honest),
        1 => Just(Conduct::OtherVersion),
        1 => Just(Conduct::OtherVersionDeclared),
        1 => Just(Conduct::NoRanges),
        1 => Just(Conduct::Refuses),
        1 => Just(Conduct::ClosesAfterResponse),
        1 => Just(Conduct::ClosesUnannounced),
        1 => Just(Conduct::DropsPipelined),
        1 => Just(Conduct::ForgetsPipelined),
        1 => Just(Conduct::ClosesEarly),
        1 => Just(Conduct::ShortPart),
        1 => Just(Conduct::WrongExtent),
        1 => Just(Conduct::AbsurdExtent),
        1 => Just(Conduct::Mute),
        1 => Just(Conduct::ClosesAtOnce),
        1 => Just(Conduct::RefusesConnections),
    ]
}

/// A path on which anything may go wrong.
fn troubled_path() -> impl Strategy<Value = SimPath> {
    let loss = prop_oneof![3 => Just(0u32), 1 => 1u32..50];
    let spans = || prop_oneof![3 => Just(Vec::new()), 1 => prop::collection::vec(span(), 1..3)];
    let reforms = prop_oneof![3 => Just(FOR_EVER), 1 => (0u64..4_000).prop_map(Duration::from_millis)];
    let think = prop_oneof![3 => Just(0u64), 1 => 0u64..500];
    (steady_path(), loss, spans(), spans(), any::<bool>(), conduct(), reforms, think, belief()).prop_map(
        |(path, loss_per_mille, silent, down, metered, conduct, reforms_at, think, belief)| SimPath {
            loss_per_mille,
            silent,
            down,
            metered,
            conduct,
            reforms_at,
            think: Duration::from_millis(think),
            known: belief.map_or(PathEstimate::default(), |(mbit, rtt)| PathEstimate {
                rtt: Some(Duration::from_millis(rtt)),
                throughput: Some(Rate::from_bits_per_second((mbit * 1e6) as u64)),
                ..PathEstimate::default()
            }),
            ..path
        },
    )
}

/// Mostly small, so that thousands of runs are quick.
fn size() -> impl Strategy<Value = u64> {
    prop_oneof![6 => 20_000u64..400_000, 2 => 400_000u64..1_500_000, 1 => 1_500_000u64..3_000_000]
}

fn memory() -> impl Strategy<Value = u64> {
    prop_oneof![2 => Just(64u64 << 20), 1 => (16u32..24).prop_map(|log| 1u64 << log)]
}

fn preference() -> impl Strategy<Value = Preference> {
    let thrifty =
        (0u64..3_000).prop_map(|millis| Preference::Thrifty { tolerance: Duration::from_millis(millis) });
    prop_oneof![2 => Just(Preference::Fast), 1 => thrifty]
}

fn reader() -> impl Strategy<Value = Reader> {
    let pauses = (0u64..500_000, 1u64..5_000)
        .prop_map(|(after, millis)| Reader::Pauses { after, pause: Duration::from_millis(millis) });
    prop_oneof![
        4 => Just(Reader::Greedy),
        1 => rate().prop_map(|mbit| Reader::AtRate(Rate::from_bits_per_second((mbit * 1e6) as u64))),
        1 => pauses,
    ]
}

fn config() -> impl Strategy<Value = DownloadConfig> {
    (preference(), any::<bool>(), any::<bool>(), memory()).prop_map(|(preference, range, at_once, memory)| {
        DownloadConfig {
            preference,
            opening: if range { Opening::Range { begin: 0 } } else { Opening::AsClient },
            open_all_paths_at_once: at_once,
            memory_bytes: memory,
            tail: Vec::new(),
        }
    })
}

/// Paths that keep their rate and honest servers, any configuration.
pub(crate) fn steady_scene() -> impl Strategy<Value = Scene> {
    (prop::collection::vec(steady_path(), 1..=5), size(), any::<bool>(), any::<bool>(), any::<u64>())
        .prop_map(|(paths, size, range, at_once, seed)| Scene {
            paths,
            size,
            config: DownloadConfig {
                opening: if range { Opening::Range { begin: 0 } } else { Opening::AsClient },
                open_all_paths_at_once: at_once,
                ..super::fast()
            },
            reader: Reader::Greedy,
            seed,
        })
}

/// Anything at all on any path.
pub(crate) fn troubled_scene() -> impl Strategy<Value = Scene> {
    (prop::collection::vec(troubled_path(), 1..=5), size(), config(), reader(), any::<u64>())
        .prop_map(|(paths, size, config, reader, seed)| Scene { paths, size, config, reader, seed })
}

/// A partial file of version 0 or 1, continued over paths of version 0 on which anything else may go
/// wrong; and which version the file is of.
pub(crate) fn resumed_scene() -> impl Strategy<Value = (Scene, u8)> {
    (troubled_scene(), 0.0..1.0f64, 64usize..3_000, 0u8..2).prop_map(|(mut scene, part, tail, version)| {
        for path in &mut scene.paths {
            if matches!(path.conduct, Conduct::OtherVersion | Conduct::OtherVersionDeclared) {
                path.conduct = Conduct::Honest;
            }
        }
        let begin = 64 + ((scene.size - 64) as f64 * part) as u64;
        let object = object::version(version, scene.size);
        let tail_from = (begin as usize).saturating_sub(tail);
        scene.config.tail = object[tail_from..begin as usize].to_vec();
        scene.config.opening = Opening::Range { begin };
        (scene, version)
    })
}
