//! The keeper of a state directory while an agent runs: signs the journal from time to time and at an orderly end, carries the
//! signed heads to a second place, and lets contents expire.

mod places;
#[cfg(test)]
mod tests;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::state::kept::{self, ErasureSelection, StateDir};
use anyhow::{Context, Result, bail};
use clawk_kernel::time::{Clock, SystemClock};
use clawk_trace::checkpoint::TraceSigner;
use serde::{Deserialize, Serialize};
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use places::{HeadFile, HeadWebhook};

use crate::audit::Audit;
use crate::compose::telemetry::Exporter;

/// How long it lets more come before it looks at what was written.
const LOOK: Duration = Duration::from_millis(250);
/// How soon a head that could not be signed is tried again.
const RETRY: Duration = Duration::from_secs(1);
/// How often contents are let expire.
const EXPIRY: Duration = Duration::from_secs(3600);
/// How long the end of a run waits for the last head and its delivery.
const LAST: Duration = Duration::from_secs(5);
const DAY_MS: i64 = 86_400_000;
/// Events that a start folds again to hold its projections against them; a few milliseconds' work for each thousand.
const NEWEST_EVENTS: u64 = 10_000;

/// `[checkpoints]`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct CheckpointsConfig {
    /// After so many events; 0: by time alone.
    pub(crate) every_events: u64,
    /// After so many seconds in which something came; 0: by events alone.
    pub(crate) every_seconds: u64,
    /// A second place: heads are appended to this file. Relative to the configuration's folder.
    pub(crate) file: Option<PathBuf>,
    /// A second place: heads are posted there.
    pub(crate) webhook: Option<String>,
}

impl Default for CheckpointsConfig {
    fn default() -> Self {
        Self {
            every_events: 1000,
            every_seconds: 60,
            file: None,
            webhook: None,
        }
    }
}

/// `[retention]`.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Retention {
    /// Contents that only events older than so many days refer to are erased; 0: never.
    pub(crate) retained_days: u32,
}

/// Works beside an agent until [`Self::close`].
#[derive(Debug)]
pub(crate) struct StateKeeper {
    over: CancellationToken,
    tasks: Vec<JoinHandle<()>>,
}

/// What its tasks share.
#[derive(Debug)]
struct StateKeeperShared {
    state: StateDir,
    checkpoints: CheckpointsConfig,
    retention: Retention,
    file: Option<HeadFile>,
    signed: Notify,
    clock: SystemClock,
}

impl StateKeeper {
    /// Refuses a journal that is not the one that was signed; before [`Self::start`].
    ///
    /// # Errors
    /// The key, the heads, the journal and the tables beside it don't fit each other.
    pub(crate) fn check(state: &StateDir) -> Result<()> {
        // A fresh state has nothing to be held against: its key is made with the first head, not before the first answer.
        if state.is_signed()? {
            state.check_heads(&state.signer()?.public())?;
        }
        sound(state)
    }

    /// Begins.
    ///
    /// # Errors
    /// The second place does not fit the journal; the webhook's address is none.
    pub(crate) fn start(
        state: &StateDir,
        checkpoints: &CheckpointsConfig,
        retention: &Retention,
        env: &clawk_secrets::EnvironmentSource,
    ) -> Result<Self> {
        let file = checkpoints.file.clone().map(HeadFile::new);
        if let Some(file) = &file {
            file.check(state)?;
        }
        let webhook = checkpoints
            .webhook
            .as_deref()
            .map(|url| HeadWebhook::new(url, env))
            .transpose()
            .context("`checkpoints.webhook`")?;
        let shared = Arc::new(StateKeeperShared {
            state: state.clone(),
            checkpoints: checkpoints.clone(),
            retention: retention.clone(),
            file,
            signed: Notify::new(),
            clock: SystemClock::default(),
        });
        let over = CancellationToken::new();
        let mut tasks = vec![spawn(Arc::clone(&shared).sign(over.clone()))];
        if let Some(webhook) = webhook {
            tasks.push(spawn(webhook.serve(Arc::clone(&shared), over.clone())));
        }
        if retention.retained_days > 0 {
            tasks.push(spawn(shared.expire(over.clone())));
        }
        Ok(Self { over, tasks })
    }

    /// Keeps audits going, too.
    pub(crate) fn also(&mut self, audits: Vec<Audit>) {
        let over = &self.over;
        self.tasks
            .extend(audits.into_iter().map(|audit| spawn(audit.serve(over.clone()))));
    }

    /// Keeps telemetry going, too.
    pub(crate) fn telling(&mut self, exporters: Vec<Exporter>) {
        let over = &self.over;
        self.tasks.extend(
            exporters
                .into_iter()
                .map(|exporter| spawn(exporter.serve(over.clone()))),
        );
    }

