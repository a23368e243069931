//! `db-trigger`: each change of a table begins a run (C11). A trigger of ours writes the change into a table of ours, in the same
//! transaction; the row is deleted once it is durable here. So no change is lost while the agent is down. SQLite and PostgreSQL.

mod entry;
#[cfg(feature = "postgres")]
mod postgres;
mod sqlite;

use std::path::{Path, PathBuf};

use bytes::Bytes;
use clawk_kernel::ports::{BoxFuture, Delivery};
use clawk_manifest::model::{Channel, DbEvent};
use clawk_secrets::SecretResolver;
use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;

pub(super) use self::entry::DB_TRIGGER;
use crate::adapter::{
    ChannelAdapter, ChannelDisconnect, InboundPipeline, LengthUnit, MarkupFormat, OutboundMessage,
    PlatformCapabilities,
};
use crate::config::ChannelConfig;
use crate::dependencies::ChannelDependencies;
use crate::platform_kit::{RemoveRequest, required};
use crate::runs::{Event, RunAdmission, TriggerRuns};

/// Characters of one change; a larger one is a dead letter.
const MAX_CHARS: usize = 1 << 20;
/// Changes that are read at a time.
const BATCH: usize = 100;

/// A change, as our table has it.
#[derive(Debug)]
struct TableChange {
    id: i64,
    at: String,
    op: String,
    new: Option<String>,
    old: Option<String>,
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct StoredDbTriggerState {
    running: Vec<String>,
}

/// Which database.
#[derive(Debug)]
enum WatchedDatabase {
    Sqlite(sqlite::SqliteTableWatcher),
    #[cfg(feature = "postgres")]
    Postgres(Box<postgres::PostgresTableWatcher>),
}

/// The channel.
#[derive(Debug)]
pub(crate) struct DbTrigger {
    database: WatchedDatabase,
    table: String,
    runs: TriggerRuns,
}

/// A name as SQL takes it.
fn quote_identifier(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

impl WatchedDatabase {
    /// The database that a channel names.
    fn from_channel(
        channel: &Channel,
        config: &ChannelConfig,
        secrets: &SecretResolver,
        workdir: Option<&Path>,
    ) -> Result<Self, String> {
        #[cfg(not(feature = "postgres"))]
        let _of_postgres = secrets;
        let url = config.url.as_deref().ok_or(
            "`url` is missing in clawk.toml: the database (examples: `sqlite:orders.db`, `postgres://clawk@localhost/shop`)",
        )?;
        let table = required(channel, "table", |trigger| trigger.table.as_deref())?;
        let events = channel.trigger.as_ref().map(|trigger| trigger.events.clone());
        let events = events
            .filter(|events| !events.is_empty())
            .unwrap_or_else(|| vec![DbEvent::Insert, DbEvent::Update, DbEvent::Delete]);
        let own = format!("clawk_{}", channel.name.replace('-', "_"));
        if let Some(path) = url.strip_prefix("sqlite:") {
            if path.is_empty() {
                return Err("`url` names no file; write `url = \"sqlite:PATH\"`".to_owned());
            }
            let path = match workdir {
                Some(workdir) => workdir.join(path),
                None => PathBuf::from(path),
            };
            Ok(Self::Sqlite(sqlite::SqliteTableWatcher::new(
                sqlite::SqliteTriggerSpec {
                    path,
                    table: table.strip_prefix("main.").unwrap_or(&table).to_owned(),
                    events,
                    own,
                },
            )))
        } else if url.starts_with("postgres://") || url.starts_with("postgresql://") {
            #[cfg(feature = "postgres")]
            {
                let place = postgres::PostgresTriggerSpec::new(&table, &events, &own)?;
                Ok(Self::Postgres(Box::new(postgres::PostgresTableWatcher::new(
                    url, channel, secrets, place,
                )?)))
            }
            #[cfg(not(feature = "postgres"))]
            Err(crate::platform_kit::left_out(channel, "postgres"))
        } else {
            Err("`url` is `sqlite:PATH` or `postgres://USER@HOST/DATABASE`".to_owned())
        }
    }

    /// Takes away our trigger and table.
    async fn remove(&self) -> Result<Vec<String>, String> {
        match self {
            Self::Sqlite(database) => database.remove().await,
            #[cfg(feature = "postgres")]
            Self::Postgres(database) => database.remove().await,
        }
    }
}

/// Takes away what a `db-trigger` installed, for an agent that does not run.
///
/// # Errors
/// The database can't be named, or does not let go of it.
async fn remove(request: RemoveRequest<'_>) -> Result<Vec<String>, String> {
    let RemoveRequest {
        channel,
        config,
        secrets,
        workdir,
    } = request;
    WatchedDatabase::from_channel(channel, config, secrets, Some(workdir))?
        .remove()
        .await
}

impl DbTrigger {
    pub(crate) fn new(
        channel: &Channel,
        config: &ChannelConfig,
        parts: &ChannelDependencies,
    ) -> Result<Self, String> {
        Ok(Self {
            database: WatchedDatabase::from_channel(
                channel,
                config,
                &parts.secrets,
                parts.workdir.as_deref(),
            )?,
            table: required(channel, "table", |trigger| trigger.table.as_deref())?,
            runs: TriggerRuns::new(channel, config, parts),
        })
    }

    fn save_state(&self, inlet: &InboundPipeline) -> Result<(), String> {
        let kept = StoredDbTriggerState {
            running: self.runs.running_runs(),
        };
        let text = serde_json::to_string(&kept).map_err(|error| error.to_string())?;
        inlet.set_cursor(&text).map_err(|error| error.to_string())
    }

    /// Takes up the runs of an earlier process that still go on.
    async fn restore_runs(&self, inlet: &InboundPipeline) -> Result<(), String> {
        if let Some(text) = inlet.read_cursor().map_err(|error| error.to_string())? {
            let kept: StoredDbTriggerState = serde_json::from_str(&text)
                .map_err(|error| format!("which runs are under way can't be read: {error}"))?;
            self.runs.restore_runs(inlet, kept.running).await?;
        }
        Ok(())
    }

    /// Waits for a place; how many changes may be read.
    async fn wait_for_room(&self) -> usize {
        self.runs.wait_for_place().await;
        self.runs.free_places().clamp(1, BATCH)
    }

    /// Begins a run for a change. When this returns `Ok`, it is durable, and its row may be deleted.
    async fn begin_run(&self, inlet: &InboundPipeline, change: TableChange) -> Result<(), String> {
        self.runs.wait_for_place().await;
        // With its time: after our table was made anew, numbers begin again.
        let id = format!("{} {}", change.id, change.at);
        let mut told = format!("{} in {} at {}", change.op, self.table, change.at);
        for (word, row) in [("new", &change.new), ("old", &change.old)] {
            if let Some(row) = row {
                told.push_str(&format!("\n{word}: {row}"));
            }
        }
        if told.len() > MAX_CHARS {
            let raw = Bytes::from(told);
            return self
                .runs
                .dead_letter(inlet, &id, &raw, "the change is larger than 1 MiB")
                .await;
        }
        let event = Event {
            ids: vec![id],
            text: told,
            attachments: Vec::new(),
        };
        match self.runs.begin_run(inlet, event, || self.save_state(inlet)).await {
            RunAdmission::Kept => Ok(()),
            RunAdmission::Later(reason) => Err(format!("a change could not be kept: {reason}")),
        }
    }

    async fn listen(&self, inlet: &InboundPipeline) -> Result<(), ChannelDisconnect> {
        match &self.database {
            WatchedDatabase::Sqlite(database) => database
                .listen(self, inlet)
                .await
                .map_err(ChannelDisconnect::temporary),
            #[cfg(feature = "postgres")]
            WatchedDatabase::Postgres(database) => database.listen(self, inlet).await,
        }
    }
}

impl ChannelAdapter for DbTrigger {
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
        Box::pin(async move {
            tokio::select! {
                ended = self.listen(inlet) => ended.err().unwrap_or_else(|| ChannelDisconnect::temporary("the database ended")),
                () = over.cancelled() => ChannelDisconnect::temporary("the agent ends"),
            }
        })
    }

    fn send_message<'a>(&'a self, _out: &'a OutboundMessage) -> BoxFuture<'a, Delivery> {
        // `deliver_to` says where its answers go.
        Box::pin(std::future::ready(Delivery::Delivered { platform_id: None }))
    }

    fn on_run_finished<'a>(&'a self, conversation: &'a str) -> BoxFuture<'a, ()> {
        self.runs.finish_run(conversation);
        Box::pin(std::future::ready(()))
    }

    fn remove<'a>(&'a self) -> BoxFuture<'a, Result<Vec<String>, String>> {
        Box::pin(self.database.remove())
    }
}
