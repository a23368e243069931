//! `resolve`: decides what the agent may see and do for a request. A pure function of the set, the request, the time, the ids and
//! the amounts already spent.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use clawk_proto::carp::{
    CARP_VERSION, CarpConstraint, CarpResolution, CarpTask, ConstraintType, ContextBlock, Decision,
    DecisionType, DeniedAction, Request,
};
use jiff::{SignedDuration, Timestamp};
use serde::Serialize;
use serde_json::{Map, Value, json};
use uuid::Uuid;

use crate::atlas::{ConditionFacts, Rule, tier_bit};
use crate::rate::RateLedger;
use crate::set::AtlasSet;
use crate::verdict::{ActionVerdict, DecidingPolicies, DecisionSource, PolicyEvaluator, set_bits};

/// The `policy_id` of an evaluation that no policy decided.
pub const DEFAULT_POLICY: &str = "default";

/// Ids for one resolution; UUIDv7 (R30).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ResolutionIds {
    /// The id of the resolution.
    pub resolution: Uuid,
    /// The id of the approval, if one is needed.
    pub approval: Uuid,
    /// The id of the session's trace.
    pub trace: Uuid,
}

/// The result that a `policy.evaluated` event records.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum PolicyOutcome {
    /// A policy allows the action.
    Allow,
    /// A policy or the default denies the action, or a person must approve it first.
    Deny,
    /// No policy applied, and the action passes.
    NotApplicable,
}

/// The `violation_type` of a `policy.violated` event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Violation {
    /// A rate limit is used up.
    RateLimit,
    /// A budget is used up.
    Budget,
    /// A policy denies the action.
    DeniedAction,
    /// The parameters do not match the schema.
    InvalidParameters,
    /// The resolution is another agent's, or does not contain the action.
    Unauthorized,
}

/// The decision about one candidate action.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ActionEvaluation {
    /// The candidate.
    pub action_id: Arc<str>,
    /// The deciding policy, if any.
    pub policy_id: Option<Arc<str>>,
    /// The result.
    pub outcome: PolicyOutcome,
    /// The reason, if it was not allowed.
    pub reason: Option<Arc<str>>,
    /// The violation for a `policy.violated` event: a used-up limit.
    pub violation: Option<Violation>,
}

/// The payload of a `policy.evaluated` event, in canonical order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct PolicyEvaluated<'a> {
    /// The candidate.
    pub action_id: &'a str,
    /// The number of changes of Atlases over the API at the time of an execution's verdict; `None`: no change, or not an execution.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub atlas_changes: Option<u64>,
    /// The deciding policy, or [`DEFAULT_POLICY`].
    pub policy_id: &'a str,
    /// The result.
    pub result: PolicyOutcome,
}

impl ActionEvaluation {
    /// The payload of the `policy.evaluated` event.
    #[must_use]
    pub fn payload(&self) -> PolicyEvaluated<'_> {
        PolicyEvaluated {
            action_id: &self.action_id,
            atlas_changes: None,
            policy_id: self.policy_id.as_deref().unwrap_or(DEFAULT_POLICY),
            result: self.outcome,
        }
    }

    /// Appends the payload as canonical JSON.
    pub fn write_payload(&self, out: &mut Vec<u8>) {
        // silent-ok: writing texts into a vector can't fail
        let _ = serde_json::to_writer(out, &self.payload());
    }
}

/// A resolution and its evaluations.
#[derive(Debug, Clone, PartialEq)]
pub struct ExplainedResolution {
    /// The resolution.
    pub resolution: CarpResolution,
    /// One evaluation per candidate, in candidate order.
    pub evaluations: Vec<ActionEvaluation>,
}

/// Why a request can't be resolved.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ResolveError {
    /// The request names Atlases that are not loaded.
    #[error("no such Atlas: {}", .0.join(", "))]
    UnknownAtlas(
        /// Their ids.
        Vec<String>,
    ),
    /// The request has no task.
    #[error("a request to resolve needs a `task`")]
    NoTask,
}

