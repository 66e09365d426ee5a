use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};

use thiserror::Error;
use tokio::net::{UnixListener, UnixSocket};

use super::Access;

/// Connections that wait to be accepted; the command line makes one at a time.
const BACKLOG: u32 = 64;

/// Why there is no control socket.
#[derive(Debug, Error)]
pub enum ControlError {
    /// Another daemon listens on it.
    #[error("another daemon answers on the control socket {}; stop it, or give this one another socket", socket.display())]
    AnotherDaemon {
        /// The socket.
        socket: PathBuf,
    },
    /// There is something else of this name.
    #[error("{} is there already and is no socket; remove it, or name another control socket", socket.display())]
    NoSocket {
        /// The name.
        socket: PathBuf,
    },
    /// The kernel refused.
    #[error("cannot make the control socket {}: {error}", socket.display())]
    Failed {
        /// The socket.
        socket: PathBuf,
        /// The kernel's reason.
        error: io::Error,
    },
}

/// A listening control socket; its name goes away with it.
#[derive(Debug)]
pub struct ControlSocket {
    pub(super) listener: Option<UnixListener>,
    pub(super) access: Access,
    path: PathBuf,
    /// Device and inode, by which another daemon's socket of the same name is told apart.
    identity: (u64, u64),
}

impl ControlSocket {
    /// Listens at `path`, in place of a socket that a killed daemon left behind.
    pub fn bind(path: &Path, access: Access) -> Result<Self, ControlError> {
        remove_stale(path)?;
        let failed = |error| ControlError::Failed { socket: path.to_owned(), error };
        if let Some(directory) = path.parent().filter(|directory| !directory.as_os_str().is_empty()) {
            fs::DirBuilder::new().recursive(true).mode(0o755).create(directory).map_err(failed)?;
        }
        let socket = UnixSocket::new_stream().map_err(failed)?;
        socket.bind(path).map_err(failed)?;
        // Nobody can connect before `listen`, and by then mode and group are right.
        let listener = prepare(path, access).and_then(|identity| Ok((socket.listen(BACKLOG)?, identity)));
        match listener {
            Ok((listener, identity)) => {
                Ok(Self { listener: Some(listener), access, path: path.to_owned(), identity })
            }
            Err(error) => {
                let _ = fs::remove_file(path);
                Err(failed(error))
            }
        }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for ControlSocket {
    fn drop(&mut self) {
        let ours =
            fs::symlink_metadata(&self.path).is_ok_and(|file| (file.dev(), file.ino()) == self.identity);
        if ours && let Err(error) = fs::remove_file(&self.path) {
            tracing::warn!(%error, socket = %self.path.display(), "the control socket could not be removed");
        }
    }
}

fn prepare(path: &Path, access: Access) -> io::Result<(u64, u64)> {
    if let Some(group) = access.group {
        chown(path, None, Some(group))?;
    }
    fs::set_permissions(path, fs::Permissions::from_mode(access.mode()))?;
    let file = fs::symlink_metadata(path)?;
    Ok((file.dev(), file.ino()))
}

fn remove_stale(path: &Path) -> Result<(), ControlError> {
    let failed = |error| ControlError::Failed { socket: path.to_owned(), error };
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(failed(error)),
        Ok(file) if !file.file_type().is_socket() => {
            return Err(ControlError::NoSocket { socket: path.to_owned() });
        }
        Ok(_) => {}
    }
    match std::os::unix::net::UnixStream::connect(path) {
        Ok(_) => Err(ControlError::AnotherDaemon { socket: path.to_owned() }),
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            fs::remove_file(path).map_err(failed)
        }
        Err(error) => Err(failed(error)),
    }
}
