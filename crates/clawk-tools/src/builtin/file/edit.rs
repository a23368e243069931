//! `file-edit`: replaces one exact text.

use clawk_kernel::ports::RunOutcome;
use serde::Deserialize;
use serde_json::json;

use super::{FileToolStop, Job, read::whole_text, write::replace_file};
use crate::call::success_outcome;

/// How many positions the error names if the old text is not unique.
const NAMED_PLACES: usize = 10;

#[derive(Deserialize)]
struct Args {
    path: String,
    old_text: String,
    new_text: String,
}

pub(super) fn run_edit(job: &Job) -> Result<RunOutcome, FileToolStop> {
    let args: Args = job.parse()?;
    let place = job.resolve_path(&args.path, true)?;
    let (file, stat) = job.open_file(&place.root, &place.below, true)?;
    job.check_same_file(&args.path, Some(&stat))?;
    let text = whole_text(file, &args.path)?;
    let (edited, line) = replace_text(&text, &args)?;
    let (folder, name) = place.root.open_parent(&place.below, false)?;
    replace_file(job, &folder, name, edited.as_bytes(), &args.path)?;
    Ok(success_outcome(
        format!("edited `{}` at line {line}", args.path),
        json!({"path": args.path, "line": line, "bytes": edited.len()}),
    ))
}

fn replace_text(text: &str, args: &Args) -> Result<(String, usize), FileToolStop> {
    if args.old_text.is_empty() {
        return Err(FileToolStop::Failed(
            "`old_text` is empty; use file-write for a new file".to_owned(),
        ));
    }
    if args.old_text == args.new_text {
        return Err(FileToolStop::Failed(
            "`old_text` and `new_text` are the same".to_owned(),
        ));
    }
    let line_of = |at: usize| text.bytes().take(at).filter(|byte| *byte == b'\n').count() + 1;
    let places: Vec<usize> = text.match_indices(&args.old_text).map(|(at, _)| at).collect();
    match places.as_slice() {
        [at] => Ok((text.replacen(&args.old_text, &args.new_text, 1), line_of(*at))),
        [] => Err(FileToolStop::Failed(format!(
            "`old_text` does not occur in `{}`; it must fit exactly, blanks and line ends included: read the file again",
            args.path
        ))),
        many => {
            let named: Vec<String> = many
                .iter()
                .take(NAMED_PLACES)
                .map(|at| line_of(*at).to_string())
                .collect();
            Err(FileToolStop::Failed(format!(
                "`old_text` occurs {} times in `{}` (lines {}); give more of its surroundings",
                many.len(),
                args.path,
                named.join(", ")
            )))
        }
    }
}
