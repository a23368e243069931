//! One line of `entries.jsonl`: a change, whole or not there.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead as _, BufReader, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::Path;

use clawk_recall::entry::Mark;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The longest line that is read, bytes.
const MAX_LINE_BYTES: u64 = 256 * 1024 * 1024;

/// An entry as it is written.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Kept {
    pub(super) id: String,
    /// RFC 3339.
    pub(super) at: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) key: Option<String>,
    pub(super) content: Value,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) metadata: Option<Value>,
    #[serde(default)]
    pub(super) mark: Mark,
}

/// A change of the store. Everything in it happens, or nothing does.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Line {
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) keep: Vec<Kept>,
    /// Ids of entries that are gone for good.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) gone: Vec<String>,
    /// Ids of entries that are set aside.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) aside: Vec<String>,
    /// The entry that stands for those.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(super) instead: String,
    /// Ids of entries that come back.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) back: Vec<String>,
    /// Vectors: entry, model, the packed bytes in hex.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) vectors: Vec<(String, String, String)>,
}

impl Line {
    pub(super) fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// Makes a folder, private to the user.
pub(super) fn make_folder(folder: &Path) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)
}

/// Opens the file for adding, and reads what is in it. A last line that a crash cut is taken off: it was never acknowledged.
pub(super) fn open(path: &Path) -> io::Result<(File, Vec<Line>)> {
    let mut file = OpenOptions::new()
        .read(true)
        .append(true)
        .create(true)
        .mode(0o600)
        .custom_flags(rustix::fs::OFlags::NOFOLLOW.bits().cast_signed())
        .open(path)?;
    let mut reader = BufReader::new(&file);
    let (mut lines, mut good) = (Vec::new(), 0_u64);
    loop {
        let mut text = Vec::new();
        let read = (&mut reader).take(MAX_LINE_BYTES).read_until(b'\n', &mut text)?;
        if read == 0 || text.last() != Some(&b'\n') {
            break;
        }
        let line = serde_json::from_slice(&text).map_err(|error| {
            let at = lines.len() + 1;
            io::Error::other(format!("`{}`, line {at}: {error}", path.display()))
        })?;
        lines.push(line);
        good += u64::try_from(read).unwrap_or(u64::MAX);
    }
    if file.metadata()?.len() > good {
        file.set_len(good)?;
        file.sync_data()?;
    }
    file.seek(SeekFrom::End(0))?;
    Ok((file, lines))
}

/// Adds a line, durably.
pub(super) fn add(file: &mut File, line: &Line) -> io::Result<()> {
    let mut bytes = serde_json::to_vec(line)?;
    bytes.push(b'\n');
    file.write_all(&bytes)?;
    file.sync_data()
}

/// Writes a file anew, whole or not at all.
pub(super) fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let partial = path.with_extension("new");
    let mut file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
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
