//! The turn: answers one user message. A state machine without I/O: events in, effects out. Replay and recovery run the same code.

mod guard;

use std::collections::VecDeque;

use clawk_proto::Digest;

use crate::attach::TurnInput;
use crate::author::TextAuthor;
use crate::ports::{ModelCompletion, ModelMessage, StopReason, ToolUse, Usage};
use guard::{CallTrail, Finding, call_digest};

pub use guard::{Bounds, LoopGuardStop, MAX_REPEATS, MAX_STEPS};

/// An input of the state machine.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// The model answered.
    Inferred(ModelCompletion),
    /// A call ended: it ran, failed or was refused.
    CallDone {
        /// [`ToolUse::id`].
        call_id: String,
        /// The text for the model.
        text: String,
        /// The call failed or was refused.
        is_error: bool,
        /// The text contains the tool's own text.
        from_tool: bool,
    },
    /// A call was handed to the client that owns the tool. When all calls have ended, the turn ends.
    Handed {
        /// [`ToolUse::id`].
        call_id: String,
    },
    /// No model can answer. Holds the reason for people.
    Failed(String),
    /// The user cancelled.
    Cancelled,
}

/// How the text begins that stands for arguments which screening withheld.
pub const WITHHELD: &str = "[withheld:";

/// What the model reads of a call that has no arguments to run with: why, and what would mend it.
pub fn not_run(raw: &str) -> String {
    match raw.strip_prefix(WITHHELD) {
        Some(why) => format!(
            "not run: the policy's secret_scanning blocks secrets in arguments, and this call's arguments were withheld: {}. \
             Call it again without the secret: a tool that needs one is given it by the operator (`[secrets]` in clawk.toml), never by you",
            why.trim().trim_end_matches(']')
        ),
        None => format!("not run: the arguments are no JSON object: {raw}"),
    }
}

/// The text for the model about a call that the client runs.
const HANDED: &str =
    "The client that asked runs this call itself. Its result comes with the next message, as data.";

/// An output of the state machine: the driver performs it.
#[derive(Debug, Clone, PartialEq)]
pub enum Effect {
    /// Ask the model with [`Turn::messages`].
    Infer,
    /// Run this call; [`Event::CallDone`] follows.
    Call(ToolUse),
    /// Show a text to the user.
    Say(String),
    /// The turn has ended.
    Done(TurnOutcome),
}

/// How a turn ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TurnOutcome {
    /// The agent answered.
    Answered,
    /// The user cancelled it.
    Cancelled,
    /// It can't be finished. Holds the reason for people.
    Failed(String),
}

/// A turn in progress.
#[derive(Debug, Clone, PartialEq)]
pub struct Turn {
    messages: Vec<ModelMessage>,
    queue: VecDeque<ToolUse>,
    running: Option<RunningCall>,
    steps: u32,
    usage: Usage,
    said: String,
    over: bool,
    bounds: Bounds,
    trail: CallTrail,
    stopped: Option<LoopGuardStop>,
    declined: bool,
    /// A call of this turn is run by the client.
    handed: bool,
}

/// The running call.
#[derive(Debug, Clone, PartialEq)]
struct RunningCall {
    id: String,
    name: String,
    digest: Digest,
}

impl Turn {
    /// Starts a turn that answers `author`'s text after `history`. Its first effect is [`Effect::Infer`].
    #[must_use]
    pub fn start(history: Vec<ModelMessage>, text: String, author: TextAuthor) -> Self {
        let said = TurnInput {
            text,
            ..TurnInput::default()
        };
        Self::start_with(history, said, author)
    }

    /// The same with pictures beside the text, and a frame before it.
    pub fn start_with(history: Vec<ModelMessage>, said: TurnInput, author: TextAuthor) -> Self {
        let TurnInput { text, images, frame } = said;
        let mut messages = history;
        messages.push(ModelMessage::User {
            text,
            images,
            frame,
            author,
        });
        Self {
            messages,
            queue: VecDeque::new(),
            running: None,
            steps: 0,
            usage: Usage::default(),
            said: String::new(),
            over: false,
            bounds: Bounds::default(),
            trail: CallTrail::default(),
            stopped: None,
            declined: false,
            handed: false,
        }
    }

