//! `clawk trace verify`: checks the chains and signatures of a record.

use std::path::Path;
use std::process::ExitCode;

use crate::state::kept::{ContentInventory, StateReader};
use anyhow::{Context, Result, bail};
use clawk_trace::checkpoint::{CheckpointCoverage, CheckpointError, CheckpointVerifier, PublicKey};
use clawk_trace::event::RawEvent;
use clawk_trace::verify::Verifier;
use clawk_trace::{FaultKind, VerificationReport};
use serde::Serialize;

use super::source::{SessionSelection, TraceSource, for_each_line, open_reader};
use crate::out::{self, Format, TerminalStyle};

/// The files to check signatures: the public key and the checkpoints.
#[derive(Debug, Clone, Copy)]
pub(super) struct SignatureFiles<'a> {
    pub(super) key: Option<&'a Path>,
    pub(super) checkpoints: Option<&'a Path>,
}

/// The result of verifying a record: the chains' report and further checks.
#[derive(Debug, Serialize)]
struct VerifyFindings {
    #[serde(flatten)]
    report: VerificationReport,
    /// What the signatures cover.
    #[serde(skip_serializing_if = "Option::is_none")]
    signed: Option<CheckpointCoverage>,
    /// For a state directory: the contents that events refer to.
    #[serde(skip_serializing_if = "Option::is_none")]
    contents: Option<ContentInventory>,
    /// For a state directory: other problems. A start would also refuse the state, or lose data.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    problems: Vec<String>,
}

