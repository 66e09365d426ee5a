//! One session of a device: opens its subflows, follows the paths, and ends when the relay is lost.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use multiway_core::bond::wire::{CLOSE_SESSION, Frame, Hello, HelloKind, SessionKey, VERSION};
use multiway_core::bond::{
    Action, Event, OpenReason, Policy, Role, Schedulers, Session, SessionConfig, SubflowId,
};
use multiway_core::mphttp::download::PathOffer;
use multiway_core::paths::{Observation, PathId, PathInfo, Preference};
use multiway_edge::subflow::fast_open_connect;
use rustls_pki_types::ServerName;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};

use super::codes;
use super::connection::{TlsStream, Transport};
use super::fast_open::{Race, Verdict};
use super::invite::RelayAddress;
use super::place::{Handover, Place};
use super::shared::{SharedSession, Signal, SubflowEnd};
use super::stream::BondStream;
use super::subflow::{Subflow, ends_session, prepare};
use super::watch::Watch;
use crate::config::BondConfig;
use crate::paths::{TrackedStream, now};

/// How long the connection and the handshake of a subflow may take: three retransmissions of the SYN.
const HANDSHAKE: Duration = Duration::from_secs(8);

/// How often the kernel's counters are read while streams are open: a detector's shortest wait is 30 ms.
const WATCHING: Duration = Duration::from_millis(20);

/// In how many of these the paths' order and estimates are looked at.
const ROUNDS_PER_SURVEY: u32 = 50;

/// How long new flows wait for a session without a connection that opens others: a SYN that is lost once, and
/// the handshakes of a slow network.
const JOINING: Duration = Duration::from_secs(3);

/// Addresses of the relay's name that are tried, one subflow after another.
const MAX_ADDRESSES: usize = 4;

/// How a session ended.
#[derive(Debug)]
pub(super) enum Parting {
    /// The relay cannot be reached, or forgot the session.
    Lost(String),
    /// The relay does not want this device.
    Refused(String),
}

/// See the module.
pub(super) struct DeviceSession {
    place: Arc<Place>,
    key: SessionKey,
    shared: SharedSession,
    signals: UnboundedReceiver<Signal>,
    /// Subflows that the relay accepted.
    welcome: BTreeSet<SubflowId>,
    was_welcome: bool,
    is_draining: bool,
    join_address: Option<RelayAddress>,
    linger: Duration,
    alone_since: Option<Instant>,
    /// Subflows that are being opened.
    opening: BTreeMap<SubflowId, AbortHandle>,
    tasks: JoinSet<()>,
    offers: Vec<PathOffer>,
}

impl Drop for DeviceSession {
    /// However it ends, flows that wait for it learn so.
    fn drop(&mut self) {
        self.place.hide(&self.shared);
    }
}

impl DeviceSession {
    /// A session that has not begun.
    pub(super) fn begin(place: Arc<Place>) -> Self {
        let mut session =
            Session::new(Role::Device, session_config(&place.config, place.paths.preference()), now());
        session.set_seed(rand::random());
        let (shared, signals) = SharedSession::new(session);
        place.enter(&shared);
        Self {
            place,
            key: SessionKey(rand::random()),
            shared,
            signals,
            welcome: BTreeSet::new(),
            was_welcome: false,
            is_draining: false,
            join_address: None,
            linger: Duration::ZERO,
            alone_since: None,
            opening: BTreeMap::new(),
            tasks: JoinSet::new(),
            offers: Vec::new(),
        }
    }

    /// Runs until it is over.
    pub(super) async fn run(mut self) -> Parting {
        let parting = self.converse().await;
        self.place.leave_place(&self.shared, parting.reason());
        self.shared.end(codes::NORMAL | CLOSE_SESSION, "");
        self.opening.values().for_each(AbortHandle::abort);
        // Farewells go out; on a path that is dead they take their time.
        self.tasks.detach_all();
        parting
    }

