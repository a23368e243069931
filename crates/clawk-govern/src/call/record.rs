//! The record of one call: its journal events and their times.
//!
//! Long because every event of a call is made here, and nowhere else.

mod asked;
pub(super) mod words;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use clawk_events::payload::{
    ActionApproved, ActionAudited, ActionDenied, ActionExecuted, ActionFailed, ActionRequested,
    ApprovalRequested, CarpLimitsCharged,
};
use clawk_events::shape::BudgetUse;
use clawk_policy::{Effect, Verdict};
use clawk_proto::Digest;
use clawk_proto::method::ToolCallResult;
use serde_json::{Map, Value};
use uuid::Uuid;

use clawk_policy::Approval;

use super::approval::ApprovalReply;
use super::reopen::StoredQuestion;
use super::standing::StandingGrant;
use super::{CallApprover, CallGovernor, CallerContext, Request, egress};
use crate::budget_events;
use crate::carp::{self, ApprovalView, AtlasGate, AtlasJudgement};
use crate::catalog::DescribedTool;
use crate::dedup::{DedupMethod, answer_key};
use crate::effect;
use crate::error::CallError;
use crate::event::{
    ChainText, Draft, EventWords, Thread, WordField, budget_uses, canonical, digest, stand_in,
};
use crate::notice::{ApprovalAnswer, ApprovalQuestion, SessionNotice};
use crate::place::ExcludedPaths;
use crate::ports::{
    AnswerKey, BatchConditions, ConnectionCollector, EffectChange, JournalError, OpenEffect,
    ProvenanceCollector, RunOutcome, SpentAmount, UnmetCondition,
};
use crate::purse::{BudgetAccount, BudgetWarning, CallBudget, hour_of};
use crate::stop::{self, ActiveStop, Level};
use crate::taint;
use crate::witness::ExactGrant;
use words::{error_code, failure_code};

/// Largest part of a result that clients are shown, in bytes.
const SUMMARY_BYTES: usize = 400;

/// Collects a call's events and makes them durable at the right times.
pub(super) struct CallRecord<'a> {
    calls: &'a CallGovernor,
    caller: &'a CallerContext,
    request: &'a Request,
    thread: Thread,
    /// Digest of the arguments.
    pub(super) parameters: Digest,
    /// Digest of the tool, the arguments and the narrowing names. It defines "the same request" (R19).
    pub(super) request_hash: Digest,
    pub(super) attempts: u32,
    waiting: Vec<Draft>,
    pure: bool,
    side_effects: bool,
    /// The lowest emergency-stop level that blocks this call.
    stopped_by: Level,
    started: bool,
    open: bool,
    started_us: u64,
    level: String,
    verdict: Option<Verdict>,
    /// Ids of the CARP resolution and of this execution of it.
    under: Option<(Uuid, Uuid)>,
    /// The event that follows a denial.
    violated: Option<Draft>,
    /// The budget reserved for the run.
    place: Option<CallBudget>,
    spent: Vec<SpentAmount>,
    /// The used amounts for the end event.
    took: Vec<BudgetUse>,
    effects: Vec<EffectChange>,
    warned: Vec<BudgetWarning>,
    /// The arguments after screening. If they are set, the raw ones are neither stored nor shown.
    screened: Option<Map<String, Value>>,
    /// The request is in the journal.
    written: bool,
    /// Id of the reservation over all hosts.
    aside: Option<Uuid>,
    /// The request that another host may begin after the next commit.
    disclaims: Option<AnswerKey>,
    /// The connections of the call.
    pub(super) connections: ConnectionCollector,
    /// The untrusted files that it could read.
    pub(super) sources: ProvenanceCollector,
    /// The paths that the call must not touch.
    pub(super) apart: Arc<ExcludedPaths>,
    /// Digest of the call's resolved paths, if they differ from the paths as written.
    pub(super) led: Option<Digest>,
}

