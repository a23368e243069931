//! Recorded CARP resolutions, resolved again: by the Atlas they were resolved with, or by another.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use clawk_carp::resolve::{Ids, resolve};
use clawk_carp::{AtlasSet, Ledger, Options};
use clawk_proto::SessionId;
use clawk_proto::carp::Request;
use clawk_proto::trace::TraceEvent;
use serde::Serialize;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::cmd::atlas;
use crate::cmd::trace::source::{Pick, Source};
use crate::out::{self, Format, Paint};

/// What became of all resolutions.
#[derive(Debug, Default, Serialize)]
pub(super) struct Again {
    pub(super) resolutions: u64,
    pub(super) evaluations: u64,
    pub(super) would_block: u64,
    pub(super) would_newly_allow: u64,
    pub(super) would_newly_ask: u64,
    pub(super) differences: Vec<Difference>,
}

/// An evaluation, or a count of a resolution, that would be another.
#[derive(Debug, Serialize)]
pub(super) struct Difference {
    session_id: SessionId,
    sequence: u64,
    event_type: String,
    /// The action; none for what a resolution says as a whole.
    action_id: Option<String>,
    was: String,
    would_be: String,
}

/// One resolution as recorded.
struct Recorded {
    received: TraceEvent,
    request: Request,
    /// Per action: the event's sequence, the policy and the result.
    evaluations: BTreeMap<String, (u64, String)>,
    completed: Option<TraceEvent>,
}

pub(super) fn what_if(source: &Source, pick: Pick, atlases: &[PathBuf], format: Format) -> Result<ExitCode> {
    let again = again(source, pick, atlases)?;
    match format {
        Format::Json => out::json(&json!(again))?,
        Format::Human => again.people("as before", "other")?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Resolves every recorded request; differences are named by event.
pub(super) fn again(source: &Source, pick: Pick, atlases: &[PathBuf]) -> Result<Again> {
    let mut loaded = Vec::new();
    for path in atlases {
        loaded.push(Arc::new(atlas::loaded(path)?));
    }
    let set =
        AtlasSet::compile(loaded, Options::default()).context("these Atlases cannot be loaded together")?;
    let recorded = recorded(source, pick)?;
    if recorded.is_empty() {
        bail!("there is no `carp.request.received` in the record");
    }
    let mut again = Again::default();
    for one in &recorded {
        again.compare(one, &set)?;
    }
    Ok(again)
}

fn recorded(source: &Source, pick: Pick) -> Result<Vec<Recorded>> {
    let mut agents: BTreeMap<SessionId, String> = BTreeMap::new();
    let mut found: Vec<Recorded> = Vec::new();
    source.each(pick, |event| {
        let text = |key: &str| {
            event
                .payload
                .get(key)
                .and_then(Value::as_str)
                .unwrap_or_default()
                .to_owned()
        };
        match event.event_type.as_str() {
            "session.started" => {
                agents.insert(event.session_id, text("agent_id"));
            }
            "carp.request.received" => {
                let agent = agents.get(&event.session_id).cloned().unwrap_or_default();
                let request = request(&event, &agent).with_context(|| {
                    format!(
                        "event {} of session {} is no request",
                        event.sequence, event.session_id
                    )
                })?;
                if request.operation == clawk_proto::carp::Operation::Resolve {
                    found.push(Recorded {
                        received: event,
                        request,
                        evaluations: BTreeMap::new(),
                        completed: None,
                    });
                }
            }
            "policy.evaluated" => {
                if let Some(open) = of_span(&mut found, &event) {
                    let said = format!("{} ({})", text("result"), text("policy_id"));
                    open.evaluations.insert(text("action_id"), (event.sequence, said));
                }
            }
            "carp.resolution.completed" => {
                if let Some(open) = of_span(&mut found, &event) {
                    open.completed = Some(event);
                }
            }
            _ => {}
        }
        Ok(())
    })?;
    Ok(found)
}

/// The resolution that shares the event's span.
fn of_span<'a>(found: &'a mut [Recorded], event: &TraceEvent) -> Option<&'a mut Recorded> {
    found
        .iter_mut()
        .rev()
        .find(|one| one.received.session_id == event.session_id && one.received.span_id == event.span_id)
}

