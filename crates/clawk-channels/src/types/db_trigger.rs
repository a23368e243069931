//! `db-trigger`: each change of a SQLite table begins a run (C11). A trigger of ours writes the change into a table of ours, in the
//! same transaction; the row is deleted once it is durable here. So no change is lost while the agent is down.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use clawk_kernel::ports::{Delivery, Later};
use clawk_manifest::model::{Channel, DbEvent};
use rusqlite::{Connection, OpenFlags, OptionalExtension as _, TransactionBehavior};
use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;

use crate::adapter::{Abilities, Adapter, Ended, Markup, Out, Unit};
use crate::config::ChannelConfig;
use crate::inlet::Inlet;
use crate::runs::{Begun, Event, Runs};
use crate::service::Parts;

/// How often it is asked whether another connection wrote.
const POLL: Duration = Duration::from_millis(250);
/// How often the table is read all the same, in polls.
const LOOK_EVERY: u32 = 20;
/// How long a lock of somebody else is waited for.
const BUSY: Duration = Duration::from_secs(5);
/// Characters of one change; a larger one is a dead letter.
const MAX_CHARS: usize = 1 << 20;

/// What is installed, and where.
#[derive(Debug, Clone)]
struct Place {
    path: PathBuf,
    table: String,
    events: Vec<DbEvent>,
    /// The name of our table, and the beginning of our triggers' names.
    own: String,
}

/// A change, as our table has it.
#[derive(Debug)]
struct Change {
    id: i64,
    at: String,
    op: String,
    new: Option<String>,
    old: Option<String>,
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct Kept {
    running: Vec<String>,
}

/// The channel.
#[derive(Debug)]
pub(crate) struct DbTrigger {
    place: Place,
    runs: Runs,
    connection: Arc<Mutex<Option<Connection>>>,
}

/// A name as SQL takes it.
fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

fn text(value: &str) -> String {
    format!("'{}'", value.replace('\'', "''"))
}

impl Place {
    fn open(&self) -> Result<Connection, String> {
        // Never made: a mistyped path would be a database without the table.
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = Connection::open_with_flags(&self.path, flags)
            .map_err(|error| format!("the database can't be opened: {error}"))?;
        connection.busy_timeout(BUSY).map_err(|error| error.to_string())?;
        Ok(connection)
    }

    /// The triggers by name, with their SQL. BLOBs are written as hex, which JSON can hold.
    fn triggers(&self, connection: &Connection) -> rusqlite::Result<Vec<(String, String)>> {
        let mut columns = connection.prepare("select name from pragma_table_xinfo(?1) where hidden = 0")?;
        let columns: Vec<String> = columns
            .query_map([&self.table], |row| row.get(0))?
            .collect::<Result<_, _>>()?;
        let row = |side: &str| {
            let members = columns.iter().map(|name| {
                let value = format!("{side}.{}", quoted(name));
                format!(
                    "{}, iif(typeof({value}) = 'blob', hex({value}), {value})",
                    text(name)
                )
            });
            format!("json_object({})", members.collect::<Vec<_>>().join(", "))
        };
        let table = quoted(&self.own);
        let made = self.events.iter().map(|event| {
            let (word, end, values) = match event {
                DbEvent::Insert => ("INSERT", "ins", format!("{}, null", row("new"))),
                DbEvent::Update => ("UPDATE", "upd", format!("{}, {}", row("new"), row("old"))),
                DbEvent::Delete => ("DELETE", "del", format!("null, {}", row("old"))),
            };
            let name = format!("{}_{end}", self.own);
            let sql = format!(
                "CREATE TRIGGER {} AFTER {word} ON {} BEGIN INSERT INTO {table}(op, new, old) VALUES ('{word}', {values}); END",
                quoted(&name),
                quoted(&self.table),
            );
            (name, sql)
        });
        Ok(made.collect())
    }

    fn ours(&self, connection: &Connection) -> rusqlite::Result<Vec<(String, String)>> {
        let mut found = connection.prepare("select name, sql from sqlite_master where type = 'trigger'")?;
        let all: Vec<(String, String)> = found
            .query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?
            .collect::<Result<_, _>>()?;
        let ends = ["ins", "upd", "del"].map(|end| format!("{}_{end}", self.own));
        Ok(all.into_iter().filter(|(name, _)| ends.contains(name)).collect())
    }

