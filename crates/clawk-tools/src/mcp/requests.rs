//! Requests of the client to a server: for its lists, its resources and its prompts.

use std::time::Duration;

use rmcp::model::{
    ClientRequest, GetPromptRequest, GetPromptRequestParams, ListPromptsRequest,
    ListResourceTemplatesRequest, ListResourcesRequest, ListToolsRequest, PaginatedRequestParams,
    ReadResourceRequest, ReadResourceRequestParams,
};
use rmcp::service::{Peer, RoleClient, ServiceError};
use serde_json::{Map, Value};

use super::inbound::raw_result;
use super::listing::{MAX_ITEMS, MAX_LIST_BYTES, MAX_PAGES, Page, ServedTool, read_tools};
use super::offers::{self, ServedItems};

/// How long one list of resources or prompts may take at the start. If the server does not answer, its tools still work.
const EXTRA_LIST: Duration = Duration::from_secs(5);
/// JSON-RPC error code: the server has no such method.
const NO_METHOD: i32 = -32601;

/// The reason why a request has no result.
#[derive(Debug, thiserror::Error)]
pub(super) enum RequestError {
    /// The server refused, or the connection was lost.
    #[error("{}", in_words(.0))]
    Service(#[from] ServiceError),
    /// The server asked for more input.
    #[error("it asked for more input, which clawk does not give")]
    WantsInput,
}

fn in_words(error: &ServiceError) -> String {
    match error {
        ServiceError::McpError(error) => error.message.to_string(),
        other => other.to_string(),
    }
}

/// The kind of a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ListKind {
    Tools,
    Resources,
    Templates,
    Prompts,
}

impl ListKind {
    const fn member_name(self) -> &'static str {
        match self {
            Self::Tools => "tools",
            Self::Resources => "resources",
            Self::Templates => "resourceTemplates",
            Self::Prompts => "prompts",
        }
    }

    fn list_request(self, cursor: Option<String>) -> ClientRequest {
        let params = PaginatedRequestParams::default().with_cursor(cursor);
        match self {
            Self::Tools => ClientRequest::ListToolsRequest(ListToolsRequest::with_param(params)),
            Self::Resources => ClientRequest::ListResourcesRequest(ListResourcesRequest::with_param(params)),
            Self::Templates => {
                ClientRequest::ListResourceTemplatesRequest(ListResourceTemplatesRequest::with_param(params))
            }
            Self::Prompts => ClientRequest::ListPromptsRequest(ListPromptsRequest::with_param(params)),
        }
    }
}

/// Everything that a server offers, as tools, with notes about problems.
pub(super) async fn list_all(
    peer: &Peer<RoleClient>,
) -> Result<(Vec<ServedTool>, Vec<String>), RequestError> {
    let (mut tools, mut notes) = list_tools(peer).await?;
    let items = ServedItems {
        resources: list_extra(peer, ListKind::Resources, &mut notes).await,
        templates: list_extra(peer, ListKind::Templates, &mut notes).await,
        prompts: list_extra(peer, ListKind::Prompts, &mut notes).await,
    };
    let more = offers::tools_of(&items, &tools);
    tools.extend(more);
    Ok((tools, notes))
}

/// The server's tools; none if it says that it has no such list.
pub(super) async fn list_tools(
    peer: &Peer<RoleClient>,
) -> Result<(Vec<ServedTool>, Vec<String>), RequestError> {
    let (items, mut notes) = match list_pages(peer, ListKind::Tools).await {
        Ok(listed) => listed,
        Err(error) if has_no_method(&error) && !announces_kind(peer, ListKind::Tools) => Default::default(),
        Err(error) => return Err(error),
    };
    let (tools, more) = read_tools(items);
    notes.extend(more);
    Ok((tools, notes))
}

fn has_no_method(error: &RequestError) -> bool {
    matches!(error, RequestError::Service(ServiceError::McpError(error)) if error.code.0 == NO_METHOD)
}

/// Whether the server's handshake announces this kind.
fn announces_kind(peer: &Peer<RoleClient>, kind: ListKind) -> bool {
    peer.peer_info().is_some_and(|info| match kind {
        ListKind::Tools => info.capabilities.tools.is_some(),
        ListKind::Resources | ListKind::Templates => info.capabilities.resources.is_some(),
        ListKind::Prompts => info.capabilities.prompts.is_some(),
    })
}

