use proptest::prelude::*;

use super::*;

fn name() -> impl Strategy<Value = String> {
    "X-[A-Za-z0-9-]{1,8}"
}

fn value() -> impl Strategy<Value = String> {
    "[!-~]([ -~]{0,20}[!-~])?"
}

/// Fields whose names no rule knows.
fn fields() -> impl Strategy<Value = Vec<(String, String)>> {
    prop::collection::vec((name(), value()), 0..8)
}

fn render(start: &str, fields: &[(String, String)]) -> Vec<u8> {
    let mut out = format!("{start}\r\n");
    for (name, value) in fields {
        out.push_str(&format!("{name}: {value}\r\n"));
    }
    out.push_str("\r\n");
    out.into_bytes()
}

/// A valid chunked body and what it carries.
fn chunked() -> impl Strategy<Value = (Vec<u8>, Vec<u8>)> {
    let chunk = (prop::collection::vec(any::<u8>(), 1..40), "(;[a-z]{1,5}(=\"[a-z]{0,5}\")?)?");
    let trailers = prop::collection::vec("[A-Z]{1,6}: [a-z ]{0,9}", 0..3);
    (prop::collection::vec(chunk, 0..5), trailers).prop_map(|(chunks, trailers)| {
        let (mut out, mut payload) = (Vec::new(), Vec::new());
        for (data, extension) in chunks {
            out.extend_from_slice(format!("{:X}{extension}\r\n", data.len()).as_bytes());
            out.extend_from_slice(&data);
            payload.extend_from_slice(&data);
            out.extend_from_slice(b"\r\n");
        }
        out.extend_from_slice(b"0\r\n");
        for line in trailers {
            out.extend_from_slice(line.as_bytes());
            out.extend_from_slice(b"\r\n");
        }
        out.extend_from_slice(b"\r\n");
        (out, payload)
    })
}

/// Bytes that are close to HTTP, so that mutations reach deep.
fn nearly_http() -> impl Strategy<Value = Vec<u8>> {
    let pieces = prop::sample::select(vec![
        "GET ",
        "POST ",
        "/",
        "http://h",
        " HTTP/1.1",
        " HTTP/1.0",
        "\r\n",
        "\n",
        "Host: h",
        "Content-Length: 5",
        "Transfer-Encoding: chunked",
        ": ",
        " ",
        "\t",
        ",",
        "HTTP/1.1 206 X",
        "Content-Range: bytes 0-4/9",
        "Range: bytes=0-4",
        "\0",
        "\u{ff}",
        "5",
        "0",
        ";",
        "ETag: \"a\"",
        "Connection: close",
    ]);
    prop::collection::vec(pieces, 0..24).prop_map(|pieces| pieces.concat().into_bytes())
}

