//! Accepts connections, and detects the protocol by the first byte.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::BytesMut;
use rustix::process::{Resource, getrlimit};
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::exchange::{self, OutboundRequest};
use super::head::{self, BodyFraming, RequestHead};
use super::tunnel::{self, TunnelReply};
use super::{DuplexIo, ProxyCallState, ProxyFault, run_within, socks};
use crate::record::{ConnectionMethod, OpenConnection};
use crate::{HostPort, PermittedTarget};

/// The maximum number of open connections of all calls together, if there are enough file descriptors.
const MAX_CONNECTIONS_OF_ALL: usize = 1024;

/// Serves until `stop`. Then every connection is cut and recorded.
pub(super) async fn serve_listener(
    call: &Arc<ProxyCallState>,
    listener: TcpListener,
    stop: impl Future<Output = ()>,
) {
    let mut tasks = JoinSet::new();
    tokio::select! {
        () = stop => {}
        () = accept_connections(call, listener, &mut tasks) => {}
    }
    tasks.shutdown().await;
}

/// The semaphore for connections of all calls of this process. Each connection takes two file descriptors. Half of all descriptors
/// are left for other work.
fn room_of_all() -> &'static Semaphore {
    static ROOM: OnceLock<Semaphore> = OnceLock::new();
    ROOM.get_or_init(|| {
        let descriptors = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        let fitting = usize::try_from(descriptors / 4).unwrap_or(usize::MAX);
        Semaphore::new(fitting.min(MAX_CONNECTIONS_OF_ALL))
    })
}

async fn accept_connections(call: &Arc<ProxyCallState>, listener: TcpListener, tasks: &mut JoinSet<()>) {
    let room = Arc::new(Semaphore::new(call.shared.limits.max_connections));
    loop {
        let permit = tokio::select! {
            permit = Arc::clone(&room).acquire_owned() => permit,
            Some(_) = tasks.join_next() => continue,
        };
        let Ok(permit) = permit else { return };
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            Some(_) = tasks.join_next() => continue,
        };
        match accepted {
            Ok((stream, _)) => {
                // Acquired only for an accepted connection, so that an idle listener uses no slot.
                let Ok(of_all) = room_of_all().acquire().await else {
                    return;
                };
                let call = Arc::clone(call);
                tasks.spawn(async move {
                    serve_connection(&call, stream).await;
                    drop((permit, of_all));
                });
            }
            // The listening socket is lost, so no connection can arrive any more. The trace records the reason.
            Err(error) if error.kind() == std::io::ErrorKind::InvalidInput => {
                let mut lost = OpenConnection::new(Arc::clone(&call.ledger), ConnectionMethod::Http);
                lost.record_refusal("proxy", "the box's way out was closed while it was in use");
                while tasks.join_next().await.is_some() {}
                return;
            }
            // Out of file descriptors or similar: wait until open connections end.
            Err(_) => tokio::time::sleep(Duration::from_millis(20)).await, // silent-ok: tried again
        }
    }
}

async fn serve_connection(call: &Arc<ProxyCallState>, mut stream: TcpStream) {
    let _ = stream.set_nodelay(true); // silent-ok: slower, not wrong
    let mut buffer = BytesMut::with_capacity(4096);
    let head_ms = call.shared.limits.head_ms;
    // A connection without a request is not recorded.
    let Ok(first) = run_within(head_ms, first_byte(&mut stream, &mut buffer)).await else {
        return;
    };
    let via = if first == 5 {
        ConnectionMethod::Socks
    } else {
        ConnectionMethod::Http
    };
    let mut open = OpenConnection::new(Arc::clone(&call.ledger), via);
    match first {
        5 => match run_within(head_ms, socks::read_request(&mut stream, &mut buffer)).await {
            Ok(place) => tunnel::serve_tunnel(call, open, stream, buffer, TunnelReply::Socks, &place).await,
            Err(fault) => record_fault(&mut open, &fault),
        },
        b'A'..=b'Z' | b'a'..=b'z' | b'\r' | b'\n' | b' ' => serve_http(call, open, stream, buffer).await,
        _ => open.record_refusal("protocol", "neither HTTP nor SOCKS5"),
    }
}

/// Reads the first byte; it stays in the buffer.
pub(super) async fn first_byte(
    stream: &mut (impl AsyncRead + Unpin),
    buffer: &mut BytesMut,
) -> Result<u8, ProxyFault> {
    if buffer.is_empty() {
        stream
            .read_buf(buffer)
            .await
            .map_err(ProxyFault::connection_gone)?;
    }
    buffer.first().copied().ok_or(ProxyFault::Gone)
}