/// Adds the event that a call was requested with these arguments.
fn requested_draft(
    calls: &CallGovernor,
    caller: &CallerContext,
    request: &Request,
    thread: &Thread,
    arguments: Vec<u8>,
) -> Draft {
    let parameters_hash = digest(&arguments);
    let requested = ActionRequested {
        action_id: request.tool.to_string(),
        call_id: caller.call_id.as_deref().map(str::to_owned),
        converted: request.converted.to_vec(),
        door: caller.door.to_owned(),
        identity: request.identity.to_string(),
        parameters_hash,
        policy: request.policy.as_deref().map(str::to_owned),
        request_id: request.request_id.as_str().to_owned(),
        sandbox: request.sandbox.as_deref().map(str::to_owned),
        taint: caller.context.taint.to_vec(),
        turn: caller.turn,
    };
    calls
        .scribe
        .draft_event(thread, &requested)
        .with_content(parameters_hash, arguments)
}

impl<'a> CallRecord<'a> {
    pub(super) fn new(calls: &'a CallGovernor, caller: &'a CallerContext, request: &'a Request) -> Self {
        let bytes = canonical(&request.arguments);
        let parameters = digest(&bytes);
        let mut same = Vec::with_capacity(128);
        same.extend_from_slice(&parameters.0);
        for part in [
            Some(&request.tool),
            request.sandbox.as_ref(),
            request.policy.as_ref(),
        ] {
            same.push(0);
            same.extend_from_slice(part.map(String::as_bytes).unwrap_or_default());
        }
        let thread = caller.thread.child(calls.clock().new_uuid());
        let waiting = vec![requested_draft(calls, caller, request, &thread, bytes)];
        Self {
            calls,
            caller,
            request,
            thread,
            parameters,
            request_hash: digest(&same),
            attempts: 0,
            waiting,
            pure: false,
            side_effects: true,
            stopped_by: Level::NoNetwork,
            started: false,
            open: false,
            started_us: 0,
            level: String::new(),
            verdict: None,
            under: None,
            violated: None,
            place: None,
            spent: Vec::new(),
            took: Vec::new(),
            effects: Vec::new(),
            warned: Vec::new(),
            screened: None,
            written: false,
            aside: None,
            disclaims: None,
            connections: ConnectionCollector::default(),
            sources: ProvenanceCollector::default(),
            apart: Arc::default(),
            led: None,
        }
    }

    /// Adds the Atlases' judgement: `policy.evaluated`, and the event after a denial.
    pub(super) fn record_atlas_judgement(&mut self, gate: &AtlasGate, atlas: &AtlasJudgement) {
        self.under = Some((gate.under.resolution, gate.under.execution));
        let scribe = &self.calls.scribe;
        let evaluation = atlas.evaluation.as_ref();
        self.waiting.extend(
            evaluation
                .map(|one| carp::event::evaluated_draft(scribe, &self.thread, one, gate.atlas_changes())),
        );
        self.violated = atlas.violation.map(|violation| {
            let policy = evaluation
                .and_then(|one| one.policy_id.as_deref())
                .unwrap_or("default");
            let reason = atlas.verdict.reason.as_deref();
            carp::event::violated_draft(
                scribe,
                &self.thread,
                &self.request.tool,
                policy,
                violation,
                reason,
            )
        });
    }

    /// What the execution took from limits, in the runtime's chain and in the commit of the decision.
    pub(super) fn record_charge(&mut self, charged: Option<CarpLimitsCharged>) {
        let root = self.calls.life.root.child(self.thread.span);
        let entry = |charged| self.calls.scribe.draft_event(&root, &charged);
        self.waiting.extend(charged.map(entry));
    }

