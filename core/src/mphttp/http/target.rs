//! The request target and the authority it names (RFC 9112 section 3.2).

use std::fmt;

/// Why a request target or `Host` value is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TargetError {
    /// None of the four forms of RFC 9112 section 3.2, or not the form this method needs.
    #[error("the request target `{0}` has no form that its method allows")]
    Form(String),
    /// A scheme other than `http` or `https`.
    #[error("the scheme `{0}` is neither http nor https")]
    Scheme(String),
    /// Not `host` or `host:port`.
    #[error("`{0}` is not a host with an optional port")]
    Authority(String),
}

/// Longest host: names have at most 253 characters (RFC 1035 section 2.3.4), and percent-encoding is rare.
/// Hosts are remembered, so a sender must not choose how much memory that takes.
const MAX_HOST: usize = 255;

/// A host and, where given, a port.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Authority {
    text: String,
    host: String,
    port: Option<u16>,
}

impl Authority {
    /// Parses `host`, `host:port`, `[v6]` or `[v6]:port`. User information is refused, as RFC 9110
    /// section 4.2.4 asks: it is used to disguise hosts.
    pub fn parse(text: &str) -> Result<Self, TargetError> {
        let refuse = || TargetError::Authority(text.to_owned());
        let (host, port) = match text.strip_prefix('[') {
            Some(rest) => {
                let (host, after) = rest.split_once(']').ok_or_else(refuse)?;
                host.parse::<std::net::Ipv6Addr>().map_err(|_| refuse())?;
                match after {
                    "" => (host, ""),
                    _ => (host, after.strip_prefix(':').ok_or_else(refuse)?),
                }
            }
            None => match text.split_once(':') {
                Some((host, port)) => (host, port),
                None => (text, ""),
            },
        };
        // reg-name of RFC 3986 section 3.2.2, and the underscore's friends that real hosts use.
        let is_name_byte = |b: u8| b.is_ascii_alphanumeric() || b"-._~!$&'()*+;=%".contains(&b) || b >= 0x80;
        let is_v6 = text.starts_with('[');
        if host.is_empty() || host.len() > MAX_HOST || !(is_v6 || host.bytes().all(is_name_byte)) {
            return Err(refuse());
        }
        let port = match port {
            "" => None,
            _ if port.bytes().all(|b| b.is_ascii_digit()) => Some(port.parse().map_err(|_| refuse())?),
            _ => return Err(refuse()),
        };
        Ok(Self { text: text.to_owned(), host: host.to_ascii_lowercase(), port })
    }

    /// The host in lower case, an IPv6 address without brackets.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// The port, when one is written.
    pub fn port(&self) -> Option<u16> {
        self.port
    }

    /// The authority as it was written.
    pub fn as_str(&self) -> &str {
        &self.text
    }
}

impl fmt::Display for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// What a request line asks for (RFC 9112 section 3.2).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RequestTarget {
    /// `/path?query`, as sent to an origin server.
    Origin {
        /// Path and query, as written.
        path: String,
    },
    /// `http://host/path`, as sent to a proxy.
    Absolute {
        /// `http` or `https`, in lower case.
        scheme: &'static str,
        /// The origin.
        authority: Authority,
        /// Path and query, as written; empty when the URI has none.
        path: String,
    },
    /// `host:port`, of CONNECT alone.
    Authority(Authority),
    /// `*`, of OPTIONS alone.
    Asterisk,
}

impl RequestTarget {
    /// Parses the target of a request with `method`.
    pub(super) fn parse(target: &str, method: &str) -> Result<Self, TargetError> {
        let refuse = || TargetError::Form(target.to_owned());
        if method == "CONNECT" {
            let authority = Authority::parse(target)?;
            return if authority.port().is_some() { Ok(Self::Authority(authority)) } else { Err(refuse()) };
        }
        if target.starts_with('/') {
            return Ok(Self::Origin { path: target.to_owned() });
        }
        if target == "*" {
            return if method == "OPTIONS" { Ok(Self::Asterisk) } else { Err(refuse()) };
        }
        let (scheme, rest) = target.split_once("://").ok_or_else(refuse)?;
        let scheme = if scheme.eq_ignore_ascii_case("http") {
            "http"
        } else if scheme.eq_ignore_ascii_case("https") {
            "https"
        } else {
            return Err(TargetError::Scheme(scheme.to_owned()));
        };
        let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
        let (authority, path) = rest.split_at(end);
        Ok(Self::Absolute { scheme, authority: Authority::parse(authority)?, path: path.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn authorities_are_hosts_with_optional_ports() {
        let parsed = |text| Authority::parse(text).map(|a| (a.host().to_owned(), a.port()));
        assert_eq!(parsed("Example.COM"), Ok(("example.com".into(), None)));
        assert_eq!(parsed("example.com:8080"), Ok(("example.com".into(), Some(8080))));
        assert_eq!(parsed("example.com:"), Ok(("example.com".into(), None)));
        assert_eq!(parsed("[2001:DB8::1]:80"), Ok(("2001:db8::1".into(), Some(80))));
        for bad in
            ["", ":80", "a:b", "a:99999", "user@host", "a/b", "[::1", "[::1]80", "[x]", "a b", "a,b", "a:+1"]
        {
            assert!(parsed(bad).is_err(), "{bad}");
        }
        let (longest, longer) = ("a".repeat(MAX_HOST), "a".repeat(MAX_HOST + 1));
        assert!(parsed(&longest).is_ok() && parsed(&longer).is_err());
    }

    #[test]
    fn each_form_belongs_to_its_methods() {
        assert!(matches!(RequestTarget::parse("/a?b", "GET"), Ok(RequestTarget::Origin { .. })));
        assert!(matches!(RequestTarget::parse("*", "OPTIONS"), Ok(RequestTarget::Asterisk)));
        assert!(matches!(RequestTarget::parse("h:443", "CONNECT"), Ok(RequestTarget::Authority(_))));
        let Ok(RequestTarget::Absolute { scheme, authority, path }) =
            RequestTarget::parse("HTTP://h:81?q", "GET")
        else {
            panic!("an absolute form");
        };
        assert_eq!((scheme, authority.as_str(), path.as_str()), ("http", "h:81", "?q"));
        for (target, method) in
            [("*", "GET"), ("h", "CONNECT"), ("h:443", "GET"), ("ftp://h/", "GET"), ("a", "GET")]
        {
            assert!(RequestTarget::parse(target, method).is_err(), "{method} {target}");
        }
    }
}
