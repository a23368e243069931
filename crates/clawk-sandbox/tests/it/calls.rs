//! The system calls of a container, compared with those of a box: one list holds both, whichever way the runtime goes.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;

use clawk_plan::Plan;
use clawk_sandbox::{LaunchOutcome, Launcher, LevelSettings, Spec, container};
use serde_json::json;

use super::containers::sandbox;
use super::{launcher, text};

/// Says of each call whether the kernel would have taken it up, by what it answers.
const REFUSED_CALLS: &str = r#"
import ctypes, errno, os, socket, sys
libc = ctypes.CDLL(None, use_errno=True)
high = 1 << 32
def call(name, number, *args):
    args = [a if isinstance(a, bytes) or a is None else ctypes.c_ulong(a & (2 ** 64 - 1)) for a in args]
    ctypes.set_errno(0)
    got = libc.syscall(ctypes.c_long(number), *args)
    code = ctypes.get_errno() if got < 0 else 0
    held = code in (errno.EPERM, errno.ENOSYS, errno.EAFNOSUPPORT)
    print('held' if held else 'FREE', name, got, errno.errorcode.get(code, code))
os.chdir(sys.argv[1])
for name in ('a', 'b'): open(name, 'w').close()
file, null = os.open('a', os.O_RDWR), os.open('/dev/null', os.O_RDWR)
for bits in (0, high):
    for request in (0x5412, 0x541c, 0x541d, 0x5423): call(f'ioctl {request:x}', 16, null, request | bits, 0)
    call('lease', 72, file, 1024 | bits, 0)
    call('personality', 135, 0x40000 | bits)
    call('packets', 53, 1 | bits, 2, 0, bytes(8))
    call('file socket', 41, 1 | bits, 1, 0)
    call('netlink', 41, 16 | bits, 3, 0)
    call('unshare', 272, bits)
    call('setns', 308, 2 ** 64 - 1, 0)
call('whiteout', 316, 2 ** 64 - 100, b'a', 2 ** 64 - 100, b'c', 4)
call('socket node', 133, b's', 0o140644, 0)
call('open_tree', 428, 2 ** 64 - 100, b'/', 0)
call('openat2', 437, 2 ** 64 - 100, b'/', bytes(24), 24)
call('kcmp', 312, os.getpid(), os.getpid(), 2, 0, 0)
call('action', 317, 2, 0, (0x7fff0000).to_bytes(4, 'little'))
call('perf', 298, None, 0, 0, 0, 0)
call('memfd_secret', 447, 0)
call('keyctl', 250, 0, 2 ** 64 - 3, 0)
a, b = socket.socketpair(); socket.socket(); socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
import fcntl; fcntl.fcntl(file, fcntl.F_GETFL); fcntl.fcntl(file, fcntl.F_SETLKW, bytes(32))
libc.personality(ctypes.c_ulong(0xffffffff)); os.rename('b', 'd'); os.mkfifo('p'); os.chmod('p', 0o600); os.access('d', os.R_OK)
print('ordinary')
"#;

/// A runtime that does something which our filter refuses: with the filter, nothing comes of it.
const OTHER_RUNTIME: &str = "#!/bin/sh\nsetarch --addr-no-randomize true || exit 1\nexec runc \"$@\"\n";

/// Makes each call that does not end or hold the process, with words that lead nowhere, in a process of its own.
const EVERY_CALL: &str = r#"
import ctypes, errno, os, signal
libc = ctypes.CDLL(None, use_errno=True)
ends = {15, 60, 231}
holds = {7, 22, 23, 24, 34, 35, 43, 45, 61, 62, 65, 88, 112, 130, 200, 202, 219, 220, 230, 232, 234, 240, 243, 270, 271, 281, 288, 441, 449, 455}
forks = {56, 57, 58, 59, 322}
word = ctypes.c_ulong(2 ** 64 - 1)
for call in range(470):
    if call in ends | holds | forks: continue
    child = os.fork()
    if child == 0:
        signal.alarm(5)
        got = libc.syscall(ctypes.c_long(call), word, word, word, word, word, word)
        os._exit(ctypes.get_errno() if got < 0 else 0)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    print(call, errno.errorcode.get(code, code))
