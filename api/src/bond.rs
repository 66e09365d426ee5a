//! What goes through a relay.

use std::fmt;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A relay that this device joined.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct RelayStatus {
    /// Where it is, as the invite says: `relay.example.org:443`.
    pub address: String,
    /// The name under which its operator invited this device.
    pub user: String,
    /// True while flows go through it.
    pub reachable: bool,
    /// Why not; absent while it is reachable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Sessions with it: one, and beside it those that a draining relay lets run dry.
    pub sessions: Vec<SessionStatus>,
    /// Traffic that moved from one path to another lately, oldest first.
    pub handovers: Vec<HandoverStatus>,
}

/// What this device and a relay share.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SessionStatus {
    /// Seconds since it was begun.
    pub age_seconds: f64,
    /// True when the relay takes no more streams, because it goes away.
    pub draining: bool,
    /// Interface of the path that is used now; absent without any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub active: Option<String>,
    /// Its connections to the relay.
    pub subflows: Vec<SubflowStatus>,
    /// Connections of programs that it carries.
    pub streams: Vec<StreamStatus>,
}

/// One connection to a relay, over one path.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SubflowStatus {
    /// Its number within the session.
    pub id: u64,
    /// Interface of its path.
    pub interface: String,
    /// Whether it works.
    pub state: SubflowState,
    /// When it carries data.
    pub priority: SubflowPriority,
    /// Smoothed round-trip time; absent when never measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rtt_ms: Option<f64>,
    /// Bytes handed to it, those of the protocol included, before encryption.
    pub bytes_sent: u64,
    /// Bytes that it brought, likewise.
    pub bytes_received: u64,
}

/// Whether a subflow works.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum SubflowState {
    /// The relay has not answered yet.
    Opening,
    /// It carries what it is given.
    Up,
    /// Its path has probably failed; it carries nothing but questions whether it works.
    Suspect,
}

impl fmt::Display for SubflowState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Opening => "opening",
            Self::Up => "up",
            Self::Suspect => "suspect",
        })
    }
}

/// When a subflow carries data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum SubflowPriority {
    /// Whenever the scheduler chooses it.
    Normal,
    /// Only while no normal one works.
    Backup,
}

impl fmt::Display for SubflowPriority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Normal => "normal",
            Self::Backup => "backup",
        })
    }
}

/// One connection of a program through a relay.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct StreamStatus {
    /// Its number within the session.
    pub id: u64,
    /// Where the relay connects it to.
    pub destination: String,
    /// How this device chooses the subflow of the next bytes.
    pub scheduler: Scheduler,
    /// What each path carried of it, the first one used first.
    pub paths: Vec<StreamPath>,
}

/// What one path carried of a stream.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct StreamPath {
    /// The path's interface.
    pub interface: String,
    /// The program's bytes sent over it, once more for each repetition.
    pub bytes_sent: u64,
    /// Bytes for the program that came over it.
    pub bytes_received: u64,
}

/// How the next bytes of a stream find their subflow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Scheduler {
    /// The one with the shortest round trip.
    MinRtt,
    /// The one that brought something last.
    LastReceived,
    /// Earliest completion first: waits for the fastest one when that ends sooner.
    Ecf,
    /// Blocking estimation: leaves a slow one out that would hold up the fast one.
    Blest,
    /// All of them.
    Redundant,
    /// The one of the most preferred path.
    Priority,
}

impl fmt::Display for Scheduler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::MinRtt => "min-rtt",
            Self::LastReceived => "last-received",
            Self::Ecf => "ecf",
            Self::Blest => "blest",
            Self::Redundant => "redundant",
            Self::Priority => "priority",
        })
    }
}

/// Traffic that moved from one path to another.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct HandoverStatus {
    /// When, in milliseconds since 1970 UTC.
    pub unix_ms: u64,
    /// Interface of the path that carried it.
    pub from: String,
    /// Interface of the path that carries it now.
    pub to: String,
    /// From the last sign of life on the old path to the first on the new one, in milliseconds.
    pub gap_ms: u64,
}
