//! Connections: reading requests, and sending answers in all the wrong ways.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use multiway_core::units::Rate;

use super::SeenRequest;
use super::answer::{self, Answer, Circumstances, Delivery, Ending, Framing, MOVED, Object};
use super::misdeed::Misdeed;
use super::request::{Inbox, Request};
use crate::content::RandomBytes;

/// Time between two bytes of a trickled head, which then takes a second or so.
const TRICKLE_INTERVAL: Duration = Duration::from_millis(5);

/// How long a second request is waited for before the first is answered out of order.
const PIPELINE_PATIENCE: Duration = Duration::from_millis(100);

/// How long a client may take to close after the origin did.
const LINGER: Duration = Duration::from_secs(1);

/// Bodies are written in pieces of this size, so that pacing is smooth and chunks are many.
const PIECE_BYTES: usize = 16 * 1024;

/// What belongs to nothing.
const EXTRA_BYTES: &[u8] = &[b'X'; 100];

const GARBAGE_BYTES: usize = 4096;

const INTERIM_ANSWERS: &[u8] =
    b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </style.css>; rel=preload\r\n\r\n";

/// What all connections of an origin share.
pub(super) struct Shared {
    object: Object,
    clients: Vec<(IpAddr, Misdeed)>,
    rate: Option<Rate>,
    in_progress: AtomicUsize,
    connections: AtomicU64,
    stopping: AtomicBool,
    seen: Mutex<Vec<SeenRequest>>,
    /// Connections to shut down when the origin ends, by number; each leaves when it is closed.
    open: Mutex<BTreeMap<u64, TcpStream>>,
    listening: Mutex<Vec<TcpListener>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    pub(super) fn new(object: Object, clients: Vec<(IpAddr, Misdeed)>, rate: Option<Rate>) -> Self {
        Self {
            object,
            clients,
            rate,
            in_progress: AtomicUsize::new(0),
            connections: AtomicU64::new(0),
            stopping: AtomicBool::new(false),
            seen: Mutex::default(),
            open: Mutex::default(),
            listening: Mutex::default(),
        }
    }

    pub(super) fn object(&self) -> &Object {
        &self.object
    }

    pub(super) fn requests(&self) -> Vec<SeenRequest> {
        lock(&self.seen).clone()
    }

    pub(super) fn stop(&self) {
        self.stopping.store(true, Ordering::SeqCst);
        for listener in lock(&self.listening).drain(..) {
            // On Linux this wakes a thread that waits in accept.
            let _ = nix::sys::socket::shutdown(listener.as_raw_fd(), nix::sys::socket::Shutdown::Both);
        }
        for stream in lock(&self.open).values() {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    fn misdeed(&self, request: &Request, client: IpAddr, of_listener: Option<Misdeed>) -> Option<Misdeed> {
        if request.path.starts_with(MOVED) {
            return None;
        }
        let by_url = request.path.split('/').nth(1).and_then(|first| first.parse().ok());
        if let Some(misdeed) = by_url {
            let only_on = request.query.as_deref().and_then(|query| query.strip_prefix("on="));
            return only_on.is_none_or(|address| address.parse() == Ok(client)).then_some(misdeed);
        }
        let by_client = self.clients.iter().find(|(known, _)| *known == client);
        by_client.map(|&(_, misdeed)| misdeed).or(of_listener)
    }
}

/// Starts a thread that accepts, and one for each connection.
pub(super) fn accept_on(
    listener: TcpListener,
    misdeed: Option<Misdeed>,
    shared: &Arc<Shared>,
) -> io::Result<JoinHandle<()>> {
    lock(&shared.listening).push(listener.try_clone()?);
    let shared = Arc::clone(shared);
    std::thread::Builder::new().name("hostile".to_owned()).spawn(move || {
        loop {
            match listener.accept() {
                Ok((stream, client)) => {
                    let shared = Arc::clone(&shared);
                    std::thread::spawn(move || serve(stream, client, misdeed, &shared));
                }
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(_) => return,
            }
        }
    })
}

fn serve(stream: TcpStream, client: SocketAddr, misdeed: Option<Misdeed>, shared: &Shared) {
    let Ok(handle) = stream.try_clone() else { return };
    let number = shared.connections.fetch_add(1, Ordering::SeqCst);
    lock(&shared.open).insert(number, handle);
    if !shared.stopping.load(Ordering::SeqCst) {
        // Clients that close or reset in the middle are what this origin is for.
        let _ = Connection::new(&stream, client, misdeed, shared).serve();
    }
    // A socket is closed, or reset, with its last handle.
    lock(&shared.open).remove(&number);
}

/// Counts a request as in progress while it lives.
struct InProgress<'a>(&'a AtomicUsize);

impl Drop for InProgress<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// What becomes of a connection after an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum After {
    Keep,
    Close,
    Reset,
}

struct Connection<'a> {
    stream: &'a TcpStream,
    client: IpAddr,
    of_listener: Option<Misdeed>,
    shared: &'a Shared,
    inbox: Inbox,
}

impl<'a> Connection<'a> {
    fn new(
        stream: &'a TcpStream,
        client: SocketAddr,
        of_listener: Option<Misdeed>,
        shared: &'a Shared,
    ) -> Self {
        let client = client.ip().to_canonical();
        Self { stream, client, of_listener, shared, inbox: Inbox::default() }
    }

