//! Request heads: parsed, looked up, and written again for an origin server or another path.

use bytes::Bytes;

use super::framing::{BodyLength, wants_persistence};
use super::headers::{HeadError, HeadLimits, Headers, Version, head_length, is_hop_by_hop, push_field};
use super::method::Method;
use super::range::{ByteRange, RangeError, RequestedRange};
use super::target::{Authority, RequestTarget};

/// A request's head, with the bytes it came in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestHead {
    raw: Bytes,
    method: Method,
    target: RequestTarget,
    version: Version,
    headers: Headers,
    authority: Option<Authority>,
}

impl RequestHead {
    /// Parses the head at the start of `buf`: the head and its length, `None` while it is incomplete.
    pub fn parse(buf: &[u8], limits: HeadLimits) -> Result<Option<(Self, usize)>, HeadError> {
        let window = &buf[..buf.len().min(limits.max_bytes)];
        let mut storage = vec![httparse::EMPTY_HEADER; limits.max_headers];
        let mut request = httparse::Request::new(&mut storage);
        let Some(length) = head_length(request.parse(window), window, limits)? else { return Ok(None) };
        // Parsed again over our own copy, so that the fields can be located in it.
        let raw = Bytes::copy_from_slice(&window[..length]);
        let mut storage = vec![httparse::EMPTY_HEADER; limits.max_headers];
        let mut request = httparse::Request::new(&mut storage);
        head_length(request.parse(&raw), &raw, HeadLimits { max_bytes: usize::MAX, ..limits })?;

        let token = request.method.expect("a complete request has a method");
        let target = RequestTarget::parse(request.path.expect("a complete request has a target"), token)?;
        let method = Method::parse(token);
        let version = Version::from_minor(request.version);
        let headers = Headers::locate(&raw, request.headers);
        headers.check_framing(version)?;
        if headers.ends_in_chunked()? == Some(false) {
            return Err(HeadError::TransferEncodingUnframed);
        }
        let host = parse_host(&headers, version)?;
        // The target's authority counts more than Host (RFC 9112 section 3.2.2).
        let authority = match &target {
            RequestTarget::Absolute { authority, .. } | RequestTarget::Authority(authority) => {
                Some(authority.clone())
            }
            RequestTarget::Origin { .. } | RequestTarget::Asterisk => host,
        };
        Ok(Some((Self { raw, method, target, version, headers, authority }, length)))
    }

    /// The bytes as received, from the request line to the empty line.
    pub fn raw(&self) -> &Bytes {
        &self.raw
    }

    /// The method.
    pub fn method(&self) -> &Method {
        &self.method
    }

    /// The target as its form has it.
    pub fn target(&self) -> &RequestTarget {
        &self.target
    }

    /// The version.
    pub fn version(&self) -> Version {
        self.version
    }

    /// The header fields.
    pub fn headers(&self) -> &Headers {
        &self.headers
    }

    /// Where the request is meant to go: the target's authority, else that of `Host`.
    pub fn authority(&self) -> Option<&Authority> {
        self.authority.as_ref()
    }

    /// The host meant, in lower case and without an IPv6 address's brackets.
    pub fn host(&self) -> Option<&str> {
        self.authority.as_ref().map(Authority::host)
    }

