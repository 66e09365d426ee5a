//! The relay itself: its listeners, the handshakes, and the sessions there are.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use multiway_core::bond::wire::{Frame, FrameReader, Hello, HelloKind, HelloOk, SessionKey, VERSION};
use multiway_core::bond::{Limits, Role, Session, SessionConfig, SubflowId};
use multiway_core::paths::PathId;
use rustls::ServerConfig;
use socket2::{SockRef, TcpKeepalive};
use thiserror::Error;
use tokio::net::{TcpListener, TcpStream};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::config::RelayConfig;
use super::gate::Gate;
use super::identity::{Identity, StateError};
use super::metrics::{Gauges, Metrics};
use super::roster::Roster;
use super::session::RelaySession;
use crate::bond::codes;
use crate::bond::connection::{Received, TlsStream, Transport};
use crate::bond::shared::SharedSession;
use crate::bond::subflow::{Subflow, prepare};
use crate::bond::tls;
use crate::bond::token::{Token, TokenId};
use crate::paths::now;

/// Connections that the kernel completes before they are accepted.
const BACKLOG: i32 = 4096;

/// Handshakes at once; each holds up to some 100 KiB.
const MOST_HANDSHAKES: usize = 1024;

/// Pause after a failure to accept, which mostly means that file descriptors ran out.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// How often the list of users is looked at, and sessions of those shut out end.
const ROSTER_INTERVAL: Duration = Duration::from_secs(1);

/// How often usage is written: what a crash may lose.
const USAGE_INTERVAL: u64 = 5;

/// How often it is looked whether the last stream ended while the relay drains.
const DRAIN_INTERVAL: Duration = Duration::from_millis(50);

/// A device that says nothing for so long is asked by the kernel whether it is still there: neither end's engine
/// asks while there is no stream. Minutes, for the question wakes the device's radio.
const KEEPALIVE: Duration = Duration::from_secs(240);

/// How long it may take to answer. It has said nothing for longer than `TCP_USER_TIMEOUT` by then, so Linux ends
/// the connection after the first question that is not answered (tcp(7); `tcp_keepalive_timer` in tcp_timer.c);
/// a device that was there joins again.
const KEEPALIVE_ANSWER: Duration = Duration::from_secs(60);

/// How long a device that is refused may take to hear why.
const REFUSAL: Duration = Duration::from_secs(2);

/// How long farewells may take before the process ends.
const FAREWELLS: Duration = Duration::from_millis(500);

/// How long the relay's own addresses are remembered.
const OWN_ADDRESSES_KEPT: Duration = Duration::from_secs(5);

/// Numbers of subflows remembered behind the highest one, so that none is used twice.
const NUMBERS_REMEMBERED: u64 = 1024;

