//! Requests as the origin reads them: enough of HTTP/1.1 for clients that behave.

use std::io::{self, Read};
use std::net::TcpStream;
use std::ops::Range;

/// No client of a lab sends more.
const LONGEST_HEAD: usize = 64 * 1024;

/// A request's head.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Request {
    pub(super) method: String,
    /// The path without the query.
    pub(super) path: String,
    pub(super) query: Option<String>,
    headers: Vec<(String, String)>,
}

/// What a `Range` header asks for, before the object's size is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Asked {
    From(u64),
    Between(u64, u64),
    Last(u64),
}

impl Request {
    pub(super) fn parse(head: &str) -> Option<Self> {
        let mut lines = head.split("\r\n");
        let mut words = lines.next()?.split(' ');
        let (method, target) = (words.next()?, words.next()?);
        if !words.next()?.starts_with("HTTP/1.") {
            return None;
        }
        // A client that takes this origin for a proxy sends the whole URL.
        let target = match target.strip_prefix("http://") {
            Some(rest) => rest.find('/').map_or("/", |slash| &rest[slash..]),
            None => target,
        };
        let (path, query) = match target.split_once('?') {
            Some((path, query)) => (path, Some(query.to_owned())),
            None => (target, None),
        };
        let headers = lines
            .take_while(|line| !line.is_empty())
            .map(|line| {
                line.split_once(':').map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()))
            })
            .collect::<Option<_>>()?;
        Some(Self { method: method.to_owned(), path: path.to_owned(), query, headers })
    }

    /// The value of a header, by its name in small letters.
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    pub(super) fn body_bytes(&self) -> u64 {
        self.header("content-length").and_then(|length| length.parse().ok()).unwrap_or(0)
    }

    pub(super) fn wants_close(&self) -> bool {
        self.header("connection").is_some_and(|value| value.eq_ignore_ascii_case("close"))
    }

    /// The single range asked for, cut to an object of `size` bytes; `Err` when it lies outside. Several
    /// ranges and units other than bytes count as none asked for, which RFC 9110 section 14.2 allows.
    pub(super) fn range(&self, size: u64) -> Option<Result<Range<u64>, ()>> {
        let asked = match self.header("range")?.strip_prefix("bytes=")?.split_once('-')? {
            ("", last) => Asked::Last(last.parse().ok()?),
            (from, "") => Asked::From(from.parse().ok()?),
            (from, to) => Asked::Between(from.parse().ok()?, to.parse().ok()?),
        };
        Some(match asked {
            Asked::From(from) if from < size => Ok(from..size),
            Asked::Between(from, to) if from < size && from <= to => Ok(from..size.min(to + 1)),
            Asked::Last(count) if count > 0 => Ok(size.saturating_sub(count)..size),
            _ => Err(()),
        })
    }
}

/// A connection's unread bytes.
#[derive(Debug, Default)]
pub(super) struct Inbox {
    bytes: Vec<u8>,
}

impl Inbox {
    /// The next request's head; none when the client closed.
    pub(super) fn next_request(&mut self, stream: &TcpStream) -> io::Result<Option<Request>> {
        loop {
            if let Some(end) = self.bytes.windows(4).position(|four| four == b"\r\n\r\n") {
                let head: Vec<u8> = self.bytes.drain(..end + 4).collect();
                let request = std::str::from_utf8(&head).ok().and_then(Request::parse);
                return request
                    .map(Some)
                    .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "this is no request"));
            }
            if self.bytes.len() > LONGEST_HEAD {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "the request's head does not end"));
            }
            if self.read_more(stream)? == 0 {
                return Ok(None);
            }
        }
    }

    /// Takes a request's body off the connection.
    pub(super) fn skip_body(&mut self, stream: &TcpStream, request: &Request) -> io::Result<()> {
        let mut left = request.body_bytes();
        loop {
            let here = usize::try_from(left).unwrap_or(usize::MAX).min(self.bytes.len());
            self.bytes.drain(..here);
            left -= here as u64;
            if left == 0 || self.read_more(stream)? == 0 {
                return Ok(());
            }
        }
    }

    /// Throws away what has arrived until now.
    pub(super) fn forget(&mut self, mut stream: &TcpStream) -> io::Result<()> {
        self.bytes.clear();
        stream.set_nonblocking(true)?;
        let mut scratch = [0; 4096];
        let drained = loop {
            match stream.read(&mut scratch) {
                Ok(0) => break Ok(()),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break Ok(()),
                Err(error) => break Err(error),
            }
        };
        stream.set_nonblocking(false)?;
        drained
    }

    fn read_more(&mut self, mut stream: &TcpStream) -> io::Result<usize> {
        let mut scratch = [0; 4096];
        let count = stream.read(&mut scratch)?;
        self.bytes.extend_from_slice(&scratch[..count]);
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(value: &str, size: u64) -> Option<Result<Range<u64>, ()>> {
        let head = format!("GET /a HTTP/1.1\r\nHost: h\r\nRange: {value}\r\n\r\n");
        Request::parse(&head).expect("a request").range(size)
    }

    #[test]
    fn ranges_are_cut_to_the_object() {
        assert_eq!(range("bytes=0-9", 100), Some(Ok(0..10)));
        assert_eq!(range("bytes=90-", 100), Some(Ok(90..100)));
        assert_eq!(range("bytes=90-200", 100), Some(Ok(90..100)));
        assert_eq!(range("bytes=-30", 100), Some(Ok(70..100)));
        assert_eq!(range("bytes=-300", 100), Some(Ok(0..100)));
        assert_eq!(range("bytes=100-", 100), Some(Err(())));
        assert_eq!(range("bytes=5-4", 100), Some(Err(())));
        assert_eq!(range("bytes=0-1,5-6", 100), None);
        assert_eq!(range("lines=0-1", 100), None);
    }

    #[test]
    fn a_proxy_request_is_read_like_another() {
        let request =
            Request::parse("GET http://h:80/a/b?on=1 HTTP/1.1\r\nHost: h\r\n\r\n").expect("a request");
        assert_eq!((request.path.as_str(), request.query.as_deref()), ("/a/b", Some("on=1")));
        assert_eq!(Request::parse("GET /a"), None);
        assert_eq!(Request::parse("GET /a SPDY/3\r\n\r\n"), None);
    }
}
