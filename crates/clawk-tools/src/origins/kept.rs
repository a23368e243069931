//! The provenance record: one line of JSON for each fact, in order.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::undo::RecordedPath;

/// The record's file name.
const FILE: &str = "marks.jsonl";
/// How many outdated lines the record may have before a start rewrites it.
const MAX_OLD_LINES: usize = 1000;
/// How many separate time spans are kept.
const MAX_SPANS: usize = 256;
/// The resolution of file system time stamps, in nanoseconds.
const COARSE_NS: i64 = 1_000_000_000;

/// Where a call may write.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct WriteScope {
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) places: Vec<RecordedPath>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) trees: Vec<RecordedPath>,
}

impl WriteScope {
    fn contains_path(&self, path: &Path) -> bool {
        self.places.iter().any(|place| place.path() == path)
            || self.trees.iter().any(|tree| path.starts_with(tree.path()))
    }
}

/// One line of the record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub(super) enum ProvenanceLine {
    /// A call begins that may write there.
    Begun {
        call: String,
        #[serde(rename = "where")]
        at: WriteScope,
        origins: BTreeSet<String>,
        since_ns: i64,
    },
    /// The call has ended; the lines before this one record what it wrote.
    Ended { call: String },
    /// This content is made from these origins.
    Holds {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        place: Option<RecordedPath>,
        digest: String,
        size: u64,
        origins: BTreeSet<String>,
        /// Fingerprints of the new wording; `None`: the content is known only by its digest.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        prints: Option<BTreeSet<u32>>,
    },
    /// Every file under `place` that was changed in this interval counts as tainted, because the files could not be checked one by
    /// one.
    Within {
        #[serde(rename = "where")]
        at: WriteScope,
        origins: BTreeSet<String>,
        since_ns: i64,
        until_ns: i64,
    },
    /// A call with these origins chose this entry's name, link target or attributes.
    Named {
        place: RecordedPath,
        origins: BTreeSet<String>,
    },
    /// The file was completely rewritten from text without such origins.
    Clean { place: RecordedPath },
}

/// What is recorded about a marked file.
#[derive(Debug, Clone, Default)]
pub(super) struct MarkedFile {
    pub(super) digest: String,
    pub(super) size: u64,
    pub(super) origins: BTreeSet<String>,
    /// Fingerprints of the wording; `None`: it is not text.
    pub(super) prints: Option<BTreeSet<u32>>,
}

/// A time span in which all changes at a place count as tainted.
#[derive(Debug, Clone)]
struct Span {
    at: WriteScope,
    origins: BTreeSet<String>,
    since_ns: i64,
    until_ns: Option<i64>,
}

impl Span {
    fn contains_change(&self, path: &Path, changed_ns: i64) -> bool {
        changed_ns >= self.since_ns.saturating_sub(COARSE_NS)
            && self
                .until_ns
                .is_none_or(|until| changed_ns <= until.saturating_add(COARSE_NS))
            && self.at.contains_path(path)
    }
}

/// All recorded facts.
#[derive(Debug, Default)]
pub(super) struct ProvenanceIndex {
    contents: HashMap<String, (u64, BTreeSet<String>)>,
    sizes: HashSet<u64>,
    places: BTreeMap<PathBuf, MarkedFile>,
    names: BTreeMap<PathBuf, BTreeSet<String>>,
    spans: Vec<Span>,
    open: BTreeMap<String, Span>,
}

