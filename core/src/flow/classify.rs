//! The protocol of a connection from the first bytes its client sends (FLEETY section 4.1).

use std::time::Duration;

use super::names::HostName;

/// When to stop waiting for a client's (further) first bytes and take the flow as [`Classified::Other`]:
/// in SSH, SMTP and their like the server speaks first, and must not be kept waiting longer than this.
pub const SERVER_FIRST_WAIT: Duration = Duration::from_millis(50);

/// Most bytes looked at for a TLS ClientHello; post-quantum key shares make them 2 KiB, rarely more.
pub const MAX_CLIENT_HELLO: usize = 16 * 1024;

/// Longest DNS query taken for one over TCP. Queries are a question and an OPT record, below 512 bytes
/// but for padding; the bound keeps text, whose first byte is above 0x08, apart.
const MAX_DNS_QUERY: usize = 2 * 1024;

/// What the first bytes are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Classified {
    /// An HTTP/1.x request.
    Http,
    /// A TLS ClientHello.
    Tls {
        /// The server name it asks for (RFC 6066 section 3), when it shows one.
        server_name: Option<HostName>,
    },
    /// A DNS query over TCP (RFC 1035 section 4.2.2).
    Dns,
    /// None of these.
    Other,
    /// Not enough bytes; the caller waits for more, but no longer than [`SERVER_FIRST_WAIT`].
    NeedMore,
}

/// Methods of RFC 9110 section 9.3, RFC 5789 and WebDAV (RFC 4918, RFC 3253, RFC 5323).
const METHODS: [&[u8]; 19] = [
    b"GET",
    b"HEAD",
    b"POST",
    b"PUT",
    b"DELETE",
    b"CONNECT",
    b"OPTIONS",
    b"TRACE",
    b"PATCH",
    b"PROPFIND",
    b"PROPPATCH",
    b"MKCOL",
    b"COPY",
    b"MOVE",
    b"LOCK",
    b"UNLOCK",
    b"REPORT",
    b"SEARCH",
    b"SUBSCRIBE",
];

/// Says what `bytes`, all the client sent so far, begin with. More bytes never change an answer other
/// than [`Classified::NeedMore`].
pub fn classify(bytes: &[u8]) -> Classified {
    let Some(&first) = bytes.first() else { return Classified::NeedMore };
    match first {
        22 => classify_tls(bytes),
        b'A'..=b'Z' => classify_http(bytes),
        // RFC 9112 section 2.2: an empty line before the request line is to be ignored.
        b'\r' => match bytes.get(1) {
            None => Classified::NeedMore,
            Some(b'\n') if bytes.len() == 2 => Classified::NeedMore,
            Some(b'\n') => classify_http(&bytes[2..]),
            Some(_) => Classified::Other,
        },
        _ => classify_dns(bytes),
    }
}

/// A method, a space, and the start of a target: Redis and others say `GET` too.
fn classify_http(bytes: &[u8]) -> Classified {
    let Some(space) = bytes.iter().position(|&b| b == b' ') else {
        let begun = METHODS.iter().any(|method| method.starts_with(bytes));
        return if begun { Classified::NeedMore } else { Classified::Other };
    };
    let (method, target) = (&bytes[..space], &bytes[space + 1..]);
    if !METHODS.contains(&method) {
        return Classified::Other;
    }
    match target.first() {
        None => Classified::NeedMore,
        Some(b'/') => Classified::Http,
        Some(b'*') if method == b"OPTIONS" => Classified::Http,
        Some(b'!'..=b'~') if method == b"CONNECT" => Classified::Http,
        Some(_) => {
            let begun = |scheme: &[u8]| {
                let length = scheme.len().min(target.len());
                target[..length].eq_ignore_ascii_case(&scheme[..length])
            };
            let whole = |scheme: &[u8]| target.len() >= scheme.len() && begun(scheme);
            if whole(b"http://") || whole(b"https://") {
                Classified::Http
            } else if begun(b"http://") || begun(b"https://") {
                Classified::NeedMore
            } else {
                Classified::Other
            }
        }
    }
}

