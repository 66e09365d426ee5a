use std::time::Duration;

use crate::units::{Rate, Timestamp};

/// One reading of a TCP socket's state in the kernel (`TCP_INFO`), FLEETY section 5.
///
/// Counters are totals since the connection began.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TcpSample {
    /// When it was read.
    pub at: Timestamp,
    /// Smoothed round-trip time.
    pub smoothed_rtt: Duration,
    /// Mean deviation of the round-trip time.
    pub rtt_variance: Duration,
    /// Least round-trip time seen by the kernel; `None` before the first measurement.
    pub min_rtt: Option<Duration>,
    /// The kernel's estimate of the sending rate that the path delivers; zero when nothing was sent.
    pub delivery_rate: Rate,
    /// Data segments sent, retransmissions included.
    pub segments_sent: u64,
    /// Segments retransmitted.
    pub segments_retransmitted: u64,
    /// Segments thought lost and not yet retransmitted.
    pub segments_lost: u64,
    /// Payload bytes received in order.
    pub bytes_received: u64,
    /// Payload bytes acknowledged by the peer.
    pub bytes_acked: u64,
    /// Current retransmission timeout.
    pub retransmission_timeout: Duration,
    /// Time since data last arrived.
    pub since_last_data_received: Duration,
}

/// What is believed of a path now, from live samples or from history.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PathEstimate {
    /// Smoothed round-trip time; `None` when never measured.
    pub rtt: Option<Duration>,
    /// Mean deviation of the round-trip time.
    pub jitter: Option<Duration>,
    /// Rate at which the path receives, over all its connections; `None` when never measured.
    pub throughput: Option<Rate>,
    /// Share of segments lost, in parts per million; `None` when never measured.
    pub loss_ppm: Option<u32>,
}
