//! One line of a `.trace.jsonl` file, borrowed: every field is the text that was hashed.

#[cfg(test)]
mod tests;

use std::borrow::Cow;

use clawk_proto::SessionId;
use clawk_proto::trace::{SealedEvent, TraceEvent};
use serde::Deserialize;
use serde_json::value::RawValue;
use uuid::Uuid;

use crate::canonical::{CanonicalPlainness, printable_run, scan_canonical};

/// An event as written. Its ids are valid UUIDs, and its hashes are 64 lower-case hex digits.
#[derive(Debug, Clone)]
pub struct RawEvent<'a> {
    /// `trace_version`.
    pub trace_version: Cow<'a, str>,
    /// `event_id`.
    pub event_id: Cow<'a, str>,
    /// `trace_id`.
    pub trace_id: Cow<'a, str>,
    /// `span_id`.
    pub span_id: Cow<'a, str>,
    /// `parent_span_id`; empty if null or absent.
    pub parent_span_id: Cow<'a, str>,
    /// `session_id`.
    pub session_id: Cow<'a, str>,
    /// `sequence`.
    pub sequence: u64,
    /// `timestamp`.
    pub timestamp: Cow<'a, str>,
    /// `event_type`.
    pub event_type: Cow<'a, str>,
    /// The payload's text, unchanged.
    pub payload: Cow<'a, str>,
    /// The result of a scan of the payload; `None`: not known to be canonical.
    pub plainness: Option<CanonicalPlainness>,
    /// `event_hash`.
    pub event_hash: Cow<'a, str>,
    /// `previous_event_hash`.
    pub previous_event_hash: Cow<'a, str>,
}

impl<'a> RawEvent<'a> {
    /// Parses one line without its newline. Unknown members are refused, because no hash covers them.
    ///
    /// # Errors
    /// The fault of the line.
    pub fn parse(line: &'a str) -> Result<Self, String> {
        as_we_write(line).map_or_else(|| general(line), Ok)
    }

    /// The event of an in-process value.
    ///
    /// # Errors
    /// The payload can't be serialised.
    pub fn of(event: &'a TraceEvent) -> Result<Self, String> {
        let payload = serde_json::to_string(&event.payload).map_err(|e| e.to_string())?;
        Ok(Self {
            trace_version: Cow::Borrowed(&event.trace_version),
            event_id: Cow::Owned(event.event_id.to_string()),
            trace_id: Cow::Owned(event.trace_id.to_string()),
            span_id: Cow::Owned(event.span_id.to_string()),
            parent_span_id: Cow::Owned(event.parent_span_id.map(|id| id.to_string()).unwrap_or_default()),
            session_id: Cow::Owned(event.session_id.to_string()),
            sequence: event.sequence,
            timestamp: Cow::Borrowed(&event.timestamp),
            event_type: Cow::Borrowed(&event.event_type),
            plainness: scan_canonical(&payload),
            payload: Cow::Owned(payload),
            event_hash: Cow::Owned(event.event_hash.to_hex()),
            previous_event_hash: Cow::Owned(event.previous_event_hash.to_hex()),
        })
    }

    /// The event of a sealed value.
    #[must_use]
    pub fn of_sealed(event: &'a SealedEvent) -> Self {
        let payload = event.payload.get();
        Self {
            trace_version: Cow::Borrowed(event.trace_version),
            event_id: Cow::Owned(event.event_id.to_string()),
            trace_id: Cow::Owned(event.trace_id.to_string()),
            span_id: Cow::Owned(event.span_id.to_string()),
            parent_span_id: Cow::Owned(event.parent_span_id.map(|id| id.to_string()).unwrap_or_default()),
            session_id: Cow::Owned(event.session_id.to_string()),
            sequence: event.sequence,
            timestamp: Cow::Borrowed(&event.timestamp),
            event_type: Cow::Borrowed(&event.event_type),
            plainness: scan_canonical(payload),
            payload: Cow::Borrowed(payload),
            event_hash: Cow::Owned(event.event_hash.to_hex()),
            previous_event_hash: Cow::Owned(event.previous_event_hash.to_hex()),
        }
    }

