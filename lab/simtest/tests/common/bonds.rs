//! Random worlds for sessions of device and relay.

use std::time::Duration;

use multiway_core::bond::scheduler::SchedulerKind;
use multiway_core::bond::wire::OpenResult;
use multiway_core::bond::{DetectorKind, Limits, Policy, Schedulers, SessionConfig, StreamClass};
use multiway_core::paths::{PathEstimate, Preference};
use multiway_linksim::{Change, LinkSpec, Loss, mbit};
use multiway_simtest::bond::scene::{BondPath, Death, Half, Scene, StreamPlan};
use proptest::prelude::*;

/// When the last thing goes wrong.
const TROUBLE: u64 = 20_000;

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// 1 to 64 Mbit/s, as likely in each octave.
fn rate() -> impl Strategy<Value = u64> {
    (0u32..=6).prop_map(|octave| 1 << octave)
}

fn rtt() -> impl Strategy<Value = Duration> {
    prop_oneof![(4u64..60).prop_map(ms), (60u64..400).prop_map(ms)]
}

fn span() -> impl Strategy<Value = (u64, u64)> {
    (0..TROUBLE / 2, prop_oneof![20u64..600, 600..TROUBLE / 2])
        .prop_map(|(from, length)| (from, from + length))
}

/// What goes wrong on a link for a while.
#[derive(Debug, Clone)]
enum Trouble {
    Silent { up: bool, down: bool },
    Lossy(f64),
    Slow,
    Long(u64),
}

fn trouble() -> impl Strategy<Value = Trouble> {
    prop_oneof![
        4 => (0u8..3).prop_map(|which| Trouble::Silent { up: which != 1, down: which != 2 }),
        2 => (0.02f64..0.6).prop_map(Trouble::Lossy),
        1 => Just(Trouble::Slow),
        1 => (50u64..600).prop_map(Trouble::Long),
    ]
}

fn apply(mut spec: LinkSpec, trouble: &Trouble, (from, to): (u64, u64)) -> LinkSpec {
    let (delay, rate, loss) = (spec.up.delay, spec.up.capacity.clone(), spec.up.loss);
    let (begins, ends) = match trouble {
        Trouble::Silent { up, down } => {
            for (link, applies) in [(&mut spec.up, *up), (&mut spec.down, *down)] {
                if applies {
                    link.schedule.push((ms(from), Change::Blackhole(true)));
                    link.schedule.push((ms(to), Change::Blackhole(false)));
                }
            }
            return spec;
        }
        Trouble::Lossy(share) => {
            (Change::Loss(Loss::bernoulli(*share).expect("a probability")), Change::Loss(loss))
        }
        Trouble::Slow => (
            Change::Capacity(multiway_linksim::Capacity::Rate(multiway_linksim::kbit(64))),
            Change::Capacity(rate),
        ),
        Trouble::Long(more) => (Change::Delay(delay + ms(*more)), Change::Delay(delay)),
    };
    spec.with_change(ms(from), begins).with_change(ms(to), ends)
}

fn path() -> impl Strategy<Value = BondPath> {
    let loss = prop_oneof![3 => Just(0.0), 1 => 0.0f64..0.03];
    let jitter = prop_oneof![3 => Just(0u64), 1 => 1u64..30];
    let troubles = prop::collection::vec((trouble(), span()), 0..4);
    let absent = prop_oneof![3 => Just(Vec::new()), 1 => prop::collection::vec(span(), 1..3)];
    let base = (rate(), rtt(), loss, jitter, any::<bool>(), any::<bool>());
    (base, troubles, absent).prop_map(|((rate, rtt, loss, jitter, metered, known), troubles, absent)| {
        let loss = if loss > 0.0 { Loss::bernoulli(loss).expect("a probability") } else { Loss::None };
        let mut spec = LinkSpec::symmetric(mbit(rate), rtt).with_loss(loss).with_jitter(ms(jitter));
        for (trouble, span) in &troubles {
            spec = apply(spec, trouble, *span);
        }
        for link in [&mut spec.up, &mut spec.down] {
            link.schedule.sort_by_key(|(at, _)| *at);
        }
        let estimate = PathEstimate { rtt: known.then_some(rtt), ..PathEstimate::default() };
        let absent = absent.iter().map(|(from, to)| (ms(*from), ms(*to))).collect();
        BondPath { spec, metered, estimate, absent }
    })
}

fn scheduler() -> impl Strategy<Value = SchedulerKind> {
    prop::sample::select(SchedulerKind::ALL.to_vec())
}

fn schedulers() -> impl Strategy<Value = Schedulers> {
    (scheduler(), scheduler(), scheduler()).prop_map(|(auto, interactive, bulk)| Schedulers {
        auto,
        interactive,
        bulk,
    })
}

fn limits() -> impl Strategy<Value = Limits> {
    let small =
        (1usize..8, 1usize..6, 1usize..4, 0u64..400_000, 0u64..900_000, 4_000u64..200_000, 4_000u64..600_000);
    let small =
        small.prop_map(|(streams, subflows, per_path, receive, receive_all, send, send_all)| Limits {
            streams,
            subflows,
            subflows_per_path: per_path,
            receive_per_stream: receive,
            receive_in_all: receive_all,
            send_per_stream: send,
            send_in_all: send_all,
        });
    prop_oneof![Just(Limits::default()), small]
}

