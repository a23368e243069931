//! The agent in the virtual machine: its first process after the boot script has mounted the files. It is clawk again, as root of a
//! kernel that only the tool uses. Its serial port is the standard input, open for reading and writing.

use std::fs;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags};
use rustix::process::{Pid, Resource, Rlimit, WaitOptions, WaitStatus};

use super::wire::{self, Job, MachineToolExit, MachineToolUser};

type Port = Arc<Mutex<fs::File>>;

fn send_message(port: &Port, kind: u8, body: &[u8]) -> io::Result<()> {
    let mut port = port.lock().unwrap_or_else(PoisonError::into_inner);
    wire::send_frame(&mut *port, kind, body)
}

/// Runs the one job of this machine, and switches it off.
pub(super) fn run_machine() -> io::Result<()> {
    let mut from = fs::File::from(io::stdin().as_fd().try_clone_to_owned()?);
    let port: Port = Arc::new(Mutex::new(from.try_clone()?));
    send_message(&port, wire::HELLO, &[])?;
    if let Err(error) = run_job(&mut from, &port) {
        send_message(&port, wire::FAULT, error.to_string().as_bytes())?;
    }
    rustix::fs::sync();
    rustix::system::reboot(rustix::system::RebootCommand::PowerOff)?;
    Ok(())
}

fn run_job(from: &mut fs::File, port: &Port) -> io::Result<()> {
    let who: MachineToolUser = serde_json::from_slice(&expect_message(from, wire::WHO)?)?;
    let job: Job = serde_json::from_slice(&expect_message(from, wire::JOB)?)?;
    let group = MachineCgroup::create_group(job.memory_mb)?;
    apply_limits(&job)?;
    group.enter()?;
    let spawned = start_tool(&job, &who);
    group.leave()?;
    let mut tool = spawned?;
    group.limit_processes(job.max_processes)?;
    send_message(port, wire::STARTED, &[])?;
    let outputs = [
        forward_stream(tool.stdout.take(), wire::OUT, port),
        forward_stream(tool.stderr.take(), wire::ERR, port),
    ];
    let (mut from, input) = (from.try_clone()?, tool.stdin.take());
    std::thread::spawn(move || {
        let _ = feed_input(&mut from, input); // silent-ok: a program need not read its input
    });
    let main = i32::try_from(tool.id()).ok().and_then(Pid::from_raw);
    let status = reap_until(main)?;
    let swept = group.kill_remaining()?;
    for output in outputs {
        let _ = output.join(); // silent-ok: what it read is sent
    }
    rustix::fs::sync();
    let end = MachineToolExit {
        exit_code: status.exit_status(),
        signal: status.terminating_signal(),
        memory: group.has_event("memory.events", "oom_kill"),
        processes: group.has_event("pids.events", "max"),
        swept,
    };
    send_message(port, wire::END, &serde_json::to_vec(&end)?)
}

fn expect_message(from: &mut fs::File, wanted: u8) -> io::Result<Vec<u8>> {
    match wire::next(from, wire::MAX_JOB_BYTES)? {
        Some((kind, body)) if kind == wanted => Ok(body),
        Some(_) | None => Err(io::Error::other("the machine got no order")),
    }
}

fn apply_limits(job: &Job) -> io::Result<()> {
    for (resource, value) in [(Resource::Nofile, job.max_open_files), (Resource::Core, 0)] {
        rustix::process::setrlimit(
            resource,
            Rlimit {
                current: Some(value),
                maximum: Some(value),
            },
        )?;
    }
    rustix::thread::set_no_new_privs(true)?;
    Ok(())
}

#[expect(
    clippy::disallowed_methods,
    reason = "clawk-sandbox is the only process spawner"
)]
fn start_tool(job: &Job, who: &MachineToolUser) -> io::Result<std::process::Child> {
    let env = job
        .env
        .iter()
        .map(|(name, value)| (name.as_str(), value.as_str()));
    Command::new(&job.program)
        .args(&job.args)
        .env_clear()
        .envs(env)
        .current_dir(&job.workdir)
        .uid(who.uid)
        .gid(who.gid)
        .process_group(0)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| io::Error::new(error.kind(), format!("`{}`: {error}", job.program)))
}

