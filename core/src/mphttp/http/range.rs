//! Byte ranges asked for and answered (RFC 9110 section 14).

use std::fmt;
use std::ops::Range;

use super::headers::{parse_decimal, trim};

/// Most ranges taken from one `Range` field; RFC 9110 section 14.2 lets servers refuse many small ones.
const MAX_RANGES: usize = 64;

/// One range of a `Range` field (RFC 9110 section 14.1.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ByteRange {
    /// `first-last`, both included; `first <= last`.
    Closed {
        /// First byte.
        first: u64,
        /// Last byte, included.
        last: u64,
    },
    /// `first-`: to the end.
    From {
        /// First byte.
        first: u64,
    },
    /// `-length`: the last bytes.
    Suffix {
        /// How many bytes from the end.
        length: u64,
    },
}

impl ByteRange {
    /// The range that asks for the bytes `span`; `None` when that is empty.
    pub fn from_span(span: Range<u64>) -> Option<Self> {
        (span.start < span.end).then(|| Self::Closed { first: span.start, last: span.end - 1 })
    }

    /// The bytes this range means in a representation of `total` bytes; `None` when it is not satisfiable
    /// there (RFC 9110 section 14.1.2).
    pub fn resolve(self, total: u64) -> Option<Range<u64>> {
        let span = match self {
            Self::Closed { first, last } => first..last.saturating_add(1).min(total),
            Self::From { first } => first..total,
            Self::Suffix { length } => total.saturating_sub(length)..total,
        };
        (span.start < span.end).then_some(span)
    }
}

impl fmt::Display for ByteRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Closed { first, last } => write!(f, "bytes={first}-{last}"),
            Self::From { first } => write!(f, "bytes={first}-"),
            Self::Suffix { length } => write!(f, "bytes=-{length}"),
        }
    }
}

/// Why a `Range` or `Content-Range` value is not understood.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub enum RangeError {
    /// A unit other than `bytes`.
    #[error("the range unit is not bytes")]
    Unit,
    /// Not the grammar of RFC 9110 section 14.
    #[error("malformed byte range")]
    Syntax,
    /// A number above 64 bits.
    #[error("a number in the byte range is too large")]
    Overflow,
    /// First after last, or last at or after the total.
    #[error("the byte range is inconsistent in itself")]
    Inconsistent,
    /// More than Multiway looks at.
    #[error("more than {MAX_RANGES} ranges")]
    TooMany,
}

/// A `Range` field, parsed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RequestedRange {
    /// One range.
    Single(ByteRange),
    /// Several ranges, answered with multipart/byteranges.
    Multiple(Vec<ByteRange>),
}

impl RequestedRange {
    /// Parses a `Range` field's value.
    pub fn parse(value: &[u8]) -> Result<Self, RangeError> {
        let equals = value.iter().position(|&b| b == b'=').ok_or(RangeError::Syntax)?;
        if !value[..equals].eq_ignore_ascii_case(b"bytes") {
            return Err(RangeError::Unit);
        }
        let mut ranges = Vec::new();
        for member in value[equals + 1..].split(|&b| b == b',').map(trim).filter(|m| !m.is_empty()) {
            if ranges.len() == MAX_RANGES {
                return Err(RangeError::TooMany);
            }
            ranges.push(parse_member(member)?);
        }
        match ranges[..] {
            [] => Err(RangeError::Syntax),
            [single] => Ok(Self::Single(single)),
            _ => Ok(Self::Multiple(ranges)),
        }
    }
}

fn parse_member(member: &[u8]) -> Result<ByteRange, RangeError> {
    let dash = member.iter().position(|&b| b == b'-').ok_or(RangeError::Syntax)?;
    match (&member[..dash], &member[dash + 1..]) {
        (b"", length) => Ok(ByteRange::Suffix { length: number(length)? }),
        (first, b"") => Ok(ByteRange::From { first: number(first)? }),
        (first, last) => {
            let (first, last) = (number(first)?, number(last)?);
            if first > last { Err(RangeError::Inconsistent) } else { Ok(ByteRange::Closed { first, last }) }
        }
    }
}

fn number(digits: &[u8]) -> Result<u64, RangeError> {
    let shaped = !digits.is_empty() && digits.iter().all(u8::is_ascii_digit);
    if shaped { parse_decimal(digits).ok_or(RangeError::Overflow) } else { Err(RangeError::Syntax) }
}

/// A `Content-Range` field, parsed (RFC 9110 section 14.4).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ContentRange {
    /// `bytes first-last/total`, with `first <= last < total`.
    Span {
        /// First byte enclosed.
        first: u64,
        /// Last byte enclosed; always below `u64::MAX`.
        last: u64,
        /// Size of the whole representation; `None` for `*`.
        total: Option<u64>,
    },
    /// `bytes */total`, of a 416.
    Unsatisfied {
        /// Size of the whole representation.
        total: u64,
    },
}

