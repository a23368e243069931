//! Restores approval requests and standing grants from the journal after a restart. An open request is open again with its expiry
//! and its shown text. A durable answer counts once.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use clawk_manifest::model::Role;
use clawk_policy::{Approval, TimeoutDefault};
use clawk_proto::{Digest, RequestId, SessionId};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use uuid::Uuid;

use super::CallGovernor;
use super::approval::{ApprovalReply, GrantScope, OpenApproval};
use super::record::words::default_word;
use super::standing::{GrantLifetime, StandingGrant};
use crate::event::{ChainText, Thread, kind};
use crate::notice::{ApprovalAnswer, ApprovalPlanStep, ApprovalQuestion};
use crate::ports::{JournalError, JournalScan, RecordedEvent};
use crate::roles::KnownPerson;
use crate::sheet::{CallPreview, PreviewReceipt};
use crate::time::Timestamp;
use crate::witness::ExactGrant;

/// Age of the oldest request that can still be open, in milliseconds.
const QUESTIONS_KEPT_MS: i64 = 30 * 86_400_000;

/// A stored approval request with its preconditions.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct StoredQuestion {
    pub(super) arguments: Map<String, Value>,
    pub(super) cost: Option<String>,
    pub(super) door: String,
    pub(super) explanation: Vec<String>,
    pub(super) expires_at_us: i64,
    pub(super) folder: Option<PathBuf>,
    pub(super) grant: ExactGrant,
    pub(super) reason: String,
    pub(super) rule_id: Option<String>,
    pub(super) sheet: Arc<CallPreview>,
    pub(super) span: Uuid,
    pub(super) step: Option<ApprovalPlanStep>,
    pub(super) timeout_allows: bool,
    pub(super) timeout_ms: u64,
    pub(super) tool: String,
}

