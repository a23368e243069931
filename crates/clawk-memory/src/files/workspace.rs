//! A workspace: a folder whose files are the entries. The key of an entry is the file's path relative to the folder.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::path::{Component, Path, PathBuf};
use std::time::UNIX_EPOCH;

use clawk_core::ports::{MemoryError, StoreQuery};
use clawk_core::time::Timestamp;
use clawk_manifest::model::Store;
use clawk_proto::method::MemoryEntry;
use clawk_recall::entry::{
    ConversationFilter, EntryHit, EntryInsertion, EntryProvenance, EntrySearchResult, SearchMethod,
    check_free_size,
};
use clawk_recall::fuse::{self, ScoreMeaning, WeightedRanking};
use clawk_recall::index::Index;
use clawk_recall::packed::{PackedVectors, pack_vector};
use clawk_recall::table;
use clawk_trace::chain::digest_of;
use rustix::fs::{Mode, OFlags, ResolveFlags};
use serde_json::Value;

use super::line::{self, StoreChange, StoredLineEntry};

/// The maximum size of a file that counts as an entry, in bytes.
const MAX_FILE_BYTES: u64 = 1024 * 1024;
/// The maximum number of files that are read in one workspace.
const MAX_FILES: usize = 10_000;
/// The maximum depth of subfolders that are read.
const MAX_DEPTH: usize = 16;
/// The temporary name of a file that is being written.
const PARTIAL: &str = ".clawk-new";

/// The workspace's folder. The provenance of its files is recorded in a file outside of it, because tools may write into the
/// folder.
#[derive(Debug)]
pub(super) struct WorkspaceFolder {
    folder: PathBuf,
    marks: PathBuf,
    root: OwnedFd,
}

/// By path: the provenance, and the digest of the text that it is valid for.
type MarksByPath = HashMap<String, (String, EntryProvenance)>;

/// One file of the workspace.
#[derive(Debug)]
struct WorkspaceFile {
    path: String,
    text: String,
    at: Timestamp,
}

