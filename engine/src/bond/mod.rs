//! The device's side of the `bond` treatment, and what both sides share: [`invite`], [`token`].

pub(crate) mod codes;
pub(crate) mod connection;
mod device;
mod fast_open;
pub mod invite;
pub mod membership;
mod memory;
mod place;
mod session;
pub(crate) mod shared;
mod slot;
mod status;
pub(crate) mod stream;
pub(crate) mod subflow;
pub(crate) mod tls;
pub mod token;
mod watch;

pub use device::{Bond, NotBonded};
pub use slot::BondSlot;
