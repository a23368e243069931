//! The provenance of a context (R46): the sources of text in it that is not the user's own. The sources are derived from the
//! conversation and from recalled entries, never from what a text says about itself.

use std::collections::{BTreeMap, BTreeSet};

use clawk_plan::{Level, NetworkMode, Plan};
use serde_json::{Map, Value};
use uuid::Uuid;

use crate::catalog::{CatalogEntry, DescribedTool};
use crate::event::{ContextTainted, Draft, JournalWriter, Thread, digest, kind as event};
use crate::ports::{Executor, ModelMessage, TaintedFiles};

/// Returns whether text of this source is not the user's own.
pub(crate) fn is_foreign(origin: &str) -> bool {
    matches!(kind(origin), "web" | "peer" | "tool" | "file" | "memory")
}

/// Returns the first word of a source, which a rule's `taint` names.
pub(crate) fn kind(origin: &str) -> &str {
    origin.split(' ').next().unwrap_or_default()
}

/// The kind of text that a tool returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ToolTextOrigin {
    /// Text from the network.
    Web,
    /// Text from files.
    File,
    /// Text of another agent.
    Peer,
    /// The tool's own text.
    Tool,
    /// Memory entries, each with its own provenance.
    Memory,
    /// Only what it was given, or what the person said.
    Nothing,
}

impl ToolTextOrigin {
    /// Returns the less trusted of the two.
    pub(crate) fn worse(self, other: Self) -> Self {
        let rank = |brings: Self| match brings {
            Self::Nothing => 0,
            Self::Memory => 1,
            Self::Tool => 2,
            Self::File => 3,
            Self::Peer => 4,
            Self::Web => 5,
        };
        if rank(other) > rank(self) { other } else { self }
    }
}

/// Returns the kind of text by the tool's executor and its sandbox's reach (R50). A label or an annotation can only lower the
/// trust.
pub(crate) fn brings(entry: &CatalogEntry, described: &DescribedTool) -> ToolTextOrigin {
    let outside = reaches_out(&entry.plan);
    let ran = match described.executor {
        // A record of an earlier version does not name the executor. Then the labels decide.
        Executor::Unrecorded => return by_label(entry, described),
        Executor::Builtin => builtin(described, outside),
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
        _ => ran.worse(said),
    }
}

/// Returns whether a tool in this sandbox could return text from the network. Level `none` has no sandbox.
fn reaches_out(plan: &Plan) -> bool {
    plan.network().mode != NetworkMode::Deny || plan.level() == Level::None
}

/// Returns the kind for a built-in, by its own category.
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

/// Longest source, in bytes. It is shown to people and stored with derived data.
const MAX_ORIGIN_BYTES: usize = 300;
/// Longest sender name in a source, in characters.
const MAX_SENDER_CHARS: usize = 60;
/// Length of the digest after a changed sender name, in characters.
const SHORT_HASH_CHARS: usize = 12;

/// Returns the source of a call's result.
pub(crate) fn of_call(tool: &str, arguments: &Map<String, Value>, brings: ToolTextOrigin) -> Option<String> {
    let text = |names: &[&str]| {
        names
            .iter()
            .find_map(|name| arguments.get(*name))
            .and_then(Value::as_str)
    };
    let mut origin = match brings {
        ToolTextOrigin::Web => format!("web {}", text(&["url", "uri", "href"]).unwrap_or(tool)),
        ToolTextOrigin::File => format!("file {}", text(&["path", "file", "file_path"]).unwrap_or(tool)),
        ToolTextOrigin::Peer => format!("peer {tool}"),
        ToolTextOrigin::Tool => format!("tool {tool}"),
        ToolTextOrigin::Memory | ToolTextOrigin::Nothing => return None,
    };
    origin.truncate(origin.floor_char_boundary(MAX_ORIGIN_BYTES));
    Some(plain(&origin))
}

/// Returns the source of a person's text, by their name in the channel. The name can't imitate another sender, another channel or
/// the file of [`bare`], and two names never give the same source.
pub(crate) fn of_sender(sender: &str, channel: &str) -> String {
    let plain = |c: char| {
        c.is_alphanumeric() || matches!(c, '.' | '-' | '_' | '@' | '+' | ':' | '#' | '!' | '/' | '=')
    };
    let name: String = sender
        .chars()
        .map(|c| if plain(c) { c } else { '_' })
        .take(MAX_SENDER_CHARS)
        .collect();
    if name == sender {
        return format!("peer {name} on {channel}");
    }
    let hash = digest(sender.as_bytes()).to_string();
    let short = hash.get(..SHORT_HASH_CHARS).unwrap_or_default();
    format!("peer {name}~{short} on {channel}")
}

