//! How much was moved today.

/// Payload bytes of one day.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DailyBytes {
    day: u64,
    bytes: u64,
}

impl DailyBytes {
    /// Seconds of a day in UTC.
    pub const DAY_SECONDS: u64 = 24 * 3600;

    /// `bytes` counted so far on `day`, the number of days since 1970.
    pub const fn new(day: u64, bytes: u64) -> Self {
        Self { day, bytes }
    }

    /// Counts `bytes` on `day`; a new day begins at zero.
    pub fn add(&mut self, bytes: u64, day: u64) {
        self.bytes = self.get_at(day).saturating_add(bytes);
        self.day = day;
    }

    /// Bytes of `day`, as far as counted.
    pub const fn get_at(&self, day: u64) -> u64 {
        if self.day == day { self.bytes } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_day_begins_at_zero() {
        let mut usage = DailyBytes::default();
        usage.add(5, 20_000);
        usage.add(6, 20_000);
        assert_eq!((usage.get_at(20_000), usage.get_at(20_001)), (11, 0));
        usage.add(7, 20_001);
        assert_eq!(usage.get_at(20_001), 7);
    }
}
