//! Verifies a trace in a stream, with bounded memory.
//!
//! For every event, in this order: it can be parsed; its sequence number is the session's next one (from 0); it names the previous
//! hash (first: 64 zeros); its own hash is right in a profile that all events of its session satisfy. Sessions may be interleaved;
//! each one is its own chain.

mod chunk;
mod parallel;
mod profile;
mod report;
#[cfg(test)]
mod tests;

use std::borrow::Borrow;
use std::collections::HashMap;
use std::io::{self, BufRead};

use clawk_proto::trace::TraceEvent;
use clawk_proto::{Digest, SessionId};

use crate::chain::{HashBuffer, hex_into};
use crate::event::RawEvent;

pub use profile::ProfileSet;
#[cfg(test)]
pub(crate) use profile::satisfied_profiles;
pub use report::{FaultKind, SessionReport, TraceFault, VerificationReport};

/// The longest line, bytes; a longer one is `malformed`. An event that does not come from a file is measured by the line that it
/// would have, so a state directory and its export give the same result.
pub const MAX_LINE_BYTES: usize = 16 * 1024 * 1024;

/// The largest number of chains in one run (about 30 MiB).
pub const MAX_SESSIONS: usize = 262_144;

/// Verifies JSON Lines on every core, in bounded memory. It reports the first fault and counts events to the end.
///
/// ```
/// let trace: &[u8] = b"";
/// let report = clawk_trace::verify(trace)?;
/// assert!(report.valid);
/// assert_eq!(report.event_count, 0);
/// let report = clawk_trace::verify(&b"not an event\n"[..])?;
/// assert!(!report.valid);
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// # Errors
/// The reader fails. A trace with a fault is not an error: the [`VerificationReport`] says `valid: false`.
pub fn verify(reader: impl BufRead) -> io::Result<VerificationReport> {
    parallel::verify_parallel(reader, parallel::Plan::of_machine())
}

/// Verifies events that are in memory.
pub fn verify_events<E: Borrow<TraceEvent>>(events: impl IntoIterator<Item = E>) -> VerificationReport {
    let mut verifier = Verifier::default();
    for (number, event) in (1..).zip(events) {
        match RawEvent::of(event.borrow()) {
            Ok(raw) => verifier.push(&raw, number),
            Err(reason) => verifier.refuse(number, reason),
        }
    }
    verifier.finish()
}

fn too_long() -> String {
    format!("the event is longer than {MAX_LINE_BYTES} bytes")
}

fn skip_line(reader: &mut impl BufRead) -> io::Result<()> {
    loop {
        let chunk = reader.fill_buf()?;
        let (used, ended) = match chunk.iter().position(|byte| *byte == b'\n') {
            Some(at) => (at + 1, true),
            None => (chunk.len(), chunk.is_empty()),
        };
        reader.consume(used);
        if ended {
            return Ok(());
        }
    }
}

/// The state of a session's chain.
#[derive(Debug, Clone, Copy)]
struct ChainTip {
    events: u64,
    head: Digest,
    profiles: ProfileSet,
}

impl ChainTip {
    /// The state before a session's first event.
    const START: Self = Self {
        events: 0,
        head: Digest::ZERO,
        profiles: ProfileSet::ALL,
    };
}

/// The verifier as a value: push events, then call [`finish`](Self::finish).
#[derive(Debug, Clone, Default)]
pub struct Verifier {
    sessions: HashMap<SessionId, ChainTip>,
    order: Vec<SessionId>,
    count: u64,
    fault: Option<TraceFault>,
    scratch: HashBuffer,
}

impl Verifier {
    /// Adds one line without its newline; `ended`: whether the line had one. `number` counts lines from 1.
    pub fn push_line(&mut self, line: &[u8], number: u64, ended: bool) {
        if self.fault.is_some() {
            self.count += 1;
            return;
        }
        let parsed = match std::str::from_utf8(line) {
            Ok(text) => RawEvent::parse(text),
            Err(e) => Err(format!("not UTF-8: {e}")),
        };
        match parsed {
            Ok(event) => self.push(&event, number),
            Err(reason) if ended => self.refuse(number, reason),
            Err(reason) => self.refuse(number, format!("the last line is cut off: {reason}")),
        }
    }

