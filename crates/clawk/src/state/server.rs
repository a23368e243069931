//! A state that lies on a PostgreSQL server (R48): `[state]` in `clawk.toml`, `--state postgres://…`, and the file of the state
//! directory that says so to every later verb. No secret is written there.

use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clawk_kernel::witness::digest_of;
use serde::{Deserialize, Serialize};

use crate::config::ServerUrl;

/// The file of a state directory that names the server.
const FILE: &str = "postgres.json";
/// The password's reference where none is named: what PostgreSQL's own programs read.
const PASSWORD: &str = "PGPASSWORD";

/// `state` of `clawk.toml`: a directory, or a table with a server.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(untagged)]
pub(crate) enum StateConfig {
    /// `state = "DIR"`.
    Dir(PathBuf),
    /// `[state]`.
    Table(Box<StateTable>),
}

/// `[state]`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct StateTable {
    /// Where the server is, without a password.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) url: Option<ServerUrl>,
    /// State directory: keys and sockets; relative to the file's folder.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) dir: Option<PathBuf>,
    /// Our tables' schema; one agent has one.
    pub(crate) schema: String,
    /// Connections open at once, at most.
    pub(crate) pool: usize,
    /// A replica for whoever only reads.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) read_url: Option<ServerUrl>,
    /// The name of this host; absent: made up.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) host: Option<String>,
    /// How long the lease holds after each renewal, milliseconds.
    pub(crate) lease_ms: u64,
    /// What must hold where the URL names several servers.
    pub(crate) failover: FailoverMode,
    /// A reference to the password.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) password: Option<String>,
}

/// `failover`: what must hold where the URL names several servers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum FailoverMode {
    /// The primary waits for a standby at each commit; otherwise no host starts.
    #[default]
    Synchronous,
    /// A failover may lose what was acknowledged, and do effects twice.
    Asynchronous,
}

impl FailoverMode {
    fn is_usual(&self) -> bool {
        *self == Self::default()
    }
}

impl Default for StateTable {
    fn default() -> Self {
        Self {
            url: None,
            dir: None,
            schema: "clawk".to_owned(),
            pool: 16,
            read_url: None,
            host: None,
            lease_ms: 3_000,
            failover: FailoverMode::default(),
            password: None,
        }
    }
}

impl StateConfig {
    /// The state directory, where one is named.
    pub(crate) fn dir(&self) -> Option<&Path> {
        match self {
            Self::Dir(dir) => Some(dir),
            Self::Table(table) => table.dir.as_deref(),
        }
    }

    /// Where it lies, for people.
    pub(crate) fn shown(&self) -> String {
        match self {
            Self::Dir(dir) => dir.display().to_string(),
            Self::Table(table) => {
                let url = table.url.iter().map(|url| format!("{url:?}"));
                let dir = table.dir.iter().map(|dir| dir.display().to_string());
                url.chain(dir).collect::<Vec<_>>().join(", ")
            }
        }
    }

    /// The reference to the server's password.
    pub(crate) fn secret(&self) -> Option<&str> {
        match self {
            Self::Dir(_) => None,
            Self::Table(table) => table.password.as_deref(),
        }
    }

    /// Paths are relative to the file's folder.
    pub(crate) fn below(self, folder: &Path) -> Self {
        match self {
            Self::Dir(dir) => Self::Dir(folder.join(dir)),
            Self::Table(mut table) => {
                table.dir = table.dir.map(|dir| folder.join(dir));
                Self::Table(table)
            }
        }
    }
}

/// A server that keeps a state, as the directory's file names it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct StateServer {
    /// Without a password.
    pub(crate) url: String,
    pub(crate) read_url: Option<String>,
    pub(crate) schema: String,
    pub(crate) pool: usize,
    pub(crate) host: Option<String>,
    pub(crate) lease_ms: u64,
    #[serde(default, skip_serializing_if = "FailoverMode::is_usual")]
    pub(crate) failover: FailoverMode,
    /// A reference to the password.
    pub(crate) password: String,
    /// It was named by the configuration, so that it must be there.
    pub(crate) password_named: bool,
    /// The configuration, for where secrets come from.
    pub(crate) config: Option<PathBuf>,
    /// PEM certificates of the authorities that count instead of the platform's.
    pub(crate) ca_file: Option<PathBuf>,
}

/// The URL in `--state`, if it is one.
pub(crate) fn url_of(flag: &Path) -> Option<&str> {
    let text = flag.to_str()?;
    (text.starts_with("postgres://") || text.starts_with("postgresql://")).then_some(text)
}

