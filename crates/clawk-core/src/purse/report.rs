//! A report for people: spent, reserved and remaining amounts.

use serde::{Deserialize, Serialize};

use super::BudgetTree;
use super::amount::{BudgetAmount, BudgetUnit};
use super::book::{BudgetAccountId, BudgetLedgerState, BudgetMeter, LedgerAccount};
use super::limit::Window;
use super::price::TokenPrice;
use crate::time::Timestamp;

/// Every purse, parents before children.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BudgetReport {
    /// When this was so, RFC 3339.
    pub at: String,
    /// The purses.
    pub purses: Vec<BudgetAccountState>,
    /// What the models cost, by provider.
    #[serde(default)]
    pub models: Vec<ModelPrice>,
    /// The newest list that the shipped table of prices was read from.
    #[serde(default)]
    pub table_date: String,
}

/// The price of a model, and where it comes from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelPrice {
    /// The provider's name.
    pub provider: String,
    /// The model's.
    pub model: String,
    /// None: where money is limited, it is not asked.
    pub price: Option<TokenPrice>,
    /// It is the catalogue's, and not of `[prices]`.
    pub shipped: bool,
    /// Nobody knows it: it is the dearest of the catalogue.
    #[serde(default)]
    pub guessed: bool,
    /// Tokens read since the start.
    #[serde(default)]
    pub read_tokens: u64,
    /// Of them, those from the server's cache.
    #[serde(default)]
    pub cached_tokens: u64,
}

/// One purse.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BudgetAccountState {
    /// `agent`, `session …`, `turn …`, `run of …`, `tool …`, `skill …`, `provider …`.
    pub name: String,
    /// How many purses are above it.
    pub depth: usize,
    /// Since the purse was opened; for the agent and its tools, skills and providers: in this UTC month.
    pub spent: BudgetAmount,
    /// Set aside for what runs now.
    pub reserved: BudgetAmount,
    /// Its limits, and what the agent counts without one.
    pub limits: Vec<LimitState>,
}

/// One limit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LimitState {
    /// As its author calls it; empty for what is only counted.
    pub name: String,
    /// Who set it, where it is not the purse's own.
    pub scope: String,
    /// What it bounds.
    pub unit: BudgetUnit,
    /// When it begins anew.
    pub window: Window,
    /// The bound; none: only counted.
    pub bound: Option<u64>,
    /// Spent in this window.
    pub spent: u64,
    /// Set aside.
    pub reserved: u64,
    /// What is left.
    pub left: Option<u64>,
    /// When the window ends, RFC 3339.
    pub resets_at: Option<String>,
}

impl BudgetTree {
    /// The whole tree.
    pub fn budget_report(&self, now: Timestamp) -> BudgetReport {
        let inner = self.ledger().lock_rolled(now);
        let mut purses = Vec::new();
        let mut roots = child_accounts(&inner, None);
        // The agent first: it was opened first.
        roots.sort_unstable();
        for id in roots {
            walk_accounts(&inner, id, 0, &mut purses);
        }
        BudgetReport {
            at: now.to_string(),
            purses,
            models: self.model_prices(),
            table_date: self.catalogue_date.clone(),
        }
    }
}

fn child_accounts(inner: &BudgetLedgerState, of: Option<BudgetAccountId>) -> Vec<BudgetAccountId> {
    let own = inner.accounts.iter().filter(|(_, account)| account.parent == of);
    let mut ids: Vec<BudgetAccountId> = own.map(|(id, _)| *id).collect();
    ids.sort_unstable();
    ids
}

fn walk_accounts(
    inner: &BudgetLedgerState,
    id: BudgetAccountId,
    depth: usize,
    into: &mut Vec<BudgetAccountState>,
) {
    let Some(account) = inner.accounts.get(&id) else {
        return;
    };
    into.push(BudgetAccountState {
        name: account.label.clone(),
        depth,
        spent: account.spent,
        reserved: account.reserved,
        limits: account
            .meters
            .iter()
            .map(|meter| limit_state(account, meter))
            .collect(),
    });
    for child in child_accounts(inner, Some(id)) {
        walk_accounts(inner, child, depth + 1, into);
    }
}

fn limit_state(account: &LedgerAccount, meter: &BudgetMeter) -> LimitState {
    let unit = meter.limit.unit;
    let reserved = account.reserved.get(unit);
    let bound = meter.is_bounded().then_some(meter.limit.bound);
    LimitState {
        name: meter.limit.name.clone(),
        scope: meter.limit.scope.clone(),
        unit,
        window: meter.limit.window,
        bound,
        spent: meter.spent,
        reserved,
        left: bound.map(|bound| bound.saturating_sub(meter.spent.saturating_add(reserved))),
        resets_at: meter.resets_at(),
    }
}
