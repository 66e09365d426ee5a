//! The file that a download grows in, under another name until it is complete.

use std::io;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use sha2::{Digest, Sha256};
use tokio::fs::File;
use tokio::io::{AsyncReadExt, AsyncSeekExt, AsyncWrite, AsyncWriteExt, BufWriter};

use super::GetError;
use super::place::Place;
use crate::split::Sink;

/// Bytes at the end of a partial file that are fetched again: something has to be left to compare the
/// rest with, and a machine that went down may have left zeros there.
const STEP_BACK: u64 = 4096;

/// Bytes read at once when what is there already is hashed.
const HASH_BLOCK: usize = 1024 * 1024;

/// Bytes gathered for one write. Each write is a journey to another thread: in pieces as they come from
/// the network, the megabytes behind a gap that closes at the end would take a fifth of a second.
const WRITE_BLOCK: usize = 512 * 1024;

/// `FILE.part`, which becomes `FILE` when it is complete and right; or a stream.
#[derive(Debug)]
pub(super) struct PartialFile {
    target: PathBuf,
    /// What is written: the partial file, or the target itself.
    path: PathBuf,
    /// What was written is out of reach: it can be neither read again nor replaced.
    is_stream: bool,
    file: BufWriter<File>,
    length: u64,
    hash: Option<Sha256>,
}

impl PartialFile {
    /// Opens the partial file of `target`; without `resume` it begins empty.
    pub(super) async fn open(target: &Path, resume: bool, hashed: bool) -> Result<Self, GetError> {
        let place = Place::open(target).map_err(|source| {
            let part = super::place::part_of(target).ok().filter(|_| !target.is_dir());
            GetError::File { file: part.unwrap_or_else(|| target.to_owned()), source }
        })?;
        let is_stream = place.part.is_none();
        let path = place.part.unwrap_or_else(|| target.to_owned());
        let mut file = BufWriter::with_capacity(WRITE_BLOCK, File::from_std(place.file));
        let prepared = async {
            if is_stream {
                return Ok(0);
            }
            let found = if resume { file.seek(io::SeekFrom::End(0)).await? } else { 0 };
            let length = found.saturating_sub(STEP_BACK);
            file.get_mut().set_len(length).await?;
            file.seek(io::SeekFrom::Start(length)).await
        };
        let length = prepared.await.map_err(|source| GetError::File { file: path.clone(), source })?;
        let mut part = Self { target: target.to_owned(), path, is_stream, file, length, hash: None };
        if hashed {
            part.hash = Some(if length == 0 { Sha256::new() } else { part.hash_of_contents().await? });
        }
        Ok(part)
    }

    /// Bytes in it.
    pub(super) fn length(&self) -> u64 {
        self.length
    }

    /// Its name while it grows.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Its last bytes, at most `most`.
    pub(super) async fn tail(&mut self, most: u64) -> Result<Vec<u8>, GetError> {
        if self.is_stream || self.length == 0 {
            return Ok(Vec::new());
        }
        let keep = self.length.min(most);
        let mut tail = vec![0; keep as usize];
        let read = async {
            self.file.seek(io::SeekFrom::Start(self.length - keep)).await?;
            self.file.read_exact(&mut tail).await?;
            self.file.seek(io::SeekFrom::End(0)).await
        };
        read.await.map_err(|source| GetError::File { file: self.path.clone(), source })?;
        Ok(tail)
    }

    /// Empties it.
    pub(super) async fn restart(&mut self) -> Result<(), GetError> {
        if self.is_stream && self.length == 0 {
            return Ok(());
        }
        let emptied = async {
            if self.is_stream {
                return Err(io::Error::other("what was written already cannot be taken back"));
            }
            self.file.flush().await?;
            self.file.get_mut().set_len(0).await?;
            self.file.seek(io::SeekFrom::Start(0)).await
        };
        emptied.await.map_err(|source| GetError::File { file: self.path.clone(), source })?;
        self.length = 0;
        if self.hash.is_some() {
            self.hash = Some(Sha256::new());
        }
        Ok(())
    }

