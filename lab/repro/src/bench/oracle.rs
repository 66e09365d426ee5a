//! MultiMob's figures 4 and 5: what the oracle's threshold of loss and its period do to someone who speaks to a
//! device, while another connection asks and is answered all the time.

use std::path::Path;
use std::sync::Mutex;
use std::time::Duration;

use anyhow::Result;
use multiway_linksim::{Change, Loss};

use super::Options;
use super::multimob::networks;
use super::rounds::{Case, Rounds};
use super::stand::{ANSWER_PATIENCE, Stand, answers};
use crate::method::{Detector, Method};
use crate::plan::WIFI;
use crate::report::{Measurement, Report};
use crate::traffic::{self, PAUSE, ROUND_LENGTH};

/// Figure 4's thresholds and losses, in percent. With all lost every threshold is crossed.
const THRESHOLDS: [u32; 3] = [10, 25, 40];
const LOSSES: [u32; 5] = [0, 10, 20, 30, 40];

/// Figure 5's periods, in milliseconds; the paper's shortest, 1 ms, is below what the daemon looks at.
const PERIODS: [u64; 5] = [20, 100, 250, 500, 1000];
const PERIOD_LOSSES: [u32; 2] = [40, 100];

/// The paper's choice of either.
const THRESHOLD: u32 = 25;
const PERIOD: u64 = 500;

const ROUNDS: Rounds = Rounds {
    bench: "oracle",
    title: "The oracle's threshold and period; losses begin on the Wi-Fi while nobody speaks",
    methods: &[Method::Handover(Detector::Paper), Method::Handover(Detector::Improved)],
    runs: 25,
    quick_runs: 3,
};

#[derive(Clone, Copy)]
struct Setting {
    threshold: u32,
    period_ms: u64,
    loss: u32,
}

pub(super) fn run(binary: &Path, options: &Options) -> Result<Option<Report>> {
    let thresholds = LOSSES
        .iter()
        .flat_map(|&loss| THRESHOLDS.map(|threshold| Setting { threshold, period_ms: PERIOD, loss }));
    let periods = PERIOD_LOSSES
        .iter()
        .flat_map(|&loss| PERIODS.map(|period_ms| Setting { threshold: THRESHOLD, period_ms, loss }));
    let is_known = |setting: &Setting| setting.period_ms != PERIOD || !LOSSES.contains(&setting.loss);
    let settings = thresholds.chain(periods.filter(is_known));
    let cases = settings.map(Setting::case).collect();
    ROUNDS.run(binary, options, cases, &|&setting, method, run| measure(binary, setting, method, run))
}

impl Setting {
    fn case(self) -> Case<Self> {
        let Self { threshold, period_ms, loss } = self;
        Case {
            name: format!("{loss}% lost, threshold {threshold}%, every {period_ms} ms"),
            conditions: [
                ("wifi_loss", format!("{loss}%")),
                ("threshold", format!("{threshold}%")),
                ("period", format!("{period_ms} ms")),
            ]
            .map(|(key, value)| (key.to_owned(), value))
            .into(),
            setting: self,
        }
    }

    fn configuration(self) -> String {
        format!("[bond.oracle]\nperiod_ms = {}\nloss_percent = {}\n", self.period_ms, self.threshold)
    }
}

fn measure(binary: &Path, setting: Setting, method: Method, run: u32) -> Result<Measurement> {
    let stand = Stand::build_with(binary, &networks(), method, run, &["serve"], &setting.configuration())?;
    let loss = Loss::bernoulli(f64::from(setting.loss) / 100.0)?;
    let (address, proxy) = (stand.address, stand.proxy());
    let background = stand.network.device().run(|| traffic::connect(address, method.is_mptcp(), proxy))?;
    let answers = std::thread::scope(|scope| {
        // "Simplified interactive requests while a light background request/response traffic is present".
        let delays = Mutex::<Vec<Duration>>::default();
        let asking = scope
            .spawn(move || traffic::ask_for(&background, ROUND_LENGTH + PAUSE, ANSWER_PATIENCE, &delays));
        let answers = answers(stand.ask()?, &|| {
            stand.network.path(WIFI).link().change_both_after(PAUSE / 2, Change::Loss(loss));
        });
        // What becomes of it is not asked.
        drop(asking.join());
        answers
    })?;
    Ok(stand.answered(&answers))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_setting_is_told_to_the_daemon() {
        let setting = Setting { threshold: 10, period_ms: 100, loss: 40 };
        assert_eq!(setting.configuration(), "[bond.oracle]\nperiod_ms = 100\nloss_percent = 10\n");
        assert_eq!(setting.case().name, "40% lost, threshold 10%, every 100 ms");
    }
}
