//! Where text comes from (R46): an origin is a word for its kind (`web`, `peer`, `tool`, `file`, `memory`) and what names its source.
//! Labels decide; they are derived from the conversation and from what was recalled, never from what a text says of itself.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};

use crate::canonical::digest;
use crate::ports::{ModelMessage, TaintedFiles};

/// Origins whose text is not the user's own.
pub fn is_foreign(origin: &str) -> bool {
    matches!(kind(origin), "web" | "peer" | "tool" | "file" | "memory")
}

/// The first word of an origin: what a rule's `taint` names.
pub fn kind(origin: &str) -> &str {
    origin.split(' ').next().unwrap_or_default()
}

/// What the runtime knows of a tool: which kind of text it brings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ToolTextOrigin {
    /// Text of the network.
    Web,
    /// Text of files.
    File,
    /// Another agent's words.
    Peer,
    /// Text of what it is.
    Tool,
    /// What was remembered, each entry with its mark.
    Memory,
    /// Nothing but what it was asked, or what the person said.
    Nothing,
}

impl ToolTextOrigin {
    /// The one that may do less.
    pub fn less_trusted(self, other: Self) -> Self {
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

/// The longest origin, bytes: it is shown to people, and kept with what is made of it.
const MAX_ORIGIN_BYTES: usize = 300;
/// The longest name of a sender in an origin, characters.
const MAX_SENDER_CHARS: usize = 60;
/// Characters of the digest behind a sender's name that had to be changed.
const SHORT_HASH_CHARS: usize = 12;

/// The origin of a call's result.
pub fn of_call(tool: &str, arguments: &Map<String, Value>, brings: ToolTextOrigin) -> Option<String> {
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

/// The origin of somebody's words, by the name that the channel knows them by. A name holds nothing that could look like another
/// sender, another channel or the file of [`bare`]; two names never give the same origin.
pub fn of_sender(sender: &str, channel: &str) -> String {
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

/// The origin of another agent's words.
pub(crate) fn of_peer(identity: &str) -> String {
    plain(&format!("peer {identity}"))
}

/// The origin of a file that somebody sent. What is in it need not be the sender's own words, so it is not that person's own.
pub fn of_attachment(sender: &str, channel: &str) -> String {
    format!("{} as a file", of_sender(sender, channel))
}

/// An origin in words that people understand: `ann on slack` for `peer ann on slack`.
#[must_use]
pub fn words(origin: &str) -> String {
    let person = origin.strip_prefix("peer ").filter(|who| who.contains(" on "));
    person.unwrap_or(origin).to_owned()
}

/// Origins that a file keeps for later readers. A file says `file` of itself, so text of tools and of other files needs no mark.
#[must_use]
pub fn lasts(origin: &str) -> bool {
    matches!(kind(origin), "web" | "peer" | "memory")
}

/// The origin without the file that it was read from.
#[must_use]
pub fn bare(origin: &str) -> &str {
    origin.rsplit_once(" (in ").map_or(origin, |(origin, _)| origin)
}

/// The origins of text that was read from marked files, each with its file.
pub fn through(read: &TaintedFiles) -> BTreeSet<String> {
    let each = read.iter().flat_map(|(file, origins)| {
        origins.iter().map(move |origin| {
            let mut origin = format!("{} (in {file})", bare(origin));
            origin.truncate(origin.floor_char_boundary(MAX_ORIGIN_BYTES * 2));
            plain(&origin)
        })
    });
    each.collect()
}

/// How low the trust in text of this origin is: the lowest first.
pub fn rank(origin: &str) -> u8 {
    match kind(origin) {
        "web" => 0,
        "peer" => 1,
        "memory" => 2,
        "tool" => 3,
        _ => 4,
    }
}

/// Without what could look like several origins, or like a mark.
fn plain(origin: &str) -> String {
    origin.replace(['\n', '\r', '"', '<', '>', ','], " ")
}

/// The origins of what a conversation holds, whoever asks: whoever runs a turn takes out the words that are the requester's own.
/// `brings` says what each tool's results are.
pub fn of_messages(messages: &[ModelMessage], brings: impl Fn(&str) -> ToolTextOrigin) -> BTreeSet<String> {
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
            // What did not run brought nothing.
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

/// The origins of the entries in a text that `recall::render_entry` of the kernel wrote, whomever they were shown to: what stands in an entry can't
/// look like a mark.
fn of_entries(text: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    // Of what was cut out, nobody knows the marks.
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