    /// The length of its line as clawk writes it, without the line break.
    #[must_use]
    pub fn line_bytes(&self) -> usize {
        const NAMES: usize = "{\"trace_version\":\"\",\"event_id\":\"\",\"trace_id\":\"\",\"span_id\":\"\",\"parent_span_id\":null,\"session_id\":\"\",\"sequence\":,\"timestamp\":\"\",\"event_type\":\"\",\"payload\":,\"event_hash\":\"\",\"previous_event_hash\":\"\"}".len();
        let parts = [
            &self.trace_version,
            &self.event_id,
            &self.trace_id,
            &self.span_id,
            &self.session_id,
            &self.timestamp,
            &self.event_type,
            &self.payload,
            &self.event_hash,
            &self.previous_event_hash,
        ];
        let digits = self.sequence.checked_ilog10().unwrap_or(0) + 1;
        // `null` is as long as two quotes and two letters.
        let parent = self.parent_span_id.len().saturating_sub(2);
        let sum = parts
            .iter()
            .fold(NAMES + parent, |sum, part| sum.saturating_add(part.len()));
        sum.saturating_add(usize::try_from(digits).unwrap_or(0))
    }

    /// The session id.
    ///
    /// # Errors
    /// The text is not a UUID; impossible after [`Self::parse`].
    pub fn session(&self) -> Result<SessionId, uuid::Error> {
        Uuid::try_parse(&self.session_id).map(SessionId)
    }
}

/// The slow parser, which accepts every form of a line.
fn general(line: &str) -> Result<RawEvent<'_>, String> {
    if line.starts_with([' ', '\t', '\r']) || line.ends_with([' ', '\t', '\r']) {
        return Err("blanks around the object; the format is one object per line, ended by LF".to_owned());
    }
    let raw: WireEvent<'_> = serde_json::from_str(line).map_err(|e| e.to_string())?;
    raw.checked()
}

/// The general form: members in any order, any blanks, escapes in strings.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WireEvent<'a> {
    #[serde(borrow)]
    trace_version: Cow<'a, str>,
    #[serde(borrow)]
    event_id: Cow<'a, str>,
    #[serde(borrow)]
    trace_id: Cow<'a, str>,
    #[serde(borrow)]
    span_id: Cow<'a, str>,
    #[serde(borrow, default)]
    parent_span_id: Option<Cow<'a, str>>,
    #[serde(borrow)]
    session_id: Cow<'a, str>,
    sequence: u64,
    #[serde(borrow)]
    timestamp: Cow<'a, str>,
    #[serde(borrow)]
    event_type: Cow<'a, str>,
    #[serde(borrow)]
    payload: &'a RawValue,
    #[serde(borrow)]
    event_hash: Cow<'a, str>,
    #[serde(borrow)]
    previous_event_hash: Cow<'a, str>,
}

impl<'a> WireEvent<'a> {
    fn checked(self) -> Result<RawEvent<'a>, String> {
        let ids = [
            ("event_id", Some(&self.event_id)),
            ("trace_id", Some(&self.trace_id)),
            ("span_id", Some(&self.span_id)),
            ("parent_span_id", self.parent_span_id.as_ref()),
            ("session_id", Some(&self.session_id)),
        ];
        for (name, id) in ids {
            if id.is_some_and(|id| !is_uuid(id)) {
                return Err(format!("`{name}` is not a UUID"));
            }
        }
        for (name, digest) in [
            ("event_hash", &self.event_hash),
            ("previous_event_hash", &self.previous_event_hash),
        ] {
            if !is_digest(digest) {
                return Err(format!("`{name}` is not 64 lower-case hex digits"));
            }
        }
        let payload = self.payload.get();
        if !payload.starts_with('{') {
            return Err("`payload` is not an object".to_owned());
        }
        Ok(RawEvent {
            trace_version: self.trace_version,
            event_id: self.event_id,
            trace_id: self.trace_id,
            span_id: self.span_id,
            parent_span_id: self.parent_span_id.unwrap_or_default(),
            session_id: self.session_id,
            sequence: self.sequence,
            timestamp: self.timestamp,
            event_type: self.event_type,
            plainness: scan_canonical(payload),
            payload: Cow::Borrowed(payload),
            event_hash: self.event_hash,
            previous_event_hash: self.previous_event_hash,
        })
    }
}

/// Checks for 8-4-4-4-12 hex digits. There are no early exits, so the compiler can check many bytes at once.
#[inline]
fn is_uuid(text: &str) -> bool {
    let Ok(bytes) = <&[u8; 36]>::try_from(text.as_bytes()) else {
        return false; // silent-ok: another length
    };
    let others = bytes.iter().fold(0u8, |sum, byte| {
        let (digit, letter) = (byte.wrapping_sub(b'0') < 10, (byte | 0x20).wrapping_sub(b'a') < 6);
        sum + u8::from(!(digit | letter))
    });
    let [
        _,
        _,
        _,
        _,
        _,
        _,
        _,
        _,
        a,
        _,
        _,
        _,
        _,
        b,
        _,
        _,
        _,
        _,
        c,
        _,
        _,
        _,
        _,
        d,
        ..,
    ] = bytes;
    others == 4 && [a, b, c, d].into_iter().all(|byte| *byte == b'-')
}

