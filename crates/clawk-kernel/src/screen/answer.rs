//! A model's own words: what policies let out of tools, they let out of models. Nothing of a secret leaves, streamed or whole,
//! and nothing of it is kept.

use std::sync::{Mutex, PoisonError};

use clawk_manifest::model::ScanAction;
use clawk_policy::leak::{LeakRedactingStream, LeakTally, Scanner};
use serde_json::Value;

use crate::event::{Draft, Thread};
use crate::ports::{InferRequest, ModelCompletion, ModelMessage, ProviderError, ProviderState, StatePart};
use crate::turn::WITHHELD;
use crate::watch::NoticeSender;
use clawk_govern::screen::{AgentScreening, ScreenedTextKind, ScreeningPass, action_name, secret_refusal};

/// Bytes of the thoughts before one text or call that are told; more of them are not.
const MAX_THOUGHT: usize = 64 * 1024;

/// Bytes that are gathered before they are looked at: models speak in pieces of a few bytes, and every look is at all that is held.
const GATHERED: usize = 64;

/// Pieces on their way out.
pub(crate) struct StreamScreen {
    /// `None`: nothing is looked for.
    held: Option<Mutex<Buffer>>,
    blocks: bool,
}

struct Buffer {
    stream: LeakRedactingStream,
    /// Not looked at yet.
    waiting: String,
    /// The first bytes of a character that is not whole.
    part: Vec<u8>,
}

impl StreamScreen {
    pub(crate) fn new(screens: &AgentScreening) -> Self {
        let (scanner, action) = screens.outbound_scan();
        let scanner = match action {
            ScanAction::Redact | ScanAction::Block => scanner,
            // What the operator gave this agent leaves it nowhere, whatever a policy only warns of.
            ScanAction::Warn => scanner.without_shapes(),
        };
        let held = (!scanner.is_idle()).then(|| {
            Mutex::new(Buffer {
                stream: scanner.stream(),
                waiting: String::new(),
                part: Vec::new(),
            })
        });
        Self {
            held,
            blocks: action == ScanAction::Block,
        }
    }

    /// Takes a piece; gives what may be shown now. The rest comes with the whole answer.
    pub(crate) fn push_piece(&self, text: &str) -> String {
        let Some(held) = &self.held else {
            return text.to_owned();
        };
        let mut held = held.lock().unwrap_or_else(PoisonError::into_inner);
        held.waiting.push_str(text);
        if held.waiting.len() < GATHERED {
            return String::new();
        }
        let waiting = std::mem::take(&mut held.waiting);
        let out = held.stream.push(waiting.as_bytes());
        // An answer that will be withheld is shown no further.
        if self.blocks && !held.stream.leaks_found().is_empty() {
            return String::new();
        }
        held.part.extend(out);
        let whole = match std::str::from_utf8(&held.part) {
            Ok(_) => held.part.len(),
            Err(error) => error.valid_up_to(),
        };
        let rest = held.part.split_off(whole);
        let shown = std::mem::replace(&mut held.part, rest);
        String::from_utf8_lossy(&shown).into_owned()
    }
}

/// Thoughts on their way to a terminal, gathered until the model goes on to its answer.
pub(crate) struct ThoughtScreen {
    scanner: Scanner,
    blocks: bool,
    held: Mutex<String>,
}

impl ThoughtScreen {
    pub(crate) fn new(screens: &AgentScreening) -> Self {
        let (scanner, action) = screens.outbound_scan();
        Self {
            scanner: match action {
                ScanAction::Redact | ScanAction::Block => scanner,
                ScanAction::Warn => scanner.without_shapes(),
            },
            blocks: action == ScanAction::Block,
            held: Mutex::default(),
        }
    }

    /// Takes a piece.
    pub(crate) fn add(&self, text: &str) {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        let room = MAX_THOUGHT.saturating_sub(held.len());
        let piece = text.get(..text.floor_char_boundary(room)).unwrap_or(text);
        held.push_str(piece);
    }

    /// What was thought since the last time, as it may be told.
    pub(crate) fn take_thought(&self) -> Option<String> {
        let held = std::mem::take(&mut *self.held.lock().unwrap_or_else(PoisonError::into_inner));
        if held.trim().is_empty() {
            return None;
        }
        match self.scanner.redact(&held) {
            Some(_) if self.blocks => None,
            Some((clean, _)) => Some(clean),
            None => Some(held),
        }
    }
}

/// The answer as it may be kept and told; what is to be recorded of it.
pub(crate) async fn screen_completion(
    screens: &AgentScreening,
    thread: Thread,
    provider: &str,
    notices: &NoticeSender,
    completion: &mut ModelCompletion,
) -> Vec<Draft> {
    let mut look = ScreeningPass::new(screens, thread, ScreenedTextKind::Answer, provider, notices);
    let (scanner, action) = screens.outbound_scan();
    if let Some((clean, tally)) = scanner.redact(&completion.text) {
        look.record_secrets(&tally, action_name(action)).await;
        completion.text = match action {
            ScanAction::Redact => clean,
            ScanAction::Block => format!(
                "[withheld: what the model said was not let through: {}]",
                secret_refusal(&tally).detail
            ),
            ScanAction::Warn => {
                let known = scanner.without_shapes().redact(&completion.text);
                known.map_or_else(|| std::mem::take(&mut completion.text), |(clean, _)| clean)
            }
        };
    }
    if let Some(state) = &mut completion.state {
        let (scanner, action) = match action {
            ScanAction::Redact | ScanAction::Block => (scanner, action),
            ScanAction::Warn => (scanner.without_shapes(), ScanAction::Redact),
        };
        let tally = clean_state(&scanner, state);
        if !tally.is_empty() {
            look.record_secrets(&tally, action_name(action)).await;
        }
    }
    screens.without_known(&mut completion.model);
    let (tally, action) = screen_arguments(screens, completion);
    let mut given = ScreeningPass::new(screens, thread, ScreenedTextKind::Arguments, provider, notices);
    if !tally.is_empty() {
        given.record_secrets(&tally, action_name(action)).await;
    }
    look.drafts.append(&mut given.drafts);
    look.drafts
}

