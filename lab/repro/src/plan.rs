//! Benches as data: which conditions, which methods, how often. Files in `lab/repro/scenarios/`.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use multiway_linksim::{Change, Scenario};
use serde::Deserialize;

use crate::method::Method;

/// The device's interfaces in every cell: Wi-Fi, preferred by the routing table, and LTE.
pub(crate) const WIFI: &str = "wlan0";
pub(crate) const LTE: &str = "wwan0";

/// A bench that is a set of cells and a list of methods.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Plan {
    pub(crate) title: String,
    /// How often each method is measured in each cell.
    pub(crate) runs: u32,
    pub(crate) methods: Vec<Method>,
    /// After so many seconds a transfer over one path is cut off and its time computed from its rate.
    pub(crate) single_path_limit_s: u64,
    /// After so many seconds any transfer is given up.
    pub(crate) limit_s: u64,
    /// Sets of cells, each the product of its axes.
    cells: Vec<Axes>,
    /// What replaces `cells` and `runs` in a quick run.
    quick: Quick,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Quick {
    runs: u32,
    cells: Vec<Axes>,
}

/// Values of each condition; pairs are Wi-Fi first, LTE second. Quantities are written as in the lab's
/// scenario files.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Axes {
    wifi_rate: Vec<String>,
    lte_rate: Vec<String>,
    rtt: Vec<[String; 2]>,
    #[serde(default = "no_loss")]
    loss: Vec<[String; 2]>,
    size: Vec<String>,
    /// The Wi-Fi goes silent so many milliseconds after a transfer starts; it stays up.
    #[serde(default)]
    wifi_silent_after_ms: Option<u64>,
}

fn no_loss() -> Vec<[String; 2]> {
    vec![["0%".to_owned(), "0%".to_owned()]]
}

/// One combination of conditions.
#[derive(Debug, Clone)]
pub(crate) struct Cell {
    pub(crate) name: String,
    pub(crate) conditions: BTreeMap<String, String>,
    /// The networks; the server has no object yet.
    pub(crate) scenario: Scenario,
    /// Size of the object.
    pub(crate) bytes: u64,
    /// What happens to the Wi-Fi, counted from a transfer's start.
    pub(crate) wifi_events: Vec<(Duration, Change)>,
}

impl Plan {
    /// Reads a plan's text.
    pub(crate) fn parse(text: &str) -> Result<Self> {
        let plan: Self = toml::from_str(text)?;
        if plan.runs == 0 || plan.quick.runs == 0 {
            bail!("`runs` is at least 1");
        }
        plan.cells(false)?;
        plan.cells(true)?;
        Ok(plan)
    }

    /// Reads a plan's file.
    pub(crate) fn load(file: &Path) -> Result<Self> {
        let text =
            std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
        Self::parse(&text).with_context(|| format!("{} is no plan", file.display()))
    }

    pub(crate) fn runs(&self, quick: bool) -> u32 {
        if quick { self.quick.runs } else { self.runs }
    }

    /// All cells, in the order of the file.
    pub(crate) fn cells(&self, quick: bool) -> Result<Vec<Cell>> {
        let sets = if quick { &self.quick.cells } else { &self.cells };
        let mut cells = Vec::new();
        for axes in sets {
            for size in &axes.size {
                for rtt in &axes.rtt {
                    for loss in &axes.loss {
                        for lte_rate in &axes.lte_rate {
                            for wifi_rate in &axes.wifi_rate {
                                cells.push(cell(axes, size, rtt, loss, [wifi_rate, lte_rate])?);
                            }
                        }
                    }
                }
            }
        }
        Ok(cells)
    }
}

