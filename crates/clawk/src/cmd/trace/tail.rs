//! `clawk trace tail`: prints the newest events and follows the record.

use std::collections::VecDeque;
use std::io::{self, BufRead, Read, Write};
use std::process::ExitCode;
use std::time::Duration;

use crate::state::kept::StateReader;
use anyhow::{Result, bail};
use clawk_proto::trace::TraceEvent;
use clawk_trace::MAX_LINE_BYTES;

use super::EventLinePrinter;
use super::source::{
    SessionSelection, TraceSource, expand_event, for_each_stored, open_reader, parse, with_words,
};
use crate::out::Format;

/// Interval at which new events are looked for.
const POLL: Duration = Duration::from_millis(200);

pub(super) fn run(
    source: &TraceSource,
    pick: SessionSelection,
    count: usize,
    follow: bool,
    format: Format,
) -> Result<ExitCode> {
    let mut printer = TailPrinter {
        lines: EventLinePrinter::new(),
        format,
    };
    match source {
        TraceSource::State(reader) => tail_state(reader, pick, count, follow, &mut printer)?,
        TraceSource::File(path) => tail_file(&mut open_reader(path)?, pick, count, follow, &mut printer)?,
    }
    Ok(ExitCode::SUCCESS)
}

struct TailPrinter {
    lines: EventLinePrinter,
    format: Format,
}

impl TailPrinter {
    /// Returns the printed form. JSON output is the record itself.
    fn of_state(&self, reader: &StateReader, event: TraceEvent) -> TraceEvent {
        match self.format {
            Format::Human => with_words(reader, event),
            Format::Json => event,
        }
    }

    fn print_event(&mut self, event: &TraceEvent) -> Result<()> {
        let mut out = io::stdout().lock();
        match self.format {
            Format::Human => self.lines.write(&mut out, event)?,
            Format::Json => writeln!(out, "{}", serde_json::to_string(event)?)?,
        }
        Ok(out.flush()?)
    }
}

fn tail_state(
    reader: &StateReader,
    pick: SessionSelection,
    count: usize,
    follow: bool,
    printer: &mut TailPrinter,
) -> Result<()> {
    // Rows of all sessions are contiguous, but those of one session are not, so all events are read.
    let after = match pick {
        SessionSelection::All => reader
            .last_row()?
            .saturating_sub(u64::try_from(count).unwrap_or(u64::MAX)),
        SessionSelection::One(_) => 0,
    };
    let mut latest = VecDeque::new();
    let mut row = for_each_stored(reader, pick, after, |stored| {
        keep_latest(
            &mut latest,
            count,
            printer.of_state(reader, expand_event(&stored.event)?),
        );
        Ok(())
    })?;
    for event in &latest {
        printer.print_event(event)?;
    }
    if !follow {
        return Ok(());
    }
    loop {
        std::thread::sleep(POLL);
        row = for_each_stored(reader, pick, row, |stored| {
            let event = printer.of_state(reader, expand_event(&stored.event)?);
            printer.print_event(&event)
        })?;
    }
}

fn tail_file(
    reader: &mut impl BufRead,
    pick: SessionSelection,
    count: usize,
    follow: bool,
    printer: &mut TailPrinter,
) -> Result<()> {
    let mut latest = VecDeque::new();
    let mut line = Vec::new();
    let mut live = false;
    loop {
        // One more byte for the line break.
        let room = u64::try_from((MAX_LINE_BYTES + 1).saturating_sub(line.len())).unwrap_or(u64::MAX);
        if room == 0 {
            bail!("a line is longer than {MAX_LINE_BYTES} bytes: this is not a trace");
        }
        let read = reader.by_ref().take(room).read_until(b'\n', &mut line)?;
        let complete = line.ends_with(b"\n");
        if !complete && read > 0 {
            // The line is incomplete, so read on.
            continue;
        }
        if !complete && live {
            // The writer has not finished the line.
            std::thread::sleep(POLL);
            continue;
        }
        if complete || (!follow && !line.trim_ascii().is_empty()) {
            let event = parse(line.trim_ascii())?;
            if pick.includes_session(event.session_id) {
                if live {
                    printer.print_event(&event)?;
                } else {
                    keep_latest(&mut latest, count, event);
                }
            }
            line.clear();
        }
        if !complete {
            for event in latest.drain(..) {
                printer.print_event(&event)?;
            }
            if !follow {
                return Ok(());
            }
            live = true;
        }
    }
}

fn keep_latest(latest: &mut VecDeque<TraceEvent>, count: usize, event: TraceEvent) {
    if latest.len() >= count {
        latest.pop_front();
    }
    if count > 0 {
        latest.push_back(event);
    }
}
