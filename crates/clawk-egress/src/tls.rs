//! TLS by rustls and ring; roots from the platform. See ADR 0008.

use std::sync::{Arc, OnceLock};

use clawk_secrets::EnvironmentSource;
use rustls::{ClientConfig, RootCertStore};

use crate::EgressError;

/// A client configuration. Without `verified` it knows no root at all, for endpoints that speak plain http: reading the
/// platform's certificates costs milliseconds.
pub(crate) fn config(verified: bool, env: &EnvironmentSource) -> Result<ClientConfig, EgressError> {
    let roots = if verified {
        roots(env)?
    } else {
        Arc::new(RootCertStore::empty())
    };
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| EgressError::Setup(error.to_string()))?;
    Ok(builder.with_root_certificates(roots).with_no_client_auth())
}

/// A client configuration that verifies servers by the platform's roots, or those of `SSL_CERT_FILE` and `SSL_CERT_DIR`; for
/// protocols other than HTTP.
///
/// # Errors
/// [`EgressError::Setup`] when the roots are not usable.
pub fn verified(env: &EnvironmentSource) -> Result<ClientConfig, EgressError> {
    config(true, env)
}

/// The certificates of the roots, as PEM, for a trust file inside a sandbox; empty when only the built-in set is there, which
/// holds keys and no certificates.
pub(crate) fn bundle(env: &EnvironmentSource) -> String {
    let (file, dir) = (env.path("SSL_CERT_FILE"), env.path("SSL_CERT_DIR"));
    let found = if file.is_some() || dir.is_some() {
        rustls_native_certs::load_certs_from_paths(file.as_deref(), dir.as_deref())
    } else {
        rustls_native_certs::load_native_certs()
    };
    found
        .certs
        .iter()
        .map(|certificate| crate::authority::pem(certificate))
        .collect()
}

/// The roots that `SSL_CERT_FILE` and `SSL_CERT_DIR` name; else the platform's, read once per process. The built-in set helps
/// only if the operator named none: named roots that can't be read are an error, never a weaker run.
fn roots(env: &EnvironmentSource) -> Result<Arc<RootCertStore>, EgressError> {
    static PLATFORM: OnceLock<Arc<RootCertStore>> = OnceLock::new();
    let (file, dir) = (env.path("SSL_CERT_FILE"), env.path("SSL_CERT_DIR"));
    if file.is_some() || dir.is_some() {
        let found = rustls_native_certs::load_certs_from_paths(file.as_deref(), dir.as_deref());
        let mut roots = RootCertStore::empty();
        let (added, _) = roots.add_parsable_certificates(found.certs);
        if added == 0 {
            let why = found
                .errors
                .first()
                .map_or_else(|| "no certificate in it".to_owned(), ToString::to_string);
            return Err(EgressError::Setup(format!(
                "SSL_CERT_FILE or SSL_CERT_DIR is not usable: {why}"
            )));
        }
        return Ok(Arc::new(roots));
    }
    let platform = || {
        let mut roots = RootCertStore::empty();
        let (added, _) = roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        if added == 0 {
            roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned());
        }
        Arc::new(roots)
    };
    Ok(Arc::clone(PLATFORM.get_or_init(platform)))
}
