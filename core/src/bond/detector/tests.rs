use proptest::prelude::*;

use super::*;

fn ms(millis: u64) -> Timestamp {
    Timestamp::from_origin(Duration::from_millis(millis))
}

/// MultiMob's primary path: 15 ms, of which little varies.
fn wifi() -> PathObservation {
    PathObservation {
        smoothed_rtt: Some(Duration::from_millis(15)),
        rtt_variance: Some(Duration::from_millis(2)),
        subflows: 1,
        ..PathObservation::default()
    }
}

fn sample(at: Timestamp, acked_ago_ms: u64, received: u64) -> TcpSample {
    TcpSample {
        at,
        since_last_ack_received: Duration::from_millis(acked_ago_ms),
        segments_received: received,
        ..TcpSample::default()
    }
}

/// Runs a detector through a time in which nothing changes; findings with their times in ms.
fn silent_until(detector: &mut Detector, end: Timestamp) -> Vec<(u128, Finding)> {
    let mut findings = Vec::new();
    while let Some(at) = detector.poll_timeout().filter(|at| *at <= end) {
        if let Some(finding) = detector.handle_timeout(at) {
            findings.push((at.since_origin().as_millis(), finding));
        }
    }
    findings
}

#[test]
fn a_path_that_falls_silent_is_probed_twice_and_suspected_within_100_ms() {
    let mut detector = Detector::new(DetectorKind::Improved);
    detector.handle_observation(&PathObservation {
        outstanding_since: Some(ms(1000)),
        last_received: Some(ms(700)),
        ..wifi()
    });
    // 15 + 4*2 + 10 = 33 ms at a time.
    let suspect = Finding::Suspect(Suspicion::Unacknowledged);
    assert_eq!(
        silent_until(&mut detector, ms(60_000)),
        [(1033, Finding::Probe), (1066, Finding::Probe), (1099, suspect)]
    );
}

/// Delayed acknowledgments: 15 ms looked like 31 ms with a deviation of 20 ms in the lab.
#[test]
fn a_round_trip_inflated_by_small_messages_delays_little() {
    let mut detector = Detector::new(DetectorKind::Improved);
    detector.handle_observation(&PathObservation {
        outstanding_since: Some(ms(1000)),
        last_received: Some(ms(700)),
        smoothed_rtt: Some(Duration::from_millis(31)),
        rtt_variance: Some(Duration::from_millis(20)),
        ..wifi()
    });
    let least = TcpSample { min_rtt: Some(Duration::from_millis(15)), ..sample(ms(1000), 300, 10) };
    detector.handle_sample(SubflowId(0), &least);
    let findings = silent_until(&mut detector, ms(60_000));
    assert_eq!(findings.last(), Some(&(1120, Finding::Suspect(Suspicion::Unacknowledged))));
}

#[test]
fn a_long_queue_is_waited_for() {
    let mut detector = Detector::new(DetectorKind::Improved);
    let queued = Duration::from_millis(500);
    let observation = PathObservation {
        outstanding_since: Some(ms(1000)),
        last_received: Some(ms(700)),
        smoothed_rtt: Some(queued),
        ..wifi()
    };
    detector.handle_observation(&observation);
    let least = TcpSample { min_rtt: Some(Duration::from_millis(15)), ..sample(ms(1000), 300, 10) };
    detector.handle_sample(SubflowId(0), &least);
    assert!(detector.poll_timeout() > Some(ms(1000) + queued));
}

#[test]
fn an_answer_of_the_kernel_begins_the_wait_anew() {
    let mut detector = Detector::new(DetectorKind::Improved);
    let observation = PathObservation { outstanding_since: Some(ms(1000)), ..wifi() };
    detector.handle_observation(&observation);
    assert_eq!(detector.handle_timeout(ms(1033)), Some(Finding::Probe));
    // Acknowledged 5 ms ago: the data itself may be lost, the path is not.
    detector.handle_sample(SubflowId(1), &sample(ms(1066), 5, 10));
    assert_eq!(detector.handle_timeout(ms(1066)), None);
    assert_eq!(detector.poll_timeout(), Some(ms(1094)));
    // A segment that acknowledges nothing counts too.
    detector.handle_sample(SubflowId(1), &sample(ms(1094), 33, 11));
    assert_eq!(detector.handle_timeout(ms(1094)), None);
    assert_eq!(detector.poll_timeout(), Some(ms(1127)));
}

