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
use super::serve::{McpRequestContext, McpServerSession, shaped};
use crate::access::Scope;
use crate::error::ckp;

/// The tools that this client may use.
pub(super) async fn offered(asking: &McpRequestContext) -> Vec<Value> {
    if !asking.rights.may(Scope::Tool) {
        return Vec::new();
    }
    let offers = asking.kernel.offers(asking.rights.role()).await.into_iter();
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
    asking.needs(Scope::Tool)?;
    let session = served.calls(asking).await?;
    let request_id = RequestId::from(served.host().options().clock.uuid());
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
    let questions = asking.kernel.questions();
    let (done, mut end) = oneshot::channel();
    let calling = asking.kernel.call(session, params);
    served.host().outlive(async move {
        // silent-ok: the client is gone
        let _gone = done.send(calling.await);
    });
    let elicitor = McpElicitor::of(asking, &context.peer);
    let outcome = tokio::select! {
        outcome = &mut end => outcome,
        () = put(questions, &request_id, elicitor.as_ref()) => end.await,
    };
    match outcome {
        Ok(Ok(result)) => told(&result),
        Ok(Err(error)) => refused(&error, &request_id),
        Err(_) => Err(ErrorData::internal_error("the call ended without an end", None)),
    }
}

/// Asks the client's user the questions of this call.
async fn put(
    mut questions: broadcast::Receiver<ApprovalQuestion>,
    id: &RequestId,
    elicitor: Option<&McpElicitor>,
) {
    let Some(elicitor) = elicitor else {
        return std::future::pending().await;
    };
    loop {
        match questions.recv().await {
            Ok(question) if question.request_id == *id => elicitor.put(&question).await,
            // The question of another call, or the receiver lagged and ours may be lost: then it waits for another person.
            Ok(_) | Err(broadcast::error::RecvError::Lagged(_)) => {}
            Err(broadcast::error::RecvError::Closed) => return,
        }
    }
}

fn told(result: &ToolCallResult) -> Result<CallToolResult, ErrorData> {
    shaped(json!(result))
}

/// The result of a call that did not run: text for the client's model, and stable facts beside it. An unknown tool is a protocol
/// error of the client.
fn refused(error: &CallError, id: &RequestId) -> Result<CallToolResult, ErrorData> {
    let error_on_wire = ckp::from_call(error, id);
    if matches!(error, CallError::UnknownTool { .. }) {
        return Err(ErrorData::invalid_params(error.to_string(), error_on_wire.data));
    }
    shaped(json!({
        "content": [{"type": "text", "text": error.to_string()}],
        "_meta": {"clawk/error": {"code": error_on_wire.code, "data": error_on_wire.data}},
        "isError": true,
    }))
}
