//! Every frame and its body.

use std::fmt;
use std::time::Duration;

use bytes::{Buf, BufMut, Bytes};

use super::hello::{put_text, take_text, take_varint};
use super::{Destination, Hello, HelloOk, WireError, varint};
use crate::bond::config::StreamClass;
use crate::bond::scheduler::SchedulerKind;
use crate::bond::subflow::SubflowId;
use crate::units::Rate;

/// Names a stream within its session. Devices count them up from 0 without leaving one out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamId(pub u64);

impl fmt::Display for StreamId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "stream {}", self.0)
    }
}

/// The first byte of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum FrameType {
    /// Begins a subflow, device to relay.
    Hello = 0x01,
    /// Accepts a subflow, relay to device.
    HelloOk = 0x02,
    /// Asks for a PONG.
    Ping = 0x03,
    /// Answers a PING.
    Pong = 0x04,
    /// How a subflow may be used from now on.
    Priority = 0x05,
    /// Asks for the far end's retransmission timeout, or tells it.
    Rto = 0x06,
    /// Where joins have to go from now on.
    Advertise = 0x07,
    /// What waits in a buffer between this end and the far end of a subflow.
    PipeStatus = 0x08,
    /// The relay goes away soon.
    Drain = 0x09,
    /// Ends a subflow or a session.
    Close = 0x0A,
    /// Begins a stream.
    Open = 0x10,
    /// Tells whether the destination was reached.
    Opened = 0x11,
    /// Bytes of a stream.
    Data = 0x12,
    /// What of a stream has arrived and how much more may come.
    Ack = 0x13,
    /// Ends a stream at once.
    Reset = 0x14,
    /// How much more may come over all streams.
    Window = 0x15,
}

impl FrameType {
    const ALL: [Self; 16] = [
        Self::Hello,
        Self::HelloOk,
        Self::Ping,
        Self::Pong,
        Self::Priority,
        Self::Rto,
        Self::Advertise,
        Self::PipeStatus,
        Self::Drain,
        Self::Close,
        Self::Open,
        Self::Opened,
        Self::Data,
        Self::Ack,
        Self::Reset,
        Self::Window,
    ];

    pub(super) fn from_byte(byte: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| *kind as u8 == byte)
    }
}

/// How a subflow may be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// Like any other.
    Normal,
    /// Only while no normal one works.
    Backup,
    /// It has probably failed: what is outstanding on it goes elsewhere, and nothing new onto it
    /// while another one works.
    Suspect,
    /// The device lost it: what is outstanding on it goes elsewhere, and nothing comes over it any more.
    Gone,
}

/// What a DATA frame says besides its bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Mark {
    /// With these bytes the sender's buffer was empty (MultiMob's MP_IDLE): no more is to be
    /// expected for now.
    pub idle: bool,
    /// The stream's direction ends behind these bytes. The end counts as one sequence number.
    pub fin: bool,
}

/// A DATA frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Data {
    /// The stream.
    pub stream: StreamId,
    /// Data sequence number of the first byte: its offset in the stream's direction.
    pub dsn: u64,
    /// Flags.
    pub mark: Mark,
    /// The bytes; may be empty with a mark.
    pub bytes: Bytes,
}

/// How the relay fared with a stream's destination.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OpenResult {
    /// Connected.
    Connected,
    /// The relay's operator does not allow the destination.
    Forbidden,
    /// The name has no address.
    NoSuchHost,
    /// The destination refused the connection.
    Refused,
    /// No route or no answer.
    Unreachable,
    /// The destination did not answer in time.
    TimedOut,
    /// The user has used up what is allowed, in streams or in bytes.
    OverLimit,
    /// The relay failed.
    Failed,
}

impl OpenResult {
    const ALL: [Self; 8] = [
        Self::Connected,
        Self::Forbidden,
        Self::NoSuchHost,
        Self::Refused,
        Self::Unreachable,
        Self::TimedOut,
        Self::OverLimit,
        Self::Failed,
    ];
}

