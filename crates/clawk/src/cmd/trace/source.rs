//! The source of events: a state directory or a file.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use crate::state::kept::{Filter, StateReader, StoredEvent, read_only};
use anyhow::{Context, Result, bail};
use clawk_proto::SessionId;
use clawk_proto::trace::{SealedEvent, TraceEvent};
use clawk_trace::MAX_LINE_BYTES;

/// Number of rows in memory at a time.
const PAGE: usize = 1000;

/// All sessions, or one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::cmd) enum SessionSelection {
    All,
    One(SessionId),
}

impl SessionSelection {
    pub(in crate::cmd) const fn session(self) -> Option<SessionId> {
        match self {
            Self::All => None,
            Self::One(session) => Some(session),
        }
    }

    pub(super) fn includes_session(self, session: SessionId) -> bool {
        self.session().is_none_or(|only| only == session)
    }
}

/// A record to read.
#[derive(Debug)]
pub(in crate::cmd) enum TraceSource {
    State(Box<StateReader>),
    File(PathBuf),
}

impl TraceSource {
    pub(in crate::cmd) fn from_state(dir: &Path) -> Result<Self> {
        Ok(Self::State(Box::new(read_only(dir)?)))
    }

    pub(in crate::cmd) const fn from_file(path: PathBuf) -> Self {
        Self::File(path)
    }

    /// Resolves `--session` for this source.
    pub(in crate::cmd) fn select_sessions(&self, session: Option<&str>) -> Result<SessionSelection> {
        let Some(text) = session else {
            return Ok(SessionSelection::All);
        };
        if text != "last" {
            let id = text
                .parse()
                .with_context(|| format!("`--session` takes an id or `last`, not `{text}`"))?;
            return Ok(SessionSelection::One(id));
        }
        let last = match self {
            Self::State(reader) => last_conversation(reader)?,
            Self::File(_) => {
                let (mut last, mut runtime) = (None, None);
                self.for_each_event(SessionSelection::All, |event| {
                    if event.sequence == 0 && event.payload.get("door").is_some_and(|door| door == RUNTIME) {
                        runtime = Some(event.session_id);
                    }
                    if runtime != Some(event.session_id) || last.is_none() {
                        last = Some(event.session_id);
                    }
                    Ok(())
                })?;
                last
            }
        };
        Ok(SessionSelection::One(last.context("there are no sessions yet")?))
    }

    /// Visits every event in order.
    pub(in crate::cmd) fn for_each_event(
        &self,
        pick: SessionSelection,
        mut take: impl FnMut(TraceEvent) -> Result<()>,
    ) -> Result<()> {
        match self {
            Self::State(reader) => {
                for_each_stored(reader, pick, 0, |stored| take(expand_event(&stored.event)?)).map(drop)
            }
            Self::File(path) => for_each_line(path, |number, line| {
                let event = parse(line).with_context(|| format_position(path, number))?;
                if pick.includes_session(event.session_id) {
                    take(event)
                } else {
                    Ok(())
                }
            }),
        }
    }
}

impl TraceSource {
    /// Visits every event in order, with the text of its content. A file has no contents, so only codes are shown.
    pub(in crate::cmd) fn each_with_words(
        &self,
        pick: SessionSelection,
        mut take: impl FnMut(TraceEvent) -> Result<()>,
    ) -> Result<()> {
        match self {
            Self::State(reader) => self.for_each_event(pick, |event| take(with_words(reader, event))),
            Self::File(_) => self.for_each_event(pick, take),
        }
    }
}

/// Entry point of the chain in which every run of an agent records its lifecycle.
const RUNTIME: &str = "runtime";
/// Number of newest sessions in which the latest conversation is searched. If none is found, the newest session is used.
const LOOK_BACK: usize = 64;

