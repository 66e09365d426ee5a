//! MultiMob's table I and figures 9 to 11: a walk away from the Wi-Fi and back, with a radio, and with someone
//! who speaks to the device.

use std::path::Path;
use std::sync::Mutex;
use std::time::Duration;

use anyhow::{Context, Result};
use multiway_linksim::Scenario;

use super::Options;
use super::rounds::{ALL_OF_MULTIMOB, Case, Rounds};
use super::stand::{Stand, answers};
use crate::method::Method;
use crate::report::{Measurement, Outcome, Report};
use crate::traffic::{self, ROUND_LENGTH};
use crate::webradio::{self, Silence};

/// The walk: what becomes of the Wi-Fi, and when.
const WALK: &str = include_str!("../../scenarios/walk.toml");

/// One lap.
const LENGTH: Duration = Duration::from_secs(160);

const ROUNDS: Rounds = Rounds {
    bench: "walk",
    title: "A walk away from the Wi-Fi and back",
    methods: &ALL_OF_MULTIMOB,
    runs: 5,
    quick_runs: 1,
};

/// What the one who walks does.
#[derive(Clone, Copy)]
enum Doing {
    Listens,
    Speaks,
}

pub(super) fn run(binary: &Path, options: &Options) -> Result<Option<Report>> {
    let walk = match &options.scenario {
        Some(file) => Scenario::load(file)?,
        None => shipped()?,
    };
    let cases = [("radio", Doing::Listens), ("questions", Doing::Speaks)]
        .map(|(name, setting)| Case { name: name.to_owned(), conditions: [].into(), setting })
        .into();
    ROUNDS.run(binary, options, cases, &|&doing, method, run| measure(binary, &walk, doing, method, run))
}

fn shipped() -> Result<Scenario> {
    let no_traces = |_: &str| Err(std::io::ErrorKind::NotFound.into());
    Scenario::parse(WALK, &no_traces).context("the walk that comes with the program")
}

fn measure(binary: &Path, walk: &Scenario, doing: Doing, method: Method, run: u32) -> Result<Measurement> {
    match doing {
        Doing::Listens => listen(&Stand::build(binary, walk, method, run, &["radio"])?, method),
        Doing::Speaks => {
            let stand = Stand::build(binary, walk, method, run, &["serve"])?;
            let mut ask = stand.ask()?;
            let rounds = LENGTH.as_secs() / ROUND_LENGTH.as_secs();
            ask.args(["--rounds", &rounds.to_string()]);
            stand.network.start_schedule();
            let answers = answers(ask, &|| {})?;
            Ok(stand.answered(&answers))
        }
    }
}

fn listen(stand: &Stand, method: Method) -> Result<Measurement> {
    let (address, proxy) = (stand.address, stand.proxy());
    let station = stand.network.device().run(|| traffic::connect(address, method.is_mptcp(), proxy))?;
    let silence = Mutex::<Silence>::default();
    stand.network.start_schedule();
    webradio::listen(&station, LENGTH, &silence).context("the radio's connection broke")?;
    drop(station);
    let silence = silence.into_inner().context("nothing panicked while it held this")?;
    let (longest, total) = (silence.longest.as_secs_f64(), silence.total.as_secs_f64());
    let heard = [("longest_silence_ms", longest * 1e3), ("all_silence_ms", total * 1e3)];
    Ok(stand.measurement(longest, Outcome::Counted, heard))
}

#[cfg(test)]
mod tests {
    use multiway_linksim::Change;

    use super::*;

    #[test]
    fn the_walk_ends_where_it_began_and_before_it_is_over() {
        let walk = shipped().expect("a scenario");
        let wifi = &walk.paths[0].link.down;
        let mut state = (wifi.capacity.clone(), wifi.delay, wifi.jitter, wifi.loss.mean(), false, true);
        let start = state.clone();
        for (at, change) in &wifi.schedule {
            assert!(*at < LENGTH, "{change:?} at {at:?}");
            match change.clone() {
                Change::Capacity(capacity) => state.0 = capacity,
                Change::Delay(delay) => state.1 = delay,
                Change::Jitter(jitter) => state.2 = jitter,
                Change::Loss(loss) => state.3 = loss.mean(),
                Change::Blackhole(is_silent) => state.4 = is_silent,
                Change::Carrier(is_there) => state.5 = is_there,
                Change::Queue(_) => {}
            }
        }
        assert_eq!(state, start);
        assert!(walk.paths[1].link.down.schedule.is_empty());
    }
}
