//! The system calls of a container (R34, ADR 0030). Where the runtime starts the tool as a process of this kernel, it runs under our own
//! filter, that of a strict box, and what it says itself, as the OCI wants it, only takes back what it needed and sends calls to
//! the guard. Any other runtime says all of it: an allow-list, so that what its library does not know yet is refused too.

use std::fs;
use std::io;
use std::path::Path;
use std::sync::OnceLock;

use serde_json::{Value, json};

use super::guard::ContainerGuardedCalls;
use crate::child::cell::filter::around_runtime;

/// Who holds the tool to which calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SeccompEnforcer {
    /// Our filter, which the runtime inherits; its own list adds to it.
    Ours,
    /// The runtime's list alone.
    Runtime,
}

/// What a runtime calls to make a container, and no tool may: our filter lets it through, its own list does not. A runtime's library
/// passes over names that it does not know: nothing newer than the listener (libseccomp 2.5) may stand here.
const OF_RUNTIMES: [(i64, &str); 20] = [
    (libc::SYS_unshare, "unshare"),
    (libc::SYS_setns, "setns"),
    (libc::SYS_mount, "mount"),
    (libc::SYS_umount2, "umount2"),
    (libc::SYS_pivot_root, "pivot_root"),
    (libc::SYS_chroot, "chroot"),
    (libc::SYS_open_tree, "open_tree"),
    (libc::SYS_move_mount, "move_mount"),
    (libc::SYS_fsopen, "fsopen"),
    (libc::SYS_fsconfig, "fsconfig"),
    (libc::SYS_fsmount, "fsmount"),
    (libc::SYS_fspick, "fspick"),
    (libc::SYS_sethostname, "sethostname"),
    (libc::SYS_setdomainname, "setdomainname"),
    (libc::SYS_add_key, "add_key"),
    (libc::SYS_request_key, "request_key"),
    (libc::SYS_keyctl, "keyctl"),
    (libc::SYS_bpf, "bpf"),
    (libc::SYS_seccomp, "seccomp"),
    (libc::SYS_pidfd_getfd, "pidfd_getfd"),
];

impl SeccompEnforcer {
    /// Writes our filter for the stage to install before it becomes the runtime, if it is to.
    pub(super) fn pass_on(self, file: &Path) -> io::Result<bool> {
        match self {
            Self::Ours => fs::write(file, ours()?).map(|()| true),
            Self::Runtime => Ok(false),
        }
    }
}

/// Our filter, made once.
fn ours() -> io::Result<&'static [u8]> {
    static MADE: OnceLock<Vec<u8>> = OnceLock::new();
    if let Some(made) = MADE.get() {
        return Ok(made);
    }
    let made = around_runtime(&OF_RUNTIMES.map(|(call, _)| call), &[SYS_FCHMODAT2])?;
    Ok(MADE.get_or_init(|| made))
}

/// `fchmodat2`, Linux 6.6, for which a guard would have to be asked by a name that libraries may not know: to our filter, the kernel
/// does not have it, and libc takes another way.
const SYS_FCHMODAT2: i64 = 452;

/// What programs need. Not here: namespaces, mounts, keyrings, bpf, ptrace, io_uring, modules, clocks, handles, filters of the tool's
/// own, which would be asked first.
const ALLOWED: &str = "accept accept4 access alarm arch_prctl bind brk cachestat capget capset chdir chown \
clock_getres clock_gettime clock_nanosleep close close_range connect copy_file_range dup dup2 dup3 epoll_create \
epoll_create1 epoll_ctl epoll_pwait epoll_pwait2 epoll_wait eventfd eventfd2 execve execveat exit exit_group faccessat \
faccessat2 fadvise64 fallocate fchdir fchown fchownat fdatasync fgetxattr flistxattr flock fork fremovexattr \
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
readahead readlink readlinkat readv recvfrom recvmmsg recvmsg remap_file_pages removexattr rename renameat \
restart_syscall rmdir rseq rt_sigaction rt_sigpending rt_sigprocmask rt_sigqueueinfo rt_sigreturn rt_sigsuspend \
rt_sigtimedwait rt_tgsigqueueinfo sched_get_priority_max sched_get_priority_min sched_getaffinity sched_getattr \
sched_getparam sched_getscheduler sched_rr_get_interval sched_setaffinity sched_setattr sched_setparam \
sched_setscheduler sched_yield select semctl semget semop semtimedop sendfile sendmmsg sendmsg sendto \
set_robust_list set_thread_area set_tid_address setfsgid setfsuid setgid setgroups setitimer setpgid setpriority \
setregid setresgid setresuid setreuid setrlimit setsid setsockopt setuid setxattr shmat shmctl shmdt shmget shutdown \
sigaltstack signalfd signalfd4 splice stat statfs statx symlink symlinkat sync sync_file_range syncfs \
sysinfo tee tgkill time timer_create timer_delete timer_getoverrun timer_gettime timer_settime timerfd_create \
timerfd_gettime timerfd_settime times tkill truncate umask uname unlink unlinkat utime utimensat utimes vfork wait4 \
waitid write writev";

