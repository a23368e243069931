//! `conditions.confidential`: confidential text must not leave through a tool whose receivers may not read it.
//!
//! A model can rephrase what it has read. So after it has read confidential text, only values that certainly have another source
//! may leave.

use std::path::{Component, Path, PathBuf};

use serde_json::{Map, Value};

use crate::engine::PolicySubject;
use crate::glob::NamePattern;
use crate::value::{MAX_VALUES, TARGETS_ANNOTATION, gather_texts, text_list};
use crate::value_sources::{SourceText, ValueSource, ValueSources};

/// A source of confidential texts, besides the tools whose annotations mark them as confidential.
#[derive(Debug, Clone, PartialEq, Eq)]
enum ConfidentialPlace {
    Tool(NamePattern),
    Store(NamePattern),
    Channel(NamePattern),
    Folder(PathBuf),
}

/// `conditions.confidential` of a rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ConfidentialCondition {
    places: Vec<ConfidentialPlace>,
    /// Who may read texts from there.
    readers: Vec<NamePattern>,
    /// Arguments that name the receivers; empty: the tool's `targets`.
    receivers: Vec<Box<str>>,
}

/// The largest number of booleans side by side. More could encode a text.
const MAX_FLAGS: usize = 8;

impl ConfidentialCondition {
    /// Reads `true`, or `{ places, readers, receivers }`, each a text or a list of texts. `None`: the value is not valid.
    pub(crate) fn read(value: &Value) -> Option<Self> {
        let none = Map::new();
        let members = match value {
            Value::Bool(true) => &none,
            other => other.as_object()?,
        };
        if members
            .keys()
            .any(|key| !["places", "readers", "receivers"].contains(&key.as_str()))
        {
            return None;
        }
        let list = |name: &str| members.get(name).map_or(Some(Vec::new()), text_list);
        Some(Self {
            places: list("places")?
                .into_iter()
                .map(ConfidentialPlace::read)
                .collect::<Option<_>>()?,
            readers: list("readers")?.into_iter().map(NamePattern::new).collect(),
            receivers: list("receivers")?.into_iter().map(Into::into).collect(),
        })
    }

    /// Whether the condition holds. For a restrictive rule: confidential text may leave. For a permissive rule: certainly no
    /// confidential text leaves.
    pub(crate) fn is_fulfilled(&self, subject: &PolicySubject<'_>, permissive: bool) -> bool {
        self.may_leak(subject) != permissive
    }

    /// Describes the first confidential text that may leave with this call.
    pub(crate) fn leaking_text(&self, subject: &PolicySubject<'_>) -> Option<String> {
        let values = subject.values?;
        let secret = values
            .texts()
            .iter()
            .find(|text| self.is_kept_from(text, subject))?;
        Some(match &secret.source {
            ValueSource::Tool { name, .. } => format!("what `{name}` gave is confidential"),
            ValueSource::Recalled(store) => format!("what is in the store `{store}` is confidential"),
            ValueSource::Summary => "a summary may hold something confidential".to_owned(),
            ValueSource::Person | ValueSource::Other => {
                "what was said on this channel is confidential".to_owned()
            }
        })
    }

    fn may_leak(&self, subject: &PolicySubject<'_>) -> bool {
        let Some(values) = subject.values else {
            // The sources are unknown, so text may leave, unless the context has no foreign text.
            return subject.taint.is_none_or(|taint| !taint.is_empty());
        };
        let secrets = values
            .texts()
            .iter()
            .filter(|text| self.is_kept_from(text, subject));
        let Some(first) = secrets.map(|text| text.order).min() else {
            return false;
        };
        if subject.arguments.values().any(hides_bits) {
            return true;
        }
        let mut carried = Vec::new();
        subject
            .arguments
            .values()
            .for_each(|value| gather_texts(value, &mut carried));
        // More values than are checked: they may contain anything.
        carried.len() > MAX_VALUES
            || carried
                .iter()
                .any(|value| !self.is_from_elsewhere(value, values, first))
    }

    /// Whether a text that is not confidential contains the value, and the value can't contain confidential text.
    fn is_from_elsewhere(&self, value: &str, values: &ValueSources, first: usize) -> bool {
        let mut open = values.texts().iter().filter(|text| !self.is_confidential(text));
        open.any(|text| (text.source == ValueSource::Person || text.order < first) && text.holds_own(value))
    }

    /// Whether the text is confidential and some receiver of the call may not read it.
    fn is_kept_from(&self, text: &SourceText, subject: &PolicySubject<'_>) -> bool {
        self.is_confidential(text) && !self.may_all_read(text, subject)
    }

    fn is_confidential(&self, text: &SourceText) -> bool {
        text.readers.is_some() || self.places.iter().any(|place| place.may_be_source(text))
    }

