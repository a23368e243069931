//! Swarm messages from connections, other than tasks: reports, broadcasts, discovery.

use std::sync::Arc;

use clawk_events::count_of;
use clawk_events::payload::{SwarmBroadcast, SwarmReported};
use clawk_proto::method::{
    AcknowledgedResult, BroadcastParams, DiscoverParams, DiscoverResult, Peer, PeerStatus, ReportParams,
    TaskStatus,
};
use clawk_proto::uri::ClawUri;
use clawk_proto::{ErrorCode, RequestId, SessionId};
use clawk_swarm::coord::{ReportReception, SwarmTaskPhase};
use clawk_swarm::plan::identity_name;
use clawk_swarm::{Effect, SwarmCoordinator};
use clawk_trace::proof::{self, ProofError, ProofSubject};
use serde_json::{Value, json};

use super::elsewhere::SentTry;
use super::{SwarmServices, SwarmView, declared_swarm, elsewhere, lock, session_thread, tries};
use crate::error::KernelError;
use crate::event::{canonical, digest};
use crate::hosts::runs;
use crate::judge;
use crate::ports::JournalError;
use crate::screen::{ScreenedTextKind, ScreeningPass};
use crate::team::SwarmTeam;
use crate::watch::NoticeSender;

/// Reason for refusing a report without a valid signature of its member's key.
pub const UNPROVEN: &str = "unproven";

/// `claw.swarm.report`: always recorded; a report of an unknown task is recorded as an orphan (R22). Members in this process report
/// directly, so a connection is never accepted as the member of their tasks.
pub(crate) async fn report_task(
    peers: &SwarmServices,
    session: SessionId,
    params: ReportParams,
) -> Result<AcknowledgedResult, KernelError> {
    match peers.calls.team.as_ref().filter(|team| !team.is_coordinator()) {
        Some(team) => {
            let acknowledged = runs::forward_report(&peers.calls, team, params).await?;
            Ok(AcknowledgedResult { acknowledged })
        }
        None => report_as(peers, session, None, params).await,
    }
}

/// Like [`report_task`], from clawk's own connection to the member `bound`, or from a bus. For an attempt elsewhere, a report counts if
/// it has the attempt's token or arrives over its member's connection.
pub(super) async fn report_as(
    peers: &SwarmServices,
    session: SessionId,
    bound: Option<&str>,
    mut params: ReportParams,
) -> Result<AcknowledgedResult, KernelError> {
    let _working = peers.life.begin_work().map_err(KernelError::NotReady)?;
    let sent = lock(&peers.sent).find_reported(&params, bound);
    // Before screening, because the signature covers the unscreened text.
    let unproven = sent
        .as_ref()
        .and_then(|(sent, own)| find_proof_error(peers, sent, *own, &params));
    if let Some((sent, own)) = &sent
        && !is_effective(peers, (sent, *own && unproven.is_none()))
        && !sent.is_recorded()
    {
        return Ok(AcknowledgedResult {
            acknowledged: *own && unproven.is_none(),
        });
    }
    let mut look = ScreeningPass::new(
        &peers.calls.screens,
        session_thread(peers, session),
        ScreenedTextKind::Peer,
        "report",
        &NoticeSender::default(),
    );
    judge::peer_value(&mut look, &mut params.result).await;
    let drafts = look.drafts;
    let mut met = ReportReception::Unknown;
    if let Some(team) = &peers.calls.team {
        let Ok(kept) = team.queue_decision(None, |coord, _| {
            let (reception, effects) = apply_report(coord, (sent.as_ref(), unproven.as_ref()), &params);
            met = reception;
            Ok::<_, std::convert::Infallible>(effects)
        });
        let gone = || JournalError::Unwritable("the agent has ended".to_owned());
        kept.await.map_err(|_| gone())??; // silent-ok: RecvError says no more
    }
    if !drafts.is_empty() {
        peers.scribe.write(drafts).await?;
    }
    match (&sent, met) {
        (Some((sent, _)), ReportReception::Taken) => sent.end_try(&params),
        (Some((sent, true)), ReportReception::Late) => {
            elsewhere::apply_late_report(peers, sent, &params).await?
        }
        _ => {}
    }
    match met {
        ReportReception::Unknown => record_orphan(peers, session, &params).await,
        ReportReception::Garbage => Err(KernelError::BadParameter {
            member: "result",
            reason: "an object or a text of at most 1 MiB is wanted".to_owned(),
        }),
        ReportReception::Unproven => Err(not_believed(
            peers,
            &params.task_id,
            sent.as_ref().zip(unproven.as_ref()),
        )),
        ReportReception::NotYours => Ok(AcknowledgedResult { acknowledged: false }),
        ReportReception::Taken | ReportReception::Duplicate | ReportReception::Late => {
            Ok(AcknowledgedResult { acknowledged: true })
        }
    }
}

