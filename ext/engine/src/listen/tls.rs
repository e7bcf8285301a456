//! TLS as libpq does it: what is checked depends on `sslmode` and on whether there is a root certificate.
//!
//! <https://www.postgresql.org/docs/current/libpq-ssl.html>

use std::cell::Cell;
use std::future::Future;
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::verify_server_cert_signed_by_trust_anchor;
use rustls::crypto::{verify_tls12_signature, verify_tls13_signature, CryptoProvider};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{
    AlertDescription, CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme,
    SupportedProtocolVersion,
};
use tokio_postgres::tls::{MakeTlsConnect, TlsConnect};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::certificate;
use super::options::{Roots, Ssl, SslMode, TlsVersion};
use super::socket::Socket;

/// Makes one handshake.
pub(super) type Connector = <MakeRustlsConnect as MakeTlsConnect<Socket>>::TlsConnect;
/// The encrypted stream.
pub(super) type Stream = <MakeRustlsConnect as MakeTlsConnect<Socket>>::Stream;

/// A handshake that may be asked for, and that tells whether it was. Without a connector it must not be.
pub(super) struct Handshake {
    connector: Option<Connector>,
    began: Rc<Cell<bool>>,
}

impl Handshake {
    pub fn new(connector: Option<Connector>) -> Self {
        Self { connector, began: Rc::default() }
    }

    /// Becomes true when the server agreed to TLS.
    pub fn began(&self) -> Rc<Cell<bool>> {
        self.began.clone()
    }
}

impl TlsConnect<Socket> for Handshake {
    type Stream = Stream;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Stream>>>>;

    fn connect(self, socket: Socket) -> Self::Future {
        self.began.set(true);
        match self.connector {
            Some(connector) => Box::pin(connector.connect(socket)),
            None => Box::pin(async { Err(io::Error::other("nobody asked for TLS")) }),
        }
    }
}

/// Why TLS can't begin.
#[derive(Debug)]
pub(super) enum SetupError {
    /// libpq would fail too.
    Failed(String),
    /// libpq may manage.
    Unsupported { option: &'static str, why: String },
}

/// Reads the certificate files, as libpq does for every new connection, and prepares a handshake with `host`.
pub(super) fn connector(ssl: &Ssl, host: Option<&str>) -> Result<Connector, SetupError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let versions: Vec<&'static SupportedProtocolVersion> =
        [(TlsVersion::V1_2, &rustls::version::TLS12), (TlsVersion::V1_3, &rustls::version::TLS13)]
            .into_iter()
            .filter(|(version, _)| ssl.min <= *version && *version <= ssl.max)
            .map(|(_, version)| version)
            .collect();
    let verifier = Verifier {
        trust: trust(ssl)?,
        host: if ssl.mode == SslMode::VerifyFull {
            Some(host.map(str::to_owned).ok_or_else(|| {
                SetupError::Failed("host name must be specified for a verified SSL connection".to_owned())
            })?)
        } else {
            None
        },
        provider: provider.clone(),
    };
    let builder = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&versions)
        .map_err(|error| SetupError::Failed(error.to_string()))?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier));
    let mut config = match identity(ssl)? {
        Some((chain, key)) => builder
            .with_client_auth_cert(chain, key)
            .map_err(|error| SetupError::Unsupported { option: "sslkey", why: error.to_string() })?,
        None => builder.with_no_client_auth(),
    };
    // The name given to rustls is for SNI alone: the verifier checks names by libpq's rules.
    let name = host.filter(|name| ServerName::try_from(*name).is_ok());
    config.enable_sni = ssl.sni && name.is_some();
    let Ok(connector) =
        MakeTlsConnect::<Socket>::make_tls_connect(&mut MakeRustlsConnect::new(config), name.unwrap_or("postgresql"));
    Ok(connector)
}

/// Whether libpq, with OpenSSL, might have managed the handshake that failed with this error.
pub(super) fn is_limit_of_rustls(error: &rustls::Error) -> bool {
    use rustls::Error::{AlertReceived, InvalidCertificate, PeerIncompatible};
    match error {
        PeerIncompatible(_)
        | AlertReceived(AlertDescription::HandshakeFailure | AlertDescription::ProtocolVersion)
        | InvalidCertificate(CertificateError::BadEncoding) => true,
        InvalidCertificate(other) => format!("{other:?}").contains("Unsupported"),
        _ => false,
    }
}

/// What went wrong in a handshake, and what to do about it.
pub(super) fn explain(error: &rustls::Error) -> String {
    use CertificateError::{
        BadSignature, Expired, ExpiredContext, NotValidForName, NotValidYet, NotValidYetContext, UnknownIssuer,
    };
    let rustls::Error::InvalidCertificate(invalid) = error else { return format!("SSL error: {error}") };
    let why = match invalid {
        UnknownIssuer | BadSignature => "it was not signed by an authority of sslrootcert's",
        Expired | ExpiredContext { .. } => "it has expired",
        NotValidYet | NotValidYetContext { .. } => "it is not valid yet",
        NotValidForName => "it does not match the host name; connect by a name that it has, or use sslmode=verify-ca",
        _ => return format!("SSL error: certificate verify failed: {invalid}"),
    };
    format!("SSL error: certificate verify failed: {why}")
}

