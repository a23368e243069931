//! The file tools. The plan first admits each path as text. The file is then opened beneath its mount, without leaving it through a
//! link, and the real path is checked again (R33). From level `process` on, the tools run in a separate process ([`apart`]); at
//! level `none`, inside the agent.

mod apart;
mod edit;
mod left;
mod list;
mod read;
mod root;
mod search;
mod write;

use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use clawk_kernel::call::Permit;
use clawk_kernel::place::ExcludedPaths;
use clawk_kernel::ports::{InspectedCall, RunError, RunOutcome};
use clawk_kernel::witness::{self, FileMark, HASHED_BYTES, State};
use clawk_plan::{Filesystem, Level, ObtainedEnforcement, Plan, Request, SandboxRefusal};
use clawk_proto::content::ContentBlock;
use clawk_sandbox::Launcher;
use rustix::fs::OFlags;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use tokio_util::sync::CancellationToken;

pub use apart::{MODE, main};

use crate::call::{ExecutorCall, failure_outcome, plain_error_text};
use left::HardLinkedFiles;

/// The mechanism that keeps a path inside its mount, at every level.
const CHECKS: &str = "checks:filesystem";

/// The maximum size of a file for which a preview shows a diff, in bytes.
const MAX_PREVIEW_BYTES: u64 = 1 << 20;

/// The file tools.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum FileTool {
    Read,
    Write,
    Edit,
    List,
    Search,
}

/// The reason why a file tool stopped.
pub(super) enum FileToolStop {
    /// The sandbox refuses the real path.
    Refused(SandboxRefusal),
    /// The file is not the one that was shown to a person.
    Changed(String),
    /// The tool failed; the text is for the model.
    Failed(String),
}

impl FileToolStop {
    /// An I/O error at `path`.
    fn for_path(path: &str, error: impl Into<std::io::Error>) -> Self {
        Self::Failed(format!("`{path}`: {}", plain_error_text(&error.into())))
    }
}

/// All input of a file tool. It owns its data, because it is sent to another process, or to a thread that may briefly outlive an
/// abandoned call.
#[derive(Serialize, Deserialize)]
struct Job {
    tool: FileTool,
    arguments: Map<String, Value>,
    filesystem: Filesystem,
    workdir: PathBuf,
    /// The files' state when a person was asked.
    marks: Vec<FileMark>,
    /// Paths that the call must exclude.
    apart: ExcludedPaths,
    #[serde(default)]
    linked: HardLinkedFiles,
    #[serde(skip)]
    stop: CancellationToken,
}

impl Job {
    fn parse<T: DeserializeOwned>(&self) -> Result<T, FileToolStop> {
        T::deserialize(Value::Object(self.arguments.clone()))
            .map_err(|error| FileToolStop::Failed(format!("bad arguments: {error}")))
    }

    /// Checks that the file to be written is the one that was shown to a person. Compares with the file that is beneath the open
    /// folder now. If no person was asked, any file is accepted.
    fn check_same_file(&self, path: &str, now: Option<&rustix::fs::Stat>) -> Result<(), FileToolStop> {
        let whole = self.workdir.join(path);
        let Some(mark) = self.marks.iter().find(|mark| mark.path == whole) else {
            return Ok(());
        };
        let same = match (&mark.state, now) {
            (State::Absent, None) => true,
            (State::Present(shown), Some(stat)) => {
                let time = |secs: i64, nanos: u64| i128::from(secs) * 1_000_000_000 + i128::from(nanos);
                shown.kind != "file"
                    || (shown.dev == stat.st_dev
                        && shown.ino == stat.st_ino
                        && i64::try_from(shown.size) == Ok(stat.st_size)
                        && shown.modified_ns == time(stat.st_mtime, stat.st_mtime_nsec)
                        && shown.changed_ns == time(stat.st_ctime, stat.st_ctime_nsec))
            }
            (State::Absent | State::Present(_) | State::Unknown(_), _) => false,
        };
        if same {
            Ok(())
        } else {
            Err(FileToolStop::Changed(format!(
                "`{path}` is not the file that was shown"
            )))
        }
    }

