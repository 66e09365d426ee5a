//! What goes to the reader at once.

use bytes::{Bytes, BytesMut};

/// Bytes handed to the reader at once.
const DELIVERY_BYTES: u64 = 256 * 1024;

/// Blocks shorter than this are joined: a write costs as much as the copying of about as many bytes.
const SHORT: usize = 64 * 1024;

/// The next bytes for the reader, from a source that gives at most as many as asked for.
///
/// On slow paths bytes arrive segment by segment. When a path reaches what another one has fetched ahead,
/// thousands of segments can go out together; written one by one they would keep the connections waiting
/// for hundreds of milliseconds.
pub(super) fn gather(mut next_bytes: impl FnMut(u64) -> Option<Bytes>) -> Option<Bytes> {
    let first = next_bytes(DELIVERY_BYTES)?;
    if first.len() >= SHORT {
        return Some(first);
    }
    let Some(second) = next_bytes(DELIVERY_BYTES - first.len() as u64) else { return Some(first) };
    let mut gathered = BytesMut::with_capacity(2 * SHORT);
    gathered.extend_from_slice(&first);
    gathered.extend_from_slice(&second);
    while gathered.len() < SHORT
        && let Some(more) = next_bytes(DELIVERY_BYTES - gathered.len() as u64)
    {
        gathered.extend_from_slice(&more);
    }
    Some(gathered.freeze())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Blocks of these lengths, and how often they were asked for.
    fn source(lengths: &[usize]) -> impl FnMut(u64) -> Option<Bytes> {
        let mut blocks: Vec<Bytes> =
            lengths.iter().rev().map(|length| Bytes::from(vec![7; *length])).collect();
        move |most| {
            let block = blocks.last_mut()?;
            let given = block.split_to(block.len().min(usize::try_from(most).expect("small")));
            if block.is_empty() {
                blocks.pop();
            }
            Some(given)
        }
    }

    fn delivered(lengths: &[usize]) -> Vec<usize> {
        let mut next = source(lengths);
        std::iter::from_fn(|| gather(&mut next)).map(|bytes| bytes.len()).collect()
    }

    #[test]
    fn segments_go_out_together() {
        let deliveries = delivered(&[1448; 1000]);
        assert_eq!(deliveries.iter().sum::<usize>(), 1_448_000);
        assert!(deliveries.len() <= 1_448_000 / SHORT + 1, "{} deliveries", deliveries.len());
    }

    #[test]
    fn long_blocks_and_single_ones_are_not_copied() {
        let block = Bytes::from(vec![1; 300_000]);
        let mut left = Some(block.clone());
        let first =
            gather(|most| left.as_mut().map(|left| left.split_to(usize::try_from(most).expect("small"))));
        assert_eq!(first.map(|bytes| bytes.as_ptr()), Some(block.as_ptr()));
        let short = block.slice(..1448);
        let mut left = Some(short.clone());
        assert_eq!(gather(|_| left.take()).map(|bytes| bytes.as_ptr()), Some(short.as_ptr()));
    }

    #[test]
    fn no_delivery_is_longer_than_stated() {
        for lengths in [&[10, 1_000_000, 20][..], &[SHORT - 1, SHORT * 4, 5]] {
            let deliveries = delivered(lengths);
            assert_eq!(deliveries.iter().sum::<usize>(), lengths.iter().sum::<usize>());
            assert!(deliveries.iter().all(|length| *length as u64 <= DELIVERY_BYTES), "{deliveries:?}");
        }
    }
}
