//! Response heads: parsed, looked up, and rewritten for what the client asked.

use std::ops::Range;

use bytes::Bytes;

use super::framing::{BodyLength, wants_persistence};
use super::headers::{HeadError, HeadLimits, Headers, Version, head_length, is_hop_by_hop, push_field};
use super::method::Method;
use super::range::{ContentRange, RangeError};
use super::request::RequestHead;
use super::validator::EntityTag;

/// What a rewritten response head announces; see [`ResponseHead::reframed`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reframe {
    /// 200 with the whole object.
    Whole {
        /// Its size.
        total: u64,
    },
    /// 206 with one part.
    Part {
        /// The bytes of the part.
        span: Range<u64>,
        /// The object's size.
        total: u64,
    },
}

/// A response's head, with the bytes it came in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResponseHead {
    raw: Bytes,
    status: u16,
    version: Version,
    headers: Headers,
}

impl ResponseHead {
    /// Parses the head at the start of `buf`: the head and its length, `None` while it is incomplete.
    pub fn parse(buf: &[u8], limits: HeadLimits) -> Result<Option<(Self, usize)>, HeadError> {
        let window = &buf[..buf.len().min(limits.max_bytes)];
        let mut storage = vec![httparse::EMPTY_HEADER; limits.max_headers];
        let mut response = httparse::Response::new(&mut storage);
        let Some(length) = head_length(response.parse(window), window, limits)? else { return Ok(None) };
        // Parsed again over our own copy, so that the fields can be located in it.
        let raw = Bytes::copy_from_slice(&window[..length]);
        let mut storage = vec![httparse::EMPTY_HEADER; limits.max_headers];
        let mut response = httparse::Response::new(&mut storage);
        head_length(response.parse(&raw), &raw, HeadLimits { max_bytes: usize::MAX, ..limits })?;

        let status = response.code.expect("a complete response has a status");
        let version = Version::from_minor(response.version);
        let headers = Headers::locate(&raw, response.headers);
        headers.check_framing(version)?;
        Ok(Some((Self { raw, status, version, headers }, length)))
    }

    /// The bytes as received, from the status line to the empty line.
    pub fn raw(&self) -> &Bytes {
        &self.raw
    }

    /// The status code.
    pub fn status(&self) -> u16 {
        self.status
    }

    /// True for 1xx other than 101: the final response is still to come (RFC 9110 section 15.2).
    pub fn is_interim(&self) -> bool {
        (100..200).contains(&self.status) && self.status != 101
    }

    /// The version.
    pub fn version(&self) -> Version {
        self.version
    }

    /// The header fields.
    pub fn headers(&self) -> &Headers {
        &self.headers
    }

    /// How the body after this head is framed, when it answers a request with `method`.
    pub fn body_length(&self, method: &Method) -> BodyLength {
        BodyLength::of_response(&self.headers, self.status, method)
    }

    /// The value of `Content-Length`.
    pub fn content_length(&self) -> Option<u64> {
        self.headers.content_length().expect("checked when the head was parsed")
    }

    /// The `Content-Range`, when there is one. Several lines are malformed.
    pub fn content_range(&self) -> Option<Result<ContentRange, RangeError>> {
        let mut values = self.headers.get_all("content-range");
        let value = values.next()?;
        Some(if values.next().is_some() { Err(RangeError::Syntax) } else { ContentRange::parse(value) })
    }

    /// The `ETag`.
    pub fn etag(&self) -> Option<EntityTag> {
        self.headers.get("etag").and_then(EntityTag::parse)
    }

    /// The content codings as one comparable text: lower case, `identity` left out, empty without any.
    pub fn content_encoding(&self) -> String {
        let codings = self.headers.list("content-encoding");
        let codings = codings.map(|coding| String::from_utf8_lossy(coding).to_ascii_lowercase());
        codings.filter(|coding| coding != "identity").collect::<Vec<_>>().join(",")
    }

    /// True when the server would keep its connection after this exchange (RFC 9112 section 9.3).
    pub fn wants_persistence(&self) -> bool {
        wants_persistence(&self.headers, self.version)
    }

    /// This head announcing other bytes of the same representation: the client gets one answer to its own
    /// request though ranges were asked for. Hop-by-hop fields, which spoke of one path's connection, are
    /// removed.
    pub fn reframed(&self, frame: &Reframe) -> Vec<u8> {
        let (status, length, content_range) = match frame {
            Reframe::Whole { total } => ("200 OK", *total, None),
            Reframe::Part { span, total } => {
                let last = span.end.saturating_sub(1);
                let range = ContentRange::Span { first: span.start, last, total: Some(*total) };
                ("206 Partial Content", span.end.saturating_sub(span.start), Some(range))
            }
        };
        let mut out = format!("{} {status}\r\n", self.version).into_bytes();
        out.reserve(self.raw.len());
        for (name, value) in self.headers.iter() {
            let replaced =
                ["content-length", "content-range"].iter().any(|field| name.eq_ignore_ascii_case(field));
            if !replaced && !is_hop_by_hop(&self.headers, name, false) {
                push_field(&mut out, name, value);
            }
        }
        // Servers say this with a whole object and need not with a part, which shows it.
        if !self.headers.contains("accept-ranges") && content_range.is_none() && self.status == 206 {
            push_field(&mut out, "Accept-Ranges", b"bytes");
        }
        push_field(&mut out, "Content-Length", length.to_string().as_bytes());
        if let Some(range) = content_range {
            push_field(&mut out, "Content-Range", range.to_string().as_bytes());
        }
        out.extend_from_slice(b"\r\n");
        out
    }
}

/// True when the connection that carried this exchange can carry another.
pub fn connection_persists(request: &RequestHead, response: &ResponseHead) -> bool {
    let tunnel = response.status() == 101
        || (*request.method() == Method::Connect && (200..300).contains(&response.status()));
    let delimited = response.body_length(request.method()) != BodyLength::UntilClose;
    !tunnel && delimited && request.wants_persistence() && response.wants_persistence()
}
