use std::time::Duration;

use super::*;

const OK: &str =
    "HTTP/1.1 200 OK\nContent-Length: 1000\nETag: \"e\"\nLast-Modified: m\nAccept-Ranges: bytes\n\n";

fn get(fields: &str) -> RequestHead {
    request(&format!("GET /a HTTP/1.1\nHost: h\n{fields}\n"))
}

fn answer(fields: &str) -> ResponseHead {
    response(&format!("HTTP/1.1 200 OK\n{fields}\n"))
}

fn partial(fields: &str) -> ResponseHead {
    response(&format!("HTTP/1.1 206 Partial Content\n{fields}\n"))
}

#[test]
fn plain_gets_may_be_split_and_all_else_says_why_not() {
    let why = |text: &str| request_may_split(&request(text)).unwrap_err();
    assert_eq!(request_may_split(&get("")), Ok(SplitRequest { range: None }));
    assert_eq!(
        request_may_split(&get("TE: trailers\nContent-Length: 0\n")),
        Ok(SplitRequest { range: None })
    );
    let range = Some(ByteRange::From { first: 5 });
    assert_eq!(request_may_split(&get("Range: bytes=5-\n")), Ok(SplitRequest { range }));
    assert_eq!(why("HEAD / HTTP/1.1\nHost: h\n\n"), WhyNot::Method);
    assert_eq!(why("POST / HTTP/1.1\nHost: h\nContent-Length: 0\n\n"), WhyNot::Method);
    assert_eq!(why("GET / HTTP/1.0\n\n"), WhyNot::Http10);
    let why = |fields: &str| request_may_split(&get(fields)).unwrap_err();
    assert_eq!(why("Content-Length: 1\n"), WhyNot::RequestBody);
    assert_eq!(why("Transfer-Encoding: chunked\n"), WhyNot::RequestBody);
    assert_eq!(why("Connection: upgrade\nUpgrade: websocket\n"), WhyNot::Upgrade);
    assert_eq!(why("Expect: 100-continue\n"), WhyNot::Expect);
    assert_eq!(why("TE: gzip\n"), WhyNot::TransferNegotiation);
    assert_eq!(why("Cache-Control: no-cache, No-Transform\n"), WhyNot::NoTransform);
    assert_eq!(why("Range: bytes=0-1,3-4\n"), WhyNot::MultipleRanges);
    assert_eq!(why("Range: bytes=-0\n"), WhyNot::UnsatisfiableRange);
    assert_eq!(why("Range: rows=1-2\n"), WhyNot::MalformedRange(RangeError::Unit));
    assert_eq!(why("Range: bytes=1-2\nRange: bytes=1-2\n"), WhyNot::MalformedRange(RangeError::Syntax));
}

#[test]
fn a_whole_answer_of_known_size_may_be_split() {
    let known = response_may_split(&get(""), &response(OK), 1000).unwrap();
    assert_eq!((known.total, known.start, known.end), (1000, 0, 1000));
    assert_eq!(known.last_modified.as_deref(), Some(&b"m"[..]));
    // A server that ignores the client's range answers with the whole.
    let whole = response_may_split(&get("Range: bytes=5-9\n"), &response(OK), 1).unwrap();
    assert_eq!((whole.start, whole.end), (0, 1000));
}

