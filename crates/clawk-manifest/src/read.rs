//! Reads the root document and all its primitives: resolves references, assigns names and checks every part.

use std::path::PathBuf;

use clawk_proto::uri::{ClawUri, Kind, is_name, is_version};
use serde_json::{Map, Value};

use crate::check::{DocumentChecker, RefUse};
use crate::diagnostic::{Diagnostic, FileFindings, SourceFiles, quote_text};
use crate::envelope::{self, DocumentKind, Envelope};
use crate::leaf::{self, LeafCheckFn};
use crate::loader::{FileRefusal, MAX_FILES, ManifestFileLoader, ResolvedFile};
use crate::model::{builtin_tool_help, builtin_tool_name};
use crate::primitive::UntypedPrimitive;
use crate::report::DocumentDescription;
use crate::rules;
use crate::shape::{CLAW_SPEC, FieldType, slot_kind, spec_of};
use crate::tree::{Location, Node, Tree, join_pointer, members_to_json};
use crate::yaml;

/// The members that an `inline` primitive may have besides its spec (R10a).
const INLINE_METADATA: [&str; 3] = ["name", "version", "labels"];

/// Reads a manifest's documents.
#[derive(Debug)]
pub(crate) struct ManifestReader {
    pub(crate) loader: ManifestFileLoader,
    /// The findings of each document, in the order read; the root is the first.
    pub(crate) files: Vec<FileFindings>,
    pub(crate) sources: SourceFiles,
    pub(crate) primitives: Vec<UntypedPrimitive>,
    /// References `claw://local/…` in the root. Another item must declare each of them.
    pub(crate) pending: Vec<(usize, RefUse)>,
    /// The root's canonical path. No reference may lead back to it.
    root: Option<PathBuf>,
    judge: Option<LeafCheckFn>,
    /// The root's own description.
    pub(crate) about: DocumentDescription,
    claw_name: String,
    claw_version: Option<String>,
}

/// The position of an item in the root.
#[derive(Debug, Clone, Copy)]
struct RootItem<'n> {
    node: &'n Node,
    kind: Kind,
    /// Its index in a list.
    index: Option<usize>,
    older: bool,
}

impl ManifestReader {
    pub(crate) fn new(loader: ManifestFileLoader, judge: Option<LeafCheckFn>) -> Self {
        Self {
            loader,
            files: Vec::new(),
            sources: SourceFiles::default(),
            primitives: Vec::new(),
            pending: Vec::new(),
            root: None,
            judge,
            about: DocumentDescription::default(),
            claw_name: String::new(),
            claw_version: None,
        }
    }

    /// Reads a file into a tree. Its findings become the last of `files`.
    pub(crate) fn open_file(&mut self, found: &ResolvedFile) -> Result<Option<Node>, FileRefusal> {
        let text = self.loader.read(found)?;
        let mut findings = FileFindings::for_file(Some(found.shown.clone()));
        let (node, list) = yaml::parse(&text);
        list.into_iter().for_each(|diagnostic| findings.push(diagnostic));
        self.sources.add_file(found.shown.clone(), text.into());
        self.files.push(findings);
        self.root.get_or_insert_with(|| found.path.clone());
        Ok(node)
    }

    /// Adds a document from the wire, which has no file.
    pub(crate) fn open_wire(&mut self) {
        self.files.push(FileFindings::default());
    }

    fn push(&mut self, file: usize, diagnostic: Diagnostic) {
        if let Some(findings) = self.files.get_mut(file) {
            findings.push(diagnostic);
        }
    }

