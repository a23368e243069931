//! The tool `ask`: sends a message to the agent and returns its answer.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use clawk_kernel::{ApprovalQuestion, SessionNotice, TalkRequest, TalkStop};
use clawk_proto::{MessageId, RequestId};
use rmcp::model::{CallToolResult, JsonObject, ProgressNotificationParam};
use rmcp::service::RequestContext;
use rmcp::{ErrorData, RoleServer};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::questions::McpElicitor;
use super::serve::{McpRequestContext, McpServerSession, from_json};
use crate::access::Scope;
use crate::telling::{TurnTextBuffer, TurnTextStep};

/// The tool's name. A declared tool of the same name is hidden here.
pub(super) const NAME: &str = "ask";
/// The largest number of open questions of one turn that wait for the client's user.
const MAX_QUESTIONS: usize = 64;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Arguments {
    message: String,
    #[serde(default)]
    conversation: Option<String>,
}

/// The tool's entry in the list.
pub(super) fn describe_tool(kernel: &clawk_kernel::Kernel) -> Value {
    let name = &kernel.agent_info().name;
    json!({
        "name": NAME,
        "title": format!("Ask {name}"),
        "description": format!("Says something to the agent `{name}` and returns its answer. The agent remembers what was said in the same conversation."),
        "inputSchema": {
            "type": "object",
            "properties": {
                "message": {"type": "string", "description": "What is said to the agent"},
                "conversation": {"type": "string", "description": "Which conversation goes on; a new one without"},
            },
            "required": ["message"],
            "additionalProperties": false,
        },
        "outputSchema": {
            "type": "object",
            "properties": {
                "conversation": {"type": "string"},
                "session_id": {"type": "string"},
                "turn_id": {"type": "string"},
                "stop": {"type": "string", "enum": ["answered", "refused", "cancelled", "budget", "stopped", "failed"]},
                "record": {"type": "object", "description": "What the agent did, by its record; absent where there is nothing to say"},
                "usage": {
                    "type": "object",
                    "properties": {"input_tokens": {"type": "integer"}, "output_tokens": {"type": "integer"}},
                },
            },
            "required": ["conversation", "session_id", "turn_id", "stop"],
        },
    })
}

/// Runs the tool. If the client disconnects, the turn continues. If it cancels the request, the turn is cancelled.
pub(super) async fn ask_agent(
    served: &McpServerSession,
    asking: &McpRequestContext,
    arguments: JsonObject,
    context: &RequestContext<RoleServer>,
) -> Result<CallToolResult, ErrorData> {
    asking.require_scope(Scope::Message)?;
    let arguments: Arguments = serde_json::from_value(Value::Object(arguments)).map_err(|error| {
        ErrorData::invalid_params(format!("the arguments of `{NAME}` are wrong: {error}"), None)
    })?;
    let request_id = RequestId::from(served.host().options().clock.new_uuid());
    let talk = TalkRequest::new(
        asking.rights.name(),
        arguments.conversation,
        arguments.message,
        request_id,
    );
    let (session, turn) = talk
        .derive_address()
        .map_err(|error| ErrorData::invalid_params(error.to_string(), None))?;
    let telling = Arc::<TurnTextBuffer>::default();
    let (questions, mut asked) = mpsc::channel::<ApprovalQuestion>(MAX_QUESTIONS);
    let (heard, kernel, door) = (Arc::clone(&telling), asking.kernel.clone(), asking.entry_point());
    let (cancel, runs) = (context.ct.clone(), Arc::<AtomicBool>::default());
    let begun = Arc::clone(&runs);
    served.host().spawn_detached(async move {
        let tell = |_: MessageId, notice: &SessionNotice| {
            heard.add_notice(notice);
            if matches!(notice, SessionNotice::TurnStarted { .. }) {
                begun.store(true, Ordering::SeqCst);
            }
            let steps = match notice {
                SessionNotice::Asking(question) => std::slice::from_ref(&**question),
                SessionNotice::Planned(plan) => &plan.steps,
                _ => return,
            };
            for question in steps {
                // silent-ok: the queue is full, and the question waits for another person
                let _full = questions.try_send(question.clone());
            }
        };
        heard.end_turn(kernel.send_message(door, talk, &tell).await);
    });
    let elicitor = McpElicitor::for_client(asking, &context.peer);
    let putting = async {
        while let Some(question) = asked.recv().await {
            if let Some(elicitor) = &elicitor {
                elicitor.ask_question(&question).await;
            }
        }
        std::future::pending::<()>().await;
    };
    tokio::select! {
        outcome = follow_turn(&telling, context) => {
            let told = outcome.as_ref().as_ref().map_err(|error| ErrorData::invalid_request(error.to_string(), None))?;
            served.note_conversation(told.session).await;
            tool_result(told, telling.text())
        }
        () = putting => Err(ErrorData::internal_error("the questions ended before the turn", None)),
        // A turn that still waits behind another turn is not cancelled: it runs in its order.
        () = cancel.cancelled() => {
            if runs.load(Ordering::SeqCst) {
                asking.kernel.cancel_turn(session);
            }
            Err(ErrorData::internal_error(format!("the request was cancelled; its turn was {turn}"), None))
        }
    }
}

