//! Requests that a server may send to its client: for the folders that it sees, for a person's answer, and for a model if the
//! operator allows it.

#![expect(
    deprecated,
    reason = "servers of today ask for roots and sampling; the next revision of MCP has neither"
)]

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use clawk_egress::Url;
use clawk_kernel::ports::SamplingHandler;
use clawk_kernel::{SampleMessage, SampleRequest, SampleRole};
use clawk_plan::{FsMode, Level, Plan};
use clawk_proto::SessionId;
use rmcp::ClientHandler;
use rmcp::ErrorData;
use rmcp::model::{
    ClientCapabilities, ClientConfig, CreateMessageRequestParams, CreateMessageResult, ElicitRequestParams,
    ElicitResult, ElicitationAction, ElicitationCapability, ErrorCode, Implementation, ListRootsResult,
    ProtocolVersion, Role, Root, RootsCapabilities, SamplingCapability, SamplingMessage,
    SamplingMessageContentBlock,
};
use rmcp::service::{NotificationContext, RequestContext, RoleClient};
use serde_json::{Map, Value, json};
use tokio_util::sync::CancellationToken;

use crate::builtin::{AskUserHandler, UserAnswer, UserQuestion};
use crate::call::truncate_text;
use crate::config::SamplingConfig;

/// The maximum number of fields in a form. A longer form is declined.
const MAX_FIELDS: usize = 8;
/// The error code for a refused model request; the same code as in MCP's examples for a person who refuses.
const REFUSED: i32 = -1;
/// How many bytes of a server's text a person sees for each field.
const MAX_WORDS_BYTES: usize = 2_000;

/// Data that a server's session and its calls share.
pub(crate) struct McpClientContext {
    server: String,
    roots: Vec<PathBuf>,
    ask: Option<AskUserHandler>,
    /// Limits for the server's model requests; `None`: it may send none.
    sampling: Option<SamplingConfig>,
    /// How model requests are answered. Set when the agent runs.
    sampler: OnceLock<SamplingHandler>,
    /// The number of model requests since no call was running.
    sampled: AtomicU32,
    /// The sessions whose calls run at the server now, one entry per call.
    running: Mutex<Vec<SessionId>>,
    /// Whether the server said that its tools changed.
    changed: AtomicBool,
}

/// A running call at the server. Dropping this ends it.
pub(super) struct ServerCallGuard<'a>(&'a McpClientContext, Option<SessionId>);

impl Drop for ServerCallGuard<'_> {
    fn drop(&mut self) {
        let mut running = self.0.lock();
        if let Some(at) = running.iter().position(|session| Some(*session) == self.1) {
            running.swap_remove(at);
        }
    }
}

/// The folders that a plan mounts, as the server sees them. If the plan shows the whole host: `/`.
pub(crate) fn plan_roots(plan: &Plan, workdir: &Path) -> Vec<PathBuf> {
    if plan.level() == Level::None || plan.filesystem().mode == FsMode::Full {
        return vec![PathBuf::from("/")];
    }
    let mounts = plan.filesystem().mounts.iter();
    let folders = mounts.map(|mount| workdir.join(&mount.path));
    folders
        .map(|folder| {
            folder
                .components()
                .filter(|part| !matches!(part, std::path::Component::CurDir))
                .collect()
        })
        .collect()
}

impl McpClientContext {
    pub(crate) fn new(
        server: String,
        roots: Vec<PathBuf>,
        ask: Option<AskUserHandler>,
        sampling: Option<SamplingConfig>,
    ) -> Arc<Self> {
        Arc::new(Self {
            server,
            roots,
            ask,
            sampling,
            sampler: OnceLock::new(),
            sampled: AtomicU32::new(0),
            running: Mutex::default(),
            changed: AtomicBool::new(false),
        })
    }

    /// Sets how model requests are answered.
    pub(crate) fn set_sampler(&self, sampler: SamplingHandler) {
        let _first = self.sampler.set(sampler); // silent-ok: a runner serves one agent
    }

