//! The source of a host's agents (R3): the launched manifest, or the one that a client sends. Each source keeps the agent's state
//! open and its keeper running between runs.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::state::kept::{self, SharingPolicy, StateDir};
use crate::state::server::StateServer;
use anyhow::{Context, Result};
use clawk_kernel::ports::{BoxFuture, Journal, SpentAmount, TokenKey};
use clawk_kernel::time::SystemClock;
use clawk_kernel::{Kernel, StartError, dry};
use clawk_manifest::model::BusBackend;
use clawk_manifest::{LoadedDocument, Manifest, Severity, SourceFiles, WireOptions, from_value};
use clawk_secrets::env;
use clawk_server::control::ControlSocket;
use clawk_server::peers::RemoteMembers;
use clawk_server::{AgentFactory, AgentHost, InitFailure, ManifestFault};
use clawk_tools::AskUserHandler;
use clawk_trace::checkpoint::TraceSigner;
use serde_json::Value;
use tempfile::TempDir;

use super::ResolvedConfig;
use crate::companion;
use crate::config::Config;
use crate::coverage::JUDGE;
use crate::dry::{CallPredictions, copy_server, copy_state};
use crate::keeper::StateKeeper;
use crate::out::{self, TerminalStyle};

/// `clawk serve CLAW` and `clawk run CLAW`: always this agent, whatever a client sends.
pub(crate) struct LaunchedAgentFactory {
    /// The configuration of the next run.
    next: Mutex<NextRun>,
    state: StateDir,
    keeper: Mutex<Option<StateKeeper>>,
    /// Whether a task checks that the models can be reached. Without it, the first message shows that.
    reach_providers: bool,
    /// Members on other hosts, and the key of report tokens.
    elsewhere: (Option<Arc<RemoteMembers>>, TokenKey),
    /// Signs the messages to other hosts of the swarm.
    signer: Option<Arc<TraceSigner>>,
    dry: Option<DryState>,
}

/// The state of a dry run.
struct DryState {
    predictions: CallPredictions,
    /// The copy of the state.
    _copy: TempDir,
    /// The `--state` value of the agent's own state, and what was spent there before.
    flag: Option<PathBuf>,
    before: Vec<SpentAmount>,
}

/// The configuration of a run.
#[derive(Clone)]
struct NextRun {
    blueprint: Arc<ResolvedConfig>,
    /// Answers the agent's own questions (`ask-user`): a person at the terminal or in a channel.
    ask: Option<AskUserHandler>,
}

impl NextRun {
    fn from_config(blueprint: ResolvedConfig, ask: Option<AskUserHandler>) -> Mutex<Self> {
        let blueprint = Arc::new(blueprint);
        Mutex::new(Self { blueprint, ask })
    }
}

impl fmt::Debug for LaunchedAgentFactory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Launched({:?})", self.state.path())
    }
}

impl LaunchedAgentFactory {
    /// Opens the state, and checks at once that nothing is missing for a start.
    pub(crate) async fn new(
        blueprint: ResolvedConfig,
        state: Option<&Path>,
        ask: Option<AskUserHandler>,
    ) -> Result<Self> {
        Self::from_config(blueprint, state, ask, false).await
    }

    /// Like `new`, for a service: while another host serves the agent, this host waits on standby.
    ///
    /// # Errors
    /// The errors of [`LaunchedAgentFactory::new`].
    pub(crate) async fn standing_by(
        blueprint: ResolvedConfig,
        state: Option<&Path>,
        ask: Option<AskUserHandler>,
    ) -> Result<Self> {
        Self::from_config(blueprint, state, ask, true).await
    }

    async fn from_config(
        blueprint: ResolvedConfig,
        state: Option<&Path>,
        ask: Option<AskUserHandler>,
        waits: bool,
    ) -> Result<Self> {
        let blueprint = blueprint.with_implied_consent().await?;
        let check = |state: &StateDir| {
            blueprint.agent_dependencies(state, ask.clone())?;
            StateKeeper::check(state)
        };
        let state = blueprint.open_ready_state(state, waits, check).await?;
        let elsewhere = blueprint.remote_members(state.path()).await?;
        let swarm = blueprint.manifest.swarm.is_some();
        let signer = swarm.then(|| state.signer().map(Arc::new)).transpose()?;
        let keeper = Mutex::new(Some(blueprint.keeper_of_checked(&state)?));
        Ok(Self {
            elsewhere,
            signer,
            next: NextRun::from_config(blueprint, ask),
            state,
            keeper,
            reach_providers: false,
            dry: None,
        })
    }

