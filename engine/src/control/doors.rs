//! How many may be connected to the control socket at once, and for how long without asking anything.
//!
//! Where every local user may run programs, none of them may keep the others out.

use std::collections::BTreeMap;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::serve::Listener;
use multiway_api::{Problem, ProblemCode};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::unix::SocketAddr;
use tokio::net::{UnixListener, UnixStream};
use tokio::time::{Sleep, sleep};

use super::Caller;
use super::access::own_user;

/// Connections of all users at once: a quarter of the open files that a process usually may have.
pub(super) const MOST_CONNECTIONS: usize = 256;

/// Connections of one user at once. One lasts for milliseconds; a build may run many programs at once.
pub(super) const MOST_OF_A_USER: usize = 64;

/// How long a request may take to arrive; the command line sends it at once.
const REQUEST_TIME: Duration = Duration::from_secs(10);

/// Wait after a failure to accept, which most likely comes of too many open files.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The control socket's listener, which turns away whom there is no room for.
pub(super) struct Doors {
    listener: UnixListener,
    seats: Seats,
}

/// Connections by user.
type Seats = Arc<Mutex<BTreeMap<u32, usize>>>;

impl Doors {
    pub(super) fn new(listener: UnixListener) -> Self {
        Self { listener, seats: Seats::default() }
    }

    /// Room for one more connection of `user`. Root and the daemon's own user can stop the daemon
    /// whenever others take all the room.
    fn seat(&self, user: u32) -> Option<Seat> {
        let mut seats = self.seats.lock().unwrap_or_else(PoisonError::into_inner);
        let total: usize = seats.values().sum();
        let is_trusted = user == 0 || Some(user) == own_user();
        let taken = seats.entry(user).or_default();
        if *taken >= MOST_OF_A_USER || (total >= MOST_CONNECTIONS && !is_trusted) {
            return None;
        }
        *taken += 1;
        Some(Seat { seats: Arc::clone(&self.seats), user })
    }
}

impl Listener for Doors {
    type Io = Visitor;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Visitor, SocketAddr) {
        loop {
            let (stream, address) = match self.listener.accept().await {
                Ok(accepted) => accepted,
                Err(error) => {
                    tracing::warn!(%error, "the control socket cannot accept");
                    sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            let caller = Caller::of(&stream);
            match caller.as_ref().and_then(|caller| self.seat(caller.user)) {
                Some(seat) => {
                    let patience = Box::pin(sleep(REQUEST_TIME));
                    return (Visitor { stream, caller, patience, is_answered: false, _seat: seat }, address);
                }
                None => turn_away(&stream),
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// Says why, as far as that can be said at once.
fn turn_away(stream: &UnixStream) {
    let problem = Problem {
        code: ProblemCode::Failed,
        message: "too many connections to the control socket; try again".to_owned(),
    };
    let body = serde_json::to_string(&problem).expect("a problem has only string keys");
    let answer = format!(
        "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    );
    // Whoever left hears nothing.
    let _ = stream.try_write(answer.as_bytes());
}

/// A connection's place among those of its user.
struct Seat {
    seats: Seats,
    user: u32,
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut seats = self.seats.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(taken) = seats.get_mut(&self.user) {
            *taken -= 1;
            if *taken == 0 {
                seats.remove(&self.user);
            }
        }
    }
}

/// One connection, for one request.
pub(super) struct Visitor {
    stream: UnixStream,
    /// The kernel's word on who it is.
    pub(super) caller: Option<Caller>,
    /// Ends when the request should be there.
    patience: Pin<Box<Sleep>>,
    is_answered: bool,
    _seat: Seat,
}

impl AsyncRead for Visitor {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let read = Pin::new(&mut self.stream).poll_read(cx, buffer);
        if read.is_pending() && !self.is_answered && self.patience.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        read
    }
}

impl AsyncWrite for Visitor {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.is_answered = true;
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
