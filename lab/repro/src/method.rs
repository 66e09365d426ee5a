//! The ways to fetch an object that are compared.

use std::fmt;
use std::str::FromStr;

use serde::Deserialize;

/// A way to fetch an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub(crate) enum Method {
    /// curl over each interface alone.
    Curl,
    /// The offline optimum T*: the least time in which both paths together bring as many bytes as the
    /// object has, each fetching all of it from its own start.
    Optimum,
    /// aria2 with so many connections over both interfaces.
    Aria2(u8),
    /// curl as it is, over the preferred interface.
    Tcp,
    /// curl over kernel Multipath TCP.
    Mptcp,
    /// The same, with the cellular subflow as a backup.
    MptcpBackup,
    /// curl through Multiway's proxy.
    Proxy(Preference),
    /// curl under Multiway's interception, unaware.
    Transparent(Preference),
    /// `multiway get`.
    Get(Preference),
    /// A program that reads as fast as it can and notes when: through Multiway's proxy.
    ReaderProxy(Preference),
    /// The same over each interface alone.
    ReaderAlone,
    /// The same over the preferred interface.
    ReaderTcp,
    /// The same over kernel Multipath TCP.
    ReaderMptcp,
    /// The same, with the cellular subflow as a backup.
    ReaderMptcpBackup,
    /// The same program through Multiway and its relay, from one path to the other while it fails.
    Handover(Detector),
    /// The same, over both paths.
    Aggregate,
}

/// How Multiway notices a path that fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Detector {
    /// As MultiMob's paper has it.
    Paper,
    Improved,
}

impl Detector {
    /// Its name in the daemon's configuration.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Paper => "multimob",
            Self::Improved => "improved",
        }
    }
}

/// How Multiway uses its paths to the relay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BondMode {
    Handover,
    Aggregate,
}

impl BondMode {
    /// Its name in the daemon's configuration.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Handover => "handover",
            Self::Aggregate => "aggregate",
        }
    }
}

/// Multiway's two preferences.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Preference {
    Fast,
    Thrifty,
}

impl Preference {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Fast => "fast",
            Self::Thrifty => "thrifty",
        }
    }
}

impl Method {
    /// Whether hosts speak Multipath TCP for it.
    pub(crate) fn is_mptcp(self) -> bool {
        matches!(self, Self::Mptcp | Self::MptcpBackup | Self::ReaderMptcp | Self::ReaderMptcpBackup)
    }

    /// How it uses a relay, if it does.
    pub(crate) fn bond(self) -> Option<(BondMode, Detector)> {
        match self {
            Self::Handover(detector) => Some((BondMode::Handover, detector)),
            Self::Aggregate => Some((BondMode::Aggregate, Detector::Improved)),
            _ => None,
        }
    }

    /// Whether its cellular subflow is a backup.
    pub(crate) fn is_mptcp_backup(self) -> bool {
        matches!(self, Self::MptcpBackup | Self::ReaderMptcpBackup)
    }
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Curl => write!(f, "curl"),
            Self::Optimum => write!(f, "optimum"),
            Self::Aria2(connections) => write!(f, "aria2-x{connections}"),
            Self::Tcp => write!(f, "tcp"),
            Self::Mptcp => write!(f, "mptcp"),
            Self::MptcpBackup => write!(f, "mptcp-backup"),
            Self::Proxy(preference) => write!(f, "proxy-{}", preference.name()),
            Self::Transparent(preference) => write!(f, "transparent-{}", preference.name()),
            Self::Get(preference) => write!(f, "get-{}", preference.name()),
            Self::ReaderProxy(preference) => write!(f, "reader-proxy-{}", preference.name()),
            Self::ReaderAlone => write!(f, "reader-alone"),
            Self::ReaderTcp => write!(f, "reader-tcp"),
            Self::ReaderMptcp => write!(f, "reader-mptcp"),
            Self::ReaderMptcpBackup => write!(f, "reader-mptcp-backup"),
            Self::Handover(Detector::Improved) => write!(f, "multiway"),
            Self::Handover(Detector::Paper) => write!(f, "multiway-paper"),
            Self::Aggregate => write!(f, "multiway-aggregate"),
        }
    }
}

impl FromStr for Method {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let preference = |text: &str| match text {
            "fast" => Some(Preference::Fast),
            "thrifty" => Some(Preference::Thrifty),
            _ => None,
        };
        let (kind, rest) = match text.rsplit_once('-') {
            Some((kind, rest)) => (kind, rest),
            None => (text, ""),
        };
        let method = match (kind, rest) {
            ("curl", "") => Some(Self::Curl),
            ("optimum", "") => Some(Self::Optimum),
            ("tcp", "") => Some(Self::Tcp),
            ("mptcp", "") => Some(Self::Mptcp),
            ("mptcp", "backup") => Some(Self::MptcpBackup),
            ("reader", "alone") => Some(Self::ReaderAlone),
            ("reader", "tcp") => Some(Self::ReaderTcp),
            ("reader", "mptcp") => Some(Self::ReaderMptcp),
            ("reader-mptcp", "backup") => Some(Self::ReaderMptcpBackup),
            ("multiway", "") => Some(Self::Handover(Detector::Improved)),
            ("multiway", "paper") => Some(Self::Handover(Detector::Paper)),
            ("multiway", "aggregate") => Some(Self::Aggregate),
            ("aria2", connections) => {
                connections.strip_prefix('x').and_then(|count| count.parse().ok()).map(Self::Aria2)
            }
            ("proxy", name) => preference(name).map(Self::Proxy),
            ("transparent", name) => preference(name).map(Self::Transparent),
            ("get", name) => preference(name).map(Self::Get),
            ("reader-proxy", name) => preference(name).map(Self::ReaderProxy),
            _ => None,
        };
        method.ok_or_else(|| {
            format!(
                "`{text}` is no method; there are curl, optimum, aria2-xN, tcp, mptcp, mptcp-backup, \
                 reader-alone, reader-tcp, reader-mptcp, reader-mptcp-backup, multiway, multiway-paper, \
                 multiway-aggregate, and \
                 proxy-, transparent-, get- and reader-proxy- with fast or thrifty"
            )
        })
    }
}

impl TryFrom<String> for Method {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_method_is_read_back_from_its_name() {
        use Preference::{Fast, Thrifty};
        for method in [
            Method::Curl,
            Method::Optimum,
            Method::Aria2(8),
            Method::Tcp,
            Method::Mptcp,
            Method::MptcpBackup,
            Method::Proxy(Fast),
            Method::Transparent(Thrifty),
            Method::Get(Fast),
            Method::ReaderProxy(Thrifty),
            Method::ReaderAlone,
            Method::ReaderTcp,
            Method::ReaderMptcp,
            Method::ReaderMptcpBackup,
        ] {
            assert_eq!(method.to_string().parse(), Ok(method));
        }
        assert!("get-slow".parse::<Method>().is_err());
    }
}
