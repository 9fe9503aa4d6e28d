//! TLS to PostgreSQL, with libpq's meaning of `sslmode`: whether the connection is encrypted, and how the certificate
//! is checked.

use std::path::Path;
use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use tokio_postgres::config::SslMode;
use tokio_postgres_rustls::MakeRustlsConnect;

/// What `sslmode` in the URL says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    /// Never encrypt.
    Disable,
    /// Encrypt if the server can.
    Prefer,
    /// Encrypt, without checking the server's identity.
    Require,
    /// And only with a certificate of an authority that is trusted.
    VerifyCa,
    /// And only if it names the host of the URL.
    VerifyFull,
}

impl Mode {
    /// Reads the word in the URL.
    pub(super) fn parse(word: &str) -> Result<Self, String> {
        Ok(match word {
            "disable" => Self::Disable,
            "prefer" => Self::Prefer,
            "require" => Self::Require,
            "verify-ca" => Self::VerifyCa,
            "verify-full" => Self::VerifyFull,
            other => {
                return Err(format!(
                    "sslmode `{other}` is none of disable, prefer, require, verify-ca and verify-full"
                ));
            }
        })
    }

    /// Whether the client library is to ask for encryption.
    pub(super) fn negotiation(self) -> SslMode {
        match self {
            Self::Disable => SslMode::Disable,
            Self::Prefer => SslMode::Prefer,
            Self::Require | Self::VerifyCa | Self::VerifyFull => SslMode::Require,
        }
    }
}

/// What makes TLS connections of that mode; `authorities` is a PEM file in place of the system's.
pub(super) fn connector(mode: Mode, authorities: Option<&str>) -> Result<MakeRustlsConnect, String> {
    let provider = Arc::new(ring::default_provider());
    // As with libpq, an authority that is named is also asked.
    let mode = if mode == Mode::Require && authorities.is_some() { Mode::VerifyCa } else { mode };
    let builder = ClientConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?;
    let authorities = match mode {
        Mode::VerifyFull => {
            let config = builder.with_root_certificates(roots(authorities)?).with_no_client_auth();
            return Ok(MakeRustlsConnect::new(config));
        }
        Mode::VerifyCa => {
            let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots(authorities)?), provider.clone());
            Some(verifier.build().map_err(|error| error.to_string())?)
        }
        Mode::Disable | Mode::Prefer | Mode::Require => None,
    };
    let verifier = Arc::new(AnyName { authorities, provider });
    let config = builder.dangerous().with_custom_certificate_verifier(verifier).with_no_client_auth();
    Ok(MakeRustlsConnect::new(config))
}

fn roots(authorities: Option<&str>) -> Result<RootCertStore, String> {
    roundelay_net::tls::roots(authorities.map(Path::new)).map_err(|error| match authorities {
        Some(_) => format!("sslrootcert {error}"),
        None => format!("{error}, with sslrootcert=FILE"),
    })
}

/// Takes every name that an authority vouches for; or, without authorities, every certificate:
/// encryption against eavesdroppers only.
#[derive(Debug)]
struct AnyName {
    authorities: Option<Arc<WebPkiServerVerifier>>,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for AnyName {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        chain: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        use CertificateError::{NotValidForName, NotValidForNameContext};
        let Some(authorities) = &self.authorities else { return Ok(ServerCertVerified::assertion()) };
        // The name is looked at last: whatever else is wrong has been told before.
        match authorities.verify_server_cert(certificate, chain, name, ocsp, now) {
            Err(rustls::Error::InvalidCertificate(NotValidForName | NotValidForNameContext { .. })) => {
                Ok(ServerCertVerified::assertion())
            }
            other => other,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, certificate, signature, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signature, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
