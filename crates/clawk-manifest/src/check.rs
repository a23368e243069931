//! Checks a located tree against its shape and reports all findings at once. It collects references on the way.

use clawk_proto::uri::{ClawUri, Kind, is_name, is_version};

use crate::diagnostic::{Diagnostic, FileFindings, did_you_mean, quote_text};
use crate::model::{ManifestDuration, McpUri, McpUriError};
use crate::shape::{Field, FieldType, HINTS, METADATA, MapShape};
use crate::texts;
use crate::tree::{Location, MapEntry, Node, Tree, join_pointer};

/// The only word that 0.3.0 added to a closed set.
const NEWER_WORD: &str = "checkpoint";

/// A reference to a primitive in a document.
#[derive(Debug, Clone)]
pub(crate) struct RefUse {
    pub(crate) kind: Kind,
    pub(crate) name: String,
    pub(crate) version: Option<String>,
    pub(crate) pointer: String,
    pub(crate) place: Option<Location>,
}

/// Checks one document's parts.
#[derive(Debug)]
pub(crate) struct DocumentChecker<'f> {
    pub(crate) findings: &'f mut FileFindings,
    /// The document says 0.2.x, so members of 0.3.0 get a warning.
    pub(crate) older: bool,
    pub(crate) refs: Vec<RefUse>,
}

/// The cure for an MCP server in the form of other programs.
pub(crate) const FOREIGN_SERVER_HELP: &str = "an MCP server is a Tool with `mcp_source: { uri: \"stdio:///PROGRAM?arg=WORD\" }` or \
     `{ uri: \"https://HOST/PATH\" }`; `clawk mcp add NAME -- COMMAND` writes it, and `clawk mcp add --from FILE` \
     takes over an `mcpServers` file";

/// Returns whether other programs name an MCP server's parts so.
pub(crate) fn is_foreign_server(key: &str, shape: &MapShape) -> bool {
    let of_tool =
        shape.title.ends_with("Tool") && matches!(key, "command" | "args" | "url" | "env" | "headers");
    of_tool || is_server_list(key)
}

/// Returns whether other programs list their MCP servers under this key.
pub(crate) fn is_server_list(key: &str) -> bool {
    matches!(key, "mcpServers" | "mcp_servers" | "mcp-servers")
}

impl<'f> DocumentChecker<'f> {
    pub(crate) fn new(findings: &'f mut FileFindings, older: bool) -> Self {
        Self {
            findings,
            older,
            refs: Vec::new(),
        }
    }

    /// Checks `node` as a closed map. Members in `besides` are checked elsewhere.
    pub(crate) fn check_map(
        &mut self,
        node: &Node,
        shape: &'static MapShape,
        pointer: &str,
        besides: &[&str],
    ) {
        let Some(entries) = node.entries() else {
            let message = format!("{} is a map, not {}", shape.title, node.describe());
            self.findings.push(
                Diagnostic::error("wrong-type", pointer, message)
                    .at_node(node)
                    .with_help(members_of(shape)),
            );
            return;
        };
        for entry in entries {
            match shape.field(&entry.key) {
                Some(field) => self.check_member(entry, field, &join_pointer(pointer, &entry.key)),
                None if besides.contains(&entry.key.as_str()) => {}
                None => self.report_unknown(entry, shape, pointer, besides),
            }
        }
        for field in shape
            .fields
            .iter()
            .filter(|field| field.required && node.entry(field.name).is_none())
        {
            let message = format!("{} needs `{}`", shape.title, field.name);
            let missing = Diagnostic::error("missing-field", join_pointer(pointer, field.name), message);
            let help = did_you_mean_here(field, entries, shape).unwrap_or_else(|| field.doc.to_owned());
            self.findings
                .push(missing.with_location(first_line(node)).with_help(help));
        }
    }

    fn check_member(&mut self, entry: &MapEntry, field: &Field, pointer: &str) {
        if field.newer && self.older {
            let message = format!(
                "`{}` is new in protocol 0.3.0, and this document says 0.2",
                entry.key
            );
            let warning = Diagnostic::warning("newer-field", pointer, message);
            self.findings.push(
                warning
                    .with_location(entry.key_place)
                    .with_help("write `claw: \"0.3.0\"`"),
            );
        }
        if matches!(entry.value.value, Tree::Null) {
            let message = format!("`{}` is given without a value", entry.key);
            let help = if field.required {
                field.doc
            } else {
                "leave it out, or give it a value"
            };
            self.findings.push(
                Diagnostic::error("no-value", pointer, message)
                    .with_location(entry.key_place)
                    .with_help(help),
            );
            return;
        }
        self.check_value(&entry.value, &field.ty, pointer);
    }

