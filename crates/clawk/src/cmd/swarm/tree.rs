//! `clawk trace show --task`: what became of a task of a swarm, with everything that was delegated below it, as one tree.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::ExitCode;

use crate::state::kept::Reader;
use anyhow::{Result, bail};
use clawk_kernel::ports::{Recorded, Scan};
use clawk_proto::SessionId;
use serde::Serialize;
use serde_json::{Value, json};

use super::each;
use crate::out::{self, Format};

/// One task of the tree.
#[derive(Debug, Default, Serialize)]
struct Branch {
    task_id: String,
    member: String,
    host: &'static str,
    session: Option<String>,
    status: String,
    events: Vec<Value>,
    children: Vec<Branch>,
}

/// What is known of one task before it stands in the tree.
#[derive(Debug, Default)]
struct Known {
    parent: Option<String>,
    branch: Branch,
    order: usize,
}

fn told(event: &Recorded) -> Value {
    let payload: Value = serde_json::from_str(&event.payload).unwrap_or_default(); // silent-ok: payloads of ours always read
    json!({
        "type": event.kind, "timestamp": event.at.to_string(), "session": event.session.to_string(),
        "sequence": event.sequence, "payload": payload,
    })
}

/// Prints the tree of a run, or of one task.
pub(crate) fn tree(state: &Path, task: &str, format: Format) -> Result<ExitCode> {
    let reader = Reader::open(state)?;
    let mut known: BTreeMap<String, Known> = BTreeMap::new();
    each(&reader, |event| see(&mut known, event))?;
    let Some(root) = known.get(task).map(|_| task.to_owned()) else {
        bail!(
            "no task {task} is in `{}`; `clawk swarm status` lists runs",
            state.display()
        );
    };
    for of in known.values_mut() {
        let session = of
            .branch
            .session
            .as_ref()
            .and_then(|id| id.parse::<SessionId>().ok()); // silent-ok: ids of ours always read
        if let Some(session) = session {
            of.branch.events.extend(events(&reader, session)?);
        }
    }
    let root = built(&mut known, &root);
    match format {
        Format::Json => out::json(&json!({"task_id": task, "root": root}))?,
        Format::Human => print(&root, 0)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn see(known: &mut BTreeMap<String, Known>, event: &Recorded) {
    let told = told(event);
    let text = |name: &str| {
        let payload = told.get("payload")?;
        payload.get(name).and_then(Value::as_str).map(str::to_owned)
    };
    let Some(task) = text("task_id") else { return };
    let order = known.len();
    let of = known.entry(task.clone()).or_default();
    if of.branch.task_id.is_empty() {
        of.order = order;
        of.branch.host = "local";
        of.branch.status = "running".to_owned();
    }
    of.branch.task_id.clone_from(&task);
    let above = text("parent").or_else(|| text("run"));
    of.parent = of.parent.take().or(above).filter(|parent| *parent != task);
    if let Some(member) = text("member") {
        of.branch.member = member;
    }
    of.branch.session = text("peer_session").or(of.branch.session.take());
    if matches!(event.kind.as_str(), "ckp.swarm.reported" | "ckp.swarm.ended") {
        of.branch.status = text("status").unwrap_or_default();
    }
    of.branch.events.push(told);
}

fn events(reader: &Reader, session: SessionId) -> Result<Vec<Value>> {
    let mut scan = Scan {
        session: Some(session),
        limit: 1000,
        ..Scan::default()
    };
    let mut all = Vec::new();
    loop {
        let page = reader.recorded_events(&scan)?;
        all.extend(page.iter().map(told));
        match page.last() {
            Some(last) if page.len() == scan.limit => scan.after_row = last.row,
            Some(_) | None => return Ok(all),
        }
    }
}

/// A task with all below it. Each is taken once, so that a record that names itself as its parent ends, too.
fn built(known: &mut BTreeMap<String, Known>, task: &str) -> Branch {
    let Some(own) = known.remove(task) else {
        return Branch::default();
    };
    let mut below: Vec<(usize, String)> = known
        .iter()
        .filter(|(_, of)| of.parent.as_deref() == Some(task))
        .map(|(id, of)| (of.order, id.clone()))
        .collect();
    below.sort();
    let mut branch = own.branch;
    branch.children = below.into_iter().map(|(_, id)| built(known, &id)).collect();
    branch
}

fn print(branch: &Branch, depth: usize) -> Result<()> {
    let indent = "  ".repeat(depth);
    let member = if branch.member.is_empty() {
        "the swarm"
    } else {
        &branch.member
    };
    let status = &branch.status;
    out::line(&format!(
        "{indent}{} {status}  {}",
        out::harmless(member),
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
        out::line(&format!("{indent}  {} {}", text("timestamp"), text("type")))?;
    }
    branch
        .children
        .iter()
        .try_for_each(|child| print(child, depth + 1))
}
