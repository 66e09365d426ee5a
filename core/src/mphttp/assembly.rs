//! Puts pieces from several connections into one stream, and verifies every boundary on the way.
//!
//! A piece is a contiguous stretch of the object from one connection. Bytes leave in order. Where
//! the stream passes from one piece to another, the new piece must hold the last bytes already
//! delivered (the overlap, FLEETY section 4.3), and they must be equal; until they are there and
//! equal, nothing past the boundary is delivered.

use std::collections::{BTreeMap, VecDeque};

use bytes::{Buf, Bytes};

/// Names a piece within one [`Assembly`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PieceId(u32);

/// Outcome of asking an [`Assembly`] for more of the stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Next {
    /// The next bytes of the stream.
    Bytes(Bytes),
    /// Nothing can be delivered yet.
    Wait,
    /// The overlap at `offset` differs between the piece delivered so far and another.
    Mismatch {
        /// The boundary in the object.
        offset: u64,
        /// The piece that differs from what was delivered.
        piece: PieceId,
    },
}

#[derive(Debug)]
struct Piece {
    /// Offset of the first byte still held.
    start: u64,
    /// Offset past the last byte received.
    end: u64,
    chunks: VecDeque<Bytes>,
}

impl Piece {
    fn held(&self) -> u64 {
        self.end - self.start
    }

    /// Drops held bytes below `offset`; how many.
    fn trim_below(&mut self, offset: u64) -> u64 {
        let before = self.start;
        while self.start < offset {
            let Some(front) = self.chunks.front_mut() else {
                // All held bytes are gone; later ones append at `end`.
                self.start = self.end;
                break;
            };
            let drop = (offset - self.start).min(front.len() as u64);
            front.advance(drop as usize);
            self.start += drop;
            if front.is_empty() {
                self.chunks.pop_front();
            }
        }
        self.start - before
    }

    /// Compares the bytes from `offset` on with `expected`; `None` when not all are held.
    fn matches(&self, offset: u64, expected: &[u8]) -> Option<bool> {
        if offset < self.start || self.end.saturating_sub(offset) < expected.len() as u64 {
            return None;
        }
        let mut skip = (offset - self.start) as usize;
        let mut rest = expected;
        for chunk in &self.chunks {
            if skip >= chunk.len() {
                skip -= chunk.len();
                continue;
            }
            let take = rest.len().min(chunk.len() - skip);
            if chunk[skip..skip + take] != rest[..take] {
                return Some(false);
            }
            rest = &rest[take..];
            skip = 0;
            if rest.is_empty() {
                break;
            }
        }
        Some(true)
    }

    /// Takes the chunk that begins at `offset`, keeping a reference for later comparisons.
    fn chunk_at(&self, offset: u64) -> Option<Bytes> {
        let mut at = self.start;
        for chunk in &self.chunks {
            let end = at + chunk.len() as u64;
            if offset < end {
                return Some(chunk.slice((offset.saturating_sub(at)) as usize..));
            }
            at = end;
        }
        None
    }
}

/// Reassembles the stream from its beginning to wherever its pieces reach.
#[derive(Debug)]
pub struct Assembly {
    begin: u64,
    frontier: u64,
    overlap: u64,
    /// The last delivered bytes, at most `overlap` of them.
    tail: VecDeque<u8>,
    current: Option<PieceId>,
    pieces: BTreeMap<PieceId, Piece>,
    next_piece: u32,
    boundaries_verified: u64,
    /// Sum over `pieces`.
    held: u64,
}

impl Assembly {
    /// A stream that starts at offset `begin` and verifies `overlap` bytes at each boundary.
    ///
    /// `tail` holds bytes known to stand just before `begin`, for instance the end of a partial
    /// file; the first piece is then verified against them.
    pub fn new(begin: u64, overlap: u64, tail: &[u8]) -> Self {
        let keep = tail.len().min(overlap as usize).min(usize::try_from(begin).unwrap_or(usize::MAX));
        Self {
            begin: begin - keep as u64,
            frontier: begin,
            overlap,
            tail: tail[tail.len() - keep..].iter().copied().collect(),
            current: None,
            pieces: BTreeMap::new(),
            next_piece: 0,
            boundaries_verified: 0,
            held: 0,
        }
    }

    /// Offset of the next byte to deliver.
    pub fn frontier(&self) -> u64 {
        self.frontier
    }

    /// Boundaries whose overlap was compared and found equal.
    pub fn boundaries_verified(&self) -> u64 {
        self.boundaries_verified
    }

    /// The piece that the last delivered byte came from.
    pub fn current(&self) -> Option<PieceId> {
        self.current
    }

    /// Where a piece must begin so that a boundary at `offset` can be verified.
    pub fn start_for_boundary(&self, offset: u64) -> u64 {
        offset.saturating_sub(self.overlap).max(self.begin)
    }

