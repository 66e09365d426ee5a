//! Small estimators, each a value that is fed and asked.

use std::collections::VecDeque;
use std::time::Duration;

use crate::units::{Rate, Timestamp};

/// Exponentially weighted mean of readings that come at any time.
///
/// Preconditions: `now` never goes back. A reading stands for the time since the one before, so
/// that readings close together do not push out older ones.
#[derive(Debug, Clone, Copy)]
pub struct TimeWeightedMean {
    memory: Duration,
    /// The mean and when it was last fed.
    state: Option<(f64, Timestamp)>,
}

impl TimeWeightedMean {
    /// A reading `memory` ago counts 37% of a present one.
    pub const fn new(memory: Duration) -> Self {
        Self { memory, state: None }
    }

    /// Takes in a reading; one at least gets the weight of `least`, however soon it comes.
    pub fn handle_reading(&mut self, reading: f64, least: Duration, now: Timestamp) {
        let mean = match self.state {
            None => reading,
            Some((mean, fed)) => {
                let weight = weight_of((now - fed).max(least), self.memory);
                mean + weight * (reading - mean)
            }
        };
        self.state = Some((mean, now));
    }

    /// The mean; time without readings does not change it.
    pub fn get(&self) -> Option<f64> {
        self.state.map(|(mean, _)| mean)
    }
}

/// Share of a mean that a reading standing for `elapsed` makes up.
fn weight_of(elapsed: Duration, memory: Duration) -> f64 {
    1.0 - (-elapsed.as_secs_f64() / memory.as_secs_f64()).exp()
}

/// Volume-weighted moving average of a ratio (MultiMob, equations 1 to 3): the newest reading counts
/// by the volume it was taken over, and a reading over nothing counts nothing.
#[derive(Debug, Clone, Copy)]
pub struct VolumeWeightedRatio {
    alpha: f64,
    product: f64,
    volume: f64,
}

impl Default for VolumeWeightedRatio {
    fn default() -> Self {
        Self::new(Self::ALPHA)
    }
}

impl VolumeWeightedRatio {
    /// The weight of the newest reading: "experimentally set to 0.5 as in Android".
    pub const ALPHA: f64 = 0.5;

    /// One whose newest reading has the weight `alpha`, from 0 to 1.
    pub const fn new(alpha: f64) -> Self {
        Self { alpha, product: 0.0, volume: 0.0 }
    }

    /// Takes in that `part` of `volume` units had the property.
    pub fn handle_reading(&mut self, part: u64, volume: u64) {
        if volume == 0 {
            return;
        }
        self.product = self.alpha * part as f64 + (1.0 - self.alpha) * self.product;
        self.volume = self.alpha * volume as f64 + (1.0 - self.alpha) * self.volume;
    }

    /// The smoothed part.
    pub fn part(&self) -> f64 {
        self.product
    }

    /// The ratio in parts per million, at most all; `None` before any volume.
    pub fn get_ppm(&self) -> Option<u32> {
        (self.volume > 0.0).then(|| (self.product / self.volume * 1e6).clamp(0.0, 1e6) as u32)
    }
}

/// The rate at which a path, or one connection, receives.
///
/// It is told intervals in which bytes were arriving; idle time is not told and so is no evidence.
/// Its value is the larger of two: an exponentially weighted mean, and the largest rate of late
/// that lasted two intervals, which follows slow start at once and which one burst cannot fool.
/// A rate that fell is believed within some seconds of transfer.
#[derive(Debug, Clone, Default)]
pub struct Throughput {
    /// Rates of the last intervals, newest last.
    recent: VecDeque<Rate>,
    weighted: f64,
    /// Weight given out so far, from 0 to 1.
    weight: f64,
    last_evidence: Option<Timestamp>,
}

