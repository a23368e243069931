//! The Atlas layer of the call path (R12): the verdict of the resolution and of the current policies, and the charges.

use std::sync::Arc;

use clawk_carp::atlas::Schema;
use clawk_carp::execute::{self, ExecutionRefusal};
use clawk_carp::resolve::{ActionEvaluation, Violation};
use clawk_events::payload::CarpLimitsCharged;
use clawk_events::shape::LimitCharge;
use clawk_policy::{Approval, Effect, Verdict};
use clawk_proto::carp::CarpExecution;
use clawk_proto::content::ContentBlock;
use clawk_proto::{Digest, SessionId};
use jiff::SignedDuration;
use serde_json::{Map, Value};

use super::book::{ApprovalState, ApprovalView, PendingCarpApproval};
use super::{CarpError, CarpRuntime, LoadedAtlases, ResolutionContext, turn};
use crate::catalog::ToolCatalog;
use crate::error::{ArgumentFault, CallError, DeniedBy};
use crate::ports::RunOutcome;
use crate::sheet::CallPreview;
use crate::witness::ExactGrant;

/// Lifetime of an HTTP execution's approval request, in seconds; at most that of its resolution.
const QUESTION_SECONDS: i64 = 3_600;

/// A call that names an action.
#[derive(Debug)]
pub struct AtlasGate {
    loaded: Arc<LoadedAtlases>,
    /// The resolution under which the call is made.
    pub under: ResolutionContext,
    action_id: String,
    /// Name of the tool that runs it.
    pub tool: String,
    /// The action's own time limit, in milliseconds.
    pub timeout_ms: u64,
    confirm: bool,
    /// The action is declared idempotent.
    pub idempotent: bool,
    /// The schema of its results.
    returns: Arc<Schema>,
}

/// The Atlases' judgement of one call.
#[derive(Debug)]
pub struct AtlasJudgement {
    /// The verdict.
    pub verdict: Verdict,
    /// The evaluation of the action, for the trace.
    pub evaluation: Option<ActionEvaluation>,
    /// The violated rule of a denial.
    pub violation: Option<Violation>,
    /// The complete error, if the verdict is a refusal.
    refused: Option<CallError>,
    /// The Atlas requires a person's approval.
    pub asks: bool,
}

impl AtlasJudgement {
    /// Returns the Atlas's own error, if the Atlas refused.
    pub fn reword_error(&self, error: CallError) -> CallError {
        let ours = matches!(
            &error,
            CallError::Denied {
                by: DeniedBy::Atlas,
                ..
            }
        );
        self.refused.clone().filter(|_| ours).unwrap_or(error)
    }
}

fn denied_error(
    action_id: &str,
    reason: String,
    policy: Option<&str>,
    retry_after_ms: Option<u64>,
) -> CallError {
    CallError::Denied {
        tool: action_id.chars().take(255).collect(),
        by: DeniedBy::Atlas,
        rule_id: None,
        policy: policy.map(str::to_owned),
        reason,
        retry_after_ms,
    }
}

impl AtlasGate {
    /// Makes the gate of a call that names an action. A call without a resolution gets its own.
    ///
    /// # Errors
    /// The name is a tool that only actions may use, nothing runs the action, or the resolution fails.
    pub async fn for_call(
        (carp, catalog): (&CarpRuntime, &ToolCatalog),
        session: SessionId,
        (name, under): (&str, Option<&ResolutionContext>),
    ) -> Result<Option<Self>, CallError> {
        let loaded = carp.loaded_atlases();
        let Some(action) = loaded.set.action(name) else {
            if loaded.executors.contains(name) {
                let reason = "an Atlas governs it: call the action that it runs".to_owned();
                return Err(denied_error(name, reason, None, None));
            }
            return Ok(None);
        };
        let action_id = action.shown.action_id.to_string();
        let (timeout_ms, confirm, idempotent) = (
            action.timeout_seconds.saturating_mul(1000),
            action.shown.requires_confirmation,
            action.shown.idempotent,
        );
        let returns = Arc::clone(&action.returns);
        let tool = carp
            .tool_of(action, catalog)
            .ok_or_else(|| CallError::Unavailable {
                tool: action_id.clone(),
                reason: "nothing here runs this action; its `executor` names no tool of this agent"
                    .to_owned(),
            })?;
        let under = match under {
            Some(under) => under.clone(),
            None => turn::for_call(carp, session, &action_id)
                .await
                .map_err(|error| unresolved_error(&action_id, &error))?,
        };
        Ok(Some(Self {
            loaded,
            under,
            action_id,
            tool,
            timeout_ms,
            confirm,
            idempotent,
            returns,
        }))
    }

