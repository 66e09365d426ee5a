use std::io;
use std::path::{Path, PathBuf};

use url::Url;

use crate::origin::OriginError;
use crate::split::TransferError;
use crate::tls::TlsError;

/// Why a download failed, in the user's words.
#[derive(Debug, thiserror::Error)]
pub enum GetError {
    /// Not a URL that can be downloaded.
    #[error("`{url}` is not a URL that can be downloaded: {reason}")]
    Url {
        /// As given.
        url: String,
        /// What is wrong.
        reason: String,
    },
    /// A header given is malformed.
    #[error("the header `{0}` is malformed")]
    Header(String),
    /// No interface can be used.
    #[error("no network can be used; `multiway paths` tells what each interface lacks")]
    NoPaths,
    /// TLS cannot be set up.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The server's certificate is not trusted.
    #[error("{url}: the server's certificate is not trusted: {reason}")]
    Certificate {
        /// What was asked for.
        url: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The server cannot be reached.
    #[error("{url}: {source}")]
    Unreachable {
        /// What was asked for.
        url: String,
        /// Why.
        source: OriginError,
    },
    /// The server answers with an error.
    #[error("{url}: the server answers with status {status}")]
    Status {
        /// The status.
        status: u16,
        /// What was asked for.
        url: String,
    },
    /// The server sends the client where it does not go.
    #[error("{from} redirects to `{to}`, which is not followed: {reason}")]
    Redirect {
        /// Who redirects.
        from: String,
        /// Where to.
        to: String,
        /// What is wrong with it.
        reason: String,
    },
    /// More redirects than anyone means.
    #[error("{url}: redirected too often")]
    TooManyRedirects {
        /// What was asked for.
        url: String,
    },
    /// The transfer broke off.
    #[error("{url}: {reason}; what came is kept and `--continue` goes on from there")]
    Broken {
        /// What was asked for.
        url: String,
        /// Why.
        reason: String,
    },
    /// The object changed in the middle.
    #[error("{url}: the object changed while it was being fetched; try again")]
    Changed {
        /// What was asked for.
        url: String,
    },
    /// The object is not the one wanted.
    #[error("{}: its SHA-256 is {found}, not {wanted}; it was not put in place", file.display())]
    Checksum {
        /// The file.
        file: PathBuf,
        /// What it should be.
        wanted: String,
        /// What it is.
        found: String,
    },
    /// What was written to a device or pipe is not the object wanted.
    #[error("the SHA-256 of what was written is {found}, not {wanted}; do not use it")]
    StreamChecksum {
        /// What it should be.
        wanted: String,
        /// What it is.
        found: String,
    },
    /// The file cannot be written.
    #[error("cannot write {}: {source}", file.display())]
    File {
        /// The file.
        file: PathBuf,
        /// Why.
        source: io::Error,
    },
}

impl GetError {
    /// A fault of the URL that `from` redirected to is not its user's.
    pub(super) fn of_redirect(self, from: &Url) -> Self {
        match self {
            Self::Url { url: to, reason } => Self::Redirect { from: from.to_string(), to, reason },
            other => other,
        }
    }

    pub(super) fn of_transfer(error: TransferError, url: &Url, file: &Path) -> Self {
        let url = url.to_string();
        match error {
            TransferError::Unreachable(source) if source.is_certificate() => {
                Self::Certificate { url, reason: source.to_string() }
            }
            TransferError::Unreachable(source) => Self::Unreachable { url, source },
            TransferError::NotHttp(_) | TransferError::AllPathsFailed(_) => {
                Self::Broken { url, reason: error.to_string() }
            }
            TransferError::Changed => Self::Changed { url },
            TransferError::Sink(source) => Self::File { file: file.to_owned(), source },
        }
    }
}