    /// Makes a request durable whose caller does not wait, before the caller gets its id.
    pub(super) async fn record_pending(
        &mut self,
        view: &ApprovalView,
        verdict: &Verdict,
    ) -> Result<(), CallError> {
        let payload = ApprovalRequested {
            action_id: self.request.tool.to_string(),
            default_if_timeout: "deny".to_owned(),
            expires_at: view.expires_at.clone(),
            policy_id: verdict.policy.as_deref().map(str::to_owned),
            question_hash: self.parameters,
            reason: view.reason.to_string(),
            request_hash: self.request_hash,
            request_id: self.request.request_id.as_str().to_owned(),
            rule_id: verdict.rule_id.as_deref().map(str::to_owned),
        };
        let scribe = &self.calls.scribe;
        self.waiting.push(scribe.draft_event(&self.thread, &payload));
        self.flush().await
    }

    /// Keeps the reservation until the outcome.
    pub(super) fn hold_budget(&mut self, place: CallBudget) {
        self.place = Some(place);
    }

    /// Gives the reservation back.
    pub(super) fn let_go(&mut self) {
        self.place = None;
    }

    /// Returns the time limit of the run: the tool's own, or the budget's remaining time.
    pub(super) fn timeout_ms(&self, own: u64) -> u64 {
        self.place.as_ref().map_or(own, |place| place.timeout_ms.min(own))
    }

    /// Returns the budget of an inner turn.
    pub(super) fn inner_account(&self) -> BudgetAccount {
        self.place
            .as_ref()
            .map_or_else(|| self.caller.purse.clone(), |place| place.purse.clone())
    }

    /// Settles the budget in the commit of the outcome: a call that ran is charged, another is not.
    fn settle_budget(&mut self) {
        let Some(place) = self.place.take().filter(|_| self.started) else {
            return;
        };
        let ran_us = self.calls.clock().monotonic_us().saturating_sub(self.started_us);
        let took = place.amount_taken(ran_us / 1000);
        let settled = place.reservation.settle(took, self.calls.scribe.now());
        self.spent = settled.spent;
        self.took = budget_uses(&settled.told);
        for warning in &settled.warnings {
            tracing::warn!(%warning, "a budget is nearly used up");
        }
        self.waiting.extend(budget_events::warned(
            &self.calls.scribe,
            &self.thread,
            &settled.warnings,
        ));
        self.warned = settled.warnings;
    }

    /// Replaces the call's arguments by the screened ones. The removed text is stored nowhere.
    pub(super) fn replace_arguments(&mut self, arguments: &Map<String, Value>) {
        let bytes = canonical(arguments);
        self.parameters = digest(&bytes);
        let draft = requested_draft(self.calls, self.caller, self.request, &self.thread, bytes);
        if let Some(first) = self.waiting.first_mut().filter(|_| !self.written) {
            *first = draft;
        }
        self.screened = Some(arguments.clone());
    }

    /// Returns the arguments in the form that may be stored.
    pub(super) fn arguments(&self) -> &Map<String, Value> {
        self.screened.as_ref().unwrap_or(&self.request.arguments)
    }

    /// Adds events to the call's next commit.
    pub(super) fn add_drafts(&mut self, drafts: Vec<Draft>) {
        self.waiting.extend(drafts);
    }

    pub(super) const fn thread(&self) -> &Thread {
        &self.thread
    }

    pub(super) fn tool(&self) -> &str {
        &self.request.tool
    }

    /// Returns whether the run began and has side effects.
    pub(super) const fn has_side_effects(&self) -> bool {
        self.side_effects
    }

    /// Returns whether the call ran.
    pub(super) const fn has_run(&self) -> bool {
        self.started
    }

    /// Leaves the call's request open because the agent stops. No end is recorded.
    pub(super) const fn leave_open(&mut self) {
        self.open = true;
    }

    pub(super) const fn left_open(&self) -> bool {
        self.open
    }

    /// Sets whether the tool has effects, which determines the number of commits.
    pub(super) fn set_description(&mut self, described: &DescribedTool) {
        self.pure = described.is_pure();
        self.side_effects = !described.read_only();
        self.stopped_by = described.stopped_by();
    }

    /// Marks the call as a check without effects. Its decision is still durable.
    pub(super) const fn mark_harmless(&mut self) {
        self.side_effects = false;
    }

