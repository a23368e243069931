//! Limits per process that the tool inherits.

use std::io;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::launch::wire::SandboxOrder;

/// Largest file a tool may write, bytes.
const MAX_FILE_BYTES: u64 = 2 << 30;
/// Beyond `max_processes`: the box's first process, and room in which the group or the watcher sees the limit passed and
/// says so, instead of a `fork` that fails without a word.
const PROCESS_ROOM: u64 = 256;
/// RLIMIT_DATA is a stop for one process between two looks; runtimes reserve far more than they use.
const DATA_HEADROOM_BYTES: u64 = 1 << 30;

/// Sets them; what is held, for the trace.
pub(super) fn apply(order: &SandboxOrder) -> io::Result<Vec<String>> {
    let data = order
        .memory_mb
        .saturating_mul(2 << 20)
        .saturating_add(DATA_HEADROOM_BYTES);
    let all = [
        ("core", Resource::Core, 0),
        ("nofile", Resource::Nofile, order.max_open_files),
        ("fsize", Resource::Fsize, MAX_FILE_BYTES),
        ("data", Resource::Data, data),
        // The id of the box counts alone, or its user in the box's user namespace: no other process of the machine.
        (
            "nproc",
            Resource::Nproc,
            order.max_processes.saturating_add(PROCESS_ROOM),
        ),
        ("memlock", Resource::Memlock, 8 << 20),
        ("msgqueue", Resource::Msgqueue, 1 << 20),
    ];
    for (_, resource, value) in &all {
        lower(*resource, *value)?;
    }
    let mut held: Vec<String> = all.iter().map(|(name, ..)| format!("rlimit:{name}")).collect();
    if order.timed {
        // By the tool's process, which knows its deadline: see `time`.
        held.push("rlimit:cpu".to_owned());
    }
    Ok(held)
}

/// Bounds processor time behind the wall clock: all cores busy for the whole time, and a little.
pub(super) fn time(timeout_ms: u64) -> io::Result<()> {
    // Not `available_parallelism`, which reads control groups and all mounts.
    let cores = rustix::thread::sched_getaffinity(None).map_or(1, |set| u64::from(set.count()).max(1));
    lower(Resource::Cpu, (timeout_ms / 1000 + 5).saturating_mul(cores))
}

/// Sets both limits, never above what is in force already.
fn lower(resource: Resource, value: u64) -> io::Result<()> {
    let ceiling = getrlimit(resource).maximum.unwrap_or(u64::MAX);
    let value = Some(value.min(ceiling));
    let limit = Rlimit {
        current: value,
        maximum: value,
    };
    Ok(setrlimit(resource, limit)?)
}