/// Resolves a request.
///
/// # Errors
/// The request names an unknown Atlas or has no task.
pub fn resolve_request(
    set: &AtlasSet,
    request: &Request,
    now: Timestamp,
    ids: ResolutionIds,
    ledger: &RateLedger,
) -> Result<ExplainedResolution, ResolveError> {
    let task = request.task.as_ref().ok_or(ResolveError::NoTask)?;
    let selected = select_atlases(set, &request.atlas_ids).map_err(ResolveError::UnknownAtlas)?;
    let agent = &request.requester.agent_id;
    let facts = ConditionFacts {
        agent,
        capabilities: &task.required_capabilities,
        context: &request.context,
        now,
    };
    let candidates = candidate_actions(set, &selected, task);
    let mut evaluator = PolicyEvaluator::new(set, facts, ledger.windows_for_agent(agent));
    let mut tally = ResolutionTally::new(set, candidates.actions.len());
    for at in &candidates.actions {
        if let Some(entry) = set.actions.get(*at) {
            let tier = task.risk_tier.max(entry.action.shown.risk_tier);
            let deciding = evaluator.decide_action(entry, tier, false, Some(&mut tally.firsts));
            tally.add_action(&evaluator, entry, tier_bit(tier), deciding);
        }
    }
    let constraints = tally.constraints(&mut evaluator, ledger);
    let decision = tally.decision(set, &candidates, ids, now);
    let resolution = CarpResolution {
        carp_version: CARP_VERSION.to_owned(),
        resolution_id: ids.resolution,
        request_id: request.request_id,
        timestamp: format_timestamp(now),
        decision,
        context_blocks: context_blocks(set, &selected, task, &facts),
        allowed_actions: tally.allowed,
        denied_actions: tally.denied,
        constraints,
        ttl_seconds: set.ttl_seconds,
        trace_id: ids.trace,
    };
    Ok(ExplainedResolution {
        resolution,
        evaluations: tally.evaluations,
    })
}

/// RFC 3339, UTC, microseconds, `Z`.
pub(crate) fn format_timestamp(at: Timestamp) -> String {
    format!("{at:.6}")
}

/// The positions of the Atlases that the request names, in its order; all, by id, if it names none. The error lists unknown ones.
pub(crate) fn select_atlases(set: &AtlasSet, ids: &[String]) -> Result<Vec<usize>, Vec<String>> {
    if ids.is_empty() {
        return Ok((0..set.parts.len()).collect());
    }
    let mut seen = HashSet::new();
    let mut out = Vec::new();
    let mut unknown = Vec::new();
    for id in ids {
        match set.atlas_at(id) {
            Some(at) if seen.insert(at) => out.push(at),
            Some(_) => {}
            None => unknown.push(id.clone()),
        }
    }
    if unknown.is_empty() { Ok(out) } else { Err(unknown) }
}

pub(crate) struct CandidateActions {
    actions: Vec<usize>,
    pub(crate) unknown_capabilities: Vec<String>,
}

pub(crate) fn candidate_actions(set: &AtlasSet, selected: &[usize], task: &CarpTask) -> CandidateActions {
    let parts = || selected.iter().filter_map(|at| set.parts.get(*at));
    let all = parts().flat_map(|part| part.actions.clone());
    let mut unknown_capabilities = Vec::new();
    if task.required_capabilities.is_empty() {
        return CandidateActions {
            actions: all.collect(),
            unknown_capabilities,
        };
    }
    let mut wanted = vec![false; set.actions.len()];
    for id in &task.required_capabilities {
        let mut known = false;
        for (actions, _) in parts().filter_map(|part| part.capabilities.get(id.as_str())) {
            known = true;
            for at in actions {
                if let Some(flag) = wanted.get_mut(*at) {
                    *flag = true;
                }
            }
        }
        if !known {
            unknown_capabilities.push(id.clone());
        }
    }
    let actions = all.filter(|at| wanted.get(*at) == Some(&true)).collect();
    CandidateActions {
        actions,
        unknown_capabilities,
    }
}

/// The context: packs whose conditions hold for the task's tier, or that a hint names; highest priority first.
fn context_blocks(
    set: &AtlasSet,
    selected: &[usize],
    task: &CarpTask,
    facts: &ConditionFacts<'_>,
) -> Vec<Arc<ContextBlock>> {
    let mut packs = Vec::new();
    for at in selected {
        let (Some(atlas), Some(part)) = (set.atlases().get(*at), set.parts.get(*at)) else {
            continue;
        };
        let asked: HashSet<&str> = task
            .required_capabilities
            .iter()
            .filter_map(|id| part.capabilities.get(id.as_str()))
            .flat_map(|(_, packs)| packs.iter().map(String::as_str))
            .collect();
        for pack in &atlas.packs {
            let hinted = task.context_hints.iter().any(|hint| **hint == *pack.id);
            let wanted =
                task.required_capabilities.is_empty() || !pack.in_capability || asked.contains(&*pack.id);
            if hinted || (wanted && pack.conditions.matching_tiers(facts) & tier_bit(task.risk_tier) != 0) {
                packs.push(pack);
            }
        }
    }
    // A stable sort: with equal priorities, the order of Atlases, packs and files remains.
    packs.sort_by_key(|pack| std::cmp::Reverse(pack.priority));
    packs
        .iter()
        .flat_map(|pack| pack.blocks.iter().cloned())
        .collect()
}

