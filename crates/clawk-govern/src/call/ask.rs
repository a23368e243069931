//! An approval request, from its creation to the resulting authorization. The grant is bound to what the person saw, and is
//! compared with the current state immediately before the call continues.

use std::path::PathBuf;
use std::sync::Arc;

use clawk_manifest::model::{AutonomyLevel, Role};
use clawk_policy::{Approval, Effect, TimeoutDefault, Verdict};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use super::approval::{ApprovalReply, Delivery, GrantScope, PendingCall};
use super::grant::{CallAuthorization, common_folder, named_files, observe_grant, plan_digest};
use super::leads;
use super::record::CallRecord;
use super::record::words::default_word;
use super::standing::{GrantLifetime, StandingGrant};
use super::{CallApprover, CallGovernor, CallerContext, Request, not_begun, screen};
use crate::catalog::{CatalogEntry, DescribedTool};
use crate::error::CallError;
use crate::notice::{ApprovalAnswer, ApprovalQuestion, SessionNotice};
use crate::ports::InspectedCall;
use crate::roles::KnownPerson;
use crate::sheet::{CallPreview, PreviewLine};
use crate::skill_rights;
use crate::taint;
use crate::time;
use crate::witness::ExactGrant;

/// A call that needs a person's approval.
#[derive(Debug)]
pub(super) struct ApprovalRequest<'a> {
    pub(super) calls: &'a CallGovernor,
    pub(super) caller: &'a CallerContext,
    pub(super) request: &'a Request,
    pub(super) tool: &'a CatalogEntry,
    pub(super) described: &'a DescribedTool,
    pub(super) seat: &'a PendingCall<'a>,
    pub(super) verdict: &'a Verdict,
    pub(super) cancel: &'a CancellationToken,
}

