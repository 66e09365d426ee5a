//! What is remembered of networks and destinations (F10), so that the first plan is a good one.

use std::collections::BTreeMap;
use std::time::Duration;

use super::NetworkIdentity;
use crate::units::Rate;

/// What a record is kept under.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HistoryKey {
    /// The network that the path was joined to.
    pub network: NetworkIdentity,
    /// Name or address of the remote; empty for the network as a whole.
    pub destination: String,
}

/// What one transfer showed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Observation {
    /// Smoothed round-trip time.
    pub rtt: Option<Duration>,
    /// Rate of the payload between its first and its last byte.
    pub throughput: Option<Rate>,
    /// Share of segments lost, in parts per million.
    pub loss_ppm: Option<u32>,
    /// How long the TCP handshake took.
    pub connect_time: Option<Duration>,
    /// Payload bytes.
    pub bytes: u64,
}

impl Observation {
    /// A transfer of `bytes` whose payload took `duration` to arrive.
    ///
    /// A transfer that ended within slow start says nothing of the rate and leaves it open; one that
    /// brought as little in many round trips says that the path is slow.
    pub fn of_transfer(bytes: u64, duration: Duration, rtt: Option<Duration>) -> Self {
        let outlasted_slow_start = rtt.is_some_and(|rtt| duration >= rtt * SLOW_START_ROUNDS);
        let throughput = ((bytes >= LEAST_BYTES || outlasted_slow_start) && !duration.is_zero())
            .then(|| Rate::from_bytes_in(bytes, duration))
            .filter(|rate| !rate.is_zero());
        Self { rtt, throughput, bytes, ..Self::default() }
    }
}

/// Fewer bytes pass in slow start on most paths: 10 segments, doubled four times.
const LEAST_BYTES: u64 = 256 << 10;

/// Round trips after which slow start has filled a path of up to 100 Mbit/s at 50 ms.
const SLOW_START_ROUNDS: u32 = 6;

/// What is remembered under one key.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct HistoryRecord {
    /// Round-trip time.
    pub rtt: Option<Duration>,
    /// Rate at which one transfer received.
    pub throughput: Option<Rate>,
    /// Share of segments lost, in parts per million.
    pub loss_ppm: Option<u32>,
    /// How long the TCP handshake took.
    pub connect_time: Option<Duration>,
    /// Bytes that the values stand for, faded with age.
    pub weight_bytes: u64,
    /// Transfers merged.
    pub count: u64,
    /// When the last of them was, in seconds since 1970.
    pub last_seen: u64,
}

/// In this time what is remembered loses half its weight: networks differ by the hour, but a rate
/// of last week is better than none.
const HALF_LIFE_SECONDS: f64 = 2.0 * 24.0 * 3600.0;

/// Records not renewed for longer are not believed any more.
const MAX_AGE_SECONDS: u64 = 90 * 24 * 3600;

/// The past never weighs more than this, so that a network that changed is known again after a few
/// transfers.
const MOST_WEIGHT_BYTES: u64 = 32 << 20;

/// What any transfer weighs, however small: its round trip was measured all the same.
const LEAST_WEIGHT_BYTES: u64 = 64 << 10;

impl HistoryRecord {
    /// Merges an observation made at `now` (seconds since 1970), weighted by volume: what is
    /// remembered fades with age and never outweighs the present for long.
    #[must_use]
    pub fn merged(self, new: &Observation, now: u64) -> Self {
        let age = now.saturating_sub(self.last_seen) as f64;
        let faded = self.weight_bytes.min(MOST_WEIGHT_BYTES) as f64 * (-age / HALF_LIFE_SECONDS).exp2();
        let fresh = new.bytes.clamp(LEAST_WEIGHT_BYTES, MOST_WEIGHT_BYTES) as f64;
        let share = fresh / (faded + fresh);
        let blend = |old: f64, new: f64| old + share * (new - old);
        Self {
            rtt: both(self.rtt, new.rtt, |old, new| {
                Duration::from_secs_f64(blend(old.as_secs_f64(), new.as_secs_f64()))
            }),
            throughput: both(self.throughput, new.throughput, |old, new| {
                let bits = blend(old.bits_per_second() as f64, new.bits_per_second() as f64);
                Rate::from_bits_per_second(bits as u64)
            }),
            loss_ppm: both(self.loss_ppm, new.loss_ppm, |old, new| blend(old.into(), new.into()) as u32),
            connect_time: both(self.connect_time, new.connect_time, |old, new| {
                Duration::from_secs_f64(blend(old.as_secs_f64(), new.as_secs_f64()))
            }),
            weight_bytes: (faded + fresh) as u64,
            count: self.count.saturating_add(1),
            last_seen: self.last_seen.max(now),
        }
    }

