//! Finds the policy that decides an action: the smallest rank whose patterns match, whose conditions hold and, for a limit, that is
//! used up.

use std::sync::Arc;

use clawk_proto::carp::RiskTier;
use jiff::Timestamp;

use crate::atlas::{ConditionFacts, Rule, tier_bit};
use crate::rate::{AgentWindows, BucketSpend};
use crate::resolve::Violation;
use crate::set::{ActionEntry, AtlasSet, RATE_LIMIT_EXCEEDED};

/// No policy decides.
const NONE: usize = usize::MAX;

/// What decided about an action.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DecisionSource {
    /// The policy with this rank.
    Policy(usize),
    /// The action's own rate limit.
    OwnLimit,
    /// No policy; the set denies actions that no policy allows.
    DefaultDeny,
    /// No policy; the set lets actions pass that no policy denies.
    Pass,
}

/// The verdict on an action.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ActionVerdict {
    Allow,
    Approval,
    Deny,
    /// A rate limit is used up.
    Rate,
    /// A budget is used up.
    Budget,
}

/// The deciding policy by pattern and tier, computed on demand.
#[derive(Debug)]
pub(crate) struct DecidingPolicies(Vec<Option<[usize; 4]>>);

impl DecidingPolicies {
    pub(crate) fn new(set: &AtlasSet) -> Self {
        Self(vec![None; set.patterns.len()])
    }
}

/// Evaluates the policies for one request.
pub(crate) struct PolicyEvaluator<'a> {
    pub(crate) set: &'a AtlasSet,
    pub(crate) facts: ConditionFacts<'a>,
    view: AgentWindows<'a>,
    /// By conditions: the tiers for which they hold, computed on demand.
    held: Vec<Option<u8>>,
    /// By tier: the scope policies and budgets in force.
    special: Option<[(u64, u64); 4]>,
}

impl<'a> PolicyEvaluator<'a> {
    pub(crate) fn new(set: &'a AtlasSet, facts: ConditionFacts<'a>, view: AgentWindows<'a>) -> Self {
        let held = vec![None; set.conditions.len()];
        Self {
            set,
            facts,
            view,
            held,
            special: None,
        }
    }

    fn now(&self) -> Timestamp {
        self.facts.now
    }

    /// The tiers for which the policy's conditions hold.
    pub(crate) fn matching_tiers(&mut self, rank: usize) -> u8 {
        let Some(id) = self.set.policies.get(rank).map(|ranked| ranked.conditions) else {
            return 0;
        };
        if let Some(Some(known)) = self.held.get(id) {
            return *known;
        }
        let tiers = self
            .set
            .conditions
            .get(id)
            .map_or(0, |conditions| conditions.matching_tiers(&self.facts));
        if let Some(slot) = self.held.get_mut(id) {
            *slot = Some(tiers);
        }
        tiers
    }

    /// The tiers for which the policy would decide. A rate limit decides only when it is used up.
    fn deciding_tiers(&mut self, rank: usize) -> u8 {
        let tiers = self.matching_tiers(rank);
        match self
            .set
            .policies
            .get(rank)
            .and_then(|ranked| ranked.bucket.as_ref())
        {
            Some(bucket) if tiers != 0 && self.view.exceeded_wait_ms(bucket, 1, self.now()).is_none() => 0,
            _ => tiers,
        }
    }

    /// By tier: the pattern's first rank that decides.
    fn first_ranks(&mut self, pattern: u32, table: &mut DecidingPolicies) -> [usize; 4] {
        let slot = usize::try_from(pattern).unwrap_or(NONE);
        if let Some(Some(known)) = table.0.get(slot) {
            return *known;
        }
        let mut out = [NONE; 4];
        let mut open = crate::atlas::EVERY_TIER;
        for &rank in self.set.pattern_ranks(pattern) {
            let fresh = self.deciding_tiers(rank) & open;
            for (tier, first) in out.iter_mut().enumerate() {
                if fresh & (1 << tier) != 0 {
                    *first = rank;
                }
            }
            open &= !fresh;
            if open == 0 {
                break;
            }
        }
        if let Some(entry) = table.0.get_mut(slot) {
            *entry = Some(out);
        }
        out
    }