    async fn converse(&mut self) -> Parting {
        let shared = self.shared.clone();
        let mut time = std::pin::pin!(shared.keep_time());
        let mut paths = self.place.paths.subscribe();
        let config = &self.place.config;
        let mut watch = Watch::new(config.detector, config.oracle);
        let mut ticks = interval(WATCHING);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut round = 0_u32;
        loop {
            tokio::select! {
                signal = self.signals.recv() => {
                    let Some(signal) = signal else { return Parting::Lost("the session is gone".to_owned()) };
                    if let Some(parting) = self.handle(signal) {
                        return parting;
                    }
                }
                () = &mut time => {}
                Ok(()) = paths.changed() => {
                    self.survey(&mut watch);
                    self.shared.with(Session::handle_network_change);
                }
                Some(_) = self.tasks.join_next() => {}
                _ = ticks.tick() => {
                    if round.is_multiple_of(ROUNDS_PER_SURVEY) {
                        self.survey(&mut watch);
                    }
                    round = round.wrapping_add(1);
                    if self.alone_since.is_some_and(|since| since.elapsed() > JOINING) {
                        self.place.leave_place(&self.shared, "no connection to it");
                    }
                    // Without streams nothing is due.
                    if self.shared.streams() > 0 {
                        for (path, load) in watch.look(&self.shared) {
                            self.remember(path, &load);
                        }
                    } else if self.is_draining {
                        return Parting::Lost("the relay stops".to_owned());
                    }
                }
            }
            if let Some(since) = self.alone_since
                && since.elapsed() > self.linger
            {
                return Parting::Lost("no network leads to it".to_owned());
            }
        }
    }

    fn handle(&mut self, signal: Signal) -> Option<Parting> {
        match signal {
            Signal::Action(Action::OpenSubflow { id, path, backup, reason }) => {
                self.open(id, path, backup, reason);
                None
            }
            // It was still being opened, or its task knows already.
            Signal::Action(Action::CloseSubflow { id, .. }) => {
                if let Some(opening) = self.opening.remove(&id) {
                    opening.abort();
                }
                None
            }
            Signal::Welcome { subflow, hello } => {
                self.opening.remove(&subflow);
                self.welcome.insert(subflow);
                self.was_welcome = true;
                self.alone_since = None;
                self.linger = Duration::from_secs(hello.linger_seconds);
                self.advertise(&hello.join_address);
                if !self.is_draining {
                    self.place.take_place(&self.shared);
                }
                None
            }
            Signal::SubflowEnded { subflow, how } => self.subflow_ended(subflow, &how),
            Signal::Event(event) => self.tell(event),
            Signal::Opening { stream, .. } => {
                // Relays open no streams; the session has refused it already.
                drop(BondStream::new(self.shared.clone(), stream));
                None
            }
        }
    }

    fn tell(&mut self, event: Event) -> Option<Parting> {
        match event {
            Event::Handover { from, to, gap } => {
                self.place.record(Handover { from, to, gap });
            }
            Event::PathSuspected { path, suspicion } => {
                tracing::debug!(%path, %suspicion, "a path is suspected");
            }
            Event::PathRestored { path } => tracing::debug!(%path, "a path is good again"),
            Event::Advertised { address } => self.advertise(&address),
            Event::Draining => {
                self.is_draining = true;
                self.place.leave_place(&self.shared, "the relay stops");
                self.place.left.notify_one();
            }
            Event::Closed { code, text, .. } if code & CLOSE_SESSION != 0 => {
                return Some(parting(code, text));
            }
            event => tracing::trace!(?event, "of the session"),
        }
        None
    }

    fn subflow_ended(&mut self, subflow: SubflowId, how: &SubflowEnd) -> Option<Parting> {
        tracing::debug!(%subflow, ?how, "a subflow ended");
        self.opening.remove(&subflow);
        let was_working = self.welcome.remove(&subflow);
        if ends_session(how) || (!self.was_welcome && matches!(how, SubflowEnd::Refused(..))) {
            return Some(match how {
                SubflowEnd::Refused(code, text) => parting(*code, text.clone()),
                SubflowEnd::Violation(violation) => {
                    self.shared.end(violation.code(), &violation.to_string());
                    Parting::Lost(format!("it broke the protocol: {violation}"))
                }
                SubflowEnd::Closed | SubflowEnd::Failed(_) => Parting::Lost("it closed".to_owned()),
            });
        }
        if !self.welcome.is_empty() {
            return None;
        }
        let reason = match how {
            SubflowEnd::Failed(error) => error.to_string(),
            _ => "its connection was closed".to_owned(),
        };
        if was_working {
            self.place.join_again(&self.shared);
        } else {
            self.place.leave_place(&self.shared, &reason);
        }
        if !self.was_welcome && self.opening.is_empty() {
            return Some(Parting::Lost(reason));
        }
        if self.was_welcome {
            self.alone_since.get_or_insert_with(Instant::now);
        }
        None
    }

