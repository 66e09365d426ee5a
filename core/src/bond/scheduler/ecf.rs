use std::time::Duration;

use super::{Backlog, Candidate, Scheduler, least};
use crate::bond::subflow::SubflowId;

/// Earliest completion first (Lim, Nahum, Towsley and Gibbens, CoNEXT 2017): a slower subflow is
/// left idle when the faster one, although full now, would be done with everything sooner.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Ecf {
    /// Whether the last decision was to wait; it takes more to stop waiting than to start.
    waiting: bool,
}

/// The paper's hysteresis (section 4, Algorithm 1): a quarter.
const BETA_DIVISOR: u32 = 4;

/// `ceil(bytes / window)` round trips.
fn rounds(bytes: u64, window: u64) -> u32 {
    u32::try_from(bytes.div_ceil(window.max(1))).unwrap_or(u32::MAX)
}

impl Scheduler for Ecf {
    /// Algorithm 1: with k bytes waiting, x_f the fastest subflow and x_s the fastest available,
    /// n = 1 + k / CWND_f and delta = max(sigma_f, sigma_s), wait for x_f if
    /// n RTT_f < (1 + waiting beta) (RTT_s + delta) and k / CWND_s RTT_s >= 2 RTT_f + delta.
    fn choose(&mut self, candidates: &[Candidate], backlog: Backlog) -> Option<SubflowId> {
        let fastest = least(candidates, |_| true, |candidate| candidate.srtt)?;
        if fastest.available {
            self.waiting = false;
            return Some(fastest.id);
        }
        let second = least(candidates, |candidate| candidate.available, |candidate| candidate.srtt)?;
        let delta = fastest.rtt_variance.max(second.rtt_variance);
        let by_fastest = fastest.srtt.saturating_mul(1 + rounds(backlog.unsent, fastest.window));
        let by_second = second.srtt + delta;
        let hysteresis = if self.waiting { by_second / BETA_DIVISOR } else { Duration::ZERO };
        if by_fastest < by_second + hysteresis {
            let alone = second.srtt.saturating_mul(rounds(backlog.unsent, second.window));
            if alone >= fastest.srtt * 2 + delta {
                self.waiting = true;
                return None;
            }
            return Some(second.id);
        }
        self.waiting = false;
        Some(second.id)
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{candidate, much};
    use super::*;

    fn full(candidate: Candidate) -> Candidate {
        Candidate { available: false, ..candidate }
    }

    fn backlog(unsent: u64) -> Backlog {
        Backlog { unsent, ..much() }
    }

    /// The paper's figure 3: two subflows of 10 ms and 100 ms with windows of 10 segments. The last
    /// packets of a burst wait for the fast one, which is done with them in 20 ms.
    #[test]
    fn the_end_of_a_burst_waits_for_the_fast_subflow() {
        let (fast, slow) = (candidate(0, 10), candidate(1, 100));
        let mut ecf = Ecf::default();
        assert_eq!(ecf.choose(&[fast, slow], backlog(20 * 1460)), Some(fast.id));
        assert_eq!(ecf.choose(&[full(fast), slow], backlog(10 * 1460)), None);
    }

    #[test]
    fn a_long_backlog_takes_both() {
        let (fast, slow) = (full(candidate(0, 10)), candidate(1, 100));
        // 1 + 100 / 10 rounds of 10 ms take longer than one of 100 ms.
        assert_eq!(Ecf::default().choose(&[fast, slow], backlog(100 * 1460)), Some(slow.id));
    }

    #[test]
    fn it_takes_more_to_stop_waiting_than_to_start() {
        let (fast, slow) = (full(candidate(0, 10)), candidate(1, 100));
        // 1 + 10 rounds: 110 ms lie between 100 ms and 125 ms.
        let amid = backlog(100 * 1460);
        let mut ecf = Ecf::default();
        assert_eq!(ecf.choose(&[fast, slow], amid), Some(slow.id));
        assert_eq!(ecf.choose(&[fast, slow], backlog(50 * 1460)), None);
        assert_eq!(ecf.choose(&[fast, slow], amid), None);
        assert_eq!(ecf.choose(&[fast, slow], backlog(200 * 1460)), Some(slow.id));
    }

    #[test]
    fn subflows_alike_are_both_used() {
        let (first, second) = (full(candidate(0, 20)), candidate(1, 21));
        assert_eq!(Ecf::default().choose(&[first, second], backlog(1460)), Some(second.id));
    }
}
