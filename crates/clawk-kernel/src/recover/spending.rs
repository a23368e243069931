//! The spending of sessions, by the record.

use std::collections::HashMap;

use clawk_events::Event;
use clawk_proto::SessionId;
use uuid::Uuid;

use super::{reserved_by, spent_by};
use crate::event::{JournalWriter, kind};
use crate::ports::{JournalError, JournalScan, RecordedEvent};
use crate::purse::BudgetAmount;

/// Event types that record spending or reservations.
pub(crate) const SPENDING: &[&str] = &[
    kind::PROVIDER_REQUESTED,
    kind::PROVIDER_COMPLETED,
    kind::PROVIDER_FAILED,
    kind::ACTION_EXECUTED,
    kind::ACTION_FAILED,
];

/// Those, and the event types of tasks that the session delegated.
const GIVEN: &[&str] = &[
    kind::PROVIDER_REQUESTED,
    kind::PROVIDER_COMPLETED,
    kind::PROVIDER_FAILED,
    kind::ACTION_EXECUTED,
    kind::ACTION_FAILED,
    kind::SWARM_REPORTED,
    kind::SWARM_TRY,
];

/// Sums over such events. A model request without an end counts with its reservation.
#[derive(Debug, Default)]
pub(crate) struct SessionSpending {
    by: HashMap<SessionId, BudgetAmount>,
    under_way: HashMap<Uuid, (SessionId, BudgetAmount)>,
}

impl SessionSpending {
    /// Takes the next event.
    ///
    /// # Errors
    /// It can't be read: what it says was spent is in no sum, so there is no sum.
    pub(crate) fn apply_event(&mut self, recorded: &RecordedEvent) -> Result<(), JournalError> {
        let event = recorded.read_whole()?;
        match &event {
            Event::ProviderRequested(requested) => {
                let aside = (recorded.session, reserved_by(requested));
                self.under_way.insert(requested.inference_id, aside);
            }
            Event::ProviderCompleted(answered) => drop(self.under_way.remove(&answered.inference_id)),
            Event::ProviderFailed(failed) => drop(self.under_way.remove(&failed.inference_id)),
            _ => {}
        }
        self.add_amount(recorded.session, spent_by(&event));
        Ok(())
    }

    fn add_amount(&mut self, session: SessionId, amount: BudgetAmount) {
        let sum = self.by.entry(session).or_default();
        *sum = sum.plus(amount);
    }

    /// Returns the session's own spending plus its settled delegated spending.
    pub(crate) async fn of_giver(
        scribe: &JournalWriter,
        session: SessionId,
    ) -> Result<BudgetAmount, JournalError> {
        let scan = JournalScan {
            session: Some(session),
            kinds: GIVEN,
            ..JournalScan::default()
        };
        let mut spending = Self::default();
        scribe
            .read_each(scan, |event| spending.apply_event(event))
            .await?;
        Ok(spending.into_totals().remove(&session).unwrap_or_default()) // silent-ok: it has spent nothing
    }

    /// Returns the spending of each session.
    pub(crate) fn into_totals(mut self) -> HashMap<SessionId, BudgetAmount> {
        for (session, aside) in std::mem::take(&mut self.under_way).into_values() {
            self.add_amount(session, aside);
        }
        self.by
    }
}
