//! Whether a captive portal stands before a network: asked only when the user names whom to ask.

use std::io;
use std::net::SocketAddr;
use std::str::FromStr;
use std::sync::{Arc, Weak};
use std::time::Duration;

use multiway_core::mphttp::http::Authority;
use multiway_core::paths::{Family, NetworkIdentity, PathId, PathInfo, PathState};
use multiway_edge::socket;
use thiserror::Error;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpSocket;
use tokio::time::Instant;

use super::state::State;

/// A network that let through may stop doing so; sessions at portals last for minutes at least.
const RECHECK_OPEN: Duration = Duration::from_secs(300);

/// Someone may be signing in right now.
const RECHECK_CAPTIVE: Duration = Duration::from_secs(10);

/// A server that takes longer has not answered.
const TIMEOUT: Duration = Duration::from_secs(5);

/// A status line fits easily; the rest of the answer is not read.
const MOST_OF_ANSWER: u64 = 512;

/// An `http` URL that answers 204 (No Content) unless a portal answers in its place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PortalProbe {
    authority: Authority,
    target: String,
}

/// Why a URL cannot be probed.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{0:?} is not of the form http://HOST[:PORT][/PATH], which a portal could answer in place of")]
pub struct ProbeUrlError(String);

impl FromStr for PortalProbe {
    type Err = ProbeUrlError;

    fn from_str(url: &str) -> Result<Self, ProbeUrlError> {
        let refuse = || ProbeUrlError(url.to_owned());
        let rest = url.strip_prefix("http://").ok_or_else(refuse)?;
        let (authority, path) = rest.find('/').map_or((rest, "/"), |at| rest.split_at(at));
        if !path.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'#') {
            return Err(refuse());
        }
        let authority = Authority::parse(authority).map_err(|_| refuse())?;
        Ok(Self { authority, target: path.to_owned() })
    }
}

/// Asks over every path: at once when it joins a network, and again from time to time.
pub(super) async fn run(state: Weak<State>, probe: PortalProbe) {
    let Some(mut changes) = state.upgrade().map(|state| state.permitted.subscribe()) else { return };
    let mut asked: Vec<(PathId, NetworkIdentity, Instant)> = Vec::new();
    loop {
        let Some(now) = state.upgrade() else { return };
        let paths: Arc<Vec<PathInfo>> = Arc::clone(&changes.borrow_and_update());
        let is_same = |path: &PathInfo, known: &(PathId, NetworkIdentity, Instant)| {
            path.id == known.0 && path.network == known.1
        };
        asked.retain(|known| paths.iter().any(|path| is_same(path, known)));
        let mut next = Instant::now() + RECHECK_OPEN;
        for path in paths.iter().filter(|path| matches!(path.state, PathState::Up | PathState::Captive)) {
            let every = if path.state == PathState::Captive { RECHECK_CAPTIVE } else { RECHECK_OPEN };
            let due = asked.iter().find(|known| is_same(path, known)).map(|known| known.2 + every);
            if due.is_some_and(|due| due > Instant::now()) {
                next = next.min(due.unwrap_or(next));
                continue;
            }
            asked.retain(|known| !is_same(path, known));
            asked.push((path.id, path.network.clone(), Instant::now()));
            next = next.min(Instant::now() + every);
            match tokio::time::timeout(TIMEOUT, probe.ask(&now, path)).await {
                Ok(Ok(status)) => now.set_portal(path, status != NO_CONTENT),
                Ok(Err(error)) => {
                    tracing::debug!(interface = path.interface, %error, "no word on captive portals");
                }
                Err(_) => tracing::debug!(interface = path.interface, "no word on captive portals in time"),
            }
        }
        drop(now);
        tokio::select! {
            changed = changes.changed() => if changed.is_err() { return },
            () = tokio::time::sleep_until(next) => {}
        }
    }
}

/// What the server itself answers (RFC 9110 section 15.3.5).
const NO_CONTENT: u16 = 204;

impl PortalProbe {
    /// The status of the answer over `path`.
    async fn ask(&self, state: &State, path: &PathInfo) -> io::Result<u16> {
        let port = self.authority.port().unwrap_or(80);
        let has_family = |remote: &SocketAddr| {
            path.addresses.iter().any(|address| Family::of(*address) == Family::of(remote.ip()))
        };
        let remote = tokio::net::lookup_host((self.authority.host(), port))
            .await?
            .find(has_family)
            .ok_or_else(|| io::Error::other("the host has no address of this path's family"))?;
        let (_, binding) = state.binding(path.id, remote)?;
        let socket = socket::tcp(&binding, remote)?;
        let mut stream = TcpSocket::from_std_stream(socket.into()).connect(remote).await?;
        let request = format!(
            "GET {} HTTP/1.1\r\nHost: {}\r\nCache-Control: no-cache\r\nConnection: close\r\n\r\n",
            self.target, self.authority
        );
        stream.write_all(request.as_bytes()).await?;
        let mut answer = Vec::new();
        stream.take(MOST_OF_ANSWER).read_to_end(&mut answer).await?;
        status(&answer).ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "the answer is not HTTP"))
    }
}

/// The status code of an HTTP/1 answer.
fn status(answer: &[u8]) -> Option<u16> {
    let line = answer.split(|&byte| byte == b'\r').next()?;
    let line = std::str::from_utf8(line).ok()?;
    let code = line.strip_prefix("HTTP/1.")?.split(' ').nth(1)?;
    code.parse().ok().filter(|code| (100..1000).contains(code))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_plain_http_url_can_be_probed() {
        let probe: PortalProbe = "http://check.example:8080/generate_204?x=1".parse().expect("of the form");
        assert_eq!(probe.authority.as_str(), "check.example:8080");
        assert_eq!(probe.target, "/generate_204?x=1");
        assert_eq!("http://check.example".parse::<PortalProbe>().expect("of the form").target, "/");
        for url in [
            "https://check.example/",
            "check.example",
            "http://",
            "http://a b/",
            "http://a/b c",
            "http://a/#b",
        ] {
            assert!(url.parse::<PortalProbe>().is_err(), "{url}");
        }
    }

    #[test]
    fn the_status_is_read_from_the_first_line_only() {
        assert_eq!(status(b"HTTP/1.1 204 No Content\r\nX: HTTP/1.1 200\r\n\r\n"), Some(204));
        assert_eq!(status(b"HTTP/1.0 302 Found\r\n"), Some(302));
        for answer in
            [&b""[..], b"SSH-2.0-x\r\n", b"HTTP/1.1\r\n", b"HTTP/1.1 99999 x\r\n", b"HTTP/1.1 \xff\r\n"]
        {
            assert_eq!(status(answer), None);
        }
    }
}
