//! The emergency stop: an operator stops the whole agent or one session, at one of several levels. It ends running work at once,
//! refuses new work, survives restarts, and only an admin lifts it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use clawk_events::payload::{SessionStarted, StopEngaged, StopLifted};
use clawk_manifest::model::Role;
use clawk_proto::SessionId;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::error::{CallError, DeniedBy, KernelError};
use crate::event::{EventWords, JournalWriter, Thread, kind, stand_in};
use crate::ports::{Journal, JournalError, JournalScan, RecordedEvent};
use crate::roles::KnownPerson;
use crate::time::Clock;

/// What a stop covers. The variants are ordered; a later one stops more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Level {
    /// Stops every tool that reaches the network, and every command line, because its reach is unknown.
    NoNetwork,
    /// Stops every tool.
    NoTools,
    /// Stops every tool and model. Turns wait where they are, and messages are kept.
    Frozen,
}

impl Level {
    /// Returns the level's word.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::NoNetwork => "no-network",
            Self::NoTools => "no-tools",
            Self::Frozen => "frozen",
        }
    }

    fn parse(text: &str) -> Option<Self> {
        [Self::NoNetwork, Self::NoTools, Self::Frozen]
            .into_iter()
            .find(|level| level.name() == text)
    }
}

/// A stop in force.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ActiveStop {
    /// Level of the stop.
    pub level: Level,
    /// Id of the stopped session; `None`: the whole agent.
    pub session: Option<SessionId>,
    /// The person who stopped it.
    pub by: String,
    /// The person's reason.
    pub reason: Option<String>,
    /// Time of the stop, RFC 3339.
    pub at: String,
}

/// Running work that a stop can end.
#[derive(Debug)]
struct StoppableWork {
    session: SessionId,
    stopped_by: Level,
    cancel: CancellationToken,
}

#[derive(Debug, Default)]
struct EmergencyStopState {
    stops: BTreeMap<Option<SessionId>, ActiveStop>,
    running: BTreeMap<u64, StoppableWork>,
    next: u64,
}

/// The emergency stop of one agent.
#[derive(Debug)]
pub struct EmergencyStop {
    inner: Mutex<EmergencyStopState>,
    /// Counts changes, for waiting tasks.
    changed: watch::Sender<u64>,
}

/// Work under the emergency stop. It is removed when this guard is dropped.
#[derive(Debug)]
pub struct StopGuard<'a> {
    brake: &'a EmergencyStop,
    key: u64,
    /// Cancelled by its caller or by a stop.
    pub cancel: CancellationToken,
}

impl Drop for StopGuard<'_> {
    fn drop(&mut self) {
        self.brake.lock().running.remove(&self.key);
    }
}

impl Default for EmergencyStop {
    fn default() -> Self {
        Self {
            inner: Mutex::default(),
            changed: watch::channel(0).0,
        }
    }
}

impl EmergencyStop {
    fn lock(&self) -> MutexGuard<'_, EmergencyStopState> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns all stops in force, the whole agent's first.
    pub fn active_stops(&self) -> Vec<ActiveStop> {
        self.lock().stops.values().cloned().collect()
    }

    /// Returns the highest stop that applies to a session.
    fn strongest_stop(inner: &EmergencyStopState, session: SessionId) -> Option<&ActiveStop> {
        [None, Some(session)]
            .iter()
            .filter_map(|scope| inner.stops.get(scope))
            .max_by_key(|stop| stop.level)
    }

    /// Registers work, or returns the stop that forbids it. Both happen under one lock, so that nothing starts during a stop.
    pub fn guard_work(
        &self,
        session: SessionId,
        stopped_by: Level,
        cancel: &CancellationToken,
    ) -> Result<StopGuard<'_>, ActiveStop> {
        let mut inner = self.lock();
        if let Some(stop) = Self::strongest_stop(&inner, session)
            && stop.level >= stopped_by
        {
            return Err(stop.clone());
        }
        inner.next += 1;
        let key = inner.next;
        let cancel = cancel.child_token();
        let running = StoppableWork {
            session,
            stopped_by,
            cancel: cancel.clone(),
        };
        inner.running.insert(key, running);
        Ok(StopGuard {
            brake: self,
            key,
            cancel,
        })
    }

    /// Returns the stop that now forbids work of this kind.
    pub fn blocking_stop(&self, session: SessionId, stopped_by: Level) -> Option<ActiveStop> {
        let inner = self.lock();
        Self::strongest_stop(&inner, session)
            .filter(|stop| stop.level >= stopped_by)
            .cloned()
    }

    fn engage(&self, stop: ActiveStop) {
        let mut inner = self.lock();
        let scope = stop.session;
        let level = stop.level;
        inner.stops.insert(scope, stop);
        for running in inner.running.values() {
            if level >= running.stopped_by && scope.is_none_or(|session| session == running.session) {
                running.cancel.cancel();
            }
        }
        drop(inner);
        self.changed.send_modify(|count| *count += 1);
    }

    fn lift(&self, scope: Option<SessionId>) {
        self.lock().stops.remove(&scope);
        self.changed.send_modify(|count| *count += 1);
    }

    /// Waits until the session is not frozen.
    pub async fn wait_until_thawed(&self, session: SessionId) {
        let mut changed = self.changed.subscribe();
        while self.blocking_stop(session, Level::Frozen).is_some() {
            if changed.changed().await.is_err() {
                return;
            }
        }
    }
}

