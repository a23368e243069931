//! A folder: the client writes messages to `inbox/` and reads answers from `outbox/`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;
use tokio::time::timeout;

use super::{MAX_MESSAGE, TransportChannels, goodbye_message, is_goodbye, is_initialize};
use crate::folder::{ARCHIVE, FolderWatcher, INBOX, OUTBOX, list_messages, name, read, write_message};
use crate::{ClientError, request_id};

/// The largest number of files read at once.
const AT_ONCE: usize = 1_000;
/// How long to wait for the answer to the last message.
const FAREWELL: Duration = Duration::from_secs(2);

/// Opens the folder. Moves files that an earlier client left unread to the archive.
pub(super) fn open_transport(
    folder: &Path,
    ends: TransportChannels,
) -> Result<impl Future<Output = Result<(), ClientError>> + Send + use<>, ClientError> {
    let failed = |error: std::io::Error| ClientError::Connect(format!("`{}`: {error}", folder.display()));
    let own = FolderTransport {
        inbox: folder.join(INBOX),
        outbox: folder.join(OUTBOX),
    };
    if !own.inbox.is_dir() || !own.outbox.is_dir() {
        let missing = "it has no `inbox` and `outbox`; is `clawk serve --dir` running?";
        return Err(ClientError::Connect(format!("`{}`: {missing}", folder.display())));
    }
    for file in list_messages(&own.outbox, usize::MAX).map_err(failed)? {
        if let Some(name) = file.file_name() {
            // silent-ok: the agent may be archiving the file at the same time
            let _moved = std::fs::rename(&file, folder.join(ARCHIVE).join(name));
        }
    }
    Ok(run(own, ends))
}

struct FolderTransport {
    inbox: PathBuf,
    outbox: PathBuf,
}

async fn run(own: FolderTransport, ends: TransportChannels) -> Result<(), ClientError> {
    let TransportChannels { mut out, heard } = ends;
    let watch = FolderWatcher::new(&own.outbox);
    let mut greeted = false;
    loop {
        for message in own.take_messages()? {
            if heard.send(message).await.is_err() {
                return Ok(());
            }
        }
        tokio::select! {
            message = out.recv() => match message {
                Some(message) => {
                    greeted |= is_initialize(&message);
                    own.write(&message)?;
                }
                None => break,
            },
            () = watch.wait_for_change() => {}
        }
    }
    if greeted {
        own.write(&goodbye_message())?;
        let answered = async {
            loop {
                watch.wait_for_change().await;
                if own
                    .take_messages()
                    .is_ok_and(|messages| messages.iter().any(|text| is_goodbye(text.as_bytes())))
                {
                    return;
                }
            }
        };
        // silent-ok: the server ends an open session after an hour
        let _heard = timeout(FAREWELL, answered).await;
    }
    Ok(())
}

impl FolderTransport {
    fn write(&self, message: &str) -> Result<(), ClientError> {
        write_message(&self.inbox, &name(now_ns(), &id_of(message)), message.as_bytes())
            .map_err(|error| ClientError::Lost(format!("`{}`: {error}", self.inbox.display())))
    }

    /// Reads the new files, each once.
    fn take_messages(&self) -> Result<Vec<String>, ClientError> {
        let lost = |error: &dyn std::fmt::Display| {
            ClientError::Lost(format!("`{}`: {error}", self.outbox.display()))
        };
        let mut messages = Vec::new();
        for file in list_messages(&self.outbox, AT_ONCE).map_err(|error| lost(&error))? {
            match read(&file, MAX_MESSAGE) {
                Ok(bytes) => messages.push(String::from_utf8_lossy(&bytes).into_owned()),
                Err(error) => tracing::warn!(%error, file = %file.display(), "an answer can't be read"),
            }
            std::fs::remove_file(&file).map_err(|error| lost(&error))?;
        }
        Ok(messages)
    }
}

/// The request id of a message, or a new one.
fn id_of(message: &str) -> String {
    let message: Value = serde_json::from_str(message).unwrap_or_default(); // silent-ok: any text may be sent
    ["/params/request_id", "/params/context/request_id"]
        .iter()
        .find_map(|at| message.pointer(at).and_then(Value::as_str))
        .map_or_else(request_id, str::to_owned)
}

fn now_ns() -> u128 {
    #[expect(
        clippy::disallowed_methods,
        reason = "a file's name says when it was written; a client has no Clock port"
    )]
    let now = std::time::SystemTime::now();
    now.duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |since| since.as_nanos())
}
