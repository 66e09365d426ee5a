//! The task of one subflow: frames between a session and a TLS connection.

use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use multiway_core::bond::wire::{Frame, FrameReader, MAX_DATA_FRAME};
use multiway_core::bond::{SubflowId, SubflowSample, Violation, ViolationScope};
use multiway_core::paths::TcpSample;
use multiway_core::units::Rate;
use multiway_edge::subflow::{limit_silence, limit_unsent};
use multiway_edge::tcp_info;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

use super::connection::{Received, TlsStream};
use super::shared::{Next, SharedSession, SubflowEnd};
use crate::paths::now;

/// How often the kernel is asked about a subflow that carries something: a few times per round trip of
/// a wireless network.
const SAMPLING: Duration = Duration::from_millis(100);

/// A connection on which nothing is acknowledged for so long is over. The session has left it long before;
/// this frees what is left.
const SILENCE: Duration = Duration::from_secs(60);

/// How much of the delivered rate may wait unsent in a socket, see [`unsent_bytes`].
const UNSENT_TIME: Duration = Duration::from_millis(20);

/// Bounds of the same. Below two segments a socket would run dry between two wake-ups.
const UNSENT_LEAST: u64 = 8 * 1024;
const UNSENT_MOST: u64 = 256 * 1024;

/// Bytes given to the socket at once: what a segment of the kernel's (GSO) holds, since most of what a
/// subflow costs it costs by segment. They are a fraction of what may wait unsent.
const MOST_AT_ONCE: usize = 64 * 1024;
const UNSENT_SHARE: usize = 4;

/// A TLS record can be read when all of it is there, so each is a fraction of the congestion window, at least
/// [`FIRST_RECORD`]. One of 16 KiB would not fit into the ten segments that TCP begins with (RFC 6928): the
/// first byte of a long answer would come a round trip late.
const RECORDS_PER_WINDOW: u64 = 4;
const FIRST_RECORD: usize = 10 * 1400 / RECORDS_PER_WINDOW as usize;

/// Below this the kernel is held to it strictly. The 64 KiB that it joins otherwise take 80 ms at the rate that
/// belongs to it, which others make up for, and a second at a tenth of that.
const APART_BELOW: u32 = 16 * 1024;

/// Nothing is asked of the session for less room than a small frame needs.
const LEAST_ROOM: usize = 256;

/// Bytes carried before other tasks have their turn.
const TURN_BYTES: usize = 512 * 1024;

/// How long a relay may take to answer a HELLO, the handshake included: four retransmissions of a SYN.
const ANSWER: Duration = Duration::from_secs(15);

/// How long a farewell may take.
const FAREWELL: Duration = Duration::from_secs(2);

/// One subflow's task and what it knows.
pub(crate) struct Subflow {
    shared: SharedSession,
    id: SubflowId,
    tls: TlsStream,
    wake: Arc<Notify>,
    /// On the device, until the relay's first frame came.
    greeting: Option<FrameReader>,
    /// Plaintext that came before the task began.
    rest: Bytes,
    /// When the kernel is asked next; never while nothing moves.
    sample_at: Option<Instant>,
    /// Bytes that are encrypted before the socket is given them.
    at_once: usize,
    /// Most bytes of a TLS record.
    record: usize,
    moved: usize,
    sampled_moved: usize,
    /// Nothing is sent before the session was asked for what fits into the first flight.
    gathers: bool,
    /// When the far end must have answered.
    answer_due: Option<Instant>,
    /// Whether its HELLO was to begin the session.
    begins: bool,
}

/// Sets a subflow's socket up.
pub(crate) fn prepare(socket: &impl AsFd) {
    // Older kernels lack one or the other; without them a subflow is only less well paced.
    let limited = limit_unsent(socket, u32::try_from(UNSENT_MOST / 4).expect("a small constant"));
    if let Err(error) = limited.and_then(|()| limit_silence(socket, SILENCE)) {
        tracing::debug!(%error, "a subflow's socket takes not all options");
    }
}

impl Subflow {
    /// A device's subflow, whose HELLO is written, to begin the session or to join it, and which waits for the
    /// answer.
    pub(crate) fn device(
        shared: SharedSession,
        id: SubflowId,
        tls: TlsStream,
        wake: Arc<Notify>,
        begins: bool,
    ) -> Self {
        let answer_due = Some(Instant::now() + ANSWER);
        // Behind a handshake there is no first flight to fill, and TLS holds no more than a few records.
        let gathers = tls.is_handshaking();
        Self { answer_due, gathers, begins, ..Self::new(shared, id, tls, wake, Some(FrameReader::new())) }
    }

