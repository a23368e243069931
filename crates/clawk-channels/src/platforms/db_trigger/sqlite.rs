//! A SQLite file: one trigger for each event, a look at `data_version` several times a second.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use clawk_manifest::model::DbEvent;
use rusqlite::{Connection, OpenFlags, OptionalExtension as _, TransactionBehavior};

use super::{DbTrigger, TableChange, quote_identifier};
use crate::adapter::InboundPipeline;

/// How often it is asked whether another connection wrote.
const POLL: Duration = Duration::from_millis(250);
/// How often the table is read all the same, in polls.
const LOOK_EVERY: u32 = 20;
/// How long a lock of somebody else is waited for.
const BUSY: Duration = Duration::from_secs(5);

/// What is installed, and where.
#[derive(Debug, Clone)]
pub(super) struct SqliteTriggerSpec {
    pub(super) path: PathBuf,
    pub(super) table: String,
    pub(super) events: Vec<DbEvent>,
    /// The name of our table, and the beginning of our triggers' names.
    pub(super) own: String,
}

/// A file that is watched.
#[derive(Debug)]
pub(super) struct SqliteTableWatcher {
    place: SqliteTriggerSpec,
    connection: Arc<Mutex<Option<Connection>>>,
}

fn quote_literal(value: &str) -> String {
    format!("'{}'", value.replace('\'', "''"))
}

impl SqliteTriggerSpec {
    fn open_database(&self) -> Result<Connection, String> {
        // Never made: a mistyped path would be a database without the table.
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = Connection::open_with_flags(&self.path, flags)
            .map_err(|error| format!("the database can't be opened: {error}"))?;
        connection.busy_timeout(BUSY).map_err(|error| error.to_string())?;
        Ok(connection)
    }

    /// The triggers by name, with their SQL. BLOBs are written as hex, which JSON can hold.
    fn wanted_triggers(&self, connection: &Connection) -> rusqlite::Result<Vec<(String, String)>> {
        let mut columns = connection.prepare("select name from pragma_table_xinfo(?1) where hidden = 0")?;
        let columns: Vec<String> = columns
            .query_map([&self.table], |row| row.get(0))?
            .collect::<Result<_, _>>()?;
        let row = |side: &str| {
            let members = columns.iter().map(|name| {
                let value = format!("{side}.{}", quote_identifier(name));
                format!(
                    "{}, iif(typeof({value}) = 'blob', hex({value}), {value})",
                    quote_literal(name)
                )
            });
            format!("json_object({})", members.collect::<Vec<_>>().join(", "))
        };
        let table = quote_identifier(&self.own);
        let made = self.events.iter().map(|event| {
            let (word, end, values) = match event {
                DbEvent::Insert => ("INSERT", "ins", format!("{}, null", row("new"))),
                DbEvent::Update => ("UPDATE", "upd", format!("{}, {}", row("new"), row("old"))),
                DbEvent::Delete => ("DELETE", "del", format!("null, {}", row("old"))),
            };
            let name = format!("{}_{end}", self.own);
            let sql = format!(
                "CREATE TRIGGER {} AFTER {word} ON {} BEGIN INSERT INTO {table}(op, new, old) VALUES ('{word}', {values}); END",
                quote_identifier(&name),
                quote_identifier(&self.table),
            );
            (name, sql)
        });
        Ok(made.collect())
    }

    fn existing_triggers(&self, connection: &Connection) -> rusqlite::Result<Vec<(String, String)>> {
        let mut found = connection.prepare("select name, sql from sqlite_master where type = 'trigger'")?;
        let all: Vec<(String, String)> = found
            .query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?
            .collect::<Result<_, _>>()?;
        let ends = ["ins", "upd", "del"].map(|end| format!("{}_{end}", self.own));
        Ok(all.into_iter().filter(|(name, _)| ends.contains(name)).collect())
    }

