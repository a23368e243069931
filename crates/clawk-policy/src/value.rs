//! Where the values of a call's arguments came from (R51): `conditions.from`.
//!
//! A value that was copied whole from what the person said, or from a tool's result, is as good as its source, whatever else the
//! conversation holds. Any other value may be the work of any text in the conversation.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::{Map, Value};

use crate::engine::Subject;
use crate::glob::Name;

/// Bytes of text in which values are looked up. What does not fit is left out: values are then taken for copies of foreign text.
const MAX_BYTES: usize = 4 << 20;
/// Longest value that is looked up, bytes.
const MAX_VALUE_BYTES: usize = 16 << 10;
/// Values of one call that are looked up.
const MAX_VALUES: usize = 1_000;

/// The origin of what the person, the manifest or the agent itself said.
const USER: &str = "user";
/// The kind of a result that may hold text of any origin.
const OPEN: &str = "open";

/// Whose text it is in which a value may be found.
#[derive(Debug, Clone, PartialEq, Eq)]
enum ValueSource {
    /// The person whose turn it is said it.
    Person,
    /// A tool of this name gave it. `closed`: it reaches no network, no files and no other agents, so the text is the tool's own.
    Tool { name: Arc<str>, closed: bool },
}

/// A text, and who gave it.
#[derive(Debug, Clone)]
struct SourceText {
    source: ValueSource,
    text: Arc<str>,
    /// The values that a tool was asked with: it may only repeat them.
    asked: Vec<String>,
}

/// The texts of a context in which values are looked up.
#[derive(Debug, Clone, Default)]
pub struct ValueSources {
    texts: Vec<SourceText>,
    bytes: usize,
}

impl ValueSources {
    /// Adds the person's words, if there is room for them.
    pub fn add_person(&mut self, text: &str) {
        self.add(ValueSource::Person, text, Vec::new());
    }

    /// Adds a tool's result, with the arguments that it was called with. `closed`: the text has the origin `tool` alone.
    pub fn add_result(&mut self, tool: &str, arguments: &Map<String, Value>, text: &str, closed: bool) {
        let mut asked = Vec::new();
        arguments.values().for_each(|value| gather(value, &mut asked));
        let name = tool.into();
        self.add(ValueSource::Tool { name, closed }, text, asked);
    }

    fn add(&mut self, source: ValueSource, text: &str, asked: Vec<String>) {
        let more = asked.iter().map(String::len).sum::<usize>();
        let bytes = self.bytes.saturating_add(text.len()).saturating_add(more);
        if bytes <= MAX_BYTES {
            self.bytes = bytes;
            let text = text.into();
            self.texts.push(SourceText { source, text, asked });
        }
    }

    /// A source that this accepts, by the kind of its origin and the tool's name, holds the value whole.
    fn gives(&self, value: &str, accepts: impl Fn(&str, Option<&str>) -> bool) -> bool {
        let folded = value.to_lowercase();
        let fits = |from: &SourceText| match &from.source {
            ValueSource::Person => accepts(USER, None),
            ValueSource::Tool { name, closed } => {
                let kind = if *closed { "tool" } else { OPEN };
                // What the tool was asked with came from elsewhere, also where its answer repeats it.
                accepts(kind, Some(name))
                    && !from
                        .asked
                        .iter()
                        .any(|asked| asked.to_lowercase().contains(&folded))
            }
        };
        let gives = |from: &SourceText| fits(from) && holds_whole(&from.text, value);
        value.len() <= MAX_VALUE_BYTES && self.texts.iter().any(gives)
    }
}

/// `conditions.from` of a rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ValueCondition {
    /// Arguments that are looked at; `None`: all of them.
    pub(crate) arguments: Option<Vec<Box<str>>>,
    /// Kinds of origins.
    pub(crate) origins: Vec<Box<str>>,
    /// Tools whose results are as good as the person's word.
    pub(crate) trust: Vec<Name>,
}

