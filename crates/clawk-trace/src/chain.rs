//! The hash chain: the bytes of R26, and the state that links each event to the previous one.

use clawk_proto::trace::{SealedEvent, TRACE_VERSION};
use clawk_proto::{Digest, SessionId};
use serde_json::value::RawValue;
use sha2::{Digest as _, Sha256};
use uuid::Uuid;

/// The hashed parts of an event, as text (R26). They are joined without separators.
#[derive(Debug, Clone, Copy)]
pub struct EventPreimage<'a> {
    /// `trace_version`.
    pub version: &'a str,
    /// `event_id` as written.
    pub event_id: &'a str,
    /// `trace_id` as written.
    pub trace_id: &'a str,
    /// `span_id` as written.
    pub span_id: &'a str,
    /// `parent_span_id`, or empty.
    pub parent_span_id: &'a str,
    /// `session_id` as written.
    pub session_id: &'a str,
    /// `sequence`.
    pub sequence: u64,
    /// `timestamp` as written.
    pub timestamp: &'a str,
    /// `event_type`.
    pub event_type: &'a str,
    /// The payload's canonical text.
    pub payload: &'a str,
    /// `previous_event_hash`, 64 hex digits.
    pub previous: &'a str,
}

/// A buffer that is reused for each event.
#[derive(Debug, Clone, Default)]
pub struct HashBuffer(Vec<u8>);

/// The SHA-256 of the bytes of R26.
#[must_use]
pub fn hash(parts: &EventPreimage<'_>, scratch: &mut HashBuffer) -> Digest {
    let buffer = &mut scratch.0;
    buffer.clear();
    for part in [
        parts.version,
        parts.event_id,
        parts.trace_id,
        parts.span_id,
        parts.parent_span_id,
        parts.session_id,
    ] {
        buffer.extend_from_slice(part.as_bytes());
    }
    push_decimal(parts.sequence, buffer);
    for part in [parts.timestamp, parts.event_type, parts.payload, parts.previous] {
        buffer.extend_from_slice(part.as_bytes());
    }
    Digest(Sha256::digest(buffer.as_slice()).into())
}

/// The SHA-256 of content bytes, as events refer to them.
#[must_use]
pub fn digest_of(bytes: &[u8]) -> Digest {
    Digest(Sha256::digest(bytes).into())
}

fn push_decimal(value: u64, out: &mut Vec<u8>) {
    let start = out.len();
    let mut rest = value;
    loop {
        // `rest % 10` is one digit.
        out.push(b'0' + u8::try_from(rest % 10).unwrap_or(0));
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    if let Some(digits) = out.get_mut(start..) {
        digits.reverse();
    }
}

/// An event before it is added to a chain.
#[derive(Debug, Clone, Copy)]
pub struct Draft<'a> {
    /// Its id.
    pub event_id: Uuid,
    /// Its span.
    pub span: Uuid,
    /// The parent span; ignored for a chain's first event.
    pub parent: Option<Uuid>,
    /// RFC 3339, UTC, microseconds, `Z`.
    pub timestamp: &'a str,
    /// The event type.
    pub event_type: &'a str,
    /// The canonical text of the payload; see [`crate::canonical::payload_of`].
    pub payload: &'a str,
}

/// The position of an event in its chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChainLink {
    /// The event's sequence number.
    pub sequence: u64,
    /// The parent span; `None` for the first event of a chain.
    pub parent: Option<Uuid>,
    /// The previous hash; [`Digest::ZERO`] for the first event.
    pub previous: Digest,
    /// The event's own hash.
    pub hash: Digest,
}

/// The end of one session's chain, where the next event is added. Small, so that many can be kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SessionChain {
    /// The session.
    pub session: SessionId,
    /// Its trace.
    pub trace_id: Uuid,
    /// The sequence number of the next event, which equals the number of events.
    pub next_sequence: u64,
    /// The hash of the last event; [`Digest::ZERO`] if there is none.
    pub head: Digest,
}

impl SessionChain {
    /// A chain without events.
    #[must_use]
    pub const fn new(session: SessionId, trace_id: Uuid) -> Self {
        Self {
            session,
            trace_id,
            next_sequence: 0,
            head: Digest::ZERO,
        }
    }

    /// The result of [`Self::append`], without appending.
    #[must_use]
    pub fn next(&self, draft: &Draft<'_>, scratch: &mut HashBuffer) -> ChainLink {
        let parent = if self.next_sequence == 0 {
            None
        } else {
            draft.parent
        };
        let mut ids = [[0u8; 36]; 5];
        let [event_id, trace_id, span_id, parent_id, session_id] = &mut ids;
        let mut previous = [0u8; 64];
        let hash = hash(
            &EventPreimage {
                version: TRACE_VERSION,
                event_id: draft.event_id.as_hyphenated().encode_lower(event_id),
                trace_id: self.trace_id.as_hyphenated().encode_lower(trace_id),
                span_id: draft.span.as_hyphenated().encode_lower(span_id),
                parent_span_id: parent.map_or("", |id| id.as_hyphenated().encode_lower(parent_id)),
                session_id: self.session.0.as_hyphenated().encode_lower(session_id),
                sequence: self.next_sequence,
                timestamp: draft.timestamp,
                event_type: draft.event_type,
                payload: draft.payload,
                previous: hex_into(&self.head, &mut previous),
            },
            scratch,
        );
        ChainLink {
            sequence: self.next_sequence,
            parent,
            previous: self.head,
            hash,
        }
    }

    /// Adds the event to the chain. The hot path: allocates nothing.
    pub fn append(&mut self, draft: &Draft<'_>, scratch: &mut HashBuffer) -> ChainLink {
        let link = self.next(draft, scratch);
        self.head = link.hash;
        self.next_sequence += 1;
        link
    }

    /// As [`Self::append`], but returns the whole event in its export form.
    ///
    /// # Errors
    /// The draft's payload is not JSON; the chain has not changed.
    pub fn link_event(
        &mut self,
        draft: &Draft<'_>,
        scratch: &mut HashBuffer,
    ) -> Result<SealedEvent, serde_json::Error> {
        let payload = RawValue::from_string(draft.payload.to_owned())?;
        let link = self.append(draft, scratch);
        Ok(SealedEvent {
            trace_version: TRACE_VERSION,
            event_id: draft.event_id,
            trace_id: self.trace_id,
            span_id: draft.span,
            parent_span_id: link.parent,
            session_id: self.session,
            sequence: link.sequence,
            timestamp: draft.timestamp.to_owned(),
            event_type: draft.event_type.to_owned(),
            payload,
            event_hash: link.hash,
            previous_event_hash: link.previous,
        })
    }
}

/// Writes the 64 hex digits without an allocation.
pub(crate) fn hex_into<'a>(digest: &Digest, out: &'a mut [u8; 64]) -> &'a str {
    let digit = |nibble: u8| nibble + if nibble < 10 { b'0' } else { b'a' - 10 };
    for (pair, byte) in out.as_chunks_mut().0.iter_mut().zip(digest.0) {
        *pair = [digit(byte >> 4), digit(byte & 15)];
    }
    // INVARIANT: only ASCII digits, so this can't fail.
    std::str::from_utf8(out).unwrap_or_default()
}
