//! What Multiway's daemon, command line, dashboard and lab say to each other.
//!
//! The types here are the one schema: the daemon answers with them over its control socket, the
//! command line prints them with `--json`, and `docs/api.json` is generated from them. They carry
//! plain numbers with the unit in the name, so that a reader in any language needs no more than
//! the JSON.

pub mod bond;
pub mod event;
pub mod get;
mod openapi;
pub mod run;
pub mod status;

pub use bond::{
    HandoverStatus, RelayStatus, Scheduler, SessionStatus, StreamPath, StreamStatus, SubflowPriority,
    SubflowState, SubflowStatus,
};
pub use event::{Event, EventDetail};
pub use get::{Fallback, GetPath, GetSummary, Verification};
pub use openapi::{OPERATIONS, openapi_json};
pub use run::{Problem, ProblemCode, RunRequest, RunResponse};
pub use status::{
    FlowStatus, Interception, Listener, ListenerKind, Missing, PathKind, PathShare, PathState, PathStatus,
    Status, Treatment,
};

/// Where a control socket answers with a [`Status`].
pub const STATUS_PATH: &str = "/v1/status";
/// Where a control socket takes a [`RunRequest`].
pub const RUN_PATH: &str = "/v1/run";
/// Where a control socket streams [`Event`]s, one JSON object per line.
pub const EVENTS_PATH: &str = "/v1/events";
