//! The device's place with its relay: one session at a time for all flows, begun anew when it is lost.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use multiway_api::{EventDetail, HandoverStatus, RelayStatus};
use multiway_core::bond::wire::{CLOSE_SESSION, Destination as WireDestination, Host};
use multiway_core::bond::{Policy, Refusal, SessionConfig, StreamClass, backoff};
use multiway_core::flow::names::HostName;
use multiway_core::paths::{PathId, Preference};
use rustls::ClientConfig;
use thiserror::Error;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use super::fast_open::FastOpen;
use super::invite::Invite;
use super::session::{DeviceSession, Parting};
use super::shared::SharedSession;
use super::stream::BondStream;
use super::{codes, status, tls};
use crate::config::BondConfig;
use crate::dns::Resolver;
use crate::journal::Journal;
use crate::paths::PathTable;
use crate::proxy::tunnel::Destination;
use crate::relay::destinations::is_public;

/// The pause after the relay's word that the token is not good: only its operator can change that.
const REFUSED_PAUSE: Duration = Duration::from_secs(300);

/// A session that lasted so long was a good one: what is lost after it counts as the first failure again.
const GOOD_SESSION: Duration = Duration::from_secs(60);

/// New flows do so long without a relay that showed no sign of having heard of the last one, for each of them
/// would wait in vain; then one finds out again.
const DOUBT: Duration = Duration::from_secs(10);

/// Handovers kept to be shown.
const HANDOVERS: usize = 20;

/// How long taking leave of the relay may take, and how often it is looked whether it is over.
const LEAVE: Duration = Duration::from_millis(500);
const LEAVE_LOOK: Duration = Duration::from_millis(5);

/// Why a relay is doubted.
const UNHEARD: &str = "it does not answer";

/// What all sessions with the relay share; clones are the same.
#[derive(Debug, Clone)]
pub struct Bond {
    inner: Arc<Inner>,
}

#[derive(Debug)]
pub(super) struct Inner {
    pub(super) invite: Invite,
    pub(super) config: BondConfig,
    pub(super) paths: PathTable,
    pub(super) resolver: Resolver,
    pub(super) tls: Arc<ClientConfig>,
    pub(super) fast_open: FastOpen,
    journal: Journal,
    place: Mutex<Place>,
    /// A session left its place, by draining.
    pub(super) left: Notify,
}

#[derive(Debug)]
struct Place {
    /// The session for new flows, once the relay has accepted it.
    current: Option<SharedSession>,
    /// Why there is none.
    reason: String,
    /// Until when new flows do without the relay.
    doubted_until: Option<Instant>,
    /// Every session that is not over, and when it began.
    sessions: Vec<(SharedSession, Instant)>,
    /// The latest, oldest first.
    handovers: VecDeque<HandoverStatus>,
}

/// Traffic that moved from one path to another.
#[derive(Debug, Clone, Copy)]
pub struct Handover {
    /// The path that carried it.
    pub from: PathId,
    /// The path that carries it now.
    pub to: PathId,
    /// From the last sign of life on the old path to the first on the new one.
    pub gap: Duration,
}

/// Why a flow is not bonded.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum NotBonded {
    /// The relay would not reach it, or should not.
    #[error("its destination is in a private network")]
    Private,
    /// There is no session.
    #[error("the relay cannot be reached: {0}")]
    Unreachable(String),
    /// The session takes no more.
    #[error("{0}")]
    Refused(#[from] Refusal),
}

