//! Closed forms of the range plan (FLEETY section 4.2).
//!
//! A path `p` that is given `D_p` bytes needs `T_p = RTT_p + D_p / R_p`. All functions here are
//! pure arithmetic on that line.

use std::time::Duration;

use crate::units::Rate;

/// What the plan needs to know of one path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PathCost {
    /// Time before its first byte arrives (`RTT_p`, plus connection set-up and queued requests).
    pub start_up: Duration,
    /// Rate at which bytes arrive afterwards (`R_p`).
    pub rate: Rate,
}

impl PathCost {
    /// `T_p` for `bytes`; [`Duration::MAX`] at rate zero.
    pub fn time_for(&self, bytes: u64) -> Duration {
        self.start_up.saturating_add(self.rate.time_for(bytes))
    }
}

/// Shares of `size` bytes with which all paths finish together (F5), one per path.
///
/// A path whose start-up alone exceeds the common finishing time gets nothing. The shares add up
/// to `size` exactly; when no path has a rate the first gets everything.
pub fn balanced_shares(size: u64, paths: &[PathCost]) -> Vec<u64> {
    let mut used: Vec<usize> = (0..paths.len()).filter(|&p| !paths[p].rate.is_zero()).collect();
    used.sort_by_key(|&p| paths[p].start_up);
    let mut finish = 0.0;
    // Add paths in order of start-up while they would begin before the others were done.
    let (mut rate_sum, mut headstart) = (0.0, 0.0);
    let mut count = 0;
    for &p in &used {
        let start_up = paths[p].start_up.as_secs_f64();
        if count > 0 && start_up >= finish {
            break;
        }
        let rate = bytes_per_second(paths[p].rate);
        rate_sum += rate;
        headstart += rate * start_up;
        // Sum of R_p (T - RTT_p) = D, solved for T.
        finish = (size as f64 + headstart) / rate_sum;
        count += 1;
    }
    let mut shares = vec![0; paths.len()];
    let mut left = size;
    for &p in &used[..count] {
        let ideal = bytes_per_second(paths[p].rate) * (finish - paths[p].start_up.as_secs_f64());
        shares[p] = (ideal.max(0.0) as u64).min(left);
        left -= shares[p];
    }
    if let Some(rest) = shares.get_mut(used.first().copied().unwrap_or(0)) {
        *rest += left;
    }
    shares
}

/// Bytes that a path should take over from the end of another's `left` bytes so that both finish
/// together; zero when the other is done before the taker could start.
pub fn balanced_take(left: u64, owner: PathCost, taker: PathCost) -> u64 {
    if taker.rate.is_zero() {
        return 0;
    }
    if owner.rate.is_zero() {
        return left;
    }
    let (owner_rate, taker_rate) = (bytes_per_second(owner.rate), bytes_per_second(taker.rate));
    // S_o + (L - x) / R_o = S_t + x / R_t, solved for x.
    let slack = owner.start_up.as_secs_f64() + left as f64 / owner_rate - taker.start_up.as_secs_f64();
    let take = slack * owner_rate * taker_rate / (owner_rate + taker_rate);
    (take.max(0.0) as u64).min(left)
}

/// Bytes that a metered path should take from an unmetered one under FLEETY's prioritisation (F6).
///
/// `tolerance` is what is left of `T_tol`. Nothing when the unmetered path meets it alone; the
/// balanced take when even both together miss it; else just so much that the unmetered path
/// finishes its own part at the tolerance.
pub fn thrifty_take(left: u64, owner: PathCost, taker: PathCost, tolerance: Duration) -> u64 {
    if owner.time_for(left) <= tolerance {
        return 0;
    }
    let balanced = balanced_take(left, owner, taker);
    if owner.time_for(left - balanced) >= tolerance {
        return balanced;
    }
    let kept = owner.rate.bytes_in(tolerance.saturating_sub(owner.start_up));
    left.saturating_sub(kept).min(balanced)
}

fn bytes_per_second(rate: Rate) -> f64 {
    rate.bits_per_second() as f64 / 8.0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(millis: u64, mbit: u64) -> PathCost {
        PathCost {
            start_up: Duration::from_millis(millis),
            rate: Rate::from_bits_per_second(mbit * 1_000_000),
        }
    }

    #[test]
    fn balanced_paths_finish_together() {
        let paths = [path(50, 50), path(50, 30), path(80, 5)];
        let shares = balanced_shares(10_000_000, &paths);
        assert_eq!(shares.iter().sum::<u64>(), 10_000_000);
        let times: Vec<_> = (0..3).map(|p| paths[p].time_for(shares[p]).as_millis()).collect();
        assert!(times.iter().max().unwrap() - times.iter().min().unwrap() <= 1, "{times:?}");
    }

    #[test]
    fn a_path_that_starts_too_late_gets_nothing() {
        assert_eq!(balanced_shares(10_000, &[path(10, 50), path(500, 50)]), [10_000, 0]);
    }

    #[test]
    fn a_dead_owner_loses_everything() {
        let dead = PathCost { start_up: Duration::ZERO, rate: Rate::ZERO };
        assert_eq!(balanced_take(5_000, dead, path(50, 1)), 5_000);
        assert_eq!(balanced_take(5_000, path(50, 1), dead), 0);
    }

    #[test]
    fn thrifty_leaves_the_metered_path_alone_within_the_tolerance() {
        let second = Duration::from_secs(1);
        // 1 MB at 50 Mbit/s takes 0.16 s.
        assert_eq!(thrifty_take(1_000_000, path(50, 50), path(50, 30), second), 0);
        // 10 MB would take 1.0 s over both and 1.65 s over the unmetered one: it keeps 0.95 s' worth.
        let take = thrifty_take(9_000_000, path(50, 50), path(50, 30), second);
        assert_eq!(9_000_000 - take, 5_937_500);
        // 100 MB misses the tolerance in any case: balanced.
        let balanced = balanced_take(100_000_000, path(50, 50), path(50, 30));
        assert_eq!(thrifty_take(100_000_000, path(50, 50), path(50, 30), second), balanced);
    }
}
