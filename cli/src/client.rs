//! A blocking client of the daemon's control socket.
//!
//! It speaks just the HTTP that one small question needs. That keeps `multiway run` a single thread
//! that can replace itself by the program.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use multiway_api::{Problem, ProblemCode};
use serde::de::DeserializeOwned;

use crate::args::ControlSocket;
use crate::exit::Exit;
use crate::failure::Failure;

/// A daemon that does not answer within this time is stuck: everything it is asked is local.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// The status by which a daemon says that it has no room for one more connection.
const NO_ROOM: u16 = 503;

/// Wait before asking again a daemon that has no room for one more connection.
const RETRY_PAUSE: Duration = Duration::from_millis(50);

/// Largest answer read; a status with a hundred thousand flows is less.
const LONGEST_ANSWER: u64 = 64 << 20;

/// The daemon behind a control socket.
#[derive(Debug)]
pub(crate) struct Client {
    socket: PathBuf,
}

impl Client {
    /// The daemon that `choice`, or else the usual place, leads to.
    pub(crate) fn new(choice: &ControlSocket) -> Self {
        choice.socket.clone().map_or_else(Self::usual, |socket| Self { socket })
    }

    /// The daemon that the usual place leads to.
    pub(crate) fn usual() -> Self {
        Self { socket: multiway_engine::control::default_socket() }
    }

    /// Asks for `path` and parses the answer.
    pub(crate) fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, Failure> {
        self.ask("GET", path, b"")
    }

    /// Sends `body` to `path` and parses the answer.
    pub(crate) fn post<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &impl serde::Serialize,
    ) -> Result<T, Failure> {
        let body = serde_json::to_vec(body).map_err(|error| self.broken(&error.to_string()))?;
        self.ask("POST", path, &body)
    }

    fn ask<T: DeserializeOwned>(&self, method: &str, path: &str, body: &[u8]) -> Result<T, Failure> {
        let deadline = Instant::now() + ANSWER_TIMEOUT;
        let answer = loop {
            let mut stream =
                UnixStream::connect(&self.socket).map_err(|error| no_daemon(&self.socket, &error))?;
            let answer =
                exchange(&mut stream, method, path, body).map_err(|error| self.broken(&error.to_string()))?;
            let has_no_room = split(&answer).is_some_and(|(status, _)| status == NO_ROOM);
            if !has_no_room || Instant::now() > deadline {
                break answer;
            }
            std::thread::sleep(RETRY_PAUSE);
        };
        let (status, content) = split(&answer).ok_or_else(|| self.broken("it is no HTTP"))?;
        if status == 200 {
            return serde_json::from_slice(content).map_err(|error| self.broken(&error.to_string()));
        }
        let problem: Problem = serde_json::from_slice(content)
            .map_err(|_| self.broken(&format!("status {status} without an explanation")))?;
        Err(match problem.code {
            ProblemCode::Forbidden => Failure::new(Exit::Capability, problem.message),
            ProblemCode::BadRequest | ProblemCode::Failed => Failure::new(Exit::Other, problem.message),
        })
    }

    fn broken(&self, reason: &str) -> Failure {
        Failure::new(Exit::Other, format!("the answer on {} cannot be used: {reason}", self.socket.display()))
            .help("Command and daemon may be of different versions; restart the daemon.")
    }
}

fn no_daemon(socket: &Path, error: &io::Error) -> Failure {
    let place = socket.display();
    match error.kind() {
        io::ErrorKind::PermissionDenied => {
            Failure::new(Exit::Capability, format!("the control socket {place} may not be used: {error}")).help(
                "Ask as the user who started the daemon, or name a group of yours as `control.group` in its configuration.",
            )
        }
        _ => Failure::new(Exit::NoDaemon, format!("no daemon answers on {place}: {error}")).help(
            "Start it with `multiway up`, or name its socket with --control or in MULTIWAY_CONTROL.",
        ),
    }
}

fn exchange(stream: &mut UnixStream, method: &str, path: &str, body: &[u8]) -> io::Result<Vec<u8>> {
    stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
    stream.set_write_timeout(Some(ANSWER_TIMEOUT))?;
    // Version 1.0 has no chunks: the answer ends with the connection.
    let mut request = format!(
        "{method} {path} HTTP/1.0\r\nHost: multiway\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
        body.len()
    )
    .into_bytes();
    request.extend_from_slice(body);
    // A daemon that has no room says so without hearing the request.
    let sent = stream.write_all(&request);
    let mut answer = Vec::new();
    match stream.take(LONGEST_ANSWER).read_to_end(&mut answer) {
        Err(error) if answer.is_empty() => Err(sent.err().unwrap_or(error)),
        Ok(_) if answer.is_empty() => sent.map(|()| answer),
        _ => Ok(answer),
    }
}

/// Status code and content of an HTTP answer.
fn split(answer: &[u8]) -> Option<(u16, &[u8])> {
    let mut headers = [httparse::EMPTY_HEADER; 32];
    let mut head = httparse::Response::new(&mut headers);
    let httparse::Status::Complete(length) = head.parse(answer).ok()? else { return None };
    Some((head.code?, &answer[length..]))
}