    fn is_believed(&self, now: u64) -> bool {
        now.saturating_sub(self.last_seen) <= MAX_AGE_SECONDS
    }
}

fn both<T>(old: Option<T>, new: Option<T>, blend: impl FnOnce(T, T) -> T) -> Option<T> {
    match (old, new) {
        (Some(old), Some(new)) => Some(blend(old, new)),
        (old, new) => new.or(old),
    }
}

/// Records of all networks, bounded in number.
#[derive(Debug, Clone)]
pub struct History {
    records: BTreeMap<HistoryKey, HistoryRecord>,
    capacity: usize,
}

impl History {
    /// An empty history that holds at most `capacity` records.
    pub fn new(capacity: usize) -> Self {
        Self { records: BTreeMap::new(), capacity: capacity.max(1) }
    }

    /// Puts a record there that was remembered elsewhere.
    pub fn restore(&mut self, key: HistoryKey, record: HistoryRecord) {
        self.records.insert(key, record);
        self.make_room();
    }

    /// Merges what a transfer from `destination` showed at `now` (seconds since 1970).
    ///
    /// It counts for the destination and for its network as a whole. Returns what changed, to be
    /// stored; nothing for a network without identity, which could be any.
    pub fn record(
        &mut self,
        network: &NetworkIdentity,
        destination: &str,
        observation: &Observation,
        now: u64,
    ) -> Vec<(HistoryKey, HistoryRecord)> {
        if network.0.is_empty() {
            return Vec::new();
        }
        let mut destinations = vec![String::new()];
        if !destination.is_empty() {
            destinations.push(destination.to_ascii_lowercase());
        }
        let changed = destinations
            .into_iter()
            .map(|destination| {
                let key = HistoryKey { network: network.clone(), destination };
                let old = self.records.get(&key).copied().unwrap_or_default();
                let record = old.merged(observation, now);
                self.records.insert(key.clone(), record);
                (key, record)
            })
            .collect();
        self.make_room();
        changed
    }

    /// What to expect of `destination` over `network` at `now`: what is known of the very pair,
    /// and what it leaves open from the network as a whole.
    pub fn lookup(&self, network: &NetworkIdentity, destination: &str, now: u64) -> Option<HistoryRecord> {
        let get = |destination: String| {
            let key = HistoryKey { network: network.clone(), destination };
            self.records.get(&key).copied().filter(|record| record.is_believed(now))
        };
        let whole = get(String::new());
        let Some(exact) = get(destination.to_ascii_lowercase()) else { return whole };
        let whole = whole.unwrap_or_default();
        Some(HistoryRecord {
            rtt: exact.rtt.or(whole.rtt),
            throughput: exact.throughput.or(whole.throughput),
            loss_ppm: exact.loss_ppm.or(whole.loss_ppm),
            connect_time: exact.connect_time.or(whole.connect_time),
            ..exact
        })
    }

    /// Number of records.
    pub fn len(&self) -> usize {
        self.records.len()
    }

