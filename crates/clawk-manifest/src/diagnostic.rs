//! Diagnostics: what is wrong with a manifest, where, and how to fix it.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Serialize;

use crate::tree::{Location, Node};

/// The severity of a diagnostic.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// The manifest is refused.
    Error,
    /// The manifest works, but perhaps not as its author expects.
    Warning,
}

/// One finding. On the wire: `path`, `message`, `code`, `line`, `column`, `file`, `help`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Diagnostic {
    /// The severity.
    #[serde(skip)]
    pub severity: Severity,
    /// JSON pointer in its file.
    pub path: String,
    /// What is wrong.
    pub message: String,
    /// The finding's stable name, kebab-case.
    pub code: &'static str,
    /// The line, from 1; absent for manifests from the wire.
    pub line: Option<u32>,
    /// The column, from 1, in characters.
    pub column: Option<u32>,
    /// The file's path in the manifest or on the command line; absent for manifests from the wire.
    pub file: Option<PathBuf>,
    /// How to fix it.
    pub help: Option<String>,
    /// Byte range in the file.
    #[serde(skip)]
    pub span: Option<Range<usize>>,
}

impl Diagnostic {
    /// An error without a position in a file.
    #[must_use]
    pub fn error(code: &'static str, path: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            severity: Severity::Error,
            path: path.into(),
            message: message.into(),
            code,
            line: None,
            column: None,
            file: None,
            help: None,
            span: None,
        }
    }

    /// A warning without a position in a file.
    #[must_use]
    pub fn warning(code: &'static str, path: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            severity: Severity::Warning,
            ..Self::error(code, path, message)
        }
    }

    /// Adds advice how to fix it.
    #[must_use]
    pub fn with_help(mut self, help: impl Into<String>) -> Self {
        self.help = Some(help.into());
        self
    }

    pub(crate) fn with_location(mut self, place: Option<Location>) -> Self {
        if let Some(place) = place {
            self.line = Some(place.line);
            self.column = Some(place.column);
            self.span = Some(place.start..place.end);
        }
        self
    }

    pub(crate) fn at_node(self, node: &Node) -> Self {
        self.with_location(node.place)
    }
}

/// The text of each file that was read, for rendering, and the folders in which patterns were searched.
#[derive(Debug, Clone, Default)]
pub struct SourceFiles {
    files: Vec<(PathBuf, Arc<str>)>,
    folders: Vec<PathBuf>,
}

impl SourceFiles {
    /// The text of this file, if it was read.
    #[must_use]
    pub fn text(&self, file: &Path) -> Option<&str> {
        self.files
            .iter()
            .find(|(path, _)| path == file)
            .map(|(_, text)| &**text)
    }

    /// The files read, in order.
    pub fn files(&self) -> impl Iterator<Item = &Path> {
        self.files.iter().map(|(path, _)| path.as_path())
    }

    /// The folders in which patterns were searched. A new file there is found at the next load.
    pub fn folders(&self) -> impl Iterator<Item = &Path> {
        self.folders.iter().map(PathBuf::as_path)
    }

    pub(crate) fn looked_into(&mut self, folder: PathBuf) {
        self.folders.push(folder);
    }

    pub(crate) fn add_file(&mut self, path: PathBuf, text: Arc<str>) {
        self.files.push((path, text));
    }
}

/// The findings about one file.
#[derive(Debug, Default)]
pub(crate) struct FileFindings {
    pub(crate) file: Option<PathBuf>,
    pub(crate) list: Vec<Diagnostic>,
    errors: usize,
    warnings: usize,
}

impl FileFindings {
    /// The largest number of errors kept per file, and of warnings; nobody reads more. Both are counted separately, so that
    /// warnings can't hide an error.
    const MOST: usize = 500;

    pub(crate) fn for_file(file: Option<PathBuf>) -> Self {
        Self {
            file,
            ..Self::default()
        }
    }

    /// Whether no more errors are kept.
    pub(crate) fn is_full(&self) -> bool {
        self.errors >= Self::MOST
    }

    pub(crate) fn push(&mut self, mut diagnostic: Diagnostic) {
        let count = match diagnostic.severity {
            Severity::Error => &mut self.errors,
            Severity::Warning => &mut self.warnings,
        };
        if *count < Self::MOST {
            *count += 1;
            diagnostic.file = self.file.clone();
            self.list.push(diagnostic);
        }
    }
}

/// The largest number of words considered for a suggestion; a manifest may declare thousands.
const MOST_CANDIDATES: usize = 256;

/// The known word nearest to `word` by edit distance, if it is near enough to be meant.
pub(crate) fn did_you_mean<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    if word.len() > 64 {
        return None;
    }
    let folded = word.to_lowercase().replace('_', "-");
    let limit = (word.chars().count() / 3).clamp(1, 3);
    known
        .into_iter()
        .take(MOST_CANDIDATES)
        .map(|candidate| {
            (
                edit_distance(&folded, &candidate.to_lowercase().replace('_', "-")),
                candidate,
            )
        })
        .filter(|(distance, _)| *distance <= limit)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// The edit distance: insertions, deletions, replacements and swaps of neighbours.
fn edit_distance(left: &str, right: &str) -> usize {
    let (left, right): (Vec<char>, Vec<char>) = (left.chars().collect(), right.chars().collect());
    let mut before: Vec<usize> = Vec::new();
    let mut row: Vec<usize> = (0..=right.len()).collect();
    for (i, a) in left.iter().enumerate() {
        let mut next = Vec::with_capacity(row.len());
        next.push(i + 1);
        for (j, b) in right.iter().enumerate() {
            let cell = |row: &[usize], at: usize| row.get(at).copied().unwrap_or(usize::MAX / 2);
            let mut best = (cell(&row, j) + usize::from(a != b))
                .min(cell(&row, j + 1) + 1)
                .min(cell(&next, j) + 1);
            let swapped = i > 0 && j > 0 && left.get(i - 1) == Some(b) && right.get(j - 1) == Some(a);
            if swapped {
                best = best.min(cell(&before, j - 1) + 1);
            }
            next.push(best);
        }
        before = std::mem::replace(&mut row, next);
    }
    row.last().copied().unwrap_or_default()
}

/// Text from the manifest for a message: shortened and in backticks.
pub(crate) fn quote_text(text: &str) -> String {
    let mut short: String = text
        .chars()
        .take(80)
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect();
    if text.chars().nth(80).is_some() {
        short.push('…');
    }
    format!("`{short}`")
}
