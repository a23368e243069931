//! `clawk skill`: imports skills from `SKILL.md` folders, and shows an agent's skills.

pub(crate) mod trial;

use std::collections::BTreeSet;
use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clawk_import::SkillImport;
use clawk_kernel::REQUIRES;
use clawk_manifest::Manifest;
use clawk_manifest::model::Skill;
use serde_json::{Value, json};

use super::edit::{AgentEdit, EditArgs};
use crate::compose;
use crate::config::{AllowOutsideArgs, Config};
use crate::manifest;
use crate::out::{self, Format, TerminalStyle};

/// Number of parent folders that are searched for a `claw.yaml`.
const ABOVE: usize = 3;

/// Flags of `clawk skill`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(subcommand)]
    what: SkillCommand,
}

#[derive(Debug, clap::Subcommand)]
enum SkillCommand {
    /// Write a Skill, and the tools that its scripts are, from a folder with a `SKILL.md`
    Import {
        /// The folder
        #[arg(value_name = "FOLDER")]
        folder: PathBuf,

        /// The Skill's file; it must not exist
        #[arg(long, short, value_name = "FILE")]
        output: PathBuf,

        /// Add the skill and its tools to the agent's manifest, policy and clawk.toml, after the difference was shown
        #[arg(long)]
        write: bool,

        /// With --write: write without a question
        #[arg(long, requires = "write")]
        yes: bool,

        /// The agent that is to have it [default: the nearest `claw.yaml` in or above the output's folder]
        #[arg(long, value_name = "CLAW", value_parser = crate::manifest::manifest_path_parser())]
        claw: Option<PathBuf>,

        #[command(flatten)]
        outside: AllowOutsideArgs,

        /// Output format
        #[arg(long, value_enum, default_value_t)]
        format: Format,
    },
    /// List an agent's skills, with the tools that they lack
    List {
        /// The manifest
        #[arg(value_name = "CLAW", value_parser = crate::manifest::manifest_path_parser())]
        claw: PathBuf,

        #[command(flatten)]
        outside: AllowOutsideArgs,

        /// Output format
        #[arg(long, value_enum, default_value_t)]
        format: Format,
    },
    /// Print one skill: what the model is told before and after it invokes it, and its bounds
    Show {
        /// Its name
        #[arg(value_name = "NAME")]
        name: String,

        /// The manifest
        #[arg(long, value_name = "CLAW", value_parser = crate::manifest::manifest_path_parser())]
        claw: PathBuf,

        #[command(flatten)]
        outside: AllowOutsideArgs,

        /// Output format
        #[arg(long, value_enum, default_value_t)]
        format: Format,
    },
    /// Check that skills can be invoked: their tools are there and run here, their schemas hold. With `--run`, run one
    Test {
        /// The manifest
        #[arg(value_name = "CLAW", value_parser = crate::manifest::manifest_path_parser())]
        claw: PathBuf,

        /// Only this skill
        #[arg(long, value_name = "NAME")]
        name: Option<String>,

        #[command(flatten)]
        trial: trial::SkillTrialArgs,

        #[command(flatten)]
        outside: AllowOutsideArgs,

        /// Output format
        #[arg(long, value_enum, default_value_t)]
        format: Format,
    },
}

const EXAMPLES: &str = "\
Examples:
  clawk skill import ~/skills/pdf --output my-agent/skills/pdf.yaml
  clawk skill import ~/skills/pdf --output my-agent/skills/pdf.yaml --write
  clawk skill list my-agent/claw.yaml
  clawk skill show pdf --claw my-agent/claw.yaml
  clawk skill test my-agent/claw.yaml
  clawk skill test my-agent/claw.yaml --name pdf --run '{}' --dry-run

A script of a skill becomes a tool: each of its runs is decided by the policy, runs in the sandbox, and is recorded.";

