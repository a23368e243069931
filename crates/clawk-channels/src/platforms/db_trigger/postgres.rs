//! PostgreSQL: one trigger for all events, `LISTEN` as a wake-up, and a look at our table again and again, because a notification
//! may be lost. Rows are read in the order of their numbers and deleted once they are durable here: a position would lose the row
//! whose transaction drew its number early and was committed late.

use std::future::poll_fn;
use std::time::Duration;

use clawk_egress::{EgressStream, Url};
use clawk_manifest::model::{Channel, DbEvent};
use clawk_secrets::{EnvironmentSource, Secret, SecretResolver};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::Notify;
use tokio_postgres::config::SslMode;
use tokio_postgres::{AsyncMessage, Client, Config, Connection, NoTls, Transaction};

use super::{DbTrigger, MAX_CHARS, TableChange, quote_identifier};
use crate::adapter::{ChannelDisconnect, InboundPipeline};
use crate::api::bounded_line;
use crate::platform_kit::secret_of;

/// How long connecting may take, milliseconds, and one statement.
const CONNECT_MS: u64 = 10_000;
const STATEMENT: Duration = Duration::from_secs(30);
/// How often our table is read without a notification.
const LOOK: Duration = Duration::from_secs(5);
/// The longest name that the server does not cut, bytes.
const MAX_NAME: usize = 63;
/// How long a lock of somebody else is waited for when something is installed or removed.
const LOCK: &str = "set local lock_timeout = '5s'";
/// What a client says to have TLS: length and code.
const SSL_REQUEST: [u8; 8] = [0, 0, 0, 8, 0x04, 0xd2, 0x16, 0x2f];

type PostgresTriggerConnection = Connection<EgressStream, tokio_postgres::tls::NoTlsStream>;

/// What is installed, and where.
#[derive(Debug, Clone)]
pub(super) struct PostgresTriggerSpec {
    schema: String,
    table: String,
    /// `INSERT`, `UPDATE`, `DELETE`, those that are wanted.
    events: Vec<&'static str>,
    /// The name of our table and of our trigger.
    own: String,
}

impl PostgresTriggerSpec {
    /// # Errors
    /// A name is too long for the server, which would cut it silently.
    pub(super) fn new(table: &str, events: &[DbEvent], own: &str) -> Result<Self, String> {
        let (schema, table) = table.split_once('.').unwrap_or(("public", table));
        for name in [schema, table, &format!("{own}_fn")] {
            if name.is_empty() || name.len() > MAX_NAME {
                return Err(format!(
                    "`{}` is not a name that PostgreSQL keeps: 1 to {MAX_NAME} bytes",
                    crate::plain_name::harmless(name)
                ));
            }
        }
        let word = |event: &DbEvent| match event {
            DbEvent::Insert => "INSERT",
            DbEvent::Update => "UPDATE",
            DbEvent::Delete => "DELETE",
        };
        Ok(Self {
            schema: schema.to_owned(),
            table: table.to_owned(),
            events: events.iter().map(word).collect(),
            own: own.to_owned(),
        })
    }

    fn watched_table(&self) -> String {
        format!(
            "{}.{}",
            quote_identifier(&self.schema),
            quote_identifier(&self.table)
        )
    }

    fn own_table(&self) -> String {
        format!(
            "{}.{}",
            quote_identifier(&self.schema),
            quote_identifier(&self.own)
        )
    }

    fn function_name(&self) -> String {
        format!(
            "{}.{}",
            quote_identifier(&self.schema),
            quote_identifier(&format!("{}_fn", self.own))
        )
    }

    /// What the catalog says of a trigger with our events: for each row, after the change.
    fn kind(&self) -> i16 {
        let bit = |event: &str| match event {
            "INSERT" => 4,
            "DELETE" => 8,
            _ => 16,
        };
        self.events.iter().fold(1, |kind, event| kind | bit(event))
    }

    fn trigger_script(&self) -> String {
        let (ours, function) = (self.own_table(), self.function_name());
        // With the rights of whoever installed it: those who write to the table need none on ours.
        format!(
            "create table if not exists {ours} (id bigint generated always as identity primary key, \
             at timestamptz not null default clock_timestamp(), op text not null, new jsonb, old jsonb); \
             create or replace function {function}() returns trigger language plpgsql security definer \
             set search_path = pg_catalog, pg_temp as $clawk$ begin \
             insert into {ours}(op, new, old) values (tg_op, \
             case when tg_op <> 'DELETE' then to_jsonb(new) end, case when tg_op <> 'INSERT' then to_jsonb(old) end); \
             perform pg_notify({}, ''); return null; end $clawk$",
            quote_literal(&self.own)
        )
    }
}

