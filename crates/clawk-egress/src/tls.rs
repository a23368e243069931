//! TLS by rustls and ring; roots from the platform. See ADR 0003.

use std::sync::{Arc, OnceLock};

use clawk_secrets::Env;
use rustls::{ClientConfig, RootCertStore};

use crate::EgressError;

/// A client configuration. Without `verified` it knows no root at all, for endpoints that speak plain http: reading the
/// platform's certificates costs milliseconds.
pub(crate) fn config(verified: bool, env: &Env) -> Result<ClientConfig, EgressError> {
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

/// The platform's roots (`SSL_CERT_FILE` and `SSL_CERT_DIR` name others), read once per process. The built-in set helps only
/// where nobody chose: roots that were asked for and cannot be read are an error, never a weaker run.
fn roots(env: &Env) -> Result<Arc<RootCertStore>, EgressError> {
    static ROOTS: OnceLock<Arc<RootCertStore>> = OnceLock::new();
    if let Some(roots) = ROOTS.get() {
        return Ok(Arc::clone(roots));
    }
    let found = rustls_native_certs::load_native_certs();
    let mut roots = RootCertStore::empty();
    let (added, _) = roots.add_parsable_certificates(found.certs);
    if added == 0 {
        if env
            .non_empty("SSL_CERT_FILE")
            .or_else(|| env.non_empty("SSL_CERT_DIR"))
            .is_some()
        {
            let why = found
                .errors
                .first()
                .map_or_else(|| "no certificate in it".to_owned(), ToString::to_string);
            return Err(EgressError::Setup(format!(
                "SSL_CERT_FILE or SSL_CERT_DIR is not usable: {why}"
            )));
        }
        roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned());
    }
    Ok(Arc::clone(ROOTS.get_or_init(|| Arc::new(roots))))
}