/// Runs the command.
pub(crate) fn run(args: &Args, config: Option<&Path>) -> Result<ExitCode> {
    match &args.what {
        SkillCommand::Import {
            folder,
            output,
            write,
            yes,
            claw,
            outside,
            format,
        } => {
            let target = SkillTarget {
                output,
                claw: claw.as_deref(),
                write: *write,
                yes: *yes,
            };
            import_skill(folder, target, (config, *outside), *format)
        }
        SkillCommand::List {
            claw,
            outside,
            format,
        } => list_skills(&read(claw, (config, *outside))?.0, *format),
        SkillCommand::Show {
            name,
            claw,
            outside,
            format,
        } => show_skill(&read(claw, (config, *outside))?.0, name, *format),
        SkillCommand::Test {
            claw,
            name,
            trial,
            outside,
            format,
        } => test_skill(claw, (config, *outside), (name.as_deref(), trial), *format),
    }
}

fn read(claw: &Path, (config, outside): (Option<&Path>, AllowOutsideArgs)) -> Result<(Manifest, Config)> {
    let config = Config::load(config, Some(claw))?.with_outside_access(outside);
    Ok((manifest::load_valid_manifest(claw, &config)?.0, config))
}

/// Returns the nearest `claw.yaml`.
fn find_manifest(output: &Path) -> Option<PathBuf> {
    let folders = output.ancestors().skip(1).take(ABOVE);
    folders
        .map(|folder| folder.join("claw.yaml"))
        .find(|claw| claw.is_file())
}

/// Where a skill is written, and which agent gets it.
#[derive(Clone, Copy)]
struct SkillTarget<'a> {
    output: &'a Path,
    claw: Option<&'a Path>,
    write: bool,
    yes: bool,
}

/// Adds the imported skill to the agent. Its files are written already.
fn add_to_agent(
    skill: &SkillImport,
    files: &[PathBuf],
    edit_args: &EditArgs,
    config: Option<&Path>,
) -> Result<()> {
    let mut edit = AgentEdit::open(edit_args, config)?;
    let (file, beside) = files.split_first().context("the skill has no file")?;
    let folder = match edit_args.manifest.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder.canonicalize()?,
        Some(_) | None => PathBuf::from(".").canonicalize()?,
    };
    let reference = |path: &Path| -> Result<String> {
        let below = path.strip_prefix(&folder).with_context(|| {
            format!(
                "`{}` lies outside of the agent's folder; choose an `--output` inside",
                path.display()
            )
        })?;
        Ok(json!(format!("./{}", below.display())).to_string())
    };
    for path in beside {
        edit.name_written_file(path.clone());
    }
    edit.name_written_file(file.clone());
    let shelf = file.parent().unwrap_or(Path::new("."));
    for tool in &skill.tools {
        edit.add_to_manifest("tools", &reference(&shelf.join(tool))?)?;
    }
    edit.add_to_manifest("skills", &reference(file)?)?;
    if !skill.config.trim().is_empty() {
        edit.add_to_config(&skill.config)?;
    }
    let settings: toml::Table = toml::from_str(&skill.config)?;
    let tools = settings.get("tools").and_then(toml::Value::as_table);
    let names = tools.into_iter().flat_map(|tools| tools.keys().cloned());
    for name in names.chain([format!("skill-{}", skill.name)]).collect::<Vec<_>>() {
        edit.add_asking_rule(&name)?;
    }
    edit.finish().map(|_| ())
}