/// Why a relay does not run.
#[derive(Debug, Error)]
pub enum RelayError {
    /// Its keys, users or usage cannot be used.
    #[error(transparent)]
    State(#[from] StateError),
    /// The address is not to be had.
    #[error("cannot listen on {address}: {error}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The kernel's reason.
        error: io::Error,
    },
    /// TLS refuses the keys.
    #[error("TLS cannot be set up with the relay's keys: {0}")]
    Tls(#[from] rustls::Error),
    /// A part of a running relay failed.
    #[error("the {part} failed: {error}")]
    PartFailed {
        /// Which part.
        part: &'static str,
        /// Why.
        error: io::Error,
    },
}

/// A running relay, shared by its tasks.
#[derive(Debug)]
pub(super) struct Relay {
    pub(super) config: RelayConfig,
    pub(super) metrics: Metrics,
    identity: Identity,
    tls: Arc<ServerConfig>,
    pub(super) roster: Roster,
    gate: Mutex<Gate>,
    handshakes: Arc<Semaphore>,
    sessions: Mutex<Sessions>,
    own: Mutex<Option<(Instant, Vec<IpAddr>)>>,
    this: Weak<Relay>,
}

#[derive(Debug, Default)]
struct Sessions {
    by_key: HashMap<SessionKey, Entry>,
    per_user: BTreeMap<TokenId, usize>,
    is_draining: bool,
}

#[derive(Debug)]
struct Entry {
    shared: SharedSession,
    token: Token,
    numbers: BTreeSet<u64>,
}

/// A device whose HELLO was answered.
enum Greeted {
    /// It has a subflow.
    Admitted(Box<Subflow>),
    /// It is told why not.
    Refused(Box<TlsStream>),
}

/// Why a HELLO is refused: a code, and words for people.
type Refused = (u64, &'static str);

/// Runs a relay until SIGTERM or SIGINT.
pub async fn run(config: RelayConfig, state: PathBuf) -> Result<(), RelayError> {
    let failed = |error| RelayError::PartFailed { part: "signal handling", error };
    let mut terminated = signal(SignalKind::terminate()).map_err(failed)?;
    let mut interrupted = signal(SignalKind::interrupt()).map_err(failed)?;
    if let Err(error) = multiway_edge::limits::raise_open_files() {
        tracing::warn!(%error, "the limit of open files stays as it is; many devices may reach it");
    }
    let relay = Relay::new(config, &state)?;
    let listen_all = relay.config.listen.iter().map(|&address| listen(address));
    let listeners = listen_all.collect::<Result<Vec<_>, _>>()?;
    let metrics_listener = match relay.config.metrics {
        Some(address) => {
            Some(TcpListener::bind(address).await.map_err(|error| RelayError::Listen { address, error })?)
        }
        None => None,
    };
    let mut parts = JoinSet::new();
    for listener in listeners {
        if let Ok(address) = listener.local_addr() {
            tracing::info!("devices connect to {address}");
        }
        parts.spawn(accept(Arc::clone(&relay), listener));
    }
    if let Some(listener) = metrics_listener {
        parts.spawn(serve_metrics(Arc::clone(&relay), listener));
    }
    parts.spawn(Arc::clone(&relay).housekeeping());
    if !multiway_edge::subflow::fast_open_is_served() {
        tracing::info!(
            "TCP Fast Open is off here; `sysctl net.ipv4.tcp_fastopen=3` lets joins carry data in their SYN"
        );
    }
    tracing::info!(pin = %relay.identity.pin(), "the relay works; `multiway relay invite` lets a device in");
    let _ = sd_notify::notify(&[sd_notify::NotifyState::Ready]);
    tokio::select! {
        _ = terminated.recv() => {}
        _ = interrupted.recv() => {}
        Some(ended) = parts.join_next() => {
            return Err(ended.unwrap_or_else(|panic| {
                RelayError::PartFailed { part: "relay", error: io::Error::other(panic) }
            }));
        }
    }
    let _ = sd_notify::notify(&[sd_notify::NotifyState::Stopping]);
    tokio::select! {
        () = relay.drain() => {}
        _ = terminated.recv() => tracing::info!("told to stop again: streams are cut"),
        _ = interrupted.recv() => tracing::info!("told to stop again: streams are cut"),
    }
    relay.end_all(codes::STOPPING, "the relay stops");
    sleep(FAREWELLS).await;
    Ok(relay.roster.settle()?)
}

fn listen(address: SocketAddr) -> Result<TcpListener, RelayError> {
    let bind = || {
        let socket = socket2::Socket::new(
            socket2::Domain::for_address(address),
            socket2::Type::STREAM.nonblocking(),
            Some(socket2::Protocol::TCP),
        )?;
        socket.set_reuse_address(true)?;
        if address.is_ipv6() {
            // IPv4 has a listener of its own.
            socket.set_only_v6(true)?;
        }
        socket.bind(&address.into())?;
        // Where the kernel lacks it, joins take a round trip more.
        let _ = multiway_edge::subflow::fast_open_listen(&socket);
        socket.listen(BACKLOG)?;
        TcpListener::from_std(socket.into())
    };
    bind().map_err(|error| RelayError::Listen { address, error })
}

async fn accept(relay: Arc<Relay>, listener: TcpListener) -> RelayError {
    let mut devices = JoinSet::new();
    loop {
        while devices.try_join_next().is_some() {}
        let (connection, peer) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "cannot accept a device; raise the limit of open files if it is that");
                sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let is_admitted =
            relay.gate.lock().unwrap_or_else(PoisonError::into_inner).admit(peer.ip(), Instant::now());
        let place = Arc::clone(&relay.handshakes).try_acquire_owned();
        let (true, Ok(place)) = (is_admitted, place) else {
            relay.metrics.handshakes_refused.add(1);
            continue;
        };
        let relay = Arc::clone(&relay);
        devices.spawn(async move {
            let greeted = timeout(relay.config.limits.handshake, relay.greet(connection)).await;
            drop(place);
            match greeted {
                Ok(Ok(Greeted::Admitted(subflow))) => subflow.run().await,
                Ok(Ok(Greeted::Refused(stream))) => {
                    // A socket that is closed with frames behind the HELLO unread resets the connection, and
                    // the reason would be lost with it. The device may be gone.
                    let _ = timeout(REFUSAL, stream.finish()).await;
                }
                Ok(Err(error)) => {
                    relay.metrics.handshakes_failed.add(1);
                    tracing::debug!(%peer, %error, "a connection was no device's");
                }
                Err(_) => {
                    relay.metrics.handshakes_failed.add(1);
                    tracing::debug!(%peer, "a handshake took too long");
                }
            }
        });
    }
}

async fn serve_metrics(relay: Arc<Relay>, listener: TcpListener) -> RelayError {
    const TEXT: [(&str, &str); 1] = [("content-type", "text/plain; version=0.0.4")];
    let answer = move || std::future::ready((TEXT, relay.metrics.text(relay.gauges())));
    let router = axum::Router::new().route("/metrics", axum::routing::get(answer));
    let error = match axum::serve(listener, router).await {
        Ok(()) => io::Error::other("it ended"),
        Err(error) => error,
    };
    RelayError::PartFailed { part: "metrics listener", error }
}

async fn refuse(stream: &mut TlsStream, code: u64, text: &str) -> io::Result<()> {
    stream.write(&Frame::Close { code, text: text.to_owned() }.to_bytes())?;
    stream.close();
    loop {
        let is_sent = stream.flush()?;
        if is_sent && !stream.is_handshaking() {
            return Ok(());
        }
        // The far end finishes the handshake before it hears why.
        if let Received::End = stream.read()? {
            return Ok(());
        }
        stream.ready(!is_sent).await?;
    }
}

impl Relay {
    /// One with these keys, users and usage, which nobody reaches yet.
    pub(super) fn new(config: RelayConfig, state: &Path) -> Result<Arc<Self>, RelayError> {
        let identity = Identity::load_or_create(state)?;
        let roster = Roster::load(state)?;
        let tls = tls::relay(identity.certificates.clone(), identity.key.clone_key())?;
        let limits = config.limits;
        let gate =
            Gate::new(limits.handshakes_per_second, limits.handshakes_per_second_per_address, Instant::now());
        Ok(Arc::new_cyclic(|this| Self {
            config,
            metrics: Metrics::default(),
            identity,
            tls,
            roster,
            gate: Mutex::new(gate),
            handshakes: Arc::new(Semaphore::new(MOST_HANDSHAKES)),
            sessions: Mutex::default(),
            own: Mutex::new(None),
            this: this.clone(),
        }))
    }

