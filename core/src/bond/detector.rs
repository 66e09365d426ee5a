//! Has a path failed, although nobody says so? Seen from one session's use of the path.
//!
//! The oracle ([`crate::paths::Oracle`]) judges by rates, which takes a period and traffic that was
//! answered. A detector judges by silence where an answer is due, well before the kernel's
//! retransmission timeout.

use std::collections::BTreeMap;
use std::time::Duration;

use super::action::Suspicion;
use super::session::PathObservation;
use super::subflow::SubflowId;
use crate::paths::{OracleConfig, TcpSample};
use crate::units::Timestamp;

/// MultiMob's idle timer is "max(500 msec, RTO_server)".
const IDLE_TIMER: Duration = Duration::from_millis(500);

/// PINGs that must stay unanswered before a silent path counts as failed. A message and both PINGs,
/// or their answers, get lost together once in 150 times where a tenth is lost each way, and once in
/// 20 times at a fifth.
const PROBES: u32 = 2;

/// An answer is due after the round trip; this much is noise of radios and schedulers.
const NOISE: Duration = Duration::from_millis(10);

/// The far end's kernel lets acknowledgments of small messages wait for company so long
/// (`TCP_DELACK_MIN`); a PING is answered at once. What the kernel's estimate has beyond the shortest
/// round trip and this is a queue.
const DELAYED_ACK: Duration = Duration::from_millis(40);

/// No answer is waited for longer than so many round trips without that wait.
const MOST_RTTS: u32 = 2;

/// Nothing is waited for more briefly, so that a PING costs a tenth of a second at most 3 times.
const SHORTEST_WAIT: Duration = Duration::from_millis(30);

/// The round trip before it was measured: most networks' is shorter.
const UNKNOWN_RTT: Duration = Duration::from_millis(100);

/// A path that answers PINGs and yet delivers nothing for so many times as long as a silent one is
/// given, loses too much to be of use.
const STUCK_FACTOR: u32 = 2;

/// Retransmission timeouts in a row after which signs of life count no more: the path lets through
/// what is small and lucky.
const TIMEOUTS_DESPITE_LIFE: u32 = 2;

/// The detectors there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum DetectorKind {
    /// The paper's: while the last data received was not marked idle, a timer of 500 ms or the
    /// server's retransmission timeout (M4). It says nothing of what was sent; that is the oracle's.
    MultiMob,
    /// Asks by PING as soon as an answer is late, and by what the kernel saw.
    #[default]
    Improved,
}

impl DetectorKind {
    /// What the oracle beside it computes with: the paper's stays as it is configured, and beside ours a path
    /// is not left for being far away, nor for one loss.
    pub fn oracle(self, config: OracleConfig) -> OracleConfig {
        match self {
            Self::MultiMob => config,
            Self::Improved => OracleConfig {
                excused_round_trips: OracleConfig::EXCUSED_ROUND_TRIPS,
                excused_losses: OracleConfig::EXCUSED_LOSSES,
                period_round_trips: OracleConfig::PERIOD_ROUND_TRIPS,
                ..config
            },
        }
    }
}

/// What a detector wants or thinks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Finding {
    /// Send a PING on the path: it is silent, and the answer will tell.
    Probe,
    /// The path has probably failed.
    Suspect(Suspicion),
}

/// Watches one path for one session.
///
/// After every change of the session tell it [`PathObservation`]s; read the kernel's counters of the
/// path's subflows and hand them in before [`Detector::handle_timeout`].
#[derive(Debug, Clone)]
pub struct Detector {
    kind: DetectorKind,
    observation: PathObservation,
    subflows: BTreeMap<SubflowId, Reading>,
    /// Last sign of life in the kernel, of any subflow.
    alive: Option<Timestamp>,
    /// When data last came behind a gap, which nobody could read yet.
    data_behind_gap: Option<Timestamp>,
    /// The silence that is being probed, by its start, and PINGs sent in it.
    silence: Option<(Timestamp, u32)>,
    /// The piece of which it was asked by PING whether it is only late, by when it was overdue.
    asked: Option<Timestamp>,
    /// The piece for which the path is suspected, likewise.
    missing: Option<Timestamp>,
    /// Told already, and nothing has changed since.
    is_suspect: bool,
}

/// What was last read of a subflow.
#[derive(Debug, Clone, Copy)]
struct Reading {
    segments_received: u64,
    out_of_order: u64,
    timeouts_in_row: u32,
    min_rtt: Option<Duration>,
}

