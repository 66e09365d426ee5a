//! The bytes of the objects that simulated servers serve.

use std::collections::BTreeMap;
use std::sync::Mutex;

use bytes::Bytes;

/// How many versions there are.
pub const VERSIONS: u8 = 3;

/// Made at once, to save making again.
const LEAST_MADE: usize = 4 << 20;

/// Objects made so far, so that thousands of runs share them.
static MADE: Mutex<BTreeMap<u8, Bytes>> = Mutex::new(BTreeMap::new());

/// The first `size` bytes of a version; different versions differ nearly everywhere.
pub fn version(version: u8, size: u64) -> Bytes {
    let size = usize::try_from(size).expect("simulated objects fit into memory");
    let mut made = MADE.lock().expect("making an object does not panic");
    match made.get(&version) {
        Some(object) if object.len() >= size => object.slice(..size),
        _ => {
            let length = size.next_power_of_two().max(LEAST_MADE);
            let object: Bytes = (0..length as u64).map(|offset| byte(version, offset)).collect();
            made.insert(version, object.clone());
            object.slice(..size)
        }
    }
}

/// The byte at `offset` of `version` of the object.
fn byte(version: u8, offset: u64) -> u8 {
    let mixed = (offset ^ (u64::from(version) << 56)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (mixed >> 48) as u8 ^ version.wrapping_mul(0x5D)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_differ_within_every_overlap() {
        let (old, new) = (version(0, 100_000), version(1, 100_000));
        let same = old.iter().zip(&new).filter(|(a, b)| a == b).count();
        assert!(same < 1_000, "{same}");
    }
}
