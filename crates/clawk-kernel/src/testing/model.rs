//! A model that does as a test says.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::{Map, Value};
use tokio_util::sync::CancellationToken;

use crate::ports::{
    BoxFuture, CompletionDelta, FaultKind, InferRequest, ModelCompletion, ModelProvider, ProviderError,
    StatePart, StopReason, ToolUse, Usage,
};

type Answer = dyn Fn(&InferRequest, usize) -> Result<ModelCompletion, ProviderError> + Send + Sync;

/// Answers by a function of the request and of how often it was asked; remembers what it was asked.
pub struct ScriptedModel {
    answer: Box<Answer>,
    asked: Mutex<Vec<InferRequest>>,
    /// The server is down: connections are refused.
    down: AtomicBool,
    /// It takes questions and never answers.
    silent: bool,
}

impl fmt::Debug for ScriptedModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ScriptedModel")
    }
}

/// A completion that says this; 10 tokens in, 5 out.
#[must_use]
pub fn says(text: &str) -> ModelCompletion {
    let usage = Usage {
        input_tokens: 10,
        output_tokens: 5,
        ..Usage::default()
    };
    ModelCompletion {
        text: text.to_owned(),
        calls: Vec::new(),
        stop: StopReason::End,
        usage,
        model: "scripted".to_owned(),
        state: None,
    }
}

/// A completion that asks for these tools, in order.
#[must_use]
pub fn calls(wanted: &[(&str, Value)]) -> ModelCompletion {
    let calls = wanted
        .iter()
        .enumerate()
        .map(|(at, (name, arguments))| ToolUse {
            id: format!("call-{at}-{name}"),
            name: (*name).to_owned(),
            arguments: Ok(arguments.as_object().cloned().unwrap_or_else(Map::new)),
        })
        .collect();
    ModelCompletion {
        calls,
        stop: StopReason::ToolUse,
        ..says("")
    }
}

impl ScriptedModel {
    /// By a function.
    pub fn new(
        answer: impl Fn(&InferRequest, usize) -> Result<ModelCompletion, ProviderError> + Send + Sync + 'static,
    ) -> Self {
        Self {
            answer: Box::new(answer),
            asked: Mutex::default(),
            down: AtomicBool::new(false),
            silent: false,
        }
    }

    /// Takes questions and never answers.
    #[must_use]
    pub fn hanging() -> Self {
        Self {
            silent: true,
            ..Self::saying("")
        }
    }

    /// Always says this.
    #[must_use]
    pub fn saying(text: &str) -> Self {
        let text = text.to_owned();
        Self::new(move |_, _| Ok(says(&text)))
    }

    /// These, one after the other; then it fails.
    #[must_use]
    pub fn turns(turns: Vec<ModelCompletion>) -> Self {
        let turns = Mutex::new(VecDeque::from(turns));
        Self::new(move |_, _| {
            turns
                .lock()
                .unwrap()
                .pop_front()
                .ok_or_else(|| Self::fault(FaultKind::Rejected, "the script is over"))
        })
    }

    /// A failure of this kind.
    #[must_use]
    pub fn fault(kind: FaultKind, message: &str) -> ProviderError {
        ProviderError {
            kind,
            message: message.to_owned(),
            status: None,
            retry_after_ms: None,
            usage: None,
            cause: None,
        }
    }

    /// From now on it can be reached, or not.
    pub fn goes(&self, down: bool) {
        self.down.store(down, Ordering::SeqCst);
    }

    /// What it was asked so far.
    #[must_use]
    pub fn asked(&self) -> Vec<InferRequest> {
        self.asked.lock().unwrap().clone()
    }
}

impl ModelProvider for ScriptedModel {
    fn check_reachable(&self) -> BoxFuture<'_, Result<(), ProviderError>> {
        let down = self.down.load(Ordering::SeqCst);
        let fault = || Err(Self::fault(FaultKind::Unreachable, "connection refused"));
        Box::pin(std::future::ready(if down { fault() } else { Ok(()) }))
    }

    fn infer<'a>(
        &'a self,
        request: &'a InferRequest,
        on_delta: &'a (dyn Fn(CompletionDelta<'_>) + Send + Sync),
        _cancel: &'a CancellationToken,
    ) -> BoxFuture<'a, Result<ModelCompletion, ProviderError>> {
        Box::pin(async move {
            let count = {
                let mut asked = self.asked.lock().unwrap();
                asked.push(request.clone());
                asked.len()
            };
            tokio::task::yield_now().await;
            if self.silent {
                std::future::pending::<()>().await;
            }
            let outcome = (self.answer)(request, count);
            if let Ok(completion) = &outcome {
                for part in completion.state.iter().flat_map(|state| &state.parts) {
                    if let StatePart::Member { json, .. } = part {
                        let thought: String = serde_json::from_str(json).unwrap_or_default();
                        on_delta(CompletionDelta::Thought(&thought));
                    }
                }
                on_delta(CompletionDelta::Text(&completion.text));
            }
            outcome
        })
    }
}
