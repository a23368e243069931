//! `clawk memory why`: traces an entry back to the message or the page that it came from.

use std::collections::BTreeSet;
use std::process::ExitCode;

use anyhow::{Result, bail};
use clawk_events::{Event, read_members};
use clawk_kernel::ports::{JournalScan, RecordedEvent};
use clawk_kernel::{kind, taint};
use serde_json::{Map, Value, json};

use super::PartArgs;
use super::held::{LocatedEntry, OpenedMemory, ScopedStore, content_text, format_location};
use crate::out::{self, Format, TerminalStyle, clip_line, one_line};
use crate::state::kept::StateReader;

/// Longest chain, in steps.
const MAX_STEPS: usize = 200;

/// One step: its kind, and what the record says of it.
#[derive(Debug)]
struct ProvenanceStep {
    depth: usize,
    /// `entry`, `message`, `call`, or the first word of a source.
    kind: String,
    name: String,
    facts: Map<String, Value>,
}

pub(super) fn run(which: &PartArgs, id: &str, format: Format) -> Result<ExitCode> {
    let OpenedMemory { dir, reader, parts } = which.open_memory()?;
    let mut found = Vec::new();
    for part in &parts {
        found.extend(part.find_named(&reader, id)?);
    }
    let [entry] = found.as_slice() else {
        match found.as_slice() {
            [] => bail!(
                "nothing is remembered as `{}` in `{}`; `clawk memory list` shows what is",
                one_line(id),
                dir.display()
            ),
            several => {
                let places: Vec<String> = several
                    .iter()
                    .map(|one| format_location(&one.store, &one.scope))
                    .collect();
                bail!(
                    "`{}` is in {}; say which by `--store` and `--scope`",
                    one_line(id),
                    places.join(", ")
                );
            }
        }
    };
    let chain = ProvenanceSearch {
        reader: &reader,
        parts: &parts,
        seen: BTreeSet::new(),
        steps: Vec::new(),
    }
    .trace_back(entry)?;
    if format == Format::Json {
        let steps = chain.iter().map(|step| {
            let mut all = json!({ "depth": step.depth, "kind": step.kind, "name": step.name });
            if let Value::Object(members) = &mut all {
                members.extend(step.facts.clone());
            }
            all
        });
        out::print_json(
            &json!({ "id": entry.hit.entry.id, "store": entry.store, "untrusted": entry.hit.mark.untrusted,
            "chain": steps.collect::<Vec<_>>() }),
        )?;
        return Ok(ExitCode::SUCCESS);
    }
    let paint = TerminalStyle::for_stdout();
    for step in &chain {
        let facts: Vec<String> = step
            .facts
            .iter()
            .map(|(name, value)| format!("{name}: {}", content_text(value)))
            .collect();
        let indent = "  ".repeat(step.depth);
        out::print_line(format!(
            "{indent}{} {}",
            paint.bold(&step.kind),
            one_line(&step.name)
        ))?;
        for fact in facts {
            out::print_line(paint.dim(&format!("{indent}  {}", clip_line(&fact, 100))))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// What the record says of a past turn.
#[derive(Debug, Default)]
struct PastTurn {
    /// The skills that were active during the call.
    skills: Vec<String>,
    /// The outer call, if the turn was the inner turn of a composite tool.
    outer: Option<String>,
}

/// The event types that describe a turn.
const TURNS: &[&str] = &[
    kind::MESSAGE_ACCEPTED,
    kind::PROVIDER_REQUESTED,
    kind::WORLD_MODEL_PLANNED,
    kind::ACTION_REQUESTED,
    kind::ACTION_EXECUTED,
    kind::ACTION_FAILED,
    kind::ACTION_DENIED,
    kind::SKILL_INVOKED,
    kind::SKILL_FINISHED,
];

struct ProvenanceSearch<'a> {
    reader: &'a StateReader,
    parts: &'a [ScopedStore],
    seen: BTreeSet<String>,
    steps: Vec<ProvenanceStep>,
}

impl ProvenanceSearch<'_> {
    fn trace_back(mut self, entry: &LocatedEntry) -> Result<Vec<ProvenanceStep>> {
        self.trace_entry(entry, 0)?;
        Ok(self.steps)
    }

    fn add_step(&mut self, depth: usize, (kind, name): (&str, &str), facts: Value) -> bool {
        if self.steps.len() >= MAX_STEPS || !self.seen.insert(format!("{kind} {name}")) {
            return false;
        }
        let facts = match facts {
            Value::Object(members) => members
                .into_iter()
                .filter(|(_, value)| !value.is_null())
                .collect(),
            _ => Map::new(),
        };
        self.steps.push(ProvenanceStep {
            depth,
            kind: kind.to_owned(),
            name: name.to_owned(),
            facts,
        });
        true
    }

    fn trace_entry(&mut self, found: &LocatedEntry, depth: usize) -> Result<()> {
        let mark = &found.hit.mark;
        let about = &found.hit.entry;
        let facts = json!({
            "store": found.store, "origin": mark.origin, "untrusted": mark.untrusted, "timestamp": about.timestamp,
            "author": Some(&mark.author).filter(|author| !author.is_empty()),
            "session": Some(&mark.session).filter(|session| !session.is_empty()), "content": clip_line(&content_text(&about.content), 200),
        });
        if !self.add_step(depth, ("entry", &about.id), facts) {
            return Ok(());
        }
        // For a summary: the entries it replaced.
        let of = about
            .metadata
            .as_ref()
            .and_then(|about| about.get("ids"))
            .and_then(Value::as_array);
        for id in of.into_iter().flatten().filter_map(Value::as_str) {
            let parts = self
                .parts
                .iter()
                .filter(|part| part.store() == found.store && part.scope() == found.scope);
            let mut stood = Vec::new();
            for part in parts {
                stood.extend(part.find_named(self.reader, id)?);
            }
            for one in stood {
                self.trace_entry(&one, depth + 1)?;
            }
        }
        for source in std::iter::once(&mark.origin).chain(&mark.made_from) {
            self.source(source, depth + 1)?;
        }
        Ok(())
    }

    fn source(&mut self, source: &str, depth: usize) -> Result<()> {
        let (kind, name) = source.split_once(' ').unwrap_or((source, ""));
        match kind {
            "" | "user" | "agent" | "memory" => Ok(()),
            "message" => self.trace_message(name, depth),
            "call" => self.call(name, depth),
            _ => self.trace_origin(kind, name, depth),
        }
    }

    fn trace_message(&mut self, id: &str, depth: usize) -> Result<()> {
        let found = self.find_event(&[kind::MESSAGE_ACCEPTED], |_, facts| {
            has_value(facts, "message_id", id)
        })?;
        // The inner turn of a composite tool has no message.
        if found.is_none()
            && self.seen.insert(format!("turn {id}"))
            && let Some((asked, _)) = self.find_event(&[kind::PROVIDER_REQUESTED], |_, facts| {
                has_value(facts, "turn", id)
            })?
        {
            return self.trace_turn(&asked, id, depth);
        }
        let facts = found.map(|(event, facts)| {
            json!({
                "session": event.session, "event": event.sequence, "at": event.at.to_string(), "door": facts.get("door"),
                "channel": facts.get("channel"), "sender": facts.get("sender"), "text": event_text(&event),
            })
        });
        self.add_step(
            depth,
            ("message", id),
            facts.unwrap_or_else(|| json!({ "text": "[not in this journal]" })),
        );
        Ok(())
    }

    fn call(&mut self, id: &str, depth: usize) -> Result<()> {
        let found = self.find_event(&[kind::ACTION_REQUESTED], |_, facts| {
            has_value(facts, "request_id", id)
        })?;
        let Some((event, facts)) = found else {
            self.add_step(depth, ("call", id), json!({ "text": "[not in this journal]" }));
            return Ok(());
        };
        let told = json!({
            "session": event.session, "event": event.sequence, "at": event.at.to_string(), "tool": facts.get("action_id"),
            "arguments": event_text(&event),
        });
        if self.add_step(depth, ("call", id), told)
            && let Some(turn) = facts.get("turn").and_then(Value::as_str)
        {
            self.trace_turn(&event, turn, depth + 1)?;
        }
        Ok(())
    }

    /// Adds the start of a call's turn: its message, or the composite tool's call for an inner turn. A skill that was active during
    /// the call comes before it.
    fn trace_turn(&mut self, call: &RecordedEvent, turn: &str, depth: usize) -> Result<()> {
        let past = self.turn_of(call, turn)?;
        let mut depth = depth;
        for skill in &past.skills {
            self.add_step(depth, ("skill", skill), json!({ "session": call.session }));
            depth += 1;
        }
        match past.outer {
            Some(outer) => self.call(&outer, depth),
            None => self.trace_message(turn, depth),
        }
    }

    /// Returns what the record of the call's session says of its turn.
    fn turn_of(&self, call: &RecordedEvent, turn: &str) -> Result<PastTurn> {
        let mut past = PastTurn::default();
        let (mut accepted, mut begun) = (false, false);
        // Calls that had not ended when the turn began.
        let mut open: Vec<String> = Vec::new();
        let mut scan = JournalScan {
            session: Some(call.session),
            kinds: TURNS,
            ..JournalScan::default()
        };
        loop {
            let page = self.reader.recorded_events(&scan)?;
            let Some(last) = page.last() else { break };
            scan.after_row = last.row;
            for event in page {
                let read = event.read_whole()?;
                let own = read.turn_id().is_some_and(|id| id.to_string() == turn);
                begun |= own && !matches!(read, Event::MessageAccepted(_));
                match read {
                    Event::MessageAccepted(_) => accepted |= own,
                    Event::ActionRequested(asked) if !begun => open.push(asked.request_id),
                    Event::ActionExecuted(ended) if !begun => open.retain(|id| *id != ended.request_id),
                    Event::ActionFailed(ended) if !begun => open.retain(|id| *id != ended.request_id),
                    Event::ActionDenied(ended) if !begun => open.retain(|id| *id != ended.request_id),
                    Event::SkillInvoked(skill)
                        if own && event.sequence < call.sequence && !skill.is_error =>
                    {
                        past.skills.push(skill.skill);
                    }
                    // The skill of an inner turn is not invoked: it is the turn.
                    Event::SkillFinished(skill) if own && !accepted => past.skills.push(skill.skill),
                    _ => {}
                }
            }
        }
        // If several calls ran side by side, the outer call can't be determined.
        if let ([outer], false) = (open.as_slice(), accepted) {
            past.outer = Some(outer.clone());
        }
        Ok(past)
    }

    /// Adds the call that read a page or a file: the first call whose arguments name it. Text of a file with known provenance is
    /// listed with the file.
    fn trace_origin(&mut self, kind: &str, name: &str, depth: usize) -> Result<()> {
        let bare = name.rsplit_once(" (in ").map_or(name, |(bare, _)| bare);
        let found = self.find_event(&[kind::ACTION_REQUESTED], |event, facts| {
            has_value(facts, "action_id", bare)
                || (!bare.is_empty() && event_text(event).is_some_and(|text| text.contains(bare)))
        })?;
        let facts = found.map(|(event, facts)| {
            json!({
                "session": event.session, "event": event.sequence, "at": event.at.to_string(), "tool": facts.get("action_id"),
                "call": facts.get("request_id"),
            })
        });
        let mut facts = facts.unwrap_or_else(|| json!({}));
        if let Value::Object(members) = &mut facts {
            members.insert(
                "author".to_owned(),
                json!(taint::words(&format!("{kind} {name}"))),
            );
        }
        self.add_step(depth, (kind, name), facts);
        Ok(())
    }

    /// Returns the first event of these types that matches.
    fn find_event(
        &self,
        kinds: &'static [&'static str],
        fits: impl Fn(&RecordedEvent, &Map<String, Value>) -> bool,
    ) -> Result<Option<(RecordedEvent, Map<String, Value>)>> {
        let mut scan = JournalScan {
            kinds,
            with_content: true,
            ..JournalScan::default()
        };
        loop {
            let page = self.reader.recorded_events(&scan)?;
            let Some(last) = page.last() else { return Ok(None) };
            scan.after_row = last.row;
            for event in page {
                let facts = read_members(&event.kind, &event.payload)?;
                if fits(&event, &facts) {
                    return Ok(Some((event, facts)));
                }
            }
        }
    }
}

fn has_value(facts: &Map<String, Value>, key: &str, value: &str) -> bool {
    facts.get(key).and_then(Value::as_str) == Some(value)
}

/// What an event's content says; none, where it is erased.
fn event_text(event: &RecordedEvent) -> Option<String> {
    let content = event.content.as_ref()?;
    Some(String::from_utf8_lossy(&content.bytes).into_owned())
}
