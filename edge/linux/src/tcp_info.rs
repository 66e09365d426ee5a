//! What the kernel measured of a TCP connection.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

use multiway_core::paths::TcpSample;
use multiway_core::units::{Rate, Timestamp};

/// Offsets in `struct tcp_info` (include/uapi/linux/tcp.h), which only ever grows at its end.
///
/// Offsets instead of libc's structure, which stops at `tcpi_total_retrans` on glibc.
mod offset {
    pub(super) const STATE: usize = 0;
    pub(super) const BACKOFF: usize = 4;
    pub(super) const FAST_OPEN: usize = 7;
    pub(super) const RTO: usize = 8;
    pub(super) const SND_MSS: usize = 16;
    pub(super) const UNACKED: usize = 24;
    pub(super) const LOST: usize = 32;
    pub(super) const RETRANS: usize = 36;
    pub(super) const LAST_DATA_SENT: usize = 44;
    pub(super) const LAST_DATA_RECV: usize = 52;
    pub(super) const LAST_ACK_RECV: usize = 56;
    pub(super) const RTT: usize = 68;
    pub(super) const RTTVAR: usize = 72;
    pub(super) const SND_CWND: usize = 80;
    pub(super) const TOTAL_RETRANS: usize = 100;
    pub(super) const BYTES_ACKED: usize = 120;
    pub(super) const BYTES_RECEIVED: usize = 128;
    pub(super) const SEGS_IN: usize = 140;
    pub(super) const NOTSENT_BYTES: usize = 144;
    pub(super) const MIN_RTT: usize = 148;
    pub(super) const DATA_SEGS_OUT: usize = 156;
    pub(super) const DELIVERY_RATE: usize = 160;
    pub(super) const BYTES_SENT: usize = 200;
    pub(super) const BYTES_RETRANS: usize = 208;
    pub(super) const DSACK_DUPS: usize = 216;
    pub(super) const REORD_SEEN: usize = 220;
    pub(super) const RCV_OOOPACK: usize = 224;
    /// Room for all fields of Linux 6.18 and some more.
    pub(super) const BUFFER: usize = 512;
}

/// The kernel's word for "no round trip measured yet" in `tcpi_min_rtt`.
const NO_MIN_RTT: u32 = u32::MAX;

/// Where `tcpi_fastopen_client_fail` lies in its byte, behind one other bit, and its value when the far end did not take
/// the data of the SYN (`TFO_DATA_NOT_ACKED`).
const FAST_OPEN_SHIFT: u8 = if cfg!(target_endian = "little") { 1 } else { 5 };
const FAST_OPEN_MASK: u8 = 0b11;
const SYN_DATA_NOT_TAKEN: u8 = 2;

/// Numbers of states in the kernel (include/net/tcp_states.h).
const CLOSE: u8 = 7;
const CLOSE_WAIT: u8 = 8;

/// What became of the other side of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Peer {
    /// It may still send.
    Sending,
    /// It sends no more; it may still receive.
    Ended,
    /// The connection is gone.
    Gone,
}

/// What became of the other side of a connection that this side has not ended.
pub fn peer(fd: BorrowedFd<'_>) -> io::Result<Peer> {
    let mut buffer = [0; offset::BUFFER];
    let length = read(fd, &mut buffer)?;
    Ok(match buffer[..length].get(offset::STATE) {
        Some(&CLOSE) => Peer::Gone,
        Some(&CLOSE_WAIT) => Peer::Ended,
        _ => Peer::Sending,
    })
}

/// Reads `TCP_INFO` of a connected TCP socket; `at` is the time of reading.
///
/// Fields that an older kernel does not report are zero, or `None` where the sample allows it.
pub fn sample(fd: BorrowedFd<'_>, at: Timestamp) -> io::Result<TcpSample> {
    let mut buffer = [0; offset::BUFFER];
    let length = read(fd, &mut buffer)?;
    Ok(decode(&buffer[..length], at))
}

