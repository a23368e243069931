//! The texts of a context in which argument values are searched (R51), with their sources.

use std::collections::BTreeSet;
use std::sync::{Arc, OnceLock};

use serde_json::{Map, Value};

use crate::glob::NamePattern;
use crate::value::{MAX_VALUES, gather_texts, text_list};
use crate::value_text::{address_forms, holds_whole, is_plain_words, unspelled, value_halves};

/// The largest total size of the texts, bytes. Texts above it are left out; values in them then count as copied from foreign text.
const MAX_BYTES: usize = 4 << 20;
/// The longest value that is searched, bytes.
const MAX_VALUE_BYTES: usize = 16 << 10;
/// How many lookups that depend on earlier lookups are followed.
const MAX_DEPTH: u8 = 3;

/// The origin of text by the person, the manifest or the agent itself.
pub(crate) const USER: &str = "user";
/// The kind of a result that may contain text of any origin.
pub(crate) const OPEN: &str = "open";

/// A tool annotation: `{ fields, asked }`. The operator's own system writes these fields of the tool's JSON results. They are as
/// trustworthy as the values of the arguments `asked`, which were used for the lookup.
pub const LOOKUP_ANNOTATION: &str = "lookup";
/// A tool annotation: `true`, or a list of those who may read the tool's results.
pub const CONFIDENTIAL_ANNOTATION: &str = "confidential";

/// The source of a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ValueSource {
    /// The person whose turn it is.
    Person,
    /// Another person.
    Other,
    /// A search in the store of this name for entries that fit the message.
    Recalled(Arc<str>),
    /// A summary of messages that have left the context.
    Summary,
    /// A tool of this name. `closed`: it uses no network, no files and no other agents, so the text is the tool's own.
    Tool { name: Arc<str>, closed: bool },
}

/// A text with its source.
#[derive(Debug, Clone)]
pub(crate) struct SourceText {
    pub(crate) source: ValueSource,
    /// Its position among the texts of the context.
    pub(crate) order: usize,
    /// The channel of the message.
    pub(crate) channel: Option<Arc<str>>,
    text: Arc<str>,
    /// The text in lower case, computed on demand.
    folded: OnceLock<Arc<str>>,
    /// The values in the tool's arguments; the tool may only repeat them.
    asked: Vec<String>,
    lookup: Option<LookupFields>,
    /// Who may read it besides the person; `None`: everybody, by the tool's annotations.
    pub(crate) readers: Option<Vec<NamePattern>>,
    /// The store that was searched.
    pub(crate) store: Option<Arc<str>>,
    /// The paths that it may have been read from; `None`: unknown. Empty: no file.
    pub(crate) paths: Option<Vec<String>>,
}

/// Values that a tool's own system wrote.
#[derive(Debug, Clone)]
struct LookupFields {
    values: BTreeSet<String>,
    /// The arguments' values that were used for the lookup.
    asked: Vec<String>,
}

/// A tool's result with the facts that a value search needs.
#[derive(Debug, Clone, Copy)]
pub struct ToolResult<'a> {
    /// The tool.
    pub tool: &'a str,
    /// The call's arguments.
    pub arguments: &'a Map<String, Value>,
    /// The text of the result.
    pub text: &'a str,
    /// The text has only the origin `tool`.
    pub closed: bool,
    /// The `lookup` annotation applies: only the tool's own system wrote the text.
    pub is_lookup: bool,
    /// It may contain text of files.
    pub reads_files: bool,
    /// The annotations in force (R13); `None`: unknown.
    pub annotations: Option<&'a Map<String, Value>>,
    /// Its position among the texts of the context.
    pub order: usize,
}

/// The texts of a context in which argument values are searched.
#[derive(Debug, Clone, Default)]
pub struct ValueSources {
    texts: Vec<SourceText>,
    bytes: usize,
}

/// Decides which sources are accepted, by the kind of their origin and the tool's name.
pub(crate) type OriginFilter<'a> = &'a dyn Fn(&str, Option<&str>) -> bool;

impl ValueSources {
    /// Adds the person's words, if the size limit allows it.
    pub fn add_person(&mut self, text: &str) {
        self.add_words(text, None, true, 0);
    }