fn config() -> impl Strategy<Value = SessionConfig> {
    let policy = prop_oneof![Just(Policy::Handover), Just(Policy::Aggregate)];
    let preference = prop_oneof![Just(Preference::Fast), Just(Preference::THRIFTY)];
    let own = (policy, preference, limits(), schedulers(), schedulers()).prop_map(
        |(policy, preference, limits, device_schedulers, relay_schedulers)| SessionConfig {
            policy,
            preference,
            limits,
            device_schedulers,
            relay_schedulers,
        },
    );
    let shipped = (limits(), any::<bool>()).prop_map(|(limits, handover)| SessionConfig {
        limits,
        ..if handover { SessionConfig::handover() } else { SessionConfig::aggregate() }
    });
    prop_oneof![own, shipped]
}

fn half(most: u64) -> impl Strategy<Value = Half> {
    let total = prop_oneof![Just(0), 1u64..2_000, 2_000..most];
    let writer = prop_oneof![
        2 => Just((u64::MAX, 0u64)),
        1 => (1u64..3_000, 0u64..40),
        1 => (3_000u64..60_000, 0u64..800),
    ];
    let reader = prop_oneof![
        2 => Just((usize::MAX, 0u64)),
        1 => (1_000usize..40_000, 0u64..30),
        1 => (10_000usize..60_000, 0u64..400),
    ];
    let resets = prop_oneof![6 => Just(None), 1 => (0.0f64..1.0).prop_map(Some)];
    (total, writer, reader, resets).prop_map(|(total, (chunk, pause), (read_chunk, read_pause), resets)| {
        Half {
            total,
            // However small the pieces, a stream ends before the limit.
            chunk: chunk.max(total / 100),
            pause: ms(pause),
            starts_after: 0,
            resets_at: resets.map(|share| (total as f64 * share) as u64),
            read_chunk: read_chunk.max(total as usize / 100),
            read_pause: ms(read_pause),
            stop: None,
        }
    })
}

fn stream() -> impl Strategy<Value = StreamPlan> {
    let class = prop::sample::select(vec![StreamClass::Auto, StreamClass::Interactive, StreamClass::Bulk]);
    let accept = prop_oneof![
        12 => Just(OpenResult::Connected),
        1 => Just(OpenResult::Refused),
        1 => Just(OpenResult::Forbidden),
    ];
    let opens_at = prop_oneof![Just(0), 0..TROUBLE / 2];
    (opens_at, class, 0u64..60, accept, half(150_000), half(400_000), any::<bool>()).prop_map(
        |(opens_at, class, accept_after, accept, up, down, answers)| {
            let starts_after = if answers { up.total / 2 } else { 0 };
            StreamPlan {
                opens_at: ms(opens_at),
                class,
                accept_after: ms(accept_after),
                accept,
                up,
                down: Half { starts_after, ..down },
            }
        },
    )
}

fn death() -> impl Strategy<Value = Death> {
    let after = prop_oneof![0u64..400, 0u64..100_000];
    (0usize..10, 0usize..2, after, prop::option::of(0u64..3_000))
        .prop_map(|(subflow, end, after, other)| Death { subflow, end, after, other: other.map(ms) })
}

/// One of several paths falls silent for ever.
fn with_dead_path(mut paths: Vec<BondPath>, dead: Option<(usize, u64)>) -> Vec<BondPath> {
    if let Some((index, from)) = dead.filter(|(index, _)| paths.len() > 1 && *index < paths.len()) {
        let LinkSpec { up, down } = &mut paths[index].spec;
        for link in [up, down] {
            link.schedule.retain(|(at, _)| *at < ms(from));
            link.schedule.push((ms(from), Change::Blackhole(true)));
        }
    }
    paths
}

/// Lossless paths, and programs that finish what they begin.
pub(crate) fn calm_scene() -> impl Strategy<Value = Scene> {
    let path = (rate(), rtt()).prop_map(|(rate, rtt)| BondPath::new(LinkSpec::symmetric(mbit(rate), rtt)));
    (scene(), prop::collection::vec(path, 2..4)).prop_map(|(scene, paths)| Scene {
        paths,
        deaths: Vec::new(),
        oracle: false,
        ..scene
    })
}

/// Everything that can go wrong does, and is over some time.
pub(crate) fn scene() -> impl Strategy<Value = Scene> {
    let parts = (
        prop::collection::vec(path(), 1..4),
        config(),
        any::<bool>(),
        any::<bool>(),
        prop::collection::vec(stream(), 1..7),
        prop::collection::vec(death(), 0..4),
        1u8..=2,
        prop_oneof![3 => Just(usize::MAX), 1 => 1usize..2_000],
        (any::<u64>(), prop::option::weighted(0.2, (0usize..3, 0..TROUBLE))),
    );
    parts.prop_map(|(paths, config, improved, oracle, streams, deaths, rounds, piece, (seed, dead))| Scene {
        paths: with_dead_path(paths, dead),
        config,
        detector: if improved { DetectorKind::Improved } else { DetectorKind::MultiMob },
        oracle,
        streams,
        deaths,
        handshake_rounds: rounds,
        piece,
        seed,
    })
}
