//! The file server of a machine: virtiofs, which qemu uses over vhost-user. It runs in the sandbox, as the sandbox's user, without
//! any capabilities, and sees only what the sandbox sees. Landlock keeps it out of `/proc` and `/dev`, so that a compromised kernel
//! can't reach the processes beside it.

use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixListener;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use fuse_backend_rs::api::server::Server;
use fuse_backend_rs::passthrough::{CachePolicy, Config, PassthroughFs};
use fuse_backend_rs::transport::{Reader, VirtioFsWriter, Writer};
use landlock::{
    ABI, Access, AccessFs, CompatLevel, Compatible, PathBeneath, PathFd, Ruleset, RulesetAttr,
    RulesetCreatedAttr,
};
use vhost::vhost_user::Listener;
use vhost::vhost_user::message::VhostUserProtocolFeatures;
use vhost_user_backend::{VhostUserBackend, VhostUserDaemon, VringMutex, VringT};
use virtio_queue::QueueT as _;
use vm_memory::{GuestAddressSpace, GuestMemoryAtomic, GuestMemoryLoadGuard, GuestMemoryMmap};
use vmm_sys_util::epoll::EventSet;

use super::judge::GuardedPassthrough;
use super::wire::FileServerRules;

/// The number of descriptor chains in one queue.
const QUEUE: usize = 1024;

/// The number of queues: one for urgent requests, one for the others.
const QUEUES: usize = 2;

/// How long the machine may cache a name or an attribute.
const FRESH: Duration = Duration::from_secs(1);

/// `VIRTIO_F_INDIRECT_DESC`, `VIRTIO_F_EVENT_IDX`, `VHOST_USER_F_PROTOCOL_FEATURES`, `VIRTIO_F_VERSION_1`.
const FEATURES: u64 = 1 << 28 | 1 << 29 | 1 << 30 | 1 << 32;

/// Folders that the machine's root must never show.
const NEVER: [&str; 3] = ["proc", "dev", "sys"];

type Memory = GuestMemoryAtomic<GuestMemoryMmap>;

/// Serves the sandbox's files on the socket that is standard input, until qemu ends.
pub(super) fn serve_files(rules: &str) -> io::Result<()> {
    let rules: FileServerRules = serde_json::from_str(rules)?;
    let listener = UnixListener::from(io::stdin().as_fd().try_clone_to_owned()?);
    let config = Config {
        root_dir: "/".to_owned(),
        entry_timeout: FRESH,
        attr_timeout: FRESH,
        cache_policy: CachePolicy::Auto,
        ..Config::default()
    };
    let inner = PassthroughFs::<()>::new(config)?;
    inner.import()?;
    enclose_server()?;
    let device = Arc::new(VirtiofsDevice {
        server: Server::new(GuardedPassthrough::new(inner, rules)),
        memory: Mutex::new(None),
        event_index: AtomicBool::new(false),
    });
    let failed = |error: vhost_user_backend::Error| io::Error::other(format!("virtiofs: {error}"));
    let memory = GuestMemoryAtomic::new(GuestMemoryMmap::new());
    let mut daemon = VhostUserDaemon::new("files".to_owned(), device, memory).map_err(failed)?;
    daemon.start(&mut Listener::from(listener)).map_err(failed)?;
    daemon.wait().map_err(failed)
}

/// Restricts this process to the view, without processes and devices.
fn enclose_server() -> io::Result<()> {
    let failed = |error: landlock::RulesetError| io::Error::other(format!("landlock: {error}"));
    let all = AccessFs::from_all(ABI::V3);
    let mut rules = Ruleset::default()
        .set_compatibility(CompatLevel::HardRequirement)
        .handle_access(all)
        .map_err(failed)?
        .create()
        .map_err(failed)?;
    let root = PathFd::new("/").map_err(io::Error::other)?;
    rules = rules
        .add_rule(PathBeneath::new(root, AccessFs::ReadDir))
        .map_err(failed)?;
    for entry in std::fs::read_dir("/")? {
        let entry = entry?;
        if NEVER.iter().any(|name| entry.file_name() == *name) {
            continue;
        }
        let Ok(meta) = entry.path().metadata() else {
            continue;
        };
        let Ok(fd) = PathFd::new(entry.path()) else {
            continue;
        };
        let access = if meta.is_dir() {
            all
        } else {
            all & AccessFs::from_file(ABI::V3)
        };
        rules = rules.add_rule(PathBeneath::new(fd, access)).map_err(failed)?;
    }
    let status = rules.restrict_self().map_err(failed)?;
    if status.ruleset == landlock::RulesetStatus::FullyEnforced {
        Ok(())
    } else {
        Err(io::Error::other(
            "landlock: the file server's wall does not stand",
        ))
    }
}

