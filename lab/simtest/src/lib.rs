//! Runs Multiway's core on virtual time against modelled paths and servers.
//!
//! A path is a bottleneck with a rate, a round-trip time and a drop-tail queue; a connection is a
//! TCP sender with slow start and halving. Nothing here sleeps: hours of transfer pass in
//! milliseconds, and a seed reproduces every run. Figures from here are labelled `sim`.

pub mod bond;
mod chance;
mod connection;
pub mod object;
pub mod outcome;
pub mod path;
pub mod world;
