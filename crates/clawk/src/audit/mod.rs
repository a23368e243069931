//! Audit records for the destinations that a policy names (CKP §5.8 `audit`). The journal is the queue: records are made from
//! durable events, and the last delivered position is stored beside the state. So a crash or an absent receiver loses nothing. The
//! number of waiting records is reported.

mod record;
mod sink;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::state::kept::AuditDb;
use anyhow::{Context, Result, bail};
use clawk_kernel::ports::{Journal, JournalError, JournalScan};
use clawk_manifest::model::{Audit as Wanted, AuditDestination, Policy};
use clawk_secrets::EnvironmentSource;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::keeper::written;
use record::{AuditContents, AuditedEvent};
use sink::AuditSink;

/// First and longest delay after a failed delivery.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// Interval between two deletions of expired records.
const EXPIRY: Duration = Duration::from_secs(600);
/// Events read and records delivered at once.
const BATCH: usize = 256;
const BATCH_WITH_CONTENTS: usize = 16;

/// `[audit]`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Settings {
    /// File for `destination: file`; relative to the configuration's folder. Absent: `audit/POLICY.jsonl` in the state directory.
    pub(crate) file: Option<PathBuf>,
    /// Database for `destination: sqlite`; relative to the configuration's folder. Absent: `audit/POLICY.db` in the state
    /// directory.
    pub(crate) sqlite: Option<PathBuf>,
    /// Size in bytes above which a file is rotated.
    pub(crate) max_file_bytes: u64,
    /// URL for `destination: webhook`. Records are posted as JSON Lines.
    pub(crate) webhook: Option<String>,
    /// Address for `destination: syslog`: `unix:/dev/log`, or `udp:HOST:PORT`.
    pub(crate) syslog: String,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            file: None,
            sqlite: None,
            max_file_bytes: 64 << 20,
            webhook: None,
            syslog: "unix:/dev/log".to_owned(),
        }
    }
}

/// The state directory in which records are stored by default.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AuditedState<'a> {
    pub(crate) path: &'a Path,
    /// The state is encrypted: without its key nothing in it may be readable.
    pub(crate) encrypted: bool,
}

/// The audit of one policy.
#[derive(Debug)]
pub(crate) struct Audit {
    policy: String,
    /// Whether records hold the text of people, models and tools.
    contents: AuditContents,
    wanted: Wanted,
    journal: Arc<dyn Journal>,
    cursor: PathBuf,
    sink: AuditSink,
    writable: Arc<AtomicBool>,
}

/// Builds the audits that policies require. `writable` is `true` while all destinations accept records.
///
/// # Errors
/// A destination can't be written. The agent must not start without its audit.
pub(crate) fn of(
    policies: &[Policy],
    settings: &Settings,
    state: AuditedState<'_>,
    journal: &Arc<dyn Journal>,
    env: &EnvironmentSource,
    writable: &Arc<AtomicBool>,
) -> Result<Vec<Audit>> {
    let mut audits = Vec::new();
    for policy in policies {
        let Some(wanted) = &policy.audit else { continue };
        let folder = state.path.join("audit");
        let sink = match wanted.destination {
            AuditDestination::Sqlite => {
                let file = settings
                    .sqlite
                    .clone()
                    .unwrap_or_else(|| folder.join(format!("{}.db", policy.name)));
                AuditSink::for_sqlite(AuditDb::new(file), wanted.retention)
            }
            AuditDestination::File => {
                let file = settings
                    .file
                    .clone()
                    .unwrap_or_else(|| folder.join(format!("{}.jsonl", policy.name)));
                AuditSink::for_file(file, settings.max_file_bytes, wanted.retention)
            }
            AuditDestination::Webhook => match &settings.webhook {
                Some(url) => AuditSink::for_webhook(url, env).context("`audit.webhook`")?,
                None => bail!(
                    "the policy `{}` audits to a webhook; name it in clawk.toml: `[audit] webhook = \"https://…\"`",
                    policy.name
                ),
            },
            AuditDestination::Syslog => AuditSink::for_syslog(&settings.syslog).context("`audit.syslog`")?,
        };
        std::fs::create_dir_all(&folder).with_context(|| format!("can't make `{}`", folder.display()))?;
        sink.check_available()
            .with_context(|| format!("the audit of the policy `{}` can't be written", policy.name))?;
        let inside = match wanted.destination {
            AuditDestination::Sqlite => settings.sqlite.is_none(),
            AuditDestination::File => settings.file.is_none(),
            AuditDestination::Webhook | AuditDestination::Syslog => false,
        };
        audits.push(Audit {
            contents: if inside && state.encrypted {
                AuditContents::ByDigest
            } else {
                AuditContents::AsWanted
            },
            cursor: folder.join(format!("{}.cursor", policy.name)),
            policy: policy.name.clone(),
            wanted: wanted.clone(),
            journal: Arc::clone(journal),
            sink,
            writable: Arc::clone(writable),
        });
    }
    Ok(audits)
}

