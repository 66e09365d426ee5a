//! A request head: kept byte for byte, incomplete until its end, and the same request when written again.

#![no_main]

use libfuzzer_sys::fuzz_target;
use multiway_core::mphttp::http::{
    BodyLength, ByteRange, HeadLimits, RequestHead, RequestedRange, request_may_split,
};

fuzz_target!(|bytes: &[u8]| {
    let limits = HeadLimits::default();
    let _ = RequestHead::parse(bytes, HeadLimits { max_bytes: 64, max_headers: 2 });
    let Ok(Some((head, length))) = RequestHead::parse(bytes, limits) else { return };
    assert_eq!(head.raw()[..], bytes[..length]);
    assert_eq!(RequestHead::parse(&bytes[..length - 1], limits), Ok(None));

    let read_again = |bytes: Vec<u8>| {
        let (again, length) =
            RequestHead::parse(&bytes, HeadLimits { max_bytes: usize::MAX, max_headers: 256 })
                .expect("what we write is good")
                .expect("what we write is whole");
        assert_eq!(length, bytes.len());
        again
    };
    let forwarded = read_again(head.to_origin_form());
    assert_eq!(forwarded.body_length(), head.body_length());
    assert_eq!(forwarded.host(), head.host());
    assert_eq!(forwarded.path(), head.path());

    let range = ByteRange::Closed { first: 7, last: 9 };
    if request_may_split(&head).is_ok() {
        let extra = read_again(head.with_range(range));
        assert_eq!(extra.range(), Some(Ok(RequestedRange::Single(range))));
        assert_eq!(extra.body_length(), BodyLength::None);
        assert_eq!(extra.host(), head.host());
        assert!(request_may_split(&extra).is_ok());
    }
});
