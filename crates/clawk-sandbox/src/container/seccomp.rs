//! The system calls of a container, as the OCI wants them: an allow-list, so that what a runtime's library does not know
//! yet is refused too (R34).

use std::path::Path;

use serde_json::{Value, json};

use super::guard::Judged;

/// What programs need. Not here: namespaces, mounts, keyrings, bpf, ptrace, io_uring, modules, clocks, handles.
const ALLOWED: &str = "accept accept4 access adjtimex alarm arch_prctl bind brk cachestat capget capset chdir chown \
clock_getres clock_gettime clock_nanosleep close close_range connect copy_file_range dup dup2 dup3 epoll_create \
epoll_create1 epoll_ctl epoll_pwait epoll_pwait2 epoll_wait eventfd eventfd2 execve execveat exit exit_group faccessat \
faccessat2 fadvise64 fallocate fchdir fchown fchownat fcntl fdatasync fgetxattr flistxattr flock fork fremovexattr \
fsetxattr fstat fstatfs fsync ftruncate futex futex_requeue futex_wait futex_waitv futex_wake futimesat \
get_robust_list get_thread_area getcpu getcwd getdents getdents64 getegid geteuid getgid getgroups getitimer \
getpeername getpgid getpgrp getpid getppid getpriority getrandom getresgid getresuid getrlimit getrusage getsid \
getsockname getsockopt gettid gettimeofday getuid getxattr inotify_add_watch inotify_init inotify_init1 \
inotify_rm_watch io_cancel io_destroy io_getevents io_setup io_submit ioprio_get ioprio_set kill landlock_add_rule \
landlock_create_ruleset landlock_restrict_self lchown lgetxattr link linkat listen listxattr llistxattr lremovexattr \
lseek lsetxattr lstat madvise map_shadow_stack membarrier memfd_create mincore mkdir mkdirat mlock mlock2 mlockall mmap \
mprotect mq_getsetattr mq_notify mq_open mq_timedreceive mq_timedsend mq_unlink mremap mseal msgctl msgget msgrcv \
msgsnd msync munlock munlockall munmap nanosleep newfstatat pause pidfd_open pidfd_send_signal pipe pipe2 pkey_alloc \
pkey_free pkey_mprotect poll ppoll prctl pread64 preadv preadv2 prlimit64 pselect6 pwrite64 pwritev pwritev2 read \
readahead readlink readlinkat readv recvfrom recvmmsg recvmsg remap_file_pages removexattr rename renameat renameat2 \
restart_syscall rmdir rseq rt_sigaction rt_sigpending rt_sigprocmask rt_sigqueueinfo rt_sigreturn rt_sigsuspend \
rt_sigtimedwait rt_tgsigqueueinfo sched_get_priority_max sched_get_priority_min sched_getaffinity sched_getattr \
sched_getparam sched_getscheduler sched_rr_get_interval sched_setaffinity sched_setattr sched_setparam \
sched_setscheduler sched_yield seccomp select semctl semget semop semtimedop sendfile sendmmsg sendmsg sendto \
set_robust_list set_thread_area set_tid_address setfsgid setfsuid setgid setgroups setitimer setpgid setpriority \
setregid setresgid setresuid setreuid setrlimit setsid setsockopt setuid setxattr shmat shmctl shmdt shmget shutdown \
sigaltstack signalfd signalfd4 socketpair splice stat statfs statx symlink symlinkat sync sync_file_range syncfs \
sysinfo tee tgkill time timer_create timer_delete timer_getoverrun timer_gettime timer_settime timerfd_create \
timerfd_gettime timerfd_settime times tkill truncate umask uname unlink unlinkat utime utimensat utimes vfork wait4 \
waitid write writev";

/// Programs fall back when these are not there, and give up when they are forbidden.
const UNKNOWN: [&str; 4] = ["clone3", "openat2", "io_uring_setup", "memfd_secret"];

/// Calls that change something by its name, which wait for the guard where there is one; those that open, and those that the rules
/// below look into, are told apart there.
const CHANGING: [&str; 13] = [
    "rename",
    "renameat",
    "renameat2",
    "link",
    "linkat",
    "truncate",
    "unlink",
    "unlinkat",
    "rmdir",
    "mkdir",
    "mkdirat",
    "symlink",
    "symlinkat",
];

const ENOSYS: u32 = 38;
/// Set-user-id and set-group-id.
const SET_ID: u32 = 0o6000;
const O_WRONLY: u32 = 1;
const O_RDWR: u32 = 2;
const O_TRUNC: u32 = 0o1000;
const O_CREAT: u32 = 0o100;
/// `O_TMPFILE` without `O_DIRECTORY`.
const O_TMPFILE: u32 = 0o20_000_000;
/// Every `CLONE_NEW…` flag.
const NAMESPACES: u32 = 0x7e02_0080;
const TIOCSTI: u32 = 0x5412;
const TIOCLINUX: u32 = 0x541c;

const ALLOW: &str = "SCMP_ACT_ALLOW";
const NOTIFY: &str = "SCMP_ACT_NOTIFY";

