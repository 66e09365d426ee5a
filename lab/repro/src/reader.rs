//! A small HTTP/1.1 reader that notes when bytes arrive. It follows nothing and retries nothing, so
//! that what it sees is the network's and not its own doing.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use socket2::{Domain, Protocol, Socket, Type};

use crate::objects::{Hasher, Sha};

/// `IPPROTO_MPTCP`.
pub(crate) const MPTCP: i32 = 262;

/// How often a reader that gets nothing looks whether it is still wanted.
const LOOK_AROUND: Duration = Duration::from_millis(50);

const LONGEST_HEAD: usize = 64 * 1024;

/// What to fetch, from where, and how.
#[derive(Debug, Clone)]
pub(crate) struct Fetch {
    /// The server, or the proxy.
    pub(crate) connect_to: SocketAddr,
    /// What stands in the request line: a path, or the whole URL for a proxy.
    pub(crate) target: String,
    pub(crate) host: String,
    /// The only interface to use.
    pub(crate) interface: Option<String>,
    pub(crate) mptcp: bool,
    /// The server, when `connect_to` is a proxy that is to connect to it without reading along.
    pub(crate) tunnel_to: Option<SocketAddr>,
}

/// What a reader saw.
#[derive(Debug, Clone)]
pub(crate) struct Seen {
    pub(crate) bytes: u64,
    pub(crate) digest: Sha,
    /// From the start to the first byte of the answer.
    pub(crate) first_byte: Duration,
    pub(crate) total: Duration,
    /// The longest time between two arrivals, after the first.
    pub(crate) longest_stall: Duration,
}

impl Fetch {
    /// Reads all of it within a limit. Must run on the host that fetches.
    pub(crate) fn read(&self, limit: Duration) -> Result<Seen> {
        let start = Instant::now();
        let deadline = start + limit;
        let mut hasher = Hasher::default();
        let (mut bytes, mut longest_stall) = (0, Duration::ZERO);
        let mut last: Option<Instant> = None;
        let mut first_byte = Duration::ZERO;
        self.each_piece(&|| Instant::now() < deadline, &mut |piece| {
            let now = Instant::now();
            match last {
                Some(last) => longest_stall = longest_stall.max(now - last),
                None => first_byte = now - start,
            }
            last = Some(now);
            bytes += piece.len() as u64;
            hasher.write_all(piece)
        })?;
        Ok(Seen { bytes, digest: hasher.finish(), first_byte, total: start.elapsed(), longest_stall })
    }

    /// Gives each piece of the body as it arrives, until the body ends or it is wanted no more.
    fn each_piece(
        &self,
        wanted: &dyn Fn() -> bool,
        take: &mut dyn FnMut(&[u8]) -> io::Result<()>,
    ) -> Result<()> {
        let mut stream = self.connect()?;
        stream.set_read_timeout(Some(LOOK_AROUND))?;
        // In one write: of several the kernel would hold all but the first back for a round trip. The connection
        // may stay: a server that closes a corked one at once leaves its last packet to kernel MPTCP's
        // retransmission, a quarter of a second late (seen on Linux 6.18).
        let request = format!("GET {} HTTP/1.1\r\nHost: {}\r\n\r\n", self.target, self.host);
        stream.write_all(request.as_bytes())?;
        let mut buffer = vec![0; 256 * 1024];
        let mut head = Vec::new();
        let mut left = loop {
            let Some(count) = next(&mut stream, &mut buffer, wanted)? else { return Ok(()) };
            head.extend_from_slice(&buffer[..count]);
            if let Some(end) = head.windows(4).position(|four| four == b"\r\n\r\n") {
                let length = content_length(&head[..end])?;
                let body = &head[end + 4..];
                take(body)?;
                break length.saturating_sub(body.len() as u64);
            }
            if count == 0 || head.len() > LONGEST_HEAD {
                bail!("{} gave no answer in HTTP", self.connect_to);
            }
        };
        while left > 0 {
            let Some(count) = next(&mut stream, &mut buffer, wanted)? else { return Ok(()) };
            if count == 0 {
                bail!("{} closed with {left} bytes missing", self.connect_to);
            }
            take(&buffer[..count])?;
            left = left.saturating_sub(count as u64);
        }
        Ok(())
    }

    fn connect(&self) -> Result<TcpStream> {
        let protocol = if self.mptcp { Protocol::from(MPTCP) } else { Protocol::TCP };
        let socket = Socket::new(Domain::for_address(self.connect_to), Type::STREAM, Some(protocol))
            .context("cannot make a socket")?;
        if let Some(interface) = &self.interface {
            socket
                .bind_device(Some(interface.as_bytes()))
                .with_context(|| format!("cannot bind to {interface}"))?;
        }
        socket
            .connect(&self.connect_to.into())
            .with_context(|| format!("cannot connect to {}", self.connect_to))?;
        let stream: TcpStream = socket.into();
        if let Some(server) = self.tunnel_to {
            open_tunnel(&stream, server)?;
        }
        Ok(stream)
    }
}

