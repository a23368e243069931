//! `clawk memory versions`: shows earlier versions of a context file.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clawk_events::payload::ContextWritten;
use clawk_kernel::kind;
use clawk_kernel::ports::JournalScan;
use clawk_trace::chain::digest_of;
use serde_json::{Value, json};

use crate::out::{self, Format, TerminalStyle, one_line, sanitize_block};
use crate::state;
use crate::state::kept::read_only;

/// Folder of earlier versions, beside the file.
const VERSIONS: &str = ".versions";

/// A version: of the file before a change, or as the agent wrote it.
#[derive(Debug)]
struct Version {
    at: String,
    bytes: Option<Vec<u8>>,
    place: Option<PathBuf>,
    call: Option<String>,
}

/// Shows the file's current text, its text before each change, and who changed it.
pub(super) fn run(
    which: &state::StateSelector,
    file: &Path,
    show: Option<usize>,
    format: Format,
) -> Result<ExitCode> {
    let name = file
        .file_name()
        .and_then(|name| name.to_str())
        .context("name a file")?;
    let folder = file.parent().unwrap_or(Path::new("")).join(VERSIONS);
    let mut versions = stored_versions(&folder, name)?;
    versions.extend(written_versions(which, file)?);
    versions.sort_by(|a, b| a.at.cmp(&b.at));
    if versions.is_empty() {
        bail!(
            "`{}` has no versions; the agent's tool `context-write` keeps one for each change",
            one_line(&file.display().to_string())
        );
    }
    if let Some(number) = show {
        let version = versions
            .get(number.wrapping_sub(1))
            .with_context(|| format!("there are {} versions", versions.len()))?;
        let bytes = version.bytes.as_ref().context("what it said is erased")?;
        out::print_piece(&sanitize_block(&String::from_utf8_lossy(bytes)))?;
        return Ok(ExitCode::SUCCESS);
    }
    let facts = |version: &Version| {
        json!({
            "at": version.at, "bytes": version.bytes.as_ref().map(Vec::len), "call": version.call,
            "digest": version.bytes.as_ref().map(|bytes| digest_of(bytes)), "file": version.place,
            "from": if version.place.is_some() { "kept beside the file" } else { "written by the agent" },
        })
    };
    let all: Vec<Value> = versions.iter().map(facts).collect();
    if format == Format::Json {
        out::print_json(&json!({ "file": file, "versions": all }))?;
        return Ok(ExitCode::SUCCESS);
    }
    let paint = TerminalStyle::for_stdout();
    for (number, version) in (1..).zip(&versions) {
        let size = match &version.bytes {
            Some(bytes) => format!("{} bytes", bytes.len()),
            None => "erased".to_owned(),
        };
        let from = match (&version.place, &version.call) {
            (Some(place), _) => format!("kept as {}", place.display()),
            (None, Some(call)) => format!("written by call {call}"),
            (None, None) => String::new(),
        };
        out::print_line(format!(
            "{} {}  {size}",
            paint.bold(&number.to_string()),
            version.at
        ))?;
        out::print_line(paint.dim(&format!("    {}", one_line(&from))))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the versions in the folder beside the file.
fn stored_versions(folder: &Path, name: &str) -> Result<Vec<Version>> {
    let entries = match std::fs::read_dir(folder) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other.with_context(|| format!("can't read `{}`", folder.display()))?,
    };
    let mut found = Vec::new();
    for entry in entries {
        let entry = entry?;
        let file = entry.file_name();
        let Some(at) = file
            .to_str()
            .and_then(|file| file.strip_prefix(&format!("{name}.")))
        else {
            continue;
        };
        if entry.file_type()?.is_file() {
            found.push(Version {
                at: at.to_owned(),
                bytes: Some(std::fs::read(entry.path())?),
                place: Some(entry.path()),
                call: None,
            });
        }
    }
    Ok(found)
}

/// Returns the versions that the agent wrote, by the journal.
fn written_versions(which: &state::StateSelector, file: &Path) -> Result<Vec<Version>> {
    let Ok(dir) = which.find_dir() else {
        return Ok(Vec::new());
    };
    let reader = read_only(&dir)?;
    let scan = JournalScan {
        kinds: &[kind::CONTEXT_WRITTEN],
        limit: usize::MAX,
        with_content: true,
        ..JournalScan::default()
    };
    let mut found = Vec::new();
    for event in reader.recorded_events(&scan)? {
        let written = ContextWritten::read(&event.kind, &event.payload)?;
        // The journal has the path as the manifest names it, relative to the manifest's folder.
        if file.ends_with(written.file.trim_start_matches("./")) {
            found.push(Version {
                at: event.at.to_string(),
                bytes: event.content.map(|content| content.bytes),
                place: None,
                call: Some(written.request_id),
            });
        }
    }
    Ok(found)
}
