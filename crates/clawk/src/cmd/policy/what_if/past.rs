//! The calls of a record, each with the policy's decision at the time.

use std::collections::HashMap;

use anyhow::Result;
use clawk_kernel::kind;
use clawk_manifest::model::AutonomyLevel;
use clawk_policy::VerdictOutcome;
use clawk_proto::trace::TraceEvent;
use clawk_proto::{Digest, SessionId};
use serde_json::Value;

use crate::cmd::trace::source::TraceSource;

/// A call that a policy decided.
#[derive(Debug)]
pub(super) struct PastCall {
    pub(super) session: SessionId,
    pub(super) timestamp: String,
    pub(super) request_id: String,
    pub(super) tool: String,
    /// Digest of its arguments.
    pub(super) arguments: Option<Digest>,
    /// Sources of untrusted text in the context of the call.
    pub(super) taint: Vec<String>,
    /// Digests of the owner's earlier messages in the session.
    pub(super) said: Vec<Digest>,
    pub(super) outcome: VerdictOutcome,
    pub(super) rule: Option<String>,
}

/// All calls of a record.
#[derive(Debug)]
pub(super) struct PastCallRecord {
    pub(super) calls: Vec<PastCall>,
    /// Number of calls that ended before or without a decision.
    pub(super) undecided: usize,
    /// The autonomy level in decisions that no rule made; `autonomous` if there are none.
    pub(super) autonomy: AutonomyLevel,
}

/// What is known so far of one call.
#[derive(Debug)]
struct OpenPastCall {
    call: PastCall,
    asked: bool,
    decided: bool,
}

impl PastCallRecord {
    /// Reads the events of one session or of all.
    pub(super) fn from_source(source: &TraceSource, session: Option<&str>) -> Result<Self> {
        let pick = source.select_sessions(session)?;
        let mut open: Vec<OpenPastCall> = Vec::new();
        let mut places = HashMap::new();
        let mut autonomy = AutonomyLevel::Autonomous;
        let mut said: HashMap<SessionId, Vec<Digest>> = HashMap::new();
        source.for_each_event(pick, |event| {
            let text = |key: &str| event.payload.get(key).and_then(Value::as_str);
            if let Some(words) = owners_words(&event) {
                said.entry(event.session_id).or_default().push(words);
            }
            let Some(id) = text("request_id") else {
                return Ok(());
            };
            // The events of one call have the same span.
            let key = (event.session_id, event.span_id);
            if event.event_type == "action.requested" {
                places.insert(key, open.len());
                let said = said.get(&event.session_id).cloned().unwrap_or_default();
                open.push(open_call(&event, id, said));
                return Ok(());
            }
            let Some(known) = places.get(&key).and_then(|&at: &usize| open.get_mut(at)) else {
                return Ok(());
            };
            known.apply_event(&event.event_type, &text);
            if let Some(seen) = seen_autonomy(&event.event_type, &text) {
                autonomy = seen;
            }
            Ok(())
        })?;
        let all = open.len();
        let calls: Vec<PastCall> = open
            .into_iter()
            .filter(|open| open.decided)
            .map(|open| open.call)
            .collect();
        Ok(Self {
            undecided: all - calls.len(),
            calls,
            autonomy,
        })
    }
}

/// Returns the digest of a message that is the owner's own text and repeats nobody else's.
fn owners_words(event: &TraceEvent) -> Option<Digest> {
    let text = |key: &str| event.payload.get(key).and_then(Value::as_str);
    let repeats = event.payload.get("repeats").and_then(Value::as_array);
    let is_owners = event.event_type == kind::MESSAGE_ACCEPTED
        && text("author_kind") == Some("person")
        && text("role") == Some("admin")
        && repeats.is_none_or(Vec::is_empty);
    text("text_hash").filter(|_| is_owners).and_then(Digest::from_hex)
}

fn open_call(event: &TraceEvent, request_id: &str, said: Vec<Digest>) -> OpenPastCall {
    let text = |key: &str| event.payload.get(key).and_then(Value::as_str);
    OpenPastCall {
        call: PastCall {
            session: event.session_id,
            timestamp: event.timestamp.clone(),
            request_id: request_id.to_owned(),
            tool: text("action_id").unwrap_or_default().to_owned(),
            arguments: text("parameters_hash").and_then(Digest::from_hex),
            taint: event
                .payload
                .get("taint")
                .and_then(Value::as_array)
                .map(|all| all.iter().filter_map(Value::as_str).map(str::to_owned).collect())
                .unwrap_or_default(),
            said,
            outcome: VerdictOutcome::Deny,
            rule: None,
        },
        asked: false,
        decided: false,
    }
}

impl OpenPastCall {
    fn apply_event<'t>(&mut self, kind: &str, text: &dyn Fn(&str) -> Option<&'t str>) {
        let outcome = match kind {
            "ckp.approval.requested" => {
                self.asked = true;
                Some(VerdictOutcome::Ask)
            }
            "action.approved" if !self.asked => match text("effect") {
                Some("allow" | "audit-only") => Some(VerdictOutcome::Allow),
                Some("require-approval") => Some(VerdictOutcome::Ask),
                Some("deny") => Some(VerdictOutcome::Deny),
                Some(_) | None => None,
            },
            // A rule's used-up limit is recorded as `quota`. A provider's limit is, too, but without a rule id.
            "action.denied" if !self.asked => match text("by") {
                Some("policy" | "autonomy") => Some(VerdictOutcome::Deny),
                Some(_) | None => None,
            },
            _ => None,
        };
        if let Some(outcome) = outcome {
            self.decided = true;
            self.call.outcome = outcome;
            self.call.rule = text("rule_id").map(str::to_owned);
        }
    }
}

/// Returns the identity's autonomy level, if the event shows it.
fn seen_autonomy<'t>(kind: &str, text: &dyn Fn(&str) -> Option<&'t str>) -> Option<AutonomyLevel> {
    match kind {
        "ckp.approval.requested" if text("rule_id").is_none() => Some(AutonomyLevel::Supervised),
        "action.denied" if text("by") == Some("autonomy") => Some(AutonomyLevel::Observer),
        _ => None,
    }
}
