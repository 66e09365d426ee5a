//! Bytes from one socket to another that never leave the kernel.

use std::io::{self, PipeReader, PipeWriter};
use std::os::fd::BorrowedFd;

use nix::fcntl::{FcntlArg, SpliceFFlags, fcntl, splice};

/// The kernel's smallest unit of a pipe, and what it gives to those who asked for too many.
const LEAST_ROOM: usize = 4096;

/// A pipe through which bytes go from socket to socket without being copied (splice(2)).
#[derive(Debug)]
pub struct SplicePipe {
    reader: PipeReader,
    writer: PipeWriter,
    room: usize,
    held: usize,
}

impl SplicePipe {
    /// A pipe with `room` bytes, or as many as the kernel allows.
    pub fn new(room: usize) -> io::Result<Self> {
        let (reader, writer) = io::pipe()?;
        let wanted = i32::try_from(room).map_err(|_| io::ErrorKind::InvalidInput)?;
        // Beyond a limit of its own (/proc/sys/fs/pipe-user-pages-soft) a user gets no larger ones.
        let given = fcntl(&writer, FcntlArg::F_SETPIPE_SZ(wanted))
            .or_else(|_| fcntl(&writer, FcntlArg::F_GETPIPE_SZ));
        let room = given.ok().and_then(|given| usize::try_from(given).ok()).unwrap_or(LEAST_ROOM);
        Ok(Self { reader, writer, room, held: 0 })
    }

    /// Bytes that are in it.
    pub fn held(&self) -> usize {
        self.held
    }

    /// Takes what has arrived at `socket` into the empty pipe: how many bytes, none at the end of the stream.
    ///
    /// Fails with `WouldBlock` when nothing has arrived.
    pub fn fill(&mut self, socket: BorrowedFd<'_>) -> io::Result<usize> {
        // In a full pipe `WouldBlock` would have another meaning.
        if self.held > 0 {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        self.held = splice(socket, None, &self.writer, None, self.room, flags())?;
        Ok(self.held)
    }

    /// Hands on what is held as far as `socket` takes it: how many bytes.
    ///
    /// Fails with `WouldBlock` when it takes none.
    pub fn drain(&mut self, socket: BorrowedFd<'_>) -> io::Result<usize> {
        let drained = splice(&self.reader, None, socket, None, self.held, flags())?;
        self.held -= drained;
        Ok(drained)
    }
}

fn flags() -> SpliceFFlags {
    SpliceFFlags::SPLICE_F_NONBLOCK | SpliceFFlags::SPLICE_F_MOVE
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{Shutdown, TcpListener, TcpStream};
    use std::os::fd::AsFd;

    use super::*;

    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (near, listener.accept().unwrap().0)
    }

    #[test]
    fn bytes_go_from_socket_to_socket() {
        let ((mut source, from), (to, mut sink)) = (pair(), pair());
        from.set_nonblocking(true).unwrap();
        let mut pipe = SplicePipe::new(1 << 20).unwrap();
        assert_eq!(pipe.fill(from.as_fd()).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        source.write_all(b"through the kernel").unwrap();
        from.set_nonblocking(false).unwrap();
        assert_eq!(pipe.fill(from.as_fd()).unwrap(), 18);
        assert_eq!(pipe.fill(from.as_fd()).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        assert_eq!(pipe.drain(to.as_fd()).unwrap(), 18);
        assert_eq!(pipe.held(), 0);
        source.shutdown(Shutdown::Write).unwrap();
        assert_eq!(pipe.fill(from.as_fd()).unwrap(), 0, "the end of the stream");
        drop(to);
        let mut got = String::new();
        sink.read_to_string(&mut got).unwrap();
        assert_eq!(got, "through the kernel");
    }

    #[test]
    fn a_socket_that_takes_nothing_leaves_the_bytes_in_the_pipe() {
        let ((mut source, from), (to, _sink)) = (pair(), pair());
        to.set_nonblocking(true).unwrap();
        let fed = std::thread::spawn(move || while source.write_all(&[7; 65536]).is_ok() {});
        let mut pipe = SplicePipe::new(1 << 20).unwrap();
        loop {
            if pipe.held() == 0 {
                pipe.fill(from.as_fd()).unwrap();
            }
            if let Err(error) = pipe.drain(to.as_fd()) {
                assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
                break;
            }
        }
        assert!(pipe.held() > 0);
        drop((from, pipe));
        fed.join().unwrap();
    }
}