impl ProvenanceIndex {
    pub(super) fn apply_line(&mut self, line: ProvenanceLine) {
        match line {
            ProvenanceLine::Begun {
                call,
                at,
                origins,
                since_ns,
            } => {
                let span = Span {
                    at,
                    origins,
                    since_ns,
                    until_ns: None,
                };
                self.open.insert(call, span);
            }
            ProvenanceLine::Ended { call } => {
                self.open.remove(&call);
            }
            ProvenanceLine::Holds {
                place,
                digest,
                size,
                origins,
                prints,
            } => {
                self.sizes.insert(size);
                let known = self
                    .contents
                    .entry(digest.clone())
                    .or_insert_with(|| (size, BTreeSet::new()));
                known.1.extend(origins.iter().cloned());
                if let Some(place) = place {
                    let held = MarkedFile {
                        digest,
                        size,
                        origins,
                        prints,
                    };
                    self.places.insert(place.path(), held);
                }
            }
            ProvenanceLine::Within {
                at,
                origins,
                since_ns,
                until_ns,
            } => {
                self.spans.push(Span {
                    at,
                    origins,
                    since_ns,
                    until_ns: Some(until_ns),
                });
                self.join_spans();
            }
            ProvenanceLine::Named { place, origins } => {
                self.names.entry(place.path()).or_default().extend(origins);
            }
            ProvenanceLine::Clean { place } => {
                self.places.remove(&place.path());
            }
        }
    }

    /// If there are too many spans, merges the oldest with the next span of the same place, or else with the next span, which then
    /// covers the whole machine.
    fn join_spans(&mut self) {
        if self.spans.len() <= MAX_SPANS {
            return;
        }
        let oldest = self.spans.remove(0);
        let same = self.spans.iter().position(|span| span.at == oldest.at);
        let Some(next) = self.spans.get_mut(same.unwrap_or(0)) else {
            return;
        };
        if next.at != oldest.at {
            next.at = WriteScope {
                places: Vec::new(),
                trees: vec![RecordedPath::new(Path::new("/"))],
            };
        }
        next.origins.extend(oldest.origins);
        next.since_ns = next.since_ns.min(oldest.since_ns);
        next.until_ns = next.until_ns.max(oldest.until_ns);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.contents.is_empty() && self.names.is_empty() && self.spans.is_empty() && self.open.is_empty()
    }

    /// The origins of a file by its modification time alone.
    pub(super) fn by_time(&self, path: &Path, changed_ns: i64) -> BTreeSet<String> {
        let spans = self.spans.iter().chain(self.open.values());
        let holding = spans.filter(|span| span.contains_change(path, changed_ns));
        holding.flat_map(|span| span.origins.iter().cloned()).collect()
    }

    /// Whether a content of this size is recorded.
    pub(super) fn has_size(&self, size: u64) -> bool {
        self.sizes.contains(&size)
    }

    /// The origins of all contents of this size.
    pub(super) fn of_size(&self, size: u64) -> BTreeSet<String> {
        let contents = self.contents.values().filter(|(known, _)| *known == size);
        contents
            .flat_map(|(_, origins)| origins.iter().cloned())
            .collect()
    }

    /// The origins of an entry's name and attributes.
    pub(super) fn of_name(&self, path: &Path) -> Option<&BTreeSet<String>> {
        self.names.get(path)
    }

    pub(super) fn of_content(&self, digest: &str) -> Option<&BTreeSet<String>> {
        self.contents.get(digest).map(|(_, origins)| origins)
    }

    pub(super) fn file_at(&self, path: &Path) -> Option<&MarkedFile> {
        self.places.get(path)
    }

    /// Marked files whose paths end like this.
    pub(super) fn files_ending_with<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a MarkedFile> {
        let named = self
            .places
            .iter()
            .filter(move |(path, _)| !name.is_empty() && path.ends_with(name));
        named.map(|(_, held)| held)
    }

    /// All recorded origins.
    pub(super) fn all_origins(&self) -> BTreeSet<String> {
        let contents = self.contents.values().map(|(_, origins)| origins);
        let spans = self.spans.iter().chain(self.open.values());
        contents
            .chain(self.names.values())
            .chain(spans.map(|span| &span.origins))
            .flatten()
            .cloned()
            .collect()
    }

    /// Calls that began in an earlier run and have no end: all changes there until now may be theirs.
    fn cut_off(&mut self, now_ns: i64) -> Vec<ProvenanceLine> {
        let open = std::mem::take(&mut self.open);
        let spans = open.into_values().map(|span| ProvenanceLine::Within {
            at: span.at,
            origins: span.origins,
            since_ns: span.since_ns,
            until_ns: now_ns,
        });
        spans.collect()
    }

