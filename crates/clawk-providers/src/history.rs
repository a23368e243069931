//! Prepares a conversation for every dialect: roles in a valid order, every call with its result, no empty messages.

use clawk_core::message_frame::join_frame;
use clawk_core::ports::{Image, InferRequest, ModelMessage, ProviderState, ToolUse};

use crate::call_ids::{CallIds, IdRule};
use crate::state::StateOwner;
use crate::wire::RequestContext;

/// The result that is sent for a call without a recorded result.
const NO_RESULT: &str = "No result of this call is known.";
/// Separator between the texts of joined messages.
const BETWEEN: &str = "\n\n";
/// Placeholder for a missing answer, if roles must alternate.
pub(crate) const NO_ANSWER: &str = "(no answer was given)";
/// Placeholder for the user's text, if a conversation must begin with a user message.
const BEGINNING: &str = "(earlier messages are not shown)";

/// One entry of a conversation.
#[derive(Debug)]
pub(crate) enum HistoryEntry<'a> {
    User {
        text: String,
        images: Vec<&'a Image>,
    },
    Assistant(AssistantEntry<'a>),
    /// The results of the preceding calls, in the calls' order.
    Results(Vec<ResultEntry>),
}

/// An answer of a model.
#[derive(Debug)]
pub(crate) struct AssistantEntry<'a> {
    pub(crate) text: String,
    pub(crate) calls: Vec<CallEntry<'a>>,
    /// The state that came with the answer, if the same server is asked again.
    pub(crate) state: Option<&'a ProviderState>,
    /// The answer came from another provider or model.
    pub(crate) is_foreign: bool,
}

#[derive(Debug)]
pub(crate) struct CallEntry<'a> {
    /// The call id in the dialect's format.
    pub(crate) id: String,
    pub(crate) call: &'a ToolUse,
}

#[derive(Debug)]
pub(crate) struct ResultEntry {
    pub(crate) id: String,
    pub(crate) text: String,
    pub(crate) is_error: bool,
}

/// The requirements of a dialect and an endpoint on a conversation.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HistoryRules {
    pub(crate) ids: IdRule,
    /// User and assistant must strictly alternate: no user message after a tool result, and the first message is the user's.
    pub(crate) alternates: bool,
    /// The first message must be the user's.
    pub(crate) user_first: bool,
}

/// Returns the conversation of a request. Text that changes from turn to turn is inserted before the user's newest message, so that
/// the prefix stays cacheable.
pub(crate) fn whole_history<'a>(context: RequestContext<'a>, rules: HistoryRules) -> Vec<HistoryEntry<'a>> {
    let mut entries = build_history(context.request, context.owner, rules);
    let newest = entries.iter_mut().rev().find_map(|entry| match entry {
        HistoryEntry::User { text, .. } => Some(text),
        HistoryEntry::Assistant(_) | HistoryEntry::Results(_) => None,
    });
    if let (Some(text), Some(volatile)) = (newest, context.volatile_text()) {
        let words = std::mem::take(text);
        text.push_str(volatile);
        append_text(text, &words);
    }
    entries
}

/// Returns the conversation of a request, without the changing text.
fn build_history<'a>(
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
                let own = state.as_deref().map(|state| owner.owns_state(state));
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
                    state: state.as_deref().filter(|state| owner.owns_state(state)),
                    is_foreign: own == Some(false),
                };
                // Tool results are between this answer and the next message.
                let behind = request.messages.get(at..).unwrap_or_default();
                let taken = behind
                    .iter()
                    .take_while(|next| matches!(next, ModelMessage::ToolResult { .. }));
                let results: Vec<&ModelMessage> = taken.collect();
                at += results.len();
                add_assistant(&mut entries, entry, &results);
            }
            // A result without its call is dropped: the call was removed with an earlier part of the conversation.
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
            append_text(text, words);
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
        // Two answers in a row are joined. The second one's parts move with its text.
        Some(HistoryEntry::Assistant(last)) if last.calls.is_empty() => {
            let is_same = last.state.is_none() && entry.state.is_none();
            append_text(&mut last.text, &entry.text);
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

fn append_text(text: &mut String, more: &str) {
    if !text.is_empty() && !more.is_empty() {
        text.push_str(BETWEEN);
    }
    text.push_str(more);
}

#[cfg(test)]
mod tests;
