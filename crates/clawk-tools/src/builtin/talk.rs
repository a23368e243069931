//! Tools that touch no files and no network: `echo`, `sleep`, `ask-user`.

use std::time::Duration;

use clawk_kernel::ports::{RunError, RunOutcome};
use clawk_proto::SessionId;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{BuiltinContext, UserAnswer, UserQuestion};
use crate::call::{ExecutorCall, failure_outcome, success_outcome};

/// The maximum time of `sleep`, in seconds.
const MAX_SLEEP_S: f64 = 3600.0;

/// The maximum length of a question, in bytes.
const MAX_QUESTION_BYTES: usize = 4_000;

/// Returns `text` or `message`, or the arguments as JSON if there is neither.
pub(super) fn run_echo(call: &ExecutorCall<'_>) -> RunOutcome {
    let given = ["text", "message", "input"]
        .iter()
        .find_map(|name| call.arguments.get(*name).and_then(Value::as_str));
    let text = given.map_or_else(
        || Value::Object(call.arguments.clone()).to_string(),
        str::to_owned,
    );
    RunOutcome {
        structured: None,
        ..success_outcome(text, Value::Null)
    }
}

pub(super) async fn run_sleep(call: &ExecutorCall<'_>) -> RunOutcome {
    #[derive(Deserialize)]
    struct Args {
        seconds: f64,
    }
    let Args { seconds } = match call.parse() {
        Ok(args) => args,
        Err(outcome) => return outcome,
    };
    if !(0.0..=MAX_SLEEP_S).contains(&seconds) {
        return failure_outcome(format!("`seconds` must lie between 0 and {MAX_SLEEP_S}"));
    }
    tokio::time::sleep(Duration::from_secs_f64(seconds)).await;
    success_outcome(format!("slept {seconds} s"), json!({"seconds": seconds}))
}

pub(super) async fn ask_person(
    call: &ExecutorCall<'_>,
    shared: &BuiltinContext,
    session: Option<SessionId>,
) -> Result<RunOutcome, RunError> {
    #[derive(Deserialize)]
    struct Args {
        question: String,
        #[serde(default)]
        options: Vec<String>,
    }
    let Args { question, options } = match call.parse() {
        Ok(args) => args,
        Err(outcome) => return Ok(outcome),
    };
    let (Some(ask), Some(session)) = (&shared.ask, session) else {
        return Err(RunError::Unavailable(
            "nobody can be asked on this agent's channels".to_owned(),
        ));
    };
    // A longer question would be cut, and the person would answer without having read all of it.
    let length = question.len() + options.iter().map(String::len).sum::<usize>();
    if length > MAX_QUESTION_BYTES {
        return Ok(failure_outcome(format!(
            "the question and its options are {length} bytes; at most {MAX_QUESTION_BYTES} are shown, so nobody was asked; ask a shorter one"
        )));
    }
    Ok(
        match ask(UserQuestion {
            session,
            question,
            options,
        })
        .await
        {
            UserAnswer::Said(text) => success_outcome(text.clone(), json!({"answer": text})),
            UserAnswer::Declined => failure_outcome("the person declined to answer"),
            UserAnswer::Nobody => {
                failure_outcome("nobody can be asked in this session; decide without, or say what is missing")
            }
        },
    )
}
