//! The accounts: what each purse has spent and set aside. One lock over all of them, so that a reservation looks at every
//! purse above it, and takes from all or from none.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::amount::{BudgetAmount, BudgetUnit};
use super::limit::{Limit, Window, hour_of, hour_start};
use crate::error::CallError;
use crate::ports::{BatchConditions, BatchReservation, BudgetDemand, SpentAmount};
use crate::time::Timestamp;

/// An account's number.
pub(crate) type BudgetAccountId = u64;

/// All accounts of an agent.
#[derive(Debug, Default)]
pub(crate) struct BudgetLedger(Mutex<BudgetLedgerState>);

#[derive(Debug, Default)]
pub(super) struct BudgetLedgerState {
    pub(super) accounts: HashMap<BudgetAccountId, LedgerAccount>,
    next: BudgetAccountId,
    warn_at_percent: u64,
}

#[derive(Debug)]
pub(super) struct LedgerAccount {
    pub(super) parent: Option<BudgetAccountId>,
    pub(super) label: String,
    pub(super) meters: Vec<BudgetMeter>,
    /// Since it was opened.
    pub(super) spent: BudgetAmount,
    pub(super) reserved: BudgetAmount,
    /// The name under which spending is kept over restarts; sessions and turns are folded from their chains instead.
    kept: Option<Arc<str>>,
    /// Its windows bound more than models' use, so that every call's spending is kept, too.
    keeps_calls: bool,
}

/// A limit and what was spent in its present window.
#[derive(Debug)]
pub(super) struct BudgetMeter {
    pub(super) limit: Limit,
    pub(super) from: Timestamp,
    pub(super) until: Timestamp,
    pub(super) spent: u64,
    warned: bool,
}

impl BudgetMeter {
    fn new(limit: Limit, now: Timestamp) -> Self {
        let (from, until) = limit.window.bounds_at(now);
        Self {
            limit,
            from,
            until,
            spent: 0,
            warned: false,
        }
    }

    /// Into the present window. A clock that goes back changes nothing.
    fn roll_window(&mut self, now: Timestamp) {
        if now >= self.until {
            (self.from, self.until) = self.limit.window.bounds_at(now);
            self.spent = 0;
            self.warned = false;
        }
    }

    pub(super) const fn is_bounded(&self) -> bool {
        self.limit.bound != u64::MAX
    }

    pub(super) fn resets_at(&self) -> Option<String> {
        (self.limit.window != Window::Whole).then(|| self.until.to_string())
    }

    fn over_mark(&self, percent: u64) -> bool {
        percent > 0
            && self.is_bounded()
            && u128::from(self.spent) * 100 >= u128::from(self.limit.bound) * u128::from(percent)
    }
}

/// A limit passed its mark.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BudgetWarning {
    /// Whose limit it is.
    pub scope: String,
    /// The limit's name.
    pub limit: String,
    /// How much it allows.
    pub bound: u64,
    /// How much is spent.
    pub spent: u64,
    /// When it begins anew, RFC 3339; none: never.
    pub resets_at: Option<String>,
}

impl fmt::Display for BudgetWarning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            scope,
            limit,
            bound,
            spent,
            resets_at,
        } = self;
        write!(f, "{scope}: {spent} of {bound} are used up ({limit}")?;
        match resets_at {
            Some(at) => write!(f, ", until {at})"),
            None => f.write_str(")"),
        }
    }
}

/// What a settlement brings about.
#[derive(Debug, Default)]
pub struct BudgetSettlement {
    /// To be kept in the same commit as the event that says so.
    pub spent: Vec<SpentAmount>,
    /// Those of purses that keep calls, time and bytes, too: the event tells of them.
    pub told: Vec<SpentAmount>,
    /// Limits that passed their mark by this.
    pub warnings: Vec<BudgetWarning>,
}

/// Why there is no room: the unit, and how much of it was wanted.
pub(crate) type BudgetShortfall = (BudgetUnit, u64);

