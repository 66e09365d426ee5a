//! Integers of variable length, RFC 9000 section 16.

use bytes::BufMut;

/// The greatest value that can be written.
pub const MAX: u64 = (1 << 62) - 1;

/// Bytes that `value` takes.
pub const fn size(value: u64) -> usize {
    match value {
        0..0x40 => 1,
        0x40..0x4000 => 2,
        0x4000..0x4000_0000 => 4,
        _ => 8,
    }
}

/// Appends `value`; what exceeds [`MAX`] is written as [`MAX`].
pub fn put(into: &mut impl BufMut, value: u64) {
    match size(value) {
        1 => into.put_u8(value as u8),
        2 => into.put_u16(value as u16 | 0x4000),
        4 => into.put_u32(value as u32 | 0x8000_0000),
        _ => into.put_u64(value.min(MAX) | 0xC000_0000_0000_0000),
    }
}

/// The integer that `bytes` begin with, and how many bytes it takes; `None` when it is not whole.
pub fn read(bytes: &[u8]) -> Option<(u64, usize)> {
    let first = *bytes.first()?;
    let length = 1 << (first >> 6);
    let rest = bytes.get(1..length)?;
    let value = rest.iter().fold(u64::from(first & 0x3F), |value, &byte| value << 8 | u64::from(byte));
    Some((value, length))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 9000 appendix A.1.
    #[test]
    fn the_examples_of_the_rfc_are_read() {
        let examples: [(&[u8], u64); 5] = [
            (&[0xC2, 0x19, 0x7C, 0x5E, 0xFF, 0x14, 0xE8, 0x8C], 151_288_809_941_952_652),
            (&[0x9D, 0x7F, 0x3E, 0x7D], 494_878_333),
            (&[0x7B, 0xBD], 15_293),
            (&[0x25], 37),
            (&[0x40, 0x25], 37),
        ];
        for (bytes, value) in examples {
            assert_eq!(read(bytes), Some((value, bytes.len())));
            assert_eq!(read(&bytes[..bytes.len() - 1]), None);
        }
    }

    #[test]
    fn what_is_written_is_read_again() {
        for value in [0, 63, 64, 16_383, 16_384, (1 << 30) - 1, 1 << 30, MAX] {
            let mut bytes = Vec::new();
            put(&mut bytes, value);
            assert_eq!(bytes.len(), size(value));
            assert_eq!(read(&bytes), Some((value, bytes.len())));
        }
    }
}
