//! MCP sampling: a server that serves a call asks the agent's model a question (`sampling/createMessage`).
//!
//! It is off unless the operator allows it for the server. The question is a governed call of the tool `mcp-sampling` in its own
//! session: policies decide on it, the calling session's budget pays, and it is in the trace. The server's text is data: the model
//! sees neither the agent's identity nor its tools, and its answer goes only to the server.

use std::sync::Arc;

use clawk_manifest::model::Tool;
use clawk_plan::ObtainedEnforcement;
use clawk_proto::content::ContentBlock;
use clawk_proto::{RequestId, SessionId};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::author::TextAuthor;
use crate::call::{CallOrder, CallerContext, Permit, Request, call};
use crate::door::EntryPoint;
use crate::event::Thread;
use crate::infer::{InferenceContext, NoAnswer, infer_with_fallback};
use crate::ports::{
    InferRequest, ModelMessage, RunError, RunOutcome, SampleAnswer, SampleRequest, SampleRole,
    SamplingHandler, StopReason,
};
use crate::purse::{BudgetAccount, BudgetAmount};
use crate::services::KernelServices;
use crate::session::{SessionHandle, SessionOpening, SessionServices};
use crate::watch::NoticeSender;

/// The name of sampling in policies and in the trace. A manifest cannot declare a tool of this name, and clawk offers it to
/// no model or client.
pub const NAME: &str = "mcp-sampling";
/// Entry point of the call.
const DOOR: &str = "mcp";
/// Largest number of messages in one question.
const MAX_MESSAGES: usize = 64;
/// Largest question including the system prompt, in bytes.
const MAX_BYTES: usize = 256 << 10;

/// The way of a server's question to a model, for what runs the servers. It does not keep the agent alive.
pub(crate) fn sampling_handler(sessions: &Arc<SessionServices>) -> SamplingHandler {
    let sessions = Arc::downgrade(sessions);
    Arc::new(move |session, asked, cancel| {
        let sessions = sessions.upgrade();
        Box::pin(async move {
            let sessions = sessions.ok_or_else(|| "the agent has ended".to_owned())?;
            perform_sample(&sessions, session, &asked, &cancel).await
        })
    })
}

/// Sends the question and waits for the answer.
///
/// # Errors
/// The reason why there is no answer, in a form that the server may read: a policy or a person refused, a budget is used up, the
/// session has ended, or no provider answered.
async fn perform_sample(
    sessions: &Arc<SessionServices>,
    session: SessionId,
    sample: &SampleRequest,
    cancel: &CancellationToken,
) -> Result<SampleAnswer, String> {
    let calls = &sessions.calls;
    let Some(state) = calls.table.get(session) else {
        return Err("the session of this call has ended".to_owned());
    };
    let role = state.door.role();
    let opening = SessionOpening {
        id: None,
        door: EntryPoint::Rpc {
            client: format!("MCP server {}", sample.server),
            role,
        },
        provider: calls.models.primary_provider().to_owned(),
        goal: format!("{NAME} for session {session}"),
        history: Vec::new(),
        under: Some(state.purse.clone()),
        spent: BudgetAmount::default(),
        surface: false,
        peer_messages: Vec::new(),
        member: None,
    };
    let own = SessionHandle::open(sessions, opening).await;
    let id = own.map_err(|error| error.to_string())?.id;
    let caller = CallerContext {
        thread: Thread::for_session(id),
        door: DOOR,
        turn: None,
        call_id: None,
        ceilings: Vec::new(),
        depth: 0,
        role,
        notices: NoticeSender::default(),
        pends: false,
        purse: calls.table.purse_of(id),
        context: Arc::new(calls.session_context(id)),
        member: None,
        rank: CallOrder::default(),
    };
    let request = Request {
        tool: NAME.to_owned(),
        arguments: json!(sample).as_object().cloned().unwrap_or_default(),
        request_id: RequestId::from(calls.clock().new_uuid()),
        identity: calls.manifest.identity.name.clone(),
        sandbox: None,
        policy: None,
        under: None,
        converted: Vec::new(),
    };
    let ended = call(calls, &caller, request, cancel).await;
    sessions.end_session(id, "the server has its answer").await;
    let result = ended.map_err(|error| error.to_string())?;
    let texts = result.content.iter().map(ContentBlock::as_model_text);
    let text: String = texts.collect();
    if result.is_error {
        return Err(text);
    }
    let answer = result.structured_content.unwrap_or_default();
    serde_json::from_value(answer).map_err(|_| text) // silent-ok: screening changed its shape; the text says so
}