impl LedgerAccount {
    fn limit_scope(&self, limit: &Limit) -> String {
        if limit.scope.is_empty() {
            self.label.clone()
        } else {
            limit.scope.clone()
        }
    }
}

impl BudgetLedgerState {
    fn roll_windows(&mut self, path: &[BudgetAccountId], now: Timestamp) {
        for id in path {
            if let Some(account) = self.accounts.get_mut(id) {
                account.meters.iter_mut().for_each(|meter| meter.roll_window(now));
            }
        }
    }

    /// What is left in every purse of the path.
    fn remaining_amount(&self, path: &[BudgetAccountId]) -> BudgetAmount {
        let mut left = BudgetAmount::UNBOUNDED;
        for account in path.iter().filter_map(|id| self.accounts.get(id)) {
            for meter in account.meters.iter().filter(|meter| meter.is_bounded()) {
                let unit = meter.limit.unit;
                let used = meter.spent.saturating_add(account.reserved.get(unit));
                left.cap_unit(unit, meter.limit.bound.saturating_sub(used));
            }
        }
        left
    }

    /// The refusal by the tightest limit of this unit. `reserved`: what others have set aside counts as used.
    fn shortfall_error(
        &self,
        path: &[BudgetAccountId],
        (unit, wanted): BudgetShortfall,
        reserved: bool,
    ) -> CallError {
        let accounts = path.iter().filter_map(|id| self.accounts.get(id));
        let meters = accounts.flat_map(|account| account.meters.iter().map(move |meter| (account, meter)));
        let used = |account: &LedgerAccount, meter: &BudgetMeter| {
            let aside = if reserved { account.reserved.get(unit) } else { 0 };
            meter.spent.saturating_add(aside)
        };
        let tightest = meters
            .filter(|(_, meter)| meter.limit.unit == unit && meter.is_bounded())
            .min_by_key(|(account, meter)| meter.limit.bound.saturating_sub(used(account, meter)));
        match tightest {
            Some((account, meter)) => CallError::Quota {
                scope: account.limit_scope(&meter.limit),
                limit_name: meter.limit.name.clone(),
                limit: meter.limit.bound,
                used: used(account, meter),
                wanted,
                resets_at: meter.resets_at(),
                rule_id: None,
            },
            None => CallError::Quota {
                scope: "agent".to_owned(),
                limit_name: unit.name().to_owned(),
                limit: 0,
                used: 0,
                wanted,
                resets_at: None,
                rule_id: None,
            },
        }
    }

    fn set_aside(&mut self, path: &[BudgetAccountId], amount: BudgetAmount) {
        for id in path {
            if let Some(account) = self.accounts.get_mut(id) {
                account.reserved = account.reserved.plus(amount);
            }
        }
    }

    fn give_back(&mut self, path: &[BudgetAccountId], amount: BudgetAmount) {
        for id in path {
            if let Some(account) = self.accounts.get_mut(id) {
                account.reserved = account.reserved.minus(amount);
            }
        }
    }

    fn spend_amount(
        &mut self,
        path: &[BudgetAccountId],
        amount: BudgetAmount,
        now: Timestamp,
    ) -> BudgetSettlement {
        let mut settled = BudgetSettlement::default();
        let by_model = amount.tokens > 0 || amount.cost_microusd > 0;
        for id in path {
            let Some(account) = self.accounts.get_mut(id) else {
                continue;
            };
            account.spent = account.spent.plus(amount);
            if let Some(purse) = account.kept.as_ref().filter(|_| by_model || account.keeps_calls) {
                let spent = SpentAmount {
                    hour: hour_of(now),
                    purse: Arc::clone(purse),
                    amount,
                };
                if account.keeps_calls {
                    settled.told.push(spent.clone());
                }
                settled.spent.push(spent);
            }
            for meter in &mut account.meters {
                meter.spent = meter.spent.saturating_add(amount.get(meter.limit.unit));
                if !meter.warned && meter.over_mark(self.warn_at_percent) {
                    meter.warned = true;
                    let scope = if meter.limit.scope.is_empty() {
                        &account.label
                    } else {
                        &meter.limit.scope
                    };
                    settled.warnings.push(BudgetWarning {
                        scope: scope.clone(),
                        limit: meter.limit.name.clone(),
                        bound: meter.limit.bound,
                        spent: meter.spent,
                        resets_at: meter.resets_at(),
                    });
                }
            }
        }
        settled
    }
}

