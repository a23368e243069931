//! `clawk mcp`: OAuth 2.1 tokens for the manifest's MCP servers.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use clawk_egress::Url;
use clawk_kernel::time::{Clock, SystemClock};
use clawk_manifest::Manifest;
use clawk_manifest::model::McpUri;
use clawk_secrets::{EnvironmentSource, SecretResolver};
use clawk_tools::oauth::{LoginMethod, LoginRequest, OAuthClient, Store, run_login};
use serde_json::{Value, json};

use crate::config::{AllowOutsideArgs, Config};
use crate::out::{self, Format, one_line};
use crate::state::server::StateConfig;
use crate::state::{Origin, StateLookup};
use crate::{compose, manifest};

/// Flags of `clawk mcp`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(subcommand)]
    what: McpCommand,
}

const EXAMPLES: &str = "\
Examples:
  clawk mcp add tickets https://mcp.example.com/mcp
  clawk mcp list claw.yaml                     servers, and whether there is a token for each
  clawk mcp login claw.yaml tickets            agree in a browser on this machine
  clawk mcp login claw.yaml tickets --device   agree with a code, on any device
  clawk mcp logout claw.yaml tickets           forget the token

SERVER is a tool that the server serves, or the server's address; leave it out where there is one
server. Tokens lie sealed in the agent's state directory, and are renewed while the agent runs.";

#[derive(Debug, clap::Subcommand)]
enum McpCommand {
    /// Declare an MCP server: its tools, a sandbox that fits it, and a rule that asks before its calls
    Add(super::edit::mcp_add::Args),
    /// List the servers that are reached over HTTP
    List {
        #[command(flatten)]
        which: McpManifestArgs,

        /// Output format
        #[arg(long, value_enum, default_value_t)]
        format: Format,
    },
    /// Have a token made for a server
    Login {
        #[command(flatten)]
        which: McpManifestArgs,

        /// The server: one of its tools, or its address
        #[arg(value_name = "SERVER")]
        server: Option<String>,

        /// Agree with a code on any device, instead of in a browser on this machine
        #[arg(long)]
        device: bool,

        /// Scopes to ask for [default: what the server says]
        #[arg(long, value_name = "SCOPES")]
        scope: Option<String>,

        /// By which clawk is registered there [default: it registers by itself]
        #[arg(long, value_name = "ID")]
        client_id: Option<String>,

        /// A reference to the secret that goes with it
        #[arg(long, value_name = "SECRET", requires = "client_id")]
        client_secret_ref: Option<String>,

        /// A host that belongs to the authorization server though its address does not say so
        #[arg(long, value_name = "HOST")]
        also_host: Vec<String>,
    },
    /// Forget a server's token
    Logout {
        #[command(flatten)]
        which: McpManifestArgs,

        /// The server: one of its tools, or its address
        #[arg(value_name = "SERVER")]
        server: Option<String>,
    },
}

/// Whose servers.
#[derive(Debug, clap::Args)]
struct McpManifestArgs {
    /// The manifest
    #[arg(value_name = "CLAW", value_parser = crate::manifest::manifest_path_parser())]
    manifest: PathBuf,

    /// State directory; default `$XDG_STATE_HOME/clawk/<agent>`
    #[arg(long, value_name = "DIR")]
    state: Option<PathBuf>,

    #[command(flatten)]
    outside: AllowOutsideArgs,
}

/// A manifest's servers, and their stored tokens.
struct ManifestServers {
    config: Config,
    resolver: SecretResolver,
    store: Store,
    /// Address of each server, and the tools that it serves.
    all: Vec<(Url, Vec<String>)>,
}

impl McpManifestArgs {
    fn load_servers(&self, config: Option<&Path>) -> Result<ManifestServers> {
        let config = Config::load(config, Some(&self.manifest))?.with_outside_access(self.outside);
        let (manifest, _) = manifest::load_valid_manifest(&self.manifest, &config)?;
        let origin = Origin::of_file(&self.manifest)?;
        let wanted = StateLookup {
            flag: self.state.as_deref(),
            configured: config.settings.state.as_ref().and_then(StateConfig::dir),
            agent: &manifest.metadata.name,
            origin: &origin,
        };
        let (state, note) = wanted.prepare_dir()?;
        if let Some(note) = note {
            out::print_note(&note);
        }
        let resolver = SecretResolver::new(
            &config.settings.secrets_store,
            &config.folder(),
            EnvironmentSource::Process,
        )?;
        Ok(ManifestServers {
            all: find_servers(&manifest)?,
            config,
            resolver,
            store: Store::of_state(&state),
        })
    }
}

