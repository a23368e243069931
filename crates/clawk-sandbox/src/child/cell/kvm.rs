//! Shows `/dev/kvm` in the view; only for qemu in a sandbox of level `vm`.

use std::io;
use std::path::Path;

use rustix::fs::{AtFlags, FileType, Mode, OFlags};
use rustix::process::{Gid, Uid};

use super::view::{SandboxView, copy_of, create_tmpfs, open_host};
use crate::child::sys::{self, ATTR_NODEV, ATTR_NOEXEC, ATTR_NOSUID};

/// Creates the device node in the view.
pub(super) fn mount_kvm_node(view: &mut SandboxView) -> io::Result<()> {
    let path = Path::new("/dev/kvm");
    let host = open_host(path).map_err(|error| io::Error::other(format!("/dev/kvm: {error}")))?;
    let copy = if view.identity.dropped {
        // The host's node belongs to its own users. This one belongs only to the sandbox's user.
        let store = create_tmpfs(64 << 10, "700", None)?;
        let device = rustix::fs::fstat(&host)?.st_rdev;
        let mode = Mode::RUSR | Mode::WUSR;
        rustix::fs::mknodat(&store, "kvm", FileType::CharacterDevice, mode, device)?;
        let (uid, gid) = (Uid::from_raw(view.identity.uid), Gid::from_raw(view.identity.gid));
        rustix::fs::chownat(&store, "kvm", Some(uid), Some(gid), AtFlags::empty())?;
        let node = rustix::fs::openat(&store, "kvm", OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
        copy_of(node, false)?
    } else {
        copy_of(&host, false)?
    };
    sys::set_attributes(&copy, false, ATTR_NOSUID | ATTR_NOEXEC, ATTR_NODEV)?;
    view.mount_at(&copy, path)?;
    view.writable.push(path.to_path_buf());
    view.held.push("dev:kvm".to_owned());
    Ok(())
}
