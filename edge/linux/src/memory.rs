//! This process's memory.

use std::io;

/// Bytes of memory that this process occupies (`/proc/self/statm`, proc(5)).
pub fn resident_bytes() -> io::Result<u64> {
    let malformed = || io::Error::new(io::ErrorKind::InvalidData, "/proc/self/statm is malformed");
    let text = std::fs::read_to_string("/proc/self/statm")?;
    let pages: u64 = text.split(' ').nth(1).and_then(|pages| pages.parse().ok()).ok_or_else(malformed)?;
    let page = nix::unistd::sysconf(nix::unistd::SysconfVar::PAGE_SIZE)?.ok_or_else(malformed)?;
    Ok(pages.saturating_mul(page.cast_unsigned()))
}

/// Gives memory back to the kernel that was freed.
///
/// The C library keeps what lies between blocks still in use: one small block in each MiB is enough
/// to keep hundreds of MiB.
#[cfg(target_env = "gnu")]
pub fn return_freed() {
    // SAFETY: may be called at any time from any thread (malloc_trim(3)).
    #[expect(unsafe_code, reason = "the C library offers it so")]
    unsafe {
        libc::malloc_trim(0)
    };
}

/// Gives memory back to the kernel that was freed; other C libraries do by themselves.
#[cfg(not(target_env = "gnu"))]
pub fn return_freed() {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn freed_memory_goes_back_even_from_between_blocks_in_use() {
        const BLOCK: usize = 64 << 10;
        let before = resident_bytes().unwrap();
        let blocks: Vec<Vec<u8>> = (0..1024).map(|_| vec![1; BLOCK]).collect();
        assert!(resident_bytes().unwrap() > before + (48 << 20));
        let kept: Vec<Vec<u8>> = blocks.into_iter().step_by(16).collect();
        return_freed();
        assert!(resident_bytes().unwrap() < before + (32 << 20));
        assert_eq!(kept.len(), 64);
    }
}
