//! What a modelled path and the server behind it do.

use std::time::Duration;

use multiway_core::paths::PathEstimate;
use multiway_core::units::{Rate, Timestamp};

/// Stands for "never ends" in spans of time.
pub const FOR_EVER: Duration = Duration::MAX;

/// What the server does on one path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Conduct {
    /// Answers as RFC 9110 asks.
    #[default]
    Honest,
    /// Serves another version of the object, with the validators of the first.
    OtherVersion,
    /// Serves another version and says so.
    OtherVersionDeclared,
    /// Answers ranges with the whole object.
    NoRanges,
    /// Refuses range requests with 429.
    Refuses,
    /// Closes the connection after each response, as it says in its head.
    ClosesAfterResponse,
    /// Closes the connection after each response without a word.
    ClosesUnannounced,
    /// Closes after the answer to the first of several requests sent together.
    DropsPipelined,
    /// Forgets a request that arrives while another is being answered and all after it, and stays
    /// open.
    ForgetsPipelined,
    /// Ends every range response half way, but not within the first 4 KiB, closing the connection.
    ClosesEarly,
    /// Sends the first half of what was asked for, as a 206 that says so.
    ShortPart,
    /// Sends another range than was asked for, as a 206 that says so.
    WrongExtent,
    /// Claims a range up to the end of time, and closes after a little of it.
    AbsurdExtent,
    /// Accepts requests and never answers.
    Mute,
    /// Closes as soon as it is asked anything.
    ClosesAtOnce,
    /// Resets every connection attempt.
    RefusesConnections,
}

impl Conduct {
    /// Whether a client that keeps asking gets the object's first version over this path alone.
    pub fn serves_the_object(self) -> bool {
        match self {
            Self::Honest
            | Self::NoRanges
            | Self::ClosesAfterResponse
            | Self::ClosesUnannounced
            | Self::DropsPipelined
            | Self::ForgetsPipelined
            | Self::ClosesEarly
            | Self::ShortPart => true,
            Self::OtherVersion
            | Self::OtherVersionDeclared
            | Self::Refuses
            | Self::WrongExtent
            | Self::AbsurdExtent
            | Self::Mute
            | Self::ClosesAtOnce
            | Self::RefusesConnections => false,
        }
    }
}

/// One modelled path.
#[derive(Debug, Clone)]
pub struct SimPath {
    /// Bottleneck rate.
    pub rate: Rate,
    /// Round-trip time without queueing.
    pub rtt: Duration,
    /// Whether its bytes cost money.
    pub metered: bool,
    /// Whether the download may use it.
    pub permitted: bool,
    /// Segments lost in a thousand.
    pub loss_per_mille: u32,
    /// Nothing passes during these spans, and nobody says so.
    pub silent: Vec<(Duration, Duration)>,
    /// The interface is gone during these spans, and the download is told.
    pub down: Vec<(Duration, Duration)>,
    /// Time the server takes to begin an answer.
    pub think: Duration,
    /// The server behind it.
    pub conduct: Conduct,
    /// When the server becomes honest.
    pub reforms_at: Duration,
    /// What the download is told of it beforehand.
    pub known: PathEstimate,
}

impl SimPath {
    /// A lossless path with an honest server.
    pub fn new(mbit_per_second: f64, rtt_millis: u64) -> Self {
        Self {
            rate: Rate::from_bits_per_second((mbit_per_second * 1e6) as u64),
            rtt: Duration::from_millis(rtt_millis),
            metered: false,
            permitted: true,
            loss_per_mille: 0,
            silent: Vec::new(),
            down: Vec::new(),
            think: Duration::ZERO,
            conduct: Conduct::Honest,
            reforms_at: FOR_EVER,
            known: PathEstimate::default(),
        }
    }

    /// The same with something else behind it.
    pub fn with_conduct(self, conduct: Conduct) -> Self {
        Self { conduct, ..self }
    }

    /// The same, silent in between.
    pub fn silent_between(mut self, from_millis: u64, to: Duration) -> Self {
        self.silent.push((Duration::from_millis(from_millis), to));
        self
    }

    /// The same, gone in between.
    pub fn down_between(mut self, from_millis: u64, to: Duration) -> Self {
        self.down.push((Duration::from_millis(from_millis), to));
        self
    }

    /// What the server does at `at`.
    pub fn conduct_at(&self, at: Timestamp) -> Conduct {
        if at.since_origin() >= self.reforms_at { Conduct::Honest } else { self.conduct }
    }

    /// End of the silence, or of the absence, in which `at` falls.
    pub(crate) fn obstacle_end(&self, at: Timestamp) -> Option<Timestamp> {
        let since = at.since_origin();
        self.silent
            .iter()
            .chain(&self.down)
            .find(|(from, to)| *from <= since && since < *to)
            .map(|(_, to)| Timestamp::from_origin(*to))
    }
}
