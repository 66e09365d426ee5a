use std::collections::VecDeque;

use bytes::{Buf, Bytes};

/// Pieces shorter than this are joined with their neighbour: a program that writes single bytes
/// must not cost a hundred times what it writes.
const SHORT: usize = 1024;

/// Joined pieces stop growing at this length, so that little is copied again.
const JOINED: usize = 4096;

/// A run of bytes in pieces, appended behind and taken off in front.
#[derive(Debug, Default)]
pub(super) struct Pieces {
    pieces: VecDeque<(u64, Bytes)>,
    begin: u64,
    end: u64,
}

impl Pieces {
    pub(super) fn starting_at(begin: u64) -> Self {
        Self { pieces: VecDeque::new(), begin, end: begin }
    }

    /// Offset of the first byte held.
    pub(super) fn begin(&self) -> u64 {
        self.begin
    }

    /// One past the last byte held.
    pub(super) fn end(&self) -> u64 {
        self.end
    }

    pub(super) fn is_empty(&self) -> bool {
        self.begin == self.end
    }

    pub(super) fn append(&mut self, bytes: Bytes) {
        if bytes.is_empty() {
            return;
        }
        let offset = self.end;
        self.end += bytes.len() as u64;
        if bytes.len() < SHORT
            && let Some((_, last)) = self.pieces.back_mut()
            && last.len() + bytes.len() <= JOINED
        {
            match std::mem::take(last).try_into_mut() {
                Ok(mut whole) => {
                    whole.extend_from_slice(&bytes);
                    *last = whole.freeze();
                    return;
                }
                Err(shared) => *last = shared,
            }
        }
        self.pieces.push_back((offset, bytes));
    }

    /// Moves all of `other`, which begins where this ends or before.
    pub(super) fn append_run(&mut self, mut other: Self) {
        other.drop_below(self.end);
        for (_, piece) in other.pieces {
            self.append(piece);
        }
    }

    /// Takes off the front at most `most` bytes, as far as they lie in one piece.
    pub(super) fn take(&mut self, most: usize) -> Option<Bytes> {
        if most == 0 {
            return None;
        }
        let (offset, front) = self.pieces.front_mut()?;
        let taken = if front.len() <= most {
            self.pieces.pop_front().map(|(_, piece)| piece)?
        } else {
            *offset += most as u64;
            front.split_to(most)
        };
        self.begin += taken.len() as u64;
        Some(taken)
    }

    /// Forgets everything below `offset`.
    pub(super) fn drop_below(&mut self, offset: u64) {
        while let Some((start, piece)) = self.pieces.front_mut() {
            let below = offset.saturating_sub(*start);
            if below == 0 {
                break;
            }
            if below >= piece.len() as u64 {
                self.pieces.pop_front();
            } else {
                piece.advance(below as usize);
                *start = offset;
                break;
            }
        }
        self.begin = self.begin.max(offset.min(self.end));
    }

    /// Appends the bytes from `offset` on, `length` of them, all of which are held, to `into`.
    pub(super) fn copy(&self, offset: u64, length: usize, into: &mut bytes::BytesMut) {
        let mut index = self.pieces.partition_point(|(start, _)| *start <= offset).saturating_sub(1);
        let mut skip =
            offset.saturating_sub(self.pieces.get(index).map_or(offset, |(start, _)| *start)) as usize;
        let mut left = length;
        while left > 0 {
            let Some((_, piece)) = self.pieces.get(index) else { break };
            let part = &piece[skip.min(piece.len())..];
            let part = &part[..part.len().min(left)];
            into.extend_from_slice(part);
            left -= part.len();
            skip = 0;
            index += 1;
        }
    }

    pub(super) fn clear(&mut self) {
        self.pieces = VecDeque::new();
        self.begin = self.end;
    }
}
