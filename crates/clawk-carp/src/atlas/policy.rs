//! Policies, and the conditions that policies and context packs share.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use clawk_proto::carp::{RateLimit, RiskTier};
use serde_json::{Map, Value};

use super::bounds;
use crate::fault::{FaultCollector, InputPath, LengthBounds, nearest_word};
use crate::glob::Pattern;
use crate::window::TimeWindow;

/// The longest window of a limit, seconds: a year.
const MAX_WINDOW_SECONDS: u64 = 366 * 86_400;

/// The conditions under which a policy applies. Every key that is present must match. A list matches if one of its entries does.
#[derive(Debug, Clone, Default)]
pub struct PolicyConditions {
    /// One bit per tier (bit 0: low); `None`: all tiers.
    tiers: Option<u8>,
    agents: Option<Vec<Pattern>>,
    capabilities: Option<Vec<String>>,
    context: BTreeMap<String, String>,
    /// Only at these hours.
    pub time_window: Option<TimeWindow>,
}

/// The facts of a request that conditions check.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ConditionFacts<'r> {
    pub(crate) agent: &'r str,
    pub(crate) capabilities: &'r [String],
    pub(crate) context: &'r Map<String, Value>,
    pub(crate) now: jiff::Timestamp,
}

/// The bit of a tier.
pub(crate) const fn tier_bit(tier: RiskTier) -> u8 {
    match tier {
        RiskTier::Low => 1,
        RiskTier::Medium => 2,
        RiskTier::High => 4,
        RiskTier::Critical => 8,
    }
}

/// All tiers.
pub(crate) const EVERY_TIER: u8 = 0b1111;

impl PolicyConditions {
    /// The tiers for which all conditions hold, as bits; 0 if another condition fails.
    pub(crate) fn matching_tiers(&self, facts: &ConditionFacts<'_>) -> u8 {
        let agent = self
            .agents
            .as_ref()
            .is_none_or(|agents| agents.iter().any(|pattern| pattern.matches(facts.agent)));
        let capability = self
            .capabilities
            .as_ref()
            .is_none_or(|wanted| wanted.iter().any(|id| facts.capabilities.contains(id)));
        let holds = agent
            && capability
            && self
                .context
                .iter()
                .all(|(key, wanted)| facts.context.get(key).and_then(Value::as_str) == Some(wanted))
            && self
                .time_window
                .as_ref()
                .is_none_or(|window| window.contains(facts.now));
        if holds {
            self.tiers.unwrap_or(EVERY_TIER)
        } else {
            0
        }
    }

    /// A key for the conditions: equal texts mean equal conditions.
    pub(crate) fn key(&self) -> String {
        format!(
            "{:?}|{:?}|{:?}|{:?}|{:?}",
            self.tiers,
            self.agents,
            self.capabilities,
            self.context,
            self.time_window.as_ref().map(TimeWindow::key)
        )
    }

    /// The conditions in the manifest's form; empty without conditions.
    #[must_use]
    pub fn parameters(&self) -> Map<String, Value> {
        let mut out = Map::new();
        if let Some(bits) = self.tiers {
            let held = RiskTier::ALL
                .into_iter()
                .filter(|tier| bits & tier_bit(*tier) != 0);
            out.insert("risk_tiers".to_owned(), held.map(RiskTier::name).collect());
        }
        if let Some(agents) = &self.agents {
            out.insert("agents".to_owned(), agents.iter().map(Pattern::text).collect());
        }
        if let Some(capabilities) = &self.capabilities {
            out.insert("capabilities".to_owned(), capabilities.iter().cloned().collect());
        }
        if !self.context.is_empty() {
            let wanted = self.context.iter();
            let wanted = wanted.map(|(key, value)| (key.clone(), Value::from(value.as_str())));
            out.insert("context_matches".to_owned(), wanted.collect::<Map<_, _>>().into());
        }
        if let Some(window) = &self.time_window {
            out.insert("time_window".to_owned(), window.parameters().into());
        }
        out
    }

    pub(crate) fn read(
        report: &mut FaultCollector,
        value: Option<&Value>,
        at: &InputPath<'_>,
    ) -> Option<Self> {
        let Some(value) = value else {
            return Some(Self::default());
        };
        let known = [
            "risk_tiers",
            "agents",
            "capabilities",
            "context_matches",
            "time_window",
        ];
        let map = report.read_object(value, at, &known)?;
        let tiers = map.get("risk_tiers").map(|value| {
            let mut bits = 0;
            let words = RiskTier::ALL.map(|tier| (tier.name(), tier));
            let at = at.key("risk_tiers");
            report.read_list(value, &at, 16, |report, item, at| {
                bits |= report.read_word(item, at, &words).map_or(0, tier_bit);
            });
            not_empty(report, value, &at);
            bits
        });
        let agents = map
            .get("agents")
            .map(|value| read_patterns(report, value, &at.key("agents")));
        let capabilities = map.get("capabilities").map(|value| {
            let list = report.read_texts(map, at, "capabilities", bounds::ENTRIES, LengthBounds(1, 255));
            not_empty(report, value, &at.key("capabilities"));
            list
        });
        let mut context = BTreeMap::new();
        if let Some(value) = map.get("context_matches") {
            let at = at.key("context_matches");
            for (key, value) in report.read_map(value, &at).into_iter().flatten() {
                let wanted = report.read_text(value, &at.key(key), LengthBounds(0, 10_000));
                context.extend(wanted.map(|wanted| (key.clone(), wanted.to_owned())));
            }
        }
        let time_window = match map.get("time_window") {
            None => None,
            Some(value) => Some(TimeWindow::read(report, value, &at.key("time_window"))?),
        };
        Some(Self {
            tiers,
            agents,
            capabilities,
            context,
            time_window,
        })
    }
}

