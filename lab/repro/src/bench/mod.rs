//! The benches.

mod concurrent;
mod fast_join;
mod multimob;
mod oracle;
mod overhead;
mod relay_cost;
mod rounds;
mod stand;
mod sweep;
mod walk;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::{Args, ValueEnum};

use crate::report::{self, Report};
use crate::{output, table};

/// The plans that come with the program.
pub(crate) const PLANS: [(&str, &str); 6] = [
    ("grid", include_str!("../../scenarios/grid.toml")),
    ("fig10", include_str!("../../scenarios/fig10.toml")),
    ("blackhole", include_str!("../../scenarios/blackhole.toml")),
    ("relay-grid", include_str!("../../scenarios/relay-grid.toml")),
    ("fig6", include_str!("../../scenarios/fig6.toml")),
    ("subpaths", include_str!("../../scenarios/subpaths.toml")),
];

/// What can be measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Name {
    /// Rates, round-trip times, losses and sizes, beside curl, aria2 and kernel MPTCP
    Grid,
    /// FLEETY's figure 10, by its own definition
    Fig10,
    /// The Wi-Fi goes silent during a transfer
    Blackhole,
    /// What the proxy costs where it cannot help
    Overhead,
    /// A thousand downloads through one daemon
    Concurrent,
    /// MultiMob's interactive traffic over a preferred path that begins to lose packets
    Multimob,
    /// Downloads through a relay, beside kernel MPTCP
    RelayGrid,
    /// MultiMob's figure 6: the Wi-Fi goes silent during a GET through a relay
    Fig6,
    /// Short transfers through a relay over paths unlike each other
    Subpaths,
    /// MultiMob's figures 4 and 5: the oracle's threshold of loss and its period
    Oracle,
    /// MultiMob's figure 7: the first question after the Wi-Fi fails, with and without data in a join's SYN
    FastJoin,
    /// MultiMob's table I and figures 9 to 11: a walk away from the Wi-Fi and back
    Walk,
    /// What a relay costs, beside a pair of HAProxy instances
    RelayCost,
}

#[derive(Debug, Args)]
pub(crate) struct Options {
    /// What to measure
    pub(crate) bench: Name,
    /// Fewer cells, runs and downloads
    #[arg(long)]
    pub(crate) quick: bool,
    /// Only cells whose name contains this; may be given several times
    #[arg(long, value_name = "CELL")]
    pub(crate) only: Vec<String>,
    /// Only these methods, such as `proxy-fast`; may be given several times
    #[arg(long = "method", value_name = "METHOD")]
    pub(crate) methods: Vec<crate::method::Method>,
    /// Measure each method this often in each cell
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) runs: Option<u32>,
    /// Measure this many cells at the same time; more than one only where the machine is far from busy
    #[arg(long, default_value = "1", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) jobs: u32,
    /// Read the plan from this file, not the one that came with the program
    #[arg(long, value_name = "FILE")]
    pub(crate) scenario: Option<PathBuf>,
    /// Keep all measurements in this file; `multiway-repro table FILE` shows them again
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// Say which cells there are, and stop
    #[arg(long)]
    pub(crate) list: bool,
}

impl Name {
    fn text(self) -> &'static str {
        match self {
            Self::Grid => "grid",
            Self::Fig10 => "fig10",
            Self::Blackhole => "blackhole",
            Self::Overhead => "overhead",
            Self::Concurrent => "concurrent",
            Self::Multimob => "multimob",
            Self::RelayGrid => "relay-grid",
            Self::Fig6 => "fig6",
            Self::Subpaths => "subpaths",
            Self::Oracle => "oracle",
            Self::FastJoin => "fast-join",
            Self::Walk => "walk",
            Self::RelayCost => "relay-cost",
        }
    }
}

/// Measures, shows the table and keeps the measurements.
pub(crate) fn run(binary: &Path, options: &Options) -> Result<()> {
    let report: Option<Report> = match options.bench {
        Name::Overhead => overhead::run(binary, options)?,
        Name::Concurrent => concurrent::run(binary, options)?,
        Name::Multimob => multimob::run(binary, options)?,
        Name::Oracle => oracle::run(binary, options)?,
        Name::FastJoin => fast_join::run(binary, options)?,
        Name::Walk => walk::run(binary, options)?,
        Name::RelayCost => relay_cost::run(binary, options)?,
        name => sweep::run(binary, name.text(), options)?,
    };
    let Some(report) = report else { return Ok(()) };
    if let Some(file) = &options.json {
        report::save(&report, file)?;
    }
    output::line(&table::render(&report))?;
    let failures: Vec<String> = report.cells.iter().flat_map(report::CellReport::failures).collect();
    if failures.is_empty() {
        return Ok(());
    }
    anyhow::bail!("{} transfers failed:\n{}", failures.len(), failures.join("\n"))
}

/// What `multiway --version` says.
fn version(binary: &Path) -> Result<String> {
    let output = std::process::Command::new(binary)
        .arg("--version")
        .output()
        .with_context(|| format!("cannot start {}; build it or name it by --multiway", binary.display()))?;
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
