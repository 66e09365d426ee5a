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
mod tests;
