//! The members of every document before its `spec`: `claw`, `kind`, `metadata` (CKP §5, R1).

use clawk_proto::uri::Kind;
use semver::Version;

use crate::check::{DocumentChecker, first_line};
use crate::check::{FOREIGN_SERVER_HELP, is_server_list};
use crate::diagnostic::{Diagnostic, FileFindings, did_you_mean, quote_text};
use crate::shape::{CLAW_SPEC, ENVELOPE_FIELDS, METADATA};
use crate::tree::{Node, Tree, join_pointer};

/// The type of a document.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DocumentKind {
    /// The root: `kind: Claw`.
    Claw,
    /// A primitive.
    Primitive(Kind),
}

/// The parts of a document, as far as they could be read.
#[derive(Debug)]
pub(crate) struct Envelope<'n> {
    pub(crate) claw: Option<Version>,
    pub(crate) kind: Option<DocumentKind>,
    pub(crate) metadata: Option<&'n Node>,
    pub(crate) spec: Option<&'n Node>,
}

impl Envelope<'_> {
    /// Whether the document says 0.2.x.
    pub(crate) fn is_older_version(&self) -> bool {
        self.claw
            .as_ref()
            .is_some_and(|version| (version.major, version.minor) < (0, 3))
    }
}

/// Reads a document's envelope. A document from the wire may lack `claw` (R3a).
pub(crate) fn read<'n>(root: &'n Node, wire: bool, findings: &mut FileFindings) -> Option<Envelope<'n>> {
    let Some(entries) = root.entries() else {
        let message = format!(
            "a manifest is a map with `claw`, `kind`, `metadata` and `spec`, not {}",
            root.describe()
        );
        findings.push(Diagnostic::error("not-a-manifest", "", message).at_node(root));
        return None;
    };
    for entry in entries
        .iter()
        .filter(|entry| !ENVELOPE_FIELDS.contains(&entry.key.as_str()))
    {
        let help = if CLAW_SPEC.field(&entry.key).is_some() {
            format!("`{}` belongs under `spec`; indent it", entry.key)
        } else if is_server_list(&entry.key) {
            FOREIGN_SERVER_HELP.to_owned()
        } else {
            match did_you_mean(&entry.key, ENVELOPE_FIELDS) {
                Some(near) => format!("did you mean `{near}`?"),
                None => "a document has `claw`, `kind`, `metadata` and `spec`".to_owned(),
            }
        };
        let message = format!("a document has no member {}", quote_text(&entry.key));
        let unknown = Diagnostic::error("unknown-field", join_pointer("", &entry.key), message);
        findings.push(unknown.with_location(entry.key_place).with_help(help));
    }
    let claw = read_version(root, wire, findings);
    let kind = read_kind(root, findings);
    let part = |name: &str| root.get(name).filter(|node| node.value != Tree::Null);
    for name in ["metadata", "spec"]
        .into_iter()
        .filter(|name| part(name).is_none())
    {
        let missing = Diagnostic::error(
            "missing-field",
            join_pointer("", name),
            format!("the document needs `{name}`"),
        );
        let help = if name == "metadata" {
            "write `metadata: {name: …}`"
        } else {
            "write what it is under `spec:`"
        };
        findings.push(missing.with_location(first_line(root)).with_help(help));
    }
    let envelope = Envelope {
        claw,
        kind,
        metadata: part("metadata"),
        spec: part("spec"),
    };
    if let Some(metadata) = envelope.metadata {
        DocumentChecker::new(findings, envelope.is_older_version()).check_map(
            metadata,
            &METADATA,
            "/metadata",
            &[],
        );
    }
    Some(envelope)
}

fn read_version(root: &Node, wire: bool, findings: &mut FileFindings) -> Option<Version> {
    let Some(node) = root.get("claw") else {
        if !wire {
            let missing = Diagnostic::error(
                "missing-field",
                "/claw",
                "the document needs `claw`, the protocol version",
            );
            findings.push(
                missing
                    .with_location(first_line(root))
                    .with_help("write `claw: \"0.3.0\"`"),
            );
        }
        return None;
    };
    let Some(text) = node.text() else {
        let message = format!("`claw` is text such as `\"0.3.0\"`, not {}", node.describe());
        findings.push(
            Diagnostic::error("wrong-type", "/claw", message)
                .at_node(node)
                .with_help("put the version in quotes"),
        );
        return None;
    };
    let Ok(version) = Version::parse(text) else {
        let message = format!("{} is not a valid protocol version", quote_text(text));
        findings.push(
            Diagnostic::error("bad-version", "/claw", message)
                .at_node(node)
                .with_help("write `claw: \"0.3.0\"`"),
        );
        return None;
    };
    if version.major != 0 || !(2..=3).contains(&version.minor) {
        let message = format!("protocol version {text} is not supported");
        let error = Diagnostic::error("unsupported-version", "/claw", message).at_node(node);
        findings.push(error.with_help("0.2.x and 0.3.x are"));
        return None;
    }
    Some(version)
}

fn read_kind(root: &Node, findings: &mut FileFindings) -> Option<DocumentKind> {
    let all = || Kind::ALL.iter().map(|kind| kind.title()).chain(["Claw"]);
    let Some(node) = root.get("kind") else {
        let missing = Diagnostic::error("missing-field", "/kind", "the document needs `kind`")
            .with_location(first_line(root));
        findings.push(missing.with_help(format!("one of {}", all().collect::<Vec<_>>().join(", "))));
        return None;
    };
    let text = node.text().unwrap_or_default();
    if text == "Claw" {
        return Some(DocumentKind::Claw);
    }
    let kind = Kind::from_title(text).map(DocumentKind::Primitive);
    if kind.is_none() {
        let message = match node.text() {
            Some(text) => format!("{} is not a kind of document", quote_text(text)),
            None => format!("`kind` is text, not {}", node.describe()),
        };
        let help = match did_you_mean(text, all()) {
            Some(near) => format!("did you mean `{near}`?"),
            None => format!("one of {}", all().collect::<Vec<_>>().join(", ")),
        };
        findings.push(
            Diagnostic::error("unknown-kind", "/kind", message)
                .at_node(node)
                .with_help(help),
        );
    }
    kind
}
