//! The walls of a box, judged by effects: what a program in it reads, makes, reaches, and what lives on.

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use clawk_plan::{Plan, PlanDefaults};
use clawk_sandbox::{EgressGate, InMemoryFile, LaunchOutcome, LimitHit, Spec};
use serde_json::{Value, json};

use super::{launcher, lives, run, seconds, text};

#[expect(
    clippy::disallowed_methods,
    reason = "a look at the machine from outside of the sandbox"
)]
pub(super) fn outside(program: &str, args: &[&str]) -> String {
    let done = std::process::Command::new(program).args(args).output();
    text(&done.expect("it runs").stdout)
}

/// A plan at level `process` with these capabilities.
fn plan(capabilities: Value) -> Arc<Plan> {
    let sandbox = json!({"name": "s", "level": "process", "capabilities": capabilities});
    Arc::new(Plan::compile(
        Some(&serde_json::from_value(sandbox).expect("a sandbox")),
        &PlanDefaults::default(),
    ))
}

fn files(mode: &str, folder: &Path, permissions: &str, denied: Value) -> Value {
    json!({"filesystem": {"mode": mode, "mount_paths": [{"path": folder, "permissions": permissions}], "denied_paths": denied}})
}

async fn sh(capabilities: Value, folder: &Path, command: &str) -> LaunchOutcome {
    let mut spec = Spec::new("/bin/sh", plan(capabilities));
    spec.args = vec!["-c".to_owned(), command.to_owned()];
    spec.workdir = Some(folder.to_path_buf());
    run(&spec).await
}

async fn says(capabilities: Value, folder: &Path, command: &str) -> String {
    let outcome = sh(capabilities, folder, command).await;
    text(&outcome.stdout)
}

fn canary(folder: &Path, name: &str) -> String {
    let path = folder.join(name);
    std::fs::create_dir_all(path.parent().expect("a parent")).expect("a folder");
    std::fs::write(&path, "CANARY").expect("written");
    path.display().to_string()
}

/// Python in the box, for system calls that no shell has.
async fn python(capabilities: Value, folder: &Path, program: &str) -> String {
    let mut spec = Spec::new("/usr/bin/python3", plan(capabilities));
    spec.args = vec!["-c".to_owned(), program.to_owned()];
    spec.workdir = Some(folder.to_path_buf());
    let outcome = run(&spec).await;
    format!("{}{}", text(&outcome.stdout), text(&outcome.stderr))
}

#[tokio::test]
async fn nothing_of_the_agent_or_the_user_is_seen_in_mode_deny() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = canary(folder.path(), "secret.txt");
    let said = says(
        json!({}),
        folder.path(),
        &format!(
            "cat {file}; ls -a / /root /home /var /sys /run {}; cat /etc/shadow",
            folder.path().display()
        ),
    )
    .await;
    assert!(!said.contains("CANARY") && !said.contains("secret.txt"), "{said}");
    assert!(!said.contains("kernel") && !said.contains("authorized"), "{said}");
    let said = says(
        json!({}),
        folder.path(),
        "touch /usr/x /etc/x /x ./x 2>/dev/null; echo ok > /tmp/y && cat /tmp/y",
    )
    .await;
    assert_eq!(said, "ok\n");
    assert!(!Path::new("/tmp/y").exists() && !folder.path().join("x").exists());
}

#[tokio::test]
async fn mounts_have_their_permissions_and_files_their_owner() {
    let folder = tempfile::tempdir().expect("a folder");
    canary(folder.path(), "in.txt");
    let scoped = |permissions| files("scoped", folder.path(), permissions, json!([]));
    assert_eq!(
        says(scoped("ro"), folder.path(), "cat in.txt; echo x > out.txt").await,
        "CANARY"
    );
    assert!(!folder.path().join("out.txt").exists());
    assert_eq!(
        says(
            scoped("rw"),
            folder.path(),
            "echo x > out.txt; mkdir d; cat out.txt; stat -c %U ."
        )
        .await,
        "x\nclawk\n"
    );
    let made = std::fs::metadata(folder.path().join("out.txt")).expect("made");
    let owner = std::fs::metadata(folder.path()).expect("there");
    assert_eq!((made.uid(), made.gid()), (owner.uid(), owner.gid()));
    assert_eq!(
        says(
            files("read-only", folder.path(), "rw", json!([])),
            folder.path(),
            "cat in.txt; echo x > no.txt"
        )
        .await,
        "CANARY"
    );
    assert!(!folder.path().join("no.txt").exists());
}

