//! Reads `TCP_INFO` of all open connections, again and again (F10).

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use multiway_core::paths::{HistoryRecord, PathEstimate, PathId, PathMetrics, SampleDelta, TcpSample};
use tokio::time::MissedTickBehavior;

use super::clock::now;
use super::memory::Memory;
use super::stream::{Connection, ConnectionId};

/// "Fine-grained measurements every 200 ms" (FLEETY section 5).
pub(super) const SAMPLING_INTERVAL: Duration = Duration::from_millis(200);

/// Connections read before other tasks get their turn: well under a millisecond of system calls.
const BATCH: usize = 256;

/// Counted bytes are handed on to be stored every 5 s.
const ROUNDS_BETWEEN_SAVES: u32 = 25;

/// All open connections, and what their samples told of each path.
#[derive(Debug)]
pub(super) struct Registry {
    connections: Mutex<BTreeMap<ConnectionId, Arc<Connection>>>,
    paths: Mutex<BTreeMap<PathId, PathMeasures>>,
    pub(super) memory: Memory,
}

/// What is measured of one path.
#[derive(Debug, Default)]
struct PathMeasures {
    metrics: PathMetrics,
    /// Last deltas of connections that closed since the last round.
    closed: Vec<SampleDelta>,
}

impl Registry {
    pub(super) fn new(memory: Memory) -> Self {
        Self { connections: Mutex::default(), paths: Mutex::default(), memory }
    }

    /// Lists a connection, and reads it for the first time: the handshake has measured something.
    pub(super) fn open(&self, connection: &Arc<Connection>) {
        lock(&self.connections).insert(connection.id, Arc::clone(connection));
        if let Some(delta) = self.read(connection) {
            let mut paths = lock(&self.paths);
            let metrics = &mut paths.entry(connection.path).or_default().metrics;
            metrics.handle_success();
            metrics.handle_round(&[delta], now());
        }
    }

    /// Reads a connection for the last time and forgets it.
    pub(super) fn close(&self, connection: &Connection) {
        lock(&self.connections).remove(&connection.id);
        if let Some(delta) = self.read(connection) {
            lock(&self.paths).entry(connection.path).or_default().closed.push(delta);
        }
    }

    /// What happened on a connection since the last call; its bytes are counted. `None` when the
    /// kernel does not say.
    fn read(&self, connection: &Connection) -> Option<SampleDelta> {
        let (earlier, sample) = connection.read_counters().ok()?;
        let delta = SampleDelta::between(earlier.as_ref(), &sample);
        self.memory.count(&connection.interface, delta.received + delta.acked);
        Some(delta)
    }

    /// The last reading of a connection that is still open.
    pub(super) fn latest(&self, id: ConnectionId) -> Option<TcpSample> {
        lock(&self.connections).get(&id)?.latest()
    }

    /// Open connections of each path.
    pub(super) fn open_connections(&self) -> BTreeMap<PathId, usize> {
        let mut counts = BTreeMap::new();
        for connection in lock(&self.connections).values() {
            *counts.entry(connection.path).or_default() += 1;
        }
        counts
    }

    /// What live samples and `history` together tell of a path.
    pub(super) fn estimate(&self, path: PathId, history: Option<&HistoryRecord>) -> PathEstimate {
        match lock(&self.paths).get(&path) {
            Some(measures) => measures.metrics.estimate_at(now(), history),
            None => PathMetrics::default().estimate_at(now(), history),
        }
    }

    /// Notes that a connection could not be opened, by no fault of the remote's that is known of.
    pub(super) fn fail(&self, path: PathId) {
        lock(&self.paths).entry(path).or_default().metrics.handle_failure(now());
    }

    /// True while the path is to be used last.
    pub(super) fn is_suspect(&self, path: PathId) -> bool {
        lock(&self.paths).get(&path).is_some_and(|measures| measures.metrics.is_suspect_at(now()))
    }

    /// Forgets measurements of a path that joined another network.
    pub(super) fn forget(&self, path: PathId) {
        lock(&self.paths).remove(&path);
    }

    fn sample(&self, connections: &[Arc<Connection>], rounds: &mut BTreeMap<PathId, Vec<SampleDelta>>) {
        for connection in connections {
            if let Some(delta) = self.read(connection) {
                rounds.entry(connection.path).or_default().push(delta);
            }
        }
    }

    fn end_round(&self, mut rounds: BTreeMap<PathId, Vec<SampleDelta>>) {
        for (path, measures) in lock(&self.paths).iter_mut() {
            let mut deltas = rounds.remove(path).unwrap_or_default();
            deltas.append(&mut measures.closed);
            if !deltas.is_empty() {
                measures.metrics.handle_round(&deltas, now());
            }
        }
    }
}

/// Samples until the registry is gone.
pub(super) async fn run(registry: Weak<Registry>) {
    let mut ticks = tokio::time::interval(SAMPLING_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    for round in 0u32.. {
        ticks.tick().await;
        if sample_all(&registry).await.is_none() {
            return;
        }
        if round.is_multiple_of(ROUNDS_BETWEEN_SAVES)
            && let Some(registry) = registry.upgrade()
        {
            registry.memory.save_usage();
        }
    }
}

/// One round over all connections; nothing when the registry is gone. It is not held while others have their turn:
/// who drops it then waits until all is written.
async fn sample_all(registry: &Weak<Registry>) -> Option<()> {
    let connections: Vec<Arc<Connection>> =
        lock(&registry.upgrade()?.connections).values().cloned().collect();
    let mut rounds = BTreeMap::new();
    for batch in connections.chunks(BATCH) {
        registry.upgrade()?.sample(batch, &mut rounds);
        tokio::task::yield_now().await;
    }
    drop(connections);
    registry.upgrade()?.end_round(rounds);
    Some(())
}

/// What the mutexes guard is whole after every statement, so a panic elsewhere does not spoil it.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
