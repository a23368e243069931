//! Writes a resolution as a session of TRACE events, in the protocol's order.

use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use anyhow::{Result, bail};
use clawk_carp::ExplainedResolution;
use clawk_kernel::carp::ResolutionRecord;
use clawk_kernel::time::Clock;
use clawk_proto::carp::Request;
use clawk_trace::canonical::payload_of;
use clawk_trace::{Draft, HashBuffer, SessionChain, bounded};
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};
use uuid::Uuid;

/// Writes one complete session to a file that only its owner can read. Events have the time `now`, the last one `took_us`
/// microseconds later.
pub(super) fn write(
    path: &Path,
    request: &Request,
    resolved: &ExplainedResolution,
    now: Timestamp,
    took_us: u64,
    clock: &dyn Clock,
) -> Result<()> {
    if path.as_os_str() == "-" {
        bail!("standard output carries the resolution; give a file");
    }
    let mut session = ResolutionTraceWriter {
        chain: SessionChain::new(request.requester.session_id, resolved.resolution.trace_id),
        scratch: HashBuffer::default(),
        root: clock.new_uuid(),
        clock,
        out: Vec::new(),
    };
    let whole = session.root;
    let at = format_timestamp(now);
    let goal = request.task.as_ref().map(|task| task.goal.as_str());
    let started = json!({ "agent_id": request.requester.agent_id, "goal": goal });
    session.write_event(whole, &at, "session.started", &format_payload(&started)?)?;
    write_resolution(&mut session, &at, request, resolved)?;
    let took = SignedDuration::from_micros(i64::try_from(took_us).unwrap_or(i64::MAX));
    let end = format_timestamp(now.checked_add(took).unwrap_or(now)); // silent-ok: only past the year 9999
    let ended = json!({ "reason": "completed", "duration_ms": took_us / 1000 });
    let span = clock.new_uuid();
    session.write_event(span, &end, "session.ended", &format_payload(&ended)?)?;
    // Only a complete session replaces an existing file.
    let mut options = OpenOptions::new();
    let mut file = options
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(path)?;
    Ok(file.write_all(&session.out)?)
}

/// Writes the events from the request to the answer, in one span.
fn write_resolution(
    session: &mut ResolutionTraceWriter<'_>,
    at: &str,
    request: &Request,
    resolved: &ExplainedResolution,
) -> Result<()> {
    let span = session.clock.new_uuid();
    let record = ResolutionRecord {
        request,
        atlas_changes: 0,
        resolution: &resolved.resolution,
        evaluations: &resolved.evaluations,
        redacted: &[],
    };
    let mut events = Vec::new();
    record.each_event(|event| events.push((event.event_kind(), event.canonical_payload())));
    for (kind, payload) in events {
        session.write_event(span, at, kind, payload.get())?;
    }
    Ok(())
}

fn format_payload(value: &Value) -> Result<String> {
    Ok(bounded(payload_of(value)?).get().to_owned())
}

fn format_timestamp(at: Timestamp) -> String {
    format!("{at:.6}")
}

/// A session that is being written.
struct ResolutionTraceWriter<'c> {
    chain: SessionChain,
    scratch: HashBuffer,
    /// The root span of the session.
    root: Uuid,
    clock: &'c dyn Clock,
    out: Vec<u8>,
}

impl ResolutionTraceWriter<'_> {
    fn write_event(&mut self, span: Uuid, at: &str, event_type: &str, payload: &str) -> Result<()> {
        let draft = Draft {
            event_id: self.clock.new_uuid(),
            span,
            parent: Some(self.root),
            timestamp: at,
            event_type,
            payload,
        };
        serde_json::to_writer(&mut self.out, &self.chain.link_event(&draft, &mut self.scratch)?)?;
        self.out.push(b'\n');
        Ok(())
    }
}
