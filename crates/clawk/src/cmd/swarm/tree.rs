//! `clawk trace show --task`: shows a swarm's task and all tasks delegated below it as one tree. Records of other hosts are merged:
//! an attempt on another host appears below its task.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use crate::state::kept::{StateReader, read_only};
use anyhow::{Context, Result, bail};
use clawk_events::{Event, read_members};
use clawk_kernel::ports::{JournalScan, RecordedEvent};
use clawk_proto::{RequestId, SessionId};
use clawk_swarm::coord::derived;
use serde::Serialize;
use serde_json::{Value, json};

use super::for_each_event;
use crate::out::{self, Format};

/// Largest number of attempts of one task that are looked for on other hosts.
const MAX_TRIES: u32 = 1000;
/// Deepest level that is shown by indentation.
const MAX_INDENT: usize = 40;

/// One task of the tree.
#[derive(Debug, Default, Serialize)]
struct TaskTreeBranch {
    task_id: String,
    member: String,
    host: String,
    session: Option<String>,
    status: String,
    events: Vec<Value>,
    children: Vec<TaskTreeBranch>,
}

/// What is known of one task before the tree is built.
#[derive(Debug, Default)]
struct TaskTreeEntry {
    parent: Option<String>,
    branch: TaskTreeBranch,
    order: usize,
    attempts: u32,
}

/// The entries of all records, by task.
type TaskTreeIndex = BTreeMap<String, TaskTreeEntry>;

fn event_json(event: &RecordedEvent) -> Value {
    let read = Event::read(&event.kind, &event.payload);
    let payload = match read.and_then(|_| read_members(&event.kind, &event.payload)) {
        Ok(members) => Value::Object(members),
        Err(error) => json!({ "unreadable": error.to_string() }),
    };
    json!({
        "type": event.kind, "timestamp": event.at.to_string(), "session": event.session.to_string(),
        "sequence": event.sequence, "payload": payload,
    })
}

