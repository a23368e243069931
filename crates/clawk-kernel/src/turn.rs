//! The turn: one user message, answered. Sans-IO: events in, effects out. Replay and recovery run the same code.

use std::collections::VecDeque;

use crate::ports::{Completion, Message, StopReason, ToolUse, Usage};

/// Model answers in one turn; past it the turn ends with an explanation.
pub const MAX_STEPS: u32 = 48;

/// What happened.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// The model answered.
    Inferred(Completion),
    /// A call ended: run, failed or refused.
    CallDone {
        /// [`ToolUse::id`].
        call_id: String,
        /// What the model reads.
        text: String,
        /// It failed or was refused.
        is_error: bool,
    },
    /// No model can answer; for people: why.
    Failed(String),
    /// The user cancelled.
    Cancelled,
}

/// What is to be done next.
#[derive(Debug, Clone, PartialEq)]
pub enum Effect {
    /// Ask the model with [`Turn::messages`].
    Infer,
    /// Run this call; [`Event::CallDone`] follows.
    Call(ToolUse),
    /// Tell the user.
    Say(String),
    /// The turn is over.
    Done(End),
}

/// How a turn ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum End {
    /// With an answer.
    Answered,
    /// The user cancelled it.
    Cancelled,
    /// It can't be finished; for people: why.
    Failed(String),
}

/// A turn in progress.
#[derive(Debug, Clone, PartialEq)]
pub struct Turn {
    messages: Vec<Message>,
    queue: VecDeque<ToolUse>,
    running: Option<String>,
    steps: u32,
    usage: Usage,
    said: String,
    over: bool,
}

impl Turn {
    /// A turn that answers `text` after `history`; its first effect is [`Effect::Infer`].
    #[must_use]
    pub fn start(history: Vec<Message>, text: String) -> Self {
        let mut messages = history;
        messages.push(Message::User { text });
        Self {
            messages,
            queue: VecDeque::new(),
            running: None,
            steps: 0,
            usage: Usage::default(),
            said: String::new(),
            over: false,
        }
    }

    /// The conversation so far, this turn included.
    #[must_use]
    pub fn messages(&self) -> &[Message] {
        &self.messages
    }

    /// The conversation, for the next turn.
    #[must_use]
    pub fn into_messages(self) -> Vec<Message> {
        self.messages
    }

    /// Tokens of the turn so far.
    #[must_use]
    pub fn usage(&self) -> Usage {
        self.usage
    }

    /// What the agent has said last.
    #[must_use]
    pub fn said(&self) -> &str {
        &self.said
    }

    /// Takes an event; returns what is to be done, in order. After [`Effect::Done`] nothing follows.
    pub fn step(&mut self, event: Event) -> Vec<Effect> {
        if self.over {
            return Vec::new();
        }
        match event {
            Event::Inferred(completion) => self.inferred(completion),
            Event::CallDone {
                call_id,
                text,
                is_error,
            } => self.call_done(call_id, text, is_error),
            Event::Failed(reason) => self.end(End::Failed(reason)),
            Event::Cancelled => self.end(End::Cancelled),
        }
    }

    fn inferred(&mut self, completion: Completion) -> Vec<Effect> {
        self.steps += 1;
        self.usage.input_tokens = self
            .usage
            .input_tokens
            .saturating_add(completion.usage.input_tokens);
        self.usage.output_tokens = self
            .usage
            .output_tokens
            .saturating_add(completion.usage.output_tokens);
        self.usage.estimated |= completion.usage.estimated;
        let Completion {
            text, calls, stop, ..
        } = completion;
        let mut effects = Vec::new();
        self.messages.push(Message::Assistant {
            text: text.clone(),
            calls: calls.clone(),
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
            effects.extend(self.end(End::Answered));
            return effects;
        }
        self.queue.extend(calls);
        if self.steps >= MAX_STEPS {
            let reason =
                format!("the turn reached its limit of {MAX_STEPS} model answers; ask again to go on");
            effects.extend(self.end(End::Failed(reason)));
            return effects;
        }
        effects.extend(self.next());
        effects
    }

    fn call_done(&mut self, call_id: String, text: String, is_error: bool) -> Vec<Effect> {
        self.running = None;
        self.messages.push(Message::ToolResult {
            call_id,
            text,
            is_error,
        });
        self.next()
    }

    /// The next call, or the model again. Calls run one after the other, in the order asked.
    fn next(&mut self) -> Vec<Effect> {
        while let Some(call) = self.queue.pop_front() {
            if let Err(raw) = &call.arguments {
                let text = format!("the arguments are no JSON object: {raw}");
                self.messages.push(Message::ToolResult {
                    call_id: call.id,
                    text,
                    is_error: true,
                });
                continue;
            }
            self.running = Some(call.id.clone());
            return vec![Effect::Call(call)];
        }
        vec![Effect::Infer]
    }

    /// Ends the turn; every call that got no answer gets one, so that the conversation stays well-formed.
    fn end(&mut self, end: End) -> Vec<Effect> {
        self.over = true;
        let open = self
            .running
            .take()
            .into_iter()
            .chain(self.queue.drain(..).map(|call| call.id));
        for call_id in open.collect::<Vec<_>>() {
            let text = "not run: the turn ended before".to_owned();
            self.messages.push(Message::ToolResult {
                call_id,
                text,
                is_error: true,
            });
        }
        vec![Effect::Done(end)]
    }
}

#[cfg(test)]
mod tests;
