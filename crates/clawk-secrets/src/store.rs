//! The configured store: a command that prints the value, or a private file. It is asked before the other places.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

/// `[secrets_store]` in `clawk.toml`: `command` or `file`, not both.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct StoreConfig {
    /// Program and arguments. `{name}` in an argument is replaced by the reference. The value is read from standard output, without
    /// one trailing newline. An exit status other than 0 means that the store does not have the value.
    pub command: Option<Vec<String>>,
    /// A TOML file of `NAME = "value"`; a relative path starts at the folder of `clawk.toml`. The file is refused if the group or
    /// others can access it.
    pub file: Option<PathBuf>,
    /// Time limit for one call of `command`, in milliseconds. After it the command's process group is killed.
    pub deadline_ms: u64,
    /// Largest value accepted from any place, in bytes.
    pub max_bytes: usize,
}

impl Default for StoreConfig {
    fn default() -> Self {
        Self {
            command: None,
            file: None,
            deadline_ms: 10_000,
            max_bytes: 64 * 1024,
        }
    }
}

/// A broken configured store. It stops the resolution: a fallback to a weaker place would hide the fault.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// `clawk.toml` contradicts itself.
    #[error("`secrets_store`: {0}")]
    Config(&'static str),
    /// The command cannot be started, or its output cannot be read.
    #[error("secrets store command `{program}` failed: {source}")]
    Command {
        /// The program, without its arguments.
        program: String,
        /// The system's error.
        source: io::Error,
    },
    /// The command ran too long and was killed.
    #[error("secrets store command `{program}` did not answer within {deadline_ms} ms and was killed")]
    Deadline {
        /// The program, without its arguments.
        program: String,
        /// The limit it exceeded.
        deadline_ms: u64,
    },
    /// The value is larger than `max_bytes`.
    #[error("{place} is larger than {max_bytes} bytes")]
    TooLarge {
        /// Description of the place.
        place: String,
        /// The limit it exceeded.
        max_bytes: usize,
    },
    /// The value holds bytes that are not UTF-8.
    #[error("{place} is not UTF-8 text")]
    NotText {
        /// Description of the place.
        place: String,
    },
    /// A secret file cannot be read.
    #[error("secret file `{path}` cannot be read: {source}")]
    File {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// Users other than the owner can read or change the store's file.
    #[error(
        "secrets store file `{path}` has mode {mode:04o}: other users can access it; run `chmod 600 {path}`"
    )]
    Permissions {
        /// The file.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// The store's file is not a flat TOML table of strings.
    #[error("secrets store file `{path}` is not a flat table of `NAME = \"value\"`")]
    Syntax {
        /// The file. The parser's message is withheld, because it quotes the line, which may hold a value.
        path: PathBuf,
    },
}

/// A place's answer to a reference.
pub(crate) enum SecretLookup {
    Value(Zeroizing<String>),
    /// The place does not have it. The text follows "looked in …" in the error.
    Absent(String),
}

/// A checked [`StoreConfig`].
#[derive(Debug, Clone)]
pub(crate) enum Store {
    Command { argv: Vec<String>, deadline: Duration },
    File(PathBuf),
}

impl Store {
    pub(crate) fn new(config: &StoreConfig, base: &Path) -> Result<Option<Self>, StoreError> {
        if config.deadline_ms == 0 || config.max_bytes == 0 {
            return Err(StoreError::Config(
                "`deadline_ms` and `max_bytes` must be at least 1",
            ));
        }
        match (&config.command, &config.file) {
            (None, None) => Ok(None),
            (Some(_), Some(_)) => Err(StoreError::Config("set `command` or `file`, not both")),
            (Some(argv), None)
                if argv
                    .first()
                    .is_none_or(|program| program.is_empty() || program.contains("{name}")) =>
            {
                Err(StoreError::Config(
                    "`command` must start with the name of a program",
                ))
            }
            (Some(argv), None) => {
                let deadline = Duration::from_millis(config.deadline_ms);
                Ok(Some(Self::Command {
                    argv: argv.clone(),
                    deadline,
                }))
            }
            (None, Some(file)) => Ok(Some(Self::File(base.join(file)))),
        }
    }

    pub(crate) fn look_up(&self, name: &str, max_bytes: usize) -> Result<SecretLookup, StoreError> {
        match self {
            Self::Command { argv, deadline } => ask_command(argv, name, *deadline, max_bytes),
            Self::File(path) => look_in_table(path, name, max_bytes),
        }
    }
}

/// Opens a regular file. A pipe is refused, because reading it could block forever.
fn open_regular_file(path: &Path) -> io::Result<File> {
    if !std::fs::metadata(path)?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
    }
    File::open(path)
}

/// Reads `path` as one value and removes a trailing newline. A missing file returns [`SecretLookup::Absent`].
pub(crate) fn read_file(path: &Path, place: &str, max_bytes: usize) -> Result<SecretLookup, StoreError> {
    let failed = |source| StoreError::File {
        path: path.to_owned(),
        source,
    };
    let file = match open_regular_file(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Ok(SecretLookup::Absent(format!("{place} (no such file)")));
        }
        Err(error) => return Err(failed(error)),
    };
    let bytes = read_bounded(file, max_bytes).map_err(failed)?;
    Ok(SecretLookup::Value(without_newline(decode_text(
        bytes, place, max_bytes,
    )?)))
}

