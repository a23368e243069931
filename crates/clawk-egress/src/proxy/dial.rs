//! Checks a host name and connects to it. The name is resolved once, every address is checked, and only those addresses are used.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::rustls::pki_types::ServerName;

use super::{DuplexIo, Limits, ProxyCallState, ProxyFault};
use crate::client::judged_addresses;
use crate::record::{ByteCounters, OpenConnection};
use crate::{EgressError, HostPort, PermittedTarget, UrlRefusal};

impl ProxyCallState {
    /// Checks the name and port, resolves the name, and checks every address. The rule that allowed it is noted in the record.
    pub(super) async fn admit_target(
        &self,
        open: &mut OpenConnection,
        place: &HostPort,
    ) -> Result<(PermittedTarget, Vec<SocketAddr>), ProxyFault> {
        open.set_requested(&place.host, place.port);
        let target = self
            .shared
            .rules
            .judge_place(place)
            .map_err(|refusal| refusal_fault(&refusal))?;
        open.connection.rule = Some(target.rule.clone());
        open.connection.private = target.private;
        let deadline = Duration::from_millis(self.shared.limits.connect_ms);
        let found = tokio::time::timeout(deadline, judged_addresses(&self.shared.names, &target)).await;
        match found {
            Ok(Ok(addresses)) => Ok((target, addresses)),
            Ok(Err(EgressError::Refused(refusal))) => Err(refusal_fault(&refusal)),
            Ok(Err(error)) => Err(ProxyFault::with_status(502, "dns", &error.to_string())),
            Err(_elapsed) => Err(ProxyFault::with_status(
                504,
                "dns",
                "the name's look-up took too long",
            )),
        }
    }

    /// Connects to the first of the checked addresses that answers.
    pub(super) async fn dial_addresses(
        &self,
        open: &mut OpenConnection,
        addresses: &[SocketAddr],
    ) -> Result<CountedStream, ProxyFault> {
        let limits = &self.shared.limits;
        let deadline = tokio::time::Instant::now() + Duration::from_millis(limits.connect_ms);
        let mut last = "there is no address".to_owned();
        for address in addresses {
            match tokio::time::timeout_at(deadline, TcpStream::connect(address)).await {
                Ok(Ok(stream)) => {
                    open.connection.address = Some(address.ip());
                    let _ = stream.set_nodelay(true); // silent-ok: slower, not wrong
                    return Ok(CountedStream::new(stream, Arc::clone(&open.counts), limits));
                }
                Ok(Err(error)) => last = error.to_string(),
                Err(_elapsed) => {
                    return Err(ProxyFault::with_status(
                        504,
                        "connect",
                        "connecting took too long",
                    ));
                }
            }
        }
        Err(ProxyFault::with_status(
            502,
            "connect",
            &format!("cannot connect: {last}"),
        ))
    }

    /// Starts TLS, and verifies the server's certificate for the host that was checked.
    pub(super) async fn start_tls(
        &self,
        target: &PermittedTarget,
        stream: CountedStream,
    ) -> Result<Box<dyn DuplexIo>, ProxyFault> {
        let failed = |error: &dyn std::fmt::Display| {
            ProxyFault::with_status(502, "tls", &format!("TLS to `{}` failed: {error}", target.host))
        };
        let name = ServerName::try_from(target.host.clone()).map_err(|error| failed(&error))?;
        let connector = self.tls_connector().map_err(|error| failed(&error))?;
        let handshake = connector.connect(name, stream);
        let deadline = Duration::from_millis(self.shared.limits.connect_ms);
        match tokio::time::timeout(deadline, handshake).await {
            Ok(Ok(stream)) => Ok(Box::new(stream)),
            Ok(Err(error)) => Err(failed(&error)),
            Err(_elapsed) => Err(failed(&"it took too long")),
        }
    }
}

fn refusal_fault(refusal: &UrlRefusal) -> ProxyFault {
    ProxyFault::forbidden(refusal.code(), &refusal.to_string())
}

/// A connection that counts its bytes and enforces limits.
pub(super) struct CountedStream {
    inner: TcpStream,
    counts: Arc<ByteCounters>,
    max_out: u64,
    max_in: u64,
}

impl CountedStream {
    fn new(inner: TcpStream, counts: Arc<ByteCounters>, limits: &Limits) -> Self {
        Self {
            inner,
            counts,
            max_out: limits.max_bytes_out,
            max_in: limits.max_bytes_in,
        }
    }

    pub(super) fn byte_counters(&self) -> &Arc<ByteCounters> {
        &self.counts
    }

    /// Waits until the server has sent something.
    pub(super) async fn wait_readable(&self) {
        let _ = self.inner.readable().await; // silent-ok: a broken connection shows when it is read
    }
}

impl AsyncRead for CountedStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let done = Pin::new(&mut self.inner).poll_read(cx, buf);
        let read = u64::try_from(buf.filled().len().saturating_sub(before)).unwrap_or(u64::MAX);
        let total = self
            .counts
            .bytes_in
            .fetch_add(read, Ordering::Relaxed)
            .saturating_add(read);
        if total > self.max_in {
            return Poll::Ready(Err(io::Error::other("too many bytes came in")));
        }
        done
    }
}

impl AsyncWrite for CountedStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        if self.counts.bytes_out.load(Ordering::Relaxed) >= self.max_out {
            return Poll::Ready(Err(io::Error::other("too many bytes went out")));
        }
        let done = Pin::new(&mut self.inner).poll_write(cx, bytes);
        if let Poll::Ready(Ok(written)) = &done {
            let written = u64::try_from(*written).unwrap_or(u64::MAX);
            self.counts.bytes_out.fetch_add(written, Ordering::Relaxed);
        }
        done
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}
