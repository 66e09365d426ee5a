//! Bytes both ways between a client and its server.

use std::io;
use std::time::Duration;

use multiway_core::paths::PathId;
use socket2::SockRef;
use tokio::net::TcpStream;

use super::tunnel::Upstream;
use crate::flows::FlowHandle;

/// Most bytes on their way in one direction; held only while they are.
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

/// Has the connection end with a reset when it is dropped.
pub(super) fn reset(stream: &TcpStream) {
    // A socket that cannot be told any more ends by itself.
    let _ = SockRef::from(stream).set_linger(Some(Duration::ZERO));
}

/// Copies `from` to `to` until the end of stream, which it passes on.
async fn pump(from: &TcpStream, to: &TcpStream, count: impl Fn(u64)) -> io::Result<()> {
    let mut turn = 0;
    loop {
        from.readable().await?;
        // An idle flow holds no buffer.
        let mut buffer = Vec::with_capacity(BUFFER);
        loop {
            buffer.clear();
            match from.try_read_buf(&mut buffer) {
                Ok(0) => return shut_down(to),
                Ok(length) => {
                    write_all(to, &buffer).await?;
                    count(u64::try_from(length).expect("a buffer's length fits in 64 bits"));
                    end_turn(&mut turn, length).await;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
    }
}

/// Counts what was carried in this `turn`, and lets the other flows have theirs when it was enough.
///
/// Between a fast server and a fast client nothing else would ever make a flow wait.
pub(super) async fn end_turn(turn: &mut usize, carried: usize) {
    *turn += carried;
    if *turn >= TURN_BYTES {
        *turn = 0;
        tokio::task::yield_now().await;
    }
}

/// Writes all of `bytes`, waiting for room as long as it takes.
pub(super) async fn write_all(to: &TcpStream, mut bytes: &[u8]) -> io::Result<()> {
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
pub(super) fn shut_down(stream: &TcpStream) -> io::Result<()> {
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
    async fn a_reset_of_the_client_resets_the_server() {
        let (client, mut server, _task) = relayed(b"").await;
        reset(&client);
        drop(client);
        let error = server.read(&mut [0]).await.expect_err("a reset");
        assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
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