/// Forwards a stream until its last writer has closed it.
fn forward_stream(stream: Option<impl Read + Send + 'static>, kind: u8, port: &Port) -> JoinHandle<()> {
    let port = Arc::clone(port);
    std::thread::spawn(move || {
        let Some(mut stream) = stream else { return };
        let mut buffer = vec![0; wire::CHUNK];
        while let Ok(read @ 1..) = stream.read(&mut buffer) {
            if send_message(&port, kind, buffer.get(..read).unwrap_or_default()).is_err() {
                return; // nobody listens any more: the machine is about to end
            }
        }
    })
}

fn feed_input(from: &mut fs::File, mut input: Option<impl Write>) -> io::Result<()> {
    while let Some((kind, body)) = wire::next(&mut *from, wire::MAX_JOB_BYTES)? {
        if kind != wire::INPUT {
            continue;
        }
        if body.is_empty() {
            input = None;
        } else if let Some(pipe) = &mut input
            && pipe.write_all(&body).is_err()
        {
            input = None; // it reads no more
        }
    }
    Ok(())
}

fn reap_until(main: Option<Pid>) -> io::Result<WaitStatus> {
    loop {
        match rustix::process::wait(WaitOptions::empty()) {
            Ok(Some((pid, status))) if Some(pid) == main => return Ok(status),
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// The control group of the tool, in a file system that is mounted nowhere.
struct MachineCgroup {
    root: PathBuf,
    tool: PathBuf,
    _mount: std::os::fd::OwnedFd,
}

impl MachineCgroup {
    fn create_group(memory_mb: u64) -> io::Result<Self> {
        let context = rustix::mount::fsopen("cgroup2", FsOpenFlags::FSOPEN_CLOEXEC)?;
        rustix::mount::fsconfig_create(context.as_fd())?;
        let mount = rustix::mount::fsmount(
            context.as_fd(),
            FsMountFlags::FSMOUNT_CLOEXEC,
            MountAttrFlags::empty(),
        )?;
        let root = PathBuf::from(format!("/proc/self/fd/{}", mount.as_raw_fd()));
        fs::write(root.join("cgroup.subtree_control"), "+memory +pids")?;
        let tool = root.join("tool");
        fs::create_dir(&tool)?;
        let bytes = (memory_mb << 20).to_string();
        fs::write(tool.join("memory.max"), &bytes)?;
        if fs::read_to_string(tool.join("memory.max"))?.trim() != bytes {
            return Err(io::Error::other(
                "the machine's kernel does not take the memory limit",
            ));
        }
        Ok(Self {
            root,
            tool,
            _mount: mount,
        })
    }

    fn enter(&self) -> io::Result<()> {
        fs::write(self.tool.join("cgroup.procs"), "0")
    }

    fn leave(&self) -> io::Result<()> {
        fs::write(self.root.join("cgroup.procs"), "0")
    }

    fn limit_processes(&self, most: u64) -> io::Result<()> {
        fs::write(self.tool.join("pids.max"), most.to_string())
    }

    /// Kills and reaps the remaining processes; returns how many there were.
    fn kill_remaining(&self) -> io::Result<u64> {
        fs::write(self.tool.join("cgroup.kill"), "1")?;
        let mut swept = 0;
        loop {
            match rustix::process::wait(WaitOptions::empty()) {
                Ok(Some(_)) => swept += 1,
                Ok(None) | Err(rustix::io::Errno::INTR) => {}
                Err(_) => return Ok(swept), // nobody is left
            }
        }
    }

    fn has_event(&self, file: &str, word: &str) -> bool {
        let text = fs::read_to_string(Path::new(&self.tool).join(file)).unwrap_or_default();
        let mut lines = text.lines().filter_map(|line| line.split_once(' '));
        lines.any(|(name, count)| name == word && count.trim() != "0")
    }
}
