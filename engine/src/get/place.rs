//! Where a download goes: a partial file beside its target, or a stream that cannot be taken back.

use std::fs::{File, Metadata, OpenOptions, TryLockError};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The name by which users mean the standard output.
const STANDARD_OUTPUT: &str = "-";

/// How often a partial file is opened that another process takes away at the same moment.
const ATTEMPTS: u32 = 10;

/// An open place.
#[derive(Debug)]
pub(super) struct Place {
    pub(super) file: File,
    /// The partial file's name; `None` for a stream.
    pub(super) part: Option<PathBuf>,
}

impl Place {
    /// Opens the place for `target`: the standard output for `-`, a device or pipe itself, and for all
    /// else `TARGET.part`, whose content stays as it is.
    ///
    /// Others may be able to make files in the target's directory, so what is found under the partial
    /// file's name is used only if it is a plain file with this one name: through a link its owner's
    /// other files could be overwritten. It is locked, for two downloads would mix their bytes.
    pub(super) fn open(target: &Path) -> io::Result<Self> {
        if target.as_os_str() == STANDARD_OUTPUT {
            let output = io::stdout().as_fd().try_clone_to_owned()?;
            return Ok(Self { file: output.into(), part: None });
        }
        if is_stream(target)? {
            // A rename would put a file in the device's place.
            return Ok(Self { file: OpenOptions::new().write(true).open(target)?, part: None });
        }
        let part = part_of(target)?;
        Ok(Self { file: open_part(&part)?, part: Some(part) })
    }
}

/// The partial file's name.
pub(super) fn part_of(target: &Path) -> io::Result<PathBuf> {
    let invalid = |reason: &str| io::Error::new(io::ErrorKind::InvalidInput, reason.to_owned());
    let mut name = target.file_name().ok_or_else(|| invalid("it is no name of a file"))?.to_owned();
    if target.as_os_str().as_encoded_bytes().ends_with(b"/") {
        return Err(invalid("it is the name of a directory"));
    }
    name.push(".part");
    Ok(target.with_file_name(name))
}

/// Whether `target` is there and is no plain file: a device, a pipe, or a link in `/dev` or `/proc`
/// such as `/dev/stdout`.
fn is_stream(target: &Path) -> io::Result<bool> {
    let Ok(found) = std::fs::metadata(target) else { return Ok(false) };
    if found.is_dir() {
        return Err(io::Error::new(io::ErrorKind::IsADirectory, "it is a directory"));
    }
    let is_link = std::fs::symlink_metadata(target)?.is_symlink();
    let directory = target.parent().and_then(|parent| parent.canonicalize().ok());
    let is_special =
        directory.is_some_and(|parent| parent.starts_with("/dev") || parent.starts_with("/proc"));
    Ok(!found.is_file() || (is_link && is_special))
}

fn open_part(part: &Path) -> io::Result<File> {
    for _ in 0..ATTEMPTS {
        let mut options = OpenOptions::new();
        options.read(true).write(true);
        // Making it anew never follows a link.
        let file = match options.clone().create_new(true).open(part) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                match std::fs::symlink_metadata(part).and_then(|found| check(&found)) {
                    Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                    found => found?,
                }
                match options.open(part) {
                    Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                    file => file?,
                }
            }
            file => file?,
        };
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(io::Error::new(
                    io::ErrorKind::ResourceBusy,
                    "another download is writing it; wait for its end, or choose another name",
                ));
            }
            // A file system without locks.
            Err(TryLockError::Error(_)) => {}
        }
        // It may have been replaced since it was looked at, or become another download's whole file.
        let opened = file.metadata()?;
        check(&opened)?;
        let same = |now: &Metadata| (now.dev(), now.ino()) == (opened.dev(), opened.ino());
        if std::fs::symlink_metadata(part).is_ok_and(|now| same(&now)) {
            return Ok(file);
        }
    }
    Err(io::Error::new(io::ErrorKind::ResourceBusy, "other processes replace it again and again"))
}

fn check(found: &Metadata) -> io::Result<()> {
    let refuse = |reason: &str| Err(io::Error::new(io::ErrorKind::InvalidInput, reason.to_owned()));
    if found.is_symlink() {
        return refuse("it is a symbolic link, through which another file would be written; remove it");
    }
    if !found.is_file() {
        return refuse("it is no plain file; remove it");
    }
    if found.nlink() > 1 {
        return refuse("it is another file's second name, which would be written too; remove it");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn directory() -> tempfile::TempDir {
        tempfile::tempdir().expect("a writable directory for temporary files")
    }

    #[test]
    fn a_link_in_the_partial_files_place_is_not_followed() {
        let directory = directory();
        let (precious, target) = (directory.path().join("precious"), directory.path().join("file"));
        let part = part_of(&target).expect("a name");
        std::fs::write(&precious, "precious").expect("room");
        std::os::unix::fs::symlink(&precious, &part).expect("room");
        let refused = Place::open(&target).expect_err("a link");
        assert!(refused.to_string().contains("symbolic link"), "{refused}");
        std::fs::remove_file(&part).expect("it is there");
        std::fs::hard_link(&precious, &part).expect("room");
        let refused = Place::open(&target).expect_err("a second name");
        assert!(refused.to_string().contains("second name"), "{refused}");
        std::fs::remove_file(&part).expect("it is there");
        std::os::unix::fs::symlink(directory.path().join("new"), &part).expect("room");
        Place::open(&target).expect_err("a link that leads nowhere");
        assert!(!directory.path().join("new").exists());
        assert_eq!(std::fs::read_to_string(&precious).expect("it is there"), "precious");
    }

    #[test]
    fn two_downloads_do_not_write_one_file() {
        let directory = directory();
        let target = directory.path().join("file");
        let first = Place::open(&target).expect("nobody has it");
        let refused = Place::open(&target).expect_err("it is in use");
        assert!(refused.to_string().contains("another download"), "{refused}");
        drop(first);
        Place::open(&target).expect("nobody has it any more");
    }

    #[test]
    fn a_device_or_pipe_is_written_itself() {
        assert!(Place::open(Path::new("/dev/null")).expect("anyone may").part.is_none());
        assert!(is_stream(Path::new("/dev/stdout")).expect("it is there"));
        assert!(!is_stream(Path::new("/nonexistent/file")).expect("it is not there"));
    }

    #[test]
    fn what_is_no_name_of_a_file_is_refused_before_anything_is_fetched() {
        for target in ["", "..", "/", "a/..", "directory/"] {
            Place::open(Path::new(target)).expect_err(target);
        }
    }
}