#[tokio::test]
async fn the_tool_is_nobody_with_no_power() {
    let folder = tempfile::tempdir().expect("a folder");
    let said = says(
        json!({}),
        folder.path(),
        "id -u; grep -E '^(Cap|NoNewPrivs|Seccomp:)' /proc/self/status; echo $$; ls /proc | grep -c '^[0-9]'",
    )
    .await;
    let mut lines = said.lines();
    assert_ne!(lines.next(), Some("0"));
    for line in lines.by_ref().take(7) {
        let (name, value) = line.split_once(':').expect("a field");
        let wanted = match name {
            "NoNewPrivs" => "1",
            "Seccomp" => "2",
            _ => "0000000000000000",
        };
        assert_eq!(value.trim(), wanted, "{line}");
    }
    // Itself, and what it started: no other process of the machine.
    assert!(
        said.lines()
            .last()
            .expect("a number")
            .parse::<u32>()
            .expect("a number")
            <= 4,
        "{said}"
    );
}

const CALLS: &str = r#"
import ctypes, os, socket, stat
libc = ctypes.CDLL(None, use_errno=True)
def call(name, *args):
    ctypes.set_errno(0)
    r = libc.syscall(*[ctypes.c_long(a) if isinstance(a, int) else a for a in args])
    print(name, 'OPEN' if r >= 0 else 'refused')
call('ptrace', 101, 0, 0, 0, 0)
call('mount', 165, b'none', b'/tmp', b'tmpfs', 0, None)
call('unshare-user', 272, 0x10000000)
call('setns', 308, 0, 0)
call('clone-user', 56, 0x10000000 | 17, 0, 0, 0, 0)
call('clone3', 435, 0, 0)
call('io_uring', 425, 8, ctypes.create_string_buffer(256))
call('bpf', 321, 0, 0, 0)
call('keyctl', 250, 0, -3, 1)
call('add_key', 248, b'user', b'a', b'b', 1, -3)
call('perf', 298, 0, 0, -1, -1, 0)
call('userfaultfd', 323, 0)
call('open_by_handle_at', 304, -100, 0, 0)
call('x32-getpid', 0x40000000 + 39)
call('chroot', 161, b'/tmp')
call('process_vm_readv', 310, os.getpid(), 0, 0, 0, 0, 0)
for name, family, kind in [('unix', socket.AF_UNIX, socket.SOCK_STREAM), ('unix-dgram', socket.AF_UNIX, socket.SOCK_DGRAM),
        ('netlink', socket.AF_NETLINK, socket.SOCK_RAW), ('packet', socket.AF_PACKET, socket.SOCK_RAW), ('vsock', 40, socket.SOCK_STREAM),
        ('raw', socket.AF_INET, socket.SOCK_RAW), ('alg', 38, socket.SOCK_SEQPACKET)]:
    try:
        socket.socket(family, kind); print(name, 'OPEN')
    except OSError: print(name, 'refused')
try:
    socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM); print('dgram-pair OPEN')
except OSError: print('dgram-pair refused')
def t(name, f):
    try: f(); print(name, 'OPEN')
    except OSError: print(name, 'refused')
open('f', 'w').close()
t('chmod', lambda: os.chmod('f', 0o4755))
t('chmod-gid', lambda: os.chmod('f', 0o2755))
t('fchmod', lambda: os.fchmod(os.open('f', os.O_RDWR), 0o6755))
t('fchmodat', lambda: os.chmod('f', 0o4755, dir_fd=os.open('.', os.O_RDONLY)))
call('fchmodat2', 452, -100, b'f', 0o4755, 0)
t('open-mode', lambda: os.open('g', os.O_CREAT | os.O_WRONLY, 0o4755))
t('mknod-mode', lambda: os.mknod('h', 0o4755 | stat.S_IFREG))
t('mknod-dev', lambda: os.mknod('i', 0o644 | stat.S_IFBLK, os.makedev(254, 0)))
import fcntl, termios
t('tiocsti', lambda: fcntl.ioctl(0, termios.TIOCSTI, b'x'))
a, b = socket.socketpair(); a.send(b'x'); print('pair', 'fine' if b.recv(1) == b'x' else 'broken')
s = socket.socket(); s.bind(('127.0.0.1', 0)); s.listen(); c = socket.create_connection(s.getsockname()); print('loopback fine')
import subprocess, threading
th = threading.Thread(target=lambda: print('thread fine')); th.start(); th.join()
print('child', subprocess.run(['echo', 'fine'], capture_output=True, text=True).stdout.strip())
"#;

