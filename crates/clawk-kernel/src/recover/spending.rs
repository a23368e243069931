//! What sessions have spent, by the record.

use std::collections::HashMap;

use clawk_proto::SessionId;
use uuid::Uuid;

use super::fields;
use crate::event::{Scribe, kind};
use crate::ports::{JournalError, Recorded, Scan};
use crate::purse::Amount;

/// The kinds of events that say what was spent or set aside.
pub(crate) const SPENDING: &[&str] = &[
    kind::PROVIDER_REQUESTED,
    kind::PROVIDER_COMPLETED,
    kind::PROVIDER_FAILED,
    kind::ACTION_EXECUTED,
    kind::ACTION_FAILED,
];

/// The same, and those of tasks that the session gave.
const GIVEN: &[&str] = &[
    kind::PROVIDER_REQUESTED,
    kind::PROVIDER_COMPLETED,
    kind::PROVIDER_FAILED,
    kind::ACTION_EXECUTED,
    kind::ACTION_FAILED,
    kind::SWARM_REPORTED,
    kind::SWARM_TRY,
];

/// Sums over such events. An inference without an end has spent what was set aside for it.
#[derive(Debug, Default)]
pub(crate) struct Spending {
    by: HashMap<SessionId, Amount>,
    under_way: HashMap<Uuid, (SessionId, Amount)>,
}

impl Spending {
    pub(crate) fn see(&mut self, event: &Recorded) {
        let found = fields(event);
        if let Some(inference) = found.inference_id {
            if event.kind == kind::PROVIDER_REQUESTED {
                let aside = found.spent(kind::PROVIDER_FAILED);
                self.under_way.insert(inference, (event.session, aside));
            } else {
                self.under_way.remove(&inference);
            }
        }
        self.add(event.session, found.spent(&event.kind));
    }

    fn add(&mut self, session: SessionId, amount: Amount) {
        let sum = self.by.entry(session).or_default();
        *sum = sum.plus(amount);
    }

    /// What the session has spent itself, and what it has given others to spend and knows the end of.
    pub(crate) async fn of_giver(scribe: &Scribe, session: SessionId) -> Result<Amount, JournalError> {
        let scan = Scan {
            session: Some(session),
            kinds: GIVEN,
            ..Scan::default()
        };
        let mut spending = Self::default();
        scribe.each(scan, |event| spending.see(event)).await?;
        Ok(spending.end().remove(&session).unwrap_or_default()) // silent-ok: it has spent nothing
    }

    /// What each session has spent.
    pub(crate) fn end(mut self) -> HashMap<SessionId, Amount> {
        for (session, aside) in std::mem::take(&mut self.under_way).into_values() {
            self.add(session, aside);
        }
        self.by
    }
}
