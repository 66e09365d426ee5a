//! Over which subflow the next bytes of a stream go.
//!
//! Subflows ask for bytes when their sockets take some, so the question is always: shall the next
//! segment go onto one of those that can take it now, or wait for a better one? The session leaves
//! out beforehand what may not be used: subflows of forbidden or probably failed paths, and backups
//! while others work.

mod blest;
mod ecf;
mod last_received;
mod min_rtt;
mod priority;
mod redundant;

use std::fmt;
use std::time::Duration;

use super::subflow::SubflowId;
use crate::units::Timestamp;

pub use blest::Blest;
pub use ecf::Ecf;
pub use last_received::LastReceived;
pub use min_rtt::MinRtt;
pub use priority::Priority;
pub use redundant::Redundant;

/// A subflow as a scheduler sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Candidate {
    /// Which.
    pub id: SubflowId,
    /// Its path's place in the owner's order of preference; 0 comes first.
    pub rank: u32,
    /// Whether its socket takes bytes now.
    pub available: bool,
    /// Smoothed round-trip time.
    pub srtt: Duration,
    /// Mean deviation of the round-trip time.
    pub rtt_variance: Duration,
    /// Congestion window, in bytes.
    pub window: u64,
    /// Bytes handed to it and not yet acknowledged by the far end's session.
    pub in_flight: u64,
    /// Segment size, in bytes.
    pub segment: u64,
    /// Whether it is sending again what was lost.
    pub retransmitting: bool,
    /// When its path last brought something original: new data, progress of acknowledgments, or
    /// a join.
    pub last_received: Option<Timestamp>,
}

/// What there is to send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backlog {
    /// Bytes of the stream that were not sent yet.
    pub unsent: u64,
    /// Bytes that the far end's window still takes.
    pub window_left: u64,
}

/// Chooses subflows for one stream.
pub trait Scheduler: fmt::Debug + Send {
    /// Which of the available candidates gets the next segment; `None` to wait for another one.
    fn choose(&mut self, candidates: &[Candidate], backlog: Backlog) -> Option<SubflowId>;

    /// Whether every subflow carries everything.
    fn is_redundant(&self) -> bool {
        false
    }

    /// Whether it sees backup subflows beside normal ones.
    fn sees_backups(&self) -> bool {
        false
    }
}

/// The schedulers there are; one byte on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SchedulerKind {
    /// [`MinRtt`].
    MinRtt,
    /// [`LastReceived`].
    LastReceived,
    /// [`Ecf`].
    Ecf,
    /// [`Blest`].
    Blest,
    /// [`Redundant`].
    Redundant,
    /// [`Priority`].
    Priority,
}

impl SchedulerKind {
    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::MinRtt, Self::LastReceived, Self::Ecf, Self::Blest, Self::Redundant, Self::Priority];

    /// A scheduler of this kind.
    pub fn build(self) -> Box<dyn Scheduler> {
        match self {
            Self::MinRtt => Box::new(MinRtt),
            Self::LastReceived => Box::new(LastReceived),
            Self::Ecf => Box::new(Ecf::default()),
            Self::Blest => Box::new(Blest::default()),
            Self::Redundant => Box::new(Redundant),
            Self::Priority => Box::new(Priority),
        }
    }

    pub(super) const fn to_byte(self) -> u8 {
        self as u8
    }

    pub(super) fn from_byte(byte: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| *kind as u8 == byte)
    }
}

/// The least of the candidates that `matter`, by `key`; the earlier one of equals.
fn least<K: Ord>(
    candidates: &[Candidate],
    matter: impl Fn(&Candidate) -> bool,
    key: impl Fn(&Candidate) -> K,
) -> Option<&Candidate> {
    candidates.iter().filter(|candidate| matter(candidate)).min_by_key(|candidate| key(candidate))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An available subflow without particulars.
    pub(super) fn candidate(id: u64, srtt_ms: u64) -> Candidate {
        Candidate {
            id: SubflowId(id),
            rank: id as u32,
            available: true,
            srtt: Duration::from_millis(srtt_ms),
            rtt_variance: Duration::ZERO,
            window: 10 * 1460,
            in_flight: 0,
            segment: 1460,
            retransmitting: false,
            last_received: None,
        }
    }

    /// Much to send, and a window that does not matter.
    pub(super) fn much() -> Backlog {
        Backlog { unsent: 100 << 20, window_left: 100 << 20 }
    }

    #[test]
    fn a_kind_survives_the_wire() {
        for kind in SchedulerKind::ALL {
            assert_eq!(SchedulerKind::from_byte(kind.to_byte()), Some(kind));
        }
    }

    #[test]
    fn every_scheduler_uses_the_only_subflow_and_none_that_is_full() {
        for kind in SchedulerKind::ALL {
            let mut scheduler = kind.build();
            let only = candidate(7, 50);
            assert_eq!(scheduler.choose(&[only], much()), Some(SubflowId(7)), "{kind:?}");
            assert_eq!(scheduler.choose(&[Candidate { available: false, ..only }], much()), None, "{kind:?}");
            assert_eq!(scheduler.choose(&[], much()), None, "{kind:?}");
        }
    }
}
