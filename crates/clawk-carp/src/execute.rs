//! The checks of `execute`, without side effects. The caller runs the action and charges the ledger.
//!
//! ```text
//! check(…)?          alive, same session and agent, in allowed_actions, parameters fit, policy again
//! ledger.spend(…)?   takes what the grant says, all or nothing
//! run                the kernel's path, with the stricter of both verdicts
//! ```

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use clawk_proto::SessionId;
use clawk_proto::carp::{
    CarpExecution, CarpRequester, CarpResolution, CarpTask, ConstraintType, Request, RiskTier,
};
use jiff::{SignedDuration, Timestamp};
use serde_json::{Map, Value};
use uuid::Uuid;

use crate::atlas::{AtlasAction, ConditionFacts};
use crate::fault::InputFaults;
use crate::rate::{BucketSpend, RateLedger};
use crate::resolve::{ActionEvaluation, DEFAULT_POLICY, PolicyOutcome, Violation};
use crate::set::{ActionEntry, AtlasSet};
use crate::verdict::{ActionVerdict, DecisionSource, PolicyEvaluator};

/// An issued resolution, as the runtime stores it.
#[derive(Debug, Clone, PartialEq)]
pub struct IssuedResolution {
    /// Its id.
    pub resolution_id: Uuid,
    /// The session that it was issued to.
    pub session_id: SessionId,
    /// The agent that it was issued to.
    pub agent_id: String,
    /// The moment from which it is expired.
    pub expires: Timestamp,
    allowed: HashSet<Arc<str>>,
    /// Actions that wait for a person, with the policy that requires it.
    waiting: HashMap<Arc<str>, Arc<str>>,
    approved: HashMap<Arc<str>, Arc<str>>,
    /// Denied actions, with the denying policy.
    denied: HashMap<Arc<str>, Arc<str>>,
    risk_tier: RiskTier,
    capabilities: Vec<String>,
    context: Map<String, Value>,
}

impl IssuedResolution {
    /// Keeps the facts that executions need. `at`: the time of the resolution.
    #[must_use]
    pub fn new(request: &Request, resolution: &CarpResolution, at: Timestamp) -> Self {
        let ttl = SignedDuration::from_secs(i64::from(resolution.ttl_seconds));
        let none = CarpTask::default();
        let task = request.task.as_ref().unwrap_or(&none);
        let gates: HashSet<&str> = resolution
            .constraints
            .iter()
            .filter(|constraint| constraint.kind == ConstraintType::RequireApproval)
            .filter_map(|constraint| constraint.parameters.get("actions")?.as_array())
            .flatten()
            .filter_map(Value::as_str)
            .collect();
        let waiting = resolution
            .denied_actions
            .iter()
            .filter(|denied| gates.contains(&*denied.action_id))
            .filter_map(|denied| Some((Arc::clone(&denied.action_id), denied.policy_id.clone()?)));
        Self {
            resolution_id: resolution.resolution_id,
            session_id: request.requester.session_id,
            agent_id: request.requester.agent_id.clone(),
            expires: at.checked_add(ttl).unwrap_or(Timestamp::MAX),
            allowed: resolution
                .allowed_actions
                .iter()
                .map(|action| Arc::clone(&action.action_id))
                .collect(),
            waiting: waiting.collect(),
            approved: HashMap::new(),
            denied: resolution
                .denied_actions
                .iter()
                .filter(|denied| !gates.contains(&*denied.action_id))
                .filter_map(|denied| Some((Arc::clone(&denied.action_id), denied.policy_id.clone()?)))
                .collect(),
            risk_tier: task.risk_tier,
            capabilities: task.required_capabilities.clone(),
            context: request.context.clone(),
        }
    }

    /// Records a person's approval of a waiting action, for one use. Returns `false` if nothing waited; then nothing changes.
    pub fn approve_action(&mut self, action_id: &str) -> bool {
        match self.waiting.remove_entry(action_id) {
            Some((id, policy)) => self.approved.insert(id, policy).is_none(),
            None => false,
        }
    }