    /// Like `new`, for a dry run: works on a copy of the state and sends no audit records.
    ///
    /// # Errors
    /// The errors of [`LaunchedAgentFactory::new`]; or the state can't be copied.
    pub(crate) async fn for_dry_run(
        blueprint: ResolvedConfig,
        state: Option<&Path>,
        ask: Option<AskUserHandler>,
        predictions: CallPredictions,
    ) -> Result<Self> {
        let mut blueprint = blueprint.with_implied_consent().await?;
        let real = std::path::absolute(blueprint.state_lookup(state).dir()?)?;
        // This finds the key of encrypted stores.
        blueprint.encryption_keys()?;
        blueprint.dry = true;
        let server = match blueprint.state_server(state)? {
            Some(server) => Some(server),
            None => StateServer::from_dir(&real)?,
        };
        let (copy, place) = match server {
            Some(server) => copy_server(server, &real).await?,
            None => copy_state(&real)?,
        };
        let flag = state.map(Path::to_owned);
        // Tools must not read the original state either.
        blueprint.read.push(real);
        let check = |state: &StateDir| Ok(blueprint.agent_dependencies(state, ask.clone()).map(drop)?);
        let state = blueprint.open_ready_state(Some(&place), false, check).await?;
        let before = state.journal().spent_since(i64::MIN).await?;
        Ok(Self {
            elsewhere: (None, TokenKey::default()),
            signer: None,
            next: NextRun::from_config(blueprint, ask),
            state,
            keeper: Mutex::new(None),
            reach_providers: false,
            dry: Some(DryState {
                predictions,
                _copy: copy,
                flag,
                before,
            }),
        })
    }

    /// Enables the check of providers after the start, for a service.
    pub(crate) fn reaching_providers(self) -> Self {
        Self {
            reach_providers: true,
            ..self
        }
    }

    /// Returns the open state.
    pub(crate) const fn state(&self) -> &StateDir {
        &self.state
    }

    /// Returns whether tasks of its swarm arrive over a bus.
    pub(crate) fn has_bus(&self) -> bool {
        self.elsewhere.0.as_ref().is_some_and(|peers| peers.has_bus())
    }

    /// Returns the resolved configuration.
    pub(crate) fn resolved_config(&self) -> Arc<ResolvedConfig> {
        self.next().blueprint
    }

    fn next(&self) -> NextRun {
        self.next.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Checks that a run of `fresh` can start, while the current run continues.
    ///
    /// # Errors
    /// The error that such a start would return.
    pub(crate) async fn check_start(&self, fresh: &ResolvedConfig) -> Result<()> {
        fresh.probe_sandboxes(self.state.path()).await?;
        fresh.agent_dependencies(&self.state, None)?;
        if let Some(consent) = &fresh.consent {
            consent.record_in_state(self.state.path())?;
        }
        Ok(())
    }

    /// Uses `fresh` from the next run on. Call it while no run is active.
    ///
    /// # Errors
    /// An audit that its policies require can't be written. The next run then keeps the old configuration.
    pub(crate) async fn replace_config(&self, fresh: Arc<ResolvedConfig>) -> Result<()> {
        let keeper = self.keeper.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(keeper) = keeper {
            keeper.close().await;
        }
        let put = |keeper| *self.keeper.lock().unwrap_or_else(PoisonError::into_inner) = Some(keeper);
        match fresh.state_keeper(&self.state) {
            Ok(keeper) => put(keeper),
            Err(error) => {
                put(self.resolved_config().state_keeper(&self.state)?);
                return Err(error);
            }
        }
        let ask = fresh.has_channels().then(|| fresh.ask_by_channel());
        *self.next.lock().unwrap_or_else(PoisonError::into_inner) = NextRun {
            blueprint: fresh,
            ask,
        };
        Ok(())
    }

    /// Opens the control socket in the state directory.
    pub(crate) fn control_socket(&self, host: &AgentHost) -> Result<ControlSocket> {
        let dir = self.state.path();
        ControlSocket::bind(dir, host.clone()).with_context(|| format!("can't listen in `{}`", dir.display()))
    }

    /// Signs the last events and releases the state directory.
    pub(crate) async fn close(&self) {
        if let Some(peers) = &self.elsewhere.0 {
            peers.close().await;
        }
        let keeper = self.keeper.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(keeper) = keeper {
            keeper.close().await;
        }
        let spent = match &self.dry {
            Some(dry) => self
                .state
                .journal()
                .spent_since(i64::MIN)
                .await
                .map(|after| dry::spending_difference(&dry.before, &after)),
            None => Ok(Vec::new()),
        };
        self.state.close();
        if let Some(dry) = &self.dry {
            let counted = match spent {
                Ok(spent) => self.record_spending(dry.flag.as_deref(), spent).await,
                Err(error) => Err(error.into()),
            };
            if let Err(error) = counted {
                let paint = TerminalStyle::for_stderr();
                out::print_note(format!(
                    "{} the tokens of the dry run are not counted in the agent's budget: {error:#}",
                    paint.yellow("warning:")
                ));
            }
        }
    }

    /// Adds the cost of a dry run's models to the agent's own spending.
    async fn record_spending(&self, flag: Option<&Path>, spent: Vec<SpentAmount>) -> Result<()> {
        if spent.is_empty() {
            return Ok(());
        }
        let blueprint = self.resolved_config();
        let real = blueprint.state_dir(flag)?;
        let state = blueprint.open_beside(&real, flag, SharingPolicy::Joins).await?;
        let user = env::non_empty("USER").unwrap_or_else(|| "unknown".to_owned());
        let by = format!("local user {user}");
        let ports = (
            state.journal() as Arc<dyn Journal>,
            Arc::new(SystemClock::default()) as _,
        );
        let agent = &blueprint.manifest.identity.name;
        let counted = dry::account_spending(ports, (agent, &by), spent).await;
        state.close();
        Ok(counted?)
    }
}

impl AgentFactory for LaunchedAgentFactory {
    fn check_manifest<'a>(&'a self, wire: &'a Value) -> BoxFuture<'a, Result<(), InitFailure>> {
        // A URI, or an object without a `spec`, only names the agent that the client expects. An object with a `spec` must also be
        // valid.
        Box::pin(async move {
            if wire.is_string() || names_only(wire) {
                Ok(())
            } else {
                read(wire, &self.resolved_config().config, None).map(drop)
            }
        })
    }

