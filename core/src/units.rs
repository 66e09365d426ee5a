//! Points in time and rates, as types.

use std::ops::{Add, Sub};
use std::time::Duration;

/// A point on the caller's monotonic clock, as the time since an origin of the caller's choice.
///
/// Unlike `std::time::Instant` a simulation can make one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Timestamp(Duration);

impl Timestamp {
    /// The clock's origin.
    pub const ZERO: Self = Self(Duration::ZERO);

    /// The point `since_origin` after the clock's origin.
    pub const fn from_origin(since_origin: Duration) -> Self {
        Self(since_origin)
    }

    /// Time passed since the clock's origin.
    pub const fn since_origin(self) -> Duration {
        self.0
    }

    /// Time passed since `earlier`; zero when `earlier` is later.
    pub fn saturating_since(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

impl Add<Duration> for Timestamp {
    type Output = Self;

    fn add(self, rhs: Duration) -> Self {
        Self(self.0.saturating_add(rhs))
    }
}

impl Sub for Timestamp {
    type Output = Duration;

    fn sub(self, rhs: Self) -> Duration {
        self.saturating_since(rhs)
    }
}

/// A transfer rate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Rate {
    bits_per_second: u64,
}

impl Rate {
    /// No transfer at all.
    pub const ZERO: Self = Self { bits_per_second: 0 };

    /// A rate in bits per second.
    pub const fn from_bits_per_second(bits_per_second: u64) -> Self {
        Self { bits_per_second }
    }

    /// A rate in bytes per second.
    pub const fn from_bytes_per_second(bytes_per_second: u64) -> Self {
        Self { bits_per_second: bytes_per_second.saturating_mul(8) }
    }

    /// The rate that moves `bytes` in `time`; zero when `time` is zero.
    pub fn from_bytes_in(bytes: u64, time: Duration) -> Self {
        let nanos = time.as_nanos();
        if nanos == 0 {
            return Self::ZERO;
        }
        let bits = u128::from(bytes) * 8 * 1_000_000_000 / nanos;
        Self { bits_per_second: u64::try_from(bits).unwrap_or(u64::MAX) }
    }

    /// Bits per second.
    pub const fn bits_per_second(self) -> u64 {
        self.bits_per_second
    }

    /// Whole bytes per second.
    pub const fn bytes_per_second(self) -> u64 {
        self.bits_per_second / 8
    }

    /// True for [`Rate::ZERO`].
    pub const fn is_zero(self) -> bool {
        self.bits_per_second == 0
    }

    /// Bytes moved in `time`.
    pub fn bytes_in(self, time: Duration) -> u64 {
        let bytes = u128::from(self.bits_per_second) * time.as_nanos() / 8 / 1_000_000_000;
        u64::try_from(bytes).unwrap_or(u64::MAX)
    }

    /// Time to move `bytes`; [`Duration::MAX`] at rate zero.
    pub fn time_for(self, bytes: u64) -> Duration {
        if self.bits_per_second == 0 {
            return Duration::MAX;
        }
        let nanos = u128::from(bytes) * 8 * 1_000_000_000 / u128::from(self.bits_per_second);
        u64::try_from(nanos).map_or(Duration::MAX, Duration::from_nanos)
    }

    /// The sum of two rates.
    pub const fn saturating_add(self, other: Self) -> Self {
        Self { bits_per_second: self.bits_per_second.saturating_add(other.bits_per_second) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_moves_as_many_bytes_as_it_was_made_from() {
        let rate = Rate::from_bytes_in(1_000_000, Duration::from_millis(500));
        assert_eq!(rate.bits_per_second(), 16_000_000);
        assert_eq!(rate.bytes_in(Duration::from_millis(500)), 1_000_000);
        assert_eq!(rate.time_for(1_000_000), Duration::from_millis(500));
    }

    #[test]
    fn no_rate_never_finishes() {
        assert_eq!(Rate::from_bytes_in(5, Duration::ZERO), Rate::ZERO);
        assert_eq!(Rate::ZERO.time_for(1), Duration::MAX);
    }
}
