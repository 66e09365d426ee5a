//! A network link as a state machine.
//!
//! Purity contract: nothing here opens a socket, reads a clock, starts a thread or sleeps. Packets
//! enter with [`Link::handle_packet`], leave with [`Link::poll_deliver`], and time enters as an
//! argument, so the same link runs on virtual time in property tests and, driven by a thread that
//! moves real packets between two TUN devices, on the real kernel. The same seed, packets and times
//! give the same outcome.
//!
//! One [`Link`] is one direction. A packet first waits in a drop-tail queue bounded in bytes, is then
//! served at the link's [`Capacity`], may be lost ([`Loss`]), and arrives after the propagation delay
//! plus jitter, never before the packet sent ahead of it:
//!
//! ```text
//! handle_packet -> [ queue, bytes ] -> [ rate or trace ] -> [ loss ] -> [ delay + jitter ] -> poll_deliver
//! ```
//!
//! [`Scenario`] is the file format for whole networks of such links; virtual and real labs read the
//! same file.
//!
//! ```
//! use std::time::Duration;
//! use multiway_core::units::Timestamp;
//! use multiway_linksim::{generator, mbit, Link, LinkConfig};
//!
//! let config = LinkConfig::new(mbit(12), Duration::from_millis(10));
//! let mut link = Link::new(config, generator(1, "wlan0 down"));
//! link.handle_packet(Timestamp::ZERO, 1500, "hello");
//! // 1500 bytes take 1 ms at 12 Mbit/s, then 10 ms of propagation.
//! let arrival = Timestamp::from_origin(Duration::from_millis(11));
//! assert_eq!(link.poll_timeout(), Some(arrival));
//! assert_eq!(link.poll_deliver(arrival), Some("hello"));
//! ```

mod config;
mod link;
mod loss;
pub mod scenario;
mod trace;
mod transmitter;

pub use config::{Capacity, Change, LinkConfig, LinkSpec};
pub use link::{Counters, Link, Tally, Verdict};
pub use loss::{Loss, Probability, ProbabilityError};
pub use scenario::{FileSpec, PathSpec, Scenario, ScenarioError, ServerSpec};
pub use trace::{OPPORTUNITY_BYTES, Trace, TraceError};

use multiway_core::units::Rate;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;

/// A rate in megabits per second.
pub const fn mbit(megabits_per_second: u64) -> Rate {
    Rate::from_bits_per_second(megabits_per_second * 1_000_000)
}

/// A rate in kilobits per second.
pub const fn kbit(kilobits_per_second: u64) -> Rate {
    Rate::from_bits_per_second(kilobits_per_second * 1_000)
}

/// The generator of one link: the scenario's seed, and a stream of its own per link name so that
/// adding a link changes nothing for the others.
pub fn generator(seed: u64, link: &str) -> ChaCha8Rng {
    // FNV-1a: stable across releases, unlike the standard library's hasher.
    const OFFSET_BASIS: u64 = 0xcbf2_9ce4_8422_2325;
    const PRIME: u64 = 0x0100_0000_01b3;
    let stream = link.bytes().fold(OFFSET_BASIS, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(PRIME));
    let mut generator = ChaCha8Rng::seed_from_u64(seed);
    generator.set_stream(stream);
    generator
}