/// Serves one request of a WebAssembly guest in this process. The guest names the scheme and the proxy makes the TLS connection, so
/// the proxy sees every request.
pub(super) async fn serve_guest(call: &Arc<ProxyCallState>, mut stream: Box<dyn DuplexIo>) {
    let limits = &call.shared.limits;
    let Ok(_of_all) = room_of_all().acquire().await else {
        return;
    };
    let mut open = OpenConnection::new(Arc::clone(&call.ledger), ConnectionMethod::Guest);
    let mut buffer = BytesMut::with_capacity(4096);
    let head = match next_head(call, &mut stream, &mut buffer).await {
        Ok(head) => head,
        Err(fault) => return send_fault(open, stream, fault).await,
    };
    let secure = head.target.starts_with("https://");
    let wrong = if secure {
        &limits.http_ports
    } else {
        &limits.tls_ports
    };
    let asked = admit_absolute(
        call,
        &mut open,
        head,
        secure,
        (wrong, "this port speaks the other scheme"),
    )
    .await;
    open.connection.terminated = secure;
    match asked {
        Ok(asked) => run_exchange(call, open, stream, buffer, asked).await,
        Err(fault) => send_fault(open, stream, fault).await,
    }
}

/// Reads the head of the next request.
async fn next_head(
    call: &ProxyCallState,
    stream: &mut (impl AsyncRead + Unpin),
    buffer: &mut BytesMut,
) -> Result<RequestHead, ProxyFault> {
    let limits = &call.shared.limits;
    let reading = head::read(stream, buffer, limits.max_head_bytes, limits.max_headers);
    run_within(limits.head_ms, reading).await
}