    fn lines(&self) -> impl Iterator<Item = ProvenanceLine> {
        let contents = self
            .contents
            .iter()
            .map(|(digest, (size, origins))| ProvenanceLine::Holds {
                place: None,
                digest: digest.clone(),
                size: *size,
                origins: origins.clone(),
                prints: None,
            });
        let places = self.places.iter().map(|(path, held)| ProvenanceLine::Holds {
            place: Some(RecordedPath::new(path)),
            digest: held.digest.clone(),
            size: held.size,
            origins: held.origins.clone(),
            prints: held.prints.clone(),
        });
        let spans = self.spans.iter().map(|span| ProvenanceLine::Within {
            at: span.at.clone(),
            origins: span.origins.clone(),
            since_ns: span.since_ns,
            until_ns: span.until_ns.unwrap_or(i64::MAX),
        });
        let names = self.names.iter().map(|(path, origins)| ProvenanceLine::Named {
            place: RecordedPath::new(path),
            origins: origins.clone(),
        });
        contents.chain(places).chain(names).chain(spans)
    }

    fn len(&self) -> usize {
        self.contents.len() + self.places.len() + self.names.len() + self.spans.len()
    }
}

/// The record's file and its content.
#[derive(Debug)]
pub(super) struct ProvenanceLog {
    folder: PathBuf,
    file: Option<File>,
    pub(super) known: ProvenanceIndex,
}

impl ProvenanceLog {
    /// Reads the record. The folder is created at the first write.
    pub(super) fn open(folder: PathBuf, now_ns: i64) -> io::Result<Self> {
        let path = folder.join(FILE);
        let mut known = ProvenanceIndex::default();
        let mut count = 0;
        match File::open(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
            Ok(file) => {
                for line in BufReader::new(file).split(b'\n') {
                    let line = line?;
                    if line.is_empty() {
                        continue;
                    }
                    // A crash may have cut the last line: what it announces had not begun.
                    if let Ok(line) = serde_json::from_slice(&line) {
                        known.apply_line(line);
                        count += 1;
                    }
                }
            }
        }
        let mut record = Self {
            folder,
            file: None,
            known,
        };
        let cut_off = record.known.cut_off(now_ns);
        let is_old = count > record.known.len() * 2 + MAX_OLD_LINES;
        for line in &cut_off {
            record.known.apply_line(line.clone());
        }
        if is_old || !cut_off.is_empty() {
            record.write_anew()?;
        }
        Ok(record)
    }

    fn write_anew(&mut self) -> io::Result<()> {
        let mut bytes = Vec::new();
        for line in self.known.lines() {
            serde_json::to_writer(&mut bytes, &line)?;
            bytes.push(b'\n');
        }
        let (new, path) = (self.folder.join("marks.new"), self.folder.join(FILE));
        let mut file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&new)?;
        file.write_all(&bytes)?;
        file.sync_all()?;
        fs::rename(&new, &path)?;
        File::open(&self.folder)?.sync_all()
    }

    /// Appends lines durably.
    pub(super) fn add_lines(&mut self, lines: Vec<ProvenanceLine>) -> io::Result<()> {
        if lines.is_empty() {
            return Ok(());
        }
        let mut bytes = Vec::new();
        for line in &lines {
            serde_json::to_writer(&mut bytes, line)?;
            bytes.push(b'\n');
        }
        let file = match &mut self.file {
            Some(file) => file,
            None => {
                DirBuilder::new()
                    .recursive(true)
                    .mode(0o700)
                    .create(&self.folder)?;
                let file = OpenOptions::new()
                    .append(true)
                    .create(true)
                    .mode(0o600)
                    .open(self.folder.join(FILE))?;
                // Ends a line that a crash cut.
                if file.metadata()?.len() > 0 {
                    bytes.insert(0, b'\n');
                } else {
                    File::open(&self.folder)?.sync_all()?;
                }
                self.file.insert(file)
            }
        };
        file.write_all(&bytes)?;
        file.sync_data()?;
        for line in lines {
            self.known.apply_line(line);
        }
        Ok(())
    }
}
