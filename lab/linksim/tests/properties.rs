//! What holds for every link, whatever is sent and whenever it is polled.

use std::sync::Arc;
use std::time::Duration;

use multiway_core::units::{Rate, Timestamp};
use multiway_linksim::{
    Capacity, Change, Counters, Link, LinkConfig, Loss, Probability, Trace, Verdict, generator,
};
use proptest::prelude::*;

/// What a test does to a link.
#[derive(Debug, Clone)]
enum Step {
    Send { bytes: u64 },
    Wait { micros: u64 },
    Change(Change),
}

#[derive(Debug, PartialEq)]
struct Delivery {
    at: Timestamp,
    number: usize,
    bytes: u64,
}

fn probability() -> impl Strategy<Value = Probability> {
    (0.0..=1.0).prop_map(|p| Probability::new(p).expect("drawn from 0 to 1"))
}

fn loss() -> impl Strategy<Value = Loss> {
    prop_oneof![
        Just(Loss::None),
        probability().prop_map(Loss::Bernoulli),
        (probability(), probability(), probability(), probability()).prop_map(
            |(good_to_bad, bad_to_good, loss_in_good, loss_in_bad)| Loss::GilbertElliott {
                good_to_bad,
                bad_to_good,
                loss_in_good,
                loss_in_bad
            }
        ),
    ]
}

fn trace() -> impl Strategy<Value = Trace> {
    prop::collection::vec(0_u64..4, 1..12).prop_filter_map("a trace needs a period", |gaps| {
        let mut time = 0;
        let lines: Vec<String> = gaps
            .into_iter()
            .map(|gap| {
                time += gap;
                time.to_string()
            })
            .collect();
        Trace::parse(&lines.join("\n")).ok()
    })
}

fn capacity() -> impl Strategy<Value = Capacity> {
    prop_oneof![
        1 => Just(Capacity::Unlimited),
        4 => (0_u64..200_000_000).prop_map(|bits| Capacity::Rate(Rate::from_bits_per_second(bits))),
        2 => trace().prop_map(|trace| Capacity::Trace(Arc::new(trace))),
    ]
}

fn change() -> impl Strategy<Value = Change> {
    prop_oneof![
        capacity().prop_map(Change::Capacity),
        (0_u64..20_000).prop_map(|micros| Change::Delay(Duration::from_micros(micros))),
        (0_u64..5_000).prop_map(|micros| Change::Jitter(Duration::from_micros(micros))),
        loss().prop_map(Change::Loss),
        (1_500_u64..60_000).prop_map(Change::Queue),
        any::<bool>().prop_map(Change::Blackhole),
        any::<bool>().prop_map(Change::Carrier),
    ]
}

fn config() -> impl Strategy<Value = LinkConfig> {
    let schedule = prop::collection::vec(((0_u64..200_000).prop_map(Duration::from_micros), change()), 0..4);
    (capacity(), 0_u64..20_000, 0_u64..5_000, loss(), 1_500_u64..60_000, schedule).prop_map(
        |(capacity, delay, jitter, loss, queue_bytes, schedule)| LinkConfig {
            capacity,
            delay: Duration::from_micros(delay),
            jitter: Duration::from_micros(jitter),
            loss,
            queue_bytes,
            schedule,
        },
    )
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        10 => (0_u64..=1500).prop_map(|bytes| Step::Send { bytes }),
        5 => (0_u64..5_000).prop_map(|micros| Step::Wait { micros }),
        1 => change().prop_map(Step::Change),
    ];
    prop::collection::vec(step, 0..150)
}

fn check_conservation(counters: &Counters) {
    let Counters { offered, delivered, overflowed, lost, vanished, queued, travelling } = *counters;
    let outcomes = [delivered, overflowed, lost, vanished, queued, travelling];
    assert_eq!(offered.packets, outcomes.iter().map(|tally| tally.packets).sum::<u64>());
    assert_eq!(offered.bytes, outcomes.iter().map(|tally| tally.bytes).sum::<u64>());
}