/// Programs fall back when these are not there, and give up when they are forbidden.
const UNKNOWN: [&str; 4] = ["clone3", "openat2", "io_uring_setup", "memfd_secret"];

/// Calls that change something by its name, which wait for the guard where there is one; those of which some are let through and some
/// are refused stand with their arguments.
const CHANGING: [&str; 12] = [
    "rename",
    "renameat",
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

/// Calls that change or give a mode, by the place of it.
const MODES: [(&str, u32); 5] = [
    ("chmod", 1),
    ("fchmod", 1),
    ("fchmodat", 2),
    ("fchmodat2", 2),
    ("creat", 1),
];
/// By the place of the flags.
const OPENING: [(&str, u32); 2] = [("open", 1), ("openat", 2)];
/// By the place of the mode.
const MAKING: [(&str, u32); 2] = [("mknod", 1), ("mknodat", 2)];

const EPERM: u32 = 1;
const ENOSYS: u32 = 38;
const EAFNOSUPPORT: u32 = 97;
/// Set-user-id and set-group-id.
const SET_ID: u32 = 0o6000;
const FILE_KIND: u32 = 0o170_000;
/// Plain files (two ways to say it) and pipes.
const HARMLESS_KINDS: [u32; 3] = [0, 0o100_000, 0o010_000];
/// Character devices, block devices, sockets.
const OTHER_KINDS: [u32; 3] = [0o020_000, 0o060_000, 0o140_000];
const O_WRONLY: u32 = 1;
const O_RDWR: u32 = 2;
const O_TRUNC: u32 = 0o1000;
const O_CREAT: u32 = 0o100;
/// `O_TMPFILE` without `O_DIRECTORY`.
const O_TMPFILE: u32 = 0o20_000_000;
/// Flags by which opening changes or makes a file.
const CHANGING_FLAGS: [u32; 5] = [O_WRONLY, O_RDWR, O_CREAT, O_TRUNC, O_TMPFILE];
/// A flag of `renameat2` that leaves a device behind.
const WHITEOUT: u32 = 4;
/// Every `CLONE_NEW…` flag that `clone` takes.
const NAMESPACES: u32 = 0x7e02_0000;
/// Terminal requests that put words into another's mouth, as in a box.
const TERMINAL: [u32; 4] = [0x5412, 0x541c, 0x541d, 0x5423];
/// A command of `fcntl`: whoever opens a leased file waits for its holder, on the host, too.
const SET_LEASE: u32 = 1024;
const AF_UNIX: u32 = 1;
const AF_INET: u32 = 2;
const AF_INET6: u32 = 10;
/// What of a socket's type says the kind.
const SOCKET_KIND: u32 = 0xf;
const STREAM: u32 = 1;
const DATAGRAM: u32 = 2;
const RAW: u32 = 3;
const SEQPACKET: u32 = 5;
/// Raw, reliable datagrams, sequences, DCCP, packets.
const RARE_SOCKETS: [u32; 5] = [RAW, 4, SEQPACKET, 6, 10];

const ALLOW: &str = "SCMP_ACT_ALLOW";
const NOTIFY: &str = "SCMP_ACT_NOTIFY";
const REFUSE: &str = "SCMP_ACT_ERRNO";

/// `linux.seccomp` of a bundle; what is judged waits for who listens at `listener`.
pub(super) fn profile(
    holds: SeccompEnforcer,
    judged: ContainerGuardedCalls,
    listener: Option<&Path>,
) -> Value {
    let mut profile = match holds {
        SeccompEnforcer::Ours => beside_ours(judged),
        SeccompEnforcer::Runtime => whole(judged),
    };
    if let Some(map) = profile.as_object_mut() {
        map.insert("architectures".to_owned(), json!([architecture()]));
        map.extend(listener.map(|listener| ("listenerPath".to_owned(), json!(listener))));
    }
    profile
}

/// What the runtime needed and no tool may, and what the guard is asked for. Where our filter refuses a call, it is refused,
/// whatever is said here.
fn beside_ours(judged: ContainerGuardedCalls) -> Value {
    let mut rules = OciSeccompRules::default();
    rules.always(&OF_RUNTIMES.map(|(_, name)| name), refuse(EPERM));
    for flag in bits(NAMESPACES) {
        rules.when("clone", refuse(EPERM), &[has(0, flag)]);
    }
    for (name, mode) in MAKING {
        for kind in OTHER_KINDS {
            rules.when(name, refuse(EPERM), &[masked(mode, FILE_KIND, kind)]);
        }
    }
    // Compared over 64 bits: words that the kernel would cut short are other families, too.
    let between = (AF_INET + 1..AF_INET6).map(|family| compared(0, "EQ", family));
    let families = [compared(0, "LT", AF_INET), compared(0, "GT", AF_INET6)]
        .into_iter()
        .chain(between);
    let kinds =
        |kinds: &[u32]| -> Vec<Value> { kinds.iter().map(|kind| masked(1, SOCKET_KIND, *kind)).collect() };
    for arg in families.chain(kinds(&RARE_SOCKETS)) {
        rules.when("socket", refuse(EAFNOSUPPORT), &[arg]);
    }
    let families = [compared(0, "LT", AF_UNIX), compared(0, "GT", AF_UNIX)];
    for arg in families.into_iter().chain(kinds(&[DATAGRAM, RAW])) {
        rules.when("socketpair", refuse(EAFNOSUPPORT), &[arg]);
    }
    if judged != ContainerGuardedCalls::Nothing {
        rules.always(&CHANGING, action(NOTIFY));
        rules.always(&["renameat2", "execve", "execveat"], action(NOTIFY));
        rules.always(&MODES.map(|(name, _)| name), action(NOTIFY));
        for (name, mode) in MAKING {
            for kind in HARMLESS_KINDS {
                rules.when(name, action(NOTIFY), &[masked(mode, FILE_KIND, kind)]);
            }
        }
    }
    for (name, flags) in OPENING {
        match judged {
            ContainerGuardedCalls::Nothing => {}
            ContainerGuardedCalls::Changes => {
                for flag in CHANGING_FLAGS {
                    rules.when(name, action(NOTIFY), &[has(flags, flag)]);
                }
            }
            ContainerGuardedCalls::All => rules.always(&[name], action(NOTIFY)),
        }
    }
    json!({"defaultAction": ALLOW, "syscalls": rules.0})
}

/// Everything, for a runtime that does not pass our filter on.
fn whole(judged: ContainerGuardedCalls) -> Value {
    let waits = |name: &&str| {
        judged != ContainerGuardedCalls::Nothing && (CHANGING.contains(name) || name.starts_with("execve"))
    };
    let (asked, free): (Vec<&str>, Vec<&str>) = ALLOWED.split_ascii_whitespace().partition(waits);
    let mut rules = OciSeccompRules::default();
    rules.always(&free, action(ALLOW));
    rules.always(&UNKNOWN, refuse(ENOSYS));
    rules.always(&asked, action(NOTIFY));
    by_arguments(&mut rules);
    files(&mut rules, judged);
    json!({"defaultAction": REFUSE, "defaultErrnoRet": EPERM, "syscalls": rules.0})
}

/// Calls that open, make, or change the mode, without set-id bits and devices.
fn files(rules: &mut OciSeccompRules, judged: ContainerGuardedCalls) {
    let granted = || {
        action(if judged == ContainerGuardedCalls::Nothing {
            ALLOW
        } else {
            NOTIFY
        })
    };
    for (name, mode) in MODES {
        rules.when(name, granted(), &[without(mode, SET_ID)]);
    }
    rules.when("renameat2", granted(), &[without(4, WHITEOUT)]);
    for (name, flags) in OPENING {
        match judged {
            ContainerGuardedCalls::Nothing => {
                rules.when(name, action(ALLOW), &[without(flags, O_CREAT | O_TMPFILE)]);
                rules.when(name, action(ALLOW), &[without(flags + 1, SET_ID)]);
            }
            // No two of these fit the same call: which of two actions would count is not said anywhere. The guard refuses
            // set-id bits.
            ContainerGuardedCalls::Changes => {
                let mut before = 0;
                for flag in CHANGING_FLAGS {
                    rules.when(name, action(NOTIFY), &[masked(flags, before | flag, flag)]);
                    before |= flag;
                }
                rules.when(name, action(ALLOW), &[without(flags, before)]);
            }
            ContainerGuardedCalls::All => rules.always(&[name], action(NOTIFY)),
        }
    }
    for (name, mode) in MAKING {
        for kind in HARMLESS_KINDS {
            rules.when(name, granted(), &[masked(mode, FILE_KIND | SET_ID, kind)]);
        }
    }
}

/// Calls whose arguments say whether they are harmless.
fn by_arguments(rules: &mut OciSeccompRules) {
    for family in [AF_INET, AF_INET6] {
        for kind in [STREAM, DATAGRAM] {
            let args = [masked(0, u32::MAX, family), masked(1, SOCKET_KIND, kind)];
            rules.when("socket", action(ALLOW), &args);
        }
    }
    for kind in [STREAM, SEQPACKET] {
        let args = [masked(0, u32::MAX, AF_UNIX), masked(1, SOCKET_KIND, kind)];
        rules.when("socketpair", action(ALLOW), &args);
    }
    rules.when("clone", action(ALLOW), &[without(0, NAMESPACES)]);
    for persona in [0, u32::MAX] {
        rules.when("personality", action(ALLOW), &[masked(0, u32::MAX, persona)]);
    }
    for (name, refused) in [("ioctl", &TERMINAL[..]), ("fcntl", &[SET_LEASE])] {
        for (mask, value) in all_but(refused) {
            rules.when(name, action(ALLOW), &[masked(1, mask, value)]);
        }
    }
}

/// Masks and values one of which fits every word of 32 bits but `values`. The kernel looks at no more of such an argument, so that no
/// comparison may either.
fn all_but(values: &[u32]) -> Vec<(u32, u32)> {
    fn below(values: &[u32], mask: u32, value: u32, found: &mut Vec<(u32, u32)>) {
        let hit = values.iter().any(|one| one & mask == value);
        if !hit {
            found.push((mask, value));
        } else if mask != u32::MAX {
            let longer = mask >> 1 | 1 << 31;
            let bit = longer & !mask;
            below(values, longer, value, found);
            below(values, longer, value | bit, found);
        }
    }
    let mut found = Vec::new();
    below(values, 0, 0, &mut found);
    found
}

fn bits(mask: u32) -> impl Iterator<Item = u32> {
    (0..u32::BITS)
        .map(|bit| 1 << bit)
        .filter(move |bit| mask & bit != 0)
}

fn architecture() -> &'static str {
    if cfg!(target_arch = "aarch64") {
        "SCMP_ARCH_AARCH64"
    } else {
        "SCMP_ARCH_X86_64"
    }
}

