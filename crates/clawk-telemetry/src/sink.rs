//! The destinations of records: an OTLP collector, a webhook, a file that rotates, a database, the console.

use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clawk_egress::{EgressClient, Request, Url};
use clawk_secrets::Secret;
use http::HeaderValue;
use http::header::AUTHORIZATION;

use crate::fact::Label;
use crate::item::TelemetryRecord;
use crate::meter::MetricPoint;
use crate::{line, otlp};

/// How long a write waits for another user of the database.
const BUSY: Duration = Duration::from_secs(5);
/// Largest number of records in a database. The oldest are deleted first.
const MAX_ROWS: i64 = 1_000_000;
/// The SQLite `application_id` of clawk's telemetry databases, "clwk".
const APPLICATION: i64 = 0x636c_776b;

/// The agent that the records belong to.
#[derive(Debug, Clone)]
pub struct TelemetryResource {
    /// The agent's name.
    pub agent: Label,
}

/// The records and metrics of one delivery.
#[derive(Debug, Clone)]
pub struct Batch {
    /// The records.
    pub items: Vec<TelemetryRecord>,
    /// The metrics, if they changed since the last delivery.
    pub points: Vec<MetricPoint>,
    /// Start of the metrics' interval and the current time, in microseconds since the epoch.
    pub times: (i64, i64),
}

impl Batch {
    /// Returns whether the batch is empty.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.items.is_empty() && self.points.is_empty()
    }

    /// Writes the batch as JSON Lines.
    fn to_json_lines(&self, resource: &TelemetryResource) -> String {
        let items = self.items.iter().map(|item| line::of_item(item, resource));
        let points = self
            .points
            .iter()
            .map(|point| line::of_point(point, self.times, resource));
        items
            .chain(points)
            .fold(String::new(), |all, one| all + &one + "\n")
    }
}

/// Why a batch was not delivered. The error never holds an address, a header or the text of a response.
#[derive(Debug, thiserror::Error)]
pub enum DeliveryError {
    /// The receiver did not answer.
    #[error("the endpoint cannot be reached")]
    Unreachable,
    /// The receiver answered with an HTTP status that is not a success.
    #[error("the endpoint answered {0}")]
    Status(u16),
    /// A file operation failed.
    #[error("cannot write `{path}`: {source}")]
    Io {
        /// Path of the file.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// A database operation failed.
    #[error("cannot write `{path}`: {source}")]
    Database {
        /// Path of the database.
        path: PathBuf,
        /// The cause.
        source: rusqlite::Error,
    },
    /// The file exists and was not written by an exporter.
    #[error("`{0}` exists and is not a telemetry file; name another path")]
    NotOurs(PathBuf),
}

impl DeliveryError {
    /// Returns whether the receiver will refuse this batch every time, so a retry is useless.
    #[must_use]
    pub const fn is_refusal(&self) -> bool {
        matches!(self, Self::Status(400 | 413 | 422))
    }
}

/// A destination.
#[derive(Debug)]
pub enum TelemetrySink {
    /// An OTLP collector.
    Otlp(HttpSink),
    /// JSON Lines by HTTP POST.
    Webhook(HttpSink),
    /// JSON Lines in a file.
    File(FileSink),
    /// Rows in a SQLite database.
    Sqlite(SqliteSink),
    /// JSON Lines on standard error. Standard output may carry a protocol.
    Console,
}

impl TelemetrySink {
    /// Delivers the whole batch, or fails. `secret` is sent in the header `Authorization: Bearer`.
    ///
    /// # Errors
    /// [`DeliveryError`]. The receiver may already have part of the batch; the caller sends all of it again.
    pub async fn deliver_batch(
        &self,
        batch: &Batch,
        resource: &TelemetryResource,
        secret: Option<&Secret>,
    ) -> Result<(), DeliveryError> {
        match self {
            Self::Otlp(http) => {
                if !batch.items.is_empty() {
                    let body = otlp::encode_traces(&batch.items, resource);
                    http.post_body("v1/traces", "application/x-protobuf", body, secret)
                        .await?;
                }
                if !batch.points.is_empty() {
                    let body = otlp::encode_metrics(&batch.points, batch.times, resource);
                    http.post_body("v1/metrics", "application/x-protobuf", body, secret)
                        .await?;
                }
                Ok(())
            }
            Self::Webhook(http) => {
                let body = batch.to_json_lines(resource).into_bytes();
                http.post_body("", "application/x-ndjson", body, secret).await
            }
            Self::File(file) => file.append_lines(&batch.to_json_lines(resource)),
            Self::Sqlite(db) => db.insert_batch(batch, resource),
            Self::Console => {
                let mut out = std::io::stderr().lock();
                let path = || PathBuf::from("standard error");
                out.write_all(batch.to_json_lines(resource).as_bytes())
                    .map_err(|source| DeliveryError::Io { path: path(), source })
            }
        }
    }
}

/// An HTTP address that accepts POST requests.
#[derive(Debug)]
pub struct HttpSink {
    /// The manifest's `endpoint`.
    pub endpoint: Url,
    /// The HTTP client, which goes through the egress guard.
    pub client: EgressClient,
}

impl HttpSink {
    /// Returns `endpoint` with the path of `signal`. An endpoint that ends in `/v1/traces` is read as the base address of both
    /// signals.
    fn signal_url(&self, signal: &str) -> Url {
        let mut url = self.endpoint.clone();
        if !signal.is_empty() {
            let path = url.path().trim_end_matches('/');
            let base = path
                .strip_suffix("/v1/traces")
                .or_else(|| path.strip_suffix("/v1/metrics"));
            let path = format!("{}/{signal}", base.unwrap_or(path));
            url.set_path(&path);
        }
        url
    }

