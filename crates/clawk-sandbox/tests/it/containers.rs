//! Level `container`, judged by effects: real containers from a real runtime.

mod images;
mod refusals;

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use clawk_manifest::model;
use clawk_plan::{Level, Plan, PlanDefaults, RuntimeFiles};
use clawk_sandbox::{LaunchOutcome, LimitHit, Spec};
use serde_json::json;

use super::{bytes, launcher, lives, seconds, text};

/// A Sandbox of level `container` with these members besides.
pub(crate) fn sandbox(level: &str, more: serde_json::Value) -> Arc<Plan> {
    let mut spec = json!({"name": "box", "level": level, "capabilities": {"shell": {"mode": "full"}}});
    merge(&mut spec, more);
    let sandbox: model::Sandbox = serde_json::from_value(spec).expect("a sandbox");
    Arc::new(Plan::compile(Some(&sandbox), &PlanDefaults::default()))
}

fn merge(into: &mut serde_json::Value, from: serde_json::Value) {
    match (into, from) {
        (serde_json::Value::Object(into), serde_json::Value::Object(from)) => {
            for (key, value) in from {
                merge(into.entry(key).or_insert(serde_json::Value::Null), value);
            }
        }
        (into, from) => *into = from,
    }
}

fn script(plan: &Arc<Plan>, line: &str) -> Spec {
    let mut spec = Spec::new("/bin/sh", Arc::clone(plan));
    spec.args = vec!["-c".to_owned(), line.to_owned()];
    spec
}

async fn run(spec: &Spec) -> LaunchOutcome {
    tokio::time::timeout(Duration::from_secs(60), launcher().launch(spec))
        .await
        .expect("in time")
        .expect("a container starts; Debian's package `runc` is needed for these tests")
}

/// What is left of containers on this host: folders, groups, mounts.
fn traces() -> Vec<String> {
    let own = format!("clawk-{}-", std::process::id());
    let mounts = fs::read_to_string("/proc/self/mountinfo").expect("mounts");
    let mut left: Vec<String> = mounts
        .lines()
        .filter(|line| line.contains(&own))
        .map(str::to_owned)
        .collect();
    let folders = [
        "/run/clawk",
        "/sys/fs/cgroup/memory",
        "/sys/fs/cgroup/pids",
        "/sys/fs/cgroup/devices",
        "/sys/fs/cgroup",
    ];
    for folder in folders {
        let listing = fs::read_dir(folder).into_iter().flatten().flatten();
        left.extend(
            listing
                .map(|e| e.path().display().to_string())
                .filter(|path| path.contains(&own)),
        );
    }
    left
}

#[tokio::test]
async fn output_exit_code_input_and_what_held_it() {
    let plan = sandbox("container", json!({}));
    let mut spec = script(&plan, "cat; echo err >&2; exit 3");
    spec.stdin = bytes("in");
    let outcome = run(&spec).await;
    assert_eq!(
        (text(&outcome.stdout).as_str(), outcome.exit_code),
        ("in", Some(3))
    );
    assert_eq!(text(&outcome.stderr), "err\n");
    assert_eq!(outcome.obtained.level, Level::Container);
    for mechanism in [
        "oci:runc",
        "seccomp",
        "capabilities:none",
        "netns:empty",
        "view:system",
        "cgroup-v",
    ] {
        assert!(
            outcome
                .obtained
                .mechanisms
                .iter()
                .any(|m| m.starts_with(mechanism)),
            "{mechanism}: {:?}",
            outcome.obtained
        );
    }
    assert!(outcome.limit.is_none());
    assert_eq!(traces(), Vec::<String>::new());
}