/// Waits for the turn's end. Sends text as progress notifications if the client wants them.
async fn follow_turn(
    telling: &TurnTextBuffer,
    context: &RequestContext<RoleServer>,
) -> Arc<Result<clawk_kernel::TurnResult, clawk_kernel::KernelError>> {
    let token = context.meta.get_progress_token();
    let mut told = 0_usize;
    loop {
        match telling.next(told).await {
            TurnTextStep::End(outcome) => return outcome,
            TurnTextStep::Text(more) => {
                told += more.len();
                if let Some(token) = &token {
                    let bytes = u32::try_from(told).unwrap_or(u32::MAX);
                    let mut progress = ProgressNotificationParam::new(token.clone(), f64::from(bytes));
                    progress.message = Some(more);
                    // silent-ok: the client is gone
                    let _gone = context.peer.notify_progress(progress).await;
                }
            }
        }
    }
}

fn tool_result(told: &clawk_kernel::TurnResult, text: String) -> Result<CallToolResult, ErrorData> {
    let (stop, is_error) = match told.stop {
        TalkStop::Answered => ("answered", false),
        TalkStop::Refused => ("refused", false),
        TalkStop::Budget => ("budget", true),
        TalkStop::Stopped => ("stopped", true),
        TalkStop::Cancelled => ("cancelled", true),
        TalkStop::Failed => ("failed", true),
    };
    let text = match (&told.reason, is_error) {
        (Some(reason), _) => format!("{text}\n\n{reason}").trim().to_owned(),
        (None, true) => format!("{text}\n\nthe turn was {stop}").trim().to_owned(),
        (None, false) => text,
    };
    let record = told
        .shown
        .as_ref()
        .and_then(clawk_kernel::shown::TurnCallSummary::to_json);
    let mut content = vec![json!({"type": "text", "text": text})];
    // The record is a separate part, for the client's user.
    let line = record.as_ref().and_then(|record| record.get("text"));
    content.extend(
        line.map(|line| json!({"type": "text", "text": line, "annotations": {"audience": ["user"]}})),
    );
    let mut shape = json!({
        "content": content,
        "structuredContent": {
            "conversation": told.conversation,
            "session_id": told.session,
            "turn_id": told.turn,
            "stop": stop,
            "usage": {"input_tokens": told.usage.input_tokens, "output_tokens": told.usage.output_tokens},
        },
        "isError": is_error,
    });
    let structured = shape.get_mut("structuredContent").and_then(Value::as_object_mut);
    if let (Some(record), Some(structured)) = (record, structured) {
        structured.insert("record".to_owned(), record);
    }
    from_json(shape)
}