impl WorkspaceFolder {
    /// Opens a workspace. `marks` is the path of the provenance file.
    pub(super) fn open(folder: PathBuf, marks: PathBuf) -> io::Result<Self> {
        line::make_folder(&folder)?;
        if let Some(folder) = marks.parent() {
            line::make_folder(folder)?;
        }
        let root = rustix::fs::open(&folder, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        Ok(Self { folder, marks, root })
    }

    /// Opens a file below the folder. Links in the path are not followed, because a tool may have made them.
    fn open_below(&self, path: &str, flags: OFlags, mode: Mode) -> io::Result<File> {
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        let opened = rustix::fs::openat2(&self.root, path, flags | OFlags::CLOEXEC, mode, resolve)?;
        Ok(File::from(opened))
    }

    fn read(&self, path: &str) -> io::Result<Option<WorkspaceFile>> {
        let file = self.open_below(path, OFlags::RDONLY | OFlags::NONBLOCK, Mode::empty())?;
        let facts = file.metadata()?;
        if !facts.is_file() || facts.len() > MAX_FILE_BYTES {
            return Ok(None);
        }
        let mut bytes = Vec::new();
        file.take(MAX_FILE_BYTES).read_to_end(&mut bytes)?;
        let time = facts
            .modified()
            .ok()
            .and_then(|time| time.duration_since(UNIX_EPOCH).ok()); // silent-ok: before 1970
        let at = time.map_or(0, |time| i64::try_from(time.as_micros()).unwrap_or(i64::MAX));
        // Not UTF-8: ignored as an entry.
        Ok(String::from_utf8(bytes).ok().map(|text| WorkspaceFile {
            path: path.to_owned(),
            text,
            at: Timestamp(at),
        }))
    }

    /// Paths of the files below the folder, within the limits. Links are not followed.
    fn list_paths(&self) -> io::Result<Vec<String>> {
        let mut found = Vec::new();
        let mut folders = vec![(self.folder.clone(), String::new(), 0)];
        while let Some((folder, front, depth)) = folders.pop() {
            let mut entries = fs::read_dir(&folder)?.collect::<Result<Vec<_>, _>>()?;
            entries.sort_by_key(fs::DirEntry::file_name);
            for entry in entries {
                let name = entry.file_name();
                let Some(name) = name.to_str().filter(|name| !name.starts_with(".clawk-")) else {
                    continue;
                };
                let path = format!("{front}{name}");
                let kind = entry.file_type()?;
                if kind.is_dir() && depth < MAX_DEPTH {
                    folders.push((entry.path(), format!("{path}/"), depth + 1));
                } else if kind.is_file() && found.len() < MAX_FILES {
                    found.push(path);
                }
            }
        }
        Ok(found)
    }

    fn read_marks(&self) -> io::Result<MarksByPath> {
        let lines = line::open_file(&self.marks, None)?.lines;
        let kept = lines.into_iter().flat_map(|line| line.keep);
        Ok(kept
            .map(|kept| (kept.id, (kept.key.unwrap_or_default(), kept.mark)))
            .collect())
    }

    fn mark_of(marks: &MarksByPath, content: &WorkspaceFile) -> EntryProvenance {
        let known = marks.get(&content.path);
        let known = known.filter(|(digest, _)| *digest == digest_of(content.text.as_bytes()).to_hex());
        // A file that another program created or changed.
        known
            .map(|(_, mark)| mark.clone())
            .unwrap_or_else(|| EntryProvenance {
                origin: format!("file {}", content.path),
                untrusted: true,
                ..EntryProvenance::default()
            })
    }

    fn entry_hit(marks: &MarksByPath, content: WorkspaceFile, score: Option<f64>) -> EntryHit {
        EntryHit {
            mark: Self::mark_of(marks, &content),
            entry: MemoryEntry {
                id: content.path.clone(),
                content: Value::String(content.text),
                score,
                timestamp: Some(content.at.to_string()),
                key: Some(content.path),
                metadata: None,
            },
        }
    }

    pub(super) fn count(&self) -> io::Result<u64> {
        Ok(u64::try_from(self.list_paths()?.len()).unwrap_or(u64::MAX))
    }

    pub(super) fn search_entries(
        &self,
        whose: &ConversationFilter,
        query: &StoreQuery,
        limit: usize,
    ) -> io::Result<EntrySearchResult> {
        let marks = self.read_marks()?;
        let mine = |content: &WorkspaceFile| whose.includes_owner(&Self::mark_of(&marks, content).whose);
        if let StoreQuery::Key(key) = query {
            let found = match path_of(key) {
                Some(key) => self.read(&key).or_else(none_if_absent)?,
                None => None,
            };
            let hits = found
                .filter(mine)
                .map(|found| Self::entry_hit(&marks, found, None));
            return Ok(EntrySearchResult {
                hits: hits.into_iter().take(limit).collect(),
                used: None,
                ..EntrySearchResult::default()
            });
        }
        let mut files = Vec::new();
        for path in self.list_paths()? {
            files.extend(self.read(&path).or_else(none_if_absent)?.filter(mine));
        }
        match query {
            StoreQuery::Text(text) => Ok(by_text(&marks, files, text, limit)),
            StoreQuery::Between(from, to) => {
                files.retain(|file| (*from..=*to).contains(&file.at));
                files.sort_by(|a, b| a.at.cmp(&b.at).then_with(|| a.path.cmp(&b.path)));
                let hits = files
                    .into_iter()
                    .take(limit)
                    .map(|file| Self::entry_hit(&marks, file, None));
                Ok(EntrySearchResult {
                    hits: hits.collect(),
                    used: None,
                    ..EntrySearchResult::default()
                })
            }
            StoreQuery::Key(_) => Ok(EntrySearchResult::default()),
        }
    }

    pub(super) fn insert_entries(
        &self,
        store: &Store,
        entries: Vec<EntryInsertion>,
    ) -> Result<Vec<String>, MemoryError> {
        let mut files = Vec::new();
        let mut line = StoreChange::default();
        for (index, EntryInsertion { entry, mark, .. }) in entries.into_iter().enumerate() {
            let refuse = |reason: String| MemoryError::Entry { index, reason };
            let key = entry.key.unwrap_or_default();
            let path = path_of(&key).ok_or_else(|| {
                refuse(format!("store `{}` is a workspace: the entry needs a `key` that is a path below its folder, and `{key}` is not", store.name))
            })?;
            let text = match entry.content {
                Value::String(text) => text,
                other => other.to_string(),
            };
            if u64::try_from(text.len()).unwrap_or(u64::MAX) > MAX_FILE_BYTES {
                return Err(refuse(format!(
                    "{} bytes; at most {MAX_FILE_BYTES}, split it",
                    text.len()
                )));
            }
            line.keep.push(StoredLineEntry {
                id: path.clone(),
                at: String::new(),
                key: Some(digest_of(text.as_bytes()).to_hex()),
                content: Value::Null,
                metadata: None,
                mark,
            });
            files.push((path, text));
        }
        let done = self.check_size(store, &files)?;
        done.and_then(|()| self.write(&files, &line))
            .map_err(|error| super::backend_error(store, &error))?;
        Ok(files.into_iter().map(|(path, _)| path).collect())
    }

    fn check_size(&self, store: &Store, files: &[(String, String)]) -> Result<io::Result<()>, MemoryError> {
        if store.max_size_mb.is_none() {
            return Ok(Ok(()));
        }
        let paths = match self.list_paths() {
            Ok(paths) => paths,
            Err(error) => return Ok(Err(error)),
        };
        let stays = paths
            .iter()
            .filter(|path| !files.iter().any(|(new, _)| new == *path));
        let there: u64 = stays
            .filter_map(|path| fs::symlink_metadata(self.folder.join(path)).ok())
            .map(|facts| facts.len())
            .sum();
        let more: u64 = files
            .iter()
            .map(|(_, text)| u64::try_from(text.len()).unwrap_or(u64::MAX))
            .sum();
        check_free_size(store, there, more).map_err(|reason| MemoryError::Entry { index: 0, reason })?;
        Ok(Ok(()))
    }

    /// Writes the provenance first: a file without a provenance counts as untrusted.
    fn write(&self, files: &[(String, String)], line: &StoreChange) -> io::Result<()> {
        let mut log = line::open_file(&self.marks, None)?.file;
        line::append_line(&mut log, line, None, 1)?;
        for (path, text) in files {
            let (folder, name) = self.open_parent(path, true)?;
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let partial = rustix::fs::openat(&folder, PARTIAL, flags, Mode::RUSR | Mode::WUSR)?;
            let mut file = File::from(partial);
            file.write_all(text.as_bytes())?;
            file.sync_all()?;
            rustix::fs::renameat(&folder, PARTIAL, &folder, name)?;
            rustix::fs::fsync(&folder)?;
        }
        Ok(())
    }

    /// Opens the folder of a file, one component at a time so that no link is followed. Returns the folder and the file's name.
    fn open_parent<'p>(&self, path: &'p str, make: bool) -> io::Result<(OwnedFd, &'p str)> {
        let (folders, name) = path.rsplit_once('/').unwrap_or(("", path));
        let mut folder = self.root.try_clone()?;
        for part in folders.split('/').filter(|part| !part.is_empty()) {
            if make {
                match rustix::fs::mkdirat(&folder, part, Mode::RWXU) {
                    Ok(()) | Err(rustix::io::Errno::EXIST) => {}
                    Err(error) => return Err(error.into()),
                }
            }
            let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            folder = rustix::fs::openat(&folder, part, flags, Mode::empty())?;
        }
        Ok((folder, name))
    }

