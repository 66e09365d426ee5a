//! TLS towards origin servers.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;

/// Why TLS cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file of certificates cannot be read.
    #[error("cannot read certificates from {}: {reason}", file.display())]
    File {
        /// The file.
        file: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// There is nothing to trust.
    #[error("no trusted certificates found; install ca-certificates or name a file with --cacert")]
    NoRoots,
    /// The library refuses.
    #[error("TLS cannot be set up: {0}")]
    Library(#[from] rustls::Error),
}

/// A client that trusts the system's roots, or those in `roots` alone when given, and speaks HTTP/1.1.
pub fn client(roots: Option<&Path>) -> Result<Arc<ClientConfig>, TlsError> {
    let mut store = RootCertStore::empty();
    match roots {
        Some(file) => {
            let unreadable = |reason: String| TlsError::File { file: file.to_owned(), reason };
            let certificates =
                CertificateDer::pem_file_iter(file).map_err(|error| unreadable(error.to_string()))?;
            for certificate in certificates {
                let certificate = certificate.map_err(|error| unreadable(error.to_string()))?;
                store.add(certificate).map_err(|error| unreadable(error.to_string()))?;
            }
            if store.is_empty() {
                return Err(unreadable("no PEM certificate in it".to_owned()));
            }
        }
        None => {
            store.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
            if store.is_empty() {
                return Err(TlsError::NoRoots);
            }
        }
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(store)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}
