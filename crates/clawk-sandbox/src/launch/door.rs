//! The way out of a box. A box has a network namespace of its own with nothing in it but `lo`; where its plan allows any
//! host, it binds a listening socket at [`PORT`] there and hands it out. Whoever holds a [`EgressGate`] serves it: the egress proxy.

use std::any::Any;
use std::fmt;
use std::net::TcpListener;
use std::sync::Arc;

use clawk_plan::plan::Plan;

/// The port on 127.0.0.1, inside the box, that `HTTP_PROXY`, `HTTPS_PROXY` and `ALL_PROXY` name.
pub const PORT: u16 = 3128;

/// A listening socket in the network namespace of a box. Only processes of that box can connect to it.
#[derive(Debug)]
pub struct SandboxListener {
    /// Bound to 127.0.0.1:[`PORT`] in the box, listening, non-blocking.
    pub listener: TcpListener,
    /// The network that the box may reach: [`Plan::network`].
    pub plan: Arc<Plan>,
}

/// The server of a door; dropped after the last process of the box has ended.
pub type EgressServerHandle = Box<dyn Any + Send>;

/// One request of a guest in this process (level `wasm`): HTTP/1.1 in absolute form goes in, its answer comes out.
pub type GuestHttpStream = tokio::io::DuplexStream;

/// Serves the doors of boxes. clawk calls it inside the async runtime, before the tool starts. An error refuses the run.
#[derive(Clone)]
pub struct EgressGate {
    doors: Arc<dyn Fn(SandboxListener) -> std::io::Result<EgressServerHandle> + Send + Sync>,
    lanes: Option<Arc<dyn Fn(GuestHttpStream) -> EgressServerHandle + Send + Sync>>,
}

impl EgressGate {
    /// A gate from a function that takes a door, starts serving it and gives what stops that when dropped.
    pub fn new(
        serve: impl Fn(SandboxListener) -> std::io::Result<EgressServerHandle> + Send + Sync + 'static,
    ) -> Self {
        Self {
            doors: Arc::new(serve),
            lanes: None,
        }
    }

    /// The same for requests of guests: `serve` begins to serve one and gives what cuts it when dropped.
    #[must_use]
    pub fn with_lanes(
        mut self,
        serve: impl Fn(GuestHttpStream) -> EgressServerHandle + Send + Sync + 'static,
    ) -> Self {
        self.lanes = Some(Arc::new(serve));
        self
    }

    pub(crate) fn serve(&self, door: SandboxListener) -> std::io::Result<EgressServerHandle> {
        (self.doors)(door)
    }

    /// Serves one request of a guest; `None` where guests have no way out.
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

/// A file in memory that only this run sees, at `/run/clawk/NAME`: a secret asked for as a file, a run's own authority.
#[derive(Clone)]
pub struct InMemoryFile {
    /// One path component.
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
