//! One request and its answer, both visible to the proxy: plain HTTP, or TLS that the proxy terminates.

use std::net::SocketAddr;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::BytesMut;
use clawk_secrets::RedactStream;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};

use super::body::{self, Body};
use super::head::{self, BodyFraming, RequestHead, ResponseHead};
use super::{DuplexIo, ProxyCallState, ProxyFault, dress, run_within};
use crate::PermittedTarget;
use crate::record::OpenConnection;
use crate::screen::{ScreenVerdict, SecretScan};

/// Bodies up to this size (bytes) are checked as a whole before anything is sent. Longer bodies are checked piece by piece.
const WHOLE_BYTES: u64 = 256 << 10;

/// Request headers that are removed: they would allow encoded or partial answers, which can't be redacted.
const UNREDACTABLE: [&str; 3] = ["accept-encoding", "range", "if-range"];

/// A request that was checked and may be sent.
pub(super) struct OutboundRequest {
    pub(super) head: RequestHead,
    /// Path and query.
    pub(super) path: String,
    pub(super) target: PermittedTarget,
    pub(super) addresses: Vec<SocketAddr>,
    /// Whether the connection to the server uses TLS.
    pub(super) secure: bool,
}

/// A request ready to be sent: secrets are in the headers, and everything was checked.
struct PreparedRequest {
    lines: Vec<u8>,
    /// The whole body, if it is short.
    whole: Option<Vec<u8>>,
    framing: BodyFraming,
}

/// Serves one exchange completely. [`ProxyFault::Say`] is a fault that can still be reported to the tool.
pub(super) async fn serve_exchange(
    call: &ProxyCallState,
    open: &mut OpenConnection,
    client: Box<dyn DuplexIo>,
    buffer: &mut BytesMut,
    asked: OutboundRequest,
) -> Result<(), (Option<Box<dyn DuplexIo>>, ProxyFault)> {
    let (mut reading, mut writing) = tokio::io::split(client);
    let started = AtomicBool::new(false);
    let ran = run(call, open, &mut reading, &mut writing, buffer, asked, &started).await;
    let client: Box<dyn DuplexIo> = Box::new(tokio::io::join(reading, writing));
    match ran {
        Ok(()) => {
            let mut client = client;
            let _ = client.shutdown().await; // silent-ok: the client has its answer
            Ok(())
        }
        Err(fault) if started.load(Ordering::Relaxed) => Err((None, fault)),
        Err(fault) => Err((Some(client), fault)),
    }
}

type DynReader<'a> = &'a mut (dyn AsyncRead + Send + Unpin);
type Writer<'a> = &'a mut (dyn AsyncWrite + Send + Unpin);

