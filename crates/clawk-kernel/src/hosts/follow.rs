//! Applies the events of other hosts to this host's memory. After a restart they are applied again from the start's row on, so
//! every step must be repeatable.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use clawk_events::payload::{ApprovalAnswered, ApprovalVoided, MessageAnswered, MessageDead};
use clawk_proto::{MessageId, RequestId, SessionId};

use super::{PeerHosts, lock, runs};
use crate::agent::Agent;
use crate::call::{self, CallGovernor, SessionOwner};
use crate::carp;
use crate::event::kind;
use crate::ports::{JournalError, JournalScan, RecordedEvent};
use crate::stop::{self, StopChange};
use crate::swarm;

/// The event types that are followed.
const FOLLOWED: &[&str] = &[
    kind::STOP_ENGAGED,
    kind::STOP_LIFTED,
    kind::APPROVAL_REQUESTED,
    kind::APPROVAL_ANSWERED,
    kind::APPROVAL_VOIDED,
    kind::APPROVAL_GRANTED,
    kind::APPROVAL_REVOKED,
    kind::MESSAGE_ANSWERED,
    kind::MESSAGE_DEAD,
    kind::SESSION_ENDED,
    kind::CARP_SESSION,
    kind::CARP_ISSUED,
    kind::CARP_CHARGED,
    kind::ATLAS_LOADED,
    kind::ATLAS_REMOVED,
    kind::SWARM_BROADCAST,
    kind::SWARM_ENDED,
];
/// Number of events read at a time.
const PAGE: usize = 1000;
/// Number of rows that are read again after a failover: more than all hosts have in flight.
const AGAIN: u64 = 20_000;

/// Reads on up to this row, at least.
pub(super) async fn follow_to_row(
    agent: &Agent,
    hosts: &PeerHosts,
    last_row: u64,
) -> Result<(), JournalError> {
    let mut row = hosts.row.lock().await;
    if *row >= last_row {
        return Ok(());
    }
    let mut stops = FollowedStops::default();
    let read = follow_pages(agent, hosts, &mut row, &mut stops).await;
    // Applied even if a later page could not be read, because these rows are not read again.
    stops.apply_stops(&agent.calls, hosts);
    read?;
    // Later events are read next time.
    *row = (*row).max(last_row);
    hosts.followed.store(*row, Ordering::SeqCst);
    Ok(())
}

async fn follow_pages(
    agent: &Agent,
    hosts: &PeerHosts,
    row: &mut u64,
    stops: &mut FollowedStops,
) -> Result<(), JournalError> {
    loop {
        let scan = JournalScan {
            kinds: FOLLOWED,
            after_row: *row,
            limit: PAGE,
            with_content: true,
            ..JournalScan::default()
        };
        let page = agent.scribe.journal().scan_events(scan).await?;
        for event in &page {
            if let Err(error) = apply_event(agent, hosts, event, stops) {
                tracing::error!(%error, "an event of another host can't be read: it changes nothing here");
            }
            *row = event.row;
        }
        if page.len() < PAGE {
            return Ok(());
        }
    }
}

/// The stops and lifts by what they apply to. Only the final state is applied: a stop that was lifted since must end nothing when
/// it is read again.
#[derive(Default)]
struct FollowedStops(BTreeMap<Option<SessionId>, (u64, StopChange)>);

impl FollowedStops {
    fn add_event(&mut self, event: &RecordedEvent) {
        if let Some(change) = stop::read_change(event) {
            self.0.insert(change.session, (event.row, change));
        }
    }

    fn apply_stops(self, calls: &CallGovernor, hosts: &PeerHosts) {
        let known = hosts.stops.load(Ordering::SeqCst);
        let mut stops: Vec<(u64, StopChange)> =
            self.0.into_values().filter(|(row, _)| *row > known).collect();
        stops.sort_by_key(|(row, _)| *row);
        for (_, change) in stops {
            stop::apply_event(&calls.brake, change);
        }
    }
}