/// What signs good certificates.
#[derive(Debug)]
struct Trust {
    roots: RootCertStore,
    certificates: Vec<CertificateDer<'static>>,
}

/// None: certificates are not checked. As in libpq, an existing root file has them checked in every mode.
fn trust(ssl: &Ssl) -> Result<Option<Trust>, SetupError> {
    let file = match &ssl.roots {
        Roots::System => {
            let found = rustls_native_certs::load_native_certs();
            if found.certs.is_empty() {
                return Err(SetupError::Failed("no root certificates of the system were found".to_owned()));
            }
            let mut roots = RootCertStore::empty();
            roots.add_parsable_certificates(found.certs.iter().cloned());
            return Ok(Some(Trust { roots, certificates: found.certs }));
        }
        Roots::File(file) => Some(file),
        Roots::Default(file) => file.as_ref(),
    };
    let Some(file) = file.filter(|file| file.exists()) else {
        if ssl.mode < SslMode::VerifyCa {
            return Ok(None);
        }
        let file = file.map_or_else(|| "~/.postgresql/root.crt".into(), |file| file.display().to_string());
        return Err(SetupError::Failed(format!(
            "root certificate file \"{file}\" does not exist; either provide the file, use the system's trusted roots \
             with sslrootcert=system, or change sslmode to disable server certificate verification"
        )));
    };
    let certificates = certificates(file, "root certificate")?;
    let mut roots = RootCertStore::empty();
    for certificate in &certificates {
        roots
            .add(certificate.clone())
            .map_err(|error| SetupError::Unsupported { option: "sslrootcert", why: error.to_string() })?;
    }
    Ok(Some(Trust { roots, certificates }))
}

fn certificates(file: &Path, what: &str) -> Result<Vec<CertificateDer<'static>>, SetupError> {
    let unreadable =
        |why: String| SetupError::Failed(format!("could not read {what} file \"{}\": {why}", file.display()));
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
fn identity(ssl: &Ssl) -> Result<Option<Identity>, SetupError> {
    let default = |name: &str| ssl.folder.as_ref().map(|folder| folder.join(name));
    let Some(cert) = ssl.cert.clone().or_else(|| default("postgresql.crt")).filter(|file| file.exists()) else {
        return Ok(None);
    };
    if !ssl.offer_cert {
        return Ok(None);
    }
    let chain = certificates(&cert, "certificate")?;
    let key = ssl.key.clone().or_else(|| default("postgresql.key")).unwrap_or_else(|| PathBuf::from("postgresql.key"));
    check_permissions(&key, &cert)?;
    let text = std::fs::read_to_string(&key).map_err(|error| {
        SetupError::Failed(format!("could not load private key file \"{}\": {error}", key.display()))
    })?;
    if text.contains("ENCRYPTED") {
        return Err(SetupError::Unsupported { option: "sslkey", why: "an encrypted key is only for libpq".to_owned() });
    }
    let key = PrivateKeyDer::from_pem_slice(text.as_bytes())
        .map_err(|error| SetupError::Unsupported { option: "sslkey", why: format!("not a PEM key: {error}") })?;
    Ok(Some((chain, key)))
}

fn check_permissions(key: &Path, cert: &Path) -> Result<(), SetupError> {
    if key.to_string_lossy().contains(':') && !key.exists() {
        return Err(SetupError::Unsupported { option: "sslkey", why: "a key in an OpenSSL engine".to_owned() });
    }
    let Ok(metadata) = key.metadata() else {
        return Err(SetupError::Failed(format!(
            "certificate \"{}\" present, but not private key file \"{}\"",
            cert.display(),
            key.display()
        )));
    };
    if !metadata.is_file() {
        return Err(SetupError::Failed(format!("private key file \"{}\" is not a regular file", key.display())));
    }
    let others = if metadata.uid() == 0 { 0o037 } else { 0o077 };
    if metadata.permissions().mode() & others != 0 {
        return Err(SetupError::Failed(format!(
            "private key file \"{}\" has group or world access; file must have permissions u=rw (0600) or less if owned \
             by the current user, or permissions u=rw,g=r (0640) or less if owned by root",
            key.display()
        )));
    }
    Ok(())
}

#[derive(Debug)]
struct Verifier {
    trust: Option<Trust>,
    /// The name that the certificate must be for.
    host: Option<String>,
    provider: Arc<CryptoProvider>,
}

impl Verifier {
    fn check_chain(
        &self,
        trust: &Trust,
        leaf: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<(), rustls::Error> {
        // OpenSSL takes a self-signed certificate that is in the root file itself; webpki, as a CA's, does not.
        if trust.certificates.iter().any(|root| root == leaf) {
            let parsed = certificate::parse(leaf)?;
            if certificate::is_self_signed(&parsed) {
                return certificate::check_dates(&parsed, now);
            }
        }
        verify_server_cert_signed_by_trust_anchor(
            &ParsedCertificate::try_from(leaf)?,
            &trust.roots,
            intermediates,
            now,
            self.provider.signature_verification_algorithms.all,
        )
    }
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        leaf: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        if let Some(trust) = &self.trust {
            self.check_chain(trust, leaf, intermediates, now)?;
        }
        if let Some(host) = &self.host {
            certificate::check_name(&certificate::parse(leaf)?, host)?;
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
