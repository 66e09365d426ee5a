//! Hosts whose servers gave different bytes on different networks (F8).

use std::collections::BTreeMap;

use super::NetworkIdentity;

/// Remembers for a while which (host, network) pairs disagreed with another path.
#[derive(Debug, Clone, Default)]
pub struct InconsistentHosts {
    /// When the mark expires, in seconds since 1970.
    expiry: BTreeMap<(NetworkIdentity, String), u64>,
}

impl InconsistentHosts {
    /// A mark holds for a day: servers are seldom out of step for longer, and a wrong mark costs
    /// only speed.
    pub const HOLD_SECONDS: u64 = 24 * 3600;

    /// Most marks held; the one that expires first makes room.
    const CAPACITY: usize = 4096;

    /// Marks the pair at `now` (seconds since 1970); returns when the mark expires.
    pub fn mark(&mut self, network: &NetworkIdentity, host: &str, now: u64) -> u64 {
        let expiry = now.saturating_add(Self::HOLD_SECONDS);
        self.restore(network.clone(), host.to_ascii_lowercase(), expiry);
        expiry
    }

    /// Puts a mark there that was remembered elsewhere.
    pub fn restore(&mut self, network: NetworkIdentity, host: String, expiry: u64) {
        self.expiry.insert((network, host), expiry);
        if self.expiry.len() > Self::CAPACITY {
            let first = self.expiry.iter().min_by_key(|(_, expiry)| **expiry).map(|(key, _)| key.clone());
            first.and_then(|key| self.expiry.remove(&key));
        }
    }

    /// True while the pair's mark holds.
    pub fn contains_at(&self, network: &NetworkIdentity, host: &str, now: u64) -> bool {
        self.expiry.get(&(network.clone(), host.to_ascii_lowercase())).is_some_and(|expiry| now < *expiry)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_holds_for_its_pair_and_a_day() {
        let home = NetworkIdentity("home".to_owned());
        let mut marks = InconsistentHosts::default();
        let expiry = marks.mark(&home, "Cdn.example", 1000);
        assert!(marks.contains_at(&home, "cdn.example", 1000));
        assert!(marks.contains_at(&home, "cdn.example", expiry - 1));
        assert!(!marks.contains_at(&home, "cdn.example", expiry));
        assert!(!marks.contains_at(&home, "other.example", 1000));
        assert!(!marks.contains_at(&NetworkIdentity("office".to_owned()), "cdn.example", 1000));
    }

    #[test]
    fn marks_are_bounded_in_number() {
        let home = NetworkIdentity("home".to_owned());
        let mut marks = InconsistentHosts::default();
        for n in 0..5000 {
            marks.mark(&home, &format!("host{n}"), n);
        }
        assert!(!marks.contains_at(&home, "host0", 1));
        assert!(marks.contains_at(&home, "host4999", 5000));
    }
}