    async fn post_body(
        &self,
        signal: &str,
        kind: &'static str,
        body: Vec<u8>,
        secret: Option<&Secret>,
    ) -> Result<(), DeliveryError> {
        let mut request = Request::post(self.signal_url(signal), kind, body);
        if let Some(secret) = secret {
            // silent-ok: the cause would quote the secret
            let mut value = HeaderValue::from_str(&format!("Bearer {}", secret.expose()))
                .map_err(|_| DeliveryError::Unreachable)?;
            value.set_sensitive(true);
            request.headers.insert(AUTHORIZATION, value);
        }
        // silent-ok: the cause may quote the address, which may hold a secret
        let answer = self
            .client
            .send(request)
            .await
            .map_err(|_| DeliveryError::Unreachable)?;
        let status = answer.status();
        if status.is_success() {
            Ok(())
        } else {
            Err(DeliveryError::Status(status.as_u16()))
        }
    }
}

/// A file of JSON Lines with `kept` older files beside it. `FILE.1` is the newest of them.
#[derive(Debug)]
pub struct FileSink {
    /// Path of the file.
    pub path: PathBuf,
    /// Size in bytes above which the file is rotated.
    pub max_bytes: u64,
    /// Number of rotated files that are kept.
    pub kept: u32,
}

impl FileSink {
    fn open_file(&self) -> std::io::Result<fs::File> {
        const O_NOFOLLOW: i32 = 0o400_000;
        const O_NONBLOCK: i32 = 0o4000;
        fs::OpenOptions::new()
            .append(true)
            .read(true)
            .create(true)
            .mode(0o600)
            .custom_flags(O_NOFOLLOW | O_NONBLOCK)
            .open(&self.path)
    }

    /// Checks that the file can be written and holds only telemetry.
    ///
    /// # Errors
    /// The file can't be written, or holds other data.
    pub fn check_file(&self) -> Result<(), DeliveryError> {
        self.append_lines("")
    }

    fn append_lines(&self, lines: &str) -> Result<(), DeliveryError> {
        let io = |source| DeliveryError::Io {
            path: self.path.clone(),
            source,
        };
        if let Some(folder) = self.path.parent() {
            fs::create_dir_all(folder).map_err(io)?;
        }
        let mut file = self.open_file().map_err(io)?;
        let held = file.metadata().map_err(io)?;
        let mut first = Vec::new();
        let prefix = line::PREFIX.as_bytes();
        let length = u64::try_from(prefix.len()).unwrap_or_default();
        (&file).take(length).read_to_end(&mut first).map_err(io)?;
        if !held.is_file() || (held.len() > 0 && first != prefix) {
            return Err(DeliveryError::NotOurs(self.path.clone()));
        }
        file.write_all(lines.as_bytes())
            .and_then(|()| file.sync_data())
            .map_err(io)?;
        if file.metadata().map_err(io)?.len() > self.max_bytes {
            self.rotate_file().map_err(io)?;
        }
        Ok(())
    }

