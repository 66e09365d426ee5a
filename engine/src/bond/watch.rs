//! Whether a path still carries what a session sends: the oracle and the detectors, fed and heard. And how fast
//! it is.

use std::collections::{BTreeMap, BTreeSet};

use multiway_core::bond::{
    Detector, DetectorKind, Finding, LoadMeter, PathObservation, Policy, Session, Suspicion,
};
use multiway_core::paths::{
    NetPath, NetworkIdentity, Observation, Oracle, OracleConfig, OracleEvent, PathId, SubflowKey, Symptom,
};

use super::memory::PIECE;
use super::shared::{SharedSession, SubflowReading};
use crate::paths::now;

/// Unread bytes of a session with which it is the programs that are slow: more pieces than a task takes while another
/// one comes in.
const SLOW_READERS: u64 = 3 * PIECE as u64;

/// Watches the paths of one session.
#[derive(Debug)]
pub(super) struct Watch {
    kind: DetectorKind,
    detectors: BTreeMap<PathId, Detector>,
    oracle: Oracle,
    /// Subflows that the oracle knows, with their paths.
    known: BTreeMap<SubflowKey, (NetPath, PathId)>,
    /// The networks that the paths are joined to.
    networks: BTreeMap<PathId, NetworkIdentity>,
    meters: BTreeMap<PathId, LoadMeter>,
}

impl Watch {
    pub(super) fn new(kind: DetectorKind, oracle: OracleConfig) -> Self {
        let oracle = Oracle::new(kind.oracle(oracle), now());
        Self {
            kind,
            detectors: BTreeMap::new(),
            oracle,
            known: BTreeMap::new(),
            networks: BTreeMap::new(),
            meters: BTreeMap::new(),
        }
    }

    /// Takes in which networks the paths are joined to now.
    pub(super) fn set_networks(&mut self, networks: BTreeMap<PathId, NetworkIdentity>) {
        self.networks = networks;
    }

    /// Reads the kernel's counters and tells the session what follows. Returns what the load of paths showed.
    pub(super) fn look(&mut self, session: &SharedSession) -> Vec<(PathId, Observation)> {
        let readings = session.samples();
        let mut shown = Vec::new();
        self.hear_oracle(session, &readings);
        let mut paths: BTreeSet<PathId> = readings.iter().map(|reading| reading.path).collect();
        paths.extend(self.detectors.keys());
        let (observations, reads_in_time) = session.look(|session| {
            let observe = |path| (path, session.observe_path(path));
            (paths.into_iter().map(observe).collect::<Vec<_>>(), reads_in_time(session))
        });
        // More is expected on the path that brought the last of a stream, and may come by any.
        let expects = |(_, it): &(PathId, PathObservation)| it.expecting_since.is_some();
        let has_more = reads_in_time && observations.iter().any(expects);
        for (path, observation) in observations {
            let detector = self.detectors.entry(path).or_insert_with(|| Detector::new(self.kind));
            detector.handle_observation(&observation);
            let on_path = || readings.iter().filter(|reading| reading.path == path);
            for reading in on_path() {
                detector.handle_sample(reading.id, &reading.sample);
            }
            let received = on_path().map(|reading| reading.sample.bytes_received).sum();
            let least_rtt = on_path().filter_map(|reading| reading.sample.min_rtt).min();
            let meter = self.meters.entry(path).or_default();
            shown.extend(meter.handle_reading(received, has_more, least_rtt, now()).map(|load| (path, load)));
            detector.keep_subflows(|id| readings.iter().any(|reading| reading.id == id));
            match detector.handle_timeout(now()) {
                Some(Finding::Suspect(suspicion)) => {
                    session.with(|session, now| session.suspect_path(path, suspicion, now));
                }
                Some(Finding::Probe) => session.with(|session, now| session.probe_path(path, now)),
                None => {}
            }
        }
        self.detectors.retain(|path, _| readings.iter().any(|reading| reading.path == *path));
        self.meters.retain(|path, _| readings.iter().any(|reading| reading.path == *path));
        shown
    }

    fn hear_oracle(&mut self, session: &SharedSession, readings: &[SubflowReading]) {
        let mut present = BTreeSet::new();
        for reading in readings {
            let super::connection::Transport::Path(stream) = &*reading.transport else { continue };
            let (Ok(source), Ok(destination)) = (stream.local_addr(), stream.peer_addr()) else { continue };
            let netpath = NetPath {
                source: source.ip(),
                destination: destination.ip(),
                interface: reading.path.0.to_string(),
                network: self.networks.get(&reading.path).cloned().unwrap_or_default(),
            };
            let key = SubflowKey(reading.id.0);
            self.oracle.handle_sample(key, &netpath, &reading.sample);
            self.known.insert(key, (netpath, reading.path));
            present.insert(key);
        }
        let oracle = &mut self.oracle;
        self.known.retain(|key, _| {
            let stays = present.contains(key);
            if !stays {
                oracle.handle_closed(*key);
            }
            stays
        });
        oracle.handle_timeout(now());
        while let Some(event) = oracle.poll_event() {
            let OracleEvent::Underperforms { netpath, symptom, statistics } = event else { continue };
            let path = self.known.values().find(|(known, _)| *known == netpath).map(|(_, path)| *path);
            if let Some(path) = path {
                tracing::debug!(%path, ?symptom, ?statistics, "the oracle suspects a path");
                session.with(|session, now| session.suspect_path(path, suspicion(symptom), now));
            }
        }
    }
}

/// Whether it is the network that sets the pace. Bytes that came over one path wait for those of another one when
/// both are used together, and are no sign then.
fn reads_in_time(session: &Session) -> bool {
    session.config().policy == Policy::Aggregate || session.held_bytes() < SLOW_READERS
}

fn suspicion(symptom: Symptom) -> Suspicion {
    match symptom {
        Symptom::Loss => Suspicion::Loss,
        Symptom::Retransmissions => Suspicion::Retransmissions,
        Symptom::Timeout => Suspicion::Timeout,
    }
}
