//! Approval answers that do not come from a waiting call's own client, revoking of grants, and past answers.

use clawk_events::AddedField;
use clawk_events::payload::{ApprovalAnswered, ApprovalRevoked, ApprovalVoided};
use clawk_manifest::model::Role;
use clawk_proto::{RequestId, SessionId};

use super::CallGovernor;
use super::approval::{ApprovalReply, ReplyOutcome};
use super::record::answer_word;
use crate::error::KernelError;
use crate::event::{ChainText, EventWords, kind, stand_in};
use crate::notice::ApprovalAnswer;
use crate::ports::{JournalError, JournalScan, RecordedEvent};
use crate::roles::KnownPerson;

/// Largest number of past events that one listing reads.
const MAX_PAST: usize = 10_000;

/// Returns whether the role may give this answer: only an admin approves, and a viewer gives no answer (CKP §5.3).
pub(super) const fn may_answer(role: Role, answer: ApprovalAnswer) -> bool {
    match (role, answer) {
        (Role::Admin, _) | (Role::User, ApprovalAnswer::Deny) => true,
        (
            Role::User,
            ApprovalAnswer::Approve | ApprovalAnswer::ApproveForSession | ApprovalAnswer::Always,
        )
        | (Role::Viewer, _) => false,
    }
}

/// Answers an approval request, on whichever host its call is.
pub async fn reply_to_question(
    calls: &CallGovernor,
    id: &RequestId,
    mut reply: ApprovalReply,
) -> ReplyOutcome {
    if let Some(reason) = &mut reply.reason {
        calls.screens.without_known(reason);
    }
    if !may_answer(reply.person.role, reply.answer) {
        return ReplyOutcome::NotAllowed;
    }
    let here = reply_locally(calls, id, &reply).await;
    match (&calls.owners, here) {
        // The call may be on another host.
        (Some(owners), ReplyOutcome::Nothing) => owners.forward_reply(calls, id, &reply).await,
        (_, reception) => reception,
    }
}

/// Answers a request of this host's calls. The answer's text is screened and the person's rights are checked again here.
pub async fn reply_here(calls: &CallGovernor, id: &RequestId, mut reply: ApprovalReply) -> ReplyOutcome {
    if let Some(reason) = &mut reply.reason {
        calls.screens.without_known(reason);
    }
    if !may_answer(reply.person.role, reply.answer) {
        return ReplyOutcome::NotAllowed;
    }
    reply_locally(calls, id, &reply).await
}

async fn reply_locally(calls: &CallGovernor, id: &RequestId, reply: &ApprovalReply) -> ReplyOutcome {
    match calls.desk.answer_question(id, reply.clone()).await {
        ReplyOutcome::Nothing => to_open(calls, id, reply).await,
        reception => reception,
    }
}

/// Answers several steps of a plan at once; all of them if none are named. Returns the outcome of each. Unknown numbers are
/// ignored.
pub async fn reply_plan(
    calls: &CallGovernor,
    plan: &RequestId,
    only: Option<&[u32]>,
    said: &ApprovalReply,
) -> Vec<(u32, ReplyOutcome)> {
    let mut steps = calls.desk.plan_steps(plan);
    if let Some(owners) = &calls.owners {
        steps.extend(owners.plan_steps(plan));
        steps.sort();
        steps.dedup();
    }
    let steps = steps
        .into_iter()
        .filter(|(number, _)| only.is_none_or(|only| only.contains(number)));
    // Run concurrently: a step that is working must not delay the answers of the others.
    futures::future::join_all(
        steps.map(async |(number, id)| (number, reply_to_question(calls, &id, said.clone()).await)),
    )
    .await
}

/// Withdraws the requests of calls that will never come, because their turn has ended.
pub async fn withdraw_questions(calls: &CallGovernor, ids: impl Iterator<Item = &RequestId>) {
    let mut drafts = Vec::new();
    for id in ids {
        let Some(open) = calls.desk.close_question(id) else {
            continue;
        };
        let payload = ApprovalAnswered {
            action_id: open.question.tool.to_string(),
            answer: "cancelled".to_owned(),
            by: "nobody".to_owned(),
            channel: "".to_owned(),
            reason: Some(ChainText::from_code("its turn ended before")),
            request_id: id.as_str().to_owned(),
            role: "".to_owned(),
            seen: AddedField::Null,
            words_hash: None,
        };
        drafts.push(calls.scribe.draft_event(&open.thread, &payload));
    }
    if drafts.is_empty() {
        return;
    }
    if let Err(error) = calls.scribe.write(drafts).await {
        tracing::error!(%error, "questions that are no more could not be recorded as such");
    }
}