    /// Takes a connection through TLS and its HELLO into a session.
    async fn greet(&self, connection: TcpStream) -> io::Result<Greeted> {
        connection.set_nodelay(true)?;
        prepare(&connection);
        let keepalive = TcpKeepalive::new().with_time(KEEPALIVE).with_interval(KEEPALIVE_ANSWER);
        SockRef::from(&connection).set_tcp_keepalive(&keepalive)?;
        let mut stream = TlsStream::accept(Arc::clone(&self.tls), Transport::Accepted(connection))?;
        let mut reader = FrameReader::new();
        let first = loop {
            let is_sent = stream.flush()?;
            match stream.read()? {
                Received::Bytes(bytes) => {
                    reader.handle_bytes(bytes);
                    match reader.next_frame() {
                        Ok(None) => continue,
                        Ok(Some(frame)) => break Ok(frame),
                        Err(_) => break Err((codes::BAD_HELLO, "no HELLO")),
                    }
                }
                Received::Nothing => {}
                Received::End => return Err(io::ErrorKind::UnexpectedEof.into()),
            }
            stream.ready(!is_sent).await?;
        };
        let admitted = match first {
            Ok(Frame::Hello(hello)) => self.admit(&hello).map(|shared| (hello, shared)),
            Ok(_) => Err((codes::BAD_HELLO, "the first frame is no HELLO")),
            Err(refused) => Err(refused),
        };
        match admitted {
            Ok((hello, shared)) => {
                stream.write(&Frame::HelloOk(self.welcome()).to_bytes())?;
                let path = PathId(hello.path);
                let wake = shared.attach(hello.subflow, path, hello.backup, stream.transport());
                if self.sessions().is_draining {
                    // Those that were there were told already, perhaps over networks that are gone.
                    stream.write(&Frame::Drain.to_bytes())?;
                }
                self.metrics.subflows_begun.add(1);
                let rest = reader.into_rest();
                let subflow = Subflow::relay(shared, hello.subflow, stream, wake, rest);
                Ok(Greeted::Admitted(Box::new(subflow)))
            }
            Err((code, text)) => {
                self.metrics.hellos_refused.add(1);
                tracing::debug!(text, "a HELLO was refused");
                refuse(&mut stream, code, text).await?;
                Ok(Greeted::Refused(Box::new(stream)))
            }
        }
    }