impl ApprovalRequest<'_> {
    /// Asks, waits, and checks that the preconditions still hold. A request that an earlier run left open keeps the text that was
    /// shown and its original expiry.
    pub(super) async fn ask_person(
        &self,
        record: &mut CallRecord<'_>,
    ) -> Result<CallAuthorization, CallError> {
        let Effect::Ask(approval) = self.verdict.effect else {
            return Ok(CallAuthorization::by_policy());
        };
        let id = &self.request.request_id;
        let (question, grant, reply) = match self.calls.desk.take_up(id) {
            Some(open) => {
                record.asked_before(self.verdict, open.thread.span);
                self.check_unchanged(record, &open.grant).await?;
                (open.question, open.grant, open.reply)
            }
            None => {
                let grant = self.observe_grant(record).await?;
                let question = self.build_question(approval).await;
                record
                    .record_question(&question, &grant, self.verdict, approval)
                    .await?;
                (question, grant, None)
            }
        };
        let (by, lasting) = match reply {
            Some(reply) => (self.approver_from_reply(&reply)?, Some(reply)),
            None => self.wait_for_answer(record, &question, approval).await?,
        };
        if matches!(by, CallApprover::Person(_)) && self.calls.clock().monotonic_us() > question.until_us {
            let changed = format!("it lapsed at {}", question.expires_at);
            return Err(record.record_voided(&changed));
        }
        self.check_unchanged(record, &grant).await?;
        // Only a grant whose preconditions have held until here may cover later calls.
        if let Some(reply) = &lasting
            && let Some(held) = self.standing_grant(record, &question, &grant, reply)
        {
            record.record_grant(&held, reply);
            record.flush().await?;
            self.calls.add_standing_grant(held);
        }
        Ok(CallAuthorization::by_person(by, grant))
    }

    pub(super) async fn observe_grant(&self, record: &CallRecord<'_>) -> Result<ExactGrant, CallError> {
        observe_grant(
            self.calls,
            self.tool,
            self.described,
            self.request,
            record.parameters,
        )
        .await
    }

    /// Returns whether all preconditions of the grant still hold. An authorization without a person has none.
    pub(super) async fn is_still_valid(&self, record: &CallRecord<'_>, leave: &CallAuthorization) -> bool {
        let Some(grant) = &leave.grant else { return true };
        matches!(self.observe_grant(record).await, Ok(now) if grant.changed(&now).is_none())
    }

    /// A changed byte in any precondition voids the grant.
    pub(super) async fn check_unchanged(
        &self,
        record: &mut CallRecord<'_>,
        shown: &ExactGrant,
    ) -> Result<(), CallError> {
        let now = self.observe_grant(record).await?;
        match shown.changed(&now) {
            None => Ok(()),
            Some(changed) => Err(record.record_voided(&changed)),
        }
    }

    async fn wait_for_answer(
        &self,
        record: &mut CallRecord<'_>,
        question: &ApprovalQuestion,
        approval: Approval,
    ) -> Result<(CallApprover, Option<ApprovalReply>), CallError> {
        let silence = self
            .calls
            .clock()
            .wait_unanswered(&question.request_id, self.calls.left_ms(question));
        let answer = self.seat.put_question(question.clone());
        // A plan was shown completely.
        if question.step.is_none() {
            let notice = SessionNotice::Asking(Box::new(question.clone()));
            self.caller.notices.send(notice).await;
        }
        let tool = self.request.tool.clone();
        tokio::select! {
            biased;
            answered = answer => match answered {
                Ok(Delivery { reply, durable }) => self.accept_answer(record, question, reply, durable).await,
                // Its session has ended, perhaps with the agent.
                Err(_) => Err(self.end_cut_off(record)), // silent-ok: RecvError says no more
            },
            () = silence => {
                self.seat.mark_settled();
                match approval.default_if_timeout {
                    TimeoutDefault::Allow => {
                        record.record_lapse("timeout-allow");
                        Ok((CallApprover::Silence, None))
                    }
                    TimeoutDefault::Deny => {
                        record.record_lapse("timeout-deny");
                        let (timeout_ms, rule_id) = (approval.timeout_ms, self.verdict.rule_id.as_deref());
                        Err(CallError::ApprovalTimeout { tool, timeout_ms, rule_id: rule_id.map(str::to_owned) })
                    }
                }
            }
            () = self.cancel.cancelled() => {
                self.seat.mark_settled();
                Err(self.end_cut_off(record))
            }
        }
    }

    /// Ends the wait before anybody answered.
    fn end_cut_off(&self, record: &mut CallRecord<'_>) -> CallError {
        if self.calls.life.stop.is_cancelled() {
            // The agent stops, but the call continues: its request is open again after the next start.
            record.leave_open();
        } else {
            record.record_lapse("cancelled");
        }
        not_begun(self.calls, self.caller, self.request)
    }

    /// Records an answer. It counts when it is durable, and is acknowledged only then.
    async fn accept_answer(
        &self,
        record: &mut CallRecord<'_>,
        question: &ApprovalQuestion,
        reply: ApprovalReply,
        durable: oneshot::Sender<bool>,
    ) -> Result<(CallApprover, Option<ApprovalReply>), CallError> {
        record.record_reply(question, &reply);
        let written = record.flush().await;
        let _gone = durable.send(written.is_ok()); // silent-ok: who answered need not wait
        written?;
        Ok((self.approver_from_reply(&reply)?, Some(reply)))
    }

    /// Handles a request that is no longer needed, because a standing grant now covers a step of a plan. A no to this very call
    /// still counts.
    pub(super) fn settle_unasked(&self) -> Result<(), CallError> {
        let Some(open) = self.calls.desk.take_up(&self.request.request_id) else {
            return Ok(());
        };
        self.seat.mark_settled();
        match open.reply {
            Some(reply) => self.approver_from_reply(&reply).map(drop),
            None => Ok(()),
        }
    }

    fn approver_from_reply(&self, reply: &ApprovalReply) -> Result<CallApprover, CallError> {
        let by = reply.person.name.clone();
        match reply.answer {
            ApprovalAnswer::Approve | ApprovalAnswer::ApproveForSession | ApprovalAnswer::Always => {
                Ok(CallApprover::Person(by))
            }
            ApprovalAnswer::Deny => Err(CallError::ApprovalDenied {
                tool: self.request.tool.clone(),
                by,
                reason: reply.reason.clone().filter(|_| self.may_tell(&reply.person)),
            }),
        }
    }

    /// Whether the model may read what this person said with the answer: an admin's words, and the words of whoever's turn it is. Others'
    /// words would stand in the turn without an author; they are in the record.
    fn may_tell(&self, person: &KnownPerson) -> bool {
        let origin = || taint::of_sender(&person.name, &person.channel);
        let requester = self.caller.context.requester.as_ref();
        person.role >= Role::Admin || requester.is_some_and(|requester| requester.is_own_origin(&origin()))
    }

    /// What the answer lets stand: exactly what was shown, or the folder that was offered.
    fn standing_grant(
        &self,
        record: &CallRecord<'_>,
        question: &ApprovalQuestion,
        grant: &ExactGrant,
        reply: &ApprovalReply,
    ) -> Option<StandingGrant> {
        let lasting = match reply.answer {
            ApprovalAnswer::ApproveForSession => GrantLifetime::Session(question.session),
            ApprovalAnswer::Always => GrantLifetime::Always,
            ApprovalAnswer::Approve | ApprovalAnswer::Deny => return None,
        };
        Some(StandingGrant {
            id: self.calls.clock().new_uuid().to_string(),
            tool: self.request.tool.clone(),
            lasting,
            folder: match reply.breadth {
                GrantScope::Exact => None,
                GrantScope::Folder => question.folder.clone(),
            },
            led: record.led,
            parameters: record.parameters,
            plan: plan_digest(self.tool),
            basis: grant.basis,
            by: reply.person.name.clone(),
            shown: question.sheet.first().to_owned(),
            at: self.calls.scribe.now(),
        })
    }

    pub(super) async fn build_question(&self, approval: Approval) -> ApprovalQuestion {
        let (calls, arguments) = (self.calls, &self.request.arguments);
        let autonomy = self.caller.effective_autonomy(calls);
        let mut explanation = vec![format!("autonomy is `{autonomy}`")];
        if autonomy == AutonomyLevel::Supervised && self.verdict.rule_id.is_none() {
            explanation.push(
                "no rule can spare you a question about a tool with side effects; `always` can".to_owned(),
            );
        }
        explanation.extend(calls.explain_decision(&self.request.tool, arguments).await);
        let timeout_ms = i64::try_from(approval.timeout_ms).unwrap_or(i64::MAX);
        let reason = self.verdict.reason.as_deref();
        let mut question = ApprovalQuestion {
            request_id: self.request.request_id.clone(),
            session: self.caller.thread.session,
            tool: self.request.tool.clone(),
            arguments: arguments.clone(),
            rule_id: self.verdict.rule_id.as_deref().map(str::to_owned),
            reason: reason.unwrap_or("a policy rule asks for approval").to_owned(),
            explanation,
            expires_at: calls.scribe.now().plus_millis(timeout_ms),
            until_us: calls
                .clock()
                .monotonic_us()
                .saturating_add(approval.timeout_ms.saturating_mul(1000)),
            default_if_timeout: default_word(approval.default_if_timeout),
            cost: self.estimated_cost(),
            folder: self.common_folder(),
            sheet: Arc::new(self.build_preview().await),
            step: None,
        };
        screen::redact_question(calls, &mut question);
        question
    }

    /// Builds the preview that the person reads.
    pub(super) async fn build_preview(&self) -> CallPreview {
        let (calls, arguments) = (self.calls, &self.request.arguments);
        let workdir = &calls.workdir;
        let look = InspectedCall {
            tool: &self.tool.name,
            arguments,
            plan: &self.tool.plan,
            workdir,
        };
        let preview = calls.runner.preview_call(look).await;
        let named = named_files(arguments, &self.described.input_schema, workdir);
        let base = workdir.clone();
        let leads =
            time::run_blocking(calls.clock(), move || leads::resolved_path_lines(&base, &named)).await;
        let leads = leads.unwrap_or_else(|error| {
            vec![PreviewLine::fact(&format!(
                "its paths can't be looked at: {error}"
            ))]
        });
        screen::redact_preview(calls, CallPreview::of(arguments, preview, leads))
    }

    /// Returns the known cost in advance: the skill's estimates.
    fn estimated_cost(&self) -> Option<String> {
        let skill = self.tool.skill.as_ref().or(self.tool.joins.as_ref())?;
        skill_rights::estimate_text(skill)
    }

    /// Returns the folder of the files that a file tool names; `None` for a command line, which can name any path.
    fn common_folder(&self) -> Option<PathBuf> {
        if self.described.labels.get("category").map(String::as_str) != Some("filesystem") {
            return None;
        }
        let workdir = &self.calls.workdir;
        common_folder(&self.request.arguments, &self.described.input_schema, workdir)
    }
}