/// Checks for 64 lower-case hex digits, also without early exits.
#[inline]
fn is_digest(text: &str) -> bool {
    let Ok(bytes) = <&[u8; 64]>::try_from(text.as_bytes()) else {
        return false; // silent-ok: another length
    };
    bytes.iter().fold(true, |all, byte| {
        all & ((byte.wrapping_sub(b'0') < 10) | (byte.wrapping_sub(b'a') < 6))
    })
}

/// Parses the exact form that clawk writes, by position. Any other form gives `None`, and the slow parser reads it.
fn as_we_write(line: &str) -> Option<RawEvent<'_>> {
    let mut rest = line;
    literal(&mut rest, "{\"trace_version\":\"")?;
    let trace_version = simple_string(&mut rest)?;
    let event_id = uuid_member(&mut rest, ",\"event_id\":\"")?;
    let trace_id = uuid_member(&mut rest, ",\"trace_id\":\"")?;
    let span_id = uuid_member(&mut rest, ",\"span_id\":\"")?;
    let parent_span_id = match rest.strip_prefix(",\"parent_span_id\":null") {
        Some(after) => {
            rest = after;
            ""
        }
        None => uuid_member(&mut rest, ",\"parent_span_id\":\"")?,
    };
    let session_id = uuid_member(&mut rest, ",\"session_id\":\"")?;
    literal(&mut rest, ",\"sequence\":")?;
    let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
    let (number, after) = rest.split_at_checked(digits)?;
    let sequence: u64 = number.parse().ok()?; // silent-ok: the general way reports it
    if number.len() > 1 && number.starts_with('0') {
        return None;
    }
    rest = after;
    literal(&mut rest, ",\"timestamp\":\"")?;
    let timestamp = simple_string(&mut rest)?;
    literal(&mut rest, ",\"event_type\":\"")?;
    let event_type = simple_string(&mut rest)?;
    literal(&mut rest, ",\"payload\":")?;
    // The text after the payload has a fixed length.
    const TAIL: usize = ",\"event_hash\":\"\",\"previous_event_hash\":\"\"}".len() + 128;
    let (payload, tail) = rest.split_at_checked(rest.len().checked_sub(TAIL)?)?;
    let plainness = payload
        .starts_with('{')
        .then(|| scan_canonical(payload))
        .flatten()?;
    rest = tail;
    literal(&mut rest, ",\"event_hash\":\"")?;
    let event_hash = digest_bytes(&mut rest)?;
    literal(&mut rest, ",\"previous_event_hash\":\"")?;
    let previous_event_hash = digest_bytes(&mut rest)?;
    (rest == "}").then_some(RawEvent {
        trace_version: Cow::Borrowed(trace_version),
        event_id: Cow::Borrowed(event_id),
        trace_id: Cow::Borrowed(trace_id),
        span_id: Cow::Borrowed(span_id),
        parent_span_id: Cow::Borrowed(parent_span_id),
        session_id: Cow::Borrowed(session_id),
        sequence,
        timestamp: Cow::Borrowed(timestamp),
        event_type: Cow::Borrowed(event_type),
        payload: Cow::Borrowed(payload),
        plainness: Some(plainness),
        event_hash: Cow::Borrowed(event_hash),
        previous_event_hash: Cow::Borrowed(previous_event_hash),
    })
}

#[inline]
fn literal(rest: &mut &str, expected: &str) -> Option<()> {
    *rest = rest.strip_prefix(expected)?;
    Some(())
}

/// The text up to the closing quote; `None` if it contains a character that JSON escapes.
fn simple_string<'a>(rest: &mut &'a str) -> Option<&'a str> {
    let bytes = rest.as_bytes();
    let run = printable_run(bytes);
    let special = |b: &u8| *b == b'"' || *b == b'\\' || *b < 0x20;
    let end = run + bytes.get(run..)?.iter().position(special)?;
    let (text, after) = rest.split_at_checked(end)?;
    *rest = after.strip_prefix('"')?;
    Some(text)
}

#[inline]
fn uuid_member<'a>(rest: &mut &'a str, name: &str) -> Option<&'a str> {
    literal(rest, name)?;
    let (text, after) = rest.split_at_checked(36)?;
    *rest = after.strip_prefix('"')?;
    is_uuid(text).then_some(text)
}

#[inline]
fn digest_bytes<'a>(rest: &mut &'a str) -> Option<&'a str> {
    let (text, after) = rest.split_at_checked(64)?;
    *rest = after.strip_prefix('"')?;
    is_digest(text).then_some(text)
}
