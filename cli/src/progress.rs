//! Progress of a download: one bar for all of it, one line per path.

use std::collections::BTreeMap;
use std::path::Path;

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};
use multiway_engine::get::{GetPathProgress, GetProgress};

use crate::units;

/// Pictures per second; more cannot be read, and each costs a write.
const PICTURES_PER_SECOND: u8 = 8;

/// What is drawn on the standard error stream, when that is a terminal.
#[derive(Debug)]
pub(crate) struct Progress {
    all: MultiProgress,
    total: ProgressBar,
    lines: BTreeMap<String, ProgressBar>,
}

impl Progress {
    /// Draws nothing if `quiet`.
    pub(crate) fn new(quiet: bool, file: &Path) -> Self {
        let target = if quiet {
            ProgressDrawTarget::hidden()
        } else {
            ProgressDrawTarget::stderr_with_hz(PICTURES_PER_SECOND)
        };
        let all = MultiProgress::with_draw_target(target);
        let total = all.add(ProgressBar::no_length());
        total.set_style(style(
            "{msg} [{wide_bar:.green}] {bytes}/{total_bytes} {decimal_bytes_per_sec} {eta}",
        ));
        let name = file.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
        total.set_message(name);
        Self { all, total, lines: BTreeMap::new() }
    }

    /// Draws the state `now`.
    pub(crate) fn show(&mut self, now: &GetProgress) {
        if let Some(size) = now.total {
            self.total.set_length(size);
        }
        self.total.set_position(now.bytes);
        let brought: u64 = now.paths.iter().map(|path| path.bytes).sum();
        for path in &now.paths {
            let line = self.lines.entry(path.interface.clone()).or_insert_with(|| {
                let line = self.all.add(ProgressBar::no_length());
                line.set_style(style("  {msg}"));
                line
            });
            line.set_message(describe(path, brought));
        }
    }

    /// Removes the picture.
    pub(crate) fn clear(self) {
        // What cannot be removed from a terminal stays there.
        let _ = self.all.clear();
    }
}

fn describe(path: &GetPathProgress, brought: u64) -> String {
    let share = if brought == 0 { 0.0 } else { path.bytes as f64 / brought as f64 };
    let rtt = path.rtt.map_or_else(|| "-".to_owned(), |rtt| format!("{:.0} ms", rtt.as_secs_f64() * 1000.0));
    format!(
        "{:<15} {:>13} {:>5} {:>10}  RTT {rtt}",
        path.interface,
        units::rate(path.rate.bits_per_second()),
        units::percent(share),
        units::bytes(path.bytes),
    )
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).expect("the templates are constants, and tests draw them")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_is_drawn_before_and_after_the_size_is_known() {
        let mut progress = Progress::new(true, Path::new("dir/file.iso"));
        progress.show(&GetProgress { bytes: 0, total: None, paths: vec![] });
        progress.show(&GetProgress { bytes: 5, total: Some(10), paths: vec![] });
        assert_eq!((progress.total.position(), progress.total.length()), (5, Some(10)));
        assert_eq!(progress.total.message(), "file.iso");
        progress.clear();
    }
}
