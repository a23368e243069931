//! `clawk tools [CLAW]`: lists and explains the built-in tools, or the tools of an agent. Nothing is started.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Result, bail};
use clawk_manifest::Manifest;
use clawk_manifest::model::{SandboxLevel, Tool, builtin_tool_help, builtin_tool_name};
use clawk_tools::builtin;
use serde_json::{Map, Value, json};

use crate::compose::lacks;
use crate::config::{Config, Settings};
use crate::manifest::{self, manifest_path_parser};
use crate::out::{self, Format, TerminalStyle};

/// Flags of `clawk tools`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// The agent's manifest, or its folder [default: no agent, every built-in tool]
    #[arg(value_name = "CLAW", value_parser = manifest_path_parser())]
    claw: Option<PathBuf>,

    /// Explain this tool only: what it needs, its arguments, how to write it
    #[arg(long, value_name = "NAME")]
    tool: Option<String>,

    /// Output format
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

const EXAMPLES: &str = "\
Examples:
  clawk tools                                 every built-in tool
  clawk tools --tool file-edit                what it needs, and its arguments
  clawk tools my-agent/claw.yaml              the tools of an agent, and what runs each
  clawk tools claw.yaml --format json         with the schema that the model gets

In claw.yaml a built-in tool needs only its name:  tools: [file-list, file-read]
An MCP server is not started here; `clawk doctor` starts it.";

/// A tool as people and the model see it.
struct ToolRow {
    name: String,
    /// What runs it: `built-in`, `command`, `http`, `wasm`, `a2a`, `mcp`, `skill`.
    runs_by: &'static str,
    description: String,
    schema: Option<Value>,
    category: Option<String>,
    hints: Map<String, Value>,
    needs: Option<&'static str>,
    sandbox: Option<(String, SandboxLevel)>,
}

/// An argument of a tool.
struct ToolArgument {
    name: String,
    value: String,
    description: String,
    required: bool,
}

/// Lists or explains.
pub(crate) fn run(args: &Args, config: Option<&Path>) -> Result<ExitCode> {
    let (mut rows, faults) = match &args.claw {
        None => (builtin_rows(), Vec::new()),
        Some(path) => agent_rows(path, config)?,
    };
    if let Some(wanted) = &args.tool {
        let name = builtin_tool_name(wanted).unwrap_or(wanted);
        rows.retain(|row| row.name == name);
        if rows.is_empty() {
            bail!("{}", unknown_tool(wanted, args.claw.as_deref()));
        }
    }
    match args.format {
        Format::Json => out::print_json(&json!({
            "ok": faults.is_empty(), "tools": rows.iter().map(ToolRow::to_json).collect::<Vec<_>>(), "errors": faults,
        }))?,
        Format::Human if args.tool.is_some() => rows.iter().try_for_each(ToolRow::explain)?,
        Format::Human => print_list(&rows)?,
    }
    if args.format == Format::Human {
        for fault in &faults {
            out::print_note(fault.as_str());
        }
    }
    Ok(ExitCode::from(u8::from(!faults.is_empty())))
}

fn unknown_tool(wanted: &str, claw: Option<&Path>) -> String {
    let wanted = out::clip_line(wanted, 80);
    match claw {
        None => format!(
            "`{wanted}` is not a built-in tool; {}",
            builtin_tool_help(&wanted)
        ),
        Some(path) => format!(
            "`{}` declares no tool `{wanted}`; `clawk tools {}` lists its tools",
            path.display(),
            path.display()
        ),
    }
}

fn builtin_rows() -> Vec<ToolRow> {
    let rows = builtin::all_builtins().into_iter().map(|(name, known)| ToolRow {
        name: name.to_owned(),
        runs_by: "built-in",
        description: known.description,
        schema: Some(known.input_schema),
        category: known.category.map(str::to_owned),
        hints: known.trusted_annotations,
        needs: builtin::builtin_requirement(name),
        sandbox: None,
    });
    rows.collect()
}

