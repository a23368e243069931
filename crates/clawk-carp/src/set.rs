//! A set of Atlases, compiled once.
//!
//! Each policy gets a rank, its position in the evaluation order (R29). A pattern that occurs in many policies is stored once with
//! a list of ranks, and each action knows the patterns that it matches. A request finds the first deciding policy of each pattern
//! once, and each action takes the smallest rank among its patterns. So the cost is never actions times patterns.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::Arc;

use crate::atlas::{Atlas, AtlasAction, Policy, PolicyConditions, Rule};
use crate::depend::{self, DependError};
use crate::glob::Pattern;
use crate::rate::RateLimitBucket;

/// The largest number of `scope` policies, and of `budget` policies, in a set.
pub const MAX_SPECIAL: usize = 64;
/// The largest number of pairs of an action and a matching pattern.
const MAX_PAIRS: usize = 8_000_000;
/// The largest work for patterns without an index: bytes of action ids times pattern weights.
const MAX_WORK: usize = 4_000_000_000;

/// The settings of a set of Atlases.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// Deny an action that no policy mentions, even if the set has no `allow` (R29's `default = "deny"`).
    pub strict: bool,
    /// The lifetime of resolutions, seconds; at most 86,400.
    pub ttl_seconds: u32,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            strict: false,
            ttl_seconds: 3600,
        }
    }
}

/// Why Atlases can't be compiled together.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SetError {
    /// Faults of dependencies.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    Depend(Vec<DependError>),
    /// Two Atlases declare the same action.
    #[error("the action `{action}` is declared by `{first}` and by `{second}`")]
    Action {
        /// The action.
        action: Arc<str>,
        /// The first Atlas.
        first: Arc<str>,
        /// The second Atlas.
        second: Arc<str>,
    },
    /// A limit is exceeded; the text names it.
    #[error("the Atlases together exceed a limit: {0}")]
    TooMuch(String),
}

/// An action of the set.
#[derive(Debug)]
pub(crate) struct ActionEntry {
    pub(crate) action: AtlasAction,
    /// The range of its patterns in `AtlasSet::matching_patterns`.
    fits: std::ops::Range<usize>,
    /// One bit per scope policy that excludes it.
    pub(crate) outside: u64,
    /// One bit per budget that covers it.
    pub(crate) budgets: u64,
    /// Its own rate limit.
    pub(crate) own: Option<RateLimitBucket>,
}

/// A policy with its rank.
#[derive(Debug)]
pub(crate) struct RankedPolicy {
    pub(crate) policy: Arc<Policy>,
    /// The index of its conditions; equal conditions are stored once.
    pub(crate) conditions: usize,
    /// The window of its limit.
    pub(crate) bucket: Option<RateLimitBucket>,
    /// The reason in `denied_actions`.
    pub(crate) reason: Arc<str>,
}

/// The parts of one Atlas.
#[derive(Debug)]
pub(crate) struct AtlasPart {
    pub(crate) actions: std::ops::Range<usize>,
    /// By capability: its actions and its packs.
    pub(crate) capabilities: HashMap<Arc<str>, (Vec<usize>, Vec<String>)>,
}

/// A compiled set.
#[derive(Debug)]
pub struct AtlasSet {
    atlases: Vec<Arc<Atlas>>,
    by_atlas: HashMap<Arc<str>, usize>,
    pub(crate) parts: Vec<AtlasPart>,
    pub(crate) actions: Vec<ActionEntry>,
    by_action: HashMap<Arc<str>, usize>,
    pub(crate) policies: Vec<RankedPolicy>,
    /// By pattern: its ranks, ascending.
    pub(crate) patterns: Vec<Vec<usize>>,
    fits: Vec<u32>,
    pub(crate) conditions: Vec<PolicyConditions>,
    /// The first rank after each policy type.
    pub(crate) class_ends: [usize; 5],
    /// The ranks of scope policies and of budgets. Bit k of an entry is the k-th one.
    pub(crate) scopes: Vec<usize>,
    pub(crate) budgets: Vec<usize>,
    /// Actions without a matching policy are denied.
    pub(crate) default_deny: bool,
    pub(crate) ttl_seconds: u32,
}

