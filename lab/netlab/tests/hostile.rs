//! The hostile origin does what it says, and nothing else.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::process::Command;
use std::time::Duration;

use multiway_core::units::Rate;
use multiway_netlab::hostile::{HostileOrigin, HostileSpec, Misdeed};

const SIZE: u64 = 100_000;

fn origin() -> HostileOrigin {
    let loopback = "127.0.0.1:0".parse().expect("an address");
    HostileOrigin::start(&HostileSpec::serving(SIZE).listen(loopback)).expect("a free port")
}

/// Bytes 1000 to 4999 by curl.
fn curl_range(origin: &HostileOrigin, misdeed: Misdeed) -> (String, Vec<u8>) {
    curl(&["-r", "1000-4999", &origin.url(misdeed)])
}

/// Head and body as curl shows them; it gives up after two seconds.
fn curl(arguments: &[&str]) -> (String, Vec<u8>) {
    let output = Command::new("curl")
        .args(["-s", "-i", "-m", "2", "--noproxy", "*"])
        .args(arguments)
        .output()
        .expect("curl is installed");
    let end = output.stdout.windows(4).position(|four| four == b"\r\n\r\n").map_or(0, |at| at + 4);
    let (head, body) = output.stdout.split_at(end);
    (String::from_utf8_lossy(head).into_owned(), body.to_vec())
}

/// All that comes back for these bytes until the origin closes or is silent for a while.
fn raw(origin: &HostileOrigin, request: &str) -> Vec<u8> {
    let mut stream = TcpStream::connect(origin.addresses()[0]).expect("it listens");
    stream.set_read_timeout(Some(Duration::from_millis(400))).expect("a timeout can be set");
    stream.write_all(request.as_bytes()).expect("it reads");
    let mut answer = Vec::new();
    let mut scratch = [0; 4096];
    while let Ok(count @ 1..) = stream.read(&mut scratch) {
        answer.extend_from_slice(&scratch[..count]);
    }
    answer
}

fn get(misdeed: Misdeed, range: &str) -> String {
    format!("GET /{misdeed}/file.bin HTTP/1.1\r\nHost: origin\r\nRange: bytes={range}\r\n\r\n")
}

fn count(haystack: &[u8], needle: &str) -> usize {
    haystack.windows(needle.len()).filter(|window| *window == needle.as_bytes()).count()
}

#[test]
fn without_a_misdeed_ranges_and_wholes_are_right() {
    let origin = origin();
    let (head, body) = curl(&["-r", "1000-4999", &origin.honest_url()]);
    assert!(head.starts_with("HTTP/1.1 206 Partial Content\r\n"), "{head}");
    assert!(head.contains("Content-Range: bytes 1000-4999/100000\r\n"), "{head}");
    assert_eq!(body, origin.bytes()[1000..5000]);
    let (head, body) = curl(&[&origin.honest_url()]);
    assert!(head.contains("Accept-Ranges: bytes") && head.contains("ETag: \"version-1\""), "{head}");
    assert_eq!(body, origin.bytes());
    let (head, _) = curl(&["-r", "100000-", &origin.honest_url()]);
    assert!(head.starts_with("HTTP/1.1 416") && head.contains("Content-Range: bytes */100000"), "{head}");
    let (head, body) = curl(&["-I", &origin.honest_url()]);
    assert!(head.contains("Content-Length: 100000") && body.is_empty(), "{head}");
    let (_, body) = curl(&["-d", "12345", &origin.honest_url()]);
    assert_eq!(body, b"POST brought 5 bytes\n");
    let (head, _) = curl(&["-r", "0-9", "-H", "If-Range: \"version-0\"", &origin.honest_url()]);
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
}

