//! One device's session on the relay: its streams' destinations, and its end.

use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::time::Duration;

use multiway_core::bond::wire::{CLOSE_SESSION, Destination, Host, OpenResult, SessionKey};
use multiway_core::bond::{Event, SubflowId};
use socket2::SockRef;
use tokio::net::TcpStream;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};

use super::roster::Meter;
use super::server::Relay;
use crate::bond::codes;
use crate::bond::shared::{SharedSession, Signal, SubflowEnd};
use crate::bond::stream::{BondStream, CarryError};
use crate::bond::subflow::ends_session;
use crate::bond::token::Token;
use crate::proxy::race::race;
use crate::proxy::relay::reset;

/// How long a name may take to be looked up.
const LOOKUP: Duration = Duration::from_secs(10);

/// How long a destination may take to accept: four retransmissions of the SYN.
const CONNECT: Duration = Duration::from_secs(15);

/// How long an address may take before the next one of the same name is tried beside it, RFC 8305
/// section 8.
const ADDRESS_STAGGER: Duration = Duration::from_millis(250);

/// Addresses of one name that are tried.
const MAX_ADDRESSES: usize = 6;

/// What a stream takes of the relay's while its task runs or its name is looked up. A stream that is reset gives
/// its place in the session back at once, and these only when they are free.
type Permit = Arc<OwnedSemaphorePermit>;

/// A session as its own task has it.
pub(super) struct RelaySession {
    pub(super) relay: Arc<Relay>,
    pub(super) key: SessionKey,
    pub(super) token: Token,
    pub(super) meter: Arc<Meter>,
    pub(super) shared: SharedSession,
    pub(super) signals: UnboundedReceiver<Signal>,
}

impl RelaySession {
    /// Runs until the session is over.
    pub(super) async fn run(mut self) {
        let mut streams = JoinSet::new();
        let permits = Arc::new(Semaphore::new(self.relay.config.limits.streams_per_session));
        let mut linger: Option<Instant> = None;
        let shared = self.shared.clone();
        let mut time = std::pin::pin!(shared.keep_time());
        loop {
            let signal = tokio::select! {
                signal = self.signals.recv() => signal,
                () = &mut time => None,
                Some(_) = streams.join_next() => continue,
                () = self.meter.exhausted(), if !streams.is_empty() => {
                    tracing::info!(user = %self.token.name, "the month's allowance is used up");
                    streams.shutdown().await;
                    continue;
                }
                () = async { sleep_until(linger.unwrap_or_else(Instant::now)).await }, if linger.is_some() => {
                    if self.shared.subflows() == 0 {
                        break;
                    }
                    // The device joined again, which is no signal.
                    linger = None;
                    continue;
                }
            };
            let Some(signal) = signal else { break };
            match signal {
                Signal::Opening { stream, destination } => {
                    let stream = BondStream::new(self.shared.clone(), stream);
                    let permit = Arc::clone(&permits).try_acquire_owned();
                    let (false, Ok(permit)) = (self.meter.is_exhausted(), permit) else {
                        refuse(&self.relay, &stream, OpenResult::OverLimit);
                        continue;
                    };
                    streams.spawn(serve(
                        Arc::clone(&self.relay),
                        Arc::clone(&self.meter),
                        stream,
                        destination,
                        Arc::new(permit),
                    ));
                }
                Signal::SubflowEnded { subflow, how } => {
                    self.tell(subflow, &how);
                    linger = None;
                    if ends_session(&how) {
                        if let SubflowEnd::Violation(violation) = &how {
                            self.shared.end(violation.code(), &violation.to_string());
                        }
                        break;
                    }
                }
                Signal::Event(Event::Closed { code, .. }) if code & CLOSE_SESSION != 0 => break,
                Signal::Action(_) | Signal::Event(_) | Signal::Welcome { .. } => {}
            }
            // What was ended here is not waited for.
            if self.shared.is_over() && self.shared.subflows() == 0 {
                break;
            }
            linger = match self.shared.subflows() {
                0 => linger.or_else(|| Some(Instant::now() + self.relay.config.session_linger)),
                _ => None,
            };
        }
        self.shared.end(codes::NORMAL | CLOSE_SESSION, "");
        streams.shutdown().await;
        self.relay.forget(&self.key);
    }

    fn tell(&self, subflow: SubflowId, how: &SubflowEnd) {
        let user = &self.token.name;
        match how {
            SubflowEnd::Violation(violation) => {
                self.relay.metrics.violations.add(1);
                tracing::warn!(%user, %subflow, %violation, "a device broke the protocol");
            }
            SubflowEnd::Failed(error) => tracing::debug!(%user, %subflow, %error, "a subflow failed"),
            SubflowEnd::Closed | SubflowEnd::Refused(..) => {
                tracing::debug!(%user, %subflow, "a subflow was closed");
            }
        }
    }
}

