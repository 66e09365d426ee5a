//! Files of seeded random bytes, the same on every server and in every run.

use std::fs::File;
use std::io::{self, BufWriter, Read, Write};
use std::path::Path;
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result};

/// A stream of random bytes that never ends and never repeats within a test: SplitMix64 (Steele, Lea
/// and Flood, 2014), which is fast also in a debug build and incompressible.
#[derive(Debug, Clone)]
pub struct RandomBytes {
    state: u64,
    /// Bytes of the last word that are still to be given out.
    left: usize,
    word: [u8; 8],
}

impl RandomBytes {
    /// The bytes of `seed`.
    pub fn new(seed: u64) -> Self {
        Self { state: seed, left: 0, word: [0; 8] }
    }

    fn next_word(&mut self) -> [u8; 8] {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)).to_le_bytes()
    }
}

impl Read for RandomBytes {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let length = buffer.len();
        let from_last = self.left.min(length);
        buffer[..from_last].copy_from_slice(&self.word[8 - self.left..][..from_last]);
        self.left -= from_last;
        let mut words = buffer[from_last..].chunks_exact_mut(8);
        for chunk in &mut words {
            chunk.copy_from_slice(&self.next_word());
        }
        let rest = words.into_remainder();
        if !rest.is_empty() {
            self.word = self.next_word();
            rest.copy_from_slice(&self.word[..rest.len()]);
            self.left = 8 - rest.len();
        }
        Ok(length)
    }
}

/// The content of the file `name` of `bytes` bytes in a lab of this seed.
pub fn content(seed: u64, name: &str, bytes: u64) -> io::Take<RandomBytes> {
    let seed = name.bytes().fold(seed ^ bytes, |hash, byte| {
        // FNV-1a's prime, see `multiway_linksim::generator`.
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    RandomBytes::new(seed).take(bytes)
}

/// Writes that file. Its time is fixed, so that servers which make validators from size and time give
/// the same ones.
pub(crate) fn write(file: &Path, seed: u64, name: &str, bytes: u64) -> Result<()> {
    let write = || -> io::Result<()> {
        let mut out = BufWriter::with_capacity(1 << 20, File::create(file)?);
        io::copy(&mut content(seed, name, bytes), &mut out)?;
        out.flush()?;
        // 2026-01-01 00:00 UTC.
        out.get_ref().set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(1_767_225_600))
    };
    write().with_context(|| format!("cannot write {}", file.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_does_not_depend_on_how_it_is_read() {
        let mut whole = Vec::new();
        content(1, "a.bin", 1000).read_to_end(&mut whole).expect("memory");
        let mut pieces = content(1, "a.bin", 1000);
        let mut joined = Vec::new();
        for size in [1, 2, 3, 7, 8, 9, 300, 670] {
            let mut piece = vec![0; size];
            pieces.read_exact(&mut piece).expect("1000 bytes in all");
            joined.extend(piece);
        }
        assert_eq!(whole, joined);
    }

    #[test]
    fn content_differs_by_name_seed_and_size() {
        let start = |seed, name, bytes| {
            let mut start = [0; 8];
            content(seed, name, bytes).read_exact(&mut start).expect("8 bytes");
            start
        };
        let one = start(1, "a.bin", 1000);
        assert_ne!(one, start(2, "a.bin", 1000));
        assert_ne!(one, start(1, "b.bin", 1000));
        assert_ne!(one, start(1, "a.bin", 1001));
    }
}