fn quote_literal(value: &str) -> String {
    format!("'{}'", value.replace('\'', "''"))
}

/// A server that is watched.
pub(super) struct PostgresTableWatcher {
    url: Url,
    password: Option<Secret>,
    env: EnvironmentSource,
    plain: bool,
    place: PostgresTriggerSpec,
}

impl std::fmt::Debug for PostgresTableWatcher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Postgres({})", self.place.table)
    }
}

/// What went wrong, for people; no password is in it.
fn disconnect_from_error(error: &tokio_postgres::Error) -> ChannelDisconnect {
    let told = error
        .as_db_error()
        .map_or_else(|| error.to_string(), |error| error.message().to_owned());
    let reason = bounded_line(&told);
    match error.code().map(tokio_postgres::error::SqlState::code) {
        // A login that is refused, a database that is not there, rights that are missing.
        Some("28P01" | "28000" | "3D000" | "42501") => {
            ChannelDisconnect::fatal(format!("the database refuses it ({reason})"))
        }
        _ => ChannelDisconnect::temporary(reason),
    }
}

impl PostgresTableWatcher {
    pub(super) fn new(
        url: &str,
        channel: &Channel,
        secrets: &SecretResolver,
        place: PostgresTriggerSpec,
    ) -> Result<Self, String> {
        let url = Url::parse(url).map_err(|error| format!("`url` is not a valid address: {error}"))?;
        if url.password().is_some() {
            return Err("`url` holds a password; name it by `auth.secret_ref`".to_owned());
        }
        if url.username().is_empty() || url.path().trim_matches('/').is_empty() {
            return Err("`url` names a user and a database: `postgres://USER@HOST/DATABASE`".to_owned());
        }
        let host = url.host_str().unwrap_or_default();
        let here = matches!(host, "localhost" | "127.0.0.1" | "[::1]" | "::1");
        let mut plain = here;
        for (name, value) in url.query_pairs() {
            plain = match (name.as_ref(), value.as_ref()) {
                ("sslmode", "disable") => true,
                ("sslmode", "require" | "verify-full") => false,
                _ => {
                    return Err(format!(
                        "`{}` in `url` is not known; `sslmode=disable` and `sslmode=verify-full` are",
                        crate::plain_name::harmless(&name)
                    ));
                }
            };
        }
        Ok(Self {
            password: Some(secret_of(channel, secrets)?),
            env: secrets.env().clone(),
            url,
            plain,
            place,
        })
    }

    async fn connect(&self) -> Result<(Client, PostgresTriggerConnection), ChannelDisconnect> {
        let host = self
            .url
            .host_str()
            .unwrap_or("localhost")
            .trim_matches(['[', ']']);
        let port = self.url.port().unwrap_or(5432);
        let stream = EgressStream::connect(host, port, false, &self.env, CONNECT_MS).await;
        let mut stream = stream.map_err(|error| ChannelDisconnect::temporary(error.to_string()))?;
        let mut config = Config::new();
        config
            .user(self.url.username())
            .dbname(self.url.path().trim_matches('/'))
            .application_name("clawk")
            // TLS is below, by the certificates that all of clawk trusts.
            .ssl_mode(SslMode::Disable);
        if let Some(password) = &self.password {
            config.password(password.expose().trim());
        }
        let connecting = async {
            if !self.plain {
                let asked = async {
                    stream.write_all(&SSL_REQUEST).await?;
                    stream.flush().await?;
                    stream.read_u8().await
                };
                match asked.await {
                    Ok(b'S') => {}
                    Ok(_) => {
                        return Err(ChannelDisconnect::fatal(
                            "the server has no TLS; with `?sslmode=disable` in `url` the connection goes without",
                        ));
                    }
                    Err(error) => return Err(ChannelDisconnect::temporary(error.to_string())),
                }
                let secured = stream.start_tls(host, &self.env).await;
                stream = secured.map_err(|error| ChannelDisconnect::temporary(error.to_string()))?;
            }
            let connected = config.connect_raw(stream, NoTls).await;
            connected.map_err(|error| disconnect_from_error(&error))
        };
        match tokio::time::timeout(Duration::from_millis(CONNECT_MS), connecting).await {
            Ok(connected) => connected,
            Err(_) => Err(ChannelDisconnect::temporary(
                "the database did not answer in time",
            )),
        }
    }