impl Bond {
    /// Membership of a relay; [`Self::run`] makes it work.
    pub fn new(
        config: BondConfig,
        invite: Invite,
        paths: PathTable,
        resolver: Resolver,
        journal: Journal,
    ) -> Result<Self, rustls::Error> {
        let tls = tls::device(invite.pin)?;
        let place = Place {
            current: None,
            reason: "no connection yet".to_owned(),
            doubted_until: None,
            sessions: Vec::new(),
            handovers: VecDeque::new(),
        };
        let inner = Inner {
            invite,
            config,
            paths,
            resolver,
            tls,
            fast_open: FastOpen::default(),
            journal,
            place: Mutex::new(place),
            left: Notify::new(),
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Keeps a session with the relay, until dropped.
    pub async fn run(self) {
        let mut sessions = JoinSet::new();
        let mut failures = 0_u32;
        loop {
            let begun = Instant::now();
            sessions.spawn(DeviceSession::begin(Arc::clone(&self.inner)).run());
            // Sessions that run dry end beside the one that took their place.
            let parting = tokio::select! {
                Some(ended) = sessions.join_next() => ended.unwrap_or_else(|panic| Parting::Lost(panic.to_string())),
                () = self.inner.left.notified() => continue,
            };
            if begun.elapsed() > GOOD_SESSION {
                failures = 0;
            }
            let wait = match &parting {
                Parting::Refused(reason) => {
                    self.inner.vacate(reason);
                    REFUSED_PAUSE
                }
                Parting::Lost(reason) => {
                    self.inner.vacate(reason);
                    backoff::wait(failures, rand::random())
                }
            };
            failures = failures.saturating_add(1);
            let mut paths = self.inner.paths.subscribe();
            paths.mark_unchanged();
            tokio::select! {
                () = sleep(wait) => {}
                // A network that was joined may lead there.
                Ok(()) = paths.changed() => failures = 0,
            }
        }
    }

    /// Takes leave of the relay: streams are over at once, and the relay is told, as far as it can be in a short
    /// time. It is for before [`Self::run`] is dropped.
    pub(crate) async fn leave(&self) {
        let sessions: Vec<SharedSession> =
            self.inner.place().sessions.iter().map(|(session, _)| session.clone()).collect();
        sessions.iter().for_each(|session| session.end(codes::NORMAL | CLOSE_SESSION, ""));
        let gone = async {
            while sessions.iter().any(|session| session.subflows() > 0) {
                sleep(LEAVE_LOOK).await;
            }
        };
        // What the relay did not hear, it learns from silence.
        let _ = timeout(LEAVE, gone).await;
    }

    /// Opens a stream to a flow's destination.
    pub(crate) fn open(&self, destination: &Destination) -> Result<BondStream, NotBonded> {
        let host = match destination {
            Destination::Address(address) if !is_public(address.ip()) => return Err(NotBonded::Private),
            Destination::Address(address) => Host::Address(address.ip().to_canonical()),
            Destination::Name(name, _) if is_private_name(name) => return Err(NotBonded::Private),
            Destination::Name(name, _) => Host::Name(name.to_string()),
        };
        let current = {
            let place = self.inner.place();
            if place.is_doubted() {
                return Err(NotBonded::Unreachable(UNHEARD.to_owned()));
            }
            place.current.clone().ok_or_else(|| NotBonded::Unreachable(place.reason.clone()))?
        };
        let destination = WireDestination { host, port: destination.port() };
        Ok(current.open(destination, StreamClass::Auto)?)
    }

    /// The relay did not even hear of a stream: new flows do without it for a while.
    pub(crate) fn doubt(&self) {
        self.inner.place().doubted_until = Some(Instant::now() + DOUBT);
        self.inner.tell_fallback(UNHEARD);
    }

    /// What goes through the relay; `interface_of` names a path.
    pub(crate) fn status(&self, interface_of: impl Fn(PathId) -> String) -> RelayStatus {
        let invite = self.invite();
        let (sessions, mut relay) = {
            let place = self.inner.place();
            let is_doubted = place.is_doubted();
            let is_reachable = place.current.is_some() && !is_doubted;
            let reason = if is_doubted { UNHEARD.to_owned() } else { place.reason.clone() };
            let relay = RelayStatus {
                address: invite.address.to_string(),
                user: invite.token.token().name.clone(),
                reachable: is_reachable,
                reason: (!is_reachable).then_some(reason),
                sessions: Vec::new(),
                handovers: place.handovers.iter().cloned().collect(),
            };
            (place.sessions.clone(), relay)
        };
        let status = |(shared, begun): &(SharedSession, Instant)| {
            shared.look(|session| status::session(session, begun.elapsed(), &interface_of))
        };
        relay.sessions = sessions.iter().map(status).collect();
        relay
    }

    /// The relay and the membership.
    pub(crate) fn invite(&self) -> &Invite {
        &self.inner.invite
    }
}

impl Place {
    fn is_doubted(&self) -> bool {
        self.doubted_until.is_some_and(|until| Instant::now() < until)
    }
}

impl Inner {
    /// A session begins.
    pub(super) fn enter(&self, session: &SharedSession) {
        self.place().sessions.push((session.clone(), Instant::now()));
    }

    /// New flows go through this session from now on.
    pub(super) fn take_place(&self, session: &SharedSession) {
        let mut place = self.place();
        if place.current.is_none() {
            tracing::info!(relay = %self.invite.address, "the relay is reached");
        }
        place.current = Some(session.clone());
        place.doubted_until = None;
    }

    /// A session is over.
    pub(super) fn hide(&self, session: &SharedSession) {
        let mut place = self.place();
        place.sessions.retain(|(kept, _)| !kept.is(session));
        if place.current.as_ref().is_some_and(|current| current.is(session)) {
            place.current = None;
        }
    }

    /// A session has no connection now, or takes no more: new flows are steered.
    pub(super) fn leave_place(&self, session: &SharedSession, reason: &str) {
        let is_current = self.place().current.as_ref().is_some_and(|current| current.is(session));
        if is_current {
            self.vacate(reason);
        }
    }

    /// New flows are steered from now on.
    fn vacate(&self, reason: &str) {
        let mut place = self.place();
        let is_news = place.current.take().is_some() || place.reason != reason;
        reason.clone_into(&mut place.reason);
        if is_news {
            drop(place);
            self.tell_fallback(reason);
        }
    }

    fn tell_fallback(&self, reason: &str) {
        let host = self.invite.address.to_string();
        let reason = format!("flows go without the relay: {reason}");
        self.journal.record(EventDetail::FellBack { host, interface: None, reason });
    }

    /// Traffic moved.
    pub(super) fn record(&self, handover: Handover) {
        let name = |path| self.paths.get(path).map_or_else(|| path.to_string(), |info| info.interface);
        let (from, to) = (name(handover.from), name(handover.to));
        let gap_ms = u64::try_from(handover.gap.as_millis()).unwrap_or(u64::MAX);
        let since_1970 = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let unix_ms = u64::try_from(since_1970.as_millis()).unwrap_or(u64::MAX);
        {
            let mut place = self.place();
            if place.handovers.len() == HANDOVERS {
                place.handovers.pop_front();
            }
            place.handovers.push_back(HandoverStatus { unix_ms, from: from.clone(), to: to.clone(), gap_ms });
        }
        self.journal.record(EventDetail::HandedOver { from, to, gap_ms });
    }

    fn place(&self) -> MutexGuard<'_, Place> {
        self.place.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What the session is told to do.
pub(super) fn session_config(config: &BondConfig, preference: Preference) -> SessionConfig {
    let mut session = match config.mode {
        Policy::Handover => SessionConfig::handover(),
        Policy::Aggregate => SessionConfig { preference, ..SessionConfig::aggregate() },
    };
    if let Some(kind) = config.scheduler {
        session.device_schedulers = multiway_core::bond::Schedulers::all(kind);
        session.relay_schedulers = multiway_core::bond::Schedulers::all(kind);
    }
    session
}

/// Whether a name means something in a local network only (RFC 6761, RFC 6762, RFC 8375).
fn is_private_name(name: &HostName) -> bool {
    let name = name.as_str();
    let last = name.rsplit('.').next().unwrap_or(name);
    !name.contains('.')
        || ["local", "localhost", "internal", "lan", "home", "test"].contains(&last)
        || name.ends_with(".home.arpa")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_local_networks_stay_there() {
        for (name, expected) in [
            ("printer", true),
            ("nas.local", true),
            ("a.home.arpa", true),
            ("db.internal", true),
            ("example.org", false),
            ("local.example.org", false),
        ] {
            assert_eq!(is_private_name(&HostName::parse(name).unwrap()), expected, "{name}");
        }
    }
}
