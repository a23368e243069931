//! Coordination of a swarm that hosts share: only the owner of the swarm's chain coordinates, until its run ends. Then another host
//! takes the chain, rebuilds the state from the record, and continues.

use std::sync::Arc;
use std::time::Duration;

use clawk_events::payload::{SessionStarted, SwarmProgress};
use clawk_manifest::model::Role;
use clawk_proto::SessionId;
use tokio::time::Instant;

use super::restore::restore_swarm;
use super::{SwarmServices, go_on};
use crate::error::StartError;
use crate::event::{Thread, canonical, digest, kind};
use crate::hosts::PeerHosts;
use crate::ports::{JournalScan, SessionHolder, TokenKey};
use crate::start;
use crate::team::SwarmTeam;

/// Interval at which a host checks whether it received the swarm's chain with a lost host's sessions.
const LOOK: Duration = Duration::from_millis(100);
/// Interval at which a host tries to take the chain. It succeeds if no host owns it.
const TRY: Duration = Duration::from_secs(1);
/// State recorded when a host becomes the coordinator.
const LEADS: &str = "leads";

/// Returns the id of the swarm's chain, which is the same on every host.
pub(crate) fn home_session(agent: &str, swarm: &str) -> SessionId {
    let hash = digest(&canonical(&("clawk swarm", agent, swarm))).0;
    let id = hash.first_chunk().copied().unwrap_or_default(); // silent-ok: a digest is longer
    SessionId(uuid::Builder::from_custom_bytes(id).into_uuid())
}

/// Tries to become the coordinator until it succeeds or this host is lost.
pub(crate) fn spawn_coordination(peers: &Arc<SwarmServices>, hosts: &Arc<PeerHosts>) {
    let Some((team, home)) = peers
        .calls
        .team
        .clone()
        .and_then(|team| Some((team.clone(), team.home_session()?)))
    else {
        return;
    };
    let (own, hosts) = (Arc::clone(peers), Arc::clone(hosts));
    peers.life.tracker.spawn(async move {
        let looking = async {
            let mut tried: Option<Instant> = None;
            while !hosts.shared.is_lost() && !team.is_coordinator() {
                if hosts.shared.holds_session(home) || tried.is_none_or(|last| last.elapsed() >= TRY) {
                    tried = Some(Instant::now());
                    if let Err(error) = try_coordinate(&own, &hosts, (&team, home)).await {
                        tracing::error!(%error, "this host can't coordinate the swarm; it tries again");
                        tokio::time::sleep(TRY).await;
                    }
                }
                tokio::time::sleep(LOOK).await;
            }
        };
        tokio::select! {
            biased;
            () = looking => {}
            () = own.life.closing.cancelled() => {}
        }
    });
}

async fn try_coordinate(
    peers: &Arc<SwarmServices>,
    hosts: &PeerHosts,
    (team, home): (&SwarmTeam, SessionId),
) -> Result<(), StartError> {
    match hosts.shared.hold_session(home).await {
        Ok(SessionHolder::Here | SessionHolder::Taken) => {
            begin_coordinating(peers, hosts, (team, home)).await
        }
        Ok(SessionHolder::There(_)) => Ok(()),
        Err(error) => {
            tracing::debug!(%error, "who coordinates the swarm can't be seen");
            Ok(())
        }
    }
}

/// Rebuilds the swarm from the record and becomes the coordinator.
async fn begin_coordinating(
    peers: &Arc<SwarmServices>,
    hosts: &PeerHosts,
    (team, home): (&SwarmTeam, SessionId),
) -> Result<(), StartError> {
    let begun = JournalScan {
        session: Some(home),
        kinds: &[kind::SESSION_STARTED],
        limit: 1,
        ..JournalScan::default()
    };
    let is_new = peers.scribe.journal().scan_events(begun).await?.is_empty();
    let host = hosts.shared.host_name();
    let mut drafts = Vec::new();
    if is_new {
        let started = SessionStarted {
            agent_hash: Some(peers.sessions.agent_hash),
            agent_id: peers.calls.manifest.identity.name.to_string(),
            door: Some("runtime".to_owned()),
            fork: None,
            goal: "swarm".to_owned(),
            role: Some(Role::Admin.as_str().to_owned()),
            run: Some(peers.life.root.session.0),
        };
        drafts.push(peers.scribe.draft_event(&Thread::for_session(home), &started));
    }
    let swarm = team.with_coordinator(|coord| coord.plan().swarm.clone());
    let leads = SwarmProgress {
        host: Some(host.to_owned()),
        state: Some(LEADS.to_owned()),
        swarm: swarm.to_string(),
        ..SwarmProgress::default()
    };
    let thread = Thread::for_session(home).child(peers.scribe.clock().new_uuid());
    drafts.push(peers.scribe.draft_event(&thread, &leads.as_led()));
    // INVARIANT: this is durable before anything is folded: what an earlier coordinator recorded is before it, and nothing of it behind.
    peers.scribe.write(drafts).await?;
    // The next coordinator must be able to make the tokens of attempts that run elsewhere.
    let key = hosts.shared.shared_secret(home.0, peers.own_key.0).await?;
    let _kept = peers.token_key.set(TokenKey(key)); // silent-ok: it is the same
    team.reset_state();
    let busy = restore_swarm(peers).await?;
    team.become_coordinator();
    tracing::info!(host, tasks = busy.len(), "this host coordinates the swarm");
    go_on(peers)?;
    start::end_tasks(&peers.sessions, &busy).await
}