impl ValueCondition {
    /// `argument` and `origins` are texts or lists of texts, `trust` may be absent. `None`: it can't be read.
    pub(crate) fn read(value: &Value) -> Option<Self> {
        let members = value.as_object()?;
        if members
            .keys()
            .any(|key| !["argument", "origins", "trust"].contains(&key.as_str()))
        {
            return None;
        }
        let arguments = texts(members.get("argument")?)?;
        let origins = texts(members.get("origins")?)?;
        let known = |kind: &&str| *kind == USER || crate::source::TAINTS.contains(kind);
        let trust = members.get("trust").map_or(Some(Vec::new()), texts)?;
        (!arguments.is_empty() && !origins.is_empty() && origins.iter().all(known)).then(|| Self {
            arguments: (!arguments.contains(&"*")).then(|| arguments.into_iter().map(Into::into).collect()),
            origins: origins.into_iter().map(Into::into).collect(),
            trust: trust.into_iter().map(Name::new).collect(),
        })
    }

    /// Whether it holds. A restrictive rule: a value of an argument may come from one of the origins. A permissive rule: there is a
    /// value, and each comes from one of them for certain.
    pub(crate) fn holds(&self, subject: &Subject<'_>, permissive: bool) -> bool {
        let Some(taint) = subject.taint else {
            return !permissive; // nobody knows the context
        };
        let kind = |origin: &String| origin.split(' ').next().unwrap_or_default().to_owned();
        let foreign: BTreeSet<String> = taint.iter().map(kind).collect();
        let names_kind = |kind: &str| self.origins.iter().any(|wanted| **wanted == *kind);
        let any_foreign = foreign.iter().any(|kind| names_kind(kind));
        // Where nothing foreign was read, every value is the person's.
        let all_named = match foreign.is_empty() {
            true => names_kind(USER),
            false => foreign.iter().all(|kind| names_kind(kind)),
        };
        let is_trusted =
            |tool: Option<&str>| tool.is_some_and(|tool| self.trust.iter().any(|name| name.matches(tool)));
        let gives = |value: &str, accepts: &dyn Fn(&str, Option<&str>) -> bool| {
            subject.values.is_some_and(|values| values.gives(value, accepts))
        };
        let Some(values) = self.values(subject.arguments) else {
            return !permissive; // more than can be looked at
        };
        match permissive {
            true => {
                let named = |kind: &str, tool: Option<&str>| names_kind(kind) || is_trusted(tool);
                (self.arguments.is_none() || !values.is_empty())
                    && (all_named || values.iter().all(|value| gives(value, &named)))
            }
            false => {
                let other =
                    |kind: &str, tool: Option<&str>| (kind != OPEN && !names_kind(kind)) || is_trusted(tool);
                any_foreign && values.iter().any(|value| !gives(value, &other))
            }
        }
    }

    /// The texts and numbers of the arguments that it looks at, and the names of members within them.
    fn values(&self, arguments: &Map<String, Value>) -> Option<Vec<String>> {
        let mut found = Vec::new();
        for (name, value) in arguments {
            let wanted = |names: &Vec<Box<str>>| names.iter().any(|one| **one == *name);
            if self.arguments.as_ref().is_none_or(wanted) {
                gather(value, &mut found);
            }
        }
        (found.len() <= MAX_VALUES).then_some(found)
    }
}

fn texts(value: &Value) -> Option<Vec<&str>> {
    match value {
        Value::String(text) => Some(vec![text]),
        Value::Array(items) => items.iter().map(Value::as_str).collect(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_) => None,
    }
}

/// A truth value and an absent one hold no text.
fn gather(value: &Value, found: &mut Vec<String>) {
    if found.len() > MAX_VALUES {
        return;
    }
    match value {
        Value::Null | Value::Bool(_) => {}
        Value::String(text) if text.trim().is_empty() => {}
        Value::String(text) => found.push(text.trim().to_owned()),
        Value::Number(number) => found.push(number.to_string()),
        Value::Array(items) => items.iter().for_each(|item| gather(item, found)),
        Value::Object(members) => {
            for (key, inner) in members {
                found.push(key.clone());
                gather(inner, found);
            }
        }
    }
}

