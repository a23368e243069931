//! The messages between the launcher and its supervisor (`clawk __sandbox`), over their socket.
//!
//! Launcher to supervisor: first the length of the request (4 bytes, little endian), with descriptors attached. These are the
//! tool's three streams (for a waiting sandbox: the socket for its call instead), and, for a sandbox with network access, the
//! socket over which its listening socket is sent. Then follows the request as JSON, and later perhaps one byte [`TERMINATE`]. End
//! of file means that the launcher is gone: all processes are killed at once. Supervisor to launcher: one JSON [`SupervisorReport`]
//! per line.

use serde::{Deserialize, Serialize};

use crate::child::cell::GroupName;
use crate::child::cell::order::SandboxEnclosure;
use crate::child::cell::world::HostObservation;
use clawk_plan::level::Level;

/// Ends the run in order: SIGTERM, a pause of [`GRACE_MS`], SIGKILL.
pub(crate) const TERMINATE: u8 = b't';

/// The sandbox's listening socket is served: the tool may start.
pub(crate) const OPENED: u8 = b'o';

/// A waiting sandbox gets its call: this byte, then its time limit in milliseconds (8 bytes, little endian). The call itself is
/// sent to the sandbox's first process, over the socket that was attached as its input: its length (4 bytes, little endian) with
/// the tool's three streams as attached descriptors, then the [`SandboxCall`] as JSON.
pub(crate) const TAKEN: u8 = b'c';

/// The first process has read its call: it sends this byte back on that socket. Without it, surely nothing of the call has run.
pub(crate) const HEARD: u8 = b'h';

/// Milliseconds between SIGTERM and SIGKILL when somebody ends a run or a service. A stop must be complete within a second.
pub(crate) const GRACE_MS: u64 = 500;

/// Milliseconds between SIGTERM and SIGKILL after a deadline. All processes must have ended 200 ms after the deadline.
pub(crate) const DEADLINE_GRACE_MS: u64 = 100;

/// The maximum size of a request, in bytes. The kernel's limit for arguments and environment is smaller.
pub(crate) const MAX_REQUEST_BYTES: usize = 8 << 20;

/// The maximum length of a report line, in bytes.
pub(crate) const MAX_REPORT_BYTES: u64 = 64 << 10;

/// Launcher to fork server, with the supervisor's end of a socket: for how many milliseconds a prewarmed sandbox may wait for the
/// order after this one (8 bytes, little endian); 0: none is made.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct ForkRequest(pub(crate) [u8; 8]);

impl ForkRequest {
    pub(crate) fn with_idle_ms(blank_idle_ms: u64) -> Self {
        Self(blank_idle_ms.to_le_bytes())
    }

    pub(crate) fn blank_idle_ms(self) -> u64 {
        u64::from_le_bytes(self.0)
    }
}

/// The program to run. It has no `Debug`, because its environment may contain secrets.
#[derive(Default, Serialize, Deserialize)]
pub(crate) struct SandboxCall {
    pub(crate) program: String,
    pub(crate) args: Vec<String>,
    pub(crate) env: Vec<(String, String)>,
    /// The time limit in milliseconds; absent for services.
    pub(crate) timeout_ms: Option<u64>,
}

/// The isolation, and the call. It has no `Debug`, as [`SandboxCall`].
#[derive(Serialize, Deserialize)]
pub(crate) struct SandboxOrder {
    /// The call; absent: the sandbox waits for it.
    pub(crate) call: Option<SandboxCall>,
    /// Whether the call has a deadline; false for services.
    pub(crate) timed: bool,
    pub(crate) workdir: Option<String>,
    pub(crate) level: Level,
    pub(crate) memory_mb: u64,
    pub(crate) cpu_shares: u64,
    pub(crate) max_processes: u64,
    pub(crate) max_open_files: u64,
    /// The isolation; absent at level `none`.
    pub(crate) enclosure: Option<SandboxEnclosure>,
}

impl SandboxOrder {
    /// The call's time limit in milliseconds; `None` for services and while a sandbox waits.
    pub(crate) fn timeout_ms(&self) -> Option<u64> {
        self.call.as_ref().and_then(|call| call.timeout_ms)
    }
}

/// Identifies a supervisor, so that its run can be ended if it is lost. The sandbox's first process reports the default; the
/// supervisor puts its own values in.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SupervisorId {
    /// The supervisor's process id.
    pub(crate) pid: i32,
    /// The name of its sandbox's control groups; empty if it has none.
    pub(crate) groups: GroupName,
}

/// A report of the supervisor.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "report", rename_all = "lowercase")]
pub(crate) enum SupervisorReport {
    /// The isolation is complete; the tool is started next. Before this report surely nothing of it has run.
    Enclosed {
        mechanisms: Vec<String>,
        missing: Vec<String>,
        supervisor: SupervisorId,
    },
    /// The isolation is complete and the sandbox waits for its call. `seen` has the observations of the host from which it was
    /// made.
    Waiting {
        supervisor: SupervisorId,
        seen: Vec<HostObservation>,
    },
    /// The tool's program runs.
    Started,
    /// The tool could not be started; nothing of it ran.
    Refused { reason: String },
    /// The tool and all of its processes have ended.
    Ended {
        exit_code: Option<i32>,
        signal: Option<i32>,
        hit: Option<ReportedLimit>,
        swept: u64,
    },
}

/// The limit that ended a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum ReportedLimit {
    Time,
    Memory,
    Processes,
}
