//! Where the server's agents come from (R3): the manifest that was launched, or the one on the wire.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use anyhow::{Context, Result};
use clawk_kernel::ports::Later;
use clawk_kernel::{Kernel, Parts, StartError};
use clawk_manifest::{Loaded, Manifest, Severity, Sources, WireOptions, from_value};
use clawk_server::control::Control;
use clawk_server::{AgentFactory, Current, InitFailure, ManifestFault};
use clawk_store::StateDir;
use serde_json::Value;

use crate::companion;
use crate::compose::Blueprint;
use crate::config::Config;
use crate::keeper::Keeper;

/// `clawk serve CLAW`: that agent, whatever the wire says. Its state stays open from one run to the next.
#[derive(Debug)]
pub(super) struct Launched {
    blueprint: Blueprint,
    state: StateDir,
    keeper: Mutex<Option<Keeper>>,
}

impl Launched {
    /// Opens the state, and makes sure at once that nothing is missing that `claw.initialize` would need.
    pub(super) async fn new(blueprint: Blueprint, state: Option<&Path>) -> Result<Self> {
        let state = blueprint.ready(state).await?;
        blueprint.parts(&state, None)?;
        let keeper = Mutex::new(Some(blueprint.keeper(&state)?));
        Ok(Self {
            blueprint,
            state,
            keeper,
        })
    }

    /// What is open.
    pub(super) const fn state(&self) -> &StateDir {
        &self.state
    }

    /// The control socket in the state directory.
    pub(super) fn control(&self, current: &Current) -> Result<Control> {
        let dir = self.state.path();
        Control::bind(dir, current.clone()).with_context(|| format!("can't listen in `{}`", dir.display()))
    }

    /// Signs what is there and gives the state directory free.
    pub(super) async fn close(&self) {
        let keeper = self.keeper.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(keeper) = keeper {
            keeper.close().await;
        }
        self.state.close();
    }
}

impl AgentFactory for Launched {
    fn check<'a>(&'a self, wire: &'a Value) -> Later<'a, Result<(), InitFailure>> {
        // A URI, or an object without a `spec`, only names the agent that the client expects; one with a `spec` must be
        // valid, and then names it as well.
        Box::pin(async move {
            if wire.is_string() || names_only(wire) {
                Ok(())
            } else {
                read(wire, &self.blueprint.config, None).map(drop)
            }
        })
    }

    fn start<'a>(&'a self, _wire: Option<&'a Value>) -> Later<'a, Result<Kernel, InitFailure>> {
        Box::pin(async move { Ok(Kernel::start(served(&self.blueprint, &self.state)?).await?) })
    }
}

/// The parts of an agent that is served: whether its models can be reached is found out beside its work.
fn served(blueprint: &Blueprint, state: &StateDir) -> Result<Parts, StartError> {
    let mut parts = blueprint.parts(state, None)?;
    parts.options.reach_providers = true;
    Ok(parts)
}

/// `clawk serve` without a manifest: the one on the wire becomes the agent's.
#[derive(Debug)]
pub(super) struct Wired {
    config: Config,
    state_flag: Option<PathBuf>,
    root: Option<PathBuf>,
    /// The state of the agent that runs, or ran last.
    state: Mutex<Option<Held>>,
}

/// An open state directory and who keeps it.
#[derive(Debug)]
struct Held {
    state: StateDir,
    keeper: Keeper,
}

impl Held {
    async fn close(self) {
        self.keeper.close().await;
        self.state.close();
    }
}

impl Wired {
    pub(super) const fn new(config: Config, state_flag: Option<PathBuf>, root: Option<PathBuf>) -> Self {
        Self {
            config,
            state_flag,
            root,
            state: Mutex::new(None),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<Held>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The agent's state: the one at hand if it is the same agent's.
    async fn state_of(&self, blueprint: &Blueprint) -> Result<StateDir> {
        let dir = blueprint.state_dir(self.state_flag.as_deref())?;
        let held = self.lock().take();
        if let Some(held) = held {
            if held.state.path() == dir {
                let state = held.state.clone();
                *self.lock() = Some(held);
                return Ok(state);
            }
            held.close().await;
        }
        let state = blueprint.open_state(&dir)?;
        let keeper = blueprint.keeper(&state)?;
        *self.lock() = Some(Held {
            state: state.clone(),
            keeper,
        });
        Ok(state)
    }

    /// Signs what is there and gives the state directory free.
    pub(super) async fn close(&self) {
        let held = self.lock().take();
        if let Some(held) = held {
            held.close().await;
        }
    }
}

impl AgentFactory for Wired {
    fn check<'a>(&'a self, wire: &'a Value) -> Later<'a, Result<(), InitFailure>> {
        Box::pin(async move { read(wire, &self.config, self.root.as_deref()).map(drop) })
    }

    fn start<'a>(&'a self, wire: Option<&'a Value>) -> Later<'a, Result<Kernel, InitFailure>> {
        Box::pin(async move {
            let unserved = |reason: String| InitFailure::Start(StartError::Unserved(vec![reason]));
            let wire = wire.ok_or_else(|| {
                unserved("no manifest was launched, and none came over the wire".to_owned())
            })?;
            let manifest = read(wire, &self.config, self.root.as_deref())?;
            let blueprint = Blueprint::of_wire(manifest, self.config.clone(), self.root.as_deref())
                .await
                .map_err(|error| unserved(format!("{error:#}")))?;
            let state = self
                .state_of(&blueprint)
                .await
                .map_err(|error| unserved(format!("{error:#}")))?;
            blueprint.enclosed(state.path()).await?;
            Ok(Kernel::start(served(&blueprint, &state)?).await?)
        })
    }
}

/// `{"kind": "Claw", "metadata": {"name": …}}`, as the 0.3.0 wire format's examples send it.
fn names_only(wire: &Value) -> bool {
    let named = wire.pointer("/metadata/name").is_some_and(Value::is_string);
    let claw = wire.get("kind").is_some_and(|kind| kind == "Claw");
    claw && named && wire.get("spec").is_none()
}

/// The manifest on the wire, or everything that is wrong with it.
fn read(wire: &Value, config: &Config, root: Option<&Path>) -> Result<(Manifest, Sources), InitFailure> {
    let options = WireOptions {
        root: root.map(Path::to_owned),
        allow_outside: false,
        registries: config.settings.registries.clone(),
    };
    let mut loaded = from_value(wire, &options);
    if let Some(manifest) = loaded.manifest.take() {
        return match untested(&loaded) {
            None => Ok((manifest, loaded.sources)),
            Some(fault) => Err(InitFailure::Manifest(vec![fault])),
        };
    }
    let Loaded { diagnostics, .. } = loaded;
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

/// A policy file that the manifest refers to fails the tests beside it.
fn untested(loaded: &Loaded) -> Option<ManifestFault> {
    let message = match companion::of_manifest(loaded) {
        Ok(reports) => companion::refusal(&reports)?,
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