/// Runs the steps, then two more seconds; `lazy` polls only when the link asks for it.
fn run(config: &LinkConfig, steps: &[Step], seed: u64, lazy: bool) -> (Vec<Delivery>, Counters) {
    let mut link = Link::new(config.clone(), generator(seed, "link"));
    let mut now = Timestamp::ZERO;
    let mut deliveries = Vec::new();
    let mut number = 0;
    let drain = |link: &mut Link<(usize, u64)>, at: Timestamp, out: &mut Vec<Delivery>| {
        while let Some((number, bytes)) = link.poll_deliver(at) {
            out.push(Delivery { at, number, bytes });
        }
    };
    let wait = |link: &mut Link<(usize, u64)>, now: Timestamp, until: Timestamp, out: &mut Vec<Delivery>| {
        let mut polled = now;
        while let Some(due) = link.poll_timeout().filter(|due| *due <= until) {
            if !lazy {
                // Extra polls on the way must change nothing.
                let middle = polled + due.saturating_since(polled) / 2;
                link.handle_timeout(middle);
                polled = middle;
            }
            drain(link, due.max(polled), out);
            polled = due.max(polled);
        }
        if !lazy {
            drain(link, until, out);
        }
    };
    for step in steps {
        match step {
            Step::Send { bytes } => {
                let verdict = link.handle_packet(now, *bytes, (number, *bytes));
                if verdict == Verdict::Accepted {
                    assert!(
                        link.counters().queued.bytes <= link.queue_bytes(),
                        "an accepted packet fits the queue"
                    );
                }
                number += 1;
            }
            Step::Wait { micros } => {
                let until = now + Duration::from_micros(*micros);
                wait(&mut link, now, until, &mut deliveries);
                now = until;
            }
            Step::Change(change) => link.handle_change(now, change.clone()),
        }
        drain(&mut link, now, &mut deliveries);
        check_conservation(&link.counters());
    }
    wait(&mut link, now, now + Duration::from_secs(2), &mut deliveries);
    check_conservation(&link.counters());
    (deliveries, link.counters())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn packets_are_conserved_and_arrive_in_order(config in config(), steps in steps(), seed: u64) {
        let (deliveries, counters) = run(&config, &steps, seed, true);
        prop_assert_eq!(deliveries.len() as u64, counters.delivered.packets);
        for pair in deliveries.windows(2) {
            prop_assert!(pair[0].number < pair[1].number, "order is kept, nothing comes twice");
            prop_assert!(pair[0].at <= pair[1].at);
        }
    }

    #[test]
    fn the_same_seed_gives_the_same_times_however_often_it_is_polled(
        config in config(), steps in steps(), seed: u64
    ) {
        let (lazily, _) = run(&config, &steps, seed, true);
        let (eagerly, _) = run(&config, &steps, seed, false);
        prop_assert_eq!(lazily, eagerly);
    }

    #[test]
    fn the_rate_is_met_exactly_and_never_exceeded(
        bits_per_second in 10_000_u64..1_000_000_000,
        sizes in prop::collection::vec(1_u64..=1500, 2..300),
    ) {
        let rate = Rate::from_bits_per_second(bits_per_second);
        let config = LinkConfig { queue_bytes: u64::MAX, ..LinkConfig::new(rate, Duration::ZERO) };
        let mut link = Link::new(config, generator(0, "link"));
        for &bytes in &sizes {
            link.handle_packet(Timestamp::ZERO, bytes, bytes);
        }
        let mut sent = 0_u128;
        while let Some(due) = link.poll_timeout() {
            while let Some(bytes) = link.poll_deliver(due) {
                sent += u128::from(bytes);
                // Exactly when the last of its bits is due, rounded up to a nanosecond: no drift.
                let exact = (sent * 8_000_000_000).div_ceil(u128::from(bits_per_second));
                prop_assert_eq!(due.since_origin().as_nanos(), exact);
            }
        }
        prop_assert_eq!(sent, sizes.iter().map(|&bytes| u128::from(bytes)).sum::<u128>());
    }

    #[test]
    fn a_trace_never_delivers_more_than_its_opportunities(
        trace in trace(),
        sizes in prop::collection::vec(1_u64..=1500, 1..200),
    ) {
        let period_ms = trace.period().as_millis() as u64;
        let per_period = trace.mean_rate().bytes_in(trace.period()).div_ceil(1500);
        let config = LinkConfig {
            capacity: Capacity::Trace(Arc::new(trace)),
            queue_bytes: u64::MAX,
            ..LinkConfig::new(Rate::ZERO, Duration::ZERO)
        };
        let mut link = Link::new(config, generator(0, "link"));
        for &bytes in &sizes {
            link.handle_packet(Timestamp::ZERO, bytes, bytes);
        }
        let mut sent = 0;
        while let Some(due) = link.poll_timeout() {
            while let Some(bytes) = link.poll_deliver(due) {
                sent += bytes;
                prop_assert_eq!(due.since_origin().subsec_nanos() % 1_000_000, 0);
                let periods = due.since_origin().as_millis() as u64 / period_ms + 1;
                prop_assert!(sent <= periods * per_period * 1500);
            }
        }
        let total: u64 = sizes.iter().sum();
        prop_assert_eq!(sent, total);
    }
}

