//! CARP `execute` for CRA clients: the protocol's checks and records, then the call path.

use std::sync::Arc;

use clawk_manifest::model::Role;
use clawk_proto::carp::{
    CARP_VERSION, CarpExecution, CarpFault, ExecuteResponse, ExecutionError, ExecutionStatus, Request,
};
use clawk_proto::method::ToolCallResult;
use clawk_proto::{Digest, RequestId, SessionId};
use serde_json::{Map, Value, json};
use uuid::Uuid;

use crate::call::{self, CallOrder, CallerContext, call};
use crate::carp::book::ReusedIdempotencyKey;
use crate::carp::resolve::{check_skew, record_error};
use crate::carp::turn::input_fault;
use crate::carp::{CarpError, ResolutionContext};
use crate::error::CallError;
use crate::event::{Thread, canonical, digest};
use crate::ports::JournalError;
use crate::services::KernelServices;
use crate::watch::NoticeSender;

/// Executes one action of a live resolution. It runs to its end even if the caller disconnects.
///
/// # Errors
/// The action was not run. An answer with the status `error` or `pending_approval` is not an error here.
pub(crate) async fn execute_action(
    calls: &Arc<KernelServices>,
    request: Request,
) -> Result<ExecuteResponse, CarpError> {
    let admitted = match prepare_execution(calls, &request) {
        Ok(admitted) => admitted,
        Err(error) => {
            record_error(&calls.carp, &request, &error).await;
            return Err(error);
        }
    };
    let (execution, hash) = match admitted {
        ExecuteAdmission::Runs(execution, hash) => (execution, hash),
        ExecuteAdmission::Ran(answer) => return Ok(*answer),
    };
    let session = request.requester.session_id;
    let under = ResolutionContext {
        resolution: execution.resolution_id,
        execution: calls.clock().new_uuid(),
        requester: request.requester.clone(),
        task: request.task.clone(),
    };
    let id = under.execution;
    let call = call::Request {
        tool: execution.action_id.clone(),
        arguments: execution.parameters.clone(),
        request_id: call_id(session, &request, &execution),
        identity: request.requester.agent_id.clone(),
        sandbox: None,
        policy: None,
        under: Some(under),
        converted: Vec::new(),
    };
    let caller = CallerContext {
        thread: Thread::for_session(session),
        door: "http",
        turn: None,
        call_id: None,
        ceilings: Vec::new(),
        depth: 0,
        // R39: the scope `execute` has the role user. Answering an approval needs another scope.
        role: Role::User,
        notices: NoticeSender::default(),
        pends: true,
        purse: calls.table.purse_of(session),
        context: Arc::new(calls.session_context(session)),
        member: None,
        rank: CallOrder::default(),
    };
    let outcome = to_its_end(calls, caller, call).await;
    let response = build_response(calls, &request, &execution, id, outcome)?;
    store_response(calls, session, execution.idempotency_key, hash, &response);
    Ok(response)
}

/// The admission of an execute request.
enum ExecuteAdmission {
    Runs(CarpExecution, Digest),
    /// It was executed before.
    Ran(Box<ExecuteResponse>),
}

fn prepare_execution(calls: &KernelServices, request: &Request) -> Result<ExecuteAdmission, CarpError> {
    let at = calls.carp.now();
    check_skew(&calls.carp, request, at)?;
    let Some(execution) = request.execution.clone() else {
        return Err(CarpError::Invalid(input_fault(
            "/execution",
            "missing",
            "`execution` is required".to_owned(),
        )));
    };
    // The digest that an idempotency key stands for; needed only with a key.
    let hash = match &execution.idempotency_key {
        Some(_) => digest(&canonical(&execution)),
        None => Digest::ZERO,
    };
    Ok(match admit_execution(calls, request, &execution, hash, at)? {
        Some(answer) => ExecuteAdmission::Ran(Box::new(answer)),
        None => ExecuteAdmission::Runs(execution, hash),
    })
}

