//! The control socket: answers and looks from other processes of this user while the agent runs (`clawk approvals`, `clawk
//! approve`, `clawk deny`). Same framing as the RPC, one request at a time per connection, methods with the prefix `clawk.`.

mod client;
mod orders;
#[cfg(test)]
mod tests;

use std::fs::{self, File, Permissions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clawk_kernel::{Door, Kernel};
use clawk_proto::rpc::{Id, Inbound, Message, parse, write_error, write_result};
use clawk_proto::{ErrorCode, RpcError, SessionId};
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::agent::Current;
use crate::transport::frames::{Frames, Line};

pub use client::{Client, ControlError};

/// The socket's name in the state directory.
pub const SOCKET: &str = "control.sock";
/// Longest request, bytes.
const MAX_REQUEST_BYTES: usize = 64 * 1024;
/// Connections at a time; more wait in the socket's backlog.
const MAX_CONNECTIONS: usize = 16;
/// How long a connection may say nothing.
const IDLE: Duration = Duration::from_secs(30);
/// How long a client has to read an answer.
const WRITE: Duration = Duration::from_secs(10);
/// A socket's address holds so many bytes at most (`sun_path`, with its final zero).
const MAX_ADDRESS: usize = 107;

/// The listening side. Dropped, its socket file goes.
#[derive(Debug)]
pub struct Control {
    listener: UnixListener,
    path: PathBuf,
    current: Current,
}

impl Control {
    /// Listens on `control.sock` (0600) in the state directory. A file left over by a process that is no more is replaced.
    ///
    /// # Errors
    /// Another process answers there (`AddrInUse`), or the socket can't be made.
    pub fn bind(state_dir: &Path, current: Current) -> io::Result<Self> {
        let path = state_dir.join(SOCKET);
        let dir = File::open(state_dir)?;
        if std::os::unix::net::UnixStream::connect(address(&dir, &path)).is_ok() {
            return Err(io::Error::new(
                io::ErrorKind::AddrInUse,
                "another clawk serves this state directory",
            ));
        }
        // Made under another name, so that nobody meets it before it is ours alone.
        let fresh = state_dir.join(format!("{SOCKET}.{}", std::process::id()));
        remove(&fresh)?;
        let listener = UnixListener::bind(address(&dir, &fresh))?;
        let made = fs::set_permissions(&fresh, Permissions::from_mode(0o600))
            .and_then(|()| fs::rename(&fresh, &path));
        if let Err(e) = made {
            remove(&fresh)?;
            return Err(e);
        }
        Ok(Self {
            listener,
            path,
            current,
        })
    }

    /// Serves until `cancel` fires.
    pub async fn serve(self, cancel: CancellationToken) {
        let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
        let tasks = TaskTracker::new();
        let accepting = async {
            loop {
                let Ok(place) = Arc::clone(&places).acquire_owned().await else {
                    return;
                };
                match self.listener.accept().await {
                    Ok((stream, _)) => {
                        let current = self.current.clone();
                        let over = cancel.clone();
                        tasks.spawn(async move {
                            tokio::select! {
                                () = over.cancelled() => {}
                                outcome = converse(stream, &current) => if let Err(e) = outcome {
                                    tracing::debug!(error = %e, "a control connection broke");
                                },
                            }
                            drop(place);
                        });
                    }
                    Err(e) => {
                        tracing::warn!(error = %e, "the control socket can't accept");
                        tokio::time::sleep(Duration::from_millis(100)).await;
                    }
                }
            }
        };
        tokio::select! {
            () = cancel.cancelled() => {}
            () = accepting => {}
        }
        tasks.close();
        tasks.wait().await;
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        // silent-ok: a file that stays is replaced by the next start
        let _left = fs::remove_file(&self.path);
    }
}

fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
        Ok(()) | Err(_) => Ok(()),
    }
}

/// The socket's path, through the open directory when it is too long for an address.
fn address(dir: &File, path: &Path) -> PathBuf {
    match path.file_name() {
        Some(name) if path.as_os_str().len() > MAX_ADDRESS => Path::new("/proc/self/fd")
            .join(dir.as_raw_fd().to_string())
            .join(name),
        Some(_) | None => path.to_owned(),
    }
}

/// One connection: line by line, until the other side ends it or says nothing for a while.
async fn converse(stream: UnixStream, current: &Current) -> io::Result<()> {
    let user = stream.peer_cred()?.uid();
    let by = format!("local user {user}");
    let (reader, mut writer) = stream.into_split();
    let mut frames = Frames::new(reader, MAX_REQUEST_BYTES);
    loop {
        let mut out = Vec::new();
        while let Some(line) = frames.next_buffered() {
            match line {
                Line::Whole(line) if line.iter().all(u8::is_ascii_whitespace) => continue,
                Line::Whole(line) => respond(line, current, &by, &mut out).await,
                Line::TooLong => write_error(&mut out, &Id::NULL, &too_long()),
            }
            if !out.is_empty() {
                out.push(b'\n');
                tokio::time::timeout(WRITE, writer.write_all(&out)).await??;
                out.clear();
            }
        }
        if frames.is_spent() {
            return Ok(());
        }
        tokio::time::timeout(IDLE, frames.fill()).await??;
    }
}

fn too_long() -> RpcError {
    RpcError::new(
        ErrorCode::InvalidRequest,
        format!("a request may have at most {MAX_REQUEST_BYTES} bytes"),
    )
}

async fn respond(line: &[u8], current: &Current, by: &str, out: &mut Vec<u8>) {
    match parse(line) {
        Inbound::One(Message::Request(request)) => {
            let outcome = act(&request.method, request.params, current, by).await;
            match (request.id, outcome) {
                (Some(id), Ok(result)) => write_result(out, &id, &result),
                (Some(id), Err(error)) => write_error(out, &id, &error),
                (None, _) => {}
            }
        }
        Inbound::One(Message::Refused(refused)) => write_error(out, &refused.id, &refused.error),
        Inbound::One(Message::Ignored) => {}
        Inbound::Batch(_) => {
            write_error(
                out,
                &Id::NULL,
                &RpcError::new(ErrorCode::InvalidRequest, "no batches here"),
            );
        }
    }
}

async fn act(method: &str, params: &str, current: &Current, by: &str) -> Result<Value, RpcError> {
    let running = || {
        current.get().ok_or_else(|| {
            RpcError::new(ErrorCode::InvalidRequest, "no agent is initialized")
                .with(json!({"reason": "not_initialized"}))
        })
    };
    match method {
        "clawk.status" => Ok(status(&running()?)),
        "clawk.sessions" => {
            let open: Vec<Value> = running()?
                .sessions()
                .iter()
                .map(|(id, door)| session(*id, door))
                .collect();
            Ok(json!({"sessions": open}))
        }
        "clawk.budget" => Ok(json!(running()?.budget())),
        _ => orders::act(method, params, &running()?, by).await,
    }
}

fn session(id: SessionId, door: &Door) -> Value {
    json!({"session": id, "door": door.name(), "who": door.sender()})
}

fn status(kernel: &Kernel) -> Value {
    let status = kernel.status();
    let info = kernel.agent_info();
    json!({
        "agent": info.name,
        "version": info.version,
        "state": status.state,
        "uptime_ms": status.uptime_ms,
        "conformance_level": format!("level-{}", kernel.level()),
        "approvals_pending": kernel.pending().len(),
        "stops": kernel.stops(),
        "pid": std::process::id(),
    })
}