/// A length, a header that asks one question, and a question that fits (RFC 1035 section 4.1).
fn classify_dns(bytes: &[u8]) -> Classified {
    const HEADER: usize = 2 + 12;
    let byte = |at: usize| bytes.get(at).copied();
    // Each fixed byte is judged as soon as it is there, so that other protocols are not held up.
    let fixed = [
        (0, !((MAX_DNS_QUERY - 1) >> 8) as u8, 0),
        (4, 0b1111_1010, 0), // a query (QR), standard (opcode), not truncated
        (5, 0b1000_1111, 0), // no recursion available, no error
        (6, 0xff, 0),
        (7, 0xff, 1), // one question
        (8, 0xff, 0), // no answers
        (9, 0xff, 0),
        (10, 0xff, 0), // few authorities
    ];
    if fixed
        .iter()
        .any(|&(at, mask, expected): &(usize, u8, u8)| byte(at).is_some_and(|b| b & mask != expected))
    {
        return Classified::Other;
    }
    let (Some(high), Some(low)) = (byte(0), byte(1)) else { return Classified::NeedMore };
    let end = 2 + usize::from(u16::from_be_bytes([high, low]));
    // The shortest question is the root's: a zero label, type and class.
    if end < HEADER + 5 {
        return Classified::Other;
    }
    let mut at = HEADER;
    loop {
        let Some(label) = byte(at) else { return Classified::NeedMore };
        at += 1;
        if label == 0 {
            break;
        }
        at += usize::from(label);
        if label > 63 || at - HEADER > 254 || at + 5 > end {
            return Classified::Other;
        }
    }
    // The class is IN, CH, HS or ANY.
    match (byte(at + 2), byte(at + 3)) {
        (Some(0), Some(1 | 3 | 4 | 255)) if at + 4 <= end => Classified::Dns,
        (Some(0), None) | (None, _) => Classified::NeedMore,
        _ => Classified::Other,
    }
}

/// Why reading on is impossible.
enum Stop {
    /// The bytes end here for now.
    Short,
    /// They are no ClientHello.
    Malformed,
}

/// A TLS record with a handshake (RFC 8446 section 5.1) that starts with a ClientHello.
fn classify_tls(bytes: &[u8]) -> Classified {
    if bytes.get(1).is_some_and(|&major| major != 3) || bytes.get(2).is_some_and(|&minor| minor > 4) {
        return Classified::Other;
    }
    if bytes.get(5).is_some_and(|&kind| kind != 1) {
        return Classified::Other;
    }
    if bytes.len() < 6 {
        return Classified::NeedMore;
    }
    let (handshake, ended) = join_records(&bytes[..bytes.len().min(MAX_CLIENT_HELLO)]);
    let server_name = match server_name(&handshake) {
        Err(Stop::Short) if !ended && bytes.len() < MAX_CLIENT_HELLO => return Classified::NeedMore,
        Err(_) => None,
        Ok(name) => name,
    };
    Classified::Tls { server_name }
}

/// The handshake bytes of the records in `bytes`, and whether no more can follow.
fn join_records(mut bytes: &[u8]) -> (Vec<u8>, bool) {
    let mut handshake = Vec::with_capacity(bytes.len());
    while let [kind, major, rest @ ..] = bytes {
        if (*kind, *major) != (22, 3) {
            return (handshake, true);
        }
        let [_minor, high, low, body @ ..] = rest else { break };
        let length = usize::from(u16::from_be_bytes([*high, *low]));
        // An empty handshake record is forbidden (RFC 8446 section 5.1).
        if length == 0 {
            return (handshake, true);
        }
        let now = length.min(body.len());
        handshake.extend_from_slice(&body[..now]);
        bytes = &body[now..];
    }
    (handshake, false)
}

/// Reads within one length-prefixed structure of a handshake of which the end may be missing.
struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
    /// Where the structure ends, which may be after the bytes.
    end: usize,
}

impl<'a> Cursor<'a> {
    fn take(&mut self, count: usize) -> Result<&'a [u8], Stop> {
        let end = self.at.checked_add(count).filter(|&end| end <= self.end).ok_or(Stop::Malformed)?;
        let taken = self.bytes.get(self.at..end).ok_or(Stop::Short)?;
        self.at = end;
        Ok(taken)
    }

    /// A big-endian number of `count` bytes, at most 3.
    fn number(&mut self, count: usize) -> Result<usize, Stop> {
        Ok(self.take(count)?.iter().fold(0, |number, &byte| number << 8 | usize::from(byte)))
    }

    /// A structure behind a length of `count` bytes; reading goes on after it.
    fn nested(&mut self, count: usize) -> Result<Cursor<'a>, Stop> {
        let length = self.number(count)?;
        let end = self.at.checked_add(length).filter(|&end| end <= self.end).ok_or(Stop::Malformed)?;
        let nested = Cursor { bytes: self.bytes, at: self.at, end };
        self.at = end;
        Ok(nested)
    }

    fn is_empty(&self) -> bool {
        self.at >= self.end
    }
}

