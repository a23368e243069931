//! `merge`: combines several objects, or several texts, without asking a model.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::answer::{MemberAnswer, TaskAnswer};

/// The deepest merged nesting of objects; below it the first value stays.
const MAX_DEPTH: usize = 64;

/// Different values at one position.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MergeConflict {
    /// JSON pointer.
    pub path: String,
    /// Each member's value; the result has the first one.
    pub values: Vec<MemberValue>,
}

/// One member's value at a position.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MemberValue {
    /// The member.
    pub member: String,
    /// The value.
    pub value: Value,
}

type MergeValue<'a> = (&'a str, &'a Value);

/// The merged answer, and the positions where the answers differ.
#[must_use]
pub fn merge_answers(said: &[&MemberAnswer]) -> (TaskAnswer, Vec<MergeConflict>) {
    let data: Option<Vec<MergeValue<'_>>> = said
        .iter()
        .map(|said| Some((said.member.as_str(), said.answer.data.as_ref()?)))
        .collect();
    match data.filter(|data| !data.is_empty()) {
        Some(data) => {
            let mut conflicts = Vec::new();
            let merged = merge_values(&data, "", 0, &mut conflicts);
            (TaskAnswer::from_data(merged), conflicts)
        }
        None => {
            let parts: Vec<String> = said
                .iter()
                .map(|said| format!("## {}\n\n{}", said.member, said.answer.text))
                .collect();
            let answer = TaskAnswer {
                text: parts.join("\n\n"),
                data: None,
            };
            (answer, Vec::new())
        }
    }
}

fn merge_values(
    held: &[MergeValue<'_>],
    path: &str,
    depth: usize,
    conflicts: &mut Vec<MergeConflict>,
) -> Value {
    let Some((_, first)) = held.first() else {
        return Value::Null;
    };
    let same_kind = |value: &Value| match first {
        Value::Object(_) => value.is_object(),
        Value::Array(_) => value.is_array(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => value == *first,
    };
    if held.iter().any(|(_, value)| !same_kind(value)) || depth >= MAX_DEPTH {
        let differ = held.iter().any(|(_, value)| value != first);
        let all = held.iter().map(|(member, value)| MemberValue {
            member: (*member).to_owned(),
            value: (*value).clone(),
        });
        if differ {
            conflicts.push(MergeConflict {
                path: path.to_owned(),
                values: all.collect(),
            });
        }
    }
    let alike: Vec<MergeValue<'_>> = held
        .iter()
        .filter(|(_, value)| same_kind(value))
        .copied()
        .collect();
    match first {
        Value::Object(_) if depth < MAX_DEPTH => merge_objects(&alike, path, depth, conflicts),
        Value::Array(_) if depth < MAX_DEPTH => merge_arrays(&alike),
        other => (*other).clone(),
    }
}

fn merge_objects(
    held: &[MergeValue<'_>],
    path: &str,
    depth: usize,
    conflicts: &mut Vec<MergeConflict>,
) -> Value {
    let mut merged = Map::new();
    let keys = held
        .iter()
        .filter_map(|(_, value)| value.as_object())
        .flat_map(Map::keys);
    for key in keys {
        if merged.contains_key(key) {
            continue;
        }
        let under: Vec<MergeValue<'_>> = held
            .iter()
            .filter_map(|(member, value)| Some((*member, value.get(key)?)))
            .collect();
        let path = format!("{path}/{}", key.replace('~', "~0").replace('/', "~1"));
        let value = merge_values(&under, &path, depth + 1, conflicts);
        merged.insert(key.clone(), value);
    }
    Value::Object(merged)
}

fn merge_arrays(held: &[MergeValue<'_>]) -> Value {
    let mut all: Vec<Value> = Vec::new();
    for (at, (_, value)) in held.iter().enumerate() {
        for item in value.as_array().into_iter().flatten() {
            // The first array stays unchanged, even if it contains a value twice.
            if at == 0 || !all.contains(item) {
                all.push(item.clone());
            }
        }
    }
    Value::Array(all)
}

#[cfg(test)]
mod tests {
    use clawk_proto::method::TaskStatus;
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::{MemberAnswer, merge_answers};
    use crate::answer::TaskAnswer;

    fn said(answers: &[Value]) -> Vec<MemberAnswer> {
        let one = |(at, value): (usize, &Value)| MemberAnswer {
            member: format!("m{at}"),
            status: TaskStatus::Completed,
            answer: TaskAnswer::from_report(value),
        };
        answers.iter().enumerate().map(one).collect()
    }

    fn merged(answers: &[Value]) -> (Value, Value) {
        let said = said(answers);
        let (answer, conflicts) = merge_answers(&said.iter().collect::<Vec<_>>());
        (answer.data.unwrap_or(json!(answer.text)), json!(conflicts))
    }

    #[test]
    fn objects_join_arrays_append_and_differences_are_told() {
        let (data, conflicts) = merged(&[
            json!({"a": {"x": 1}, "l": [1, 2], "s": "first"}),
            json!({"a": {"y": 2, "x": 1}, "l": [2, 3], "s": "second", "n": null}),
            json!({"a": 7, "s": "first"}),
        ]);
        assert_eq!(
            data,
            json!({"a": {"x": 1, "y": 2}, "l": [1, 2, 3], "s": "first", "n": null})
        );
        assert_eq!(
            conflicts,
            json!([
                {"path": "/a", "values": [{"member": "m0", "value": {"x": 1}}, {"member": "m1", "value": {"y": 2, "x": 1}}, {"member": "m2", "value": 7}]},
                {"path": "/s", "values": [{"member": "m0", "value": "first"}, {"member": "m1", "value": "second"}, {"member": "m2", "value": "first"}]},
            ])
        );
    }

    #[test]
    fn texts_stand_below_each_other() {
        let (text, conflicts) = merged(&[json!("one"), json!({"a": 1})]);
        assert_eq!(text, json!("## m0\n\none\n\n## m1\n\n{\"a\":1}"));
        assert_eq!(conflicts, json!([]));
    }

    proptest! {
        #[test]
        fn what_all_agree_on_stays_and_nothing_is_lost(keys in prop::collection::vec("[a-d]", 1..6), n in 1..5_usize) {
            let object: serde_json::Map<String, Value> = keys.iter().map(|key| (key.clone(), json!(key))).collect();
            let same = vec![Value::Object(object.clone()); n];
            prop_assert_eq!(merged(&same), (Value::Object(object), json!([])));
        }
    }
}