/// The effect of a policy that matches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Rule {
    /// The action is denied.
    Deny,
    /// Actions outside the policy's list are denied.
    Scope,
    /// A person must approve first.
    RequireApproval,
    /// A limit on calls per agent in a sliding window.
    RateLimit(RateLimit),
    /// A limit on cost per agent in a sliding window.
    Budget(BudgetParameters),
    /// The action is allowed, unless an earlier policy decides otherwise.
    Allow,
}

impl Rule {
    /// The policy's `type` in a manifest.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Deny => "deny",
            Self::Scope => "scope",
            Self::RequireApproval => "require_approval",
            Self::RateLimit(_) => "rate_limit",
            Self::Budget(_) => "budget",
            Self::Allow => "allow",
        }
    }

    /// The type's position in the evaluation order (R29).
    pub(crate) const fn evaluation_class(&self) -> usize {
        match self {
            Self::Deny | Self::Scope => 0,
            Self::RequireApproval => 1,
            Self::RateLimit(_) => 2,
            Self::Budget(_) => 3,
            Self::Allow => 4,
        }
    }
}

/// The parameters of a budget. Costs are in millionths.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BudgetParameters {
    /// `max_cost`.
    pub max_cost_micros: u64,
    /// `window_seconds`.
    pub window_seconds: u64,
    /// `default_cost`: the cost of actions missing in `costs`; 1 if absent.
    pub default_cost_micros: u64,
    /// `costs`, by action id.
    pub costs_micros: HashMap<String, u64>,
}

impl BudgetParameters {
    /// The cost of one call of the action, in millionths.
    #[must_use]
    pub fn action_cost(&self, action: &str) -> u64 {
        self.costs_micros
            .get(action)
            .copied()
            .unwrap_or(self.default_cost_micros)
    }
}

/// A policy.
#[derive(Debug, Clone)]
pub struct Policy {
    /// Its id, unique in the Atlas.
    pub id: Arc<str>,
    /// Its effect.
    pub rule: Rule,
    /// Its priority; higher ones are evaluated first.
    pub priority: i64,
    /// When it applies.
    pub conditions: PolicyConditions,
    /// The actions that it applies to; `None`: all.
    pub(crate) actions: Option<Vec<Pattern>>,
    /// `parameters.reason`.
    pub reason: Option<Arc<str>>,
}

impl Policy {
    /// The patterns of its actions; `*` if it names none.
    #[must_use]
    pub fn patterns(&self) -> Vec<String> {
        match &self.actions {
            None => vec!["*".to_owned()],
            Some(patterns) => patterns.iter().map(Pattern::text).collect(),
        }
    }
}

pub(super) fn read(report: &mut FaultCollector, value: &Value, at: &InputPath<'_>) -> Option<Policy> {
    let known = [
        "policy_id",
        "type",
        "priority",
        "conditions",
        "actions",
        "parameters",
        "name",
        "description",
    ];
    let map = report.read_object(value, at, &known)?;
    let id = report.required_text(map, at, "policy_id", LengthBounds(1, 255));
    let kind = report.read_required(map, at, "type").and_then(|value| {
        let words = [
            ("allow", "allow"),
            ("deny", "deny"),
            ("rate_limit", "rate_limit"),
            ("require_approval", "require_approval"),
            ("budget", "budget"),
            ("scope", "scope"),
        ];
        report.read_word(value, &at.key("type"), &words)
    });
    let priority = map.get("priority").map_or(Some(0), |value| {
        let number = value.as_i64();
        if number.is_none() {
            report.add_fault(&at.key("priority"), "type", "expected a whole number");
        }
        number
    });
    let conditions = PolicyConditions::read(report, map.get("conditions"), &at.key("conditions"));
    let actions = map
        .get("actions")
        .map(|value| read_patterns(report, value, &at.key("actions")));
    report.optional_text(map, at, "name", LengthBounds(0, 255));
    report.optional_text(map, at, "description", LengthBounds(0, 10_000));
    let nothing = Map::new();
    let inside = at.key("parameters");
    let parameters = match map.get("parameters") {
        None => &nothing,
        Some(value) => report.read_map(value, &inside)?,
    };
    let reason = report.optional_text(parameters, &inside, "reason", LengthBounds(1, 1000));
    let rule = read_rule(report, kind?, parameters, &inside)?;
    if rule == Rule::Scope && actions.is_none() {
        report.add_fault(
            &at.key("actions"),
            "missing",
            "a `scope` needs `actions`: what lies outside them is denied",
        );
    }
    Some(Policy {
        id: id?.into(),
        rule,
        priority: priority?,
        conditions: conditions?,
        actions,
        reason: reason.map(Arc::from),
    })
}

