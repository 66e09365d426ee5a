//! Bonding: any TCP stream over every path, through a relay (MultiMob sections III-A to III-C; the
//! sender of MPBond).
//!
//! A [`Session`] is what a device and a relay share. Its [`wire`] frames travel on *subflows*, one
//! TCP connection with TLS 1.3 each, over any path. A *stream* is one TCP connection of a program;
//! its bytes carry data sequence numbers, so that they may travel on any subflow, be sent again on
//! another one, and still come out once and in order. The same type serves both ends; what only
//! one end does is told by its [`Role`].
//!
//! How an engine drives it:
//!
//! 1. It opens a subflow when [`Session::poll_action`] says so, exchanges HELLO and HELLO_OK
//!    ([`wire::Hello`], which carry what only the engine knows), and calls
//!    [`Session::handle_subflow_up`]: the device as soon as it may write (its HELLO goes out in
//!    front, early data included), the relay once the HELLO is accepted.
//! 2. TLS plaintext that follows the HELLO goes into [`Session::handle_received`].
//! 3. After every call into the session it drains [`Session::poll_action`] and
//!    [`Session::poll_event`], calls [`Session::poll_transmit`] for every subflow whose socket
//!    takes bytes, and sets its timer to [`Session::poll_timeout`].
//!
//! docs/protocol.md specifies what travels; [`scheduler`] decides over which subflow.

mod action;
pub mod backoff;
mod config;
mod detector;
mod load;
mod rhythm;
pub mod scheduler;
mod session;
mod stream;
mod subflow;
pub mod wire;

pub use action::{
    Action, CloseReason, Event, OpenReason, Read, Refusal, SendError, Suspicion, Violation, ViolationScope,
};
pub use config::{Limits, Policy, Role, Schedulers, SessionConfig, StreamClass};
pub use detector::{Detector, DetectorKind, Finding};
pub use load::LoadMeter;
pub use session::{Carried, PathObservation, Session, StreamStatus, SubflowStatus, WindowCounts};
pub use subflow::{SubflowId, SubflowSample};
pub use wire::StreamId;