/// Stores the answer to an idempotency key. A pending approval is not stored.
fn store_response(
    calls: &KernelServices,
    session: SessionId,
    key: Option<String>,
    hash: Digest,
    response: &ExecuteResponse,
) {
    if let Some(key) = key.filter(|_| response.status != ExecutionStatus::PendingApproval) {
        // silent-ok: a session that has ended meanwhile gets no further request
        let _kept = calls
            .carp
            .lock_sessions()
            .live_session(session)
            .map(|book| book.keep_answer(key, hash, response.clone()));
    }
}

/// Runs a call on the agent's own tasks, so that a disconnecting caller does not interrupt it.
async fn to_its_end(
    calls: &Arc<KernelServices>,
    caller: CallerContext,
    wanted: call::Request,
) -> Result<ToolCallResult, CallError> {
    let tool = wanted.tool.clone();
    let (own, cancel) = (Arc::clone(calls), calls.life.stop.child_token());
    let task = calls
        .life
        .tracker
        .spawn(async move { call(&own, &caller, wanted, &cancel).await });
    task.await.unwrap_or_else(|error| {
        Err(CallError::Unknown {
            tool,
            reason: error.to_string(),
        })
    })
}

/// Checks that session and resolution are live and the request is new. Otherwise returns the earlier answer or an error.
fn admit_execution(
    calls: &KernelServices,
    request: &Request,
    execution: &CarpExecution,
    hash: Digest,
    at: jiff::Timestamp,
) -> Result<Option<ExecuteResponse>, CarpError> {
    let mut books = calls.carp.lock_sessions();
    let book = books.live_session(request.requester.session_id)?;
    if book.agent_id != request.requester.agent_id {
        return Err(CarpError::NotYours);
    }
    if let Some(key) = &execution.idempotency_key {
        match book.stored_answer(key, hash) {
            Ok(Some(answer)) => return Ok(Some(answer)),
            Ok(None) => {}
            Err(ReusedIdempotencyKey) => {
                let text = "the key was used for another execution".to_owned();
                return Err(CarpError::Invalid(input_fault(
                    "/execution/idempotency_key",
                    "reused",
                    text,
                )));
            }
        }
    }
    if book
        .find_resolution(execution.resolution_id)
        .is_none_or(|issued| at >= issued.expires)
    {
        return Err(CarpError::UnknownResolution);
    }
    if execution.idempotency_key.is_none() && !book.take_request(request.request_id) {
        return Err(CarpError::DuplicateRequest(request.request_id.to_string()));
    }
    Ok(None)
}

/// Returns the call's request id (R19). It includes the session, so that no session gets another one's answer.
fn call_id(session: SessionId, request: &Request, execution: &CarpExecution) -> RequestId {
    let mut bytes = b"clawk carp execute 1".to_vec();
    bytes.extend_from_slice(session.0.as_bytes());
    match &execution.idempotency_key {
        Some(key) => {
            bytes.push(1);
            bytes.extend_from_slice(key.as_bytes());
        }
        None => {
            bytes.push(0);
            bytes.extend_from_slice(request.request_id.as_bytes());
        }
    }
    let Digest(hash) = digest(&bytes);
    let mut short = [0u8; 16];
    for (slot, byte) in short.iter_mut().zip(hash) {
        *slot = byte;
    }
    RequestId::from(uuid::Builder::from_custom_bytes(short).into_uuid())
}

