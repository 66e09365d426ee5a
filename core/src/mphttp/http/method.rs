//! What a request asks to be done.

use std::fmt;

/// A request method (RFC 9110 section 9); compared with case.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Method {
    /// GET.
    Get,
    /// HEAD.
    Head,
    /// POST.
    Post,
    /// PUT.
    Put,
    /// OPTIONS.
    Options,
    /// CONNECT.
    Connect,
    /// Any other token.
    Other(String),
}

impl Method {
    pub(super) fn parse(token: &str) -> Self {
        match token {
            "GET" => Self::Get,
            "HEAD" => Self::Head,
            "POST" => Self::Post,
            "PUT" => Self::Put,
            "OPTIONS" => Self::Options,
            "CONNECT" => Self::Connect,
            other => Self::Other(other.to_owned()),
        }
    }

    /// The token.
    pub fn as_str(&self) -> &str {
        match self {
            Self::Get => "GET",
            Self::Head => "HEAD",
            Self::Post => "POST",
            Self::Put => "PUT",
            Self::Options => "OPTIONS",
            Self::Connect => "CONNECT",
            Self::Other(token) => token,
        }
    }
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
