//! The allow-list of system calls that ordinary programs need (shells, interpreters, compilers, git, servers). All other calls fail
//! with EPERM. This list does not check arguments; the deny-list ([`super::filter`]) does, and applies in addition.

/// System calls that exist on every architecture.
#[rustfmt::skip]
const COMMON: &[i64] = &[
    // Reading and writing open files.
    libc::SYS_read, libc::SYS_write, libc::SYS_readv, libc::SYS_writev, libc::SYS_pread64, libc::SYS_pwrite64,
    libc::SYS_preadv, libc::SYS_pwritev, libc::SYS_preadv2, libc::SYS_pwritev2, libc::SYS_lseek, libc::SYS_close,
    libc::SYS_close_range, libc::SYS_sendfile, libc::SYS_splice, libc::SYS_tee, libc::SYS_vmsplice, libc::SYS_copy_file_range,
    libc::SYS_fsync, libc::SYS_fdatasync, libc::SYS_sync, libc::SYS_syncfs, libc::SYS_sync_file_range, libc::SYS_fallocate,
    libc::SYS_ftruncate, libc::SYS_fadvise64, libc::SYS_readahead, libc::SYS_dup, libc::SYS_dup3, libc::SYS_fcntl,
    libc::SYS_flock, libc::SYS_ioctl, libc::SYS_pipe2, libc::SYS_eventfd2, libc::SYS_signalfd4, libc::SYS_timerfd_create,
    libc::SYS_timerfd_settime, libc::SYS_timerfd_gettime, libc::SYS_epoll_create1, libc::SYS_epoll_ctl, libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2, libc::SYS_ppoll, libc::SYS_pselect6, libc::SYS_inotify_init1, libc::SYS_inotify_add_watch,
    libc::SYS_inotify_rm_watch, libc::SYS_memfd_create, libc::SYS_io_setup, libc::SYS_io_destroy, libc::SYS_io_submit,
    libc::SYS_io_cancel, libc::SYS_io_getevents,
    // Files by path: the view, Landlock and the guard decide which files.
    libc::SYS_openat, libc::SYS_truncate, libc::SYS_mkdirat, libc::SYS_mknodat, libc::SYS_unlinkat, libc::SYS_linkat,
    libc::SYS_symlinkat, libc::SYS_readlinkat, libc::SYS_renameat, libc::SYS_renameat2, libc::SYS_faccessat, SYS_FACCESSAT2,
    libc::SYS_fchmod, libc::SYS_fchmodat, 452, libc::SYS_fchown, libc::SYS_fchownat, libc::SYS_utimensat, libc::SYS_umask,
    libc::SYS_newfstatat, libc::SYS_fstat, libc::SYS_statx, libc::SYS_statfs, libc::SYS_fstatfs, libc::SYS_getdents64,
    libc::SYS_getcwd, libc::SYS_chdir, libc::SYS_fchdir, libc::SYS_getxattr, libc::SYS_lgetxattr, libc::SYS_fgetxattr,
    libc::SYS_listxattr, libc::SYS_llistxattr, libc::SYS_flistxattr, libc::SYS_setxattr, libc::SYS_lsetxattr,
    libc::SYS_fsetxattr, libc::SYS_removexattr, libc::SYS_lremovexattr, libc::SYS_fremovexattr,
    // Memory.
    libc::SYS_mmap, libc::SYS_munmap, libc::SYS_mprotect, libc::SYS_mremap, libc::SYS_madvise, libc::SYS_brk, libc::SYS_msync,
    libc::SYS_mincore, libc::SYS_mlock, libc::SYS_mlock2, libc::SYS_munlock, libc::SYS_mlockall, libc::SYS_munlockall,
    libc::SYS_mbind, libc::SYS_get_mempolicy, libc::SYS_set_mempolicy, libc::SYS_pkey_alloc, libc::SYS_pkey_free,
    libc::SYS_pkey_mprotect, libc::SYS_remap_file_pages, libc::SYS_membarrier, 462, 451,
    // Processes and threads. The deny-list removes namespaces from `clone`.
    libc::SYS_clone, libc::SYS_execve, libc::SYS_execveat, libc::SYS_exit, libc::SYS_exit_group, libc::SYS_wait4,
    libc::SYS_waitid, libc::SYS_kill, libc::SYS_tkill, libc::SYS_tgkill, libc::SYS_pidfd_open, libc::SYS_pidfd_send_signal,
    libc::SYS_rt_sigaction, libc::SYS_rt_sigprocmask, libc::SYS_rt_sigreturn, libc::SYS_rt_sigpending, libc::SYS_rt_sigsuspend,
    libc::SYS_rt_sigtimedwait, libc::SYS_rt_sigqueueinfo, libc::SYS_rt_tgsigqueueinfo, libc::SYS_sigaltstack,
    libc::SYS_restart_syscall, libc::SYS_set_tid_address, libc::SYS_set_robust_list, libc::SYS_get_robust_list,
    libc::SYS_rseq, libc::SYS_futex, libc::SYS_futex_waitv, 454, 455, 456, libc::SYS_gettid, libc::SYS_getpid,
    libc::SYS_getppid, libc::SYS_getpgid, libc::SYS_setpgid, libc::SYS_getsid, libc::SYS_setsid, libc::SYS_prctl,
    libc::SYS_personality, libc::SYS_getrlimit, libc::SYS_setrlimit, libc::SYS_prlimit64, libc::SYS_getrusage,
    libc::SYS_getpriority, libc::SYS_setpriority, libc::SYS_ioprio_get, libc::SYS_ioprio_set, libc::SYS_sched_yield,
    libc::SYS_sched_getaffinity, libc::SYS_sched_setaffinity, libc::SYS_sched_getparam, libc::SYS_sched_setparam,
    libc::SYS_sched_getscheduler, libc::SYS_sched_setscheduler, libc::SYS_sched_getattr, libc::SYS_sched_setattr,
    libc::SYS_sched_get_priority_max, libc::SYS_sched_get_priority_min, libc::SYS_sched_rr_get_interval, libc::SYS_getcpu,
    // Self-restriction: these calls only remove rights. (`seccomp` itself is on the deny-list.)
    libc::SYS_landlock_create_ruleset, libc::SYS_landlock_add_rule, libc::SYS_landlock_restrict_self, libc::SYS_capget,
    libc::SYS_capset, libc::SYS_seccomp,
    // User and group ids. The kernel refuses changing them without capabilities.
    libc::SYS_getuid, libc::SYS_geteuid, libc::SYS_getgid, libc::SYS_getegid, libc::SYS_getresuid, libc::SYS_getresgid,
    libc::SYS_getgroups, libc::SYS_setuid, libc::SYS_setgid, libc::SYS_setreuid, libc::SYS_setregid, libc::SYS_setresuid,
    libc::SYS_setresgid, libc::SYS_setgroups, libc::SYS_setfsuid, libc::SYS_setfsgid,
    // Time.
    libc::SYS_clock_gettime, libc::SYS_clock_getres, libc::SYS_clock_nanosleep, libc::SYS_nanosleep, libc::SYS_gettimeofday,
    libc::SYS_times, libc::SYS_getitimer, libc::SYS_setitimer, libc::SYS_timer_create, libc::SYS_timer_settime,
    libc::SYS_timer_gettime, libc::SYS_timer_getoverrun, libc::SYS_timer_delete,
    // Information about the machine, as far as the sandbox shows it.
    libc::SYS_uname, libc::SYS_sysinfo, libc::SYS_getrandom,
    // Sockets of the families that the deny-list admits.
    libc::SYS_socket, libc::SYS_socketpair, libc::SYS_bind, libc::SYS_listen, libc::SYS_accept, libc::SYS_accept4,
    libc::SYS_connect, libc::SYS_getsockname, libc::SYS_getpeername, libc::SYS_sendto, libc::SYS_recvfrom,
    libc::SYS_sendmsg, libc::SYS_recvmsg, libc::SYS_sendmmsg, libc::SYS_recvmmsg, libc::SYS_getsockopt,
    libc::SYS_setsockopt, libc::SYS_shutdown,
    // Communication between processes of the sandbox, in its own IPC namespace.
    libc::SYS_shmget, libc::SYS_shmat, libc::SYS_shmdt, libc::SYS_shmctl, libc::SYS_semget, libc::SYS_semop, libc::SYS_semctl,
    libc::SYS_semtimedop, libc::SYS_msgget, libc::SYS_msgsnd, libc::SYS_msgrcv, libc::SYS_msgctl, libc::SYS_mq_open,
    libc::SYS_mq_unlink, libc::SYS_mq_timedsend, libc::SYS_mq_timedreceive, libc::SYS_mq_notify, libc::SYS_mq_getsetattr,
];