#[test]
fn a_change_of_rate_keeps_what_was_already_sent() {
    let config = LinkConfig::new(Rate::from_bits_per_second(12_000_000), Duration::ZERO);
    let mut link = Link::new(config, generator(0, "link"));
    link.handle_packet(Timestamp::ZERO, 1500, ());
    // Half of it is sent after 0.5 ms; the other half takes 5 ms at a tenth of the rate.
    let half = Timestamp::from_origin(Duration::from_micros(500));
    link.handle_change(half, Change::Capacity(Capacity::Rate(Rate::from_bits_per_second(1_200_000))));
    assert_eq!(link.poll_timeout(), Some(Timestamp::from_origin(Duration::from_micros(5_500))));
}

#[test]
fn a_blackhole_takes_what_is_on_the_way_and_ends() {
    let at = |millis| Timestamp::from_origin(Duration::from_millis(millis));
    let config = LinkConfig::new(Rate::from_bits_per_second(12_000_000), Duration::from_millis(10));
    let mut link = Link::new(config, generator(0, "link"));
    link.handle_packet(at(0), 1500, 1);
    link.handle_change(at(5), Change::Blackhole(true));
    assert_eq!(link.handle_packet(at(6), 1500, 2), Verdict::Vanished);
    assert_eq!(link.poll_timeout(), None);
    link.handle_change(at(20), Change::Blackhole(false));
    assert_eq!(link.handle_packet(at(20), 1500, 3), Verdict::Accepted);
    assert_eq!(link.poll_deliver(at(31)), Some(3));
    assert_eq!(link.counters().vanished.packets, 2);
}

#[test]
fn the_queue_counts_the_packet_being_sent() {
    let config = LinkConfig {
        queue_bytes: 3_000,
        ..LinkConfig::new(Rate::from_bits_per_second(12_000_000), Duration::ZERO)
    };
    let mut link = Link::new(config, generator(0, "link"));
    assert_eq!(link.handle_packet(Timestamp::ZERO, 1500, ()), Verdict::Accepted);
    assert_eq!(link.handle_packet(Timestamp::ZERO, 1500, ()), Verdict::Accepted);
    assert_eq!(link.handle_packet(Timestamp::ZERO, 1500, ()), Verdict::QueueFull);
    let sent = Timestamp::from_origin(Duration::from_millis(1));
    assert_eq!(link.handle_packet(sent, 1500, ()), Verdict::Accepted);
}
