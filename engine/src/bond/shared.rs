//! A session and those who use it at once: its subflows' tasks, its streams' tasks, and the one that owns it.
//!
//! The state machine is behind one lock, held for a call each. After every call what it asks for goes to
//! whom it concerns: frames to subflows whose sockets take some, wake-ups to streams, the rest as
//! [`Signal`]s to the owner.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::Duration;

use bytes::Bytes;
use multiway_core::bond::wire::{Destination, Frame, HelloOk, OpenResult};
use multiway_core::bond::{
    Action, Event, Refusal, Session, StreamClass, StreamId, SubflowId, SubflowSample, Violation,
};
use multiway_core::paths::{PathId, TcpSample};
use multiway_core::units::Timestamp;
use multiway_edge::tcp_info;
use tokio::sync::{Notify, mpsc};
use tokio::time::sleep;

use super::codes;
use super::connection::Transport;
use crate::paths::now;

/// What the owner of a session is told.
#[derive(Debug)]
pub(crate) enum Signal {
    /// Something to be done.
    Action(Action),
    /// Something that happened, of no concern to a single stream.
    Event(Event),
    /// The device opened a stream (relay).
    Opening {
        /// Which one; [`SharedSession::stream`] gives its bytes.
        stream: StreamId,
        /// Where to.
        destination: Destination,
    },
    /// The relay accepted a subflow (device).
    Welcome {
        /// Which one.
        subflow: SubflowId,
        /// What it said.
        hello: HelloOk,
    },
    /// A subflow's task ended.
    SubflowEnded {
        /// Which one.
        subflow: SubflowId,
        /// How.
        how: SubflowEnd,
    },
}

/// How a subflow ended.
#[derive(Debug)]
pub(crate) enum SubflowEnd {
    /// In good order.
    Closed,
    /// The network or the far end's machine failed it.
    Failed(std::io::Error),
    /// The far end broke the protocol.
    Violation(Violation),
    /// The far end refused it, with a code and words for people.
    Refused(u64, String),
}

/// How a stream ended, when not in good order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum StreamOver {
    /// The far end reset it.
    #[error("the stream was reset (code {0})")]
    Reset(u64),
    /// The relay could not connect it.
    #[error("the relay did not connect the stream: {0:?}")]
    Refused(OpenResult),
    /// The session is over.
    #[error("the session with the relay is over")]
    Lost,
}

/// See the module; clones are the same session.
#[derive(Debug, Clone)]
pub(crate) struct SharedSession {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    state: Mutex<State>,
    /// The time of the next timeout changed.
    rearmed: Notify,
    signals: mpsc::UnboundedSender<Signal>,
}

#[derive(Debug)]
struct State {
    session: Session,
    subflows: BTreeMap<SubflowId, SubflowPort>,
    streams: HashMap<StreamId, StreamPort>,
    armed: Option<Timestamp>,
    /// The path that brought the last bytes.
    last_path: Option<PathId>,
    /// Most streams that the relay takes at once, once it said so (device).
    most_streams: usize,
    /// Where the relay that has the session wants joins to go, once it said so (device).
    home: Option<String>,
    /// Why it is over: a code, and words for people.
    over: Option<(u64, String)>,
}

#[derive(Debug)]
struct SubflowPort {
    path: PathId,
    /// Its task is to look again.
    wake: Arc<Notify>,
    transport: Arc<Transport>,
    /// How much its idle socket takes.
    idle_room: Option<usize>,
    /// Frames that go first.
    outbox: VecDeque<Bytes>,
    is_closing: bool,
}

#[derive(Debug, Default)]
struct StreamPort {
    reader: Option<Waker>,
    writer: Option<Waker>,
    opened: Option<OpenResult>,
    over: Option<StreamOver>,
}

impl StreamPort {
    fn wake(&mut self) {
        self.reader.take().into_iter().chain(self.writer.take()).for_each(Waker::wake);
    }
}

/// A subflow and the kernel's view of it.
#[derive(Debug)]
pub(crate) struct SubflowReading {
    pub(crate) id: SubflowId,
    pub(crate) path: PathId,
    pub(crate) transport: Arc<Transport>,
    pub(crate) sample: TcpSample,
}

/// What a subflow's task is to do next.
#[derive(Debug)]
pub(crate) enum Next {
    /// Send these frames.
    Send(Bytes),
    /// Wait until it is woken.
    Wait,
    /// End in good order.
    Close,
}