    pub(super) fn remove(&self, whose: &ConversationFilter, id: &str) -> io::Result<Option<EntryHit>> {
        let marks = self.read_marks()?;
        let Some(path) = path_of(id) else { return Ok(None) };
        let found = self.read(&path).or_else(none_if_absent)?;
        let Some(found) = found.filter(|found| whose.includes_owner(&Self::mark_of(&marks, found).whose))
        else {
            return Ok(None);
        };
        let (folder, name) = self.open_parent(&path, false)?;
        rustix::fs::unlinkat(&folder, name, rustix::fs::AtFlags::empty())?;
        rustix::fs::fsync(&folder)?;
        Ok(Some(Self::entry_hit(&marks, found, None)))
    }
}

fn none_if_absent(error: io::Error) -> io::Result<Option<WorkspaceFile>> {
    // A link in the path, or the file is gone now.
    let errno = rustix::io::Errno::from_io_error(&error);
    match errno {
        Some(
            rustix::io::Errno::NOENT
            | rustix::io::Errno::LOOP
            | rustix::io::Errno::XDEV
            | rustix::io::Errno::NOTDIR,
        ) => Ok(None),
        _ => Err(error),
    }
}

/// Converts a key to a path below the folder. Only plain names are allowed.
fn path_of(key: &str) -> Option<String> {
    let path = Path::new(key);
    let plain = path.components().all(|part| matches!(part, Component::Normal(_)));
    let own = path
        .components()
        .any(|part| part.as_os_str().to_string_lossy().starts_with(".clawk-"));
    (plain && !own && !key.is_empty() && !key.ends_with('/') && key.len() < 1024 && !key.contains('\0'))
        .then(|| key.to_owned())
}

fn by_text(marks: &MarksByPath, files: Vec<WorkspaceFile>, text: &str, limit: usize) -> EntrySearchResult {
    let (mut index, mut matrix) = (Index::default(), PackedVectors::default());
    let query = table::embed_text(text);
    for (n, file) in (0_i64..).zip(&files) {
        if query.is_some()
            && let Some(vector) = table::embed_text(&file.text)
        {
            matrix.add(n, 0, &pack_vector(&vector));
        }
        index.add(n, format!("{} {}", file.path, file.text));
    }
    let words = index.find(text, limit.max(50), |_| true);
    let near = query
        .map(|query| matrix.nearest_rows(&query, limit.max(50), |_| true))
        .unwrap_or_default();
    let near: Vec<(i64, f64)> = near
        .into_iter()
        .filter(|(_, score)| *score >= table::FLOOR)
        .collect();
    let legs = [
        WeightedRanking {
            ranked: &words,
            weight: 1.0,
            scores: ScoreMeaning::Share,
        },
        WeightedRanking {
            ranked: &near,
            weight: table::WEIGHT,
            scores: ScoreMeaning::Order,
        },
    ];
    let mut files: HashMap<i64, WorkspaceFile> = (0_i64..).zip(files).collect();
    let ranked = fuse::by_rank(&legs).into_iter().take(limit);
    let hits = ranked
        .filter_map(|(n, score)| Some(WorkspaceFolder::entry_hit(marks, files.remove(&n)?, Some(score))));
    EntrySearchResult {
        hits: hits.collect(),
        used: Some(SearchMethod::Static),
        ..EntrySearchResult::default()
    }
}
