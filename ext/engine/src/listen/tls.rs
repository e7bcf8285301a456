//! TLS as libpq does it: what is checked depends on `sslmode` and on whether there is a root certificate.
//!
//! Where rustls refuses, libpq, which uses OpenSSL, has the last word: it knows more kinds of certificates, keys and
//! files, and its own rules for them.
//!
//! <https://www.postgresql.org/docs/current/libpq-ssl.html>

use std::cell::Cell;
use std::future::Future;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{verify_server_cert_signed_by_trust_anchor, verify_server_name};
use rustls::crypto::{verify_tls12_signature, verify_tls13_signature, CryptoProvider};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme, SupportedProtocolVersion};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_postgres::tls::{ChannelBinding, TlsConnect, TlsStream};
use tokio_rustls::client::TlsStream as Encrypted;
use tokio_rustls::TlsConnector;

use super::binding;
use super::messages::Messages;
use super::options::{Roots, Ssl, SslMode, TlsVersion};
use super::socket::Socket;

/// What libpq may manage and we don't.
#[derive(Debug)]
pub(super) struct Unsupported {
    pub option: &'static str,
    pub why: String,
}

impl Unsupported {
    fn new(option: &'static str, why: impl Into<String>) -> Self {
        Self { option, why: why.into() }
    }
}

/// A handshake that may be asked for.
pub(super) struct Handshake {
    connector: Option<(TlsConnector, ServerName<'static>)>,
    bind: bool,
    progress: Rc<Progress>,
}

/// How far a handshake came.
#[derive(Debug, Default)]
pub(super) struct Progress {
    /// The server agreed to TLS.
    pub began: Cell<bool>,
    /// A password's proof was to be bound to the channel, and the certificate's signature has no digest that we know.
    pub unbound: Cell<bool>,
}

impl Handshake {
    /// Nobody is to ask for it.
    pub fn none() -> Self {
        Self { connector: None, bind: false, progress: Rc::default() }
    }

    /// Reads the certificate files, as libpq does for every new connection, and prepares a handshake with `host`. With
    /// `bind`, a connection that has to prove a password and can't bind the proof to the channel ends before it does.
    pub fn prepare(ssl: &Ssl, host: Option<&str>, bind: bool) -> Result<Self, Unsupported> {
        let connector = TlsConnector::from(Arc::new(config(ssl, host)?));
        let name = server_name(host).unwrap_or_else(|| std::net::Ipv4Addr::UNSPECIFIED.into());
        Ok(Self { connector: Some((connector, name)), bind, progress: Rc::default() })
    }

    pub fn progress(&self) -> Rc<Progress> {
        self.progress.clone()
    }
}

impl TlsConnect<Messages<Socket>> for Handshake {
    type Stream = Stream;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Stream>>>>;

    fn connect(self, messages: Messages<Socket>) -> Self::Future {
        self.progress.began.set(true);
        Box::pin(async move {
            let Some((connector, name)) = self.connector else {
                return Err(io::Error::other("nobody asked for TLS"));
            };
            let encrypted = connector.connect(name, messages.into_inner()).await?;
            Ok(Stream { messages: Messages::new(encrypted, 0), bind: self.bind, progress: self.progress })
        })
    }
}

/// The server's messages, and ours, inside TLS.
#[derive(Debug)]
pub struct Stream {
    messages: Messages<Encrypted<Socket>>,
    bind: bool,
    progress: Rc<Progress>,
}

impl TlsStream for Stream {
    /// tokio-postgres asks before it proves a password by SCRAM.
    fn channel_binding(&self) -> ChannelBinding {
        let (_, session) = self.messages.get_ref().get_ref();
        let leaf = session.peer_certificates().and_then(<[_]>::first);
        match leaf.and_then(|leaf| binding::end_point(leaf)) {
            Some(digest) => ChannelBinding::tls_server_end_point(digest),
            None => {
                self.progress.unbound.set(self.bind);
                ChannelBinding::none()
            }
        }
    }
}

impl AsyncRead for Stream {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.messages).poll_read(cx, buf)
    }
}

impl AsyncWrite for Stream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        if self.progress.unbound.get() {
            return Poll::Ready(Err(io::Error::other("the channel can't be bound")));
        }
        Pin::new(&mut self.messages).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.messages).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.messages).poll_shutdown(cx)
    }
}

fn server_name(host: Option<&str>) -> Option<ServerName<'static>> {
    ServerName::try_from(host?.to_owned()).ok()
}

