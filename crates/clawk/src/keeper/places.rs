//! Second places for signed heads: a file, a webhook. The journal stores what each place has received, so nothing waits in memory
//! and a restart loses nothing.

use std::fs;
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::state::kept::{Delivery, StateDir, StateReader, StoredHead};
use anyhow::{Context, Result, bail};
use clawk_egress::{ClientDeadlines, EgressClient, Request, Url};
use clawk_kernel::ports::BoxFuture;
use clawk_secrets::EnvironmentSource;
use clawk_trace::checkpoint::CheckpointLine;
use tokio_util::sync::CancellationToken;

use super::StateKeeperShared;

/// Names in the journal's table of deliveries.
pub(super) const FILE: &str = "file";
const WEBHOOK: &str = "webhook";
/// Number of heads in memory at a time.
const PORTION: usize = 16;
/// Length of the file's end in which its last tree head must be found, in bytes. A head has at most 257 lines.
const TAIL_BYTES: u64 = 256 * 1024;
/// First and longest delay of a failing webhook.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
const MAX_ANSWER_BYTES: u64 = 64 * 1024;

/// A destination for signed heads.
pub(super) trait HeadSink: Send + Sync {
    fn deliver_head<'a>(&'a self, head: &'a StoredHead) -> BoxFuture<'a, Result<()>>;
}

/// Delivers the missing heads to a place. Returns `false` if it failed; the failure is counted and logged.
pub(super) async fn update_sink(state: &StateDir, name: &'static str, place: &dyn HeadSink) -> bool {
    let mut delivery = match last_delivery(state, name) {
        Ok(delivery) => delivery,
        Err(error) => {
            tracing::error!(
                error = format!("{error:#}"),
                place = name,
                "the deliveries can't be read"
            );
            return false;
        }
    };
    loop {
        let heads = match state.heads_after(delivery.size, PORTION).await {
            Ok(heads) => heads,
            Err(error) => {
                tracing::error!(%error, place = name, "the heads can't be read");
                return false;
            }
        };
        if heads.is_empty() {
            return true;
        }
        for head in heads {
            let outcome = place.deliver_head(&head).await;
            match &outcome {
                Ok(()) => (delivery.size, delivery.error) = (head.size, None),
                Err(error) => {
                    delivery.failures += 1;
                    delivery.error = Some(format!("{error:#}"));
                    tracing::error!(
                        error = format!("{error:#}"),
                        place = name,
                        failures = delivery.failures,
                        "a signed head did not reach its second place; it is tried again"
                    );
                }
            }
            if let Err(error) = state.delivered(name, delivery.clone()).await {
                tracing::error!(%error, place = name, "a delivery could not be noted");
                return false;
            }
            if outcome.is_err() {
                return false;
            }
        }
    }
}

fn last_delivery(state: &StateDir, name: &str) -> Result<Delivery> {
    let all = StateReader::open(state.path())?.deliveries()?;
    let known = all.into_iter().find(|(place, _)| place == name);
    Ok(known.map(|(_, delivery)| delivery).unwrap_or_default())
}

/// A file on another disk, or an append-only file.
#[derive(Debug, Clone)]
pub(super) struct HeadFile(PathBuf);

impl HeadFile {
    pub(super) const fn new(path: PathBuf) -> Self {
        Self(path)
    }

    /// Checks that the last head in the file belongs to this journal. Otherwise an older or another state was restored.
    pub(super) fn check_head(&self, state: &StateDir) -> Result<()> {
        let shown = self.0.display();
        let Some(size) = self
            .last_size()
            .with_context(|| format!("`checkpoints.file` `{shown}`"))?
        else {
            return Ok(());
        };
        let reader = StateReader::open(state.path())?;
        let rows = reader.last_row()?;
        let known = reader.head_of(size.0)?.is_some_and(|head| head.root == size.1);
        if rows < size.0 || !known {
            bail!(
                "`{shown}` holds a signed head of {} events that the journal in `{}` ({rows} events) does not have: an older \
                 state was put back, or it is another agent's file; nothing was started. Look with `clawk trace verify \
                 --state {} --checkpoints {shown}`; if this is meant, name another file in `checkpoints.file`",
                size.0,
                state.path().display(),
                state.path().display(),
            );
        }
        Ok(())
    }

