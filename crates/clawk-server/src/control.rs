//! The control socket: CKP for other processes of the same user while the agent runs. Many clients may connect, and each one has
//! the rights of an admin. Besides CKP it accepts orders with the prefix `clawk.` (`clawk approvals`, `clawk approve`, `clawk
//! stop`, …), which need no `claw.initialize`.

mod client;
pub(crate) mod orders;
#[cfg(test)]
mod tests;

use std::fs::{self, File, Permissions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::access::ClientRights;
use crate::host::AgentHost;
use crate::transport::lines;
use crate::transport::stalling::StallTimeout;

pub use client::{ControlClient, ControlError};

/// The socket's name in the state directory.
pub const SOCKET: &str = "control.sock";
/// The largest number of connections; more clients wait in the socket's backlog.
const MAX_CONNECTIONS: usize = 64;
/// How long a write may block before the client is disconnected.
const WRITE: Duration = Duration::from_secs(30);
/// The longest socket address, bytes (`sun_path` without its final zero).
const MAX_ADDRESS: usize = 107;

/// The listening socket. Dropping it removes the socket file.
#[derive(Debug)]
pub struct ControlSocket {
    listener: UnixListener,
    path: PathBuf,
    host: AgentHost,
}

impl ControlSocket {
    /// Listens on `control.sock` (mode 0600) in the state directory. Replaces the socket file of a process that has ended.
    ///
    /// # Errors
    /// Another process already answers there (`AddrInUse`), or the socket can't be created.
    pub fn bind(state_dir: &Path, host: AgentHost) -> io::Result<Self> {
        let path = state_dir.join(SOCKET);
        let dir = File::open(state_dir)?;
        if std::os::unix::net::UnixStream::connect(address(&dir, &path)).is_ok() {
            return Err(io::Error::new(
                io::ErrorKind::AddrInUse,
                "another clawk serves this state directory",
            ));
        }
        // The socket gets its final name only after its mode is set, so nobody else can connect before.
        let fresh = state_dir.join(format!("{SOCKET}.{}", std::process::id()));
        remove(&fresh)?;
        let listener = UnixListener::bind(address(&dir, &fresh))?;
        let made = fs::set_permissions(&fresh, Permissions::from_mode(0o600))
            .and_then(|()| fs::rename(&fresh, &path));
        if let Err(e) = made {
            remove(&fresh)?;
            return Err(e);
        }
        Ok(Self { listener, path, host })
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
                        let (host, over) = (self.host.clone(), cancel.clone());
                        tasks.spawn(async move {
                            if let Err(e) = converse(stream, host, over).await {
                                tracing::debug!(error = %e, "a control connection broke");
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

impl Drop for ControlSocket {
    fn drop(&mut self) {
        // silent-ok: the next start replaces a file that stays
        let _left = fs::remove_file(&self.path);
    }
}

fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
        Ok(()) | Err(_) => Ok(()),
    }
}

/// The socket's path. A path that is too long for an address goes through `/proc` and the open directory.
fn address(dir: &File, path: &Path) -> PathBuf {
    match path.file_name() {
        Some(name) if path.as_os_str().len() > MAX_ADDRESS => Path::new("/proc/self/fd")
            .join(dir.as_raw_fd().to_string())
            .join(name),
        Some(_) | None => path.to_owned(),
    }
}

/// Serves one client until it disconnects or the host ends.
async fn converse(stream: UnixStream, host: AgentHost, over: CancellationToken) -> io::Result<()> {
    let rights = ClientRights::local_user(stream.peer_cred()?.uid());
    let (reader, writer) = stream.into_split();
    let ended = lines::serve(reader, StallTimeout::new(writer, WRITE), host, rights, over).await;
    tracing::debug!(by = ?ended.by, "a control connection has ended");
    Ok(())
}
