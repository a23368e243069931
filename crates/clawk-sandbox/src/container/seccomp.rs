//! The system calls of a container (R34, ADR 0030). If the runtime starts the tool as a process of this kernel, clawk's own filter
//! of a strict sandbox applies. The runtime's own OCI list then only removes the calls that the runtime itself needed, and sends
//! calls to the guard. For other runtimes, the OCI list is a complete allow-list, so that calls unknown to its library are refused
//! too.

use std::fs;
use std::io;
use std::path::Path;
use std::sync::OnceLock;

use serde_json::{Value, json};

use super::guard::ContainerGuardedCalls;
use crate::child::cell::filter::around_runtime;

/// Which filter restricts the tool's system calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SeccompEnforcer {
    /// clawk's filter, which the runtime inherits, and the runtime's own list.
    Ours,
    /// Only the runtime's list.
    Runtime,
}

/// Calls that a runtime needs to create a container and that a tool must not make. clawk's filter allows them; the runtime's list
/// refuses them. A runtime's library ignores names that it does not know, so nothing newer than libseccomp 2.5 may be listed here.
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
    /// Writes clawk's filter to `file`, if the stage is to install it before it becomes the runtime.
    pub(super) fn pass_on(self, file: &Path) -> io::Result<bool> {
        match self {
            Self::Ours => fs::write(file, own_filter()?).map(|()| true),
            Self::Runtime => Ok(false),
        }
    }
}

/// clawk's filter, built once.
fn own_filter() -> io::Result<&'static [u8]> {
    static MADE: OnceLock<Vec<u8>> = OnceLock::new();
    if let Some(made) = MADE.get() {
        return Ok(made);
    }
    let made = around_runtime(&OF_RUNTIMES.map(|(call, _)| call), &[SYS_FCHMODAT2])?;
    Ok(MADE.get_or_init(|| made))
}

/// `fchmodat2`, Linux 6.6. A guard would need its name, which libraries may not know. So clawk's filter reports that the kernel
/// does not have it, and libc uses another call.
const SYS_FCHMODAT2: i64 = 452;

/// The calls that programs need. Not included: namespaces, mounts, keyrings, bpf, ptrace, io_uring, modules, clocks, file handles,
/// and seccomp filters of the tool, which would be asked first.
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

/// Programs use other calls if these do not exist, but fail if they are forbidden.
const UNKNOWN: [&str; 4] = ["clone3", "openat2", "io_uring_setup", "memfd_secret"];

/// Calls that change something by name. They wait for the guard if there is one. Calls that are allowed only with certain arguments
/// are in the lists below.
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

/// Calls that change or set a mode, with the position of the mode argument.
const MODES: [(&str, u32); 5] = [
    ("chmod", 1),
    ("fchmod", 1),
    ("fchmodat", 2),
    ("fchmodat2", 2),
    ("creat", 1),
];
/// Calls that open files, with the position of the flags argument.
const OPENING: [(&str, u32); 2] = [("open", 1), ("openat", 2)];
/// Calls that create nodes, with the position of the mode argument.
const MAKING: [(&str, u32); 2] = [("mknod", 1), ("mknodat", 2)];

