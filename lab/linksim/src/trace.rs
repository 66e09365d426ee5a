//! Rate traces in mahimahi's format.

use std::time::Duration;

use multiway_core::units::Rate;

/// Bytes that one line of a trace lets through (mahimahi, mm-link(1): "each line represents a packet
/// delivery opportunity: the time at which an MTU-sized packet can be delivered").
pub const OPPORTUNITY_BYTES: u64 = 1500;

/// A recorded link: the times at which it could deliver [`OPPORTUNITY_BYTES`], repeated for ever.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trace {
    /// Non-decreasing; the last one is also the period and is not zero.
    milliseconds: Vec<u64>,
}

/// What is wrong with a trace file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TraceError {
    /// A line is not a whole number.
    #[error("line {line} of the trace, `{text}`, is not a whole number of milliseconds")]
    NotANumber {
        /// Line, from 1.
        line: usize,
        /// What stands there.
        text: String,
    },
    /// A time is before the one above it.
    #[error("line {line} of the trace goes back in time")]
    Decreasing {
        /// Line, from 1.
        line: usize,
    },
    /// There is no time above zero, so the trace cannot repeat.
    #[error("the trace must hold at least one time above 0 ms")]
    Empty,
}

impl Trace {
    /// Reads the text of a trace: one time in milliseconds per line, `#` starts a comment.
    pub fn parse(text: &str) -> Result<Self, TraceError> {
        let mut milliseconds: Vec<u64> = Vec::new();
        for (index, raw) in text.lines().enumerate() {
            let line = index + 1;
            let content = raw.split('#').next().unwrap_or_default().trim();
            if content.is_empty() {
                continue;
            }
            let time = content
                .parse()
                .map_err(|_| TraceError::NotANumber { line, text: content.chars().take(40).collect() })?;
            if milliseconds.last().is_some_and(|&last| time < last) {
                return Err(TraceError::Decreasing { line });
            }
            milliseconds.push(time);
        }
        if milliseconds.last().is_none_or(|&last| last == 0) {
            return Err(TraceError::Empty);
        }
        Ok(Self { milliseconds })
    }

    /// After this time the trace starts again.
    pub fn period(&self) -> Duration {
        Duration::from_millis(self.period_ms())
    }

    /// The mean rate over one period.
    pub fn mean_rate(&self) -> Rate {
        Rate::from_bytes_in(self.milliseconds.len() as u64 * OPPORTUNITY_BYTES, self.period())
    }

    /// When the opportunity with this running number comes, from the trace's start.
    pub(crate) fn opportunity(&self, number: u64) -> Duration {
        let per_period = self.milliseconds.len() as u64;
        let within = self.milliseconds[(number % per_period) as usize];
        Duration::from_millis((number / per_period).saturating_mul(self.period_ms()).saturating_add(within))
    }

    /// The running number of the first opportunity at `time` or later.
    pub(crate) fn first_from(&self, time: Duration) -> u64 {
        let time_ms = u64::try_from(time.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX);
        // A period's last opportunity falls on the next one's start, hence the -1.
        let Some(before) = time_ms.checked_sub(1) else { return 0 };
        let period = before / self.period_ms();
        let start = period * self.period_ms();
        let passed = self.milliseconds.partition_point(|&within| start + within < time_ms);
        period * self.milliseconds.len() as u64 + passed as u64
    }

    fn period_ms(&self) -> u64 {
        *self.milliseconds.last().expect("a trace is not empty")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trace_repeats_after_its_last_time() {
        let trace = Trace::parse("2\n2\n5\n").expect("a trace");
        let times: Vec<u64> = (0..7).map(|number| trace.opportunity(number).as_millis() as u64).collect();
        assert_eq!(times, [2, 2, 5, 7, 7, 10, 12]);
        assert_eq!(trace.mean_rate(), Rate::from_bytes_in(4500, Duration::from_millis(5)));
    }

    #[test]
    fn the_first_opportunity_from_a_time_agrees_with_counting() {
        for text in ["2\n2\n5\n", "0\n3\n", "1\n", "0\n0\n7\n7\n"] {
            let trace = Trace::parse(text).expect("a trace");
            for micros in (0..40_000).step_by(500) {
                let time = Duration::from_micros(micros);
                let counted = (0..).find(|&number| trace.opportunity(number) >= time);
                assert_eq!(Some(trace.first_from(time)), counted, "{text:?} at {time:?}");
            }
        }
    }

    #[test]
    fn a_bad_trace_names_its_line() {
        assert_eq!(Trace::parse("1\n5\n3\n"), Err(TraceError::Decreasing { line: 3 }));
        assert_eq!(
            Trace::parse("1\nfive\n"),
            Err(TraceError::NotANumber { line: 2, text: "five".to_owned() })
        );
        assert_eq!(Trace::parse("0\n"), Err(TraceError::Empty));
        assert_eq!(Trace::parse("# nothing\n"), Err(TraceError::Empty));
    }
}
