//! Raw HTTP: an origin that does what nginx does not, and a client that sees every byte.

use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use multiway_netlab::Host;

use crate::support::content_of;

/// A socket that is silent for longer has stalled.
const SOCKET_PATIENCE: Duration = Duration::from_secs(15);

/// Where the origin listens; nginx has port 80.
pub(crate) const ORIGIN_PORT: u16 = 8080;

/// What the origin sends where a body has no other meaning.
pub(crate) fn origin_body() -> Vec<u8> {
    content_of(7, "wire", 1_500_000)
}

/// An origin that answers
///
/// - `POST /echo` with the body it was sent, after `100 Continue` when that was expected,
/// - `POST /refuse` with 413 before it reads the body, and closes,
/// - `GET /chunked` in chunks with a trailer, `GET /until-close` without a length,
/// - `GET /upgrade` and `CONNECT` with an echo of whatever follows,
/// - `GET /once` honestly, and then closes the connection without a word.
pub(crate) struct WireOrigin {
    seen: Arc<Mutex<Vec<String>>>,
}

impl WireOrigin {
    pub(crate) fn start(host: &Host, address: IpAddr) -> Result<Self> {
        let listener = host.run(|| TcpListener::bind((address, ORIGIN_PORT)))?;
        let seen = Arc::new(Mutex::new(Vec::new()));
        let heads = Arc::clone(&seen);
        // It ends with the test's process.
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let heads = Arc::clone(&heads);
                // Clients that go away end their connection's thread.
                std::thread::spawn(move || drop(serve(stream, &heads)));
            }
        });
        Ok(Self { seen })
    }

    /// The heads of all requests so far.
    pub(crate) fn seen(&self) -> Vec<String> {
        self.seen.lock().expect("no thread panics while it holds it").clone()
    }
}

