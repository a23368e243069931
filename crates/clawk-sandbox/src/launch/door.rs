//! Network access of a sandbox. A sandbox has its own network namespace, which contains only `lo`. If its plan allows any host, it
//! binds a listening socket at [`PORT`] there and passes it out. The holder of an [`EgressGate`], the egress proxy, serves it.

use std::any::Any;
use std::fmt;
use std::net::TcpListener;
use std::sync::Arc;

use clawk_plan::plan::Plan;

/// The port on 127.0.0.1, inside the sandbox, that `HTTP_PROXY`, `HTTPS_PROXY` and `ALL_PROXY` name.
pub const PORT: u16 = 3128;

/// A listening socket in the network namespace of a sandbox. Only processes of that sandbox can connect to it.
#[derive(Debug)]
pub struct SandboxListener {
    /// Bound to 127.0.0.1:[`PORT`] in the sandbox, listening, non-blocking.
    pub listener: TcpListener,
    /// The plan whose network rules apply: see [`Plan::network`].
    pub plan: Arc<Plan>,
}

/// Keeps a listener served. It is dropped after the last process of the sandbox has ended.
pub type EgressServerHandle = Box<dyn Any + Send>;

/// One request of a guest in this process (level `wasm`): HTTP/1.1 in absolute form is written, the answer is read.
pub type GuestHttpStream = tokio::io::DuplexStream;

/// Serves the listeners of sandboxes. clawk calls it inside the async runtime, before the tool starts. If it returns an error, the
/// run is refused.
#[derive(Clone)]
pub struct EgressGate {
    doors: Arc<dyn Fn(SandboxListener) -> std::io::Result<EgressServerHandle> + Send + Sync>,
    lanes: Option<Arc<dyn Fn(GuestHttpStream) -> EgressServerHandle + Send + Sync>>,
}

impl EgressGate {
    /// Creates a gate. `serve` gets a listener, starts serving it, and returns a handle that stops this when dropped.
    pub fn new(
        serve: impl Fn(SandboxListener) -> std::io::Result<EgressServerHandle> + Send + Sync + 'static,
    ) -> Self {
        Self {
            doors: Arc::new(serve),
            lanes: None,
        }
    }

    /// Adds serving of guest requests: `serve` starts to serve one and returns a handle that cuts it when dropped.
    #[must_use]
    pub fn with_lanes(
        mut self,
        serve: impl Fn(GuestHttpStream) -> EgressServerHandle + Send + Sync + 'static,
    ) -> Self {
        self.lanes = Some(Arc::new(serve));
        self
    }

    pub(crate) fn serve_listener(&self, door: SandboxListener) -> std::io::Result<EgressServerHandle> {
        (self.doors)(door)
    }

    /// Serves one request of a guest; `None`: guests have no network access.
    #[cfg_attr(not(feature = "wasm"), expect(dead_code, reason = "guests ask"))]
    pub(crate) fn serve_lane(&self, lane: GuestHttpStream) -> Option<EgressServerHandle> {
        self.lanes.as_ref().map(|serve| serve(lane))
    }
}

impl fmt::Debug for EgressGate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Gate")
    }
}

/// A file in memory that only this run sees, at `/run/clawk/NAME`: a secret requested as a file, or the certificate of the run's
/// authority.
#[derive(Clone)]
pub struct InMemoryFile {
    /// The file name: one path component.
    pub name: String,
    /// Its content.
    pub bytes: Vec<u8>,
}

impl InMemoryFile {
    /// The folder in which the tool finds the files.
    pub const FOLDER: &'static str = "/run/clawk";
}

impl fmt::Debug for InMemoryFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Placed({}, {} bytes)", self.name, self.bytes.len())
    }
}