impl Detector {
    /// A detector that has seen nothing.
    pub fn new(kind: DetectorKind) -> Self {
        Self {
            kind,
            observation: PathObservation::default(),
            subflows: BTreeMap::new(),
            alive: None,
            data_behind_gap: None,
            silence: None,
            asked: None,
            missing: None,
            is_suspect: false,
        }
    }

    /// Takes in how the session uses the path now.
    pub fn handle_observation(&mut self, observation: &PathObservation) {
        self.observation = *observation;
        // What was told is over once the path lives again, or nothing is due any more.
        let is_piece_over = self.missing.is_some() && self.missing != observation.overdue_at;
        if self.is_suspect && (is_piece_over || self.silence_start() != self.silence.map(|(start, _)| start))
        {
            self.is_suspect = false;
            self.missing = None;
        }
    }

    /// Takes in a reading of one of the path's subflows.
    pub fn handle_sample(&mut self, id: SubflowId, sample: &TcpSample) {
        let acked = sample.at.since_origin().saturating_sub(sample.since_last_ack_received);
        let mut alive = Timestamp::from_origin(acked);
        let reading = Reading {
            segments_received: sample.segments_received,
            out_of_order: sample.segments_out_of_order,
            timeouts_in_row: sample.timeouts_in_row,
            min_rtt: sample.min_rtt,
        };
        let before = self.subflows.insert(id, reading);
        // A segment without payload that acknowledges nothing new shows in the count alone.
        if before.is_some_and(|before| before.segments_received < sample.segments_received) {
            alive = sample.at;
        }
        if before.is_some_and(|before| before.out_of_order < sample.segments_out_of_order) {
            self.data_behind_gap = Some(sample.at);
        }
        self.alive = self.alive.max(Some(alive));
    }

    /// Forgets subflows that are gone: their kernels' timeouts say nothing of those that came after.
    pub fn keep_subflows(&mut self, is_there: impl Fn(SubflowId) -> bool) {
        self.subflows.retain(|id, _| is_there(*id));
    }

    /// When to read the kernel's counters and call [`Self::handle_timeout`].
    pub fn poll_timeout(&self) -> Option<Timestamp> {
        if self.is_suspect || self.observation.subflows == 0 {
            return None;
        }
        match self.kind {
            DetectorKind::MultiMob => self.idle_deadline(),
            DetectorKind::Improved => [
                self.silence_deadline(),
                self.stuck_deadline(),
                self.idle_deadline(),
                self.overdue_deadline(),
            ]
            .into_iter()
            .flatten()
            .min(),
        }
    }

    /// Looks at what is due. It may also be called after any sample, for what only the kernel knows.
    pub fn handle_timeout(&mut self, now: Timestamp) -> Option<Finding> {
        if self.is_suspect || self.observation.subflows == 0 {
            return None;
        }
        let is_due = |deadline: Option<Timestamp>| deadline.is_some_and(|deadline| deadline <= now);
        let waiting_for = match self.observation.outstanding_since {
            Some(_) => Suspicion::Unacknowledged,
            None => Suspicion::Silent,
        };
        if is_due(self.idle_deadline()) {
            return Some(self.suspect(Suspicion::Silent));
        }
        if self.kind == DetectorKind::MultiMob {
            return None;
        }
        if is_due(self.stuck_deadline()) || self.kernel_gave_up() {
            return Some(self.suspect(waiting_for));
        }
        if is_due(self.overdue_deadline()) {
            let overdue = self.observation.overdue_at;
            if self.asked == overdue {
                self.missing = overdue;
                return Some(self.suspect(waiting_for));
            }
            self.asked = overdue;
            return Some(Finding::Probe);
        }
        if !is_due(self.silence_deadline()) {
            return None;
        }
        let start = self.silence_start()?;
        let probes = self.probes_in(start);
        if probes >= PROBES {
            return Some(self.suspect(waiting_for));
        }
        self.silence = Some((start, probes + 1));
        Some(Finding::Probe)
    }

    fn suspect(&mut self, suspicion: Suspicion) -> Finding {
        self.is_suspect = true;
        if let Some(start) = self.silence_start() {
            self.silence = Some((start, PROBES));
        }
        Finding::Suspect(suspicion)
    }

    /// Since when something is due from the far end.
    fn waiting_since(&self) -> Option<Timestamp> {
        let PathObservation { outstanding_since, expecting_since, .. } = self.observation;
        outstanding_since.into_iter().chain(expecting_since).min()
    }

    /// Since when something is due and there is no sign of life.
    fn silence_start(&self) -> Option<Timestamp> {
        let since = self.waiting_since()?;
        Some(since.max(self.last_life().unwrap_or(Timestamp::ZERO)))
    }

    fn last_life(&self) -> Option<Timestamp> {
        self.observation.last_received.max(self.observation.last_ack_progress).max(self.alive)
    }