/// Reads only stops: if a decision met an unknown one, and after a stop of this host, because another host may have changed the
/// same one concurrently.
///
/// # Errors
/// The journal can't be read.
pub(crate) async fn see_stops(calls: &CallGovernor, hosts: &PeerHosts) -> Result<(), JournalError> {
    let row = hosts.row.lock().await;
    let (mut last, mut stops) = (hosts.stops_known().max(*row), FollowedStops::default());
    loop {
        let scan = JournalScan {
            kinds: &[kind::STOP_ENGAGED, kind::STOP_LIFTED],
            after_row: last,
            limit: PAGE,
            with_content: true,
            ..JournalScan::default()
        };
        let page = calls.scribe.journal().scan_events(scan).await?;
        for event in &page {
            last = event.row;
            stops.add_event(event);
        }
        if page.len() < PAGE {
            break;
        }
    }
    stops.apply_stops(calls, hosts);
    hosts.stops.fetch_max(last, Ordering::SeqCst);
    drop(row);
    Ok(())
}

/// Called when another server holds the journal, which may lack the last rows that were read. The rows before are read again, which
/// changes nothing.
pub(super) async fn rewind_position(hosts: &PeerHosts) {
    let mut row = hosts.row.lock().await;
    *row = row.saturating_sub(AGAIN);
    hosts.followed.store(*row, Ordering::SeqCst);
    hosts.stops.store(0, Ordering::SeqCst);
}

/// Applies another host's change of Atlases. If an Atlas that governs there can't be loaded here, this host runs nothing any more.
fn apply_atlas_event(agent: &Agent, event: &RecordedEvent) {
    if let Err(error) = carp::apply_remote_event(&agent.calls.carp, event) {
        tracing::error!(%error, "an Atlas of another host can't be loaded: this host is frozen until it is started again");
        stop::freeze_host(
            &agent.calls.brake,
            "an Atlas of another host can't be loaded here",
            event.at,
        );
    }
}

fn apply_event(
    agent: &Agent,
    hosts: &PeerHosts,
    event: &RecordedEvent,
    stops: &mut FollowedStops,
) -> Result<(), JournalError> {
    let calls = &agent.calls;
    // This host wrote the event, or owns the session and has newer data.
    let own = event.session == agent.life.root.session || hosts.shared.holds_session(event.session);
    match event.kind.as_str() {
        kind::MESSAGE_ANSWERED | kind::MESSAGE_DEAD => {
            if !own {
                agent.outbox.wake_delivery();
            }
            let id = match event.kind == kind::MESSAGE_DEAD {
                true => event.read_as::<MessageDead>()?.message_id,
                false => event.read_as::<MessageAnswered>()?.message_id,
            };
            if let Some(waiting) = lock(&hosts.waits).remove(&MessageId(id)) {
                waiting.notify_waiters();
            }
        }
        kind::APPROVAL_ANSWERED | kind::APPROVAL_VOIDED => {
            let id = match event.kind == kind::APPROVAL_VOIDED {
                true => event.read_as::<ApprovalVoided>()?.request_id,
                false => event.read_as::<ApprovalAnswered>()?.request_id,
            };
            // silent-ok: ids of ours are UUIDs
            if let Ok(id) = RequestId::parse(&id) {
                lock(&hosts.asked).remove(&id);
            }
        }
        // A waiting caller may have given the run to the previous coordinator.
        kind::SWARM_ENDED => runs::notify_run_ended(agent, event),
        // Stops of this host are included: the last event counts.
        kind::STOP_ENGAGED | kind::STOP_LIFTED => stops.add_event(event),
        _ if own => {}
        kind::SWARM_BROADCAST => swarm::follow_broadcast(&agent.peers, event),
        kind::APPROVAL_GRANTED => call::follow_grant(calls, event)?,
        kind::APPROVAL_REVOKED => {
            if let Err(error) = call::follow_revocation(calls, event) {
                let reason = "the end of a standing grant of another host can't be read here";
                stop::freeze_host(&calls.brake, reason, event.at);
                return Err(error);
            }
        }
        kind::CARP_SESSION
        | kind::CARP_ISSUED
        | kind::CARP_CHARGED
        | kind::ATLAS_LOADED
        | kind::ATLAS_REMOVED => apply_atlas_event(agent, event),
        kind::SESSION_ENDED => {
            apply_atlas_event(agent, event);
            calls.desk.forget_session(event.session);
            lock(&hosts.asked).retain(|_, question| question.session != event.session);
        }
        kind::APPROVAL_REQUESTED => {
            if let Some(question) = call::question_of(event, calls)? {
                lock(&hosts.asked).insert(question.request_id.clone(), question.clone());
                calls.desk.announce_question(question);
            }
        }
        _ => {}
    }
    Ok(())
}