    /// A relay's subflow, which was accepted, and what came behind its HELLO.
    pub(crate) fn relay(
        shared: SharedSession,
        id: SubflowId,
        tls: TlsStream,
        wake: Arc<Notify>,
        rest: Bytes,
    ) -> Self {
        Self { rest, ..Self::new(shared, id, tls, wake, None) }
    }

    fn new(
        shared: SharedSession,
        id: SubflowId,
        tls: TlsStream,
        wake: Arc<Notify>,
        greeting: Option<FrameReader>,
    ) -> Self {
        let sample_at = Some(Instant::now() + SAMPLING);
        let rest = Bytes::new();
        Self {
            shared,
            id,
            tls,
            wake,
            greeting,
            rest,
            sample_at,
            at_once: MAX_DATA_FRAME,
            record: FIRST_RECORD,
            moved: 0,
            sampled_moved: 0,
            gathers: false,
            answer_due: None,
            begins: false,
        }
    }

    /// Runs until the subflow ends, and tells the session.
    pub(crate) async fn run(mut self) {
        let how = match self.exchange().await {
            Ok(how) => how,
            Err(error) => SubflowEnd::Failed(error),
        };
        let last_words = match &how {
            SubflowEnd::Violation(violation) => Some((violation.code(), violation.to_string())),
            _ => None,
        };
        // First of all, for what came of it is not to be built upon.
        self.shared.detach(self.id, how);
        if let Some((code, text)) = last_words {
            self.farewell(code, &text).await;
        }
    }

    async fn exchange(&mut self) -> io::Result<SubflowEnd> {
        let rest = std::mem::take(&mut self.rest);
        if !rest.is_empty()
            && let Some(end) = self.take(vec![rest])
        {
            return Ok(end);
        }
        let mut turn = 0;
        loop {
            let before = self.moved;
            let wants_room = match self.send()? {
                Sent::All => false,
                Sent::SocketFull => true,
                Sent::Close => {
                    let (code, text) = self.shared.farewell();
                    self.farewell(code, &text).await;
                    return Ok(SubflowEnd::Closed);
                }
                Sent::TurnOver => {
                    tokio::task::yield_now().await;
                    false
                }
            };
            if let Some(end) = self.receive()? {
                return Ok(end);
            }
            if self.moved != before {
                if self.sample_at.is_none() {
                    // TCP begins anew after a pause (RFC 5681 section 4.1).
                    self.record = FIRST_RECORD;
                    self.sample_at = Some(Instant::now() + SAMPLING);
                }
                turn += self.moved - before;
                if turn >= TURN_BYTES {
                    turn = 0;
                    tokio::task::yield_now().await;
                }
                continue;
            }
            // A handshake's answer may be due.
            if self.tls.is_pending() && !wants_room {
                continue;
            }
            let (sample_at, answer_due) = (self.sample_at, self.answer_due);
            tokio::select! {
                ready = self.tls.ready(wants_room) => ready?,
                () = self.wake.notified() => {}
                () = async { sleep_until(sample_at.unwrap_or_else(Instant::now)).await }, if sample_at.is_some() => {
                    self.sample()?;
                }
                () = async { sleep_until(answer_due.unwrap_or_else(Instant::now)).await }, if answer_due.is_some() => {
                    return Ok(SubflowEnd::Failed(io::ErrorKind::TimedOut.into()));
                }
            }
        }
    }

    /// Sends what the session has for this subflow while the socket takes it.
    fn send(&mut self) -> io::Result<Sent> {
        if !self.gathers && !self.tls.flush()? {
            return Ok(self.blocked());
        }
        let (mut sent, mut gathered) = (0, 0);
        loop {
            if !self.gathers && gathered >= self.at_once {
                gathered = 0;
                if !self.tls.flush()? {
                    return Ok(self.blocked());
                }
            }
            if sent >= TURN_BYTES {
                return Ok(if self.tls.flush()? { Sent::TurnOver } else { self.blocked() });
            }
            let room = self.tls.room(self.record);
            let next = match room {
                0..LEAST_ROOM => Next::Wait,
                _ => self.shared.next(self.id, room),
            };
            match next {
                Next::Send(bytes) => {
                    self.tls.write(&bytes)?;
                    sent += bytes.len();
                    gathered += bytes.len();
                    self.moved += bytes.len();
                }
                Next::Wait if std::mem::take(&mut self.gathers) => {}
                Next::Wait => return Ok(if self.tls.flush()? { Sent::All } else { self.blocked() }),
                Next::Close => return Ok(Sent::Close),
            }
        }
    }

    /// The socket takes no more, which does not keep a subflow that is to close.
    fn blocked(&self) -> Sent {
        if self.shared.busy(self.id) { Sent::Close } else { Sent::SocketFull }
    }

