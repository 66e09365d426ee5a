//! The clock that goes on while the device sleeps.

use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

/// Time since the device started, the time it slept included (`CLOCK_BOOTTIME`).
///
/// What other hosts said to hold for a while ends by this clock: they did not sleep.
pub fn since_boot() -> Duration {
    let time = clock_gettime(ClockId::CLOCK_BOOTTIME).expect("Linux has this clock since 2.6.39");
    Duration::from(time)
}