pub(super) fn run(
    source: &TraceSource,
    pick: SessionSelection,
    signed: SignatureFiles<'_>,
    format: Format,
) -> Result<ExitCode> {
    let witness = checkpoint_verifier(source, pick, signed)?;
    let mut report = verify_chains(source, pick)?;
    // "Valid" must never mean "missing".
    if let (Some(session), true, 0) = (pick.session(), report.valid, report.event_count) {
        bail!("there is no session `{session}` here");
    }
    if let (TraceSource::File(path), true, 0) = (source, report.valid, report.event_count) {
        bail!(
            "there is no event in `{}`: nothing is proved by it",
            path.display()
        );
    }
    let vouched = witness.as_ref().map(|witness| witness.vouched().clone());
    if let Some(mut witness) = witness.filter(|_| report.valid) {
        source.for_each_event(pick, |event| {
            witness.see(event.session_id, event.sequence, event.event_hash);
            Ok(())
        })?;
        witness.judge(&mut report);
    }
    let contents = match source {
        TraceSource::State(reader) => Some(reader.contents(pick.session())?),
        TraceSource::File(_) => None,
    };
    let problems = match source {
        TraceSource::State(reader) => find_problems(reader)?,
        TraceSource::File(_) => Vec::new(),
    };
    // The JSON, the text and the exit code all use this value.
    report.valid &= problems.is_empty();
    let whole = report.valid;
    let findings = VerifyFindings {
        report,
        signed: vouched,
        contents,
        problems,
    };
    match format {
        Format::Json => out::print_json(&findings)?,
        Format::Human => {
            print_human(source, &findings.report)?;
            print_findings(&findings)?;
        }
    }
    Ok(if whole {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Returns problems of a state directory other than its chains: reasons for a start to refuse it, projections that do not match the
/// events, lost or changed contents.
pub(in crate::cmd) fn find_problems(reader: &StateReader) -> Result<Vec<String>> {
    let key = crate::state::kept::public_key(reader.state())?;
    let mut problems: Vec<String> = reader.refused_at_start(key.as_ref())?.into_iter().collect();
    problems.extend(reader.projections(None)?);
    let contents = reader.contents(None)?;
    let (missing, corrupt) = (contents.missing, contents.corrupt);
    if missing > 0 || corrupt > 0 {
        problems.push(format!("contents: {missing} missing, {corrupt} changed"));
    }
    let unreadable = contents.unreadable.iter().map(|record| {
        let (sequence, session) = (record.sequence, record.session_id);
        format!(
            "event {sequence} of session {session}, which records an erasure: {}",
            record.why
        )
    });
    problems.extend(unreadable);
    Ok(problems)
}

/// Verifies the chains.
pub(super) fn verify_chains(source: &TraceSource, pick: SessionSelection) -> Result<VerificationReport> {
    Ok(match source {
        TraceSource::State(reader) => reader.verify(pick.session())?,
        TraceSource::File(path) => match pick {
            SessionSelection::All => clawk_trace::verify(open_reader(path)?)?,
            SessionSelection::One(_) => one_session(path, pick)?,
        },
    })
}

/// Returns the signatures to check the trace against. If none are named, a state directory is checked against its own signed heads
/// and key. That detects changes by anybody who could not sign; only a key and heads stored elsewhere detect all changes.
fn checkpoint_verifier(
    source: &TraceSource,
    pick: SessionSelection,
    signed: SignatureFiles<'_>,
) -> Result<Option<CheckpointVerifier>> {
    if signed.checkpoints.is_some() && matches!(source, TraceSource::File(path) if path.as_os_str() == "-") {
        bail!("`--checkpoints` reads the trace twice; give a file instead of standard input");
    }
    let read = |path: &Path| {
        std::fs::read_to_string(path).with_context(|| format!("can't read `{}`", path.display()))
    };
    let own = match source {
        TraceSource::State(reader) => crate::state::kept::public_key(reader.state())?,
        TraceSource::File(_) => None,
    };
    let key = match signed.key {
        Some(path) => Some(PublicKey::parse(&read(path)?).with_context(|| format!("`{}`", path.display()))?),
        None => own,
    };
    let text = match (signed.checkpoints, source) {
        (Some(path), _) => read(path)?,
        (None, TraceSource::State(reader)) => reader.heads()?,
        (None, TraceSource::File(_)) if signed.key.is_some() => {
            bail!("`--key` takes `--checkpoints FILE` with it, but for a state directory, which has its own");
        }
        (None, TraceSource::File(_)) => return Ok(None),
    };
    let Some(key) = key else {
        if signed.checkpoints.is_some() || !text.is_empty() {
            bail!("there are signed checkpoints and no key: say `--key FILE` (`clawk trace key` prints it)");
        }
        return Ok(None);
    };
    let asked = signed.key.is_some() || signed.checkpoints.is_some();
    // A key with an empty list of heads is a fault only if the user asked for signatures.
    if text.is_empty() && !asked {
        return Ok(None);
    }
    let place = signed.checkpoints.map_or_else(
        || "the state's own heads".to_owned(),
        |path| format!("`{}`", path.display()),
    );
    match CheckpointVerifier::new(&text, &key, pick == SessionSelection::All, |session| {
        pick.includes_session(session)
    }) {
        // A single session may be too new to have a signed head.
        Err(CheckpointError::Empty) if !asked => Ok(None),
        other => Ok(Some(other.context(place)?)),
    }
}

/// Prints signatures and contents, one line each.
fn print_findings(findings: &VerifyFindings) -> Result<()> {
    let paint = TerminalStyle::for_stdout();
    let held = findings.report.fault.is_none() && findings.problems.is_empty();
    if let Some(vouched) = findings.signed.as_ref().filter(|_| held) {
        let covered = match vouched.events {
            0 => String::new(),
            events => format!(
                ", all sessions up to event {events} of {}",
                findings.report.event_count
            ),
        };
        out::print_line(format!(
            "{} {} statements hold{covered}, the last of {}",
            paint.green("signed"),
            vouched.statements,
            vouched.until.as_deref().map(out::one_line).unwrap_or_default(),
        ))?;
    }
    for problem in &findings.problems {
        out::print_line(format!("  {}", out::one_line(problem)))?;
    }
    let Some(contents) = &findings.contents else {
        return Ok(());
    };
    let erased = match contents.erased {
        0 => String::new(),
        count => format!(", {count} content erased (on the record)"),
    };
    out::print_line(format!(
        "{} {} there and right{erased}{}",
        if contents.is_complete() {
            paint.green("content")
        } else {
            paint.red("CONTENT")
        },
        contents.present,
        match (contents.missing, contents.corrupt) {
            (0, 0) => String::new(),
            (missing, corrupt) => format!(", {missing} MISSING, {corrupt} CORRUPT"),
        }
    ))?;
    for lost in &contents.lost {
        out::print_line(format!(
            "  {} {}  session {}, sequence {}",
            lost.how, lost.digest, lost.session_id, lost.sequence
        ))?;
    }
    Ok(())
}

/// Verifies one session of a file. An unreadable line may belong to the session, so it counts as a fault.
fn one_session(path: &Path, pick: SessionSelection) -> Result<VerificationReport> {
    let mut verifier = Verifier::default();
    for_each_line(path, |number, line| {
        let other = std::str::from_utf8(line)
            .ok() // silent-ok: the verifier says it
            .and_then(|text| RawEvent::parse(text).ok()) // silent-ok: as above
            .and_then(|event| event.session().ok()) // silent-ok: as above
            .is_some_and(|session| !pick.includes_session(session));
        if !other {
            verifier.push_line(line, number, true);
        }
        Ok(())
    })?;
    Ok(verifier.finish())
}

fn print_human(source: &TraceSource, report: &VerificationReport) -> Result<()> {
    let paint = TerminalStyle::for_stdout();
    let sessions = match report.sessions.len() {
        1 => "1 session".to_owned(),
        count => format!("{count} sessions"),
    };
    let Some(fault) = &report.fault else {
        if !report.valid {
            let text = "every chain holds, and what lies beside them does not fit";
            return Ok(out::print_line(format!(
                "{}  {} events in {sessions}: {text}",
                paint.red("INVALID"),
                report.event_count
            ))?);
        }
        let profiles: Vec<_> = report.profiles.iter().map(|profile| profile.name()).collect();
        let under = if profiles.is_empty() {
            String::new()
        } else {
            format!(", canonical JSON: {}", profiles.join(", "))
        };
        out::print_line(format!(
            "{}  {} events in {sessions}, every chain holds{under}",
            paint.green("valid"),
            report.event_count
        ))?;
        return Ok(());
    };
    out::print_line(format!(
        "{}  {}: {}",
        paint.red("INVALID"),
        fault.kind.code(),
        out::one_line(&fault.detail)
    ))?;
    let place = match source {
        TraceSource::File(_) => format!("line {}", fault.line),
        TraceSource::State(_) => format!("row {}", fault.line),
    };
    out::print_line(format!(
        "  event {} ({place}) of {}",
        fault.index, report.event_count
    ))?;
    if let (Some(session), Some(sequence)) = (fault.session, fault.sequence) {
        out::print_line(format!("  session {session}, sequence {sequence}"))?;
    }
    let meaning = match fault.kind {
        FaultKind::BadHash => "the event is not what was recorded",
        FaultKind::BrokenLink => "the event before it is not the one that was recorded",
        FaultKind::Gap => "events are missing",
        FaultKind::Duplicate => "an event occurs twice, or the order was changed",
        FaultKind::Malformed => "the line is not a TRACE event",
        FaultKind::WrongGenesis => "the session's beginning is missing or was changed",
    };
    Ok(out::print_line(format!(
        "  {meaning}; the events before it are valid"
    ))?)
}