    /// Returns the turn with these limits.
    #[must_use]
    pub const fn with_bounds(mut self, bounds: Bounds) -> Self {
        self.bounds = bounds;
        self
    }

    /// Returns why the loop guard ended the turn, if it did.
    #[must_use]
    pub const fn loop_stop(&self) -> Option<&LoopGuardStop> {
        self.stopped.as_ref()
    }

    /// Returns whether the model declined to answer.
    #[must_use]
    pub const fn is_declined(&self) -> bool {
        self.declined
    }

    /// Returns whether a model has answered in this turn.
    #[must_use]
    pub fn has_begun(&self) -> bool {
        self.steps > 0
    }

    /// Puts the conversation before a turn that has not begun.
    pub fn go_behind(&mut self, history: Vec<ModelMessage>) {
        if !self.has_begun() {
            self.messages.splice(0..0, history);
        }
    }

    /// Replaces the conversation's oldest messages, in a turn that has not begun.
    pub fn set_aside(&mut self, oldest: usize, instead: Vec<ModelMessage>) {
        // The answered message stays.
        if !self.has_begun() && oldest < self.messages.len() {
            self.messages.splice(0..oldest, instead);
        }
    }

    /// Returns the calls of the model's last answer after the current one, in order.
    pub fn remaining_calls(&self) -> impl ExactSizeIterator<Item = &ToolUse> {
        self.queue.iter()
    }

    /// Returns the conversation so far, including this turn.
    #[must_use]
    pub fn messages(&self) -> &[ModelMessage] {
        &self.messages
    }

    /// Returns the conversation for the next turn.
    #[must_use]
    pub fn into_messages(self) -> Vec<ModelMessage> {
        self.messages
    }

    /// Returns the tokens of the turn so far.
    #[must_use]
    pub fn usage(&self) -> Usage {
        self.usage
    }

    /// Returns the agent's last text in this turn.
    #[must_use]
    pub fn last_text(&self) -> &str {
        &self.said
    }

    /// Applies an event. Returns the effects, in order. Nothing follows [`Effect::Done`].
    pub fn handle_event(&mut self, event: Event) -> Vec<Effect> {
        if self.over {
            return Vec::new();
        }
        match event {
            Event::Inferred(completion) => self.handle_completion(completion),
            Event::CallDone {
                call_id,
                text,
                is_error,
                from_tool,
            } => self.call_done((call_id, text), is_error, from_tool),
            Event::Handed { call_id } => self.handle_handover(call_id),
            Event::Failed(reason) => self.end_turn(TurnOutcome::Failed(reason)),
            Event::Cancelled => self.end_turn(TurnOutcome::Cancelled),
        }
    }

    /// Rejects an answer: `text` says what is wrong, and the model is asked once more.
    pub fn ask_again(&mut self, text: String) -> Vec<Effect> {
        self.over = false;
        self.messages.push(ModelMessage::User {
            text,
            images: Vec::new(),
            frame: String::new(),
            author: TextAuthor::from_runtime(),
        });
        vec![Effect::Infer]
    }