/// The intermediate result for all candidates.
struct ResolutionTally {
    firsts: DecidingPolicies,
    evaluations: Vec<ActionEvaluation>,
    allowed: Vec<Arc<clawk_proto::carp::AllowedAction>>,
    denied: Vec<DeniedAction>,
    /// Approval policies, with the actions that wait for them.
    approvals: BTreeMap<usize, Vec<Arc<str>>>,
    /// Allow policies that decided.
    allows: HashSet<usize>,
    /// By pattern: the tiers at which an allowed action matches it.
    touched: Vec<u8>,
    /// The tiers of all candidates.
    tiers: u8,
    /// Budgets that cover an allowed action.
    budgets: u64,
}

impl ResolutionTally {
    fn new(set: &AtlasSet, candidates: usize) -> Self {
        Self {
            firsts: DecidingPolicies::new(set),
            evaluations: Vec::with_capacity(candidates),
            allowed: Vec::with_capacity(candidates),
            denied: Vec::new(),
            approvals: BTreeMap::new(),
            allows: HashSet::new(),
            touched: vec![0; set.patterns.len()],
            tiers: 0,
            budgets: 0,
        }
    }

    fn add_action(
        &mut self,
        evaluator: &PolicyEvaluator<'_>,
        entry: &crate::set::ActionEntry,
        tier: u8,
        deciding: DecisionSource,
    ) {
        self.tiers |= tier;
        let (verdict, policy_id, reason) = evaluator.decision_meaning(deciding);
        let action_id = Arc::clone(&entry.action.shown.action_id);
        if verdict == ActionVerdict::Allow {
            for pattern in evaluator.set.matching_patterns(entry) {
                let slot = usize::try_from(*pattern)
                    .ok()
                    .and_then(|at| self.touched.get_mut(at)); // silent-ok: a u32 is a usize
                if let Some(touched) = slot {
                    *touched |= tier;
                }
            }
            self.budgets |= entry.budgets;
            if let DecisionSource::Policy(rank) = deciding {
                self.allows.insert(rank);
            }
            self.allowed.push(Arc::clone(&entry.action.shown));
        } else {
            if let (ActionVerdict::Approval, DecisionSource::Policy(rank)) = (&verdict, deciding) {
                self.approvals
                    .entry(rank)
                    .or_default()
                    .push(Arc::clone(&action_id));
            }
            self.denied.push(DeniedAction {
                action_id: Arc::clone(&action_id),
                reason: reason.clone().unwrap_or_else(|| "denied_by_policy".into()),
                policy_id: policy_id.clone(),
            });
        }
        self.evaluations.push(ActionEvaluation {
            action_id,
            outcome: match (&verdict, deciding) {
                (ActionVerdict::Allow, DecisionSource::Pass) => PolicyOutcome::NotApplicable,
                (ActionVerdict::Allow, _) => PolicyOutcome::Allow,
                (
                    ActionVerdict::Approval
                    | ActionVerdict::Deny
                    | ActionVerdict::Rate
                    | ActionVerdict::Budget,
                    _,
                ) => PolicyOutcome::Deny,
            },
            policy_id,
            reason,
            violation: match verdict {
                ActionVerdict::Rate => Some(Violation::RateLimit),
                ActionVerdict::Budget => Some(Violation::Budget),
                ActionVerdict::Allow | ActionVerdict::Approval | ActionVerdict::Deny => None,
            },
        });
    }

    fn decision(
        &self,
        set: &AtlasSet,
        candidates: &CandidateActions,
        ids: ResolutionIds,
        now: Timestamp,
    ) -> Decision {
        let unknown = &candidates.unknown_capabilities;
        let missing = (!unknown.is_empty()).then(|| format!("unknown capability: {}", unknown.join(", ")));
        let counts = || {
            format!(
                "{} of {} actions are allowed",
                self.allowed.len(),
                self.evaluations.len()
            )
        };
        let awaits = !self.approvals.is_empty();
        let (kind, reason) = match (self.allowed.is_empty(), self.denied.is_empty()) {
            (true, _) if awaits => (
                DecisionType::RequiresApproval,
                missing.or_else(|| self.approval_reason()),
            ),
            (true, true) => (
                DecisionType::Deny,
                missing.or_else(|| Some("no action is available".to_owned())),
            ),
            (true, false) => (DecisionType::Deny, missing.or_else(|| self.deny_reason())),
            (false, true) if missing.is_none() => (DecisionType::Allow, None),
            (false, _) => (DecisionType::Partial, missing.or_else(|| Some(counts()))),
        };
        let ttl = SignedDuration::from_secs(i64::from(set.ttl_seconds));
        let expires = now.checked_add(ttl).unwrap_or(Timestamp::MAX);
        let asks = kind == DecisionType::RequiresApproval;
        Decision {
            kind,
            reason,
            approval_id: asks.then(|| ids.approval.to_string()),
            expires_at: asks.then(|| format_timestamp(expires)),
        }
    }

