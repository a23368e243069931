//! Describes the sources of a call's values for people: in questions, refusals and `clawk policy explain`.

use crate::engine::{Engine, PolicySubject};
use crate::rule::{Rule, RuleCondition};
use crate::value_sources::{ValueSource, ValueSources};
use crate::verdict::Verdict;

/// The longest value that is shown, characters.
const MAX_SHOWN_CHARS: usize = 80;
/// The largest number of values that are shown.
const MAX_SHOWN: usize = 20;

/// The source of one value of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ValueOrigin {
    /// The argument that contains it.
    pub argument: String,
    /// The value, shortened.
    pub value: String,
    /// The source in words, such as `you typed it`.
    pub source: String,
    /// The rule treats it as a value that foreign text may have chosen.
    pub is_foreign: bool,
}

impl Engine {
    /// The sources of the values that the deciding rule checks.
    #[must_use]
    pub fn value_origins(&self, verdict: &Verdict, subject: &PolicySubject<'_>) -> Vec<ValueOrigin> {
        let is_deciding = |rule: &&Rule| {
            verdict.rule_id.as_deref() == Some(&*rule.id) && verdict.policy.as_deref() == Some(&*rule.policy)
        };
        self.rules()
            .find(is_deciding)
            .map_or_else(Vec::new, |rule| rule.value_origins(subject))
    }

    /// The reason text of a rule that decided by values: the foreign values, or the confidential text. `None`: the rule did not.
    #[must_use]
    pub fn value_reason(&self, verdict: &Verdict, subject: &PolicySubject<'_>) -> Option<String> {
        let is_deciding = |rule: &&Rule| {
            verdict.rule_id.as_deref() == Some(&*rule.id) && verdict.policy.as_deref() == Some(&*rule.policy)
        };
        let rule = self.rules().find(is_deciding)?;
        let leaking = rule.conditions.iter().find_map(|condition| match condition {
            RuleCondition::Confidential(secret) => secret.leaking_text(subject),
            RuleCondition::From(_)
            | RuleCondition::Taint(_)
            | RuleCondition::PathWithin(_)
            | RuleCondition::Unknown(_) => None,
        });
        leaking.or_else(|| {
            let foreign = rule
                .value_origins(subject)
                .into_iter()
                .find(|origin| origin.is_foreign)?;
            Some(format!(
                "`{}` is {:?}: {}",
                foreign.argument, foreign.value, foreign.source
            ))
        })
    }
}

impl Rule {
    fn value_origins(&self, subject: &PolicySubject<'_>) -> Vec<ValueOrigin> {
        let mut found = Vec::new();
        for condition in &self.conditions {
            let RuleCondition::From(from) = condition else {
                continue;
            };
            let is_any_foreign = subject.taint.is_none_or(|taint| !taint.is_empty());
            for value in from.argument_values(subject).unwrap_or_default() {
                found.push(ValueOrigin {
                    is_foreign: is_any_foreign && !from.is_elsewhere(subject, &value.text),
                    source: source_words(subject.values, &value.text),
                    value: value.text.chars().take(MAX_SHOWN_CHARS).collect(),
                    argument: value.argument,
                });
            }
        }
        found.sort_by_key(|origin| !origin.is_foreign);
        found.truncate(MAX_SHOWN);
        found
    }
}

/// The best source of a value, in words.
fn source_words(values: Option<&ValueSources>, value: &str) -> String {
    let nowhere = "you did not type it, and no tool of yours gave it";
    let Some(values) = values else {
        return nowhere.to_owned();
    };
    if values.has_source(value, &|kind, _| kind == crate::value_sources::USER) {
        return match values.is_typed(value) {
            true => "you typed it".to_owned(),
            false => "a tool of yours gave it for what you typed".to_owned(),
        };
    }
    match values.source_of_value(value) {
        Some(ValueSource::Tool { name, .. }) => format!("it stands in what `{name}` gave"),
        Some(ValueSource::Other) => "somebody else wrote it".to_owned(),
        Some(ValueSource::Person | ValueSource::Recalled(_) | ValueSource::Summary) | None => {
            nowhere.to_owned()
        }
    }
}
