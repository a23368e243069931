//! Resolves paths to real locations for policy decisions (`policy::path`). It follows symbolic links, looks for further names of a
//! file where a rule restricts, and recognises folders under any name.
//!
//! It only reads, within limits. [`resolve_paths_blocking`] blocks; async code calls [`resolve_paths`].

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::ffi::OsString;
use std::fs::Metadata;
use std::io::ErrorKind;
use std::os::unix::fs::{DirEntryExt as _, MetadataExt as _};
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use clawk_manifest::model::{Policy, Tool};
use clawk_plan::preflight::path::lexical_path;
use clawk_policy::path::{RealLocation, RealLocations, RootPlace};
use clawk_policy::{CompileError, Engine, HiddenRoots, PolicySubject, UsageView};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use serde_json::Map;

use crate::ports::ToolDescription;

/// Largest number of links followed for one path.
const MAX_LINKS: usize = 40;

/// Largest number of components for one path, including those of links.
const MAX_STEPS: usize = 4096;

/// Largest number of entries in the rules' folders that are searched for further names of a call's files.
const MAX_ENTRIES: usize = 200_000;

/// Time limit in milliseconds. A path that was not resolved by then is refused.
const LOOK_MS: u64 = 10_000;

/// The paths to look up for one call: its own paths and the roots of rules.
#[derive(Debug, Clone, Default)]
pub struct PathSearch {
    /// Absolute paths of a call, as written.
    pub paths: Vec<PathBuf>,
    /// Root folders of rules. `true`: a rule restricts there, so further names of files are searched.
    pub roots: BTreeMap<PathBuf, bool>,
    /// The resolved roots at the agent's start.
    pub then: BTreeMap<PathBuf, PathBuf>,
}

impl PathSearch {
    /// Returns the locations without reading the disk: every path counts as resolved.
    #[must_use]
    pub fn without_lookup(&self) -> RealLocations {
        let place = |path: &PathBuf| RealLocation {
            at: vec![lexical_path(Path::new("/"), path)],
            exists: false,
            unknown: None,
        };
        let root = |root: &PathBuf| RootPlace {
            then: root.clone(),
            now: root.clone(),
        };
        RealLocations {
            paths: self
                .paths
                .iter()
                .map(|path| (path.clone(), place(path)))
                .collect(),
            roots: self.roots.keys().map(|path| (path.clone(), root(path))).collect(),
        }
    }
}

/// The paths that an allowed call must leave out, because a rule denies or asks about them. It applies to tools that walk
/// through folders and to runners that open files.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExcludedPaths {
    /// Roots for which the rules are stricter than for the call, and which contain none of its paths.
    pub out: Vec<PathBuf>,
    /// All other roots.
    pub open: Vec<PathBuf>,
}

impl ExcludedPaths {
    /// Returns whether the call must leave out `path`.
    #[must_use]
    pub fn leaves_out(&self, path: &Path) -> bool {
        let deepest = |roots: &[PathBuf]| {
            let holding = roots.iter().filter(|root| path.starts_with(root));
            holding.map(|root| root.components().count()).max()
        };
        deepest(&self.out) > deepest(&self.open)
    }
}

/// Resolves the paths on a blocking thread. A path that can't be resolved in time is missing in the result, so that the decision
/// refuses it.
pub async fn resolve_paths(search: PathSearch) -> RealLocations {
    let found = tokio::task::spawn_blocking(move || resolve_paths_blocking(&search));
    match tokio::time::timeout(Duration::from_millis(LOOK_MS), found).await {
        Ok(Ok(places)) => places,
        Ok(Err(_)) | Err(_) => RealLocations::default(), // silent-ok: what is missing is refused, and the refusal says so
    }
}