impl Throughput {
    /// Intervals a maximum is remembered for: 1 s of readings every 200 ms (FLEETY section 5).
    const WINDOW: usize = 5;
    /// Time over which old intervals lose 63% of their weight.
    const MEMORY: Duration = Duration::from_secs(1);
    /// Shorter intervals show how bytes were queued, not how fast they come.
    const LEAST_ACTIVE: Duration = Duration::from_millis(20);
    /// Fewer bytes are a burst of an initial window (RFC 6928: ten segments) or two.
    const LEAST_BYTES: u64 = 32 << 10;
    /// Slow start is over when a rate grew less than this in percent over two intervals.
    const GROWTH_PERCENT: u64 = 25;

    /// Takes in that `bytes` arrived in the `active` time before `now`.
    ///
    /// `exact` is false when the bytes may have begun to arrive later than the interval; the rate
    /// is then a lower bound.
    pub fn handle_interval(&mut self, bytes: u64, active: Duration, exact: bool, now: Timestamp) {
        if active < Self::LEAST_ACTIVE || bytes < Self::LEAST_BYTES {
            return;
        }
        let rate = Rate::from_bytes_in(bytes, active);
        if !exact && self.get().is_some_and(|known| rate <= known) {
            return;
        }
        let weight = weight_of(active, Self::MEMORY);
        self.weighted += weight * (rate.bits_per_second() as f64 - self.weighted);
        self.weight += weight * (1.0 - self.weight);
        if self.recent.len() == Self::WINDOW {
            self.recent.pop_front();
        }
        self.recent.push_back(rate);
        self.last_evidence = Some(now);
    }

    /// The rate; `None` before any evidence.
    pub fn get(&self) -> Option<Rate> {
        self.last_evidence?;
        let mean = Rate::from_bits_per_second((self.weighted / self.weight).round() as u64);
        Some(self.sustained().map_or(mean, |sustained| sustained.max(mean)))
    }

    /// Largest rate of late that lasted two intervals.
    fn sustained(&self) -> Option<Rate> {
        self.recent.iter().zip(self.recent.iter().skip(1)).map(|(a, b)| *a.min(b)).max()
    }

    /// False while the rate may still be growing, so that it is a lower bound.
    pub fn is_settled(&self) -> bool {
        let mut newest = self.recent.iter().rev();
        match (newest.next(), newest.nth(1)) {
            (Some(newest), Some(before)) => {
                newest.bits_per_second().saturating_mul(100)
                    < before.bits_per_second().saturating_mul(100 + Self::GROWTH_PERCENT)
            }
            _ => false,
        }
    }

