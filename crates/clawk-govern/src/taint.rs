//! What a context was made of (R46): which kind of text a tool brings into it, and the record of untrusted files that were read.
//! The origins themselves are [`clawk_core::text_origin`].

use clawk_events::payload::ContextTainted;
use clawk_plan::{Level, NetworkMode, Plan};
use serde_json::Value;
use uuid::Uuid;

use crate::catalog::{CatalogEntry, DescribedTool};
use crate::event::{Draft, JournalWriter, Thread};
use crate::ports::{Executor, TaintedFiles};

pub use clawk_core::text_origin::{
    ToolTextOrigin, is_foreign, of_attachment, of_call, of_messages, of_sender, rank, through,
};
pub use clawk_core::text_origin::{bare, lasts, words};

/// Returns the kind of text by the tool's executor and its sandbox's reach (R50). A label or an annotation can only lower the
/// trust.
pub fn tool_text_origin(entry: &CatalogEntry, described: &DescribedTool) -> ToolTextOrigin {
    let outside = reaches_out(&entry.plan);
    let ran = match described.executor {
        // A record of an earlier version does not name the executor. Then the labels decide.
        Executor::Unrecorded => return by_label(entry, described),
        Executor::Builtin => builtin_text_origin(described, outside),
        Executor::Command | Executor::Mcp if outside => ToolTextOrigin::Web,
        Executor::Command | Executor::Mcp => ToolTextOrigin::Tool,
        Executor::Http => ToolTextOrigin::Web,
        Executor::A2a => ToolTextOrigin::Peer,
    };
    let said = match by_label(entry, described) {
        // Other tools get no trust from the names of the built-ins' categories.
        ToolTextOrigin::Memory | ToolTextOrigin::Nothing => ToolTextOrigin::Tool,
        // Without a label a server counts as reaching an open world, unless its known reach is smaller.
        ToolTextOrigin::Web if described.executor == Executor::Mcp && !described.reaches_network() => {
            ToolTextOrigin::Tool
        }
        said => said,
    };
    match (described.executor, ran) {
        (Executor::Builtin, ToolTextOrigin::Memory | ToolTextOrigin::Nothing)
            if said == ToolTextOrigin::Tool =>
        {
            ran
        }
        _ => ran.less_trusted(said),
    }
}

/// Returns whether a tool in this sandbox could return text from the network. Level `none` has no sandbox.
fn reaches_out(plan: &Plan) -> bool {
    plan.network().mode != NetworkMode::Deny || plan.level() == Level::None
}

/// Returns the kind for a built-in, by its own category.
fn builtin_text_origin(described: &DescribedTool, outside: bool) -> ToolTextOrigin {
    match described.own_category {
        Some("memory") => ToolTextOrigin::Memory,
        Some("peer") => ToolTextOrigin::Peer,
        Some("shell") if outside => ToolTextOrigin::Web,
        Some("network") => ToolTextOrigin::Web,
        Some("filesystem") => ToolTextOrigin::File,
        Some("utility") => ToolTextOrigin::Nothing,
        Some(_) | None => ToolTextOrigin::Tool,
    }
}

/// Returns the kind by the manifest's labels and annotations.
fn by_label(entry: &CatalogEntry, described: &DescribedTool) -> ToolTextOrigin {
    let category = described.labels.get("category").map(String::as_str);
    let outside = entry.plan.network().mode != NetworkMode::Deny;
    match category {
        Some("memory") => ToolTextOrigin::Memory,
        Some("peer") => ToolTextOrigin::Peer,
        Some("shell") if outside => ToolTextOrigin::Web,
        Some("shell") => ToolTextOrigin::Tool,
        _ if described.reaches_network() => ToolTextOrigin::Web,
        Some("filesystem") => ToolTextOrigin::File,
        Some("utility") => ToolTextOrigin::Nothing,
        // MCP's default: a server's tools reach an open world unless declared otherwise.
        _ if entry.spec.mcp_source.is_some() => match described.annotations.get("openWorldHint") {
            Some(Value::Bool(false)) => ToolTextOrigin::Tool,
            _ => ToolTextOrigin::Web,
        },
        _ => ToolTextOrigin::Tool,
    }
}

/// The record of such a reading: by a call, or by a turn whose prompt holds the files.
pub fn read(
    scribe: &JournalWriter,
    thread: &Thread,
    (request_id, turn): (Option<&str>, Option<Uuid>),
    read: &TaintedFiles,
) -> Draft {
    let untrusted: Vec<String> = through(read).into_iter().collect();
    let payload = ContextTainted {
        files: read.clone(),
        request_id: request_id.map(str::to_owned),
        turn,
        untrusted,
    };
    scribe.draft_event(thread, &payload)
}
