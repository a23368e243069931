//! The composition root: builds the dependencies of an agent from a manifest and a configuration. It decides nothing.
//!
//! Long because it names every dependency of an agent once, in the order in which they need each other.

mod agent;
pub(crate) mod channels;
mod egress;
pub(crate) mod lacks;
mod launch;
mod members;
mod memory;
mod models;
pub(crate) mod own;
mod ready;
pub(crate) mod telemetry;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, OnceLock};

use crate::peers;
use crate::state::kept::{self, SharingPolicy, StateDir};
use anyhow::{Context, Result};
use clawk_kernel::ports::{ModelProvider, TokenKey};
use clawk_kernel::time::{Clock as _, SystemClock};
use clawk_kernel::witness::digest_of;
use clawk_kernel::{
    AgentDependencies, AtlasSettings, ModelOptions, Options, ResultExcerpt, StartError, SwarmOptions,
};
use clawk_manifest::model::{Identity, ProviderProtocol};
use clawk_manifest::{Manifest, SourceFiles};
use clawk_plan::RuntimeFiles;
use clawk_providers::{ProviderFactory, ScriptAccess, discover_provider};
use clawk_sandbox::Launcher;
use clawk_secrets::{EnvironmentSource, ResolvedSecrets, SecretResolver};
use clawk_server::peers::RemoteMembers;
use clawk_tools::origins::FileProvenanceStore;
use clawk_tools::undo::UndoStore;
use clawk_tools::{AskUserHandler, ExternalBuiltin, Runner, ToolHost, bind_tools};
use tokio::runtime::Runtime;

pub(crate) use agent::{Agent, Request, start_agent, unknown_effects};
pub(crate) use egress::of_servers;
pub(crate) use launch::{AgentSource, LaunchedAgentFactory, WireAgentFactory};

use crate::activity::ActivityFollower;
use crate::atlases;
use crate::config::{self, Config, DecisionDurability, Settings};
use crate::keeper::StateKeeper;
use crate::state::server::{StateConfig, StateServer};
use crate::state::{Origin, StateLookup};
use crate::trust::{self, TrustConsent};
use crate::{audit, build, manifest, out};

/// Folder in the state directory for backups of what calls overwrote.
pub(crate) const UNDO: &str = "undo";

/// Folder in the state directory for the provenance of files with untrusted text.
pub(crate) const ORIGINS: &str = "origins";

/// Prefix of a provider's endpoint that is replaced by a model found on this machine (ADR 0007).
const AUTO: &str = "auto:";

/// Makes the async runtime. It has one worker thread: the journal's own thread does the heavy work, and moving tasks between
/// workers would cost more than a second worker saves.
pub(crate) fn build_runtime() -> Result<Runtime> {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder
        .worker_threads(1)
        .enable_all()
        .build()
        .context("can't start the runtime")
}

/// A manifest and this machine's configuration: read and validated, but nothing started.
#[derive(Debug, Clone)]
pub(crate) struct ResolvedConfig {
    /// The manifest as it will run, with `auto:` providers replaced.
    pub(crate) manifest: Arc<Manifest>,
    /// Source of the manifest.
    origin: Origin,
    /// This machine's configuration.
    pub(crate) config: Config,
    /// Resolver for secrets.
    pub(crate) resolver: SecretResolver,
    /// The tools' working directory and the base of relative paths.
    pub(crate) workdir: PathBuf,
    /// The agent's own files that its start reads, as absolute paths.
    pub(crate) read: Vec<PathBuf>,
    /// Text that says where the manifest's warnings can be read.
    pub(crate) warning: Option<String>,
    /// Description of the model chosen for each `auto:` provider.
    pub(crate) models: Vec<String>,
    /// The Atlases that govern the agent.
    pub(crate) atlases: AtlasSettings,
    /// The consent to the programs that the folder's files start here, and its source.
    consent: Option<TrustConsent>,
    /// Folders in which scripts of scripted models may be.
    scripts: ScriptAccess,
    /// Identities of the swarm's members, by name.
    pub(crate) identities: BTreeMap<String, Arc<Identity>>,
    /// `true` while every audit that a policy requires can be delivered.
    audit_writable: Arc<AtomicBool>,
    /// The launcher for tools. Its clones share what it learns about this host.
    launcher: Arc<OnceLock<Launcher>>,
    /// A launcher whose first process may already run; the launcher is built from it.
    ahead: Launcher,
    /// The manifest's channels, after they are connected.
    connected: Arc<Mutex<Option<clawk_channels::Channels>>>,
    /// A dry run: stores outside the state are read but not changed.
    dry: bool,
}

