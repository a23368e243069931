//! Concurrent calls of one answer: those for other members of the swarm.

use super::RunningTurn;
use crate::call::{CallOrder, call};
use crate::ports::ToolUse;
use crate::team;
use crate::turn::Turn;

impl RunningTurn<'_> {
    /// Gives tasks and questions of one answer to other members concurrently, because each is worked on by another member.
    pub(super) async fn side_by_side(&mut self, first: &ToolUse, turn: &Turn) {
        let together = |wanted: &&ToolUse| {
            let known = [team::DELEGATE, team::ASK].contains(&wanted.name.as_str());
            known
                && wanted.arguments.is_ok()
                && self.calls.team.is_some()
                && self.calls.catalog.of_team(&wanted.name).is_some()
        };
        if self.early.contains_key(&first.id) || Some(first).filter(together).is_none() {
            return;
        }
        let all: Vec<ToolUse> = [first]
            .into_iter()
            .chain(turn.remaining_calls().take_while(together))
            // After a crash, a call that ended before an earlier one is not repeated.
            .filter(|wanted| !self.early.contains_key(&wanted.id))
            .cloned()
            .collect();
        if all.len() < 2 {
            return;
        }
        let mut wanted = Vec::new();
        let mut ranks = CallOrder::in_sequence();
        for ToolUse { id, name, arguments } in all {
            let Ok(arguments) = arguments else { continue };
            let request_id = self.request_id(&id);
            let (mut caller, request) = self.call_request(id, name, arguments, request_id).await;
            caller.rank = ranks.next().unwrap_or_default(); // silent-ok: the queue has no end
            wanted.push((caller, request));
        }
        let (calls, cancel) = (self.calls, self.cancel);
        let ends = futures::future::join_all(wanted.iter().map(|(caller, request)| async move {
            let end = call(calls, caller, request.clone(), cancel).await;
            // The call was refused or cancelled before its turn, so the calls after it continue.
            caller.rank.mark_done();
            end
        }));
        let ends = ends.await;
        for ((caller, _), outcome) in wanted.iter().zip(ends) {
            let id = caller.call_id.clone().unwrap_or_default();
            let event = self.call_done_event(id.clone(), &outcome);
            self.early.insert(id, event);
        }
    }
}
