//! The relay: the far end of devices' sessions, on a server that reaches the internet well.
//!
//! Devices come in over TLS ([`identity`]: the key they pin), show a token ([`users`]) and open streams,
//! which the relay connects to where [`destinations`] lets them lead.

pub mod config;
pub mod destinations;
mod gate;
pub mod identity;
mod metrics;
mod roster;
mod server;
mod session;
pub mod users;

pub use server::{RelayError, run};
