//! Bytes both ways between a client and its server.

use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

use multiway_core::paths::PathId;
use socket2::SockRef;
use tokio::io::Interest;
use tokio::net::TcpStream;

use super::pipes::{Lent, PIPES};
use super::tunnel::Upstream;
use crate::flows::FlowHandle;

/// Most bytes copied at once in one direction; held only while they are on their way.
const BUFFER: usize = 64 * 1024;

/// Bytes carried for one flow before the others have their turn: about half a millisecond, so that a
/// thousand fast flows wait half a second for each other. A turn's end costs as much as the copying
/// of 64 KiB.
const TURN_BYTES: usize = 1024 * 1024;

/// Carries `first`, already read from the client, and then everything, until both ends are done.
///
/// Each side's end of stream reaches the other by itself, so half-closed connections work; a reset
/// reaches it as a reset. What one side does not read stays unread on the other. There is no limit
/// on silence: it is for the ends to judge. A reset or an end in error is returned as the error.
pub async fn relay(
    client: TcpStream,
    first: Vec<u8>,
    upstream: Upstream,
    flow: &FlowHandle,
) -> io::Result<()> {
    // A peer that is gone for good must not hold the flow for ever; the kernel's usual two hours.
    let _ = SockRef::from(&*upstream).set_keepalive(true);
    // Whatever ends this flow before its ends do, to its peers it is no end in good order.
    reset(&client);
    reset(&upstream);
    let path = upstream.path();
    let both = async {
        let up = async {
            write_all(&upstream, &first).await?;
            drop(first);
            pump(&client, &upstream, |_| {}).await
        };
        let down = pump(&upstream, &client, |bytes| count(flow, path, bytes));
        tokio::try_join!(up, down).map(|_| ())
    };
    let outcome = both.await;
    if outcome.is_err() {
        reset(&client);
        upstream.abort();
    }
    outcome
}

fn count(flow: &FlowHandle, path: Option<PathId>, bytes: u64) {
    if let Some(path) = path {
        flow.add_bytes(path, bytes);
    }
}

/// Has the connection end with a reset when it is dropped, or when this process is killed, unless
/// [`shut_down`] comes before.
pub(crate) fn reset(stream: &TcpStream) {
    // A socket that cannot be told any more ends by itself.
    let _ = SockRef::from(stream).set_linger(Some(Duration::ZERO));
}

/// Carries everything from `from` to `to` until the end of stream, which it passes on.
///
/// Bytes are copied as long as they come in small pieces; a stream goes through a pipe of the kernel, which
/// takes a fraction of the processor's time.
async fn pump(from: &TcpStream, to: &TcpStream, count: impl Fn(u64)) -> io::Result<()> {
    let mut turn = 0;
    let mut is_stream = false;
    let mut can_splice = true;
    loop {
        from.readable().await?;
        let pipe = if is_stream && can_splice { PIPES.lend() } else { None };
        let burst = match pipe {
            Some(pipe) => splice_burst(from, to, pipe, &count, &mut turn).await?,
            None => copy_burst(from, to, &count, &mut turn).await?,
        };
        match burst {
            Burst::Over { is_stream: was_stream } => is_stream = was_stream,
            Burst::End => return shut_down(to),
            Burst::CannotSplice => can_splice = false,
        }
    }
}

/// How what had arrived was carried.
enum Burst {
    /// All of it was.
    Over {
        /// Whether it came faster than it can have been awaited.
        is_stream: bool,
    },
    /// It was the last.
    End,
    /// None of it: these sockets have to be copied.
    CannotSplice,
}

async fn copy_burst(
    from: &TcpStream,
    to: &TcpStream,
    count: &impl Fn(u64),
    turn: &mut usize,
) -> io::Result<Burst> {
    // An idle flow holds no buffer.
    let mut buffer = Vec::with_capacity(BUFFER);
    loop {
        buffer.clear();
        match from.try_read_buf(&mut buffer) {
            Ok(0) => return Ok(Burst::End),
            Ok(length) => {
                write_all(to, &buffer).await?;
                count(as_u64(length));
                end_turn(turn, length).await;
                if length == BUFFER {
                    return Ok(Burst::Over { is_stream: true });
                }
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                return Ok(Burst::Over { is_stream: false });
            }
            Err(error) => return Err(error),
        }
    }
}

