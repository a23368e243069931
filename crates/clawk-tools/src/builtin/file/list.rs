//! `file-list`, and the folder walk that `file-search` uses as well.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use clawk_kernel::ports::RunOutcome;
use globset::{GlobBuilder, GlobMatcher};
use rustix::fs::{AtFlags, Dir, FileType, OFlags, Stat};
use serde::Deserialize;
use serde_json::json;

use super::left::left_out_note;
use super::root::{Root, real_path};
use super::{FileToolStop, Job};
use crate::call::success_outcome;

/// The maximum number of entries in one listing.
const MAX_ENTRIES: usize = 1_000;

/// The maximum number of entries that one walk visits.
const MAX_VISITED: usize = 100_000;

/// The maximum depth of a walk.
const MAX_DEPTH: usize = 64;

#[derive(Deserialize)]
struct Args {
    #[serde(default)]
    path: Option<String>,
    #[serde(default)]
    recursive: bool,
    #[serde(default)]
    glob: Option<String>,
}

pub(super) fn run_list(job: &Job) -> Result<RunOutcome, FileToolStop> {
    let args: Args = job.parse()?;
    let path = args.path.as_deref().unwrap_or(".");
    let place = job.resolve_path(path, false)?;
    let fits = args.glob.as_deref().map(compile_glob).transpose()?;
    let recursive = args.recursive || args.glob.as_deref().is_some_and(|glob| glob.contains('/'));
    let mut lines = Vec::new();
    let walked = walk_folder(job, &place.root, &place.below, recursive, &mut |entry| {
        if fits.as_ref().is_some_and(|fits| !fits.is_match(entry.inside)) {
            return ControlFlow::Continue(());
        }
        if lines.len() == MAX_ENTRIES {
            return ControlFlow::Break(());
        }
        let name = entry.inside.to_string_lossy();
        lines.push(match FileType::from_raw_mode(entry.stat.st_mode) {
            FileType::Directory => format!("{name}/"),
            FileType::Symlink => format!("{name}  (link)"),
            FileType::RegularFile => format!("{name}  {} bytes", entry.stat.st_size),
            _ => format!("{name}  (special)"),
        });
        ControlFlow::Continue(())
    })?;
    let count = lines.len();
    let mut text = if count == 0 {
        "(empty)".to_owned()
    } else {
        lines.join("\n")
    };
    let WalkSummary { complete, left_out } = walked;
    if !complete {
        text.push_str("\n[cut: there is more; narrow the path or give a glob]");
    }
    text.push_str(&left_out_note(left_out));
    Ok(success_outcome(
        text,
        json!({"path": path, "entries": count, "truncated": !complete, "left_out": left_out}),
    ))
}

pub(super) fn compile_glob(text: &str) -> Result<GlobMatcher, FileToolStop> {
    let bad = |error: globset::Error| FileToolStop::Failed(format!("`glob` can't be read: {}", error.kind()));
    // `*.rs` matches at any depth, `src/*.rs` only in that folder.
    let anywhere = if text.contains('/') {
        text.to_owned()
    } else {
        format!("**/{text}")
    };
    let pattern = anywhere.trim_start_matches("./");
    Ok(GlobBuilder::new(pattern)
        .literal_separator(true)
        .build()
        .map_err(bad)?
        .compile_matcher())
}

/// One entry of a walk.
pub(super) struct WalkEntry<'a> {
    /// The path relative to the mount.
    pub(super) below: &'a Path,
    /// The path relative to the start of the walk.
    pub(super) inside: &'a Path,
    /// The metadata of the entry itself; of a link, not of its target.
    pub(super) stat: &'a Stat,
}

/// The result of a walk.
#[derive(Debug, Default)]
pub(super) struct WalkSummary {
    /// Whether the walk was complete: neither a limit nor `visit` ended it.
    pub(super) complete: bool,
    /// The number of excluded entries. A folder counts as one.
    pub(super) left_out: u64,
}

/// Walks the admitted entries below `start`, sorted by name, each folder before its content. Links are not followed.
pub(super) fn walk_folder(
    job: &Job,
    root: &Root<'_>,
    start: &Path,
    recursive: bool,
    visit: &mut dyn FnMut(&WalkEntry<'_>) -> ControlFlow<()>,
) -> Result<WalkSummary, FileToolStop> {
    let mut open = vec![start.to_path_buf()];
    let mut visited = 0;
    let mut walked = WalkSummary::default();
    let mut complete = true;
    while let Some(folder) = open.pop() {
        let (real, entries) = match folder_entries(root, &folder) {
            Ok(listing) => listing,
            // An unreadable subfolder is skipped; an unreadable start folder is an error.
            Err(stop) if folder == start => return Err(stop),
            Err(_) => continue, // silent-ok: see above
        };
        let mut folders = Vec::new();
        for (name, stat) in entries {
            visited += 1;
            if visited > MAX_VISITED || job.stop.is_cancelled() {
                return Ok(walked);
            }
            let below = folder.join(&name);
            if !root.is_admitted(&below) || job.leaves_out(&root.plan_path(&below), &real.join(&name), &stat)
            {
                walked.left_out += 1;
                continue;
            }
            let inside = below.strip_prefix(start).unwrap_or(&below);
            if visit(&WalkEntry {
                below: &below,
                inside,
                stat: &stat,
            })
            .is_break()
            {
                return Ok(walked);
            }
            let deep = inside.components().count() >= MAX_DEPTH;
            if recursive
                && FileType::from_raw_mode(stat.st_mode) == FileType::Directory
                && name != Path::new(".git")
            {
                complete &= !deep;
                folders.extend((!deep).then_some(below));
            }
        }
        open.extend(folders.into_iter().rev());
    }
    walked.complete = complete;
    Ok(walked)
}

/// The real path of a folder, and its entries.
fn folder_entries(root: &Root<'_>, folder: &Path) -> Result<(PathBuf, Vec<(PathBuf, Stat)>), FileToolStop> {
    use std::os::unix::ffi::OsStrExt as _;
    let shown = root.display_path(folder);
    let fd = root.open_below(folder, OFlags::RDONLY | OFlags::DIRECTORY, false)?;
    let real = real_path(&fd).map_err(|error| FileToolStop::for_path(&shown, error))?;
    let listing = Dir::read_from(&fd).map_err(|error| FileToolStop::for_path(&shown, error))?;
    let mut all = Vec::new();
    for entry in listing.take(MAX_VISITED) {
        let entry = entry.map_err(|error| FileToolStop::for_path(&shown, error))?;
        let name = std::ffi::OsStr::from_bytes(entry.file_name().to_bytes());
        if name == "." || name == ".." {
            continue;
        }
        // Skip an entry that was deleted in the meantime.
        if let Ok(stat) = rustix::fs::statat(&fd, name, AtFlags::SYMLINK_NOFOLLOW) {
            all.push((PathBuf::from(name), stat));
        }
    }
    all.sort_by(|left, right| left.0.cmp(&right.0));
    Ok((real, all))
}