impl AtlasSet {
    /// Compiles Atlases; their order does not matter.
    ///
    /// # Errors
    /// A dependency is wrong, an action is declared twice, or a limit is exceeded.
    pub fn compile(mut atlases: Vec<Arc<Atlas>>, options: Options) -> Result<Self, SetError> {
        atlases.sort_by(|a, b| a.id.cmp(&b.id));
        depend::check_dependencies(&atlases).map_err(SetError::Depend)?;
        let by_action = collect_actions(&atlases)?;
        let policies = rank_policies(&atlases);
        let mut conditions = Vec::new();
        let mut interned: HashMap<String, usize> = HashMap::new();
        let policies: Vec<RankedPolicy> = policies
            .into_iter()
            .map(|(atlas, policy)| {
                let id = *interned.entry(policy.conditions.key()).or_insert_with(|| {
                    conditions.push(policy.conditions.clone());
                    conditions.len() - 1
                });
                ranked_policy(atlas, policy, id)
            })
            .collect();
        let mut class_ends = [0; 5];
        for (class, end) in class_ends.iter_mut().enumerate() {
            *end = policies.partition_point(|ranked| ranked.policy.rule.evaluation_class() <= class);
        }
        let index = Index::new(&policies)?;
        let has_allow = policies.iter().any(|ranked| ranked.policy.rule == Rule::Allow);
        let mut set = Self {
            by_atlas: atlases
                .iter()
                .enumerate()
                .map(|(at, atlas)| (Arc::clone(&atlas.id), at))
                .collect(),
            parts: Vec::new(),
            actions: Vec::new(),
            by_action,
            patterns: Vec::new(),
            fits: Vec::new(),
            conditions,
            class_ends,
            scopes: Vec::new(),
            budgets: Vec::new(),
            default_deny: has_allow || options.strict,
            ttl_seconds: options.ttl_seconds.min(86_400),
            atlases,
            policies,
        };
        set.add_actions(&index)?;
        set.patterns = index.ranks;
        set.scopes = index.scopes;
        set.budgets = index.budgets;
        set.add_parts();
        Ok(set)
    }

    /// The Atlases, by id.
    #[must_use]
    pub fn atlases(&self) -> &[Arc<Atlas>] {
        &self.atlases
    }

    /// An action by its id.
    #[must_use]
    pub fn action(&self, id: &str) -> Option<&AtlasAction> {
        self.entry(id).map(|entry| &entry.action)
    }

    pub(crate) fn entry(&self, id: &str) -> Option<&ActionEntry> {
        self.by_action.get(id).and_then(|at| self.actions.get(*at))
    }

    pub(crate) fn atlas_at(&self, id: &str) -> Option<usize> {
        self.by_atlas.get(id).copied()
    }

    /// The patterns that the action matches.
    pub(crate) fn matching_patterns(&self, entry: &ActionEntry) -> &[u32] {
        self.fits.get(entry.fits.clone()).unwrap_or_default()
    }

    /// The ranks of a pattern.
    pub(crate) fn pattern_ranks(&self, pattern: u32) -> &[usize] {
        usize::try_from(pattern)
            .ok()
            .and_then(|at| self.patterns.get(at))
            .map_or(&[], Vec::as_slice) // silent-ok: a u32 is a usize
    }

    fn add_actions(&mut self, index: &Index) -> Result<(), SetError> {
        let bytes: usize = self
            .atlases
            .iter()
            .flat_map(|atlas| &atlas.actions)
            .map(|action| action.shown.action_id.len())
            .sum();
        let weight: usize = index.general.iter().map(|(glob, _)| glob.match_cost()).sum();
        if bytes.saturating_mul(weight) > MAX_WORK {
            let message =
                "patterns with several wildcards, times actions; write them as `name`, `name*` or `*name`";
            return Err(SetError::TooMuch(message.to_owned()));
        }
        for atlas in &self.atlases {
            for action in &atlas.actions {
                let start = self.fits.len();
                let (inside, budgets) = index.find_patterns(&action.shown.action_id, &mut self.fits);
                if self.fits.len() > MAX_PAIRS {
                    let message = "too many different patterns fit the same actions";
                    return Err(SetError::TooMuch(message.to_owned()));
                }
                let own = action.shown.rate_limit.map(|limit| RateLimitBucket {
                    key: format!("action:{}", action.shown.action_id).into(),
                    limit: limit.max_calls,
                    window_seconds: limit.window_seconds,
                });
                self.actions.push(ActionEntry {
                    action: action.clone(),
                    fits: start..self.fits.len(),
                    outside: index.all_scopes() & !inside,
                    budgets,
                    own,
                });
            }
        }
        Ok(())
    }

