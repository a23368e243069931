//! Records the cost of a dry run, and adds it to the spending of the original agent, because its models cost money.

use std::collections::BTreeMap;
use std::sync::Arc;

use clawk_proto::SessionId;
use serde::{Deserialize, Serialize};

use crate::event::{JournalWriter, SessionEnded, SessionStarted, Thread, digest, kind};
use crate::ports::{Journal, JournalError, SpentAmount};
use crate::purse::BudgetAmount;
use crate::time::Clock;

/// The amount that one budget paid in one hour. Fields in alphabetical order, as in every payload.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct DryRunPayment {
    pub(crate) cost_microusd: u64,
    /// The hour, as whole hours since the Unix epoch.
    pub(crate) hour: i64,
    pub(crate) purse: Arc<str>,
    pub(crate) tokens: u64,
}

/// `ckp.budget.dry_run`.
#[derive(Debug, Serialize)]
struct DryRunSpent<'a> {
    by: &'a str,
    paid: &'a [DryRunPayment],
}

/// Returns the model use between two readings of a state's sums. Predicted calls and their time do not count.
#[must_use]
pub fn difference(before: &[SpentAmount], after: &[SpentAmount]) -> Vec<SpentAmount> {
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
pub async fn account(
    (journal, clock): (Arc<dyn Journal>, Arc<dyn Clock>),
    (agent, by): (&str, &str),
    spent: Vec<SpentAmount>,
) -> Result<(), JournalError> {
    if spent.is_empty() {
        return Ok(());
    }
    let scribe = JournalWriter::new(journal, clock);
    let session = SessionId(scribe.clock().uuid());
    let thread = Thread::of(session);
    let paid: Vec<DryRunPayment> = spent
        .iter()
        .map(|spent| DryRunPayment {
            cost_microusd: spent.amount.cost_microusd,
            hour: spent.hour,
            purse: Arc::clone(&spent.purse),
            tokens: spent.amount.tokens,
        })
        .collect();
    let started = SessionStarted {
        agent_hash: digest(b""),
        agent_id: agent,
        door: "runtime",
        goal: "dry run",
        role: clawk_manifest::model::Role::Admin.as_str(),
        run: session.0,
    };
    let ended = SessionEnded {
        duration_ms: 0,
        reason: "the dry run has ended",
    };
    let drafts = vec![
        scribe.entry(&thread, kind::SESSION_STARTED, &started),
        scribe.entry(&thread, kind::DRY_RUN_SPENT, &DryRunSpent { by, paid: &paid }),
        scribe.entry(&thread, kind::SESSION_ENDED, &ended),
    ];
    scribe.account(drafts, spent, Vec::new())?.durable().await
}