    /// Begins a piece whose first byte stands at `start` in the object.
    pub fn open(&mut self, start: u64) -> PieceId {
        let id = PieceId(self.next_piece);
        self.next_piece += 1;
        self.pieces.insert(id, Piece { start, end: start, chunks: VecDeque::new() });
        id
    }

    /// Offset of the first byte held, or to come, of `piece`; `None` when it was discarded.
    pub fn start_of(&self, piece: PieceId) -> Option<u64> {
        self.pieces.get(&piece).map(|p| p.start)
    }

    /// Appends bytes to a piece; bytes that can no longer be of use are dropped at once.
    pub fn append(&mut self, piece: PieceId, bytes: Bytes) {
        let floor = self.floor();
        if let Some(piece) = self.pieces.get_mut(&piece) {
            self.held += bytes.len() as u64;
            piece.end += bytes.len() as u64;
            piece.chunks.push_back(bytes);
            self.held -= piece.trim_below(floor);
        }
    }

    /// Forgets a piece and what it holds.
    pub fn discard(&mut self, piece: PieceId) {
        if let Some(piece) = self.pieces.remove(&piece) {
            self.held -= piece.held();
        }
        if self.current == Some(piece) {
            self.current = None;
        }
    }

    /// Whether a piece was neither discarded nor retired.
    pub fn contains(&self, piece: PieceId) -> bool {
        self.pieces.contains_key(&piece)
    }

    /// Forgets the pieces that hold nothing past the frontier and to which, by `is_live`, nothing
    /// will be added.
    pub fn retire(&mut self, is_live: impl Fn(PieceId) -> bool) {
        let (frontier, current) = (self.frontier, self.current);
        let held = &mut self.held;
        self.pieces.retain(|id, piece| {
            let keep = (piece.end > frontier && piece.held() > 0) || current == Some(*id) || is_live(*id);
            if !keep {
                *held -= piece.held();
            }
            keep
        });
    }

    /// Bytes held in memory.
    pub fn held(&self) -> u64 {
        self.held
    }

    /// The piece that begins last, other than the current one.
    pub fn furthest(&self) -> Option<PieceId> {
        let others = self.pieces.iter().filter(|(id, _)| self.current != Some(**id));
        others.max_by_key(|(_, piece)| piece.start).map(|(id, _)| *id)
    }

    /// Pieces that hold the frontier and can never be verified there: they begin too late.
    pub fn without_overlap(&self) -> Vec<PieceId> {
        let boundary = self.floor();
        let late = |p: &Piece| p.start > boundary && p.start <= self.frontier && p.end > self.frontier;
        self.pieces
            .iter()
            .filter(|(id, p)| self.current != Some(**id) && late(p))
            .map(|(id, _)| *id)
            .collect()
    }

    /// End of what pieces hold from `offset` on, each with enough overlap to be verified against
    /// the one before; `offset` itself when none does.
    pub fn held_from(&self, offset: u64) -> u64 {
        let mut reach = offset;
        while let Some(further) =
            self.pieces.iter().filter(|(id, p)| self.continues(**id, p, reach)).map(|(_, p)| p.end).max()
        {
            reach = further;
        }
        reach
    }

    /// What each piece holds past its first overlap: the most that it can carry the stream on with.
    pub fn held_past_overlaps(&self) -> Vec<(u64, u64)> {
        let spans = self.pieces.values().map(|piece| {
            let from = if piece.start == self.begin { piece.start } else { piece.start + self.overlap };
            (from, piece.end)
        });
        spans.filter(|(from, to)| from < to).collect()
    }

    /// Whether a piece can carry the stream on from `reach`.
    ///
    /// A piece that holds the byte but not the overlap before it cannot: when the piece before
    /// ended early, inside the overlap, the stretch has to be asked for again.
    fn continues(&self, id: PieceId, piece: &Piece, reach: u64) -> bool {
        let verified = self.current == Some(id) && reach == self.frontier;
        let from = if verified { reach } else { self.start_for_boundary(reach) };
        piece.start <= from && piece.end > reach
    }

    /// The next bytes of the stream, at most `most`.
    pub fn next(&mut self, most: u64) -> Next {
        if most == 0 {
            return Next::Wait;
        }
        if !self.holds_frontier(self.current) {
            match self.switch() {
                Ok(true) => {}
                Ok(false) => return Next::Wait,
                Err(piece) => return Next::Mismatch { offset: self.frontier, piece },
            }
        }
        let current = self.current.expect("a piece holds the frontier");
        let mut bytes = self.pieces[&current].chunk_at(self.frontier).expect("a piece holds the frontier");
        bytes.truncate(usize::try_from(most).unwrap_or(usize::MAX));
        self.advance(&bytes);
        Next::Bytes(bytes)
    }

