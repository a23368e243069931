//! `cron`: a schedule that begins runs (C11). What it began and where it was is kept in its cursor.

mod entry;

use std::fmt;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use clawk_kernel::ports::{BoxFuture, Delivery};
use clawk_kernel::time::Timestamp;
use clawk_manifest::model::{Channel, OverlapPolicy, Trigger};
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

pub(super) use self::entry::CRON;
use crate::adapter::{
    ChannelAdapter, ChannelDisconnect, InboundPipeline, IngestOutcome, LengthUnit, MarkupFormat,
    OutboundMessage, PlatformCapabilities, PlatformMessage,
};
use crate::config::{ChannelConfig, MissedRunPolicy};
use crate::runs::{goes_on, record_trigger};
use crate::timetable::CronTimetable;

/// The longest sleep: the machine's clock may be set, milliseconds.
const LONGEST_SLEEP_MS: i64 = 30_000;
/// How late a wake-up may be, microseconds.
const LATE_US: i64 = 60_000_000;
/// Missed runs that are counted.
const COUNTED: usize = 1_000;
/// How soon something that could not be kept is tried again.
const AGAIN: Duration = Duration::from_secs(5);

/// What outlives the process.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
struct StoredCronState {
    /// The last time of the schedule that was dealt with, RFC 3339.
    last: Option<String>,
    /// Runs under way.
    running: Vec<String>,
    /// One that waits for a place.
    queued: Option<String>,
}

/// The channel.
pub(crate) struct CronAdapter {
    table: CronTimetable,
    trigger: Trigger,
    missed: MissedRunPolicy,
    prompt: String,
    kept: Mutex<StoredCronState>,
    finished: Notify,
    /// When this process began to watch the schedule.
    started: OnceLock<Timestamp>,
    /// One run begins at a time.
    beginning: tokio::sync::Mutex<()>,
}

impl fmt::Debug for CronAdapter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Cron({})", self.table.as_str())
    }
}

/// What became of a run.
enum CronRunStart {
    Started,
    Queued,
    Skipped,
    /// The journal could not keep it now.
    Later(String),
}

impl CronAdapter {
    pub(crate) fn new(channel: &Channel, config: &ChannelConfig) -> Result<Self, String> {
        let schedule =
            crate::platform_kit::required(channel, "schedule", |trigger| trigger.schedule.as_deref())?;
        let trigger = channel.trigger.clone().unwrap_or_default(); // silent-ok: it has a schedule
        let table = CronTimetable::new(&schedule, config.timezone.as_deref())?;
        let prompt = config.prompt.clone().unwrap_or_else(|| {
            format!(
                "The schedule `{}` is due ({{time}}). Do what you are there for.",
                channel.name
            )
        });
        Ok(Self {
            table,
            trigger,
            missed: config.missed,
            prompt,
            kept: Mutex::default(),
            finished: Notify::new(),
            started: OnceLock::new(),
            beginning: tokio::sync::Mutex::default(),
        })
    }

