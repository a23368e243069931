//! The output of a failed command with `--format json`: `{"valid": false, "errors": […]}`, the format of `clawk validate`.

use std::fmt;

use clap::ArgMatches;
use serde::Serialize;
use serde_json::{Value, json};

use crate::out;

/// A refusal with details: each fault and its place.
#[derive(Debug)]
pub(crate) struct DetailedRefusal {
    message: String,
    faults: Vec<Value>,
}

impl DetailedRefusal {
    /// Makes a refusal with a text for people and a list of faults.
    pub(crate) fn new<'a, F: Serialize + 'a>(
        message: String,
        faults: impl IntoIterator<Item = &'a F>,
    ) -> Self {
        let faults = faults.into_iter().map(|fault| json!(fault)).collect();
        Self { message, faults }
    }
}

impl fmt::Display for DetailedRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for DetailedRefusal {}

/// Returns whether the requested command prints JSON.
pub(crate) fn is_wanted(matches: &ArgMatches) -> bool {
    let mut verb = matches;
    while let Some((_, below)) = verb.subcommand() {
        verb = below;
    }
    let format = verb.try_get_raw("format").ok().flatten(); // silent-ok: a verb without it prints for people
    format.is_some_and(|mut words| words.any(|word| word == "json"))
}

/// Prints the error as the only JSON document on standard output.
pub(crate) fn print_refusal(error: &anyhow::Error) -> anyhow::Result<()> {
    let mut errors: Vec<Value> = error
        .chain()
        .filter_map(|cause| cause.downcast_ref::<DetailedRefusal>())
        .flat_map(|refused| refused.faults.iter().cloned())
        .collect();
    if errors.is_empty() {
        errors.push(json!({"code": "failed", "message": error_text(error)}));
    }
    out::print_json(&json!({"valid": false, "errors": errors}))
}

/// Returns the error and its causes, each once.
fn error_text(error: &anyhow::Error) -> String {
    let mut said = error.to_string();
    for cause in error.chain().skip(1).map(ToString::to_string) {
        if !said.contains(&cause) {
            said = format!("{said}: {cause}");
        }
    }
    said
}
