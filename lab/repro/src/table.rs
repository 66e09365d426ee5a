//! Tables for people.

use comfy_table::presets::UTF8_BORDERS_ONLY;
use comfy_table::{CellAlignment, Table};

use crate::method::Method;
use crate::plan::{LTE, WIFI};
use crate::report::{CellReport, Quality, Report};

/// FLEETY's figure 10 by size and Wi-Fi rate: aggregation rate, Wi-Fi used, cellular used, in percent.
/// Its text says of the last three that Wi-Fi is "always fully utilized" and gives no number for cellular.
const FLEETY: [(&str, &str, [Option<f64>; 3]); 4] = [
    ("10MB", "50 Mbit/s", [Some(71.58), Some(95.41), Some(46.46)]),
    ("500MB", "50 Mbit/s", [Some(91.42), Some(100.0), None]),
    ("500MB", "5 Mbit/s", [Some(85.53), Some(100.0), None]),
    ("500MB", "0.5 Mbit/s", [Some(75.35), Some(100.0), None]),
];

/// What a transfer may take longer than the best path alone: this part, or this time if that is more.
const ALLOWED_PART: f64 = 0.03;
const ALLOWED_SECONDS: f64 = 0.030;

/// Shows a report.
pub(crate) fn render(report: &Report) -> String {
    let tables = match report.bench.as_str() {
        "fig10" => vec![aggregation(report)],
        "blackhole" | "fig6" => vec![times(report), stalls(report)],
        "multimob" | "oracle" => {
            vec![answers(report), second_path(report, "lte_bytes"), second_path(report, "lte_energy_j")]
        }
        "subpaths" => vec![milliseconds(report), against_alone(report), shares(report)],
        "fast-join" => vec![joins(report), answers(report)],
        "overhead" | "concurrent" | "relay-cost" | "walk" => vec![quantities(report)],
        _ => vec![times(report), efficiencies(report), shares(report)],
    };
    let machine = &report.machine;
    let mut text = format!(
        "{}  [{}; Linux {}, {} CPUs, {}]\n",
        report.title, report.label, machine.kernel, machine.cpus, machine.multiway
    );
    for (heading, table) in tables {
        text.push_str(&format!("\n{heading}\n{table}\n"));
    }
    let any = |quality| {
        let of = |cell: &CellReport| {
            cell.methods().iter().any(|method| cell.time(method).is_some_and(|time| time.quality == quality))
        };
        report.cells.iter().any(of)
    };
    if any(Quality::Computed) {
        text.push_str(
            "~ cut off at the plan's limit for single paths and computed from the rate until then\n",
        );
    }
    if any(Quality::AtLeast) {
        text.push_str("> some runs reached the plan's limit and count with it\n");
    }
    text
}

fn new_table(header: Vec<String>) -> Table {
    let mut table = Table::new();
    table.load_style(UTF8_BORDERS_ONLY).set_header(header);
    table.column_iter_mut().skip(1).for_each(|column| column.set_cell_alignment(CellAlignment::Right));
    table
}

fn all_methods(report: &Report) -> Vec<&str> {
    let mut methods: Vec<&str> = Vec::new();
    for method in report.cells.iter().flat_map(CellReport::methods) {
        if !methods.contains(&method) {
            methods.push(method);
        }
    }
    methods
}

fn runs(report: &Report) -> usize {
    let of = |cell: &CellReport| {
        let first = cell.methods().first().map(|method| (*method).to_owned());
        cell.measurements.iter().filter(|one| Some(&one.method) == first.as_ref()).count()
    };
    report.cells.iter().map(of).max().unwrap_or(0)
}

fn header(first: &str, rest: &[&str]) -> Vec<String> {
    std::iter::once(first).chain(rest.iter().copied()).map(str::to_owned).collect()
}

fn times(report: &Report) -> (String, Table) {
    let methods = all_methods(report);
    let mut table = new_table(header("cell", &methods));
    for cell in &report.cells {
        let mut row = vec![cell.name.clone()];
        row.extend(methods.iter().map(|method| show(cell.time(method))));
        table.add_row(row);
    }
    let heading = format!(
        "seconds, median of {} (cell: rates Wi-Fi+LTE in Mbit/s, round-trip times, losses, size)",
        runs(report)
    );
    (heading, table)
}

fn show(value: Option<impl std::fmt::Display>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| value.to_string())
}

fn percent(value: Option<f64>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| format!("{:.1}", value * 100.0))
}

