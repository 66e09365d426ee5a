//! Header fields with their original bytes, case and order, and the checks shared by both kinds of head.

use std::fmt;
use std::ops::Range;

use bytes::Bytes;

use super::target::TargetError;

/// Bounds on a message head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeadLimits {
    /// Most bytes in a head, from the start line to the empty line.
    pub max_bytes: usize,
    /// Most header fields in a head.
    pub max_headers: usize,
}

impl Default for HeadLimits {
    /// 64 KiB and 128 fields: above what nginx, Apache and browsers send or take.
    fn default() -> Self {
        Self { max_bytes: 64 * 1024, max_headers: 128 }
    }
}

/// Why bytes are not an acceptable HTTP/1.x message head.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HeadError {
    /// The head does not end within [`HeadLimits::max_bytes`].
    #[error("the head is larger than {limit} bytes")]
    TooLarge {
        /// The bound that was passed.
        limit: usize,
    },
    /// More fields than [`HeadLimits::max_headers`].
    #[error("the head has more than {limit} header fields")]
    TooManyHeaders {
        /// The bound that was passed.
        limit: usize,
    },
    /// Not the syntax of RFC 9112 sections 3 to 5.
    #[error("malformed head: {0}")]
    Syntax(httparse::Error),
    /// A field continued on a line that starts with white space (RFC 9112 section 5.2).
    #[error("a header field is folded over several lines")]
    ObsoleteFolding,
    /// The request target has none of the four forms, or not the one its method needs.
    #[error(transparent)]
    Target(#[from] TargetError),
    /// HTTP/1.1 without `Host` (RFC 9112 section 3.2).
    #[error("an HTTP/1.1 request without a Host header")]
    HostMissing,
    /// More than one `Host` (RFC 9112 section 3.2).
    #[error("more than one Host header")]
    HostRepeated,
    /// `Content-Length` that is no decimal number of at most 64 bits.
    #[error("Content-Length is not a number")]
    ContentLengthInvalid,
    /// Several `Content-Length` values that differ (RFC 9112 section 6.3, item 5).
    #[error("Content-Length values differ")]
    ContentLengthsDiffer,
    /// Both framings at once, the mark of request smuggling (RFC 9112 section 6.1).
    #[error("both Transfer-Encoding and Content-Length")]
    TwoFramings,
    /// `Transfer-Encoding` in HTTP/1.0, whose framing is faulty by RFC 9112 section 6.1.
    #[error("Transfer-Encoding in an HTTP/1.0 message")]
    TransferEncodingInHttp10,
    /// A request whose last transfer coding is not `chunked` has no known end (RFC 9112 section 6.3,
    /// item 4); `chunked` anywhere but last and once is malformed in both directions (section 6.1).
    #[error("Transfer-Encoding does not end in exactly one `chunked`")]
    TransferEncodingUnframed,
}

/// The version named by a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Version {
    /// HTTP/1.0.
    Http10,
    /// HTTP/1.1.
    Http11,
}

impl Version {
    pub(super) fn from_minor(minor: Option<u8>) -> Self {
        if minor == Some(1) { Self::Http11 } else { Self::Http10 }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Http10 => "HTTP/1.0",
            Self::Http11 => "HTTP/1.1",
        })
    }
}

/// The header fields of one head, in the order and case they were sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Headers {
    raw: Bytes,
    fields: Vec<(Range<usize>, Range<usize>)>,
}