impl ResolvedConfig {
    /// Reads a manifest's file, with a given configuration.
    ///
    /// # Errors
    /// The manifest or the configuration is not valid. The error lists all problems.
    pub(crate) async fn with_config(path: &Path, config: Config) -> Result<Self> {
        let (manifest, sources, warning) = manifest::read(path, &config)?;
        let scripts = if config.allow_outside {
            ScriptAccess::Anywhere(manifest.dir.clone())
        } else {
            ScriptAccess::Inside(manifest.dir.clone())
        };
        let mut read = own::of_sources(&sources);
        read.push(path.with_file_name(config::BESIDE));
        let origin = Origin::of_file(path)?;
        let mut blueprint = Self::new(manifest, origin, config, scripts, read).await?;
        blueprint.warning = warning;
        Ok(blueprint)
    }

    /// Uses a manifest that arrived over the network.
    ///
    /// # Errors
    /// `clawk.toml` contradicts itself.
    pub(crate) async fn of_wire(
        (manifest, sources): (Manifest, SourceFiles),
        config: Config,
        root: Option<&Path>,
    ) -> Result<Self> {
        let scripts = root.map_or(ScriptAccess::Refused, |root| {
            ScriptAccess::Inside(root.to_owned())
        });
        let said = serde_json::to_vec(&manifest).context("the manifest can't be written again")?;
        let origin = Origin::Wire(digest_of(&said));
        Self::new(manifest, origin, config, scripts, own::of_sources(&sources)).await
    }

    /// Uses Atlases only: CRA without an agent.
    ///
    /// # Errors
    /// An Atlas is not valid, or an action can't run here.
    pub(crate) async fn of_atlases(config: Config) -> Result<Self> {
        let alone = atlases::atlas_only_manifest()?;
        Self::new(alone, Origin::Atlases, config, ScriptAccess::Refused, Vec::new()).await
    }

    async fn new(
        mut manifest: Manifest,
        origin: Origin,
        config: Config,
        scripts: ScriptAccess,
        read: Vec<PathBuf>,
    ) -> Result<Self> {
        build::check_build(&manifest, &config.settings)?;
        let models = resolve_auto_providers(&mut manifest).await;
        models::resolve_aliases(&mut manifest, &config.settings);
        Self::from_parts((manifest, origin), config, scripts, read, models)
    }

    /// Finishes the configuration and replaces `auto:` providers.
    fn from_parts(
        (mut manifest, origin): (Manifest, Origin),
        mut config: Config,
        scripts: ScriptAccess,
        mut read: Vec<PathBuf>,
        models: Vec<String>,
    ) -> Result<Self> {
        read.extend(own::of_config(&config, &manifest));
        let resolver = SecretResolver::new(
            &config.settings.secrets_store,
            &config.folder(),
            EnvironmentSource::Process,
        )?;
        let atlases = atlases::bind_actions(&mut manifest, &mut config)?;
        let folder = config
            .settings
            .workdir
            .clone()
            .unwrap_or_else(|| manifest.dir.clone());
        let folder = if folder.as_os_str().is_empty() {
            PathBuf::from(".")
        } else {
            folder
        };
        let workdir = folder
            .canonicalize()
            .with_context(|| format!("the working directory `{}` does not exist", folder.display()))?;
        read.extend(own::started_programs(&config, &manifest, &workdir));
        let (identities, files) = members::load_identities(&manifest, &config)?;
        read.extend(files);
        let read = own::make_absolute(read)?;
        own::check_mounts(&config, &manifest, &read, &workdir)?;
        Ok(Self {
            manifest: Arc::new(manifest),
            origin,
            config,
            resolver,
            workdir,
            read,
            warning: None,
            models,
            atlases,
            consent: None,
            scripts,
            identities,
            audit_writable: Arc::new(AtomicBool::new(true)),
            launcher: Arc::default(),
            ahead: Launcher::default(),
            connected: Arc::default(),
            dry: false,
        })
    }

