//! Which exchanges may be split over paths, and whether two paths answer with the same representation.
//!
//! Anything doubtful is passed through on one path; [`WhyNot`] says what was doubtful.

use std::ops::Range;

use super::framing::BodyLength;
use super::headers::Version;
use super::method::Method;
use super::range::{ByteRange, ContentRange, RangeError, RequestedRange};
use super::request::RequestHead;
use super::response::ResponseHead;
use super::validator::EntityTag;

/// Why an exchange is passed through on one path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub enum WhyNot {
    /// Only GET is safe to ask twice and has ranges (RFC 9110 section 14.2).
    #[error("not a GET request")]
    Method,
    /// HTTP/1.0 has neither ranges nor dependable persistence.
    #[error("HTTP/1.0")]
    Http10,
    /// A GET with a body means something between this client and this server alone.
    #[error("the request has a body")]
    RequestBody,
    /// The connection may become another protocol.
    #[error("the request asks for an upgrade")]
    Upgrade,
    /// The exchange has a further round that ranges do not have.
    #[error("the request has an expectation")]
    Expect,
    /// `TE` or `Trailer`: the body on the wire may not be the representation.
    #[error("the request negotiates transfer codings or trailers")]
    TransferNegotiation,
    /// `no-transform` of the request or the response.
    #[error("Cache-Control forbids transformation")]
    NoTransform,
    /// The answer would be multipart/byteranges.
    #[error("the client asks for several ranges")]
    MultipleRanges,
    /// The client's range asks for nothing.
    #[error("the client's range cannot be satisfied")]
    UnsatisfiableRange,
    /// The client's range is not understood.
    #[error("the client's Range: {0}")]
    MalformedRange(RangeError),
    /// Only 200, or 206 to the client's own range, carry the object.
    #[error("status {0}")]
    Status(u16),
    /// No `Content-Length`, or no total in `Content-Range`.
    #[error("the size is unknown")]
    UnknownLength,
    /// The body on the wire is not the representation.
    #[error("the response has a transfer coding")]
    TransferCoding,
    /// `Accept-Ranges` without `bytes`.
    #[error("the server does not serve byte ranges")]
    RangesRefused,
    /// A multipart/byteranges body.
    #[error("the response has several parts")]
    Multipart,
    /// Coded bytes may differ from run to run of the coder.
    #[error("compressed without a strong validator")]
    UnstableCoding,
    /// A 206, but no range was asked for.
    #[error("a range that was not asked for")]
    UnrequestedRange,
    /// The 206 is not what was asked for, or contradicts itself.
    #[error("the response's range does not fit")]
    RangeContradiction,
    /// Not worth a second connection.
    #[error("only {size} bytes, splitting starts at {minimum}")]
    TooSmall {
        /// Bytes the response would bring.
        size: u64,
        /// Fewest bytes that are split.
        minimum: u64,
    },
}

/// A request whose answer may be split.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SplitRequest {
    /// The client's own range.
    pub range: Option<ByteRange>,
}

/// What the first path's response says about the bytes to come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Representation {
    /// Size of the whole representation.
    pub total: u64,
    /// First byte of it that the client is to get.
    pub start: u64,
    /// End of what the client is to get; the byte after the last.
    pub end: u64,
    /// The validator.
    pub etag: Option<EntityTag>,
    /// The weak validator, as written.
    pub last_modified: Option<Vec<u8>>,
    /// Content codings, normalised as [`ResponseHead::content_encoding`] does.
    pub content_encoding: String,
    /// The media type, as written.
    pub content_type: Option<Vec<u8>>,
}

