use std::time::Duration;

use crate::units::{Rate, Timestamp};

/// One reading of a TCP socket's state in the kernel (`TCP_INFO`), FLEETY section 5.
///
/// Counters are totals since the connection began.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
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
    /// Segments in flight that are thought lost, whether retransmitted or not.
    pub segments_lost: u64,
    /// Segments that were retransmitted and are not yet acknowledged.
    pub segments_retransmitting: u64,
    /// Segments sent and not yet acknowledged.
    pub segments_unacked: u64,
    /// Segments received, those without payload included: any sign of life.
    pub segments_received: u64,
    /// Segments that the peer reported to have received twice (RFC 2883), so that a retransmission
    /// was needless.
    pub duplicates_reported: u64,
    /// Segments received behind a gap: one before them was lost or overtaken.
    pub segments_out_of_order: u64,
    /// Times the network was seen to reorder segments.
    pub reorderings: u64,
    /// Congestion window in segments.
    pub congestion_window: u64,
    /// Payload bytes of a full segment to the peer.
    pub segment_size: u64,
    /// Payload bytes sent, retransmissions included.
    pub bytes_sent: u64,
    /// Payload bytes retransmitted.
    pub bytes_retransmitted: u64,
    /// Payload bytes in the socket's buffer that were never sent.
    pub bytes_unsent: u64,
    /// Payload bytes received in order.
    pub bytes_received: u64,
    /// Payload bytes acknowledged by the peer.
    pub bytes_acked: u64,
    /// Current retransmission timeout.
    pub retransmission_timeout: Duration,
    /// Retransmission timeouts in a row without an acknowledgement; each doubled the timeout.
    pub timeouts_in_row: u32,
    /// Time since data was last sent.
    pub since_last_data_sent: Duration,
    /// Time since data last arrived.
    pub since_last_data_received: Duration,
    /// Time since the peer last acknowledged anything, be it the same again.
    pub since_last_ack_received: Duration,
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
