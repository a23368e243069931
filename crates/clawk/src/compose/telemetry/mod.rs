//! Telemetry (CKP §5.10). Each exporter follows the journal on its own. Its position is stored beside the state, so that a crash or
//! an absent receiver loses nothing, and the agent never waits for an exporter.

mod facts;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use clawk_egress::{ClientDeadlines, EgressClient, Url};
use clawk_kernel::kind;
use clawk_kernel::ports::{Journal, JournalScan};
use clawk_kernel::time::{Clock as _, SystemClock};
use clawk_manifest::Manifest;
use clawk_manifest::model::{Exporter as Declared, ExporterType, MetricSettings};
use clawk_secrets::SecretResolver;
use clawk_telemetry::{
    Batch, ExporterMetrics, FileSink, HttpSink, Label, MetricPoint, SqliteSink, TelemetryAssembler,
    TelemetryRecord, TelemetryResource, TelemetrySelection, TelemetrySink,
};
use serde::{Deserialize, Serialize};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use crate::keeper::written;
use facts::DeclaredNames;

/// Folder in the state for each exporter's position, and for files with a relative `path`.
const FOLDER: &str = "telemetry";
/// Defaults of `batch.max_size` and `batch.flush_interval_ms`.
const MAX_SIZE: u64 = 512;
const FLUSH_MS: u64 = 1000;
/// Upper limit for a batch, whatever the manifest says.
const MOST: u64 = 10_000;
/// First and longest delay after a failure, in milliseconds.
const FIRST_PAUSE_MS: u64 = 500;
const LONGEST_PAUSE_MS: u64 = 30_000;
/// Time limit for one delivery, and for all deliveries at the end of a run.
const DELIVERY: Duration = Duration::from_secs(20);
const LAST: Duration = Duration::from_secs(3);
/// Number of attempts after which a batch that the receiver calls malformed is skipped.
const REFUSALS: u32 = 3;
/// Size above which a file is rotated, and number of rotated files that are kept.
const MAX_FILE_BYTES: u64 = 64 << 20;
const KEPT_FILES: u32 = 4;
const MAX_ANSWER_BYTES: u64 = 64 << 10;

/// The stored position of an exporter.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Cursor {
    /// The last journal row that was delivered or skipped.
    row: u64,
    /// Start of the metrics' interval, in microseconds since the epoch.
    since_us: i64,
    /// The metrics up to that row.
    points: Vec<MetricPoint>,
    /// Number of batches that the receiver refused permanently.
    refused: u64,
    /// The reason of the current failure; `None`: deliveries work.
    failing: Option<String>,
}

/// One telemetry exporter.
#[derive(Debug)]
pub(crate) struct Exporter {
    name: String,
    wanted: TelemetrySelection,
    metrics: MetricSettings,
    resource: TelemetryResource,
    names: DeclaredNames,
    journal: Arc<dyn Journal>,
    file: PathBuf,
    sink: Arc<TelemetrySink>,
    auth: Option<(SecretResolver, String)>,
    max_size: usize,
    interval: Duration,
    clock: SystemClock,
}

/// Builds the exporters that the manifest declares.
///
/// # Errors
/// An endpoint is not a valid address; or the manifest came from a client and names a file of this machine or a secret.
pub(crate) fn build_exporters(
    manifest: &Manifest,
    is_wired: bool,
    state: &Path,
    journal: &Arc<dyn Journal>,
    resolver: &SecretResolver,
) -> Result<Vec<Exporter>> {
    let Some(telemetry) = &manifest.telemetry else {
        return Ok(Vec::new());
    };
    let agent = &manifest.metadata.name;
    let wanted = TelemetrySelection::from_manifest(telemetry, agent);
    if wanted.is_off() {
        return Ok(Vec::new());
    }
    let folder = state.join(FOLDER);
    std::fs::create_dir_all(&folder).with_context(|| format!("can't make `{}`", folder.display()))?;
    let exporters = telemetry.exporters.iter().enumerate();
    exporters
        .map(|(number, declared)| {
            let name = format!("{number}-{}", declared.kind.as_str());
            let sink = build_sink(declared, is_wired, &folder, resolver)
                .with_context(|| format!("the telemetry exporter `{name}`"))?;
            let secret = declared.auth.as_ref().map(|auth| auth.secret_ref.clone());
            Ok(Exporter {
                file: folder.join(format!("{name}.cursor")),
                name,
                wanted: wanted.clone(),
                metrics: telemetry.metrics.clone(),
                resource: TelemetryResource {
                    agent: Label::from_declared(agent),
                },
                names: DeclaredNames::of(manifest),
                journal: Arc::clone(journal),
                sink: Arc::new(sink),
                auth: secret.map(|secret| (resolver.clone(), secret)),
                max_size: usize::try_from(declared.batch.max_size.unwrap_or(MAX_SIZE).clamp(1, MOST))?,
                interval: Duration::from_millis(declared.batch.flush_interval_ms.unwrap_or(FLUSH_MS)),
                clock: SystemClock::default(),
            })
        })
        .collect()
}

