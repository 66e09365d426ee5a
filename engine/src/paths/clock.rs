use std::sync::OnceLock;
use std::time::{Instant, SystemTime};

use multiway_core::paths::DailyBytes;
use multiway_core::units::Timestamp;

/// The engine's one clock: the time since this process first asked.
pub fn now() -> Timestamp {
    static ORIGIN: OnceLock<Instant> = OnceLock::new();
    Timestamp::from_origin(ORIGIN.get_or_init(Instant::now).elapsed())
}

/// Seconds since 1970 by the system's clock, for what outlives the process; zero before 1970.
pub(super) fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// Days since 1970 in UTC.
pub(super) fn today() -> u64 {
    unix_seconds() / DailyBytes::DAY_SECONDS
}