/// The rows of an agent's tools, and what keeps some of them from running here.
fn agent_rows(path: &Path, config: Option<&Path>) -> Result<(Vec<ToolRow>, Vec<String>)> {
    let config = Config::load(config, Some(path))?;
    let (manifest, _loaded) = manifest::load_valid_manifest(path, &config)?;
    let rows = manifest
        .tools
        .iter()
        .map(|tool| ToolRow::of_tool(tool, &manifest, &config.settings));
    let rows = rows.collect();
    let missing = lacks::find_missing(&manifest, &config);
    let faults = missing.into_iter().filter(|found| found.code == lacks::TOOLS);
    Ok((rows, faults.map(|found| found.message).collect()))
}

impl ToolRow {
    fn of_tool(tool: &Tool, manifest: &Manifest, settings: &Settings) -> Self {
        let runs_by = executor_of(tool, settings);
        let known = builtin::describe_builtin(&tool.name).filter(|_| runs_by == "built-in");
        let known = known.unwrap_or_default();
        let skill = tool.skill_ref.as_deref().and_then(|name| manifest.skill(name));
        let of_server = || {
            let server = tool.mcp_source.as_ref();
            server.map(|_| "(its MCP server describes it)".to_owned())
        };
        let description = tool
            .description
            .clone()
            .or_else(|| skill.map(|skill| skill.description.clone()))
            .or_else(of_server)
            .unwrap_or(known.description);
        let own = tool.input_schema.as_ref();
        let own = own.filter(|own| has_arguments(own) || !has_arguments(&known.input_schema));
        let schema = own
            .cloned()
            .or_else(|| skill.and_then(|skill| skill.input_schema.clone()))
            .or_else(|| known.input_schema.is_object().then_some(known.input_schema));
        let mut hints = known.trusted_annotations;
        hints.extend(tool.annotations.clone());
        let category = tool.category().or(known.category).map(str::to_owned);
        let sandbox = manifest.sandbox_of(tool);
        Self {
            name: tool.name.clone(),
            runs_by,
            description,
            schema,
            category,
            hints,
            needs: builtin::builtin_requirement(&tool.name).filter(|_| runs_by == "built-in"),
            sandbox: sandbox.map(|sandbox| (sandbox.name.clone(), sandbox.level)),
        }
    }

    /// The effects in a few words.
    fn effect(&self) -> String {
        let hint = |name: &str| self.hints.get(name).and_then(Value::as_bool);
        let mut words = vec![match (hint("readOnlyHint"), hint("destructiveHint")) {
            (Some(true), _) => "only reads",
            (Some(false), Some(false)) => "changes things",
            (Some(false), Some(true) | None) => "changes things, may destroy",
            (None, _) => "effects not declared",
        }];
        if hint("openWorldHint") == Some(true) {
            words.push("reaches outside");
        }
        words.join(", ")
    }

    /// The arguments, required ones first.
    fn arguments(&self) -> Vec<ToolArgument> {
        let schema = self.schema.as_ref();
        let required = schema
            .and_then(|schema| schema.get("required")?.as_array())
            .cloned()
            .unwrap_or_default();
        let members = schema
            .and_then(|schema| schema.get("properties")?.as_object())
            .into_iter()
            .flatten();
        let mut all: Vec<ToolArgument> = members
            .map(|(name, of)| ToolArgument {
                name: name.clone(),
                value: value_words(of),
                description: of
                    .get("description")
                    .and_then(Value::as_str)
                    .unwrap_or_default()
                    .to_owned(),
                required: required.iter().any(|one| one == name),
            })
            .collect();
        all.sort_by_key(|argument| !argument.required);
        all
    }

    fn to_json(&self) -> Value {
        let arguments = self.arguments().into_iter().map(|one| {
            json!({"name": one.name, "value": one.value, "required": one.required, "description": one.description})
        });
        json!({
            "name": self.name, "run_by": self.runs_by, "description": self.description, "category": self.category,
            "effect": self.effect(), "annotations": self.hints, "needs": self.needs, "input_schema": self.schema,
            "arguments": arguments.collect::<Vec<_>>(),
            "sandbox": self.sandbox.as_ref().map(|(name, level)| json!({"name": name, "level": level})),
        })
    }

