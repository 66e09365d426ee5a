//! Benches that are sets of cells: every method, several times, in random order.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use multiway_netlab::content::RandomBytes;

use super::{Options, PLANS};
use crate::measure::Bench;
use crate::method::Method;
use crate::objects::Objects;
use crate::output;
use crate::plan::{Cell, Plan};
use crate::report::{CellReport, Machine, Measurement, Outcome, Report};

/// Seeds the order of the methods, so that no method always follows another.
const ORDER_SEED: u64 = 1;

#[expect(clippy::print_stderr, reason = "progress goes beside the results")]
pub(crate) fn run(binary: &Path, name: &str, options: &Options) -> Result<Option<Report>> {
    let plan = match &options.scenario {
        Some(file) => Plan::load(file)?,
        None => {
            let (_, text) =
                PLANS.iter().find(|(known, _)| *known == name).context("every sweep has a plan")?;
            Plan::parse(text).with_context(|| format!("the plan {name}"))?
        }
    };
    let wanted =
        |cell: &Cell| options.only.is_empty() || options.only.iter().any(|part| cell.name.contains(part));
    let all = plan.cells(options.quick)?;
    let cells: Vec<Cell> = all.iter().filter(|cell| wanted(cell)).cloned().collect();
    if cells.is_empty() {
        let names: Vec<&str> = all.iter().map(|cell| cell.name.as_str()).collect();
        bail!("no cell is named so; there are\n{}", names.join("\n"));
    }
    if options.list {
        cells.iter().try_for_each(|cell| output::line(&cell.name))?;
        return Ok(None);
    }
    let runs = options.runs.unwrap_or(plan.runs(options.quick));
    let methods = if options.methods.is_empty() { &plan.methods } else { &options.methods };
    eprintln!("{}: {} cells, {} methods, {runs} runs", plan.title, cells.len(), methods.len());

    let machine = Machine::this(super::version(binary)?);
    let objects = Objects::write(cells.iter().map(|cell| cell.bytes))?;
    let bench = Bench {
        binary,
        objects: &objects,
        single_path_limit: Duration::from_secs(plan.single_path_limit_s),
        limit: Duration::from_secs(plan.limit_s),
    };
    let names: Vec<&str> = cells.iter().map(|cell| cell.name.as_str()).collect();
    let measured = all_rounds(&names, methods, runs, options.jobs, &|cell, method, run| {
        bench.measure(&cells[cell], method, run)
    });
    let cells = cells
        .into_iter()
        .zip(measured)
        .map(|(cell, measurements)| CellReport {
            name: cell.name,
            conditions: cell.conditions,
            bytes: cell.bytes,
            measurements,
        })
        .collect();
    Ok(Some(Report { bench: name.to_owned(), title: plan.title, label: "kernel".to_owned(), machine, cells }))
}

/// Every method once in each cell, then all of it again, so that a machine that is busy for a while
/// spoils a run of everything and not everything of one cell.
#[expect(clippy::print_stderr, reason = "progress goes beside the results")]
pub(super) fn all_rounds(
    cells: &[&str],
    methods: &[Method],
    runs: u32,
    jobs: u32,
    measure: &(dyn Fn(usize, Method, u32) -> Vec<Measurement> + Sync),
) -> Vec<Vec<Measurement>> {
    let rounds: Mutex<VecDeque<(u32, usize)>> =
        Mutex::new((1..=runs).flat_map(|run| (0..cells.len()).map(move |cell| (run, cell))).collect());
    let total = runs as usize * cells.len();
    let results: Mutex<Vec<Vec<Measurement>>> = Mutex::new(vec![Vec::new(); cells.len()]);
    let start = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..jobs {
            scope.spawn(|| {
                while let Some((run, index)) = next(&rounds) {
                    let mut order = methods.to_vec();
                    shuffle(&mut order, ORDER_SEED ^ (u64::from(run) << 32) ^ index as u64);
                    let measured: Vec<Measurement> =
                        order.iter().flat_map(|&method| measure(index, method, run)).collect();
                    let line: Vec<String> = measured.iter().map(in_short).collect();
                    let left = rounds.lock().expect("workers do not panic").len();
                    eprintln!(
                        "[{:>5.0} s, {}/{total}] {}: {}",
                        start.elapsed().as_secs_f64(),
                        total - left,
                        cells[index],
                        line.join(", ")
                    );
                    results.lock().expect("workers do not panic")[index].extend(measured);
                }
            });
        }
    });
    let mut results = results.into_inner().expect("workers do not panic");
    // Tables show methods in the order of the plan, whatever order they were measured in.
    let place = |measurement: &Measurement| {
        let plain = |method: &Method| measurement.method.split(' ').next() == Some(&*method.to_string());
        methods.iter().position(plain)
    };
    for measurements in &mut results {
        measurements
            .sort_by_key(|measurement| (place(measurement), measurement.method.clone(), measurement.run));
    }
    results
}

fn next(rounds: &Mutex<VecDeque<(u32, usize)>>) -> Option<(u32, usize)> {
    rounds.lock().expect("workers do not panic").pop_front()
}

fn in_short(measurement: &Measurement) -> String {
    let time = match &measurement.outcome {
        Outcome::Failed { .. } => "failed".to_owned(),
        Outcome::TimedOut => format!(">{:.0}", measurement.seconds),
        Outcome::Computed { .. } => format!("~{:.1}", measurement.seconds),
        Outcome::Verified | Outcome::Counted => format!("{:.2}", measurement.seconds),
    };
    format!("{} {time}", measurement.method)
}

/// Fisher and Yates' shuffle.
fn shuffle<T>(items: &mut [T], seed: u64) {
    let mut random = RandomBytes::new(seed);
    for last in (1..items.len()).rev() {
        let mut word = [0; 8];
        std::io::Read::read_exact(&mut random, &mut word).expect("random bytes never end");
        let at = u64::from_le_bytes(word) % (last as u64 + 1);
        items.swap(last, usize::try_from(at).expect("below the length"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shuffle_keeps_all_items_and_depends_on_its_seed() {
        let shuffled = |seed| {
            let mut items: Vec<u32> = (0..20).collect();
            shuffle(&mut items, seed);
            items
        };
        assert_eq!(shuffled(1), shuffled(1));
        assert_ne!(shuffled(1), shuffled(2));
        let mut sorted = shuffled(1);
        sorted.sort_unstable();
        assert_eq!(sorted, (0..20).collect::<Vec<_>>());
    }
}
