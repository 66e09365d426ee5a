use super::*;

const CURL: &str =
    "GET /pool/a.deb?x=1 HTTP/1.1\nHost: deb.example:8080\nuser-agent: curl/8\nAccept: */*\n\n";

fn text(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).expect("these heads are ASCII").replace("\r\n", "\n")
}

#[test]
fn a_head_keeps_its_bytes_and_ends_before_the_body() {
    let bytes = b"POST / HTTP/1.1\r\nHOST: a\r\nX-a:  1 \r\nCONTENT-length: 2\r\n\r\nhi";
    let (head, length) = RequestHead::parse(bytes, HeadLimits::default()).unwrap().unwrap();
    assert_eq!(&head.raw()[..], &bytes[..bytes.len() - 2]);
    assert_eq!(length, bytes.len() - 2);
    assert_eq!(head.headers().get("x-A"), Some(&b"1"[..]));
    let names: Vec<_> = head.headers().iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["HOST", "X-a", "CONTENT-length"]);
    assert_eq!(head.body_length(), BodyLength::Exact(2));
}

#[test]
fn a_request_says_where_it_goes() {
    let head = request(CURL);
    assert_eq!((head.scheme(), head.host(), head.port()), ("http", Some("deb.example"), 8080));
    assert_eq!(head.path(), "/pool/a.deb?x=1");
    let head = request("GET http://[2001:db8::1]?q HTTP/1.1\nHost: other\n\n");
    assert_eq!((head.host(), head.port(), head.path().as_str()), (Some("2001:db8::1"), 80, "/?q"));
    let head = request("CONNECT h:443 HTTP/1.1\nHost: h:443\n\n");
    assert_eq!((head.method(), head.host(), head.port()), (&Method::Connect, Some("h"), 443));
    let head = request("GET /old HTTP/1.0\n\n");
    assert_eq!((head.version(), head.host()), (Version::Http10, None));
}

#[test]
fn list_fields_combine_over_lines_and_respect_quotes() {
    let head = request("GET / HTTP/1.1\nHost: a\nA: 1, \"x,\\\"y\" ,,\na: 2\n\n");
    let members: Vec<_> = head.headers().list("a").collect();
    assert_eq!(members, [&b"1"[..], b"\"x,\\\"y\"", b"2"]);
    assert!(head.headers().has_token("A", "2"));
}

#[test]
fn ambiguous_requests_are_refused() {
    use HeadError as E;
    let refused = |fields: &str| try_request(&format!("GET / HTTP/1.1\nHost: a\n{fields}\n")).unwrap_err();
    assert_eq!(refused("Content-Length: 1\nContent-Length: 2\n"), E::ContentLengthsDiffer);
    assert_eq!(refused("Content-Length: 1, 2\n"), E::ContentLengthsDiffer);
    assert_eq!(refused("Content-Length: +1\n"), E::ContentLengthInvalid);
    assert_eq!(refused("Content-Length: 99999999999999999999\n"), E::ContentLengthInvalid);
    assert_eq!(refused("Content-Length: \n"), E::ContentLengthInvalid);
    assert_eq!(refused("Content-Length: 1\nTransfer-Encoding: chunked\n"), E::TwoFramings);
    assert_eq!(refused("Transfer-Encoding: gzip\n"), E::TransferEncodingUnframed);
    assert_eq!(refused("Transfer-Encoding: chunked, gzip\n"), E::TransferEncodingUnframed);
    assert_eq!(
        refused("Transfer-Encoding: chunked\nTransfer-Encoding: chunked\n"),
        E::TransferEncodingUnframed
    );
    assert_eq!(refused("Transfer-Encoding: xchunked\n"), E::TransferEncodingUnframed);
    assert_eq!(refused("Transfer-Encoding:\n"), E::TransferEncodingUnframed);
    assert_eq!(refused("A: 1\n 2\n"), E::ObsoleteFolding);
    assert_eq!(refused("Host: b\n"), E::HostRepeated);
    assert!(matches!(refused("A : 1\n"), E::Syntax(_)));
    assert!(matches!(refused("A: \u{0}\n"), E::Syntax(_)));
    assert_eq!(try_request("GET / HTTP/1.1\n\n").unwrap_err(), E::HostMissing);
    assert!(matches!(try_request("GET / HTTP/1.1\nHost: a b\n\n").unwrap_err(), E::Target(_)));
    assert!(matches!(try_request("GET http://u@h/ HTTP/1.1\nHost: h\n\n").unwrap_err(), E::Target(_)));
    assert!(matches!(try_request("GET / HTTP/2.0\nHost: a\n\n").unwrap_err(), E::Syntax(_)));
    assert_eq!(
        try_request("POST / HTTP/1.0\nTransfer-Encoding: chunked\n\n").unwrap_err(),
        E::TransferEncodingInHttp10
    );
}

