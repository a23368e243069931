//! The texts of a context in which values of arguments are looked up (R51), and who gave them.

use std::collections::BTreeSet;
use std::sync::{Arc, OnceLock};

use serde_json::{Map, Value};

use crate::glob::NamePattern;
use crate::value::{MAX_VALUES, gather, texts};
use crate::value_text::{address_forms, halves, holds_whole, is_plain_words, unspelled};

/// Bytes of text in which values are looked up. What does not fit is left out: values are then taken for copies of foreign text.
const MAX_BYTES: usize = 4 << 20;
/// Longest value that is looked up, bytes.
const MAX_VALUE_BYTES: usize = 16 << 10;
/// Lookups of lookups that are followed.
const MAX_DEPTH: u8 = 3;

/// The origin of what the person, the manifest or the agent itself said.
pub(crate) const USER: &str = "user";
/// The kind of a result that may hold text of any origin.
pub(crate) const OPEN: &str = "open";

/// Annotation of a tool: `{ fields, asked }`. In its results, which are JSON, the operator's own system writes these fields. They are as
/// good as the values of the arguments `asked` that they were looked up with.
pub const LOOKUP_ANNOTATION: &str = "lookup";
/// Annotation of a tool: `true`, or a list of who may read what it gives.
pub const CONFIDENTIAL_ANNOTATION: &str = "confidential";

/// Whose text it is in which a value may be found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ValueSource {
    /// The person whose turn it is said it.
    Person,
    /// Somebody else said it.
    Other,
    /// The store of this name was asked for what fits the message.
    Recalled(Arc<str>),
    /// It stands for messages that have left the context.
    Summary,
    /// A tool of this name gave it. `closed`: it reaches no network, no files and no other agents, so the text is the tool's own.
    Tool { name: Arc<str>, closed: bool },
}

/// A text, and who gave it.
#[derive(Debug, Clone)]
pub(crate) struct SourceText {
    pub(crate) source: ValueSource,
    /// Where it stands among the texts of the context.
    pub(crate) order: usize,
    /// The channel that it came in by.
    pub(crate) channel: Option<Arc<str>>,
    text: Arc<str>,
    /// The same in small letters, once it is asked for.
    folded: OnceLock<Arc<str>>,
    /// The values that a tool was asked with: it may only repeat them.
    asked: Vec<String>,
    lookup: Option<LookupFields>,
    /// Who may read it besides the person; `None`: the tool's annotations keep nobody from it.
    pub(crate) readers: Option<Vec<NamePattern>>,
    /// The store that it was asked for.
    pub(crate) store: Option<Arc<str>>,
    /// Paths that it may have been read from; `None`: nobody knows which. Empty: from no file.
    pub(crate) paths: Option<Vec<String>>,
}

/// Values that a tool's own system wrote.
#[derive(Debug, Clone)]
struct LookupFields {
    values: BTreeSet<String>,
    /// What they were looked up with.
    asked: Vec<String>,
}

/// A tool's result, as values are looked up in it.
#[derive(Debug, Clone, Copy)]
pub struct ToolResult<'a> {
    /// The tool.
    pub tool: &'a str,
    /// What it was called with.
    pub arguments: &'a Map<String, Value>,
    /// What it said.
    pub text: &'a str,
    /// The text has the origin `tool` alone.
    pub closed: bool,
    /// Its `lookup` annotation counts: nothing but the tool's own system gave the text.
    pub is_lookup: bool,
    /// It may hold text of files.
    pub reads_files: bool,
    /// The annotations that count (R13); `None`: nobody knows them.
    pub annotations: Option<&'a Map<String, Value>>,
    /// Where it stands among the texts of the context.
    pub order: usize,
}

/// The texts of a context in which values are looked up.
#[derive(Debug, Clone, Default)]
pub struct ValueSources {
    texts: Vec<SourceText>,
    bytes: usize,
}

/// Which sources will do, by the kind of their origin and the tool's name.
pub(crate) type OriginFilter<'a> = &'a dyn Fn(&str, Option<&str>) -> bool;

impl ValueSources {
    /// Adds the person's words, if there is room for them.
    pub fn add_person(&mut self, text: &str) {
        self.add_words(text, None, true, 0);
    }

    /// Adds what somebody said on a channel. `own`: the person whose turn it is.
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

    /// Adds that a store was asked for what fits the message.
    pub fn add_recalled(&mut self, store: &str) {
        self.add(SourceText {
            store: Some(store.into()),
            ..SourceText::new(ValueSource::Recalled(store.into()), "", 0)
        });
    }

