//! What a path is, how it is measured, and what policy says of its use.
//!
//! A path is anything that can open a connection to an address. Its identity ([`PathId`]) lasts as
//! long as its interface does; its [`NetworkIdentity`] changes when the interface joins another
//! network, and measurements and history belong to the latter.

mod estimator;
mod history;
mod inconsistent;
mod metrics;
mod oracle;
mod path;
mod permission;
mod policy;
mod sample;
mod source;
mod usage;

pub use estimator::{Throughput, TimeWeightedMean, VolumeWeightedRatio};
pub use history::{History, HistoryKey, HistoryRecord, Observation};
pub use inconsistent::InconsistentHosts;
pub use metrics::{PathMetrics, SampleDelta};
pub use oracle::{NetPath, Oracle, OracleConfig, OracleEvent, PathStatistics, SubflowKey, Symptom};
pub use path::{NetworkIdentity, PathId, PathInfo, PathKind, PathState};
pub use permission::{InterfacePattern, Permission};
pub use policy::{Preference, order};
pub use sample::{PathEstimate, TcpSample};
pub use source::Family;
pub use usage::DailyBytes;

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A usable Wi-Fi path without particulars.
    pub(crate) fn path(id: u32, interface: &str) -> PathInfo {
        PathInfo {
            id: PathId(id),
            interface: interface.to_owned(),
            kind: PathKind::Wifi,
            metered: false,
            addresses: vec!["192.0.2.1".parse().expect("test address")],
            gateways: vec!["192.0.2.254".parse().expect("test address")],
            dns_servers: Vec::new(),
            network: NetworkIdentity("test".to_owned()),
            state: PathState::Up,
        }
    }
}
