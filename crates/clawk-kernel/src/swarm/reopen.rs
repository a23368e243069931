//! After a restart: a task that was acknowledged goes on where it stood, and is reported once (promise 4).

use std::collections::BTreeMap;
use std::sync::Arc;

use clawk_manifest::model::Role;
use clawk_proto::method::{Task, TaskStatus};
use clawk_proto::{RequestId, SessionId};
use serde::Deserialize;
use serde_json::json;
use uuid::Uuid;

use super::{Outcome, Rest, opening, words, work};
use crate::agent::Agent;
use crate::error::KernelError;
use crate::event::kind;
use crate::ports::{JournalError, Recorded, Scan};
use crate::recover;
use crate::session::{Opening, Session};

/// A task that was given to a peer and not reported.
#[derive(Debug)]
pub(crate) struct OpenTask {
    id: RequestId,
    asker: SessionId,
    /// The peer's identity.
    peer: String,
    /// What it may do for this task: as recorded, else the least (see [`crate::door::Origin::recorded`]).
    role: Role,
    pub(crate) peer_session: SessionId,
    seat: usize,
    /// As the peer reads it; `None`: erased.
    text: Option<String>,
    /// What the peer had been told when it got the task.
    peer_messages: Vec<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Fields {
    task_id: String,
    peer: String,
    role: String,
    peer_session: Uuid,
    seat: usize,
    swarm: String,
    end: String,
    reason: String,
    input_tokens: u64,
    output_tokens: u64,
}

fn fields(event: &Recorded) -> Fields {
    serde_json::from_str(&event.payload).unwrap_or_default() // silent-ok: a payload of ours always reads; a foreign one counts for nothing
}

fn content(event: &Recorded) -> Option<&[u8]> {
    event.content.as_ref().map(|content| &content.bytes[..])
}

/// Folds what was asked of peers and what was told them: the tasks that are open, in their order. What no task has taken
/// along waits in the inboxes again.
pub(crate) async fn open_tasks(agent: &Agent) -> Result<Vec<OpenTask>, JournalError> {
    let swarm = agent.manifest.swarm.as_ref();
    let scan = Scan {
        kinds: &[kind::SWARM_DELEGATED, kind::SWARM_REPORTED, kind::SWARM_BROADCAST],
        with_content: true,
        ..Scan::default()
    };
    let mut open: BTreeMap<u64, OpenTask> = BTreeMap::new();
    recover::all(agent, scan, |event| {
        let found = fields(event);
        let mut board = agent.board.lock();
        match event.kind.as_str() {
            kind::SWARM_BROADCAST => {
                let swarm = swarm.filter(|swarm| swarm.name == found.swarm);
                if let (Some(swarm), Some(Ok(text))) = (swarm, content(event).map(std::str::from_utf8)) {
                    board.tell(swarm, text);
                }
            }
            kind::SWARM_DELEGATED => {
                let Ok(id) = RequestId::parse(&found.task_id) else {
                    return;
                };
                let task = content(event).and_then(|bytes| serde_json::from_slice::<Task>(bytes).ok()); // silent-ok: erased
                let messages = board.inboxes.remove(&found.seat).unwrap_or_default();
                let task = OpenTask {
                    id,
                    asker: event.session,
                    peer: found.peer,
                    role: Role::parse(&found.role).unwrap_or(Role::Viewer),
                    peer_session: SessionId(found.peer_session),
                    seat: found.seat,
                    text: task.as_ref().map(words),
                    peer_messages: messages.into(),
                };
                open.insert(event.row, task);
            }
            kind::SWARM_REPORTED => open.retain(|_, task| task.id.as_str() != found.task_id),
            _ => {}
        }
    })
    .await?;
    Ok(open.into_values().collect())
}

/// Lets open tasks go on, each in the session of its peer.
pub(crate) async fn take_up(agent: &Arc<Agent>, tasks: Vec<OpenTask>) -> Result<(), KernelError> {
    for task in tasks {
        agent.board.lock().running.insert(task.id.clone(), task.seat);
        let rebuilt = recover::rebuild(agent, task.peer_session).await?;
        let rest = match (rebuilt.open.into_iter().next(), task.text) {
            (Some(turn), _) => Rest::Turn(Box::new(turn)),
            (None, text) => match (ended(agent, task.peer_session).await?, text) {
                (Some(outcome), _) => Rest::Report(outcome),
                (None, Some(text)) => Rest::All(text),
                (None, None) => Rest::Report(failed("its text was erased before its peer had read it")),
            },
        };
        let opening = Opening {
            id: Some(task.peer_session),
            history: rebuilt.history,
            spent: rebuilt.spent,
            ..opening(
                agent,
                task.asker,
                (&task.peer, &task.id, task.role),
                task.peer_messages,
            )
        };
        let worker = Session::open(agent, opening).await?;
        agent
            .tracker
            .spawn(work(Arc::clone(agent), task.asker, worker, task.id, rest));
    }
    Ok(())
}

/// How the peer's turn ended, if it did and only the report was lost.
async fn ended(agent: &Agent, peer_session: SessionId) -> Result<Option<Outcome>, JournalError> {
    let scan = Scan {
        session: Some(peer_session),
        kinds: &[kind::MESSAGE_ANSWERED, kind::MESSAGE_DEAD],
        with_content: true,
        ..Scan::default()
    };
    let mut outcome = None;
    recover::all(agent, scan, |event| {
        let found = fields(event);
        outcome = Some(if event.kind == kind::MESSAGE_DEAD {
            failed(&found.reason)
        } else if found.end == "answered" {
            let said = recover::text(event);
            let tokens = found.input_tokens.saturating_add(found.output_tokens);
            (TaskStatus::Completed, json!({"text": said}), tokens)
        } else {
            failed(&found.end)
        });
    })
    .await?;
    Ok(outcome)
}

fn failed(reason: &str) -> Outcome {
    (TaskStatus::Failed, json!({"error": reason}), 0)
}
