//! The crate as its users see it.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::too_many_lines,
    reason = "tests: a panic is how they fail, and a rule's cases stand together"
)]

mod bounds;
mod hostile;
mod references;
mod rendering;
mod rules;
mod schemas;
mod vectors;
mod whole;

use std::path::Path;

use clawk_manifest::{LoadOptions, LoadedDocument, Severity};

/// A manifest that is valid, with `more` as further members of its `spec` (indented by two).
fn manifest(more: &str) -> String {
    format!(
        "claw: \"0.3.0\"\nkind: Claw\nmetadata:\n  name: \"test-bot\"\n  version: \"1.2.3\"\nspec:\n  identity:\n    inline:\n      \
         personality: \"A test.\"\n  providers:\n    - inline:\n        name: \"main\"\n        protocol: \"openai-compatible\"\n        \
         endpoint: \"http://localhost:11434/v1\"\n        model: \"m\"\n        auth: {{type: \"none\"}}\n{more}"
    )
}

/// Loads a text as `claw.yaml` in a directory of its own.
fn load_text(text: &str) -> LoadedDocument {
    load_files(&[("claw.yaml", text)])
}

/// Loads `claw.yaml` among other files.
fn load_files(files: &[(&str, &str)]) -> LoadedDocument {
    let dir = tempfile::tempdir().unwrap();
    write_files(dir.path(), files);
    clawk_manifest::load_manifest(&dir.path().join("claw.yaml"), &LoadOptions::default())
}

fn write_files(dir: &Path, files: &[(&str, &str)]) {
    for (name, text) in files {
        let path = dir.join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
}

fn codes(loaded: &LoadedDocument, severity: Severity) -> Vec<String> {
    let of = loaded
        .diagnostics
        .iter()
        .filter(|found| found.severity == severity);
    of.map(|found| format!("{} {}", found.code, found.path)).collect()
}

fn errors(loaded: &LoadedDocument) -> Vec<String> {
    codes(loaded, Severity::Error)
}

fn warnings(loaded: &LoadedDocument) -> Vec<String> {
    codes(loaded, Severity::Warning)
}
