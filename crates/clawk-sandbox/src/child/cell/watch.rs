//! The supervisor's watch over a sandbox: the time limit, the resource limits, the launcher's messages, and the first process's
//! reports.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::Pid;

use super::cgroup::RunCgroups;
use super::init::{END, RUN};
use crate::child::{limits, send_report, tree};
use crate::launch::wire::{
    DEADLINE_GRACE_MS, GRACE_MS, OPENED, ReportedLimit, SandboxOrder, SupervisorId, SupervisorReport, TAKEN,
    TERMINATE,
};

/// The shortest and the longest pause between two checks of the limits.
const LOOK: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(250));

/// The pause between two quick checks of the system's number of threads.
const GLANCE: Duration = Duration::from_millis(4);

/// A check may use at most this share of the time: 1/20.
const LOOK_SHARE: u32 = 20;

fn deadline_after(timeout_ms: Option<u64>) -> Option<Instant> {
    timeout_ms.and_then(|ms| Instant::now().checked_add(Duration::from_millis(ms)))
}

/// The maximum length of a report of the first process, in bytes.
const MAX_LINE_BYTES: usize = 64 << 10;

pub(super) struct SandboxWatch<'a> {
    socket: &'a UnixStream,
    control: &'a UnixStream,
    order: &'a SandboxOrder,
    first: Pid,
    /// Whether another process reports the tool's start.
    told_to_run: bool,
    groups: &'a RunCgroups,
    deadline: Option<Instant>,
    kill_at: Option<Instant>,
    look_at: Instant,
    max_pages: u64,
    glance_at: Instant,
    /// The number of threads in the system at the last check.
    threads_then: u64,
    heard: Vec<u8>,
    hit: Option<ReportedLimit>,
    started: bool,
    /// Whether nothing ran, and the launcher was told the reason.
    refused: bool,
    end: Option<SupervisorReport>,
    /// Whether the last report was sent.
    told: bool,
    /// A descriptor that is closed when nobody waits for an answer, because closing it may take the kernel some time.
    pub(super) later: Option<OwnedFd>,
    /// Whether there is no call yet. Then only the launcher's end is watched.
    waits: bool,
}

impl<'a> SandboxWatch<'a> {
    pub(super) fn new(
        socket: &'a UnixStream,
        control: &'a UnixStream,
        order: &'a SandboxOrder,
        first: Pid,
        told_to_run: bool,
        groups: &'a RunCgroups,
    ) -> Self {
        let page = u64::try_from(rustix::param::page_size()).unwrap_or(4096).max(1);
        Self {
            socket,
            control,
            order,
            first,
            told_to_run,
            groups,
            deadline: deadline_after(order.timeout_ms()),
            kill_at: None,
            look_at: Instant::now() + LOOK.0,
            max_pages: order.memory_mb.saturating_mul(1 << 20) / page,
            glance_at: Instant::now() + GLANCE,
            threads_then: tree::threads_in_system().unwrap_or(0),
            heard: Vec::new(),
            hit: None,
            started: false,
            refused: false,
            end: None,
            told: false,
            later: None,
            waits: order.call.is_none(),
        }
    }

    /// Returns when the first process has ended or must be killed.
    pub(super) fn until_end(&mut self, handle: &OwnedFd) -> io::Result<()> {
        loop {
            let now = Instant::now();
            if self.kill_at.is_some_and(|at| at <= now) {
                return Ok(());
            }
            if self.deadline.is_some_and(|at| at <= now) {
                self.deadline = None;
                self.hit = Some(ReportedLimit::Time);
                self.terminate_tree(now, DEADLINE_GRACE_MS);
            }
            if !self.waits && (self.look_at <= now || self.has_thread_growth(now)) && self.check_limits(now) {
                return Ok(());
            }
            let next = match self.waits {
                true => None,
                false => [
                    self.deadline,
                    self.kill_at,
                    Some(self.look_at),
                    self.next_glance(),
                ]
                .into_iter()
                .flatten()
                .min(),
            };
            let [ended, said, reported] =
                self.wait_for_events(handle, next.map(|next| next.saturating_duration_since(now)));
            if reported {
                self.read_init_reports()?;
            }
            // The first process reports the end when it is alone in the sandbox.
            if ended || self.end.is_some() {
                return Ok(());
            }
            if said && !self.handle_launcher_signal() {
                return Ok(());
            }
        }
    }