    /// Removes it when nothing came.
    pub(super) async fn remove_if_empty(&self) {
        if self.length == 0 && !self.is_stream {
            // Its name is no harm when it cannot be removed.
            let _ = tokio::fs::remove_file(&self.path).await;
        }
    }

    /// Appends.
    pub(super) async fn write_all(&mut self, bytes: &[u8]) -> Result<(), GetError> {
        let written = self.file.write_all(bytes).await;
        written.map_err(|source| GetError::File { file: self.path.clone(), source })?;
        self.note_written(bytes);
        Ok(())
    }

    /// Waits until everything is with the kernel.
    pub(super) async fn flush(&mut self) -> Result<(), GetError> {
        self.file.flush().await.map_err(|source| GetError::File { file: self.path.clone(), source })
    }

    /// Checks the hash and gives the file its name, under which it stays whole though the machine goes
    /// down; the hash in hexadecimal when there is one.
    pub(super) async fn finish(&mut self, wanted: Option<[u8; 32]>) -> Result<Option<String>, GetError> {
        self.flush().await?;
        let found = self.hash.take().map(|hash| hexadecimal(&hash.finalize()));
        if let (Some(wanted), Some(found)) = (wanted.map(|hash| hexadecimal(&hash)), &found)
            && wanted != *found
        {
            if self.is_stream {
                return Err(GetError::StreamChecksum { wanted, found: found.clone() });
            }
            return Err(GetError::Checksum { file: self.path.clone(), wanted, found: found.clone() });
        }
        if self.is_stream {
            return Ok(found);
        }
        self.settle().await.map_err(|source| GetError::File { file: self.target.clone(), source })?;
        Ok(found)
    }

    /// Puts the file in place, its bytes before its name: a file system may keep a rename and lose what was
    /// written before it, and an empty file would bear the name.
    async fn settle(&self) -> io::Result<()> {
        where_kept(self.file.get_ref().sync_all().await)?;
        tokio::fs::rename(&self.path, &self.target).await?;
        let directory = self.target.parent().filter(|directory| !directory.as_os_str().is_empty());
        match File::open(directory.unwrap_or(Path::new("."))).await {
            Ok(directory) => where_kept(directory.sync_all().await),
            // One may write into a directory that one may not read.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(()),
            Err(error) => Err(error),
        }
    }

    fn note_written(&mut self, bytes: &[u8]) {
        self.length += bytes.len() as u64;
        if let Some(hash) = &mut self.hash {
            hash.update(bytes);
        }
    }

    async fn hash_of_contents(&mut self) -> Result<Sha256, GetError> {
        let mut hash = Sha256::new();
        let hashed = async {
            self.file.seek(io::SeekFrom::Start(0)).await?;
            let mut block = vec![0; HASH_BLOCK];
            loop {
                match self.file.read(&mut block).await? {
                    0 => return Ok(()),
                    read => hash.update(&block[..read]),
                }
            }
        };
        hashed.await.map_err(|source: io::Error| GetError::File { file: self.path.clone(), source })?;
        Ok(hash)
    }
}

impl Sink for PartialFile {
    fn poll_take(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.file).poll_write(cx, bytes))?;
        self.note_written(&bytes[..written]);
        Poll::Ready(Ok(written))
    }

    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.file).poll_flush(cx)
    }
}

/// `synced` but for file systems that keep nothing, fsync(2): EINVAL, and ENOSYS or EOPNOTSUPP of FUSE.
fn where_kept(synced: io::Result<()>) -> io::Result<()> {
    synced.or_else(|error| match error.kind() {
        io::ErrorKind::InvalidInput | io::ErrorKind::Unsupported => Ok(()),
        _ => Err(error),
    })
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
