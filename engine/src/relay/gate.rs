//! How many connections may come in a second, in all and from one neighbourhood.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::time::Instant;

/// Neighbourhoods remembered; those that are as good as new are forgotten first.
const MOST_REMEMBERED: usize = 1 << 16;

/// A bucket holds what comes in a second, so that a device may open all its connections at once.
const BURST_SECONDS: f64 = 1.0;

/// Counts what comes in.
#[derive(Debug)]
pub(super) struct Gate {
    all: Bucket,
    rate_of_all: f64,
    each: HashMap<IpAddr, Bucket>,
    rate_of_each: f64,
}

#[derive(Debug, Clone, Copy)]
struct Bucket {
    tokens: f64,
    filled: Instant,
}

impl Bucket {
    fn full(rate: f64, now: Instant) -> Self {
        Self { tokens: rate * BURST_SECONDS, filled: now }
    }

    fn fill(&mut self, rate: f64, now: Instant) {
        let passed = now.saturating_duration_since(self.filled).as_secs_f64();
        self.tokens = (self.tokens + passed * rate).min(rate * BURST_SECONDS);
        self.filled = now;
    }

    fn is_full(&self, rate: f64, now: Instant) -> bool {
        let mut filled = *self;
        filled.fill(rate, now);
        filled.tokens >= rate * BURST_SECONDS
    }
}

impl Gate {
    pub(super) fn new(per_second: u32, per_second_each: u32, now: Instant) -> Self {
        let (rate_of_all, rate_of_each) = (per_second.into(), per_second_each.into());
        Self { all: Bucket::full(rate_of_all, now), rate_of_all, each: HashMap::new(), rate_of_each }
    }

    /// Whether a connection from `address` may come in now.
    pub(super) fn admit(&mut self, address: IpAddr, now: Instant) -> bool {
        let neighbourhood = neighbourhood(address);
        if self.each.len() >= MOST_REMEMBERED && !self.each.contains_key(&neighbourhood) {
            let rate = self.rate_of_each;
            self.each.retain(|_, bucket| !bucket.is_full(rate, now));
            if self.each.len() >= MOST_REMEMBERED {
                return false;
            }
        }
        self.all.fill(self.rate_of_all, now);
        let own = self.each.entry(neighbourhood).or_insert_with(|| Bucket::full(self.rate_of_each, now));
        own.fill(self.rate_of_each, now);
        if own.tokens < 1.0 || self.all.tokens < 1.0 {
            return false;
        }
        own.tokens -= 1.0;
        self.all.tokens -= 1.0;
        true
    }
}

/// A host may have a whole /64 of IPv6 (RFC 6177), and 65536 times as many addresses as one counts.
fn neighbourhood(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(v6) => Ipv6Addr::from_bits(v6.to_bits() >> 64 << 64).into(),
        v4 => v4,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn one_neighbourhood_cannot_use_up_what_all_have() {
        let start = Instant::now();
        let mut gate = Gate::new(10, 3, start);
        let admitted = |gate: &mut Gate, address: &str, now| {
            (0..20).filter(|_| gate.admit(address.parse().unwrap(), now)).count()
        };
        assert_eq!(admitted(&mut gate, "192.0.2.1", start), 3);
        assert_eq!(admitted(&mut gate, "::ffff:192.0.2.1", start), 0);
        assert_eq!(admitted(&mut gate, "2001:db8::1", start), 3);
        assert_eq!(admitted(&mut gate, "2001:db8::2", start), 0);
        assert_eq!(admitted(&mut gate, "2001:db8:0:1::2", start), 3);
        // All together had ten.
        assert_eq!(admitted(&mut gate, "192.0.2.9", start), 1);
        assert_eq!(admitted(&mut gate, "192.0.2.1", start + Duration::from_secs(1)), 3);
    }
}