    fn handle_completion(&mut self, completion: ModelCompletion) -> Vec<Effect> {
        self.steps += 1;
        self.usage.input_tokens = self
            .usage
            .input_tokens
            .saturating_add(completion.usage.input_tokens);
        self.usage.output_tokens = self
            .usage
            .output_tokens
            .saturating_add(completion.usage.output_tokens);
        self.usage.cached_tokens = self
            .usage
            .cached_tokens
            .saturating_add(completion.usage.cached_tokens);
        self.usage.cache_write_tokens = self
            .usage
            .cache_write_tokens
            .saturating_add(completion.usage.cache_write_tokens);
        self.usage.estimated |= completion.usage.estimated;
        let ModelCompletion {
            text,
            calls,
            stop,
            state,
            ..
        } = completion;
        self.declined = stop == StopReason::Refusal;
        let mut effects = Vec::new();
        self.messages.push(ModelMessage::Assistant {
            text: text.clone(),
            calls: calls.clone(),
            state,
        });
        let text = match stop {
            StopReason::Length => format!("{text}\n[cut: the answer reached its token limit]"),
            StopReason::Refusal if text.is_empty() => "[the model declined to answer]".to_owned(),
            StopReason::End | StopReason::ToolUse | StopReason::Refusal => text,
        };
        if !text.is_empty() {
            self.said.clone_from(&text);
            effects.push(Effect::Say(text));
        }
        if calls.is_empty() {
            effects.extend(self.end_turn(TurnOutcome::Answered));
            return effects;
        }
        self.queue.extend(calls);
        if self.steps >= self.bounds.steps {
            let reason = format!(
                "the turn reached its limit of {} model answers (`[budgets] steps_per_turn` of clawk.toml); ask again to go on",
                self.bounds.steps
            );
            effects.extend(self.end_by_guard(LoopGuardStop {
                guard: "steps",
                reason,
            }));
            return effects;
        }
        effects.extend(self.next());
        effects
    }

    fn call_done(
        &mut self,
        (call_id, mut text): (String, String),
        is_error: bool,
        from_tool: bool,
    ) -> Vec<Effect> {
        let finding = match self.running.take().filter(|running| running.id == call_id) {
            Some(RunningCall { name, digest, .. }) => self.trail.add(&name, digest, &text, self.bounds),
            None => Finding::Fine,
        };
        if let Finding::Nearly(note) = &finding {
            text.push('\n');
            text.push_str(note);
        }
        self.messages.push(ModelMessage::ToolResult {
            call_id,
            text,
            is_error,
            from_tool,
        });
        match finding {
            Finding::Stop(stopped) => self.end_by_guard(stopped),
            Finding::Fine | Finding::Nearly(_) => self.next(),
        }
    }

    fn handle_handover(&mut self, call_id: String) -> Vec<Effect> {
        self.running = None;
        self.handed = true;
        self.messages.push(ModelMessage::ToolResult {
            call_id,
            text: HANDED.to_owned(),
            is_error: false,
            from_tool: false,
        });
        self.next()
    }

    /// Ends the turn because of the loop guard.
    fn end_by_guard(&mut self, stopped: LoopGuardStop) -> Vec<Effect> {
        let reason = stopped.reason.clone();
        self.stopped = Some(stopped);
        self.end_turn(TurnOutcome::Failed(reason))
    }

    /// Continues with the next call, or asks the model again. Calls run one after the other, in the model's order.
    fn next(&mut self) -> Vec<Effect> {
        while let Some(call) = self.queue.pop_front() {
            let digest = call_digest(&call.name, &call.arguments);
            if let Err(raw) = &call.arguments {
                let text = not_run(raw);
                let finding = self.trail.add(&call.name, digest, &text, self.bounds);
                self.messages.push(ModelMessage::ToolResult {
                    call_id: call.id,
                    text,
                    is_error: true,
                    from_tool: false,
                });
                if let Finding::Stop(stopped) = finding {
                    return self.end_by_guard(stopped);
                }
                continue;
            }
            self.running = Some(RunningCall {
                id: call.id.clone(),
                name: call.name.clone(),
                digest,
            });
            return vec![Effect::Call(call)];
        }
        if self.handed {
            return self.end_turn(TurnOutcome::Answered);
        }
        vec![Effect::Infer]
    }

    /// Ends the turn. Every call without an answer gets one, so that the conversation stays well formed.
    fn end_turn(&mut self, end: TurnOutcome) -> Vec<Effect> {
        self.over = true;
        let open = self
            .running
            .take()
            .map(|running| running.id)
            .into_iter()
            .chain(self.queue.drain(..).map(|call| call.id));
        for call_id in open.collect::<Vec<_>>() {
            let text = "not run: the turn ended before".to_owned();
            self.messages.push(ModelMessage::ToolResult {
                call_id,
                text,
                is_error: true,
                from_tool: false,
            });
        }
        vec![Effect::Done(end)]
    }
}

#[cfg(test)]
mod tests;
