//! Which executor each declared tool has (DESIGN §5): `clawk.toml`, else a built-in, else its MCP server, else the
//! kernel's own (composite). A tool without one is named, with the cure, and starting is refused.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use clawk_egress::{Client, Deadlines, Url};
use clawk_kernel::place;
use clawk_manifest::model::{Manifest, McpUri, Tool};
use clawk_sandbox::{Defaults, Launcher, Own, Plan, Spec, launch::MINIMAL_PATH};
use clawk_secrets::{Resolver, Secret};
use http::{HeaderMap, HeaderName, HeaderValue};

use crate::builtin::{Ask, Builtin, Clients, Extra, Shared};
use crate::config::{HttpTool, Reconcile, ToolConfig, ToolsConfig};
use crate::egress::{Egress, Exits, WayOut};
use crate::executor::{Command, Endpoint};
use crate::mcp::{self, McpTool, Server, Source};
use crate::mend::{self, Check, Get, Key, Mending};
use crate::runner::{Binding, Runner};

/// Largest answer of a declared endpoint, bytes.
const MAX_ENDPOINT_BYTES: u64 = 16 << 20;

/// What the machine gives to tools.
pub struct Host {
    /// Starts processes.
    pub launcher: Launcher,
    /// What a missing sandbox means here.
    pub defaults: Defaults,
    /// Secrets, and the environment for proxies and search path.
    pub secrets: Resolver,
    /// The folder that relative programs in `clawk.toml` start from.
    pub base: PathBuf,
    /// The agent's working directory; MCP servers start in it.
    pub workdir: PathBuf,
    /// What is the runtime's and not the tools', whatever is mounted.
    pub own: Own,
    /// How `ask-user` reaches a person.
    pub ask: Option<Ask>,
    /// Built-ins bound from outside, by name: `memory-store`, `memory-query`.
    pub extras: BTreeMap<String, Arc<dyn Extra>>,
    /// Where tools may go on this machine, and the secrets put in on their way.
    pub egress: Egress,
}

impl fmt::Debug for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Host")
            .field("base", &self.base)
            .field("extras", &self.extras.keys())
            .finish_non_exhaustive()
    }
}

/// A tool that can't run here, and what would mend it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("tool `{tool}`: {reason}")]
pub struct Unbound {
    /// The tool's name.
    pub tool: String,
    /// What is wrong, and the cure.
    pub reason: String,
}

/// Binds every declared tool. No server is started.
///
/// # Errors
/// All tools that have no usable executor, in the manifest's order.
pub fn bind(manifest: &Manifest, config: &ToolsConfig, host: Host) -> Result<Runner, Vec<Unbound>> {
    let declared = Plan::compile(manifest.sandbox.as_ref(), &host.defaults);
    let plan = Arc::new(declared.clone().keeping(&host.own, &host.workdir));
    let exits = Arc::new(Exits::new(host.egress.clone(), host.secrets.env().clone()));
    let mut binder = Binder {
        exits: Arc::clone(&exits),
        manifest,
        config,
        host: &host,
        plan,
        declared,
        servers: BTreeMap::new(),
    };
    let mut bound = BTreeMap::new();
    let mut unbound = Vec::new();
    let mut mending = BTreeMap::new();
    for tool in &manifest.tools {
        match binder.mending(tool) {
            Ok(ways) => {
                mending.insert(tool.name.clone(), ways);
            }
            Err(reason) => unbound.push(Unbound {
                tool: tool.name.clone(),
                reason,
            }),
        }
        match binder.tool(tool) {
            Ok(Some(binding)) => {
                bound.insert(tool.name.clone(), binding);
            }
            Ok(None) => {}
            Err(reason) => unbound.push(Unbound {
                tool: tool.name.clone(),
                reason,
            }),
        }
    }
    if !unbound.is_empty() {
        return Err(unbound);
    }
    let servers = binder.servers.into_values().collect();
    let env = host.secrets.env().clone();
    let shared = Shared {
        launcher: host.launcher,
        env,
        clients: Clients::default(),
        exits,
        ask: host.ask,
    };
    Ok(Runner::new(bound, mending, servers, shared))
}

struct Binder<'a> {
    exits: Arc<Exits>,
    manifest: &'a Manifest,
    config: &'a ToolsConfig,
    host: &'a Host,
    plan: Arc<Plan>,
    /// The manifest's plan, before anything is taken out of it.
    declared: Plan,
    servers: BTreeMap<McpUri, Arc<Server>>,
}

