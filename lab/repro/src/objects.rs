//! The objects that are fetched: random bytes, written once and served by every server.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result};
use multiway_netlab::{Directory, content};
use sha2::{Digest, Sha256};

/// A digest of an object.
pub(crate) type Sha = [u8; 32];

/// Objects by size, in a directory that goes with this.
pub(crate) struct Objects {
    directory: Directory,
    digests: BTreeMap<u64, Sha>,
}

impl Objects {
    /// Writes an object of each size.
    pub(crate) fn write(sizes: impl IntoIterator<Item = u64>) -> Result<Self> {
        let mut objects = Self { directory: Directory::new("multiway-repro-")?, digests: BTreeMap::new() };
        for bytes in sizes {
            if !objects.digests.contains_key(&bytes) {
                let file = objects.file(bytes);
                let digest =
                    write_object(&file, bytes).with_context(|| format!("cannot write {}", file.display()))?;
                objects.digests.insert(bytes, digest);
            }
        }
        Ok(objects)
    }

    fn file(&self, bytes: u64) -> PathBuf {
        self.directory.path().join(format!("{bytes}.bin"))
    }

    /// Where they are; other files may go there too.
    pub(crate) fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// Lets a server serve the object of this size as `object.bin`.
    pub(crate) fn serve(&self, bytes: u64, root: &Path) -> Result<()> {
        let link = root.join("object.bin");
        std::os::unix::fs::symlink(self.file(bytes), &link)
            .with_context(|| format!("cannot make {}", link.display()))
    }

    /// The digest of the object of this size.
    pub(crate) fn digest(&self, bytes: u64) -> &Sha {
        &self.digests[&bytes]
    }

    /// Whether this file holds the object of this size.
    pub(crate) fn is_in(&self, file: &Path, bytes: u64) -> Result<bool> {
        let mut file =
            File::open(file).with_context(|| format!("nothing was written to {}", file.display()))?;
        let mut hasher = Hasher::default();
        io::copy(&mut file, &mut hasher)?;
        Ok(hasher.finish() == *self.digest(bytes))
    }
}

fn write_object(file: &Path, bytes: u64) -> io::Result<Sha> {
    let mut hasher = Hasher::default();
    let mut out = BufWriter::with_capacity(1 << 20, File::create(file)?);
    let mut source = content::content(0, "object", bytes);
    let mut piece = vec![0; 1 << 16];
    loop {
        let count = source.read(&mut piece)?;
        if count == 0 {
            break;
        }
        out.write_all(&piece[..count])?;
        hasher.write_all(&piece[..count])?;
    }
    out.flush()?;
    // 2026-01-01 00:00 UTC: the same validators in every run.
    out.get_ref().set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(1_767_225_600))?;
    Ok(hasher.finish())
}

/// SHA-256 of what is written to it.
#[derive(Default)]
pub(crate) struct Hasher(Sha256);

impl Hasher {
    pub(crate) fn finish(self) -> Sha {
        self.0.finalize().into()
    }
}

impl Write for Hasher {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.update(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_is_recognised_and_another_is_not() {
        let objects = Objects::write([100_000, 5]).expect("the temporary directory is writable");
        let root = tempfile::tempdir().expect("a directory");
        objects.serve(100_000, root.path()).expect("a link");
        let file = root.path().join("object.bin");
        assert!(objects.is_in(&file, 100_000).expect("readable"));
        assert!(!objects.is_in(&file, 5).expect("readable"));
        assert!(objects.is_in(&root.path().join("none"), 5).is_err());
    }
}
