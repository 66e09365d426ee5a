//! Takes bytes out of a connection, as many at once as there are, in no more memory than they need.

use std::cell::RefCell;
use std::future::Future;
use std::io;
use std::task::{Context, Poll};

use bytes::{BufMut, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt};

/// Most bytes read at once. A fast connection has several segments of 64 KiB waiting; taking them
/// together halves the processor time of those taken one by one, and more gains nothing.
const LARGEST_READ: usize = 256 * 1024;

/// Least limit of a read: a head and the first window of a connection (RFC 6928) fit in.
const LEAST_READ: usize = 16 * 1024;

/// A block at least this full is handed on as it is; what is shorter is copied out of it.
const FULL_BLOCK: usize = LARGEST_READ / 4 * 3;

thread_local! {
    /// Where bytes arrive. A connection that waits has no buffer of its own, and a short read does not
    /// keep a large block from being freed: with a thousand slow connections that is most of the memory.
    static BLOCK: RefCell<BytesMut> = RefCell::new(BytesMut::new());
}

/// What a read brought.
#[derive(Debug)]
pub(super) struct Arrivals {
    /// How many bytes; none at the end of the stream.
    pub(super) bytes: usize,
    /// What the connection failed with after them.
    pub(super) error: Option<io::Error>,
}

/// Most bytes to read at once when `budget` may be taken: a part of it, since a block is kept as long as any
/// of its bytes.
pub(super) fn read_limit(budget: u64) -> usize {
    usize::try_from(budget / 4).unwrap_or(LARGEST_READ).clamp(LEAST_READ, LARGEST_READ)
}

/// Appends what there is to `incoming`, at most `limit` bytes.
pub(super) fn poll_read(
    stream: &mut (impl AsyncRead + Unpin),
    limit: usize,
    incoming: &mut BytesMut,
    cx: &mut Context<'_>,
) -> Poll<io::Result<Arrivals>> {
    BLOCK.with_borrow_mut(|block| {
        block.clear();
        block.reserve(LARGEST_READ);
        let mut error = None;
        // TLS gives one record at a time.
        while block.len() < limit {
            let left = limit - block.len();
            let mut room = (&mut *block).limit(left);
            let reading = stream.read_buf(&mut room);
            tokio::pin!(reading);
            match reading.poll(cx) {
                Poll::Ready(Ok(0)) => break,
                Poll::Ready(Ok(_)) => {}
                Poll::Ready(Err(failure)) if block.is_empty() => return Poll::Ready(Err(failure)),
                Poll::Ready(Err(failure)) => {
                    error = Some(failure);
                    break;
                }
                Poll::Pending if block.is_empty() => return Poll::Pending,
                Poll::Pending => break,
            }
        }
        let bytes = block.len();
        if !incoming.is_empty() {
            incoming.extend_from_slice(block);
        } else if bytes >= FULL_BLOCK {
            *incoming = block.split();
        } else {
            *incoming = BytesMut::from(&block[..]);
        }
        Poll::Ready(Ok(Arrivals { bytes, error }))
    })
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use tokio::io::AsyncWriteExt;

    use super::*;

    async fn read(stream: &mut (impl AsyncRead + Unpin), limit: usize, incoming: &mut BytesMut) -> Arrivals {
        poll_fn(|cx| poll_read(stream, limit, incoming, cx)).await.expect("no failure")
    }

    #[tokio::test]
    async fn short_reads_take_no_more_memory_than_they_bring() {
        let (mut near, mut far) = tokio::io::duplex(LARGEST_READ);
        let mut incoming = BytesMut::new();
        far.write_all(b"short").await.expect("room");
        assert_eq!(read(&mut near, LARGEST_READ, &mut incoming).await.bytes, 5);
        assert!(incoming.capacity() < 64, "{}", incoming.capacity());
        far.write_all(b" and more").await.expect("room");
        read(&mut near, LARGEST_READ, &mut incoming).await;
        assert_eq!(&incoming[..], b"short and more");
        drop(far);
        assert_eq!(read(&mut near, LARGEST_READ, &mut incoming).await.bytes, 0);
    }

    #[tokio::test]
    async fn a_read_keeps_to_its_limit_and_a_full_block_is_handed_on() {
        let (mut near, mut far) = tokio::io::duplex(2 * LARGEST_READ);
        let sent: Vec<u8> = (0..2 * LARGEST_READ).map(|at| (at / 7) as u8).collect();
        far.write_all(&sent).await.expect("room");
        let mut incoming = BytesMut::new();
        assert_eq!(read(&mut near, LEAST_READ, &mut incoming).await.bytes, LEAST_READ);
        let mut got = std::mem::take(&mut incoming).to_vec();
        while got.len() < sent.len() {
            read(&mut near, LARGEST_READ, &mut incoming).await;
            got.extend(std::mem::take(&mut incoming));
        }
        assert_eq!(got, sent);
    }

    #[test]
    fn a_small_budget_is_not_read_in_large_blocks() {
        assert_eq!(read_limit(0), LEAST_READ);
        assert_eq!(read_limit(256 * 1024), 64 * 1024);
        assert_eq!(read_limit(u64::MAX), LARGEST_READ);
    }
}
