//! The seccomp filter: which system calls a tool may make (R34). There are two lists: a deny-list that always applies, and an
//! allow-list ([`super::allowed`]) unless the Sandbox's shell is `full`. Calls of another architecture's table end the process
//! (seccompiler's own first check); calls of x32 are refused. One BPF program contains all of it ([`tree`]).

mod tree;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::sync::OnceLock;

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen as Len, SeccompCmpOp as Op, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch,
};

use rustix::process::WaitOptions;

use super::order::GuardedCalls;
use super::{allowed, guard};
use crate::child::sys;

/// The flags of `clone` that create a namespace.
const NAMESPACES: u64 = 0x7e02_0000;
/// The set-user-id and set-group-id bits.
const SET_ID: [u64; 2] = [0o4000, 0o2000];
const FILE_KIND: u64 = 0o170_000;
/// The types that `mknod` must not create: character device, block device, socket.
const KINDS: [u64; 3] = [0o020_000, 0o060_000, 0o140_000];
/// Dangerous terminal ioctls: TIOCSTI and TIOCLINUX inject input; TIOCCONS takes over the console; TIOCSETD changes the line
/// discipline, which loads another driver.
const TERMINAL: [u64; 4] = [0x5412, 0x541c, 0x541d, 0x5423];

/// The flag of `renameat2` that leaves a device node in the old place.
const WHITEOUT: u64 = 4;
/// The command `F_SETLEASE` of `fcntl`.
const SET_LEASE: u64 = 1024;

/// Calls that are always refused: kernel, devices, other processes' memory, namespaces, mounts, keys, file handles, clocks.
const NEVER: &[i64] = &[
    // The kernel itself.
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
    libc::SYS_kexec_load,
    libc::SYS_kexec_file_load,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_reboot,
    libc::SYS_syslog,
    libc::SYS_acct,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_quotactl,
    libc::SYS_quotactl_fd,
    libc::SYS_vhangup,
    libc::SYS_lookup_dcookie,
    // Other processes' memory, registers and descriptors.
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_process_madvise,
    libc::SYS_kcmp,
    libc::SYS_pidfd_getfd,
    // Namespaces, mounts, roots.
    libc::SYS_unshare,
    libc::SYS_setns,
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_mount_setattr,
    libc::SYS_open_tree,
    SYS_OPEN_TREE_ATTR,
    libc::SYS_move_mount,
    libc::SYS_fsopen,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fspick,
    libc::SYS_sethostname,
    libc::SYS_setdomainname,
    // Files by handle, which bypass paths; fanotify sees other processes' files.
    libc::SYS_name_to_handle_at,
    libc::SYS_open_by_handle_at,
    libc::SYS_fanotify_init,
    libc::SYS_fanotify_mark,
    // Keys.
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_keyctl,
    // The machine's clocks.
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_adjtimex,
    libc::SYS_clock_adjtime,
    // A filter of the tool could answer calls before clawk's filter does.
    libc::SYS_seccomp,
    // Memory that not even the kernel can read.
    libc::SYS_memfd_secret,
    // Other processes' pages.
    libc::SYS_move_pages,
    libc::SYS_migrate_pages,
];

/// Calls that fail as if the kernel did not have them. Programs then use older calls, which can be checked.
const UNKNOWN: &[i64] = &[
    // Their arguments are in memory, which a filter can't read.
    libc::SYS_clone3,
    libc::SYS_openat2,
    // io_uring makes calls that no filter sees.
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
];

#[cfg(target_arch = "x86_64")]
const NEVER_HERE: &[i64] = &[
    libc::SYS_iopl,
    libc::SYS_ioperm,
    libc::SYS_modify_ldt,
    libc::SYS_uselib,
    libc::SYS_ustat,
    libc::SYS_sysfs,
    libc::SYS__sysctl,
    libc::SYS_nfsservctl,
];
#[cfg(not(target_arch = "x86_64"))]
const NEVER_HERE: &[i64] = &[libc::SYS_nfsservctl];

type SyscallRules = BTreeMap<i64, Vec<SeccompRule>>;