"#;

/// A launcher whose containers have this runtime.
fn with_runtime(runtime: &str) -> Launcher {
    launcher().with_levels(LevelSettings {
        container: container::Settings {
            runtimes: vec![runtime.to_owned()],
            ..Default::default()
        },
        ..Default::default()
    })
}

/// [`OTHER_RUNTIME`] as a program in this folder.
fn other_runtime(folder: &Path) -> String {
    let other = folder.join("other-runtime");
    fs::write(&other, OTHER_RUNTIME).expect("a file");
    fs::set_permissions(&other, fs::Permissions::from_mode(0o755)).expect("it is ours");
    other.to_string_lossy().into_owned()
}

async fn python(launcher: &Launcher, plan: &Arc<Plan>, program: &str) -> LaunchOutcome {
    let mut spec = Spec::new("/usr/bin/python3", Arc::clone(plan));
    spec.args = ["-c", program, "/tmp"].map(str::to_owned).to_vec();
    launcher.launch(&spec).await.expect("it starts")
}

fn is_passed_on(outcome: &LaunchOutcome) -> bool {
    outcome
        .obtained
        .mechanisms
        .iter()
        .any(|one| one == "seccomp:passed-on")
}

#[tokio::test]
async fn whichever_way_the_runtime_goes_what_words_say_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    #[expect(clippy::disallowed_methods, reason = "outside of every box, to compare")]
    let free = tokio::process::Command::new("/usr/bin/python3")
        .args(["-c", REFUSED_CALLS])
        .arg(folder.path())
        .output()
        .await
        .expect("python3 runs");
    let free = String::from_utf8_lossy(&free.stdout).into_owned();
    assert_eq!(
        free.matches("FREE").count(),
        31,
        "the host refuses none of them: {free}"
    );
    let plan = sandbox("container", json!({}));
    for (runtime, passed_on) in [("runc".to_owned(), true), (other_runtime(folder.path()), false)] {
        let outcome = python(&with_runtime(&runtime), &plan, REFUSED_CALLS).await;
        let said = text(&outcome.stdout);
        assert!(
            !said.contains("FREE") && said.contains("ordinary"),
            "under `{runtime}`: {said}{}",
            text(&outcome.stderr)
        );
        assert_eq!(is_passed_on(&outcome), passed_on, "{:?}", outcome.obtained);
    }
}

#[tokio::test]
async fn call_by_call_a_container_refuses_what_a_box_refuses() {
    let folder = tempfile::tempdir().expect("a folder");
    let shell = json!({"capabilities": {"shell": {"mode": "restricted"}}});
    let of = |outcome: &LaunchOutcome| -> Vec<String> {
        text(&outcome.stdout).lines().map(str::to_owned).collect()
    };
    let boxed = of(&python(&launcher(), &sandbox("process", shell.clone()), EVERY_CALL).await);
    assert!(boxed.len() > 400, "{boxed:?}");
    let plan = sandbox("container", shell);
    let outcome = python(&with_runtime("runc"), &plan, EVERY_CALL).await;
    assert!(is_passed_on(&outcome), "{:?}", outcome.obtained);
    // Of `fchmodat2`, a container says that the kernel does not have it.
    let differ = |(one, other): &(&String, &String)| one != other && !one.starts_with("452 ");
    let contained = of(&outcome);
    assert_eq!(boxed.len(), contained.len());
    assert_eq!(boxed.iter().zip(&contained).find(differ), None);

    let outcome = python(&with_runtime(&other_runtime(folder.path())), &plan, EVERY_CALL).await;
    assert!(!is_passed_on(&outcome), "{:?}", outcome.obtained);
    let contained = of(&outcome);
    assert_eq!(boxed.len(), contained.len());
    let refused = |line: &str| {
        ["EPERM", "ENOSYS", "EAFNOSUPPORT"]
            .iter()
            .any(|code| line.ends_with(code))
    };
    let weaker = |(one, other): &(&String, &String)| refused(one) && !refused(other);
    assert_eq!(boxed.iter().zip(&contained).find(weaker), None);
}
