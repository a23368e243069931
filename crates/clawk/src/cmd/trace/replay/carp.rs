//! Replays recorded CARP resolutions and executions with the recorded Atlases, or with others.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use crate::state::kept::StateReader;
use anyhow::{Context, Result, bail};
use clawk_carp::replay::{self, AtlasReplayResult, Event, KINDS, Turn};
use clawk_carp::{Atlas, AtlasSet, Options};
use clawk_kernel::kind;
use clawk_proto::SessionId;
use clawk_proto::trace::TraceEvent;
use jiff::Timestamp;
use serde::Serialize;
use serde_json::Value;

use super::sets::{RecordPosition, RecordedAtlasSets};
use crate::cmd::atlas;
use crate::cmd::trace::source::{SessionSelection, TraceSource, expand_event, for_each_stored};
use crate::out::{self, Format, TerminalStyle};

/// The result of the replay.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct CarpReplayReport {
    pub(super) resolutions: usize,
    pub(super) evaluations: usize,
    pub(super) would_block: usize,
    pub(super) would_newly_allow: usize,
    pub(super) would_newly_ask: usize,
    /// Executions that would now be blocked, or would need an approval first.
    pub(super) calls: Vec<ChangedExecution>,
    pub(super) differences: Vec<JudgementDifference>,
    /// Number of further differences.
    pub(super) left_out: usize,
}

/// An execution that succeeded and would not succeed in the same way now.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(super) struct ChangedExecution {
    session_id: SessionId,
    sequence: u64,
    action_id: String,
    /// `blocked` or `asked`.
    would_be: Turn,
    policy_id: Option<String>,
}

/// A changed judgement, context or count of a resolution.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(super) struct JudgementDifference {
    session_id: SessionId,
    sequence: u64,
    event_type: &'static str,
    /// The action; `None` for a difference of the whole resolution.
    action_id: Option<String>,
    was: Value,
    would_be: Value,
}