    fn lock_stored(&self) -> MutexGuard<'_, StoredCronState> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn save_state(&self, inlet: &InboundPipeline) {
        let kept = self.lock_stored().clone();
        // silent-ok: a plain struct always serialises
        let text = serde_json::to_string(&kept).unwrap_or_default();
        if let Err(error) = inlet.set_cursor(&text) {
            inlet.report_degraded(format!("where the schedule is can't be kept: {error}"));
        }
    }

    /// Takes up what the last process left: its place in the schedule, and its runs that still go on.
    async fn restore_state(&self, inlet: &InboundPipeline) -> Result<(), String> {
        let text = inlet.read_cursor().map_err(|error| error.to_string())?;
        let mut kept: StoredCronState = match text {
            Some(text) => serde_json::from_str(&text).unwrap_or_else(|error| {
                tracing::warn!(%error, "where the schedule was can't be read; it begins anew");
                StoredCronState::default()
            }),
            None => StoredCronState::default(),
        };
        let mut running = Vec::new();
        for run in std::mem::take(&mut kept.running) {
            if goes_on(inlet, &run).await? {
                running.push(run);
            }
        }
        kept.running = running;
        *self.lock_stored() = kept;
        Ok(())
    }

    /// Begins a run where there is a place for it.
    async fn begin_run(&self, inlet: &InboundPipeline, run: &str) -> CronRunStart {
        let _alone = self.beginning.lock().await;
        let places = usize::try_from(self.trigger.max_parallel.max(1)).unwrap_or(usize::MAX);
        if self.lock_stored().running.len() >= places {
            let waits = self.lock_stored().queued.is_some();
            let reason = format!("{places} runs are under way");
            return if self.trigger.overlap_policy == OverlapPolicy::Queue && !waits {
                self.lock_stored().queued = Some(run.to_owned());
                self.save_state(inlet);
                record_trigger(inlet, run, "queued", Some(reason)).await;
                CronRunStart::Queued
            } else {
                record_trigger(inlet, run, "skipped", Some(reason)).await;
                CronRunStart::Skipped
            };
        }
        let time = run.split(' ').nth(1).unwrap_or(run);
        // silent-ok: the time is ours; what can't be read is told as it is
        let time = Timestamp::parse(time).map_or_else(|_| time.to_owned(), |at| self.table.local_time(at));
        // Before it can end: its place is taken.
        self.lock_stored().running.push(run.to_owned());
        let taken = inlet
            .ingest_message(PlatformMessage {
                ids: vec![run.to_owned()],
                conversation: run.to_owned(),
                direct: true,
                sender: Some(inlet.channel().name.clone()),
                text: self.prompt.replace("{time}", &time).replace("{event}", run),
                ..PlatformMessage::default()
            })
            .await;
        match taken {
            IngestOutcome::Accepted {
                message, duplicate, ..
            } => {
                // Taken before a crash: it may be over.
                let over = duplicate && !inlet.kernel().is_open(message).await.unwrap_or(true); // silent-ok: then it ends by its answer
                if over {
                    self.finish_run(run);
                }
                self.save_state(inlet);
                if !duplicate {
                    record_trigger(inlet, run, "started", None).await;
                }
                CronRunStart::Started
            }
            IngestOutcome::Refused(reason) => {
                self.finish_run(run);
                record_trigger(inlet, run, "skipped", Some(reason)).await;
                CronRunStart::Skipped
            }
            IngestOutcome::Ignored => {
                self.finish_run(run);
                CronRunStart::Skipped
            }
            IngestOutcome::Later(reason) => {
                self.finish_run(run);
                CronRunStart::Later(reason)
            }
        }
    }

    fn finish_run(&self, run: &str) {
        self.lock_stored().running.retain(|running| running != run);
    }

    /// Deals with the times that have passed.
    async fn handle_due_times(&self, inlet: &InboundPipeline) -> Result<(), String> {
        let now = inlet.clock().now();
        self.started.get_or_init(|| now);
        let last = self.lock_stored().last.clone();
        // silent-ok: a time of ours always reads
        let Some(mut last) = last.and_then(|last| Timestamp::parse(&last).ok()) else {
            // The first start ever: nothing was missed.
            self.lock_stored().last = Some(now.to_string());
            self.save_state(inlet);
            return Ok(());
        };
        let mut passed = Vec::new();
        while let Some(next) = self.table.next(last).filter(|next| *next <= now) {
            passed.push(next);
            last = next;
            if passed.len() >= COUNTED {
                break;
            }
        }
        let Some(latest) = passed.pop() else { return Ok(()) };
        // Missed is what was due before this process watched. Later on, a minute is a late wake-up, more is a machine that slept.
        let started = *self.started.get_or_init(|| now);
        let late = latest < started || now.0 - latest.0 > LATE_US;
        let run = |at: Timestamp| format!("run {at}");
        if !passed.is_empty() {
            let reason = format!("{} runs were missed while the agent was down", passed.len());
            let first = passed.first().copied().map(run).unwrap_or_default();
            record_trigger(inlet, &first, "missed", Some(reason)).await;
        }
        if late && self.missed == MissedRunPolicy::Skip {
            let reason = "the agent was down".to_owned();
            record_trigger(inlet, &run(latest), "missed", Some(reason)).await;
        } else if let CronRunStart::Later(reason) = self.begin_run(inlet, &run(latest)).await {
            return Err(reason);
        }
        self.lock_stored().last = Some(latest.to_string());
        self.save_state(inlet);
        Ok(())
    }

    /// Gives a place that is free to the run that waits.
    async fn promote_waiting(&self, inlet: &InboundPipeline) -> Result<(), String> {
        let places = usize::try_from(self.trigger.max_parallel.max(1)).unwrap_or(usize::MAX);
        let run = {
            let kept = self.lock_stored();
            kept.queued.clone().filter(|_| kept.running.len() < places)
        };
        let Some(run) = run else {
            self.save_state(inlet);
            return Ok(());
        };
        match self.begin_run(inlet, &run).await {
            CronRunStart::Later(reason) => return Err(reason),
            CronRunStart::Started | CronRunStart::Queued | CronRunStart::Skipped => {
                self.lock_stored().queued = None
            }
        }
        self.save_state(inlet);
        Ok(())
    }

    async fn run_schedule(&self, inlet: &InboundPipeline, over: &CancellationToken) -> ChannelDisconnect {
        if let Err(reason) = self.restore_state(inlet).await {
            return ChannelDisconnect::temporary(reason);
        }
        inlet.report_ready();
        loop {
            let mut done = self.handle_due_times(inlet).await;
            if done.is_ok() {
                done = self.promote_waiting(inlet).await;
            }
            let wait = match done {
                Ok(()) => {
                    let now = inlet.clock().now();
                    let ms = self
                        .table
                        .next(now)
                        .map_or(LONGEST_SLEEP_MS, |next| (next.0 - now.0) / 1000 + 1);
                    Duration::from_millis(ms.clamp(1, LONGEST_SLEEP_MS).unsigned_abs())
                }
                Err(reason) => {
                    inlet.report_degraded(reason);
                    AGAIN
                }
            };
            tokio::select! {
                () = over.cancelled() => return ChannelDisconnect::temporary("the agent ends"),
                () = self.finished.notified() => {}
                () = tokio::time::sleep(wait) => {}
            }
        }
    }
}

