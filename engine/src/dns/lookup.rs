//! How a name is looked up.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use hickory_proto::op::ResponseCode;
use multiway_core::flow::doubts::Doubts;
use multiway_core::flow::names::{FAMILIES, HostName, NameMemory, Outcome, Suspicion, suspicion_of};
use multiway_core::paths::{Family, NetworkIdentity, PathId, PathInfo, Preference};
use multiway_core::units::Timestamp;
use tokio::sync::OnceCell;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::timeout;

use super::error::ResolveError;
use super::exchange::{ExchangeError, exchange};
use super::message::{Envelope, Malformed, address_query, read_answer};
use super::uplinks::Uplinks;
use super::upstreams::Upstreams;

/// Names remembered: a browser's day holds a few thousand.
const MEMORY_CAPACITY: usize = 10_000;

/// How long one family's addresses wait for the other's, RFC 8305 section 3.
const FAMILY_GRACE: Duration = Duration::from_millis(50);

/// How long a path's own servers are waited for before the other paths' are asked as well.
pub(super) const PATIENCE: Duration = Duration::from_secs(1);

/// How long servers that did not answer are asked beside the other paths' from the start.
const SILENCE: Duration = Duration::from_secs(30);

/// How long a doubtful answer waits for what the other paths say.
pub(super) const DOUBT_GRACE: Duration = Duration::from_millis(300);

/// Open-ended CNAME chains followed, as many as common resolvers follow.
const MAX_CONTINUATIONS: usize = 8;

/// A look-up that several may wait for.
pub(super) type SharedResult = Arc<OnceCell<Result<Vec<IpAddr>, ResolveError>>>;

/// Is told of suspicious answers.
pub(super) type Teller = Box<dyn Fn(&HostName, PathId, Suspicion) + Send + Sync>;

/// What all clones of a resolver share.
pub(super) struct Shared {
    pub(super) uplinks: Arc<dyn Uplinks>,
    pub(super) upstreams: Upstreams,
    preference: Preference,
    memory: Mutex<NameMemory>,
    in_flight: Mutex<BTreeMap<(HostName, PathId), SharedResult>>,
    /// Paths whose servers did not answer lately, and until when that is assumed to last.
    silent: Mutex<BTreeMap<PathId, Timestamp>>,
    /// The server that answered last on each path, which is asked first.
    answered: Mutex<BTreeMap<PathId, SocketAddr>>,
    /// The network in which each path's answers were learned.
    networks: Mutex<BTreeMap<PathId, NetworkIdentity>>,
    doubts: Mutex<Doubts>,
    pub(super) teller: OnceLock<Teller>,
}

/// The families in which a path can reach anything.
pub(super) fn families_of(path: &PathInfo) -> Vec<Family> {
    let has = |family: &Family| path.addresses.iter().any(|a| Family::of(*a) == *family);
    let families: Vec<_> = FAMILIES.into_iter().filter(has).collect();
    if families.is_empty() { FAMILIES.to_vec() } else { families }
}

impl Shared {
    pub(super) fn new(uplinks: Arc<dyn Uplinks>, upstreams: Upstreams, preference: Preference) -> Self {
        Self {
            uplinks,
            upstreams,
            preference,
            memory: Mutex::new(NameMemory::new(MEMORY_CAPACITY)),
            in_flight: Mutex::default(),
            silent: Mutex::default(),
            answered: Mutex::default(),
            networks: Mutex::default(),
            doubts: Mutex::default(),
            teller: OnceLock::new(),
        }
    }

