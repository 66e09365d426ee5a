//! What a session is to do, and within which bounds.

use super::scheduler::SchedulerKind;
use super::wire::INITIAL_STREAM_WINDOW;
use crate::paths::Preference;

/// Which end of a session this is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Opens subflows and streams, and decides which paths are used.
    Device,
    /// Accepts them.
    Relay,
}

/// How a device uses its paths.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Policy {
    /// Break-before-make (M3): the most preferred path alone, another one only while that one
    /// fails.
    Handover,
    /// All paths for transfers; metered ones when what is left justifies it.
    Aggregate,
}

/// What a stream is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum StreamClass {
    /// Not known; what it does will tell.
    Auto,
    /// Small messages that somebody waits for.
    Interactive,
    /// As much as the paths carry.
    Bulk,
}

impl StreamClass {
    const ALL: [Self; 3] = [Self::Auto, Self::Interactive, Self::Bulk];

    pub(super) const fn to_byte(self) -> u8 {
        self as u8
    }

    pub(super) fn from_byte(byte: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|class| *class as u8 == byte)
    }
}

/// Bounds of a session at one end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Streams at a time.
    pub streams: usize,
    /// Subflows at a time; at most [`Limits::MOST_SUBFLOWS`].
    pub subflows: usize,
    /// Subflows over one path at a time.
    pub subflows_per_path: usize,
    /// Received bytes held for one stream; its window grows up to this.
    pub receive_per_stream: u64,
    /// Received bytes held over all streams, besides [`INITIAL_STREAM_WINDOW`] of each.
    pub receive_in_all: u64,
    /// Bytes held to be sent or sent again, for one stream.
    pub send_per_stream: u64,
    /// Bytes held to be sent or sent again over all streams, besides [`INITIAL_STREAM_WINDOW`] of each.
    pub send_in_all: u64,
}

impl Limits {
    /// The width of the set that says which subflows carry a segment.
    pub const MOST_SUBFLOWS: usize = 64;

    /// Received bytes held at most, however many readers stop.
    pub fn most_received(&self) -> u64 {
        self.receive_in_all.saturating_add(self.of_streams())
    }

    /// Bytes held at most to be sent or sent again.
    pub fn most_sent(&self) -> u64 {
        self.send_in_all.saturating_add(self.of_streams())
    }

    fn of_streams(&self) -> u64 {
        INITIAL_STREAM_WINDOW.saturating_mul(self.streams as u64)
    }
}

impl Default for Limits {
    /// 100 Mbit/s at a round trip of 500 ms need 6 MiB in each direction. What is received is counted as
    /// granted, of which connections that are silent keep some: a thousand of them leave 4 of 64 MiB.
    fn default() -> Self {
        Self {
            streams: 1024,
            subflows: 16,
            subflows_per_path: 6,
            receive_per_stream: 8 << 20,
            receive_in_all: 64 << 20,
            send_per_stream: 8 << 20,
            send_in_all: 32 << 20,
        }
    }
}

/// What a session is to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionConfig {
    /// Use of paths; a relay follows what the device does.
    pub policy: Policy,
    /// How [`Policy::Aggregate`] uses metered ones.
    pub preference: Preference,
    /// Bounds.
    pub limits: Limits,
    /// How a device chooses among subflows; by class of stream. A relay is told with each stream.
    pub device_schedulers: Schedulers,
    /// How a device asks the relay to choose.
    pub relay_schedulers: Schedulers,
}

/// One scheduler for each class of stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Schedulers {
    /// For [`StreamClass::Auto`].
    pub auto: SchedulerKind,
    /// For [`StreamClass::Interactive`].
    pub interactive: SchedulerKind,
    /// For [`StreamClass::Bulk`].
    pub bulk: SchedulerKind,
}

impl Schedulers {
    /// The same for all.
    pub const fn all(kind: SchedulerKind) -> Self {
        Self { auto: kind, interactive: kind, bulk: kind }
    }

    /// The one for `class`.
    pub const fn get(&self, class: StreamClass) -> SchedulerKind {
        match class {
            StreamClass::Auto => self.auto,
            StreamClass::Interactive => self.interactive,
            StreamClass::Bulk => self.bulk,
        }
    }
}

impl SessionConfig {
    /// MultiMob's: a priority scheduler on the device, and a relay that answers where it was last
    /// addressed (M1).
    pub fn handover() -> Self {
        Self {
            policy: Policy::Handover,
            preference: Preference::default(),
            limits: Limits::default(),
            device_schedulers: Schedulers::all(SchedulerKind::Priority),
            relay_schedulers: Schedulers::all(SchedulerKind::LastReceived),
        }
    }

    /// All paths together.
    pub fn aggregate() -> Self {
        let schedulers = Schedulers {
            auto: SchedulerKind::Ecf,
            interactive: SchedulerKind::MinRtt,
            bulk: SchedulerKind::Ecf,
        };
        Self {
            policy: Policy::Aggregate,
            preference: Preference::default(),
            limits: Limits::default(),
            device_schedulers: schedulers,
            relay_schedulers: schedulers,
        }
    }
}

impl Default for SessionConfig {
    fn default() -> Self {
        Self::handover()
    }
}