fn milliseconds(report: &Report) -> (String, Table) {
    let methods = all_methods(report);
    let mut table = new_table(header("cell", &methods));
    for cell in &report.cells {
        let mut row = vec![cell.name.clone()];
        row.extend(
            methods.iter().map(|method| show(cell.time(method).map(|time| round(time.seconds * 1e3)))),
        );
        table.add_row(row);
    }
    (format!("milliseconds, median of {}", runs(report)), table)
}

/// How short transfers compare with the same reader over one path.
fn against_alone(report: &Report) -> (String, Table) {
    let methods: Vec<&str> = all_methods(report).into_iter().filter(|method| !is_alone(method)).collect();
    let mut table = new_table(header("cell", &methods));
    for cell in &report.cells {
        let alone =
            |interface: &str| Some(cell.time(&format!("{} {interface}", Method::ReaderAlone))?.seconds);
        let (first, second) = (alone(WIFI), alone(LTE));
        let mut row = vec![cell.name.clone()];
        row.extend(methods.iter().map(|method| {
            let (Some(time), Some(first)) = (cell.time(method), first) else { return "-".to_owned() };
            let of_first = time.seconds / first;
            let of_best = second.map(|second| format!("{:.2}", time.seconds / first.min(second)));
            let mark = if of_first > 1.0 + ALLOWED_PART { " !" } else { "" };
            format!("{of_first:.2} / {}{mark}", show(of_best))
        }));
        table.add_row(row);
    }
    let heading = "time over that of the first path alone / over that of the faster path alone (! more than \
                   3% slower than the first)";
    (heading.to_owned(), table)
}

/// The best path alone: its time, when one was measured.
fn best_alone(cell: &CellReport) -> Option<f64> {
    [WIFI, LTE]
        .iter()
        .filter_map(|interface| cell.time(&format!("curl {interface}")))
        .map(|time| time.seconds)
        .min_by(f64::total_cmp)
}

fn is_alone(method: &str) -> bool {
    method.starts_with("curl ") || method.starts_with("reader-alone ")
}

fn efficiencies(report: &Report) -> (String, Table) {
    let methods: Vec<&str> =
        all_methods(report).into_iter().filter(|method| !is_alone(method) && *method != "optimum").collect();
    let mut table = new_table(header("cell", &methods));
    for cell in &report.cells {
        let optimum = cell.time("optimum").map(|time| time.seconds);
        let best = best_alone(cell);
        let mut row = vec![cell.name.clone()];
        row.extend(methods.iter().map(|method| {
            let (Some(optimum), Some(time)) = (optimum, cell.time(method)) else { return "-".to_owned() };
            let is_slower = best
                .is_some_and(|best| time.seconds > (best * (1.0 + ALLOWED_PART)).max(best + ALLOWED_SECONDS));
            format!("{:.2}{}", optimum / time.seconds, if is_slower { " !" } else { "" })
        }));
        table.add_row(row);
    }
    let heading = "efficiency T*/T (1 is the offline optimum; ! slower than the best path alone by more \
                   than 3% and 30 ms)";
    (heading.to_owned(), table)
}

fn shares(report: &Report) -> (String, Table) {
    let methods: Vec<&str> = all_methods(report).into_iter().filter(|method| !is_alone(method)).collect();
    let mut table = new_table(header("cell", &methods));
    for cell in &report.cells {
        let mut row = vec![cell.name.clone()];
        row.extend(methods.iter().map(|method| percent(cell.share(method, LTE))));
        table.add_row(row);
    }
    ("share of the bytes that came over LTE, in percent".to_owned(), table)
}

fn stalls(report: &Report) -> (String, Table) {
    let mut table =
        new_table(header("cell, reader", &["seconds", "T*/T", "longest stall, ms", "first byte, ms"]));
    for cell in &report.cells {
        let optimum = cell.time("optimum").map(|time| time.seconds);
        let reads = |method: &&str| method.starts_with("reader") || method.starts_with("multiway");
        for method in cell.methods().into_iter().filter(reads) {
            let time = cell.time(method);
            let ratio = optimum.zip(time).map(|(optimum, time)| format!("{:.2}", optimum / time.seconds));
            let whole = |what| show(cell.more(method, what).map(|value| format!("{value:.0}")));
            table.add_row([
                format!("{}, {method}", cell.name),
                show(time),
                show(ratio),
                whole("longest_stall_ms"),
                whole("first_byte_ms"),
            ]);
        }
    }
    ("what a reader of the body sees".to_owned(), table)
}

