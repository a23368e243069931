//! Compares two traces by meaning: events are aligned by an edit script, then compared member by member.
//!
//! Nine members are always ignored (CRA conformance, "Comparison Rules"): ids that each run creates, times and hashes. Members that
//! only give an event's position (`sequence`, `session_id`, `parent_span_id`) are covered by the alignment. Events may be partial:
//! no member is required.

mod align;
mod fields;
mod marks;
#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::fmt;
use std::hash::RandomState;

use serde::Serialize;
use serde_json::Value;

use self::align::AlignmentStep;
use self::marks::{EventFingerprint, fingerprint_event};

/// The relation between two traces.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum TraceCompatibility {
    /// No difference.
    Identical,
    /// Only minor differences.
    SemanticallyEquivalent,
    /// There is at least one major difference.
    Incompatible,
}

impl TraceCompatibility {
    /// The name in reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Identical => "identical",
            Self::SemanticallyEquivalent => "semantically_equivalent",
            Self::Incompatible => "incompatible",
        }
    }
}

/// The kind of a difference.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum DifferenceKind {
    /// Another value of the same JSON type.
    ValueChanged,
    /// A value of another JSON type.
    TypeChanged,
    /// A member that only the second trace's event has.
    Added,
    /// A member that only the first trace's event has.
    Removed,
    /// An event that only the second trace has.
    EventAdded,
    /// An event that only the first trace has.
    EventRemoved,
}

/// The importance of a difference.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum DifferenceSignificance {
    /// A duration, a token count or a text for people differs.
    Minor,
    /// Everything else.
    Major,
}

/// One difference.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct TraceDifference {
    /// JSON Pointer into the array of events. The index is that of the first trace; for an added event, that of the second.
    pub path: String,
    /// The kind of the difference.
    #[serde(rename = "type")]
    pub change: DifferenceKind,
    /// The importance.
    pub significance: DifferenceSignificance,
    /// The value in the first trace; for people, not serialised.
    #[serde(skip)]
    pub before: Option<Value>,
    /// The value in the second trace; for people, not serialised.
    #[serde(skip)]
    pub after: Option<Value>,
}

/// The result of a comparison; it serialises as in DESIGN §6.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Diff {
    /// The relation between the traces.
    pub compatibility: TraceCompatibility,
    /// The differences, in the order of the first trace.
    pub differences: Vec<TraceDifference>,
}

/// A line that is not an event.
#[derive(Debug, thiserror::Error)]
#[error("the {side} trace, line {line}: {source}")]
pub struct DiffError {
    /// The trace with the line.
    pub side: TraceSide,
    /// The line number, from 1.
    pub line: usize,
    /// The error.
    pub source: serde_json::Error,
}

/// One of the two traces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TraceSide {
    /// The older trace.
    First,
    /// The newer trace.
    Second,
}

impl fmt::Display for TraceSide {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::First => "first",
            Self::Second => "second",
        })
    }
}

/// Compares two traces given as JSON Lines; empty lines are skipped.
///
/// ```
/// let a = r#"{"event_type":"action.executed","payload":{"action_id":"resource.create","duration_ms":100}}"#;
/// let b = r#"{"event_type":"action.executed","payload":{"action_id":"resource.create","duration_ms":150}}"#;
/// let diff = clawk_trace::diff(a, b)?;
/// assert_eq!(diff.compatibility.name(), "semantically_equivalent");
/// assert_eq!(diff.differences[0].path, "/0/payload/duration_ms");
/// # Ok::<(), clawk_trace::diff::DiffError>(())
/// ```
///
/// # Errors
/// A line is not a JSON object.
pub fn diff(first: &str, second: &str) -> Result<Diff, DiffError> {
    let keys = RandomState::new();
    // Parsing takes half of the time, and the two sides are independent.
    let (first, second) = std::thread::scope(|scope| {
        let other = scope.spawn(|| Trace::read(TraceSide::Second, second, &keys));
        let first = Trace::read(TraceSide::First, first, &keys);
        (first, other.join())
    });
    let second = match second {
        Ok(second) => second?,
        Err(panic) => std::panic::resume_unwind(panic),
    };
    Ok(compare(&first?, &second))
}

/// Compares two traces that are in memory, as whole or partial events.
///
/// # Errors
/// A value is not an object.
pub fn diff_events(first: &[Value], second: &[Value]) -> Result<Diff, DiffError> {
    let keys = RandomState::new();
    let read = |side, events: &[Value]| {
        let texts = events.iter().map(|event| Cow::Owned(event.to_string()));
        Trace::of(side, (1..).zip(texts), &keys)
    };
    Ok(compare(
        &read(TraceSide::First, first)?,
        &read(TraceSide::Second, second)?,
    ))
}

/// A trace prepared for comparison: each event's text and fingerprint.
struct Trace<'a> {
    texts: Vec<Cow<'a, str>>,
    marks: Vec<EventFingerprint>,
}

impl<'a> Trace<'a> {
    fn read(side: TraceSide, text: &'a str, keys: &RandomState) -> Result<Self, DiffError> {
        let lines = (1..)
            .zip(text.lines())
            .filter(|(_, line)| !line.trim().is_empty());
        Self::of(side, lines.map(|(line, text)| (line, Cow::Borrowed(text))), keys)
    }

    fn of(
        side: TraceSide,
        events: impl Iterator<Item = (usize, Cow<'a, str>)>,
        keys: &RandomState,
    ) -> Result<Self, DiffError> {
        let (mut texts, mut marks) = (Vec::new(), Vec::new());
        let mut sessions = marks::SessionOrdinals::default();
        for (line, text) in events {
            let found = fingerprint_event(&text, &mut sessions, keys).map_err(|source| DiffError {
                side,
                line,
                source,
            })?;
            marks.push(found);
            texts.push(text);
        }
        Ok(Self { texts, marks })
    }

    /// Parses the event. It was parsed before, so this can't fail.
    fn event(&self, index: usize) -> Value {
        self.texts
            .get(index)
            .and_then(|text| serde_json::from_str(text).ok()) // silent-ok: see above
            .unwrap_or_default()
    }
}

fn compare(first: &Trace<'_>, second: &Trace<'_>) -> Diff {
    let mut differences = Vec::new();
    for step in align::align_traces(first, second) {
        match step {
            AlignmentStep::Both(a, b) => {
                let equal = first.marks.get(a).map(|m| m.full) == second.marks.get(b).map(|m| m.full);
                if !equal {
                    fields::compare_events(a, &first.event(a), &second.event(b), &mut differences);
                }
            }
            AlignmentStep::First(a) => {
                differences.push(whole(a, DifferenceKind::EventRemoved, Some(first.event(a)), None))
            }
            AlignmentStep::Second(b) => {
                differences.push(whole(b, DifferenceKind::EventAdded, None, Some(second.event(b))))
            }
        }
    }
    let worst = differences.iter().map(|difference| difference.significance).max();
    let compatibility = match worst {
        None => TraceCompatibility::Identical,
        Some(DifferenceSignificance::Minor) => TraceCompatibility::SemanticallyEquivalent,
        Some(DifferenceSignificance::Major) => TraceCompatibility::Incompatible,
    };
    Diff {
        compatibility,
        differences,
    }
}

fn whole(
    index: usize,
    change: DifferenceKind,
    before: Option<Value>,
    after: Option<Value>,
) -> TraceDifference {
    TraceDifference {
        path: format!("/{index}"),
        change,
        significance: DifferenceSignificance::Major,
        before,
        after,
    }
}
