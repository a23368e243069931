//! The certificate authority of one run. With it the proxy can decrypt requests to hosts that a secret is bound to. Its key exists
//! only in memory, and only the sandbox trusts it.

use std::collections::HashMap;
use std::fmt;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

use base64::Engine as _;
use rcgen::string::Ia5String;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DistinguishedName, DnType, ExtendedKeyUsagePurpose,
    GeneralSubtree, IsCa, KeyPair, KeyUsagePurpose, NameConstraints, SanType,
};
use rustls::ServerConfig;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};

use crate::EgressError;

/// The maximum number of cached certificates.
const MAX_KEPT: usize = 256;

/// An authority, and a cache of the certificates that it has issued.
pub(crate) struct RunAuthority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    made: Mutex<HashMap<String, Arc<ServerConfig>>>,
}

impl fmt::Debug for RunAuthority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Authority")
    }
}

fn authority_error(error: impl fmt::Display) -> EgressError {
    EgressError::Setup(format!("the run's certificate authority: {error}"))
}

impl RunAuthority {
    /// Creates an authority with a new key. It may issue certificates for `domains` and their subdomains; if `domains` is empty,
    /// for every name.
    pub(crate) fn new(domains: &[String]) -> Result<Self, EgressError> {
        let mut params = CertificateParams::new(Vec::new()).map_err(authority_error)?;
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        params.distinguished_name = distinguished_name("clawk, for this run only");
        let trees: Vec<GeneralSubtree> = domains.iter().map(|domain| domain_subtree(domain)).collect();
        if !trees.is_empty() {
            params.name_constraints = Some(NameConstraints {
                permitted_subtrees: trees,
                excluded_subtrees: Vec::new(),
            });
        }
        let key = KeyPair::generate().map_err(authority_error)?;
        Ok(Self {
            issuer: CertifiedIssuer::self_signed(params, key).map_err(authority_error)?,
            made: Mutex::default(),
        })
    }

    /// The authority's own certificate, PEM.
    pub(crate) fn certificate_pem(&self) -> String {
        self.issuer.pem()
    }

    /// The TLS configuration for answering as `host`.
    pub(crate) fn server_config(&self, host: &str) -> Result<Arc<ServerConfig>, EgressError> {
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(config) = made.get(host) {
            return Ok(Arc::clone(config));
        }
        let config = Arc::new(self.create_config(host)?);
        if made.len() >= MAX_KEPT {
            made.clear();
        }
        made.insert(host.to_owned(), Arc::clone(&config));
        Ok(config)
    }

    fn create_config(&self, host: &str) -> Result<ServerConfig, EgressError> {
        let mut params = CertificateParams::new(Vec::new()).map_err(authority_error)?;
        params.subject_alt_names = vec![match host.parse::<IpAddr>() {
            Ok(address) => SanType::IpAddress(address),
            Err(_name) => SanType::DnsName(Ia5String::try_from(host.to_owned()).map_err(authority_error)?),
        }];
        params.distinguished_name = distinguished_name("clawk egress");
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.use_authority_key_identifier_extension = true;
        let key = KeyPair::generate().map_err(authority_error)?;
        let certificate = params.signed_by(&key, &self.issuer).map_err(authority_error)?;
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(authority_error)?
            .with_no_client_auth()
            .with_single_cert(vec![certificate.der().clone()], key)
            .map_err(authority_error)?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(config)
    }
}

fn distinguished_name(name: &str) -> DistinguishedName {
    let mut names = DistinguishedName::new();
    names.push(DnType::CommonName, name);
    names
}

fn domain_subtree(domain: &str) -> GeneralSubtree {
    match domain.parse::<IpAddr>() {
        Ok(address) => {
            let bits = if address.is_ipv4() { 32 } else { 128 };
            GeneralSubtree::IpAddress(rcgen::CidrSubnet::from_addr_prefix(address, bits))
        }
        Err(_name) => GeneralSubtree::DnsName(domain.to_owned()),
    }
}

/// Encodes a certificate as PEM.
pub(crate) fn encode_pem(der: &[u8]) -> String {
    let text = base64::engine::general_purpose::STANDARD.encode(der);
    let mut pem = String::with_capacity(text.len() + 64);
    pem.push_str("-----BEGIN CERTIFICATE-----\n");
    let mut rest = text.as_str();
    while !rest.is_empty() {
        let (line, after) = rest.split_at_checked(64).unwrap_or((rest, ""));
        pem.push_str(line);
        pem.push('\n');
        rest = after;
    }
    pem.push_str("-----END CERTIFICATE-----\n");
    pem
}
