//! `clawk policy explain`: explains the decision on one call, layer by layer, and the smallest changes that would reverse it.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clawk_kernel::place::{PathSearch, resolve_paths_blocking};
use clawk_manifest::Manifest;
use clawk_manifest::model::Tool;
use clawk_policy::path::paths_to_resolve;
use clawk_policy::{
    EditableInputs, Effect, Engine, ExplanationStep, LayeredDecision, PolicyLayers, PolicySubject,
    ToolResult, UsageView, ValueOrigin, ValueSources, VerdictChange,
};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::facts::PolicyToolFacts;
use super::{paint_effect, verdict_json};
use crate::config::{AllowOutsideArgs, Config};
use crate::manifest;
use crate::out::{self, Format, TerminalStyle};

/// The call.
pub(super) struct ExplainQuery<'a> {
    pub(super) tool: &'a str,
    pub(super) arguments: &'a str,
    pub(super) policy: Option<&'a str>,
    pub(super) tokens_today: u64,
    /// Sources of untrusted text in the context of the call.
    pub(super) taint: &'a [String],
    /// The person's message in the context.
    pub(super) said: Option<&'a str>,
    /// Tool results in the context: `TOOL=TEXT`.
    pub(super) results: &'a [String],
    pub(super) outside: AllowOutsideArgs,
}

