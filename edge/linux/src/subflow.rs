//! What a subflow asks of its TCP connection: data in the SYN, a short queue of unsent bytes, and an end
//! when nobody answers.

use std::io::{self, IoSlice};
use std::mem::size_of;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::time::Duration;

use socket2::SockRef;

/// Most connections on a listener that carried data in their SYN and are not accepted yet. Each holds
/// what came with it.
const FAST_OPEN_QUEUE: libc::c_int = 1024;

/// Has the next connect wait for the first write and send it in the SYN (TCP Fast Open, RFC 7413). False
/// where the kernel cannot.
///
/// Without a cookie, which there is none of on a path that is used for the first time: RFC 7413 section
/// 4.1.2 has it against spoofed senders, and what a subflow sends in its SYN is authenticated by itself.
/// Kernels before 4.15 cannot leave it out, and send the data behind the handshake the first time. A SYN
/// that is not answered is sent again without data.
pub fn fast_open_connect(socket: &impl AsFd) -> bool {
    let fd = socket.as_fd();
    let is_open =
        nix::sys::socket::setsockopt(&fd, nix::sys::socket::sockopt::TcpFastOpenConnect, &true).is_ok();
    if is_open {
        let _ = set(fd, libc::TCP_FASTOPEN_NO_COOKIE, 1);
    }
    is_open
}

/// Accepts data in SYNs on a listening socket, with and without a cookie. The kernel does so only where
/// bit 1 (server) of the setting `net.ipv4.tcp_fastopen` is set, see [`fast_open_is_served`], and for as
/// many connections at a time whose handshake is not over as the queue takes: a flood of spoofed SYNs
/// fills it, and the others then connect without.
pub fn fast_open_listen(socket: &impl AsFd) -> io::Result<()> {
    let fd = socket.as_fd();
    set(fd, libc::TCP_FASTOPEN, FAST_OPEN_QUEUE)?;
    // Kernels before 4.15 insist on the cookie.
    let _ = set(fd, libc::TCP_FASTOPEN_NO_COOKIE, 1);
    Ok(())
}

/// Whether the kernel lets listeners accept data in SYNs.
pub fn fast_open_is_served() -> bool {
    const SERVER: u32 = 0x2;
    let setting = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_fastopen");
    setting.is_ok_and(|text| text.trim().parse::<u32>().is_ok_and(|bits| bits & SERVER != 0))
}

/// The socket is writable only while fewer than `bytes` wait unsent (`TCP_NOTSENT_LOWAT`), so that what
/// is to be sent next is chosen late.
pub fn limit_unsent(socket: &impl AsFd, bytes: u32) -> io::Result<()> {
    SockRef::from(&socket.as_fd()).set_tcp_notsent_lowat(bytes)
}

/// Sends bytes to which later ones are not joined (`MSG_EOR`). The kernel holds to [`limit_unsent`] only where it
/// would begin another segment (GSO), and joins what comes to the last one until that has 64 KiB: over a slow
/// path that is a second.
pub fn send_apart(socket: &impl AsFd, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
    SockRef::from(&socket.as_fd()).send_vectored_with_flags(pieces, libc::MSG_EOR)
}

/// The connection ends when sent data is not acknowledged for this long (`TCP_USER_TIMEOUT`, RFC 5482).
pub fn limit_silence(socket: &impl AsFd, timeout: Duration) -> io::Result<()> {
    SockRef::from(&socket.as_fd()).set_tcp_user_timeout(Some(timeout))
}

/// Bytes in the send queue: unsent ones and those not acknowledged yet (`SIOCOUTQ`).
#[expect(unsafe_code, reason = "neither std, nix nor socket2 offers SIOCOUTQ")]
pub fn queued(socket: &impl AsFd) -> io::Result<usize> {
    let mut bytes: libc::c_int = 0;
    // SAFETY: the request writes one `int` to where its argument points, which outlives the call; the
    // descriptor is open while it is borrowed.
    let result = unsafe { libc::ioctl(socket.as_fd().as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(usize::try_from(bytes).unwrap_or(0))
}

#[expect(unsafe_code, reason = "neither std, nix nor socket2 offers TCP_FASTOPEN")]
fn set(fd: BorrowedFd<'_>, option: libc::c_int, value: libc::c_int) -> io::Result<()> {
    // SAFETY: `value` is readable for its size during the call; the descriptor is open while it is borrowed.
    let result = unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            libc::IPPROTO_TCP,
            option,
            (&raw const value).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
    if result != 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{Ipv4Addr, TcpListener};

    use socket2::{Domain, Socket, Type};

    use super::*;

    #[test]
    fn a_connection_with_every_option_carries_bytes() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        fast_open_listen(&listener).unwrap();
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        assert!(fast_open_connect(&socket));
        limit_unsent(&socket, 16 * 1024).unwrap();
        limit_silence(&socket, Duration::from_secs(30)).unwrap();
        socket.connect(&listener.local_addr().unwrap().into()).unwrap();
        (&socket).write_all(b"hello").unwrap();
        let (mut accepted, _) = listener.accept().unwrap();
        let mut heard = [0; 5];
        accepted.read_exact(&mut heard).unwrap();
        assert_eq!(&heard, b"hello");
    }

    #[test]
    fn what_nobody_reads_stays_queued() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let mut client = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let _accepted = listener.accept().unwrap();
        client.set_nonblocking(true).unwrap();
        assert_eq!(queued(&client).unwrap(), 0);
        while client.write(&[0; 64 * 1024]).is_ok() {}
        assert!(queued(&client).unwrap() > 0);
    }

    #[test]
    fn what_is_no_tcp_socket_is_an_error() {
        let socket = std::net::UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        assert!(fast_open_listen(&socket).is_err());
        assert!(!fast_open_connect(&socket));
        assert!(limit_silence(&socket, Duration::from_secs(1)).is_err());
    }
}