impl ChannelAdapter for CronAdapter {
    fn capabilities(&self) -> PlatformCapabilities {
        PlatformCapabilities {
            markup: MarkupFormat::Markdown,
            ..PlatformCapabilities::plain_text(usize::MAX, LengthUnit::Bytes)
        }
    }

    fn run_listener<'a>(
        &'a self,
        inlet: &'a InboundPipeline,
        over: &'a CancellationToken,
    ) -> BoxFuture<'a, ChannelDisconnect> {
        Box::pin(self.run_schedule(inlet, over))
    }

    fn send_message<'a>(&'a self, _out: &'a OutboundMessage) -> BoxFuture<'a, Delivery> {
        // Nobody reads in a schedule; `deliver_to` says where its answers go.
        Box::pin(std::future::ready(Delivery::Delivered { platform_id: None }))
    }

    fn fire_trigger<'a>(&'a self, inlet: &'a InboundPipeline) -> BoxFuture<'a, Result<bool, String>> {
        Box::pin(async move {
            let run = format!("fired {} {}", inlet.clock().now(), inlet.clock().new_uuid());
            match self.begin_run(inlet, &run).await {
                CronRunStart::Started | CronRunStart::Queued => Ok(true),
                CronRunStart::Skipped => {
                    Err("it was skipped: as many runs as `max_parallel` are under way".to_owned())
                }
                CronRunStart::Later(reason) => Err(reason),
            }
        })
    }

    fn on_run_finished<'a>(&'a self, conversation: &'a str) -> BoxFuture<'a, ()> {
        self.finish_run(conversation);
        self.finished.notify_one();
        Box::pin(std::future::ready(()))
    }
}
