//! Restores approval requests and standing grants from the journal after a restart. An open request is open again with its expiry
//! and its shown text. A durable answer counts once.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use clawk_events::payload::{
    ActionApproved, ActionDenied, ActionExecuted, ActionFailed, ApprovalAnswered, ApprovalGranted,
    ApprovalRequested, ApprovalRevoked, ApprovalVoided,
};
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
    pub(super) fn from_question(
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

    fn into_open_approval(
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

/// Opens what the last run left open, and lets stand what stood.
pub async fn restore_approvals(calls: &CallGovernor) -> Result<(), JournalError> {
    restore_standing(calls).await?;
    reopen_approvals(calls, |_| true).await?;
    Ok(())
}

/// Reopens the open requests of these sessions. Returns their ids.
pub async fn reopen_approvals(
    calls: &CallGovernor,
    of: impl Fn(SessionId) -> bool,
) -> Result<Vec<RequestId>, JournalError> {
    let mut open = open_questions(calls).await?;
    open.retain(|open| of(open.question.session));
    let ids = open.iter().map(|open| open.question.request_id.clone()).collect();
    calls.desk.reopen_questions(open);
    Ok(ids)
}

/// The question of an event, if it is still open and anybody may take its call up again.
pub fn question_of(
    event: &RecordedEvent,
    calls: &CallGovernor,
) -> Result<Option<ApprovalQuestion>, JournalError> {
    let clocks = (calls.scribe.now(), calls.clock().monotonic_us());
    let kept = kept_of(event, &event.read_as()?);
    Ok(kept
        .and_then(|kept| open_approval(event, kept, clocks))
        .map(|open| open.question))
}

/// Returns the stored request, if its call can be resumed.
fn kept_of(
    event: &RecordedEvent,
    requested: &ApprovalRequested,
) -> Option<(StoredQuestion, RequestId, Digest)> {
    let content = event.content.as_ref()?;
    // silent-ok: a request that was erased or has another version can't be judged again, so it is not open
    let kept: StoredQuestion = serde_json::from_slice(&content.bytes).ok()?;
    let request_id = RequestId::parse(&requested.request_id).ok()?; // silent-ok: as above
    // Nobody takes an inner call of a composite tool up again: its outcome is unknown by then.
    (kept.door != "skill").then_some((kept, request_id, requested.request_hash))
}

/// Returns the request if it has not expired.
fn open_approval(
    event: &RecordedEvent,
    (kept, id, hash): (StoredQuestion, RequestId, Digest),
    (now, now_us): (Timestamp, u64),
) -> Option<OpenApproval> {
    let left_ms = kept.left_ms(now)?;
    Some(kept.into_open_approval((event.session, id, hash), (now, now_us, left_ms)))
}

/// Logs that a request has expired. If its call is sent again, a new request is made.
fn tell_lapsed((kept, id, _): &(StoredQuestion, RequestId, Digest)) {
    let expired = Timestamp(kept.expires_at_us);
    tracing::warn!(request_id = %id, tool = %kept.tool, %expired, "a question lapsed while the agent did not run");
}

/// Returns every open request in the record, those that expire first at the front.
pub async fn open_questions(calls: &CallGovernor) -> Result<Vec<OpenApproval>, JournalError> {
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
    let see = |event: &RecordedEvent| {
        let requested: ApprovalRequested = event.read_as()?;
        let Some(kept) = kept_of(event, &requested) else {
            return Ok(());
        };
        if kept.0.expires_at_us <= now.0 && calls.dedup.was_ahead(Timestamp(kept.0.expires_at_us)) {
            tell_lapsed(&kept);
        }
        if let Some(kept) = open_approval(event, kept, clocks) {
            first_row = first_row.min(event.row);
            open.insert((event.session, requested.request_id), (event.row, kept));
        }
        Ok(())
    };
    calls.scribe.read_each(scan, see).await?;
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
    let see = |event: &RecordedEvent| {
        let (id, reply) = match event.kind.as_str() {
            kind::APPROVAL_ANSWERED => {
                let answered: ApprovalAnswered = event.read_as()?;
                let reply = reply_from_fields(&answered);
                (answered.request_id, reply)
            }
            kind::APPROVAL_VOIDED => (event.read_as::<ApprovalVoided>()?.request_id, None),
            kind::ACTION_APPROVED => (event.read_as::<ActionApproved>()?.request_id, None),
            kind::ACTION_DENIED => (event.read_as::<ActionDenied>()?.request_id, None),
            kind::ACTION_EXECUTED => (event.read_as::<ActionExecuted>()?.request_id, None),
            _ => (event.read_as::<ActionFailed>()?.request_id, None),
        };
        let id = (event.session, id);
        let asked = open.get_mut(&id).filter(|(row, _)| *row < event.row);
        match (reply, asked) {
            (Some(reply), Some((_, found))) => found.reply = Some(reply),
            (None, Some(_)) => drop(open.remove(&id)),
            (_, None) => {}
        }
        Ok(())
    };
    calls.scribe.read_each(scan, see).await?;
    add_reasons(calls, first_row, &mut open).await?;
    let mut open: Vec<OpenApproval> = open.into_values().map(|(_, open)| open).collect();
    open.sort_by_key(|open| (open.question.expires_at, open.question.step_number()));
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
    let see = |event: &RecordedEvent| {
        let answered: ApprovalAnswered = event.read_with_words()?;
        let asked = open.get_mut(&(event.session, answered.request_id));
        if let Some((_, found)) = asked.filter(|(row, _)| *row < event.row)
            && let Some(reply) = &mut found.reply
        {
            // Erased words: the code in their place says nothing.
            let said = answered.reason.filter(|reason| *reason != ChainText::IN_CONTENT);
            reply.reason = said.map(String::from);
        }
        Ok(())
    };
    calls.scribe.read_each(scan, see).await
}

/// An answer of a person; what lapsed or was cancelled is none.
fn reply_from_fields(answered: &ApprovalAnswered) -> Option<ApprovalReply> {
    let answer = match answered.answer.as_str() {
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
            channel: answered.channel.clone(),
            name: answered.by.clone(),
            role: match answered.role.as_str() {
                "admin" => Role::Admin,
                "user" => Role::User,
                _ => Role::Viewer,
            },
        },
        reason: answered.reason.clone().map(String::from),
        // What is on record has been admitted.
        seen: PreviewReceipt::Sent,
    })
}

