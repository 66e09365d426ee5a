//! Many devices that do nothing: sessions with a relay, held open by a program of its own, so that their
//! memory is not the relay's.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Args;
use data_encoding::BASE64URL_NOPAD;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::{ClientConfig, ClientConnection, DigitallySignedStruct, Error, SignatureScheme, StreamOwned};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};

use crate::output;

/// What a relay's clients name in TLS, and the two frames that begin a session; docs/protocol.md.
const ALPN: &[u8] = b"multiway/1";
const HELLO: u8 = 0x01;
const HELLO_OK: u8 = 0x02;
const VERSION: u8 = 1;

/// In an invite a version octet and the SHA-256 of the relay's key stand before the token.
const BEFORE_TOKEN: usize = 1 + 32;

/// How long a relay may take to answer on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);

/// What is written when all sessions are there.
pub(crate) const READY: &str = "ready";

#[derive(Debug, Args)]
pub(crate) struct Options {
    relay: SocketAddr,
    /// What `multiway relay invite` printed
    invite: String,
    count: u32,
}

/// Opens all, says so, and holds them until its input ends.
pub(crate) fn run(options: &Options) -> Result<()> {
    let (_, data) = options.invite.split_once("/#").context("an invite has a part behind `/#`")?;
    let data = BASE64URL_NOPAD.decode(data.as_bytes()).context("the invite is damaged")?;
    let token = data.get(BEFORE_TOKEN..).context("the invite has no token")?.to_vec();
    let provider = Arc::new(ring::default_provider());
    let mut config = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Anyone(provider)))
        .with_no_client_auth();
    config.alpn_protocols = vec![ALPN.to_vec()];
    let config = Arc::new(config);
    let sessions: Vec<_> = (0..options.count)
        .map(|number| begin(&config, options.relay, &hello(number, &token)))
        .enumerate()
        .map(|(number, begun)| begun.with_context(|| format!("session {number}")))
        .collect::<Result<_>>()?;
    output::line(READY)?;
    std::io::stdin().read_to_end(&mut Vec::new())?;
    drop(sessions);
    Ok(())
}

/// The frame that begins a session.
fn hello(number: u32, token: &[u8]) -> Vec<u8> {
    let mut body = vec![VERSION];
    body.extend_from_slice(&number.to_be_bytes());
    // The rest of the key; subflow 0, path 1, no backup, a beginning.
    body.extend_from_slice(&[0; 12]);
    body.extend_from_slice(&[0, 1, 0, 0]);
    body.extend_from_slice(&short(token.len()));
    body.extend_from_slice(token);
    [&[HELLO], &short(body.len())[..], &body].concat()
}

/// A length below 16 KiB in the form of two octets (RFC 9000 section 16).
fn short(length: usize) -> [u8; 2] {
    u16::try_from(length).map_or(u16::MAX, |length| length | 0x4000).to_be_bytes()
}

fn begin(
    config: &Arc<ClientConfig>,
    relay: SocketAddr,
    hello: &[u8],
) -> Result<StreamOwned<ClientConnection, TcpStream>> {
    let socket = TcpStream::connect(relay).with_context(|| format!("cannot connect to {relay}"))?;
    socket.set_read_timeout(Some(PATIENCE))?;
    let tls = ClientConnection::new(Arc::clone(config), ServerName::from(relay.ip()))?;
    let mut stream = StreamOwned::new(tls, socket);
    stream.write_all(hello)?;
    let mut kind = [0];
    stream.read_exact(&mut kind).context("the relay did not answer")?;
    if kind != [HELLO_OK] {
        bail!("the relay answered with a frame of type {}", kind[0]);
    }
    Ok(stream)
}

/// Takes any certificate: the relay is the lab's.
#[derive(Debug)]
struct Anyone(Arc<CryptoProvider>);

impl ServerCertVerifier for Anyone {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, certificate, signature, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signature, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