impl StoredQuestion {
    pub(super) fn of(
        question: &ApprovalQuestion,
        grant: &ExactGrant,
        approval: Approval,
        door: &str,
        span: Uuid,
    ) -> Self {
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

    /// Returns the milliseconds until it expires; `None`: it has expired. If the wall clock was set back, the request gets no more
    /// than its original time; if it was set forward, it gets less.
    fn left_ms(&self, now: Timestamp) -> Option<u64> {
        let left_us = self.expires_at_us.saturating_sub(now.0);
        let left_us = u64::try_from(left_us).ok().filter(|left| *left > 0)?; // silent-ok: past is lapsed
        Some(left_us.div_ceil(1000).min(self.timeout_ms))
    }

    fn open(
        self,
        (session, request_id, request_hash): (SessionId, RequestId, Digest),
        (now, now_us, left_ms): (Timestamp, u64, u64),
    ) -> OpenApproval {
        let left = i64::try_from(left_ms).unwrap_or(i64::MAX);
        let default = if self.timeout_allows {
            TimeoutDefault::Allow
        } else {
            TimeoutDefault::Deny
        };
        OpenApproval {
            question: ApprovalQuestion {
                request_id,
                session,
                tool: self.tool,
                arguments: self.arguments,
                sheet: self.sheet,
                rule_id: self.rule_id,
                reason: self.reason,
                explanation: self.explanation,
                expires_at: Timestamp(self.expires_at_us).min(now.plus_millis(left)),
                until_us: now_us.saturating_add(left_ms.saturating_mul(1000)),
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
struct ApprovalEventFields {
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

async fn all(
    calls: &CallGovernor,
    scan: JournalScan,
    mut see: impl FnMut(&RecordedEvent, ApprovalEventFields),
) -> Result<(), JournalError> {
    // silent-ok: clawk's own payloads are always readable; a foreign one opens nothing
    let read = |event: &RecordedEvent| serde_json::from_str(&event.payload_with_words()).unwrap_or_default();
    calls.scribe.each(scan, |event| see(event, read(event))).await
}

/// Reopens what the last run left open, and restores standing grants.
pub(crate) async fn restore(calls: &CallGovernor) -> Result<(), JournalError> {
    restore_standing(calls).await?;
    reopen(calls, |_| true).await?;
    Ok(())
}

/// Reopens the open requests of these sessions. Returns their ids.
pub(crate) async fn reopen(
    calls: &CallGovernor,
    of: impl Fn(SessionId) -> bool,
) -> Result<Vec<RequestId>, JournalError> {
    let mut open = open_questions(calls).await?;
    open.retain(|open| of(open.question.session));
    let ids = open.iter().map(|open| open.question.request_id.clone()).collect();
    calls.desk.reopen(open);
    Ok(ids)
}

/// Returns the request of an event, if it is still open and its call can be resumed.
pub(crate) fn question_of(event: &RecordedEvent, calls: &CallGovernor) -> Option<ApprovalQuestion> {
    let fields: ApprovalEventFields = serde_json::from_str(&event.payload).ok()?; // silent-ok: a payload of ours always reads
    let clocks = (calls.scribe.now(), calls.clock().monotonic_us());
    opened(event, kept_of(event, &fields)?, clocks).map(|open| open.question)
}

/// Returns the stored request, if its call can be resumed.
fn kept_of(
    event: &RecordedEvent,
    fields: &ApprovalEventFields,
) -> Option<(StoredQuestion, RequestId, Digest)> {
    let (id, hash) = (fields.request_id.as_ref()?, fields.request_hash?);
    let content = event.content.as_ref()?;
    // silent-ok: a request that was erased or has another version can't be judged again, so it is not open
    let kept: StoredQuestion = serde_json::from_slice(&content.bytes).ok()?;
    let request_id = RequestId::parse(id).ok()?; // silent-ok: as above
    // An inner call of a composite tool is never resumed: its outcome is unknown by then.
    (kept.door != "skill").then_some((kept, request_id, hash))
}

/// Returns the request if it has not expired.
fn opened(
    event: &RecordedEvent,
    (kept, id, hash): (StoredQuestion, RequestId, Digest),
    (now, now_us): (Timestamp, u64),
) -> Option<OpenApproval> {
    let left_ms = kept.left_ms(now)?;
    Some(kept.open((event.session, id, hash), (now, now_us, left_ms)))
}

/// Logs that a request has expired. If its call is sent again, a new request is made.
fn tell_lapsed((kept, id, _): &(StoredQuestion, RequestId, Digest)) {
    let expired = Timestamp(kept.expires_at_us);
    tracing::warn!(request_id = %id, tool = %kept.tool, %expired, "a question lapsed while the agent did not run");
}

/// Returns every open request in the record, those that expire first at the front.
pub(crate) async fn open_questions(calls: &CallGovernor) -> Result<Vec<OpenApproval>, JournalError> {
    let clocks = (calls.scribe.now(), calls.clock().monotonic_us());
    let now = clocks.0;
    // By request, with the row of the approval request. Earlier events belong to an earlier request with the same id.
    let mut open: BTreeMap<(SessionId, String), (u64, OpenApproval)> = BTreeMap::new();
    let mut first_row = u64::MAX;
    let scan = JournalScan {
        kinds: &[kind::APPROVAL_REQUESTED],
        since: Some(now.plus_millis(-QUESTIONS_KEPT_MS)),
        with_content: true,
        ..JournalScan::default()
    };
    all(calls, scan, |event, fields| {
        let Some(kept) = kept_of(event, &fields) else {
            return;
        };
        if kept.0.expires_at_us <= now.0 && calls.dedup.was_ahead(Timestamp(kept.0.expires_at_us)) {
            tell_lapsed(&kept);
        }
        if let Some(kept) = opened(event, kept, clocks) {
            first_row = first_row.min(event.row);
            let id = kept.question.request_id.as_str().to_owned();
            open.insert(
                (event.session, fields.request_id.unwrap_or(id)),
                (event.row, kept),
            );
        }
    })
    .await?;
    if open.is_empty() {
        return Ok(Vec::new());
    }
    let scan = JournalScan {
        kinds: &[
            kind::APPROVAL_ANSWERED,
            kind::APPROVAL_VOIDED,
            kind::ACTION_APPROVED,
            kind::ACTION_DENIED,
            kind::ACTION_EXECUTED,
            kind::ACTION_FAILED,
        ],
        after_row: first_row,
        ..JournalScan::default()
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
    add_reasons(calls, first_row, &mut open).await?;
    let mut open: Vec<OpenApproval> = open.into_values().map(|(_, open)| open).collect();
    open.sort_by_key(|open| (open.question.expires_at, open.question.number()));
    Ok(open)
}

/// Adds the reasons that people gave, which are contents. Only answers are read with contents, because results may be large.
async fn add_reasons(
    calls: &CallGovernor,
    first_row: u64,
    open: &mut BTreeMap<(SessionId, String), (u64, OpenApproval)>,
) -> Result<(), JournalError> {
    let scan = JournalScan {
        kinds: &[kind::APPROVAL_ANSWERED],
        after_row: first_row,
        with_content: true,
        ..JournalScan::default()
    };
    all(calls, scan, |event, fields| {
        let Some(id) = fields.request_id else { return };
        let asked = open.get_mut(&(event.session, id));
        if let Some((_, found)) = asked.filter(|(row, _)| *row < event.row)
            && let Some(reply) = &mut found.reply
        {
            // The text was erased. The code in its place has no meaning for people.
            reply.reason = fields
                .reason
                .filter(|reason| reason != ChainText::IN_CONTENT.as_str());
        }
    })
    .await
}

/// Returns a person's answer; `None` for an expired or cancelled request.
fn reply(fields: &ApprovalEventFields) -> Option<ApprovalReply> {
    let answer = match fields.answer.as_deref()? {
        "approve" => ApprovalAnswer::Approve,
        "approve-for-session" => ApprovalAnswer::ApproveForSession,
        "always" => ApprovalAnswer::Always,
        "deny" => ApprovalAnswer::Deny,
        _ => return None,
    };
    Some(ApprovalReply {
        answer,
        breadth: GrantScope::Exact,
        person: KnownPerson {
            channel: fields.channel.clone().unwrap_or_default(),
            name: fields.by.clone().unwrap_or_default(),
            role: match fields.role.as_deref() {
                Some("admin") => Role::Admin,
                Some("user") => Role::User,
                Some(_) | None => Role::Viewer,
            },
        },
        reason: fields.reason.clone(),
        // A recorded answer was already accepted.
        seen: PreviewReceipt::Sent,
    })
}

/// Applies a standing grant that another host gave or ended.
pub(crate) fn follow_standing(calls: &CallGovernor, event: &RecordedEvent) {
    // silent-ok: clawk's own payloads are always readable; a foreign one grants nothing
    let fields: ApprovalEventFields = serde_json::from_str(&event.payload_with_words()).unwrap_or_default();
    if event.kind == kind::APPROVAL_REVOKED {
        if let Some(id) = &fields.grant_id {
            calls.desk.standing.remove(id);
        }
    } else if let Some(held) = held_of(event, fields).filter(|held| !calls.desk.standing.contains(&held.id)) {
        calls.desk.standing.add(held);
    }
}

fn held_of(event: &RecordedEvent, fields: ApprovalEventFields) -> Option<StandingGrant> {
    let lasting = match fields.lasting.as_deref()? {
        "always" => GrantLifetime::Always,
        "session" => GrantLifetime::Session(event.session),
        _ => return None,
    };
    Some(StandingGrant {
        id: fields.grant_id?,
        tool: fields.action_id?,
        lasting,
        folder: fields.folder,
        led: fields.led_hash,
        parameters: fields.parameters_hash?,
        plan: fields.plan_hash?,
        basis: fields.basis_hash,
        by: fields.by.unwrap_or_default(),
        shown: fields.shown.unwrap_or_default(),
        at: event.at,
    })
}

/// Restores the standing grants.
pub(crate) async fn restore_standing(calls: &CallGovernor) -> Result<(), JournalError> {
    let scan = JournalScan {
        kinds: &[kind::APPROVAL_GRANTED, kind::APPROVAL_REVOKED],
        with_content: true,
        ..JournalScan::default()
    };
    let mut of_sessions = Vec::new();
    all(calls, scan, |event, fields| {
        if event.kind == kind::APPROVAL_REVOKED {
            if let Some(id) = fields.grant_id {
                calls.desk.standing.remove(&id);
            }
            return;
        }
        let Some(held) = held_of(event, fields) else {
            return;
        };
        if let GrantLifetime::Session(session) = held.lasting {
            of_sessions.push((session, event.row));
        }
        calls.desk.standing.add(held);
    })
    .await?;
    // A session that ended took its grants with it.
    for (session, after_row) in of_sessions {
        let ended = JournalScan {
            session: Some(session),
            kinds: &[kind::SESSION_ENDED],
            after_row,
            limit: 1,
            ..JournalScan::default()
        };
        if !calls.scribe.journal().scan(ended).await?.is_empty() {
            calls.desk.standing.forget(session);
        }
    }
    Ok(())
}
