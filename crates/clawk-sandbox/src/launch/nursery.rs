//! The launcher's client of the fork server. The first call starts the fork server. One launcher, its clones, all calls and all
//! waiting sandboxes share it. Forking is an order of magnitude cheaper than executing this program again for each sandbox, which
//! would load and link it and build its filters.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use rustix::process::{Pid, PidfdFlags, Signal};

use super::run::send_with;
use super::wire::{ForkRequest, SupervisorId};
use crate::child::nursery::WORD;

/// Connects to the fork server, and starts it again if it has ended.
pub(super) struct ForkServerClient {
    program: PathBuf,
    args: Vec<OsString>,
    now: Mutex<Option<Process>>,
    /// How long a prewarmed sandbox may wait, in milliseconds; 0: none is made.
    blank_idle_ms: AtomicU64,
}

impl std::fmt::Debug for ForkServerClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Nursery({})", self.program.display())
    }
}

struct Process {
    socket: OwnedFd,
    child: Child,
    /// What supervisors inherit from the fork server: its control groups and its start folder.
    groups: String,
    folder: Option<PathBuf>,
    /// Whether it got an order.
    used: bool,
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill(); // silent-ok: it has ended
        let _ = self.child.wait(); // silent-ok: as above
    }
}

/// clawk's own control groups.
pub(super) fn own_cgroups() -> String {
    std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default()
}

impl ForkServerClient {
    /// Creates the client; starts nothing yet.
    pub(super) fn new(program: PathBuf, args: Vec<OsString>) -> Self {
        Self {
            program,
            args,
            now: Mutex::default(),
            blank_idle_ms: AtomicU64::new(0),
        }
    }

    /// From the next order on, a prewarmed sandbox waits for the following order, for this many milliseconds.
    pub(super) fn keep_blank(&self, idle_ms: u64) {
        self.blank_idle_ms.store(idle_ms, Ordering::Relaxed);
    }

    /// Starts the fork server before it is needed.
    pub(super) fn start_process(&self) {
        let mut now = self.now.lock().unwrap_or_else(PoisonError::into_inner);
        if now.is_none() {
            let folder = std::env::current_dir().ok(); // silent-ok: a folder that is gone is none
            *now = self.spawn_process(own_cgroups(), folder).ok(); // silent-ok: whoever needs it tries again, and tells
        }
    }

    /// Ends the fork server if it has forked nothing yet.
    pub(super) fn end_unused(&self) {
        let mut now = self.now.lock().unwrap_or_else(PoisonError::into_inner);
        now.take_if(|one| !one.used);
    }

    /// Sends the supervisor's end of a socket. The fork server forks a supervisor for it.
    ///
    /// # Errors
    /// The fork server can't be started.
    pub(super) fn fork_supervisor(&self, theirs: &UnixStream) -> io::Result<()> {
        let mut now = self.now.lock().unwrap_or_else(PoisonError::into_inner);
        let birth = ForkRequest::with_idle_ms(self.blank_idle_ms.load(Ordering::Relaxed));
        let (groups, folder) = (own_cgroups(), std::env::current_dir().ok()); // silent-ok: a folder that is gone is none
        let same = |one: &&mut Process| one.groups == groups && one.folder == folder;
        if let Some(one) = now.as_mut().filter(|one| same(one))
            && send_with(one.socket.as_fd(), &birth.0, &[theirs.as_fd()]).is_ok()
        {
            one.used = true;
            return Ok(());
        }
        // There is none yet, it has another start folder, or it was killed, perhaps for memory.
        *now = None;
        let one = now.insert(self.spawn_process(groups, folder)?);
        one.used = true;
        send_with(one.socket.as_fd(), &birth.0, &[theirs.as_fd()])
    }

    #[expect(
        clippy::disallowed_methods,
        reason = "clawk-sandbox is the only process spawner"
    )]
    fn spawn_process(&self, groups: String, folder: Option<PathBuf>) -> io::Result<Process> {
        let (ours, theirs) = rustix::net::socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )?;
        let mut command = Command::new(&self.program);
        command.args(&self.args).arg(WORD).env_clear();
        command
            .stdin(Stdio::from(theirs))
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        Ok(Process {
            child: command.spawn()?,
            socket: ours,
            groups,
            folder,
            used: false,
        })
    }
}

