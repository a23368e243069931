//! `clawk trace verify`.

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clawk_trace::checkpoint::{PublicKey, Witness};
use clawk_trace::event::RawEvent;
use clawk_trace::verify::Verifier;
use clawk_trace::{FaultKind, Report};

use super::source::{Pick, Source, lines, open};
use crate::out::{self, Format, Paint};

/// `signed` names the files of the public key and of the checkpoints.
pub(super) fn run(
    source: &Source,
    pick: Pick,
    signed: Option<(&Path, &Path)>,
    format: Format,
) -> Result<ExitCode> {
    let witness = signed.map(|files| witness(source, pick, files)).transpose()?;
    let mut report = match source {
        Source::State(reader) => reader.verify(pick.session())?,
        Source::File(path) => match pick {
            Pick::All => clawk_trace::verify(open(path)?)?,
            Pick::One(_) => one_session(path, pick)?,
        },
    };
    // "Valid" must never mean "not there".
    if let (Some(session), true, 0) = (pick.session(), report.valid, report.event_count) {
        bail!("there is no session `{session}` here");
    }
    if let Some(mut witness) = witness.filter(|_| report.valid) {
        source.each(pick, |event| {
            witness.see(event.session_id, event.sequence, event.event_hash);
            Ok(())
        })?;
        witness.judge(&mut report);
    }
    match format {
        Format::Json => out::json(&report)?,
        Format::Human => human(source, &report)?,
    }
    Ok(if report.valid {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn witness(source: &Source, pick: Pick, (key, checkpoints): (&Path, &Path)) -> Result<Witness> {
    if matches!(source, Source::File(path) if path.as_os_str() == "-") {
        bail!("`--checkpoints` reads the trace twice; give a file instead of standard input");
    }
    let read = |path: &Path| {
        std::fs::read_to_string(path).with_context(|| format!("can't read `{}`", path.display()))
    };
    let key = PublicKey::parse(&read(key)?).with_context(|| format!("`{}`", key.display()))?;
    let text = read(checkpoints)?;
    Witness::new(&text, &key, |session| pick.takes(session))
        .with_context(|| format!("`{}`", checkpoints.display()))
}

/// One session of a file. A line that can't be read may belong to it, so it counts.
fn one_session(path: &Path, pick: Pick) -> Result<Report> {
    let mut verifier = Verifier::default();
    lines(path, |number, line| {
        let other = std::str::from_utf8(line)
            .ok() // silent-ok: the verifier says it
            .and_then(|text| RawEvent::parse(text).ok()) // silent-ok: as above
            .and_then(|event| event.session().ok()) // silent-ok: as above
            .is_some_and(|session| !pick.takes(session));
        if !other {
            verifier.push_line(line, number, true);
        }
        Ok(())
    })?;
    Ok(verifier.finish())
}

fn human(source: &Source, report: &Report) -> Result<()> {
    let paint = Paint::stdout();
    let sessions = match report.sessions.len() {
        1 => "1 session".to_owned(),
        count => format!("{count} sessions"),
    };
    let Some(fault) = &report.fault else {
        let profiles: Vec<_> = report.profiles.iter().map(|profile| profile.name()).collect();
        let under = if profiles.is_empty() {
            String::new()
        } else {
            format!(", canonical JSON: {}", profiles.join(", "))
        };
        out::line(&format!(
            "{}  {} events in {sessions}, every chain holds{under}",
            paint.green("valid"),
            report.event_count
        ))?;
        return Ok(());
    };
    out::line(&format!(
        "{}  {}: {}",
        paint.red("INVALID"),
        fault.kind.code(),
        out::harmless(&fault.detail)
    ))?;
    let place = match source {
        Source::File(_) => format!("line {}", fault.line),
        Source::State(_) => format!("row {}", fault.line),
    };
    out::line(&format!(
        "  event {} ({place}) of {}",
        fault.index, report.event_count
    ))?;
    if let (Some(session), Some(sequence)) = (fault.session, fault.sequence) {
        out::line(&format!("  session {session}, sequence {sequence}"))?;
    }
    let meaning = match fault.kind {
        FaultKind::BadHash => "the event is not what was recorded",
        FaultKind::BrokenLink => "the event before it is not the one that was recorded",
        FaultKind::Gap => "events are missing",
        FaultKind::Duplicate => "an event stands twice, or the order was changed",
        FaultKind::Malformed => "the line is no TRACE event",
        FaultKind::WrongGenesis => "the session's beginning is missing or was changed",
    };
    Ok(out::line(&format!("  {meaning}; what stands before it holds"))?)
}