    /// Adds that earlier messages were replaced: nobody knows any more which of their words came from where.
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
        arguments.values().for_each(|value| gather(value, &mut asked));
        let store = arguments.get("store").and_then(Value::as_str);
        // A tool that was asked with more than can be looked at may only repeat it.
        let text = if asked.len() > MAX_VALUES { "" } else { text };
        let annotation = |name: &str| annotations.and_then(|annotations| annotations.get(name));
        let name: Arc<str> = tool.into();
        self.add(SourceText {
            readers: annotation(CONFIDENTIAL_ANNOTATION).and_then(readers),
            lookup: annotation(LOOKUP_ANNOTATION)
                .filter(|_| is_lookup)
                .and_then(|lookup| LookupFields::read(lookup, arguments, text)),
            store: store.map(Into::into),
            paths: match reads_files {
                true => paths(arguments),
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
            // That it was read is known, and no value stands in it.
            added.text = Arc::from("");
            added.lookup = None;
        }
        self.texts.push(added);
    }

    pub(crate) fn texts(&self) -> &[SourceText] {
        &self.texts
    }

    /// A source that this accepts holds the value whole, or the two values that it is put together from.
    pub(crate) fn gives(&self, value: &str, accepts: OriginFilter<'_>) -> bool {
        let whole = |value: &str| self.source_of(value, accepts, MAX_DEPTH).is_some();
        value.len() <= MAX_VALUE_BYTES
            && (address_forms(value).any(whole)
                || halves(value).any(|(first, second)| whole(first) && whole(second)))
    }

    /// The person's words hold the value, or the two that it is put together from.
    pub(crate) fn typed(&self, value: &str) -> bool {
        let person = |value: &str| {
            self.texts
                .iter()
                .any(|text| text.source == ValueSource::Person && text.holds(value))
        };
        address_forms(value).any(person)
            || halves(value).any(|(first, second)| person(first) && person(second))
    }

    /// Who gave the first text that holds the value.
    pub(crate) fn holder(&self, value: &str) -> Option<&ValueSource> {
        self.texts
            .iter()
            .find(|text| text.holds_own(value))
            .map(|text| &text.source)
    }

    /// The source that holds the value whole, of those that this accepts.
    pub(crate) fn source_of(&self, value: &str, accepts: OriginFilter<'_>, depth: u8) -> Option<&SourceText> {
        let is_source = |from: &&SourceText| self.is_source(from, value, accepts, depth);
        self.texts.iter().find(is_source)
    }

    fn is_source(&self, from: &SourceText, value: &str, accepts: OriginFilter<'_>, depth: u8) -> bool {
        let ValueSource::Tool { name, closed } = &from.source else {
            return from.source == ValueSource::Person && accepts(USER, None) && from.holds(value);
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
        (accepts(kind, Some(name)) && from.holds(value) && is_its_own()) || is_looked_up()
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

    /// The value stands in it whole. What a tool only repeats does not count.
    pub(crate) fn holds_own(&self, value: &str) -> bool {
        self.holds(value) && !self.was_asked_with(value)
    }

    /// The tool was asked with the value, in whichever spelling: other capitals, blanks, escapes of addresses.
    fn was_asked_with(&self, value: &str) -> bool {
        let plain = value.to_lowercase();
        let spelled = unspelled(value);
        self.asked
            .iter()
            .any(|asked| asked.to_lowercase().contains(&plain) || unspelled(asked).contains(&spelled))
    }

    fn holds(&self, value: &str) -> bool {
        let folds = || {
            let folded = self.folded.get_or_init(|| self.text.to_lowercase().into());
            holds_whole(folded, &value.to_lowercase())
        };
        holds_whole(&self.text, value) || (is_plain_words(value) && folds())
    }
}

impl LookupFields {
    /// `fields`: names of members, or `"*"`; `asked`: names of arguments. `None`: nothing was looked up by them, or it can't be read.
    fn read(annotation: &Value, arguments: &Map<String, Value>, text: &str) -> Option<Self> {
        let members = annotation.as_object()?;
        let fields = texts(members.get("fields")?)?;
        let mut asked = Vec::new();
        for name in members.get("asked").map_or(Some(Vec::new()), texts)? {
            let before = asked.len();
            gather(arguments.get(name)?, &mut asked);
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

/// Who may read what the tool gives. What can't be read is for nobody.
fn readers(annotation: &Value) -> Option<Vec<NamePattern>> {
    match annotation {
        Value::Bool(false) | Value::Null => None,
        other => Some(
            texts(other)
                .unwrap_or_default()
                .into_iter()
                .map(NamePattern::new)
                .collect(),
        ),
    }
}

/// The paths of a call that reads files. `None`: it names none.
fn paths(arguments: &Map<String, Value>) -> Option<Vec<String>> {
    let named = ["path", "file", "file_path", "folder", "directory"];
    let found: Vec<String> = named
        .iter()
        .filter_map(|name| arguments.get(*name).and_then(Value::as_str))
        .map(str::to_owned)
        .collect();
    (!found.is_empty()).then_some(found)
}
