//! The tool's user and group on the host: never root (R34). If clawk is root, the tool gets a separate id that owns nothing on this
//! machine, and idmapped mounts map it to the owner of each mounted folder. Otherwise the tool has clawk's own user, in a user
//! namespace.

use std::io;
use std::os::fd::OwnedFd;

use rustix::process::{Gid, Pid, Uid};
use rustix::thread::{CapabilitiesSecureBits, CapabilitySet, CapabilitySets};

use crate::child::sys;

/// The first id for sandboxes of a root clawk, above the usual id ranges of containers. The supervisor's process id is added, so
/// that no two running sandboxes have the same id.
const FIRST_ID: u32 = 0x7000_0000;

/// The capabilities that a root clawk needs to isolate a tool without a user namespace.
const NEEDED: CapabilitySet = CapabilitySet::SYS_ADMIN
    .union(CapabilitySet::SETUID)
    .union(CapabilitySet::SETGID)
    .union(CapabilitySet::SETPCAP)
    .union(CapabilitySet::CHOWN)
    .union(CapabilitySet::DAC_OVERRIDE)
    .union(CapabilitySet::NET_ADMIN);

/// The tool's user and group ids.
#[derive(Debug, Clone, Copy)]
pub(super) struct ToolIdentity {
    pub(super) uid: u32,
    pub(super) gid: u32,
    /// True without a user namespace: clawk is root and drops its privileges.
    pub(super) dropped: bool,
}

impl ToolIdentity {
    pub(super) fn choose() -> io::Result<Self> {
        let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
        if !uid.is_root() {
            return Ok(Self {
                uid: uid.as_raw(),
                gid: gid.as_raw(),
                dropped: false,
            });
        }
        let held = rustix::thread::capabilities(None)?.effective;
        if !held.contains(NEEDED) {
            return Err(io::Error::other(
                "root: clawk runs as root without the capabilities that separate a tool from root (SYS_ADMIN, SETUID, SETGID, SETPCAP, CHOWN, DAC_OVERRIDE, NET_ADMIN); run it as an ordinary user",
            ));
        }
        let own = rustix::process::getpid().as_raw_nonzero().get().unsigned_abs();
        let id = if maps_everything()? {
            FIRST_ID | (own & 0x00ff_ffff)
        } else {
            // For root in a container: its last ids, which no user of the container has.
            last_id()?.saturating_sub(1 + own % 4096)
        };
        if id < 1000 {
            return Err(io::Error::other(
                "this user namespace has no id to spare for a tool",
            ));
        }
        Ok(Self {
            uid: id,
            gid: id,
            dropped: true,
        })
    }

