//! The texts in which rules look up argument values (R51): messages of the requester and of the agent's owner, results of tools,
//! and text read from confidential locations.

use std::collections::{BTreeMap, BTreeSet};

use clawk_policy::{ToolResult, ValueSources};
use serde_json::{Map, Value};

use crate::author::TextAuthor;
use crate::compaction;
use crate::ports::ModelMessage;
use crate::text_origin::{ToolTextOrigin, bare};

/// The properties of a tool whose results are searched for values.
#[derive(Debug, Clone, Default)]
pub struct ToolFacts {
    /// The annotations that count (R13).
    pub annotations: Map<String, Value>,
    /// It may read files, whatever its arguments are called.
    pub reads_files: bool,
}

/// The context around a turn's messages.
#[derive(Debug)]
pub struct ValueContext<'a> {
    /// Origins of the context's text.
    pub taint: &'a BTreeSet<String>,
    /// Who asks.
    pub requester: Option<&'a TextAuthor>,
    /// What each tool's results are.
    pub brings: &'a BTreeMap<&'a str, ToolTextOrigin>,
    /// What is known of each tool.
    pub tools: &'a BTreeMap<&'a str, ToolFacts>,
    /// Stores that are asked before each turn.
    pub stores: Vec<&'a str>,
    /// Tools whose results have left the conversation: it may still rest on them.
    pub gone: Vec<(&'a str, ToolFacts)>,
}

/// The texts of a conversation in which values of arguments are looked up. Where a call has read a marked file, no tool's result is its
/// own for certain.
pub fn gather_values(messages: &[ModelMessage], context: &ValueContext<'_>) -> ValueSources {
    let read_marked = context.taint.iter().any(|origin| bare(origin) != origin);
    let is_own = |author: &TextAuthor| {
        let mut origins = author.origins().into_iter();
        origins.all(|origin| {
            context
                .requester
                .is_some_and(|requester| requester.is_own_origin(&origin))
        })
    };
    let nothing = Map::new();
    let mut sources = ValueSources::default();
    context
        .stores
        .iter()
        .for_each(|store| sources.add_recalled(store));
    for (tool, facts) in &context.gone {
        sources.add_result(&tool_result(tool, &nothing, "", (facts, 0)));
    }
    let mut asked: BTreeMap<&str, (&str, &Map<String, Value>)> = BTreeMap::new();
    let mut results = Vec::new();
    for (message, order) in messages.iter().zip(1..) {
        match message {
            ModelMessage::User { text, .. } if text == compaction::ASKED => sources.add_summary(order),
            ModelMessage::User { text, author, .. } => {
                // Text that clawk composed may repeat anybody's text.
                let own = !author.is_runtime() && is_own(author);
                sources.add_words(text, Some(author.door_name()), own, order);
            }
            ModelMessage::Assistant { calls, .. } => {
                for call in calls {
                    if let Ok(arguments) = &call.arguments {
                        asked.insert(&call.id, (&call.name, arguments));
                    }
                }
            }
            // A call that did not run returned nothing.
            ModelMessage::ToolResult { from_tool: false, .. } => {}
            ModelMessage::ToolResult {
                call_id,
                text,
                is_error,
                ..
            } => {
                // An error may repeat its input, so no value in it counts as the tool's own.
                let text = if *is_error { "" } else { text.as_str() };
                let call = asked.get(call_id.as_str());
                results.extend(call.map(|(tool, arguments)| (*tool, *arguments, text, order)));
            }
        }
    }
    let unknown = ToolFacts::default();
    // Latest first, because the space is limited.
    for (tool, arguments, text, order) in results.into_iter().rev() {
        let facts = context.tools.get(tool).unwrap_or(&unknown);
        let brings = context.brings.get(tool).copied().unwrap_or(ToolTextOrigin::Web);
        let mut found = tool_result(tool, arguments, text, (facts, order));
        found.closed = !read_marked && brings == ToolTextOrigin::Tool;
        found.reads_files |= brings == ToolTextOrigin::File;
        found.is_lookup = !read_marked;
        sources.add_result(&found);
    }
    sources
}

fn tool_result<'a>(
    tool: &'a str,
    arguments: &'a Map<String, Value>,
    text: &'a str,
    (facts, order): (&'a ToolFacts, usize),
) -> ToolResult<'a> {
    ToolResult {
        tool,
        arguments,
        text,
        closed: false,
        is_lookup: false,
        reads_files: facts.reads_files,
        annotations: Some(&facts.annotations),
        order,
    }
}

#[cfg(test)]
mod tests;
