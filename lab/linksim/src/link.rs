//! One direction of a link.

use std::collections::VecDeque;
use std::time::Duration;

use multiway_core::units::Timestamp;
use rand::RngExt;
use rand_chacha::ChaCha8Rng;

use crate::config::{Change, LinkConfig};
use crate::loss::LossProcess;
use crate::transmitter::Transmitter;

/// What became of a packet given to a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It waits or travels. It may still be lost on the way.
    Accepted,
    /// The queue was full.
    QueueFull,
    /// The link is blackholed or has no carrier.
    Vanished,
}

/// Packets and their bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Tally {
    /// Packets.
    pub packets: u64,
    /// Bytes of these packets.
    pub bytes: u64,
}

impl Tally {
    fn add(&mut self, bytes: u64) {
        self.packets += 1;
        self.bytes += bytes;
    }
}

/// What has become of all packets given to a link: `offered` is the sum of the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counters {
    /// Given to the link.
    pub offered: Tally,
    /// Taken from it at the far end.
    pub delivered: Tally,
    /// Found the queue full.
    pub overflowed: Tally,
    /// Lost by chance.
    pub lost: Tally,
    /// Vanished in a blackhole or with the carrier.
    pub vanished: Tally,
    /// Waiting in the queue now.
    pub queued: Tally,
    /// Travelling now.
    pub travelling: Tally,
}

#[derive(Debug)]
struct Queued<T> {
    bytes: u64,
    payload: T,
}

#[derive(Debug)]
struct Travelling<T> {
    arrival: Timestamp,
    bytes: u64,
    payload: T,
}

/// One direction of a link; `T` is what a packet carries.
///
/// Times given to it must not decrease. However late it is polled, packets leave the queue and arrive
/// at the times at which they were due, so a late poll delays what it picks up and nothing after it.
#[derive(Debug)]
pub struct Link<T> {
    transmitter: Transmitter,
    delay: Duration,
    jitter: Duration,
    loss: LossProcess,
    queue_bytes: u64,
    is_blackhole: bool,
    has_carrier: bool,
    /// Changes to come, soonest first.
    schedule: VecDeque<(Timestamp, Change)>,
    generator: ChaCha8Rng,
    queue: VecDeque<Queued<T>>,
    travelling: VecDeque<Travelling<T>>,
    /// No packet arrives before the one sent ahead of it.
    last_arrival: Timestamp,
    counters: Counters,
}

impl<T> Link<T> {
    /// A link that starts at [`Timestamp::ZERO`], idle.
    pub fn new(config: LinkConfig, generator: ChaCha8Rng) -> Self {
        Self::starting_at(Timestamp::ZERO, config, generator)
    }

    /// A link that starts at `start`, idle; its schedule and trace count from there.
    pub fn starting_at(start: Timestamp, config: LinkConfig, generator: ChaCha8Rng) -> Self {
        let LinkConfig { capacity, delay, jitter, loss, queue_bytes, schedule } = config;
        let mut link = Self {
            transmitter: Transmitter::new(capacity, start),
            delay,
            jitter,
            loss: LossProcess::new(loss),
            queue_bytes,
            is_blackhole: false,
            has_carrier: true,
            schedule: VecDeque::new(),
            generator,
            queue: VecDeque::new(),
            travelling: VecDeque::new(),
            last_arrival: start,
            counters: Counters::default(),
        };
        for (after, change) in schedule {
            link.schedule(start + after, change);
        }
        link
    }

    /// A packet of `bytes` enters the link.
    pub fn handle_packet(&mut self, now: Timestamp, bytes: u64, payload: T) -> Verdict {
        self.handle_timeout(now);
        self.counters.offered.add(bytes);
        if self.vanishes() {
            self.counters.vanished.add(bytes);
            return Verdict::Vanished;
        }
        if self.counters.queued.bytes.saturating_add(bytes) > self.queue_bytes {
            self.counters.overflowed.add(bytes);
            return Verdict::QueueFull;
        }
        self.counters.queued.add(bytes);
        self.queue.push_back(Queued { bytes, payload });
        // An unlimited link sends it at once.
        self.serve(now);
        Verdict::Accepted
    }

    /// Changes the link from `now` on.
    pub fn handle_change(&mut self, now: Timestamp, change: Change) {
        self.handle_timeout(now);
        self.apply(change);
        self.serve(now);
    }

