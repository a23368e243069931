//! Records the cost of a dry run, and adds it to the spending of the original agent, because its models cost money.

use std::collections::BTreeMap;
use std::sync::Arc;

use clawk_events::payload::{DryRunSpent, SessionEnded, SessionStarted};
use clawk_events::shape::DryRunCost;
use clawk_proto::SessionId;

use crate::event::{JournalWriter, Thread, digest};
use crate::ports::{Journal, JournalError, SpentAmount};
use crate::purse::BudgetAmount;
use crate::time::Clock;

/// What models took between two looks at a state's sums: calls that were only predicted, and the time that they did not take, count
/// for nothing.
#[must_use]
pub fn spending_difference(before: &[SpentAmount], after: &[SpentAmount]) -> Vec<SpentAmount> {
    let known: BTreeMap<(&str, i64), BudgetAmount> = before
        .iter()
        .map(|spent| ((&*spent.purse, spent.hour), spent.amount))
        .collect();
    let more = after.iter().map(|spent| {
        let had = known
            .get(&(&*spent.purse, spent.hour))
            .copied()
            .unwrap_or_default();
        SpentAmount {
            amount: BudgetAmount {
                tokens: spent.amount.tokens.saturating_sub(had.tokens),
                cost_microusd: spent.amount.cost_microusd.saturating_sub(had.cost_microusd),
                ..BudgetAmount::default()
            },
            ..spent.clone()
        }
    });
    more.filter(|spent| !spent.amount.is_zero()).collect()
}

/// Charges the agent's budgets; durable when this returns. If nothing was spent, nothing is written.
///
/// # Errors
/// The journal can't be written.
pub async fn account_spending(
    (journal, clock): (Arc<dyn Journal>, Arc<dyn Clock>),
    (agent, by): (&str, &str),
    spent: Vec<SpentAmount>,
) -> Result<(), JournalError> {
    if spent.is_empty() {
        return Ok(());
    }
    let scribe = JournalWriter::new(journal, clock);
    let session = SessionId(scribe.clock().new_uuid());
    let thread = Thread::for_session(session);
    let costs = spent
        .iter()
        .map(|spent| DryRunCost {
            cost_microusd: spent.amount.cost_microusd,
            hour: spent.hour,
            purse: spent.purse.to_string(),
            tokens: spent.amount.tokens,
        })
        .collect();
    let paid = DryRunSpent {
        by: by.to_owned(),
        paid: costs,
    };
    let started = SessionStarted {
        agent_hash: Some(digest(b"")),
        agent_id: agent.to_owned(),
        door: Some("runtime".to_owned()),
        fork: None,
        goal: "dry run".to_owned(),
        role: Some(clawk_manifest::model::Role::Admin.as_str().to_owned()),
        run: Some(session.0),
    };
    let ended = SessionEnded {
        duration_ms: 0,
        reason: "the dry run has ended".to_owned(),
    };
    let drafts = vec![
        scribe.draft_event(&thread, &started),
        scribe.draft_event(&thread, &paid),
        scribe.draft_event(&thread, &ended),
    ];
    scribe
        .submit_spending(drafts, spent, Vec::new())?
        .wait_until_durable()
        .await
}