impl BudgetLedger {
    pub(crate) fn new(warn_at_percent: u8) -> Arc<Self> {
        Arc::new(Self(Mutex::new(BudgetLedgerState {
            warn_at_percent: u64::from(warn_at_percent),
            ..BudgetLedgerState::default()
        })))
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, BudgetLedgerState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens an account. `kept`: its name over restarts.
    pub(crate) fn open_account(
        &self,
        parent: Option<BudgetAccountId>,
        label: String,
        limits: Vec<Limit>,
        kept: Option<String>,
        now: Timestamp,
    ) -> BudgetAccountId {
        let mut inner = self.lock();
        inner.next += 1;
        let id = inner.next;
        let windowed = |limit: &Limit| {
            limit.window != Window::Whole
                && matches!(
                    limit.unit,
                    BudgetUnit::BusyMs | BudgetUnit::Calls | BudgetUnit::BytesOut
                )
        };
        let account = LedgerAccount {
            parent,
            label,
            keeps_calls: limits.iter().any(windowed),
            meters: limits
                .into_iter()
                .map(|limit| BudgetMeter::new(limit, now))
                .collect(),
            spent: BudgetAmount::default(),
            reserved: BudgetAmount::default(),
            kept: kept.map(Into::into),
        };
        inner.accounts.insert(id, account);
        id
    }

    pub(super) fn close_account(&self, id: BudgetAccountId) {
        self.lock().accounts.remove(&id);
    }

    /// Sets aside what `want` makes of what is left, in every purse of the path or in none.
    ///
    /// # Errors
    /// -32021: which purse, which limit, what is used and wanted, when it begins anew.
    pub(crate) fn reserve_amount(
        self: &Arc<Self>,
        path: Arc<[BudgetAccountId]>,
        now: Timestamp,
        want: impl FnOnce(&BudgetAmount) -> Result<BudgetAmount, BudgetShortfall>,
    ) -> Result<BudgetReservation, CallError> {
        let mut inner = self.lock();
        inner.roll_windows(&path, now);
        let left = inner.remaining_amount(&path);
        let amount = want(&left).map_err(|lack| inner.shortfall_error(&path, lack, true))?;
        let lacking = BudgetUnit::ALL
            .into_iter()
            .find(|unit| amount.get(*unit) > left.get(*unit));
        if let Some(unit) = lacking {
            return Err(inner.shortfall_error(&path, (unit, amount.get(unit)), true));
        }
        inner.set_aside(&path, amount);
        drop(inner);
        Ok(BudgetReservation {
            book: Arc::clone(self),
            path,
            amount,
            open: true,
        })
    }

    /// Refuses when tokens or money of any purse of the path are used up: then nothing begins that a model asked for.
    ///
    /// # Errors
    /// -32021.
    pub(crate) fn not_used_up(&self, path: &[BudgetAccountId], now: Timestamp) -> Result<(), CallError> {
        let mut inner = self.lock();
        inner.roll_windows(path, now);
        for account in path.iter().filter_map(|id| inner.accounts.get(id)) {
            for meter in account.meters.iter().filter(|meter| meter.is_bounded()) {
                let unit = meter.limit.unit;
                if matches!(unit, BudgetUnit::Tokens | BudgetUnit::CostMicrousd)
                    && meter.spent >= meter.limit.bound
                {
                    return Err(inner.shortfall_error(path, (unit, 0), false));
                }
            }
        }
        Ok(())
    }

    /// What this account has spent in all.
    pub(super) fn total_spent(&self, id: BudgetAccountId) -> BudgetAmount {
        self.lock()
            .accounts
            .get(&id)
            .map_or_else(BudgetAmount::default, |account| account.spent)
    }

    /// Counts so much less, in every purse of the path that is not kept over restarts.
    pub(crate) fn refund_amount(&self, path: &[BudgetAccountId], amount: BudgetAmount) {
        let mut inner = self.lock();
        for id in path {
            let Some(account) = inner
                .accounts
                .get_mut(id)
                .filter(|account| account.kept.is_none())
            else {
                continue;
            };
            account.spent = account.spent.minus(amount);
            for meter in &mut account.meters {
                meter.spent = meter.spent.saturating_sub(amount.get(meter.limit.unit));
            }
        }
    }

    /// Counts so much less in the accounts that are kept over restarts. What was counted in an earlier window counts for nothing now.
    pub(crate) fn unspend_kept(&self, unspent: &[SpentAmount], now: Timestamp) {
        let mut inner = self.lock();
        for account in inner.accounts.values_mut() {
            let Some(name) = account.kept.clone() else {
                continue;
            };
            for row in unspent.iter().filter(|row| row.purse == name) {
                account.spent = account.spent.minus(row.amount);
                for meter in &mut account.meters {
                    meter.roll_window(now);
                    if hour_start(row.hour) >= meter.from {
                        meter.spent = meter.spent.saturating_sub(row.amount.get(meter.limit.unit));
                    }
                }
            }
        }
    }

    /// Counts what was spent before this account was opened: in an earlier run, or earlier in this session.
    pub(crate) fn add_earlier_spending(&self, id: BudgetAccountId, amount: BudgetAmount) {
        let mut inner = self.lock();
        let percent = inner.warn_at_percent;
        if let Some(account) = inner.accounts.get_mut(&id) {
            account.spent = account.spent.plus(amount);
            for meter in &mut account.meters {
                meter.spent = meter.spent.saturating_add(amount.get(meter.limit.unit));
                meter.warned = meter.over_mark(percent);
            }
        }
    }

    /// Counts what earlier runs have kept. What is of an earlier window counts for nothing.
    pub(crate) fn restore_spending(&self, kept: &[SpentAmount], now: Timestamp) {
        let mut inner = self.lock();
        let percent = inner.warn_at_percent;
        for account in inner.accounts.values_mut() {
            let Some(name) = account.kept.clone() else {
                continue;
            };
            for row in kept.iter().filter(|row| row.purse == name) {
                account.spent = account.spent.plus(row.amount);
                for meter in &mut account.meters {
                    meter.roll_window(now);
                    if hour_start(row.hour) >= meter.from {
                        meter.spent = meter.spent.saturating_add(row.amount.get(meter.limit.unit));
                    }
                    meter.warned = meter.over_mark(percent);
                }
            }
        }
    }

    /// Counts what all hosts have spent, where it is more than is known here. It is never less than this host's own part of it.
    pub(crate) fn catch_up(&self, kept: &[SpentAmount], now: Timestamp) {
        let mut inner = self.lock();
        for account in inner.accounts.values_mut() {
            let Some(name) = account.kept.clone() else {
                continue;
            };
            let of: Vec<&SpentAmount> = kept.iter().filter(|row| row.purse == name).collect();
            for meter in &mut account.meters {
                meter.roll_window(now);
                let unit = meter.limit.unit;
                let since = of.iter().filter(|row| hour_start(row.hour) >= meter.from);
                let spent = since.fold(0_u64, |sum, row| sum.saturating_add(row.amount.get(unit)));
                meter.spent = meter.spent.max(spent);
            }
        }
    }

    /// Spent in the present window of this account's limit.
    pub(crate) fn spent_in_window(
        &self,
        id: BudgetAccountId,
        unit: BudgetUnit,
        window: Window,
        now: Timestamp,
    ) -> u64 {
        let mut inner = self.lock();
        inner.roll_windows(&[id], now);
        let meters = inner
            .accounts
            .get(&id)
            .into_iter()
            .flat_map(|account| &account.meters);
        let mut fitting = meters.filter(|meter| meter.limit.unit == unit && meter.limit.window == window);
        fitting.next().map_or(0, |meter| meter.spent)
    }

    pub(super) fn lock_rolled(&self, now: Timestamp) -> MutexGuard<'_, BudgetLedgerState> {
        let mut inner = self.lock();
        for account in inner.accounts.values_mut() {
            account.meters.iter_mut().for_each(|meter| meter.roll_window(now));
        }
        inner
    }
}