    /// Records the decision, durably before the effect. A tool without effects shares one commit with its outcome.
    pub(super) async fn record_decision(
        &mut self,
        verdict: &Verdict,
        by: &CallApprover,
    ) -> Result<(), CallError> {
        let scribe = &self.calls.scribe;
        let (rule_id, policy_id) = (verdict.rule_id.as_deref(), verdict.policy.as_deref());
        let request_id = self.request.request_id.as_str();
        let approved = ActionApproved {
            action_id: self.request.tool.to_string(),
            by: match by {
                CallApprover::Policy => "policy",
                CallApprover::Person(who) => who,
                CallApprover::Silence => "timeout",
            }
            .to_owned(),
            effect: verdict.effect.name().to_owned(),
            parameters_hash: self.parameters,
            policy_id: policy_id.map(str::to_owned),
            request_hash: self.request_hash,
            request_id: request_id.to_owned(),
            resolution_id: self
                .under
                .map_or_else(|| scribe.clock().new_uuid(), |(resolution, _)| resolution),
            rule_id: rule_id.map(str::to_owned),
            side_effects: self.side_effects,
            turn: self.caller.turn,
        };
        self.waiting.push(scribe.draft_event(&self.thread, &approved));
        if verdict.audit || verdict.effect == Effect::AuditOnly {
            let audited = ActionAudited {
                action_id: self.request.tool.to_string(),
                policy_id: policy_id.map(str::to_owned),
                reason: verdict.reason.as_deref().map(str::to_owned),
                request_id: request_id.to_owned(),
                rule_id: rule_id.map(str::to_owned),
            };
            self.waiting.push(scribe.draft_event(&self.thread, &audited));
        }
        self.verdict = Some(verdict.clone());
        // With other hosts, this commit decides everything that must be exact over all of them.
        if self.calls.owners.is_some() {
            self.flush_if(self.batch_conditions()).await?;
        } else if !self.pure {
            self.flush().await?;
        }
        self.started = true;
        self.started_us = self.calls.clock().monotonic_us();
        let word = match by {
            CallApprover::Policy => verdict.effect.name(),
            CallApprover::Person(_) => "approved",
            CallApprover::Silence => "timeout: allow",
        };
        self.tell_decided(word, rule_id, None).await;
        Ok(())
    }

    async fn tell_decided(&self, verdict: &str, rule_id: Option<&str>, refused_by: Option<&'static str>) {
        let notices = &self.caller.notices;
        if notices.attached() {
            let notice = SessionNotice::CallDecided {
                request_id: self.request.request_id.clone(),
                tool: self.request.tool.clone(),
                arguments: self.arguments().clone(),
                verdict: verdict.to_owned(),
                rule_id: rule_id.map(str::to_owned),
                refused_by,
            };
            notices.send(notice).await;
        }
    }

    /// Returns the conditions over all hosts for this call to begin. A turn's own calls are claimed by its session.
    fn batch_conditions(&self) -> BatchConditions {
        let mut terms = match &self.place {
            Some(place) => place.reservation.batch_conditions(self.calls.clock().new_uuid()),
            None => BatchConditions::default(),
        };
        terms.per_minute = self.calls.rates.per_minute();
        terms.stops = self.calls.owners.as_ref().map(|owners| owners.stops_known());
        terms.claim = self.claim_key();
        terms
    }

    fn claim_key(&self) -> Option<AnswerKey> {
        let asked_for = self.caller.turn.is_none();
        asked_for.then(|| answer_key(DedupMethod::Call, &self.request.request_id))
    }

