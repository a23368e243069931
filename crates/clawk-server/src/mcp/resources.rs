//! Traces and memory as resources: `clawk://traces/SESSION` and `clawk://memory/STORE?query=TEXT`.

use clawk_proto::SessionId;
use clawk_proto::method::{MemoryQuery, MemoryQueryParams, TimeRange};
use rmcp::ErrorData;
use rmcp::model::{
    ListResourceTemplatesResult, ListResourcesResult, ReadResourceResponse, ReadResourceResult,
};
use serde_json::{Value, json};

use super::serve::{McpRequestContext, McpServerSession, from_json};
use crate::access::Scope;
use crate::http::Page;

const TRACES: &str = "clawk://traces/";
const MEMORY: &str = "clawk://memory/";
const NDJSON: &str = "application/x-ndjson";
const JSON: &str = "application/json";
/// The largest number of events or entries in one read.
const MAX_EVENTS: usize = 1_000;
const MAX_ENTRIES: u32 = 100;
/// The largest number of listed sessions.
const MAX_LISTED: usize = 100;

/// The resources that this client may read: its own chains (an admin: all open ones) and the stores.
pub(super) async fn list_resources(
    served: &McpServerSession,
    asking: &McpRequestContext,
) -> Result<ListResourcesResult, ErrorData> {
    let mut found = Vec::new();
    if asking.rights.has_scope(Scope::Read) {
        let chains = readable_sessions(served, asking).await;
        let latest = chains.iter().rev().take(MAX_LISTED);
        found.extend(latest.map(|id| {
            json!({"uri": format!("{TRACES}{id}"), "name": format!("trace {id}"), "mimeType": NDJSON,
                "description": "What happened in this session: its hash-chained events, one a line"})
        }));
    }
    if asking.rights.has_scope(Scope::Memory) {
        let stores = asking
            .kernel
            .manifest()
            .memory
            .iter()
            .flat_map(|memory| &memory.stores);
        found.extend(stores.map(|store| {
            json!({"uri": format!("{MEMORY}{}", store.name), "name": format!("memory {}", store.name), "mimeType": JSON,
                "description": "What the agent keeps in this store"})
        }));
    }
    from_json(json!({"resources": found}))
}

/// The templates for resources that are not listed.
pub(super) fn list_templates(asking: &McpRequestContext) -> Result<ListResourceTemplatesResult, ErrorData> {
    let mut found = Vec::new();
    if asking.rights.has_scope(Scope::Read) {
        found.push(json!({"uriTemplate": format!("{TRACES}{{session}}{{?since}}"), "name": "trace", "mimeType": NDJSON,
            "description": format!("A session's events from the sequence number `since` on, at most {MAX_EVENTS}")}));
    }
    if asking.rights.has_scope(Scope::Memory) && asking.kernel.manifest().memory.is_some() {
        found.push(json!({"uriTemplate": format!("{MEMORY}{{store}}{{?query}}"), "name": "memory", "mimeType": JSON,
            "description": "Entries of a store that fit the words of `query`, best first; without it, all, oldest first"}));
    }
    from_json(json!({"resourceTemplates": found}))
}

/// The values that this client may use for an argument of a template.
pub(super) async fn template_values(
    served: &McpServerSession,
    asking: &McpRequestContext,
    template: &str,
    argument: &str,
) -> Vec<String> {
    match argument {
        "session" if template.starts_with(TRACES) && asking.rights.has_scope(Scope::Read) => {
            readable_sessions(served, asking)
                .await
                .iter()
                .map(ToString::to_string)
                .collect()
        }
        "store" if template.starts_with(MEMORY) && asking.rights.has_scope(Scope::Memory) => {
            let memory = asking.kernel.manifest().memory.iter();
            let stores = memory.flat_map(|memory| &memory.stores);
            stores.map(|store| store.name.clone()).collect()
        }
        _ => Vec::new(),
    }
}

/// The chains that this client may read: its own; an admin reads all open ones.
async fn readable_sessions(served: &McpServerSession, asking: &McpRequestContext) -> Vec<SessionId> {
    let mut chains = served.client_chains().await;
    if asking.rights.is_admin() {
        let open = asking.kernel.list_open_sessions().into_iter().map(|(id, _)| id);
        chains.extend(open.filter(|id| !chains.contains(id)).collect::<Vec<_>>());
    }
    chains
}

pub(super) fn unknown_resource(uri: &str) -> ErrorData {
    let shown: String = uri.chars().take(200).collect();
    ErrorData::resource_not_found(
        format!("there is no resource `{shown}` for this client"),
        Some(json!({"uri": shown})),
    )
}