fn cell(axes: &Axes, size: &str, rtt: &[String; 2], loss: &[String; 2], rate: [&String; 2]) -> Result<Cell> {
    // `50 Mbit/s` and `30 Mbit/s` become `50+30`, `20 ms` and `80 ms` become `20/80ms`.
    let number = |text: &str| text.split([' ', '%']).next().unwrap_or(text).to_owned();
    let mut name = format!(
        "{}+{} {}/{}ms {}/{}% {}",
        number(rate[0]),
        number(rate[1]),
        number(&rtt[0]),
        number(&rtt[1]),
        number(&loss[0]),
        number(&loss[1]),
        size.replace(' ', "")
    );
    if axes.wifi_silent_after_ms.is_some() {
        name.push_str(" silent");
    }
    // One text for the lab's own parser, so that quantities mean the same everywhere.
    let text = format!(
        "name = {name:?}\n\
         [[path]]\ninterface = \"{WIFI}\"\nkind = \"wifi\"\nrate = {:?}\nrtt = {:?}\nloss = {:?}\n\
         [[path]]\ninterface = \"{LTE}\"\nkind = \"cellular\"\nrate = {:?}\nrtt = {:?}\nloss = {:?}\n\
         [[server]]\nname = \"origin\"\nfiles = [{{ name = \"object.bin\", size = {size:?} }}]\n",
        rate[0], rtt[0], loss[0], rate[1], rtt[1], loss[1]
    );
    let no_traces = |_: &str| Err(std::io::ErrorKind::NotFound.into());
    let mut scenario = Scenario::parse(&text, &no_traces).with_context(|| format!("the cell {name}"))?;
    // The object is written once for all cells and put beside this one.
    let object = std::mem::replace(&mut scenario.servers[0].files[0].bytes, 1);
    scenario.servers[0].files[0].name = "ready".to_owned();
    let conditions = [
        ("wifi_rate", rate[0]),
        ("lte_rate", rate[1]),
        ("wifi_rtt", &rtt[0]),
        ("lte_rtt", &rtt[1]),
        ("wifi_loss", &loss[0]),
        ("lte_loss", &loss[1]),
    ]
    .map(|(key, value)| (key.to_owned(), value.clone()));
    Ok(Cell {
        name,
        conditions: conditions.into(),
        scenario,
        bytes: object,
        wifi_events: axes
            .wifi_silent_after_ms
            .map(|after| (Duration::from_millis(after), Change::Blackhole(true)))
            .into_iter()
            .collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shipped_plans_are_plans() {
        for text in crate::bench::PLANS.map(|(_, text)| text) {
            let plan = Plan::parse(text).expect("a plan");
            assert!(plan.cells(true).expect("cells").len() <= plan.cells(false).expect("cells").len());
        }
    }

    #[test]
    fn cells_are_the_product_of_the_axes() {
        let plan = Plan::parse(
            r#"
            title = "t"
            runs = 5
            methods = ["curl", "optimum"]
            single_path_limit_s = 20
            limit_s = 60
            [[cells]]
            wifi_rate = ["50 Mbit/s", "0.5 Mbit/s"]
            lte_rate = ["30 Mbit/s"]
            rtt = [["20 ms", "80 ms"]]
            loss = [["0%", "0%"], ["1%", "0%"]]
            size = ["10 MB"]
            [quick]
            runs = 1
            [[quick.cells]]
            wifi_rate = ["50 Mbit/s"]
            lte_rate = ["30 Mbit/s"]
            rtt = [["50 ms", "50 ms"]]
            size = ["1 MB"]
            "#,
        )
        .expect("a plan");
        let cells = plan.cells(false).expect("cells");
        let names: Vec<&str> = cells.iter().map(|cell| cell.name.as_str()).collect();
        assert_eq!(
            names,
            [
                "50+30 20/80ms 0/0% 10MB",
                "0.5+30 20/80ms 0/0% 10MB",
                "50+30 20/80ms 1/0% 10MB",
                "0.5+30 20/80ms 1/0% 10MB"
            ]
        );
        assert_eq!(cells[0].bytes, 10_000_000);
        assert_eq!(cells[0].scenario.paths[0].interface, WIFI);
        assert_eq!((plan.runs(true), plan.cells(true).expect("cells").len()), (1, 1));
    }

    #[test]
    fn a_wrong_quantity_names_its_cell() {
        let axes = Axes {
            wifi_rate: vec![],
            lte_rate: vec![],
            rtt: vec![],
            loss: vec![],
            size: vec![],
            wifi_silent_after_ms: None,
        };
        let pair = |text: &str| [text.to_owned(), text.to_owned()];
        let rate = "fast".to_owned();
        let error = cell(&axes, "10 MB", &pair("20 ms"), &pair("0%"), [&rate, &rate]).unwrap_err();
        assert!(format!("{error:#}").contains("fast+fast"), "{error:#}");
    }
}
