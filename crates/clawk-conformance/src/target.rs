//! The agent under test, and how it is started.

use std::fmt;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clawk_secrets::Secret;
use serde_json::Value;
use tempfile::TempDir;

use super::connection::AgentConnection;

/// Time limit for a helper command (`clawk validate`, the turn that spends tokens).
const HELPER_DEADLINE: Duration = Duration::from_secs(20);

/// An agent under test.
pub enum CkpTarget {
    /// clawk itself: each vector gets the set-up that it describes.
    Own {
        /// Path of the program.
        program: PathBuf,
    },
    /// Another agent. Its command runs with `sh -c`, once for each vector.
    Command(String),
    /// An agent served at a URL, with one connection for each vector.
    Remote {
        /// Its address.
        target: clawk_client::AgentAddress,
        /// Its token, if it requires one.
        token: Option<Secret>,
    },
    /// An agent inside a unit test.
    #[cfg(test)]
    Thread(std::sync::Arc<super::tests::fixture::Serve>),
}

impl fmt::Debug for CkpTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CkpTarget").finish_non_exhaustive()
    }
}

/// A conversation with what it needs on disk.
pub(super) struct CkpSession {
    // Fields are dropped in this order, so the agent ends before its files are deleted.
    pub(super) connection: AgentConnection,
    _dir: Option<TempDir>,
}

/// The output of `clawk validate --format json`.
pub(super) struct ValidationJudgement {
    pub(super) valid: bool,
    /// `level-1` and so on; empty for a single primitive.
    pub(super) level: String,
    /// The `errors` member as text.
    pub(super) errors: String,
}

/// A setup: the manifest that clawk serves, and the files beside it.
struct VectorSetup {
    name: &'static str,
    /// The served manifest; `None`: the client sends it.
    manifest: Option<&'static str>,
    /// A turn runs before the vector, to spend tokens.
    spend: bool,
}

macro_rules! setup {
    ($name:literal, $spend:literal) => {
        VectorSetup {
            name: $name,
            manifest: Some(include_str!(concat!(
                "../../../vectors/ckp/setups/",
                $name,
                ".yaml"
            ))),
            spend: $spend,
        }
    };
}

const SETUPS: &[VectorSetup] = &[
    VectorSetup {
        name: "wire",
        manifest: None,
        spend: false,
    },
    setup!("heartbeat", false),
    setup!("standard", false),
    setup!("deny-shell", false),
    setup!("slow", false),
    setup!("approve-shell", false),
    setup!("approve-shell-briefly", false),
    setup!("blocked-command", false),
    setup!("quota", true),
    setup!("full", false),
];
const CONFIG: &str = include_str!("../../../vectors/ckp/setups/clawk.toml");
const SCRIPT: &str = include_str!("../../../vectors/ckp/setups/model.yaml");
/// The secrets that the vectors' manifests name. Nobody is called with them.
const SECRETS: [&str; 3] = ["API_KEY", "LOCAL_CLI_TOKEN", "ANTHROPIC_KEY"];

impl CkpTarget {
    /// Returns whether the target is clawk, so that the setups can be chosen and the vectors apply exactly.
    pub(super) const fn is_own(&self) -> bool {
        matches!(self, Self::Own { .. })
    }

    /// Returns the name for the report until the agent gives its own.
    pub(super) fn name(&self) -> String {
        match self {
            Self::Own { .. } => "clawk".to_owned(),
            Self::Command(command) => command.clone(),
            Self::Remote { target, .. } => target.to_string(),
            #[cfg(test)]
            Self::Thread(_) => "fixture".to_owned(),
        }
    }

    /// Returns the version; it is known in advance only for clawk itself.
    pub(super) fn version(&self) -> Option<String> {
        self.is_own().then(|| env!("CARGO_PKG_VERSION").to_owned())
    }

    /// Returns the time limit for a vector.
    pub(super) fn time_limit(&self, deadline_ms: u64) -> Duration {
        match self {
            Self::Own { .. } | Self::Command(_) | Self::Remote { .. } => Duration::from_millis(deadline_ms),
            #[cfg(test)]
            Self::Thread(_) => Duration::from_millis(deadline_ms.min(1500)),
        }
    }

    /// Starts the agent in a setup.
    pub(super) fn connect(&self, setup: &str) -> Result<CkpSession> {
        match self {
            Self::Own { program } => {
                let setup = SETUPS
                    .iter()
                    .find(|known| known.name == setup)
                    .with_context(|| format!("no set-up `{setup}`"))?;
                setup.start_program(program)
            }
            Self::Command(line) => {
                let mut command = build_command("sh");
                command.arg("-c").arg(format!("exec {line}"));
                Ok(CkpSession {
                    connection: AgentConnection::start(command)?,
                    _dir: None,
                })
            }
            Self::Remote { target, token } => Ok(CkpSession {
                connection: AgentConnection::connect_remote(target.clone(), token.clone())?,
                _dir: None,
            }),
            #[cfg(test)]
            Self::Thread(serve) => Ok(CkpSession {
                connection: super::tests::fixture::connect(serve)?,
                _dir: None,
            }),
        }
    }

