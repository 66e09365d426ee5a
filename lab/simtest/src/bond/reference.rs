//! What has to come out, known without looking into the sessions: which byte stands where, and what
//! each end was allowed to send by what had reached it.

use std::collections::BTreeMap;

use bytes::Bytes;
use multiway_core::bond::wire::{Frame, FrameReader, INITIAL_SESSION_WINDOW, INITIAL_STREAM_WINDOW};

/// Bytes of one direction of one stream are those of a table from a place of its own on.
const TABLE: u64 = 1 << 20;

/// Who writes.
pub type End = usize;

fn place(stream: u64, end: End) -> u64 {
    (stream * 2 + end as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) % TABLE
}

fn byte(place: u64) -> u8 {
    (place.wrapping_mul(0xD6E8_FEB8_6659_FD93) >> 40) as u8
}

/// Bytes that `end` writes into `stream` at `offset`.
pub fn bytes(stream: u64, end: End, offset: u64, length: usize) -> Bytes {
    let from = place(stream, end) + offset;
    (from..from + length as u64).map(byte).collect()
}

/// Whether these are the bytes that `end` writes into `stream` at `offset`.
pub fn is_right(stream: u64, end: End, offset: u64, bytes: &[u8]) -> bool {
    (place(stream, end) + offset..).zip(bytes).all(|(place, found)| byte(place) == *found)
}

/// Watches one end's frames.
#[derive(Debug, Default)]
pub struct Ledger {
    /// Highest byte sent, and what may be sent, by stream.
    streams: BTreeMap<u64, (u64, u64)>,
    sent: u64,
    granted: u64,
    acked: BTreeMap<u64, u64>,
    /// Highest byte that arrived here.
    arrived: BTreeMap<u64, u64>,
    opened: BTreeMap<u64, Frame>,
}

impl Ledger {
    /// A new session's end.
    pub fn new() -> Self {
        Self { granted: INITIAL_SESSION_WINDOW, ..Self::default() }
    }

    /// This end hands out bytes for a subflow, which `reader` cuts; says what is wrong with them.
    pub fn handle_sent(&mut self, reader: &mut FrameReader, bytes: Bytes) -> Result<(), String> {
        reader.handle_bytes(bytes);
        while let Some(frame) = reader.next_frame().map_err(|error| format!("sends no frame: {error}"))? {
            match &frame {
                Frame::Data(data) => {
                    let (sent, granted) =
                        self.streams.entry(data.stream.0).or_insert((0, INITIAL_STREAM_WINDOW));
                    let end = data.dsn + data.bytes.len() as u64;
                    if end > *granted {
                        return Err(format!("{} sends up to {end}, granted {granted}", data.stream));
                    }
                    self.sent += end.saturating_sub(*sent);
                    *sent = end.max(*sent);
                    if self.sent > self.granted {
                        return Err(format!("the session sends {}, granted {}", self.sent, self.granted));
                    }
                }
                Frame::Ack { stream, data_ack, .. } => {
                    let arrived = self.arrived.get(&stream.0).copied().unwrap_or(0);
                    if *data_ack > arrived + 1 {
                        return Err(format!("{stream} acknowledges {data_ack} of {arrived}"));
                    }
                    let before = self.acked.insert(stream.0, *data_ack).unwrap_or(0);
                    if before > *data_ack {
                        return Err(format!("{stream} takes back an acknowledgment"));
                    }
                }
                Frame::Open { stream, .. } => {
                    let before = self.opened.entry(stream.0).or_insert_with(|| frame.clone());
                    if *before != frame {
                        return Err(format!("{stream} is opened as something else"));
                    }
                }
                _ => {}
            }
        }
        if reader.held() > 0 { Err("hands out a part of a frame".to_owned()) } else { Ok(()) }
    }

    /// Bytes of a subflow are handed to this end.
    pub fn handle_received(&mut self, reader: &mut FrameReader, bytes: Bytes) {
        reader.handle_bytes(bytes);
        // What is no frame is for the session to say.
        while let Ok(Some(frame)) = reader.next_frame() {
            match frame {
                Frame::Ack { stream, window, .. } => {
                    let (_, granted) = self.streams.entry(stream.0).or_insert((0, INITIAL_STREAM_WINDOW));
                    *granted = window.max(*granted);
                }
                Frame::Window(bytes) => self.granted = self.granted.max(bytes),
                Frame::Data(data) => {
                    let arrived = self.arrived.entry(data.stream.0).or_default();
                    *arrived = (data.dsn + data.bytes.len() as u64).max(*arrived);
                }
                _ => {}
            }
        }
    }
}
