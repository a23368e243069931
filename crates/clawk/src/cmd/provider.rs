//! `clawk provider models`: lists the models of a manifest's servers, with the catalogue's data about each.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Result, bail};
use clawk_kernel::ModelFacts;
use clawk_manifest::model::Provider;
use clawk_providers::ListedModel;
use serde_json::{Value, json};

use crate::compose::{self, ResolvedConfig};
use crate::config::Config;
use crate::out::{self, Format, TerminalStyle, one_line};

/// Flags of `clawk provider`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(subcommand)]
    action: ProviderAction,
}

const EXAMPLES: &str = "\
Examples:
  clawk provider add second --vendor anthropic
  clawk provider test main
  clawk provider models
  clawk provider models main
  clawk provider models --manifest agent/claw.yaml --format json

Each provider's own server is asked, with the provider's own key.";

#[derive(Debug, clap::Subcommand)]
enum ProviderAction {
    /// Declare another provider
    Add(super::edit::provider_add::Args),
    /// Ask a provider's server whether it accepts the key and offers the model; costs nothing
    Test(ModelsArgs),
    /// List the models that a provider's server offers, with window, price and shutdown date
    Models(ModelsArgs),
}

#[derive(Debug, clap::Args)]
struct ModelsArgs {
    /// The provider [default: all of the manifest]
    #[arg(value_name = "NAME")]
    name: Option<String>,

    /// The agent's manifest
    #[arg(long, value_name = "CLAW", value_parser = crate::manifest::manifest_path_parser(), default_value = "claw.yaml")]
    manifest: PathBuf,

    /// Output format
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

/// Lists the models.
pub(crate) fn run(args: &Args, config: Option<&Path>) -> Result<ExitCode> {
    match &args.action {
        ProviderAction::Add(args) => super::edit::provider_add::run(args, config),
        ProviderAction::Test(args) => compose::build_runtime()?.block_on(test_providers(args, config)),
        ProviderAction::Models(args) => compose::build_runtime()?.block_on(list_models(args, config)),
    }
}

/// Reads the agent. A folder without the user's consent must not choose a secret or the host it is sent to.
async fn read_agent(args: &ModelsArgs, config: Option<&Path>) -> Result<ResolvedConfig> {
    let config = Config::load(config, Some(&args.manifest))?;
    ResolvedConfig::with_config(&args.manifest, config)
        .await?
        .with_consent(false, crate::trust::can_ask_user())
        .await
}

/// Returns the provider that was named, or all.
fn named_providers<'b>(args: &ModelsArgs, blueprint: &'b ResolvedConfig) -> Result<Vec<&'b Provider>> {
    let wanted = |provider: &&Provider| args.name.as_ref().is_none_or(|name| *name == provider.name);
    let providers: Vec<&Provider> = blueprint.manifest.providers.iter().filter(wanted).collect();
    if let (Some(name), true) = (&args.name, providers.is_empty()) {
        let path = args.manifest.display();
        bail!("`{path}` declares no provider `{}`", one_line(name));
    }
    Ok(providers)
}

/// Asks each server for its models, with the provider's key. Exit code 1: one refuses, or does not offer the model.
async fn test_providers(args: &ModelsArgs, config: Option<&Path>) -> Result<ExitCode> {
    let blueprint = read_agent(args, config).await?;
    let factory = blueprint.provider_factory();
    let catalogue = &blueprint.config.settings.prices.catalogue;
    let (mut document, mut failed) = (Vec::new(), false);
    for provider in named_providers(args, &blueprint)? {
        let model = catalogue.resolve_alias(&provider.model);
        let (good, said) = match factory.list_models(provider).await {
            Ok(listed) if listed.iter().any(|known| known.id == model) => {
                (true, format!("the server accepts the key and offers `{model}`"))
            }
            Ok(listed) => (
                false,
                format!(
                    "the server accepts the key, and does not list `{model}` among its {} models; `clawk provider models {}` shows them",
                    listed.len(),
                    provider.name
                ),
            ),
            Err(error) => (false, error.to_string()),
        };
        failed |= !good;
        let style = TerminalStyle::for_stdout();
        match args.format {
            Format::Json => document.push(json!({"provider": provider.name, "ok": good, "message": said})),
            Format::Human => {
                let word = if good {
                    style.green("ok  ")
                } else {
                    style.red("FAIL")
                };
                out::print_line(format!(
                    "{word}  {}: {}",
                    one_line(&provider.name),
                    one_line(&said)
                ))?;
            }
        }
    }
    if args.format == Format::Json {
        out::print_json(&json!({"ok": !failed, "providers": document}))?;
    }
    Ok(ExitCode::from(u8::from(failed)))
}