/// Returns whether this caller may use the tool. Only a server's question may.
pub(crate) fn may_sample(caller: &CallerContext) -> bool {
    caller.door == DOOR
}

/// Asks the model. The server's text is the whole prompt.
pub(crate) async fn run(
    calls: &KernelServices,
    caller: &CallerContext,
    permit: &Permit,
    purse: &BudgetAccount,
    cancel: &CancellationToken,
) -> Result<RunOutcome, RunError> {
    let arguments = Value::Object(permit.arguments().clone());
    let sample: SampleRequest = match serde_json::from_value(arguments) {
        Ok(sample) => sample,
        Err(error) => return Ok(text_outcome(format!("bad question: {error}"), None)),
    };
    if let Err(reason) = check_sample(&sample) {
        return Ok(text_outcome(reason, None));
    }
    let provider = sample
        .provider
        .as_deref()
        .unwrap_or(calls.models.primary_provider());
    let turn = calls.clock().new_uuid();
    let site = InferenceContext {
        thread: caller.thread.child(turn),
        turn,
        notices: &caller.notices,
        purse,
        member: None,
    };
    let messages = sample.messages.iter().map(|message| match message.role {
        SampleRole::User => ModelMessage::User {
            text: message.text.clone(),
            images: Vec::new(),
            frame: String::new(),
            author: TextAuthor::unknown(),
        },
        SampleRole::Assistant => ModelMessage::Assistant {
            text: message.text.clone(),
            calls: Vec::new(),
            state: None,
        },
    });
    let request = InferRequest {
        system: sample.system.clone().unwrap_or_default(),
        messages: messages.collect(),
        tools: Vec::new(),
        max_output_tokens: sample.max_tokens,
        ..InferRequest::default()
    };
    match infer_with_fallback(&calls.models, site, provider, request, cancel).await {
        Ok(completion) => {
            let sampled = SampleAnswer {
                text: completion.text,
                model: completion.model,
                cut: completion.stop == StopReason::Length,
            };
            Ok(text_outcome(sampled.text.clone(), Some(json!(sampled))))
        }
        Err(NoAnswer::Cancelled) => Err(RunError::Cancelled),
        Err(NoAnswer::Failed(reason) | NoAnswer::Quota(reason)) => Ok(text_outcome(reason, None)),
    }
}

fn check_sample(sample: &SampleRequest) -> Result<(), String> {
    let texts = sample.messages.iter().map(|message| message.text.len());
    let bytes = texts.sum::<usize>() + sample.system.as_deref().map_or(0, str::len);
    if sample.messages.is_empty() || sample.messages.len() > MAX_MESSAGES {
        return Err(format!("a question has 1 to {MAX_MESSAGES} messages"));
    }
    if bytes > MAX_BYTES {
        return Err(format!("a question has at most {MAX_BYTES} bytes"));
    }
    match sample.messages.last() {
        Some(last) if last.role == SampleRole::User => Ok(()),
        _ => Err("the last message of a question is the user's".to_owned()),
    }
}

fn text_outcome(text: String, structured: Option<Value>) -> RunOutcome {
    RunOutcome {
        content: vec![ContentBlock::text(text)],
        is_error: structured.is_none(),
        structured,
        obtained: ObtainedEnforcement::in_process("provider"),
    }
}

/// Returns the tool for the catalogue.
pub(crate) fn tool_declaration() -> Tool {
    let hints = json!({"readOnlyHint": false, "destructiveHint": false, "idempotentHint": false, "openWorldHint": true});
    let text = |about: &str| json!({"type": "string", "description": about});
    let schema = json!({
        "type": "object",
        "properties": {
            "server": text("The MCP server that asks."),
            "provider": text("The provider that answers."),
            "system": text("The system prompt that the server wants."),
            "messages": {"type": "array", "items": {"type": "object"}},
            "max_tokens": {"type": "integer", "minimum": 1},
        },
        "required": ["server", "messages", "max_tokens"],
        "additionalProperties": false,
    });
    Tool {
        name: NAME.to_owned(),
        version: None,
        labels: Default::default(),
        description: Some("An MCP server asks the agent's model a question.".to_owned()),
        input_schema: Some(schema),
        output_schema: None,
        sandbox_ref: None,
        policy_ref: None,
        mcp_source: None,
        annotations: hints.as_object().cloned().unwrap_or_default(),
        composite: false,
        skill_ref: None,
        timeout_ms: None,
        retry: None,
    }
}