    /// Drops every privilege permanently. Programs started later can't regain any.
    pub(super) fn drop_privileges(&self) -> io::Result<()> {
        for capability in CapabilitySet::all().iter() {
            match rustix::thread::remove_capability_from_bounding_set(capability) {
                Ok(()) | Err(rustix::io::Errno::INVAL) => {} // silent-ok: this kernel has fewer
                Err(error) => return Err(error.into()),
            }
        }
        rustix::thread::set_capabilities_secure_bits(
            CapabilitiesSecureBits::NO_ROOT
                | CapabilitiesSecureBits::NO_ROOT_LOCKED
                | CapabilitiesSecureBits::NO_SETUID_FIXUP
                | CapabilitiesSecureBits::NO_SETUID_FIXUP_LOCKED
                | CapabilitiesSecureBits::KEEP_CAPS_LOCKED
                | CapabilitiesSecureBits::NO_CAP_AMBIENT_RAISE
                | CapabilitiesSecureBits::NO_CAP_AMBIENT_RAISE_LOCKED,
        )?;
        rustix::thread::clear_ambient_capability_set()?;
        if self.dropped {
            let (uid, gid) = (Uid::from_raw(self.uid), Gid::from_raw(self.gid));
            rustix::thread::set_thread_groups(&[])?;
            rustix::thread::set_thread_res_gid(gid, gid, gid)?;
            rustix::thread::set_thread_res_uid(uid, uid, uid)?;
        }
        rustix::thread::set_capabilities(
            None,
            CapabilitySets {
                effective: CapabilitySet::empty(),
                permitted: CapabilitySet::empty(),
                inheritable: CapabilitySet::empty(),
            },
        )?;
        rustix::thread::set_no_new_privs(true)?;
        rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable)?;
        self.verify_dropped()
    }

    /// Checks that the privileges are really gone.
    fn verify_dropped(&self) -> io::Result<()> {
        let held = rustix::thread::capabilities(None)?;
        let clean = held.permitted.is_empty() && held.effective.is_empty() && held.inheritable.is_empty();
        let who =
            rustix::process::getuid().as_raw() == self.uid && rustix::process::geteuid().as_raw() == self.uid;
        if clean && who && self.uid != 0 && rustix::thread::no_new_privs()? {
            Ok(())
        } else {
            Err(io::Error::other("the privileges were not given up"))
        }
    }

    /// Writes the id maps of the user namespace in which `init` was started.
    pub(super) fn write_id_maps(&self, init: Pid) -> io::Result<()> {
        let folder = format!("/proc/{}", init.as_raw_nonzero());
        std::fs::write(format!("{folder}/setgroups"), "deny")?;
        std::fs::write(format!("{folder}/uid_map"), format!("{0} {0} 1", self.uid))?;
        std::fs::write(format!("{folder}/gid_map"), format!("{0} {0} 1", self.gid))
    }

    /// Creates a user namespace for an idmapped mount: files of `owner` appear as the tool's, and files that the tool creates
    /// belong to `owner`.
    pub(super) fn shown_as(&self, owner: (u32, u32)) -> io::Result<OwnedFd> {
        let (reader, writer) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
        let Some(holder) = sys::fork_into(libc::CLONE_NEWUSER)? else {
            drop(writer);
            let _ = rustix::io::read(&reader, &mut [0_u8; 1]); // silent-ok: end of file is what is waited for
            sys::exit_now(0);
        };
        let folder = format!("/proc/{}", holder.as_raw_nonzero());
        let write = |name: &str, id: u32, as_id: u32| {
            std::fs::write(format!("{folder}/{name}"), id_map_lines(id, as_id))
        };
        let namespace = write("uid_map", owner.0, self.uid)
            .and_then(|()| write("gid_map", owner.1, self.gid))
            .and_then(|()| std::fs::File::open(format!("{folder}/ns/user")));
        drop(writer);
        let _ = rustix::process::waitpid(Some(holder), rustix::process::WaitOptions::empty()); // silent-ok: it only held the namespace
        Ok(namespace?.into())
    }
}

/// The lines of an id map: `id` on disk appears as `shown` in the mount; ids below it stay the same.
fn id_map_lines(id: u32, shown: u32) -> String {
    let mut lines = String::new();
    if id > 0 {
        lines.push_str(&format!("0 0 {id}\n"));
    }
    lines.push_str(&format!("{id} {shown} 1\n"));
    let rest = shown.saturating_sub(id).saturating_sub(1);
    if rest > 0 {
        lines.push_str(&format!("{0} {0} {rest}\n", id.saturating_add(1)));
    }
    lines
}

fn id_ranges() -> io::Result<Vec<(u32, u32)>> {
    let text = std::fs::read_to_string("/proc/self/uid_map")?;
    let range = |line: &str| {
        let mut fields = line.split_ascii_whitespace().map(str::parse::<u32>);
        Some((fields.next()?.ok()?, fields.nth(1)?.ok()?))
    };
    Ok(text.lines().filter_map(range).collect())
}

fn maps_everything() -> io::Result<bool> {
    Ok(id_ranges()?
        .iter()
        .any(|(first, count)| *first == 0 && *count >= FIRST_ID.saturating_add(0x0100_0000)))
}

fn last_id() -> io::Result<u32> {
    id_ranges()?
        .iter()
        .map(|(first, count)| first.saturating_add(*count).saturating_sub(1))
        .max()
        .ok_or_else(|| io::Error::other("no ids are mapped here"))
}
