//! A device's and a relay's session over modelled paths, on virtual time.
//!
//! Packets travel over `multiway-linksim` links; each subflow is a TCP connection of the [`tcp`]
//! model over them: in order, with losses, timeouts and stalls, and it dies where a scene says so.
//! [`world`] drives both sessions as the engine does, plays the programs at both ends, and holds
//! everything against what has to come out ([`reference`]).

mod program;
pub mod reference;
pub mod scene;
pub mod tcp;
mod watch;
pub mod world;

pub use program::Over;