#[test]
fn doubtful_answers_are_passed_through() {
    let why = |fields: &str| response_may_split(&get(""), &answer(fields), 10).unwrap_err();
    assert_eq!(why(""), WhyNot::UnknownLength);
    assert_eq!(why("Transfer-Encoding: chunked\n"), WhyNot::TransferCoding);
    assert_eq!(why("Content-Length: 9\n"), WhyNot::TooSmall { size: 9, minimum: 10 });
    assert_eq!(why("Content-Length: 99\nAccept-Ranges: none\n"), WhyNot::RangesRefused);
    assert_eq!(why("Content-Length: 99\nCache-Control: no-transform\n"), WhyNot::NoTransform);
    assert_eq!(
        why("Content-Length: 99\nContent-Type: Multipart/ByteRanges; boundary=x\n"),
        WhyNot::Multipart
    );
    assert_eq!(why("Content-Length: 99\nContent-Encoding: gzip\n"), WhyNot::UnstableCoding);
    assert_eq!(why("Content-Length: 99\nContent-Encoding: gzip\nETag: W/\"a\"\n"), WhyNot::UnstableCoding);
    assert_eq!(why("Content-Length: 99\nContent-Range: bytes 0-98/99\n"), WhyNot::RangeContradiction);
    let strong = answer("Content-Length: 99\nContent-Encoding: GZIP\nETag: \"a\"\n");
    assert_eq!(response_may_split(&get(""), &strong, 10).unwrap().content_encoding, "gzip");
    let why = |text: &str| response_may_split(&get(""), &response(text), 10).unwrap_err();
    assert_eq!(why("HTTP/1.1 302 Found\nContent-Length: 99\n\n"), WhyNot::Status(302));
    assert_eq!(why("HTTP/1.0 200 OK\nContent-Length: 99\n\n"), WhyNot::Http10);
}

#[test]
fn the_clients_own_range_is_split_when_answered_as_asked() {
    let split = |range: &str, fields: &str| {
        response_may_split(&get(&format!("Range: {range}\n")), &partial(fields), 1)
            .map(|r| (r.start, r.end, r.total))
    };
    assert_eq!(split("bytes=10-19", "Content-Length: 10\nContent-Range: bytes 10-19/99\n"), Ok((10, 20, 99)));
    assert_eq!(split("bytes=-10", "Content-Length: 10\nContent-Range: bytes 89-98/99\n"), Ok((89, 99, 99)));
    assert_eq!(split("bytes=90-200", "Content-Length: 9\nContent-Range: bytes 90-98/99\n"), Ok((90, 99, 99)));
    assert_eq!(split("bytes=10-", "Content-Length: 5\nContent-Range: bytes 10-14/99\n"), Ok((10, 15, 99)));
    for wrong in [
        "Content-Length: 11\nContent-Range: bytes 10-19/99\n",
        "Content-Length: 10\nContent-Range: bytes 11-20/99\n",
        "Content-Length: 11\nContent-Range: bytes 10-20/99\n",
        "Content-Length: 10\nContent-Range: bytes 10-19/5\n",
        "Content-Length: 10\n",
    ] {
        assert_eq!(split("bytes=10-19", wrong), Err(WhyNot::RangeContradiction), "{wrong}");
    }
    let unknown = split("bytes=0-9", "Content-Length: 10\nContent-Range: bytes 0-9/*\n");
    assert_eq!(unknown, Err(WhyNot::UnknownLength));
    let unasked =
        response_may_split(&get(""), &partial("Content-Length: 1\nContent-Range: bytes 0-0/9\n"), 1);
    assert_eq!(unasked.unwrap_err(), WhyNot::UnrequestedRange);
}

