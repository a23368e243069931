//! What a context was made of (R46): which kind of text a tool brings into it, and the record of untrusted files that were read.
//! The origins themselves are [`crate::text_origin`].

use clawk_events::payload::ContextTainted;
use clawk_plan::{Level, NetworkMode, Plan};
use serde_json::Value;
use uuid::Uuid;

use crate::catalog::{CatalogEntry, DescribedTool};
use crate::event::{Draft, JournalWriter, Thread};
use crate::ports::{Executor, TaintedFiles};

pub(crate) use crate::text_origin::{
    ToolTextOrigin, is_foreign, of_attachment, of_call, of_messages, of_sender, rank, through,
};
pub use crate::text_origin::{bare, lasts, words};

/// By what runs a tool and how far its sandbox lets it reach (R50). A label or an annotation only makes it worse.
pub(crate) fn brings(entry: &CatalogEntry, described: &DescribedTool) -> ToolTextOrigin {
    let outside = reaches_out(&entry.plan);
    let ran = match described.executor {
        // A record of an earlier version does not say what ran; the labels decided then.
        Executor::Unrecorded => return by_label(entry, described),
        Executor::Builtin => builtin(described, outside),
        Executor::Command | Executor::Mcp if outside => ToolTextOrigin::Web,
        Executor::Command | Executor::Mcp => ToolTextOrigin::Tool,
        Executor::Http => ToolTextOrigin::Web,
        Executor::A2a => ToolTextOrigin::Peer,
    };
    let said = match by_label(entry, described) {
        // A name of our own tools' kinds gives other tools nothing of what those may.
        ToolTextOrigin::Memory | ToolTextOrigin::Nothing => ToolTextOrigin::Tool,
        // Without a label a server is taken for one that reaches an open world: what it can reach is known better here.
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
        _ => ran.worse(said),
    }
}

/// Something in this sandbox could have text of the network. Nothing encloses a tool at level `none`.
fn reaches_out(plan: &Plan) -> bool {
    plan.network().mode != NetworkMode::Deny || plan.level() == Level::None
}

/// A built-in, by the category that it has itself.
fn builtin(described: &DescribedTool, outside: bool) -> ToolTextOrigin {
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

/// What the manifest's labels and annotations say.
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
        // MCP's default: a server's tools reach an open world, unless they are said not to.
        _ if entry.spec.mcp_source.is_some() => match described.annotations.get("openWorldHint") {
            Some(Value::Bool(false)) => ToolTextOrigin::Tool,
            _ => ToolTextOrigin::Web,
        },
        _ => ToolTextOrigin::Tool,
    }
}

/// The record of such a reading: by a call, or by a turn whose prompt holds the files.
pub(crate) fn read(
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
    scribe.entry(thread, &payload)
}
