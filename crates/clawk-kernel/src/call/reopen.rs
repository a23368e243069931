//! Questions and standing grants across restarts: folded from the journal. What was open is open again with its expiry
//! and with what was shown; an answer that was durable counts once.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use clawk_manifest::model::Role;
use clawk_policy::{Approval, TimeoutDefault};
use clawk_proto::{Digest, RequestId, SessionId};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use uuid::Uuid;

use super::Calls;
use super::approval::{Breadth, Open, Reply};
use super::record::words::default_word;
use super::standing::{Held, Lasting};
use crate::event::{Thread, kind};
use crate::notice::{Answer, Question, Step};
use crate::ports::{JournalError, Recorded, Scan};
use crate::roles::Person;
use crate::sheet::{Seen, Sheet};
use crate::time::Timestamp;
use crate::witness::Grant;

/// The oldest question that can still be open, milliseconds.
const QUESTIONS_KEPT_MS: i64 = 30 * 86_400_000;

/// A question as it is kept, with what it is bound to.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Kept {
    pub(super) arguments: Map<String, Value>,
    pub(super) cost: Option<String>,
    pub(super) door: String,
    pub(super) explanation: Vec<String>,
    pub(super) expires_at_us: i64,
    pub(super) folder: Option<PathBuf>,
    pub(super) grant: Grant,
    pub(super) reason: String,
    pub(super) rule_id: Option<String>,
    pub(super) sheet: Arc<Sheet>,
    pub(super) span: Uuid,
    pub(super) step: Option<Step>,
    pub(super) timeout_allows: bool,
    pub(super) timeout_ms: u64,
    pub(super) tool: String,
}

impl Kept {
    pub(super) fn of(question: &Question, grant: &Grant, approval: Approval, door: &str, span: Uuid) -> Self {
        Self {
            arguments: question.arguments.clone(),
            cost: question.cost.clone(),
            door: door.to_owned(),
            explanation: question.explanation.clone(),
            expires_at_us: question.expires_at.0,
            folder: question.folder.clone(),
            grant: grant.clone(),
            reason: question.reason.clone(),
            rule_id: question.rule_id.clone(),
            sheet: Arc::clone(&question.sheet),
            span,
            step: question.step.clone(),
            timeout_allows: approval.default_if_timeout == TimeoutDefault::Allow,
            timeout_ms: approval.timeout_ms,
            tool: question.tool.clone(),
        }
    }

    fn open(self, session: SessionId, request_id: RequestId, request_hash: Digest) -> Open {
        let default = if self.timeout_allows {
            TimeoutDefault::Allow
        } else {
            TimeoutDefault::Deny
        };
        Open {
            question: Question {
                request_id,
                session,
                tool: self.tool,
                arguments: self.arguments,
                sheet: self.sheet,
                rule_id: self.rule_id,
                reason: self.reason,
                explanation: self.explanation,
                expires_at: Timestamp(self.expires_at_us),
                default_if_timeout: default_word(default),
                cost: self.cost,
                folder: self.folder,
                step: self.step,
            },
            grant: self.grant,
            request_hash,
            thread: Thread {
                session,
                span: self.span,
                parent: Some(session.0),
            },
            reply: None,
        }
    }
}

#[derive(Debug, Default, Deserialize)]
struct Fields {
    request_id: Option<String>,
    request_hash: Option<Digest>,
    action_id: Option<String>,
    answer: Option<String>,
    basis_hash: Option<Digest>,
    by: Option<String>,
    channel: Option<String>,
    reason: Option<String>,
    role: Option<String>,
    grant_id: Option<String>,
    lasting: Option<String>,
    led_hash: Option<Digest>,
    folder: Option<PathBuf>,
    parameters_hash: Option<Digest>,
    plan_hash: Option<Digest>,
    shown: Option<String>,
}

async fn all(calls: &Calls, scan: Scan, mut see: impl FnMut(&Recorded, Fields)) -> Result<(), JournalError> {
    // silent-ok: a payload of ours always reads; a foreign one opens nothing
    let read = |event: &Recorded| serde_json::from_str(&event.payload).unwrap_or_default();
    calls.scribe.each(scan, |event| see(event, read(event))).await
}