    fn holds_frontier(&self, piece: Option<PieceId>) -> bool {
        piece
            .and_then(|id| self.pieces.get(&id))
            .is_some_and(|p| p.start <= self.frontier && p.end > self.frontier)
    }

    /// Makes the piece that reaches furthest the current one, if its overlap matches.
    fn switch(&mut self) -> Result<bool, PieceId> {
        let expected: Vec<u8> = self.tail.iter().copied().collect();
        let boundary = self.frontier - expected.len() as u64;
        let best = self
            .pieces
            .iter()
            .filter(|(_, p)| p.start <= boundary && p.end > self.frontier)
            .max_by_key(|(_, p)| p.end)
            .map(|(id, _)| *id);
        let Some(id) = best else { return Ok(false) };
        match self.pieces[&id].matches(boundary, &expected) {
            Some(true) => {
                if !expected.is_empty() {
                    self.boundaries_verified += 1;
                }
                self.current = Some(id);
                Ok(true)
            }
            Some(false) => Err(id),
            None => Ok(false),
        }
    }

    fn advance(&mut self, delivered: &[u8]) {
        self.frontier += delivered.len() as u64;
        let keep = self.overlap as usize;
        let fresh = &delivered[delivered.len().saturating_sub(keep)..];
        let surplus = (self.tail.len() + fresh.len()).saturating_sub(keep);
        self.tail.drain(..surplus.min(self.tail.len()));
        self.tail.extend(fresh);
        let floor = self.floor();
        for piece in self.pieces.values_mut() {
            self.held -= piece.trim_below(floor);
        }
    }

    /// No byte below this offset can matter any more.
    fn floor(&self) -> u64 {
        self.frontier - self.tail.len() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OVERLAP: u64 = 4;

    fn drain(assembly: &mut Assembly) -> (Vec<u8>, Next) {
        let mut out = Vec::new();
        loop {
            match assembly.next(u64::MAX) {
                Next::Bytes(bytes) => out.extend_from_slice(&bytes),
                other => return (out, other),
            }
        }
    }

    #[test]
    fn pieces_join_in_order_when_their_overlap_matches() {
        let object = b"the quick brown fox jumps";
        let mut assembly = Assembly::new(0, OVERLAP, b"");
        let low = assembly.open(0);
        let high = assembly.open(assembly.start_for_boundary(10));
        assembly.append(high, Bytes::copy_from_slice(&object[6..]));
        assert_eq!(drain(&mut assembly), (vec![], Next::Wait));
        assembly.append(low, Bytes::copy_from_slice(&object[..9]));
        assert_eq!(drain(&mut assembly).0, &object[..9], "nothing past the boundary yet");
        assembly.append(low, Bytes::copy_from_slice(&object[9..10]));
        assert_eq!(drain(&mut assembly).0, &object[9..]);
        assert_eq!(assembly.boundaries_verified(), 1);
    }

    #[test]
    fn a_differing_overlap_stops_the_stream_at_the_boundary() {
        let mut assembly = Assembly::new(0, OVERLAP, b"");
        let low = assembly.open(0);
        let high = assembly.open(6);
        assembly.append(low, Bytes::from_static(b"aaaaaaaaaa"));
        assembly.append(high, Bytes::from_static(b"bbbbbbbb"));
        let (out, stopped) = drain(&mut assembly);
        assert_eq!(out, b"aaaaaaaaaa");
        assert_eq!(stopped, Next::Mismatch { offset: 10, piece: high });
        assembly.discard(high);
        assembly.append(low, Bytes::from_static(b"aa"));
        assert_eq!(drain(&mut assembly).0, b"aa");
    }

    #[test]
    fn a_resumed_stream_is_verified_against_what_the_file_ends_with() {
        let mut assembly = Assembly::new(100, OVERLAP, b"....wxyz");
        let piece = assembly.open(assembly.start_for_boundary(100));
        assembly.append(piece, Bytes::from_static(b"wxyzmore"));
        assert_eq!(drain(&mut assembly).0, b"more");

        let mut assembly = Assembly::new(100, OVERLAP, b"....wxyz");
        let piece = assembly.open(96);
        assembly.append(piece, Bytes::from_static(b"WXYZmore"));
        assert_eq!(drain(&mut assembly).1, Next::Mismatch { offset: 100, piece });
    }

    #[test]
    fn delivered_bytes_are_not_kept() {
        let mut assembly = Assembly::new(0, OVERLAP, b"");
        let low = assembly.open(0);
        for _ in 0..100 {
            assembly.append(low, Bytes::from_static(&[7; 1000]));
            drain(&mut assembly);
        }
        assert_eq!(assembly.held(), OVERLAP);
    }
}
