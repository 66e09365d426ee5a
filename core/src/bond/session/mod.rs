//! The session's state machine.

use std::time::Duration;

use bytes::Bytes;

use super::action::{Action, Event, Read, Refusal, SendError, Suspicion, Violation};
use super::config::{Role, SessionConfig, StreamClass};
use super::subflow::{SubflowId, SubflowSample};
use super::wire::{Destination, OpenResult, StreamId};
use crate::mphttp::download::PathOffer;
use crate::paths::PathId;
use crate::units::{Rate, Timestamp};

/// What a detector needs to know of a path's use by a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PathObservation {
    /// When the oldest of what is outstanding on the path was sent; `None` when nothing is.
    pub outstanding_since: Option<Timestamp>,
    /// When the far end last acknowledged something that the path carries.
    pub last_ack_progress: Option<Timestamp>,
    /// When the path last brought any byte.
    pub last_received: Option<Timestamp>,
    /// Since when data is expected from the far end: of a stream that the path serves, the last
    /// data was not marked idle (M4). `None` when none is.
    pub expecting_since: Option<Timestamp>,
    /// The far end's retransmission timeout, as it last said (M4).
    pub far_timeout: Option<Duration>,
    /// The least smoothed round-trip time of the path's subflows.
    pub smoothed_rtt: Option<Duration>,
    /// Its mean deviation.
    pub rtt_variance: Option<Duration>,
    /// Subflows that are up.
    pub subflows: usize,
}

/// A subflow, for people.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SubflowStatus {
    /// Which.
    pub id: SubflowId,
    /// Its path.
    pub path: PathId,
    /// Whether it is a backup.
    pub backup: bool,
    /// Whether it has probably failed.
    pub suspect: bool,
    /// Bytes handed out for it, frames and all.
    pub sent: u64,
    /// Bytes that it brought.
    pub received: u64,
    /// Bytes that it carries and that are not acknowledged.
    pub outstanding: u64,
    /// Smoothed round-trip time; zero before the first sample.
    pub smoothed_rtt: Duration,
    /// Rate that it delivers.
    pub rate: Rate,
}

/// What a device and a relay share: streams over subflows.
#[derive(Debug)]
pub struct Session {
    role: Role,
    config: SessionConfig,
}

impl Session {
    /// A session without subflows. A device asks for the first one once it has paths.
    pub fn new(role: Role, config: SessionConfig, _now: Timestamp) -> Self {
        Self { role, config }
    }

    /// A subflow may carry frames from now on: on the device the HELLO is written in front of them,
    /// on the relay it was accepted. A relay names paths by the number in the HELLO.
    pub fn handle_subflow_up(&mut self, _id: SubflowId, _path: PathId, _backup: bool, _now: Timestamp) {}

    /// A subflow brought plaintext, in whatever pieces. On an error the engine closes what
    /// [`Violation::scope`] says, and tells of it by [`Self::handle_subflow_down`].
    pub fn handle_received(
        &mut self,
        id: SubflowId,
        _bytes: Bytes,
        _now: Timestamp,
    ) -> Result<(), Violation> {
        Err(Violation::NoSuchSubflow(id.0))
    }

    /// A subflow is closed, failed, or could not be opened. What it carried goes elsewhere.
    pub fn handle_subflow_down(&mut self, _id: SubflowId, _now: Timestamp) {}

    /// The kernel's view of a subflow; a few times per round trip while it is busy.
    pub fn handle_sample(&mut self, _id: SubflowId, _sample: &SubflowSample, _now: Timestamp) {}

    /// The paths that may be used now, in order of preference (device). Subflows of others close.
    pub fn handle_paths(&mut self, _paths: &[PathOffer], _now: Timestamp) {}

    /// A detector or the oracle thinks that a path fails (device). What is outstanding on it goes
    /// over another path, which is opened if something is waiting.
    pub fn suspect_path(&mut self, _path: PathId, _suspicion: Suspicion, _now: Timestamp) {}

    /// What a detector needs to know of a path.
    pub fn observe_path(&self, _path: PathId) -> PathObservation {
        PathObservation::default()
    }

    /// The time has come that [`Self::poll_timeout`] named.
    pub fn handle_timeout(&mut self, _now: Timestamp) {}

    /// When [`Self::handle_timeout`] is to be called next.
    pub fn poll_timeout(&self) -> Option<Timestamp> {
        None
    }

    /// Opens a stream (device). Its bytes may be sent at once.
    pub fn open_stream(
        &mut self,
        _destination: Destination,
        _class: StreamClass,
        _now: Timestamp,
    ) -> Result<StreamId, Refusal> {
        Err(match self.role {
            Role::Device => Refusal::TooMany,
            Role::Relay => Refusal::WrongRole,
        })
    }

    /// Tells the device how its stream's destination was reached (relay). Unless it is connected,
    /// the stream is over.
    pub fn accept(&mut self, _stream: StreamId, _result: OpenResult, _now: Timestamp) {}

    /// Bytes that [`Self::send`] takes now. An [`Event::Writable`] tells when it grew.
    pub fn send_room(&self, _stream: StreamId) -> usize {
        0
    }

    /// Hands in a stream's next bytes, at most [`Self::send_room`].
    pub fn send(&mut self, _stream: StreamId, _bytes: Bytes, _now: Timestamp) -> Result<(), SendError> {
        Err(SendError::Gone)
    }

    /// Ends this end's direction of a stream behind what was handed in.
    pub fn finish(&mut self, _stream: StreamId, _now: Timestamp) -> Result<(), SendError> {
        Err(SendError::Gone)
    }

    /// Ends a stream at once in both directions.
    pub fn reset(&mut self, _stream: StreamId, _code: u64, _now: Timestamp) {}

    /// Takes a stream's next bytes, at most `most`, and so lets the far end send more.
    pub fn read(&mut self, _stream: StreamId, _most: usize, _now: Timestamp) -> Read {
        Read::Nothing
    }

    /// Bytes for a subflow whose socket takes about `room`; whole frames. The engine calls it while
    /// little is unsent in the socket, so that little is lost when the subflow dies. `None` means
    /// that there is nothing, or that it is better sent elsewhere.
    pub fn poll_transmit(&mut self, _id: SubflowId, _room: usize, _now: Timestamp) -> Option<Bytes> {
        None
    }

    /// Something to do.
    pub fn poll_action(&mut self) -> Option<Action> {
        None
    }

    /// Something to know.
    pub fn poll_event(&mut self) -> Option<Event> {
        None
    }

    /// The subflows, for people.
    pub fn subflows(&self) -> Vec<SubflowStatus> {
        Vec::new()
    }

    /// What the session was made with.
    pub fn config(&self) -> &SessionConfig {
        &self.config
    }
}