/// The request, from what the event keeps of it.
fn request(event: &TraceEvent, agent: &str) -> Result<Request> {
    let mut task = serde_json::Map::new();
    for key in ["goal", "risk_tier", "required_capabilities", "context_hints"] {
        if let Some(value) = event.payload.get(key) {
            task.insert(key.to_owned(), value.clone());
        }
    }
    let mut value = json!({
        "carp_version": "1.0", "request_id": event.payload.get("request_id"), "timestamp": event.timestamp,
        "operation": event.payload.get("operation"), "task": task,
        "requester": { "agent_id": agent, "session_id": event.session_id },
    });
    if let Value::Object(map) = &mut value {
        for key in ["atlas_ids", "context"] {
            if let Some(given) = event.payload.get(key) {
                map.insert(key.to_owned(), given.clone());
            }
        }
    }
    Ok(serde_json::from_value(value)?)
}

impl Again {
    fn compare(&mut self, one: &Recorded, set: &AtlasSet) -> Result<()> {
        self.resolutions += 1;
        let now: jiff::Timestamp = one.received.timestamp.parse()?;
        let ids = Ids {
            resolution: Uuid::nil(),
            approval: Uuid::nil(),
            trace: one.received.trace_id,
        };
        let resolved = resolve(set, &one.request, now, ids, &Ledger::new()).with_context(|| {
            format!(
                "event {} of session {}",
                one.received.sequence, one.received.session_id
            )
        })?;
        let mut left = one.evaluations.clone();
        for evaluation in &resolved.evaluations {
            self.evaluations += 1;
            let mut bytes = Vec::new();
            evaluation.write_payload(&mut bytes);
            let payload: Value = serde_json::from_slice(&bytes)?;
            let text = |key: &str| payload.get(key).and_then(Value::as_str).unwrap_or_default();
            let says = format!("{} ({})", text("result"), text("policy_id"));
            match left.remove(text("action_id")) {
                Some((_, was)) if was == says => {}
                Some((sequence, was)) => self.differs(one, sequence, Some(text("action_id")), was, says),
                None => self.differs(
                    one,
                    one.received.sequence,
                    Some(text("action_id")),
                    "no candidate".to_owned(),
                    says,
                ),
            }
        }
        for (action, (sequence, was)) in left {
            self.differs(one, sequence, Some(&action), was, "no candidate".to_owned());
        }
        if let Some(completed) = &one.completed {
            let resolution = &resolved.resolution;
            let says = [
                ("decision_type", json!(resolution.decision.kind)),
                ("allowed_count", json!(resolution.allowed_actions.len())),
                ("denied_count", json!(resolution.denied_actions.len())),
                ("context_block_count", json!(resolution.context_blocks.len())),
                ("ttl_seconds", json!(resolution.ttl_seconds)),
            ];
            for (key, says) in says {
                let was = completed.payload.get(key).cloned().unwrap_or_default();
                if was != says {
                    let (was, says) = (format!("{key} {was}"), format!("{key} {says}"));
                    self.differs(one, completed.sequence, None, was, says);
                }
            }
        }
        Ok(())
    }

    fn differs(
        &mut self,
        one: &Recorded,
        sequence: u64,
        action: Option<&str>,
        was: String,
        would_be: String,
    ) {
        let verdict = |text: &str| text.split(' ').next().unwrap_or_default().to_owned();
        let (before, after) = (verdict(&was), verdict(&would_be));
        if action.is_some() && before != after {
            match after.as_str() {
                "allow" => self.would_newly_allow += 1,
                "require_approval" => self.would_newly_ask += 1,
                _ => self.would_block += u64::from(before != "no"),
            }
        }
        let kind = match (action, sequence == one.received.sequence) {
            (None, _) => "carp.resolution.completed",
            (Some(_), true) => "carp.request.received",
            (Some(_), false) => "policy.evaluated",
        };
        self.differences.push(Difference {
            session_id: one.received.session_id,
            sequence,
            event_type: kind.to_owned(),
            action_id: action.map(str::to_owned),
            was,
            would_be,
        });
    }

    pub(super) fn people(&self, same: &str, other: &str) -> Result<()> {
        let paint = Paint::stdout();
        out::line(&format!(
            "{} resolutions, {} evaluations: would have blocked {}, would newly allow {}, would newly ask {}{}",
            self.resolutions,
            self.evaluations,
            self.would_block,
            self.would_newly_allow,
            self.would_newly_ask,
            if self.differences.is_empty() {
                format!("; all {same}")
            } else {
                String::new()
            }
        ))?;
        for difference in &self.differences {
            let action = difference
                .action_id
                .as_deref()
                .map_or_else(String::new, |action| format!(" {}", out::clipped(action, 60)));
            out::line(&format!(
                "  {}  session {}, event {}{action}: {} → {}",
                paint.red(other),
                difference.session_id,
                difference.sequence,
                out::clipped(&difference.was, 80),
                out::clipped(&difference.would_be, 80)
            ))?;
        }
        Ok(())
    }
}
