//! `CONNECT` and SOCKS5 tunnels: what the proxy checks although it does not see all of the traffic.
//!
//! * Port 443: TLS only; the server name in the ClientHello must be the requested host.
//! * Port 80: plain HTTP only; the proxy sees each request.
//! * A port that an allow-list entry names: TLS or HTTP as above, or any other protocol without inspection.
//! * A host that a secret is bound to, and every host in strict mode: the proxy terminates TLS and sees each request. Other
//!   protocols are refused.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::BytesMut;
use clawk_proto::place::normalize_host;
use rustls::server::Acceptor;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::LazyConfigAcceptor;

use super::dial::CountedStream;
use super::serve::{first_byte, record_fault, serve_inside_tunnel};
use super::{DuplexIo, ProxyCallState, ProxyFault, exchange, run_within, socks};
use crate::record::OpenConnection;
use crate::{HostPort, PermittedTarget};

/// The first byte of a TLS connection.
const HANDSHAKE: u8 = 22;

/// The maximum size of a TLS ClientHello, in bytes.
const MAX_HELLO_BYTES: usize = 32 << 10;

/// On a port that an entry names: how long the proxy waits for the tool to send first, in milliseconds.
const SPEAK_MS: u64 = 300;

/// The protocol in which the tool gets its reply.
#[derive(Debug, Clone, Copy)]
pub(super) enum TunnelReply {
    Connect,
    Socks,
}

impl TunnelReply {
    async fn send_accept(self, stream: &mut TcpStream) -> Result<(), ProxyFault> {
        match self {
            Self::Connect => stream
                .write_all(b"HTTP/1.1 200 Connection established\r\n\r\n")
                .await
                .map_err(ProxyFault::connection_gone),
            Self::Socks => socks::accept_request(stream).await,
        }
    }

    async fn send_refusal(self, stream: &mut TcpStream, fault: &ProxyFault) {
        let ProxyFault::Say { status, code, reason } = fault else {
            return;
        };
        match self {
            Self::Connect => exchange::send_refusal(stream, *status, code, reason).await,
            Self::Socks => socks::refuse_request(stream, *status).await,
        }
    }
}

type AdmittedTarget = (PermittedTarget, Vec<SocketAddr>);

pub(super) async fn serve_tunnel(
    call: &Arc<ProxyCallState>,
    mut open: OpenConnection,
    mut stream: TcpStream,
    buffer: BytesMut,
    reply: TunnelReply,
    place: &HostPort,
) {
    let limits = &call.shared.limits;
    let admitted = match call.admit_target(&mut open, place).await {
        Ok(admitted) => admitted,
        Err(fault) => {
            record_fault(&mut open, &fault);
            drop(open);
            return reply.send_refusal(&mut stream, &fault).await;
        }
    };
    let port = admitted.0.port;
    let known = call.is_terminated(&admitted.0)
        || limits.tls_ports.contains(&port)
        || limits.http_ports.contains(&port);
    // On a port that an entry names, the server may send first. So connect to it before the tool gets its reply.
    let early = if known {
        None
    } else {
        Some(call.dial_addresses(&mut open, &admitted.1).await)
    };
    let early = match early.transpose() {
        Ok(early) => early,
        Err(fault) => {
            record_fault(&mut open, &fault);
            drop(open);
            return reply.send_refusal(&mut stream, &fault).await;
        }
    };
    if reply.send_accept(&mut stream).await.is_err() {
        return;
    }
    match early {
        None => by_first_byte(call, open, stream, buffer, admitted).await,
        Some(server) => serve_named_port(call, open, stream, buffer, admitted, server).await,
    }
}