    fn add_parts(&mut self) {
        let mut start = 0;
        for atlas in &self.atlases {
            let actions = start..start + atlas.actions.len();
            start = actions.end;
            let capabilities = atlas.capabilities.iter().map(|capability| {
                let mut found = Vec::new();
                for pattern in &capability.actions {
                    match pattern {
                        Pattern::Exact(id) => found.extend(self.by_action.get(id.as_ref())),
                        wild => found.extend(
                            self.actions
                                .iter()
                                .enumerate()
                                .filter(|(_, entry)| wild.matches(&entry.action.shown.action_id))
                                .map(|(at, _)| at),
                        ),
                    }
                }
                (
                    Arc::clone(&capability.id),
                    (found, capability.context_packs.clone()),
                )
            });
            self.parts.push(AtlasPart {
                actions,
                capabilities: capabilities.collect(),
            });
        }
    }
}

fn collect_actions(atlases: &[Arc<Atlas>]) -> Result<HashMap<Arc<str>, usize>, SetError> {
    let mut by_action = HashMap::new();
    let mut owners: HashMap<&str, &Arc<str>> = HashMap::new();
    for atlas in atlases {
        for action in &atlas.actions {
            let id = &action.shown.action_id;
            if let Some(first) = owners.insert(id, &atlas.id) {
                let (first, second) = (Arc::clone(first), Arc::clone(&atlas.id));
                return Err(SetError::Action {
                    action: Arc::clone(id),
                    first,
                    second,
                });
            }
            by_action.insert(Arc::clone(id), by_action.len());
        }
    }
    Ok(by_action)
}

/// All policies in evaluation order.
fn rank_policies(atlases: &[Arc<Atlas>]) -> Vec<(&Arc<str>, &Arc<Policy>)> {
    let mut all: Vec<(&Arc<str>, &Arc<Policy>)> = atlases
        .iter()
        .flat_map(|atlas| atlas.policies.iter().map(move |policy| (&atlas.id, policy)))
        .collect();
    all.sort_by_key(|(_, policy)| (policy.rule.evaluation_class(), Reverse(policy.priority)));
    all
}

fn ranked_policy(atlas: &Arc<str>, policy: &Arc<Policy>, conditions: usize) -> RankedPolicy {
    let (limit, code) = match &policy.rule {
        Rule::Deny => (None, "denied_by_policy"),
        Rule::Scope => (None, "outside_scope"),
        Rule::RequireApproval => (None, "requires_approval"),
        Rule::RateLimit(limit) => (Some((limit.max_calls, limit.window_seconds)), RATE_LIMIT_EXCEEDED),
        Rule::Budget(budget) => (
            Some((budget.max_cost_micros, budget.window_seconds)),
            BUDGET_EXCEEDED,
        ),
        Rule::Allow => (None, "allowed"),
    };
    // A used-up limit always uses the protocol's own reason.
    let given = policy.reason.clone().filter(|_| limit.is_none());
    RankedPolicy {
        policy: Arc::clone(policy),
        conditions,
        bucket: limit.map(|(limit, window_seconds)| RateLimitBucket {
            key: format!("policy:{atlas}/{}", policy.id).into(),
            limit,
            window_seconds,
        }),
        reason: given.unwrap_or_else(|| code.into()),
    }
}

/// The reason of a used-up rate limit.
pub const RATE_LIMIT_EXCEEDED: &str = "rate_limit_exceeded";
/// The reason of a used-up budget.
pub const BUDGET_EXCEEDED: &str = "budget_exceeded";

/// Patterns by the way they are found.
#[derive(Default)]
struct Index {
    /// By pattern: its ranks.
    ranks: Vec<Vec<usize>>,
    /// By pattern: one bit per scope policy and one per budget that names it.
    bits: Vec<(u64, u64)>,
    all: Option<usize>,
    exact: HashMap<Box<str>, usize>,
    prefix: HashMap<Box<str>, usize>,
    suffix: HashMap<Box<str>, usize>,
    /// The lengths that occur in `prefix` and `suffix`.
    prefix_lengths: Vec<usize>,
    suffix_lengths: Vec<usize>,
    general: Vec<(crate::glob::GlobPattern, usize)>,
    scopes: Vec<usize>,
    budgets: Vec<usize>,
}

