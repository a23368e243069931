//! The file of a scripted model: reads it, checks it, and selects the next reply. Only loading does I/O.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use clawk_core::ports::{InferRequest, ModelMessage, StopReason};
use regex::Regex;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::template;

const FILE_MAX_BYTES: u64 = 4 * 1024 * 1024;

/// Why a script cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ScriptError {
    /// The file cannot be read.
    #[error("script `{path}` cannot be read: {source}")]
    Read {
        /// Path of the file.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// The file is larger than 4 MiB.
    #[error("script `{0}` is larger than 4 MiB")]
    TooLarge(PathBuf),
    /// The file is not YAML of the documented form (docs/reference/scripted-model.md).
    #[error("script is not well formed: {0}")]
    Syntax(String),
    /// The YAML is well formed, but one value is wrong.
    #[error("script: {place}: {reason}")]
    Content {
        /// Path of the value, for example `scenes[1].steps[0].say`.
        place: String,
        /// What is wrong.
        reason: String,
    },
}

/// The complete file of a scripted model.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelScript {
    /// Characters per piece of a stream, and the pause between two pieces.
    #[serde(default)]
    pub(crate) stream: StreamPace,
    scenes: Vec<ScriptScene>,
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct StreamPace {
    pub(crate) chunk_chars: usize,
    pub(crate) chunk_delay_ms: u64,
}