/// Returns the error of a refused call.
pub fn stopped_error(tool: &str, stop: &ActiveStop) -> CallError {
    let what = match stop.session {
        None => "the agent",
        Some(_) => "this session",
    };
    let why = stop.reason.as_ref().map(|reason| format!(": {reason}"));
    CallError::Denied {
        tool: tool.chars().take(64).collect(),
        by: DeniedBy::Stop,
        rule_id: None,
        policy: None,
        reason: format!(
            "{} stopped {what} ({}){}; `clawk stop --lift` ends it",
            stop.by,
            stop.level.name(),
            why.unwrap_or_default()
        ),
        retry_after_ms: None,
    }
}

/// Stops at once and durably. If it can't be recorded, the stop holds until this process ends, and an error is returned.
pub async fn engage_stop(
    (brake, scribe, root): (&EmergencyStop, &JournalWriter, &Thread),
    session: Option<SessionId>,
    level: Level,
    by: &KnownPerson,
    reason: Option<String>,
) -> Result<ActiveStop, KernelError> {
    let stop = ActiveStop {
        level,
        session,
        by: by.name.clone(),
        reason,
        at: scribe.now().to_string(),
    };
    brake.engage(stop.clone());
    let thread = root.child(scribe.clock().new_uuid());
    scribe
        .write(vec![stop_draft(scribe, &thread, &stop, &by.channel)])
        .await?;
    Ok(stop)
}

fn stop_draft(
    scribe: &JournalWriter,
    thread: &Thread,
    stop: &ActiveStop,
    channel: &str,
) -> crate::event::Draft {
    let words = EventWords::of_reason(stop.reason.as_deref());
    let (reason, words_hash) = stand_in(words.as_ref());
    let payload = StopEngaged {
        by: stop.by.to_string(),
        channel: channel.to_owned(),
        level: stop.level.name().to_owned(),
        reason,
        session: stop.session.map(|session| session.0),
        words_hash,
    };
    scribe.draft_event(thread, &payload).with_words(words)
}

/// Lifts a stop. The lift is recorded first; if that fails, the stop stays. Returns `false` if `by` is not an admin, or if nothing
/// is stopped. With `shared`, the stop in memory is not changed: other hosts may stop the agent concurrently, so the caller reads
/// the record.
pub async fn lift_stop(
    (brake, scribe, root): (&EmergencyStop, &JournalWriter, &Thread),
    session: Option<SessionId>,
    by: &KnownPerson,
    shared: bool,
) -> Result<bool, KernelError> {
    let stopped = brake.lock().stops.contains_key(&session);
    if by.role != Role::Admin || !stopped {
        return Ok(false);
    }
    let payload = StopLifted {
        by: by.name.to_string(),
        channel: by.channel.to_string(),
        session: session.map(|session| session.0),
    };
    let thread = root.child(scribe.clock().new_uuid());
    let draft = scribe.draft_event(&thread, &payload);
    scribe.write(vec![draft]).await?;
    if !shared {
        brake.lift(session);
    }
    Ok(true)
}

/// What an event of a stop changes.
#[derive(Debug, Clone)]
pub struct StopChange {
    /// What it is about; `None`: the whole agent.
    pub session: Option<SessionId>,
    /// The stop that is engaged; `None`: it is lifted.
    stop: Option<ActiveStop>,
}

/// A stop that some host engaged or lifted, as the record has it.
pub fn apply_event(brake: &EmergencyStop, change: StopChange) {
    match change.stop {
        Some(stop) => {
            if !brake.active_stops().contains(&stop) {
                tracing::warn!(level = stop.level.name(), by = %stop.by, "an emergency stop is in force, engaged at another host");
            }
            brake.engage(stop);
        }
        None => brake.lift(change.session),
    }
}

/// Stops only this host, which can't govern like the others.
pub fn freeze_host(brake: &EmergencyStop, reason: &str, at: crate::time::Timestamp) {
    brake.engage(ActiveStop {
        level: Level::Frozen,
        session: None,
        by: "clawk".to_owned(),
        reason: Some(reason.to_owned()),
        at: at.to_string(),
    });
}

