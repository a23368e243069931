//! Plans: several calls of a turn that need a person are put into one approval request, before the first of them runs.

use std::collections::BTreeSet;

use clawk_proto::RequestId;

use crate::call::{self, PlannedCall};
use crate::drive::RunningTurn;
use crate::notice::{Plan, SessionNotice};
use crate::ports::ToolUse;
use crate::turn::Turn;

impl RunningTurn<'_> {
    /// Makes the request, once for each model answer. Each call later finds its own result. If the request can't be made, each call
    /// asks separately.
    pub(crate) async fn ask_plan(&mut self, first: &ToolUse, turn: &Turn) {
        if std::mem::replace(&mut self.planned, true) || turn.remaining_calls().len() == 0 {
            return;
        }
        let all: Vec<&ToolUse> = std::iter::once(first).chain(turn.remaining_calls()).collect();
        let names: BTreeSet<&str> = all.iter().map(|wanted| wanted.id.as_str()).collect();
        // Two calls with the same id can't be distinguished after a restart.
        if names.len() < all.len() {
            return;
        }
        let ids: Vec<RequestId> = all.iter().map(|wanted| self.id_of(wanted)).collect();
        let (asked, open) = self.calls.desk.open_of(&ids);
        if asked {
            // A plan of an earlier run of the agent is shown again unchanged.
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
            let (Ok(arguments), None) = (&wanted.arguments, self.find_skill(&wanted.name)) else {
                continue;
            };
            if self.is_clients(&wanted.name) {
                continue;
            }
            let (caller, request) = self
                .call_request(wanted.id.clone(), wanted.name.clone(), arguments.clone(), id)
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

    /// Returns the request id that the call will have.
    fn id_of(&mut self, wanted: &ToolUse) -> RequestId {
        let calls = self.calls;
        let id = self.requests.entry(wanted.id.clone());
        id.or_insert_with(|| RequestId::from(calls.clock().new_uuid()))
            .clone()
    }

    /// Withdraws the open steps of a turn that has ended. If the agent stops, they stay open.
    pub(crate) async fn give_up_plan(&self) {
        if !self.calls.life.stop.is_cancelled() {
            call::withdraw_questions(self.calls, self.requests.values()).await;
        }
    }
}
