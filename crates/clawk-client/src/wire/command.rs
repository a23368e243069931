//! A command on its standard streams. The user's client starts it, outside of any agent.

use std::process::Stdio;

use tokio::process::Command;

use super::{FAREWELL, TransportChannels, lines};
use crate::ClientError;

/// Starts the command. Its input is closed after our last message.
pub(super) fn open_transport(
    line: &str,
    ends: TransportChannels,
) -> Result<impl Future<Output = Result<(), ClientError>> + Send + use<>, ClientError> {
    #[expect(
        clippy::disallowed_methods,
        reason = "the user's own command, as a shell would start it; no agent's effect"
    )]
    let mut command = Command::new("sh");
    command
        .arg("-c")
        .arg(format!("exec {line}"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .kill_on_drop(true);
    let failed = |what: String| ClientError::Connect(format!("`{line}`: {what}"));
    let mut child = command.spawn().map_err(|error| failed(error.to_string()))?;
    let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
        return Err(failed("it has no standard streams".to_owned()));
    };
    Ok(async move {
        let outcome = lines::run(output, input, ends).await;
        // silent-ok: a command that does not end is killed when it is dropped
        let _ended = tokio::time::timeout(FAREWELL, child.wait()).await;
        outcome
    })
}
