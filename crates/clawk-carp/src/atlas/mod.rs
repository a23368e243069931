//! An Atlas: what a manifest says once it has been checked (CRA PROTOCOL §5).

mod check;
mod policy;
mod schema;

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use clawk_proto::carp::{AllowedAction, CarpFault, ContentType, ContextBlock};
use semver::{Version, VersionReq};
use serde_json::{Map, Value, json};

pub(crate) use check::is_atlas_id;
pub use policy::{BudgetParameters, Policy, PolicyConditions, Rule};
pub(crate) use policy::{ConditionFacts, EVERY_TIER, tier_bit};
pub use schema::Schema;

use crate::fault::{FaultCollector, InputFaults, InputPath};
use crate::glob::Pattern;

/// Bounds of one Atlas. What exceeds them is refused.
pub mod bounds {
    /// Bytes of `atlas.json`.
    pub const MANIFEST_BYTES: usize = 32 * 1024 * 1024;
    /// Bytes of one context file.
    pub const FILE_BYTES: u64 = 1024 * 1024;
    /// Bytes of all context files.
    pub const CONTEXT_BYTES: u64 = 16 * 1024 * 1024;
    /// Actions, policies, capabilities.
    pub const ITEMS: usize = 20_000;
    /// Context packs.
    pub const PACKS: usize = 1_000;
    /// Files of a pack.
    pub const FILES: usize = 100;
    /// Patterns of a policy, entries of a condition.
    pub const ENTRIES: usize = 20_000;
    /// Bytes of one JSON Schema as text.
    pub const SCHEMA_BYTES: usize = 256 * 1024;
}

/// The executor of an action.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Executor {
    /// `NAME` or `tool:NAME`: a tool of the agent.
    Tool(Box<str>),
    /// `mcp:SERVER/TOOL`.
    Mcp {
        /// The MCP server's name.
        server: Box<str>,
        /// The tool there.
        tool: Box<str>,
    },
    /// `https://…` or `http://…`.
    Http(Box<str>),
}

/// An action.
#[derive(Debug, Clone)]
pub struct AtlasAction {
    /// What a resolution shows of it.
    pub shown: Arc<AllowedAction>,
    /// Its parameters' schema, compiled.
    pub parameters: Arc<Schema>,
    /// Its results' schema, compiled; without one, every result fits.
    pub returns: Arc<Schema>,
    /// What runs it; absent: a tool of the action's own name.
    pub executor: Option<Executor>,
    /// 1–300.
    pub timeout_seconds: u64,
}

/// A named group of actions.
#[derive(Debug, Clone)]
pub struct Capability {
    /// Its id.
    pub id: Arc<str>,
    /// Ids of actions, or patterns.
    pub(crate) actions: Vec<Pattern>,
    /// Ids of this Atlas's packs.
    pub context_packs: Vec<String>,
}

/// Context that is given when its conditions hold.
#[derive(Debug, Clone)]
pub struct ContextPack {
    /// Its id.
    pub id: Arc<str>,
    /// 0–1000.
    pub priority: u16,
    /// When.
    pub conditions: PolicyConditions,
    /// One per file that is there, within `max_tokens`.
    pub blocks: Vec<Arc<ContextBlock>>,
    files: Vec<String>,
    max_tokens: Option<u64>,
    /// Some capability lists it.
    pub(crate) in_capability: bool,
}

/// A checked Atlas.
#[derive(Debug, Clone)]
pub struct Atlas {
    /// Reverse domain notation.
    pub id: Arc<str>,
    /// Its version.
    pub version: Version,
    /// For people.
    pub name: String,
    /// For people.
    pub description: String,
    /// Groups of actions.
    pub capabilities: Vec<Capability>,
    /// Context, in manifest order.
    pub packs: Vec<ContextPack>,
    /// Policies, in manifest order.
    pub policies: Vec<Arc<Policy>>,
    /// Actions, in manifest order.
    pub actions: Vec<AtlasAction>,
    /// Other Atlases that must be loaded beside it.
    pub dependencies: BTreeMap<String, VersionReq>,
    /// `authors`, `license`, `homepage`, `repository`, `domains`, `adapters`, `metadata` as given.
    pub about: Map<String, Value>,
    /// What is odd but not wrong.
    pub warnings: Vec<CarpFault>,
    /// What it was read from.
    pub source: Arc<AtlasSource>,
}

/// The files of an Atlas, complete enough to read the Atlas again elsewhere.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AtlasSource {
    /// The manifest's text.
    pub manifest: String,
    /// Texts of the context files that are there, by their paths as written.
    pub files: BTreeMap<String, String>,
}

/// The result of reading a context file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ContextFileContent {
    /// Its text.
    Text(String),
    /// It is not there: a warning (R30).
    Missing,
    /// It may not be read, and why: an error.
    Refused(String),
}

