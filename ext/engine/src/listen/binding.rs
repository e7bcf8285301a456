//! Channel binding: what ties a password's proof to the server's certificate (RFC 5929, tls-server-end-point).

use rustls::pki_types::CertificateDer;
use sha2::{Digest, Sha256, Sha384, Sha512};
use x509_cert::der::oid::db::rfc5912;
use x509_cert::der::Decode;
use x509_cert::Certificate;

/// The certificate's digest, by the algorithm of its signature, where SHA-1 stands for SHA-256. None: a signature whose
/// algorithm does not say which digest alone, such as RSA-PSS, or uses none, such as Ed25519.
pub(super) fn end_point(certificate: &CertificateDer<'_>) -> Option<Vec<u8>> {
    let parsed = Certificate::from_der(certificate).ok()?;
    match parsed.signature_algorithm.oid {
        rfc5912::SHA_1_WITH_RSA_ENCRYPTION | rfc5912::SHA_256_WITH_RSA_ENCRYPTION | rfc5912::ECDSA_WITH_SHA_256 => {
            Some(Sha256::digest(certificate).to_vec())
        }
        rfc5912::SHA_384_WITH_RSA_ENCRYPTION | rfc5912::ECDSA_WITH_SHA_384 => {
            Some(Sha384::digest(certificate).to_vec())
        }
        rfc5912::SHA_512_WITH_RSA_ENCRYPTION | rfc5912::ECDSA_WITH_SHA_512 => {
            Some(Sha512::digest(certificate).to_vec())
        }
        _ => None,
    }
}
