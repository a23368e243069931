//! The agent's declared tools, called through the one path.

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

/// The tools that this client may see.
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

/// Calls one. A client that goes away does not stop what has begun: the record has its end.
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
    // Before the call: what it asks is not missed.
    let questions = asking.kernel.questions();
    let (done, mut end) = oneshot::channel();
    let calling = asking.kernel.call(session, params);
    served.host().outlive(async move {
        // silent-ok: a client that is gone reads no result
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

/// Puts this call's questions to the client's person.
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
            // Of others; or so many at once that ours may be among the missed: it waits for somebody else then.
            Ok(_) | Err(broadcast::error::RecvError::Lagged(_)) => {}
            Err(broadcast::error::RecvError::Closed) => return,
        }
    }
}

fn told(result: &ToolCallResult) -> Result<CallToolResult, ErrorData> {
    shaped(json!(result))
}

/// A call that did not run is a result that the client's model can read, with the stable facts beside it. What is not a tool here
/// is the client's own fault.
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
