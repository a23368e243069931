//! What was read in a confidential place does not leave by a tool whose receivers may not read it: `conditions.confidential`.
//!
//! A model may put what it read into any words. So once a confidential text was read, each value that certainly came from elsewhere may
//! leave, and no other.

use std::path::{Component, Path, PathBuf};

use serde_json::{Map, Value};

use crate::engine::PolicySubject;
use crate::glob::NamePattern;
use crate::value::{MAX_VALUES, TARGETS_ANNOTATION, gather, texts};
use crate::value_sources::{SourceText, ValueSource, ValueSources};

/// A place whose texts are confidential, besides those that a tool's annotations call so.
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
    /// Who may read what comes from there.
    readers: Vec<NamePattern>,
    /// Arguments that name the receivers; empty: the tool's `targets`.
    receivers: Vec<Box<str>>,
}

/// Truth values side by side that carry no text.
const MAX_FLAGS: usize = 8;

impl ConfidentialCondition {
    /// `true`, or `{ places, readers, receivers }`, each a text or a list of texts. `None`: it can't be read.
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
        let list = |name: &str| members.get(name).map_or(Some(Vec::new()), texts);
        Some(Self {
            places: list("places")?
                .into_iter()
                .map(ConfidentialPlace::read)
                .collect::<Option<_>>()?,
            readers: list("readers")?.into_iter().map(NamePattern::new).collect(),
            receivers: list("receivers")?.into_iter().map(Into::into).collect(),
        })
    }

    /// Whether it holds. A restrictive rule: something confidential may leave. A permissive rule: nothing confidential leaves for certain.
    pub(crate) fn holds(&self, subject: &PolicySubject<'_>, permissive: bool) -> bool {
        self.leaks(subject) != permissive
    }

    /// The first confidential text that may leave by this call, in words.
    pub(crate) fn leaking(&self, subject: &PolicySubject<'_>) -> Option<String> {
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

    fn leaks(&self, subject: &PolicySubject<'_>) -> bool {
        let Some(values) = subject.values else {
            // Nobody knows what was read, unless nothing was.
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
            .for_each(|value| gather(value, &mut carried));
        // More than can be looked at may hold anything.
        carried.len() > MAX_VALUES
            || carried
                .iter()
                .any(|value| !self.is_from_elsewhere(value, values, first))
    }

    /// A text that is not confidential holds the value, and nothing confidential can be in it.
    fn is_from_elsewhere(&self, value: &str, values: &ValueSources, first: usize) -> bool {
        let mut open = values.texts().iter().filter(|text| !self.is_confidential(text));
        open.any(|text| (text.source == ValueSource::Person || text.order < first) && text.holds_own(value))
    }

    /// It is confidential, and not all who get the call may read it.
    fn is_kept_from(&self, text: &SourceText, subject: &PolicySubject<'_>) -> bool {
        self.is_confidential(text) && !self.may_all_read(text, subject)
    }

    fn is_confidential(&self, text: &SourceText) -> bool {
        text.readers.is_some() || self.places.iter().any(|place| place.gave(text))
    }

    fn may_all_read(&self, text: &SourceText, subject: &PolicySubject<'_>) -> bool {
        let targets = subject.annotations.get(TARGETS_ANNOTATION);
        let names = match self.receivers.is_empty() {
            true => targets.and_then(texts).unwrap_or_default(),
            false => self.receivers.iter().map(|name| &**name).collect(),
        };
        let mut receivers = Vec::new();
        let named = subject
            .arguments
            .iter()
            .filter(|(name, _)| names.contains(&name.as_str()));
        named.for_each(|(_, value)| gather(value, &mut receivers));
        let readers = || self.readers.iter().chain(text.readers.iter().flatten());
        let may_read = |receiver: &String| is_one(receiver) && readers().any(|name| name.matches(receiver));
        !receivers.is_empty() && receivers.len() <= MAX_VALUES && receivers.iter().all(may_read)
    }
}

/// It may carry a text in what is not looked up: blanks, or a row of truth values.
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

/// One receiver, and not a list in one text: a pattern would take the second for a part of the first.
fn is_one(receiver: &str) -> bool {
    let parts = [',', ';', '<', '>', '%', '"', '\n', '\r'];
    receiver.matches('@').count() < 2 && !receiver.contains(parts)
}

impl ConfidentialPlace {
    /// `tool NAME`, `store NAME`, `channel NAME`, `folder PATH`.
    fn read(text: &str) -> Option<Self> {
        let (kind, name) = text.split_once(' ')?;
        let name = name.trim();
        match kind {
            _ if name.is_empty() => None,
            "tool" => Some(Self::Tool(NamePattern::new(name))),
            "store" => Some(Self::Store(NamePattern::new(name))),
            "channel" => Some(Self::Channel(NamePattern::new(name))),
            "folder" => lexical(name).map(Self::Folder),
            _ => None,
        }
    }

    /// The text may be from here.
    fn gave(&self, text: &SourceText) -> bool {
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

/// A path without what means nothing. `None`: nobody knows where it leads.
fn lexical(path: &str) -> Option<PathBuf> {
    let known = |part: &Component<'_>| !matches!(part, Component::ParentDir | Component::Prefix(_));
    let parts: Vec<_> = Path::new(path).components().collect();
    (parts.iter().all(known) && !path.starts_with('~')).then(|| {
        let named = |part: &&Component<'_>| !matches!(part, Component::CurDir);
        parts.iter().filter(named).collect()
    })
}

/// The path may lie in the folder, or the folder in it. Where one of them is absolute, the other's parts may stand anywhere in it.
fn may_meet(path: &str, folder: &Path) -> bool {
    let Some(path) = lexical(path) else {
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