    /// Reads the primitives in the root's `spec`.
    pub(crate) fn read_claw(&mut self, metadata: Option<&Node>, spec: &Node, older: bool) {
        self.claw_name = metadata
            .and_then(|m| m.get("name")?.text())
            .unwrap_or("claw")
            .to_owned();
        self.claw_version = metadata.and_then(|m| m.get("version")?.text()).map(str::to_owned);
        if let Some(findings) = self.files.first_mut() {
            DocumentChecker::new(findings, older).check_map(spec, &CLAW_SPEC, "/spec", &[]);
        }
        for entry in spec.entries().unwrap_or_default() {
            let Some(slot) = slot_kind(&entry.key) else {
                continue;
            };
            let pointer = join_pointer("/spec", &entry.key);
            match (&entry.value.value, slot.many) {
                (Tree::Null, _) => {}
                (Tree::List(nodes), true) => {
                    for (index, node) in nodes.iter().enumerate() {
                        let item = RootItem {
                            node,
                            kind: slot.kind,
                            index: Some(index),
                            older,
                        };
                        self.read_item(item, &join_pointer(&pointer, &index.to_string()));
                    }
                }
                (_, true) if !slot.lone => {} // the shape says so
                (_, _) => self.read_item(
                    RootItem {
                        node: &entry.value,
                        kind: slot.kind,
                        index: None,
                        older,
                    },
                    &pointer,
                ),
            }
        }
    }

    fn read_item(&mut self, item: RootItem<'_>, pointer: &str) {
        if self.primitives.len() >= MAX_FILES {
            let message = format!("more than {MAX_FILES} primitives");
            return self.push(
                0,
                Diagnostic::error("too-large", pointer, message).at_node(item.node),
            );
        }
        match &item.node.value {
            Tree::Text(text) => self.read_reference(text, item, pointer),
            Tree::Map(entries) => match item.node.get("inline") {
                Some(inline) if entries.len() == 1 => {
                    self.read_inline(inline, item, &join_pointer(pointer, "inline"))
                }
                Some(inline) => {
                    for entry in entries.iter().filter(|entry| entry.key != "inline") {
                        let message = format!("{} stands beside `inline`", quote_text(&entry.key));
                        let error =
                            Diagnostic::error("unknown-field", join_pointer(pointer, &entry.key), message);
                        self.push(
                            0,
                            error
                                .with_location(entry.key_place)
                                .with_help("indent it, so that it stands inside `inline`"),
                        );
                    }
                    self.read_inline(inline, item, &join_pointer(pointer, "inline"));
                }
                None => {
                    let error = Diagnostic::error("not-an-item", pointer, "a map here needs `inline:`")
                        .at_node(item.node);
                    self.push(
                        0,
                        error.with_help(
                            "write `inline:` and the primitive's spec below it, or the path of its file",
                        ),
                    );
                }
            },
            _ => {
                let message = format!(
                    "expected a file path, a `claw://` URI or `inline`, found {}",
                    item.node.describe()
                );
                self.push(
                    0,
                    Diagnostic::error("not-an-item", pointer, message).at_node(item.node),
                );
            }
        }
    }

    fn read_reference(&mut self, text: &str, item: RootItem<'_>, pointer: &str) {
        if item.kind == Kind::Tool
            && let Some(name) = builtin_tool_name(text)
        {
            return self.read_builtin_tool(name, item, pointer);
        }
        if !text.contains("://")
            && let Some(folder) = self.loader.looks_into(text)
        {
            self.sources.looked_into(folder);
        }
        let found = match ClawUri::parse(text) {
            _ if !text.contains("://") => self.loader.find_files(text),
            Ok(ClawUri::Registry {
                namespace,
                name,
                version,
            }) => {
                let found = self.loader.find_registered(&namespace, &name, &version);
                return match found {
                    Ok(found) => self.read_file(&found, item, pointer, Some((&name, &version))),
                    Err(refusal) => self.report_refusal(refusal, item, pointer),
                };
            }
            Ok(ClawUri::Local { kind, name, version }) if kind == item.kind => {
                let used = RefUse {
                    kind,
                    name,
                    version,
                    pointer: pointer.to_owned(),
                    place: item.node.place,
                };
                return self.pending.push((0, used));
            }
            Ok(ClawUri::Local { kind, .. }) => {
                let message = format!(
                    "{} names a {kind}, and a {} belongs here",
                    quote_text(text),
                    item.kind
                );
                return self.push(
                    0,
                    Diagnostic::error("kind-mismatch", pointer, message).at_node(item.node),
                );
            }
            Err(_) if text.starts_with("mcp:") => {
                let error = Diagnostic::error(
                    "reserved-scheme",
                    pointer,
                    "the `mcp://` scheme is reserved and must not be used",
                );
                let help = "write `inline:` with `mcp_source: {uri: \"stdio:///path/to/server\"}`";
                return self.push(0, error.at_node(item.node).with_help(help));
            }
            Err(error) => {
                let error = Diagnostic::error("bad-uri", pointer, format!("{}: {error}", quote_text(text)));
                return self.push(0, error.at_node(item.node));
            }
        };
        match found {
            Ok(all) if item.index.is_none() && all.len() > 1 => {
                let message = format!(
                    "{} matches {} files, and one belongs here",
                    quote_text(text),
                    all.len()
                );
                self.push(
                    0,
                    Diagnostic::error("several-files", pointer, message).at_node(item.node),
                );
            }
            Ok(all) => all
                .iter()
                .for_each(|found| self.read_file(found, item, pointer, None)),
            Err(refusal) => self.report_refusal(refusal, item, pointer),
        }
    }