/// One message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Frame {
    /// See [`Hello`].
    Hello(Hello),
    /// See [`HelloOk`].
    HelloOk(HelloOk),
    /// Asks for a PONG with the same bytes, on the same subflow.
    Ping(u64),
    /// Answers a PING.
    Pong(u64),
    /// How a subflow may be used from now on.
    Priority {
        /// Which; not necessarily the one that carries the frame.
        subflow: SubflowId,
        /// How.
        standing: Standing,
        /// Counts the session's PRIORITYs: of two about one subflow, which come over different ones, the later holds.
        sequence: u64,
    },
    /// Asks for the retransmission timeout of the far end's side of this subflow.
    RtoRequest,
    /// The retransmission timeout of this end's side of this subflow (M4).
    Rto(Duration),
    /// Where joins have to go from now on, as `host:port`.
    Advertise(String),
    /// What waits in a buffer on the way of a subflow, for instance in a helper (MPBond 3.5).
    PipeStatus {
        /// Which subflow.
        subflow: SubflowId,
        /// Bytes in the buffer.
        buffered: u64,
        /// Rate at which they leave it.
        rate: Rate,
    },
    /// The relay takes no more streams; sessions should move to another one.
    Drain,
    /// Ends a subflow, or with [`CLOSE_SESSION`] set in `code` the session.
    Close {
        /// Why; docs/protocol.md lists the codes.
        code: u64,
        /// For people.
        text: String,
    },
    /// Begins a stream.
    Open {
        /// Its number.
        stream: StreamId,
        /// What it is for.
        class: StreamClass,
        /// How the relay shall choose subflows for what it sends.
        scheduler: SchedulerKind,
        /// Where to.
        destination: Destination,
    },
    /// Whether the destination was reached.
    Opened {
        /// The stream.
        stream: StreamId,
        /// Whether and why not.
        result: OpenResult,
    },
    /// Bytes of a stream.
    Data(Data),
    /// What has arrived.
    Ack {
        /// The stream.
        stream: StreamId,
        /// Every sequence number below has arrived.
        data_ack: u64,
        /// Bytes with sequence numbers below may be sent.
        window: u64,
    },
    /// Ends a stream at once in both directions.
    Reset {
        /// The stream.
        stream: StreamId,
        /// Why; docs/protocol.md lists the codes.
        code: u64,
        /// One past the highest byte that was sent, so that both ends count alike.
        end: u64,
        /// Whether it answers a RESET or a frame of a stream that is over; it is not answered.
        answer: bool,
    },
    /// Bytes of all streams together that may be sent, counted from the session's beginning.
    Window(u64),
}

/// Set in the code of a CLOSE that ends the whole session.
pub const CLOSE_SESSION: u64 = 0x100;

const IDLE: u8 = 1;
const FIN: u8 = 2;

/// Bytes in front of a DATA frame's payload, at most: type, length, stream, dsn and flags.
pub(crate) const MAX_DATA_HEAD: usize = 1 + 4 + 8 + 8 + 1;

/// Writes a DATA frame's head; `length` bytes of payload have to follow.
pub(crate) fn put_data_head(into: &mut impl BufMut, stream: StreamId, dsn: u64, mark: Mark, length: usize) {
    into.put_u8(FrameType::Data as u8);
    varint::put(into, (varint::size(stream.0) + varint::size(dsn) + 1 + length) as u64);
    varint::put(into, stream.0);
    varint::put(into, dsn);
    into.put_u8(if mark.idle { IDLE } else { 0 } | if mark.fin { FIN } else { 0 });
}

impl Frame {
    /// Which type it is.
    pub const fn kind(&self) -> FrameType {
        match self {
            Self::Hello(_) => FrameType::Hello,
            Self::HelloOk(_) => FrameType::HelloOk,
            Self::Ping(_) => FrameType::Ping,
            Self::Pong(_) => FrameType::Pong,
            Self::Priority { .. } => FrameType::Priority,
            Self::RtoRequest | Self::Rto(_) => FrameType::Rto,
            Self::Advertise(_) => FrameType::Advertise,
            Self::PipeStatus { .. } => FrameType::PipeStatus,
            Self::Drain => FrameType::Drain,
            Self::Close { .. } => FrameType::Close,
            Self::Open { .. } => FrameType::Open,
            Self::Opened { .. } => FrameType::Opened,
            Self::Data(_) => FrameType::Data,
            Self::Ack { .. } => FrameType::Ack,
            Self::Reset { .. } => FrameType::Reset,
            Self::Window(_) => FrameType::Window,
        }
    }

    /// Appends the frame.
    pub fn put(&self, into: &mut impl BufMut) {
        if let Self::Data(Data { stream, dsn, mark, bytes }) = self {
            put_data_head(into, *stream, *dsn, *mark, bytes.len());
            into.put_slice(bytes);
            return;
        }
        // No other body is longer than a HELLO with the longest token.
        let mut body = Vec::with_capacity(32);
        self.put_body(&mut body);
        into.put_u8(self.kind() as u8);
        varint::put(into, body.len() as u64);
        into.put_slice(&body);
    }

    /// The frame as bytes.
    pub fn to_bytes(&self) -> Bytes {
        let mut bytes = Vec::new();
        self.put(&mut bytes);
        bytes.into()
    }