    /// Makes our table and triggers, and makes triggers anew whose table has other columns now.
    fn install(&self, connection: &mut Connection) -> Result<(), String> {
        let known: Option<String> = connection
            .query_row(
                "select name from sqlite_master where type = 'table' and name = ?1",
                [&self.table],
                |row| row.get(0),
            )
            .optional()
            .map_err(|error| error.to_string())?;
        if known.is_none() {
            return Err(format!(
                "the database has no table `{}`",
                crate::inlet::harmless(&self.table)
            ));
        }
        let work = |connection: &mut Connection| -> rusqlite::Result<()> {
            let change = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            change.execute_batch(&format!(
                "CREATE TABLE IF NOT EXISTS {} (id integer primary key autoincrement, \
                 at text not null default (strftime('%Y-%m-%dT%H:%M:%fZ','now')), op text not null, new text, old text)",
                quoted(&self.own)
            ))?;
            let (wanted, there) = (self.triggers(&change)?, self.ours(&change)?);
            for (name, sql) in &there {
                if !wanted
                    .iter()
                    .any(|(known, wanted)| known == name && wanted == sql)
                {
                    change.execute_batch(&format!("DROP TRIGGER {}", quoted(name)))?;
                }
            }
            for (name, sql) in &wanted {
                if !there.iter().any(|(known, found)| known == name && found == sql) {
                    change.execute_batch(sql)?;
                }
            }
            change.commit()
        };
        work(connection).map_err(|error| format!("the trigger can't be installed: {error}"))
    }

    fn changes(&self, connection: &Connection, most: usize) -> Result<Vec<Change>, String> {
        let read = || -> rusqlite::Result<Vec<Change>> {
            let sql = format!(
                "select id, at, op, new, old from {} order by id limit {most}",
                quoted(&self.own)
            );
            let mut found = connection.prepare(&sql)?;
            let rows = found.query_map([], |row| {
                Ok(Change {
                    id: row.get(0)?,
                    at: row.get(1)?,
                    op: row.get(2)?,
                    new: row.get(3)?,
                    old: row.get(4)?,
                })
            })?;
            rows.collect()
        };
        read().map_err(|error| format!("changes can't be read: {error}"))
    }

    fn forget(&self, connection: &Connection, id: i64) -> Result<(), String> {
        let sql = format!("delete from {} where id = ?1", quoted(&self.own));
        connection
            .execute(&sql, [id])
            .map(drop)
            .map_err(|error| format!("a change can't be deleted: {error}"))
    }

    /// Drops the triggers first, so that no write fails for want of our table; the table only when nothing waits in it.
    fn remove(&self, connection: &mut Connection) -> Result<Vec<String>, String> {
        let work = |connection: &mut Connection| -> rusqlite::Result<Vec<String>> {
            let change = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            let mut told = Vec::new();
            for (name, _) in self.ours(&change)? {
                change.execute_batch(&format!("DROP TRIGGER {}", quoted(&name)))?;
                told.push(format!("trigger {name} dropped"));
            }
            let there: Option<String> = change
                .query_row(
                    "select name from sqlite_master where type = 'table' and name = ?1",
                    [&self.own],
                    |row| row.get(0),
                )
                .optional()?;
            if there.is_some() {
                let waits: i64 = change.query_row(
                    &format!("select count(*) from {}", quoted(&self.own)),
                    [],
                    |row| row.get(0),
                )?;
                if waits == 0 {
                    change.execute_batch(&format!("DROP TABLE {}", quoted(&self.own)))?;
                    told.push(format!("table {} dropped", self.own));
                } else {
                    told.push(format!("table {} kept: {waits} changes wait in it", self.own));
                }
            }
            change.commit()?;
            Ok(told)
        };
        work(connection).map_err(|error| format!("nothing was removed: {error}"))
    }
}

impl DbTrigger {
    pub(crate) fn new(channel: &Channel, config: &ChannelConfig, parts: &Parts) -> Result<Self, String> {
        let url = config
            .url
            .as_deref()
            .ok_or("`url` is missing in clawk.toml: the database (example: `sqlite:orders.db`)")?;
        let Some(path) = url.strip_prefix("sqlite:") else {
            return Err(
                "this version watches SQLite databases only; write `url = \"sqlite:PATH\"`".to_owned(),
            );
        };
        let path = match &parts.workdir {
            Some(workdir) => workdir.join(path),
            None => PathBuf::from(path),
        };
        let trigger = channel.trigger.clone().unwrap_or_default();
        let table = trigger.table.unwrap_or_default();
        let events = if trigger.events.is_empty() {
            vec![DbEvent::Insert, DbEvent::Update, DbEvent::Delete]
        } else {
            trigger.events
        };
        Ok(Self {
            place: Place {
                path,
                table: table.strip_prefix("main.").map(str::to_owned).unwrap_or(table),
                events,
                own: format!("clawk_{}", channel.name.replace('-', "_")),
            },
            runs: Runs::new(
                channel,
                config,
                parts.folder.join(format!("{}.dead", channel.name)),
            ),
            connection: Arc::default(),
        })
    }

