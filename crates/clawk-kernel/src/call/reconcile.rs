//! Finding out what became of effects whose outcome is unknown (promise 4): by the check that `clawk.toml` gives their tool,
//! by the same request again under its idempotency key, or by a person. Nothing unknown is run again in any other way.
//!
//! It lies inside `call`, since what finds out acts, too: it runs by a permit, after its decision is in the journal.

use std::sync::Arc;

use clawk_manifest::model::Role;
use clawk_policy::Verdict;
use clawk_proto::RequestId;
use clawk_proto::method::ToolCallResult;
use serde_json::{Map, Value, json};
use tokio_util::sync::CancellationToken;

use super::{Approver, Caller, Permit, Record, Request, failed, path};
use crate::agent::Agent;
use crate::catalog::Entry;
use crate::effect::{self, How, Outcome};
use crate::error::CallError;
use crate::event::Thread;
use crate::ports::{Mend, OpenEffect};
use crate::session::Notices;

/// How long a check may take, milliseconds.
const CHECK_MS: u64 = 30_000;

/// Goes through everything that is unknown, once; what stays unknown waits for a person.
pub(crate) async fn reconcile(agent: &Arc<Agent>) {
    let open = match agent.scribe.journal().open_effects().await {
        Ok(open) => open,
        Err(error) => {
            tracing::error!(%error, "the unknown effects can't be read");
            return;
        }
    };
    for effect in open {
        if agent.closing.is_cancelled() {
            return;
        }
        let found = match find_out(agent, &effect).await {
            Ok(Some((how, outcome))) => {
                let by = how.word();
                effect::resolve_one(&agent.scribe, &effect, outcome, (how, by, None)).await
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

/// `None`: it is still not known.
async fn find_out(agent: &Agent, effect: &OpenEffect) -> Result<Option<(How, Outcome)>, CallError> {
    let mend = agent.runner.mend(&effect.tool);
    if mend == Mend::Person {
        return Ok(None);
    }
    let Some(entry) = agent.catalog.get(&effect.tool) else {
        return Ok(None);
    };
    let content = agent.scribe.journal().content(effect.parameters).await?;
    // Erased arguments can't be asked about.
    let Some(arguments) = content.and_then(|bytes| serde_json::from_slice::<Map<String, Value>>(&bytes).ok())
    else {
        return Ok(None);
    };
    let caller = Caller {
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
        notices: Notices::default(),
        purse: agent.purses.root().clone(),
    };
    let cancel = agent.stop.child_token();
    match mend {
        Mend::Person => Ok(None),
        Mend::SameKey => again(agent, &caller, effect, arguments, &cancel).await,
        Mend::Check => {
            let answer = check(agent, &caller, &entry, facts(effect, arguments), &cancel).await?;
            Ok(said(&answer).map(|outcome| (How::Check, outcome)))
        }
        Mend::Tool(name) => {
            let answer = by_tool(agent, &caller, &name, facts(effect, arguments), &cancel).await?;
            Ok(said(&answer).map(|outcome| (How::Check, outcome)))
        }
    }
}

/// What a check is given.
fn facts(effect: &OpenEffect, arguments: Map<String, Value>) -> Map<String, Value> {
    let facts = json!({"request_id": effect.request_id, "tool": effect.tool, "arguments": arguments});
    match facts {
        Value::Object(facts) => facts,
        _ => Map::new(),
    }
}

/// The check's answer: `done`, `not-done`, or that it does not know.
fn said(answer: &ToolCallResult) -> Option<Outcome> {
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
    Outcome::parse(word.as_deref()?)
}

/// The check of `clawk.toml`: decided by the operator who wrote it, recorded, run by a permit.
async fn check(
    agent: &Agent,
    caller: &Caller,
    entry: &Entry,
    facts: Map<String, Value>,
    cancel: &CancellationToken,
) -> Result<ToolCallResult, CallError> {
    let request = request(agent, format!("{}:check", entry.name), facts);
    let started_us = agent.clock().monotonic_us();
    let mut record = Record::new(agent, caller, &request);
    record.harmless();
    let verdict = Verdict {
        reason: Some("`reconcile` of clawk.toml".into()),
        ..Verdict::allow()
    };
    record.decided(&verdict, &Approver::Policy).await?;
    let permit = Permit {
        tool: Arc::clone(&entry.name),
        arguments: request.arguments.clone(),
        digest: record.parameters,
        plan: Arc::clone(&entry.plan),
        workdir: agent.options.workdir.clone(),
        timeout_ms: entry.timeout_ms.min(CHECK_MS),
        request_id: request.request_id.clone(),
        session: caller.thread.session,
        marks: Arc::default(),
        apart: Arc::default(),
        connections: record.connections.clone(),
    };
    let outcome = agent.runner.check(permit, cancel).await;
    let outcome = outcome.map_err(|error| failed(&entry.name, error));
    record.close(outcome, started_us).await
}

/// A declared tool as the check: a call like any other, and only one without side effects.
async fn by_tool(
    agent: &Agent,
    caller: &Caller,
    name: &str,
    facts: Map<String, Value>,
    cancel: &CancellationToken,
) -> Result<ToolCallResult, CallError> {
    let entry = agent
        .catalog
        .get(name)
        .ok_or_else(|| agent.catalog.unknown(name))?;
    if !agent.described(&entry).await?.read_only() {
        return Err(CallError::Unavailable {
            tool: name.to_owned(),
            reason: "a tool with side effects can't be a `reconcile` check".to_owned(),
        });
    }
    super::call(agent, caller, request(agent, name.to_owned(), facts), cancel).await
}

fn request(agent: &Agent, tool: String, arguments: Map<String, Value>) -> Request {
    Request {
        tool,
        arguments,
        request_id: RequestId::from(agent.clock().uuid()),
        identity: agent.manifest.identity.name.clone(),
        sandbox: None,
        policy: None,
        under: None,
    }
}

/// The same request, with the same id as its key, down the whole path: today's rules hold, and a rule that asks, asks.
async fn again(
    agent: &Agent,
    caller: &Caller,
    effect: &OpenEffect,
    arguments: Map<String, Value>,
    cancel: &CancellationToken,
) -> Result<Option<(How, Outcome)>, CallError> {
    let request = Request {
        request_id: effect.request_id.clone(),
        ..request(agent, effect.tool.clone(), arguments)
    };
    let seat = agent.desk.sit(&request.request_id);
    let started_us = agent.clock().monotonic_us();
    let mut record = Record::new(agent, caller, &request);
    let outcome = path(agent, caller, &request, &seat, &mut record, cancel).await;
    let answer = record.close(outcome, started_us).await?;
    // The other side knows the key: what it says of the request is so. That it failed now says nothing of before.
    Ok((!answer.is_error).then_some((How::SameKey, Outcome::Done)))
}
