use super::{Backlog, Candidate, Scheduler, least};
use crate::bond::subflow::SubflowId;

/// Blocking estimation (Ferlin, Alay, Mehani and Boreli, IFIP Networking 2016): a slower subflow is
/// left idle when what it would carry would block the window before it arrives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Blest {
    /// The correction of the estimate, in thousandths.
    lambda: u64,
}

/// The paper's lambda begins at 1 (section III-C).
const LAMBDA_START: u64 = 1000;

/// Each blocking adds this much and each round without one takes as much away, down to 1 (the
/// paper's delta of section III-C; 10% as in its implementation).
const LAMBDA_STEP: u64 = 100;

/// A lambda that makes every slower subflow wait.
const LAMBDA_MOST: u64 = 4000;

impl Default for Blest {
    fn default() -> Self {
        Self { lambda: LAMBDA_START }
    }
}

impl Scheduler for Blest {
    /// Section III-B: while a segment is on the slow subflow S, for rtts = RTT_S / RTT_F round
    /// trips, the fast one F sends X = MSS_F (CWND_F + (rtts - 1) / 2) rtts. S is skipped when
    /// X lambda > |M| - MSS_S (inflight_S + 1), M being the send window.
    fn choose(&mut self, candidates: &[Candidate], backlog: Backlog) -> Option<SubflowId> {
        let fastest = least(candidates, |_| true, |candidate| candidate.srtt)?;
        if fastest.available {
            return Some(fastest.id);
        }
        let slow = least(candidates, |candidate| candidate.available, |candidate| candidate.srtt)?;
        let in_flight =
            candidates.iter().fold(0, |sum: u64, candidate| sum.saturating_add(candidate.in_flight));
        let window = backlog.window_left.saturating_add(in_flight);
        if backlog.window_left < slow.segment {
            // The window blocked although the estimate let the slow subflow send.
            self.lambda = (self.lambda + LAMBDA_STEP).min(LAMBDA_MOST);
        } else if in_flight == 0 {
            self.lambda = self.lambda.saturating_sub(LAMBDA_STEP).max(LAMBDA_START);
        }
        let rtts =
            slow.srtt.as_micros().checked_div(fastest.srtt.as_micros().max(1)).unwrap_or(1).max(1) as u64;
        let meanwhile = (fastest.window + fastest.segment * (rtts - 1) / 2).saturating_mul(rtts);
        let corrected = meanwhile.saturating_mul(self.lambda) / 1000;
        let left = window.saturating_sub(slow.in_flight + slow.segment);
        (corrected <= left).then_some(slow.id)
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::candidate;
    use super::*;

    #[test]
    fn a_slow_subflow_is_skipped_when_the_window_would_block() {
        let fast = Candidate { available: false, in_flight: 14_600, ..candidate(0, 10) };
        let slow = candidate(1, 100);
        // In 100 ms the fast one sends (14600 + 1460 * 4.5) * 10 bytes, about 212 kB.
        let room = |window_left| Backlog { unsent: 1 << 20, window_left };
        assert_eq!(Blest::default().choose(&[fast, slow], room(150_000)), None);
        assert_eq!(Blest::default().choose(&[fast, slow], room(250_000)), Some(slow.id));
    }

    #[test]
    fn blocking_makes_it_more_careful() {
        let fast = Candidate { available: false, in_flight: 14_600, ..candidate(0, 10) };
        let slow = candidate(1, 100);
        let mut blest = Blest::default();
        let room = |window_left| Backlog { unsent: 1 << 20, window_left };
        for _ in 0..5 {
            assert_eq!(blest.choose(&[fast, slow], room(0)), None);
        }
        assert_eq!(blest.choose(&[fast, slow], room(250_000)), None);
    }
}