/// Returns whether a member's report of this attempt can still have an effect: it is the first one, or tells what a lost attempt
/// used.
fn is_effective(peers: &SwarmServices, (sent, own): (&SentTry, bool)) -> bool {
    let waits = |team: &Arc<SwarmTeam>| {
        team.with_coordinator(|coord| {
            let task = coord
                .task(&sent.task)
                .filter(|task| task.attempts == sent.attempt);
            task.is_some_and(|task| task.phase == SwarmTaskPhase::Running) && !coord.has_word(&sent.task)
        })
    };
    own && (sent.is_assumed() || peers.calls.team.as_ref().is_some_and(waits))
}

/// Passes a report to the coordinator. Returns its reception.
fn apply_report(
    coord: &mut SwarmCoordinator,
    (sent, unproven): (Option<&(SentTry, bool)>, Option<&ProofError>),
    params: &ReportParams,
) -> (ReportReception, Vec<Effect>) {
    let Some((sent, own)) = sent else {
        return coord.accept_report(&params.task_id, None, params.status, &params.result);
    };
    let refused = |coord: &mut SwarmCoordinator, reception: ReportReception| {
        let effects = coord.refuse_report(&sent.task, &sent.member, reception);
        (reception, effects)
    };
    if !own {
        return refused(coord, ReportReception::NotYours);
    }
    if let Some(unproven) = unproven {
        let by = match unproven.shown() {
            Some(key) => format!("{}, key {key}", sent.member),
            None => format!("{}, unsigned", sent.member),
        };
        let effects = coord.refuse_report(&sent.task, &by, ReportReception::Unproven);
        return (ReportReception::Unproven, effects);
    }
    match coord.task(&sent.task) {
        Some(task) if task.attempts == sent.attempt => {
            let said = (params.status, &params.result);
            coord.report_from_afar(
                &sent.task,
                Some(&sent.member),
                said,
                Some(sent.reported_usage(params)),
            )
        }
        // Another attempt works on it, or its run has ended.
        Some(_) | None => refused(coord, ReportReception::Late),
    }
}

/// Returns why the report is not proven to be its member's; `None`: no doubt.
fn find_proof_error(
    peers: &SwarmServices,
    sent: &SentTry,
    own: bool,
    params: &ReportParams,
) -> Option<ProofError> {
    let key = peers
        .elsewhere
        .as_ref()?
        .report_key(&sent.identity)
        .filter(|_| own)?;
    let said = ReportParams {
        proof: None,
        ..params.clone()
    };
    proof::check(ProofSubject::Report, &said, params.proof.as_ref(), &key).err()
}

fn not_believed(
    peers: &SwarmServices,
    task: &RequestId,
    why: Option<(&(SentTry, bool), &ProofError)>,
) -> KernelError {
    let message = match why {
        Some(((sent, _), why)) => {
            format!(
                "this report is not taken as the word of `{}`: {why}",
                sent.identity
            )
        }
        None => "this report is not signed by the key of its member".to_owned(),
    };
    tracing::warn!(%task, "{message}");
    let swarm = peers.calls.manifest.swarm.as_ref();
    KernelError::Swarm {
        code: ErrorCode::PolicyDenied.code(),
        swarm: swarm.map(|swarm| swarm.name.clone()).unwrap_or_default(),
        task_id: task.clone(),
        reason: UNPROVEN.to_owned(),
        message,
    }
}

/// Returns the params of a report, signed by this host's key if it has one.
pub(crate) fn sign_report(peers: &SwarmServices, params: Value) -> Value {
    let Some(signer) = &peers.signer else {
        return params;
    };
    let mut params = proof::settled(params);
    let said = serde_json::from_value::<ReportParams>(params.clone());
    let proof = said
        .ok()
        .and_then(|said| proof::sign(ProofSubject::Report, &said, signer)); // silent-ok: a report of ours is one
    if let (Some(object), Some(proof)) = (params.as_object_mut(), proof) {
        object.insert("proof".to_owned(), json!(proof));
    }
    params
}

async fn record_orphan(
    peers: &SwarmServices,
    session: SessionId,
    params: &ReportParams,
) -> Result<AcknowledgedResult, KernelError> {
    let bytes = canonical(&params.result);
    let result_hash = digest(&bytes);
    let payload = SwarmReported {
        duration_ms: params.duration_ms.unwrap_or(0),
        orphan: true,
        result_hash: Some(result_hash),
        status: match params.status {
            TaskStatus::Completed => "completed",
            TaskStatus::Failed => "failed",
            TaskStatus::Partial => "partial",
        }
        .to_owned(),
        task_id: params.task_id.as_str().to_owned(),
        token_usage: params.token_usage.unwrap_or(0),
        ..SwarmReported::default()
    };
    let draft = peers
        .scribe
        .draft_event(&session_thread(peers, session), &payload);
    peers
        .scribe
        .write(vec![draft.with_content(result_hash, bytes)])
        .await?;
    Ok(AcknowledgedResult { acknowledged: true })
}

