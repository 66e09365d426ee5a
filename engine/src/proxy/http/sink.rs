use std::io;
use std::task::{Context, Poll, ready};

use tokio::net::TcpStream;

use crate::split::Sink;

/// A client that takes an object's bytes.
pub(super) struct ClientSink<'a>(pub(super) &'a TcpStream);

impl Sink for ClientSink<'_> {
    fn poll_take(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        loop {
            ready!(self.0.poll_write_ready(cx))?;
            match self.0.try_write(bytes) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                outcome => return Poll::Ready(outcome),
            }
        }
    }

    fn poll_flush(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}
