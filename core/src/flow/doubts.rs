//! Which suspicions about DNS answers are news to a person.
//!
//! A filter that answers every advertiser's name with an unusable address would otherwise fill the
//! journal, and so could anyone who makes a program ask for many names.

use std::collections::BTreeMap;
use std::time::Duration;

use super::names::HostName;
use crate::paths::PathId;
use crate::units::Timestamp;

/// How long a name's suspicion on a path, once told, is not told again.
const REPEAT_AFTER: Duration = Duration::from_secs(3600);

/// Names told of at most on one path within [`WINDOW`].
const MOST_PER_WINDOW: u32 = 5;

/// See [`MOST_PER_WINDOW`]: with it, a day of such answers is a few hundred lines of a log at most.
const WINDOW: Duration = Duration::from_secs(300);

/// Most pairs remembered as told.
const CAPACITY: usize = 512;

/// Decides which suspicions are told; bounded in memory and in what it lets through.
#[derive(Debug, Default)]
pub struct Doubts {
    told: BTreeMap<(HostName, PathId), Timestamp>,
    windows: BTreeMap<PathId, (Timestamp, u32)>,
}

impl Doubts {
    /// True when the suspicion about `name` on `path` is to be told now; it then counts as told.
    pub fn is_news(&mut self, name: &HostName, path: PathId, now: Timestamp) -> bool {
        let key = (name.clone(), path);
        if self.told.get(&key).is_some_and(|told| now.saturating_since(*told) < REPEAT_AFTER) {
            return false;
        }
        self.windows.retain(|_, (begun, _)| now.saturating_since(*begun) < WINDOW);
        let (_, count) = self.windows.entry(path).or_insert((now, 0));
        if *count >= MOST_PER_WINDOW {
            return false;
        }
        *count += 1;
        if self.told.len() >= CAPACITY {
            self.told.retain(|_, told| now.saturating_since(*told) < REPEAT_AFTER);
        }
        if self.told.len() >= CAPACITY
            && let Some(oldest) = self.told.iter().min_by_key(|(_, told)| **told).map(|(key, _)| key.clone())
        {
            self.told.remove(&oldest);
        }
        self.told.insert(key, now);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(number: u32) -> HostName {
        HostName::parse(&format!("n{number}.example.com")).expect("a literal of this test")
    }

    fn at(seconds: u64) -> Timestamp {
        Timestamp::from_origin(Duration::from_secs(seconds))
    }

    #[test]
    fn a_name_is_told_of_once_an_hour_and_path() {
        let mut doubts = Doubts::default();
        assert!(doubts.is_news(&name(1), PathId(1), at(0)));
        assert!(!doubts.is_news(&name(1), PathId(1), at(3599)));
        assert!(doubts.is_news(&name(1), PathId(2), at(3599)));
        assert!(doubts.is_news(&name(1), PathId(1), at(3600)));
    }

    #[test]
    fn a_flood_of_names_is_told_of_in_part_and_held_in_bounded_memory() {
        let mut doubts = Doubts::default();
        let told = (0..10_000).filter(|&n| doubts.is_news(&name(n), PathId(1), at(u64::from(n)))).count();
        let windows = 10_000 / WINDOW.as_secs() as usize + 1;
        assert!(told <= windows * MOST_PER_WINDOW as usize, "{told}");
        assert!(told >= MOST_PER_WINDOW as usize);
        for path in 0..10_000 {
            doubts.is_news(&name(path), PathId(path), at(20_000 + u64::from(path)));
        }
        assert!(doubts.told.len() <= CAPACITY && doubts.windows.len() <= WINDOW.as_secs() as usize + 1);
    }
}