    /// Takes in what came; an end when there is one.
    fn receive(&mut self) -> io::Result<Option<SubflowEnd>> {
        let mut received = 0;
        while received < TURN_BYTES {
            let before = received;
            // One call and one wake-up for all that came together.
            let mut records = Vec::new();
            let last = loop {
                if received - before >= MOST_AT_ONCE {
                    break Ok(Received::Bytes(Bytes::new()));
                }
                match self.tls.read() {
                    Ok(Received::Bytes(bytes)) => {
                        received += bytes.len();
                        records.extend(Some(bytes).filter(|bytes| !bytes.is_empty()));
                    }
                    other => break other,
                }
            };
            self.moved += received - before;
            if let Some(end) = self.take(records) {
                return Ok(Some(end));
            }
            match last? {
                Received::Bytes(_) => {}
                Received::Nothing => break,
                Received::End => return Ok(Some(SubflowEnd::Closed)),
            }
        }
        Ok(None)
    }

    fn take(&mut self, mut records: Vec<Bytes>) -> Option<SubflowEnd> {
        while let Some(mut reader) = self.greeting.take() {
            if records.is_empty() {
                self.greeting = Some(reader);
                return None;
            }
            reader.handle_bytes(records.remove(0));
            match reader.next_frame() {
                Ok(None) => {
                    self.greeting = Some(reader);
                    continue;
                }
                Ok(Some(Frame::HelloOk(hello))) => {
                    self.answer_due = None;
                    if !self.shared.welcome(self.id, hello, self.begins) {
                        let other = "another relay answered than the one that has the session";
                        return Some(SubflowEnd::Failed(io::Error::other(other)));
                    }
                }
                Ok(Some(Frame::Close { code, text })) => return Some(SubflowEnd::Refused(code, text)),
                Ok(Some(frame)) => {
                    return Some(SubflowEnd::Violation(Violation::Misplaced(frame.kind() as u8)));
                }
                Err(error) => return Some(SubflowEnd::Violation(error.into())),
            }
            // That nothing follows is worth telling the session too: the relay answers.
            records.insert(0, reader.into_rest());
        }
        if records.is_empty() {
            return None;
        }
        self.shared.received(self.id, records).err().map(SubflowEnd::Violation)
    }

    fn sample(&mut self) -> io::Result<()> {
        let sample = subflow_sample(&tcp_info::sample(self.tls.transport().as_fd(), now())?);
        let unsent = unsent_bytes(&sample);
        limit_unsent(&***self.tls.transport(), unsent)?;
        self.record = record_bytes(&sample);
        self.tls.send_apart(unsent < APART_BELOW);
        let least = if unsent < APART_BELOW { self.record } else { MAX_DATA_FRAME };
        self.at_once = (unsent as usize / UNSENT_SHARE).clamp(least, MOST_AT_ONCE);
        self.shared.sampled(self.id, &sample);
        let is_active = self.moved != self.sampled_moved || sample.unacked > 0 || sample.unsent > 0;
        self.sampled_moved = self.moved;
        self.sample_at = is_active.then(|| Instant::now() + SAMPLING);
        Ok(())
    }

    /// Says why the subflow ends, as far as the socket still takes it. What comes in meanwhile is thrown away: a
    /// socket that is closed with bytes unread resets the connection, and the reason would be lost with it.
    async fn farewell(&mut self, code: u64, text: &str) {
        let farewell = async {
            if !self.tls.is_handshaking() {
                self.tls.write(&Frame::Close { code, text: text.to_owned() }.to_bytes())?;
                self.tls.close();
            }
            while !self.tls.flush()? {
                self.tls.ready_for_writing().await?;
            }
            self.tls.finish().await
        };
        // The far end may be gone.
        let _ = tokio::time::timeout(FAREWELL, farewell).await;
    }
}

/// What became of sending.
enum Sent {
    /// Everything there was.
    All,
    /// What the socket took.
    SocketFull,
    /// As much as others have to wait for.
    TurnOver,
    /// What there was, or what the socket took, and no more is to come.
    Close,
}

/// Whether a violation ends the whole session.
pub(crate) fn ends_session(how: &SubflowEnd) -> bool {
    match how {
        SubflowEnd::Violation(violation) => violation.scope() == ViolationScope::Session,
        SubflowEnd::Refused(code, _) => code & multiway_core::bond::wire::CLOSE_SESSION != 0,
        SubflowEnd::Closed | SubflowEnd::Failed(_) => false,
    }
}

fn subflow_sample(sample: &TcpSample) -> SubflowSample {
    SubflowSample {
        smoothed_rtt: sample.smoothed_rtt,
        rtt_variance: sample.rtt_variance,
        min_rtt: sample.min_rtt,
        retransmission_timeout: sample.retransmission_timeout,
        timeouts_in_a_row: sample.timeouts_in_row,
        congestion_window: sample.congestion_window * sample.segment_size,
        segment_size: sample.segment_size,
        unacked: sample.segments_unacked * sample.segment_size,
        unsent: sample.bytes_unsent,
        segments_lost: sample.segments_lost,
        segments_sent: sample.segments_sent,
        segments_retransmitted: sample.segments_retransmitted,
        duplicates_reported: sample.duplicates_reported,
        segments_out_of_order: sample.segments_out_of_order,
        delivery_rate: sample.delivery_rate,
    }
}