impl Headers {
    /// The fields that httparse found inside `raw`.
    pub(super) fn locate(raw: &Bytes, parsed: &[httparse::Header<'_>]) -> Self {
        let within = |part: &[u8]| {
            let start = (part.as_ptr() as usize).wrapping_sub(raw.as_ptr() as usize);
            if start <= raw.len() && part.len() <= raw.len() - start {
                start..start + part.len()
            } else {
                0..0
            }
        };
        let fields = parsed.iter().map(|h| (within(h.name.as_bytes()), within(h.value))).collect();
        Self { raw: raw.clone(), fields }
    }

    /// Each field's name and value, white space around the value removed.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.fields.iter().map(|(name, value)| {
            let name =
                std::str::from_utf8(&self.raw[name.clone()]).expect("httparse lets only tokens be names");
            (name, &self.raw[value.clone()])
        })
    }

    /// Every value of the field `name`, which is compared without case.
    pub fn get_all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a [u8]> {
        self.iter().filter(move |(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    }

    /// The first value of the field `name`.
    pub fn get<'a>(&'a self, name: &'a str) -> Option<&'a [u8]> {
        self.get_all(name).next()
    }

    /// The first value of the field `name`, when it is UTF-8.
    pub fn get_str<'a>(&'a self, name: &'a str) -> Option<&'a str> {
        self.get(name).and_then(|value| std::str::from_utf8(value).ok())
    }

    /// True when the field `name` is there, even empty.
    pub fn contains(&self, name: &str) -> bool {
        self.get(name).is_some()
    }

    /// The members of the list-valued field `name` over all its lines (RFC 9110 sections 5.3, 5.6.1):
    /// commas inside quoted strings do not separate, empty members are skipped.
    pub fn list<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a [u8]> {
        self.get_all(name).flat_map(list_members)
    }

    /// True when the list-valued field `name` has the member `token`, compared without case.
    pub fn has_token(&self, name: &str, token: &str) -> bool {
        self.list(name).any(|member| member.eq_ignore_ascii_case(token.as_bytes()))
    }

    /// The length that `Content-Length` gives. Equal repetitions are one (RFC 9110 section 8.6).
    pub(super) fn content_length(&self) -> Result<Option<u64>, HeadError> {
        let mut length = None;
        for value in self.get_all("content-length") {
            // Not `list`, which skips empty members: `5,` is not a length.
            for member in value.split(|&b| b == b',') {
                let this = parse_decimal(trim(member)).ok_or(HeadError::ContentLengthInvalid)?;
                if length.is_some_and(|other| other != this) {
                    return Err(HeadError::ContentLengthsDiffer);
                }
                length = Some(this);
            }
        }
        Ok(length)
    }

    /// Whether the last transfer coding is `chunked`; `None` without transfer codings.
    pub(super) fn ends_in_chunked(&self) -> Result<Option<bool>, HeadError> {
        if !self.contains("transfer-encoding") {
            return Ok(None);
        }
        let codings: Vec<_> = self.list("transfer-encoding").collect();
        let chunked = |coding: &[u8]| coding.eq_ignore_ascii_case(b"chunked");
        let Some((last, before)) = codings.split_last() else {
            return Err(HeadError::TransferEncodingUnframed);
        };
        // Names that only begin with `chunked`, or hold stray bytes, are read differently by different
        // servers, which is what smuggling lives on.
        let doubtful = |coding: &[u8]| coding.to_ascii_lowercase().windows(7).any(|part| part == b"chunked");
        if before.iter().any(|coding| doubtful(coding)) || (doubtful(last) && !chunked(last)) {
            return Err(HeadError::TransferEncodingUnframed);
        }
        Ok(Some(chunked(last)))
    }

    /// Refuses framing on which two recipients could disagree.
    pub(super) fn check_framing(&self, version: Version) -> Result<(), HeadError> {
        let length = self.content_length()?;
        if self.ends_in_chunked()?.is_some() {
            if length.is_some() {
                return Err(HeadError::TwoFramings);
            }
            if version == Version::Http10 {
                return Err(HeadError::TransferEncodingInHttp10);
            }
        }
        Ok(())
    }
}

/// A decimal number, digits only.
pub(super) fn parse_decimal(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() {
        return None;
    }
    digits.iter().try_fold(0u64, |number, byte| {
        let digit = byte.is_ascii_digit().then(|| u64::from(byte - b'0'))?;
        number.checked_mul(10)?.checked_add(digit)
    })
}

/// `bytes` without spaces and tabs at both ends.
pub(super) fn trim(bytes: &[u8]) -> &[u8] {
    let white = |b: &u8| *b == b' ' || *b == b'\t';
    let Some(start) = bytes.iter().position(|b| !white(b)) else { return &[] };
    let end = bytes.iter().rposition(|b| !white(b)).map_or(start, |last| last + 1);
    &bytes[start..end]
}

/// The non-empty members of one line of a list-valued field.
fn list_members(line: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = Some(line);
    std::iter::from_fn(move || {
        let line = rest?;
        let (mut quoted, mut escaped) = (false, false);
        let comma = line.iter().position(|&b| match b {
            _ if escaped => {
                escaped = false;
                false
            }
            b'\\' if quoted => {
                escaped = true;
                false
            }
            b'"' => {
                quoted = !quoted;
                false
            }
            b',' => !quoted,
            _ => false,
        });
        rest = comma.map(|at| &line[at + 1..]);
        Some(trim(&line[..comma.unwrap_or(line.len())]))
    })
    .filter(|member| !member.is_empty())
}

/// Turns httparse's verdict on the first `limits.max_bytes` of a buffer into ours.
pub(super) fn head_length(
    parsed: Result<httparse::Status<usize>, httparse::Error>,
    window: &[u8],
    limits: HeadLimits,
) -> Result<Option<usize>, HeadError> {
    match parsed {
        Ok(httparse::Status::Complete(length)) => Ok(Some(length)),
        Ok(httparse::Status::Partial) if window.len() >= limits.max_bytes => {
            Err(HeadError::TooLarge { limit: limits.max_bytes })
        }
        Ok(httparse::Status::Partial) => Ok(None),
        Err(httparse::Error::TooManyHeaders) => Err(HeadError::TooManyHeaders { limit: limits.max_headers }),
        Err(httparse::Error::HeaderName) if has_folded_line(window) => Err(HeadError::ObsoleteFolding),
        Err(error) => Err(HeadError::Syntax(error)),
    }
}

/// True when a line of the head starts with white space.
fn has_folded_line(window: &[u8]) -> bool {
    let mut lines =
        window.split(|&b| b == b'\n').skip_while(|line| line.is_empty() || *line == b"\r").skip(1);
    lines
        .by_ref()
        .take_while(|line| !line.is_empty() && *line != b"\r")
        .any(|line| line.starts_with(b" ") || line.starts_with(b"\t"))
}

/// True when the field `name` concerns one connection alone and is not to be forwarded (RFC 9110
/// section 7.6.1). `upgrading` keeps what an upgrade needs to reach the other side.
pub(super) fn is_hop_by_hop(headers: &Headers, name: &str, upgrading: bool) -> bool {
    const FRAMING: [&str; 3] = ["content-length", "transfer-encoding", "host"];
    const HOP_BY_HOP: [&str; 6] =
        ["connection", "keep-alive", "te", "proxy-connection", "proxy-authorization", "proxy-authenticate"];
    let is = |other: &&str| name.eq_ignore_ascii_case(other);
    // A sender that lists framing fields in Connection would make the next hop frame the body
    // differently; such options must not be sent (section 7.6.1) and are not obeyed.
    if FRAMING.iter().any(is) {
        return false;
    }
    if is(&"upgrade") {
        return !upgrading;
    }
    HOP_BY_HOP.iter().any(is) || headers.has_token("connection", name)
}

/// Appends one field line.
pub(super) fn push_field(out: &mut Vec<u8>, name: &str, value: &[u8]) {
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(b": ");
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
}
