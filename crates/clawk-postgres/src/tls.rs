//! TLS for the connections: rustls with ring, below tokio-postgres.

use std::fmt;
use std::future::Future;
use std::io;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use clawk_secrets::EnvironmentSource;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_postgres::Socket;
use tokio_postgres::tls::{ChannelBinding, MakeTlsConnect, TlsConnect, TlsStream};
use tokio_rustls::TlsConnector;

use crate::error::SetupError;
use crate::options::TlsMode;

/// The TLS configuration of a mode; `None`: no encryption.
pub(crate) fn client_config(
    mode: TlsMode,
    ca_file: Option<&Path>,
    env: &EnvironmentSource,
) -> Result<Option<Arc<ClientConfig>>, SetupError> {
    let setup =
        |error: &dyn fmt::Display| SetupError(format!("TLS to PostgreSQL can't be prepared: {error}"));
    let roots = || match ca_file {
        Some(file) => roots_of(file).map(Some),
        None => Ok(None),
    };
    match mode {
        TlsMode::Disable => Ok(None),
        TlsMode::VerifyFull => match roots()? {
            None => {
                let known = clawk_egress::tls_config(env).map_err(|error| setup(&error))?;
                Ok(Some(Arc::new(known)))
            }
            Some(roots) => {
                let builder = ClientConfig::builder_with_provider(crypto_provider())
                    .with_safe_default_protocol_versions()
                    .map_err(|error| setup(&error))?;
                Ok(Some(Arc::new(
                    builder.with_root_certificates(roots).with_no_client_auth(),
                )))
            }
        },
        TlsMode::VerifyCa => {
            let Some(roots) = roots()? else {
                return Err(SetupError(
                    "`tls = \"verify-ca\"` needs `ca_file`: a certificate of any public authority would do otherwise".to_owned(),
                ));
            };
            let inner = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), crypto_provider())
                .build()
                .map_err(|error| setup(&error))?;
            let config = ClientConfig::builder_with_provider(crypto_provider())
                .with_safe_default_protocol_versions()
                .map_err(|error| setup(&error))?
                .dangerous()
                .with_custom_certificate_verifier(Arc::new(AnyName(inner)))
                .with_no_client_auth();
            Ok(Some(Arc::new(config)))
        }
    }
}

fn crypto_provider() -> Arc<rustls::crypto::CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

fn roots_of(file: &Path) -> Result<RootCertStore, SetupError> {
    let unusable = |why: String| {
        SetupError(format!(
            "`[postgres] ca_file` `{}` is not usable: {why}",
            file.display()
        ))
    };
    let certificates = CertificateDer::pem_file_iter(file)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|error| unusable(error.to_string()))?;
    let mut roots = RootCertStore::empty();
    let (added, _) = roots.add_parsable_certificates(certificates);
    if added == 0 {
        return Err(unusable("no certificate is in it".to_owned()));
    }
    Ok(roots)
}

/// Verifies the certificate chain but not the name (`verify-ca`).
#[derive(Debug)]
struct AnyName(Arc<WebPkiServerVerifier>);

impl ServerCertVerifier for AnyName {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let verified = self
            .0
            .verify_server_cert(end_entity, intermediates, name, ocsp, now);
        match verified {
            // The name is checked last, after the chain is verified.
            Err(Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) => Ok(ServerCertVerified::assertion()),
            other => other,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_verify_schemes()
    }
}

/// Makes TLS handshakes. Without a configuration, tokio-postgres does not ask for one.
#[derive(Clone)]
pub(crate) struct PgTlsConnector(pub(crate) Option<Arc<ClientConfig>>);

/// One pending handshake.
pub(crate) struct PgTlsHandshake {
    config: Option<Arc<ClientConfig>>,
    name: String,
}

impl MakeTlsConnect<Socket> for PgTlsConnector {
    type Stream = PgTlsStream;
    type TlsConnect = PgTlsHandshake;
    type Error = io::Error;

    fn make_tls_connect(&mut self, domain: &str) -> io::Result<PgTlsHandshake> {
        Ok(PgTlsHandshake {
            config: self.0.clone(),
            name: domain.to_owned(),
        })
    }
}

impl TlsConnect<Socket> for PgTlsHandshake {
    type Stream = PgTlsStream;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<PgTlsStream>> + Send>>;

    fn connect(self, stream: Socket) -> Self::Future {
        Box::pin(async move {
            let config = self
                .config
                .ok_or_else(|| io::Error::other("no TLS is configured"))?;
            let name = ServerName::try_from(self.name).map_err(io::Error::other)?;
            let stream = TlsConnector::from(config).connect(name, stream).await?;
            Ok(PgTlsStream(Box::new(stream)))
        })
    }
}

/// An encrypted connection.
pub(crate) struct PgTlsStream(Box<tokio_rustls::client::TlsStream<Socket>>);

impl TlsStream for PgTlsStream {
    fn channel_binding(&self) -> ChannelBinding {
        ChannelBinding::none()
    }
}

impl AsyncRead for PgTlsStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(context, buffer)
    }
}

impl AsyncWrite for PgTlsStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }
}
