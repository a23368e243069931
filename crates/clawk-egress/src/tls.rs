//! TLS with rustls and ring, and the platform's root certificates. See ADR 0008.

use std::sync::{Arc, OnceLock};

use clawk_secrets::EnvironmentSource;
use rustls::{ClientConfig, RootCertStore};

use crate::EgressError;

/// A client configuration. If not `verified`, it has no roots, for endpoints that use plain http: reading the platform's
/// certificates takes milliseconds.
pub(crate) fn client_config(verified: bool, env: &EnvironmentSource) -> Result<ClientConfig, EgressError> {
    let roots = if verified {
        root_store(env)?
    } else {
        Arc::new(RootCertStore::empty())
    };
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| EgressError::Setup(error.to_string()))?;
    Ok(builder.with_root_certificates(roots).with_no_client_auth())
}

/// A client configuration that verifies servers with the platform's roots, or with those of `SSL_CERT_FILE` and `SSL_CERT_DIR`. For
/// protocols other than HTTP.
///
/// # Errors
/// [`EgressError::Setup`] if the roots can't be used.
pub fn verified_config(env: &EnvironmentSource) -> Result<ClientConfig, EgressError> {
    client_config(true, env)
}

/// The root certificates as PEM, for a trust file inside a sandbox. Empty if only the built-in set is available, because that set
/// contains keys without certificates.
pub(crate) fn root_certificates_pem(env: &EnvironmentSource) -> String {
    let (file, dir) = (
        env.path_variable("SSL_CERT_FILE"),
        env.path_variable("SSL_CERT_DIR"),
    );
    let found = if file.is_some() || dir.is_some() {
        rustls_native_certs::load_certs_from_paths(file.as_deref(), dir.as_deref())
    } else {
        rustls_native_certs::load_native_certs()
    };
    found
        .certs
        .iter()
        .map(|certificate| crate::authority::encode_pem(certificate))
        .collect()
}

/// The roots that `SSL_CERT_FILE` and `SSL_CERT_DIR` name; otherwise the platform's roots, read once per process. The built-in set
/// is used only if the operator named none. Named roots that can't be read are an error, so that verification never becomes weaker.
fn root_store(env: &EnvironmentSource) -> Result<Arc<RootCertStore>, EgressError> {
    static PLATFORM: OnceLock<Arc<RootCertStore>> = OnceLock::new();
    let (file, dir) = (
        env.path_variable("SSL_CERT_FILE"),
        env.path_variable("SSL_CERT_DIR"),
    );
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
