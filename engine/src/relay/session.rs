//! One device's session on the relay: its streams' destinations, and its end.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use multiway_core::bond::wire::{CLOSE_SESSION, Destination, Host, OpenResult, SessionKey};
use multiway_core::bond::{Event, SubflowId};
use socket2::SockRef;
use tokio::net::TcpStream;
use tokio::sync::mpsc::UnboundedReceiver;
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
                    if self.meter.is_exhausted() {
                        refuse(&self.relay, &stream, OpenResult::OverLimit);
                        continue;
                    }
                    streams.spawn(serve(
                        Arc::clone(&self.relay),
                        Arc::clone(&self.meter),
                        stream,
                        destination,
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
async fn serve(relay: Arc<Relay>, meter: Arc<Meter>, stream: BondStream, destination: Destination) {
    relay.metrics.streams_begun.add(1);
    let mut outgoing = match connect(&relay, &destination).await {
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

async fn connect(relay: &Relay, destination: &Destination) -> Result<TcpStream, OpenResult> {
    let addresses: Vec<SocketAddr> = match &destination.host {
        Host::Address(address) => vec![SocketAddr::new(*address, destination.port)],
        Host::Name(name) => {
            let lookup = tokio::net::lookup_host((name.as_str(), destination.port));
            match timeout(LOOKUP, lookup).await {
                Ok(Ok(addresses)) => addresses.collect(),
                Ok(Err(_)) => return Err(OpenResult::NoSuchHost),
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

    use multiway_core::bond::{Role, Session, SessionConfig};
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

    /// A session that runs on a relay without listeners.
    struct Running {
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
            let session = RelaySession { relay, key, token, meter, shared: shared.clone(), signals };
            Self { shared, task: tokio::spawn(session.run()), _state: state }
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