#[tokio::test]
async fn nobody_on_the_host_and_no_right() {
    let line = "id -u; grep -E '^(CapEff|CapBnd|NoNewPrivs|Seccomp):' /proc/self/status | tr -d '\\t'; \
                sleep 30 & cat /proc/self/uid_map | tr -s ' '";
    let outcome = run(&script(&sandbox("container", json!({})), line)).await;
    let said = text(&outcome.stdout);
    assert!(
        said.contains("CapEff:0000000000000000") && said.contains("CapBnd:0000000000000000"),
        "{said}"
    );
    assert!(
        said.contains("NoNewPrivs:1") && said.contains("Seccomp:2"),
        "{said}"
    );
    let uid = said.lines().next().expect("a user");
    assert!(
        uid != "0" && said.contains("0 0 4294967295"),
        "the user is nobody else's number, on the host too: {said}"
    );
}

#[tokio::test]
async fn the_hosts_files_and_network_are_not_there() {
    let folder = tempfile::tempdir().expect("a folder");
    let canary = folder.path().join("canary");
    fs::write(&canary, "sees-the-host").expect("written");
    let server = std::net::TcpListener::bind("127.0.0.1:0").expect("a server");
    let port = server.local_addr().expect("bound").port();
    let line = format!(
        "cat {}; cat /etc/shadow; ls /root /home /run /sys/class; cat /proc/kcore; \
         exec 3<>/dev/tcp/127.0.0.1/{port}; echo; tail -n +3 /proc/net/dev | cut -d: -f1 | sed 's/^ */card /'; ls /dev",
        canary.display()
    );
    let plan = sandbox("container", json!({}));
    let mut spec = Spec::new("/bin/bash", plan);
    spec.args = vec!["-c".to_owned(), line];
    let outcome = run(&spec).await;
    let said = text(&outcome.stdout);
    assert!(
        !said.contains("sees-the-host") && !said.contains("root:"),
        "{said}"
    );
    server.set_nonblocking(true).expect("non-blocking");
    assert!(server.accept().is_err(), "the host's loopback is another one");
    let cards: Vec<&str> = said.lines().filter(|line| line.starts_with("card ")).collect();
    assert_eq!(cards, ["card lo"]);
    assert!(!said.contains("kvm") && !said.contains("vda"), "{said}");
}

#[tokio::test]
async fn mounts_are_served_as_given_and_their_owner_owns_what_the_tool_makes() {
    let folder = tempfile::tempdir().expect("a folder");
    for name in ["rw", "ro"] {
        fs::create_dir(folder.path().join(name)).expect("made");
    }
    fs::write(folder.path().join("ro/in"), "text").expect("written");
    let (rw, ro) = (folder.path().join("rw"), folder.path().join("ro"));
    let plan = sandbox(
        "container",
        json!({"capabilities": {"filesystem": {"mode": "scoped", "mount_paths": [
        {"path": rw, "permissions": "rw"}, {"path": ro, "permissions": "ro"}]}}}),
    );
    let mut spec = script(
        &plan,
        &format!(
            "pwd; cat {0}/in && echo new > out; echo x > {0}/no; chmod u+s out",
            ro.display()
        ),
    );
    spec.workdir = Some(rw.clone());
    let outcome = run(&spec).await;
    let said = text(&outcome.stdout);
    assert!(
        said.contains("text") && said.starts_with(rw.to_str().expect("utf-8")),
        "{said} {}",
        text(&outcome.stderr)
    );
    let made = rw.join("out").metadata().expect("it was made");
    assert_eq!(
        made.uid(),
        rustix::process::geteuid().as_raw(),
        "on the host it is the folder's owner's"
    );
    assert_eq!(made.permissions().mode() & 0o6000, 0, "no set-id bit comes out");
    assert!(!ro.join("no").exists());
}

#[tokio::test]
async fn a_folder_that_a_call_chooses_is_no_mount() {
    let (agent, other) = (
        tempfile::tempdir().expect("a folder"),
        tempfile::tempdir().expect("a folder"),
    );
    fs::write(other.path().join("secret"), "sees-the-host").expect("written");
    let plan = sandbox(
        "container",
        json!({"capabilities": {"filesystem": {"mode": "scoped", "mount_paths": [{"path": ".", "permissions": "ro"}]}}}),
    );
    let mut spec = script(
        &plan,
        &format!("pwd; cat secret {}/secret", other.path().display()),
    );
    spec.base = Some(agent.path().to_owned());
    spec.workdir = Some(other.path().to_owned());
    let outcome = run(&spec).await;
    assert_eq!(text(&outcome.stdout), "/tmp\n", "{}", text(&outcome.stderr));
}

