//! A checked Atlas (CRA PROTOCOL §5).

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

/// The limits of one Atlas. An Atlas above a limit is refused.
pub mod bounds {
    /// The largest `atlas.json`, bytes.
    pub const MANIFEST_BYTES: usize = 32 * 1024 * 1024;
    /// The largest context file, bytes.
    pub const FILE_BYTES: u64 = 1024 * 1024;
    /// The largest total size of context files, bytes.
    pub const CONTEXT_BYTES: u64 = 16 * 1024 * 1024;
    /// The largest number of actions, of policies and of capabilities.
    pub const ITEMS: usize = 20_000;
    /// The largest number of context packs.
    pub const PACKS: usize = 1_000;
    /// The largest number of files in a pack.
    pub const FILES: usize = 100;
    /// The largest number of patterns in a policy, and of entries in a condition.
    pub const ENTRIES: usize = 20_000;
    /// The largest JSON Schema, bytes of text.
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
        /// The tool's name at the server.
        tool: Box<str>,
    },
    /// `https://…` or `http://…`.
    Http(Box<str>),
}

/// An action.
#[derive(Debug, Clone)]
pub struct AtlasAction {
    /// The action as a resolution shows it.
    pub shown: Arc<AllowedAction>,
    /// The compiled schema of its parameters.
    pub parameters: Arc<Schema>,
    /// The compiled schema of its results; without a schema, every result is valid.
    pub returns: Arc<Schema>,
    /// The executor; `None`: a tool with the action's name.
    pub executor: Option<Executor>,
    /// The time limit, 1–300 seconds.
    pub timeout_seconds: u64,
}

/// A named group of actions.
#[derive(Debug, Clone)]
pub struct Capability {
    /// Its id.
    pub id: Arc<str>,
    /// Ids or patterns of actions.
    pub(crate) actions: Vec<Pattern>,
    /// Ids of context packs in this Atlas.
    pub context_packs: Vec<String>,
}

/// A context pack: included if its conditions hold.
#[derive(Debug, Clone)]
pub struct ContextPack {
    /// Its id.
    pub id: Arc<str>,
    /// The priority, 0–1000.
    pub priority: u16,
    /// When the pack is included.
    pub conditions: PolicyConditions,
    /// One block per existing file, within `max_tokens`.
    pub blocks: Vec<Arc<ContextBlock>>,
    files: Vec<String>,
    max_tokens: Option<u64>,
    /// A capability lists the pack.
    pub(crate) in_capability: bool,
}

/// A checked Atlas.
#[derive(Debug, Clone)]
pub struct Atlas {
    /// The id, in reverse domain notation.
    pub id: Arc<str>,
    /// Its version.
    pub version: Version,
    /// The name, for people.
    pub name: String,
    /// The description, for people.
    pub description: String,
    /// The capabilities: groups of actions.
    pub capabilities: Vec<Capability>,
    /// The context packs, in manifest order.
    pub packs: Vec<ContextPack>,
    /// The policies, in manifest order.
    pub policies: Vec<Arc<Policy>>,
    /// The actions, in manifest order.
    pub actions: Vec<AtlasAction>,
    /// Other Atlases that must be loaded too, with their versions.
    pub dependencies: BTreeMap<String, VersionReq>,
    /// `authors`, `license`, `homepage`, `repository`, `domains`, `adapters`, `metadata` as given.
    pub about: Map<String, Value>,
    /// Things that are unusual but not wrong.
    pub warnings: Vec<CarpFault>,
    /// The files that it was read from.
    pub source: Arc<AtlasSource>,
}

/// The files of an Atlas. They are enough to read the Atlas again elsewhere.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AtlasSource {
    /// The manifest's text.
    pub manifest: String,
    /// The texts of the existing context files, by their paths as written.
    pub files: BTreeMap<String, String>,
}

/// The result of reading a context file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ContextFileContent {
    /// Its text.
    Text(String),
    /// The file does not exist: a warning (R30).
    Missing,
    /// The file must not be read: an error with the reason.
    Refused(String),
}

impl Atlas {
    /// Reads and checks a manifest. `file` returns the text of each context file, by its path as written.
    ///
    /// # Errors
    /// All faults with their pointers.
    pub fn read(
        manifest: &[u8],
        mut file: impl FnMut(&str) -> ContextFileContent,
    ) -> Result<Self, InputFaults> {
        if manifest.len() > bounds::MANIFEST_BYTES {
            let limit = bounds::MANIFEST_BYTES;
            return Err(InputFaults::single_fault(
                "",
                "too_large",
                format!("an Atlas manifest has at most {limit} bytes"),
            ));
        }
        let value = match crate::json::parse(manifest) {
            Ok(value) => value,
            Err(cause) => {
                return Err(InputFaults::single_fault(
                    "",
                    "json",
                    format!("no readable JSON: {cause}"),
                ));
            }
        };
        let mut report = FaultCollector::default();
        let atlas = check::read_manifest(&mut report, &value);
        let atlas = atlas.map(|mut atlas| {
            let mut files = BTreeMap::new();
            atlas.fill_context_blocks(&mut report, &mut |path| {
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
        report.faults.into_result(atlas)
    }

    /// Reads an Atlas whose context files are in memory.
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

    /// The policies in evaluation order (R29): by type, then highest priority first, then as written.
    #[must_use]
    pub fn policies_in_order(&self) -> Vec<&Arc<Policy>> {
        let mut policies: Vec<_> = self.policies.iter().collect();
        policies.sort_by_key(|policy| (policy.rule.evaluation_class(), std::cmp::Reverse(policy.priority)));
        policies
    }

    /// Builds the blocks of all packs.
    fn fill_context_blocks(
        &mut self,
        report: &mut FaultCollector,
        file: &mut impl FnMut(&str) -> ContextFileContent,
    ) {
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
                        let block = context_block(&self.id, pack, path, text, &mut left, report, &at);
                        pack.blocks.extend(block.map(Arc::new));
                    }
                    ContextFileContent::Missing => {
                        report.add_warning(
                            &at,
                            "missing_file",
                            format!("`{path}` is not there and yields no context"),
                        );
                    }
                    ContextFileContent::Refused(why) => {
                        report.add_fault(&at, "file", format!("`{path}` {why}"))
                    }
                }
            }
        }
    }
}

/// The estimated number of tokens of a text: bytes divided by four, rounded up.
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

/// Builds the block of one file. Text above the pack's token limit is cut at a line's end; JSON can't be cut and is left out.
fn context_block(
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
                report.add_warning(
                    at,
                    "max_tokens",
                    format!("`{path}` does not fit into the pack's `max_tokens` and is left out"),
                );
                return None;
            }
            truncate_lines(&mut text, *left);
            if text.is_empty() {
                report.add_warning(
                    at,
                    "max_tokens",
                    format!("no line of `{path}` fits into the pack's `max_tokens`"),
                );
                return None;
            }
            report.add_warning(
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

/// Cuts the text to whole lines of at most `tokens`. If the first line is too long, cuts it at a character.
fn truncate_lines(text: &mut String, tokens: u64) {
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