    fn report_unknown(&mut self, entry: &MapEntry, shape: &MapShape, pointer: &str, besides: &[&str]) {
        let message = format!("{} has no member {}", shape.title, quote_text(&entry.key));
        let known = shape
            .fields
            .iter()
            .map(|field| field.name)
            .chain(besides.iter().copied());
        let help = match did_you_mean(&entry.key, known) {
            _ if METADATA.field(&entry.key).is_some() => format!("`{}` belongs under `metadata`", entry.key),
            _ if is_foreign_server(&entry.key, shape) => FOREIGN_SERVER_HELP.to_owned(),
            Some(near) => format!("did you mean `{near}`?"),
            None => members_of(shape),
        };
        let unknown = Diagnostic::error("unknown-field", join_pointer(pointer, &entry.key), message);
        self.findings
            .push(unknown.with_location(entry.key_place).with_help(help));
    }

    pub(crate) fn check_value(&mut self, node: &Node, ty: &FieldType, pointer: &str) {
        match ty {
            FieldType::Item(_) => {}
            FieldType::Items(_) if node.items().is_some() => {
                self.check_list(node, &FieldType::Item(Kind::Sandbox), 1, pointer)
            }
            FieldType::Items(_) => {}
            FieldType::Bool => self.check_bool(node, pointer),
            FieldType::Count { min, max } => self.check_count(node, *min, *max, pointer),
            FieldType::Real { min, max } => self.check_real(node, *min, *max, pointer),
            FieldType::List { of, min } => self.check_list(node, of, *min, pointer),
            FieldType::Map(shape) => self.check_map(node, shape, pointer, &[]),
            FieldType::TextMap => self.text_map(node, pointer),
            FieldType::AnyMap => {
                if node.entries().is_none() {
                    self.report_wrong_type(node, "a map", pointer, None);
                }
            }
            FieldType::Hints => self.check_hints(node, pointer),
            FieldType::Schema | FieldType::ObjectSchema => {
                self.check_schema(node, matches!(ty, FieldType::ObjectSchema), pointer)
            }
            _ => self.check_text(node, ty, pointer),
        }
    }

    /// Checks an open map in which some members must be booleans.
    fn check_hints(&mut self, node: &Node, pointer: &str) {
        if node.entries().is_none() {
            return self.report_wrong_type(node, "a map", pointer, None);
        }
        for hint in HINTS {
            if let Some(value) = node.get(hint) {
                self.check_bool(value, &join_pointer(pointer, hint));
            }
        }
    }

    fn report_wrong_type(&mut self, node: &Node, expected: &str, pointer: &str, help: Option<String>) {
        let message = format!("expected {expected}, found {}", node.describe());
        let mut error = Diagnostic::error("wrong-type", pointer, message).at_node(node);
        error.help = help;
        self.findings.push(error);
    }

    fn check_bool(&mut self, node: &Node, pointer: &str) {
        if node.as_bool().is_none() {
            let spelled = node.text().map(str::to_lowercase);
            let help = match spelled.as_deref() {
                Some("yes" | "on" | "true") => Some("write `true`".to_owned()),
                Some("no" | "off" | "false") => Some("write `false`".to_owned()),
                _ => Some("write `true` or `false`".to_owned()),
            };
            self.report_wrong_type(node, "`true` or `false`", pointer, help);
        }
    }

    fn check_count(&mut self, node: &Node, min: u64, max: u64, pointer: &str) {
        let Tree::Number(number) = &node.value else {
            let looks = node.text().is_some_and(|text| text.parse::<u64>().is_ok());
            let help = looks.then(|| "write the number without quotes and without leading zeros".to_owned());
            return self.report_wrong_type(node, "a whole number", pointer, help);
        };
        match number.as_u64() {
            Some(value) if (min..=max).contains(&value) => {}
            _ => {
                let message = match max {
                    _ if number.as_u64().is_some_and(|value| value > max) => {
                        format!("`{number}` is too large")
                    }
                    _ => format!("`{number}` is not a whole number of at least {min}"),
                };
                self.findings
                    .push(Diagnostic::error("out-of-range", pointer, message).at_node(node));
            }
        }
    }