    /// Works on the database, beside the other tasks.
    async fn with<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Place, &mut Connection) -> Result<T, String> + Send + 'static,
    ) -> Result<T, String> {
        let (place, connection) = (self.place.clone(), Arc::clone(&self.connection));
        let done = tokio::task::spawn_blocking(move || {
            let mut connection = connection.lock().unwrap_or_else(PoisonError::into_inner);
            if connection.is_none() {
                *connection = Some(place.open()?);
            }
            match connection.as_mut() {
                Some(open) => {
                    let done = work(&place, open);
                    if done.is_err() {
                        // It is opened anew: the file may have been replaced.
                        *connection = None;
                    }
                    done
                }
                None => Err("the database is not open".to_owned()),
            }
        });
        done.await.map_err(|error| error.to_string())?
    }

    fn save(&self, inlet: &Inlet) -> Result<(), String> {
        let kept = Kept {
            running: self.runs.running(),
        };
        let text = serde_json::to_string(&kept).map_err(|error| error.to_string())?;
        inlet.set_cursor(&text).map_err(|error| error.to_string())
    }

    async fn listen(&self, inlet: &Inlet) -> Result<(), String> {
        self.with(Place::install).await?;
        if let Some(text) = inlet.cursor().map_err(|error| error.to_string())? {
            let kept: Kept = serde_json::from_str(&text)
                .map_err(|error| format!("which runs are under way can't be read: {error}"))?;
            self.runs.restore(inlet, kept.running).await?;
        }
        inlet.ready();
        let version = |_: &Place, connection: &mut Connection| {
            let ask =
                |name: &str| connection.query_row(&format!("pragma {name}"), [], |row| row.get::<_, i64>(0));
            match (ask("data_version"), ask("schema_version")) {
                (Ok(data), Ok(schema)) => Ok((data, schema)),
                (Err(error), _) | (_, Err(error)) => Err(error.to_string()),
            }
        };
        let (mut data, mut schema) = (None, None);
        let mut polls = 0;
        loop {
            let (data_now, schema_now) = self.with(version).await?;
            if schema.is_some_and(|schema| schema != schema_now) {
                self.with(Place::install).await?;
            }
            if data != Some(data_now) || polls >= LOOK_EVERY {
                polls = 0;
                self.take_all(inlet).await?;
            }
            // After our own deletes and triggers: those are no news.
            (data, schema) = (Some(data_now), Some(self.with(version).await?.1));
            polls += 1;
            tokio::time::sleep(POLL).await;
        }
    }

    async fn take_all(&self, inlet: &Inlet) -> Result<(), String> {
        loop {
            self.runs.place().await;
            let most = self.runs.free().clamp(1, 100);
            let changes = self
                .with(move |place, connection| place.changes(connection, most))
                .await?;
            if changes.is_empty() {
                return Ok(());
            }
            for change in changes {
                self.runs.place().await;
                let id = change.id;
                self.take(inlet, change).await?;
                self.with(move |place, connection| place.forget(connection, id))
                    .await?;
            }
        }
    }

    async fn take(&self, inlet: &Inlet, change: Change) -> Result<(), String> {
        // With its time: after our table was made anew, numbers begin again.
        let id = format!("{} {}", change.id, change.at);
        let mut told = format!("{} in {} at {}", change.op, self.place.table, change.at);
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
        match self.runs.begin(inlet, event, || self.save(inlet)).await {
            Begun::Kept => Ok(()),
            Begun::Later(reason) => Err(format!("a change could not be kept: {reason}")),
        }
    }
}

impl Adapter for DbTrigger {
    fn abilities(&self) -> Abilities {
        Abilities {
            markup: Markup::Markdown,
            ..Abilities::plain(usize::MAX, Unit::Bytes)
        }
    }

    fn start<'a>(&'a self, inlet: &'a Inlet, over: &'a CancellationToken) -> Later<'a, Ended> {
        Box::pin(async move {
            tokio::select! {
                ended = self.listen(inlet) => Ended::broken(ended.err().unwrap_or_else(|| "the database ended".to_owned())),
                () = over.cancelled() => Ended::broken("the agent ends"),
            }
        })
    }

    fn send<'a>(&'a self, _out: &'a Out) -> Later<'a, Delivery> {
        // `deliver_to` says where its answers go.
        Box::pin(std::future::ready(Delivery::Delivered { platform_id: None }))
    }

    fn finished<'a>(&'a self, conversation: &'a str) -> Later<'a, ()> {
        self.runs.done(conversation);
        Box::pin(std::future::ready(()))
    }

    fn remove<'a>(&'a self) -> Later<'a, Result<Vec<String>, String>> {
        Box::pin(self.with(Place::remove))
    }
}
