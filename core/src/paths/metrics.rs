//! What live samples tell of one path.

use std::time::Duration;

use super::estimator::{Throughput, TimeWeightedMean, VolumeWeightedRatio};
use super::{HistoryRecord, PathEstimate, TcpSample};
use crate::units::Timestamp;

/// Time over which round-trip times fade. The kernel smooths them already.
const DELAY_MEMORY: Duration = Duration::from_secs(1);

/// A round's delay weighs at least this much; rounds come every 200 ms (FLEETY section 5).
const ROUND: Duration = Duration::from_millis(200);

/// Live measurements older than this say less than what history has of the very destination.
const LIVE_FOR: Duration = Duration::from_secs(30);

/// Data that stopped for longer had ended: a connection in transfer is silent for a round trip at most.
const PAUSE: Duration = Duration::from_millis(100);

/// A path on which a connection failed is used last for this long, unless bytes pass on it before:
/// long enough that the next few connections go elsewhere, short enough to come back to soon.
const SUSPECT_FOR: Duration = Duration::from_secs(10);

/// What happened on one connection between two of its samples.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SampleDelta {
    /// Payload bytes received.
    pub received: u64,
    /// Payload bytes that the remote acknowledged.
    pub acked: u64,
    /// Time in which the bytes were received, up to the last of them.
    receiving: Duration,
    /// False when the bytes may have begun to arrive in the middle of that time.
    exact: bool,
    segments_sent: u64,
    segments_retransmitted: u64,
    /// Round-trip time and its mean deviation, when measured anew.
    delay: Option<(Duration, Duration)>,
}

impl SampleDelta {
    /// What happened since `earlier`, or since the connection was made when there is none.
    pub fn between(earlier: Option<&TcpSample>, later: &TcpSample) -> Self {
        let Some(earlier) = earlier else {
            return Self {
                received: later.bytes_received,
                // The kernel counts the SYN as a byte (RFC 9293 section 3.4: it takes a sequence number).
                acked: later.bytes_acked.saturating_sub(1),
                receiving: Duration::ZERO,
                exact: false,
                segments_sent: later.segments_sent,
                segments_retransmitted: later.segments_retransmitted,
                // The handshake has measured the round trip.
                delay: (!later.smoothed_rtt.is_zero()).then_some((later.smoothed_rtt, later.rtt_variance)),
            };
        };
        let acked = later.bytes_acked.saturating_sub(earlier.bytes_acked);
        Self {
            received: later.bytes_received.saturating_sub(earlier.bytes_received),
            acked,
            receiving: (later.at - earlier.at).saturating_sub(later.since_last_data_received),
            exact: earlier.bytes_received > 0 && earlier.since_last_data_received < PAUSE,
            segments_sent: later.segments_sent.saturating_sub(earlier.segments_sent),
            segments_retransmitted: later
                .segments_retransmitted
                .saturating_sub(earlier.segments_retransmitted),
            // Only an acknowledgement of new data measures a round trip; else the kernel repeats
            // its last value.
            delay: (acked > 0).then_some((later.smoothed_rtt, later.rtt_variance)),
        }
    }
}

/// Everything measured of one path while it is joined to one network.
#[derive(Debug, Clone)]
pub struct PathMetrics {
    throughput: Throughput,
    rtt: TimeWeightedMean,
    jitter: TimeWeightedMean,
    loss: VolumeWeightedRatio,
    /// When a connection failed, no byte having passed since.
    failed: Option<Timestamp>,
}

impl Default for PathMetrics {
    fn default() -> Self {
        Self {
            throughput: Throughput::default(),
            rtt: TimeWeightedMean::new(DELAY_MEMORY),
            jitter: TimeWeightedMean::new(DELAY_MEMORY),
            loss: VolumeWeightedRatio::default(),
            failed: None,
        }
    }
}

