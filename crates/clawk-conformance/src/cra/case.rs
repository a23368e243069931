//! The test cases in `vectors/cra`.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde::Deserialize;
use serde_json::{Map, Value};

use super::golden::GoldenFolder;

const FILES: [&str; 5] = [
    include_str!("../../../../vectors/cra/carp.json"),
    include_str!("../../../../vectors/cra/messages.json"),
    include_str!("../../../../vectors/cra/policies.json"),
    include_str!("../../../../vectors/cra/trace.json"),
    include_str!("../../../../vectors/cra/http.json"),
];

/// A conformance level; the last two include the ones before them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Level {
    /// Messages, policies, resolutions
    CarpCore,
    /// Events, hash chain, replay, diff
    TraceCore,
    /// Manifests, context, actions
    AtlasCore,
    /// The three above and the golden traces
    CraMinimal,
    /// All of it, with the HTTP API
    CraFull,
}

impl Level {
    /// As the document writes it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::CarpCore => "CARP-Core",
            Self::TraceCore => "TRACE-Core",
            Self::AtlasCore => "Atlas-Core",
            Self::CraMinimal => "CRA-Minimal",
            Self::CraFull => "CRA-Full",
        }
    }

    /// Whether a claim to this level has to pass what belongs to `other`.
    pub const fn includes(self, other: Self) -> bool {
        match self {
            Self::CarpCore => matches!(other, Self::CarpCore),
            Self::TraceCore => matches!(other, Self::TraceCore),
            Self::AtlasCore => matches!(other, Self::AtlasCore),
            Self::CraMinimal => !matches!(other, Self::CraFull),
            Self::CraFull => true,
        }
    }
}

/// One test case.
#[derive(Debug, Clone)]
pub(super) struct CraCase {
    pub(super) test_id: String,
    pub(super) level: Level,
    pub(super) what: CraCaseKind,
}

/// The request and the expected result.
#[derive(Debug, Clone, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum CraCaseKind {
    /// Validates a request by its schema.
    CarpRequest(Document),
    /// Validates a manifest by its schema.
    AtlasManifest(Document),
    /// Validates an event by its schema.
    TraceEvent(Document),
    /// Checks the digest of one event.
    Hash { event: Value, expected_hash: String },
    /// Checks the built-in chain of four events, with changes.
    Chain {
        #[serde(default)]
        changes: Vec<PointerChange>,
        expected: ChainValidity,
        #[serde(default)]
        error: Option<String>,
        #[serde(default)]
        error_at: Option<u64>,
    },
    /// One resolution.
    Resolve {
        atlas: Map<String, Value>,
        request: Map<String, Value>,
        expected: Map<String, Value>,
    },
    /// A resolution and an execution for each step, in one session.
    Sequence {
        atlas: Map<String, Value>,
        sequence: Vec<SequenceStep>,
    },
    /// Compares two traces by meaning.
    Diff {
        trace_a: Vec<Value>,
        trace_b: Vec<Value>,
        expected_diff: Value,
    },
    /// Replays a golden folder's trace against its Atlas, with changes.
    Replay {
        golden: String,
        #[serde(default)]
        atlas_changes: Vec<PointerChange>,
        identical: bool,
    },
    /// Runs a built-in golden folder.
    Golden { golden: String },
    /// Runs a golden folder given by the user.
    #[serde(skip)]
    Folder(GoldenFolder),
    /// Sends requests to the HTTP API.
    Http { steps: Vec<super::http::CraHttpStep> },
}

/// A document, and whether it must be accepted.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Document {
    pub(super) input: Value,
    pub(super) expected: ChainValidity,
    #[serde(default)]
    pub(super) error_path: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub(super) enum ChainValidity {
    Valid,
    Invalid,
}

impl ChainValidity {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Valid => "VALID",
            Self::Invalid => "INVALID",
        }
    }
}

/// Sets the value at a JSON pointer; without a value, removes it.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PointerChange {
    pub(super) pointer: String,
    #[serde(default)]
    pub(super) value: Option<Value>,
    /// The digest of the event that contains it is recomputed.
    #[serde(default)]
    pub(super) reseal: bool,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SequenceStep {
    pub(super) action: String,
    pub(super) expected: String,
    #[serde(default)]
    pub(super) reason: Option<String>,
}

/// The members that all cases have.
#[derive(Deserialize)]
struct CraCaseHead {
    test_id: String,
    #[serde(default)]
    section: String,
}

/// Reads the user's cases: files of cases, folders of such files, golden folders, or folders of these.
///
/// # Errors
/// A file or folder does not have the expected form.
pub(super) fn load_external_cases(cases: &[PathBuf], golden: &[PathBuf]) -> Result<Vec<CraCase>> {
    let mut found = Vec::new();
    for path in cases
        .iter()
        .map(|path| list_files(path, |file| file.extension().is_some_and(|e| e == "json")))
    {
        for file in path? {
            let text =
                fs::read_to_string(&file).with_context(|| format!("can't read `{}`", file.display()))?;
            let given: Value =
                serde_json::from_str(&text).with_context(|| format!("`{}`", file.display()))?;
            let given = match given {
                Value::Array(list) => list,
                one => vec![one],
            };
            for value in given {
                let Value::Object(members) = value else {
                    bail!("`{}`: a case is a JSON object", file.display());
                };
                let (_, case) = read(infer_kind(members)).with_context(|| format!("`{}`", file.display()))?;
                found.push(case);
            }
        }
    }
    let holds_atlas = |path: &Path| path.join("atlas.json").is_file();
    for path in golden {
        let folders = if holds_atlas(path) {
            vec![path.clone()]
        } else {
            list_files(path, holds_atlas)?
        };
        for folder in folders {
            let folder = GoldenFolder::read(&folder)?;
            found.push(CraCase {
                test_id: folder.test_id(),
                level: Level::CraMinimal,
                what: CraCaseKind::Folder(folder),
            });
        }
    }
    Ok(found)
}

