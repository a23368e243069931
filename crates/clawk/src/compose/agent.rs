//! The agent of `clawk run`: a host whose only client is this process.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use clawk_kernel::ports::Journal;
use clawk_kernel::{EntryPoint, Kernel, SessionHandle};
use clawk_manifest::Manifest;
use clawk_proto::SessionId;
use clawk_server::AgentHost as Served;
use clawk_tools::AskUserHandler;
use tokio_util::sync::CancellationToken;

use super::{LaunchedAgentFactory, ResolvedConfig, own};
use crate::cmd::skill::trial;
use crate::config::{AllowOutsideArgs, Config, Settings};
use crate::dry::CallPredictions;
use crate::state::kept::StateReader;
use crate::trust;

/// Time limit for running work at a chat's end, in milliseconds.
const DRAIN_MS: u64 = 5_000;

/// The options of `clawk run`.
#[derive(Debug)]
pub(crate) struct Request<'a> {
    /// Path of the manifest.
    pub(crate) manifest: &'a Path,
    /// The `--config` flag.
    pub(crate) config: Option<&'a Path>,
    /// The `--state` flag.
    pub(crate) state: Option<&'a Path>,
    /// The `--allow-outside` flag.
    pub(crate) outside: AllowOutsideArgs,
    /// The `--trust` flag.
    pub(crate) trust: bool,
    /// `--dry-run`: receives the predictions.
    pub(crate) dry: Option<CallPredictions>,
    /// `clawk skill test --run`: the tested skill.
    pub(crate) trial: Option<&'a str>,
}

/// A running agent, with data for its user interface.
#[derive(Debug)]
pub(crate) struct Agent {
    /// Handle of the kernel.
    pub(crate) kernel: Kernel,
    /// The agent's manifest.
    pub(crate) manifest: Arc<Manifest>,
    /// The agent's journal.
    pub(crate) journal: Arc<dyn Journal>,
    /// The local settings.
    pub(crate) settings: Settings,
    /// The state directory.
    pub(crate) state_dir: PathBuf,
    /// Notes to show to the user.
    pub(crate) notes: Vec<String>,
    /// The host with its other entry points, such as the control socket.
    host: Served,
    launched: Arc<LaunchedAgentFactory>,
    /// Ends the control socket when cancelled.
    over: CancellationToken,
}

/// The result of verifying a session's chain.
#[derive(Debug)]
pub(crate) struct ChainProof {
    /// The chain is valid.
    pub(crate) valid: bool,
    /// Number of events in the chain.
    pub(crate) events: u64,
    /// The fault, if it is not valid.
    pub(crate) fault: Option<String>,
}

/// Starts an agent from files: a host whose client is this process, with a control socket.
pub(crate) async fn start_agent(request: &Request<'_>, ask: Option<AskUserHandler>) -> Result<Agent> {
    let config = Config::load(request.config, Some(request.manifest))?.with_outside_access(request.outside);
    let blueprint = ResolvedConfig::with_config(request.manifest, config).await?;
    let mut blueprint = blueprint
        .with_consent(request.trust, trust::can_ask_user())
        .await?;
    trial::prepare_manifest(&mut blueprint.manifest, request.trial)?;
    let launched = match &request.dry {
        None => LaunchedAgentFactory::new(blueprint, request.state, ask).await?,
        Some(predictions) => {
            LaunchedAgentFactory::for_dry_run(blueprint, request.state, ask, predictions.clone()).await?
        }
    };
    let launched = Arc::new(launched);
    let journal: Arc<dyn Journal> = launched.state().journal();
    let cut_off = cut_off(&*journal).await?;
    let options = clawk_server::Options {
        drain_timeout_ms: DRAIN_MS,
        ..clawk_server::Options::default()
    };
    let host = Served::new(Arc::clone(&launched) as _, options);
    let kernel = host.start_agent(None).await?;
    let unknown = unknown_effects(&kernel).await?;
    let over = CancellationToken::new();
    #[expect(
        clippy::disallowed_methods,
        reason = "ends by the token, which `Agent::close` fires"
    )]
    tokio::spawn(launched.control_socket(&host)?.serve(over.clone()));
    let blueprint = launched.resolved_config();
    let in_vain = own::denied_in_vain(&blueprint.config, &blueprint.manifest, &blueprint.workdir);
    Ok(Agent {
        kernel,
        manifest: Arc::clone(&blueprint.manifest),
        journal,
        settings: blueprint.config.settings.clone(),
        state_dir: launched.state().path().to_owned(),
        notes: blueprint
            .warning
            .iter()
            .chain(&in_vain)
            .chain(&blueprint.config.settings.memory.open_to_all())
            .chain(&blueprint.models)
            .cloned()
            .chain(blueprint.model_warnings())
            .chain(cut_off)
            .chain(unknown)
            .collect(),
        host,
        launched,
        over,
    })
}