impl PathMetrics {
    /// Takes in what happened on the path's connections in one round, all sampled at about `now`.
    pub fn handle_round(&mut self, deltas: &[SampleDelta], now: Timestamp) {
        if deltas.iter().any(|delta| delta.received > 0 || delta.acked > 0) {
            self.failed = None;
        }
        let bytes = deltas.iter().map(|delta| delta.received).sum();
        // A trickle beside a transfer says nothing of when the transfer ran.
        let most = deltas.iter().map(|delta| delta.received).max().unwrap_or(0);
        let main = || deltas.iter().filter(|delta| delta.received > 0 && delta.received >= most / 4);
        let active = main().map(|delta| delta.receiving).max().unwrap_or_default();
        // The path was busy from the round's beginning when one of these was.
        let exact = main().any(|delta| delta.exact);
        self.throughput.handle_interval(bytes, active, exact, now);

        let delays: Vec<_> = deltas.iter().filter_map(|delta| delta.delay).collect();
        if !delays.is_empty() {
            let mean = |of: fn(&(Duration, Duration)) -> Duration| {
                delays.iter().map(|delay| of(delay).as_secs_f64()).sum::<f64>() / delays.len() as f64
            };
            self.rtt.handle_reading(mean(|d| d.0), ROUND, now);
            self.jitter.handle_reading(mean(|d| d.1), ROUND, now);
        }
        self.loss.handle_reading(
            deltas.iter().map(|delta| delta.segments_retransmitted.min(delta.segments_sent)).sum(),
            deltas.iter().map(|delta| delta.segments_sent).sum(),
        );
    }

    /// Takes in that a connection could not be opened and the remote did not refuse it itself.
    pub fn handle_failure(&mut self, now: Timestamp) {
        self.failed = Some(now);
    }

    /// Takes in that a connection was opened.
    pub fn handle_success(&mut self) {
        self.failed = None;
    }

    /// True while the path is to be used last: it may be dead, whatever its interface says.
    pub fn is_suspect_at(&self, now: Timestamp) -> bool {
        self.failed.is_some_and(|failed| now - failed < SUSPECT_FOR)
    }

    /// What live samples alone tell.
    pub fn live(&self) -> PathEstimate {
        let seconds = |mean: &TimeWeightedMean| mean.get().map(Duration::from_secs_f64);
        PathEstimate {
            rtt: seconds(&self.rtt),
            jitter: seconds(&self.jitter),
            throughput: self.throughput.get(),
            loss_ppm: self.loss.get_ppm(),
        }
    }