    pub(super) fn memory(&self) -> MutexGuard<'_, NameMemory> {
        lock(&self.memory)
    }

    pub(super) fn in_flight(&self) -> MutexGuard<'_, BTreeMap<(HostName, PathId), SharedResult>> {
        lock(&self.in_flight)
    }

    /// What answers are remembered by: their life goes on while the device sleeps.
    pub(super) fn now(&self) -> Timestamp {
        crate::paths::now_with_sleep()
    }

    /// What the memory holds for all of `families`; `None` when something must be asked.
    pub(super) fn known(
        &self,
        name: &HostName,
        families: &[Family],
        path: PathId,
    ) -> Option<Result<Vec<IpAddr>, ResolveError>> {
        let memory = self.memory();
        let now = self.now();
        let mut outcomes = Vec::new();
        for family in families {
            outcomes.push(memory.lookup(name, *family, path, now)?.outcome);
        }
        Some(combine(name, path, outcomes))
    }

    /// Asks `path`'s servers, and the other paths' when those are silent or their answer doubtful.
    pub(super) async fn look_up(
        shared: &Arc<Self>,
        path: &PathInfo,
        name: &HostName,
        families: &[Family],
    ) -> Result<Vec<IpAddr>, ResolveError> {
        let others: Vec<_> = shared.paths().into_iter().filter(|other| other.id != path.id).collect();
        let is_silent = shared.is_silent(path.id);
        if is_silent && let Some(borrowed) = shared.borrow(name, families, &others) {
            return Ok(borrowed);
        }
        let free: Vec<_> = others.iter().filter(|other| !shared.spares(other)).cloned().collect();
        let second_opinion = Self::ask_others(shared, others, name, families);
        let own = Self::ask_families(shared, path, name, families);
        tokio::pin!(second_opinion, own);

        let patience = if is_silent { Duration::ZERO } else { PATIENCE };
        let own = match timeout(patience, &mut own).await {
            Ok(Err(error)) => {
                let other = second_opinion.await;
                return shared.without_own(path.id, name, other, error);
            }
            Ok(Ok(outcomes)) => outcomes,
            // Another path's answer is better than none.
            Err(_) => tokio::select! {
                own = &mut own => match own {
                    Ok(outcomes) => outcomes,
                    Err(error) => {
                        let other = second_opinion.await;
                        return shared.without_own(path.id, name, other, error);
                    }
                },
                other = &mut second_opinion => {
                    if other.is_some() {
                        return shared.without_own(path.id, name, other, ExchangeError::TimedOut);
                    }
                    return match own.await {
                        Ok(outcomes) => combine(name, path.id, outcomes),
                        Err(error) => shared.without_own(path.id, name, None, error),
                    };
                }
            },
        };
        // An answer that cannot be right is worth a packet on any path; that a name does not exist is not.
        let is_suspicious = own.iter().any(|o| suspicion_of(name, o).is_some());
        if is_suspicious || own.contains(&Outcome::NoSuchName) {
            // The answers go into the memory, which prefers the good ones.
            if is_suspicious {
                let _ = timeout(DOUBT_GRACE, second_opinion).await;
            } else {
                let _ = timeout(DOUBT_GRACE, Self::ask_others(shared, free, name, families)).await;
            }
            if let Some(better) = shared.remembered(name, families, path.id) {
                return Ok(better);
            }
        }
        combine(name, path.id, own)
    }

    /// The result for a path whose servers said nothing of use: what another path was told.
    fn without_own(
        &self,
        path: PathId,
        name: &HostName,
        other: Option<Vec<Outcome>>,
        error: ExchangeError,
    ) -> Result<Vec<IpAddr>, ResolveError> {
        let Some(outcomes) = other else {
            return Err(ResolveError::Failed { name: name.clone(), path, reason: error.to_string() });
        };
        lock(&self.silent).insert(path, self.now() + SILENCE);
        combine(name, path, outcomes)
    }

    fn is_silent(&self, path: PathId) -> bool {
        lock(&self.silent).get(&path).is_some_and(|until| self.now() < *until)
    }

    /// Addresses that the memory holds for use on `path`, whatever else would have to be asked.
    fn remembered(&self, name: &HostName, families: &[Family], path: PathId) -> Option<Vec<IpAddr>> {
        let mut addresses = self.memory().addresses(name, path, self.now())?;
        addresses.retain(|address| families.contains(&Family::of(*address)));
        (!addresses.is_empty()).then_some(addresses)
    }

    fn borrow(&self, name: &HostName, families: &[Family], others: &[PathInfo]) -> Option<Vec<IpAddr>> {
        others.iter().find_map(|other| self.remembered(name, families, other.id))
    }

    /// The paths that may be used now. What was learned on a path that has joined another network
    /// since is forgotten.
    pub(super) fn paths(&self) -> Vec<PathInfo> {
        let paths = self.uplinks.usable();
        let mut networks = lock(&self.networks);
        for path in &paths {
            let before = networks.insert(path.id, path.network.clone());
            if before.is_some_and(|before| before != path.network) {
                self.memory().forget_path(path.id);
                lock(&self.silent).remove(&path.id);
            }
        }
        paths
    }

    /// Whether a path is left alone while others will do.
    pub(super) fn spares(&self, path: &PathInfo) -> bool {
        path.metered && self.preference != Preference::Fast
    }

    /// Asks every one of `others`; the first answer with addresses ends it, else the first.
    async fn ask_others(
        shared: &Arc<Self>,
        others: Vec<PathInfo>,
        name: &HostName,
        families: &[Family],
    ) -> Option<Vec<Outcome>> {
        let mut asking = JoinSet::new();
        for other in others {
            let (shared, name, families) = (Arc::clone(shared), name.clone(), families.to_vec());
            asking.spawn(async move { Self::ask_families(&shared, &other, &name, &families).await });
        }
        let mut second_best = None;
        while let Some(answer) = asking.join_next().await {
            let Ok(Ok(outcomes)) = answer else { continue };
            let is_good = |o: &Outcome| {
                matches!(o, Outcome::Addresses(a) if !a.is_empty()) && suspicion_of(name, o).is_none()
            };
            if outcomes.iter().any(is_good) {
                return Some(outcomes);
            }
            second_best.get_or_insert(outcomes);
        }
        second_best
    }

    /// Asks for all families at once. Once one has addresses the others get a short grace; they
    /// are remembered even when they come later.
    async fn ask_families(
        shared: &Arc<Self>,
        path: &PathInfo,
        name: &HostName,
        families: &[Family],
    ) -> Result<Vec<Outcome>, ExchangeError> {
        let mut asking: JoinSet<_> = JoinSet::new();
        for (place, family) in families.iter().copied().enumerate() {
            let (shared, path, name) = (Arc::clone(shared), path.clone(), name.clone());
            let task: JoinHandle<_> = tokio::spawn(async move { shared.ask(&path, &name, family).await });
            // A task of its own goes on when this waiter is done with it.
            asking.spawn(async move { (place, task.await) });
        }
        let mut outcomes: Vec<Option<Outcome>> = vec![None; families.len()];
        let mut error = ExchangeError::TimedOut;
        loop {
            let has_addresses =
                outcomes.iter().flatten().any(|o| matches!(o, Outcome::Addresses(a) if !a.is_empty()));
            let next = if has_addresses {
                timeout(FAMILY_GRACE, asking.join_next()).await.unwrap_or(None)
            } else {
                asking.join_next().await
            };
            match next {
                Some(Ok((place, Ok(Ok(outcome))))) => outcomes[place] = Some(outcome),
                Some(Ok((_, Ok(Err(failed))))) => error = failed,
                Some(Ok((_, Err(panicked))) | Err(panicked)) => {
                    error = ExchangeError::Failed(panicked.to_string());
                }
                None => break,
            }
        }
        let outcomes: Vec<_> = outcomes.into_iter().flatten().collect();
        if outcomes.is_empty() { Err(error) } else { Ok(outcomes) }
    }

    /// Asks `path`'s servers for one family and remembers the answer.
    async fn ask(&self, path: &PathInfo, name: &HostName, family: Family) -> Result<Outcome, ExchangeError> {
        let mut target = name.clone();
        let mut ttl = Duration::MAX;
        for _ in 0..MAX_CONTINUATIONS {
            let query = address_query(&target, family, 0).map_err(|_| ExchangeError::BadQuery)?;
            let response = self.forward(path, &query).await?;
            let failed = |error: Malformed| ExchangeError::Failed(error.to_string());
            let code = Envelope::read(&response).map_err(failed)?.response_code;
            if !matches!(code, ResponseCode::NoError | ResponseCode::NXDomain) {
                return Err(ExchangeError::Failed(code.to_string()));
            }
            let answer = read_answer(&response, &target, family).map_err(failed)?;
            ttl = ttl.min(answer.ttl);
            if let Some(next) = answer.continues_at {
                target = next;
                continue;
            }
            self.remember(name, family, path.id, answer.outcome.clone(), ttl);
            return Ok(answer.outcome);
        }
        Err(ExchangeError::Failed("the chain of CNAMEs does not end".into()))
    }

    /// Puts `query` to `path`'s servers as it is, but for its id.
    pub(super) async fn forward(&self, path: &PathInfo, query: &[u8]) -> Result<Vec<u8>, ExchangeError> {
        let mut servers = self.upstreams.for_path(path);
        let answered = lock(&self.answered).get(&path.id).copied();
        // A stable sort: the others keep their order.
        servers.sort_by_key(|server| Some(*server) != answered);
        let (server, response) = exchange(Arc::clone(&self.uplinks), path.id, servers, query).await?;
        lock(&self.silent).remove(&path.id);
        lock(&self.answered).insert(path.id, server);
        Ok(response)
    }

    pub(super) fn remember(
        &self,
        name: &HostName,
        family: Family,
        path: PathId,
        outcome: Outcome,
        ttl: Duration,
    ) {
        let now = self.now();
        let suspicions = {
            let mut memory = self.memory();
            memory.remember(name, family, path, outcome, ttl, now);
            // Of all paths: what one path says may cast doubt on what another said before.
            memory.suspicions(name, now)
        };
        for (path, suspicion) in suspicions {
            tracing::debug!(%name, %path, %suspicion, "suspect DNS answer");
            if let Some(tell) = self.teller.get()
                && lock(&self.doubts).is_news(name, path, now)
            {
                tell(name, path, suspicion);
            }
        }
    }
}

/// One result from the outcomes of the families.
fn combine(name: &HostName, path: PathId, outcomes: Vec<Outcome>) -> Result<Vec<IpAddr>, ResolveError> {
    let is_denied = outcomes.iter().all(|outcome| *outcome == Outcome::NoSuchName);
    let addresses: Vec<_> = outcomes
        .into_iter()
        .filter_map(|outcome| match outcome {
            Outcome::Addresses(addresses) => Some(addresses),
            Outcome::NoSuchName => None,
        })
        .flatten()
        .collect();
    if !addresses.is_empty() {
        Ok(addresses)
    } else if is_denied {
        Err(ResolveError::NoSuchName { name: name.clone() })
    } else {
        Err(ResolveError::NoAddresses { name: name.clone(), path })
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
