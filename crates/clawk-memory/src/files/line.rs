//! One line of `entries.jsonl`: a change that is written completely or not at all.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead as _, BufReader, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::sync::Arc;

use clawk_recall::entry::EntryProvenance;
use clawk_recall::seal::{SealError, SealKeyring, is_sealed_text};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The longest line that is read, bytes.
const MAX_LINE_BYTES: u64 = 256 * 1024 * 1024;

/// Opens a file without following a link.
pub(super) const NO_LINK: i32 = rustix::fs::OFlags::NOFOLLOW.bits().cast_signed();

/// An entry in the form in which it is written.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct StoredLineEntry {
    pub(super) id: String,
    /// The time, RFC 3339.
    pub(super) at: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) key: Option<String>,
    pub(super) content: Value,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) metadata: Option<Value>,
    #[serde(default)]
    pub(super) mark: EntryProvenance,
}

/// A change of the store. It is applied completely or not at all.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct StoreChange {
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) keep: Vec<StoredLineEntry>,
    /// Ids of entries that are removed permanently.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) gone: Vec<String>,
    /// Ids of entries that are set aside.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) aside: Vec<String>,
    /// The id of the entry that replaces those in `aside`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(super) instead: String,
    /// Ids of entries that are restored.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) back: Vec<String>,
    /// Vectors, each with the entry's id, the model, and the packed bytes in hex.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) vectors: Vec<(String, String, String)>,
}

impl StoreChange {
    pub(super) fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// Makes a folder that only the user can access.
pub(super) fn make_folder(folder: &Path) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)
}

/// Returns an error if a folder between `base` and `folder` is a link. Through a link, files would be written to another place.
pub(super) fn refuse_links(base: &Path, folder: &Path) -> io::Result<()> {
    for place in folder.ancestors().take_while(|place| *place != base) {
        if fs::symlink_metadata(place).is_ok_and(|facts| facts.is_symlink()) {
            let why = format!(
                "`{}` is a link, and a folder of entries must not be one",
                place.display()
            );
            return Err(io::Error::other(why));
        }
    }
    Ok(())
}

/// Seals and opens the lines of one scope of a store.
#[derive(Debug, Clone)]
pub(super) struct LineSeal {
    vault: Arc<SealKeyring>,
    place: String,
}

impl LineSeal {
    pub(super) fn new(vault: Arc<SealKeyring>, store: &str, scope: &str) -> Self {
        Self {
            vault,
            place: format!("line/{store}/{scope}"),
        }
    }

    /// The place that a line is bound to. It contains the line's number, so that lines can't be exchanged, duplicated or removed.
    /// Only removing lines at the end is not detected.
    fn seal_place(&self, number: usize) -> String {
        format!("{}/{number}", self.place)
    }

    fn open_line(&self, number: usize, text: &str) -> Result<Option<String>, SealError> {
        self.vault.open_text(&self.seal_place(number), text)
    }
}

/// The parsed content of a file.
#[derive(Debug)]
pub(super) struct EntryFileContent {
    pub(super) file: File,
    pub(super) lines: Vec<StoreChange>,
    /// Whether any line is sealed.
    pub(super) sealed: bool,
    /// Whether any line is not sealed with the current key.
    pub(super) stale: bool,
}

fn parse_line(path: &Path, number: usize, text: &str, closed: Option<&LineSeal>) -> io::Result<StoreChange> {
    let fault = |error: String| io::Error::other(format!("`{}`, line {number}: {error}", path.display()));
    let opened = match closed {
        _ if !is_sealed_text(text) => None,
        Some(closed) => closed
            .open_line(number, text)
            .map_err(|error| fault(error.to_string()))?,
        None => return Err(fault(MISSING.to_owned())),
    };
    serde_json::from_str(opened.as_deref().unwrap_or(text)).map_err(|error| fault(error.to_string()))
}

/// Whether this is a complete line that only lacks its newline. A sealed line never counts as complete, because a cut would not be
/// visible.
fn is_line(text: &[u8]) -> bool {
    serde_json::from_slice::<StoreChange>(text).is_ok()
}

/// The message for a sealed line without a key.
const MISSING: &str = "it is encrypted, and its key is not given: `[memory] encryption_key`";

/// Whether the file is sealed. Checks the first line, which must open with the given key.
pub(super) fn is_sealed(path: &Path, closed: Option<&LineSeal>) -> io::Result<bool> {
    let file = match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        other => other?,
    };
    let mut text = String::new();
    BufReader::new(file).take(MAX_LINE_BYTES).read_line(&mut text)?;
    let Some(text) = text.strip_suffix('\n').filter(|text| is_sealed_text(text)) else {
        return Ok(false);
    };
    parse_line(path, 1, text, closed).map(|_| true)
}

