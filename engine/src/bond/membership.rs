//! Which relay this device belongs to: the invite that `multiway join` accepted.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;

use super::invite::{Invite, InviteError};
use crate::private;

/// The name of the file.
const FILE: &str = "relay";

/// Something about the file does not work.
#[derive(Debug, Error)]
pub enum MembershipError {
    /// It cannot be read or written.
    #[error("cannot {verb} {}: {error}", file.display())]
    File {
        /// `read` or `write`.
        verb: &'static str,
        /// The file.
        file: PathBuf,
        /// The kernel's reason.
        error: io::Error,
    },
    /// It has no invite in it.
    #[error("{} is damaged ({error}); join the relay again", file.display())]
    Damaged {
        /// The file.
        file: PathBuf,
        /// What is wrong.
        error: InviteError,
    },
}

/// Where the membership is kept unless configured otherwise: beside the history of measurements.
pub fn default_file() -> Option<PathBuf> {
    crate::paths::default_history_file().map(|history| history.with_file_name(FILE))
}

/// The relay that was joined, if one was.
pub fn load(file: &Path) -> Result<Option<Invite>, MembershipError> {
    match fs::read_to_string(file) {
        Ok(text) => {
            text.parse().map(Some).map_err(|error| MembershipError::Damaged { file: file.to_owned(), error })
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(MembershipError::File { verb: "read", file: file.to_owned(), error }),
    }
}

/// Joins: from now on this is the device's relay, and no other.
pub fn store(file: &Path, invite: &Invite) -> Result<(), MembershipError> {
    let failed = |error| MembershipError::File { verb: "write", file: file.to_owned(), error };
    let directory = file.parent().ok_or_else(|| failed(io::ErrorKind::InvalidInput.into()))?;
    private::make_directory(directory).map_err(failed)?;
    private::write(file, format!("{invite}\n").as_bytes()).map_err(failed)
}

/// Leaves the relay; true when there was one.
pub fn remove(file: &Path) -> Result<bool, MembershipError> {
    match fs::remove_file(file) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(MembershipError::File { verb: "remove", file: file.to_owned(), error }),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;
    use crate::bond::invite::Pin;
    use crate::bond::token::{Token, TokenId, TokenKey};

    #[test]
    fn a_device_has_one_relay_or_none() {
        let home = tempfile::tempdir().unwrap();
        let file = home.path().join("state/relay");
        assert_eq!(load(&file).unwrap(), None);
        let token = Token { id: TokenId([1; 8]), name: String::new(), expires: None, monthly_bytes: None };
        let token = TokenKey::generate().unwrap().sign(&token);
        let invite = Invite { address: "192.0.2.1:443".parse().unwrap(), pin: Pin::of(b"key"), token };
        store(&file, &invite).unwrap();
        assert_eq!(load(&file).unwrap(), Some(invite));
        assert_eq!(fs::metadata(&file).unwrap().mode() & 0o777, 0o600);
        assert!(remove(&file).unwrap() && !remove(&file).unwrap());
        fs::write(&file, "rubbish").unwrap();
        assert!(load(&file).unwrap_err().to_string().contains("damaged"));
    }
}