/// The filter of a sandbox.
pub(super) struct Filter {
    pub(super) program: BpfProgram,
    /// Whether some calls wait for the guard's answer.
    pub(super) notifies: bool,
}

/// The filters that were built so far, one entry per kind of sandbox, indexed by [`kind_of`].
static MADE: [OnceLock<Filter>; 12] = [const { OnceLock::new() }; 12];

fn kind_of(strict: bool, own: bool, judged: GuardedCalls) -> usize {
    let guard = match judged {
        GuardedCalls::Nothing => 0,
        GuardedCalls::All => 1,
        GuardedCalls::Changes => 2,
    };
    usize::from(strict) | usize::from(own) << 1 | guard << 2
}

/// The filter for this kind of sandbox. Each process builds it once; sandboxes forked from it later share it.
pub(super) fn shared_filter(strict: bool, own: bool, judged: GuardedCalls) -> io::Result<&'static Filter> {
    let place = MADE
        .get(kind_of(strict, own, judged))
        .ok_or_else(|| io::Error::other("seccomp: no such kind"))?;
    if let Some(made) = place.get() {
        return Ok(made);
    }
    let program = SyscallLists::for_box_kind(strict, own, judged)?.build_program()?;
    Ok(place.get_or_init(|| Filter {
        program,
        notifies: judged != GuardedCalls::Nothing,
    }))
}

/// The filter for an OCI runtime, as bytes for [`install_filter_bytes`]. It is that of a strict sandbox, but also allows what is needed to
/// create a container: `calls`, namespaces by `clone`, devices, and sockets of any family. The runtime's own list must refuse these
/// to the tool. `unknown` are calls that fail as if the kernel did not have them.
pub(crate) fn around_runtime(calls: &[i64], unknown: &[i64]) -> io::Result<Vec<u8>> {
    let mut lists = SyscallLists::without_makers(true, false, GuardedCalls::Nothing)?;
    for call in calls {
        lists.never.remove(call);
        lists.allowed.get_or_insert_default().insert(*call);
    }
    for call in unknown {
        lists.never.remove(call);
        lists.unknown.insert(*call);
    }
    Ok(tree::program_bytes(&lists.build_program()?))
}

/// Installs such a filter for this process and everything that it starts or executes.
pub(crate) fn install_filter_bytes(bytes: &[u8]) -> io::Result<()> {
    sys::install_filter(&tree::program_of(bytes)?, false).map(drop)
}

/// The most common kinds of sandboxes.
const COMMON: [(bool, bool, GuardedCalls); 4] = [
    (true, false, GuardedCalls::Nothing),
    (true, false, GuardedCalls::All),
    (true, false, GuardedCalls::Changes),
    (true, true, GuardedCalls::Nothing),
];

/// Builds the most common filters in advance. Only for a process with one thread. A child process builds them and then ends.
/// Otherwise the memory used for building would stay in the fork server, and every sandbox would get a copy.
///
/// # Errors
/// No child process can be started. Then each sandbox builds its own filter.
pub(super) fn make_ready() -> io::Result<()> {
    let (reader, writer) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
    let Some(maker) = sys::fork_into(0)? else {
        sys::exit_now(i32::from(tell_common(writer.into()).is_err()));
    };
    drop(writer);
    let made = hear_common(reader.into());
    let _ = rustix::process::waitpid(Some(maker), WaitOptions::empty()); // silent-ok: where children are forgotten, this waits and fails
    made
}

/// Writes the programs in order, each after its length in bytes.
fn tell_common(mut to: File) -> io::Result<()> {
    for (strict, own, judged) in COMMON {
        let bytes = tree::program_bytes(&shared_filter(strict, own, judged)?.program);
        let length = u32::try_from(bytes.len()).map_err(io::Error::other)?;
        to.write_all(&length.to_ne_bytes())?;
        to.write_all(&bytes)?;
    }
    Ok(())
}

