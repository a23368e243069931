//! A conversation as every dialect takes it: roles in turn, every call with its result, nothing empty.

use clawk_core::message_frame::join_frame;
use clawk_core::ports::{Image, InferRequest, ModelMessage, ProviderState, ToolUse};

use crate::call_ids::{CallIds, IdRule};
use crate::state::StateOwner;
use crate::wire::RequestContext;

/// What a call without a recorded result is answered with.
const NO_RESULT: &str = "No result of this call is known.";
/// Between the texts of joined messages.
const BETWEEN: &str = "\n\n";
/// In the place of an answer, where roles must alternate and none was given.
pub(crate) const NO_ANSWER: &str = "(no answer was given)";
/// In the place of the user's words, where a conversation must begin with them.
const BEGINNING: &str = "(earlier messages are not shown)";

/// One entry of a conversation.
#[derive(Debug)]
pub(crate) enum HistoryEntry<'a> {
    User {
        text: String,
        images: Vec<&'a Image>,
    },
    Assistant(AssistantEntry<'a>),
    /// The results of the calls before, in the calls' order.
    Results(Vec<ResultEntry>),
}

/// An answer of a model.
#[derive(Debug)]
pub(crate) struct AssistantEntry<'a> {
    pub(crate) text: String,
    pub(crate) calls: Vec<CallEntry<'a>>,
    /// What the server that is asked handed over with it.
    pub(crate) state: Option<&'a ProviderState>,
    /// Another provider or model gave it.
    pub(crate) is_foreign: bool,
}

#[derive(Debug)]
pub(crate) struct CallEntry<'a> {
    /// As the dialect takes it.
    pub(crate) id: String,
    pub(crate) call: &'a ToolUse,
}

#[derive(Debug)]
pub(crate) struct ResultEntry {
    pub(crate) id: String,
    pub(crate) text: String,
    pub(crate) is_error: bool,
}

/// What a dialect and an endpoint want of a conversation.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HistoryRules {
    pub(crate) ids: IdRule,
    /// User and assistant strictly in turn: no user behind a result, and the user first.
    pub(crate) alternates: bool,
    /// The user first.
    pub(crate) user_first: bool,
}

/// The conversation of a request; what changes from turn to turn stands before the newest words of the user.
pub(crate) fn whole_history<'a>(context: RequestContext<'a>, rules: HistoryRules) -> Vec<HistoryEntry<'a>> {
    let mut entries = history(context.request, context.owner, rules);
    let newest = entries.iter_mut().rev().find_map(|entry| match entry {
        HistoryEntry::User { text, .. } => Some(text),
        HistoryEntry::Assistant(_) | HistoryEntry::Results(_) => None,
    });
    if let (Some(text), Some(volatile)) = (newest, context.volatile()) {
        let words = std::mem::take(text);
        text.push_str(volatile);
        append(text, &words);
    }
    entries
}

/// The conversation of a request.
fn history<'a>(
    request: &'a InferRequest,
    owner: StateOwner<'_>,
    rules: HistoryRules,
) -> Vec<HistoryEntry<'a>> {
    let mut ids = CallIds::new(rules.ids);
    let mut entries: Vec<HistoryEntry<'a>> = Vec::new();
    let mut at = 0;
    while let Some(message) = request.messages.get(at) {
        at += 1;
        match message {
            ModelMessage::User {
                text, images, frame, ..
            } => {
                add_user(&mut entries, &join_frame(frame, text), images, rules);
            }
            ModelMessage::Assistant { text, calls, state } => {
                let own = state.as_deref().map(|state| owner.owns(state));
                let calls: Vec<CallEntry<'a>> = calls
                    .iter()
                    .map(|call| CallEntry {
                        id: ids.name_call(call, own),
                        call,
                    })
                    .collect();
                let entry = AssistantEntry {
                    text: text.clone(),
                    calls,
                    state: state.as_deref().filter(|state| owner.owns(state)),
                    is_foreign: own == Some(false),
                };
                // The results stand between this answer and the next words of anybody.
                let behind = request.messages.get(at..).unwrap_or_default();
                let taken = behind
                    .iter()
                    .take_while(|next| matches!(next, ModelMessage::ToolResult { .. }));
                let results: Vec<&ModelMessage> = taken.collect();
                at += results.len();
                add_assistant(&mut entries, entry, &results);
            }
            // A result without its call: the call was cut away with an earlier part of the conversation.
            ModelMessage::ToolResult { .. } => {}
        }
    }
    if (rules.user_first || rules.alternates)
        && !matches!(entries.first(), Some(HistoryEntry::User { .. }) | None)
    {
        entries.insert(
            0,
            HistoryEntry::User {
                text: BEGINNING.to_owned(),
                images: Vec::new(),
            },
        );
    }
    entries
}

fn add_user<'a>(entries: &mut Vec<HistoryEntry<'a>>, words: &str, shown: &'a [Image], rules: HistoryRules) {
    match entries.last_mut() {
        Some(HistoryEntry::User { text, images }) => {
            append(text, words);
            images.extend(shown);
            return;
        }
        Some(HistoryEntry::Results(_)) if rules.alternates => {
            entries.push(HistoryEntry::Assistant(AssistantEntry {
                text: NO_ANSWER.to_owned(),
                calls: Vec::new(),
                state: None,
                is_foreign: false,
            }));
        }
        Some(HistoryEntry::Assistant(_) | HistoryEntry::Results(_)) | None => {}
    }
    entries.push(HistoryEntry::User {
        text: words.to_owned(),
        images: shown.iter().collect(),
    });
}

fn add_assistant<'a>(
    entries: &mut Vec<HistoryEntry<'a>>,
    entry: AssistantEntry<'a>,
    results: &[&ModelMessage],
) {
    if entry.text.trim().is_empty() && entry.calls.is_empty() {
        return;
    }
    let mut answers = Vec::with_capacity(entry.calls.len());
    let mut left: Vec<&ModelMessage> = results.to_vec();
    for call in &entry.calls {
        let found = left.iter().position(
            |result| matches!(result, ModelMessage::ToolResult { call_id, .. } if *call_id == call.call.id),
        );
        let (text, is_error) = match found.map(|at| left.remove(at)) {
            Some(ModelMessage::ToolResult { text, is_error, .. }) => (text.clone(), *is_error),
            Some(ModelMessage::User { .. } | ModelMessage::Assistant { .. }) | None => {
                (NO_RESULT.to_owned(), true)
            }
        };
        answers.push(ResultEntry {
            id: call.id.clone(),
            text,
            is_error,
        });
    }
    match entries.last_mut() {
        // Two answers in a row; the second one's parts stand where they stood.
        Some(HistoryEntry::Assistant(last)) if last.calls.is_empty() => {
            let is_same = last.state.is_none() && entry.state.is_none();
            append(&mut last.text, &entry.text);
            last.calls = entry.calls;
            last.state = if is_same { None } else { entry.state.or(last.state) };
            last.is_foreign |= entry.is_foreign;
        }
        Some(HistoryEntry::Assistant(_) | HistoryEntry::User { .. } | HistoryEntry::Results(_)) | None => {
            entries.push(HistoryEntry::Assistant(entry));
        }
    }
    if !answers.is_empty() {
        entries.push(HistoryEntry::Results(answers));
    }
}

fn append(text: &mut String, more: &str) {
    if !text.is_empty() && !more.is_empty() {
        text.push_str(BETWEEN);
    }
    text.push_str(more);
}

#[cfg(test)]
mod tests;
