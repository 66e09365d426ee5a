//! What was measured, as kept in JSON.

use std::collections::BTreeMap;
use std::fmt;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use crate::stats::{median, quantile};

/// One bench's results.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Report {
    /// Which bench.
    pub(crate) bench: String,
    /// What it is about, for people.
    pub(crate) title: String,
    /// Always `kernel`: real programs over the real kernel. Virtual time's results say `sim`.
    pub(crate) label: String,
    pub(crate) machine: Machine,
    pub(crate) cells: Vec<CellReport>,
}

/// Where it was measured.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Machine {
    pub(crate) kernel: String,
    pub(crate) cpus: usize,
    pub(crate) multiway: String,
}

impl Machine {
    pub(crate) fn this(multiway_version: String) -> Self {
        let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        Self { kernel: kernel.trim().to_owned(), cpus, multiway: multiway_version }
    }
}

/// One combination of conditions.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct CellReport {
    pub(crate) name: String,
    /// What makes up the name, for programs.
    pub(crate) conditions: BTreeMap<String, String>,
    /// Size of the object.
    pub(crate) bytes: u64,
    pub(crate) measurements: Vec<Measurement>,
}

/// One transfer.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Measurement {
    pub(crate) method: String,
    pub(crate) run: u32,
    /// Time from the program's start to its end, or what was computed from its rate; where answers are
    /// awaited, the time of the slowest one.
    pub(crate) seconds: f64,
    pub(crate) outcome: Outcome,
    /// Bytes of IP packets that reached the device, by interface.
    pub(crate) path_bytes: BTreeMap<String, u64>,
    /// What else was measured, with the unit in the name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) more: BTreeMap<String, f64>,
}

/// How a transfer ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "outcome", rename_all = "kebab-case")]
pub(crate) enum Outcome {
    /// All bytes came, and they were the right ones.
    Verified,
    /// All bytes were counted as they came, and not kept.
    Counted,
    /// The transfer was cut off and its time computed from the rate until then.
    Computed { bytes: u64, seconds: f64 },
    /// It was not done in time; the time is the limit.
    TimedOut,
    /// It failed.
    Failed { reason: String },
}

impl CellReport {
    /// Methods in the order in which they first appear.
    pub(crate) fn methods(&self) -> Vec<&str> {
        let mut methods: Vec<&str> = Vec::new();
        for measurement in &self.measurements {
            if !methods.contains(&measurement.method.as_str()) {
                methods.push(&measurement.method);
            }
        }
        methods
    }

    fn of<'a>(&'a self, method: &str) -> impl Iterator<Item = &'a Measurement> {
        let method = method.to_owned();
        self.measurements.iter().filter(move |measurement| measurement.method == method)
    }

    /// The median time of a method, and what it is worth.
    pub(crate) fn time(&self, method: &str) -> Option<Time> {
        let usable = |measurement: &&Measurement| !matches!(measurement.outcome, Outcome::Failed { .. });
        let seconds = median(self.of(method).filter(usable).map(|measurement| measurement.seconds))?;
        let any = |wanted: fn(&Outcome) -> bool| self.of(method).any(|one| wanted(&one.outcome));
        let failed = self.of(method).filter(|one| matches!(one.outcome, Outcome::Failed { .. })).count();
        let quality = if any(|outcome| matches!(outcome, Outcome::TimedOut)) {
            Quality::AtLeast
        } else if any(|outcome| matches!(outcome, Outcome::Computed { .. })) {
            Quality::Computed
        } else {
            Quality::Measured
        };
        Some(Time { seconds, quality, failed })
    }

    /// The median of something else that was measured.
    pub(crate) fn more(&self, method: &str, what: &str) -> Option<f64> {
        median(self.of(method).filter_map(|measurement| measurement.more.get(what).copied()))
    }

    /// The value of something else that was measured below which this part (0 to 1) of the runs lies.
    pub(crate) fn quantile(&self, method: &str, what: &str, part: f64) -> Option<f64> {
        let values: Vec<f64> =
            self.of(method).filter_map(|measurement| measurement.more.get(what).copied()).collect();
        quantile(&values, part)
    }

    /// The median part of the bytes that came over an interface.
    pub(crate) fn share(&self, method: &str, interface: &str) -> Option<f64> {
        median(self.of(method).filter_map(|measurement| {
            let total: u64 = measurement.path_bytes.values().sum();
            let here = *measurement.path_bytes.get(interface)?;
            (total > 0).then(|| here as f64 / total as f64)
        }))
    }

    /// The median rate at which packets came in by an interface, in bits per second.
    pub(crate) fn rate(&self, method: &str, interface: &str) -> Option<f64> {
        median(self.of(method).filter_map(|measurement| {
            let seconds = match measurement.outcome {
                Outcome::Failed { .. } => return None,
                Outcome::Computed { seconds, .. } => seconds,
                _ => measurement.seconds,
            };
            Some(*measurement.path_bytes.get(interface)? as f64 * 8.0 / seconds)
        }))
    }

    /// Failures, each with its method and run.
    pub(crate) fn failures(&self) -> impl Iterator<Item = String> {
        self.measurements.iter().filter_map(|one| match &one.outcome {
            Outcome::Failed { reason } => {
                Some(format!("{}, {}, run {}: {reason}", self.name, one.method, one.run))
            }
            _ => None,
        })
    }
}