impl StateServer {
    /// What the directory's file names; `None`: the state lies in the directory itself.
    ///
    /// # Errors
    /// The file is there and can't be read.
    pub(crate) fn of(dir: &Path) -> Result<Option<Self>> {
        let file = dir.join(FILE);
        match fs::read(&file) {
            Ok(bytes) => serde_json::from_slice(&bytes)
                .map(Some)
                .with_context(|| format!("`{}` is not valid", file.display())),
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
                ) =>
            {
                Ok(None)
            }
            Err(error) => Err(error).with_context(|| format!("can't read `{}`", file.display())),
        }
    }

    /// From a URL alone; `?schema=NAME` is ours.
    ///
    /// # Errors
    /// It holds a password.
    pub(crate) fn of_url(url: &str, table: &StateTable) -> Result<Self> {
        let (url, schema) = with_schema(url);
        let url = ServerUrl::of(&url)
            .plain()
            .map_err(anyhow::Error::msg)?
            .to_owned();
        let read_url = match &table.read_url {
            Some(url) => Some(url.plain().map_err(anyhow::Error::msg)?.to_owned()),
            None => None,
        };
        Ok(Self {
            url,
            read_url,
            schema: schema.unwrap_or_else(|| table.schema.clone()),
            pool: table.pool,
            host: table.host.clone(),
            lease_ms: table.lease_ms,
            failover: table.failover,
            password: table.password.clone().unwrap_or_else(|| PASSWORD.to_owned()),
            password_named: table.password.is_some(),
            config: None,
            ca_file: None,
        })
    }

    /// Where the state lies, as `--state` takes it; without a password.
    pub(crate) fn shown(&self) -> String {
        let mark = if self.url.contains('?') { '&' } else { '?' };
        format!("{}{mark}schema={}", self.url, self.schema)
    }

    /// What flag and configuration ask for; `None`: the state lies in the directory.
    ///
    /// # Errors
    /// A URL holds a password.
    pub(crate) fn wanted(
        flag: Option<&Path>,
        config: Option<&StateConfig>,
        file: Option<&Path>,
        ca_file: Option<&Path>,
    ) -> Result<Option<Self>> {
        let none = StateTable::default();
        let table = match config {
            Some(StateConfig::Table(table)) => table,
            Some(StateConfig::Dir(_)) | None => &none,
        };
        let url = match (flag, flag.and_then(url_of)) {
            (_, Some(url)) => url,
            // A directory on the command line stands above a server in the configuration.
            (Some(_), None) => return Ok(None),
            (None, None) => match &table.url {
                Some(url) => url.plain().map_err(anyhow::Error::msg)?,
                None => return Ok(None),
            },
        };
        let mut server = Self::of_url(url, table)?;
        server.config = file.map(std::path::absolute).transpose()?;
        server.ca_file = ca_file.map(std::path::absolute).transpose()?;
        Ok(Some(server))
    }

    /// Writes it into the directory, for later verbs. A directory that holds a state of its own, or names another server, is refused.
    ///
    /// # Errors
    /// As said, or it can't be written.
    pub(crate) fn note(&self, dir: &Path) -> Result<()> {
        // A directory whose state was moved to this very server goes on as the host's own.
        let went = super::kept::sqlite::moved_to(dir)?;
        if dir.join("state.db").exists() && went.as_ref() != Some(&self.shown()) {
            bail!(
                "`{}` holds a state of its own: move it to the server with `clawk state move`, or name another `dir` in `[state]`",
                dir.display()
            );
        }
        match Self::of(dir)? {
            Some(there) if there == *self => return Ok(()),
            Some(there) if there.url != self.url || there.schema != self.schema => bail!(
                "`{}` belongs to the state at {} (schema `{}`); name another `dir` in `[state]`",
                dir.display(),
                there.url,
                there.schema
            ),
            Some(_) | None => {}
        }
        let part = dir.join(format!("{FILE}.{}", std::process::id()));
        let write = || -> io::Result<()> {
            let mut open = fs::OpenOptions::new();
            let mut out = open
                .write(true)
                .create(true)
                .truncate(true)
                .mode(0o600)
                .open(&part)?;
            out.write_all(&serde_json::to_vec_pretty(self)?)?;
            out.sync_all()?;
            fs::rename(&part, dir.join(FILE))
        };
        write().with_context(|| format!("can't write in `{}`", dir.display()))
    }

    /// The directory of a verb that was given the URL alone; made when missing.
    ///
    /// # Errors
    /// It can't be made.
    pub(crate) fn own_dir(&self) -> Result<PathBuf> {
        let hex = digest_of(format!("{}\n{}", self.url, self.schema).as_bytes()).to_hex();
        let short: String = hex.chars().take(16).collect();
        let dir = super::home()?.with_file_name("clawk-postgres").join(short);
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&dir)
            .with_context(|| format!("can't make `{}`", dir.display()))?;
        super::refuse_others(&dir)?;
        if Self::of(&dir)?.is_none() {
            self.note(&dir)?;
        }
        Ok(dir)
    }
}

/// The URL without our own parameter, and what that says.
fn with_schema(url: &str) -> (String, Option<String>) {
    let Some((place, query)) = url.split_once('?') else {
        return (url.to_owned(), None);
    };
    let (mut rest, mut schema) = (Vec::new(), None);
    for pair in query.split('&') {
        match pair.strip_prefix("schema=") {
            Some(name) => schema = Some(name.to_owned()),
            None => rest.push(pair),
        }
    }
    let query = if rest.is_empty() {
        String::new()
    } else {
        format!("?{}", rest.join("&"))
    };
    (format!("{place}{query}"), schema)
}