    fn wait_for_events(&self, handle: &OwnedFd, at_most: Option<Duration>) -> [bool; 3] {
        let mut fds = [
            PollFd::new(handle, PollFlags::IN),
            PollFd::new(self.socket, PollFlags::IN),
            PollFd::new(self.control, PollFlags::IN),
        ];
        let timeout = at_most.map(|at_most| Timespec {
            tv_sec: i64::try_from(at_most.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(at_most.subsec_nanos()),
        });
        if rustix::event::poll(&mut fds, timeout.as_ref()).is_err() {
            return [false; 3]; // an interruption
        }
        fds.map(|fd| !fd.revents().is_empty())
    }

    /// Reads the reports of the first process.
    fn read_init_reports(&mut self) -> io::Result<bool> {
        let mut buffer = [0_u8; 4096];
        let read = match rustix::io::read(self.control, &mut buffer) {
            Ok(read) => read,
            Err(rustix::io::Errno::INTR) => return Ok(true),
            Err(_) => 0, // silent-ok: its end is seen by its handle
        };
        if read == 0 {
            // No more reports come; sleep instead of polling until the handle shows the end.
            std::thread::sleep(Duration::from_micros(200));
            return Ok(false);
        }
        self.heard
            .extend_from_slice(buffer.get(..read).unwrap_or_default());
        if self.heard.len() > MAX_LINE_BYTES {
            return Err(io::Error::other("the box's first process talks nonsense"));
        }
        while let Some(at) = self.heard.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.heard.drain(..=at).collect();
            self.handle_report(serde_json::from_slice(&line)?)?;
        }
        Ok(true)
    }

    fn supervisor_id(&self) -> SupervisorId {
        SupervisorId {
            pid: rustix::process::getpid().as_raw_nonzero().get(),
            groups: self.groups.name().clone(),
        }
    }

    fn handle_report(&mut self, report: SupervisorReport) -> io::Result<()> {
        match report {
            SupervisorReport::Enclosed {
                mut mechanisms,
                mut missing,
                ..
            } => {
                self.record_tree_limits(&mut mechanisms, &mut missing);
                let supervisor = self.supervisor_id();
                let report = SupervisorReport::Enclosed {
                    mechanisms,
                    missing,
                    supervisor,
                };
                send_report(self.socket, &report)?;
                if !self.told_to_run && !self.waits {
                    super::send_word(self.control, &[RUN])?;
                }
            }
            SupervisorReport::Waiting { seen, .. } => {
                let supervisor = self.supervisor_id();
                send_report(self.socket, &SupervisorReport::Waiting { supervisor, seen })?;
                self.later = None;
            }
            SupervisorReport::Started => {
                self.started = true;
                send_report(self.socket, &SupervisorReport::Started)?;
            }
            SupervisorReport::Refused { reason } if self.started => {
                // The tool ran, but how it ended is unknown.
                let _ = reason; // silent-ok: an end without a status says so
            }
            SupervisorReport::Refused { reason } => {
                self.refused = true;
                send_report(self.socket, &SupervisorReport::Refused { reason })?;
            }
            end @ SupervisorReport::Ended { .. } => self.end = Some(end),
        }
        Ok(())
    }

    /// The mechanisms that enforce the limits of the whole tree.
    fn record_tree_limits(&self, held: &mut Vec<String>, missing: &mut Vec<String>) {
        held.extend(self.groups.enforced_mechanisms());
        let watched = [
            ("memory", self.groups.holds_memory()),
            ("processes", self.groups.holds_processes()),
        ];
        held.extend(
            watched
                .iter()
                .filter(|(_, group)| !group)
                .map(|(name, _)| format!("watcher:{name}")),
        );
        if !self.groups.holds_cpu() {
            limits::apply_niceness(Some(self.first), self.order.cpu_shares, held, missing);
        }
        if self.order.timed {
            held.push("watcher:time".to_owned());
        }
    }

    /// Handles the launcher's messages. Returns false if the launcher is gone.
    fn handle_launcher_signal(&mut self) -> bool {
        let mut byte = [0_u8; 1];
        match rustix::io::read(self.socket, &mut byte) {
            Ok(1) if byte == [TERMINATE] => self.terminate_tree(Instant::now(), GRACE_MS),
            Ok(1) if byte == [OPENED] => {
                let _ = super::send_word(self.control, &[RUN]); // silent-ok: its end is seen by its handle
            }
            Ok(1) if byte == [TAKEN] => return self.confirm_call_received(),
            Ok(1) => {}
            Ok(_) | Err(_) => return false, // silent-ok: a broken socket is a launcher that is gone
        }
        true
    }

