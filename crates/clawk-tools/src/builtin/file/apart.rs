//! Runs the file tools in a separate process: `clawk __builtin` under the supervisor, with the job as JSON on standard input and
//! the reply as JSON on standard output. The process runs the same code with the same checks.

use std::io::{Read as _, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;

use clawk_kernel::ports::{RunError, RunOutcome};
use clawk_sandbox::launch::OWN_PROGRAM;
use clawk_sandbox::{LaunchInput, LaunchOutcome, Launcher, Spec};

use super::{CHECKS, FileToolReply, Job};
use crate::builtin::launch_error;
use crate::call::{ExecutorCall, failure_outcome, in_time, truncate_text};

/// The first argument that starts such a process.
pub const MODE: &str = "__builtin";

/// The maximum size of a job, in bytes: the largest content of a write after escaping, plus a reserve.
const MAX_JOB_BYTES: u64 = 128 << 20;

/// How many bytes of a failed process's standard error are reported.
const MAX_STDERR_BYTES: usize = 500;

/// Runs the job on standard input. Call it first in `main`, before any thread starts, if the first argument is [`MODE`]; then end
/// the process with the returned exit code.
#[must_use]
pub fn main() -> ExitCode {
    match answer_job() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "{error}"); // silent-ok: the exit code says it, too
            ExitCode::from(2)
        }
    }
}

fn answer_job() -> std::io::Result<()> {
    let mut text = Vec::new();
    std::io::stdin().take(MAX_JOB_BYTES).read_to_end(&mut text)?;
    let job: Job = serde_json::from_slice(&text)?;
    let reply = serde_json::to_vec(&FileToolReply::from(job.run_builtin()))?;
    let mut out = std::io::stdout().lock();
    out.write_all(&reply)?;
    out.flush()
}

/// Builds the launch spec of the process for this job.
pub(super) fn job_spec(call: &ExecutorCall<'_>, job: &Job) -> Result<Spec, RunError> {
    let text = serde_json::to_vec(job).map_err(|error| RunError::Unavailable(error.to_string()))?;
    let mut spec = Spec::new(OWN_PROGRAM, call.plan.clone());
    spec.args = vec![MODE.to_owned()];
    spec.workdir = Some(PathBuf::from("/"));
    spec.base = Some(call.workdir.to_path_buf());
    spec.stdin = LaunchInput::Bytes(text);
    spec.timeout_ms = Some(call.timeout_ms);
    Ok(spec)
}

/// Runs the process and reads its reply. Without a reply, the outcome of the call is unknown.
pub(super) async fn run(launcher: &Launcher, spec: &Spec) -> Result<RunOutcome, RunError> {
    let mut outcome = in_time(launcher.launch(spec).await.map_err(launch_error)?)?;
    outcome.obtained.mechanisms.push(CHECKS.to_owned());
    if let Some(limit) = &outcome.limit {
        return Ok(RunOutcome {
            obtained: outcome.obtained,
            ..failure_outcome(format!("[{limit}]"))
        });
    }
    match serde_json::from_slice::<FileToolReply>(&outcome.stdout) {
        Ok(reply) if outcome.is_success() => reply.into_outcome(outcome.obtained),
        Ok(_) | Err(_) => Err(RunError::Unknown(failure_text(&outcome))), // silent-ok: told in our words
    }
}

fn failure_text(outcome: &LaunchOutcome) -> String {
    let how = match (outcome.exit_code, outcome.signal) {
        (Some(0), _) => "gave no readable reply".to_owned(),
        (Some(code), _) => format!("ended with code {code}"),
        (None, signal) => format!("was ended by signal {}", signal.unwrap_or_default()),
    };
    let stderr = String::from_utf8_lossy(&outcome.stderr);
    let why = truncate_text(stderr.trim(), MAX_STDERR_BYTES).0;
    let colon = if why.is_empty() { "" } else { ": " };
    format!("the file tool's process {how}{colon}{why}")
}
