//! A device at its relay: one session at a time for all flows, begun anew when it is lost.

use std::sync::Arc;
use std::time::Duration;

use multiway_api::RelayStatus;
use multiway_core::bond::wire::{CLOSE_SESSION, Destination as WireDestination, Host};
use multiway_core::bond::{Refusal, StreamClass, backoff};
use multiway_core::flow::names::HostName;
use multiway_core::paths::PathId;
use thiserror::Error;
use tokio::task::{self, JoinSet};
use tokio::time::{Instant, sleep, timeout};

use super::invite::Invite;
use super::place::Place;
use super::session::{DeviceSession, Parting};
use super::shared::SharedSession;
use super::stream::BondStream;
use super::{codes, status};
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

/// How long taking leave of the relay may take, and how often it is looked whether it is over.
const LEAVE: Duration = Duration::from_millis(500);
const LEAVE_LOOK: Duration = Duration::from_millis(5);

/// A membership at work; clones are the same.
#[derive(Debug, Clone)]
pub struct Bond {
    place: Arc<Place>,
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
        let place = Place::new(config, invite, paths, resolver, journal)?;
        Ok(Self { place: Arc::new(place) })
    }

    /// Keeps a session with the relay, until dropped.
    pub async fn run(self) {
        let mut sessions = JoinSet::new();
        let mut failures = 0_u32;
        loop {
            let begun = Instant::now();
            let newest = sessions.spawn(DeviceSession::begin(Arc::clone(&self.place)).run()).id();
            let Some(parting) = self.parting(&mut sessions, newest).await else { continue };
            if begun.elapsed() > GOOD_SESSION {
                failures = 0;
            }
            let wait = match &parting {
                Parting::Refused(reason) => {
                    self.place.vacate(reason);
                    REFUSED_PAUSE
                }
                Parting::Lost(reason) => {
                    self.place.vacate(reason);
                    backoff::wait(failures, rand::random())
                }
            };
            failures = failures.saturating_add(1);
            let mut paths = self.place.paths.subscribe();
            paths.mark_unchanged();
            tokio::select! {
                () = sleep(wait) => {}
                // A network that was joined may lead there.
                Ok(()) = paths.changed() => failures = 0,
            }
        }
    }

    /// How the newest session ended; nothing if it left its place by draining. Older ones that run dry end beside it.
    async fn parting(&self, sessions: &mut JoinSet<Parting>, newest: task::Id) -> Option<Parting> {
        loop {
            tokio::select! {
                Some(ended) = sessions.join_next_with_id() => {
                    let (id, parting) =
                        ended.unwrap_or_else(|panic| (panic.id(), Parting::Lost(panic.to_string())));
                    if id == newest {
                        return Some(parting);
                    }
                }
                () = self.place.left.notified() => return None,
            }
        }
    }

    /// Takes leave of the relay: streams are over at once, and the relay is told, as far as it can be in a short
    /// time. It is for before [`Self::run`] is dropped.
    pub(crate) async fn leave(&self) {
        let sessions: Vec<SharedSession> =
            self.place.sessions().into_iter().map(|(session, _)| session).collect();
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
    pub(crate) async fn open(&self, destination: &Destination) -> Result<BondStream, NotBonded> {
        let host = match destination {
            Destination::Address(address) if !is_public(address.ip()) => return Err(NotBonded::Private),
            Destination::Address(address) => Host::Address(address.ip().to_canonical()),
            Destination::Name(name, _) if is_private_name(name) => return Err(NotBonded::Private),
            Destination::Name(name, _) => Host::Name(name.to_string()),
        };
        self.place.settled().await;
        let current = self.place.current().map_err(NotBonded::Unreachable)?;
        let destination = WireDestination { host, port: destination.port() };
        Ok(BondStream::open(current, destination, StreamClass::Auto)?)
    }

    /// The relay did not even hear of a stream: new flows do without it for a while.
    pub(crate) fn doubt(&self) {
        self.place.doubt();
    }

    /// What goes through the relay; `interface_of` names a path.
    pub(crate) fn status(&self, interface_of: impl Fn(PathId) -> String) -> RelayStatus {
        let invite = self.invite();
        let reason = self.place.current().err();
        let status = |(shared, begun): &(SharedSession, Instant)| {
            shared.look(|session| status::session(session, begun.elapsed(), &interface_of))
        };
        RelayStatus {
            address: invite.address.to_string(),
            user: invite.token.token().name.clone(),
            reachable: reason.is_none(),
            reason,
            sessions: self.place.sessions().iter().map(status).collect(),
            handovers: self.place.handovers(),
        }
    }

    /// The relay and the membership.
    pub(crate) fn invite(&self) -> &Invite {
        &self.place.invite
    }
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
