//! Schedules that the agent makes for itself in a conversation (the built-in tool `schedule`): durable, with an end and a number of
//! runs, and never with more rights than the person has who was spoken with.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use clawk_kernel::time::{Clock, Timestamp};
use clawk_kernel::{ChannelFact, EntryPoint, Kernel, Role};
use clawk_proto::SessionId;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::adapter::{IngestOutcome, PlatformMessage};
use crate::cursor::Cursor;
use crate::handle::ChannelHandle;
use crate::message::RUN;
use crate::timetable::CronTimetable;

/// Schedules of one conversation, and of all.
const MAX_OF_CONVERSATION: usize = 20;
const MAX_ALL: usize = 500;
/// Runs of one schedule.
const MAX_RUNS: u32 = 1_000;
/// The furthest end, days.
const MAX_DAYS: i64 = 366;
/// Characters of what a schedule says.
const MAX_PROMPT: usize = 4_000;
/// How often it is looked what is due.
const LOOK: Duration = Duration::from_millis(500);
const DAY_US: i64 = 86_400_000_000;

/// What the tool is asked for.
#[derive(Debug, Clone, Deserialize)]
#[serde(tag = "action", rename_all = "lowercase", deny_unknown_fields)]
pub enum ScheduleRequest {
    /// A new schedule.
    Create {
        /// Five-field cron expression; either this or `at`.
        #[serde(default)]
        cron: Option<String>,
        /// One time, RFC 3339.
        #[serde(default)]
        at: Option<String>,
        /// IANA name for `cron`; UTC when absent.
        #[serde(default)]
        timezone: Option<String>,
        /// What the agent is told when it is due.
        prompt: String,
        /// The end, RFC 3339; needed for `cron`.
        #[serde(default)]
        until: Option<String>,
        /// How many runs there may be; needed for `cron`.
        #[serde(default)]
        max_runs: Option<u32>,
    },
    /// The schedules of this conversation.
    List,
    /// Ends a schedule of this conversation.
    Cancel {
        /// Its id.
        id: String,
    },
}

/// One schedule.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Schedule {
    id: String,
    channel: String,
    conversation: String,
    direct: bool,
    sender: String,
    /// At most this role.
    role: Role,
    cron: Option<String>,
    timezone: Option<String>,
    prompt: String,
    /// Origins of the prompt: those of the conversation in which it was made.
    #[serde(default)]
    made_from: Vec<String>,
    /// When it is due next, microseconds since 1970.
    next: i64,
    until: i64,
    left: u32,
}

impl Schedule {
    /// The time after this one; none: it was the last.
    ///
    /// # Errors
    /// Its times can't be read any more, for instance because the machine has lost its time zones.
    fn next_time(&self, now: Timestamp) -> Result<Option<Timestamp>, String> {
        let Some(cron) = self.cron.as_deref() else {
            return Ok(None);
        };
        let table = CronTimetable::new(cron, self.timezone.as_deref())?;
        Ok(table.next(now).filter(|next| next.0 <= self.until))
    }

    fn to_json(&self) -> Value {
        json!({"id": self.id, "cron": self.cron, "next": Timestamp(self.next).to_string(), "until": Timestamp(self.until).to_string(),
            "runs_left": self.left, "prompt": self.prompt})
    }
}

/// All schedules of an agent.
#[derive(Debug)]
pub(crate) struct ScheduleRegistry {
    kernel: Kernel,
    clock: Arc<dyn Clock>,
    cursor: Cursor,
    all: Mutex<Vec<Schedule>>,
}

impl ScheduleRegistry {
    /// Reads what was kept.
    ///
    /// # Errors
    /// It can't be read: for people.
    pub(crate) fn new(kernel: Kernel, clock: Arc<dyn Clock>, folder: &Path) -> Result<Self, String> {
        // No channel has this name.
        let cursor = Cursor::new(folder, "!schedules");
        let all = match cursor.get().map_err(|error| error.to_string())? {
            Some(text) => serde_json::from_str(&text).map_err(|error| error.to_string())?,
            None => Vec::new(),
        };
        Ok(Self {
            kernel,
            clock,
            cursor,
            all: Mutex::new(all),
        })
    }

