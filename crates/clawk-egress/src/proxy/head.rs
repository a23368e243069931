//! Strict parsing of HTTP/1 heads. Anything that two parsers could read differently is refused.

use bytes::BytesMut;
use tokio::io::{AsyncRead, AsyncReadExt};

use super::ProxyFault;

/// A request's head without ambiguities.
#[derive(Debug)]
pub(super) struct RequestHead {
    pub(super) method: String,
    pub(super) target: String,
    /// True for HTTP/1.1, false for HTTP/1.0.
    pub(super) modern: bool,
    /// Names as received, values as bytes.
    pub(super) headers: Vec<(String, Vec<u8>)>,
    pub(super) framing: BodyFraming,
    /// Whether the client waits for `100 Continue`.
    pub(super) expects: bool,
}

/// How the end of a message's body is found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BodyFraming {
    /// There is no body.
    None,
    /// The body has this many bytes.
    Length(u64),
    /// `Transfer-Encoding: chunked`.
    Chunked,
    /// The body ends when the connection closes; only for answers.
    Close,
}

/// Headers for one connection only. They are never forwarded.
const HOP_BY_HOP: [&str; 10] = [
    "connection",
    "keep-alive",
    "proxy-connection",
    "proxy-authorization",
    "proxy-authenticate",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "expect",
];

/// Headers that `Connection` must not list as hop-by-hop.
const FRAMING: [&str; 3] = ["content-length", "transfer-encoding", "host"];

fn smuggling_fault(what: &str) -> ProxyFault {
    ProxyFault::bad_request("smuggling", what)
}