    /// Adds a built-in tool that the root lists by its name. The runtime has its description and schema (R54).
    fn read_builtin_tool(&mut self, name: &'static str, item: RootItem<'_>, pointer: &str) {
        let spec = Node {
            value: Tree::Map(Vec::new()),
            place: item.node.place,
        };
        let given = PrimitiveMetadata {
            name: name.to_owned(),
            generated: false,
            version: self.claw_version.clone(),
            labels: Map::new(),
            place: item.node.place,
        };
        self.add_primitive(item.kind, spec, pointer, 0, item.older, given);
    }

    fn report_refusal(&mut self, refusal: FileRefusal, item: RootItem<'_>, pointer: &str) {
        let mut error = Diagnostic::error(refusal.code, pointer, refusal.message).at_node(item.node);
        error.help = refusal.help;
        let text = item.node.text().unwrap_or_default();
        if item.kind == Kind::Tool && !text.is_empty() && !text.contains(['/', '.', '*', '?', '[', '{', ':'])
        {
            error.message = format!("{} is neither a built-in tool nor a file", quote_text(text));
            error.help = Some(builtin_tool_help(text));
        }
        self.push(0, error);
    }

    /// Reads a primitive from its own file. `expected` is the name and version in a registry URI.
    fn read_file(
        &mut self,
        found: &ResolvedFile,
        item: RootItem<'_>,
        pointer: &str,
        expected: Option<(&str, &str)>,
    ) {
        let shown = quote_text(&found.shown.to_string_lossy());
        if self.root.as_ref() == Some(&found.path) {
            let error = Diagnostic::error(
                "reference-cycle",
                pointer,
                format!("{shown} is this manifest itself"),
            );
            return self.push(
                0,
                error
                    .at_node(item.node)
                    .with_help("name the primitive's own file, or narrow the glob"),
            );
        }
        if self.files.len() >= MAX_FILES || self.primitives.len() >= MAX_FILES {
            let message = format!("more than {MAX_FILES} files");
            return self.push(
                0,
                Diagnostic::error("too-large", pointer, message).at_node(item.node),
            );
        }
        let root = match self.open_file(found) {
            Ok(root) => root,
            Err(refusal) => return self.report_refusal(refusal, item, pointer),
        };
        let file = self.files.len() - 1;
        let Some((root, findings)) = root.as_ref().zip(self.files.last_mut()) else {
            return;
        };
        let Some(envelope) = envelope::read(root, false, findings) else {
            return;
        };
        match envelope.kind {
            Some(DocumentKind::Primitive(kind)) if kind == item.kind => {}
            None => return,
            Some(other) => {
                let what = if let DocumentKind::Primitive(kind) = other {
                    kind.title()
                } else {
                    "Claw"
                };
                let message = format!("{shown} is a {what}, and a {} belongs here", item.kind);
                return self.push(
                    0,
                    Diagnostic::error("kind-mismatch", pointer, message).at_node(item.node),
                );
            }
        }
        self.accept_primitive(
            &envelope,
            file,
            item,
            pointer,
            expected.map(|promised| (promised, shown)),
        );
    }