    fn check_real(&mut self, node: &Node, min: f64, max: Option<f64>, pointer: &str) {
        let Tree::Number(number) = &node.value else {
            return self.report_wrong_type(node, "a number", pointer, None);
        };
        let inside = number
            .as_f64()
            .is_some_and(|value| value >= min && max.is_none_or(|max| value <= max));
        if !inside {
            let range = max.map_or(format!("at least {min}"), |max| format!("from {min} to {max}"));
            let message = format!("`{number}` is outside the range: {range}");
            self.findings
                .push(Diagnostic::error("out-of-range", pointer, message).at_node(node));
        }
    }

    fn check_list(&mut self, node: &Node, of: &FieldType, min: usize, pointer: &str) {
        let Some(items) = node.items() else {
            let help = "each item stands on its own line after `- `, or all between `[` and `]`";
            return self.report_wrong_type(node, "a list", pointer, Some(help.to_owned()));
        };
        if items.len() < min {
            let error = Diagnostic::error("empty-list", pointer, "the list needs at least one entry");
            self.findings.push(error.at_node(node));
        }
        for (index, item) in items.iter().enumerate() {
            self.check_value(item, of, &join_pointer(pointer, &index.to_string()));
        }
    }

    fn text_map(&mut self, node: &Node, pointer: &str) {
        let Some(entries) = node.entries() else {
            return self.report_wrong_type(node, "a map of text", pointer, None);
        };
        for entry in entries.iter().filter(|entry| entry.value.text().is_none()) {
            let help = Some("put the value in quotes".to_owned());
            self.report_wrong_type(&entry.value, "text", &join_pointer(pointer, &entry.key), help);
        }
    }

    fn check_schema(&mut self, node: &Node, object: bool, pointer: &str) {
        let mut found = Vec::new();
        texts::json_schema(node, pointer, &mut found);
        for (path, node, message) in found {
            self.findings
                .push(Diagnostic::error("bad-schema", path, message).at_node(node));
        }
        if object && node.get("type").is_some_and(|word| word.text() != Some("object")) {
            let error = Diagnostic::error(
                "bad-schema",
                join_pointer(pointer, "type"),
                "an input schema has `type: object`",
            );
            let place = node.get("type").map_or(first_line(node), |node| node.place);
            self.findings.push(
                error
                    .with_location(place)
                    .with_help("arguments come as one object; write `type: object`"),
            );
        } else if object && node.entries().is_none() && node.as_bool().is_some() {
            self.report_wrong_type(node, "a map with `type: object`", pointer, None);
        }
    }

    fn check_text(&mut self, node: &Node, ty: &FieldType, pointer: &str) {
        let Some(text) = node.text() else {
            let scalar = matches!(node.value, Tree::Bool(_) | Tree::Number(_));
            return self.report_wrong_type(
                node,
                "text",
                pointer,
                scalar.then(|| "put the value in quotes".to_owned()),
            );
        };
        let (code, outcome) = match ty {
            FieldType::FullText if text.trim().is_empty() => {
                ("empty-text", Err("must not be empty".to_owned()))
            }
            FieldType::Word(words) => return self.check_word(node, text, words, pointer),
            FieldType::Ref(kind) => return self.check_reference(node, text, *kind, pointer),
            FieldType::McpUri => return self.mcp_uri(node, text, pointer),
            FieldType::Name if !is_name(text) => {
                let message = format!(
                    "{} is not a valid name: 1 to 63 letters, digits and hyphens",
                    quote_text(text)
                );
                ("bad-name", Err(message))
            }
            FieldType::Semver if !is_version(text) => (
                "bad-version",
                Err(format!(
                    "{} is not a valid version such as `1.0.0`",
                    quote_text(text)
                )),
            ),
            FieldType::Duration => (
                "bad-duration",
                ManifestDuration::parse(text).map(|_| ()).map_err(|error| {
                    format!(
                        "{} is not a valid duration (example: `30s`): {error}",
                        quote_text(text)
                    )
                }),
            ),
            FieldType::SecretRef => ("bad-secret-ref", texts::secret_ref(text)),
            FieldType::Regex => ("bad-regex", texts::regex(text)),
            FieldType::Glob => ("bad-glob", texts::glob(text)),
            FieldType::Cron => ("bad-cron", texts::cron(text)),
            FieldType::Url => ("bad-url", texts::url(text)),
            FieldType::Host => ("bad-host", texts::host(text)),
            _ => return,
        };
        if let Err(message) = outcome {
            let mut error = Diagnostic::error(code, pointer, message).at_node(node);
            if matches!(ty, FieldType::SecretRef) {
                // The message gives the line number but not the line's text, which may contain a key.
                error.span = None;
            }
            self.findings.push(error);
        }
    }

