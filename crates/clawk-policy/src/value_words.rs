//! Where the values of a call came from, in words for people: for questions, refusals and `clawk policy explain`.

use crate::engine::{Engine, PolicySubject};
use crate::rule::{Rule, RuleCondition};
use crate::value_sources::{ValueSource, ValueSources};
use crate::verdict::Verdict;

/// Longest value that is shown, characters.
const MAX_SHOWN_CHARS: usize = 80;
/// Values that are shown.
const MAX_SHOWN: usize = 20;

/// Where one value of a call came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ValueOrigin {
    /// The argument that holds it.
    pub argument: String,
    /// The value, shortened.
    pub value: String,
    /// In words: `you typed it`.
    pub source: String,
    /// The rule takes it for a value that foreign text may have chosen.
    pub is_foreign: bool,
}

impl Engine {
    /// Where the values came from that the deciding rule looks at.
    #[must_use]
    pub fn value_origins(&self, verdict: &Verdict, subject: &PolicySubject<'_>) -> Vec<ValueOrigin> {
        let is_deciding = |rule: &&Rule| {
            verdict.rule_id.as_deref() == Some(&*rule.id) && verdict.policy.as_deref() == Some(&*rule.policy)
        };
        self.rules()
            .find(is_deciding)
            .map_or_else(Vec::new, |rule| rule.value_origins(subject))
    }

    /// What a rule that decided on values has to say of them: the foreign ones, or the confidential text. `None`: nothing.
    #[must_use]
    pub fn value_reason(&self, verdict: &Verdict, subject: &PolicySubject<'_>) -> Option<String> {
        let is_deciding = |rule: &&Rule| {
            verdict.rule_id.as_deref() == Some(&*rule.id) && verdict.policy.as_deref() == Some(&*rule.policy)
        };
        let rule = self.rules().find(is_deciding)?;
        let leaking = rule.conditions.iter().find_map(|condition| match condition {
            RuleCondition::Confidential(secret) => secret.leaking(subject),
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
            for value in from.values(subject).unwrap_or_default() {
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
    if values.gives(value, &|kind, _| kind == crate::value_sources::USER) {
        return match values.typed(value) {
            true => "you typed it".to_owned(),
            false => "a tool of yours gave it for what you typed".to_owned(),
        };
    }
    match values.holder(value) {
        Some(ValueSource::Tool { name, .. }) => format!("it stands in what `{name}` gave"),
        Some(ValueSource::Other) => "somebody else wrote it".to_owned(),
        Some(ValueSource::Person | ValueSource::Recalled(_) | ValueSource::Summary) | None => {
            nowhere.to_owned()
        }
    }
}
