//! TLS on the listener, by rustls with ring (ADR 0008): a certificate of ours, and, if wanted, certificates of clients.

use std::sync::Arc;

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};

/// Why TLS can't be spoken.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file holds something else, or nothing.
    #[error("the {what} is not usable: {why}")]
    Pem {
        /// Which one.
        what: &'static str,
        /// What is wrong with it.
        why: String,
    },
    /// Certificate and key do not belong together, or rustls refuses them.
    #[error("TLS can't be set up: {0}")]
    Setup(#[from] rustls::Error),
}

/// The TLS settings of the listener: its certificate, and the authorities of client certificates.
#[derive(Debug, Clone)]
pub struct ListenerTls(pub(super) Arc<ServerConfig>);

impl ListenerTls {
    /// From PEM text: the certificate and those that it rests on, its key, and, where clients must show a certificate, the
    /// authorities that sign them.
    ///
    /// # Errors
    /// One of them is not usable, or they do not belong together.
    pub fn new(certificates: &[u8], key: &[u8], client_authorities: Option<&[u8]>) -> Result<Self, TlsError> {
        let own = certificates_of("certificate", certificates)?;
        let key = PrivateKeyDer::from_pem_slice(key).map_err(|error| TlsError::Pem {
            what: "key",
            // Not the error's own text: it may show what it met.
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
