//! The events of an approval request and its answer.

use super::*;
use clawk_events::payload::{ApprovalAnswered, ApprovalGranted, ApprovalRequested, ApprovalVoided};

impl CallRecord<'_> {
    /// Makes the request durable before anybody sees it.
    pub(in crate::call) async fn record_question(
        &mut self,
        question: &ApprovalQuestion,
        grant: &ExactGrant,
        verdict: &Verdict,
        approval: Approval,
    ) -> Result<(), CallError> {
        self.add_question(question, grant, verdict, approval);
        self.flush().await
    }

    /// Adds the request to the call's next commit.
    pub(in crate::call) fn add_question(
        &mut self,
        question: &ApprovalQuestion,
        grant: &ExactGrant,
        verdict: &Verdict,
        approval: Approval,
    ) {
        self.verdict = Some(verdict.clone());
        let kept =
            StoredQuestion::from_question(question, grant, approval, self.caller.door, self.thread.span);
        let bytes = canonical(&kept);
        let payload = ApprovalRequested {
            action_id: self.request.tool.to_string(),
            default_if_timeout: question.default_if_timeout.to_owned(),
            expires_at: question.expires_at.to_string(),
            policy_id: verdict.policy.as_deref().map(str::to_owned),
            question_hash: digest(&bytes),
            reason: question.reason.to_string(),
            request_hash: self.request_hash,
            request_id: self.request.request_id.as_str().to_owned(),
            rule_id: verdict.rule_id.as_deref().map(str::to_owned),
        };
        let hash = payload.question_hash;
        let draft = self.calls.scribe.draft_event(&self.thread, &payload);
        self.waiting.push(draft.with_content(hash, bytes));
    }

    /// Returns the events so far, for a commit together with other calls.
    pub(in crate::call) fn into_drafts(self) -> Vec<Draft> {
        self.waiting
    }

    /// Marks request and call as already recorded: by an earlier run of the agent, or by a plan.
    pub(in crate::call) fn asked_before(&mut self, verdict: &Verdict, span: Uuid) {
        self.verdict = Some(verdict.clone());
        self.thread.span = span;
        self.waiting.clear();
    }

    /// Adds the end of a request without a person's answer.
    pub(in crate::call) fn record_lapse(&mut self, answer: &str) {
        self.add_answer(answer, "nobody", "", "", None, None);
    }

    /// Adds an answer that arrived over the API before the call.
    pub(in crate::call) fn record_early_answer(&mut self, answer: &str, by: &str, reason: Option<&str>) {
        self.add_answer(answer, by, "http", "admin", reason, None);
    }

    pub(in crate::call) fn record_reply(&mut self, question: &ApprovalQuestion, reply: &ApprovalReply) {
        let (person, role) = (&reply.person, reply.person.role.to_string());
        let answer = answer_word(reply.answer);
        self.add_answer(
            answer,
            &person.name,
            &person.channel,
            &role,
            reply.reason.as_deref(),
            reply.seen_word(question),
        );
    }

    pub(in crate::call) fn record_grant(&mut self, held: &StandingGrant, reply: &ApprovalReply) {
        let folder = held.folder.as_ref().map(|folder| folder.to_string_lossy());
        let words = EventWords::new(WordField::Shown, &held.shown);
        let payload = ApprovalGranted {
            action_id: held.tool.to_string(),
            basis_hash: held.basis,
            by: held.by.to_string(),
            channel: reply.person.channel.to_string(),
            folder: folder.as_deref().map(str::to_owned),
            grant_id: held.id.to_string(),
            lasting: held.lasting.name().to_owned(),
            led_hash: held.led,
            parameters_hash: held.parameters,
            plan_hash: held.plan,
            request_id: self.request.request_id.as_str().to_owned(),
            shown: ChainText::IN_CONTENT,
            words_hash: Some(words.digest()),
        };
        let draft = self.calls.scribe.draft_event(&self.thread, &payload);
        self.waiting.push(draft.with_words(words));
    }

    /// Records that the grant is void. Returns the error.
    pub(in crate::call) fn record_voided(&mut self, changed: &str) -> CallError {
        let payload = ApprovalVoided {
            action_id: self.request.tool.to_string(),
            changed: changed.to_owned(),
            request_id: self.request.request_id.as_str().to_owned(),
        };
        let scribe = &self.calls.scribe;
        self.waiting.push(scribe.draft_event(&self.thread, &payload));
        CallError::ApprovalVoid {
            tool: self.request.tool.clone(),
            changed: changed.to_owned(),
        }
    }

    fn add_answer(
        &mut self,
        answer: &str,
        by: &str,
        channel: &str,
        role: &str,
        reason: Option<&str>,
        seen: Option<&str>,
    ) {
        let words = EventWords::of_reason(reason);
        let (reason, words_hash) = stand_in(words.as_ref());
        let payload = ApprovalAnswered {
            action_id: self.request.tool.to_string(),
            answer: answer.to_owned(),
            by: by.to_owned(),
            channel: channel.to_owned(),
            reason,
            request_id: self.request.request_id.as_str().to_owned(),
            role: role.to_owned(),
            seen: seen.map(str::to_owned).into(),
            words_hash,
        };
        let draft = self.calls.scribe.draft_event(&self.thread, &payload);
        self.waiting.push(draft.with_words(words));
    }
}