    fn probes_in(&self, start: Timestamp) -> u32 {
        self.silence.filter(|(of, _)| *of == start).map_or(0, |(_, probes)| probes)
    }

    /// How long an answer may take.
    fn wait(&self) -> Duration {
        let PathObservation { smoothed_rtt, rtt_variance, .. } = self.observation;
        let rtt = smoothed_rtt.filter(|rtt| !rtt.is_zero()).unwrap_or(UNKNOWN_RTT);
        // As RFC 6298 has it.
        let usual = rtt + 4 * rtt_variance.unwrap_or_default();
        let least = self.subflows.values().filter_map(|reading| reading.min_rtt).min();
        let most = least.map_or(usual, |least| least.max(rtt.saturating_sub(DELAYED_ACK)) * MOST_RTTS);
        (usual.min(most) + NOISE).max(SHORTEST_WAIT)
    }

    fn silence_deadline(&self) -> Option<Timestamp> {
        let start = self.silence_start()?;
        Some(start + self.wait() * (self.probes_in(start) + 1))
    }

    /// When data that is outstanding has made no progress for too long, PINGs or not.
    fn stuck_deadline(&self) -> Option<Timestamp> {
        let since = self.observation.outstanding_since?;
        let since = since.max(self.observation.last_ack_progress.unwrap_or(since));
        Some(since + self.wait() * (PROBES + 1) * STUCK_FACTOR)
    }

    /// When to ask for a piece that is overdue, and when to give up: the PING's answer comes behind the
    /// piece, and would have put both off. Signs of life in the kernel say nothing here, for they may be
    /// the path's vain retransmissions.
    fn overdue_deadline(&self) -> Option<Timestamp> {
        let overdue = self.observation.overdue_at?;
        let patience = self.wait() * (PROBES + 1);
        Some(if self.asked == Some(overdue) { overdue + patience } else { overdue })
    }

    /// "This timer runs while the MP_IDLE flag of the last received data is reset. It is reset every
    /// time a packet is received on the subflow."
    ///
    /// Until the server has told its timeout, it is taken to be as long as this end's (RFC 6298).
    fn idle_deadline(&self) -> Option<Timestamp> {
        let PathObservation { last_received, far_timeout, smoothed_rtt, rtt_variance, .. } = self.observation;
        let since = self.observation.expecting_since?;
        let since = since.max(last_received.max(self.data_behind_gap).unwrap_or(since));
        let own = smoothed_rtt.unwrap_or_default() + 4 * rtt_variance.unwrap_or_default();
        Some(since + IDLE_TIMER.max(far_timeout.unwrap_or(own)))
    }

    /// Whether retransmission timeouts expired for what is outstanding, without an answer since.
    fn kernel_gave_up(&self) -> bool {
        let Some(since) = self.observation.outstanding_since else { return false };
        let allowed = if self.last_life() > Some(since) { TIMEOUTS_DESPITE_LIFE } else { 1 };
        self.subflows.values().any(|reading| reading.timeouts_in_row >= allowed)
    }
}

#[cfg(test)]
mod tests {
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
        let listening =
            PathObservation { last_received: Some(ms(1000)), overdue_at: Some(ms(1250)), ..wifi() };
        detector.handle_observation(&listening);
        let mut findings = Vec::new();
        for (received, now) in (1..).zip((1010..2000).step_by(10)) {
            detector.handle_sample(SubflowId(1), &sample(ms(now), 0, received));
            findings.extend(detector.handle_timeout(ms(now)).map(|finding| (now, finding)));
        }
        // 3 times 33 ms.
        assert_eq!(findings, [(1250, Finding::Probe), (1350, Finding::Suspect(Suspicion::Silent))]);

        // Once it has come, the next one may be missed.
        let later =
            PathObservation { last_received: Some(ms(3000)), overdue_at: Some(ms(3200)), ..listening };
        detector.handle_observation(&later);
        assert_eq!(
            silent_until(&mut detector, ms(60_000)),
            [(3200, Finding::Probe), (3299, Finding::Suspect(Suspicion::Silent))]
        );

        // The PING's answer puts it off, and is not enough for ever.
        let mut detector = Detector::new(DetectorKind::Improved);
        detector.handle_observation(&listening);
        assert_eq!(detector.handle_timeout(ms(1250)), Some(Finding::Probe));
        let answered =
            PathObservation { last_received: Some(ms(1270)), overdue_at: Some(ms(1520)), ..listening };
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
        detector.handle_observation(&PathObservation {
            far_timeout: Some(Duration::from_millis(800)),
            ..expecting
        });
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
}