    /// Adds one event. `number` is its line number, from 1.
    pub fn push(&mut self, event: &RawEvent<'_>, number: u64) {
        let index = self.count;
        self.count += 1;
        if self.fault.is_some() {
            return;
        }
        if let Err((kind, detail)) = self.judge(event) {
            self.fault = Some(TraceFault {
                kind,
                detail,
                index,
                line: number,
                session: event.session().ok(), // silent-ok: the detail says it
                sequence: Some(event.sequence),
            });
        }
    }

    /// Records an event that can't be parsed.
    pub fn refuse(&mut self, number: u64, detail: String) {
        let index = self.count;
        self.count += 1;
        if self.fault.is_none() {
            let kind = FaultKind::Malformed;
            self.fault = Some(TraceFault {
                kind,
                detail,
                index,
                line: number,
                session: None,
                sequence: None,
            });
        }
    }

    fn refuse_long(&mut self, number: u64) {
        self.refuse(number, too_long());
    }

    fn judge(&mut self, event: &RawEvent<'_>) -> Result<(), (FaultKind, String)> {
        if event.line_bytes() > MAX_LINE_BYTES {
            return Err((FaultKind::Malformed, too_long()));
        }
        let session = event
            .session()
            .map_err(|e| (FaultKind::Malformed, format!("`session_id`: {e}")))?;
        let known = self.sessions.get(&session).copied();
        let tip = known.unwrap_or(ChainTip::START);
        check_place(event, &tip)?;
        let (profiles, head) = profile::satisfied_profiles(event, tip.profiles, &mut self.scratch)?;
        let next = ChainTip {
            events: tip.events + 1,
            head,
            profiles,
        };
        if known.is_none() {
            if self.sessions.len() >= MAX_SESSIONS {
                let detail = format!("more than {MAX_SESSIONS} sessions in one file; split it by session");
                return Err((FaultKind::Malformed, detail));
            }
            self.order.push(session);
        }
        self.sessions.insert(session, next);
        Ok(())
    }

    /// The result.
    #[must_use]
    pub fn finish(self) -> VerificationReport {
        let Self {
            sessions,
            order,
            count,
            fault,
            ..
        } = self;
        let mut all = ProfileSet::ALL;
        let sessions = order
            .into_iter()
            .filter_map(|id| sessions.get(&id).map(|tip| (id, tip)))
            .map(|(session_id, tip)| {
                all = all.intersection(tip.profiles);
                let profiles = tip.profiles.profile_list();
                SessionReport {
                    session_id,
                    events: tip.events,
                    head: tip.head,
                    profiles,
                }
            })
            .collect();
        VerificationReport::new(count, fault, all.profile_list(), sessions)
    }
}

/// Checks the sequence number first, then the link, so that a misplaced event is distinguished from a changed one.
fn check_place(event: &RawEvent<'_>, tip: &ChainTip) -> Result<(), (FaultKind, String)> {
    let (found, expected) = (event.sequence, tip.events);
    let mut digits = [0; 64];
    let names_head = hex_into(&tip.head, &mut digits) == event.previous_event_hash;
    if expected == 0 {
        if found != 0 {
            return Err((
                FaultKind::WrongGenesis,
                format!("the session's first event has sequence {found}, not 0"),
            ));
        }
        if !names_head {
            let detail = "the session's first event has a `previous_event_hash` other than 64 zeros";
            return Err((FaultKind::WrongGenesis, detail.to_owned()));
        }
        return Ok(());
    }
    if found > expected {
        return Err((
            FaultKind::Gap,
            format!("sequence {found} follows {}; {expected} is missing", expected - 1),
        ));
    }
    if found < expected {
        return Err((
            FaultKind::Duplicate,
            format!("sequence {found} comes again after {}", expected - 1),
        ));
    }
    if !names_head {
        let detail =
            "`previous_event_hash` is not the hash of the event before; an event was replaced or removed";
        return Err((FaultKind::BrokenLink, detail.to_owned()));
    }
    Ok(())
}
