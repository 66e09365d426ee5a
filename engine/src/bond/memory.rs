//! Memory for the bytes of streams, used again.
//!
//! An allocator gives pieces of this size back to the kernel, which then has to clear every page anew: on
//! the relay that was a fifth of all processor time.

use std::sync::{Mutex, PoisonError};

use bytes::Bytes;

/// Bytes of a piece: four DATA frames.
pub(crate) const PIECE: usize = 64 * 1024;

/// Idle pieces that are kept: as much as one stream has on its way through.
const MOST_IDLE: usize = 32;

/// Bytes that fill less of a piece than one in this many are copied to memory of their own size, so that
/// what is held is never more than as many times what it counts as.
const KEEP_SHARE: usize = 4;

static IDLE: Mutex<Vec<Box<[u8]>>> = Mutex::new(Vec::new());

/// Memory to read into.
#[derive(Debug)]
pub(crate) struct Piece {
    memory: Box<[u8]>,
    filled: usize,
}

impl Piece {
    /// A piece, in which there may be anything.
    pub(crate) fn take() -> Self {
        let idle = IDLE.lock().unwrap_or_else(PoisonError::into_inner).pop();
        Self { memory: idle.unwrap_or_else(|| vec![0; PIECE].into()), filled: 0 }
    }

    /// All of it.
    pub(crate) fn memory(&mut self) -> &mut [u8] {
        &mut self.memory
    }

    /// Its first `length` bytes.
    pub(crate) fn into_bytes(mut self, length: usize) -> Bytes {
        self.filled = length;
        if length < PIECE / KEEP_SHARE {
            return Bytes::copy_from_slice(self.as_ref());
        }
        Bytes::from_owner(self)
    }
}

impl AsRef<[u8]> for Piece {
    fn as_ref(&self) -> &[u8] {
        &self.memory[..self.filled]
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        let mut idle = IDLE.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < MOST_IDLE {
            idle.push(std::mem::take(&mut self.memory));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_used_again_only_when_nobody_holds_any_of_its_bytes() {
        for length in [1, PIECE / KEEP_SHARE - 1, PIECE / KEEP_SHARE, PIECE] {
            let mut piece = Piece::take();
            piece.memory()[..length].fill(1);
            let mut whole = piece.into_bytes(length);
            assert_eq!(whole.len(), length);
            let last = whole.split_off(length - 1);
            drop(whole);
            let mut others: Vec<Piece> = (0..=MOST_IDLE).map(|_| Piece::take()).collect();
            others.iter_mut().for_each(|other| other.memory().fill(2));
            assert_eq!(last, [1].as_slice(), "of {length} bytes");
        }
    }
}
