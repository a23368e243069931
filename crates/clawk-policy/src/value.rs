//! The sources of the values in a call's arguments (R51): `conditions.from`.
//!
//! A value that was copied whole from the person's words or from a tool's result is as trustworthy as its source, whatever else the
//! conversation contains. Any other value may come from any text in the conversation.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::engine::PolicySubject;
use crate::glob::NamePattern;
use crate::value_sources::{OPEN, USER};
use crate::value_text::{find_links, number_groups};

/// The largest number of values that are checked per call.
pub(crate) const MAX_VALUES: usize = 1_000;

/// A tool annotation: the arguments that choose recipients, amounts and destinations. Without it, all arguments do.
pub const TARGETS_ANNOTATION: &str = "targets";
/// The name in rules for the arguments in the tool's annotation.
const TARGETS: &str = "@targets";
/// The name in rules for addresses and accounts inside the other arguments.
const LINKS: &str = "@links";

/// The arguments that a rule checks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ArgumentSet {
    /// All arguments.
    All,
    /// The argument with this name.
    Named(Box<str>),
    /// The arguments that choose recipients and amounts, by the tool's annotations.
    Targets,
    /// Addresses and accounts in the text of the other arguments.
    Links,
}

impl ArgumentSet {
    fn read(name: &str) -> Option<Self> {
        match name {
            "*" => Some(Self::All),
            TARGETS => Some(Self::Targets),
            LINKS => Some(Self::Links),
            other if other.starts_with('@') => None,
            other => Some(Self::Named(other.into())),
        }
    }
}

/// A value that a rule checks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ArgumentValue {
    /// The argument that contains it.
    pub(crate) argument: String,
    pub(crate) text: String,
}

/// `conditions.from` of a rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ValueCondition {
    /// The arguments to check.
    pub(crate) arguments: Vec<ArgumentSet>,
    /// Kinds of origins.
    pub(crate) origins: Vec<Box<str>>,
    /// Tools whose results count as the person's words.
    pub(crate) trust: Vec<NamePattern>,
}

impl ValueCondition {
    /// `argument` and `origins` are texts or lists of texts; `trust` is optional. `None`: the value is not valid.
    pub(crate) fn read(value: &Value) -> Option<Self> {
        let members = value.as_object()?;
        if members
            .keys()
            .any(|key| !["argument", "origins", "trust"].contains(&key.as_str()))
        {
            return None;
        }
        let arguments: Vec<ArgumentSet> = text_list(members.get("argument")?)?
            .into_iter()
            .map(ArgumentSet::read)
            .collect::<Option<_>>()?;
        let origins = text_list(members.get("origins")?)?;
        let known = |kind: &&str| *kind == USER || crate::source::TAINTS.contains(kind);
        let trust = members.get("trust").map_or(Some(Vec::new()), text_list)?;
        (!arguments.is_empty() && !origins.is_empty() && origins.iter().all(known)).then(|| Self {
            arguments,
            origins: origins.into_iter().map(Into::into).collect(),
            trust: trust.into_iter().map(NamePattern::new).collect(),
        })
    }

    /// Whether the condition holds. For a restrictive rule: a value may come from one of the origins. For a permissive rule: there
    /// is a value, and each value certainly comes from one of them.
    pub(crate) fn is_fulfilled(&self, subject: &PolicySubject<'_>, permissive: bool) -> bool {
        let Some(taint) = subject.taint else {
            return !permissive; // nobody knows the context
        };
        let kind = |origin: &String| origin.split(' ').next().unwrap_or_default().to_owned();
        let foreign: BTreeSet<String> = taint.iter().map(kind).collect();
        let names_kind = |kind: &str| self.origins.iter().any(|wanted| **wanted == *kind);
        let any_foreign = foreign.iter().any(|kind| names_kind(kind));
        // Without foreign text in the context, every value is the person's.
        let all_named = match foreign.is_empty() {
            true => names_kind(USER),
            false => foreign.iter().all(|kind| names_kind(kind)),
        };
        let Some(values) = self.argument_values(subject) else {
            return !permissive; // more than can be looked at
        };
        match permissive {
            true => {
                let named = |kind: &str, tool: Option<&str>| names_kind(kind) || self.trusts_tool(tool);
                let gives = |value: &ArgumentValue| source_gives(subject, &value.text, &named);
                (self.arguments.contains(&ArgumentSet::All) || !values.is_empty())
                    && (all_named || values.iter().all(gives))
            }
            false => {
                any_foreign
                    && values
                        .iter()
                        .any(|value| !self.is_elsewhere(subject, &value.text))
            }
        }
    }