    /// The scope policies and budgets whose conditions hold for the tier.
    pub(crate) fn special_policies(&mut self, tier: RiskTier) -> (u64, u64) {
        let all = match self.special {
            Some(all) => all,
            None => {
                let mut all = [(0, 0); 4];
                for (k, rank) in self.set.scopes.iter().enumerate() {
                    let tiers = self.matching_tiers(*rank);
                    for (tier, (scopes, _)) in all.iter_mut().enumerate() {
                        *scopes |= u64::from(tiers >> tier & 1) << k;
                    }
                }
                for (k, rank) in self.set.budgets.iter().enumerate() {
                    let tiers = self.matching_tiers(*rank);
                    for (tier, (_, budgets)) in all.iter_mut().enumerate() {
                        *budgets |= u64::from(tiers >> tier & 1) << k;
                    }
                }
                self.special = Some(all);
                all
            }
        };
        all.get(index(tier)).copied().unwrap_or_default()
    }

    /// What decides about the action at this tier. Pass `table` for many actions, `None` for one. `approved`: a person has
    /// approved, so approval policies are skipped.
    pub(crate) fn decide_action(
        &mut self,
        entry: &ActionEntry,
        tier: RiskTier,
        approved: bool,
        mut table: Option<&mut DecidingPolicies>,
    ) -> DecisionSource {
        let set = self.set;
        let mut best = NONE;
        for &pattern in set.matching_patterns(entry) {
            let found = match table.as_deref_mut() {
                Some(table) => self.first_ranks(pattern, table).get(index(tier)).copied(),
                None => self.first_rank_below(pattern, tier, approved, best),
            };
            best = best.min(found.unwrap_or(NONE));
        }
        let (scopes, budgets) = self.special_policies(tier);
        if let Some(rank) = set_bits(scopes & entry.outside).find_map(|k| set.scopes.get(k)) {
            best = best.min(*rank);
        }
        let [_, _, rates_end, ..] = set.class_ends;
        if best >= rates_end {
            if let Some(own) = &entry.own
                && self.view.exceeded_wait_ms(own, 1, self.now()).is_some()
            {
                return DecisionSource::OwnLimit;
            }
            let spent = set_bits(budgets & entry.budgets).find_map(|k| {
                let rank = *set.budgets.get(k)?;
                let spend = self.budget_cost(rank, entry)?;
                self.view
                    .exceeded_wait_ms(&spend.bucket, spend.amount, self.now())
                    .map(|_| rank)
            });
            best = best.min(spent.unwrap_or(NONE));
        }
        match best {
            NONE if set.default_deny => DecisionSource::DefaultDeny,
            NONE => DecisionSource::Pass,
            rank => DecisionSource::Policy(rank),
        }
    }

    /// The first deciding rank of one pattern below `best`.
    fn first_rank_below(
        &mut self,
        pattern: u32,
        tier: RiskTier,
        approved: bool,
        best: usize,
    ) -> Option<usize> {
        let [denies_end, approvals_end, ..] = self.set.class_ends;
        self.set
            .pattern_ranks(pattern)
            .iter()
            .copied()
            .take_while(|rank| *rank < best)
            .filter(|rank| !approved || !(denies_end..approvals_end).contains(rank))
            .find(|rank| self.deciding_tiers(*rank) & tier_bit(tier) != 0)
    }

    /// The amount that one call of the action takes from a budget.
    fn budget_cost(&self, rank: usize, entry: &ActionEntry) -> Option<BucketSpend> {
        let ranked = self.set.policies.get(rank)?;
        let Rule::Budget(budget) = &ranked.policy.rule else {
            return None;
        };
        let amount = budget.action_cost(&entry.action.shown.action_id);
        Some(BucketSpend {
            bucket: ranked.bucket.clone()?,
            amount,
        })
    }

