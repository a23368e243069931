//! Evidence about the objects of a call at one moment: identity and content of files, every link on the path, and the program
//! behind a name. Two different readings mean that something was replaced in between.
//!
//! It only reads. Blocking: async code calls it with `spawn_blocking`.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::fs::{File, Metadata};
use std::io::Read as _;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Component, Path, PathBuf};

use clawk_plan::Plan;
use clawk_proto::Digest;
use rustix::fs::{Mode, OFlags};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

/// Number of bytes of a file that are hashed. For the rest, size and change times count.
pub const HASHED_BYTES: u64 = 16 << 20;
/// Largest number of links followed for one file.
const MAX_LINKS: u32 = 40;
/// Search path if a call's environment has none.
const DEFAULT_PATH: &str = clawk_plan::plan::MINIMAL_PATH;

/// One precondition of a grant.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GrantPrecondition {
    /// Its subject: ``file `/work/a` ``, ``program `git` ``, `sandbox`.
    pub subject: String,
    /// Its value at that time. Parts are separated by `, `.
    pub value: String,
}

impl GrantPrecondition {
    /// Makes a precondition.
    pub fn new(subject: impl Into<String>, value: impl Into<String>) -> Self {
        Self {
            subject: subject.into(),
            value: value.into(),
        }
    }
}

/// The state of a path at the time of reading.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// Nothing exists there. This counts as an identity, too.
    Absent,
    /// A file or folder exists.
    Present(FileIdentity),
    /// The state is unknown. Holds the reason.
    Unknown(String),
}

/// A file's identity, and the digest of its content if it is a regular file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileIdentity {
    /// `file`, `folder`, `device` …
    pub kind: String,
    /// Device number.
    pub dev: u64,
    /// Inode number.
    pub ino: u64,
    /// Size in bytes; 0 for folders.
    pub size: u64,
    /// Last change of the content, in nanoseconds since the epoch; 0 for folders.
    pub modified_ns: i128,
    /// Last change of the inode, which no program can set back, in nanoseconds since the epoch; 0 for folders.
    pub changed_ns: i128,
    /// Digest of the first [`HASHED_BYTES`].
    pub content: Option<Digest>,
}

impl FileIdentity {
    /// Makes the identity from a `stat`, without the content.
    #[must_use]
    pub fn from_metadata(meta: &Metadata) -> Self {
        let kind = meta.file_type();
        let file = kind.is_file();
        let name = if file {
            "file"
        } else if kind.is_dir() {
            "folder"
        } else if kind.is_block_device() || kind.is_char_device() {
            "device"
        } else {
            "special file"
        };
        let time = |secs: i64, nanos: i64| i128::from(secs) * 1_000_000_000 + i128::from(nanos);
        Self {
            kind: name.to_owned(),
            dev: meta.dev(),
            ino: meta.ino(),
            size: if file { meta.size() } else { 0 },
            modified_ns: if file {
                time(meta.mtime(), meta.mtime_nsec())
            } else {
                0
            },
            changed_ns: if file {
                time(meta.ctime(), meta.ctime_nsec())
            } else {
                0
            },
            content: None,
        }
    }

    /// Returns whether it is the same unchanged file, as far as a `stat` shows.
    #[must_use]
    pub fn matches_metadata(&self, meta: &Metadata) -> bool {
        let now = Self::from_metadata(meta);
        Self {
            content: None,
            ..self.clone()
        } == now
    }

    fn text(&self) -> String {
        let mut text = format!("{}, dev {}, inode {}", self.kind, self.dev, self.ino);
        if self.kind == "file" {
            text.push_str(&format!(
                ", size {}, modified {}, changed {}",
                self.size, self.modified_ns, self.changed_ns
            ));
        }
        if let Some(content) = &self.content {
            text.push_str(&format!(", sha256 {content}"));
        }
        text
    }
}

/// A file that a call names, with its state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileMark {
    /// Absolute path, as the call names it.
    pub path: PathBuf,
    /// State of the path.
    pub state: State,
}

/// The evidence about one path.
#[derive(Debug, Clone)]
pub struct PathEvidence {
    /// The links and folders on the path, and its target.
    pub facts: Vec<GrantPrecondition>,
    /// The path's mark.
    pub mark: FileMark,
    /// The resolved path, as far as it exists.
    pub real: PathBuf,
}

/// Reads `path` (absolute), follows links and records each.
#[must_use]
pub fn observe_file(path: &Path) -> PathEvidence {
    let mut walk = PathWalk::default();
    let state = walk.walk_to(path);
    let shown = path.display();
    let value = match &state {
        State::Absent => "does not exist".to_owned(),
        State::Present(identity) => identity.text(),
        State::Unknown(why) => format!("can't be read: {why}"),
    };
    let mut facts = walk.links;
    facts.push(GrantPrecondition::new(
        format!("{FOLDERS}`{shown}`"),
        Digest(walk.folders.finalize().into()).to_hex(),
    ));
    facts.push(GrantPrecondition::new(format!("`{shown}`"), value));
    PathEvidence {
        facts,
        mark: FileMark {
            path: path.to_owned(),
            state,
        },
        real: walk.at,
    }
}