/// Decides from the request alone.
pub fn request_may_split(request: &RequestHead) -> Result<SplitRequest, WhyNot> {
    let headers = request.headers();
    if *request.method() != Method::Get {
        return Err(WhyNot::Method);
    }
    if request.version() != Version::Http11 {
        return Err(WhyNot::Http10);
    }
    if !matches!(request.body_length(), BodyLength::None | BodyLength::Exact(0)) {
        return Err(WhyNot::RequestBody);
    }
    if headers.contains("upgrade") {
        return Err(WhyNot::Upgrade);
    }
    if headers.contains("expect") {
        return Err(WhyNot::Expect);
    }
    // `TE: trailers` alone negotiates no coding; a body with trailers is chunked and so not split anyway.
    if headers.contains("trailer") || headers.list("te").any(|te| !te.eq_ignore_ascii_case(b"trailers")) {
        return Err(WhyNot::TransferNegotiation);
    }
    if headers.has_token("cache-control", "no-transform") {
        return Err(WhyNot::NoTransform);
    }
    let range = match request.range() {
        None => None,
        Some(Ok(RequestedRange::Single(ByteRange::Suffix { length: 0 }))) => {
            return Err(WhyNot::UnsatisfiableRange);
        }
        Some(Ok(RequestedRange::Single(range))) => Some(range),
        Some(Ok(RequestedRange::Multiple(_))) => return Err(WhyNot::MultipleRanges),
        Some(Err(error)) => return Err(WhyNot::MalformedRange(error)),
    };
    Ok(SplitRequest { range })
}

/// Decides from the first path's response to `request`.
pub fn response_may_split(
    request: &RequestHead,
    response: &ResponseHead,
    minimum_size: u64,
) -> Result<Representation, WhyNot> {
    let asked = request_may_split(request)?.range;
    let headers = response.headers();
    if !matches!(response.status(), 200 | 206) {
        return Err(WhyNot::Status(response.status()));
    }
    if response.version() != Version::Http11 {
        return Err(WhyNot::Http10);
    }
    if headers.contains("transfer-encoding") {
        return Err(WhyNot::TransferCoding);
    }
    if headers.has_token("cache-control", "no-transform") {
        return Err(WhyNot::NoTransform);
    }
    if headers.contains("accept-ranges") && !headers.has_token("accept-ranges", "bytes") {
        return Err(WhyNot::RangesRefused);
    }
    if is_multipart(response) {
        return Err(WhyNot::Multipart);
    }
    let length = response.content_length().ok_or(WhyNot::UnknownLength)?;
    let (span, total) = match (response.status(), asked) {
        (206, None) => return Err(WhyNot::UnrequestedRange),
        (206, Some(asked)) => enclosed(response, asked, length)?,
        _ if headers.contains("content-range") => return Err(WhyNot::RangeContradiction),
        _ => (0..length, length),
    };
    let etag = response.etag();
    let content_encoding = response.content_encoding();
    if !content_encoding.is_empty() && etag.as_ref().is_none_or(EntityTag::is_weak) {
        return Err(WhyNot::UnstableCoding);
    }
    let size = span.end - span.start;
    if size < minimum_size || size == 0 {
        return Err(WhyNot::TooSmall { size, minimum: minimum_size.max(1) });
    }
    Ok(Representation {
        total,
        start: span.start,
        end: span.end,
        etag,
        last_modified: headers.get("last-modified").map(<[u8]>::to_vec),
        content_encoding,
        content_type: headers.get("content-type").map(<[u8]>::to_vec),
    })
}

/// The span and total of the 206 that answers the client's own range.
fn enclosed(response: &ResponseHead, asked: ByteRange, length: u64) -> Result<(Range<u64>, u64), WhyNot> {
    let (span, total) = match response.content_range() {
        Some(Ok(ContentRange::Span { first, last, total: Some(total) })) => (first..last + 1, total),
        Some(Ok(ContentRange::Span { total: None, .. })) => return Err(WhyNot::UnknownLength),
        _ => return Err(WhyNot::RangeContradiction),
    };
    let wanted = asked.resolve(total).ok_or(WhyNot::RangeContradiction)?;
    // A server may answer with less than asked (RFC 9110 section 15.3.7); the client will see that in the
    // head, which it gets as it is.
    let fits = wanted.start == span.start && span.end <= wanted.end && length == span.end - span.start;
    if fits { Ok((span, total)) } else { Err(WhyNot::RangeContradiction) }
}

fn is_multipart(response: &ResponseHead) -> bool {
    let media_type = response.headers().get("content-type").unwrap_or_default();
    media_type.get(..20).is_some_and(|start| start.eq_ignore_ascii_case(b"multipart/byteranges"))
}

