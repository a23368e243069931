//! Limits that the supervisor sets on itself, so that the tool inherits them.

use std::os::fd::RawFd;

use rustix::process::{Resource, Rlimit, setrlimit};

use crate::launch::wire::SandboxOrder;

/// The maximum size of a file that a tool may write, in bytes. It prevents filling the disk by accident.
const MAX_FILE_BYTES: u64 = 16 << 30;

/// How many processes the user's other programs may start during a run before RLIMIT_NPROC affects the run.
const PROCESS_HEADROOM: u64 = 1024;

/// How many open files the supervisor itself needs, with a reserve: streams, socket, handle, `/proc`.
const MIN_OPEN_FILES: u64 = 16;

/// Added to twice the memory limit for RLIMIT_DATA, in bytes. RLIMIT_DATA only stops one process between two checks of the memory
/// watcher, which enforces the real limit. It must be high, because some runtimes reserve far more than they use (thread stacks,
/// arenas).
const DATA_HEADROOM_BYTES: u64 = 1 << 30;

/// Closes inherited descriptors except the three standard streams.
pub(super) fn close_inherited() {
    let Ok(listing) = std::fs::read_dir("/proc/self/fd") else {
        return;
    };
    let open: Vec<RawFd> = listing
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect();
    for fd in open.into_iter().filter(|fd| *fd > 2) {
        let _ = nix::unistd::close(fd); // silent-ok: the listing's own descriptor is closed already
    }
}

/// Replaces standard input, which was the socket, by `/dev/null`.
pub(super) fn detach_stdin() -> std::io::Result<()> {
    rustix::stdio::dup2_stdin(std::fs::File::open("/dev/null")?)?;
    Ok(())
}

/// Applies session, subreaper, privileges, limits and CPU weight. Returns (mechanisms, missing).
pub(super) fn apply_limits(order: &SandboxOrder) -> std::io::Result<(Vec<String>, Vec<String>)> {
    if order.max_open_files < MIN_OPEN_FILES {
        let text = format!(
            "`max_open_files` below {MIN_OPEN_FILES} can't be held: the supervisor lives under it, too"
        );
        return Err(std::io::Error::other(text));
    }
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
    let mut held = vec![
        "supervisor".to_owned(),
        "session".to_owned(),
        "subreaper".to_owned(),
    ];
    held.push("environment:explicit".to_owned());
    let mut missing = Vec::new();
    setrlimit(Resource::Core, exact_rlimit(0))?;
    held.push("rlimit:core".to_owned());
    let data = order
        .memory_mb
        .saturating_mul(2 << 20)
        .saturating_add(DATA_HEADROOM_BYTES);
    for (name, resource, value) in [
        ("nofile", Resource::Nofile, order.max_open_files),
        ("fsize", Resource::Fsize, MAX_FILE_BYTES),
        ("data", Resource::Data, data),
    ] {
        lower_rlimit(resource, value)?;
        held.push(format!("rlimit:{name}"));
    }
    if let Some(timeout_ms) = order.timeout_ms() {
        // A backup of the time limit that the supervisor enforces: all cores busy for the whole time, plus a little.
        let cores = std::thread::available_parallelism().map_or(1, |n| u64::try_from(n.get()).unwrap_or(1));
        lower_rlimit(Resource::Cpu, (timeout_ms / 1000 + 5).saturating_mul(cores))?;
        held.push("rlimit:cpu".to_owned());
        held.push("watcher:time".to_owned());
    }
    // RLIMIT_NPROC counts all processes of the user, including clawk's own, and does nothing for root. So the watcher counts, and
    // this high limit only stops a tool that grows faster than the watcher checks.
    if !rustix::process::getuid().is_root()
        && let Some(now) = super::tree::threads_in_system()
    {
        lower_rlimit(
            Resource::Nproc,
            now.saturating_add(order.max_processes)
                .saturating_add(PROCESS_HEADROOM),
        )?;
        held.push("rlimit:nproc".to_owned());
    }
    held.push("watcher:memory".to_owned());
    held.push("watcher:processes".to_owned());
    apply_niceness(None, order.cpu_shares, &mut held, &mut missing);
    Ok((held, missing))
}

/// Sets the soft and the hard limit, but never above the present ones.
fn lower_rlimit(resource: Resource, value: u64) -> std::io::Result<()> {
    let ceiling = rustix::process::getrlimit(resource).maximum.unwrap_or(u64::MAX);
    setrlimit(resource, exact_rlimit(value.min(ceiling)))?;
    Ok(())
}

fn exact_rlimit(value: u64) -> Rlimit {
    Rlimit {
        current: Some(value),
        maximum: Some(value),
    }
}

/// The lowest priority that the kernel has.
const NICEST: i32 = 19;

/// Converts a CPU weight to a nice value. Each step gives 1.25 times less CPU time; 1024 shares are clawk's own nice value.
pub(super) fn apply_niceness(
    whom: Option<rustix::process::Pid>,
    shares: u64,
    held: &mut Vec<String>,
    missing: &mut Vec<String>,
) {
    let Ok(mut nice) = rustix::process::getpriority_process(None) else {
        return missing.push("cpu_shares".to_owned());
    };
    let mut weight = 1024_u64;
    while weight > shares.max(1) && nice < NICEST {
        weight = weight * 4 / 5;
        nice += 1;
    }
    if shares > 1024 {
        // A weight above one core would need a privilege that a tool must not have.
        missing.push("cpu_shares:above-1024".to_owned());
    }
    match rustix::process::setpriority_process(whom, nice) {
        Ok(_) => held.push(format!("nice:{nice}")),
        Err(_) => missing.push("cpu_shares".to_owned()), // silent-ok: told as missing
    }
}
