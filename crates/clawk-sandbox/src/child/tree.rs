//! The processes of a run: everything below the supervisor, read from `/proc`.

use std::collections::HashMap;

use rustix::process::{Pid, Signal, WaitOptions, WaitStatus};

/// Bytes of `/proc/PID/stat` that are read; a line is far shorter.
const STAT_BYTES: usize = 1024;

/// What the tree uses now.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Usage {
    /// Threads of all live processes.
    pub(super) threads: u64,
    /// Resident pages of all, shared ones counted once per process.
    pub(super) pages: u64,
}

/// One process of the table.
struct ProcessRow {
    pid: i32,
    parent: i32,
    session: i32,
    zombie: bool,
    threads: u64,
    pages: u64,
}

/// All live descendants of this process, and what they use.
pub(super) fn scan() -> (Vec<Pid>, Usage) {
    let rows = table();
    let mut below: HashMap<i32, Vec<usize>> = HashMap::new();
    for (at, row) in rows.iter().enumerate() {
        below.entry(row.parent).or_default().push(at);
    }
    let mut found = Vec::new();
    let mut usage = Usage::default();
    let mut open = vec![rustix::process::getpid().as_raw_nonzero().get()];
    while let Some(parent) = open.pop() {
        // INVARIANT: each row has one parent, so removing the entry visits every process once, whatever pids were reused.
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

/// Resident pages of these processes: each one's own, and the largest shared part once.
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
    for pid in scan().0 {
        let _ = rustix::process::kill_process(pid, signal); // silent-ok: it ended meanwhile
    }
}

/// Kills what is left of a session whose supervisor was lost: the launcher's last resort. A process that made a session
/// of its own before is not found; only a process namespace would hold it.
pub(crate) fn kill_session(leader: i32) {
    let left = table()
        .into_iter()
        .filter(|row| row.session == leader && !row.zombie);
    for pid in left.filter_map(|row| Pid::from_raw(row.pid)) {
        let _ = rustix::process::kill_process(pid, Signal::KILL); // silent-ok: it ended meanwhile
    }
}

/// Live threads of the whole system, from `/proc/loadavg` (`… running/all last`): one small read, for the look that is
/// taken often.
pub(super) fn threads_in_system() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/loadavg").ok()?; // silent-ok: then every look is a thorough one
    text.split_ascii_whitespace()
        .nth(3)?
        .split_once('/')?
        .1
        .parse()
        .ok()
}

/// Rows of the process table; no more than there were when the reading began. New processes have higher numbers, so
/// whoever reads to the end of a table that grows as fast as it is read never gets there.
fn table() -> Vec<ProcessRow> {
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

/// Parses `pid (name) state ppid …`; the name may hold anything, so what counts starts behind the last `)`.
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

/// Collects every process that has ended; the status of `main` if it is among them.
pub(in crate::child) fn reap(main: Pid) -> Option<WaitStatus> {
    let mut found = None;
    while let Ok(Some((pid, status))) = rustix::process::wait(WaitOptions::NOHANG) {
        if pid == main {
            found = Some(status);
        }
    }
    found
}
