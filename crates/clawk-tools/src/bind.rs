//! Chooses the executor of each declared tool (DESIGN §5): from `clawk.toml`, else a built-in, else its MCP server, else the kernel
//! itself (composite tools). For a tool without an executor, the start is refused with a message that says how to fix it.
//!
//! Long because each kind of executor is bound here, by the same settings.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clawk_egress::{ClientDeadlines, EgressClient, HostAllowList, Url};
use clawk_kernel::place;
use clawk_manifest::model::{Manifest, McpUri, Sandbox, Tool, builtin_tool_help};
use clawk_plan::{Plan, PlanDefaults, RuntimeFiles, plan::MINIMAL_PATH};
use clawk_sandbox::{Launcher, Spec};
use clawk_secrets::{Secret, SecretResolver};
use http::{HeaderMap, HeaderName, HeaderValue};

use crate::builtin::{
    self, AskUserHandler, BuiltinContext, BuiltinTool, ExternalBuiltin, GuardedClients, SearchEndpoint,
};
use crate::config::{
    A2aTool, HttpTool, ReconcileConfig, SamplingConfig, SearchConfig, ToolConfig, ToolsConfig,
};
use crate::egress::{EgressProxies, EgressSettings, WayOut, host_port};
use crate::executor::{A2aEndpoint, Command, Endpoint};
use crate::mcp::{self, McpClientContext, McpServer, McpServerSource, McpTool};
use crate::mend::{self, IdempotencyKeySlot, ReconcileCheck, ReconcileEndpoint, ReconcilePlan};
use crate::oauth::{OAuthClient, Store, Tokens};
use crate::runner::{ExecutorBinding, Runner};

/// The maximum size of a declared endpoint's answer, in bytes.
pub(crate) const MAX_ENDPOINT_BYTES: u64 = 16 << 20;

/// What this machine provides to tools.
pub struct ToolHost {
    /// Starts sandboxed processes.
    pub launcher: Launcher,
    /// The defaults for an agent whose manifest declares no sandbox.
    pub defaults: PlanDefaults,
    /// Resolves secrets; also the environment for proxies and the search path.
    pub secrets: SecretResolver,
    /// The folder to which relative program paths in `clawk.toml` refer.
    pub base: PathBuf,
    /// The agent's working directory; MCP servers start in it.
    pub workdir: PathBuf,
    /// Files of the runtime that tools must not change, whatever is mounted.
    pub own: RuntimeFiles,
    /// How `ask-user` asks a person; `None`: it can't.
    pub ask: Option<AskUserHandler>,
    /// Built-ins that other crates implement, by name: `memory-store`, `memory-query`.
    pub extras: BTreeMap<String, Arc<dyn ExternalBuiltin>>,
    /// Network access of tools on this machine, and the secrets that are inserted into requests.
    pub egress: EgressSettings,
    /// The agent's time zone.
    pub timezone: jiff::tz::TimeZone,
}

impl fmt::Debug for ToolHost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Host")
            .field("base", &self.base)
            .field("extras", &self.extras.keys())
            .finish_non_exhaustive()
    }
}

/// A tool that can't run here, and how to fix it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("tool `{tool}`: {reason}")]
pub struct UnboundTool {
    /// The tool's name.
    pub tool: String,
    /// The problem, and how to fix it.
    pub reason: String,
}

