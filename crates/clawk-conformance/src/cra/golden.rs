//! Golden folders (`vectors/cra/golden`): an Atlas, requests, and what must come of them.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use super::compare;
use super::complete::AtlasPackage;
use super::report::CraShortfall;
use super::session::{CraSession, text};
use super::target::CraTarget;

/// A golden folder, read.
#[derive(Debug, Clone)]
pub(super) struct GoldenFolder {
    name: String,
    /// Path below the folder, and text.
    files: Vec<(String, String)>,
}

/// Bytes of one file of a folder from outside.
const MAX_FILE_BYTES: u64 = 16 << 20;
/// Files of one folder from outside.
const MAX_FILES: usize = 1_000;

/// Our own folders: name, then path below the folder and text.
type BuiltinGoldenFolder = (&'static str, &'static [(&'static str, &'static str)]);

macro_rules! golden {
    ($name:literal: $($file:literal),+ $(,)?) => {
        (
            $name,
            &[$(($file, include_str!(concat!("../../../../vectors/cra/golden/", $name, "/", $file)))),+],
        )
    };
}

const FOLDERS: &[BuiltinGoldenFolder] = &[
    golden!("simple-resolve":
        "atlas.json", "context/handbook.md", "request.json", "expected-resolution.json", "expected-trace.jsonl"),
    golden!("policy-deny":
        "atlas.json", "request.json", "expected-resolution.json", "expected-trace.jsonl"),
    golden!("multi-action":
        "atlas.json", "context/runbook.md", "requests/001-resolve.json", "requests/002-execute.json",
        "requests/003-execute.json", "expected-resolutions/001-resolution.json", "expected-trace.jsonl"),
];

impl GoldenFolder {
    /// One of our own.
    pub(super) fn named(name: &str) -> Result<Self> {
        let own = FOLDERS.iter().find(|(known, _)| *known == name);
        let (name, files) = own.with_context(|| format!("no golden folder `{name}`"))?;
        let files = files
            .iter()
            .map(|(path, text)| ((*path).to_owned(), (*text).to_owned()));
        Ok(Self {
            name: (*name).to_owned(),
            files: files.collect(),
        })
    }

    /// Reads a folder from outside: one that holds an `atlas.json`.
    ///
    /// # Errors
    /// A file can't be read as text, is too large, or there are too many.
    pub(super) fn read(dir: &Path) -> Result<Self> {
        let mut files = Vec::new();
        let mut open = vec![dir.to_owned()];
        while let Some(folder) = open.pop() {
            let entries =
                fs::read_dir(&folder).with_context(|| format!("can't read `{}`", folder.display()))?;
            for entry in entries {
                let path = entry?.path();
                if path.is_dir() {
                    open.push(path);
                    continue;
                }
                if files.len() >= MAX_FILES || path.metadata()?.len() > MAX_FILE_BYTES {
                    bail!(
                        "`{}`: a golden folder holds at most {MAX_FILES} files of {MAX_FILE_BYTES} bytes",
                        path.display()
                    );
                }
                let text =
                    fs::read_to_string(&path).with_context(|| format!("can't read `{}`", path.display()))?;
                let below = path.strip_prefix(dir)?.to_string_lossy().into_owned();
                files.push((below, text));
            }
        }
        files.sort();
        let name = dir.file_name().map(|name| name.to_string_lossy().into_owned());
        Ok(Self {
            name: name.unwrap_or_else(|| "golden".to_owned()),
            files,
        })
    }

    /// What its test is called.
    pub(super) fn test_id(&self) -> String {
        format!("golden.{}", self.name)
    }

    fn text(&self, file: &str) -> Result<&str> {
        let found = self.files.iter().find(|(name, _)| *name == file);
        Ok(&found
            .with_context(|| format!("`{}` has no `{file}`", self.name))?
            .1)
    }

    fn has(&self, file: &str) -> bool {
        self.files.iter().any(|(name, _)| *name == file)
    }

    fn json(&self, file: &str) -> Result<Value> {
        serde_json::from_str(self.text(file)?).with_context(|| format!("{}/{file}", self.name))
    }

    fn package(&self) -> Result<AtlasPackage> {
        let files = self.files.iter();
        Ok(AtlasPackage {
            manifest: self.json("atlas.json")?,
            files: files
                .filter(|(name, _)| name.starts_with("context/"))
                .cloned()
                .collect(),
        })
    }

    fn trace(&self) -> Result<Vec<Value>> {
        let name = &self.name;
        let lines = self.text("expected-trace.jsonl")?.lines();
        lines
            .map(|line| serde_json::from_str(line).with_context(|| format!("{name}/expected-trace.jsonl")))
            .collect()
    }

    /// The requests in order, each with the resolution that it must get.
    fn requests(&self) -> Result<Vec<(Value, Option<Value>)>> {
        if self.has("request.json") {
            return Ok(vec![(
                self.json("request.json")?,
                Some(self.json("expected-resolution.json")?),
            )]);
        }
        let names = self.files.iter().map(|(name, _)| name.as_str());
        names
            .filter(|name| name.starts_with("requests/"))
            .map(|name| {
                let resolution = name
                    .replace("requests/", "expected-resolutions/")
                    .replace("-resolve.json", "-resolution.json");
                let expected = self.has(&resolution).then(|| self.json(&resolution));
                Ok((self.json(name)?, expected.transpose()?))
            })
            .collect()
    }
}

/// The Atlas of one of our own folders.
pub(super) fn package(name: &str) -> Result<AtlasPackage> {
    GoldenFolder::named(name)?.package()
}

/// The trace of one of our own folders.
pub(super) fn trace(name: &str) -> Result<Vec<Value>> {
    GoldenFolder::named(name)?.trace()
}

/// Plays a folder: each resolution and the whole trace must be as expected, under the comparison rules.
pub(super) fn judge(target: &CraTarget, folder: &GoldenFolder) -> Result<(), CraShortfall> {
    let name = &folder.name;
    let expected = folder.trace()?;
    let first = expected.first().and_then(|event| event.get("payload"));
    let (Some(agent), Some(goal)) = (
        first.and_then(|payload| text(payload, "agent_id")),
        first.and_then(|payload| text(payload, "goal")),
    ) else {
        return Err(anyhow::anyhow!("`{name}` does not begin with a session").into());
    };
    let session = CraSession::open(target, &[folder.package()?], &agent, &goal)?;
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

fn same(what: &str, wanted: &Value, found: &Value) -> Result<(), CraShortfall> {
    match compare::first_difference(wanted, found) {
        None => Ok(()),
        Some((at, wanted, got)) => Err(CraShortfall::Failed {
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