    /// Adds a message of a channel. `own`: it is from the person whose turn it is.
    pub fn add_words(&mut self, text: &str, channel: Option<&str>, own: bool, order: usize) {
        let source = if own {
            ValueSource::Person
        } else {
            ValueSource::Other
        };
        self.add(SourceText {
            channel: channel.map(Into::into),
            ..SourceText::new(source, text, order)
        });
    }

    /// Records that a store was searched for entries that fit the message.
    pub fn add_recalled(&mut self, store: &str) {
        self.add(SourceText {
            store: Some(store.into()),
            ..SourceText::new(ValueSource::Recalled(store.into()), "", 0)
        });
    }

    /// Records that a summary replaced earlier messages: the sources of their words are no longer known.
    pub fn add_summary(&mut self, order: usize) {
        self.add(SourceText::new(ValueSource::Summary, "", order));
    }

    /// Adds a tool's result.
    pub fn add_result(&mut self, result: &ToolResult<'_>) {
        let ToolResult {
            tool,
            arguments,
            text,
            closed,
            is_lookup,
            reads_files,
            annotations,
            order,
        } = *result;
        let mut asked = Vec::new();
        arguments
            .values()
            .for_each(|value| gather_texts(value, &mut asked));
        let store = arguments.get("store").and_then(Value::as_str);
        // If the call had more values than can be checked, the tool may only repeat them.
        let text = if asked.len() > MAX_VALUES { "" } else { text };
        let annotation = |name: &str| annotations.and_then(|annotations| annotations.get(name));
        let name: Arc<str> = tool.into();
        self.add(SourceText {
            readers: annotation(CONFIDENTIAL_ANNOTATION).and_then(allowed_readers),
            lookup: annotation(LOOKUP_ANNOTATION)
                .filter(|_| is_lookup)
                .and_then(|lookup| LookupFields::read(lookup, arguments, text)),
            store: store.map(Into::into),
            paths: match reads_files {
                true => read_paths(arguments),
                false => Some(Vec::new()),
            },
            asked,
            ..SourceText::new(ValueSource::Tool { name, closed }, text, order)
        });
    }

    fn add(&mut self, mut added: SourceText) {
        let more = added.asked.iter().map(String::len).sum::<usize>();
        let bytes = self.bytes.saturating_add(added.text.len()).saturating_add(more);
        if bytes <= MAX_BYTES {
            self.bytes = bytes;
        } else {
            // It is known that the text was read, but no value is searched in it.
            added.text = Arc::from("");
            added.lookup = None;
        }
        self.texts.push(added);
    }

    pub(crate) fn texts(&self) -> &[SourceText] {
        &self.texts
    }

    /// Whether an accepted source contains the value whole, or the two values that it consists of.
    pub(crate) fn has_source(&self, value: &str, accepts: OriginFilter<'_>) -> bool {
        let whole = |value: &str| self.source_of(value, accepts, MAX_DEPTH).is_some();
        value.len() <= MAX_VALUE_BYTES
            && (address_forms(value).any(whole)
                || value_halves(value).any(|(first, second)| whole(first) && whole(second)))
    }

    /// Whether the person's words contain the value, or the two values that it consists of.
    pub(crate) fn is_typed(&self, value: &str) -> bool {
        let person = |value: &str| {
            self.texts
                .iter()
                .any(|text| text.source == ValueSource::Person && text.contains_value(value))
        };
        address_forms(value).any(person)
            || value_halves(value).any(|(first, second)| person(first) && person(second))
    }

    /// The source of the first text that contains the value.
    pub(crate) fn source_of_value(&self, value: &str) -> Option<&ValueSource> {
        self.texts
            .iter()
            .find(|text| text.holds_own(value))
            .map(|text| &text.source)
    }

    /// The accepted source that contains the value whole.
    pub(crate) fn source_of(&self, value: &str, accepts: OriginFilter<'_>, depth: u8) -> Option<&SourceText> {
        let is_source = |from: &&SourceText| self.is_source(from, value, accepts, depth);
        self.texts.iter().find(is_source)
    }