fn record_bytes(sample: &SubflowSample) -> usize {
    let share = usize::try_from(sample.congestion_window / RECORDS_PER_WINDOW).unwrap_or(usize::MAX);
    share.clamp(FIRST_RECORD, MAX_DATA_FRAME)
}

/// How many bytes may wait unsent: enough to bridge the time until the task is woken, and no more, for
/// what waits in a socket cannot take another path.
fn unsent_bytes(sample: &SubflowSample) -> u32 {
    let by_window = match sample.smoothed_rtt {
        Duration::ZERO => Rate::ZERO,
        rtt => Rate::from_bytes_in(sample.congestion_window, rtt),
    };
    let rate = sample.delivery_rate.max(by_window);
    u32::try_from(rate.bytes_in(UNSENT_TIME).clamp(UNSENT_LEAST, UNSENT_MOST)).expect("bounded above")
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use multiway_core::bond::scheduler::SchedulerKind;
    use multiway_core::bond::wire::{Destination, Host, OpenResult};
    use multiway_core::bond::{Role, Session, SessionConfig, StreamClass, StreamId};
    use multiway_core::paths::PathId;
    use tokio::io::AsyncReadExt;
    use tokio::task::JoinHandle;
    use tokio::time::timeout;

    use super::*;
    use crate::bond::connection::Transport;
    use crate::bond::connection::tests::connected;
    use crate::bond::stream::BondStream;

    /// Header, type and tag of a TLS record (RFC 8446 section 5.2).
    const RECORD_HEAD: usize = 5;
    const RECORD_REST: usize = 1 + 16;

    /// What a session takes before anything is sent.
    const ANSWER: usize = 64 << 10;

    /// A relay's subflow with an answer to send, and the device's end of its connection.
    async fn answering(bytes: usize) -> (BondStream, TlsStream, JoinHandle<()>) {
        let (device, relay) = connected().await;
        let session = Session::new(Role::Relay, SessionConfig::default(), now());
        let (shared, _signals) = SharedSession::new(session);
        let (id, stream) = (SubflowId(0), StreamId(0));
        let wake = shared.attach(id, PathId(0), false, relay.transport());
        let open = Frame::Open {
            stream,
            class: StreamClass::Auto,
            scheduler: SchedulerKind::MinRtt,
            destination: Destination { host: Host::Address(Ipv4Addr::LOCALHOST.into()), port: 80 },
        };
        let window = Frame::Ack { stream, data_ack: 0, window: bytes as u64 };
        let all = Frame::Window(bytes as u64);
        let frames = [open, window, all].map(|frame| frame.to_bytes());
        shared.received(id, frames.to_vec()).expect("a relay takes it");
        let answer = BondStream::new(shared.clone(), stream);
        answer.accept(OpenResult::Connected);
        answer.send(Bytes::from(vec![7; ANSWER.min(bytes)])).await.expect("there is room");
        let task = tokio::spawn(Subflow::relay(shared.clone(), id, relay, wake, Bytes::new()).run());
        if bytes > ANSWER {
            // It ends with the session.
            let _ =
                timeout(Duration::from_millis(200), answer.send(Bytes::from(vec![7; bytes - ANSWER]))).await;
        }
        (answer, device, task)
    }

    #[tokio::test]
    async fn a_subflow_whose_socket_is_full_ends_with_its_session() {
        let (answer, _device, task) = answering(64 << 20).await;
        answer.session().end(0, "");
        timeout(2 * FAREWELL, task).await.expect("its farewell is short").expect("it does not panic");
    }

    #[tokio::test]
    async fn an_answer_begins_in_records_that_the_first_flight_can_hold() {
        let (_answer, device, task) = answering(ANSWER).await;

        let mut socket = Arc::clone(device.transport());
        drop(device);
        let Some(Transport::Accepted(socket)) = Arc::get_mut(&mut socket) else {
            panic!("nobody else has it")
        };
        let mut seen = 0;
        while seen < ANSWER {
            let mut head = [0; RECORD_HEAD];
            socket.read_exact(&mut head).await.expect("a record");
            let length = usize::from(u16::from_be_bytes([head[3], head[4]]));
            assert!(length <= FIRST_RECORD + RECORD_REST, "{length} bytes behind {seen}");
            socket.read_exact(&mut vec![0; length]).await.expect("all of it");
            seen += length;
        }
        task.abort();
    }
}