/// The identity and the state of a file. If another process writes the file, the stamp changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct EntryFileStamp {
    device: u64,
    inode: u64,
    pub(super) length: u64,
    modified: (i64, i64),
}

impl EntryFileStamp {
    fn from_metadata(facts: &fs::Metadata) -> Self {
        Self {
            device: facts.dev(),
            inode: facts.ino(),
            length: facts.len(),
            modified: (facts.mtime(), facts.mtime_nsec()),
        }
    }

    /// The stamp of an open file.
    pub(super) fn of_file(file: &File) -> io::Result<Self> {
        Ok(Self::from_metadata(&file.metadata()?))
    }

    /// The stamp of the file that is at the path now. Links are not followed.
    pub(super) fn of_path(path: &Path) -> io::Result<Self> {
        Ok(Self::from_metadata(&fs::symlink_metadata(path)?))
    }
}

/// Reads the file and opens it for appending. If a crash cut the last line, the line is removed: it was never acknowledged. If only
/// the newline is missing, as after some editors, it is added.
pub(super) fn open_file(path: &Path, closed: Option<&LineSeal>) -> io::Result<EntryFileContent> {
    let mut file = OpenOptions::new()
        .read(true)
        .append(true)
        .create(true)
        .mode(0o600)
        .custom_flags(NO_LINK | rustix::fs::OFlags::NONBLOCK.bits().cast_signed())
        .open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other(format!(
            "`{}` is not a plain file",
            path.display()
        )));
    }
    let mut reader = BufReader::new(&file);
    let (mut lines, mut good) = (Vec::new(), 0_u64);
    let (mut sealed, mut stale) = (false, false);
    loop {
        let mut text = Vec::new();
        let read = (&mut reader).take(MAX_LINE_BYTES).read_until(b'\n', &mut text)?;
        if read == 0 {
            break;
        }
        let whole = text.pop_if(|byte| *byte == b'\n').is_some();
        if !whole && u64::try_from(read).is_ok_and(|read| read >= MAX_LINE_BYTES) {
            return Err(io::Error::other(format!(
                "`{}`, line {}: it has more than {MAX_LINE_BYTES} bytes",
                path.display(),
                lines.len() + 1
            )));
        }
        if !whole && !is_line(&text) {
            break;
        }
        let text = String::from_utf8(text).map_err(io::Error::other)?;
        let line = parse_line(path, lines.len() + 1, &text, closed)?;
        if !lines.is_empty() && is_sealed_text(&text) != sealed {
            return Err(io::Error::other(format!(
                "`{}`, line {}: only some lines are encrypted, so it was not written by clawk alone",
                path.display(),
                lines.len() + 1
            )));
        }
        sealed |= is_sealed_text(&text);
        stale |= !closed.is_some_and(|closed| closed.vault.is_current_text(&text));
        lines.push(line);
        good += u64::try_from(read).unwrap_or(u64::MAX);
        if !whole {
            (&file).write_all(b"\n")?;
            file.sync_data()?;
            good += 1;
            break;
        }
    }
    if file.metadata()?.len() > good {
        file.set_len(good)?;
        file.sync_data()?;
    }
    file.seek(SeekFrom::End(0))?;
    Ok(EntryFileContent {
        file,
        lines,
        sealed,
        stale,
    })
}

/// The bytes of a line with its newline. `number` is the line number, counted from 1.
pub(super) fn line_bytes(
    line: &StoreChange,
    closed: Option<&LineSeal>,
    number: usize,
) -> io::Result<Vec<u8>> {
    let mut text = serde_json::to_string(line)?;
    if let Some(closed) = closed {
        let sealed = closed.vault.seal_text(&closed.seal_place(number), &text);
        text = sealed.map_err(io::Error::other)?;
    }
    text.push('\n');
    Ok(text.into_bytes())
}

/// Appends a line durably. Returns the number of bytes.
pub(super) fn append_line(
    file: &mut File,
    line: &StoreChange,
    closed: Option<&LineSeal>,
    number: usize,
) -> io::Result<u64> {
    let bytes = line_bytes(line, closed, number)?;
    file.write_all(&bytes)?;
    file.sync_data()?;
    Ok(u64::try_from(bytes.len()).unwrap_or(u64::MAX))
}

/// Replaces a file atomically: completely or not at all.
pub(super) fn replace_file(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let partial = path.with_extension("new");
    // Remove an old partial file first: it may be a link to another user's file.
    match fs::remove_file(&partial) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        Ok(()) | Err(_) => {}
    }
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&partial)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&partial, path)?;
    match path.parent() {
        Some(folder) => File::open(folder)?.sync_all(),
        None => Ok(()),
    }
}
