//! Asks the new program for its decisions: it replays the record itself.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use tokio::io::AsyncReadExt as _;
use tokio::process::Command;

use super::{Args, UpgradeReport};
use crate::out;
use crate::state::server::StateServer;
use clawk_secrets::env;

/// Time limit for one session's replay, and the largest answer in bytes.
const SESSION: Duration = Duration::from_secs(120);
const START: Duration = Duration::from_secs(60);
const MAX_ANSWER_BYTES: u64 = 64 * 1024 * 1024;
/// The environment variables it gets, for file locations. It gets no token or key, except the server's password for a record on a
/// server.
const PASSED: [&str; 4] = ["HOME", "PATH", "XDG_CONFIG_HOME", "XDG_STATE_HOME"];

/// Returns the replay's result of `program`, with `manifest` or the recorded one.
///
/// # Errors
/// The program does not start, takes too long, or does not support the command.
pub(super) async fn ask_program(
    program: &Path,
    args: &Args,
    (manifest, config): (Option<&Path>, Option<&Path>),
    state: &Path,
) -> Result<UpgradeReport> {
    let program = std::path::absolute(program)?;
    let mut command = build_command(&program);
    command.arg("upgrade").arg(&args.manifest).arg("--recorded");
    command.args(["--format", "json", "--sessions", &args.sessions.to_string()]);
    command.arg("--state").arg(state);
    if let Some(config) = config {
        command.arg("--config").arg(config);
    }
    if args.outside.allow_outside {
        command.arg("--allow-outside");
    }
    if let Some(manifest) = manifest {
        command.arg("--shadow").arg(manifest);
    }
    command.env_clear();
    for name in PASSED {
        command.envs(env::path_variable(name).map(|value| (name, value)));
    }
    if let Some(server) = StateServer::from_dir(state)? {
        let name = server.password.as_str();
        command.envs(env::path_variable(name).map(|value| (name, value)));
    }
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command.kill_on_drop(true);
    let time = START + SESSION.saturating_mul(args.sessions);
    let told = tokio::time::timeout(time, run_command(command))
        .await
        .with_context(|| {
            format!(
                "`{}` did not answer within {} s",
                program.display(),
                time.as_secs()
            )
        })?;
    told.with_context(|| format!("`{}` can't be used as a shadow", program.display()))
}

async fn run_command(mut command: Command) -> Result<UpgradeReport> {
    let mut child = command.spawn().context("it can't be started")?;
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    let (said, errors) = tokio::join!(read(stdout), read(stderr));
    let status = child.wait().await?;
    let said = said?;
    if !status.success() {
        let errors = String::from_utf8_lossy(&errors?).into_owned();
        let last = errors
            .trim()
            .lines()
            .next()
            .unwrap_or("it says nothing")
            .to_owned();
        bail!(
            "it ended with {status}: {}",
            out::one_line(&out::clip_line(&last, 400))
        );
    }
    serde_json::from_slice(&said).context("its answer is not a report of `clawk upgrade`")
}

async fn read(from: Option<impl tokio::io::AsyncRead + Unpin>) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    if let Some(from) = from {
        from.take(MAX_ANSWER_BYTES).read_to_end(&mut bytes).await?;
    }
    Ok(bytes)
}

#[expect(
    clippy::disallowed_methods,
    reason = "the operator's own program, named on the command line: no agent's call"
)]
fn build_command(program: &Path) -> Command {
    Command::new(program)
}
