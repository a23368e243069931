//! System calls without a safe wrapper. All `unsafe` code of the crate is here.
#![expect(
    unsafe_code,
    reason = "kernel interfaces without a safe wrapper; each use says why it is sound"
)]

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::process::Pid;
use rustix::thread::{CapabilitySet, CapabilitySets};
use seccompiler::sock_filter;

/// `MOUNT_ATTR_*` of linux/mount.h.
pub(in crate::child) const ATTR_RDONLY: u64 = 0x1;
pub(in crate::child) const ATTR_NOSUID: u64 = 0x2;
pub(in crate::child) const ATTR_NODEV: u64 = 0x4;
pub(in crate::child) const ATTR_NOEXEC: u64 = 0x8;
const ATTR_IDMAP: u64 = 0x0010_0000;

/// `struct mount_attr` of linux/mount.h.
#[repr(C)]
#[derive(Default)]
struct MountAttr {
    set: u64,
    clear: u64,
    propagation: u64,
    userns: u64,
}

fn syscall_result<T>(result: i64, done: impl FnOnce(i64) -> T) -> io::Result<T> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(done(result))
    }
}

/// Forks a child in new namespaces. Returns `None` in the child. Call it only while the process has one thread: the child continues
/// with a copy of the whole memory, as after `fork`.
pub(crate) fn fork_into(namespaces: i32) -> io::Result<Option<Pid>> {
    let flags = i64::from(namespaces) | i64::from(libc::SIGCHLD);
    // SAFETY: without CLONE_VM and without a stack, clone(2) is fork(2) with namespaces. The process has one thread (see above), so
    // no lock can be held by a thread that the child lacks.
    let pid = unsafe { libc::syscall(libc::SYS_clone, flags, 0_i64, 0_i64, 0_i64, 0_i64) };
    syscall_result(pid, |pid| i32::try_from(pid).ok().and_then(Pid::from_raw))
}

fn mount_setattr(
    mount: BorrowedFd<'_>,
    path: &std::ffi::CStr,
    recursive: bool,
    attr: &MountAttr,
) -> io::Result<()> {
    let deep = if recursive { libc::AT_RECURSIVE } else { 0 };
    let flags = libc::AT_EMPTY_PATH | deep;
    // SAFETY: `attr` lives through the call and its size is passed; the path ends in a null byte; the descriptor is open.
    let done = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_raw_fd(),
            path.as_ptr(),
            flags,
            std::ptr::from_ref(attr),
            size_of::<MountAttr>(),
        )
    };
    syscall_result(done, drop)
}

/// Changes a mount's attributes, and those of the mounts below it.
pub(in crate::child) fn set_attributes(
    mount: impl AsFd,
    recursive: bool,
    set: u64,
    clear: u64,
) -> io::Result<()> {
    let attr = MountAttr {
        set,
        clear,
        ..MountAttr::default()
    };
    mount_setattr(mount.as_fd(), c"", recursive, &attr)
}

/// Gives a detached mount the id mapping of a user namespace.
pub(in crate::child) fn set_idmap(mount: impl AsFd, recursive: bool, userns: &OwnedFd) -> io::Result<()> {
    let attr = MountAttr {
        set: ATTR_IDMAP,
        userns: u64::try_from(userns.as_raw_fd()).unwrap_or(u64::MAX),
        ..MountAttr::default()
    };
    mount_setattr(mount.as_fd(), c"", recursive, &attr)
}

/// Makes all mounts private: mount events neither leave this namespace nor enter it.
pub(in crate::child) fn make_all_private() -> io::Result<()> {
    let attr = MountAttr {
        propagation: libc::MS_PRIVATE,
        ..MountAttr::default()
    };
    mount_setattr(rustix::fs::CWD, c"/", true, &attr)
}

