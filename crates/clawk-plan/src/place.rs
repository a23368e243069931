//! Where a plan's mounts really lie. A mount below a writable one has a name that a tool can give to something else between two
//! calls: put a link in the place of the folder, and the next call would show what the link leads to. So no link is followed
//! that lies where a tool may write.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::ffi::OsString;
use std::io;
use std::path::{Component, Path, PathBuf};

use crate::plan::Filesystem;
use crate::preflight::path::lexical;

/// Links on one way, as the kernel's limit.
const MAX_LINKS: usize = 40;

/// The real places of a plan's writable mounts.
pub fn writable(filesystem: &Filesystem, base: &Path) -> Vec<PathBuf> {
    let mounts = filesystem.shown_mounts().into_iter();
    mounts
        .filter(|(_, writable)| *writable)
        .filter_map(|(path, _)| lexical(base, &path).canonicalize().ok()) // silent-ok: what is not there is refused when it is mounted
        .collect()
}

/// Follows `path` to its real place, but no link inside of `writable`. The place itself must still be opened without
/// following links.
///
/// # Errors
/// The file does not exist, or a link stands where a tool could have put it.
pub fn resolve(path: &Path, writable: &[PathBuf]) -> io::Result<PathBuf> {
    let mut links = 0;
    walk(path, |folder, next, _| {
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

/// The ways by which a file or a folder is reached.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct PathTrail {
    /// Links to folders on the way: other things lie behind them, too.
    pub links: Vec<PathBuf>,
    /// Its own names: links that lead to itself.
    pub names: Vec<PathBuf>,
    /// Where it really is. What is not there is named as it would be.
    pub place: PathBuf,
    /// Folders that were entered and left again by `..`: with a link in the place of one, the way leads elsewhere.
    pub left: Vec<PathBuf>,
}

impl PathTrail {
    /// All links, then the place.
    pub fn all(self) -> impl Iterator<Item = PathBuf> {
        self.links.into_iter().chain(self.names).chain([self.place])
    }
}

/// How `path`, absolute, is reached.
pub fn trail(path: &Path) -> PathTrail {
    let (mut links, mut names) = (Vec::new(), Vec::new());
    let Ok((place, left)) = walk::<Infallible>(path, |_, next, last| {
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

/// Goes from the root to `path`, name by name; `target` says of a folder and a place in it where that leads, if it is a link; it is
/// told whether nothing follows. Where it ends, and the folders that were left by `..`.
fn walk<E>(
    path: &Path,
    mut target: impl FnMut(&Path, &Path, bool) -> Result<Option<PathBuf>, E>,
) -> Result<(PathBuf, Vec<PathBuf>), E> {
    let mut left = Vec::new();
    let mut done = PathBuf::from("/");
    let mut ahead: VecDeque<OsString> = parts(path);
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
        for part in parts(&target).into_iter().rev() {
            ahead.push_front(part);
        }
    }
    Ok((done, left))
}

fn parts(path: &Path) -> VecDeque<OsString> {
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
        let at = |name: &str| resolve(&root.join(name), &writable).map_err(|error| error.to_string());
        assert_eq!(at("work/a/sub"), Ok(root.join("work/a/sub")));
        assert_eq!(at("other/link"), Ok(root.join("real")));
        assert_eq!(at("alias/a/sub"), Ok(root.join("work/a/sub")));
        assert_eq!(at("other/../real"), Ok(root.join("real")));
        for name in ["work/a/gone", "work/a/gone/passwd", "work/b/sub", "alias/a/gone"] {
            assert!(at(name).unwrap_err().contains("a link inside"), "{name}");
        }
        assert!(at("work/missing").is_err());
        symlink("link", root.join("other/second")).unwrap();
        let way = |name: &str| trail(&root.join(name));
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