    fn lock(&self) -> MutexGuard<'_, Vec<SessionId>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers a running call of this session.
    pub(super) fn enter_call(&self, session: Option<SessionId>) -> ServerCallGuard<'_> {
        let mut running = self.lock();
        if running.is_empty() {
            self.sampled.store(0, Ordering::Release);
        }
        running.extend(session);
        drop(running);
        ServerCallGuard(self, session)
    }

    /// Whether the server said that its tools changed since the last check.
    pub(super) fn took_change(&self) -> bool {
        self.changed.swap(false, Ordering::AcqRel)
    }

    /// The session whose user is asked: the only one that uses the server now. With several sessions it is not known for whom the
    /// server asks.
    fn asking_session(&self) -> Option<SessionId> {
        let running = self.lock();
        let first = *running.first()?;
        running.iter().all(|session| *session == first).then_some(first)
    }

    /// # Errors
    /// The reason why no model was asked or none answered.
    async fn sample(
        &self,
        params: CreateMessageRequestParams,
        cancel: CancellationToken,
    ) -> Result<CreateMessageResult, String> {
        let Some((limits, sampler)) = self.sampling.clone().zip(self.sampler.get()) else {
            return Err("sampling is off for this server".to_owned());
        };
        let Some(session) = self.asking_session() else {
            return Err("a question needs one call that runs, of one session".to_owned());
        };
        let SamplingConfig {
            provider,
            max_tokens,
            per_call,
        } = limits;
        if self.sampled.fetch_add(1, Ordering::AcqRel) >= per_call {
            return Err(format!(
                "this call has asked {per_call} questions, which is its limit"
            ));
        }
        if params.tools.as_ref().is_some_and(|tools| !tools.is_empty()) {
            return Err("tools in a question are not supported".to_owned());
        }
        let messages: Result<Vec<_>, String> = params.messages.into_iter().map(sample_message).collect();
        let sample = SampleRequest {
            server: self.server.clone(),
            provider,
            system: params.system_prompt,
            messages: messages?,
            max_tokens: u64::from(params.max_tokens.clamp(1, max_tokens.max(1))),
        };
        let answer = sampler(session, sample, cancel).await?;
        let message = SamplingMessage::assistant_text(answer.text);
        let stop = if answer.cut {
            CreateMessageResult::STOP_REASON_END_MAX_TOKEN
        } else {
            CreateMessageResult::STOP_REASON_END_TURN
        };
        Ok(CreateMessageResult::new(message, answer.model).with_stop_reason(stop))
    }

    async fn elicit(&self, params: ElicitRequestParams) -> ElicitResult {
        match self.fill_form(params).await {
            Some(content) => {
                ElicitResult::new(ElicitationAction::Accept).with_content(Value::Object(content))
            }
            None => ElicitResult::new(ElicitationAction::Decline),
        }
    }

    /// Asks a person to fill in a form. `None`: nobody can be asked, the person declined, or the form is too long.
    async fn fill_form(&self, params: ElicitRequestParams) -> Option<Map<String, Value>> {
        let ElicitRequestParams::FormElicitationParams {
            message,
            requested_schema,
            ..
        } = params
        else {
            return None;
        };
        let (ask, session) = (self.ask.as_ref()?, self.asking_session()?);
        let schema = serde_json::to_value(&requested_schema).ok()?; // silent-ok: what can't be read is declined
        let fields = schema
            .get("properties")
            .and_then(Value::as_object)
            .cloned()
            .unwrap_or_default();
        if fields.len() > MAX_FIELDS {
            return None;
        }
        let opening = format!(
            "the MCP server {} asks: {}",
            self.server,
            truncate_text(&message, MAX_WORDS_BYTES).0
        );
        let put = async |question: String, options: Vec<String>| {
            let question = UserQuestion {
                session,
                question,
                options,
            };
            match ask(question).await {
                UserAnswer::Said(text) => Some(text),
                UserAnswer::Declined | UserAnswer::Nobody => None,
            }
        };
        if fields.is_empty() {
            let said = put(opening, vec!["yes".to_owned(), "no".to_owned()]).await?;
            return said.trim().eq_ignore_ascii_case("yes").then(Map::new);
        }
        let required = schema
            .get("required")
            .and_then(Value::as_array)
            .cloned()
            .unwrap_or_default();
        let needed = |name: &str| required.iter().any(|one| one.as_str() == Some(name));
        // Required fields come first.
        let mut order: Vec<(&String, &Value)> = fields.iter().collect();
        order.sort_by_key(|(name, _)| !needed(name));
        let mut content = Map::new();
        for (name, field) in order {
            let needed = needed(name);
            let said = put(
                field_question(&opening, name, field, needed),
                field_options(field),
            )
            .await?;
            if said.trim().is_empty() && !needed {
                continue;
            }
            content.insert(name.clone(), parse_answer(field, said.trim())?);
        }
        Some(content)
    }
}