/// Connects a stream and carries it to its end.
async fn serve(
    relay: Arc<Relay>,
    meter: Arc<Meter>,
    stream: BondStream,
    destination: Destination,
    permit: Permit,
) {
    relay.metrics.streams_begun.add(1);
    let connected = tokio::select! {
        connected = connect(&relay, &destination, &permit) => connected,
        // Nobody waits for it any more.
        _ = stream.until_over() => return,
    };
    let mut outgoing = match connected {
        Ok(connection) => Outgoing::new(connection),
        Err(result) => return refuse(&relay, &stream, result),
    };
    stream.accept(OpenResult::Connected);
    let up = |bytes| {
        relay.metrics.bytes_to_devices.add(bytes);
        meter.add(bytes);
    };
    let down = |bytes| {
        relay.metrics.bytes_from_devices.add(bytes);
        meter.add(bytes);
    };
    match stream.carry(&outgoing.connection, up, down).await {
        Ok(()) => outgoing.is_done = true,
        Err(CarryError::Connection(error)) => tracing::trace!(%error, "a stream's connection was cut"),
        Err(CarryError::Stream(_)) => {}
    }
}

/// A destination's connection. One that is cut is reset: an end in good order would say that all bytes came.
struct Outgoing {
    connection: TcpStream,
    is_done: bool,
}

impl Outgoing {
    fn new(connection: TcpStream) -> Self {
        // From now on, so that a relay that is killed does it too.
        reset(&connection);
        Self { connection, is_done: false }
    }
}

impl Drop for Outgoing {
    fn drop(&mut self) {
        if !self.is_done {
            reset(&self.connection);
        }
    }
}

fn refuse(relay: &Relay, stream: &BondStream, result: OpenResult) {
    relay.metrics.streams_refused.add(1);
    tracing::debug!(?result, "a stream was not connected");
    stream.accept(result);
}

