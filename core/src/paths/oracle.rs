//! MultiMob's oracle (section III-B): which network paths underperform, seen from all their connections.
//!
//! "If a network interface experiences connectivity issues, subflows using it will experience
//! retransmissions and losses, even if they belong to different connections."

use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;
use std::time::Duration;

use super::estimator::VolumeWeightedRatio;
use super::{NetworkIdentity, TcpSample};
use crate::units::Timestamp;

/// What a netpath lost so long ago says nothing of it now: who walks is 40 m further. Statistics begin anew then,
/// and without connections they are not kept for longer.
const MEMORY: Duration = Duration::from_secs(30);

/// "A netpath is a tuple (IP src, IP dst, network interface)." The interface may join another network, in which
/// it gets the same addresses.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct NetPath {
    /// This device's address.
    pub source: IpAddr,
    /// The remote's address.
    pub destination: IpAddr,
    /// Name of the interface.
    pub interface: String,
    /// The network that it is joined to.
    pub network: NetworkIdentity,
}

/// Tells connections apart, by a number of the caller's choice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SubflowKey(pub u64);

/// What the oracle computes with; the default is the paper's.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct OracleConfig {
    /// T_s: statistics are computed this often.
    pub period: Duration,
    /// Weight of the newest period in the smoothed rates, from 0 to 1.
    pub alpha: f64,
    /// A netpath underperforms above this smoothed loss rate, in parts per million.
    pub loss_ppm: u32,
    /// The same for the smoothed rate of retransmissions.
    pub retransmissions_ppm: u32,
    /// The same for the largest retransmission timeout.
    pub timeout: Duration,
    /// A timeout of up to so many of its connection's least round trips does not count: it is that long by nature.
    pub excused_round_trips: u32,
    /// Rates that rest on so many losses in one period are no evidence: of two segments one is half.
    pub excused_losses: u32,
    /// A netpath's period lasts for so many of its least round trips at least: where what is sent again falls into
    /// other periods than what was sent, each period's rate is one of retransmissions alone.
    pub period_round_trips: u32,
}

impl OracleConfig {
    /// A new connection's timeout is three round trips (RFC 6298 section 2.2), which at 500 ms is the paper's
    /// 1.5 s already; one that expired once has doubled it, and tells of one loss.
    pub const EXCUSED_ROUND_TRIPS: u32 = 6;

    /// Somebody who speaks sends one or two segments in a period, of which each loss makes a quarter or more.
    pub const EXCUSED_LOSSES: u32 = 1;

    /// A loss that nothing follows is probed for after two round trips (RFC 8985 section 7.2).
    pub const PERIOD_ROUND_TRIPS: u32 = 3;
}

impl Default for OracleConfig {
    /// Section IV, paragraphs c and d: 25%, 50%, 1.5 s, every 500 ms. Nothing is excused.
    fn default() -> Self {
        Self {
            period: Duration::from_millis(500),
            alpha: VolumeWeightedRatio::ALPHA,
            loss_ppm: 250_000,
            retransmissions_ppm: 500_000,
            timeout: Duration::from_millis(1500),
            excused_round_trips: 0,
            excused_losses: 0,
            period_round_trips: 0,
        }
    }
}

/// Which threshold was crossed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Symptom {
    /// The smoothed loss rate.
    Loss,
    /// The smoothed rate of retransmissions.
    Retransmissions,
    /// The largest retransmission timeout.
    Timeout,
}

/// The statistics of one netpath, as of the last period that told anything.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PathStatistics {
    /// Smoothed loss rate in parts per million; `None` before anything was sent.
    pub loss_ppm: Option<u32>,
    /// Smoothed rate of retransmissions in parts per million.
    pub retransmissions_ppm: Option<u32>,
    /// Largest retransmission timeout of the connections that had something to send, without those that are
    /// excused.
    pub timeout: Duration,
}

/// What became of a netpath.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OracleEvent {
    /// It began to underperform: open backup subflows for all its connections, and take its subflows
    /// for potentially failed.
    Underperforms {
        /// Which one.
        netpath: NetPath,
        /// Why.
        symptom: Symptom,
        /// By how much.
        statistics: PathStatistics,
    },
    /// All its statistics are below their thresholds again.
    Recovered {
        /// Which one.
        netpath: NetPath,
    },
}