const EPERM: u32 = 1;
const ENOSYS: u32 = 38;
const EAFNOSUPPORT: u32 = 97;
/// The set-user-id and set-group-id bits.
const SET_ID: u32 = 0o6000;
const FILE_KIND: u32 = 0o170_000;
/// Types that are allowed: plain files (two encodings) and pipes.
const HARMLESS_KINDS: [u32; 3] = [0, 0o100_000, 0o010_000];
/// Types that are refused: character devices, block devices, sockets.
const OTHER_KINDS: [u32; 3] = [0o020_000, 0o060_000, 0o140_000];
const O_WRONLY: u32 = 1;
const O_RDWR: u32 = 2;
const O_TRUNC: u32 = 0o1000;
const O_CREAT: u32 = 0o100;
/// `O_TMPFILE` without `O_DIRECTORY`.
const O_TMPFILE: u32 = 0o20_000_000;
/// Open flags that change or create a file.
const CHANGING_FLAGS: [u32; 5] = [O_WRONLY, O_RDWR, O_CREAT, O_TRUNC, O_TMPFILE];
/// The flag of `renameat2` that leaves a device node behind.
const WHITEOUT: u32 = 4;
/// All `CLONE_NEW…` flags of `clone`.
const NAMESPACES: u32 = 0x7e02_0000;
/// Dangerous terminal ioctls, the same as in a sandbox of level `process`.
const TERMINAL: [u32; 4] = [0x5412, 0x541c, 0x541d, 0x5423];
/// The command `F_SETLEASE` of `fcntl`: opening a leased file waits for the lease holder, also on the host.
const SET_LEASE: u32 = 1024;
const AF_UNIX: u32 = 1;
const AF_INET: u32 = 2;
const AF_INET6: u32 = 10;
/// The bits of a socket's type that give the kind.
const SOCKET_KIND: u32 = 0xf;
const STREAM: u32 = 1;
const DATAGRAM: u32 = 2;
const RAW: u32 = 3;
const SEQPACKET: u32 = 5;
/// Refused socket kinds: raw, reliable datagrams, sequenced packets, DCCP, packet.
const RARE_SOCKETS: [u32; 5] = [RAW, 4, SEQPACKET, 6, 10];

const ALLOW: &str = "SCMP_ACT_ALLOW";
const NOTIFY: &str = "SCMP_ACT_NOTIFY";
const REFUSE: &str = "SCMP_ACT_ERRNO";

/// Builds `linux.seccomp` of a bundle. Guarded calls wait for the process that listens at `listener`.
pub(super) fn seccomp_profile(
    holds: SeccompEnforcer,
    judged: ContainerGuardedCalls,
    listener: Option<&Path>,
) -> Value {
    let mut profile = match holds {
        SeccompEnforcer::Ours => beside_ours(judged),
        SeccompEnforcer::Runtime => full_profile(judged),
    };
    if let Some(map) = profile.as_object_mut() {
        map.insert("architectures".to_owned(), json!([oci_architecture()]));
        map.extend(listener.map(|listener| ("listenerPath".to_owned(), json!(listener))));
    }
    profile
}

/// The runtime's list if clawk's filter applies: refuses the calls that only the runtime needs, and sends calls to the guard. A
/// call that clawk's filter refuses stays refused.
fn beside_ours(judged: ContainerGuardedCalls) -> Value {
    let mut rules = OciSeccompRules::default();
    rules.add_unconditional(&OF_RUNTIMES.map(|(_, name)| name), refuse_with_errno(EPERM));
    for flag in mask_bits(NAMESPACES) {
        rules.add_conditional("clone", refuse_with_errno(EPERM), &[bit_set_condition(0, flag)]);
    }
    for (name, mode) in MAKING {
        for kind in OTHER_KINDS {
            rules.add_conditional(
                name,
                refuse_with_errno(EPERM),
                &[masked_condition(mode, FILE_KIND, kind)],
            );
        }
    }
    // Compared as 64 bits: values that the kernel would truncate are other families, too.
    let between = (AF_INET + 1..AF_INET6).map(|family| compare_condition(0, "EQ", family));
    let families = [
        compare_condition(0, "LT", AF_INET),
        compare_condition(0, "GT", AF_INET6),
    ]
    .into_iter()
    .chain(between);
    let kinds = |kinds: &[u32]| -> Vec<Value> {
        kinds
            .iter()
            .map(|kind| masked_condition(1, SOCKET_KIND, *kind))
            .collect()
    };
    for arg in families.chain(kinds(&RARE_SOCKETS)) {
        rules.add_conditional("socket", refuse_with_errno(EAFNOSUPPORT), &[arg]);
    }
    let families = [
        compare_condition(0, "LT", AF_UNIX),
        compare_condition(0, "GT", AF_UNIX),
    ];
    for arg in families.into_iter().chain(kinds(&[DATAGRAM, RAW])) {
        rules.add_conditional("socketpair", refuse_with_errno(EAFNOSUPPORT), &[arg]);
    }
    if judged != ContainerGuardedCalls::Nothing {
        rules.add_unconditional(&CHANGING, plain_action(NOTIFY));
        rules.add_unconditional(&["renameat2", "execve", "execveat"], plain_action(NOTIFY));
        rules.add_unconditional(&MODES.map(|(name, _)| name), plain_action(NOTIFY));
        for (name, mode) in MAKING {
            for kind in HARMLESS_KINDS {
                rules.add_conditional(
                    name,
                    plain_action(NOTIFY),
                    &[masked_condition(mode, FILE_KIND, kind)],
                );
            }
        }
    }
    for (name, flags) in OPENING {
        match judged {
            ContainerGuardedCalls::Nothing => {}
            ContainerGuardedCalls::Changes => {
                for flag in CHANGING_FLAGS {
                    rules.add_conditional(name, plain_action(NOTIFY), &[bit_set_condition(flags, flag)]);
                }
            }
            ContainerGuardedCalls::All => rules.add_unconditional(&[name], plain_action(NOTIFY)),
        }
    }
    json!({"defaultAction": ALLOW, "syscalls": rules.0})
}

