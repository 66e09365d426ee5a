use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use multiway_core::paths::{
    NetworkIdentity, Observation, PathEstimate, PathId, PathInfo, PathState, Permission, Preference,
    TcpSample, order,
};
use multiway_core::units::Timestamp;
use multiway_edge::socket;
use multiway_edge::watch::{self, Watcher};
use socket2::Socket;
use tokio::net::{TcpSocket, UdpSocket};
use tokio::task::JoinSet;

use super::clock::now;
use super::error::{ConnectError, PathTableError};
use super::memory::Memory;
use super::portal::{self, PortalProbe};
use super::sampler::{self, lock};
use super::state::State;
use super::stream::{ConnectionId, TrackedStream};
use crate::config::PathOverride;

/// A connection given up sooner than this says nothing of the path: a SYN that was lost is sent
/// again after 1 s (RFC 6298 section 2).
const LEAST_PATIENCE: Duration = Duration::from_secs(1);

/// What a path table is told.
#[derive(Debug, Clone, Default)]
pub struct PathTableConfig {
    /// Which interfaces may carry anything.
    pub permission: Permission,
    /// Corrections to what is found out about an interface, by its name.
    pub overrides: BTreeMap<String, PathOverride>,
    /// Firewall mark of all sockets, by which interception leaves them alone.
    pub mark: Option<u32>,
    /// Where measurements are kept between runs, see [`super::default_history_file`]; nowhere when
    /// absent.
    pub history: Option<PathBuf>,
    /// What makes one path better than another.
    pub preference: Preference,
}

/// One path as status shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PathSnapshot {
    /// What is known of it apart from measurements.
    pub info: PathInfo,
    /// True when the owner lets Multiway use it.
    pub is_permitted: bool,
    /// What is believed of it now.
    pub estimate: PathEstimate,
    /// Payload bytes moved over it since midnight UTC.
    pub bytes_today: u64,
    /// TCP connections open on it.
    pub active_connections: usize,
}

/// All paths of this device. Clones are the same table.
#[derive(Debug, Clone)]
pub struct PathTable {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    state: Arc<State>,
    /// Here and not in the state, which the watcher's thread holds.
    _watcher: Option<Watcher>,
    /// The sampler, and the search for portals when there is one. They end with the table.
    tasks: Mutex<JoinSet<()>>,
}

impl PathTable {
    /// Watches the interfaces of the calling thread's network namespace.
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime.
    pub fn start(config: PathTableConfig) -> Result<Self, PathTableError> {
        let first = watch::snapshot()?;
        check_names(&config.permission, &first)?;
        let state = Arc::new(State::new(config, first));
        let watched = Arc::clone(&state);
        let watcher = Watcher::start(move |paths| watched.replace(paths))?;
        Ok(Self::over(state, Some(watcher)))
    }

    /// A table of the given paths, which stay until [`Self::replace`] gives others: for tests on
    /// the loopback interface, and for paths that are found by other means.
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime.
    pub fn with_paths(paths: Vec<PathInfo>, config: PathTableConfig) -> Result<Self, PathTableError> {
        check_names(&config.permission, &paths)?;
        Ok(Self::over(Arc::new(State::new(config, paths)), None))
    }

    fn over(state: Arc<State>, watcher: Option<Watcher>) -> Self {
        let mut tasks = JoinSet::new();
        tasks.spawn(sampler::run(Arc::downgrade(&state.registry)));
        Self { inner: Arc::new(Inner { state, _watcher: watcher, tasks: Mutex::new(tasks) }) }
    }

    /// Asks `probe` over each path from now on, and takes paths behind a captive portal out of
    /// [`Self::usable`] until it lets them through. Nothing is asked unless this is called.
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime.
    pub fn look_for_portals(&self, probe: PortalProbe) {
        lock(&self.inner.tasks).spawn(portal::run(Arc::downgrade(&self.inner.state), probe));
    }

    /// Puts other paths in the place of those of [`Self::with_paths`].
    pub fn replace(&self, paths: Vec<PathInfo>) {
        self.state().replace(paths);
    }

    /// All interfaces that could be paths, usable, permitted or not.
    pub fn all(&self) -> Vec<PathInfo> {
        self.state().all.borrow().to_vec()
    }

    /// What is known of one path, permitted or not.
    pub fn get(&self, path: PathId) -> Option<PathInfo> {
        self.state().all.borrow().iter().find(|info| info.id == path).cloned()
    }

    /// What the user would rather have.
    pub fn preference(&self) -> Preference {
        self.state().config.preference
    }

    /// Paths that may be used now, the one to use first in front.
    pub fn usable(&self) -> Vec<PathInfo> {
        self.usable_for("")
    }

    /// Paths that may be used now, with the best for `destination` (a host's name, or its address
    /// when it has none) in front. One on which connections just failed comes last.
    pub fn usable_for(&self, destination: &str) -> Vec<PathInfo> {
        let mut paths: Vec<PathInfo> = self
            .state()
            .permitted
            .borrow()
            .iter()
            .filter(|path| path.state == PathState::Up)
            .cloned()
            .collect();
        let order = order(&paths, |path| self.estimate(path, destination), self.state().config.preference);
        paths.sort_by_key(|path| {
            let is_suspect = self.state().registry.is_suspect(path.id);
            (is_suspect, order.iter().position(|id| *id == path.id))
        });
        paths
    }

    /// The permitted paths, whatever their state; changes whenever anything of them does.
    pub fn subscribe(&self) -> tokio::sync::watch::Receiver<Arc<Vec<PathInfo>>> {
        self.state().permitted.subscribe()
    }

