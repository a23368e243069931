//! Reads the properties of a process from Linux's `/proc`.

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::time::Duration;

use anyhow::{Context, Result};

use super::sample::{Sample, timed};
use crate::run::command;

/// Returns the current resident memory in MiB.
pub(crate) fn rss_mib(pid: u32) -> Result<f64> {
    status_kib(pid, "VmRSS:").map(|kib| kib / 1024.0)
}

/// Returns the process's private memory in MiB: the pages that it wrote. The other resident pages come from files. The kernel drops
/// them when it needs memory, and maps several neighbouring ones at once.
pub(crate) fn own_mib(pid: u32) -> Result<f64> {
    status_kib(pid, "RssAnon:").map(|kib| kib / 1024.0)
}

/// Returns the CPU seconds used so far, user and system, of all living threads. The resolution is nanoseconds, while `stat` counts
/// ticks.
pub(crate) fn cpu_seconds(pid: u32) -> Result<f64> {
    let tasks = format!("/proc/{pid}/task");
    let mut nanoseconds = 0.0;
    for task in fs::read_dir(&tasks).with_context(|| format!("can't read `{tasks}`"))? {
        let path = task?.path().join("schedstat");
        let text = fs::read_to_string(&path).with_context(|| format!("can't read `{}`", path.display()))?;
        let first = text.split(' ').next().unwrap_or_default();
        nanoseconds += first.parse::<f64>().context("schedstat begins with a number")?;
    }
    Ok(nanoseconds / 1e9)
}

/// Waits for the end of a process and returns its peak memory in MiB.
pub(crate) fn peak_mib(child: &mut Child) -> Result<f64> {
    let mut peak = 0.0;
    while child.try_wait()?.is_none() {
        // silent-ok: the process has just ended
        peak = f64::max(peak, status_kib(child.id(), "VmHWM:").unwrap_or(0.0) / 1024.0);
        std::thread::sleep(Duration::from_millis(2));
    }
    Ok(peak)
}

fn status_kib(pid: u32, field: &str) -> Result<f64> {
    let path = PathBuf::from(format!("/proc/{pid}/status"));
    let text = fs::read_to_string(&path).with_context(|| format!("can't read `{}`", path.display()))?;
    let value = text.lines().find_map(|line| line.strip_prefix(field));
    let number = value.and_then(|value| value.split_whitespace().next());
    Ok(number.with_context(|| format!("no `{field}`"))?.parse()?)
}

/// Milliseconds to start `/bin/true` and wait for its exit: the minimum cost of a process on this machine.
pub(crate) fn plain_spawn_ms(times: usize) -> Result<Sample> {
    let mut sample = Sample::default();
    for _ in 0..times {
        let (took, status) = timed(|| command("/bin/true").stdout(Stdio::null()).status());
        status.context("can't run `/bin/true`")?;
        sample.push(took);
    }
    Ok(sample)
}