    fn last_size(&self) -> Result<Option<(u64, clawk_proto::Digest)>> {
        let mut file = match fs::File::open(&self.0) {
            Ok(file) => file,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(e.into()),
        };
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(TAIL_BYTES)))?;
        let mut tail = Vec::new();
        file.take(TAIL_BYTES).read_to_end(&mut tail)?;
        let tail = String::from_utf8_lossy(&tail);
        // silent-ok: a half line at the beginning of the tail, or at its end after a power failure
        let mut lines = tail
            .lines()
            .rev()
            .filter_map(|line| CheckpointLine::parse(line).ok());
        Ok(lines.find_map(|line| match line {
            CheckpointLine::Tree(head) => Some((head.statement.size, head.statement.root)),
            CheckpointLine::Session(_) => None,
        }))
    }
}

impl HeadSink for HeadFile {
    fn deliver_head<'a>(&'a self, head: &'a StoredHead) -> BoxFuture<'a, Result<()>> {
        let (path, lines) = (self.0.clone(), head.lines.clone());
        Box::pin(async move {
            let shown = path.display().to_string();
            let write = tokio::task::spawn_blocking(move || -> io::Result<()> {
                let mut options = fs::OpenOptions::new();
                let mut file = options.append(true).create(true).mode(0o600).open(path)?;
                file.write_all(lines.as_bytes())?;
                file.sync_data()
            });
            write.await?.with_context(|| format!("can't write `{shown}`"))
        })
    }
}

/// A URL that receives heads as JSON Lines. Any 2xx status means success.
#[derive(Debug)]
pub(super) struct HeadWebhook {
    url: Url,
    client: EgressClient,
}

impl HeadWebhook {
    pub(super) fn new(url: &str, env: &EnvironmentSource) -> Result<Self> {
        let url: Url = url.parse().context("is no address")?;
        let deadlines = ClientDeadlines {
            connect_ms: 3_000,
            first_byte_ms: 10_000,
            idle_ms: 5_000,
            total_ms: 15_000,
        };
        let client = EgressClient::for_provider(&url, env, deadlines, MAX_ANSWER_BYTES)?;
        Ok(Self { url, client })
    }

    /// Posts signed heads, repeats failed deliveries, and posts once more at the end.
    pub(super) async fn serve(self, shared: Arc<StateKeeperShared>, over: CancellationToken) {
        let mut pause = FIRST_PAUSE;
        loop {
            if update_sink(&shared.state, WEBHOOK, &self).await {
                pause = FIRST_PAUSE;
                tokio::select! {
                    () = shared.signed.notified() => continue,
                    () = over.cancelled() => {}
                }
            } else {
                tokio::select! {
                    () = tokio::time::sleep(pause) => {}
                    () = over.cancelled() => {}
                }
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
            if over.is_cancelled() {
                // The last head is signed at the same time. Without one there is nothing to wait for.
                let _none = tokio::time::timeout(Duration::from_secs(2), shared.signed.notified()).await; // silent-ok: as said
                update_sink(&shared.state, WEBHOOK, &self).await;
                return;
            }
        }
    }
}

impl HeadSink for HeadWebhook {
    fn deliver_head<'a>(&'a self, head: &'a StoredHead) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            let request = Request::post(
                self.url.clone(),
                "application/x-ndjson",
                head.lines.clone().into_bytes(),
            );
            let response = self.client.send(request).await?;
            let status = response.status();
            if !status.is_success() {
                bail!("it answered {status}");
            }
            Ok(())
        })
    }
}