/// FLEETY's definitions (section 6.3): aggregation is throughput over the sum of the throughputs of the
/// paths alone; a path's utilisation is its rate in the transfer over its rate alone.
fn aggregation(report: &Report) -> (String, Table) {
    let columns = [
        "seconds",
        "aggregation",
        "FLEETY",
        "Wi-Fi used",
        "FLEETY",
        "LTE used",
        "FLEETY",
        "LTE share",
        "T*/T",
    ];
    let mut table = new_table(header("cell, method", &columns));
    for cell in &report.cells {
        let alone = |interface: &str| cell.time(&format!("curl {interface}")).map(|time| time.seconds);
        let used = |method: &str, interface: &str| {
            Some(cell.rate(method, interface)? / cell.rate(&format!("curl {interface}"), interface)?)
        };
        let theirs = FLEETY
            .iter()
            .find(|(size, rate, _)| {
                cell.name.ends_with(size) && cell.conditions.get("wifi_rate").is_some_and(|wifi| wifi == rate)
            })
            .map_or([None; 3], |(.., figures)| figures.map(|figure| figure.map(|percent| percent / 100.0)));
        for method in cell.methods().into_iter().filter(|method| !is_alone(method) && *method != "optimum") {
            let time = cell.time(method).map(|time| time.seconds);
            let ideal = alone(WIFI).zip(alone(LTE)).map(|(wifi, lte)| 1.0 / wifi + 1.0 / lte);
            let rate = ideal.zip(time).map(|(ideal, time)| 1.0 / time / ideal);
            let optimum = cell.time("optimum").map(|time| time.seconds);
            table.add_row([
                format!("{}, {method}", cell.name),
                show(cell.time(method)),
                percent(rate),
                percent(theirs[0]),
                percent(used(method, WIFI)),
                percent(theirs[1]),
                percent(used(method, LTE)),
                percent(theirs[2]),
                percent(cell.share(method, LTE)),
                show(optimum.zip(time).map(|(optimum, time)| format!("{:.2}", optimum / time))),
            ]);
        }
    }
    (format!("in percent beside FLEETY's figures, median of {}", runs(report)), table)
}

/// Everything that was measured beside the time, one row per quantity.
fn quantities(report: &Report) -> (String, Table) {
    let methods = all_methods(report);
    let mut table = new_table(header("cell, quantity", &methods));
    for cell in &report.cells {
        let mut names: Vec<&str> =
            cell.measurements.iter().flat_map(|one| one.more.keys().map(String::as_str)).collect();
        names.sort_unstable();
        names.dedup();
        let mut row = vec![format!("{}, seconds", cell.name)];
        row.extend(methods.iter().map(|method| show(cell.time(method))));
        table.add_row(row);
        for name in names {
            let mut row = vec![format!("{}, {}", cell.name, name.replace('_', " "))];
            row.extend(methods.iter().map(|method| show(cell.more(method, name).map(round))));
            table.add_row(row);
        }
    }
    (format!("median of {}", runs(report)), table)
}

/// What someone who waits for answers sees.
fn answers(report: &Report) -> (String, Table) {
    let methods = all_methods(report);
    let mut table = new_table(header("cell", &methods));
    for cell in &report.cells {
        let mut row = vec![cell.name.clone()];
        row.extend(methods.iter().map(|method| {
            let quartile = |part| show(cell.quantile(method, "largest_answer_ms", part).map(round));
            let mark = match cell.time(method) {
                None => return "-".to_owned(),
                Some(time) if time.quality == Quality::AtLeast => ">",
                Some(_) => "",
            };
            format!("{mark}{} [{} {}]", quartile(0.5), quartile(0.25), quartile(0.75))
        }));
        table.add_row(row);
    }
    (format!("slowest answer of a run in ms, median [quartiles] of {}", runs(report)), table)
}

/// What a fast join saves: the slowest answer of a run with a normal one, less that with a fast one.
fn joins(report: &Report) -> (String, Table) {
    let methods = all_methods(report);
    let mut table = new_table(header("question, bytes", &methods));
    let is = |cell: &&CellReport, join: &str| cell.conditions.get("join").is_some_and(|is| is == join);
    for normal in report.cells.iter().filter(|cell| is(cell, "normal")) {
        let Some(question) = normal.conditions.get("question") else { continue };
        let same = |cell: &&CellReport| is(cell, "fast") && cell.conditions.get("question") == Some(question);
        let Some(fast) = report.cells.iter().find(same) else { continue };
        let slowest = |cell: &CellReport, method: &str| cell.more(method, "largest_answer_ms");
        let mut row = vec![question.clone()];
        row.extend(methods.iter().map(|method| {
            let saved =
                slowest(normal, method).zip(slowest(fast, method)).map(|(normal, fast)| normal - fast);
            show(saved.map(|saved| format!("{saved:.1}")))
        }));
        table.add_row(row);
    }
    ("slowest answer with a normal join less that with a fast one, in ms, by medians".to_owned(), table)
}