fn read_rule(
    report: &mut FaultCollector,
    kind: &str,
    parameters: &Map<String, Value>,
    at: &InputPath<'_>,
) -> Option<Rule> {
    let known: &[&str] = match kind {
        "rate_limit" => &["reason", "max_calls", "window_seconds"],
        "budget" => &["reason", "max_cost", "window_seconds", "default_cost", "costs"],
        _ => &["reason"],
    };
    for key in parameters.keys().filter(|key| !known.contains(&key.as_str())) {
        let hint = match nearest_word(key, known.iter().copied()) {
            Some(near) => format!("did you mean `{near}`?"),
            None => format!("known: {}", known.join(", ")),
        };
        report.add_warning(
            &at.key(key),
            "unknown_parameter",
            format!("this parameter has no effect ({hint})"),
        );
    }
    Some(match kind {
        "deny" => Rule::Deny,
        "scope" => Rule::Scope,
        "require_approval" => Rule::RequireApproval,
        "rate_limit" => Rule::RateLimit(rate_limit(report, parameters, at)?),
        "budget" => Rule::Budget(read_budget(report, parameters, at)?),
        _ => Rule::Allow,
    })
}

/// Reads `max_calls` and `window_seconds`.
pub(super) fn rate_limit(
    report: &mut FaultCollector,
    map: &Map<String, Value>,
    at: &InputPath<'_>,
) -> Option<RateLimit> {
    let calls = report.read_required(map, at, "max_calls");
    let max_calls = calls.and_then(|value| report.read_integer(value, &at.key("max_calls"), 1, u64::MAX));
    let window_seconds = read_window(report, map, at);
    Some(RateLimit {
        max_calls: max_calls?,
        window_seconds: window_seconds?,
    })
}

fn read_window(report: &mut FaultCollector, map: &Map<String, Value>, at: &InputPath<'_>) -> Option<u64> {
    let value = report.read_required(map, at, "window_seconds")?;
    report.read_integer(value, &at.key("window_seconds"), 1, MAX_WINDOW_SECONDS)
}

fn read_budget(
    report: &mut FaultCollector,
    map: &Map<String, Value>,
    at: &InputPath<'_>,
) -> Option<BudgetParameters> {
    let most = report.read_required(map, at, "max_cost");
    let max_cost_micros = most.and_then(|value| read_micros(report, value, &at.key("max_cost")));
    let window_seconds = read_window(report, map, at);
    let default_cost_micros = match map.get("default_cost") {
        None => Some(1_000_000),
        Some(value) => read_micros(report, value, &at.key("default_cost")),
    };
    let mut costs_micros = HashMap::new();
    if let Some(value) = map.get("costs") {
        let at = at.key("costs");
        for (action, value) in report.read_map(value, &at).into_iter().flatten() {
            let cost = read_micros(report, value, &at.key(action));
            costs_micros.extend(cost.map(|cost| (action.clone(), cost)));
        }
    }
    Some(BudgetParameters {
        max_cost_micros: max_cost_micros?,
        window_seconds: window_seconds?,
        default_cost_micros: default_cost_micros?,
        costs_micros,
    })
}

/// Parses a cost from its decimal text to millionths, without floating point.
fn read_micros(report: &mut FaultCollector, value: &Value, at: &InputPath<'_>) -> Option<u64> {
    let text = value.as_number().map(ToString::to_string);
    let read = |text: &str| -> Option<u64> {
        let (whole, part) = text.split_once('.').unwrap_or((text, "0"));
        let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
        if whole.len() > 12 || part.len() > 6 || !digits(whole) || !digits(part) {
            return None;
        }
        // silent-ok: the fault below says what is expected
        format!("{whole}{part:0<6}").parse().ok()
    };
    let cost = text.as_deref().and_then(read);
    if cost.is_none() {
        report.add_fault(
            at,
            "cost",
            "expected a cost: 0 or more, at most 12 digits before and 6 behind the point",
        );
    }
    cost
}

/// Reads patterns of actions or agents.
pub(super) fn read_patterns(report: &mut FaultCollector, value: &Value, at: &InputPath<'_>) -> Vec<Pattern> {
    let mut out = Vec::new();
    report.read_list(value, at, bounds::ENTRIES, |report, item, at| {
        if let Some(text) = report.read_text(item, at, LengthBounds(1, 255)) {
            let pattern = Pattern::new(text);
            if let Some(refusal) = pattern.refusal() {
                report.add_fault(at, "pattern", refusal);
            }
            out.push(pattern);
        }
    });
    not_empty(report, value, at);
    out
}

/// Refuses an empty list: it could mean "any" or "none", and we do not guess.
fn not_empty(report: &mut FaultCollector, value: &Value, at: &InputPath<'_>) {
    if value.as_array().is_some_and(Vec::is_empty) {
        report.add_fault(
            at,
            "empty",
            "an empty list never holds; leave it out to mean any, or name something",
        );
    }
}
