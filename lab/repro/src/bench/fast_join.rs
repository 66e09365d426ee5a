//! MultiMob's figure 7: the first question after the Wi-Fi fails, by its size, with and without data in the
//! SYN of the connection that then begins over LTE.

use std::path::Path;

use anyhow::Result;
use multiway_linksim::{Change, Loss};

use super::Options;
use super::multimob::networks;
use super::rounds::{Case, Rounds};
use super::stand::{Stand, answers};
use crate::method::{Detector, Method};
use crate::plan::WIFI;
use crate::report::{Measurement, Report};
use crate::traffic::PAUSE;

/// Sizes of questions, in bytes; the paper's text gives none. What fits into a SYN besides TLS and the join is
/// below a thousand.
const QUESTIONS: [usize; 7] = [100, 500, 1000, 1500, 3000, 6000, 12_000];
const QUICK_QUESTIONS: [usize; 2] = [500, 3000];

const ROUNDS: Rounds = Rounds {
    bench: "fast-join",
    title: "The first question after the Wi-Fi fails, with and without data in the SYN of a join",
    methods: &[Method::Handover(Detector::Improved), Method::Handover(Detector::Paper)],
    // "Markers are medians over 6x2 runs".
    runs: 12,
    quick_runs: 3,
};

/// Bits of the setting `net.ipv4.tcp_fastopen`: its client half, without which a join's SYN is empty.
const CLIENT: &str = "1";
const OFF: &str = "0";

struct Setting {
    question: usize,
    is_fast: bool,
}

pub(super) fn run(binary: &Path, options: &Options) -> Result<Option<Report>> {
    let questions = if options.quick { &QUICK_QUESTIONS[..] } else { &QUESTIONS[..] };
    let case = |question: usize, is_fast: bool| {
        let join = if is_fast { "fast" } else { "normal" };
        Case {
            name: format!("{question} B, {join} join"),
            conditions: [("question", question.to_string()), ("join", join.to_owned())]
                .map(|(key, value)| (key.to_owned(), value))
                .into(),
            setting: Setting { question, is_fast },
        }
    };
    let cases =
        questions.iter().flat_map(|&question| [case(question, false), case(question, true)]).collect();
    ROUNDS.run(binary, options, cases, &|setting, method, run| measure(binary, setting, method, run))
}

fn measure(binary: &Path, setting: &Setting, method: Method, run: u32) -> Result<Measurement> {
    let question = setting.question.to_string();
    let stand = Stand::build(binary, &networks(), method, run, &["serve", "--question", &question])?;
    stand.network.device().sysctl("net.ipv4.tcp_fastopen", if setting.is_fast { CLIENT } else { OFF })?;
    let mut ask = stand.ask()?;
    ask.args(["--question", &question]);
    let everything = Loss::bernoulli(1.0)?;
    let answers = answers(ask, &|| {
        stand.network.path(WIFI).link().change_both_after(PAUSE / 2, Change::Loss(everything));
    })?;
    Ok(stand.answered(&answers))
}
