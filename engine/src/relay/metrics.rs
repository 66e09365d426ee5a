//! What a relay counts, and how Prometheus reads it.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};

/// A number that only grows.
#[derive(Debug, Default)]
pub(super) struct Counter(AtomicU64);

impl Counter {
    pub(super) fn add(&self, amount: u64) {
        self.0.fetch_add(amount, Ordering::Relaxed);
    }

    pub(super) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Everything counted since the start.
#[derive(Debug, Default)]
pub(super) struct Metrics {
    pub(super) sessions_begun: Counter,
    pub(super) subflows_begun: Counter,
    pub(super) streams_begun: Counter,
    pub(super) streams_refused: Counter,
    pub(super) handshakes_refused: Counter,
    pub(super) handshakes_failed: Counter,
    pub(super) hellos_refused: Counter,
    pub(super) violations: Counter,
    pub(super) bytes_from_devices: Counter,
    pub(super) bytes_to_devices: Counter,
}

/// What there is now.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Gauges {
    pub(super) sessions: usize,
    pub(super) subflows: usize,
    pub(super) streams: usize,
    pub(super) draining: bool,
}

impl Metrics {
    /// In Prometheus' text format, version 0.0.4.
    pub(super) fn text(&self, now: Gauges) -> String {
        let gauges = [
            ("sessions", "Sessions there are.", now.sessions as u64),
            ("subflows", "Connections of devices there are.", now.subflows as u64),
            ("streams", "Streams that are open.", now.streams as u64),
            ("draining", "1 while the relay is about to stop.", u64::from(now.draining)),
        ];
        let counters = [
            ("sessions_begun_total", "Sessions that devices began.", &self.sessions_begun),
            ("subflows_begun_total", "Connections that were accepted into a session.", &self.subflows_begun),
            ("streams_begun_total", "Streams that devices opened.", &self.streams_begun),
            ("streams_refused_total", "Streams that were not connected.", &self.streams_refused),
            (
                "handshakes_refused_total",
                "Connections refused before TLS, by rate.",
                &self.handshakes_refused,
            ),
            (
                "handshakes_failed_total",
                "TLS handshakes that failed or took too long.",
                &self.handshakes_failed,
            ),
            ("hellos_refused_total", "Connections refused after TLS.", &self.hellos_refused),
            (
                "violations_total",
                "Connections and sessions ended for breaking the protocol.",
                &self.violations,
            ),
            ("bytes_from_devices_total", "Payload of streams from devices.", &self.bytes_from_devices),
            ("bytes_to_devices_total", "Payload of streams to devices.", &self.bytes_to_devices),
        ];
        let mut text = String::new();
        let mut put = |kind, name, help, value| {
            let written = write!(
                text,
                "# HELP multiway_relay_{name} {help}\n# TYPE multiway_relay_{name} {kind}\nmultiway_relay_{name} {value}\n"
            );
            written.expect("strings take everything");
        };
        gauges.into_iter().for_each(|(name, help, value)| put("gauge", name, help, value));
        counters.into_iter().for_each(|(name, help, counter)| put("counter", name, help, counter.get()));
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_metric_has_help_type_and_value() {
        let metrics = Metrics::default();
        metrics.bytes_to_devices.add(7);
        let text = metrics.text(Gauges { sessions: 3, ..Gauges::default() });
        assert!(text.contains("\nmultiway_relay_bytes_to_devices_total 7\n"), "{text}");
        assert!(text.contains("# TYPE multiway_relay_sessions gauge\nmultiway_relay_sessions 3\n"), "{text}");
        assert_eq!(text.lines().count() % 3, 0);
    }
}