const SYS_FACCESSAT2: i64 = 439;

/// Older system calls that only x86-64 has.
#[cfg(target_arch = "x86_64")]
#[rustfmt::skip]
const OLDER: &[i64] = &[
    libc::SYS_open, libc::SYS_creat, libc::SYS_stat, libc::SYS_lstat, libc::SYS_access, libc::SYS_readlink, libc::SYS_rename,
    libc::SYS_mkdir, libc::SYS_rmdir, libc::SYS_link, libc::SYS_unlink, libc::SYS_symlink, libc::SYS_chmod, libc::SYS_chown,
    libc::SYS_lchown, libc::SYS_mknod, libc::SYS_utime, libc::SYS_utimes, libc::SYS_futimesat, libc::SYS_getdents,
    libc::SYS_poll, libc::SYS_select, libc::SYS_epoll_create, libc::SYS_epoll_wait, libc::SYS_pipe, libc::SYS_dup2,
    libc::SYS_eventfd, libc::SYS_signalfd, libc::SYS_inotify_init, libc::SYS_fork, libc::SYS_vfork, libc::SYS_getpgrp,
    libc::SYS_alarm, libc::SYS_pause, libc::SYS_time, libc::SYS_arch_prctl, 453,
];
#[cfg(not(target_arch = "x86_64"))]
const OLDER: &[i64] = &[];

/// Every allowed system call.
pub(super) fn allowed_calls() -> impl Iterator<Item = i64> {
    COMMON.iter().chain(OLDER).copied()
}
