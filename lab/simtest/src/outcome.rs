//! What came of a run, and what could have come of it at best.

use std::time::Duration;

use multiway_core::mphttp::download::{Action, Event, Failure};
use multiway_core::paths::PathId;

/// What came of a run.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// Time until the last byte was delivered; `None` when it was not.
    pub finished: Option<Duration>,
    /// When it was over, or given up.
    pub ended: Duration,
    /// How many bytes were delivered.
    pub delivered: u64,
    /// Versions of the object of which the delivered bytes are a prefix (from where it began).
    pub versions: Vec<u8>,
    /// All events.
    pub events: Vec<Event>,
    /// Most bytes held.
    pub most_held: u64,
    /// Longest time without a byte delivered, from the first byte to the last.
    pub longest_stall: Duration,
    /// Body bytes that left each path's bottleneck for the client.
    pub carried: Vec<u64>,
    /// Everything that the download wanted done.
    pub actions: Vec<(Duration, Action)>,
    /// Delivered bytes over time.
    pub curve: Vec<(Duration, u64)>,
}

impl Outcome {
    /// Why it failed, if it did.
    pub fn failure(&self) -> Option<Failure> {
        self.events.iter().find_map(|event| match event {
            Event::Failed(failure) => Some(*failure),
            _ => None,
        })
    }

    /// When connections were asked for, on one path or on any.
    pub fn connects(&self, on: Option<usize>) -> Vec<Duration> {
        let times = self.actions.iter().filter(|(_, action)| match action {
            Action::Connect { path, .. } => on.is_none_or(|on| *path == PathId(on as u32)),
            _ => false,
        });
        times.map(|(time, _)| *time).collect()
    }

    /// When requests were made.
    pub fn requests(&self) -> Vec<Duration> {
        let times = self.actions.iter().filter(|(_, action)| matches!(action, Action::Request { .. }));
        times.map(|(time, _)| *time).collect()
    }
}

/// Most of `times` within one second.
pub fn most_in_a_second(times: &[Duration]) -> usize {
    let mut from = 0;
    let mut most = 0;
    for (index, time) in times.iter().enumerate() {
        while *time - times[from] > Duration::from_secs(1) {
            from += 1;
        }
        most = most.max(index + 1 - from);
    }
    most
}

/// T*: the least time at which what single paths delivered alone, each from its own start, adds up
/// to `size`.
pub fn offline_optimum(alone: &[Outcome], size: u64) -> Option<Duration> {
    let mut steps: Vec<(Duration, u64)> = Vec::new();
    for outcome in alone {
        let mut before = 0;
        for &(time, total) in &outcome.curve {
            steps.push((time, total - before));
            before = total;
        }
    }
    steps.sort_unstable();
    let mut sum = 0;
    steps.into_iter().find_map(|(time, bytes)| {
        sum += bytes;
        (sum >= size).then_some(time)
    })
}
