//! `clawk trace export`: writes JSON Lines. `--strict` omits everything that the TRACE standard does not define (R31).

mod html;
mod otlp;

use std::collections::HashMap;
use std::fs::OpenOptions;
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clawk_proto::{Digest, SessionId};
use clawk_trace::canonical::payload_of;
use clawk_trace::{Draft, HashBuffer, SessionChain};
use serde_json::{Map, Value, json};

use super::source::{SessionSelection, TraceSource, for_each_line, for_each_stored, parse};

/// Prefix of clawk's own event types.
const OURS: &str = "ckp.";

/// What is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub(super) enum TraceExportFormat {
    /// JSON Lines: the record itself
    #[default]
    Jsonl,
    /// OTLP/HTTP JSON: sessions, turns, inferences and calls as spans
    Otlp,
    /// One HTML page without scripts and without network requests
    Html,
}

/// The destination and the format.
#[derive(Debug, Clone, Copy)]
pub(super) struct TraceExportOptions<'a> {
    pub(super) output: Option<&'a Path>,
    pub(super) strict: bool,
    pub(super) form: TraceExportFormat,
    /// A collector, instead of a file.
    pub(super) endpoint: Option<&'a str>,
}

pub(super) fn run(
    source: &TraceSource,
    pick: SessionSelection,
    how: TraceExportOptions<'_>,
) -> Result<ExitCode> {
    if how.strict && how.form != TraceExportFormat::Jsonl {
        bail!("`--strict` goes with JSON Lines");
    }
    if let Some(endpoint) = how.endpoint {
        let spans = otlp::collect_spans(source, pick)?;
        crate::compose::build_runtime()?.block_on(otlp::send_spans(&spans, endpoint))?;
        crate::out::print_note(format!("{} spans sent", spans.len()));
        return Ok(ExitCode::SUCCESS);
    }
    match how.output {
        None => write(source, pick, how, BufWriter::new(io::stdout().lock()))?,
        Some(path) => {
            let file = OpenOptions::new()
                .write(true)
                .create(true)
                .truncate(true)
                .mode(0o600)
                .open(path)
                .with_context(|| format!("can't write `{}`", path.display()))?;
            write(source, pick, how, BufWriter::new(file))
                .with_context(|| format!("writing `{}`", path.display()))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn write(
    source: &TraceSource,
    pick: SessionSelection,
    how: TraceExportOptions<'_>,
    mut out: impl Write,
) -> Result<()> {
    match how.form {
        TraceExportFormat::Jsonl => {}
        TraceExportFormat::Otlp => {
            serde_json::to_writer(
                &mut out,
                &otlp::otlp_document(&otlp::collect_spans(source, pick)?),
            )?;
            return Ok(out.flush()?);
        }
        TraceExportFormat::Html => {
            let report = super::verify::verify_chains(source, pick)?;
            out.write_all(html::render_page(source, pick, &report)?.as_bytes())?;
            return Ok(out.flush()?);
        }
    }
    if how.strict {
        write_rechained(source, pick, &mut out)?;
    } else {
        match source {
            TraceSource::State(reader) => {
                for_each_stored(reader, pick, 0, |stored| {
                    serde_json::to_writer(&mut out, &stored.event)?;
                    Ok(out.write_all(b"\n")?)
                })?;
            }
            // Copy the original line: serialising it again could change the hashed bytes.
            TraceSource::File(path) => for_each_line(path, |_, line| {
                if pick.includes_session(parse(line)?.session_id) {
                    out.write_all(line)?;
                    out.write_all(b"\n")?;
                }
                Ok(())
            })?,
        }
    }
    Ok(out.flush()?)
}

/// What a strict export omits from one session, and where the original chain ended.
#[derive(Default)]
struct LeftOut {
    events: u64,
    head: Option<Digest>,
}

fn write_rechained(source: &TraceSource, pick: SessionSelection, out: &mut impl Write) -> Result<()> {
    if matches!(source, TraceSource::File(path) if path.as_os_str() == "-") {
        bail!("`--strict` reads the trace twice; give a file instead of standard input");
    }
    // The first event lists the omitted events, so they must be counted before.
    let mut left_out: HashMap<SessionId, LeftOut> = HashMap::new();
    source.for_each_event(pick, |event| {
        let of_session = left_out.entry(event.session_id).or_default();
        of_session.events += u64::from(event.event_type.starts_with(OURS));
        of_session.head = Some(event.event_hash);
        Ok(())
    })?;
    let mut chains: HashMap<SessionId, SessionChain> = HashMap::new();
    let mut scratch = HashBuffer::default();
    source.for_each_event(pick, |mut event| {
        if event.event_type.starts_with(OURS) {
            return Ok(());
        }
        let chain = chains
            .entry(event.session_id)
            .or_insert_with(|| SessionChain::new(event.session_id, event.trace_id));
        if chain.next_sequence == 0 {
            note_left_out(&mut event.payload, left_out.get(&event.session_id));
        }
        let payload = payload_of(&event.payload).with_context(|| format!("event {}", event.event_id))?;
        let draft = Draft {
            event_id: event.event_id,
            span: event.span_id,
            parent: event.parent_span_id,
            timestamp: &event.timestamp,
            event_type: &event.event_type,
            payload: payload.get(),
        };
        serde_json::to_writer(&mut *out, &chain.link_event(&draft, &mut scratch)?)?;
        Ok(out.write_all(b"\n")?)
    })
}

fn note_left_out(payload: &mut Map<String, Value>, left_out: Option<&LeftOut>) {
    let (events, head) = left_out.map_or((0, None), |l| (l.events, l.head));
    let text = json!({ "rechained": true, "events_left_out": events, "original_head": head });
    payload.insert("strict_export".to_owned(), text);
}
