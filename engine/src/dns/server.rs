//! The resolver that applications talk to.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use hickory_proto::op::{OpCode, ResponseCode};
use multiway_core::flow::names::{Outcome, Suspicion, suspicion_of};
use multiway_core::paths::{PathId, PathInfo};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::{Semaphore, mpsc};
use tokio::time::{Instant, sleep_until, timeout};

use super::exchange::ExchangeError;
use super::lookup::{DOUBT_GRACE, PATIENCE, Shared};
use super::message::{Envelope, fit_udp, localhost_answer, read_answer, refusal, set_id};
use super::resolver::Resolver;

/// How long another path's good answer waits for the preferred path's.
const PREFERENCE_GRACE: Duration = Duration::from_millis(50);

/// Queries worked on at once; each holds a socket per path.
const MAX_QUERIES: usize = 256;

/// TCP clients at once.
const MAX_TCP_CLIENTS: usize = 128;

/// Pipelined queries of one TCP client worked on at once, RFC 7766 section 6.2.1.1.
const MAX_PIPELINED: usize = 32;

/// How long a silent TCP client is kept, RFC 7766 section 6.2.3.
const TCP_IDLE: Duration = Duration::from_secs(10);

/// How good an answer is, worst first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    /// The servers failed.
    Failure,
    /// Addresses that can be no server's.
    Bogus,
    /// The name does not exist.
    NoSuchName,
    /// The name exists without what was asked for.
    Empty,
    /// A private network's addresses for a public name.
    Private,
    /// What was asked for.
    Good,
}

impl Rank {
    /// Whether an answer of this kind is worth asking paths that are otherwise spared.
    fn is_worth_more(self) -> bool {
        matches!(self, Self::Failure | Self::Bogus | Self::Private)
    }
}

impl Resolver {
    /// Answers queries on the two sockets until dropped.
    ///
    /// Their addresses are never asked by this resolver itself.
    pub async fn serve(&self, udp: UdpSocket, tcp: TcpListener) -> io::Result<()> {
        self.shared.upstreams.exclude(udp.local_addr()?);
        self.shared.upstreams.exclude(tcp.local_addr()?);
        let room = Arc::new(Semaphore::new(MAX_QUERIES));
        tokio::select! {
            failed = self.serve_udp(Arc::new(udp), &room) => failed,
            failed = self.serve_tcp(tcp, &room) => failed,
        }
    }

    async fn serve_udp(&self, socket: Arc<UdpSocket>, room: &Arc<Semaphore>) -> io::Result<()> {
        let mut buffer = vec![0; usize::from(u16::MAX)];
        loop {
            // An earlier answer's "port unreachable" surfaces here and is no fault of the socket.
            let Ok((length, client)) = socket.recv_from(&mut buffer).await else {
                tokio::task::yield_now().await;
                continue;
            };
            // A client whose query is dropped asks again.
            let Ok(permit) = Arc::clone(room).try_acquire_owned() else { continue };
            let query = buffer[..length].to_vec();
            let (resolver, socket) = (self.clone(), Arc::clone(&socket));
            tokio::spawn(async move {
                let _permit = permit;
                if let Some(response) = resolver.answer(&query).await {
                    let _ = socket.send_to(&fit_udp(&query, response), client).await;
                }
            });
        }
    }