    fn welcome(&self) -> HelloOk {
        HelloOk {
            version: VERSION,
            max_streams: self.config.limits.streams_per_session as u64,
            max_subflows: self.config.limits.subflows_per_session as u64,
            linger_seconds: self.config.session_linger.as_secs(),
            join_address: self.config.advertise.as_ref().map_or_else(String::new, ToString::to_string),
        }
    }

    /// The session that a HELLO begins or joins.
    fn admit(&self, hello: &Hello) -> Result<SharedSession, Refused> {
        if hello.version != VERSION {
            return Err((codes::BAD_HELLO, "another version of the protocol"));
        }
        let token = match &hello.kind {
            HelloKind::Init { token } => {
                let token = self.identity.tokens.verify(token);
                let token = token.map_err(|_| (codes::UNAUTHORIZED, "the invite is not of this relay"))?;
                self.roster.check(&token).map_err(|why| (codes::UNAUTHORIZED, why))?;
                Some(token)
            }
            HelloKind::Join => None,
        };
        let mut sessions = self.sessions();
        if let Some(entry) = sessions.by_key.get_mut(&hello.key) {
            // A first subflow may fail before its answer arrives, and be tried again.
            if token.is_some_and(|token| token.id != entry.token.id) {
                return Err((codes::UNAUTHORIZED, "the session is another user's"));
            }
            return entry.join(hello.subflow, self.config.limits.subflows_per_session);
        }
        let Some(token) = token else { return Err((codes::NO_SUCH_SESSION, "there is no such session")) };
        self.begin(&mut sessions, hello, token)
    }

    fn begin(&self, sessions: &mut Sessions, hello: &Hello, token: Token) -> Result<SharedSession, Refused> {
        let limits = &self.config.limits;
        if sessions.is_draining {
            return Err((codes::STOPPING, "the relay stops"));
        }
        let of_user = sessions.per_user.get(&token.id).copied().unwrap_or(0);
        if of_user >= limits.sessions_per_user || sessions.by_key.len() >= limits.sessions {
            return Err((codes::TOO_MANY_SESSIONS, "there are as many sessions as are allowed"));
        }
        let config = SessionConfig {
            limits: Limits {
                streams: limits.streams_per_session,
                subflows: limits.subflows_per_session,
                receive_per_stream: limits.stream_bytes,
                receive_in_all: limits.session_bytes,
                send_per_stream: limits.stream_bytes,
                send_in_all: limits.session_bytes,
                ..Limits::default()
            },
            ..SessionConfig::default()
        };
        let (shared, signals) = SharedSession::new(Session::new(Role::Relay, config, now()));
        let numbers = BTreeSet::from([hello.subflow.0]);
        let entry = Entry { shared: shared.clone(), token: token.clone(), numbers };
        sessions.by_key.insert(hello.key, entry);
        *sessions.per_user.entry(token.id).or_default() += 1;
        self.metrics.sessions_begun.add(1);
        tracing::info!(user = %token.name, "a session begins");
        let meter = self.roster.meter(&token);
        let Some(relay) = self.this.upgrade() else { return Err((codes::STOPPING, "the relay stops")) };
        let session = RelaySession { relay, key: hello.key, token, meter, shared: shared.clone(), signals };
        tokio::spawn(session.run());
        Ok(shared)
    }