    fn lock_schedules(&self) -> MutexGuard<'_, Vec<Schedule>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the list, durably or not at all.
    fn change_schedules<T>(
        &self,
        change: impl FnOnce(&mut Vec<Schedule>) -> Result<T, String>,
    ) -> Result<T, String> {
        let mut all = self.lock_schedules();
        let before = all.clone();
        let done = change(&mut all)?;
        let text = serde_json::to_string(&*all).map_err(|error| error.to_string())?;
        if let Err(error) = self.cursor.store_text(&text) {
            *all = before;
            return Err(format!("the schedules can't be kept: {error}"));
        }
        Ok(done)
    }

    async fn record_schedule(&self, schedule: &Schedule, what: &str, reason: Option<String>) {
        let fact = ChannelFact::Run {
            channel: schedule.channel.clone(),
            what: what.to_owned(),
            run: format!("schedule {}", schedule.id),
            reason,
        };
        // The schedule itself is in its own file, and a run in the journal: nothing else hangs on this line.
        if let Err(error) = self.kernel.record_channel(&fact).await {
            tracing::error!(%error, "what a schedule did could not be recorded");
        }
    }

    /// Does what the tool asks for in the conversation of a session, for the person whose turn runs there. `made_from`: origins of
    /// what the call is made from.
    pub(crate) async fn handle_request(
        &self,
        session: SessionId,
        wanted: ScheduleRequest,
        made_from: &[String],
    ) -> Result<Value, String> {
        let Some(EntryPoint::Channel {
            channel,
            conversation,
            direct,
            sender,
            role,
        }) = self
            .kernel
            .asker_of(session)
            .or_else(|| self.kernel.door_of(session))
        else {
            return Err(
                "schedules are made in a channel's conversation, where their answers can go".to_owned(),
            );
        };
        let here = |schedule: &Schedule| schedule.channel == channel && schedule.conversation == conversation;
        match wanted {
            ScheduleRequest::List => {
                let all = self.lock_schedules();
                let shown: Vec<Value> = all
                    .iter()
                    .filter(|schedule| here(schedule))
                    .map(Schedule::to_json)
                    .collect();
                Ok(json!({ "schedules": shown }))
            }
            ScheduleRequest::Cancel { id } => {
                let ended = self.change_schedules(|all| {
                    let at = all
                        .iter()
                        .position(|schedule| schedule.id == id && here(schedule));
                    let at = at.ok_or_else(|| "this conversation has no schedule of this id".to_owned())?;
                    Ok(all.remove(at))
                })?;
                self.record_schedule(&ended, "cancelled", None).await;
                Ok(json!({ "cancelled": ended.id }))
            }
            create @ ScheduleRequest::Create { .. } => {
                self.create_schedule(
                    (channel.clone(), conversation.clone(), direct, sender, role),
                    create,
                    made_from,
                )
                .await
            }
        }
    }

