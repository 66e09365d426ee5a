//! Pipes of the kernel that bulk tunnels carry their bytes through.

use std::ops::{Deref, DerefMut};
use std::sync::{Mutex, PoisonError};

use multiway_edge::splice::SplicePipe;

/// Bytes that a pipe takes at once: the largest that users may have by default
/// (/proc/sys/fs/pipe-max-size).
const PIPE_BYTES: usize = 1024 * 1024;

/// Pipes at once. A reader that stops keeps its pipe and what is in it, so this bounds the kernel's memory
/// too; who finds none copies.
const MOST_PIPES: usize = 32;

static POOL: Mutex<Pool> = Mutex::new(Pool { idle: Vec::new(), lent: 0 });

struct Pool {
    idle: Vec<SplicePipe>,
    lent: usize,
}

/// A pipe for as long as one burst lasts.
#[derive(Debug)]
pub(super) struct Lent(Option<SplicePipe>);

/// An empty pipe, if there is one to be had.
pub(super) fn lend() -> Option<Lent> {
    let mut pool = POOL.lock().unwrap_or_else(PoisonError::into_inner);
    if pool.lent >= MOST_PIPES {
        return None;
    }
    let pipe = match pool.idle.pop() {
        Some(pipe) => pipe,
        None => SplicePipe::new(PIPE_BYTES).ok()?,
    };
    pool.lent += 1;
    Some(Lent(Some(pipe)))
}

impl Drop for Lent {
    fn drop(&mut self) {
        let mut pool = POOL.lock().unwrap_or_else(PoisonError::into_inner);
        pool.lent -= 1;
        // What a broken connection left in its pipe must reach nobody else.
        if let Some(pipe) = self.0.take().filter(|pipe| pipe.held() == 0) {
            pool.idle.push(pipe);
        }
    }
}

impl Deref for Lent {
    type Target = SplicePipe;

    fn deref(&self) -> &SplicePipe {
        self.0.as_ref().expect("it is there until dropped")
    }
}

impl DerefMut for Lent {
    fn deref_mut(&mut self) -> &mut SplicePipe {
        self.0.as_mut().expect("it is there until dropped")
    }
}