    async fn flush_if(&mut self, mut terms: BatchConditions) -> Result<(), CallError> {
        let waiting = std::mem::take(&mut self.waiting);
        self.written = true;
        let own = (std::mem::take(&mut self.spent), std::mem::take(&mut self.effects));
        loop {
            let written = self
                .calls
                .scribe
                .account_if(waiting.clone(), own.clone(), terms.clone())?;
            match written.wait_until_durable().await {
                Ok(()) => {
                    self.aside = terms.aside.map(|aside| aside.id);
                    return Ok(());
                }
                // A stop that was lifted since does not block the call.
                Err(JournalError::Unmet(UnmetCondition::Stopped)) if self.goes_on(&mut terms).await? => {}
                Err(JournalError::Unmet(unmet)) => return Err(self.refuse_unmet(&terms, unmet).await),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Reads stops that this host did not know. Returns whether the call may continue.
    async fn goes_on(&self, terms: &mut BatchConditions) -> Result<bool, CallError> {
        if let Some(owners) = &self.calls.owners {
            owners.see_stops(self.calls).await?;
            terms.stops = Some(owners.stops_known());
        }
        Ok(self.active_stop().is_none())
    }

    fn active_stop(&self) -> Option<ActiveStop> {
        self.calls
            .brake
            .blocking_stop(self.caller.thread.session, self.stopped_by)
    }

    /// Handles a failed condition: another host was first, or has used up the limit. No pending event is written; the call is
    /// recorded as refused.
    async fn refuse_unmet(&mut self, asked: &BatchConditions, unmet: UnmetCondition) -> CallError {
        let scribe = &self.calls.scribe;
        let error = match (&unmet, &self.place) {
            (UnmetCondition::Rate { wait_ms }, _) => {
                self.calls.rates.rate_exceeded(&self.request.tool, *wait_ms)
            }
            (UnmetCondition::Room { at, used }, Some(place)) => match asked.room.get(*at) {
                Some(room) => place.reservation.used_up(room, *used),
                None => CallError::Journal(JournalError::Unmet(unmet)),
            },
            (UnmetCondition::Stopped, _) => match self.active_stop() {
                Some(stop) => stop::stopped_error(&self.request.tool, &stop),
                None => CallError::Journal(JournalError::Unmet(unmet)),
            },
            (UnmetCondition::Claimed | UnmetCondition::Room { .. }, _) => {
                return CallError::Journal(JournalError::Unmet(unmet));
            }
        };
        let (month, _) = scribe.now().month_bounds();
        match scribe.journal().spent_since(hour_of(month)).await {
            Ok(kept) => self.calls.purses.catch_up(&kept, scribe.now()),
            Err(error) => tracing::warn!(%error, "what other hosts have spent can't be read"),
        }
        let arguments = canonical(self.arguments());
        let draft = requested_draft(self.calls, self.caller, self.request, &self.thread, arguments);
        self.waiting.push(draft);
        error
    }

    pub(super) async fn flush(&mut self) -> Result<(), CallError> {
        self.flush_claiming(None).await
    }

    async fn flush_claiming(&mut self, claim: Option<AnswerKey>) -> Result<(), CallError> {
        let waiting = std::mem::take(&mut self.waiting);
        self.written = true;
        let (spent, effects) = (std::mem::take(&mut self.spent), std::mem::take(&mut self.effects));
        // The reservation over all hosts is settled with what was spent of it.
        let settles = self.aside.filter(|_| self.place.is_none());
        let terms = BatchConditions {
            claim,
            settles,
            disclaim: self.disclaims.take(),
            ..BatchConditions::default()
        };
        self.calls
            .scribe
            .account_if(waiting, (spent, effects), terms)?
            .wait_until_durable()
            .await?;
        if settles.is_some() {
            self.aside = None;
        }
        Ok(())
    }

    /// Adds the connections of the run, including refused ones.
    fn record_connections(&mut self) {
        let names = (self.request.tool.as_str(), self.request.request_id.as_str());
        let reached = egress::connection_drafts(&self.calls.scribe, &self.thread, names, &self.connections);
        self.waiting.extend(reached);
        let read = self.sources.take_files();
        if read.is_empty() {
            return;
        }
        let of = (Some(self.request.request_id.as_str()), self.caller.turn);
        let tainted = taint::read(&self.calls.scribe, &self.thread, of, &read);
        self.waiting.push(tainted);
        self.caller.context.read.add_files(read);
    }

    /// Writes the outcome and waits until it is durable. An outcome that can't be recorded is not reported as done.
    pub(super) async fn record_outcome(
        &mut self,
        outcome: Result<RunOutcome, CallError>,
        started_us: u64,
    ) -> Result<ToolCallResult, CallError> {
        let duration_ms = self.calls.clock().monotonic_us().saturating_sub(started_us) / 1000;
        self.record_connections();
        let ran = match outcome {
            Ok(ran) => ran,
            Err(CallError::Journal(why)) => return Err(CallError::Journal(why)),
            Err(error) if self.open => return Err(error),
            // The pending state is already in the journal and is not an end.
            Err(pending @ CallError::ApprovalPending { .. }) => return Err(pending),
            Err(error) => return Err(self.end_refused(error, duration_ms).await),
        };
        let RunOutcome {
            content,
            is_error,
            structured,
            obtained,
        } = ran;
        self.settle_budget();
        self.level = obtained.label().to_owned();
        let result = ToolCallResult {
            content,
            is_error,
            structured_content: structured,
        };
        let bytes = canonical(&result);
        let took = std::mem::take(&mut self.took);
        let payload = ActionExecuted {
            action_id: self.request.tool.to_string(),
            attempts: self.attempts,
            duration_ms,
            execution_id: self
                .under
                .map_or_else(|| self.calls.clock().new_uuid(), |(_, execution)| execution),
            is_error,
            level: self.level.to_string(),
            mechanisms: obtained.mechanisms.to_vec(),
            missing: obtained.missing.to_vec(),
            request_hash: self.request_hash,
            request_id: self.request.request_id.as_str().to_owned(),
            result_hash: digest(&bytes),
            took,
            turn: self.caller.turn,
        };
        let key = answer_key(DedupMethod::Call, &self.request.request_id);
        let hash = payload.result_hash;
        let draft = self.calls.scribe.draft_event(&self.thread, &payload);
        self.waiting
            .push(draft.with_content(hash, bytes).with_answer_key(Some(key)));
        match self.flush().await {
            Ok(()) => Ok(result),
            Err(CallError::Journal(why)) if self.side_effects => {
                self.calls.owes.store(true, Ordering::SeqCst);
                Err(self.unrecorded_error("it ran, and its outcome", CallError::Journal(why)))
            }
            Err(error) => Err(error),
        }
    }

    /// Records that the call was refused or failed. Returns the error for the caller.
    async fn end_refused(&mut self, error: CallError, duration_ms: u64) -> CallError {
        self.settle_budget();
        self.record_refusal(&error, duration_ms);
        // A refusal is an answer. It must not be given while another host runs the same request.
        let claim = self
            .claim_key()
            .filter(|_| !self.started && self.calls.owners.is_some());
        match self.flush_claiming(claim).await {
            Ok(()) => error,
            Err(claimed @ CallError::Journal(JournalError::Unmet(_))) => claimed,
            Err(unwritten) => {
                self.calls
                    .owes
                    .fetch_or(self.started && self.side_effects, Ordering::SeqCst);
                self.unrecorded_error(&format!("{error}, and this"), unwritten)
            }
        }
    }

    /// Returns the error if the journal refuses a call's end. A call that began and has effects may have been done.
    fn unrecorded_error(&self, what: &str, why: CallError) -> CallError {
        // The host that took over has recorded it as unknown, or will. There the same request has its only answer.
        if matches!(why, CallError::Journal(JournalError::Fenced { .. })) {
            return why;
        }
        if !(self.started && self.side_effects) {
            return why;
        }
        CallError::Unknown {
            tool: self.request.tool.clone(),
            reason: format!("{what} can't be recorded: {why}"),
        }
    }

    fn record_refusal(&mut self, error: &CallError, duration_ms: u64) {
        let bytes = canonical(error);
        let result_hash = digest(&bytes);
        let request_id = self.request.request_id.as_str();
        let (request_hash, turn, action_id) =
            (self.request_hash, self.caller.turn, self.request.tool.as_str());
        let scribe = &self.calls.scribe;
        let draft = if self.started {
            let error_code = failure_code(error);
            if self.side_effects && effect::is_unknown(error_code) {
                self.effects.push(EffectChange::Unknown(OpenEffect {
                    request_id: self.request.request_id.clone(),
                    session: self.thread.session,
                    tool: self.request.tool.clone(),
                    parameters: self.parameters,
                    at: scribe.now(),
                }));
            }
            let took = std::mem::take(&mut self.took);
            let payload = ActionFailed {
                action_id: action_id.to_owned(),
                duration_ms,
                error_code: error_code.to_owned(),
                error_message: ChainText::from_code(error_code),
                request_hash,
                request_id: request_id.to_owned(),
                result_hash,
                took,
                turn,
            };
            scribe.draft_event(&self.thread, &payload)
        } else {
            let (rule_id, policy_id) = match error {
                CallError::Denied { rule_id, policy, .. } => (rule_id.as_deref(), policy.as_deref()),
                // An approval request without a yes: names the rule that asked.
                _ => self.asking_rule(),
            };
            let by = error_code(error);
            let payload = ActionDenied {
                action_id: action_id.to_owned(),
                by: by.to_owned(),
                policy_id: policy_id.map(str::to_owned),
                reason: ChainText::from_code(by),
                request_hash,
                request_id: request_id.to_owned(),
                result_hash,
                rule_id: rule_id.map(str::to_owned),
                turn,
            };
            scribe.draft_event(&self.thread, &payload)
        };
        let key = answer_key(DedupMethod::Call, &self.request.request_id);
        // A caller that waits on another host reads here that there is no answer.
        self.waiting
            .push(draft.with_content(result_hash, bytes).with_answer_key(Some(key)));
        self.disclaims = error.is_no_answer().then_some(key);
        if !self.started {
            self.waiting.extend(self.violated.take());
        }
    }

    /// Returns the rule that required an approval, with its policy.
    fn asking_rule(&self) -> (Option<&str>, Option<&str>) {
        let verdict = self.verdict.as_ref();
        (
            verdict.and_then(|v| v.rule_id.as_deref()),
            verdict.and_then(|v| v.policy.as_deref()),
        )
    }

    /// Reports the end to the client.
    pub(super) async fn notify_outcome(&self, outcome: &Result<ToolCallResult, CallError>, started_us: u64) {
        if !self.caller.notices.attached() {
            return;
        }
        for warning in &self.warned {
            self.caller
                .notices
                .send(SessionNotice::Warned(warning.to_string()))
                .await;
        }
        if !self.started
            && let Err(error) = outcome
        {
            let rule = match error {
                CallError::Denied { rule_id, .. } => rule_id.as_deref(),
                _ => self.asking_rule().0,
            };
            self.tell_decided("deny", rule, Some(error_code(error))).await;
        }
        let (is_error, text) = match outcome {
            Ok(result) => (
                result.is_error,
                result
                    .content
                    .iter()
                    .map(|b| b.as_model_text())
                    .collect::<Vec<_>>()
                    .join("\n"),
            ),
            Err(error) => (true, error.to_string()),
        };
        let summary = text
            .char_indices()
            .take_while(|(at, _)| *at < SUMMARY_BYTES)
            .map(|(_, c)| c)
            .collect();
        let notice = SessionNotice::CallFinished {
            request_id: self.request.request_id.clone(),
            tool: self.request.tool.clone(),
            is_error,
            summary,
            duration_ms: self.calls.clock().monotonic_us().saturating_sub(started_us) / 1000,
            level: self.level.clone(),
        };
        self.caller.notices.send(notice).await;
    }
}

/// Returns the trace's word for an answer.
pub(super) const fn answer_word(answer: ApprovalAnswer) -> &'static str {
    match answer {
        ApprovalAnswer::Approve => "approve",
        ApprovalAnswer::ApproveForSession => "approve-for-session",
        ApprovalAnswer::Always => "always",
        ApprovalAnswer::Deny => "deny",
    }
}
