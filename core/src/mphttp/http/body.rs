//! Finding a body's end without touching its bytes.

use super::framing::BodyLength;

/// Longest chunk-size line with extensions. RFC 9112 section 7.1.1 asks for a bound; nginx and hyper take
/// less than this.
const MAX_SIZE_LINE: usize = 4 * 1024;

/// Largest trailer section.
const MAX_TRAILERS: usize = 16 * 1024;

/// Why a body is malformed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BodyError {
    /// A chunk-size line that is not RFC 9112 section 7.1.
    #[error("malformed chunk size")]
    ChunkSize,
    /// A chunk size above 64 bits.
    #[error("a chunk is larger than 64 bits can say")]
    ChunkTooLarge,
    /// Chunk data not followed by CRLF.
    #[error("chunk data does not end where its size says")]
    ChunkEnd,
    /// A chunk-size line above 4 KiB.
    #[error("a chunk-size line is longer than {MAX_SIZE_LINE} bytes")]
    SizeLineTooLong,
    /// Trailers above 16 KiB.
    #[error("the trailers are larger than {MAX_TRAILERS} bytes")]
    TrailersTooLarge,
    /// A control byte or a bare line end in the trailers.
    #[error("malformed trailers")]
    Trailers,
    /// The connection closed before the body's end.
    #[error("the connection closed before the end of the body")]
    Truncated,
}

/// Follows one message body and says which bytes belong to it.
#[derive(Debug, Clone)]
pub struct BodyReader {
    state: State,
    /// Bytes of the line or section that a limit applies to.
    bounded: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Done,
    Exact(u64),
    UntilClose,
    /// In the digits of a chunk size.
    Size {
        size: u64,
        digits: u8,
    },
    /// After the digits: padding, of which nothing but `;` or the line's end may follow.
    SizePadding {
        size: u64,
    },
    /// In a chunk extension, which is skipped.
    Extension {
        size: u64,
    },
    /// After the CR of a size line.
    SizeLf {
        size: u64,
    },
    Data(u64),
    DataCr,
    DataLf,
    /// At the start of a trailer line.
    TrailerStart,
    Trailer,
    TrailerLf,
    /// After the CR of the empty line.
    LastLf,
}

impl BodyReader {
    /// A reader at the start of a body.
    pub fn new(length: BodyLength) -> Self {
        let state = match length {
            BodyLength::None | BodyLength::Exact(0) => State::Done,
            BodyLength::Exact(bytes) => State::Exact(bytes),
            BodyLength::Chunked => State::Size { size: 0, digits: 0 },
            BodyLength::UntilClose => State::UntilClose,
        };
        Self { state, bounded: 0 }
    }

    /// True when the whole body was seen; what follows belongs to the next message.
    pub fn is_complete(&self) -> bool {
        self.state == State::Done
    }

    /// How many of the next bytes, `bytes`, belong to this body. Fewer than given means it is complete.
    pub fn handle_bytes(&mut self, bytes: &[u8]) -> Result<usize, BodyError> {
        self.decode(bytes, |_| {})
    }

    /// Like [`Self::handle_bytes`], and hands the payload without its framing to `payload`.
    pub fn decode(&mut self, bytes: &[u8], mut payload: impl FnMut(&[u8])) -> Result<usize, BodyError> {
        let mut used = 0;
        while used < bytes.len() {
            let rest = (bytes.len() - used) as u64;
            match self.state {
                State::Done => break,
                State::UntilClose => {
                    payload(&bytes[used..]);
                    used = bytes.len();
                }
                State::Exact(left) => {
                    let now = left.min(rest);
                    payload(&bytes[used..used + now as usize]);
                    used += now as usize;
                    self.state = if now == left { State::Done } else { State::Exact(left - now) };
                }
                State::Data(left) => {
                    let now = left.min(rest);
                    payload(&bytes[used..used + now as usize]);
                    used += now as usize;
                    self.state = if now == left { State::DataCr } else { State::Data(left - now) };
                }
                _ => {
                    self.handle_chunk_byte(bytes[used])?;
                    used += 1;
                }
            }
        }
        Ok(used)
    }