/// Resolves the paths. Blocking.
#[must_use]
pub fn resolve_paths_blocking(search: &PathSearch) -> RealLocations {
    let mut look = PathLookup::default();
    let mut places = RealLocations::default();
    for root in search.roots.keys() {
        let seen = follow_path(root);
        if let Some(meta) = &seen.meta {
            look.roots.insert((meta.dev(), meta.ino()), seen.at.clone());
        }
        let now = seen.root_path(root);
        let then = search.then.get(root).unwrap_or(&now).clone();
        places.roots.insert(root.clone(), RootPlace { then, now });
    }
    let mut several = Vec::new();
    for path in &search.paths {
        let seen = follow_path(path);
        let mut at = vec![seen.at.clone()];
        at.extend(look.same_folder(&seen.at));
        if let Some(meta) = seen
            .meta
            .as_ref()
            .filter(|meta| meta.is_file() && meta.nlink() > 1)
        {
            several.push((path, seen.at, (meta.dev(), meta.ino())));
        }
        let place = RealLocation {
            at,
            exists: seen.meta.is_some() || seen.unknown.is_some(),
            unknown: seen.unknown,
        };
        places.paths.insert(path.clone(), place);
    }
    if several.is_empty() {
        return places;
    }
    let inodes: HashSet<u64> = several.iter().map(|(.., (_, inode))| *inode).collect();
    let restricting = search.roots.iter().filter(|(_, restricts)| **restricts);
    let roots = restricting.filter_map(|(root, _)| places.roots.get(root).map(|root| root.now.clone()));
    let roots: Vec<PathBuf> = roots
        .filter(|root| !several.iter().all(|(_, at, _)| at.starts_with(root)))
        .collect();
    let names = names_of(&inodes, &roots);
    for (path, at, id) in several {
        let Some(place) = places.paths.get_mut(path) else {
            continue;
        };
        match &names {
            Some(names) => {
                let others = names.get(&id).into_iter().flatten();
                place.at.extend(others.filter(|name| **name != at).cloned());
            }
            None => {
                let why = "it has several names, and the folders of the rules hold too many files to look for it there";
                place.unknown = Some(why.to_owned());
            }
        }
    }
    places
}

/// Where roots lead now; what is not there is named as it would be.
pub fn resolve_roots(all: impl IntoIterator<Item = PathBuf>) -> BTreeMap<PathBuf, PathBuf> {
    all.into_iter()
        .map(|root| {
            let at = follow_path(&root).root_path(&root);
            (root, at)
        })
        .collect()
}

/// Where one path leads.
pub fn real_path(path: &Path) -> PathBuf {
    follow_path(path).at
}

/// Returns the paths that the tool's sandbox must hide: see [`Engine::hidden_roots`]. `known`: the executor's description of the tool.
#[must_use]
pub fn hidden_roots(engine: &Engine, tool: &Tool, known: &ToolDescription, workdir: &Path) -> HiddenRoots {
    let mut annotations = known.trusted_annotations.clone();
    annotations.extend(tool.annotations.clone());
    let mut labels = tool.labels.clone();
    if let Some(category) = known.category {
        labels
            .entry("category".to_owned())
            .or_insert_with(|| category.to_owned());
    }
    let subject = PolicySubject {
        tool: &tool.name,
        labels: &labels,
        annotations: &annotations,
        arguments: &Map::new(),
        schema: None,
        workdir,
        usage: UsageView::default(),
        places: None,
        taint: Some(&[]),
        values: None,
    };
    let named: Vec<&str> = tool.policy_ref.as_deref().into_iter().collect();
    engine.hidden_roots(&subject, &named)
}

/// Returns the paths that policies deny to every tool of one process. The process must not see exactly these.
///
/// # Errors
/// The policies can't be compiled.
pub fn closed_to_all(
    policies: &[Policy],
    served: &[&Tool],
    workdir: &Path,
) -> Result<HiddenRoots, CompileError> {
    let engine = Engine::compile(policies)?;
    let each = served
        .iter()
        .map(|tool| hidden_roots(&engine, tool, &ToolDescription::default(), workdir));
    Ok(each.reduce(|all, one| all.shared_with(&one)).unwrap_or_default())
}

/// The target at the end of a path.
struct PathTarget {
    at: PathBuf,
    meta: Option<Metadata>,
    unknown: Option<String>,
}

impl PathTarget {
    /// Returns the resolved root. A root that can't be resolved stays as written.
    fn root_path(self, root: &Path) -> PathBuf {
        match self.unknown {
            None => self.at,
            Some(_) => root.to_owned(),
        }
    }
}