fn config(ssl: &Ssl, host: Option<&str>) -> Result<ClientConfig, Unsupported> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let versions: Vec<&'static SupportedProtocolVersion> =
        [(TlsVersion::V1_2, &rustls::version::TLS12), (TlsVersion::V1_3, &rustls::version::TLS13)]
            .into_iter()
            .filter(|(version, _)| ssl.min <= *version && *version <= ssl.max)
            .map(|(_, version)| version)
            .collect();
    let name = server_name(host);
    if ssl.mode == SslMode::VerifyFull && name.is_none() {
        return Err(Unsupported::new("sslmode", "verify-full needs a host name"));
    }
    let verifier =
        Verifier { roots: roots(ssl)?, check_name: ssl.mode == SslMode::VerifyFull, provider: provider.clone() };
    let builder = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&versions)
        .map_err(|error| Unsupported::new("ssl_min_protocol_version", error.to_string()))?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier));
    let mut config = match identity(ssl)? {
        Some((chain, key)) => {
            builder.with_client_auth_cert(chain, key).map_err(|error| Unsupported::new("sslkey", error.to_string()))?
        }
        None => builder.with_no_client_auth(),
    };
    config.enable_sni = ssl.sni && name.is_some();
    Ok(config)
}

/// What signs good certificates. None: certificates are not checked. As in libpq, an existing root file has them checked
/// in every mode.
fn roots(ssl: &Ssl) -> Result<Option<RootCertStore>, Unsupported> {
    let unsupported = |why: String| Unsupported::new("sslrootcert", why);
    let mut roots = RootCertStore::empty();
    let file = match &ssl.roots {
        Roots::System => {
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
            return if roots.is_empty() {
                Err(unsupported("no root certificates of the system were found".to_owned()))
            } else {
                Ok(Some(roots))
            };
        }
        Roots::File(file) => Some(file),
        Roots::Default(file) => file.as_ref(),
    };
    let Some(file) = file.filter(|file| file.exists()) else {
        return if ssl.mode < SslMode::VerifyCa {
            Ok(None)
        } else {
            Err(unsupported("there is no file of root certificates".to_owned()))
        };
    };
    for certificate in certificates("sslrootcert", file)? {
        roots.add(certificate).map_err(|error| unsupported(error.to_string()))?;
    }
    Ok(Some(roots))
}

fn certificates(option: &'static str, file: &Path) -> Result<Vec<CertificateDer<'static>>, Unsupported> {
    let unreadable = |why: String| Unsupported::new(option, format!("{}: {why}", file.display()));
    let certificates = CertificateDer::pem_file_iter(file)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|error| unreadable(error.to_string()))?;
    if certificates.is_empty() {
        return Err(unreadable("no certificate in it".to_owned()));
    }
    Ok(certificates)
}

type Identity = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);

/// The client's certificate and key, where there is one.
fn identity(ssl: &Ssl) -> Result<Option<Identity>, Unsupported> {
    let default = |name: &str| ssl.folder.as_ref().map(|folder| folder.join(name));
    let Some(cert) = ssl.cert.clone().or_else(|| default("postgresql.crt")).filter(|file| file.exists()) else {
        return Ok(None);
    };
    if !ssl.offer_cert {
        return Ok(None);
    }
    let chain = certificates("sslcert", &cert)?;
    let key = ssl.key.clone().or_else(|| default("postgresql.key")).unwrap_or_else(|| PathBuf::from("postgresql.key"));
    let unusable = |why: String| Unsupported::new("sslkey", format!("{}: {why}", key.display()));
    let metadata = key.metadata().map_err(|error| unusable(error.to_string()))?;
    // libpq allows more, in some cases.
    if !metadata.is_file() || metadata.permissions().mode() & 0o077 != 0 {
        return Err(unusable("no plain file that its owner alone may use".to_owned()));
    }
    let key = PrivateKeyDer::from_pem_file(&key).map_err(|error| unusable(format!("no plain PEM key: {error}")))?;
    Ok(Some((chain, key)))
}

#[derive(Debug)]
struct Verifier {
    /// None: every certificate is taken.
    roots: Option<RootCertStore>,
    check_name: bool,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        leaf: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        _: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        if let Some(roots) = &self.roots {
            let leaf = ParsedCertificate::try_from(leaf)?;
            let algorithms = self.provider.signature_verification_algorithms.all;
            verify_server_cert_signed_by_trust_anchor(&leaf, roots, intermediates, now, algorithms)?;
            if self.check_name {
                verify_server_name(&leaf, name)?;
            }
        }
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, cert, signed, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, cert, signed, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