/// A median time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Time {
    pub(crate) seconds: f64,
    pub(crate) quality: Quality,
    pub(crate) failed: usize,
}

/// What a time is worth.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Quality {
    Measured,
    /// From the rate of a transfer that was cut off.
    Computed,
    /// Some runs reached their limit.
    AtLeast,
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mark = match self.quality {
            Quality::Measured => "",
            Quality::Computed => "~",
            Quality::AtLeast => ">",
        };
        let digits = if self.seconds < 9.995 { 2 } else { 1 };
        write!(f, "{mark}{:.digits$}", self.seconds)?;
        if self.failed > 0 { write!(f, " ({} failed)", self.failed) } else { Ok(()) }
    }
}

/// Writes reports as one JSON document.
pub(crate) fn save(report: &Report, file: &std::path::Path) -> Result<()> {
    let mut text = serde_json::to_string_pretty(report)?;
    text.push('\n');
    std::fs::write(file, text).with_context(|| format!("cannot write {}", file.display()))
}

/// Reads what [`save`] wrote.
pub(crate) fn load(file: &std::path::Path) -> Result<Report> {
    let text = std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
    serde_json::from_str(&text).with_context(|| format!("{} is no report", file.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cell(outcomes: &[(f64, Outcome)]) -> CellReport {
        let measurements = (1..)
            .zip(outcomes)
            .map(|(run, (seconds, outcome))| Measurement {
                method: "m".to_owned(),
                run,
                seconds: *seconds,
                outcome: outcome.clone(),
                path_bytes: [("a".to_owned(), 300), ("b".to_owned(), 100)].into(),
                more: BTreeMap::new(),
            })
            .collect();
        CellReport { name: "c".to_owned(), conditions: BTreeMap::new(), bytes: 400, measurements }
    }

    #[test]
    fn a_time_says_what_it_is_worth() {
        let failed = || Outcome::Failed { reason: "r".to_owned() };
        let show = |outcomes: &[(f64, Outcome)]| cell(outcomes).time("m").map(|time| time.to_string());
        assert_eq!(show(&[(1.0, Outcome::Verified), (3.0, Outcome::Verified)]), Some("2.00".to_owned()));
        assert_eq!(show(&[(1.0, Outcome::Verified), (9.0, failed())]), Some("1.00 (1 failed)".to_owned()));
        assert_eq!(show(&[(160.0, Outcome::Computed { bytes: 1, seconds: 2.0 })]), Some("~160.0".to_owned()));
        assert_eq!(show(&[(60.0, Outcome::TimedOut), (1.0, Outcome::Verified)]), Some(">30.5".to_owned()));
        assert_eq!(show(&[(1.0, failed())]), None);
    }

    #[test]
    fn shares_and_rates_come_from_the_bytes_on_each_link() {
        let cell = cell(&[(2.0, Outcome::Verified)]);
        assert_eq!(cell.share("m", "a"), Some(0.75));
        assert_eq!(cell.rate("m", "b"), Some(400.0));
        assert_eq!(cell.share("other", "a"), None);
    }
}
