//! Measures CARP: resolutions with few and with many actions, replay of a record, complete executions.

use std::collections::BTreeMap;
use std::fs::File;
use std::hint::black_box;
use std::io::{BufRead as _, BufReader, BufWriter, Write as _};
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use clawk_carp::execute::{IssuedResolution, check_execution};
use clawk_carp::message::{self, RequestShape};
use clawk_carp::replay::{Event, replay_events};
use clawk_carp::resolve::{ExplainedResolution, ResolutionIds, resolve_request};
use clawk_carp::{Atlas, AtlasSet, Options, RateLedger};
use clawk_kernel::carp::ResolutionRecord;
use clawk_proto::SessionId;
use clawk_proto::carp::{CarpExecution, CarpRequester, Request};
use clawk_proto::trace::TraceEvent;
use clawk_trace::chain::{Draft, HashBuffer, SessionChain};
use jiff::{SignedDuration, Timestamp};
use serde_json::{Map, Value, json};
use uuid::Uuid;

const TIERS: [&str; 4] = ["low", "medium", "high", "critical"];
const VERBS: [&str; 4] = ["get", "list", "update", "delete"];
const TYPES: [&str; 6] = [
    "deny",
    "require_approval",
    "rate_limit",
    "allow",
    "allow",
    "allow",
];
const SESSION: Uuid = Uuid::from_u128(0x0198_0000_0000_7000_8000_0000_0000_0002);
const BEGAN: &str = "2026-01-01T12:00:00Z";