    /// Validates a result. If it does not match the action's `returns_schema`, it becomes an error with the place; the result stays
    /// readable. A result without structured content is validated by its text, read as JSON.
    pub fn judge_result(&self, mut ran: RunOutcome) -> RunOutcome {
        if ran.is_error || self.returns.takes_anything() {
            return ran;
        }
        let text = || {
            let texts: Vec<String> = ran.content.iter().map(ContentBlock::as_model_text).collect();
            let text = texts.join("\n");
            serde_json::from_str(&text).unwrap_or(Value::String(text)) // silent-ok: what is not JSON is a text
        };
        let value = ran.structured.clone().unwrap_or_else(text);
        let Err(faults) = self.returns.check_value(&value, "") else {
            return ran;
        };
        let places = faults.errors.iter().take(8).map(|fault| {
            let at = if fault.path.is_empty() { "/" } else { &fault.path };
            format!("at `{at}`: {}", fault.message)
        });
        let message = format!(
            "action `{}` ran, but its result does not fit its `returns_schema`: {}",
            self.action_id,
            places.collect::<Vec<_>>().join("; ")
        );
        ran.is_error = true;
        ran.content.insert(0, ContentBlock::text(message));
        ran
    }

    /// Returns the number of Atlas changes before its set.
    pub fn atlas_changes(&self) -> u64 {
        self.loaded.changes
    }

    fn build_execution(&self, arguments: &Map<String, Value>) -> CarpExecution {
        CarpExecution {
            resolution_id: self.under.resolution,
            action_id: self.action_id.clone(),
            parameters: arguments.clone(),
            idempotency_key: None,
        }
    }

    /// Asks the resolution and the policies, without charging limits (R29).
    ///
    /// # Errors
    /// The arguments do not match the action's schema.
    pub fn judge_call(
        &self,
        carp: &CarpRuntime,
        arguments: &Map<String, Value>,
    ) -> Result<AtlasJudgement, CallError> {
        let execution = self.build_execution(arguments);
        let (requester, task) = (&self.under.requester, self.under.task.as_ref());
        let at = carp.now();
        let mut books = carp.lock_sessions();
        let (book, ledger) = books.session_and_ledger(requester.session_id);
        let issued = book
            .as_deref()
            .and_then(|book| book.find_resolution(execution.resolution_id));
        let checked =
            execute::check_execution(&self.loaded.set, issued, requester, task, &execution, at, ledger);
        match checked {
            Ok(grant) => {
                let mut verdict = Verdict::allow();
                verdict.policy = grant.evaluation.policy_id.clone();
                if self.confirm {
                    verdict.effect = Effect::Ask(Approval::default());
                    verdict.reason = Some("the action asks for confirmation each time".into());
                }
                Ok(AtlasJudgement {
                    verdict,
                    evaluation: Some(grant.evaluation),
                    violation: None,
                    refused: None,
                    asks: false,
                })
            }
            Err(refusal) => self.refused_judgement(refusal),
        }
    }

    fn refused_judgement(&self, refusal: ExecutionRefusal) -> Result<AtlasJudgement, CallError> {
        let violation = refusal.violation();
        let text = refusal.to_string();
        let deny = |evaluation: Option<ActionEvaluation>, reason: String, retry_after_ms| {
            let policy = evaluation.as_ref().and_then(|found| found.policy_id.clone());
            let mut verdict = Verdict::deny(reason.clone());
            verdict.policy.clone_from(&policy);
            AtlasJudgement {
                verdict,
                refused: Some(denied_error(
                    &self.action_id,
                    reason,
                    policy.as_deref(),
                    retry_after_ms,
                )),
                evaluation,
                violation,
                asks: false,
            }
        };
        Ok(match refusal {
            ExecutionRefusal::InvalidParameters(faults) => return Err(self.invalid_arguments(faults)),
            ExecutionRefusal::PendingApproval {
                policy_id,
                evaluation,
                ..
            } => {
                let mut verdict = Verdict::allow();
                verdict.effect = Effect::Ask(Approval::default());
                verdict.reason = evaluation.reason.clone();
                verdict.policy = Some(policy_id);
                AtlasJudgement {
                    verdict,
                    evaluation: Some(evaluation),
                    violation: None,
                    refused: None,
                    asks: true,
                }
            }
            ExecutionRefusal::Denied {
                evaluation,
                retry_after_ms,
                ..
            } => {
                let reason = evaluation
                    .reason
                    .as_deref()
                    .unwrap_or("denied_by_policy")
                    .to_owned();
                deny(Some(evaluation), reason, retry_after_ms)
            }
            ExecutionRefusal::NotAllowed { policy_id, .. } => {
                let mut judged = deny(None, text.clone(), None);
                judged.verdict.policy.clone_from(&policy_id);
                judged.refused = Some(denied_error(&self.action_id, text, policy_id.as_deref(), None));
                judged
            }
            ExecutionRefusal::Expired | ExecutionRefusal::Unauthorized => deny(None, text, None),
        })
    }

    fn invalid_arguments(&self, faults: clawk_carp::InputFaults) -> CallError {
        let base = "/execution/parameters";
        let faults = faults.errors.into_iter().take(16).map(|fault| ArgumentFault {
            path: fault
                .path
                .strip_prefix(base)
                .map(str::to_owned)
                .unwrap_or(fault.path),
            message: fault.message,
        });
        CallError::InvalidArguments {
            tool: self.action_id.clone(),
            faults: faults.collect(),
        }
    }