    fn may_all_read(&self, text: &SourceText, subject: &PolicySubject<'_>) -> bool {
        let targets = subject.annotations.get(TARGETS_ANNOTATION);
        let names = match self.receivers.is_empty() {
            true => targets.and_then(text_list).unwrap_or_default(),
            false => self.receivers.iter().map(|name| &**name).collect(),
        };
        let mut receivers = Vec::new();
        let named = subject
            .arguments
            .iter()
            .filter(|(name, _)| names.contains(&name.as_str()));
        named.for_each(|(_, value)| gather_texts(value, &mut receivers));
        let readers = || self.readers.iter().chain(text.readers.iter().flatten());
        let may_read = |receiver: &String| is_one(receiver) && readers().any(|name| name.matches(receiver));
        !receivers.is_empty() && receivers.len() <= MAX_VALUES && receivers.iter().all(may_read)
    }
}

/// Whether the value may carry a text in parts that are not checked: blanks, or a row of booleans.
fn hides_bits(value: &Value) -> bool {
    match value {
        Value::String(text) => !text.is_empty() && text.trim() != text,
        Value::Array(items) => {
            let flags = items.iter().filter(|item| item.is_boolean() || item.is_null());
            flags.count() > MAX_FLAGS || items.iter().any(hides_bits)
        }
        Value::Object(members) => {
            let flags = members
                .values()
                .filter(|item| item.is_boolean() || item.is_null());
            flags.count() > MAX_FLAGS || members.values().any(hides_bits)
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => false,
    }
}

/// Whether this is a single receiver. A list in one text is not, because a pattern could match only its first part.
fn is_one(receiver: &str) -> bool {
    let parts = [',', ';', '<', '>', '%', '"', '\n', '\r'];
    receiver.matches('@').count() < 2 && !receiver.contains(parts)
}

impl ConfidentialPlace {
    /// Reads `tool NAME`, `store NAME`, `channel NAME` or `folder PATH`.
    fn read(text: &str) -> Option<Self> {
        let (kind, name) = text.split_once(' ')?;
        let name = name.trim();
        match kind {
            _ if name.is_empty() => None,
            "tool" => Some(Self::Tool(NamePattern::new(name))),
            "store" => Some(Self::Store(NamePattern::new(name))),
            "channel" => Some(Self::Channel(NamePattern::new(name))),
            "folder" => lexical_path(name).map(Self::Folder),
            _ => None,
        }
    }

    /// Whether the text may come from this source.
    fn may_be_source(&self, text: &SourceText) -> bool {
        if text.source == ValueSource::Summary {
            return true;
        }
        match self {
            Self::Tool(wanted) => match &text.source {
                ValueSource::Tool { name, .. } => wanted.matches(name),
                ValueSource::Person
                | ValueSource::Other
                | ValueSource::Recalled(_)
                | ValueSource::Summary => false,
            },
            Self::Store(wanted) => text.store.as_deref().is_some_and(|store| wanted.matches(store)),
            Self::Channel(wanted) => text
                .channel
                .as_deref()
                .is_some_and(|channel| wanted.matches(channel)),
            Self::Folder(folder) => match &text.paths {
                None => true,
                Some(paths) => paths.iter().any(|path| may_meet(path, folder)),
            },
        }
    }
}

/// Normalizes a path by its text alone. `None`: it is unknown where the path leads.
fn lexical_path(path: &str) -> Option<PathBuf> {
    let known = |part: &Component<'_>| !matches!(part, Component::ParentDir | Component::Prefix(_));
    let parts: Vec<_> = Path::new(path).components().collect();
    (parts.iter().all(known) && !path.starts_with('~')).then(|| {
        let named = |part: &&Component<'_>| !matches!(part, Component::CurDir);
        parts.iter().filter(named).collect()
    })
}

/// Whether the path may be inside the folder, or the folder inside the path. If only one of them is absolute, the other's
/// components may appear anywhere in it.
fn may_meet(path: &str, folder: &Path) -> bool {
    let Some(path) = lexical_path(path) else {
        return true;
    };
    if path.is_absolute() == folder.is_absolute() {
        return path.starts_with(folder) || folder.starts_with(&path);
    }
    let (absolute, relative) = if path.is_absolute() {
        (&*path, folder)
    } else {
        (folder, &*path)
    };
    let parts: Vec<_> = absolute.components().collect();
    let tails = (0..parts.len()).map(|at| parts.iter().skip(at).collect::<PathBuf>());
    tails
        .into_iter()
        .any(|tail| tail.starts_with(relative) || relative.starts_with(&tail))
        || absolute.parent().is_none()
}
