//! One query put to a path's servers.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use hickory_proto::op::ResponseCode;
use multiway_core::paths::PathId;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

use super::message::{Envelope, Malformed, set_id};
use super::uplinks::Uplinks;

/// When each attempt begins, counted from the first. Earlier ones are still listened to, so that
/// a path slower than the steps gets its answer too.
const ATTEMPTS_AT: [Duration; 3] = [Duration::ZERO, Duration::from_millis(800), Duration::from_millis(2000)];

/// When a server that was not asked yet is asked beside the ones before it. A system's list may have
/// servers that only another path reaches, and their silence must not be waited for.
const SERVER_STAGGER: Duration = Duration::from_millis(200);

/// When the query is given up, counted from the first attempt: the wait of libc's resolver.
const GIVE_UP_AFTER: Duration = Duration::from_secs(5);

/// Largest datagram: servers send less, and whatever more is cut.
const DATAGRAM: usize = 65_535;

/// A query that no server answered.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum ExchangeError {
    #[error("no DNS server is known for it")]
    NoServers,
    #[error("its DNS servers did not answer")]
    TimedOut,
    #[error("its DNS servers could not be reached: {0}")]
    Unreachable(String),
    #[error("its DNS servers failed: {0}")]
    Failed(String),
    #[error("the query is malformed")]
    BadQuery,
}

/// Asks `servers` over `path` and returns the first response that decides the question, and which of them
/// gave it.
///
/// A server that fails gives way to the next; if all fail, the last failing response is returned.
pub(super) async fn exchange(
    uplinks: Arc<dyn Uplinks>,
    path: PathId,
    servers: Vec<SocketAddr>,
    query: &[u8],
) -> Result<(SocketAddr, Vec<u8>), ExchangeError> {
    Envelope::read(query).map_err(|Malformed| ExchangeError::BadQuery)?;
    if servers.is_empty() {
        return Err(ExchangeError::NoServers);
    }
    let started = Instant::now();
    let give_up = started + GIVE_UP_AFTER;
    let mut attempts = JoinSet::new();
    let mut begun = 0;
    let tries = ATTEMPTS_AT.len().max(servers.len());
    let mut worst = Err(ExchangeError::TimedOut);
    loop {
        if attempts.is_empty() && begun == tries {
            return worst;
        }
        let next = ATTEMPTS_AT.get(begun).map_or(give_up, |after| started + *after);
        let next = match u32::try_from(begun) {
            Ok(index) if begun < servers.len() => next.min(started + SERVER_STAGGER * index),
            _ => next,
        };
        tokio::select! {
            // The first attempt, and the next one as soon as every earlier one has failed.
            () = std::future::ready(()), if attempts.is_empty() => {
                attempts.spawn(ask(Arc::clone(&uplinks), path, servers[begun % servers.len()], query.to_vec()));
                begun += 1;
            }
            () = sleep_until(next), if begun < tries && next < give_up => {
                attempts.spawn(ask(Arc::clone(&uplinks), path, servers[begun % servers.len()], query.to_vec()));
                begun += 1;
            }
            () = sleep_until(give_up) => return worst,
            Some(attempt) = attempts.join_next() => match attempt {
                Ok(Ok(response)) => match response.code {
                    ResponseCode::NoError | ResponseCode::NXDomain => return Ok((response.server, response.bytes)),
                    _ => worst = Ok((response.server, response.bytes)),
                },
                Ok(Err(error)) if worst.is_err() => {
                    worst = Err(ExchangeError::Unreachable(error.to_string()));
                }
                Ok(Err(_)) => {}
                Err(error) => worst = Err(ExchangeError::Failed(error.to_string())),
            },
        }
    }
}

struct Response {
    server: SocketAddr,
    code: ResponseCode,
    bytes: Vec<u8>,
}

/// One attempt with one server: UDP, then TCP if the answer did not fit. It ends with its caller's patience.
async fn ask(
    uplinks: Arc<dyn Uplinks>,
    path: PathId,
    server: SocketAddr,
    mut query: Vec<u8>,
) -> io::Result<Response> {
    set_id(&mut query, rand::random());
    let asked = Envelope::read(&query).map_err(io::Error::other)?;
    let socket = uplinks.udp(path, server).await?;
    socket.send(&query).await?;
    let mut buffer = vec![0; DATAGRAM];
    let envelope = loop {
        let length = socket.recv(&mut buffer).await?;
        // Anything that is no answer to this query may be forged, and the true answer may still
        // come: RFC 5452 section 9.1.
        if let Ok(envelope) = Envelope::read(&buffer[..length])
            && envelope.answers(&asked)
        {
            buffer.truncate(length);
            break envelope;
        }
    };
    if !envelope.is_truncated {
        return Ok(Response { server, code: envelope.response_code, bytes: buffer });
    }

    let mut stream = uplinks.tcp(path, server, GIVE_UP_AFTER).await?;
    // RFC 7766 section 8: the length and the message in one segment.
    let length = u16::try_from(query.len()).map_err(io::Error::other)?;
    stream.write_all(&[&length.to_be_bytes()[..], &query].concat()).await?;
    let mut bytes = vec![0; usize::from(stream.read_u16().await?)];
    stream.read_exact(&mut bytes).await?;
    let envelope = Envelope::read(&bytes).map_err(io::Error::other)?;
    if !envelope.answers(&asked) {
        return Err(io::Error::other("the server answered another question"));
    }
    Ok(Response { server, code: envelope.response_code, bytes })
}