    /// All amounts that one call of the action takes.
    pub(crate) fn action_spends(&mut self, entry: &ActionEntry, tier: RiskTier) -> Vec<BucketSpend> {
        let set = self.set;
        let [_, approvals_end, rates_end, ..] = set.class_ends;
        let mut ranks: Vec<usize> = set
            .matching_patterns(entry)
            .iter()
            .flat_map(|pattern| set.pattern_ranks(*pattern))
            .copied()
            .filter(|rank| (approvals_end..rates_end).contains(rank))
            .collect();
        ranks.sort_unstable();
        ranks.dedup();
        ranks.retain(|rank| self.matching_tiers(*rank) & tier_bit(tier) != 0);
        let buckets = ranks
            .iter()
            .filter_map(|rank| set.policies.get(*rank)?.bucket.clone());
        let mut out: Vec<BucketSpend> = buckets.map(|bucket| BucketSpend { bucket, amount: 1 }).collect();
        out.extend(entry.own.clone().map(|bucket| BucketSpend { bucket, amount: 1 }));
        let (_, budgets) = self.special_policies(tier);
        let costs =
            set_bits(budgets & entry.budgets).filter_map(|k| self.budget_cost(*set.budgets.get(k)?, entry));
        out.extend(costs);
        out
    }

    /// For a limit: the wait until all limits of the action allow another call.
    pub(crate) fn retry_after_ms(
        &mut self,
        entry: &ActionEntry,
        tier: RiskTier,
        violation: Violation,
    ) -> Option<u64> {
        if !matches!(violation, Violation::RateLimit | Violation::Budget) {
            return None;
        }
        let spends = self.action_spends(entry, tier);
        let waits = spends.iter().filter_map(|spend| {
            self.view
                .exceeded_wait_ms(&spend.bucket, spend.amount, self.now())
        });
        waits.max()
    }

    /// The verdict of a decision, with its policy id and reason for the resolution.
    pub(crate) fn decision_meaning(
        &self,
        deciding: DecisionSource,
    ) -> (ActionVerdict, Option<Arc<str>>, Option<Arc<str>>) {
        match deciding {
            DecisionSource::Pass => (ActionVerdict::Allow, None, None),
            DecisionSource::DefaultDeny => (ActionVerdict::Deny, None, Some("no_policy_allows".into())),
            DecisionSource::OwnLimit => (ActionVerdict::Rate, None, Some(RATE_LIMIT_EXCEEDED.into())),
            DecisionSource::Policy(rank) => match self.set.policies.get(rank) {
                None => (ActionVerdict::Deny, None, None),
                Some(ranked) => {
                    let verdict = match ranked.policy.rule {
                        Rule::Deny | Rule::Scope => ActionVerdict::Deny,
                        Rule::RequireApproval => ActionVerdict::Approval,
                        Rule::RateLimit(_) => ActionVerdict::Rate,
                        Rule::Budget(_) => ActionVerdict::Budget,
                        Rule::Allow => ActionVerdict::Allow,
                    };
                    let reason = (verdict != ActionVerdict::Allow).then(|| Arc::clone(&ranked.reason));
                    (verdict, Some(Arc::clone(&ranked.policy.id)), reason)
                }
            },
        }
    }
}

/// The index of a tier.
pub(crate) const fn index(tier: RiskTier) -> usize {
    match tier {
        RiskTier::Low => 0,
        RiskTier::Medium => 1,
        RiskTier::High => 2,
        RiskTier::Critical => 3,
    }
}

/// The positions of the set bits, ascending.
pub(crate) fn set_bits(mut word: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        if word == 0 {
            return None;
        }
        let bit = word.trailing_zeros();
        word &= word - 1;
        usize::try_from(bit).ok() // silent-ok: at most 63
    })
}