/// Detects the protocol by the tool's first byte.
async fn by_first_byte(
    call: &Arc<ProxyCallState>,
    mut open: OpenConnection,
    mut stream: TcpStream,
    mut buffer: BytesMut,
    admitted: AdmittedTarget,
) {
    let limits = &call.shared.limits;
    let port = admitted.0.port;
    let first = match run_within(limits.head_ms, first_byte(&mut stream, &mut buffer)).await {
        Ok(first) => first,
        Err(fault) => return record_fault(&mut open, &fault),
    };
    let tls = first == HANDSHAKE && !limits.http_ports.contains(&port);
    let plain = first.is_ascii_uppercase() && !limits.tls_ports.contains(&port);
    if tls && call.is_terminated(&admitted.0) {
        terminate_tls(call, open, stream, buffer, admitted).await;
    } else if tls {
        serve_end_to_end(call, open, stream, buffer, admitted, None).await;
    } else if plain {
        serve_inside_tunnel(call, open, Box::new(stream), buffer, admitted, false).await;
    } else if limits.tls_ports.contains(&port) {
        open.record_refusal("tls", format!("port {port} is for TLS only"));
    } else if limits.http_ports.contains(&port) {
        open.record_refusal("protocol", format!("port {port} is for plain HTTP only"));
    } else {
        open.record_refusal(
            "opaque",
            "requests to this host must be seen, and this is neither TLS nor HTTP",
        );
    }
}

/// A port that an entry names: TLS and HTTP are checked as usual; other protocols are forwarded.
async fn serve_named_port(
    call: &Arc<ProxyCallState>,
    mut open: OpenConnection,
    mut stream: TcpStream,
    mut buffer: BytesMut,
    admitted: AdmittedTarget,
    server: CountedStream,
) {
    let idle_ms = call.shared.limits.idle_ms;
    let patience = Duration::from_millis(SPEAK_MS);
    let mut first = tokio::time::timeout(patience, first_byte(&mut stream, &mut buffer))
        .await
        .ok(); // silent-ok: the server's turn
    if first.is_none() {
        first = tokio::select! {
            first = run_within(idle_ms, first_byte(&mut stream, &mut buffer)) => Some(first),
            () = server.wait_readable() => None,
        };
    }
    match first {
        Some(Err(fault)) => record_fault(&mut open, &fault),
        Some(Ok(HANDSHAKE)) => serve_end_to_end(call, open, stream, buffer, admitted, Some(server)).await,
        Some(Ok(_))
            if run_within(idle_ms, begins_like_http(&mut stream, &mut buffer))
                .await
                .unwrap_or(false) =>
        {
            drop(server);
            serve_inside_tunnel(call, open, Box::new(stream), buffer, admitted, false).await;
        }
        Some(Ok(_)) | None => pump_bytes(call, stream, buffer, server).await,
    }
}

/// Whether the data starts like an HTTP request (`METHOD /`). Reads only as many bytes as needed.
async fn begins_like_http(stream: &mut TcpStream, buffer: &mut BytesMut) -> Result<bool, ProxyFault> {
    loop {
        let method = buffer.iter().take_while(|byte| byte.is_ascii_uppercase()).count();
        match (buffer.get(method), buffer.get(method + 1)) {
            _ if method == 0 || method > 20 => return Ok(false),
            (Some(b' '), Some(b'/' | b'*' | b'h' | b'H')) => return Ok(true),
            (Some(b' ') | None, None) => {}
            _ => return Ok(false),
        }
        if stream
            .read_buf(buffer)
            .await
            .map_err(ProxyFault::connection_gone)?
            == 0
        {
            return Ok(false);
        }
    }
}

/// End-to-end TLS: the proxy reads only the ClientHello.
async fn serve_end_to_end(
    call: &Arc<ProxyCallState>,
    mut open: OpenConnection,
    mut stream: TcpStream,
    mut buffer: BytesMut,
    (target, addresses): AdmittedTarget,
    server: Option<CountedStream>,
) {
    let greeted = run_within(
        call.shared.limits.head_ms,
        read_server_name(&mut stream, &mut buffer),
    )
    .await;
    let judged = greeted.and_then(|name| same_name(name.as_deref(), &target));
    let server = match (judged, server) {
        (Ok(()), Some(server)) => Ok(server),
        (Ok(()), None) => call.dial_addresses(&mut open, &addresses).await,
        (Err(fault), _) => Err(fault),
    };
    match server {
        Ok(server) => pump_bytes(call, stream, buffer, server).await,
        Err(fault) => record_fault(&mut open, &fault),
    }
}

