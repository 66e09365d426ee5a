//! What a connection carries and which treatment it gets.
//!
//! - [`classify`]: first bytes to protocol (FLEETY section 4.1).
//! - [`doubts`]: which suspicions about DNS answers are worth telling.
//! - [`features`]: the flow-feature database, which says what is worth splitting.
//! - [`http_dns`]: name answers carried by HTTP.
//! - [`names`]: what DNS answered, per path.

pub mod classify;
pub mod doubts;
pub mod features;
mod glob;
pub mod http_dns;
pub mod names;