/// Something set aside in every purse of a path. Dropped unsettled, it is given back.
#[derive(Debug)]
pub struct BudgetReservation {
    book: Arc<BudgetLedger>,
    path: Arc<[BudgetAccountId]>,
    /// How much.
    pub amount: BudgetAmount,
    open: bool,
}

impl BudgetReservation {
    /// The purses on its path that are kept over restarts.
    pub fn persistent_accounts(&self) -> Vec<Arc<str>> {
        let inner = self.book.lock();
        let accounts = self.path.iter().filter_map(|id| inner.accounts.get(id));
        accounts.filter_map(|account| account.kept.clone()).collect()
    }

    /// What must hold over all hosts for it, under this id; nothing where no purse on its path that is kept has a limit.
    pub fn batch_conditions(&self, id: uuid::Uuid) -> BatchConditions {
        let inner = self.book.lock();
        let mut terms = BatchConditions::default();
        let mut purses = Vec::new();
        for account in self.path.iter().filter_map(|id| inner.accounts.get(id)) {
            let Some(purse) = &account.kept else { continue };
            let before = terms.room.len();
            let bounded = account.meters.iter().filter(|meter| meter.is_bounded());
            terms.room.extend(bounded.map(|meter| BudgetDemand {
                purse: Arc::clone(purse),
                since_hour: hour_of(meter.from),
                unit: meter.limit.unit,
                bound: meter.limit.bound,
                wanted: self.amount.get(meter.limit.unit),
            }));
            if terms.room.len() > before {
                purses.push(Arc::clone(purse));
            }
        }
        if !purses.is_empty() {
            terms.aside = Some(BatchReservation {
                id,
                purses,
                amount: self.amount,
            });
        }
        terms
    }