async fn run(
    call: &ProxyCallState,
    open: &mut OpenConnection,
    reading: DynReader<'_>,
    writing: Writer<'_>,
    buffer: &mut BytesMut,
    asked: OutboundRequest,
    started: &AtomicBool,
) -> Result<(), ProxyFault> {
    let idle_ms = call.shared.limits.idle_ms;
    if matches!(asked.head.method.as_str(), "CONNECT" | "TRACE") {
        return Err(ProxyFault::with_status(405, "method", "this method is not sent"));
    }
    let redact = call.wardrobe.is_bound(&asked.target.host, asked.target.port);
    let (lines, framing) = prepare_head(call, open, &asked, redact)?;
    if asked.head.expects {
        let go_on = writing.write_all(b"HTTP/1.1 100 Continue\r\n\r\n");
        go_on.await.map_err(ProxyFault::connection_gone)?;
    }
    let mut coming = Body::new(reading, buffer, framing);
    let mut looked_at = OutboundInspection::new(call);
    let mut ready = PreparedRequest {
        lines,
        whole: None,
        framing,
    };
    if let BodyFraming::None | BodyFraming::Length(0..=WHOLE_BYTES) = framing {
        ready.whole = Some(looked_at.read_whole(&mut coming, idle_ms).await?);
    }
    let server = connect_server(call, open, &asked).await?;
    let (mut from, mut to) = tokio::io::split(server);
    let by_head = asked.head.method == "HEAD";
    let counts = std::sync::Arc::clone(&open.counts);
    let (max_out, max_in) = (call.shared.limits.max_bytes_out, call.shared.limits.max_bytes_in);
    // A server that stops reading may have answered already. So a failed write is a fault only if a byte limit was reached.
    let lost = || {
        let (out, back) = (
            counts.bytes_out.load(Ordering::Relaxed),
            counts.bytes_in.load(Ordering::Relaxed),
        );
        if out >= max_out || back > max_in {
            Err(ProxyFault::forbidden(
                "too-large",
                "more bytes than one connection may carry",
            ))
        } else {
            Ok(())
        }
    };
    let outcome = {
        let mut sending = pin!(send_request(
            &mut to,
            &ready,
            &mut coming,
            &mut looked_at,
            idle_ms,
            &lost
        ));
        let mut answering = pin!(relay_response(
            call,
            &mut from,
            writing,
            &asked,
            (redact, by_head),
            started
        ));
        let mut sent = false;
        loop {
            tokio::select! {
                done = &mut sending, if !sent => match done {
                    Ok(()) => sent = true,
                    Err(fault) => break Err(fault),
                },
                done = &mut answering => break done,
            }
        }
    };
    open.connection.findings.append(&mut looked_at.findings);
    match outcome {
        Err(ProxyFault::Gone) => lost().and(Err(ProxyFault::Gone)),
        told => told,
    }
}

async fn connect_server(
    call: &ProxyCallState,
    open: &mut OpenConnection,
    asked: &OutboundRequest,
) -> Result<Box<dyn DuplexIo>, ProxyFault> {
    let stream = call.dial_addresses(open, &asked.addresses).await?;
    if asked.secure {
        call.start_tls(&asked.target, stream).await
    } else {
        Ok(Box::new(stream))
    }
}

/// Builds the request's head, without the headers for the body's framing.
fn prepare_head(
    call: &ProxyCallState,
    open: &mut OpenConnection,
    asked: &OutboundRequest,
    redact: bool,
) -> Result<(Vec<u8>, BodyFraming), ProxyFault> {
    let (head, target) = (&asked.head, &asked.target);
    call.wardrobe
        .reject_placeholders("the URL", asked.path.as_bytes())?;
    let mut inspection = OutboundInspection::new(call);
    let path = inspection.inspect_text("the URL", asked.path.as_bytes())?;
    let mut headers = head.passed_on();
    if redact {
        headers.retain(|(name, _)| !UNREDACTABLE.contains(&name.to_ascii_lowercase().as_str()));
    }
    for (name, value) in &mut headers {
        if !call.wardrobe.owns_header(name, &target.host, target.port) {
            *value = inspection.inspect_text(&format!("the header `{name}`"), value)?;
        }
    }
    open.connection.findings.append(&mut inspection.findings);
    open.connection.secrets =
        call.wardrobe
            .insert_secrets(&mut headers, &target.host, target.port, asked.secure)?;
    let place = crate::HostPort {
        host: target.host.clone(),
        port: target.port,
    };
    let authority = place.authority(if asked.secure { 443 } else { 80 });
    let mut lines = Vec::with_capacity(512);
    lines.extend_from_slice(head.method.as_bytes());
    lines.push(b' ');
    lines.extend_from_slice(&path);
    lines.extend_from_slice(format!(" HTTP/1.1\r\nHost: {authority}\r\n").as_bytes());
    for (name, value) in headers {
        header_line(&mut lines, &name, &value);
    }
    lines.extend_from_slice(b"Connection: close\r\n");
    Ok((lines, head.framing))
}

fn header_line(lines: &mut Vec<u8>, name: &str, value: &[u8]) {
    lines.extend_from_slice(name.as_bytes());
    lines.extend_from_slice(b": ");
    lines.extend_from_slice(value);
    lines.extend_from_slice(b"\r\n");
}

