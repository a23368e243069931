//! `clawk state list`, `adopt` and `new`: which state belongs to which manifest (ADR 0355).

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Result, bail};
use serde_json::{Value, json};

use crate::config::Config;
use crate::manifest;
use crate::out::{self, Format, TerminalStyle, one_line};
use crate::state::identity::{self, KnownState};
use crate::state::kept;
use crate::state::server::StateConfig;
use crate::state::{Origin, StateLookup, state_home};

/// Flags of `clawk state list`.
#[derive(Debug, Clone, clap::Args)]
#[command(
    after_help = "Examples:\n  clawk state list\n  clawk state list --format json\n\nStates that were named with `--state` or in `clawk.toml` are not listed: they lie where you put them."
)]
pub(super) struct ListArgs {
    /// Print JSON or text
    #[arg(long, value_enum, default_value_t = Format::Human)]
    format: Format,
}

/// Flags of `clawk state adopt`.
#[derive(Debug, Clone, clap::Args)]
#[command(
    after_help = "Examples:\n  clawk state adopt desk\n  clawk state adopt desk --claw /srv/desk/claw.yaml\n\nThe manifest that had the state has it no more. Stop the agent first."
)]
pub(super) struct AdoptArgs {
    /// The state: its name in `clawk state list`, or its directory
    #[arg(value_name = "STATE")]
    from: PathBuf,

    /// The manifest that it is to belong to
    #[arg(long, value_name = "FILE", default_value = "claw.yaml", value_parser = manifest::manifest_path_parser())]
    claw: PathBuf,

    #[arg(from_global)]
    config: Option<PathBuf>,

    /// Print JSON or text
    #[arg(long, value_enum, default_value_t = Format::Human)]
    format: Format,
}

/// Flags of `clawk state new`.
#[derive(Debug, Clone, clap::Args)]
#[command(
    after_help = "Examples:\n  clawk state new\n  clawk state new --claw /srv/copy/claw.yaml\n\nSay this once for a copy of a manifest that is to be an agent of its own."
)]
pub(super) struct NewArgs {
    /// The manifest that gets an empty state
    #[arg(long, value_name = "FILE", default_value = "claw.yaml", value_parser = manifest::manifest_path_parser())]
    claw: PathBuf,

    #[arg(from_global)]
    config: Option<PathBuf>,

    /// Print JSON or text
    #[arg(long, value_enum, default_value_t = Format::Human)]
    format: Format,
}

pub(super) fn list_states(args: &ListArgs) -> Result<ExitCode> {
    let states = identity::known_states()?;
    if args.format == Format::Json {
        let rows: Vec<Value> = states.iter().map(state_json).collect();
        out::print_json(&json!({ "states": rows }))?;
        return Ok(ExitCode::SUCCESS);
    }
    if states.is_empty() {
        out::print_line(format!(
            "no agent has run here yet (nothing in `{}`)",
            state_home()?.display()
        ))?;
    }
    let paint = TerminalStyle::for_stdout();
    for state in &states {
        let name = state.dir.file_name().unwrap_or_default().to_string_lossy();
        let id = state
            .id
            .map_or_else(|| "no id yet".to_owned(), |id| id.to_string());
        out::print_line(format!("{}  {id}", paint.bold(&one_line(&name))))?;
        out::print_line(format!("    {}", state.describe_owner()))?;
        let kept_where = match kept::state_info(&state.dir) {
            _ if !kept::holds_state(&state.dir) => "nothing recorded yet".to_owned(),
            Ok(info) => format!("{} events, {}", info.events, info.kind),
            Err(error) => format!("can't be read: {error:#}"),
        };
        out::print_line(paint.dim(&format!(
            "    {}: {}",
            one_line(&state.dir.to_string_lossy()),
            one_line(&kept_where)
        )))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn state_json(state: &KnownState) -> Value {
    let manifest = state.manifest();
    json!({
        "name": state.dir.file_name().unwrap_or_default().to_string_lossy(),
        "agent": state.agent, "id": state.id, "dir": state.dir,
        "manifest": manifest, "manifest_exists": manifest.map(Path::is_file),
        // silent-ok: null says that it can't be read
        "events": kept::state_info(&state.dir).ok().map(|info| info.events),
    })
}

pub(super) fn adopt_state(args: &AdoptArgs) -> Result<ExitCode> {
    let home = state_home()?;
    let named = home.join(&args.from);
    let dir = match named.is_dir() {
        true => named,
        false => std::path::absolute(&args.from)?,
    };
    if !kept::holds_state(&dir) {
        bail!(
            "there is no state in `{}`; `clawk state list` shows what there is",
            dir.display()
        );
    }
    if dir.parent() != Some(home.as_path()) {
        bail!(
            "`{}` is not in `{}`, where agents look for their state: name it with `--state` or `state` in clawk.toml, or bring it there \
             with `clawk state move --from {} --to {}`",
            dir.display(),
            home.display(),
            dir.display(),
            home.join(dir.file_name().unwrap_or_default()).display()
        );
    }
    let wanted = ManifestLookup::load(&args.claw, args.config.as_deref())?;
    let before = identity::owner_of(&dir)?;
    let now = identity::adopt_state(&dir, &wanted.agent, &wanted.origin)?;
    if args.format == Format::Json {
        out::print_json(&json!({"dir": dir, "id": now.id, "agent": now.agent, "manifest": args.claw}))?;
    } else {
        out::print_line(format!("`{}` belongs to `{}` now", dir.display(), wanted.origin))?;
        if let Some(before) = before.filter(|before| Path::new(before).is_file()) {
            out::print_note(format!(
                "`{}` had it, and will ask at its next start",
                one_line(&before.to_string_lossy())
            ));
        }
    }
    Ok(ExitCode::SUCCESS)
}

pub(super) fn make_state(args: &NewArgs) -> Result<ExitCode> {
    let wanted = ManifestLookup::load(&args.claw, args.config.as_deref())?;
    let dir = wanted.lookup().make_new_dir()?;
    match args.format {
        Format::Json => out::print_json(&json!({"dir": dir, "agent": wanted.agent, "manifest": args.claw}))?,
        Format::Human => out::print_line(format!(
            "`{}` begins with the empty state `{}`",
            wanted.origin,
            dir.display()
        ))?,
    }
    Ok(ExitCode::SUCCESS)
}

/// What is needed to find a manifest's state.
pub(in crate::cmd) struct ManifestLookup {
    agent: String,
    origin: Origin,
    configured: Option<PathBuf>,
}

impl ManifestLookup {
    pub(in crate::cmd) fn load(path: &Path, config: Option<&Path>) -> Result<Self> {
        let config = Config::load(config, Some(path))?;
        let (manifest, _) = manifest::load_valid_manifest(path, &config)?;
        Ok(Self {
            agent: manifest.metadata.name,
            origin: Origin::of_file(path)?,
            configured: config
                .settings
                .state
                .as_ref()
                .and_then(StateConfig::dir)
                .map(Path::to_owned),
        })
    }

    pub(in crate::cmd) fn lookup(&self) -> StateLookup<'_> {
        StateLookup {
            flag: None,
            configured: self.configured.as_deref(),
            agent: &self.agent,
            origin: &self.origin,
        }
    }
}