    /// Makes sure that the user consents to the programs that the folder's files would start. Asks, if there is a terminal.
    ///
    /// # Errors
    /// The user refuses.
    pub(crate) async fn with_consent(mut self, told: bool, asks: bool) -> Result<Self> {
        let (config, manifest) = (self.config.clone(), Arc::clone(&self.manifest));
        let asked = move || trust::obtain_consent(&config, Some(&manifest), told, asks);
        self.consent = tokio::task::spawn_blocking(asked).await??;
        Ok(self)
    }

    /// Records consent without a question: a caller who starts the agent and names the manifest consents by that.
    ///
    /// # Errors
    /// The programs that would run can't be read.
    pub(crate) async fn with_implied_consent(self) -> Result<Self> {
        match self.consent {
            Some(_) => Ok(self),
            None => self.with_consent(false, false).await,
        }
    }

    /// Sets a launcher whose first process was started before the manifest was read.
    pub(crate) fn launched_by(self, ahead: Launcher) -> Self {
        Self { ahead, ..self }
    }

    /// Takes over from `running`, in the same process, what it learned about this host.
    pub(crate) fn continue_from(self, running: &Self) -> Self {
        Self {
            launcher: Arc::clone(&running.launcher),
            audit_writable: Arc::clone(&running.audit_writable),
            ..self
        }
    }

    /// Describes where the agent's state should be.
    pub(crate) fn state_lookup<'a>(&'a self, flag: Option<&'a Path>) -> StateLookup<'a> {
        StateLookup {
            flag,
            configured: self.config.settings.state.as_ref().and_then(StateConfig::dir),
            agent: &self.manifest.metadata.name,
            origin: &self.origin,
        }
    }

    /// Returns the agent's state directory and creates it if it is missing.
    ///
    /// # Errors
    /// The directory can't be created or protected, or belongs to another user.
    pub(crate) fn state_dir(&self, flag: Option<&Path>) -> Result<PathBuf> {
        let (dir, note) = self.state_lookup(flag).prepare_dir()?;
        if let Some(note) = note {
            out::print_note(&note);
        }
        Ok(dir)
    }

    /// Returns the state server that the flag or the configuration names; `None`: the state is in its directory.
    fn state_server(&self, flag: Option<&Path>) -> Result<Option<StateServer>> {
        let settings = &self.config.settings;
        let (file, ca_file) = (self.config.file.as_deref(), settings.postgres.ca_file.as_deref());
        StateServer::from_settings(flag, settings.state.as_ref(), file, ca_file)
    }

    /// Opens the state: a directory, or a server and the directory beside it. `waits`: waits until another host has ended.
    ///
    /// # Errors
    /// Another process owns the state, the state is damaged, or the key of encrypted stores is missing or wrong.
    pub(crate) async fn open_state(&self, dir: &Path, flag: Option<&Path>, waits: bool) -> Result<StateDir> {
        let beside = if waits {
            SharingPolicy::Shares
        } else {
            SharingPolicy::Refused
        };
        self.open_beside(dir, flag, beside).await
    }

    /// Opens the state, with a policy for other hosts that use it.
    async fn open_beside(&self, dir: &Path, flag: Option<&Path>, beside: SharingPolicy) -> Result<StateDir> {
        let agent = &self.manifest.metadata.name;
        let (named, noted) = (self.state_server(flag)?, StateServer::from_dir(dir)?);
        if let Some(server) = &named {
            server.write_to_dir(dir)?;
        }
        if let Some(server) = named.or(noted) {
            return kept::serve_remote_state(dir, &server, (agent, self.encryption_keys()?), beside).await;
        }
        let durability = match self.config.settings.durability {
            DecisionDurability::Durable => crate::state::kept::WriteDurability::Durable,
            DecisionDurability::Relaxed => crate::state::kept::WriteDurability::Relaxed,
        };
        Ok(StateDir::open_with(
            dir,
            crate::state::kept::Options {
                durability,
                ..crate::state::kept::Options::default()
            },
            self.encryption_keys()?,
        )?)
    }