    /// Adds the primitive of a file with the right kind. `promised`: the name and version in the registry URI, and the file's name.
    fn accept_primitive(
        &mut self,
        envelope: &Envelope<'_>,
        file: usize,
        item: RootItem<'_>,
        pointer: &str,
        promised: Option<((&str, &str), String)>,
    ) {
        let (older, metadata, spec) = (envelope.is_older_version(), envelope.metadata, envelope.spec);
        let name = metadata.and_then(|m| m.get("name")).and_then(Node::text);
        let version = metadata
            .and_then(|m| m.get("version"))
            .and_then(Node::text)
            .map(str::to_owned);
        if let Some(((wanted, wanted_version), shown)) = promised
            && (name != Some(wanted)
                || version
                    .as_deref()
                    .is_some_and(|version| version != wanted_version))
        {
            let message = format!("{shown} is not the `{wanted}@{wanted_version}` that the URI names");
            self.push(
                0,
                Diagnostic::error("registry-mismatch", pointer, message).at_node(item.node),
            );
        }
        let Some((spec, name)) = spec.zip(name) else {
            return;
        };
        let labels = metadata
            .and_then(|m| m.get("labels"))
            .and_then(Node::entries)
            .map(members_to_json)
            .unwrap_or_default();
        let place = metadata.and_then(|m| m.get("name")).and_then(|name| name.place);
        let version = version.or_else(|| self.claw_version.clone());
        let given = PrimitiveMetadata {
            name: name.to_owned(),
            generated: false,
            version,
            labels,
            place,
        };
        self.add_primitive(item.kind, spec.clone(), "/spec", file, older, given);
    }

    fn read_inline(&mut self, inline: &Node, item: RootItem<'_>, pointer: &str) {
        let Some(entries) = inline.entries() else {
            let message = format!(
                "`inline` holds the spec of a {}, not {}",
                item.kind,
                inline.describe()
            );
            return self.push(
                0,
                Diagnostic::error("wrong-type", pointer, message).at_node(inline),
            );
        };
        let mut wrapped = false;
        for entry in entries {
            let help = match entry.key.as_str() {
                "metadata" => "`inline` carries `name`, `version` and `labels` directly, without `metadata`",
                "spec" => "`inline` holds the members of the spec directly, without `spec`",
                "kind" | "claw" => "the place in the manifest says what it is; remove this",
                _ => continue,
            };
            wrapped = true;
            let message = format!("{} does not belong inside `inline`", quote_text(&entry.key));
            let error = Diagnostic::error("unknown-field", join_pointer(pointer, &entry.key), message);
            self.push(0, error.with_location(entry.key_place).with_help(help));
        }
        let given = self.inline_metadata(inline, item, pointer);
        let own =
            |key: &str| INLINE_METADATA.contains(&key) || ["metadata", "spec", "kind", "claw"].contains(&key);
        let spec = Tree::Map(entries.iter().filter(|entry| !own(&entry.key)).cloned().collect());
        if !wrapped {
            self.add_primitive(
                item.kind,
                Node {
                    value: spec,
                    place: inline.place,
                },
                pointer,
                0,
                item.older,
                given,
            );
        }
    }

    /// The name, version and labels of an inline primitive (R7, R10a).
    fn inline_metadata(&mut self, inline: &Node, item: RootItem<'_>, pointer: &str) -> PrimitiveMetadata {
        let name = inline.get("name").and_then(Node::text);
        let builtin_name = name
            .filter(|_| item.kind == Kind::Tool)
            .and_then(builtin_tool_name);
        if let Some(findings) = self.files.first_mut() {
            let mut checker = DocumentChecker::new(findings, item.older);
            for (key, ty) in [
                ("name", FieldType::Name),
                ("version", FieldType::Semver),
                ("labels", FieldType::TextMap),
            ] {
                let of_builtin = key == "name" && builtin_name.is_some();
                if let Some(node) = inline.get(key).filter(|_| !of_builtin) {
                    checker.check_value(node, &ty, &join_pointer(pointer, key));
                }
            }
        }
        let name = builtin_name.or(name);
        let made_up = || match (item.kind, item.index) {
            (Kind::Identity, _) => self.claw_name.clone(),
            (kind, Some(index)) => format!("{}-{index}", kind.segment()),
            (kind, None) => kind.segment().to_owned(),
        };
        PrimitiveMetadata {
            name: name.map_or_else(made_up, str::to_owned),
            generated: name.is_none(),
            version: inline
                .get("version")
                .and_then(Node::text)
                .map(str::to_owned)
                .or_else(|| self.claw_version.clone()),
            labels: inline
                .get("labels")
                .and_then(Node::entries)
                .map(members_to_json)
                .unwrap_or_default(),
            place: inline.entry("name").map_or(inline.place, |entry| entry.key_place),
        }
    }

