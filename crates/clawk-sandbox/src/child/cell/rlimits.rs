//! Limits per process, which the tool inherits.

use std::io;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::launch::wire::SandboxOrder;

/// The maximum size of a file that a tool may write, in bytes.
const MAX_FILE_BYTES: u64 = 2 << 30;
/// Added to `max_processes`: the sandbox's first process, and a reserve. With the reserve, the group or the watcher sees and
/// reports that the limit is exceeded. Otherwise `fork` would only fail without a report.
const PROCESS_ROOM: u64 = 256;
/// Added to RLIMIT_DATA, in bytes. RLIMIT_DATA only stops one process between two checks; runtimes reserve far more than they use.
const DATA_HEADROOM_BYTES: u64 = 1 << 30;

/// Sets the limits. Returns the enforced mechanisms for the trace.
pub(super) fn apply_rlimits(order: &SandboxOrder) -> io::Result<Vec<String>> {
    let data = order
        .memory_mb
        .saturating_mul(2 << 20)
        .saturating_add(DATA_HEADROOM_BYTES);
    let all = [
        ("core", Resource::Core, 0),
        ("nofile", Resource::Nofile, order.max_open_files),
        ("fsize", Resource::Fsize, MAX_FILE_BYTES),
        ("data", Resource::Data, data),
        // Only the sandbox's id counts, or its user in its user namespace: no other processes of the machine are included.
        (
            "nproc",
            Resource::Nproc,
            order.max_processes.saturating_add(PROCESS_ROOM),
        ),
        ("memlock", Resource::Memlock, 8 << 20),
        ("msgqueue", Resource::Msgqueue, 1 << 20),
    ];
    for (_, resource, value) in &all {
        lower_rlimit(*resource, *value)?;
    }
    let mut held: Vec<String> = all.iter().map(|(name, ..)| format!("rlimit:{name}")).collect();
    if order.timed {
        // Set by the tool's process, which knows its deadline: see `time`.
        held.push("rlimit:cpu".to_owned());
    }
    Ok(held)
}

/// Limits CPU time as a backup of the time limit: all cores busy for the whole time, plus a little.
pub(super) fn limit_cpu_time(timeout_ms: u64) -> io::Result<()> {
    // Not `available_parallelism`, because it reads control groups and all mounts.
    let cores = rustix::thread::sched_getaffinity(None).map_or(1, |set| u64::from(set.count()).max(1));
    lower_rlimit(Resource::Cpu, (timeout_ms / 1000 + 5).saturating_mul(cores))
}

/// Sets the soft and the hard limit, but never above the present ones.
fn lower_rlimit(resource: Resource, value: u64) -> io::Result<()> {
    let ceiling = getrlimit(resource).maximum.unwrap_or(u64::MAX);
    let value = Some(value.min(ceiling));
    let limit = Rlimit {
        current: value,
        maximum: value,
    };
    Ok(setrlimit(resource, limit)?)
}