/// Stores the answer to a request whose call an earlier run left open, until the call comes again. It covers only that call; a
/// standing grant is made when the call is there.
async fn to_open(calls: &CallGovernor, id: &RequestId, reply: &ApprovalReply) -> ReplyOutcome {
    let (thread, question) = match calls.desk.settle_open(id, reply, calls.clock().monotonic_us()) {
        Ok(open) => open,
        Err(reception) => return reception,
    };
    let words = EventWords::of_reason(reply.reason.as_deref());
    let (reason, words_hash) = stand_in(words.as_ref());
    let payload = ApprovalAnswered {
        action_id: question.tool.to_string(),
        answer: answer_word(reply.answer).to_owned(),
        by: reply.person.name.to_string(),
        channel: reply.person.channel.to_string(),
        reason,
        request_id: id.as_str().to_owned(),
        role: reply.person.role.to_string(),
        seen: reply.seen_word(&question).map(str::to_owned).into(),
        words_hash,
    };
    let draft = calls.scribe.draft_event(&thread, &payload);
    let draft = draft.with_words(words);
    let kept = calls.scribe.write(vec![draft]).await;
    if let Err(error) = &kept {
        tracing::error!(%error, "an answer could not be kept");
        calls.desk.unsettle_open(id);
        return ReplyOutcome::Nothing;
    }
    ReplyOutcome::Taken
}

/// Ends a standing grant.
pub async fn revoke_grant(calls: &CallGovernor, grant: &str, by: &KnownPerson) -> Result<bool, KernelError> {
    if by.role != Role::Admin || !calls.desk.standing.contains(grant) {
        return Ok(false);
    }
    let payload = ApprovalRevoked {
        by: by.name.to_string(),
        grant_id: grant.to_owned(),
    };
    let thread = calls.life.root.child(calls.clock().new_uuid());
    // The grant ends at once. If that can't be recorded, an error is returned, and the grant is valid again after a restart.
    calls.desk.standing.remove(grant);
    let draft = calls.scribe.draft_event(&thread, &payload);
    calls.scribe.write(vec![draft]).await?;
    Ok(true)
}

/// A past approval request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PastApproval {
    /// Id of the call.
    pub request_id: String,
    /// The call's session.
    pub session: SessionId,
    /// Name of the tool.
    pub tool: String,
    /// `approve`, `approve-for-session`, `always`, `deny`, `timeout-deny`, `timeout-allow`, `cancelled`, `voided`.
    pub answer: String,
    /// The person who answered; `nobody` if the question expired.
    pub by: String,
    /// The channel of the answer.
    pub channel: String,
    /// The person's role.
    pub role: String,
    /// The person's reason, or what voided the approval.
    pub reason: Option<String>,
    /// Time, RFC 3339.
    pub at: String,
}

/// The latest answers, the last one last.
pub async fn past_approvals(calls: &CallGovernor, limit: usize) -> Result<Vec<PastApproval>, KernelError> {
    let mut scan = JournalScan {
        kinds: &[kind::APPROVAL_ANSWERED, kind::APPROVAL_VOIDED],
        limit: MAX_PAST,
        with_content: true,
        ..JournalScan::default()
    };
    let mut past = std::collections::VecDeque::new();
    loop {
        let page = calls.scribe.journal().scan_events(scan.clone()).await?;
        for event in &page {
            past.push_back(past_approval(event)?);
            if past.len() > limit {
                past.pop_front();
            }
        }
        match page.last() {
            Some(last) if page.len() == MAX_PAST => scan.after_row = last.row,
            Some(_) | None => return Ok(past.into()),
        }
    }
}

fn past_approval(event: &RecordedEvent) -> Result<PastApproval, JournalError> {
    let (session, at) = (event.session, event.at.to_string());
    if event.kind == kind::APPROVAL_VOIDED {
        let voided: ApprovalVoided = event.read_as()?;
        return Ok(PastApproval {
            request_id: voided.request_id,
            session,
            tool: voided.action_id,
            answer: "voided".to_owned(),
            by: String::new(),
            channel: String::new(),
            role: String::new(),
            reason: Some(voided.changed),
            at,
        });
    }
    let answered: ApprovalAnswered = event.read_with_words()?;
    Ok(PastApproval {
        request_id: answered.request_id,
        session,
        tool: answered.action_id,
        answer: answered.answer,
        by: answered.by,
        channel: answered.channel,
        role: answered.role,
        reason: answered.reason.map(String::from),
        at,
    })
}
