//! Calls the agent's declared tools through the one call path.

use clawk_kernel::{ApprovalQuestion, CallError};
use clawk_proto::RequestId;
use clawk_proto::method::{CallContext, ToolCallParams, ToolCallResult};
use rmcp::model::{CallToolResult, JsonObject};
use rmcp::service::RequestContext;
use rmcp::{ErrorData, RoleServer};
use serde_json::{Value, json};
use tokio::sync::{broadcast, oneshot};

use super::ask;
use super::questions::McpElicitor;
use super::serve::{McpRequestContext, McpServerSession, from_json};
use crate::access::Scope;
use crate::error::ckp;

/// The tools that this client may use.
pub(super) async fn visible_tools(asking: &McpRequestContext) -> Vec<Value> {
    if !asking.rights.has_scope(Scope::Tool) {
        return Vec::new();
    }
    let offers = asking
        .kernel
        .offered_tools(asking.rights.role())
        .await
        .into_iter();
    offers
        .filter(|offer| offer.name != ask::NAME)
        .map(|offer| {
            json!({"name": offer.name, "description": offer.description, "inputSchema": offer.input_schema})
        })
        .collect()
}

/// Calls a tool. If the client disconnects, the call continues, and the record has its result.
pub(super) async fn call(
    served: &McpServerSession,
    asking: &McpRequestContext,
    name: &str,
    arguments: JsonObject,
    context: &RequestContext<RoleServer>,
) -> Result<CallToolResult, ErrorData> {
    asking.require_scope(Scope::Tool)?;
    let session = served.call_session(asking).await?;
    let request_id = RequestId::from(served.host().options().clock.new_uuid());
    let params = ToolCallParams {
        name: name.to_owned(),
        arguments,
        context: CallContext {
            request_id: request_id.clone(),
            identity: asking.kernel.manifest().identity.name.clone(),
            sandbox: None,
            policy: None,
        },
    };
    // Subscribed before the call starts, so that no question of the call is missed.
    let questions = asking.kernel.subscribe_questions();
    let (done, mut end) = oneshot::channel();
    let calling = asking.kernel.call(session, params);
    served.host().spawn_detached(async move {
        // silent-ok: the client is gone
        let _gone = done.send(calling.await);
    });
    let elicitor = McpElicitor::for_client(asking, &context.peer);
    let outcome = tokio::select! {
        outcome = &mut end => outcome,
        () = ask_questions(questions, &request_id, elicitor.as_ref()) => end.await,
    };
    match outcome {
        Ok(Ok(result)) => result_of_call(&result),
        Ok(Err(error)) => result_of_refusal(&error, &request_id),
        Err(_) => Err(ErrorData::internal_error("the call ended without an end", None)),
    }
}

/// Asks the client's user the questions of this call.
async fn ask_questions(
    mut questions: broadcast::Receiver<ApprovalQuestion>,
    id: &RequestId,
    elicitor: Option<&McpElicitor>,
) {
    let Some(elicitor) = elicitor else {
        return std::future::pending().await;
    };
    loop {
        match questions.recv().await {
            Ok(question) if question.request_id == *id => elicitor.ask_question(&question).await,
            // The question of another call, or the receiver lagged and ours may be lost: then it waits for another person.
            Ok(_) | Err(broadcast::error::RecvError::Lagged(_)) => {}
            Err(broadcast::error::RecvError::Closed) => return,
        }
    }
}

fn result_of_call(result: &ToolCallResult) -> Result<CallToolResult, ErrorData> {
    from_json(json!(result))
}

/// The result of a call that did not run: text for the client's model, and stable facts beside it. An unknown tool is a protocol
/// error of the client.
fn result_of_refusal(error: &CallError, id: &RequestId) -> Result<CallToolResult, ErrorData> {
    let error_on_wire = ckp::from_call(error, id);
    if matches!(error, CallError::UnknownTool { .. }) {
        return Err(ErrorData::invalid_params(error.to_string(), error_on_wire.data));
    }
    from_json(json!({
        "content": [{"type": "text", "text": error.to_string()}],
        "_meta": {"clawk/error": {"code": error_on_wire.code, "data": error_on_wire.data}},
        "isError": true,
    }))
}