impl Atlas {
    /// Reads and checks a manifest; `file` is asked for the text of each context file, by its path as written.
    ///
    /// # Errors
    /// All faults with their pointers.
    pub fn read(
        manifest: &[u8],
        mut file: impl FnMut(&str) -> ContextFileContent,
    ) -> Result<Self, InputFaults> {
        if manifest.len() > bounds::MANIFEST_BYTES {
            let limit = bounds::MANIFEST_BYTES;
            return Err(InputFaults::one(
                "",
                "too_large",
                format!("an Atlas manifest has at most {limit} bytes"),
            ));
        }
        let value = match crate::json::parse(manifest) {
            Ok(value) => value,
            Err(cause) => return Err(InputFaults::one("", "json", format!("no readable JSON: {cause}"))),
        };
        let mut report = FaultCollector::default();
        let atlas = check::manifest(&mut report, &value);
        let atlas = atlas.map(|mut atlas| {
            let mut files = BTreeMap::new();
            atlas.fill(&mut report, &mut |path| {
                let found = file(path);
                if let ContextFileContent::Text(text) = &found {
                    files.insert(path.to_owned(), text.clone());
                }
                found
            });
            atlas.warnings = std::mem::take(&mut report.warnings);
            atlas.source = Arc::new(AtlasSource {
                manifest: String::from_utf8_lossy(manifest).into_owned(),
                files,
            });
            atlas
        });
        report.faults.or(atlas)
    }

    /// An Atlas whose context files are given in memory.
    ///
    /// # Errors
    /// The same errors as [`Self::read`].
    pub fn in_memory(manifest: &[u8], files: &BTreeMap<String, String>) -> Result<Self, InputFaults> {
        Self::read(manifest, |path| {
            files
                .get(path)
                .cloned()
                .map_or(ContextFileContent::Missing, ContextFileContent::Text)
        })
    }

    /// The policies in the order in which they are asked (R29): by type, then high priority first, then as written.
    #[must_use]
    pub fn policies_in_order(&self) -> Vec<&Arc<Policy>> {
        let mut policies: Vec<_> = self.policies.iter().collect();
        policies.sort_by_key(|policy| (policy.rule.class(), std::cmp::Reverse(policy.priority)));
        policies
    }

    /// Makes the blocks of all packs.
    fn fill(&mut self, report: &mut FaultCollector, file: &mut impl FnMut(&str) -> ContextFileContent) {
        let listed: HashSet<&str> = self
            .capabilities
            .iter()
            .flat_map(|capability| capability.context_packs.iter().map(String::as_str))
            .collect();
        let root = InputPath::Root;
        let packs_at = root.key("context_packs");
        for (number, pack) in self.packs.iter_mut().enumerate() {
            pack.in_capability = listed.contains(&*pack.id);
            let pack_at = packs_at.index(number);
            let files_at = pack_at.key("files");
            let mut left = pack.max_tokens;
            for (index, path) in pack.files.iter().enumerate() {
                let at = files_at.index(index);
                match file(path) {
                    ContextFileContent::Text(text) => {
                        let block = block(&self.id, pack, path, text, &mut left, report, &at);
                        pack.blocks.extend(block.map(Arc::new));
                    }
                    ContextFileContent::Missing => {
                        report.warn(
                            &at,
                            "missing_file",
                            format!("`{path}` is not there and yields no context"),
                        );
                    }
                    ContextFileContent::Refused(why) => report.fault(&at, "file", format!("`{path}` {why}")),
                }
            }
        }
    }
}

/// Estimated tokens of a text: bytes over four, rounded up.
#[must_use]
pub fn token_estimate(text: &str) -> u64 {
    u64::try_from(text.len()).unwrap_or(u64::MAX).div_ceil(4)
}

fn content_type(path: &str) -> ContentType {
    match path
        .rsplit_once('.')
        .map(|(_, extension)| extension.to_ascii_lowercase())
        .as_deref()
    {
        Some("md" | "markdown") => ContentType::Markdown,
        Some("json") => ContentType::Json,
        Some(_) | None => ContentType::Plain,
    }
}

/// One file's block. What exceeds the pack's tokens is cut at a line's end; JSON, which cannot be cut, is left out.
fn block(
    source: &Arc<str>,
    pack: &ContextPack,
    path: &str,
    mut text: String,
    left: &mut Option<u64>,
    report: &mut FaultCollector,
    at: &InputPath<'_>,
) -> Option<ContextBlock> {
    let kind = content_type(path);
    let mut metadata = Map::new();
    metadata.insert("source_pack".to_owned(), json!(pack.id));
    metadata.insert("file".to_owned(), json!(path));
    if let Some(left) = left {
        if token_estimate(&text) > *left {
            if kind == ContentType::Json || *left == 0 {
                report.warn(
                    at,
                    "max_tokens",
                    format!("`{path}` does not fit into the pack's `max_tokens` and is left out"),
                );
                return None;
            }
            cut(&mut text, *left);
            if text.is_empty() {
                report.warn(
                    at,
                    "max_tokens",
                    format!("no line of `{path}` fits into the pack's `max_tokens`"),
                );
                return None;
            }
            report.warn(
                at,
                "max_tokens",
                format!("`{path}` is cut to fit into the pack's `max_tokens`"),
            );
            metadata.insert("truncated".to_owned(), json!(true));
        }
        *left = left.saturating_sub(token_estimate(&text));
    }
    Some(ContextBlock {
        block_id: format!("{}/{path}", pack.id),
        source: Arc::clone(source),
        content_type: kind,
        token_estimate: token_estimate(&text),
        content: text,
        priority: pack.priority,
        metadata,
    })
}

/// Whole lines, at most so many tokens; of a first line that is too long, as many characters as fit.
fn cut(text: &mut String, tokens: u64) {
    let most = usize::try_from(tokens.saturating_mul(4))
        .unwrap_or(usize::MAX)
        .min(text.len());
    let end = (0..=most)
        .rev()
        .find(|end| text.is_char_boundary(*end))
        .unwrap_or(0);
    text.truncate(end);
    if let Some(line) = text.rfind('\n') {
        text.truncate(line + 1);
    }
}
