//! Directories for a process's files that are gone when the process is, however it ends.

use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result};
use nix::fcntl::{Flock, FlockArg};
use tempfile::TempDir;

const LOCK_FILE: &str = "lock";

/// Waits for the end of its input, and removes the directory. Who still writes there is being killed: for
/// as long as that takes it tries again, but not for ever.
const SWEEP: &str = "trap '' INT TERM HUP; read -r _; \
                     for _ in 1 2 3 4 5 6 7 8 9 10; do rm -rf -- \"$1\" && exit; sleep 0.2; done";

/// A directory with a name of its own among the system's temporary files. It is removed when this is dropped;
/// when the process is killed, by a child that outlives it for a moment; and if that was killed as well, by the
/// next one with the same prefix.
#[derive(Debug)]
pub struct Directory {
    // In this order: the child is there until the files are gone.
    files: TempDir,
    _sweeper: Sweeper,
    _lock: Flock<File>,
}

impl Directory {
    /// An empty one, whose name begins with `prefix`.
    pub fn new(prefix: &str) -> Result<Self> {
        let temporary = std::env::temp_dir();
        remove_left_behind(&temporary, prefix);
        let files = tempfile::Builder::new()
            .prefix(prefix)
            .tempdir_in(&temporary)
            .with_context(|| format!("cannot make a directory in {}", temporary.display()))?;
        let lock = locked(files.path()).context("cannot lock a directory for temporary files")?;
        let sweeper = Sweeper::start(files.path())?;
        Ok(Self { files, _sweeper: sweeper, _lock: lock })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        self.files.path()
    }
}

/// A child that learns of this process's end from a pipe that only this process holds.
#[derive(Debug)]
struct Sweeper(Child);

impl Sweeper {
    fn start(directory: &Path) -> Result<Self> {
        let mut shell = Command::new("sh");
        shell.args(["-c", SWEEP, "sweep"]).arg(directory);
        // A terminal's signals go to the group that they find there.
        shell.process_group(0).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        shell.spawn().map(Self).context("cannot start sh")
    }
}

impl Drop for Sweeper {
    fn drop(&mut self) {
        // It may have been killed by somebody else.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Makes the lock of a directory. It gets its name when it is held: another process that began at this
/// moment would take a free one for that of a directory left behind.
fn locked(directory: &Path) -> Result<Flock<File>> {
    let unnamed = directory.join("new-lock");
    let lock = Flock::lock(File::create(&unnamed)?, FlockArg::LockExclusiveNonblock);
    let lock = lock.map_err(|(_, error)| error)?;
    std::fs::rename(&unnamed, directory.join(LOCK_FILE))?;
    Ok(lock)
}

/// Removes the directories of processes that are gone: their lock is free.
fn remove_left_behind(temporary: &Path, prefix: &str) {
    let Ok(entries) = std::fs::read_dir(temporary) else { return };
    for entry in entries.flatten() {
        if !entry.file_name().to_string_lossy().starts_with(prefix) {
            continue;
        }
        let directory = entry.path();
        // One that is just being made has no lock file yet.
        let Ok(lock) = File::open(directory.join(LOCK_FILE)) else { continue };
        if Flock::lock(lock, FlockArg::LockExclusiveNonblock).is_ok() {
            // Another process may be removing it at the same time.
            let _ = std::fs::remove_dir_all(&directory);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_left_behind_goes_and_what_is_in_use_stays() {
        let prefix = format!("multiway-directory-test-{}-", std::process::id());
        let used = Directory::new(&prefix).expect("temporary files can be written");
        let left = std::env::temp_dir().join(format!("{prefix}left"));
        std::fs::create_dir(&left).expect("a directory");
        std::fs::write(left.join(LOCK_FILE), "").expect("a file");
        let next = Directory::new(&prefix).expect("temporary files can be written");
        assert!(!left.exists() && used.path().exists() && next.path().exists());
        let path = used.path().to_owned();
        drop(used);
        assert!(!path.exists());
    }
}