    /// The sender closed its side.
    pub fn handle_close(&mut self) -> Result<(), BodyError> {
        match self.state {
            State::Done => Ok(()),
            State::UntilClose => {
                self.state = State::Done;
                Ok(())
            }
            _ => Err(BodyError::Truncated),
        }
    }

    /// One byte of chunked framing. Line ends are CRLF and nothing else: recipients that differ here are
    /// how one message becomes two.
    fn handle_chunk_byte(&mut self, byte: u8) -> Result<(), BodyError> {
        self.bounded += 1;
        self.state = match self.state {
            State::Size { size, digits } => match (char::from(byte).to_digit(16), digits) {
                (Some(_), 16) => return Err(BodyError::ChunkTooLarge),
                (Some(digit), _) => State::Size { size: size << 4 | u64::from(digit), digits: digits + 1 },
                (None, 0) => return Err(BodyError::ChunkSize),
                (None, _) => self.after_size(byte, size)?,
            },
            State::SizePadding { size } => self.after_size(byte, size)?,
            State::Extension { size } => match byte {
                b'\r' => State::SizeLf { size },
                b'\t' | b' '..=0x7e | 0x80.. => State::Extension { size },
                _ => return Err(BodyError::ChunkSize),
            },
            State::SizeLf { size } => {
                if byte != b'\n' {
                    return Err(BodyError::ChunkSize);
                }
                self.bounded = 0;
                if size == 0 { State::TrailerStart } else { State::Data(size) }
            }
            State::DataCr if byte == b'\r' => State::DataLf,
            State::DataLf if byte == b'\n' => {
                self.bounded = 0;
                State::Size { size: 0, digits: 0 }
            }
            State::DataCr | State::DataLf => return Err(BodyError::ChunkEnd),
            State::TrailerStart => match byte {
                b'\r' => State::LastLf,
                // A continued line, or one without a name.
                b' ' | b'\t' | b':' => return Err(BodyError::Trailers),
                _ => Self::in_trailer(byte)?,
            },
            State::Trailer => match byte {
                b'\r' => State::TrailerLf,
                _ => Self::in_trailer(byte)?,
            },
            State::TrailerLf if byte == b'\n' => State::TrailerStart,
            State::LastLf if byte == b'\n' => State::Done,
            State::TrailerLf | State::LastLf => return Err(BodyError::Trailers),
            State::Done | State::Exact(_) | State::UntilClose | State::Data(_) => {
                unreachable!("handle_bytes takes these whole")
            }
        };
        match self.state {
            State::Size { .. }
            | State::SizePadding { .. }
            | State::Extension { .. }
            | State::SizeLf { .. }
                if self.bounded > MAX_SIZE_LINE =>
            {
                Err(BodyError::SizeLineTooLong)
            }
            State::TrailerStart | State::Trailer | State::TrailerLf if self.bounded > MAX_TRAILERS => {
                Err(BodyError::TrailersTooLarge)
            }
            _ => Ok(()),
        }
    }

    fn after_size(&self, byte: u8, size: u64) -> Result<State, BodyError> {
        match byte {
            b'\r' => Ok(State::SizeLf { size }),
            b';' => Ok(State::Extension { size }),
            // Some servers pad the size; RFC 9112 section 7.1.1 lets this be read.
            b' ' | b'\t' => Ok(State::SizePadding { size }),
            _ => Err(BodyError::ChunkSize),
        }
    }

    fn in_trailer(byte: u8) -> Result<State, BodyError> {
        match byte {
            b'\t' | b' '..=0x7e | 0x80.. => Ok(State::Trailer),
            _ => Err(BodyError::Trailers),
        }
    }
}