    /// Makes the keeper: it signs the journal and deletes expired contents while the agent runs.
    ///
    /// # Errors
    /// The state does not match its signatures, or an audit that a policy requires can't be written.
    pub(crate) fn state_keeper(&self, state: &StateDir) -> Result<StateKeeper> {
        StateKeeper::check(state)?;
        self.keeper_of_checked(state)
    }

    /// Makes the keeper after [`StateKeeper::check`] has passed.
    fn keeper_of_checked(&self, state: &StateDir) -> Result<StateKeeper> {
        let Settings {
            checkpoints,
            retention,
            ..
        } = &self.config.settings;
        let env = self.resolver.env();
        let journal = kept::lasting_journal(state);
        let audits = audit::of(
            &self.manifest.policies,
            &self.config.settings.audit,
            audit::AuditedState {
                path: state.path(),
                encrypted: state.vault().is_some(),
            },
            &journal,
            env,
            &self.audit_writable,
        )?;
        let mut keeper = StateKeeper::start(state, checkpoints, retention, env)?;
        keeper.also(audits);
        let is_wired = matches!(self.origin, Origin::Wire(_));
        let exporters =
            telemetry::build_exporters(&self.manifest, is_wired, state.path(), &journal, &self.resolver)?;
        keeper.telling(exporters);
        if let Some(settings) = &self.config.activity {
            keeper.log_activity(ActivityFollower::new(Arc::clone(&journal), settings.clone()));
        }
        Ok(keeper)
    }

    /// Returns the factory for the manifest's providers.
    pub(crate) fn provider_factory(&self) -> ProviderFactory {
        ProviderFactory::new(
            self.resolver.clone(),
            self.config.settings.providers.clone(),
            self.scripts.clone(),
        )
    }

    /// Builds the manifest's providers, by name.
    ///
    /// # Errors
    /// The reasons why providers can't be used here.
    pub(crate) fn build_providers(&self) -> Result<BTreeMap<String, Arc<dyn ModelProvider>>, Vec<String>> {
        let factory = self.provider_factory();
        let (mut made, mut faults) = (BTreeMap::new(), Vec::new());
        for spec in &self.manifest.providers {
            match factory.build_provider(spec) {
                Ok(provider) => {
                    made.insert(spec.name.clone(), provider);
                }
                Err(error) => faults.push(error.to_string()),
            }
        }
        faults.extend(models::effort_faults(&self.manifest, &self.config.settings));
        if faults.is_empty() { Ok(made) } else { Err(faults) }
    }

    /// Returns the options of each provider's model, from `clawk.toml` and the catalogue of models.
    fn model_options(&self) -> BTreeMap<String, ModelOptions> {
        models::provider_options(&self.manifest, &self.config.settings)
    }

    /// Returns a warning for each model that its vendor will shut down soon.
    pub(crate) fn model_warnings(&self) -> Vec<String> {
        models::shutdown_warnings(
            &self.manifest,
            &self.config.settings,
            SystemClock::default().now(),
        )
    }

    /// Returns the launcher for tools, for every isolation level. Levels store their files in `cache`.
    pub(crate) fn launcher(&self, cache: Option<&Path>) -> Launcher {
        let make = || {
            let launcher = self
                .ahead
                .clone()
                .with_levels(self.config.level_settings(cache))
                .with_warm(self.config.warm_pool_limits())
                .leaving_free(self.config.settings.sandbox.min_free());
            let _ = launcher.remove_stale_groups(); // silent-ok: how many there were helps nobody
            launcher
        };
        self.launcher.get_or_init(make).clone()
    }

    /// Builds the tool runner.
    ///
    /// # Errors
    /// All tools that cannot run here.
    pub(crate) fn build_runner(
        &self,
        ask: Option<AskUserHandler>,
        state: Option<&Path>,
    ) -> Result<Runner, Vec<String>> {
        bind_tools(
            &self.manifest,
            &self.config.settings.tools,
            self.tool_host(ask, state)?,
        )
        .map_err(|unbound| unbound.iter().map(ToString::to_string).collect())
        .and_then(|runner| self.with_undo_store(runner, state))
        .and_then(|runner| self.tracing_text(runner, state))
    }