/// Returns the path itself, or the matching entries of its folder by name. No match is an error.
fn list_files(path: &Path, wanted: impl Fn(&Path) -> bool) -> Result<Vec<PathBuf>> {
    if path.is_file() {
        return Ok(vec![path.to_owned()]);
    }
    let entries = fs::read_dir(path).with_context(|| format!("can't read `{}`", path.display()))?;
    let mut found: Vec<PathBuf> = Vec::new();
    for entry in entries {
        let entry = entry?.path();
        if wanted(&entry) {
            found.push(entry);
        }
    }
    if found.is_empty() {
        bail!("`{}` holds no case", path.display());
    }
    found.sort();
    Ok(found)
}

/// Adds the `kind` to the document's own cases, derived from their ids (CRA conformance, sections 1, 2 and 6). Members that are
/// only for people are removed.
fn infer_kind(mut members: Map<String, Value>) -> Map<String, Value> {
    members.remove("description");
    let id = members.get("test_id").and_then(Value::as_str).unwrap_or_default();
    let kind = [
        ("schema.carp.request", "carp_request"),
        ("schema.trace.event", "trace_event"),
        ("atlas.manifest", "atlas_manifest"),
        ("replay.diff", "diff"),
    ];
    let kind = kind
        .iter()
        .find(|(start, _)| id.starts_with(start))
        .map(|(_, kind)| *kind);
    if let (Some(kind), false) = (kind, members.contains_key("kind")) {
        members.insert("kind".to_owned(), kind.into());
    }
    members
}

/// Returns all cases in the document's order.
pub(super) fn load_cases() -> Result<Vec<CraCase>> {
    let mut found: Vec<(Vec<u32>, CraCase)> = Vec::new();
    for text in FILES {
        let values: Vec<Map<String, Value>> =
            serde_json::from_str(text).context("vectors/cra is not readable")?;
        for value in values {
            found.push(read(value)?);
        }
    }
    found.sort_by(|a, b| a.0.cmp(&b.0));
    Ok(found.into_iter().map(|(_, case)| case).collect())
}

fn read(mut value: Map<String, Value>) -> Result<(Vec<u32>, CraCase)> {
    let head: CraCaseHead =
        serde_json::from_value(Value::Object(value.clone())).context("a case without a head")?;
    value.remove("test_id");
    value.remove("section");
    let what: CraCaseKind =
        serde_json::from_value(Value::Object(value)).with_context(|| format!("`{}`", head.test_id))?;
    let section = head
        .section
        .split('.')
        .map(|part| part.parse().unwrap_or(u32::MAX)) // silent-ok: what is no number comes last
        .collect();
    let level = required_level(&head.section, &what);
    let test_id = head.test_id;
    Ok((section, CraCase { test_id, level, what }))
}

/// Returns a case's level from the document's table, by section.
fn required_level(section: &str, what: &CraCaseKind) -> Level {
    match what {
        CraCaseKind::Golden { .. } | CraCaseKind::Folder(_) => Level::CraMinimal,
        CraCaseKind::Http { .. } => Level::CraFull,
        CraCaseKind::Hash { .. }
        | CraCaseKind::Chain { .. }
        | CraCaseKind::TraceEvent(_)
        | CraCaseKind::Diff { .. }
        | CraCaseKind::Replay { .. } => Level::TraceCore,
        CraCaseKind::AtlasManifest(_) => Level::AtlasCore,
        CraCaseKind::Resolve { .. } if section.starts_with('6') => Level::AtlasCore,
        CraCaseKind::CarpRequest(_) | CraCaseKind::Resolve { .. } | CraCaseKind::Sequence { .. } => {
            Level::CarpCore
        }
    }
}

/// Applies changes to a document.
pub(super) fn apply_changes(document: &mut Value, changes: &[PointerChange]) -> Result<()> {
    for change in changes {
        let (parent, last) = change
            .pointer
            .rsplit_once('/')
            .context("a pointer starts with `/`")?;
        let holder = document
            .pointer_mut(parent)
            .with_context(|| format!("nothing at `{parent}`"))?;
        match (holder, &change.value) {
            (Value::Object(members), Some(value)) => {
                members.insert(last.to_owned(), value.clone());
            }
            (Value::Object(members), None) => {
                members.remove(last);
            }
            (Value::Array(items), value) => {
                let at: usize = last
                    .parse()
                    .with_context(|| format!("`{last}` is not a valid index"))?;
                match value {
                    Some(value) => items.insert(at.min(items.len()), value.clone()),
                    None if at < items.len() => {
                        items.remove(at);
                    }
                    None => bail!("nothing at `{}`", change.pointer),
                }
            }
            (_, _) => bail!("`{parent}` holds nothing"),
        }
    }
    Ok(())
}