#[tokio::test]
async fn denied_paths_are_covered_under_every_name() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name);
    fs::create_dir_all(at("keys/deep")).expect("made");
    for name in ["keys/deep/a", ".env", "plain"] {
        fs::write(at(name), "sekrit").expect("written");
    }
    fs::hard_link(at(".env"), at("second-name")).expect("linked");
    std::os::unix::fs::symlink("keys/deep/a", at("link")).expect("linked");
    let plan = sandbox(
        "container",
        json!({"capabilities": {"filesystem": {"mode": "scoped",
        "mount_paths": [{"path": folder.path(), "permissions": "rw"}],
        "denied_paths": [at("keys"), "**/.env"]}}}),
    );
    let mut spec = script(
        &plan,
        "cat keys/deep/a .env second-name link; mv .env x; mv keys y; cat x y/deep/a; echo; cat plain",
    );
    spec.workdir = Some(folder.path().to_owned());
    let outcome = run(&spec).await;
    assert_eq!(
        text(&outcome.stdout).trim(),
        "sekrit",
        "only the plain file is read: {}",
        text(&outcome.stderr)
    );
    assert!(outcome.obtained.mechanisms.iter().any(|m| m.starts_with("mask:")));
    assert!(at(".env").exists() && at("keys/deep/a").exists());
}

#[tokio::test]
async fn limits_are_results_with_the_reason() {
    let small = json!({"resource_limits": {"memory_mb": 48, "max_processes": 20}});
    let plan = sandbox("container", small);
    let outcome = run(&script(
        &plan,
        "echo on; head -c 200m /dev/zero | tail -c 150m | wc -c",
    ))
    .await;
    assert!(text(&outcome.stdout).starts_with("on"));
    assert_eq!(outcome.limit, Some(LimitHit::Memory(48)), "{outcome:?}");
    let outcome = run(&script(&plan, "for i in $(seq 60); do sleep 5 & done; wait")).await;
    assert_eq!(outcome.limit, Some(LimitHit::Processes(20)), "{outcome:?}");
    let plan = sandbox(
        "container",
        json!({"resource_limits": {"max_output_bytes": 1000, "max_open_files": 64}}),
    );
    let outcome = run(&script(&plan, "ulimit -n; head -c 100000 /dev/zero")).await;
    assert_eq!(
        (outcome.stdout.len(), outcome.limit),
        (1000, Some(LimitHit::Output(1000)))
    );
    assert!(outcome.stdout.starts_with(b"64\n"));
    assert_eq!(traces(), Vec::<String>::new());
}

#[tokio::test]
async fn a_timeout_leaves_nothing_after_200_ms() {
    let word = seconds();
    let mut spec = script(
        &sandbox("container", json!({})),
        &format!("trap '' TERM; (setsid sleep {word} &); echo on; sleep {word}"),
    );
    spec.timeout_ms = Some(1500);
    let started = Instant::now();
    let outcome = run(&spec).await;
    assert_eq!(outcome.limit, Some(LimitHit::Time(1500)));
    assert!(
        started.elapsed() < Duration::from_secs(10),
        "{:?}",
        started.elapsed()
    );
    assert_eq!(text(&outcome.stdout), "on\n");
    assert!(!lives(&word));
    assert_eq!(traces(), Vec::<String>::new());
}