/// Installs a filter for this thread and everything that it starts; no_new_privs must be set. With `listener`, returns the
/// descriptor on which notifications arrive.
pub(in crate::child) fn install_filter(
    program: &[sock_filter],
    listener: bool,
) -> io::Result<Option<OwnedFd>> {
    let length = u16::try_from(program.len())
        .map_err(|_long| io::Error::other("the system-call filter is too long"))?;
    let header = libc::sock_fprog {
        len: length,
        filter: program.as_ptr().cast_mut().cast(),
    };
    // Only fatal signals interrupt the wait: a signal to the tool does not cancel a call that is being answered.
    let flags = match listener {
        true => libc::SECCOMP_FILTER_FLAG_NEW_LISTENER | libc::SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV,
        false => 0,
    };
    // SAFETY: `header` points to `length` instructions, which the kernel copies and checks; seccompiler's `sock_filter` has
    // the kernel's layout (repr(C): u16, u8, u8, u32).
    let done = unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            flags,
            std::ptr::from_ref(&header),
        )
    };
    let fd = syscall_result(done, |fd| RawFd::try_from(fd).unwrap_or(-1))?;
    // SAFETY: with the listener's flag, the result is a new descriptor that nobody else owns.
    Ok((listener && fd >= 0).then(|| unsafe { OwnedFd::from_raw_fd(fd) }))
}

/// Closes every descriptor with number `first` or higher.
pub(in crate::child) fn close_from(first: u32) -> io::Result<()> {
    // SAFETY: the caller keeps no owner of a descriptor in the range that it would use or close later: it executes another program
    // or has opened nothing yet.
    let done = unsafe { libc::syscall(libc::SYS_close_range, first, u32::MAX, 0_u32) };
    syscall_result(done, drop)
}

/// Closes every descriptor except this one and the three standard streams.
pub(in crate::child) fn keep_only(fd: OwnedFd) -> io::Result<OwnedFd> {
    const KEPT: RawFd = 3;
    if fd.as_raw_fd() != KEPT {
        move_to(&fd, KEPT)?;
    }
    std::mem::forget(fd); // it is closed below, with everything else
    close_from(4)?;
    // SAFETY: number 3 is open, see above, and whoever owned it before is never used again: this process executes or ends.
    Ok(unsafe { OwnedFd::from_raw_fd(KEPT) })
}

/// Activates the loopback interface of this network namespace.
pub(in crate::child) fn loopback_up() -> io::Result<()> {
    let socket = rustix::net::socket(
        rustix::net::AddressFamily::INET,
        rustix::net::SocketType::DGRAM,
        None,
    )?;
    // SAFETY: all zero bytes are a valid `ifreq`.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(b"lo") {
        *to = libc::c_char::try_from(*from).unwrap_or(0);
    }
    request.ifr_ifru.ifru_flags = i16::try_from(libc::IFF_UP | libc::IFF_RUNNING).unwrap_or(0);
    // SAFETY: the request is a valid `ifreq` that lives through the call.
    let done = unsafe {
        libc::ioctl(
            socket.as_raw_fd(),
            libc::SIOCSIFFLAGS,
            std::ptr::from_ref(&request),
        )
    };
    syscall_result(i64::from(done), drop)
}

/// Makes `stdin` the standard input (descriptor 0).
pub(in crate::child) fn stdin_is(stdin: impl AsFd) -> io::Result<()> {
    Ok(rustix::stdio::dup2_stdin(stdin)?)
}

/// Ends a forked process at once, without running any cleanup of the original.
pub(crate) fn exit_now(code: i32) -> ! {
    // SAFETY: _exit(2) takes any code and does not return.
    unsafe { libc::_exit(code) }
}

/// Writes to a descriptor by number, for the last message of a process that is about to end.
pub(in crate::child) fn write_raw(fd: i32, bytes: &[u8]) {
    // SAFETY: the buffer is valid for its length; a closed descriptor is an error that changes nothing.
    let _ = unsafe { libc::write(fd, bytes.as_ptr().cast(), bytes.len()) }; // silent-ok: nobody is left to tell
}

/// Moves a descriptor to a number, with close-on-exec.
pub(in crate::child) fn move_to(fd: &OwnedFd, number: i32) -> io::Result<()> {
    // SAFETY: the caller owns nothing at `number` that it uses later: it is about to execute another program.
    let done = unsafe { libc::dup3(fd.as_raw_fd(), number, libc::O_CLOEXEC) };
    syscall_result(i64::from(done), drop)
}

/// Sends a signal to every process that this one may signal: for the first process of a namespace, all others in it.
pub(in crate::child) fn kill_all(signal: i32) {
    // SAFETY: kill(2) takes any numbers.
    let _ = unsafe { libc::kill(-1, signal) }; // silent-ok: nobody else is there
}

