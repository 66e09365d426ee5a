//! One TCP connection with TLS 1.3 on it, driven by hand: what is sent next is chosen as late as possible,
//! so nothing may wait in a buffer that could still be chosen otherwise.

use std::io::{self, BufRead, IoSlice, Read, Write};
use std::net::Shutdown;
use std::ops::Deref;
use std::sync::Arc;

use bytes::{Buf, Bytes, BytesMut};
use multiway_edge::subflow::send_apart;
use rustls::{ClientConfig, ClientConnection, Connection, ServerConfig, ServerConnection};
use rustls_pki_types::ServerName;
use socket2::SockRef;
use tokio::io::Interest;
use tokio::net::TcpStream;

use super::tls;
use crate::paths::TrackedStream;

/// Read from a socket at once: rustls asks for 4 KiB at a time, a quarter of a record.
const READ_AHEAD: usize = 64 * 1024;

/// What encryption adds to a record's plaintext: its header, its type, and the tag (RFC 8446 section 5.2).
const RECORD_OVERHEAD: usize = 5 + 1 + 16;

/// A TCP connection of either side.
#[derive(Debug)]
pub(crate) enum Transport {
    /// Over a path of this device.
    Path(TrackedStream),
    /// From a device.
    Accepted(TcpStream),
}

impl Deref for Transport {
    type Target = TcpStream;

    fn deref(&self) -> &TcpStream {
        match self {
            Self::Path(stream) => stream,
            Self::Accepted(stream) => stream,
        }
    }
}

/// What reading finds.
#[derive(Debug)]
pub(crate) enum Received {
    /// Plaintext; none when only the protocol itself went on.
    Bytes(Bytes),
    /// Nothing now.
    Nothing,
    /// The other end sends no more.
    End,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct TlsStream {
    tls: Connection,
    transport: Arc<Transport>,
    early: Option<Early>,
    /// Whether what is sent at once stays apart from the rest.
    sends_apart: bool,
    /// Read and not yet decrypted; it holds memory only while bytes come in.
    inbox: BytesMut,
}

/// What a device wrote before the handshake was over.
#[derive(Debug, Default)]
struct Early {
    /// Sent, and to be sent again if the relay does not take it.
    sent: Vec<u8>,
    /// How much that was encrypted.
    encrypted: usize,
    /// For what is sent early there is a limit; this goes behind the handshake.
    held: Vec<u8>,
}

impl Early {
    /// How many bytes the next record takes, when the ticket still allows `left`.
    fn room(&self, left: usize) -> usize {
        if !self.held.is_empty() {
            return 0;
        }
        tls::EARLY_DATA.saturating_sub(self.encrypted + RECORD_OVERHEAD).min(left)
    }
}

impl TlsStream {
    /// The device's end; nothing is sent before [`Self::flush`].
    pub(crate) fn connect(
        config: Arc<ClientConfig>,
        relay: ServerName<'static>,
        transport: Transport,
    ) -> io::Result<Self> {
        let mut tls = ClientConnection::new(config, relay).map_err(io::Error::other)?;
        tls.set_buffer_limit(None);
        let early = tls.early_data().map(|_| Early::default());
        Ok(Self {
            tls: tls.into(),
            transport: Arc::new(transport),
            early,
            sends_apart: true,
            inbox: BytesMut::new(),
        })
    }

    /// The relay's end.
    pub(crate) fn accept(config: Arc<ServerConfig>, transport: Transport) -> io::Result<Self> {
        let mut tls = ServerConnection::new(config).map_err(io::Error::other)?;
        tls.set_buffer_limit(None);
        Ok(Self {
            tls: tls.into(),
            transport: Arc::new(transport),
            early: None,
            sends_apart: true,
            inbox: BytesMut::new(),
        })
    }

    /// The connection below.
    pub(crate) fn transport(&self) -> &Arc<Transport> {
        &self.transport
    }

    /// True until both ends have proved who they are.
    pub(crate) fn is_handshaking(&self) -> bool {
        self.tls.is_handshaking()
    }

