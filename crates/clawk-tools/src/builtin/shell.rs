//! `shell`: runs one command line with bash, or with `/bin/sh` if there is no bash, in a separate process.

use std::collections::BTreeMap;

use clawk_kernel::ports::{RunError, RunOutcome};
use clawk_proto::content::ContentBlock;
use clawk_sandbox::{LaunchError, LaunchInput, LaunchOutcome, Spec};
use serde::Deserialize;

use super::BuiltinContext;
use crate::call::{ExecutorCall, failure_outcome, in_time, process_facts};

#[derive(Deserialize)]
struct Args {
    command: String,
    #[serde(default)]
    workdir: Option<String>,
    #[serde(default)]
    env: BTreeMap<String, String>,
    #[serde(default)]
    stdin: Option<String>,
}

pub(super) async fn run(call: &ExecutorCall<'_>, shared: &BuiltinContext) -> Result<RunOutcome, RunError> {
    let args: Args = match call.parse() {
        Ok(args) => args,
        Err(outcome) => return Ok(outcome),
    };
    if let Some(name) = args
        .env
        .keys()
        .find(|name| name.is_empty() || name.contains(['=', '\0']))
    {
        return Ok(failure_outcome(format!(
            "`{}` is not a valid name of a variable",
            name.escape_debug()
        )));
    }
    let mut spec = Spec::new(call.plan.shell_program(call.workdir), call.plan.clone());
    spec.args = vec!["-c".to_owned(), args.command];
    spec.env = minimal_env(call, shared)
        .into_iter()
        .filter(|(name, _)| !args.env.contains_key(name))
        .collect();
    spec.env.extend(args.env);
    spec.workdir = Some(
        args.workdir
            .map_or_else(|| call.workdir.to_path_buf(), |folder| call.workdir.join(folder)),
    );
    spec.base = Some(call.workdir.to_path_buf());
    spec.stdin = args
        .stdin
        .map_or(LaunchInput::Null, |text| LaunchInput::Bytes(text.into_bytes()));
    spec.timeout_ms = Some(call.timeout_ms);
    let way = shared
        .exits
        .way_out(&[call.tool], call.plan)
        .map_err(RunError::Sandbox)?;
    let way = way.with_collector(&call.connections);
    way.add_to_spec(&mut spec);
    let ran = shared.launcher.launch(&spec).await;
    way.finish_run().await;
    Ok(reply_from_outcome(in_time(ran.map_err(launch_error)?)?))
}

/// The environment: this machine's search path and a home folder for the tool. Without one, the home is the working directory, so
/// that no private settings are read by accident.
fn minimal_env(call: &ExecutorCall<'_>, shared: &BuiltinContext) -> Vec<(String, String)> {
    let path = shared
        .env
        .non_empty("PATH")
        .unwrap_or_else(|| clawk_plan::plan::MINIMAL_PATH.to_owned());
    let home = match call.plan.private_home() {
        Some(home) => home.to_owned(),
        None => call.workdir.to_string_lossy().into_owned(),
    };
    vec![
        ("PATH".to_owned(), path),
        ("HOME".to_owned(), home),
        ("LANG".to_owned(), "C.UTF-8".to_owned()),
    ]
}

pub(crate) fn launch_error(error: LaunchError) -> RunError {
    match error {
        LaunchError::Refused(refusal) => RunError::Sandbox(refusal),
        LaunchError::Lost { .. } => RunError::Unknown(error.to_string()),
    }
}

/// Builds the reply: standard output first, then notes for the model.
fn reply_from_outcome(outcome: LaunchOutcome) -> RunOutcome {
    let mut text = String::from_utf8_lossy(&outcome.stdout).into_owned();
    let mut add = |line: String| {
        if !text.is_empty() && !text.ends_with('\n') {
            text.push('\n');
        }
        text.push_str(&line);
    };
    if !outcome.stderr.is_empty() {
        add(format!(
            "[standard error]\n{}",
            String::from_utf8_lossy(&outcome.stderr)
        ));
    }
    match (outcome.exit_code, outcome.signal) {
        (Some(0), _) => {}
        (Some(code), _) => add(format!("[exit code {code}]")),
        (None, signal) => add(format!("[ended by signal {}]", signal.unwrap_or_default())),
    }
    if let Some(limit) = &outcome.limit {
        add(format!("[{limit}]"));
    }
    let structured = Some(process_facts(&outcome));
    RunOutcome {
        content: vec![ContentBlock::text(text)],
        is_error: !outcome.is_success(),
        structured,
        obtained: outcome.obtained,
    }
}
