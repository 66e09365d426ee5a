//! Detectors and the oracle, driven as the engine drives them.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};

use multiway_core::bond::{Detector, DetectorKind, Finding, Session, SubflowId, Suspicion};
use multiway_core::paths::{
    NetPath, NetworkIdentity, Oracle, OracleConfig, OracleEvent, PathId, SubflowKey, Symptom, TcpSample,
};
use multiway_core::units::Timestamp;

/// Watches the paths of a device's session.
#[derive(Debug)]
pub(super) struct Watch {
    kind: DetectorKind,
    detectors: BTreeMap<PathId, Detector>,
    oracle: Option<Oracle>,
    known: BTreeMap<SubflowId, PathId>,
}

fn netpath(path: PathId) -> NetPath {
    let address = IpAddr::V4(Ipv4Addr::LOCALHOST);
    let network = NetworkIdentity::default();
    NetPath { source: address, destination: address, interface: path.0.to_string(), network }
}

impl Watch {
    pub(super) fn new(kind: DetectorKind, with_oracle: bool) -> Self {
        let config = kind.oracle(OracleConfig::default());
        let oracle = with_oracle.then(|| Oracle::new(config, Timestamp::ZERO));
        Self { kind, detectors: BTreeMap::new(), oracle, known: BTreeMap::new() }
    }

    /// Reads the sockets' state and tells the session what follows.
    pub(super) fn look(
        &mut self,
        session: &mut Session,
        readings: &[(SubflowId, PathId, TcpSample)],
        now: Timestamp,
    ) {
        self.hear_oracle(session, readings, now);
        for (id, path, _) in readings {
            self.detectors.entry(*path).or_insert_with(|| Detector::new(self.kind));
            self.known.insert(*id, *path);
        }
        for (path, detector) in &mut self.detectors {
            detector.handle_observation(&session.observe_path(*path));
            for (id, _, sample) in readings.iter().filter(|(_, on, _)| on == path) {
                detector.handle_sample(*id, sample);
            }
            detector.keep_subflows(|id| readings.iter().any(|(known, ..)| *known == id));
            match detector.handle_timeout(now) {
                Some(Finding::Suspect(suspicion)) => session.suspect_path(*path, suspicion, now),
                Some(Finding::Probe) => session.probe_path(*path, now),
                None => {}
            }
        }
        self.detectors.retain(|path, _| readings.iter().any(|(_, on, _)| on == path));
    }

    fn hear_oracle(
        &mut self,
        session: &mut Session,
        readings: &[(SubflowId, PathId, TcpSample)],
        now: Timestamp,
    ) {
        let Some(oracle) = &mut self.oracle else { return };
        for (id, path, sample) in readings {
            oracle.handle_sample(SubflowKey(id.0), &netpath(*path), sample);
        }
        self.known.retain(|id, _| {
            let stays = readings.iter().any(|(known, ..)| known == id);
            if !stays {
                oracle.handle_closed(SubflowKey(id.0));
            }
            stays
        });
        oracle.handle_timeout(now);
        while let Some(event) = oracle.poll_event() {
            let OracleEvent::Underperforms { netpath: found, symptom, .. } = event else { continue };
            let path = readings.iter().map(|(_, path, _)| *path).find(|path| netpath(*path) == found);
            let suspicion = match symptom {
                Symptom::Loss => Suspicion::Loss,
                Symptom::Retransmissions => Suspicion::Retransmissions,
                Symptom::Timeout => Suspicion::Timeout,
            };
            if let Some(path) = path {
                session.suspect_path(path, suspicion, now);
            }
        }
    }
}