fn build_response(
    calls: &KernelServices,
    request: &Request,
    execution: &CarpExecution,
    execution_id: Uuid,
    outcome: Result<ToolCallResult, CallError>,
) -> Result<ExecuteResponse, CarpError> {
    let (status, result, error) = match outcome {
        Ok(ran) if ran.is_error => {
            let text: Vec<String> = ran.content.iter().map(|block| block.as_model_text()).collect();
            let error = execution_error("action_failed", text.join("\n"), Map::new());
            (ExecutionStatus::Error, Some(result_json(ran)), Some(error))
        }
        Ok(ran) => (ExecutionStatus::Success, Some(result_json(ran)), None),
        Err(error) => {
            let (status, error) = failed_status(execution, error)?;
            (status, None, Some(error))
        }
    };
    Ok(ExecuteResponse {
        carp_version: CARP_VERSION.to_owned(),
        execution_id,
        request_id: request.request_id,
        resolution_id: execution.resolution_id,
        timestamp: format!("{:.6}", calls.carp.now()),
        status,
        result,
        error,
        trace_id: request.requester.session_id.0,
    })
}

fn result_json(ran: ToolCallResult) -> Value {
    let mut value = json!({"content": ran.content});
    if let (Some(map), Some(structured)) = (value.as_object_mut(), ran.structured_content) {
        map.insert("structuredContent".to_owned(), structured);
    }
    value
}

fn execution_error(code: &str, message: String, details: Map<String, Value>) -> ExecutionError {
    ExecutionError {
        code: code.to_owned(),
        message,
        details,
    }
}

fn failed_status(
    execution: &CarpExecution,
    error: CallError,
) -> Result<(ExecutionStatus, ExecutionError), CarpError> {
    let text = error.to_string();
    let action_id = || execution.action_id.clone();
    let refused = |policy_id, by, reason, retry_after_ms| CarpError::Denied {
        action_id: action_id(),
        reason,
        policy_id,
        by,
        retry_after_ms,
    };
    let plain = |code: &str| {
        Ok((
            ExecutionStatus::Error,
            execution_error(code, text.clone(), Map::new()),
        ))
    };
    match error {
        CallError::Denied {
            by,
            rule_id,
            policy,
            reason,
            retry_after_ms,
            ..
        } => Err(refused(policy.or(rule_id), Some(by), reason, retry_after_ms)),
        CallError::Quota { .. } | CallError::Screened { .. } => Err(refused(None, None, text, None)),
        CallError::ApprovalDenied { .. }
        | CallError::ApprovalTimeout { .. }
        | CallError::ApprovalVoid { .. } => Err(refused(None, None, text, None)),
        CallError::UnknownTool { .. } | CallError::UnknownReference { .. } => Err(refused(
            None,
            None,
            "it is no action of the resolution".to_owned(),
            None,
        )),
        CallError::InvalidArguments { faults, .. } => {
            let errors = faults.into_iter().map(|fault| CarpFault {
                path: format!("/execution/parameters{}", fault.path),
                code: "parameters".to_owned(),
                message: fault.message,
            });
            Err(CarpError::Invalid(clawk_carp::InputFaults {
                errors: errors.collect(),
                left_out: 0,
            }))
        }
        CallError::RequestIdReused { request_id } => Err(CarpError::DuplicateRequest(request_id.to_string())),
        CallError::ApprovalPending {
            approval_id,
            expires_at,
            ..
        } => {
            let details = Map::from_iter([
                ("approval_id".to_owned(), json!(approval_id)),
                ("expires_at".to_owned(), json!(expires_at)),
            ]);
            Ok((
                ExecutionStatus::PendingApproval,
                execution_error("pending_approval", text, details),
            ))
        }
        CallError::NotReady { state } => Err(CarpError::NotReady(state)),
        CallError::NotBegun { reason, .. } => Err(CarpError::Journal(JournalError::Away(reason))),
        CallError::Journal(why) => Err(CarpError::Journal(why)),
        CallError::Sandbox(_) => plain("sandbox"),
        CallError::Timeout { .. } => plain("timeout"),
        CallError::Unavailable { .. } => plain("unavailable"),
        CallError::Unknown { .. } => plain("outcome_unknown"),
        CallError::Cancelled { .. } => plain("cancelled"),
    }
}
