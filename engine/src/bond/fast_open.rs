//! Data in SYNs (TCP Fast Open) on networks that may drop them: a plain connection races a SYN with data that
//! stays without an answer, and networks in which it won are remembered.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use multiway_core::paths::{NetworkIdentity, PathId};
use tokio::time::{Instant, sleep};

use super::connection::Transport;
use super::subflow::prepare;
use crate::paths::{PathTable, TrackedStream};

/// A SYN with data has so long for its answer before a plain one goes out: the kernel sends it again, then without
/// data, only after 1 s (RFC 6298 section 2.1).
const LEAST_WAIT: Duration = Duration::from_millis(200);

/// The same in round trips, where one is known and longer.
const WAIT_ROUND_TRIPS: u32 = 3;

/// How long the plain connection may take; the SYN with data is sent again meanwhile.
const PLAIN_WAIT: Duration = Duration::from_secs(4);

/// How long a network stays known for dropping SYNs with data. The first time it may have been a packet lost like
/// any other, on a network whose failure is what joins are for, so it is tried again soon; after each further time
/// it stays known for twice as long.
const FIRST_MEMORY: Duration = Duration::from_secs(60);
const LONGEST_MEMORY: Duration = Duration::from_secs(24 * 3600);

/// What this device knows of its networks, for all sessions.
#[derive(Debug, Default)]
pub(super) struct FastOpen {
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    /// Networks that seem to drop SYNs with data.
    dropping: HashMap<NetworkIdentity, Dropping>,
    /// Connections that won the race, for the next subflow.
    won: HashMap<PathId, (SocketAddr, TrackedStream)>,
}

/// What is remembered of a network in which plain connections won.
#[derive(Debug)]
struct Dropping {
    since: Instant,
    stays: Duration,
}

impl FastOpen {
    /// Whether a SYN may carry data in this network.
    pub(super) fn is_worth_trying(&self, network: &NetworkIdentity) -> bool {
        self.known().dropping.get(network).is_none_or(|known| known.since.elapsed() >= known.stays)
    }

    /// In this network a plain connection won.
    pub(super) fn note_dropping(&self, network: NetworkIdentity) {
        let mut known = self.known();
        let before = known.dropping.get(&network);
        let stays = before.map_or(FIRST_MEMORY, |before| (before.stays * 2).min(LONGEST_MEMORY));
        known.dropping.insert(network, Dropping { since: Instant::now(), stays });
    }

    /// In this network a SYN with data was answered.
    pub(super) fn note_passing(&self, network: &NetworkIdentity) {
        self.known().dropping.remove(network);
    }

    /// Keeps a connection that won for the next subflow of its path.
    pub(super) fn keep(&self, path: PathId, remote: SocketAddr, connection: TrackedStream) {
        self.known().won.insert(path, (remote, connection));
    }

    /// The connection that was kept, if it leads there.
    pub(super) fn take(&self, path: PathId, remote: SocketAddr) -> Option<TrackedStream> {
        let (to, connection) = self.known().won.remove(&path)?;
        (to == remote).then_some(connection)
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A connection whose SYN carries data.
#[derive(Debug)]
pub(super) struct Race {
    pub(super) paths: PathTable,
    pub(super) path: PathId,
    pub(super) remote: SocketAddr,
    pub(super) round_trip: Option<Duration>,
    pub(super) transport: Arc<Transport>,
}

/// How a race ended.
pub(super) enum Verdict {
    /// The SYN with data was answered in time.
    Answered,
    /// The plain connection was made while the SYN with data was still without an answer.
    Dropped(TrackedStream),
    /// The network is slow, or leads nowhere.
    Unknown,
}

impl Race {
    pub(super) async fn run(self) -> Verdict {
        sleep(self.round_trip.map_or(LEAST_WAIT, |rtt| LEAST_WAIT.max(rtt * WAIT_ROUND_TRIPS))).await;
        if self.is_answered() {
            return Verdict::Answered;
        }
        let set_up = |socket: &socket2::Socket| prepare(socket);
        match self.paths.connect_prepared(self.path, self.remote, PLAIN_WAIT, set_up).await {
            Ok(plain) if !self.is_answered() => Verdict::Dropped(plain),
            _ => Verdict::Unknown,
        }
    }

    /// While it waits for the answer to its SYN, a connection has no peer yet.
    fn is_answered(&self) -> bool {
        self.transport.peer_addr().is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_network_is_tried_again_later_each_time_it_seems_to_drop_and_at_once_after_an_answer() {
        let known = FastOpen::default();
        let network = NetworkIdentity("here".to_owned());
        assert!(known.is_worth_trying(&network));
        for stays in [FIRST_MEMORY, FIRST_MEMORY * 2, FIRST_MEMORY * 4] {
            known.note_dropping(network.clone());
            tokio::time::advance(stays - Duration::from_secs(1)).await;
            assert!(!known.is_worth_trying(&network), "within {stays:?}");
            tokio::time::advance(Duration::from_secs(1)).await;
            assert!(known.is_worth_trying(&network), "after {stays:?}");
        }
        known.note_passing(&network);
        known.note_dropping(network.clone());
        tokio::time::advance(FIRST_MEMORY).await;
        assert!(known.is_worth_trying(&network), "it begins anew");
    }
}