/// The table of netpaths.
///
/// Feed it samples of every connection, as often as is convenient and at least once per period; it
/// computes at [`Oracle::poll_timeout`].
#[derive(Debug, Clone)]
pub struct Oracle {
    config: OracleConfig,
    netpaths: BTreeMap<NetPath, Record>,
    connections: BTreeMap<SubflowKey, Connection>,
    next: Timestamp,
    events: VecDeque<OracleEvent>,
}

#[derive(Debug, Clone)]
struct Record {
    loss: VolumeWeightedRatio,
    retransmissions: VolumeWeightedRatio,
    timeout: Duration,
    symptom: Option<Symptom>,
    /// What connections did in this period before they closed.
    closed: Period,
    /// When it last had a connection.
    last_used: Timestamp,
    /// When something was sent last.
    last_sent: Timestamp,
    /// When its period began, and its connections' least round trip.
    begun: Timestamp,
    least_rtt: Option<Duration>,
}

#[derive(Debug, Clone)]
struct Connection {
    netpath: NetPath,
    /// Counters at the end of the last period.
    before: Counters,
    latest: Counters,
    timeout: Duration,
    is_waiting: bool,
}

/// Totals since a connection began.
#[derive(Debug, Clone, Copy, Default)]
struct Counters {
    sent: u64,
    retransmitted: u64,
    lost: u64,
}

/// What the connections of a netpath did in one period.
#[derive(Debug, Clone, Copy, Default)]
struct Period {
    counters: Counters,
    /// Of connections that sent or waited for an acknowledgement; an idle one's says nothing.
    timeout: Option<Duration>,
}

impl Counters {
    fn of(sample: &TcpSample) -> Self {
        Self {
            sent: sample.segments_sent,
            retransmitted: sample.segments_retransmitted,
            // Every retransmission stands for a segment thought lost, a tail loss probe's too ("the
            // packet at the head of the write queue is marked as lost"); others wait for theirs.
            lost: sample.segments_retransmitted
                + sample.segments_lost.saturating_sub(sample.segments_retransmitting),
        }
    }

    fn since(self, earlier: Self) -> Self {
        Self {
            sent: self.sent.saturating_sub(earlier.sent),
            retransmitted: self.retransmitted.saturating_sub(earlier.retransmitted),
            lost: self.lost.saturating_sub(earlier.lost),
        }
    }
}

impl Period {
    fn add(&mut self, connection: &Connection) {
        let delta = connection.latest.since(connection.before);
        self.counters.sent += delta.sent;
        self.counters.retransmitted += delta.retransmitted;
        self.counters.lost += delta.lost;
        if delta.sent > 0 || connection.is_waiting {
            self.timeout = self.timeout.max(Some(connection.timeout));
        }
    }
}

impl Oracle {
    /// An oracle without connections.
    pub fn new(config: OracleConfig, now: Timestamp) -> Self {
        Self {
            config,
            netpaths: BTreeMap::new(),
            connections: BTreeMap::new(),
            next: now + config.period,
            events: VecDeque::new(),
        }
    }

    /// Takes in a reading of a connection; the first one counts all that happened on it so far.
    pub fn handle_sample(&mut self, key: SubflowKey, netpath: &NetPath, sample: &TcpSample) {
        let alpha = self.config.alpha;
        let record = self.netpaths.entry(netpath.clone()).or_insert_with(|| Record {
            loss: VolumeWeightedRatio::new(alpha),
            retransmissions: VolumeWeightedRatio::new(alpha),
            timeout: Duration::ZERO,
            symptom: None,
            closed: Period::default(),
            last_used: sample.at,
            last_sent: sample.at,
            begun: sample.at,
            least_rtt: None,
        });
        record.last_used = record.last_used.max(sample.at);
        record.least_rtt = record.least_rtt.into_iter().chain(sample.min_rtt).min();
        let connection = self.connections.entry(key).or_insert_with(|| Connection {
            netpath: netpath.clone(),
            before: Counters::default(),
            latest: Counters::default(),
            timeout: Duration::ZERO,
            is_waiting: false,
        });
        if connection.netpath != *netpath {
            // What it did before is no fault of the network that it is in now.
            connection.netpath = netpath.clone();
            connection.before = connection.latest;
        }
        connection.latest = Counters::of(sample);
        let excused = sample.min_rtt.unwrap_or_default() * self.config.excused_round_trips;
        let timeout = sample.retransmission_timeout;
        connection.timeout = if timeout > excused { timeout } else { Duration::ZERO };
        connection.is_waiting = sample.segments_unacked > 0;
    }

