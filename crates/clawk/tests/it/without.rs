//! Each mechanism of the sandbox taken away in turn (R32): refused with the mechanism, what is missing and the cure, or held by
//! an equal that the trace names; never weaker in silence. `without.py` takes them away.

mod proxy;

use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;

const NOBODY: u32 = 65534;

/// Twice the memory that the limit allows, then a word that nobody may see.
/// It holds what it took for a moment: without control groups, that is looked at from time to time.
const HUNGRY: &str = "python3 -c 'import time; a=bytearray(300<<20); time.sleep(1); print(\"ate it\")'";

/// A folder that a user owns, and the program where that user may run it.
pub(crate) struct Host {
    folder: TempDir,
    pub(crate) user: u32,
    program: PathBuf,
}

/// clawk on a host without something, spoken to over its standard streams.
pub(crate) struct Served {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
    next: u64,
}

pub(crate) fn own() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// Those that a test can be: the one who runs it, and for root an ordinary one, too.
pub(crate) fn users() -> Vec<u32> {
    if own() == 0 { vec![0, NOBODY] } else { vec![own()] }
}

impl Host {
    pub(crate) fn new(user: u32) -> Self {
        let folder = tempfile::Builder::new()
            .prefix("without")
            .tempdir_in("/tmp")
            .unwrap();
        let program = folder.path().join("clawk");
        if std::fs::hard_link(super::agent::program(), &program).is_err() {
            std::fs::copy(super::agent::program(), &program).unwrap();
        }
        std::fs::create_dir(folder.path().join("work")).unwrap();
        std::fs::write(folder.path().join("without.py"), include_str!("without.py")).unwrap();
        std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        let host = Self {
            folder,
            user,
            program,
        };
        host.write("script.yaml", "scenes:\n  - steps:\n      - say: hello\n");
        std::os::unix::fs::chown(host.work(""), Some(user), Some(user)).unwrap();
        host
    }