#[tokio::test]
async fn forbidden_calls_are_refused_and_ordinary_ones_work_in_both_lists() {
    for shell in ["restricted", "full"] {
        let folder = tempfile::tempdir().expect("a folder");
        let mut capabilities = files("scoped", folder.path(), "rw", json!([]));
        capabilities["shell"] = json!({"mode": shell});
        let said = python(capabilities, folder.path(), CALLS).await;
        assert!(!said.contains("OPEN"), "{shell}: {said}");
        assert!(said.matches("refused").count() >= 33, "{shell}: {said}");
        assert_eq!(said.matches("fine").count(), 4, "{shell}: {said}");
        for name in ["f", "g", "h"] {
            if let Ok(made) = std::fs::metadata(folder.path().join(name)) {
                assert_eq!(made.permissions().mode() & 0o6000, 0, "{shell}: {name}");
            }
        }
    }
}

#[tokio::test]
async fn the_network_is_empty_and_only_a_gate_opens_it() {
    let host = std::net::TcpListener::bind("127.0.0.1:0").expect("bound");
    host.set_nonblocking(true).expect("set");
    let port = host.local_addr().expect("an address").port();
    let folder = tempfile::tempdir().expect("a folder");
    let program = format!(
        "import socket\ntry: socket.create_connection(('127.0.0.1', {port}), 2); print('REACHED')\nexcept OSError as e: print('no')"
    );
    assert!(
        !python(json!({"network": {"mode": "allow-all"}}), folder.path(), &program)
            .await
            .contains("REACHED")
    );
    assert!(host.accept().is_err(), "nobody came");
    // With a gate: the box's own socket arrives here, and is served from here.
    let mut spec = Spec::new(
        "/usr/bin/python3",
        plan(json!({"network": {"mode": "allowlist", "allowed_hosts": ["a.example"]}})),
    );
    let client = "import os, socket\nh, p = os.environ['HTTPS_PROXY'][7:].split(':')\ns = socket.create_connection((h, int(p)), 5)\ns.send(b'hello')\nprint(s.recv(9).decode())";
    spec.args = vec!["-c".to_owned(), client.to_owned()];
    spec.gate = Some(EgressGate::new(|door| {
        assert_eq!(door.plan.network().allowed_hosts, ["a.example"]);
        let serving = std::thread::spawn(move || {
            use std::io::{Read, Write};
            door.listener.set_nonblocking(false).expect("set");
            let (mut stream, _) = door.listener.accept().expect("somebody came");
            let mut got = [0; 5];
            stream.read_exact(&mut got).expect("read");
            stream.write_all(b"from host").expect("written");
        });
        Ok(Box::new(serving))
    }));
    let outcome = run(&spec).await;
    assert_eq!(text(&outcome.stdout), "from host\n", "{}", text(&outcome.stderr));
    assert!(
        outcome
            .obtained
            .mechanisms
            .iter()
            .any(|held| held == "network:proxy-only")
    );
}

#[tokio::test]
async fn files_in_memory_are_the_tools_alone() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut spec = Spec::new("/bin/sh", plan(json!({})));
    spec.files = vec![InMemoryFile {
        name: "token".to_owned(),
        bytes: b"s3cret".to_vec(),
    }];
    spec.args = vec![
        "-c".to_owned(),
        "cat /run/clawk/token; stat -c ' %a %U' /run/clawk/token; echo x > /run/clawk/token".to_owned(),
    ];
    spec.workdir = Some(folder.path().to_path_buf());
    assert_eq!(text(&run(&spec).await.stdout), "s3cret 400 clawk\n");
    assert!(!Path::new("/run/clawk/token").exists());
}