    /// A connection closed; what it did in this period still counts.
    pub fn handle_closed(&mut self, key: SubflowKey) {
        if let Some(connection) = self.connections.remove(&key)
            && let Some(record) = self.netpaths.get_mut(&connection.netpath)
        {
            record.closed.add(&connection);
        }
    }

    /// When the period ends.
    pub fn poll_timeout(&self) -> Timestamp {
        self.next
    }

    /// Computes the statistics of every netpath when the period is over.
    pub fn handle_timeout(&mut self, now: Timestamp) {
        if now < self.next {
            return;
        }
        self.next = now + self.config.period;
        let round_trips = self.config.period_round_trips;
        let is_over =
            |record: &Record| now - record.begun >= record.least_rtt.unwrap_or_default() * round_trips;
        let mut periods: BTreeMap<&NetPath, Period> = BTreeMap::new();
        for connection in self.connections.values_mut() {
            let record = self.netpaths.get(&connection.netpath);
            periods
                .entry(&connection.netpath)
                .or_insert_with(|| record.map_or_else(Period::default, |record| record.closed))
                .add(connection);
        }
        for (netpath, record) in self.netpaths.iter_mut().filter(|(_, record)| is_over(record)) {
            let period = periods.get(netpath).copied().unwrap_or(record.closed);
            record.closed = Period::default();
            let was = record.symptom;
            record.compute(&self.config, period, now);
            let event = match (was, record.symptom) {
                (None, Some(symptom)) => OracleEvent::Underperforms {
                    netpath: netpath.clone(),
                    symptom,
                    statistics: record.statistics(),
                },
                (Some(_), None) => OracleEvent::Recovered { netpath: netpath.clone() },
                _ => continue,
            };
            self.events.push_back(event);
        }
        let used: Vec<NetPath> = periods.into_keys().cloned().collect();
        for connection in self.connections.values_mut() {
            if self.netpaths.get(&connection.netpath).is_none_or(is_over) {
                connection.before = connection.latest;
            }
        }
        for record in self.netpaths.values_mut().filter(|record| is_over(record)) {
            record.begun = now;
        }
        self.netpaths.retain(|netpath, record| now - record.last_used < MEMORY || used.contains(netpath));
    }

    /// What became of a netpath since the last call.
    pub fn poll_event(&mut self) -> Option<OracleEvent> {
        self.events.pop_front()
    }

    /// Why a netpath underperforms; `None` when it does not, or nothing is known of it.
    pub fn symptom(&self, netpath: &NetPath) -> Option<Symptom> {
        self.netpaths.get(netpath)?.symptom
    }

    /// A netpath's statistics; `None` when nothing is known of it.
    pub fn statistics(&self, netpath: &NetPath) -> Option<PathStatistics> {
        self.netpaths.get(netpath).map(Record::statistics)
    }
}

impl Record {
    fn compute(&mut self, config: &OracleConfig, period: Period, now: Timestamp) {
        if period.counters.sent > 0 {
            if now - self.last_sent > MEMORY {
                self.loss = VolumeWeightedRatio::new(config.alpha);
                self.retransmissions = VolumeWeightedRatio::new(config.alpha);
                self.symptom = None;
            }
            self.last_sent = now;
        }
        // "No value is computed if vol_new is 0": loss that shows while nothing is sent is no evidence.
        let Counters { sent, retransmitted, lost } = period.counters;
        self.loss.handle_reading(lost, sent);
        self.retransmissions.handle_reading(retransmitted, sent);
        // Nobody had anything to send: the verdict stays as it was.
        let Some(timeout) = period.timeout else { return };
        self.timeout = timeout;
        // Older losses leave a little behind: more than one and a half is more than one.
        let excused = config.alpha * f64::from(config.excused_losses) * 1.5;
        let is_beyond = |rate: &VolumeWeightedRatio, ppm| rate.get_ppm() > Some(ppm) && rate.part() > excused;
        self.symptom = if is_beyond(&self.loss, config.loss_ppm) {
            Some(Symptom::Loss)
        } else if is_beyond(&self.retransmissions, config.retransmissions_ppm) {
            Some(Symptom::Retransmissions)
        } else if timeout > config.timeout {
            Some(Symptom::Timeout)
        } else {
            None
        };
    }