    /// The target's scheme; `http` when it names none.
    pub fn scheme(&self) -> &'static str {
        match self.target {
            RequestTarget::Absolute { scheme, .. } => scheme,
            _ => "http",
        }
    }

    /// The port meant: the authority's, else the scheme's.
    pub fn port(&self) -> u16 {
        let default = if self.scheme() == "https" { 443 } else { 80 };
        self.authority.as_ref().and_then(Authority::port).unwrap_or(default)
    }

    /// Path and query as an origin server is asked for them; never empty.
    pub fn path(&self) -> String {
        match &self.target {
            RequestTarget::Origin { path } => path.clone(),
            // RFC 9112 sections 3.2.1 and 3.2.4: an empty path is `/`, or `*` for OPTIONS.
            RequestTarget::Absolute { path, .. } if path.is_empty() && self.method == Method::Options => {
                "*".to_owned()
            }
            RequestTarget::Absolute { path, .. } if path.starts_with('/') => path.clone(),
            RequestTarget::Absolute { path, .. } => format!("/{path}"),
            RequestTarget::Authority(authority) => authority.to_string(),
            RequestTarget::Asterisk => "*".to_owned(),
        }
    }

    /// How the body after this head is framed.
    pub fn body_length(&self) -> BodyLength {
        BodyLength::of_request(&self.headers)
    }

    /// The client's `Range`, when there is one. Several `Range` lines are malformed.
    pub fn range(&self) -> Option<Result<RequestedRange, RangeError>> {
        let mut values = self.headers.get_all("range");
        let value = values.next()?;
        Some(if values.next().is_some() { Err(RangeError::Syntax) } else { RequestedRange::parse(value) })
    }

    /// True when the client asks for another protocol on this connection (RFC 9110 section 7.8).
    pub fn is_upgrade(&self) -> bool {
        self.headers.contains("upgrade") && self.headers.has_token("connection", "upgrade")
    }

    /// True when the client would keep its connection after this exchange (RFC 9112 section 9.3).
    pub fn wants_persistence(&self) -> bool {
        wants_persistence(&self.headers, self.version)
    }

    /// This request as a proxy sends it to the origin: origin-form target, hop-by-hop fields removed
    /// (RFC 9110 section 7.6.1), `Host` from an absolute target (RFC 9112 section 3.2.2), all else kept in
    /// order. The version stays the client's: a newer one would invite chunked bodies, which pass untouched
    /// to a client that may not know them.
    pub fn to_origin_form(&self) -> Vec<u8> {
        let upgrading = self.is_upgrade();
        let mut out =
            self.start(|name| is_hop_by_hop(&self.headers, name, upgrading) || is_proxy_field(name));
        if upgrading {
            push_field(&mut out, "Connection", b"Upgrade");
        }
        out.extend_from_slice(b"\r\n");
        out
    }

    /// The request that asks for `range` of the same representation on another path. Everything the server
    /// may select the representation by is kept, `Accept-Encoding` above all; conditions are removed, for
    /// the comparison of validators belongs to us and a 304 or 412 would be of no use.
    pub fn with_range(&self, range: ByteRange) -> Vec<u8> {
        const REPLACED: [&str; 11] = [
            "range",
            "if-range",
            "if-match",
            "if-none-match",
            "if-modified-since",
            "if-unmodified-since",
            "content-length",
            "transfer-encoding",
            "trailer",
            "expect",
            "upgrade",
        ];
        let mut out = self.start(|name| {
            REPLACED.iter().any(|field| name.eq_ignore_ascii_case(field))
                || is_hop_by_hop(&self.headers, name, false)
                || is_proxy_field(name)
        });
        push_field(&mut out, "Range", range.to_string().as_bytes());
        out.extend_from_slice(b"\r\n");
        out
    }

    /// Request line and fields without those that `drop` names, and without the empty line.
    fn start(&self, drop: impl Fn(&str) -> bool) -> Vec<u8> {
        let mut out = format!("{} {} {}\r\n", self.method, self.path(), self.version).into_bytes();
        out.reserve(self.raw.len());
        let absolute = match &self.target {
            RequestTarget::Absolute { authority, .. } => Some(authority),
            _ => None,
        };
        if let (Some(authority), false) = (absolute, self.headers.contains("host")) {
            push_field(&mut out, "Host", authority.as_str().as_bytes());
        }
        for (name, value) in self.headers.iter().filter(|(name, _)| !drop(name)) {
            let is_host = name.eq_ignore_ascii_case("host");
            push_field(&mut out, name, absolute.filter(|_| is_host).map_or(value, |a| a.as_str().as_bytes()));
        }
        out
    }
}

/// True for fields meant for a proxy, standard (RFC 9110 section 11.7) or not.
fn is_proxy_field(name: &str) -> bool {
    name.get(..6).is_some_and(|start| start.eq_ignore_ascii_case("proxy-"))
}

/// The one `Host` that RFC 9112 section 3.2 asks for; empty where the target has no authority.
fn parse_host(headers: &Headers, version: Version) -> Result<Option<Authority>, HeadError> {
    let mut hosts = headers.get_all("host");
    let host = match (hosts.next(), version) {
        (Some(host), _) => host,
        (None, Version::Http11) => return Err(HeadError::HostMissing),
        (None, Version::Http10) => return Ok(None),
    };
    if hosts.next().is_some() {
        return Err(HeadError::HostRepeated);
    }
    if host.is_empty() {
        return Ok(None);
    }
    Ok(Some(Authority::parse(&String::from_utf8_lossy(host))?))
}