/// Follows an absolute path as the system would open it.
fn follow_path(path: &Path) -> PathTarget {
    let mut at = PathBuf::from("/");
    let mut meta = None;
    let mut ahead = path_parts(path);
    let (mut links, mut steps) = (0, 0);
    while let Some(part) = ahead.pop_front() {
        steps += 1;
        if steps > MAX_STEPS || links > MAX_LINKS {
            let unknown = Some("too many links or folders on the way".to_owned());
            return PathTarget {
                at,
                meta: None,
                unknown,
            };
        }
        if part == ".." {
            at.pop();
            meta = None;
            continue;
        }
        let next = at.join(&part);
        match next.symlink_metadata() {
            Ok(found) if found.is_symlink() => {
                let Ok(target) = next.read_link() else {
                    let unknown = Some("a link on the way can't be read".to_owned());
                    return PathTarget {
                        at,
                        meta: None,
                        unknown,
                    };
                };
                links += 1;
                if target.is_absolute() {
                    at = PathBuf::from("/");
                }
                for part in path_parts(&target).into_iter().rev() {
                    ahead.push_front(part);
                }
                meta = None;
            }
            Ok(found) if found.is_dir() || ahead.is_empty() => {
                at = next;
                meta = Some(found);
            }
            Ok(_) => return absent_target(next, ahead),
            Err(error) if is_absent(&error) => return absent_target(next, ahead),
            Err(error) => {
                let unknown = Some(format!("it can't be told where it leads: {}", error.kind()));
                return PathTarget {
                    at: next,
                    meta: None,
                    unknown,
                };
            }
        }
    }
    // `..` and links to folders end at a place that was not examined yet.
    let meta = meta.or_else(|| at.symlink_metadata().ok());
    PathTarget {
        at,
        meta,
        unknown: None,
    }
}

/// Returns the target for a missing file, with the rest of the path as written.
fn absent_target(mut at: PathBuf, ahead: VecDeque<OsString>) -> PathTarget {
    for part in ahead {
        if part == ".." {
            at.pop();
        } else {
            at.push(part);
        }
    }
    PathTarget {
        at,
        meta: None,
        unknown: None,
    }
}

fn is_absent(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory)
        || error.raw_os_error() == Some(Errno::NAMETOOLONG.raw_os_error())
}

fn path_parts(path: &Path) -> VecDeque<OsString> {
    let named = |part: Component<'_>| match part {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some(OsString::from("..")),
        Component::Prefix(_) | Component::RootDir | Component::CurDir => None,
    };
    path.components().filter_map(named).collect()
}

type InodeId = (u64, u64);

#[derive(Default)]
struct PathLookup {
    /// The file or folder of each root, by inode.
    roots: HashMap<InodeId, PathBuf>,
    seen: HashMap<PathBuf, Option<InodeId>>,
}

impl PathLookup {
    /// Returns the location under the root's own name, if the root is reached under another name: a mount or a hard link.
    fn same_folder(&mut self, at: &Path) -> Vec<PathBuf> {
        let mut names = Vec::new();
        for above in at.ancestors() {
            let id = *self.seen.entry(above.to_owned()).or_insert_with(|| {
                let meta = above.symlink_metadata().ok()?; // silent-ok: what is not there is no root
                Some((meta.dev(), meta.ino()))
            });
            let Some(root) = id.and_then(|id| self.roots.get(&id)) else {
                continue;
            };
            if let Ok(below) = at.strip_prefix(above)
                && !at.starts_with(root)
            {
                // Joining an empty path would add a separator, as if a file were a folder.
                names.push(if below.as_os_str().is_empty() {
                    root.clone()
                } else {
                    root.join(below)
                });
            }
        }
        names
    }
}

/// Returns the names below `roots` of files with these inode numbers. `None`: there are too many entries.
fn names_of(inodes: &HashSet<u64>, roots: &[PathBuf]) -> Option<HashMap<InodeId, Vec<PathBuf>>> {
    let mut found: HashMap<InodeId, Vec<PathBuf>> = HashMap::new();
    let mut take = |path: PathBuf| {
        if let Ok(meta) = path.symlink_metadata() {
            found.entry((meta.dev(), meta.ino())).or_default().push(path);
        }
    };
    let mut open = Vec::new();
    for root in roots {
        match root.symlink_metadata() {
            Ok(meta) if meta.is_dir() => open.push(root.clone()),
            Ok(meta) if inodes.contains(&meta.ino()) => take(root.clone()),
            Ok(_) | Err(_) => {} // silent-ok: what is not there holds nothing
        }
    }
    let mut left = MAX_ENTRIES;
    while let Some(folder) = open.pop() {
        // silent-ok: who can't read a folder can't have made a second name of its files
        let Ok(listing) = folder.read_dir() else { continue };
        for entry in listing.flatten() {
            left = left.checked_sub(1)?;
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                open.push(entry.path());
            } else if inodes.contains(&entry.ino()) {
                take(entry.path());
            }
        }
    }
    Some(found)
}

#[cfg(test)]
mod tests;
