use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};

use multiway_core::flow::names::is_no_host;
use multiway_core::paths::{Family, NetworkIdentity, PathId, PathInfo, PathState};
use multiway_edge::socket::Binding;
use tokio::sync::watch::Sender;

use super::error::ConnectError;
use super::memory::Memory;
use super::sampler::{Registry, lock};
use super::table::PathTableConfig;

/// What the watcher's thread changes and everything else reads.
#[derive(Debug)]
pub(super) struct State {
    pub(super) config: PathTableConfig,
    /// What was found, uncorrected.
    found: Mutex<Found>,
    /// All interfaces, those denied included.
    pub(super) all: Sender<Arc<Vec<PathInfo>>>,
    /// Those permitted.
    pub(super) permitted: Sender<Arc<Vec<PathInfo>>>,
    pub(super) registry: Arc<Registry>,
    pub(super) next_connection: AtomicU64,
}

#[derive(Debug, Default)]
struct Found {
    paths: Vec<PathInfo>,
    /// Paths whose present network has a portal before it.
    portals: BTreeSet<(PathId, NetworkIdentity)>,
}

impl State {
    pub(super) fn new(config: PathTableConfig, paths: Vec<PathInfo>) -> Self {
        let memory = Memory::load(config.history.as_deref());
        let state = Self {
            config,
            found: Mutex::default(),
            all: Sender::default(),
            permitted: Sender::default(),
            registry: Arc::new(Registry::new(memory)),
            next_connection: AtomicU64::new(0),
        };
        state.replace(paths);
        state
    }

    /// Takes in which interfaces there are.
    pub(super) fn replace(&self, paths: Vec<PathInfo>) {
        self.change(|found| {
            found
                .portals
                .retain(|(id, network)| paths.iter().any(|path| path.id == *id && path.network == *network));
            found.paths = paths;
        });
    }

    /// Takes in whether a portal stands before a network.
    pub(super) fn set_portal(&self, path: &PathInfo, has_portal: bool) {
        let key = (path.id, path.network.clone());
        self.change(|found| {
            // The path may have joined another network while it was asked.
            if has_portal && found.paths.iter().any(|now| now.id == key.0 && now.network == key.1) {
                found.portals.insert(key);
            } else {
                found.portals.remove(&key);
            }
        });
    }

    /// Changes what was found and publishes what follows, one change after another.
    fn change(&self, change: impl FnOnce(&mut Found)) {
        let mut found = lock(&self.found);
        change(&mut found);
        let paths: Vec<PathInfo> =
            found.paths.iter().map(|path| self.corrected(path, &found.portals)).collect();
        for old in self.all.borrow().iter() {
            let stays = |new: &PathInfo| new.id == old.id && new.network == old.network;
            if !paths.iter().any(stays) {
                self.registry.forget(old.id);
            }
        }
        let permitted: Vec<PathInfo> =
            paths.iter().filter(|path| self.config.permission.allows(&path.interface)).cloned().collect();
        self.all.send_if_modified(|known| update(known, paths));
        self.permitted.send_if_modified(|known| update(known, permitted));
    }

    fn corrected(&self, path: &PathInfo, portals: &BTreeSet<(PathId, NetworkIdentity)>) -> PathInfo {
        let mut path = path.clone();
        if let Some(correction) = self.config.overrides.get(&path.interface) {
            path.kind = correction.kind.unwrap_or(path.kind);
            path.metered = correction.metered.unwrap_or(path.metered);
            if !correction.dns.is_empty() {
                path.dns_servers.clone_from(&correction.dns);
            }
        }
        if path.state == PathState::Up && portals.contains(&(path.id, path.network.clone())) {
            path.state = PathState::Captive;
        }
        path
    }

    /// How a socket to `remote` is bound to `path`, if it may be.
    pub(super) fn binding(
        &self,
        path: PathId,
        remote: SocketAddr,
    ) -> Result<(String, Binding), ConnectError> {
        let all = self.all.borrow();
        let info = all.iter().find(|info| info.id == path).ok_or(ConnectError::UnknownPath(path))?;
        let interface = info.interface.clone();
        if !self.config.permission.allows(&interface) {
            return Err(ConnectError::Denied { interface });
        }
        // Without a default route the interface still reaches its own neighbours, and behind a
        // portal the portal.
        if matches!(info.state, PathState::Down | PathState::NoAddress) {
            return Err(ConnectError::NotUsable { interface, state: info.state });
        }
        let is_loopback = info.addresses.iter().any(IpAddr::is_loopback);
        if is_no_host(remote.ip()) && !is_loopback {
            return Err(ConnectError::NoHost { interface, remote });
        }
        let Some(source) = info.source_for(remote.ip()) else {
            return Err(ConnectError::NoAddress { interface, family: Family::of(remote.ip()), remote });
        };
        let binding = Binding { interface: interface.clone(), source: Some(source), mark: self.config.mark };
        Ok((interface, binding))
    }
}

fn update(known: &mut Arc<Vec<PathInfo>>, new: Vec<PathInfo>) -> bool {
    if **known == new {
        return false;
    }
    *known = Arc::new(new);
    true
}