/// Binds every declared tool to its executor. Starts no server.
///
/// # Errors
/// All tools without a usable executor, in the manifest's order.
pub fn bind_tools(
    manifest: &Manifest,
    config: &ToolsConfig,
    host: ToolHost,
) -> Result<Runner, Vec<UnboundTool>> {
    let exits = Arc::new(EgressProxies::new(
        host.egress.clone(),
        host.secrets.env().clone(),
    ));
    let mut binder = ToolBinder {
        exits: Arc::clone(&exits),
        manifest,
        config,
        host: &host,
        servers: BTreeMap::new(),
    };
    let mut bound = BTreeMap::new();
    let mut unbound = Vec::new();
    let mut mending = BTreeMap::new();
    for tool in &manifest.tools {
        match binder.reconcile_plan(tool) {
            Ok(ways) => {
                mending.insert(tool.name.clone(), ways);
            }
            Err(reason) => unbound.push(UnboundTool {
                tool: tool.name.clone(),
                reason,
            }),
        }
        match binder.bind_tool(tool) {
            Ok(Some(binding)) => {
                bound.insert(tool.name.clone(), binding);
            }
            Ok(None) => {}
            Err(reason) => unbound.push(UnboundTool {
                tool: tool.name.clone(),
                reason,
            }),
        }
    }
    if !unbound.is_empty() {
        return Err(unbound);
    }
    let shell = binder.plan_of(manifest.tool(BuiltinTool::Shell.name()));
    let servers = binder.servers.into_values().collect();
    let env = host.secrets.env().clone();
    let shared = BuiltinContext {
        shell: builtin::about_shell(&shell, &host.workdir),
        launcher: host.launcher,
        env,
        clients: GuardedClients::default(),
        exits,
        ask: host.ask,
        clock: Arc::new(clawk_kernel::time::SystemClock::default()),
        timezone: host.timezone,
    };
    Ok(Runner::new(bound, mending, servers, shared))
}

pub(crate) struct ToolBinder<'a> {
    pub(crate) exits: Arc<EgressProxies>,
    pub(crate) manifest: &'a Manifest,
    pub(crate) config: &'a ToolsConfig,
    pub(crate) host: &'a ToolHost,
    /// MCP servers by source and sandbox: the same server in another sandbox is another process.
    pub(crate) servers: BTreeMap<ServerPlacement, Arc<McpServer>>,
}

/// A server's source, and the name of the sandbox in which it runs.
pub(crate) type ServerPlacement = (McpUri, Option<String>);