struct VirtiofsDevice {
    server: Server<GuardedPassthrough>,
    memory: Mutex<Option<Memory>>,
    event_index: AtomicBool,
}

impl VirtiofsDevice {
    /// Answers all waiting requests of a queue.
    fn process_queue(&self, memory: &Memory, queue: &VringMutex<Memory>) -> io::Result<()> {
        let mut used = false;
        loop {
            let guard: GuestMemoryLoadGuard<GuestMemoryMmap> = memory.memory();
            let next = queue
                .get_mut()
                .get_queue_mut()
                .pop_descriptor_chain(guard.clone());
            let Some(chain) = next else { break };
            let head = chain.head_index();
            let reader = Reader::from_descriptor_chain(&*guard, chain.clone());
            let writer = VirtioFsWriter::new(&*guard, chain);
            let written = match (reader, writer) {
                (Ok(reader), Ok(writer)) => self
                    .server
                    .handle_message(reader, Writer::from(writer), None, None)
                    .unwrap_or(0),
                _ => 0, // a request that is none gets no answer
            };
            let written = u32::try_from(written).unwrap_or(0);
            queue.add_used(head, written).map_err(io::Error::other)?;
            used = true;
        }
        if used && queue.needs_notification().map_err(io::Error::other)? {
            queue.signal_used_queue()?;
        }
        Ok(())
    }
}

impl VhostUserBackend for VirtiofsDevice {
    type Bitmap = ();
    type Vring = VringMutex;

    fn num_queues(&self) -> usize {
        QUEUES
    }

    fn max_queue_size(&self) -> usize {
        QUEUE
    }

    fn features(&self) -> u64 {
        FEATURES
    }

    fn protocol_features(&self) -> VhostUserProtocolFeatures {
        VhostUserProtocolFeatures::MQ | VhostUserProtocolFeatures::REPLY_ACK
    }

    fn set_event_idx(&self, enabled: bool) {
        self.event_index.store(enabled, Ordering::Relaxed);
    }

    fn update_memory(&self, memory: Memory) -> io::Result<()> {
        *self.memory.lock().unwrap_or_else(PoisonError::into_inner) = Some(memory);
        Ok(())
    }

    fn handle_event(
        &self,
        event: u16,
        kind: EventSet,
        queues: &[Self::Vring],
        _thread: usize,
    ) -> io::Result<()> {
        let queue = queues.get(usize::from(event)).filter(|_| kind == EventSet::IN);
        let queue = queue.ok_or_else(|| io::Error::other("an event of no queue"))?;
        let memory = self.memory.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let memory = memory.ok_or_else(|| io::Error::other("no memory yet"))?;
        if !self.event_index.load(Ordering::Relaxed) {
            return self.process_queue(&memory, queue);
        }
        loop {
            queue.disable_notification().map_err(io::Error::other)?;
            self.process_queue(&memory, queue)?;
            if !queue.enable_notification().map_err(io::Error::other)? {
                return Ok(());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_file_server_opens_nothing_of_processes_and_devices() {
        // The restriction applies to the thread that makes it.
        let looked = std::thread::spawn(|| {
            super::enclose_server().unwrap();
            let denied =
                |path: &str| std::fs::read(path).unwrap_err().kind() == std::io::ErrorKind::PermissionDenied;
            assert!(denied("/proc/self/status") && denied("/dev/zero"));
            assert!(std::fs::read("/etc/passwd").is_ok());
        });
        looked.join().unwrap();
    }
}