#[tokio::test]
async fn denied_paths_win_at_any_depth() {
    let folder = tempfile::tempdir().expect("a folder");
    let root = folder.path();
    for name in ["a/b/secret.txt", "keys/k1", "deep/x/y/.env", "plain.txt"] {
        canary(root, name);
    }
    std::os::unix::fs::symlink("a/b/secret.txt", root.join("link")).expect("a link");
    let denied = json!([format!("{}/a/b/secret.txt", root.display()), "keys", "**/.env"]);
    for mode in ["ro", "rw"] {
        let command = "cat a/b/secret.txt keys/k1 deep/x/y/.env link 2>/dev/null; mv a c; mv deep deeper; cat c/b/secret.txt deeper/x/y/.env 2>/dev/null; mv a/b a/z; cat a/z/secret.txt; ln a/b/secret.txt l2; cat l2; ls keys; true";
        let outcome = sh(files("scoped", root, mode, denied.clone()), root, command).await;
        let said = format!("{}{}", text(&outcome.stdout), text(&outcome.stderr));
        assert!(
            !said.contains("CANARY") && !said.contains("k1\n"),
            "{mode}: {said}"
        );
        // Moved away by one call, read by the next.
        let again = says(
            files("scoped", root, mode, denied.clone()),
            root,
            "cat c/b/secret.txt a/z/secret.txt deeper/x/y/.env; cat plain.txt",
        )
        .await;
        assert_eq!(again, "CANARY", "{mode}: the plain one alone");
    }
}

#[tokio::test]
async fn denied_paths_hold_for_what_comes_later_and_by_other_names() {
    let folder = tempfile::tempdir().expect("a folder");
    let root = folder.path().to_path_buf();
    canary(&root, "real/old.txt");
    canary(&root, "plain.txt");
    std::fs::hard_link(root.join("real/old.txt"), root.join("other-name")).expect("linked");
    std::os::unix::fs::symlink("real", root.join("way")).expect("a link");
    // Denied by a way that a link leads; one that is not there yet; a pattern.
    let denied = json!(["way/old.txt", "way/later.txt", "**/*.key"]);
    let mut spec = Spec::new("/bin/sh", plan(files("scoped", &root, "rw", denied)));
    spec.workdir = Some(root.clone());
    let script = "cat other-name real/old.txt way/old.txt; touch ready; while [ ! -e go ]; do sleep 0.01; done; \
        cat real/old.txt way/old.txt real/later.txt way/later.txt x.key ./way/../x.key; cp x.key y; cat y; ln x.key z; cat z; mv x.key w; cat w; \
        mv real/later.txt v; cat v; ln -s real/later.txt u; cat u; (exec 3<real/later.txt; cat <&3); \
        cat plain.txt; echo fine > mine.txt && cat mine.txt; mv mine.txt mine2.txt && cat mine2.txt; \
        mkfifo p && (echo pipe > p & cat p); cat /proc/self/comm /dev/fd/0; true";
    spec.args = vec!["-c".to_owned(), script.to_owned()];
    let host = root.clone();
    let changing = std::thread::spawn(move || {
        while !host.join("ready").exists() {
            std::thread::sleep(Duration::from_millis(2));
        }
        for name in ["new", "real/later.txt", "x.key"] {
            std::fs::write(host.join(name), "LEAKED").expect("written");
        }
        // The cover over the old file falls off when the host puts another in its place.
        std::fs::rename(host.join("new"), host.join("real/old.txt")).expect("renamed");
        std::fs::write(host.join("go"), "").expect("written");
    });
    let outcome = run(&spec).await;
    changing.join().expect("changed");
    let said = text(&outcome.stdout);
    assert!(!said.contains("LEAKED"), "{said}");
    assert_eq!(said, "CANARYfine\nfine\npipe\ncat\n", "{}", text(&outcome.stderr));
}

/// A tool may set the limits of its box's first process, which has its user: what that one can't do any more is refused, or ends the box.
#[tokio::test]
async fn a_tool_that_takes_the_means_of_its_boxs_first_process_wins_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    canary(folder.path(), "secret");
    for limit in [
        "nofile",
        "cpu",
        "stack",
        "as",
        "data",
        "fsize",
        "nproc",
        "memlock",
        "sigpending",
    ] {
        let alone = seconds();
        let command = format!(
            "(setsid sleep {alone} &); prlimit --pid 1 --{limit}=0:0 && echo taken; i=0; \
             while [ $i -lt 20 ]; do i=$((i+1)); cat secret; mv secret x$i; cat x$i; done"
        );
        let started = Instant::now();
        let outcome = sh(
            files("scoped", folder.path(), "rw", json!(["secret"])),
            folder.path(),
            &command,
        )
        .await;
        let said = text(&outcome.stdout);
        assert!(!said.contains("CANARY"), "{limit}: {said}");
        assert!(
            said.contains("taken") || outcome.signal.is_some(),
            "{limit}: {outcome:?}"
        );
        assert!(!lives(&alone), "{limit}");
        assert!(started.elapsed() < Duration::from_secs(15), "{limit}");
    }
}

