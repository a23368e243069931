//! After a restart: the swarm's facts are folded, and what had begun goes on (promise 4).

use std::collections::BTreeMap;
use std::sync::Arc;

use clawk_proto::SessionId;
use clawk_swarm::coord::Phase;
use clawk_swarm::{Coord, Fact};
use serde::Deserialize;

use super::{Peers, lock, work_off};
use crate::error::StartError;
use crate::event::{SwarmReported, Thread, digest, kind};
use crate::ports::{JournalError, Recorded, Scan};
use crate::purse::Amount;
use crate::team::{Origin, SWARM_KINDS, fact_of, session_of};

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Fields {
    task_id: String,
    swarm: String,
}

/// Folds the record. Returns the sessions that go on with their tasks, and whose turns nobody else may take up.
pub(crate) async fn restore(peers: &Peers) -> Result<Vec<SessionId>, JournalError> {
    let scan = Scan {
        kinds: &SWARM_KINDS,
        with_content: true,
        ..Scan::default()
    };
    // Tasks of versions in which a task was a peer's turn and nothing else.
    let mut old: BTreeMap<String, SessionId> = BTreeMap::new();
    let Some(team) = &peers.calls.team else {
        return Ok(Vec::new());
    };
    peers
        .scribe
        .each(scan, |event| {
            if event.kind == kind::SWARM_BROADCAST {
                heard(peers, event);
                return;
            }
            match fact_of(event) {
                Some(fact) => {
                    if let Fact::Began { task, who, .. } = &fact {
                        let member = team.look(|coord| coord.plan().member(*who).to_owned());
                        let told = team.inbox(&member);
                        if !told.is_empty() {
                            lock(&peers.told).insert(task.clone(), told);
                        }
                    }
                    team.restore(&fact);
                }
                None => {
                    let found: Fields = serde_json::from_str(&event.payload).unwrap_or_default(); // silent-ok: payloads of ours always read
                    if event.kind == kind::SWARM_DELEGATED {
                        old.insert(found.task_id, event.session);
                    } else {
                        old.remove(&found.task_id);
                    }
                }
            }
        })
        .await?;
    for (task, session) in old {
        give_up(peers, &task, session).await?;
    }
    Ok(team.look(running))
}

fn heard(peers: &Peers, event: &Recorded) {
    let found: Fields = serde_json::from_str(&event.payload).unwrap_or_default(); // silent-ok: payloads of ours always read
    let text = event
        .content
        .as_ref()
        .map(|content| String::from_utf8_lossy(&content.bytes).into_owned());
    if let (Some(team), Some(text)) = (&peers.calls.team, text) {
        let own = team.look(|coord| coord.plan().swarm == found.swarm);
        if own {
            let _told = team.broadcast(&text);
        }
    }
}

/// A task of an earlier version that no member works on any more. Its end is reported once.
async fn give_up(peers: &Peers, task: &str, session: SessionId) -> Result<(), JournalError> {
    let reason = br#"{"error":"it was given to a peer by an earlier version, which kept too little to go on with it"}"#;
    let payload = SwarmReported {
        cost_microusd: 0,
        duration_ms: 0,
        orphan: false,
        result_hash: digest(reason),
        status: "failed",
        task_id: task,
        token_usage: 0,
    };
    let thread = Thread::of(session).child(peers.scribe.clock().uuid());
    let draft = peers.scribe.entry(&thread, kind::SWARM_REPORTED, &payload);
    peers
        .scribe
        .write(vec![draft.content(payload.result_hash, reason.to_vec())])
        .await
}

fn running(coord: &Coord) -> Vec<SessionId> {
    let tasks = coord.tasks();
    tasks
        .filter(|task| task.phase == Phase::Running || task.phase == Phase::Parked)
        .map(|task| coord.session_of(task))
        .map(|(task, attempt)| session_of(&task, attempt))
        .collect()
}

/// Lets what had begun go on, and performs what comes.
pub(crate) fn go_on(peers: &Arc<Peers>) -> Result<(), StartError> {
    let Some(team) = &peers.calls.team else {
        return Ok(());
    };
    let runs = team.look(|coord| {
        let runs = coord.runs_now();
        let of = |id: &clawk_swarm::coord::TaskId| {
            let spent = coord.tasks_in(id).fold(Amount::default(), |sum, task| {
                sum.plus(Amount {
                    tokens: task.tokens,
                    cost_microusd: task.cost_microusd,
                    ..Amount::default()
                })
            });
            Some((id.clone(), Origin::read(&coord.run(id)?.origin), spent))
        };
        runs.iter().filter_map(|run| of(&run.task_id)).collect::<Vec<_>>()
    });
    for (run, origin, spent) in runs {
        peers.purse_of(&run, origin).recall(spent);
    }
    let Ok(_durable) = team.act(None, |coord, now_ms| {
        Ok::<_, std::convert::Infallible>(coord.resume(now_ms))
    });
    peers.life.tracker.spawn(work_off(Arc::clone(peers)));
    Ok(())
}