/// Returns lines about conversations whose interrupted turns now continue by themselves.
async fn cut_off(journal: &dyn Journal) -> Result<Vec<String>> {
    let mut sessions: Vec<SessionId> = Vec::new();
    for open in journal.open_messages().await? {
        if !sessions.contains(&open.session) {
            sessions.push(open.session);
        }
    }
    Ok(sessions
        .into_iter()
        .map(|session| {
            format!("a turn that was cut off goes on: session {session} (`--session` takes it up)")
        })
        .collect())
}

/// Returns lines about unknown effects of earlier runs, and how to resolve them.
pub(crate) async fn unknown_effects(kernel: &Kernel) -> Result<Vec<String>> {
    const SHOWN: usize = 3;
    let open = kernel.open_effects().await?;
    let mut notes: Vec<String> = open
        .iter()
        .take(SHOWN)
        .map(|effect| {
            format!(
                "`{}` of an earlier run may have been done, its outcome is unknown: {} (`clawk effects resolve` records what you find out)",
                effect.tool, effect.request_id
            )
        })
        .collect();
    if open.len() > SHOWN {
        notes.push(format!(
            "and {} more: `clawk effects --unknown` lists them",
            open.len() - SHOWN
        ));
    }
    Ok(notes)
}

impl Agent {
    /// Returns the file for the input history; `None` if the agent's stores are encrypted. An earlier history is then deleted.
    pub(crate) fn history_file(&self) -> Result<Option<PathBuf>> {
        let file = self.state_dir.join("history");
        if self.launched.state().vault().is_none() {
            return Ok(Some(file));
        }
        match std::fs::remove_file(&file) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error)
                .with_context(|| format!("can't remove `{}`, which is not encrypted", file.display())),
            _ => Ok(None),
        }
    }

    /// Opens a new session, or an earlier one by its id or `last`.
    pub(crate) async fn open_session(&self, which: Option<&str>) -> Result<SessionHandle> {
        let id: SessionId = match which {
            None => return Ok(self.kernel.open_session(EntryPoint::Cli).await?),
            Some("last") => self.last_conversation().await?,
            Some(id) => id
                .parse()
                .with_context(|| format!("`{id}` is not a valid session id; `clawk sessions` lists them"))?,
        };
        Ok(self.kernel.reopen_session(id, EntryPoint::Cli).await?)
    }

    /// Returns the latest session with a person's message. Each run also has its own lifecycle session.
    async fn last_conversation(&self) -> Result<SessionId> {
        let kinds = &["ckp.message.accepted"];
        for row in self.journal.list_sessions(1000).await? {
            let scan = clawk_kernel::ports::JournalScan {
                session: Some(row.session),
                kinds,
                limit: 1,
                ..Default::default()
            };
            if !self.journal.scan_events(scan).await?.is_empty() {
                return Ok(row.session);
            }
        }
        bail!("there is no earlier session in `{}`", self.state_dir.display());
    }

    /// Ends the agent normally and releases the state directory.
    pub(crate) async fn close(&self, reason: &str) {
        self.host.close(reason).await;
        self.over.cancel();
        self.launched.close().await;
    }

    /// Reads a session's chain again and verifies it.
    pub(crate) fn chain_proof(&self, session: SessionId) -> Result<ChainProof> {
        let report = StateReader::open(&self.state_dir)?.verify(Some(session))?;
        Ok(ChainProof {
            valid: report.valid,
            events: report.event_count,
            fault: report
                .fault
                .map(|fault| format!("{}: {}", fault.kind.code(), fault.detail)),
        })
    }
}
