//! Limits: `[budgets]` of `clawk.toml`, and the windows in which they hold.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::amount::BudgetUnit;
use crate::time::Timestamp;

const HOUR_US: i64 = 3_600_000_000;
const DAY_US: i64 = 24 * HOUR_US;

/// `[budgets]`: what this agent may use up, beside the manifest's own limits; the stricter one holds. Absent: no bound.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct BudgetSettings {
    /// A notice and an event once a limit is used up so far, per cent; 0: never.
    pub warn_at_percent: u8,
    /// Model answers in one turn; beyond, the turn ends with an explanation.
    pub steps_per_turn: u32,
    /// The same call with the same answer so often in one turn ends it; 0: never.
    pub repeats_per_turn: u32,
    /// What holds for a model whose price is not known, where money is limited.
    pub unpriced: UnpricedRule,
    /// The whole agent, in a UTC day.
    pub day: BudgetAllowance,
    /// The whole agent, in a UTC month.
    pub month: BudgetAllowance,
    /// One session with all that it delegates.
    pub session: BudgetAllowance,
    /// One turn with all that it starts.
    pub turn: BudgetAllowance,
    /// By tool name.
    pub tools: BTreeMap<String, NamedBudget>,
    /// By skill name: as a composite tool, and from its invocation to the turn's end.
    pub skills: BTreeMap<String, NamedBudget>,
}

impl Default for BudgetSettings {
    fn default() -> Self {
        Self {
            warn_at_percent: 80,
            steps_per_turn: 48,
            repeats_per_turn: 5,
            unpriced: UnpricedRule::default(),
            day: BudgetAllowance::default(),
            month: BudgetAllowance::default(),
            session: BudgetAllowance::default(),
            turn: BudgetAllowance::default(),
            tools: BTreeMap::new(),
            skills: BTreeMap::new(),
        }
    }
}

/// `[budgets] unpriced`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum UnpricedRule {
    /// It is not asked.
    #[default]
    Refuse,
    /// It counts as dear as the dearest model of the catalogue.
    EstimateHighest,
}

/// One bound per unit; absent: none.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct BudgetAllowance {
    /// Input and output tokens.
    pub tokens: Option<u64>,
    /// Millionths of a US dollar.
    pub cost_microusd: Option<u64>,
    /// Milliseconds of work.
    pub busy_ms: Option<u64>,
    /// Tool calls.
    pub calls: Option<u64>,
    /// Bytes.
    pub bytes_out: Option<u64>,
}

impl BudgetAllowance {
    /// Its bounds.
    pub fn bounds(&self) -> impl Iterator<Item = (BudgetUnit, u64)> {
        let given = [
            (BudgetUnit::Tokens, self.tokens),
            (BudgetUnit::CostMicrousd, self.cost_microusd),
            (BudgetUnit::BusyMs, self.busy_ms),
            (BudgetUnit::Calls, self.calls),
            (BudgetUnit::BytesOut, self.bytes_out),
        ];
        given
            .into_iter()
            .filter_map(|(unit, bound)| bound.map(|bound| (unit, bound)))
    }
}

/// `[budgets.tools.NAME]`, `[budgets.skills.NAME]`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct NamedBudget {
    /// Each run by itself.
    pub run: BudgetAllowance,
    /// All runs of a UTC day.
    pub day: BudgetAllowance,
}

/// The period of a limit. All periods begin in UTC.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Window {
    /// On the hour.
    Hour,
    /// At midnight.
    Day,
    /// On the first.
    Month,
    /// Never: as long as the session, turn or run lasts.
    Whole,
}

impl Window {
    /// The window that `now` lies in: from, and up to but not including.
    #[must_use]
    pub fn bounds_at(self, now: Timestamp) -> (Timestamp, Timestamp) {
        let fixed = |len: i64| {
            let from = now.0 - now.0.rem_euclid(len);
            (Timestamp(from), Timestamp(from.saturating_add(len)))
        };
        match self {
            Self::Hour => fixed(HOUR_US),
            Self::Day => fixed(DAY_US),
            Self::Month => now.month_bounds(),
            Self::Whole => (Timestamp(i64::MIN), Timestamp(i64::MAX)),
        }
    }
}

/// Hours since the epoch: what spending is kept by.
#[must_use]
pub const fn hour_of(at: Timestamp) -> i64 {
    at.0.div_euclid(HOUR_US)
}

/// The start of the given hour (hours since the epoch).
#[must_use]
pub const fn hour_start(hour: i64) -> Timestamp {
    Timestamp(hour.saturating_mul(HOUR_US))
}

/// One bound, as it is enforced.
#[derive(Debug, Clone)]
pub(crate) struct Limit {
    /// What is counted.
    pub unit: BudgetUnit,
    /// For how long.
    pub window: Window,
    /// `u64::MAX`: counted, and not bounded.
    pub bound: u64,
    /// Who set it: `provider model`, `policy house`; empty: the purse itself.
    pub scope: String,
    /// As its author calls it: `tokens_per_day`, `budgets.day.tokens`.
    pub name: String,
}

/// The limits of an allowance.
pub(crate) fn limits_from_allowance(allowance: &BudgetAllowance, window: Window, prefix: &str) -> Vec<Limit> {
    allowance
        .bounds()
        .map(|(unit, bound)| Limit {
            unit,
            window,
            bound,
            scope: String::new(),
            name: format!("{prefix}.{}", unit.name()),
        })
        .collect()
}
