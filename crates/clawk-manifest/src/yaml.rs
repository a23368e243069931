//! Parses YAML text to a located tree. Only this module uses the YAML parser.
//!
//! YAML 1.2 with JSON's scalars: plain `true`/`false`, `null`/`~`, JSON numbers; everything else is text (`no`, `010`). Nesting is
//! limited, and so are nodes after alias expansion. Duplicate keys are errors (R9).

use std::collections::{HashMap, HashSet};

use granit_parser::{Event, Options, Parser, ScalarStyle, Span, Tag};
use serde_json::Number;

use crate::diagnostic::{Diagnostic, quote_text};
use crate::tree::{Location, MAX_DEPTH, MapEntry, Node, Tree, join_pointer};

mod syntax_words;

pub(crate) use syntax_words::holds_key;
#[cfg(test)]
mod tests;

/// The largest number of nodes in one document after alias expansion. A long text behind an alias counts as several.
const MAX_NODES: usize = 500_000;

/// Parses one document. The tree is absent if the text is not YAML; otherwise the findings may still contain errors.
pub(crate) fn parse(text: &str) -> (Option<Node>, Vec<Diagnostic>) {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut builder = Builder::default();
    let mut options = Options::default();
    options.flow_nesting_limit = MAX_DEPTH;
    options.block_nesting_limit = MAX_DEPTH;
    for event in Parser::new_from_str_with_options(text, options) {
        let outcome = match event {
            Ok((event, span)) => builder.take(event, place(&span)),
            Err(error) => Err(syntax_error(&error, text)),
        };
        if let Err(fatal) = outcome {
            builder.findings.push(*fatal);
            return (None, builder.findings);
        }
    }
    let root = builder.root.unwrap_or(Node {
        value: Tree::Null,
        place: None,
    });
    (Some(root), builder.findings)
}

fn place(span: &Span) -> Location {
    let number = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
    let start = span.start.byte_offset().unwrap_or_default();
    Location {
        start,
        end: span.end.byte_offset().unwrap_or(start).max(start),
        line: number(span.start.line()),
        column: number(span.start.col()).saturating_add(1),
    }
}

fn syntax_error(error: &granit_parser::ScanError, text: &str) -> Box<Diagnostic> {
    let mark = *error.marker();
    let place = place(&Span::new(mark, mark));
    let message = error.to_string();
    if message.contains("nest") || message.contains("limit") {
        let error = Diagnostic::error(
            "too-deep",
            "",
            format!("nested more than {MAX_DEPTH} levels deep"),
        );
        return Box::new(error.with_location(Some(place)));
    }
    Box::new(syntax_words::explain_syntax(&message, text, place))
}

fn lower_first(message: &str) -> String {
    let mut chars = message.chars();
    chars
        .next()
        .map(|first| first.to_lowercase().chain(chars).collect())
        .unwrap_or_default()
}

/// A collection that is not complete yet.
struct OpenCollection {
    anchor: usize,
    place: Location,
    pointer: String,
    kind: OpenKind,
}

enum OpenKind {
    List(Vec<Node>),
    Map {
        entries: Vec<MapEntry>,
        merges: Vec<Node>,
        seen: HashMap<String, u32>,
        key: Option<PendingMapKey>,
    },
}

/// A key that waits for its value. `text` is absent for a duplicate key, whose value is dropped.
struct PendingMapKey {
    text: Option<String>,
    shown: String,
    merge: bool,
    place: Location,
}

#[derive(Default)]
struct Builder {
    root: Option<Node>,
    open: Vec<OpenCollection>,
    anchors: HashMap<usize, (Node, usize)>,
    nodes: usize,
    documents: usize,
    findings: Vec<Diagnostic>,
}

type TreeBuildStep = Result<(), Box<Diagnostic>>;

impl Builder {
    fn take(&mut self, event: Event<'_>, place: Location) -> TreeBuildStep {
        match event {
            Event::DocumentStart(..) => {
                self.documents += 1;
                if self.documents > 1 {
                    let error =
                        Diagnostic::error("several-documents", "", "a file holds one document, not several");
                    return Err(Box::new(
                        error
                            .with_location(Some(place))
                            .with_help("split it into files, one primitive in each"),
                    ));
                }
                Ok(())
            }
            Event::Scalar(text, style, anchor, tag) => {
                let value = self.scalar(text.into_owned(), style, tag.as_deref(), place);
                self.complete(
                    Node {
                        value,
                        place: Some(place),
                    },
                    anchor,
                    1,
                    style == ScalarStyle::Plain,
                )
            }
            Event::SequenceStart(_, anchor, _) => self.open(anchor, place, OpenKind::List(Vec::new())),
            Event::MappingStart(_, anchor, _) => {
                let kind = OpenKind::Map {
                    entries: Vec::new(),
                    merges: Vec::new(),
                    seen: HashMap::new(),
                    key: None,
                };
                self.open(anchor, place, kind)
            }
            Event::SequenceEnd | Event::MappingEnd => self.close(place),
            Event::Alias(id) => self.alias(id, place),
            _ => Ok(()),
        }
    }