fn build_sink(
    declared: &Declared,
    is_wired: bool,
    folder: &Path,
    resolver: &SecretResolver,
) -> Result<TelemetrySink> {
    let path = || -> Result<PathBuf> {
        let path = Path::new(declared.path.as_deref().unwrap_or_default());
        let plain = path
            .components()
            .all(|part| matches!(part, std::path::Component::Normal(_)));
        match (path.is_absolute(), is_wired) {
            (true, false) => Ok(path.to_owned()),
            (false, _) if plain => Ok(folder.join(path)),
            (true, true) => {
                bail!("a manifest from the wire names no file of this machine: give a relative `path`")
            }
            (false, _) => bail!("a relative `path` stays in the state's folder `telemetry`: no `..`"),
        }
    };
    if is_wired && declared.auth.is_some() {
        bail!("a manifest from the wire names no secret of this machine");
    }
    let http = || -> Result<HttpSink> {
        // silent-ok: the cause may quote the address, which may hold a secret
        let endpoint: Url = declared
            .endpoint
            .as_deref()
            .unwrap_or_default()
            .parse()
            .map_err(|_| anyhow::anyhow!("`endpoint` is not a valid address"))?;
        let deadlines = ClientDeadlines {
            connect_ms: 3_000,
            first_byte_ms: 10_000,
            idle_ms: 5_000,
            total_ms: 15_000,
        };
        let client = EgressClient::for_provider(&endpoint, resolver.env(), deadlines, MAX_ANSWER_BYTES)?;
        Ok(HttpSink { endpoint, client })
    };
    Ok(match declared.kind {
        ExporterType::Otlp => TelemetrySink::Otlp(http()?),
        ExporterType::Webhook => TelemetrySink::Webhook(http()?),
        ExporterType::File => TelemetrySink::File(FileSink {
            path: path()?,
            max_bytes: MAX_FILE_BYTES,
            kept: KEPT_FILES,
        }),
        ExporterType::Sqlite => TelemetrySink::Sqlite(SqliteSink { path: path()? }),
        ExporterType::Console => TelemetrySink::Console,
    })
}

/// Records that wait for delivery.
#[derive(Debug)]
struct PendingExport {
    assembler: TelemetryAssembler,
    meter: ExporterMetrics,
    cursor: Cursor,
    items: Vec<TelemetryRecord>,
    counted: bool,
    /// Time since when records wait.
    since: Option<Instant>,
    /// A delivery that timed out and still blocks its thread.
    stuck: Option<JoinHandle<()>>,
    refusals: u32,
}