type LossHandler<'a> = &'a (dyn Fn() -> Result<(), ProxyFault> + Sync);

/// Sends the request. If the server stops reading, `lost` decides whether that is a fault.
async fn send_request(
    to: Writer<'_>,
    ready: &PreparedRequest,
    coming: &mut Body<'_>,
    inspection: &mut OutboundInspection<'_>,
    idle_ms: u64,
    lost: LossHandler<'_>,
) -> Result<(), ProxyFault> {
    let mut lines = ready.lines.clone();
    if let Some(whole) = &ready.whole {
        if ready.framing != BodyFraming::None {
            lines.extend_from_slice(format!("Content-Length: {}\r\n", whole.len()).as_bytes());
        }
        lines.extend_from_slice(b"\r\n");
        lines.extend_from_slice(whole);
        return match run_within(idle_ms, body::write(to, &lines, false)).await {
            Ok(()) => flush_writer(to, idle_ms).await,
            Err(_) => lost(),
        };
    }
    lines.extend_from_slice(b"Transfer-Encoding: chunked\r\n\r\n");
    if run_within(idle_ms, body::write(to, &lines, false)).await.is_err() {
        return lost();
    }
    let mut out = Vec::new();
    while let Some(piece) = run_within(idle_ms, coming.next()).await? {
        inspection.push(&piece, &mut out)?;
        if run_within(idle_ms, body::write(to, &out, true)).await.is_err() {
            return lost();
        }
        flush_writer(to, idle_ms).await?;
        out.clear();
    }
    inspection.finish(&mut out)?;
    let last = async {
        body::write(to, &out, true).await?;
        body::write(to, b"0\r\n\r\n", false).await
    };
    if run_within(idle_ms, last).await.is_err() {
        return lost();
    }
    flush_writer(to, idle_ms).await
}

/// Flushes the stream: TLS keeps written data until then.
async fn flush_writer(to: Writer<'_>, idle_ms: u64) -> Result<(), ProxyFault> {
    // silent-ok: a server that stops listening may have answered already
    let _ = run_within(idle_ms, async {
        to.flush().await.map_err(ProxyFault::connection_gone)
    })
    .await;
    Ok(())
}

/// Sends the answer to the tool, with the secrets removed.
async fn relay_response(
    call: &ProxyCallState,
    from: DynReader<'_>,
    writing: Writer<'_>,
    asked: &OutboundRequest,
    (redact, by_head): (bool, bool),
    started: &AtomicBool,
) -> Result<(), ProxyFault> {
    let limits = &call.shared.limits;
    let mut buffer = BytesMut::new();
    let reading = head::read_answer(from, &mut buffer, limits.max_head_bytes, by_head);
    let answer = match run_within(limits.idle_ms, reading).await {
        Err(ProxyFault::Gone) => {
            return Err(ProxyFault::with_status(
                504,
                "answer",
                "the server did not answer, or broke off",
            ));
        }
        read => read?,
    };
    let coded = answer
        .first_value("content-encoding")
        .is_some_and(|coding| !coding.eq_ignore_ascii_case(b"identity"));
    if redact && coded && answer.framing != BodyFraming::None {
        return Err(ProxyFault::with_status(
            502,
            "answer",
            "a coded answer can't be looked through for secrets",
        ));
    }
    let values = &call.wardrobe.values;
    let (lines, chunked) = answer_lines(&answer, asked.head.modern, redact.then_some(values));
    started.store(true, Ordering::Relaxed);
    run_within(limits.idle_ms, body::write(writing, &lines, false)).await?;
    let mut coming = Body::new(from, &mut buffer, answer.framing);
    let mut clean = redact.then(|| values.redact_stream());
    let mut out = Vec::new();
    while let Some(piece) = run_within(limits.idle_ms, coming.next()).await? {
        let piece: &[u8] = match &mut clean {
            None => &piece,
            Some(clean) => {
                out.clear();
                clean.push(&piece, &mut out);
                &out
            }
        };
        run_within(limits.idle_ms, body::write(writing, piece, chunked)).await?;
        run_within(limits.idle_ms, async {
            writing.flush().await.map_err(ProxyFault::connection_gone)
        })
        .await?;
    }
    if let Some(mut clean) = clean {
        out.clear();
        clean.finish(&mut out);
        run_within(limits.idle_ms, body::write(writing, &out, chunked)).await?;
    }
    if chunked {
        run_within(limits.idle_ms, body::write(writing, b"0\r\n\r\n", false)).await?;
    }
    run_within(limits.idle_ms, async {
        writing.flush().await.map_err(ProxyFault::connection_gone)
    })
    .await
}

