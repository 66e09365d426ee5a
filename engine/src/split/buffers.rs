//! The memory that transfers share.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Least memory for one transfer, however many there are.
const LEAST_BYTES: u64 = 256 * 1024;

/// Memory that transfers have in common; clones are the same memory.
///
/// Each may hold as much as is free, up to a bound of its own: a shared buffer's dynamic threshold
/// (Choudhury and Hahne, "Dynamic queue length thresholds for shared-memory packet switches",
/// 1998, with alpha = 1). A few transfers get all they can use, and however many there are, what
/// they hold stays within the total and the least that each of them has.
#[derive(Debug, Clone)]
pub struct SharedBuffers {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    total: u64,
    each: u64,
    held: AtomicU64,
}

impl SharedBuffers {
    /// `total` bytes for all transfers together, at most `each` for one.
    pub fn new(total: u64, each: u64) -> Self {
        Self { shared: Arc::new(Shared { total, each, held: AtomicU64::new(0) }) }
    }

    /// Memory for one transfer that shares it with no other.
    pub fn unshared(bytes: u64) -> Self {
        Self::new(u64::MAX, bytes)
    }

    /// Bytes held by all transfers.
    pub fn held(&self) -> u64 {
        self.shared.held.load(Ordering::Relaxed)
    }

    /// A part for one more transfer.
    pub(super) fn share(&self) -> Share {
        Share { buffers: self.clone(), held: 0 }
    }
}

/// One transfer's part of the memory; what it holds is free again when it is dropped.
#[derive(Debug)]
pub(super) struct Share {
    buffers: SharedBuffers,
    held: u64,
}

impl Share {
    /// Most bytes that the transfer may hold now.
    pub(super) fn limit(&self) -> u64 {
        let free = self.buffers.shared.total.saturating_sub(self.buffers.held());
        free.max(LEAST_BYTES).min(self.buffers.shared.each)
    }

    /// Notes that the transfer holds `bytes` now.
    pub(super) fn note(&mut self, bytes: u64) {
        let held = &self.buffers.shared.held;
        if bytes >= self.held {
            held.fetch_add(bytes - self.held, Ordering::Relaxed);
        } else {
            held.fetch_sub(self.held - bytes, Ordering::Relaxed);
        }
        self.held = bytes;
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.note(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn one_transfer_gets_its_bound_and_many_share_the_total() {
        let buffers = SharedBuffers::new(256 * MIB, 64 * MIB);
        let mut shares: Vec<Share> = Vec::new();
        for _ in 0..1000 {
            let mut share = buffers.share();
            assert!(!shares.is_empty() || share.limit() == 64 * MIB);
            // A reader that does not read: it fills, a little at a time.
            let mut held = 0;
            while held < share.limit() {
                held += LEAST_BYTES / 4;
                share.note(held);
            }
            shares.push(share);
        }
        assert!(buffers.held() <= 256 * MIB + 1000 * LEAST_BYTES, "{}", buffers.held());
        drop(shares);
        assert_eq!(buffers.held(), 0);
        assert_eq!(buffers.share().limit(), 64 * MIB);
    }

    #[test]
    fn unshared_memory_is_one_transfers_alone() {
        let mut share = SharedBuffers::unshared(MIB).share();
        share.note(MIB);
        assert_eq!(share.limit(), MIB);
    }
}