    /// True when nothing is remembered.
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// Forgets the oldest eighth when there are too many, so that this is seldom done.
    fn make_room(&mut self) {
        if self.records.len() <= self.capacity {
            return;
        }
        let keep = self.capacity - self.capacity / 8;
        let mut by_age: Vec<_> = self.records.iter().map(|(key, r)| (r.last_seen, key.clone())).collect();
        by_age.sort_unstable();
        let excess = by_age.len() - keep;
        for (_, key) in by_age.into_iter().take(excess) {
            self.records.remove(&key);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const DAY: u64 = 24 * 3600;

    fn network(name: &str) -> NetworkIdentity {
        NetworkIdentity(name.to_owned())
    }

    fn transfer(megabytes: u64, megabits: u64) -> Observation {
        let rate = Rate::from_bits_per_second(megabits * 1_000_000);
        let bytes = megabytes << 20;
        Observation::of_transfer(bytes, rate.time_for(bytes), Some(Duration::from_millis(30)))
    }

    fn megabits(record: Option<HistoryRecord>) -> Option<u64> {
        record.and_then(|r| r.throughput).map(|rate| (rate.bits_per_second() + 500_000) / 1_000_000)
    }

    #[test]
    fn an_unknown_destination_falls_back_to_its_network_and_an_unknown_network_to_nothing() {
        let mut history = History::new(100);
        history.record(&network("home"), "a.example", &transfer(10, 20), 1000);
        assert_eq!(megabits(history.lookup(&network("home"), "a.example", 1000)), Some(20));
        assert_eq!(megabits(history.lookup(&network("home"), "b.example", 1000)), Some(20));
        assert_eq!(history.lookup(&network("office"), "a.example", 1000), None);
    }

    #[test]
    fn what_a_destination_leaves_open_is_taken_from_its_network() {
        let mut history = History::new(100);
        history.record(&network("home"), "big.example", &transfer(10, 20), 1000);
        history.record(
            &network("home"),
            "small.example",
            &Observation::of_transfer(900, Duration::from_millis(1), Some(Duration::from_millis(90))),
            1000,
        );
        let record = history.lookup(&network("home"), "small.example", 1000);
        assert_eq!(record.and_then(|r| r.rtt), Some(Duration::from_millis(90)));
        assert_eq!(megabits(record), Some(20));
    }

    #[test]
    fn large_transfers_outweigh_small_ones() {
        let record = HistoryRecord::default().merged(&transfer(30, 50), 1000).merged(&transfer(1, 5), 1010);
        assert!(megabits(Some(record)) > Some(45), "{record:?}");
    }

    #[test]
    fn a_network_that_changed_is_known_again_after_a_few_transfers() {
        let mut record = HistoryRecord::default();
        for n in 0..100 {
            record = record.merged(&transfer(100, 50), 1000 + n);
        }
        for n in 0..4 {
            record = record.merged(&transfer(10, 5), 2000 + n);
        }
        assert!(megabits(Some(record)) < Some(25), "{record:?}");
    }

    #[test]
    fn age_takes_weight_away_and_in_the_end_belief() {
        let old = HistoryRecord::default().merged(&transfer(30, 50), DAY);
        let after_weeks = old.merged(&transfer(1, 10), 20 * DAY);
        assert!(megabits(Some(after_weeks)) <= Some(12), "{after_weeks:?}");
        let mut history = History::new(10);
        history.record(&network("home"), "a", &transfer(10, 20), DAY);
        assert!(history.lookup(&network("home"), "a", 80 * DAY).is_some());
        assert!(history.lookup(&network("home"), "a", 100 * DAY).is_none());
    }

    #[test]
    fn a_network_without_identity_is_not_remembered() {
        let mut history = History::new(10);
        assert!(history.record(&network(""), "a", &transfer(10, 20), 1000).is_empty());
        assert!(history.is_empty());
    }

    #[test]
    fn names_are_the_same_in_capitals() {
        let mut history = History::new(10);
        history.record(&network("home"), "A.Example", &transfer(10, 20), 1000);
        let record = history.lookup(&network("home"), "a.eXample", 1000).expect("recorded");
        assert_eq!(record.count, 1);
    }

    #[test]
    fn the_oldest_go_when_there_are_too_many() {
        let mut history = History::new(16);
        for n in 0..40 {
            history.record(&network("home"), &format!("host{n}"), &transfer(1, 20), 1000 + n);
        }
        assert!(history.len() <= 16);
        let newest = history.lookup(&network("home"), "host39", 2000).expect("kept");
        assert_eq!(newest.count, 1);
        // The first host is gone, and the network as a whole answers for it.
        assert_eq!(history.lookup(&network("home"), "host0", 2000).expect("the network").count, 40);
    }

    proptest! {
        #[test]
        fn merging_stays_between_what_was_observed(
            transfers in prop::collection::vec((1u64..500, 1u64..1000, 0u64..100 * DAY), 1..30),
        ) {
            let mut record = HistoryRecord::default();
            let mut now = DAY;
            for &(megabytes, rate, gap) in &transfers {
                now += gap;
                record = record.merged(&transfer(megabytes, rate), now);
            }
            let least = transfers.iter().map(|t| t.1).min().expect("not empty");
            let most = transfers.iter().map(|t| t.1).max().expect("not empty");
            let rate = megabits(Some(record)).expect("observed");
            prop_assert!((least..=most).contains(&rate), "{rate} not in {least}..={most}");
            prop_assert_eq!(record.count, transfers.len() as u64);
            prop_assert_eq!(record.last_seen, now);
        }

        #[test]
        fn any_observation_and_clock_is_survived(
            bytes: u64, nanos: u64, rtt: u64, loss in 0u32..=1_000_000, first: u64, second: u64,
        ) {
            let mut observation = Observation::of_transfer(
                bytes, Duration::from_nanos(nanos), Some(Duration::from_nanos(rtt)));
            observation.loss_ppm = Some(loss);
            let record = HistoryRecord::default().merged(&observation, first).merged(&observation, second);
            prop_assert!(record.loss_ppm <= Some(1_000_000));
            prop_assert!(record.last_seen == first.max(second));
        }

        #[test]
        fn the_number_of_records_is_bounded(hosts in prop::collection::vec("[a-z]{1,3}", 0..200)) {
            let mut history = History::new(20);
            for (n, host) in hosts.iter().enumerate() {
                history.record(&network("n"), host, &transfer(1, 1), n as u64);
                prop_assert!(history.len() <= 20);
            }
        }
    }
}