    /// Marks the approval of an action as used by a grant. The next execution waits for a person again.
    pub fn use_approval(&mut self, action_id: &str) {
        if let Some((id, policy)) = self.approved.remove_entry(action_id) {
            self.waiting.insert(id, policy);
        }
    }

    /// The actions that wait for a person.
    pub fn waiting_actions(&self) -> impl Iterator<Item = &str> {
        self.waiting.keys().map(|id| &**id)
    }
}

/// The permission to run an action after the ledger has been charged.
#[derive(Debug)]
pub struct ExecutionGrant<'s> {
    /// The action to run, with its time limit.
    pub action: &'s AtlasAction,
    /// The cost to charge to the agent.
    pub spends: Vec<BucketSpend>,
    /// The content of the `policy.evaluated` event.
    pub evaluation: ActionEvaluation,
    /// A person approved the run: call [`IssuedResolution::use_approval`].
    pub by_approval: bool,
}

/// Why an action does not run.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ExecutionRefusal {
    /// The resolution does not exist or has expired (404).
    #[error("the resolution is not known or no longer valid")]
    Expired,
    /// The resolution belongs to another session or agent (403). The error reveals nothing else.
    #[error("the resolution does not belong to this session")]
    Unauthorized,
    /// The resolution does not allow the action (403).
    #[error("`{action_id}` is not among the resolution's allowed actions")]
    NotAllowed {
        /// The action.
        action_id: String,
        /// The policy that denied it in the resolution, if any.
        policy_id: Option<Arc<str>>,
    },
    /// The action waits for a person's approval.
    #[error("`{action_id}` waits for approval ({policy_id})")]
    PendingApproval {
        /// The action.
        action_id: String,
        /// The policy that requires the approval.
        policy_id: Arc<str>,
        /// The content of the `policy.evaluated` event.
        evaluation: ActionEvaluation,
    },
    /// The parameters do not match the action's schema (400).
    #[error("the parameters do not fit: {0}")]
    InvalidParameters(
        /// Pointers begin with `/execution/parameters`.
        InputFaults,
    ),
    /// Policy denies the action now (403).
    #[error("denied: {}", .evaluation.reason.as_deref().unwrap_or("by policy"))]
    Denied {
        /// The deciding policy and its reason.
        evaluation: ActionEvaluation,
        /// The content of the `policy.violated` event.
        violation: Violation,
        /// If a limit refused the call: the wait before another attempt.
        retry_after_ms: Option<u64>,
    },
}

impl ExecutionRefusal {
    /// The violation that a `policy.violated` event records for this refusal; `None` if it records none.
    #[must_use]
    pub fn violation(&self) -> Option<Violation> {
        match self {
            Self::Expired | Self::PendingApproval { .. } => None,
            Self::Unauthorized | Self::NotAllowed { .. } => Some(Violation::Unauthorized),
            Self::InvalidParameters(_) => Some(Violation::InvalidParameters),
            Self::Denied { violation, .. } => Some(*violation),
        }
    }
}

/// Checks one execution (CRA PROTOCOL §3.6, all points except the accounting). `issued`: the resolution that the execution names,
/// if the runtime knows it. The context and capabilities of the resolution apply. The tier is the highest of the resolution's, the
/// request's and the action's.
///
/// # Errors
/// Why the action does not run.
pub fn check_execution<'s>(
    set: &'s AtlasSet,
    issued: Option<&IssuedResolution>,
    requester: &CarpRequester,
    task: Option<&CarpTask>,
    execution: &CarpExecution,
    now: Timestamp,
    ledger: &RateLedger,
) -> Result<ExecutionGrant<'s>, ExecutionRefusal> {
    let issued = live_resolution(issued, requester, execution, now)?;
    let entry = offered_action(set, issued, &execution.action_id)?;
    let fits = entry
        .action
        .parameters
        .check_parameters(&execution.parameters, "/execution/parameters");
    fits.map_err(ExecutionRefusal::InvalidParameters)?;
    judge_execution(set, issued, task, execution, now, ledger)
}