    /// How many bytes [`Self::write`] takes now, when it is asked for `wanted`.
    pub(crate) fn room(&mut self, wanted: usize) -> usize {
        match &mut self.tls {
            Connection::Client(client) if client.is_handshaking() => {
                let left = client.early_data().map_or(0, |early| early.bytes_left());
                self.early.as_ref().map_or(0, |early| early.room(left)).min(wanted)
            }
            _ => wanted,
        }
    }

    /// Encrypts bytes to be flushed. Before the handshake is over they go out as early data if there is
    /// [`Self::room`], and wait for its end otherwise.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        if let (Connection::Client(client), Some(early)) = (&mut self.tls, &mut self.early) {
            match client.early_data() {
                Some(mut writer) if early.room(writer.bytes_left()) >= bytes.len() => {
                    writer.write_all(bytes)?;
                    early.sent.extend_from_slice(bytes);
                    early.encrypted += bytes.len() + RECORD_OVERHEAD;
                }
                _ => early.held.extend_from_slice(bytes),
            }
            return Ok(());
        }
        self.tls.writer().write_all(bytes)
    }

    /// Holds the kernel strictly to its limit of unsent bytes, or lets it join what is sent: that costs less.
    pub(crate) fn send_apart(&mut self, sends_apart: bool) {
        self.sends_apart = sends_apart;
    }

    /// Whether something is encrypted and not sent.
    pub(crate) fn is_pending(&self) -> bool {
        self.tls.wants_write()
    }

    /// Sends what the socket takes; true when nothing is left.
    pub(crate) fn flush(&mut self) -> io::Result<bool> {
        while self.tls.wants_write() {
            let mut socket = Socket { socket: &self.transport, sends_apart: self.sends_apart };
            match self.tls.write_tls(&mut socket) {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    /// Reads what there is, about one record.
    pub(crate) fn read(&mut self) -> io::Result<Received> {
        match self.tls.read_tls(&mut Source { socket: &self.transport, inbox: &mut self.inbox }) {
            Ok(0) => return Ok(Received::End),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(Received::Nothing),
            Err(error) => return Err(error),
        }
        let state = match self.tls.process_new_packets() {
            Ok(state) => state,
            Err(error) => {
                // The other end is told why, if it still listens.
                let _ = self.flush();
                return Err(io::Error::new(io::ErrorKind::InvalidData, error));
            }
        };
        let mut plain = BytesMut::new();
        if let Connection::Server(server) = &mut self.tls
            && let Some(mut early) = server.early_data()
        {
            let mut taken = Vec::new();
            // What came so far; its end is not that of the stream.
            let _ = early.read_to_end(&mut taken);
            plain.extend_from_slice(&taken);
        }
        plain.reserve(state.plaintext_bytes_to_read());
        let mut reader = self.tls.reader();
        loop {
            let chunk = match reader.fill_buf() {
                Ok(chunk) => chunk,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                // An end without a farewell; every stream has an end of its own.
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => break,
                Err(error) => return Err(error),
            };
            if chunk.is_empty() {
                break;
            }
            plain.extend_from_slice(chunk);
            let length = chunk.len();
            reader.consume(length);
        }
        if plain.is_empty() && state.peer_has_closed() {
            return Ok(Received::End);
        }
        self.repeat_early_data()?;
        Ok(Received::Bytes(plain.freeze()))
    }

    /// Goes on until both ends have proved who they are. No plaintext may come before.
    pub(crate) async fn handshake(&mut self) -> io::Result<()> {
        while self.is_handshaking() {
            let is_sent = self.flush()?;
            match self.read()? {
                Received::Bytes(_) => continue,
                Received::Nothing => self.ready(!is_sent).await?,
                Received::End => return Err(io::ErrorKind::UnexpectedEof.into()),
            }
        }
        Ok(())
    }

    /// Says farewell; what was written before still goes out.
    pub(crate) fn close(&mut self) {
        self.tls.send_close_notify();
    }

    /// Sends no more, and throws away what comes until the other end does likewise.
    pub(crate) async fn finish(&self) -> io::Result<()> {
        let socket: &TcpStream = &self.transport;
        SockRef::from(socket).shutdown(Shutdown::Write)?;
        let mut rest = vec![0; READ_AHEAD];
        loop {
            socket.readable().await?;
            match socket.try_read(&mut rest) {
                Ok(0) => return Ok(()),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Waits until the socket may have changed: for reading always, for writing if `wants_room`.
    pub(crate) async fn ready(&self, wants_room: bool) -> io::Result<()> {
        if !self.inbox.is_empty() {
            return Ok(());
        }
        let interest = if wants_room { Interest::READABLE | Interest::WRITABLE } else { Interest::READABLE };
        self.transport.ready(interest).await.map(drop)
    }

    /// Waits until the socket may take more. Whoever does not read waits here: bytes that lie there unread
    /// would end [`Self::ready`] at once, time after time, and nothing else had its turn.
    pub(crate) async fn ready_for_writing(&self) -> io::Result<()> {
        self.transport.ready(Interest::WRITABLE).await.map(drop)
    }

    /// What the other end did not take as early data is sent again behind the handshake.
    fn repeat_early_data(&mut self) -> io::Result<()> {
        let Connection::Client(client) = &mut self.tls else { return Ok(()) };
        if client.is_handshaking() {
            return Ok(());
        }
        let Some(early) = self.early.take() else { return Ok(()) };
        if !client.is_early_data_accepted() {
            client.writer().write_all(&early.sent)?;
        }
        client.writer().write_all(&early.held)
    }
}

/// A socket to read from, as rustls wants to see it.
struct Source<'a> {
    socket: &'a TcpStream,
    inbox: &'a mut BytesMut,
}

impl Read for Source<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.inbox.is_empty() {
            self.inbox.reserve(READ_AHEAD);
            match self.socket.try_read_buf(self.inbox) {
                Ok(_) => {}
                Err(error) => {
                    *self.inbox = BytesMut::new();
                    return Err(error);
                }
            }
        }
        let length = buffer.len().min(self.inbox.len());
        self.inbox.copy_to_slice(&mut buffer[..length]);
        Ok(length)
    }
}

/// A socket to write to, likewise.
struct Socket<'a> {
    socket: &'a TcpStream,
    sends_apart: bool,
}

impl Write for Socket<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(bytes)])
    }

    fn write_vectored(&mut self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        if self.sends_apart {
            return self.socket.try_io(Interest::WRITABLE, || send_apart(self.socket, pieces));
        }
        self.socket.try_write_vectored(pieces)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::net::Ipv4Addr;
    use std::time::Duration;

    use rcgen::PublicKeyData;
    use rustls_pki_types::PrivatePkcs8KeyDer;
    use tokio::net::TcpListener;
    use tokio::time::timeout;

    use super::*;
    use crate::bond::invite::Pin;

    /// What takes longer has stalled.
    const SOON: Duration = Duration::from_secs(10);

    /// A relay as it starts: with its old key, and no ticket that it gave before.
    fn start_relay(identity: &rcgen::CertifiedKey<rcgen::KeyPair>) -> Arc<ServerConfig> {
        let key = PrivatePkcs8KeyDer::from(identity.signing_key.serialize_der());
        tls::relay(vec![identity.cert.der().clone()], key.into()).expect("its own certificate")
    }

    /// Both ends of a new connection that do not know each other yet.
    async fn connect(device: &Arc<ClientConfig>, relay: &Arc<ServerConfig>) -> (TlsStream, TlsStream) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("loopback");
        let address = listener.local_addr().expect("it is bound");
        let (connection, accepted) = tokio::join!(TcpStream::connect(address), listener.accept());
        let name = ServerName::IpAddress(Ipv4Addr::LOCALHOST.into());
        let connection = Transport::Accepted(connection.expect("it listens"));
        let accepted = Transport::Accepted(accepted.expect("one came").0);
        (
            TlsStream::connect(Arc::clone(device), name, connection).expect("a device's end"),
            TlsStream::accept(Arc::clone(relay), accepted).expect("a relay's end"),
        )
    }

    /// Device's and relay's end of a connection, behind the handshake.
    pub(in crate::bond) async fn connected() -> (TlsStream, TlsStream) {
        let identity = rcgen::generate_simple_self_signed(vec!["relay".to_owned()]).expect("made");
        let device = tls::device(Pin::of(&identity.signing_key.subject_public_key_info())).expect("a device");
        let (mut here, mut there) = connect(&device, &start_relay(&identity)).await;
        let ours = async { here.handshake().await.and_then(|()| here.flush()) };
        let (ours, theirs) = tokio::join!(ours, there.handshake());
        assert!(ours.and(theirs).is_ok());
        (here, there)
    }

    async fn read(stream: &mut TlsStream, length: usize) -> io::Result<Vec<u8>> {
        let mut found = Vec::new();
        while found.len() < length {
            let is_sent = stream.flush()?;
            match stream.read()? {
                Received::Bytes(bytes) => found.extend_from_slice(&bytes),
                Received::Nothing => stream.ready(!is_sent).await?,
                Received::End => return Err(io::ErrorKind::UnexpectedEof.into()),
            }
        }
        Ok(found)
    }

    #[tokio::test]
    async fn a_relay_that_takes_no_early_data_gets_it_behind_the_handshake_however_much_there_is() {
        let identity = rcgen::generate_simple_self_signed(vec!["relay".to_owned()]).expect("made");
        let device = tls::device(Pin::of(&identity.signing_key.subject_public_key_info())).expect("a device");
        let (before, after) = (start_relay(&identity), start_relay(&identity));
        for piece in [20, 300, 16 * 1024] {
            let (mut here, mut there) = connect(&device, &before).await;
            let (sent, came) = tokio::join!(
                async {
                    here.handshake().await?;
                    here.write(b"hello")?;
                    here.flush()
                },
                timeout(SOON, read(&mut there, 5))
            );
            assert!(sent.is_ok() && came.expect("in time").is_ok());
            there.write(b"tickets").and_then(|()| there.flush()).expect("there is room");
            timeout(SOON, read(&mut here, 7)).await.expect("in time").expect("what was sent");

            let (mut here, mut there) = connect(&device, &after).await;
            let mut sent = 0;
            loop {
                let room = here.room(piece);
                if room == 0 {
                    break;
                }
                here.write(&vec![7; room]).expect("it fits");
                sent += room;
            }
            assert!(sent > 7 * 1024, "{sent} bytes early, in pieces of {piece}");
            here.write(b"later").expect("it waits");
            let expected = sent + b"later".len();
            let (outcome, came) = tokio::join!(
                async { here.handshake().await.and_then(|()| here.flush()) },
                timeout(SOON, read(&mut there, expected))
            );
            outcome.unwrap_or_else(|error| panic!("{sent} bytes in pieces of {piece}: {error}"));
            assert_eq!(came.expect("in time").expect("it goes on").len(), expected);
        }
    }

    #[tokio::test]
    async fn who_finishes_is_heard_although_bytes_came_that_nobody_reads() {
        const LAST_WORDS: usize = 1 << 20;
        let (mut device, mut relay) = connected().await;
        device.write(b"nobody reads this").and_then(|()| device.flush()).expect("there is room");
        let finished = tokio::spawn(async move {
            relay.write(&vec![7; LAST_WORDS])?;
            while !relay.flush()? {
                relay.ready_for_writing().await?;
            }
            relay.finish().await
        });
        // What waits in the relay's socket by now would be lost if it were closed.
        tokio::time::sleep(Duration::from_millis(50)).await;
        let heard = timeout(SOON, read(&mut device, LAST_WORDS)).await.expect("in time");
        assert_eq!(heard.expect("all of it").len(), LAST_WORDS);
        drop(device);
        finished.await.expect("it does not panic").expect("the device closes");
    }
}