    /// Adds provenance of text in files, stored in the state, to the runner.
    fn tracing_text(&self, runner: Runner, state: Option<&Path>) -> Result<Runner, Vec<String>> {
        let Some(state) = state else { return Ok(runner) };
        let origins = FileProvenanceStore::open(state.join(ORIGINS)).map_err(|error| {
            vec![format!(
                "where the text in files came from can't be read: {error}"
            )]
        })?;
        Ok(runner.tracing_text(Arc::new(origins), self.workdir.clone()))
    }

    /// Adds backups of overwritten data, stored in the state, to the runner.
    fn with_undo_store(&self, runner: Runner, state: Option<&Path>) -> Result<Runner, Vec<String>> {
        let settings = self.config.settings.undo;
        let Some(state) = state.filter(|_| settings.enabled) else {
            return Ok(runner);
        };
        let vault = self
            .encryption_keys()
            .map_err(|error| vec![format!("{error:#}")])?;
        let undo = UndoStore::new(state.join(UNDO), settings.limits())
            .map_err(|error| vec![format!("what earlier calls overwrote can't be read: {error}")])?;
        Ok(runner.with_undo_store(Arc::new(undo.sealed_by(vault.map(|keys| keys.vault)))))
    }

    /// Builds this machine's services for tools, and for programs that run beside the agent.
    ///
    /// # Errors
    /// All network paths that are not available.
    fn tool_host(&self, ask: Option<AskUserHandler>, state: Option<&Path>) -> Result<ToolHost, Vec<String>> {
        let egress = egress::egress_settings(&self.config.settings, &self.manifest, &self.resolver)?;
        Ok(ToolHost {
            launcher: self.launcher(state.map(|state| state.join("cache")).as_deref()),
            own: self.runtime_files(state),
            defaults: self.config.settings.sandbox.plan_defaults(),
            secrets: self.resolver.clone(),
            base: self.config.folder(),
            workdir: self.workdir.clone(),
            ask,
            extras: self.external_builtins(),
            egress,
            timezone: self.config.settings.time_zone(),
        })
    }

    /// Returns the runtime's own files, which tools must not change.
    fn runtime_files(&self, state: Option<&Path>) -> RuntimeFiles {
        RuntimeFiles {
            state: state.map(Path::to_owned),
            files: self.read.clone(),
        }
    }

    fn external_builtins(&self) -> BTreeMap<String, Arc<dyn ExternalBuiltin>> {
        let simulated = self.atlases.fallback.iter();
        let send = ("channel-send".to_owned(), self.channel_send());
        let schedule = ("schedule".to_owned(), self.schedule_builtin());
        simulated
            .map(|name| {
                (
                    name.clone(),
                    Arc::new(atlases::SimulatedActionTool) as Arc<dyn ExternalBuiltin>,
                )
            })
            .chain([send, schedule])
            .collect()
    }

    /// Resolves every secret that `clawk.toml` and the manifest name, if possible. Then redaction recognises them from the start,
    /// not only after their first use. A missing secret is reported where it is used.
    fn known_secrets(&self) -> ResolvedSecrets {
        let given = self.resolver.resolved_secrets();
        for name in egress::secret_names(&self.config.settings, &self.manifest) {
            let _resolved = self.resolver.resolve(name); // silent-ok: its use will say what is wrong with it
        }
        given
    }

    /// Returns the swarm's members on other hosts, and the key of report tokens.
    ///
    /// # Errors
    /// A binding is not valid, or the bus can't be reached.
    pub(crate) async fn remote_members(
        &self,
        state: &Path,
    ) -> Result<(Option<Arc<RemoteMembers>>, TokenKey)> {
        if self.manifest.swarm.is_none() {
            return Ok((None, TokenKey::default()));
        }
        let key = peers::token_key(state)?;
        let place = peers::PeerContext {
            manifest: &self.manifest,
            config: &self.config,
            resolver: &self.resolver,
            state,
        };
        Ok((peers::connect_remote_members(place, &key).await?, key))
    }