impl ToolBinder<'_> {
    /// The plan of a tool's sandbox. `None`, and a tool without a sandbox, get the default plan.
    fn plan_of(&self, tool: Option<&Tool>) -> Plan {
        let sandbox = match tool {
            Some(tool) => self.manifest.sandbox_of(tool),
            None => self.manifest.sandbox.as_ref(),
        };
        Plan::compile(sandbox, &self.host.defaults).with_runtime_files(&self.host.own, &self.host.workdir)
    }

    /// The binding of one tool; `None` for tools that the kernel runs itself.
    fn bind_tool(&mut self, tool: &Tool) -> Result<Option<ExecutorBinding>, String> {
        let own = ToolConfig::default();
        let config = self.config.tools.get(&tool.name).unwrap_or(&own);
        check_builtin_settings(tool, config)?;
        if let Some(other) = &config.a2a {
            if config.command.is_some() || config.http.is_some() || config.wasm.is_some() {
                return Err("only one of `command`, `http`, `wasm` and `a2a` may be set".to_owned());
            }
            if config.argv || config.start_in.is_some() {
                return Err("`argv` and `start_in` go with `command` alone".to_owned());
            }
            return self.a2a_endpoint(other).map(ExecutorBinding::A2a).map(Some);
        }
        match (&config.command, &config.http, &config.wasm) {
            (Some(command), None, None) => {
                let plan = self.plan_of(Some(tool));
                return self
                    .build_command(command, config, &plan)
                    .map(ExecutorBinding::Command)
                    .map(Some);
            }
            (None, ..) | (_, Some(_), _) | (_, _, Some(_)) if config.argv || config.start_in.is_some() => {
                return Err("`argv` and `start_in` go with `command` alone".to_owned());
            }
            (None, Some(http), None) => return self.http_endpoint(http).map(ExecutorBinding::Http).map(Some),
            (None, None, Some(module)) => {
                return self
                    .guest_command(module, config)
                    .map(ExecutorBinding::Command)
                    .map(Some);
            }
            (None, None, None) => {}
            _ => return Err("only one of `command`, `http`, `wasm` and `a2a` may be set".to_owned()),
        }
        if tool.composite {
            return Ok(None);
        }
        // A tool with an `mcp_source` is served by that server, whatever its name is.
        if let Some(source) = &tool.mcp_source {
            let server = self.mcp_server(&source.uri, tool)?;
            let (name, served_as) = (tool.name.clone(), source.tool_name.clone());
            return Ok(Some(ExecutorBinding::Mcp(McpTool {
                server,
                name,
                served_as,
                trusted: config.trust_annotations,
            })));
        }
        if let Some(extra) = self.host.extras.get(&tool.name) {
            return Ok(Some(ExecutorBinding::Extra(extra.clone())));
        }
        match BuiltinTool::from_name(&tool.name) {
            Some(BuiltinTool::WebSearch) => self.search_endpoint(tool, config.search.as_ref()).map(Some),
            Some(builtin) => Ok(Some(ExecutorBinding::Builtin(builtin))),
            None => Err(format!(
                "nothing runs it; add `[tools.{}]` with `command = [\"program\"]` or `http` to clawk.toml, give it an `mcp_source`, or use a built-in's name: {}",
                tool.name,
                builtin_tool_help(&tool.name)
            )),
        }
    }

    /// Binds `web-search` to the declared provider.
    fn search_endpoint(&self, tool: &Tool, config: Option<&SearchConfig>) -> Result<ExecutorBinding, String> {
        let Some(config) = config else {
            return Err(
                "it has no search provider; write `[tools.web-search.search]` with `provider = \"brave\"` and `secret_ref = \"BRAVE_API_KEY\"` \
                 to clawk.toml (also `tavily`, `kagi`; `searxng` with the `url` of your server)"
                    .to_owned(),
            );
        };
        let key = config.secret_ref.as_deref();
        let key = key
            .map(|reference| self.host.secrets.resolve(reference))
            .transpose();
        let endpoint = SearchEndpoint::new(config, key.map_err(|error| error.to_string())?)?;
        let plan = self.plan_of(Some(tool));
        let host = endpoint.url.host_str().unwrap_or_default().to_owned();
        endpoint.preflight(&plan).map_err(|refusal| {
            format!(
                "its sandbox does not let it reach its provider: {refusal}; in the tool's sandbox, write `network: {{ mode: allowlist, \
                 allowed_hosts: [{host}] }}`"
            )
        })?;
        let closed = || {
            format!(
                "its provider is in a private network; open it in clawk.toml: `[egress] allow_private = [\"{host}:{}\"]`",
                endpoint.url.port_or_known_default().unwrap_or(0)
            )
        };
        let place = host_port(&endpoint.url);
        let private = place.host == "localhost"
            || place
                .literal_address()
                .is_some_and(|address| clawk_proto::place::address::judge_address(address).is_err());
        let judged = self.exits.network_rules(plan.network()).judge_url(&endpoint.url);
        if private && !judged.is_ok_and(|target| target.private) {
            return Err(closed());
        }
        Ok(ExecutorBinding::Search(endpoint))
    }

    /// How unknown outcomes of this tool are reconciled.
    fn reconcile_plan(&self, tool: &Tool) -> Result<ReconcilePlan, String> {
        let Some(config) = self.config.tools.get(&tool.name) else {
            return Ok(ReconcilePlan::default());
        };
        let key = config
            .idempotency_key
            .as_deref()
            .map(IdempotencyKeySlot::parse)
            .transpose()?;
        let served = tool.mcp_source.is_some() && config.http.is_none();
        if let Some(sampling) = &config.sampling {
            self.sampling_faults(sampling, served)?;
        }
        match &key {
            Some(IdempotencyKeySlot::Header(_)) if config.http.is_none() => {
                return Err(
                    "`idempotency_key` names a header, and only an `http` executor has headers".to_owned(),
                );
            }
            Some(IdempotencyKeySlot::Argument(_))
                if config.command.is_none() && config.http.is_none() && !served =>
            {
                return Err("`idempotency_key` goes with `command`, `http` and MCP tools".to_owned());
            }
            Some(_) | None => {}
        }
        let check = config
            .reconcile
            .as_ref()
            .map(|given| self.reconcile_check(given, config, &self.plan_of(Some(tool))));
        Ok(ReconcilePlan {
            key,
            check: check.transpose()?,
        })
    }

    fn reconcile_check(
        &self,
        given: &ReconcileConfig,
        config: &ToolConfig,
        plan: &Plan,
    ) -> Result<ReconcileCheck, String> {
        match (&given.command, &given.http, &given.tool) {
            (Some(command), None, None) => self
                .build_command(command, config, plan)
                .map(ReconcileCheck::Command),
            (None, Some(template), None) => {
                let url = Url::parse(&mend::fill_template(template, &serde_json::Map::new()))
                    .map_err(|error| format!("`reconcile.http` can't be read: {error}"))?;
                let own = config.http.as_ref().filter(|own| {
                    // Headers with secrets are only for the same origin.
                    Url::parse(&own.url).is_ok_and(|own| own.origin() == url.origin())
                });
                let headers = match own {
                    Some(own) => {
                        let mut headers = plain_headers(&own.headers)?;
                        let secrets = self.resolve_secrets(&own.secret_headers)?;
                        headers.extend(secret_headers(&secrets, &own.secret_prefix)?);
                        headers
                    }
                    None => HeaderMap::new(),
                };
                Ok(ReconcileCheck::Http(Box::new(ReconcileEndpoint {
                    template: template.clone(),
                    headers,
                    client: self.endpoint_client(&url)?,
                })))
            }
            (None, None, Some(name)) if self.manifest.tool(name).is_some() => {
                Ok(ReconcileCheck::Tool(name.clone()))
            }
            (None, None, Some(name)) => {
                Err(format!("`reconcile.tool` names `{name}`, which is not declared"))
            }
            _ => Err("`reconcile` has exactly one of `command`, `http` and `tool`".to_owned()),
        }
    }

    pub(crate) fn build_command(
        &self,
        command: &[String],
        config: &ToolConfig,
        plan: &Plan,
    ) -> Result<Command, String> {
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
        let secrets = self.resolve_secrets(&config.secret_env)?;
        Ok(Command {
            program,
            args: args.to_vec(),
            env: self.command_environment(&config.env, plan),
            secrets,
            read_paths: self.read_paths(&[config]),
            guest: false,
            argv: config.argv,
            start_in: config.start_in.as_ref().map(|folder| self.host.base.join(folder)),
        })
    }

    /// Binds a WebAssembly file. The guest gets only the configured environment variables.
    fn guest_command(&self, module: &std::path::Path, config: &ToolConfig) -> Result<Command, String> {
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
            secrets: self.resolve_secrets(&config.secret_env)?,
            read_paths: Vec::new(),
            guest: true,
            argv: false,
            start_in: None,
        })
    }

    /// Resolves relative paths against the same folder as relative programs.
    fn read_paths(&self, configs: &[&ToolConfig]) -> Vec<PathBuf> {
        let all = configs.iter().flat_map(|config| &config.read_paths);
        all.map(|path| self.host.base.join(path)).collect()
    }

    fn http_endpoint(&self, http: &HttpTool) -> Result<Endpoint, String> {
        let url = Url::parse(&http.url).map_err(|error| format!("`http.url` can't be read: {error}"))?;
        let mut headers = plain_headers(&http.headers)?;
        let secrets = self.resolve_secrets(&http.secret_headers)?;
        headers.extend(secret_headers(&secrets, &http.secret_prefix)?);
        headers.insert(
            http::header::CONTENT_TYPE,
            HeaderValue::from_static("application/json"),
        );
        Ok(Endpoint {
            client: self.endpoint_client(&url)?,
            url,
            headers,
        })
    }

    /// Binds another agent. Only the origin that the operator wrote is used.
    fn a2a_endpoint(&self, other: &A2aTool) -> Result<A2aEndpoint, String> {
        let base = Url::parse(&other.url).map_err(|error| format!("`a2a.url` can't be read: {error}"))?;
        let secrets = self.resolve_secrets(&other.secret_headers)?;
        Ok(A2aEndpoint {
            headers: secret_headers(&secrets, &other.secret_prefix)?,
            client: self.endpoint_client(&base)?,
            base,
            card: tokio::sync::OnceCell::new(),
        })
    }

    /// The server of a source. All tools that name it share one server, which gets everything that `clawk.toml` grants to any of
    /// them.
    pub(crate) fn mcp_server(&mut self, uri: &McpUri, tool: &Tool) -> Result<Arc<McpServer>, String> {
        let sandbox = self.manifest.sandbox_of(tool);
        let place = (uri.clone(), sandbox.map(|sandbox| sandbox.name.clone()));
        if let Some(server) = self.servers.get(&place) {
            return Ok(server.clone());
        }
        let sharing = self.tools_sharing_server(&place);
        let plan = self.plan_for(sandbox, &sharing)?;
        let sharing: Vec<&str> = sharing.iter().map(|tool| tool.name.as_str()).collect();
        let configs: Vec<&ToolConfig> = sharing
            .iter()
            .filter_map(|name| self.config.tools.get(*name))
            .collect();
        let (name, source, way, roots) = match uri {
            McpUri::Stdio { path, args } => {
                let program = match path.strip_prefix("./") {
                    Some(below) => self.manifest.dir.join(below).to_string_lossy().into_owned(),
                    None => path.clone(),
                };
                let mut spec = Spec::new(program, plan.clone());
                spec.args.clone_from(args);
                spec.env =
                    self.command_environment(&merge_texts(&configs, "env", |config| &config.env)?, &plan);
                let secrets =
                    self.resolve_secrets(&merge_texts(&configs, "secret_env", |config| &config.secret_env)?)?;
                spec.env.extend(
                    secrets
                        .iter()
                        .map(|(name, secret)| (name.clone(), secret.expose().to_owned())),
                );
                spec.workdir = Some(self.host.workdir.clone());
                spec.read_paths = self.read_paths(&configs);
                let way = self.exits.way_out(&sharing, &plan);
                let way = way.map_err(|refusal| refusal.to_string())?;
                way.add_to_spec(&mut spec);
                (
                    format!("stdio://{path}"),
                    McpServerSource::Program {
                        launcher: self.host.launcher.clone(),
                        spec: Box::new(spec),
                    },
                    way,
                    mcp::plan_roots(&plan, &self.host.workdir),
                )
            }
            McpUri::Http { url } => {
                let url =
                    Url::parse(url).map_err(|error| format!("`mcp_source.uri` can't be read: {error}"))?;
                let secrets = self.resolve_secrets(&merge_texts(&configs, "secret_headers", |config| {
                    &config.secret_headers
                })?)?;
                let headers = secret_headers(&secrets, "")?;
                let shown = redacted_url(&url);
                let ledger = Arc::default();
                let way = WayOut::of_client(Arc::clone(&ledger));
                let endpoint = mcp::Endpoint {
                    client: self.guarded_client(&plan)?.with_ledger(ledger),
                    tokens: self.stored_tokens(&url)?,
                    url,
                    headers,
                    plan,
                };
                // Local folders mean nothing to a remote server.
                let source = McpServerSource::Endpoint(Box::new(endpoint));
                (shown, source, way, Vec::new())
            }
        };
        let desk = McpClientContext::new(
            name.clone(),
            roots,
            self.host.ask.clone(),
            self.sampling_config(&place),
        );
        let server = Arc::new(McpServer::new(name, source, way, desk));
        self.servers.insert(place, server.clone());
        Ok(server)
    }

    /// # Errors
    /// A `sampling` setting that has no effect.
    fn sampling_faults(&self, sampling: &SamplingConfig, served: bool) -> Result<(), String> {
        if !served {
            return Err("`sampling` goes with tools of MCP servers".to_owned());
        }
        if sampling.per_call == 0 || sampling.max_tokens == 0 {
            return Err("`sampling.per_call` and `sampling.max_tokens` are at least 1".to_owned());
        }
        match &sampling.provider {
            Some(name) if self.manifest.provider(name).is_none() => Err(format!(
                "`sampling.provider` names `{name}`, which is not declared"
            )),
            Some(_) | None => Ok(()),
        }
    }

    /// The limits for the server's requests to a model: those of its first tool that allows any.
    fn sampling_config(&self, place: &ServerPlacement) -> Option<SamplingConfig> {
        let tools = self.tools_sharing_server(place).into_iter();
        let mut configs = tools.filter_map(|tool| self.config.tools.get(&tool.name));
        configs.find_map(|config| config.sampling.clone())
    }

    /// The OAuth tokens for a server; `None` if this agent has no state directory.
    fn stored_tokens(&self, url: &Url) -> Result<Option<Arc<Tokens>>, String> {
        let Some(state) = &self.host.own.state else {
            return Ok(None);
        };
        let web = OAuthClient::new(&self.host.egress.allow_private, self.host.secrets.env());
        let web = web.map_err(|error| error.to_string())?;
        let clock = Arc::new(clawk_kernel::time::SystemClock::default());
        Ok(Some(Arc::new(Tokens::new(
            Store::of_state(state),
            web,
            clock,
            url.as_str(),
        ))))
    }

    /// The declared tools that one server serves.
    fn tools_sharing_server(&self, (uri, sandbox): &ServerPlacement) -> Vec<&Tool> {
        let here = |tool: &&Tool| {
            let own = self.manifest.sandbox_of(tool).map(|own| &own.name);
            tool.mcp_source.as_ref().is_some_and(|source| source.uri == *uri) && own == sandbox.as_ref()
        };
        self.manifest.tools.iter().filter(here).collect()
    }

    /// The plan of a server's process, minus everything that policies deny to all of its tools.
    fn plan_for(&self, sandbox: Option<&Sandbox>, served: &[&Tool]) -> Result<Arc<Plan>, String> {
        let ToolHost { own, workdir, .. } = self.host;
        let closed = place::closed_to_all(&self.manifest.policies, served, workdir)
            .map_err(|error| error.to_string())?;
        let plan = Plan::compile(sandbox, &self.host.defaults).with_denied(&closed.denied, &closed.open);
        Ok(Arc::new(plan.with_runtime_files(own, workdir)))
    }

    /// The HTTP client for an MCP endpoint, limited by the network rules of its tools' sandbox.
    fn guarded_client(&self, plan: &Plan) -> Result<EgressClient, String> {
        let rules = HostAllowList {
            max_response_bytes: MAX_ENDPOINT_BYTES,
            max_redirects: 0,
            ..self.exits.network_rules(plan.network())
        };
        EgressClient::with_allow_list(rules, self.host.secrets.env(), long_deadlines())
            .map_err(|error| error.to_string())
    }

    fn endpoint_client(&self, url: &Url) -> Result<EgressClient, String> {
        EgressClient::for_provider(url, self.host.secrets.env(), long_deadlines(), MAX_ENDPOINT_BYTES)
            .map_err(|error| error.to_string())
    }

    /// The environment of a process: search path, home, language, and the variables that the operator configured; nothing else.
    fn command_environment(&self, given: &BTreeMap<String, String>, plan: &Plan) -> Vec<(String, String)> {
        let env = self.host.secrets.env();
        let workdir = &self.host.workdir;
        let home = env
            .non_empty("HOME")
            .unwrap_or_else(|| workdir.to_string_lossy().into_owned());
        // The host's home if the tool can see it; otherwise a home of its own.
        let home = match plan.private_home() {
            Some(own) if !plan.shows_path(Path::new(&home), workdir) => own.to_owned(),
            Some(_) | None => home,
        };
        let mut all = BTreeMap::from([
            (
                "PATH".to_owned(),
                env.non_empty("PATH").unwrap_or_else(|| MINIMAL_PATH.to_owned()),
            ),
            ("HOME".to_owned(), home),
            (
                "LANG".to_owned(),
                env.non_empty("LANG").unwrap_or_else(|| "C.UTF-8".to_owned()),
            ),
        ]);
        all.extend(given.iter().map(|(name, value)| (name.clone(), value.clone())));
        all.into_iter().collect()
    }

    fn resolve_secrets(&self, named: &BTreeMap<String, String>) -> Result<Vec<(String, Secret)>, String> {
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

/// Checks the settings of a tool with a built-in's name: `search` is for `web-search` alone, and another program needs a schema.
fn check_builtin_settings(tool: &Tool, config: &ToolConfig) -> Result<(), String> {
    if config.search.is_some()
        && (tool.name != BuiltinTool::WebSearch.name() || tool.mcp_source.is_some() || tool.composite)
    {
        return Err("`search` goes with the built-in `web-search` alone".to_owned());
    }
    let elsewhere = config.command.is_some() || config.http.is_some() || config.wasm.is_some();
    if elsewhere || config.a2a.is_some() {
        if config.search.is_some() {
            return Err("only one of `command`, `http`, `wasm`, `a2a` and `search` may be set".to_owned());
        }
        let of_builtin = BuiltinTool::from_name(&tool.name).is_some() && !tool.composite;
        if of_builtin && tool.mcp_source.is_none() && tool.input_schema.is_none() && config.a2a.is_none() {
            return Err(format!(
                "`[tools.{}]` of clawk.toml runs it instead of the built-in, and nothing says what it takes; give it `description` and \
                 `input_schema` in the manifest",
                tool.name
            ));
        }
    }
    Ok(())
}

/// A URL without the parts that may contain secrets.
fn redacted_url(url: &Url) -> String {
    let host = url.host_str().unwrap_or_default();
    format!("{}://{host}{}", url.scheme(), url.path())
}

/// Long deadlines for a declared endpoint: the call's own deadline ends it.
pub(crate) fn long_deadlines() -> ClientDeadlines {
    let hour = 3_600_000;
    ClientDeadlines {
        first_byte_ms: hour,
        idle_ms: hour,
        total_ms: hour,
        ..ClientDeadlines::default()
    }
}

type TextsByName = BTreeMap<String, String>;

/// Merges what several tools of one server grant it. Contradictions are an error.
fn merge_texts(
    configs: &[&ToolConfig],
    what: &str,
    of: impl Fn(&ToolConfig) -> &TextsByName,
) -> Result<TextsByName, String> {
    let mut all = TextsByName::new();
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

fn plain_headers(given: &TextsByName) -> Result<HeaderMap, String> {
    given
        .iter()
        .map(|(name, value)| parse_header(name, value))
        .collect()
}

fn secret_headers(given: &[(String, Secret)], prefix: &str) -> Result<HeaderMap, String> {
    let sensitive = |(name, secret): &(String, Secret)| {
        let (name, mut value) = parse_header(name, &format!("{prefix}{}", secret.expose()))?;
        value.set_sensitive(true);
        Ok((name, value))
    };
    given.iter().map(sensitive).collect()
}

fn parse_header(name: &str, value: &str) -> Result<(HeaderName, HeaderValue), String> {
    let bad = || format!("`{name}` is not a valid header, or its value can't be one");
    Ok((
        HeaderName::from_bytes(name.as_bytes()).map_err(|_invalid| bad())?,
        HeaderValue::from_str(value).map_err(|_invalid| bad())?,
    ))
}