async fn connect(relay: &Relay, destination: &Destination, permit: &Permit) -> Result<TcpStream, OpenResult> {
    let addresses: Vec<SocketAddr> = match &destination.host {
        Host::Address(address) => vec![SocketAddr::new(*address, destination.port)],
        Host::Name(name) => {
            let (name, port, permit) = (name.clone(), destination.port, Arc::clone(permit));
            let lookup = tokio::task::spawn_blocking(move || {
                // Its thread works on when nobody waits any more.
                let _permit = permit;
                (name.as_str(), port).to_socket_addrs()
            });
            match timeout(LOOKUP, lookup).await {
                Ok(Ok(Ok(addresses))) => addresses.collect(),
                Ok(_) => return Err(OpenResult::NoSuchHost),
                Err(_) => return Err(OpenResult::TimedOut),
            }
        }
    };
    if addresses.is_empty() {
        return Err(OpenResult::NoSuchHost);
    }
    let own: Vec<IpAddr> = relay.own_addresses();
    let permitted: Vec<SocketAddr> = addresses
        .into_iter()
        .filter(|address| relay.config.destinations.permit(address.ip(), address.port(), &own))
        .take(MAX_ADDRESSES)
        .collect();
    if permitted.is_empty() {
        return Err(OpenResult::Forbidden);
    }
    let attempts = permitted.into_iter().map(|address| async move {
        match timeout(CONNECT, TcpStream::connect(address)).await {
            Ok(Ok(connection)) => Ok(connection),
            Ok(Err(error)) if error.kind() == std::io::ErrorKind::ConnectionRefused => {
                Err(OpenResult::Refused)
            }
            Ok(Err(_)) => Err(OpenResult::Unreachable),
            Err(_) => Err(OpenResult::TimedOut),
        }
    });
    let connection = race(attempts, ADDRESS_STAGGER)
        .await
        .map_err(|failures| failures.first().copied().unwrap_or(OpenResult::Unreachable))?;
    // What a program wrote at once is sent at once; a peer that is gone for good must not hold the
    // stream for ever.
    let _ = connection.set_nodelay(true);
    let _ = SockRef::from(&connection).set_keepalive(true);
    Ok(connection)
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use multiway_core::bond::scheduler::SchedulerKind;
    use multiway_core::bond::wire::Frame;
    use multiway_core::bond::{Role, Session, SessionConfig, StreamClass, StreamId};
    use multiway_core::paths::PathId;
    use tempfile::TempDir;
    use tokio::net::TcpListener;
    use tokio::task::JoinHandle;
    use tokio::time::sleep;

    use super::*;
    use crate::bond::connection::Transport;
    use crate::bond::token::TokenId;
    use crate::paths::now;
    use crate::relay::config::RelayConfig;

    /// What takes longer has stalled.
    const SOON: Duration = Duration::from_secs(10);

    /// A session that runs on a relay without listeners.
    struct Running {
        relay: Arc<Relay>,
        shared: SharedSession,
        task: JoinHandle<()>,
        _state: TempDir,
    }

    impl Running {
        fn start(config: RelayConfig) -> Self {
            let state = tempfile::tempdir().expect("a directory");
            let relay = Relay::new(config, state.path()).expect("a relay");
            let id = TokenId([7; TokenId::LENGTH]);
            let token = Token { id, name: "ada".to_owned(), expires: None, monthly_bytes: None };
            let meter = relay.roster.meter(&token);
            let session = Session::new(Role::Relay, SessionConfig::default(), now());
            let (shared, signals) = SharedSession::new(session);
            let key = SessionKey([7; 16]);
            let session = RelaySession {
                relay: Arc::clone(&relay),
                key,
                token,
                meter,
                shared: shared.clone(),
                signals,
            };
            Self { relay, shared, task: tokio::spawn(session.run()), _state: state }
        }

        async fn join(&self, subflow: SubflowId) {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("loopback");
            let address = listener.local_addr().expect("it is bound");
            let connection = TcpStream::connect(address).await.expect("it listens");
            let transport = Arc::new(Transport::Accepted(connection));
            self.shared.attach(subflow, PathId(0), false, &transport);
        }

        fn leave(&self, subflow: SubflowId) {
            self.shared.detach(subflow, SubflowEnd::Closed);
        }

        fn receive(&self, subflow: SubflowId, frame: Frame) {
            self.shared.received(subflow, vec![frame.to_bytes()]).expect("a relay takes it");
        }
    }

    /// An address of loopback where no connection comes about while the sockets are kept.
    fn silent() -> (SocketAddr, [socket2::Socket; 2]) {
        let socket = || socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None);
        let [listener, first] = [socket(), socket()].map(|socket| socket.expect("a socket"));
        listener.bind(&SocketAddr::from((Ipv4Addr::LOCALHOST, 0)).into()).expect("loopback");
        // Room for one connection that nobody accepts; Linux ignores the SYNs of others.
        listener.listen(0).expect("it is bound");
        let address = listener.local_addr().expect("it is bound");
        first.connect(&address).expect("there is room");
        (address.as_socket().expect("IPv4"), [listener, first])
    }

    #[tokio::test]
    async fn a_stream_that_is_reset_is_not_connected_any_further_and_takes_its_place_until_then() {
        let mut config = RelayConfig::default();
        config.destinations.allow = vec!["127.0.0.0/8".parse().expect("a network")];
        config.limits.streams_per_session = 2;
        let session = Running::start(config);
        let (silent, _sockets) = silent();
        let subflow = SubflowId(0);
        session.join(subflow).await;
        let idle = Arc::strong_count(&session.relay);
        let metrics = &session.relay.metrics;
        let open = |stream| {
            let destination = Destination { host: Host::Address(silent.ip()), port: silent.port() };
            let (class, scheduler) = (StreamClass::Auto, SchedulerKind::MinRtt);
            session.receive(subflow, Frame::Open { stream, class, scheduler, destination });
        };
        let streams = [0, 1, 2, 3].map(StreamId);
        for stream in streams {
            open(stream);
            // Before any task could hear of it.
            session.receive(subflow, Frame::Reset { stream, code: 1, end: 0, answer: false });
        }
        let settled = async {
            while metrics.streams_begun.get() + metrics.streams_refused.get() < streams.len() as u64
                || Arc::strong_count(&session.relay) > idle
            {
                tokio::task::yield_now().await;
            }
        };
        timeout(SOON, settled).await.expect("what nobody waits for goes on");
        assert!(metrics.streams_refused.get() > 0, "there are more tasks than streams are allowed");
        let refused = metrics.streams_refused.get();
        open(StreamId(4));
        let begun = async {
            while Arc::strong_count(&session.relay) == idle {
                tokio::task::yield_now().await;
            }
        };
        timeout(SOON, begun).await.expect("there is a place again");
        assert_eq!(metrics.streams_refused.get(), refused);
    }

    #[tokio::test]
    async fn a_session_without_subflows_ends_after_its_linger_and_not_when_its_device_joined_again() {
        let config = RelayConfig::default();
        let linger = config.session_linger;
        let session = Running::start(config);
        let [first, second, third] = [0, 1, 2].map(SubflowId);
        session.join(first).await;
        session.leave(first);
        session.join(second).await;
        tokio::time::pause();
        sleep(linger * 2).await;
        assert!(!session.task.is_finished(), "the device is there");
        // Each absence has all of its time.
        session.leave(second);
        sleep(linger / 3 * 2).await;
        tokio::time::resume();
        session.join(third).await;
        session.leave(third);
        tokio::time::pause();
        sleep(linger / 3 * 2).await;
        assert!(!session.task.is_finished(), "the device has been away for less than the linger");
        sleep(linger).await;
        assert!(session.task.is_finished() && session.shared.is_over());
    }
}