impl Index {
    fn new(policies: &[RankedPolicy]) -> Result<Self, SetError> {
        let mut index = Self::default();
        let mut ids: HashMap<Pattern, usize> = HashMap::new();
        for (rank, ranked) in policies.iter().enumerate() {
            let (scope, budget) = match ranked.policy.rule {
                Rule::Scope => (next_bit(&mut index.scopes, rank, "scope")?, 0),
                Rule::Budget(_) => (0, next_bit(&mut index.budgets, rank, "budget")?),
                Rule::Deny | Rule::RequireApproval | Rule::RateLimit(_) | Rule::Allow => (0, 0),
            };
            let patterns = ranked.policy.actions.as_deref().unwrap_or(&[Pattern::All]);
            for pattern in patterns {
                let id = match ids.get(pattern) {
                    Some(id) => *id,
                    None => index.add_pattern(pattern, &mut ids),
                };
                if let Some(bits) = index.bits.get_mut(id) {
                    bits.0 |= scope;
                    bits.1 |= budget;
                }
                if let Some(ranks) = index.ranks.get_mut(id)
                    && scope == 0
                    && budget == 0
                    && ranks.last() != Some(&rank)
                {
                    ranks.push(rank);
                }
            }
        }
        index.prefix_lengths = key_lengths(&index.prefix);
        index.suffix_lengths = key_lengths(&index.suffix);
        Ok(index)
    }

    fn add_pattern(&mut self, pattern: &Pattern, ids: &mut HashMap<Pattern, usize>) -> usize {
        let id = self.ranks.len();
        self.ranks.push(Vec::new());
        self.bits.push((0, 0));
        match pattern {
            Pattern::All => self.all = Some(id),
            Pattern::Exact(text) => {
                self.exact.insert(text.clone(), id);
            }
            Pattern::Prefix(text) => {
                self.prefix.insert(text.clone(), id);
            }
            Pattern::Suffix(text) => {
                self.suffix.insert(text.clone(), id);
            }
            Pattern::General(glob) => self.general.push((glob.clone(), id)),
        }
        ids.insert(pattern.clone(), id);
        id
    }

    fn all_scopes(&self) -> u64 {
        (0..self.scopes.len()).fold(0, |bits, k| bits | 1u64 << k)
    }

    /// Appends the patterns that the action matches. Returns the scope policies and budgets that name it.
    fn find_patterns(&self, action: &str, fits: &mut Vec<u32>) -> (u64, u64) {
        let mut bits = (0, 0);
        let mut take = |id: Option<&usize>| {
            let Some(id) = id else { return };
            if let Some((scope, budget)) = self.bits.get(*id) {
                bits.0 |= scope;
                bits.1 |= budget;
            }
            if self.ranks.get(*id).is_some_and(|ranks| !ranks.is_empty()) {
                fits.extend(u32::try_from(*id));
            }
        };
        take(self.all.as_ref());
        take(self.exact.get(action));
        for &length in &self.prefix_lengths {
            take(action.get(..length).and_then(|head| self.prefix.get(head)));
        }
        for &length in &self.suffix_lengths {
            let start = action.len().checked_sub(length);
            take(
                start
                    .and_then(|start| action.get(start..))
                    .and_then(|tail| self.suffix.get(tail)),
            );
        }
        for (glob, id) in &self.general {
            if glob.matches(action) {
                take(Some(id));
            }
        }
        bits
    }
}

fn key_lengths(map: &HashMap<Box<str>, usize>) -> Vec<usize> {
    let mut lengths: Vec<usize> = map.keys().map(|key| key.len()).collect();
    lengths.sort_unstable();
    lengths.dedup();
    lengths
}

/// The next bit in a list of special policies.
fn next_bit(list: &mut Vec<usize>, rank: usize, kind: &str) -> Result<u64, SetError> {
    if list.len() >= MAX_SPECIAL {
        return Err(SetError::TooMuch(format!(
            "more than {MAX_SPECIAL} `{kind}` policies"
        )));
    }
    list.push(rank);
    Ok(1u64 << (list.len() - 1))
}