/// `claw.swarm.broadcast`: puts a message into every member's bounded inbox. Each member reads it with its next task, marked as
/// data.
pub(crate) async fn broadcast_message(
    peers: &SwarmServices,
    session: SessionId,
    params: BroadcastParams,
) -> Result<(), KernelError> {
    let _working = peers.life.begin_work().map_err(KernelError::NotReady)?;
    let (swarm, team) = declared_swarm(peers, &params.swarm)?;
    let mut look = ScreeningPass::new(
        &peers.calls.screens,
        session_thread(peers, session),
        ScreenedTextKind::Peer,
        &swarm.name,
        &NoticeSender::default(),
    );
    let screened = judge::peer_text(
        &peers.calls.classifier,
        &mut look,
        params.message.to_string(),
        &peers.life.stop.child_token(),
    )
    .await;
    let mut drafts = look.drafts;
    let text = match screened {
        Ok(text) => text,
        // The judge was interrupted with the agent, so nothing is known about it.
        Err(_) if peers.life.stop.is_cancelled() => {
            return Err(KernelError::NotReady(peers.life.state()));
        }
        Err(refused) => {
            peers.scribe.write(drafts).await?;
            return Err(refused.into());
        }
    };
    let message_hash = digest(text.as_bytes());
    let told = team.broadcast_text(&text);
    let bytes = text.into_bytes();
    let payload = SwarmBroadcast {
        message_hash,
        peers: count_of(told),
        swarm: swarm.name.to_string(),
    };
    let draft = peers
        .scribe
        .draft_event(&session_thread(peers, session), &payload);
    drafts.push(draft.with_content(message_hash, bytes));
    peers.scribe.write(drafts).await?;
    Ok(())
}

/// Returns a peer's identity in canonical form, whichever form the manifest uses (CKP §7).
fn canonical_uri(identity: &str) -> String {
    match ClawUri::parse(identity) {
        Ok(uri) => uri.to_string(),
        Err(_) => format!("claw://local/identity/{identity}"), // silent-ok: it is a plain name
    }
}

/// `claw.swarm.discover`: returns one peer per seat; none for an unknown swarm.
pub(crate) async fn discover_peers(
    peers: &SwarmServices,
    params: &DiscoverParams,
) -> Result<DiscoverResult, KernelError> {
    let _working = peers.life.begin_work().map_err(KernelError::NotReady)?;
    let team = peers.calls.team.as_ref();
    let named = |team: &&Arc<SwarmTeam>| {
        let own = team.with_coordinator(|coord| coord.plan().swarm.clone());
        params.swarm.as_ref().is_none_or(|name| *name == own)
    };
    let members = match team.filter(named) {
        Some(_) => swarm_view(peers).await?.map(|view| view.members),
        None => None,
    };
    let found = members.unwrap_or_default().into_iter().map(|seat| Peer {
        uri: canonical_uri(&seat.identity),
        status: match seat.status.as_str() {
            "ready" => PeerStatus::Ready,
            "busy" => PeerStatus::Busy,
            _ => PeerStatus::Unavailable,
        },
        identity: seat.identity,
        member: Some(seat.member),
        role: Some(seat.role),
    });
    Ok(DiscoverResult {
        peers: found.collect(),
    })
}

/// Returns the swarm's state as its coordinator sees it. `None`: the manifest has no Swarm.
pub(crate) async fn swarm_view(peers: &SwarmServices) -> Result<Option<SwarmView>, KernelError> {
    match peers.calls.team.as_ref().filter(|team| !team.is_coordinator()) {
        Some(team) => runs::fetch_view(&peers.calls, team).await,
        None => Ok(view_here(peers)),
    }
}

/// Returns the swarm's state on the host that coordinates it.
pub(crate) fn view_here(peers: &SwarmServices) -> Option<SwarmView> {
    let team = peers.calls.team.as_ref()?;
    let mut view = team.with_coordinator(SwarmView::from_coordinator);
    for member in &mut view.members {
        if !tries::is_found(peers, &member.identity) {
            let elsewhere = !tries::is_here(peers, &member.identity)
                && peers
                    .elsewhere
                    .as_ref()
                    .is_some_and(|there| there.member_route(&identity_name(&member.identity)).is_some());
            member.status = "unavailable".to_owned();
            let reason = if elsewhere {
                "unreachable"
            } else {
                "identity_not_found"
            };
            member.reason = Some(reason.to_owned());
        }
    }
    Some(view)
}