/// The server name in a handshake that starts with a ClientHello (RFC 8446 section 4.1.2).
fn server_name(handshake: &[u8]) -> Result<Option<HostName>, Stop> {
    let mut message = Cursor { bytes: handshake, at: 0, end: usize::MAX };
    if message.number(1)? != 1 {
        return Err(Stop::Malformed);
    }
    let mut hello = message.nested(3)?;
    if hello.end > MAX_CLIENT_HELLO {
        return Err(Stop::Malformed);
    }
    hello.take(2 + 32)?; // version, random
    hello.nested(1)?; // session id
    hello.nested(2)?; // cipher suites
    hello.nested(1)?; // compression methods
    if hello.is_empty() {
        return Ok(None);
    }
    let mut extensions = hello.nested(2)?;
    while !extensions.is_empty() {
        let kind = extensions.number(2)?;
        let mut extension = extensions.nested(2)?;
        // server_name, whose list has one host_name (RFC 6066 section 3).
        if kind == 0 {
            let mut list = extension.nested(2)?;
            if list.number(1)? != 0 {
                return Ok(None);
            }
            let mut name = list.nested(2)?;
            let name = name.take(name.end - name.at)?;
            return Ok(std::str::from_utf8(name).ok().and_then(|name| HostName::parse(name).ok()));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A ClientHello with these extensions, cut into records of at most `record` bytes.
    fn client_hello(extensions: &[(u16, Vec<u8>)], record: usize) -> Vec<u8> {
        let sized = |bytes: &[u8]| [&(bytes.len() as u16).to_be_bytes()[..], bytes].concat();
        let extensions: Vec<u8> = extensions
            .iter()
            .flat_map(|(kind, data)| [&kind.to_be_bytes()[..], &sized(data)].concat())
            .collect();
        let mut body = [&[3, 3][..], &[7; 32], &[0]].concat();
        body.extend(sized(&[0x13, 0x01]));
        body.extend([1, 0]);
        body.extend(sized(&extensions));
        let mut handshake = vec![1, 0];
        handshake.extend(sized(&body));
        handshake.chunks(record).flat_map(|part| [&[22, 3, 1][..], &sized(part)].concat()).collect()
    }

    fn server_name_extension(name: &str) -> (u16, Vec<u8>) {
        let mut data = ((name.len() + 3) as u16).to_be_bytes().to_vec();
        data.push(0);
        data.extend((name.len() as u16).to_be_bytes());
        data.extend(name.as_bytes());
        (0, data)
    }

    fn tls(name: Option<&str>) -> Classified {
        Classified::Tls { server_name: name.map(|name| HostName::parse(name).unwrap()) }
    }

    fn dns_query(labels: &[&str]) -> Vec<u8> {
        let mut message = vec![0xab, 0xcd, 1, 0x20, 0, 1, 0, 0, 0, 0, 0, 1];
        for label in labels {
            message.push(label.len() as u8);
            message.extend(label.as_bytes());
        }
        message.extend([0, 0, 28, 0, 1]);
        message.extend([0, 0, 41, 4, 208, 0, 0, 0, 0, 0, 0]);
        [&(message.len() as u16).to_be_bytes()[..], &message].concat()
    }

    #[test]
    fn http_is_a_method_and_the_start_of_a_target() {
        for http in [
            "GET /",
            "OPTIONS * HTTP/1.1",
            "CONNECT h:443 HTTP/1.1",
            "PROPFIND /x",
            "GET HTTP://h/",
            "\r\nGET /",
        ] {
            assert_eq!(classify(http.as_bytes()), Classified::Http, "{http}");
        }
        for other in
            ["GET key\r\n", "get /", "HELO x", "PRI * HTTP/2.0", "SSH-2.0-x", "GETS /", "GET ht/", "\rG"]
        {
            assert_eq!(classify(other.as_bytes()), Classified::Other, "{other}");
        }
        for more in ["", "G", "GET", "GET ", "GET h", "GET https:/", "PROPFIN", "\r", "\r\n", "\r\nG"] {
            assert_eq!(classify(more.as_bytes()), Classified::NeedMore, "{more}");
        }
    }

    #[test]
    fn a_client_hello_shows_its_server_name_across_records() {
        let extensions = [(10, vec![0; 5]), server_name_extension("WWW.Example.com"), (0xff01, vec![0])];
        for record in [1, 7, 60, 10_000] {
            assert_eq!(
                classify(&client_hello(&extensions, record)),
                tls(Some("www.example.com")),
                "{record}"
            );
        }
        assert_eq!(classify(&client_hello(&[(10, vec![0; 5])], 100)), tls(None));
        assert_eq!(classify(&client_hello(&[server_name_extension("bad name")], 100)), tls(None));
    }

    #[test]
    fn an_endless_client_hello_is_tls_without_a_name() {
        let padding: Vec<_> = (0..10).map(|_| (21u16, vec![0; 2000])).collect();
        let hello = client_hello(&padding, 1000);
        assert_eq!(classify(&hello[..100]), tls(None), "its length says that it is too long");
        let hello = client_hello(&padding[..6], 1000);
        assert_eq!(classify(&hello[..hello.len() / 2]), Classified::NeedMore);
        let one_byte_records = client_hello(&padding[..6], 1);
        assert_eq!(classify(&one_byte_records), tls(None));
    }

    #[test]
    fn other_records_are_not_tls_clients() {
        assert_eq!(classify(&[22, 3]), Classified::NeedMore);
        assert_eq!(classify(&[22, 2]), Classified::Other);
        assert_eq!(classify(&[22, 3, 1, 0, 80, 2]), Classified::Other, "a ServerHello");
    }

    #[test]
    fn dns_over_tcp_is_one_fitting_question() {
        let query = dns_query(&["www", "example", "com"]);
        assert_eq!(classify(&query), Classified::Dns);
        assert_eq!(classify(&dns_query(&[])), Classified::Dns);
        assert_eq!(classify(&query[..20]), Classified::NeedMore);
        let mut response = query.clone();
        response[4] |= 0x80;
        assert_eq!(classify(&response), Classified::Other);
        let mut short = query;
        short[1] = 20;
        assert_eq!(classify(&short), Classified::Other);
        // PostgreSQL's SSLRequest, SMB, and a binary hello.
        assert_eq!(classify(&[0, 0, 0, 8, 4, 210, 22, 47]), Classified::Other);
        assert_eq!(classify(&[0, 0, 0, 85, 0xff, b'S', b'M', b'B']), Classified::Other);
        assert_eq!(classify(&[0x13, b'B', b'i', b't']), Classified::Other);
    }

    /// Bytes that get far into each of the parsers.
    fn plausible() -> impl Strategy<Value = Vec<u8>> {
        let hello =
            (prop::collection::vec((0u16..3, prop::collection::vec(any::<u8>(), 0..30)), 0..4), 1usize..200)
                .prop_map(|(extensions, record)| client_hello(&extensions, record));
        let named = ("[a-z.]{0,20}", 1usize..200)
            .prop_map(|(name, record)| client_hello(&[server_name_extension(&name)], record));
        let query = prop::collection::vec("[a-z]{1,63}", 0..5)
            .prop_map(|labels| dns_query(&labels.iter().map(String::as_str).collect::<Vec<_>>()));
        let base = prop_oneof![
            hello,
            named,
            query,
            "(GET|PUT|CONNECT|OPTIONS|FOO) [*/h][ -~]{0,20}".prop_map(String::into_bytes),
            prop::collection::vec(any::<u8>(), 0..300),
        ];
        (base, prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..3)).prop_map(
            |(mut bytes, changes)| {
                for (at, value) in changes {
                    if !bytes.is_empty() {
                        let at = at.index(bytes.len());
                        bytes[at] = value;
                    }
                }
                bytes
            },
        )
    }

    proptest! {
        #[test]
        fn more_bytes_never_change_a_verdict(bytes in plausible()) {
            let whole = classify(&bytes);
            for end in 0..bytes.len() {
                let part = classify(&bytes[..end]);
                prop_assert!(part == Classified::NeedMore || part == whole, "{part:?} at {end}, then {whole:?}");
            }
        }
    }
}
