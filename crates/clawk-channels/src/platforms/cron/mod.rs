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
use crate::runs::{goes_on, record};
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

    fn kept(&self) -> MutexGuard<'_, StoredCronState> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn save(&self, inlet: &InboundPipeline) {
        let kept = self.kept().clone();
        // silent-ok: a plain struct always serialises
        let text = serde_json::to_string(&kept).unwrap_or_default();
        if let Err(error) = inlet.set_cursor(&text) {
            inlet.degraded(format!("where the schedule is can't be kept: {error}"));
        }
    }

    /// Takes up what the last process left: its place in the schedule, and its runs that still go on.
    async fn restore(&self, inlet: &InboundPipeline) -> Result<(), String> {
        let text = inlet.cursor().map_err(|error| error.to_string())?;
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
        *self.kept() = kept;
        Ok(())
    }

    /// Begins a run where there is a place for it.
    async fn begin(&self, inlet: &InboundPipeline, run: &str) -> CronRunStart {
        let _alone = self.beginning.lock().await;
        let places = usize::try_from(self.trigger.max_parallel.max(1)).unwrap_or(usize::MAX);
        if self.kept().running.len() >= places {
            let waits = self.kept().queued.is_some();
            let reason = format!("{places} runs are under way");
            return if self.trigger.overlap_policy == OverlapPolicy::Queue && !waits {
                self.kept().queued = Some(run.to_owned());
                self.save(inlet);
                record(inlet, run, "queued", Some(reason)).await;
                CronRunStart::Queued
            } else {
                record(inlet, run, "skipped", Some(reason)).await;
                CronRunStart::Skipped
            };
        }
        let time = run.split(' ').nth(1).unwrap_or(run);
        // silent-ok: the time is ours; what can't be read is told as it is
        let time = Timestamp::parse(time).map_or_else(|_| time.to_owned(), |at| self.table.told(at));
        // Before it can end: its place is taken.
        self.kept().running.push(run.to_owned());
        let taken = inlet
            .message(PlatformMessage {
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
                    self.done(run);
                }
                self.save(inlet);
                if !duplicate {
                    record(inlet, run, "started", None).await;
                }
                CronRunStart::Started
            }
            IngestOutcome::Refused(reason) => {
                self.done(run);
                record(inlet, run, "skipped", Some(reason)).await;
                CronRunStart::Skipped
            }
            IngestOutcome::Ignored => {
                self.done(run);
                CronRunStart::Skipped
            }
            IngestOutcome::Later(reason) => {
                self.done(run);
                CronRunStart::Later(reason)
            }
        }
    }

    fn done(&self, run: &str) {
        self.kept().running.retain(|running| running != run);
    }

    /// Deals with the times that have passed.
    async fn due(&self, inlet: &InboundPipeline) -> Result<(), String> {
        let now = inlet.clock().now();
        self.started.get_or_init(|| now);
        let last = self.kept().last.clone();
        // silent-ok: a time of ours always reads
        let Some(mut last) = last.and_then(|last| Timestamp::parse(&last).ok()) else {
            // The first start ever: nothing was missed.
            self.kept().last = Some(now.to_string());
            self.save(inlet);
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
            record(inlet, &first, "missed", Some(reason)).await;
        }
        if late && self.missed == MissedRunPolicy::Skip {
            let reason = "the agent was down".to_owned();
            record(inlet, &run(latest), "missed", Some(reason)).await;
        } else if let CronRunStart::Later(reason) = self.begin(inlet, &run(latest)).await {
            return Err(reason);
        }
        self.kept().last = Some(latest.to_string());
        self.save(inlet);
        Ok(())
    }

    /// Gives a place that is free to the run that waits.
    async fn promote(&self, inlet: &InboundPipeline) -> Result<(), String> {
        let places = usize::try_from(self.trigger.max_parallel.max(1)).unwrap_or(usize::MAX);
        let run = {
            let kept = self.kept();
            kept.queued.clone().filter(|_| kept.running.len() < places)
        };
        let Some(run) = run else {
            self.save(inlet);
            return Ok(());
        };
        match self.begin(inlet, &run).await {
            CronRunStart::Later(reason) => return Err(reason),
            CronRunStart::Started | CronRunStart::Queued | CronRunStart::Skipped => self.kept().queued = None,
        }
        self.save(inlet);
        Ok(())
    }

    async fn work(&self, inlet: &InboundPipeline, over: &CancellationToken) -> ChannelDisconnect {
        if let Err(reason) = self.restore(inlet).await {
            return ChannelDisconnect::broken(reason);
        }
        inlet.ready();
        loop {
            let mut done = self.due(inlet).await;
            if done.is_ok() {
                done = self.promote(inlet).await;
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
                    inlet.degraded(reason);
                    AGAIN
                }
            };
            tokio::select! {
                () = over.cancelled() => return ChannelDisconnect::broken("the agent ends"),
                () = self.finished.notified() => {}
                () = tokio::time::sleep(wait) => {}
            }
        }
    }
}

impl ChannelAdapter for CronAdapter {
    fn abilities(&self) -> PlatformCapabilities {
        PlatformCapabilities {
            markup: MarkupFormat::Markdown,
            ..PlatformCapabilities::plain(usize::MAX, LengthUnit::Bytes)
        }
    }

    fn start<'a>(
        &'a self,
        inlet: &'a InboundPipeline,
        over: &'a CancellationToken,
    ) -> BoxFuture<'a, ChannelDisconnect> {
        Box::pin(self.work(inlet, over))
    }

    fn send<'a>(&'a self, _out: &'a OutboundMessage) -> BoxFuture<'a, Delivery> {
        // Nobody reads in a schedule; `deliver_to` says where its answers go.
        Box::pin(std::future::ready(Delivery::Delivered { platform_id: None }))
    }

    fn fire<'a>(&'a self, inlet: &'a InboundPipeline) -> BoxFuture<'a, Result<bool, String>> {
        Box::pin(async move {
            let run = format!("fired {} {}", inlet.clock().now(), inlet.clock().uuid());
            match self.begin(inlet, &run).await {
                CronRunStart::Started | CronRunStart::Queued => Ok(true),
                CronRunStart::Skipped => {
                    Err("it was skipped: as many runs as `max_parallel` are under way".to_owned())
                }
                CronRunStart::Later(reason) => Err(reason),
            }
        })
    }

    fn finished<'a>(&'a self, conversation: &'a str) -> BoxFuture<'a, ()> {
        self.done(conversation);
        self.finished.notify_one();
        Box::pin(std::future::ready(()))
    }
}
