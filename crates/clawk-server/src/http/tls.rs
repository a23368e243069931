//! TLS for the listener, by rustls with ring (ADR 0008): a server certificate, and optionally client certificates.

use std::sync::Arc;

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};

/// Why TLS is not available.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file does not contain the expected PEM data.
    #[error("the {what} is not usable: {why}")]
    Pem {
        /// The expected content.
        what: &'static str,
        /// What is wrong with the file.
        why: String,
    },
    /// The certificate does not match the key, or rustls rejects them.
    #[error("TLS can't be set up: {0}")]
    Setup(#[from] rustls::Error),
}

/// The TLS settings of the listener: its certificate, and the authorities of client certificates.
#[derive(Debug, Clone)]
pub struct ListenerTls(pub(super) Arc<ServerConfig>);

impl ListenerTls {
    /// Builds the settings from PEM text: the certificate chain, its key, and, if clients must show a certificate, the authorities
    /// that sign client certificates.
    ///
    /// # Errors
    /// One of them can't be used, or they do not match.
    pub fn new(certificates: &[u8], key: &[u8], client_authorities: Option<&[u8]>) -> Result<Self, TlsError> {
        let own = certificates_of("certificate", certificates)?;
        let key = PrivateKeyDer::from_pem_slice(key).map_err(|error| TlsError::Pem {
            what: "key",
            // The error's own text is left out: it may show parts of the key.
            why: match error {
                rustls::pki_types::pem::Error::NoItemsFound => "no private key in it".to_owned(),
                _ => "it is not a private key in PEM".to_owned(),
            },
        })?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()?;
        let builder = match client_authorities {
            None => builder.with_no_client_auth(),
            Some(pem) => {
                const WHAT: &str = "client authority";
                let pem_error = |why: String| TlsError::Pem { what: WHAT, why };
                let mut roots = RootCertStore::empty();
                for authority in certificates_of(WHAT, pem)? {
                    roots
                        .add(authority)
                        .map_err(|error| pem_error(error.to_string()))?;
                }
                let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build();
                builder.with_client_cert_verifier(verifier.map_err(|error| pem_error(error.to_string()))?)
            }
        };
        let mut config = builder.with_single_cert(own, key)?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Self(Arc::new(config)))
    }
}

fn certificates_of(what: &'static str, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let failed = |why: String| TlsError::Pem { what, why };
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    let found = found.map_err(|error| failed(error.to_string()))?;
    if found.is_empty() {
        return Err(failed("no certificate in it".to_owned()));
    }
    Ok(found)
}