    /// Admits a path and opens its mount.
    fn resolve_path(&self, path: &str, write: bool) -> Result<root::ResolvedPath<'_>, FileToolStop> {
        root::resolve_path(&self.filesystem, &self.apart, &self.workdir, path, write)
    }

    fn read_bytes(&self, path: &str, max_bytes: u64) -> Result<Vec<u8>, FileToolStop> {
        let place = self.resolve_path(path, false)?;
        let (file, _) = self.open_file(&place.root, &place.below, false)?;
        let mut bytes = Vec::new();
        let read = file.take(max_bytes.saturating_add(1)).read_to_end(&mut bytes);
        read.map_err(|error| FileToolStop::for_path(path, error))?;
        if u64::try_from(bytes.len()).unwrap_or(u64::MAX) > max_bytes {
            return Err(FileToolStop::Failed(format!(
                "`{path}` has more than {max_bytes} bytes"
            )));
        }
        Ok(bytes)
    }

    fn run_builtin(&self) -> Result<RunOutcome, FileToolStop> {
        match self.tool {
            FileTool::Read => read::read(self),
            FileTool::Write => write::write(self),
            FileTool::Edit => edit::run_edit(self),
            FileTool::List => list::run_list(self),
            FileTool::Search => search::run_search(self),
        }
    }
}

/// The result of a job, as it is sent between processes.
#[derive(Serialize, Deserialize)]
enum FileToolReply {
    Done {
        content: Vec<ContentBlock>,
        structured: Option<Value>,
    },
    Failed(String),
    Refused(SandboxRefusal),
    Changed(String),
}

impl From<Result<RunOutcome, FileToolStop>> for FileToolReply {
    fn from(result: Result<RunOutcome, FileToolStop>) -> Self {
        match result {
            Ok(RunOutcome {
                content, structured, ..
            }) => Self::Done { content, structured },
            Err(FileToolStop::Failed(text)) => Self::Failed(text),
            Err(FileToolStop::Refused(refusal)) => Self::Refused(refusal),
            Err(FileToolStop::Changed(text)) => Self::Changed(text),
        }
    }
}

impl FileToolReply {
    fn into_outcome(self, obtained: ObtainedEnforcement) -> Result<RunOutcome, RunError> {
        match self {
            Self::Done { content, structured } => Ok(RunOutcome {
                content,
                is_error: false,
                structured,
                obtained,
            }),
            Self::Failed(text) => Ok(RunOutcome {
                obtained,
                ..failure_outcome(text)
            }),
            Self::Refused(refusal) => Err(RunError::Sandbox(refusal)),
            Self::Changed(text) => Err(RunError::Changed(text)),
        }
    }
}

/// The content that a write would replace.
pub(super) enum PriorContent {
    /// The file does not exist.
    Absent,
    /// Text that is small enough for a diff.
    Text(String),
    /// Other content: its kind, size and digest.
    Other(String),
    /// The content can't be read, and the write will fail, for this reason.
    Unclear(String),
}

/// Reads the content that a write would replace, for a preview. It uses the same path checks as the tool, and reads nothing that
/// the plan does not admit.
pub(super) fn prior_content(look: &InspectedCall<'_>, path: &str) -> PriorContent {
    let found = root::resolve_path(
        look.plan.filesystem(),
        &ExcludedPaths::default(),
        look.workdir,
        path,
        true,
    )
    .and_then(|place| place.root.existing_file(&place.below))
    .and_then(|file| file.map(|file| read_prior_content(file, path)).transpose());
    match found {
        Ok(None) => PriorContent::Absent,
        Ok(Some(before)) => before,
        Err(FileToolStop::Failed(why) | FileToolStop::Changed(why)) => PriorContent::Unclear(why),
        Err(FileToolStop::Refused(refusal)) => {
            PriorContent::Unclear(format!("the sandbox refuses it: {refusal}"))
        }
    }
}

fn read_prior_content((file, size): (File, u64), path: &str) -> Result<PriorContent, FileToolStop> {
    let mut bytes = Vec::new();
    file.take(HASHED_BYTES)
        .read_to_end(&mut bytes)
        .map_err(|error| FileToolStop::for_path(path, error))?;
    let digest = witness::digest_of(&bytes);
    let all = if size > HASHED_BYTES {
        format!("sha256 of its first {HASHED_BYTES} bytes")
    } else {
        "sha256".to_owned()
    };
    let other = |what: &str| PriorContent::Other(format!("{what} of {size} bytes, {all} {digest}"));
    if read::is_binary(&bytes) {
        return Ok(other("a binary file"));
    }
    if size > MAX_PREVIEW_BYTES {
        return Ok(other("a file"));
    }
    Ok(String::from_utf8(bytes).map_or_else(|_| other("a binary file"), PriorContent::Text))
}

