//! `clawk atlas`: validates Atlases, reports all faults at once, and shows their contents.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Result, bail};
use clap::Subcommand;
use clawk_carp::atlas::{AtlasAction, Executor, Policy, Rule};
use clawk_carp::depend::{self, DependError};
use clawk_carp::fault::CarpFault;
use clawk_carp::load::LoadError;
use clawk_carp::set::SetError;
use clawk_carp::{Atlas, AtlasSet, Options};
use clawk_proto::carp::RiskTier;
use serde::Serialize;
use serde_json::{Value, json};

use crate::out::{self, Format, TerminalStyle, clip_line, one_line};
use crate::pack;

/// Flags of `clawk atlas`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(subcommand)]
    verb: AtlasCommand,
}

const EXAMPLES: &str = "\
Examples:
  clawk atlas validate examples/atlas             everything that is wrong, with its place in atlas.json
  clawk atlas validate one/ two/ --format json    also whether they go together; for scripts
  clawk atlas pack examples/atlas --out library.atlas
  clawk atlas show examples/atlas                 actions, policies in the order they are asked, context";

#[derive(Debug, Subcommand)]
enum AtlasCommand {
    /// Check Atlases, each alone and all together; exits with 1 if one is not valid
    #[command(after_help = EXAMPLES)]
    Validate {
        /// Folders that hold an `atlas.json`, or such files
        #[arg(value_name = "PATH", required = true)]
        paths: Vec<PathBuf>,
        /// Output format
        #[arg(long, value_enum, default_value_t)]
        format: Format,
    },
    /// Pack an Atlas's folder into one file; the same folder gives the same bytes
    #[command(after_help = EXAMPLES)]
    Pack {
        /// A folder that holds an `atlas.json`
        #[arg(value_name = "DIR")]
        path: PathBuf,
        /// The file to write; clawk accepts it wherever it accepts an Atlas's folder
        #[arg(long, value_name = "FILE")]
        out: PathBuf,
        /// Output format
        #[arg(long, value_enum, default_value_t)]
        format: Format,
    },
    /// Print what an Atlas holds
    #[command(after_help = EXAMPLES)]
    Show {
        /// A folder that holds an `atlas.json`, or such a file
        #[arg(value_name = "PATH")]
        path: PathBuf,
        /// Output format
        #[arg(long, value_enum, default_value_t)]
        format: Format,
    },
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    match &args.verb {
        AtlasCommand::Validate { paths, format } => validate_atlases(paths, *format),
        AtlasCommand::Show { path, format } => show_atlas(path, *format),
        AtlasCommand::Pack { path, out, format } => pack_up(path, out, *format),
    }
}