    /// Returns the result of `clawk validate` for a document; `None` for other agents.
    pub(super) fn validate_document(&self, document: &Value) -> Option<Result<ValidationJudgement, String>> {
        match self {
            Self::Own { program } => {
                Some(run_validate(program, document).map_err(|error| format!("{error:#}")))
            }
            Self::Command(_) | Self::Remote { .. } => None,
            #[cfg(test)]
            Self::Thread(_) => None,
        }
    }
}

impl VectorSetup {
    fn start_program(&self, program: &Path) -> Result<CkpSession> {
        let dir = TempDir::new().context("no temporary directory")?;
        let at = |name: &str| dir.path().join(name);
        fs::write(at("clawk.toml"), CONFIG)?;
        fs::write(at("model.yaml"), SCRIPT)?;
        let common = |command: &mut Command| {
            command
                .arg("--config")
                .arg(at("clawk.toml"))
                .arg("--state")
                .arg(at("state"))
                .current_dir(dir.path());
            command.envs(SECRETS.map(|name| (name, "unused")));
        };
        let mut serve = build_command(program);
        serve.arg("serve");
        if let Some(manifest) = self.manifest {
            fs::write(at("claw.yaml"), manifest)?;
            serve.arg(at("claw.yaml"));
        }
        serve.arg("--stdio");
        common(&mut serve);
        if self.spend {
            let mut run = build_command(program);
            run.arg("run")
                .arg(at("claw.yaml"))
                .args(["-m", "spend", "--approve", "never"]);
            common(&mut run);
            let (succeeded, said) = command_output(run)?;
            if !succeeded {
                bail!("the turn that spends the day's tokens failed: {said}");
            }
        }
        Ok(CkpSession {
            connection: AgentConnection::start(serve)?,
            _dir: Some(dir),
        })
    }
}

fn run_validate(program: &Path, document: &Value) -> Result<ValidationJudgement> {
    let dir = TempDir::new().context("no temporary directory")?;
    let file = dir.path().join("document.yaml");
    // JSON is also valid YAML.
    fs::write(&file, serde_json::to_vec_pretty(document)?)?;
    let mut command = build_command(program);
    command.arg("validate").arg(&file).args(["--format", "json"]);
    let (_, text) = command_output(command)?;
    let report: Value =
        serde_json::from_str(&text).with_context(|| format!("`clawk validate` printed `{text}`"))?;
    let level = match report.get("conformance_level") {
        Some(Value::String(level)) => level.clone(),
        Some(Value::Number(level)) => format!("level-{level}"),
        _ => String::new(),
    };
    Ok(ValidationJudgement {
        valid: report
            .get("valid")
            .and_then(Value::as_bool)
            .context("`clawk validate` does not say `valid`")?,
        level,
        errors: report.get("errors").map(Value::to_string).unwrap_or_default(),
    })
}

/// Runs a command to its end. Returns whether it succeeded, and its standard output, or standard error if that is empty.
fn command_output(mut command: Command) -> Result<(bool, String)> {
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn().context("could not be started")?;
    let collect = |stream: Option<Box<dyn Read + Send>>| {
        thread::spawn(move || {
            let mut text = Vec::new();
            // silent-ok: the part that was read before the stream broke is shown
            let _ = stream.map(|mut stream| stream.read_to_end(&mut text));
            String::from_utf8_lossy(&text).into_owned()
        })
    };
    let stdout = collect(child.stdout.take().map(|it| Box::new(it) as Box<dyn Read + Send>));
    let stderr = collect(child.stderr.take().map(|it| Box::new(it) as Box<dyn Read + Send>));
    let until = Instant::now() + HELPER_DEADLINE;
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if Instant::now() > until {
            child.kill()?;
            child.wait()?;
            bail!("did not end within {} s", HELPER_DEADLINE.as_secs());
        }
        thread::sleep(Duration::from_millis(2));
    };
    let text = |it: thread::JoinHandle<String>| it.join().unwrap_or_default();
    let (stdout, stderr) = (text(stdout), text(stderr));
    Ok((
        status.success(),
        if stdout.trim().is_empty() { stderr } else { stdout },
    ))
}

#[expect(
    clippy::disallowed_methods,
    reason = "the harness starts the agents that it tests, outside any sandbox of theirs"
)]
pub(super) fn build_command(program: impl AsRef<std::ffi::OsStr>) -> Command {
    Command::new(program)
}
