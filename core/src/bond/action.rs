//! What a session asks for, tells, and refuses.

use std::time::Duration;

use bytes::Bytes;

use super::config::StreamClass;
use super::subflow::SubflowId;
use super::wire::{Destination, OpenResult, StreamId, WireError};
use crate::paths::PathId;

/// Something that the engine shall do; order matters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Open a subflow (device). It is answered by `handle_subflow_up` or `handle_subflow_down`.
    OpenSubflow {
        /// Its number, for the HELLO and everything after.
        id: SubflowId,
        /// Over which path.
        path: PathId,
        /// What the HELLO says of its use.
        backup: bool,
        /// Why.
        reason: OpenReason,
    },
    /// Close a subflow. Nothing of it needs to be handed in any more; on the relay the session waits
    /// for its `handle_subflow_down`.
    CloseSubflow {
        /// Which.
        id: SubflowId,
        /// Why.
        reason: CloseReason,
    },
}

/// Why a subflow is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OpenReason {
    /// The session has none on the path it prefers.
    First,
    /// Another stream has something outstanding on each of those there are.
    Busy,
    /// The path in use has probably failed, and something is waiting.
    Backup {
        /// The path that failed.
        from: PathId,
        /// What makes it so.
        suspicion: Suspicion,
    },
    /// To find out whether a path that failed works again.
    Probe,
    /// A transfer is long enough to gain by another path.
    Aggregate,
}

/// Why a subflow is closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CloseReason {
    /// The preferred path works again, or the transfer that needed this one is over.
    NotNeeded,
    /// Its path may not be used any more.
    PathGone,
    /// There are more than are used.
    Idle,
    /// Its path works again, and it was not heard of meanwhile: a new one is sooner of use.
    Silent,
    /// The device says that it is lost (relay).
    Lost,
}

/// Why a path has probably failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, thiserror::Error)]
pub enum Suspicion {
    /// Too many segments were lost (M2).
    #[error("too many segments were lost")]
    Loss,
    /// Too many segments were sent again (M2).
    #[error("too many segments were sent again")]
    Retransmissions,
    /// The retransmission timeout grew too long (M2).
    #[error("the retransmission timeout grew too long")]
    Timeout,
    /// Data is outstanding and no data ACK comes.
    #[error("what was sent is not acknowledged")]
    Unacknowledged,
    /// Data is expected and none comes (M4).
    #[error("what is expected does not come")]
    Silent,
    /// Its subflows were lost or cannot be opened.
    #[error("its connections fail")]
    Lost,
}

/// Something that happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// The device opened a stream (relay); it is answered by `accept`. Its bytes may be read at once.
    StreamOpening {
        /// The stream.
        stream: StreamId,
        /// Where to.
        destination: Destination,
        /// What for.
        class: StreamClass,
    },
    /// The relay reached the destination, or not; then the stream is over (device).
    StreamOpened {
        /// The stream.
        stream: StreamId,
        /// How it went.
        result: OpenResult,
    },
    /// `read` has something, after it had nothing.
    Readable {
        /// The stream.
        stream: StreamId,
    },
    /// `send_room` grew, after it had become small.
    Writable {
        /// The stream.
        stream: StreamId,
    },
    /// Both directions ended and everything that was sent is acknowledged.
    StreamClosed {
        /// The stream.
        stream: StreamId,
    },
    /// The far end ended the stream; what was not read is gone.
    StreamReset {
        /// The stream.
        stream: StreamId,
        /// Why; docs/protocol.md lists the codes.
        code: u64,
    },
    /// A path has probably failed.
    PathSuspected {
        /// Which.
        path: PathId,
        /// Why.
        suspicion: Suspicion,
    },
    /// A path that had failed is good again.
    PathRestored {
        /// Which.
        path: PathId,
    },
    /// Traffic moved (device).
    Handover {
        /// The path that carried it.
        from: PathId,
        /// The path that carries it now.
        to: PathId,
        /// From the last sign of life on the old path to the first on the new one.
        gap: Duration,
    },
    /// Joins have to go to this address from now on (device).
    Advertised {
        /// `host:port`.
        address: String,
    },
    /// The relay goes away soon: begin a new session elsewhere, and let this one run dry (device).
    Draining,
    /// The far end says why it closes a subflow or the session.
    Closed {
        /// The subflow that brought the message.
        subflow: SubflowId,
        /// The code; [`super::wire::CLOSE_SESSION`] is set when the whole session is over.
        code: u64,
        /// For people.
        text: String,
    },
}

