//! The agent of `clawk run`: a host whose surface is this process.

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

/// How long a chat's end waits for what is in flight, milliseconds.
const DRAIN_MS: u64 = 5_000;

/// What `clawk run` wants.
#[derive(Debug)]
pub(crate) struct Request<'a> {
    /// The manifest.
    pub(crate) manifest: &'a Path,
    /// `--config`.
    pub(crate) config: Option<&'a Path>,
    /// `--state`.
    pub(crate) state: Option<&'a Path>,
    /// `--allow-outside`.
    pub(crate) outside: AllowOutsideArgs,
    /// `--trust`.
    pub(crate) trust: bool,
    /// `--dry-run`: where predictions go.
    pub(crate) dry: Option<CallPredictions>,
    /// `clawk skill test --run`: the skill that is tried.
    pub(crate) trial: Option<&'a str>,
}

/// A running agent with what its surface needs beside it.
#[derive(Debug)]
pub(crate) struct Agent {
    /// The handle.
    pub(crate) kernel: Kernel,
    /// What it runs.
    pub(crate) manifest: Arc<Manifest>,
    /// Its log.
    pub(crate) journal: Arc<dyn Journal>,
    /// What is local.
    pub(crate) settings: Settings,
    /// Where its state lies.
    pub(crate) state_dir: PathBuf,
    /// What a person should know.
    pub(crate) notes: Vec<String>,
    /// What its other doors, such as the control socket, come to.
    host: Served,
    launched: Arc<LaunchedAgentFactory>,
    /// The control socket lives until this fires.
    over: CancellationToken,
}

/// Whether a session's chain holds.
#[derive(Debug)]
pub(crate) struct ChainProof {
    /// It does.
    pub(crate) valid: bool,
    /// Events in it.
    pub(crate) events: u64,
    /// What is wrong, else.
    pub(crate) fault: Option<String>,
}

/// Starts an agent from files: a host whose surface is this process, with the control socket beside it.
pub(crate) async fn agent(request: &Request<'_>, ask: Option<AskUserHandler>) -> Result<Agent> {
    let config = Config::load(request.config, Some(request.manifest))?.outside(request.outside);
    let blueprint = ResolvedConfig::with_config(request.manifest, config).await?;
    let mut blueprint = blueprint.agreed(request.trust, trust::asks()).await?;
    trial::prepare(&mut blueprint.manifest, request.trial)?;
    let launched = match &request.dry {
        None => LaunchedAgentFactory::new(blueprint, request.state, ask).await?,
        Some(predictions) => {
            LaunchedAgentFactory::dry(blueprint, request.state, ask, predictions.clone()).await?
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
    let kernel = host.start(None).await?;
    let unknown = unknown_effects(&kernel).await?;
    let over = CancellationToken::new();
    #[expect(
        clippy::disallowed_methods,
        reason = "ends by the token, which `Agent::close` fires"
    )]
    tokio::spawn(launched.control(&host)?.serve(over.clone()));
    let blueprint = launched.blueprint();
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

/// Says which conversations have turns that were cut off and now go on by themselves.
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

/// Says what earlier runs may have done, and how to find out.
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
    /// Where lines that are typed are remembered; nowhere, if the agent's stores are encrypted: what was remembered before goes.
    pub(crate) fn history(&self) -> Result<Option<PathBuf>> {
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

    /// A new session, or an earlier one: its id, or `last`.
    pub(crate) async fn session(&self, which: Option<&str>) -> Result<SessionHandle> {
        let id: SessionId = match which {
            None => return Ok(self.kernel.open(EntryPoint::Cli).await?),
            Some("last") => self.last_conversation().await?,
            Some(id) => id
                .parse()
                .with_context(|| format!("`{id}` is not a valid session id; `clawk sessions` lists them"))?,
        };
        Ok(self.kernel.reopen(id, EntryPoint::Cli).await?)
    }

    /// The latest session that a person spoke in: every run has one of its own for its lifecycle, too.
    async fn last_conversation(&self) -> Result<SessionId> {
        let kinds = &["ckp.message.accepted"];
        for row in self.journal.sessions(1000).await? {
            let scan = clawk_kernel::ports::JournalScan {
                session: Some(row.session),
                kinds,
                limit: 1,
                ..Default::default()
            };
            if !self.journal.scan(scan).await?.is_empty() {
                return Ok(row.session);
            }
        }
        bail!("there is no earlier session in `{}`", self.state_dir.display());
    }

    /// Ends the agent in good order and gives the state directory free.
    pub(crate) async fn close(&self, reason: &str) {
        self.host.close(reason).await;
        self.over.cancel();
        self.launched.close().await;
    }

    /// Verifies a session's chain by reading it afresh.
    pub(crate) fn proof(&self, session: SessionId) -> Result<ChainProof> {
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
