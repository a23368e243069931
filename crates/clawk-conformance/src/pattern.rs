//! The pattern that an answer must match. An object must have the pattern's members and may have others; members with `$` are
//! tests.
//!
//! | test | holds for |
//! |---|---|
//! | `{"$any": [p, …]}` | what one of the patterns holds for |
//! | `{"$text": true}` | a string that is not empty |
//! | `{"$includes": "x"}`, `{"$prefix": "x"}` | a string with that part, with that beginning |
//! | `{"$integer": 0}` | an integer, at least that |
//! | `{"$at_most": "sibling"}` | a number not above that member of the same object |
//! | `{"$utc": true}` | an RFC 3339 time in UTC |
//! | `{"$optional": p}` | what is absent or holds for `p` |
//! | `{"$some": p}`, `{"$every": p}`, `{"$count": n}` | arrays |

use serde_json::{Map, Value};

/// A mismatch: the place, and the expected value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PatternMismatch {
    /// JSON pointer to the place.
    pub(super) at: String,
    pub(super) wanted: String,
}

/// Checks that `found` matches `pattern`.
pub(super) fn match_pattern(pattern: &Value, found: &Value) -> Result<(), PatternMismatch> {
    match_value(pattern, Some(found), &Map::new(), "")
}

fn match_value(
    pattern: &Value,
    found: Option<&Value>,
    siblings: &Map<String, Value>,
    at: &str,
) -> Result<(), PatternMismatch> {
    let misfit = |wanted: String| {
        Err(PatternMismatch {
            at: at.to_owned(),
            wanted,
        })
    };
    match pattern {
        Value::Object(tests) if tests.keys().next().is_some_and(|key| key.starts_with('$')) => tests
            .iter()
            .try_for_each(|(name, by)| match run_test(name, by, found, siblings, at) {
                Some(true) => Ok(()),
                Some(false) => misfit(format!("{{\"{name}\": {by}}}")),
                None => misfit(format!("a test that exists; `{name}` does not")),
            }),
        Value::Object(members) => {
            let Some(Value::Object(object)) = found else {
                return misfit("an object".to_owned());
            };
            members.iter().try_for_each(|(key, pattern)| {
                match_value(pattern, object.get(key), object, &format!("{at}/{key}"))
            })
        }
        exact if found == Some(exact) => Ok(()),
        exact => misfit(exact.to_string()),
    }
}

/// Runs a `$` test; `None`: there is no such test.
fn run_test(
    name: &str,
    by: &Value,
    found: Option<&Value>,
    siblings: &Map<String, Value>,
    at: &str,
) -> Option<bool> {
    let text = found.and_then(Value::as_str);
    let part = by.as_str().unwrap_or_default();
    let items = found.and_then(Value::as_array);
    let holds = |item: &Value, by: &Value| match_value(by, Some(item), siblings, at).is_ok();
    Some(match name {
        "$any" => by.as_array().is_some_and(|options| {
            options
                .iter()
                .any(|option| match_value(option, found, siblings, at).is_ok())
        }),
        "$text" => text.is_some_and(|text| !text.is_empty()),
        "$includes" => text.is_some_and(|text| text.contains(part)),
        "$prefix" => text.is_some_and(|text| text.starts_with(part)),
        "$integer" => found.and_then(Value::as_i64) >= by.as_i64() && by.is_i64(),
        "$at_most" => match (
            found.and_then(Value::as_f64),
            siblings.get(part).and_then(Value::as_f64),
        ) {
            (Some(small), Some(large)) => small <= large,
            _ => false,
        },
        "$utc" => text.is_some_and(is_utc),
        "$optional" => found.is_none() || match_value(by, found, siblings, at).is_ok(),
        "$some" => items.is_some_and(|items| items.iter().any(|item| holds(item, by))),
        "$every" => items.is_some_and(|items| items.iter().all(|item| holds(item, by))),
        "$count" => items.is_some_and(|items| by.as_u64() == u64::try_from(items.len()).ok()),
        _ => return None,
    })
}

/// Returns whether the text is a time like `2026-02-22T10:32:00Z`, with an optional fraction. `+00:00` is UTC, too.
fn is_utc(text: &str) -> bool {
    let Some(rest) = text.strip_suffix('Z').or_else(|| text.strip_suffix("+00:00")) else {
        return false;
    };
    let (whole, fraction) = rest.split_once('.').unwrap_or((rest, "0"));
    let shape: String = whole
        .chars()
        .map(|c| if c.is_ascii_digit() { '0' } else { c })
        .collect();
    let number = |from: usize| {
        whole
            .get(from..from + 2)
            .and_then(|digits| digits.parse::<u8>().ok())
            .unwrap_or(99)
    };
    shape == "0000-00-00T00:00:00"
        && !fraction.is_empty()
        && fraction.bytes().all(|byte| byte.is_ascii_digit())
        && (1..=12).contains(&number(5))
        && (1..=31).contains(&number(8))
        && number(11) < 24
        && number(14) < 60
        && number(17) <= 60
}
