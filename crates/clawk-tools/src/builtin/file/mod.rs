//! The file tools. Every path is admitted by the plan as text, opened beneath the mount that admits it without leaving
//! it through a link, and judged again by the place that was really reached (R33).

mod edit;
mod list;
mod read;
mod root;
mod search;
mod write;

use clawk_kernel::ports::{RunError, RunOutcome};
use clawk_sandbox::Refusal;

pub(super) use edit::edit;
pub(super) use list::list;
pub(super) use read::read;
pub(super) use search::search;
pub(super) use write::write;

use crate::call::{Call, failed, plainly};

/// Why a file tool stopped.
pub(super) enum Stop {
    /// The sandbox refuses what was really reached.
    Refused(Refusal),
    /// It failed; the text is for the model.
    Failed(String),
}

impl Stop {
    /// An error of the system on `path`.
    fn on(path: &str, error: impl Into<std::io::Error>) -> Self {
        Self::Failed(format!("`{path}`: {}", plainly(&error.into())))
    }
}

/// What the blocking side gets: owned, for it may outlive an abandoned call for a moment.
pub(super) struct Job {
    arguments: serde_json::Map<String, serde_json::Value>,
    plan: std::sync::Arc<clawk_sandbox::Plan>,
    workdir: std::path::PathBuf,
    stop: tokio_util::sync::CancellationToken,
}

impl Job {
    fn parse<T: serde::de::DeserializeOwned>(&self) -> Result<T, Stop> {
        T::deserialize(serde_json::Value::Object(self.arguments.clone()))
            .map_err(|error| Stop::Failed(format!("bad arguments: {error}")))
    }
}

type Work = fn(&Job) -> Result<RunOutcome, Stop>;

/// Runs blocking work away from the async threads.
pub(super) async fn run(call: &Call<'_>, work: Work) -> Result<RunOutcome, RunError> {
    let job = Job {
        arguments: call.arguments.clone(),
        plan: call.plan.clone(),
        workdir: call.workdir.to_path_buf(),
        stop: call.stop.clone(),
    };
    let result = tokio::task::spawn_blocking(move || work(&job)).await;
    match result {
        Ok(Ok(mut outcome)) => {
            outcome.obtained = clawk_sandbox::Obtained::in_process("checks:filesystem");
            Ok(outcome)
        }
        Ok(Err(Stop::Refused(refusal))) => Err(RunError::Sandbox(refusal)),
        Ok(Err(Stop::Failed(text))) => Ok(failed(text)),
        Err(error) => Err(RunError::Unknown(format!("the file tool broke: {error}"))),
    }
}