#[test]
fn equal_content_lengths_are_one() {
    let head = request("POST / HTTP/1.1\nHost: a\nContent-Length: 5, 5\nContent-Length: 5\n\n");
    assert_eq!(head.body_length(), BodyLength::Exact(5));
}

#[test]
fn heads_above_their_limits_are_refused() {
    let limits = HeadLimits { max_bytes: 64, max_headers: 2 };
    let long = format!("GET /{} HTTP/1.1\r\n", "a".repeat(100));
    assert_eq!(RequestHead::parse(long.as_bytes(), limits), Err(HeadError::TooLarge { limit: 64 }));
    let many = b"GET / HTTP/1.1\r\nHost: a\r\nB: 1\r\nC: 1\r\n\r\n";
    assert_eq!(RequestHead::parse(many, limits), Err(HeadError::TooManyHeaders { limit: 2 }));
    let exact = b"GET / HTTP/1.1\r\nHost: a\r\nB: 1\r\n\r\n";
    let limits = HeadLimits { max_bytes: exact.len(), max_headers: 2 };
    assert!(matches!(RequestHead::parse(exact, limits), Ok(Some(_))));
}

#[test]
fn a_proxied_request_loses_only_its_hop_by_hop_fields() {
    let head = request(
        "GET HTTP://Origin:81/a?b HTTP/1.1\nHost: lie\nX-Keep: 1\nConnection: x-drop, Content-Length, close\n\
         X-Drop: 2\nKeep-Alive: 5\nProxy-Connection: keep-alive\nProxy-Authorization: s\nTE: trailers\n\
         Upgrade: h2c\nContent-Length: 0\nCookie: c\n\n",
    );
    assert_eq!(
        text(head.to_origin_form()),
        "GET /a?b HTTP/1.1\nHost: Origin:81\nX-Keep: 1\nContent-Length: 0\nCookie: c\n\n"
    );
}

#[test]
fn a_proxied_upgrade_still_asks_for_it() {
    let head =
        request("GET http://h/ws HTTP/1.1\nHost: h\nConnection: keep-alive, Upgrade\nUpgrade: websocket\n\n");
    assert_eq!(
        text(head.to_origin_form()),
        "GET /ws HTTP/1.1\nHost: h\nUpgrade: websocket\nConnection: Upgrade\n\n"
    );
}

#[test]
fn an_absolute_target_without_host_gets_one_and_empty_paths_are_filled() {
    assert_eq!(text(request("GET http://h HTTP/1.0\n\n").to_origin_form()), "GET / HTTP/1.0\nHost: h\n\n");
    let options = request("OPTIONS http://h HTTP/1.1\nHost: h\n\n");
    assert_eq!(text(options.to_origin_form()), "OPTIONS * HTTP/1.1\nHost: h\n\n");
}

#[test]
fn a_range_for_another_path_asks_for_the_same_representation_without_conditions() {
    let head = request(
        "GET /v.mp4 HTTP/1.1\nhost: h\nCookie: c=1\nAuthorization: Basic x\nUser-Agent: u\nAccept: video/*\n\
         Accept-Encoding: gzip;q=0, br\nRange: bytes=5-\nIf-Range: \"a\"\nIf-None-Match: \"a\"\n\
         If-Modified-Since: x\nIf-Match: *\nIf-Unmodified-Since: x\nConnection: close\n\n",
    );
    let kept = "GET /v.mp4 HTTP/1.1\nhost: h\nCookie: c=1\nAuthorization: Basic x\nUser-Agent: u\n\
                Accept: video/*\nAccept-Encoding: gzip;q=0, br\n";
    let ranged = |range| text(head.with_range(range));
    assert_eq!(ranged(ByteRange::Closed { first: 3, last: 9 }), format!("{kept}Range: bytes=3-9\n\n"));
    assert_eq!(ranged(ByteRange::From { first: 3 }), format!("{kept}Range: bytes=3-\n\n"));
    assert_eq!(ranged(ByteRange::Suffix { length: 3 }), format!("{kept}Range: bytes=-3\n\n"));
}