/// The action, if the resolution contains it.
fn offered_action<'s>(
    set: &'s AtlasSet,
    issued: &IssuedResolution,
    action_id: &str,
) -> Result<&'s ActionEntry, ExecutionRefusal> {
    let known = issued.approved.contains_key(action_id)
        || issued.waiting.contains_key(action_id)
        || issued.allowed.contains(action_id);
    // The set may have been reloaded since.
    let entry = set.entry(action_id).filter(|_| known);
    entry.ok_or_else(|| ExecutionRefusal::NotAllowed {
        action_id: action_id.to_owned(),
        policy_id: issued.denied.get(action_id).cloned(),
    })
}

/// The policies' verdict on an execution with a live resolution and valid parameters.
pub(crate) fn judge_execution<'s>(
    set: &'s AtlasSet,
    issued: &IssuedResolution,
    task: Option<&CarpTask>,
    execution: &CarpExecution,
    now: Timestamp,
    ledger: &RateLedger,
) -> Result<ExecutionGrant<'s>, ExecutionRefusal> {
    let action_id = execution.action_id.as_str();
    let entry = offered_action(set, issued, action_id)?;
    let approved = issued.approved.contains_key(action_id);
    let waits = issued.waiting.get(action_id);
    let facts = ConditionFacts {
        agent: &issued.agent_id,
        capabilities: &issued.capabilities,
        context: &issued.context,
        now,
    };
    let asked = task.map_or(RiskTier::Low, |task| task.risk_tier);
    let tier = issued.risk_tier.max(asked).max(entry.action.shown.risk_tier);
    let mut evaluator = PolicyEvaluator::new(set, facts, ledger.windows_for_agent(&issued.agent_id));
    let deciding = evaluator.decide_action(entry, tier, approved, None);
    let (verdict, policy_id, reason) = evaluator.decision_meaning(deciding);
    // An action that waited at the resolution still waits: the passing of time is not an approval.
    let (verdict, policy_id) = match (verdict, waits) {
        (ActionVerdict::Allow, Some(policy)) => (ActionVerdict::Approval, Some(Arc::clone(policy))),
        unchanged => (unchanged.0, policy_id),
    };
    let evaluation = |outcome, violation| ActionEvaluation {
        action_id: Arc::clone(&entry.action.shown.action_id),
        policy_id: policy_id.clone(),
        outcome,
        reason: reason.clone(),
        violation,
    };
    let violation = match verdict {
        ActionVerdict::Allow => {
            let passes = deciding == DecisionSource::Pass;
            let outcome = if passes {
                PolicyOutcome::NotApplicable
            } else {
                PolicyOutcome::Allow
            };
            return Ok(ExecutionGrant {
                action: &entry.action,
                spends: evaluator.action_spends(entry, tier),
                evaluation: evaluation(outcome, None),
                by_approval: approved,
            });
        }
        ActionVerdict::Approval => {
            return Err(ExecutionRefusal::PendingApproval {
                action_id: action_id.to_owned(),
                policy_id: policy_id.clone().unwrap_or_else(|| DEFAULT_POLICY.into()),
                evaluation: evaluation(PolicyOutcome::Deny, None),
            });
        }
        ActionVerdict::Deny => Violation::DeniedAction,
        ActionVerdict::Rate => Violation::RateLimit,
        ActionVerdict::Budget => Violation::Budget,
    };
    let retry_after_ms = evaluator.retry_after_ms(entry, tier, violation);
    Err(ExecutionRefusal::Denied {
        evaluation: evaluation(PolicyOutcome::Deny, Some(violation)),
        violation,
        retry_after_ms,
    })
}

/// The resolution, if it is the named one, not expired, and the caller's own.
fn live_resolution<'i>(
    issued: Option<&'i IssuedResolution>,
    requester: &CarpRequester,
    execution: &CarpExecution,
    now: Timestamp,
) -> Result<&'i IssuedResolution, ExecutionRefusal> {
    match issued {
        Some(issued) if issued.resolution_id == execution.resolution_id && now < issued.expires => {
            let own = issued.session_id == requester.session_id && issued.agent_id == requester.agent_id;
            if own {
                Ok(issued)
            } else {
                Err(ExecutionRefusal::Unauthorized)
            }
        }
        _ => Err(ExecutionRefusal::Expired),
    }
}
