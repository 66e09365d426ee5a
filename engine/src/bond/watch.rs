//! Whether a path still carries what a session sends: the oracle and the detectors, fed and heard.

use std::collections::{BTreeMap, BTreeSet};

use multiway_core::bond::{Detector, DetectorKind, Finding, Suspicion};
use multiway_core::paths::{
    NetPath, NetworkIdentity, Oracle, OracleConfig, OracleEvent, PathId, SubflowKey, Symptom,
};

use super::shared::{SharedSession, SubflowReading};
use crate::paths::now;

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
}

impl Watch {
    pub(super) fn new(kind: DetectorKind, oracle: OracleConfig) -> Self {
        let oracle = Oracle::new(kind.oracle(oracle), now());
        let (detectors, known, networks) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        Self { kind, detectors, oracle, known, networks }
    }

    /// Takes in which networks the paths are joined to now.
    pub(super) fn set_networks(&mut self, networks: BTreeMap<PathId, NetworkIdentity>) {
        self.networks = networks;
    }

    /// Reads the kernel's counters and tells the session what follows.
    pub(super) fn look(&mut self, session: &SharedSession) {
        let readings = session.samples();
        self.hear_oracle(session, &readings);
        let mut paths: BTreeSet<PathId> = readings.iter().map(|reading| reading.path).collect();
        paths.extend(self.detectors.keys());
        for path in paths {
            let detector = self.detectors.entry(path).or_insert_with(|| Detector::new(self.kind));
            detector.handle_observation(&session.look(|session| session.observe_path(path)));
            for reading in readings.iter().filter(|reading| reading.path == path) {
                detector.handle_sample(reading.id, &reading.sample);
            }
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

fn suspicion(symptom: Symptom) -> Suspicion {
    match symptom {
        Symptom::Loss => Suspicion::Loss,
        Symptom::Retransmissions => Suspicion::Retransmissions,
        Symptom::Timeout => Suspicion::Timeout,
    }
}