    /// Works on a connection, which is driven beside it.
    async fn with_connection<T>(
        &self,
        work: impl AsyncFnOnce(&mut Client, &Notify) -> Result<T, ChannelDisconnect>,
    ) -> Result<T, ChannelDisconnect> {
        let (mut client, mut link) = self.connect().await?;
        let woken = Notify::new();
        let drive = async {
            loop {
                match poll_fn(|cx| link.poll_message(cx)).await {
                    Some(Ok(AsyncMessage::Notification(_))) => woken.notify_one(),
                    Some(Ok(_)) => {}
                    Some(Err(error)) => return disconnect_from_error(&error),
                    None => return ChannelDisconnect::temporary("the database ended the connection"),
                }
            }
        };
        tokio::select! {
            done = work(&mut client, &woken) => done,
            ended = drive => Err(ended),
        }
    }

    pub(super) async fn listen(
        &self,
        trigger: &DbTrigger,
        inlet: &InboundPipeline,
    ) -> Result<(), ChannelDisconnect> {
        self.with_connection(async |client, woken| {
            with_timeout(self.install_triggers(client)).await?;
            let listen = format!("listen {}", quote_identifier(&self.place.own));
            with_timeout(async {
                client
                    .batch_execute(&listen)
                    .await
                    .map_err(|error| disconnect_from_error(&error))
            })
            .await?;
            trigger
                .restore_runs(inlet)
                .await
                .map_err(ChannelDisconnect::temporary)?;
            inlet.report_ready();
            loop {
                // After `listen` is on, so that nothing is missed between.
                self.take_all(client, trigger, inlet).await?;
                tokio::select! {
                    () = woken.notified() => {}
                    () = tokio::time::sleep(LOOK) => {}
                }
            }
        })
        .await
    }

    async fn install_triggers(&self, client: &mut Client) -> Result<(), ChannelDisconnect> {
        let place = &self.place;
        let work = async {
            let change = begin_locked(client, &place.own).await?;
            let table = change
                .query_one("select to_regclass($1)::oid", &[&place.watched_table()])
                .await?;
            let Some(table) = table.get::<_, Option<u32>>(0) else {
                return Ok(false);
            };
            change.batch_execute(&place.trigger_script()).await?;
            let found = change
                .query_opt(
                    "select tgtype from pg_trigger where tgrelid = $1 and tgname = $2 and not tgisinternal",
                    &[&table, &place.own],
                )
                .await?;
            let there: Option<i16> = found.map(|row| row.get(0));
            let (name, watched) = (quote_identifier(&place.own), place.watched_table());
            if there.is_some_and(|kind| kind != place.kind()) {
                change
                    .batch_execute(&format!("drop trigger {name} on {watched}"))
                    .await?;
            }
            if there != Some(place.kind()) {
                let events = place.events.join(" or ");
                change
                    .batch_execute(&format!(
                        "create trigger {name} after {events} on {watched} for each row execute function {}()",
                        place.function_name()
                    ))
                    .await?;
            }
            change.commit().await?;
            Ok(true)
        };
        match work.await {
            Ok(true) => Ok(()),
            Ok(false) => Err(ChannelDisconnect::temporary(format!(
                "the database has no table `{}.{}`",
                crate::plain_name::harmless(&place.schema),
                crate::plain_name::harmless(&place.table)
            ))),
            Err(error) => {
                let ChannelDisconnect { reason, fatal, .. } = disconnect_from_error(&error);
                Err(ChannelDisconnect {
                    fatal,
                    ..ChannelDisconnect::temporary(format!("the trigger can't be installed: {reason}"))
                })
            }
        }
    }