    /// Changes the link at `at`, after all changes already scheduled for that time.
    pub fn schedule(&mut self, at: Timestamp, change: Change) {
        let position = self.schedule.partition_point(|(other, _)| *other <= at);
        self.schedule.insert(position, (at, change));
    }

    /// The next packet that has arrived by `now`.
    pub fn poll_deliver(&mut self, now: Timestamp) -> Option<T> {
        self.handle_timeout(now);
        if self.travelling.front()?.arrival > now {
            return None;
        }
        let Travelling { bytes, payload, .. } = self.travelling.pop_front()?;
        self.counters.travelling.packets -= 1;
        self.counters.travelling.bytes -= bytes;
        self.counters.delivered.add(bytes);
        Some(payload)
    }

    /// When to call [`Self::handle_timeout`] or [`Self::poll_deliver`] next: when a packet may arrive or
    /// a scheduled change is due; none when only a new packet can make anything happen.
    ///
    /// A packet that leaves the queue needs no call of its own, which halves the wake-ups of a driver.
    pub fn poll_timeout(&self) -> Option<Timestamp> {
        let arrival = match self.travelling.front() {
            Some(first) => Some(first.arrival),
            None => self.transmitter.next_departure().map(|at| self.last_arrival.max(at + self.delay)),
        };
        let change = self.schedule.front().map(|(at, _)| *at);
        [arrival, change].into_iter().flatten().min()
    }

    /// Does all that was due by `now`.
    pub fn handle_timeout(&mut self, now: Timestamp) {
        while self.schedule.front().is_some_and(|(at, _)| *at <= now) {
            let (at, change) = self.schedule.pop_front().expect("the front was there");
            self.serve(at);
            self.apply(change);
        }
        self.serve(now);
    }

    /// What has become of the packets, as of the last call.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// The queue's bound in bytes.
    pub fn queue_bytes(&self) -> u64 {
        self.queue_bytes
    }

    /// False while the carrier is lost.
    pub fn has_carrier(&self) -> bool {
        self.has_carrier
    }

    fn vanishes(&self) -> bool {
        self.is_blackhole || !self.has_carrier
    }

    fn apply(&mut self, change: Change) {
        match change {
            Change::Capacity(capacity) => self.transmitter.set_capacity(capacity),
            Change::Delay(delay) => self.delay = delay,
            Change::Jitter(jitter) => self.jitter = jitter,
            Change::Loss(loss) => self.loss = LossProcess::new(loss),
            Change::Queue(bytes) => self.queue_bytes = bytes,
            Change::Blackhole(is_blackhole) => self.is_blackhole = is_blackhole,
            Change::Carrier(has_carrier) => self.has_carrier = has_carrier,
        }
        if self.vanishes() {
            self.transmitter.clear();
            self.queue.clear();
            self.travelling.clear();
            for left in
                [std::mem::take(&mut self.counters.queued), std::mem::take(&mut self.counters.travelling)]
            {
                self.counters.vanished.packets += left.packets;
                self.counters.vanished.bytes += left.bytes;
            }
        }
    }

    /// Sends from the queue all that was due by `now`.
    fn serve(&mut self, now: Timestamp) {
        loop {
            if self.transmitter.is_idle()
                && let Some(head) = self.queue.front()
            {
                self.transmitter.start(head.bytes);
            }
            let Some(departure) = self.transmitter.advance(now) else { return };
            let Queued { bytes, payload } =
                self.queue.pop_front().expect("the transmitter sends the queue's head");
            self.counters.queued.packets -= 1;
            self.counters.queued.bytes -= bytes;
            self.travel(departure, bytes, payload);
        }
    }

    fn travel(&mut self, departure: Timestamp, bytes: u64, payload: T) {
        if self.loss.loses_next(&mut self.generator) {
            self.counters.lost.add(bytes);
            return;
        }
        let jitter = match u64::try_from(self.jitter.as_nanos()).unwrap_or(u64::MAX) {
            0 => Duration::ZERO,
            most => Duration::from_nanos(self.generator.random_range(0..=most)),
        };
        let arrival = self.last_arrival.max(departure + self.delay + jitter);
        self.last_arrival = arrival;
        self.counters.travelling.add(bytes);
        self.travelling.push_back(Travelling { arrival, bytes, payload });
    }
}