/// The complete list, for a runtime that does not inherit clawk's filter.
fn full_profile(judged: ContainerGuardedCalls) -> Value {
    let waits = |name: &&str| {
        judged != ContainerGuardedCalls::Nothing && (CHANGING.contains(name) || name.starts_with("execve"))
    };
    let (asked, free): (Vec<&str>, Vec<&str>) = ALLOWED.split_ascii_whitespace().partition(waits);
    let mut rules = OciSeccompRules::default();
    rules.add_unconditional(&free, plain_action(ALLOW));
    rules.add_unconditional(&UNKNOWN, refuse_with_errno(ENOSYS));
    rules.add_unconditional(&asked, plain_action(NOTIFY));
    by_arguments(&mut rules);
    add_file_rules(&mut rules, judged);
    json!({"defaultAction": REFUSE, "defaultErrnoRet": EPERM, "syscalls": rules.0})
}

/// Rules for calls that open, create or change the mode, without set-id bits and devices.
fn add_file_rules(rules: &mut OciSeccompRules, judged: ContainerGuardedCalls) {
    let granted = || {
        plain_action(if judged == ContainerGuardedCalls::Nothing {
            ALLOW
        } else {
            NOTIFY
        })
    };
    for (name, mode) in MODES {
        rules.add_conditional(name, granted(), &[bits_clear_condition(mode, SET_ID)]);
    }
    rules.add_conditional("renameat2", granted(), &[bits_clear_condition(4, WHITEOUT)]);
    for (name, flags) in OPENING {
        match judged {
            ContainerGuardedCalls::Nothing => {
                rules.add_conditional(
                    name,
                    plain_action(ALLOW),
                    &[bits_clear_condition(flags, O_CREAT | O_TMPFILE)],
                );
                rules.add_conditional(
                    name,
                    plain_action(ALLOW),
                    &[bits_clear_condition(flags + 1, SET_ID)],
                );
            }
            // No two of these rules match the same call, because it is not specified which one would apply. The guard refuses
            // set-id bits.
            ContainerGuardedCalls::Changes => {
                let mut before = 0;
                for flag in CHANGING_FLAGS {
                    rules.add_conditional(
                        name,
                        plain_action(NOTIFY),
                        &[masked_condition(flags, before | flag, flag)],
                    );
                    before |= flag;
                }
                rules.add_conditional(name, plain_action(ALLOW), &[bits_clear_condition(flags, before)]);
            }
            ContainerGuardedCalls::All => rules.add_unconditional(&[name], plain_action(NOTIFY)),
        }
    }
    for (name, mode) in MAKING {
        for kind in HARMLESS_KINDS {
            rules.add_conditional(
                name,
                granted(),
                &[masked_condition(mode, FILE_KIND | SET_ID, kind)],
            );
        }
    }
}

