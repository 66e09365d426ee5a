//! The frames that device and relay exchange inside TLS, as docs/protocol.md specifies them.
//!
//! A frame is a type, a length and a body. [`FrameReader`] cuts a byte stream into [`Frame`]s
//! however it arrives, and copies large payloads at most when a frame spans two pieces. What it
//! yields is well formed; whether it is *allowed* is for the session to say.

mod destination;
mod frame;
mod hello;
mod reader;
pub mod varint;

pub use destination::{Destination, Host};
pub use frame::{CLOSE_SESSION, Data, Frame, FrameType, Mark, OpenResult, Standing, StreamId};
pub(super) use frame::{MAX_DATA_HEAD, put_data_head};
pub use hello::{Hello, HelloKind, HelloOk, SessionKey};
pub use reader::FrameReader;

/// The version of the protocol that this crate speaks; HELLO names it.
pub const VERSION: u64 = 1;

/// Most bytes in a frame's body.
pub const MAX_BODY: usize = 64 << 10;

/// Most bytes of a DATA frame as written here: one TLS record (RFC 8446 section 5.1), so that the
/// far end can pass every record on without joining two.
pub const MAX_DATA_FRAME: usize = 16 << 10;

/// Types from here on are skipped when they are unknown; below, they are a violation.
pub const FIRST_SKIPPABLE: u8 = 0x40;

/// Longest host name, RFC 1035 section 2.3.4.
pub const MAX_HOST: usize = 253;

/// Longest token in a HELLO.
pub const MAX_TOKEN: usize = 4096;

/// Longest text that goes with a CLOSE or an advertised address.
pub const MAX_TEXT: usize = 256;

/// Window of a stream before the far end grants another one.
pub const INITIAL_STREAM_WINDOW: u64 = 64 << 10;

/// Window of a session before the far end grants another one.
pub const INITIAL_SESSION_WINDOW: u64 = 256 << 10;

/// Most gaps that a receiver has to keep in one stream, and so the most DATA frames of one stream
/// that a sender has outstanding.
pub const MAX_SEGMENTS: usize = 4096;

/// How far stream numbers may run ahead of the lowest one that was not seen.
pub const MAX_STREAMS_AHEAD: u64 = 4096;

/// Bytes that are no frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// A type below [`FIRST_SKIPPABLE`] that version 1 does not have.
    #[error("frame type {0:#04x} is unknown")]
    UnknownType(u8),
    /// A body longer than [`MAX_BODY`].
    #[error("a frame of {0} bytes is longer than allowed")]
    TooLong(u64),
    /// A body that ends too early, goes on too long, or holds what its type does not allow.
    #[error("the body of frame type {0:#04x} is malformed")]
    Malformed(u8),
}
