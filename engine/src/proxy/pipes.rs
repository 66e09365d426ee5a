//! Pipes of the kernel that bulk tunnels carry their bytes through.

use std::ops::{Deref, DerefMut};
use std::sync::{Mutex, MutexGuard, PoisonError};

use multiway_edge::splice::SplicePipe;

/// Bytes that a pipe takes at once: the largest that users may have by default
/// (/proc/sys/fs/pipe-max-size).
const PIPE_BYTES: usize = 1024 * 1024;

/// Pipes at once. A reader that stops keeps its pipe and what is in it, so this bounds the kernel's memory
/// too; who finds none copies.
const MOST_PIPES: usize = 32;

/// The pipes of all tunnels.
pub(super) static PIPES: Pipes = Pipes::new();

/// Pipes to be lent.
#[derive(Debug)]
pub(super) struct Pipes(Mutex<Pool>);

#[derive(Debug)]
struct Pool {
    idle: Vec<SplicePipe>,
    lent: usize,
}

impl Pipes {
    const fn new() -> Self {
        Self(Mutex::new(Pool { idle: Vec::new(), lent: 0 }))
    }

    /// An empty pipe, if there is one to be had.
    pub(super) fn lend(&'static self) -> Option<Lent> {
        let mut pool = self.pool();
        if pool.lent >= MOST_PIPES {
            return None;
        }
        let pipe = match pool.idle.pop() {
            Some(pipe) => pipe,
            None => SplicePipe::new(PIPE_BYTES).ok()?,
        };
        pool.lent += 1;
        Some(Lent { pipe: Some(pipe), owner: self })
    }

    fn pool(&self) -> MutexGuard<'_, Pool> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A pipe for as long as one burst lasts.
#[derive(Debug)]
pub(super) struct Lent {
    pipe: Option<SplicePipe>,
    owner: &'static Pipes,
}

impl Drop for Lent {
    fn drop(&mut self) {
        let mut pool = self.owner.pool();
        pool.lent -= 1;
        // What a broken connection left in its pipe must reach nobody else.
        if let Some(pipe) = self.pipe.take().filter(|pipe| pipe.held() == 0) {
            pool.idle.push(pipe);
        }
    }
}

impl Deref for Lent {
    type Target = SplicePipe;

    fn deref(&self) -> &SplicePipe {
        self.pipe.as_ref().expect("it is there until dropped")
    }
}

impl DerefMut for Lent {
    fn deref_mut(&mut self) -> &mut SplicePipe {
        self.pipe.as_mut().expect("it is there until dropped")
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    use super::*;

    fn pipes() -> &'static Pipes {
        Box::leak(Box::new(Pipes::new()))
    }

    #[test]
    fn there_are_only_so_many_pipes_and_they_come_back() {
        let pipes = pipes();
        let mut lent: Vec<Lent> = std::iter::from_fn(|| pipes.lend()).collect();
        assert_eq!(lent.len(), MOST_PIPES);
        lent.pop();
        assert!(pipes.lend().is_some());
        assert!(pipes.lend().is_some(), "it came back");
    }

    #[test]
    fn a_pipe_that_holds_bytes_is_not_lent_again() {
        let pipes = pipes();
        let (mut near, far) = UnixStream::pair().expect("two sockets");
        near.write_all(b"left behind").expect("room");
        let mut pipe = pipes.lend().expect("a pipe");
        assert_eq!(pipe.fill(far.as_fd()).expect("bytes"), 11);
        drop(pipe);
        assert!(pipes.pool().idle.is_empty());
        assert_eq!(pipes.lend().expect("another").held(), 0);
    }
}