/// Reads a complete request head. Bytes after it stay in `buffer`.
pub(super) async fn read(
    stream: &mut (impl AsyncRead + Unpin + ?Sized),
    buffer: &mut BytesMut,
    max_bytes: usize,
    max_headers: usize,
) -> Result<RequestHead, ProxyFault> {
    let mut looked = 0;
    loop {
        if let Some(end) = end_of_head(buffer, &mut looked)? {
            if end > max_bytes {
                return Err(ProxyFault::with_status(431, "too-large", "the head is too large"));
            }
            let head = buffer.split_to(end);
            return parse(&head, max_headers);
        }
        if buffer.len() > max_bytes {
            return Err(ProxyFault::with_status(431, "too-large", "the head is too large"));
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

/// Finds the offset after the blank line. Every line must end in CR LF, and neither character may occur elsewhere.
fn end_of_head(buffer: &[u8], looked: &mut usize) -> Result<Option<usize>, ProxyFault> {
    let mut at = *looked;
    while let Some(byte) = buffer.get(at) {
        match byte {
            b'\n' => return Err(smuggling_fault("a line feed without a carriage return")),
            b'\r' => match buffer.get(at + 1) {
                None => break,
                Some(b'\n') if at == 0 => return Err(smuggling_fault("a blank line before the request")),
                Some(b'\n') => {
                    match buffer.get(at + 2..at + 4) {
                        Some(b"\r\n") => return Ok(Some(at + 4)),
                        Some([b' ' | b'\t', _]) => return Err(smuggling_fault("a folded header line")),
                        Some(_) => {}
                        None => break,
                    }
                    at += 2;
                }
                Some(_) => return Err(smuggling_fault("a carriage return inside a line")),
            },
            0 => return Err(smuggling_fault("a null byte")),
            _ => at += 1,
        }
    }
    *looked = at;
    Ok(None)
}

fn parse(head: &[u8], max_headers: usize) -> Result<RequestHead, ProxyFault> {
    let lines = head.iter().filter(|byte| **byte == b'\n').count();
    if lines > max_headers + 2 {
        return Err(ProxyFault::with_status(431, "too-large", "too many header lines"));
    }
    let mut space = vec![httparse::EMPTY_HEADER; max_headers + 1];
    let mut request = httparse::Request::new(&mut space);
    match request.parse(head) {
        Ok(httparse::Status::Complete(length)) if length == head.len() => {}
        _ => return Err(smuggling_fault("the head is not HTTP/1.1")),
    }
    let (Some(method), Some(target), Some(version)) = (request.method, request.path, request.version) else {
        return Err(smuggling_fault("the head is not HTTP/1.1"));
    };
    if !target
        .bytes()
        .all(|byte| (0x21..=0x7e).contains(&byte) && byte != b'#')
    {
        return Err(smuggling_fault(
            "the request's target holds bytes that a target can't",
        ));
    }
    let mut headers = Vec::with_capacity(request.headers.len());
    for header in request.headers.iter() {
        if header
            .value
            .iter()
            .any(|byte| *byte < 0x20 && *byte != b'\t' || *byte == 0x7f)
        {
            return Err(smuggling_fault("a control character in a header"));
        }
        // CGI and similar servers read `_` as `-`.
        if header.name.contains('_')
            && FRAMING.contains(&header.name.to_ascii_lowercase().replace('_', "-").as_str())
        {
            return Err(smuggling_fault("a framing header in disguise"));
        }
        headers.push((header.name.to_owned(), header.value.to_vec()));
    }
    let mut head = RequestHead {
        method: method.to_owned(),
        target: target.to_owned(),
        modern: version == 1,
        headers,
        framing: BodyFraming::None,
        expects: false,
    };
    head.framing = request_framing(&head)?;
    head.check_connection()?;
    head.expects = head.check_expect()?;
    Ok(head)
}

impl RequestHead {
    /// All values of a header; the name is compared without case.
    pub(super) fn all_values<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a [u8]> {
        self.headers
            .iter()
            .filter(move |(own, _)| own.eq_ignore_ascii_case(name))
            .map(|(_, value)| value.as_slice())
    }

    /// The value of the only `Host` header. `None` if HTTP/1.0 has none.
    pub(super) fn host(&self) -> Result<Option<&str>, ProxyFault> {
        let mut all = self.all_values("host");
        match (all.next(), all.next()) {
            (Some(_), Some(_)) => Err(smuggling_fault("two `Host` headers")),
            (Some(host), None) => std::str::from_utf8(host)
                .map(Some)
                .map_err(|_text| smuggling_fault("`Host` is not text")),
            (None, _) if self.modern => Err(smuggling_fault("no `Host` header")),
            (None, _) => Ok(None),
        }
    }

    /// Checks `Connection`: no upgrade, and no framing header listed as hop-by-hop.
    fn check_connection(&self) -> Result<(), ProxyFault> {
        for name in ["upgrade", "http2-settings"] {
            if self.all_values(name).next().is_some() {
                return Err(ProxyFault::bad_request(
                    "upgrade",
                    "connections are not upgraded here",
                ));
            }
        }
        for token in self.connection_headers() {
            if token == "upgrade" || token == "http2-settings" {
                return Err(ProxyFault::bad_request(
                    "upgrade",
                    "connections are not upgraded here",
                ));
            }
            if FRAMING.contains(&token.as_str()) {
                return Err(smuggling_fault(
                    "`Connection` names a header that frames the request",
                ));
            }
        }
        Ok(())
    }

    fn check_expect(&self) -> Result<bool, ProxyFault> {
        let mut expects = false;
        for value in self.all_values("expect") {
            if !value.eq_ignore_ascii_case(b"100-continue") {
                return Err(ProxyFault::with_status(
                    417,
                    "smuggling",
                    "an expectation that is not `100-continue`",
                ));
            }
            expects = self.framing != BodyFraming::None;
        }
        Ok(expects && self.modern)
    }

    /// The header names that `Connection` lists, in lower case.
    fn connection_headers(&self) -> Vec<String> {
        let tokens = self
            .all_values("connection")
            .chain(self.all_values("proxy-connection"));
        tokens
            .flat_map(|value| value.split(|byte| *byte == b','))
            .map(|token| String::from_utf8_lossy(token).trim().to_ascii_lowercase())
            .collect()
    }

    /// The headers to forward: without hop-by-hop headers, `Host` and framing headers.
    pub(super) fn passed_on(&self) -> Vec<(String, Vec<u8>)> {
        let struck = self.connection_headers();
        let kept = |name: &str| {
            let name = name.to_ascii_lowercase();
            name != "host"
                && name != "content-length"
                && !HOP_BY_HOP.contains(&name.as_str())
                && !struck.contains(&name)
        };
        self.headers
            .iter()
            .filter(|(name, _)| kept(name))
            .cloned()
            .collect()
    }
}

fn request_framing(head: &RequestHead) -> Result<BodyFraming, ProxyFault> {
    let mut lengths = head.all_values("content-length");
    let mut codings = head.all_values("transfer-encoding");
    match (lengths.next(), codings.next()) {
        (None, None) => Ok(BodyFraming::None),
        (Some(_), Some(_)) => Err(smuggling_fault("both `Content-Length` and `Transfer-Encoding`")),
        (Some(length), None) if lengths.next().is_none() => match parse_number(length) {
            Some(0) => Ok(BodyFraming::None),
            Some(length) => Ok(BodyFraming::Length(length)),
            None => Err(smuggling_fault("`Content-Length` is not a number")),
        },
        (Some(_), None) => Err(smuggling_fault("two `Content-Length` headers")),
        (None, Some(coding)) => {
            let plain = coding.eq_ignore_ascii_case(b"chunked") && codings.next().is_none();
            if plain && head.modern {
                Ok(BodyFraming::Chunked)
            } else {
                Err(smuggling_fault(
                    "a `Transfer-Encoding` that is not exactly `chunked`",
                ))
            }
        }
    }
}

/// Parses a number that has digits only.
fn parse_number(text: &[u8]) -> Option<u64> {
    if text.is_empty() || text.len() > 18 || !text.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(text).ok()?.parse().ok() // silent-ok: no number
}

/// An answer's head.
#[derive(Debug)]
pub(super) struct ResponseHead {
    pub(super) status: u16,
    pub(super) reason: String,
    pub(super) headers: Vec<(String, Vec<u8>)>,
    pub(super) framing: BodyFraming,
}

impl ResponseHead {
    /// The first value of a header.
    pub(super) fn first_value(&self, name: &str) -> Option<&[u8]> {
        self.headers
            .iter()
            .find(|(own, _)| own.eq_ignore_ascii_case(name))
            .map(|(_, value)| value.as_slice())
    }
}

/// Reads an answer's head and skips interim (1xx) answers. Bytes after it stay in `buffer`.
pub(super) async fn read_answer(
    stream: &mut (impl AsyncRead + Unpin + ?Sized),
    buffer: &mut BytesMut,
    max_bytes: usize,
    asked_by_head: bool,
) -> Result<ResponseHead, ProxyFault> {
    let bad = |what: &str| ProxyFault::with_status(502, "answer", what);
    let mut interim = 0;
    loop {
        if let Some((answer, length)) = parse_answer(buffer, asked_by_head)? {
            let _head = buffer.split_to(length);
            match answer.status {
                101 => return Err(bad("the server switches protocols")),
                100..=199 if interim < 16 => interim += 1,
                100..=199 => return Err(bad("too many interim answers")),
                _ => return Ok(answer),
            }
            continue;
        }
        if buffer.len() > max_bytes {
            return Err(bad("the answer's head is too large"));
        }
        if stream
            .read_buf(buffer)
            .await
            .map_err(ProxyFault::connection_gone)?
            == 0
        {
            return Err(bad("the server closed the connection without an answer"));
        }
    }
}

fn parse_answer(buffer: &[u8], asked_by_head: bool) -> Result<Option<(ResponseHead, usize)>, ProxyFault> {
    let bad = |what: &str| ProxyFault::with_status(502, "answer", what);
    let mut space = [httparse::EMPTY_HEADER; 256];
    let mut answer = httparse::Response::new(&mut space);
    let length = match answer.parse(buffer) {
        Ok(httparse::Status::Complete(length)) => length,
        Ok(httparse::Status::Partial) => return Ok(None),
        Err(error) => return Err(bad(&format!("the answer is not HTTP/1: {error}"))),
    };
    let status = answer.code.unwrap_or_default();
    let headers: Vec<(String, Vec<u8>)> = answer
        .headers
        .iter()
        .map(|header| (header.name.to_owned(), header.value.to_vec()))
        .collect();
    let all = |name: &str| -> Vec<&[u8]> {
        headers
            .iter()
            .filter(|(own, _)| own.eq_ignore_ascii_case(name))
            .map(|(_, value)| value.as_slice())
            .collect()
    };
    let (lengths, codings) = (all("content-length"), all("transfer-encoding"));
    let framing = match (lengths.as_slice(), codings.as_slice()) {
        _ if asked_by_head || matches!(status, 100..=199 | 204 | 304) => BodyFraming::None,
        ([], []) => BodyFraming::Close,
        ([], [coding]) if coding.eq_ignore_ascii_case(b"chunked") => BodyFraming::Chunked,
        ([first, rest @ ..], []) if rest.iter().all(|other| other == first) => BodyFraming::Length(
            parse_number(first).ok_or_else(|| bad("its `Content-Length` is not a number"))?,
        ),
        _ => return Err(bad("the answer's length is ambiguous")),
    };
    let reason = answer.reason.unwrap_or_default().to_owned();
    let found = ResponseHead {
        status,
        reason,
        headers,
        framing,
    };
    Ok(Some((found, length)))
}

/// The header that says why a request was refused. Only the proxy sets it: it is removed from servers' answers.
pub const REFUSED: &str = "x-clawk-refused";

/// Whether this header of an answer is forwarded.
pub(super) fn of_answer(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    name != "content-length" && name != REFUSED && !HOP_BY_HOP.contains(&name.as_str())
}
