//! Turns a request into a turn of the agent, and the turn's result into an answer.

use std::sync::Arc;
use std::time::Duration;

use clawk_kernel::{EntryPoint, Kernel, KernelError, SessionNotice, TalkRequest, TalkStop, TurnResult};
use clawk_proto::{MessageId, RequestId};
use http::{HeaderMap, HeaderValue, StatusCode};
use serde_json::{Value, json};

use super::asked::{OpenAiPrompt, invalid_member};
use crate::access::Scope;
use crate::http::auth::HttpPrincipal;
use crate::http::{ApiError, HttpApp};
use crate::telling::{TurnTextBuffer, TurnTextStep};

/// How long an answer that is not streamed may take.
const TURN_LIMIT: Duration = Duration::from_secs(600);
/// Requests with the same key are the same message, however often they are sent.
const IDEMPOTENCY_KEY: &str = "idempotency-key";

/// The running agent.
pub(super) fn running_kernel(app: &HttpApp) -> Result<Kernel, ApiError> {
    let running = app.host.current_kernel().get();
    running.ok_or_else(|| ApiError::unavailable("no agent runs yet"))
}

/// Checks that the requested model is the agent.
pub(super) fn is_agent(app: &HttpApp, model: &str) -> Result<(), ApiError> {
    let kernel = running_kernel(app)?;
    let name = &kernel.manifest().metadata.name;
    if model == name {
        return Ok(());
    }
    let shown: String = model.chars().take(100).collect();
    let message = format!("there is no model `{shown}` here; the agent's name is `{name}`");
    Err(ApiError::new(StatusCode::NOT_FOUND, "model_not_found", message).with_detail("param", "model".into()))
}

/// The caller and the conversation of a request.
#[derive(Debug)]
pub(super) struct OpenAiRequestContext {
    pub(super) principal: HttpPrincipal,
    /// The conversation's name; `None`: the token's name is used.
    pub(super) conversation: Option<String>,
    pub(super) headers: HeaderMap,
}

/// A running turn.
#[derive(Debug, Clone)]
pub(super) struct Turn {
    /// The request's id. The answer's ids are derived from it.
    pub(super) id: uuid::Uuid,
    /// The time of the request, seconds since 1970.
    pub(super) created: i64,
    pub(super) telling: Arc<TurnTextBuffer>,
}

/// Sends the message to the agent. The turn continues if the client disconnects.
pub(super) fn ask_agent(
    app: &HttpApp,
    place: OpenAiRequestContext,
    asked: OpenAiPrompt,
) -> Result<Turn, ApiError> {
    place.principal.require_scope(Scope::Message)?;
    let kernel = running_kernel(app)?;
    for tool in &asked.tools {
        if kernel.manifest().tools.iter().any(|own| own.name == tool.name) {
            let message = format!(
                "`{}` is a tool of the agent's own: give yours another name",
                tool.name
            );
            return Err(invalid_member("tools", message));
        }
    }
    let id = app.clock.new_uuid();
    let request_id = match place.headers.get(IDEMPOTENCY_KEY) {
        None => RequestId::from(id),
        Some(value) => request_id_from_key(value)?,
    };
    let rights = place.principal.rights();
    let conversation = match place.conversation {
        Some(name) if !name.is_empty() => name,
        Some(_) | None => rights.name().to_owned(),
    };
    let talk = TalkRequest {
        images: asked.images,
        earlier: asked.earlier,
        tools: asked.tools,
        ..TalkRequest::new(rights.name(), Some(conversation), asked.text, request_id)
    };
    let door = EntryPoint::Rpc {
        client: format!("openai:{}", rights.name()),
        role: rights.role(),
    };
    let telling = Arc::<TurnTextBuffer>::default();
    let heard = Arc::clone(&telling);
    app.host.spawn_detached(async move {
        let tell = |_: MessageId, notice: &SessionNotice| heard.add_notice(notice);
        let outcome = kernel.send_message(door, talk, &tell).await;
        heard.end_turn(outcome);
    });
    Ok(Turn {
        id,
        created: app.clock.now().as_millis() / 1000,
        telling,
    })
}