/// A sandbox's supervisor. It is not a child of this process, so its process id may be reused after it has ended.
pub(super) struct SupervisorHandle {
    handle: OwnedFd,
    id: SupervisorId,
}

impl SupervisorHandle {
    pub(super) fn from_id(id: SupervisorId) -> io::Result<Self> {
        let pid = Pid::from_raw(id.pid).ok_or_else(|| io::Error::other("no process id"))?;
        let handle = rustix::process::pidfd_open(pid, PidfdFlags::empty())?;
        Ok(Self { handle, id })
    }

    pub(super) fn id(&self) -> &SupervisorId {
        &self.id
    }

    /// Ends the supervisor if it still runs. The sandbox ends with it, because its first process dies with it. Also removes control
    /// groups that the supervisor could not remove.
    pub(super) fn give_up(&self) {
        let _ = rustix::process::pidfd_send_signal(&self.handle, Signal::KILL); // silent-ok: it has ended
        let mut fds = [PollFd::new(&self.handle, PollFlags::IN)];
        let second = Timespec {
            tv_sec: 1,
            tv_nsec: 0,
        };
        let _ = rustix::event::poll(&mut fds, Some(&second)); // silent-ok: its groups are removed at the next start, then
        crate::child::cell::remove_left(&self.id.groups);
    }

    /// As [`Self::give_up`], directly after the supervisor was lost, for a run that may have no process namespace (level `none`).
    /// Also ends the rest of its session. Later, the process id may belong to another process.
    pub(super) fn give_up_now(&self) {
        self.give_up();
        crate::child::tree::kill_session(self.id.pid);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A process that leads a session, with another process in it.
    #[expect(
        clippy::disallowed_methods,
        reason = "the test needs a session that it may lose"
    )]
    fn session() -> (Child, Pid) {
        use std::io::BufRead as _;
        let mut leader = Command::new("setsid")
            .args(["sh", "-c", "sleep 60 & echo $!; exec sleep 60"])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let said = leader.stdout.take().unwrap();
        std::io::BufReader::new(said).read_line(&mut line).unwrap();
        (leader, Pid::from_raw(line.trim().parse().unwrap()).unwrap())
    }

    fn lives(pid: Pid) -> bool {
        let stat =
            std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).unwrap_or_default();
        stat.rsplit_once(')')
            .is_some_and(|(_, rest)| !rest.starts_with(" Z"))
    }

    #[test]
    fn a_number_that_may_be_anothers_by_now_ends_no_session() {
        let (mut leader, member) = session();
        let id = SupervisorId {
            pid: i32::try_from(leader.id()).unwrap(),
            ..SupervisorId::default()
        };
        let supervisor = SupervisorHandle::from_id(id).unwrap();
        supervisor.give_up();
        leader.wait().unwrap();
        // Killed processes need a moment to end.
        std::thread::sleep(std::time::Duration::from_millis(300));
        assert!(
            lives(member),
            "a box that waited had its own namespace: nothing outside is its"
        );
        supervisor.give_up_now();
        let until = std::time::Instant::now() + std::time::Duration::from_secs(10);
        while lives(member) {
            assert!(
                std::time::Instant::now() < until,
                "what is left of a lost run ends with it"
            );
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    }

    /// The fork server's process id.
    fn number(nursery: &ForkServerClient) -> Option<Pid> {
        let now = nursery.now.lock().unwrap();
        now.as_ref()
            .and_then(|one| Pid::from_raw(i32::try_from(one.child.id()).unwrap()))
    }

    #[test]
    fn what_was_started_ahead_is_used_and_ended_only_where_no_box_was_wanted() {
        let words = ["-c", "exec sleep 60"].map(OsString::from).to_vec();
        let nursery = ForkServerClient::new(PathBuf::from("/bin/sh"), words);
        nursery.start_process();
        let first = number(&nursery).unwrap();
        nursery.start_process();
        assert_eq!(number(&nursery), Some(first), "one is enough");
        nursery.end_unused();
        assert_eq!(number(&nursery), None);
        assert!(!lives(first));
        nursery.start_process();
        let second = number(&nursery);
        let (_ours, theirs) = UnixStream::pair().unwrap();
        nursery.fork_supervisor(&theirs).unwrap();
        assert_eq!(number(&nursery), second, "the order goes to it");
        nursery.end_unused();
        assert_eq!(number(&nursery), second, "boxes are forked from it");
    }
}