    /// Prints everything about it.
    fn explain(&self) -> Result<()> {
        let paint = TerminalStyle::for_stdout();
        out::print_line(paint.bold(&self.name))?;
        out::lines(&out::sanitize_block(&self.description).to_string())?;
        out::print_line("")?;
        let category = self.category.as_deref().unwrap_or("none");
        let mut facts = vec![
            ("run by", self.runs_by.to_owned()),
            ("category", category.to_owned()),
        ];
        facts.push(("effect", self.effect()));
        facts.extend(self.needs.map(|needs| ("needs", needs.to_owned())));
        if let Some((name, level)) = &self.sandbox {
            facts.push(("sandbox", format!("`{name}`, level {}", level.as_str())));
        }
        for (what, fact) in facts {
            out::print_line(format!("{what:<10}{fact}"))?;
        }
        let arguments = self.arguments();
        let width = arguments
            .iter()
            .map(|one| one.name.len())
            .max()
            .unwrap_or_default();
        out::print_line("")?;
        if arguments.is_empty() {
            out::print_line("no arguments are known")?;
        }
        for one in &arguments {
            let required = if one.required { ", required" } else { "" };
            let (name, value) = (out::one_line(&one.name).to_string(), &one.value);
            let about = out::one_line(&one.description).to_string();
            out::print_line(format!("  {name:<width$}  {value}{required}  {about}").trim_end())?;
        }
        if self.runs_by == "built-in" {
            out::print_line("")?;
            out::print_line(format!("in claw.yaml:  tools: [{}]", self.name))?;
        }
        Ok(())
    }
}

fn has_arguments(schema: &Value) -> bool {
    let properties = schema.get("properties").and_then(Value::as_object);
    properties.is_some_and(|properties| !properties.is_empty())
}

/// What runs a tool, by the same order as its binding.
fn executor_of(tool: &Tool, settings: &Settings) -> &'static str {
    let config = settings.tools.tools.get(&tool.name);
    let configured = config.and_then(|config| {
        let kinds = [
            (config.command.is_some(), "command"),
            (config.http.is_some(), "http"),
            (config.wasm.is_some(), "wasm"),
            (config.a2a.is_some(), "a2a"),
        ];
        kinds.into_iter().find(|(given, _)| *given).map(|(_, kind)| kind)
    });
    match configured {
        Some(kind) => kind,
        None if tool.composite => "skill",
        None if tool.mcp_source.is_some() => "mcp",
        None if builtin_tool_name(&tool.name).is_some() => "built-in",
        None => "nothing",
    }
}

/// The type and the bounds of a value in a few words.
fn value_words(of: &Value) -> String {
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    if let Some(words) = of.get("enum").and_then(Value::as_array) {
        return words.iter().map(text).collect::<Vec<_>>().join(" | ");
    }
    let kind = match of.get("type") {
        Some(Value::Array(kinds)) => kinds.iter().map(text).collect::<Vec<_>>().join(" or "),
        Some(kind) => text(kind),
        None => "any".to_owned(),
    };
    let bound = |least: &str, most: &str, unit: &str| match (of.get(least), of.get(most)) {
        (Some(least), Some(most)) => format!(", {least} to {most}{unit}"),
        (Some(least), None) => format!(", at least {least}{unit}"),
        (None, Some(most)) => format!(", at most {most}{unit}"),
        (None, None) => String::new(),
    };
    let bounds = [
        bound("minimum", "maximum", ""),
        bound("minLength", "maxLength", " characters"),
        bound("minItems", "maxItems", " entries"),
    ];
    format!("{kind}{}", bounds.concat())
}

fn print_list(rows: &[ToolRow]) -> Result<()> {
    let paint = TerminalStyle::for_stdout();
    let names: Vec<String> = rows
        .iter()
        .map(|row| out::one_line(&row.name).to_string())
        .collect();
    let width = names.iter().map(String::len).max().unwrap_or_default();
    let of_agent = rows
        .iter()
        .any(|row| row.sandbox.is_some() || row.runs_by != "built-in");
    for (row, name) in rows.iter().zip(&names) {
        let about = row.description.split(". ").next().unwrap_or_default();
        let about = out::clip_line(about.trim_end_matches('.'), 90);
        let runs_by = if of_agent {
            format!("{:<9} ", row.runs_by)
        } else {
            String::new()
        };
        out::print_line(format!(
            "{} {runs_by}{about}",
            paint.bold(&format!("{name:<width$} "))
        ))?;
    }
    Ok(())
}