fn one_of<const N: usize>(list: [&'static str; N], n: u32) -> &'static str {
    let at = usize::try_from(n).unwrap_or(0) % N;
    list.get(at).copied().unwrap_or_default()
}

fn action_id(n: u32) -> String {
    format!("area{}.thing{n}.{}", n % 50, one_of(VERBS, n))
}

/// Builds an Atlas with `count` actions and policies. A third of the patterns are exact, a third are prefixes, the rest are
/// suffixes and patterns with several stars. Every type of policy occurs; two thirds have conditions.
fn atlas(count: u32) -> Result<Atlas> {
    let actions: Vec<Value> = (0..count)
        .map(|n| {
            json!({
                "action_id": action_id(n), "name": format!("Action {n}"), "risk_tier": one_of(TIERS, n),
                "description": "Does what its name says, to one thing at a time.",
                "parameters_schema": { "type": "object", "properties": { "id": { "type": "string" } }, "required": ["id"] },
            })
        })
        .collect();
    let mut policies: Vec<Value> = (0..count).map(policy).collect();
    policies.push(json!({ "policy_id": "all", "type": "allow", "actions": ["*"], "priority": -1 }));
    let manifest = json!({
        "atlas_version": "1.0", "atlas_id": "com.example.measure", "version": "1.0.0", "name": "Measure",
        "description": "", "actions": actions, "policies": policies,
    });
    Ok(Atlas::in_memory(
        &serde_json::to_vec(&manifest)?,
        &BTreeMap::new(),
    )?)
}

fn policy(n: u32) -> Value {
    let pattern = match n % 6 {
        0 | 1 => action_id(n),
        2 | 3 => format!("area{}.thing{}*", n % 50, n / 100),
        4 => format!("*thing{n}.update"),
        _ if n % 60 == 5 => format!("*.thing{}?.*et", n / 10),
        _ => format!("area{}.*", n % 50),
    };
    let conditions = match n % 3 {
        0 => json!({ "risk_tiers": ["critical"], "agents": [format!("agent-{}*", n % 97)] }),
        1 => json!({ "context_matches": { "env": format!("env{}", n % 89) } }),
        _ => json!({ "agents": ["*"] }),
    };
    let kind = one_of(TYPES, n);
    let mut policy = json!({
        "policy_id": format!("policy-{n}"), "type": kind, "actions": [pattern], "priority": n % 7, "conditions": conditions,
    });
    if let Some(policy) = policy.as_object_mut().filter(|_| kind == "rate_limit") {
        policy.insert(
            "parameters".to_owned(),
            json!({ "max_calls": 100, "window_seconds": 60 }),
        );
    }
    policy
}

fn request() -> Result<Request> {
    let request = json!({
        "carp_version": "1.0", "request_id": Uuid::from_u128(1), "timestamp": BEGAN, "operation": "resolve",
        "requester": { "agent_id": "agent-3x", "session_id": SESSION },
        "task": { "goal": "measure" }, "context": { "env": "env7" },
    });
    Ok(message::read(&request, RequestShape::Schema)?)
}

const fn ids(n: u128) -> ResolutionIds {
    ResolutionIds {
        resolution: Uuid::from_u128(n << 32 | 3),
        approval: Uuid::from_u128(4),
        trace: SESSION,
    }
}

/// Microseconds of one resolution with all its events, chained and hashed. Returns the median of several rounds.
///
/// # Errors
/// The resolver rejects the Atlas.
pub(crate) fn resolve_us(count: u32) -> Result<f64> {
    let set = AtlasSet::compile(vec![Arc::new(atlas(count)?)], Options::default())?;
    let (request, now, ledger) = (request()?, BEGAN.parse()?, RateLedger::new());
    let mut chain = SessionChain::new(SessionId(SESSION), SESSION);
    let mut scratch = HashBuffer::default();
    let mut times = Vec::new();
    for _ in 0..(2_000_000 / count.max(1)).clamp(50, 5_000) {
        let start = Instant::now();
        let resolved = resolve_request(&set, &request, now, ids(1), &ledger)?;
        chained(&request, &resolved, &mut chain, &mut scratch)?;
        times.push(start.elapsed().as_secs_f64() * 1e6);
        black_box(resolved);
    }
    times.sort_by(f64::total_cmp);
    times.get(times.len() / 2).copied().context("no round")
}

fn chained(
    request: &Request,
    resolved: &ExplainedResolution,
    chain: &mut SessionChain,
    scratch: &mut HashBuffer,
) -> Result<usize> {
    let mut count = 0;
    resolution_record(request, resolved).each_event(|event| {
        let payload = event.canonical_payload();
        let draft = Draft {
            event_id: Uuid::from_u128(count),
            span: Uuid::from_u128(1),
            parent: Some(SESSION),
            timestamp: &resolved.resolution.timestamp,
            event_type: event.event_kind(),
            payload: payload.get(),
        };
        chain.append(&draft, scratch);
        count += 1;
    });
    Ok(usize::try_from(count)?)
}

fn resolution_record<'a>(request: &'a Request, resolved: &'a ExplainedResolution) -> ResolutionRecord<'a> {
    ResolutionRecord {
        request,
        atlas_changes: 0,
        resolution: &resolved.resolution,
        evaluations: &resolved.evaluations,
        redacted: &[],
    }
}

/// A record of one session under an Atlas of ten actions. It repeats: one request, its events, four executions.
struct Record {
    out: BufWriter<File>,
    chain: SessionChain,
    scratch: HashBuffer,
    now: Timestamp,
    span: Uuid,
    written: u64,
}

impl Record {
    fn note(&mut self, kind: &str, payload: &str) -> Result<()> {
        self.written += 1;
        let draft = Draft {
            event_id: Uuid::from_u128(u128::from(self.written)),
            span: self.span,
            parent: Some(SESSION),
            timestamp: &format!("{:.6}", self.now),
            event_type: kind,
            payload,
        };
        serde_json::to_writer(&mut self.out, &self.chain.link_event(&draft, &mut self.scratch)?)?;
        self.out.write_all(b"\n")?;
        Ok(())
    }

    fn execution(
        &mut self,
        (set, requester): (&AtlasSet, &CarpRequester),
        issued: &IssuedResolution,
        ledger: &mut RateLedger,
        action: &str,
    ) -> Result<()> {
        self.span = Uuid::from_u128(u128::from(self.written) << 8 | 1);
        let execution = CarpExecution {
            resolution_id: issued.resolution_id,
            action_id: action.to_owned(),
            parameters: Map::from_iter([("id".to_owned(), json!("x"))]),
            idempotency_key: None,
        };
        let Ok(grant) = check_execution(set, Some(issued), requester, None, &execution, self.now, ledger)
        else {
            return Ok(());
        };
        let named = json!({ "action_id": action, "resolution_id": issued.resolution_id }).to_string();
        let payload = serde_json::to_string(&grant.evaluation.payload())?;
        self.note("action.requested", &named)?;
        self.note("policy.evaluated", &payload)?;
        self.note("action.approved", &named)?;
        self.note("action.executed", &named)?;
        ledger.spend("agent-3x", &grant.spends, self.now)?;
        Ok(())
    }
}

/// Writes a record of at least `events` events.
///
/// # Errors
/// The file can't be written.
pub(crate) fn write(file: &Path, events: u64) -> Result<()> {
    let set = AtlasSet::compile(vec![Arc::new(atlas(10)?)], Options::default())?;
    let (request, mut ledger) = (request()?, RateLedger::new());
    let mut record = Record {
        out: BufWriter::with_capacity(1 << 20, File::create(file)?),
        chain: SessionChain::new(SessionId(SESSION), SESSION),
        scratch: HashBuffer::default(),
        now: BEGAN.parse()?,
        span: SESSION,
        written: 0,
    };
    record.note("session.started", r#"{"agent_id":"agent-3x","goal":"measure"}"#)?;
    for turn in 0u128.. {
        if record.written >= events {
            break;
        }
        record.now = record.now.checked_add(SignedDuration::from_secs(1))?;
        let resolved = resolve_request(&set, &request, record.now, ids(turn + 1), &ledger)?;
        record.span = Uuid::from_u128(turn << 8);
        let mut noted = Ok(());
        resolution_record(&request, &resolved).each_event(|event| {
            if noted.is_ok() {
                noted = record.note(event.event_kind(), event.canonical_payload().get());
            }
        });
        noted?;
        let issued = IssuedResolution::new(&request, &resolved.resolution, record.now);
        for action in resolved.resolution.allowed_actions.iter().take(4) {
            record.execution(
                (&set, &request.requester),
                &issued,
                &mut ledger,
                &action.action_id,
            )?;
        }
    }
    record.out.flush()?;
    Ok(())
}

/// Seconds to read such a record and replay all its decisions.
///
/// # Errors
/// The file is not a record, or a replayed decision differs.
pub(crate) fn replay_s(file: &Path) -> Result<f64> {
    let set = AtlasSet::compile(vec![Arc::new(atlas(10)?)], Options::default())?;
    let start = Instant::now();
    let mut recorded: Vec<(TraceEvent, Timestamp)> = Vec::new();
    for line in BufReader::with_capacity(1 << 18, File::open(file)?).lines() {
        let event: TraceEvent = serde_json::from_str(&line?)?;
        let at = event.timestamp.parse()?;
        recorded.push((event, at));
    }
    let events: Vec<Event<'_>> = recorded
        .iter()
        .map(|(event, at)| Event {
            session: event.session_id,
            span: event.span_id,
            event_type: &event.event_type,
            at: *at,
            payload: &event.payload,
        })
        .collect();
    let replayed = replay_events(&set, &events, None);
    let seconds = start.elapsed().as_secs_f64();
    ensure!(
        replayed.is_identical(),
        "{} drifts: {:?}",
        replayed.drifts.len(),
        replayed.drifts.first()
    );
    ensure!(
        replayed.resolutions > 100,
        "only {} resolutions",
        replayed.resolutions
    );
    Ok(seconds)
}
