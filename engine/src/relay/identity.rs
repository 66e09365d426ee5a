//! A relay's keys: that of its certificate, which devices pin, and that which signs tokens.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use rustls::server::ParsedCertificate;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use thiserror::Error;

use crate::bond::invite::Pin;
use crate::bond::token::TokenKey;
use crate::private;

/// Certificate and key of TLS, in PEM.
const TLS_FILE: &str = "identity.pem";

/// The key of tokens, PKCS#8 in DER.
const TOKEN_FILE: &str = "tokens.key";

/// Held while a file of the state directory is changed.
const LOCK_FILE: &str = "lock";

/// The name in the certificate; nobody checks it, for the key is pinned.
const CERTIFICATE_NAME: &str = "multiway-relay";

/// Something about a relay's state directory does not work.
#[derive(Debug, Error)]
pub enum StateError {
    /// A file cannot be read or written.
    #[error("cannot {verb} {}: {error}", file.display())]
    File {
        /// `read` or `write`.
        verb: &'static str,
        /// The file.
        file: PathBuf,
        /// The kernel's reason.
        error: io::Error,
    },
    /// A file has other content than was written there.
    #[error("{} is damaged: {reason}", file.display())]
    Damaged {
        /// The file.
        file: PathBuf,
        /// What is wrong.
        reason: String,
    },
}

impl StateError {
    pub(super) fn read(file: &Path) -> impl FnOnce(io::Error) -> Self + use<'_> {
        move |error| Self::File { verb: "read", file: file.to_owned(), error }
    }

    pub(super) fn write(file: &Path) -> impl FnOnce(io::Error) -> Self + use<'_> {
        move |error| Self::File { verb: "write", file: file.to_owned(), error }
    }

    pub(super) fn damaged(file: &Path, reason: impl ToString) -> Self {
        Self::Damaged { file: file.to_owned(), reason: reason.to_string() }
    }
}

/// A relay's keys.
#[derive(Debug)]
pub struct Identity {
    /// Signs and checks tokens.
    pub tokens: TokenKey,
    pub(super) certificates: Vec<CertificateDer<'static>>,
    pub(super) key: PrivateKeyDer<'static>,
    pin: Pin,
}

impl Identity {
    /// Reads the keys in `state`, or makes them there when there are none.
    pub fn load_or_create(state: &Path) -> Result<Self, StateError> {
        let _lock = lock(state)?;
        let (tls, tokens) = (state.join(TLS_FILE), state.join(TOKEN_FILE));
        if !tls.exists() {
            let made = self_signed().map_err(|error| StateError::damaged(&tls, error))?;
            private::write(&tls, made.as_bytes()).map_err(StateError::write(&tls))?;
        }
        if !tokens.exists() {
            let made = TokenKey::generate().map_err(|error| StateError::damaged(&tokens, error))?;
            private::write(&tokens, made.to_pkcs8()).map_err(StateError::write(&tokens))?;
        }
        Self::load(&tls, &tokens)
    }

    fn load(tls: &Path, tokens: &Path) -> Result<Self, StateError> {
        let pem = fs::read(tls).map_err(StateError::read(tls))?;
        let damaged = |error: rustls_pki_types::pem::Error| StateError::damaged(tls, error);
        let certificates: Vec<_> =
            CertificateDer::pem_slice_iter(&pem).collect::<Result<_, _>>().map_err(damaged)?;
        let key = PrivateKeyDer::from_pem_slice(&pem).map_err(damaged)?;
        let first = certificates.first().ok_or_else(|| StateError::damaged(tls, "no certificate in it"))?;
        let parsed = ParsedCertificate::try_from(first).map_err(|error| StateError::damaged(tls, error))?;
        let pin = Pin::of(&parsed.subject_public_key_info());
        let document = fs::read(tokens).map_err(StateError::read(tokens))?;
        let tokens = TokenKey::from_pkcs8(&document).map_err(|error| StateError::damaged(tokens, error))?;
        Ok(Self { tokens, certificates, key, pin })
    }

    /// By which devices know this relay.
    pub fn pin(&self) -> Pin {
        self.pin
    }
}

/// Keeps others from changing files in `state`, which is made when it is not there, until dropped.
pub(super) fn lock(state: &Path) -> Result<File, StateError> {
    private::make_directory(state).map_err(StateError::write(state))?;
    let file = state.join(LOCK_FILE);
    if !file.exists() {
        private::write(&file, b"").map_err(StateError::write(&file))?;
    }
    let opened = File::open(&file).map_err(StateError::read(&file))?;
    opened.lock().map_err(StateError::write(&file))?;
    Ok(opened)
}

fn self_signed() -> Result<String, rcgen::Error> {
    let key = rcgen::KeyPair::generate()?;
    let certificate = rcgen::CertificateParams::new([CERTIFICATE_NAME.to_owned()])?.self_signed(&key)?;
    Ok(certificate.pem() + &key.serialize_pem())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_made_once_and_stay() {
        let home = tempfile::tempdir().unwrap();
        let state = home.path().join("relay");
        let made = Identity::load_or_create(&state).unwrap();
        let read = Identity::load_or_create(&state).unwrap();
        assert_eq!(made.pin(), read.pin());
        assert_eq!(made.tokens.to_pkcs8(), read.tokens.to_pkcs8());
        let other = Identity::load_or_create(&home.path().join("other")).unwrap();
        assert_ne!(made.pin(), other.pin());
    }

    #[test]
    fn a_damaged_key_is_named_and_left_alone() {
        let home = tempfile::tempdir().unwrap();
        Identity::load_or_create(home.path()).unwrap();
        for name in [TLS_FILE, TOKEN_FILE] {
            let file = home.path().join(name);
            let good = fs::read(&file).unwrap();
            fs::write(&file, "rubbish").unwrap();
            let error = Identity::load_or_create(home.path()).unwrap_err().to_string();
            assert!(error.contains(name) && error.contains("damaged"), "{error}");
            assert_eq!(fs::read(&file).unwrap(), b"rubbish");
            fs::write(&file, good).unwrap();
        }
    }
}
