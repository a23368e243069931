//! `clawk budget --by`: what was spent in a range of time, by the record, one row for each day, model, person and so on.

use std::collections::{BTreeMap, HashMap};

use anyhow::Result;
use clap::ValueEnum;
use clawk_events::Event;
use clawk_events::payload::MessageAccepted;
use clawk_kernel::kind;
use clawk_kernel::ports::{JournalScan, RecordedEvent};
use clawk_proto::SessionId;
use serde::Serialize;
use serde_json::json;
use uuid::Uuid;

use super::{format_count, format_dollars};
use crate::out::{self, Format, TerminalStyle};
use crate::state::kept::StateReader;
use crate::time_range::TimeRangeArgs;
use clawk_kernel::purse::BudgetUnit;

/// Events read at once.
const PAGE: usize = 1000;
/// What is read to know whose turn spends.
const MESSAGES: &[&str] = &[kind::MESSAGE_ACCEPTED];
/// What is read to know what was spent.
const SPENDING: &[&str] = &[
    kind::MESSAGE_ACCEPTED,
    kind::PROVIDER_REQUESTED,
    kind::PROVIDER_COMPLETED,
    kind::PROVIDER_FAILED,
    kind::ACTION_EXECUTED,
    kind::ACTION_FAILED,
];

/// What one row of the table is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum SpendingGroup {
    /// A day, UTC
    Day,
    /// A model, with its provider
    Model,
    /// A tool: calls and their time
    Tool,
    /// A conversation of a channel, or a session
    Conversation,
    /// Who wrote the message
    Person,
    /// A schedule or a trigger that began the turn
    Schedule,
}

/// What was spent in one group.
#[derive(Debug, Default, Clone, PartialEq, Eq, Serialize)]
pub(super) struct SpendingRow {
    /// Requests to models.
    requests: u64,
    input_tokens: u64,
    cached_tokens: u64,
    output_tokens: u64,
    cost_microusd: u64,
    /// Requests to models whose price was not known: `cost_microusd` is without them.
    unpriced: u64,
    /// Calls of tools.
    calls: u64,
    call_ms: u64,
}

impl SpendingRow {
    fn add_row(&mut self, more: &Self) {
        for (sum, add) in [
            (&mut self.requests, more.requests),
            (&mut self.input_tokens, more.input_tokens),
            (&mut self.cached_tokens, more.cached_tokens),
            (&mut self.output_tokens, more.output_tokens),
            (&mut self.cost_microusd, more.cost_microusd),
            (&mut self.unpriced, more.unpriced),
            (&mut self.calls, more.calls),
            (&mut self.call_ms, more.call_ms),
        ] {
            *sum = sum.saturating_add(add);
        }
    }

    fn describe(&self) -> String {
        let mut parts = Vec::new();
        if self.requests > 0 {
            parts.push(format_dollars(self.cost_microusd));
            parts.push(format!(
                "{} tokens in ({} cached), {} out",
                self.input_tokens, self.cached_tokens, self.output_tokens
            ));
            parts.push(format!("{} requests", self.requests));
        }
        if self.calls > 0 {
            parts.push(format!(
                "{} in {}",
                format_count(BudgetUnit::Calls, self.calls),
                format_count(BudgetUnit::BusyMs, self.call_ms)
            ));
        }
        if self.unpriced > 0 {
            parts.push(format!("{} of the requests have no known price", self.unpriced));
        }
        match parts.is_empty() {
            true => "nothing".to_owned(),
            false => parts.join(" · "),
        }
    }
}

/// Who spends in a session: the author of its latest message.
#[derive(Debug, Clone, Default)]
struct TurnAuthor {
    person: String,
    conversation: Option<String>,
    schedule: Option<String>,
}

impl TurnAuthor {
    fn from_message(message: &MessageAccepted) -> Self {
        let channel = message.channel.value();
        // A schedule or a trigger is the sender of its own messages.
        let by_itself = channel.filter(|channel| **channel == message.sender);
        Self {
            person: match channel {
                Some(channel) if by_itself.is_none() => format!("{channel}/{}", message.sender),
                Some(_) | None => message.sender.clone(),
            },
            conversation: channel
                .zip(message.conversation.value())
                .map(|(channel, conversation)| format!("{channel}/{conversation}")),
            schedule: by_itself.cloned(),
        }
    }
}

/// Sums up the record.
struct SpendingFold {
    group: SpendingGroup,
    authors: HashMap<SessionId, TurnAuthor>,
    /// Models of the requests that have not ended.
    models: HashMap<Uuid, String>,
    rows: BTreeMap<String, SpendingRow>,
}