#[expect(unsafe_code, reason = "neither std, nix nor socket2 offers TCP_INFO")]
fn read(fd: BorrowedFd<'_>, buffer: &mut [u8; offset::BUFFER]) -> io::Result<usize> {
    let mut length = offset::BUFFER as libc::socklen_t;
    // SAFETY: `buffer` is writable for `length` bytes and both outlive the call; `fd` is open while
    // it is borrowed.
    let result = unsafe {
        libc::getsockopt(
            fd.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            buffer.as_mut_ptr().cast(),
            &raw mut length,
        )
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok((length as usize).min(offset::BUFFER))
}

fn decode(info: &[u8], at: Timestamp) -> TcpSample {
    let micros = |offset| Duration::from_micros(u32_at(info, offset).unwrap_or(0).into());
    let millis = |offset| Duration::from_millis(u32_at(info, offset).unwrap_or(0).into());
    let count = |offset| u64::from(u32_at(info, offset).unwrap_or(0));
    let bytes = |offset| u64_at(info, offset).unwrap_or(0);
    let fast_open = info.get(offset::FAST_OPEN).map(|byte| byte >> FAST_OPEN_SHIFT & FAST_OPEN_MASK);
    // It is sent again behind the handshake, although nothing was lost.
    let sent_again = u64::from(fast_open == Some(SYN_DATA_NOT_TAKEN));
    TcpSample {
        at,
        smoothed_rtt: micros(offset::RTT),
        rtt_variance: micros(offset::RTTVAR),
        min_rtt: u32_at(info, offset::MIN_RTT)
            .filter(|&micros| micros != NO_MIN_RTT)
            .map(|micros| Duration::from_micros(micros.into())),
        delivery_rate: Rate::from_bytes_per_second(bytes(offset::DELIVERY_RATE)),
        segments_sent: count(offset::DATA_SEGS_OUT),
        segments_retransmitted: count(offset::TOTAL_RETRANS).saturating_sub(sent_again),
        segments_lost: count(offset::LOST),
        segments_retransmitting: count(offset::RETRANS),
        segments_unacked: count(offset::UNACKED),
        segments_received: count(offset::SEGS_IN),
        duplicates_reported: count(offset::DSACK_DUPS),
        segments_out_of_order: count(offset::RCV_OOOPACK),
        reorderings: count(offset::REORD_SEEN),
        congestion_window: count(offset::SND_CWND),
        segment_size: count(offset::SND_MSS),
        bytes_sent: bytes(offset::BYTES_SENT),
        bytes_retransmitted: bytes(offset::BYTES_RETRANS),
        bytes_unsent: count(offset::NOTSENT_BYTES),
        bytes_received: bytes(offset::BYTES_RECEIVED),
        bytes_acked: bytes(offset::BYTES_ACKED),
        retransmission_timeout: micros(offset::RTO),
        timeouts_in_row: info.get(offset::BACKOFF).copied().unwrap_or(0).into(),
        since_last_data_sent: millis(offset::LAST_DATA_SENT),
        since_last_data_received: millis(offset::LAST_DATA_RECV),
        since_last_ack_received: millis(offset::LAST_ACK_RECV),
    }
}

fn u32_at(info: &[u8], offset: usize) -> Option<u32> {
    info.get(offset..)?.first_chunk().copied().map(u32::from_ne_bytes)
}

fn u64_at(info: &[u8], offset: usize) -> Option<u64> {
    info.get(offset..)?.first_chunk().copied().map(u64::from_ne_bytes)
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn a_connection_that_carried_bytes_reports_them_and_its_round_trip() {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(listener) = TcpListener::bind(address) else {
                continue;
            };
            let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (mut server, _) = listener.accept().unwrap();
            server.write_all(&[7; 50_000]).unwrap();
            client.read_exact(&mut [0; 50_000]).unwrap();
            client.write_all(b"done").unwrap();
            server.read_exact(&mut [0; 4]).unwrap();

            let at = Timestamp::from_origin(Duration::from_secs(3));
            let received = sample(client.as_fd(), at).unwrap();
            assert_eq!(received.at, at);
            assert_eq!(received.bytes_received, 50_000);
            assert!(received.smoothed_rtt > Duration::ZERO && received.min_rtt.is_some());
            let sent = sample(server.as_fd(), at).unwrap();
            assert_eq!(sent.bytes_acked, 50_000);
            assert!(sent.segments_sent > 0 && !sent.delivery_rate.is_zero());
            assert!(sent.retransmission_timeout >= Duration::from_millis(200));
            assert!(sent.bytes_sent >= 50_000 && sent.segments_received > 0);
            assert!(sent.congestion_window > 0 && sent.segment_size > 0);
            assert!(sent.since_last_ack_received < Duration::from_secs(60));
            assert_eq!((sent.bytes_unsent, sent.timeouts_in_row), (0, 0));
        }
    }

    #[test]
    fn data_of_a_syn_that_the_far_end_does_not_take_is_no_loss() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
        if !crate::subflow::fast_open_connect(&socket) {
            return;
        }
        socket.connect(&listener.local_addr().unwrap().into()).unwrap();
        let mut client = TcpStream::from(socket);
        client.write_all(&[7; 500]).unwrap();
        listener.accept().unwrap().0.read_exact(&mut [0; 500]).unwrap();
        assert_eq!(sample(client.as_fd(), Timestamp::ZERO).unwrap().segments_retransmitted, 0);
    }

    #[test]
    fn an_ended_stream_is_told_from_a_lost_connection() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (server, _) = listener.accept().unwrap();
        assert_eq!(peer(server.as_fd()).unwrap(), Peer::Sending);
        client.shutdown(std::net::Shutdown::Write).unwrap();
        assert_eq!(peer(server.as_fd()).unwrap(), Peer::Ended);
        socket2::SockRef::from(&client).set_linger(Some(Duration::ZERO)).unwrap();
        drop(client);
        assert_eq!(peer(server.as_fd()).unwrap(), Peer::Gone);
    }

    #[test]
    fn a_socket_of_another_protocol_is_an_error() {
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        assert!(sample(socket.as_fd(), Timestamp::ZERO).is_err());
    }

    #[test]
    fn a_kernel_that_reports_less_leaves_the_rest_empty() {
        let mut info = [0; 104];
        info[offset::RTT..offset::RTT + 4].copy_from_slice(&5_000u32.to_ne_bytes());
        let sample = decode(&info, Timestamp::ZERO);
        assert_eq!(sample.smoothed_rtt, Duration::from_millis(5));
        assert_eq!((sample.min_rtt, sample.bytes_received), (None, 0));
        assert_eq!(decode(&[], Timestamp::ZERO).smoothed_rtt, Duration::ZERO);
    }
}
