//! Whose certificate it is, by libpq's rules.

use std::net::IpAddr;

use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::{CertificateError, Error};
use x509_cert::der::asn1::ObjectIdentifier;
use x509_cert::der::oid::AssociatedOid;
use x509_cert::der::Decode;
use x509_cert::ext::pkix::name::GeneralName;
use x509_cert::ext::pkix::SubjectAltName;
use x509_cert::Certificate;

const COMMON_NAME: ObjectIdentifier = ObjectIdentifier::new_unwrap("2.5.4.3");

pub(super) fn parse(certificate: &CertificateDer<'_>) -> Result<Certificate, Error> {
    Certificate::from_der(certificate).map_err(|_| CertificateError::BadEncoding.into())
}

pub(super) fn is_self_signed(certificate: &Certificate) -> bool {
    certificate.tbs_certificate.issuer == certificate.tbs_certificate.subject
}

pub(super) fn check_dates(certificate: &Certificate, now: UnixTime) -> Result<(), Error> {
    let validity = &certificate.tbs_certificate.validity;
    if now.as_secs() < validity.not_before.to_unix_duration().as_secs() {
        return Err(CertificateError::NotValidYet.into());
    }
    if now.as_secs() > validity.not_after.to_unix_duration().as_secs() {
        return Err(CertificateError::Expired.into());
    }
    Ok(())
}

/// A host name must be one of the certificate's DNS names, an address one of its addresses; where there is none of that
/// kind, it must be the common name.
pub(super) fn check_name(certificate: &Certificate, host: &str) -> Result<(), Error> {
    let address: Option<IpAddr> = host.parse().ok();
    let mut ask_common_name = true;
    for name in alternative_names(certificate)? {
        match name {
            GeneralName::DnsName(name) => {
                if matches(name.as_str(), host) {
                    return Ok(());
                }
                ask_common_name &= address.is_some();
            }
            GeneralName::IpAddress(bytes) => {
                if address.is_some_and(|address| octets(address) == bytes.as_bytes()) {
                    return Ok(());
                }
                ask_common_name &= address.is_none();
            }
            _ => {}
        }
    }
    if ask_common_name && common_name(certificate).is_some_and(|name| matches(&name, host)) {
        return Ok(());
    }
    Err(CertificateError::NotValidForName.into())
}

fn alternative_names(certificate: &Certificate) -> Result<Vec<GeneralName>, Error> {
    let extensions = certificate.tbs_certificate.extensions.iter().flatten();
    let Some(extension) = extensions.into_iter().find(|extension| extension.extn_id == SubjectAltName::OID) else {
        return Ok(Vec::new());
    };
    SubjectAltName::from_der(extension.extn_value.as_bytes())
        .map(|names| names.0)
        .map_err(|_| CertificateError::BadEncoding.into())
}

fn common_name(certificate: &Certificate) -> Option<String> {
    let mut attributes = certificate.tbs_certificate.subject.0.iter().flat_map(|names| names.0.iter());
    let name = attributes.find(|attribute| attribute.oid == COMMON_NAME)?;
    String::from_utf8(name.value.value().to_vec()).ok()
}

/// "*." stands for exactly one label, and only at the beginning.
fn matches(pattern: &str, host: &str) -> bool {
    if pattern.contains('\0') {
        return false;
    }
    if pattern.eq_ignore_ascii_case(host) {
        return true;
    }
    let Some(domain) = pattern.strip_prefix("*.").filter(|domain| !domain.is_empty()) else { return false };
    host.split_once('.').is_some_and(|(label, rest)| !label.is_empty() && rest.eq_ignore_ascii_case(domain))
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

#[cfg(test)]
mod tests {
    use super::matches;

    #[test]
    fn a_star_is_one_label() {
        assert!(matches("*.example.com", "DB.example.com"));
        assert!(matches("db.example.com", "db.EXAMPLE.com"));
        for (pattern, host) in [
            ("*.example.com", "example.com"),
            ("*.example.com", "a.b.example.com"),
            ("*.", "a."),
            ("*", "localhost"),
            ("d*.example.com", "db.example.com"),
            ("db\0.example.com", "db"),
        ] {
            assert!(!matches(pattern, host), "{pattern} must not match {host}");
        }
    }
}