/// Checks a request in absolute form. `wrong` lists ports that are not allowed for this scheme, and the reason.
async fn admit_absolute(
    call: &ProxyCallState,
    open: &mut OpenConnection,
    head: RequestHead,
    secure: bool,
    wrong: (&[u16], &'static str),
) -> Result<OutboundRequest, ProxyFault> {
    let (scheme, port) = if secure {
        ("https://", 443)
    } else {
        ("http://", 80)
    };
    let (place, path) = absolute_target(&head, scheme, port)?;
    let (target, addresses) = call.admit_target(open, &place).await?;
    if wrong.0.contains(&target.port) {
        return Err(ProxyFault::forbidden("tls", wrong.1));
    }
    Ok(OutboundRequest {
        head,
        path,
        target,
        addresses,
        secure,
    })
}

async fn serve_http(
    call: &Arc<ProxyCallState>,
    mut open: OpenConnection,
    mut stream: TcpStream,
    mut buffer: BytesMut,
) {
    let head = match next_head(call, &mut stream, &mut buffer).await {
        Ok(head) => head,
        Err(fault) => return send_fault(open, Box::new(stream), fault).await,
    };
    if head.method == "CONNECT" {
        open.connection.via = ConnectionMethod::Connect;
        return match connect_place(&head) {
            Ok(place) => tunnel::serve_tunnel(call, open, stream, buffer, TunnelReply::Connect, &place).await,
            Err(fault) => {
                open.set_requested(&head.target, 0);
                send_fault(open, Box::new(stream), fault).await;
            }
        };
    }
    let wrong = "this port speaks TLS: ask by CONNECT, not by plain HTTP";
    let tls_ports = &call.shared.limits.tls_ports;
    match admit_absolute(call, &mut open, head, false, (tls_ports, wrong)).await {
        Ok(asked) => run_exchange(call, open, Box::new(stream), buffer, asked).await,
        Err(fault) => send_fault(open, Box::new(stream), fault).await,
    }
}

/// Serves a request in origin form that came through a terminated tunnel.
pub(super) async fn serve_inside_tunnel(
    call: &Arc<ProxyCallState>,
    open: OpenConnection,
    mut stream: Box<dyn DuplexIo>,
    mut buffer: BytesMut,
    admitted: (PermittedTarget, Vec<std::net::SocketAddr>),
    secure: bool,
) {
    let (target, addresses) = admitted;
    let asked = match next_head(call, &mut stream, &mut buffer).await {
        Ok(head) => origin_path(&head, &target, secure).map(|path| OutboundRequest {
            head,
            path,
            target,
            addresses,
            secure,
        }),
        Err(fault) => Err(fault),
    };
    match asked {
        Ok(asked) => run_exchange(call, open, stream, buffer, asked).await,
        Err(fault) => send_fault(open, stream, fault).await,
    }
}

async fn run_exchange(
    call: &Arc<ProxyCallState>,
    mut open: OpenConnection,
    stream: Box<dyn DuplexIo>,
    mut buffer: BytesMut,
    asked: OutboundRequest,
) {
    match exchange::serve_exchange(call, &mut open, stream, &mut buffer, asked).await {
        Ok(()) => {}
        Err((Some(stream), fault)) => send_fault(open, stream, fault).await,
        // A part of the answer was sent already, so the connection can only be cut.
        Err((None, fault)) => {
            if let ProxyFault::Say { code, reason, .. } = fault {
                open.record_refusal(code, reason);
            }
        }
    }
}

/// Records the fault and reports it to the tool.
async fn send_fault(mut open: OpenConnection, mut stream: Box<dyn DuplexIo>, fault: ProxyFault) {
    record_fault(&mut open, &fault);
    // Record the fault first: a reader of the answer may read the record next.
    drop(open);
    if let ProxyFault::Say { status, code, reason } = fault {
        exchange::send_refusal(&mut *stream, status, code, &reason).await;
    }
}

/// Writes a fault into the record.
pub(super) fn record_fault(open: &mut OpenConnection, fault: &ProxyFault) {
    match fault {
        ProxyFault::Say { code, reason, .. } => open.record_refusal(code, reason.as_str()),
        ProxyFault::Gone if open.connection.address.is_none() => {
            open.record_refusal("incomplete", "the request did not come to its end in time");
        }
        ProxyFault::Gone => {}
    }
}

/// The target of a `CONNECT`: `host:port`. `Host` must be the same.
fn connect_place(head: &RequestHead) -> Result<HostPort, ProxyFault> {
    if head.framing != BodyFraming::None {
        return Err(ProxyFault::bad_request("smuggling", "a CONNECT with a body"));
    }
    let place = HostPort::parse(&head.target, None)
        .ok_or_else(|| ProxyFault::bad_request("malformed", "a CONNECT needs `host:port`"))?;
    match head.host()? {
        Some(host) if HostPort::parse(host, Some(place.port)).as_ref() != Some(&place) => Err(
            ProxyFault::bad_request("smuggling", "`Host` is not the authority asked for"),
        ),
        _ => Ok(place),
    }
}

/// The target and path of a request in absolute form with this scheme. `Host` must be the same.
fn absolute_target(head: &RequestHead, scheme: &str, default: u16) -> Result<(HostPort, String), ProxyFault> {
    let rest = head
        .target
        .split_at_checked(scheme.len())
        .filter(|(own, _)| own.eq_ignore_ascii_case(scheme))
        .map(|(_, rest)| rest)
        .ok_or_else(|| {
            ProxyFault::bad_request(
                "malformed",
                "a proxy needs an absolute `http://` target, or CONNECT for anything else",
            )
        })?;
    let end = rest.find(['/', '?']).unwrap_or(rest.len());
    let (authority, path) = rest.split_at_checked(end).unwrap_or((rest, ""));
    let place = HostPort::parse(authority, Some(default)).ok_or_else(|| {
        ProxyFault::bad_request(
            "malformed",
            "the target's authority is not a `host` or `host:port`",
        )
    })?;
    if let Some(host) = head.host()?
        && HostPort::parse(host, Some(default)).as_ref() != Some(&place)
    {
        return Err(ProxyFault::bad_request(
            "smuggling",
            "`Host` is not the authority asked for",
        ));
    }
    let path = if path.starts_with('/') {
        path.to_owned()
    } else {
        format!("/{path}")
    };
    Ok((place, path))
}

/// The path of a request in origin form. `Host` must be the host that was checked.
fn origin_path(head: &RequestHead, target: &PermittedTarget, secure: bool) -> Result<String, ProxyFault> {
    let default = if secure { 443 } else { 80 };
    let own = HostPort {
        host: target.host.clone(),
        port: target.port,
    };
    let Some(host) = head.host()? else {
        return Err(ProxyFault::bad_request("smuggling", "no `Host` header"));
    };
    if HostPort::parse(host, Some(default)).as_ref() != Some(&own) {
        return Err(ProxyFault::forbidden(
            "host",
            "`Host` is not the host that this connection was judged for",
        ));
    }
    let star = head.method == "OPTIONS" && head.target == "*";
    if head.target.starts_with('/') || star {
        Ok(head.target.clone())
    } else {
        Err(ProxyFault::bad_request(
            "smuggling",
            "an absolute target inside of a tunnel",
        ))
    }
}