/// A standing grant that another host gave.
pub fn follow_grant(calls: &CallGovernor, event: &RecordedEvent) -> Result<(), JournalError> {
    let held = held_of(event)?;
    if let Some(held) = held.filter(|held| !calls.desk.standing.contains(&held.id)) {
        calls.desk.standing.add(held);
    }
    Ok(())
}

/// The end of a standing grant.
pub fn follow_revocation(calls: &CallGovernor, event: &RecordedEvent) -> Result<(), JournalError> {
    let revoked: ApprovalRevoked = event.read_as()?;
    calls.desk.standing.remove(&revoked.grant_id);
    Ok(())
}

/// The grant of an event; `None`: it lasts in no way that this version knows.
fn held_of(event: &RecordedEvent) -> Result<Option<StandingGrant>, JournalError> {
    let granted: ApprovalGranted = event.read_with_words()?;
    let lasting = match granted.lasting.as_str() {
        "always" => GrantLifetime::Always,
        "session" => GrantLifetime::Session(event.session),
        _ => return Ok(None),
    };
    Ok(Some(StandingGrant {
        id: granted.grant_id,
        tool: granted.action_id,
        lasting,
        folder: granted.folder.map(PathBuf::from),
        led: granted.led_hash,
        parameters: granted.parameters_hash,
        plan: granted.plan_hash,
        basis: granted.basis_hash,
        by: granted.by,
        shown: granted.shown.into(),
        at: event.at,
    }))
}

/// Restores the standing grants.
pub async fn restore_standing(calls: &CallGovernor) -> Result<(), JournalError> {
    let scan = JournalScan {
        kinds: &[kind::APPROVAL_GRANTED, kind::APPROVAL_REVOKED],
        with_content: true,
        ..JournalScan::default()
    };
    let mut of_sessions = Vec::new();
    let see = |event: &RecordedEvent| {
        if event.kind == kind::APPROVAL_REVOKED {
            return follow_revocation(calls, event);
        }
        let Some(held) = held_of(event)? else {
            return Ok(());
        };
        if let GrantLifetime::Session(session) = held.lasting {
            of_sessions.push((session, event.row));
        }
        calls.desk.standing.add(held);
        Ok(())
    };
    calls.scribe.read_each(scan, see).await?;
    // A session that ended took its grants with it.
    for (session, after_row) in of_sessions {
        let ended = JournalScan {
            session: Some(session),
            kinds: &[kind::SESSION_ENDED],
            after_row,
            limit: 1,
            ..JournalScan::default()
        };
        if !calls.scribe.journal().scan_events(ended).await?.is_empty() {
            calls.desk.standing.forget_session(session);
        }
    }
    Ok(())
}