/// Decides as the kernel would, and prints the reasons.
pub(super) fn run(
    path: &Path,
    config: Option<&Path>,
    asked: &ExplainQuery<'_>,
    format: Format,
) -> Result<ExitCode> {
    let config = Config::load(config, Some(path))?.with_outside_access(asked.outside);
    let (manifest, _) = manifest::load_valid_manifest(path, &config)?;
    let arguments: Map<String, Value> = serde_json::from_str(asked.arguments)
        .context("`--args` takes a JSON object, such as '{\"path\": \"notes.txt\"}'")?;
    let engine = Engine::compile(&manifest.policies)?;
    let Some(tool) = manifest.tool(asked.tool) else {
        return explain_undeclared(&manifest, &engine, asked.tool, format);
    };
    if let Some(name) = asked.policy.filter(|name| !engine.has_policy(name)) {
        bail!("there is no policy `{name}` in the manifest: the call would be refused with -32602 (R15)");
    }
    let facts = PolicyToolFacts::of_tool(tool, &manifest, &config.settings);
    let workdir = resolve_workdir(&manifest, &config)?;
    let values = value_sources(asked, &manifest, &config)?;
    let subject = PolicySubject {
        tool: &tool.name,
        labels: &facts.labels,
        annotations: &facts.annotations,
        arguments: &arguments,
        schema: facts.schema.as_ref(),
        workdir: &workdir,
        usage: UsageView {
            tokens_today: asked.tokens_today,
            cost_today_microusd: 0,
        },
        places: None,
        taint: Some(asked.taint),
        values: Some(&values),
    };
    let places = resolve_paths_blocking(&PathSearch {
        paths: paths_to_resolve(&arguments, subject.schema, &workdir),
        roots: engine.path_rule_roots(&subject),
        ..PathSearch::default()
    });
    let subject = PolicySubject {
        places: Some(&places),
        ..subject
    };
    let named = named_policies(tool, asked.policy);
    let layers = PolicyLayers {
        autonomy: manifest.identity.autonomy,
        named: &named,
    };
    let account = layers.explain(&engine, &subject);
    let situation = EditableInputs {
        policies: manifest.policies.clone(),
        autonomy: manifest.identity.autonomy,
        named: named.iter().map(|&name| name.to_owned()).collect(),
        arguments: arguments.clone(),
    };
    let changes = situation.smallest_changes(&subject);
    let origins = engine.value_origins(&account.verdict, &subject);
    match format {
        Format::Json => out::print_json(&json_document(
            &subject,
            &account,
            &changes,
            (facts.doubt.as_deref(), &origins),
        ))?,
        Format::Human => print_human(
            &subject,
            &account,
            &changes,
            &explanation_notes(facts.doubt.as_deref(), &origins),
        )?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the texts in which the call's values are looked up. No other text counts.
fn value_sources(asked: &ExplainQuery<'_>, manifest: &Manifest, config: &Config) -> Result<ValueSources> {
    let mut sources = ValueSources::default();
    asked.said.iter().for_each(|said| sources.add_person(said));
    for (given, order) in asked.results.iter().zip(1..) {
        let result = GivenResult::read(given)?;
        let tool = result.tool.as_str();
        let facts = manifest
            .tool(tool)
            .map(|declared| PolicyToolFacts::of_tool(declared, manifest, &config.settings))
            .with_context(|| {
                format!(
                    "`--result`: the manifest has no tool `{}`",
                    out::clip_line(tool, 64)
                )
            })?;
        sources.add_result(&ToolResult {
            tool,
            arguments: &result.arguments,
            text: &result.text,
            closed: facts.annotations.get("openWorldHint") == Some(&Value::Bool(false)),
            is_lookup: true,
            reads_files: facts
                .labels
                .get("category")
                .is_some_and(|category| category == "filesystem"),
            annotations: Some(&facts.annotations),
            order,
        });
    }
    Ok(sources)
}

/// A tool result in the conversation.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct GivenResult {
    tool: String,
    #[serde(default)]
    arguments: Map<String, Value>,
    text: String,
}

impl GivenResult {
    /// Parses `TOOL=TEXT`, or a JSON object with `tool`, `arguments` and `text`.
    fn read(given: &str) -> Result<Self> {
        if given.starts_with('{') {
            return serde_json::from_str(given).context(
                "`--result` takes `TOOL=TEXT` or a JSON object with `tool`, `arguments` and `text`",
            );
        }
        let (tool, text) = given
            .split_once('=')
            .context("`--result` takes `TOOL=TEXT`, such as 'search-contacts=ann@corp.example'")?;
        Ok(Self {
            tool: tool.to_owned(),
            arguments: Map::new(),
            text: text.to_owned(),
        })
    }
}

/// Returns notes below the rules: the sources of values, and unknown properties of the tool.
fn explanation_notes(doubt: Option<&str>, origins: &[ValueOrigin]) -> Vec<String> {
    let doubt = doubt.map(|doubt| format!("note: {doubt}"));
    origins.iter().map(value_line).chain(doubt).collect()
}

fn value_document(origin: &ValueOrigin) -> Value {
    json!({
        "argument": origin.argument, "value": origin.value, "source": origin.source, "foreign": origin.is_foreign,
    })
}

fn value_line(origin: &ValueOrigin) -> String {
    let may = match origin.is_foreign {
        true => "foreign text may have chosen it",
        false => "no foreign text chose it",
    };
    format!(
        "value of `{}`: {:?}: {}; {may}",
        origin.argument, origin.value, origin.source
    )
}

/// Returns the base of relative paths, as when the agent runs.
pub(super) fn resolve_workdir(manifest: &Manifest, config: &Config) -> Result<PathBuf> {
    let folder = config.settings.workdir.as_deref().unwrap_or(&manifest.dir);
    let folder = if folder.as_os_str().is_empty() {
        Path::new(".")
    } else {
        folder
    };
    folder
        .canonicalize()
        .with_context(|| format!("the working directory `{}` does not exist", folder.display()))
}

/// Returns the policies that further restrict the call, in the kernel's order.
fn named_policies<'a>(tool: &'a Tool, further: Option<&'a str>) -> Vec<&'a str> {
    tool.policy_ref.as_deref().into_iter().chain(further).collect()
}

/// Handles a tool that the manifest does not declare: refused by name, or unknown (R17).
fn explain_undeclared(manifest: &Manifest, engine: &Engine, tool: &str, format: Format) -> Result<ExitCode> {
    let Some(verdict) = engine.denies_by_name(tool) else {
        let known: Vec<&str> = manifest.tools.iter().map(|tool| tool.name.as_str()).collect();
        bail!(
            "the manifest has no tool `{}`, and no rule denies it by name; it has: {}",
            out::clip_line(tool, 64),
            known.join(", ")
        );
    };
    match format {
        Format::Json => out::print_json(&json!({
            "tool": tool, "verdict": verdict_json(&verdict), "decided_by": "rules", "layers": [], "changes": [],
        }))?,
        Format::Human => out::lines(&format!(
            "{tool}  {}\nthe manifest has no such tool, and {}",
            paint_effect(TerminalStyle::for_stdout(), verdict.effect.name()),
            format_origin(&verdict)
        ))?,
    }
    Ok(ExitCode::SUCCESS)
}

fn format_origin(verdict: &clawk_policy::Verdict) -> String {
    let mut text = match (&verdict.rule_id, &verdict.policy) {
        (Some(rule), Some(policy)) => format!("rule `{rule}` of policy `{policy}`"),
        _ => "no rule".to_owned(),
    };
    if let Some(reason) = &verdict.reason {
        text.push_str(": ");
        text.push_str(&out::one_line(reason));
    }
    text
}

fn json_document(
    subject: &PolicySubject<'_>,
    account: &LayeredDecision<'_>,
    changes: &[VerdictChange],
    (doubt, origins): (Option<&str>, &[ValueOrigin]),
) -> Value {
    let step = |step: &ExplanationStep<'_>| {
        json!({
            "policy": step.policy, "rule_id": step.rule_id, "action": step.effect.name(),
            "decides": step.why_not.is_none(),
            "why_not": step.why_not.map(|why| why.to_string()), "detail": step.detail,
        })
    };
    let layers: Vec<Value> = account
        .layers
        .iter()
        .map(|said| {
            json!({
                "layer": said.layer.to_string(), "verdict": verdict_json(&said.verdict),
                "rules": said.steps.iter().map(step).collect::<Vec<_>>(),
            })
        })
        .collect();
    let changes: Vec<Value> = changes
        .iter()
        .map(|change| {
            let edits = change
                .edits
                .iter()
                .map(|edit| json!({"kind": edit.kind(), "text": edit.to_string()}));
            json!({"to": change.outcome.name(), "edits": edits.collect::<Vec<_>>()})
        })
        .collect();
    json!({
        "tool": subject.tool, "labels": subject.labels, "annotations": subject.annotations,
        "arguments": subject.arguments, "workdir": subject.workdir,
        "verdict": verdict_json(&account.verdict),
        "decided_by": account.deciding_layer().map(|said| said.layer.to_string()),
        "layers": layers, "changes": changes, "doubt": doubt,
        "values": origins.iter().map(value_document).collect::<Vec<_>>(),
    })
}

