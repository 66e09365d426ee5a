//! Files with secrets: readable by their owner only, and never half written.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

/// Read and written by the owner only.
const MODE: u32 = 0o600;

/// The same for a directory.
const DIRECTORY_MODE: u32 = 0o700;

/// Makes `directory` and those above it; the last one is the owner's alone if it is made here.
pub(crate) fn make_directory(directory: &Path) -> io::Result<()> {
    if directory.is_dir() {
        return Ok(());
    }
    fs::create_dir_all(directory)?;
    fs::set_permissions(directory, Permissions::from_mode(DIRECTORY_MODE))
}

/// Puts `content` in the place of `file` in one step.
///
/// It belongs to the owner of its directory: what root changes there stays readable for the service.
pub(crate) fn write(file: &Path, content: &[u8]) -> io::Result<()> {
    let directory = file.parent().ok_or(io::ErrorKind::InvalidInput)?;
    let mut name = file.file_name().ok_or(io::ErrorKind::InvalidInput)?.to_owned();
    name.push(format!(".{}.new", std::process::id()));
    let new = directory.join(name);
    let written = write_new(&new, content, directory).and_then(|()| fs::rename(&new, file));
    if written.is_err() {
        // It may not even have been made.
        let _ = fs::remove_file(&new);
        return written;
    }
    File::open(directory)?.sync_all()
}

fn write_new(new: &Path, content: &[u8], directory: &Path) -> io::Result<()> {
    let mut opened = OpenOptions::new().write(true).create(true).truncate(true).mode(MODE).open(new)?;
    // What a killed process left behind keeps the mode it had.
    opened.set_permissions(Permissions::from_mode(MODE))?;
    let (own, owner) = (opened.metadata()?, fs::metadata(directory)?);
    if own.uid() == 0 && owner.uid() != 0 {
        std::os::unix::fs::fchown(&opened, Some(owner.uid()), Some(owner.gid()))?;
    }
    opened.write_all(content)?;
    opened.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_its_owners_alone_and_replaced_whole() {
        let home = tempfile::tempdir().unwrap();
        let directory = home.path().join("a/b");
        make_directory(&directory).unwrap();
        assert_eq!(fs::metadata(&directory).unwrap().mode() & 0o777, DIRECTORY_MODE);
        let file = directory.join("secret");
        write(&file, b"one").unwrap();
        write(&file, b"two").unwrap();
        assert_eq!(fs::read(&file).unwrap(), b"two");
        assert_eq!(fs::metadata(&file).unwrap().mode() & 0o777, MODE);
        assert_eq!(fs::read_dir(&directory).unwrap().count(), 1);
        assert!(write(&directory, b"a directory is in the way").is_err());
        assert_eq!(fs::read_dir(home.path().join("a")).unwrap().count(), 1);
    }
}