    /// What to expect of a path towards `destination`, a host's name or its address.
    pub fn estimate(&self, path: PathId, destination: &str) -> PathEstimate {
        let history = self.network(path).and_then(|network| self.memory().lookup(&network, destination));
        self.state().registry.estimate(path, history.as_ref())
    }

    /// Remembers that `bytes` came from `destination` over `path` in `duration`, first byte to last.
    pub fn record_transfer(
        &self,
        path: PathId,
        destination: &str,
        bytes: u64,
        duration: Duration,
        rtt: Option<Duration>,
    ) {
        self.record(path, destination, &Observation::of_transfer(bytes, duration, rtt));
    }

    /// Remembers what a transfer from `destination` over `path` showed. A loss rate that it leaves
    /// open is the path's.
    pub fn record(&self, path: PathId, destination: &str, observation: &Observation) {
        let Some(network) = self.network(path) else { return };
        let loss_ppm = observation.loss_ppm.or(self.state().registry.estimate(path, None).loss_ppm);
        self.memory().record(&network, destination, &Observation { loss_ppm, ..*observation });
    }

    /// Remembers for a while that `host` gave other bytes over `path` than over another (F8).
    pub fn mark_inconsistent(&self, host: &str, path: PathId) {
        if let Some(network) = self.network(path) {
            self.memory().mark_inconsistent(&network, host);
        }
    }

    /// True while what `host` gives over `path` is not to be mixed with what it gives elsewhere.
    pub fn is_inconsistent(&self, host: &str, path: PathId) -> bool {
        self.network(path).is_some_and(|network| self.memory().is_inconsistent(&network, host))
    }

    /// Opens a TCP connection over `path`.
    pub async fn connect(
        &self,
        path: PathId,
        remote: SocketAddr,
        timeout: Duration,
    ) -> Result<TrackedStream, ConnectError> {
        self.connect_prepared(path, remote, timeout, |_| ()).await
    }

    /// The same with a socket that `prepare` has seen before.
    pub(crate) async fn connect_prepared(
        &self,
        path: PathId,
        remote: SocketAddr,
        timeout: Duration,
        prepare: impl FnOnce(&Socket),
    ) -> Result<TrackedStream, ConnectError> {
        let (interface, binding) = self.state().binding(path, remote)?;
        let begun = now();
        let socket = socket::tcp(&binding, remote)
            .map_err(|source| ConnectError::Bind { interface: interface.clone(), source })?;
        prepare(&socket);
        let connecting = TcpSocket::from_std_stream(socket.into()).connect(remote);
        let connected = match tokio::time::timeout(timeout, connecting).await {
            Ok(Ok(stream)) => Ok(stream),
            Ok(Err(source)) => Err(ConnectError::Connect { interface: interface.clone(), remote, source }),
            Err(_) => Err(ConnectError::TimedOut { interface: interface.clone(), remote, timeout }),
        };
        let stream = connected.inspect_err(|error| {
            let is_hasty =
                matches!(error, ConnectError::TimedOut { timeout, .. } if *timeout < LEAST_PATIENCE);
            if !error.is_refusal() && !is_hasty {
                self.state().registry.fail(path);
            }
        })?;
        let id = self.state().next_connection.fetch_add(1, Ordering::Relaxed);
        let registry = Arc::clone(&self.state().registry);
        Ok(TrackedStream::new(id, (path, interface), stream, now() - begun, registry))
    }

    /// A UDP socket over `path`, connected to `remote`. A [`ConnectError`] is the source of a
    /// failure that is not the kernel's.
    pub fn udp(&self, path: PathId, remote: SocketAddr) -> io::Result<UdpSocket> {
        let (_, binding) = self.state().binding(path, remote)?;
        let socket = socket::udp(&binding, remote)?;
        // A datagram socket connects without sending anything, and so at once.
        socket.connect(&remote.into())?;
        UdpSocket::from_std(socket.into())
    }

    /// The sampler's last reading of a connection that is still open.
    pub fn latest_sample(&self, connection: ConnectionId) -> Option<TcpSample> {
        self.state().registry.latest(connection)
    }

    /// Firewall mark by which interception leaves a socket alone.
    pub fn mark(&self) -> Option<u32> {
        self.state().config.mark
    }

    /// The engine's clock, by which samples are stamped.
    pub fn now(&self) -> Timestamp {
        now()
    }

    /// Every path as status shows it.
    pub fn snapshot(&self) -> Vec<PathSnapshot> {
        let state = self.state();
        let open = state.registry.open_connections();
        self.all()
            .into_iter()
            .map(|info| PathSnapshot {
                is_permitted: state.config.permission.allows(&info.interface),
                estimate: self.estimate(info.id, ""),
                bytes_today: state.registry.memory.bytes_today(&info.interface),
                active_connections: open.get(&info.id).copied().unwrap_or(0),
                info,
            })
            .collect()
    }

    fn state(&self) -> &State {
        &self.inner.state
    }

    fn memory(&self) -> &Memory {
        &self.inner.state.registry.memory
    }

    fn network(&self, path: PathId) -> Option<NetworkIdentity> {
        self.state().all.borrow().iter().find(|info| info.id == path).map(|info| info.network.clone())
    }
}

/// An interface asked for by name must be there; one that fits a pattern may come later.
fn check_names(permission: &Permission, paths: &[PathInfo]) -> Result<(), PathTableError> {
    let named = permission.only.iter().flatten().filter(|pattern| pattern.is_literal());
    for pattern in named {
        if !paths.iter().any(|path| path.interface == pattern.0) {
            return Err(PathTableError::UnknownInterface {
                name: pattern.0.clone(),
                present: paths.iter().map(|path| path.interface.clone()).collect(),
            });
        }
    }
    Ok(())
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;

#[cfg(test)]
#[path = "kernel_tests.rs"]
mod kernel_tests;