#[test]
fn response_bodies_are_framed_by_method_status_and_fields() {
    let framed = |status: u16, fields: &str, method| {
        response(&format!("HTTP/1.1 {status} X\n{fields}\n")).body_length(&method)
    };
    assert_eq!(framed(200, "Content-Length: 5\n", Method::Get), BodyLength::Exact(5));
    assert_eq!(framed(200, "Content-Length: 5\n", Method::Head), BodyLength::None);
    assert_eq!(framed(200, "", Method::Get), BodyLength::UntilClose);
    assert_eq!(framed(200, "Transfer-Encoding: gzip, Chunked\n", Method::Get), BodyLength::Chunked);
    assert_eq!(framed(200, "Transfer-Encoding: gzip\n", Method::Get), BodyLength::UntilClose);
    assert_eq!(framed(304, "Content-Length: 5\n", Method::Get), BodyLength::None);
    assert_eq!(framed(204, "", Method::Get), BodyLength::None);
    assert_eq!(framed(100, "", Method::Get), BodyLength::None);
    assert_eq!(framed(101, "", Method::Get), BodyLength::None);
    assert_eq!(framed(200, "", Method::Connect), BodyLength::None);
    assert_eq!(framed(407, "Content-Length: 5\n", Method::Connect), BodyLength::Exact(5));
    let two = try_response("HTTP/1.1 200 OK\nContent-Length: 5\nTransfer-Encoding: chunked\n\n");
    assert_eq!(two.unwrap_err(), HeadError::TwoFramings);
}

#[test]
fn connections_persist_when_both_sides_and_the_framing_allow() {
    let persists = |version: &str, fields: &str, answer: &str| {
        let request = request(&format!("GET / {version}\nHost: a\n{fields}\n"));
        connection_persists(&request, &response(answer))
    };
    let ok = "HTTP/1.1 200 OK\nContent-Length: 1\n\n";
    assert!(persists("HTTP/1.1", "", ok));
    assert!(!persists("HTTP/1.1", "Connection: x, Close\n", ok));
    assert!(!persists("HTTP/1.0", "", ok));
    assert!(persists("HTTP/1.0", "Connection: Keep-Alive\n", ok));
    assert!(!persists("HTTP/1.1", "", "HTTP/1.1 200 OK\n\n"));
    assert!(!persists("HTTP/1.1", "", "HTTP/1.1 101 Switching\n\n"));
    assert!(!persists("HTTP/1.1", "", "HTTP/1.0 200 OK\nContent-Length: 1\n\n"));
    assert!(!persists("HTTP/1.1", "", "HTTP/1.1 200 OK\nContent-Length: 1\nConnection: close\n\n"));
}

#[test]
fn a_reframed_response_announces_the_bytes_the_client_gets() {
    let head = response(
        "HTTP/1.1 206 Partial Content\nServer: s\nContent-Length: 10\nETag: \"e\"\nConnection: close\n\
         Content-Range: bytes 0-9/100\n\n",
    );
    assert_eq!(
        text(head.reframed(&Reframe::Whole { total: 100 })),
        "HTTP/1.1 200 OK\nServer: s\nETag: \"e\"\nAccept-Ranges: bytes\nContent-Length: 100\n\n"
    );
    assert_eq!(
        text(head.reframed(&Reframe::Part { span: 5..50, total: 100 })),
        "HTTP/1.1 206 Partial Content\nServer: s\nETag: \"e\"\nContent-Length: 45\n\
         Content-Range: bytes 5-49/100\n\n"
    );
}