    /// Charges all limits of the execution, or none, at the moment of the decision. `approved`: a person has approved what the
    /// Atlas required.
    ///
    /// # Errors
    /// A limit was used up meanwhile, or the policies now decide differently.
    pub fn charge_execution(
        &self,
        carp: &CarpRuntime,
        arguments: &Map<String, Value>,
        approved: bool,
    ) -> Result<Option<CarpLimitsCharged>, CallError> {
        let execution = self.build_execution(arguments);
        let ResolutionContext {
            requester,
            task,
            resolution,
            ..
        } = &self.under;
        let at = carp.now();
        let mut books = carp.lock_sessions();
        let (book, ledger) = books.session_and_ledger(requester.session_id);
        let Some(book) = book else {
            return Err(denied_error(
                &self.action_id,
                ExecutionRefusal::Expired.to_string(),
                None,
                None,
            ));
        };
        if approved && let Some(issued) = book.issued_mut(*resolution) {
            issued.approve_action(&self.action_id);
        }
        let issued = book.find_resolution(*resolution);
        let checked = execute::check_execution(
            &self.loaded.set,
            issued,
            requester,
            task.as_ref(),
            &execution,
            at,
            ledger,
        );
        if approved && let Some(issued) = book.issued_mut(*resolution) {
            issued.use_approval(&self.action_id);
        }
        let grant = checked.map_err(|refusal| {
            let reason = refusal.to_string();
            denied_error(&self.action_id, reason, None, None)
        })?;
        ledger
            .spend(&requester.agent_id, &grant.spends, at)
            .map_err(|error| {
                let wait = match &error {
                    clawk_carp::rate::SpendError::Exceeded { retry_after_ms, .. } => Some(*retry_after_ms),
                    clawk_carp::rate::SpendError::Full => None,
                };
                denied_error(
                    &self.action_id,
                    clawk_carp::set::RATE_LIMIT_EXCEEDED.to_owned(),
                    None,
                    wait,
                )
            })?;
        let spends: Vec<LimitCharge> = grant
            .spends
            .iter()
            .map(|spend| LimitCharge {
                amount: spend.amount,
                key: spend.bucket.key.to_string(),
                limit: spend.bucket.limit,
                window_seconds: spend.bucket.window_seconds,
            })
            .collect();
        Ok((!spends.is_empty()).then(|| CarpLimitsCharged {
            action_id: self.action_id.clone(),
            agent_id: requester.agent_id.clone(),
            session_id: requester.session_id.0,
            spends,
        }))
    }
}

fn unresolved_error(action_id: &str, error: &CarpError) -> CallError {
    match error {
        CarpError::Journal(error) => CallError::Journal(error.clone()),
        other => denied_error(action_id, other.to_string(), None, None),
    }
}

/// The state of an approval request whose caller does not wait.
#[derive(Debug)]
pub enum DeferredApproval {
    /// A person approved exactly this call, as it was shown.
    Approved {
        /// The person.
        by: String,
        /// What the person saw.
        shown: ExactGrant,
    },
    /// A person denied it.
    Denied {
        /// The person.
        by: String,
        /// The reason that the person gave.
        reason: Option<String>,
    },
    /// It still waits.
    Waits(ApprovalView),
}

/// Makes an approval request whose caller does not wait (HTTP), or finds its answer. A yes is valid once, for these parameters.
pub fn defer_approval(
    carp: &CarpRuntime,
    under: &ResolutionContext,
    action_id: &str,
    parameters: Digest,
    verdict: &Verdict,
    (shown, sheet): (ExactGrant, Arc<CallPreview>),
) -> Result<DeferredApproval, CallError> {
    let at = carp.now();
    let mut books = carp.lock_sessions();
    if let Some(answered) = books.take_answer(under, action_id, parameters, at) {
        let (by, reason) = answered.answered_by.unwrap_or_default();
        return Ok(match answered.view.state {
            ApprovalState::Approved => DeferredApproval::Approved {
                by,
                shown: answered.shown,
            },
            ApprovalState::Denied | ApprovalState::Pending => DeferredApproval::Denied { by, reason },
        });
    }
    let session = under.requester.session_id;
    let expires = at
        .checked_add(SignedDuration::from_secs(QUESTION_SECONDS))
        .unwrap_or(at); // silent-ok: beyond the calendar nothing can be asked
    let expires = match books
        .get(session)
        .and_then(|book| book.find_resolution(under.resolution))
    {
        Some(issued) => expires.min(issued.expires),
        None => expires,
    };
    let view = ApprovalView {
        id: carp.new_uuid(),
        session,
        resolution: under.resolution,
        action_id: action_id.to_owned(),
        parameters,
        reason: verdict
            .reason
            .as_deref()
            .unwrap_or("a policy asks for approval")
            .to_owned(),
        policy_id: verdict
            .policy
            .as_deref()
            .or(verdict.rule_id.as_deref())
            .map(str::to_owned),
        state: ApprovalState::Pending,
        expires_at: format!("{expires:.6}"),
        sheet,
    };
    let waiting = PendingCarpApproval {
        view,
        expires,
        shown,
        answered_by: None,
    };
    books
        .put_question(waiting, at)
        .map(DeferredApproval::Waits)
        .map_err(|error| denied_error(action_id, error.to_string(), None, None))
}