fn look_in_table(path: &Path, name: &str, max_bytes: usize) -> Result<SecretLookup, StoreError> {
    let failed = |source| StoreError::File {
        path: path.to_owned(),
        source,
    };
    let file = open_regular_file(path).map_err(failed)?;
    // Take the mode from the open handle, so that the checked file is the file that is read.
    let mode = file.metadata().map_err(failed)?.mode() & 0o7777;
    if mode & 0o077 != 0 {
        return Err(StoreError::Permissions {
            path: path.to_owned(),
            mode,
        });
    }
    let place = format!("secrets store file `{}`", path.display());
    const TABLE_MAX_BYTES: usize = 4 * 1024 * 1024;
    let table = decode_text(
        read_bounded(file, TABLE_MAX_BYTES).map_err(failed)?,
        &place,
        TABLE_MAX_BYTES,
    )?;
    let mut table: BTreeMap<String, Zeroizing<String>> = toml::from_str::<BTreeMap<String, String>>(&table)
        .map_err(|_| StoreError::Syntax {
            path: path.to_owned(),
        })? // silent-ok: the parser's message quotes the line
        .into_iter()
        .map(|(name, value)| (name, Zeroizing::new(value)))
        .collect();
    match table.remove(name) {
        Some(value) if value.len() > max_bytes => Err(StoreError::TooLarge { place, max_bytes }),
        Some(value) => Ok(SecretLookup::Value(value)),
        None => Ok(SecretLookup::Absent(format!("{place} (no such key)"))),
    }
}

fn ask_command(
    argv: &[String],
    name: &str,
    deadline: Duration,
    max_bytes: usize,
) -> Result<SecretLookup, StoreError> {
    let Some((program, args)) = argv.split_first() else {
        return Err(StoreError::Config(
            "`command` must start with the name of a program",
        ));
    };
    let failed = |source| StoreError::Command {
        program: program.clone(),
        source,
    };
    let place = format!("secrets store command `{program}`");
    #[expect(
        clippy::disallowed_methods,
        reason = "the operator's own store command; secrets come before the sandbox"
    )]
    let mut command = Command::new(program);
    command
        .args(args.iter().map(|arg| arg.replace("{name}", name)))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        // The command's errors are not shown, because they may quote the value.
        .stderr(Stdio::null())
        .process_group(0);
    let mut child = command.spawn().map_err(failed)?;
    let outcome = match child.stdout.take() {
        Some(stdout) => wait_for_output(&mut child, stdout, Instant::now() + deadline, max_bytes),
        None => Err(io::Error::other("no standard output")),
    };
    let outcome = outcome.inspect_err(|_| kill_group(&mut child));
    match outcome {
        Ok((_, bytes)) if bytes.len() > max_bytes => Err(StoreError::TooLarge { place, max_bytes }),
        Ok((status, bytes)) if status.success() => Ok(SecretLookup::Value(without_newline(decode_text(
            bytes, &place, max_bytes,
        )?))),
        Ok((status, _)) => Ok(SecretLookup::Absent(format!("{place} ({status})"))),
        Err(error) if error.kind() == io::ErrorKind::TimedOut => {
            let deadline_ms = u64::try_from(deadline.as_millis()).unwrap_or(u64::MAX);
            Err(StoreError::Deadline {
                program: program.clone(),
                deadline_ms,
            })
        }
        Err(error) => Err(failed(error)),
    }
}

type Output = (ExitStatus, Zeroizing<Vec<u8>>);

/// Reads the whole output, then waits for the exit. It reads one byte more than the limit to detect a value that is too large.
fn wait_for_output(
    child: &mut Child,
    stdout: ChildStdout,
    until: Instant,
    max_bytes: usize,
) -> io::Result<Output> {
    let (sender, receiver) = mpsc::sync_channel(1);
    std::thread::Builder::new()
        .name("secrets-store".into())
        .spawn(move || {
            // silent-ok: a failed send means that the deadline has passed and nobody listens.
            let _ = sender.send(read_bounded(stdout, max_bytes));
        })?;
    let left = until.saturating_duration_since(Instant::now());
    let bytes = receiver
        .recv_timeout(left)
        .map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
    if bytes.len() > max_bytes {
        kill_group(child);
    }
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok((status, bytes));
        }
        if Instant::now() >= until {
            return Err(io::ErrorKind::TimedOut.into());
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Kills the whole process group, so that no grandchild keeps the pipe open, and reaps the child.
fn kill_group(child: &mut Child) {
    if let Some(group) = i32::try_from(child.id())
        .ok()
        .and_then(rustix::process::Pid::from_raw)
    {
        // silent-ok: a group that has gone needs no killing.
        let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
    }
    // silent-ok: as above.
    let _ = child.kill();
    let _ = child.wait();
}

/// Reads at most `max_bytes` + 1 bytes.
fn read_bounded(source: impl Read, max_bytes: usize) -> io::Result<Zeroizing<Vec<u8>>> {
    let limit = u64::try_from(max_bytes).unwrap_or(u64::MAX).saturating_add(1);
    let mut bytes = Zeroizing::new(Vec::new());
    source.take(limit).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn decode_text(
    bytes: Zeroizing<Vec<u8>>,
    place: &str,
    max_bytes: usize,
) -> Result<Zeroizing<String>, StoreError> {
    if bytes.len() > max_bytes {
        return Err(StoreError::TooLarge {
            place: place.to_owned(),
            max_bytes,
        });
    }
    match std::str::from_utf8(&bytes) {
        Ok(text) => Ok(Zeroizing::new(text.to_owned())),
        Err(_) => Err(StoreError::NotText {
            place: place.to_owned(),
        }),
    }
}

fn without_newline(mut value: Zeroizing<String>) -> Zeroizing<String> {
    if value.ends_with('\n') {
        value.pop();
        if value.ends_with('\r') {
            value.pop();
        }
    }
    value
}
