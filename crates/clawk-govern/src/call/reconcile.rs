//! Reconciliation of effects with an unknown outcome (promise 4): by the check that `clawk.toml` configures for the tool, by
//! repeating the request under its idempotency key, or by a person. An unknown effect is never repeated in another way.
//!
//! The module is part of `call`, because a check also has effects: it runs with a permit, after its decision is in the journal.

use std::sync::Arc;

use clawk_manifest::model::Role;
use clawk_policy::Verdict;
use clawk_proto::RequestId;
use clawk_proto::method::ToolCallResult;
use serde_json::{Map, Value, json};
use tokio_util::sync::CancellationToken;

use super::{
    CallApprover, CallGovernor, CallOrder, CallRecord, CallerContext, Permit, Request, run_failure, run_path,
};
use crate::catalog::CatalogEntry;
use crate::effect::{self, EffectSettlement, SettlementMethod};
use crate::error::CallError;
use crate::event::Thread;
use crate::ports::{OpenEffect, ReconcileMethod};
use crate::watch::NoticeSender;

/// Time limit for a check, in milliseconds.
const CHECK_MS: u64 = 30_000;

/// Tries to reconcile every unknown effect once. Those that stay unknown wait for a person.
pub async fn reconcile_effects(calls: &Arc<CallGovernor>) {
    let open = match calls.scribe.journal().open_effects().await {
        Ok(open) => open,
        Err(error) => {
            tracing::error!(%error, "the unknown effects can't be read");
            return;
        }
    };
    for effect in open {
        if calls.life.closing.is_cancelled() {
            return;
        }
        let found = match find_out(calls, &effect).await {
            Ok(Some((how, outcome))) => {
                let by = how.as_str();
                effect::resolve_one(&calls.scribe, &effect, outcome, (how, by, None)).await
            }
            Ok(None) => Ok(false),
            Err(error) => {
                tracing::warn!(%error, tool = effect.tool, "what became of a call could not be found out");
                Ok(false)
            }
        };
        match found {
            Ok(true) => {
                tracing::info!(tool = effect.tool, id = %effect.request_id, "an unknown effect was found out")
            }
            Ok(false) => {
                tracing::warn!(tool = effect.tool, id = %effect.request_id, "its outcome is unknown; `clawk effects` lists it");
            }
            Err(error) => tracing::error!(%error, "what was found out could not be recorded"),
        }
    }
}

/// Returns the outcome; `None`: it is still unknown.
async fn find_out(
    calls: &CallGovernor,
    effect: &OpenEffect,
) -> Result<Option<(SettlementMethod, EffectSettlement)>, CallError> {
    let mend = calls.runner.reconcile_method(&effect.tool);
    if mend == ReconcileMethod::Person {
        return Ok(None);
    }
    let Some(entry) = calls.catalog.get(&effect.tool) else {
        return Ok(None);
    };
    let content = calls.scribe.journal().read_content(effect.parameters).await?;
    // Without its arguments, which were erased, a call can't be checked.
    let Some(arguments) = content.and_then(|bytes| serde_json::from_slice::<Map<String, Value>>(&bytes).ok())
    else {
        return Ok(None);
    };
    let caller = CallerContext {
        thread: Thread {
            session: effect.session,
            span: effect.session.0,
            parent: None,
        },
        door: "reconcile",
        turn: None,
        call_id: None,
        ceilings: Vec::new(),
        depth: 0,
        role: Role::Admin,
        pends: false,
        notices: NoticeSender::default(),
        purse: calls.purses.root_account().clone(),
        context: Arc::default(),
        member: None,
        rank: CallOrder::default(),
    };
    let cancel = calls.life.stop.child_token();
    match mend {
        ReconcileMethod::Person => Ok(None),
        ReconcileMethod::SameKey => retry_call(calls, &caller, effect, arguments, &cancel).await,
        ReconcileMethod::Check => {
            let answer = run_check(calls, &caller, &entry, effect_facts(effect, arguments), &cancel).await?;
            Ok(parse_settlement(&answer).map(|outcome| (SettlementMethod::Check, outcome)))
        }
        ReconcileMethod::Tool(name) => {
            let answer = by_tool(calls, &caller, &name, effect_facts(effect, arguments), &cancel).await?;
            Ok(parse_settlement(&answer).map(|outcome| (SettlementMethod::Check, outcome)))
        }
    }
}

/// Returns the arguments of a check.
fn effect_facts(effect: &OpenEffect, arguments: Map<String, Value>) -> Map<String, Value> {
    let facts = json!({"request_id": effect.request_id, "tool": effect.tool, "arguments": arguments});
    match facts {
        Value::Object(facts) => facts,
        _ => Map::new(),
    }
}