    fn statistics(&self) -> PathStatistics {
        PathStatistics {
            loss_ppm: self.loss.get_ppm(),
            retransmissions_ppm: self.retransmissions.get_ppm(),
            timeout: self.timeout,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PERIOD: Duration = Duration::from_millis(500);

    fn wifi() -> NetPath {
        NetPath {
            source: IpAddr::from([192, 0, 2, 2]),
            destination: IpAddr::from([198, 51, 100, 1]),
            interface: "wlan0".to_owned(),
            network: NetworkIdentity("home".to_owned()),
        }
    }

    fn at(periods: u64) -> Timestamp {
        Timestamp::from_origin(PERIOD * u32::try_from(periods).expect("small"))
    }

    /// Totals after some time: sent, of these retransmitted, and lost without retransmission so far.
    fn sample(sent: u64, retransmitted: u64, waiting_lost: u64) -> TcpSample {
        TcpSample {
            segments_sent: sent,
            segments_retransmitted: retransmitted,
            segments_lost: waiting_lost,
            retransmission_timeout: Duration::from_millis(220),
            ..TcpSample::default()
        }
    }

    /// Feeds one connection's totals, one sample per period.
    fn fed(samples: &[TcpSample]) -> Oracle {
        fed_with(OracleConfig::default(), samples)
    }

    fn fed_with(config: OracleConfig, samples: &[TcpSample]) -> Oracle {
        let mut oracle = Oracle::new(config, Timestamp::ZERO);
        for (period, sample) in (1..).zip(samples) {
            oracle.handle_sample(SubflowKey(1), &wifi(), &TcpSample { at: at(period), ..*sample });
            oracle.handle_timeout(at(period));
        }
        oracle
    }

    fn loss_ppm(oracle: &Oracle) -> Option<u32> {
        oracle.statistics(&wifi()).expect("known").loss_ppm
    }

    #[test]
    fn rates_follow_the_papers_equations() {
        // prod: 0.5*2 = 1, then 0.5*1 + 0.5*1 = 1; vol: 0.5*10 = 5, then 0.5*20 + 0.5*5 = 12.5.
        let oracle = fed(&[sample(10, 2, 0), sample(30, 3, 0)]);
        assert_eq!(loss_ppm(&oracle), Some(80_000));
        assert_eq!(oracle.statistics(&wifi()).expect("known").retransmissions_ppm, Some(80_000));
        assert_eq!(oracle.symptom(&wifi()), None);
    }

    #[test]
    fn a_period_in_which_nothing_was_sent_changes_nothing() {
        let before = fed(&[sample(10, 4, 0)]);
        // Two more are marked lost, and nothing goes out.
        let after = fed(&[sample(10, 4, 0), sample(10, 4, 2), sample(10, 4, 2)]);
        assert_eq!(loss_ppm(&after), loss_ppm(&before));
        assert_eq!(after.symptom(&wifi()), Some(Symptom::Loss));
    }

    #[test]
    fn losses_count_once_whether_or_not_they_were_retransmitted() {
        // Four lost of ten, one of them already sent again.
        let mut first = sample(10, 1, 4);
        first.segments_retransmitting = 1;
        assert_eq!(loss_ppm(&fed(&[first])), Some(400_000));
        // The other three follow, and all arrive: nothing more was lost, of three sent.
        let then = sample(13, 4, 0);
        assert_eq!(loss_ppm(&fed(&[first, then])), Some(2_000_000 / 8));
    }

    #[test]
    fn a_tail_loss_probe_counts_as_a_loss() {
        let probe = TcpSample { segments_retransmitting: 1, ..sample(3, 1, 0) };
        let oracle = fed(&[probe]);
        assert_eq!(loss_ppm(&oracle), Some(333_333));
        assert_eq!(oracle.symptom(&wifi()), Some(Symptom::Loss));
    }

    #[test]
    fn crossing_a_threshold_and_coming_back_are_told_once() {
        let mut oracle = fed(&[sample(10, 5, 0), sample(20, 10, 0), sample(400, 10, 0), sample(800, 10, 0)]);
        let event = oracle.poll_event();
        assert!(
            matches!(&event, Some(OracleEvent::Underperforms { netpath, symptom: Symptom::Loss, .. }) if *netpath == wifi()),
            "{event:?}"
        );
        assert_eq!(oracle.poll_event(), Some(OracleEvent::Recovered { netpath: wifi() }));
        assert_eq!(oracle.poll_event(), None);
    }

    #[test]
    fn exactly_the_threshold_is_not_beyond_it() {
        assert_eq!(fed(&[sample(100, 25, 0)]).symptom(&wifi()), None);
        assert_eq!(fed(&[sample(100, 26, 0)]).symptom(&wifi()), Some(Symptom::Loss));
    }

    #[test]
    fn retransmissions_have_a_threshold_of_their_own() {
        let config = OracleConfig { loss_ppm: 1_000_000, ..OracleConfig::default() };
        let mut oracle = Oracle::new(config, Timestamp::ZERO);
        oracle.handle_sample(SubflowKey(1), &wifi(), &sample(10, 6, 0));
        oracle.handle_timeout(at(1));
        assert_eq!(oracle.symptom(&wifi()), Some(Symptom::Retransmissions));
    }

    #[test]
    fn a_long_timeout_counts_where_something_was_to_be_sent() {
        let slow = TcpSample { retransmission_timeout: Duration::from_millis(1501), ..sample(10, 0, 0) };
        assert_eq!(fed(&[slow]).symptom(&wifi()), Some(Symptom::Timeout));
        // The same timeout on a connection that has nothing to send is old news.
        let mut oracle = fed(&[sample(10, 0, 0)]);
        let idle = TcpSample { at: at(2), segments_sent: 10, ..slow };
        oracle.handle_sample(SubflowKey(1), &wifi(), &idle);
        oracle.handle_timeout(at(2));
        assert_eq!(oracle.symptom(&wifi()), None);
        // It waits for an acknowledgement: nothing was sent, and the timeout counts.
        oracle.handle_sample(SubflowKey(1), &wifi(), &TcpSample { segments_unacked: 1, ..idle });
        oracle.handle_timeout(at(3));
        assert_eq!(oracle.symptom(&wifi()), Some(Symptom::Timeout));
    }

    #[test]
    fn a_timeout_that_is_long_by_nature_is_excused_where_it_is_to_be() {
        let satellite = |timeout| TcpSample {
            at: at(1),
            min_rtt: Some(Duration::from_millis(600)),
            retransmission_timeout: Duration::from_millis(timeout),
            ..sample(10, 0, 0)
        };
        let symptom = |excused_round_trips, timeout| {
            let config = OracleConfig { excused_round_trips, ..OracleConfig::default() };
            let mut oracle = Oracle::new(config, Timestamp::ZERO);
            oracle.handle_sample(SubflowKey(1), &wifi(), &satellite(timeout));
            oracle.handle_timeout(at(1));
            oracle.symptom(&wifi())
        };
        let excused = OracleConfig::EXCUSED_ROUND_TRIPS;
        assert_eq!(symptom(0, 1800), Some(Symptom::Timeout), "the paper's");
        assert_eq!(symptom(excused, 1800), None, "of a new connection");
        assert_eq!(symptom(excused, 3600), None, "which expired once");
        assert_eq!(symptom(excused, 7200), Some(Symptom::Timeout));
        // Where the round trip is short it is the paper's.
        let slow = TcpSample { min_rtt: Some(Duration::from_millis(15)), ..satellite(1501) };
        let config = OracleConfig { excused_round_trips: excused, ..OracleConfig::default() };
        let mut oracle = Oracle::new(config, Timestamp::ZERO);
        oracle.handle_sample(SubflowKey(1), &wifi(), &slow);
        oracle.handle_timeout(at(1));
        assert_eq!(oracle.symptom(&wifi()), Some(Symptom::Timeout));
    }

    #[test]
    fn a_period_is_as_long_as_round_trips_where_it_is_to_be() {
        let config = OracleConfig { period_round_trips: 3, ..OracleConfig::default() };
        let far = |sample| TcpSample { min_rtt: Some(Duration::from_millis(600)), ..sample };
        // Sent in one period of 500 ms, and once more in the third.
        let samples = [sample(10, 0, 0), sample(10, 0, 0), sample(12, 2, 0), sample(12, 2, 0)].map(far);
        let whole = fed_with(config, &[samples.as_slice(), &[samples[3]; 4]].concat());
        assert_eq!(loss_ppm(&whole), Some(166_666));
        let cut = fed(&samples);
        assert_eq!(loss_ppm(&cut), Some(285_714));
        // What a connection did before it closed is kept for the whole period.
        let mut oracle = fed_with(config, &samples[..1]);
        oracle.handle_closed(SubflowKey(1));
        oracle.handle_timeout(at(2));
        assert_eq!(loss_ppm(&oracle), None);
        oracle.handle_timeout(at(5));
        assert_eq!(loss_ppm(&oracle), Some(0));
    }

    #[test]
    fn one_loss_is_excused_where_it_is_to_be() {
        let symptom = |excused_losses, samples: &[TcpSample]| {
            let config = OracleConfig { excused_losses, ..OracleConfig::default() };
            fed_with(config, samples).symptom(&wifi())
        };
        let one_of_two = [sample(2, 1, 0)];
        assert_eq!(symptom(0, &one_of_two), Some(Symptom::Loss), "the paper's");
        assert_eq!(symptom(1, &one_of_two), None);
        assert_eq!(symptom(1, &[sample(4, 2, 0)]), Some(Symptom::Loss));
        assert_eq!(symptom(1, &[sample(2, 1, 0), sample(3, 1, 0), sample(5, 2, 0)]), None);
    }

    #[test]
    fn connections_of_a_netpath_add_up_and_others_do_not() {
        let mut oracle = Oracle::new(OracleConfig::default(), Timestamp::ZERO);
        let lte = NetPath { interface: "wwan0".to_owned(), ..wifi() };
        oracle.handle_sample(SubflowKey(1), &wifi(), &sample(30, 0, 0));
        oracle.handle_sample(SubflowKey(2), &wifi(), &sample(10, 10, 0));
        oracle.handle_sample(SubflowKey(3), &lte, &sample(10, 10, 0));
        oracle.handle_closed(SubflowKey(2));
        oracle.handle_timeout(at(1));
        assert_eq!(loss_ppm(&oracle), Some(250_000));
        assert_eq!(oracle.symptom(&wifi()), None);
        assert_eq!(oracle.symptom(&lte), Some(Symptom::Loss));
        // What the closed one did counts once.
        oracle.handle_sample(SubflowKey(1), &wifi(), &sample(60, 0, 0));
        oracle.handle_timeout(at(2));
        assert_eq!(loss_ppm(&oracle), Some(2_500_000 / 25));
    }

    #[test]
    fn several_samples_in_a_period_count_as_their_last() {
        let mut oracle = Oracle::new(OracleConfig::default(), Timestamp::ZERO);
        for sent in 1..=10 {
            oracle.handle_sample(SubflowKey(1), &wifi(), &sample(sent, 1, 0));
            oracle.handle_timeout(Timestamp::from_origin(PERIOD / 2));
        }
        assert_eq!(loss_ppm(&oracle), None);
        oracle.handle_timeout(at(1));
        assert_eq!(loss_ppm(&oracle), Some(100_000));
    }

    #[test]
    fn another_network_with_the_same_addresses_begins_anew() {
        let mut oracle = fed(&[sample(10, 5, 0)]);
        let cafe = NetPath { network: NetworkIdentity("cafe".to_owned()), ..wifi() };
        // A connection that lives on, and a new one.
        oracle.handle_sample(SubflowKey(1), &cafe, &TcpSample { at: at(2), ..sample(20, 5, 0) });
        oracle.handle_sample(SubflowKey(2), &cafe, &TcpSample { at: at(2), ..sample(10, 1, 0) });
        oracle.handle_timeout(at(2));
        assert_eq!(oracle.statistics(&cafe).expect("known").loss_ppm, Some(50_000));
        assert_eq!((oracle.symptom(&cafe), oracle.symptom(&wifi())), (None, Some(Symptom::Loss)));
    }

    #[test]
    fn what_was_lost_long_ago_is_forgotten_once_something_is_sent() {
        let mut oracle = fed(&[sample(10, 5, 0)]);
        assert!(matches!(oracle.poll_event(), Some(OracleEvent::Underperforms { .. })));
        // The connection is there all the time.
        let long = at(1) + MEMORY + PERIOD;
        oracle.handle_sample(SubflowKey(1), &wifi(), &TcpSample { at: long, ..sample(10, 5, 0) });
        oracle.handle_timeout(long);
        assert_eq!(oracle.symptom(&wifi()), Some(Symptom::Loss), "nothing is known better");
        oracle.handle_sample(SubflowKey(1), &wifi(), &TcpSample { at: long, ..sample(20, 6, 0) });
        oracle.handle_timeout(long + PERIOD);
        assert_eq!(loss_ppm(&oracle), Some(100_000));
        assert_eq!(oracle.poll_event(), Some(OracleEvent::Recovered { netpath: wifi() }));
    }

    #[test]
    fn netpaths_that_nobody_uses_are_forgotten() {
        let mut oracle = fed(&[sample(10, 0, 0)]);
        oracle.handle_closed(SubflowKey(1));
        oracle.handle_timeout(at(2));
        assert!(oracle.statistics(&wifi()).is_some());
        oracle.handle_timeout(at(1) + MEMORY);
        assert_eq!(oracle.statistics(&wifi()), None);
    }

    proptest! {
        #[test]
        fn rates_are_those_of_the_equations_written_out(
            periods in prop::collection::vec((0u64..50, 0u64..50), 1..40),
            alpha in 0.01f64..=1.0,
        ) {
            let mut oracle = Oracle::new(OracleConfig { alpha, ..OracleConfig::default() }, Timestamp::ZERO);
            let (mut prod, mut vol) = (0.0, 0.0);
            let (mut sent, mut retransmitted) = (0, 0);
            for (period, (new, again)) in (1..).zip(periods) {
                let again = again.min(new);
                sent += new;
                retransmitted += again;
                oracle.handle_sample(SubflowKey(1), &wifi(), &sample(sent, retransmitted, 0));
                oracle.handle_timeout(at(period));
                if new > 0 {
                    let val_new = again as f64 / new as f64;
                    prod = alpha * (val_new * new as f64) + (1.0 - alpha) * prod;
                    vol = alpha * new as f64 + (1.0 - alpha) * vol;
                }
            }
            match loss_ppm(&oracle) {
                None => prop_assert_eq!(vol, 0.0),
                Some(ppm) => prop_assert!((f64::from(ppm) - prod / vol * 1e6).abs() <= 1.0),
            }
        }

        #[test]
        fn counters_of_any_kind_do_no_harm(
            samples in prop::collection::vec((any::<u32>(), any::<u32>(), any::<u32>(), any::<u32>(), 0u64..3), 0..40),
        ) {
            let mut oracle = Oracle::new(OracleConfig::default(), Timestamp::ZERO);
            let mut last: Option<bool> = None;
            for (period, (sent, retransmitted, lost, retransmitting, key)) in (1..).zip(samples) {
                let mut reading = sample(sent.into(), retransmitted.into(), lost.into());
                reading.segments_retransmitting = retransmitting.into();
                oracle.handle_sample(SubflowKey(key), &wifi(), &reading);
                if key == 2 {
                    oracle.handle_closed(SubflowKey(key));
                }
                oracle.handle_timeout(at(period));
                // Events alternate, and the last one says what holds now.
                while let Some(event) = oracle.poll_event() {
                    let underperforms = matches!(event, OracleEvent::Underperforms { .. });
                    prop_assert_ne!(last, Some(underperforms));
                    last = Some(underperforms);
                }
                prop_assert_eq!(oracle.symptom(&wifi()).is_some(), last == Some(true));
                prop_assert!(loss_ppm(&oracle).is_none_or(|ppm| ppm <= 1_000_000));
            }
        }
    }
}