    fn rotate_file(&self) -> std::io::Result<()> {
        let aside = |number: u32| {
            let mut name = self.path.as_os_str().to_owned();
            name.push(format!(".{number}"));
            PathBuf::from(name)
        };
        for number in (1..self.kept).rev() {
            if aside(number).exists() {
                fs::rename(aside(number), aside(number + 1))?;
            }
        }
        fs::rename(&self.path, aside(1))
    }
}

/// A SQLite database of records.
#[derive(Debug)]
pub struct SqliteSink {
    /// Path of the database.
    pub path: PathBuf,
}

impl SqliteSink {
    /// Checks that the database can be written and was made by an exporter.
    ///
    /// # Errors
    /// The database can't be written, or was made by another program.
    pub fn check_database(&self) -> Result<(), DeliveryError> {
        self.open_database().map(drop)
    }

    fn open_database(&self) -> Result<rusqlite::Connection, DeliveryError> {
        let io = |source| DeliveryError::Io {
            path: self.path.clone(),
            source,
        };
        if let Some(folder) = self.path.parent() {
            fs::create_dir_all(folder).map_err(io)?;
        }
        let held = fs::symlink_metadata(&self.path).ok(); // silent-ok: not there yet
        if held.as_ref().is_some_and(|held| !held.is_file()) {
            return Err(DeliveryError::NotOurs(self.path.clone()));
        }
        let is_new = held.is_none_or(|held| held.len() == 0);
        let open = || -> rusqlite::Result<Option<rusqlite::Connection>> {
            let db = rusqlite::Connection::open(&self.path)?;
            db.busy_timeout(BUSY)?;
            let id: i64 = db.pragma_query_value(None, "application_id", |row| row.get(0))?;
            if !is_new && id != APPLICATION {
                return Ok(None);
            }
            db.pragma_update(None, "application_id", APPLICATION)?;
            db.execute_batch(
                "CREATE TABLE IF NOT EXISTS events (
                    id INTEGER PRIMARY KEY, at_us INTEGER NOT NULL, category TEXT NOT NULL, name TEXT NOT NULL,
                    session TEXT NOT NULL, sequence INTEGER NOT NULL, status TEXT NOT NULL, record TEXT NOT NULL,
                    UNIQUE (session, sequence)) STRICT;
                 CREATE TABLE IF NOT EXISTS metrics (
                    name TEXT NOT NULL, attributes TEXT NOT NULL, at_us INTEGER NOT NULL, record TEXT NOT NULL,
                    PRIMARY KEY (name, attributes)) STRICT, WITHOUT ROWID;",
            )?;
            Ok(Some(db))
        };
        let db = open().map_err(|source| self.database_error(source))?;
        let db = db.ok_or_else(|| DeliveryError::NotOurs(self.path.clone()))?;
        fs::set_permissions(&self.path, fs::Permissions::from_mode(0o600)).map_err(io)?;
        Ok(db)
    }

    fn database_error(&self, source: rusqlite::Error) -> DeliveryError {
        DeliveryError::Database {
            path: self.path.clone(),
            source,
        }
    }

    fn insert_batch(&self, batch: &Batch, resource: &TelemetryResource) -> Result<(), DeliveryError> {
        let mut db = self.open_database()?;
        let mut write = || -> rusqlite::Result<()> {
            let all = db.transaction()?;
            for item in &batch.items {
                let sequence = i64::try_from(item.sequence).unwrap_or(i64::MAX);
                let status = if item.fault.is_some() { "error" } else { "ok" };
                all.execute(
                    "INSERT INTO events (at_us, category, name, session, sequence, status, record) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)
                     ON CONFLICT (session, sequence) DO NOTHING",
                    (
                        item.end_us,
                        item.category.name(),
                        &item.name,
                        item.session.to_string(),
                        sequence,
                        status,
                        line::of_item(item, resource),
                    ),
                )?;
            }
            for point in &batch.points {
                let labels = serde_json::to_string(&point.labels).unwrap_or_default(); // silent-ok: names always serialise
                all.execute(
                    "INSERT OR REPLACE INTO metrics (name, attributes, at_us, record) VALUES (?1, ?2, ?3, ?4)",
                    (
                        point.metric.name(),
                        labels,
                        batch.times.1,
                        line::of_point(point, batch.times, resource),
                    ),
                )?;
            }
            all.execute(
                "DELETE FROM events WHERE id <= (SELECT max(id) FROM events) - ?1",
                [MAX_ROWS],
            )?;
            all.commit()
        };
        write().map_err(|source| self.database_error(source))
    }

    /// Returns the path of the database.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}