/// Rules for calls that are harmless only with certain arguments.
fn by_arguments(rules: &mut OciSeccompRules) {
    for family in [AF_INET, AF_INET6] {
        for kind in [STREAM, DATAGRAM] {
            let args = [
                masked_condition(0, u32::MAX, family),
                masked_condition(1, SOCKET_KIND, kind),
            ];
            rules.add_conditional("socket", plain_action(ALLOW), &args);
        }
    }
    for kind in [STREAM, SEQPACKET] {
        let args = [
            masked_condition(0, u32::MAX, AF_UNIX),
            masked_condition(1, SOCKET_KIND, kind),
        ];
        rules.add_conditional("socketpair", plain_action(ALLOW), &args);
    }
    rules.add_conditional(
        "clone",
        plain_action(ALLOW),
        &[bits_clear_condition(0, NAMESPACES)],
    );
    for persona in [0, u32::MAX] {
        rules.add_conditional(
            "personality",
            plain_action(ALLOW),
            &[masked_condition(0, u32::MAX, persona)],
        );
    }
    for (name, refused) in [("ioctl", &TERMINAL[..]), ("fcntl", &[SET_LEASE])] {
        for (mask, value) in all_but(refused) {
            rules.add_conditional(name, plain_action(ALLOW), &[masked_condition(1, mask, value)]);
        }
    }
}

/// Masks and values such that every 32-bit word except `values` matches one of them. The kernel reads only 32 bits of such an
/// argument, so a comparison must not use more.
fn all_but(values: &[u32]) -> Vec<(u32, u32)> {
    fn collect_masked_values(values: &[u32], mask: u32, value: u32, found: &mut Vec<(u32, u32)>) {
        let hit = values.iter().any(|one| one & mask == value);
        if !hit {
            found.push((mask, value));
        } else if mask != u32::MAX {
            let longer = mask >> 1 | 1 << 31;
            let bit = longer & !mask;
            collect_masked_values(values, longer, value, found);
            collect_masked_values(values, longer, value | bit, found);
        }
    }
    let mut found = Vec::new();
    collect_masked_values(values, 0, 0, &mut found);
    found
}

fn mask_bits(mask: u32) -> impl Iterator<Item = u32> {
    (0..u32::BITS)
        .map(|bit| 1 << bit)
        .filter(move |bit| mask & bit != 0)
}

fn oci_architecture() -> &'static str {
    if cfg!(target_arch = "aarch64") {
        "SCMP_ARCH_AARCH64"
    } else {
        "SCMP_ARCH_X86_64"
    }
}

/// The `syscalls` list of a profile.
#[derive(Debug, Default)]
struct OciSeccompRules(Vec<Value>);

impl OciSeccompRules {
    /// Adds a rule that ignores the arguments.
    fn add_unconditional(&mut self, names: &[&str], answer: OciSeccompAction) {
        if !names.is_empty() {
            self.add(json!({"names": names}), answer);
        }
    }

    /// Adds a rule that applies if all of `args` match.
    fn add_conditional(&mut self, name: &str, answer: OciSeccompAction, args: &[Value]) {
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

/// An action, and the error number of a refusal.
type OciSeccompAction = (&'static str, Option<u32>);

fn plain_action(action: &'static str) -> OciSeccompAction {
    (action, None)
}

fn refuse_with_errno(errno: u32) -> OciSeccompAction {
    (REFUSE, Some(errno))
}

fn masked_condition(index: u32, mask: u32, value: u32) -> Value {
    json!({"index": index, "value": mask, "valueTwo": value, "op": "SCMP_CMP_MASKED_EQ"})
}

fn compare_condition(index: u32, how: &str, value: u32) -> Value {
    json!({"index": index, "value": value, "op": format!("SCMP_CMP_{how}")})
}

/// A condition: this bit is set.
fn bit_set_condition(index: u32, bit: u32) -> Value {
    masked_condition(index, bit, bit)
}

/// A condition: none of the mask's bits is set.
fn bits_clear_condition(index: u32, mask: u32) -> Value {
    masked_condition(index, mask, 0)
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