    /// Whether the value certainly comes from none of the origins.
    pub(crate) fn is_elsewhere(&self, subject: &PolicySubject<'_>, value: &str) -> bool {
        let names_kind = |kind: &str| self.origins.iter().any(|wanted| **wanted == *kind);
        let other =
            |kind: &str, tool: Option<&str>| (kind != OPEN && !names_kind(kind)) || self.trusts_tool(tool);
        source_gives(subject, value, &other)
    }

    fn trusts_tool(&self, tool: Option<&str>) -> bool {
        tool.is_some_and(|tool| self.trust.iter().any(|name| name.matches(tool)))
    }

    /// The texts and numbers in the checked arguments, and the member names inside them.
    pub(crate) fn argument_values(&self, subject: &PolicySubject<'_>) -> Option<Vec<ArgumentValue>> {
        let targets = subject.annotations.get(TARGETS_ANNOTATION).and_then(text_list);
        let mut found = Vec::new();
        for (name, value) in subject.arguments {
            let is_target = targets
                .as_ref()
                .is_none_or(|targets| targets.contains(&name.as_str()));
            let is_whole = self.arguments.iter().any(|set| match set {
                ArgumentSet::All => true,
                ArgumentSet::Named(wanted) => **wanted == **name,
                ArgumentSet::Targets => is_target,
                ArgumentSet::Links => false,
            });
            let mut texts = Vec::new();
            gather_texts(value, &mut texts);
            let texts = match (is_whole, self.arguments.contains(&ArgumentSet::Links)) {
                (true, _) => texts,
                (false, false) => Vec::new(),
                (false, true) => texts
                    .iter()
                    .flat_map(|text| find_links(text))
                    .map(str::to_owned)
                    .chain(texts.iter().flat_map(|text| number_groups(text)))
                    .collect(),
            };
            found.extend(texts.into_iter().take(MAX_VALUES + 1).map(|text| ArgumentValue {
                argument: name.clone(),
                text,
            }));
        }
        (found.len() <= MAX_VALUES).then_some(found)
    }
}

fn source_gives(
    subject: &PolicySubject<'_>,
    value: &str,
    accepts: &dyn Fn(&str, Option<&str>) -> bool,
) -> bool {
    subject
        .values
        .is_some_and(|values| values.has_source(value, accepts))
}

/// Reads a text, or a list of texts.
pub(crate) fn text_list(value: &Value) -> Option<Vec<&str>> {
    match value {
        Value::String(text) => Some(vec![text]),
        Value::Array(items) => items.iter().map(Value::as_str).collect(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_) => None,
    }
}

/// Collects the texts in a value. Booleans and null contain none.
pub(crate) fn gather_texts(value: &Value, found: &mut Vec<String>) {
    if found.len() > MAX_VALUES {
        return;
    }
    match value {
        Value::Null | Value::Bool(_) => {}
        Value::String(text) if text.trim().is_empty() => {}
        Value::String(text) => found.push(text.trim().to_owned()),
        Value::Number(number) => found.push(number.to_string()),
        Value::Array(items) => items.iter().for_each(|item| gather_texts(item, found)),
        Value::Object(members) => {
            for (key, inner) in members {
                found.push(key.clone());
                gather_texts(inner, found);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Map, json};

    use super::*;
    use crate::value_sources::{ToolResult, ValueSources};

    fn sources() -> ValueSources {
        let mut sources = ValueSources::default();
        let said = "Send 50 to Ann at ann@corp.example, and the file bill-2023.txt to \"the whole team\". Ask bob. Then see https://corp.example/a?b=1! 给li@corp.example发邮件";
        sources.add_person(said);
        let asked = Map::from_iter([("name".to_owned(), json!("mallory@evil.test"))]);
        let text = "Eve <eve@corp.example>, 7 Elm Street. There is no mallory@evil.test here.";
        sources.add_result(&ToolResult {
            tool: "contacts",
            arguments: &asked,
            text,
            closed: true,
            is_lookup: true,
            reads_files: false,
            annotations: None,
            order: 1,
        });
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
            // Words in other capitals, and two values with a blank between.
            "the WHOLE team",
            "50 bob",
        ] {
            assert!(sources.has_source(clean, &any), "{clean}");
        }
        for foreign in [
            "5",
            "500",
            "nn",
            "corp.example",
            "ann@corp",
            "2023",
            "bill-2023",
            "https://corp.example/a",
            "Ann@corp.example",
            "mallory@evil.test",
            "50 to Mallory",
            "example/a?b=1",
            "b=1",
            "50 mallory@evil.test",
            "50 bob 7",
            "the whole teams",
            "corp.example/",
        ] {
            assert!(!sources.has_source(foreign, &any), "{foreign}");
        }
        assert!(!sources.has_source("eve@corp.example", &|kind, _| kind == USER));
        assert!(sources.has_source("eve@corp.example", &|_, tool| tool == Some("contacts")));
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
