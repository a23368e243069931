//! `file-list`, and the walk that `file-search` uses, too.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use clawk_kernel::ports::RunOutcome;
use globset::{GlobBuilder, GlobMatcher};
use rustix::fs::{AtFlags, Dir, FileType, OFlags, Stat};
use serde::Deserialize;
use serde_json::json;

use super::left::note;
use super::root::{Root, real_path};
use super::{FileToolStop, Job};
use crate::call::done;

/// Most entries that one listing returns.
const MAX_ENTRIES: usize = 1_000;

/// Most entries that one walk looks at.
const MAX_VISITED: usize = 100_000;

/// Deepest folder of a walk.
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

pub(super) fn list(job: &Job) -> Result<RunOutcome, FileToolStop> {
    let args: Args = job.parse()?;
    let path = args.path.as_deref().unwrap_or(".");
    let place = job.place(path, false)?;
    let fits = args.glob.as_deref().map(glob).transpose()?;
    let recursive = args.recursive || args.glob.as_deref().is_some_and(|glob| glob.contains('/'));
    let mut lines = Vec::new();
    let walked = walk(job, &place.root, &place.below, recursive, &mut |entry| {
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
    text.push_str(&note(left_out));
    Ok(done(
        text,
        json!({"path": path, "entries": count, "truncated": !complete, "left_out": left_out}),
    ))
}

pub(super) fn glob(text: &str) -> Result<GlobMatcher, FileToolStop> {
    let bad = |error: globset::Error| FileToolStop::Failed(format!("`glob` can't be read: {}", error.kind()));
    // `*.rs` means any depth, `src/*.rs` exactly there.
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

/// One thing that a walk comes by.
pub(super) struct WalkEntry<'a> {
    /// Below the mount.
    pub(super) below: &'a Path,
    /// Below where the walk began.
    pub(super) inside: &'a Path,
    /// Of the entry itself, not of what a link names.
    pub(super) stat: &'a Stat,
}

/// How a walk ended.
#[derive(Debug, Default)]
pub(super) struct WalkSummary {
    /// It was not cut short: by a bound, or by `visit`.
    pub(super) complete: bool,
    /// Entries that it came by and that are closed to it; a folder counts as one.
    pub(super) left_out: u64,
}

/// Walks what is admitted below `start`, sorted by name, folders after their entry, no link followed.
pub(super) fn walk(
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
        let (real, entries) = match entries(root, &folder) {
            Ok(listing) => listing,
            // A folder below that can't be read is left out; the one that was asked for is an error.
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
            if !root.admits(&below) || job.leaves_out(&root.named(&below), &real.join(&name), &stat) {
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

/// Where the folder really is, and what is in it.
fn entries(root: &Root<'_>, folder: &Path) -> Result<(PathBuf, Vec<(PathBuf, Stat)>), FileToolStop> {
    use std::os::unix::ffi::OsStrExt as _;
    let shown = root.shown(folder);
    let fd = root.open(folder, OFlags::RDONLY | OFlags::DIRECTORY, false)?;
    let real = real_path(&fd).map_err(|error| FileToolStop::on(&shown, error))?;
    let listing = Dir::read_from(&fd).map_err(|error| FileToolStop::on(&shown, error))?;
    let mut all = Vec::new();
    for entry in listing.take(MAX_VISITED) {
        let entry = entry.map_err(|error| FileToolStop::on(&shown, error))?;
        let name = std::ffi::OsStr::from_bytes(entry.file_name().to_bytes());
        if name == "." || name == ".." {
            continue;
        }
        // Gone since: not an entry any more.
        if let Ok(stat) = rustix::fs::statat(&fd, name, AtFlags::SYMLINK_NOFOLLOW) {
            all.push((PathBuf::from(name), stat));
        }
    }
    all.sort_by(|left, right| left.0.cmp(&right.0));
    Ok((real, all))
}