/// `linux.seccomp` of a bundle; what is judged waits for who listens at `listener`.
pub(super) fn profile(judged: Judged, listener: Option<&Path>) -> Value {
    let waits = |name: &&str| match judged {
        Judged::Nothing => false,
        Judged::Changes | Judged::All => CHANGING.contains(name) || name.starts_with("execve"),
    };
    // A filter of the tool's own would be asked first.
    let gone = |name: &&str| judged != Judged::Nothing && *name == "seccomp";
    let names = ALLOWED.split_ascii_whitespace().filter(|name| !gone(name));
    let (asked, free): (Vec<&str>, Vec<&str>) = names.partition(waits);
    let mut rules = vec![
        json!({"names": free, "action": ALLOW}),
        json!({"names": UNKNOWN, "action": "SCMP_ACT_ERRNO", "errnoRet": ENOSYS}),
    ];
    if !asked.is_empty() {
        rules.push(json!({"names": asked, "action": NOTIFY}));
    }
    by_arguments(&mut rules);
    files(&mut rules, judged);
    let mut profile = json!({
        "defaultAction": "SCMP_ACT_ERRNO",
        "defaultErrnoRet": 1,
        "architectures": [architecture()],
        "syscalls": rules,
    });
    if let (Some(listener), Some(map)) = (listener, profile.as_object_mut()) {
        map.insert("listenerPath".to_owned(), json!(listener));
    }
    profile
}

/// Calls that open, make, or change the mode, without set-id bits and devices.
fn files(rules: &mut Vec<Value>, judged: Judged) {
    let action = if judged == Judged::Nothing { ALLOW } else { NOTIFY };
    let mut add = |name: &str, action: &str, args: Value| {
        rules.push(json!({"names": [name], "action": action, "args": args}));
    };
    for (name, mode) in [
        ("chmod", 1),
        ("fchmod", 1),
        ("fchmodat", 2),
        ("fchmodat2", 2),
        ("creat", 1),
    ] {
        add(name, action, json!([without(mode, SET_ID)]));
    }
    for (name, flags) in [("open", 1), ("openat", 2)] {
        match judged {
            Judged::Nothing => {
                add(name, ALLOW, json!([without(flags, O_CREAT | O_TMPFILE)]));
                add(name, ALLOW, json!([without(flags + 1, SET_ID)]));
            }
            // No two of these fit the same call: which of two actions would count is not said anywhere. The guard refuses
            // set-id bits.
            Judged::Changes => {
                let mut before = 0;
                for flag in [O_WRONLY, O_RDWR, O_CREAT, O_TRUNC, O_TMPFILE] {
                    add(
                        name,
                        NOTIFY,
                        json!([arg(flags, "SCMP_CMP_MASKED_EQ", before | flag, flag)]),
                    );
                    before |= flag;
                }
                add(name, ALLOW, json!([without(flags, before)]));
            }
            Judged::All => add(name, NOTIFY, json!([])),
        }
    }
    // No device, whatever the rights: plain files, pipes and sockets without set-id bits.
    for (name, mode) in [("mknod", 1), ("mknodat", 2)] {
        for kind in [0_u32, 0o100_000, 0o010_000, 0o140_000] {
            add(
                name,
                action,
                json!([arg(mode, "SCMP_CMP_MASKED_EQ", 0o170_000 | SET_ID, kind)]),
            );
        }
    }
}

/// Calls whose arguments say whether they are harmless.
fn by_arguments(rules: &mut Vec<Value>) {
    let mut allow = |name: &str, args: Value| {
        rules.push(json!({"names": [name], "action": ALLOW, "args": args}));
    };
    for family in [2_u32, 10] {
        allow("socket", json!([arg(0, "SCMP_CMP_EQ", family, 0)]));
    }
    allow("clone", json!([without(0, NAMESPACES)]));
    for persona in [0_u32, 0x4_0000, 0xffff_ffff] {
        allow("personality", json!([arg(0, "SCMP_CMP_EQ", persona, 0)]));
    }
    // Everything but the two requests that type into a terminal: below, between and above them.
    allow("ioctl", json!([arg(1, "SCMP_CMP_LT", TIOCSTI, 0)]));
    for between in TIOCSTI + 1..TIOCLINUX {
        allow("ioctl", json!([arg(1, "SCMP_CMP_EQ", between, 0)]));
    }
    allow("ioctl", json!([arg(1, "SCMP_CMP_GT", TIOCLINUX, 0)]));
}

fn architecture() -> &'static str {
    if cfg!(target_arch = "aarch64") {
        "SCMP_ARCH_AARCH64"
    } else {
        "SCMP_ARCH_X86_64"
    }
}

fn arg(index: u32, op: &str, value: u32, two: u32) -> Value {
    json!({"index": index, "value": value, "valueTwo": two, "op": op})
}

/// None of the mask's bits is set.
fn without(index: u32, mask: u32) -> Value {
    arg(index, "SCMP_CMP_MASKED_EQ", mask, 0)
}