    /// Handles the start of a call in a waiting sandbox, with its time limit. Returns false if it could not be read.
    fn confirm_call_received(&mut self) -> bool {
        let mut text = [0_u8; 8];
        if !self.waits || io::Read::read_exact(&mut &*self.socket, &mut text).is_err() {
            return false;
        }
        self.waits = false;
        self.deadline = deadline_after(Some(u64::from_le_bytes(text)));
        let now = Instant::now();
        (self.look_at, self.glance_at) = (now + LOOK.0, now + GLANCE);
        self.threads_then = tree::threads_in_system().unwrap_or(0);
        true
    }

    fn terminate_tree(&mut self, now: Instant, grace_ms: u64) {
        if self.kill_at.is_none() {
            let _ = super::send_word(self.control, &[END]); // silent-ok: its end is seen by its handle
            let grace = if self.started { grace_ms } else { 0 };
            self.kill_at = Some(now + Duration::from_millis(grace));
        }
    }

    /// When the next quick check is due; only if no group counts processes.
    fn next_glance(&self) -> Option<Instant> {
        (!self.groups.holds_processes()).then_some(self.glance_at)
    }

    /// Whether the system has so many new threads that some may belong to the sandbox.
    fn has_thread_growth(&mut self, now: Instant) -> bool {
        if self.next_glance().is_none_or(|at| at > now) {
            return false;
        }
        self.glance_at = now + GLANCE;
        let more = tree::threads_in_system()
            .unwrap_or(0)
            .saturating_sub(self.threads_then);
        more > self.order.max_processes
    }

    /// Checks the limits. Returns true if one is exceeded.
    fn check_limits(&mut self, now: Instant) -> bool {
        self.later = None;
        self.threads_then = tree::threads_in_system().unwrap_or(0);
        let hit = self.groups.limit_hit().or_else(|| self.check_counted_limits());
        self.look_at = Instant::now() + (now.elapsed() * LOOK_SHARE).clamp(LOOK.0, LOOK.1);
        if hit.is_some() {
            self.hit = hit;
        }
        hit.is_some()
    }

    /// Counts processes and memory if no group does.
    fn check_counted_limits(&self) -> Option<ReportedLimit> {
        if self.groups.holds_memory() && self.groups.holds_processes() {
            return None;
        }
        let (pids, usage) = tree::scan_descendants();
        // The sandbox's first process belongs to clawk.
        if !self.groups.holds_processes() && usage.threads > self.order.max_processes + 1 {
            return Some(ReportedLimit::Processes);
        }
        let over = !self.groups.holds_memory()
            && usage.pages > self.max_pages
            && tree::distinct_pages(&pids) > self.max_pages;
        over.then_some(ReportedLimit::Memory)
    }

    /// Sends the last report as soon as its content is known. After that, only the first process still has to end.
    pub(super) fn tell_early(&mut self) -> io::Result<()> {
        match self.end {
            Some(_) if !self.refused => self.tell_end(),
            Some(_) | None => Ok(()),
        }
    }

    /// Sends the last report when every process has ended.
    pub(super) fn tell_end(&mut self) -> io::Result<()> {
        if self.told {
            return Ok(());
        }
        while self.end.is_none() && self.read_remaining()? {}
        if self.refused {
            return Ok(());
        }
        if !self.started && self.hit.is_none() {
            return Err(io::Error::other(
                "the box's first process ended before the tool was started",
            ));
        }
        let (exit_code, signal, swept) = match self.end {
            Some(SupervisorReport::Ended {
                exit_code,
                signal,
                swept,
                ..
            }) => (exit_code, signal, swept),
            _ => (None, Some(libc::SIGKILL), 0),
        };
        let hit = self.hit.or_else(|| self.groups.limit_hit());
        self.told = true;
        send_report(
            self.socket,
            &SupervisorReport::Ended {
                exit_code,
                signal,
                hit,
                swept,
            },
        )
    }

    /// Reads the remaining reports, after all writers have ended.
    fn read_remaining(&mut self) -> io::Result<bool> {
        let mut fds = [PollFd::new(self.control, PollFlags::IN)];
        let ready = rustix::event::poll(&mut fds, Some(&Timespec::default()));
        let [fd] = fds;
        if ready.is_err() || !fd.revents().contains(PollFlags::IN) {
            return Ok(false);
        }
        self.read_init_reports()
    }
}