#[test]
fn ranges_are_ignored_shifted_stretched_and_mislabelled() {
    let origin = origin();
    let bytes = origin.bytes();
    for (misdeed, status, header, expected) in [
        (Misdeed::IgnoresRange, "200", "Content-Length: 100000", bytes),
        (Misdeed::NoRanges, "200", "Accept-Ranges: none", bytes),
        (Misdeed::ShiftedRange, "206", "Content-Range: bytes 2000-5999/100000", &bytes[2000..6000]),
        (Misdeed::ShiftedBytes, "206", "Content-Range: bytes 1000-4999/100000", &bytes[2000..6000]),
        (Misdeed::OtherTotal, "206", "Content-Range: bytes 1000-4999/100001", &bytes[1000..5000]),
        (Misdeed::UnknownTotal, "206", "Content-Range: bytes 1000-4999/*", &bytes[1000..5000]),
        (Misdeed::GarbledContentRange, "206", "Content-Range: bytes 1000..5000 of", &bytes[1000..5000]),
        (Misdeed::NoContentRange, "206", "Content-Length: 4000", &bytes[1000..5000]),
        (Misdeed::ShorterRange, "206", "Content-Range: bytes 1000-2999/100000", &bytes[1000..3000]),
        (Misdeed::LongerRange, "206", "Content-Range: bytes 1000-5999/100000", &bytes[1000..6000]),
        (Misdeed::NotSatisfiable, "416", "Content-Range: bytes */100000", b"outside\n"),
        (Misdeed::ServerError, "500", "Content-Length: 20", b"ranges are too much\n"),
        (Misdeed::ChunkedRange, "206", "Transfer-Encoding: chunked", &bytes[1000..5000]),
        (Misdeed::Chunked, "200", "Transfer-Encoding: chunked", bytes),
        (Misdeed::UnknownLength, "200", "ETag", bytes),
        (Misdeed::NoTransform, "206", "Cache-Control: no-transform", &bytes[1000..5000]),
    ] {
        let (head, body) = curl_range(&origin, misdeed);
        assert!(head.contains(&format!(" {status} ")), "{misdeed}: {head}");
        assert!(head.contains(header), "{misdeed}: {head}");
        assert!(body == expected, "{misdeed}: {} bytes", body.len());
    }
    let (head, body) = curl_range(&origin, Misdeed::NoContentRange);
    assert!(!head.contains("Content-Range") && body == bytes[1000..5000], "{head}");
    let (head, body) = curl_range(&origin, Misdeed::Multipart);
    assert!(head.contains("Content-Type: multipart/byteranges; boundary="), "{head}");
    assert!(count(&body, "Content-Range: bytes 1000-4999/100000") == 1 && body.len() > 4000);
    let (head, body) = curl(&[&origin.url(Misdeed::UnaskedPartial)]);
    assert!(head.starts_with("HTTP/1.1 206") && body == bytes[..50_000], "{head}");
}

#[test]
fn a_shift_at_the_end_stays_inside_the_object() {
    let origin = origin();
    for misdeed in [Misdeed::ShiftedRange, Misdeed::ShiftedBytes] {
        let (head, body) = curl(&["-r", "99900-", &origin.url(misdeed)]);
        assert!(head.starts_with("HTTP/1.1 206"), "{head}");
        assert_eq!(body, origin.bytes()[98_900..99_000]);
    }
}

#[test]
fn versions_and_validators_differ() {
    let origin = origin();
    assert_eq!(origin.bytes().len(), origin.other_version().len());
    for (misdeed, etag, other) in [
        (Misdeed::OtherVersion, Some("\"version-1\""), true),
        (Misdeed::OtherVersionOtherEtag, Some("\"version-2\""), true),
        (Misdeed::OtherVersionNoEtag, None, true),
        (Misdeed::WeakEtag, Some("W/\"version-1\""), false),
        (Misdeed::NoValidators, None, false),
    ] {
        let (head, body) = curl_range(&origin, misdeed);
        let found = head.lines().find_map(|line| line.strip_prefix("ETag: "));
        assert_eq!(found, etag, "{misdeed}");
        let expected = if other { origin.other_version() } else { origin.bytes() };
        assert!(body == expected[1000..5000], "{misdeed}");
    }
    let etags: Vec<String> = (0..2).map(|_| curl_range(&origin, Misdeed::EtagChanges).0).collect();
    assert_ne!(etags[0], etags[1]);
    let (head, body) = curl_range(&origin, Misdeed::WrongCoding);
    assert!(head.contains("Content-Encoding: gzip") && body == origin.bytes()[1000..5000], "{head}");
}