/// Borrows the descriptor with this number.
pub(in crate::child) fn borrow_fd(number: i32) -> BorrowedFd<'static> {
    // SAFETY: the caller has put an open descriptor at this number and closes it only by executing another program.
    unsafe { BorrowedFd::borrow_raw(number) }
}

/// Takes ownership of the socket with this number.
pub(in crate::child) fn take_socket(number: i32) -> std::os::unix::net::UnixStream {
    // SAFETY: the caller has put an open descriptor at this number, and nobody else closes it.
    unsafe { std::os::unix::net::UnixStream::from_raw_fd(number) }
}

/// Resets signals to the state that a program expects at its start: none blocked, none ignored.
pub(in crate::child) fn reset_signals() -> io::Result<()> {
    for signal in 1..=64 {
        // SAFETY: SIG_DFL is no handler of ours.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
    unblock_signals()
}

/// Makes the kernel reap this process's children automatically.
pub(crate) fn forget_children() -> io::Result<()> {
    on_child(libc::SIG_IGN)
}

/// Undoes [`forget_children`], in a process that was forked from one that called it.
pub(in crate::child) fn reap_children() -> io::Result<()> {
    on_child(libc::SIG_DFL)
}

fn on_child(what: libc::sighandler_t) -> io::Result<()> {
    // SAFETY: SIG_IGN and SIG_DFL are no handlers of ours.
    match unsafe { libc::signal(libc::SIGCHLD, what) } {
        libc::SIG_ERR => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// Unblocks all signals.
pub(in crate::child) fn unblock_signals() -> io::Result<()> {
    // SAFETY: all zero bytes are a valid empty set, which both calls are given to write or copy.
    unsafe {
        let mut none: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut none);
        let done = libc::sigprocmask(libc::SIG_SETMASK, &raw const none, std::ptr::null_mut());
        syscall_result(i64::from(done), drop)
    }
}

/// Executes the program behind a descriptor. Returns only the reason why this failed.
pub(in crate::child) fn execute_descriptor(fd: i32, args: &[CString], env: &[CString]) -> io::Error {
    let list = |texts: &[CString]| -> Vec<*const libc::c_char> {
        texts
            .iter()
            .map(|text| text.as_ptr())
            .chain([std::ptr::null()])
            .collect()
    };
    let (args, env) = (list(args), list(env));
    // SAFETY: both lists end in a null pointer and point to texts that end in a null byte and live through the call.
    unsafe {
        libc::syscall(
            libc::SYS_execveat,
            fd,
            c"".as_ptr(),
            args.as_ptr(),
            env.as_ptr(),
            libc::AT_EMPTY_PATH,
        )
    };
    io::Error::last_os_error()
}

/// A waiting system call of the tool.
pub(crate) struct SyscallNotification {
    pub(crate) id: u64,
    pub(crate) pid: u32,
    pub(crate) call: i64,
    pub(crate) args: [u64; 6],
}

/// `struct seccomp_notif_addfd` of linux/seccomp.h.
#[repr(C)]
struct AddFd {
    id: u64,
    flags: u32,
    source: u32,
    number: u32,
    number_flags: u32,
}

/// `SECCOMP_IOCTL_NOTIF_ADDFD`: _IOW('!', 3, struct seccomp_notif_addfd).
const ADD_FD: libc::c_ulong = 0x4018_2103;
/// `SECCOMP_ADDFD_FLAG_SEND`: adds the descriptor and returns it as the call's result in one step.
const ADD_FD_SEND: u32 = 2;

/// The next waiting call. `None`: the caller is gone.
pub(crate) fn next_notice(listener: &OwnedFd) -> io::Result<Option<SyscallNotification>> {
    // SAFETY: all zero bytes are a valid `seccomp_notif`, and the kernel demands them.
    let mut notice: libc::seccomp_notif = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel writes one `seccomp_notif` to the pointer, which is valid for that.
    let done = unsafe {
        libc::ioctl(
            listener.as_raw_fd(),
            libc::SECCOMP_IOCTL_NOTIF_RECV,
            &raw mut notice,
        )
    };
    match syscall_result(i64::from(done), drop) {
        Ok(()) => Ok(Some(SyscallNotification {
            id: notice.id,
            pid: notice.pid,
            call: i64::from(notice.data.nr),
            args: notice.data.args,
        })),
        Err(error)
            if matches!(
                error.raw_os_error(),
                Some(libc::ENOENT | libc::EINTR | libc::EAGAIN)
            ) =>
        {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// Answers a call with a value or an error number.
pub(in crate::child) fn answer_notification(listener: &OwnedFd, id: u64, result: Result<i64, i32>) {
    let response = libc::seccomp_notif_resp {
        id,
        val: result.unwrap_or(0),
        error: result.err().map_or(0, |error| -error),
        flags: 0,
    };
    send_notification_response(listener, response);
}

/// Lets the kernel run the call as it was made. The memory behind its pointers may have changed since the check.
pub(crate) fn let_through(listener: &OwnedFd, id: u64) {
    let flags = u32::try_from(libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE).unwrap_or(1);
    let response = libc::seccomp_notif_resp {
        id,
        val: 0,
        error: 0,
        flags,
    };
    send_notification_response(listener, response);
}

fn send_notification_response(listener: &OwnedFd, mut response: libc::seccomp_notif_resp) {
    // SAFETY: the kernel reads one `seccomp_notif_resp` from the pointer.
    let _ = unsafe {
        libc::ioctl(
            listener.as_raw_fd(),
            libc::SECCOMP_IOCTL_NOTIF_SEND,
            &raw mut response,
        )
    }; // silent-ok: whoever asked is gone
}

/// Answers a call with a new descriptor in the tool's process.
pub(in crate::child) fn answer_with(
    listener: &OwnedFd,
    id: u64,
    fd: &OwnedFd,
    close_on_exec: bool,
) -> io::Result<()> {
    let request = AddFd {
        id,
        flags: ADD_FD_SEND,
        source: fd.as_raw_fd().unsigned_abs(),
        number: 0,
        number_flags: if close_on_exec {
            libc::O_CLOEXEC.unsigned_abs()
        } else {
            0
        },
    };
    // SAFETY: the kernel reads one `seccomp_notif_addfd`, whose layout `AddFd` has.
    let done = unsafe { libc::ioctl(listener.as_raw_fd(), ADD_FD, &raw const request) };
    syscall_result(i64::from(done), drop)
}

/// From now on, this process uses CAP_SYS_PTRACE to read other processes' memory, if the system requires it. A process with ptrace
/// permission through its parent does not need it. The capability is effective only during a read.
pub(crate) fn read_by_right() -> io::Result<()> {
    set_effective_capability(false)?;
    BY_RIGHT.store(true, Ordering::Relaxed);
    Ok(())
}

static BY_RIGHT: AtomicBool = AtomicBool::new(false);

/// Makes the one remaining capability effective, or not.
fn set_effective_capability(up: bool) -> io::Result<()> {
    let right = CapabilitySet::SYS_PTRACE;
    let sets = CapabilitySets {
        effective: if up { right } else { CapabilitySet::empty() },
        permitted: right,
        inheritable: CapabilitySet::empty(),
    };
    Ok(rustix::thread::set_capabilities(None, sets)?)
}

/// Reads another process's memory, at most `buffer`'s length. Returns how many bytes were read.
pub(in crate::child) fn read_memory(pid: u32, address: u64, buffer: &mut [u8]) -> io::Result<usize> {
    if !BY_RIGHT.load(Ordering::Relaxed) {
        return read_vm(pid, address, buffer);
    }
    set_effective_capability(true)?;
    let read = read_vm(pid, address, buffer);
    set_effective_capability(false)?;
    read
}

fn read_vm(pid: u32, address: u64, buffer: &mut [u8]) -> io::Result<usize> {
    let local = libc::iovec {
        iov_base: buffer.as_mut_ptr().cast(),
        iov_len: buffer.len(),
    };
    let remote = libc::iovec {
        iov_base: std::ptr::with_exposed_provenance_mut(usize::try_from(address).unwrap_or(0)),
        iov_len: buffer.len(),
    };
    let pid = i32::try_from(pid).map_err(io::Error::other)?;
    // SAFETY: `local` is our buffer; `remote` is only an address in the other process, which the kernel checks.
    let done = unsafe { libc::process_vm_readv(pid, &raw const local, 1, &raw const remote, 1, 0) };
    syscall_result(i64::try_from(done).unwrap_or(-1), |read| {
        usize::try_from(read).unwrap_or(0)
    })
}