/// The `syscalls` of a profile.
#[derive(Debug, Default)]
struct OciSeccompRules(Vec<Value>);

impl OciSeccompRules {
    /// Whatever the arguments.
    fn always(&mut self, names: &[&str], answer: OciSeccompAction) {
        if !names.is_empty() {
            self.add(json!({"names": names}), answer);
        }
    }

    /// Where all of `args` fit.
    fn when(&mut self, name: &str, answer: OciSeccompAction, args: &[Value]) {
        self.add(json!({"names": [name], "args": args}), answer);
    }

    fn add(&mut self, mut rule: Value, (action, errno): OciSeccompAction) {
        if let Some(rule) = rule.as_object_mut() {
            rule.insert("action".to_owned(), json!(action));
            rule.extend(errno.map(|errno| ("errnoRet".to_owned(), json!(errno))));
        }
        self.0.push(rule);
    }
}

/// An action, and the error of a refusal.
type OciSeccompAction = (&'static str, Option<u32>);

fn action(action: &'static str) -> OciSeccompAction {
    (action, None)
}

fn refuse(errno: u32) -> OciSeccompAction {
    (REFUSE, Some(errno))
}

fn masked(index: u32, mask: u32, value: u32) -> Value {
    json!({"index": index, "value": mask, "valueTwo": value, "op": "SCMP_CMP_MASKED_EQ"})
}

fn compared(index: u32, how: &str, value: u32) -> Value {
    json!({"index": index, "value": value, "op": format!("SCMP_CMP_{how}")})
}

/// This bit is set.
fn has(index: u32, bit: u32) -> Value {
    masked(index, bit, bit)
}

/// None of the mask's bits is set.
fn without(index: u32, mask: u32) -> Value {
    masked(index, mask, 0)
}

#[cfg(test)]
mod tests {
    use super::all_but;

    #[test]
    fn every_word_but_these_fits_exactly_one_mask() {
        for values in [&[1024][..], &super::TERMINAL, &[0, u32::MAX], &[2, 10]] {
            let all = all_but(values);
            let near = values
                .iter()
                .flat_map(|one| (0..32).map(move |bit| one ^ 1 << bit).chain([*one]));
            let others = (0..200_000_u32).map(|word| word.wrapping_mul(2_654_435_761));
            for word in near.chain(0..70_000).chain(others) {
                let fits = all.iter().filter(|(mask, value)| word & mask == *value).count();
                assert_eq!(fits, usize::from(!values.contains(&word)), "{word:x}");
            }
        }
    }
}
