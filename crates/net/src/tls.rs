//! Certificates and keys in PEM files, for everyone here who speaks TLS.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use roundelay_model::clock::Time;
use rustls::crypto::ring;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};

/// `broker.tls`: files in PEM format, read anew for each connection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BrokerTls {
    /// The authorities to trust, in place of the system's.
    pub ca: Option<PathBuf>,
    /// Our own certificate, for a broker that asks for one.
    pub own: Option<TlsSettings>,
}

/// A certificate and its key: files in PEM format.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsSettings {
    /// The certificate, with those that it was signed with.
    pub certificate: PathBuf,
    /// Its private key.
    pub key: PathBuf,
}

/// All certificates of a file.
///
/// # Errors
/// When it cannot be read, or holds none. The file is named.
pub fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let read: Result<Vec<_>, _> = CertificateDer::pem_file_iter(path).and_then(Iterator::collect);
    match read {
        Ok(certificates) if certificates.is_empty() => {
            Err(format!("{}: holds no certificate in PEM form", path.display()))
        }
        Ok(certificates) => Ok(certificates),
        Err(error) => Err(unreadable(path, error)),
    }
}

/// The private key of a file.
///
/// # Errors
/// When it cannot be read, or holds none. The file is named.
pub fn key(path: &Path) -> Result<PrivateKeyDer<'static>, String> {
    PrivateKeyDer::from_pem_file(path).map_err(|error| match error {
        pem::Error::NoItemsFound => format!("{}: holds no private key in PEM form", path.display()),
        error => unreadable(path, error),
    })
}

fn unreadable(path: &Path, error: pem::Error) -> String {
    let why = match error {
        pem::Error::Io(error) => error.to_string(),
        error => error.to_string(),
    };
    format!("{} cannot be read: {why}", path.display())
}

/// The authorities of a file, or those that this system trusts.
///
/// # Errors
/// When there are none, or one cannot be used.
pub fn roots(authorities: Option<&Path>) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    let Some(path) = authorities else {
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        if roots.is_empty() {
            return Err("this system trusts no certificate authority; name a file with yours".into());
        }
        return Ok(roots);
    };
    for certificate in certificates(path)? {
        roots.add(certificate).map_err(|error| format!("{}: {error}", path.display()))?;
    }
    Ok(roots)
}

/// What makes TLS connections by these files, as they are now: TLS 1.2 or 1.3, to a server whose certificate an
/// authority vouches for and that bears the name it was called by.
///
/// # Errors
/// Which file cannot be used, and why.
pub fn client(tls: &BrokerTls) -> Result<ClientConfig, String> {
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?
        .with_root_certificates(roots(tls.ca.as_deref())?);
    let Some(own) = &tls.own else { return Ok(builder.with_no_client_auth()) };
    let (chain, key) = (certificates(&own.certificate)?, key(&own.key)?);
    builder
        .with_client_auth_cert(chain, key)
        .map_err(|error| format!("{} and {} do not go together: {error}", own.certificate.display(), own.key.display()))
}

/// When the first of these certificates ends; nothing of what is no certificate.
pub fn ends(certificates: &[CertificateDer<'_>]) -> Option<Time> {
    let end = |certificate: &CertificateDer<'_>| {
        let (_, certificate) = x509_parser::parse_x509_certificate(certificate).ok()?;
        Some(Time::from_millis(certificate.validity().not_after.timestamp().saturating_mul(1_000)))
    };
    certificates.iter().filter_map(end).min()
}