/// Why a range from another path is not of the same representation.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Mismatch {
    /// Not a 206; see [`refusal`](super::refusal()).
    #[error("status {0} instead of 206")]
    Status(u16),
    /// The body on the wire is not the representation's bytes.
    #[error("a transfer coding on a range")]
    TransferCoding,
    /// Several parts though one was asked for.
    #[error("several parts instead of one range")]
    Multipart,
    /// `Content-Range` is missing.
    #[error("no Content-Range")]
    ContentRangeMissing,
    /// `Content-Range` is malformed or of the wrong kind.
    #[error("Content-Range is malformed")]
    ContentRangeMalformed,
    /// Other bytes than asked for.
    #[error("bytes {}-{} instead of {}-{}", got.start, got.end, asked.start, asked.end)]
    OtherRange {
        /// The span asked for.
        asked: Range<u64>,
        /// The span in `Content-Range`.
        got: Range<u64>,
    },
    /// What was asked for does not exist in this representation.
    #[error("the range asked for is outside of the object")]
    Outside,
    /// The whole has another size.
    #[error("the object has another size there: {theirs} instead of {ours}")]
    Total {
        /// Size on the first path.
        ours: u64,
        /// Size on this path.
        theirs: u64,
    },
    /// `Content-Length` is missing or is not the span's length.
    #[error("Content-Length does not fit Content-Range")]
    Length,
    /// Other content codings.
    #[error("content coding `{theirs}` instead of `{ours}`")]
    ContentEncoding {
        /// On the first path.
        ours: String,
        /// On this path.
        theirs: String,
    },
    /// Both have an entity tag, and they differ.
    #[error("the entity tags differ")]
    EntityTag,
    /// No strong tags decide, both have a modification date, and they differ.
    #[error("the modification dates differ")]
    LastModified,
}

impl Mismatch {
    /// True when the answer is of the object, but of another version of it.
    pub fn is_version(&self) -> bool {
        matches!(self, Self::Total { .. } | Self::EntityTag | Self::LastModified)
    }
}

/// A range answered as asked, or shorter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RangeAnswer {
    /// The bytes enclosed.
    pub span: Range<u64>,
    /// True when they end before those asked for do, as RFC 9110 section 15.3.7 lets a server choose.
    pub shorter: bool,
}

/// Checks that `response`, the answer on another path to the range `asked`, encloses the bytes asked for
/// of the representation `known`. Equal validators are necessary, never proof: the overlap at each
/// boundary is still compared (FLEETY section 4.3).
pub fn same_representation(
    known: &Representation,
    response: &ResponseHead,
    asked: ByteRange,
) -> Result<RangeAnswer, Mismatch> {
    if response.status() != 206 {
        return Err(Mismatch::Status(response.status()));
    }
    if response.headers().contains("transfer-encoding") {
        return Err(Mismatch::TransferCoding);
    }
    if is_multipart(response) {
        return Err(Mismatch::Multipart);
    }
    let (span, total) = match response.content_range() {
        None => return Err(Mismatch::ContentRangeMissing),
        Some(Ok(ContentRange::Span { first, last, total })) => (first..last + 1, total),
        Some(_) => return Err(Mismatch::ContentRangeMalformed),
    };
    // `*` for a size that the server does not know or tell says nothing against it (RFC 9110 section 14.4).
    if let Some(theirs) = total.filter(|total| *total != known.total) {
        return Err(Mismatch::Total { ours: known.total, theirs });
    }
    let wanted = asked.resolve(known.total).ok_or(Mismatch::Outside)?;
    if span.start != wanted.start || span.end > wanted.end {
        return Err(Mismatch::OtherRange { asked: wanted, got: span });
    }
    if response.content_length() != Some(span.end - span.start) {
        return Err(Mismatch::Length);
    }
    let theirs = response.content_encoding();
    if theirs != known.content_encoding {
        return Err(Mismatch::ContentEncoding { ours: known.content_encoding.clone(), theirs });
    }
    compare_validators(known, response)?;
    Ok(RangeAnswer { shorter: span.end < wanted.end, span })
}

fn compare_validators(known: &Representation, response: &ResponseHead) -> Result<(), Mismatch> {
    if let (Some(ours), Some(theirs)) = (&known.etag, &response.etag()) {
        if ours.strongly_equals(theirs) {
            // A strong tag changes with every byte; mirrors may still date the same file differently.
            return Ok(());
        }
        if !ours.weakly_equals(theirs) {
            return Err(Mismatch::EntityTag);
        }
    }
    match (&known.last_modified, response.headers().get("last-modified")) {
        (Some(ours), Some(theirs)) if ours != theirs => Err(Mismatch::LastModified),
        _ => Ok(()),
    }
}