/// What `read` finds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Read {
    /// The next bytes, never none.
    Bytes(Bytes),
    /// Nothing now; an [`Event::Readable`] will tell.
    Nothing,
    /// The far end finished its direction, and everything was read.
    End,
}

/// Why a stream was not opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Only devices open streams.
    #[error("streams are opened by the device")]
    WrongRole,
    /// As many are open as are allowed.
    #[error("the session has as many streams as are allowed; close some")]
    TooMany,
    /// The relay goes away.
    #[error("the relay takes no more streams; open it in a new session")]
    Draining,
}

/// Why bytes were not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// There is no such stream, or it is over.
    #[error("the stream is over")]
    Gone,
    /// This direction was finished.
    #[error("this direction of the stream was finished")]
    Finished,
    /// More than `send_room` says.
    #[error("the stream has no room for that many bytes")]
    NoRoom,
}

/// What a violation costs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ViolationScope {
    /// The subflow: its bytes are malformed. The engine closes it and says so.
    Subflow,
    /// The session: its state is forged. The engine ends it with all its subflows.
    Session,
}

/// The far end broke the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// Bytes that are no frame.
    #[error("{0}")]
    Malformed(#[from] WireError),
    /// A frame that this end does not take, or not there.
    #[error("frame type {0:#04x} has no place here")]
    Misplaced(u8),
    /// A frame on or about a subflow that does not exist.
    #[error("there is no subflow {0}")]
    NoSuchSubflow(u64),
    /// Data for a stream that was never opened.
    #[error("stream {0} was never opened")]
    NeverOpened(u64),
    /// A stream number too far ahead of those seen.
    #[error("stream {0} runs too far ahead")]
    TooFarAhead(u64),
    /// Far more streams than are allowed, and no answer to the refusals.
    #[error("far more streams than the {0} allowed")]
    TooManyStreams(usize),
    /// Data beyond the stream's window.
    #[error("stream {0} exceeds its window")]
    BeyondStreamWindow(u64),
    /// Data beyond the session's window.
    #[error("the session exceeds its window")]
    BeyondSessionWindow,
    /// More gaps than [`super::wire::MAX_SEGMENTS`].
    #[error("stream {0} has too many gaps")]
    TooManyGaps(u64),
    /// Data behind the end, or two ends.
    #[error("stream {0} goes on behind its end")]
    BehindEnd(u64),
    /// An acknowledgment of what was not sent.
    #[error("stream {0} acknowledges what was not sent")]
    NeverSent(u64),
    /// A PONG that no PING asked for, or more PINGs than are answered.
    #[error("more PINGs or other PONGs than there is reason for")]
    PingAbuse,
}

impl Violation {
    /// What it costs the sender.
    pub const fn scope(&self) -> ViolationScope {
        match self {
            Self::Malformed(_) | Self::Misplaced(_) | Self::NoSuchSubflow(_) | Self::PingAbuse => {
                ViolationScope::Subflow
            }
            Self::NeverOpened(_)
            | Self::TooFarAhead(_)
            | Self::TooManyStreams(_)
            | Self::BeyondStreamWindow(_)
            | Self::BeyondSessionWindow
            | Self::TooManyGaps(_)
            | Self::BehindEnd(_)
            | Self::NeverSent(_) => ViolationScope::Session,
        }
    }

    /// The code of the CLOSE that tells the far end, as docs/protocol.md lists them.
    pub const fn code(&self) -> u64 {
        match self {
            Self::Malformed(_) => 0x02,
            Self::Misplaced(_) | Self::NoSuchSubflow(_) | Self::PingAbuse => 0x03,
            Self::NeverOpened(_) | Self::TooFarAhead(_) | Self::TooManyStreams(_) => 0x104,
            Self::BeyondStreamWindow(_) | Self::BeyondSessionWindow | Self::TooManyGaps(_) => 0x105,
            Self::BehindEnd(_) | Self::NeverSent(_) => 0x106,
        }
    }
}