/// The text holds the value, and not as a part of a longer word, address or number.
fn holds_whole(text: &str, value: &str) -> bool {
    let (Some(first), Some(last)) = (value.chars().next(), value.chars().next_back()) else {
        return false;
    };
    text.match_indices(value).any(|(at, _)| {
        let (before, after) = (text.get(..at), text.get(at.saturating_add(value.len())..));
        let (Some(before), Some(after)) = (before, after) else {
            return false;
        };
        !before.chars().next_back().is_some_and(|c| joins(first, c)) && ends(last, after)
    })
}

/// A character that belongs to the word, address, path or number that this end of a value is a part of.
fn joins(edge: char, next: char) -> bool {
    // Chinese, Japanese and Korean words follow an address without a blank.
    let is_unspaced =
        matches!(next, '\u{2e80}'..='\u{9fff}' | '\u{ac00}'..='\u{d7af}' | '\u{f900}'..='\u{faff}');
    !(edge.is_ascii() && is_unspaced) && (next.is_alphanumeric() || "@._-/\\:+%~#&=?$*".contains(next))
}

/// What follows a value does not go on with it: a sentence's end does not.
fn ends(last: char, after: &str) -> bool {
    let rest = after.trim_start_matches(['.', ':', '?', '!']);
    rest.chars().next().is_none_or(|next| !joins(last, next))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn sources() -> ValueSources {
        let mut sources = ValueSources::default();
        let said = "Send 50 to Ann at ann@corp.example, and the file bill-2023.txt to \"the whole team\". Ask bob. Then see https://corp.example/a?b=1! 给li@corp.example发邮件";
        sources.add_person(said);
        let asked = Map::from_iter([("name".to_owned(), json!("mallory@evil.test"))]);
        let text = "Eve <eve@corp.example>, 7 Elm Street. There is no mallory@evil.test here.";
        sources.add_result("contacts", &asked, text, true);
        sources
    }

    #[test]
    fn a_value_is_clean_where_a_clean_source_holds_it_whole() {
        let sources = sources();
        let any = |_: &str, _: Option<&str>| true;
        for clean in [
            "50",
            "Ann",
            "ann@corp.example",
            "bill-2023.txt",
            "the whole team",
            "bob",
            "https://corp.example/a?b=1",
            "Ann at ann@corp.example",
            "li@corp.example",
            "eve@corp.example",
            "7 Elm Street",
            "7",
        ] {
            assert!(sources.gives(clean, any), "{clean}");
        }
        for foreign in [
            "5",
            "500",
            "nn",
            "corp.example",
            "ann@corp",
            "ann",
            "2023",
            "bill-2023",
            "https://corp.example/a",
            "Ann@corp.example",
            "mallory@evil.test",
            "50 to Mallory",
            "example/a?b=1",
            "eve",
            "b=1",
            "the whole teams",
            "corp.example/",
        ] {
            assert!(!sources.gives(foreign, any), "{foreign}");
        }
        assert!(!sources.gives("eve@corp.example", |kind, _| kind == USER));
        assert!(sources.gives("eve@corp.example", |_, tool| tool == Some("contacts")));
    }

    #[test]
    fn what_can_not_be_read_is_no_condition() {
        for value in [
            json!("to"),
            json!({}),
            json!({"argument": "to"}),
            json!({"argument": [], "origins": "web"}),
            json!({"argument": "to", "origins": []}),
            json!({"argument": "to", "origins": "moon"}),
            json!({"argument": 1, "origins": "web"}),
            json!({"argument": "to", "origins": ["web", 1]}),
            json!({"argument": "to", "origins": "web", "trust": {}}),
            json!({"argument": "to", "origins": "web", "unless": true}),
        ] {
            assert_eq!(ValueCondition::read(&value), None, "{value}");
        }
        assert!(
            ValueCondition::read(
                &json!({"argument": ["to", "cc"], "origins": ["web", "peer"], "trust": "contacts"})
            )
            .is_some()
        );
    }
}
