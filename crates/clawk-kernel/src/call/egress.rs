//! The `ckp.egress.*` events about a call's network connections, written with its outcome.

use std::sync::Arc;

use serde::Serialize;

use crate::event::{Draft, JournalWriter, Thread};
use crate::ports::{CallConnection, ConnectionCollector, ReachedConnections};

/// A network connection was served.
pub(crate) const CONNECTED: &str = "ckp.egress.connected";
/// A network connection was refused or closed.
pub(crate) const REFUSED: &str = "ckp.egress.refused";
/// Totals of further connections.
pub(crate) const SUMMED: &str = "ckp.egress.summed";

#[derive(Serialize)]
struct EgressConnected<'a> {
    action_id: &'a str,
    address: Option<String>,
    bytes_in: u64,
    bytes_out: u64,
    duration_ms: u64,
    findings: &'a [String],
    host: &'a str,
    port: u16,
    private: bool,
    request_id: &'a str,
    rule: Option<&'a str>,
    secrets: &'a [Arc<str>],
    terminated: bool,
    via: &'a str,
}

#[derive(Serialize)]
struct EgressRefused<'a> {
    action_id: &'a str,
    address: Option<String>,
    bytes_in: u64,
    bytes_out: u64,
    code: &'a str,
    duration_ms: u64,
    host: &'a str,
    port: u16,
    reason: &'a str,
    request_id: &'a str,
    rule: Option<&'a str>,
    via: &'a str,
}

#[derive(Serialize)]
struct EgressSummed<'a> {
    action_id: &'a str,
    bytes_in: u64,
    bytes_out: u64,
    connected: u64,
    refused: u64,
    request_id: &'a str,
}

/// Returns one event for each connection, and one for the rest.
pub(super) fn drafts(
    scribe: &JournalWriter,
    thread: &Thread,
    (action_id, request_id): (&str, &str),
    connections: &ConnectionCollector,
) -> Vec<Draft> {
    let reached = connections.take();
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
            action_id,
            bytes_in,
            bytes_out,
            connected,
            refused,
            request_id,
        };
        all.push(scribe.entry(thread, SUMMED, &payload));
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
                action_id,
                address,
                bytes_in,
                bytes_out,
                code,
                duration_ms,
                host,
                port,
                reason,
                request_id,
                rule,
                via,
            };
            scribe.entry(thread, REFUSED, &payload)
        }
        None => {
            let payload = EgressConnected {
                action_id,
                address,
                bytes_in,
                bytes_out,
                duration_ms,
                findings: &one.findings,
                host,
                port,
                private: one.private,
                request_id,
                rule,
                secrets: &one.secrets,
                terminated: one.terminated,
                via,
            };
            scribe.entry(thread, CONNECTED, &payload)
        }
    }
}