    /// Checks one primitive and adds it.
    pub(crate) fn add_primitive(
        &mut self,
        kind: Kind,
        spec: Node,
        pointer: &str,
        file: usize,
        older: bool,
        given: PrimitiveMetadata,
    ) {
        let Some(findings) = self.files.get_mut(file) else {
            return;
        };
        let mut checker = DocumentChecker::new(findings, older);
        if kind == Kind::WorldModel && older && file > 0 {
            let warning =
                Diagnostic::warning("newer-field", "/kind", "`WorldModel` is new in protocol 0.3.0");
            checker
                .findings
                .push(warning.at_node(&spec).with_help("write `claw: \"0.3.0\"`"));
        }
        let besides: &[&str] = if pointer.ends_with("/inline") {
            &INLINE_METADATA
        } else {
            &[]
        };
        checker.check_map(&spec, spec_of(kind), pointer, besides);
        rules::check_rules(kind, &spec, pointer, &given.name, &mut checker);
        let refs = std::mem::take(&mut checker.refs);
        if let Some(judge) = self.judge {
            leaf::judge_leaves(kind, &spec, pointer, judge, findings);
        }
        let PrimitiveMetadata {
            name,
            generated,
            version,
            labels,
            place,
        } = given;
        if !matches!(kind, Kind::Tool | Kind::Skill) && !labels.is_empty() {
            findings.push(idle_labels(kind, pointer).with_location(place));
        }
        let version = version.filter(|version| is_version(version));
        if kind == Kind::Identity {
            self.about.add_abilities(&spec);
        }
        let pointer = pointer.to_owned();
        self.context_files(kind, &spec, &pointer, file);
        if is_name(&name) {
            self.primitives.push(UntypedPrimitive {
                kind,
                name,
                generated,
                version,
                labels,
                spec,
                pointer,
                file,
                place,
                refs,
            });
        }
    }

    /// Checks that an identity's context files are inside the manifest's tree. They need not exist yet.
    fn context_files(&mut self, kind: Kind, spec: &Node, pointer: &str, file: usize) {
        let files = if kind == Kind::Identity {
            spec.get("context_files").and_then(Node::entries)
        } else {
            None
        };
        for entry in files.unwrap_or_default() {
            let Some(text) = entry.value.text() else { continue };
            let Err(refusal) = self.loader.check_context_file(text) else {
                continue;
            };
            let at = join_pointer(&join_pointer(pointer, "context_files"), &entry.key);
            let mut error = Diagnostic::error(refusal.code, at, refusal.message).at_node(&entry.value);
            error.help = refusal.help;
            self.push(file, error);
        }
    }
}

/// The finding for labels of a kind that no policy matches by labels.
fn idle_labels(kind: Kind, pointer: &str) -> Diagnostic {
    let metadata = if pointer.ends_with("/inline") {
        pointer
    } else {
        "/metadata"
    };
    let message =
        format!("`labels` have no effect on a {kind}: policies match the labels of tools and skills");
    Diagnostic::warning("no-effect", join_pointer(metadata, "labels"), message)
        .with_help("they are kept for your own programs; leave them out if nothing reads them")
}

/// A primitive's metadata.
#[derive(Debug)]
pub(crate) struct PrimitiveMetadata {
    pub(crate) name: String,
    pub(crate) generated: bool,
    pub(crate) version: Option<String>,
    pub(crate) labels: Map<String, Value>,
    pub(crate) place: Option<Location>,
}
