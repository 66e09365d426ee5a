//! Cuts a stream of bytes into frames.

use bytes::{Buf, Bytes, BytesMut};

use super::{FIRST_SKIPPABLE, Frame, FrameType, MAX_BODY, WireError, varint};

/// A payload that is a smaller share of the piece it lies in than one in this many is copied, so
/// that what a session keeps never holds more than as many times its size in memory.
const KEEP_SHARE: usize = 4;

/// Cuts the bytes of one direction of a subflow into frames, in whatever pieces they come.
///
/// After an error the bytes behind it mean nothing; the same error is returned from then on.
#[derive(Debug, Default)]
pub struct FrameReader {
    /// The beginning of a frame that is not whole yet.
    partial: BytesMut,
    /// What came behind it.
    piece: Bytes,
    /// Bytes of the whole piece, those taken out included: what a slice of it keeps alive.
    piece_memory: usize,
    failed: Option<WireError>,
}

/// Type, length of the head and length of the body.
fn head(bytes: &[u8]) -> Result<Option<(u8, usize, usize)>, WireError> {
    let [kind, rest @ ..] = bytes else { return Ok(None) };
    if *kind < FIRST_SKIPPABLE && FrameType::from_byte(*kind).is_none() {
        return Err(WireError::UnknownType(*kind));
    }
    let Some((length, size)) = varint::read(rest) else { return Ok(None) };
    match usize::try_from(length) {
        Ok(length) if length <= MAX_BODY => Ok(Some((*kind, 1 + size, length))),
        _ => Err(WireError::TooLong(length)),
    }
}

impl FrameReader {
    /// A reader at the beginning of a direction.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds what arrived; everything before has to be taken out by [`Self::next_frame`] first, or
    /// it is joined by copying.
    pub fn handle_bytes(&mut self, bytes: Bytes) {
        if self.piece.is_empty() {
            self.piece = bytes;
        } else {
            let mut joined = BytesMut::from(std::mem::take(&mut self.piece));
            joined.extend_from_slice(&bytes);
            self.piece = joined.freeze();
        }
        self.piece_memory = self.piece.len();
    }

    /// The next whole frame. Unknown frames of types that may be skipped are skipped.
    pub fn next_frame(&mut self) -> Result<Option<Frame>, WireError> {
        if let Some(error) = self.failed {
            return Err(error);
        }
        let result = self.read();
        self.failed = result.as_ref().err().copied();
        result
    }

    /// Bytes that are held for a frame that is not whole.
    pub fn held(&self) -> usize {
        self.partial.len() + self.piece.len()
    }

    /// What was handed in and is not part of a frame taken out yet; for the session, after HELLO.
    pub fn into_rest(self) -> Bytes {
        let mut rest = self.partial;
        rest.extend_from_slice(&self.piece);
        rest.freeze()
    }

    fn read(&mut self) -> Result<Option<Frame>, WireError> {
        loop {
            let (kind, mut whole, head_length, memory) = if self.partial.is_empty() {
                let Some((kind, head_length, length)) = head(&self.piece)? else { return self.keep() };
                if self.piece.len() < head_length + length {
                    return self.keep();
                }
                (kind, self.piece.split_to(head_length + length), head_length, self.piece_memory)
            } else {
                let Some((kind, head_length, length)) = self.complete_head()? else { return Ok(None) };
                let missing = head_length + length - self.partial.len();
                let taken = missing.min(self.piece.len());
                self.partial.reserve(missing);
                self.partial.extend_from_slice(&self.piece.split_to(taken));
                if taken < missing {
                    return Ok(None);
                }
                let whole = std::mem::take(&mut self.partial).freeze();
                let memory = whole.len();
                (kind, whole, head_length, memory)
            };
            let Some(kind) = FrameType::from_byte(kind) else { continue };
            whole.advance(head_length);
            let mut frame = Frame::parse(kind, whole)?;
            if let Frame::Data(data) = &mut frame
                && data.bytes.len() * KEEP_SHARE < memory
            {
                data.bytes = Bytes::copy_from_slice(&data.bytes);
            }
            return Ok(Some(frame));
        }
    }

    /// Moves bytes over until the head in `partial` is whole.
    fn complete_head(&mut self) -> Result<Option<(u8, usize, usize)>, WireError> {
        loop {
            if let Some(head) = head(&self.partial)? {
                return Ok(Some(head));
            }
            if self.piece.is_empty() {
                return Ok(None);
            }
            self.partial.extend_from_slice(&self.piece.split_to(1));
        }
    }

    /// Sets the beginning of a frame aside, so that the piece it came in can be freed.
    fn keep(&mut self) -> Result<Option<Frame>, WireError> {
        self.partial.extend_from_slice(&std::mem::take(&mut self.piece));
        Ok(None)
    }
}
