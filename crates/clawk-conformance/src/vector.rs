//! The vectors in `vectors/ckp/`, and their adaptation for agents other than clawk.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use serde::Deserialize;
use serde_json::{Map, Value};

const FILES: [&str; 3] = [
    include_str!("../../../vectors/ckp/level-1.json"),
    include_str!("../../../vectors/ckp/level-2.json"),
    include_str!("../../../vectors/ckp/level-3.json"),
];

/// One vector: manifests to judge, or steps to run.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Vector {
    pub(super) id: String,
    pub(super) level: u8,
    pub(super) title: String,
    pub(super) clause: String,
    #[serde(default)]
    pub(super) manifest: Option<ManifestCase>,
    /// The setup in which clawk is started.
    #[serde(default)]
    pub(super) setup: Option<String>,
    /// `claw.initialize` is sent before the steps.
    #[serde(default = "default_true")]
    pub(super) handshake: bool,
    #[serde(default = "ten_seconds")]
    pub(super) deadline_ms: u64,
    #[serde(default)]
    pub(super) steps: Vec<VectorStep>,
    #[serde(default)]
    elsewhere: Option<ForeignOverrides>,
}

/// A document, and whether it must be accepted.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ManifestCase {
    pub(super) accept: bool,
    /// The level that it must reach.
    #[serde(default)]
    pub(super) level: Option<String>,
    /// The place that the error must name.
    #[serde(default)]
    pub(super) blame: Option<String>,
    pub(super) document: Value,
}

/// One step of a vector.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum VectorStep {
    /// Sends a message without waiting.
    Send(Value),
    /// Sends a line unchanged.
    SendText(String),
    /// Expects a notification with this method and params.
    Notified(Value),
    /// Expects no answer to the last message.
    Unanswered(LiteralTrue),
    /// Expects the agent to be stopping, stopped or gone.
    Stopped(LiteralTrue),
    /// Expects a response; other messages may come before it.
    #[serde(untagged)]
    Answer(ExpectedAnswer),
}

/// The literal `true`; any other value is an error.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(try_from = "bool")]
pub(super) struct LiteralTrue;

impl TryFrom<bool> for LiteralTrue {
    type Error = &'static str;

    fn try_from(word: bool) -> Result<Self, Self::Error> {
        if word {
            Ok(Self)
        } else {
            Err("leave the step out instead of `false`")
        }
    }
}

/// An expected response.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ExpectedAnswer {
    pub(super) answer: Value,
    /// Earliest time of the response in milliseconds, from the vector's first message after the handshake.
    #[serde(default)]
    pub(super) no_sooner_ms: u64,
    #[serde(default)]
    pub(super) no_later_ms: Option<u64>,
}

/// Changes for agents whose setup is given.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct ForeignOverrides {
    /// Replacements for whole string values in the steps.
    #[serde(default)]
    replace: BTreeMap<String, Value>,
    /// Replaces the arguments of a tool call.
    #[serde(default)]
    arguments: Option<Map<String, Value>>,
    /// The agent's response times are not checked.
    #[serde(default)]
    any_time: bool,
}

const fn default_true() -> bool {
    true
}

const fn ten_seconds() -> u64 {
    10_000
}

#[derive(Deserialize)]
struct VectorFile {
    vectors: Vec<Vector>,
}

/// Returns all vectors in the specification's order.
pub(super) fn load_vectors() -> Result<Vec<Vector>> {
    let mut all = Vec::new();
    for text in FILES {
        let file: VectorFile = serde_json::from_str(text).context("vectors/ckp is not readable")?;
        all.extend(file.vectors);
    }
    Ok(all)
}

impl Vector {
    /// Returns the vector with the names of `examples/conformance/claw.yaml`.
    pub(super) fn for_foreign_agent(&self) -> Self {
        let mut there = self.clone();
        let Some(elsewhere) = there.elsewhere.take() else {
            return there;
        };
        for step in &mut there.steps {
            match step {
                VectorStep::Send(message) => {
                    elsewhere.rename_values(message);
                    if let (Some(arguments), Some(found)) =
                        (&elsewhere.arguments, message.pointer_mut("/params/arguments"))
                    {
                        *found = Value::Object(arguments.clone());
                    }
                }
                VectorStep::Answer(answer) => {
                    elsewhere.rename_values(&mut answer.answer);
                    if elsewhere.any_time {
                        (answer.no_sooner_ms, answer.no_later_ms) = (0, None);
                    }
                }
                VectorStep::Notified(notified) => elsewhere.rename_values(notified),
                VectorStep::SendText(_) | VectorStep::Unanswered(_) | VectorStep::Stopped(_) => {}
            }
        }
        there
    }
}

impl ForeignOverrides {
    fn rename_values(&self, value: &mut Value) {
        each_string(value, &mut |text| self.replace.get(text).cloned());
    }
}

/// Replaces string values by the result of `new`. Keys are unchanged.
pub(super) fn each_string(value: &mut Value, new: &mut impl FnMut(&str) -> Option<Value>) {
    match value {
        Value::String(text) => {
            if let Some(other) = new(text) {
                *value = other;
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| each_string(item, new)),
        Value::Object(map) => map.values_mut().for_each(|member| each_string(member, new)),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}