#[test]
fn answers_break_off_stall_and_never_come() {
    let origin = origin();
    for misdeed in [Misdeed::ClosesEarly, Misdeed::ResetsMidBody, Misdeed::StallsMidBody] {
        let answer = raw(&origin, &get(misdeed, "0-49999"));
        assert_eq!(count(&answer, "Content-Length: 50000"), 1, "{misdeed}");
        // A reset may overtake what was sent before it.
        assert!(answer.len() < 26_000, "{misdeed}: {}", answer.len());
        if misdeed != Misdeed::ResetsMidBody {
            assert!(answer.ends_with(&origin.bytes()[24_000..25_000]), "{misdeed}");
        }
    }
    assert!(raw(&origin, &get(Misdeed::NeverAnswers, "0-9")).is_empty());
}

#[test]
fn heads_trickle_overflow_contradict_themselves_or_are_none() {
    let origin = origin();
    let trickled = raw(&origin, &get(Misdeed::TricklesHead, "0-9"));
    assert!(trickled.ends_with(&origin.bytes()[..10]));
    assert!(raw(&origin, &get(Misdeed::OversizedHead, "0-9")).len() > 1 << 20);
    let garbage = raw(&origin, &get(Misdeed::Garbage, "0-9"));
    assert!(garbage.len() == 4096 && !garbage.starts_with(b"HTTP"));
    assert_eq!(count(&raw(&origin, &get(Misdeed::TwoLengths, "0-9")), "Content-Length: "), 2);
    assert_eq!(count(&raw(&origin, &get(Misdeed::HugeLength, "0-9")), ": 99999999999999999999\r\n"), 1);
    let interim = raw(&origin, &get(Misdeed::InterimAnswers, "0-9"));
    assert!(interim.starts_with(b"HTTP/1.1 100 Continue") && count(&interim, "HTTP/1.1 ") == 3);
    let old = raw(&origin, &get(Misdeed::Http10, "0-9"));
    assert!(old.starts_with(b"HTTP/1.0 200 OK\r\n") && old.ends_with(&origin.bytes()[99_000..]));
}

#[test]
fn pipelined_requests_are_answered_dropped_swapped_or_followed_by_junk() {
    let origin = origin();
    let bytes = origin.bytes();
    let two = |misdeed| raw(&origin, &(get(misdeed, "0-9") + &get(misdeed, "20-29")));
    let honest = two(Misdeed::NoTransform);
    assert!(count(&honest, "HTTP/1.1 206") == 2 && honest.ends_with(&bytes[20..30]));
    for misdeed in [Misdeed::ClosesAfterEach, Misdeed::ClosesSilently, Misdeed::DropsPipelined] {
        let answer = two(misdeed);
        assert!(count(&answer, "HTTP/1.1 206") == 1 && answer.ends_with(&bytes[..10]), "{misdeed}");
        let announced = count(&answer, "Connection: close") == 1;
        assert_eq!(announced, misdeed == Misdeed::ClosesAfterEach, "{misdeed}");
    }
    let swapped = two(Misdeed::SwapsPipelined);
    assert!(count(&swapped, "HTTP/1.1 206") == 2 && swapped.ends_with(&bytes[..10]));
    assert!(raw(&origin, &get(Misdeed::SwapsPipelined, "0-9")).ends_with(&bytes[..10]));
    let junk = two(Misdeed::ExtraBytes);
    assert_eq!(count(&junk, &format!("{}HTTP/1.1 206", "X".repeat(100))), 1);
}

