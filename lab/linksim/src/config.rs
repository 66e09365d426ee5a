//! What a link is like.

use std::sync::Arc;
use std::time::Duration;

use multiway_core::units::Rate;

use crate::loss::Loss;
use crate::trace::Trace;

/// Bytes of a full-sized Ethernet payload, which is also the smallest sensible queue.
pub(crate) const FULL_PACKET_BYTES: u64 = 1500;

/// A queue that nobody asked for holds at least the initial window of ten segments (RFC 6928) twice.
const SMALLEST_DEFAULT_QUEUE_BYTES: u64 = 20 * FULL_PACKET_BYTES;

/// How fast a link sends what is queued.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Capacity {
    /// Without limit.
    Unlimited,
    /// At a constant rate; at [`Rate::ZERO`] packets wait.
    Rate(Rate),
    /// As recorded.
    Trace(Arc<Trace>),
}

impl Capacity {
    /// The mean rate; none when unlimited.
    pub fn mean_rate(&self) -> Option<Rate> {
        match self {
            Self::Unlimited => None,
            Self::Rate(rate) => Some(*rate),
            Self::Trace(trace) => Some(trace.mean_rate()),
        }
    }
}

/// A change of a running link.
#[derive(Debug, Clone, PartialEq)]
pub enum Change {
    /// From now on the link sends this fast. The packet being sent keeps what it already sent.
    Capacity(Capacity),
    /// From now on packets travel this long. Order is kept.
    Delay(Duration),
    /// From now on up to this much is added to the delay.
    Jitter(Duration),
    /// From now on packets are lost like this.
    Loss(Loss),
    /// From now on the queue holds this many bytes; what is queued already stays.
    Queue(u64),
    /// While true, everything on the link and everything sent into it vanishes, and nobody is told.
    Blackhole(bool),
    /// While false, the same, and a real interface also reports that its carrier is lost.
    Carrier(bool),
}

/// One direction of a link.
#[derive(Debug, Clone, PartialEq)]
pub struct LinkConfig {
    /// How fast it sends.
    pub capacity: Capacity,
    /// Propagation delay, one way.
    pub delay: Duration,
    /// Extra delay, drawn per packet and evenly from zero to this. Order is kept.
    pub jitter: Duration,
    /// Random loss.
    pub loss: Loss,
    /// The drop-tail queue's bound in bytes, counting the packet being sent.
    pub queue_bytes: u64,
    /// Changes at times counted from the link's start.
    pub schedule: Vec<(Duration, Change)>,
}

impl LinkConfig {
    /// A constant rate and delay, no loss, and a queue of one bandwidth-delay product of a path that
    /// has this delay both ways.
    pub fn new(rate: Rate, delay: Duration) -> Self {
        Self {
            capacity: Capacity::Rate(rate),
            delay,
            jitter: Duration::ZERO,
            loss: Loss::None,
            queue_bytes: default_queue(rate, delay * 2),
            schedule: Vec::new(),
        }
    }

    /// A link as fast as the machine, with this delay.
    pub fn unlimited(delay: Duration) -> Self {
        Self { capacity: Capacity::Unlimited, queue_bytes: u64::MAX, ..Self::new(Rate::ZERO, delay) }
    }
}

/// Both directions of a link, named as the device at its first end sees them.
#[derive(Debug, Clone, PartialEq)]
pub struct LinkSpec {
    /// From the device.
    pub up: LinkConfig,
    /// To the device.
    pub down: LinkConfig,
}

impl LinkSpec {
    /// The same rate both ways, half the round-trip time each way, queues of one bandwidth-delay product.
    pub fn symmetric(rate: Rate, rtt: Duration) -> Self {
        let one_way = LinkConfig::new(rate, rtt / 2);
        Self { up: one_way.clone(), down: one_way }
    }

    /// A rate for each direction.
    pub fn asymmetric(down: Rate, up: Rate, rtt: Duration) -> Self {
        Self { up: LinkConfig::new(up, rtt / 2), down: LinkConfig::new(down, rtt / 2) }
    }

    /// As fast as the machine both ways.
    pub fn unlimited(rtt: Duration) -> Self {
        let one_way = LinkConfig::unlimited(rtt / 2);
        Self { up: one_way.clone(), down: one_way }
    }

    /// The same with this loss both ways.
    #[must_use]
    pub fn with_loss(mut self, loss: Loss) -> Self {
        self.up.loss = loss;
        self.down.loss = loss;
        self
    }

    /// The same with this jitter both ways.
    #[must_use]
    pub fn with_jitter(mut self, jitter: Duration) -> Self {
        self.up.jitter = jitter;
        self.down.jitter = jitter;
        self
    }

    /// The same with queues of so many bytes both ways.
    #[must_use]
    pub fn with_queue(mut self, bytes: u64) -> Self {
        self.up.queue_bytes = bytes;
        self.down.queue_bytes = bytes;
        self
    }

    /// The same with a change at `at` after the link's start, both ways.
    #[must_use]
    pub fn with_change(mut self, at: Duration, change: Change) -> Self {
        self.up.schedule.push((at, change.clone()));
        self.down.schedule.push((at, change));
        self
    }

    /// The round-trip time of an idle link, without jitter and sending time.
    pub fn rtt(&self) -> Duration {
        self.up.delay + self.down.delay
    }
}

/// One bandwidth-delay product, but room for an initial window.
pub(crate) fn default_queue(rate: Rate, rtt: Duration) -> u64 {
    rate.bytes_in(rtt).max(SMALLEST_DEFAULT_QUEUE_BYTES)
}
