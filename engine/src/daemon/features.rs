//! The flow-feature database on disk: read at the start, and again whenever it changes.

use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use multiway_api::EventDetail;
use multiway_core::flow::features::{FeatureDatabase, FeatureError};
use thiserror::Error;

use crate::context::Features;
use crate::journal::Journal;

/// How often the file is looked at. An edit takes effect within this time, and a look is one system call.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// Why the rules could not be read.
#[derive(Debug, Error)]
pub enum FeaturesError {
    /// The file could not be read.
    #[error("cannot read the feature database {}: {error}", file.display())]
    Unreadable {
        /// The file.
        file: PathBuf,
        /// The kernel's reason.
        error: io::Error,
    },
    /// A rule is wrong.
    #[error("{}: {error}", file.display())]
    Invalid {
        /// The file.
        file: PathBuf,
        /// What is wrong, and on which line.
        error: FeatureError,
    },
}

/// The rules in `file`, before the built-in ones; those alone when there is no file.
pub(super) fn load(file: Option<&Path>) -> Result<FeatureDatabase, FeaturesError> {
    let Some(file) = file else { return Ok(FeatureDatabase::built_in()) };
    let text = std::fs::read_to_string(file)
        .map_err(|error| FeaturesError::Unreadable { file: file.to_owned(), error })?;
    let own = FeatureDatabase::parse(&text)
        .map_err(|error| FeaturesError::Invalid { file: file.to_owned(), error })?;
    Ok(own.followed_by(FeatureDatabase::built_in()))
}

/// What tells one state of a file from another.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Stamp(Option<(SystemTime, u64)>);

impl Stamp {
    fn of(file: &Path) -> Self {
        let look = || {
            let data = std::fs::metadata(file)?;
            Ok::<_, io::Error>((data.modified()?, data.len()))
        };
        Self(look().ok())
    }
}

/// A file whose changes are noticed.
#[derive(Debug)]
pub(super) struct Reloader {
    file: PathBuf,
    seen: Stamp,
    rules: Features,
}

impl Reloader {
    /// Watches `file`, whose content has just been put into `rules`.
    pub(super) fn new(file: PathBuf, rules: Features) -> Self {
        Self { seen: Stamp::of(&file), file, rules }
    }

    /// Looks again and again, without end.
    pub(super) async fn run(mut self, journal: Journal) -> ! {
        loop {
            tokio::time::sleep(LOOK_INTERVAL).await;
            self.look(&journal);
        }
    }

    /// Reads the file if it changed; when it is wrong, says so and keeps the rules read before.
    fn look(&mut self, journal: &Journal) {
        let stamp = Stamp::of(&self.file);
        if stamp == self.seen {
            return;
        }
        // Taken before reading: a write in between makes it differ at the next look.
        self.seen = stamp;
        match load(Some(&self.file)) {
            Ok(rules) => {
                journal.record(EventDetail::FeaturesReloaded { rules: rules.len() });
                self.rules.replace(rules);
            }
            Err(error) => {
                tracing::warn!("{error}; the rules read before stay in force");
                journal.record(EventDetail::FeaturesRejected { reason: error.to_string() });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_changed_file_takes_effect_and_a_wrong_one_does_not() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("features.toml");
        std::fs::write(&file, "").unwrap();
        let first = load(Some(&file)).unwrap();
        let built_in = first.len();
        let current = Features::new(first);
        let mut reloader = Reloader::new(file.clone(), current.clone());
        let journal = Journal::default();

        reloader.look(&journal);
        assert!(journal.latest().is_empty(), "nothing changed");

        let rule = "[[rule]]\nname = \"big\"\nhost = \"example.org\"\naction = \"split\"\n";
        std::fs::write(&file, rule).unwrap();
        reloader.look(&journal);
        assert_eq!(current.current().len(), built_in + 1);

        std::fs::write(&file, format!("{rule}nonsense = 1\n")).unwrap();
        reloader.look(&journal);
        assert_eq!(current.current().len(), built_in + 1, "the old set stays");
        let last = journal.latest().pop().unwrap().detail;
        assert!(
            matches!(&last, EventDetail::FeaturesRejected { reason } if reason.contains("line 5")),
            "{last:?}"
        );
    }
}