/// Parses the check's answer: `done`, `not-done`, or unknown.
fn parse_settlement(answer: &ToolCallResult) -> Option<EffectSettlement> {
    if answer.is_error {
        return None;
    }
    let text: Vec<_> = answer.content.iter().map(|block| block.as_model_text()).collect();
    let text = text.join("\n");
    let text = text.trim();
    let word = match serde_json::from_str::<Value>(text) {
        Ok(Value::Object(object)) => object.get("outcome").and_then(Value::as_str).map(str::to_owned),
        Ok(Value::String(word)) => Some(word),
        Ok(_) | Err(_) => Some(text.to_owned()), // silent-ok: plain words are an answer, too
    };
    EffectSettlement::parse(word.as_deref()?)
}

/// Runs the check of `clawk.toml`. The operator who wrote it decided it; it is recorded and runs with a permit.
async fn run_check(
    calls: &CallGovernor,
    caller: &CallerContext,
    entry: &CatalogEntry,
    facts: Map<String, Value>,
    cancel: &CancellationToken,
) -> Result<ToolCallResult, CallError> {
    let request = build_request(calls, format!("{}:check", entry.name), facts);
    let started_us = calls.clock().monotonic_us();
    let mut record = CallRecord::new(calls, caller, &request);
    record.mark_harmless();
    let verdict = Verdict {
        reason: Some("`reconcile` of clawk.toml".into()),
        ..Verdict::allow()
    };
    record.record_decision(&verdict, &CallApprover::Policy).await?;
    let permit = Permit {
        tool: Arc::clone(&entry.name),
        arguments: request.arguments.clone(),
        digest: record.parameters,
        plan: Arc::clone(&entry.plan),
        workdir: calls.workdir.clone(),
        timeout_ms: entry.timeout_ms.min(CHECK_MS),
        request_id: request.request_id.clone(),
        session: caller.thread.session,
        marks: Arc::default(),
        apart: Arc::default(),
        connections: record.connections.clone(),
        read_only: true,
        made_from: Vec::new(),
        sources: record.sources.clone(),
    };
    let outcome = calls.runner.run_check(permit, cancel).await;
    let outcome = outcome.map_err(|error| run_failure(&entry.name, error));
    record.record_outcome(outcome, started_us).await
}

/// Runs a declared tool as the check. It is an ordinary call, and the tool must have no side effects.
async fn by_tool(
    calls: &CallGovernor,
    caller: &CallerContext,
    name: &str,
    facts: Map<String, Value>,
    cancel: &CancellationToken,
) -> Result<ToolCallResult, CallError> {
    let entry = calls
        .catalog
        .get(name)
        .ok_or_else(|| calls.catalog.unknown_tool(name))?;
    if !calls.describe_tool(&entry).await?.read_only() {
        return Err(CallError::Unavailable {
            tool: name.to_owned(),
            reason: "a tool with side effects can't be a `reconcile` check".to_owned(),
        });
    }
    super::call(
        calls,
        caller,
        build_request(calls, name.to_owned(), facts),
        cancel,
    )
    .await
}

fn build_request(calls: &CallGovernor, tool: String, arguments: Map<String, Value>) -> Request {
    Request {
        tool,
        arguments,
        request_id: RequestId::from(calls.clock().new_uuid()),
        identity: calls.manifest.identity.name.clone(),
        sandbox: None,
        policy: None,
        under: None,
        converted: Vec::new(),
    }
}

/// Sends the same request with the same id as its key through the whole path. Today's rules apply, so it may need an approval.
async fn retry_call(
    calls: &CallGovernor,
    caller: &CallerContext,
    effect: &OpenEffect,
    arguments: Map<String, Value>,
    cancel: &CancellationToken,
) -> Result<Option<(SettlementMethod, EffectSettlement)>, CallError> {
    let request = Request {
        request_id: effect.request_id.clone(),
        ..build_request(calls, effect.tool.clone(), arguments)
    };
    let seat = calls.desk.register_call(&request.request_id);
    let started_us = calls.clock().monotonic_us();
    let mut record = CallRecord::new(calls, caller, &request);
    let outcome = run_path(calls, caller, &request, &seat, &mut record, cancel).await;
    let answer = record.record_outcome(outcome, started_us).await?;
    // The other side knows the key, so its answer about the request is valid. A failure now says nothing about the earlier attempt.
    Ok((!answer.is_error).then_some((SettlementMethod::SameKey, EffectSettlement::Done)))
}