async fn splice_burst(
    from: &TcpStream,
    to: &TcpStream,
    mut pipe: Lent,
    count: &impl Fn(u64),
    turn: &mut usize,
) -> io::Result<Burst> {
    let mut is_stream = false;
    loop {
        match from.try_io(Interest::READABLE, || pipe.fill(from.as_fd())) {
            Ok(0) => return Ok(Burst::End),
            Ok(length) => {
                is_stream |= length >= BUFFER;
                while pipe.held() > 0 {
                    match to.try_io(Interest::WRITABLE, || pipe.drain(to.as_fd())) {
                        Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                        Ok(_) => {}
                        Err(error) if error.kind() == io::ErrorKind::WouldBlock => to.writable().await?,
                        Err(error) => return Err(error),
                    }
                }
                count(as_u64(length));
                end_turn(turn, length).await;
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(Burst::Over { is_stream }),
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => return Ok(Burst::CannotSplice),
            Err(error) => return Err(error),
        }
    }
}

fn as_u64(length: usize) -> u64 {
    u64::try_from(length).expect("a buffer's length fits in 64 bits")
}

/// Counts what was carried in this `turn`, and lets the other flows have theirs when it was enough.
///
/// Between a fast server and a fast client nothing else would ever make a flow wait.
pub(crate) async fn end_turn(turn: &mut usize, carried: usize) {
    *turn += carried;
    if *turn >= TURN_BYTES {
        *turn = 0;
        tokio::task::yield_now().await;
    }
}

/// Writes all of `bytes`, waiting for room as long as it takes.
pub(crate) async fn write_all(to: &TcpStream, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match to.try_write(bytes) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(length) => bytes = &bytes[length..],
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => to.writable().await?,
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Tells the peer that no more comes, in good order even when the stream was to be reset.
pub(crate) fn shut_down(stream: &TcpStream) -> io::Result<()> {
    let _ = SockRef::from(stream).set_linger(None);
    match SockRef::from(stream).shutdown(std::net::Shutdown::Write) {
        // The peer is gone already; reading finds out how.
        Err(error) if error.kind() == io::ErrorKind::NotConnected => Ok(()),
        result => result,
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;
    use crate::flows::FlowTable;

    async fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("bound");
        let (near, far) = tokio::join!(TcpStream::connect(address), listener.accept());
        (near.expect("connected"), far.expect("accepted").0)
    }

    /// A client's and a server's end with a relay between them.
    async fn relayed(first: &[u8]) -> (TcpStream, TcpStream, tokio::task::JoinHandle<io::Result<()>>) {
        let (client, client_far) = pair().await;
        let (server_near, server) = pair().await;
        let first = first.to_vec();
        let flow = FlowTable::default().open(None, "test");
        let task =
            tokio::spawn(async move { relay(client_far, first, Upstream::Local(server_near), &flow).await });
        (client, server, task)
    }

    #[tokio::test]
    async fn a_half_closed_client_still_gets_its_answer() {
        let (mut client, mut server, task) = relayed(b"early ").await;
        client.write_all(b"request").await.expect("written");
        client.shutdown().await.expect("half-closed");
        let mut request = String::new();
        server.read_to_string(&mut request).await.expect("the whole request");
        assert_eq!(request, "early request");
        server.write_all(b"answer").await.expect("written");
        drop(server);
        let mut answer = String::new();
        client.read_to_string(&mut answer).await.expect("the whole answer");
        assert_eq!(answer, "answer");
        task.await.expect("no panic").expect("a regular end");
    }

    #[tokio::test]
    async fn a_reset_of_the_server_resets_the_client() {
        let (mut client, server, task) = relayed(b"").await;
        reset(&server);
        drop(server);
        let error = client.read(&mut [0]).await.expect_err("a reset");
        assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
        assert!(task.await.expect("no panic").is_err());
    }

    #[tokio::test]
    async fn a_flow_that_is_given_up_is_reset_for_both() {
        let (mut client, mut server, task) = relayed(b"").await;
        server.write_all(b"half an ans").await.expect("written");
        client.read_exact(&mut [0; 11]).await.expect("what came");
        task.abort();
        for end in [&mut client, &mut server] {
            let error = end.read(&mut [0]).await.expect_err("a reset");
            assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
        }
    }

    #[tokio::test]
    async fn a_reset_of_the_client_resets_the_server() {
        let (client, mut server, _task) = relayed(b"").await;
        reset(&client);
        drop(client);
        let error = server.read(&mut [0]).await.expect_err("a reset");
        assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
    }

    #[tokio::test]
    async fn a_stream_arrives_whole_while_the_other_direction_chatters() {
        const WORDS: usize = 4 << 20;
        let (mut client, mut server, task) = relayed(b"").await;
        let sending = tokio::spawn(async move {
            for word in (0..WORDS).step_by(64 << 10) {
                let block: Vec<u8> =
                    (word..word + (64 << 10)).flat_map(|w| (w as u32).to_le_bytes()).collect();
                server.write_all(&block).await.expect("written");
                assert_eq!(server.read_u8().await.expect("an answer"), 7);
            }
        });
        let mut block = vec![0; 256 << 10];
        let mut word = 0_u32;
        loop {
            match client.read_exact(&mut block).await {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => break,
                Err(error) => panic!("{error}"),
            }
            for four in block.chunks_exact(4) {
                assert_eq!(four, word.to_le_bytes());
                word += 1;
            }
            client.write_u8(7).await.expect("written");
        }
        sending.await.expect("all was sent and answered");
        assert_eq!(word as usize, WORDS);
        drop(client);
        let _ = task.await.expect("no panic");
    }

    #[tokio::test]
    async fn a_client_that_does_not_read_stops_the_server() {
        let (mut client, server, _task) = relayed(b"").await;
        let mut sent = 0_usize;
        // Kernel buffers of two connections, and one of the relay, are all that can fill.
        while tokio::time::timeout(Duration::from_millis(300), server.writable()).await.is_ok() {
            match server.try_write(&[7; 16 * 1024]) {
                Ok(length) => sent += length,
                Err(error) => assert_eq!(error.kind(), io::ErrorKind::WouldBlock),
            }
            assert!(sent < 64 << 20, "nothing holds the server back");
        }
        drop(server);
        let mut received = 0;
        let mut buffer = vec![0; 64 * 1024];
        loop {
            match client.read(&mut buffer).await.expect("readable") {
                0 => break,
                length => received += length,
            }
        }
        assert_eq!(received, sent);
    }
}