    async fn serve_tcp(&self, listener: TcpListener, room: &Arc<Semaphore>) -> io::Result<()> {
        let clients = Arc::new(Semaphore::new(MAX_TCP_CLIENTS));
        loop {
            let permit = Arc::clone(&clients).acquire_owned().await.map_err(io::Error::other)?;
            let stream = match listener.accept().await {
                Ok((stream, _)) => stream,
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a DNS client");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                    continue;
                }
            };
            let (resolver, room) = (self.clone(), Arc::clone(room));
            tokio::spawn(async move {
                let _permit = permit;
                if let Err(error) = resolver.serve_client(stream, room).await {
                    tracing::trace!(%error, "DNS client left");
                }
            });
        }
    }

    /// Answers one client's pipelined queries, each as soon as its answer is there.
    async fn serve_client(&self, stream: TcpStream, room: Arc<Semaphore>) -> io::Result<()> {
        let (mut reader, mut writer) = stream.into_split();
        let (answers, mut to_write) = mpsc::channel::<Vec<u8>>(MAX_PIPELINED);
        let reading = async move {
            let pipeline = Arc::new(Semaphore::new(MAX_PIPELINED));
            loop {
                let Ok(length) = timeout(TCP_IDLE, reader.read_u16()).await else { break };
                let Ok(length) = length else { break };
                let mut query = vec![0; usize::from(length)];
                timeout(TCP_IDLE, reader.read_exact(&mut query)).await??;
                let slot = Arc::clone(&pipeline).acquire_owned().await.map_err(io::Error::other)?;
                let permit = Arc::clone(&room).acquire_owned().await.map_err(io::Error::other)?;
                let (resolver, answers) = (self.clone(), answers.clone());
                tokio::spawn(async move {
                    let _permits = (slot, permit);
                    if let Some(response) = resolver.answer(&query).await {
                        let _ = answers.send(response).await;
                    }
                });
            }
            // Dropping the last sender ends the writer once every answer is out.
            drop(answers);
            io::Result::Ok(())
        };
        let writing = async move {
            while let Some(response) = to_write.recv().await {
                let Ok(length) = u16::try_from(response.len()) else { continue };
                let framed = [&length.to_be_bytes()[..], &response].concat();
                timeout(TCP_IDLE, writer.write_all(&framed)).await??;
            }
            io::Result::Ok(())
        };
        tokio::try_join!(reading, writing).map(|_| ())
    }

    /// The response to one query, `None` for bytes that deserve none.
    async fn answer(&self, query: &[u8]) -> Option<Vec<u8>> {
        let Ok(asked) = Envelope::read(query) else {
            let is_query = query.get(2).is_some_and(|flags| flags & 0x80 == 0);
            return is_query.then(|| refusal(query, ResponseCode::FormErr)).flatten();
        };
        if asked.is_response {
            return None;
        }
        if asked.op_code != OpCode::Query {
            return refusal(query, ResponseCode::NotImp);
        }
        if asked.is_for_localhost() {
            return localhost_answer(query, &asked);
        }
        match self.ask_every_path(&asked, query).await {
            Some(mut response) => {
                set_id(&mut response, asked.id);
                Some(response)
            }
            None => refusal(query, ResponseCode::ServFail),
        }
    }

    /// Puts the query to every usable path and chooses among the answers.
    ///
    /// A good answer of the preferred path goes back at once, another path's after
    /// [`PREFERENCE_GRACE`]; a doubtful one waits [`DOUBT_GRACE`] for a better. Answers that come
    /// later are still remembered. Paths to be spared are asked only when the others do not answer
    /// within [`PATIENCE`], or not as they should.
    async fn ask_every_path(&self, asked: &Envelope, query: &[u8]) -> Option<Vec<u8>> {
        let paths = self.shared.paths();
        let preferred = paths.first()?.id;
        let (sender, mut answers) = mpsc::channel(paths.len());
        let ask = |paths: Vec<PathInfo>, sender: mpsc::Sender<_>| {
            for path in paths {
                let (shared, asked, query) = (Arc::clone(&self.shared), asked.clone(), query.to_vec());
                let sender = sender.clone();
                tokio::spawn(async move {
                    let answer = shared.ask_and_remember(&path, &asked, &query).await;
                    let _ = sender.send((path.id, answer)).await;
                });
            }
        };
        let (spared, first): (Vec<_>, Vec<_>) = paths.into_iter().partition(|path| self.shared.spares(path));
        let (first, spared) = if first.is_empty() { (spared, first) } else { (first, spared) };
        let mut waiting = first.len();
        let mut spared = (!spared.is_empty()).then(|| (spared, sender.clone()));
        let spare_until = Instant::now() + PATIENCE;
        ask(first, sender);

        let mut best: Option<(Rank, bool, Vec<u8>)> = None;
        let mut deadline: Option<Instant> = None;
        loop {
            let rank = best.as_ref().map_or(Rank::Failure, |(rank, _, _)| *rank);
            let is_late = Instant::now() >= spare_until;
            let is_over = is_late || waiting == 0 || rank > Rank::Failure;
            if is_over
                && rank.is_worth_more()
                && let Some((paths, sender)) = spared.take()
            {
                deadline = (rank > Rank::Failure).then(|| Instant::now() + DOUBT_GRACE);
                ask(paths, sender);
            } else if waiting == 0 {
                // What is left is not asked.
                spared = None;
            }
            let patience = async {
                match deadline {
                    Some(deadline) => sleep_until(deadline).await,
                    None => std::future::pending().await,
                }
            };
            let (path, answer): (PathId, _) = tokio::select! {
                answer = answers.recv() => match answer {
                    Some(answer) => answer,
                    None => break,
                },
                () = sleep_until(spare_until), if spared.is_some() && !is_late => continue,
                () = patience => break,
            };
            waiting = waiting.saturating_sub(1);
            let (rank, response) = match answer {
                Ok(ranked) => ranked,
                Err(error) => {
                    tracing::debug!(%path, %error, question = %asked.question, "no DNS answer");
                    continue;
                }
            };
            let is_preferred = path == preferred;
            if best.as_ref().is_none_or(|(r, p, _)| (rank, is_preferred) > (*r, *p)) {
                best = Some((rank, is_preferred, response));
            }
            let wait = match rank {
                Rank::Good if is_preferred => break,
                Rank::Good => PREFERENCE_GRACE,
                Rank::Failure => continue,
                _ => DOUBT_GRACE,
            };
            let until = Instant::now() + wait;
            deadline = Some(deadline.map_or(until, |earlier| earlier.min(until)));
        }
        best.map(|(_, _, response)| response)
    }
}

impl Shared {
    async fn ask_and_remember(
        &self,
        path: &PathInfo,
        asked: &Envelope,
        query: &[u8],
    ) -> Result<(Rank, Vec<u8>), ExchangeError> {
        let response = self.forward(path, query).await?;
        let rank = match Envelope::read(&response).map(|envelope| envelope.response_code) {
            Ok(ResponseCode::NoError) => Rank::Good,
            Ok(ResponseCode::NXDomain) => Rank::NoSuchName,
            _ => return Ok((Rank::Failure, response)),
        };
        let Some((name, family)) = asked.address_question() else {
            return Ok((rank, response));
        };
        let Ok(answer) = read_answer(&response, &name, family) else {
            return Ok((Rank::Failure, response));
        };
        let rank = match (suspicion_of(&name, &answer.outcome), &answer.outcome) {
            (Some(Suspicion::Bogus(_)), _) => Rank::Bogus,
            (Some(_), _) => Rank::Private,
            (None, Outcome::NoSuchName) => Rank::NoSuchName,
            (None, Outcome::Addresses(addresses)) if addresses.is_empty() => Rank::Empty,
            (None, Outcome::Addresses(_)) => Rank::Good,
        };
        // An open-ended chain says nothing of the name yet; the application follows it.
        if answer.continues_at.is_none() {
            self.remember(&name, family, path.id, answer.outcome, answer.ttl);
        }
        Ok((rank, response))
    }
}

#[cfg(test)]
mod tests;
