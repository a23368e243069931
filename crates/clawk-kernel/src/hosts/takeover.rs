//! Takes over the sessions of a lost host, session by session, with the same steps as a start after a crash.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use clawk_proto::SessionId;
use tokio::time::Instant;

use super::{ANYWAY, IDLE, LOOK, PeerHosts, lock};
use crate::agent::Agent;
use crate::call;
use crate::checkpoint;
use crate::error::StartError;
use crate::recover::{self, LossSearchScope};
use crate::session::SessionServices;
use crate::start;

/// Looks for lost hosts until the agent begins to end.
pub(super) async fn watch_for_takeover(agent: &Arc<Agent>, hosts: &Arc<PeerHosts>) {
    let mut tried: Option<Instant> = None;
    while !hosts.shared.is_lost() {
        let due = tokio::select! {
            biased;
            () = hosts.due.notified() => true,
            () = tokio::time::sleep(if tried.is_some() { LOOK } else { Duration::ZERO }) => false,
        };
        if due || !lock(&hosts.untaken).is_empty() || tried.is_none_or(|last| last.elapsed() >= ANYWAY) {
            take_up_again(agent, hosts).await;
            // There may be more sessions.
            while taken_some(agent, hosts).await {}
            tried = Some(Instant::now());
        }
        give_back(agent, hosts);
    }
}

/// Resumes sessions that could not be resumed before.
async fn take_up_again(agent: &Arc<Agent>, hosts: &Arc<PeerHosts>) {
    let _alone = hosts.gate.lock().await;
    let untaken: Vec<SessionId> = lock(&hosts.untaken).iter().copied().collect();
    // One by one, so that an unreadable session does not block the others.
    for session in untaken {
        if let Err(error) = take_up(&agent.sessions, hosts, vec![session]).await {
            tracing::error!(%error, %session, "a session of a lost host could still not be taken up; it is tried again");
        }
    }
}

/// Takes over sessions of lost hosts. Returns whether there were any, so that there may be more.
async fn taken_some(agent: &Arc<Agent>, hosts: &Arc<PeerHosts>) -> bool {
    let _alone = hosts.gate.lock().await;
    match hosts.shared.take_over().await {
        Ok(taken) if taken.is_empty() => false,
        Ok(taken) => {
            let done = take_up(&agent.sessions, hosts, taken).await;
            if let Err(error) = &done {
                tracing::error!(%error, "sessions of a lost host could not be taken up; they are looked at again");
            }
            done.is_ok()
        }
        Err(error) => {
            tracing::debug!(%error, "lost hosts can't be looked for");
            false
        }
    }
}

/// Runs for each session the steps that a start runs for the whole journal. If a step fails, this host keeps the sessions and tries
/// again. No turn runs in them before it succeeds.
pub(super) async fn take_up(
    sessions: &Arc<SessionServices>,
    hosts: &PeerHosts,
    taken: Vec<SessionId>,
) -> Result<(), StartError> {
    lock(&hosts.untaken).extend(&taken);
    // If this host ends before, the next owner does it.
    hosts.shared.mark_unsettled(&taken);
    taken_up(sessions, hosts, taken.clone()).await?;
    lock(&hosts.untaken).retain(|session| !taken.contains(session));
    hosts.shared.all_settled(&taken);
    Ok(())
}

async fn taken_up(
    sessions: &Arc<SessionServices>,
    hosts: &PeerHosts,
    taken: Vec<SessionId>,
) -> Result<(), StartError> {
    let began = Instant::now();
    let (scribe, calls) = (&sessions.scribe, &*sessions.calls);
    let manifest = &calls.models.manifest;
    let of: BTreeSet<SessionId> = taken.iter().copied().collect();
    let open = start::open_turns(manifest, scribe).await?;
    // A composite call continues with its turn if checkpoints are kept.
    let resumable =
        |turn: &uuid::Uuid| open.contains(turn) && checkpoint::checkpoint_store(manifest).is_some();
    let (mut lost, mut unknown) = (0, 0);
    for session in &of {
        lost += recover::settle_lost(scribe, LossSearchScope::Session(*session)).await?;
        let told = recover::report_unknown(
            scribe,
            &calls.catalog,
            LossSearchScope::Session(*session),
            &resumable,
        )
        .await?;
        unknown += told.0;
        calls.interrupted.add(told.1);
    }
    hosts.shared.mark_settled(taken).await?;
    let asked = call::reopen_approvals(calls, |session| of.contains(&session)).await?;
    lock(&hosts.asked).retain(|id, _| !asked.contains(id));
    start::resume_open(sessions, &[], Some(&of)).await?;
    let since = Instant::now();
    lock(&hosts.taken).extend(of.iter().map(|session| (*session, since)));
    tracing::warn!(
        sessions = of.len(),
        lost,
        unknown,
        took_ms = began.elapsed().as_millis(),
        "sessions were taken over"
    );
    if unknown > 0 {
        let own = Arc::clone(&sessions.calls);
        sessions.life.tracker.spawn(async move {
            let _working = own.life.join_work();
            call::reconcile_effects(&own.governor).await;
        });
    }
    Ok(())
}

/// Releases sessions in which nothing had to be done. The swarm's session is kept, because its owner coordinates.
fn give_back(agent: &Agent, hosts: &PeerHosts) {
    let home = agent.calls.team.as_ref().and_then(|team| team.home_session());
    let due: Vec<SessionId> = {
        let mut taken = lock(&hosts.taken);
        let (due, later) = taken.drain(..).partition(|(_, since)| since.elapsed() >= IDLE);
        *taken = later;
        let due: Vec<(SessionId, Instant)> = due;
        due.into_iter().map(|(session, _)| session).collect()
    };
    for session in due {
        // An open session leaves memory by itself, and is released then.
        if agent.sessions.table.get(session).is_none() && Some(session) != home {
            hosts.shared.release_session(session);
        }
    }
}