/// Converts one message of a model request. Only text is supported.
fn sample_message(message: SamplingMessage) -> Result<SampleMessage, String> {
    let role = match message.role {
        Role::User => SampleRole::User,
        _ => SampleRole::Assistant,
    };
    let mut texts = Vec::new();
    for block in message.content.into_vec() {
        match block {
            SamplingMessageContentBlock::Text(text) => texts.push(text.text.to_string()),
            _ => return Err("a question is text alone".to_owned()),
        }
    }
    let text = texts.join("\n");
    Ok(SampleMessage { role, text })
}

fn field_question(opening: &str, name: &str, field: &Value, needed: bool) -> String {
    let text = |key: &str| field.get(key).and_then(Value::as_str);
    let label = truncate_text(text("title").unwrap_or(name), MAX_WORDS_BYTES).0;
    let about = text("description").map(|about| format!(" ({})", truncate_text(about, MAX_WORDS_BYTES).0));
    let optional = if needed { "" } else { " [may stay empty]" };
    format!("{opening}\n{label}{}{optional}", about.unwrap_or_default())
}

fn field_options(field: &Value) -> Vec<String> {
    if field.get("type").and_then(Value::as_str) == Some("boolean") {
        return vec!["true".to_owned(), "false".to_owned()];
    }
    let words = field.get("enum").and_then(Value::as_array);
    words
        .into_iter()
        .flatten()
        .filter_map(|word| word.as_str().map(str::to_owned))
        .collect()
}

/// Converts a person's answer to the field's type. `None`: the answer does not fit.
fn parse_answer(field: &Value, said: &str) -> Option<Value> {
    let words = field_options(field);
    match field.get("type").and_then(Value::as_str) {
        Some("boolean") => match said {
            "true" | "yes" => Some(json!(true)),
            "false" | "no" => Some(json!(false)),
            _ => None,
        },
        Some("integer") => said.parse::<i64>().ok().map(|number| json!(number)), // silent-ok: no number, declined
        Some("number") => said
            .parse::<f64>()
            .ok()
            .filter(|n| n.is_finite())
            .map(|number| json!(number)), // silent-ok: as above
        Some("string") if words.is_empty() || words.iter().any(|word| word == said) => Some(json!(said)),
        _ => None,
    }
}

/// The client's side of a session.
pub(super) struct Handler(pub(super) Arc<McpClientContext>);

impl ClientHandler for Handler {
    fn get_info(&self) -> ClientConfig {
        let mut capabilities = ClientCapabilities::default();
        if !self.0.roots.is_empty() {
            capabilities.roots = Some(RootsCapabilities::default());
        }
        if self.0.ask.is_some() {
            capabilities.elicitation = Some(ElicitationCapability::default());
        }
        if self.0.sampling.is_some() {
            capabilities.sampling = Some(SamplingCapability::default());
        }
        ClientConfig::new(
            capabilities,
            Implementation::new("clawk", env!("CARGO_PKG_VERSION")),
        )
        // The last protocol revision with sessions. Only with sessions may a server ask while a call runs.
        .with_protocol_version(ProtocolVersion::V_2025_11_25)
    }

    async fn list_roots(&self, _: RequestContext<RoleClient>) -> Result<ListRootsResult, ErrorData> {
        let uris = self
            .0
            .roots
            .iter()
            .filter_map(|root| Url::from_directory_path(root).ok()); // silent-ok: relative ones are none
        Ok(ListRootsResult::new(
            uris.map(|uri| Root::new(uri.to_string())).collect(),
        ))
    }

    async fn create_elicitation(
        &self,
        params: ElicitRequestParams,
        _: RequestContext<RoleClient>,
    ) -> Result<ElicitResult, ErrorData> {
        Ok(self.0.elicit(params).await)
    }

    async fn create_message(
        &self,
        params: CreateMessageRequestParams,
        context: RequestContext<RoleClient>,
    ) -> Result<CreateMessageResult, ErrorData> {
        let answer = self.0.sample(params, context.ct).await;
        answer.map_err(|reason| ErrorData::new(ErrorCode(REFUSED), reason, None))
    }

    async fn on_tool_list_changed(&self, _: NotificationContext<RoleClient>) {
        self.0.changed.store(true, Ordering::Release);
    }
}