    fn advertise(&mut self, address: &str) {
        if address.is_empty() {
            return;
        }
        match address.parse() {
            Ok(address) => self.join_address = Some(address),
            Err(error) => tracing::warn!(%error, "the relay advertises an address that is none"),
        }
    }

    /// Tells the session which paths there are, when that changed.
    fn survey(&mut self, watch: &mut Watch) {
        let usable = self.place.paths.usable();
        watch.set_networks(usable.iter().map(|info| (info.id, info.network.clone())).collect());
        let offers: Vec<PathOffer> = preferred(&usable)
            .into_iter()
            .map(|info| PathOffer {
                path: info.id,
                metered: info.metered,
                estimate: self.place.paths.estimate(info.id, self.place.invite.address.host()),
            })
            .collect();
        if offers != self.offers {
            self.shared.with(|session, now| session.handle_paths(&offers, now));
            self.offers = offers;
        }
    }

    /// Keeps what a path was seen to carry, for the next plan (F10).
    fn remember(&self, path: PathId, load: &Observation) {
        tracing::debug!(%path, ?load, "what a path carried");
        self.place.paths.record(path, self.place.invite.address.host(), load);
    }

    fn open(&mut self, id: SubflowId, path: PathId, backup: bool, reason: OpenReason) {
        tracing::debug!(%id, %path, ?reason, "opens a subflow");
        let kind = if self.was_welcome {
            HelloKind::Join
        } else {
            HelloKind::Init { token: self.place.invite.token.as_bytes().to_vec().into() }
        };
        let address = match &self.join_address {
            Some(address) if self.was_welcome => address.clone(),
            _ => self.place.invite.address.clone(),
        };
        let hello = Hello { version: VERSION, key: self.key, subflow: id, path: path.0, backup, kind };
        let opening = Opening { place: Arc::clone(&self.place), shared: self.shared.clone(), address, hello };
        let task = self.tasks.spawn(opening.run());
        self.opening.insert(id, task);
    }
}

impl Parting {
    fn reason(&self) -> &str {
        match self {
            Self::Lost(reason) | Self::Refused(reason) => reason,
        }
    }
}

fn parting(code: u64, text: String) -> Parting {
    let reason = if text.is_empty() { format!("it ended the session (code {code:#x})") } else { text };
    if code == codes::UNAUTHORIZED { Parting::Refused(reason) } else { Parting::Lost(reason) }
}

/// Unmetered paths first; else in the order of the table.
fn preferred(paths: &[PathInfo]) -> Vec<&PathInfo> {
    let (metered, free): (Vec<_>, Vec<_>) = paths.iter().partition(|path| path.metered);
    free.into_iter().chain(metered).collect()
}

/// A subflow that is being opened, and then runs.
struct Opening {
    place: Arc<Place>,
    shared: SharedSession,
    address: RelayAddress,
    hello: Hello,
}

impl Opening {
    async fn run(self) {
        let id = self.hello.subflow;
        match timeout(HANDSHAKE, self.open()).await {
            Ok(Ok((subflow, race))) => self.carry(subflow, race).await,
            Ok(Err(error)) => self.shared.detach(id, SubflowEnd::Failed(error)),
            Err(_) => {
                let error = std::io::Error::new(std::io::ErrorKind::TimedOut, "no answer in time");
                self.shared.detach(id, SubflowEnd::Failed(error));
            }
        }
    }

    /// Runs a subflow to its end, which comes at once when its SYN is dropped for the data in it: the session then
    /// opens another one on the connection without.
    async fn carry(&self, subflow: Subflow, race: Option<Race>) {
        let Some(race) = race else { return subflow.run().await };
        let (path, remote) = (race.path, race.remote);
        let won = {
            let mut running = std::pin::pin!(subflow.run());
            let verdict = tokio::select! {
                () = &mut running => return,
                verdict = race.run() => verdict,
            };
            match verdict {
                Verdict::Dropped(won) => won,
                Verdict::Answered => {
                    self.note_passing(path);
                    return running.await;
                }
                Verdict::Unknown => return running.await,
            }
        };
        self.note_dropping(path);
        self.place.fast_open.keep(path, remote, won);
        self.shared.detach(self.hello.subflow, SubflowEnd::Failed(std::io::ErrorKind::TimedOut.into()));
        // Nothing is to be waited for.
        self.shared.with(Session::handle_network_change);
    }