#[tokio::test]
async fn dropping_the_call_ends_the_container() {
    let word = seconds();
    let spec = script(&sandbox("container", json!({})), &format!("sleep {word}"));
    let launcher = launcher();
    launcher.probe_level(Level::Container).await.expect("a runtime");
    let gone = tokio::time::timeout(Duration::from_millis(1000), launcher.launch(&spec)).await;
    assert!(gone.is_err());
    let until = Instant::now() + Duration::from_secs(5);
    while (lives(&word) || !traces().is_empty()) && Instant::now() < until {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(!lives(&word));
    assert_eq!(traces(), Vec::<String>::new());
}

#[tokio::test]
async fn forbidden_calls_fail_and_ordinary_ones_do_not() {
    let program = r#"
import ctypes, socket, os, sys
libc = ctypes.CDLL(None, use_errno=True)
def call(name, number, *args):
    got = libc.syscall(number, *args)
    print(name, 'done' if got >= 0 else 'no')
call('unshare', 272, 0x10000000)
call('mount', 165, b'none', b'/tmp', b'tmpfs', 0, None)
call('ptrace', 101, 0, 0, 0, 0)
call('bpf', 321, 0, None, 0)
call('io_uring', 425, 8, None)
call('keyctl', 250, 0, -3, 0)
call('fchmodat2', 452, -100, b'/tmp/f', 0o4755, 0)
for family in (socket.AF_UNIX, socket.AF_NETLINK, socket.AF_VSOCK, socket.AF_PACKET):
    try:
        socket.socket(family, socket.SOCK_RAW if family == socket.AF_NETLINK else socket.SOCK_STREAM); print(int(family), 'done')
    except OSError: print(int(family), 'no')
open('/tmp/f', 'w').close()
for mode in (0o4755, 0o2755):
    try: os.chmod('/tmp/f', mode); print('setid', 'done')
    except OSError: print('setid', 'no')
try: os.mknod('/tmp/d', 0o20644, os.makedev(1, 5)); print('device', 'done')
except OSError: print('device', 'no')
os.chmod('/tmp/f', 0o755); a, b = socket.socketpair(); socket.socket(); os.system('true')
import threading; t = threading.Thread(target=print, args=('thread',)); t.start(); t.join()
import subprocess; print(subprocess.run(['/bin/echo', 'child'], capture_output=True).stdout.decode().strip())
"#;
    let mut spec = Spec::new("/usr/bin/python3", sandbox("container", json!({})));
    spec.args = vec!["-c".to_owned(), program.to_owned()];
    let outcome = run(&spec).await;
    let said = text(&outcome.stdout);
    assert!(
        !said.contains("done") && said.contains("thread") && said.contains("child"),
        "{said}{}",
        text(&outcome.stderr)
    );
}

#[tokio::test]
async fn a_service_lives_in_a_container() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let spec = script(
        &sandbox("container", json!({})),
        "id -u; read line; echo got $line; sleep 60",
    );
    let mut service = launcher().start_service(&spec).await.expect("starts");
    assert_eq!(service.obtained_enforcement().level, Level::Container);
    let mut stdin = service.stdin.take().expect("input");
    stdin.write_all(b"hello\n").await.expect("written");
    let mut stdout = service.stdout.take().expect("output");
    let mut said = String::new();
    while !said.contains("got hello") {
        let mut buffer = [0; 256];
        let read = tokio::time::timeout(Duration::from_secs(10), stdout.read(&mut buffer))
            .await
            .expect("in time")
            .expect("read");
        assert!(read > 0, "{said}");
        said.push_str(&text(&buffer[..read]));
    }
    assert!(!said.starts_with("0\n"), "{said}");
    drop(service);
}

#[tokio::test]
async fn the_way_out_is_a_socket_in_the_containers_own_network() {
    use std::io::{Read, Write};
    let plan = sandbox(
        "container",
        json!({"capabilities": {"network": {"mode": "allowlist", "allowed_hosts": ["example.com"]}}}),
    );
    let mut spec = Spec::new("/bin/bash", plan);
    spec.args = vec![
        "-c".to_owned(),
        "exec 3<>/dev/tcp/127.0.0.1/3128; echo hello >&3; cat <&3".to_owned(),
    ];
    spec.gate = Some(clawk_sandbox::launch::EgressGate::new(|door| {
        door.listener.set_nonblocking(false)?;
        let serving = std::thread::spawn(move || {
            let (mut stream, _) = door.listener.accept().expect("somebody comes");
            let mut said = [0; 6];
            stream.read_exact(&mut said).expect("it says something");
            stream
                .write_all(b"served ")
                .and_then(|()| stream.write_all(&said))
                .expect("answered");
        });
        Ok(Box::new(serving))
    }));
    let outcome = run(&spec).await;
    assert_eq!(
        text(&outcome.stdout),
        "served hello\n",
        "{}",
        text(&outcome.stderr)
    );
    assert!(outcome.obtained.mechanisms.iter().any(|m| m == "netns:proxy"));
}

