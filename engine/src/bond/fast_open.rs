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

/// How long a network stays known for dropping SYNs with data; Linux forgets that of its own after an hour
/// (`net.ipv4.tcp_fastopen_blackhole_timeout_sec`) or less.
const MEMORY: Duration = Duration::from_secs(24 * 3600);

/// What this device knows of its networks, for all sessions.
#[derive(Debug, Default)]
pub(super) struct FastOpen {
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    /// Networks that drop SYNs with data, and since when.
    dropping: HashMap<NetworkIdentity, Instant>,
    /// Connections that won the race, for the next subflow.
    won: HashMap<PathId, (SocketAddr, TrackedStream)>,
}

impl FastOpen {
    /// Whether a SYN may carry data in this network.
    pub(super) fn is_worth_trying(&self, network: &NetworkIdentity) -> bool {
        self.known().dropping.get(network).is_none_or(|since| since.elapsed() > MEMORY)
    }

    /// In this network a plain connection won.
    pub(super) fn note_dropping(&self, network: NetworkIdentity) {
        self.known().dropping.insert(network, Instant::now());
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

impl Race {
    /// The plain connection, if it was made while the SYN with data was still without an answer.
    pub(super) async fn run(self) -> Option<TrackedStream> {
        sleep(self.round_trip.map_or(LEAST_WAIT, |rtt| LEAST_WAIT.max(rtt * WAIT_ROUND_TRIPS))).await;
        if self.is_answered() {
            return None;
        }
        let set_up = |socket: &socket2::Socket| prepare(socket);
        let plain = self.paths.connect_prepared(self.path, self.remote, PLAIN_WAIT, set_up).await.ok()?;
        (!self.is_answered()).then_some(plain)
    }

    /// While it waits for the answer to its SYN, a connection has no peer yet.
    fn is_answered(&self) -> bool {
        self.transport.peer_addr().is_ok()
    }
}
