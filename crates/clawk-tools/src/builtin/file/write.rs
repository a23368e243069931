//! `file-write`, and the atomic replacement that `file-edit` uses as well.

use std::ffi::OsStr;
use std::fs::File;
use std::io::Write as _;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

use clawk_kernel::ports::RunOutcome;
use rustix::fs::{AtFlags, FileType, Mode, OFlags};
use rustix::io::Errno;
use serde::Deserialize;
use serde_json::json;

use super::{FileToolStop, Job};
use crate::call::success_outcome;

/// The maximum size of a written file, in bytes.
const MAX_WRITE_BYTES: usize = 16 << 20;

#[derive(Deserialize)]
struct Args {
    path: String,
    content: String,
}

pub(super) fn write(job: &Job) -> Result<RunOutcome, FileToolStop> {
    let args: Args = job.parse()?;
    if args.content.len() > MAX_WRITE_BYTES {
        return Err(FileToolStop::Failed(format!(
            "`content` is larger than {MAX_WRITE_BYTES} bytes"
        )));
    }
    let place = job.resolve_path(&args.path, true)?;
    let (folder, name) = place.root.open_parent(&place.below, true)?;
    let created = replace_file(job, &folder, name, args.content.as_bytes(), &args.path)?;
    let verb = if created { "created" } else { "replaced" };
    let facts = json!({"path": args.path, "bytes": args.content.len(), "created": created});
    Ok(success_outcome(
        format!("{verb} `{}`, {} bytes", args.path, args.content.len()),
        facts,
    ))
}

/// Replaces `target` by `bytes` atomically: readers see the old file or the new one. The old file's mode is kept. Returns true if
/// there was no file before.
pub(super) fn replace_file(
    job: &Job,
    folder: &OwnedFd,
    target: &OsStr,
    bytes: &[u8],
    shown: &str,
) -> Result<bool, FileToolStop> {
    let before = match rustix::fs::statat(folder, target, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => Some(stat),
        Err(Errno::NOENT) => None,
        Err(error) => return Err(FileToolStop::for_path(shown, error)),
    };
    if let Some(stat) = &before {
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => {}
            FileType::Directory => return Err(FileToolStop::Failed(format!("`{shown}` is a folder"))),
            FileType::Symlink => {
                return Err(FileToolStop::Failed(format!(
                    "`{shown}` is a link; write to the file that it names"
                )));
            }
            _ => return Err(FileToolStop::Failed(format!("`{shown}` is not a regular file"))),
        }
    }
    job.check_same_file(shown, before.as_ref())?;
    let (mut file, mut temporary) = match create_nameless(folder) {
        Some(file) => (file, None),
        None => create_named(folder, shown).map(|(name, file)| (file, Some(name)))?,
    };
    let written = file
        .write_all(bytes)
        .and_then(|()| before.as_ref().map_or(Ok(()), |stat| keep_mode(&file, stat)))
        .and_then(|()| file.sync_data());
    let put = written.and_then(|()| {
        let from = match &temporary {
            Some(name) => name,
            None => temporary.insert(name(&file, folder)?),
        };
        rustix::fs::renameat(folder, from.as_str(), folder, target).map_err(Into::into)
    });
    if let Err(error) = put {
        if let Some(name) = &temporary {
            let _ = rustix::fs::unlinkat(folder, name, AtFlags::empty()); // silent-ok: the first error is told
        }
        return Err(FileToolStop::for_path(shown, error));
    }
    Ok(before.is_none())
}

fn keep_mode(file: &File, stat: &rustix::fs::Stat) -> std::io::Result<()> {
    // Drops the set-id bits: new content must not run with another user's rights.
    rustix::fs::fchmod(file, Mode::from_raw_mode(stat.st_mode & 0o777)).map_err(Into::into)
}

/// Opens a file without a name, so that nothing remains if the process is killed. Some file systems do not support this.
fn create_nameless(folder: &OwnedFd) -> Option<File> {
    let flags = OFlags::WRONLY | OFlags::TMPFILE | OFlags::CLOEXEC;
    rustix::fs::openat(folder, ".", flags, Mode::from_bits_truncate(0o666))
        .ok() // silent-ok: a named one is tried, and tells what is wrong
        .map(File::from)
}

/// Gives a nameless file a temporary name, because only a rename can replace an existing file.
fn name(file: &File, folder: &OwnedFd) -> std::io::Result<String> {
    let source = format!("/proc/self/fd/{}", file.as_raw_fd());
    free_name(|name| rustix::fs::linkat(rustix::fs::CWD, &source, folder, name, AtFlags::SYMLINK_FOLLOW))
        .map(|(name, ())| name)
}

fn create_named(folder: &OwnedFd, shown: &str) -> Result<(String, File), FileToolStop> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    free_name(|name| rustix::fs::openat(folder, name, flags, Mode::from_bits_truncate(0o666)))
        .map(|(name, fd)| (name, File::from(fd)))
        .map_err(|error| FileToolStop::for_path(shown, error))
}

/// Calls `make` with temporary names until one is free.
fn free_name<T>(make: impl Fn(&str) -> Result<T, Errno>) -> std::io::Result<(String, T)> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    for _ in 0..100 {
        let name = format!(
            ".clawk-{}-{}.tmp",
            std::process::id(),
            NEXT.fetch_add(1, Ordering::Relaxed)
        );
        match make(&name) {
            Ok(made) => return Ok((name, made)),
            Err(Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Err(std::io::Error::other("no name is free for a temporary file"))
}
