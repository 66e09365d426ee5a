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
    /// curl over kernel Multipath TCP.
    Mptcp,
    /// curl through Multiway's proxy.
    Proxy(Preference),
    /// curl under Multiway's interception, unaware.
    Transparent(Preference),
    /// `multiway get`.
    Get(Preference),
    /// A program that reads as fast as it can and notes when: through Multiway's proxy.
    ReaderProxy(Preference),
    /// The same over kernel Multipath TCP.
    ReaderMptcp,
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

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Curl => write!(f, "curl"),
            Self::Optimum => write!(f, "optimum"),
            Self::Aria2(connections) => write!(f, "aria2-x{connections}"),
            Self::Mptcp => write!(f, "mptcp"),
            Self::Proxy(preference) => write!(f, "proxy-{}", preference.name()),
            Self::Transparent(preference) => write!(f, "transparent-{}", preference.name()),
            Self::Get(preference) => write!(f, "get-{}", preference.name()),
            Self::ReaderProxy(preference) => write!(f, "reader-proxy-{}", preference.name()),
            Self::ReaderMptcp => write!(f, "reader-mptcp"),
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
            ("mptcp", "") => Some(Self::Mptcp),
            ("reader", "mptcp") => Some(Self::ReaderMptcp),
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
                "`{text}` is no method; there are curl, optimum, aria2-xN, mptcp, reader-mptcp, and \
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
            Method::Mptcp,
            Method::Proxy(Fast),
            Method::Transparent(Thrifty),
            Method::Get(Fast),
            Method::ReaderProxy(Thrifty),
            Method::ReaderMptcp,
        ] {
            assert_eq!(method.to_string().parse(), Ok(method));
        }
        assert!("get-slow".parse::<Method>().is_err());
    }
}