/// The request id for an idempotency key: a UUID stays as it is, any other key becomes a name-based UUID.
fn request_id_from_key(value: &HeaderValue) -> Result<RequestId, ApiError> {
    let text = value.to_str().unwrap_or_default().trim(); // silent-ok: an unreadable key is refused as an empty one
    if text.is_empty() || text.len() > 256 {
        return Err(ApiError::bad_request(
            "invalid_value",
            "an `Idempotency-Key` has 1 to 256 printable characters",
        ));
    }
    if let Ok(id) = RequestId::parse(text) {
        return Ok(id);
    }
    use sha2::Digest as _;
    let digest = sha2::Sha256::digest(text.as_bytes());
    let half = digest.first_chunk::<16>().copied().unwrap_or_default();
    Ok(RequestId::from(
        uuid::Builder::from_custom_bytes(half).into_uuid(),
    ))
}

/// The result of a turn: its whole text and its facts.
#[derive(Debug)]
pub(super) struct OpenAiAnswer {
    pub(super) text: String,
    pub(super) told: TurnResult,
}

impl Turn {
    /// Waits for the turn's end, within the time limit.
    pub(super) async fn wait_answer(&self) -> Result<OpenAiAnswer, ApiError> {
        let mut told = 0;
        let waiting = async {
            loop {
                match self.telling.next(told).await {
                    TurnTextStep::Text(more) => told += more.len(),
                    TurnTextStep::End(outcome) => return outcome,
                }
            }
        };
        let Ok(outcome) = tokio::time::timeout(TURN_LIMIT, waiting).await else {
            let message = format!(
                "not answered within {} s; the turn goes on, and what it says stands in the conversation",
                TURN_LIMIT.as_secs()
            );
            return Err(ApiError::new(StatusCode::GATEWAY_TIMEOUT, "deadline", message).without_retry());
        };
        let told = completed_turn(&outcome)?;
        Ok(OpenAiAnswer {
            text: self.telling.text(),
            told,
        })
    }
}

/// The facts of a finished turn, or the error of a failed one.
pub(super) fn completed_turn(outcome: &Result<TurnResult, KernelError>) -> Result<TurnResult, ApiError> {
    let told = outcome
        .as_ref()
        .map_err(|error| ApiError::from(error).without_retry())?;
    match told.stop {
        TalkStop::Answered | TalkStop::Refused => Ok(told.clone()),
        TalkStop::Cancelled => {
            Err(ApiError::bad_request("turn_cancelled", "the turn was cancelled").without_retry())
        }
        TalkStop::Budget | TalkStop::Stopped | TalkStop::Failed => {
            let reason = told
                .reason
                .clone()
                .unwrap_or_else(|| "the turn failed".to_owned());
            Err(ApiError::new(StatusCode::BAD_GATEWAY, "turn_failed", reason).without_retry())
        }
    }
}

/// Adds the record of the turn's actions beside the answer, under `clawk`, a member that the API does not define. The answer's text
/// stays unchanged.
pub(super) fn with_record(mut answer: Value, told: &TurnResult) -> Value {
    let record = told
        .shown
        .as_ref()
        .and_then(clawk_kernel::shown::TurnCallSummary::to_json);
    if let (Some(record), Some(answer)) = (record, answer.as_object_mut()) {
        answer.insert("clawk".to_owned(), json!({"record": record}));
    }
    answer
}

/// The token counts, under the member names of the API in use.
pub(super) fn usage_json(told: &TurnResult, names: [&str; 2]) -> Value {
    let [input, output] = names;
    let usage = &told.usage;
    json!({
        input: usage.input_tokens,
        output: usage.output_tokens,
        "total_tokens": usage.input_tokens.saturating_add(usage.output_tokens),
    })
}
