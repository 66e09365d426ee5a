//! MultiMob's figures 3 and 4: someone speaks to a device while its preferred path begins to lose packets.

use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use multiway_core::paths::PathKind;
use multiway_core::units::Rate;
use multiway_linksim::{Change, LinkSpec, Loss, Scenario, ServerSpec, mbit};

use super::Options;
use super::rounds::{ALL_OF_MULTIMOB, Case, Rounds};
use super::stand::{Stand, answers};
use crate::method::Method;
use crate::plan::{LTE, WIFI};
use crate::report::{Measurement, Report};
use crate::traffic::PAUSE;

/// Section IV, paragraph b: "the primary path exhibits a RTT of 15 ms and the additional one 25 ms. Both
/// paths have a bandwidth of 10 Mbps and the router queue sizes are equal to the bandwidth-delay product."
const RATE: Rate = mbit(10);
const WIFI_RTT: Duration = Duration::from_millis(15);
const LTE_RTT: Duration = Duration::from_millis(25);

/// Figure 4's, in percent, both ways.
const LOSSES: [u32; 6] = [0, 10, 20, 30, 40, 100];
const QUICK_LOSSES: [u32; 3] = [0, 20, 100];

const ROUNDS: Rounds = Rounds {
    bench: "multimob",
    title: "MultiMob's interactive traffic; losses begin on the Wi-Fi while nobody speaks",
    methods: &ALL_OF_MULTIMOB,
    runs: 25,
    quick_runs: 3,
};

pub(super) fn run(binary: &Path, options: &Options) -> Result<Option<Report>> {
    let losses = if options.quick { &QUICK_LOSSES[..] } else { &LOSSES[..] };
    let case = |&percent: &u32| Case {
        name: format!("15/25ms 10+10, {percent}% lost"),
        conditions: [("wifi_loss".to_owned(), format!("{percent}%"))].into(),
        setting: percent,
    };
    ROUNDS.run(binary, options, losses.iter().map(case).collect(), &|&percent, method, run| {
        measure(binary, percent, method, run)
    })
}

/// The networks of section IV.
pub(super) fn networks() -> Scenario {
    let link = |rtt| LinkSpec::symmetric(RATE, rtt).with_queue(RATE.bytes_in(rtt));
    Scenario::new("someone speaks")
        .path(WIFI, PathKind::Wifi, link(WIFI_RTT))
        .path(LTE, PathKind::Cellular, link(LTE_RTT))
        .server(ServerSpec::new("origin"))
}

fn measure(binary: &Path, percent: u32, method: Method, run: u32) -> Result<Measurement> {
    let stand = Stand::build(binary, &networks(), method, run, &["serve"])?;
    let loss = Loss::bernoulli(f64::from(percent) / 100.0)?;
    let answers = answers(stand.ask()?, &|| {
        stand.network.path(WIFI).link().change_both_after(PAUSE / 2, Change::Loss(loss));
    })?;
    Ok(stand.answered(&answers))
}