fn import_skill(
    folder: &Path,
    target: SkillTarget<'_>,
    config: (Option<&Path>, AllowOutsideArgs),
    format: Format,
) -> Result<ExitCode> {
    let SkillTarget { output, claw, .. } = target;
    if output.exists() {
        bail!(
            "`{}` is there already; choose another file with `--output`",
            output.display()
        );
    }
    let shelf = match output.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
        Some(_) | None => PathBuf::from("."),
    };
    fs::create_dir_all(&shelf).with_context(|| format!("can't make `{}`", shelf.display()))?;
    let shelf = shelf.canonicalize()?;
    let file = shelf.join(output.file_name().context("`--output` names no file")?);
    let found = claw.map(Path::to_owned).or_else(|| find_manifest(&file));
    let agent = match &found {
        None => None,
        Some(claw) => Some(read(claw, config)?.0),
    };
    let tools: Option<BTreeSet<String>> =
        agent.map(|agent| agent.tools.iter().map(|tool| tool.name.clone()).collect());
    let skill = clawk_import::import_skill(folder, &file, tools.as_ref())?;
    let written = write_all(&skill, &shelf, &file)?;
    if target.write {
        let manifest = found
            .clone()
            .context("no `claw.yaml` is in or above the output's folder; name one by `--claw CLAW`")?;
        let edit_args = EditArgs {
            manifest,
            yes: target.yes,
            dry_run: false,
            outside: config.1,
        };
        let files: Vec<PathBuf> = std::iter::once(file.clone())
            .chain(written.iter().cloned())
            .collect();
        if let Err(error) = add_to_agent(&skill, &files, &edit_args, config.0) {
            for path in &files {
                let _ = fs::remove_file(path); // silent-ok: the error that is returned says what went wrong
            }
            return Err(error);
        }
        return Ok(ExitCode::SUCCESS);
    }
    match format {
        Format::Json => out::print_json(&json!({
            "skill": skill.name, "file": file, "agent": found, "tools": skill.tools, "config": skill.config,
            "lacks": skill.lacks, "kept": skill.kept, "notes": skill.notes, "written": written,
        }))?,
        Format::Human => print_import(&skill, &file, found.as_deref())?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Writes all files or none: after an error, files already written are deleted. Returns the paths of the files beside the Skill.
fn write_all(skill: &SkillImport, shelf: &Path, file: &Path) -> Result<Vec<PathBuf>> {
    let mut written = Vec::new();
    let beside = skill
        .files
        .iter()
        .map(|(below, content)| (shelf.join(below), content.as_slice()));
    for (path, content) in beside.chain([(file.to_owned(), skill.skill.as_bytes())]) {
        if let Err(error) = write(&path, content) {
            for path in &written {
                let _ = fs::remove_file(path); // silent-ok: the error that is returned says what went wrong
            }
            return Err(error);
        }
        written.push(path);
    }
    written.pop();
    Ok(written)
}

fn write(path: &Path, content: &[u8]) -> Result<()> {
    let failed = || format!("can't write `{}`", path.display());
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).with_context(failed)?;
    }
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o644)
        .open(path)
        .with_context(failed)?;
    file.write_all(content).with_context(failed)
}

fn print_import(skill: &SkillImport, file: &Path, agent: Option<&Path>) -> Result<()> {
    let paint = TerminalStyle::for_stdout();
    out::print_line(format!("wrote the skill `{}` to {}", skill.name, file.display()))?;
    if !skill.lacks.is_empty() {
        let lacks = skill.lacks.join(", ");
        let of = agent.map_or_else(
            || "no agent is known here (`--claw CLAW` names one); it needs".to_owned(),
            |claw| format!("{} lacks", claw.display()),
        );
        out::print_line(format!(
            "{} {of} {}; without them, invoking the skill is refused",
            paint.yellow("warning:"),
            out::one_line(&lacks)
        ))?;
    }
    if !skill.kept.is_empty() {
        out::print_line(format!(
            "kept as annotations, without effect: {}",
            out::one_line(&skill.kept.join(", "))
        ))?;
    }
    for note in &skill.notes {
        out::print_line(format!("note: {}", out::one_line(note)))?;
    }
    out::print_line("add to `spec` of claw.yaml, with paths from its folder (`--write` does it):")?;
    out::print_line(format!("  skills: [ {} ]", file.display()))?;
    let shelf = file.parent().unwrap_or(Path::new("."));
    for tool in &skill.tools {
        out::print_line(format!("  tools:  [ {} ]", shelf.join(tool).display()))?;
    }
    out::print_line("add to clawk.toml:")?;
    for line in skill.config.trim_end().lines() {
        out::print_line(format!("  {}", out::one_line(line)))?;
    }
    Ok(())
}