fn hear_common(mut from: File) -> io::Result<()> {
    for (strict, own, judged) in COMMON {
        let mut length = [0_u8; 4];
        from.read_exact(&mut length)?;
        let length = usize::try_from(u32::from_ne_bytes(length)).map_err(io::Error::other)?;
        if length > MAX_BYTES {
            return Err(io::Error::other("seccomp: no such filter"));
        }
        let mut bytes = vec![0_u8; length];
        from.read_exact(&mut bytes)?;
        let program = tree::program_of(&bytes)?;
        if let Some(place) = MADE.get(kind_of(strict, own, judged)) {
            place.get_or_init(|| Filter {
                program,
                notifies: judged != GuardedCalls::Nothing,
            });
        }
    }
    Ok(())
}

/// The maximum size of a program that the kernel accepts, in bytes.
const MAX_BYTES: usize = 32 << 10;

/// Call numbers from here on belong to the x32 table, or are invalid.
const FOREIGN: u32 = 0x4000_0000;

fn errno_action(number: i32) -> u32 {
    SeccompAction::Errno(number.unsigned_abs()).into()
}

fn allow_action() -> u32 {
    SeccompAction::Allow.into()
}

fn backend_error(error: seccompiler::BackendError) -> io::Error {
    io::Error::other(format!("seccomp: {error}"))
}

/// The rules for system calls, in order of precedence.
struct SyscallLists {
    /// Refused: always if there are no rules, otherwise if a rule matches.
    never: SyscallRules,
    /// Sockets of other families and kinds: refused if a rule matches.
    family: SyscallRules,
    /// Calls that fail as if the kernel did not have them.
    unknown: BTreeSet<i64>,
    /// The allow-list; `None`: no allow-list.
    allowed: Option<BTreeSet<i64>>,
    /// Calls that the guard answers: always if there are no rules, otherwise if a rule matches.
    guarded: SyscallRules,
}

impl SyscallLists {
    /// The rules of a sandbox. `own`: for clawk's own file tools, which may use `openat2`.
    fn for_box_kind(strict: bool, own: bool, judged: GuardedCalls) -> io::Result<Self> {
        let mut lists = Self::without_makers(strict, own, judged)?;
        add_creation_rules(&mut lists.never).map_err(backend_error)?;
        add_socket_rules(&mut lists.family).map_err(backend_error)?;
        Ok(lists)
    }

    /// The same rules without those for creating namespaces, devices and sockets.
    fn without_makers(strict: bool, own: bool, judged: GuardedCalls) -> io::Result<Self> {
        let mut unknown: BTreeSet<i64> = UNKNOWN.iter().copied().collect();
        if own {
            unknown.remove(&libc::SYS_openat2);
        }
        let mut never: SyscallRules = NEVER
            .iter()
            .chain(NEVER_HERE)
            .map(|call| (*call, Vec::new()))
            .collect();
        add_argument_rules(&mut never).map_err(backend_error)?;
        let allowed = strict.then(|| {
            let mut calls: BTreeSet<i64> = allowed::allowed_calls().collect();
            if own {
                calls.insert(libc::SYS_openat2);
            }
            calls
        });
        let guarded = match judged {
            GuardedCalls::Nothing => SyscallRules::new(),
            GuardedCalls::All => guard::guarded_call_rules(false).map_err(backend_error)?,
            GuardedCalls::Changes => guard::guarded_call_rules(true).map_err(backend_error)?,
        };
        Ok(Self {
            never,
            family: SyscallRules::new(),
            unknown,
            allowed,
            guarded,
        })
    }

    /// All rules for one call as a program.
    fn leaf_for_call(&self, call: i64) -> tree::FilterLeaf {
        let mut leaf = tree::FilterLeaf::new();
        for (rules, refusal) in [(&self.never, libc::EPERM), (&self.family, libc::EAFNOSUPPORT)] {
            let Some(rules) = rules.get(&call) else { continue };
            if rules.is_empty() {
                leaf.push(tree::return_instruction(errno_action(refusal)));
                return leaf;
            }
            for rule in rules {
                // If a rule does not match, it jumps behind the answer.
                leaf.extend(BpfProgram::from(rule.clone()));
                leaf.push(tree::return_instruction(errno_action(refusal)));
            }
        }
        let verdict = self.unconditional_action(call);
        // If a call is refused anyway, the guard need not be asked.
        if let Some(rules) = self.guarded.get(&call).filter(|_| verdict == allow_action()) {
            if rules.is_empty() {
                leaf.push(tree::return_instruction(guard::USER_NOTIF));
                return leaf;
            }
            for rule in rules {
                leaf.extend(BpfProgram::from(rule.clone()));
                leaf.push(tree::return_instruction(guard::USER_NOTIF));
            }
        }
        leaf.push(tree::return_instruction(verdict));
        leaf
    }

