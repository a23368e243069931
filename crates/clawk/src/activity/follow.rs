//! Writes the activity log while an agent works: follows the journal, so that each line stands for a fact that is durable.

use std::sync::Arc;
use std::time::Duration;

use clawk_kernel::kind;
use clawk_kernel::ports::{Journal, JournalError, JournalScan, RecordedEvent};
use clawk_kernel::time::{Clock as _, SystemClock, Timestamp};
use tokio_util::sync::CancellationToken;

use super::{ActivityDescriber, ActivityPlace, LogFormat};
use crate::keeper::written;
use crate::out;

/// Number of events that are read at once.
const PAGE: usize = 500;

/// The longest time that the first lines wait until the entry points are open.
const OPENING: Duration = Duration::from_secs(10);

/// How a served agent writes its activity log.
#[derive(Debug, Clone)]
pub(crate) struct ActivitySettings {
    /// The format of the lines.
    pub(crate) format: LogFormat,
    /// Cancelled when the entry points are open. Programs read the address from the first line on standard error, so no line of the log
    /// comes before it.
    pub(crate) opened: CancellationToken,
}

/// Follows the journal of a running agent and writes its activity to standard error.
#[derive(Debug)]
pub(crate) struct ActivityFollower {
    journal: Arc<dyn Journal>,
    settings: ActivitySettings,
    describer: ActivityDescriber,
    /// Events before this time belong to an earlier run.
    since: Timestamp,
    row: u64,
}

impl ActivityFollower {
    /// Makes a follower of all that is written from now on.
    pub(crate) fn new(journal: Arc<dyn Journal>, settings: ActivitySettings) -> Self {
        Self {
            journal,
            settings,
            describer: ActivityDescriber::default(),
            since: SystemClock::default().now(),
            row: 0,
        }
    }

    /// Writes lines until `over`, then those of the run's end.
    pub(crate) async fn serve(mut self, over: CancellationToken) {
        let mut commits = self.journal.watch_commits();
        tokio::select! {
            () = self.settings.opened.cancelled() => {}
            () = over.cancelled() => {}
            () = tokio::time::sleep(OPENING) => {}
        }
        // silent-ok: then reading begins at the first row, and `since` leaves out what is old
        self.row = self
            .journal
            .last_row_of(kind::LIFECYCLE)
            .await
            .ok()
            .flatten()
            .unwrap_or_default();
        self.learn_tools().await;
        loop {
            let ends = over.is_cancelled();
            if let Err(error) = self.write_new_lines().await {
                tracing::warn!(target: clawk_kernel::OPERATOR, %error, "the activity log can't read the journal");
            }
            if ends {
                return;
            }
            tokio::select! {
                () = written(&mut commits) => {}
                () = over.cancelled() => {}
            }
        }
    }

    /// Learns the names of tools that earlier runs described.
    async fn learn_tools(&mut self) {
        let known = JournalScan {
            kinds: &[kind::TOOL_DESCRIBED],
            limit: 1000,
            ..JournalScan::default()
        };
        // silent-ok: a tool whose name can't be read now is written as `other`
        for event in self.journal.scan_events(known).await.unwrap_or_default() {
            let _no_line = self.describer.describe_event(&event.kind, &event.payload);
        }
    }

    async fn write_new_lines(&mut self) -> Result<(), JournalError> {
        loop {
            let scan = JournalScan {
                after_row: self.row,
                since: Some(self.since),
                limit: PAGE,
                ..JournalScan::default()
            };
            let events = self.journal.scan_events(scan).await?;
            let is_last = events.len() < PAGE;
            for event in &events {
                self.row = event.row;
                self.write_line(event);
            }
            if is_last {
                return Ok(());
            }
        }
    }

    fn write_line(&mut self, event: &RecordedEvent) {
        let Some(line) = self.describer.describe_event(&event.kind, &event.payload) else {
            return;
        };
        let place = ActivityPlace {
            at: event.at.to_string(),
            session: event.session.0,
            sequence: event.sequence,
        };
        if let Some(text) = line.format_line(&event.kind, &place, self.settings.format) {
            out::print_note(out::one_line(&text));
        }
    }
}