    fn check_word(&mut self, node: &Node, text: &str, words: &'static [&'static str], pointer: &str) {
        if words.contains(&text) {
            if self.older && text == NEWER_WORD {
                let warning = Diagnostic::warning(
                    "newer-field",
                    pointer,
                    format!("`{text}` is new in protocol 0.3.0"),
                );
                self.findings
                    .push(warning.at_node(node).with_help("write `claw: \"0.3.0\"`"));
            }
            return;
        }
        let all = words
            .iter()
            .map(|word| format!("`{word}`"))
            .collect::<Vec<_>>()
            .join(", ");
        let help = match did_you_mean(text, words.iter().copied()) {
            Some(near) => format!("did you mean `{near}`? (one of {all})"),
            None => format!("one of {all}"),
        };
        let message = format!("{} is not a known value", quote_text(text));
        self.findings.push(
            Diagnostic::error("unknown-value", pointer, message)
                .at_node(node)
                .with_help(help),
        );
    }

    fn check_reference(&mut self, node: &Node, text: &str, kind: Kind, pointer: &str) {
        match read_ref(text, kind) {
            Ok((name, version)) => {
                self.refs.push(RefUse {
                    kind,
                    name,
                    version,
                    pointer: pointer.to_owned(),
                    place: node.place,
                });
            }
            Err(message) => self
                .findings
                .push(Diagnostic::error("bad-reference", pointer, message).at_node(node)),
        }
    }

    fn mcp_uri(&mut self, node: &Node, text: &str, pointer: &str) {
        if let Err(error) = McpUri::parse(text) {
            let code = if error == McpUriError::Reserved {
                "reserved-scheme"
            } else {
                "bad-mcp-uri"
            };
            let help = "write `stdio:///path/to/server?arg=VALUE` or `https://HOST/PATH`";
            self.findings.push(
                Diagnostic::error(code, pointer, error.to_string())
                    .at_node(node)
                    .with_help(help),
            );
        }
    }
}

/// Reads a name, or a local `claw://` URI of this kind, as a name and the requested version.
pub(crate) fn read_ref(text: &str, kind: Kind) -> Result<(String, Option<String>), String> {
    if !text.contains("://") {
        return if is_name(text) {
            Ok((text.to_owned(), None))
        } else {
            Err(format!(
                "{} is not a valid name: 1 to 63 letters, digits and hyphens",
                quote_text(text)
            ))
        };
    }
    match ClawUri::parse(text) {
        Ok(ClawUri::Local {
            kind: given,
            name,
            version,
        }) if given == kind => Ok((name, version)),
        Ok(ClawUri::Local { kind: given, .. }) => {
            Err(format!("{} names a {given}, not a {kind}", quote_text(text)))
        }
        Ok(ClawUri::Registry { .. }) => {
            Err("a reference names what this manifest declares; list the registry URI there".to_owned())
        }
        Err(error) => Err(error.to_string()),
    }
}

fn members_of(shape: &MapShape) -> String {
    let names: Vec<String> = shape
        .fields
        .iter()
        .map(|field| format!("`{}`", field.name))
        .collect();
    format!("it has {}", names.join(", "))
}

/// The misspelt member that was probably meant as a missing one.
fn did_you_mean_here(field: &Field, entries: &[MapEntry], shape: &MapShape) -> Option<String> {
    let strangers = entries
        .iter()
        .map(|entry| entry.key.as_str())
        .filter(|key| shape.field(key).is_none());
    did_you_mean(field.name, strangers)
        .map(|near| format!("{} looks like a misspelling of it", quote_text(near)))
}

/// The first line of a node; a missing member is reported there.
pub(crate) fn first_line(node: &Node) -> Option<Location> {
    node.entries()
        .and_then(|entries| entries.first())
        .and_then(|entry| entry.key_place)
        .or(node.place)
}
