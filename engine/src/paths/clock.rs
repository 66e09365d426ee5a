use std::sync::OnceLock;
use std::time::{Duration, Instant, SystemTime};

use multiway_core::paths::DailyBytes;
use multiway_core::units::Timestamp;
use multiway_edge::clock::since_boot;

/// The engine's clock for all it measures: the time since this process first asked.
pub fn now() -> Timestamp {
    static ORIGIN: OnceLock<Instant> = OnceLock::new();
    Timestamp::from_origin(ORIGIN.get_or_init(Instant::now).elapsed())
}

/// The clock for what other hosts said to hold for a while: like [`now`], but it goes on while the device
/// sleeps. The two are never compared.
pub fn now_with_sleep() -> Timestamp {
    static ORIGIN: OnceLock<Duration> = OnceLock::new();
    let since_boot = since_boot();
    Timestamp::from_origin(since_boot.saturating_sub(*ORIGIN.get_or_init(|| since_boot)))
}

/// Seconds since 1970 by the system's clock, for what outlives the process; zero before 1970.
pub(super) fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// Days since 1970 in UTC.
pub(super) fn today() -> u64 {
    unix_seconds() / DailyBytes::DAY_SECONDS
}
