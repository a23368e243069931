//! `file-search`: finds lines by a pattern.

use std::io::{BufRead, BufReader};
use std::ops::ControlFlow;

use clawk_kernel::ports::RunOutcome;
use regex::{Regex, RegexBuilder};
use rustix::fs::FileType;
use serde::Deserialize;
use serde_json::json;

use super::left::left_out_note;
use super::list::{WalkEntry, WalkSummary, compile_glob, walk_folder};
use super::read::is_binary;
use super::root::Root;
use super::{FileToolStop, Job};
use crate::call::{success_outcome, truncate_text};

/// The number of results of one search: the default, and the maximum.
const RESULTS: (usize, usize) = (100, 1_000);

/// The maximum length of a line in the results, in bytes.
const MAX_LINE_BYTES: usize = 300;

/// The maximum size of a file that is searched, in bytes.
const MAX_FILE_BYTES: i64 = 8 << 20;

#[derive(Deserialize)]
struct Args {
    pattern: String,
    #[serde(default)]
    path: Option<String>,
    #[serde(default)]
    glob: Option<String>,
    #[serde(default)]
    ignore_case: bool,
    #[serde(default)]
    max_results: Option<usize>,
}

fn search_pattern(args: &Args) -> Result<Regex, FileToolStop> {
    RegexBuilder::new(&args.pattern)
        .case_insensitive(args.ignore_case)
        .size_limit(4 << 20)
        .build()
        .map_err(|error| FileToolStop::Failed(format!("`pattern` can't be read: {error}")))
}

pub(super) fn run_search(job: &Job) -> Result<RunOutcome, FileToolStop> {
    let args: Args = job.parse()?;
    let pattern = search_pattern(&args)?;
    let path = args.path.as_deref().unwrap_or(".");
    let place = job.resolve_path(path, false)?;
    let fits = args.glob.as_deref().map(compile_glob).transpose()?;
    let mut found = SearchMatches {
        lines: Vec::new(),
        most: args.max_results.unwrap_or(RESULTS.0).clamp(1, RESULTS.1),
        skipped: 0,
        refused: 0,
    };
    let start = rustix::fs::FileType::from_raw_mode(
        rustix::fs::fstat(
            place
                .root
                .open_below(&place.below, rustix::fs::OFlags::PATH, false)?,
        )
        .map_err(|error| FileToolStop::for_path(path, error))?
        .st_mode,
    );
    let WalkSummary { complete, left_out } = if start == FileType::RegularFile {
        let searched = found.search_file(job, &place.root, &place.below, &pattern)?;
        WalkSummary {
            complete: searched.is_continue(),
            left_out: 0,
        }
    } else {
        walk_folder(
            job,
            &place.root,
            &place.below,
            true,
            &mut |WalkEntry { below, inside, stat }| {
                let wanted = fits.as_ref().is_none_or(|fits| fits.is_match(inside));
                if !wanted || FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
                    return ControlFlow::Continue(());
                }
                if stat.st_size > MAX_FILE_BYTES {
                    found.skipped += 1;
                    return ControlFlow::Continue(());
                }
                // Skip a file that can't be read.
                match found.search_file(job, &place.root, below, &pattern) {
                    Ok(flow) => return flow,
                    Err(FileToolStop::Refused(_)) => found.refused += 1,
                    Err(FileToolStop::Changed(_) | FileToolStop::Failed(_)) => {} // silent-ok: see above
                }
                ControlFlow::Continue(())
            },
        )?
    };
    Ok(found.into_outcome(complete, left_out))
}

struct SearchMatches {
    lines: Vec<String>,
    most: usize,
    /// Files that are too large to search.
    skipped: u64,
    /// Files for which the sandbox refused the real path.
    refused: u64,
}

impl SearchMatches {
    /// Builds the answer, with notes about skipped files.
    fn into_outcome(self, complete: bool, left_out: u64) -> RunOutcome {
        let count = self.lines.len();
        let mut text = if count == 0 {
            "nothing found".to_owned()
        } else {
            self.lines.join("\n")
        };
        if !complete {
            text.push_str("\n[cut: there is more; narrow the pattern, the path or the glob]");
        }
        if self.skipped > 0 {
            text.push_str(&format!(
                "\n[{} files over {MAX_FILE_BYTES} bytes were not searched]",
                self.skipped
            ));
        }
        let left_out = left_out + self.refused;
        text.push_str(&left_out_note(left_out));
        success_outcome(
            text,
            json!({"matches": count, "truncated": !complete, "skipped": self.skipped, "left_out": left_out}),
        )
    }

    fn search_file(
        &mut self,
        job: &Job,
        root: &Root<'_>,
        below: &std::path::Path,
        pattern: &regex::Regex,
    ) -> Result<ControlFlow<()>, FileToolStop> {
        let (file, _) = job.open_file(root, below, false)?;
        let shown = root.display_path(below);
        let mut reader = BufReader::with_capacity(64 << 10, file);
        if is_binary(
            reader
                .fill_buf()
                .map_err(|error| FileToolStop::for_path(&shown, error))?,
        ) {
            return Ok(ControlFlow::Continue(()));
        }
        for (at, line) in reader.split(b'\n').enumerate() {
            if job.stop.is_cancelled() {
                return Ok(ControlFlow::Break(()));
            }
            let line = line.map_err(|error| FileToolStop::for_path(&shown, error))?;
            let line = String::from_utf8_lossy(&line);
            if !pattern.is_match(&line) {
                continue;
            }
            if self.lines.len() == self.most {
                return Ok(ControlFlow::Break(()));
            }
            let (text, cut) = truncate_text(line.trim_end(), MAX_LINE_BYTES);
            self.lines
                .push(format!("{shown}:{}:{text}{}", at + 1, if cut { "…" } else { "" }));
        }
        Ok(ControlFlow::Continue(()))
    }
}
