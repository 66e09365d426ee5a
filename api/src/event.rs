//! Things that happened.

use std::fmt;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Something that happened, worth telling a person.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Event {
    /// When, in milliseconds since 1970 UTC.
    pub unix_ms: u64,
    /// What.
    #[serde(flatten)]
    pub detail: EventDetail,
}

/// What happened.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub enum EventDetail {
    /// Overlapping bytes of one object differed between paths; it was finished from one version alone.
    Inconsistent {
        /// The server's name or address.
        host: String,
        /// Interface of the path whose bytes were put aside.
        interface: String,
        /// Where in the object they differed, in bytes from its start.
        offset: u64,
    },
    /// A flow could not have the treatment first chosen for it.
    FellBack {
        /// The server's name or address.
        host: String,
        /// Interface of the path that gave the reason; absent when no single one did.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        interface: Option<String>,
        /// Why.
        reason: String,
    },
    /// A path's state changed.
    PathChanged {
        /// Its interface.
        interface: String,
        /// What it is now, in a few words.
        state: String,
    },
    /// Two paths got suspicious DNS answers for one name.
    DnsSuspicious {
        /// The name asked for.
        name: String,
        /// Interface of the path whose answer is doubted.
        interface: String,
        /// What is wrong with it.
        reason: String,
    },
    /// Bonded traffic moved from one path to another.
    HandedOver {
        /// Interface of the path that carried it.
        from: String,
        /// Interface of the path that carries it now.
        to: String,
        /// From the last sign of life on the old path to the first on the new one, in milliseconds.
        gap_ms: u64,
    },
    /// The flow-feature database was read anew.
    FeaturesReloaded {
        /// How many rules it has.
        rules: usize,
    },
    /// The flow-feature database has an error; the rules read before stay in force.
    FeaturesRejected {
        /// What is wrong, with file and line.
        reason: String,
    },
}

impl fmt::Display for EventDetail {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Inconsistent { host, interface, offset } => {
                write!(
                    f,
                    "{host} sent different bytes on {interface} at offset {offset}; finished from one version"
                )
            }
            Self::FellBack { host, interface: Some(interface), reason } => {
                write!(f, "{host} fell back on {interface}: {reason}")
            }
            Self::FellBack { host, interface: None, reason } => write!(f, "{host} fell back: {reason}"),
            Self::HandedOver { from, to, gap_ms } => {
                write!(f, "traffic moved from {from} to {to} within {gap_ms} ms")
            }
            Self::PathChanged { interface, state } => write!(f, "{interface} is now {state}"),
            Self::DnsSuspicious { name, interface, reason } => {
                write!(f, "suspicious DNS answer for {name} on {interface}: {reason}")
            }
            Self::FeaturesReloaded { rules } => write!(f, "feature database reloaded, {rules} rules"),
            Self::FeaturesRejected { reason } => write!(f, "feature database not reloaded: {reason}"),
        }
    }
}