    fn serve(&mut self) -> io::Result<()> {
        self.stream.set_nodelay(true)?;
        while let Some(request) = self.next_request()? {
            let misdeed = self.shared.misdeed(&request, self.client, self.of_listener);
            let mut waiting = vec![request];
            if misdeed == Some(Misdeed::SwapsPipelined) {
                waiting.splice(0..0, self.request_soon()?);
            }
            for request in waiting {
                match self.answer(&request)? {
                    After::Keep => {}
                    After::Close => return self.close(),
                    After::Reset => return self.reset(),
                }
            }
            if misdeed == Some(Misdeed::DropsPipelined) {
                self.inbox.forget(self.stream)?;
            }
        }
        Ok(())
    }

    fn next_request(&mut self) -> io::Result<Option<Request>> {
        let Some(request) = self.inbox.next_request(self.stream)? else { return Ok(None) };
        if request.header("expect").is_some() {
            self.stream.write_all(b"HTTP/1.1 100 Continue\r\n\r\n")?;
        }
        self.inbox.skip_body(self.stream, &request)?;
        Ok(Some(request))
    }

    /// A request that arrives within a moment, if one does.
    fn request_soon(&mut self) -> io::Result<Option<Request>> {
        self.stream.set_read_timeout(Some(PIPELINE_PATIENCE))?;
        let request = match self.next_request() {
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                Ok(None)
            }
            other => other,
        };
        self.stream.set_read_timeout(None)?;
        request
    }

    fn answer(&mut self, request: &Request) -> io::Result<After> {
        let misdeed = self.shared.misdeed(request, self.client, self.of_listener);
        let serial = {
            let mut seen = lock(&self.shared.seen);
            seen.push(SeenRequest {
                client: self.client,
                method: request.method.clone(),
                path: request.path.clone(),
                range: request.header("range").map(str::to_owned),
                misdeed,
            });
            seen.len() as u64
        };
        let before = self.shared.in_progress.fetch_add(1, Ordering::SeqCst);
        let _in_progress = InProgress(&self.shared.in_progress);
        let circumstances = Circumstances { client: self.client, is_extra: before > 0, serial };
        let mut answer = answer::honest(request, &self.shared.object);
        if let Some(misdeed) = misdeed {
            let closes = answer.closes;
            answer = answer::bent(misdeed, answer, request, &self.shared.object, circumstances);
            answer.closes |= closes;
        }
        self.send(&answer, request.method != "HEAD")
    }

    fn send(&mut self, answer: &Answer, with_body: bool) -> io::Result<After> {
        match answer.delivery {
            Delivery::Reset => return Ok(After::Reset),
            Delivery::Silence => {
                self.wait_for_close();
                return Ok(After::Close);
            }
            Delivery::Garbage => {
                let mut garbage = vec![0; GARBAGE_BYTES];
                RandomBytes::new(0).read_exact(&mut garbage)?;
                self.stream.write_all(&garbage)?;
                return Ok(After::Close);
            }
            _ => {}
        }
        if answer.interim {
            self.stream.write_all(INTERIM_ANSWERS)?;
        }
        let head = answer.head();
        if answer.delivery == Delivery::TrickledHead {
            for byte in head.as_bytes() {
                self.stream.write_all(&[*byte])?;
                std::thread::sleep(TRICKLE_INTERVAL);
            }
        } else {
            self.stream.write_all(head.as_bytes())?;
        }
        if with_body {
            if let Delivery::Half(ending) = answer.delivery {
                let body = answer.body();
                self.send_body(&body[..body.len() / 2], answer.framing)?;
                match ending {
                    Ending::Close => return Ok(After::Close),
                    Ending::Reset => return Ok(After::Reset),
                    Ending::Stall => self.wait_for_close(),
                }
            }
            self.send_body(answer.body(), answer.framing)?;
            if answer.framing == Framing::Chunked {
                self.stream.write_all(b"0\r\n\r\n")?;
            }
            if answer.delivery == Delivery::WithExtraBytes {
                self.stream.write_all(EXTRA_BYTES)?;
            }
        }
        Ok(if answer.closes { After::Close } else { After::Keep })
    }

    fn send_body(&mut self, body: &[u8], framing: Framing) -> io::Result<()> {
        let start = Instant::now();
        let mut sent = 0;
        for piece in body.chunks(PIECE_BYTES) {
            if framing == Framing::Chunked {
                write!(self.stream, "{:x}\r\n", piece.len())?;
            }
            self.stream.write_all(piece)?;
            if framing == Framing::Chunked {
                self.stream.write_all(b"\r\n")?;
            }
            sent += piece.len() as u64;
            if let Some(rate) = self.shared.rate {
                let due = Duration::from_secs_f64(sent as f64 * 8.0 / rate.bits_per_second() as f64);
                std::thread::sleep(due.saturating_sub(start.elapsed()));
            }
        }
        Ok(())
    }

    /// Reads until the client, or the origin's end, closes the connection.
    fn wait_for_close(&mut self) {
        let mut scratch = [0; 4096];
        while matches!(self.stream.read(&mut scratch), Ok(count) if count > 0) {}
    }

    /// Closes so that what was sent arrives also when the client was still sending.
    fn close(&mut self) -> io::Result<()> {
        self.stream.shutdown(Shutdown::Write)?;
        self.stream.set_read_timeout(Some(LINGER))?;
        self.wait_for_close();
        Ok(())
    }

    fn reset(&mut self) -> io::Result<()> {
        // A connection that lingers for no time is reset when it closes.
        let at_once = libc::linger { l_onoff: 1, l_linger: 0 };
        Ok(nix::sys::socket::setsockopt(self.stream, nix::sys::socket::sockopt::Linger, &at_once)?)
    }
}