pub(super) fn what_if(
    source: &TraceSource,
    pick: SessionSelection,
    set: &AtlasSet,
    format: Format,
) -> Result<ExitCode> {
    let again = replay_judgements(source, pick, set)?;
    match format {
        Format::Json => out::print_json(&again)?,
        Format::Human => again.print_human("as before", "other")?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Loads Atlases from disk.
pub(super) fn load_atlases(paths: &[PathBuf]) -> Result<Vec<Arc<Atlas>>> {
    let loaded = paths
        .iter()
        .map(|path| Ok(Arc::new(atlas::load_valid_atlas(path)?)));
    loaded.collect()
}

/// Combines Atlases that govern together.
pub(super) fn compile_set(loaded: &[Arc<Atlas>], options: Options) -> Result<AtlasSet> {
    AtlasSet::compile(loaded.to_vec(), options).context("these Atlases cannot be loaded together")
}

/// Replays everything that was recorded. Each difference names its event. Sessions outside the selection still count for limits.
pub(super) fn replay_judgements(
    source: &TraceSource,
    pick: SessionSelection,
    set: &AtlasSet,
) -> Result<CarpReplayReport> {
    let recorded = read_judgements(source)?;
    let events: Vec<Event<'_>> = recorded.iter().map(RecordedJudgement::as_event).collect();
    let mut again = CarpReplayReport::default();
    again.add_result(replay::replay_events(set, &events, pick.session()), &recorded);
    if again.resolutions == 0 {
        bail!("there is no `carp.request.received` in the record");
    }
    Ok(again)
}

/// Replays these sessions with the Atlases that were in force at the time. The other sessions still count for limits.
pub(super) fn as_recorded(
    source: &TraceSource,
    reader: &StateReader,
    sessions: &[SessionId],
) -> Result<CarpReplayReport> {
    let recorded = read_judgements(source)?;
    let mut sets = RecordedAtlasSets::from_reader(reader)?;
    let mut names = Vec::with_capacity(recorded.len());
    for one in &recorded {
        let judges = JUDGING.contains(&one.event.event_type.as_str());
        let changes = one.event.payload.get("atlas_changes").and_then(Value::as_u64);
        names.push(match judges.then(|| sets.make_set(one.place, changes)) {
            None => None,
            Some(Ok(name)) => Some(name),
            // The session is not in the selection, and its use of limits is unknown.
            Some(Err(_)) if !sessions.contains(&one.event.session_id) => None,
            Some(Err(error)) => {
                let (sequence, session) = (one.event.sequence, one.event.session_id);
                return Err(error.context(format!("event {sequence} of session {session}")));
            }
        });
    }
    let events: Vec<Event<'_>> = recorded.iter().map(RecordedJudgement::as_event).collect();
    let set_at = |index: usize| sets.get(names.get(index).copied().flatten()?);
    let counts = |session| sessions.contains(&session);
    let mut again = CarpReplayReport::default();
    again.add_result(replay::replay_under(&set_at, &events, &counts), &recorded);
    Ok(again)
}

/// Event types with a judgement by a set of Atlases.
const JUDGING: [&str; 2] = [kind::CARP_REQUEST, kind::POLICY_EVALUATED];

/// A recorded event that the replay evaluates.
struct RecordedJudgement {
    event: TraceEvent,
    at: Timestamp,
    place: RecordPosition,
}

impl RecordedJudgement {
    fn from_event(event: TraceEvent, row: Option<u64>) -> Result<Self> {
        let place = || format!("event {} of session {}", event.sequence, event.session_id);
        Ok(Self {
            at: event.timestamp.parse().with_context(place)?,
            place: RecordPosition {
                row,
                at: clawk_kernel::time::Timestamp::parse(&event.timestamp).with_context(place)?,
            },
            event,
        })
    }

    fn as_event(&self) -> Event<'_> {
        let event = &self.event;
        Event {
            session: event.session_id,
            span: event.span_id,
            event_type: &event.event_type,
            at: self.at,
            payload: &event.payload,
        }
    }
}

/// Returns these events of every session, in order.
fn read_judgements(source: &TraceSource) -> Result<Vec<RecordedJudgement>> {
    let mut recorded = Vec::new();
    match source {
        TraceSource::State(reader) => {
            for_each_stored(reader, SessionSelection::All, 0, |stored| {
                if KINDS.contains(&stored.event.event_type.as_str()) {
                    recorded.push(RecordedJudgement::from_event(
                        expand_event(&stored.event)?,
                        Some(stored.row),
                    )?);
                }
                Ok(())
            })?;
        }
        TraceSource::File(_) => source.for_each_event(SessionSelection::All, |event| {
            if KINDS.contains(&event.event_type.as_str()) {
                recorded.push(RecordedJudgement::from_event(event, None)?);
            }
            Ok(())
        })?,
    }
    Ok(recorded)
}

impl CarpReplayReport {
    fn add_result(&mut self, replayed: AtlasReplayResult, recorded: &[RecordedJudgement]) {
        self.resolutions += replayed.resolutions;
        self.evaluations += replayed.evaluations;
        self.left_out += replayed.left_out;
        for drift in replayed.drifts {
            match drift.turn {
                Turn::Blocked => self.would_block += 1,
                Turn::Allowed => self.would_newly_allow += 1,
                Turn::Asked => self.would_newly_ask += 1,
                Turn::None => {}
            }
            let Some(RecordedJudgement { event, .. }) = recorded.get(drift.index) else {
                continue;
            };
            let (session_id, sequence) = (event.session_id, event.sequence);
            if drift.call && matches!(drift.turn, Turn::Blocked | Turn::Asked) {
                let policy = drift.replayed.get("policy_id").and_then(Value::as_str);
                self.calls.push(ChangedExecution {
                    session_id,
                    sequence,
                    action_id: drift.action_id.clone().unwrap_or_default(),
                    would_be: drift.turn,
                    policy_id: policy.map(str::to_owned),
                });
            }
            self.differences.push(JudgementDifference {
                session_id,
                sequence,
                event_type: drift.event_type,
                action_id: drift.action_id,
                was: drift.recorded,
                would_be: drift.replayed,
            });
        }
    }

    pub(super) fn print_human(&self, same: &str, other: &str) -> Result<()> {
        let paint = TerminalStyle::for_stdout();
        let end = if self.differences.is_empty() {
            format!("; all {same}")
        } else {
            String::new()
        };
        out::print_line(format!(
            "{} resolutions, {} evaluations: would have blocked {}, would newly allow {}, would newly ask {}{end}",
            self.resolutions,
            self.evaluations,
            self.would_block,
            self.would_newly_allow,
            self.would_newly_ask,
        ))?;
        for call in &self.calls {
            let what = match call.would_be {
                Turn::Asked => paint.yellow("asked"),
                Turn::Blocked | Turn::Allowed | Turn::None => paint.red("blocked"),
            };
            out::print_line(format!(
                "  call {what}  session {}, event {}: {} by {}",
                call.session_id,
                call.sequence,
                out::clip_line(&call.action_id, 60),
                out::clip_line(call.policy_id.as_deref().unwrap_or("no policy"), 60),
            ))?;
        }
        for difference in &self.differences {
            let action = difference
                .action_id
                .as_deref()
                .map_or_else(String::new, |action| format!(" {}", out::clip_line(action, 60)));
            out::print_line(format!(
                "  {}  session {}, event {}{action}: {} → {}",
                paint.red(other),
                difference.session_id,
                difference.sequence,
                out::clip_line(&format_judgement(&difference.was), 80),
                out::clip_line(&format_judgement(&difference.would_be), 80)
            ))?;
        }
        if self.left_out > 0 {
            out::print_line(format!("  and {} more", self.left_out))?;
        }
        Ok(())
    }
}

/// Returns a judgement as `deny (policy)`, and any other value as JSON.
fn format_judgement(value: &Value) -> String {
    let text = |key: &str| value.get(key).and_then(Value::as_str);
    match (text("result"), text("policy_id")) {
        (Some(result), Some(policy)) => format!("{result} ({policy})"),
        _ if value.is_null() => "nothing".to_owned(),
        _ => value.to_string(),
    }
}
