//! Detects whether mounts have changed, or clawk was moved to other control groups, since a sandbox was made.

use std::fs::File;

use rustix::event::{PollFd, PollFlags, Timespec};

use crate::launch::nursery::own_cgroups;

pub(super) struct MountWatcher {
    /// A file on which the kernel reports changes of mounts. Without it, every check counts as a change.
    table: Option<File>,
    groups: String,
    epoch: u64,
}

impl MountWatcher {
    pub(super) fn new() -> Self {
        Self {
            table: File::open("/proc/self/mountinfo").ok(), // silent-ok: see `table`
            groups: own_cgroups(),
            epoch: 0,
        }
    }

    /// A number that stays the same as long as nothing has changed.
    pub(super) fn epoch(&mut self) -> u64 {
        let mounted = self.table.as_ref().is_none_or(|table| {
            let mut fds = [PollFd::new(table, PollFlags::PRI)];
            match rustix::event::poll(&mut fds, Some(&Timespec::default())) {
                Ok(_) => {
                    let [fd] = fds;
                    fd.revents().intersects(PollFlags::PRI | PollFlags::ERR)
                }
                Err(_) => true, // silent-ok: a change, to be sure
            }
        });
        let groups = own_cgroups();
        if mounted || groups != self.groups {
            self.groups = groups;
            self.epoch += 1;
        }
        self.epoch
    }
}