/// What an event stops or lifts. A stop that can't be read stops the furthest, for all; an end that can't be read ends nothing.
pub fn read_change(event: &RecordedEvent) -> Option<StopChange> {
    if event.kind == kind::STOP_LIFTED {
        return match event.read_as::<StopLifted>() {
            Ok(lifted) => Some(StopChange {
                session: lifted.session.map(SessionId),
                stop: None,
            }),
            Err(error) => {
                tracing::error!(%error, "the end of an emergency stop can't be read: the stop stays in force");
                None
            }
        };
    }
    let at = event.at.to_string();
    let stop = match event.read_with_words::<StopEngaged>() {
        Ok(engaged) => ActiveStop {
            level: Level::parse(&engaged.level).unwrap_or(Level::Frozen),
            session: engaged.session.map(SessionId),
            by: engaged.by,
            reason: engaged.reason.map(String::from),
            at,
        },
        Err(error) => {
            tracing::error!(%error, "an emergency stop can't be read: the whole agent is frozen");
            ActiveStop {
                level: Level::Frozen,
                session: None,
                by: String::new(),
                reason: None,
                at,
            }
        }
    };
    Some(StopChange {
        session: stop.session,
        stop: Some(stop),
    })
}

/// Returns the stops in force by a journal.
///
/// # Errors
/// The journal can't be read.
async fn fold_stops(journal: &dyn Journal) -> Result<BTreeMap<Option<SessionId>, ActiveStop>, JournalError> {
    const PAGE: usize = 1000;
    let mut stops = BTreeMap::new();
    let mut scan = JournalScan {
        kinds: &[kind::STOP_ENGAGED, kind::STOP_LIFTED],
        limit: PAGE,
        with_content: true,
        ..JournalScan::default()
    };
    loop {
        let page = journal.scan_events(scan.clone()).await?;
        for event in &page {
            let Some(change) = read_change(event) else {
                continue;
            };
            match change.stop {
                Some(stop) => stops.insert(change.session, stop),
                None => stops.remove(&change.session),
            };
        }
        match page.last() {
            Some(last) if page.len() == PAGE => scan.after_row = last.row,
            Some(_) | None => return Ok(stops),
        }
    }
}

/// Restores the stops that were in force at the end of the last run.
pub async fn restore_stops(brake: &EmergencyStop, scribe: &JournalWriter) -> Result<(), JournalError> {
    let stops = fold_stops(&**scribe.journal()).await?;
    for stop in stops.into_values() {
        tracing::warn!(level = stop.level.name(), by = %stop.by, "an emergency stop is in force");
        brake.engage(stop);
    }
    Ok(())
}

/// An order for an agent that does not run. It is written to the state directory.
#[derive(Debug, Clone)]
pub enum StopOrder {
    /// Stop the next start.
    Engage {
        /// Level of the stop.
        level: Level,
        /// Id of the session; `None`: the whole agent.
        session: Option<SessionId>,
        /// The reason.
        reason: Option<String>,
    },
    /// Allow the next start to work.
    Lift {
        /// Id of the session; `None`: the whole agent.
        session: Option<SessionId>,
    },
}

/// Writes an order into the journal of an agent that is not running. Returns the stops then in force.
///
/// # Errors
/// The journal can't be read or written. Nothing was changed.
pub async fn write_offline_order(
    journal: Arc<dyn Journal>,
    clock: Arc<dyn Clock>,
    order: Option<StopOrder>,
    by: &KnownPerson,
) -> Result<Vec<ActiveStop>, JournalError> {
    let scribe = JournalWriter::new(journal, clock);
    if let Some(order) = order {
        let id = SessionId(scribe.clock().new_uuid());
        let thread = Thread {
            session: id,
            span: id.0,
            parent: None,
        };
        let started = SessionStarted {
            // No agent runs here: there is none to replay.
            agent_hash: Some(clawk_proto::Digest::ZERO),
            agent_id: by.name.to_string(),
            door: Some("operator".to_owned()),
            fork: None,
            goal: "emergency stop".to_owned(),
            role: Some(by.role.as_str().to_owned()),
            run: Some(id.0),
        };
        let started = scribe.draft_event(&thread, &started);
        let below = thread.child(scribe.clock().new_uuid());
        let change = match order {
            StopOrder::Engage {
                level,
                session,
                reason,
            } => {
                let stop = ActiveStop {
                    level,
                    session,
                    by: by.name.clone(),
                    reason,
                    at: scribe.now().to_string(),
                };
                stop_draft(&scribe, &below, &stop, &by.channel)
            }
            StopOrder::Lift { session } => {
                let payload = StopLifted {
                    by: by.name.to_string(),
                    channel: by.channel.to_string(),
                    session: session.map(|session| session.0),
                };
                scribe.draft_event(&below, &payload)
            }
        };
        scribe.write(vec![started, change]).await?;
    }
    Ok(fold_stops(&**scribe.journal()).await?.into_values().collect())
}
