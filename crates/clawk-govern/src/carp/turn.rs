//! The Atlases in an agent's turn: context for the prompt, actions as tools.

use std::collections::BTreeMap;
use std::sync::Arc;

use clawk_carp::InputFaults;
use clawk_proto::SessionId;
use clawk_proto::carp::{
    CARP_VERSION, CarpOperation, CarpRequester, CarpResolution, CarpTask, ConstraintType, ContentType,
    ContextBlock, Request,
};
use serde_json::{Value, json};

use super::book::CarpSession;
use super::resolve::resolve_request;
use super::{CarpError, CarpRuntime, ResolutionContext};
use crate::catalog::ToolCatalog;
use crate::ports::{ModelMessage, ToolOffer};

/// Longest goal, in characters (CRA PROTOCOL §3).
const GOAL_CHARS: usize = 10_000;
/// Longest tool name that models accept, in characters.
const NAME_CHARS: usize = 64;

/// The rights and context granted to one turn.
#[derive(Debug)]
pub struct TurnGrant {
    under: ResolutionContext,
    /// Text that is added to the system prompt.
    pub context: String,
    /// The actions that the turn's model is offered.
    pub offers: Vec<ToolOffer>,
    /// Maps the name that a model sees to the action.
    names: BTreeMap<String, Arc<str>>,
}

impl TurnGrant {
    /// Returns the action for a model's tool name.
    pub fn find_action(&self, name: &str) -> Option<&str> {
        self.names.get(name).map(|id| &**id)
    }

    /// Returns the resolution context for one call of this turn.
    pub fn call_context(&self, carp: &CarpRuntime) -> ResolutionContext {
        ResolutionContext {
            execution: carp.new_uuid(),
            ..self.under.clone()
        }
    }
}

/// Returns an action's tool name for models, without dots. Action ids hold no underscores, so the name is unique.
fn offered_name(action_id: &str) -> String {
    action_id.replace('.', "_")
}

/// Makes the resolution for a turn's message. `None`: no Atlas governs.
///
/// # Errors
/// The resolution fails or can't be recorded. The turn must then not continue.
pub async fn for_turn(
    (carp, catalog): (&CarpRuntime, &ToolCatalog),
    session: SessionId,
    messages: &[ModelMessage],
) -> Result<Option<Arc<TurnGrant>>, CarpError> {
    if carp.is_empty() {
        return Ok(None);
    }
    let said = messages.iter().rev().find_map(|message| match message {
        ModelMessage::User { text, .. } => Some(text.as_str()),
        _ => None,
    });
    let request = own_request(carp, session, said.unwrap_or_default());
    let most = carp.config.max_context_tokens;
    let resolution = resolve_request(carp, &request, Some(most)).await?;
    Ok(Some(Arc::new(grant_turn((carp, catalog), request, &resolution))))
}

/// Makes the resolution for a call that has none.
///
/// # Errors
/// The errors of [`for_turn`].
pub async fn for_call(
    carp: &CarpRuntime,
    session: SessionId,
    action_id: &str,
) -> Result<ResolutionContext, CarpError> {
    let request = own_request(carp, session, &format!("call {action_id}"));
    let resolution = resolve_request(carp, &request, Some(0)).await?;
    Ok(ResolutionContext {
        resolution: resolution.resolution_id,
        execution: carp.new_uuid(),
        requester: request.requester,
        task: request.task,
    })
}

/// Returns a request in the agent's own name and session.
fn own_request(carp: &CarpRuntime, session: SessionId, goal: &str) -> Request {
    let agent_id = carp.agent_id.clone();
    let at = carp.now();
    {
        let mut books = carp.lock_sessions();
        if books
            .get(session)
            .is_none_or(|book| book.ended.is_some() || book.owner.is_some())
        {
            let book = CarpSession::new(agent_id.clone(), goal.chars().take(200).collect(), None, at);
            books.insert(session, book);
        }
    }
    Request {
        carp_version: CARP_VERSION.to_owned(),
        request_id: carp.new_uuid(),
        timestamp: format!("{at:.6}"),
        operation: CarpOperation::Resolve,
        requester: CarpRequester {
            agent_id,
            session_id: session,
            parent_session_id: None,
        },
        task: Some(CarpTask {
            goal: goal_of(goal),
            ..CarpTask::default()
        }),
        execution: None,
        atlas_ids: Vec::new(),
        context: serde_json::Map::new(),
    }
}

/// Returns a message as a goal.
pub fn goal_of(said: &str) -> String {
    if said.is_empty() {
        return "(nothing said)".to_owned();
    }
    said.chars().take(GOAL_CHARS).collect()
}

fn grant_turn(
    (carp, catalog): (&CarpRuntime, &ToolCatalog),
    request: Request,
    resolution: &CarpResolution,
) -> TurnGrant {
    let loaded = carp.loaded_atlases();
    // An action that needs an approval is offered; calling it asks a person.
    let waiting = resolution
        .constraints
        .iter()
        .filter(|constraint| constraint.kind == ConstraintType::RequireApproval)
        .filter_map(|constraint| constraint.parameters.get("actions")?.as_array())
        .flatten()
        .filter_map(Value::as_str);
    let allowed = resolution.allowed_actions.iter().map(|action| &*action.action_id);
    let mut names = BTreeMap::new();
    let mut offers = Vec::new();
    for action in allowed.chain(waiting).filter_map(|id| loaded.set.action(id)) {
        let name = offered_name(&action.shown.action_id);
        let runs = carp.tool_of(action, catalog).is_some();
        if !runs || name.len() > NAME_CHARS || names.contains_key(&name) {
            continue;
        }
        let mut schema = action.shown.parameters_schema.clone();
        if schema.get("type").is_none()
            && let Some(schema) = schema.as_object_mut()
        {
            schema.insert("type".to_owned(), json!("object"));
        }
        offers.push(ToolOffer {
            name: name.clone(),
            description: format!("{}: {}", action.shown.name, action.shown.description),
            input_schema: schema,
        });
        names.insert(name, Arc::clone(&action.shown.action_id));
    }
    TurnGrant {
        under: ResolutionContext {
            resolution: resolution.resolution_id,
            execution: resolution.resolution_id,
            requester: request.requester,
            task: request.task,
        },
        context: render_context(&resolution.context_blocks),
        offers,
        names,
    }
}

/// Returns the blocks as data. Each names its source, and none can end its own frame.
fn render_context(blocks: &[Arc<ContextBlock>]) -> String {
    let mut parts = Vec::new();
    for block in blocks {
        let kind = match block.content_type {
            ContentType::Markdown => "text/markdown",
            ContentType::Plain => "text/plain",
            ContentType::Json => "application/json",
        };
        let id = block.block_id.replace(['"', '<', '>', '\n'], "_");
        let text = block.content.replace("</atlas-context", "<\\/atlas-context");
        parts.push(format!(
            "<atlas-context source=\"{}\" block=\"{id}\" type=\"{kind}\" note=\"reference data\">\n{}\n</atlas-context>",
            block.source,
            text.trim_end()
        ));
    }
    parts.join("\n\n")
}

/// Returns a fault at `path`.
pub fn input_fault(path: &str, code: &str, message: String) -> InputFaults {
    InputFaults {
        errors: vec![clawk_proto::carp::CarpFault {
            path: path.to_owned(),
            code: code.to_owned(),
            message,
        }],
        left_out: 0,
    }
}
