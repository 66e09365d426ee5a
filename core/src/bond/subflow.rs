//! A subflow: one TCP connection of a session.

use std::fmt;
use std::time::Duration;

use crate::units::Rate;

/// Names a subflow within its session. The device counts them up, and both ends use the number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SubflowId(pub u64);

impl fmt::Display for SubflowId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "subflow {}", self.0)
    }
}

/// One reading of a subflow's socket in the kernel (`TCP_INFO`), in what a session needs of it.
///
/// Counters are totals since the connection began.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SubflowSample {
    /// Smoothed round-trip time; zero before the first measurement.
    pub smoothed_rtt: Duration,
    /// Mean deviation of the round-trip time.
    pub rtt_variance: Duration,
    /// Least round-trip time seen by the kernel; `None` before the first measurement.
    pub min_rtt: Option<Duration>,
    /// Current retransmission timeout, backed off when it has expired.
    pub retransmission_timeout: Duration,
    /// Retransmission timeouts in a row without an answer.
    pub timeouts_in_a_row: u32,
    /// Congestion window, in bytes.
    pub congestion_window: u64,
    /// Segment size, in bytes.
    pub segment_size: u64,
    /// Bytes sent and not acknowledged by the far end's kernel.
    pub unacked: u64,
    /// Bytes in the socket that were not sent once.
    pub unsent: u64,
    /// Segments thought lost and not yet sent again.
    pub segments_lost: u64,
    /// Data segments sent, retransmissions included.
    pub segments_sent: u64,
    /// Segments retransmitted.
    pub segments_retransmitted: u64,
    /// The kernel's estimate of the rate that the path delivers; zero when nothing was sent.
    pub delivery_rate: Rate,
}