/// The server name in the tool's ClientHello. The bytes stay in the buffer.
async fn read_server_name(
    stream: &mut TcpStream,
    buffer: &mut BytesMut,
) -> Result<Option<String>, ProxyFault> {
    let bad = || ProxyFault::forbidden("tls", "this is not a valid TLS greeting");
    let mut acceptor = Acceptor::default();
    let mut fed = 0;
    loop {
        while let Some(rest) = buffer.get(fed..).filter(|rest| !rest.is_empty()) {
            let mut rest = rest;
            fed += acceptor.read_tls(&mut rest).map_err(|_error| bad())?;
            match acceptor.accept() {
                Ok(Some(accepted)) => return Ok(accepted.client_hello().server_name().map(str::to_owned)),
                Ok(None) => {}
                Err(_refusal) => return Err(bad()),
            }
        }
        if buffer.len() > MAX_HELLO_BYTES {
            return Err(bad());
        }
        if stream
            .read_buf(buffer)
            .await
            .map_err(ProxyFault::connection_gone)?
            == 0
        {
            return Err(ProxyFault::Gone);
        }
    }
}

fn same_name(name: Option<&str>, target: &PermittedTarget) -> Result<(), ProxyFault> {
    match name {
        Some(name) if normalize_host(name) == target.host => Ok(()),
        // A ClientHello has no server name if the target is an IP address.
        None if target.literal.is_some() => Ok(()),
        Some(name) => Err(ProxyFault::forbidden(
            "sni",
            &format!(
                "the TLS greeting names `{name}`, and the connection was judged for `{}`",
                target.host
            ),
        )),
        None => Err(ProxyFault::forbidden("sni", "the TLS greeting names no server")),
    }
}

/// Terminates the tool's TLS and serves the request inside.
async fn terminate_tls(
    call: &Arc<ProxyCallState>,
    mut open: OpenConnection,
    stream: TcpStream,
    buffer: BytesMut,
    admitted: AdmittedTarget,
) {
    open.connection.terminated = true;
    match run_within(
        call.shared.limits.head_ms,
        ended_here(call, stream, buffer, &admitted.0),
    )
    .await
    {
        Ok(stream) => serve_inside_tunnel(call, open, stream, BytesMut::new(), admitted, true).await,
        Err(fault) => record_fault(&mut open, &fault),
    }
}

async fn ended_here(
    call: &ProxyCallState,
    stream: TcpStream,
    buffer: BytesMut,
    target: &PermittedTarget,
) -> Result<Box<dyn DuplexIo>, ProxyFault> {
    let failed =
        |error: &dyn std::fmt::Display| ProxyFault::forbidden("tls", &format!("the tool's TLS: {error}"));
    let authority = call
        .shared
        .authority
        .as_ref()
        .ok_or_else(|| failed(&"there is no authority in this run"))?;
    let (reading, writing) = stream.into_split();
    let whole = tokio::io::join(std::io::Cursor::new(buffer).chain(reading), writing);
    let started = LazyConfigAcceptor::new(Acceptor::default(), whole)
        .await
        .map_err(|error| failed(&error))?;
    same_name(started.client_hello().server_name(), target)?;
    let config = authority
        .server_config(&target.host)
        .map_err(|error| failed(&error))?;
    let stream = started
        .into_stream(config)
        .await
        .map_err(|error| failed(&error))?;
    Ok(Box::new(stream))
}

/// Copies in both directions until one side ends, or no data moves for too long.
async fn pump_bytes(
    call: &ProxyCallState,
    mut stream: TcpStream,
    buffer: BytesMut,
    mut server: CountedStream,
) {
    let idle_ms = call.shared.limits.idle_ms;
    let first = run_within(idle_ms, async {
        server
            .write_all(&buffer)
            .await
            .map_err(ProxyFault::connection_gone)
    });
    if first.await.is_err() {
        return;
    }
    let counts = Arc::clone(server.byte_counters());
    let moved = || {
        let bytes_in = counts.bytes_in.load(Ordering::Relaxed);
        bytes_in.wrapping_add(counts.bytes_out.load(Ordering::Relaxed))
    };
    let mut copying = std::pin::pin!(tokio::io::copy_bidirectional(&mut stream, &mut server));
    let mut before = moved();
    loop {
        let patience = tokio::time::timeout(Duration::from_millis(idle_ms), &mut copying);
        if patience.await.is_ok() || moved() == before {
            return;
        }
        before = moved();
    }
}
