//! The messages between the launcher and its supervisor (`clawk __sandbox`), over their socket.
//!
//! Launcher to supervisor: the length of the request (4 bytes, little endian) with the tool's three streams as
//! attached descriptors (for a box that waits, the socket that its call comes by instead), for a box with a way out also the socket
//! that its listening socket goes to, the request as JSON, and later one byte [`TERMINATE`]. End of file means that the launcher is gone: everything is killed at once. Supervisor to launcher: one JSON [`SupervisorReport`] per line.

use serde::{Deserialize, Serialize};

use crate::child::cell::GroupName;
use crate::child::cell::order::SandboxEnclosure;
use crate::child::cell::world::HostObservation;
use clawk_plan::level::Level;

/// Ends the run gently: SIGTERM, [`GRACE_MS`], SIGKILL.
pub(crate) const TERMINATE: u8 = b't';

/// The box's listening socket is served: the tool may start.
pub(crate) const OPENED: u8 = b'o';

/// A waiting box gets its call: this byte, then the milliseconds it may take (8 bytes, little endian). The call itself goes to
/// the box's first process, over the socket that came as its input: its length (4 bytes, little endian) with the tool's three
/// streams as attached descriptors, then the [`SandboxCall`] as JSON.
pub(crate) const TAKEN: u8 = b'c';

/// The first process has read its call: one byte back on that socket. Without it, surely nothing of the call has run.
pub(crate) const HEARD: u8 = b'h';

/// Milliseconds between SIGTERM and SIGKILL when somebody ends a run or a service: a stop holds within a second.
pub(crate) const GRACE_MS: u64 = 500;

/// The same behind a deadline: nothing of a tool is left 200 ms after it.
pub(crate) const DEADLINE_GRACE_MS: u64 = 100;

/// Longest request, bytes: arguments and environment are limited by the kernel to less.
pub(crate) const MAX_REQUEST_BYTES: usize = 8 << 20;

/// Longest line of a report, bytes.
pub(crate) const MAX_REPORT_BYTES: u64 = 64 << 10;

/// Launcher to nursery, with the supervisor's end of a socket: for how many milliseconds a blank box may wait for the next order
/// after this one (8 bytes, little endian); 0: none is to wait.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct ForkRequest(pub(crate) [u8; 8]);

impl ForkRequest {
    pub(crate) fn of(blank_idle_ms: u64) -> Self {
        Self(blank_idle_ms.to_le_bytes())
    }

    pub(crate) fn blank_idle_ms(self) -> u64 {
        u64::from_le_bytes(self.0)
    }
}

/// What to run. Its environment may hold secrets: no `Debug`.
#[derive(Default, Serialize, Deserialize)]
pub(crate) struct SandboxCall {
    pub(crate) program: String,
    pub(crate) args: Vec<String>,
    pub(crate) env: Vec<(String, String)>,
    /// Absent for services.
    pub(crate) timeout_ms: Option<u64>,
}

/// How to enclose what. No `Debug`, as [`SandboxCall`].
#[derive(Serialize, Deserialize)]
pub(crate) struct SandboxOrder {
    /// Absent: the box waits for its call.
    pub(crate) call: Option<SandboxCall>,
    /// The call has a deadline; false for services.
    pub(crate) timed: bool,
    pub(crate) workdir: Option<String>,
    pub(crate) level: Level,
    pub(crate) memory_mb: u64,
    pub(crate) cpu_shares: u64,
    pub(crate) max_processes: u64,
    pub(crate) max_open_files: u64,
    /// The walls; absent at level `none`.
    pub(crate) enclosure: Option<SandboxEnclosure>,
}

impl SandboxOrder {
    /// The call's deadline, milliseconds; absent for services and while a box waits.
    pub(crate) fn timeout_ms(&self) -> Option<u64> {
        self.call.as_ref().and_then(|call| call.timeout_ms)
    }
}

/// By what a run can be ended when its supervisor is lost. The first process of a box tells the default: the supervisor puts its
/// own in.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SupervisorId {
    /// Process id.
    pub(crate) pid: i32,
    /// The name of its box's control groups; empty without any.
    pub(crate) groups: GroupName,
}

/// What the supervisor tells.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "report", rename_all = "lowercase")]
pub(crate) enum SupervisorReport {
    /// The walls stand; the tool is started next. Before this report surely nothing of it has run.
    Enclosed {
        mechanisms: Vec<String>,
        missing: Vec<String>,
        supervisor: SupervisorId,
    },
    /// The walls stand around nothing: the box waits for its call. `seen` is what the box was made from.
    Waiting {
        supervisor: SupervisorId,
        seen: Vec<HostObservation>,
    },
    /// The tool runs.
    Started,
    /// The tool could not be started; nothing of it ran.
    Refused { reason: String },
    /// The tool and every process of it are gone.
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