impl SharedSession {
    pub(crate) fn new(session: Session) -> (Self, mpsc::UnboundedReceiver<Signal>) {
        let (signals, received) = mpsc::unbounded_channel();
        let state = State {
            session,
            subflows: BTreeMap::new(),
            streams: HashMap::new(),
            armed: None,
            last_path: None,
            most_streams: usize::MAX,
            home: None,
            over: None,
        };
        let inner = Inner { state: Mutex::new(state), rearmed: Notify::new(), signals };
        (Self { inner: Arc::new(inner) }, received)
    }

    /// Whether both are the same session.
    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }

    /// Calls into the session, and hands out what follows.
    pub(crate) fn with<R>(&self, call: impl FnOnce(&mut Session, Timestamp) -> R) -> R {
        let mut state = self.lock();
        let now = now();
        let result = call(&mut state.session, now);
        self.settle(&mut state, now);
        result
    }

    /// Looks at the session.
    pub(crate) fn look<R>(&self, look: impl FnOnce(&Session) -> R) -> R {
        look(&self.lock().session)
    }

    /// Keeps the session's time until dropped.
    pub(crate) async fn keep_time(&self) {
        loop {
            let due = self.lock().armed;
            let left = due.map(|due| due.saturating_since(now()));
            tokio::select! {
                () = async { sleep(left.unwrap_or(Duration::MAX)).await }, if left.is_some() => {
                    self.with(|session, now| session.handle_timeout(now));
                }
                () = self.inner.rearmed.notified() => {}
            }
        }
    }

    /// Begins a stream (device).
    pub(super) fn open(&self, destination: Destination, class: StreamClass) -> Result<StreamId, Refusal> {
        let mut state = self.lock();
        if state.over.is_some() {
            return Err(Refusal::Draining);
        }
        // More would be a violation, and the end of the subflow that says so.
        if state.session.streams() >= state.most_streams {
            return Err(Refusal::TooMany);
        }
        let now = now();
        let id = state.session.open_stream(destination, class, now)?;
        state.streams.insert(id, StreamPort::default());
        self.settle(&mut state, now);
        Ok(id)
    }

    /// Everything ends at once: streams are lost and subflows close, saying this.
    pub(crate) fn end(&self, code: u64, text: &str) {
        let mut state = self.lock();
        state.over.get_or_insert_with(|| (code, text.to_owned()));
        for port in state.streams.values_mut() {
            port.over.get_or_insert(StreamOver::Lost);
            port.wake();
        }
        for port in state.subflows.values_mut() {
            port.is_closing = true;
            port.wake.notify_one();
        }
    }

    /// What subflows that close say.
    pub(crate) fn farewell(&self) -> (u64, String) {
        self.lock().over.clone().unwrap_or((codes::NORMAL, String::new()))
    }

    /// Sends a frame of the engine's own on every subflow.
    pub(crate) fn send_everywhere(&self, frame: &Frame) {
        let bytes = frame.to_bytes();
        for port in self.lock().subflows.values_mut() {
            port.idle_room = None;
            port.outbox.push_back(bytes.clone());
            port.wake.notify_one();
        }
    }

    /// Streams that are not over: those too whose tasks have ended, while their last bytes are on the way.
    pub(crate) fn streams(&self) -> usize {
        let state = self.lock();
        if state.over.is_some() { 0 } else { state.session.streams() }
    }

    /// Whether it was ended.
    pub(crate) fn is_over(&self) -> bool {
        self.lock().over.is_some()
    }

    /// The kernel's view of every subflow, as of now.
    pub(crate) fn samples(&self) -> Vec<SubflowReading> {
        let read = |(&id, port): (&SubflowId, &SubflowPort)| {
            let transport = Arc::clone(&port.transport);
            (id, port.path, transport)
        };
        // Those that close may not get their last words out for long, and are not used any more.
        let is_used = |(_, port): &(&SubflowId, &SubflowPort)| !port.is_closing;
        let ports: Vec<_> = self.lock().subflows.iter().filter(is_used).map(read).collect();
        let reading = |(id, path, transport): (SubflowId, PathId, Arc<Transport>)| {
            // One that is gone is told of elsewhere.
            let sample = tcp_info::sample(transport.as_fd(), now()).ok()?;
            Some(SubflowReading { id, path, transport, sample })
        };
        ports.into_iter().filter_map(reading).collect()
    }

    /// A relay takes a subflow; false when it is another one than that which has the session. Two attempts to
    /// begin, of which a load balancer gave each to a relay of its own, may both succeed.
    pub(crate) fn welcome(&self, subflow: SubflowId, hello: HelloOk, begins: bool) -> bool {
        let mut state = self.lock();
        let home = state.home.get_or_insert_with(|| hello.join_address.clone());
        if begins && *home != hello.join_address {
            return false;
        }
        drop(state);
        self.signal(Signal::Welcome { subflow, hello });
        true
    }

    /// Subflows there are.
    pub(crate) fn subflows(&self) -> usize {
        self.lock().subflows.len()
    }

    /// The path that brought the last bytes.
    pub(crate) fn last_path(&self) -> Option<PathId> {
        self.lock().last_path
    }

    /// Enters a subflow; its task waits at what is returned.
    pub(crate) fn attach(
        &self,
        id: SubflowId,
        path: PathId,
        backup: bool,
        transport: &Arc<Transport>,
    ) -> Arc<Notify> {
        let wake = Arc::new(Notify::new());
        let port = SubflowPort {
            path,
            wake: Arc::clone(&wake),
            transport: Arc::clone(transport),
            idle_room: None,
            outbox: VecDeque::new(),
            is_closing: false,
        };
        let mut state = self.lock();
        let now = now();
        // A session that ended meanwhile says so at once.
        let is_closing = state.over.is_some();
        state.subflows.insert(id, SubflowPort { is_closing, ..port });
        state.session.handle_subflow_up(id, path, backup, now);
        self.settle(&mut state, now);
        wake
    }

    /// A subflow that was never attached, or was, is gone.
    pub(crate) fn detach(&self, id: SubflowId, how: SubflowEnd) {
        let mut state = self.lock();
        let now = now();
        state.subflows.remove(&id);
        state.session.handle_subflow_down(id, now);
        self.settle(&mut state, now);
        self.signal(Signal::SubflowEnded { subflow: id, how });
    }

    /// What a subflow whose socket takes `room` bytes does next.
    pub(crate) fn next(&self, id: SubflowId, room: usize) -> Next {
        let mut guard = self.lock();
        let state = &mut *guard;
        let Some(port) = state.subflows.get_mut(&id) else { return Next::Close };
        if let Some(bytes) = port.outbox.pop_front() {
            return Next::Send(bytes);
        }
        port.idle_room = None;
        let now = now();
        if let Some(bytes) = state.session.poll_transmit(id, room, now) {
            self.settle(state, now);
            return Next::Send(bytes);
        }
        if port.is_closing {
            return Next::Close;
        }
        port.idle_room = Some(room);
        self.settle(state, now);
        Next::Wait
    }

    /// A subflow's socket takes nothing now; true when it is to close all the same.
    pub(crate) fn busy(&self, id: SubflowId) -> bool {
        let mut state = self.lock();
        state.session.handle_socket_full(id);
        let Some(port) = state.subflows.get_mut(&id) else { return true };
        port.idle_room = None;
        port.is_closing
    }

    /// A subflow brought plaintext, in these pieces.
    pub(crate) fn received(&self, id: SubflowId, pieces: Vec<Bytes>) -> Result<(), Violation> {
        let mut state = self.lock();
        let now = now();
        let port = state.subflows.get(&id);
        // The session has left it: what still comes was not acknowledged, and goes again elsewhere.
        if port.is_some_and(|port| port.is_closing) {
            return Ok(());
        }
        let path = port.map(|port| port.path);
        state.last_path = path.or(state.last_path);
        let session = &mut state.session;
        let result = pieces.into_iter().try_for_each(|piece| session.handle_received(id, piece, now));
        self.settle(&mut state, now);
        result
    }

    /// The kernel's view of a subflow.
    pub(crate) fn sampled(&self, id: SubflowId, sample: &SubflowSample) {
        self.with(|session, now| session.handle_sample(id, sample, now));
    }

    pub(crate) fn signal(&self, signal: Signal) {
        if let Signal::Welcome { hello, .. } = &signal {
            self.lock().most_streams = usize::try_from(hello.max_streams).unwrap_or(usize::MAX);
        }
        // An owner that is gone has no use for it.
        let _ = self.inner.signals.send(signal);
    }

    /// Calls into the session for a stream; `Err` once the stream is over.
    pub(super) fn for_stream<R>(
        &self,
        id: StreamId,
        call: impl FnOnce(&mut Session, Timestamp) -> R,
    ) -> Result<R, StreamOver> {
        let mut state = self.lock();
        if let Some(over) = state.streams.get(&id).map_or(Some(StreamOver::Lost), |port| port.over) {
            return Err(over);
        }
        let now = now();
        let result = call(&mut state.session, now);
        self.settle(&mut state, now);
        Ok(result)
    }

    /// Whether the relay connected the stream, once it said so.
    pub(super) fn opened(&self, id: StreamId, waker: &Waker) -> Option<Result<OpenResult, StreamOver>> {
        let mut state = self.lock();
        let Some(port) = state.streams.get_mut(&id) else { return Some(Err(StreamOver::Lost)) };
        if let Some(result) = port.opened {
            return Some(Ok(result));
        }
        if let Some(over) = port.over {
            return Some(Err(over));
        }
        port.reader = Some(waker.clone());
        None
    }

    /// Has a reader woken, unless something came meanwhile.
    pub(super) fn wait_to_read(&self, id: StreamId, waker: &Waker) {
        if let Some(port) = self.lock().streams.get_mut(&id) {
            port.reader = Some(waker.clone());
        }
    }

    /// Has a writer woken.
    pub(super) fn wait_to_write(&self, id: StreamId, waker: &Waker) {
        if let Some(port) = self.lock().streams.get_mut(&id) {
            port.writer = Some(waker.clone());
        }
    }

    /// Nobody uses the stream any more; with a `code` it is reset.
    pub(super) fn forget(&self, id: StreamId, code: Option<u64>) {
        let mut state = self.lock();
        let was_over = state.streams.remove(&id).is_none_or(|port| port.over.is_some());
        if let Some(code) = code.filter(|_| !was_over) {
            let now = now();
            state.session.reset(id, code, now);
            self.settle(&mut state, now);
        }
    }

    fn settle(&self, state: &mut State, now: Timestamp) {
        while let Some(event) = state.session.poll_event() {
            self.tell(state, event);
        }
        while let Some(action) = state.session.poll_action() {
            if let Action::CloseSubflow { id, .. } = action
                && let Some(port) = state.subflows.get_mut(&id)
            {
                port.is_closing = true;
                port.wake.notify_one();
            } else {
                self.signal(Signal::Action(action));
            }
        }
        let State { session, subflows, .. } = state;
        for (&id, port) in subflows.iter_mut() {
            if let Some(room) = port.idle_room
                && let Some(bytes) = session.poll_transmit(id, room, now)
            {
                port.idle_room = None;
                port.outbox.push_back(bytes);
                port.wake.notify_one();
            }
        }
        let due = state.session.poll_timeout();
        if due != state.armed {
            state.armed = due;
            self.inner.rearmed.notify_one();
        }
    }

    fn tell(&self, state: &mut State, event: Event) {
        match event {
            Event::StreamOpening { stream: id, destination, class: _ } => {
                state.streams.insert(id, StreamPort::default());
                self.signal(Signal::Opening { stream: id, destination });
            }
            Event::StreamOpened { stream, result } => {
                if let Some(port) = state.streams.get_mut(&stream) {
                    port.opened = Some(result);
                    if result != OpenResult::Connected {
                        port.over = Some(StreamOver::Refused(result));
                    }
                    port.wake();
                }
            }
            Event::Readable { stream } => {
                let port = state.streams.get_mut(&stream);
                port.and_then(|port| port.reader.take()).into_iter().for_each(Waker::wake);
            }
            Event::Writable { stream } => {
                let port = state.streams.get_mut(&stream);
                port.and_then(|port| port.writer.take()).into_iter().for_each(Waker::wake);
            }
            Event::StreamClosed { stream } => {
                if let Some(port) = state.streams.get_mut(&stream) {
                    port.wake();
                }
            }
            Event::StreamReset { stream, code } => {
                if let Some(port) = state.streams.get_mut(&stream) {
                    port.over.get_or_insert(StreamOver::Reset(code));
                    port.wake();
                }
            }
            event => self.signal(Signal::Event(event)),
        }
    }

    /// What the mutex guards is whole after every call, so a panic elsewhere does not spoil it.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.inner.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use multiway_core::bond::{Role, SessionConfig};

    use super::*;

    #[test]
    fn a_session_that_began_twice_stays_with_the_relay_that_answered_first() {
        let session = Session::new(Role::Device, SessionConfig::handover(), now());
        let (shared, _signals) = SharedSession::new(session);
        let hello = |address: &str| HelloOk {
            version: 1,
            max_streams: 1,
            max_subflows: 2,
            linger_seconds: 1,
            join_address: address.to_owned(),
        };
        assert!(shared.welcome(SubflowId(0), hello("one:443"), true));
        assert!(!shared.welcome(SubflowId(1), hello("two:443"), true));
        assert!(shared.welcome(SubflowId(2), hello("one:443"), true), "the same relay, asked twice");
        assert!(shared.welcome(SubflowId(3), hello("three:443"), false), "who knows the key may move");
    }
}
