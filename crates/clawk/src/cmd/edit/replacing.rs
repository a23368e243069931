//! Replaces several files: all get their new text, or all keep their old one.

use std::fs::{OpenOptions, Permissions};
use std::io::Write as _;
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use super::FileChange;

/// Writes every change.
///
/// # Errors
/// A file was changed meanwhile, or can't be written. Every file then has its old text.
pub(super) fn replace_files(changes: &[FileChange]) -> Result<()> {
    for change in changes {
        let now = change
            .path
            .exists()
            .then(|| std::fs::read_to_string(&change.path))
            .transpose()?;
        if now != change.before {
            bail!(
                "`{}` was changed meanwhile; nothing was written",
                change.path.display()
            );
        }
    }
    let mut drafts = Vec::new();
    for change in changes {
        match write_draft(change) {
            Ok(draft) => drafts.push(draft),
            Err(error) => {
                remove_drafts(&drafts);
                return Err(error);
            }
        }
    }
    let mut done = Vec::new();
    for (change, draft) in changes.iter().zip(&drafts) {
        let target = real_path(&change.path);
        if let Err(error) = std::fs::rename(draft, &target) {
            remove_drafts(&drafts);
            restore_files(&done);
            return Err(error)
                .with_context(|| format!("can't write `{}`; nothing was changed", change.path.display()));
        }
        done.push(change);
    }
    Ok(())
}

/// The file itself, where the path is a link.
fn real_path(path: &Path) -> PathBuf {
    path.canonicalize().unwrap_or_else(|_| path.to_owned()) // silent-ok: a new file has no other path
}

/// Writes the new text beside the file, with the file's own permissions.
fn write_draft(change: &FileChange) -> Result<PathBuf> {
    let failed = || format!("can't write `{}`; nothing was changed", change.path.display());
    let target = real_path(&change.path);
    let name = target
        .file_name()
        .with_context(failed)?
        .to_string_lossy()
        .into_owned();
    let draft = target.with_file_name(format!(".{name}.{}.new", std::process::id()));
    let mode = match std::fs::metadata(&target) {
        Ok(found) => found.permissions().mode() & 0o777,
        Err(_) => 0o644, // silent-ok: the file is new
    };
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(mode)
        .open(&draft)
        .with_context(failed)?;
    let written = file
        .write_all(change.after.as_bytes())
        .and_then(|()| std::fs::set_permissions(&draft, Permissions::from_mode(mode)))
        .and_then(|()| file.sync_all());
    if let Err(error) = written {
        remove_drafts(std::slice::from_ref(&draft));
        return Err(error).with_context(failed);
    }
    Ok(draft)
}

fn remove_drafts(drafts: &[PathBuf]) {
    for draft in drafts {
        let _ = std::fs::remove_file(draft); // silent-ok: the error that is returned says what went wrong
    }
}

fn restore_files(done: &[&FileChange]) {
    for change in done {
        let _ = match &change.before {
            // silent-ok: the error that is returned says what went wrong
            Some(before) => std::fs::write(&change.path, before),
            None => std::fs::remove_file(&change.path),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::{FileChange, replace_files};

    #[test]
    fn all_files_are_written_or_none() {
        let folder = tempfile::tempdir().expect("a folder");
        let (one, two) = (folder.path().join("one"), folder.path().join("two"));
        std::fs::write(&one, "1").expect("written");
        let change = |path: &std::path::Path, before: Option<&str>| FileChange {
            path: path.to_owned(),
            before: before.map(str::to_owned),
            after: "new".to_owned(),
        };
        // A folder stands where the second file goes.
        std::fs::create_dir(&two).expect("a folder");
        assert!(replace_files(&[change(&one, Some("1")), change(&two.join("no/where"), None)]).is_err());
        assert!(
            replace_files(&[change(&one, Some("other"))]).is_err(),
            "changed meanwhile"
        );
        assert_eq!(std::fs::read_to_string(&one).expect("read"), "1");
        assert_eq!(
            std::fs::read_dir(folder.path()).expect("listed").count(),
            2,
            "no draft stays"
        );
        std::fs::remove_dir(&two).expect("removed");
        replace_files(&[change(&one, Some("1")), change(&two, None)]).expect("written");
        assert_eq!(std::fs::read_to_string(&one).expect("read"), "new");
        assert_eq!(std::fs::read_to_string(&two).expect("read"), "new");
    }
}