#[test]
fn a_path_that_lives_and_delivers_nothing_is_suspected() {
    let mut detector = Detector::new(DetectorKind::Improved);
    detector.handle_observation(&PathObservation { outstanding_since: Some(ms(1000)), ..wifi() });
    let mut suspected = None;
    for (received, now) in (1..).zip((1010..2000).step_by(10)) {
        detector.handle_sample(SubflowId(1), &sample(ms(now), 0, received));
        if let Some(finding) = detector.handle_timeout(ms(now)) {
            suspected = Some((now, finding));
            break;
        }
    }
    // 6 times 33 ms.
    assert_eq!(suspected, Some((1200, Finding::Suspect(Suspicion::Unacknowledged))));
}

#[test]
fn the_kernels_timeout_is_believed_at_once() {
    let timed_out = |count| TcpSample { timeouts_in_row: count, ..sample(ms(1020), 500, 10) };
    let mut detector = Detector::new(DetectorKind::Improved);
    detector.handle_observation(&PathObservation { outstanding_since: Some(ms(1000)), ..wifi() });
    detector.handle_sample(SubflowId(1), &timed_out(1));
    assert_eq!(detector.handle_timeout(ms(1020)), Some(Finding::Suspect(Suspicion::Unacknowledged)));

    let mut detector = Detector::new(DetectorKind::Improved);
    detector.handle_observation(&PathObservation {
        outstanding_since: Some(ms(1000)),
        last_received: Some(ms(1010)),
        ..wifi()
    });
    detector.handle_sample(SubflowId(1), &timed_out(1));
    assert_eq!(detector.handle_timeout(ms(1020)), None);
    detector.handle_sample(SubflowId(1), &timed_out(2));
    assert_eq!(detector.handle_timeout(ms(1020)), Some(Finding::Suspect(Suspicion::Unacknowledged)));
}

#[test]
fn a_path_that_owes_a_piece_is_asked_once_and_suspected_whatever_the_kernel_hears() {
    let mut detector = Detector::new(DetectorKind::Improved);
    let listening = PathObservation { last_received: Some(ms(1000)), overdue_at: Some(ms(1250)), ..wifi() };
    detector.handle_observation(&listening);
    let mut findings = Vec::new();
    for (received, now) in (1..).zip((1010..2000).step_by(10)) {
        detector.handle_sample(SubflowId(1), &sample(ms(now), 0, received));
        findings.extend(detector.handle_timeout(ms(now)).map(|finding| (now, finding)));
    }
    // 3 times 33 ms.
    assert_eq!(findings, [(1250, Finding::Probe), (1350, Finding::Suspect(Suspicion::Silent))]);

    // Once it has come, the next one may be missed.
    let later = PathObservation { last_received: Some(ms(3000)), overdue_at: Some(ms(3200)), ..listening };
    detector.handle_observation(&later);
    assert_eq!(
        silent_until(&mut detector, ms(60_000)),
        [(3200, Finding::Probe), (3299, Finding::Suspect(Suspicion::Silent))]
    );

    // The PING's answer puts it off, and is not enough for ever.
    let mut detector = Detector::new(DetectorKind::Improved);
    detector.handle_observation(&listening);
    assert_eq!(detector.handle_timeout(ms(1250)), Some(Finding::Probe));
    let answered = PathObservation { last_received: Some(ms(1270)), overdue_at: Some(ms(1520)), ..listening };
    detector.handle_observation(&answered);
    assert_eq!(detector.handle_timeout(ms(1500)), None);
    assert_eq!(detector.handle_timeout(ms(1520)), Some(Finding::Probe));
    // The paper's knows nothing of it.
    let mut detector = Detector::new(DetectorKind::MultiMob);
    detector.handle_observation(&listening);
    assert_eq!(detector.poll_timeout(), None);
}

#[test]
fn timeouts_of_a_subflow_that_is_gone_say_nothing_of_the_next() {
    let mut detector = Detector::new(DetectorKind::Improved);
    detector.handle_sample(SubflowId(1), &TcpSample { timeouts_in_row: 5, ..sample(ms(900), 900, 10) });
    detector.handle_sample(SubflowId(2), &sample(ms(1000), 0, 4));
    let sent = PathObservation { outstanding_since: Some(ms(1001)), ..wifi() };
    detector.handle_observation(&sent);
    assert_eq!(
        detector.clone().handle_timeout(ms(1002)),
        Some(Finding::Suspect(Suspicion::Unacknowledged)),
        "while it is there"
    );
    detector.keep_subflows(|id| id == SubflowId(2));
    assert_eq!(detector.handle_timeout(ms(1002)), None);
}

