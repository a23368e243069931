//! `[tools.NAME] command = ["prog", "arg"]`: arguments as JSON on standard input, the result on standard output.

use std::path::PathBuf;
use std::sync::Arc;

use clawk_kernel::ports::{RunError, RunOutcome};
use clawk_proto::content::ContentBlock;
use clawk_sandbox::{LaunchInput, Spec};
use clawk_secrets::Secret;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::parse_reply;
use crate::builtin::{BuiltinContext, launch_error};
use crate::call::{ExecutorCall, in_time, process_facts, truncate_text};

/// How many bytes of a failed command's standard error are shown.
const MAX_STDERR_BYTES: usize = 4 << 10;

/// A program that is bound to a tool.
#[derive(Debug)]
pub(crate) struct Command {
    pub(crate) program: String,
    pub(crate) args: Vec<String>,
    pub(crate) env: Vec<(String, String)>,
    pub(crate) secrets: Vec<(String, Secret)>,
    /// Whether the program is a WebAssembly file. It then runs at level `wasm`, even if the manifest asks for less.
    pub(crate) guest: bool,
    pub(crate) read_paths: Vec<PathBuf>,
    /// Whether it takes words instead of JSON.
    pub(crate) argv: bool,
    /// The folder in which it starts, if not the working directory.
    pub(crate) start_in: Option<PathBuf>,
}

/// The input of a command that takes words.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct CommandInput {
    args: Vec<String>,
    path: Option<String>,
    stdin: Option<String>,
}

impl Command {
    pub(crate) async fn run(
        &self,
        call: &ExecutorCall<'_>,
        shared: &BuiltinContext,
    ) -> Result<RunOutcome, RunError> {
        let plan = match self.guest {
            true => Arc::new(call.plan.for_guest().map_err(RunError::Sandbox)?),
            false => call.plan.clone(),
        };
        let mut spec = Spec::new(&self.program, plan);
        spec.args.clone_from(&self.args);
        spec.env.clone_from(&self.env);
        spec.env.extend(
            self.secrets
                .iter()
                .map(|(name, secret)| (name.clone(), secret.expose().to_owned())),
        );
        spec.workdir = Some(call.workdir.to_path_buf());
        spec.read_paths.clone_from(&self.read_paths);
        if let Some(folder) = &self.start_in {
            spec.workdir = Some(folder.clone());
            spec.base = Some(call.workdir.to_path_buf());
            spec.read_paths.push(folder.clone());
        }
        if self.argv {
            let words: CommandInput = match call.parse() {
                Ok(words) => words,
                Err(outcome) => return Ok(outcome),
            };
            spec.args.extend(words.args);
            spec.args.extend(words.path);
            spec.stdin = words
                .stdin
                .map_or(LaunchInput::Null, |text| LaunchInput::Bytes(text.into_bytes()));
        } else {
            let arguments =
                serde_json::to_vec(call.arguments).map_err(|e| RunError::Unavailable(e.to_string()))?;
            spec.stdin = LaunchInput::Bytes(arguments);
        }
        spec.timeout_ms = Some(call.timeout_ms);
        let way = shared
            .exits
            .way_out(&[call.tool], &spec.plan)
            .map_err(RunError::Sandbox)?;
        let way = way.with_collector(&call.connections);
        way.add_to_spec(&mut spec);
        let ran = shared.launcher.launch(&spec).await;
        way.finish_run().await;
        let outcome = in_time(ran.map_err(launch_error)?)?;
        let facts = match process_facts(&outcome) {
            Value::Object(facts) => facts,
            _ => Map::new(),
        };
        let success = outcome.is_success();
        let mut result = parse_reply(&String::from_utf8_lossy(&outcome.stdout), facts, outcome.obtained);
        if !success {
            result.is_error = true;
            let mut why = match (outcome.exit_code, outcome.signal, &outcome.limit) {
                (_, _, Some(limit)) => format!("[{limit}]"),
                (Some(code), _, None) => format!("[exit code {code}]"),
                (None, signal, None) => format!("[ended by signal {}]", signal.unwrap_or_default()),
            };
            let stderr = String::from_utf8_lossy(&outcome.stderr);
            if !stderr.trim().is_empty() {
                why.push('\n');
                why.push_str(truncate_text(stderr.trim_end(), MAX_STDERR_BYTES).0);
            }
            result.content.push(ContentBlock::text(why));
        }
        Ok(result)
    }
}