async fn list_models(args: &ModelsArgs, config: Option<&Path>) -> Result<ExitCode> {
    let blueprint = read_agent(args, config).await?;
    let providers = named_providers(args, &blueprint)?;
    let factory = blueprint.provider_factory();
    let catalogue = &blueprint.config.settings.prices.catalogue;
    let (mut errors, mut document) = (Vec::new(), Vec::new());
    for provider in providers {
        let listed = match factory.list_models(provider).await {
            Ok(listed) => listed,
            Err(error) => {
                out::print_note(error.to_string());
                errors.push(json!({
                    "code": "unavailable", "message": error.to_string(), "provider": provider.name,
                }));
                continue;
            }
        };
        let rows = listed.iter().map(|model| ModelRow {
            model,
            facts: catalogue.find_facts(&model.id),
            is_used: model.id == catalogue.resolve_alias(&provider.model),
        });
        match args.format {
            Format::Json => document.push(json!({
                "provider": provider.name, "models": rows.map(|row| row.to_json()).collect::<Vec<_>>(),
            })),
            Format::Human => print_provider(provider, rows)?,
        }
    }
    let failed = !errors.is_empty();
    if args.format == Format::Json {
        out::print_json(&match failed {
            false => json!({ "ok": true, "providers": document, "catalogue_date": catalogue.date() }),
            true => json!({
                "ok": false, "errors": errors, "providers": document, "catalogue_date": catalogue.date(),
            }),
        })?;
    }
    Ok(ExitCode::from(u8::from(failed)))
}

/// A server's model, and the catalogue's data about it.
struct ModelRow<'a> {
    model: &'a ListedModel,
    facts: Option<&'a ModelFacts>,
    /// The manifest uses it.
    is_used: bool,
}

impl ModelRow<'_> {
    /// Returns the window in tokens. The server's value comes before the catalogue's.
    fn window_tokens(&self) -> Option<u64> {
        self.model
            .window_tokens
            .or_else(|| self.facts.and_then(|facts| facts.window_tokens))
    }

    fn shutdown_date(&self) -> Option<&str> {
        let known = self.facts.and_then(|facts| facts.shutdown.as_deref());
        self.model.shutdown.as_deref().or(known)
    }

    fn to_json(&self) -> Value {
        json!({
            "id": self.model.id,
            "used": self.is_used,
            "window_tokens": self.window_tokens(),
            "price": self.facts.and_then(|facts| facts.price),
            "shutdown": self.shutdown_date(),
            "successor": self.facts.and_then(|facts| facts.successor.as_deref()),
        })
    }
}

fn print_provider<'a>(provider: &Provider, rows: impl Iterator<Item = ModelRow<'a>>) -> Result<()> {
    let paint = TerminalStyle::for_stdout();
    let rows: Vec<ModelRow<'a>> = rows.collect();
    let name = one_line(&provider.name).to_string();
    out::print_line(format!("{}: {} models", paint.bold(&name), rows.len()))?;
    for row in &rows {
        let mut facts = Vec::new();
        if row.is_used {
            facts.push("this agent's".to_owned());
        }
        if let Some(tokens) = row.window_tokens() {
            facts.push(format!("window {tokens} tokens"));
        }
        if let Some(price) = row.facts.and_then(|facts| facts.price) {
            let (input, output) = (format_dollars(price.input), format_dollars(price.output));
            facts.push(format!("{input} in, {output} out per million tokens"));
        }
        if let Some(day) = row.shutdown_date() {
            let instead = row.facts.and_then(|facts| facts.successor.as_deref());
            let instead = instead.map_or(String::new(), |successor| format!(", then `{successor}`"));
            facts.push(paint.yellow(&format!("shut down on {}{instead}", one_line(day))));
        }
        let facts = match facts.is_empty() {
            true => String::new(),
            false => format!("  {}", facts.join("; ")),
        };
        out::print_line(format!("  {}{facts}", one_line(&row.model.id)))?;
    }
    Ok(())
}

/// Formats millionths of a dollar.
fn format_dollars(microusd: u64) -> String {
    format!("${}.{:02}", microusd / 1_000_000, microusd % 1_000_000 / 10_000)
}
