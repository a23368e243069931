//! Golden folders (`vectors/cra/golden`): an Atlas, requests, and what must come of them.

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use super::compare;
use super::complete::Package;
use super::report::Miss;
use super::session::{Session, text};
use super::target::Target;

struct Folder {
    name: &'static str,
    /// Path below the folder, and text.
    files: &'static [(&'static str, &'static str)],
}

macro_rules! golden {
    ($name:literal: $($file:literal),+ $(,)?) => {
        Folder {
            name: $name,
            files: &[$(($file, include_str!(concat!("../../../../../vectors/cra/golden/", $name, "/", $file)))),+],
        }
    };
}

const FOLDERS: &[Folder] = &[
    golden!("simple-resolve":
        "atlas.json", "context/handbook.md", "request.json", "expected-resolution.json", "expected-trace.jsonl"),
    golden!("policy-deny":
        "atlas.json", "request.json", "expected-resolution.json", "expected-trace.jsonl"),
    golden!("multi-action":
        "atlas.json", "context/runbook.md", "requests/001-resolve.json", "requests/002-execute.json",
        "requests/003-execute.json", "expected-resolutions/001-resolution.json", "expected-trace.jsonl"),
];

impl Folder {
    fn named(name: &str) -> Result<&'static Self> {
        FOLDERS
            .iter()
            .find(|folder| folder.name == name)
            .with_context(|| format!("no golden folder `{name}`"))
    }

    fn text(&self, file: &str) -> Result<&'static str> {
        let found = self.files.iter().find(|(name, _)| *name == file);
        Ok(found
            .with_context(|| format!("`{}` has no `{file}`", self.name))?
            .1)
    }

    fn json(&self, file: &str) -> Result<Value> {
        serde_json::from_str(self.text(file)?).with_context(|| format!("{}/{file}", self.name))
    }

    /// The requests in order, each with the resolution that it must get.
    fn requests(&self) -> Result<Vec<(Value, Option<Value>)>> {
        if self.text("request.json").is_ok() {
            return Ok(vec![(
                self.json("request.json")?,
                Some(self.json("expected-resolution.json")?),
            )]);
        }
        let names = self.files.iter().map(|(name, _)| *name);
        names
            .filter(|name| name.starts_with("requests/"))
            .map(|name| {
                let resolution = name
                    .replace("requests/", "expected-resolutions/")
                    .replace("-resolve.json", "-resolution.json");
                let expected = self.text(&resolution).is_ok().then(|| self.json(&resolution));
                Ok((self.json(name)?, expected.transpose()?))
            })
            .collect()
    }
}

/// The Atlas of a folder.
pub(super) fn package(name: &str) -> Result<Package> {
    let folder = Folder::named(name)?;
    let files = folder.files.iter();
    let files = files.filter(|(name, _)| name.starts_with("context/"));
    Ok(Package {
        manifest: folder.json("atlas.json")?,
        files: files
            .map(|(name, text)| ((*name).to_owned(), (*text).to_owned()))
            .collect(),
    })
}

/// The trace of a folder.
pub(super) fn trace(name: &str) -> Result<Vec<Value>> {
    let lines = Folder::named(name)?.text("expected-trace.jsonl")?.lines();
    lines
        .map(|line| serde_json::from_str(line).with_context(|| format!("{name}/expected-trace.jsonl")))
        .collect()
}

/// Plays a folder: each resolution and the whole trace must be as expected, under the comparison rules.
pub(super) fn judge(target: &Target, name: &str) -> Result<(), Miss> {
    let folder = Folder::named(name)?;
    let expected = trace(name)?;
    let first = expected.first().and_then(|event| event.get("payload"));
    let (Some(agent), Some(goal)) = (
        first.and_then(|payload| text(payload, "agent_id")),
        first.and_then(|payload| text(payload, "goal")),
    ) else {
        return Err(anyhow::anyhow!("`{name}` does not begin with a session").into());
    };
    let session = Session::open(target, &[package(name)?], &agent, &goal)?;
    let mut resolution_id = String::new();
    for (request, wanted) in folder.requests()? {
        match text(&request, "operation").as_deref() {
            Some("resolve") => {
                let found = session.resolve(request)?;
                resolution_id = text(&found, "resolution_id").context("a resolution without an id")?;
                if let Some(wanted) = wanted {
                    same("the resolution", &wanted, &found)?;
                }
            }
            Some("execute") => {
                session.execute(request, &resolution_id)?;
            }
            other => return Err(anyhow::anyhow!("`{name}` asks for {other:?}").into()),
        }
    }
    let found = session.trace()?;
    chained(&found)?;
    same("the trace", &Value::from(expected), &Value::from(found))
}

fn same(what: &str, wanted: &Value, found: &Value) -> Result<(), Miss> {
    match compare::first_difference(wanted, found) {
        None => Ok(()),
        Some((at, wanted, got)) => Err(Miss::Failed {
            error: format!("{what} differs at `{at}`: expected {wanted}, got {got}"),
            details: json!({ "expected": wanted, "got": got, "whole": found }),
        }),
    }
}

/// What the target wrote is a valid chain by our own verifier.
pub(super) fn chained(events: &[Value]) -> Result<()> {
    let mut text = String::new();
    for event in events {
        text.push_str(&event.to_string());
        text.push('\n');
    }
    let report = clawk_trace::verify(text.as_bytes())?;
    if let Some(fault) = &report.fault {
        let (kind, at) = (fault.kind.code(), fault.index);
        bail!(
            "the target's own trace does not verify: {kind} at {at}: {}",
            fault.detail
        );
    }
    Ok(())
}