    /// The answer that does not depend on the arguments, before the guard is asked.
    fn unconditional_action(&self, call: i64) -> u32 {
        if self.unknown.contains(&call) {
            errno_action(libc::ENOSYS)
        } else if self.allowed.as_ref().is_some_and(|calls| !calls.contains(&call)) {
            errno_action(libc::EPERM)
        } else {
            allow_action()
        }
    }

    fn build_program(&self) -> io::Result<BpfProgram> {
        let named = self.never.keys().chain(self.family.keys());
        let named = named.chain(&self.unknown).chain(self.allowed.iter().flatten());
        let most = named
            .chain(self.guarded.keys())
            .max()
            .copied()
            .unwrap_or_default();
        // All calls after the last named one have the same rules.
        let mut runs: Vec<(u32, tree::FilterLeaf)> = Vec::new();
        for call in 0..=most.saturating_add(1) {
            let leaf = self.leaf_for_call(call);
            if runs.last().is_none_or(|(_, before)| *before != leaf) {
                runs.push((u32::try_from(call).map_err(io::Error::other)?, leaf));
            }
        }
        runs.push((
            FOREIGN,
            vec![tree::return_instruction(errno_action(libc::ENOSYS))],
        ));
        tree::build_program(architecture_check()?, &runs)
    }
}

/// Calls of another architecture end the process. This is seccompiler's check without its following instructions.
fn architecture_check() -> io::Result<BpfProgram> {
    let arch = TargetArch::try_from(std::env::consts::ARCH).map_err(backend_error)?;
    let nothing = SeccompFilter::new(
        SyscallRules::new(),
        SeccompAction::Allow,
        SeccompAction::KillProcess,
        arch,
    );
    let mut program = nothing.and_then(BpfProgram::try_from).map_err(backend_error)?;
    match program.pop() {
        Some(end) if end == tree::return_instruction(allow_action()) => Ok(program),
        Some(_) | None => Err(io::Error::other("seccomp: no check of the architecture")),
    }
}

type FilterResult<T> = Result<T, seccompiler::BackendError>;

fn argument_condition(argument: u8, length: Len, op: Op, value: u64) -> FilterResult<SeccompCondition> {
    SeccompCondition::new(argument, length, op, value)
}

fn rule_from_conditions(conditions: Vec<SeccompCondition>) -> FilterResult<SeccompRule> {
    SeccompRule::new(conditions)
}

/// Calls that are refused only with certain arguments.
fn add_argument_rules(rules: &mut SyscallRules) -> FilterResult<()> {
    let mut add = |call: i64, conditions: Vec<SeccompCondition>| -> FilterResult<()> {
        rules
            .entry(call)
            .or_default()
            .push(rule_from_conditions(conditions)?);
        Ok(())
    };
    let bits = |argument: u8, mask: u64| argument_condition(argument, Len::Dword, Op::MaskedEq(mask), mask);
    for id in SET_ID {
        for (call, mode) in [
            (libc::SYS_fchmod, 1),
            (libc::SYS_fchmodat, 2),
            (SYS_FCHMODAT2, 2),
            (libc::SYS_mknodat, 2),
        ] {
            add(call, vec![bits(mode, id)?])?;
        }
        // The mode matters only if a file is created.
        for made in [u64::from(libc::O_CREAT.unsigned_abs()), 0o20_000_000] {
            add(libc::SYS_openat, vec![bits(2, made)?, bits(3, id)?])?;
            #[cfg(target_arch = "x86_64")]
            add(libc::SYS_open, vec![bits(1, made)?, bits(2, id)?])?;
        }
        #[cfg(target_arch = "x86_64")]
        for (call, mode) in [(libc::SYS_chmod, 1), (libc::SYS_creat, 1), (libc::SYS_mknod, 1)] {
            add(call, vec![bits(mode, id)?])?;
        }
    }
    // It creates a device node without needing a privilege.
    add(libc::SYS_renameat2, vec![bits(4, WHITEOUT)?])?;
    // Opening a leased file waits for the lease holder, also on the host.
    add(
        libc::SYS_fcntl,
        vec![argument_condition(1, Len::Dword, Op::Eq, SET_LEASE)?],
    )?;
    for request in TERMINAL {
        add(
            libc::SYS_ioctl,
            vec![argument_condition(1, Len::Dword, Op::Eq, request)?],
        )?;
    }
    // Another personality could allow executing data or a fixed address space. Reading the present personality is allowed.
    add(
        libc::SYS_personality,
        vec![
            argument_condition(0, Len::Dword, Op::Ne, 0)?,
            argument_condition(0, Len::Dword, Op::Ne, 0xffff_ffff)?,
        ],
    )
}