/// Opens what the last run left open, and lets stand what stood.
pub(crate) async fn restore(calls: &Calls) -> Result<(), JournalError> {
    standing(calls).await?;
    let now = calls.scribe.now();
    // By request, with the row of the question: what came before it was about an earlier request of that id.
    let mut open: BTreeMap<(SessionId, String), (u64, Open)> = BTreeMap::new();
    let mut first_row = u64::MAX;
    let scan = Scan {
        kinds: &[kind::APPROVAL_REQUESTED],
        since: Some(now.plus_millis(-QUESTIONS_KEPT_MS)),
        with_content: true,
        ..Scan::default()
    };
    all(calls, scan, |event, fields| {
        let (Some(id), Some(hash)) = (fields.request_id, fields.request_hash) else {
            return;
        };
        let content = event.content.as_ref();
        // silent-ok: what was erased or is of another version can't be judged again, so it is not open
        let kept = content.and_then(|content| serde_json::from_slice::<Kept>(&content.bytes).ok());
        let (Some(kept), Ok(request_id)) = (kept, RequestId::parse(&id)) else {
            return;
        };
        // Nobody takes an inner call of a composite tool up again: its outcome is unknown by then.
        if kept.expires_at_us > now.0 && kept.door != "skill" {
            first_row = first_row.min(event.row);
            let kept = kept.open(event.session, request_id, hash);
            open.insert((event.session, id), (event.row, kept));
        }
    })
    .await?;
    if open.is_empty() {
        return Ok(());
    }
    let scan = Scan {
        kinds: &[
            kind::APPROVAL_ANSWERED,
            kind::APPROVAL_VOIDED,
            kind::ACTION_APPROVED,
            kind::ACTION_DENIED,
            kind::ACTION_EXECUTED,
            kind::ACTION_FAILED,
        ],
        after_row: first_row,
        ..Scan::default()
    };
    all(calls, scan, |event, fields| {
        let Some(id) = fields.request_id.clone() else {
            return;
        };
        let reply = (event.kind == kind::APPROVAL_ANSWERED)
            .then(|| reply(&fields))
            .flatten();
        let id = (event.session, id);
        let asked = open.get_mut(&id).filter(|(row, _)| *row < event.row);
        match (reply, asked) {
            (Some(reply), Some((_, found))) => found.reply = Some(reply),
            (None, Some(_)) => drop(open.remove(&id)),
            (_, None) => {}
        }
    })
    .await?;
    let mut open: Vec<Open> = open.into_values().map(|(_, open)| open).collect();
    open.sort_by_key(|open| (open.question.expires_at, open.question.number()));
    calls.desk.reopen(open);
    Ok(())
}

/// An answer of a person; what lapsed or was cancelled is none.
fn reply(fields: &Fields) -> Option<Reply> {
    let answer = match fields.answer.as_deref()? {
        "approve" => Answer::Approve,
        "approve-for-session" => Answer::ApproveForSession,
        "always" => Answer::Always,
        "deny" => Answer::Deny,
        _ => return None,
    };
    Some(Reply {
        answer,
        breadth: Breadth::Exact,
        person: Person {
            channel: fields.channel.clone().unwrap_or_default(),
            name: fields.by.clone().unwrap_or_default(),
            role: match fields.role.as_deref() {
                Some("admin") => Role::Admin,
                Some("user") => Role::User,
                Some(_) | None => Role::Viewer,
            },
        },
        reason: fields.reason.clone(),
        // What is on record has been admitted.
        seen: Seen::Sent,
    })
}

async fn standing(calls: &Calls) -> Result<(), JournalError> {
    let scan = Scan {
        kinds: &[kind::APPROVAL_GRANTED, kind::APPROVAL_REVOKED],
        ..Scan::default()
    };
    let mut of_sessions = Vec::new();
    all(calls, scan, |event, fields| {
        let Some(id) = fields.grant_id else { return };
        if event.kind == kind::APPROVAL_REVOKED {
            calls.desk.standing.remove(&id);
            return;
        }
        let (Some(tool), Some(parameters), Some(plan)) =
            (fields.action_id, fields.parameters_hash, fields.plan_hash)
        else {
            return;
        };
        let lasting = match fields.lasting.as_deref() {
            Some("always") => Lasting::Always,
            Some("session") => {
                of_sessions.push((event.session, event.row));
                Lasting::Session(event.session)
            }
            Some(_) | None => return,
        };
        calls.desk.standing.add(Held {
            id,
            tool,
            lasting,
            folder: fields.folder,
            led: fields.led_hash,
            parameters,
            plan,
            basis: fields.basis_hash,
            by: fields.by.unwrap_or_default(),
            shown: fields.shown.unwrap_or_default(),
            at: event.at,
        });
    })
    .await?;
    // A session that ended took its grants with it.
    for (session, after_row) in of_sessions {
        let ended = Scan {
            session: Some(session),
            kinds: &[kind::SESSION_ENDED],
            after_row,
            limit: 1,
            ..Scan::default()
        };
        if !calls.scribe.journal().scan(ended).await?.is_empty() {
            calls.desk.standing.forget(session);
        }
    }
    Ok(())
}
