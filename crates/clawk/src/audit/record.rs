//! Makes an audit record from an event, with the parts that the policy requires and without secrets.

use clawk_events::{Event, read_members};
use clawk_kernel::kind;
use clawk_kernel::ports::RecordedEvent;
use clawk_manifest::model::Audit;
use clawk_policy::leak::Scanner;
use serde_json::{Map, Value, json};

/// The event types that are audited.
pub(super) const KINDS: &[&str] = &[
    kind::ACTION_REQUESTED,
    kind::ACTION_APPROVED,
    kind::ACTION_DENIED,
    kind::ACTION_EXECUTED,
    kind::ACTION_FAILED,
    kind::AUDIT,
    kind::APPROVAL_REQUESTED,
    kind::APPROVAL_ANSWERED,
    kind::APPROVAL_VOIDED,
    kind::APPROVAL_GRANTED,
    kind::APPROVAL_REVOKED,
    kind::STOP_ENGAGED,
    kind::STOP_LIFTED,
];

/// Payload fields in which an earlier version stored free text.
const WORDED: [&str; 3] = ["error_message", "reason", "shown"];

/// The contents in audit records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AuditContents {
    /// The contents that the policy requires, and the texts of reasons.
    AsWanted,
    /// Digests only, whatever the policy requires. Used for records in an encrypted state; an auditor reads the contents with its
    /// key (`clawk trace show --content DIGEST`).
    ByDigest,
}

/// An event on its way to a record.
#[derive(Debug, Clone)]
pub(super) struct AuditedEvent {
    pub(super) event: RecordedEvent,
    /// Why its content could not be read: the record lacks what was in it. `None`: nothing is missing.
    pub(super) unreadable_content: Option<String>,
}

impl AuditedEvent {
    /// With its content, or without one that it never had.
    pub(super) const fn whole(event: RecordedEvent) -> Self {
        Self {
            event,
            unreadable_content: None,
        }
    }
}

/// A record.
#[derive(Debug, Clone)]
pub(super) struct AuditRecord {
    /// Time, RFC 3339.
    pub(super) at: String,
    /// Milliseconds since the epoch.
    pub(super) at_ms: i64,
    /// The session whose chain holds the event, and the sequence number.
    pub(super) session: String,
    pub(super) sequence: u64,
    /// The event's type.
    pub(super) kind: String,
    /// The record as one JSON object.
    pub(super) line: String,
}

/// Makes a record; `None`: the policy does not require it.
pub(super) fn build_audit_record(
    audited: &AuditedEvent,
    wanted: &Audit,
    policy: &str,
    contents: AuditContents,
) -> Option<AuditRecord> {
    let event = &audited.event;
    if event.kind.starts_with("ckp.approval.") && !wanted.log_approvals {
        return None;
    }
    let text = match contents {
        AuditContents::AsWanted => event.payload_with_words(),
        AuditContents::ByDigest => event.payload.as_str().into(),
    };
    // silent-ok: the record then says that it can't be read
    let mut payload = read_members(&event.kind, &text).map_or(Value::Null, Value::Object);
    if let (AuditContents::ByDigest, Value::Object(members)) = (contents, &mut payload) {
        // A record of an earlier version may hold free text in these fields.
        members.retain(|member, _| !WORDED.contains(&member.as_str()));
    }
    let unreadable = Event::read(&event.kind, &event.payload).err();
    let scanner = Scanner::new([]);
    let _found = scanner.redact_json(&mut payload);
    let mut record = Map::from_iter([
        ("at".to_owned(), json!(event.at.to_string())),
        ("type".to_owned(), json!(event.kind)),
        ("policy".to_owned(), json!(policy)),
        ("session".to_owned(), json!(event.session)),
        ("sequence".to_owned(), json!(event.sequence)),
        ("facts".to_owned(), payload),
    ]);
    if let Some(error) = unreadable {
        record.insert("unreadable".to_owned(), json!(error.to_string()));
    }
    if let Some(why) = &audited.unreadable_content {
        record.insert("unreadable_content".to_owned(), json!(why));
    }
    let member = match event.kind.as_str() {
        _ if contents == AuditContents::ByDigest => None,
        kind::ACTION_REQUESTED if wanted.log_inputs => Some("input"),
        kind::ACTION_EXECUTED if wanted.log_outputs => Some("output"),
        _ => None,
    };
    if let (Some(member), Some(content)) = (member, &event.content) {
        let text = String::from_utf8_lossy(&content.bytes);
        // silent-ok: a content that is not JSON is stored as text
        let mut value = serde_json::from_str(&text).unwrap_or_else(|_| Value::String(text.into_owned()));
        let _found = scanner.redact_json(&mut value);
        record.insert(member.to_owned(), value);
    }
    Some(AuditRecord {
        at: event.at.to_string(),
        at_ms: event.at.as_millis(),
        session: event.session.to_string(),
        sequence: event.sequence,
        kind: event.kind.clone(),
        line: Value::Object(record).to_string(),
    })
}
