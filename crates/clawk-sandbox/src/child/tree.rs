//! The process tree of a run: all descendants of the supervisor, read from `/proc`.

use std::collections::HashMap;

use rustix::process::{Pid, Signal, WaitOptions, WaitStatus};

/// How many bytes of `/proc/PID/stat` are read. A line is much shorter.
const STAT_BYTES: usize = 1024;

/// The present resource usage of the tree.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Usage {
    /// The number of threads of all live processes.
    pub(super) threads: u64,
    /// Resident pages of all processes. Shared pages count once per process.
    pub(super) pages: u64,
}

/// One row of the process table.
struct ProcessRow {
    pid: i32,
    parent: i32,
    session: i32,
    zombie: bool,
    threads: u64,
    pages: u64,
}

/// All live descendants of this process, and their usage.
pub(super) fn scan_descendants() -> (Vec<Pid>, Usage) {
    let rows = process_table();
    let mut below: HashMap<i32, Vec<usize>> = HashMap::new();
    for (at, row) in rows.iter().enumerate() {
        below.entry(row.parent).or_default().push(at);
    }
    let mut found = Vec::new();
    let mut usage = Usage::default();
    let mut open = vec![rustix::process::getpid().as_raw_nonzero().get()];
    while let Some(parent) = open.pop() {
        // INVARIANT: each row has one parent, so removing the entry visits every process once, even if pids were reused.
        for row in below
            .remove(&parent)
            .unwrap_or_default()
            .into_iter()
            .filter_map(|at| rows.get(at))
        {
            open.push(row.pid);
            if !row.zombie {
                usage.threads += row.threads;
                usage.pages = usage.pages.saturating_add(row.pages);
                found.extend(Pid::from_raw(row.pid));
            }
        }
    }
    (found, usage)
}

/// Resident pages of these processes: the private pages of each, plus the largest shared part once.
pub(super) fn distinct_pages(pids: &[Pid]) -> u64 {
    let mut own = 0_u64;
    let mut shared = 0;
    for pid in pids {
        let statm =
            std::fs::read_to_string(format!("/proc/{}/statm", pid.as_raw_nonzero())).unwrap_or_default();
        let mut fields = statm
            .split_ascii_whitespace()
            .skip(1)
            .map(|field| field.parse::<u64>().unwrap_or(0));
        let (resident, common) = (fields.next().unwrap_or(0), fields.next().unwrap_or(0));
        own = own.saturating_add(resident.saturating_sub(common));
        shared = shared.max(common);
    }
    own.saturating_add(shared)
}

/// Sends a signal to every descendant.
pub(super) fn signal_all(signal: Signal) {
    for pid in scan_descendants().0 {
        let _ = rustix::process::kill_process(pid, signal); // silent-ok: it ended meanwhile
    }
}

/// The launcher's last resort: kills the rest of a session whose supervisor was lost. A process that has started its own session is
/// not found; only a process namespace would contain it.
pub(crate) fn kill_session(leader: i32) {
    let left = process_table()
        .into_iter()
        .filter(|row| row.session == leader && !row.zombie);
    for pid in left.filter_map(|row| Pid::from_raw(row.pid)) {
        let _ = rustix::process::kill_process(pid, Signal::KILL); // silent-ok: it ended meanwhile
    }
}

/// The number of threads of the whole system, from `/proc/loadavg` (`… running/all last`). One small read, for frequent checks.
pub(super) fn threads_in_system() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/loadavg").ok()?; // silent-ok: then every look is a thorough one
    text.split_ascii_whitespace()
        .nth(3)?
        .split_once('/')?
        .1
        .parse()
        .ok()
}

/// The rows of the process table; at most as many as there were when reading began. New processes have higher numbers. So reading a
/// table that grows as fast as it is read would never end.
fn process_table() -> Vec<ProcessRow> {
    let bound = threads_in_system()
        .and_then(|all| usize::try_from(all).ok())
        .unwrap_or(usize::MAX)
        .saturating_add(64);
    let Ok(listing) = std::fs::read_dir("/proc") else {
        return Vec::new();
    };
    listing
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok())
        .take(bound)
        .filter_map(read_row)
        .collect()
}

/// Parses `pid (name) state ppid …`. The name may contain anything, so parsing starts after the last `)`.
fn read_row(pid: i32) -> Option<ProcessRow> {
    use std::io::Read as _;
    let mut text = [0_u8; STAT_BYTES];
    let read = std::fs::File::open(format!("/proc/{pid}/stat"))
        .ok()?
        .read(&mut text)
        .ok()?; // silent-ok: it ended
    let text = std::str::from_utf8(text.get(..read)?).ok().or_else(|| {
        let end = text.iter().rposition(|byte| *byte == b')')?;
        std::str::from_utf8(text.get(end..read)?).ok()
    })?;
    let fields: Vec<&str> = text.rsplit_once(')')?.1.split_ascii_whitespace().collect();
    let number = |at: usize| fields.get(at)?.parse::<u64>().ok();
    Some(ProcessRow {
        pid,
        parent: fields.get(1)?.parse().ok()?,
        session: fields.get(3)?.parse().ok()?,
        zombie: matches!(*fields.first()?, "Z" | "X"),
        threads: number(17)?,
        pages: number(21)?,
    })
}

/// Reaps every process that has ended. Returns the status of `main` if it is among them.
pub(in crate::child) fn reap_processes(main: Pid) -> Option<WaitStatus> {
    let mut found = None;
    while let Ok(Some((pid, status))) = rustix::process::wait(WaitOptions::NOHANG) {
        if pid == main {
            found = Some(status);
        }
    }
    found
}
