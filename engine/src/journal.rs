//! Events: the latest are kept for status, and whoever listens hears each.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use multiway_api::{Event, EventDetail};
use tokio::sync::broadcast;

/// Events kept for those who ask later.
const KEPT: usize = 100;

/// How long a fallback, once told, is not told again: a program that opens a hundred connections to a
/// server meets the same hundred times.
const REPEAT_AFTER_MS: u64 = 60_000;

/// Events that a listener may be behind before it misses some.
const BACKLOG: usize = 256;

/// What happened lately; clones are the same journal.
#[derive(Debug, Clone)]
pub struct Journal {
    kept: Arc<Mutex<VecDeque<Event>>>,
    live: broadcast::Sender<Event>,
}

impl Default for Journal {
    fn default() -> Self {
        Self { kept: Arc::default(), live: broadcast::channel(BACKLOG).0 }
    }
}

impl Journal {
    /// Logs, keeps and announces an event; not a fallback that was told just now.
    pub fn record(&self, detail: EventDetail) {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let event = Event { unix_ms: u64::try_from(since.as_millis()).unwrap_or(u64::MAX), detail };
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.iter().any(|earlier| is_repetition(earlier, &event)) {
            return;
        }
        tracing::info!("{}", event.detail);
        if kept.len() == KEPT {
            kept.pop_front();
        }
        kept.push_back(event.clone());
        // An error means that nobody listens.
        let _ = self.live.send(event);
    }

    /// The latest events, oldest first.
    pub fn latest(&self) -> Vec<Event> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect()
    }

    /// Events from now on.
    pub fn subscribe(&self) -> broadcast::Receiver<Event> {
        self.live.subscribe()
    }
}

/// States and files change back and forth, and each time counts; fallbacks only repeat themselves.
fn is_repetition(earlier: &Event, event: &Event) -> bool {
    matches!(event.detail, EventDetail::FellBack { .. })
        && event.unix_ms.abs_diff(earlier.unix_ms) < REPEAT_AFTER_MS
        && earlier.detail == event.detail
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latest_events_are_kept_and_all_are_heard() {
        let journal = Journal::default();
        let mut live = journal.subscribe();
        for rules in 0..KEPT + 5 {
            journal.record(EventDetail::FeaturesReloaded { rules });
        }
        let kept = journal.latest();
        assert_eq!(kept.len(), KEPT);
        assert_eq!(kept[0].detail, EventDetail::FeaturesReloaded { rules: 5 });
        assert_eq!(live.try_recv().unwrap().detail, EventDetail::FeaturesReloaded { rules: 0 });
    }

    #[test]
    fn the_same_fallback_is_told_once_in_a_while_and_a_path_each_time() {
        let journal = Journal::default();
        for _ in 0..50 {
            for host in ["a", "b"] {
                let reason = "the server denies the request".to_owned();
                journal.record(EventDetail::FellBack { host: host.to_owned(), interface: None, reason });
            }
        }
        for state in ["down", "up", "down"] {
            journal.record(EventDetail::PathChanged { interface: "wlan0".into(), state: state.into() });
        }
        assert_eq!(journal.latest().len(), 2 + 3);
    }
}
