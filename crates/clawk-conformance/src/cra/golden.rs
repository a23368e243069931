//! Golden folders (`vectors/cra/golden`): an Atlas, requests, and the expected results.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use super::compare;
use super::complete::AtlasPackage;
use super::report::CraShortfall;
use super::session::{CraSession, text_member};
use super::target::CraTarget;

/// The content of a golden folder.
#[derive(Debug, Clone)]
pub(super) struct GoldenFolder {
    name: String,
    /// Path within the folder, and text.
    files: Vec<(String, String)>,
}

/// Largest file in a user's folder, in bytes.
const MAX_FILE_BYTES: u64 = 16 << 20;
/// Largest number of files in a user's folder.
const MAX_FILES: usize = 1_000;

/// A built-in folder: its name, then its files as path and text.
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
    /// Returns a built-in folder.
    pub(super) fn load_named(name: &str) -> Result<Self> {
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

    /// Reads a user's folder, which holds an `atlas.json`.
    ///
    /// # Errors
    /// A file is not text or too large, or there are too many files.
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

    /// Returns the id of its test.
    pub(super) fn test_id(&self) -> String {
        format!("golden.{}", self.name)
    }

    fn file_text(&self, file: &str) -> Result<&str> {
        let found = self.files.iter().find(|(name, _)| *name == file);
        Ok(&found
            .with_context(|| format!("`{}` has no `{file}`", self.name))?
            .1)
    }

    fn has_file(&self, file: &str) -> bool {
        self.files.iter().any(|(name, _)| *name == file)
    }

    fn file_json(&self, file: &str) -> Result<Value> {
        serde_json::from_str(self.file_text(file)?).with_context(|| format!("{}/{file}", self.name))
    }

    fn atlas_package(&self) -> Result<AtlasPackage> {
        let files = self.files.iter();
        Ok(AtlasPackage {
            manifest: self.file_json("atlas.json")?,
            files: files
                .filter(|(name, _)| name.starts_with("context/"))
                .cloned()
                .collect(),
        })
    }

    fn expected_trace(&self) -> Result<Vec<Value>> {
        let name = &self.name;
        let lines = self.file_text("expected-trace.jsonl")?.lines();
        lines
            .map(|line| serde_json::from_str(line).with_context(|| format!("{name}/expected-trace.jsonl")))
            .collect()
    }

    /// Returns the requests in order, each with its expected resolution.
    fn requests(&self) -> Result<Vec<(Value, Option<Value>)>> {
        if self.has_file("request.json") {
            return Ok(vec![(
                self.file_json("request.json")?,
                Some(self.file_json("expected-resolution.json")?),
            )]);
        }
        let names = self.files.iter().map(|(name, _)| name.as_str());
        names
            .filter(|name| name.starts_with("requests/"))
            .map(|name| {
                let resolution = name
                    .replace("requests/", "expected-resolutions/")
                    .replace("-resolve.json", "-resolution.json");
                let expected = self.has_file(&resolution).then(|| self.file_json(&resolution));
                Ok((self.file_json(name)?, expected.transpose()?))
            })
            .collect()
    }
}

/// Returns the Atlas of a built-in folder.
pub(super) fn load_package(name: &str) -> Result<AtlasPackage> {
    GoldenFolder::load_named(name)?.atlas_package()
}

/// Returns the trace of a built-in folder.
pub(super) fn load_trace(name: &str) -> Result<Vec<Value>> {
    GoldenFolder::load_named(name)?.expected_trace()
}

/// Runs a folder: each resolution and the whole trace must be as expected, by the comparison rules.
pub(super) fn judge_folder(target: &CraTarget, folder: &GoldenFolder) -> Result<(), CraShortfall> {
    let name = &folder.name;
    let expected = folder.expected_trace()?;
    let first = expected.first().and_then(|event| event.get("payload"));
    let (Some(agent), Some(goal)) = (
        first.and_then(|payload| text_member(payload, "agent_id")),
        first.and_then(|payload| text_member(payload, "goal")),
    ) else {
        return Err(anyhow::anyhow!("`{name}` does not begin with a session").into());
    };
    let session = CraSession::open(target, &[folder.atlas_package()?], &agent, &goal)?;
    let mut resolution_id = String::new();
    for (request, wanted) in folder.requests()? {
        match text_member(&request, "operation").as_deref() {
            Some("resolve") => {
                let found = session.resolve_request(request)?;
                resolution_id = text_member(&found, "resolution_id").context("a resolution without an id")?;
                if let Some(wanted) = wanted {
                    expect_same("the resolution", &wanted, &found)?;
                }
            }
            Some("execute") => {
                session.execute_action(request, &resolution_id)?;
            }
            other => return Err(anyhow::anyhow!("`{name}` asks for {other:?}").into()),
        }
    }
    let found = session.read_trace()?;
    verify_chain(&found)?;
    expect_same("the trace", &Value::from(expected), &Value::from(found))
}

fn expect_same(what: &str, wanted: &Value, found: &Value) -> Result<(), CraShortfall> {
    match compare::first_difference(wanted, found) {
        None => Ok(()),
        Some((at, wanted, got)) => Err(CraShortfall::Failed {
            error: format!("{what} differs at `{at}`: expected {wanted}, got {got}"),
            details: json!({ "expected": wanted, "got": got, "whole": found }),
        }),
    }
}

/// Checks that the target's events are a valid chain, with clawk's own verifier.
pub(super) fn verify_chain(events: &[Value]) -> Result<()> {
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
