//! `Range` and `Content-Range`: what is understood means the same when written again.

#![no_main]

use libfuzzer_sys::fuzz_target;
use multiway_core::mphttp::http::{ContentRange, RequestedRange};

fuzz_target!(|input: (u64, &[u8])| {
    let (total, bytes) = input;
    let ranges = match RequestedRange::parse(bytes) {
        Ok(RequestedRange::Single(range)) => vec![range],
        Ok(RequestedRange::Multiple(ranges)) => ranges,
        Err(_) => vec![],
    };
    for range in ranges {
        let again = RequestedRange::parse(range.to_string().as_bytes());
        assert_eq!(again, Ok(RequestedRange::Single(range)));
        if let Some(span) = range.resolve(total) {
            assert!(span.start < span.end && span.end <= total);
        }
    }
    if let Ok(range) = ContentRange::parse(bytes) {
        assert_eq!(ContentRange::parse(range.to_string().as_bytes()), Ok(range));
        assert!(range.span().is_none_or(|span| span.start < span.end));
    }
});
