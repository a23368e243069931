//! What of a part is written: its lines anew, and `entries.md` for people.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::OpenOptions;
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;

use super::{MARKDOWN, Part, Row};
use crate::files::line::{self, Kept, Line};

impl Part {
    pub(super) fn written(&self) -> io::Result<(Vec<u8>, String)> {
        let mut all: BTreeMap<i64, (&Row, Option<&String>)> = BTreeMap::new();
        all.extend(self.rows.iter().map(|(n, row)| (*n, (row, None))));
        all.extend(
            self.aside
                .iter()
                .map(|(n, (row, instead))| (*n, (row, Some(instead)))),
        );
        let mut jsonl = Vec::new();
        let mut add = |line: &Line| -> io::Result<()> {
            jsonl.extend(line::bytes(line, self.seals())?);
            Ok(())
        };
        for (row, instead) in all.values() {
            add(&Line {
                keep: vec![row.kept.clone()],
                ..Line::default()
            })?;
            if let Some(instead) = instead {
                add(&Line {
                    aside: vec![row.kept.id.clone()],
                    instead: (*instead).clone(),
                    ..Line::default()
                })?;
            }
        }
        let vectors = self.packed.iter().filter_map(|((model, n), bytes)| {
            let row = self.rows.get(n)?;
            Some((row.kept.id.clone(), model.clone(), hex::encode(bytes)))
        });
        let line = Line {
            vectors: vectors.collect(),
            ..Line::default()
        };
        if !line.is_empty() {
            add(&line)?;
        }
        let live: Vec<Kept> = self.rows.values().map(|row| row.kept.clone()).collect();
        Ok((jsonl, self.markdown(&live)))
    }

    /// Entries for people; nothing of an encrypted store.
    pub(super) fn markdown(&self, kept: &[Kept]) -> String {
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

    pub(super) fn tell(&self, text: &str) -> io::Result<()> {
        if text.is_empty() {
            return Ok(());
        }
        let mut file = OpenOptions::new()
            .append(true)
            .create(true)
            .mode(0o600)
            .open(self.folder.join(MARKDOWN))?;
        file.write_all(text.as_bytes())
    }
}
