//! A response head: kept byte for byte, judged without panic, and consistent when reframed.

#![no_main]

use libfuzzer_sys::fuzz_target;
use multiway_core::mphttp::http::{
    ByteRange, HeadLimits, Method, Reframe, RequestHead, ResponseHead, connection_persists, refusal,
    response_may_split, same_representation,
};

fuzz_target!(|bytes: &[u8]| {
    let limits = HeadLimits::default();
    let _ = ResponseHead::parse(bytes, HeadLimits { max_bytes: 64, max_headers: 2 });
    let Ok(Some((head, length))) = ResponseHead::parse(bytes, limits) else { return };
    assert_eq!(head.raw()[..], bytes[..length]);
    assert_eq!(ResponseHead::parse(&bytes[..length - 1], limits), Ok(None));
    let _ = (refusal(&head), head.body_length(&Method::Get), head.body_length(&Method::Head));

    let request = |range: &str| {
        let text = format!("GET /a HTTP/1.1\r\nHost: h\r\n{range}\r\n");
        RequestHead::parse(text.as_bytes(), limits).expect("a good head").expect("a whole head").0
    };
    for range in ["", "Range: bytes=5-\r\n", "Range: bytes=-5\r\n", "Range: bytes=5-9\r\n"] {
        let request = request(range);
        let _ = connection_persists(&request, &head);
        let Ok(known) = response_may_split(&request, &head, 1) else { continue };
        assert!(known.start < known.end && known.end <= known.total);
        let asked = ByteRange::Closed { first: known.start, last: known.end - 1 };
        if let Ok(answer) = same_representation(&known, &head, asked) {
            assert_eq!(answer.span, known.start..known.end);
        }
        let part = head.reframed(&Reframe::Part { span: known.start..known.end, total: known.total });
        let (part, _) = ResponseHead::parse(&part, HeadLimits { max_bytes: usize::MAX, max_headers: 256 })
            .expect("what we write is good")
            .expect("what we write is whole");
        assert!(same_representation(&known, &part, asked).is_ok());
    }
});
