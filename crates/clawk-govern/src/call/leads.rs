//! Resolves a call's paths for the text of an approval request: symbolic links and `..` are followed.

use std::path::{Path, PathBuf};

use crate::sheet::PreviewLine;

/// Largest number of a call's paths that are resolved. A grant binds no more.
const MAX_PATHS: usize = 128;
/// Largest number of links without a target that are followed.
const MAX_LINKS: usize = 40;

/// Returns a line for each absolute path in `named` whose resolved path differs. Blocking.
pub(super) fn resolved_path_lines(workdir: &Path, named: &[PathBuf]) -> Vec<PreviewLine> {
    let base = real_path(workdir, MAX_LINKS).unwrap_or_else(|| workdir.to_path_buf());
    let said = |path: &Path| match path.strip_prefix(workdir) {
        Ok(below) => base.join(below),
        Err(_) => path.to_path_buf(), // silent-ok: it lies elsewhere
    };
    let mut lines: Vec<PreviewLine> = named
        .iter()
        .take(MAX_PATHS)
        .filter_map(|path| {
            let (shown, said) = (path.display(), said(path));
            match real_path(path, MAX_LINKS) {
                Some(real) if real == said => None,
                Some(real) => Some(format!("`{shown}` leads to `{}`", real.display())),
                None => Some(format!("nobody can say where `{shown}` leads")),
            }
        })
        .map(|line| PreviewLine::fact(&line))
        .collect();
    lines.dedup();
    lines
}

/// Returns the path behind all links, even if nothing exists there.
fn real_path(path: &Path, links: usize) -> Option<PathBuf> {
    if let Ok(place) = path.canonicalize() {
        return Some(place);
    }
    let parent = path.parent()?;
    // The parent of a missing path is unknown, so `..` after it can't be resolved.
    let name = path.file_name()?;
    match std::fs::read_link(path) {
        Ok(target) => real_path(&parent.join(target), links.checked_sub(1)?),
        Err(_) => Some(real_path(parent, links.checked_sub(1)?)?.join(name)), // silent-ok: it is no link
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    #[test]
    fn links_and_climbs_are_told_and_plain_paths_are_not() {
        let folder = tempfile::tempdir().unwrap();
        let work = folder.path().join("work");
        std::fs::create_dir_all(work.join("a")).unwrap();
        std::fs::write(work.join("plain"), "x").unwrap();
        symlink(&work, folder.path().join("entry")).unwrap();
        symlink("../b", work.join("a/l")).unwrap();
        symlink("/etc", work.join("out")).unwrap();
        let told = |path: &str| {
            let entry = folder.path().join("entry");
            let lines = super::resolved_path_lines(&entry, &[entry.join(path)]);
            lines
                .first()
                .map(|line| crate::sheet::CallPreview::from(vec![line.clone()]).whole())
        };
        for plain in ["plain", "new", "deep/er/new", "./a/x"] {
            assert_eq!(told(plain), None, "{plain}");
        }
        let leads = |path: &str, to: &str| {
            let told = told(path).unwrap();
            let real = work.canonicalize().unwrap();
            let to = if to.starts_with('/') {
                to.into()
            } else {
                real.join(to)
            };
            assert!(told.ends_with(&format!("leads to `{}`", to.display())), "{told}");
        };
        leads("a/l", "b");
        leads("a/l/new", "b/new");
        leads("out/passwd", "/etc/passwd");
        leads("a/../plain", "plain");
        symlink("loop", work.join("loop")).unwrap();
        assert!(told("loop").unwrap().contains("nobody can say"));
    }
}
