//! The draft of an answer: it collects the pieces of a stream.

use clawk_core::ports::{
    CompletionDelta, InferRequest, ModelCompletion, ModelMessage, NAME_MAX_BYTES, ProviderState, StatePart,
    StopReason, TokenReport, ToolUse, Usage,
};
use clawk_proto::Digest;
use serde_json::{Map, Value};

use crate::call_slots::{CallPiece, CallSlots};
use crate::fault::AttemptFault;
use crate::number::WireNumber;
use crate::state::{StateDraft, StateOwner};
use crate::surrogates::{HalfJoiner, join_halves, read_halves};
use crate::thought::{SplitPiece, ThoughtSplitter};

#[cfg(test)]
mod tests;

/// Largest number of calls in one answer.
const CALLS_MAX: usize = 128;
/// Largest part of invalid arguments that is kept, in bytes.
const BAD_ARGUMENTS_MAX_BYTES: usize = 4096;
/// Largest number of bytes that one token can stand for. A server's token count that implies more is not used.
const TOKEN_MAX_BYTES: u64 = 16;

/// Receives each piece of the answer as it arrives.
pub(crate) type OnDelta<'a> = &'a (dyn Fn(CompletionDelta<'_>) + Send + Sync);

/// The pieces of one answer received so far.
#[derive(Debug, Default)]
pub(crate) struct Draft {
    pub(crate) text: String,
    calls: CallSlots,
    /// Data that the server wants back with the next request.
    pub(crate) state: StateDraft,
    /// Bytes of thoughts that are not part of the answer.
    thought_bytes: usize,
    /// Thoughts in the exact form in which they were part of the answer's text.
    pub(crate) written_thoughts: String,
    /// Separates thoughts from the answer's text, if the model writes them there.
    splitter: Option<ThoughtSplitter>,
    halves: HalfJoiner,
    /// The model refused to answer, in its own words.
    pub(crate) refused: bool,
    /// Why the model stopped. Once it is set, the answer is complete; only token counts may follow.
    pub(crate) stop: Option<StopReason>,
    pub(crate) input_tokens: Option<u64>,
    pub(crate) output_tokens: Option<u64>,
    /// Input tokens that the server read from its cache, and that it wrote into its cache.
    pub(crate) cached_tokens: u64,
    pub(crate) cache_write_tokens: u64,
    /// The model's name as the server reports it, at most [`NAME_MAX_BYTES`].
    model: Option<String>,
    /// The server sent a token count that cannot be recorded.
    unreadable: bool,
    /// The counts come from the operator's script and are used unchecked.
    pub(crate) believed: bool,
}

/// The information that is needed to finish an answer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AnswerContext<'a> {
    pub(crate) request: &'a InferRequest,
    pub(crate) request_bytes: usize,
    pub(crate) owner: StateOwner<'a>,
    /// Digest of the request's prefix, if the dialect binds parts of an answer to it.
    pub(crate) prefix: Option<Digest>,
}

impl Draft {
    /// Makes a draft that separates thoughts from the text. `holds`: this model's answers begin inside a thought.
    pub(crate) fn with_thoughts(holds: bool) -> Self {
        Self {
            splitter: Some(ThoughtSplitter::new(holds)),
            ..Self::default()
        }
    }

    pub(crate) fn say(&mut self, text: &str, on_delta: OnDelta<'_>) {
        if text.is_empty() {
            return;
        }
        let text = self.halves.push_text(text).into_owned();
        match &mut self.splitter {
            None => self.tell(&text, on_delta),
            Some(splitter) => {
                let pieces = splitter.push(&text);
                self.take_pieces(pieces, on_delta);
            }
        }
    }

    fn tell(&mut self, text: &str, on_delta: OnDelta<'_>) {
        if !text.is_empty() {
            self.text.push_str(text);
            on_delta(CompletionDelta::Text(text));
        }
    }

    fn take_pieces(&mut self, pieces: Vec<SplitPiece>, on_delta: OnDelta<'_>) {
        for piece in pieces {
            match piece {
                SplitPiece::Answer(text) => self.tell(&text, on_delta),
                SplitPiece::Thought(text) => {
                    self.written_thoughts.push_str(&text);
                    self.think(&text, on_delta);
                }
                SplitPiece::Retract => {
                    let text = std::mem::take(&mut self.text);
                    self.thought_bytes += text.len();
                    self.written_thoughts.push_str(&text);
                }
            }
        }
    }

    /// Adds a piece of a thought. It is counted and reported to the observer, but is not part of the answer.
    pub(crate) fn think(&mut self, text: &str, on_delta: OnDelta<'_>) {
        if !text.is_empty() {
            self.thought_bytes += text.len();
            on_delta(CompletionDelta::Thought(text));
        }
    }

    /// Ends the text: the server sends no more of it.
    pub(crate) fn end_text(&mut self, on_delta: OnDelta<'_>) {
        let rest = self.halves.finish();
        match &mut self.splitter {
            None => self.tell(rest, on_delta),
            Some(splitter) => {
                let mut pieces = splitter.push(rest);
                pieces.extend(splitter.finish());
                self.take_pieces(pieces, on_delta);
            }
        }
    }

    /// Returns whether the server's template opened the model's thought.
    pub(crate) fn was_opened(&self) -> bool {
        self.splitter.as_ref().is_some_and(ThoughtSplitter::was_opened)
    }

    /// Returns whether the draft has neither text nor calls.
    pub(crate) fn is_blank(&self) -> bool {
        self.text.is_empty() && self.calls.len() == 0
    }

    /// Adds a piece to the call at `index`. The first id and name count; arguments are joined.
    pub(crate) fn call(
        &mut self,
        index: u64,
        id: Option<&str>,
        name: Option<&str>,
        arguments: &str,
        on_delta: OnDelta<'_>,
    ) -> Result<usize, AttemptFault> {
        let place = self.calls.place_of_index(index);
        let piece = CallPiece {
            index: Some(index),
            position: 0,
            id: id.unwrap_or_default(),
            name: name.unwrap_or_default(),
            arguments,
        };
        self.add_call(place, &piece, on_delta)
    }

    /// Adds a piece to its call, which is found by index, id, name and arguments.
    pub(crate) fn call_piece(
        &mut self,
        piece: &CallPiece<'_>,
        on_delta: OnDelta<'_>,
    ) -> Result<usize, AttemptFault> {
        let place = self.calls.place_of(piece);
        self.add_call(place, piece, on_delta)
    }

    fn add_call(
        &mut self,
        place: usize,
        piece: &CallPiece<'_>,
        on_delta: OnDelta<'_>,
    ) -> Result<usize, AttemptFault> {
        if place >= CALLS_MAX {
            return Err(AttemptFault::malformed(format!(
                "more than {CALLS_MAX} tool calls in one answer"
            )));
        }
        let Some(call) = self.calls.at_mut(place) else {
            return Ok(place);
        };
        call.index = call.index.or(piece.index);
        if call.id.is_empty() {
            name_of(Some(piece.id)).clone_into(&mut call.id);
        }
        if call.name.is_empty() {
            name_of(Some(piece.name)).clone_into(&mut call.name);
        }
        // Some servers repeat the whole call. The repetition is not added to the arguments.
        let repeats =
            !piece.name.is_empty() && piece.arguments.len() > 2 && call.arguments == piece.arguments;
        // Some servers send a placeholder before the pieces.
        let placeholder = matches!(call.arguments.trim(), "{}" | "null" | "\"\"");
        if placeholder && piece.arguments.trim_start().starts_with('{') {
            call.arguments.clear();
        }
        if !repeats {
            call.arguments.push_str(piece.arguments);
        }
        if !call.name.is_empty() && !std::mem::replace(&mut call.told, true) {
            on_delta(CompletionDelta::Call(&call.name));
        }
        Ok(place)
    }

    /// Sets the complete arguments of a call, which some servers send at its end.
    pub(crate) fn set_arguments(&mut self, place: usize, arguments: &str) {
        if place < self.calls.len()
            && let Some(call) = self.calls.at_mut(place)
        {
            arguments.clone_into(&mut call.arguments);
        }
    }

    /// Records the model's name from the answer.
    pub(crate) fn named(&mut self, model: Option<&str>) {
        if let Some(model) = model.filter(|_| self.model.is_none()) {
            self.model = Some(name_of(Some(model)).to_owned());
        }
    }

    /// Records the server's count of input tokens.
    pub(crate) fn read(&mut self, count: WireNumber) {
        self.input_tokens = count.value().or(self.input_tokens);
        self.unreadable |= count == WireNumber::Unreadable;
    }

    /// Records the server's count of output tokens.
    pub(crate) fn wrote(&mut self, count: WireNumber) {
        self.output_tokens = count.value().or(self.output_tokens);
        self.unreadable |= count == WireNumber::Unreadable;
    }

    /// Records that the server's token counts are malformed.
    pub(crate) const fn miscounted(&mut self) {
        self.unreadable = true;
    }

    /// Returns whether the token counts are complete.
    pub(crate) const fn is_counted(&self) -> bool {
        self.unreadable || (self.input_tokens.is_some() && self.output_tokens.is_some())
    }

    /// Returns the usage of the attempt: the server's counts. If a count is missing, or too small for the text, it is estimated as
    /// bytes / 4.
    pub(crate) fn usage(&self, request_bytes: usize) -> Usage {
        let calls: usize = self
            .calls
            .iter()
            .map(|call| call.name.len() + call.arguments.len())
            .sum();
        // A thought that is sent back is part of both counts.
        let thoughts = self.thought_bytes.max(self.state.bytes());
        let (input_tokens, read) = self.judged(self.input_tokens, request_bytes);
        let (output_tokens, written) = self.judged_output(self.text.len() + calls, thoughts);
        let doubted = read == TokenCountTrust::Doubted || written == TokenCountTrust::Doubted;
        let told = TokenReport {
            input_tokens: self.input_tokens.unwrap_or(0),
            output_tokens: self.output_tokens.unwrap_or(0),
        };
        Usage {
            input_tokens,
            output_tokens,
            // The cached part cannot be larger than the whole input.
            cached_tokens: self.cached_tokens.min(input_tokens),
            cache_write_tokens: self.cache_write_tokens.min(input_tokens),
            estimated: self.unreadable
                || read != TokenCountTrust::Believed
                || written != TokenCountTrust::Believed,
            told: doubted.then_some(told),
            unreadable: self.unreadable,
        }
    }

    /// Returns the output token count to record. Encrypted thoughts have more bytes than tokens, so their bytes do not make the
    /// server's count invalid.
    fn judged_output(&self, bytes: usize, thoughts: usize) -> (u64, TokenCountTrust) {
        match self.output_tokens {
            Some(_) => self.judged(self.output_tokens, bytes),
            None => self.judged(None, bytes + thoughts),
        }
    }

    /// Returns the token count to record for this many bytes, and whether it is the server's count or an estimate.
    fn judged(&self, told: Option<u64>, bytes: usize) -> (u64, TokenCountTrust) {
        let least = u64::try_from(bytes).unwrap_or(u64::MAX) / TOKEN_MAX_BYTES;
        match told {
            None => (estimate(bytes), TokenCountTrust::Missing),
            Some(told) if told < least && !self.believed => {
                (estimate(bytes).max(told), TokenCountTrust::Doubted)
            }
            Some(told) => (told, TokenCountTrust::Believed),
        }
    }

    /// Returns the finished answer.
    ///
    /// # Errors
    /// The answer is incomplete.
    pub(crate) fn finish(mut self, context: AnswerContext<'_>) -> Result<ModelCompletion, AttemptFault> {
        let Some(stop) = self.stop else {
            return Err(AttemptFault::cut());
        };
        self.end_text(&|_| {});
        let usage = self.usage(context.request_bytes);
        let mut taken = ids_of(context.request);
        let mut calls = Vec::with_capacity(self.calls.len());
        // Calls of an answer that a content filter stopped are not run.
        let wanted = match stop {
            StopReason::Refusal => Vec::new(),
            StopReason::End | StopReason::ToolUse | StopReason::Length => self.calls.into_calls(),
        };
        for call in wanted {
            if call.name.is_empty() {
                return Err(AttemptFault::malformed("a tool call without a name"));
            }
            let id = fresh_id(call.id, &taken);
            taken.push(id.clone());
            calls.push(ToolUse {
                id,
                name: call.name,
                arguments: arguments(&join_halves(&call.arguments)),
            });
        }
        let stop = match stop {
            // Servers use different stop reasons for an answer with calls.
            StopReason::End if !calls.is_empty() => StopReason::ToolUse,
            StopReason::ToolUse if calls.is_empty() => StopReason::End,
            other => other,
        };
        let parts = self.state.into_parts();
        let model = self
            .model
            .filter(|model| !model.is_empty())
            .unwrap_or_else(|| context.owner.model.to_owned());
        Ok(ModelCompletion {
            text: self.text,
            state: state_of(context, parts, &calls),
            calls,
            stop,
            usage,
            model,
        })
    }
}

/// Returns the state that the next request sends back. It exists even without parts, because it records which server made the call
/// ids.
fn state_of(
    context: AnswerContext<'_>,
    parts: Vec<StatePart>,
    calls: &[ToolUse],
) -> Option<Box<ProviderState>> {
    let owner = context.owner;
    let wanted = !(owner.host.is_empty() || parts.is_empty() && calls.is_empty());
    wanted.then(|| {
        Box::new(ProviderState {
            provider: owner.provider.to_owned(),
            host: owner.host.to_owned(),
            model: owner.model.to_owned(),
            prefix: context.prefix.filter(|_| !parts.is_empty()),
            parts,
        })
    })
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TokenCountTrust {
    Believed,
    Doubted,
    Missing,
}

/// Estimates the tokens of this many bytes.
pub(crate) fn estimate(bytes: usize) -> u64 {
    u64::try_from(bytes.div_ceil(4)).map_or(Usage::TOKENS_MAX, |tokens| tokens.min(Usage::TOKENS_MAX)) // silent-ok: as many as there can be
}

/// Returns an id or a name, cut to the allowed length. No tool has a name that long, so a cut name matches no tool.
fn name_of(text: Option<&str>) -> &str {
    shorten(text.unwrap_or_default(), NAME_MAX_BYTES)
}

fn ids_of(request: &InferRequest) -> Vec<String> {
    let calls = request.messages.iter().filter_map(|message| match message {
        ModelMessage::Assistant { calls, .. } => Some(calls),
        ModelMessage::User { .. } | ModelMessage::ToolResult { .. } => None,
    });
    calls.flatten().map(|call| call.id.clone()).collect()
}

/// Returns the server's id. If it is missing or already used, returns the first free `call-N`.
fn fresh_id(id: String, taken: &[String]) -> String {
    if !id.is_empty() && !taken.contains(&id) {
        return id;
    }
    (0..=taken.len())
        .map(|n| format!("call-{n}"))
        .find(|id| !taken.contains(id))
        .unwrap_or(id)
}

/// Parses arguments as a JSON object. An empty text, `null` and an empty list count as the empty object, because servers send them
/// for "no arguments". A JSON string that holds an object is read as that object.
///
/// # Errors
/// The text itself, if it is not a JSON object.
pub(crate) fn arguments(text: &str) -> Result<Map<String, Value>, String> {
    if text.trim().is_empty() {
        return Ok(Map::new());
    }
    let bad = || shorten(text, BAD_ARGUMENTS_MAX_BYTES).to_owned();
    match serde_json::from_str(&read_halves(text)) {
        Ok(Value::Object(mut arguments)) => {
            arguments.values_mut().for_each(join_halves_in);
            Ok(arguments)
        }
        Ok(Value::Null) => Ok(Map::new()),
        Ok(Value::Array(list)) if list.is_empty() => Ok(Map::new()),
        Ok(Value::String(inner)) if inner.trim().is_empty() => Ok(Map::new()),
        Ok(Value::String(inner)) if inner.trim_start().starts_with('{') => arguments(&inner),
        Ok(Value::String(_) | Value::Array(_) | Value::Bool(_) | Value::Number(_)) | Err(_) => Err(bad()), // silent-ok: the text is the error
    }
}

fn join_halves_in(value: &mut Value) {
    match value {
        Value::String(text) => *text = join_halves(text),
        Value::Array(items) => items.iter_mut().for_each(join_halves_in),
        Value::Object(members) => members.values_mut().for_each(join_halves_in),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// Returns the arguments to send back to the model: always an object.
pub(crate) fn arguments_again(arguments: &Result<Map<String, Value>, String>) -> Value {
    match arguments {
        Ok(arguments) => Value::Object(arguments.clone()),
        Err(text) => serde_json::json!({ "invalid_arguments": text }),
    }
}

/// Returns the longest prefix of `text` with at most `max_bytes` bytes.
pub(crate) fn shorten(text: &str, max_bytes: usize) -> &str {
    text.get(..text.floor_char_boundary(max_bytes)).unwrap_or(text)
}