/// What a server handed over for safe keeping, without secrets. A plain text loses the secret alone; a part that is sealed or signed
/// is worth nothing once it is changed, and leaves as a whole. Of sealed bytes only known values can be told: they have no shape.
fn clean_state(scanner: &Scanner, state: &mut ProviderState) -> LeakTally {
    let mut all = LeakTally::default();
    let known = scanner.without_shapes();
    let mut found = |json: &mut String| {
        let Ok(mut value) = serde_json::from_str::<Value>(json) else {
            return false; // silent-ok: what can't be read is not kept
        };
        let is_text = value.is_string();
        let tally = match is_text {
            true => scanner.redact_json(&mut value),
            false => {
                let mut tally = known.redact_json(&mut value);
                each_thought(&mut value, &mut |text| {
                    if let Some((clean, more)) = scanner.redact(text) {
                        *text = clean;
                        tally.join(&more);
                    }
                });
                tally
            }
        };
        if tally.is_empty() {
            return true;
        }
        all.join(&tally);
        if is_text {
            *json = value.to_string();
        }
        is_text
    };
    state.parts.retain_mut(|part| match part {
        StatePart::Member { json, .. } | StatePart::CallMember { json, .. } | StatePart::Block { json } => {
            found(json)
        }
        StatePart::Text { .. } | StatePart::Call { .. } => true,
    });
    all
}

/// The texts in it that a person could read.
fn each_thought(value: &mut Value, take: &mut dyn FnMut(&mut String)) {
    match value {
        Value::Array(items) => items.iter_mut().for_each(|item| each_thought(item, take)),
        Value::Object(members) => {
            for (name, member) in members.iter_mut() {
                match member {
                    Value::String(text) if matches!(name.as_str(), "text" | "thinking" | "summary") => {
                        take(text)
                    }
                    member => each_thought(member, take),
                }
            }
        }
        Value::String(_) | Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// The calls that the model asks for, by what policies want of input: the conversation and the record keep them as the call gets
/// them. Where such a call is blocked, there are no arguments to call with. A warning is the call's own to give; known values are
/// taken out all the same.
fn screen_arguments(screens: &AgentScreening, completion: &mut ModelCompletion) -> (LeakTally, ScanAction) {
    let mut all = LeakTally::default();
    let (scanner, action) = screens.inbound_scan();
    let (scanner, action) = match action {
        ScanAction::Redact | ScanAction::Block => (scanner, action),
        ScanAction::Warn => (scanner.without_shapes(), ScanAction::Redact),
    };
    if scanner.is_idle() {
        return (all, action);
    }
    let known = scanner.without_shapes();
    for call in &mut completion.calls {
        for name in [&mut call.id, &mut call.name] {
            if let Some((clean, tally)) = known.redact(name) {
                *name = clean;
                all.join(&tally);
            }
        }
        match &mut call.arguments {
            Ok(arguments) => {
                let mut value = Value::Object(std::mem::take(arguments));
                let tally = scanner.redact_json(&mut value);
                if let Value::Object(clean) = value {
                    *arguments = clean;
                }
                if !tally.is_empty() {
                    all.join(&tally);
                    if action == ScanAction::Block {
                        call.arguments = Err(format!("{WITHHELD} {}]", secret_refusal(&tally).detail));
                    }
                }
            }
            Err(raw) => {
                if let Some((clean, tally)) = scanner.redact(raw) {
                    *raw = clean;
                    all.join(&tally);
                }
            }
        }
    }
    (all, action)
}

/// A provider's own words for a failure, without secrets.
pub(crate) fn screen_failure(screens: &AgentScreening, error: &mut ProviderError) {
    if let Some((clean, _)) = screens.outbound_scan().0.redact(&error.message) {
        error.message = clean;
    }
}

/// What a model is about to be told, without the values that are known here: context files join a prompt unread, and a
/// conversation may be older than what is known.
pub(crate) fn screen_prompt(screens: &AgentScreening, request: &mut InferRequest) {
    let scanner = screens.scanner().without_shapes();
    if scanner.is_idle() {
        return;
    }
    let clean = |text: &mut String| {
        if let Some((clean, _told)) = scanner.redact(text) {
            *text = clean;
        }
    };
    clean(&mut request.system);
    clean(&mut request.volatile);
    for message in &mut request.messages {
        match message {
            ModelMessage::User { text, frame, .. } => {
                clean(text);
                clean(frame);
            }
            ModelMessage::ToolResult { text, .. } => clean(text),
            // Its calls were looked at when they were asked for, and the provider knows them by their ids.
            ModelMessage::Assistant { text, state, .. } => {
                clean(text);
                if let Some(state) = state {
                    clean_state(&scanner, state);
                }
            }
        }
    }
}