proptest! {
    #[test]
    fn a_request_head_is_incomplete_until_its_last_byte_and_keeps_every_byte(
        fields in fields(), path in "/[a-z0-9/?=&%.]{0,20}", body in prop::collection::vec(any::<u8>(), 0..20),
    ) {
        let mut fields = fields;
        fields.insert(0, ("Host".into(), "h".into()));
        let head = render(&format!("GET {path} HTTP/1.1"), &fields);
        for end in 0..head.len() {
            prop_assert_eq!(RequestHead::parse(&head[..end], HeadLimits::default()), Ok(None));
        }
        let stream = [&head[..], &body[..]].concat();
        let (parsed, length) = RequestHead::parse(&stream, HeadLimits::default()).unwrap().unwrap();
        prop_assert_eq!(length, head.len());
        prop_assert_eq!(&parsed.raw()[..], &head[..]);
        prop_assert_eq!(parsed.path(), path);
        let seen: Vec<_> = parsed.headers().iter()
            .map(|(n, v)| (n.to_owned(), String::from_utf8(v.to_vec()).unwrap())).collect();
        prop_assert_eq!(seen, fields);
        // Nothing is hop-by-hop here, so the origin form is the same head.
        prop_assert_eq!(parsed.to_origin_form(), head);
    }

    #[test]
    fn a_range_request_parses_as_the_same_request_with_that_range(
        fields in fields(), first in 0..u64::MAX, length in 0u64..1_000_000,
    ) {
        let mut fields = fields;
        fields.insert(0, ("Host".into(), "h:81".into()));
        let head = render("GET http://h:81/a HTTP/1.1", &fields);
        let (original, _) = RequestHead::parse(&head, HeadLimits::default()).unwrap().unwrap();
        let range = ByteRange::Closed { first, last: first.saturating_add(length) };
        let (extra, _) = RequestHead::parse(&original.with_range(range), HeadLimits::default()).unwrap().unwrap();
        prop_assert_eq!(extra.range(), Some(Ok(RequestedRange::Single(range))));
        prop_assert_eq!(extra.authority(), original.authority());
        prop_assert_eq!(extra.path(), original.path());
        let kept: Vec<_> = extra.headers().iter().filter(|(n, _)| *n != "Range").collect();
        let before: Vec<_> = original.headers().iter().collect();
        prop_assert_eq!(kept, before);
        prop_assert!(request_may_split(&extra).is_ok());
    }

    #[test]
    fn a_response_head_is_incomplete_until_its_last_byte(fields in fields(), status in 200u16..600) {
        let head = render(&format!("HTTP/1.1 {status} Reason"), &fields);
        for end in 0..head.len() {
            prop_assert_eq!(ResponseHead::parse(&head[..end], HeadLimits::default()), Ok(None));
        }
        let (parsed, length) = ResponseHead::parse(&head, HeadLimits::default()).unwrap().unwrap();
        prop_assert_eq!((length, parsed.status()), (head.len(), status));
        let whole = parsed.reframed(&Reframe::Whole { total: 7 });
        let (whole, _) = ResponseHead::parse(&whole, HeadLimits::default()).unwrap().unwrap();
        prop_assert_eq!((whole.status(), whole.content_length()), (200, Some(7)));
    }

    #[test]
    fn no_bytes_make_the_head_parsers_panic_and_what_they_take_stays_consistent(bytes in nearly_http()) {
        let limits = HeadLimits { max_bytes: 200, max_headers: 4 };
        if let Ok(Some((head, length))) = RequestHead::parse(&bytes, limits) {
            prop_assert_eq!(&head.raw()[..], &bytes[..length]);
            let again = head.to_origin_form();
            let (again, _) = RequestHead::parse(&again, HeadLimits::default()).unwrap().unwrap();
            prop_assert_eq!(again.body_length(), head.body_length());
            prop_assert_eq!(again.host(), head.host());
            let _ = (request_may_split(&head), head.with_range(ByteRange::From { first: 1 }));
        }
        if let Ok(Some((head, length))) = ResponseHead::parse(&bytes, limits) {
            prop_assert_eq!(&head.raw()[..], &bytes[..length]);
            let _ = (refusal(&head), head.body_length(&Method::Get), head.etag(), head.content_encoding());
        }
    }

    #[test]
    fn more_bytes_change_no_verdict_on_a_head(bytes in nearly_http(), cut in any::<prop::sample::Index>()) {
        let limits = HeadLimits { max_bytes: 200, max_headers: 4 };
        let part = &bytes[..cut.index(bytes.len() + 1)];
        match RequestHead::parse(part, limits) {
            Ok(None) => {}
            Ok(head) => prop_assert_eq!(RequestHead::parse(&bytes, limits), Ok(head)),
            Err(_) => prop_assert!(RequestHead::parse(&bytes, limits).is_err()),
        }
        match ResponseHead::parse(part, limits) {
            Ok(None) => {}
            Ok(head) => prop_assert_eq!(ResponseHead::parse(&bytes, limits), Ok(head)),
            Err(_) => prop_assert!(ResponseHead::parse(&bytes, limits).is_err()),
        }
    }

    #[test]
    fn arbitrary_bytes_make_no_parser_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let _ = RequestHead::parse(&bytes, HeadLimits::default());
        let _ = ResponseHead::parse(&bytes, HeadLimits::default());
        let _ = (RequestedRange::parse(&bytes), ContentRange::parse(&bytes), EntityTag::parse(&bytes));
        let _ = BodyReader::new(BodyLength::Chunked).handle_bytes(&bytes);
        let _ = Authority::parse(&String::from_utf8_lossy(&bytes));
    }

    #[test]
    fn a_chunked_body_has_the_same_end_and_payload_however_it_is_cut(
        (body, payload) in chunked(), next in prop::collection::vec(any::<u8>(), 0..9), cuts in prop::collection::vec(1usize..9, 1..60),
    ) {
        let stream = [&body[..], &next[..]].concat();
        let mut decoded = Vec::new();
        let mut reader = BodyReader::new(BodyLength::Chunked);
        let (mut at, mut cuts) = (0, cuts.into_iter().cycle());
        while at < stream.len() && !reader.is_complete() {
            let end = (at + cuts.next().unwrap()).min(stream.len());
            at += reader.decode(&stream[at..end], |data| decoded.extend_from_slice(data)).unwrap();
        }
        prop_assert!(reader.is_complete());
        prop_assert_eq!(at, body.len());
        prop_assert_eq!(decoded, payload);
        prop_assert_eq!(reader.handle_bytes(&next), Ok(0));
    }

    #[test]
    fn the_verdict_on_chunked_bytes_does_not_depend_on_the_cut(
        bytes in prop::collection::vec(prop::sample::select(b"0123aF;\r\n \tx:\0".to_vec()), 0..40), cut in 0usize..40,
    ) {
        let cut = cut.min(bytes.len());
        let mut whole = BodyReader::new(BodyLength::Chunked);
        let once = whole.handle_bytes(&bytes);
        let mut parts = BodyReader::new(BodyLength::Chunked);
        let twice = parts.handle_bytes(&bytes[..cut])
            .and_then(|used| if used < cut { Ok(used) } else { Ok(used + parts.handle_bytes(&bytes[cut..])?) });
        prop_assert_eq!(once, twice);
    }

    #[test]
    fn ranges_survive_writing_and_parsing(first in any::<u64>(), last in any::<u64>(), total in any::<u64>()) {
        let (first, last) = (first.min(last), first.max(last));
        for range in [
            ByteRange::Closed { first, last }, ByteRange::From { first }, ByteRange::Suffix { length: last },
        ] {
            let parsed = RequestedRange::parse(range.to_string().as_bytes());
            prop_assert_eq!(parsed, Ok(RequestedRange::Single(range)));
            if let Some(span) = range.resolve(total) {
                prop_assert!(span.start < span.end && span.end <= total);
            }
        }
        let content = ContentRange::Span { first, last, total: Some(total) };
        let parsed = ContentRange::parse(content.to_string().as_bytes());
        if last < total {
            prop_assert_eq!(parsed, Ok(content));
        } else {
            prop_assert_eq!(parsed, Err(RangeError::Inconsistent));
        }
    }
}