/// Returns the source of another agent's text.
pub(crate) fn of_peer(identity: &str) -> String {
    plain(&format!("peer {identity}"))
}

/// Returns the source of a file that a person sent. Its content may not be the sender's own text, so it does not count as theirs.
pub(crate) fn of_attachment(sender: &str, channel: &str) -> String {
    format!("{} as a file", of_sender(sender, channel))
}

/// Returns a source as text for people: `ann on slack` for `peer ann on slack`.
#[must_use]
pub fn words(origin: &str) -> String {
    let person = origin.strip_prefix("peer ").filter(|who| who.contains(" on "));
    person.unwrap_or(origin).to_owned()
}

/// Returns whether a file keeps this source for later readers. A file's text has the source `file` anyway, so text of tools and of
/// other files needs no mark.
#[must_use]
pub fn lasts(origin: &str) -> bool {
    matches!(kind(origin), "web" | "peer" | "memory")
}

/// Returns the source without the file that it was read from.
#[must_use]
pub fn bare(origin: &str) -> &str {
    origin.rsplit_once(" (in ").map_or(origin, |(origin, _)| origin)
}

/// Returns the sources of text read from marked files, each with its file.
pub(crate) fn through(read: &TaintedFiles) -> BTreeSet<String> {
    let each = read.iter().flat_map(|(file, origins)| {
        origins.iter().map(move |origin| {
            let mut origin = format!("{} (in {file})", bare(origin));
            origin.truncate(origin.floor_char_boundary(MAX_ORIGIN_BYTES * 2));
            plain(&origin)
        })
    });
    each.collect()
}

/// Returns the event of such a reading: by a call, or by a turn whose prompt holds the files.
pub(crate) fn read(
    scribe: &JournalWriter,
    thread: &Thread,
    (request_id, turn): (Option<&str>, Option<Uuid>),
    read: &TaintedFiles,
) -> Draft {
    let untrusted: Vec<String> = through(read).into_iter().collect();
    let payload = ContextTainted {
        files: read,
        request_id,
        turn,
        untrusted: &untrusted,
    };
    scribe.entry(thread, event::CONTEXT_TAINTED, &payload)
}

/// Returns the trust rank of a source, lowest trust first.
pub(crate) fn rank(origin: &str) -> u8 {
    match kind(origin) {
        "web" => 0,
        "peer" => 1,
        "memory" => 2,
        "tool" => 3,
        _ => 4,
    }
}

/// Removes characters that could imitate several sources or a mark.
fn plain(origin: &str) -> String {
    origin.replace(['\n', '\r', '"', '<', '>', ','], " ")
}

/// Returns the sources of a conversation's text, independent of the requester. The caller removes those that are the requester's
/// own. `brings` returns the kind of each tool's results.
pub(crate) fn of_messages(
    messages: &[ModelMessage],
    brings: impl Fn(&str) -> ToolTextOrigin,
) -> BTreeSet<String> {
    let mut asked: BTreeMap<&str, (&str, &Map<String, Value>)> = BTreeMap::new();
    let mut found = BTreeSet::new();
    for message in messages {
        match message {
            ModelMessage::User { author, .. } => found.extend(author.origins()),
            ModelMessage::Assistant { calls, .. } => {
                for call in calls {
                    if let Ok(arguments) = &call.arguments {
                        asked.insert(&call.id, (&call.name, arguments));
                    }
                }
            }
            // A call that did not run returned no text.
            ModelMessage::ToolResult { from_tool: false, .. } => {}
            ModelMessage::ToolResult { call_id, text, .. } => {
                let Some((tool, arguments)) = asked.get(call_id.as_str()) else {
                    continue;
                };
                match brings(tool) {
                    ToolTextOrigin::Memory => found.extend(of_entries(text)),
                    other => found.extend(of_call(tool, arguments, other)),
                }
            }
        }
    }
    found
}

/// Returns the sources of the entries in a text of [`crate::recall::lines`]. An entry's own text can't imitate a mark.
fn of_entries(text: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    // The marks of an omitted part are unknown.
    if text.starts_with("[cut:") {
        found.insert("web".to_owned());
    }
    for line in text.lines().filter(|line| line.starts_with("<entry ")) {
        let attribute = |name: &str| {
            let (_, rest) = line.split_once(&format!(" {name}=\""))?;
            rest.split_once('"').map(|(value, _)| value)
        };
        let origins = attribute("origin")
            .into_iter()
            .chain(attribute("made-from").into_iter().flat_map(|all| all.split(", ")));
        found.extend(origins.filter(|origin| is_foreign(origin)).map(str::to_owned));
    }
    found
}

#[cfg(test)]
mod tests;