impl Binder<'_> {
    /// `None` for what the kernel runs itself.
    fn tool(&mut self, tool: &Tool) -> Result<Option<Binding>, String> {
        let own = ToolConfig::default();
        let config = self.config.tools.get(&tool.name).unwrap_or(&own);
        match (&config.command, &config.http, &config.wasm) {
            (Some(command), None, None) => {
                return self.command(command, config).map(Binding::Command).map(Some);
            }
            (None, Some(http), None) => return self.endpoint(http).map(Binding::Http).map(Some),
            (None, None, Some(module)) => return self.guest(module, config).map(Binding::Command).map(Some),
            (None, None, None) => {}
            _ => return Err("only one of `command`, `http` and `wasm` may be set".to_owned()),
        }
        if tool.composite {
            return Ok(None);
        }
        // A tool that names its server means that server, whatever it is called.
        if let Some(source) = &tool.mcp_source {
            let server = self.server(&source.uri)?;
            let (name, served_as) = (tool.name.clone(), source.tool_name.clone());
            return Ok(Some(Binding::Mcp(McpTool {
                server,
                name,
                served_as,
                trusted: config.trust_annotations,
            })));
        }
        if let Some(extra) = self.host.extras.get(&tool.name) {
            return Ok(Some(Binding::Extra(extra.clone())));
        }
        match Builtin::named(&tool.name) {
            Some(builtin) => Ok(Some(Binding::Builtin(builtin))),
            None => Err(format!(
                "nothing runs it; add `[tools.{}]` with `command = [\"program\"]` or `http` to clawk.toml, give it an `mcp_source`, or use a built-in's name",
                tool.name
            )),
        }
    }

    /// What finds out a tool's unknown outcomes.
    fn mending(&self, tool: &Tool) -> Result<Mending, String> {
        let Some(config) = self.config.tools.get(&tool.name) else {
            return Ok(Mending::default());
        };
        let key = config.idempotency_key.as_deref().map(Key::parse).transpose()?;
        let served = tool.mcp_source.is_some() && config.http.is_none();
        match &key {
            Some(Key::Header(_)) if config.http.is_none() => {
                return Err(
                    "`idempotency_key` names a header, and only an `http` executor has headers".to_owned(),
                );
            }
            Some(Key::Argument(_)) if config.command.is_none() && config.http.is_none() && !served => {
                return Err("`idempotency_key` goes with `command`, `http` and MCP tools".to_owned());
            }
            Some(_) | None => {}
        }
        let check = config.reconcile.as_ref().map(|given| self.check(given, config));
        Ok(Mending {
            key,
            check: check.transpose()?,
        })
    }

    fn check(&self, given: &Reconcile, config: &ToolConfig) -> Result<Check, String> {
        match (&given.command, &given.http, &given.tool) {
            (Some(command), None, None) => self.command(command, config).map(Check::Command),
            (None, Some(template), None) => {
                let url = Url::parse(&mend::fill(template, &serde_json::Map::new()))
                    .map_err(|error| format!("`reconcile.http` can't be read: {error}"))?;
                let own = config.http.as_ref().filter(|own| {
                    // Secrets of one place are not for another.
                    Url::parse(&own.url).is_ok_and(|own| own.origin() == url.origin())
                });
                let headers = match own {
                    Some(own) => {
                        let mut headers = plain_headers(&own.headers)?;
                        let secrets = self.secrets(&own.secret_headers)?;
                        headers.extend(secret_headers(&secrets, &own.secret_prefix)?);
                        headers
                    }
                    None => HeaderMap::new(),
                };
                Ok(Check::Http(Box::new(Get {
                    template: template.clone(),
                    headers,
                    client: self.client(&url)?,
                })))
            }
            (None, None, Some(name)) if self.manifest.tool(name).is_some() => Ok(Check::Tool(name.clone())),
            (None, None, Some(name)) => {
                Err(format!("`reconcile.tool` names `{name}`, which is not declared"))
            }
            _ => Err("`reconcile` has exactly one of `command`, `http` and `tool`".to_owned()),
        }
    }

    fn command(&self, command: &[String], config: &ToolConfig) -> Result<Command, String> {
        let [program, args @ ..] = command else {
            return Err("`command` is empty".to_owned());
        };
        if program.is_empty() {
            return Err("`command` names no program".to_owned());
        }
        let relative = program.contains('/') && !program.starts_with('/');
        let program = if relative {
            self.host.base.join(program).to_string_lossy().into_owned()
        } else {
            program.clone()
        };
        let secrets = self.secrets(&config.secret_env)?;
        Ok(Command {
            program,
            args: args.to_vec(),
            env: self.environment(&config.env),
            secrets,
            read_paths: self.read_paths(&[config]),
            guest: false,
        })
    }

    /// A WebAssembly file. It gets the variables that it is given, and no others.
    fn guest(&self, module: &std::path::Path, config: &ToolConfig) -> Result<Command, String> {
        let path = self.host.base.join(module);
        let path = path
            .canonicalize()
            .map_err(|error| format!("`wasm` names `{}`: {error}", path.display()))?;
        let variables = config
            .env
            .iter()
            .map(|(name, value)| (name.clone(), value.clone()));
        Ok(Command {
            program: path.to_string_lossy().into_owned(),
            args: Vec::new(),
            env: variables.collect(),
            secrets: self.secrets(&config.secret_env)?,
            read_paths: Vec::new(),
            guest: true,
        })
    }

    /// Relative ones start where relative programs do.
    fn read_paths(&self, configs: &[&ToolConfig]) -> Vec<PathBuf> {
        let all = configs.iter().flat_map(|config| &config.read_paths);
        all.map(|path| self.host.base.join(path)).collect()
    }

    fn endpoint(&self, http: &HttpTool) -> Result<Endpoint, String> {
        let url = Url::parse(&http.url).map_err(|error| format!("`http.url` can't be read: {error}"))?;
        let mut headers = plain_headers(&http.headers)?;
        let secrets = self.secrets(&http.secret_headers)?;
        headers.extend(secret_headers(&secrets, &http.secret_prefix)?);
        headers.insert(
            http::header::CONTENT_TYPE,
            HeaderValue::from_static("application/json"),
        );
        Ok(Endpoint {
            client: self.client(&url)?,
            url,
            headers,
        })
    }

    /// The server of a source: one for all tools that name it, with what `clawk.toml` grants to any of them.
    fn server(&mut self, uri: &McpUri) -> Result<Arc<Server>, String> {
        if let Some(server) = self.servers.get(uri) {
            return Ok(server.clone());
        }
        let sharing: Vec<&Tool> = self
            .manifest
            .tools
            .iter()
            .filter(|tool| tool.mcp_source.as_ref().is_some_and(|s| s.uri == *uri))
            .collect();
        let configs: Vec<&ToolConfig> = sharing
            .iter()
            .filter_map(|tool| self.config.tools.get(&tool.name))
            .collect();
        let (name, source, way) = match uri {
            McpUri::Stdio { path, args } => {
                let program = match path.strip_prefix("./") {
                    Some(below) => self.manifest.dir.join(below).to_string_lossy().into_owned(),
                    None => path.clone(),
                };
                let mut spec = Spec::new(program, self.plan_for(&sharing)?);
                spec.args.clone_from(args);
                spec.env = self.environment(&united(&configs, "env", |config| &config.env)?);
                let secrets = self.secrets(&united(&configs, "secret_env", |config| &config.secret_env)?)?;
                spec.env.extend(
                    secrets
                        .iter()
                        .map(|(name, secret)| (name.clone(), secret.expose().to_owned())),
                );
                spec.workdir = Some(self.host.workdir.clone());
                spec.read_paths = self.read_paths(&configs);
                let way = self.way_out(uri)?;
                way.dress(&mut spec);
                (
                    format!("stdio://{path}"),
                    Source::Program {
                        launcher: self.host.launcher.clone(),
                        spec: Box::new(spec),
                    },
                    way,
                )
            }
            McpUri::Http { url } => {
                let url =
                    Url::parse(url).map_err(|error| format!("`mcp_source.uri` can't be read: {error}"))?;
                let secrets = self.secrets(&united(&configs, "secret_headers", |config| {
                    &config.secret_headers
                })?)?;
                let headers = secret_headers(&secrets, "")?;
                let shown = format!(
                    "{}://{}{}",
                    url.scheme(),
                    url.host_str().unwrap_or_default(),
                    url.path()
                );
                let ledger = Arc::default();
                let way = WayOut::of_client(Arc::clone(&ledger));
                let endpoint = mcp::Endpoint {
                    client: self.client(&url)?.telling(ledger),
                    url,
                    headers,
                };
                (shown, Source::Endpoint(Box::new(endpoint)), way)
            }
        };
        let server = Arc::new(Server::new(name, source, way));
        self.servers.insert(uri.clone(), server.clone());
        Ok(server)
    }

    /// The plan of a server's process: without what policies close to every tool that it serves.
    fn plan_for(&self, served: &[&Tool]) -> Result<Arc<Plan>, String> {
        let Host { own, workdir, .. } = self.host;
        let closed = place::closed_to_all(&self.manifest.policies, served, workdir)
            .map_err(|error| error.to_string())?;
        let plan = self.declared.clone().denying(&closed.denied, &closed.open);
        Ok(Arc::new(plan.keeping(own, workdir)))
    }

    /// The way out of a server's process: with the secrets of every tool that it serves.
    fn way_out(&self, uri: &McpUri) -> Result<WayOut, String> {
        let tools = self.manifest.tools.iter();
        let served: Vec<&str> = tools
            .filter(|tool| tool.mcp_source.as_ref().is_some_and(|source| source.uri == *uri))
            .map(|tool| tool.name.as_str())
            .collect();
        self.exits
            .way_out(&served, &self.plan)
            .map_err(|refusal| refusal.to_string())
    }

    /// A declared endpoint may think for long: the call's own deadline ends it.
    fn client(&self, url: &Url) -> Result<Client, String> {
        let hour = 3_600_000;
        let deadlines = Deadlines {
            first_byte_ms: hour,
            idle_ms: hour,
            total_ms: hour,
            ..Deadlines::default()
        };
        Client::for_provider(url, self.host.secrets.env(), deadlines, MAX_ENDPOINT_BYTES)
            .map_err(|error| error.to_string())
    }

    /// Nothing but search path, home and language, and what the operator gives.
    fn environment(&self, given: &BTreeMap<String, String>) -> Vec<(String, String)> {
        let env = self.host.secrets.env();
        let mut all = BTreeMap::from([
            (
                "PATH".to_owned(),
                env.non_empty("PATH").unwrap_or_else(|| MINIMAL_PATH.to_owned()),
            ),
            (
                "HOME".to_owned(),
                env.non_empty("HOME")
                    .unwrap_or_else(|| self.host.workdir.to_string_lossy().into_owned()),
            ),
            (
                "LANG".to_owned(),
                env.non_empty("LANG").unwrap_or_else(|| "C.UTF-8".to_owned()),
            ),
        ]);
        all.extend(given.iter().map(|(name, value)| (name.clone(), value.clone())));
        all.into_iter().collect()
    }

    fn secrets(&self, named: &BTreeMap<String, String>) -> Result<Vec<(String, Secret)>, String> {
        let resolve = |(name, reference): (&String, &String)| {
            let secret = self
                .host
                .secrets
                .resolve(reference)
                .map_err(|error| error.to_string())?;
            Ok((name.clone(), secret))
        };
        named.iter().map(resolve).collect()
    }
}