/// Builds the answer's head for the tool. Also returns whether the body is sent in chunks.
fn answer_lines(
    answer: &ResponseHead,
    modern: bool,
    values: Option<&clawk_secrets::SecretRedactor>,
) -> (Vec<u8>, bool) {
    let clean = |bytes: &[u8]| match values {
        None => bytes.to_vec(),
        Some(values) => {
            let (mut stream, mut out) = (values.redact_stream(), Vec::new());
            stream.push(bytes, &mut out);
            stream.finish(&mut out);
            out
        }
    };
    let version = if modern { "1.1" } else { "1.0" };
    let mut lines = Vec::with_capacity(512);
    lines.extend_from_slice(format!("HTTP/{version} {} ", answer.status).as_bytes());
    lines.extend_from_slice(&clean(answer.reason.as_bytes()));
    lines.extend_from_slice(b"\r\n");
    for (name, value) in &answer.headers {
        if head::of_answer(name) {
            header_line(
                &mut lines,
                &String::from_utf8_lossy(&clean(name.as_bytes())),
                &clean(value),
            );
        }
    }
    let exact = values.is_none_or(clawk_secrets::SecretRedactor::is_empty);
    let chunked = match answer.framing {
        // For a HEAD or a 304, the length is that of the resource, not of this body.
        BodyFraming::None => {
            if let Some(length) = answer.first_value("content-length") {
                header_line(&mut lines, "Content-Length", length);
            }
            false
        }
        BodyFraming::Length(length) if exact => {
            header_line(&mut lines, "Content-Length", length.to_string().as_bytes());
            false
        }
        BodyFraming::Length(_) | BodyFraming::Chunked => modern,
        BodyFraming::Close => false,
    };
    if chunked {
        header_line(&mut lines, "Transfer-Encoding", b"chunked");
    }
    header_line(&mut lines, "Connection", b"close");
    lines.extend_from_slice(b"\r\n");
    (lines, chunked)
}

/// Checks outgoing data: no placeholder where none is allowed, and nothing that the screen blocks.
struct OutboundInspection<'a> {
    call: &'a ProxyCallState,
    watch: Option<RedactStream<'a>>,
    screening: Option<Box<dyn SecretScan>>,
    findings: Vec<String>,
}

impl<'a> OutboundInspection<'a> {
    fn new(call: &'a ProxyCallState) -> Self {
        Self {
            call,
            watch: (!call.wardrobe.is_bare()).then(|| call.wardrobe.placeholder_watch()),
            screening: call.shared.screen.as_ref().map(|screen| screen.begin_scan()),
            findings: Vec::new(),
        }
    }

    fn push(&mut self, piece: &[u8], out: &mut Vec<u8>) -> Result<(), ProxyFault> {
        let mut passed = Vec::new();
        let piece = match &mut self.watch {
            None => piece,
            Some(watch) => {
                watch.push(piece, &mut passed);
                reject_placeholders(watch)?;
                &passed
            }
        };
        match &mut self.screening {
            None => out.extend_from_slice(piece),
            Some(screening) => {
                let screened = screening.push(piece, out);
                self.record_screening("the body", screened)?;
            }
        }
        Ok(())
    }

