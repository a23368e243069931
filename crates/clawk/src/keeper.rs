//! The keeper of a state directory while an agent runs: signs the journal regularly and at a normal end, copies the signed heads to
//! a second place, and deletes expired contents.

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

use crate::activity::ActivityFollower;
use crate::audit::Audit;
use crate::compose::telemetry::Exporter;

/// Time to collect further writes before the journal is examined.
const LOOK: Duration = Duration::from_millis(250);
/// Delay before a failed signature is tried again.
const RETRY: Duration = Duration::from_secs(1);
/// Interval between two deletions of expired contents.
const EXPIRY: Duration = Duration::from_secs(3600);
/// Time limit at the end of a run for the last signature and its delivery.
const LAST: Duration = Duration::from_secs(5);
const DAY_MS: i64 = 86_400_000;
/// Number of events that a start replays to check its projections. A thousand events take a few milliseconds.
const NEWEST_EVENTS: u64 = 10_000;

/// `[checkpoints]`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct CheckpointsConfig {
    /// Number of events after which the journal is signed; 0: only by time.
    pub(crate) every_events: u64,
    /// Number of seconds after which new events are signed; 0: only by number.
    pub(crate) every_seconds: u64,
    /// A second place: a file to which signed heads are appended. Relative to the configuration's folder.
    pub(crate) file: Option<PathBuf>,
    /// A second place: a URL to which signed heads are posted.
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
    /// Age in days after which contents are deleted, if no newer event refers to them; 0: never.
    pub(crate) retained_days: u32,
}

/// Runs beside an agent until [`Self::close`].
#[derive(Debug)]
pub(crate) struct StateKeeper {
    over: CancellationToken,
    tasks: Vec<JoinHandle<()>>,
}

/// Data shared by the keeper's tasks.
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
    /// Checks the journal against its signatures; called before [`Self::start`].
    ///
    /// # Errors
    /// The key, the signed heads, the journal and the tables beside it do not match.
    pub(crate) fn check(state: &StateDir) -> Result<()> {
        // A new state has nothing to compare. Its key is made with the first signature, so that the first answer need not wait for
        // it.
        if state.is_signed()? {
            state.check_heads(&state.signer()?.public())?;
        }
        sound(state)
    }

    /// Starts the keeper's tasks.
    ///
    /// # Errors
    /// The second place does not match the journal, or the webhook's address is not valid.
    pub(crate) fn start(
        state: &StateDir,
        checkpoints: &CheckpointsConfig,
        retention: &Retention,
        env: &clawk_secrets::EnvironmentSource,
    ) -> Result<Self> {
        let file = checkpoints.file.clone().map(HeadFile::new);
        if let Some(file) = &file {
            file.check_head(state)?;
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

    /// Adds audits, which the keeper also runs.
    pub(crate) fn also(&mut self, audits: Vec<Audit>) {
        let over = &self.over;
        self.tasks
            .extend(audits.into_iter().map(|audit| spawn(audit.serve(over.clone()))));
    }

    /// Adds telemetry exporters, which the keeper also runs.
    pub(crate) fn telling(&mut self, exporters: Vec<Exporter>) {
        let over = &self.over;
        self.tasks.extend(
            exporters
                .into_iter()
                .map(|exporter| spawn(exporter.serve(over.clone()))),
        );
    }

    /// Adds the activity log of a served agent, which the keeper also runs.
    pub(crate) fn log_activity(&mut self, follower: ActivityFollower) {
        self.tasks.push(spawn(follower.serve(self.over.clone())));
    }

    /// Signs and copies the journal a last time, within a time limit. The agent must have ended.
    pub(crate) async fn close(self) {
        self.over.cancel();
        let all = futures_of(self.tasks);
        if tokio::time::timeout(LAST, all).await.is_err() {
            tracing::error!("the last head could not be signed or carried to its second place in time");
        }
    }
}

/// Waits until something is written, and a short time for further writes, so that a busy journal does not wake the task for each
/// commit.
pub(crate) async fn written(commits: &mut watch::Receiver<u64>) {
    if commits.changed().await.is_err() {
        // The journal is closed; the cancellation token ends the wait.
        std::future::pending::<()>().await;
    }
    tokio::time::sleep(LOOK).await;
    commits.mark_unchanged();
}

/// Waits until an instant; forever if there is none.
async fn at(due: Option<Instant>) {
    match due {
        Some(due) => tokio::time::sleep_until(due).await,
        None => std::future::pending().await,
    }
}

/// Checks that the tables beside the journal match its newest events. Otherwise a start could repeat, forget or spend again what an
/// attacker removed. `clawk trace verify` checks all events.
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
    /// Signs whenever a signature is due, and once at the end.
    async fn sign(self: Arc<Self>, over: CancellationToken) {
        let mut signer = None;
        // Events that an earlier run did not sign are due at once.
        let (mut signed, mut last, mut behind) = (0, Instant::now(), true);
        let CheckpointsConfig {
            every_events,
            every_seconds,
            ..
        } = self.checkpoints;
        let mut commits = self.state.watch();
        let (mut new, mut failed) = (0, false);
        loop {
            // Sleep until something is written, or until an unsigned event is old enough.
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
            places::update_sink(&self.state, places::FILE, file).await;
        }
        Ok(())
    }

    /// Deletes expired contents now and every hour.
    async fn expire(self: Arc<Self>, over: CancellationToken) {
        let days = i64::from(self.retention.retained_days);
        loop {
            let before = self.clock.now().plus_millis(-days.saturating_mul(DAY_MS));
            let reason = format!("kept for {days} days");
            // If several hosts share the state, only the leader does this.
            while kept::sharing_status(&self.state).leads {
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