/// The session of a trace address, if this client may read it.
///
/// # Errors
/// The address names no trace, or one that this client may not read. For an admin the session is not looked up here.
pub(super) async fn trace_of(
    served: &McpServerSession,
    asking: &McpRequestContext,
    uri: &str,
) -> Result<SessionId, ErrorData> {
    let (path, _) = uri.split_once('?').unwrap_or((uri, ""));
    let session = path.strip_prefix(TRACES).ok_or_else(|| unknown_resource(uri))?;
    asking.require_scope(Scope::Read)?;
    let session: SessionId = session.parse().map_err(|_| unknown_resource(uri))?;
    if !asking.rights.is_admin() && !served.client_chains().await.contains(&session) {
        return Err(unknown_resource(uri));
    }
    Ok(session)
}

/// Reads a resource.
pub(super) async fn read(
    served: &McpServerSession,
    asking: &McpRequestContext,
    uri: &str,
) -> Result<ReadResourceResponse, ErrorData> {
    let unknown = || unknown_resource(uri);
    let (path, query) = uri.split_once('?').unwrap_or((uri, ""));
    let (kind, text) = if path.starts_with(TRACES) {
        let session = trace_of(served, asking, uri).await?;
        let since = query_value(query, "since").and_then(|text| text.parse().ok()); // silent-ok: what is no number is from the start
        (
            NDJSON,
            read_trace(served, session, since.unwrap_or(0))
                .await?
                .ok_or_else(unknown)?,
        )
    } else if let Some(store) = path.strip_prefix(MEMORY) {
        asking.require_scope(Scope::Memory)?;
        let kept = asking.kernel.manifest().memory.as_ref();
        if kept.is_none_or(|memory| memory.store(store).is_none()) {
            return Err(unknown());
        }
        (
            JSON,
            read_memory(served, asking, store, query_value(query, "query")).await?,
        )
    } else {
        return Err(unknown());
    };
    let result: ReadResourceResult =
        from_json(json!({"contents": [{"uri": uri, "mimeType": kind, "text": text}]}))?;
    Ok(result.into())
}

/// A query parameter, percent-decoded.
fn query_value(query: &str, name: &str) -> Option<String> {
    let mut members = query.split('&').filter_map(|member| member.split_once('='));
    let (_, raw) = members.find(|(key, _)| *key == name)?;
    let mut bytes = raw.bytes();
    let mut decoded = Vec::new();
    while let Some(byte) = bytes.next() {
        decoded.push(match byte {
            b'+' => b' ',
            b'%' => {
                let pair = [bytes.next()?, bytes.next()?];
                u8::from_str_radix(std::str::from_utf8(&pair).ok()?, 16).ok()? // silent-ok: a broken escape is no value
            }
            other => other,
        });
    }
    String::from_utf8(decoded).ok() // silent-ok: as above
}

async fn read_trace(
    served: &McpServerSession,
    session: SessionId,
    since: u64,
) -> Result<Option<String>, ErrorData> {
    let page = Page {
        session,
        since,
        kinds: Vec::new(),
        limit: MAX_EVENTS,
    };
    let events = served.traces().page(page).await.map_err(|cause| {
        tracing::error!(cause, "a trace could not be read");
        ErrorData::internal_error("the trace could not be read", None)
    })?;
    if events.is_empty() && since == 0 {
        return Ok(None);
    }
    let mut text = String::new();
    for event in &events {
        let line = serde_json::to_string(event)
            .map_err(|error| ErrorData::internal_error(error.to_string(), None))?;
        text.push_str(&line);
        text.push('\n');
    }
    Ok(Some(text))
}

async fn read_memory(
    served: &McpServerSession,
    asking: &McpRequestContext,
    store: &str,
    wanted: Option<String>,
) -> Result<String, ErrorData> {
    let query = match wanted {
        Some(text) => MemoryQuery::Semantic {
            text,
            top_k: Some(MAX_ENTRIES),
        },
        None => MemoryQuery::TimeRange {
            time_range: TimeRange {
                from: "1970-01-01T00:00:00Z".to_owned(),
                to: "9999-01-01T00:00:00Z".to_owned(),
            },
            top_k: Some(MAX_ENTRIES),
        },
    };
    let params = MemoryQueryParams {
        store: store.to_owned(),
        query,
    };
    let session = served.call_session(asking).await?;
    let found = asking.kernel.memory_query(session, params).await;
    let found = found.map_err(|error| ErrorData::invalid_params(error.to_string(), None))?;
    Ok(Value::to_string(&json!(found)))
}

#[cfg(test)]
mod tests {
    use super::query_value;

    #[test]
    fn members_of_a_query_are_decoded() {
        assert_eq!(
            query_value("query=a+b%20c%C3%A9&x=1", "query").as_deref(),
            Some("a b cé")
        );
        assert_eq!(query_value("x=1", "query"), None);
        assert_eq!(query_value("query=%zz", "query"), None);
    }
}