    /// Makes our table and triggers, and makes triggers anew whose table has other columns now.
    fn install_triggers(&self, connection: &mut Connection) -> Result<(), String> {
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
                crate::plain_name::harmless(&self.table)
            ));
        }
        let work = |connection: &mut Connection| -> rusqlite::Result<()> {
            let change = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            change.execute_batch(&format!(
                "CREATE TABLE IF NOT EXISTS {} (id integer primary key autoincrement, \
                 at text not null default (strftime('%Y-%m-%dT%H:%M:%fZ','now')), op text not null, new text, old text)",
                quote_identifier(&self.own)
            ))?;
            let (wanted, there) = (self.wanted_triggers(&change)?, self.existing_triggers(&change)?);
            for (name, sql) in &there {
                if !wanted
                    .iter()
                    .any(|(known, wanted)| known == name && wanted == sql)
                {
                    change.execute_batch(&format!("DROP TRIGGER {}", quote_identifier(name)))?;
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

    fn read_changes(&self, connection: &Connection, most: usize) -> Result<Vec<TableChange>, String> {
        let read = || -> rusqlite::Result<Vec<TableChange>> {
            let sql = format!(
                "select id, at, op, new, old from {} order by id limit {most}",
                quote_identifier(&self.own)
            );
            let mut found = connection.prepare(&sql)?;
            let rows = found.query_map([], |row| {
                Ok(TableChange {
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

    fn delete_change(&self, connection: &Connection, id: i64) -> Result<(), String> {
        let sql = format!("delete from {} where id = ?1", quote_identifier(&self.own));
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
            for (name, _) in self.existing_triggers(&change)? {
                change.execute_batch(&format!("DROP TRIGGER {}", quote_identifier(&name)))?;
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
                    &format!("select count(*) from {}", quote_identifier(&self.own)),
                    [],
                    |row| row.get(0),
                )?;
                if waits == 0 {
                    change.execute_batch(&format!("DROP TABLE {}", quote_identifier(&self.own)))?;
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

impl SqliteTableWatcher {
    pub(super) fn new(place: SqliteTriggerSpec) -> Self {
        Self {
            place,
            connection: Arc::default(),
        }
    }

    /// Works on the database, beside the other tasks.
    async fn with_connection<T: Send + 'static>(
        &self,
        work: impl FnOnce(&SqliteTriggerSpec, &mut Connection) -> Result<T, String> + Send + 'static,
    ) -> Result<T, String> {
        let (place, connection) = (self.place.clone(), Arc::clone(&self.connection));
        let done = tokio::task::spawn_blocking(move || {
            let mut connection = connection.lock().unwrap_or_else(PoisonError::into_inner);
            if connection.is_none() {
                *connection = Some(place.open_database()?);
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

    /// Takes changes until something fails.
    pub(super) async fn listen(&self, trigger: &DbTrigger, inlet: &InboundPipeline) -> Result<(), String> {
        self.with_connection(SqliteTriggerSpec::install_triggers).await?;
        trigger.restore_runs(inlet).await?;
        inlet.report_ready();
        let version = |_: &SqliteTriggerSpec, connection: &mut Connection| {
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
            let (data_now, schema_now) = self.with_connection(version).await?;
            if schema.is_some_and(|schema| schema != schema_now) {
                self.with_connection(SqliteTriggerSpec::install_triggers).await?;
            }
            if data != Some(data_now) || polls >= LOOK_EVERY {
                polls = 0;
                self.take_all(trigger, inlet).await?;
            }
            // After our own deletes and triggers: those are no news.
            (data, schema) = (Some(data_now), Some(self.with_connection(version).await?.1));
            polls += 1;
            // Nothing tells another process of a change: it is looked for.
            tokio::time::sleep(POLL).await;
        }
    }

    async fn take_all(&self, trigger: &DbTrigger, inlet: &InboundPipeline) -> Result<(), String> {
        loop {
            let most = trigger.wait_for_room().await;
            let changes = self
                .with_connection(move |place, connection| place.read_changes(connection, most))
                .await?;
            if changes.is_empty() {
                return Ok(());
            }
            for change in changes {
                let id = change.id;
                trigger.begin_run(inlet, change).await?;
                self.with_connection(move |place, connection| place.delete_change(connection, id))
                    .await?;
            }
        }
    }

    pub(super) async fn remove(&self) -> Result<Vec<String>, String> {
        self.with_connection(SqliteTriggerSpec::remove).await
    }
}