impl Exporter {
    /// Delivers until `over`, then delivers the rest within a time limit.
    pub(crate) async fn serve(mut self, over: CancellationToken) {
        let mut work = self.begin_export().await;
        let mut commits = self.journal.watch_commits();
        let mut pause_ms = FIRST_PAUSE_MS;
        let mut failing = false;
        while !over.is_cancelled() {
            let step = tokio::select! {
                step = self.step_export(&mut work, false) => step,
                () = over.cancelled() => break,
            };
            let wait = match step {
                Ok(true) => continue,
                Ok(false) => {
                    if failing {
                        tracing::warn!(exporter = %self.name, "telemetry is delivered again");
                    }
                    (failing, pause_ms) = (false, FIRST_PAUSE_MS);
                    work.since
                        .map(|since| self.interval.saturating_sub(since.elapsed()))
                }
                Err(error) => {
                    self.record_failure(&mut work, &error, failing);
                    failing = true;
                    let jitter = self.clock.random_u64() % (pause_ms / 2);
                    let wait = Duration::from_millis(pause_ms / 2 + jitter);
                    pause_ms = (pause_ms * 2).min(LONGEST_PAUSE_MS);
                    Some(wait)
                }
            };
            let later = async {
                match wait {
                    Some(wait) => tokio::time::sleep(wait).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = written(&mut commits), if !failing => {}
                () = later => {}
                () = over.cancelled() => {}
            }
        }
        let last = async {
            loop {
                match self.step_export(&mut work, true).await {
                    Ok(true) => {}
                    Ok(false) => break,
                    Err(error) => {
                        self.record_failure(&mut work, &error, failing);
                        break;
                    }
                }
            }
        };
        if timeout(LAST, last).await.is_err() {
            tracing::warn!(exporter = %self.name, "telemetry of this run's end waits for the next run");
        }
    }

    async fn begin_export(&mut self) -> PendingExport {
        // silent-ok: without a position the whole journal is delivered again; a duplicate is better than a gap
        let text = std::fs::read_to_string(&self.file).unwrap_or_default();
        let mut cursor: Cursor = serde_json::from_str(&text).unwrap_or_default(); // silent-ok: as said
        if cursor.since_us == 0 {
            cursor.since_us = self.clock.now().0;
        }
        let known = JournalScan {
            kinds: &[kind::TOOL_DESCRIBED],
            limit: 1000,
            ..JournalScan::default()
        };
        // silent-ok: tools whose names can't be read now become `other`
        for event in self.journal.scan_events(known).await.unwrap_or_default() {
            let _fact = facts::of(&event, &mut self.names);
        }
        PendingExport {
            assembler: TelemetryAssembler::new(self.wanted.clone()),
            meter: ExporterMetrics::new(self.metrics.clone(), cursor.points.clone()),
            cursor,
            items: Vec::new(),
            counted: false,
            since: None,
            stuck: None,
            refusals: 0,
        }
    }

    /// Reads more events and delivers if it is time. Returns whether more events may be available at once.
    async fn step_export(&mut self, work: &mut PendingExport, ends: bool) -> Result<bool> {
        let room = self.max_size.saturating_sub(work.items.len());
        let mut read = 0;
        if room > 0 {
            let scan = JournalScan {
                after_row: work.cursor.row,
                limit: room.min(1000),
                kinds: facts::KINDS,
                ..JournalScan::default()
            };
            let limit = scan.limit;
            let events = self.journal.scan_events(scan).await?;
            read = usize::from(events.len() == limit);
            for event in &events {
                work.cursor.row = event.row;
                let Some(fact) = facts::of(event, &mut self.names) else {
                    continue;
                };
                work.counted |= work.meter.count_fact(&fact);
                work.items.extend(work.assembler.assemble_record(&fact));
            }
        }
        let waits = !work.items.is_empty() || work.counted;
        if !waits {
            work.since = None;
            return Ok(read > 0);
        }
        let since = *work.since.get_or_insert_with(Instant::now);
        let is_full = work.items.len() >= self.max_size;
        if is_full || ends || since.elapsed() >= self.interval {
            self.deliver_batch(work).await?;
            return Ok(is_full || read > 0);
        }
        Ok(read > 0)
    }

    async fn deliver_batch(&self, work: &mut PendingExport) -> Result<()> {
        if let Some(stuck) = &mut work.stuck {
            timeout(DELIVERY, stuck)
                .await
                .context("an earlier delivery still hangs")??;
            work.stuck = None;
        }
        let points = if work.counted {
            work.meter.points()
        } else {
            Vec::new()
        };
        let batch = Batch {
            items: work.items.clone(),
            points,
            times: (work.cursor.since_us, self.clock.now().0),
        };
        let (sink, resource, auth) = (Arc::clone(&self.sink), self.resource.clone(), self.auth.clone());
        let (tell, told) = tokio::sync::oneshot::channel();
        // Files, databases and a secret's command block, so they must not run on the runtime's only worker.
        let handle = tokio::runtime::Handle::current();
        let task = tokio::task::spawn_blocking(move || {
            let secret = auth.map(|(resolver, name)| resolver.resolve(&name)).transpose();
            let done: Result<()> = match secret {
                Ok(secret) => handle
                    .block_on(sink.deliver_batch(&batch, &resource, secret.as_ref()))
                    .map_err(Into::into),
                Err(error) => Err(error.into()),
            };
            let _gone = tell.send(done); // silent-ok: nobody waits any more
        });
        let done = match timeout(DELIVERY, told).await {
            Ok(done) => done.context("the delivery broke off")?,
            Err(_) => {
                work.stuck = Some(task);
                bail!("no answer in {} seconds", DELIVERY.as_secs());
            }
        };
        if let Err(error) = done {
            let error_of = error.downcast_ref::<clawk_telemetry::DeliveryError>();
            let is_refusal = error_of.is_some_and(clawk_telemetry::DeliveryError::is_refusal);
            work.refusals += u32::from(is_refusal);
            if !is_refusal || work.refusals < REFUSALS {
                return Err(error);
            }
            work.cursor.refused += 1;
            tracing::error!(exporter = %self.name, records = work.items.len(), error = format!("{error:#}"), "a batch of telemetry is left out: its receiver refuses it");
        }
        work.refusals = 0;
        work.items.clear();
        (work.counted, work.since) = (false, None);
        work.cursor.points = work.meter.points();
        work.cursor.failing = None;
        self.store_cursor(&work.cursor)
    }

    /// Records in the log and in the state that deliveries fail. `told`: the log already has it.
    fn record_failure(&self, work: &mut PendingExport, error: &anyhow::Error, told: bool) {
        let error = format!("{error:#}");
        if !told {
            tracing::error!(exporter = %self.name, row = work.cursor.row, error, "telemetry waits: its receiver does not take it");
        }
        work.cursor.failing = Some(error);
        self.note_failure(work);
    }

    /// Stores the reason of the failure; the position stays at the last delivery.
    fn note_failure(&self, work: &PendingExport) {
        let text = std::fs::read_to_string(&self.file).unwrap_or_default(); // silent-ok: nothing was delivered yet
        let mut kept: Cursor = serde_json::from_str(&text).unwrap_or_default(); // silent-ok: as above
        kept.failing.clone_from(&work.cursor.failing);
        if let Err(error) = self.store_cursor(&kept) {
            tracing::error!(exporter = %self.name, error = format!("{error:#}"), "the exporter's place can't be kept");
        }
    }

    fn store_cursor(&self, cursor: &Cursor) -> Result<()> {
        let fresh = self.file.with_extension("cursor.new");
        std::fs::write(&fresh, serde_json::to_vec(cursor)?)?;
        std::fs::rename(&fresh, &self.file).with_context(|| format!("can't write `{}`", self.file.display()))
    }
}

/// Returns a line for `clawk doctor` about each exporter that is behind or has skipped something.
pub(crate) fn exporter_troubles(state: &Path) -> Vec<String> {
    let mut found = Vec::new();
    // silent-ok: no exporter has run yet
    for entry in std::fs::read_dir(state.join(FOLDER))
        .into_iter()
        .flatten()
        .flatten()
    {
        let path = entry.path();
        if path.extension().is_none_or(|end| end != "cursor") {
            continue;
        }
        let text = std::fs::read_to_string(&path).unwrap_or_default(); // silent-ok: it was replaced just now
        let cursor: Cursor = serde_json::from_str(&text).unwrap_or_default(); // silent-ok: as above
        let name = path
            .file_stem()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        if let Some(why) = cursor.failing {
            found.push(format!("exporter `{name}` lags behind: {why}"));
        }
        if cursor.refused > 0 {
            found.push(format!(
                "exporter `{name}`: {} batches were refused by its receiver",
                cursor.refused
            ));
        }
    }
    found.sort();
    found
}
