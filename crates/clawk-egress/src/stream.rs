//! A connection for protocols other than HTTP requests (WebSocket, mail). Its address is from the operator or from a platform's own
//! API.

use std::fmt;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use clawk_secrets::EnvironmentSource;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::{DeadlinePhase, EgressError, tls};

/// A byte stream, with or without TLS.
pub struct EgressStream(Kind);

enum Kind {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

impl fmt::Debug for EgressStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            Kind::Plain(_) => "Stream(plain)",
            Kind::Tls(_) => "Stream(TLS)",
        })
    }
}

impl EgressStream {
    /// Connects to a host, with TLS if `secure`. TCP and TLS together must finish within `connect_ms`.
    ///
    /// # Errors
    /// [`EgressError`]; nothing was sent.
    pub async fn connect(
        host: &str,
        port: u16,
        secure: bool,
        env: &EnvironmentSource,
        connect_ms: u64,
    ) -> Result<Self, EgressError> {
        let connecting = async {
            let tcp = TcpStream::connect((host, port))
                .await
                .map_err(|error| EgressError::Connect(error.to_string()))?;
            // silent-ok: it only affects speed
            let _fast = tcp.set_nodelay(true);
            if secure {
                secure_stream(tcp, host, env).await
            } else {
                Ok(Self(Kind::Plain(tcp)))
            }
        };
        match tokio::time::timeout(Duration::from_millis(connect_ms), connecting).await {
            Ok(connected) => connected,
            Err(_) => Err(EgressError::Timeout {
                phase: DeadlinePhase::Connect,
                ms: connect_ms,
            }),
        }
    }

    /// Starts TLS on this connection (STARTTLS).
    ///
    /// # Errors
    /// [`EgressError::Tls`]; [`EgressError::Setup`] if it has TLS already.
    pub async fn start_tls(self, host: &str, env: &EnvironmentSource) -> Result<Self, EgressError> {
        match self.0 {
            Kind::Plain(tcp) => secure_stream(tcp, host, env).await,
            Kind::Tls(_) => Err(EgressError::Setup("the connection has TLS already".to_owned())),
        }
    }
}

async fn secure_stream(
    tcp: TcpStream,
    host: &str,
    env: &EnvironmentSource,
) -> Result<EgressStream, EgressError> {
    let config = tls::client_config(true, env)?;
    let name = ServerName::try_from(host.trim_matches(['[', ']']).to_owned())
        .map_err(|_invalid| EgressError::Tls(format!("`{host}` is no name of a server")))?;
    let connector = TlsConnector::from(Arc::new(config));
    let stream = connector.connect(name, tcp).await;
    let stream = stream.map_err(|error| EgressError::Tls(error.to_string()))?;
    Ok(EgressStream(Kind::Tls(Box::new(stream))))
}

impl AsyncRead for EgressStream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().0 {
            Kind::Plain(stream) => Pin::new(stream).poll_read(cx, buf),
            Kind::Tls(stream) => Pin::new(stream).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for EgressStream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        match &mut self.get_mut().0 {
            Kind::Plain(stream) => Pin::new(stream).poll_write(cx, buf),
            Kind::Tls(stream) => Pin::new(stream).poll_write(cx, buf),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().0 {
            Kind::Plain(stream) => Pin::new(stream).poll_flush(cx),
            Kind::Tls(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().0 {
            Kind::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            Kind::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}