    async fn take_all(
        &self,
        client: &Client,
        trigger: &DbTrigger,
        inlet: &InboundPipeline,
    ) -> Result<(), ChannelDisconnect> {
        let ours = self.place.own_table();
        let most = MAX_CHARS + 1;
        let read = format!(
            "select id, to_char(at at time zone 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.US\"Z\"'), op, left(new::text, {most}), \
             left(old::text, {most}) from {ours} order by id limit $1"
        );
        let forget = format!("delete from {ours} where id = $1");
        loop {
            let room = i64::try_from(trigger.wait_for_room().await).unwrap_or(1);
            let rows = with_timeout(async {
                client
                    .query(&read, &[&room])
                    .await
                    .map_err(|error| disconnect_from_error(&error))
            })
            .await?;
            if rows.is_empty() {
                return Ok(());
            }
            for row in rows {
                let id: i64 = row.get(0);
                let change = TableChange {
                    id,
                    at: row.get(1),
                    op: row.get(2),
                    new: row.get(3),
                    old: row.get(4),
                };
                trigger
                    .begin_run(inlet, change)
                    .await
                    .map_err(ChannelDisconnect::temporary)?;
                with_timeout(async {
                    client
                        .execute(&forget, &[&id])
                        .await
                        .map_err(|error| disconnect_from_error(&error))
                })
                .await?;
            }
        }
    }

    /// Drops the trigger first, so that no write fails for want of our table; the table only when nothing waits in it.
    pub(super) async fn remove(&self) -> Result<Vec<String>, String> {
        let removed = self
            .with_connection(async |client, _| with_timeout(self.remove_triggers(client)).await)
            .await;
        removed.map_err(|ended| format!("nothing was removed: {}", ended.reason))
    }

    async fn remove_triggers(&self, client: &mut Client) -> Result<Vec<String>, ChannelDisconnect> {
        let place = &self.place;
        let work = async {
            let change = begin_locked(client, &place.own).await?;
            let mut told = Vec::new();
            let known = async |name: &str| {
                let row = change
                    .query_one("select to_regclass($1) is not null", &[&name])
                    .await?;
                Ok::<bool, tokio_postgres::Error>(row.get(0))
            };
            if known(&place.watched_table()).await? {
                let drop = format!(
                    "drop trigger if exists {} on {}",
                    quote_identifier(&place.own),
                    place.watched_table()
                );
                change.batch_execute(&drop).await?;
                told.push(format!("trigger {} dropped", place.own));
            }
            change
                .batch_execute(&format!("drop function if exists {}()", place.function_name()))
                .await?;
            told.push(format!("function {}_fn dropped", place.own));
            if known(&place.own_table()).await? {
                let row = change
                    .query_one(&format!("select count(*) from {}", place.own_table()), &[])
                    .await?;
                let waits: i64 = row.get(0);
                if waits == 0 {
                    change
                        .batch_execute(&format!("drop table {}", place.own_table()))
                        .await?;
                    told.push(format!("table {} dropped", place.own));
                } else {
                    told.push(format!("table {} kept: {waits} changes wait in it", place.own));
                }
            }
            change.commit().await?;
            Ok(told)
        };
        work.await
            .map_err(|error: tokio_postgres::Error| disconnect_from_error(&error))
    }
}

/// A transaction that alone installs or removes, on all hosts of an agent.
async fn begin_locked<'c>(
    client: &'c mut Client,
    own: &str,
) -> Result<Transaction<'c>, tokio_postgres::Error> {
    let change = client.transaction().await?;
    change.batch_execute(LOCK).await?;
    change
        .execute("select pg_advisory_xact_lock(hashtext($1))", &[&own])
        .await?;
    Ok(change)
}

/// Within the time of one statement.
async fn with_timeout<T>(
    work: impl Future<Output = Result<T, ChannelDisconnect>>,
) -> Result<T, ChannelDisconnect> {
    match tokio::time::timeout(STATEMENT, work).await {
        Ok(done) => done,
        Err(_) => Err(ChannelDisconnect::temporary(
            "the database did not answer in time",
        )),
    }
}

#[cfg(test)]
mod tests {
    use clawk_manifest::model::DbEvent;

    use super::PostgresTriggerSpec;

    #[test]
    fn names_stand_quoted_and_none_is_cut() {
        let place = PostgresTriggerSpec::new("shop.or\"ders", &[DbEvent::Insert, DbEvent::Delete], "clawk_n")
            .unwrap();
        assert_eq!(place.watched_table(), "\"shop\".\"or\"\"ders\"");
        assert_eq!(place.kind(), 1 | 4 | 8);
        assert!(PostgresTriggerSpec::new("t", &[], &"n".repeat(62)).is_err());
        assert!(PostgresTriggerSpec::new("t.", &[], "n").is_err());
    }
}
