//! A state on a PostgreSQL server (R48): `[state]` in `clawk.toml`, `--state postgres://…`, and the file in the state directory
//! that stores this choice for later commands. The file holds no secret.

use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clawk_kernel::witness::digest_of;
use serde::{Deserialize, Serialize};

use crate::config::ServerUrl;

/// File in a state directory that names the server.
const FILE: &str = "postgres.json";
/// Default reference of the password, the variable that PostgreSQL's own programs use.
const PASSWORD: &str = "PGPASSWORD";

/// `state` in `clawk.toml`: a directory, or a table with a server.
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
    /// URL of the server, without a password.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) url: Option<ServerUrl>,
    /// State directory for keys and sockets; relative to the file's folder.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) dir: Option<PathBuf>,
    /// Schema of clawk's tables. Each agent has its own.
    pub(crate) schema: String,
    /// Largest number of open connections.
    pub(crate) pool: usize,
    /// URL of a replica for commands that only read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) read_url: Option<ServerUrl>,
    /// Name of this host; absent: generated.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) host: Option<String>,
    /// Lifetime of the lease after each renewal, in milliseconds.
    pub(crate) lease_ms: u64,
    /// The guarantee that is required if the URL names several servers.
    pub(crate) failover: FailoverMode,
    /// Reference to the password.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) password: Option<String>,
}

/// `failover`: the guarantee that is required if the URL names several servers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum FailoverMode {
    /// The primary waits for a standby at each commit. Otherwise no host starts.
    #[default]
    Synchronous,
    /// A failover may lose acknowledged data and repeat effects.
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
    /// Returns the state directory, if one is named.
    pub(crate) fn dir(&self) -> Option<&Path> {
        match self {
            Self::Dir(dir) => Some(dir),
            Self::Table(table) => table.dir.as_deref(),
        }
    }

    /// Returns the location, for display.
    pub(crate) fn display_location(&self) -> String {
        match self {
            Self::Dir(dir) => dir.display().to_string(),
            Self::Table(table) => {
                let url = table.url.iter().map(|url| format!("{url:?}"));
                let dir = table.dir.iter().map(|dir| dir.display().to_string());
                url.chain(dir).collect::<Vec<_>>().join(", ")
            }
        }
    }

    /// Returns the reference to the server's password.
    pub(crate) fn password_reference(&self) -> Option<&str> {
        match self {
            Self::Dir(_) => None,
            Self::Table(table) => table.password.as_deref(),
        }
    }

    /// Makes paths relative to the file's folder absolute.
    pub(crate) fn relative_to(self, folder: &Path) -> Self {
        match self {
            Self::Dir(dir) => Self::Dir(folder.join(dir)),
            Self::Table(mut table) => {
                table.dir = table.dir.map(|dir| folder.join(dir));
                Self::Table(table)
            }
        }
    }
}

/// A server that holds a state, as stored in the directory's file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct StateServer {
    /// URL without a password.
    pub(crate) url: String,
    pub(crate) read_url: Option<String>,
    pub(crate) schema: String,
    pub(crate) pool: usize,
    pub(crate) host: Option<String>,
    pub(crate) lease_ms: u64,
    #[serde(default, skip_serializing_if = "FailoverMode::is_usual")]
    pub(crate) failover: FailoverMode,
    /// Reference to the password.
    pub(crate) password: String,
    /// The configuration names the password, so it must exist.
    pub(crate) password_named: bool,
    /// The configuration file, which names the secrets store.
    pub(crate) config: Option<PathBuf>,
    /// PEM file of certificate authorities that replace the platform's.
    pub(crate) ca_file: Option<PathBuf>,
}

/// Returns the URL in `--state`, if it is one.
pub(crate) fn url_of(flag: &Path) -> Option<&str> {
    let text = flag.to_str()?;
    (text.starts_with("postgres://") || text.starts_with("postgresql://")).then_some(text)
}

impl StateServer {
    /// Reads the directory's file; `None`: the state is in the directory itself.
    ///
    /// # Errors
    /// The file exists and can't be read.
    pub(crate) fn from_dir(dir: &Path) -> Result<Option<Self>> {
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

    /// Parses a URL. The parameter `?schema=NAME` belongs to clawk.
    ///
    /// # Errors
    /// The URL holds a password.
    pub(crate) fn of_url(url: &str, table: &StateTable) -> Result<Self> {
        let (url, schema) = with_schema(url);
        let url = ServerUrl::from_argument(&url)
            .connection_url()
            .map_err(anyhow::Error::msg)?
            .to_owned();
        let read_url = match &table.read_url {
            Some(url) => Some(url.connection_url().map_err(anyhow::Error::msg)?.to_owned()),
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

    /// Returns the location in the form that `--state` accepts, without a password.
    pub(crate) fn display_location(&self) -> String {
        let mark = if self.url.contains('?') { '&' } else { '?' };
        format!("{}{mark}schema={}", self.url, self.schema)
    }

    /// Returns the server that flag and configuration name; `None`: the state is in the directory.
    ///
    /// # Errors
    /// A URL holds a password.
    pub(crate) fn from_settings(
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
            // A directory on the command line overrides a server in the configuration.
            (Some(_), None) => return Ok(None),
            (None, None) => match &table.url {
                Some(url) => url.connection_url().map_err(anyhow::Error::msg)?,
                None => return Ok(None),
            },
        };
        let mut server = Self::of_url(url, table)?;
        server.config = file.map(std::path::absolute).transpose()?;
        server.ca_file = ca_file.map(std::path::absolute).transpose()?;
        Ok(Some(server))
    }

    /// Writes the server into the directory's file, for later commands.
    ///
    /// # Errors
    /// The directory holds its own state or names another server, or the file can't be written.
    pub(crate) fn write_to_dir(&self, dir: &Path) -> Result<()> {
        // A directory whose state was moved to this server becomes the host's directory.
        let went = super::kept::sqlite::moved_to(dir)?;
        if dir.join("state.db").exists() && went.as_ref() != Some(&self.display_location()) {
            bail!(
                "`{}` holds a state of its own: move it to the server with `clawk state move`, or name another `dir` in `[state]`",
                dir.display()
            );
        }
        match Self::from_dir(dir)? {
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

    /// Returns the directory for a command that was given only the URL. Creates it if it is missing.
    ///
    /// # Errors
    /// The directory can't be created.
    pub(crate) fn own_dir(&self) -> Result<PathBuf> {
        let hex = digest_of(format!("{}\n{}", self.url, self.schema).as_bytes()).to_hex();
        let short: String = hex.chars().take(16).collect();
        let dir = super::state_home()?.with_file_name("clawk-postgres").join(short);
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&dir)
            .with_context(|| format!("can't make `{}`", dir.display()))?;
        super::refuse_others(&dir)?;
        if Self::from_dir(&dir)?.is_none() {
            self.write_to_dir(&dir)?;
        }
        Ok(dir)
    }
}

/// Splits clawk's own parameter from the URL. Returns both.
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