    /// Returns the swarm's local options, with the Identities beside the manifest.
    fn swarm_options(&self) -> SwarmOptions {
        SwarmOptions {
            local: self.config.settings.swarm.local_limits(),
            identities: self.identities.clone(),
            ..SwarmOptions::default()
        }
    }

    /// Builds all dependencies of the kernel.
    ///
    /// # Errors
    /// All reasons why the agent can't start here.
    pub(crate) fn agent_dependencies(
        &self,
        state: &StateDir,
        ask: Option<AskUserHandler>,
    ) -> Result<AgentDependencies, StartError> {
        let faults = self.channel_faults();
        if !faults.is_empty() {
            return Err(StartError::Unserved(faults));
        }
        match (self.build_providers(), self.build_runner(ask, Some(state.path()))) {
            (Ok(providers), Ok(runner)) => Ok(AgentDependencies {
                manifest: Arc::clone(&self.manifest),
                providers,
                runner: Arc::new(runner),
                journal: state.journal(),
                memory: Some(self.memory_stores(state)),
                secrets: self.known_secrets(),
                clock: Arc::new(SystemClock::default()),
                atlases: self.atlases.clone(),
                options: Options {
                    workdir: self.workdir.clone(),
                    origin: self.origin.to_string(),
                    sandbox: self.config.settings.sandbox.plan_defaults(),
                    own: self.runtime_files(Some(state.path())),
                    suggestions: suggestions_dir(state),
                    budgets: self.config.settings.budgets.clone(),
                    prices: self.config.settings.prices.clone(),
                    audit_writable: Arc::clone(&self.audit_writable),
                    planning: Some(self.config.settings.world_models),
                    judge: self.config.settings.screen.judge_settings(),
                    claims: self.config.settings.claims.to_claims(),
                    shown: ResultExcerpt::Ends(self.config.settings.output.shown_bytes),
                    models: self.model_options(),
                    reach_providers: false,
                    inbox: self.config.settings.inbox,
                    outbox: self.config.settings.outbox,
                    across_senders: self.config.settings.memory.across_senders(),
                    timezone: Some(self.config.settings.time_zone()),
                    swarm: self.swarm_options(),
                },
            }),
            (providers, runner) => {
                let faults = [(lacks::PROVIDER, providers.err()), (lacks::TOOLS, runner.err())];
                let told = faults.into_iter().flat_map(|(code, faults)| {
                    let faults = faults.into_iter().flatten();
                    faults.map(move |fault| format!("{fault} [{code}]"))
                });
                Err(StartError::Unserved(told.collect()))
            }
        }
    }
}

/// Returns the folder for suggested rules. An encrypted state has none, because a suggestion quotes a call's arguments; suggestions
/// of an earlier run are then deleted.
fn suggestions_dir(state: &StateDir) -> Option<PathBuf> {
    if state.vault().is_none() {
        return Some(state.path().to_owned());
    }
    let file = state.path().join(clawk_kernel::call::SUGGESTED_RULES);
    match std::fs::remove_file(&file) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            tracing::warn!(%error, file = %file.display(), "suggested rules from before the encryption can't be removed");
        }
        Ok(()) | Err(_) => {}
    }
    None
}

/// Replaces each `auto:` provider by a model found on this machine. Returns a description of each.
async fn resolve_auto_providers(manifest: &mut Manifest) -> Vec<String> {
    let mut notes = Vec::new();
    let mut found = None;
    for provider in &mut manifest.providers {
        let Some(script) = provider
            .endpoint
            .strip_prefix(AUTO)
            .filter(|_| provider.protocol == ProviderProtocol::Custom)
        else {
            continue;
        };
        let script = format!("script:{script}");
        if found.is_none() {
            found = Some(discover_provider(&EnvironmentSource::Process).await);
        }
        let Some(found) = &found else { continue };
        match &found.provider {
            Some(real) => {
                provider.protocol = real.protocol;
                provider.endpoint.clone_from(&real.endpoint);
                provider.model.clone_from(&real.model);
                provider.auth = real.auth.clone();
            }
            None => {
                provider.endpoint = script;
                provider.model = "scripted".to_owned();
            }
        }
        notes.push(format!("provider `{}`: {}", provider.name, found.why));
    }
    notes
}
