//! Who may use the relay now, and how much each has used: the files of [`super::users`] while the relay runs.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use super::identity::StateError;
use super::users::{self, Usage, month_of, unix_seconds};
use crate::bond::token::{Token, TokenId};

/// See the module.
#[derive(Debug)]
pub(super) struct Roster {
    state: PathBuf,
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    revoked: BTreeSet<String>,
    /// By which the file is known to be the same: inode, size, and time of change in seconds and
    /// nanoseconds.
    seen: Option<(u64, u64, i64, i64)>,
    usage: Usage,
    written: Usage,
    meters: BTreeMap<TokenId, Arc<Meter>>,
}

/// What one user moves, counted without a lock.
#[derive(Debug)]
pub(super) struct Meter {
    /// Not yet entered in the usage.
    counted: AtomicU64,
    /// The month's allowance; [`u64::MAX`] without one.
    allowance: u64,
    /// What is left of it.
    left: AtomicU64,
    is_exhausted: AtomicBool,
    exhausted: Notify,
}

impl Meter {
    /// Counts bytes.
    pub(super) fn add(&self, bytes: u64) {
        let counted = self.counted.fetch_add(bytes, Ordering::Relaxed) + bytes;
        if counted > self.left.load(Ordering::Relaxed) && !self.is_exhausted.swap(true, Ordering::Relaxed) {
            self.exhausted.notify_waiters();
        }
    }

    /// Whether the month's allowance is used up.
    pub(super) fn is_exhausted(&self) -> bool {
        self.is_exhausted.load(Ordering::Relaxed)
    }

    /// Waits until it is.
    pub(super) async fn exhausted(&self) {
        let notified = self.exhausted.notified();
        if !self.is_exhausted() {
            notified.await;
        }
    }
}

impl Roster {
    /// Reads the files.
    pub(super) fn load(state: &Path) -> Result<Self, StateError> {
        let usage = users::usage(state)?;
        let inner = Inner {
            revoked: BTreeSet::new(),
            seen: None,
            written: usage.clone(),
            usage,
            meters: BTreeMap::new(),
        };
        let roster = Self { state: state.to_owned(), inner: Mutex::new(inner) };
        roster.refresh()?;
        Ok(roster)
    }

    /// Reads the list of users again if it was changed.
    pub(super) fn refresh(&self) -> Result<(), StateError> {
        let stamp = fs::metadata(users::users_file(&self.state))
            .ok()
            .map(|found| (found.ino(), found.size(), found.mtime(), found.mtime_nsec()));
        if stamp == self.lock().seen {
            return Ok(());
        }
        let users = users::users(&self.state)?;
        let revoked = users.into_iter().filter(|user| user.revoked.is_some()).map(|user| user.id).collect();
        let mut inner = self.lock();
        (inner.seen, inner.revoked) = (stamp, revoked);
        Ok(())
    }

    /// Whether a user may be let in, or stay; why not, in words.
    pub(super) fn check(&self, token: &Token) -> Result<(), &'static str> {
        if token.is_expired_at(unix_seconds()) {
            return Err("the invite has expired");
        }
        if self.lock().revoked.contains(&token.id.to_string()) {
            return Err("the invite was revoked");
        }
        Ok(())
    }

    /// The meter of a user.
    pub(super) fn meter(&self, token: &Token) -> Arc<Meter> {
        let mut inner = self.lock();
        let used = inner.usage.of(&token.id.to_string(), &month_of(unix_seconds()));
        let allowance = token.monthly_bytes.unwrap_or(u64::MAX);
        let left = token.monthly_bytes.map_or(u64::MAX, |limit| limit.saturating_sub(used));
        let meter = inner.meters.entry(token.id).or_insert_with(|| {
            Arc::new(Meter {
                counted: AtomicU64::new(0),
                allowance,
                left: AtomicU64::new(left),
                is_exhausted: AtomicBool::new(left == 0),
                exhausted: Notify::new(),
            })
        });
        Arc::clone(meter)
    }

    /// Enters what was counted into the month's usage, and writes it if it changed.
    pub(super) fn settle(&self) -> Result<(), StateError> {
        let month = month_of(unix_seconds());
        let usage = {
            let mut guard = self.lock();
            let inner = &mut *guard;
            if inner.usage.month != month {
                for meter in inner.meters.values() {
                    meter.left.store(meter.allowance, Ordering::Relaxed);
                    meter.is_exhausted.store(false, Ordering::Relaxed);
                }
            }
            for (&id, meter) in &inner.meters {
                let counted = meter.counted.swap(0, Ordering::Relaxed);
                if counted > 0 {
                    inner.usage.add(id, counted, &month);
                    let left = meter.left.load(Ordering::Relaxed);
                    if left != u64::MAX {
                        meter.left.store(left.saturating_sub(counted), Ordering::Relaxed);
                    }
                }
            }
            // A meter that only the table holds belongs to nobody who is there.
            inner.meters.retain(|_, meter| Arc::strong_count(meter) > 1);
            if inner.usage == inner.written {
                return Ok(());
            }
            inner.written = inner.usage.clone();
            inner.usage.clone()
        };
        users::write_usage(&self.state, &usage)
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::relay::identity::Identity;
    use crate::relay::users::{Grant, invite, revoke, usage};

    fn home() -> (tempfile::TempDir, Token) {
        let home = tempfile::tempdir().unwrap();
        let identity = Identity::load_or_create(home.path()).unwrap();
        let grant = Grant { name: "ada".to_owned(), expires: None, monthly_bytes: Some(100) };
        let token = invite(home.path(), &identity, &grant).unwrap().token().clone();
        (home, token)
    }

    #[test]
    fn a_revocation_is_noticed_while_the_relay_runs() {
        let (home, token) = home();
        let roster = Roster::load(home.path()).unwrap();
        assert_eq!(roster.check(&token), Ok(()));
        assert!(roster.check(&Token { expires: Some(1), ..token.clone() }).unwrap_err().contains("expired"));
        revoke(home.path(), "ada").unwrap();
        roster.refresh().unwrap();
        assert!(roster.check(&token).unwrap_err().contains("revoked"));
    }

    #[test]
    fn what_is_used_is_written_and_ends_at_the_allowance() {
        let (home, token) = home();
        let roster = Roster::load(home.path()).unwrap();
        let meter = roster.meter(&token);
        meter.add(60);
        roster.settle().unwrap();
        assert!(!meter.is_exhausted());
        meter.add(40);
        assert!(!meter.is_exhausted());
        meter.add(1);
        assert!(meter.is_exhausted());
        roster.settle().unwrap();
        let month = month_of(unix_seconds());
        assert_eq!(usage(home.path()).unwrap().of(&token.id.to_string(), &month), 101);
        drop(meter);
        roster.settle().unwrap();
        // After a restart too.
        assert!(Roster::load(home.path()).unwrap().meter(&token).is_exhausted());
    }
}
