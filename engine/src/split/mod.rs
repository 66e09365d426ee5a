//! Drives [`multiway_core::mphttp::download`] over real connections.
//!
//! A [`Transfer`] is opened with the client's request; when the answer may be split it is run to
//! its end, otherwise the connection that answered is given away to be relayed as it is.

mod arrivals;
mod buffers;
mod delivery;
mod judge;
mod lane_io;
mod learning;
mod opening;
mod transfer;

pub use buffers::SharedBuffers;
pub use learning::{offers, remember};
pub use opening::Opened;
pub use transfer::{
    OpeningConnection, PathShare, Progress, Sink, Transfer, TransferConfig, TransferError, TransferSummary,
};