impl ContentRange {
    /// Parses a `Content-Range` field's value.
    pub fn parse(value: &[u8]) -> Result<Self, RangeError> {
        let space = value.iter().position(|&b| b == b' ').ok_or(RangeError::Syntax)?;
        if !value[..space].eq_ignore_ascii_case(b"bytes") {
            return Err(RangeError::Unit);
        }
        let rest = &value[space + 1..];
        let slash = rest.iter().position(|&b| b == b'/').ok_or(RangeError::Syntax)?;
        let (span, total) = (&rest[..slash], &rest[slash + 1..]);
        let total = if total == b"*" { None } else { Some(number(total)?) };
        if span == b"*" {
            return total.map(|total| Self::Unsatisfied { total }).ok_or(RangeError::Syntax);
        }
        let dash = span.iter().position(|&b| b == b'-').ok_or(RangeError::Syntax)?;
        let (first, last) = (number(&span[..dash])?, number(&span[dash + 1..])?);
        // `last + 1` must be a number too: it is the end of the span.
        if first > last || last == u64::MAX || total.is_some_and(|total| last >= total) {
            return Err(RangeError::Inconsistent);
        }
        Ok(Self::Span { first, last, total })
    }

    /// The bytes enclosed; `None` for [`ContentRange::Unsatisfied`].
    pub fn span(self) -> Option<Range<u64>> {
        match self {
            Self::Span { first, last, .. } => Some(first..last + 1),
            Self::Unsatisfied { .. } => None,
        }
    }
}

impl fmt::Display for ContentRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Span { first, last, total: Some(total) } => write!(f, "bytes {first}-{last}/{total}"),
            Self::Span { first, last, total: None } => write!(f, "bytes {first}-{last}/*"),
            Self::Unsatisfied { total } => write!(f, "bytes */{total}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn range_fields_have_single_open_suffix_and_multiple_forms() {
        let single = |text: &str| RequestedRange::parse(text.as_bytes());
        assert_eq!(
            single("bytes=0-499"),
            Ok(RequestedRange::Single(ByteRange::Closed { first: 0, last: 499 }))
        );
        assert_eq!(single("Bytes= 7- ,"), Ok(RequestedRange::Single(ByteRange::From { first: 7 })));
        assert_eq!(single("bytes=-5"), Ok(RequestedRange::Single(ByteRange::Suffix { length: 5 })));
        assert_eq!(
            single("bytes=0-0, -1"),
            Ok(RequestedRange::Multiple(vec![
                ByteRange::Closed { first: 0, last: 0 },
                ByteRange::Suffix { length: 1 }
            ]))
        );
        assert_eq!(single("items=0-1"), Err(RangeError::Unit));
        assert_eq!(single("bytes=2-1"), Err(RangeError::Inconsistent));
        assert_eq!(single("bytes=0-18446744073709551616"), Err(RangeError::Overflow));
        for bad in
            ["bytes", "bytes=", "bytes=-", "bytes=,", "bytes=1", "bytes=+1-2", "bytes=1 -2", "bytes=1-2-3"]
        {
            assert_eq!(single(bad), Err(RangeError::Syntax), "{bad}");
        }
        let many = format!("bytes={}", "0-1,".repeat(MAX_RANGES + 1));
        assert_eq!(single(&many), Err(RangeError::TooMany));
    }

    #[test]
    fn ranges_resolve_against_the_total() {
        assert_eq!(ByteRange::Closed { first: 2, last: u64::MAX }.resolve(10), Some(2..10));
        assert_eq!(ByteRange::From { first: 10 }.resolve(10), None);
        assert_eq!(ByteRange::Suffix { length: 20 }.resolve(10), Some(0..10));
        assert_eq!(ByteRange::Suffix { length: 0 }.resolve(10), None);
    }

    #[test]
    fn content_range_must_fit_its_own_total() {
        let parse = |text: &str| ContentRange::parse(text.as_bytes());
        assert_eq!(parse("bytes 0-9/10"), Ok(ContentRange::Span { first: 0, last: 9, total: Some(10) }));
        assert_eq!(parse("bytes 0-9/*"), Ok(ContentRange::Span { first: 0, last: 9, total: None }));
        assert_eq!(parse("bytes */10"), Ok(ContentRange::Unsatisfied { total: 10 }));
        assert_eq!(parse("bytes 0-10/10"), Err(RangeError::Inconsistent));
        assert_eq!(parse("bytes 5-4/10"), Err(RangeError::Inconsistent));
        assert_eq!(parse("bytes 0-18446744073709551615/*"), Err(RangeError::Inconsistent));
        assert_eq!(parse("bytes 0-99999999999999999999/*"), Err(RangeError::Overflow));
        for bad in [
            "",
            "bytes",
            "bytes 0-9",
            "bytes */*",
            "bytes 0-/10",
            "bytes -9/10",
            "bytes 0 - 9/10",
            "bytes=0-9/10",
        ] {
            assert_eq!(parse(bad), Err(RangeError::Syntax), "{bad}");
        }
    }
}