    /// When bytes last told anything.
    pub fn last_evidence(&self) -> Option<Timestamp> {
        self.last_evidence
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const INTERVAL: Duration = Duration::from_millis(200);

    fn at(intervals: u64) -> Timestamp {
        Timestamp::from_origin(INTERVAL * u32::try_from(intervals).expect("small"))
    }

    fn megabits(rate: u64) -> Rate {
        Rate::from_bits_per_second(rate * 1_000_000)
    }

    fn fed(rates: &[u64]) -> Throughput {
        let mut throughput = Throughput::default();
        for (n, rate) in rates.iter().enumerate() {
            throughput.handle_interval(megabits(*rate).bytes_in(INTERVAL), INTERVAL, true, at(n as u64 + 1));
        }
        throughput
    }

    #[test]
    fn slow_start_is_followed_within_an_interval() {
        assert_eq!(fed(&[2, 4, 8, 16, 20, 20]).get(), Some(megabits(20)));
        assert!(fed(&[2, 4, 8, 16]).get() >= Some(megabits(8)));
    }

    #[test]
    fn growth_is_not_settled_and_a_plateau_is() {
        assert!(!fed(&[2, 4, 8, 16]).is_settled());
        assert!(!fed(&[8, 8]).is_settled());
        assert!(fed(&[2, 8, 16, 20, 20, 20]).is_settled());
        assert!(fed(&[20, 20, 10, 5]).is_settled());
    }

    #[test]
    fn one_burst_does_not_fool_it() {
        let calm = fed(&[10, 10, 10, 10]);
        let burst = fed(&[10, 10, 10, 10, 60]);
        assert!(burst.get() < Some(megabits(25)), "{:?} after {:?}", burst.get(), calm.get());
    }

    #[test]
    fn a_fall_is_believed_within_two_seconds() {
        let mut rates = vec![20; 10];
        rates.extend([5; 10]);
        assert!(fed(&rates).get() < Some(megabits(8)));
    }

    #[test]
    fn an_interval_that_may_have_begun_idle_only_raises_the_rate() {
        let mut throughput = fed(&[10, 10, 10]);
        let before = throughput.get();
        throughput.handle_interval(megabits(2).bytes_in(INTERVAL), INTERVAL, false, at(20));
        assert_eq!(throughput.get(), before);
        throughput.handle_interval(megabits(40).bytes_in(INTERVAL), INTERVAL, false, at(21));
        assert!(throughput.get() > before);
    }

    #[test]
    fn a_handful_of_bytes_is_no_evidence() {
        let mut throughput = Throughput::default();
        throughput.handle_interval(10_000, INTERVAL, true, at(1));
        throughput.handle_interval(100_000, Duration::from_millis(1), true, at(2));
        assert_eq!(throughput.get(), None);
    }

    #[test]
    fn a_ratio_over_nothing_changes_nothing() {
        let mut ratio = VolumeWeightedRatio::default();
        assert_eq!(ratio.get_ppm(), None);
        ratio.handle_reading(1, 100);
        ratio.handle_reading(0, 0);
        assert_eq!(ratio.get_ppm(), Some(10_000));
        // By the formula: (0.5 * 0 + 0.5 * 0.5) / (0.5 * 300 + 0.5 * 50).
        ratio.handle_reading(0, 300);
        assert_eq!(ratio.get_ppm(), Some(1428));
    }

    proptest! {
        #[test]
        fn throughput_stays_between_the_slowest_and_the_fastest_interval(
            rates in prop::collection::vec(2u64..1000, 1..50),
        ) {
            let (low, high) = (rates.iter().min().expect("not empty"), rates.iter().max().expect("not empty"));
            let rate = fed(&rates).get().expect("fed").bits_per_second();
            prop_assert!(rate + 1000 >= low * 1_000_000 && rate <= high * 1_000_000 + 1000);
        }

        #[test]
        fn a_constant_rate_is_measured_exactly(rate in 2u64..10_000, count in 1usize..40) {
            let measured = fed(&vec![rate; count]).get().expect("fed").bits_per_second();
            prop_assert!(measured.abs_diff(rate * 1_000_000) <= 1000);
        }

        #[test]
        fn a_mean_stays_within_its_readings(
            readings in prop::collection::vec((0.0f64..1e6, 0u64..10_000), 1..50),
        ) {
            let mut mean = TimeWeightedMean::new(Duration::from_secs(1));
            let mut now = Timestamp::ZERO;
            for (reading, gap_ms) in &readings {
                now = now + Duration::from_millis(*gap_ms);
                mean.handle_reading(*reading, INTERVAL, now);
            }
            let value = mean.get().expect("fed");
            let least = readings.iter().map(|r| r.0).fold(f64::MAX, f64::min);
            let most = readings.iter().map(|r| r.0).fold(f64::MIN, f64::max);
            prop_assert!(value >= least - 1e-6 && value <= most + 1e-6);
        }

        #[test]
        fn a_ratio_never_exceeds_all(parts in prop::collection::vec((0u64..1000, 0u64..1000), 0..50)) {
            let mut ratio = VolumeWeightedRatio::default();
            for (part, volume) in parts {
                ratio.handle_reading(part.min(volume), volume);
            }
            prop_assert!(ratio.get_ppm().is_none_or(|ppm| ppm <= 1_000_000));
        }
    }
}