fn serve(stream: TcpStream, seen: &Mutex<Vec<String>>) -> io::Result<()> {
    let mut wire = Wire::over(stream)?;
    loop {
        let Some(head) = wire.read_head_or_end()? else { return Ok(()) };
        seen.lock().expect("no thread panics while it holds it").push(head.clone());
        let target = head.split(' ').nth(1).unwrap_or_default().to_owned();
        let (method, path) = (head.split(' ').next().unwrap_or_default(), target.as_str());
        match (method, path) {
            ("POST", "/echo") => {
                if header(&head, "expect").is_some() {
                    wire.send(b"HTTP/1.1 100 Continue\r\n\r\n")?;
                }
                let body = wire.read_body(&head)?;
                wire.send(format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len()).as_bytes())?;
                wire.send(&body)?;
            }
            ("POST", "/refuse") => {
                wire.send(
                    b"HTTP/1.1 413 Content Too Large\r\nConnection: close\r\nContent-Length: 4\r\n\r\nbig\n",
                )?;
                wire.stream.shutdown(std::net::Shutdown::Write)?;
                return io::copy(&mut wire.stream, &mut io::sink()).map(drop);
            }
            ("GET", "/chunked") => {
                wire.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X-End\r\n\r\n")?;
                for piece in origin_body().chunks(70_001) {
                    wire.send(format!("{:x};extension\r\n", piece.len()).as_bytes())?;
                    wire.send(piece)?;
                    wire.send(b"\r\n")?;
                }
                wire.send(b"0\r\nX-End: yes\r\n\r\n")?;
            }
            ("GET", "/until-close") => {
                wire.send(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\n")?;
                return wire.send(&origin_body());
            }
            ("GET", "/once") => {
                return wire.send(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nonce\n");
            }
            ("GET", "/upgrade") | ("CONNECT", _) => {
                let head: &[u8] = if method == "GET" {
                    b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n"
                } else {
                    b"HTTP/1.0 200 Connection established\r\n\r\n"
                };
                // What follows the head at once belongs to the new protocol.
                wire.send(&[head, b"hello"].concat())?;
                let early = std::mem::take(&mut wire.buffer);
                wire.send(&early)?;
                let mut back = wire.stream.try_clone()?;
                return io::copy(&mut wire.stream, &mut back).map(drop);
            }
            _ => wire.send(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")?,
        }
    }
}

/// A connection on which heads and bodies are told apart.
pub(crate) struct Wire {
    pub(crate) stream: TcpStream,
    buffer: Vec<u8>,
}

impl Wire {
    /// Connects from a host.
    pub(crate) fn connect(host: &Host, address: SocketAddr) -> Result<Self> {
        let stream = host
            .run(|| TcpStream::connect_timeout(&address, SOCKET_PATIENCE))
            .with_context(|| format!("no connection to {address}"))?;
        Ok(Self::over(stream)?)
    }

    fn over(stream: TcpStream) -> io::Result<Self> {
        stream.set_read_timeout(Some(SOCKET_PATIENCE))?;
        stream.set_write_timeout(Some(SOCKET_PATIENCE))?;
        Ok(Self { stream, buffer: Vec::new() })
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes)
    }

    fn fill(&mut self) -> io::Result<usize> {
        let mut piece = [0; 65_536];
        let count = self.stream.read(&mut piece)?;
        self.buffer.extend_from_slice(&piece[..count]);
        Ok(count)
    }

    fn read_head_or_end(&mut self) -> io::Result<Option<String>> {
        loop {
            if let Some(at) = self.buffer.windows(4).position(|four| four == b"\r\n\r\n") {
                let head: Vec<u8> = self.buffer.drain(..at + 4).collect();
                return Ok(Some(String::from_utf8_lossy(&head).into_owned()));
            }
            if self.fill()? == 0 {
                return Ok(None);
            }
        }
    }

    /// The next head, its empty line included.
    pub(crate) fn read_head(&mut self) -> Result<String> {
        self.read_head_or_end()?.context("the connection ended where a head was due")
    }

    pub(crate) fn read_exact(&mut self, count: usize) -> io::Result<Vec<u8>> {
        while self.buffer.len() < count {
            if self.fill()? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        Ok(self.buffer.drain(..count).collect())
    }

    /// The body after this head, without its framing.
    pub(crate) fn read_body(&mut self, head: &str) -> io::Result<Vec<u8>> {
        if header(head, "transfer-encoding").is_none() {
            let length = header(head, "content-length").and_then(|value| value.parse().ok()).unwrap_or(0);
            return self.read_exact(length);
        }
        let mut body = Vec::new();
        loop {
            let mut line = self.read_exact(1)?;
            while !line.ends_with(b"\r\n") {
                line.extend(self.read_exact(1)?);
            }
            let digits: String =
                line.iter().map(|&byte| char::from(byte)).take_while(char::is_ascii_hexdigit).collect();
            let size = usize::from_str_radix(&digits, 16).map_err(io::Error::other)?;
            if size == 0 {
                break;
            }
            body.extend(self.read_exact(size)?);
            self.read_exact(2)?;
        }
        while self.read_exact(2)? != b"\r\n" {
            while self.read_exact(1)? != b"\n" {}
        }
        Ok(body)
    }

    /// The next answer: its head and its body.
    pub(crate) fn read_answer(&mut self) -> Result<(String, Vec<u8>)> {
        let head = self.read_head()?;
        let body = self.read_body(&head).with_context(|| format!("in the body after {head}"))?;
        Ok((head, body))
    }

    /// Everything until the connection ends in good order.
    pub(crate) fn read_to_end(&mut self) -> io::Result<Vec<u8>> {
        while self.fill()? > 0 {}
        Ok(std::mem::take(&mut self.buffer))
    }

    /// Fails unless the connection ends here.
    pub(crate) fn expect_end(&mut self) -> Result<()> {
        let rest = self.read_to_end()?;
        ensure!(rest.is_empty(), "{} more bytes: {}", rest.len(), String::from_utf8_lossy(&rest));
        Ok(())
    }
}

/// A field's value.
pub(crate) fn header<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    head.lines().find_map(|line| {
        let (field, value) = line.split_once(':')?;
        field.eq_ignore_ascii_case(name).then(|| value.trim())
    })
}

/// The status of an answer's head.
pub(crate) fn status(head: &str) -> Result<u16> {
    match head.split(' ').nth(1).map(str::parse) {
        Some(Ok(status)) => Ok(status),
        _ => bail!("no status in {head:?}"),
    }
}
