//! Reads the manifest for commands that need a valid one, and checks its policies.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use clap::builder::TypedValueParser as _;
use clawk_manifest::model::{Policy, Sandbox};
use clawk_manifest::{
    Diagnostic, LoadOptions, LoadedDocument, Manifest, Severity, SourceFiles, load_manifest,
    render_diagnostics,
};
use clawk_policy::{Engine, WarningKind};
use clawk_proto::uri::Kind;

use crate::companion;
use crate::config::Config;
use crate::coverage::JUDGE;
use crate::out::{self, TerminalStyle};
use crate::refusal::DetailedRefusal;
use crate::unapplied;

/// Parses a manifest argument: a file, or a folder with a `claw.yaml`.
pub(crate) fn manifest_path_parser() -> impl clap::builder::TypedValueParser<Value = PathBuf> {
    clap::builder::PathBufValueParser::new().map(|path: PathBuf| {
        let inside = path.join("claw.yaml");
        if path.is_dir() && inside.is_file() {
            inside
        } else {
            path
        }
    })
}

/// Reads the manifest of an agent that will start. Returns the manifest, its source files, and where its warnings can be read.
///
/// # Errors
/// The manifest is not valid (all findings are printed on standard error), or a policy file fails its tests.
pub(crate) fn read(path: &Path, config: &Config) -> Result<(Manifest, SourceFiles, Option<String>)> {
    let (manifest, loaded) = load_valid_manifest(path, config)?;
    if let Some(refusal) = companion::first_failure_message(&companion::of_manifest(&loaded)?) {
        bail!("{refusal}");
    }
    let found = loaded.diagnostics.len() + unapplied::unapplied_warnings(&manifest, &config.settings).len();
    let rules = about_rules(&manifest.policies, &loaded.sources).len();
    let plural = if found + rules == 1 { "" } else { "s" };
    let about = match rules {
        0 => String::new(),
        rules => format!(" ({rules} about policy rules)"),
    };
    let warning = (found + rules > 0).then(|| {
        format!(
            "{} warning{plural}{about}; `clawk validate {}` shows them",
            found + rules,
            path.display()
        )
    });
    Ok((manifest, loaded.sources, warning))
}

/// Reads the manifest for commands that start nothing.
///
/// # Errors
/// The manifest is not valid. All findings are printed on standard error.
pub(crate) fn load_valid_manifest(path: &Path, config: &Config) -> Result<(Manifest, LoadedDocument)> {
    let mut loaded = load_manifest(path, &load_options(config));
    match loaded.manifest.take() {
        Some(manifest) => Ok((manifest, loaded)),
        None => Err(report_findings(path, &loaded)),
    }
}

/// Reads the Sandbox of a file that contains only that; `None`: the file has another kind.
///
/// # Errors
/// The errors of [`load_valid_manifest`].
pub(crate) fn load_sandbox(path: &Path, config: &Config) -> Result<Option<Sandbox>> {
    let (loaded, found) = clawk_manifest::load_sandbox(path, &load_options(config));
    match found {
        Some(found) => Ok(Some(found)),
        None if loaded.kind == Some(Kind::Sandbox.title()) => Err(report_findings(path, &loaded)),
        None => Ok(None),
    }
}

pub(crate) fn load_options(config: &Config) -> LoadOptions {
    LoadOptions {
        allow_outside: config.allow_outside,
        registries: config.settings.registries.clone(),
        judge: Some(JUDGE),
    }
}

/// Prints every finding and returns the error.
fn report_findings(path: &Path, loaded: &LoadedDocument) -> anyhow::Error {
    out::notes(
        render_diagnostics(
            &loaded.diagnostics,
            &loaded.sources,
            TerminalStyle::for_stderr().is_on(),
        )
        .trim_end(),
    );
    let errors = loaded
        .diagnostics
        .iter()
        .filter(|found| found.severity == Severity::Error)
        .count();
    let plural = if errors == 1 { "" } else { "s" };
    let message = format!("`{}` is not valid: {errors} error{plural}", path.display());
    let of = loaded.diagnostics.iter();
    DetailedRefusal::new(message, of.filter(|found| found.severity == Severity::Error)).into()
}

/// Returns the policy engine's findings: shadowed rules, and conditions that it does not know.
pub(crate) fn about_rules(policies: &[Policy], sources: &SourceFiles) -> Vec<Diagnostic> {
    let engine = match Engine::compile(policies) {
        Ok(engine) => engine,
        Err(error) => return vec![Diagnostic::error("policy-rule", "", error.to_string())],
    };
    let finding = |warning: &clawk_policy::PolicyWarning| {
        let code = match warning.kind {
            WarningKind::Unreachable { .. } => "unreachable-rule",
            WarningKind::UnknownCondition(_) => "unknown-condition",
            WarningKind::AllowsWhenSpent => "allows-when-spent",
            WarningKind::ReservedName => "reserved-name",
        };
        with_rule_line(
            Diagnostic::warning(code, "", warning.to_string()),
            &warning.rule_id,
            sources,
        )
    };
    engine.warnings().iter().map(finding).collect()
}

/// Adds the line of the rule's `id`, if exactly one rule in the files has this id.
fn with_rule_line(mut finding: Diagnostic, rule_id: &str, sources: &SourceFiles) -> Diagnostic {
    let mut found = None;
    for file in sources.files() {
        let mut start = 0;
        let text = sources.text(file).unwrap_or_default();
        for (line, number) in text.split_inclusive('\n').zip(1_u32..) {
            if let Some(at) = id_in(line, rule_id) {
                if found.is_some() {
                    return finding;
                }
                let column = line.get(..at).unwrap_or_default().chars().count();
                found = Some((file.to_owned(), number, column, start + at));
            }
            start += line.len();
        }
    }
    if let Some((file, line, column, at)) = found {
        finding.file = Some(file);
        finding.line = Some(line);
        finding.column = u32::try_from(column + 1).ok(); // silent-ok: no column in a line of 4 GiB
        finding.span = Some(at..at + rule_id.len());
    }
    finding
}

/// Finds `id: RULE` in a line, quoted or not. Returns the byte offset of the id.
fn id_in(line: &str, rule_id: &str) -> Option<usize> {
    let key = line.find("id:").filter(|_| !rule_id.is_empty())?;
    let before = line.get(..key)?;
    if !before.ends_with([' ', '{', ',', '-', '"']) && !before.is_empty() {
        return None;
    }
    let rest = line.get(key + 3..)?;
    let value = rest.trim_start_matches([' ', '"', '\'']);
    let after = value.strip_prefix(rule_id)?;
    let ends = !after.starts_with(|c: char| c.is_alphanumeric() || matches!(c, '-' | '_' | '.'));
    ends.then_some(line.len() - value.len())
}