    fn put_body(&self, into: &mut Vec<u8>) {
        match self {
            Self::Hello(hello) => hello.put(into),
            Self::HelloOk(hello_ok) => hello_ok.put(into),
            Self::Ping(value) | Self::Pong(value) => into.put_u64(*value),
            Self::Priority { subflow, standing, sequence } => {
                varint::put(into, subflow.0);
                into.put_u8(match standing {
                    Standing::Normal => 0,
                    Standing::Backup => 1,
                    Standing::Suspect => 2,
                    Standing::Gone => 3,
                });
                varint::put(into, *sequence);
            }
            Self::RtoRequest | Self::Drain => {}
            Self::Rto(timeout) => {
                varint::put(into, u64::try_from(timeout.as_micros()).unwrap_or(varint::MAX));
            }
            Self::Advertise(address) => put_text(into, address),
            Self::PipeStatus { subflow, buffered, rate } => {
                varint::put(into, subflow.0);
                varint::put(into, *buffered);
                varint::put(into, rate.bytes_per_second());
            }
            Self::Close { code, text } => {
                varint::put(into, *code);
                put_text(into, text);
            }
            Self::Open { stream, class, scheduler, destination } => {
                varint::put(into, stream.0);
                into.put_u8(class.to_byte());
                into.put_u8(scheduler.to_byte());
                destination.put(into);
            }
            Self::Opened { stream, result } => {
                varint::put(into, stream.0);
                into.put_u8(*result as u8);
            }
            // Written by `put` without a body of its own.
            Self::Data(_) => {}
            Self::Ack { stream, data_ack, window } => {
                varint::put(into, stream.0);
                varint::put(into, *data_ack);
                varint::put(into, *window);
            }
            Self::Reset { stream, code, end, answer } => {
                varint::put(into, stream.0);
                varint::put(into, *code);
                varint::put(into, *end);
                into.put_u8(u8::from(*answer));
            }
            Self::Window(bytes) => varint::put(into, *bytes),
        }
    }

    /// Reads the body of a frame of type `kind`; every byte has to belong to it.
    pub(super) fn parse(kind: FrameType, mut body: Bytes) -> Result<Self, WireError> {
        match Self::take(kind, &mut body) {
            Some(frame) if body.is_empty() => Ok(frame),
            _ => Err(WireError::Malformed(kind as u8)),
        }
    }

    fn take(kind: FrameType, body: &mut Bytes) -> Option<Self> {
        Some(match kind {
            FrameType::Hello => Self::Hello(Hello::take(body)?),
            FrameType::HelloOk => Self::HelloOk(HelloOk::take(body)?),
            FrameType::Ping => Self::Ping(body.try_get_u64().ok()?),
            FrameType::Pong => Self::Pong(body.try_get_u64().ok()?),
            FrameType::Priority => Self::Priority {
                subflow: SubflowId(take_varint(body)?),
                standing: match body.try_get_u8().ok()? {
                    0 => Standing::Normal,
                    1 => Standing::Backup,
                    2 => Standing::Suspect,
                    3 => Standing::Gone,
                    _ => return None,
                },
                sequence: take_varint(body)?,
            },
            FrameType::Rto if body.is_empty() => Self::RtoRequest,
            FrameType::Rto => Self::Rto(Duration::from_micros(take_varint(body)?)),
            FrameType::Advertise => Self::Advertise(take_text(body)?),
            FrameType::PipeStatus => Self::PipeStatus {
                subflow: SubflowId(take_varint(body)?),
                buffered: take_varint(body)?,
                rate: Rate::from_bytes_per_second(take_varint(body)?.min(u64::MAX / 8)),
            },
            FrameType::Drain => Self::Drain,
            FrameType::Close => Self::Close { code: take_varint(body)?, text: take_text(body)? },
            FrameType::Open => Self::Open {
                stream: StreamId(take_varint(body)?),
                class: StreamClass::from_byte(body.try_get_u8().ok()?)?,
                scheduler: SchedulerKind::from_byte(body.try_get_u8().ok()?)?,
                destination: Destination::take(body)?,
            },
            FrameType::Opened => {
                let stream = StreamId(take_varint(body)?);
                let result = body.try_get_u8().ok()?;
                Self::Opened {
                    stream,
                    result: OpenResult::ALL.into_iter().find(|known| *known as u8 == result)?,
                }
            }
            FrameType::Data => {
                let stream = StreamId(take_varint(body)?);
                let dsn = take_varint(body)?;
                let flags = body.try_get_u8().ok()?;
                if flags & !(IDLE | FIN) != 0 {
                    return None;
                }
                let mark = Mark { idle: flags & IDLE != 0, fin: flags & FIN != 0 };
                // Highest sequence numbers stay far from overflow.
                if dsn > varint::MAX - (super::MAX_BODY as u64) {
                    return None;
                }
                Self::Data(Data { stream, dsn, mark, bytes: body.split_off(0) })
            }
            FrameType::Ack => Self::Ack {
                stream: StreamId(take_varint(body)?),
                data_ack: take_varint(body)?,
                window: take_varint(body)?,
            },
            FrameType::Reset => Self::Reset {
                stream: StreamId(take_varint(body)?),
                code: take_varint(body)?,
                end: take_varint(body)?,
                answer: match body.try_get_u8().ok()? {
                    0 => false,
                    1 => true,
                    _ => return None,
                },
            },
            FrameType::Window => Self::Window(take_varint(body)?),
        })
    }
}
