//! Resolves the real paths of a plan's mounts. If one mount is below a writable mount, a tool can replace its folder by a link
//! between two calls, and the next call would mount the link's target. So links inside writable mounts are never followed.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::ffi::OsString;
use std::io;
use std::path::{Component, Path, PathBuf};

use crate::plan::Filesystem;
use crate::preflight::path::lexical_path;

/// The maximum number of links in one path; the kernel has the same limit.
const MAX_LINKS: usize = 40;

/// The real paths of a plan's writable mounts.
pub fn writable_places(filesystem: &Filesystem, base: &Path) -> Vec<PathBuf> {
    let mounts = filesystem.shown_mounts().into_iter();
    mounts
        .filter(|(_, writable)| *writable)
        .filter_map(|(path, _)| lexical_path(base, &path).canonicalize().ok()) // silent-ok: what is not there is refused when it is mounted
        .collect()
}

/// Resolves `path` to its real path, but follows no link inside `writable`. The caller must still open the result without following
/// links.
///
/// # Errors
/// The file does not exist, or the path goes through a link that a tool could have created.
pub fn resolve_path(path: &Path, writable: &[PathBuf]) -> io::Result<PathBuf> {
    let mut links = 0;
    walk_path(path, |folder, next, _| {
        if !next.symlink_metadata()?.is_symlink() {
            return Ok(None);
        }
        if writable.iter().any(|root| folder.starts_with(root)) {
            return Err(io::Error::other(format!(
                "`{}` is a link inside of a writable mount, where a tool may have put it; mount what it leads to",
                next.display()
            )));
        }
        links += 1;
        if links > MAX_LINKS {
            return Err(io::Error::other("too many links"));
        }
        next.read_link().map(Some)
    })
    .map(|(place, _)| place)
}

/// The names and links through which a file or a folder is reached.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct PathTrail {
    /// Links to folders on the path. Other files are reached through them, too.
    pub links: Vec<PathBuf>,
    /// Links that lead to the file itself.
    pub names: Vec<PathBuf>,
    /// The real path. Parts that do not exist are kept as written.
    pub place: PathBuf,
    /// Folders that the path enters and leaves again by `..`. If such a folder is replaced by a link, the path leads elsewhere.
    pub left: Vec<PathBuf>,
}

impl PathTrail {
    /// All links, then the real path.
    pub fn into_paths(self) -> impl Iterator<Item = PathBuf> {
        self.links.into_iter().chain(self.names).chain([self.place])
    }
}

/// Finds the links and the real path of `path`, which must be absolute.
pub fn trace_path(path: &Path) -> PathTrail {
    let (mut links, mut names) = (Vec::new(), Vec::new());
    let Ok((place, left)) = walk_path::<Infallible>(path, |_, next, last| {
        let few = links.len() + names.len() < MAX_LINKS;
        let target = next.read_link().ok().filter(|_| few); // silent-ok: no link
        if target.is_some() {
            let kind = if last { &mut names } else { &mut links };
            kind.push(next.to_owned());
        }
        Ok(target)
    });
    PathTrail {
        links,
        names,
        place,
        left,
    }
}

/// Walks from the root to `path`, one name at a time. `target` gets the current folder, the next path, and whether this is the last
/// name; it returns the link's target if the next path is a link to follow. Returns the real path, and the folders that were left
/// by `..`.
fn walk_path<E>(
    path: &Path,
    mut target: impl FnMut(&Path, &Path, bool) -> Result<Option<PathBuf>, E>,
) -> Result<(PathBuf, Vec<PathBuf>), E> {
    let mut left = Vec::new();
    let mut done = PathBuf::from("/");
    let mut ahead: VecDeque<OsString> = path_parts(path);
    while let Some(name) = ahead.pop_front() {
        if name == ".." {
            left.push(done.clone());
            done.pop();
            continue;
        }
        let next = done.join(&name);
        let Some(target) = target(&done, &next, ahead.is_empty())? else {
            done = next;
            continue;
        };
        if target.is_absolute() {
            done = PathBuf::from("/");
        }
        for part in path_parts(&target).into_iter().rev() {
            ahead.push_front(part);
        }
    }
    Ok((done, left))
}

fn path_parts(path: &Path) -> VecDeque<OsString> {
    let named = |part: Component<'_>| match part {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some(OsString::from("..")),
        Component::Prefix(_) | Component::RootDir | Component::CurDir => None,
    };
    path.components().filter_map(named).collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn links_count_only_where_no_tool_writes() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().canonicalize().unwrap();
        for name in ["work/a/sub", "real", "other"] {
            std::fs::create_dir_all(root.join(name)).unwrap();
        }
        symlink("../real", root.join("other/link")).unwrap();
        symlink(root.join("work"), root.join("alias")).unwrap();
        symlink("/etc", root.join("work/a/gone")).unwrap();
        symlink("a", root.join("work/b")).unwrap();
        let writable = vec![root.join("work")];
        let at = |name: &str| resolve_path(&root.join(name), &writable).map_err(|error| error.to_string());
        assert_eq!(at("work/a/sub"), Ok(root.join("work/a/sub")));
        assert_eq!(at("other/link"), Ok(root.join("real")));
        assert_eq!(at("alias/a/sub"), Ok(root.join("work/a/sub")));
        assert_eq!(at("other/../real"), Ok(root.join("real")));
        for name in ["work/a/gone", "work/a/gone/passwd", "work/b/sub", "alias/a/gone"] {
            assert!(at(name).unwrap_err().contains("a link inside"), "{name}");
        }
        assert!(at("work/missing").is_err());
        symlink("link", root.join("other/second")).unwrap();
        let way = |name: &str| trace_path(&root.join(name));
        let at = |names: &[&str]| names.iter().map(|name| root.join(name)).collect::<Vec<_>>();
        assert_eq!(
            way("other/second"),
            PathTrail {
                links: Vec::new(),
                names: at(&["other/second", "other/link"]),
                place: root.join("real"),
                left: at(&["other"]),
            }
        );
        assert_eq!(
            way("alias/b/none/file"),
            PathTrail {
                links: at(&["alias", "work/b"]),
                names: Vec::new(),
                place: root.join("work/a/none/file"),
                left: Vec::new(),
            }
        );
    }
}
