//! Multiway's decisions.
//!
//! Purity contract: nothing in this crate opens a socket, reads a clock, starts a thread, draws a
//! random number or calls the operating system. Time enters as [`units::Timestamp`] arguments,
//! facts enter as values, and what should be done leaves as values. The same inputs give the same
//! outputs, so everything here runs unchanged on virtual time in `lab/simtest`.
//!
//! - [`paths`]: what a path is, how it is measured, what is remembered of it, what policy allows.
//! - [`mphttp`]: one HTTP object over several paths: range planning, reassembly, verification.
//! - [`flow`]: what a connection carries and which treatment it gets.
//! - [`bond`]: any TCP stream over several paths through a relay.

pub mod bond;
pub mod flow;
pub mod mphttp;
pub mod paths;
pub mod units;
