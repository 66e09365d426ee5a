//! What a device's sessions with its relay share: which of them new flows take, or why none.

use std::collections::VecDeque;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use multiway_api::{EventDetail, HandoverStatus};
use multiway_core::paths::PathId;
use rustls::ClientConfig;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::fast_open::FastOpen;
use super::invite::Invite;
use super::shared::SharedSession;
use super::tls;
use crate::config::BondConfig;
use crate::dns::Resolver;
use crate::journal::Journal;
use crate::paths::PathTable;

/// New flows do so long without a relay that showed no sign of having heard of the last one, for each of them
/// would wait in vain; then one finds out again.
const DOUBT: Duration = Duration::from_secs(10);

/// Handovers kept to be shown.
const HANDOVERS: usize = 20;

/// Why a relay is doubted.
const UNHEARD: &str = "it does not answer";

/// What all of a device's sessions with its relay share.
#[derive(Debug)]
pub(super) struct Place {
    pub(super) invite: Invite,
    pub(super) config: BondConfig,
    pub(super) paths: PathTable,
    pub(super) resolver: Resolver,
    pub(super) tls: Arc<ClientConfig>,
    pub(super) fast_open: FastOpen,
    journal: Journal,
    state: Mutex<State>,
    /// Tells those who wait in [`Self::settled`].
    turned: Notify,
    /// A session left its place, by draining.
    pub(super) left: Notify,
}

#[derive(Debug)]
struct State {
    /// The session for new flows, once the relay has accepted it.
    current: Option<SharedSession>,
    /// It has no connection at this moment, and opens some.
    is_joining: bool,
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
pub(super) struct Handover {
    /// The path that carried it.
    pub(super) from: PathId,
    /// The path that carries it now.
    pub(super) to: PathId,
    /// From the last sign of life on the old path to the first on the new one.
    pub(super) gap: Duration,
}

impl State {
    fn is_doubted(&self) -> bool {
        self.doubted_until.is_some_and(|until| Instant::now() < until)
    }
}

impl Place {
    /// No session yet.
    pub(super) fn new(
        config: BondConfig,
        invite: Invite,
        paths: PathTable,
        resolver: Resolver,
        journal: Journal,
    ) -> Result<Self, rustls::Error> {
        let tls = tls::device(invite.pin)?;
        let state = State {
            current: None,
            is_joining: false,
            reason: "no connection yet".to_owned(),
            doubted_until: None,
            sessions: Vec::new(),
            handovers: VecDeque::new(),
        };
        Ok(Self {
            invite,
            config,
            paths,
            resolver,
            tls,
            fast_open: FastOpen::default(),
            journal,
            state: Mutex::new(state),
            turned: Notify::new(),
            left: Notify::new(),
        })
    }

    /// Waits until the session for new flows has a connection, or is given up: between two networks a flow need
    /// not do without the relay.
    pub(super) async fn settled(&self) {
        loop {
            let mut turned = pin!(self.turned.notified());
            // From here on no turn is missed.
            turned.as_mut().enable();
            if !self.state().is_joining {
                return;
            }
            turned.await;
        }
    }

    /// The session for new flows, or why there is none.
    pub(super) fn current(&self) -> Result<SharedSession, String> {
        let state = self.state();
        match &state.current {
            _ if state.is_doubted() => Err(UNHEARD.to_owned()),
            Some(current) => Ok(current.clone()),
            None => Err(state.reason.clone()),
        }
    }

    /// Every session that is not over, and when it began.
    pub(super) fn sessions(&self) -> Vec<(SharedSession, Instant)> {
        self.state().sessions.clone()
    }

    /// The latest handovers, oldest first.
    pub(super) fn handovers(&self) -> Vec<HandoverStatus> {
        self.state().handovers.iter().cloned().collect()
    }

    /// The relay did not even hear of a stream: new flows do without it for a while.
    pub(super) fn doubt(&self) {
        self.state().doubted_until = Some(Instant::now() + DOUBT);
        self.tell_fallback(UNHEARD);
    }

    /// A session begins.
    pub(super) fn enter(&self, session: &SharedSession) {
        self.state().sessions.push((session.clone(), Instant::now()));
    }

    /// New flows go through this session from now on.
    pub(super) fn take_place(&self, session: &SharedSession) {
        let mut state = self.state();
        if state.current.is_none() {
            tracing::info!(relay = %self.invite.address, "the relay is reached");
        }
        state.current = Some(session.clone());
        state.doubted_until = None;
        self.turn(state, false);
    }

    /// A session lost its last connection and opens others: new flows wait.
    pub(super) fn join_again(&self, session: &SharedSession) {
        let state = self.state();
        if state.current.as_ref().is_some_and(|current| current.is(session)) {
            self.turn(state, true);
        }
    }

    /// A session is over.
    pub(super) fn hide(&self, session: &SharedSession) {
        let mut state = self.state();
        state.sessions.retain(|(kept, _)| !kept.is(session));
        if state.current.as_ref().is_some_and(|current| current.is(session)) {
            state.current = None;
            self.turn(state, false);
        }
    }

    /// A session has no connection now, or takes no more: new flows are steered.
    pub(super) fn leave_place(&self, session: &SharedSession, reason: &str) {
        let is_current = self.state().current.as_ref().is_some_and(|current| current.is(session));
        if is_current {
            self.vacate(reason);
        }
    }

    /// New flows are steered from now on.
    pub(super) fn vacate(&self, reason: &str) {
        let mut state = self.state();
        let is_news = state.current.take().is_some() || state.reason != reason;
        reason.clone_into(&mut state.reason);
        self.turn(state, false);
        if is_news {
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
            let mut state = self.state();
            if state.handovers.len() == HANDOVERS {
                state.handovers.pop_front();
            }
            state.handovers.push_back(HandoverStatus { unix_ms, from: from.clone(), to: to.clone(), gap_ms });
        }
        self.journal.record(EventDetail::HandedOver { from, to, gap_ms });
    }

    fn turn(&self, mut state: MutexGuard<'_, State>, is_joining: bool) {
        state.is_joining = is_joining;
        drop(state);
        self.turned.notify_waiters();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