    fn open(&mut self, anchor: usize, place: Location, kind: OpenKind) -> TreeBuildStep {
        if self.open.len() >= MAX_DEPTH {
            let error = Diagnostic::error(
                "too-deep",
                "",
                format!("nested more than {MAX_DEPTH} levels deep"),
            );
            return Err(Box::new(error.with_location(Some(place))));
        }
        if let Some(OpenCollection {
            kind: OpenKind::Map { key: None, .. },
            pointer,
            ..
        }) = self.open.last()
        {
            let error = Diagnostic::error(
                "key-not-text",
                pointer.clone(),
                "a key must be text, not a list or a map",
            );
            return Err(Box::new(error.with_location(Some(place))));
        }
        let pointer = self.pointer();
        self.open.push(OpenCollection {
            anchor,
            place,
            pointer,
            kind,
        });
        Ok(())
    }

    /// JSON pointer of the next value.
    fn pointer(&self) -> String {
        match self.open.last() {
            None => String::new(),
            Some(OpenCollection {
                pointer,
                kind: OpenKind::List(items),
                ..
            }) => join_pointer(pointer, &items.len().to_string()),
            Some(OpenCollection {
                pointer,
                kind: OpenKind::Map { key, .. },
                ..
            }) => join_pointer(
                pointer,
                key.as_ref().map(|key| key.shown.as_str()).unwrap_or_default(),
            ),
        }
    }

    fn close(&mut self, end: Location) -> TreeBuildStep {
        let Some(open) = self.open.pop() else {
            return Ok(());
        };
        let place = Location {
            end: end.start.max(open.place.start),
            ..open.place
        };
        let value = match open.kind {
            OpenKind::List(items) => Tree::List(items),
            OpenKind::Map { entries, merges, .. } => Tree::Map(merged(entries, merges)),
        };
        let node = Node {
            value,
            place: Some(place),
        };
        self.complete(node, open.anchor, 1, false)
    }

    fn alias(&mut self, id: usize, place: Location) -> TreeBuildStep {
        let Some((node, weight)) = self.anchors.get(&id) else {
            let error = Diagnostic::error(
                "alias-cycle",
                self.pointer(),
                "an alias stands inside its own anchor",
            );
            return Err(Box::new(error.with_location(Some(place))));
        };
        let weight = *weight;
        if self.nodes.saturating_add(weight) > MAX_NODES {
            return Err(self.too_large(place)); // before the copy is made
        }
        let node = node.clone();
        self.complete(node, 0, weight, false)
    }

    fn too_large(&self, place: Location) -> Box<Diagnostic> {
        let message = format!("the document grows beyond {MAX_NODES} values");
        let error = Diagnostic::error("too-large", self.pointer(), message);
        Box::new(
            error
                .with_location(Some(place))
                .with_help("aliases (`*name`) repeat what they name; use fewer of them"),
        )
    }

    /// Adds a complete value to its list, its map or the root. `weight` counts against the node limit.
    fn complete(&mut self, node: Node, anchor: usize, weight: usize, plain: bool) -> TreeBuildStep {
        self.nodes = self.nodes.saturating_add(weight);
        if self.nodes > MAX_NODES {
            let place = node.place.unwrap_or(Location {
                start: 0,
                end: 0,
                line: 1,
                column: 1,
            });
            return Err(self.too_large(place));
        }
        if anchor > 0 {
            let weight = weigh(&node);
            self.anchors.insert(anchor, (node.clone(), weight));
            self.nodes = self.nodes.saturating_add(weight);
        }
        match self.open.last_mut() {
            None => self.root = Some(node),
            Some(OpenCollection {
                kind: OpenKind::List(items),
                ..
            }) => items.push(node),
            Some(OpenCollection {
                pointer,
                kind:
                    OpenKind::Map {
                        entries,
                        merges,
                        seen,
                        key,
                    },
                ..
            }) => match key.take() {
                None => *key = Some(read_key(node, plain, pointer, seen, &mut self.findings)?),
                Some(key) if key.merge => merges.push(node),
                Some(PendingMapKey {
                    text: Some(text),
                    place,
                    ..
                }) => {
                    entries.push(MapEntry {
                        key: text,
                        key_place: Some(place),
                        value: node,
                    });
                }
                Some(PendingMapKey { text: None, .. }) => {}
            },
        }
        Ok(())
    }

