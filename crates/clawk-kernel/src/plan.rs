//! A turn's calls, looked at together: several that need a person are put as one question, before the first of them.

use std::collections::BTreeSet;

use clawk_proto::RequestId;

use crate::call::{self, PlannedCall};
use crate::drive::RunningTurn;
use crate::notice::{Plan, SessionNotice};
use crate::ports::ToolUse;
use crate::turn::Turn;

impl RunningTurn<'_> {
    /// Puts the question, once for each answer of a model. What comes of it is found by every call in its own turn; a plan
    /// that can't be put is no plan, and each call asks for itself.
    pub(crate) async fn plan(&mut self, first: &ToolUse, turn: &Turn) {
        if std::mem::replace(&mut self.planned, true) || turn.ahead().len() == 0 {
            return;
        }
        let all: Vec<&ToolUse> = std::iter::once(first).chain(turn.ahead()).collect();
        let names: BTreeSet<&str> = all.iter().map(|wanted| wanted.id.as_str()).collect();
        // Two calls under one id can't be told apart after a restart.
        if names.len() < all.len() {
            return;
        }
        let ids: Vec<RequestId> = all.iter().map(|wanted| self.id_of(wanted)).collect();
        let (asked, open) = self.calls.desk.open_of(&ids);
        if asked {
            // Of an earlier run of the agent: it is shown again as it was.
            let steps: Vec<_> = open
                .into_iter()
                .filter(|question| question.step.is_some())
                .collect();
            if let Some(step) = steps.first().and_then(|first| first.step.clone()) {
                let plan = Plan { id: step.plan, steps };
                self.notices.send(SessionNotice::Planned(plan)).await;
            }
            return;
        }
        let of = u32::try_from(all.len()).unwrap_or(u32::MAX);
        let mut planned = Vec::with_capacity(all.len());
        for ((number, wanted), id) in (1..).zip(&all).zip(ids) {
            let (Ok(arguments), None) = (&wanted.arguments, self.skill(&wanted.name)) else {
                continue;
            };
            if self.is_clients(&wanted.name) {
                continue;
            }
            let (caller, request) = self
                .request(wanted.id.clone(), wanted.name.clone(), arguments.clone(), id)
                .await;
            planned.push(PlannedCall {
                number,
                caller,
                request,
            });
        }
        match call::plan(self.calls, &planned, of).await {
            Ok(Some(plan)) => self.notices.send(SessionNotice::Planned(plan)).await,
            Ok(None) => {}
            Err(error) => {
                tracing::warn!(%error, "a plan could not be put; its calls are asked about one by one")
            }
        }
    }

    /// The id that the call will have.
    fn id_of(&mut self, wanted: &ToolUse) -> RequestId {
        let calls = self.calls;
        let id = self.requests.entry(wanted.id.clone());
        id.or_insert_with(|| RequestId::from(calls.clock().uuid()))
            .clone()
    }

    /// The turn is over: what was asked about and did not come to its turn is asked no more. When the agent stops, it stays.
    pub(crate) async fn give_up_plan(&self) {
        if !self.calls.life.stop.is_cancelled() {
            call::withdraw(self.calls, self.requests.values()).await;
        }
    }
}
