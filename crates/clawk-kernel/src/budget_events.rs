//! The events of budgets that the journal has beside calls and inferences.

use crate::event::{BudgetWarned, Draft, JournalWriter, Thread, kind};
use crate::purse::BudgetWarning;

/// The events of limits that passed their mark.
pub(crate) fn warned(scribe: &JournalWriter, thread: &Thread, warnings: &[BudgetWarning]) -> Vec<Draft> {
    let event = |warning: &BudgetWarning| {
        let payload = BudgetWarned {
            bound: warning.bound,
            limit: &warning.limit,
            purse: &warning.scope,
            resets_at: warning.resets_at.as_deref(),
            spent: warning.spent,
        };
        scribe.entry(thread, kind::BUDGET_WARNED, &payload)
    };
    warnings.iter().map(event).collect()
}