    pub(crate) fn work(&self, name: &str) -> PathBuf {
        self.folder.path().join("work").join(name)
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.work(name), text).unwrap();
    }

    /// A path that is not the agent's.
    pub(crate) fn beside(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The command line: as its user, without `what`.
    pub(crate) fn command(&self, what: &str, args: &[&str]) -> Command {
        let user = self.user.to_string();
        let mut words: Vec<&str> = Vec::new();
        // The one who takes user namespaces away must be root in one of its own first.
        if self.user != own() && !what.starts_with("userns") {
            words.extend(["setpriv", "--reuid", &user, "--regid", &user, "--clear-groups"]);
        }
        let script = self.folder.path().join("without.py");
        if !what.is_empty() {
            words.extend(["/usr/bin/python3", script.to_str().unwrap()]);
            words.extend(what.split(' '));
        }
        words.push(self.program.to_str().unwrap());
        words.extend(args);
        let mut command = Command::new(words[0]);
        command.args(&words[1..]).current_dir(self.work("")).env_clear();
        command
            .env("PATH", "/usr/bin:/bin:/usr/sbin")
            .env("HOME", self.work(""));
        command.env("XDG_STATE_HOME", self.work("state"));
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    pub(crate) fn serve(&self, what: &str) -> Served {
        self.serve_with(what, &[], &[])
    }

    /// With further flags and variables.
    pub(crate) fn serve_with(&self, what: &str, flags: &[&str], env: &[(&str, &str)]) -> Served {
        let args = [&["serve", "--stdio"][..], flags].concat();
        let mut child = self
            .command(what, &args)
            .envs(env.iter().copied())
            .stderr(Stdio::inherit())
            .spawn()
            .unwrap();
        let (input, output) = (child.stdin.take(), BufReader::new(child.stdout.take().unwrap()));
        Served {
            child,
            input,
            output,
            next: 0,
        }
    }

    /// The trace's record of how calls were enclosed.
    pub(crate) fn trace(&self) -> String {
        let state = self.work("state/clawk/tested");
        let shown = self
            .command(
                "",
                &[
                    "trace",
                    "show",
                    "--format",
                    "json",
                    "--state",
                    state.to_str().unwrap(),
                ],
            )
            .output()
            .unwrap();
        String::from_utf8_lossy(&shown.stdout).into_owned() + &String::from_utf8_lossy(&shown.stderr)
    }
}

/// An agent whose shell may do what `sandbox` says.
pub(crate) fn manifest(sandbox: &Value) -> Value {
    json!({"claw": "0.3.0", "kind": "Claw", "metadata": {"name": "tested", "version": "1.0.0"}, "spec": {
        "identity": {"inline": {"name": "tested", "personality": "You are tested.", "autonomy": "autonomous"}},
        "providers": [{"inline": {"name": "main", "protocol": "openai-compatible", "endpoint": "http://127.0.0.1:9/v1",
            "model": "none", "auth": {"type": "none"}}}],
        "channels": [{"inline": {"name": "here", "type": "cli", "transport": "stdio", "auth": {"secret_ref": "NONE"}}}],
        "tools": [{"inline": {"name": "shell", "description": "Runs a command", "input_schema": {"type": "object"}}}],
        "sandbox": {"inline": sandbox},
        "policies": [{"inline": {"name": "tested", "rules": [
            {"id": "all", "action": "allow", "scope": "all"}]}}],
    }})
}

pub(crate) fn sandbox(level: &str) -> Value {
    json!({"level": level, "capabilities": {"shell": {"mode": "full"},
        "filesystem": {"mode": "scoped", "mount_paths": [{"path": ".", "permissions": "rw"}]}},
        "resource_limits": {"memory_mb": 150, "max_processes": 40, "timeout_ms": 20_000}})
}

impl Served {
    fn tell(&mut self, method: &str, params: &Value) {
        self.next += 1;
        let line = json!({"jsonrpc": "2.0", "id": self.next, "method": method, "params": params});
        writeln!(self.input.as_mut().unwrap(), "{line}").unwrap();
    }

    fn ask(&mut self, method: &str, params: &Value) -> Value {
        self.tell(method, params);
        loop {
            let mut answer = String::new();
            assert!(
                self.output.read_line(&mut answer).unwrap() > 0,
                "the agent has gone"
            );
            let answer: Value = serde_json::from_str(&answer).unwrap();
            if answer["id"] == self.next {
                return answer;
            }
        }
    }

    pub(crate) fn initialize(&mut self, sandbox: &Value) -> Value {
        let params = json!({"protocolVersion": "0.3.0", "clientInfo": {"name": "test", "version": "1"},
            "manifest": manifest(sandbox), "capabilities": {}});
        self.ask("claw.initialize", &params)
    }

    fn call(&self, command: &str) -> Value {
        let id = format!("0197e0f3-0000-7000-8000-{:012}", self.next);
        let context = json!({"request_id": id, "session_id": "0197e0f3-0000-7000-8000-999999999999",
            "identity": "tested"});
        json!({"name": "shell", "arguments": {"command": command}, "context": context})
    }

    pub(crate) fn shell(&mut self, command: &str) -> Value {
        let params = self.call(command);
        self.ask("claw.tool.call", &params)
    }

    /// Without waiting for the answer.
    pub(crate) fn tell_shell(&mut self, command: &str) {
        let params = self.call(command);
        self.tell("claw.tool.call", &params);
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        drop(self.input.take());
        let until = Instant::now() + Duration::from_secs(10);
        while Instant::now() < until && matches!(self.child.try_wait(), Ok(None)) {
            std::thread::sleep(Duration::from_millis(10));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A refusal with everything that it must say; the mechanism.
fn refused(answer: &Value, level: &str, without: &str) -> String {
    let error = &answer["error"];
    assert_eq!(error["code"], -32010, "without {without}: {answer}");
    assert_eq!(error["data"]["level"], level, "{answer}");
    for member in ["mechanism", "missing", "hint"] {
        let text = error["data"][member].as_str().unwrap_or_default();
        assert!(text.len() > 3 && !text.contains("/tmp"), "{member} of {answer}");
    }
    error["data"]["mechanism"].as_str().unwrap().to_owned()
}

pub(crate) fn said(answer: &Value) -> String {
    answer["result"]["content"].to_string()
}

#[test]
fn without_a_wall_of_level_process_no_agent_starts() {
    let cases = [
        ("landlock_create_ruleset", "landlock"),
        ("landlock_create_ruleset!", "landlock"),
        ("seccomp", "seccomp"),
        ("seccomp!", "seccomp"),
        ("filters", "seccomp"),
        ("newns,clone3", "namespaces"),
        ("unshare!", "namespaces"),
        ("fsopen", "tmpfs"),
        ("open_tree!", "mounts"),
        ("move_mount", "the root"),
        ("mount_setattr", "mounts"),
        ("pivot_root!", "pivot_root"),
        ("umount2!", "pivot_root"),
        ("openat2", "mounts"),
        ("capset!", "privileges"),
        ("pidfd_open", "pidfd"),
    ];
    for user in users() {
        let host = Host::new(user);
        for (what, mechanism) in cases {
            let mut served = host.serve(what);
            let answer = served.initialize(&sandbox("process"));
            assert_eq!(
                refused(&answer, "process", what),
                mechanism,
                "without {what}, as {user}"
            );
            // Nor does another door stand open.
            let answer = served.shell("touch ran");
            assert_eq!(answer["error"]["code"], -32600, "{answer}");
        }
        assert!(!host.work("ran").exists());
    }
}

#[test]
fn an_ordinary_user_without_user_namespaces_is_told() {
    let host = Host::new(users().pop().unwrap());
    let answer = host.serve("userns").initialize(&sandbox("process"));
    assert_eq!(refused(&answer, "process", "userns"), "namespaces");
    assert!(
        answer["error"]["data"]["hint"]
            .as_str()
            .unwrap()
            .contains("max_user_namespaces")
    );
}

#[test]
fn root_without_roots_capabilities_is_told() {
    if own() != 0 {
        return; // Nobody else can have lost them.
    }
    let host = Host::new(0);
    assert_eq!(
        refused(
            &host.serve("caps").initialize(&sandbox("process")),
            "process",
            "caps"
        ),
        "root"
    );
}

#[test]
fn namespaces_that_vanish_while_an_agent_runs_end_its_calls() {
    let host = Host::new(users().pop().unwrap());
    let flag = host.work("take");
    let mut served = host.serve(&format!("userns --later {}", flag.display()));
    let answer = served.initialize(&sandbox("process"));
    assert!(answer["result"].is_object(), "{answer}");
    let answer = served.shell("echo first | tee one");
    assert!(said(&answer).contains("first"), "{answer}");
    taken(&flag);
    // A box that was made before, or begun, may still be used up, now or in a moment: it is as strong as it was.
    let mut refusals = 0;
    for _ in 0..32 {
        let answer = served.shell("echo second");
        match answer["error"].is_object() {
            true => {
                assert_eq!(refused(&answer, "process", "userns"), "namespaces");
                refusals += 1;
            }
            false => refusals = 0,
        }
        if refusals == 5 {
            break;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    let answer = served.shell("echo third | tee two");
    assert_eq!(refused(&answer, "process", "userns"), "namespaces");
    assert!(host.work("one").exists() && !host.work("two").exists());
}

/// Takes it away.
fn taken(flag: &Path) {
    std::fs::write(flag, "").unwrap();
    let until = Instant::now() + Duration::from_secs(10);
    let done = PathBuf::from(format!("{}.done", flag.display()));
    while !done.exists() {
        assert!(Instant::now() < until, "it was not taken away");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn without_control_groups_a_watcher_holds_the_limits_and_the_trace_says_so() {
    for user in users() {
        for later in [false, true] {
            let host = Host::new(user);
            let flag = host.work("take");
            let what = if later {
                format!("cgroups --later {}", flag.display())
            } else {
                "cgroups".to_owned()
            };
            let mut served = host.serve(&what);
            let answer = served.initialize(&sandbox("process"));
            assert!(answer["result"].is_object(), "{answer}");
            if later {
                taken(&flag);
            }
            let answer = served.shell(HUNGRY);
            assert_eq!(answer["result"]["isError"], true, "{answer}");
            assert!(
                said(&answer).contains("memory_mb") && !said(&answer).contains("ate it"),
                "{answer}"
            );
            let answer = served.shell("for i in $(seq 100); do sleep 5 & done; wait");
            assert_eq!(answer["result"]["isError"], true, "{answer}");
            assert!(said(&answer).contains("max_processes"), "{answer}");
            drop(served);
            let trace = host.trace();
            assert!(
                trace.contains("watcher:memory") && trace.contains("watcher:processes"),
                "{trace}"
            );
            assert!(
                later || !trace.contains("cgroup1:") && !trace.contains("cgroup2:"),
                "{trace}"
            );
        }
    }
}

#[test]
fn level_container_without_a_runtime_or_without_its_walls_is_refused() {
    for user in users() {
        let host = Host::new(user);
        for what in ["runtimes", "newns,unshare!,clone3", "filters"] {
            let mut served = host.serve(what);
            let answer = served.initialize(&sandbox("container"));
            assert_eq!(
                refused(&answer, "container", what),
                "oci-runtime",
                "without {what}, as {user}"
            );
            assert_eq!(served.shell("touch ran")["error"]["code"], -32600);
        }
        assert!(!host.work("ran").exists());
    }
}

#[test]
fn a_runtime_that_vanishes_while_an_agent_runs_ends_its_calls() {
    for user in users() {
        let host = Host::new(user);
        let flag = host.work("take");
        let mut served = host.serve(&format!("runtimes --later {}", flag.display()));
        let answer = served.initialize(&sandbox("container"));
        assert!(answer["result"].is_object(), "as {user}: {answer}");
        let answer = served.shell("echo first | tee one");
        assert!(said(&answer).contains("first"), "{answer}");
        taken(&flag);
        let answer = served.shell("echo second | tee two");
        assert_eq!(refused(&answer, "container", "runtimes"), "oci-runtime");
        assert!(!host.work("two").exists());
    }
}

#[test]
fn what_can_not_be_enclosed_is_not_started_from_the_command_line() {
    let host = Host::new(own());
    let text = serde_json::to_string(&manifest(&sandbox("process"))).unwrap();
    host.write("claw.yaml", &text);
    for args in [
        &["run", "claw.yaml", "-m", "go"][..],
        &["serve", "claw.yaml", "--stdio"],
    ] {
        let output = host.command("landlock_create_ruleset", args).output().unwrap();
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{told}");
        assert!(told.contains("landlock") && told.contains("lsm="), "{told}");
        assert!(output.stdout.is_empty());
    }
    // Asked for by name, level `none` runs there, and the trace says that it does.
    let mut served = host.serve("landlock_create_ruleset");
    let answer = served.initialize(&sandbox("none"));
    assert!(answer["result"].is_object(), "{answer}");
    let answer = served.shell("echo done");
    assert!(said(&answer).contains("done"), "{answer}");
    assert_eq!(answer["result"]["structuredContent"]["level"], "none");
}