/// Suffix of the subject for a file that a call only writes.
const WRITTEN: &str = " (written, not read)";

/// Returns the preconditions about a file that a call writes and does not read. An exact approval is bound to its content. A
/// standing one is bound only to the targets of the links on its path, because each run changes the content.
#[must_use]
pub fn written_file(path: &Path) -> Vec<GrantPrecondition> {
    let named = format!("`{}`", path.display());
    let mut facts = observe_file(path).facts;
    for fact in facts.iter_mut().filter(|fact| fact.subject == named) {
        fact.subject = format!("{named}{WRITTEN}");
    }
    facts
}

/// How programs are searched for: the search path, the folder of relative names, and what the sandbox shows.
#[derive(Debug, Clone, Copy)]
pub struct ProgramSearch<'a> {
    /// A `PATH`; `None`: the launcher's own.
    pub path: Option<&'a str>,
    /// Base of relative names.
    pub from: &'a Path,
    /// The sandbox plan, which determines the visible files; `None`: the operator configured the program, and its sandbox shows it
    /// wherever it is.
    pub plan: Option<&'a Plan>,
    /// The agent's working directory, the base of the plan's paths.
    pub base: &'a Path,
}

/// Prefix of the subject for the folders on a file's path.
const FOLDERS: &str = "the folders on the way to ";

/// Returns the preconditions that stay comparable over time: which files, the targets of links, and the content of each. A file
/// that was written again with the same content is the same. For a file too large to be hashed completely, every sign of a change
/// counts.
#[must_use]
pub fn lasting_preconditions(facts: &[GrantPrecondition]) -> Vec<GrantPrecondition> {
    let all = facts
        .iter()
        .filter(|fact| !fact.subject.starts_with(FOLDERS) && !fact.subject.ends_with(WRITTEN));
    all.map(|fact| {
        // Only evidence about a path has a subject that begins with the path.
        let found = fact.subject.starts_with('`');
        let value = if found { content_of(&fact.value) } else { None };
        GrantPrecondition::new(&fact.subject, value.unwrap_or_else(|| fact.value.clone()))
    })
    .collect()
}

/// Returns an identity's text without device, inode and times, if the content identifies it.
fn content_of(identity: &str) -> Option<String> {
    let parts: Vec<&str> = identity.split(", ").collect();
    match parts.as_slice() {
        ["file", _dev, _inode, size, _modified, _changed, content] => {
            let bytes: u64 = size.strip_prefix("size ")?.parse().ok()?; // silent-ok: then all of it counts
            (bytes <= HASHED_BYTES && content.starts_with("sha256 "))
                .then(|| format!("file, {size}, {content}"))
        }
        ["folder", _dev, _inode] => Some("folder".to_owned()),
        _ => None,
    }
}

/// Takes the fingerprint of a program. `name` is a path, or a name to look up in the search path.
#[must_use]
pub fn observe_program(name: &str, search: ProgramSearch<'_>) -> Vec<GrantPrecondition> {
    let found = find_program(name, search);
    let resolved = found
        .as_ref()
        .map_or_else(|| "not found".to_owned(), |path| path.display().to_string());
    let mut facts = vec![GrantPrecondition::new(format!("the program `{name}`"), resolved)];
    if let Some(path) = found {
        facts.extend(observe_file(&path).facts);
    }
    facts
}

/// The file of a program, found as the sandbox would find it. `None` if there is none.
#[must_use]
pub fn find_program(name: &str, search: ProgramSearch<'_>) -> Option<PathBuf> {
    let ProgramSearch {
        path,
        from,
        plan,
        base,
    } = search;
    let seen = |path: &Path| plan.is_none_or(|plan| plan.shows_path(path, base));
    if name.contains('/') {
        let path = from.join(name);
        return (path.is_file() && seen(&path)).then_some(path);
    }
    path.filter(|path| !path.is_empty())
        .unwrap_or(DEFAULT_PATH)
        .split(':')
        .map(|folder| from.join(folder).join(name))
        .find(|path| seen(path) && is_program(path))
}

fn is_program(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|meta| meta.is_file() && meta.mode() & 0o111 != 0)
}

#[derive(Default)]
struct PathWalk {
    links: Vec<GrantPrecondition>,
    folders: Sha256,
    at: PathBuf,
}