/// What was done on the path that costs money.
fn second_path(report: &Report, what: &str) -> (String, Table) {
    let methods = all_methods(report);
    let mut table = new_table(header("cell", &methods));
    for cell in &report.cells {
        let mut row = vec![cell.name.clone()];
        row.extend(methods.iter().map(|method| {
            let quartile = |part| show(cell.quantile(method, what, part).map(round));
            format!("{} [{} {}]", quartile(0.5), quartile(0.25), quartile(0.75))
        }));
        table.add_row(row);
    }
    let heading = match what {
        "lte_bytes" => "bytes of packets sent and received over LTE, median [quartiles]",
        _ => "energy of the LTE radio in J, modelled (Huang et al. 2012), median [quartiles]",
    };
    (heading.to_owned(), table)
}

/// Three digits that matter.
fn round(value: f64) -> String {
    match value.abs() {
        large if large >= 100.0 => format!("{value:.0}"),
        large if large >= 10.0 => format!("{value:.1}"),
        large if large >= 1.0 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::report::{Machine, Measurement, Outcome};

    fn measurement(method: &str, seconds: f64, wifi: u64, lte: u64) -> Measurement {
        Measurement {
            method: method.to_owned(),
            run: 1,
            seconds,
            outcome: Outcome::Verified,
            path_bytes: [(WIFI.to_owned(), wifi), (LTE.to_owned(), lte)].into(),
            more: BTreeMap::new(),
        }
    }

    fn report(bench: &str) -> Report {
        let conditions = [("wifi_rate".to_owned(), "50 Mbit/s".to_owned())];
        Report {
            bench: bench.to_owned(),
            title: "t".to_owned(),
            label: "kernel".to_owned(),
            machine: Machine { kernel: "6.1".to_owned(), cpus: 2, multiway: "multiway 0.1.0".to_owned() },
            cells: vec![CellReport {
                name: "50+30 50/50ms 0/0% 10MB".to_owned(),
                conditions: conditions.into(),
                bytes: 1000,
                measurements: vec![
                    measurement("curl wlan0", 2.0, 1000, 0),
                    measurement("curl wwan0", 4.0, 0, 1000),
                    measurement("optimum", 1.5, 600, 400),
                    measurement("proxy-fast", 2.5, 600, 400),
                ],
            }],
        }
    }

    #[test]
    fn a_method_slower_than_the_best_path_is_marked() {
        let text = render(&report("grid"));
        assert!(text.contains("0.60 !"), "{text}");
        assert!(text.contains("40.0"), "{text}");
    }

    #[test]
    fn a_short_transfer_is_compared_with_the_path_that_comes_first() {
        let mut report = report("subpaths");
        report.cells[0].measurements = vec![
            measurement("reader-alone wlan0", 0.2, 1000, 0),
            measurement("reader-alone wwan0", 0.1, 0, 1000),
            measurement("reader-mptcp", 0.21, 600, 400),
            measurement("multiway", 0.15, 600, 400),
        ];
        let text = render(&report);
        for figure in ["1.05 / 2.10 !", "0.75 / 1.50 ", "150"] {
            assert!(text.contains(figure), "{figure} in {text}");
        }
    }

    #[test]
    fn what_a_fast_join_saves_is_shown_by_size() {
        let mut report = report("fast-join");
        let cell = |join: &str, milliseconds: f64| CellReport {
            name: join.to_owned(),
            conditions: [("question", "500"), ("join", join)]
                .map(|(key, value)| (key.to_owned(), value.to_owned()))
                .into(),
            bytes: 0,
            measurements: vec![Measurement {
                more: [("largest_answer_ms".to_owned(), milliseconds)].into(),
                ..measurement("multiway", milliseconds / 1e3, 0, 0)
            }],
        };
        report.cells = vec![cell("normal", 225.25), cell("fast", 200.0)];
        let text = render(&report);
        assert!(text.contains("25.2") && text.contains("200 [200 200]"), "{text}");
    }

    #[test]
    fn figure_10_stands_beside_the_papers() {
        let text = render(&report("fig10"));
        // 1/2.5 over 1/2 + 1/4; 600 bytes in 2.5 s over 1000 in 2 s.
        for figure in ["53.3", "71.6", "48.0", "95.4", "46.5"] {
            assert!(text.contains(figure), "{figure} in {text}");
        }
    }
}
