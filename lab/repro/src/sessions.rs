//! Many devices that do nothing: sessions with a relay, held open by a program of its own, so that their
//! memory is not the relay's.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Args;
use data_encoding::BASE64URL_NOPAD;
use multiway_core::bond::SubflowId;
use multiway_core::bond::wire::{Frame, FrameReader, Hello, HelloKind, SessionKey, VERSION};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::{ClientConfig, ClientConnection, DigitallySignedStruct, Error, SignatureScheme, StreamOwned};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};

use crate::output;

/// What a relay's clients name in TLS; docs/protocol.md.
const ALPN: &[u8] = b"multiway/1";

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
        .map(|number| {
            let kind = HelloKind::Init { token: token.clone().into() };
            begin(&config, options.relay, number, kind).with_context(|| format!("session {number}"))
        })
        .collect::<Result<_>>()?;
    output::line(READY)?;
    std::io::stdin().read_to_end(&mut Vec::new())?;
    drop(sessions);
    Ok(())
}

fn begin(
    config: &Arc<ClientConfig>,
    relay: SocketAddr,
    number: u32,
    kind: HelloKind,
) -> Result<StreamOwned<ClientConnection, TcpStream>> {
    let socket = TcpStream::connect(relay).with_context(|| format!("cannot connect to {relay}"))?;
    socket.set_read_timeout(Some(PATIENCE))?;
    let tls = ClientConnection::new(Arc::clone(config), ServerName::from(relay.ip()))?;
    let mut stream = StreamOwned::new(tls, socket);
    let mut key = [0; 16];
    key[..4].copy_from_slice(&number.to_be_bytes());
    let hello =
        Hello { version: VERSION, key: SessionKey(key), subflow: SubflowId(0), path: 1, backup: false, kind };
    stream.write_all(&Frame::Hello(hello).to_bytes())?;
    let mut reader = FrameReader::new();
    let mut buffer = [0; 4096];
    loop {
        let length = stream.read(&mut buffer)?;
        if length == 0 {
            bail!("the relay closed without an answer");
        }
        reader.handle_bytes(buffer[..length].to_vec().into());
        match reader.next_frame() {
            Ok(None) => {}
            Ok(Some(Frame::HelloOk(_))) => return Ok(stream),
            Ok(Some(frame)) => bail!("the relay answered {frame:?}"),
            Err(error) => bail!("the relay's answer is no frame: {error:?}"),
        }
    }
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
