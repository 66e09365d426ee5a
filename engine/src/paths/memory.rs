//! What is remembered of networks and destinations: held in memory, written behind.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use multiway_core::paths::{
    DailyBytes, History, HistoryRecord, InconsistentHosts, NetworkIdentity, Observation,
};

use super::clock::{today, unix_seconds};
use super::sampler::lock;
use super::store::{CAPACITY, Changes, Remembered, Store, is_damage};

/// Changes wait this long for others, so that a busy daemon writes once a second at most.
const WRITE_BEHIND: Duration = Duration::from_secs(1);

/// A full disk is tried again after this time.
const RETRY: Duration = Duration::from_secs(60);

/// Where history is kept unless configured otherwise: `/var/lib/multiway` for root, else the
/// user's state directory (XDG Base Directory Specification); `None` without a home.
pub fn default_history_file() -> Option<PathBuf> {
    use std::os::unix::fs::MetadataExt;
    let is_root = std::fs::metadata("/proc/self").is_ok_and(|own| own.uid() == 0);
    let absolute =
        |variable: &str| std::env::var_os(variable).map(PathBuf::from).filter(|path| path.is_absolute());
    let directory = match absolute("XDG_STATE_HOME") {
        Some(state) => state.join("multiway"),
        None if is_root => PathBuf::from("/var/lib/multiway"),
        None => absolute("HOME")?.join(".local/state/multiway"),
    };
    Some(directory.join("history.db"))
}

/// Asking never waits for the disk; telling neither.
#[derive(Debug)]
pub(super) struct Memory {
    history: Mutex<History>,
    inconsistent: Mutex<InconsistentHosts>,
    usage: Mutex<BTreeMap<String, Usage>>,
    writer: Option<Writer>,
}

/// Bytes of one interface.
#[derive(Debug, Default)]
struct Usage {
    today: DailyBytes,
    /// What the file does not have yet.
    unsaved: DailyBytes,
}

impl Memory {
    /// Reads `file`, when given. Without it, or when it cannot be used, nothing outlives the
    /// process.
    pub(super) fn load(file: Option<&Path>) -> Self {
        let opened = file.and_then(|file| {
            Store::open(file, unix_seconds())
                .inspect_err(|error| {
                    tracing::warn!("measurements of paths will be forgotten at the end: {error}");
                })
                .ok()
                .map(|(store, remembered)| (file, store, remembered))
        });
        let (writer, remembered) = match opened {
            Some((file, store, remembered)) => (Writer::start(file.to_owned(), store), remembered),
            None => (None, Remembered::default()),
        };
        let mut history = History::new(CAPACITY);
        for (key, record) in remembered.records {
            history.restore(key, record);
        }
        let mut inconsistent = InconsistentHosts::default();
        for (network, host, expiry) in remembered.inconsistent {
            inconsistent.restore(network, host, expiry);
        }
        let usage = remembered
            .usage
            .into_iter()
            .map(|(interface, today)| (interface, Usage { today, ..Usage::default() }))
            .collect();
        Self {
            history: Mutex::new(history),
            inconsistent: Mutex::new(inconsistent),
            usage: Mutex::new(usage),
            writer,
        }
    }

    pub(super) fn lookup(&self, network: &NetworkIdentity, destination: &str) -> Option<HistoryRecord> {
        lock(&self.history).lookup(network, destination, unix_seconds())
    }

    pub(super) fn record(&self, network: &NetworkIdentity, destination: &str, observation: &Observation) {
        let changed = lock(&self.history).record(network, destination, observation, unix_seconds());
        self.save(Changes { records: changed.into_iter().collect(), ..Changes::default() });
    }

    pub(super) fn mark_inconsistent(&self, network: &NetworkIdentity, host: &str) {
        let expiry = lock(&self.inconsistent).mark(network, host, unix_seconds());
        let key = (network.clone(), host.to_ascii_lowercase());
        self.save(Changes { inconsistent: BTreeMap::from([(key, expiry)]), ..Changes::default() });
    }

