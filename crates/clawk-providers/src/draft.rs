//! An answer as it grows.

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

/// Calls in one answer.
const CALLS_MAX: usize = 128;
/// Text kept of arguments that are no JSON object.
const BAD_ARGUMENTS_MAX_BYTES: usize = 4096;
/// Bytes that one token stands for at the very most. A server that counts fewer tokens than that is not believed.
const TOKEN_MAX_BYTES: u64 = 16;

/// How pieces reach whoever watches.
pub(crate) type OnDelta<'a> = &'a (dyn Fn(CompletionDelta<'_>) + Send + Sync);

/// The pieces of one answer so far.
#[derive(Debug, Default)]
pub(crate) struct Draft {
    pub(crate) text: String,
    calls: CallSlots,
    /// What is handed over for safe keeping.
    pub(crate) state: StateDraft,
    /// Bytes of thoughts that are no part of the answer.
    thought_bytes: usize,
    /// Thoughts as they stood in the answer's text.
    pub(crate) written_thoughts: String,
    /// Separates thoughts that are written into the text.
    splitter: Option<ThoughtSplitter>,
    halves: HalfJoiner,
    /// The model refuses, in words of its own.
    pub(crate) refused: bool,
    /// Once set, the answer is whole; what may follow is accounting.
    pub(crate) stop: Option<StopReason>,
    pub(crate) input_tokens: Option<u64>,
    pub(crate) output_tokens: Option<u64>,
    /// Of the input: read from the server's cache, and written into it.
    pub(crate) cached_tokens: u64,
    pub(crate) cache_write_tokens: u64,
    /// At most [`NAME_MAX_BYTES`].
    model: Option<String>,
    /// The server sent a count that nobody can record.
    unreadable: bool,
    /// The counts are the operator's own, of a script: they are believed.
    pub(crate) believed: bool,
}

/// What a finished answer is judged by.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AnswerContext<'a> {
    pub(crate) request: &'a InferRequest,
    pub(crate) request_bytes: usize,
    pub(crate) owner: StateOwner<'a>,
    /// Of the request, where the dialect's parts are bound to it.
    pub(crate) prefix: Option<Digest>,
}

impl Draft {
    /// A draft that separates thoughts from the text. `holds`: this model's answers begin inside of one.
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
        let text = self.halves.take(text).into_owned();
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

    /// A thought: counted, watched by whoever wants to, and no part of the answer.
    pub(crate) fn think(&mut self, text: &str, on_delta: OnDelta<'_>) {
        if !text.is_empty() {
            self.thought_bytes += text.len();
            on_delta(CompletionDelta::Thought(text));
        }
    }

    /// The server has said all that it will.
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

    /// The model's thoughts were opened by the server's template.
    pub(crate) fn was_opened(&self) -> bool {
        self.splitter.as_ref().is_some_and(ThoughtSplitter::was_opened)
    }

    /// Neither words nor calls so far.
    pub(crate) fn is_blank(&self) -> bool {
        self.text.is_empty() && self.calls.len() == 0
    }

    /// Adds to the call at `index`; id and name count once, arguments are joined.
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

    /// Adds a piece to the call that it belongs to, by all that it says of itself.
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
        // The whole call once more is not more of it.
        let repeats =
            !piece.name.is_empty() && piece.arguments.len() > 2 && call.arguments == piece.arguments;
        // A placeholder before the pieces.
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

    /// The whole arguments of a call, as a server says them at its end.
    pub(crate) fn set_arguments(&mut self, place: usize, arguments: &str) {
        if place < self.calls.len()
            && let Some(call) = self.calls.at_mut(place)
        {
            arguments.clone_into(&mut call.arguments);
        }
    }

    /// The model that the server says answered.
    pub(crate) fn named(&mut self, model: Option<&str>) {
        if let Some(model) = model.filter(|_| self.model.is_none()) {
            self.model = Some(name_of(Some(model)).to_owned());
        }
    }

    /// The server counts what it has read.
    pub(crate) fn read(&mut self, count: WireNumber) {
        self.input_tokens = count.given().or(self.input_tokens);
        self.unreadable |= count == WireNumber::Unreadable;
    }

    /// The server counts what it has written.
    pub(crate) fn wrote(&mut self, count: WireNumber) {
        self.output_tokens = count.given().or(self.output_tokens);
        self.unreadable |= count == WireNumber::Unreadable;
    }

    /// The server's account of the answer is not what was agreed.
    pub(crate) const fn miscounted(&mut self) {
        self.unreadable = true;
    }

    /// Nothing more is to be learnt of what it cost.
    pub(crate) const fn is_counted(&self) -> bool {
        self.unreadable || (self.input_tokens.is_some() && self.output_tokens.is_some())
    }

    /// What the attempt cost: the server's counts, or bytes / 4 where it gave none, or gave less than the text can be.
    pub(crate) fn usage(&self, request_bytes: usize) -> Usage {
        let calls: usize = self
            .calls
            .iter()
            .map(|call| call.name.len() + call.arguments.len())
            .sum();
        // A thought that goes back is in both counts.
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
            // More than was read did not come from a cache.
            cached_tokens: self.cached_tokens.min(input_tokens),
            cache_write_tokens: self.cache_write_tokens.min(input_tokens),
            estimated: self.unreadable
                || read != TokenCountTrust::Believed
                || written != TokenCountTrust::Believed,
            told: doubted.then_some(told),
            unreadable: self.unreadable,
        }
    }

    /// The count that is taken for what was written. The bytes of sealed thoughts say nothing against the server's count.
    fn judged_output(&self, bytes: usize, thoughts: usize) -> (u64, TokenCountTrust) {
        match self.output_tokens {
            Some(_) => self.judged(self.output_tokens, bytes),
            None => self.judged(None, bytes + thoughts),
        }
    }

    /// The count that is taken for so many bytes, and whose it is.
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

    /// The finished answer; a fault when it is not whole.
    pub(crate) fn finish(mut self, context: AnswerContext<'_>) -> Result<ModelCompletion, AttemptFault> {
        let Some(stop) = self.stop else {
            return Err(AttemptFault::cut());
        };
        self.end_text(&|_| {});
        let usage = self.usage(context.request_bytes);
        let mut taken = ids_of(context.request);
        let mut calls = Vec::with_capacity(self.calls.len());
        // What a filter has stopped is not run.
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
            // Servers disagree on what a stop with calls is called.
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

/// What goes back to the server: also without parts, it says whose ids the calls have.
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

/// Tokens of so many bytes, as a rough measure.
pub(crate) fn estimate(bytes: usize) -> u64 {
    u64::try_from(bytes.div_ceil(4)).map_or(Usage::TOKENS_MAX, |tokens| tokens.min(Usage::TOKENS_MAX)) // silent-ok: as many as there can be
}

/// An id or a name as it is kept. No tool has so long a name, so a cut one is none.
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

/// The server's id; where it gave none, or one that is taken, the first free `call-N`.
fn fresh_id(id: String, taken: &[String]) -> String {
    if !id.is_empty() && !taken.contains(&id) {
        return id;
    }
    (0..=taken.len())
        .map(|n| format!("call-{n}"))
        .find(|id| !taken.contains(id))
        .unwrap_or(id)
}

/// A JSON object, or the text that is none. No text, `null` and an empty list are the empty object: servers send them for no
/// arguments. A JSON text that holds a JSON object's text is that object.
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

/// The arguments as they go back to the model: always an object.
pub(crate) fn arguments_again(arguments: &Result<Map<String, Value>, String>) -> Value {
    match arguments {
        Ok(arguments) => Value::Object(arguments.clone()),
        Err(text) => serde_json::json!({ "invalid_arguments": text }),
    }
}

/// The longest beginning of `text` with at most `max_bytes` bytes.
pub(crate) fn shorten(text: &str, max_bytes: usize) -> &str {
    text.get(..text.floor_char_boundary(max_bytes)).unwrap_or(text)
}
