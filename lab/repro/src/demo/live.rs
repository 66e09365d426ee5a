//! What the demonstration shows while its programs run.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::Result;
use multiway_linksim::Change;
use multiway_netlab::Network;

use super::programs::LOOK_INTERVAL;
use crate::measure::received;
use crate::output;
use crate::webradio::Silence;

/// Time between two lines.
const LINE_INTERVAL: Duration = Duration::from_secs(1);

/// Which programs still run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Running {
    pub(super) typing: bool,
    pub(super) listening: bool,
    pub(super) downloading: bool,
}

/// What the programs have seen so far.
#[derive(Default)]
pub(super) struct Live {
    pub(super) echoes: Mutex<Vec<Duration>>,
    pub(super) silence: Mutex<Silence>,
    pub(super) arrived: AtomicU64,
}

impl Live {
    /// Writes a line now and then until no program runs.
    pub(super) fn watch(
        &self,
        network: &Network,
        bytes: u64,
        script: &[(Duration, Change, String)],
        running: &dyn Fn() -> Running,
    ) -> Result<()> {
        let start = Instant::now();
        let mut events = script.iter().peekable();
        let mut next_line = start + LINE_INTERVAL;
        let mut last = (start, received(network), 0, Duration::ZERO);
        loop {
            let running = running();
            if running == Running::default() {
                return Ok(());
            }
            if let Some((after, _, what)) = events.next_if(|(after, ..)| start.elapsed() >= *after) {
                output::line(&format!("  {:5.1} s {what}", after.as_secs_f64()))?;
            }
            if Instant::now() >= next_line {
                next_line += LINE_INTERVAL;
                last = self.line(network, bytes, running, start, last)?;
            }
            std::thread::sleep(LOOK_INTERVAL);
        }
    }

    /// Shows what happened since the last line.
    fn line(
        &self,
        network: &Network,
        bytes: u64,
        running: Running,
        start: Instant,
        (then, before, echoed, silent): (Instant, BTreeMap<String, u64>, usize, Duration),
    ) -> Result<(Instant, BTreeMap<String, u64>, usize, Duration)> {
        let (now, after) = (Instant::now(), received(network));
        let rates: String = after
            .iter()
            .map(|(interface, bytes)| {
                let rate = (bytes - before[interface]) as f64 * 8.0 / 1e6 / (now - then).as_secs_f64();
                format!("   {interface} {rate:5.1} Mbit/s")
            })
            .collect();
        let echoes = self.echoes.lock().expect("nothing panics while it holds this");
        let (count, slowest) = (echoes.len(), echoes[echoed..].iter().max().copied());
        drop(echoes);
        let silence = self.silence.lock().expect("nothing panics while it holds this").total;
        let echo = match slowest {
            Some(delay) => format!("{} ms", delay.as_millis()),
            None if running.typing => "none".to_owned(),
            None => "over".to_owned(),
        };
        let radio = match running.listening {
            false => "over",
            true if silence > silent => "silent",
            true => "plays",
        };
        let percent = (self.arrived.load(Ordering::Relaxed) * 100).checked_div(bytes).unwrap_or(0);
        output::line(&format!(
            "  {:5.1} s{rates}   echo {echo:>8}   radio {radio:6}   file {percent:3}%",
            (now - start).as_secs_f64()
        ))?;
        Ok((now, after, count, silence))
    }
}
