//! Fits a conversation into a model's window: chooses the messages that a model is shown. This is a pure function: the same
//! conversation and window give the same messages live, after a restart and in a replay. The record keeps all messages.
//!
//! The result is always well formed: it begins with a user message, and every call has its result.

use clawk_proto::Digest;

use crate::event::canonical;
use crate::output;
use crate::ports::{ModelMessage, ToolOffer};
use crate::recall::TOKEN_BYTES;

/// Results shorter than this, in bytes, are not replaced by a note.
const SMALL_BYTES: usize = 400;
/// Smallest part of a result that is shown if many results share the rest, in bytes.
const LEAST_RESULT_BYTES: usize = 256;
/// Size of the note inside a shortened result, in bytes.
const NOTE_BYTES: usize = 256;
/// Size of the note about omitted steps, in bytes.
const STEPS_NOTE_BYTES: usize = 96;

/// The space in a request for its conversation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ContextRoom {
    /// Size of the model's window in tokens.
    pub(crate) window_tokens: usize,
    /// Space for the conversation in bytes.
    pub(crate) conversation_bytes: usize,
    /// The current turn may be shortened, too. Records of earlier versions allow only history to be shortened.
    pub(crate) fits_turns: bool,
}

impl ContextRoom {
    /// Computes the space. A quarter of the window is for the answer and the tools; the system prompt has its own part of the rest.
    pub(crate) fn new(window_tokens: usize, system: &str, tools: &[ToolOffer], fits_turns: bool) -> Self {
        let parts = window_tokens.saturating_sub(window_tokens / 4) * TOKEN_BYTES;
        let offered: usize = match fits_turns {
            true => tools.iter().map(|tool| canonical(tool).len()).sum(),
            false => 0,
        };
        // Tools may use half of that quarter. What they use beyond it reduces the conversation's space.
        let beyond = offered.saturating_sub(window_tokens / 8 * TOKEN_BYTES);
        let least = if fits_turns { parts / 4 } else { parts / 2 };
        Self {
            window_tokens,
            conversation_bytes: parts
                .saturating_sub(system.len())
                .max(if fits_turns { 0 } else { least })
                .saturating_sub(beyond)
                .max(least),
            fits_turns,
        }
    }

    /// Returns the longest tool result that is shown completely: a quarter of the window, in bytes.
    const fn result_bytes(self) -> usize {
        self.window_tokens
    }
}

/// The part of a conversation that a model is shown.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct FittedContext {
    pub(crate) messages: Vec<ModelMessage>,
    /// Number of omitted messages.
    pub(crate) dropped_messages: usize,
    /// Number of results that are shortened or replaced by a note.
    pub(crate) shortened_results: usize,
    /// Digests of complete results that a note says how to read.
    pub(crate) readable: Vec<Digest>,
}

/// The message alone is larger than the window.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "the message is too long for this model: it has about {message_tokens} tokens, and there is room for about {room_tokens}; send it in \
     parts, or put it into a file that the agent can read"
)]
pub(crate) struct MessageTooLong {
    pub(crate) message_tokens: usize,
    pub(crate) room_tokens: usize,
}

/// Chooses the latest messages that fit. Whole turns are omitted first, beginning with the oldest. If the current turn alone is too
/// large, the results of its earlier steps become notes, then those of its last step are shortened, then its earlier steps are
/// omitted.
///
/// `whole` finds a call's complete result, so that a model can read it again.
///
/// # Errors
/// The current turn's message alone does not fit.
pub(crate) fn fit_messages(
    messages: &[ModelMessage],
    room: ContextRoom,
    whole: impl Fn(&str) -> Option<Digest>,
) -> Result<FittedContext, MessageTooLong> {
    let mut fitted = FittedContext {
        messages: messages.to_vec(),
        dropped_messages: 0,
        shortened_results: 0,
        readable: Vec::new(),
    };
    if room.fits_turns {
        shorten_longest(&mut fitted, room.result_bytes(), &whole);
    }
    let first = first_turn(&fitted.messages, room.conversation_bytes);
    fitted.messages.drain(..first);
    fitted.dropped_messages = first;
    if !room.fits_turns {
        return Ok(fitted);
    }
    let start = present_turn(&fitted.messages);
    let room_bytes = room.conversation_bytes;
    if let Some(asked) = fitted.messages.get(start) {
        let bytes = message_size(asked);
        if bytes > room_bytes {
            return Err(MessageTooLong {
                message_tokens: bytes / TOKEN_BYTES,
                room_tokens: room_bytes / TOKEN_BYTES,
            });
        }
    }
    if total_size(&fitted.messages) > room_bytes {
        note_earlier_results(&mut fitted, room_bytes, &whole);
    }
    if total_size(&fitted.messages) > room_bytes {
        shorten_last_results(&mut fitted, room_bytes, &whole);
    }
    if total_size(&fitted.messages) > room_bytes {
        leave_out_steps(&mut fitted, room_bytes);
    }
    Ok(fitted)
}

fn message_size(message: &ModelMessage) -> usize {
    canonical(message).len()
}

fn total_size(messages: &[ModelMessage]) -> usize {
    messages.iter().map(message_size).sum()
}

const fn is_user(message: &ModelMessage) -> bool {
    matches!(message, ModelMessage::User { .. })
}

/// Returns the first message of the oldest turn that fits; at least the last turn's.
fn first_turn(messages: &[ModelMessage], room_bytes: usize) -> usize {
    let sizes: Vec<usize> = messages.iter().map(message_size).collect();
    let mut left: usize = sizes.iter().sum();
    let mut first = 0;
    for (at, (message, size)) in messages.iter().zip(&sizes).enumerate() {
        if is_user(message) {
            first = at;
            if left <= room_bytes {
                break;
            }
        }
        left -= size;
    }
    first
}