    /// What to expect of the path at `now`: live samples first, then history.
    ///
    /// A rate that is still growing is a lower bound, so the larger of it and history's counts; a
    /// rate measured long ago gives way to history's.
    pub fn estimate_at(&self, now: Timestamp, history: Option<&HistoryRecord>) -> PathEstimate {
        let live = self.live();
        let Some(history) = history else { return live };
        let is_recent = self.throughput.last_evidence().is_some_and(|last| now - last <= LIVE_FOR);
        let throughput = match (live.throughput, history.throughput) {
            (_, Some(past)) if !is_recent => Some(past),
            (Some(live), Some(past)) if !self.throughput.is_settled() => Some(live.max(past)),
            (live, past) => live.or(past),
        };
        PathEstimate {
            rtt: live.rtt.or(history.rtt),
            jitter: live.jitter,
            throughput,
            loss_ppm: live.loss_ppm.or(history.loss_ppm),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::Rate;

    fn sample(at_ms: u64, received: u64, silent_ms: u64) -> TcpSample {
        TcpSample {
            at: Timestamp::from_origin(Duration::from_millis(at_ms)),
            smoothed_rtt: Duration::from_millis(50),
            rtt_variance: Duration::from_millis(5),
            segments_sent: 1,
            bytes_received: received,
            bytes_acked: 100,
            retransmission_timeout: Duration::from_millis(200),
            since_last_data_received: Duration::from_millis(silent_ms),
            ..TcpSample::default()
        }
    }

    /// Feeds the samples of one connection, one round each.
    fn fed(samples: &[TcpSample]) -> PathMetrics {
        let mut metrics = PathMetrics::default();
        let mut last = None;
        for sample in samples {
            metrics.handle_round(&[SampleDelta::between(last, sample)], sample.at);
            last = Some(sample);
        }
        metrics
    }

    fn bytes_per_second(metrics: &PathMetrics) -> u64 {
        metrics.live().throughput.map_or(0, Rate::bytes_per_second)
    }

    #[test]
    fn the_handshake_alone_gives_the_round_trip() {
        let live = fed(&[sample(0, 0, 0)]).live();
        assert_eq!(live.rtt, Some(Duration::from_millis(50)));
        assert_eq!(live.jitter, Some(Duration::from_millis(5)));
        assert_eq!(live.throughput, None);
        assert_eq!(live.loss_ppm, Some(0));
    }

    #[test]
    fn a_round_trip_that_the_kernel_only_repeats_is_no_evidence() {
        let first = sample(0, 0, 0);
        let mut repeated = sample(200, 0, 200);
        repeated.smoothed_rtt = Duration::from_millis(900);
        assert_eq!(fed(&[first, repeated]).live().rtt, Some(Duration::from_millis(50)));
        repeated.bytes_acked = 200;
        assert!(fed(&[first, repeated]).live().rtt > Some(Duration::from_millis(100)));
    }

    #[test]
    fn idle_time_does_not_lower_the_rate() {
        let busy = [sample(0, 0, 0), sample(200, 200_000, 0), sample(400, 400_000, 0)];
        let mut then_idle = busy.to_vec();
        // The transfer ends 50 ms into the interval; afterwards there is nothing.
        then_idle.push(sample(600, 450_000, 150));
        then_idle.extend((4..50).map(|n| sample(n * 200, 450_000, n * 200 - 450)));
        assert_eq!(bytes_per_second(&fed(&busy)), 1_000_000);
        assert_eq!(bytes_per_second(&fed(&then_idle)), 1_000_000);
    }

    #[test]
    fn connections_of_one_path_add_up() {
        let mut metrics = PathMetrics::default();
        let (a, b) = (sample(0, 100_000, 0), sample(200, 200_000, 0));
        metrics.handle_round(&[SampleDelta::between(Some(&a), &b); 3], b.at);
        assert_eq!(bytes_per_second(&metrics), 1_500_000);
    }

    #[test]
    fn a_trickle_beside_a_transfer_does_not_stretch_it() {
        let mut metrics = PathMetrics::default();
        let (a, b) = (sample(0, 100_000, 0), sample(200, 200_000, 100));
        let (c, d) = (sample(0, 10, 0), sample(200, 20, 0));
        metrics.handle_round(&[SampleDelta::between(Some(&a), &b), SampleDelta::between(Some(&c), &d)], b.at);
        assert_eq!(bytes_per_second(&metrics), 1_000_100);
    }

    #[test]
    fn counters_that_go_back_are_taken_as_nothing() {
        let delta = SampleDelta::between(Some(&sample(200, 500, 0)), &sample(100, 100, 0));
        assert_eq!((delta.received, delta.acked, delta.receiving), (0, 0, Duration::ZERO));
    }

    #[test]
    fn history_counts_while_the_rate_grows_and_when_live_is_old() {
        let history = HistoryRecord {
            throughput: Some(Rate::from_bytes_per_second(5_000_000)),
            rtt: Some(Duration::from_millis(20)),
            ..HistoryRecord::default()
        };
        let growing = fed(&[sample(0, 0, 0), sample(200, 100_000, 0), sample(400, 300_000, 0)]);
        let now = Timestamp::from_origin(Duration::from_millis(400));
        let estimate = growing.estimate_at(now, Some(&history));
        assert_eq!(estimate.throughput, history.throughput);
        assert_eq!(estimate.rtt, Some(Duration::from_millis(50)));

        let steady: Vec<_> = (0..10).map(|n| sample(n * 200, n * 100_000, 0)).collect();
        let steady = fed(&steady);
        let now = Timestamp::from_origin(Duration::from_secs(2));
        assert_eq!(steady.estimate_at(now, Some(&history)).throughput, steady.live().throughput);
        let later = now + Duration::from_secs(3600);
        assert_eq!(steady.estimate_at(later, Some(&history)).throughput, history.throughput);
        assert_eq!(steady.estimate_at(later, None).throughput, steady.live().throughput);
    }

    #[test]
    fn a_failure_makes_suspect_until_bytes_pass_or_time_does() {
        let mut metrics = PathMetrics::default();
        let now = Timestamp::from_origin(Duration::from_secs(100));
        assert!(!metrics.is_suspect_at(now));
        metrics.handle_failure(now);
        assert!(metrics.is_suspect_at(now) && !metrics.is_suspect_at(now + SUSPECT_FOR));
        let (idle, busy) = (sample(0, 10, 0), sample(200, 20, 0));
        metrics.handle_round(&[SampleDelta::between(Some(&idle), &idle)], now);
        assert!(metrics.is_suspect_at(now));
        metrics.handle_round(&[SampleDelta::between(Some(&idle), &busy)], now);
        assert!(!metrics.is_suspect_at(now));
    }
}