    fn scalar(&mut self, text: String, style: ScalarStyle, tag: Option<&Tag>, place: Location) -> Tree {
        match tag.map(Tag::core_suffix) {
            Some(Some("str")) => return Tree::Text(text),
            Some(Some(_)) | None => {}
            Some(None) => {
                let error = Diagnostic::error(
                    "yaml-tag",
                    self.pointer(),
                    "custom tags mean nothing in a manifest",
                );
                self.findings.push(
                    error
                        .with_location(Some(place))
                        .with_help("write the plain value"),
                );
            }
        }
        if style == ScalarStyle::Plain {
            plain_scalar(text)
        } else {
            Tree::Text(text)
        }
    }
}

fn read_key(
    node: Node,
    plain: bool,
    pointer: &str,
    seen: &mut HashMap<String, u32>,
    findings: &mut Vec<Diagnostic>,
) -> Result<PendingMapKey, Box<Diagnostic>> {
    let place = node.place.unwrap_or(Location {
        start: 0,
        end: 0,
        line: 1,
        column: 1,
    });
    let text = match node.value {
        Tree::Text(text) => text,
        Tree::Bool(flag) => flag.to_string(),
        Tree::Number(number) => number.to_string(),
        Tree::Null | Tree::List(_) | Tree::Map(_) => {
            let error = Diagnostic::error("key-not-text", pointer, "a key must be text");
            return Err(Box::new(error.with_location(Some(place))));
        }
    };
    if plain && text == "<<" {
        return Ok(PendingMapKey {
            text: None,
            shown: text,
            merge: true,
            place,
        });
    }
    if let Some(line) = seen.get(&text) {
        let message = format!(
            "{} is given twice; the first is on line {line}",
            quote_text(&text)
        );
        findings.push(
            Diagnostic::error("duplicate-key", join_pointer(pointer, &text), message)
                .with_location(Some(place)),
        );
        return Ok(PendingMapKey {
            text: None,
            shown: text,
            merge: false,
            place,
        });
    }
    seen.insert(text.clone(), place.line);
    Ok(PendingMapKey {
        text: Some(text.clone()),
        shown: text,
        merge: false,
        place,
    })
}

/// Adds the members of `<<` maps that the map itself lacks.
fn merged(mut entries: Vec<MapEntry>, merges: Vec<Node>) -> Vec<MapEntry> {
    if merges.is_empty() {
        return entries;
    }
    let mut own: HashSet<String> = entries.iter().map(|entry| entry.key.clone()).collect();
    let mut pending: Vec<Node> = merges;
    pending.reverse();
    while let Some(node) = pending.pop() {
        match node.value {
            Tree::Map(more) => {
                for entry in more {
                    if own.insert(entry.key.clone()) {
                        entries.push(entry);
                    }
                }
            }
            Tree::List(items) => pending.extend(items.into_iter().rev()),
            Tree::Null | Tree::Bool(_) | Tree::Number(_) | Tree::Text(_) => {}
        }
    }
    entries
}

/// The number of nodes that an alias of this node counts for.
fn weigh(node: &Node) -> usize {
    match &node.value {
        Tree::Null | Tree::Bool(_) | Tree::Number(_) => 1,
        Tree::Text(text) => 1 + text.len() / 64,
        Tree::List(items) => items
            .iter()
            .fold(1, |sum: usize, item| sum.saturating_add(weigh(item))),
        Tree::Map(entries) => entries.iter().fold(1, |sum: usize, entry| {
            sum.saturating_add(weigh(&entry.value))
                .saturating_add(1 + entry.key.len() / 64)
        }),
    }
}

fn plain_scalar(text: String) -> Tree {
    match text.as_str() {
        "" | "~" | "null" => return Tree::Null,
        "true" => return Tree::Bool(true),
        "false" => return Tree::Bool(false),
        _ => {}
    }
    let begins_as_number = text
        .bytes()
        .next()
        .is_some_and(|b| b.is_ascii_digit() || b == b'-');
    if begins_as_number && let Ok(number) = serde_json::from_str::<Number>(&text) {
        return Tree::Number(number);
    }
    Tree::Text(text)
}
