use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use multiway_core::flow::names::{FAMILIES, HostName, Outcome, Suspicion};
use multiway_core::paths::{Family, PathId, Preference};

use super::error::ResolveError;
use super::lookup::{Shared, SharedResult, families_of};
use super::uplinks::Uplinks;
use super::upstreams::Upstreams;

/// Finds addresses per path and remembers them; clones share everything.
#[derive(Clone)]
pub struct Resolver {
    pub(super) shared: Arc<Shared>,
}

impl std::fmt::Debug for Resolver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Resolver").field("upstreams", &self.shared.upstreams).finish_non_exhaustive()
    }
}

impl Resolver {
    /// A resolver that asks `upstreams` over `uplinks`, over all of them at once.
    pub fn new(uplinks: Arc<dyn Uplinks>, upstreams: Upstreams) -> Self {
        Self { shared: Arc::new(Shared::new(uplinks, upstreams, Preference::Fast)) }
    }

    /// The same for what the user prefers: thrifty, metered paths are asked only when the others' servers
    /// are silent, fail, or lie.
    pub fn preferring(preference: Preference, uplinks: Arc<dyn Uplinks>, upstreams: Upstreams) -> Self {
        Self { shared: Arc::new(Shared::new(uplinks, upstreams, preference)) }
    }

    /// The addresses of `host` for connections over `path`, never empty.
    ///
    /// Addresses stand for themselves and names in the hosts file have their addresses there. A
    /// name that is being looked up already is not asked for twice.
    pub async fn resolve(&self, path: PathId, host: &str) -> Result<Vec<IpAddr>, ResolveError> {
        let literal = host.strip_prefix('[').and_then(|h| h.strip_suffix(']')).unwrap_or(host);
        if let Ok(address) = literal.parse() {
            return Ok(vec![address]);
        }
        let name = HostName::parse(host)?;
        if let Some(addresses) = self.fixed(&name) {
            return Ok(addresses);
        }
        let paths = self.shared.paths();
        let Some(path) = paths.into_iter().find(|info| info.id == path) else {
            return Err(ResolveError::PathUnusable { name, path });
        };
        let families = families_of(&path);
        if let Some(known) = self.shared.known(&name, &families, path.id) {
            return known;
        }
        let in_flight = InFlight::join(&self.shared, name.clone(), path.id);
        let look_up = || Shared::look_up(&self.shared, &path, &name, &families);
        in_flight.result.get_or_init(look_up).await.clone()
    }

    /// The name to which `address` was most recently an answer: for people, who may be told a wrong one.
    pub fn name_of(&self, address: IpAddr) -> Option<HostName> {
        self.shared.memory().name_of(address, self.shared.now()).cloned()
    }

    /// True when some path was told lately that `name` has `address`.
    pub fn is_answer(&self, name: &HostName, address: IpAddr) -> bool {
        self.shared.memory().is_answer(name, address, self.shared.now())
    }

    /// The addresses `path` should use in place of an intercepted `address` of `name`: those that its
    /// own servers give. `None` when `name` is not known to have that address, or the path finds none.
    pub async fn sibling_addresses(
        &self,
        name: &HostName,
        address: IpAddr,
        path: PathId,
    ) -> Option<Vec<IpAddr>> {
        if !self.is_answer(name, address) {
            return None;
        }
        let known = self.shared.memory().addresses(name, path, self.shared.now());
        if known.is_some() {
            return known;
        }
        self.resolve(path, name.as_str()).await.ok()
    }

    /// The addresses of a name that is not asked for: from the hosts file, or of the loopback.
    pub fn fixed(&self, name: &HostName) -> Option<Vec<IpAddr>> {
        self.shared.upstreams.fixed(name)
    }

    /// Takes in addresses of `name` that `path` was told by other means than DNS.
    pub fn learn(&self, path: PathId, name: &HostName, addresses: &[IpAddr], ttl: Duration) {
        for family in FAMILIES {
            let addresses: Vec<_> = addresses.iter().copied().filter(|a| Family::of(*a) == family).collect();
            if !addresses.is_empty() {
                self.shared.remember(name, family, path, Outcome::Addresses(addresses), ttl);
            }
        }
    }

    /// Has `tell` called for suspicious answers from now on, of each name and path once in a while. It
    /// is called by whoever asked, and must not wait. Only the first call counts.
    pub fn on_suspicion(&self, tell: impl Fn(&HostName, PathId, Suspicion) + Send + Sync + 'static) {
        // A second listener has no use.
        let _ = self.shared.teller.set(Box::new(tell));
    }

    /// What is suspect in the answers held for `name`, per path.
    pub fn suspicions(&self, name: &HostName) -> Vec<(PathId, Suspicion)> {
        self.shared.memory().suspicions(name, self.shared.now())
    }
}

/// Takes part in a look-up that others may have begun; the last one to leave removes it.
struct InFlight<'a> {
    shared: &'a Shared,
    key: (HostName, PathId),
    result: SharedResult,
}

impl<'a> InFlight<'a> {
    fn join(shared: &'a Shared, name: HostName, path: PathId) -> Self {
        let key = (name, path);
        let result = Arc::clone(shared.in_flight().entry(key.clone()).or_default());
        Self { shared, key, result }
    }
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        let mut in_flight = self.shared.in_flight();
        // Two holders are the table and this one; who comes after a result asks the memory first.
        let is_over = self.result.initialized() || Arc::strong_count(&self.result) <= 2;
        if is_over && in_flight.get(&self.key).is_some_and(|r| Arc::ptr_eq(r, &self.result)) {
            in_flight.remove(&self.key);
        }
    }
}

#[cfg(test)]
mod tests;