    /// Makes a schedule in a conversation: channel, conversation, whether it is direct, the person and their role.
    async fn create_schedule(
        &self,
        (channel, conversation, direct, sender, role): (String, String, bool, String, Role),
        wanted: ScheduleRequest,
        made_from: &[String],
    ) -> Result<Value, String> {
        let ScheduleRequest::Create {
            cron,
            at,
            timezone,
            prompt,
            until,
            max_runs,
        } = wanted
        else {
            return Err("this is not a new schedule".to_owned());
        };
        let here = |schedule: &Schedule| schedule.channel == channel && schedule.conversation == conversation;
        let now = self.clock.now();
        let (next, until, left) = schedule_times(
            now,
            cron.as_deref(),
            at.as_deref(),
            timezone.as_deref(),
            until.as_deref(),
            max_runs,
        )?;
        if prompt.trim().is_empty() || prompt.chars().count() > MAX_PROMPT {
            return Err(format!("`prompt` has 1 to {MAX_PROMPT} characters"));
        }
        let made = Schedule {
            id: self.clock.new_uuid().to_string(),
            channel: channel.clone(),
            conversation: conversation.clone(),
            direct,
            sender,
            // A schedule never answers questions, whoever asked for it.
            role: role.min(Role::User),
            cron,
            timezone,
            prompt,
            made_from: made_from.to_vec(),
            next: next.0,
            until: until.0,
            left,
        };
        let shown = made.to_json();
        self.change_schedules(|all| {
            if all.len() >= MAX_ALL
                || all.iter().filter(|schedule| here(schedule)).count() >= MAX_OF_CONVERSATION
            {
                return Err(format!(
                    "there are too many schedules; a conversation has at most {MAX_OF_CONVERSATION}"
                ));
            }
            all.push(made.clone());
            Ok(())
        })?;
        self.record_schedule(&made, "scheduled", None).await;
        Ok(shown)
    }

    /// Begins what is due until `over` fires.
    pub(crate) async fn run(&self, lanes: &HashMap<String, ChannelHandle>, over: &CancellationToken) {
        loop {
            let now = self.clock.now();
            let due: Vec<Schedule> = self
                .lock_schedules()
                .iter()
                .filter(|schedule| schedule.next <= now.0)
                .cloned()
                .collect();
            for schedule in due {
                self.begin_run(lanes, schedule, now).await;
            }
            tokio::select! {
                () = over.cancelled() => return,
                () = tokio::time::sleep(LOOK) => {}
            }
        }
    }

    async fn begin_run(&self, lanes: &HashMap<String, ChannelHandle>, due: Schedule, now: Timestamp) {
        let Some(lane) = lanes.get(&due.channel) else {
            self.drop_it(&due, "the agent has no channel of this name any more")
                .await;
            return;
        };
        if due.next > due.until {
            self.drop_it(&due, "its end has passed").await;
            return;
        }
        if !lane.inlet.lets_in(&due.sender) {
            self.drop_it(&due, "the person is not let in any more").await;
            return;
        }
        // The id of a run is its time: after a crash, the same run is taken once.
        let incoming = PlatformMessage {
            ids: vec![format!("{RUN}{}:{}", due.id, due.next)],
            conversation: due.conversation.clone(),
            direct: due.direct,
            mention: true,
            sender: Some(due.sender.clone()),
            text: format!(
                "[This is due by schedule {}, which you made earlier.]\n{}",
                due.id, due.prompt
            ),
            ..PlatformMessage::default()
        };
        match lane
            .inlet
            .ingest_scheduled(incoming, due.role, &due.made_from)
            .await
        {
            IngestOutcome::Later(reason) => {
                tracing::warn!(reason, "a schedule's run could not be kept; it is tried again");
                return;
            }
            // Too much waits in the conversation: this run is left out, and the schedule goes on.
            IngestOutcome::Refused(reason) => self.record_schedule(&due, "skipped", Some(reason)).await,
            IngestOutcome::Accepted { .. } | IngestOutcome::Ignored => {
                self.record_schedule(&due, "started", None).await
            }
        }
        // What was missed meanwhile is made up for by this one run.
        let next = match due.next_time(now) {
            Ok(next) => next.filter(|_| due.left > 1),
            Err(reason) => {
                self.drop_it(&due, &reason).await;
                return;
            }
        };
        let kept = self.change_schedules(|all| {
            match next {
                Some(next) => {
                    for schedule in all.iter_mut().filter(|schedule| schedule.id == due.id) {
                        schedule.next = next.0;
                        schedule.left -= 1;
                    }
                }
                None => all.retain(|schedule| schedule.id != due.id),
            }
            Ok(())
        });
        match kept {
            Ok(()) if next.is_none() => self.record_schedule(&due, "ended", None).await,
            Ok(()) => {}
            Err(reason) => tracing::warn!(reason, "a schedule could not be moved on; its run is known"),
        }
    }

