//! The `ckp.egress.*` events about a call's network connections, written with its outcome.

use clawk_events::payload::{EgressConnected, EgressRefused, EgressSummed};

use crate::event::{Draft, JournalWriter, Thread};
use crate::ports::{CallConnection, ConnectionCollector, ReachedConnections};

/// One event for each connection, and one for the rest.
pub(super) fn connection_drafts(
    scribe: &JournalWriter,
    thread: &Thread,
    (action_id, request_id): (&str, &str),
    connections: &ConnectionCollector,
) -> Vec<Draft> {
    let reached = connections.take_connections();
    let each = reached.connections.iter();
    let mut all: Vec<Draft> = each
        .map(|one| one_draft(scribe, thread, (action_id, request_id), one))
        .collect();
    let ReachedConnections {
        more_connected: connected,
        more_refused: refused,
        more_bytes_out: bytes_out,
        more_bytes_in: bytes_in,
        ..
    } = reached;
    if connected > 0 || refused > 0 {
        let payload = EgressSummed {
            action_id: action_id.to_owned(),
            bytes_in,
            bytes_out,
            connected,
            refused,
            request_id: request_id.to_owned(),
        };
        all.push(scribe.draft_event(thread, &payload));
    }
    all
}

fn one_draft(
    scribe: &JournalWriter,
    thread: &Thread,
    (action_id, request_id): (&str, &str),
    one: &CallConnection,
) -> Draft {
    let address = one.address.map(|address| address.to_string());
    let (host, port, rule, via) = (one.host.as_str(), one.port, one.rule.as_deref(), one.via);
    let (bytes_in, bytes_out, duration_ms) = (one.bytes_in, one.bytes_out, one.duration_ms);
    match &one.refused {
        Some((code, reason)) => {
            let payload = EgressRefused {
                action_id: action_id.to_owned(),
                address,
                bytes_in,
                bytes_out,
                code: (*code).to_owned(),
                duration_ms,
                host: host.to_owned(),
                port,
                reason: reason.to_owned(),
                request_id: request_id.to_owned(),
                rule: rule.map(str::to_owned),
                via: via.to_owned(),
            };
            scribe.draft_event(thread, &payload)
        }
        None => {
            let payload = EgressConnected {
                action_id: action_id.to_owned(),
                address,
                bytes_in,
                bytes_out,
                duration_ms,
                findings: one.findings.clone(),
                host: host.to_owned(),
                port,
                private: one.private,
                request_id: request_id.to_owned(),
                rule: rule.map(str::to_owned),
                secrets: one.secrets.iter().map(ToString::to_string).collect(),
                terminated: one.terminated,
                via: via.to_owned(),
            };
            scribe.draft_event(thread, &payload)
        }
    }
}