/// Waits for `ready`, gives up after ten seconds.
async fn until(path: &Path) {
    let end = Instant::now() + Duration::from_secs(10);
    while !path.exists() {
        assert!(Instant::now() < end, "{} never came", path.display());
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn what_comes_while_a_call_runs_is_judged() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name);
    fs::create_dir(at("deep")).expect("made");
    for name in ["own", "deep/own"] {
        fs::write(at(name), "first").expect("written");
    }
    let sandbox = json!({"name": "box", "level": "container", "capabilities": {"shell": {"mode": "full"},
        "filesystem": {"mode": "scoped", "mount_paths": [{"path": folder.path(), "permissions": "rw"}],
        "denied_paths": ["**/.env"]}}});
    let sandbox: model::Sandbox = serde_json::from_value(sandbox).expect("a sandbox");
    let own = RuntimeFiles {
        files: vec![at("own"), at("deep"), at("absent")],
        ..RuntimeFiles::empty()
    };
    let plan =
        Plan::compile(Some(&sandbox), &PlanDefaults::default()).with_runtime_files(&own, folder.path());
    let line = "cat .env; touch here; while [ ! -e go ]; do sleep 0.02; done; \
        cat .env; mv .env moved; ln .env second; cat moved second; \
        echo evil >> own; echo evil > own; cp free own; mv free own; ln -sf free own; rm -f own; chmod 777 own; \
        echo evil > absent; ln free absent; mkdir absent; mv deep gone; echo evil > deep/new; echo evil >> deep/own; \
        python3 -c 'import os;os.fchmod(os.open(\"own\",os.O_RDONLY),0o777)'; \
        python3 -c 'import ctypes;l=ctypes.CDLL(None);l.prctl(4,0);l.open(b\"UNSEEN\",0o101,0o600)'; \
        echo kept > free; cat free";
    let line = line.replace("UNSEEN", at("unseen").to_str().expect("text"));
    let mut spec = script(&Arc::new(plan), &format!("echo one > free; {line}"));
    spec.workdir = Some(folder.path().to_owned());
    let running = async {
        let outcome = run(&spec).await;
        fs::write(at("here"), "").expect("written");
        outcome
    };
    let editing = async {
        until(&at("here")).await;
        for name in ["own", "deep/own"] {
            fs::write(at("swap"), "edited").expect("written");
            fs::rename(at("swap"), at(name)).expect("as an editor does it");
        }
        fs::write(at(".env"), "sekrit").expect("written");
        fs::write(at("go"), "").expect("written");
    };
    let (outcome, ()) = tokio::join!(running, editing);
    let said = format!("{} {}", text(&outcome.stdout), text(&outcome.stderr));
    assert_eq!(text(&outcome.stdout), "kept\n", "{said}");
    for name in ["own", "deep/own"] {
        assert_eq!(
            fs::read_to_string(at(name)).expect("there"),
            "edited",
            "{name}: {said}"
        );
        assert_ne!(
            at(name).metadata().expect("there").permissions().mode() & 0o777,
            0o777
        );
    }
    assert!(!at("absent").exists() && !at("deep/new").exists(), "{said}");
    assert!(
        at("unseen").exists(),
        "whoever can't be looked at is served as well: {said}"
    );
    for held in ["guard:denied_paths", "guard:own_files"] {
        assert!(
            outcome.obtained.mechanisms.iter().any(|name| name == held),
            "{:?}",
            outcome.obtained
        );
    }
    assert!(outcome.obtained.missing.is_empty(), "{:?}", outcome.obtained);
    assert_eq!(traces(), Vec::<String>::new());
}