fn print_human(
    subject: &PolicySubject<'_>,
    account: &LayeredDecision<'_>,
    changes: &[VerdictChange],
    notes: &[String],
) -> Result<()> {
    let paint = TerminalStyle::for_stdout();
    let verdict = &account.verdict;
    out::print_line(format!(
        "{}  {}",
        paint.bold(subject.tool),
        paint_effect(paint, verdict.effect.name())
    ))?;
    if let Some(said) = account.deciding_layer() {
        out::print_line(format!("decided by {}: {}", said.layer, format_origin(verdict)))?;
    }
    out::print_line("")?;
    for said in &account.layers {
        let word = paint_effect(paint, said.verdict.effect.name());
        let why = if said.steps.is_empty() {
            said.verdict
                .reason
                .as_deref()
                .map(|reason| format!(": {reason}"))
                .unwrap_or_default()
        } else {
            String::new()
        };
        out::print_line(format!("{}: {word}{why}", said.layer))?;
        for step in &said.steps {
            out::print_line(format!("  {}", line_of(step)))?;
        }
        if !said.steps.is_empty() && said.verdict.rule_id.is_none() {
            out::print_line("  no rule is left: denied")?;
        }
    }
    for note in notes {
        out::print_line(paint.yellow(&out::one_line(note)))?;
    }
    if matches!(verdict.effect, Effect::Ask(_)) {
        out::print_line(paint.dim("a person's `always` spares the question for the rest of a session"))?;
    }
    print_suggestions(changes, paint)
}

fn line_of(step: &ExplanationStep<'_>) -> String {
    let head = format!("{}/{} ({})", step.policy, step.rule_id, step.effect.name());
    let text = match (&step.why_not, &step.detail) {
        (None, _) => format!("{head}: decides"),
        (Some(why), None) => format!("{head}: passed over, {why}"),
        (Some(why), Some(detail)) => format!("{head}: passed over, {why}: {detail}"),
    };
    out::one_line(&text).into()
}

fn print_suggestions(changes: &[VerdictChange], paint: TerminalStyle) -> Result<()> {
    let mut outcome = None;
    for change in changes {
        if outcome == Some(change.outcome) {
            out::print_line("  or")?;
        } else {
            out::print_line("")?;
            out::print_line(format!("to get {}:", paint_effect(paint, change.outcome.name())))?;
        }
        outcome = Some(change.outcome);
        for edit in &change.edits {
            out::print_line(format!("  {}", out::one_line(&edit.to_string())))?;
        }
    }
    Ok(())
}