/// Returns every tool that the skill needs.
fn required_tools(skill: &Skill) -> Vec<String> {
    let label = skill.labels.get(REQUIRES).map(String::as_str).unwrap_or_default();
    let named = label.split_whitespace().map(str::to_owned);
    skill.tools_required.iter().cloned().chain(named).collect()
}

/// Returns the needed tools that are not declared.
fn missing_tools(manifest: &Manifest, skill: &Skill) -> Vec<String> {
    let mut needed = required_tools(skill);
    needed.retain(|tool| manifest.tool(tool).is_none());
    needed
}

fn skill_json(manifest: &Manifest, skill: &Skill) -> Value {
    json!({
        "name": skill.name,
        "invoked_as": format!("skill-{}", skill.name),
        "version": skill.version,
        "description": skill.description.trim(),
        "tools": required_tools(skill),
        "lacks": missing_tools(manifest, skill),
        "permissions": skill.permissions,
        "estimates": skill.estimates,
        "world_model": skill.world_model_ref,
    })
}

fn list_skills(manifest: &Manifest, format: Format) -> Result<ExitCode> {
    if format == Format::Json {
        let skills: Vec<Value> = manifest
            .skills
            .iter()
            .map(|skill| skill_json(manifest, skill))
            .collect();
        out::print_json(&json!({ "skills": skills }))?;
        return Ok(ExitCode::SUCCESS);
    }
    let paint = TerminalStyle::for_stdout();
    if manifest.skills.is_empty() {
        out::print_line("no skills")?;
    }
    for skill in &manifest.skills {
        let description = skill.description.trim().lines().next().unwrap_or_default();
        out::print_line(format!(
            "{}  {}",
            paint.bold(&out::one_line(&skill.name)),
            out::one_line(description)
        ))?;
        out::print_line(paint.dim(&format!("  tools: {}", required_tools(skill).join(", "))))?;
        let lacks = missing_tools(manifest, skill);
        if !lacks.is_empty() {
            out::print_line(format!("  {} {}", paint.yellow("lacks:"), lacks.join(", ")))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn find_skill<'m>(manifest: &'m Manifest, name: &str) -> Result<&'m Skill> {
    manifest.skill(name).with_context(|| {
        let names: Vec<&str> = manifest.skills.iter().map(|skill| skill.name.as_str()).collect();
        format!("there is no skill `{name}`; there are: {}", names.join(", "))
    })
}

fn show_skill(manifest: &Manifest, name: &str, format: Format) -> Result<ExitCode> {
    let skill = find_skill(manifest, name)?;
    if format == Format::Json {
        let mut facts = skill_json(manifest, skill);
        if let Some(facts) = facts.as_object_mut() {
            facts.insert("instruction".to_owned(), json!(skill.instruction));
            facts.insert("input_schema".to_owned(), json!(skill.input_schema));
            facts.insert("output_schema".to_owned(), json!(skill.output_schema));
            facts.insert("labels".to_owned(), json!(skill.labels));
        }
        out::print_json(&facts)?;
        return Ok(ExitCode::SUCCESS);
    }
    let paint = TerminalStyle::for_stdout();
    out::print_line(format!(
        "{} (a model calls `skill-{}`)",
        paint.bold(&out::one_line(name)),
        skill.name
    ))?;
    out::lines(&out::sanitize_block(skill.description.trim()))?;
    out::print_line(format!("tools: {}", required_tools(skill).join(", ")))?;
    let lacks = missing_tools(manifest, skill);
    if !lacks.is_empty() {
        out::print_line(format!(
            "{} {}; invoking it is refused",
            paint.yellow("lacks:"),
            lacks.join(", ")
        ))?;
    }
    let permissions = match &skill.permissions {
        None => "none declared: the policies alone bound it".to_owned(),
        Some(permissions) => serde_json::to_string(permissions)?,
    };
    out::print_line(format!("permissions: {permissions}"))?;
    out::print_line(format!("estimates: {}", serde_json::to_string(&skill.estimates)?))?;
    if let Some(model) = &skill.world_model_ref {
        out::print_line(format!("world model: {}", out::one_line(model)))?;
    }
    for (what, schema) in [("input", &skill.input_schema), ("output", &skill.output_schema)] {
        if let Some(schema) = schema {
            out::print_line(format!("{what} schema: {schema}"))?;
        }
    }
    out::print_line(paint.dim("instructions, which the model reads when it calls it:"))?;
    out::lines(&out::sanitize_block(skill.instruction.trim()))?;
    Ok(ExitCode::SUCCESS)
}

/// Returns the reasons why the skill can't be invoked here.
fn find_faults(manifest: &Manifest, skill: &Skill, unbound: &[String]) -> Vec<String> {
    let mut found: Vec<String> = missing_tools(manifest, skill)
        .iter()
        .map(|tool| format!("the agent has no tool `{tool}`"))
        .collect();
    let of_its = |fault: &&String| {
        let tools = required_tools(skill);
        tools
            .iter()
            .any(|tool| fault.starts_with(&format!("tool `{tool}`:")))
    };
    found.extend(unbound.iter().filter(of_its).cloned());
    if manifest.tool(&format!("skill-{}", skill.name)).is_some() {
        found.push(format!(
            "a tool is called `skill-{}`, so the skill can't be invoked by a model",
            skill.name
        ));
    }
    found
}

fn test_skill(
    claw: &Path,
    given: (Option<&Path>, AllowOutsideArgs),
    (name, trial): (Option<&str>, &trial::SkillTrialArgs),
    format: Format,
) -> Result<ExitCode> {
    let (manifest, config) = read(claw, given)?;
    if trial.is_wanted() {
        let skill = match (name, manifest.skills.as_slice()) {
            (Some(name), _) => find_skill(&manifest, name)?,
            (None, [only]) => only,
            (None, _) => bail!("say which skill is to be run with `--name NAME`"),
        };
        let run = trial::run(claw, given, &skill.name, trial, format);
        return compose::build_runtime()?.block_on(run);
    }
    let skills: Vec<&Skill> = match name {
        Some(name) => vec![find_skill(&manifest, name)?],
        None => manifest.skills.iter().collect(),
    };
    let blueprint = compose::build_runtime()?.block_on(compose::ResolvedConfig::with_config(claw, config))?;
    let unbound = blueprint.build_runner(None, None).err().unwrap_or_default();
    let judged: Vec<(&Skill, Vec<String>)> = skills
        .into_iter()
        .map(|skill| (skill, find_faults(&manifest, skill, &unbound)))
        .collect();
    let bad = judged.iter().any(|(_, faults)| !faults.is_empty());
    match format {
        Format::Json => {
            let skills = judged.iter().map(
                |(skill, faults)| json!({"name": skill.name, "ok": faults.is_empty(), "faults": faults}),
            );
            out::print_json(&json!({"ok": !bad, "skills": skills.collect::<Vec<_>>()}))?;
        }
        Format::Human => {
            let paint = TerminalStyle::for_stdout();
            for (skill, faults) in &judged {
                let word = if faults.is_empty() {
                    paint.green("ok   ")
                } else {
                    paint.red("fails")
                };
                out::print_line(format!("{word} {}", out::one_line(&skill.name)))?;
                for fault in faults {
                    out::print_line(format!("      {}", out::one_line(fault)))?;
                }
            }
        }
    }
    Ok(if bad { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}
