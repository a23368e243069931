//! The events of budgets that the journal has beside calls and inferences.

use clawk_events::payload::BudgetWarned;

use crate::event::{Draft, JournalWriter, Thread};
use crate::purse::BudgetWarning;

/// The events of limits that passed their mark.
pub fn warned(scribe: &JournalWriter, thread: &Thread, warnings: &[BudgetWarning]) -> Vec<Draft> {
    let event = |warning: &BudgetWarning| {
        let payload = BudgetWarned {
            bound: warning.bound,
            limit: warning.limit.to_string(),
            purse: warning.scope.to_string(),
            resets_at: warning.resets_at.as_deref().map(str::to_owned),
            spent: warning.spent,
        };
        scribe.draft_event(thread, &payload)
    };
    warnings.iter().map(event).collect()
}