/// Has an HTTP proxy connect to a server.
pub(crate) fn open_tunnel(mut stream: &TcpStream, server: SocketAddr) -> Result<()> {
    write!(stream, "CONNECT {server} HTTP/1.1\r\nHost: {server}\r\n\r\n")?;
    // One byte at a time, so that nothing behind the head is taken.
    let mut head = BufReader::with_capacity(1, stream).lines();
    let status = head.next().context("the proxy closed without an answer")??;
    if status.split(' ').nth(1) != Some("200") {
        bail!("the proxy says `{status}`");
    }
    for line in head {
        if line?.is_empty() {
            break;
        }
    }
    Ok(())
}

/// The next bytes; none when they are wanted no more.
fn next(stream: &mut TcpStream, buffer: &mut [u8], wanted: &dyn Fn() -> bool) -> io::Result<Option<usize>> {
    loop {
        if !wanted() {
            return Ok(None);
        }
        match stream.read(buffer) {
            Ok(count) => return Ok(Some(count)),
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {}
            Err(error) => return Err(error),
        }
    }
}

fn content_length(head: &[u8]) -> Result<u64> {
    let head = String::from_utf8_lossy(head);
    let mut lines = head.lines();
    let status = lines.next().unwrap_or_default();
    if status.split(' ').nth(1) != Some("200") {
        bail!("the answer is `{status}`");
    }
    lines
        .filter_map(|line| line.split_once(':'))
        .find(|(name, _)| name.eq_ignore_ascii_case("content-length"))
        .and_then(|(_, length)| length.trim().parse().ok())
        .context("the answer has no length")
}

/// The least time in which these fetches of one object, side by side, bring `bytes` in all.
///
/// Each fetches all of the object from its own start; none is helped by another. That is what no
/// scheduler can beat that is given the same connections.
pub(crate) fn optimum(fetches: &[Fetch], bytes: u64, limit: Duration) -> Result<Option<Duration>> {
    let arrived = AtomicU64::new(0);
    let done = AtomicBool::new(false);
    let crossed: Mutex<Option<Duration>> = Mutex::new(None);
    let start = Instant::now();
    let deadline = start + limit;
    let results: Vec<Result<()>> = std::thread::scope(|scope| {
        let workers: Vec<_> = fetches
            .iter()
            .map(|fetch| {
                scope.spawn(|| {
                    let wanted = || !done.load(Ordering::Relaxed) && Instant::now() < deadline;
                    fetch.each_piece(&wanted, &mut |piece| {
                        let piece = piece.len() as u64;
                        let before = arrived.fetch_add(piece, Ordering::SeqCst);
                        if before < bytes && before + piece >= bytes {
                            *crossed.lock().expect("nothing panics while it holds this") =
                                Some(start.elapsed());
                            done.store(true, Ordering::Relaxed);
                        }
                        Ok(())
                    })
                })
            })
            .collect();
        workers.into_iter().map(|worker| worker.join().expect("readers do not panic")).collect()
    });
    let crossed = *crossed.lock().expect("nothing panics while it holds this");
    if crossed.is_none() {
        // A path that failed does no harm when the others brought enough.
        results.into_iter().collect::<Result<Vec<()>>>()?;
    }
    Ok(crossed)
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use sha2::{Digest, Sha256};

    use super::*;

    fn fetch(connect_to: SocketAddr) -> Fetch {
        Fetch {
            connect_to,
            target: "/".to_owned(),
            host: "h".to_owned(),
            interface: None,
            mptcp: false,
            tunnel_to: None,
        }
    }

    /// A server that gives the same answer to everyone.
    fn serve(answer: &'static [u8]) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("an address");
        std::thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                let mut scratch = [0; 1000];
                let _ = stream.read(&mut scratch).and_then(|_| stream.write_all(answer));
            }
        });
        address
    }

    const LIMIT: Duration = Duration::from_secs(10);

    #[test]
    fn the_body_is_read_and_hashed() {
        let address = serve(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello");
        let seen = fetch(address).read(LIMIT).expect("an answer");
        let expected: Sha = Sha256::digest(b"hello").into();
        assert_eq!((seen.bytes, seen.digest), (5, expected));
    }

    #[test]
    fn errors_and_short_bodies_are_failures() {
        for answer in [
            &b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"[..],
            b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhel",
            b"HTTP/1.1 200 OK\r\n\r\nhello",
            b"nonsense",
        ] {
            assert!(fetch(serve(answer)).read(LIMIT).is_err(), "{}", String::from_utf8_lossy(answer));
        }
    }

    #[test]
    fn the_optimum_adds_the_paths_up() {
        let half = serve(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhello");
        assert!(optimum(&[fetch(half), fetch(half)], 10, LIMIT).expect("both answer").is_some());
        assert!(optimum(&[fetch(half)], 10, LIMIT).is_err());
    }
}