#[test]
fn a_second_request_in_progress_is_refused() {
    let loopback = "127.0.0.1:0".parse().expect("an address");
    let spec = HostileSpec::serving(SIZE).listen(loopback).paced(Rate::from_bits_per_second(4_000_000));
    let origin = HostileOrigin::start(&spec).expect("a free port");
    // The body takes 200 ms, so it is still under way when the others come.
    let mut first = TcpStream::connect(origin.addresses()[0]).expect("it listens");
    first.write_all(get(Misdeed::TooManyRequests, "0-").as_bytes()).expect("it reads");
    let mut start = [0; 100];
    first.read_exact(&mut start).expect("an answer");
    assert!(start.starts_with(b"HTTP/1.1 206"));
    let (head, _) = curl_range(&origin, Misdeed::TooManyRequests);
    assert!(head.starts_with("HTTP/1.1 429"), "{head}");
    let (head, _) = curl_range(&origin, Misdeed::Unavailable);
    assert!(head.starts_with("HTTP/1.1 503") && head.contains("Retry-After: 1"), "{head}");
    assert!(raw(&origin, &get(Misdeed::ResetsExtra, "0-9")).is_empty());
}

#[test]
fn redirects_and_portals_lead_elsewhere() {
    let origin = origin();
    let (head, _) = curl(&[&origin.url(Misdeed::RedirectsByClient)]);
    assert!(head.contains("Location: /moved-to-127.0.0.1/redirects-by-client/file.bin"), "{head}");
    let (head, _) = curl(&["--interface", "127.0.0.2", &origin.url(Misdeed::RedirectsByClient)]);
    assert!(head.contains("Location: /moved-to-127.0.0.2/"), "{head}");
    let followed = Command::new("curl")
        .args(["-s", "-L", "--noproxy", "*", &origin.url(Misdeed::RedirectsByClient)])
        .output()
        .expect("curl is installed");
    assert_eq!(followed.stdout, origin.bytes());
    let (head, _) = curl(&[&origin.url(Misdeed::RedirectLoop)]);
    assert!(head.contains("Location: /redirect-loop/file.bin"), "{head}");
    let (_, body) = curl(&[&origin.url(Misdeed::CaptivePortal)]);
    assert!(body.starts_with(b"<!doctype html>"));
}

#[test]
fn one_client_or_one_listener_gets_what_others_do_not() {
    let any: SocketAddr = "127.0.0.1:0".parse().expect("an address");
    let second: IpAddr = "127.0.0.2".parse().expect("an address");
    let spec = HostileSpec::serving(SIZE)
        .listen(any)
        .listen_with(any, Misdeed::IgnoresRange)
        .to_client(second, Misdeed::OtherVersion);
    let origin = HostileOrigin::start(&spec).expect("a free port");
    let from = |address: &str, url: &str| curl(&["-r", "0-9", "--interface", address, url]).1;
    assert_eq!(from("127.0.0.1", &origin.honest_url()), origin.bytes()[..10]);
    assert_eq!(from("127.0.0.2", &origin.honest_url()), origin.other_version()[..10]);
    assert_eq!(from("127.0.0.1", &format!("http://{}/", origin.addresses()[1])), origin.bytes());
    // The URL goes before the client.
    let url = origin.url_on(Misdeed::NotSatisfiable, second);
    assert_eq!(from("127.0.0.2", &url), b"outside\n");
    assert_eq!(from("127.0.0.1", &url), origin.bytes()[..10]);
    let misdeeds: Vec<_> = origin.requests().into_iter().map(|request| request.misdeed).collect();
    use Misdeed::{IgnoresRange, NotSatisfiable, OtherVersion};
    assert_eq!(misdeeds, [None, Some(OtherVersion), Some(IgnoresRange), Some(NotSatisfiable), None]);
}

#[test]
fn it_ends_with_its_connections_when_it_is_dropped() {
    let origin = origin();
    let address = origin.addresses()[0];
    let mut silent = TcpStream::connect(address).expect("it listens");
    silent.write_all(get(Misdeed::NeverAnswers, "0-9").as_bytes()).expect("it reads");
    drop(origin);
    assert_eq!(silent.read(&mut [0; 10]).unwrap_or(0), 0);
    assert!(TcpStream::connect(address).is_err());
}