    /// A session is over.
    pub(super) fn forget(&self, key: &SessionKey) {
        let mut sessions = self.sessions();
        let Some(entry) = sessions.by_key.remove(key) else { return };
        tracing::info!(user = %entry.token.name, "a session is over");
        if let Some(count) = sessions.per_user.get_mut(&entry.token.id) {
            *count -= 1;
            if *count == 0 {
                sessions.per_user.remove(&entry.token.id);
            }
        }
    }

    /// The addresses of this host, by which nothing but what is allowed is reached.
    pub(super) fn own_addresses(&self) -> Vec<IpAddr> {
        let mut own = self.own.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((at, addresses)) = &*own
            && at.elapsed() < OWN_ADDRESSES_KEPT
        {
            return addresses.clone();
        }
        match multiway_edge::addresses::own() {
            Ok(addresses) => own.insert((Instant::now(), addresses)).1.clone(),
            Err(error) => {
                tracing::warn!(%error, "the relay's own addresses cannot be listed; the last list stays");
                own.as_ref().map(|(_, addresses)| addresses.clone()).unwrap_or_default()
            }
        }
    }

    fn gauges(&self) -> Gauges {
        let sessions = self.sessions();
        let sum = |count: fn(&SharedSession) -> usize| {
            sessions.by_key.values().map(|entry| count(&entry.shared)).sum()
        };
        Gauges {
            sessions: sessions.by_key.len(),
            subflows: sum(SharedSession::subflows),
            streams: sum(SharedSession::streams),
            draining: sessions.is_draining,
        }
    }

    async fn housekeeping(self: Arc<Self>) -> RelayError {
        for second in 0_u64.. {
            sleep(ROSTER_INTERVAL).await;
            // A file that is just being changed by hand is read again a second later.
            match self.roster.refresh() {
                Ok(()) => self.shut_out(),
                Err(error) => tracing::warn!(%error, "the list of users as it was before stays in force"),
            }
            if second % USAGE_INTERVAL == 0
                && let Err(error) = self.roster.settle()
            {
                tracing::warn!(%error, "usage is counted and not written");
            }
        }
        RelayError::PartFailed { part: "housekeeping", error: io::Error::other("it ended") }
    }

    /// Ends the sessions of those who may not stay.
    fn shut_out(&self) {
        for entry in self.sessions().by_key.values() {
            if let Err(why) = self.roster.check(&entry.token) {
                entry.shared.end(codes::UNAUTHORIZED, why);
            }
        }
    }

    /// Tells every device that the relay goes away, and waits until no stream is left.
    async fn drain(&self) {
        {
            let mut sessions = self.sessions();
            sessions.is_draining = true;
            tracing::info!(sessions = sessions.by_key.len(), "draining");
            sessions.by_key.values().for_each(|entry| entry.shared.send_everywhere(&Frame::Drain));
        }
        let deadline = Instant::now() + self.config.drain;
        while self.gauges().streams > 0 && Instant::now() < deadline {
            sleep(DRAIN_INTERVAL).await;
        }
    }

    fn end_all(&self, code: u64, text: &str) {
        self.sessions().by_key.values().for_each(|entry| entry.shared.end(code, text));
    }