    fn finish(&mut self, out: &mut Vec<u8>) -> Result<(), ProxyFault> {
        let mut passed = Vec::new();
        if let Some(watch) = &mut self.watch {
            watch.finish(&mut passed);
            reject_placeholders(watch)?;
        }
        match &mut self.screening {
            None => out.extend_from_slice(&passed),
            Some(screening) => {
                let first = screening.push(&passed, out);
                let last = screening.finish(out);
                self.record_screening("the body", first)?;
                self.record_screening("the body", last)?;
            }
        }
        Ok(())
    }

    /// Reads a short body completely.
    async fn read_whole(&mut self, coming: &mut Body<'_>, idle_ms: u64) -> Result<Vec<u8>, ProxyFault> {
        let mut out = Vec::new();
        while let Some(piece) = run_within(idle_ms, coming.next()).await? {
            self.push(&piece, &mut out)?;
        }
        self.finish(&mut out)?;
        Ok(out)
    }

    /// Checks a URL or a header value.
    fn inspect_text(&mut self, what: &str, bytes: &[u8]) -> Result<Vec<u8>, ProxyFault> {
        let Some(screen) = &self.call.shared.screen else {
            return Ok(bytes.to_vec());
        };
        let (mut screening, mut out) = (screen.begin_scan(), Vec::new());
        let first = screening.push(bytes, &mut out);
        let last = screening.finish(&mut out);
        self.record_screening(what, first)?;
        self.record_screening(what, last)?;
        // The text that replaces a secret may contain characters that a URL must not have.
        let fit = |byte: &u8| {
            if what == "the URL" {
                (0x21..=0x7e).contains(byte)
            } else {
                *byte >= 0x20 || *byte == b'\t'
            }
        };
        if out.iter().all(fit) {
            Ok(out)
        } else {
            Err(ProxyFault::forbidden("leak", &format!("a secret in {what}")))
        }
    }

    fn record_screening(&mut self, what: &str, screened: ScreenVerdict) -> Result<(), ProxyFault> {
        match screened {
            ScreenVerdict::Clean => Ok(()),
            ScreenVerdict::Noted(names) => {
                const MAX_KEPT: usize = 16;
                for name in names {
                    if self.findings.len() < MAX_KEPT && !self.findings.contains(&name) {
                        self.findings.push(name);
                    }
                }
                Ok(())
            }
            ScreenVerdict::Blocked(name) => Err(ProxyFault::forbidden(
                "leak",
                &format!("a secret ({name}) in {what}"),
            )),
        }
    }
}

fn reject_placeholders(watch: &RedactStream<'_>) -> Result<(), ProxyFault> {
    if watch.found_count() == 0 {
        Ok(())
    } else {
        Err(dress::misplaced_fault("the body"))
    }
}

/// Sends the tool an answer that says why its request is not served.
pub(super) async fn send_refusal(client: &mut (dyn DuplexIo + '_), status: u16, code: &str, reason: &str) {
    let word = match status {
        400 => "Bad Request",
        403 => "Forbidden",
        405 => "Method Not Allowed",
        417 => "Expectation Failed",
        431 => "Request Header Fields Too Large",
        502 => "Bad Gateway",
        504 => "Gateway Timeout",
        _ => "Refused",
    };
    let text = format!("clawk refused this request ({code}): {reason}\n");
    let answer = format!(
        "HTTP/1.1 {status} {word}\r\nContent-Type: text/plain; charset=utf-8\r\nX-Clawk-Refused: {code}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{text}",
        text.len()
    );
    let _ = run_within(2_000, async {
        client
            .write_all(answer.as_bytes())
            .await
            .map_err(ProxyFault::connection_gone)?;
        client.shutdown().await.map_err(ProxyFault::connection_gone)?;
        // Read what the tool still sends. Otherwise its kernel would discard this answer.
        let (mut rest, mut left) = ([0; 4096], 1024);
        while left > 0
            && tokio::io::AsyncReadExt::read(client, &mut rest)
                .await
                .map_err(ProxyFault::connection_gone)?
                > 0
        {
            left -= 1;
        }
        Ok(())
    })
    .await; // silent-ok: the tool is gone
}