/// Rules for creating namespaces and devices.
fn add_creation_rules(rules: &mut SyscallRules) -> FilterResult<()> {
    let mut add = |call: i64, condition: SeccompCondition| -> FilterResult<()> {
        rules
            .entry(call)
            .or_default()
            .push(rule_from_conditions(vec![condition])?);
        Ok(())
    };
    let mut single = NAMESPACES;
    while single != 0 {
        let bit = single & single.wrapping_neg();
        add(
            libc::SYS_clone,
            argument_condition(0, Len::Dword, Op::MaskedEq(bit), bit)?,
        )?;
        single &= !bit;
    }
    for kind in KINDS {
        let of = |argument: u8| argument_condition(argument, Len::Dword, Op::MaskedEq(FILE_KIND), kind);
        add(libc::SYS_mknodat, of(2)?)?;
        #[cfg(target_arch = "x86_64")]
        add(libc::SYS_mknod, of(1)?)?;
    }
    Ok(())
}

/// The old packet socket type: libc calls it obsolete, but the kernel still accepts it.
const SOCK_PACKET: i32 = 10;

/// `open_tree_attr`, Linux 6.15; the same number on every architecture.
const SYS_OPEN_TREE_ATTR: i64 = 467;

/// `fchmodat2`, Linux 6.6; the same number on every architecture.
const SYS_FCHMODAT2: i64 = 452;

/// Allows IPv4 and IPv6, stream and datagram, and pairs of local stream sockets. Socket files must not be reachable. A datagram
/// pair could send to a socket file by name, so it is refused as well.
fn add_socket_rules(rules: &mut SyscallRules) -> FilterResult<()> {
    let kind =
        |wanted: i32| argument_condition(1, Len::Dword, Op::MaskedEq(0xf), u64::from(wanted.unsigned_abs()));
    let not = |wanted: i32| argument_condition(0, Len::Dword, Op::Ne, u64::from(wanted.unsigned_abs()));
    rules
        .entry(libc::SYS_socket)
        .or_default()
        .push(rule_from_conditions(vec![
            not(libc::AF_INET)?,
            not(libc::AF_INET6)?,
        ])?);
    for raw in [
        libc::SOCK_RAW,
        libc::SOCK_RDM,
        libc::SOCK_SEQPACKET,
        libc::SOCK_DCCP,
        SOCK_PACKET,
    ] {
        rules
            .entry(libc::SYS_socket)
            .or_default()
            .push(rule_from_conditions(vec![kind(raw)?])?);
    }
    let pairs = rules.entry(libc::SYS_socketpair).or_default();
    pairs.push(rule_from_conditions(vec![not(libc::AF_UNIX)?])?);
    pairs.push(rule_from_conditions(vec![kind(libc::SOCK_DGRAM)?])?);
    pairs.push(rule_from_conditions(vec![kind(libc::SOCK_RAW)?])?);
    Ok(())
}

#[cfg(test)]
#[path = "filter/tests.rs"]
mod tests;
