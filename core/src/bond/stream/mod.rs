//! One stream's two directions: what was sent and not acknowledged, and what came out of order.

mod pieces;
mod receiver;
mod sender;
#[cfg(test)]
mod tests;
mod window;

pub(super) use receiver::Receiver;
pub(super) use sender::{Emission, Freed, Room, Sender, Slots};
