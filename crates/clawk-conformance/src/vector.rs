//! The vectors as they lie in `vectors/ckp/`, and their other reading for agents that are not clawk.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use serde::Deserialize;
use serde_json::{Map, Value};

const FILES: [&str; 3] = [
    include_str!("../../../vectors/ckp/level-1.json"),
    include_str!("../../../vectors/ckp/level-2.json"),
    include_str!("../../../vectors/ckp/level-3.json"),
];

/// One vector: a manifest to judge, or steps to play.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Vector {
    pub(super) id: String,
    pub(super) level: u8,
    pub(super) title: String,
    pub(super) clause: String,
    #[serde(default)]
    pub(super) manifest: Option<ManifestCase>,
    /// The set-up that clawk is started with.
    #[serde(default)]
    pub(super) setup: Option<String>,
    /// `claw.initialize` is played before the steps.
    #[serde(default = "yes")]
    pub(super) handshake: bool,
    #[serde(default = "ten_seconds")]
    pub(super) deadline_ms: u64,
    #[serde(default)]
    pub(super) steps: Vec<VectorStep>,
    #[serde(default)]
    elsewhere: Option<ForeignOverrides>,
}

/// A document and whether it must be taken.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ManifestCase {
    pub(super) accept: bool,
    /// The level that it must reach.
    #[serde(default)]
    pub(super) level: Option<String>,
    /// What an error must point to.
    #[serde(default)]
    pub(super) blame: Option<String>,
    pub(super) document: Value,
}

/// One step of a vector.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum VectorStep {
    /// A message, sent without waiting for anything.
    Send(Value),
    /// A line as it is.
    SendText(String),
    /// A notification that must come: its method and params.
    Notified(Value),
    /// What was sent last must not be answered.
    Unanswered(LiteralTrue),
    /// The agent must be stopping, stopped or gone.
    Stopped(LiteralTrue),
    /// A response that must come, whatever comes before it.
    #[serde(untagged)]
    Answer(ExpectedAnswer),
}

/// `true`, and nothing else.
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

/// A response that must come.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ExpectedAnswer {
    pub(super) answer: Value,
    /// Counted from the vector's first message after the handshake.
    #[serde(default)]
    pub(super) no_sooner_ms: u64,
    #[serde(default)]
    pub(super) no_later_ms: Option<u64>,
}

/// What is different for agents whose set-up is not ours to write.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct ForeignOverrides {
    /// Whole string values, wherever they stand in the steps.
    #[serde(default)]
    replace: BTreeMap<String, Value>,
    /// In place of a tool call's arguments.
    #[serde(default)]
    arguments: Option<Map<String, Value>>,
    /// The times of answers are the agent's own.
    #[serde(default)]
    any_time: bool,
}

const fn yes() -> bool {
    true
}

const fn ten_seconds() -> u64 {
    10_000
}

#[derive(Deserialize)]
struct VectorFile {
    vectors: Vec<Vector>,
}

/// All vectors in the specification's order.
pub(super) fn all() -> Result<Vec<Vector>> {
    let mut all = Vec::new();
    for text in FILES {
        let file: VectorFile = serde_json::from_str(text).context("vectors/ckp is not readable")?;
        all.extend(file.vectors);
    }
    Ok(all)
}

impl Vector {
    /// The same vector with the names of `examples/conformance/claw.yaml`.
    pub(super) fn elsewhere(&self) -> Self {
        let mut there = self.clone();
        let Some(elsewhere) = there.elsewhere.take() else {
            return there;
        };
        for step in &mut there.steps {
            match step {
                VectorStep::Send(message) => {
                    elsewhere.rename(message);
                    if let (Some(arguments), Some(found)) =
                        (&elsewhere.arguments, message.pointer_mut("/params/arguments"))
                    {
                        *found = Value::Object(arguments.clone());
                    }
                }
                VectorStep::Answer(answer) => {
                    elsewhere.rename(&mut answer.answer);
                    if elsewhere.any_time {
                        (answer.no_sooner_ms, answer.no_later_ms) = (0, None);
                    }
                }
                VectorStep::Notified(notified) => elsewhere.rename(notified),
                VectorStep::SendText(_) | VectorStep::Unanswered(_) | VectorStep::Stopped(_) => {}
            }
        }
        there
    }
}

impl ForeignOverrides {
    fn rename(&self, value: &mut Value) {
        each_string(value, &mut |text| self.replace.get(text).cloned());
    }
}

/// Puts what `new` gives in place of string values; keys stay.
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