impl SpendingFold {
    fn add_event(&mut self, event: &RecordedEvent) -> Result<()> {
        let (key, row) = match event.read()? {
            Event::MessageAccepted(message) => {
                self.authors
                    .insert(event.session, TurnAuthor::from_message(&message));
                return Ok(());
            }
            Event::ProviderRequested(asked) => {
                self.models
                    .insert(asked.inference_id, format!("{}/{}", asked.provider, asked.model));
                return Ok(());
            }
            Event::ProviderCompleted(done) => {
                self.models.remove(&done.inference_id);
                let row = SpendingRow {
                    requests: 1,
                    input_tokens: done.input_tokens,
                    cached_tokens: done.cached_tokens,
                    output_tokens: done.output_tokens,
                    cost_microusd: done.cost_microusd.unwrap_or(0),
                    unpriced: u64::from(done.cost_microusd.is_none()),
                    ..SpendingRow::default()
                };
                (format!("{}/{}", done.provider, done.model), row)
            }
            Event::ProviderFailed(failed) => {
                let model = self.models.get(&failed.inference_id).cloned();
                let row = SpendingRow {
                    requests: 1,
                    input_tokens: failed.input_tokens,
                    output_tokens: failed.output_tokens,
                    cost_microusd: failed.cost_microusd.unwrap_or(0),
                    unpriced: u64::from(failed.cost_microusd.is_none()),
                    ..SpendingRow::default()
                };
                (model.unwrap_or_else(|| format!("{}/?", failed.provider)), row)
            }
            Event::ActionExecuted(done) => (done.action_id, call_row(done.duration_ms)),
            Event::ActionFailed(failed) => (failed.action_id, call_row(failed.duration_ms)),
            other => {
                tracing::debug!(kind = other.kind(), "not asked for");
                return Ok(());
            }
        };
        let is_call = row.calls > 0;
        let author = || self.authors.get(&event.session).cloned().unwrap_or_default();
        let name = match self.group {
            SpendingGroup::Day => event.at.to_string().chars().take(10).collect(),
            SpendingGroup::Model if !is_call => key,
            SpendingGroup::Tool if is_call => key,
            SpendingGroup::Model | SpendingGroup::Tool => return Ok(()),
            SpendingGroup::Conversation => author().conversation.unwrap_or_else(|| event.session.to_string()),
            SpendingGroup::Person => match author().person {
                nobody if nobody.is_empty() => "nobody".to_owned(),
                person => person,
            },
            SpendingGroup::Schedule => author().schedule.unwrap_or_else(|| "not scheduled".to_owned()),
        };
        self.rows.entry(name).or_default().add_row(&row);
        Ok(())
    }
}

fn call_row(call_ms: u64) -> SpendingRow {
    SpendingRow {
        calls: 1,
        call_ms,
        ..SpendingRow::default()
    }
}

/// Prints what was spent.
pub(super) fn print_spending(
    reader: &StateReader,
    group: SpendingGroup,
    range: TimeRangeArgs,
    format: Format,
) -> Result<()> {
    let rows = sum_spending(reader, group, range)?;
    let mut total = SpendingRow::default();
    rows.values().for_each(|row| total.add_row(row));
    let [since, until] = [range.first_moment(), range.end_moment()].map(|at| at.map(|at| at.to_string()));
    if format == Format::Json {
        let listed: Vec<_> = rows
            .iter()
            .map(|(name, row)| json!({"name": name, "spent": row}))
            .collect();
        let by = group.to_possible_value().map(|value| value.get_name().to_owned());
        return out::print_json(
            &json!({"by": by, "since": since, "until": until, "rows": listed, "total": total}),
        );
    }
    let paint = TerminalStyle::for_stdout();
    for (name, row) in &rows {
        out::print_line(format!(
            "{}  {}",
            paint.bold(&out::one_line(name)),
            row.describe()
        ))?;
    }
    let [since, until] = [since, until].map(|at| at.unwrap_or_else(|| "…".to_owned()));
    out::print_line(format!("{}  {}", paint.bold("total"), total.describe()))?;
    out::print_line(paint.dim(&format!("from {since} to {until}")))?;
    Ok(())
}

fn sum_spending(
    reader: &StateReader,
    group: SpendingGroup,
    range: TimeRangeArgs,
) -> Result<BTreeMap<String, SpendingRow>> {
    let mut fold = SpendingFold {
        group,
        authors: HashMap::new(),
        models: HashMap::new(),
        rows: BTreeMap::new(),
    };
    // A turn that spends in the range may have begun before it.
    if let Some(first) = range.first_moment() {
        for_each_event(reader, MESSAGES, None, |event| match event.at < first {
            true => fold.add_event(event).map(|()| true),
            false => Ok(false),
        })?;
    }
    for_each_event(reader, SPENDING, range, |event| match range.contains(event.at) {
        true => fold.add_event(event).map(|()| true),
        false => Ok(range.end_moment().is_none_or(|end| event.at < end)),
    })?;
    Ok(fold.rows)
}

/// Visits the events of these types in order, until `see` returns `false`.
fn for_each_event(
    reader: &StateReader,
    kinds: &'static [&'static str],
    range: impl Into<Option<TimeRangeArgs>>,
    mut see: impl FnMut(&RecordedEvent) -> Result<bool>,
) -> Result<()> {
    let mut scan = JournalScan {
        kinds,
        limit: PAGE,
        since: range.into().and_then(|range| range.first_moment()),
        ..JournalScan::default()
    };
    loop {
        let page = reader.recorded_events(&scan)?;
        let Some(last) = page.last() else { return Ok(()) };
        scan.after_row = last.row;
        for event in &page {
            if !see(event)? {
                return Ok(());
            }
        }
    }
}