    pub(super) fn is_inconsistent(&self, network: &NetworkIdentity, host: &str) -> bool {
        lock(&self.inconsistent).contains_at(network, host, unix_seconds())
    }

    /// Counts payload bytes moved over an interface.
    pub(super) fn count(&self, interface: &str, bytes: u64) {
        if bytes == 0 {
            return;
        }
        let mut usage = lock(&self.usage);
        if !usage.contains_key(interface) {
            usage.insert(interface.to_owned(), Usage::default());
        }
        if let Some(usage) = usage.get_mut(interface) {
            usage.today.add(bytes, today());
            usage.unsaved.add(bytes, today());
        }
    }

    pub(super) fn bytes_today(&self, interface: &str) -> u64 {
        lock(&self.usage).get(interface).map_or(0, |usage| usage.today.get_at(today()))
    }

    /// Hands counted bytes to the writer.
    pub(super) fn save_usage(&self) {
        let mut changes = Changes::default();
        for (interface, usage) in lock(&self.usage).iter_mut() {
            let bytes = usage.unsaved.get_at(today());
            usage.unsaved = DailyBytes::default();
            if bytes > 0 {
                changes.usage.insert((interface.clone(), today()), bytes);
            }
        }
        self.save(changes);
    }

    fn save(&self, changes: Changes) {
        if let Some(changes_to) = self.writer.as_ref().and_then(|writer| writer.changes.as_ref())
            && !changes.is_empty()
        {
            // The writer lives as long as its channel; a failure means that it panicked.
            let _ = changes_to.send(changes);
        }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        self.save_usage();
    }
}

/// The thread that owns the database.
#[derive(Debug)]
struct Writer {
    /// Closing it tells the thread to write what is left and end.
    changes: Option<Sender<Changes>>,
    thread: Option<JoinHandle<()>>,
}

impl Writer {
    fn start(file: PathBuf, store: Store) -> Option<Self> {
        let (changes, receiver) = channel();
        let thread = std::thread::Builder::new()
            .name("path-history".to_owned())
            .spawn(move || write_behind(&file, store, &receiver))
            .inspect_err(|error| {
                tracing::warn!("measurements of paths will be forgotten at the end: no thread: {error}");
            })
            .ok()?;
        Some(Self { changes: Some(changes), thread: Some(thread) })
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        drop(self.changes.take());
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::warn!("the thread that keeps the history of paths had panicked");
        }
    }
}

fn write_behind(file: &Path, mut store: Store, changes: &Receiver<Changes>) {
    let mut pending = Changes::default();
    let mut is_failing = false;
    loop {
        let mut is_last = false;
        if pending.is_empty() {
            match changes.recv() {
                Ok(first) => pending.absorb(first),
                Err(_) => return,
            }
        }
        is_last |= gather(&mut pending, changes, if is_failing { RETRY } else { WRITE_BEHIND });
        match store.write(&pending) {
            Ok(()) => {
                pending = Changes::default();
                is_failing = false;
            }
            Err(error) => {
                if !is_failing {
                    tracing::warn!(file = %file.display(), %error, "the history of paths cannot be written");
                }
                is_failing = true;
                if is_damage(&error)
                    && let Ok((fresh, _)) = Store::open(file, unix_seconds())
                {
                    store = fresh;
                }
            }
        }
        if is_last {
            return;
        }
        // What a disk that stays full keeps from being written must not fill the memory instead.
        if pending.records.len() > CAPACITY {
            pending.records.clear();
        }
    }
}

/// Takes in changes for `time`; true when there will be no more.
fn gather(pending: &mut Changes, changes: &Receiver<Changes>, time: Duration) -> bool {
    let begun = std::time::Instant::now();
    loop {
        match changes.recv_timeout(time.saturating_sub(begun.elapsed())) {
            Ok(more) => pending.absorb(more),
            Err(RecvTimeoutError::Timeout) => return false,
            Err(RecvTimeoutError::Disconnected) => return true,
        }
    }
}