async fn list_extra(peer: &Peer<RoleClient>, kind: ListKind, notes: &mut Vec<String>) -> Vec<Value> {
    if !announces_kind(peer, kind) {
        return Vec::new();
    }
    match tokio::time::timeout(EXTRA_LIST, list_pages(peer, kind)).await {
        Ok(Ok((items, more))) => {
            notes.extend(more);
            items.into_iter().filter(Value::is_object).collect()
        }
        Ok(Err(error)) if has_no_method(&error) => Vec::new(),
        Ok(Err(error)) => {
            notes.push(format!("its {} are left out: {error}", kind.member_name()));
            Vec::new()
        }
        Err(_elapsed) => {
            notes.push(format!(
                "its {} are left out: no answer in time",
                kind.member_name()
            ));
            Vec::new()
        }
    }
}

/// Reads all pages of a list. A repeated cursor or a limit ends it; the items so far count.
async fn list_pages(
    peer: &Peer<RoleClient>,
    kind: ListKind,
) -> Result<(Vec<Value>, Vec<String>), RequestError> {
    let (mut items, mut notes) = (Vec::new(), Vec::new());
    let (mut cursor, mut seen, mut bytes) = (None, std::collections::BTreeSet::new(), 0);
    let mut ended = |why: String| notes.push(format!("the list of {} ends early: {why}", kind.member_name()));
    for page in 0..MAX_PAGES {
        let answer = peer.send_request(kind.list_request(cursor.clone())).await;
        let result = match answer {
            Ok(result) => raw_result(result),
            // If a later page fails, the earlier pages remain.
            Err(error) if page > 0 => {
                ended(format!("page {} can't be had: {}", page + 1, in_words(&error)));
                return Ok((items, notes));
            }
            Err(error) => return Err(error.into()),
        };
        let page = Page::read(result, kind.member_name());
        for item in page.items {
            bytes += item.to_string().len();
            if items.len() >= MAX_ITEMS || bytes > MAX_LIST_BYTES {
                ended(format!(
                    "it has more than {MAX_ITEMS} entries or {MAX_LIST_BYTES} bytes"
                ));
                return Ok((items, notes));
            }
            items.push(item);
        }
        let Some(next) = page.next else {
            return Ok((items, notes));
        };
        if !seen.insert(next.clone()) {
            ended("its cursor came before".to_owned());
            return Ok((items, notes));
        }
        cursor = Some(next);
    }
    ended(format!("it has more than {MAX_PAGES} pages"));
    Ok((items, notes))
}

/// Reads a resource by its `uri`. Without `uri`, lists the resources.
pub(super) async fn read_resource(
    peer: &Peer<RoleClient>,
    arguments: &Map<String, Value>,
) -> Result<Value, RequestError> {
    let Some(uri) = arguments.get("uri").and_then(Value::as_str) else {
        let (mut items, _) = list_pages(peer, ListKind::Resources)
            .await
            .or_else(empty_or_error)?;
        let (templates, _) = list_pages(peer, ListKind::Templates)
            .await
            .or_else(empty_or_error)?;
        items.extend(templates);
        return Ok(offers::list_result(&items));
    };
    let params = ReadResourceRequestParams::new(uri);
    let request = ClientRequest::ReadResourceRequest(ReadResourceRequest::new(params));
    let result = peer.send_request(request).await?;
    Ok(offers::read_resource(raw_result(result)))
}

/// Reads a prompt by its `name`. Without `name`, lists the prompts.
pub(super) async fn get_prompt(
    peer: &Peer<RoleClient>,
    arguments: &Map<String, Value>,
) -> Result<Value, RequestError> {
    let Some(name) = arguments.get("name").and_then(Value::as_str) else {
        let (items, _) = list_pages(peer, ListKind::Prompts)
            .await
            .or_else(empty_or_error)?;
        return Ok(offers::list_result(&items));
    };
    let mut params = GetPromptRequestParams::new(name);
    if let Some(given) = arguments.get("arguments").and_then(Value::as_object) {
        params = params.with_arguments(given.clone());
    }
    let request = ClientRequest::GetPromptRequest(GetPromptRequest::new(params));
    let result = peer.send_request(request).await?;
    Ok(offers::read_prompt(&raw_result(result)))
}

fn empty_or_error(error: RequestError) -> Result<(Vec<Value>, Vec<String>), RequestError> {
    if has_no_method(&error) {
        Ok(Default::default())
    } else {
        Err(error)
    }
}