impl Audit {
    /// Delivers records until `over`, and once more at the end.
    pub(crate) async fn serve(mut self, over: CancellationToken) {
        let mut pause = FIRST_PAUSE;
        let mut row = self.reached();
        let mut failing = false;
        let mut expired: Option<Instant> = None;
        let mut commits = self.journal.watch_commits();
        loop {
            if expired.is_none_or(|at| at.elapsed() >= EXPIRY) {
                expired = Some(Instant::now());
                if let Err(error) = self.sink.remove_expired().await {
                    tracing::error!(policy = %self.policy, error = format!("{error:#}"), "old audit records could not be removed");
                }
            }
            let ends = over.is_cancelled();
            match self.deliver(&mut row).await {
                Ok(delivered) => {
                    if failing {
                        tracing::warn!(policy = %self.policy, "audit records are delivered again");
                    }
                    failing = false;
                    self.writable.store(true, Ordering::Release);
                    pause = FIRST_PAUSE;
                    if delivered == self.batch() {
                        continue;
                    }
                }
                Err(error) => {
                    failing = true;
                    self.writable.store(false, Ordering::Release);
                    let waiting = self.waiting(row).await;
                    tracing::error!(policy = %self.policy, waiting, error = format!("{error:#}"), "audit records wait: their destination does not take them");
                }
            }
            if ends {
                return;
            }
            tokio::select! {
                () = written(&mut commits), if !failing => {}
                () = tokio::time::sleep(if failing { pause } else { EXPIRY }) => {}
                () = over.cancelled() => {}
            }
            if failing {
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
        }
    }

    /// Delivers the next batch. Returns the number of events that it read.
    async fn deliver(&mut self, row: &mut u64) -> Result<usize> {
        let events = self.read_page(*row).await?;
        let Some(last) = events.last().map(|audited| audited.event.row) else {
            return Ok(0);
        };
        let records: Vec<_> = events
            .iter()
            .filter_map(|audited| {
                record::build_audit_record(audited, &self.wanted, &self.policy, self.contents)
            })
            .collect();
        if !records.is_empty() {
            self.sink.deliver_records(&records).await?;
        }
        *row = last;
        self.keep(last)?;
        Ok(events.len())
    }

    /// The next events. A content that can't be read stops no record: its event says so.
    async fn read_page(&self, row: u64) -> Result<Vec<AuditedEvent>> {
        match (self.journal.scan_events(self.scan(row)).await, self.contents) {
            (Ok(events), _) => Ok(events.into_iter().map(AuditedEvent::whole).collect()),
            (Err(JournalError::Unreadable(_)), AuditContents::AsWanted) => self.read_page_by_event(row).await,
            (Err(error), _) => Err(error.into()),
        }
    }

    /// The same, each content by itself.
    async fn read_page_by_event(&self, row: u64) -> Result<Vec<AuditedEvent>> {
        let bare = JournalScan {
            with_content: false,
            ..self.scan(row)
        };
        let mut events = Vec::new();
        for event in self.journal.scan_events(bare).await? {
            let alone = JournalScan {
                limit: 1,
                ..self.scan(event.row.saturating_sub(1))
            };
            match self.journal.scan_events(alone).await {
                Ok(found) => {
                    let whole = found.into_iter().find(|found| found.row == event.row);
                    events.push(AuditedEvent::whole(whole.unwrap_or(event)));
                }
                Err(JournalError::Unreadable(why)) => {
                    tracing::error!(policy = %self.policy, session = %event.session, sequence = event.sequence, why, "a content can't be read; its audit record says so");
                    events.push(AuditedEvent {
                        event,
                        unreadable_content: Some(why),
                    });
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(events)
    }

    fn scan(&self, after_row: u64) -> JournalScan {
        JournalScan {
            after_row,
            limit: self.batch(),
            kinds: record::KINDS,
            // Reasons are content, too.
            with_content: self.contents == AuditContents::AsWanted,
            ..JournalScan::default()
        }
    }

    /// Returns the number of events to read at once. With contents it is small, because a content may have several MiB.
    fn batch(&self) -> usize {
        match self.contents {
            AuditContents::AsWanted => BATCH_WITH_CONTENTS,
            AuditContents::ByDigest => BATCH,
        }
    }

    /// Returns the number of waiting events that one query finds.
    async fn waiting(&self, row: u64) -> usize {
        let scan = JournalScan {
            with_content: false,
            limit: 10_000,
            ..self.scan(row)
        };
        // silent-ok: an unknown number is reported as zero
        self.journal
            .scan_events(scan)
            .await
            .map(|events| events.len())
            .unwrap_or(0)
    }

    /// Returns the row that was delivered last. Without a stored position the whole journal is delivered again, because a duplicate
    /// is better than a gap.
    fn reached(&self) -> u64 {
        let text = std::fs::read_to_string(&self.cursor).unwrap_or_default(); // silent-ok: as said
        text.trim().parse().unwrap_or(0) // silent-ok: as said
    }

    fn keep(&self, row: u64) -> Result<()> {
        let fresh = self.cursor.with_extension("cursor.new");
        std::fs::write(&fresh, row.to_string())?;
        std::fs::rename(&fresh, &self.cursor)
            .with_context(|| format!("can't write `{}`", self.cursor.display()))
    }
}
