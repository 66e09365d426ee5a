//! The flows there are, for status and the dashboard.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use multiway_api::status::{FlowStatus, PathShare, Treatment};
use multiway_core::paths::PathId;

/// Ended flows kept to be shown.
const RECENT: usize = 200;

/// Every flow, from its acceptance to its end; clones share one table.
///
/// A flow locks only its own entry while it runs, so thousands of them do not meet.
#[derive(Debug, Clone, Default)]
pub struct FlowTable {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    next_id: AtomicU64,
    running: Mutex<BTreeMap<u64, Arc<Entry>>>,
    recent: Mutex<VecDeque<Flow>>,
}

#[derive(Debug)]
struct Entry {
    id: u64,
    started: Instant,
    facts: Mutex<Facts>,
}

#[derive(Debug, Clone)]
struct Facts {
    program: Option<String>,
    destination: String,
    treatment: Treatment,
    why: String,
    bytes: BTreeMap<PathId, u64>,
}

/// A flow as it was at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Flow {
    /// Distinguishes it from others of this process.
    pub id: u64,
    /// The program whose connection it is, when known.
    pub program: Option<String>,
    /// Where it goes, with the name when it is known.
    pub destination: String,
    /// What is done with it.
    pub treatment: Treatment,
    /// Why, in a sentence.
    pub why: String,
    /// Payload bytes that reached the program, per path.
    pub bytes: BTreeMap<PathId, u64>,
    /// How long it has lived, or lived.
    pub age: Duration,
}

impl Flow {
    /// The flow as the API shows it; `interface_of` names a path.
    pub fn status(&self, interface_of: impl Fn(PathId) -> String) -> FlowStatus {
        let bytes: u64 = self.bytes.values().sum();
        let share = |part: u64| if bytes == 0 { 0.0 } else { part as f64 / bytes as f64 };
        FlowStatus {
            id: self.id,
            program: self.program.clone(),
            destination: self.destination.clone(),
            treatment: self.treatment,
            why: self.why.clone(),
            age_seconds: self.age.as_secs_f64(),
            bytes,
            shares: self
                .bytes
                .iter()
                .map(|(&path, &part)| PathShare {
                    interface: interface_of(path),
                    bytes: part,
                    share: share(part),
                })
                .collect(),
        }
    }
}

impl FlowTable {
    /// Enters a flow to `destination`; it leaves the table with the last clone of its handle.
    pub fn open(&self, program: Option<String>, destination: impl Into<String>) -> FlowHandle {
        let entry = Arc::new(Entry {
            id: self.shared.next_id.fetch_add(1, Ordering::Relaxed),
            started: Instant::now(),
            facts: Mutex::new(Facts {
                program,
                destination: destination.into(),
                treatment: Treatment::Classifying,
                why: "its first bytes are awaited".to_owned(),
                bytes: BTreeMap::new(),
            }),
        });
        lock(&self.shared.running).insert(entry.id, Arc::clone(&entry));
        FlowHandle { place: Arc::new(Place { entry, shared: Arc::clone(&self.shared) }) }
    }

    /// Flows that run now, the oldest first.
    pub fn running(&self) -> Vec<Flow> {
        let entries: Vec<_> = lock(&self.shared.running).values().cloned().collect();
        entries.iter().map(|entry| entry.flow()).collect()
    }

    /// Flows that ended lately, the latest first.
    pub fn recent(&self) -> Vec<Flow> {
        lock(&self.shared.recent).iter().rev().cloned().collect()
    }

    /// How many run now.
    pub fn len(&self) -> usize {
        lock(&self.shared.running).len()
    }

    /// True when none runs.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Entry {
    fn flow(&self) -> Flow {
        let Facts { program, destination, treatment, why, bytes } = lock(&self.facts).clone();
        Flow { id: self.id, program, destination, treatment, why, bytes, age: self.started.elapsed() }
    }
}

/// A flow's place in the table, updated by whoever handles it.
#[derive(Debug, Clone)]
pub struct FlowHandle {
    place: Arc<Place>,
}

#[derive(Debug)]
struct Place {
    entry: Arc<Entry>,
    shared: Arc<Shared>,
}

impl Drop for Place {
    fn drop(&mut self) {
        lock(&self.shared.running).remove(&self.entry.id);
        let mut recent = lock(&self.shared.recent);
        if recent.len() == RECENT {
            recent.pop_front();
        }
        recent.push_back(self.entry.flow());
    }
}

impl FlowHandle {
    /// The flow's number.
    pub fn id(&self) -> u64 {
        self.place.entry.id
    }

    /// A handle that does not keep the flow in the table.
    pub fn downgrade(&self) -> WeakFlowHandle {
        WeakFlowHandle { place: Arc::downgrade(&self.place) }
    }

    /// Says what is done with the flow, and why.
    pub fn set_treatment(&self, treatment: Treatment, why: impl Into<String>) {
        let mut facts = self.facts();
        facts.treatment = treatment;
        facts.why = why.into();
    }

    /// Says where the flow goes, once more is known than its address.
    pub fn set_destination(&self, destination: impl Into<String>) {
        self.facts().destination = destination.into();
    }

    /// Says which program's flow it is.
    pub fn set_program(&self, program: impl Into<String>) {
        self.facts().program = Some(program.into());
    }

    /// Counts payload bytes that reached the program over `path`.
    pub fn add_bytes(&self, path: PathId, bytes: u64) {
        *self.facts().bytes.entry(path).or_default() += bytes;
    }

    fn facts(&self) -> MutexGuard<'_, Facts> {
        lock(&self.place.entry.facts)
    }
}

/// A flow that may have ended.
#[derive(Debug, Clone)]
pub struct WeakFlowHandle {
    place: Weak<Place>,
}

impl WeakFlowHandle {
    /// The flow, while it runs.
    pub fn upgrade(&self) -> Option<FlowHandle> {
        self.place.upgrade().map(|place| FlowHandle { place })
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flow_is_shown_while_it_runs_and_kept_for_a_while() {
        let table = FlowTable::default();
        let flow = table.open(Some("curl".to_owned()), "203.0.113.1:80");
        flow.set_destination("example.org:80");
        flow.set_treatment(Treatment::Split, "a large object");
        flow.add_bytes(PathId(2), 300);
        flow.clone().add_bytes(PathId(3), 100);
        let running = table.running();
        let status = running[0].status(|path| format!("if{}", path.0));
        assert_eq!((status.destination.as_str(), status.bytes), ("example.org:80", 400));
        assert_eq!(status.shares[0].interface, "if2");
        assert!((status.shares[0].share - 0.75).abs() < 1e-9);
        assert!(table.recent().is_empty());
        drop(flow);
        assert!(table.is_empty());
        assert_eq!(table.recent()[0].bytes, running[0].bytes);
    }

    #[test]
    fn only_so_many_ended_flows_are_kept() {
        let table = FlowTable::default();
        for number in 0..RECENT + 5 {
            drop(table.open(None, number.to_string()));
        }
        let recent = table.recent();
        assert_eq!(recent.len(), RECENT);
        assert_eq!(recent[0].destination, (RECENT + 4).to_string());
    }

    #[test]
    fn a_flow_without_bytes_has_no_shares() {
        let table = FlowTable::default();
        let flow = table.open(None, "x");
        flow.add_bytes(PathId(1), 0);
        let share = table.running()[0].status(|_| String::new()).shares[0].share;
        assert!(share.abs() < f64::EPSILON);
    }
}