#[test]
fn another_paths_range_must_be_of_the_same_representation() {
    let known = response_may_split(&get(""), &response(OK), 1).unwrap();
    let asked = ByteRange::Closed { first: 500, last: 999 };
    let check = |fields: &str| same_representation(&known, &partial(fields), asked);
    let good = "Content-Length: 500\nContent-Range: bytes 500-999/1000\n";
    let same = RangeAnswer { span: 500..1000, shorter: false };
    assert_eq!(check(good), Ok(same.clone()));
    assert_eq!(check(&format!("{good}ETag: \"e\"\nLast-Modified: other\n")), Ok(same.clone()));
    assert_eq!(check(&format!("{good}ETag: W/\"e\"\nLast-Modified: m\n")), Ok(same.clone()));
    assert_eq!(check("Content-Length: 500\nContent-Range: bytes 500-999/*\n"), Ok(same));
    assert_eq!(
        check("Content-Length: 10\nContent-Range: bytes 500-509/1000\n"),
        Ok(RangeAnswer { span: 500..510, shorter: true })
    );
    let wrong = |fields: &str| check(fields).unwrap_err();
    assert_eq!(wrong(&format!("{good}ETag: \"f\"\n")), Mismatch::EntityTag);
    assert_eq!(wrong(&format!("{good}ETag: W/\"f\"\n")), Mismatch::EntityTag);
    assert_eq!(wrong(&format!("{good}Last-Modified: n\n")), Mismatch::LastModified);
    assert_eq!(wrong(&format!("{good}ETag: W/\"e\"\nLast-Modified: n\n")), Mismatch::LastModified);
    assert!(matches!(wrong(&format!("{good}Content-Encoding: br\n")), Mismatch::ContentEncoding { .. }));
    assert_eq!(wrong("Content-Length: 500\n"), Mismatch::ContentRangeMissing);
    assert_eq!(
        wrong("Content-Length: 500\nContent-Range: bytes 500-999/999\n"),
        Mismatch::ContentRangeMalformed
    );
    assert_eq!(wrong("Content-Length: 500\nContent-Range: bytes */1000\n"), Mismatch::ContentRangeMalformed);
    assert_eq!(wrong("Content-Length: 499\nContent-Range: bytes 500-999/1000\n"), Mismatch::Length);
    assert_eq!(wrong("Content-Range: bytes 500-999/1000\n"), Mismatch::Length);
    assert_eq!(
        wrong("Transfer-Encoding: chunked\nContent-Range: bytes 500-999/1000\n"),
        Mismatch::TransferCoding
    );
    let longer = "Content-Length: 500\nContent-Range: bytes 500-999/2000\n";
    assert_eq!(wrong(longer), Mismatch::Total { ours: 1000, theirs: 2000 });
    let other = "Content-Length: 500\nContent-Range: bytes 0-499/1000\n";
    assert_eq!(wrong(other), Mismatch::OtherRange { asked: 500..1000, got: 0..500 });
    let multipart = format!("{good}Content-Type: multipart/byteranges; boundary=b\n");
    assert_eq!(wrong(&multipart), Mismatch::Multipart);
    assert_eq!(same_representation(&known, &response(OK), asked), Err(Mismatch::Status(200)));
    assert_eq!(
        same_representation(&known, &partial(good), ByteRange::From { first: 1000 }),
        Err(Mismatch::Outside)
    );
}

#[test]
fn refusals_of_extra_requests_are_told_apart() {
    let of = |status: u16, fields: &str| refusal(&response(&format!("HTTP/1.1 {status} X\n{fields}\n")));
    let busy = |status, seconds: Option<u64>| {
        Some(Refusal::Busy { status, retry_after: seconds.map(Duration::from_secs) })
    };
    assert_eq!(of(206, ""), None);
    assert_eq!(of(200, ""), Some(Refusal::RangeIgnored { status: 200 }));
    assert_eq!(of(416, "Content-Range: bytes */7\n"), Some(Refusal::NotSatisfiable { total: Some(7) }));
    assert_eq!(of(416, ""), Some(Refusal::NotSatisfiable { total: None }));
    assert_eq!(of(429, "Retry-After: 3\n"), busy(429, Some(3)));
    assert_eq!(of(503, "Retry-After: soon\n"), busy(503, None));
    let dated = "Date: Wed, 21 Oct 2015 07:28:00 GMT\nRetry-After: Wed, 21 Oct 2015 07:28:30 GMT\n";
    assert_eq!(of(503, dated), busy(503, Some(30)));
    let past = "Date: Wed, 21 Oct 2015 07:28:30 GMT\nRetry-After: Wed, 21 Oct 2015 07:28:00 GMT\n";
    assert_eq!(of(503, past), busy(503, Some(0)));
    assert_eq!(of(302, ""), Some(Refusal::Redirected { status: 302 }));
    assert_eq!(of(403, ""), Some(Refusal::Denied { status: 403 }));
    assert_eq!(of(500, ""), Some(Refusal::Failed { status: 500 }));
}