#[tokio::test]
async fn a_box_that_loses_its_supervisor_dies() {
    let word = seconds();
    let mut spec = Spec::new("/bin/sh", plan(json!({})));
    spec.args = vec!["-c".to_owned(), format!("setsid sleep {word} & sleep {word}")];
    let mut launching = tokio::task::JoinSet::new();
    launching.spawn(async move { launcher().launch(&spec).await });
    let started = Instant::now();
    while !lives(&word) {
        assert!(started.elapsed() < Duration::from_secs(10), "not started");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let below = |parents: &str| outside("pgrep", &["-P", parents, "-f", "clawk-sandbox-launcher"]);
    // Below us is what supervisors are forked from.
    let nurseries = below(&std::process::id().to_string());
    for pid in below(&nurseries.lines().collect::<Vec<_>>().join(",")).lines() {
        let pid = rustix::process::Pid::from_raw(pid.parse().expect("a pid")).expect("a pid");
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).expect("killed");
    }
    let lost = launching.join_next().await.expect("one").expect("joined");
    assert!(lost.is_err(), "{lost:?}");
    let started = Instant::now();
    while lives(&word) {
        assert!(started.elapsed() < Duration::from_secs(3), "the box lives on");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn memory_on_disk_and_in_processes_is_bounded() {
    let folder = tempfile::tempdir().expect("a folder");
    let sandbox = json!({"name": "s", "level": "process", "resource_limits": {"memory_mb": 64, "timeout_ms": 20000, "max_processes": 64}, "capabilities": {}});
    let small = Arc::new(Plan::compile(
        Some(&serde_json::from_value(sandbox).expect("a sandbox")),
        &PlanDefaults::default(),
    ));
    let mut spec = Spec::new("/bin/sh", small.clone());
    spec.workdir = Some(folder.path().to_path_buf());
    spec.args = vec![
        "-c".to_owned(),
        "head -c 200000000 /dev/zero > /tmp/big; stat -c %s /tmp/big".to_owned(),
    ];
    let size: u64 = text(&run(&spec).await.stdout).trim().parse().expect("a size");
    assert!(size <= 32 << 20, "{size}");
    let mut spec = Spec::new("/usr/bin/python3", small);
    spec.args = vec!["-c".to_owned(), "import os\nfor i in range(4):\n  if os.fork() == 0: x = b'x' * (60 << 20); import time; time.sleep(9)\nos.wait()".to_owned()];
    assert_eq!(run(&spec).await.limit, Some(LimitHit::Memory(64)));
}

fn mounts() -> usize {
    std::fs::read_to_string("/proc/self/mountinfo")
        .expect("mounts")
        .lines()
        .count()
}

fn groups() -> usize {
    let own = std::fs::read_dir("/sys/fs/cgroup/pids")
        .into_iter()
        .flatten()
        .flatten();
    own.filter(|entry| {
        entry
            .file_name()
            .to_string_lossy()
            .starts_with(&format!("clawk-{}", std::process::id()))
    })
    .count()
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").expect("descriptors").count()
}

#[tokio::test]
async fn a_hundred_calls_leave_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let capabilities = files("scoped", folder.path(), "rw", json!(["**/.env"]));
    says(capabilities.clone(), folder.path(), "true").await;
    let before = (mounts(), groups(), descriptors());
    for _ in 0..100 {
        assert_eq!(
            says(capabilities.clone(), folder.path(), "echo a | cat").await,
            "a\n"
        );
    }
    assert_eq!((mounts(), groups(), descriptors()), before);
    let command = format!("ps --ppid {} -o stat= | grep -c Z; true", std::process::id());
    assert_eq!(outside("sh", &["-c", &command]).trim(), "0");
}

#[tokio::test]
async fn the_probe_looks_from_inside() {
    let found = launcher().probe_uncached().await.expect("this host can");
    assert!(
        found.mechanisms.iter().any(|held| held.starts_with("landlock:")),
        "{found:?}"
    );
}

#[tokio::test]
async fn the_umask_of_clawk_closes_no_folder_of_the_box() {
    // A service may be started with `UMask=0077`.
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o077));
    let folder = tempfile::tempdir().expect("a folder");
    canary(folder.path(), "below/file.txt");
    let command = "cat below/file.txt && echo more > below/new.txt && cat below/new.txt";
    let said = says(
        files("scoped", folder.path(), "rw", json!([])),
        folder.path(),
        command,
    )
    .await;
    assert_eq!(said, "CANARYmore\n");
}
