//! What a run is to be like.

use std::time::Duration;

use multiway_core::bond::wire::OpenResult;
use multiway_core::bond::{DetectorKind, SessionConfig, StreamClass};
use multiway_core::paths::PathEstimate;
use multiway_linksim::LinkSpec;

/// Paths, programs, and what goes wrong.
#[derive(Debug, Clone)]
pub struct Scene {
    /// In the owner's order of preference.
    pub paths: Vec<BondPath>,
    /// Both ends have the same.
    pub config: SessionConfig,
    /// What watches the paths.
    pub detector: DetectorKind,
    /// Whether the oracle does, too.
    pub oracle: bool,
    /// The programs' connections.
    pub streams: Vec<StreamPlan>,
    /// Subflows that die on their own.
    pub deaths: Vec<Death>,
    /// Round trips before a subflow may be written to: 1 with early data, 2 without.
    pub handshake_rounds: u8,
    /// Most bytes handed to a session at a time.
    pub piece: usize,
    /// For the links' chance.
    pub seed: u64,
}

impl Scene {
    /// Programs whose session our detector and the oracle watch, and which hands in all that there is room for.
    pub fn new(paths: Vec<BondPath>, config: SessionConfig, streams: Vec<StreamPlan>) -> Self {
        Self {
            paths,
            config,
            detector: DetectorKind::Improved,
            oracle: true,
            streams,
            deaths: Vec::new(),
            handshake_rounds: 1,
            piece: usize::MAX,
            seed: 1,
        }
    }
}

/// A path.
#[derive(Debug, Clone)]
pub struct BondPath {
    /// Its links, from the device.
    pub spec: LinkSpec,
    /// Whether its bytes cost money.
    pub metered: bool,
    /// What is believed of it.
    pub estimate: PathEstimate,
    /// When it is not there at all.
    pub absent: Vec<(Duration, Duration)>,
}

impl BondPath {
    /// An unmetered path of which nothing is known.
    pub fn new(spec: LinkSpec) -> Self {
        Self { spec, metered: false, estimate: PathEstimate::default(), absent: Vec::new() }
    }
}

/// One connection of a program.
#[derive(Debug, Clone)]
pub struct StreamPlan {
    /// When the program connects.
    pub opens_at: Duration,
    /// What it is for.
    pub class: StreamClass,
    /// How long the relay takes to reach the destination.
    pub accept_after: Duration,
    /// How that goes.
    pub accept: OpenResult,
    /// Device to relay.
    pub up: Half,
    /// Relay to device.
    pub down: Half,
}

impl StreamPlan {
    /// A short request and an answer of so many bytes, as fast as it goes.
    pub fn download(bytes: u64) -> Self {
        Self {
            opens_at: Duration::ZERO,
            class: StreamClass::Auto,
            accept_after: Duration::ZERO,
            accept: OpenResult::Connected,
            up: Half::greedy(200),
            down: Half { starts_after: 200, ..Half::greedy(bytes) },
        }
    }
}

/// One direction of a connection.
#[derive(Debug, Clone)]
pub struct Half {
    /// Bytes that the writer has.
    pub total: u64,
    /// It writes so many at a time,
    pub chunk: u64,
    /// and then waits.
    pub pause: Duration,
    /// It begins when it has read so many bytes of the other direction.
    pub starts_after: u64,
    /// It resets the stream after so many bytes; else it finishes.
    pub resets_at: Option<u64>,
    /// The reader takes so many bytes at a time,
    pub read_chunk: usize,
    /// and then waits.
    pub read_pause: Duration,
    /// The reader stops for a while.
    pub stop: Option<Stop>,
}

/// A reader that stops.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stop {
    /// After so many bytes,
    pub after: u64,
    /// until then.
    pub until: Duration,
    /// Whether it resets the stream then; else it reads on.
    pub resets: bool,
}

impl Half {
    /// Written and read as fast as it goes.
    pub fn greedy(total: u64) -> Self {
        Self {
            total,
            chunk: u64::MAX,
            pause: Duration::ZERO,
            starts_after: 0,
            resets_at: None,
            read_chunk: usize::MAX,
            read_pause: Duration::ZERO,
            stop: None,
        }
    }
}

/// A subflow that dies.
#[derive(Debug, Clone, Copy)]
pub struct Death {
    /// Which, in the order of their opening.
    pub subflow: usize,
    /// The end that notices at once: 0 is the device's, 1 the relay's.
    pub end: usize,
    /// After so many bytes have arrived there.
    pub after: u64,
    /// How much later the other end notices; `None` when nothing tells it.
    pub other: Option<Duration>,
}
