//! Codes of CLOSE that the engine itself sends, beside those of [`multiway_core::bond::Violation`].

use multiway_core::bond::wire::CLOSE_SESSION;

/// The subflow ends in good order.
pub(crate) const NORMAL: u64 = 0x00;

/// The first frame was none that may come first, or spoke another version.
pub(crate) const BAD_HELLO: u64 = 0x01;

/// The session has as many subflows as are allowed, or one of that number.
pub(crate) const TOO_MANY_SUBFLOWS: u64 = 0x08;

/// The token is not this relay's, has expired, or was revoked.
pub(crate) const UNAUTHORIZED: u64 = CLOSE_SESSION | 0x10;

/// There is no such session.
pub(crate) const NO_SUCH_SESSION: u64 = CLOSE_SESSION | 0x11;

/// The user or the relay has as many sessions as are allowed.
pub(crate) const TOO_MANY_SESSIONS: u64 = CLOSE_SESSION | 0x12;

/// The relay stops.
pub(crate) const STOPPING: u64 = CLOSE_SESSION | 0x13;