/// The real path that a write to `path` would reach. `None`: the write will be refused.
pub(crate) fn write_target(plan: &Plan, workdir: &Path, path: &str) -> Option<PathBuf> {
    let apart = ExcludedPaths::default();
    let place = root::resolve_path(plan.filesystem(), &apart, workdir, path, true).ok()?; // silent-ok: the tool says why
    let mut rest = vec![place.below.file_name()?.to_owned()];
    let mut holder = place.below.parent().unwrap_or(Path::new(""));
    loop {
        let flags = OFlags::PATH | OFlags::DIRECTORY;
        // silent-ok: the tool itself reports the reason
        if let Some(real) = place
            .root
            .open_below(holder, flags, false)
            .ok()
            .and_then(|fd| root::real_path(&fd).ok())
        {
            return Some(rest.iter().rev().fold(real, |path, name| path.join(name)));
        }
        rest.push(holder.file_name()?.to_owned());
        holder = holder.parent()?;
    }
}

/// Reads a file that a tool sends elsewhere, at most `max_bytes`. The permit's plan must admit it, and it is opened beneath its
/// mount as by `file-read`. The inner error is for the model.
///
/// # Errors
/// The sandbox refuses the path, or the file is not the one that was shown to a person.
pub async fn load_file(
    permit: &Permit,
    path: &str,
    max_bytes: u64,
) -> Result<Result<Vec<u8>, String>, RunError> {
    let asked = Request::Path {
        path,
        write: false,
        workdir: permit.workdir(),
    };
    permit
        .sandbox_plan()
        .preflight(&asked)
        .map_err(RunError::Sandbox)?;
    let job = Job {
        tool: FileTool::Read,
        arguments: Map::from_iter([("path".to_owned(), Value::from(path))]),
        filesystem: permit.sandbox_plan().filesystem().clone(),
        workdir: permit.workdir().to_path_buf(),
        marks: permit.file_marks().to_vec(),
        apart: permit.excluded_paths().clone(),
        linked: HardLinkedFiles::default(),
        stop: CancellationToken::new(),
    };
    let path = path.to_owned();
    let work = tokio::task::spawn_blocking(move || job.with_linked().read_bytes(&path, max_bytes)).await;
    match work {
        Ok(Ok(bytes)) => Ok(Ok(bytes)),
        Ok(Err(FileToolStop::Failed(why))) => Ok(Err(why)),
        Ok(Err(FileToolStop::Refused(refusal))) => Err(RunError::Sandbox(refusal)),
        Ok(Err(FileToolStop::Changed(why))) => Err(RunError::Changed(why)),
        Err(error) => Err(RunError::Unavailable(format!("its file can't be read: {error}"))),
    }
}

/// Runs the tool inside the agent or in a process, depending on the plan's level.
pub(super) async fn run(
    call: &ExecutorCall<'_>,
    launcher: &Launcher,
    tool: FileTool,
) -> Result<RunOutcome, RunError> {
    let job = Job {
        tool,
        arguments: call.arguments.clone(),
        filesystem: call.plan.filesystem().clone(),
        workdir: call.workdir.to_path_buf(),
        marks: call.marks.to_vec(),
        apart: call.apart.clone(),
        linked: HardLinkedFiles::default(),
        stop: call.stop.clone(),
    };
    let looked = tokio::task::spawn_blocking(move || job.with_linked()).await;
    let job =
        looked.map_err(|error| RunError::Unavailable(format!("its files can't be looked at: {error}")))?;
    if call.plan.level() >= Level::Process {
        return apart::run(launcher, &apart::job_spec(call, &job)?).await;
    }
    // Blocking work, so it runs outside the async threads.
    match tokio::task::spawn_blocking(move || job.run_builtin()).await {
        Ok(result) => FileToolReply::from(result).into_outcome(ObtainedEnforcement::for_unsandboxed(CHECKS)),
        Err(error) => Err(RunError::Unknown(format!("the file tool broke: {error}"))),
    }
}

#[cfg(test)]
mod judged;
#[cfg(test)]
mod tests;