/// Returns the latest session with a message or a call. Lifecycle chains, which end each run, are skipped.
fn last_conversation(reader: &StateReader) -> Result<Option<SessionId>> {
    let sessions = reader.sessions(LOOK_BACK)?;
    for row in &sessions {
        let filter = Filter {
            session: Some(row.session),
            after_row: 0,
            limit: 1,
        };
        let first = reader.events(filter)?.pop();
        let runtime = format!("\"door\":\"{RUNTIME}\"");
        if first.is_some_and(|first| !first.event.payload.get().contains(&runtime)) {
            return Ok(Some(row.session));
        }
    }
    Ok(sessions.first().map(|row| row.session))
}

/// Visits every stored event after `after`. Returns the last row.
pub(super) fn for_each_stored(
    reader: &StateReader,
    pick: SessionSelection,
    after: u64,
    mut take: impl FnMut(&StoredEvent) -> Result<()>,
) -> Result<u64> {
    let mut filter = Filter {
        session: pick.session(),
        after_row: after,
        limit: PAGE,
    };
    loop {
        let page = reader.events(filter)?;
        let Some(last) = page.last() else {
            return Ok(filter.after_row);
        };
        filter.after_row = last.row;
        page.iter().try_for_each(&mut take)?;
    }
}

/// Visits every non-empty line with its number, without its line break.
pub(super) fn for_each_line(path: &Path, mut take: impl FnMut(u64, &[u8]) -> Result<()>) -> Result<()> {
    let mut reader = open_reader(path)?;
    let mut line = Vec::new();
    for number in 1.. {
        line.clear();
        let cap = u64::try_from(MAX_LINE_BYTES)
            .unwrap_or(u64::MAX)
            .saturating_add(1);
        let length = reader
            .by_ref()
            .take(cap)
            .read_until(b'\n', &mut line)
            .with_context(|| format_position(path, number))?;
        if length == 0 {
            break;
        }
        if length > MAX_LINE_BYTES && !line.ends_with(b"\n") {
            bail!(
                "{}: the line is longer than {MAX_LINE_BYTES} bytes",
                format_position(path, number)
            );
        }
        let text = line.trim_ascii_end();
        if !text.is_empty() {
            take(number, text)?;
        }
    }
    Ok(())
}

/// Opens the file, or standard input for `-`.
pub(super) fn open_reader(path: &Path) -> Result<Box<dyn BufRead>> {
    if path.as_os_str() == "-" {
        return Ok(Box::new(BufReader::new(io::stdin())));
    }
    let file = File::open(path).with_context(|| format!("can't open `{}`", path.display()))?;
    Ok(Box::new(BufReader::with_capacity(256 * 1024, file)))
}

pub(super) fn parse(line: &[u8]) -> Result<TraceEvent> {
    serde_json::from_slice(line).context("no TRACE event (look with `clawk trace verify`)")
}

/// Converts a sealed event to one with its payload as a map.
pub(in crate::cmd) fn expand_event(event: &SealedEvent) -> Result<TraceEvent> {
    Ok(TraceEvent {
        trace_version: event.trace_version.to_owned(),
        event_id: event.event_id,
        trace_id: event.trace_id,
        span_id: event.span_id,
        parent_span_id: event.parent_span_id,
        session_id: event.session_id,
        sequence: event.sequence,
        timestamp: event.timestamp.clone(),
        event_type: event.event_type.clone(),
        payload: clawk_events::read_members(&event.event_type, event.payload.get())?,
        event_hash: event.event_hash,
        previous_event_hash: event.previous_event_hash,
    })
}

/// Adds the text of the event's content, if the state has it and can decrypt it.
pub(in crate::cmd) fn with_words(reader: &StateReader, mut event: TraceEvent) -> TraceEvent {
    if let Some(hash) = clawk_kernel::words_hash(&event.payload) {
        // silent-ok: without the key, or after an erasure, only the code is shown
        let content = reader.content(hash).ok().flatten();
        clawk_kernel::put_words(&mut event.payload, content.as_deref());
    }
    event
}

fn format_position(path: &Path, number: u64) -> String {
    format!("`{}`, line {number}", path.display())
}
