//! Destinations of audit records: a file that rotates, a separate database, a webhook, syslog (RFC 5424).

use std::fs;
use std::io::{BufRead as _, Write as _};
use std::net::{ToSocketAddrs as _, UdpSocket};
use std::os::unix::fs::OpenOptionsExt as _;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};

use crate::state::kept::{AuditDb, AuditRow};
use anyhow::{Context, Result, bail};
use clawk_egress::{ClientDeadlines, EgressClient, Request, Url};
use clawk_kernel::time::{Clock as _, SystemClock};
use clawk_manifest::model::ManifestDuration as Retention;
use clawk_secrets::EnvironmentSource;

use super::record::AuditRecord;

/// Largest response of a webhook, in bytes.
const MAX_ANSWER_BYTES: u64 = 64 << 10;
/// Longest syslog message, in bytes. A longer record is cut and marked.
const MAX_SYSLOG_BYTES: usize = 8 << 10;
/// Facility 13 (log audit), severity 5 (notice).
const PRIORITY: u32 = 13 * 8 + 5;

/// A destination.
#[derive(Debug)]
pub(super) enum AuditSink {
    File {
        path: PathBuf,
        max_bytes: u64,
        retention: Option<Retention>,
    },
    Sqlite {
        db: AuditDb,
        retention: Option<Retention>,
    },
    Webhook {
        url: Url,
        client: EgressClient,
    },
    Unix(PathBuf),
    Udp(String),
}

impl AuditSink {
    pub(super) const fn for_file(path: PathBuf, max_bytes: u64, retention: Option<Retention>) -> Self {
        Self::File {
            path,
            max_bytes,
            retention,
        }
    }

    pub(super) const fn for_sqlite(db: AuditDb, retention: Option<Retention>) -> Self {
        Self::Sqlite { db, retention }
    }

    pub(super) fn for_webhook(url: &str, env: &EnvironmentSource) -> Result<Self> {
        let url: Url = url.parse().context("is no address")?;
        let deadlines = ClientDeadlines {
            connect_ms: 3_000,
            first_byte_ms: 10_000,
            idle_ms: 5_000,
            total_ms: 15_000,
        };
        let client = EgressClient::for_provider(&url, env, deadlines, MAX_ANSWER_BYTES)?;
        Ok(Self::Webhook { url, client })
    }

    pub(super) fn for_syslog(place: &str) -> Result<Self> {
        match place.split_once(':') {
            Some(("unix", path)) => Ok(Self::Unix(PathBuf::from(path))),
            Some(("udp", address)) => Ok(Self::Udp(address.to_owned())),
            Some(_) | None => bail!("`{place}` is neither `unix:PATH` nor `udp:HOST:PORT`"),
        }
    }

    /// Checks that the destination accepts records, as far as possible without sending one.
    pub(super) fn check_available(&self) -> Result<()> {
        match self {
            Self::File { path, .. } => {
                if let Some(folder) = path.parent() {
                    fs::create_dir_all(folder)
                        .with_context(|| format!("can't make `{}`", folder.display()))?;
                }
                open_file(path).map(drop)
            }
            Self::Sqlite { db, .. } => {
                if let Some(folder) = db.path().parent() {
                    fs::create_dir_all(folder)
                        .with_context(|| format!("can't make `{}`", folder.display()))?;
                }
                Ok(db.check_writable()?)
            }
            // Only a request can show it. The first failure is reported and blocks `audit-only` calls.
            Self::Webhook { .. } => Ok(()),
            Self::Unix(path) => connect_unix(path).map(drop),
            Self::Udp(address) => connect_udp(address).map(drop),
        }
    }

    /// Delivers all records, or fails.
    pub(super) async fn deliver_records(&mut self, records: &[AuditRecord]) -> Result<()> {
        match self {
            Self::Sqlite { db, .. } => {
                let rows: Vec<AuditRow> = records.iter().map(audit_row).collect();
                let db = db.clone();
                Ok(tokio::task::spawn_blocking(move || db.insert_rows(&rows)).await??)
            }
            Self::File {
                path,
                max_bytes,
                retention,
            } => {
                let mut lines = String::new();
                for record in records {
                    lines.push_str(&record.line);
                    lines.push('\n');
                }
                let (path, max_bytes, retention) = (path.clone(), *max_bytes, *retention);
                tokio::task::spawn_blocking(move || append_lines(&path, &lines, max_bytes, retention)).await?
            }
            Self::Webhook { url, client } => {
                let mut body = Vec::new();
                for record in records {
                    body.extend_from_slice(record.line.as_bytes());
                    body.push(b'\n');
                }
                let request = Request::post(url.clone(), "application/x-ndjson", body);
                let status = client.send(request).await?.status();
                if !status.is_success() {
                    bail!("it answered {status}");
                }
                Ok(())
            }
            Self::Unix(path) => {
                let socket = connect_unix(path)?;
                for record in records {
                    socket
                        .send(syslog_message(record).as_bytes())
                        .with_context(|| format!("can't write `{}`", path.display()))?;
                }
                Ok(())
            }
            Self::Udp(address) => {
                let socket = connect_udp(address)?;
                for record in records {
                    socket.send(syslog_message(record).as_bytes())?;
                }
                Ok(())
            }
        }
    }
}

