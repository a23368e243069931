//! One line of the activity log, as text and as JSON.

use std::fmt::Write as _;

use clap::ValueEnum;
use clawk_telemetry::Label;
use serde_json::{Map, Value, json};
use uuid::Uuid;

/// Longest word that a field takes over from a record.
const MAX_CODE_BYTES: usize = 48;

/// How the activity log is written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    /// One line of text for each fact: time, level, what happened, then `key=value`.
    #[default]
    Text,
    /// One JSON object for each fact.
    Json,
    /// No lines.
    Off,
}

/// How much a fact matters to an operator.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(crate) enum ActivityLevel {
    /// Normal work.
    Info,
    /// Something was refused, or is tried again.
    Warn,
    /// Something is lost until a person acts.
    Error,
}

impl ActivityLevel {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Info => "INFO",
            Self::Warn => "WARN",
            Self::Error => "ERROR",
        }
    }
}

/// The value of a field. There is no variant for free text.
#[derive(Debug, Clone, PartialEq, Eq)]
enum ActivityValue {
    Label(Label),
    Number(u64),
    /// Millionths of a US dollar.
    Cost(u64),
    Flag(bool),
}

/// Where an event stands in the journal, and when it was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ActivityPlace {
    /// Time of the event, RFC 3339.
    pub(crate) at: String,
    /// Session of its chain.
    pub(crate) session: Uuid,
    /// Number in its chain.
    pub(crate) sequence: u64,
}

/// One fact of the activity log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ActivityLine {
    pub(crate) level: ActivityLevel,
    /// What happened, in fixed words.
    what: &'static str,
    turn: Option<Uuid>,
    fields: Vec<(&'static str, ActivityValue)>,
}

impl ActivityLine {
    pub(super) const fn new(level: ActivityLevel, what: &'static str) -> Self {
        Self {
            level,
            what,
            turn: None,
            fields: Vec::new(),
        }
    }

    /// Sets the turn, whose id is the trace id of telemetry, too.
    pub(super) const fn in_turn(mut self, turn: Option<Uuid>) -> Self {
        self.turn = turn;
        self
    }

    /// Adds a name that the operator declared, or that is in the agent's catalogue of tools.
    pub(super) fn with_name(mut self, key: &'static str, name: &str) -> Self {
        // A delivery that is no channel's has no name.
        if !name.is_empty() {
            self.fields
                .push((key, ActivityValue::Label(Label::from_declared(name))));
        }
        self
    }

    /// Adds a word of a closed set. A record that holds another text there (earlier versions wrote some) shows `other`.
    pub(super) fn with_code(self, key: &'static str, word: &str) -> Self {
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.' | ':' | '/');
        let known = !word.is_empty() && word.len() <= MAX_CODE_BYTES && word.chars().all(plain);
        self.with_name(key, if known { word } else { Label::OTHER })
    }

    pub(super) fn with_number(mut self, key: &'static str, number: u64) -> Self {
        self.fields.push((key, ActivityValue::Number(number)));
        self
    }

    /// Adds a cost, where it is known.
    pub(super) fn with_cost(mut self, microusd: Option<u64>) -> Self {
        if let Some(microusd) = microusd {
            self.fields.push(("cost", ActivityValue::Cost(microusd)));
        }
        self
    }

    /// Adds a flag, where it is set.
    pub(super) fn with_flag(mut self, key: &'static str, flag: bool) -> Self {
        if flag {
            self.fields.push((key, ActivityValue::Flag(true)));
        }
        self
    }

    /// Returns the line in a format; `None` for [`LogFormat::Off`].
    pub(crate) fn format_line(&self, kind: &str, place: &ActivityPlace, format: LogFormat) -> Option<String> {
        match format {
            LogFormat::Text => Some(self.format_text(place)),
            LogFormat::Json => Some(self.format_json(kind, place)),
            LogFormat::Off => None,
        }
    }

    fn format_text(&self, place: &ActivityPlace) -> String {
        let mut text = format!("{} {:<5} {}", place.at, self.level.as_str(), self.what);
        for (key, value) in &self.fields {
            let _infallible = match value {
                ActivityValue::Label(label) => write!(text, " {key}={}", label.as_str()),
                ActivityValue::Number(number) => write!(text, " {key}={number}"),
                ActivityValue::Cost(cost) => {
                    write!(text, " {key}=${}.{:06}", cost / 1_000_000, cost % 1_000_000)
                }
                ActivityValue::Flag(flag) => write!(text, " {key}={flag}"),
            }; // silent-ok: a String takes every text
        }
        let _infallible = write!(text, " session={}", place.session); // silent-ok: as said
        if let Some(turn) = self.turn {
            let _infallible = write!(text, " turn={turn}"); // silent-ok: as said
        }
        text
    }

    fn format_json(&self, kind: &str, place: &ActivityPlace) -> String {
        let mut object = Map::new();
        let mut put = |key: &str, value: Value| object.insert(key.to_owned(), value);
        put("time", json!(place.at));
        put("level", json!(self.level.as_str().to_ascii_lowercase()));
        put("message", json!(self.what));
        put("event", json!(Label::from_declared(kind)));
        put("session", json!(place.session));
        put("sequence", json!(place.sequence));
        // The same trace id as in the spans that telemetry exports.
        put(
            "trace_id",
            json!(self.turn.unwrap_or(place.session).simple().to_string()),
        );
        if let Some(turn) = self.turn {
            put("turn", json!(turn));
        }
        for (key, value) in &self.fields {
            match value {
                ActivityValue::Label(label) => put(key, json!(label)),
                ActivityValue::Number(number) => put(key, json!(number)),
                ActivityValue::Cost(cost) => put("cost_microusd", json!(cost)),
                ActivityValue::Flag(flag) => put(key, json!(flag)),
            };
        }
        Value::Object(object).to_string()
    }
}