    fn note_dropping(&self, path: PathId) {
        let Some(info) = self.place.paths.get(path) else { return };
        tracing::info!(interface = %info.interface, "the network seems to drop TCP's first packet when it carries data");
        self.place.fast_open.note_dropping(info.network);
    }

    fn note_passing(&self, path: PathId) {
        if let Some(info) = self.place.paths.get(path) {
            self.place.fast_open.note_passing(&info.network);
        }
    }

    /// The subflow, and the race that a SYN with data has to stand.
    async fn open(&self) -> std::io::Result<(Subflow, Option<Race>)> {
        let Hello { subflow: id, path, backup, .. } = self.hello;
        let path = PathId(path);
        let addresses: Vec<IpAddr> = match self.address.ip() {
            Some(address) => vec![address],
            None => {
                let found = self.place.resolver.resolve(path, self.address.host()).await;
                found.map_err(std::io::Error::other)?
            }
        };
        let index = usize::try_from(id.0).unwrap_or(0) % addresses.len().clamp(1, MAX_ADDRESSES);
        let address = addresses.get(index).ok_or(std::io::ErrorKind::AddrNotAvailable)?;
        let remote = SocketAddr::new(*address, self.address.port());
        let network = self.place.paths.get(path).map(|info| info.network);
        let mut carries_data = false;
        let kept = self.place.fast_open.take(path, remote);
        let connection = match kept {
            Some(connection) => connection,
            None => {
                let is_worth_trying =
                    network.is_some_and(|network| self.place.fast_open.is_worth_trying(&network));
                let set_up = |socket: &socket2::Socket| {
                    carries_data = is_worth_trying && fast_open_connect(socket);
                    prepare(socket);
                };
                let connected = self.place.paths.connect_prepared(path, remote, HANDSHAKE, set_up).await;
                connected.map_err(std::io::Error::other)?
            }
        };
        let mut tls = self.greet(connection)?;
        let race = carries_data.then(|| Race {
            paths: self.place.paths.clone(),
            path,
            remote,
            round_trip: self.place.paths.estimate(path, self.address.host()).rtt,
            transport: Arc::clone(tls.transport()),
        });
        // With room for early data everything goes out in one flight; else the relay proves who it is first.
        let race = if tls.room(1) == 0 {
            if let Some(plain) = self.prove(&mut tls, race).await? {
                self.note_dropping(path);
                tls = self.greet(plain)?;
                tls.handshake().await?;
            }
            None
        } else {
            race
        };
        let wake = self.shared.attach(id, path, backup, tls.transport());
        let begins = matches!(self.hello.kind, HelloKind::Init { .. });
        Ok((Subflow::device(self.shared.clone(), id, tls, wake, begins), race))
    }

    /// TLS on a connection, with the HELLO in it.
    fn greet(&self, connection: TrackedStream) -> std::io::Result<TlsStream> {
        let name = ServerName::try_from(self.address.host().to_owned()).map_err(std::io::Error::other)?;
        let mut tls = TlsStream::connect(Arc::clone(&self.place.tls), name, Transport::Path(connection))?;
        tls.write(&Frame::Hello(self.hello.clone()).to_bytes())?;
        Ok(tls)
    }

    /// Waits for the end of the handshake, or for the connection that won against this one.
    async fn prove(&self, tls: &mut TlsStream, race: Option<Race>) -> std::io::Result<Option<TrackedStream>> {
        let mut handshake = std::pin::pin!(tls.handshake());
        if let Some(race) = race {
            let path = race.path;
            let verdict = tokio::select! {
                proved = &mut handshake => return proved.map(|()| None),
                verdict = race.run() => verdict,
            };
            match verdict {
                Verdict::Dropped(won) => return Ok(Some(won)),
                Verdict::Answered => self.note_passing(path),
                Verdict::Unknown => {}
            }
        }
        handshake.await.map(|()| None)
    }
}

/// What the session is told to do.
fn session_config(config: &BondConfig, preference: Preference) -> SessionConfig {
    let mut session = match config.mode {
        Policy::Handover => SessionConfig::handover(),
        Policy::Aggregate => SessionConfig { preference, ..SessionConfig::aggregate() },
    };
    if let Some(kind) = config.scheduler {
        session.device_schedulers = Schedulers::all(kind);
        session.relay_schedulers = Schedulers::all(kind);
    }
    session
}