    async fn drop_it(&self, schedule: &Schedule, reason: &str) {
        let dropped = self.change_schedules(|all| {
            all.retain(|known| known.id != schedule.id);
            Ok(())
        });
        if let Err(reason) = dropped {
            tracing::warn!(reason, "a schedule could not be ended");
        }
        self.record_schedule(schedule, "ended", Some(reason.to_owned()))
            .await;
    }
}

/// First run, end, and number of runs.
fn schedule_times(
    now: Timestamp,
    cron: Option<&str>,
    at: Option<&str>,
    timezone: Option<&str>,
    until: Option<&str>,
    max_runs: Option<u32>,
) -> Result<(Timestamp, Timestamp, u32), String> {
    let read = |name: &str, text: &str| {
        let time = Timestamp::parse(text)
            .map_err(|_| format!("`{name}` is not RFC 3339 (example: `2027-01-31T09:00:00Z`)"))?; // silent-ok: said
        if time <= now || time.0 - now.0 > MAX_DAYS * DAY_US {
            return Err(format!(
                "`{name}` lies in the future, at most {MAX_DAYS} days away"
            ));
        }
        Ok(time)
    };
    match (cron, at) {
        (None, Some(at)) => {
            let at = read("at", at)?;
            Ok((at, at, 1))
        }
        (Some(cron), None) => {
            if cron.split_whitespace().count() != 5 {
                return Err("`cron` has five fields: minute, hour, day, month, weekday".to_owned());
            }
            let until = read("until", until.ok_or("a `cron` schedule needs an end: `until`")?)?;
            let left = max_runs.ok_or("a `cron` schedule needs a budget: `max_runs`")?;
            if !(1..=MAX_RUNS).contains(&left) {
                return Err(format!("`max_runs` is 1 to {MAX_RUNS}"));
            }
            let next = CronTimetable::new(cron, timezone)?
                .next(now)
                .filter(|next| *next <= until);
            Ok((next.ok_or("it would never run before `until`")?, until, left))
        }
        _ => Err("either `cron` or `at` is wanted".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use clawk_kernel::time::Timestamp;

    use super::schedule_times;

    #[test]
    fn a_schedule_has_an_end_and_a_number_of_runs() {
        let now = Timestamp::parse("2026-11-23T12:00:30Z").unwrap();
        let end = Some("2026-11-24T00:00:00Z");
        let (next, until, left) = schedule_times(now, Some("*/5 * * * *"), None, None, end, Some(3)).unwrap();
        assert_eq!(
            (next.to_string().get(..19), left),
            (Some("2026-11-23T12:05:00"), 3)
        );
        assert!(until > next);
        assert_eq!(
            schedule_times(now, None, Some("2026-11-23T13:00:00Z"), None, None, None)
                .unwrap()
                .2,
            1
        );
        for (cron, at, until, runs) in [
            (Some("* * * * *"), None, None, Some(3)),
            (Some("* * * * *"), None, end, None),
            (Some("* * * * *"), None, end, Some(0)),
            (Some("* * * * *"), None, end, Some(1_001)),
            (Some("* * * * * *"), None, end, Some(3)),
            (Some("0 0 1 1 *"), None, end, Some(3)),
            (Some("* * * * *"), None, Some("2028-11-24T00:00:00Z"), Some(3)),
            (None, Some("2026-11-23T11:00:00Z"), None, None),
            (Some("* * * * *"), Some("2026-11-23T13:00:00Z"), end, Some(3)),
            (None, None, None, None),
        ] {
            assert!(
                schedule_times(now, cron, at, None, until, runs).is_err(),
                "{cron:?} {at:?} {until:?} {runs:?}"
            );
        }
        assert!(schedule_times(now, Some("* * * * *"), None, Some("Mars/Base"), end, Some(3)).is_err());
    }
}
