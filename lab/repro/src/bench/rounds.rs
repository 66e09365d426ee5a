//! Benches whose cells are no transfers: which cells and methods are wanted, and what they give.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Result, bail};

use super::{Options, sweep};
use crate::method::{Detector, Method};
use crate::output;
use crate::report::{CellReport, Machine, Measurement, Outcome, Report};

/// Plain TCP, kernel MPTCP in both ways of use, and both detectors: what MultiMob's figures compare.
pub(super) const ALL_OF_MULTIMOB: [Method; 5] = [
    Method::Tcp,
    Method::Mptcp,
    Method::MptcpBackup,
    Method::Handover(Detector::Paper),
    Method::Handover(Detector::Improved),
];

/// What a bench is, whatever is asked of it.
pub(super) struct Rounds {
    pub(super) bench: &'static str,
    pub(super) title: &'static str,
    /// What can carry its traffic.
    pub(super) methods: &'static [Method],
    pub(super) runs: u32,
    pub(super) quick_runs: u32,
}

/// One combination of conditions.
pub(super) struct Case<C> {
    pub(super) name: String,
    /// What makes up the name, for programs.
    pub(super) conditions: BTreeMap<String, String>,
    /// What the measurement needs of it.
    pub(super) setting: C,
}

impl Rounds {
    /// Measures what the options ask for; a measurement that fails is a result too, and says why.
    pub(super) fn run<C: Sync>(
        &self,
        binary: &Path,
        options: &Options,
        mut cases: Vec<Case<C>>,
        measure: &(dyn Fn(&C, Method, u32) -> Result<Measurement> + Sync),
    ) -> Result<Option<Report>> {
        let wanted =
            |name: &str| options.only.is_empty() || options.only.iter().any(|part| name.contains(part));
        cases.retain(|case| wanted(&case.name));
        if options.list {
            cases.iter().try_for_each(|case| output::line(&case.name))?;
            return Ok(None);
        }
        if cases.is_empty() {
            bail!("no cell is named so; `--list` shows them");
        }
        let methods = if options.methods.is_empty() { self.methods } else { &options.methods };
        if let Some(other) = methods.iter().find(|method| !self.methods.contains(method)) {
            let names: Vec<String> = self.methods.iter().map(Method::to_string).collect();
            bail!("{other} cannot carry this traffic; there are {}", names.join(", "));
        }
        let runs = options.runs.unwrap_or(if options.quick { self.quick_runs } else { self.runs });
        let machine = Machine::this(super::version(binary)?);
        let names: Vec<&str> = cases.iter().map(|case| case.name.as_str()).collect();
        let measured = sweep::all_rounds(&names, methods, runs, options.jobs, &|case, method, run| {
            let measurement = measure(&cases[case].setting, method, run);
            vec![measurement.unwrap_or_else(|error| Measurement {
                method: method.to_string(),
                run,
                seconds: 0.0,
                outcome: Outcome::Failed { reason: format!("{error:#}") },
                path_bytes: BTreeMap::new(),
                more: BTreeMap::new(),
            })]
        });
        let cells = cases
            .into_iter()
            .zip(measured)
            .map(|(case, measurements)| CellReport {
                name: case.name,
                conditions: case.conditions,
                bytes: 0,
                measurements,
            })
            .collect();
        Ok(Some(Report {
            bench: self.bench.to_owned(),
            title: self.title.to_owned(),
            label: "kernel".to_owned(),
            machine,
            cells,
        }))
    }
}