    fn start_agent<'a>(&'a self, _wire: Option<&'a Value>) -> BoxFuture<'a, Result<Kernel, InitFailure>> {
        Box::pin(async move {
            let NextRun { blueprint, ask } = self.next();
            kept::prepare_start(&self.state)
                .await
                .map_err(|error| InitFailure::Start(StartError::Unserved(vec![format!("{error:#}")])))?;
            let mut parts = blueprint.agent_dependencies(&self.state, ask)?;
            parts.options.reach_providers = self.reach_providers;
            let (peers, key) = &self.elsewhere;
            parts.options.swarm.token_key = key.clone();
            if let Some(DryState { predictions, .. }) = &self.dry {
                // Members on other hosts would have real effects.
                return Ok(Kernel::start(predictions.wrap_dependencies(parts)).await?);
            }
            parts.options.swarm.signer = self.signer.clone();
            parts.options.swarm.elsewhere = peers.clone().map(|peers| peers as _);
            let kernel = Kernel::start(kept::guard_dependencies(parts, &self.state)).await?;
            if let Some(peers) = peers {
                peers.attach_kernel(&kernel).await;
            }
            Ok(kernel)
        })
    }
}

/// `clawk serve` without a manifest: the client sends the agent's manifest.
#[derive(Debug)]
pub(crate) struct WireAgentFactory {
    config: Config,
    state_flag: Option<PathBuf>,
    root: Option<PathBuf>,
    /// The state of the running agent, or of the last one.
    state: Mutex<Option<OpenState>>,
}

/// An open state directory and its keeper.
#[derive(Debug)]
struct OpenState {
    state: StateDir,
    keeper: StateKeeper,
}

impl OpenState {
    async fn close(self) {
        self.keeper.close().await;
        self.state.close();
    }
}

impl WireAgentFactory {
    pub(crate) const fn new(config: Config, state_flag: Option<PathBuf>, root: Option<PathBuf>) -> Self {
        Self {
            config,
            state_flag,
            root,
            state: Mutex::new(None),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<OpenState>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the agent's state. An open state is reused if it belongs to the same agent.
    async fn state_of(&self, blueprint: &ResolvedConfig) -> Result<StateDir> {
        let dir = blueprint.state_dir(self.state_flag.as_deref())?;
        let held = self.lock().take();
        if let Some(held) = held {
            if held.state.path() == dir && !kept::is_fenced(&held.state) {
                let state = held.state.clone();
                *self.lock() = Some(held);
                return Ok(state);
            }
            held.close().await;
        }
        let state = blueprint
            .open_state(&dir, self.state_flag.as_deref(), false)
            .await?;
        let keeper = blueprint.state_keeper(&state)?;
        *self.lock() = Some(OpenState {
            state: state.clone(),
            keeper,
        });
        Ok(state)
    }

    /// Signs the last events and releases the state directory.
    pub(crate) async fn close(&self) {
        let held = self.lock().take();
        if let Some(held) = held {
            held.close().await;
        }
    }
}

impl AgentFactory for WireAgentFactory {
    fn check_manifest<'a>(&'a self, wire: &'a Value) -> BoxFuture<'a, Result<(), InitFailure>> {
        Box::pin(async move { read(wire, &self.config, self.root.as_deref()).map(drop) })
    }

    fn start_agent<'a>(&'a self, wire: Option<&'a Value>) -> BoxFuture<'a, Result<Kernel, InitFailure>> {
        Box::pin(async move {
            let unserved = |reason: String| InitFailure::Start(StartError::Unserved(vec![reason]));
            let wire = wire.ok_or_else(|| {
                unserved("no manifest was launched, and none came over the wire".to_owned())
            })?;
            let manifest = read(wire, &self.config, self.root.as_deref())?;
            let backend = manifest.0.swarm.as_ref().map(|swarm| swarm.coordination.backend);
            if let Some(backend) = backend.filter(|backend| *backend != BusBackend::InProcess) {
                let backend = backend.as_str();
                return Err(unserved(format!(
                    "a swarm whose backend is `{backend}` is served for a manifest that was launched, not for one from the wire"
                )));
            }
            let blueprint = ResolvedConfig::of_wire(manifest, self.config.clone(), self.root.as_deref())
                .await
                .map_err(|error| unserved(format!("{error:#}")))?;
            let state = self
                .state_of(&blueprint)
                .await
                .map_err(|error| unserved(format!("{error:#}")))?;
            blueprint.probe_sandboxes(state.path()).await?;
            let mut parts = blueprint.agent_dependencies(&state, None)?;
            parts.options.reach_providers = true;
            Ok(Kernel::start(kept::guard_dependencies(parts, &state)).await?)
        })
    }
}

/// The source of a host's agents.
#[derive(Debug, Clone)]
pub(crate) enum AgentSource {
    /// The launched manifest.
    Launched(Arc<LaunchedAgentFactory>),
    /// The manifest that a client sends.
    Wired(Arc<WireAgentFactory>),
}

impl AgentSource {
    /// Returns the factory of its agents.
    pub(crate) fn factory(&self) -> Arc<dyn AgentFactory> {
        match self {
            Self::Launched(launched) => Arc::clone(launched) as _,
            Self::Wired(wired) => Arc::clone(wired) as _,
        }
    }

    /// Returns the launched agent. Only this one can have entry points other than the launcher's.
    pub(crate) const fn launched_factory(&self) -> Option<&Arc<LaunchedAgentFactory>> {
        match self {
            Self::Launched(launched) => Some(launched),
            Self::Wired(_) => None,
        }
    }

    /// Signs the last events and releases the state directory.
    pub(crate) async fn close(&self) {
        match self {
            Self::Launched(launched) => launched.close().await,
            Self::Wired(wired) => wired.close().await,
        }
    }
}

/// Returns whether the value only names an agent: `{"kind": "Claw", "metadata": {"name": …}}`, as in the examples of the 0.3.0 wire
/// format.
fn names_only(wire: &Value) -> bool {
    let named = wire.pointer("/metadata/name").is_some_and(Value::is_string);
    let claw = wire.get("kind").is_some_and(|kind| kind == "Claw");
    claw && named && wire.get("spec").is_none()
}

/// Reads the client's manifest.
///
/// # Errors
/// All faults of the manifest.
fn read(wire: &Value, config: &Config, root: Option<&Path>) -> Result<(Manifest, SourceFiles), InitFailure> {
    let options = WireOptions {
        root: root.map(Path::to_owned),
        allow_outside: config.allow_outside && root.is_some(),
        registries: config.settings.registries.clone(),
        judge: Some(JUDGE),
    };
    let mut loaded = from_value(wire, &options);
    if let Some(manifest) = loaded.manifest.take() {
        return match policy_test_fault(&loaded) {
            None => Ok((manifest, loaded.sources)),
            Some(fault) => Err(InitFailure::Manifest(vec![fault])),
        };
    }
    let LoadedDocument { diagnostics, .. } = loaded;
    let errors = diagnostics
        .into_iter()
        .filter(|found| found.severity == Severity::Error);
    if let Value::String(uri) = wire {
        let reasons: Vec<String> = errors.map(|found| with_help(found.message, found.help)).collect();
        return Err(InitFailure::Unresolvable {
            uri: uri.clone(),
            reason: reasons.join("; "),
        });
    }
    let faults = errors.map(|found| ManifestFault {
        path: found.path,
        message: with_help(found.message, found.help),
        code: found.code.to_owned(),
    });
    Err(InitFailure::Manifest(faults.collect()))
}

/// Returns the fault if a policy file of the manifest fails its tests.
fn policy_test_fault(loaded: &LoadedDocument) -> Option<ManifestFault> {
    let message = match companion::of_manifest(loaded) {
        Ok(reports) => companion::first_failure_message(&reports)?,
        Err(error) => format!("{error:#}"),
    };
    Some(ManifestFault {
        path: "/spec/policies".to_owned(),
        message,
        code: "policy-test-failed".to_owned(),
    })
}

fn with_help(message: String, help: Option<String>) -> String {
    help.map_or(message.clone(), |help| format!("{message}; {help}"))
}
