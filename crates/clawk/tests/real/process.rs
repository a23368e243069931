//! Processes with a deadline: each in a group of its own, which is killed when the test lets go of it.

use std::io::Read;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process, kill_process_group};

/// How often something awaited is looked at.
const GLANCE: Duration = Duration::from_millis(10);

/// A child in a process group of its own.
pub(crate) struct Group(pub(crate) Child);

impl Group {
    /// Starts it.
    pub(crate) fn spawn(command: &mut Command) -> Self {
        use std::os::unix::process::CommandExt;
        let child = command.process_group(0).spawn();
        Self(child.unwrap_or_else(|error| panic!("{command:?}: {error}")))
    }

    /// Sends a signal to the process alone.
    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).expect("the process is there");
    }

    /// Waits for its end.
    pub(crate) fn wait(&mut self, within: Duration) -> ExitStatus {
        until(within, "the process does not end", || {
            self.0.try_wait().expect("a child of ours")
        })
    }

    fn pid(&self) -> Pid {
        Pid::from_child(&self.0)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // Gone already, as a rule.
        let _ = kill_process_group(self.pid(), Signal::KILL);
        let _ = self.0.wait();
    }
}

/// How a program ended and what it said.
#[derive(Debug)]
pub(crate) struct Done {
    pub(crate) status: ExitStatus,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Done {
    /// It must have succeeded.
    pub(crate) fn ok(self) -> Self {
        assert!(self.status.success(), "{self:#?}");
        self
    }
}

/// Runs a program to its end, nothing on standard input.
pub(crate) fn finish(command: &mut Command, within: Duration) -> Done {
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut group = Group::spawn(command);
    let stdout = gather(group.0.stdout.take().expect("piped"));
    let stderr = gather(group.0.stderr.take().expect("piped"));
    let deadline = Instant::now() + within;
    let status = loop {
        match group.0.try_wait().expect("a child of ours") {
            Some(status) => break Some(status),
            None if Instant::now() > deadline => break None,
            None => std::thread::sleep(GLANCE),
        }
    };
    drop(group);
    let (stdout, stderr) = (stdout.join().expect("reads"), stderr.join().expect("reads"));
    let Some(status) = status else {
        panic!("{command:?} does not end within {within:?}; it said:\n{stdout}\n{stderr}");
    };
    Done {
        status,
        stdout,
        stderr,
    }
}

fn gather(mut stream: impl Read + Send + 'static) -> JoinHandle<String> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        let _ = stream.read_to_end(&mut bytes);
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

/// Looks until there is something.
pub(crate) fn until<T>(within: Duration, otherwise: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + within;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < deadline, "{otherwise}, after {within:?}");
        std::thread::sleep(GLANCE);
    }
}

/// The live processes whose command line holds `words`.
pub(crate) fn running(words: &str) -> Vec<Pid> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").expect("Linux").flatten() {
        let Ok(pid) = entry.file_name().to_string_lossy().parse::<i32>() else {
            continue;
        };
        // A process that has just ended has nothing to read.
        let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line).replace('\0', " ");
        if line.contains(words) {
            found.extend(Pid::from_raw(pid));
        }
    }
    found
}

/// A value of `/proc/PID/status`, kB.
pub(crate) fn memory_kb(pid: u32, name: &str) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("the process lives");
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    let number = line.and_then(|rest| rest.trim_start_matches(':').split_whitespace().next());
    number
        .and_then(|number| number.parse().ok())
        .expect("a number of kB")
}