/// Prints the tree of a run or of one task over all these records.
pub(crate) fn print_tree(state: &Path, task: &str, with: &[PathBuf], format: Format) -> Result<ExitCode> {
    let mut known = of_state(state, "local")?;
    for path in with {
        let host = path.file_name().unwrap_or_default().to_string_lossy();
        let host = host.trim_end_matches(".trace.jsonl");
        let others = if path.is_dir() {
            of_state(path, host)?
        } else {
            of_export(path, host)?
        };
        for (id, of) in others {
            known.entry(id).or_insert(of);
        }
    }
    join_tries(&mut known);
    let Some(root) = known.get(task).map(|_| task.to_owned()) else {
        bail!(
            "no task {task} is in `{}`; `clawk swarm status` lists runs",
            state.display()
        );
    };
    let root = build_branch(&mut known, &root);
    match format {
        Format::Json => out::print_json(&json!({"task_id": task, "root": root}))?,
        Format::Human => print_branch(&root, 0)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Reads the tasks of a state directory, each with the events of its session.
fn of_state(state: &Path, host: &str) -> Result<TaskTreeIndex> {
    let reader = read_only(state)?;
    let mut known = TaskTreeIndex::new();
    for_each_event(&reader, |event| add_event(&mut known, host, event_json(event)))?;
    for of in known.values_mut() {
        let session = of.branch.session.as_ref();
        let session = session.and_then(|id| id.parse::<SessionId>().ok()); // silent-ok: ids of ours always read
        if let Some(session) = session {
            of.branch.events.extend(read_events(&reader, session)?);
        }
    }
    Ok(known)
}

/// Reads the tasks of an export.
fn of_export(path: &Path, host: &str) -> Result<TaskTreeIndex> {
    let about = || format!("can't read `{}`", path.display());
    let text = std::fs::read_to_string(path).with_context(about)?;
    let mut known = TaskTreeIndex::new();
    let mut sessions: BTreeMap<String, Vec<Value>> = BTreeMap::new();
    for line in text.lines().filter(|line| !line.trim().is_empty()) {
        let event: Value = serde_json::from_str(line).with_context(about)?;
        let of = |name: &str| event.get(name).cloned().unwrap_or_default();
        let kind = of("event_type");
        let told = json!({
            "type": kind, "timestamp": of("timestamp"), "session": of("session_id"), "sequence": of("sequence"),
            "payload": of("payload"),
        });
        let session = told.get("session").and_then(Value::as_str).unwrap_or_default();
        sessions.entry(session.to_owned()).or_default().push(told.clone());
        if kind.as_str().is_some_and(|kind| kind.starts_with("ckp.swarm.")) {
            add_event(&mut known, host, told);
        }
    }
    for of in known.values_mut() {
        let session = of
            .branch
            .session
            .as_ref()
            .and_then(|session| sessions.get(session));
        of.branch.events.extend(session.into_iter().flatten().cloned());
    }
    Ok(known)
}

/// Puts a task of another host below the task whose attempt it is.
fn join_tries(known: &mut TaskTreeIndex) {
    let tries = known.iter().flat_map(|(id, of)| {
        let task = RequestId::parse(id).ok(); // silent-ok: what has no such id was sent nowhere
        let tries = task.into_iter().flat_map(|task| {
            (1..=of.attempts).map(move |attempt| derived(&task, &format!("try/{attempt}")).to_string())
        });
        tries.map(|sent| (sent, id.clone()))
    });
    let tries: Vec<(String, String)> = tries.collect();
    for (sent, task) in tries {
        if let Some(of) = known.get_mut(&sent) {
            of.parent = Some(task);
        }
    }
}

fn add_event(known: &mut TaskTreeIndex, host: &str, told: Value) {
    let text = |name: &str| {
        let payload = told.get("payload")?;
        payload.get(name).and_then(Value::as_str).map(str::to_owned)
    };
    let Some(task) = text("task_id") else { return };
    let order = known.len();
    let of = known.entry(task.clone()).or_default();
    if of.branch.task_id.is_empty() {
        of.order = order;
        host.clone_into(&mut of.branch.host);
        of.branch.status = "running".to_owned();
    }
    of.branch.task_id.clone_from(&task);
    let above = text("parent").or_else(|| text("run"));
    of.parent = of.parent.take().or(above).filter(|parent| *parent != task);
    if let Some(member) = text("member") {
        of.branch.member = member;
    }
    of.branch.session = text("peer_session").or(of.branch.session.take());
    let attempt = told.pointer("/payload/attempt").and_then(Value::as_u64);
    let attempt = attempt.and_then(|attempt| u32::try_from(attempt).ok()); // silent-ok: no task has as many tries
    of.attempts = of.attempts.max(attempt.unwrap_or(0).min(MAX_TRIES));
    let kind = told.get("type").and_then(Value::as_str).unwrap_or_default();
    if matches!(kind, "ckp.swarm.reported" | "ckp.swarm.ended") {
        of.branch.status = text("status").unwrap_or_default();
    }
    of.branch.events.push(told);
}

fn read_events(reader: &StateReader, session: SessionId) -> Result<Vec<Value>> {
    let mut scan = JournalScan {
        session: Some(session),
        limit: 1000,
        ..JournalScan::default()
    };
    let mut all = Vec::new();
    loop {
        let page = reader.recorded_events(&scan)?;
        all.extend(page.iter().map(event_json));
        match page.last() {
            Some(last) if page.len() == scan.limit => scan.after_row = last.row,
            Some(_) | None => return Ok(all),
        }
    }
}

fn event_time(event: &Value) -> &str {
    event.get("timestamp").and_then(Value::as_str).unwrap_or_default()
}

/// Builds a task with its subtasks. Each task is used once, so that a record that names itself as its parent can't cause a loop.
fn build_branch(known: &mut BTreeMap<String, TaskTreeEntry>, task: &str) -> TaskTreeBranch {
    let Some(own) = known.remove(task) else {
        return TaskTreeBranch::default();
    };
    let mut below: Vec<(usize, String)> = known
        .iter()
        .filter(|(_, of)| of.parent.as_deref() == Some(task))
        .map(|(id, of)| (of.order, id.clone()))
        .collect();
    below.sort();
    let mut branch = own.branch;
    // Sort by time: events of the swarm's record and of the task's own session.
    branch.events.sort_by(|a, b| event_time(a).cmp(event_time(b)));
    branch.children = below
        .into_iter()
        .map(|(_, id)| build_branch(known, &id))
        .collect();
    branch
}

/// Describes an event of a swarm for people.
fn describe_event(event: &Value) -> String {
    let kind = event.get("type").and_then(Value::as_str).unwrap_or_default();
    let payload = event.get("payload").filter(|_| kind.starts_with("ckp.swarm."));
    let Some(payload) = payload else {
        return String::new();
    };
    let mut parts = Vec::new();
    if let Some(attempt) = payload
        .get("attempt")
        .and_then(Value::as_u64)
        .filter(|_| kind == "ckp.swarm.try")
    {
        parts.push(format!("try {attempt}"));
    }
    let word = |name: &str| -> Option<String> {
        let text = payload.get(name).and_then(Value::as_str)?;
        Some(out::one_line(text).into())
    };
    parts.extend(word("state"));
    parts.extend(word("status"));
    parts.extend(word("reason"));
    parts.extend(word("provider").map(|provider| format!("by {provider}")));
    let tokens = payload.get("token_usage").and_then(Value::as_u64);
    parts.extend(
        tokens
            .filter(|tokens| *tokens > 0)
            .map(|tokens| format!("{tokens} tokens")),
    );
    if parts.is_empty() {
        String::new()
    } else {
        format!(" · {}", parts.join(", "))
    }
}

fn print_branch(branch: &TaskTreeBranch, depth: usize) -> Result<()> {
    let indent = "  ".repeat(depth.min(MAX_INDENT));
    let member = if branch.member.is_empty() {
        "the swarm"
    } else {
        &branch.member
    };
    let status = &branch.status;
    out::print_line(format!(
        "{indent}{}{} {status}  {}",
        out::one_line(member),
        if branch.host == "local" {
            String::new()
        } else {
            format!(" on {}", out::one_line(&branch.host))
        },
        branch.task_id
    ))?;
    for event in &branch.events {
        let text = |name: &str| {
            event
                .get(name)
                .and_then(Value::as_str)
                .unwrap_or_default()
                .to_owned()
        };
        let line = format!(
            "{indent}  {} {}{}",
            text("timestamp"),
            text("type"),
            describe_event(event)
        );
        out::print_line(&line)?;
    }
    branch
        .children
        .iter()
        .try_for_each(|child| print_branch(child, depth + 1))
}