#[test]
fn an_idle_path_is_left_alone() {
    for kind in [DetectorKind::MultiMob, DetectorKind::Improved] {
        let mut detector = Detector::new(kind);
        detector.handle_observation(&PathObservation { last_received: Some(ms(10)), ..wifi() });
        // A timeout of the past that nothing waits for.
        let old = TcpSample { timeouts_in_row: 3, ..sample(ms(5000), 4000, 10) };
        detector.handle_sample(SubflowId(1), &old);
        assert_eq!(detector.poll_timeout(), None);
        assert_eq!(detector.handle_timeout(ms(5000)), None);
    }
}

#[test]
fn multimobs_timer_is_500_ms_or_the_servers_timeout() {
    let mut detector = Detector::new(DetectorKind::MultiMob);
    let expecting = PathObservation {
        expecting_since: Some(ms(1000)),
        last_received: Some(ms(1200)),
        outstanding_since: Some(ms(900)),
        ..wifi()
    };
    detector.handle_observation(&expecting);
    let suspect = Finding::Suspect(Suspicion::Silent);
    assert_eq!(silent_until(&mut detector.clone(), ms(60_000)), [(1700, suspect)]);
    detector
        .handle_observation(&PathObservation { far_timeout: Some(Duration::from_millis(800)), ..expecting });
    assert_eq!(silent_until(&mut detector, ms(60_000)), [(2000, suspect)]);
}

#[test]
fn what_comes_behind_a_gap_puts_the_timer_off_and_so_does_a_long_round_trip() {
    for kind in [DetectorKind::MultiMob, DetectorKind::Improved] {
        let mut detector = Detector::new(kind);
        let expecting = PathObservation {
            expecting_since: Some(ms(1000)),
            last_received: Some(ms(1200)),
            smoothed_rtt: Some(Duration::from_millis(600)),
            ..wifi()
        };
        detector.handle_observation(&expecting);
        assert_eq!(detector.idle_deadline(), Some(ms(1808)));
        for (at, out_of_order) in [(1300, 4), (1500, 9), (1600, 9)] {
            let behind = TcpSample { segments_out_of_order: out_of_order, ..sample(ms(at), 0, 10) };
            detector.handle_sample(SubflowId(1), &behind);
        }
        assert_eq!(detector.idle_deadline(), Some(ms(2108)));
    }
}

#[test]
fn a_download_that_stops_is_noticed_by_probing() {
    let mut detector = Detector::new(DetectorKind::Improved);
    detector.handle_observation(&PathObservation {
        expecting_since: Some(ms(1000)),
        last_received: Some(ms(1500)),
        ..wifi()
    });
    let suspect = Finding::Suspect(Suspicion::Silent);
    assert_eq!(silent_until(&mut detector, ms(60_000)).last(), Some(&(1599, suspect)));
}

#[test]
fn a_server_that_pauses_and_answers_probes_has_the_papers_patience() {
    let mut detector = Detector::new(DetectorKind::Improved);
    detector.handle_observation(&PathObservation {
        expecting_since: Some(ms(1000)),
        last_received: Some(ms(1500)),
        ..wifi()
    });
    let mut findings = Vec::new();
    let mut received = 0;
    while let Some(at) = detector.poll_timeout() {
        received += 1;
        detector.handle_sample(SubflowId(1), &sample(at, 0, received));
        if let Some(finding) = detector.handle_timeout(at) {
            findings.push((at, finding));
        }
    }
    assert_eq!(findings, [(ms(2000), Finding::Suspect(Suspicion::Silent))]);
}

#[test]
fn a_suspicion_is_told_once_until_the_path_lives_again() {
    let mut detector = Detector::new(DetectorKind::Improved);
    let observation = PathObservation { outstanding_since: Some(ms(1000)), ..wifi() };
    detector.handle_observation(&observation);
    assert_eq!(silent_until(&mut detector, ms(9000)).len(), 3);
    detector.handle_observation(&observation);
    assert_eq!((detector.poll_timeout(), detector.handle_timeout(ms(9000))), (None, None));
    let again = PathObservation { outstanding_since: Some(ms(9500)), ..observation };
    detector.handle_observation(&PathObservation { last_received: Some(ms(9500)), ..again });
    assert_eq!(silent_until(&mut detector, ms(60_000)).last().map(|last| last.0), Some(9599));
}