fn find_servers(manifest: &Manifest) -> Result<Vec<(Url, Vec<String>)>> {
    let mut all: Vec<(Url, Vec<String>)> = Vec::new();
    for tool in &manifest.tools {
        let Some(McpUri::Http { url }) = tool.mcp_source.as_ref().map(|source| &source.uri) else {
            continue;
        };
        let url = Url::parse(url).with_context(|| format!("tool `{}`", tool.name))?;
        match all.iter_mut().find(|(known, _)| *known == url) {
            Some((_, tools)) => tools.push(tool.name.clone()),
            None => all.push((url, vec![tool.name.clone()])),
        }
    }
    Ok(all)
}

impl ManifestServers {
    fn find_server(&self, name: Option<&str>) -> Result<&Url> {
        let fits = |(url, tools): &&(Url, Vec<String>)| match name {
            Some(name) => url.as_str() == name || tools.iter().any(|tool| tool == name),
            None => true,
        };
        let found: Vec<&Url> = self.all.iter().filter(fits).map(|(url, _)| url).collect();
        match (found.as_slice(), name) {
            ([one], _) => Ok(one),
            ([], None) => bail!("the manifest names no MCP server that is reached over HTTP"),
            ([], Some(name)) => {
                bail!("no MCP server over HTTP is, or serves, `{name}`; `clawk mcp list` shows them")
            }
            _ => bail!("there are several servers: say which, by one of its tools or its address"),
        }
    }

    fn print_servers(&self, format: Format) -> Result<ExitCode> {
        let now_s = SystemClock::default().now().as_millis() / 1000;
        let mut facts = Vec::new();
        for (url, tools) in &self.all {
            let kept = self.store.read(url.as_str())?;
            let state = match &kept {
                None => "no token",
                Some(kept) if kept.is_renewable() || kept.until_s.is_none_or(|until| now_s < until) => {
                    "token"
                }
                Some(_) => "expired",
            };
            let fact = json!({"server": url.as_str(), "tools": tools, "state": state,
                "issuer": kept.as_ref().map(clawk_tools::oauth::TokenRecord::issuer),
                "scope": kept.as_ref().and_then(|kept| kept.scope.as_deref())});
            facts.push((url, state, tools, fact));
        }
        if format == Format::Json {
            let all: Vec<Value> = facts.into_iter().map(|(.., fact)| fact).collect();
            out::print_json(&json!({ "servers": all }))?;
            return Ok(ExitCode::SUCCESS);
        }
        if facts.is_empty() {
            out::print_line("the manifest names no MCP server that is reached over HTTP")?;
        }
        for (url, state, tools, _) in facts {
            out::print_line(format!(
                "{state}  {}  {}",
                one_line(url.as_str()),
                tools.join(", ")
            ))?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Lists servers, gets a token, or deletes one.
pub(crate) fn run(args: &Args, config: Option<&Path>) -> Result<ExitCode> {
    match &args.what {
        McpCommand::Add(args) => super::edit::mcp_add::run(args, config),
        McpCommand::List { which, format } => which.load_servers(config)?.print_servers(*format),
        McpCommand::Logout { which, server } => {
            let servers = which.load_servers(config)?;
            let url = servers.find_server(server.as_deref())?;
            if !servers.store.forget_token(url.as_str())? {
                bail!("there is no token for {url}");
            }
            out::print_line(format!("forgotten: {url}"))?;
            Ok(ExitCode::SUCCESS)
        }
        McpCommand::Login {
            which,
            server,
            device,
            scope,
            client_id,
            client_secret_ref,
            also_host,
        } => {
            let servers = which.load_servers(config)?;
            let secret = client_secret_ref
                .as_deref()
                .map(|name| servers.resolver.resolve(name))
                .transpose()?;
            let asked = LoginRequest {
                server: servers.find_server(server.as_deref())?.clone(),
                way: if *device {
                    LoginMethod::Device
                } else {
                    LoginMethod::Browser
                },
                scope: scope.clone(),
                client_id: client_id.clone(),
                client_secret: secret.map(|secret| secret.expose().trim().to_owned()),
                also_hosts: also_host.clone(),
            };
            let web = OAuthClient::new(
                &servers.config.settings.egress.allow_private,
                servers.resolver.env(),
            )?;
            let clock: Arc<dyn Clock> = Arc::new(SystemClock::default());
            let tell = |text: &str| out::notes(&out::sanitize_block(text));
            let entry = compose::build_runtime()?.block_on(run_login(&web, &asked, &clock, &tell))?;
            servers.store.write(&entry)?;
            out::print_line(format!(
                "there is a token for {} now, by {}",
                asked.server,
                one_line(entry.issuer())
            ))?;
            Ok(ExitCode::SUCCESS)
        }
    }
}