impl AuditSink {
    /// Deletes records older than the policy's retention, if they are stored here. The receiver is responsible for records that
    /// were sent.
    pub(super) async fn remove_expired(&self) -> Result<()> {
        match self {
            Self::File {
                path,
                retention: Some(retention),
                ..
            } => {
                let (path, retention) = (path.clone(), *retention);
                tokio::task::spawn_blocking(move || {
                    if is_aged(&path, retention)? {
                        rotate_file(&path)?;
                    }
                    remove_expired_files(&path, retention)
                })
                .await?
            }
            Self::Sqlite {
                db,
                retention: Some(retention),
            } => {
                let (db, oldest) = (db.clone(), retention_cutoff_ms(*retention));
                let removed = tokio::task::spawn_blocking(move || db.expire_rows(oldest)).await??;
                if removed > 0 {
                    tracing::info!(removed, "audit records were kept long enough");
                }
                Ok(())
            }
            Self::File { retention: None, .. }
            | Self::Sqlite { retention: None, .. }
            | Self::Webhook { .. }
            | Self::Unix(_)
            | Self::Udp(_) => Ok(()),
        }
    }
}

fn audit_row(record: &AuditRecord) -> AuditRow {
    AuditRow {
        at_ms: record.at_ms,
        kind: record.kind.clone(),
        session: record.session.clone(),
        sequence: record.sequence,
        record: record.line.clone(),
    }
}

/// Returns the time before which records are deleted, in milliseconds since the epoch.
fn retention_cutoff_ms(retention: Retention) -> i64 {
    let kept_ms = i64::try_from(retention.as_secs().saturating_mul(1000)).unwrap_or(i64::MAX);
    SystemClock::default().now().as_millis().saturating_sub(kept_ms)
}

/// Returns whether the file's first record is so old that the file is rotated before it is full. So a record outlives its retention
/// by at most a quarter of it, or by a day if that is longer.
fn is_aged(path: &Path, retention: Retention) -> Result<bool> {
    let mut first = String::new();
    match fs::File::open(path) {
        Ok(file) => std::io::BufReader::new(file).read_line(&mut first)?,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(error).with_context(|| format!("can't read `{}`", path.display())),
    };
    let record: serde_json::Value = serde_json::from_str(&first).unwrap_or_default(); // silent-ok: no record of ours is not put aside
    let at = record.get("at").and_then(serde_json::Value::as_str);
    let at = at.and_then(|at| at.parse::<jiff::Timestamp>().ok()); // silent-ok: as above
    let slack_s = (retention.as_secs() / 4).min(86_400);
    let slack_ms = i64::try_from(slack_s.saturating_mul(1000)).unwrap_or(i64::MAX);
    let now = SystemClock::default().now().as_millis();
    Ok(at.is_some_and(|at| at.as_millisecond() < now.saturating_sub(slack_ms)))
}

fn open_file(path: &Path) -> Result<fs::File> {
    fs::OpenOptions::new()
        .append(true)
        .create(true)
        .mode(0o600)
        .open(path)
        .with_context(|| format!("can't write `{}`", path.display()))
}

fn append_lines(path: &Path, lines: &str, max_bytes: u64, retention: Option<Retention>) -> Result<()> {
    let mut file = open_file(path)?;
    file.write_all(lines.as_bytes())?;
    file.sync_data()?;
    if file.metadata()?.len() > max_bytes {
        rotate_file(path)?;
    }
    if let Some(retention) = retention {
        remove_expired_files(path, retention)?;
    }
    Ok(())
}

/// Rotates a full file: renames it to its name and the time.
fn rotate_file(path: &Path) -> Result<()> {
    let now = SystemClock::default().now();
    let mut aside = path.as_os_str().to_owned();
    aside.push(format!(".{}", now.as_millis()));
    fs::rename(path, &aside).with_context(|| format!("can't put `{}` aside", path.display()))
}

/// Deletes rotated files older than the policy's retention.
fn remove_expired_files(path: &Path, retention: Retention) -> Result<()> {
    let (Some(folder), Some(name)) = (path.parent(), path.file_name().and_then(|name| name.to_str())) else {
        return Ok(());
    };
    let oldest = retention_cutoff_ms(retention);
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let aside = entry.file_name();
        let at = aside
            .to_str()
            .and_then(|aside| aside.strip_prefix(name)?.strip_prefix('.')?.parse::<i64>().ok()); // silent-ok: another file
        if at.is_some_and(|at| at < oldest) {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

fn connect_unix(path: &Path) -> Result<UnixDatagram> {
    let socket = UnixDatagram::unbound()?;
    socket
        .connect(path)
        .with_context(|| format!("nothing takes syslog messages at `{}`", path.display()))?;
    socket.set_write_timeout(Some(std::time::Duration::from_secs(5)))?;
    Ok(socket)
}

fn connect_udp(address: &str) -> Result<UdpSocket> {
    let to = address
        .to_socket_addrs()
        .with_context(|| format!("`{address}` is not a valid address"))?
        .next()
        .with_context(|| format!("`{address}` names no host"))?;
    let socket = UdpSocket::bind(if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" })?;
    socket.connect(to)?;
    Ok(socket)
}

/// Formats a record for RFC 5424: priority, version, time, host, program, process, message id, no structured data, the record.
fn syslog_message(record: &AuditRecord) -> String {
    let kind: String = record.kind.chars().take(32).collect();
    let mut line = record.line.as_str();
    let mut cut = "";
    if line.len() > MAX_SYSLOG_BYTES {
        let end = line.floor_char_boundary(MAX_SYSLOG_BYTES);
        line = line.get(..end).unwrap_or_default();
        cut = " [cut]";
    }
    format!(
        "<{PRIORITY}>1 {} - clawk {} {kind} - {line}{cut}",
        record.at,
        std::process::id()
    )
}