impl Default for StreamPace {
    fn default() -> Self {
        Self {
            chunk_chars: 12,
            chunk_delay_ms: 0,
        }
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ScriptScene {
    user: Option<Pattern>,
    system: Option<Pattern>,
    turn: Option<usize>,
    steps: Vec<ScriptStep>,
}

/// A step is one reply, or `any:` with alternatives.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ScriptStep {
    any: Option<Vec<ScriptReply>>,
    #[serde(default)]
    say: String,
    #[serde(default)]
    call: Vec<ScriptedCall>,
    stop: Option<StopReason>,
    usage: Option<ScriptedUsage>,
    fault: Option<ScriptedFault>,
}

/// One answer of the model.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct ScriptReply {
    when: ReplyCondition,
    pub(crate) say: String,
    pub(crate) call: Vec<ScriptedCall>,
    pub(crate) stop: Option<StopReason>,
    pub(crate) usage: Option<ScriptedUsage>,
    pub(crate) fault: Option<ScriptedFault>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct ReplyCondition {
    error: Option<bool>,
    result: Option<Pattern>,
    offered: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ScriptedCall {
    pub(crate) name: String,
    #[serde(default)]
    pub(crate) arguments: Map<String, Value>,
    /// Text that is sent instead of `arguments`, to imitate a model that writes bad JSON.
    pub(crate) raw_arguments: Option<String>,
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ScriptedUsage {
    pub(crate) input: u64,
    pub(crate) output: u64,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct ScriptedFault {
    pub(crate) delay_ms: u64,
    pub(crate) status: Option<u16>,
    pub(crate) retry_after_ms: Option<u64>,
    pub(crate) message: Option<String>,
    pub(crate) cut_after_chars: Option<usize>,
    pub(crate) garbage: bool,
    pub(crate) hang: bool,
    /// The fault applies only to this many first attempts of this process at this step.
    pub(crate) times: Option<u32>,
}

/// A regular expression that may match anywhere in the text.
#[derive(Debug, Deserialize)]
#[serde(try_from = "String")]
struct Pattern(Regex);

impl TryFrom<String> for Pattern {
    type Error = regex::Error;

    fn try_from(text: String) -> Result<Self, regex::Error> {
        regex::RegexBuilder::new(&text)
            .size_limit(1 << 20)
            .build()
            .map(Self)
    }
}

/// The position of a reply in the script: scene and step.
pub(crate) type ScriptPosition = (usize, usize);

impl ModelScript {
    /// Reads and checks the file at `path`.
    ///
    /// # Errors
    /// [`ScriptError`]: the file cannot be read, is too large, or is not a valid script.
    pub fn load(path: &Path) -> Result<Self, ScriptError> {
        let failed = |source| ScriptError::Read {
            path: path.to_owned(),
            source,
        };
        let mut text = String::new();
        // Reading a pipe could block forever.
        if !std::fs::metadata(path).map_err(failed)?.is_file() {
            return Err(failed(io::Error::new(
                io::ErrorKind::InvalidInput,
                "not a regular file",
            )));
        }
        let file = File::open(path).map_err(failed)?;
        file.take(FILE_MAX_BYTES + 1)
            .read_to_string(&mut text)
            .map_err(failed)?;
        if u64::try_from(text.len()).is_ok_and(|length| length > FILE_MAX_BYTES) {
            return Err(ScriptError::TooLarge(path.to_owned()));
        }
        Self::parse(&text)
    }

    /// Reads and checks a script's text.
    ///
    /// # Errors
    /// [`ScriptError::Syntax`] and [`ScriptError::Content`].
    pub fn parse(text: &str) -> Result<Self, ScriptError> {
        let options = serde_saphyr::options! { strict_booleans: true };
        let mut script: Self = serde_saphyr::from_str_with_options(text, options)
            .map_err(|error| ScriptError::Syntax(error.to_string()))?;
        script.check_script()?;
        Ok(script)
    }

    fn check_script(&mut self) -> Result<(), ScriptError> {
        let wrong = |place: String, reason: &str| ScriptError::Content {
            place,
            reason: reason.to_owned(),
        };
        if self.stream.chunk_chars == 0 {
            return Err(wrong("stream.chunk_chars".to_owned(), "must be at least 1"));
        }
        for (s, scene) in self.scenes.iter_mut().enumerate() {
            if scene.steps.is_empty() {
                return Err(wrong(format!("scenes[{s}].steps"), "must not be empty"));
            }
            for (n, step) in scene.steps.iter_mut().enumerate() {
                let place = format!("scenes[{s}].steps[{n}]");
                let plain = step.as_reply();
                match (&mut step.any, plain) {
                    (Some(_), Some(_)) => {
                        return Err(wrong(place, "`any` stands alone: put the rest into its entries"));
                    }
                    (Some(replies), None) if replies.is_empty() => {
                        return Err(wrong(place, "`any` must not be empty"));
                    }
                    (Some(_), None) => {}
                    (none, reply) => *none = Some(vec![reply.unwrap_or_default()]),
                }
                for reply in step.any.iter().flatten() {
                    reply.check_reply().map_err(|reason| ScriptError::Content {
                        place: place.clone(),
                        reason,
                    })?;
                }
            }
        }
        Ok(())
    }

    /// Selects the reply to `request` by the conversation alone: it takes the first scene that matches the last user message, then
    /// counts the model's answers since that message to find the step.
    pub(crate) fn next(&self, request: &InferRequest) -> Result<(ScriptPosition, &ScriptReply), String> {
        let seen = ScriptContext::for_request(request);
        let scene = self
            .scenes
            .iter()
            .enumerate()
            .find(|(_, scene)| scene.matches_request(&seen, request));
        let Some((s, scene)) = scene else {
            let said: String = seen.last_user.chars().take(80).collect();
            return Err(format!("no scene of the script fits `{said}`"));
        };
        let Some(step) = scene.steps.get(seen.step) else {
            return Err(format!("scene {s} of the script has no step {}", seen.step));
        };
        let reply = step
            .any
            .iter()
            .flatten()
            .find(|reply| reply.when.is_met(&seen, request));
        reply
            .map(|reply| ((s, seen.step), reply))
            .ok_or_else(|| format!("no `when` of scene {s}, step {} holds", seen.step))
    }
}

impl ScriptStep {
    /// Returns the reply that is written directly into the step, if there is one.
    fn as_reply(&mut self) -> Option<ScriptReply> {
        let (say, call) = (std::mem::take(&mut self.say), std::mem::take(&mut self.call));
        let (stop, usage, fault) = (self.stop.take(), self.usage.take(), self.fault.take());
        let given =
            !say.is_empty() || !call.is_empty() || stop.is_some() || usage.is_some() || fault.is_some();
        given.then(|| ScriptReply {
            when: ReplyCondition::default(),
            say,
            call,
            stop,
            usage,
            fault,
        })
    }
}

impl ScriptReply {
    fn check_reply(&self) -> Result<(), String> {
        template::check_templates(&self.say)?;
        for call in &self.call {
            call.arguments.values().try_for_each(template::check_value)?;
            if call.raw_arguments.is_some() && !call.arguments.is_empty() {
                return Err(format!(
                    "call of `{}`: give `arguments` or `raw_arguments`, not both",
                    call.name
                ));
            }
        }
        match &self.fault {
            Some(fault) if fault.status.is_some_and(|status| !(400..600).contains(&status)) => {
                Err("`fault.status` must be within 400..599".to_owned())
            }
            _ => Ok(()),
        }
    }
}

impl ScriptScene {
    fn matches_request(&self, seen: &ScriptContext<'_>, request: &InferRequest) -> bool {
        self.user
            .as_ref()
            .is_none_or(|pattern| pattern.0.is_match(seen.last_user))
            && self
                .system
                .as_ref()
                .is_none_or(|pattern| pattern.0.is_match(&request.system))
            && self.turn.is_none_or(|turn| turn == seen.turn)
    }
}

impl ReplyCondition {
    fn is_met(&self, seen: &ScriptContext<'_>, request: &InferRequest) -> bool {
        self.error.is_none_or(|error| error == seen.tool_failed)
            && self
                .result
                .as_ref()
                .is_none_or(|pattern| pattern.0.is_match(seen.last_tool))
            && self
                .offered
                .as_ref()
                .is_none_or(|name| request.tools.iter().any(|tool| tool.name == *name))
    }
}

/// The parts of a conversation that a script can use.
#[derive(Debug, Default)]
pub(crate) struct ScriptContext<'a> {
    pub(crate) last_user: &'a str,
    /// The last tool result since the last user message.
    pub(crate) last_tool: &'a str,
    pub(crate) tool_failed: bool,
    /// Number of user messages so far, from 1. Consecutive ones count as one.
    pub(crate) turn: usize,
    /// Number of the model's answers since the last user message.
    pub(crate) step: usize,
}

impl<'a> ScriptContext<'a> {
    pub(crate) fn for_request(request: &'a InferRequest) -> Self {
        let mut seen = Self::default();
        let mut after_user = false;
        for message in &request.messages {
            match message {
                ModelMessage::User { text, .. } => {
                    let turn = if after_user { seen.turn } else { seen.turn + 1 };
                    seen = Self {
                        last_user: text,
                        turn,
                        ..Self::default()
                    };
                }
                ModelMessage::Assistant { .. } => seen.step += 1,
                ModelMessage::ToolResult { text, is_error, .. } => {
                    seen.last_tool = text;
                    seen.tool_failed = *is_error;
                }
            }
            after_user = matches!(message, ModelMessage::User { .. });
        }
        seen
    }
}
