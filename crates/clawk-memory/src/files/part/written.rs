//! Writes a scope's files: rewrites `entries.jsonl`, and updates `entries.md` for people.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;

use clawk_core::ports::MemoryError;

use super::{FolderEntryRow, FolderScopeStore, MARKDOWN};
use crate::files::line::{self, EntryFileStamp, StoreChange, StoredLineEntry};

impl FolderScopeStore {
    /// Whether the file changed since this process's last write: a person or a program edited or replaced it.
    pub(in crate::files) fn was_changed(&self) -> bool {
        let there = EntryFileStamp::of_path(&self.folder.join("entries.jsonl")).ok(); // silent-ok: reading it says why
        self.seen.is_none() || there != self.seen
    }

    /// Updates the file's stamp after `added` bytes were written.
    pub(super) fn refresh_stamp(&mut self, added: u64) {
        let now = EntryFileStamp::of_file(&self.log).ok(); // silent-ok: it is read again then
        let expected = self.seen.map(|seen| seen.length);
        self.seen = now.filter(|now| expected.is_some_and(|before| before + added == now.length));
    }

    pub(super) fn file_contents(&self) -> io::Result<(Vec<u8>, String)> {
        let mut all: BTreeMap<i64, (&FolderEntryRow, Option<&String>)> = BTreeMap::new();
        all.extend(self.rows.iter().map(|(n, row)| (*n, (row, None))));
        all.extend(
            self.aside
                .iter()
                .map(|(n, (row, instead))| (*n, (row, Some(instead)))),
        );
        let mut jsonl = Vec::new();
        let mut number = 0;
        let mut add = |line: &StoreChange| -> io::Result<()> {
            number += 1;
            jsonl.extend(line::line_bytes(line, self.line_seal(), number)?);
            Ok(())
        };
        for (row, instead) in all.values() {
            add(&StoreChange {
                keep: vec![row.kept.clone()],
                ..StoreChange::default()
            })?;
            if let Some(instead) = instead {
                add(&StoreChange {
                    aside: vec![row.kept.id.clone()],
                    instead: (*instead).clone(),
                    ..StoreChange::default()
                })?;
            }
        }
        let vectors = self.packed.iter().filter_map(|((model, n), bytes)| {
            let row = self.rows.get(n)?;
            Some((row.kept.id.clone(), model.clone(), hex::encode(bytes)))
        });
        let line = StoreChange {
            vectors: vectors.collect(),
            ..StoreChange::default()
        };
        if !line.is_empty() {
            add(&line)?;
        }
        let live: Vec<StoredLineEntry> = self.rows.values().map(|row| row.kept.clone()).collect();
        Ok((jsonl, self.render_markdown(&live)))
    }

    /// The Markdown text of these entries; empty for an encrypted store.
    pub(super) fn render_markdown(&self, kept: &[StoredLineEntry]) -> String {
        let mut text = String::new();
        if self.sealed {
            return text;
        }
        for one in kept {
            let key = one
                .key
                .as_ref()
                .map_or_else(String::new, |key| format!(" · `{key}`"));
            let origin = if one.mark.origin.is_empty() {
                "unknown"
            } else {
                &one.mark.origin
            };
            let trust = if one.mark.untrusted { ", untrusted" } else { "" };
            let body = match &one.content {
                serde_json::Value::String(text) => text.clone(),
                other => format!("```json\n{other}\n```"),
            };
            let _ = write!(
                text,
                "## {}{key}\n\n*{} — {origin}{trust}*\n\n{body}\n\n",
                one.at, one.id
            ); // silent-ok: writing to a String
        }
        text
    }

    pub(super) fn append_markdown(&self, text: &str) -> io::Result<()> {
        if text.is_empty() {
            return Ok(());
        }
        let mut file = OpenOptions::new()
            .append(true)
            .create(true)
            .mode(0o600)
            .custom_flags(line::NO_LINK)
            .open(self.folder.join(MARKDOWN))?;
        file.write_all(text.as_bytes())
    }

    /// Rewrites both files without removed entries.
    pub(super) fn rewrite_files(&mut self) -> Result<(), MemoryError> {
        let path = self.folder.join("entries.jsonl");
        let mut lines = 0;
        let mut write = || -> io::Result<File> {
            let (jsonl, text) = self.file_contents()?;
            lines = jsonl.iter().filter(|byte| **byte == b'\n').count();
            line::replace_file(&path, &jsonl)?;
            let markdown = self.folder.join(MARKDOWN);
            match (self.sealed, markdown.exists()) {
                (true, true) => std::fs::remove_file(markdown)?,
                (true, false) => {}
                (false, _) => line::replace_file(&markdown, text.as_bytes())?,
            }
            OpenOptions::new()
                .append(true)
                .custom_flags(line::NO_LINK)
                .open(&path)
        };
        let done = write();
        match done {
            Ok(log) => {
                (self.log, self.dead, self.lines) = (log, 0, lines);
                self.seen = EntryFileStamp::of_file(&self.log).ok(); // silent-ok: it is read again then
                let live: Vec<i64> = self.rows.keys().copied().collect();
                self.packed.retain(|(_, n), _| live.binary_search(n).is_ok());
                Ok(())
            }
            Err(error) => {
                self.broken = true;
                Err(self.write_error(&error))
            }
        }
    }
}