    /// The refusal by a limit that other hosts have used up.
    pub fn used_up(&self, room: &BudgetDemand, used: u64) -> CallError {
        let inner = self.book.lock();
        let accounts = self.path.iter().filter_map(|id| inner.accounts.get(id));
        let mut of = accounts.filter(|account| account.kept.as_ref() == Some(&room.purse));
        let found = of.find_map(|account| {
            let mut meters = account.meters.iter();
            let meter =
                meters.find(|meter| meter.limit.unit == room.unit && meter.limit.bound == room.bound)?;
            Some((
                account.limit_scope(&meter.limit),
                meter.limit.name.clone(),
                meter.resets_at(),
            ))
        });
        let (scope, limit_name, resets_at) =
            found.unwrap_or_else(|| (room.purse.to_string(), room.unit.name().to_owned(), None));
        CallError::Quota {
            scope,
            limit_name,
            limit: room.bound,
            used,
            wanted: room.wanted,
            resets_at,
            rule_id: None,
        }
    }

    /// Replaces what was set aside by what was spent.
    pub fn settle(mut self, spent: BudgetAmount, now: Timestamp) -> BudgetSettlement {
        self.open = false;
        let mut inner = self.book.lock();
        inner.give_back(&self.path, self.amount);
        inner.roll_windows(&self.path, now);
        inner.spend_amount(&self.path, spent, now)
    }
}

impl Drop for BudgetReservation {
    fn drop(&mut self) {
        if self.open {
            self.book.lock().give_back(&self.path, self.amount);
        }
    }
}