impl PathWalk {
    fn walk_to(&mut self, path: &Path) -> State {
        self.at = PathBuf::from("/");
        let mut parts = VecDeque::from(path_parts(path));
        let mut followed = 0;
        while let Some(part) = parts.pop_front() {
            if part == ".." {
                self.at.pop();
                continue;
            }
            let next = self.at.join(&part);
            let meta = match std::fs::symlink_metadata(&next) {
                Ok(meta) => meta,
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                    self.at = next;
                    self.at.extend(parts);
                    return State::Absent;
                }
                Err(error) => return State::Unknown(error.kind().to_string()),
            };
            if meta.is_symlink() {
                followed += 1;
                let target = match std::fs::read_link(&next) {
                    Ok(_) if followed > MAX_LINKS => return State::Unknown("too many links".to_owned()),
                    Ok(target) => target,
                    Err(error) => return State::Unknown(error.kind().to_string()),
                };
                let subject = format!("the link `{}`", next.display());
                self.links
                    .push(GrantPrecondition::new(subject, target.display().to_string()));
                if target.is_absolute() {
                    self.at = PathBuf::from("/");
                }
                for part in self::path_parts(&target).into_iter().rev() {
                    parts.push_front(part);
                }
                continue;
            }
            self.at = next;
            if parts.is_empty() {
                return present_state(&self.at, &meta);
            }
            if !meta.is_dir() {
                return State::Unknown(format!("`{}` is no folder", self.at.display()));
            }
            self.folders.update(meta.dev().to_be_bytes());
            self.folders.update(meta.ino().to_be_bytes());
        }
        match std::fs::symlink_metadata(&self.at) {
            Ok(meta) => present_state(&self.at, &meta),
            Err(error) => State::Unknown(error.kind().to_string()),
        }
    }
}

fn path_parts(path: &Path) -> Vec<OsString> {
    path.components()
        .filter_map(|component| match component {
            Component::Normal(part) => Some(part.to_owned()),
            Component::ParentDir => Some(OsString::from("..")),
            Component::Prefix(_) | Component::RootDir | Component::CurDir => None,
        })
        .collect()
}

fn present_state(path: &Path, meta: &Metadata) -> State {
    if !meta.is_file() {
        return State::Present(FileIdentity::from_metadata(meta));
    }
    match hash_file(path) {
        Ok(identity) => State::Present(identity),
        Err(error) => State::Unknown(error.kind().to_string()),
    }
}

/// Returns identity and content of the same open file, so that both belong together.
fn hash_file(path: &Path) -> std::io::Result<FileIdentity> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::open(path, flags, Mode::empty())?);
    let mut identity = FileIdentity::from_metadata(&file.metadata()?);
    let mut hash = Sha256::new();
    let mut rest = (&file).take(HASHED_BYTES);
    let mut buffer = vec![0; 1 << 16];
    loop {
        let read = rest.read(&mut buffer)?;
        if read == 0 {
            break;
        }
        hash.update(buffer.get(..read).unwrap_or_default());
    }
    identity.content = Some(Digest(hash.finalize().into()));
    Ok(identity)
}

/// Returns the SHA-256 of a value that is bound without being shown.
#[must_use]
pub fn digest_of(bytes: &[u8]) -> Digest {
    Digest(Sha256::digest(bytes).into())
}

/// The value of a fact whose subject is a record's own words for what had changed: in a replay nobody can look again.
pub const RECORDED: &str = "\0recorded";

/// Returns the first difference between two readings, for people; `None`: they are equal.
#[must_use]
pub fn first_difference(before: &[GrantPrecondition], now: &[GrantPrecondition]) -> Option<String> {
    for (at, fact) in before.iter().enumerate() {
        match now.get(at) {
            Some(same) if same == fact => {}
            Some(other) if other.subject == fact.subject => return Some(describe_change(fact, other)),
            Some(_) | None => return Some(format!("{} is not as it was shown", fact.subject)),
        }
    }
    now.get(before.len()).map(|fact| match fact.value.as_str() {
        RECORDED => fact.subject.clone(),
        _ => format!("{} was not there", fact.subject),
    })
}

fn describe_change(before: &GrantPrecondition, now: &GrantPrecondition) -> String {
    let old: Vec<&str> = before.value.split(", ").collect();
    let new: Vec<&str> = now.value.split(", ").collect();
    if old.len() == 1 || old.len() != new.len() {
        let short = |text: &str| text.chars().take(160).collect::<String>();
        return format!(
            "{} was {} and is {}",
            before.subject,
            short(&before.value),
            short(&now.value)
        );
    }
    let what: Vec<&str> = old
        .iter()
        .zip(&new)
        .filter(|(old, new)| old != new)
        .map(|(old, _)| match old.split(' ').next() {
            Some("sha256") => "content",
            Some("modified") => "time of change",
            Some("changed") => "inode's time of change",
            Some(word) => word,
            None => "identity",
        })
        .collect();
    format!("{} changed: {}", before.subject, what.join(", "))
}

#[cfg(test)]
mod tests;

/// The preconditions of an approval.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExactGrant {
    /// In a fixed order: tool, arguments, sandbox, working directory, files, what the executor stands on.
    pub facts: Vec<GrantPrecondition>,
    /// The files that the arguments name, for the runner's own check beneath its open.
    pub marks: Vec<FileMark>,
    /// What a standing grant is bound to beside the call; `None`: an earlier version put the question.
    #[serde(default)]
    pub basis: Option<Digest>,
}

impl ExactGrant {
    /// What is not as it was; `None`: everything is.
    pub fn changed(&self, now: &Self) -> Option<String> {
        first_difference(&self.facts, &now.facts)
    }
}