    /// The reason of the approval, if all approvals have the same.
    fn approval_reason(&self) -> Option<String> {
        let mut reasons = self.denied.iter().map(|denied| &denied.reason);
        let first = reasons.next()?;
        reasons.all(|reason| reason == first).then(|| first.to_string())
    }

    fn deny_reason(&self) -> Option<String> {
        self.approval_reason()
            .or_else(|| Some("no action is allowed".to_owned()))
    }

    /// The constraints that apply to executions, in policy order.
    fn constraints(&self, evaluator: &mut PolicyEvaluator<'_>, ledger: &RateLedger) -> Vec<CarpConstraint> {
        let set = evaluator.set;
        let [_, approvals_end, rates_end, ..] = set.class_ends;
        let mut ranks: Vec<usize> = self.approvals.keys().copied().collect();
        ranks.extend(
            set.scopes
                .iter()
                .copied()
                .filter(|rank| evaluator.matching_tiers(*rank) & self.tiers != 0),
        );
        for (ranks_of, touched) in set
            .patterns
            .iter()
            .zip(&self.touched)
            .filter(|(_, touched)| **touched != 0)
        {
            let from = ranks_of.partition_point(|rank| *rank < approvals_end);
            let rates = ranks_of
                .iter()
                .skip(from)
                .copied()
                .take_while(|rank| *rank < rates_end);
            ranks.extend(rates.filter(|rank| evaluator.matching_tiers(*rank) & touched != 0));
        }
        let budgets = set_bits(self.budgets).filter_map(|k| set.budgets.get(k).copied());
        ranks.extend(budgets.filter(|rank| evaluator.matching_tiers(*rank) & self.tiers != 0));
        ranks.extend(self.allows.iter().copied().filter(|rank| {
            set.policies
                .get(*rank)
                .is_some_and(|ranked| ranked.policy.conditions.time_window.is_some())
        }));
        ranks.sort_unstable();
        ranks.dedup();
        let facts = evaluator.facts;
        ranks
            .into_iter()
            .filter_map(|rank| self.policy_constraint(set, rank, &facts, ledger))
            .collect()
    }

    fn policy_constraint(
        &self,
        set: &AtlasSet,
        rank: usize,
        facts: &ConditionFacts<'_>,
        ledger: &RateLedger,
    ) -> Option<CarpConstraint> {
        let ranked = set.policies.get(rank)?;
        let policy = &ranked.policy;
        let left = ranked.bucket.as_ref().map_or(0, |bucket| {
            bucket
                .limit
                .saturating_sub(ledger.used_amount(facts.agent, bucket, facts.now))
        });
        let patterns = || match &policy.actions {
            None => json!(["*"]),
            Some(patterns) => patterns
                .iter()
                .map(|pattern| json!(pattern.text()))
                .collect::<Value>(),
        };
        let mut parameters = Map::new();
        let mut put = |key: &str, value: Value| parameters.insert(key.to_owned(), value);
        put("policy_id", json!(policy.id));
        let kind = match &policy.rule {
            Rule::Deny => return None,
            Rule::Scope => {
                put("actions", patterns());
                ConstraintType::Scope
            }
            Rule::RequireApproval => {
                put("actions", json!(self.approvals.get(&rank)));
                ConstraintType::RequireApproval
            }
            Rule::RateLimit(limit) => {
                put("actions", patterns());
                put("max_calls", json!(limit.max_calls));
                put("window_seconds", json!(limit.window_seconds));
                put("remaining", json!(left));
                ConstraintType::RateLimit
            }
            Rule::Budget(budget) => {
                put("actions", patterns());
                put("max_cost_micros", json!(budget.max_cost_micros));
                put("window_seconds", json!(budget.window_seconds));
                put("remaining_micros", json!(left));
                ConstraintType::Budget
            }
            Rule::Allow => {
                parameters.extend(policy.conditions.time_window.as_ref()?.parameters());
                ConstraintType::TimeWindow
            }
        };
        Some(CarpConstraint {
            constraint_id: policy.id.to_string(),
            kind,
            parameters,
        })
    }
}