#[test]
fn long_round_trips_are_waited_for() {
    let mut detector = Detector::new(DetectorKind::Improved);
    detector.handle_observation(&PathObservation {
        outstanding_since: Some(ms(0)),
        smoothed_rtt: Some(Duration::from_millis(600)),
        rtt_variance: Some(Duration::from_millis(100)),
        ..wifi()
    });
    assert_eq!(detector.poll_timeout(), Some(ms(1010)));
}

/// A message every 333 ms on a path that loses this part in thousandths of all packets each way
/// and brings the rest in 15 ms; returns suspicions per thousand messages.
fn false_alarms_per_thousand(loss: u64) -> usize {
    let mut state = 1_u64;
    let mut arrives = || {
        // Knuth's constants (MMIX).
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % 1000 >= loss
    };
    let mut alarms = 0;
    for _ in 0..1000 {
        let mut detector = Detector::new(DetectorKind::Improved);
        let mut observation = PathObservation { outstanding_since: Some(ms(1000)), ..wifi() };
        let mut answer = (arrives() && arrives()).then_some(ms(1015));
        detector.handle_observation(&observation);
        while let Some(at) = detector.poll_timeout() {
            if let Some(answered) = answer.filter(|answer| *answer <= at) {
                // Any answer shows what is missing, and the retransmission arrives.
                observation.last_received = Some(answered);
                observation.outstanding_since = None;
                detector.handle_observation(&observation);
                continue;
            }
            match detector.handle_timeout(at) {
                Some(Finding::Probe) if arrives() && arrives() => {
                    answer = answer.or(Some(at + Duration::from_millis(15)));
                }
                Some(Finding::Suspect(_)) => alarms += 1,
                _ => {}
            }
        }
    }
    alarms
}

#[test]
fn a_lossy_path_is_seldom_taken_for_a_dead_one() {
    // By the arithmetic at PROBES: 0.7% and 4.7%.
    assert_eq!(false_alarms_per_thousand(0), 0);
    assert!(false_alarms_per_thousand(100) <= 15, "{}", false_alarms_per_thousand(100));
    assert!(false_alarms_per_thousand(200) <= 65, "{}", false_alarms_per_thousand(200));
    assert_eq!(false_alarms_per_thousand(1000), 1000);
}

proptest! {
    #[test]
    fn whatever_it_is_told_it_ends_and_keeps_its_word(
        steps in prop::collection::vec(
            (0u64..2000, prop::option::of(0u64..5000), prop::option::of(0u64..5000), prop::option::of(0u64..5000), 0u64..600, 0u32..3),
            1..40,
        ),
        improved in any::<bool>(),
    ) {
        let kind = if improved { DetectorKind::Improved } else { DetectorKind::MultiMob };
        let mut detector = Detector::new(kind);
        let mut now = 0;
        for (gap, outstanding, expecting, received, ack_age, timeouts) in steps {
            now += gap;
            let before = |time: Option<u64>| time.filter(|time| *time <= now).map(ms);
            detector.handle_observation(&PathObservation {
                outstanding_since: before(outstanding),
                expecting_since: before(expecting),
                last_received: before(received),
                ..wifi()
            });
            detector.handle_sample(SubflowId(1), &TcpSample { timeouts_in_row: timeouts, ..sample(ms(now), ack_age, now) });
            let mut findings = 0;
            while let Some(at) = detector.poll_timeout().filter(|at| *at <= ms(now)) {
                prop_assert!(detector.handle_timeout(ms(now)).is_some(), "due at {:?} and nothing found", at);
                findings += 1;
                prop_assert!(findings <= PROBES + 1);
            }
        }
    }

    #[test]
    fn a_dead_path_is_suspected_in_time(rtt in 1u64..1000, variance in 0u64..200, since in 0u64..10_000) {
        let mut detector = Detector::new(DetectorKind::Improved);
        detector.handle_observation(&PathObservation {
            outstanding_since: Some(ms(since)),
            smoothed_rtt: Some(Duration::from_millis(rtt)),
            rtt_variance: Some(Duration::from_millis(variance)),
            subflows: 1,
            ..PathObservation::default()
        });
        let findings = silent_until(&mut detector, ms(since + 3 * (rtt + 4 * variance + 10).max(30)));
        prop_assert!(matches!(findings.last(), Some((_, Finding::Suspect(Suspicion::Unacknowledged)))));
        prop_assert_eq!(findings.len(), 3);
    }
}
