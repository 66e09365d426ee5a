//! One HTTP object over several paths.
//!
//! - [`http`]: message heads, framing, ranges, and what may be split (RFC 9110, RFC 9112).
//! - [`plan`]: the closed forms of the range plan.
//! - [`download`]: the state machine that asks, corrects, and delivers.
//! - [`assembly`]: reassembly, and the verifier at every boundary.

pub mod arrival;
pub mod assembly;
pub mod download;
pub mod http;
pub mod plan;