/// Returns the index at which the current turn begins.
fn present_turn(messages: &[ModelMessage]) -> usize {
    messages.iter().rposition(is_user).unwrap_or(0)
}

/// Returns the index of the last step's first result, after the answer with the calls.
fn last_step(messages: &[ModelMessage]) -> usize {
    let answer = messages
        .iter()
        .rposition(|message| matches!(message, ModelMessage::Assistant { .. }));
    answer.map_or(messages.len(), |at| at + 1)
}

/// Shortens results that exceed the maximum to their beginning and end.
fn shorten_longest(fitted: &mut FittedContext, result_bytes: usize, whole: &impl Fn(&str) -> Option<Digest>) {
    let FittedContext {
        messages,
        shortened_results,
        readable,
        ..
    } = fitted;
    for message in messages {
        if let ModelMessage::ToolResult { call_id, text, .. } = message
            && text.len() > result_bytes.max(LEAST_RESULT_BYTES)
        {
            let digest = whole(call_id);
            *text = shorten_result(text, result_bytes, digest);
            *shortened_results += 1;
            readable.extend(digest);
        }
    }
}

/// Replaces results of the current turn's earlier steps by notes, oldest first, until the rest fits.
fn note_earlier_results(
    fitted: &mut FittedContext,
    room_bytes: usize,
    whole: &impl Fn(&str) -> Option<Digest>,
) {
    let (start, end) = (present_turn(&fitted.messages), last_step(&fitted.messages));
    let mut left = total_size(&fitted.messages);
    let earlier = fitted.messages.get_mut(start..end).unwrap_or_default();
    for message in earlier {
        if left <= room_bytes {
            return;
        }
        let before = message_size(message);
        if let ModelMessage::ToolResult { call_id, text, .. } = message
            && text.len() > SMALL_BYTES
        {
            let digest = whole(call_id);
            *text = omission_note(text.len(), digest);
            fitted.shortened_results += 1;
            fitted.readable.extend(digest);
            left = left.saturating_sub(before).saturating_add(message_size(message));
        }
    }
}

/// Distributes the remaining space to the results of the last step, at least [`LEAST_RESULT_BYTES`] each.
fn shorten_last_results(
    fitted: &mut FittedContext,
    room_bytes: usize,
    whole: &impl Fn(&str) -> Option<Digest>,
) {
    let at = last_step(&fitted.messages);
    let last = fitted.messages.get(at..).unwrap_or_default();
    let results = last.iter().filter(|message| !is_user(message)).count().max(1);
    let taken: usize = last.iter().map(message_size).sum();
    let beside = total_size(&fitted.messages) - taken;
    // Quotation marks and line ends need two bytes each on the wire.
    let each = (room_bytes.saturating_sub(beside) / results * 3 / 4).max(LEAST_RESULT_BYTES);
    for message in fitted.messages.get_mut(at..).unwrap_or_default() {
        if let ModelMessage::ToolResult { call_id, text, .. } = message
            && text.len() > each
        {
            let digest = whole(call_id);
            *text = shorten_result(text, each, digest);
            fitted.shortened_results += 1;
            fitted.readable.extend(digest);
        }
    }
}

/// Omits the current turn's earlier steps, oldest first. A step is an answer with its results.
fn leave_out_steps(fitted: &mut FittedContext, room_bytes: usize) {
    let start = present_turn(&fitted.messages) + 1;
    let mut left_out = 0;
    while total_size(&fitted.messages) + STEPS_NOTE_BYTES > room_bytes {
        let rest = fitted.messages.get(start..).unwrap_or_default();
        let is_answer = |message: &ModelMessage| matches!(message, ModelMessage::Assistant { .. });
        let Some(next) = rest.iter().skip(1).position(is_answer) else {
            break;
        };
        fitted.messages.drain(start..=start + next);
        fitted.dropped_messages += next + 1;
        left_out += 1;
    }
    if left_out == 0 {
        return;
    }
    let first_result = fitted.messages.get_mut(start..).unwrap_or_default();
    let first_result = first_result.iter_mut().find_map(|message| match message {
        ModelMessage::ToolResult { text, .. } => Some(text),
        ModelMessage::User { .. } | ModelMessage::Assistant { .. } => None,
    });
    if let Some(text) = first_result {
        text.insert_str(
            0,
            &format!("[{left_out} earlier steps of this turn are left out to fit the model's window]\n"),
        );
    }
}

fn omission_note(bytes: usize, digest: Option<Digest>) -> String {
    match digest {
        Some(digest) => format!(
            "[left out to fit the model's window: an output of {bytes} bytes. Read it again with {} {{\"digest\": \"{digest}\", \
             \"offset\": 0}}]",
            output::NAME
        ),
        None => format!("[left out to fit the model's window: an output of {bytes} bytes]"),
    }
}

/// Returns the beginning and the end of a result, `bytes` in total.
fn shorten_result(text: &str, bytes: usize, digest: Option<Digest>) -> String {
    let half = bytes.saturating_sub(NOTE_BYTES).max(LEAST_RESULT_BYTES / 2) / 2;
    let first = text.get(..text.floor_char_boundary(half)).unwrap_or_default();
    let last = text
        .get(text.ceil_char_boundary(text.len().saturating_sub(half))..)
        .unwrap_or_default();
    let left_out = text.len().saturating_sub(first.len() + last.len());
    let how = match digest {
        Some(digest) => format!(
            "; read the whole with {} {{\"digest\": \"{digest}\", \"offset\": {}}}",
            output::NAME,
            first.len()
        ),
        None => String::new(),
    };
    format!("{first}\n[… {left_out} bytes are left out to fit the model's window{how} …]\n{last}")
}

#[cfg(test)]
mod tests;
