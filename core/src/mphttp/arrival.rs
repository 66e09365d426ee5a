//! How fast bytes arrive on one connection.

use std::time::Duration;

use crate::units::{Rate, Timestamp};

/// Readings closer together than this are taken as one; a burst read in pieces has no rate of its own.
const LEAST_INTERVAL: Duration = Duration::from_millis(5);

/// Exponentially weighted arrival rate of a connection that has requests outstanding.
///
/// Precondition: `now` never goes back. Idle time is no evidence: call [`Self::resume`] when a
/// request is made on a connection that had none outstanding.
#[derive(Debug, Clone)]
pub struct ArrivalRate {
    /// Time over which old readings lose 63% of their weight.
    memory: Duration,
    /// Weighted bytes per second, before correction for the short time since the beginning.
    weighted: f64,
    /// How much weight has been given out so far, from 0 to 1.
    weight: f64,
    pending_bytes: u64,
    updated: Timestamp,
}

impl ArrivalRate {
    /// A meter that starts watching at `now`.
    pub fn new(memory: Duration, now: Timestamp) -> Self {
        Self { memory, weighted: 0.0, weight: 0.0, pending_bytes: 0, updated: now }
    }

    /// Sets the time over which old readings fade, usually a little more than the round-trip time.
    pub fn set_memory(&mut self, memory: Duration) {
        self.memory = memory;
    }

    /// Notes that waiting begins at `now`; the time before does not count.
    pub fn resume(&mut self, now: Timestamp) {
        if self.weight > 0.0 {
            self.pending_bytes = 0;
        }
        self.updated = self.updated.max(now);
    }

    /// Counts `bytes` that arrived by `now`.
    pub fn handle_bytes(&mut self, bytes: u64, now: Timestamp) {
        self.pending_bytes += bytes;
        if now - self.updated >= LEAST_INTERVAL {
            self.fold(now);
        }
    }

    /// The rate as of `now`, silence since the last arrival included; `None` before any arrival.
    pub fn get_at(&self, now: Timestamp) -> Option<Rate> {
        let mut copy = self.clone();
        copy.fold(now);
        (copy.weight > 0.0 && copy.weighted > 0.0)
            .then(|| Rate::from_bytes_per_second((copy.weighted / copy.weight).round() as u64))
    }

    fn fold(&mut self, now: Timestamp) {
        let elapsed = now - self.updated;
        if elapsed.is_zero() || (self.weight == 0.0 && self.pending_bytes == 0) {
            return;
        }
        let seconds = elapsed.as_secs_f64();
        let fresh = 1.0 - (-seconds / self.memory.as_secs_f64().max(0.001)).exp();
        self.weighted += fresh * (self.pending_bytes as f64 / seconds - self.weighted);
        self.weight += fresh * (1.0 - self.weight);
        self.pending_bytes = 0;
        self.updated = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Timestamp {
        Timestamp::from_origin(Duration::from_millis(millis))
    }

    #[test]
    fn a_steady_arrival_is_measured_from_the_first_reading_on() {
        let mut meter = ArrivalRate::new(Duration::from_millis(100), at(0));
        meter.handle_bytes(10_000, at(10));
        assert_eq!(meter.get_at(at(10)).unwrap().bytes_per_second(), 1_000_000);
        for step in 2..100 {
            meter.handle_bytes(10_000, at(step * 10));
        }
        let rate = meter.get_at(at(990)).unwrap().bytes_per_second();
        assert!((999_000..1_001_000).contains(&rate), "{rate}");
    }

    #[test]
    fn silence_lowers_the_rate_and_idleness_does_not() {
        let mut meter = ArrivalRate::new(Duration::from_millis(100), at(0));
        meter.handle_bytes(100_000, at(100));
        let before = meter.get_at(at(100)).unwrap();
        assert!(meter.get_at(at(400)).unwrap().bits_per_second() < before.bits_per_second() / 2);
        meter.resume(at(5_000));
        let resumed = meter.get_at(at(5_000)).unwrap();
        assert!(before.bits_per_second() - resumed.bits_per_second() < 100, "{before:?} {resumed:?}");
        meter.handle_bytes(50_000, at(5_100));
        assert!(meter.get_at(at(5_100)).unwrap().bits_per_second() > before.bits_per_second() / 2);
    }
}