    fn is_source(&self, from: &SourceText, value: &str, accepts: OriginFilter<'_>, depth: u8) -> bool {
        let ValueSource::Tool { name, closed } = &from.source else {
            return from.source == ValueSource::Person && accepts(USER, None) && from.contains_value(value);
        };
        let kind = if *closed { "tool" } else { OPEN };
        // What the tool was asked with came from elsewhere, also where its answer repeats it.
        let is_its_own = || !from.was_asked_with(value);
        let is_looked_up = || {
            let lookup = from
                .lookup
                .as_ref()
                .filter(|lookup| lookup.values.contains(value));
            lookup.is_some_and(|lookup| {
                let is_given =
                    |asked: &String| self.source_of(asked, accepts, depth.saturating_sub(1)).is_some();
                depth > 0 && accepts(USER, None) && lookup.asked.iter().all(is_given)
            })
        };
        (accepts(kind, Some(name)) && from.contains_value(value) && is_its_own()) || is_looked_up()
    }
}

impl SourceText {
    fn new(source: ValueSource, text: &str, order: usize) -> Self {
        Self {
            source,
            order,
            channel: None,
            text: text.into(),
            folded: OnceLock::new(),
            asked: Vec::new(),
            lookup: None,
            readers: None,
            store: None,
            paths: Some(Vec::new()),
        }
    }

    /// Whether it contains the value whole. Values that the tool only repeats don't count.
    pub(crate) fn holds_own(&self, value: &str) -> bool {
        self.contains_value(value) && !self.was_asked_with(value)
    }

    /// The tool was asked with the value, in whichever spelling: other capitals, blanks, escapes of addresses.
    fn was_asked_with(&self, value: &str) -> bool {
        let plain = value.to_lowercase();
        let spelled = unspelled(value);
        self.asked
            .iter()
            .any(|asked| asked.to_lowercase().contains(&plain) || unspelled(asked).contains(&spelled))
    }

    fn contains_value(&self, value: &str) -> bool {
        let folds = || {
            let folded = self.folded.get_or_init(|| self.text.to_lowercase().into());
            holds_whole(folded, &value.to_lowercase())
        };
        holds_whole(&self.text, value) || (is_plain_words(value) && folds())
    }
}

impl LookupFields {
    /// `fields`: member names, or `"*"`; `asked`: names of arguments. `None`: nothing was looked up with them, or the annotation is
    /// not valid.
    fn read(annotation: &Value, arguments: &Map<String, Value>, text: &str) -> Option<Self> {
        let members = annotation.as_object()?;
        let fields = text_list(members.get("fields")?)?;
        let mut asked = Vec::new();
        for name in members.get("asked").map_or(Some(Vec::new()), text_list)? {
            let before = asked.len();
            gather_texts(arguments.get(name)?, &mut asked);
            if asked.len() == before {
                return None; // it was asked for everything
            }
        }
        if asked.len() > MAX_VALUES {
            return None; // by more than can be looked at
        }
        let parsed: Value = serde_json::from_str(text).ok()?; // silent-ok: text has no fields
        let mut values = BTreeSet::new();
        gather_fields(&parsed, fields.contains(&"*"), &fields, &mut values);
        Some(Self { values, asked })
    }
}

fn gather_fields(value: &Value, inside: bool, fields: &[&str], found: &mut BTreeSet<String>) {
    match value {
        Value::Null | Value::Bool(_) => {}
        Value::String(text) if inside => {
            found.insert(text.trim().to_owned());
        }
        Value::Number(number) if inside => {
            found.insert(number.to_string());
        }
        Value::String(_) | Value::Number(_) => {}
        Value::Array(items) => items
            .iter()
            .for_each(|item| gather_fields(item, inside, fields, found)),
        Value::Object(members) => {
            let all = fields.contains(&"*");
            for (key, inner) in members {
                gather_fields(inner, all || fields.contains(&key.as_str()), fields, found);
            }
        }
    }
}

/// Who may read the tool's results. An invalid annotation allows nobody.
fn allowed_readers(annotation: &Value) -> Option<Vec<NamePattern>> {
    match annotation {
        Value::Bool(false) | Value::Null => None,
        other => Some(
            text_list(other)
                .unwrap_or_default()
                .into_iter()
                .map(NamePattern::new)
                .collect(),
        ),
    }
}

/// The paths of a call that reads files. `None`: it names none.
fn read_paths(arguments: &Map<String, Value>) -> Option<Vec<String>> {
    let named = ["path", "file", "file_path", "folder", "directory"];
    let found: Vec<String> = named
        .iter()
        .filter_map(|name| arguments.get(*name).and_then(Value::as_str))
        .map(str::to_owned)
        .collect();
    (!found.is_empty()).then_some(found)
}
