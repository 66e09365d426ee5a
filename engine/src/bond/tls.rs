//! TLS 1.3 between device and relay (RFC 8446): the relay is known by its key alone, and a connection
//! that follows another one may carry data in its first flight.

use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{ClientSessionMemoryCache, Resumption};
use rustls::crypto::{CryptoProvider, WebPkiSupportedAlgorithms, verify_tls13_signature};
use rustls::server::{NoClientAuth, ParsedCertificate, ServerSessionMemoryCache};
use rustls::version::TLS13;
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, Error, ServerConfig, SignatureScheme};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};

use super::invite::Pin;

/// Tells this protocol from others on the same port (RFC 7301).
const ALPN: &[u8] = b"multiway/1";

/// Most encrypted bytes in a first flight: what a SYN carries, and an initial congestion window behind it.
pub(crate) const EARLY_DATA: usize = 16 * 1024;

/// What a relay's tickets allow, for it looks past no more early data that it does not take. rustls (0.23)
/// counts what it looked past once more with each segment that comes after it: [`EARLY_DATA`] in the
/// smallest segments (536 bytes, RFC 9293 section 3.7.1) comes to 31 * 32 / 2 * 536 bytes.
const SKIPPED: u32 = 512 * 1024;

/// Tickets given out with each handshake. Each is good for one connection, and a device that fails
/// over opens several at once.
const TICKETS: usize = 4;

/// Tickets that a relay remembers, some hundred bytes each.
const TICKETS_KEPT: usize = 1 << 16;

/// Sessions of TLS that a device remembers; it has one relay.
const RELAYS: usize = 4;

/// A device's side; connections made with one value resume each other.
pub(crate) fn device(pin: Pin) -> Result<Arc<ClientConfig>, Error> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let verifier = Pinned { pin, algorithms: provider.signature_verification_algorithms };
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier))
        .with_no_client_auth();
    config.alpn_protocols = vec![ALPN.to_vec()];
    config.enable_early_data = true;
    config.resumption = Resumption::store(Arc::new(ClientSessionMemoryCache::new(RELAYS)));
    Ok(Arc::new(config))
}

/// A relay's side.
pub(crate) fn relay(
    certificates: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
) -> Result<Arc<ServerConfig>, Error> {
    let provider: Arc<CryptoProvider> = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&TLS13])?
        .with_client_cert_verifier(Arc::new(NoClientAuth))
        .with_single_cert(certificates, key)?;
    config.alpn_protocols = vec![ALPN.to_vec()];
    // Tickets that are looked up and taken out, never ones that carry their own state: early data that
    // is sent again is refused (RFC 8446 section 8.1).
    config.session_storage = ServerSessionMemoryCache::new(TICKETS_KEPT);
    config.max_early_data_size = SKIPPED;
    config.send_tls13_tickets = TICKETS;
    // The answer to early data does not wait for the end of the handshake.
    config.send_half_rtt_data = true;
    Ok(Arc::new(config))
}

/// Accepts the certificate with one key, whatever else it says.
#[derive(Debug)]
struct Pinned {
    pin: Pin,
    algorithms: WebPkiSupportedAlgorithms,
}

impl ServerCertVerifier for Pinned {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let certificate = ParsedCertificate::try_from(end_entity)?;
        if Pin::of(&certificate.subject_public_key_info()) == self.pin {
            Ok(ServerCertVerified::assertion())
        } else {
            Err(Error::InvalidCertificate(CertificateError::ApplicationVerificationFailure))
        }
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(Error::PeerIncompatible(rustls::PeerIncompatible::Tls12NotOffered))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signature, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}
