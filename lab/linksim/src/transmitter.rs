//! The part of a link that sends packets one after the other: when is the head of the queue sent?

use std::time::Duration;

use multiway_core::units::Timestamp;

use crate::config::Capacity;
use crate::trace::OPPORTUNITY_BYTES;

/// Work is counted in bits times 10^9, so that a rate in bits per second is that much work per
/// nanosecond and no fraction is ever rounded away.
const WORK_PER_BYTE: u128 = 8 * 1_000_000_000;

const OPPORTUNITY_WORK: u128 = OPPORTUNITY_BYTES as u128 * WORK_PER_BYTE;

/// Sends the head of a queue at the link's capacity, on a clock of its own that never runs ahead of
/// the caller's. However late it is asked, every departure gets the time at which it was due.
#[derive(Debug, Clone)]
pub(crate) struct Transmitter {
    capacity: Capacity,
    /// Everything due until here is done.
    clock: Timestamp,
    /// What is left to send of the packet at the head; none when the queue is empty.
    head: Option<u128>,
    /// Work done in the nanosecond of the last departure beyond what that packet needed.
    carried: u128,
    /// When the trace in use began.
    trace_start: Timestamp,
    /// The next opportunity of the trace, by its running number.
    next_opportunity: u64,
    /// What the last packet left of the opportunity at which it was sent.
    left_of_opportunity: u128,
}

impl Transmitter {
    pub(crate) fn new(capacity: Capacity, start: Timestamp) -> Self {
        let mut transmitter = Self {
            capacity: Capacity::Unlimited,
            clock: start,
            head: None,
            carried: 0,
            trace_start: start,
            next_opportunity: 0,
            left_of_opportunity: 0,
        };
        transmitter.set_capacity(capacity);
        transmitter
    }

    /// Changes the capacity at the transmitter's clock, which the caller has brought up to date.
    pub(crate) fn set_capacity(&mut self, capacity: Capacity) {
        self.capacity = capacity;
        self.carried = 0;
        self.left_of_opportunity = 0;
        self.trace_start = self.clock;
        self.next_opportunity = 0;
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.head.is_none()
    }

    /// Forgets the packet at the head.
    pub(crate) fn clear(&mut self) {
        self.head = None;
        self.carried = 0;
        self.left_of_opportunity = 0;
    }

    /// A packet is now at the head of the queue.
    pub(crate) fn start(&mut self, bytes: u64) {
        debug_assert!(self.is_idle(), "the last head has departed");
        let work = u128::from(bytes) * WORK_PER_BYTE;
        let done = std::mem::take(&mut self.carried);
        self.head = Some(work.saturating_sub(done));
    }

    /// Works until `now`, or until the head is sent; then tells when it was.
    pub(crate) fn advance(&mut self, now: Timestamp) -> Option<Timestamp> {
        let departure = match self.head {
            None => None,
            Some(left) => match &self.capacity {
                Capacity::Unlimited => Some(self.clock),
                Capacity::Rate(rate) => self.advance_at(u128::from(rate.bits_per_second()), left, now),
                Capacity::Trace(_) => self.advance_on_trace(left, now),
            },
        };
        match departure {
            Some(at) => {
                self.clock = at;
                self.head = None;
            }
            None => {
                self.clock = self.clock.max(now);
                // Work that finds nobody waiting is lost.
                if self.is_idle() {
                    self.carried = 0;
                    self.left_of_opportunity = 0;
                }
            }
        }
        departure
    }

    /// When the head will be sent if nothing changes; none when the queue is empty or the rate is zero.
    pub(crate) fn next_departure(&self) -> Option<Timestamp> {
        let left = self.head?;
        match &self.capacity {
            Capacity::Unlimited => Some(self.clock),
            Capacity::Rate(rate) if rate.is_zero() => None,
            Capacity::Rate(rate) => {
                Some(self.clock + nanoseconds(left.div_ceil(u128::from(rate.bits_per_second()))))
            }
            Capacity::Trace(trace) => {
                let left = left.saturating_sub(self.left_of_opportunity);
                if left == 0 {
                    return Some(self.clock);
                }
                let first = self.next_opportunity_after_clock();
                let more = u64::try_from(left.div_ceil(OPPORTUNITY_WORK) - 1).unwrap_or(u64::MAX);
                Some(self.trace_start + trace.opportunity(first.saturating_add(more)))
            }
        }
    }

    fn advance_at(&mut self, work_per_nanosecond: u128, left: u128, now: Timestamp) -> Option<Timestamp> {
        if work_per_nanosecond == 0 {
            return None;
        }
        let available = now.saturating_since(self.clock).as_nanos();
        let needed = left.div_ceil(work_per_nanosecond);
        if needed > available {
            self.head = Some(left - available * work_per_nanosecond);
            return None;
        }
        self.carried = needed * work_per_nanosecond - left;
        Some(self.clock + nanoseconds(needed))
    }

    fn advance_on_trace(&mut self, mut left: u128, now: Timestamp) -> Option<Timestamp> {
        let now = now.max(self.clock);
        let mut at = self.clock;
        // Small packets share the opportunity at which the one before them was sent.
        let mut budget = std::mem::take(&mut self.left_of_opportunity);
        self.next_opportunity = self.next_opportunity_after_clock();
        loop {
            if left <= budget {
                self.left_of_opportunity = budget - left;
                return Some(at);
            }
            left -= budget;
            let Capacity::Trace(trace) = &self.capacity else { return None };
            let due = self.trace_start + trace.opportunity(self.next_opportunity);
            if due > now {
                self.head = Some(left);
                return None;
            }
            self.next_opportunity += 1;
            at = due;
            budget = OPPORTUNITY_WORK;
        }
    }

    /// Opportunities that passed while nothing waited are gone.
    fn next_opportunity_after_clock(&self) -> u64 {
        let Capacity::Trace(trace) = &self.capacity else { return 0 };
        let passed = self.clock.saturating_since(self.trace_start);
        self.next_opportunity.max(trace.first_from(passed))
    }
}

fn nanoseconds(count: u128) -> Duration {
    u64::try_from(count).map_or(Duration::MAX, Duration::from_nanos)
}
