//! Where a message ends and whether its connection lives on (RFC 9112 sections 6.3 and 9.3).

use super::headers::{Headers, Version};
use super::method::Method;

/// How the bytes of a message's body are delimited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BodyLength {
    /// There is no body.
    None,
    /// This many bytes.
    Exact(u64),
    /// The chunked transfer coding, up to its trailers' end.
    Chunked,
    /// All bytes until the connection closes.
    UntilClose,
}

impl BodyLength {
    /// RFC 9112 section 6.3, for a request whose framing was checked.
    pub(super) fn of_request(headers: &Headers) -> Self {
        if headers.contains("transfer-encoding") {
            return Self::Chunked;
        }
        let length = headers.content_length().expect("checked when the head was parsed");
        length.map_or(Self::None, Self::Exact)
    }

    /// RFC 9112 section 6.3, for a response whose framing was checked.
    pub(super) fn of_response(headers: &Headers, status: u16, method: &Method) -> Self {
        // Items 1 and 2: these end with their head; after the CONNECT's and the 101's a tunnel begins.
        let tunnel = *method == Method::Connect && (200..300).contains(&status);
        if *method == Method::Head || matches!(status, 100..200 | 204 | 304) || tunnel {
            return Self::None;
        }
        match headers.ends_in_chunked().expect("checked when the head was parsed") {
            Some(true) => Self::Chunked,
            Some(false) => Self::UntilClose,
            None => {
                let length = headers.content_length().expect("checked when the head was parsed");
                length.map_or(Self::UntilClose, Self::Exact)
            }
        }
    }
}

/// What one side says about its connection: `close` ends it, HTTP/1.1 keeps it, HTTP/1.0 keeps it only
/// with `keep-alive` (RFC 9112 section 9.3).
pub(super) fn wants_persistence(headers: &Headers, version: Version) -> bool {
    if headers.has_token("connection", "close") {
        return false;
    }
    version == Version::Http11 || headers.has_token("connection", "keep-alive")
}
