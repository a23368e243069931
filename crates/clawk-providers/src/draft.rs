//! An answer as it grows.

use std::collections::BTreeMap;

use clawk_kernel::ports::{
    Completion, Delta, InferRequest, Message, NAME_MAX_BYTES, StopReason, Told, ToolUse, Usage,
};
use serde_json::{Map, Value};

use crate::fault::Fault;
use crate::number::Number;

#[cfg(test)]
mod tests;

/// Calls in one answer.
const CALLS_MAX: usize = 128;
/// Text kept of arguments that are no JSON object.
const BAD_ARGUMENTS_MAX_BYTES: usize = 4096;
/// Bytes that one token stands for at the very most. A server that counts fewer tokens than that is not believed.
const TOKEN_MAX_BYTES: u64 = 16;

/// How pieces reach whoever watches.
pub(crate) type OnDelta<'a> = &'a (dyn Fn(Delta<'_>) + Send + Sync);

/// The pieces of one answer so far.
#[derive(Debug, Default)]
pub(crate) struct Draft {
    pub(crate) text: String,
    calls: BTreeMap<u64, CallDraft>,
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

#[derive(Debug, Default)]
struct CallDraft {
    id: String,
    name: String,
    arguments: String,
    told: bool,
}

impl Draft {
    pub(crate) fn say(&mut self, text: &str, on_delta: OnDelta<'_>) {
        if !text.is_empty() {
            self.text.push_str(text);
            on_delta(Delta::Text(text));
        }
    }

    /// Adds to the call at `index`; id and name count once, arguments are joined.
    pub(crate) fn call(
        &mut self,
        index: u64,
        id: Option<&str>,
        name: Option<&str>,
        arguments: &str,
        on_delta: OnDelta<'_>,
    ) -> Result<(), Fault> {
        if self.calls.len() >= CALLS_MAX && !self.calls.contains_key(&index) {
            return Err(Fault::malformed(format!(
                "more than {CALLS_MAX} tool calls in one answer"
            )));
        }
        let call = self.calls.entry(index).or_default();
        if call.id.is_empty() {
            name_of(id).clone_into(&mut call.id);
        }
        if call.name.is_empty() {
            name_of(name).clone_into(&mut call.name);
        }
        call.arguments.push_str(arguments);
        if !call.name.is_empty() && !std::mem::replace(&mut call.told, true) {
            on_delta(Delta::Call(&call.name));
        }
        Ok(())
    }

    /// Where a piece without an index belongs: a new id begins a new call, anything else goes on with the last.
    pub(crate) fn implied_index(&self, id: Option<&str>) -> u64 {
        match (self.calls.last_key_value(), id) {
            (None, _) => 0,
            (Some((index, last)), Some(id)) if !id.is_empty() && last.id != name_of(Some(id)) => {
                index.saturating_add(1)
            }
            (Some((index, _)), _) => *index,
        }
    }

    /// The model that the server says answered.
    pub(crate) fn named(&mut self, model: Option<&str>) {
        if let Some(model) = model.filter(|_| self.model.is_none()) {
            self.model = Some(name_of(Some(model)).to_owned());
        }
    }

    /// The server counts what it has read.
    pub(crate) fn read(&mut self, count: Number) {
        self.input_tokens = count.given().or(self.input_tokens);
        self.unreadable |= count == Number::Unreadable;
    }

    /// The server counts what it has written.
    pub(crate) fn wrote(&mut self, count: Number) {
        self.output_tokens = count.given().or(self.output_tokens);
        self.unreadable |= count == Number::Unreadable;
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
            .values()
            .map(|call| call.name.len() + call.arguments.len())
            .sum();
        let (input_tokens, read) = self.judged(self.input_tokens, request_bytes);
        let (output_tokens, written) = self.judged(self.output_tokens, self.text.len() + calls);
        let doubted = read == Judged::Doubted || written == Judged::Doubted;
        let told = Told {
            input_tokens: self.input_tokens.unwrap_or(0),
            output_tokens: self.output_tokens.unwrap_or(0),
        };
        Usage {
            input_tokens,
            output_tokens,
            cached_tokens: self.cached_tokens,
            cache_write_tokens: self.cache_write_tokens,
            estimated: self.unreadable || read != Judged::Believed || written != Judged::Believed,
            told: doubted.then_some(told),
            unreadable: self.unreadable,
        }
    }

    /// The count that is taken for so many bytes, and whose it is.
    fn judged(&self, told: Option<u64>, bytes: usize) -> (u64, Judged) {
        let least = u64::try_from(bytes).unwrap_or(u64::MAX) / TOKEN_MAX_BYTES;
        match told {
            None => (estimate(bytes), Judged::Missing),
            Some(told) if told < least && !self.believed => (estimate(bytes).max(told), Judged::Doubted),
            Some(told) => (told, Judged::Believed),
        }
    }

    /// The finished answer; a fault when it is not whole.
    pub(crate) fn finish(
        self,
        request: &InferRequest,
        request_bytes: usize,
        model: &str,
    ) -> Result<Completion, Fault> {
        let Some(stop) = self.stop else {
            return Err(Fault::cut());
        };
        let usage = self.usage(request_bytes);
        let mut taken = ids_of(request);
        let mut calls = Vec::with_capacity(self.calls.len());
        for call in self.calls.into_values() {
            if call.name.is_empty() {
                return Err(Fault::malformed("a tool call without a name"));
            }
            let id = fresh_id(call.id, &taken);
            taken.push(id.clone());
            calls.push(ToolUse {
                id,
                name: call.name,
                arguments: arguments(&call.arguments),
            });
        }
        let stop = match stop {
            // Servers disagree on what a stop with calls is called.
            StopReason::End if !calls.is_empty() => StopReason::ToolUse,
            StopReason::ToolUse if calls.is_empty() => StopReason::End,
            other => other,
        };
        let model = self
            .model
            .filter(|model| !model.is_empty())
            .unwrap_or_else(|| model.to_owned());
        Ok(Completion {
            text: self.text,
            calls,
            stop,
            usage,
            model,
        })
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Judged {
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
        Message::Assistant { calls, .. } => Some(calls),
        Message::User { .. } | Message::ToolResult { .. } => None,
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

/// A JSON object, or the text that is none. No text at all is the empty object: many servers send that for no arguments.
pub(crate) fn arguments(text: &str) -> Result<Map<String, Value>, String> {
    if text.trim().is_empty() {
        return Ok(Map::new());
    }
    serde_json::from_str(text).map_err(|_| shorten(text, BAD_ARGUMENTS_MAX_BYTES).to_owned()) // silent-ok: the text is the error
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