/// Writes a pack. An existing file is replaced only after the pack is complete.
fn pack_up(path: &Path, to: &Path, format: Format) -> Result<ExitCode> {
    let atlas = load_valid_atlas(path)?;
    let (_, made) = pack::pack_folder(path)?;
    let bytes = made.bytes()?;
    let folder = to
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty())
        .unwrap_or(Path::new("."));
    let mut file = tempfile::NamedTempFile::new_in(folder)?;
    std::io::Write::write_all(&mut file, &bytes)?;
    file.persist(to)?;
    let (id, version, digest, size) = (&atlas.id, atlas.version.to_string(), &made.digest, bytes.len());
    match format {
        Format::Json => out::print_json(&json!({
            "atlas_id": id, "version": version, "digest": digest, "bytes": size, "files": made.files.len(),
        }))?,
        Format::Human => {
            out::print_line(format!(
                "{} {version}: {} files, {size} bytes",
                one_line(id),
                made.files.len() + 1
            ))?;
            out::print_line(format!("sha256 of its parts: {digest}"))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// The findings for one Atlas.
#[derive(Debug, Serialize)]
struct AtlasCheck {
    path: PathBuf,
    atlas_id: Option<Arc<str>>,
    version: Option<String>,
    valid: bool,
    errors: Vec<CarpFault>,
    /// Number of further errors that are not shown.
    left_out: usize,
    warnings: Vec<CarpFault>,
}

/// The findings for all Atlases.
#[derive(Debug, Serialize)]
struct AtlasCheckReport {
    valid: bool,
    atlases: Vec<AtlasCheck>,
    /// Faults between Atlases. Their pointers are empty.
    together: CrossAtlasFaults,
}

#[derive(Debug, Default, Serialize)]
struct CrossAtlasFaults {
    errors: Vec<CarpFault>,
    warnings: Vec<CarpFault>,
}

fn validate_atlases(paths: &[PathBuf], format: Format) -> Result<ExitCode> {
    let mut atlases = Vec::new();
    let mut checked = Vec::new();
    for path in paths {
        let (atlas, found) = check_atlas(path);
        atlases.extend(atlas.map(Arc::new));
        checked.push(found);
    }
    let together = if atlases.len() == paths.len() {
        check_together(&atlases)
    } else {
        CrossAtlasFaults::default()
    };
    let report = AtlasCheckReport {
        valid: together.errors.is_empty() && checked.iter().all(|one| one.valid),
        atlases: checked,
        together,
    };
    match format {
        Format::Json => out::print_json(&report)?,
        Format::Human => print_human(&report)?,
    }
    Ok(if report.valid {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn check_atlas(path: &Path) -> (Option<Atlas>, AtlasCheck) {
    let mut found = AtlasCheck {
        path: path.to_owned(),
        atlas_id: None,
        version: None,
        valid: false,
        errors: Vec::new(),
        left_out: 0,
        warnings: Vec::new(),
    };
    let loaded = match pack::load_with_faults(path) {
        Ok(loaded) => loaded,
        Err(error) => {
            found.errors.push(pathless_fault("pack", format!("{error:#}")));
            return (None, found);
        }
    };
    match loaded {
        Ok(mut atlas) => {
            found.atlas_id = Some(Arc::clone(&atlas.id));
            found.version = Some(atlas.version.to_string());
            found.valid = true;
            found.warnings = std::mem::take(&mut atlas.warnings);
            return (Some(atlas), found);
        }
        Err(LoadError::Invalid { faults, .. }) => {
            found.errors = faults.errors;
            found.left_out = faults.left_out;
        }
        Err(error @ LoadError::Io { .. }) => {
            let hint = "give a folder that holds an `atlas.json`, or that file";
            found
                .errors
                .push(pathless_fault("io", format!("{error}; {hint}")));
        }
    }
    (None, found)
}

fn pathless_fault(code: &str, message: String) -> CarpFault {
    CarpFault {
        path: String::new(),
        code: code.to_owned(),
        message,
    }
}

/// Checks whether the Atlases can be loaded together. A dependency that was not given is only a note, because an author may check
/// one Atlas at a time.
fn check_together(atlases: &[Arc<Atlas>]) -> CrossAtlasFaults {
    let mut found = CrossAtlasFaults::default();
    for error in depend::check_dependencies(atlases).err().into_iter().flatten() {
        match &error {
            DependError::Missing { .. } => {
                let message = format!("{error}; name it besides to check both");
                found.warnings.push(pathless_fault("missing_dependency", message));
            }
            DependError::Twice { .. } | DependError::Version { .. } | DependError::Cycle(_) => {
                found.errors.push(pathless_fault("dependency", error.to_string()));
            }
        }
    }
    let alone = atlases.iter().map(|atlas| {
        let mut atlas = Atlas::clone(atlas);
        atlas.dependencies.clear();
        Arc::new(atlas)
    });
    match AtlasSet::compile(alone.collect(), Options::default()) {
        // Dependencies were checked above.
        Ok(_) | Err(SetError::Depend(_)) => {}
        Err(error @ SetError::Action { .. }) => {
            let message = format!("{error}; rename one, action ids are unique among the Atlases loaded");
            found.errors.push(pathless_fault("action_twice", message));
        }
        Err(error @ SetError::TooMuch(_)) => found.errors.push(pathless_fault("too_much", error.to_string())),
    }
    found
}

fn print_human(report: &AtlasCheckReport) -> Result<()> {
    let paint = TerminalStyle::for_stdout();
    for one in &report.atlases {
        let name = one_line(&one.path.display().to_string());
        for error in &one.errors {
            out::print_line(format_finding(&paint.red("error"), error))?;
        }
        if one.left_out > 0 {
            out::print_line(format!("and {} more", one.left_out))?;
        }
        for warning in &one.warnings {
            out::print_line(format_finding(&paint.yellow("warning"), warning))?;
        }
        match (&one.atlas_id, &one.version) {
            (Some(id), Some(version)) => out::print_line(format!("{name} is valid: {id} {version}"))?,
            _ => out::print_line(format!("{name} is not valid"))?,
        }
    }
    for error in &report.together.errors {
        out::print_line(format_finding(&paint.red("error"), error))?;
    }
    for warning in &report.together.warnings {
        out::print_line(format_finding(&paint.yellow("warning"), warning))?;
    }
    if !report.together.errors.is_empty() {
        out::print_line("they cannot be loaded together")?;
    }
    Ok(())
}

/// Returns one finding as JSON: severity, place, fault, fix.
pub(super) fn format_finding(severity: &str, fault: &CarpFault) -> String {
    let place = if fault.path.is_empty() {
        String::new()
    } else {
        format!("{}: ", fault.path)
    };
    let text = one_line(&format!("{place}{}", fault.message));
    format!("{severity}[{}] {text}", one_line(&fault.code))
}

/// Loads an Atlas and prints its warnings on standard error.
///
/// # Errors
/// The Atlas is not valid. The message lists every fault.
pub(super) fn load_valid_atlas(path: &Path) -> Result<Atlas> {
    let (atlas, found) = check_atlas(path);
    let name = one_line(&path.display().to_string());
    let Some(atlas) = atlas else {
        let paint = TerminalStyle::for_stderr();
        for error in &found.errors {
            out::print_note(format_finding(&paint.red("error"), error));
        }
        bail!("`{name}` is not a valid Atlas; `clawk atlas validate {name}` says all of it");
    };
    for warning in &found.warnings {
        let text = format_finding(&TerminalStyle::for_stderr().yellow("warning"), warning);
        out::print_note(format!("{name}: {text}"));
    }
    Ok(atlas)
}

fn show_atlas(path: &Path, format: Format) -> Result<ExitCode> {
    let atlas = load_valid_atlas(path)?;
    match format {
        Format::Json => out::print_json(&json_document(&atlas))?,
        Format::Human => print_description(&atlas, TerminalStyle::for_stdout())?,
    }
    Ok(ExitCode::SUCCESS)
}

fn json_document(atlas: &Atlas) -> Value {
    let actions = atlas.actions.iter().map(|action| {
        let shown = &action.shown;
        json!({
            "action_id": shown.action_id, "name": shown.name, "description": shown.description,
            "risk_tier": shown.risk_tier, "requires_confirmation": shown.requires_confirmation,
            "idempotent": shown.idempotent, "rate_limit": shown.rate_limit, "executor": format_executor(action),
            "timeout_seconds": action.timeout_seconds, "parameters_schema": shown.parameters_schema,
        })
    });
    let policies = atlas.policies_in_order().into_iter().map(|policy| {
        json!({
            "policy_id": policy.id, "type": policy.rule.name(), "priority": policy.priority,
            "actions": policy.patterns(), "conditions": policy.conditions.parameters(), "reason": policy.reason,
            "limit": limit_json(&policy.rule),
        })
    });
    let packs = atlas.packs.iter().map(|pack| {
        let tokens: u64 = pack.blocks.iter().map(|block| block.token_estimate).sum();
        let blocks = pack
            .blocks
            .iter()
            .map(|block| &block.block_id)
            .collect::<Vec<_>>();
        json!({
            "pack_id": pack.id, "priority": pack.priority, "conditions": pack.conditions.parameters(),
            "blocks": blocks, "token_estimate": tokens,
        })
    });
    let needs = atlas.dependencies.iter();
    let needs = needs.map(|(id, range)| (id.clone(), Value::from(range.to_string())));
    let capabilities = atlas.capabilities.iter().map(|one| &one.id).collect::<Vec<_>>();
    json!({
        "atlas_id": atlas.id, "version": atlas.version.to_string(), "name": atlas.name,
        "description": atlas.description, "capabilities": capabilities,
        "actions": actions.collect::<Vec<_>>(),
        "policies": policies.collect::<Vec<_>>(),
        "context_packs": packs.collect::<Vec<_>>(),
        "dependencies": needs.collect::<serde_json::Map<_, _>>(),
    })
}

/// Returns an action's executor in the manifest's notation.
fn format_executor(action: &AtlasAction) -> String {
    match &action.executor {
        None => format!("tool:{}", action.shown.action_id),
        Some(Executor::Tool(name)) => format!("tool:{name}"),
        Some(Executor::Mcp { server, tool }) => format!("mcp:{server}/{tool}"),
        Some(Executor::Http(address)) => address.to_string(),
    }
}

fn print_description(atlas: &Atlas, paint: TerminalStyle) -> Result<()> {
    let head = format!("{} {}", atlas.id, atlas.version);
    out::print_line(format!("{}  {}", paint.bold(&head), clip_line(&atlas.name, 100)))?;
    out::print_line(paint.dim(&clip_line(&atlas.description, 200)))?;
    print_section(paint, "Actions", atlas.actions.len())?;
    for action in &atlas.actions {
        let shown = &action.shown;
        let asks = if shown.requires_confirmation {
            ", asks each time"
        } else {
            ""
        };
        let runs = clip_line(&format_executor(action), 80);
        let tail = format!("{}{asks} ({runs})", clip_line(&shown.name, 60));
        out::print_line(format!(
            "{}  {}  {tail}",
            format_tier(paint, shown.risk_tier),
            shown.action_id
        ))?;
    }
    print_section(
        paint,
        "Policies, in the order they are asked",
        atlas.policies.len(),
    )?;
    for policy in atlas.policies_in_order() {
        out::print_line(clip_line(&format_rule(policy), 200))?;
    }
    print_section(paint, "Context packs", atlas.packs.len())?;
    for pack in &atlas.packs {
        let tokens: u64 = pack.blocks.iter().map(|block| block.token_estimate).sum();
        let (files, when) = (pack.blocks.len(), format_conditions(&pack.conditions));
        let text = format!(
            "  {}: priority {}, files: {files}, about {tokens} tokens{when}",
            pack.id, pack.priority
        );
        out::print_line(clip_line(&text, 200))?;
    }
    print_section(paint, "Needs", atlas.dependencies.len())?;
    for (id, range) in &atlas.dependencies {
        out::print_line(format!("  {} {range}", one_line(id)))?;
    }
    Ok(())
}

fn print_section(paint: TerminalStyle, title: &str, entries: usize) -> Result<()> {
    let none = if entries == 0 { " none" } else { "" };
    Ok(out::lines(&format!(
        "\n{}{none}",
        paint.bold(&format!("{title}:"))
    ))?)
}

/// Returns a risk tier in its colour, padded to a fixed width.
pub(super) fn format_tier(paint: TerminalStyle, tier: RiskTier) -> String {
    let text = format!("  {:<8}", tier.name());
    match tier {
        RiskTier::Low => text,
        RiskTier::Medium => paint.yellow(&text),
        RiskTier::High | RiskTier::Critical => paint.red(&text),
    }
}

/// Returns what a limit counts; `None` for other rules.
fn limit_json(rule: &Rule) -> Option<Value> {
    match rule {
        Rule::RateLimit(limit) => Some(json!(limit)),
        Rule::Budget(budget) => Some(json!({
            "max_cost_micros": budget.max_cost_micros, "window_seconds": budget.window_seconds,
        })),
        Rule::Deny | Rule::Scope | Rule::RequireApproval | Rule::Allow => None,
    }
}

fn format_rule(policy: &Policy) -> String {
    let limit = limit_json(&policy.rule).map(|limit| format!(", at most {limit}"));
    let reason = policy.reason.as_deref().map(|reason| format!(": {reason}"));
    format!(
        "  {:<16} {} (priority {}) for {}{}{}{}",
        policy.rule.name(),
        policy.id,
        policy.priority,
        policy.patterns().join(", "),
        limit.unwrap_or_default(),
        format_conditions(&policy.conditions),
        reason.unwrap_or_default()
    )
}

fn format_conditions(conditions: &clawk_carp::atlas::PolicyConditions) -> String {
    let parameters = conditions.parameters();
    if parameters.is_empty() {
        return String::new();
    }
    format!(", when {}", Value::Object(parameters))
}