    fn sessions(&self) -> MutexGuard<'_, Sessions> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Entry {
    fn join(&mut self, subflow: SubflowId, most: usize) -> Result<SharedSession, Refused> {
        let highest = self.numbers.last().copied().unwrap_or(0);
        let is_stale = subflow.0 + NUMBERS_REMEMBERED < highest;
        if is_stale || self.shared.subflows() >= most || !self.numbers.insert(subflow.0) {
            return Err((codes::TOO_MANY_SUBFLOWS, "too many subflows, or a number used before"));
        }
        while self.numbers.first().is_some_and(|&first| first + NUMBERS_REMEMBERED < highest) {
            self.numbers.pop_first();
        }
        Ok(self.shared.clone())
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use rustls_pki_types::ServerName;

    use super::*;

    /// What takes longer has stalled.
    const SOON: Duration = Duration::from_secs(10);

    /// Both ends of a new connection over loopback, the accepted one last.
    async fn connect() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("loopback");
        let address = listener.local_addr().expect("it is bound");
        let (connection, accepted) = tokio::join!(TcpStream::connect(address), listener.accept());
        (connection.expect("it listens"), accepted.expect("one came").0)
    }

    #[tokio::test]
    async fn the_kernel_asks_devices_that_say_nothing_whether_they_are_still_there() {
        let state = tempfile::tempdir().expect("a directory");
        let relay = Relay::new(RelayConfig::default(), state.path()).expect("a relay");
        let (_device, accepted) = connect().await;
        let socket = SockRef::from(&accepted).try_clone().expect("a descriptor");
        tokio::select! {
            biased;
            _ = relay.greet(accepted) => panic!("the device said nothing"),
            () = std::future::ready(()) => {}
        }
        assert!(socket.keepalive().expect("an option"));
        assert_eq!(socket.tcp_keepalive_time().expect("an option"), KEEPALIVE);
        assert_eq!(socket.tcp_keepalive_interval().expect("an option"), KEEPALIVE_ANSWER);
        let user_timeout = socket.tcp_user_timeout().expect("an option").expect("it is set");
        assert!(user_timeout <= KEEPALIVE, "Linux would ask more than once");
    }

    #[tokio::test]
    async fn who_is_refused_may_end_its_words_and_hears_why() {
        const BEHIND: usize = 1 << 20;
        let state = tempfile::tempdir().expect("a directory");
        let relay = Relay::new(RelayConfig::default(), state.path()).expect("a relay");
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("loopback");
        let connection = TcpStream::connect(listener.local_addr().expect("it is bound")).await;
        let accepting = tokio::spawn(accept(Arc::clone(&relay), listener));
        let tls = tls::device(relay.identity.pin()).expect("a device");
        let name = ServerName::IpAddress(Ipv4Addr::LOCALHOST.into());
        let transport = Transport::Accepted(connection.expect("it listens"));
        let mut device = TlsStream::connect(tls, name, transport).expect("a device's end");
        let hello = Hello {
            version: VERSION,
            key: SessionKey([7; 16]),
            subflow: SubflowId(0),
            path: 0,
            backup: false,
            kind: HelloKind::Join,
        };
        let refused = async {
            device.handshake().await?;
            device.write(&Frame::Hello(hello).to_bytes())?;
            device.flush()?;
            let mut reader = FrameReader::new();
            let frame = loop {
                match device.read()? {
                    Received::Bytes(bytes) => reader.handle_bytes(bytes),
                    Received::Nothing => device.ready(false).await?,
                    Received::End => return Err(io::ErrorKind::UnexpectedEof.into()),
                }
                if let Some(frame) = reader.next_frame().map_err(io::Error::other)? {
                    break frame;
                }
            };
            // Was on its way when the refusal was said.
            device.write(&vec![7; BEHIND])?;
            while !device.flush()? {
                device.ready_for_writing().await?;
            }
            device.finish().await.map(|()| frame)
        };
        let frame = timeout(SOON, refused).await.expect("in time").expect("the relay resets nothing");
        assert!(matches!(frame, Frame::Close { code: codes::NO_SUCH_SESSION, .. }), "{frame:?}");
        accepting.abort();
    }
}