    /// Signs what is there and carries it out once more; for a bounded time. The agent has ended before.
    pub(crate) async fn close(self) {
        self.over.cancel();
        let all = futures_of(self.tasks);
        if tokio::time::timeout(LAST, all).await.is_err() {
            tracing::error!("the last head could not be signed or carried to its second place in time");
        }
    }
}

/// Until something was written, and what came right behind it: a busy journal wakes nobody for each commit.
pub(crate) async fn written(commits: &mut watch::Receiver<u64>) {
    if commits.changed().await.is_err() {
        // The journal is closed; the token says when to end.
        std::future::pending::<()>().await;
    }
    tokio::time::sleep(LOOK).await;
    commits.mark_unchanged();
}

/// Until a point of time; for ever where there is none.
async fn at(due: Option<Instant>) {
    match due {
        Some(due) => tokio::time::sleep_until(due).await,
        None => std::future::pending().await,
    }
}

/// Whether what is kept beside the journal is what its newest events tell: a start must not repeat, forget or spend anew what
/// somebody took out. All of it, whatever its age: `clawk trace verify`.
fn sound(state: &StateDir) -> Result<()> {
    let differs = state.projections(Some(NEWEST_EVENTS))?;
    let Some(first) = differs.first() else {
        return Ok(());
    };
    let path = state.path().display();
    bail!(
        "the state in `{path}` does not fit its journal: {first}; nothing was started. Look with `clawk trace verify --state \
         {path}`, and keep the directory as evidence"
    )
}

async fn futures_of(tasks: Vec<JoinHandle<()>>) {
    for task in tasks {
        if let Err(error) = task.await {
            tracing::error!(%error, "a task of the keeper ended by itself");
        }
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "ends by the token, which `Keeper::close` fires; the handle is awaited there"
)]
fn spawn(task: impl Future<Output = ()> + Send + 'static) -> JoinHandle<()> {
    tokio::spawn(task)
}

impl StateKeeperShared {
    /// Signs whenever it is due, and once at the end.
    async fn sign(self: Arc<Self>, over: CancellationToken) {
        let mut signer = None;
        // Whatever an earlier run left unsigned counts as due.
        let (mut signed, mut last, mut behind) = (0, Instant::now(), true);
        let CheckpointsConfig {
            every_events,
            every_seconds,
            ..
        } = self.checkpoints;
        let mut commits = self.state.watch();
        let (mut new, mut failed) = (0, false);
        loop {
            // Asleep until something is written, or what is written has waited long enough.
            let waits = every_seconds > 0 && (new > 0 || behind);
            let due = match failed {
                true => Some(last + RETRY),
                false => waits.then(|| last + Duration::from_secs(every_seconds)),
            };
            let ends = tokio::select! {
                () = written(&mut commits) => false,
                () = at(due) => false,
                () = over.cancelled() => true,
            };
            let entries = self.state.stats().entries;
            new = entries - signed;
            let by_count = every_events > 0 && new >= every_events;
            let by_time = every_seconds > 0
                && (new > 0 || behind)
                && last.elapsed() >= Duration::from_secs(every_seconds);
            if by_count || by_time || failed || ends {
                let sealed = self.seal(&mut signer).await;
                last = Instant::now();
                match sealed {
                    Ok(()) => (signed, behind, new, failed) = (entries, false, 0, false),
                    Err(error) => {
                        failed = true;
                        tracing::error!(error = format!("{error:#}"), "the journal could not be signed");
                    }
                }
            }
            if ends {
                return;
            }
        }
    }

    async fn seal(&self, signer: &mut Option<TraceSigner>) -> Result<()> {
        if signer.is_none() {
            *signer = Some(self.state.signer()?);
        }
        let Some(signer) = signer else { return Ok(()) };
        if self.state.seal(signer, self.clock.now()).await?.is_some() {
            self.signed.notify_one();
        }
        if let Some(file) = &self.file {
            places::carry(&self.state, places::FILE, file).await;
        }
        Ok(())
    }

    /// Lets contents expire now and every hour.
    async fn expire(self: Arc<Self>, over: CancellationToken) {
        let days = i64::from(self.retention.retained_days);
        loop {
            let before = self.clock.now().plus_millis(-days.saturating_mul(DAY_MS));
            let reason = format!("kept for {days} days");
            // Of several hosts, one does it.
            while kept::sharing(&self.state).leads {
                match self
                    .state
                    .erase(
                        ErasureSelection::Before(before),
                        &reason,
                        "retention",
                        &self.clock,
                    )
                    .await
                {
                    Ok(erased) if erased.more && !over.is_cancelled() => {}
                    Ok(_) => break,
                    Err(error) => {
                        tracing::error!(%error, "contents could not be let expire");
                        break;
                    }
                }
            }
            tokio::select! {
                () = tokio::time::sleep(EXPIRY) => {}
                () = over.cancelled() => return,
            }
        }
    }
}