type Texts = BTreeMap<String, String>;

/// What several tools of one server grant it, together; they must not contradict each other.
fn united(configs: &[&ToolConfig], what: &str, of: impl Fn(&ToolConfig) -> &Texts) -> Result<Texts, String> {
    let mut all = Texts::new();
    for (name, value) in configs.iter().flat_map(|config| of(config)) {
        if all
            .insert(name.clone(), value.clone())
            .is_some_and(|before| before != *value)
        {
            return Err(format!(
                "its server is shared, and another tool gives `{what}.{name}` another value"
            ));
        }
    }
    Ok(all)
}

fn plain_headers(given: &Texts) -> Result<HeaderMap, String> {
    given.iter().map(|(name, value)| header(name, value)).collect()
}

fn secret_headers(given: &[(String, Secret)], prefix: &str) -> Result<HeaderMap, String> {
    let sensitive = |(name, secret): &(String, Secret)| {
        let (name, mut value) = header(name, &format!("{prefix}{}", secret.expose()))?;
        value.set_sensitive(true);
        Ok((name, value))
    };
    given.iter().map(sensitive).collect()
}

fn header(name: &str, value: &str) -> Result<(HeaderName, HeaderValue), String> {
    let bad = || format!("`{name}` is no header, or its value can't be one");
    Ok((
        HeaderName::from_bytes(name.as_bytes()).map_err(|_invalid| bad())?,
        HeaderValue::from_str(value).map_err(|_invalid| bad())?,
    ))
}
